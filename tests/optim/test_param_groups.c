/* Options of groups as state, state under numbers, and state that moves between layouts of the parameters. */
#include "base/compiler.h"
#include "fsdp/dist.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/ranks.h"

enum {
    PARAMS = 4, /* the last two are a second group */
    MOST = 128
};

static const char *const names[PARAMS] = {"a", "b.weight", "b.weight.x", "0"};
static const int64_t shapes[PARAMS][2] = {{17, 5}, {3, 2}, {1, 7}, {6, 4}};

typedef enum layout {
    ROWS,
    COLUMNS,
    FLAT,
    WHOLE,
    PLAIN,
    LAYOUTS
} layout;

typedef struct model {
    fsdp_tensor *tensors[PARAMS];
    fsdp_optimizer *optimizer;
} model;

static fsdp_tensor *make(fsdp_context *context, fsdp_mesh *mesh, layout how, int param, int step)
{
    int64_t total = 0, first = 0;
    fsdp_placement placement = {.kind = how == WHOLE ? FSDP_REPLICATE : FSDP_SHARD, .dim = how == COLUMNS};
    fsdp_tensor *whole = NULL, *part = NULL;
    float data[MOST];

    for (int p = 0; p < PARAMS; p++) {
        first += p < param ? shapes[p][0] * shapes[p][1] : 0;
        total += shapes[p][0] * shapes[p][1];
    }
    if (how == FLAT)
        placement = (fsdp_placement){.kind = FSDP_FLAT,
                                     .first = first,
                                     .chunk = (total + fsdp_mesh_size(mesh, 0) - 1) / fsdp_mesh_size(mesh, 0)};
    for (int64_t i = 0; i < MOST; i++)
        data[i] = (float)((param * 37 + step * 13 + i * 11) % 101 - 50) / 64;
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shapes[param], FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    if (how == PLAIN)
        return whole;
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &placement, &part));
    fsdp_tensor_unref(whole);
    return part;
}

static void make_optimizer(model *m, bool sgd, double lr)
{
    const fsdp_adam_options adam[2] = {{.lr = lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
                                       {.lr = lr / 3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-7}};
    const fsdp_sgd_options momentum[2] = {{.lr = lr, .momentum = 0.9, .weight_decay = lr},
                                          {.lr = lr / 3, .momentum = 0.7, .dampening = 0.1}};
    fsdp_parameter items[PARAMS];
    fsdp_parameters first = {2, items}, second = {PARAMS - 2, items + 2};

    for (int i = 0; i < PARAMS; i++) {
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    if (sgd) {
        CHECK_OK(fsdp_sgd_create(&first, &momentum[0], &m->optimizer));
        CHECK_OK(fsdp_sgd_add_group(m->optimizer, &second, &momentum[1]));
    } else {
        CHECK_OK(fsdp_adamw_create(&first, &adam[0], &m->optimizer));
        CHECK_OK(fsdp_adam_add_group(m->optimizer, &second, &adam[1]));
    }
}

static void model_init(model *m, fsdp_context *context, fsdp_mesh *mesh, layout how, bool sgd, double lr)
{
    for (int i = 0; i < PARAMS; i++)
        m->tensors[i] = make(context, mesh, how, i, 0);
    make_optimizer(m, sgd, lr);
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

static void take_steps(model *m, fsdp_context *context, fsdp_mesh *mesh, layout how, int first, int last)
{
    for (int step = first; step <= last; step++) {
        for (int i = 0; i < (step < 3 ? PARAMS - 1 : PARAMS); i++) {
            fsdp_tensor *grad = make(context, mesh, how, i, step);

            CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], grad));
            fsdp_tensor_unref(grad);
        }
        CHECK_OK(fsdp_optimizer_step(m->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(m->optimizer));
    }
}

/* All that there is of an optimizer; the caller frees it. */
static fsdp_state_dict *state_of(const model *m)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_optimizer_state_dict(m->optimizer, &state));
    CHECK_OK(fsdp_optimizer_add_param_groups(m->optimizer, state));
    return state;
}

/* ---- from layout to layout ---- */

/* By whole tensors on the ranks that FSDP1 gives them to, by parts of rows, or parts as they are. */
static void move(model *to, const model *from, int how)
{
    const fsdp_full_state_options parts = {.from_parts = true}, broadcast = {.broadcast_from_rank0 = true},
                                  first = {.rank0_only = true, .offload_to_cpu = true};
    fsdp_state_dict *state = state_of(from), *made = NULL;

    if (how == 0)
        CHECK_OK(fsdp_state_dict_gather(state, &first, &made));
    else if (how == 1)
        CHECK_OK(fsdp_state_dict_shard_rows(state, &(fsdp_sharded_state_options){.over_replicas = true}, &made));
    CHECK_OK(fsdp_optimizer_load_full_state_dict(to->optimizer, made ? made : state, how == 0 ? &broadcast : &parts));
    fsdp_state_dict_free(made);
    fsdp_state_dict_free(state);
}

