/* conv2d.c - convolutions by oneDNN's code for one thread, on parts whose number depends on the sizes only.
 *
 * oneDNN divides the work by the number of threads, and sums a weight's gradient in an order that depends on it. So
 * here it is given parts: chunks of images, times slices of the result's channels. One thread makes each part, from
 * packing its operands to unpacking its result, while they are in its cache. The gradient of the weight is summed over
 * runs of chunks, and then over the runs, in order. */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backend/cpu/kernels/dtype.h"
#include "backend/cpu/native_conv.h"
#include "base/alloc.h"

enum {
    PARTS = 16,               /* as many parts as this, if there are so many images or channels */
    CHANNELS = 16,            /* a slice has a multiple of this many */
    CHUNK_BYTES = 2 << 20,    /* images of a chunk, unless it is a single one */
    PARTIAL_BYTES = 32 << 20, /* sums of parts */
    CACHE_LINE = 64
};

/* Describes `rows` of `length` elements, `stride` apart. */
typedef struct operand {
    char *data;
    int64_t rows, length, stride;
    bool staged; /* on its way it is copied to f32 and dense, or back from there */
    size_t packed_bytes;
    size_t staged_at, packed_at; /* in a thread's scratch */
} operand;

typedef struct plan {
    fsdp__conv_pass pass;
    const fsdp__conv2d_sizes *sizes;
    const float *bias;
    bool accumulate;
    operand operands[FSDP__CONV_OPERANDS];                                    /* those of the first chunk and slice */
    int64_t chunk_step[FSDP__CONV_OPERANDS], slice_step[FSDP__CONV_OPERANDS]; /* elements to the next one */
    int64_t images, chunks, slices, runs;
    fsdp__native_conv *conv;
    char *weights; /* FORWARD, INPUT: packed, by slice. WEIGHT: sums, by run and slice */
    size_t weight_bytes;
    char *scratch; /* that of the first thread */
    size_t scratch_bytes, native_at;
    _Atomic int status; /* that of a thread that failed */
} plan;

static const fsdp__conv_operand results[] = {
    [FSDP__CONV_FORWARD] = FSDP__CONV_Y, [FSDP__CONV_INPUT] = FSDP__CONV_X, [FSDP__CONV_WEIGHT] = FSDP__CONV_W};

/* ---- oneDNN takes the threads that OpenMP has for a region that would begin here ---- */

static int one_thread(void)
{
#ifdef _OPENMP
    int before = omp_get_max_threads();

    omp_set_num_threads(1);
    return before;
#else
    return 1;
#endif
}

static void threads_again(int before)
{
#ifdef _OPENMP
    omp_set_num_threads(before);
#else
    (void)before;
#endif
}

/* ---- parts ---- */

static int64_t largest_divisor(int64_t n, int64_t most)
{
    int64_t d = FSDP__MAX(FSDP__MIN(n, most), 1);

    while (n % d != 0)
        d--;
    return d;
}

static void divide(plan *p)
{
    const fsdp__conv2d_sizes *s = p->sizes;
    int64_t x_image = s->in * s->in_height * s->in_width, y_image = s->out * s->out_height * s->out_width;
    int64_t weight = s->out * (s->in / s->groups) * s->kernel_height * s->kernel_width;
    int64_t sliced = p->pass == FSDP__CONV_INPUT ? s->in : s->out;
    int64_t most = FSDP__MAX(CHUNK_BYTES / ((x_image + y_image) * (int64_t)sizeof(float)), 1);

    p->runs = 1;
    if (p->pass == FSDP__CONV_WEIGHT) {
        p->runs = FSDP__MAX(PARTIAL_BYTES / (weight * (int64_t)sizeof(float)), 1);
        p->runs = FSDP__MIN(FSDP__MIN(p->runs, PARTS), s->batch);
        p->images = largest_divisor(s->batch, FSDP__MIN(fsdp__ceil_div(s->batch, p->runs), most));
    } else
        p->images = largest_divisor(s->batch, FSDP__MIN(fsdp__ceil_div(s->batch, PARTS), most));
    p->chunks = s->batch / p->images;
    p->slices = 1;
    while (s->groups == 1 && p->slices * (p->pass == FSDP__CONV_WEIGHT ? p->runs : p->chunks) < PARTS &&
           sliced % (2 * CHANNELS * p->slices) == 0)
        p->slices *= 2;
}

