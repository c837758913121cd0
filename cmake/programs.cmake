# SPDX-License-Identifier: Apache-2.0
# What is beyond the library: the oracle and the checks, and the command line.
need_package(nlohmann_json nlohmann-json3-dev)

file(GLOB check_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/oracle/*.cpp check/*.cpp
     check/gpu/*.cpp files/*.cpp)
add_library(froghopper_check STATIC ${check_sources})
target_link_libraries(froghopper_check PUBLIC froghopper_core nlohmann_json::nlohmann_json)
precompiled_as(froghopper_check froghopper_foundation)

if(FROGHOPPER_CLI)
  need_package(CLI11 libcli11-dev)
  file(GLOB cli_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cli/*.cpp)
  # Its presets are those of the shared library, which comes last: the code is the program's own.
  set(presets froghopper_sources froghopper)
  if(NOT froghopper_is_shared)
    list(REMOVE_ITEM cli_sources cli/library_presets.cpp)
    set(presets froghopper_embedded)
  endif()
  add_executable(froghopper_program ${cli_sources})
  file(RELATIVE_PATH library_folder ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(froghopper_program PROPERTIES OUTPUT_NAME froghopper BUILD_RPATH_USE_ORIGIN ON
                        INSTALL_RPATH $ORIGIN/${library_folder})
  target_link_libraries(froghopper_program PRIVATE froghopper_check froghopper_core ${presets} CLI11::CLI11
                        nlohmann_json::nlohmann_json)
  # What computes is in the libraries; here templates of two large headers would take the compiler twice as long.
  target_compile_options(froghopper_program PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
  precompile(froghopper_program <CLI/CLI.hpp> <nlohmann/json.hpp>)
  if(FROGHOPPER_INSTALL)
    install(TARGETS froghopper_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES docs/froghopper.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES packaging/completion/froghopper.bash RENAME froghopper
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES packaging/completion/_froghopper DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  endif()
endif()
