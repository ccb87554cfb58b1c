/* Adafactor against torch.optim.Adafactor (tests/numbers/adafactor.py): whole, cut in every way over any number of
 * ranks, from one cut to another in the middle, and over whole parameters; and what it refuses.
 * Links: shard nn */
#include <math.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "device/device.h"
#include "fsdp/dist.h"
#include "fsdp/fsdp1.h"
#include "fsdp/nn.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/numbers.h"
#include "support/ranks.h"

enum {
    PARAMS = 6,
    NUMEL = 60 + 11 + 60 + 34 + 36 + 9,
    STEPS = 4
};

static const struct {
    const char *name;
    int ndim;
    int64_t shape[4], first; /* in the list of all elements */
} params[PARAMS] = {{"0", 2, {6, 10}, 0},   {"1", 1, {11}, 60},          {"2", 3, {5, 3, 4}, 71},
                    {"3", 2, {17, 2}, 131}, {"4", 4, {2, 3, 2, 3}, 165}, {"5", 2, {1, 9}, 201}};

/* One of the two runs of PyTorch. */
typedef struct expected {
    const char *name;
    fsdp_adafactor_options options;
} expected;

static const expected runs[2] = {
    {"usual", {.lr = 1e-2, .beta2_decay = -0.8, .eps2 = 1e-3, .d = 1}},
    {"decayed", {.lr = 0.8, .beta2_decay = -0.5, .eps1 = 1e-3, .eps2 = 0.2, .d = 1.5, .weight_decay = 0.1}}};

/* How parameters are cut: flat, or by a dimension, from the first on or, below 0, from the last on. */
typedef struct cut {
    bool flat;
    int dim;
} cut;

typedef struct model {
    fsdp_context *context;
    fsdp_mesh *mesh; /* NULL: whole */
    cut how;
    fsdp_tensor *tensors[PARAMS];
    fsdp_optimizer *optimizer;
} model;

static fsdp_tensor *make(const model *m, int param, const float *values, fsdp_memory_kind kind)
{
    int replicas = m->mesh ? fsdp_mesh_ndim(m->mesh) - 1 : 0, ndim = params[param].ndim;
    int64_t ranks = m->mesh ? fsdp_mesh_size(m->mesh, replicas) : 1;
    fsdp_placement placements[2] = {{.kind = FSDP_REPLICATE}, {.kind = FSDP_REPLICATE}};
    fsdp_tensor *whole = NULL, *part = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(m->context), FSDP_F32, ndim, params[param].shape, kind, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, values + params[param].first));
    if (!m->mesh)
        return whole;
    placements[replicas] =
        (fsdp_placement){.kind = FSDP_SHARD, .dim = m->how.dim < 0 ? ndim - 1 : FSDP__MIN(m->how.dim, ndim - 1)};
    if (m->how.flat) /* all in one vector, behind three others */
        placements[replicas] = (fsdp_placement){
            .kind = FSDP_FLAT, .first = params[param].first + 3, .chunk = (NUMEL + 3 + ranks - 1) / ranks};
    CHECK_OK(fsdp_distribute_tensor(whole, m->mesh, placements, &part));
    fsdp_tensor_unref(whole);
    return part;
}

static void begin(model *m, const float *start, const fsdp_adafactor_options *options)
{
    fsdp_parameter items[PARAMS];

    for (int i = 0; i < PARAMS; i++) {
        m->tensors[i] = make(m, i, start, FSDP_MEMORY_PARAMETER_SHARD);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){params[i].name, m->tensors[i]};
    }
    CHECK_OK(fsdp_adafactor_create(&(fsdp_parameters){PARAMS, items}, options, &m->optimizer));
}

static void end(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

static void step(model *m, int number)
{
    const float *grads = number_get("adafactor", "all", "grads")->data + number * NUMEL;

    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *grad = make(m, i, grads, FSDP_MEMORY_GRADIENT);

        CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], grad));
        fsdp_tensor_unref(grad);
    }
    CHECK_OK(fsdp_optimizer_step(m->optimizer));
}

static void read_all(const model *m, float *out)
{
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *full = NULL;

        CHECK_OK(fsdp_full_tensor(m->tensors[i], &full));
        CHECK_OK(fsdp_tensor_read(full, FSDP_F32, out + params[i].first));
        fsdp_tensor_unref(full);
    }
}

static void check_params(const model *m, const expected *run, int kept)
{
    float actual[NUMEL];

    read_all(m, actual);
    CHECK_CLOSE(actual, number_get("adafactor", run->name, "kept")->data + kept * NUMEL, NUMEL, 1e-6, 1e-6);
}

