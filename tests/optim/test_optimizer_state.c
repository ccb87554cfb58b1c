/* The state of an optimizer: aliases of what it steps with, and the same steps after it has gone out and in. */
#include "device/device.h"
#include "fsdp/dist.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    PARAMS = 3, /* the last one has no gradient before step 3 */
    MOST = 128
};

static const char *const names[PARAMS] = {"a", "b.weight", "b.weight.x"};
static const int64_t shapes[PARAMS][2] = {{17, 5}, {3, 2}, {1, 7}};

typedef enum algorithm {
    ADAMW,
    MOMENTUM,
    SGD,
    ALGORITHMS
} algorithm;

typedef struct model {
    fsdp_tensor *tensors[PARAMS];
    fsdp_optimizer *optimizer;
} model;

static fsdp_tensor *make(fsdp_context *context, fsdp_mesh *mesh, int param, int step)
{
    static const fsdp_placement rows = {.kind = FSDP_SHARD};
    fsdp_tensor *whole = NULL, *part = NULL;
    float data[MOST];

    for (int64_t i = 0; i < MOST; i++)
        data[i] = (float)((param * 37 + step * 13 + i * 11) % 101 - 50) / 64;
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shapes[param], FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    if (!mesh)
        return whole;
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &rows, &part));
    fsdp_tensor_unref(whole);
    return part;
}

static void model_init(model *m, fsdp_context *context, fsdp_mesh *mesh, algorithm kind)
{
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = kind == SGD ? 0 : 0.9};
    fsdp_parameter items[PARAMS];

    for (int i = 0; i < PARAMS; i++) {
        m->tensors[i] = make(context, mesh, i, 0);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    if (kind == ADAMW)
        CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){PARAMS, items}, &adam, &m->optimizer));
    else
        CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){PARAMS, items}, &sgd, &m->optimizer));
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

static void take_steps(model *m, fsdp_context *context, fsdp_mesh *mesh, int first, int last)
{
    for (int step = first; step <= last; step++) {
        for (int i = 0; i < (step < 3 ? PARAMS - 1 : PARAMS); i++) {
            fsdp_tensor *grad = make(context, mesh, i, step);

            CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], grad));
            fsdp_tensor_unref(grad);
        }
        CHECK_OK(fsdp_optimizer_step(m->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(m->optimizer));
    }
}

static void check_same(const model *a, const model *b)
{
    for (int i = 0; i < PARAMS; i++) {
        float left[MOST], right[MOST];
        size_t bytes = (size_t)fsdp_tensor_numel(a->tensors[i]) * sizeof(float);

        CHECK_OK(fsdp_tensor_read(a->tensors[i], FSDP_F32, left));
        CHECK_OK(fsdp_tensor_read(b->tensors[i], FSDP_F32, right));
        CHECK_BYTES(left, right, bytes);
        CHECK_EQ(a->optimizer->groups[0].params[i].steps, b->optimizer->groups[0].params[i].steps);
    }
}

static void copy_parameters(const model *to, const model *from)
{
    for (int i = 0; i < PARAMS; i++)
        CHECK_OK(fsdp_tensor_copy_(to->tensors[i], from->tensors[i]));
}

/* ---- what it holds ---- */

static const fsdp_state_dict_entry *entry_of(const fsdp_state_dict *state, const char *param, const char *part)
{
    char name[64];

    snprintf(name, sizeof name, "state.%s.%s", param, part);
    return fsdp_state_dict_find(state, name);
}

