# SPDX-License-Identifier: Apache-2.0
# froghopper_torch: libfroghopper_torch.so beside the library, the operators that eager PyTorch calls. It is built
# without PyTorch: what it calls there is found by name when it is loaded.
if(NOT froghopper_is_shared)
  return()  # the operators call the shared library
endif()
add_library(froghopper_torch MODULE src/torch/operators.cpp src/torch/shim.cpp)
target_link_libraries(froghopper_torch PRIVATE froghopper_flags froghopper)
target_include_directories(froghopper_torch PRIVATE ${PROJECT_SOURCE_DIR})
target_link_options(froghopper_torch PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/torch.map
                    LINKER:-z,defs)
set_target_properties(froghopper_torch PROPERTIES PREFIX lib BUILD_RPATH $ORIGIN INSTALL_RPATH $ORIGIN
                      BUILD_WITH_INSTALL_RPATH ON LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/torch.map)
if(FROGHOPPER_INSTALL)
  install(TARGETS froghopper_torch LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
