/* native_conv.h - one convolution of f32 numbers as a primitive of oneDNN, made for one thread.
 *
 * oneDNN's code wants its operands in layouts of its own: they are packed and unpacked one by one, so that what is used
 * often (the weight) is packed once. A status returned here is oneDNN's, 0 on success: threads of a kernel call these
 * functions, and only the caller of the kernel has a last error. */
#pragma once

#include "device/kernels.h"

typedef enum fsdp__conv_pass {
    FSDP__CONV_FORWARD, /* y from x and weight */
    FSDP__CONV_INPUT,   /* x (its gradient) from y and weight */
    FSDP__CONV_WEIGHT   /* weight (its gradient) from x and y */
} fsdp__conv_pass;

typedef enum fsdp__conv_operand {
    FSDP__CONV_X,
    FSDP__CONV_W,
    FSDP__CONV_Y,
    FSDP__CONV_OPERANDS
} fsdp__conv_operand;

/* Names a part of a convolution: some images, some channels. Images of x and y, and rows of the weight, need not be
 * adjacent. */
typedef struct fsdp__conv_part {
    fsdp__conv_pass pass;
    fsdp__conv2d_sizes sizes;         /* of the part */
    int64_t x_image, y_image, weight; /* elements from one image, or output channel, to the next */
    bool bias;                        /* FORWARD */
} fsdp__conv_part;

typedef struct fsdp__native_conv fsdp__native_conv;

/* Creates the code of a part. Create it and run it where oneDNN takes one thread. */
int fsdp__native_conv_create(const fsdp__conv_part *part, fsdp__native_conv **out);
void fsdp__native_conv_free(fsdp__native_conv *conv); /* NULL is allowed */
/* Returns the bytes of a packed operand; 0: it is used as it is. */
size_t fsdp__native_conv_packed_bytes(const fsdp__native_conv *conv, fsdp__conv_operand operand);
size_t fsdp__native_conv_scratch_bytes(const fsdp__native_conv *conv);
int fsdp__native_conv_pack(const fsdp__native_conv *conv, fsdp__conv_operand operand, const float *plain,
                           float *packed);
int fsdp__native_conv_unpack(const fsdp__native_conv *conv, fsdp__conv_operand operand, const float *packed,
                             float *plain);
/* Runs the part on operands as they are packed; `bias` is NULL if the part has none. All pointers except the bias are
 * 64-byte aligned if they are packed. */
int fsdp__native_conv_run(const fsdp__native_conv *conv, float *const operands[FSDP__CONV_OPERANDS], const float *bias,
                          void *scratch);

/* Returns whether the status says that there is no memory. */
bool fsdp__native_conv_is_memory(int status);
