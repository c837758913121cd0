# SPDX-License-Identifier: Apache-2.0
# The libraries that froghopper is made of. A project that brings one of them keeps its own: its target is used, under
# any of its usual names; else the system is asked (on Debian: libfmt-dev libhwy-dev libxxhash-dev libzstd-dev).
#   froghopper_libraries   threads, dlopen, and the headers of fmt, Highway and xxHash, of which nothing is linked
#   froghopper_zstd        zstd, linked as an archive, which packs and unpacks presets; not looked for without these
find_package(Threads REQUIRED)
add_library(froghopper_libraries INTERFACE)
target_link_libraries(froghopper_libraries INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

# add_headers(HEADER PACKAGE TARGET ...): the include folders of the first target that there is, else of the system.
function(add_headers header package)
  foreach(target ${ARGN})
    if(TARGET ${target})
      target_include_directories(froghopper_libraries SYSTEM INTERFACE
                                 $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
      return()
    endif()
  endforeach()
  string(MAKE_C_IDENTIFIER ${header} name)
  find_path(FROGHOPPER_HEADER_${name} ${header} DOC "the folder of ${header}")
  mark_as_advanced(FROGHOPPER_HEADER_${name})
  if(NOT FROGHOPPER_HEADER_${name})
    message(FATAL_ERROR "${header} was not found; the library is compiled with it. On Debian: apt-get install "
            "${package}. Or give -DCMAKE_PREFIX_PATH=FOLDER, or add the library's own CMake project before froghopper.")
  endif()
  target_include_directories(froghopper_libraries SYSTEM INTERFACE ${FROGHOPPER_HEADER_${name}})
endfunction()
add_headers(fmt/format.h libfmt-dev fmt::fmt-header-only fmt-header-only fmt::fmt fmt)
add_headers(hwy/highway.h libhwy-dev hwy::hwy hwy)
add_headers(xxhash.h libxxhash-dev xxHash::xxhash xxhash)

# need_package(NAME DEBIAN_PACKAGE): find_package of what only the program and the tests use.
macro(need_package name package)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found; the program and the tests use it. On Debian: apt-get install "
            "${package}. Or build the library alone: -DFROGHOPPER_CLI=OFF -DFROGHOPPER_TESTS=OFF.")
  endif()
endmacro()

if(NOT FROGHOPPER_PRESETS AND NOT FROGHOPPER_TESTS)
  return()
endif()
foreach(target libzstd_static zstd::libzstd_static zstd::libzstd)
  if(TARGET ${target} AND NOT TARGET froghopper_zstd)
    add_library(froghopper_zstd INTERFACE)
    target_link_libraries(froghopper_zstd INTERFACE ${target})
  endif()
endforeach()
if(NOT TARGET froghopper_zstd)
  find_path(FROGHOPPER_ZSTD_INCLUDE zstd.h DOC "the folder of zstd.h")
  find_library(FROGHOPPER_ZSTD_LIBRARY NAMES libzstd.a zstd DOC "zstd, better as an archive")
  mark_as_advanced(FROGHOPPER_ZSTD_INCLUDE FROGHOPPER_ZSTD_LIBRARY)
  if(FROGHOPPER_ZSTD_INCLUDE AND FROGHOPPER_ZSTD_LIBRARY)
    add_library(froghopper_zstd INTERFACE)
    target_include_directories(froghopper_zstd SYSTEM INTERFACE ${FROGHOPPER_ZSTD_INCLUDE})
    target_link_libraries(froghopper_zstd INTERFACE ${FROGHOPPER_ZSTD_LIBRARY})
  endif()
endif()
if(NOT TARGET froghopper_zstd)
  message(FATAL_ERROR "FROGHOPPER_PRESETS or FROGHOPPER_TESTS is on and zstd was not found; it packs the presets. On "
          "Debian: apt-get install libzstd-dev. Or build without, so that NVRTC compiles each kernel at its first use: "
          "-DFROGHOPPER_PRESETS=OFF -DFROGHOPPER_TESTS=OFF, with pip: -C cmake.define.FROGHOPPER_PRESETS=OFF.")
endif()
