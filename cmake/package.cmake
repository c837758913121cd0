# SPDX-License-Identifier: Apache-2.0
# cpack, in the build folder: a Debian package of what is installed, which a configuration with
# -DCMAKE_INSTALL_PREFIX=/usr puts where Debian has such files. It depends on what its files are linked with, which
# dpkg-shlibdeps (of dpkg-dev) finds out with the help of file, which tells cpack what is a library; without these two,
# on the libraries that every C++ program needs.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME froghopper)
set(CPACK_PACKAGE_VENDOR "The froghopper maintainers")
set(CPACK_PACKAGE_CONTACT "The froghopper maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "exact attention on NVIDIA Hopper GPUs and on CPUs")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libcuda1)
find_program(FROGHOPPER_SHLIBDEPS dpkg-shlibdeps DOC "finds what a Debian package depends on")
find_program(FROGHOPPER_FILE_TYPE file DOC "tells cpack which files are libraries")
mark_as_advanced(FROGHOPPER_SHLIBDEPS FROGHOPPER_FILE_TYPE)
if(FROGHOPPER_SHLIBDEPS AND FROGHOPPER_FILE_TYPE)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libgcc-s1, libstdc++6")
endif()
include(CPack)
