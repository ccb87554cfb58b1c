/* libraries.h - NVIDIA's libraries, which are opened when something needs them: the plug-in loads without them. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__cuda_library {
    const char *file;    /* "libcublasLt.so.13" */
    const char *purpose; /* who needs it, for the message: "matrix products" */
    const char *package; /* what brings it: "CUDA's toolkit or the Python package nvidia-cublas" */
} fsdp__cuda_library;

/* Opens the library, for good, from the first of these places that has it: the folders of the environment variable
 * FSDP_CUDA_LIBRARIES, separated by colons; the folder of this plug-in; where the loader looks (LD_LIBRARY_PATH, and
 * what ldconfig knows); /usr/local/cuda/lib64. */
fsdp_status fsdp__cuda_library_open(const fsdp__cuda_library *library, void **out);

/* Sets functions[i] to the address of the library's names[i]. */
fsdp_status fsdp__cuda_library_functions(const fsdp__cuda_library *library, void *handle, const char *const *names,
                                         void **functions, int count);
