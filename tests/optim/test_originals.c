/* The parameters that lie in a flat one: their names, the views of their state, and what goes in again.
 * Links: shard nn */
#include "optim/originals.h"

#include "fsdp/fsdp1.h"
#include "fsdp/nn.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    LAYERS = 2,
    PARAMS = 2 * LAYERS
};

static const char *const names[PARAMS] = {"0.weight", "0.bias", "1.weight", "1.bias"};
static const int64_t widths[LAYERS + 1] = {5, 7, 3};

typedef struct model {
    fsdp_module *module;
    fsdp_optimizer *optimizer;
} model;

/* The second layer is a unit of its own; the first is the root's. */
static void model_init(model *m, fsdp_context *context, bool adamw)
{
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9};
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_module *layers[LAYERS];
    fsdp_parameters parameters;

    for (int i = 0; i < LAYERS; i++)
        layers[i] = fsdp_linear_create(context, test_device(context), widths[i], widths[i + 1], NULL);
    m->module = CHECK_PTR(fsdp_sequential_create(context, layers, LAYERS));
    CHECK_OK(fsdp_module_initialize(m->module, 1));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* a world of one is NO_SHARD */
    CHECK_OK(fsdp_fsdp1_wrap(layers[1], NULL));
    CHECK_OK(fsdp_fsdp1_wrap(m->module, NULL));
    CHECK_OK(fsdp_module_parameters(m->module, &parameters));
    CHECK_EQ(parameters.count, LAYERS);
    CHECK_OK(adamw ? fsdp_adamw_create(&parameters, &adam, &m->optimizer)
                   : fsdp_sgd_create(&parameters, &sgd, &m->optimizer));
    fsdp_parameters_release(&parameters);
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    fsdp_module_unref(m->module);
}

static void take_steps(const model *m, int steps)
{
    fsdp_context *context = m->module->context;
    float x[10];

    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < 10; i++)
            x[i] = (float)((i + 3 * step + fsdp_context_rank(context)) % 7) / 7;
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(fsdp_mean(
            fsdp_call(m->module, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, widths[0]), x)))));
        fsdp_scope_end(context, NULL);
        CHECK_OK(fsdp_optimizer_step(m->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(m->optimizer));
    }
}

/* ---- names and views ---- */

static void check_moment(const fsdp__optimizer_param *flat, const fsdp__optimizer_param *original)
{
    const fsdp_tensor *view = original->moment1;

    CHECK(view->storage == flat->moment1->storage);
    CHECK_EQ(view->offset, flat->moment1->offset + original->first);
    CHECK_EQ(fsdp_tensor_numel(view), fsdp_tensor_numel(original->tensor));
    CHECK(fsdp_tensor_distribution(view) != NULL);
    CHECK_EQ(original->steps, flat->steps);
}

static void open_and_close(fsdp_context *context, void *arg)
{
    const fsdp__optimizer_group *group;
    model m;
    int at = 0;

    model_init(&m, context, *(const bool *)arg);
    group = &m.optimizer->groups[0];
    take_steps(&m, 2);
    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(m.optimizer, &w); at++) {
        CHECK(at < PARAMS);
        CHECK(w.group == group);
        CHECK_STRING(w.param->name, names[at]);
        CHECK(w.param->tensor == fsdp_module_parameter(m.module, names[at]));
        check_moment(&group->params[at / 2], w.param);
    }
    CHECK_EQ(at, PARAMS);
    CHECK_OK(fsdp__originals_close(m.optimizer, false));
    for (int i = 0; i < PARAMS; i++) {
        CHECK_NULL(group->params[i / 2].originals[i % 2].moment1);
        CHECK_EQ(group->params[i / 2].originals[i % 2].steps, 0);
    }
    model_free(&m);
}

TEST(originals_have_views_of_the_flat_ones_state)
{
    for (int world = 1; world <= 3; world++)
        for (int adamw = 0; adamw < 2; adamw++)
            test_run_ranks(world, open_and_close, &(bool){adamw});
}

/* Without a step there is none; made, it is zeros. */
RANKS_TEST(state_is_made_where_it_is_asked_for, 2)
{
    const fsdp__optimizer_group *group;
    model m;

    model_init(&m, context, true);
    group = &m.optimizer->groups[0];
    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    CHECK_NULL(group->params[0].originals[0].moment1);
    CHECK_OK(fsdp__originals_close(m.optimizer, false));
    CHECK_OK(fsdp__originals_open(m.optimizer, true));
    check_moment(&group->params[0], &group->params[0].originals[1]);
    CHECK_EQ(group->params[0].originals[1].steps, 0);
    CHECK_OK(fsdp__originals_close(m.optimizer, false));
    model_free(&m);
}

/* ---- taken ---- */

static void read_moment(const fsdp__optimizer_param *flat, int original, float *values)
{
    const fsdp__optimizer_param *o = &flat->originals[original];
    fsdp_tensor *part;

    CHECK_OK(fsdp__view_narrow(flat->moment1, 0, o->first, fsdp_tensor_numel(o->tensor), &part));
    CHECK_OK(fsdp_tensor_read(part, FSDP_F32, values));
    fsdp_tensor_unref(part);
}

/* One that was loaded without state has zeros beside the other; both of another number of steps are refused. */
WORLDS_TEST(what_was_loaded_is_the_flat_ones, 1, 3)
{
    fsdp__optimizer_param *flat;
    float values[64] = {0};
    model m;

    model_init(&m, context, true);
    take_steps(&m, 3);
    flat = &m.optimizer->groups[0].params[0];
    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    flat->originals[0].steps = 5;
    flat->originals[1].steps = 5;
    CHECK_OK(fsdp__originals_close(m.optimizer, true));
    CHECK_EQ(flat->steps, 5);

    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    flat->originals[1].steps = 7;
    CHECK_ERROR(fsdp__originals_close(m.optimizer, true), FSDP_INVALID,
                "'0.weight' has taken 5 steps and '0.bias' 7, but they are one flat parameter here");
    CHECK_EQ(flat->steps, 5);

    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    fsdp__optimizer_forget_state(&flat->originals[1]); /* as who loads a state dict without it */
    CHECK_OK(fsdp__originals_close(m.optimizer, true));
    read_moment(flat, 1, values);
    for (int64_t i = 0; i < fsdp_tensor_numel(flat->originals[1].tensor); i++)
        CHECK_EQ(values[i], 0);

    CHECK_OK(fsdp__originals_open(m.optimizer, false));
    for (int i = 0; i < 2; i++)
        fsdp__optimizer_forget_state(&flat->originals[i]);
    CHECK_OK(fsdp__originals_close(m.optimizer, true));
    CHECK_NULL(flat->moment1);
    CHECK_EQ(flat->steps, 0);
    model_free(&m);
}
