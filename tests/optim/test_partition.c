/* State partitioned by whole parameters: the partition, the same bits as without, broadcasts, memory; state brought
 * together, and loaded again; what is refused, and what fails on one rank.
 * Links: shard */
#include <math.h>

#include "fsdp/dist.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "optim/optim.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    PARAMS = 7,
    LATER = 2, /* of them in a group that is added */
    MAX_NUMEL = 512,
    HALF = 3 /* the parameter in bf16 */
};

typedef enum algorithm {
    SGD,
    ADAM,
    ADAMW
} algorithm;

static const int64_t shapes[PARAMS][2] = {{1, 3}, {17, 5}, {6, 1}, {40, 9}, {3, 7}, {17, 5}, {2, 2}};
static const char *const names[PARAMS] = {"a", "b", "c", "d", "e", "f", "g"};

typedef struct model {
    fsdp_tensor *tensors[PARAMS];
    fsdp_optimizer *optimizer;
    algorithm kind;
} model;

static int64_t numel(int param)
{
    return shapes[param][0] * shapes[param][1];
}

/* Numbers between -1 and 1 that depend on their place alone. */
static fsdp_tensor *make(fsdp_context *context, int param, int step)
{
    float data[MAX_NUMEL];
    fsdp_tensor *tensor = NULL;

    for (int64_t i = 0; i < numel(param); i++)
        data[i] = (float)sin((double)(param * 79 + step * 104 + i * 3 + 1) * 12.9898);
    CHECK_OK(fsdp_tensor_create(test_device(context), param == HALF ? FSDP_BF16 : FSDP_F32, 2, shapes[param],
                                FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, data));
    return tensor;
}

static void add_group(model *m, const fsdp_parameters *parameters, double lr)
{
    const fsdp_adam_options adam = {.lr = lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const fsdp_sgd_options sgd = {.lr = lr, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};

    if (m->optimizer)
        CHECK_OK(m->kind == SGD ? fsdp_sgd_add_group(m->optimizer, parameters, &sgd)
                                : fsdp_adam_add_group(m->optimizer, parameters, &adam));
    else if (m->kind == SGD)
        CHECK_OK(fsdp_sgd_create(parameters, &sgd, &m->optimizer));
    else
        CHECK_OK((m->kind == ADAM ? fsdp_adam_create : fsdp_adamw_create)(parameters, &adam, &m->optimizer));
}

/* NULL: not partitioned. The second group comes later. */
static void model_init(model *m, fsdp_context *context, algorithm kind, const fsdp_partition_options *options)
{
    fsdp_parameter items[PARAMS];

    *m = (model){.kind = kind};
    for (int i = 0; i < PARAMS; i++) {
        m->tensors[i] = make(context, i, 0);
        CHECK_OK(fsdp_tensor_set_requires_grad(m->tensors[i], true));
        items[i] = (fsdp_parameter){names[i], m->tensors[i]};
    }
    add_group(m, &(fsdp_parameters){PARAMS - LATER, items}, 1e-2);
    if (options)
        CHECK_OK(fsdp_optimizer_partition_state(m->optimizer, options));
    add_group(m, &(fsdp_parameters){LATER, items + PARAMS - LATER}, 2e-2);
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(m->tensors[i]);
}

/* As some other ranks have averaged them. "c" has none in step 2. */
static fsdp_status take_step(const model *m, fsdp_context *context, int step)
{
    for (int i = 0; i < PARAMS; i++) {
        fsdp_tensor *gradient;

        if (i == 2 && step == 2)
            continue;
        gradient = make(context, i, step);
        CHECK_OK(fsdp_tensor_set_grad(m->tensors[i], gradient));
        fsdp_tensor_unref(gradient);
    }
    FSDP_TRY(fsdp_clip_grad_norm(m->optimizer, 3, NULL));
    FSDP_TRY(fsdp_optimizer_step(m->optimizer));
    return fsdp_optimizer_zero_grad(m->optimizer);
}

static void check_same(const model *m, const model *other)
{
    for (int i = 0; i < PARAMS; i++) {
        float a[MAX_NUMEL], b[MAX_NUMEL];

        CHECK_OK(fsdp_tensor_read(m->tensors[i], FSDP_F32, a));
        CHECK_OK(fsdp_tensor_read(other->tensors[i], FSDP_F32, b));
        CHECK_BYTES(a, b, (size_t)numel(i) * sizeof(float));
    }
}

/* ---- who has what ---- */

/* From the largest: d 360, b 85, e 21, c 6, a 3; then f 85, g 4. */
WORLDS_TEST(the_largest_go_first_to_who_has_least, 1, 3)
{
    static const char *const alone[] = {"d", "b", "e", "c", "a"};
    int world = fsdp_context_world_size(context);
    model m;

    model_init(&m, context, ADAMW, &(fsdp_partition_options){0});
    for (int i = 0; i < (world == 1 ? 5 : 1); i++)
        CHECK_STRING(fsdp_optimizer_partition(m.optimizer, 0, 0, i), alone[i]);
    if (world == 3) { /* loads: 360; b 85; e 21, c 27, a 30; then f to the third: 115, g to the second: 89 */
        CHECK_STRING(fsdp_optimizer_partition(m.optimizer, 1, 0, 0), "b");
        CHECK_NULL(fsdp_optimizer_partition(m.optimizer, 1, 0, 1));
        CHECK_STRING(fsdp_optimizer_partition(m.optimizer, 2, 0, 2), "a");
        CHECK_STRING(fsdp_optimizer_partition(m.optimizer, 2, 1, 0), "f");
        CHECK_STRING(fsdp_optimizer_partition(m.optimizer, 1, 1, 0), "g");
    }
    CHECK_NULL(fsdp_optimizer_partition(m.optimizer, 0, 2, 0));
    CHECK_NULL(fsdp_optimizer_partition(m.optimizer, world, 0, 0));
    CHECK_NULL(fsdp_optimizer_partition(NULL, 0, 0, 0));
    model_free(&m);
}

/* ---- steps ---- */

static int64_t own_count(const model *m, int rank)
{
    int64_t count = 0;

    for (int g = 0; g < 2; g++)
        for (int64_t i = 0; fsdp_optimizer_partition(m->optimizer, rank, g, i); i++)
            count++;
    return count;
}

/* Only of its own parameters. */
static void check_memory(fsdp_context *context, const model *m, size_t before)
{
    int rank = fsdp_context_rank(context);
    fsdp_memory_stats stats;
    size_t bytes = 0;

    for (int g = 0; g < 2; g++)
        for (int64_t i = 0; fsdp_optimizer_partition(m->optimizer, rank, g, i); i++)
            bytes += (m->kind == SGD ? 1 : 2) *
                     (((size_t)numel(fsdp_optimizer_partition(m->optimizer, rank, g, i)[0] - 'a') * 4 + 63) / 64 * 64);
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] - before, bytes);
}

