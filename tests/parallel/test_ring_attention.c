/* Attention of sequences that are cut over ranks: results and gradients are those of one rank. */
#include "device/device.h"
#include "fsdp/ops.h"
#include "parallel/plan.h"
#include "parallel/world_gradient.h"
#include "tensor/tensor.h"

enum {
    BATCH = 2,
    DIM = 4,
    MAX_LENGTH = 64,
    MAX_NUMEL = 4096
};

typedef struct setting {
    int ranks;
    int64_t chunk, heads, kv_heads;
    fsdp_dtype dtype;
    fsdp_attention_options options;
    double tolerance;
    int64_t document; /* tokens of each document; 0: there are none */
    bool beside;      /* what travels has a side stream */
} setting;

static int64_t length_of(const setting *s)
{
    return 2 * s->ranks * s->chunk;
}

static fsdp_tensor *leaf(fsdp_context *context, const setting *s, int64_t heads, uint64_t seed)
{
    return world_leaf(context, s->dtype, FSDP_SHAPE(BATCH, length_of(s), heads, DIM), seed);
}

/* This rank's chunks of x (B,T,H,D). */
static fsdp_tensor *mine(fsdp_context *context, const setting *s, fsdp_tensor *x)
{
    int64_t r = fsdp_context_rank(context);
    fsdp_tensor *const chunks[] = {fsdp_slice(x, 1, r * s->chunk, s->chunk),
                                   fsdp_slice(x, 1, (2 * s->ranks - 1 - r) * s->chunk, s->chunk)};

    return CHECK_PTR(fsdp_concat(chunks, 2, 1));
}

static void compare(const setting *s, fsdp_tensor *got, fsdp_tensor *want)
{
    float a[MAX_NUMEL], b[MAX_NUMEL];

    CHECK_PTR(got);
    CHECK_PTR(want);
    CHECK_EQ(fsdp_tensor_numel(got), fsdp_tensor_numel(want));
    CHECK_OK(fsdp_tensor_read(got, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(want, FSDP_F32, b));
    CHECK_CLOSE(a, b, fsdp_tensor_numel(got), s->tolerance, s->tolerance);
}

/* Positions in documents (B,T) of a sequence's tokens; the rows' documents begin at other places. */
static fsdp_tensor *documents(fsdp_context *context, const setting *s)
{
    int64_t length = length_of(s);
    int32_t values[BATCH * MAX_LENGTH];

    for (int64_t i = 0; i < BATCH * length; i++)
        values[i] = i % length == 0 || (i % length + i / length) % s->document == 0 ? 0 : values[i - 1] + 1;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, length), values));
}

/* The side stream is the caller's. */
static fsdp_tensor *over_ranks(const setting *s, fsdp_tensor *const *x, const fsdp_attention_options *options,
                               fsdp__side_stream **side)
{
    fsdp_device *device = fsdp_tensor_device(x[0]);
    fsdp_process_group *world = fsdp_world(fsdp_device_context(device));

    if (!s->beside)
        return fsdp_parallel_attention(x[0], x[1], x[2], options, world);
    CHECK_OK(fsdp__side_stream_open(side, device));
    return fsdp__attention_over_ranks(x[0], x[1], x[2], options, world, *side);
}

