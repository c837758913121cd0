# SPDX-License-Identifier: Apache-2.0
# The vcpkg port, for the sources that it lies in: vcpkg install froghopper --overlay-ports=packaging/vcpkg. cuda.h, the
# header of the driver, is found in a CUDA toolkit, or give -DFROGHOPPER_CUDA_INCLUDE=FOLDER in the triplet's
# VCPKG_CMAKE_CONFIGURE_OPTIONS.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES tools FROGHOPPER_CLI)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features} -DFROGHOPPER_TESTS=OFF -DFROGHOPPER_WERROR=OFF -DFROGHOPPER_PRESETS=OFF -DFROGHOPPER_XLA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/froghopper)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES froghopper AUTO_CLEAN)
endif()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/LICENSE-third-party.txt")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
