/* Plans by name patterns for modules of one's own: every style and layout gives what one rank gives, and misuse is
 * named. */
#include "device/device.h"
#include "fsdp/parallelize.h"
#include "parallel/parts.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    WORDS = 13,
    DIM = 9,
    WIDE = 11,
    BATCH = 5,
    LENGTH = 7,
    OUTPUTS = BATCH * LENGTH * DIM,
    MAX_NUMEL = 128
};

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
#define REPLICATED                \
    {                             \
        FSDP_LAYOUT_REPLICATED, 0 \
    }
#define COPIED                \
    {                         \
        FSDP_LAYOUT_COPIED, 0 \
    }
#define SHARDED(dim)             \
    {                            \
        FSDP_LAYOUT_SHARDED, dim \
    }

/* 0: Embedding, 1: LayerNorm, 2: Linear, 3: GELU, 4: Linear, 5: Dropout */
static fsdp_module *net_create(fsdp_context *context, fsdp_device *device)
{
    fsdp_module *layers[] = {
        fsdp_embedding_create(context, device, WORDS, DIM, NULL), fsdp_layernorm_create(context, device, DIM, 1e-5f),
        fsdp_linear_create(context, device, DIM, WIDE, NULL),     fsdp_gelu_create(context, true),
        fsdp_linear_create(context, device, WIDE, DIM, NULL),     fsdp_dropout_create(context, 0.3f, 17)};

    return CHECK_PTR(fsdp_sequential_create(context, layers, 6));
}

static fsdp_tensor *words(fsdp_context *context)
{
    int32_t ids[BATCH * LENGTH];

    for (int i = 0; i < BATCH * LENGTH; i++)
        ids[i] = (5 * i + i * i) % WORDS;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, LENGTH), ids));
}

static void train(fsdp_context *context, fsdp_module *net, float *outputs)
{
    fsdp_tensor *y = CHECK_PTR(fsdp_call(net, words(context)));

    CHECK_OK(fsdp_tensor_read(y, FSDP_F32, outputs));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_mean(fsdp_square(fsdp_add_scalar(y, 0.5))))));
}

/* Compares gradients and values with those of a model that is whole. */
static void compare(fsdp_module *whole, fsdp_module *cut)
{
    fsdp_parameters a = {0}, b = {0};

    CHECK_OK(fsdp_module_parameters(whole, &a));
    CHECK_OK(fsdp_module_parameters(cut, &b));
    CHECK_EQ(a.count, b.count);
    for (int64_t i = 0; i < a.count; i++) {
        float want[2][MAX_NUMEL], got[2][MAX_NUMEL];

        CHECK(fsdp_tensor_numel(a.items[i].tensor) <= MAX_NUMEL);
        CHECK_OK(fsdp_tensor_read(a.items[i].tensor, FSDP_F32, want[0]));
        CHECK_OK(fsdp_tensor_read(b.items[i].tensor, FSDP_F32, got[0]));
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(a.items[i].tensor)), FSDP_F32, want[1]));
        if (fsdp_tensor_numel(b.items[i].tensor) > 0)
            CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(b.items[i].tensor)), FSDP_F32, got[1]));
        for (int k = 0; k < 2; k++)
            check_part(a.items[i].name, b.items[i].tensor, got[k], want[k]);
    }
    fsdp_parameters_release(&a);
    fsdp_parameters_release(&b);
}

typedef struct plan {
    const fsdp_parallel_entry *entries;
    int count;
    bool meta;
} plan;

/* Applies a plan to one of two equal models. */
static void run(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    fsdp_device *device = test_device(context);
    fsdp_module *whole = net_create(context, device), *cut = net_create(context, p->meta ? fsdp_meta(context) : device);
    fsdp_mesh *mesh = team_mesh(context);
    float wanted[OUTPUTS], got[2][OUTPUTS];

    CHECK_OK(fsdp_parallelize_module(cut, mesh, p->entries, p->count));
    CHECK_OK(fsdp_module_materialize(cut, device));
    CHECK_OK(fsdp_module_initialize(whole, 3));
    CHECK_OK(fsdp_module_initialize(cut, 3));
    CHECK_OK(fsdp_scope_begin(context));
    train(context, whole, wanted);
    for (int i = 0; i < 2; i++) {
        fsdp_module_zero_grad(cut);
        CHECK_OK(fsdp_module_set_draws(cut, 0));
        train(context, cut, got[i]);
    }
    for (int i = 0; i < OUTPUTS; i++)
        check_alike("output", i, got[0][i], wanted[i]);
    CHECK_BYTES(got[0], got[1], sizeof got[0]);
    compare(whole, cut);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(cut);
    fsdp_module_unref(whole);
    fsdp_mesh_unref(mesh);
}

