# Decides whether the CUDA operators are built: yes where torch has CUDA and nvcc is present, and one line says why
# not otherwise. -DACTCORE_WITH_CUDA=ON insists (nvcc suffices: the operators can be compiled for another machine),
# OFF leaves them out.
set(ACTCORE_WITH_CUDA AUTO CACHE STRING "Build the CUDA operators: AUTO, ON or OFF")
set(ACTCORE_CUDA OFF)
set(ACTCORE_CUDA_VERSION "")
set(ACTCORE_CUDA_ARCHITECTURES "")

include(CheckLanguage)
check_language(CUDA)
if(ACTCORE_WITH_CUDA STREQUAL "OFF")
  message(STATUS "actcore: CUDA operators left out (ACTCORE_WITH_CUDA=OFF)")
elseif(NOT CMAKE_CUDA_COMPILER)
  if(ACTCORE_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "actcore: ACTCORE_WITH_CUDA=ON needs nvcc; put it on PATH or set CUDACXX")
  endif()
  message(STATUS "actcore: CUDA operators skipped: no nvcc found; everything works on CPU")
elseif(NOT TORCH_CUDA AND NOT ACTCORE_WITH_CUDA STREQUAL "ON")
  message(STATUS "actcore: CUDA operators skipped: torch ${TORCH_VERSION} is a CPU build; everything works on CPU")
else()
  if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    # Ampere (with Ada) and Hopper as machine code, and PTX that later GPUs compile when they first load it. Machine code
    # for Blackwell, too (80-real;90;100-real;120-real), takes twice as long to build: who wants it asks for it.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(ACTCORE_CUDA ON)
  set(ACTCORE_CUDA_VERSION ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " ACTCORE_CUDA_ARCHITECTURES)
  message(STATUS "actcore: building the CUDA operators for ${ACTCORE_CUDA_ARCHITECTURES} with CUDA ${ACTCORE_CUDA_VERSION}")
endif()
