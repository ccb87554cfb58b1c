/* support/numbers.h - what other programs have computed: the files of tests/numbers, which the scripts beside them
 * write. X.npy has the values of all tensors, one after the other; X.txt says who made them, and then each tensor's
 * name and shape. A file that is not so fails the test. Whoever uses this links the layer data, which has the reader of
 * .npy. */
#pragma once

#include "support/test.h"

typedef struct number_tensor {
    char name[64];
    int ndim;
    int64_t shape[6];
    const float *data;
} number_tensor;

/* "<name>.<part>" of X.npy, which stays until another file is asked for; NULL: there is none. For one thread. */
const number_tensor *number_find(const char *x, const char *name, const char *part);
/* The same of one that must be there. */
const number_tensor *number_get(const char *x, const char *name, const char *part);
/* Counts the tensors of X.npy that have names that begin so. */
int number_count(const char *x, const char *prefix);
/* All of X.npy, whose elements must be of this type; free() it. */
void *number_array(const char *x, fsdp_dtype dtype, int64_t *count);
