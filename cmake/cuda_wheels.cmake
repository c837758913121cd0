# SPDX-License-Identifier: Apache-2.0
# Where the pieces of CUDA are that the build uses. They come as PyPI wheels, so the python that holds them is asked:
#   nvidia-cuda-runtime     cuda.h, the driver's header       FROGHOPPER_CUDA_INCLUDE
#   nvidia-cuda-nvrtc       the compiler of CUDA 13           FROGHOPPER_NVRTC13
#   nvidia-cuda-nvrtc-cu12  the compiler of CUDA 12           FROGHOPPER_NVRTC12
#   nvidia-cuda-nvdisasm    for the check of spills in loops  FROGHOPPER_NVDISASM
# Each may also be given as -DNAME=PATH. scripts/setup makes a .venv with all of them.
if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(FROGHOPPER_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "the python that holds the CUDA wheels")
else()
  set(FROGHOPPER_PYTHON python3 CACHE FILEPATH "the python that holds the CUDA wheels")
endif()

execute_process(COMMAND ${FROGHOPPER_PYTHON} -c
                "import sysconfig; print(sysconfig.get_path('purelib'))"
                OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(wheels ${wheels}/nvidia)

find_path(FROGHOPPER_CUDA_INCLUDE cuda.h HINTS ${wheels}/cu13/include ${wheels}/cuda_runtime/include
          PATHS /usr/local/cuda/include)
find_file(FROGHOPPER_NVRTC13 libnvrtc.so.13 PATHS ${wheels}/cu13/lib NO_DEFAULT_PATH)
find_file(FROGHOPPER_NVRTC12 libnvrtc.so.12 PATHS ${wheels}/cuda_nvrtc/lib NO_DEFAULT_PATH)
find_program(FROGHOPPER_NVDISASM nvdisasm HINTS ${wheels}/cu13/bin NO_DEFAULT_PATH)

if(NOT FROGHOPPER_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h was not found with ${FROGHOPPER_PYTHON}; the library is compiled against the driver's "
          "header. Run scripts/setup, or pip install nvidia-cuda-runtime and give -DFROGHOPPER_PYTHON=THAT_PYTHON.")
endif()
if(FROGHOPPER_PRESETS AND NOT (FROGHOPPER_NVRTC13 AND FROGHOPPER_NVRTC12))
  message(FATAL_ERROR "FROGHOPPER_PRESETS is on and NVRTC was not found with ${FROGHOPPER_PYTHON}; it compiles the "
          "kernels. Run scripts/setup, or pip install nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12 and give "
          "-DFROGHOPPER_PYTHON=THAT_PYTHON, or build without presets: -DFROGHOPPER_PRESETS=OFF.")
endif()
