# The device of NVIDIA's GPUs (src/backend/cuda): the plug-in libfsdp-cuda.so, where CUDA's compiler is found. Nothing else
# is built with CUDA; -DFSDP_CUDA=OFF leaves it out. Its kernels are compiled a second time by the C++ compiler, for
# tests without a GPU (tests.cmake).

option(FSDP_CUDA "build the plug-in for NVIDIA's GPUs if CUDA's compiler is found" ON)
set(FSDP_CUDA_ARCHITECTURES 90 CACHE STRING "compute capabilities that the plug-in has code for; others run newer code by PTX")

file(GLOB fsdp_cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/kernels/*.cu)
