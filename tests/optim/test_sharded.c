/* An optimizer on shards: the same bits as on the whole, and the same norm, for every world; also when it was made, and
 * has stepped, before the model was sharded. */
#include <math.h>

#include "device/device.h"
#include "fsdp/dist.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    PARAMS = 5,
    MAX_NUMEL = 4500
};

typedef enum algorithm {
    SGD,
    ADAM,
    ADAMW,
    LION,
    MUON,
    BYTES, /* AdamW, of which one parameter is large enough */
    ALGORITHMS
} algorithm;

static const int64_t shapes[PARAMS][2] = {{1, 3}, {17, 5}, {6, 1}, {16, 280}, {3, 7}};

/* Numbers between -1 and 1 that depend on their place alone. */
static float value(int param, int step, int64_t i)
{
    uint32_t x = (uint32_t)(param * 7919 + step * 104729 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

static fsdp_tensor *make(fsdp_context *context, int param, int step)
{
    float data[MAX_NUMEL];
    fsdp_tensor *tensor = NULL;

    for (int64_t i = 0; i < shapes[param][0] * shapes[param][1]; i++)
        data[i] = value(param, step, i);
    CHECK_OK(
        fsdp_tensor_create(test_device(context), FSDP_F32, 2, shapes[param], FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, data));
    return tensor;
}

/* Tensors of every parameter, whole or, with a mesh, the piece by `placements`, that require a gradient. */
typedef struct model {
    fsdp_tensor *tensors[PARAMS];
    fsdp_mesh *mesh;
    const fsdp_placement (*placements)[2];
    fsdp_optimizer *optimizer;
} model;

static fsdp_tensor *piece_of(const model *m, fsdp_context *context, int param, int step)
{
    fsdp_tensor *whole = make(context, param, step), *piece = NULL;

    if (!m->mesh)
        return whole;
    CHECK_OK(fsdp_distribute_tensor(whole, m->mesh, m->placements[param], &piece));
    fsdp_tensor_unref(whole);
    return piece;
}

static void model_init(model *m, fsdp_context *context, algorithm kind)
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d", "e"};
    const fsdp_adam_options adam = {
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .state_bits = kind == BYTES ? 8 : 0};
    const fsdp_lion_options lion = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
    const fsdp_muon_options muon = {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    fsdp_parameter items[PARAMS];
    fsdp_parameters parameters = {PARAMS, items};

    for (int i = 0; i < PARAMS; i++) {
        m->tensors[i] = piece_of(m, context, i, 0);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    if (kind == SGD)
        CHECK_OK(fsdp_sgd_create(&parameters, &sgd, &m->optimizer));
    else if (kind == LION)
        CHECK_OK(fsdp_lion_create(&parameters, &lion, &m->optimizer));
    else if (kind == MUON)
        CHECK_OK(fsdp_muon_create(&parameters, &muon, &m->optimizer));
    else
        CHECK_OK((kind == ADAM ? fsdp_adam_create : fsdp_adamw_create)(&parameters, &adam, &m->optimizer));
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

/* Gradients are plain tensors of the piece's shape. */
static void give_gradients(const model *m, fsdp_context *context, int step)
{
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *grad;

        if (i == 2 && step == 2)
            continue;
        grad = piece_of(m, context, i, step);
        CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], grad));
        fsdp_tensor_unref(grad);
    }
}

static void check_same_bits(const model *sharded, const model *whole)
{
    for (int i = 0; i < PARAMS; i++) {
        float actual[MAX_NUMEL], expected[MAX_NUMEL];
        fsdp_tensor *full = NULL;

        CHECK_OK(fsdp_full_tensor(sharded->tensors[i], &full));
        CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
        CHECK_OK(fsdp_tensor_read(whole->tensors[i], FSDP_F32, expected));
        CHECK_BYTES(actual, expected, (size_t)fsdp_tensor_numel(full) * sizeof(float));
        fsdp_tensor_unref(full);
    }
}

