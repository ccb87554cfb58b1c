/* The n-th allocation and the n-th collective fail on one rank: every rank gets an error or finishes, nobody hangs,
 * nothing leaks. Where nobody gets an error all gradients have the bits that they have without a fault: a step does
 * without some events of a GPU that have no memory. */
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    WORLD = 3,
    SLICED_WORLD = 4
};

typedef struct fault {
    test_fault fault;
    fsdp_shard_options options;
    bool hybrid;                      /* three replicas */
    uint64_t gradients[SLICED_WORLD]; /* a hash of each rank's, in the end */
    atomic_int *unasked;              /* failures of streams that the log has told of */
} fault;

static fsdp_status run(fsdp_module *module, const fsdp_shard_options *options)
{
    FSDP_TRY(net_try_shard(module, options));
    for (int i = 0; i < 2; i++) /* the second adds to the gradients of the first */
        FSDP_TRY(net_try(module));
    return FSDP_OK;
}

/* Another rank may have failed, after which some cannot be read. */
static uint64_t hash_gradients(fsdp_module *module)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[i].tensor);
        size_t bytes = grad ? (size_t)fsdp_tensor_numel(grad) * sizeof(float) : 0;
        float *values = calloc(1, bytes + 1);

        if (grad && fsdp_tensor_read(grad, FSDP_F32, values) == FSDP_OK)
            hash = fsdp__hash_bytes(hash, values, bytes);
        free(values);
    }
    fsdp_parameters_release(&parameters);
    return hash;
}

/* What the world's end has told already is not told again when streams are freed. */
static void see_line(void *arg, fsdp_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "nobody had asked"))
        atomic_fetch_add((atomic_int *)arg, 1);
}

static void run_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_shard_options options = f->options;
    fsdp_status status;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, see_line, f->unasked);
    test_device(context);
    if (f->hybrid)
        options.mesh = net_hybrid_mesh(context, WORLD);
    test_meet();
    test_begin_fault(context, &f->fault);
    status = run(module, &options);
    test_end_fault(context, &f->fault, status);
    if (status == FSDP_OK)
        f->gradients[fsdp_context_rank(context)] = hash_gradients(module);
    fsdp_module_zero_grad(module);
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

/* Says whether a step does without some memory: on a GPU without events, and elsewhere some codes are waited for where
 * there is none to queue a wait. */
static bool may_do_without(const fault *f)
{
    return f->fault.kind == FSDP__FAULT_ALLOCATION && (!test_has_cpu_bits() || f->options.gather_extension);
}

static void fail_each_of(fault of)
{
    test_fault *f = &of.fault;
    int world = of.options.reshard_after_forward_ranks ? SLICED_WORLD : WORLD;
    uint64_t expected[SLICED_WORLD];
    long tried = 0;
    atomic_int unasked = 0;

    of.unasked = &unasked;
    test_run_ranks(world, run_with_fault, &of);
    memcpy(expected, of.gradients, sizeof expected);
    for (f->nth = 1; test_run_fault(world, run_with_fault, &of, f); tried++) {
        if (f->failed == 0)
            CHECK_BYTES(of.gradients, expected, sizeof expected);
        if (f->kind == FSDP__FAULT_COLLECTIVE)
            CHECK(f->failed == world && unasked == 0);
        CHECK(f->failed >= 1 || may_do_without(&of));
        f->nth += test_long() ? 1 : 1 + f->nth / (test_brief() ? 5 : 10);
    }
    CHECK_BYTES(of.gradients, expected, sizeof expected);
    CHECK(tried > 5);
}

/* A device of its own copies without being told; there, shards come from the host besides. */
static const fsdp_shard_options copies = {.no_shared_memory = true, .offload_policy.cpu = true};

static void fail_each(fsdp__fault_kind kind, fsdp_shard_options options)
{
    fail_each_of((fault){.fault.kind = kind, .options = options});
}

/* Measured, encoded, received and decoded, from memory that ranks share or not. */
static void fail_each_in_one_byte(fsdp__fault_kind kind)
{
    fsdp_shard_options shared = {.gather_extension = fsdp_gather_float8()}, copied = copies;

    copied.gather_extension = shared.gather_extension;
    fail_each(kind, shared);
    fail_each(kind, copied);
}

TEST(the_nth_collective_fails_on_one_rank)
{
    fail_each(FSDP__FAULT_COLLECTIVE, (fsdp_shard_options){0});
    fail_each(FSDP__FAULT_COLLECTIVE, copies);
    fail_each(FSDP__FAULT_COLLECTIVE, (fsdp_shard_options){.overlap = FSDP_OVERLAP_WORKER});
    fail_each(FSDP__FAULT_COLLECTIVE, (fsdp_shard_options){.mp_policy.param_dtype = FSDP_BF16});
    fail_each(FSDP__FAULT_COLLECTIVE, (fsdp_shard_options){.reshard_after_forward_ranks = 2});
    fail_each_of((fault){.fault.kind = FSDP__FAULT_COLLECTIVE, .hybrid = true});
    fail_each_in_one_byte(FSDP__FAULT_COLLECTIVE);
}

TEST(the_nth_allocation_fails_on_one_rank)
{
    fail_each(FSDP__FAULT_ALLOCATION, (fsdp_shard_options){0});
    fail_each(FSDP__FAULT_ALLOCATION, copies);
    fail_each(FSDP__FAULT_ALLOCATION, (fsdp_shard_options){.overlap = FSDP_OVERLAP_WORKER});
    fail_each(FSDP__FAULT_ALLOCATION, (fsdp_shard_options){.reshard_after_forward_ranks = 2});
    fail_each_of((fault){.fault.kind = FSDP__FAULT_ALLOCATION, .hybrid = true});
    fail_each_in_one_byte(FSDP__FAULT_ALLOCATION);
}
