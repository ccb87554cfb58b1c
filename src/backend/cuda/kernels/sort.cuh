/* sort.cuh - sorts words on the device: a key above, what belongs to it below. */
#pragma once

#include "backend/cuda/kernels/kernel.cuh"

/* Bytes of scratch that a sort of n words needs, the words themselves included. */
size_t fsdp__cuda_sort_bytes(int64_t n);
/* Sorts n words by their bits [low, low + bits), those that are equal there in the order in which they lie. The words
 * are at the start of `scratch`. Returns where they lie then, which is in the scratch, too. */
fsdp_status fsdp__cuda_sort(fsdp_stream *stream, const char *name, void *scratch, int64_t n, int low, int bits,
                            const uint64_t **sorted);