/* Steps both side by side; `reductions`: scalar all-reduces of one clip. */
static void compare(fsdp_context *context, fsdp_mesh *mesh, const fsdp_placement (*placements)[2], algorithm kind,
                    int64_t reductions)
{
    model sharded = {.mesh = mesh, .placements = placements}, whole = {.mesh = NULL};
    double norm, expected, first_norm = 0;

    model_init(&sharded, context, kind);
    model_init(&whole, context, kind);
    for (int step = 1; step <= 4; step++) {
        fsdp_comm_stats stats;

        give_gradients(&sharded, context, step);
        give_gradients(&whole, context, step);
        CHECK_OK(fsdp_clip_grad_norm(whole.optimizer, first_norm / 2, &expected));
        fsdp_context_reset_comm_stats(context);
        CHECK_OK(fsdp_clip_grad_norm(sharded.optimizer, first_norm / 2, &norm));
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], reductions);
        CHECK_NEAR(norm, expected, 1e-6 * expected);
        CHECK_NEAR(sharded.optimizer->grad_scale, whole.optimizer->grad_scale, 1e-6);
        first_norm = step == 1 ? norm : first_norm;
        sharded.optimizer->grad_scale = whole.optimizer->grad_scale; /* the last bit of the norm aside */
        CHECK_OK(fsdp_optimizer_step(sharded.optimizer));
        CHECK_OK(fsdp_optimizer_step(whole.optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(sharded.optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(whole.optimizer));
        check_same_bits(&sharded, &whole);
        for (int i = 0; i < PARAMS; i++) /* empty shards count their steps as well */
            CHECK_EQ(sharded.optimizer->groups[0].params[i].steps, step - (i == 2 && step >= 2));
    }
    CHECK_OK(fsdp_clip_grad_norm(sharded.optimizer, 1, &norm));
    CHECK_NEAR(norm, 0, 0);
    model_free(&sharded);
    model_free(&whole);
}

static void check_rows(fsdp_context *context, void *arg)
{
    static const fsdp_placement rows[PARAMS][2] = {{{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}}};
    int64_t world = fsdp_context_world_size(context);
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (algorithm kind = SGD; kind < ALGORITHMS; kind++)
        compare(context, mesh, rows, kind, world > 1);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(shards_of_rows_step_as_the_whole)
{
    static const int worlds[] = {1, 2, 3, 4, 7, 8};

    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        test_run_ranks(worlds[w], check_rows, NULL);
}

static void check_mixed(fsdp_context *context, void *arg)
{
#define R                      \
    {                          \
        .kind = FSDP_REPLICATE \
    }
#define S(d)                         \
    {                                \
        .kind = FSDP_SHARD, .dim = d \
    }
    /* Four sets: (R, S), (S, S), (S, R), (R, R); one all-reduce a dimension. */
    static const fsdp_placement mixed[PARAMS][2] = {{R, S(0)}, {S(0), S(0)}, {S(0), R}, {S(1), S(0)}, {R, R}};
    static const fsdp_placement hybrid[PARAMS][2] = {{R, S(0)}, {R, S(0)}, {R, S(1)}, {R, S(0)}, {R, S(0)}};
    static const fsdp_placement copies[PARAMS][2] = {{R, S(0)}, {R, S(0)}, {R, S(0)}, {R, S(0)}, {R, S(0)}};
    static const char *const names[] = {"replicate", "shard"};
    const int64_t *shape = arg;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
    compare(context, mesh, mixed, ADAMW, 2);
    compare(context, mesh, hybrid, SGD, 1);
    compare(context, mesh, copies, MUON, 1);
    compare(context, mesh, copies, BYTES, 1);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(replicas_count_once_on_meshes_of_two_dimensions)
{
    test_run_ranks(4, check_mixed, (int64_t[]){2, 2});
    test_run_ranks(6, check_mixed, (int64_t[]){3, 2});
    test_run_ranks(8, check_mixed, (int64_t[]){2, 4});
}

RANKS_TEST(plain_parameters_count_once_and_partial_ones_are_refused, 3)
{
    static const fsdp_placement rows[PARAMS][2] = {{{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}},
                                                   {{.kind = FSDP_SHARD}}};
    model m = {.placements = rows};
    fsdp_tensor *partial = NULL, *plain, *grad;
    double norm = 0, squares = 0;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){3}, NULL, &m.mesh));
    model_init(&m, context, SGD);
    /* One that is not distributed at all: every rank holds it, it counts once. */
    plain = make(context, 1, 9);
    CHECK_OK(fsdp_tensor_set_requires_grad(plain, true));
    CHECK_OK(fsdp_sgd_add_group(m.optimizer, &(fsdp_parameters){1, &(fsdp_parameter){"plain", plain}},
                                &(fsdp_sgd_options){.lr = 1}));
    grad = make(context, 1, 9);
    CHECK_OK(fsdp_tensor_set_grad(plain, grad));
    fsdp_tensor_unref(grad);
    give_gradients(&m, context, 1);
    for (int p = 0; p <= PARAMS; p++) {
        int param = p == PARAMS ? 1 : p;

        for (int64_t i = 0; i < shapes[param][0] * shapes[param][1]; i++)
            squares += pow(value(param, p == PARAMS ? 9 : 1, i), 2);
    }
    CHECK_OK(fsdp_clip_grad_norm(m.optimizer, 0, &norm));
    CHECK_NEAR(norm, sqrt(squares), 1e-6 * sqrt(squares));
    CHECK_OK(fsdp_tensor_set_grad(plain, NULL));

    CHECK_OK(fsdp_redistribute(m.tensors[1], &(fsdp_placement){.kind = FSDP_PARTIAL}, &partial));
    CHECK_OK(fsdp_tensor_set_requires_grad(partial, true));
    CHECK_OK(fsdp_sgd_add_group(m.optimizer, &(fsdp_parameters){1, &(fsdp_parameter){"half.done", partial}},
                                &(fsdp_sgd_options){.lr = 1}));
    CHECK_ERROR(fsdp_clip_grad_norm(m.optimizer, 1, &norm), FSDP_UNSUPPORTED, "'half.done': it is partial");
    fsdp_tensor_unref(partial);
    fsdp_tensor_unref(plain);
    model_free(&m);
    fsdp_mesh_unref(m.mesh);
    test_drop_workspace(context);
}