static void run_in_worlds(const fsdp_parallel_entry *entries, int count)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (int i = 0; i < COUNT(worlds); i++)
        test_run_ranks(worlds[i], run, &(plan){entries, count, i == 2});
}

TEST(a_plan_gives_what_one_rank_gives)
{
    const fsdp_parallel_entry entries[] = {
        {"0", {.kind = FSDP_ROW_WISE}}, {"2", {.kind = FSDP_COLUMN_WISE}}, {"[4]", {.kind = FSDP_ROW_WISE}}};

    run_in_worlds(entries, COUNT(entries));
}

TEST(products_may_take_and_give_what_is_replicated)
{
    const fsdp_parallel_entry entries[] = {{"0", {.kind = FSDP_COLUMN_WISE, .to = {REPLICATED}}},
                                           {"2", {.kind = FSDP_COLUMN_WISE, .to = {REPLICATED}}},
                                           {"4", {.kind = FSDP_ROW_WISE, .from = {REPLICATED}}}};

    run_in_worlds(entries, COUNT(entries));
}

/* The bias is cut with the features, of which there may be fewer than ranks. */
TEST(a_row_wise_product_may_leave_its_features_cut)
{
    const fsdp_parallel_entry entries[] = {
        {"2", {.kind = FSDP_COLUMN_WISE}},
        {"4", {.kind = FSDP_ROW_WISE, .to = {SHARDED(-1)}}},
        {"5", {.kind = FSDP_PREPARE_INPUT, .from = {SHARDED(-1)}, .to = {REPLICATED}}},
    };

    run_in_worlds(entries, COUNT(entries));
}

TEST(sequences_may_be_cut_between_products)
{
    const fsdp_parallel_entry entries[] = {{"0", {.kind = FSDP_ROW_WISE, .to = {SHARDED(1)}}},
                                           {"1", {.kind = FSDP_SEQUENCE_PARALLEL}},
                                           {"2", {.kind = FSDP_COLUMN_WISE, .from = {SHARDED(1)}}},
                                           {"4", {.kind = FSDP_ROW_WISE, .to = {SHARDED(-2)}}},
                                           {"5", {.kind = FSDP_SEQUENCE_PARALLEL, .to = {REPLICATED}}}};

    run_in_worlds(entries, COUNT(entries));
}

TEST(inputs_and_outputs_may_be_prepared)
{
    const fsdp_parallel_entry entries[] = {
        {"1", {.kind = FSDP_SEQUENCE_PARALLEL, .from = {REPLICATED}, .to = {REPLICATED}}},
        {"2", {.kind = FSDP_PREPARE_INPUT, .to = {COPIED}}},
        {"2", {.kind = FSDP_COLUMN_WISE, .from = {COPIED}}},
        {"4", {.kind = FSDP_ROW_WISE, .to = {SHARDED(0)}}},
        {"5", {.kind = FSDP_PREPARE_INPUT, .from = {SHARDED(0)}, .to = {SHARDED(1)}}},
        {"5", {.kind = FSDP_SEQUENCE_PARALLEL}},
        {"", {.kind = FSDP_PREPARE_OUTPUT, .from = {SHARDED(1)}, .to = {REPLICATED}}}};

    run_in_worlds(entries, COUNT(entries));
}

/* A column-wise Linear whose input is prepared by another entry, and whose output another one puts together. */
TEST(an_uneven_part_that_a_projection_leaves_cut_is_put_together)
{
    const fsdp_parallel_entry entries[] = {
        {"2", {.kind = FSDP_PREPARE_INPUT, .to = {COPIED}}},
        {"2", {.kind = FSDP_COLUMN_WISE, .from = {COPIED}}},
        {"3", {.kind = FSDP_PREPARE_INPUT, .from = {SHARDED(-1)}, .to = {REPLICATED}}},
    };

    run_in_worlds(entries, COUNT(entries));
}

/* A Linear that works on parts of the batch. */
static fsdp_status work_on_parts(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh)
{
    const fsdp_placement whole = {.kind = FSDP_REPLICATE};

    CHECK_STRING(name, arg);
    FSDP_TRY(fsdp_parallel_place(module, "weight", mesh, whole, true));
    return fsdp_parallel_place(module, "bias", mesh, whole, true);
}

