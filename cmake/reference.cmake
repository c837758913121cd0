# SPDX-License-Identifier: Apache-2.0
# cmake --build BUILD --target reference: the API reference in BUILD/reference, which Doxygen makes of the public
# headers; what is not documented there, or not as it is, is an error.
find_program(FROGHOPPER_DOXYGEN doxygen DOC "writes the API reference")
mark_as_advanced(FROGHOPPER_DOXYGEN)
configure_file(packaging/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
if(FROGHOPPER_DOXYGEN)
  add_custom_target(reference COMMAND ${FROGHOPPER_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile
                    COMMENT "Writing ${PROJECT_BINARY_DIR}/reference/index.html" VERBATIM)
endif()
