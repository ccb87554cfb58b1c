/* Asynchronous styles: whatever is drawn, in any order of calls, they give what the same plan without them gives, the
 * same bits every time, with as many bytes sent; failures end on every rank; misuse is named. */
#include <math.h>

#include "device/device.h"
#include "fsdp/parallelize.h"
#include "parallel/parts.h"
#include "support/dice.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    INPUTS = 13 * 13 * 9,
    STEPS = 6,
    MOST = 3 * STEPS * INPUTS + 1000 /* numbers that a network computes */
};

/* Two layers, one column-wise and one row-wise, of sequences that are cut in dimension `dim`. */
typedef struct network {
    int64_t shape[4]; /* of the input */
    int ndim, dim;
    int64_t wide;
    bool conv1d, bias, frozen[2], input_frozen;
    fsdp_dtype dtype;
    fsdp_recompute_mode recompute;
    uint64_t calls; /* what is called, drawn from this */
} network;

static network draw(uint64_t seed)
{
    uint64_t dice = seed;
    network n = {.ndim = dice_chance(&dice, 70) ? 3 : 4, .wide = 1 + dice_below(&dice, 12)};

    for (int d = 0; d < n.ndim; d++)
        n.shape[d] = 1 + dice_below(&dice, d == n.ndim - 1 ? 9 : n.ndim == 3 ? 13 : 6);
    n.dim = dice_below(&dice, n.ndim - 1);
    n.dim -= dice_chance(&dice, 50) ? n.ndim : 0; /* dimensions also count from the end */
    n.conv1d = dice_chance(&dice, 30);
    n.bias = dice_chance(&dice, 60);
    n.frozen[0] = dice_chance(&dice, 15);
    n.frozen[1] = dice_chance(&dice, 15);
    n.input_frozen = dice_chance(&dice, 25);
    n.dtype = dice_chance(&dice, 75) ? FSDP_F32 : FSDP_BF16;
    n.recompute = (fsdp_recompute_mode)dice_below(&dice, FSDP_RECOMPUTE_CHEAP + 1);
    n.calls = dice;
    return n;
}

static fsdp_module *layer(fsdp_context *context, const network *n, int64_t in, int64_t out)
{
    fsdp_device *device = test_device(context);

    return CHECK_PTR(n->conv1d
                         ? fsdp_conv1d_create(context, device, in, out, NULL)
                         : fsdp_linear_create(context, device, in, out, &(fsdp_linear_options){.no_bias = !n->bias}));
}

static fsdp_module *create(fsdp_context *context, const network *n, bool async)
{
    int64_t columns = n->shape[n->ndim - 1];
    fsdp_module *layers[] = {layer(context, n, columns, n->wide), fsdp_gelu_create(context, true),
                             layer(context, n, n->wide, columns)};
    fsdp_module *net = CHECK_PTR(fsdp_sequential_create(context, layers, 3));
    const fsdp_layout cut = {FSDP_LAYOUT_SHARDED, n->dim}, whole = {.kind = FSDP_LAYOUT_REPLICATED};
    const fsdp_parallel_entry plan[] = {{"", {.kind = FSDP_PREPARE_INPUT, .to = {cut}}},
                                        {"0", {.kind = FSDP_COLUMN_WISE, .from = {cut}, .async = async}},
                                        {"2", {.kind = FSDP_ROW_WISE, .to = {cut}, .async = async}},
                                        {"", {.kind = FSDP_PREPARE_OUTPUT, .from = {cut}, .to = {whole}}}};
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_OK(fsdp_parallelize_module(net, mesh, plan, 4));
    CHECK_OK(fsdp_module_initialize(net, 7));
    CHECK_OK(fsdp_module_to(net, n->dtype));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_module_set_requires_grad(fsdp_module_child(net, i ? "2" : "0"), !n->frozen[i]));
    CHECK_OK(fsdp_module_set_recompute(net, n->recompute));
    fsdp_mesh_unref(mesh);
    return net;
}

/* Numbers that come of a program, one after the other. */
typedef struct numbers {
    float values[MOST];
    int64_t count;
} numbers;

