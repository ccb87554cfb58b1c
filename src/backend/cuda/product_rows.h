/* product_rows.h - the table of algorithms: which one of cublasLt computes a product fastest on a card.
 *
 * [Note: measured beforehand]
 * bench_products measures the algorithms that cublasLt offers for the products of a model's step, and its rows are
 * pasted into product_rows.inc. A run only looks there: it times nothing, so it has the same algorithms, and bits, in
 * every run on one kind of card with one version of the library. A row is for both. */
#pragma once

#include <stdio.h>

#include "backend/cuda/product_call.h"

enum {
    FSDP__PRODUCT_APART = -1 /* the id of no algorithm: what comes along with the product is faster as a pass */
};

/* Holds what an algorithm of cublasLt is made of; numbers are the library's. */
typedef struct fsdp__product_algorithm {
    int32_t id;
    uint32_t tile, stages;
    int32_t split_k;
    uint32_t reduction, swizzle, custom;
    uint16_t inner, cluster;
} fsdp__product_algorithm;

typedef struct fsdp__product_row {
    const char *card; /* as the driver names it; NULL ends a table */
    int64_t version;  /* of cublasLt: cublasLtGetVersion */
    /* the call: which operands are transposed ("TN": the first), dtypes of operands and result, and sizes. What it has
     * of addresses is aligned to FSDP__PRODUCT_ALIGNMENT, and its batch is 1 */
    const char *layout;
    fsdp_dtype in, out;
    fsdp__product_epilogue epilogue;
    int64_t n, m, k, first_ld, second_ld, out_ld;
    fsdp__product_algorithm algorithm;
} fsdp__product_row;

/* The table of this build, which ends with a row without a card. */
extern const fsdp__product_row fsdp__product_rows[];

/* Gives what a row says of the call; false: a row cannot be for such a call. card, version and algorithm are not set.
 */
bool fsdp__product_row_of(const fsdp__product_call *call, fsdp__product_row *out);
/* Returns the row for the call, or NULL. */
const fsdp__product_row *fsdp__product_row_find(const fsdp__product_row *rows, const char *card, int64_t version,
                                                const fsdp__product_call *call);
/* Returns how many rows there are for the card and the version. `other` gets one for the card with another version, or
 * NULL. */
int fsdp__product_rows_count(const fsdp__product_row *rows, const char *card, int64_t version,
                             const fsdp__product_row **other);
/* Prints a row as product_rows.inc has it, without the end of the line. */
void fsdp__product_row_print(const fsdp__product_row *row, FILE *out);