static void check_same(const model *a, const model *b)
{
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *x, *y;
        float left[MOST], right[MOST];

        CHECK_OK(fsdp_full_tensor(a->tensors[i], &x));
        CHECK_OK(fsdp_full_tensor(b->tensors[i], &y));
        CHECK_OK(fsdp_tensor_read(x, FSDP_F32, left));
        CHECK_OK(fsdp_tensor_read(y, FSDP_F32, right));
        CHECK_BYTES(left, right, (size_t)fsdp_tensor_numel(x) * sizeof(float));
        fsdp_tensor_unref(x);
        fsdp_tensor_unref(y);
    }
}

static void compare(fsdp_context *context, fsdp_mesh *mesh, layout from, layout to, int how)
{
    bool sgd = (from + to + how) % 2;
    model stays, moves;

    model_init(&stays, context, mesh, from, sgd, 1e-2);
    take_steps(&stays, context, mesh, from, 1, 2);
    model_init(&moves, context, mesh, to, sgd, 5e-2); /* other options, which are replaced */
    take_steps(&moves, context, mesh, to, 3, 3);
    for (int i = 0; i < PARAMS; i++) {
        fsdp_state_dict *own, *given;

        CHECK_OK(fsdp_state_dict_create(&own));
        CHECK_OK(fsdp_state_dict_create(&given));
        CHECK_OK(fsdp_state_dict_add(own, "p", moves.tensors[i]));
        CHECK_OK(fsdp_state_dict_add(given, "p", stays.tensors[i]));
        CHECK_OK(fsdp_state_dict_load_full(own, given, &(fsdp_full_state_options){.from_parts = true}));
        fsdp_state_dict_free(own);
        fsdp_state_dict_free(given);
    }
    move(&moves, &stays, how);
    take_steps(&stays, context, mesh, from, 3, 4);
    take_steps(&moves, context, mesh, to, 3, 4);
    check_same(&stays, &moves);
    CHECK_NEAR(fsdp_optimizer_lr(moves.optimizer, 1), 1e-2 / 3, 0);
    model_free(&stays);
    model_free(&moves);
}

