# SPDX-License-Identifier: Apache-2.0
# Where the pieces of CUDA are that the build uses. They come as PyPI wheels, so the python that holds them is asked:
#   nvidia-cuda-runtime     cuda.h, the driver's header       FROGHOPPER_CUDA_INCLUDE
#   nvidia-cuda-nvrtc       the compiler of CUDA 13           FROGHOPPER_NVRTC13
#   nvidia-cuda-nvrtc-cu12  the compiler of CUDA 12           FROGHOPPER_NVRTC12
#   nvidia-cuda-nvdisasm    for the check of spills in loops  FROGHOPPER_NVDISASM
# Each may also be given as -DNAME=PATH. scripts/setup makes a .venv with all of them; for a Python wheel
# scikit-build-core names the python that it installed them for.
if(FROGHOPPER_WHEEL AND Python_EXECUTABLE)
  set(FROGHOPPER_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "the python that holds the CUDA wheels")
elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(FROGHOPPER_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "the python that holds the CUDA wheels")
else()
  set(FROGHOPPER_PYTHON python3 CACHE FILEPATH "the python that holds the CUDA wheels")
endif()

# The folders of the package nvidia, wherever that python finds it: a build that pip isolates has two.
execute_process(COMMAND ${FROGHOPPER_PYTHON} -c
                "import importlib.util as u; print(*u.find_spec('nvidia').submodule_search_locations, sep=';')"
                OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)

list(TRANSFORM wheels APPEND /cu13 OUTPUT_VARIABLE wheels13)
list(TRANSFORM wheels APPEND /cuda_nvrtc/lib OUTPUT_VARIABLE wheels12)
find_path(FROGHOPPER_CUDA_INCLUDE cuda.h HINTS ${wheels13} PATH_SUFFIXES include PATHS /usr/local/cuda)
find_file(FROGHOPPER_NVRTC13 libnvrtc.so.13 PATHS ${wheels13} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_file(FROGHOPPER_NVRTC12 libnvrtc.so.12 PATHS ${wheels12} NO_DEFAULT_PATH)
find_program(FROGHOPPER_NVDISASM nvdisasm HINTS ${wheels13} PATH_SUFFIXES bin NO_DEFAULT_PATH)

if(NOT FROGHOPPER_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h was not found with ${FROGHOPPER_PYTHON}; the library is compiled against the driver's "
          "header. Run scripts/setup, or pip install nvidia-cuda-runtime and give -DFROGHOPPER_PYTHON=THAT_PYTHON.")
endif()
if(FROGHOPPER_PRESETS AND NOT (FROGHOPPER_NVRTC13 AND FROGHOPPER_NVRTC12))
  message(FATAL_ERROR "FROGHOPPER_PRESETS is on and NVRTC was not found with ${FROGHOPPER_PYTHON}; it compiles the "
          "kernels. Run scripts/setup, or pip install nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12 and give "
          "-DFROGHOPPER_PYTHON=THAT_PYTHON, or build without presets: -DFROGHOPPER_PRESETS=OFF.")
endif()
