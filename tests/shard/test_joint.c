/* What parameters that another mesh has cut before look like once they are sharded: placements, parts, collectives,
 * bytes; what is refused, and what happens where ranks differ or something fails.
 * Links: state */
#include "autograd/autograd.h"
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "fsdp/shard_map.h"
#include "shard/cut_net.h"
#include "shard/group/mesh_info.h"
#include "shard/net.h"

/* ---- looks ---- */

static void check_shape(fsdp_module *module, const char *name, int64_t rows, int64_t cols)
{
    const fsdp_tensor *t = fsdp_module_parameter(module, name);

    CHECK_EQ(fsdp_tensor_size(t, 0), rows);
    if (cols > 0)
        CHECK_EQ(fsdp_tensor_size(t, 1), cols);
}

static void check_placement(fsdp_module *module, const char *name, int at, int dim, int64_t split_factor)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(fsdp_module_parameter(module, name));

    CHECK_EQ(d->placement_count, 2);
    CHECK_EQ(d->placements[at].kind, dim < 0 ? FSDP_REPLICATE : FSDP_SHARD);
    if (dim >= 0)
        CHECK_EQ(d->placements[at].dim, dim);
    CHECK_EQ(d->placements[at].split_factor, split_factor);
    CHECK_EQ(d->partial_gradients, 0);
    CHECK_STRING(fsdp_mesh_dim_name(d->mesh, 0), "shard");
    CHECK_STRING(fsdp_mesh_dim_name(d->mesh, 1), "tp");
}

/* As PyTorch prints it: (_StridedShard(dim=0, sf=2), Shard(dim=0)), (Shard(dim=0), Shard(dim=1)), (Shard(dim=0),
 * Replicate()), and (Shard(dim=0),) of what is plain. */
