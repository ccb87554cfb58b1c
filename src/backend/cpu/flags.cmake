# Compiles the CPU's kernels: each file of kernels/ once per instruction set, all in one binary; at run time
# kernels_table.c takes the best one that the processor has. Include it after the target fsdp_backend_objects exists.

# Do not use -fassociative-math: sums that may be reordered say so (omp simd reduction), and the range reduction of exp
# must not be reordered. Do not use -ffinite-math-only: NaN and infinity must come out where they go in.
set(FSDP_CPU_KERNEL_FLAGS -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Without it the two sides of a clamp become two copies of all that follows, and a vector computes both.
  list(APPEND FSDP_CPU_KERNEL_FLAGS -fno-thread-jumps)
endif()
set(FSDP_CPU_SETS v3 v4 CACHE STRING "instruction sets of x86-64 that the CPU's kernels are compiled for, beside the oldest")
set(isas ${FSDP_CPU_SETS})
if(FSDP_SANITIZE)
  # Vectorising instrumented loops takes minutes for each file and finds nothing more. At -O1 the tests under
  # AddressSanitizer, which spend most of their time here, take up to twice as long; those under ThreadSanitizer do not.
  set(optimization -O1)
  if(FSDP_SANITIZE MATCHES "address")
    set(optimization -O2)
  endif()
  list(PREPEND FSDP_CPU_KERNEL_FLAGS ${optimization})
  list(REMOVE_ITEM FSDP_CPU_KERNEL_FLAGS -O3)
  if(FSDP_SANITIZE MATCHES "undefined")  # AddressSanitizer sees the access itself, which is what these foresee
    list(APPEND FSDP_CPU_KERNEL_FLAGS -fno-sanitize=null,object-size,pointer-overflow)
  endif()
  set(isas)
endif()
if(NOT FSDP_OPENMP)
  list(APPEND FSDP_CPU_KERNEL_FLAGS -fopenmp-simd)
endif()

file(GLOB kernel_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.c)
set(oldest_flags ${FSDP_CPU_KERNEL_FLAGS})
if(FSDP_KERNELS_QUICKLY AND isas)  # two thirds of the time
  list(TRANSFORM oldest_flags REPLACE "^-O3$" -O2)  # loops marked simd are vectorised all the same
endif()
set_source_files_properties(${kernel_files} PROPERTIES COMPILE_OPTIONS "${oldest_flags}")

if(isas AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(v3_flags -march=x86-64-v3)
  set(v4_flags -march=x86-64-v4 -mprefer-vector-width=512)
  set(FSDP_CPU_KERNEL_VARIANTS)
  foreach(isa IN LISTS isas)
    if(NOT isa MATCHES "^v[34]$")
      message(FATAL_ERROR "FSDP_CPU_SETS has ${isa}: choose v3, v4, both or none")
    endif()
    foreach(file ${kernel_files})
      get_filename_component(name ${file} NAME_WE)
      set(variant ${PROJECT_BINARY_DIR}/cpu_kernels/${name}_${isa}.c)
      file(CONFIGURE OUTPUT ${variant} CONTENT "#define FSDP__ISA ${isa}\n#include \"backend/cpu/kernels/${name}.c\"\n")
      set_source_files_properties(${variant} PROPERTIES COMPILE_OPTIONS "${FSDP_CPU_KERNEL_FLAGS};${${isa}_flags}")
      list(APPEND FSDP_CPU_KERNEL_VARIANTS ${variant})
    endforeach()
  endforeach()
  list(TRANSFORM isas TOUPPER OUTPUT_VARIABLE defined)
  list(TRANSFORM defined PREPEND FSDP__CPU_HAS_)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_table.c PROPERTIES COMPILE_DEFINITIONS "${defined}")
  target_sources(fsdp_backend_objects PRIVATE ${FSDP_CPU_KERNEL_VARIANTS})
endif()
