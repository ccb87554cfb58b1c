/* moving_window.h - a window that moves over the last two dimensions of (N,C,H,W), for convolutions and pooling. */
#pragma once

#include "ops/op.h"

/* Holds the sizes of a window. Index 0 is for the height, 1 for the width. */
typedef struct fsdp__window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} fsdp__window;

/* Makes a window. A stride or dilation of 0 means 1, and so does a NULL dilation. Returns false, with a last error, if
 * a number is out of its range. */
bool fsdp__window_make(const char *op, const int64_t kernel[2], const int64_t stride[2], const int64_t padding[2],
                       const int64_t dilation[2], fsdp__window *out);
/* Gives height and width of the result. Returns false, with a last error, if it would be empty. */
bool fsdp__window_result(const char *op, const fsdp__window *window, const fsdp_tensor *x, int64_t out[2]);
