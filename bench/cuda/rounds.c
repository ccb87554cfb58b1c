/* rounds.c - measures the algorithms of a product in turns.
 *
 * [Note: as in a step]
 * A card under load is limited by its power, so what counts is how fast an algorithm is then: all are measured one
 * after the other in rounds, without a pause, on numbers that are random, and on other memory with each call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "cuda/products.h"
#include "fsdp/dtype.h"

enum {
    PLACES = 3,         /* of operands, that calls take in turns; results have two */
    ALIGNMENT = 256,    /* of all that is taken of the memory */
    PATTERN = 64 << 20, /* bytes of random numbers, which are repeated */
    COMPARED = 8 << 20, /* bytes of results that are looked at */
    REPEATS_MOST = 64,  /* calls of an algorithm in a round */
    ROUNDS_MOST = 64    /* of candidate.ms */
};

static const double turn_ms = 4, too_slow = 1.10, warm_seconds = 3;

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t answer = (call);                                                               \
                                                                                                   \
        if (answer != cudaSuccess) {                                                               \
            fprintf(stderr, "bench_products: %s failed: %s\n", #call, cudaGetErrorString(answer)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- memory ---- */

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t matrix_bytes(const fsdp__product_matrix *m, int32_t batch)
{
    return rounded((size_t)(m->ld * m->cols + m->batch * (batch - 1)) * fsdp_dtype_size(m->dtype));
}

/* Returns the bytes of a vector beside the product: its bias, or sums of an operand. */
static size_t vector_bytes(const fsdp__product_call *call)
{
    return rounded((size_t)FSDP__MAX(call->out.rows, call->out.cols) * sizeof(float));
}

/* Returns the bytes of what GELU is of, which a product reads or writes; 0: it does neither. */
static size_t aux_bytes(const fsdp__product_call *call, bool read)
{
    bool has = call->aux_alignment > 0 && (call->epilogue == FSDP__EPILOGUE_DGELU) == read;

    return has ? matrix_bytes(&call->out, call->batch) : 0;
}

static size_t operand_bytes(const fsdp__product_call *call)
{
    return matrix_bytes(&call->first, call->batch) + matrix_bytes(&call->second, call->batch) + vector_bytes(call) +
           aux_bytes(call, true);
}

static size_t result_bytes(const fsdp__product_call *call)
{
    return matrix_bytes(&call->out, call->batch) + vector_bytes(call) + aux_bytes(call, false);
}

void rounds_open(rounds *r, const step_products *products)
{
    struct cudaDeviceProp facts;

    memset(r, 0, sizeof *r);
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&facts, 0));
    snprintf(r->card, sizeof r->card, "%.255s", facts.name);
    if (fsdp__cublaslt_open(&r->lt) != FSDP_OK)
        fail("cuBLAS");
    for (int64_t i = 0; i < products->count; i++) {
        r->in_bytes = FSDP__MAX(r->in_bytes, PLACES * operand_bytes(&products->list[i].call));
        r->out_bytes = FSDP__MAX(r->out_bytes, 2 * result_bytes(&products->list[i].call));
    }
    r->filled = FSDP_DTYPE_NONE;
    CUDA(cudaStreamCreateWithPriority(&r->stream, cudaStreamNonBlocking, 0));
    CUDA(cudaMalloc((void **)&r->in, r->in_bytes));
    CUDA(cudaMalloc((void **)&r->out, r->out_bytes));
    CUDA(cudaMalloc((void **)&r->workspace, FSDP__PRODUCT_WORKSPACE));
    for (int i = 0; i < CANDIDATES; i++) {
        CUDA(cudaEventCreateWithFlags(&r->begun[i], cudaEventDefault));
        CUDA(cudaEventCreateWithFlags(&r->done[i], cudaEventDefault));
    }
}

void rounds_close(rounds *r)
{
    fsdp__cublaslt_close(&r->lt);
    for (int i = 0; i < CANDIDATES; i++) {
        CUDA(cudaEventDestroy(r->begun[i]));
        CUDA(cudaEventDestroy(r->done[i]));
    }
    CUDA(cudaFree(r->in));
    CUDA(cudaFree(r->out));
    CUDA(cudaFree(r->workspace));
    CUDA(cudaStreamDestroy(r->stream));
}

