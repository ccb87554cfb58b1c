/* suite_coalesced.c - the coalesced collectives held to naive ones. */
#include "comm/suite_coalesced.h"

enum {
    SUITE_BLOCKS = 6
};

typedef struct suite_wholes {
    fsdp_sharded_buffer buffers[SUITE_BLOCKS];
    fsdp_memory_sharing sharing;
    bool shared;
    size_t bytes[SUITE_BLOCKS];
} suite_wholes;

/* An empty one, one smaller than most worlds, uneven ones, and one that takes several pieces through staging. */
static int64_t suite_numel(int block)
{
    static const int64_t numels[SUITE_BLOCKS] = {0, 3, 1000, 10007, 64, 200003};

    return numels[block];
}

int64_t suite_rows(const fsdp_sharded_buffer *b, int rank)
{
    int64_t left = b->numel - rank * b->chunk;

    return left < 0 ? 0 : left < b->chunk ? left : b->chunk;
}

/* Element i of parameter b: needs more bits than bf16 has. */
static float suite_weight(int b, int64_t i)
{
    return (float)((i * 31 + b * 17) % 2003 - 1000) / 7.0f;
}

/* What rank r adds to element i. */
static float suite_gradient(int r, int b, int64_t i)
{
    return (float)((i * 13 + b * 5 + r * 101) % 1999 - 999) / (float)(11 + r);
}

static void suite_put(void *buffer, int64_t i, fsdp_dtype dtype, float x)
{
    if (dtype == FSDP_F32)
        ((float *)buffer)[i] = x;
    else
        ((uint16_t *)buffer)[i] = suite_bf16(x);
}

static float suite_widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static float suite_get(const void *buffer, int64_t i, fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? ((const float *)buffer)[i] : suite_widen(((const uint16_t *)buffer)[i]);
}

static void suite_wholes_make(fsdp_process_group *group, suite_memory memory, fsdp_dtype dtype, fsdp_dtype shard_dtype,
                              suite_wholes *out)
{
    int size = fsdp_process_group_size(group), rank = fsdp_process_group_rank(group);

    out->sharing = memory == SUITE_SHARED ? FSDP_MEMORY_SHARED : FSDP_MEMORY_SYMMETRIC;
    out->shared = memory != SUITE_PRIVATE && !(memory == SUITE_MIXED && rank == size - 1) &&
                  fsdp_process_group_can_share(group, out->sharing);
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        fsdp_sharded_buffer *block = &out->buffers[b];

        block->numel = suite_numel(b);
        block->chunk = (block->numel + size - 1) / size;
        block->unsharded_dtype = dtype;
        block->shard_dtype = shard_dtype;
        out->bytes[b] = (size_t)block->numel * fsdp_dtype_size(dtype);
        if (out->shared)
            CHECK_OK(fsdp_process_group_alloc(group, out->sharing, out->bytes[b], &block->unsharded));
        else
            block->unsharded = malloc(out->bytes[b] + 1);
        CHECK(block->unsharded != NULL);
        if (memory != SUITE_SHARED)
            memset(block->unsharded, 0xcc, out->bytes[b]);
    }
}

static void suite_wholes_free(fsdp_process_group *group, suite_wholes *w)
{
    CHECK_OK(fsdp_barrier(group)); /* peers are through with it */
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        if (w->shared)
            fsdp_process_group_free_memory(group, w->sharing, w->buffers[b].unsharded, w->bytes[b]);
        else
            free(w->buffers[b].unsharded);
    }
}