static void check_calls(fsdp_context *context, const model *m, bool view, const fsdp_comm_stats *stats)
{
    int world = fsdp_context_world_size(context);
    int64_t senders = 0;

    for (int r = 0; r < world; r++)
        senders += own_count(m, r) > 0;
    CHECK_EQ(stats->calls[FSDP_BROADCAST], world == 1 ? 0 : view ? senders : PARAMS);
    CHECK_EQ(stats->calls[FSDP_ALL_REDUCE], 0);
}

static void compare(fsdp_context *context, void *arg)
{
    fsdp_partition_options options = {.parameters_as_bucket_view = arg != NULL};

    for (algorithm kind = SGD; kind <= ADAMW; kind++) {
        model whole, partitioned;
        fsdp_memory_stats before;

        model_init(&whole, context, kind, NULL);
        model_init(&partitioned, context, kind, &options);
        for (int step = 1; step <= 4; step++) {
            fsdp_comm_stats stats;

            CHECK_OK(take_step(&whole, context, step));
            fsdp_device_memory(test_device(context), &before);
            fsdp_context_reset_comm_stats(context);
            CHECK_OK(take_step(&partitioned, context, step));
            fsdp_context_comm_stats(context, &stats);
            check_calls(context, &partitioned, options.parameters_as_bucket_view, &stats);
            check_same(&partitioned, &whole);
            if (step == 1)
                check_memory(context, &partitioned, before.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE]);
        }
        model_free(&partitioned);
        model_free(&whole);
    }
    test_drop_workspace(context);
}

TEST(steps_are_bit_equal_to_those_without)
{
    static bool view = true;

    for (int world = 1; world <= 5; world++)
        for (int with = 0; with < 2; with++)
            test_run_ranks(world, compare, with ? &view : NULL);
}

/* ---- state ---- */

static void check_same_state(const fsdp_state_dict *state, const fsdp_state_dict *expected)
{
    CHECK_EQ(state->count, expected->count);
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *other = CHECK_PTR(fsdp_state_dict_find(expected, state->entries[i].name));
        float a[MAX_NUMEL], b[MAX_NUMEL];

        CHECK(fsdp__shape_equal(state->entries[i].tensor, other->tensor));
        CHECK_OK(fsdp_tensor_read(state->entries[i].tensor, FSDP_F32, a));
        CHECK_OK(fsdp_tensor_read(other->tensor, FSDP_F32, b));
        CHECK_BYTES(a, b, (size_t)fsdp_tensor_numel(other->tensor) * sizeof(float));
    }
}

