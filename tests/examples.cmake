# SPDX-License-Identifier: Apache-2.0
# Claim: the examples build and give the right answer, with the installed package or with the sources. For train
# (--check) that means: the loss falls, and every loss is the one that plain loops in double precision lead to.
#   cmake -DEXAMPLE=... -DSOURCE=... -DBUILD=... -DCXX=... -DCC=... -P tests/examples.cmake
# where EXAMPLE is find_package, add_subdirectory or train.
function(must)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

set(work ${BUILD}/examples/${EXAMPLE})
set(options -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -G Ninja)
set(program attention)
set(arguments)
if(EXAMPLE STREQUAL train)
  set(program train)
  set(arguments ${SOURCE}/data/alice.txt --check)
endif()
if(NOT EXAMPLE STREQUAL add_subdirectory)
  file(REMOVE_RECURSE ${work})  # an installed file that is gone must not be found
  must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
  list(APPEND options -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${work}/prefix)
else()
  # Debug compiles in half the time. The presets would be the same kernels again, and the example runs on the CPU.
  list(APPEND options -DCMAKE_BUILD_TYPE=Debug -DFROGHOPPER_PRESETS=OFF)
endif()
must(${CMAKE_COMMAND} -S ${SOURCE}/examples/${EXAMPLE} -B ${work}/build ${options})
must(${CMAKE_COMMAND} --build ${work}/build --parallel 2 --target ${program})
must(${work}/build/${program} ${arguments})
