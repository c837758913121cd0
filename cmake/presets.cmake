# SPDX-License-Identifier: Apache-2.0
# What is embedded in the library as bytes: the device sources, which NVRTC compiles at run time, and with
# FROGHOPPER_PRESETS the presets, which tools/compile compiles at build time with the same function, and packs into one
# bundle for each compiler: all of them with NVRTC 13, those of presets/cuda12.txt with NVRTC 12 too. Where only one
# compiler was found, it makes all.
#   froghopper_sources    object library; all that tools/compile needs
#   froghopper_embedded   object library; sources and presets
include(cmake/embed.cmake)

file(GLOB device_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} contract/*.h device/*/*.cuh)
list(SORT device_files)
set(entries)
foreach(file ${device_files})
  list(APPEND entries ${file}=${PROJECT_SOURCE_DIR}/${file})
endforeach()
embed(${PROJECT_BINARY_DIR}/embedded_sources.s froghopper_sources hidden ${entries})
add_library(froghopper_sources OBJECT ${PROJECT_BINARY_DIR}/embedded_sources.s)

if(FROGHOPPER_PRESETS OR FROGHOPPER_TESTS)
  add_executable(froghopper_compile tools/compile.cpp tools/bundle.cpp)
  target_link_libraries(froghopper_compile PRIVATE froghopper_foundation froghopper_sources froghopper_zstd)
endif()

# The names of variants in files, one a line; # begins a comment.
function(names_in result)  # FILE ...
  set(names)
  foreach(list ${ARGN})
    file(STRINGS ${list} lines)
    foreach(line ${lines})
      string(REGEX REPLACE "#.*" "" line "${line}")
      string(STRIP "${line}" line)
      if(line)
        list(APPEND names ${line})
      endif()
    endforeach()
  endforeach()
  list(SORT names)
  list(REMOVE_DUPLICATES names)
  set(${result} ${names} PARENT_SCOPE)
endfunction()

# FROGHOPPER_PRESET_LISTS: other lists than those of presets/, for each compiler that was found.
set(presets)
if(FROGHOPPER_PRESETS)
  set(FROGHOPPER_PRESET_LISTS "" CACHE FILEPATH "files that name the presets; all of presets/ if it is empty")
  mark_as_advanced(FROGHOPPER_PRESET_LISTS)
  set(preset_lists ${FROGHOPPER_PRESET_LISTS})
  if(NOT preset_lists)
    file(GLOB preset_lists CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/presets/*.txt)
    list(FILTER preset_lists EXCLUDE REGEX "/registers\\.txt$")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_lists})
  names_in(presets ${preset_lists})
  set(presets12 ${presets})
  if(FROGHOPPER_NVRTC13 AND NOT FROGHOPPER_PRESET_LISTS)
    names_in(presets12 ${PROJECT_SOURCE_DIR}/presets/cuda12.txt)
  endif()
  set(presets13 ${presets})
endif()

# One command a compiler, one after the other, since each uses all cores. What is in the folder or in the disk cache
# (docs/6-jit.md) with the right content key is not compiled again.
set(bundles)
set(before)
foreach(generation 12 13)
  if(NOT presets OR NOT FROGHOPPER_NVRTC${generation})
    continue()
  endif()
  set(folder ${PROJECT_BINARY_DIR}/presets/cuda${generation})
  list(JOIN presets${generation} "\n" names)
  list(LENGTH presets${generation} count)
  message(STATUS "${count} presets are compiled by NVRTC ${generation}")
  file(CONFIGURE OUTPUT ${folder}/names.txt CONTENT "${names}\n" @ONLY)
  add_custom_command(OUTPUT ${folder}.bundle
    COMMAND froghopper_compile --nvrtc ${FROGHOPPER_NVRTC${generation}} --out ${folder} ${folder}/names.txt
    COMMAND froghopper_compile --bundle ${folder} ${folder}.bundle
    DEPENDS froghopper_compile ${folder}/names.txt ${FROGHOPPER_NVRTC${generation}} ${before}
    COMMENT "Compiling the presets with NVRTC ${generation}" VERBATIM)
  list(APPEND bundles cuda${generation}=${folder}.bundle)
  set(before ${folder}.bundle)
endforeach()
embed(${PROJECT_BINARY_DIR}/embedded_presets.s froghopper_presets hidden ${bundles})
add_library(froghopper_embedded OBJECT ${PROJECT_BINARY_DIR}/embedded_sources.s
            ${PROJECT_BINARY_DIR}/embedded_presets.s)

# cmake --build BUILD --target registers: writes presets/registers.txt again, where a difference is meant.
if(presets AND FROGHOPPER_TESTS)
  set(folders ${PROJECT_BINARY_DIR}/presets/cuda13 ${PROJECT_BINARY_DIR}/presets/cuda12)
  add_custom_target(registers
    COMMAND froghopper_compile --table ${folders} > ${PROJECT_SOURCE_DIR}/presets/registers.txt)
  add_dependencies(registers froghopper_embedded)
endif()

# The programs of the tests read the presets from one file instead of having some each.
if(FROGHOPPER_TESTS)
  embed(${PROJECT_BINARY_DIR}/embedded_presets_for_tests.s froghopper_presets visible ${bundles})
  add_library(froghopper_presets_for_tests SHARED ${PROJECT_BINARY_DIR}/embedded_presets_for_tests.s)
  set_target_properties(froghopper_presets_for_tests PROPERTIES LINKER_LANGUAGE C)
  add_dependencies(froghopper_presets_for_tests froghopper_embedded)  # so that two do not make the bundles at once
endif()
