/* The n-th call of every function of CUDA fails in a step on a fake GPU (tests/backend/fakecuda): it fails with a
 * message that names the call, nobody hangs, all is given back, and what is no loss of the device is survived.
 */
#include "shard/net.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"

enum {
    BLOCKS = 2,
    OUT_OF_MEMORY = 2, /* cudaErrorMemoryAllocation */
    UNKNOWN = 999,     /* cudaErrorUnknown, and what cublasLt has no name for */
    NO_ALLOCATION = 3  /* CUBLAS_STATUS_ALLOC_FAILED */
};

static int open_fake(void **state)
{
    fsdp_context *context = test_context();

    (void)state;
    setenv("FSDP_TEST_DEVICE", "cuda", 1);
    fakecuda.mend();
    fakecuda.fail_call("cudaGetDeviceProperties", 0, 0, false);
    if (!test_device(context) || fakecuda.uses("cudaGetDeviceProperties") == 0)
        TEST_FAIL("the plug-in beside the tests is not that of the fake: %s", fsdp_last_error());
    fsdp_context_free(context);
    return 0;
}

static int close_fake(void **state)
{
    (void)state;
    fakecuda.mend();
    fakecuda.set_memory(0);
    return 0;
}

/* Opens the device, and takes two steps of a model whose shards come from the host. */
static fsdp_status run(fsdp_context *context, fsdp_module **out)
{
    const fsdp_shard_options options = {.no_shared_memory = true, .offload_policy.cpu = true};

    if (!test_device(context))
        return fsdp_last_status();
    *out = net_create(context, fsdp_meta(context), BLOCKS);
    FSDP_TRY(net_try_shard(*out, &options));
    for (int i = 0; i < 2; i++)
        FSDP_TRY(net_try(*out));
    fsdp_module_zero_grad(*out);
    return FSDP_OK;
}

/* Returns whether a step may succeed although the call has failed: it gives back, or there is another way where it has
 * no memory. */
static bool is_survived(const char *call, bool lost)
{
    return strstr(call, "Free") || strstr(call, "Destroy") || strstr(call, "Unregister") || strstr(call, "Unmap") ||
           strstr(call, "Release") ||
           (!lost &&
            (strstr(call, "Malloc") || strstr(call, "Event") || strstr(call, "cuMem") || strstr(call, "HostRegister")));
}

static long left(void)
{
    char text[128];

    return fakecuda.live(text, sizeof text);
}

/* Returns whether the last message names the call; or the loss of the device, of which another call may hear first. */
static bool is_said(const char *call, bool lost)
{
    return strstr(fsdp_last_error(), strcmp(call, "cudaGetDeviceCount") == 0 ? "CUDA" : call) ||
           (lost && strstr(fsdp_last_error(), "device 'cuda:0' has failed and cannot be used any more"));
}

/* Takes the steps again after one had no memory: in the same context, unless the ranks had to part. */
static void go_on(fsdp_context *context, fsdp_module **module)
{
    fsdp_module *again = NULL;

    fsdp_module_unref(*module);
    *module = NULL;
    if (run(context, module) == FSDP_OK)
        return;
    CHECK_CONTAINS(fsdp_last_error(), "is broken");
    context = test_context();
    CHECK_OK(run(context, &again));
    fsdp_module_unref(again);
    fsdp_context_free(context);
}

/* Lets the n-th use of a call fail. Returns whether there was one. */
static bool fail_one(const char *call, long nth, int error, bool lost)
{
    fsdp_context *context = test_context();
    fsdp_module *module = NULL;
    fsdp_status status;
    bool failed;

    fakecuda.fail_call(call, nth, error, lost);
    status = run(context, &module);
    failed = fakecuda.failed(call);
    if (status == FSDP_OK && failed && !is_survived(call, lost))
        TEST_FAIL("use %ld of %s has failed, and the step has not", nth, call);
    if (status != FSDP_OK && !failed)
        TEST_FAIL("use %ld of %s has not failed, and the step has: %s", nth, call, fsdp_last_error());
    if (status != FSDP_OK && !is_said(call, lost))
        TEST_FAIL("use %ld of %s has failed, and this does not say so: %s", nth, call, fsdp_last_error());
    if (status != FSDP_OK)
        fakecuda.fail_call(call, 0, 0, false);
    if (status != FSDP_OK && !lost)
        go_on(context, &module);
    fsdp_module_unref(module);
    fsdp_context_free(context);
    failed = failed || fakecuda.failed(call); /* of what is closed at the end */
    fakecuda.mend();
    CHECK_EQ(left(), 0);
    return failed;
}

/* Tries all uses; of those that come often, ever fewer. Returns how many were tried. */
static long fail_each(const char *call, int error, bool lost)
{
    long tried = 0;

    for (long nth = 1; fail_one(call, nth, error, lost); nth += test_long() ? 1 : 1 + nth / 2)
        tried++;
    return tried;
}

TEST_WITH(the_nth_call_of_every_function_loses_the_device_and_is_named, open_fake, close_fake)
{
    long calls = 0;

    for (const char *const *call = fakecuda.calls; *call; call++)
        calls += fail_each(*call, UNKNOWN, true) > 0;
    CHECK(calls > 25);
}

