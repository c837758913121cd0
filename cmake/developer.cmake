# SPDX-License-Identifier: Apache-2.0
# What a developer gets beyond the library: the oracle and the checks, the command line, one program per test file.
enable_testing()
find_package(GTest REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
include(GoogleTest)

file(GLOB check_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/oracle/*.cpp check/*.cpp
     check/gpu/*.cpp files/*.cpp)
if(check_sources)
  add_library(froghopper_check STATIC ${check_sources})
  target_link_libraries(froghopper_check PUBLIC froghopper_core nlohmann_json::nlohmann_json)
endif()

file(GLOB cli_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cli/*.cpp)
if(cli_sources)
  add_executable(froghopper_program ${cli_sources})
  set_target_properties(froghopper_program PROPERTIES OUTPUT_NAME froghopper)
  target_link_libraries(froghopper_program PRIVATE froghopper_check froghopper_core froghopper_embedded CLI11::CLI11
                        nlohmann_json::nlohmann_json)
  install(TARGETS froghopper_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# What tests may want to know about the build, as macros.
add_library(froghopper_test_flags INTERFACE)
target_compile_definitions(froghopper_test_flags INTERFACE
  FROGHOPPER_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  FROGHOPPER_LIBRARY="$<TARGET_FILE:froghopper>"
  FROGHOPPER_PROGRAM="${PROJECT_BINARY_DIR}/froghopper"
  FROGHOPPER_COMPILE="$<TARGET_FILE:froghopper_compile>"
  FROGHOPPER_PRESET_FOLDER="${PROJECT_BINARY_DIR}/presets"
  FROGHOPPER_BUILD_NVRTC="$<$<BOOL:${FROGHOPPER_NVRTC13}>:${FROGHOPPER_NVRTC13}>")

file(GLOB test_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*_test.cpp)
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE $<TARGET_NAME_IF_EXISTS:froghopper_check> froghopper_core froghopper_embedded
                        froghopper_test_flags nlohmann_json::nlohmann_json GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES TIMEOUT 300)
endforeach()

add_test(NAME spills_test COMMAND ${FROGHOPPER_PYTHON} ${PROJECT_SOURCE_DIR}/tests/spills_test.py)
if(FROGHOPPER_PRESETS AND FROGHOPPER_NVDISASM)
  foreach(generation cuda13 cuda12)
    add_test(NAME presets.no_spill_in_an_inner_loop.${generation} COMMAND ${FROGHOPPER_PYTHON}
             ${PROJECT_SOURCE_DIR}/tools/spills.py ${FROGHOPPER_NVDISASM} ${PROJECT_BINARY_DIR}/presets/${generation})
  endforeach()
endif()

if(FROGHOPPER_NVRTC13)
  add_test(NAME presets.what_is_none_compiles_too COMMAND ${FROGHOPPER_PYTHON}
           ${PROJECT_SOURCE_DIR}/tools/compile_golden.py $<TARGET_FILE:froghopper_compile> ${FROGHOPPER_NVRTC13}
           ${PROJECT_BINARY_DIR}/presets/golden)
endif()

# Programs in C that use the library as a C user does: they compile as C11 without a warning, and return 0.
file(GLOB c_test_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*.c)
foreach(source ${c_test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  set_target_properties(${name} PROPERTIES C_EXTENSIONS OFF)
  target_compile_options(${name} PRIVATE -Wall -Wextra -pedantic -Werror)
  target_link_libraries(${name} PRIVATE froghopper)
  add_test(NAME ${name} COMMAND ${name})
endforeach()

include(cmake/checks.cmake)  # the tests that are scripts