TEST(a_style_may_be_the_callers_own)
{
    const fsdp_parallel_entry entries[] = {
        {"2", {.kind = FSDP_PREPARE_INPUT, .to = {SHARDED(0)}}},
        {"2", {.kind = FSDP_CUSTOM_PARALLEL, .apply = work_on_parts, .arg = "2"}},
        {"4", {.kind = FSDP_CUSTOM_PARALLEL, .apply = work_on_parts, .arg = "4"}},
        {"4", {.kind = FSDP_PREPARE_OUTPUT, .from = {SHARDED(0)}, .to = {REPLICATED}}}};

    run_in_worlds(entries, COUNT(entries));
}

/* Returns (1,length,2), of which all numbers differ. */
static fsdp_tensor *sequence(fsdp_context *context, int64_t length)
{
    float values[64];

    for (int i = 0; i < 2 * length; i++)
        values[i] = (float)(i + 10 * length);
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, length, 2), values));
}

/* Makes a net of two layers, of which the first cuts sequences, and the second puts parts together. */
static fsdp_module *cutter(fsdp_context *context, fsdp_mesh *mesh, fsdp_module *layers[2])
{
    const fsdp_parallel_entry entries[] = {
        {"0", {.kind = FSDP_PREPARE_OUTPUT, .to = {SHARDED(1)}}},
        {"1", {.kind = FSDP_PREPARE_INPUT, .from = {SHARDED(1)}, .to = {REPLICATED}}}};
    fsdp_module *net;

    for (int i = 0; i < 2; i++)
        layers[i] = CHECK_PTR(fsdp_dropout_create(context, 0, 1));
    net = CHECK_PTR(fsdp_sequential_create(context, layers, 2));
    CHECK_OK(fsdp_parallelize_module(net, mesh, entries, 2));
    return net;
}

/* Two sequences of different lengths are cut by one plan, and put together in another order. Parts of what a module has
 * cut in a way of its own are refused on all ranks. */
static void cut_two(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = team_mesh(context);
    fsdp_module *layers[2], *net = cutter(context, mesh, layers);
    fsdp_tensor *whole[3], *parts[3], *again;
    int world = fsdp_context_world_size(context);
    char text[80];

    (void)arg;
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 3; i++) {
        whole[i] = sequence(context, 7 - i);
        parts[i] = CHECK_PTR(fsdp_call(layers[0], whole[i]));
    }
    for (int i = 0; i < 3; i++) {
        float wanted[64] = {0}, got[64] = {0};

        again = CHECK_PTR(fsdp_call(layers[1], parts[i]));
        CHECK_EQ(fsdp_tensor_size(again, 1), 7 - i);
        CHECK_OK(fsdp_tensor_read(whole[i], FSDP_F32, wanted));
        CHECK_OK(fsdp_tensor_read(again, FSDP_F32, got));
        CHECK_BYTES(got, wanted, sizeof got);
    }
    snprintf(text, sizeof text, "rank 0 of the mesh has 1 of the %d in dimension 1", 2 * world - 1);
    again = sequence(context, fsdp_context_rank(context) == 0 ? 1 : 2);
    if (world > 1)
        CHECK_NULL(fsdp_call(layers[1], again));
    if (world > 1)
        CHECK_CONTAINS(fsdp_last_error(), text);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

/* One uneven cut, after which a rank has another part than was cut: all ranks find how long that is. */
RANKS_TEST(a_part_of_another_length_than_was_cut_is_asked_for, 2)
{
    fsdp_mesh *mesh = team_mesh(context);
    fsdp_module *layers[2], *net = cutter(context, mesh, layers);

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_PTR(fsdp_call(layers[0], sequence(context, 5))); /* 3 and 2 */
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_call(layers[1], sequence(context, 3))), 1), 6);
    CHECK_NULL(fsdp_call(layers[1], sequence(context, 2 + fsdp_context_rank(context))));
    CHECK_CONTAINS(fsdp_last_error(), "rank 0 of the mesh has 2 of the 5 in dimension 1");
    fsdp_clear_error();
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

TEST(lengths_of_two_sequences_are_not_mixed_up)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (int i = 0; i < COUNT(worlds); i++)
        test_run_ranks(worlds[i], cut_two, NULL);
}

/* ---- misuse ---- */

