# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds of the build: the shared libraries, for froghopper/lib, and nothing else; pyproject.toml
# adds python/froghopper. A library has one name without a version, since a wheel cannot hold links, and is found by its
# path. It has the C++ run-time library inside, so no framework's, however old, comes in its way, and asks of the system
# for an old glibc alone: the wheel's tag says which.
option(FROGHOPPER_OLD_GLIBC "link the wheel's libraries for older versions of glibc than this machine's" ON)
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  set(FROGHOPPER_OLD_GLIBC OFF)
endif()
if(FROGHOPPER_OLD_GLIBC)
  include(cmake/old_glibc.cmake)
endif()

# The handlers for XLA are there where its header was found.
foreach(library froghopper froghopper_xla froghopper_torch froghopper-cp)
  if(NOT TARGET ${library})
    continue()
  endif()
  target_link_options(${library} PRIVATE -static-libstdc++)
  if(FROGHOPPER_OLD_GLIBC)
    old_glibc(${library})
  endif()
  install(TARGETS ${library} LIBRARY DESTINATION froghopper/lib COMPONENT python)
endforeach()