static void check_entries(fsdp_context *context, fsdp_mesh *mesh, algorithm kind)
{
    static const int64_t parts[] = {3, 2, 1};
    const char *moment = kind == ADAMW ? "exp_avg" : "momentum_buffer";
    fsdp_state_dict *state = NULL;
    const void *data;
    fsdp_comm_stats stats;
    int64_t steps;
    model m;

    model_init(&m, context, mesh, kind);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
    CHECK_EQ(state->count, 0);
    fsdp_state_dict_free(state);
    take_steps(&m, context, mesh, 1, 2);
    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
    fsdp_context_comm_stats(context, &stats);
    for (int i = 0; i < FSDP_COLLECTIVES; i++)
        CHECK_EQ(stats.calls[i], 0);
    CHECK_EQ(state->count, 2 * parts[kind]);
    CHECK_NULL(entry_of(state, names[2], "step"));
    CHECK_OK(fsdp_tensor_read(entry_of(state, names[1], "step")->tensor, FSDP_I64, &steps));
    CHECK_EQ(steps, 2);
    CHECK(entry_of(state, names[1], "step")->replicated);
    if (kind != SGD) {
        const fsdp_state_dict_entry *entry = entry_of(state, names[0], moment);

        CHECK_EQ(entry->global_shape[0], 17);
        CHECK(entry->tensor == m.optimizer->groups[0].params[0].moment1);
        data = fsdp_tensor_data(entry->tensor);
        take_steps(&m, context, mesh, 3, 4);
        CHECK(entry->tensor == m.optimizer->groups[0].params[0].moment1);
        CHECK(fsdp_tensor_data(entry->tensor) == data);
        CHECK_EQ(entry->size[0], fsdp_tensor_size(m.tensors[0], 0));
    }
    fsdp_state_dict_free(state);
    CHECK_OK(fsdp_optimizer_init_state(m.optimizer));
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
    CHECK_EQ(state->count, (kind == SGD ? 2 : PARAMS) * parts[kind]);
    fsdp_state_dict_free(state);
    model_free(&m);
}

/* ---- out and in ---- */

/* `m` goes on after `how` has moved its state to another optimizer; both must step alike. */
static void compare(fsdp_context *context, fsdp_mesh *mesh, algorithm kind, int at, int how)
{
    const fsdp_full_state_options offload = {.cpu_offload = true}, broadcast = {.broadcast_from_rank0 = true};
    fsdp_state_dict *state = NULL, *whole = NULL;
    model m, other;

    model_init(&m, context, mesh, kind);
    take_steps(&m, context, mesh, 1, at);
    model_init(&other, context, mesh, kind);
    if (how % 2)
        take_steps(&other, context, mesh, 1, 4); /* other state, of more parameters, is replaced */
    copy_parameters(&other, &m);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
    switch (how / 2) {
    case 0:
        CHECK_OK(fsdp_optimizer_load_state_dict(other.optimizer, state));
        break;
    case 1:
        CHECK_OK(fsdp_state_dict_gather(state, NULL, &whole));
        CHECK_OK(fsdp_optimizer_load_full_state_dict(other.optimizer, whole, NULL));
        break;
    default:
        CHECK_OK(fsdp_state_dict_gather(state, &offload, &whole));
        CHECK_OK(fsdp_optimizer_load_full_state_dict(other.optimizer, whole, &broadcast));
    }
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(state);
    check_same(&other, &m);
    take_steps(&m, context, mesh, at + 1, at + 3);
    take_steps(&other, context, mesh, at + 1, at + 3);
    check_same(&other, &m);
    model_free(&other);
    model_free(&m);
}

WORLDS_TEST(moved_state_steps_on, 1, 4)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (algorithm kind = 0; kind < ALGORITHMS; kind++) {
        check_entries(context, mesh, kind);
        for (int how = 0; how < 6; how++) {
            compare(context, mesh, kind, 0, how);
            compare(context, mesh, kind, 2, how);
        }
    }
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

/* ---- errors ---- */

WORLDS_TEST(what_does_not_fit_is_named, 1, 3)
{
    const fsdp_full_state_options broadcast = {.broadcast_from_rank0 = true}, partial = {.partial = true};
    int64_t world = fsdp_context_world_size(context);
    bool first = fsdp_context_rank(context) == 0;
    fsdp_state_dict *state = NULL, *some = NULL;
    fsdp_mesh *mesh = NULL;
    model m;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    model_init(&m, context, mesh, ADAMW);
    take_steps(&m, context, mesh, 1, 1);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &state));
    CHECK_OK(fsdp_state_dict_create(&some));
    CHECK_OK(fsdp_state_dict_add(some, state->entries[0].name, state->entries[0].tensor));
    CHECK_OK(fsdp_state_dict_add(some, state->entries[1].name, state->entries[1].tensor));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, some), FSDP_INVALID,
                "cannot load the state of 'a': it has 'exp_avg' but no 'exp_avg_sq'");
    CHECK_ERROR(fsdp_optimizer_load_full_state_dict(m.optimizer, first ? some : NULL, &broadcast), FSDP_INVALID,
                "cannot load the state of 'a': it has 'exp_avg' but no 'exp_avg_sq'");
    fsdp_state_dict_free(some);
    CHECK_OK(fsdp_state_dict_create(&some));
    CHECK_OK(fsdp_state_dict_add(some, "optimizer_state.c.step", state->entries[0].tensor));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, some), FSDP_INVALID,
                "cannot load 'optimizer_state.c.step': no parameter of the optimizer has such state");
    CHECK_ERROR(fsdp_optimizer_load_full_state_dict(m.optimizer, some, NULL), FSDP_INVALID,
                "cannot load 'optimizer_state.c.step'");
    CHECK_EQ(m.optimizer->groups[0].params[0].steps, 1); /* nothing was changed */
    CHECK_OK(fsdp_optimizer_load_full_state_dict(m.optimizer, some, &partial));
    CHECK_EQ(m.optimizer->groups[0].params[0].steps, 0);
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, NULL), FSDP_INVALID, "the state dict is NULL");
    fsdp_state_dict_free(some);
    fsdp_state_dict_free(state);
    model_free(&m);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

