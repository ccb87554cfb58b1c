/* How many launches a block of Llama has on a CUDA device, and how many calls of CUDA a step of the optimizer; and that
 * a step reserves no more memory than it holds at its peak. Links: models shard optim */
#include "fsdp/models.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "base/probe.h"
#include "device/kernels.h"

enum {
    VOCABULARY = 16
};

/* Calls of CUDA. */
typedef struct launches {
    long kernels, products, fills;
} launches;

/* Some are issued by the stream's thread. */
static void count_from_here(fsdp_device *device)
{
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    fakecuda.fail_call("cudaLaunchKernel", 0, 0, false);
    fakecuda.fail_call("cublasLtMatmul", 0, 0, false);
    fakecuda.fail_call("cudaMemsetAsync", 0, 0, false);
}

static launches counted(fsdp_device *device)
{
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    return (launches){fakecuda.uses("cudaLaunchKernel"), fakecuda.uses("cublasLtMatmul"),
                      fakecuda.uses("cudaMemsetAsync")};
}

static void check_launches(const char *what, launches got, launches expected)
{
    if (memcmp(&got, &expected, sizeof got) != 0)
        TEST_FAIL("%s: %ld kernels, %ld products, %ld fills, expected %ld, %ld, %ld", what, got.kernels, got.products,
                  got.fills, expected.kernels, expected.products, expected.fills);
}

/* A model, sharded on its one rank, which computes in bf16. */
static fsdp_module *build(fsdp_device *device, int64_t layers)
{
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = FSDP_LLAMA, .n_layers = layers, .dim = 16, .n_heads = 2, .n_kv_heads = 1,
                     .head_dim = 8, .ffn_dim = 32, .vocab_size = VOCABULARY, .max_seq_len = 8, .rope_theta = 1000,
                     .init_std = 0.02f);
    const fsdp_shard_options options = {.mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}};
    fsdp_module *model = CHECK_PTR(fsdp_model_create(fsdp_device_context(device), device, &config));

    CHECK_OK(fsdp_module_initialize(model, 1));
    for (int64_t i = 0; i < layers; i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    CHECK_OK(fsdp_fully_shard(model, &options));
    return model;
}

static fsdp_tensor *tokens(fsdp_device *device)
{
    static const int32_t ids[] = {1, 5, 2, 9, 15, 0, 3, 8};

    return CHECK_PTR(fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 8), ids));
}

/* Kernels of a pass, by their numbers. */
typedef struct kernels {
    long forward[FSDP__KERNELS], backward[FSDP__KERNELS];
} kernels;

static fsdp_status count_kernel(void *arg, fsdp__probe_event *event)
{
    (*(long **)arg)[event->kind]++;
    return FSDP_OK;
}

static kernels pass(fsdp_module *model, fsdp_device *device)
{
    fsdp_context *context = fsdp_device_context(device);
    fsdp__subscriber *subscriber;
    fsdp_tensor *ids, *loss;
    kernels k = {{0}, {0}};
    long *counts = k.forward;

    CHECK_OK(fsdp_scope_begin(context));
    ids = tokens(device);
    subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_kernel, &counts));
    loss = CHECK_PTR(fsdp_call(model, ids, ids));
    counts = k.backward;
    CHECK_OK(fsdp_backward(loss));
    fsdp__unsubscribe(subscriber);
    fsdp_scope_end(context, NULL);
    return k;
}

/* Counts the second pass: the first casts what the model computes with. */
static kernels of_model(fsdp_context *context, int64_t layers)
{
    fsdp_device *device = CHECK_PTR(fsdp_cuda(context, 0));
    fsdp_module *model = build(device, layers);
    kernels k;

    (void)pass(model, device);
    k = pass(model, device);
    fsdp_module_unref(model);
    return k;
}

RANKS_TEST(a_block_of_llama_has_25_launches_of_which_12_are_products, 1)
{
    static const kernels of_block = {.forward = {[FSDP__KERNEL_MATMUL] = 4,
                                                 [FSDP__KERNEL_NORM_FORWARD] = 2,
                                                 [FSDP__KERNEL_ROPE] = 1,
                                                 [FSDP__KERNEL_ATTENTION_FORWARD] = 1,
                                                 [FSDP__KERNEL_SWIGLU_FORWARD] = 1,
                                                 [FSDP__KERNEL_BINARY] = 1},
                                     .backward = {[FSDP__KERNEL_MATMUL] = 8,
                                                  [FSDP__KERNEL_NORM_FORWARD] = 2,
                                                  [FSDP__KERNEL_NORM_BACKWARD] = 2,
                                                  [FSDP__KERNEL_ROPE] = 1,
                                                  [FSDP__KERNEL_ATTENTION_BACKWARD] = 1,
                                                  [FSDP__KERNEL_SWIGLU_BACKWARD] = 1}};
    const kernels one = of_model(context, 1), two = of_model(context, 2);

    for (int k = 0; k < FSDP__KERNELS; k++)
        if (two.forward[k] - one.forward[k] != of_block.forward[k] ||
            two.backward[k] - one.backward[k] != of_block.backward[k])
            TEST_FAIL("%s: %ld and %ld launches, expected %ld and %ld", fsdp__kernel_infos[k].name,
                      two.forward[k] - one.forward[k], two.backward[k] - one.backward[k], of_block.forward[k],
                      of_block.backward[k]);
}

/* What is reserved beyond the ledger's peak is less than a granule for small blocks, and one for others. */
static void check_reserved(fsdp_device *device)
{
    const size_t granule = 2 << 20;
    fsdp_memory_stats memory;

    fsdp_device_memory(device, &memory);
    if (memory.reserved_bytes < memory.peak_total_bytes ||
        memory.reserved_bytes >= memory.peak_total_bytes + 2 * granule)
        TEST_FAIL("%zu bytes are reserved, and the peak is %zu", memory.reserved_bytes, memory.peak_total_bytes);
}

/* With a number of parameters as Llama-1B has them: 147. */
RANKS_TEST(the_norm_of_all_gradients_is_one_launch_and_so_is_a_step_of_all_parameters, 1)
{
    fsdp_device *device = CHECK_PTR(fsdp_cuda(context, 0));
    fsdp_module *model = build(device, 16);
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_optimizer *optimizer;
    fsdp_parameters parameters;
    double norm;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_EQ(parameters.count, 147);
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    for (int step = 0; step < 2; step++) {
        (void)pass(model, device);
        count_from_here(device);
        CHECK_OK(fsdp_clip_grad_norm(optimizer, 1.0, &norm));
        CHECK(norm > 0);
        check_launches("norm", counted(device), (launches){.kernels = 1, .fills = 1});
        count_from_here(device);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        if (step > 0) /* the first makes the moments */
            check_launches("step", counted(device), (launches){.kernels = 1});
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    }
    check_reserved(device);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
}

#endif
