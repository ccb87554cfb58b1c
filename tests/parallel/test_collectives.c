/* Each collective on tensors of any shape: what it gives, its gradient, what it costs, and what it refuses. */
#include "device/device.h"
#include "fsdp/ops.h"
#include "parallel/plan.h"
#include "parallel/world_gradient.h"
#include "tensor/tensor.h"

enum {
    MAX_NUMEL = 512
};

static const int worlds[] = {1, 2, 3, 4, 8};

static const int64_t shapes[][3] = {{6, 2, 3}, {5, 3, 4}, {1, 7, 2}, {3, 0, 2}, {9, 1, 1}, {2, 8, 5}};

typedef struct setting {
    fsdp_process_group *group;
    int dim, other;
    int64_t whole[3];
} setting;

/* The part of the whole that rank `rank` has of dimension `dim`. */
static void part_shape(const setting *s, int dim, int rank, int64_t *shape, int64_t *start)
{
    memcpy(shape, s->whole, sizeof s->whole);
    shape[dim] = fsdp_shard_range(s->whole[dim], fsdp_process_group_size(s->group), rank, start);
}

/* Values of the part [start, start + shape[dim]) of the whole, in which element i is `scale` * i. */
static int64_t part_values(const setting *s, int dim, const int64_t *shape, int64_t start, float scale, float *out)
{
    int64_t n = 0;

    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++)
            for (int64_t k = 0; k < shape[2]; k++) {
                int64_t at[] = {i, j, k};

                at[dim] += start;
                out[n++] = scale * (float)((at[0] * s->whole[1] + at[1]) * s->whole[2] + at[2]);
            }
    return n;
}

static fsdp_tensor *part_of(const setting *s, fsdp_context *context, fsdp_dtype dtype, int dim, float scale)
{
    int64_t shape[3], start;
    float values[MAX_NUMEL];
    fsdp_tensor *part;

    part_shape(s, dim, fsdp_process_group_rank(s->group), shape, &start);
    part_values(s, dim, shape, start, scale, values);
    part = CHECK_PTR(fsdp_empty(test_device(context), dtype, 3, shape));
    CHECK_OK(fsdp_tensor_write(part, FSDP_F32, values));
    return part;
}

static fsdp_tensor *whole_of(const setting *s, fsdp_context *context, fsdp_dtype dtype, float scale)
{
    float values[MAX_NUMEL];
    fsdp_tensor *whole = CHECK_PTR(fsdp_empty(test_device(context), dtype, 3, s->whole));

    part_values(s, 0, s->whole, 0, scale, values);
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, values));
    return whole;
}

static void check_equal(const fsdp_tensor *actual, const fsdp_tensor *expected)
{
    float a[MAX_NUMEL], b[MAX_NUMEL];

    CHECK_PTR(actual);
    CHECK_EQ(actual->dtype, expected->dtype);
    CHECK_EQ(actual->ndim, expected->ndim);
    CHECK_BYTES(actual->shape, expected->shape, (size_t)actual->ndim * sizeof *actual->shape);
    CHECK_OK(fsdp_tensor_read(actual, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(expected, FSDP_F32, b));
    CHECK_CLOSE(a, b, fsdp_tensor_numel(actual), 0, 0);
}

/* ---- values ---- */

static void check_values(fsdp_context *context, const setting *s, fsdp_dtype dtype)
{
    int64_t whole = s->whole[s->dim];
    float all = (float)fsdp_process_group_size(s->group);
    fsdp_tensor *x, *part;

    CHECK_OK(fsdp_scope_begin(context));
    x = whole_of(s, context, dtype, 1);
    part = part_of(s, context, dtype, s->dim, 1);
    check_equal(fsdp_parallel_copy(x, s->group), x);
    check_equal(fsdp_parallel_split(x, s->dim, s->group), part);
    check_equal(fsdp_parallel_all_gather(part, s->dim, whole, s->group), x);
    check_equal(fsdp_parallel_collect(part, s->dim - 3, whole, s->group), x);
    check_equal(fsdp_parallel_all_to_all(part, s->other, s->dim, whole, s->group),
                part_of(s, context, dtype, s->other, 1));
    check_equal(fsdp_parallel_all_reduce(x, s->group), whole_of(s, context, dtype, all));
    check_equal(fsdp_parallel_reduce_scatter(x, s->dim, s->group), part_of(s, context, dtype, s->dim, all));
    /* what does not lie in memory row after row */
    x = fsdp_transpose(fsdp_contiguous(fsdp_transpose(x, 0, 2)), 0, 2);
    check_equal(fsdp_parallel_reduce_scatter(x, s->dim, s->group), part_of(s, context, dtype, s->dim, all));
    check_equal(fsdp_parallel_all_reduce(x, s->group), whole_of(s, context, dtype, all));
    fsdp_scope_end(context, NULL);
}

/* Every shape and every pair of dimensions. */
static void each_setting(fsdp_context *context, void (*body)(fsdp_context *context, const setting *s, fsdp_dtype dtype),
                         fsdp_dtype dtype)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int pair = 0; pair < 6; pair++) {
            setting s = {.group = fsdp_world(context), .dim = pair / 2, .other = (pair / 2 + 1 + pair % 2) % 3};

            memcpy(s.whole, shapes[i], sizeof s.whole);
            if (test_takes((int)i + pair + (int)dtype, 1, 3))
                body(context, &s, dtype);
        }
}

