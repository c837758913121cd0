# SPDX-License-Identifier: Apache-2.0
# old_glibc(TARGET): links a shared library so that glibc 2.27 and later can load it, whichever glibc is here.
#
# Since 2.34 the functions of libpthread and libdl are part of libc under a new version, and exp and log have new
# versions since 2.29; the old ones are still there for old programs. A linker takes the newest. So before libc it is
# shown libraries of the same names that have these functions in their oldest version alone, as they were on the older
# system; they are empty, and only the linker ever sees them. The loader goes by name and version of a symbol, not by
# the library that it was linked from, so exp and log may stand in libdl: libm itself is linked too. What was no
# function of the old system at all comes from tools/old_glibc.c.
set(old_glibc_dl dladdr dlerror dlopen dlsym exp log)
set(old_glibc_pthread
    pthread_create pthread_detach pthread_getspecific pthread_join pthread_key_create __pthread_key_create
    pthread_key_delete pthread_once pthread_rwlock_rdlock pthread_rwlock_unlock pthread_rwlock_wrlock
    pthread_setspecific pthread_sigmask)

foreach(part dl.2 pthread.0)
  string(REGEX MATCH "^([a-z]+)\\.([0-9])$" matched ${part})
  set(name ${CMAKE_MATCH_1})
  set(soversion ${CMAKE_MATCH_2})
  set(folder ${PROJECT_BINARY_DIR}/old_glibc)
  list(TRANSFORM old_glibc_${name} REPLACE "(.+)" "void \\1(void) {}" OUTPUT_VARIABLE source)
  list(JOIN source "\n" source)
  list(JOIN old_glibc_${name} "; " symbols)
  file(CONFIGURE OUTPUT ${folder}/${name}.c CONTENT "${source}\n" @ONLY)
  file(CONFIGURE OUTPUT ${folder}/${name}.map CONTENT "GLIBC_2.2.5 { global: ${symbols}; local: *; };\n" @ONLY)
  add_library(old_glibc_${name} SHARED ${folder}/${name}.c)
  set_target_properties(old_glibc_${name} PROPERTIES OUTPUT_NAME ${name} SOVERSION ${soversion} C_VISIBILITY_PRESET
                        default LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_compile_options(old_glibc_${name} PRIVATE -fno-builtin -w)
  target_link_options(old_glibc_${name} PRIVATE -nostdlib LINKER:--version-script=${folder}/${name}.map)
endforeach()

add_library(old_glibc_extra OBJECT tools/old_glibc.c)

function(old_glibc target)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:old_glibc_extra>)
  add_dependencies(${target} old_glibc_dl old_glibc_pthread)
  target_link_options(${target} PRIVATE LINKER:--push-state,--no-as-needed $<TARGET_FILE:old_glibc_dl>
                      $<TARGET_FILE:old_glibc_pthread> LINKER:--pop-state)
endfunction()
