# SPDX-License-Identifier: Apache-2.0
# The tests: one program per test file, programs in C, and scripts (cmake/checks.cmake).
#   ctest -L presets   what can only be said of a build with FROGHOPPER_PRESETS=ON
#   ctest -L fast      what most changes break
enable_testing()
need_package(GTest libgtest-dev)
include(GoogleTest)

# What tests may want to know about the build, as macros.
add_library(froghopper_test_flags INTERFACE)
target_compile_definitions(froghopper_test_flags INTERFACE
  FROGHOPPER_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  FROGHOPPER_LIBRARY="$<TARGET_FILE:froghopper>"
  FROGHOPPER_PROGRAM="$<TARGET_FILE:froghopper_program>"
  FROGHOPPER_COMPILE="$<TARGET_FILE:froghopper_compile>"
  FROGHOPPER_PRESET_FOLDER="${PROJECT_BINARY_DIR}/presets"
  FROGHOPPER_BUILD_NVRTC="$<$<BOOL:${FROGHOPPER_NVRTC13}>:${FROGHOPPER_NVRTC13}>")

# The programs of these take little time together, and see most of what goes wrong.
set(fast_tests api_test bundle_test cache_test cases_test cores_test cp_advice_test cp_agreement_test
    cp_by_document_test cp_chunks_test cp_copies_test cp_documents_test cp_faults_test cp_grid_test cp_nccl_test
    cp_plan_test cp_test cp_topology_test cpu_gradients_test cpu_test cut_test kernel_sources_test messages_test
    options_test order_test other_words_test pages_test plan_presets_test plan_test problem_test refusals_test
    strides_test suites_test table_test tensor_file_test tensors_test time_test untouched_test dequantise_plan_test
    workspace_test)

# Programs with thousands of cases, most of which take less time than a process to begin: a test of ctest is every 16th
# case. What it says of each is in a file, which tools/test_summary.py counts.
set(tests_in_parts forward_test backward_test)
function(add_parts name)
  set(parts 16)
  foreach(part RANGE 1 ${parts})
    set(test ${name}.${part}_of_${parts})
    math(EXPR index "${part} - 1")
    add_test(NAME ${test} COMMAND ${name} --gtest_output=xml:${PROJECT_BINARY_DIR}/parts/${test}.xml)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${parts};GTEST_SHARD_INDEX=${index}"
                         TIMEOUT 600 LABELS slow)
  endforeach()
endfunction()

file(GLOB test_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*_test.cpp)
if(NOT FROGHOPPER_PRESETS)
  list(REMOVE_ITEM test_sources tests/presets_test.cpp)
endif()
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE froghopper_check froghopper_core froghopper_sources froghopper_presets_for_tests
                        froghopper_test_flags nlohmann_json::nlohmann_json GTest::gtest_main)
  set_target_properties(${name} PROPERTIES BUILD_RPATH_USE_ORIGIN ON)
  if(name MATCHES "^cp_")
    target_link_libraries(${name} PRIVATE froghopper-cp)
  endif()
  # What takes long to run is in the libraries; here the compiler takes two thirds of the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
  if(first_test)
    precompiled_as(${name} ${first_test})
  else()
    precompile(${name} <gtest/gtest.h>)
    set(first_test ${name})
  endif()
  set(label slow)
  if(name IN_LIST fast_tests)
    set(label fast)
  elseif(name STREQUAL presets_test)
    set(label presets)
  endif()
  if(name IN_LIST tests_in_parts)
    add_parts(${name})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES TIMEOUT 300 LABELS ${label})
  endif()
endforeach()

add_custom_target(fast_tests DEPENDS froghopper_program froghopper ${fast_tests})
if(TARGET froghopper_compile)
  add_dependencies(fast_tests froghopper_compile)  # bundle_test runs it
endif()
if(FROGHOPPER_PRESETS)
  add_custom_target(presets_tests DEPENDS presets_test froghopper froghopper_program)
endif()

add_test(NAME spills_test COMMAND ${FROGHOPPER_PYTHON} ${PROJECT_SOURCE_DIR}/tests/spills_test.py)
if(FROGHOPPER_PRESETS AND FROGHOPPER_NVDISASM)
  foreach(generation cuda13 cuda12)
    set(name presets.no_spill_in_an_inner_loop.${generation})
    add_test(NAME ${name} COMMAND ${FROGHOPPER_PYTHON}
             ${PROJECT_SOURCE_DIR}/tools/spills.py ${FROGHOPPER_NVDISASM} ${PROJECT_BINARY_DIR}/presets/${generation})
    set_tests_properties(${name} PROPERTIES LABELS presets)
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
  if(name MATCHES "^cp_")
    target_link_libraries(${name} PRIVATE froghopper-cp)
  endif()
  add_test(NAME ${name} COMMAND ${name})
endforeach()

# A library that is linked with another version of froghopper, in the process of the test that is named.
add_library(other_version SHARED tests/support/other_version.c)
target_link_options(other_version PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/tests/support/other_version.map)
add_library(user_of_other_version SHARED tests/support/user_of_other_version.c)
target_link_libraries(user_of_other_version PRIVATE other_version)
set_target_properties(other_version user_of_other_version PROPERTIES C_VISIBILITY_PRESET default)
target_link_libraries(versions PRIVATE user_of_other_version)

# A library with the functions of NCCL, for cp_nccl_test.
add_library(fake_nccl SHARED tests/support/fake_nccl.cpp)
target_compile_definitions(cp_nccl_test PRIVATE FROGHOPPER_FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
add_dependencies(cp_nccl_test fake_nccl)

# A library with the functions of the CUDA driver that copy between GPUs, for cp_copies_test.
add_library(fake_cuda SHARED tests/support/fake_cuda.cpp)
target_include_directories(fake_cuda PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(cp_copies_test PRIVATE FROGHOPPER_FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
target_link_libraries(cp_copies_test PRIVATE fake_cuda)

# The archive has all that it needs.
add_executable(abi_c11_static tests/abi_c11.c)
target_link_libraries(abi_c11_static PRIVATE froghopper::static)
add_test(NAME abi_c11_static COMMAND abi_c11_static)

include(cmake/checks.cmake)  # the tests that are scripts