TEST_WITH(the_nth_call_that_has_no_memory_is_survived, open_fake, close_fake)
{
    static const char *const calls[] = {
        "cuMemCreate",      "cuMemMap",         "cuMemAddressReserve",      "cudaMallocAsync",
        "cudaHostAlloc",    "cudaHostRegister", "cudaEventCreateWithFlags", "cudaStreamCreateWithPriority",
        "cudaLaunchKernel", "cudaMemcpyAsync"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        (void)fail_each(calls[i], OUT_OF_MEMORY, false);
    CHECK(fail_each("cublasLtMatmul", NO_ALLOCATION, false) > 0);
}

static void count_lines(void *arg, fsdp_log_level level, const char *line)
{
    (void)level;
    CHECK_CONTAINS(line, "copies between the host and cuda:0 are slower than they could be: cannot register ");
    ++*(int *)arg;
}

/* Offloaded shards stay where they are, and are copied through what the device has. */
TEST_WITH(shards_on_the_host_that_cannot_be_registered_are_copied_all_the_same, open_fake, close_fake)
{
    static const int errors[] = {OUT_OF_MEMORY, 712 /* cudaErrorHostMemoryAlreadyRegistered */};

    for (size_t i = 0; i < FSDP__COUNT_OF(errors); i++) {
        fsdp_context *context = test_context();
        fsdp_module *module = NULL;
        int lines = 0;

        fsdp_context_set_log(context, FSDP_LOG_WARNING, count_lines, &lines);
        fakecuda.fail_call("cudaHostRegister", 1, errors[i], false);
        CHECK_OK(run(context, &module));
        CHECK(fakecuda.failed("cudaHostRegister"));
        CHECK_EQ(lines, 1);
        fsdp_module_unref(module);
        fsdp_context_free(context);
        CHECK_EQ(left(), 0);
    }
}

/* A forward and a backward of a batch of so many rows. */
static fsdp_status step(fsdp_module *module, int64_t rows)
{
    fsdp_context *context = module->context;
    fsdp_device *device = test_device(context);
    float *values = calloc((size_t)rows * NET_IN, sizeof *values);
    int32_t *classes = calloc((size_t)rows, sizeof *classes);
    fsdp_tensor *x, *loss;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    x = fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(rows, NET_IN), values);
    loss = fsdp_call(module, x, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(rows), classes));
    status = loss ? fsdp_backward(loss) : fsdp_last_status();
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(fsdp_device_stream(device));
    fsdp_scope_end(context, NULL);
    fsdp_module_zero_grad(module);
    free(values);
    free(classes);
    return status;
}

TEST_WITH(after_a_batch_that_was_too_large_a_smaller_one_goes_on, open_fake, close_fake)
{
    const size_t most = 16 << 20;
    fsdp_context *context;
    fsdp_module *module;
    int failures = 0;

    fakecuda.set_memory(most);
    (void)fakecuda.peak(0);
    context = test_context();
    module = net_sharded(context, BLOCKS, NULL);
    for (int64_t rows = 1000; failures < 2; rows *= 4) {
        fsdp_status status = step(module, rows);

        if (status == FSDP_OK)
            continue;
        failures++;
        CHECK_STATUS(status, FSDP_NO_MEMORY);
        CHECK_CONTAINS(fsdp_last_error(), "cuda");
        CHECK_OK(fsdp_module_reset_iteration(module));
        CHECK_OK(step(module, 1000));
    }
    CHECK(fakecuda.peak(0) <= most);
    fsdp_module_unref(module);
    fsdp_context_free(context);
    CHECK_EQ(left(), 0);
}

/* Segments grow by what is missing, and a step like the one before asks for nothing. */
TEST_WITH(no_more_is_reserved_than_a_step_needs, open_fake, close_fake)
{
    const size_t granule = 2 << 20;
    const int64_t rows = 5000;
    fsdp_context *context = test_context();
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    fsdp_memory_stats warm, later;

    CHECK_OK(step(module, rows));
    fsdp_device_memory(test_device(context), &warm);
    CHECK_OK(step(module, rows));
    fsdp_device_memory(test_device(context), &later);
    CHECK_EQ(later.system_allocations, warm.system_allocations);
    CHECK_EQ(later.reserved_bytes, warm.reserved_bytes);
    CHECK(later.reserved_bytes <=
          later.peak_without_workspace_bytes + 2 * granule); /* of small blocks, and of others */
    fsdp_module_unref(module);
    fsdp_context_free(context);
    CHECK_EQ(left(), 0);
}

/* What a card has too little of is said by name, and does not lose it. */
TEST_WITH(a_kernel_that_needs_more_shared_memory_than_a_block_has_is_named, open_fake, close_fake)
{
    const int64_t shape[] = {1, 4, 1, 128};
    fsdp_context *context;
    fsdp_device *device;
    fsdp_tensor *x[3], *loss;

    setenv("FSDP_FAKECUDA_CAPABILITY", "120", 1);
    context = test_context();
    device = test_device(context);
    unsetenv("FSDP_FAKECUDA_CAPABILITY");
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 3; i++) {
        x[i] = CHECK_PTR(fsdp_zeros(device, FSDP_BF16, 4, shape));
        CHECK_OK(fsdp_tensor_set_requires_grad(x[i], true));
    }
    loss = CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_attention(x[0], x[1], x[2], NULL))));
    CHECK_ERROR(fsdp_backward(loss), FSDP_UNSUPPORTED,
                "of shared memory for a block, and cuda:0 (fake GPU) has 101376");
    CHECK_PTR(fsdp_zeros(device, FSDP_F32, 4, shape));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    fsdp_scope_end(context, NULL);
    fsdp_context_free(context);
    CHECK_EQ(left(), 0);
}

#else
MISSING_TEST(cuda)
#endif
