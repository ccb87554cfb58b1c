/* thread.c - what a thread of the host knows of the block that it runs. It is a part of the library fakecudart, or of a
 * program that has kernels of its own (cudash.h). */
struct size {
    unsigned x, y, z;
};

__attribute__((visibility("default"))) _Thread_local struct size threadIdx, blockIdx, blockDim, gridDim;
__attribute__((visibility("default"))) _Thread_local unsigned char *cudash_shared;
__attribute__((visibility("default"))) _Thread_local struct block *cudash_running;