RANKS_TEST(shards_are_distributed_over_both_meshes, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_sharded(context, &m, &(fsdp_shard_options){.mesh = NULL});
    int data = fsdp_mesh_coordinate(m.root, 0), part = fsdp_mesh_coordinate(m.root, 1);
    int64_t gates = part == 0 ? 4 : 3; /* of 7, of gate and up alike: 2 x 4 rows or 2 x 3, and then in two */

    check_placement(module, "table", 0, 0, 2);
    check_placement(module, "table", 1, 0, 0);
    check_placement(module, "blocks.0.fused", 0, 0, 2);
    check_placement(module, "blocks.0.down", 0, 0, 0);
    check_placement(module, "blocks.0.down", 1, 1, 0);
    check_placement(module, "blocks.0.norm", 0, 0, 0);
    check_placement(module, "blocks.0.norm", 1, -1, 0);
    CHECK_EQ(fsdp_tensor_distribution(fsdp_module_parameter(module, "blocks.0.bias"))->placement_count, 1);
    CHECK_EQ(fsdp_tensor_distribution(fsdp_module_parameter(module, "blocks.0.fused"))->global_shape[0], 2 * CUT_FFN);
    check_shape(module, "table", data == 0 ? 2 : 1, CUT_DIM);
    check_shape(module, "blocks.0.fused", gates, CUT_DIM);
    check_shape(module, "blocks.0.down", data == 0 ? 3 : 2, gates);
    check_shape(module, "blocks.0.norm", data == 0 ? 3 : 2, 0);
    CHECK_OK(fsdp_module_unshard(cut_net_block(module, 0)));
    check_shape(module, "blocks.0.fused", 2 * gates, CUT_DIM);
    check_shape(module, "blocks.0.down", CUT_DIM, gates);
    CHECK(fsdp_tensor_distribution(fsdp_module_parameter(module, "blocks.0.down"))->mesh == m.parts);
    CHECK_OK(fsdp_module_reshard(cut_net_block(module, 0)));
    cut_net_backward(module, m.batch, m.batches, 0, 0, 1);
    CHECK_EQ(fsdp_tensor_distribution(fsdp_tensor_grad(fsdp_module_parameter(module, "table")))->placement_count, 2);
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

/* The map counts this rank's rows of what was cut before. */
RANKS_TEST(the_map_has_what_each_rank_holds, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_sharded(context, &m, &(fsdp_shard_options){.mesh = NULL});
    fsdp_shard_map entries = {.count = 0};

    CHECK_OK(fsdp_module_shard_map(module, &entries));
    for (int64_t i = 0; i < entries.count; i++) {
        const fsdp_shard_map_entry *e = &entries.items[i];
        fsdp_tensor *t = fsdp_module_parameter(module, e->name);

        CHECK_EQ(e->local_numel, fsdp_tensor_numel(t));
        CHECK_EQ(e->ranks, 2);
        CHECK_EQ(e->count, fsdp_tensor_size(t, 0));
    }
    fsdp_shard_map_release(&entries);
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

static fsdp_status count_calls(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor, (void)grad;
    ++*(int *)arg;
    return FSDP_OK;
}

/* What has added up gradients of the parameter before is gone; the caller's own hooks stay. */
RANKS_TEST(what_has_added_up_gradients_before_is_replaced, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context));
    int lasting = 0, own = 0;

    cut_net_cut(module, m.parts, true);
    CHECK_OK(fsdp__add_grad_hook(fsdp_module_parameter(module, "blocks.0.norm"), count_calls, &lasting, NULL));
    CHECK_OK(fsdp_tensor_add_grad_hook(fsdp_module_parameter(module, "blocks.0.norm"), count_calls, &own));
    cut_net_shard(module, &(fsdp_shard_options){.mesh = m.data});
    cut_net_backward(module, m.batch, m.batches, 0, 0, 1);
    CHECK_EQ(lasting, 0);
    CHECK_EQ(own, 1);
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

/* ---- collectives ---- */

typedef struct counted {
    cut_layout layout;
    int micros;
    bool sync;
} counted;

/* Per forward the network itself adds up 2 and 2 a block, per backward 1 and 2 a block; the engine a norm a block, once
 * whenever a group reduces. */
static void count(fsdp_context *context, void *arg)
{
    const counted *c = arg;
    cut_meshes m = cut_meshes_create(context, c->layout);
    fsdp_module *module = cut_net_sharded(context, &m, &(fsdp_shard_options){.mesh = NULL});
    int64_t reductions = c->sync ? c->micros : 1, groups = CUT_BLOCKS + 1;
    fsdp_comm_stats before, after, shards;
    fsdp_process_group *parts = fsdp_mesh_process_group(m.parts, 0);
    fsdp_process_group *data = fsdp_mesh_process_group(m.data, fsdp_mesh_ndim(m.data) - 1);

    for (int step = 0; step < 2; step++) {
        fsdp_context_reset_comm_stats(context);
        fsdp_process_group_stats(parts, &before);
        for (int micro = 0; micro < c->micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, c->sync || micro == c->micros - 1, true));
            cut_net_backward(module, m.batch, m.batches, step, micro, c->micros);
        }
        fsdp_process_group_stats(parts, &after);
        fsdp_context_comm_stats(context, &shards);
        CHECK_EQ(after.calls[FSDP_ALL_REDUCE] - before.calls[FSDP_ALL_REDUCE],
                 (3 + 4 * CUT_BLOCKS) * c->micros + CUT_BLOCKS * reductions);
        CHECK_EQ(after.calls[FSDP_REDUCE_SCATTER] + after.calls[FSDP_ALL_GATHER], 0);
        if (fsdp_process_group_size(data) > 1) {
            CHECK_EQ(shards.calls[FSDP_REDUCE_SCATTER], groups * reductions);
            CHECK_EQ(shards.calls[FSDP_ALL_GATHER], (groups + CUT_BLOCKS) * c->micros);
        }
    }
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

TEST(partial_gradients_take_one_all_reduce_a_parameter_when_a_group_reduces)
{
    static const counted cases[] = {{{1, 2, 2}, 1, false},
                                    {{1, 2, 2}, 3, false},
                                    {{1, 2, 2}, 3, true},
                                    {{1, 1, 2}, 3, false},
                                    {{2, 2, 2}, 2, false}};

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        counted c = cases[i];

        test_run_ranks(c.layout.replicas * c.layout.shards * c.layout.parts, count, &c);
    }
}

/* ---- bytes ---- */

static size_t rounded(int64_t elements, size_t size)
{
    return ((size_t)elements * size + 63) / 64 * 64;
}

/* The bytes of a block, or of the root, with so many elements of one rank, or of all. */
typedef struct bytes {
    size_t shard, whole;         /* in f32: of one rank, and of all ranks */
    size_t low_shard, low_whole; /* the same in bfloat16 */
    size_t norm;
} bytes;

static void add_bytes(bytes *b, int64_t rows, int64_t inner, int64_t ranks)
{
    int64_t chunk = (rows + ranks - 1) / ranks * inner;

    b->shard += rounded(chunk, 4);
    b->whole += rounded(chunk * ranks, 4);
    b->low_shard += rounded(chunk, 2);
    b->low_whole += rounded(chunk * ranks, 2);
}

