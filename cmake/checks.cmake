# SPDX-License-Identifier: Apache-2.0
# Tests that are scripts: what the house asks of its own files. The first of them take a few seconds together, and are
# among the fast tests.
set(label fast)
function(add_check name)
  add_test(NAME checks.${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(checks.${name} PROPERTIES TIMEOUT 120 LABELS ${label})
endfunction()

add_check(rooms ${FROGHOPPER_PYTHON} tools/check_rooms.py)
add_check(style ${FROGHOPPER_PYTHON} tools/check_style.py)
add_check(version ${FROGHOPPER_PYTHON} tools/check_version.py)
add_check(known_failures ${FROGHOPPER_PYTHON} tools/check_known_failures.py)
add_check(checkers ${FROGHOPPER_PYTHON} tests/checkers_test.py)
add_check(setup ${FROGHOPPER_PYTHON} tests/setup_test.py)
add_check(configure ${FROGHOPPER_PYTHON} tests/configure_test.py)
add_check(report ${FROGHOPPER_PYTHON} tests/report_test.py)
add_check(bench_scripts ${FROGHOPPER_PYTHON} tests/bench_scripts_test.py)
add_check(work ${FROGHOPPER_PYTHON} tests/work_test.py)
if(TARGET froghopper_program)
  add_check(current ${FROGHOPPER_PYTHON} tools/check_current.py ${PROJECT_BINARY_DIR}/froghopper)
  add_check(completion ${FROGHOPPER_PYTHON} tests/completion_test.py ${PROJECT_BINARY_DIR}/froghopper)
endif()
add_check(package ${FROGHOPPER_PYTHON} tests/package_test.py $<TARGET_FILE:froghopper>)
add_check(bindings ${FROGHOPPER_PYTHON} tests/bindings_test.py $<TARGET_FILE:froghopper>)
set(label slow)
add_check(results ${FROGHOPPER_PYTHON} bench/report --check)
add_check(times ${FROGHOPPER_PYTHON} bench/fit_times.py --lib $<TARGET_FILE:froghopper> --check)
add_check(rates ${FROGHOPPER_PYTHON} tests/fit_times_test.py)
add_check(speed ${FROGHOPPER_PYTHON} tests/speed_test.py $<TARGET_FILE:froghopper>)
set_tests_properties(checks.speed PROPERTIES SKIP_RETURN_CODE 77)  # where PyTorch is not installed
add_check(python ${FROGHOPPER_PYTHON} tests/python_test.py pytest $<TARGET_FILE:froghopper>)
add_check(python_types ${FROGHOPPER_PYTHON} tests/python_test.py mypy)
set_tests_properties(checks.python checks.python_types PROPERTIES SKIP_RETURN_CODE 77)  # without pytest, mypy
set_tests_properties(checks.python PROPERTIES TIMEOUT 600)  # with all frameworks three minutes on two cores
add_check(readme ${FROGHOPPER_PYTHON} tests/readme_test.py ${PROJECT_BINARY_DIR})

# The API reference, whose warnings are errors.
add_test(NAME reference COMMAND ${CMAKE_COMMAND} -DDOXYGEN=${FROGHOPPER_DOXYGEN} -DBUILD=${PROJECT_BINARY_DIR}
         -P ${PROJECT_SOURCE_DIR}/tests/reference.cmake)
set_tests_properties(reference PROPERTIES TIMEOUT 60 LABELS fast SKIP_REGULAR_EXPRESSION "Skipped: ")

# The examples, as a user builds them.
foreach(example find_package pkg_config deb static add_subdirectory defaults parent train serve context_parallel
        context_parallel_copies)
  add_test(NAME examples.${example}
           COMMAND ${CMAKE_COMMAND} -DEXAMPLE=${example} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD=${PROJECT_BINARY_DIR}
                   -DCC=${CMAKE_C_COMPILER} -DCXX=${CMAKE_CXX_COMPILER} -DPYTHON=${FROGHOPPER_PYTHON}
                   -P ${PROJECT_SOURCE_DIR}/tests/examples.cmake)
  set_tests_properties(examples.${example} PROPERTIES TIMEOUT 900)
endforeach()
# cmake --install writes a manifest into the build folder, so one at a time.
set_tests_properties(examples.find_package examples.pkg_config examples.deb examples.train examples.serve
                     examples.context_parallel examples.context_parallel_copies PROPERTIES RESOURCE_LOCK install)
set_tests_properties(examples.deb examples.context_parallel_copies PROPERTIES SKIP_REGULAR_EXPRESSION "Skipped: ")
