# The device of NVIDIA's GPUs (src/backend/cuda): the plug-in libfsdp-cuda.so, where CUDA's compiler is found. Nothing else
# is built with CUDA; -DFSDP_CUDA=OFF leaves it out. Its kernels are compiled a second time by the C++ compiler, for
# tests without a GPU (tests.cmake). Sets
#   fsdp_cuda_kernels        its kernels
#   fsdp_cuda_sources        its host side, and what it has of the library
#   FSDP_CUDA_OLDEST         the lowest compute capability that its kernels run on, times 10

option(FSDP_CUDA "build the plug-in for NVIDIA's GPUs if CUDA's compiler is found" ON)
set(FSDP_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "compute capabilities, times 10, that the plug-in has code for")

file(GLOB fsdp_cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/kernels/*.cu)
file(GLOB fsdp_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.c)
list(APPEND fsdp_cuda_sources ${PROJECT_SOURCE_DIR}/src/device/worker.c)
file(GLOB fsdp_bench_products CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/cuda/*.c
                                               ${PROJECT_SOURCE_DIR}/src/backend/cuda/product_[acr]*.c)
list(APPEND fsdp_bench_products ${PROJECT_SOURCE_DIR}/src/backend/cuda/cublaslt_calls.c
                                ${PROJECT_SOURCE_DIR}/src/backend/cuda/libraries.c)
list(SORT FSDP_CUDA_ARCHITECTURES COMPARE NATURAL)
list(GET FSDP_CUDA_ARCHITECTURES 0 FSDP_CUDA_OLDEST)
if(FSDP_CUDA_OLDEST LESS 80)
  message(FATAL_ERROR "FSDP_CUDA_ARCHITECTURES has ${FSDP_CUDA_OLDEST}: the kernels use tensor cores and copies of 80 "
                      "and later")
endif()

# CUPTI's headers come with CUDA's toolkit; without them the plug-in cannot record what a GPU runs, and says so.
find_path(FSDP_CUPTI_INCLUDE cupti_activity.h HINTS /usr/local/cuda/include /usr/local/cuda/extras/CUPTI/include)

find_program(FSDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
set(missing)
if(NOT FSDP_CUDA)
  set(missing "FSDP_CUDA is OFF")
elseif(FSDP_SANITIZE OR FSDP_FUZZ)
  set(missing "sanitizers do not see into it")
elseif(NOT FSDP_NVCC)
  set(missing "nvcc was not found")
else()
  get_filename_component(cuda_home ${FSDP_NVCC} REALPATH)
  get_filename_component(cuda_home ${cuda_home}/../.. ABSOLUTE)
  find_path(FSDP_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_home}/include ${cuda_home}/targets/x86_64-linux/include)
  find_library(FSDP_CUDART libcudart_static.a HINTS ${cuda_home}/lib64 ${cuda_home}/targets/x86_64-linux/lib)
  if(NOT EXISTS ${FSDP_CUDA_INCLUDE}/cublasLt.h OR NOT FSDP_CUDART)
    set(missing "${FSDP_NVCC} has no cuda_runtime_api.h, cublasLt.h or libcudart_static.a beside it")
  else()
    file(STRINGS ${FSDP_CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "#define CUDART_VERSION +[0-9]+")
    string(REGEX MATCH "[0-9]+$" version "${version}")
    if(version LESS 12080) # the first that knows GPUs of 10.0
      set(missing "${FSDP_NVCC} is of CUDA's version ${version}, and 12080 (12.8) or later is needed")
    endif()
  endif()
endif()

if(missing)
  message(STATUS "src/backend/cuda: no plug-in for NVIDIA's GPUs: ${missing}")
else()
  # An object for each kernel file, and beside it what ptxas says of it: registers, spills, local memory. -O1 is for the
  # host's part, which launches; the GPU's is always optimised.
  # All of it is made of one PTX, that of the oldest: most of the time is spent on making PTX, and the kernels use
  # nothing that is newer. The PTX goes with it, for GPUs that are newer.
  set(codes)
  foreach(architecture IN LISTS FSDP_CUDA_ARCHITECTURES)
    string(APPEND codes "sm_${architecture},")
  endforeach()
  set(codes "-gencode=arch=compute_${FSDP_CUDA_OLDEST},code=[${codes}compute_${FSDP_CUDA_OLDEST}]")
  if(FSDP_KERNELS_QUICKLY AND NOT version LESS 13000)  # a quarter of the time; older ones are not asked
    list(APPEND codes -Ofc=max)
  endif()
  set(objects)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  set(sources_cuda ${fsdp_cuda_kernels})
  if(FSDP_KERNELS_QUICKLY)  # to read CUDA's headers and to start its compilers takes 0.9 s for each
    fsdp_batches(4 cuda)
  endif()
  foreach(source IN LISTS sources_cuda)
    get_filename_component(name ${source} NAME_WE)
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object} ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas ${CMAKE_C_COMPILER_LAUNCHER}
              ${FSDP_NVCC} -std=c++17 -O1 --compiler-options -fPIC,-fvisibility=hidden -Xptxas -v ${codes}
              -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -MT ${object}
              -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object cuda/${name}.o"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(fsdp_cuda MODULE ${fsdp_cuda_sources} ${PROJECT_SOURCE_DIR}/src/base/dtype.c
                               ${PROJECT_SOURCE_DIR}/src/base/limits.c ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_include_directories(fsdp_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(fsdp_cuda SYSTEM PRIVATE ${FSDP_CUDA_INCLUDE})
  target_compile_definitions(fsdp_cuda PRIVATE FSDP_CUDA_OLDEST=${FSDP_CUDA_OLDEST})
  if(FSDP_CUPTI_INCLUDE)
    target_include_directories(fsdp_cuda SYSTEM PRIVATE ${FSDP_CUPTI_INCLUDE})
    target_compile_definitions(fsdp_cuda PRIVATE FSDP_HAVE_CUPTI)
  endif()
  target_link_libraries(fsdp_cuda PRIVATE ${FSDP_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt m stdc++)
  # What is in it is its own, also where the library's functions of the same names are seen.
  target_link_options(fsdp_cuda PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map -Wl,--no-undefined)
  set_target_properties(fsdp_cuda PROPERTIES OUTPUT_NAME fsdp-cuda PREFIX lib SUFFIX .so LINKER_LANGUAGE C
                                             LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  install(TARGETS fsdp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/fsdp)
  list(APPEND fsdp_plugins fsdp_cuda)

  # What measures cublasLt's algorithms calls the library as the plug-in does.
  add_executable(bench_products EXCLUDE_FROM_ALL ${fsdp_bench_products})
  target_include_directories(bench_products PRIVATE ${PROJECT_SOURCE_DIR}/bench)
  target_include_directories(bench_products SYSTEM PRIVATE ${FSDP_CUDA_INCLUDE})
  target_link_libraries(bench_products PRIVATE fsdp_static fsdp_common ${FSDP_CUDART} rt stdc++)
  set_target_properties(bench_products PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  list(APPEND bench_programs bench_products)
  set(cupti "; without CUPTI, whose headers were not found")
  if(FSDP_CUPTI_INCLUDE)
    set(cupti "")
  endif()
  message(STATUS "src/backend/cuda: plug-in for NVIDIA's GPUs by ${FSDP_NVCC} (${FSDP_CUDA_ARCHITECTURES})${cupti}")
endif()