static void note(numbers *to, const fsdp_tensor *tensor)
{
    int64_t numel = tensor ? fsdp_tensor_numel(tensor) : 0;

    CHECK(to->count + numel <= MOST);
    if (tensor)
        CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, to->values + to->count));
    to->count += numel;
}

static fsdp_tensor *input(fsdp_context *context, const network *n, int step)
{
    int64_t numel = 1;
    float values[INPUTS];
    fsdp_tensor *x;

    for (int d = 0; d < n->ndim; d++)
        numel *= n->shape[d];
    CHECK(numel <= INPUTS);
    for (int64_t i = 0; i < numel; i++)
        values[i] = dice_normal((uint64_t)step + 3, (uint64_t)i);
    x = CHECK_PTR(fsdp_empty(test_device(context), n->dtype, n->ndim, n->shape));
    CHECK_OK(fsdp_tensor_write(x, FSDP_F32, values));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, !n->input_frozen));
    return x;
}

/* Does steps: each a forward, or two before their backwards, or one without a graph; gradients add up now and then. */
static void run(fsdp_module *net, const network *n, numbers *out)
{
    fsdp_context *context = net->context;
    uint64_t dice = n->calls;

    for (int step = 0; step < STEPS; step++) {
        bool graph = dice_chance(&dice, 80), twice = dice_chance(&dice, 30), drops = dice_chance(&dice, 50);
        fsdp_tensor *x, *y[2] = {NULL};

        CHECK_OK(fsdp_scope_begin(context));
        if (!graph)
            fsdp_no_grad_begin(context);
        x = input(context, n, step);
        for (int i = 0; i <= twice; i++)
            note(out, y[i] = CHECK_PTR(fsdp_call(net, x)));
        for (int i = twice; i >= 0 && graph && fsdp_tensor_requires_grad(y[i]); i--)
            CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_mean(fsdp_square(fsdp_add_scalar(y[i], 0.5))))));
        if (!graph)
            fsdp_no_grad_end(context);
        note(out, fsdp_tensor_grad(x));
        if (drops)
            fsdp_module_zero_grad(net);
        fsdp_scope_end(context, NULL);
    }
}

static void note_gradients(fsdp_module *net, numbers *out)
{
    fsdp_parameters all = {0};

    CHECK_OK(fsdp_module_parameters(net, &all));
    for (int64_t i = 0; i < all.count; i++)
        note(out, fsdp_tensor_grad(all.items[i].tensor));
    fsdp_parameters_release(&all);
}

static numbers *compute(fsdp_context *context, const network *n, bool async, fsdp_comm_stats *stats)
{
    numbers *out = CHECK_PTR(calloc(1, sizeof *out));
    fsdp_module *net = create(context, n, async);

    fsdp_context_reset_comm_stats(context);
    run(net, n, out);
    note_gradients(net, out);
    fsdp_context_comm_stats(context, stats);
    fsdp_module_unref(net);
    return out;
}

/* A recomputation may have a product, and then does not send what it is made of again. */
static void compare_bytes(const network *n, const fsdp_comm_stats *pieces, const fsdp_comm_stats *whole)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++)
        if (n->recompute == FSDP_RECOMPUTE_NONE)
            CHECK_EQ(pieces->bytes_sent[kind], whole->bytes_sent[kind]);
        else
            CHECK(pieces->bytes_sent[kind] <= whole->bytes_sent[kind]);
}

static void compare(fsdp_context *context, void *arg)
{
    const network *n = arg;
    fsdp_comm_stats stats[3];
    numbers *whole = compute(context, n, false, &stats[0]), *pieces = compute(context, n, true, &stats[1]);
    numbers *again = compute(context, n, true, &stats[2]);
    float some = n->dtype == FSDP_F32 ? 2e-5f : 0.1f;

    CHECK_EQ(pieces->count, whole->count);
    for (int64_t i = 0; i < whole->count; i++)
        if (!(fabsf(pieces->values[i] - whole->values[i]) <= some + 10 * some * fabsf(whole->values[i])))
            TEST_FAIL("number %lld is %g in pieces, and %g as a whole", (long long)i, (double)pieces->values[i],
                      (double)whole->values[i]);
    CHECK_BYTES(pieces->values, again->values, sizeof pieces->values);
    compare_bytes(n, &stats[1], &stats[0]);
    free(whole);
    free(pieces);
    free(again);
}

