/* Norms of any order over gradients that lie anywhere: to the bit the same as on the whole, in as few collectives as
 * there are mesh dimensions that split something. */
#include <math.h>

#include "base/compiler.h"
#include "fsdp/dist.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "oracle/oracle.h"
#include "support/ranks.h"

enum {
    PARAMS = 5,
    MAX_NUMEL = 512
};

static const int64_t shapes[PARAMS][2] = {{1, 3}, {17, 5}, {6, 1}, {40, 9}, {3, 7}};
static const double orders[] = {1, 2, 3, 0.5, INFINITY};

#define R                      \
    {                          \
        .kind = FSDP_REPLICATE \
    }
#define S(d)                         \
    {                                \
        .kind = FSDP_SHARD, .dim = d \
    }

static float value(int param, int64_t i)
{
    uint32_t x = (uint32_t)(param * 7919 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

/* Of all parameters but `without`, added one element after another. */
static double expected_norm(double p, int without)
{
    static const double none[MAX_NUMEL];
    float values[PARAMS][MAX_NUMEL];
    fsdp__span spans[PARAMS];
    fsdp__digit_sum sum;
    double largest;

    for (int param = 0; param < PARAMS; param++) {
        for (int64_t i = 0; i < MAX_NUMEL; i++)
            values[param][i] = value(param, i);
        spans[param] = (fsdp__span){.src = param == without ? (const void *)none : values[param],
                                    .numel = shapes[param][0] * shapes[param][1]};
    }
    oracle_power_sum(&(fsdp__power_sum_args){
        .spans = spans, .count = PARAMS, .dtype = FSDP_F32, .p = p, .sum = &sum, .largest = &largest});
    return p == 2 ? sqrt(fsdp__digit_sum_value(&sum)) : isinf(p) ? largest : pow(fsdp__digit_sum_value(&sum), 1 / p);
}

typedef struct model {
    fsdp_tensor *tensors[PARAMS], *grads[PARAMS];
    fsdp_optimizer *optimizer;
} model;

/* `meshes[i]` NULL: the parameter is whole. Every gradient is set. */
static void model_init(model *m, fsdp_context *context, fsdp_mesh *const *meshes, const fsdp_placement (*placements)[2])
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d", "e"};
    fsdp_parameter items[PARAMS];

    for (int i = 0; i < PARAMS; i++) {
        float data[MAX_NUMEL];
        fsdp_tensor *whole = NULL;

        for (int64_t k = 0; k < shapes[i][0] * shapes[i][1]; k++)
            data[k] = value(i, k);
        CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shapes[i], FSDP_MEMORY_GRADIENT, &whole));
        CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
        for (fsdp_tensor **out = &m->tensors[i]; out; out = out == &m->tensors[i] ? &m->grads[i] : NULL)
            if (meshes[i])
                CHECK_OK(fsdp_distribute_tensor(whole, meshes[i], placements[i], out));
            else if (out == &m->grads[i])
                *out = fsdp_tensor_ref(whole);
            else
                CHECK_OK(
                    fsdp_tensor_create(test_device(context), FSDP_F32, 2, shapes[i], FSDP_MEMORY_PARAMETER_SHARD, out));
        fsdp_tensor_unref(whole);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], m->grads[i]));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){PARAMS, items}, &(fsdp_sgd_options){.lr = 1}, &m->optimizer));
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor_unref(m->tensors[i]);
        fsdp_tensor_unref(m->grads[i]);
    }
}

static void check_norm(fsdp_context *context, const model *m, double p, double expected, int64_t reductions)
{
    float factor = fminf(1, 0.25f / ((float)expected + 1e-6f));
    fsdp_comm_stats stats;
    double norm = -1;

    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_clip_grad_norm_type(m->optimizer, 0.25, p, true, &norm));
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], reductions);
    CHECK_BYTES(&norm, &expected, sizeof norm);
    CHECK_NEAR(m->optimizer->grad_scale, factor, 4e-6);
}

/* The last element of parameter 3, where it lies. */
static void spoil(const model *m, float with)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    float data[MAX_NUMEL];

    fsdp_tensor_box(m->grads[3], offset, size);
    if (offset[0] + size[0] != shapes[3][0] || offset[1] + size[1] != shapes[3][1] || size[0] * size[1] == 0)
        return;
    CHECK_OK(fsdp_tensor_read(m->grads[3], FSDP_F32, data));
    data[size[0] * size[1] - 1] = with;
    CHECK_OK(fsdp_tensor_write(m->grads[3], FSDP_F32, data));
}

static void check_everywhere(fsdp_context *context, fsdp_mesh *const *meshes, const fsdp_placement (*placements)[2],
                             int64_t reductions)
{
    model m;
    double norm;

    model_init(&m, context, meshes, placements);
    for (size_t o = 0; o < FSDP__COUNT_OF(orders); o++)
        check_norm(context, &m, orders[o], expected_norm(orders[o], -1), reductions);
    CHECK_OK(fsdp_tensor_set_grad(m.tensors[1], NULL));
    for (size_t o = 0; o < FSDP__COUNT_OF(orders); o++)
        check_norm(context, &m, orders[o], expected_norm(orders[o], 1), reductions);
    for (int nan = 0; nan < 2; nan++)
        for (size_t o = 0; o < FSDP__COUNT_OF(orders); o++) {
            spoil(&m, nan ? NAN : -INFINITY);
            m.optimizer->grad_scale = 0.75f;
            CHECK_ERROR(fsdp_clip_grad_norm_type(m.optimizer, 1, orders[o], true, &norm), FSDP_NOT_FINITE,
                        "-norm of the gradients is ");
            CHECK_NEAR(m.optimizer->grad_scale, 0.75, 0);
            CHECK_OK(fsdp_clip_grad_norm_type(m.optimizer, 1, orders[o], false, &norm));
            CHECK(nan ? isnan(norm) : isinf(norm));
            CHECK(nan ? isnan(m.optimizer->grad_scale) : m.optimizer->grad_scale == 0);
        }
    for (int i = 0; i < PARAMS; i++)
        CHECK_OK(fsdp_tensor_set_grad(m.tensors[i], NULL));
    check_norm(context, &m, INFINITY, 0, reductions); /* nobody has any */
    model_free(&m);
}

