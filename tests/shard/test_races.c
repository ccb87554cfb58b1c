/* What orders the engine's memory is needed: where a step goes around it, the race check says which parameter, who
 * writes and who reads. That it is silent on right programs is what all other tests say, which run in it. */

#include "device/device.h"
#include "device/kernels.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

typedef struct plan {
    fsdp_shard_options options;
    bool right;
} plan;

/* From here on a rank may find a race: its peers have made all calls that must succeed. */
static void meet(fsdp_context *context)
{
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

static fsdp_tensor *parameter(fsdp_module *module, const char *name)
{
    return CHECK_PTR(fsdp_module_parameter(module, name));
}

/* Both ways of `body`: the right one is silent, the other is found, with these parts in its message. */
static void check(test_rank_body body, fsdp_shard_options options, const char *const parts[3])
{
    char race[1024];
    plan p = {options, true};

    test_run_racing_ranks(2, body, &p, race, sizeof race);
    CHECK_STRING(race, "");
    p.right = false;
    test_run_racing_ranks(2, body, &p, race, sizeof race);
    for (int i = 0; i < 3; i++)
        CHECK_CONTAINS(race, parts[i]);
}

/* ---- writes to shards that peers read ---- */

static void write_after_a_forward(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &p->options);
    fsdp_tensor *x, *targets, *shard = parameter(module, "head.weight"); /* no meeting follows its use */

    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    fsdp_no_grad_begin(context);
    (void)fsdp_call(module, x, targets);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
    if (p->right)
        (void)fsdp_tensor_fill_(shard, 0.5);
    else /* around the guard of its storage */
        (void)fsdp__launch_fill(fsdp_device_stream(test_device(context)),
                                &(fsdp__fill_args){fsdp_tensor_data(shard), FSDP_F32, fsdp_tensor_numel(shard), 0.5});
    (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    fsdp_module_unref(module);
}

TEST(a_write_to_a_shard_awaits_its_readers)
{
    static const char *const parts[] = {"of unsharded parameter 'head.weight'", "in kernel 'fill' ('dst')",
                                        "in kernel 'matmul' ('b')"};

    test_only_on_cpu("only there ranks share parameters");
    test_only_on_one_machine("shards are each rank's own where they are gathered from other machines");
    check(write_after_a_forward, (fsdp_shard_options){0}, parts);
    check(write_after_a_forward, (fsdp_shard_options){.overlap = FSDP_OVERLAP_WORKER}, parts);
}

/* ---- gradients that are still being written ---- */

static void read_a_gradient(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &p->options);
    fsdp_tensor *gradient;
    float values[NET_DIM * NET_FFN];

    CHECK_OK(fsdp_module_set_is_last_backward(module, false)); /* does not wait for its reductions */
    net_forward_backward(module, 0, 0, 1);
    gradient = CHECK_PTR(fsdp_tensor_grad(parameter(module, "norm.weight")));
    CHECK(gradient->storage->written != NULL);
    meet(context);
    if (p->right)
        (void)fsdp_tensor_read(gradient, FSDP_F32, values);
    else /* around the place where it is waited for */
        (void)fsdp__copy_to_host(fsdp_device_stream(test_device(context)), values,
                                 (float *)gradient->storage->data + gradient->offset,
                                 (size_t)fsdp_tensor_numel(gradient) * sizeof(float));
    (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    (void)fsdp_module_set_is_last_backward(module, true);
    fsdp_module_unref(module);
}

TEST(a_gradient_is_read_when_it_is_written)
{
    static const char *const parts[] = {"of gradient memory", "writes them in kernel 'reduce_ranks' ('dst') of call ",
                                        "reads them"};

    check(read_a_gradient, (fsdp_shard_options){.overlap = FSDP_OVERLAP_WORKER}, parts);
    check(read_a_gradient, (fsdp_shard_options){.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true}, parts);
}

/* ---- gathered memory that is used on ---- */

static void read_what_is_gathered(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &p->options), *block = net_block_at(module, 1);
    fsdp_stream *other;
    fsdp_tensor *whole;
    fsdp_event *event;
    float values[NET_DIM * NET_FFN];

    net_train(module, 1); /* names are known from then on */
    CHECK_OK(fsdp_stream_create(test_device(context), FSDP_STREAM_WORKER, &other));
    CHECK_OK(fsdp_event_create(test_device(context), &event));
    CHECK_OK(fsdp_module_unshard(block));
    whole = parameter(block, "down.weight");
    CHECK_OK(fsdp_event_record(event, fsdp_device_stream(test_device(context))));
    CHECK_OK(fsdp_stream_wait_event(other, event));
    meet(context);
    (void)fsdp__copy_to_host(other, values, fsdp_tensor_data(whole), sizeof values);
    CHECK_OK(fsdp_event_record(event, other));
    if (p->right)
        CHECK_OK(fsdp_stream_wait_event(fsdp_device_stream(test_device(context)), event));
    (void)fsdp_module_reshard(block); /* gives the memory back */
    (void)fsdp_stream_synchronize(other);
    (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    fsdp_event_free(event);
    fsdp_stream_free(other);
    fsdp_module_unref(module);
}

TEST(what_was_gathered_is_not_given_back_under_a_reader)
{
    static const char *const parts[] = {"of unsharded parameter 'blocks.1.down.weight'", "gives them back",
                                        "reads them"};

    test_only_on_cpu("one that runs behind the host keeps it for the next gather");
    check(read_what_is_gathered, (fsdp_shard_options){.no_shared_memory = true}, parts);
}