TEST(whatever_is_drawn_is_what_it_is_without_pieces)
{
    static const int worlds[] = {2, 3, 4, 1, 8};

    const dice_seeds seeds = dice_seeds_of("ASYNC", test_long() ? 3000 : test_brief() ? 8 : 16);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        network n = draw(seed);

        test_run_ranks(worlds[seed % (test_brief() ? 2 : 5)], compare, &n);
    }
}

/* ---- pieces of a model are counted ---- */

static const network usual = {.shape = {2, 8, 4}, .ndim = 3, .dim = 1, .wide = 6, .bias = true, .dtype = FSDP_F32};

/* A gather before the first product and one behind the backward of the second are four calls, and so are reductions;
 * the output is collected, and the gradient of the input gathered, in one. */
RANKS_TEST(a_collective_is_four_calls, 2)
{
    fsdp_module *net = create(context, &usual, true);
    fsdp_comm_stats stats;
    fsdp_tensor *x;

    for (int i = 0; i < 2; i++) {
        fsdp_context_reset_comm_stats(context);
        CHECK_OK(fsdp_scope_begin(context));
        x = input(context, &usual, 1);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_mean(fsdp_square(fsdp_call(net, x))))));
        fsdp_scope_end(context, NULL);
    }
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 2 * 4 + 2);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 2 * 4);
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], 2 * 2 * 8 * 4 * (int64_t)sizeof(float) / 2);
    fsdp_module_unref(net);
}

/* ---- modules that are freed before the backward ---- */

/* The gradient of the input, which the graph has all it needs for when the modules, and with them the mesh, go. */
static fsdp_tensor *input_gradient(fsdp_context *context, const network *n, bool async, bool early)
{
    fsdp_module *net = create(context, n, async);
    fsdp_tensor *x = input(context, n, 1), *y = CHECK_PTR(fsdp_mean(fsdp_square(fsdp_call(net, x))));

    if (early)
        fsdp_module_unref(net);
    CHECK_OK(fsdp_backward(y));
    if (!early)
        fsdp_module_unref(net);
    return CHECK_PTR(fsdp_tensor_grad(x));
}

WORLDS_TEST(modules_may_be_freed_before_the_backward, 1, 3)
{
    float values[2][INPUTS] = {{0}};
    network n = usual;

    for (int i = 0; i < 8; i++) {
        n.recompute = i & 1 ? FSDP_RECOMPUTE_SELECTIVE : FSDP_RECOMPUTE_NONE;
        n.frozen[0] = n.frozen[1] = (i & 2) != 0;
        CHECK_OK(fsdp_scope_begin(context));
        for (int early = 0; early < 2; early++)
            CHECK_OK(fsdp_tensor_read(input_gradient(context, &n, (i & 4) != 0, early), FSDP_F32, values[early]));
        CHECK_BYTES(values[0], values[1], sizeof values[0]);
        fsdp_scope_end(context, NULL);
    }
}

/* ---- failures ---- */

static fsdp_status step(fsdp_module *net, fsdp_tensor *x)
{
    fsdp_tensor *y = fsdp_mean(fsdp_square(fsdp_call(net, x)));

    if (!y)
        return fsdp_last_status();
    FSDP_TRY(fsdp_backward(y));
    return fsdp_stream_synchronize(fsdp_device_stream(fsdp_tensor_device(x)));
}

static void fail_on_one(fsdp_context *context, void *arg)
{
    fsdp_module *net = create(context, &usual, true);
    fsdp_tensor *x;

    CHECK_OK(fsdp_scope_begin(context));
    x = input(context, &usual, 1);
    test_meet();
    test_begin_fault(context, arg);
    test_end_fault(context, arg, step(net, x));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(net);
}

static void fail_each(fsdp__fault_kind kind)
{
    test_fault f = {.kind = kind, .nth = 1};
    int tried = 0;

    test_not_on_gpu("a rank that waits for nothing of a GPU need not hear that it has failed");
    for (; test_run_fault(3, fail_on_one, &f, &f); f.nth += test_long() ? 1 : test_brief() ? 5 : 2) {
        CHECK(f.failed == 3 || (kind == FSDP__FAULT_ALLOCATION && f.failed > 0));
        tried++;
    }
    CHECK(tried > 2);
}