static bytes bytes_of_block(int64_t ranks, int64_t parts, int64_t part)
{
    int64_t start, ffn = fsdp_shard_range(CUT_FFN, parts, part, &start);
    bytes b = {.shard = 0};

    add_bytes(&b, CUT_DIM, 1, ranks);
    add_bytes(&b, 2 * ffn, CUT_DIM, ranks);
    add_bytes(&b, 2 * ffn, 1, ranks);
    add_bytes(&b, CUT_DIM, ffn, ranks);
    add_bytes(&b, CUT_DIM, 1, ranks);
    b.norm = rounded((CUT_DIM + ranks - 1) / ranks * ranks, 4);
    return b;
}

typedef struct ledger {
    cut_layout layout;
    bool low; /* bfloat16 parameters, and f32 reductions */
} ledger;

static void check_ledger(fsdp_context *context, void *arg)
{
    const ledger *l = arg;
    cut_meshes m = cut_meshes_create(context, l->layout);
    int64_t ranks = l->layout.shards, part = fsdp_mesh_coordinate(m.parts, 0), start;
    bytes block = bytes_of_block(ranks, l->layout.parts, part), root = {.shard = 0};
    const fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                        .overlap = FSDP_OVERLAP_INLINE,
                                        .no_shared_memory = true,
                                        .mp_policy = {.param_dtype = l->low ? FSDP_BF16 : FSDP_DTYPE_NONE}};
    fsdp_device *device = test_device(context);
    fsdp_module *module = cut_net_sharded(context, &m, &options);
    size_t shards, casts, whole_block = l->low ? block.low_whole : block.whole, whole_root,
                          sum = l->low && l->layout.parts > 1 ? block.norm : 0;
    fsdp_memory_stats stats;

    add_bytes(&root, fsdp_shard_range(CUT_OUT, l->layout.parts, part, &start), CUT_DIM, ranks);
    whole_root = l->low ? root.low_whole : root.whole;
    shards = CUT_BLOCKS * block.shard + root.shard;
    casts = l->low ? CUT_BLOCKS * block.low_shard + root.low_shard : 0; /* are kept */
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards + casts);
    for (int step = 0; step < 3; step++) {
        size_t before_last = whole_root + whole_block + sum + CUT_BLOCKS * block.shard;
        size_t most = FSDP__MAX(before_last, whole_root + shards);

        fsdp_device_reset_peak(device);
        cut_net_backward(module, m.batch, m.batches, step, 0, 1);
        fsdp_device_memory(device, &stats);
        if (ranks > 1) /* the blocks, one used and one prefetched, and the root */
            CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], whole_root + 2 * whole_block);
        /* Of a rank that is alone, gradients are computed where they stay. */
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], ranks == 1 ? shards : most);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], shards);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards + casts);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        fsdp_module_zero_grad(module);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    }
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

TEST(bytes_are_those_of_the_part_that_is_sharded)
{
    static const cut_layout some[] = {{1, 2, 2}, {1, 4, 2}, {1, 2, 1}, {1, 2, 4}, {1, 1, 2}, {1, 1, 4}};

    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (size_t i = 0; i < FSDP__COUNT_OF(some); i++)
        for (int low = 0; low < 2; low++)
            if (!low || some[i].shards > 1)
                test_run_ranks(some[i].shards * some[i].parts, check_ledger, &(ledger){some[i], low});
}

/* ---- refusals ---- */

static void check_refused(fsdp_module *block, const fsdp_shard_options *options, fsdp_status status, const char *first,
                          const char *second)
{
    const fsdp_tensor *down = fsdp_module_parameter(block, "down");
    const fsdp_distribution *before = fsdp_tensor_distribution(down);

    net_check_refused(first, fsdp_fully_shard(block, options), status, (const char *const[]){first, second}, 2);
    CHECK(!fsdp_module_is_sharded(block)); /* nothing has changed */
    CHECK(fsdp_tensor_distribution(down) == before);
}

RANKS_TEST(meshes_that_do_not_go_together_and_other_doors_are_refused, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context)), *block = cut_net_block(module, 0);
    fsdp_mesh *other = NULL, *flat = NULL;
    const int64_t shape[] = {2, 2};

    CHECK_OK(fsdp_mesh_create(context, 2, shape, (const char *const[]){"a", "b"}, &other));
    CHECK_OK(fsdp_mesh_slice(other, 1, (const char *const[]){"a"}, &flat));
    cut_net_cut(module, m.parts, true);
    check_refused(block, &(fsdp_shard_options){.mesh = flat}, FSDP_INVALID, "'norm', a distributed tensor already",
                  "parts of two meshes");
    check_refused(block, NULL, FSDP_INVALID, "a distributed tensor already", "parts of two meshes");
    check_refused(block, &(fsdp_shard_options){.mesh = m.parts}, FSDP_INVALID, "cannot shard 'norm'",
                  "a dimension in common");
    check_refused(block, &(fsdp_shard_options){.mesh = m.root}, FSDP_INVALID, "cannot shard 'norm'",
                  "a dimension in common");
    CHECK_ERROR(fsdp_fsdp1_wrap(block, &(fsdp_fsdp1_options){.mesh = m.data}), FSDP_UNSUPPORTED,
                "a distributed tensor already, over mesh dimension 'tp': use fsdp_fully_shard");
    CHECK_ERROR(fsdp_replicate(block, &(fsdp_replicate_options){.mesh = m.data}), FSDP_STATE,
                "distributed tensor already");
    fsdp_module_unref(module);
    fsdp_mesh_unref(flat);
    fsdp_mesh_unref(other);
    cut_meshes_free(&m);
}