/* Runs both, on the same leaves, with the same gradient of the result. */
static void check_same(fsdp_context *context, void *arg)
{
    const setting *s = arg;
    fsdp_tensor *x[3], *part[3], *whole, *cut, *weights;
    fsdp_attention_options options[2] = {s->options, s->options};

    CHECK_OK(fsdp_scope_begin(context));
    if (s->document > 0) {
        options[0].positions = documents(context, s);
        options[1].positions = mine(context, s, options[0].positions);
    }
    for (int i = 0; i < 3; i++) {
        x[i] = leaf(context, s, i == 0 ? s->heads : s->kv_heads, (uint64_t)i + 1);
        part[i] = CHECK_PTR(fsdp_detach(mine(context, s, x[i])));
        CHECK_OK(fsdp_tensor_set_requires_grad(part[i], true));
    }
    whole = CHECK_PTR(fsdp_attention(x[0], x[1], x[2], &options[0]));
    cut = CHECK_PTR(fsdp_parallel_attention(part[0], part[1], part[2], &options[1], fsdp_world(context)));
    compare(s, cut, mine(context, s, whole));
    weights = CHECK_PTR(fsdp_detach(leaf(context, s, s->heads, 9)));
    CHECK_OK(fsdp_backward_from(&whole, &weights, 1, false));
    weights = mine(context, s, weights);
    CHECK_OK(fsdp_backward_from(&cut, &weights, 1, false));
    for (int i = 0; i < 3; i++)
        compare(s, fsdp_tensor_grad(part[i]), mine(context, s, fsdp_tensor_grad(x[i])));
    fsdp_scope_end(context, NULL);
}

TEST(results_and_gradients_are_those_of_one_rank)
{
    const fsdp_attention_options options[] = {
        {.causal = true}, {.causal = false}, {.causal = true, .window = 5}, {.causal = true, .softcap = 2, .scale = 1}};
    const int64_t kv_heads[] = {1, 2, 3, 6};

    for (int ranks = 1; ranks <= 4; ranks++)
        for (size_t o = 0; o < FSDP__COUNT_OF(options); o++)
            for (size_t g = 0; g < FSDP__COUNT_OF(kv_heads); g++) {
                setting s = {ranks, 3, 6, kv_heads[g], FSDP_F32, options[o], 2e-6, 0, false};

                if (test_takes(ranks + (int)(o + g), 1, 6))
                    test_run_ranks(ranks, check_same, &s);
            }
}

TEST(windows_and_documents_may_end_in_any_chunk)
{
    const fsdp_attention_options causal = {.causal = true};

    for (int ranks = 1; ranks <= 4; ranks++)
        for (int64_t length = 1; length <= 8 * ranks; length += test_brief() ? 11 : length < 10 ? 1 : 5) {
            setting documents = {ranks, 4, 4, 1, FSDP_F32, causal, 2e-6, length, false};
            setting window = {ranks, 4, 4, 2, FSDP_F32, causal, 2e-6, 0, false}, both = documents;

            window.options.window = both.options.window = length;
            both.document = 7;
            if (test_takes(ranks, 1, 3))
                test_run_ranks(ranks, check_same, &documents);
            if (test_takes(ranks + 1, 1, 3))
                test_run_ranks(ranks, check_same, &window);
            if (test_takes(ranks + 2, 1, 2))
                test_run_ranks(ranks, check_same, &both);
        }
}

TEST(bf16_is_that_of_one_rank_within_its_rounding)
{
    setting s = {2, 4, 4, 2, FSDP_BF16, {.causal = true}, 3e-2, 0, false};

    test_run_ranks(2, check_same, &s);
}

/* Results and gradients of one way after those of the other. */
static void read_all(const setting *s, fsdp_context *context, float *out)
{
    fsdp_attention_options options = s->options;
    fsdp_tensor *part[3], *y, *weights;
    fsdp__side_stream *side = NULL;

    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 3; i++) {
        part[i] =
            CHECK_PTR(fsdp_detach(mine(context, s, leaf(context, s, i == 0 ? s->heads : s->kv_heads, (uint64_t)i))));
        CHECK_OK(fsdp_tensor_set_requires_grad(part[i], true));
    }
    if (s->document > 0)
        options.positions = mine(context, s, documents(context, s));
    y = CHECK_PTR(over_ranks(s, part, &options, &side));
    weights = mine(context, s, CHECK_PTR(fsdp_detach(leaf(context, s, s->heads, 9))));
    CHECK_OK(fsdp_backward_from(&y, &weights, 1, false));
    CHECK_OK(fsdp_tensor_read(y, FSDP_F32, out));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(part[i]), FSDP_F32, out + (i + 1) * MAX_NUMEL));
    fsdp_scope_end(context, NULL);
    fsdp__side_stream_unref(side);
}

