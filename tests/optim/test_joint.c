/* Optimizers on parameters that several mesh dimensions cut, as data and tensor parallel do together: rows, columns,
 * segments, in any order. They step as on the whole, to the bit, but for Adafactor's sums. */
#include <math.h>

#include "device/device.h"
#include "fsdp/dist.h"
#include "fsdp/optim.h"
#include "support/dice.h"
#include "support/layouts.h"
#include "support/ranks.h"

enum {
    PARAMS = 4,
    MAX_NUMEL = 8192,
    STEPS = 3
};

typedef enum algorithm {
    SGD,
    ADAMW,
    LION,
    MUON,
    BYTES,
    ADAFACTOR,
    ALGORITHMS
} algorithm;

typedef struct trial {
    algorithm kind;
    int mesh_ndim;
    int64_t mesh[FSDP_MAX_MESH_DIMS], shapes[PARAMS][2];
    fsdp_placement placements[PARAMS][FSDP_MAX_MESH_DIMS];
} trial;

static float value(int param, int step, int64_t i)
{
    uint32_t x = (uint32_t)(param * 7919 + step * 104729 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

/* A whole tensor, or this rank's part of it. */
static fsdp_tensor *make(fsdp_context *context, const trial *t, fsdp_mesh *mesh, int param, int step)
{
    float *data = CHECK_PTR(calloc(MAX_NUMEL, sizeof *data));
    fsdp_tensor *whole = NULL, *part = NULL;

    for (int64_t i = 0; i < t->shapes[param][0] * t->shapes[param][1]; i++)
        data[i] = value(param, step, i);
    CHECK_OK(
        fsdp_tensor_create(test_device(context), FSDP_F32, 2, t->shapes[param], FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    free(data);
    if (!mesh)
        return whole;
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, t->placements[param], &part));
    fsdp_tensor_unref(whole);
    return part;
}

typedef struct model {
    fsdp_tensor *tensors[PARAMS];
    fsdp_mesh *mesh; /* NULL: whole */
    fsdp_optimizer *optimizer;
} model;

static fsdp_status create(const fsdp_parameters *all, algorithm kind, fsdp_optimizer **out)
{
    const fsdp_adam_options adam = {
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .state_bits = kind == BYTES ? 8 : 0};
    const fsdp_lion_options lion = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
    const fsdp_muon_options muon = {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    const fsdp_adafactor_options adafactor = fsdp_adafactor_options_default();

    switch (kind) {
    case SGD:
        return fsdp_sgd_create(all, &sgd, out);
    case LION:
        return fsdp_lion_create(all, &lion, out);
    case MUON:
        return fsdp_muon_create(all, &muon, out);
    case ADAFACTOR:
        return fsdp_adafactor_create(all, &adafactor, out);
    default:
        return fsdp_adamw_create(all, &adam, out);
    }
}

static void model_init(model *m, fsdp_context *context, const trial *t)
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d"};
    fsdp_parameter items[PARAMS];

    for (int i = 0; i < PARAMS; i++) {
        m->tensors[i] = make(context, t, m->mesh, i, 0);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    CHECK_OK(create(&(fsdp_parameters){PARAMS, items}, t->kind, &m->optimizer));
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

static void give_gradients(const model *m, fsdp_context *context, const trial *t, int step)
{
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *grad = make(context, t, m->mesh, i, step + 1);

        CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], grad));
        fsdp_tensor_unref(grad);
    }
}

static void compare_values(const trial *t, const model *parts, const model *whole)
{
    float *actual = CHECK_PTR(calloc(MAX_NUMEL, sizeof *actual)),
          *expected = CHECK_PTR(calloc(MAX_NUMEL, sizeof *actual));

    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *full = NULL;
        int64_t numel = t->shapes[i][0] * t->shapes[i][1];

        CHECK_OK(fsdp_full_tensor(parts->tensors[i], &full));
        CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
        CHECK_OK(fsdp_tensor_read(whole->tensors[i], FSDP_F32, expected));
        if (t->kind == ADAFACTOR)
            CHECK_CLOSE(actual, expected, numel, 1e-5, 1e-6);
        else
            CHECK_BYTES(actual, expected, (size_t)numel * sizeof *actual);
        fsdp_tensor_unref(full);
    }
    free(actual);
    free(expected);
}

/* Returns how many dimensions cut something. */
static int64_t cutting_dims(const trial *t)
{
    int64_t count = 0;

    for (int d = 0; d < t->mesh_ndim; d++) {
        bool cuts = false;

        for (int i = 0; i < PARAMS; i++)
            cuts = cuts || (t->placements[i][d].kind == FSDP_SHARD && t->mesh[d] > 1);
        count += cuts;
    }
    return count;
}