CALL_TEST(the_nth_collective_of_one_rank_fails, fail_each(FSDP__FAULT_COLLECTIVE))
CALL_TEST(the_nth_allocation_of_one_rank_fails, fail_each(FSDP__FAULT_ALLOCATION))

/* ---- misuse ---- */

static void refuse(fsdp_module *net, fsdp_mesh *mesh, const fsdp_parallel_entry *entry, fsdp_status status,
                   const char *text)
{
    CHECK_ERROR(fsdp_parallelize_module(net, mesh, entry, 1), status, text);
    CHECK_NULL(fsdp_tensor_distribution(fsdp_module_parameter(net, "0.weight")));
    fsdp_clear_error();
}

/* Only a call tells that dimension `dim` of x (4,4) is its last, or that there is none such. */
static void refuse_last(fsdp_context *context, fsdp_mesh *mesh, int dim)
{
    const fsdp_layout cut = {FSDP_LAYOUT_SHARDED, dim};

    for (int row = 0; row < 2; row++) {
        fsdp_module *linear = fsdp_linear_create(context, test_device(context), 4, 4, NULL);
        fsdp_module *net = CHECK_PTR(fsdp_sequential_create(context, &linear, 1));
        fsdp_parallel_entry entry = {
            "0", row ? (fsdp_parallel_style){.kind = FSDP_ROW_WISE, .from = {{FSDP_LAYOUT_REPLICATED}}, .to = {cut}}
                     : (fsdp_parallel_style){.kind = FSDP_COLUMN_WISE, .from = {cut}}};

        entry.style.async = true;
        CHECK_OK(fsdp_parallelize_module(net, mesh, &entry, 1));
        CHECK_OK(fsdp_module_initialize(net, 7));
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_NULL(fsdp_call(net, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(4, 4))));
        CHECK_STATUS(fsdp_last_status(), FSDP_INVALID);
        CHECK_CONTAINS(fsdp_last_error(), dim > 0 ? "is the last: an asynchronous style needs another" : "-3");
        fsdp_clear_error();
        fsdp_scope_end(context, NULL);
        fsdp_module_unref(net);
    }
}

RANKS_TEST(misuse_is_named, 2)
{
    const fsdp_layout cut = {FSDP_LAYOUT_SHARDED, 1};
    const fsdp_parallel_entry replicated = {"0", {.kind = FSDP_COLUMN_WISE, .async = true}};
    const fsdp_parallel_entry last = {"0", {.kind = FSDP_ROW_WISE, .to = {{FSDP_LAYOUT_SHARDED, -1}}, .async = true}};
    const fsdp_parallel_entry table = {"1", {.kind = FSDP_ROW_WISE, .to = {cut}, .async = true}};
    fsdp_parallel_entry mixed = {"0", {.kind = FSDP_COLUMN_WISE, .from = {cut}}};
    fsdp_device *device = test_device(context);
    fsdp_module *net =
        CHECK_PTR(fsdp_sequential_create(context,
                                         (fsdp_module *[]){fsdp_linear_create(context, device, 4, 6, NULL),
                                                           fsdp_embedding_create(context, device, 5, 3, NULL)},
                                         2));
    fsdp_mesh *mesh = team_mesh(context);

    refuse(net, mesh, &replicated, FSDP_INVALID,
           "'0' cannot be column-wise and asynchronous with an input that is replicated: that must be sharded");
    refuse(net, mesh, &last, FSDP_INVALID, "with an output that is sharded(-1)");
    refuse(net, mesh, &table, FSDP_INVALID, "'1' is a Embedding: only the products of a Linear or Conv1D");
    refuse_last(context, mesh, 1);
    refuse_last(context, mesh, -3);
    mixed.style.async = fsdp_context_rank(context) == 1;
    refuse(net, mesh, &mixed, FSDP_MISMATCH,
           "rank 0 of the mesh has '0' column-wise, sharded(1) to sharded(-1), rank 1 has '0' column-wise, sharded(1) "
           "to sharded(-1), asynchronous");
    fsdp_mesh_unref(mesh);
    fsdp_module_unref(net);
}