static void refuse(fsdp_context *context, const fsdp_parallel_entry *entry, fsdp_status status, const char *text)
{
    fsdp_module *net = net_create(context, test_device(context));
    fsdp_mesh *mesh = team_mesh(context);

    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(net, mesh, entry, 1), status, text);
    CHECK_NULL(fsdp_tensor_distribution(fsdp_module_parameter(net, "2.weight")));
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

WORLDS_TEST(an_entry_that_does_not_fit_is_refused, 1, 2)
{
    static const struct {
        fsdp_parallel_entry entry;
        const char *text;
    } cases[] = {
        {{"layers.*", {.kind = FSDP_ROW_WISE}},
         "the pattern 'layers.*' matches no module of the Sequential: the nearest is '0'"},
        {{"4.bias", {.kind = FSDP_ROW_WISE}}, "'4.bias' matches no module of the Sequential: the nearest is '4'"},
        {{"1", {.kind = FSDP_COLUMN_WISE}},
         "makes '1' column-wise, which is a LayerNorm: that style is for Linear, Conv1D"},
        {{"3", {.kind = FSDP_ROW_WISE}}, "makes '3' row-wise, which is a GELU"},
        {{"2", {.kind = FSDP_SEQUENCE_PARALLEL}}, "sequence parallel, which is a Linear: that style is for LayerNorm"},
        {{"2", {.kind = FSDP_COLUMN_WISE, .from = {{9, 0}}}}, "'2': 9 is no layout"},
        {{"2", {.kind = FSDP_PREPARE_INPUT}}, "'2': the style does not say what to prepare"},
        {{"2", {.kind = FSDP_PREPARE_INPUT, .from = {COPIED}, .to = {REPLICATED}}},
         "'2': what is copied cannot be made replicated"},
        {{"4", {.kind = FSDP_ROW_WISE, .to = {{FSDP_LAYOUT_PARTIAL, 0}}}}, "'4' has a bias"},
        {{"2", {.kind = FSDP_CUSTOM_PARALLEL}}, "a custom style needs `apply`"},
        {{"2", {.kind = (fsdp_parallel_kind)77}}, "'2': 77 is no parallel style"},
        {{"2", {.kind = FSDP_COLUMN_WISE, .segment_count = 2, .segments = {4, 4}}}, "'2.weight'"},
        {{NULL, {.kind = FSDP_ROW_WISE}}, "has no pattern"},
        {{"2", {.kind = FSDP_COLUMN_WISE, .to = {REPLICATED}, .segment_count = 2, .segments = {4, 7}}},
         "'2' has an output in segments, each of which is cut by itself, so it cannot become replicated"},
        {{"2", {.kind = FSDP_COLUMN_WISE, .to = {SHARDED(1)}, .segment_count = 2, .segments = {4, 7}}},
         "'2' has an output in segments, each of which is cut by itself, so it cannot become sharded(1)"},
        {{"1", {.kind = FSDP_SEQUENCE_PARALLEL, .dim = 9}}, "'1': sharded(9) is no dimension of any tensor"},
        {{"1", {.kind = FSDP_SEQUENCE_PARALLEL, .dim = -99}}, "'1': sharded(-99) is no dimension of any tensor"},
        {{"1", {.kind = FSDP_SEQUENCE_PARALLEL, .dim = -1}}, "'1' is a LayerNorm, which needs all features"},
        {{"2", {.kind = FSDP_COLUMN_WISE, .to = {SHARDED(-9)}}}, "'2': sharded(-9) is no dimension of any tensor"},
    };

    for (int i = 0; i < COUNT(cases); i++)
        refuse(context, &cases[i].entry, FSDP_INVALID, cases[i].text);
}

RANKS_TEST(a_parameter_is_cut_once_and_without_a_gradient, 2)
{
    static const fsdp_parallel_entry column = {"2", {.kind = FSDP_COLUMN_WISE}}, row = {"2", {.kind = FSDP_ROW_WISE}};
    fsdp_module *net = net_create(context, test_device(context));
    fsdp_mesh *mesh = team_mesh(context), *wide;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(1, 2), (const char *const[]){"dp", "tp"}, &wide));
    CHECK_ERROR(fsdp_parallelize_module(net, wide, &column, 1), FSDP_INVALID,
                "a mesh of one dimension, not (dp=1, tp=2): take one of them with fsdp_mesh_slice");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(NULL, mesh, &column, 1), FSDP_INVALID, "a module and a mesh");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(net, mesh, (const fsdp_parallel_entry[]){column, row}, 2), FSDP_INVALID,
                "the patterns '2' and '2' place the same parameter 'weight'");
    CHECK_OK(fsdp_parallelize_module(net, mesh, &column, 1));
    CHECK_ERROR(fsdp_parallelize_module(net, mesh, &row, 1), FSDP_STATE,
                "'2.weight' is a distributed tensor already, (Shard(dim=0),): a parameter is cut once");
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_set_grad(fsdp_module_parameter(net, "4.weight"),
                                  fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(DIM, WIDE))));
    fsdp_scope_end(context, NULL);
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(net, mesh, &(const fsdp_parallel_entry){"4", {.kind = FSDP_ROW_WISE}}, 1),
                FSDP_STATE, "'4.weight' has a gradient of all of it");
    fsdp_module_unref(net);
    fsdp_mesh_unref(wide);
    fsdp_mesh_unref(mesh);
}