static void consolidate(fsdp_context *context, void *arg)
{
    int world = fsdp_context_world_size(context), to = arg ? world - 1 : 0;
    model whole, partitioned, again;
    fsdp_state_dict *state = NULL, *expected = NULL;
    char words[160];

    model_init(&whole, context, ADAMW, NULL);
    model_init(&partitioned, context, ADAMW, &(fsdp_partition_options){0});
    CHECK_OK(take_step(&whole, context, 2)); /* one has no state */
    CHECK_OK(take_step(&partitioned, context, 2));
    CHECK_OK(fsdp_optimizer_state_dict(whole.optimizer, &expected));
    snprintf(words, sizeof words,
             "has not been consolidated on this rank since its last step: call "
             "fsdp_optimizer_consolidate_state_dict(optimizer, %d) on all ranks first",
             fsdp_context_rank(context));
    CHECK_ERROR(fsdp_optimizer_state_dict(partitioned.optimizer, &state), FSDP_STATE, words);
    CHECK_OK(fsdp_optimizer_consolidate_state_dict(partitioned.optimizer, to));
    if (fsdp_context_rank(context) == to) {
        CHECK_OK(fsdp_optimizer_state_dict(partitioned.optimizer, &state));
        check_same_state(state, expected);
    } else {
        CHECK_ERROR(fsdp_optimizer_state_dict(partitioned.optimizer, &state), FSDP_STATE, words);
    }
    /* A new optimizer goes on from there: from a rank's whole state each keeps its own. */
    model_init(&again, context, ADAMW, &(fsdp_partition_options){.parameters_as_bucket_view = true});
    for (int i = 0; i < PARAMS; i++)
        CHECK_OK(fsdp_tensor_copy_(again.tensors[i], partitioned.tensors[i]));
    if (to == 0)
        CHECK_OK(fsdp_optimizer_load_full_state_dict(again.optimizer, state,
                                                     &(fsdp_full_state_options){.broadcast_from_rank0 = true}));
    else
        CHECK_OK(fsdp_optimizer_load_state_dict(again.optimizer, expected));
    for (int step = 3; step <= 4; step++) {
        CHECK_OK(take_step(&whole, context, step));
        CHECK_OK(take_step(&partitioned, context, step));
        CHECK_OK(take_step(&again, context, step));
        check_same(&again, &whole);
        check_same(&partitioned, &whole);
    }
    fsdp_state_dict_free(state);
    state = NULL;
    CHECK_ERROR(fsdp_optimizer_state_dict(partitioned.optimizer, &state), FSDP_STATE, words); /* of the past */
    fsdp_state_dict_free(expected);
    model_free(&again);
    model_free(&partitioned);
    model_free(&whole);
    test_drop_workspace(context);
}

TEST(state_comes_together_and_is_loaded_again)
{
    static bool last = true;

    for (int world = 1; world <= 4; world++) {
        test_run_ranks(world, consolidate, NULL);
        test_run_ranks(world, consolidate, &last);
    }
}

/* Until then all ranks have stepped alike. */
RANKS_TEST(an_optimizer_that_has_stepped_keeps_each_ranks_own, 3)
{
    model whole, late;

    model_init(&whole, context, SGD, NULL);
    model_init(&late, context, SGD, NULL);
    for (int step = 1; step <= 3; step++) {
        CHECK_OK(take_step(&whole, context, step));
        CHECK_OK(take_step(&late, context, step));
        if (step == 1)
            CHECK_OK(fsdp_optimizer_partition_state(late.optimizer, NULL));
        check_same(&late, &whole);
    }
    model_free(&late);
    model_free(&whole);
}

/* ---- refusals and failures ---- */

