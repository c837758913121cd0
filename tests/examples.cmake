# SPDX-License-Identifier: Apache-2.0
# Claim: the examples build and give the right answer, one with the installed package, one with the sources.
#   cmake -DEXAMPLE=find_package|add_subdirectory -DSOURCE=... -DBUILD=... -DCXX=... -DCC=... -P tests/examples.cmake
function(must)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

set(work ${BUILD}/examples/${EXAMPLE})
set(options -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -G Ninja)
if(EXAMPLE STREQUAL find_package)
  file(REMOVE_RECURSE ${work})  # an installed file that is gone must not be found
  must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
  list(APPEND options -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${work}/prefix)
else()
  # Debug compiles in half the time. The presets would be the same kernels again, and the example runs on the CPU.
  list(APPEND options -DCMAKE_BUILD_TYPE=Debug -DFROGHOPPER_PRESETS=OFF)
endif()
must(${CMAKE_COMMAND} -S ${SOURCE}/examples/${EXAMPLE} -B ${work}/build ${options})
must(${CMAKE_COMMAND} --build ${work}/build --parallel 2 --target attention)
must(${work}/build/attention)