/* The tensor becomes its piece, as fully_shard makes it one: who holds it keeps it. */
static void shard_in_place(fsdp_tensor *tensor, fsdp_mesh *mesh, const fsdp_placement *placements)
{
    fsdp_tensor *piece = NULL;
    fsdp__storage *whole = tensor->storage;

    CHECK_OK(fsdp_distribute_tensor(tensor, mesh, placements, &piece));
    tensor->storage = piece->storage;
    piece->storage = whole;
    memcpy(tensor->shape, piece->shape, sizeof tensor->shape);
    memcpy(tensor->strides, piece->strides, sizeof tensor->strides);
    CHECK_OK(fsdp_tensor_set_distribution(tensor, fsdp_tensor_distribution(piece)));
    fsdp_tensor_unref(piece);
}

static int64_t state_bytes(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return (int64_t)stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE];
}

static int64_t moment_bytes(const fsdp__optimizer_param *param)
{
    const fsdp_tensor *moments[] = {param->moment1, param->moment2};
    int64_t bytes = 0;

    for (int i = 0; i < 2; i++) {
        if (!moments[i])
            continue;
        CHECK(fsdp__shape_equal(moments[i], param->tensor));
        CHECK_EQ(moments[i]->storage->kind, FSDP_MEMORY_OPTIMIZER_STATE);
        bytes += (int64_t)fsdp__device_rounded((size_t)fsdp_tensor_numel(moments[i]) * sizeof(float));
    }
    return bytes;
}