static void check_bits(fsdp_context *context, void *arg)
{
    setting s = *(setting *)arg;
    float *all = CHECK_PTR(calloc(8 * MAX_NUMEL, sizeof *all));
    fsdp_comm_stats stats[2];

    for (int beside = 0; beside < 2; beside++) {
        s.beside = beside;
        fsdp_context_reset_comm_stats(context);
        read_all(&s, context, all + 4 * beside * MAX_NUMEL);
        fsdp_context_comm_stats(context, &stats[beside]);
    }
    CHECK_BYTES(all, all + 4 * MAX_NUMEL, 4 * MAX_NUMEL * sizeof *all);
    for (int i = 0; i <= FSDP_ALL_TO_ALL; i++) { /* the first call of all may be preceded by a barrier */
        CHECK_EQ(stats[0].calls[i], stats[1].calls[i]);
        CHECK_EQ(stats[0].bytes_sent[i], stats[1].bytes_sent[i]);
    }
    free(all);
}

TEST(what_travels_beside_gives_the_same_bits_by_the_same_calls)
{
    const fsdp_attention_options plain = {.causal = true}, narrow = {.causal = true, .window = 5};

    for (int ranks = 1; ranks <= 4; ranks++) {
        const setting all[] = {{ranks, 4, 4, 2, FSDP_F32, plain, 0, 0, false},
                               {ranks, 3, 4, 1, FSDP_BF16, {.causal = false}, 0, 0, false},
                               {ranks, 4, 4, 1, FSDP_F32, narrow, 0, 7, false}};

        for (size_t i = 0; i < FSDP__COUNT_OF(all); i++) {
            setting s = all[i];

            test_run_ranks(ranks, check_bits, &s);
        }
    }
}

static fsdp_tensor *of_one_leaf(void *arg, fsdp_tensor *x)
{
    fsdp_tensor *k = fsdp_slice(x, 2, 2, 1), *v = fsdp_slice(x, 2, 3, 1);

    return fsdp_parallel_attention(fsdp_slice(x, 2, 0, 2), k, v, &(fsdp_attention_options){.causal = true}, arg);
}

static void check_gradient(fsdp_context *context, void *arg)
{
    const world_gradient g = {.function = of_one_leaf, .arg = fsdp_world(context)};

    (void)arg;
    CHECK_OK(fsdp_scope_begin(context));
    check_world_gradient(
        context, &g, world_leaf(context, FSDP_F32, FSDP_SHAPE(1, 4, 4, 2), 3 + (uint64_t)fsdp_context_rank(context)));
    fsdp_scope_end(context, NULL);
}

TEST(gradients_are_difference_quotients)
{
    test_run_ranks(2, check_gradient, NULL);
}

static void check_bytes(fsdp_context *context, void *arg)
{
    const setting *s = arg;
    int64_t kv = 2 * BATCH * 2 * s->chunk * s->kv_heads * DIM * (int64_t)sizeof(float);
    fsdp_tensor *q, *k, *y;
    fsdp_comm_stats stats;

    CHECK_OK(fsdp_scope_begin(context));
    q = mine(context, s, leaf(context, s, s->heads, 1));
    k = mine(context, s, leaf(context, s, s->kv_heads, 2));
    fsdp_context_reset_comm_stats(context);
    y = CHECK_PTR(fsdp_parallel_attention(q, k, k, &s->options, fsdp_world(context)));
    CHECK_OK(fsdp_backward(fsdp_sum(y)));
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_BROADCAST], 2 * s->ranks); /* in the forward and the backward */
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], s->ranks);
    CHECK_EQ(stats.calls[FSDP_ALL_TO_ALL], 1);
    CHECK_EQ(stats.bytes_sent[FSDP_BROADCAST], 2 * (s->ranks - 1) * kv);
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], (s->ranks - 1) * kv);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_TO_ALL], (s->ranks - 1) * kv / s->ranks);
    fsdp_scope_end(context, NULL);
}

TEST(a_rank_sends_its_keys_and_values_to_each_other_one)
{
    setting s = {3, 3, 4, 2, FSDP_F32, {.causal = true}, 0, 0, false};

    test_run_ranks(3, check_bytes, &s);
}

