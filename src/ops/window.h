/* window.h - a window that moves over the last two dimensions of (N,C,H,W): of convolutions and pooling. */
#ifndef OPS_WINDOW_H
#define OPS_WINDOW_H

#include "ops/op.h"

/* Index 0 is of the height, 1 of the width. */
typedef struct fsdp__window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} fsdp__window;

/* A stride or dilation of 0 is 1; NULL dilation: 1. False and a last error when a number is out of its range. */
bool fsdp__window_make(const char *op, const int64_t kernel[2], const int64_t stride[2], const int64_t padding[2],
                       const int64_t dilation[2], fsdp__window *out);
/* Height and width of what comes out. False and a last error when nothing would. */
bool fsdp__window_result(const char *op, const fsdp__window *window, const fsdp_tensor *x, int64_t out[2]);

#endif
