/* Of unsharded parameters a machine has in memory what its own ranks hold, and the rest only while it is used. */
#include <sys/mman.h>
#include <unistd.h>

#include "fsdp/shard.h"
#include "fsdp/state.h"
#include "shard/state/give_back.h"
#include "support/ranks.h"

enum {
    LAYERS = 3,
    DIM = 402, /* some 158 pages a layer in float32; rows of ranks begin anywhere in a page */
};

typedef struct layers {
    fsdp_module *all, *one[LAYERS];
} layers;

/* Else the system may at any time make one of what is left of a huge page and what was given back. */
static void keep_small_pages(fsdp_module *layer)
{
    const fsdp__region *region = fsdp__module_state_of(layer)->groups[0]->residence.unsharded;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)region->data / page * page;

    CHECK_EQ(madvise((void *)first, (uintptr_t)region->data + region->bytes - first, MADV_NOHUGEPAGE), 0);
}

static layers create(fsdp_context *context, const fsdp_shard_options *options)
{
    layers l;

    for (int i = 0; i < LAYERS; i++)
        l.one[i] = CHECK_PTR(fsdp_linear_create(context, fsdp_meta(context), DIM, DIM, NULL));
    l.all = CHECK_PTR(fsdp_sequential_create(context, l.one, LAYERS));
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(fsdp_fully_shard(l.one[i], options));
    CHECK_OK(fsdp_fully_shard(l.all, options));
    CHECK_OK(fsdp_module_materialize(l.all, fsdp_cpu(context)));
    for (int i = 0; i < LAYERS; i++)
        keep_small_pages(l.one[i]);
    CHECK_OK(fsdp_module_initialize(l.all, 1));
    return l;
}

/* Returns the sum of what comes out, and leaves with a backward or without. */
static float run(layers *l, bool backward)
{
    fsdp_context *context = l->all->context;
    float x[5 * DIM], value;
    int64_t shape[] = {5, DIM};
    fsdp_tensor *input, *sum;

    for (int i = 0; i < 5 * DIM; i++)
        x[i] = (float)(i % 17) - 8;
    CHECK_OK(fsdp_scope_begin(context));
    input = CHECK_PTR(fsdp_from_data(fsdp_cpu(context), FSDP_F32, 2, shape, x));
    if (!backward)
        fsdp_no_grad_begin(context);
    sum = CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_call(l->all, input))));
    if (backward)
        CHECK_OK(fsdp_backward(sum));
    else
        fsdp_no_grad_end(context);
    CHECK_OK(fsdp_tensor_read(sum, FSDP_F32, &value));
    fsdp_scope_end(context, NULL);
    return value;
}

/* Pages of the layer's unsharded parameters that are in memory, and all of them. */
static int64_t present(fsdp_module *layer, int64_t *pages)
{
    const fsdp__region *region = fsdp__module_state_of(layer)->groups[0]->residence.unsharded;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)region->data / page * page, end = (uintptr_t)region->data + region->bytes;
    unsigned char there[1024];
    int64_t count = 0;

    *pages = (int64_t)((end - first + page - 1) / page);
    CHECK(*pages <= (int64_t)sizeof there);
    CHECK_EQ(mincore((void *)first, end - first, there), 0);
    for (int64_t i = 0; i < *pages; i++)
        count += there[i] & 1;
    return count;
}

static bool is_whole(fsdp_module *layer)
{
    int64_t pages, count = present(layer, &pages);

    return count == pages;
}

/* When all ranks are through with what they did: what is left is what nobody takes back. */
static void check_rest(fsdp_context *context, layers *l)
{
    int machines = fsdp_context_machines(context), ranks = fsdp_context_world_size(context);
    int64_t pages, count;

    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp__give_back(fsdp__module_state_of(l->all)->root);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    for (int i = 0; i < LAYERS; i++) {
        count = present(l->one[i], &pages);
        CHECK(count >= pages / machines); /* two pages a rank are of others, too, and those of the bias */
        CHECK(count <= (machines == 1 ? pages : pages / machines + 2 * ranks + 2));
    }
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

static void come_and_go(fsdp_context *context, void *arg)
{
    layers l = create(context, arg);
    float first = run(&l, false);

    check_rest(context, &l);
    for (int step = 0; step < 3; step++) {
        CHECK_EQ(run(&l, true), first); /* nothing was written */
        check_rest(context, &l);
    }
    CHECK_OK(fsdp_module_unshard(l.one[1]));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp__give_back(fsdp__module_state_of(l.all)->root); /* which is not for what is in use */
    CHECK(is_whole(l.one[1]));
    CHECK_OK(fsdp_module_reshard(l.one[1]));
    check_rest(context, &l);
    CHECK_EQ(run(&l, false), first);
    fsdp_module_unref(l.all);
}

TEST(rows_of_other_machines_lie_here_while_they_are_used)
{
    static const int shapes[][2] = {{2, 1}, {2, 2}, {3, 1}, {3, 2}};
    fsdp_shard_options options[] = {{0}, {.mp_policy = {.param_dtype = FSDP_BF16}}, {.overlap = FSDP_OVERLAP_INLINE}};

    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        for (size_t i = test_brief() ? o : 0; i < sizeof shapes / sizeof *shapes; i += test_brief() ? 3 : 1)
            test_run_machines(shapes[i][0], shapes[i][1], false, come_and_go, &options[o]);
        test_run_ranks(2, come_and_go, &options[o]); /* of one machine: nothing is given back */
    }
}