/* The state has PyTorch's names, shapes and numbers. */
static void check_whole_state(const fsdp_state_dict *full, const expected *run)
{
    static const char *const keys[] = {"row_var", "col_var", "variance"};
    char name[64], part[64];
    float actual[64];
    int64_t found = 0;

    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < 3; k++) {
            const number_tensor *t;
            const fsdp_state_dict_entry *entry;

            snprintf(name, sizeof name, "state.%d.%s", i, keys[k]);
            snprintf(part, sizeof part, "%d.%s", i, keys[k]);
            t = number_find("adafactor", run->name, part);
            entry = fsdp_state_dict_find(full, name);
            CHECK_EQ(entry != NULL, t != NULL);
            if (!t)
                continue;
            found++;
            CHECK_EQ(fsdp_tensor_ndim(entry->tensor), t->ndim);
            CHECK_BYTES(fsdp_tensor_shape(entry->tensor), t->shape, (size_t)t->ndim * sizeof *t->shape);
            CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_F32, actual));
            CHECK_CLOSE(actual, t->data, fsdp_tensor_numel(entry->tensor), 2e-6, 1e-12);
        }
    CHECK_EQ(found, 11);
}

static void check_state(const model *m, const expected *run)
{
    fsdp_state_dict *state = NULL, *full = NULL;

    CHECK_OK(fsdp_optimizer_state_dict(m->optimizer, &state));
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    check_whole_state(full, run);
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
}

/* ---- whole ---- */

/* The state takes a number for each row and column, or each element of a vector. */
static void check_memory(const model *m)
{
    fsdp_memory_stats stats;
    size_t bytes = 0;

    for (int i = 0; i < PARAMS; i++) {
        const int64_t *shape = params[i].shape;
        int64_t last = shape[params[i].ndim - 1], outer = 1;

        for (int d = 0; d < params[i].ndim - 2; d++)
            outer *= shape[d];
        bytes += fsdp__device_rounded((size_t)(outer * last) * sizeof(float));
        if (params[i].ndim > 1)
            bytes += fsdp__device_rounded((size_t)(outer * shape[params[i].ndim - 2]) * sizeof(float));
    }
    fsdp_device_memory(test_device(m->context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], bytes);
}

TEST(adafactor_is_pytorchs)
{
    for (int r = 0; r < 2; r++) {
        model m = {.context = test_context()};

        begin(&m, number_get("adafactor", "all", "start")->data, &runs[r].options);
        for (int s = 0; s < STEPS; s++) {
            step(&m, s);
            if (s == 0 || s == STEPS - 1)
                check_params(&m, &runs[r], s > 0);
        }
        check_memory(&m);
        check_state(&m, &runs[r]);
        end(&m);
        test_drop_workspace(m.context);
        CHECK_EQ(test_live_bytes(m.context), 0);
        fsdp_context_free(m.context);
    }
}

/* ---- cut ---- */

typedef struct cuts {
    const float *start;
    const expected *run;
} cuts;

static const cut ways[] = {{.dim = 0}, {.dim = 1}, {.dim = -1}, {.flat = true}};

/* The whole means go over once, and the sums of squares. */
static void check_calls(model *m, int number)
{
    int ranks = fsdp_mesh_size(m->mesh, fsdp_mesh_ndim(m->mesh) - 1);
    fsdp_comm_stats stats;

    fsdp_context_reset_comm_stats(m->context);
    step(m, number);
    fsdp_context_comm_stats(m->context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], ranks > 1 ? 2 : 0);
    for (int c = 0; c < FSDP_COLLECTIVES; c++)
        CHECK(c == FSDP_ALL_REDUCE || stats.calls[c] == 0);
}

static void check_ways(fsdp_context *context, fsdp_mesh *mesh, const cuts *c)
{
    for (size_t w = 0; w < FSDP__COUNT_OF(ways); w++) {
        model m = {.context = context, .mesh = mesh, .how = ways[w]};

        begin(&m, c->start, &c->run->options);
        for (int s = 0; s < STEPS; s++) {
            check_calls(&m, s);
            if (s == 0 || s == STEPS - 1)
                check_params(&m, c->run, s > 0);
        }
        check_state(&m, c->run);
        end(&m);
    }
}

static void check_cuts(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"replicate", "shard"};
    int64_t world = fsdp_context_world_size(context), shape[] = {2, world / 2};
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    check_ways(context, mesh, arg);
    fsdp_mesh_unref(mesh);
    if (world % 2 == 0) {
        CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
        check_ways(context, mesh, arg);
        fsdp_mesh_unref(mesh);
    }
    test_drop_workspace(context);
}

