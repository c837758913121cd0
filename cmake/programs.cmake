# SPDX-License-Identifier: Apache-2.0
# What is beyond the library: the oracle and the checks, and the command line.
find_package(nlohmann_json REQUIRED)

file(GLOB check_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/oracle/*.cpp check/*.cpp
     check/gpu/*.cpp files/*.cpp)
add_library(froghopper_check STATIC ${check_sources})
target_link_libraries(froghopper_check PUBLIC froghopper_core nlohmann_json::nlohmann_json)
precompiled_as(froghopper_check froghopper_foundation)

if(FROGHOPPER_CLI)
  find_package(CLI11 REQUIRED)
  file(GLOB cli_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cli/*.cpp)
  add_executable(froghopper_program ${cli_sources})
  set_target_properties(froghopper_program PROPERTIES OUTPUT_NAME froghopper)
  target_link_libraries(froghopper_program PRIVATE froghopper_check froghopper_core froghopper_embedded CLI11::CLI11
                        nlohmann_json::nlohmann_json)
  precompile(froghopper_program <CLI/CLI.hpp>)
  if(FROGHOPPER_INSTALL)
    install(TARGETS froghopper_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES docs/froghopper.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endif()
endif()
