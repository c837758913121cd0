# SPDX-License-Identifier: Apache-2.0
# Headers that are read once for all files of a target: most files are small, and half of what they cost is the standard
# library and fmt. Only while froghopper is developed; a wheel is built without, so a missing include is seen there, and
# so is a build with a compiler launcher, since ccache keeps nothing that has such headers.
set(froghopper_precompile OFF)
if(PROJECT_IS_TOP_LEVEL AND NOT FROGHOPPER_WHEEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(froghopper_precompile ON)
endif()
set(usual_headers <algorithm> <functional> <map> <memory> <optional> <string> <string_view> <variant> <vector>
    <fmt/format.h>)

# GCC 12 forgets with such headers that what it warns of lies in the standard library: those warnings end no build.
add_library(froghopper_precompiled_flags INTERFACE)
foreach(warning array-bounds maybe-uninitialized restrict stringop-overflow stringop-overread)
  target_compile_options(froghopper_precompiled_flags INTERFACE
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=${warning}>)
endforeach()

# precompile(TARGET HEADER ...): the usual headers and these.
function(precompile target)
  if(froghopper_precompile)
    target_link_libraries(${target} PRIVATE froghopper_precompiled_flags)
    target_precompile_headers(${target} PRIVATE ${usual_headers} ${ARGN})
  endif()
endfunction()

# precompiled_as(TARGET OTHER): the same as the other, which is compiled with the same flags.
function(precompiled_as target other)
  if(froghopper_precompile)
    target_link_libraries(${target} PRIVATE froghopper_precompiled_flags)
    target_precompile_headers(${target} REUSE_FROM ${other})
  endif()
endfunction()
