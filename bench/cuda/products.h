/* products.h - what the files of bench_products share. */
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/product_algorithms.h"

/* A product of a model's step. */
typedef struct step_product {
    fsdp__product_call call;
    int model;                /* of the command line */
    int64_t times, added;     /* in a step; of these, how often it is added to what is there */
    double first_ms, best_ms; /* of the heuristic's first algorithm, and of what the row has. 0: not measured */
    fsdp__product_row row;    /* for the table, if there is one */
    bool has_row;
} step_product;

typedef struct step_products {
    step_product *list;
    int64_t count, capacity;
} step_products;

double flops_of(const fsdp__product_call *call);
/* Ends the program with the last error. */
_Noreturn void fail(const char *what);

/* ---- recorded.c ---- */

/* Adds the products of a step of a model, "llama-1b:8x2048" for sequences of 2,048 tokens, 8 at a time, in bfloat16, by
 * a step that is not computed; those with most operations come first. */
void record_products(step_products *products, const char *model, int number);

/* ---- rounds.c ---- */

enum {
    CANDIDATES = 32
};

typedef struct candidate {
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    fsdp__product_algorithm numbers;
    double ms[64]; /* of each round */
    int rounds;
    double median;
    bool out; /* it is too slow to be measured again */
} candidate;

typedef struct rounds {
    fsdp__cublaslt lt;
    char card[256];
    cudaStream_t stream;
    cudaEvent_t begun[CANDIDATES], done[CANDIDATES];
    char *in, *out, *workspace; /* of operands; of results */
    size_t in_bytes, out_bytes;
    bool warm;
    fsdp_dtype filled; /* with numbers of this dtype; FSDP_DTYPE_NONE: not yet */
    candidate candidates[CANDIDATES];
    int count, refused; /* of those that the heuristic named, how many could not be made again */
    bool same_aligned;  /* the heuristic's first is the same where addresses are aligned to 256 bytes */
    bool same_bits;     /* two calls of the best one agree to the bit */
    double apart;       /* largest difference of the best one's result and the first's, over the largest number */
} rounds;

void rounds_open(rounds *r, const step_products *products);
void rounds_close(rounds *r);
/* Measures up to `most` algorithms of a product in turns, for about so many seconds, and returns the best one's number:
 * 0 is the heuristic's first. -1: cublasLt has none. */
int rounds_measure(rounds *r, const step_product *product, int most, double seconds);

/* Returns how long a copy of so many bytes on the card takes. */
double rounds_copy_ms(rounds *r, size_t bytes);
