# SPDX-License-Identifier: Apache-2.0
# froghopper_xla: libfroghopper_xla.so beside the library, the handlers that XLA and so JAX call. It is built from one
# header of XLA that jaxlib's wheel carries; nothing of JAX is linked, and one binary serves every version.
#   FROGHOPPER_XLA           AUTO: where the header is found; ON: it must be there; OFF
#   FROGHOPPER_XLA_INCLUDE   the folder of xla/ffi/api/c_api.h; FROGHOPPER_PYTHON is asked what jax.ffi.include_dir() is
set(FROGHOPPER_XLA AUTO CACHE STRING "build libfroghopper_xla.so, for JAX: AUTO, ON or OFF")
set_property(CACHE FROGHOPPER_XLA PROPERTY STRINGS AUTO ON OFF)

if(FROGHOPPER_XLA AND froghopper_is_shared)
  # The folder of jaxlib, without loading it.
  execute_process(COMMAND ${FROGHOPPER_PYTHON} -c
                  "import importlib.util as u; print(*u.find_spec('jaxlib').submodule_search_locations)"
                  OUTPUT_VARIABLE jaxlib OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(FROGHOPPER_XLA_INCLUDE xla/ffi/api/c_api.h PATHS ${jaxlib}/include NO_DEFAULT_PATH
            DOC "the folder that holds xla/ffi/api/c_api.h")
endif()

if(NOT froghopper_is_shared)
  return()  # the handlers call the shared library
elseif(FROGHOPPER_XLA AND FROGHOPPER_XLA_INCLUDE)
  add_library(froghopper_xla MODULE src/xla/handlers.cpp)
  target_link_libraries(froghopper_xla PRIVATE froghopper_flags froghopper ${CMAKE_DL_LIBS})
  target_include_directories(froghopper_xla SYSTEM PRIVATE ${FROGHOPPER_XLA_INCLUDE})
  target_link_options(froghopper_xla PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/xla.map
                      LINKER:-z,defs)
  set_target_properties(froghopper_xla PROPERTIES PREFIX lib BUILD_RPATH $ORIGIN INSTALL_RPATH $ORIGIN
                        BUILD_WITH_INSTALL_RPATH ON LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/xla.map)
  if(FROGHOPPER_INSTALL)
    install(TARGETS froghopper_xla LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
elseif(FROGHOPPER_XLA STREQUAL AUTO)
  message(STATUS "froghopper_xla is left out: xla/ffi/api/c_api.h was not found with ${FROGHOPPER_PYTHON}. For JAX, "
          "pip install jaxlib there or give -DFROGHOPPER_XLA_INCLUDE=FOLDER.")
elseif(FROGHOPPER_XLA)
  message(FATAL_ERROR "FROGHOPPER_XLA is ON and xla/ffi/api/c_api.h was not found with ${FROGHOPPER_PYTHON}; the "
          "handlers for JAX are compiled against it. pip install jaxlib there, give "
          "-DFROGHOPPER_XLA_INCLUDE=FOLDER, or build without them: -DFROGHOPPER_XLA=OFF.")
endif()