/* Sets the operands of the first part, and makes oneDNN's code for all parts. */
static int prepare(plan *p)
{
    fsdp__conv_part part = {.pass = p->pass, .sizes = *p->sizes, .bias = p->bias != NULL};
    fsdp__conv2d_sizes *s = &part.sizes;
    int64_t x_plane = s->in_height * s->in_width, y_plane = s->out_height * s->out_width;
    int64_t kernel = s->kernel_height * s->kernel_width, row = s->in / s->groups * kernel;
    operand *x = &p->operands[FSDP__CONV_X], *w = &p->operands[FSDP__CONV_W], *y = &p->operands[FSDP__CONV_Y];

    x->stride = s->in * x_plane, y->stride = s->out * y_plane, w->stride = row;
    s->batch = p->images;
    if (p->pass == FSDP__CONV_INPUT) {
        s->in /= p->slices;
        p->slice_step[FSDP__CONV_X] = s->in * x_plane;
        p->slice_step[FSDP__CONV_W] = s->in * kernel;
    } else {
        s->out /= p->slices;
        p->slice_step[FSDP__CONV_Y] = s->out * y_plane;
        p->slice_step[FSDP__CONV_W] = s->out * row;
    }
    p->chunk_step[FSDP__CONV_X] = p->images * x->stride;
    p->chunk_step[FSDP__CONV_Y] = p->images * y->stride;
    x->rows = y->rows = p->images, w->rows = s->out;
    x->length = s->in * x_plane, y->length = s->out * y_plane, w->length = s->in / s->groups * kernel;
    for (int i = 0; i < FSDP__CONV_OPERANDS; i++)
        p->operands[i].staged = s->dtype != FSDP_F32 || (p->accumulate && results[p->pass] == (fsdp__conv_operand)i);
    part.x_image = x->staged ? x->length : x->stride;
    part.y_image = y->staged ? y->length : y->stride;
    part.weight = w->staged ? w->length : w->stride;
    return fsdp__native_conv_create(&part, &p->conv);
}

/* ---- memory ---- */

static size_t take(size_t *end, size_t bytes)
{
    size_t at = *end;

    *end += FSDP__ROUND_UP(bytes, CACHE_LINE);
    return at;
}

static size_t dense_bytes(const operand *o)
{
    return (size_t)(o->rows * o->length) * sizeof(float);
}

static fsdp_status allocate(plan *p, fsdp_stream *stream)
{
    const fsdp__conv2d_sizes *s = p->sizes;
    bool wide_bias = p->bias && s->dtype != FSDP_F32;
    operand *w = &p->operands[FSDP__CONV_W];
    int64_t weights = p->pass == FSDP__CONV_WEIGHT ? p->runs * p->slices : p->slices;
    size_t shared = 0, bias_at;
    char *memory;

    for (int i = 0; i < FSDP__CONV_OPERANDS; i++) {
        operand *o = &p->operands[i];

        o->packed_bytes = fsdp__native_conv_packed_bytes(p->conv, (fsdp__conv_operand)i);
        o->staged_at = take(&p->scratch_bytes, o->staged ? dense_bytes(o) : 0);
        o->packed_at = take(&p->scratch_bytes, o->packed_bytes > 0 ? o->packed_bytes : dense_bytes(o));
    }
    p->native_at = take(&p->scratch_bytes, fsdp__native_conv_scratch_bytes(p->conv));
    p->weight_bytes = 0;
    (void)take(&p->weight_bytes, w->packed_bytes > 0 ? w->packed_bytes : dense_bytes(w));
    bias_at = take(&shared, wide_bias ? (size_t)s->out * sizeof(float) : 0);
    FSDP__TRY_NEW(memory = fsdp__stream_workspace(stream, shared + (size_t)weights * p->weight_bytes +
                                                              (size_t)fsdp__threads() * p->scratch_bytes));
    if (wide_bias) {
        fsdp__widen(s->dtype, p->bias, s->out, (float *)(memory + bias_at));
        p->bias = (const float *)(memory + bias_at);
    }
    p->weights = memory + shared;
    p->scratch = p->weights + (size_t)weights * p->weight_bytes;
    return FSDP_OK;
}

/* ---- one part ---- */

static char *place(const plan *p, fsdp__conv_operand which, int64_t chunk, int64_t slice)
{
    return fsdp__at(p->sizes->dtype, p->operands[which].data,
                    chunk * p->chunk_step[which] + slice * p->slice_step[which]);
}

static char *own_scratch(const plan *p)
{
    return p->scratch + (size_t)fsdp__thread() * p->scratch_bytes;
}

