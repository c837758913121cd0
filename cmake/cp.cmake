# SPDX-License-Identifier: Apache-2.0
# froghopper-cp: libfroghopper-cp.so beside the library, attention over several ranks. It calls the library's public C
# interface; NCCL and the driver are found at run time. Users link froghopper::froghopper-cp.
if(NOT froghopper_is_shared)
  return()  # it calls the shared library
endif()
file(GLOB cp_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/cp/*.cpp)
add_library(froghopper-cp SHARED ${cp_sources} src/base/near_word.cpp src/base/text.cpp)
add_library(froghopper::froghopper-cp ALIAS froghopper-cp)
target_link_libraries(froghopper-cp PRIVATE $<BUILD_INTERFACE:froghopper_flags> PUBLIC froghopper
                      PRIVATE ${CMAKE_DL_LIBS})
target_link_options(froghopper-cp PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/cp.map
                    LINKER:--as-needed LINKER:-z,defs)
set_target_properties(froghopper-cp PROPERTIES BUILD_RPATH $ORIGIN INSTALL_RPATH $ORIGIN BUILD_WITH_INSTALL_RPATH ON
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/cp.map)
target_include_directories(froghopper-cp INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
