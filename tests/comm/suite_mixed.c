/* suite_mixed.c - drawn calls against naive results, element by element. */
#include "comm/suite_mixed.h"

#include "comm/group_calls.h"
#include "device/device.h"
#include "oracle/oracle.h"

enum {
    MOST = 6, /* buffers */
    RANKS = 8
};

typedef struct mixed {
    const suite *s;
    int size, rank;
    uint64_t seed, draws;
    suite_memory memory;
    int64_t count, rows[MOST], inner[MOST];
    bool adds[MOST][RANKS];
    fsdp_sharded_buffer buffers[MOST];
    fsdp_reduce_options options;
} mixed;

/* ---- drawing ---- */

static uint64_t mixed_hash(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int64_t mixed_below(mixed *m, int64_t end)
{
    return (int64_t)(mixed_hash(m->seed * 0x9e3779b97f4a7c15u + ++m->draws) % (uint64_t)end);
}

/* What rank `rank` holds: in its shard (before a gather, before a reduction) or in its gradient. */
static double mixed_value(const mixed *m, int what, int rank, int64_t buffer, int64_t i)
{
    uint64_t x = m->seed * 1009 + (uint64_t)(what * 101 + rank * 11 + buffer);

    return (double)((int64_t)(mixed_hash(x * 0x9e3779b97f4a7c15u + (uint64_t)i) % 4001) - 2000) / 48.0;
}

static void mixed_draw_buffer(mixed *m, int64_t i)
{
    static const fsdp_dtype floating[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const int64_t outers[] = {0, 1, 1, 3, 20}, inners[] = {1, 1, 3, 64, 201};
    fsdp_sharded_buffer *b = &m->buffers[i];

    m->rows[i] = mixed_below(m, 4) == 0 ? mixed_below(m, 3) : mixed_below(m, 40);
    m->inner[i] = inners[mixed_below(m, 5)];
    b->outer = outers[mixed_below(m, 5)];
    b->numel = m->rows[i] * m->inner[i];
    b->chunk = (m->rows[i] + m->size - 1) / m->size * m->inner[i];
    b->unsharded_dtype = floating[mixed_below(m, 3)];
    b->shard_dtype = floating[mixed_below(m, 3)];
    b->reduce_dtype = mixed_below(m, 4) == 0 ? FSDP_DTYPE_NONE : floating[mixed_below(m, 3)];
    for (int r = 0, none = mixed_below(m, 4) == 0; r < RANKS; r++)
        m->adds[i][r] = !none && mixed_below(m, 3) > 0;
}

static mixed mixed_draw(const suite *s, uint64_t seed)
{
    mixed m = {
        .s = s, .size = fsdp_process_group_size(s->group), .rank = fsdp_process_group_rank(s->group), .seed = seed};
    bool all = mixed_below(&m, 3) == 0, none = mixed_below(&m, 6) == 0;
    bool on_host = fsdp__device_host_access(fsdp__stream_device(s->stream));

    CHECK(m.size <= RANKS);
    m.memory = on_host ? (suite_memory)mixed_below(&m, 3) : SUITE_PRIVATE;
    m.count = 1 + mixed_below(&m, MOST);
    for (int64_t i = 0; i < m.count; i++) {
        mixed_draw_buffer(&m, i);
        for (int r = 0; r < RANKS; r++)
            m.adds[i][r] = !none && (all || m.adds[i][r]);
    }
    m.options = (fsdp_reduce_options){.op = mixed_below(&m, 2) ? FSDP_AVG : FSDP_SUM,
                                      .predivide = mixed_below(&m, 3) ? 0.0f : 4.0f,
                                      .divisor = mixed_below(&m, 2) ? 0.0f : 0.7f,
                                      .accumulate = mixed_below(&m, 2)};
    return m;
}

/* ---- whose element lies where ---- */

static int64_t mixed_runs(const mixed *m, int64_t i)
{
    return m->buffers[i].outer > 1 ? m->buffers[i].outer : 1;
}

static int64_t mixed_chunk_rows(const mixed *m, int64_t i)
{
    return (m->rows[i] + m->size - 1) / m->size;
}

static int64_t mixed_rows_of(const mixed *m, int64_t i, int rank)
{
    int64_t c = mixed_chunk_rows(m, i), left = m->rows[i] - rank * c;

    return left < 0 ? 0 : left < c ? left : c;
}

static int64_t mixed_part(const mixed *m, int64_t i, int rank)
{
    return mixed_runs(m, i) * mixed_rows_of(m, i, rank) * m->inner[i];
}

/* Element k of the rank's part, in the unsharded buffer. */
static int64_t mixed_index(const mixed *m, int64_t i, int rank, int64_t k)
{
    int64_t in = k % m->inner[i], row = k / m->inner[i] % mixed_rows_of(m, i, rank),
            run = k / m->inner[i] / mixed_rows_of(m, i, rank);

    return (run * m->rows[i] + rank * mixed_chunk_rows(m, i) + row) * m->inner[i] + in;
}

/* ---- memory ---- */

static size_t mixed_bytes(int64_t numel, fsdp_dtype dtype)
{
    return (size_t)numel * fsdp_dtype_size(dtype) + 1;
}

/* Whether this rank's unsharded buffers are memory that peers see. */
static bool mixed_is_shown(const mixed *m)
{
    return m->memory != SUITE_PRIVATE && !(m->memory == SUITE_MIXED && m->rank == m->size - 1) &&
           fsdp_process_group_can_share(m->s->group, FSDP_MEMORY_SYMMETRIC);
}

static void *mixed_alloc(const mixed *m, bool shown, size_t bytes)
{
    void *data = NULL;

    if (shown)
        CHECK_OK(fsdp_process_group_alloc(m->s->group, FSDP_MEMORY_SYMMETRIC, bytes, &data));
    else
        CHECK_OK(fsdp__device_alloc(fsdp__stream_device(m->s->stream), bytes, FSDP_MEMORY_ACTIVATION, &data));
    return data;
}

static void mixed_free(const mixed *m, bool shown, void *data, size_t bytes)
{
    if (shown)
        fsdp_process_group_free_memory(m->s->group, FSDP_MEMORY_SYMMETRIC, data, bytes);
    else
        fsdp__device_free(fsdp__stream_device(m->s->stream), data, bytes, FSDP_MEMORY_ACTIVATION);
}

static void mixed_write(const mixed *m, void *data, const void *host, size_t bytes)
{
    CHECK_OK(fsdp__copy_to_device(m->s->stream, data, host, bytes));
}

static void *mixed_read(const mixed *m, const void *data, size_t bytes)
{
    void *host = CHECK_PTR(calloc(1, bytes));

    CHECK_OK(fsdp__copy_to_host(m->s->stream, host, data, bytes));
    CHECK_OK(fsdp_stream_synchronize(m->s->stream));
    return host;
}

/* Memory of `numel` elements with the rank's values. */
static void *mixed_filled(const mixed *m, int what, int64_t i, int64_t numel, fsdp_dtype dtype, bool shown)
{
    size_t bytes = mixed_bytes(numel, dtype);
    void *host = CHECK_PTR(calloc(1, bytes)), *data = mixed_alloc(m, shown, bytes);

    for (int64_t k = 0; k < numel; k++)
        oracle_put(dtype, host, k, mixed_value(m, what, m->rank, i, k));
    mixed_write(m, data, host, bytes);
    CHECK_OK(fsdp_stream_synchronize(m->s->stream));
    free(host);
    return data;
}

/* ---- gather ---- */

static void mixed_check_gathered(const mixed *m, int64_t i)
{
    const fsdp_sharded_buffer *b = &m->buffers[i];
    void *whole = mixed_read(m, b->unsharded, mixed_bytes(mixed_runs(m, i) * b->numel, b->unsharded_dtype));

    for (int r = 0; r < m->size; r++)
        for (int64_t k = 0; k < mixed_part(m, i, r); k++) {
            double shard = oracle_round(b->shard_dtype, mixed_value(m, 0, r, i, k));
            double actual = oracle_get(b->unsharded_dtype, whole, mixed_index(m, i, r, k));

            if (actual != oracle_round(b->unsharded_dtype, shard))
                TEST_FAIL("case %llu, buffer %lld, element %lld of rank %d: %g, expected %g",
                          (unsigned long long)m->seed, (long long)i, (long long)k, r, actual, shard);
        }
    free(whole);
}

static void mixed_gather(mixed *m)
{
    for (int64_t i = 0; i < m->count; i++) {
        fsdp_sharded_buffer *b = &m->buffers[i];
        int64_t numel = mixed_runs(m, i) * b->numel;

        b->shard = mixed_filled(m, 0, i, mixed_part(m, i, m->rank), b->shard_dtype, false);
        b->unsharded = mixed_alloc(m, mixed_is_shown(m), mixed_bytes(numel, b->unsharded_dtype));
    }
    CHECK_OK(fsdp_all_gather_coalesced(m->s->group, m->buffers, m->count, m->s->stream));
    suite_sync(m->s);
    for (int64_t i = 0; i < m->count; i++)
        mixed_check_gathered(m, i);
    CHECK_OK(fsdp_barrier(m->s->group)); /* peers are through with it */
    for (int64_t i = 0; i < m->count; i++) {
        fsdp_sharded_buffer *b = &m->buffers[i];

        mixed_free(m, false, b->shard, mixed_bytes(mixed_part(m, i, m->rank), b->shard_dtype));
        mixed_free(m, mixed_is_shown(m), b->unsharded, mixed_bytes(mixed_runs(m, i) * b->numel, b->unsharded_dtype));
    }
}

/* ---- reduce ---- */

static bool mixed_any_adds(const mixed *m, int64_t i)
{
    bool any = false;

    for (int r = 0; r < m->size; r++)
        any = any || m->adds[i][r];
    return any;
}

static double mixed_expected(const mixed *m, int64_t i, int64_t k)
{
    const fsdp_sharded_buffer *b = &m->buffers[i];
    const fsdp_reduce_options *o = &m->options;
    fsdp_dtype wire = b->reduce_dtype ? b->reduce_dtype : b->unsharded_dtype;
    float old = (float)oracle_round(b->shard_dtype, mixed_value(m, 1, m->rank, i, k));
    float divisor = (o->divisor ? o->divisor : 1.0f) * (o->op == FSDP_AVG ? (float)m->size : 1.0f);
    suite_sum sum = {.ranks = m->size, .dtype = wire};

    for (int r = 0; r < m->size; r++) {
        float x = (float)oracle_round(b->unsharded_dtype, mixed_value(m, 2, r, i, mixed_index(m, i, m->rank, k)));

        if (m->adds[i][r])
            suite_sum_add(&sum, r, (float)oracle_round(wire, (double)(x / (o->predivide ? o->predivide : 1.0f))));
    }
    suite_sum_end(&sum);
    sum.value /= divisor;
    return !sum.any ? (double)old : oracle_round(b->shard_dtype, (double)(o->accumulate ? old + sum.value : sum.value));
}

static void mixed_check_reduced(const mixed *m, int64_t i)
{
    const fsdp_sharded_buffer *b = &m->buffers[i];
    int64_t part = mixed_part(m, i, m->rank);
    void *shard = mixed_read(m, b->shard, mixed_bytes(part, b->shard_dtype));

    for (int64_t k = 0; k < part; k++) {
        double actual = oracle_get(b->shard_dtype, shard, k), expected = mixed_expected(m, i, k);

        if (actual != expected)
            TEST_FAIL("case %llu, buffer %lld, element %lld: %.9g, expected %.9g", (unsigned long long)m->seed,
                      (long long)i, (long long)k, actual, expected);
    }
    free(shard);
}

/* Only what somebody contributed to is sent, and counted in its reduce dtype. */
static void mixed_check_counted(const mixed *m, const fsdp_comm_stats *before, const uint8_t *contributed)
{
    fsdp_comm_stats after;
    int64_t bytes = 0;
    bool any = false;

    fsdp_process_group_stats(m->s->group, &after);
    for (int64_t i = 0; i < m->count; i++) {
        const fsdp_sharded_buffer *b = &m->buffers[i];
        fsdp_dtype wire = b->reduce_dtype ? b->reduce_dtype : b->unsharded_dtype;

        CHECK_EQ(contributed[i], mixed_any_adds(m, i));
        any = any || contributed[i];
        if (contributed[i])
            bytes += (m->size - 1) * mixed_runs(m, i) * b->chunk * (int64_t)fsdp_dtype_size(wire);
    }
    CHECK_EQ(after.calls[FSDP_REDUCE_SCATTER] - before->calls[FSDP_REDUCE_SCATTER], any && m->size > 1);
    CHECK_EQ(after.bytes_sent[FSDP_REDUCE_SCATTER] - before->bytes_sent[FSDP_REDUCE_SCATTER], bytes);
}

static void mixed_reduce(mixed *m)
{
    uint8_t contributed[MOST] = {0};
    fsdp_comm_stats before;

    for (int64_t i = 0; i < m->count; i++) {
        fsdp_sharded_buffer *b = &m->buffers[i];
        int64_t numel = mixed_runs(m, i) * b->numel;

        b->shard = mixed_filled(m, 1, i, mixed_part(m, i, m->rank), b->shard_dtype, false);
        b->unsharded = m->adds[i][m->rank] ? mixed_filled(m, 2, i, numel, b->unsharded_dtype, mixed_is_shown(m)) : NULL;
    }
    fsdp_process_group_stats(m->s->group, &before);
    m->options.contributed = contributed;
    CHECK_OK(fsdp_reduce_scatter_coalesced(m->s->group, m->buffers, m->count, &m->options, m->s->stream));
    suite_sync(m->s);
    mixed_check_counted(m, &before, contributed);
    for (int64_t i = 0; i < m->count; i++)
        mixed_check_reduced(m, i);
    CHECK_OK(fsdp_barrier(m->s->group)); /* peers are through with it */
    for (int64_t i = 0; i < m->count; i++) {
        fsdp_sharded_buffer *b = &m->buffers[i];

        mixed_free(m, false, b->shard, mixed_bytes(mixed_part(m, i, m->rank), b->shard_dtype));
        if (b->unsharded)
            mixed_free(m, mixed_is_shown(m), b->unsharded,
                       mixed_bytes(mixed_runs(m, i) * b->numel, b->unsharded_dtype));
    }
}

void suite_mixed(const suite *s, uint64_t first, int count)
{
    for (int i = 0; i < count; i++) {
        mixed m = mixed_draw(s, first + (uint64_t)i);

        mixed_gather(&m);
        mixed_reduce(&m);
        fsdp_process_group_force_copy(s->group, true);
        mixed_reduce(&m);
        fsdp_process_group_force_copy(s->group, false);
    }
}