RANKS_TEST(more_groups_of_ranks_than_are_asked_are_refused, 2)
{
    fsdp_mesh *meshes[FSDP_MAX_MESH_DIMS + 1];
    fsdp__mesh_info info = {0};

    for (int i = 0; i <= FSDP_MAX_MESH_DIMS; i++)
        CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, NULL, &meshes[i]));
    for (int i = 0; i < FSDP_MAX_MESH_DIMS; i++)
        for (int again = 0; again < 2; again++) /* twice is once */
            CHECK_OK(fsdp__mesh_info_add_parallel(&info, meshes[i]));
    CHECK_EQ(info.parallel_count, FSDP_MAX_MESH_DIMS);
    CHECK_ERROR(fsdp__mesh_info_add_parallel(&info, meshes[FSDP_MAX_MESH_DIMS]), FSDP_UNSUPPORTED,
                "cut over more than 4 process groups, of which one is mesh dimension 'dp'");
    for (int i = 0; i <= FSDP_MAX_MESH_DIMS; i++)
        fsdp_mesh_unref(meshes[i]);
}

RANKS_TEST(slices_are_refused, 8)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 4, 2});
    fsdp_module *module = cut_net_create(context, test_device(context)), *block = cut_net_block(module, 0);

    cut_net_cut(module, m.parts, true);
    check_refused(block, &(fsdp_shard_options){.mesh = m.data, .reshard_after_forward_ranks = 2}, FSDP_UNSUPPORTED,
                  "reshard_after_forward_ranks 2: parameter '", "is cut over mesh dimension 'tp' as well");
    CHECK_OK(fsdp_fully_shard(block, &(fsdp_shard_options){.mesh = m.data, .reshard_after_forward_ranks = 4}));
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

static bool takes_all(void *arg, const char *name, const fsdp_tensor *parameter)
{
    (void)arg, (void)name, (void)parameter;
    return true;
}

/* What has no parts that could be sharded, and codes that depend on parts. */
RANKS_TEST(partial_parameters_and_codes_are_refused, 4)
{
    const fsdp_placement partial = {.kind = FSDP_PARTIAL, .op = FSDP_SUM};
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context)), *block = cut_net_block(module, 0);
    fsdp_tensor *bias = fsdp_module_parameter(block, "bias");
    fsdp_distribution d = {.mesh = m.parts, .placement_count = 1, .placements = {partial}, .ndim = 1};

    d.global_shape[0] = CUT_DIM;
    CHECK_OK(fsdp_tensor_set_distribution(bias, &d));
    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.mesh = m.data}), FSDP_UNSUPPORTED,
                "it is partial over mesh dimension 'tp'");
    d.placements[0] = (fsdp_placement){.kind = FSDP_REPLICATE};
    CHECK_OK(fsdp_tensor_set_distribution(bias, &d));
    cut_net_cut(module, m.parts, true);
    check_refused(block,
                  &(fsdp_shard_options){.mesh = m.data, .gather_extension = fsdp_gather_int8(), .extends = takes_all},
                  FSDP_UNSUPPORTED, "cannot shard 'norm' with a gather extension", "over mesh dimension 'tp' already");
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

/* ---- ranks that differ, and failures ---- */

RANKS_TEST(ranks_that_cut_in_different_ways_are_told, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context));

    cut_net_cut(module, m.parts, fsdp_context_rank(context) != 3);
    cut_net_shard(module, &(fsdp_shard_options){.mesh = m.data});
    CHECK_STATUS(net_try_of(module, CUT_OUT), FSDP_MISMATCH);
    if (fsdp_context_rank(context) == 3)
        CHECK_CONTAINS(fsdp_last_error(), "'blocks.0.norm': float32 (5,), over (tp=2) as (Replicate(),) with partial "
                                          "gradients before");
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