TEST(shards_step_as_the_whole)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (int r = 0; r < 2; r++) {
        cuts c = {number_get("adafactor", "all", "start")->data, &runs[r]};

        for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
            if (!test_brief() || worlds[w] == 3 - r)
                test_run_ranks(worlds[w], check_cuts, &c);
    }
}

/* Two steps in one cut, and two in another. */
static void move(const model *from, const cuts *c, fsdp_mesh *mesh, cut how)
{
    model to = {.context = from->context, .mesh = mesh, .how = how};
    fsdp_state_dict *state = NULL, *full = NULL;
    float values[NUMEL];

    read_all(from, values);
    CHECK_OK(fsdp_optimizer_state_dict(from->optimizer, &state));
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    begin(&to, values, &c->run->options);
    CHECK_OK(fsdp_optimizer_load_full_state_dict(to.optimizer, full, NULL));
    for (int s = 2; s < STEPS; s++)
        step(&to, s);
    check_params(&to, c->run, 1);
    check_state(&to, c->run);
    end(&to);
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
}

static void check_moves(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context);
    const cuts *c = arg;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (size_t w = 0; w < FSDP__COUNT_OF(ways); w++) {
        model m = {.context = context, .mesh = mesh, .how = ways[w]};

        begin(&m, c->start, &c->run->options);
        step(&m, 0);
        step(&m, 1);
        for (size_t to = 0; to < FSDP__COUNT_OF(ways); to++)
            move(&m, c, mesh, ways[to]);
        move(&m, c, NULL, ways[0]);
        end(&m);
    }
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(state_moves_between_cuts)
{
    cuts c = {number_get("adafactor", "all", "start")->data, &runs[1]};

    test_run_ranks(2, check_moves, &c);
    if (!test_brief())
        test_run_ranks(3, check_moves, &c);
}

static void check_partition(fsdp_context *context, void *arg)
{
    const cuts *c = arg;
    model m = {.context = context};
    fsdp_comm_stats stats;
    fsdp_state_dict *state = NULL;

    begin(&m, c->start, &c->run->options);
    CHECK_OK(fsdp_optimizer_partition_state(m.optimizer, NULL));
    fsdp_context_reset_comm_stats(context);
    for (int s = 0; s < STEPS; s++)
        step(&m, s);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], 0);
    check_params(&m, c->run, 1);
    CHECK_OK(fsdp_optimizer_consolidate_state_dict(m.optimizer, 0));
    if (fsdp_context_rank(context) == 0) {
        CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
        check_whole_state(state, c->run);
        fsdp_state_dict_free(state);
    }
    end(&m);
    test_drop_workspace(context);
}

TEST(whole_parameters_may_be_divided_among_ranks)
{
    cuts c = {number_get("adafactor", "all", "start")->data, &runs[0]};

    test_run_ranks(3, check_partition, &c);
}

/* ---- against the formula: large, of 16 bits, clipped, empty ---- */

typedef struct formula {
    int64_t rows, cols; /* rows 0: a vector */
    fsdp_dtype dtype;
    double max_norm, eps;
} formula;

static float value(int step, int64_t i)
{
    uint32_t x = (uint32_t)(step * 104729 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)(((double)(x ^ x >> 16) / 2147483648.0 - 1) * (i % 5 == 0 ? 1 : 0.0625));
}