CONTEXT_TEST(a_part_of_another_shape_is_named)
{
    fsdp_state_dict *given = NULL, *odd = NULL;
    fsdp_tensor *other;
    model m;

    model_init(&m, context, NULL, MOMENTUM);
    take_steps(&m, context, NULL, 1, 1);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &given));
    other = make(context, NULL, 1, 0);
    CHECK_OK(fsdp_state_dict_create(&odd));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.step", entry_of(given, "a", "step")->tensor));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.momentum_buffer", other));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, odd), FSDP_INVALID,
                "cannot load 'state.a.momentum_buffer': it has shape (3, 2), but this rank's part of the parameter has "
                "shape (17, 5)");
    fsdp_state_dict_free(odd);
    CHECK_OK(fsdp_state_dict_create(&odd));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.step", other));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.momentum_buffer", entry_of(given, "a", "momentum_buffer")->tensor));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, odd), FSDP_INVALID,
                "cannot load the state of 'a': its step is not one number");
    fsdp_tensor_unref(other);
    fsdp_state_dict_free(odd);
    fsdp_state_dict_free(given);
    model_free(&m);
}

/* Puts another tensor under a name of a state dict. */
static void replace(fsdp_state_dict **state, const char *name, fsdp_tensor *tensor)
{
    fsdp_state_dict *made = NULL;

    CHECK_OK(fsdp_state_dict_create(&made));
    for (int64_t i = 0; i < (*state)->count; i++) {
        const fsdp_state_dict_entry *entry = &(*state)->entries[i];

        CHECK_OK(fsdp_state_dict_add(made, entry->name, strcmp(entry->name, name) == 0 ? tensor : entry->tensor));
    }
    fsdp_state_dict_free(*state);
    *state = made;
}

CONTEXT_TEST(state_of_another_device_is_copied)
{
    fsdp_device *sim = CHECK_PTR(fsdp__device_open(context, "sim", 1));
    fsdp_state_dict *given = NULL, *moved = NULL;
    float before[MOST], after[MOST];
    model m;

    model_init(&m, context, NULL, ADAMW);
    take_steps(&m, context, NULL, 1, 2);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &given));
    CHECK_OK(fsdp_state_dict_create(&moved));
    for (int64_t i = 0; i < given->count; i++)
        CHECK_OK(fsdp_state_dict_add(moved, given->entries[i].name,
                                     CHECK_PTR(fsdp_to_device(given->entries[i].tensor, sim))));
    CHECK_OK(fsdp_tensor_read(entry_of(given, "a", "exp_avg")->tensor, FSDP_F32, before));
    take_steps(&m, context, NULL, 3, 3);
    CHECK_OK(fsdp_optimizer_load_state_dict(m.optimizer, moved));
    CHECK_OK(fsdp_tensor_read(entry_of(given, "a", "exp_avg")->tensor, FSDP_F32, after));
    CHECK_BYTES(after, before, (size_t)(shapes[0][0] * shapes[0][1]) * sizeof *after);
    CHECK_EQ(m.optimizer->groups[0].params[0].steps, 2);
    CHECK_NULL(m.optimizer->groups[0].params[2].moment1); /* it had not stepped */
    fsdp_state_dict_free(moved);
    fsdp_state_dict_free(given);
    model_free(&m);
}

