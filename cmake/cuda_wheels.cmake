# SPDX-License-Identifier: Apache-2.0
# Where the pieces of CUDA are that the build uses. They come as PyPI wheels, so the python that holds them is asked,
# and then a CUDA toolkit:
#   nvidia-cuda-runtime     cuda.h, the driver's header       FROGHOPPER_CUDA_INCLUDE   always
#   nvidia-cuda-nvrtc       the compiler of CUDA 13           FROGHOPPER_NVRTC13        presets; one of the two will do
#   nvidia-cuda-nvrtc-cu12  the compiler of CUDA 12           FROGHOPPER_NVRTC12        presets
#   nvidia-cuda-nvdisasm    for the check of spills in loops  FROGHOPPER_NVDISASM       tests of presets
# Each may also be given as -DNAME=PATH. scripts/setup makes a .venv with all of them; for a Python wheel
# scikit-build-core names the python that it installed them for.
if(FROGHOPPER_WHEEL AND Python_EXECUTABLE)
  set(FROGHOPPER_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "the python that holds the CUDA wheels")
elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(FROGHOPPER_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "the python that holds the CUDA wheels")
else()
  set(FROGHOPPER_PYTHON python3 CACHE FILEPATH "the python that holds the CUDA wheels")
endif()

# Where another python or toolkit has what is looked for, a slip in these would go unseen.
find_program(froghopper_python ${FROGHOPPER_PYTHON} NO_CACHE)
if(NOT froghopper_python AND NOT FROGHOPPER_PYTHON STREQUAL "python3")  # which is only looked for
  message(WARNING "FROGHOPPER_PYTHON is ${FROGHOPPER_PYTHON}, which is no program here, so cuda.h and NVRTC are looked "
          "for in CUDA toolkits alone. Give the path of a python, or leave it out.")
endif()
if(FROGHOPPER_CUDA_INCLUDE AND NOT EXISTS ${FROGHOPPER_CUDA_INCLUDE}/cuda.h)
  message(FATAL_ERROR "FROGHOPPER_CUDA_INCLUDE is ${FROGHOPPER_CUDA_INCLUDE}, which has no cuda.h. Name the folder "
          "that has it, or leave it out.")
endif()

# The folders of the package nvidia, wherever that python finds it: a build that pip isolates has two.
execute_process(COMMAND ${FROGHOPPER_PYTHON} -c
                "import importlib.util as u; print(*u.find_spec('nvidia').submodule_search_locations, sep=';')"
                OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
list(TRANSFORM wheels APPEND /cu13 OUTPUT_VARIABLE wheels13)
list(TRANSFORM wheels APPEND /cuda_nvrtc/lib OUTPUT_VARIABLE wheels12)

# Toolkits: the one that the user's build names, then those in their usual place.
file(GLOB toolkits LIST_DIRECTORIES true /usr/local/cuda-1[2-9]*)
list(PREPEND toolkits ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} $ENV{CUDA_PATH} $ENV{CUDA_HOME} /usr/local/cuda)

find_path(FROGHOPPER_CUDA_INCLUDE cuda.h HINTS ${wheels13} ${toolkits} PATH_SUFFIXES include)
foreach(generation 13 12)
  find_file(FROGHOPPER_NVRTC${generation} libnvrtc.so.${generation} NO_DEFAULT_PATH PATH_SUFFIXES lib lib64
            targets/x86_64-linux/lib
            PATHS ${wheels${generation}} ${toolkits} /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib64 /usr/lib)
endforeach()
find_program(FROGHOPPER_NVDISASM nvdisasm HINTS ${wheels13} ${toolkits} PATH_SUFFIXES bin)

if(NOT FROGHOPPER_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h was found neither with ${FROGHOPPER_PYTHON} nor in a CUDA toolkit; the library is "
          "compiled against the driver's header, and needs nothing else of CUDA. Run scripts/setup; or pip install "
          "nvidia-cuda-runtime and give -DFROGHOPPER_PYTHON=THAT_PYTHON; or give -DFROGHOPPER_CUDA_INCLUDE=FOLDER.")
endif()
if(FROGHOPPER_PRESETS AND NOT FROGHOPPER_NVRTC13 AND NOT FROGHOPPER_NVRTC12)
  message(FATAL_ERROR "FROGHOPPER_PRESETS is on and NVRTC was found neither with ${FROGHOPPER_PYTHON} nor in a CUDA "
          "toolkit; it compiles the kernels. Run scripts/setup; or pip install nvidia-cuda-nvrtc and give "
          "-DFROGHOPPER_PYTHON=THAT_PYTHON; or give -DFROGHOPPER_NVRTC13=PATH/libnvrtc.so.13; or build without "
          "presets: -DFROGHOPPER_PRESETS=OFF.")
endif()
