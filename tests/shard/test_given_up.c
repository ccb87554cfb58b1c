/* Gathers that nobody has a use for, of a unit with tied weights: what was asked for by hand stays, all of it. */
#include "shard/net_bytes.h"

enum {
    WIDTH = 300
};

typedef struct product {
    fsdp_module base;
    fsdp_tensor *weight;
} product;

static fsdp_tensor *product_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_linear(inputs[0], ((product *)self)->weight, FSDP_NO_BIAS);
}

static const fsdp_module_type product_type = {.name = "Product", .forward = product_forward};

/* An owner, and who uses its weight and has one of its own. A list says to gather the user again in the backward of the
 * owner, which comes behind its own: for nothing. */
typedef struct row {
    fsdp_module base;
    product *owner;
    struct user {
        fsdp_module base;
        fsdp_tensor *weight, *own;
    } * user;
    bool skips; /* both */
} row;

static fsdp_tensor *user_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const struct user *u = (struct user *)self;

    (void)count;
    return fsdp_linear(fsdp_linear(inputs[0], u->weight, FSDP_NO_BIAS), u->own, FSDP_NO_BIAS);
}

static const fsdp_module_type user_type = {.name = "User", .forward = user_forward};

static fsdp_tensor *row_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const row *r = (row *)self;

    (void)count;
    return r->skips ? inputs[0] : fsdp_call(&r->user->base, fsdp_call(&r->owner->base, inputs[0]));
}

static const fsdp_module_type row_type = {.name = "Row", .forward = row_forward};

static void add_weight(fsdp_module *module, const char *name, fsdp_tensor **field)
{
    const fsdp_init init = {.kind = FSDP_INIT_UNIFORM, .a = -0.1f, .b = 0.1f};

    CHECK_OK(fsdp_module_add_parameter(module, name, field, fsdp_meta(module->context), FSDP_F32, 2,
                                       (int64_t[]){WIDTH, WIDTH}, init));
}

static row *make_row(fsdp_context *context, const fsdp_shard_options *options)
{
    row *r;

    CHECK_OK(fsdp_module_create(context, &row_type, sizeof *r, &r));
    CHECK_OK(fsdp_module_create(context, &product_type, sizeof *r->owner, &r->owner));
    CHECK_OK(fsdp_module_create(context, &user_type, sizeof *r->user, &r->user));
    add_weight(&r->owner->base, "weight", &r->owner->weight);
    CHECK_OK(fsdp_module_tie_parameter(&r->user->base, "weight", &r->user->weight, r->owner->weight));
    add_weight(&r->user->base, "own", &r->user->own);
    CHECK_OK(fsdp_module_add_child(&r->base, "owner", &r->owner->base));
    CHECK_OK(fsdp_module_add_child(&r->base, "user", &r->user->base));
    CHECK_OK(fsdp_fully_shard(&r->owner->base, options));
    CHECK_OK(fsdp_fully_shard(&r->user->base, options));
    CHECK_OK(fsdp_fully_shard(&r->base, options));
    CHECK_OK(fsdp_module_materialize(&r->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&r->base, 1));
    return r;
}

static fsdp_sharded_state state_of(fsdp_module *module)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    return info.state;
}

static void count_reshards(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    int *of = arg;

    of[0] += event == FSDP_EVENT_RESHARD && strcmp(module->type->name, "User") == 0;
}

static void row_step(row *r)
{
    fsdp_context *context = r->base.context;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(
        fsdp_call(&r->base, CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, WIDTH), 1))))))));
    fsdp_scope_end(context, NULL);
}

static void hold_open(fsdp_context *context, void *arg)
{
    row *r = make_row(context, arg);

    CHECK_OK(fsdp_module_set_reshard_after_forward(&r->owner->base, false, false));
    CHECK_OK(fsdp_module_set_reshard_after_backward(&r->owner->base, false, false));
    CHECK_OK(fsdp_module_unshard(&r->owner->base));
    for (int step = 0; step < 3; step++) {
        fsdp_module *user = &r->user->base;
        int reshards = 0;

        CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(&r->owner->base, &user, step > 0));
        CHECK_OK(fsdp_module_set_shard_listener(&r->base, count_reshards, &reshards));
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(
            fsdp_call(&r->base, CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, WIDTH), 1))))))));
        fsdp_scope_end(context, NULL);
        CHECK_EQ(reshards, step > 0 ? 3 : 2); /* after its forward and backward, and where the gather is given up */
        CHECK_EQ(state_of(user), FSDP_SHARDED);
        CHECK_EQ(state_of(&r->owner->base), FSDP_UNSHARDED);
        CHECK_EQ(fsdp_tensor_size(r->user->weight, 0), WIDTH);
        fsdp_module_zero_grad(&r->base);
    }
    CHECK_OK(fsdp_module_set_shard_listener(&r->base, NULL, NULL));
    fsdp_module_unref(&r->base);
}

/* One that was asked for by hand, through a forward that had no use for it. */
static void ask_and_wait(fsdp_context *context, void *arg)
{
    row *r = make_row(context, arg);
    fsdp_module *user = &r->user->base;

    row_step(r);
    r->skips = true;
    for (int reshards = 0; reshards < 2; reshards++) {
        CHECK_OK(fsdp_module_unshard_async(user));
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_PTR(fsdp_call(&r->base, CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, WIDTH)))));
        fsdp_scope_end(context, NULL);
        if (reshards)
            CHECK_OK(fsdp_module_reshard(&r->owner->base));
        CHECK_OK(fsdp_module_wait_unshard(user));
        /* All of them, or none. */
        CHECK_EQ(fsdp_tensor_size(r->user->own, 0) == WIDTH, !reshards);
        CHECK_EQ(fsdp_tensor_size(r->user->weight, 0) == WIDTH, !reshards);
        CHECK_OK(fsdp_module_reshard_all(&r->base));
        CHECK_EQ(state_of(user), FSDP_SHARDED);
        CHECK_EQ(state_of(&r->owner->base), FSDP_SHARDED);
    }
    fsdp_module_unref(&r->base);
}

static void over_all_overlaps(test_rank_body body)
{
    for (int overlap = FSDP_OVERLAP_AUTO; overlap <= FSDP_OVERLAP_WORKER; overlap++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {.overlap = (fsdp_overlap)overlap, .no_shared_memory = copy};

            test_run_ranks(3, body, &options);
            test_run_machines(2, 1, false, body, &options);
        }
}

static void what_is_held_open_outlives_a_gather_that_is_given_up(void **state)
{
    (void)state;
    over_all_overlaps(hold_open);
}

static void what_was_asked_for_is_there_with_what_is_tied(void **state)
{
    (void)state;
    over_all_overlaps(ask_and_wait);
}

TEST_MAIN(cmocka_unit_test(what_is_held_open_outlives_a_gather_that_is_given_up),
          cmocka_unit_test(what_was_asked_for_is_there_with_what_is_tied))