/* Both step whole, then one is sharded between two steps. */
static void compare_late(fsdp_context *context, fsdp_mesh *mesh, const fsdp_placement (*placements)[2], algorithm kind)
{
    model sharded = {.mesh = NULL}, whole = {.mesh = NULL};
    int64_t whole_bytes, bytes = 0;

    model_init(&whole, context, kind);
    give_gradients(&whole, context, 1);
    CHECK_OK(fsdp_optimizer_step(whole.optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(whole.optimizer));
    whole_bytes = state_bytes(context);
    model_init(&sharded, context, kind);
    give_gradients(&sharded, context, 1);
    CHECK_OK(fsdp_optimizer_step(sharded.optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(sharded.optimizer));
    for (int i = 0; i < PARAMS; i++)
        shard_in_place(sharded.tensors[i], mesh, placements[i]);
    sharded.mesh = mesh;
    sharded.placements = placements;
    for (int step = 2; step <= 4; step++) { /* parameter 2 has no gradient in step 2: its state is cut in step 3 */
        give_gradients(&sharded, context, step);
        give_gradients(&whole, context, step);
        CHECK_OK(fsdp_optimizer_step(sharded.optimizer));
        CHECK_OK(fsdp_optimizer_step(whole.optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(sharded.optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(whole.optimizer));
        check_same_bits(&sharded, &whole);
    }
    for (int i = 0; i < PARAMS; i++)
        bytes += moment_bytes(&sharded.optimizer->groups[0].params[i]);
    CHECK_EQ(state_bytes(context), whole_bytes + bytes);

    /* State that is neither the parameter's nor the whole one's. */
    fsdp_tensor_unref(sharded.optimizer->groups[0].params[1].moment1);
    sharded.optimizer->groups[0].params[1].moment1 = make(context, 2, 1);
    give_gradients(&sharded, context, 1);
    CHECK_ERROR(fsdp_optimizer_step(sharded.optimizer), FSDP_STATE, "cannot optimize 'b': its shape is ");
    CHECK_CONTAINS(fsdp_last_error(), "but its state was made for shape (6, 1): make a new optimizer");
    CHECK_EQ(sharded.optimizer->groups[0].params[0].steps, 4);
    model_free(&sharded);
    model_free(&whole);
}

static void check_late(fsdp_context *context, void *arg)
{
    static const fsdp_placement rows[PARAMS][2] = {{S(0)}, {S(0)}, {S(0)}, {S(0)}, {S(0)}};
    static const fsdp_placement mixed[PARAMS][2] = {{R, S(0)}, {S(0), S(0)}, {S(0), R}, {S(1), S(0)}, {R, R}};
    static const char *const names[] = {"replicate", "shard"};
    int64_t world = fsdp_context_world_size(context), shape[] = {2, world / 2};
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (algorithm kind = SGD; kind <= ADAMW; kind++)
        compare_late(context, mesh, rows, kind);
    fsdp_mesh_unref(mesh);
    if (world % 2 == 0) {
        CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
        compare_late(context, mesh, mixed, ADAMW);
        fsdp_mesh_unref(mesh);
    }
    test_drop_workspace(context);
}

TEST(state_of_earlier_steps_is_cut_to_the_shards)
{
    static const int worlds[] = {1, 2, 3, 5, 6};

    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        test_run_ranks(worlds[w], check_late, NULL);
}

/* Two matrices of one shape, of which one has a gradient: 'first' on rank 0, and 'second' on the others. */
static void check_others_gradients(fsdp_context *context, void *arg)
{
    const fsdp_muon_options muon = {.lr = 1e-2, .momentum = 0.9};
    const fsdp_adafactor_options adafactor = fsdp_adafactor_options_default();
    const fsdp_placement by_rows = S(0);
    int64_t world = fsdp_context_world_size(context);
    int mine = fsdp_context_rank(context) > 0;
    fsdp_tensor *tensors[2] = {NULL}, *grad = NULL;
    fsdp_parameter items[2];
    fsdp_parameters both = {2, items};
    fsdp_optimizer *optimizer = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (int i = 0; i < 2; i++) {
        tensors[i] = make(context, 1, i);
        shard_in_place(tensors[i], mesh, &by_rows);
        CHECK_OK(fsdp_tensor_set_requires_grad(tensors[i], true));
        items[i] = (fsdp_parameter){i ? "second" : "first", tensors[i]};
    }
    CHECK_OK(*(algorithm *)arg == MUON ? fsdp_muon_create(&both, &muon, &optimizer)
                                       : fsdp_adafactor_create(&both, &adafactor, &optimizer));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, fsdp_tensor_shape(tensors[mine]),
                                FSDP_MEMORY_GRADIENT, &grad));
    CHECK_OK(fsdp_tensor_fill_(grad, 1));
    CHECK_OK(fsdp_tensor_set_grad(tensors[mine], grad));
    fsdp_tensor_unref(grad);
    if (fsdp_optimizer_step(optimizer) == FSDP_OK) /* on some devices the calls come later */
        (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    CHECK_EQ(fsdp_last_status(), FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "1 gradients");
    CHECK_CONTAINS(fsdp_last_error(), "from first'");
    CHECK_CONTAINS(fsdp_last_error(), "from second'");
    fsdp_optimizer_free(optimizer);
    for (int i = 0; i < 2; i++)
        fsdp_tensor_unref(tensors[i]);
    fsdp_mesh_unref(mesh);
}

TEST(gradients_of_other_parameters_are_told_where_ranks_step_together)
{
    algorithm kinds[] = {MUON, ALGORITHMS}; /* the last: Adafactor */

    for (int world = 2; world <= 3; world++)
        for (size_t k = 0; k < FSDP__COUNT_OF(kinds); k++)
            test_run_ranks(world, check_others_gradients, &kinds[k]);
}