/* A parameter that has a gradient on one rank only fails the call on all, also on those of other parts. */
RANKS_TEST(a_failure_of_one_rank_is_everybodys, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context)), *block = cut_net_block(module, 0);
    fsdp_tensor *bias = fsdp_module_parameter(block, "bias"), *grad = NULL;

    cut_net_cut(module, m.parts, true);
    if (fsdp_context_rank(context) == 2) {
        CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(CUT_DIM), FSDP_MEMORY_GRADIENT, &grad));
        CHECK_OK(fsdp_tensor_fill_(grad, 1));
        CHECK_OK(fsdp_tensor_set_grad(bias, grad));
        fsdp_tensor_unref(grad);
    }
    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.mesh = m.data}), FSDP_STATE, "rank 2: ");
    CHECK_CONTAINS(fsdp_last_error(), "it has a gradient of this rank's own");
    CHECK_OK(fsdp_tensor_set_grad(bias, NULL));
    CHECK_OK(fsdp_fully_shard(block, &(fsdp_shard_options){.mesh = m.data}));
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

typedef struct fault {
    test_fault fault;
    bool low;
} fault;

static fsdp_status try_steps(fsdp_module *module, const fsdp_shard_options *options)
{
    for (int64_t i = 0; i < CUT_BLOCKS; i++)
        FSDP_TRY(fsdp_fully_shard(cut_net_block(module, i), options));
    FSDP_TRY(fsdp_fully_shard(module, options));
    for (int i = 0; i < 2; i++)
        FSDP_TRY(net_try_of(module, CUT_OUT));
    fsdp_module_zero_grad(module);
    return fsdp_barrier(fsdp_world(module->context));
}

static void run_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_create(context, test_device(context));
    const fsdp_shard_options options = {.mesh = m.data,
                                        .mp_policy = {.param_dtype = f->low ? FSDP_BF16 : FSDP_DTYPE_NONE}};

    cut_net_cut(module, m.parts, true);
    test_begin_fault(context, &f->fault);
    test_end_fault(context, &f->fault, try_steps(module, &options));
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

static void fail_each(fsdp__fault_kind kind, bool low)
{
    fault of = {{.kind = kind, .nth = 1}, low};
    test_fault *f = &of.fault;
    long tried = 0;

    for (; test_run_fault(4, run_with_fault, &of, f); tried++) {
        if (f->failed == 0)
            TEST_FAIL("fault %ld: no rank failed", f->nth);
        f->nth += test_long() ? 1 : 1 + f->nth / (test_brief() ? 5 : 15);
    }
    CHECK(tried > 5);
}

TEST(the_nth_failure_of_one_rank_leaves_nobody_behind)
{
    for (int low = 0; low < 2; low++) {
        fail_each(FSDP__FAULT_ALLOCATION, low);
        fail_each(FSDP__FAULT_COLLECTIVE, low);
    }
}

/* ---- whole parameters, other dtypes ---- */

/* A summon gives this rank's part over the earlier mesh; what is written there comes back. */
RANKS_TEST(a_summon_gives_the_part_that_is_sharded, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_sharded(context, &m, &(fsdp_shard_options){.mesh = NULL});
    int64_t before_count, count;
    float *before = net_values(module, &before_count), *values;

    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    check_shape(module, "blocks.1.down", CUT_DIM, fsdp_mesh_coordinate(m.parts, 0) == 0 ? 4 : 3);
    CHECK(fsdp_tensor_distribution(fsdp_module_parameter(module, "blocks.1.down"))->mesh == m.parts);
    CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(module, "blocks.1.down"), 2));
    CHECK_OK(fsdp_module_end_summon(module));
    values = net_values(module, &count);
    CHECK_EQ(count, before_count);
    for (int64_t i = 0; i < count - CUT_DIM; i++) /* down and bias come last */
        CHECK(i < count - CUT_DIM - CUT_DIM * CUT_FFN ? values[i] == before[i] : values[i] == 2);
    free(before);
    free(values);
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}

RANKS_TEST(another_dtype_keeps_the_distribution, 4)
{
    cut_meshes m = cut_meshes_create(context, (cut_layout){1, 2, 2});
    fsdp_module *module = cut_net_sharded(context, &m, &(fsdp_shard_options){.mesh = NULL});

    CHECK_OK(fsdp_module_to(module, FSDP_BF16));
    check_placement(module, "blocks.0.fused", 0, 0, 2);
    CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(module, "blocks.0.fused")), FSDP_BF16);
    cut_net_backward(module, m.batch, m.batches, 0, 0, 1);
    CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.norm")));
    fsdp_module_unref(module);
    cut_meshes_free(&m);
}