static size_t bytes(const fsdp_tensor *tensor)
{
    return (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(fsdp_tensor_dtype(tensor));
}

/* Returns how much more memory was held at once, since live() was called, than was held then. */
static size_t peak_of(fsdp_context *context, size_t before)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return stats.peak_bytes[FSDP_MEMORY_ACTIVATION] - before;
}

static size_t live(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    fsdp_device_reset_peak(test_device(context));
    return stats.live_bytes[FSDP_MEMORY_ACTIVATION];
}

/* Returns the bytes of gradients that are cut into parts of whole numbers, of any dtype, and lie in memory. */
static size_t padded(size_t kv, size_t element, int ranks)
{
    size_t each = (kv / element + (size_t)ranks - 1) / (size_t)ranks;

    return (each * (size_t)ranks * element + 63) / 64 * 64;
}

/* What is held beside the inputs and what stays, at most, to the byte: keys and values of one other rank, in the
 * backward with their gradients and sums (with a side stream those of two, and gradients of two); of as many numbers as
 * queries have, what one turn makes, and unless that is f32, the sum and that again in f32; in the backward the sum, in
 * f32, and what one turn makes; and while results are merged ten numbers for each query and head. */
static void check_memory(fsdp_context *context, void *arg)
{
    const setting *s = arg;
    fsdp_tensor *q, *k, *v, *y, *dy;
    size_t kv, few, f32, before, visits = s->beside ? 2 : 1;
    bool last = fsdp_context_rank(context) == s->ranks - 1; /* all of its queries meet others' keys at once */
    fsdp__side_stream *side = NULL;

    CHECK_OK(fsdp_scope_begin(context));
    q = mine(context, s, leaf(context, s, s->heads, 1));
    k = mine(context, s, leaf(context, s, s->kv_heads, 2));
    v = mine(context, s, leaf(context, s, s->kv_heads, 3));
    kv = bytes(k) + bytes(v), few = 4 * (size_t)fsdp_tensor_numel(q) / DIM, f32 = few * DIM;
    before = live(context);
    y = CHECK_PTR(over_ranks(s, (fsdp_tensor *const[]){q, k, v}, &s->options, &side));
    before += bytes(y) + few;
    if (last)
        CHECK_EQ(peak_of(context, before), visits * kv + bytes(q) + (s->dtype == FSDP_F32 ? 0 : 2 * f32) + 10 * few);
    dy = CHECK_PTR(fsdp_detach(y));
    before = live(context);
    CHECK_OK(fsdp_backward_from(&y, &dy, 1, false));
    CHECK_EQ(peak_of(context, before),
             visits * kv + (1 + visits) * padded(kv, fsdp_dtype_size(s->dtype), s->ranks) + f32 + bytes(q));
    fsdp_scope_end(context, NULL);
    fsdp__side_stream_unref(side);
}

TEST(a_rank_holds_keys_and_values_of_one_other_or_two)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int64_t heads = 1; heads <= 2; heads++)
            for (int beside = 0; beside < 4; beside++) {
                setting s = {ranks, 8, 4, heads, beside & 2 ? FSDP_BF16 : FSDP_F32, {.causal = true}, 0, 0, beside & 1};

                if (test_takes(ranks + (int)heads + beside / 2 + beside, 1, 2))
                    test_run_ranks(ranks, check_memory, &s);
            }
}

