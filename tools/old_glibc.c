// SPDX-License-Identifier: Apache-2.0
// What newer versions of glibc have and a library for older ones must bring itself, for cmake/old_glibc.cmake:
// functions that were inline in glibc's own headers before 2.33, and those that came later. x86-64 alone, where the
// kernel's struct stat is the one of <sys/stat.h>.
#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __x86_64__
#error "struct stat of another processor's kernel may differ; leave FROGHOPPER_OLD_GLIBC off there"
#endif

// glibc 2.32; the C++ library asks it whether it may count references without locks. It never may.
char __libc_single_threaded = 0;

// glibc 2.33
int stat(const char* restrict path, struct stat* restrict found) { return (int)syscall(SYS_stat, path, found); }
int lstat(const char* restrict path, struct stat* restrict found) { return (int)syscall(SYS_lstat, path, found); }
int fstat(int file, struct stat* found) { return (int)syscall(SYS_fstat, file, found); }
int fstat64(int file, struct stat64* found) { return (int)syscall(SYS_fstat, file, found); }

// glibc 2.36; the C++ library's std::random_device would call it. There is no way to say that it failed, so it asks
// until it is answered; only a kernel before 3.17 never answers.
uint32_t arc4random(void) {
  uint32_t number = 0;
  while (getentropy(&number, sizeof number) != 0)
    ;
  return number;
}