static fsdp_tensor *make_large(fsdp_context *context, const formula *f, int step, fsdp_memory_kind kind)
{
    int64_t numel = (f->rows ? f->rows : 1) * f->cols, shape[] = {f->rows, f->cols};
    float *values = malloc((size_t)numel * sizeof *values);
    fsdp_tensor *tensor = NULL;

    for (int64_t i = 0; i < numel; i++)
        values[i] = value(step, i);
    CHECK_OK(
        fsdp_tensor_create(test_device(context), f->dtype, f->rows ? 2 : 1, f->rows ? shape : &f->cols, kind, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    free(values);
    return tensor;
}

/* Takes the first step, whose averages are the means themselves, in f64. */
static void expect(const formula *f, const float *p, const float *g, double scale, double *out)
{
    int64_t rows = f->rows ? f->rows : 1, cols = f->cols;
    double *r = calloc((size_t)rows, sizeof *r), *c = calloc((size_t)cols, sizeof *c);
    double mean = 0, of_param = 0, of_update = 0, length, numel = (double)(rows * cols);

    for (int64_t i = 0; i < rows * cols; i++) {
        double square = pow(g[i] * scale, 2);

        r[i / cols] += square / (double)cols;
        c[i % cols] += square / (double)rows;
        mean += square / numel;
        of_param += (double)p[i] * p[i] / numel;
    }
    for (int64_t i = 0; i < rows * cols; i++) {
        double v = f->rows ? r[i / cols] * c[i % cols] / fmax(mean, f->eps) : pow(g[i] * scale, 2);

        out[i] = g[i] * scale / sqrt(fmax(v, f->eps * f->eps));
        of_update += out[i] * out[i] / numel;
    }
    length = 1e-2 * fmax(1e-3, sqrt(of_param)) / fmax(1, sqrt(of_update));
    for (int64_t i = 0; i < rows * cols; i++)
        out[i] = p[i] - length * out[i];
    free(r);
    free(c);
}

static void hold_to_formula(const formula *f)
{
    fsdp_context *context = test_context();
    fsdp_tensor *tensor = make_large(context, f, 0, FSDP_MEMORY_PARAMETER_SHARD), *grad;
    const fsdp_adafactor_options options = fsdp_adafactor_options_default();
    size_t numel = (size_t)fsdp_tensor_numel(tensor);
    float *p = malloc(numel * sizeof *p), *g = malloc(numel * sizeof *g);
    double *wanted = malloc(numel * sizeof *wanted), norm = 0;
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    CHECK_OK(fsdp_adafactor_create(&(fsdp_parameters){1, &(fsdp_parameter){"p", tensor}}, &options, &optimizer));
    grad = make_large(context, f, 1, FSDP_MEMORY_GRADIENT);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, p));
    CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, g));
    CHECK_OK(fsdp_tensor_set_grad(tensor, grad));
    fsdp_tensor_unref(grad);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, f->max_norm, &norm));
    expect(f, p, g, f->max_norm > 0 ? f->max_norm / (norm + 1e-6) : 1, wanted);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, p));
    for (size_t i = 0; i < numel; i++)
        CHECK_NEAR(p[i], wanted[i], f->dtype == FSDP_F32 ? 2e-6 : 0x1p-8 * fmax(fabs(wanted[i]), 1e-3));
    free(p);
    free(g);
    free(wanted);
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(tensor);
    test_drop_workspace(context);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

/* Several pieces: blocks of rows, parts of a row, and of a vector. */
TEST(large_parameters_are_stepped_piece_by_piece)
{
    hold_to_formula(&(formula){1100, 1000, FSDP_F32, 0, 0x1p-23});
    if (test_brief())
        return;
    hold_to_formula(&(formula){2, (1 << 20) + 37, FSDP_F32, 0, 0x1p-23});
    hold_to_formula(&(formula){0, (1 << 20) + 37, FSDP_F32, 0, 0x1p-23});
}

TEST(parameters_of_16_bits_and_clipped_gradients_are_stepped_in_f32)
{
    hold_to_formula(&(formula){30, 20, FSDP_F32, 0.01, 0x1p-23});
    hold_to_formula(&(formula){30, 20, FSDP_BF16, 0, 0x1p-7});
    hold_to_formula(&(formula){0, 50, FSDP_BF16, 0.5, 0x1p-7});
    hold_to_formula(&(formula){30, 20, FSDP_F16, 0, 0x1p-10});
}

static fsdp_optimizer *one(fsdp_context *context, int ndim, const int64_t *shape, const char *name, fsdp_tensor **out)
{
    const fsdp_adafactor_options options = fsdp_adafactor_options_default();
    fsdp_optimizer *optimizer = NULL;
    fsdp_tensor *grad = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, ndim, shape, FSDP_MEMORY_PARAMETER_SHARD, out));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, ndim, shape, FSDP_MEMORY_GRADIENT, &grad));
    CHECK_OK(fsdp_tensor_fill_(*out, 1));
    CHECK_OK(fsdp_tensor_fill_(grad, 2));
    CHECK_OK(fsdp_tensor_set_requires_grad(*out, true));
    CHECK_OK(fsdp_tensor_set_grad(*out, grad));
    fsdp_tensor_unref(grad);
    CHECK_OK(fsdp_adafactor_create(&(fsdp_parameters){1, &(fsdp_parameter){name, *out}}, &options, &optimizer));
    return optimizer;
}

