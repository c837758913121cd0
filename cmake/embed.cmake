# SPDX-License-Identifier: Apache-2.0
# embed(OUT.s SYMBOL VISIBILITY NAME=FILE ...): an assembler file that holds the files as bytes, and an index of them in
# the order given, as src/runtime/embedded.hpp declares it. VISIBILITY is hidden, or visible for a shared library that
# others read it from. The assembler copies 16 MB in a moment; a C++ array would take minutes.
function(embed out symbol visibility)
  set(index "  .section .data.rel.ro,\"aw\",@progbits\n  .balign 8\n")
  string(APPEND index "  .globl ${symbol}\n  .type ${symbol}, @object\n")
  if(visibility STREQUAL hidden)
    string(APPEND index "  .hidden ${symbol}\n")
  endif()
  string(APPEND index "${symbol}:\n")
  set(bytes "  .section .rodata,\"a\",@progbits\n")
  set(files)
  set(number 0)
  foreach(entry ${ARGN})
    string(REGEX MATCH "^([^=]+)=(.+)$" matched ${entry})
    set(label .L${symbol}_${number})
    string(APPEND index "  .quad ${label}_name, ${label}, ${label}_end - ${label}\n")
    string(APPEND bytes "  .balign 64\n${label}:\n  .incbin \"${CMAKE_MATCH_2}\"\n${label}_end:\n  .byte 0\n"
                        "${label}_name:\n  .asciz \"${CMAKE_MATCH_1}\"\n")
    list(APPEND files ${CMAKE_MATCH_2})
    math(EXPR number "${number} + 1")
  endforeach()
  string(APPEND index "  .quad 0, 0, 0\n  .size ${symbol}, . - ${symbol}\n")  # the index ends with a null name
  file(CONFIGURE OUTPUT ${out} CONTENT "${index}${bytes}  .section .note.GNU-stack,\"\",@progbits\n" @ONLY)
  set_source_files_properties(${out} PROPERTIES OBJECT_DEPENDS "${files}")
endfunction()