/* Gives an operand of the part as oneDNN wants it, in `packed` if it cannot be used in place. */
static int fetch(const plan *p, fsdp__conv_operand which, int64_t chunk, int64_t slice, void *packed, float **out)
{
    const operand *o = &p->operands[which];
    char *from = place(p, which, chunk, slice);
    float *plain = (float *)(void *)from;

    if (o->staged) {
        plain = (float *)(void *)(o->packed_bytes > 0 ? own_scratch(p) + o->staged_at : packed);
        for (int64_t r = 0; r < o->rows; r++)
            fsdp__widen(p->sizes->dtype, fsdp__at(p->sizes->dtype, from, r * o->stride), o->length,
                        plain + r * o->length);
    }
    *out = o->packed_bytes > 0 ? packed : plain;
    return o->packed_bytes > 0 ? fsdp__native_conv_pack(p->conv, which, plain, packed) : 0;
}

static void add_rows(const plan *p, const operand *o, char *to, const float *plain)
{
    for (int64_t r = 0; r < o->rows; r++) {
        void *row = fsdp__at(p->sizes->dtype, to, r * o->stride);
        const float *from = plain + r * o->length;

        if (!p->accumulate) {
            fsdp__narrow(p->sizes->dtype, from, o->length, row);
            continue;
        }
        FSDP__EACH_FLOAT(p->sizes->dtype, T,
                         for (int64_t i = 0; i < o->length; i++)
                             fsdp__store(T, row, i, fsdp__load(T, row, i) + from[i]));
    }
}

/* Returns where oneDNN puts the result of the part. */
static float *result_place(const plan *p, int64_t chunk, int64_t slice)
{
    const operand *o = &p->operands[results[p->pass]];

    if (o->packed_bytes > 0)
        return (float *)(void *)(own_scratch(p) + o->packed_at);
    return (float *)(void *)(o->staged ? own_scratch(p) + o->staged_at : place(p, results[p->pass], chunk, slice));
}

/* Moves the result from there to where it belongs. */
static int put(const plan *p, int64_t chunk, int64_t slice, const float *result)
{
    const operand *o = &p->operands[results[p->pass]];
    char *to = place(p, results[p->pass], chunk, slice);
    const float *plain = result;

    if (o->packed_bytes > 0) {
        float *unpacked = (float *)(void *)(o->staged ? own_scratch(p) + o->staged_at : to);
        int status = fsdp__native_conv_unpack(p->conv, results[p->pass], result, unpacked);

        if (status != 0)
            return status;
        plain = unpacked;
    }
    if (o->staged)
        add_rows(p, o, to, plain);
    else if (plain != (const float *)(void *)to)
        memcpy(to, plain, dense_bytes(o)); /* a weight's gradient, which is dense */
    return 0;
}

/* FORWARD, INPUT: packs the weight of a slice, for all chunks. */
static int pack_weight(plan *p, int64_t slice)
{
    const operand *w = &p->operands[FSDP__CONV_W];
    float *unused;

    if (w->packed_bytes == 0 && !w->staged)
        return 0;
    return fetch(p, FSDP__CONV_W, 0, slice, p->weights + (size_t)slice * p->weight_bytes, &unused);
}

static int make_part(plan *p, int64_t chunk, int64_t slice)
{
    fsdp__conv_operand result = results[p->pass], given = result == FSDP__CONV_Y ? FSDP__CONV_X : FSDP__CONV_Y;
    const operand *w = &p->operands[FSDP__CONV_W];
    float *operands[FSDP__CONV_OPERANDS];
    int status;

    operands[FSDP__CONV_W] =
        (float *)(void *)(w->packed_bytes > 0 || w->staged ? p->weights + (size_t)slice * p->weight_bytes
                                                           : place(p, FSDP__CONV_W, 0, slice));
    operands[result] = result_place(p, chunk, slice);
    status = fetch(p, given, chunk, slice, own_scratch(p) + p->operands[given].packed_at, &operands[given]);
    if (status == 0)
        status =
            fsdp__native_conv_run(p->conv, operands, p->bias ? p->bias + slice * p->operands[FSDP__CONV_W].rows : NULL,
                                  own_scratch(p) + p->native_at);
    return status == 0 ? put(p, chunk, slice, operands[result]) : status;
}

