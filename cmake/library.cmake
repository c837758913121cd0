# SPDX-License-Identifier: Apache-2.0
# The library, of the parts that CMakeLists.txt makes.
#   froghopper          what users link, froghopper::froghopper: shared, and with BUILD_SHARED_LIBS=OFF an archive
#   froghopper_static   the archive, froghopper::static; built where somebody asks for it
add_library(froghopper_static STATIC $<TARGET_OBJECTS:froghopper_foundation> $<TARGET_OBJECTS:froghopper_core>
            $<TARGET_OBJECTS:froghopper_embedded>)
set_target_properties(froghopper_static PROPERTIES OUTPUT_NAME froghopper EXPORT_NAME static EXCLUDE_FROM_ALL ON
                      LINKER_LANGUAGE CXX)
# A program in C alone does not bring the C++ library of the archive.
target_link_libraries(froghopper_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS}
                      "$<$<LINK_LANGUAGE:C>:stdc++>" "$<$<LINK_LANGUAGE:C>:m>")
if(TARGET froghopper_zstd)
  target_link_libraries(froghopper_static INTERFACE $<BUILD_INTERFACE:froghopper_zstd> $<INSTALL_INTERFACE:zstd>)
endif()
add_library(froghopper::static ALIAS froghopper_static)

if(DEFINED BUILD_SHARED_LIBS AND NOT BUILD_SHARED_LIBS)
  set(froghopper_is_shared OFF)
  if(FROGHOPPER_WHEEL OR FROGHOPPER_TESTS)
    message(FATAL_ERROR "BUILD_SHARED_LIBS is off, and the wheel and the tests need the shared library. Give "
            "-DFROGHOPPER_TESTS=OFF, or leave BUILD_SHARED_LIBS on and link froghopper::static.")
  endif()
  set_target_properties(froghopper_static PROPERTIES EXCLUDE_FROM_ALL OFF EXPORT_NAME froghopper)
  add_library(froghopper::froghopper ALIAS froghopper_static)
else()
  set(froghopper_is_shared ON)
  add_library(froghopper SHARED src/api/library_presets.cpp $<TARGET_OBJECTS:froghopper_embedded>)
  add_library(froghopper::froghopper ALIAS froghopper)
  target_link_libraries(froghopper PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,froghopper_core>)
  set(exports ${PROJECT_BINARY_DIR}/exports.map)
  configure_file(cmake/exports.map.in ${exports} @ONLY)
  target_link_options(froghopper PRIVATE LINKER:--version-script=${exports}
                      LINKER:--as-needed LINKER:-z,defs)
  set_target_properties(froghopper PROPERTIES LINK_DEPENDS ${exports} LINKER_LANGUAGE CXX)
endif()

foreach(library froghopper froghopper_static)
  if(TARGET ${library})
    target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endif()
endforeach()