static void check_rows(fsdp_context *context, void *arg)
{
    static const fsdp_placement rows[PARAMS][2] = {{S(0)}, {S(0)}, {S(0)}, {S(0)}, {S(0)}};
    int64_t world = fsdp_context_world_size(context);
    fsdp_mesh *mesh = NULL, *meshes[PARAMS];

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (int i = 0; i < PARAMS; i++)
        meshes[i] = mesh;
    check_everywhere(context, meshes, rows, world > 1);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(any_order_of_rows_in_one_collective)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], check_rows, NULL);
}

/* Meshes of two dimensions, their parts, and a parameter that is whole; the last row lies on the part alone. */
static void check_meshes(fsdp_context *context, void *arg)
{
    static const fsdp_placement hybrid[PARAMS][2] = {{R, S(0)}, {R, S(0)}, {R, S(1)}, {R, S(0)}, {R, S(0)}};
    static const fsdp_placement both[PARAMS][2] = {
        {S(0), S(0)}, {S(0), S(1)}, {S(0), S(0)}, {S(0), S(0)}, {S(1), S(0)}};
    static const fsdp_placement mixed[PARAMS][2] = {{R, S(0)}, {S(0), R}, {R, R}, {S(0), S(1)}, {S(0)}};
    static const char *const names[] = {"replicate", "shard"};
    fsdp_mesh *mesh = NULL, *part = NULL, *meshes[PARAMS];

    CHECK_OK(fsdp_mesh_create(context, 2, arg, names, &mesh));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, &names[1], &part));
    for (int i = 0; i < PARAMS; i++)
        meshes[i] = mesh;
    check_everywhere(context, meshes, hybrid, 1);
    check_everywhere(context, meshes, both, 2);
    meshes[4] = part;
    check_everywhere(context, meshes, mixed, 2);
    meshes[0] = NULL;
    check_everywhere(context, meshes, mixed, 2);
    fsdp_mesh_unref(part);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(one_collective_a_mesh_dimension_that_splits)
{
    test_run_ranks(4, check_meshes, (int64_t[]){2, 2});
    test_run_ranks(6, check_meshes, (int64_t[]){2, 3});
    test_run_ranks(8, check_meshes, (int64_t[]){4, 2});
}

/* As with parameters that only some ranks have used: the others take part with nothing. */
WORLDS_TEST(ranks_without_gradients_take_part, 2, 4)
{
    static const fsdp_placement rows[PARAMS][2] = {{S(0)}, {S(0)}, {S(0)}, {S(0)}, {S(0)}};
    int64_t world = fsdp_context_world_size(context);
    fsdp_mesh *mesh = NULL, *meshes[PARAMS];
    model m;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (int i = 0; i < PARAMS; i++)
        meshes[i] = mesh;
    model_init(&m, context, meshes, rows);
    for (int i = 0; i < PARAMS && fsdp_context_rank(context) > 0; i++)
        CHECK_OK(fsdp_tensor_set_grad(m.tensors[i], NULL));
    for (size_t o = 0; o < FSDP__COUNT_OF(orders); o++) {
        double sum = 0, largest = 0, norm;

        for (int param = 0; param < PARAMS; param++) {
            int64_t start, count = fsdp_shard_range(shapes[param][0], world, 0, &start) * shapes[param][1];

            for (int64_t i = 0; i < count; i++) {
                sum += pow(fabs((double)value(param, i)), orders[o]);
                largest = fmax(largest, fabs((double)value(param, i)));
            }
        }
        sum = isinf(orders[o]) ? largest : pow(sum, 1 / orders[o]);
        CHECK_OK(fsdp_clip_grad_norm_type(m.optimizer, 1, orders[o], true, &norm));
        CHECK_NEAR(norm, sum, 2e-6 * sum);
    }
    model_free(&m);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

CONTEXT_TEST(other_orders_are_refused)
{
    static const double refused[] = {0, -1, -INFINITY, NAN};
    static const fsdp_placement none[PARAMS][2];
    fsdp_mesh *const meshes[PARAMS] = {NULL};
    double norm = -1;
    model m;

    model_init(&m, context, meshes, none);
    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++)
        CHECK_ERROR(fsdp_clip_grad_norm_type(m.optimizer, 1, refused[i], false, &norm), FSDP_INVALID,
                    "norm_type must be above 0");
    CHECK_ERROR(fsdp_clip_grad_norm_type(m.optimizer, -1, 3, false, &norm), FSDP_INVALID, "must not be negative");
    CHECK_NEAR(norm, -1, 0);
    model_free(&m);
}
