/* Attention of a CUDA device, compiled for the host (cudash), at the sizes that its tiles, panels and copies know. */
#include "backend/cuda/kernels_table.h"
#include "base/compiler.h"
#include "oracle/cases.h"

#include <math.h>

static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

enum {
    MOST_KEYS = 200 /* of tests of the backward */
};

typedef struct sizes {
    int64_t batch, q_time, kv_time, heads, kv_heads, head_dim;
    bool causal;
    int64_t window, document; /* the length of all documents but the last; 0: none */
    float softcap;
    int64_t lead;
} sizes;

static const oracle_table table = {
    .name = "cudash", .kernels = fsdp__cuda_kernels, .most_threads = 1, .rounds_factors = true};

static int32_t *positions_of(test_case *c, const sizes *s)
{
    int32_t *positions = an_input(c, FSDP_I32, s->batch * s->q_time, 0.0, 0.0);

    for (int64_t i = 0; i < s->batch * s->q_time; i++)
        positions[i] = (int32_t)(i % s->q_time % s->document);
    return positions;
}

/* Makes contiguous q, k and v, but for `gap` elements between rows. A scale of 0 is the usual one. */
static fsdp__attention_forward_args lay_out(test_case *c, const sizes *s, int64_t gap, float scale)
{
    int64_t d = s->head_dim, q_row = s->heads * d + gap, k_row = s->kv_heads * d + gap;
    fsdp__attention_forward_args a = {.batch = s->batch,
                                      .q_time = s->q_time,
                                      .kv_time = s->kv_time,
                                      .heads = s->heads,
                                      .kv_heads = s->kv_heads,
                                      .head_dim = d,
                                      .scale = scale != 0.0f ? scale : 1.0f / sqrtf((float)d),
                                      .causal = s->causal,
                                      .dtype = c->dtype,
                                      .softcap = s->softcap,
                                      .window = s->window,
                                      .lead = s->lead};

    a.q_head = a.k_head = a.v_head = a.out_head = d;
    a.q_stride_time = a.out_stride_time = q_row, a.k_stride_time = a.v_stride_time = k_row;
    a.q_batch = a.out_batch = s->q_time * q_row, a.k_batch = a.v_batch = s->kv_time * k_row;
    a.q = an_input(c, c->dtype, s->batch * a.q_batch, -2.0, 2.0);
    a.k = an_input(c, c->dtype, s->batch * a.k_batch, -2.0, 2.0);
    a.v = an_input(c, c->dtype, s->batch * a.v_batch, -2.0, 2.0);
    a.positions = s->document > 0 ? positions_of(c, s) : NULL;
    return a;
}

static test_case begin(fsdp_stream *stream, fsdp_dtype dtype, fsdp__kernel kernel)
{
    return (test_case){
        .stream = stream, .tables = &table, .table_count = 1, .key = 7, .dtype = dtype, .kernel = kernel};
}

/* Holds both directions to the oracle. */
static void hold(const sizes *s, fsdp_dtype dtype, int64_t gap, float scale)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context)));
    test_case forward = begin(stream, dtype, FSDP__KERNEL_ATTENTION_FORWARD);
    test_case backward = begin(stream, dtype, FSDP__KERNEL_ATTENTION_BACKWARD);

    attention_forward_of(&forward, lay_out(&forward, s, gap, scale));
    if (s->kv_time <= MOST_KEYS) /* the backward knows nothing of panels */
        attention_backward_of(&backward, lay_out(&backward, s, gap, scale));
    fsdp_context_free(context);
}

/* Holds each in one dtype; in a brief test every fourth in one of them, another one each. */
static void hold_all(const sizes *list, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < FSDP__COUNT_OF(types); t++)
            if (test_long() || (test_brief() ? i % 4 == 0 && t == i / 4 % FSDP__COUNT_OF(types) : (i + t) % 3 == 0))
                hold(&list[i], types[t], i % 2, scale);
}

TEST(every_multiple_of_8_is_a_head_dimension)
{
    for (int64_t d = 8; d <= 128; d += test_brief() ? 120 : 8) {
        sizes s = {1, 20, 70, 1, 1, d, .causal = d % 32 != 0};
        for (int64_t gap = 0; gap < 2; gap++)
            if (test_long() || d / 8 % 2 == gap)
                hold(&s, d / 16 % 2 ? FSDP_BF16 : FSDP_F16, gap, 0.0f);
    }
}

