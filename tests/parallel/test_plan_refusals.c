/* Plans that are refused since features are cut, and ranks whose parameters differ. */
#include "fsdp/ops.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "parallel/parts.h"
#include "support/ranks.h"

enum {
    DIM = 9,
    WIDE = 11
};

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
#define REPLICATED                \
    {                             \
        FSDP_LAYOUT_REPLICATED, 0 \
    }
#define SHARDED(dim)             \
    {                            \
        FSDP_LAYOUT_SHARDED, dim \
    }

static fsdp_module *net_create(fsdp_context *context)
{
    fsdp_module *layers[] = {fsdp_linear_create(context, test_device(context), DIM, WIDE, NULL),
                             fsdp_linear_create(context, test_device(context), WIDE, DIM, NULL)};

    return CHECK_PTR(fsdp_sequential_create(context, layers, 2));
}

/* Counted from the front, nobody knows beforehand that a dimension is the last one: the call refuses it. */
RANKS_TEST(a_whole_bias_is_not_added_to_features_that_are_cut, 2)
{
    const fsdp_parallel_entry entries[] = {{"0", {.kind = FSDP_COLUMN_WISE}},
                                           {"1", {.kind = FSDP_ROW_WISE, .to = {SHARDED(2)}}}};
    fsdp_module *net = net_create(context);
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_OK(fsdp_parallelize_module(net, mesh, entries, COUNT(entries)));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_call(net, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(5, 7, DIM))));
    CHECK_CONTAINS(fsdp_last_error(), "has parts of the features, and the bias is whole: say sharded(-1)");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

/* Another entry would put an output in segments together. */
RANKS_TEST(an_output_in_segments_is_not_put_together_behind, 2)
{
    const fsdp_parallel_entry entries[] = {
        {"0", {.kind = FSDP_COLUMN_WISE, .segment_count = 2, .segments = {4, 7}}},
        {"0", {.kind = FSDP_PREPARE_OUTPUT, .from = {SHARDED(-1)}, .to = {REPLICATED}}}};
    fsdp_module *net = net_create(context);
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_ERROR(fsdp_parallelize_module(net, mesh, entries, COUNT(entries)), FSDP_INVALID,
                "'0' has an output in segments, each of which is cut by itself, so it cannot become replicated");
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

/* Rank 1 has a frozen parameter, then another dtype. */
RANKS_TEST(ranks_whose_parameters_differ_are_told_so, 2)
{
    const fsdp_parallel_entry column = {"0", {.kind = FSDP_COLUMN_WISE}};
    fsdp_module *frozen = net_create(context), *other = net_create(context);
    fsdp_mesh *mesh = team_mesh(context);

    if (fsdp_context_rank(context) == 1) {
        fsdp_module_set_requires_grad(fsdp_module_child(frozen, "1"), false);
        CHECK_OK(fsdp_module_to(other, FSDP_BF16));
    }
    CHECK_ERROR(fsdp_parallelize_module(frozen, mesh, &column, 1), FSDP_MISMATCH,
                "rank 0 of the mesh has '1.weight' of shape (9, 11), float32, trained, rank 1 has '1.weight' of shape "
                "(9, 11), float32, frozen");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(other, mesh, &column, 1), FSDP_MISMATCH, "bfloat16, trained");
    CHECK_NULL(fsdp_tensor_distribution(fsdp_module_parameter(other, "0.weight")));
    fsdp_module_unref(other);
    fsdp_module_unref(frozen);
    fsdp_mesh_unref(mesh);
}

/* ---- norms of parts of a sequence ---- */

static const fsdp_parallel_entry parts_norm = {"1", {.kind = FSDP_SEQUENCE_PARALLEL}};

static fsdp_module *norm_net(fsdp_context *context)
{
    fsdp_module *layers[] = {fsdp_linear_create(context, test_device(context), DIM, DIM, NULL),
                             fsdp_layernorm_create(context, test_device(context), DIM, 1e-5f)};
    fsdp_module *net = CHECK_PTR(fsdp_sequential_create(context, layers, 2));

    CHECK_OK(fsdp_module_initialize(net, 5));
    return net;
}

/* Calls a net of the plan with a sequence of four tokens, which is refused. */
static void refuse_call(fsdp_context *context, const fsdp_parallel_entry *entries, int count, const char *text)
{
    fsdp_module *net = norm_net(context);
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_OK(fsdp_parallelize_module(net, mesh, entries, count));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_call(net, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4, DIM))));
    CHECK_CONTAINS(fsdp_last_error(), text);
    fsdp_scope_end(context, NULL);
    fsdp_clear_error();
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

