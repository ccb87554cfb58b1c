/* Over several machines the forward of a module gathers the one that is used next, from the second time on, where
 * nobody has said how gathers run; and only then. That it changes no bit the random orders of calls show, over
 * machines. */
#include "shard/net.h"

enum {
    BLOCKS = 4
};

typedef struct ahead {
    int machines, machine_ranks;
    fsdp_shard_options options;
    bool expected;
} ahead;

typedef struct listening {
    fsdp_module *root;
    bool gathered[BLOCKS]; /* begun, in this forward */
    int early;             /* blocks whose gather had begun when the one before them was left */
} listening;

static void listen(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    listening *l = arg;

    for (int i = 0; i < BLOCKS; i++) {
        if (module != net_block_at(l->root, i))
            continue;
        l->gathered[i] = l->gathered[i] || event == FSDP_EVENT_UNSHARD;
        l->early += event == FSDP_EVENT_POST_FORWARD && i + 1 < BLOCKS && l->gathered[i + 1];
    }
}

static void evaluate(fsdp_module *module, int step)
{
    fsdp_tensor *x, *targets;

    fsdp_no_grad_begin(module->context);
    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, step, 0, 3, &x, &targets);
    CHECK_PTR(fsdp_call(module, x, targets));
    fsdp_scope_end(module->context, NULL);
    fsdp_no_grad_end(module->context);
}

static void gather_next(fsdp_context *context, void *arg)
{
    const ahead *a = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &a->options);
    fsdp_tensor *x, *by_itself;

    for (int forward = 0; forward < 4; forward++) {
        listening l = {.root = module};

        CHECK_OK(fsdp_module_set_shard_listener(module, listen, &l));
        if (forward == 2)
            net_forward_backward(module, forward, 0, 1);
        else
            evaluate(module, forward);
        CHECK_EQ(l.early, a->expected && forward > 0 ? BLOCKS - 1 : 0);
    }
    for (int i = 0; i < 2; i++) { /* nothing comes after it */
        listening l = {.root = module};

        CHECK_OK(fsdp_module_set_shard_listener(module, listen, &l));
        CHECK_OK(fsdp_scope_begin(context));
        x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM)));
        by_itself = CHECK_PTR(fsdp_call(net_block_at(module, 1), x));
        CHECK_EQ(l.early, 0);
        CHECK_OK(fsdp_backward(fsdp_mean(by_itself)));
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_module_set_shard_listener(module, NULL, NULL));
    fsdp_module_unref(module);
}

static void over_several_machines_a_forward_gathers_what_is_next(void **state)
{
    ahead all[] = {
        {2, 1, {0}, true},
        {3, 2, {.no_shared_memory = true}, true},
        {2, 2, {.overlap = FSDP_OVERLAP_WORKER}, false},
        {2, 2, {.overlap = FSDP_OVERLAP_INLINE}, false},
        {1, 2, {0}, false},
    };

    (void)state;
    test_only_on_cpu("another device runs behind the host");
    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        test_run_machines(all[i].machines, all[i].machine_ranks, false, gather_next, &all[i]);
}

TEST_MAIN(cmocka_unit_test(over_several_machines_a_forward_gathers_what_is_next))
