# SPDX-License-Identifier: Apache-2.0
# install: the library, its headers, the packages that find_package(froghopper) and pkg-config read, and documents.
include(CMakePackageConfigHelpers)

# Before 1.0 each minor version may change the interface, so it has a name of its own for the loader.
set(froghopper_library froghopper_static)
if(froghopper_is_shared)
  set(froghopper_library froghopper)
  set_target_properties(froghopper PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()

set(froghopper_libraries_to_install ${froghopper_library})
if(TARGET froghopper-cp)
  set_target_properties(froghopper-cp PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  list(APPEND froghopper_libraries_to_install froghopper-cp)
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/froghopper)
install(TARGETS ${froghopper_libraries_to_install} EXPORT froghopper-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(headers_of_absent)
if(NOT TARGET froghopper-cp)
  set(headers_of_absent PATTERN cp.h EXCLUDE)
endif()
install(DIRECTORY include/froghopper DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h*"
        ${headers_of_absent})
install(EXPORT froghopper-targets NAMESPACE froghopper:: DESTINATION ${package_folder})
# Those that find_package(froghopper COMPONENTS ...) may ask for: targets beside the library's own.
if(NOT froghopper_is_shared)
  set(components static)
elseif(TARGET froghopper-cp)
  set(components cp)
else()
  set(components none)
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/froghopper-config.cmake @ONLY CONTENT
     "include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(\${CMAKE_CURRENT_LIST_DIR}/froghopper-targets.cmake)
if(NOT TARGET froghopper::static AND NOT \"@froghopper_is_shared@\")
  add_library(froghopper::static ALIAS froghopper::froghopper)
endif()
foreach(component IN LISTS froghopper_FIND_COMPONENTS)
  if(TARGET froghopper::\${component} OR TARGET froghopper::froghopper-\${component})
    set(froghopper_\${component}_FOUND TRUE)
  elseif(froghopper_FIND_REQUIRED_\${component})
    set(froghopper_FOUND FALSE)
    if(component STREQUAL static)
      set(froghopper_NOT_FOUND_MESSAGE \"this froghopper was installed without the archive. Build and install it again \
with -DBUILD_SHARED_LIBS=OFF -DFROGHOPPER_TESTS=OFF, or link froghopper::froghopper and leave COMPONENTS out.\")
      break()
    endif()
    set(froghopper_NOT_FOUND_MESSAGE \"this froghopper has no component \${component}. It has @components@; \
leave COMPONENTS out for the library itself.\")
  endif()
endforeach()
")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/froghopper-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/froghopper-config.cmake ${PROJECT_BINARY_DIR}/froghopper-config-version.cmake
        DESTINATION ${package_folder})

# pkg-config froghopper and froghopper-cp. An archive needs what the library itself links, a shared library does not.
# The prefix is found from where the file lies, so that an installed folder may be moved.
set(archive_libraries "-lstdc++ -lm -ldl -pthread")
if(TARGET froghopper_zstd)
  string(PREPEND archive_libraries "-lzstd ")
endif()
set(libraries "-L\${libdir} -lfroghopper")
if(NOT froghopper_is_shared)
  string(APPEND libraries " ${archive_libraries}")
endif()
file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
function(install_pkg_config name description links)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.pc @ONLY CONTENT
       "prefix=\${pcfiledir}/@up@
libdir=\${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=\${prefix}/@CMAKE_INSTALL_INCLUDEDIR@

Name: @name@
Description: @description@
Version: @PROJECT_VERSION@
@links@
")
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
install_pkg_config(froghopper "Exact attention on NVIDIA Hopper GPUs and on CPUs"
                   "Cflags: -I\${includedir}\nLibs: ${libraries}")
if(TARGET froghopper-cp)
  install_pkg_config(froghopper-cp "Exact attention over sequences that several GPUs or processes share"
                     "Requires: froghopper = ${PROJECT_VERSION}\nLibs: -L\${libdir} -lfroghopper-cp")
endif()

install(FILES LICENSE LICENSE-third-party.txt README.md CHANGELOG.md CONTRIBUTING.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})  # README and docs link them
install(CODE "set(froghopper_documents \"${CMAKE_INSTALL_DOCDIR}\")")
install(SCRIPT cmake/installed_links.cmake)

if(PROJECT_IS_TOP_LEVEL)
  include(cmake/package.cmake)
endif()
