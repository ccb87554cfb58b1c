/* The n-th allocation and the n-th collective fail on one rank, in every front door: every rank gets an error or
 * finishes, nobody hangs, nothing leaks. */
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    WORLD = 3
};

typedef struct door {
    bool fsdp1, joins;
    fsdp_fsdp1_options one;
    fsdp_replicate_options replicate;
} door;

static const door doors[] = {
    {.fsdp1 = true},
    {.fsdp1 = true, .one = {.use_orig_params = true, .forward_prefetch = true, .sync_module_states = true}},
    {.fsdp1 = true, .one = {.strategy = FSDP_SHARD_GRAD_OP, .mixed_precision = {.param_dtype = FSDP_BF16}}},
    {.fsdp1 = true, .one = {.strategy = FSDP_NO_SHARD, .use_orig_params = true}},
    {.replicate = {.bucket_cap_mb = 0.0002}},
    {.replicate = {.bucket_cap_mb = 0.0002, .find_unused_parameters = true, .compress = FSDP_BF16}},
    {.replicate = {.static_graph = true, .gradient_as_bucket_view = true, .no_shared_memory = true}},
    {.joins = true, .replicate = {.bucket_cap_mb = 0.0002, .gradient_as_bucket_view = true}},
};

typedef struct fault {
    test_fault fault;
    const door *door;
} fault;

static fsdp_status enter(fsdp_module *module, const door *d)
{
    if (!d->fsdp1)
        return fsdp_replicate(module, &d->replicate);
    for (int i = 0; i < BLOCKS; i++)
        FSDP_TRY(fsdp_fsdp1_wrap(net_block_at(module, i), &d->one));
    return fsdp_fsdp1_wrap(module, &d->one);
}

/* What there is beside steps: whole parameters and a state dict; ranks without inputs. */
static fsdp_status leave(fsdp_module *module, const door *d)
{
    fsdp_state_dict *dict = NULL;
    fsdp_status status;

    if (d->joins)
        return fsdp_module_join_end(module);
    FSDP_TRY(fsdp_module_summon_full_params(module, NULL));
    FSDP_TRY(fsdp_module_end_summon(module));
    if (!d->fsdp1)
        return FSDP_OK;
    FSDP_TRY(fsdp_fsdp1_state_dict(module, NULL, &dict));
    status = fsdp_fsdp1_load_state_dict(module, NULL, dict);
    fsdp_state_dict_free(dict);
    return status;
}

static fsdp_status run(fsdp_module *module, const door *d)
{
    int steps = d->joins ? 1 + fsdp_context_rank(module->context) : 2;

    FSDP_TRY(enter(module, d));
    if (d->joins)
        FSDP_TRY(fsdp_module_join_begin(module, NULL));
    for (int i = 0; i < steps; i++) /* the second adds to the gradients of the first */
        FSDP_TRY(net_try(module));
    fsdp_module_zero_grad(module);
    FSDP_TRY(leave(module, d));
    return fsdp_barrier(fsdp_world(module->context)); /* where all hear of it, for it may be a group of one */
}

static void run_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);

    CHECK_OK(fsdp_module_initialize(module, 1));
    test_begin_fault(context, &f->fault);
    test_end_fault(context, &f->fault, run(module, f->door));
    fsdp_module_unref(module);
}

static void fail_each(fsdp__fault_kind kind, const door *d)
{
    fault of = {{.kind = kind, .nth = 1}, d};
    test_fault *f = &of.fault;
    long tried = 0;

    for (; test_run_fault(WORLD, run_with_fault, &of, f); tried++) {
        if (f->failed == 0 || (kind == FSDP__FAULT_COLLECTIVE && f->failed != WORLD))
            TEST_FAIL("door %d, fault %ld: %d ranks failed", (int)(d - doors), f->nth, f->failed);
        f->nth += test_long() ? 1 : 1 + f->nth / (test_brief() ? 5 : 10);
    }
    CHECK(tried > 5);
}

TEST(the_nth_collective_fails_on_one_rank)
{
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++)
        fail_each(FSDP__FAULT_COLLECTIVE, &doors[i]);
}

TEST(the_nth_allocation_fails_on_one_rank)
{
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++)
        fail_each(FSDP__FAULT_ALLOCATION, &doors[i]);
}
