/* Gathers ahead and by hand of units with tied weights: nobody reads what has not come, and what was asked for by hand
 * stays, all of it, whatever else is given up. */
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

static void add_weight(fsdp_module *module, const char *name, fsdp_tensor **field)
{
    const fsdp_init init = {.kind = FSDP_INIT_UNIFORM, .a = -0.1f, .b = 0.1f};

    CHECK_OK(fsdp_module_add_parameter(module, name, field, fsdp_meta(module->context), FSDP_F32, 2,
                                       (int64_t[]){WIDTH, WIDTH}, init));
}

/* ---- read in a backward that did not ask for them ---- */

typedef struct products {
    fsdp_module base;
    product *owner, *user;
} products;

static fsdp_tensor *products_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const products *p = (products *)self;

    (void)count;
    return fsdp_call(&p->user->base, fsdp_call(&p->owner->base, inputs[0]));
}

static const fsdp_module_type products_type = {.name = "Products", .forward = products_forward};

static products *make_products(fsdp_context *context, const fsdp_shard_options *options)
{
    products *p;

    CHECK_OK(fsdp_module_create(context, &products_type, sizeof *p, &p));
    CHECK_OK(fsdp_module_create(context, &product_type, sizeof *p->owner, &p->owner));
    CHECK_OK(fsdp_module_create(context, &product_type, sizeof *p->user, &p->user));
    add_weight(&p->owner->base, "weight", &p->owner->weight);
    CHECK_OK(fsdp_module_tie_parameter(&p->user->base, "weight", &p->user->weight, p->owner->weight));
    CHECK_OK(fsdp_module_add_child(&p->base, "owner", &p->owner->base));
    CHECK_OK(fsdp_module_add_child(&p->base, "user", &p->user->base));
    CHECK_OK(fsdp_fully_shard(&p->owner->base, options));
    CHECK_OK(fsdp_fully_shard(&p->user->base, options));
    CHECK_OK(fsdp_fully_shard(&p->base, options));
    CHECK_OK(fsdp_module_materialize(&p->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&p->base, 1));
    return p;
}

/* What the backward of the user leaves at the input. */
static fsdp_status input_gradient(products *p, float *out)
{
    fsdp_context *context = p->base.context;
    fsdp_tensor *x;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, WIDTH), 1));
    fsdp_tensor_set_requires_grad(x, true);
    status = fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_call(&p->base, x)))));
    if (status == FSDP_OK)
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(x)), FSDP_F32, out));
    fsdp_scope_end(context, NULL);
    if (status != FSDP_OK)
        CHECK_OK(fsdp_module_reset_iteration(&p->base));
    fsdp_module_zero_grad(&p->base);
    return status;
}

/* Its backward reads what it did not ask for: it has come by then, or that is an error. */
static void read_unasked(fsdp_context *context, void *arg)
{
    products *p = make_products(context, arg);
    static _Thread_local float expected[2 * WIDTH], got[2 * WIDTH];

    CHECK_OK(input_gradient(p, expected));
    CHECK_OK(fsdp_module_set_unshard_in_backward(&p->user->base, false));
    for (int step = 0; step < 3; step++) {
        fsdp_status status = input_gradient(p, got);

        if (status == FSDP_OK)
            CHECK_BYTES(got, expected, sizeof got);
        else
            CHECK_STATUS(status, FSDP_STATE);
    }
    fsdp_module_unref(&p->base);
}

TEST(what_is_on_its_way_is_not_read)
{
    for (int overlap = FSDP_OVERLAP_AUTO; overlap <= FSDP_OVERLAP_WORKER; overlap++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {.overlap = (fsdp_overlap)overlap, .no_shared_memory = copy};

            test_run_ranks(2, read_unasked, &options);
            test_run_machines(2, 1, false, read_unasked, &options);
        }
}

/* ---- gathered for nothing ---- */

typedef struct tied {
    fsdp_module base;
    fsdp_tensor *weight, *own;
} tied;

/* An owner, and who uses its weight and has one of its own. A list says to gather the user again in the backward of the
 * owner, which comes behind its own: for nothing. */
typedef struct row {
    fsdp_module base;
    product *owner;
    tied *user;
    bool skips; /* both */
} row;

static fsdp_tensor *user_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const tied *u = (tied *)self;

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
        row_step(r);
        CHECK_EQ(reshards, step > 0 ? 3 : 2); /* after its forward and backward, and where the gather is given up */
        CHECK_EQ(net_state(user), FSDP_SHARDED);
        CHECK_EQ(net_state(&r->owner->base), FSDP_UNSHARDED);
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
        CHECK_EQ(net_state(user), FSDP_SHARDED);
        CHECK_EQ(net_state(&r->owner->base), FSDP_SHARDED);
    }
    fsdp_module_unref(&r->base);
}

/* The owner of what a user was asked for with: it is waited for as if it had been asked for, too. */
static void ask_for_the_user_and_wait_for_the_owner(fsdp_context *context, void *arg)
{
    row *r = make_row(context, arg);
    fsdp_module *user = &r->user->base, *owner = &r->owner->base;

    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_module_unshard_async(user));
        CHECK_OK(fsdp_module_wait_unshard(owner));
        CHECK_EQ(fsdp_tensor_size(r->owner->weight, 0), WIDTH);
        CHECK_EQ(fsdp_tensor_size(r->user->weight, 0), WIDTH);
        if (step == 1)
            CHECK_OK(fsdp_module_wait_unshard(user));
        row_step(r);
        CHECK_OK(fsdp_module_reshard_all(&r->base));
        CHECK_EQ(net_state(user), FSDP_SHARDED);
        CHECK_EQ(net_state(owner), FSDP_SHARDED);
        fsdp_module_zero_grad(&r->base);
    }
    fsdp_module_unref(&r->base);
}

static void over_all_overlaps(test_rank_body body)
{
    for (int overlap = FSDP_OVERLAP_AUTO; overlap <= FSDP_OVERLAP_WORKER; overlap++)
        for (int copy = 0; copy < 2; copy++) {
            const fsdp_shard_options options[] = {
                {.overlap = (fsdp_overlap)overlap, .no_shared_memory = copy},
                {.overlap = (fsdp_overlap)overlap, .no_shared_memory = copy, .offload_policy = {.cpu = true}},
                {.overlap = (fsdp_overlap)overlap, .no_shared_memory = copy, .reshard_after_forward_ranks = 2}};

            for (size_t i = 0; i < FSDP__COUNT_OF(options); i++) {
                bool slices = options[i].reshard_after_forward_ranks != 0;

                if (test_brief() && i != (size_t)(overlap + copy) % FSDP__COUNT_OF(options))
                    continue;
                test_run_ranks(slices ? 4 : 3, body, (void *)&options[i]);
                test_run_machines(2, 1 + slices, false, body, (void *)&options[i]);
            }
        }
}

TEST(what_is_held_open_outlives_a_gather_that_is_given_up)
{
    over_all_overlaps(hold_open);
}

TEST(what_was_asked_for_is_there_with_what_is_tied)
{
    over_all_overlaps(ask_and_wait);
    over_all_overlaps(ask_for_the_user_and_wait_for_the_owner);
}