static void check_all_values(fsdp_context *context, void *arg)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I64};

    if (arg)
        test_run_behind(test_device(context));
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        each_setting(context, check_values, dtypes[i]);
}

TEST(parts_and_sums_are_those_of_the_whole)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        if (test_takes((int)i, 1, 2))
            test_run_ranks(worlds[i], check_all_values, NULL);
}

TEST(a_device_that_runs_behind_the_host_gives_the_same)
{
    int yes = 1;

    test_run_ranks(3, check_all_values, &yes);
}

/* ---- gradients ---- */

static fsdp_tensor *by_copy(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_parallel_copy(fsdp_square(x), s->group);
}

static fsdp_tensor *by_all_reduce(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_all_reduce(fsdp_square(x), s->group));
}

static fsdp_tensor *by_all_gather(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_all_gather(fsdp_scale(x, 2), s->dim, s->whole[s->dim], s->group));
}

static fsdp_tensor *by_collect(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_collect(fsdp_scale(x, 2), s->dim, s->whole[s->dim], s->group));
}

static fsdp_tensor *by_reduce_scatter(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_reduce_scatter(fsdp_scale(x, 2), s->dim, s->group));
}

static fsdp_tensor *by_split(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_split(fsdp_scale(x, 2), s->dim, s->group));
}

static fsdp_tensor *by_all_to_all(void *arg, fsdp_tensor *x)
{
    const setting *s = arg;

    return fsdp_square(fsdp_parallel_all_to_all(x, s->other, s->dim, s->whole[s->dim], s->group));
}

static void check_gradients(fsdp_context *context, const setting *s, fsdp_dtype dtype)
{
    const world_gradient cases[] = {
        {by_copy, (void *)s, true, false},
        {by_all_reduce, (void *)s, false, true},
        {by_all_gather, (void *)s, false, false},
        {by_collect, (void *)s, false, true},
        {by_reduce_scatter, (void *)s, false, false},
        {by_split, (void *)s, true, false},
        {by_all_to_all, (void *)s, false, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool cut = i == 2 || i == 3 || i == 6;
        uint64_t seed = cases[i].input_alike ? 0 : (uint64_t)fsdp_context_rank(context);
        int64_t shape[3], start;
        fsdp_tensor *x;

        part_shape(s, s->dim, fsdp_context_rank(context), shape, &start);
        CHECK_OK(fsdp_scope_begin(context));
        x = world_leaf(context, dtype, 3, cut ? shape : s->whole, seed);
        check_world_gradient(context, &cases[i], x);
        fsdp_scope_end(context, NULL);
    }
}

static void check_all_gradients(fsdp_context *context, void *arg)
{
    static const int64_t whole[][3] = {{3, 2, 2}, {2, 0, 2}, {1, 5, 1}};

    (void)arg;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        for (int dim = 0; dim < 3; dim++) {
            setting s = {.group = fsdp_world(context), .dim = dim, .other = (dim + 1) % 3};

            memcpy(s.whole, whole[i], sizeof s.whole);
            check_gradients(context, &s, FSDP_F32);
        }
}

TEST(the_backward_of_each_is_its_transpose)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        if (test_takes((int)i + 1, 1, 2))
            test_run_ranks(worlds[i], check_all_gradients, NULL);
}