RANKS_TEST(what_cannot_be_cut_is_refused, 1)
{
    fsdp_tensor *odd, *even, *positions;
    fsdp_process_group *world = fsdp_world(context);

    CHECK_OK(fsdp_scope_begin(context));
    odd = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 3, 2, 2)));
    even = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4, 2, 2)));
    positions = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 4)));
    CHECK(!fsdp_parallel_attention(odd, odd, odd, NULL, world));
    CHECK_CONTAINS(fsdp_last_error(), "3 positions of a sequence are not two equal chunks: its length T must be "
                                      "a multiple of 2, two chunks for each of 1 ranks");
    CHECK(!fsdp_parallel_attention(even, odd, odd, NULL, world));
    CHECK_CONTAINS(fsdp_last_error(), "query");
    CHECK(!fsdp_parallel_attention(
        even, even, even,
        &(fsdp_attention_options){.causal = true,
                                  .positions = CHECK_PTR(fsdp_zeros(fsdp_meta(context), FSDP_I32, FSDP_SHAPE(1, 4)))},
        world));
    CHECK_CONTAINS(fsdp_last_error(), "parallel_attention: inputs are on");
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.positions = positions}, world));
    CHECK_CONTAINS(fsdp_last_error(), "positions are of causal attention, and this is not");
    positions = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 2)));
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.causal = true, .positions = positions},
                                   world));
    CHECK_CONTAINS(fsdp_last_error(), "positions");
    positions = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4)));
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.causal = true, .positions = positions},
                                   world));
    CHECK_CONTAINS(fsdp_last_error(), "positions are float32, and must be int32");
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.window = 2}, world));
    CHECK_CONTAINS(fsdp_last_error(), "a window is of causal attention, and this is not");
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.causal = true, .window = -2}, world));
    CHECK_CONTAINS(fsdp_last_error(), "window -2 must not be negative");
    CHECK(!fsdp_parallel_attention(even, even, even, &(fsdp_attention_options){.softcap = -1}, world));
    CHECK_CONTAINS(fsdp_last_error(), "softcap -1 must be 0 or a positive number");
    CHECK(!fsdp_parallel_attention(even, even, even, NULL, NULL));
    CHECK(!fsdp_parallel_attention(NULL, even, even, NULL, world));
    fsdp_scope_end(context, NULL);
}

/* ---- failures ---- */

/* One of three ranks fails while keys and values are on their way, and nothing of it outlives the call. */
static void fail_on_one(fsdp_context *context, void *arg)
{
    const setting s = {3, 3, 4, 2, FSDP_F32, {.causal = true}, 0, 0, true};
    fsdp__side_stream *side = NULL;
    fsdp_tensor *x[3], *y;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 3; i++)
        x[i] = mine(context, &s, leaf(context, &s, i == 0 ? s.heads : s.kv_heads, (uint64_t)i));
    test_meet();
    CHECK_OK(fsdp__side_stream_open(&side, test_device(context)));
    test_begin_fault(context, arg);
    y = fsdp_sum(over_ranks(&s, x, &s.options, &side));
    status = y ? fsdp_backward(y) : fsdp_last_status();
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    test_end_fault(context, arg, status);
    fsdp_scope_end(context, NULL);
    fsdp__side_stream_unref(side);
}

static void fail_each(fsdp__fault_kind kind)
{
    test_fault f = {.kind = kind, .nth = 1};

    test_not_on_gpu("a rank that waits for nothing of a GPU need not hear that it has failed");
    for (; test_run_fault(3, fail_on_one, &f, &f); f.nth += kind == FSDP__FAULT_COLLECTIVE ? 1 : test_brief() ? 29 : 7)
        if (f.failed != 3 &&
            kind == FSDP__FAULT_COLLECTIVE) /* a view that finds no memory may become a copy that does */
            TEST_FAIL("number %ld: %d ranks failed", f.nth, f.failed);
    CHECK(f.nth > 8);
}

CALL_TEST(the_nth_collective_of_one_rank_fails, fail_each(FSDP__FAULT_COLLECTIVE))
CALL_TEST(the_nth_allocation_of_one_rank_fails, fail_each(FSDP__FAULT_ALLOCATION))

RANKS_TEST(a_failing_allocation_is_an_error, 1)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tensor *x = NULL, *y = NULL;
        fsdp_status status = fsdp_scope_begin(context);

        if (status == FSDP_OK) {
            x = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4, 2, 2));
            y = x ? fsdp_parallel_attention(x, x, x, NULL, fsdp_world(context)) : NULL;
            status = y ? FSDP_OK : fsdp_last_status();
            fsdp_scope_end(context, NULL);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
}
