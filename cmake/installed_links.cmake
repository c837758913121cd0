# SPDX-License-Identifier: Apache-2.0
# Run while installing: links of the installed documents to sources, which are not installed, become plain names.
# froghopper_documents: the folder of the documents, from the prefix on.
cmake_path(ABSOLUTE_PATH froghopper_documents BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX})
file(GLOB_RECURSE documents $ENV{DESTDIR}${froghopper_documents}/*.md)
set(sources "bench|check|cli|cmake|contract|data|device|files|include|presets|python|scripts|src|tests|tools")
foreach(document ${documents})
  file(READ ${document} before)
  string(REGEX REPLACE "\\[([^]]+)\\]\\((\\.\\./)*(${sources})/[^)]*\\)" "\\1" after "${before}")
  if(NOT after STREQUAL before)
    file(WRITE ${document} "${after}")
  endif()
endforeach()