static double number_at(fsdp_dtype dtype, const char *bytes, size_t i)
{
    uint32_t bits = 0;
    float x;

    if (dtype == FSDP_BF16)
        memcpy((char *)&bits + 2, bytes + 2 * i, 2);
    else
        memcpy(&bits, bytes + 4 * i, 4);
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Fills the operands' memory with numbers that are about normal. */
static void fill(rounds *r, fsdp_dtype dtype)
{
    size_t bytes = FSDP__MIN(r->in_bytes, (size_t)PATTERN), size = fsdp_dtype_size(dtype);
    char *pattern = malloc(bytes);

    if (!pattern)
        fail("random numbers");
    for (size_t i = 0; i < bytes / size; i++) {
        uint32_t words[4];
        float x = 0;

        fsdp__philox(7, i, words);
        for (int part = 0; part < 4; part++)
            x += ((float)words[part] * 0x1p-32f - 0.5f) * 1.7320508f;
        memcpy(pattern + i * size, (const char *)&x + sizeof x - size, size); /* bf16: its upper half */
    }
    for (size_t at = 0; at < r->in_bytes; at += bytes)
        CUDA(cudaMemcpyAsync(r->in + at, pattern, FSDP__MIN(bytes, r->in_bytes - at), cudaMemcpyHostToDevice,
                             r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    free(pattern);
    r->filled = dtype;
}

/* ---- calls ---- */

static void set_place(rounds *r, const fsdp__product_descriptors *d, cublasLtMatmulDescAttributes_t attribute,
                      const char *place)
{
    cublasStatus_t answer = r->lt.MatmulDescSetAttribute(d->operation, attribute, (void *)&place, sizeof place);

    if (fsdp__cublaslt_status(&r->lt, answer, "cublasLtMatmulDescSetAttribute", __FILE__, __LINE__) != FSDP_OK)
        fail("a product");
}

static void issue(rounds *r, const step_product *p, const fsdp__product_descriptors *d, const candidate *c,
                  int64_t turn, bool add)
{
    const fsdp__product_call *call = &p->call;
    char *first = r->in + (size_t)(turn % PLACES) * operand_bytes(call);
    char *second = first + matrix_bytes(&call->first, call->batch);
    char *bias = second + matrix_bytes(&call->second, call->batch), *read = bias + vector_bytes(call);
    char *out = r->out + (size_t)(turn % 2) * result_bytes(call), *sums = out + matrix_bytes(&call->out, call->batch);
    bool adds_up = call->epilogue == FSDP__EPILOGUE_SUMS_OF_FIRST || call->epilogue == FSDP__EPILOGUE_SUMS_OF_SECOND;
    float alpha = 1, beta = add ? 1 : 0;
    cublasStatus_t answer;

    if (call->bias_alignment > 0)
        set_place(r, d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, adds_up ? sums : bias);
    if (call->aux_alignment > 0)
        set_place(r, d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                  aux_bytes(call, true) ? read : sums + vector_bytes(call));
    answer = r->lt.Matmul(r->lt.handle, d->operation, &alpha, first, d->first, second, d->second, &beta, out, d->out,
                          out, d->out, &c->algorithm, r->workspace, c->workspace_bytes, r->stream);
    if (fsdp__cublaslt_status(&r->lt, answer, "cublasLtMatmul", __FILE__, __LINE__) != FSDP_OK)
        fail("a product");
}

/* ---- candidates ---- */

static bool is_known(const rounds *r, const fsdp__product_algorithm *numbers)
{
    for (int i = 0; i < r->count; i++)
        if (memcmp(&r->candidates[i].numbers, numbers, sizeof *numbers) == 0)
            return true;
    return false;
}

/* Lists the algorithms of a product: the heuristic's first as it is, others as they are made again of their numbers. */
static void find_candidates(rounds *r, const fsdp__product_call *call, const fsdp__product_descriptors *d, int most)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES], again;
    fsdp__product_algorithm numbers;
    int found;

    r->count = r->refused = 0;
    if (fsdp__product_heuristic(&r->lt, call, d, 0, most, results, &found) != FSDP_OK)
        fail("the heuristic");
    for (int i = 0; i < found; i++) {
        bool told = fsdp__product_algorithm_read(&r->lt, &results[i].algo, &numbers);

        if (results[i].state != CUBLAS_STATUS_SUCCESS || (r->count > 0 && (!told || is_known(r, &numbers))))
            continue;
        again = results[i];
        if (r->count > 0 && !fsdp__product_algorithm_make(&r->lt, call, d, &numbers, &again)) {
            r->refused++;
            continue;
        }
        r->candidates[r->count++] =
            (candidate){.algorithm = again.algo, .workspace_bytes = again.workspaceSize, .numbers = numbers};
    }
    if (fsdp__product_heuristic(&r->lt, call, d, ALIGNMENT, 1, results, &found) != FSDP_OK)
        fail("the heuristic");
    r->same_aligned = found == 1 && r->count > 0 && fsdp__product_algorithm_read(&r->lt, &results[0].algo, &numbers) &&
                      memcmp(&numbers, &r->candidates[0].numbers, sizeof numbers) == 0;
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[ROUNDS_MOST];

    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return sorted[count / 2];
}

/* Lets each candidate that is not out compute `repeats` times. */
static void round_of(rounds *r, const step_product *p, const fsdp__product_descriptors *d, int64_t repeats)
{
    bool add = 2 * p->added > p->times;

    for (int i = 0; i < r->count; i++) {
        if (r->candidates[i].out)
            continue;
        CUDA(cudaEventRecord(r->begun[i], r->stream));
        for (int64_t turn = 0; turn < repeats; turn++)
            issue(r, p, d, &r->candidates[i], turn, add);
        CUDA(cudaEventRecord(r->done[i], r->stream));
    }
    CUDA(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < r->count; i++) {
        candidate *c = &r->candidates[i];
        float ms;

        if (c->out || c->rounds == ROUNDS_MOST)
            continue;
        CUDA(cudaEventElapsedTime(&ms, r->begun[i], r->done[i]));
        c->ms[c->rounds++] = ms / (double)repeats;
        c->median = median(c->ms, c->rounds);
    }
}

static int best_of(const rounds *r)
{
    int best = 0;

    for (int i = 1; i < r->count; i++)
        if (!r->candidates[i].out && r->candidates[i].median < r->candidates[best].median)
            best = i;
    return best;
}

/* Leaves out what is far behind; the first stays. */
static void drop_slow(rounds *r)
{
    double least = r->candidates[best_of(r)].median;

    for (int i = 1; i < r->count; i++)
        r->candidates[i].out = r->candidates[i].out || r->candidates[i].median > too_slow * least;
}

static void forget_times(rounds *r)
{
    for (int i = 0; i < r->count; i++)
        r->candidates[i].rounds = 0;
}

/* Brings the card to the clock that it has under load. */
static void warm_up(rounds *r, const step_product *p, const fsdp__product_descriptors *d, double seconds)
{
    int64_t end = fsdp__clock_ns() + (int64_t)(FSDP__MIN(seconds, warm_seconds) * 1e9);

    while (fsdp__clock_ns() < end)
        round_of(r, p, d, 2);
    r->warm = true;
}

/* ---- results ---- */

/* Computes the product in a turn, and copies the first bytes of the result. */
static char *result_of(rounds *r, const step_product *p, const fsdp__product_descriptors *d, const candidate *c,
                       int64_t turn, size_t bytes)
{
    char *out = malloc(bytes);

    if (!out)
        fail("results");
    issue(r, p, d, c, turn, false);
    CUDA(cudaMemcpyAsync(out, r->out + (size_t)(turn % 2) * result_bytes(&p->call), bytes, cudaMemcpyDeviceToHost,
                         r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    return out;
}

/* Compares what the best one computes with what it computes again, and with what the first does. The turns have the
 * same operands. */
static void compare(rounds *r, const step_product *p, const fsdp__product_descriptors *d, const candidate *best)
{
    const fsdp__product_matrix *m = &p->call.out;
    size_t size = fsdp_dtype_size(m->dtype), column = (size_t)m->rows * size;
    /* without what lies between columns */
    size_t bytes = m->ld == m->rows ? FSDP__MIN(column * (size_t)m->cols, (size_t)COMPARED) : column;
    char *one = result_of(r, p, d, best, 0, bytes), *two = result_of(r, p, d, best, PLACES, bytes);
    char *other = result_of(r, p, d, &r->candidates[0], 0, bytes);
    double most = 1e-30, apart = 0;

    r->same_bits = memcmp(one, two, bytes) == 0;
    for (size_t i = 0; i < bytes / size; i++) {
        double x = number_at(m->dtype, one, i);

        most = fmax(most, fabs(x));
        apart = fmax(apart, fabs(x - number_at(m->dtype, other, i)));
    }
    r->apart = apart / most;
    free(one);
    free(two);
    free(other);
}

int rounds_measure(rounds *r, const step_product *product, int most, double seconds)
{
    int64_t end, repeats;
    fsdp__product_descriptors d;
    int best = -1;

    if (r->filled != product->call.first.dtype)
        fill(r, product->call.first.dtype);
    if (fsdp__product_describe(&r->lt, &product->call, &d) != FSDP_OK)
        fail("a product");
    find_candidates(r, &product->call, &d, most);
    if (r->count > 0) {
        if (!r->warm)
            warm_up(r, product, &d, seconds);
        end = fsdp__clock_ns() + (int64_t)(seconds * 1e9);
        round_of(r, product, &d, 1); /* loads the kernels */
        forget_times(r);
        round_of(r, product, &d, 2);
        drop_slow(r);
        forget_times(r);
        repeats = FSDP__MIN(FSDP__MAX((int64_t)(turn_ms / fmax(r->candidates[0].median, 1e-6)), 2), REPEATS_MOST);
        for (int round = 0; round < 3 || (round < ROUNDS_MOST && fsdp__clock_ns() < end); round++)
            round_of(r, product, &d, repeats);
        best = best_of(r);
        compare(r, product, &d, &r->candidates[best]);
    }
    fsdp__product_descriptors_release(&r->lt, &d);
    return best;
}

double rounds_copy_ms(rounds *r, size_t bytes)
{
    enum {
        COPIES = 20
    };
    float ms;

    bytes = FSDP__MIN(bytes, FSDP__MIN(r->in_bytes, r->out_bytes));
    CUDA(cudaMemcpyAsync(r->out, r->in, bytes, cudaMemcpyDeviceToDevice, r->stream));
    CUDA(cudaEventRecord(r->begun[0], r->stream));
    for (int i = 0; i < COPIES; i++)
        CUDA(cudaMemcpyAsync(r->out, r->in, bytes, cudaMemcpyDeviceToDevice, r->stream));
    CUDA(cudaEventRecord(r->done[0], r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CUDA(cudaEventElapsedTime(&ms, r->begun[0], r->done[0]));
    return (double)ms / COPIES;
}