/* ---- recomputation, counts ---- */

/* A product cut by columns and then by rows, sequence cut outside. */
static fsdp_tensor *mlp(void *arg, fsdp_tensor *const *in, int count)
{
    fsdp_process_group *group = arg;
    fsdp_tensor *x = fsdp_parallel_all_gather(in[0], 0, 5, group);

    (void)count;
    x = fsdp_silu(fsdp_linear(x, in[1], FSDP_NO_BIAS));
    return fsdp_parallel_reduce_scatter(fsdp_linear(x, in[2], FSDP_NO_BIAS), 0, group);
}

static void run_mlp(fsdp_context *context, bool recompute, float *grads, fsdp_comm_stats *stats)
{
    fsdp_process_group *group = fsdp_world(context);
    int rank = fsdp_context_rank(context);
    int64_t start, rows = fsdp_shard_range(5, fsdp_context_world_size(context), rank, &start);
    uint64_t seed = (uint64_t)rank;
    fsdp_tensor *in[3], *y;
    int64_t n = 0;

    CHECK_OK(fsdp_scope_begin(context));
    in[0] = world_leaf(context, FSDP_F32, FSDP_SHAPE(rows, 4), seed);
    in[1] = world_leaf(context, FSDP_F32, FSDP_SHAPE(6, 4), seed + 10);
    in[2] = world_leaf(context, FSDP_F32, FSDP_SHAPE(4, 6), seed + 20);
    fsdp_context_reset_comm_stats(context);
    y = recompute ? fsdp_recompute(context, mlp, group, in, 3, NULL) : mlp(group, in, 3);
    CHECK_PTR(y);
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_square(y))));
    fsdp_context_comm_stats(context, stats);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(in[i])), FSDP_F32, grads + n));
        n += fsdp_tensor_numel(in[i]);
        CHECK_OK(fsdp_tensor_set_grad(in[i], NULL));
    }
    fsdp_scope_end(context, NULL);
}

static void check_recomputed(fsdp_context *context, void *arg)
{
    float plain[MAX_NUMEL] = {0}, again[MAX_NUMEL] = {0};
    fsdp_comm_stats first, second;

    (void)arg;
    run_mlp(context, false, plain, &first);
    run_mlp(context, true, again, &second);
    CHECK_BYTES(plain, again, sizeof plain);
    if (fsdp_context_world_size(context) == 1)
        return;
    CHECK_EQ(first.calls[FSDP_ALL_GATHER], 2);
    CHECK_EQ(first.calls[FSDP_REDUCE_SCATTER], 2);
    /* what is after the last value that the backward reads is not computed again */
    CHECK_EQ(second.calls[FSDP_ALL_GATHER], 3);
    CHECK_EQ(second.calls[FSDP_REDUCE_SCATTER], 2);
}

TEST(a_recomputed_function_communicates_again)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        test_run_ranks(worlds[i], check_recomputed, NULL);
}

static void count_on(fsdp_context *context, fsdp_device *device)
{
    fsdp_process_group *group = fsdp_world(context);
    fsdp_comm_stats stats;
    fsdp_tensor *x, *y;

    CHECK_PTR(device);
    CHECK_OK(fsdp_scope_begin(context));
    fsdp_context_reset_comm_stats(context);
    x = CHECK_PTR(fsdp_empty(device, FSDP_BF16, FSDP_SHAPE(3, 5)));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    y = fsdp_parallel_all_gather(x, 0, 12, group);
    y = fsdp_parallel_all_to_all(fsdp_parallel_split(y, 0, group), 1, 0, 12, group);
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(y), 0), 12);
    CHECK_EQ(fsdp_tensor_size(y, 1), 2);
    y = fsdp_parallel_reduce_scatter(fsdp_parallel_all_reduce(y, group), 0, group);
    CHECK_OK(fsdp_backward(fsdp_sum(y)));
    CHECK_PTR(fsdp_tensor_grad(x));
    CHECK_OK(fsdp_tensor_set_grad(x, NULL));
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 3);
    CHECK_EQ(stats.calls[FSDP_ALL_TO_ALL], 2);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], 1);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 2);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_TO_ALL], 2 * 3 * (3 * 2) * 2); /* 5 in chunks of 2 */
    fsdp_scope_end(context, NULL);
}