void suite_gather_blocks(const suite *s, suite_memory memory, fsdp_dtype shard_dtype, fsdp_dtype unsharded_dtype,
                         bool in_place)
{
    int rank = fsdp_process_group_rank(s->group);
    size_t element = fsdp_dtype_size(unsharded_dtype);
    suite_wholes w = {0};

    suite_wholes_make(s->group, memory, unsharded_dtype, shard_dtype, &w);
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        fsdp_sharded_buffer *block = &w.buffers[b];
        int64_t rows = suite_rows(block, rank), start = rank * block->chunk;

        block->shard = rows == 0  ? NULL
                       : in_place ? (char *)block->unsharded + (size_t)start * element
                                  : malloc((size_t)rows * fsdp_dtype_size(shard_dtype));
        for (int64_t i = 0; i < rows; i++)
            suite_put(block->shard, i, shard_dtype, suite_weight(b, start + i));
    }
    CHECK_OK(fsdp_all_gather_coalesced(s->group, w.buffers, SUITE_BLOCKS, s->stream));
    suite_sync(s);
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        for (int64_t i = 0; i < w.buffers[b].numel; i++) {
            float shard = suite_weight(b, i);
            float rounded =
                shard_dtype == FSDP_BF16 || unsharded_dtype == FSDP_BF16 ? suite_widen(suite_bf16(shard)) : shard;
            if (suite_get(w.buffers[b].unsharded, i, unsharded_dtype) != rounded)
                TEST_FAIL("block %d, element %lld: %g, expected %g", b, (long long)i,
                          (double)suite_get(w.buffers[b].unsharded, i, unsharded_dtype), (double)rounded);
        }
        if (!in_place)
            free(w.buffers[b].shard);
    }
    suite_wholes_free(s->group, &w);
}

typedef struct suite_reduction {
    fsdp_dtype unsharded_dtype, reduce_dtype, shard_dtype;
    fsdp_reduce_options options;
} suite_reduction;

static float suite_expected_sum(int size, int b, int64_t i, const suite_reduction *reduction)
{
    const fsdp_reduce_options *o = &reduction->options;
    float divisor = o->divisor == 0 ? 1 : o->divisor;
    suite_sum sum = {.ranks = size,
                     .dtype = reduction->reduce_dtype ? reduction->reduce_dtype : reduction->unsharded_dtype};

    for (int r = 0; r < size; r++) {
        float x = suite_gradient(r, b, i);
        if (reduction->unsharded_dtype == FSDP_BF16 || reduction->reduce_dtype == FSDP_BF16)
            x = suite_widen(suite_bf16(x));
        suite_sum_add(&sum, r, x);
    }
    suite_sum_end(&sum);
    sum.value /= o->op == FSDP_AVG ? divisor * (float)size : divisor;
    return o->accumulate ? 2.0f + sum.value : sum.value;
}

static void suite_check_rows(int size, int rank, int b, const fsdp_sharded_buffer *block, const suite_reduction *o)
{
    for (int64_t i = 0; i < suite_rows(block, rank); i++) {
        float expected = suite_expected_sum(size, b, rank * block->chunk + i, o);
        float actual = suite_get(block->shard, i, o->shard_dtype);

        if (o->shard_dtype == FSDP_BF16)
            expected = suite_widen(suite_bf16(expected));
        if (actual != expected)
            TEST_FAIL("block %d, row %lld: %.9g, expected %.9g", b, (long long)i, (double)actual, (double)expected);
    }
}

/* The bits of sum, division and one rounding: `bits` are the caller's to free. `check`: whether they are what they
 * should be, which is more work than to compare them with those of another path. */
