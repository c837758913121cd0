# SPDX-License-Identifier: Apache-2.0
# install: the shared library, its headers, and the package that find_package(froghopper) reads.
include(CMakePackageConfigHelpers)

# Before 1.0 each minor version may change the interface, so it has a name of its own for the loader.
set_target_properties(froghopper PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/froghopper)

install(TARGETS froghopper EXPORT froghopper-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/froghopper DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h*")
install(EXPORT froghopper-targets NAMESPACE froghopper:: DESTINATION ${package_folder} FILE froghopper-config.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/froghopper-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/froghopper-config-version.cmake DESTINATION ${package_folder})