TEST(a_device_without_bytes_counts_and_moves_nothing)
{
    fsdp_context *context = NULL;

    CHECK_OK(fsdp_context_create_fake(1, 4, &context));
    count_on(context, fsdp_meta(context));
    count_on(context, fsdp__dry(context));
    count_on(context, fsdp_cpu(context));
    fsdp_context_free(context);
}

/* ---- what is refused ---- */

RANKS_TEST(bad_arguments_are_named, 2)
{
    fsdp_process_group *group = fsdp_world(context), *elsewhere;
    fsdp_context *alone;
    fsdp_tensor *x;

    CHECK_OK(fsdp_context_create(NULL, &alone));
    elsewhere = CHECK_PTR(fsdp_world(alone));
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3)));
    CHECK_INVALID(fsdp_parallel_split(x, 0, elsewhere),
                  "parallel_split: group 'world' is of another context than the tensor on");
    CHECK_INVALID(fsdp_parallel_all_reduce(x, elsewhere), "parallel_all_reduce: group 'world' is of another context");
    CHECK_INVALID(fsdp_parallel_copy(x, NULL), "parallel_copy: the process group is NULL");
    CHECK_INVALID(fsdp_parallel_split(x, 2, group), "parallel_split: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_parallel_all_gather(x, 0, 7, group), "parallel_all_gather: (2, 3) is not what rank");
    CHECK_INVALID(fsdp_parallel_collect(x, 0, -1, group), "dimension 0 of -1");
    CHECK_INVALID(fsdp_parallel_all_to_all(x, 0, -2, 4, group), "cannot be cut and put together at once");
    fsdp_clear_error();
    CHECK_NULL(fsdp_parallel_all_reduce(NULL, group));
    CHECK_STATUS(fsdp_last_status(), FSDP_OK);
    fsdp_scope_end(context, NULL);
    fsdp_context_free(alone);
}

/* What comes of a call: on a device that runs behind the host, it is known when the device is done. */
static fsdp_status after_all(fsdp_context *context, fsdp_status status)
{
    return status == FSDP_OK ? fsdp_stream_synchronize(fsdp_device_stream(test_device(context))) : status;
}

RANKS_TEST(ranks_that_differ_in_shape_all_hear_of_it, 2)
{
    fsdp_tensor *x;
    char text[512];

    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2 + fsdp_context_rank(context))));
    x = fsdp_parallel_all_reduce(x, fsdp_world(context));
    CHECK_STATUS(after_all(context, x ? FSDP_OK : fsdp_last_status()), FSDP_MISMATCH);
    snprintf(text, sizeof text, "%s", fsdp_last_error());
    CHECK_CONTAINS(text, "all_reduce");
    fsdp_scope_end(context, NULL);
}

RANKS_TEST(a_rank_that_fails_ends_the_backward_of_the_others, 3)
{
    fsdp_tensor *x, *y;

    CHECK_OK(fsdp_scope_begin(context));
    x = world_leaf(context, FSDP_F32, FSDP_SHAPE(4), 1);
    y = CHECK_PTR(fsdp_sum(fsdp_square(fsdp_parallel_copy(x, fsdp_world(context)))));
    if (fsdp_context_rank(context) == 1) {
        fsdp_abort(context, "it has lost its mind");
    } else {
        CHECK(after_all(context, fsdp_backward(y)) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), "it has lost its mind");
    }
    fsdp_scope_end(context, NULL);
}

