# SPDX-License-Identifier: Apache-2.0
# What is embedded in the library as bytes: the device sources, which NVRTC compiles at run time, and the presets, which
# tools/compile compiles at build time with the same function, once with each compiler.
#   froghopper_sources    object library; all that tools/compile needs
#   froghopper_embedded   object library; sources and presets
include(cmake/embed.cmake)

file(GLOB device_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} contract/*.h device/*/*.cuh)
list(SORT device_files)
set(entries)
foreach(file ${device_files})
  list(APPEND entries ${file}=${PROJECT_SOURCE_DIR}/${file})
endforeach()
embed(${PROJECT_BINARY_DIR}/embedded_sources.s froghopper_sources ${entries})
add_library(froghopper_sources OBJECT ${PROJECT_BINARY_DIR}/embedded_sources.s)

add_executable(froghopper_compile tools/compile.cpp)
target_link_libraries(froghopper_compile PRIVATE froghopper_foundation froghopper_sources)

# Names of variants, one a line; # begins a comment.
set(presets)
if(FROGHOPPER_PRESETS)
  file(GLOB preset_lists CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/presets/*.txt)
  list(FILTER preset_lists EXCLUDE REGEX "/registers\\.txt$")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_lists})
  foreach(list ${preset_lists})
    file(STRINGS ${list} lines)
    foreach(line ${lines})
      string(REGEX REPLACE "#.*" "" line "${line}")
      string(STRIP "${line}" line)
      if(line)
        list(APPEND presets ${line})
      endif()
    endforeach()
  endforeach()
  list(SORT presets)
endif()

# One command a compiler; the two run side by side. What is in the folder or in the disk cache (docs/6-jit.md) with the
# right content key is not compiled again.
set(embedded_files ${PROJECT_BINARY_DIR}/embedded_sources.s)
foreach(generation 13 12)
  set(folder ${PROJECT_BINARY_DIR}/presets/cuda${generation})
  set(entries)
  set(kernels)
  foreach(preset ${presets})
    list(APPEND entries ${preset}=${folder}/${preset}.kernel)
    list(APPEND kernels ${folder}/${preset}.kernel)
  endforeach()
  if(presets)
    list(JOIN presets "\n" names)
    file(CONFIGURE OUTPUT ${folder}/names.txt CONTENT "${names}\n" @ONLY)
    add_custom_command(OUTPUT ${kernels}
      COMMAND froghopper_compile --nvrtc ${FROGHOPPER_NVRTC${generation}} --out ${folder} ${folder}/names.txt
      DEPENDS froghopper_compile ${folder}/names.txt ${FROGHOPPER_NVRTC${generation}}
      COMMENT "Compiling the presets with NVRTC ${generation}" VERBATIM)
  endif()
  embed(${PROJECT_BINARY_DIR}/embedded_presets${generation}.s froghopper_presets${generation} ${entries})
  list(APPEND embedded_files ${PROJECT_BINARY_DIR}/embedded_presets${generation}.s)
endforeach()
add_library(froghopper_embedded OBJECT ${embedded_files})

# cmake --build BUILD --target registers: writes presets/registers.txt again, where a difference is meant.
if(presets AND FROGHOPPER_DEVELOPER)
  set(folders ${PROJECT_BINARY_DIR}/presets/cuda13 ${PROJECT_BINARY_DIR}/presets/cuda12)
  add_custom_target(registers
    COMMAND froghopper_compile --table ${folders} > ${PROJECT_SOURCE_DIR}/presets/registers.txt)
  add_dependencies(registers froghopper_embedded)
endif()