/* The first parameter's state fits, and stays as it was all the same. */
CONTEXT_TEST(a_state_that_is_refused_changes_nothing)
{
    fsdp_state_dict *given = NULL, *odd = NULL;
    float before[MOST], after[MOST];
    fsdp_tensor *fits, *other;
    model m;

    model_init(&m, context, NULL, MOMENTUM);
    take_steps(&m, context, NULL, 1, 1);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &given));
    CHECK_OK(fsdp_tensor_read(entry_of(given, "a", "momentum_buffer")->tensor, FSDP_F32, before));
    fits = make(context, NULL, 0, 7);
    other = make(context, NULL, 0, 0);
    CHECK_OK(fsdp_state_dict_create(&odd));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.step", entry_of(given, "a", "step")->tensor));
    CHECK_OK(fsdp_state_dict_add(odd, "state.a.momentum_buffer", fits));
    CHECK_OK(fsdp_state_dict_add(odd, "state.b.weight.step", entry_of(given, "a", "step")->tensor));
    CHECK_OK(fsdp_state_dict_add(odd, "state.b.weight.momentum_buffer", other));
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, odd), FSDP_INVALID,
                "cannot load 'state.b.weight.momentum_buffer': it has shape (17, 5)");
    fsdp_tensor_unref(other);
    CHECK_OK(fsdp_tensor_create(fsdp_meta(context), FSDP_F32, 2, shapes[1], FSDP_MEMORY_OPTIMIZER_STATE, &other));
    replace(&odd, "state.b.weight.momentum_buffer", other);
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, odd), FSDP_INVALID,
                "cannot load 'state.b.weight.momentum_buffer': it is on the meta device, but the parameter is on ");
    replace(&odd, "state.b.weight.momentum_buffer", entry_of(given, "b.weight", "momentum_buffer")->tensor);
    replace(&odd, "state.b.weight.step", fits);
    CHECK_ERROR(fsdp_optimizer_load_state_dict(m.optimizer, odd), FSDP_INVALID,
                "cannot load the state of 'b.weight': its step is not one number");
    CHECK_OK(fsdp_tensor_read(entry_of(given, "a", "momentum_buffer")->tensor, FSDP_F32, after));
    CHECK_BYTES(after, before, (size_t)(shapes[0][0] * shapes[0][1]) * sizeof *after);
    fsdp_tensor_unref(other);
    fsdp_tensor_unref(fits);
    fsdp_state_dict_free(odd);
    fsdp_state_dict_free(given);
    model_free(&m);
}

/* ---- ranks that train nothing ---- */

/* Rank 1 trains none of its parameters. All ranks hear of it, however they load; none waits for the other. */
WORLDS_TEST(ranks_without_parameters_are_heard_of_by_the_others, 2, 4)
{
    const fsdp_full_state_options broadcast = {.broadcast_from_rank0 = true};
    bool none = fsdp_context_rank(context) == 1;
    fsdp_state_dict *full = NULL, *state = NULL, *whole = NULL;
    fsdp_optimizer *frozen = NULL;
    fsdp_parameter item = {.name = "a"};
    model m;

    model_init(&m, context, NULL, ADAMW);
    take_steps(&m, context, NULL, 1, 1);
    CHECK_OK(fsdp_optimizer_state_dict(m.optimizer, &full));
    item.tensor = make(context, NULL, 0, 0);
    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){1, &item}, &(fsdp_sgd_options){.lr = 1}, &frozen));
    CHECK_ERROR(fsdp_optimizer_load_full_state_dict(none ? frozen : m.optimizer, full, NULL), FSDP_INVALID,
                "no parameter of the optimizer has such state");
    CHECK(fsdp_optimizer_load_full_state_dict(none ? frozen : m.optimizer, none ? NULL : full, &broadcast) != FSDP_OK);
    CHECK_OK(fsdp_optimizer_state_dict(none ? frozen : m.optimizer, &state));
    CHECK(fsdp_state_dict_gather(state, NULL, &whole) != FSDP_OK);
    fsdp_state_dict_free(state);
    fsdp_state_dict_free(full);
    fsdp_optimizer_free(frozen);
    fsdp_tensor_unref(item.tensor);
    model_free(&m);
    test_drop_workspace(context);
}

TEST(an_optimizer_that_was_given_nothing_says_that_it_knows_no_ranks)
{
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){0, NULL}, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    CHECK_ERROR(fsdp_optimizer_load_full_state_dict(optimizer, NULL, NULL), FSDP_INVALID, "does not know its ranks");
    fsdp_optimizer_free(optimizer);
}