RANKS_TEST(a_failing_allocation_is_an_error, 1)
{
    fsdp_process_group *group = fsdp_world(context);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tensor *x = NULL, *y = NULL;
        fsdp_status status = fsdp_scope_begin(context);

        if (status == FSDP_OK) {
            x = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(3, 5));
            y = fsdp_parallel_reduce_scatter(fsdp_parallel_all_gather(x, 1, 5, group), 1, group);
            status = y ? FSDP_OK : fsdp_last_status();
            fsdp_scope_end(context, NULL);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
}

/* ---- groups that are freed before the backward ---- */

/* The i-th collective of the world's parts; NULL: there are no more. */
static fsdp_tensor *collective(int i, fsdp_tensor *x, fsdp_process_group *group)
{
    int64_t whole = x->shape[0] * fsdp_process_group_size(group);

    return i == 0   ? fsdp_parallel_copy(x, group)
           : i == 1 ? fsdp_parallel_all_reduce(x, group)
           : i == 2 ? fsdp_parallel_all_gather(x, 0, whole, group)
           : i == 3 ? fsdp_parallel_collect(x, 0, whole, group)
           : i == 4 ? fsdp_parallel_reduce_scatter(x, 1, group)
           : i == 5 ? fsdp_parallel_split(x, 1, group)
           : i == 6 ? fsdp_parallel_all_to_all(x, 1, 0, whole, group)
           : i == 7 ? fsdp_parallel_attention(x, x, x, NULL, group)
                    : NULL;
}

/* The gradient of what goes into a collective of a group that is freed before the backward, or behind it. */
static fsdp_tensor *gradient_of(int i, fsdp_context *context, bool early)
{
    static const int ranks[] = {0, 1, 2};
    fsdp_process_group *group;
    fsdp_tensor *x, *y;
    float values[48];

    for (int k = 0; k < 48; k++)
        values[k] = (float)(k % 7 - 3);
    x = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, 4, 3, 2), values));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    CHECK_OK(fsdp_process_group_create(context, ranks, fsdp_context_world_size(context), "early", &group));
    y = CHECK_PTR(fsdp_sum(fsdp_square(collective(i, x, group))));
    if (early)
        fsdp_process_group_free(group);
    CHECK_OK(fsdp_backward(y));
    if (!early)
        fsdp_process_group_free(group);
    return CHECK_PTR(fsdp_tensor_grad(x));
}

WORLDS_TEST(groups_may_be_freed_before_the_backward, 1, 3)
{
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 8; i++)
        check_equal(gradient_of(i, context, true), gradient_of(i, context, false));
    fsdp_scope_end(context, NULL);
}

static fsdp_status give_nothing(fsdp_node *node, fsdp_tensor *const *grads)
{
    (void)node, (void)grads;
    return FSDP_OK;
}

/* An operation of a program's own, whatever it is called, need not be a sum. */
static fsdp_tensor *own_add(fsdp_context *context, fsdp_tensor *x)
{
    static const fsdp_operation operation = {.name = "add", .backward = give_nothing};
    fsdp_tensor *y;

    fsdp_no_grad_begin(context);
    y = CHECK_PTR(fsdp_scale(x, (double)fsdp_context_rank(context)));
    fsdp_no_grad_end(context);
    CHECK_OK(fsdp_record(&operation, &x, 1, &y, 1, NULL, 0, NULL, 0));
    return y;
}

WORLDS_TEST(sums_with_what_is_replicated_are_known_by_what_they_do, 1, 2)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_tensor *x, *whole;

    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3)));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    whole = CHECK_PTR(fsdp_parallel_all_reduce(x, world));
    CHECK(fsdp__is_replicated(whole, world));
    CHECK(fsdp__is_replicated(CHECK_PTR(fsdp_add(x, fsdp_add(whole, x))), world));
    CHECK(!fsdp__is_replicated(CHECK_PTR(fsdp_mul(whole, x)), world));
    CHECK(!fsdp__is_replicated(own_add(context, whole), world));
    CHECK(!fsdp__is_replicated(x, world));
    fsdp_scope_end(context, NULL);
}