/* Nothing is changed by a placement that a parameter cannot have. */
RANKS_TEST(a_parameter_is_cut_or_replicates, 2)
{
    static const fsdp_placement cut = {.kind = FSDP_SHARD}, partial = {.kind = FSDP_PARTIAL};
    fsdp_module *net = net_create(context, test_device(context)), *linear = fsdp_module_child(net, "2");
    const fsdp_tensor *weight = fsdp_module_parameter(net, "2.weight");
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_ERROR(fsdp_parallel_place(linear, "weight", mesh, cut, true), FSDP_INVALID,
                "'2.weight' cannot be placed as (Shard(dim=0),) with partial gradients");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallel_place(linear, "weight", mesh, partial, false), FSDP_INVALID,
                "'2.weight' cannot be placed as (Partial(sum),): a parameter is cut, or it replicates");
    CHECK_NULL(fsdp_tensor_distribution(weight));
    CHECK_EQ(fsdp_tensor_shape(weight)[0], WIDE);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

/* Rank 1 has another plan; first one that cannot be. */
WORLDS_TEST(ranks_that_differ_are_told_so, 2, 3)
{
    bool first = fsdp_context_rank(context) == 0;
    const fsdp_parallel_entry wrong = {first ? "2" : "7", {.kind = FSDP_COLUMN_WISE}};
    const fsdp_parallel_entry other = {"2", {.kind = first ? FSDP_COLUMN_WISE : FSDP_ROW_WISE}};

    refuse(context, &wrong, FSDP_INVALID, "rank 1: the pattern '7' matches no module");
    refuse(context, &other, FSDP_MISMATCH,
           "ranks do not have the same plan: rank 0 of the mesh has '2' column-wise, replicated to sharded(-1), rank 1 "
           "has '2' row-wise");
}

static fsdp_status fail_without_a_word(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh)
{
    (void)arg;
    (void)module;
    (void)name;
    return fsdp_mesh_coordinate(mesh, 0) > 0 ? FSDP_UNSUPPORTED : FSDP_OK;
}

static fsdp_status make_partial(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh)
{
    (void)arg;
    (void)name;
    return fsdp_parallel_place(module, "weight", mesh, (fsdp_placement){.kind = FSDP_PARTIAL}, false);
}

/* Rank 1 has no list, then a custom style that fails there alone. */
RANKS_TEST(what_one_rank_fails_in_fails_on_all, 2)
{
    const fsdp_parallel_entry column = {"2", {.kind = FSDP_COLUMN_WISE}};
    const fsdp_parallel_entry mute = {"0", {.kind = FSDP_CUSTOM_PARALLEL, .apply = fail_without_a_word}};
    const fsdp_parallel_entry partial = {"0", {.kind = FSDP_CUSTOM_PARALLEL, .apply = make_partial}};

    refuse(context, fsdp_context_rank(context) == 0 ? &column : NULL, FSDP_INVALID, "rank 1: a plan of 1 entries");
    refuse(context, &mute, FSDP_UNSUPPORTED, "rank 1: '0': not supported");
    refuse(context, &partial, FSDP_INVALID, "cannot be placed as (Partial(sum),)");
}

static fsdp_status place_otherwise(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh)
{
    (void)arg, (void)name;
    return fsdp_parallel_place(module, "weight", mesh,
                               (fsdp_placement){.kind = FSDP_SHARD, .dim = fsdp_mesh_coordinate(mesh, 0) == 2}, false);
}

static fsdp_status place_on_one(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh)
{
    return fsdp_mesh_coordinate(mesh, 0) == 0 ? FSDP_OK : place_otherwise(arg, module, name, mesh);
}