static void step_both(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"replicate", "shard", "tp"};
    const trial *t = arg;
    model parts = {.mesh = NULL}, whole = {.mesh = NULL};

    CHECK_OK(fsdp_mesh_create(context, t->mesh_ndim, t->mesh, names, &parts.mesh));
    model_init(&parts, context, t);
    model_init(&whole, context, t);
    for (int step = 0; step < STEPS; step++) {
        double norm, expected;
        fsdp_comm_stats stats;

        give_gradients(&parts, context, t, step);
        give_gradients(&whole, context, t, step);
        fsdp_context_reset_comm_stats(context);
        CHECK_OK(fsdp_clip_grad_norm(parts.optimizer, 1, &norm));
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], cutting_dims(t));
        CHECK_OK(fsdp_clip_grad_norm(whole.optimizer, 1, &expected));
        CHECK_BYTES(&norm, &expected, sizeof norm);
        CHECK_OK(fsdp_optimizer_step(parts.optimizer));
        CHECK_OK(fsdp_optimizer_step(whole.optimizer));
    }
    compare_values(t, &parts, &whole);
    model_free(&parts);
    model_free(&whole);
    fsdp_mesh_unref(parts.mesh);
    test_drop_workspace(context);
}

static int world_of(const trial *t)
{
    int64_t world = 1;

    for (int d = 0; d < t->mesh_ndim; d++)
        world *= t->mesh[d];
    return (int)world;
}

/* ---- drawn ---- */

static void draw(uint64_t *dice, trial *t)
{
    static const int64_t meshes[][3] = {{1, 1, 2}, {1, 2, 2}, {1, 2, 3}, {1, 3, 2},
                                        {2, 2, 2}, {1, 4, 2}, {2, 1, 2}, {1, 1, 3}};
    const int64_t *mesh = meshes[dice_below(dice, (int)FSDP__COUNT_OF(meshes))];

    *t = (trial){.mesh_ndim = 3};
    memcpy(t->mesh, mesh, 3 * sizeof *mesh);
    for (int i = 0; i < PARAMS; i++) {
        drawn_layout l;

        t->shapes[i][0] = 1 + dice_below(dice, 20);
        t->shapes[i][1] = 1 + dice_below(dice, 20);
        layout_draw(dice, 3, t->mesh, 2, t->shapes[i], &l);
        memcpy(t->placements[i], l.placements, sizeof l.placements);
    }
}

TEST(parts_of_any_layout_step_as_the_whole)
{
    const dice_seeds seeds = dice_seeds_of("JOINT", test_long() ? 2000 : test_brief() ? 8 : 30);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t dice = seed;
        trial t;

        draw(&dice, &t);
        for (t.kind = SGD; t.kind < ALGORITHMS; t.kind++)
            if (t.kind != BYTES)
                test_run_ranks(world_of(&t), step_both, &t);
    }
}

/* ---- bytes ---- */

#define ROWS                \
    {                       \
        .kind = FSDP_SHARD, \
    }
#define STRIDED(parts)                              \
    {                                               \
        .kind = FSDP_SHARD, .split_factor = (parts) \
    }
#define COLUMNS                      \
    {                                \
        .kind = FSDP_SHARD, .dim = 1 \
    }
#define SEGMENTS(d, a, b)                                                           \
    {                                                                               \
        .kind = FSDP_SHARD, .dim = (d), .segment_count = 2, .segments = {(a), (b)}, \
    }

TEST(bytes_step_as_the_whole_where_blocks_stay_whole)
{
    trial t = {.kind = BYTES,
               .mesh_ndim = 2,
               .mesh = {2, 2},
               .shapes = {{16, 280}, {8, 1023}, {5, 1536}, {8, 600}},
               .placements = {{STRIDED(2), ROWS},
                              {ROWS, COLUMNS}, /* 512 and 511 */
                              {ROWS, SEGMENTS(1, 512, 1024)},
                              {STRIDED(2), SEGMENTS(0, 3, 5)}}};

    test_run_ranks(4, step_both, &t);
}

static void cut_blocks(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"shard", "tp"};
    const trial *t = arg;
    model m = {.mesh = NULL};

    CHECK_OK(fsdp_mesh_create(context, 2, t->mesh, names, &m.mesh));
    model_init(&m, context, t);
    give_gradients(&m, context, t, 0);
    CHECK_ERROR(fsdp_optimizer_step(m.optimizer), FSDP_UNSUPPORTED, "moments of 'b' as bytes: its rows are cut");
    CHECK_CONTAINS(fsdp_last_error(), "multiples of 256");
    model_free(&m);
    fsdp_mesh_unref(m.mesh);
    test_drop_workspace(context);
}

TEST(bytes_refuse_columns_that_cut_a_block)
{
    trial t = {.kind = BYTES,
               .mesh_ndim = 2,
               .mesh = {2, 2},
               .shapes = {{16, 280}, {8, 1000}, {4, 4}, {4, 4}},
               .placements = {{STRIDED(2), ROWS}, {ROWS, COLUMNS}, {ROWS, COLUMNS}, {ROWS, COLUMNS}}};

    test_run_ranks(4, cut_blocks, &t);
    t.shapes[1][0] = 5;
    t.shapes[1][1] = 1536;
    t.placements[1][1] = (fsdp_placement)SEGMENTS(1, 536, 1000);
    test_run_ranks(4, cut_blocks, &t);
}