TEST(long_sequences_span_many_tiles_of_both_sides)
{
    static const sizes list[] = {{1, 140, 150, 1, 1, 64, .causal = true},
                                 {1, 33, 200, 1, 1, 128, .causal = true},
                                 {1, 140, 40, 1, 1, 32, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

TEST(query_heads_share_key_heads)
{
    static const sizes list[] = {{2, 10, 10, 8, 1, 64, .causal = true},
                                 {1, 9, 40, 8, 2, 16, .causal = true},
                                 {1, 40, 30, 4, 4, 96, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

TEST(wide_heads_are_cut_into_columns)
{
    static const sizes list[] = {{1, 20, 70, 2, 1, 136, .causal = true}, {1, 70, 20, 1, 1, 260, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

TEST(one_query_reads_panels_of_keys)
{
    static const sizes list[] = {{2, 1, 1, 2, 1, 64, .causal = true},     {1, 1, 256, 2, 1, 64, .causal = true},
                                 {3, 1, 257, 4, 2, 128, .causal = false}, {1, 1, 700, 8, 1, 33, .causal = false},
                                 {1, 1, 520, 1, 1, 200, .causal = true},  {2, 1, 300, 2, 2, 8, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

/* Tiles have 32 and 64 rows. */
TEST(windows_and_documents_begin_and_end_anywhere_in_a_tile)
{
    static const sizes list[] = {
        {1, 140, 140, 1, 1, 64, true, .window = 1},
        {1, 130, 190, 2, 1, 32, true, .window = 63},
        {1, 130, 190, 1, 1, 128, true, .window = 64},
        {1, 140, 140, 1, 1, 96, true, .window = 65},
        {1, 60, 60, 1, 1, 16, true, .window = 500},
        {2, 140, 140, 2, 2, 64, true, .document = 1},
        {1, 140, 140, 1, 1, 32, true, .document = 32},
        {1, 180, 180, 2, 1, 128, true, .document = 65},
        {1, 150, 150, 1, 1, 96, true, .document = 63, .window = 20, .softcap = 5},
        {1, 70, 70, 2, 1, 136, true, .document = 50, .window = 40},
        {1, 70, 90, 1, 1, 64, false, .softcap = 3},
        {2, 1, 600, 2, 1, 64, true, .window = 257, .softcap = 4},
        {2, 1, 300, 2, 2, 33, true, .window = 7},
    };

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

/* Keys that lie before those of the queries: some queries see all of them, some none. */
TEST(keys_may_be_those_of_earlier_places)
{
    static const sizes list[] = {
        {1, 70, 70, 2, 1, 64, true, .lead = 30},
        {1, 140, 140, 1, 1, 32, true, .lead = 140, .window = 170},
        {2, 40, 40, 2, 2, 128, true, .lead = 80, .window = 90},
        {1, 130, 130, 1, 1, 96, true, .lead = 130, .window = 131},
        {1, 90, 90, 2, 1, 16, true, .lead = 200, .window = 120},
        {1, 70, 70, 1, 1, 64, true, .lead = 35, .document = 100},
        {1, 60, 60, 2, 1, 136, true, .lead = 20, .document = 40, .window = 33, .softcap = 3},
        {1, 5, 5, 1, 1, 8, true, .lead = 5, .window = 3},
    };

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

TEST(a_query_without_keys_gives_zeros)
{
    static const sizes list[] = {{1, 90, 20, 2, 1, 16, .causal = true},
                                 {1, 3, 0, 2, 1, 16, .causal = false},
                                 {1, 1, 0, 2, 1, 16, .causal = false},
                                 {1, 0, 5, 2, 1, 16, .causal = false},
                                 {0, 5, 5, 2, 1, 16, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), 0.0f);
}

TEST(a_scale_may_be_negative_or_large)
{
    static const sizes list[] = {{1, 40, 70, 1, 1, 64, .causal = true}, {1, 70, 40, 1, 1, 16, .causal = false}};

    hold_all(list, FSDP__COUNT_OF(list), -0.2f);
    hold_all(list, FSDP__COUNT_OF(list), 0.3f);
}

/* Row t of the output of one head has a NaN, or has none. */
static bool row_has_nan(const fsdp__attention_forward_args *a, int64_t t)
{
    int64_t found = 0;

    for (int64_t d = 0; d < a->head_dim; d++)
        found += isnan(oracle_get(a->dtype, a->out, t * a->out_stride_time + d));
    CHECK(found == 0 || found == a->head_dim);
    return found > 0;
}

TEST(a_nan_reaches_all_who_see_it_and_nobody_else)
{
    static const sizes list[] = {{1, 80, 80, 1, 1, 64, .causal = true}, {1, 1, 300, 1, 1, 64, .causal = true}};
    fsdp_context *context = test_context();

    for (size_t i = 0; i < FSDP__COUNT_OF(list); i++)
        for (size_t t = 0; t < FSDP__COUNT_OF(types); t++) {
            fsdp__kernel kernel = FSDP__KERNEL_ATTENTION_FORWARD;
            test_case c = begin(fsdp_device_stream(CHECK_PTR(fsdp_cpu(context))), types[t], kernel);
            fsdp__attention_forward_args a = lay_out(&c, &list[i], 0, 0.0f);
            int64_t key = 66, seen_by = a.q_time == 1 ? 0 : key;
            a.out = an_output(&c, c.dtype, a.out_batch, 0.0, 0.0);
            a.lse = an_output(&c, FSDP_F32, a.q_time, 0.0, 0.0);
            oracle_put(c.dtype, (void *)(uintptr_t)a.k, key * a.k_stride_time + 5, NAN);
            CHECK_OK(fsdp__cuda_kernels[kernel](c.stream, &a));
            for (int64_t q = 0; q < a.q_time; q++) {
                CHECK(row_has_nan(&a, q) == (q >= seen_by));
                CHECK((isnan(a.lse[q]) != 0) == (q >= seen_by));
            }
            free_case(&c);
        }
    fsdp_context_free(context);
}