CONTEXT_TEST(empty_parameters_and_numbers_step)
{
    static const int64_t shapes[][3] = {{0, 4, 0}, {3, 0, 0}, {0, 2, 3}, {0, 0, 0}};
    fsdp_tensor *tensor = NULL;
    fsdp_optimizer *optimizer;
    float result = 0;

    for (int i = 0; i < 4; i++) {
        optimizer = one(context, i < 2 ? 2 : i == 2 ? 3 : 1, shapes[i], "empty", &tensor);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_EQ(optimizer->groups[0].params[0].steps, 1);
        fsdp_optimizer_free(optimizer);
        fsdp_tensor_unref(tensor);
    }
    optimizer = one(context, 0, NULL, "number", &tensor);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, &result));
    CHECK_NEAR(result, 1 - 1e-2, 1e-6);
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(tensor);
}

/* ---- what cannot be ---- */

/* A step that fails changes neither a parameter nor its state. */
static void fail_everywhere(int ndim, const int64_t *shape)
{
    for (long n = 1, hit = 1; hit; n++) {
        fsdp_context *context = test_context();
        fsdp_tensor *tensor = NULL;
        fsdp_optimizer *optimizer = one(context, ndim, shape, "p", &tensor);
        const fsdp__optimizer_param *param = &optimizer->groups[0].params[0];
        fsdp_status status;
        float after[12], state[12] = {0};

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_optimizer_step(optimizer);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, after));
        CHECK_NEAR(after[5], status == FSDP_OK ? 1 - 1e-2 : 1, 1e-6);
        if (param->moment1)
            CHECK_OK(fsdp_tensor_read(param->moment1, FSDP_F32, state));
        if (test_device(context) == fsdp_cpu(context) || status == FSDP_OK) /* elsewhere a queue may have no room */
            CHECK_NEAR(state[2], status == FSDP_OK ? 4 : 0, 0);
        fsdp_optimizer_free(optimizer);
        fsdp_tensor_unref(tensor);
        fsdp_context_free(context);
    }
}

TEST(a_step_of_adafactor_survives_every_failed_allocation)
{
    fail_everywhere(FSDP_SHAPE(3, 4));
    fail_everywhere(FSDP_SHAPE(12));
}

CONTEXT_TEST(adafactor_refuses_what_makes_no_sense)
{
    fsdp_adafactor_options bad[4];
    const fsdp_lion_options lion = fsdp_lion_options_default();
    fsdp_tensor *tensor = NULL;
    fsdp_optimizer *optimizer = one(context, FSDP_SHAPE(3, 4), "p", &tensor), *none = NULL;
    fsdp_parameters list = {1, &(fsdp_parameter){"q", tensor}};

    for (int i = 0; i < 4; i++)
        bad[i] = fsdp_adafactor_options_default();
    bad[0].beta2_decay = 0.8;
    bad[1].d = 0;
    bad[2].eps1 = -1;
    bad[3].lr = NAN;
    CHECK_ERROR(fsdp_adafactor_create(&list, &bad[0], &none), FSDP_INVALID, "option beta2_decay is 0.8");
    CHECK_ERROR(fsdp_adafactor_create(&list, &bad[1], &none), FSDP_INVALID, "option d is 0: it must be at least 1");
    CHECK_ERROR(fsdp_adafactor_create(&list, &bad[2], &none), FSDP_INVALID, "option eps1 is -1");
    CHECK_ERROR(fsdp_adafactor_create(&list, &bad[3], &none), FSDP_INVALID, "option lr is nan");
    CHECK_ERROR(fsdp_adafactor_create(&list, NULL, &none), FSDP_INVALID, "fsdp_adafactor_options_default() has some");
    CHECK_ERROR(fsdp_lion_add_group(optimizer, &list, &lion), FSDP_INVALID, "the optimizer is not Lion");
    CHECK_ERROR(fsdp_adafactor_add_group(optimizer, &list, &(fsdp_adafactor_options){.lr = 1, .d = 1}), FSDP_INVALID,
                "cannot optimize 'q' twice");
    CHECK_NULL(none);
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(tensor);
}

CONTEXT_TEST(flat_parameters_have_neither_rows_nor_columns)
{
    const fsdp_adafactor_options options = fsdp_adafactor_options_default();
    fsdp_module *module = CHECK_PTR(fsdp_linear_create(context, test_device(context), 3, 4, NULL));
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(module, 1));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* a world of one is NO_SHARD */
    CHECK_OK(fsdp_fsdp1_wrap(module, NULL));
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_ERROR(fsdp_adafactor_create(&parameters, &options, &optimizer), FSDP_UNSUPPORTED,
                "cannot optimize '_flat_param' by Adafactor: it is a flat parameter");
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(module);
}
