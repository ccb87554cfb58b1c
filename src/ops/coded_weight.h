/* coded_weight.h - a frozen weight that is held in fewer bits: as a tensor of bytes (U8), of which each row has a scale
 * and the codes of some of the weight's elements, whole blocks of them. So it is sharded between rows as any parameter
 * is, no block is ever cut, and every world has the same numbers. It is decoded where it is used, and the decoded
 * weight is given up again. */
#pragma once

#include "device/kernel_args.h"
#include "fsdp/tensor.h"

enum {
    FSDP__NF4_BLOCK = 64 /* elements of the weight, row-major, that have one scale; the last may be fewer */
};

typedef struct fsdp__coded_weight {
    fsdp__weight_code code; /* PLAIN: the weight is an ordinary tensor, and what follows does not count */
    int64_t rows, cols;     /* of the weight */
} fsdp__coded_weight;

/* Return the shape of the tensor of bytes, and how many elements of the weight lie in each of its rows: a block, or for
 * INT8 a row of the weight. */
int64_t fsdp__coded_rows(const fsdp__coded_weight *weight);
int64_t fsdp__coded_row_bytes(const fsdp__coded_weight *weight);
int64_t fsdp__coded_row_numel(const fsdp__coded_weight *weight);

/* Encodes `numel` elements, which begin where a row of the bytes does, to `bytes`. They have bitsandbytes' codes and
 * scales. A row with a value that is not finite decodes to values that are not, either. */
void fsdp__encode_weight(const fsdp__coded_weight *weight, const float *values, int64_t numel, uint8_t *bytes);

/* Decodes `numel` elements from the first row of `bytes` on to `values`, both of which the stream's device can reach.
 * [stream] */
fsdp_status fsdp__decode_weight_rows(fsdp_stream *stream, const fsdp__coded_weight *weight, const void *bytes,
                                     int64_t numel, fsdp_dtype dtype, void *values);
/* Decodes the weight to a new tensor (rows,cols) of a floating dtype. The caller owns `*out`. */
fsdp_status fsdp__decode_weight(const fsdp__coded_weight *weight, const fsdp_tensor *bytes, fsdp_dtype dtype,
                                fsdp_tensor **out);

/* Computes what fsdp_linear does, or fsdp_conv1d, with the weight decoded to x's dtype, in the forward and again in the
 * backward. The bytes get no gradient. */
fsdp_tensor *fsdp__coded_linear(fsdp_tensor *x, const fsdp__coded_weight *weight, fsdp_tensor *bytes, fsdp_tensor *bias,
                                bool conv1d);