/* The sum of the row-wise layer is whole on each rank: gradients of the norm's weight would be twice as large. */
RANKS_TEST(a_norm_of_parts_refuses_what_is_whole, 2)
{
    const fsdp_parallel_entry whole[] = {{"0", {.kind = FSDP_ROW_WISE, .from = {REPLICATED}}}, parts_norm};
    const fsdp_parallel_entry gathered[] = {{"0", {.kind = FSDP_COLUMN_WISE, .to = {REPLICATED}}}, parts_norm};
    const fsdp_parallel_entry far = {"1", {.kind = FSDP_SEQUENCE_PARALLEL, .dim = 3}};
    const fsdp_parallel_entry features = {"1", {.kind = FSDP_SEQUENCE_PARALLEL, .dim = 2}};

    refuse_call(context, whole, 2,
                "an input (1, 4, 9) is whole, because the ranks have put it together, but must be "
                "sharded(1): let the module that makes it give that");
    refuse_call(context, gathered, 2, "an input (1, 4, 9) is whole");
    refuse_call(context, &far, 1, "an input (1, 4, 9) has nothing in dimension 3: dim must name that of the sequence");
    refuse_call(context, &features, 1, "an input (1, 4, 9) has its features in dimension 2");
}

static void read_grad(fsdp_module *net, float *out)
{
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(net, "1.weight"))), FSDP_F32, out));
}

/* Of a distributed tensor it is known what a rank has: the gradient is that of one rank, or the call is refused. */
RANKS_TEST(a_norm_of_parts_takes_a_distributed_tensor, 2)
{
    const fsdp_placement cut = {.kind = FSDP_SHARD, .dim = 1}, replicate = {.kind = FSDP_REPLICATE};
    fsdp_module *nets[] = {norm_net(context), norm_net(context)};
    fsdp_mesh *mesh = team_mesh(context);
    fsdp_process_group *group = fsdp_mesh_process_group(mesh, 0);
    float values[4 * DIM], grads[2][DIM];
    fsdp_tensor *x, *part;

    for (int i = 0; i < 4 * DIM; i++)
        values[i] = (float)(i % 7) - (float)(i % 5);
    CHECK_OK(fsdp_parallelize_module(nets[1], mesh, &parts_norm, 1));
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4, DIM), values));
    part = fsdp_from_local(fsdp_parallel_split(x, 1, group), mesh, &cut, (const int64_t[]){1, 4, DIM});
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_square(fsdp_call(fsdp_module_child(nets[0], "1"), x))))));
    part = CHECK_PTR(fsdp_sum(fsdp_square(fsdp_call(fsdp_module_child(nets[1], "1"), part))));
    CHECK_OK(fsdp_backward(fsdp_to_local(fsdp_parallel_redistribute(part, &replicate))));
    for (int i = 0; i < 2; i++)
        read_grad(nets[i], grads[i]);
    for (int i = 0; i < DIM; i++)
        CHECK_NEAR(grads[1][i], grads[0][i], 1e-4);
    CHECK_NULL(fsdp_call(fsdp_module_child(nets[1], "1"), fsdp_from_local(x, mesh, &replicate, NULL)));
    CHECK_CONTAINS(fsdp_last_error(), "its gradients, which ranks add up, would be whole on each");
    fsdp_scope_end(context, NULL);
    for (int i = 0; i < 2; i++)
        fsdp_module_unref(nets[i]);
    fsdp_mesh_unref(mesh);
}

/* ---- what is not there ---- */

RANKS_TEST(what_is_not_there_is_named_without_an_earlier_error, 1)
{
    const fsdp_parallel_entry column = {"0", {.kind = FSDP_COLUMN_WISE}};
    const fsdp_placement cut = {.kind = FSDP_SHARD};
    fsdp_module *net = net_create(context);
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_NULL(fsdp_module_child(net, "earlier")); /* an error that has nothing to do with what follows */
    CHECK_STATUS(fsdp_parallelize_module(net, NULL, &column, 1), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "tensor parallelism needs a module and a mesh, but the mesh is NULL");
    CHECK_STATUS(fsdp_parallelize_module(NULL, mesh, &column, -1), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "tensor parallelism needs a module and a mesh, but the module is NULL");
    CHECK_STATUS(fsdp_parallelize_module(net, mesh, &column, -1), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "a plan of -1 entries: expected 0 or more");
    CHECK_STATUS(fsdp_model_parallelize(NULL, mesh, NULL), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "tensor parallelism needs a model and a mesh, but the model is NULL");
    CHECK_STATUS(fsdp_model_context_parallel(NULL, NULL), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "context parallelism needs a model and a mesh, but the model is NULL");
    CHECK_STATUS(fsdp_parallel_place(fsdp_module_child(net, "1"), NULL, mesh, cut, false), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "parallel_place: the name of the parameter is NULL");
    CHECK_STATUS(fsdp_parallel_place(fsdp_module_child(net, "1"), "scale", mesh, cut, false), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "parallel_place: '1', a Linear, has no parameter 'scale'");
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}