/* WEIGHT: computes the sum over a run of chunks. */
static int make_run(plan *p, int64_t run, int64_t slice)
{
    float *sum = (float *)(void *)(p->weights + (size_t)(run * p->slices + slice) * p->weight_bytes);
    int64_t first = run * p->chunks / p->runs, end = (run + 1) * p->chunks / p->runs;
    int64_t floats = (int64_t)(p->weight_bytes / sizeof(float));
    char *scratch = own_scratch(p);
    float *operands[FSDP__CONV_OPERANDS];
    int status = 0;

    for (int64_t chunk = first; chunk < end && status == 0; chunk++) {
        float *more = (float *)(void *)(scratch + p->operands[FSDP__CONV_W].packed_at);

        operands[FSDP__CONV_W] = chunk == first ? sum : more;
        status = fetch(p, FSDP__CONV_X, chunk, slice, scratch + p->operands[FSDP__CONV_X].packed_at,
                       &operands[FSDP__CONV_X]);
        if (status == 0)
            status = fetch(p, FSDP__CONV_Y, chunk, slice, scratch + p->operands[FSDP__CONV_Y].packed_at,
                           &operands[FSDP__CONV_Y]);
        if (status == 0)
            status = fsdp__native_conv_run(p->conv, operands, NULL, scratch + p->native_at);
        for (int64_t i = 0; chunk > first && status == 0 && i < floats; i++)
            sum[i] += more[i];
    }
    return status;
}

/* WEIGHT: adds the runs of a slice to the first, and stores the sum. */
static int add_runs(plan *p, int64_t slice)
{
    float *sum = (float *)(void *)(p->weights + (size_t)slice * p->weight_bytes);
    int64_t floats = (int64_t)(p->weight_bytes / sizeof(float));

    for (int64_t run = 1; run < p->runs; run++) {
        const float *more = (float *)(void *)(p->weights + (size_t)(run * p->slices + slice) * p->weight_bytes);

        for (int64_t i = 0; i < floats; i++)
            sum[i] += more[i];
    }
    return put(p, 0, slice, sum);
}

/* ---- all parts ---- */

static void note(plan *p, int status)
{
    if (status != 0)
        p->status = status;
}

static void run_all(plan *p)
{
    int64_t parts = p->slices * (p->pass == FSDP__CONV_WEIGHT ? p->runs : p->chunks);

#pragma omp parallel
    {
        int before = one_thread();

        if (p->pass != FSDP__CONV_WEIGHT) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < p->slices; i++)
                note(p, pack_weight(p, i));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < parts; i++)
            if (p->status == 0)
                note(p, p->pass == FSDP__CONV_WEIGHT ? make_run(p, i / p->slices, i % p->slices)
                                                     : make_part(p, i / p->slices, i % p->slices));
        if (p->pass == FSDP__CONV_WEIGHT) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < p->slices; i++)
                if (p->status == 0)
                    note(p, add_runs(p, i));
        }
        threads_again(before);
    }
}

static fsdp_status convolve(plan *p, fsdp_stream *stream)
{
    const fsdp__conv2d_sizes *s = p->sizes;
    fsdp_status status = FSDP_OK;
    int before = one_thread();

    divide(p);
    p->status = prepare(p);
    threads_again(before);
    if (p->status == 0) {
        status = allocate(p, stream);
        if (status == FSDP_OK)
            run_all(p);
    }
    fsdp__native_conv_free(p->conv);
    if (status != FSDP_OK || p->status == 0)
        return status;
    return FSDP_FAIL(fsdp__native_conv_is_memory(p->status) ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED,
                     "oneDNN's convolution failed with status %d: input (%lld, %lld, %lld, %lld), %lld channels of "
                     "(%lld, %lld)",
                     p->status, (long long)s->batch, (long long)s->in, (long long)s->in_height, (long long)s->in_width,
                     (long long)s->out, (long long)s->kernel_height, (long long)s->kernel_width);
}

static char *address(const void *data)
{
    return (char *)(uintptr_t)data;
}

FSDP__KERNEL(conv2d_forward, k)
{
    plan p = {.pass = FSDP__CONV_FORWARD, .sizes = &k->sizes, .bias = k->bias};

    p.operands[FSDP__CONV_X].data = address(k->x);
    p.operands[FSDP__CONV_W].data = address(k->weight);
    p.operands[FSDP__CONV_Y].data = address(k->y);
    return convolve(&p, stream);
}

FSDP__KERNEL(conv2d_input, k)
{
    plan p = {.pass = FSDP__CONV_INPUT, .sizes = &k->sizes, .accumulate = k->accumulate};

    p.operands[FSDP__CONV_X].data = address(k->dx);
    p.operands[FSDP__CONV_W].data = address(k->weight);
    p.operands[FSDP__CONV_Y].data = address(k->dy);
    return convolve(&p, stream);
}

FSDP__KERNEL(conv2d_weight, k)
{
    plan p = {.pass = FSDP__CONV_WEIGHT, .sizes = &k->sizes, .accumulate = k->accumulate};

    p.operands[FSDP__CONV_X].data = address(k->x);
    p.operands[FSDP__CONV_W].data = address(k->dweight);
    p.operands[FSDP__CONV_Y].data = address(k->dy);
    return convolve(&p, stream);
}