static void check_moves(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_mesh *mesh;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (int from = 0; from < LAYOUTS; from++)
        for (int to = 0; to < LAYOUTS; to++)
            for (int how = 0; how < 3; how++)
                compare(context, mesh, (layout)from, (layout)to, how);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(state_moves_between_layouts_with_its_options)
{
    for (int world = 1; world <= 4; world++)
        if (!test_brief() || world == 3)
            test_run_ranks(world, check_moves, NULL);
}

/* ---- keys ---- */

CONTEXT_TEST(names_become_numbers_and_names_again)
{
    static const char *const ids[] = {"state.0.exp_avg", "state.2.step", "param_groups.3.lr", "param_groups.1.beta2"};
    static const char *const no_numbers[] = {"state.+1.step", "state.01.step", "state.-0.step", "state. 1.step"};
    fsdp_state_dict *held, *by_id, *by_name, *no;
    model m;

    model_init(&m, context, NULL, PLAIN, false, 1e-3);
    take_steps(&m, context, NULL, PLAIN, 1, 1);
    held = state_of(&m);
    CHECK_OK(fsdp_optimizer_rekey_state_dict(m.optimizer, held, true, &by_id));
    CHECK_OK(fsdp_optimizer_rekey_state_dict(m.optimizer, by_id, false, &by_name));
    for (size_t i = 0; i < FSDP__COUNT_OF(ids); i++)
        CHECK_PTR(fsdp_state_dict_find(by_id, ids[i]));
    CHECK_EQ(by_name->count, held->count);
    for (int64_t i = 0; i < held->count; i++) {
        CHECK_STRING(by_name->entries[i].name, held->entries[i].name);
        CHECK(by_name->entries[i].tensor == held->entries[i].tensor);
    }
    CHECK_ERROR(fsdp_optimizer_rekey_state_dict(m.optimizer, by_name, false, &no), FSDP_INVALID,
                "cannot rekey 'state.a.step': the optimizer has no such parameter number");
    for (size_t i = 0; i < FSDP__COUNT_OF(no_numbers); i++) {
        fsdp_state_dict *one;

        CHECK_OK(fsdp_state_dict_create(&one));
        CHECK_OK(fsdp_state_dict_add(one, no_numbers[i], held->entries[0].tensor));
        CHECK_ERROR(fsdp_optimizer_rekey_state_dict(m.optimizer, one, false, &no), FSDP_INVALID,
                    "the optimizer has no such parameter number");
        fsdp_state_dict_free(one);
    }
    CHECK_OK(fsdp_state_dict_add(by_name, "optimizer_state.c.step", held->entries[0].tensor));
    CHECK_ERROR(fsdp_optimizer_rekey_state_dict(m.optimizer, by_name, true, &no), FSDP_INVALID,
                "cannot rekey 'optimizer_state.c.step': the optimizer has no such parameter");
    CHECK_NULL(no);
    fsdp_state_dict_free(by_name);
    fsdp_state_dict_free(by_id);
    fsdp_state_dict_free(held);
    model_free(&m);
}

/* ---- refused ---- */

static void set(const fsdp_state_dict *state, const char *name, double value)
{
    const fsdp_state_dict_entry *entry = fsdp_state_dict_find(state, name);
    int64_t bits;

    memcpy(&bits, &value, sizeof bits);
    CHECK_OK(fsdp_tensor_write(entry->tensor, FSDP_I64, &bits));
}

CONTEXT_TEST(options_that_contradict_each_other_are_named)
{
    fsdp_state_dict *held, *some;
    model m, sgd;

    model_init(&m, context, NULL, PLAIN, false, 1e-3);
    model_init(&sgd, context, NULL, PLAIN, true, 1e-3);
    take_steps(&m, context, NULL, PLAIN, 1, 1);
    held = state_of(&m);
    set(held, "param_groups.b.weight.lr", 2);
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, held), FSDP_INVALID,
                "'a' and 'b.weight' are in one group and would have 'lr' 0.001 and 2");
    CHECK_ERROR(fsdp_optimizer_load_full_state_dict(m.optimizer, held, NULL), FSDP_INVALID, "are in one group");
    set(held, "param_groups.a.lr", 2);
    CHECK_OK(fsdp_optimizer_load_state_dict(m.optimizer, held));
    CHECK_NEAR(fsdp_optimizer_lr(m.optimizer, 0), 2, 0);
    set(held, "param_groups.a.lr", -1);
    set(held, "param_groups.b.weight.lr", -1);
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, held), FSDP_INVALID, "option lr is -1");
    CHECK_NEAR(fsdp_optimizer_lr(m.optimizer, 0), 2, 0);
    CHECK_OK(fsdp_state_dict_create(&some));
    CHECK_OK(
        fsdp_state_dict_add(some, "param_groups.a.beta1", fsdp_state_dict_find(held, "param_groups.a.beta1")->tensor));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, some), FSDP_INVALID, "only one of them has 'beta1'");
    CHECK_ERROR(fsdp_optimizer_load_state_dict(sgd.optimizer, some), FSDP_INVALID,
                "cannot load 'param_groups.a.beta1'");
    CHECK_ERROR(fsdp_optimizer_add_param_groups(m.optimizer, held), FSDP_INVALID, "the name is taken");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_optimizer_add_param_groups(NULL, held), FSDP_INVALID,
                "cannot add parameter groups to a state dict: the optimizer is NULL");
    fsdp_state_dict_free(some);
    fsdp_state_dict_free(held);
    model_free(&sgd);
    model_free(&m);
}

/* State goes by names. */
CONTEXT_TEST(a_name_is_of_one_parameter)
{
    const fsdp_sgd_options options = {.lr = 1};
    fsdp_optimizer *optimizer;
    fsdp_parameter items[2];
    model m;

    model_init(&m, context, NULL, PLAIN, true, 1e-2);
    items[0] = (fsdp_parameter){"weight", m.tensors[0]};
    items[1] = (fsdp_parameter){"weight", m.tensors[1]};
    CHECK_ERROR(fsdp_sgd_create(&(fsdp_parameters){2, items}, &options, &optimizer), FSDP_INVALID,
                "two parameters called 'weight', one of which comes earlier in the list: state is found by names");
    CHECK_NULL(optimizer);
    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){1, items}, &options, &optimizer));
    CHECK_ERROR(fsdp_sgd_add_group(optimizer, &(fsdp_parameters){1, items + 1}, &options), FSDP_INVALID,
                "two parameters called 'weight', one of which is in group 0");
    for (int i = 0; i < 2; i++) {
        items[1].name = i ? "" : NULL;
        CHECK_ERROR(fsdp_sgd_add_group(optimizer, &(fsdp_parameters){1, items + 1}, &options), FSDP_INVALID,
                    "parameter 0 of the list: it has no name");
    }
    CHECK_EQ(fsdp_optimizer_group_count(optimizer), 1);
    items[1].name = "bias";
    CHECK_OK(fsdp_sgd_add_group(optimizer, &(fsdp_parameters){1, items + 1}, &options));
    fsdp_optimizer_free(optimizer);
    model_free(&m);
}