RANKS_TEST(what_cannot_be_partitioned_is_refused, 2)
{
    fsdp_parameter item = {"rows", NULL};
    fsdp_optimizer *optimizer = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_tensor *whole = make(context, 1, 1);
    model m;

    model_init(&m, context, ADAMW, NULL);
    CHECK_ERROR(fsdp_optimizer_consolidate_state_dict(m.optimizer, 0), FSDP_STATE, "is not partitioned");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_optimizer_partition_state(NULL, NULL), FSDP_INVALID,
                "cannot partition the state: the optimizer is NULL");
    CHECK_OK(fsdp_optimizer_partition_state(m.optimizer, NULL));
    CHECK_ERROR(fsdp_optimizer_partition_state(m.optimizer, NULL), FSDP_STATE, "is partitioned already");
    CHECK_ERROR(fsdp_optimizer_consolidate_state_dict(m.optimizer, 2), FSDP_INVALID, "on rank 2 of 2");
    CHECK_ERROR(fsdp_optimizer_step_parameters(m.optimizer, m.tensors, 1), FSDP_UNSUPPORTED,
                "the state is partitioned");
    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, NULL, &mesh));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &(fsdp_placement){.kind = FSDP_SHARD}, &item.tensor));
    CHECK_OK(fsdp_tensor_set_requires_grad(item.tensor, true));
    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){1, &item}, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    CHECK_ERROR(fsdp_optimizer_partition_state(optimizer, NULL), FSDP_UNSUPPORTED,
                "cannot partition 'rows' by whole parameters: it is sharded");
    CHECK_ERROR(fsdp_adam_add_group(m.optimizer, &(fsdp_parameters){1, &item}, &(fsdp_adam_options){.eps = 1}),
                FSDP_UNSUPPORTED, "'rows'");
    CHECK_EQ(fsdp_optimizer_group_count(m.optimizer), 2);
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(item.tensor);
    fsdp_tensor_unref(whole);
    fsdp_mesh_unref(mesh);
    model_free(&m);
}

/* Each rank's part is as long as the other's: nothing else would tell. */
static void shard_afterwards(fsdp_context *context, void *arg)
{
    fsdp_module *module = CHECK_PTR(fsdp_linear_create(context, test_device(context), 4, 4, NULL));
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    CHECK_OK(fsdp_optimizer_partition_state(optimizer, NULL));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_ERROR(arg ? fsdp_optimizer_consolidate_state_dict(optimizer, 0) : fsdp_optimizer_step(optimizer),
                FSDP_UNSUPPORTED, "cannot partition 'weight' by whole parameters: it is sharded");
    fsdp_parameters_release(&parameters);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(nor_is_what_is_sharded_later_stepped)
{
    for (int consolidate = 0; consolidate < 2; consolidate++)
        test_run_ranks(2, shard_afterwards, consolidate ? state : NULL);
}

static void fail_on_one(fsdp_context *context, void *arg)
{
    fsdp_tensor *gradients[PARAMS];
    test_fault *f = arg;
    fsdp_status status;
    model m;

    model_init(&m, context, ADAMW, &(fsdp_partition_options){.parameters_as_bucket_view = f->nth % 2});
    for (int i = 0; i < PARAMS; i++)
        gradients[i] = make(context, i, 1);
    for (int i = 0; i < PARAMS; i++)
        CHECK_OK(fsdp_tensor_set_grad(m.tensors[i], gradients[i]));
    test_begin_fault(context, f);
    status = fsdp_optimizer_step(m.optimizer);
    if (status == FSDP_OK)
        status = fsdp_optimizer_consolidate_state_dict(m.optimizer, 1);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    test_end_fault(context, f, status);
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(gradients[i]);
    model_free(&m);
}

/* Step 2 leaves "c" out: nobody has stepped it, and a graph from before may still use it. */
WORLDS_TEST(all_ranks_find_the_same_parameters_written, 1, 4)
{
    model m;

    model_init(&m, context, ADAMW, &(fsdp_partition_options){0});
    for (int step = 1; step <= 2; step++)
        for (int i = 0; i < PARAMS; i++) {
            fsdp_tensor *y, *gradient;

            CHECK_OK(fsdp_scope_begin(context));
            y = CHECK_PTR(fsdp_square(m.tensors[i]));
            gradient = CHECK_PTR(fsdp_detach(y));
            CHECK_OK(take_step(&m, context, step));
            if (step == 2 && i == 2)
                CHECK_OK(fsdp_backward_from(&y, &gradient, 1, false));
            else
                CHECK_ERROR(fsdp_backward_from(&y, &gradient, 1, false), FSDP_STATE,
                            "was written to after the forward");
            CHECK_OK(fsdp_optimizer_zero_grad(m.optimizer));
            fsdp_scope_end(context, NULL);
        }
    model_free(&m);
    test_drop_workspace(context);
}

TEST(what_fails_on_one_rank_ends_all)
{
    static const fsdp__fault_kind kinds[] = {FSDP__FAULT_ALLOCATION, FSDP__FAULT_COLLECTIVE};

    for (int k = 0; k < 2; k++) {
        test_fault f = {.kind = kinds[k], .nth = 1};

        for (; test_run_fault(3, fail_on_one, &f, &f); f.nth++)
            CHECK(f.kind == FSDP__FAULT_COLLECTIVE ? f.failed == 3 : f.failed >= 1);
        CHECK(f.nth > 4);
    }
}