/* A rank that still computes keeps what the others are through with. */
static void lag(fsdp_context *context, void *arg)
{
    layers l = create(context, arg);
    bool slow = fsdp_context_rank(context) == 1;

    (void)run(&l, false);
    CHECK_OK(fsdp_module_unshard(l.one[0]));
    if (!slow)
        CHECK_OK(fsdp_module_reshard(l.one[0]));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp__give_back(fsdp__module_state_of(l.all)->root);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_EQ(is_whole(l.one[0]), fsdp_context_machine(context) == 0); /* where rank 1 is */
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (slow)
        CHECK_OK(fsdp_module_reshard(l.one[0]));
    check_rest(context, &l);
    fsdp_module_unref(l.all);
}

TEST(who_still_reads_keeps_it)
{
    fsdp_shard_options options = {0};

    test_run_machines(2, 2, false, lag, &options);
}

/* ---- what happens between a forward and its backward ---- */

/* Of a model, while the graph of its forward waits; `other` is one of its own in the same context. */
typedef void (*between)(layers *l, layers *other);

static void nothing(layers *l, layers *other)
{
    (void)l, (void)other;
}

static void evaluate(layers *l, layers *other)
{
    (void)other;
    (void)run(l, false);
    (void)run(l, false);
}

static void train_other(layers *l, layers *other)
{
    (void)l;
    (void)run(other, true);
    (void)run(other, false);
}

static void reshard(layers *l, layers *other)
{
    (void)other;
    CHECK_OK(fsdp_module_reshard_all(l->all));
    CHECK_OK(fsdp_module_unshard(l->one[2]));
    CHECK_OK(fsdp_module_reshard(l->one[2]));
}

static void gather_state(layers *l, layers *other)
{
    fsdp_state_dict *state, *full;

    (void)other;
    CHECK_OK(fsdp_module_reshard_all(l->all)); /* a state is of shards */
    CHECK_OK(fsdp_state_dict_from_module(l->all, &state));
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
}

static void write_same(layers *l, layers *other)
{
    (void)other;
    CHECK_OK(fsdp_module_initialize(l->all, 2));
    (void)run(l, false);
    CHECK_OK(fsdp_module_initialize(l->all, 1));
}

static void free_other(layers *l, layers *other)
{
    (void)l;
    (void)run(other, false);
    fsdp_module_unref(other->all);
    other->all = NULL;
}

static const between betweens[] = {nothing, evaluate, train_other, reshard, gather_state, write_same, free_other};

/* This rank's gradients, one after the other, which are dropped. */
static float *take_gradients(layers *l, int64_t *count)
{
    fsdp_parameters all;
    float *values;

    CHECK_OK(fsdp_module_parameters(l->all, &all));
    *count = 0;
    for (int64_t i = 0; i < all.count; i++)
        *count += fsdp_tensor_numel(all.items[i].tensor);
    values = calloc((size_t)*count, sizeof *values);
    *count = 0;
    for (int64_t i = 0; i < all.count; i++) {
        fsdp_tensor *grad = CHECK_PTR(fsdp_tensor_grad(all.items[i].tensor));

        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, values + *count));
        *count += fsdp_tensor_numel(grad);
    }
    fsdp_parameters_release(&all);
    fsdp_module_zero_grad(l->all);
    return values;
}

/* As run(), with a break before the backward. */
static float *train(layers *l, between act, layers *other, int64_t *count)
{
    fsdp_context *context = l->all->context;
    float x[5 * DIM];
    int64_t shape[] = {5, DIM};
    fsdp_tensor *sum;

    for (int i = 0; i < 5 * DIM; i++)
        x[i] = (float)(i % 13) - 6;
    CHECK_OK(fsdp_scope_begin(context));
    sum = CHECK_PTR(
        fsdp_sum(CHECK_PTR(fsdp_call(l->all, CHECK_PTR(fsdp_from_data(fsdp_cpu(context), FSDP_F32, 2, shape, x))))));
    act(l, other);
    CHECK_OK(fsdp_backward(sum));
    fsdp_scope_end(context, NULL);
    return take_gradients(l, count);
}

static void act_in_between(fsdp_context *context, void *arg)
{
    layers l = create(context, arg), other = create(context, arg);
    float first = run(&l, false), *expected, *got;
    int64_t count;

    expected = train(&l, nothing, &other, &count);
    for (size_t i = 0; i < sizeof betweens / sizeof *betweens; i++) {
        got = train(&l, betweens[i], &other, &count);
        if (memcmp(got, expected, (size_t)count * sizeof *got) != 0)
            TEST_FAIL("gradients differ after number %zu", i);
        free(got);
        CHECK_EQ(run(&l, false), first);
        CHECK_OK(fsdp_module_set_reshard_after_backward(l.all, i % 2 == 0, true));
    }
    CHECK_OK(fsdp_module_reshard_all(l.all));
    check_rest(context, &l);
    free(expected);
    fsdp_module_unref(l.all);
}

TEST(what_a_backward_needs_is_there)
{
    fsdp_shard_options options[] = {{0},
                                    {.reshard_after_forward = FSDP_RESHARD_NEVER},
                                    {.reshard_after_forward = FSDP_RESHARD_ALWAYS, .overlap = FSDP_OVERLAP_INLINE},
                                    {.zero_stage = 2}};

    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        if (!test_brief() || o % 2 == 0)
            test_run_machines(2, 2, false, act_in_between, &options[o]);
        if (!test_brief() || o % 2 == 1)
            test_run_machines(3, 1, false, act_in_between, &options[o]);
    }
}