/* What a custom style has done differently is found before anybody computes with it. */
RANKS_TEST(a_custom_style_must_place_alike, 3)
{
    const fsdp_parallel_entry otherwise = {"2", {.kind = FSDP_CUSTOM_PARALLEL, .apply = place_otherwise}};
    const fsdp_parallel_entry on_one = {"2", {.kind = FSDP_CUSTOM_PARALLEL, .apply = place_on_one}};
    fsdp_module *nets[] = {net_create(context, test_device(context)), net_create(context, test_device(context))};
    fsdp_mesh *mesh = team_mesh(context);

    CHECK_ERROR(fsdp_parallelize_module(nets[0], mesh, &otherwise, 1), FSDP_MISMATCH,
                "ranks have not placed the same: rank 0 of the mesh has '2.weight' as (Shard(dim=0),), rank 2 has "
                "'2.weight' as (Shard(dim=1),)");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_parallelize_module(nets[1], mesh, &on_one, 1), FSDP_MISMATCH,
                "rank 0 of the mesh has '2.weight' as a plain tensor, rank 1 has '2.weight' as (Shard(dim=0),)");
    for (int i = 0; i < 2; i++)
        fsdp_module_unref(nets[i]);
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(what_a_style_does_not_have_is_refused, 2)
{
    const fsdp_parallel_entry loss = {"2", {.kind = FSDP_COLUMN_WISE, .loss_parallel = true}};
    const fsdp_parallel_entry row = {"2", {.kind = FSDP_ROW_WISE, .loss_parallel = true}};
    const fsdp_parallel_entry norm = {"1", {.kind = FSDP_SEQUENCE_PARALLEL, .async = true}};
    const fsdp_parallel_entry cut = {"2", {.kind = FSDP_ROW_WISE, .segment_count = 2, .segments = {5, 6}}};

    refuse(context, &loss, FSDP_INVALID, "'2' is a Linear and not the head of a model, so there is no loss");
    refuse(context, &row, FSDP_INVALID, "'2' is row-wise, which has no loss_parallel: leave it out");
    refuse(context, &norm, FSDP_INVALID, "'1' is sequence parallel, which has no async");
    refuse(context, &cut, FSDP_INVALID, "'2' is row-wise, which has no segments");
}

/* The gradient of a forward that came before the cut would be one of the whole. */
RANKS_TEST(a_backward_after_the_cut_is_refused, 2)
{
    const fsdp_parallel_entry column = {"", {.kind = FSDP_COLUMN_WISE}};
    fsdp_module *net = fsdp_linear_create(context, test_device(context), DIM, WIDE, NULL);
    fsdp_mesh *mesh = team_mesh(context);
    fsdp_tensor *loss;

    CHECK_OK(fsdp_scope_begin(context));
    loss = fsdp_sum(fsdp_call(net, fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, DIM), 1)));
    CHECK_OK(fsdp_parallelize_module(net, mesh, &column, 1));
    CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, "it was cut in between");
    CHECK_NULL(fsdp_tensor_grad(fsdp_module_parameter(net, "weight")));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

TEST(a_degree_is_checked)
{
    fsdp_model_config config;

    CHECK_OK(fsdp_model_preset("llama-1m", &config));
    CHECK_ERROR(fsdp_model_parallel_check(&config, 0), FSDP_INVALID, "over 0 ranks");
    CHECK_ERROR(fsdp_model_parallel_check(NULL, 2), FSDP_INVALID, "needs a config");
}

/* The n-th allocation of a plan fails, in a world of its own, since a group may be broken by it. */
static void fail_allocation(fsdp_context *context, void *arg)
{
    const fsdp_parallel_entry entries[] = {{"0", {.kind = FSDP_ROW_WISE, .to = {SHARDED(1)}}},
                                           {"1", {.kind = FSDP_SEQUENCE_PARALLEL}},
                                           {"2", {.kind = FSDP_COLUMN_WISE, .from = {SHARDED(1)}}},
                                           {"4", {.kind = FSDP_ROW_WISE}}};
    fsdp_module *net = net_create(context, test_device(context));
    fsdp_mesh *mesh = team_mesh(context);
    long *n = arg;

    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, *n);
    CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_parallelize_module(net, mesh, entries, COUNT(entries)));
    if (!fsdp__fault_hit(FSDP__FAULT_ALLOCATION))
        *n = -1;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    fsdp_module_unref(net);
    fsdp_mesh_unref(mesh);
}

TEST(a_failing_allocation_is_an_error)
{
    for (long n = 1; n > 0; n += n > 0)
        test_run_ranks(1, fail_allocation, &n);
}