static void suite_reduce_blocks(const suite *s, suite_memory memory, const suite_reduction *o, bool check, void **bits,
                                size_t *bits_bytes)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t element = fsdp_dtype_size(o->shard_dtype), used = 0;
    suite_wholes w = {0};

    suite_wholes_make(s->group, memory, o->unsharded_dtype, o->shard_dtype, &w);
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        fsdp_sharded_buffer *block = &w.buffers[b];
        int64_t rows = suite_rows(block, rank);

        block->reduce_dtype = o->reduce_dtype;
        for (int64_t i = 0; i < block->numel; i++)
            suite_put(block->unsharded, i, o->unsharded_dtype, suite_gradient(rank, b, i));
        block->shard = rows ? malloc((size_t)rows * element) : NULL;
        for (int64_t i = 0; i < rows; i++)
            suite_put(block->shard, i, o->shard_dtype, o->options.accumulate ? 2.0f : 1e30f);
    }
    CHECK_OK(fsdp_reduce_scatter_coalesced(s->group, w.buffers, SUITE_BLOCKS, &o->options, s->stream));
    suite_sync(s);
    *bits = malloc(1 << 20);
    for (int b = 0; b < SUITE_BLOCKS; b++) {
        fsdp_sharded_buffer *block = &w.buffers[b];
        int64_t rows = suite_rows(block, rank);

        if (check)
            suite_check_rows(size, rank, b, block, o);
        memcpy((char *)*bits + used, block->shard ? block->shard : "", (size_t)rows * element);
        used += (size_t)rows * element;
        free(block->shard);
    }
    *bits_bytes = used;
    suite_wholes_free(s->group, &w);
}

static void suite_reduce_blocks_all_paths(const suite *s, const suite_reduction *o)
{
    void *first = NULL, *bits;
    size_t first_bytes = 0, bytes;

    for (int path = 0; path < 4; path++) {
        suite_memory memory = path == 3 ? SUITE_SYMMETRIC : (suite_memory)path;

        fsdp_process_group_force_copy(s->group, path == 3);
        suite_reduce_blocks(s, memory, o, path == 0, &bits, &bytes);
        fsdp_process_group_force_copy(s->group, false);
        if (!first) {
            first = bits;
            first_bytes = bytes;
            continue;
        }
        CHECK_EQ(bytes, first_bytes);
        CHECK_BYTES(bits, first, bytes);
        free(bits);
    }
    free(first);
}

void suite_blocks(const suite *s)
{
    static const suite_reduction reductions[] = {
        {FSDP_F32, FSDP_DTYPE_NONE, FSDP_F32, {.op = FSDP_AVG}},
        {FSDP_F32, FSDP_DTYPE_NONE, FSDP_F32, {.op = FSDP_SUM, .divisor = 8, .accumulate = true}},
        {FSDP_BF16, FSDP_F32, FSDP_F32, {.op = FSDP_AVG}},
        {FSDP_F32, FSDP_BF16, FSDP_F32, {.op = FSDP_AVG, .divisor = 3}},
        {FSDP_F32, FSDP_DTYPE_NONE, FSDP_F32, {.op = FSDP_AVG, .divisor = 0.7f, .accumulate = true}},
        {FSDP_BF16, FSDP_DTYPE_NONE, FSDP_BF16, {.op = FSDP_SUM}},
    };
    size_t every = test_long() ? 1 : test_brief() ? 4 : 2;

    for (int memory = SUITE_PRIVATE; memory <= SUITE_SHARED; memory++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_process_group_force_copy(s->group, copy);
            suite_gather_blocks(s, (suite_memory)memory, FSDP_F32, FSDP_F32, false);
            suite_gather_blocks(s, (suite_memory)memory, FSDP_F32, FSDP_F32, true);
            suite_gather_blocks(s, (suite_memory)memory, FSDP_F32, FSDP_BF16, false);
            suite_gather_blocks(s, (suite_memory)memory, FSDP_BF16, FSDP_F32, false);
        }
    fsdp_process_group_force_copy(s->group, false);
    /* But for `make test-long` groups of an even size make half of them, and groups of an odd size the other half. */
    for (size_t i = test_long() ? 0 : (size_t)fsdp_process_group_size(s->group) % 2;
         i < sizeof reductions / sizeof *reductions; i += every)
        suite_reduce_blocks_all_paths(s, &reductions[i]);
    CHECK_OK(fsdp_all_gather_coalesced(s->group, NULL, 0, s->stream));
    suite_sync(s);
}
