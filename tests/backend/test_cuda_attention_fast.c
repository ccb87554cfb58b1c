/* Attention of a CUDA device by cuDNN: what its graphs mean, on a fake GPU and a fake cuDNN; whether the real cuDNN
 * takes them for an H200 that it is told of; what is refused. */
#include "backend/cuda/attention_graph.h"
#include "base/compiler.h"
#include "oracle/oracle.h"
#include "support/dice.h"
#include "support/test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "device/device.h"
#endif

#if __has_include(<cudnn_graph.h>) && __has_include(<library_types.h>)
#include <cudnn_graph.h>
#define SAME(name, value) _Static_assert(CUDNN_##name == (value), "the number of CUDNN_" #name);
FSDP__CUDNN_NUMBERS(SAME)
#undef SAME
#endif

typedef struct sizes {
    int64_t batch, time, heads, kv_heads, head_dim;
    bool causal;
    int64_t window, document; /* the length of all documents but the last; 0: none */
    bool joined;              /* q, k and v are parts of one row */
} sizes;

/* Sets sizes and strides. Rows of q, k and v begin at row 0 of one tensor, or of three. */
static fsdp__attention_forward_args lay_out(const sizes *s)
{
    int64_t d = s->head_dim, all = (s->heads + 2 * s->kv_heads) * d;
    int64_t q_row = s->joined ? all : s->heads * d, k_row = s->joined ? all : s->kv_heads * d;

    return (fsdp__attention_forward_args){.batch = s->batch,
                                          .q_time = s->time,
                                          .kv_time = s->time,
                                          .heads = s->heads,
                                          .kv_heads = s->kv_heads,
                                          .head_dim = d,
                                          .q_batch = s->time * q_row,
                                          .q_stride_time = q_row,
                                          .q_head = d,
                                          .k_batch = s->time * k_row,
                                          .k_stride_time = k_row,
                                          .k_head = d,
                                          .v_batch = s->time * k_row,
                                          .v_stride_time = k_row,
                                          .v_head = d,
                                          .out_batch = s->time * s->heads * d,
                                          .out_stride_time = s->heads * d,
                                          .out_head = d,
                                          .scale = 1.0f / sqrtf((float)d),
                                          .causal = s->causal,
                                          .dtype = FSDP_BF16,
                                          .window = s->window};
}

/* ---- what is refused ---- */

TEST(what_cudnn_is_not_asked_for_is_named)
{
    const sizes s = {.batch = 2, .time = 10, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true};
    const fsdp__attention_forward_args good = lay_out(&s);
    fsdp__attention_forward_args k = good;
    fsdp__attention_backward_args b = {.forward = good};
    fsdp__attention_call call;

    CHECK_NULL(fsdp__attention_call_of(&k, NULL, false, &call));
    CHECK_NULL(fsdp__attention_call_of(&k, &b, false, &call));
#define REFUSED(change, text) \
    (k = good, change, CHECK_CONTAINS(CHECK_PTR(fsdp__attention_call_of(&k, NULL, false, &call)), text))
    REFUSED(k.dtype = FSDP_F32, "32 bits");
    REFUSED(k.softcap = 30.0f, "capped scores");
    REFUSED(k.head_dim = 136, "wider than 128");
    REFUSED(k.head_dim = 60, "no multiple of 8");
    REFUSED(k.q_stride_time = 260, "16 bytes");
    REFUSED(k.v = (const void *)8, "16 bytes");
#undef REFUSED
    b.dq = (void *)8;
    CHECK_CONTAINS(CHECK_PTR(fsdp__attention_call_of(&good, &b, false, &call)), "16 bytes");
    k = good, k.window = 10; /* hides nothing */
    CHECK_NULL(fsdp__attention_call_of(&k, NULL, false, &call));
    CHECK_EQ(call.window, 0);
}

/* ---- the real cuDNN ---- */

/* What a driver says of an H200. */
static const char card[] =
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150754820096,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"l2CacheSize\":62914560,\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"deviceName\":\"NVIDIA H200\"}";

/* Opens the real library, beside a driver that says yes to everything; skips the case where it is not, and where a
 * sanitizer watches each allocation of its compiler. */
static void open_real(fsdp__cudnn *out)
{
    const char *folder = getenv("FSDP_CUDNN_FOLDER");

    char path[1100];

#if FSDP__ASAN || FSDP__TSAN
    skip();
#endif
    folder = folder ? folder : "/usr/local/cuda/lib64";
    snprintf(path, sizeof path, "%s/libcudnn.so.9", folder);
    test_skip_if(access(path, F_OK) != 0, "there is no %s; FSDP_CUDNN_FOLDER names another folder", path);
    CHECK_PTR(dlopen(FSDP_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL));
    setenv("FSDP_CUDA_LIBRARIES", folder, 1);
    CHECK_OK(fsdp__cudnn_open(out));
    unsetenv("FSDP_CUDA_LIBRARIES");
}

/* Lets cuDNN make a plan of a call for the H200; returns the scratch that it takes. */
static int64_t plan_bytes(const fsdp__cudnn *cudnn, const sizes *s, bool backward, bool repeatable)
{
    const fsdp__cudnn_target target = {.card = card};
    fsdp__attention_forward_args k = lay_out(s);
    fsdp__attention_backward_args b;
    fsdp__cudnn_graph graph = {.cudnn = cudnn};
    fsdp__attention_call call;
    int64_t bytes;

    k.lse = (float *)16;
    k.positions = s->document > 0 ? (const int32_t *)16 : NULL;
    b = (fsdp__attention_backward_args){.forward = k};
    CHECK_NULL(fsdp__attention_call_of(&k, backward ? &b : NULL, repeatable, &call));
    fsdp__attention_graph(&call, &graph);
    CHECK_OK(graph.status);
    CHECK_OK(fsdp__cudnn_make_plan(&graph, &target, repeatable));
    bytes = graph.workspace_bytes;
    fsdp__cudnn_graph_clear(&graph);
    return bytes;
}

TEST(cudnn_takes_the_graphs_of_models_for_an_h200)
{
    static const sizes models[] = {
        {.batch = 8, .time = 2048, .heads = 32, .kv_heads = 8, .head_dim = 64, .causal = true, .joined = true},
        {.batch = 32, .time = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64, .causal = true, .joined = true},
        {.batch = 2, .time = 2048, .heads = 8, .kv_heads = 2, .head_dim = 128, .causal = true, .window = 512},
        {.batch = 1, .time = 1001, .heads = 4, .kv_heads = 2, .head_dim = 40, .causal = true, .joined = true},
        {.batch = 2, .time = 1024, .heads = 8, .kv_heads = 2, .head_dim = 64, .causal = true, .document = 9},
        {.batch = 2, .time = 37, .heads = 8, .kv_heads = 8, .head_dim = 64, .causal = true, .window = 5, .document = 9},
        {.batch = 2, .time = 256, .heads = 4, .kv_heads = 4, .head_dim = 64},
    };
    fsdp__cudnn cudnn;

    open_real(&cudnn);
    for (size_t i = 0; i < FSDP__COUNT_OF(models); i++) {
        const sizes *s = &models[i];
        int64_t pairs = s->batch * s->heads * s->time * s->time, repeatable;

        (void)plan_bytes(&cudnn, s, false, false);
        if (!test_takes((int)i, 2, 2)) /* a plan of a backward takes half a second */
            continue;
        (void)plan_bytes(&cudnn, s, true, false);
        repeatable = plan_bytes(&cudnn, s, true, true);
        CHECK(repeatable >= 2 * pairs); /* as docs/gpu.md says */
    }
}

/* ---- on a device, with the fake CUDA and the fake cuDNN ---- */

#ifdef FSDP_HAVE_FAKECUDA

enum {
    MOST = 1 << 15 /* elements of a tensor */
};

/* All of a call, in memory of the device. q holds k and v as well where they are joined. */
typedef struct numbers {
    uint16_t q[MOST], k[MOST], v[MOST], out[MOST], dout[MOST], dq[MOST], dk[MOST], dv[MOST];
    float lse[MOST];
    int32_t positions[MOST];
} numbers;

static void draw(numbers *x, const sizes *s)
{
    static uint16_t drawn[4][MOST];
    static bool done;
    uint16_t *const tensors[] = {x->q, x->k, x->v, x->dout};

    for (uint64_t t = 0; t < FSDP__COUNT_OF(tensors) && !done; t++)
        for (int64_t i = 0; i < MOST; i++)
            oracle_put(FSDP_BF16, drawn[t], i, (double)dice_normal(t, (uint64_t)i));
    done = true;
    memset(x, 0x7f, sizeof *x); /* what nobody writes is no number */
    for (size_t t = 0; t < FSDP__COUNT_OF(tensors); t++)
        memcpy(tensors[t], drawn[t], sizeof drawn[t]);
    for (int64_t i = 0; s->document > 0 && i < s->batch * s->time; i++)
        x->positions[i] = (int32_t)(i % s->time % s->document);
}

static fsdp__attention_backward_args args_of(numbers *x, const sizes *s)
{
    int64_t k = s->heads * s->head_dim, v = k + s->kv_heads * s->head_dim;
    fsdp__attention_backward_args a = {.forward = lay_out(s), .dout = x->dout, .dq = x->dq};

    a.dk = s->joined ? x->dq + k : x->dk, a.dv = s->joined ? x->dq + v : x->dv;
    a.forward.q = x->q;
    a.forward.k = s->joined ? x->q + k : x->k, a.forward.v = s->joined ? x->q + v : x->v;
    a.forward.out = x->out, a.forward.lse = x->lse;
    a.forward.positions = s->document > 0 ? x->positions : NULL;
    return a;
}

/* Computes a forward and a backward on the device by some kernels. */
static fsdp_status compute(const setting *s, const sizes *z, fsdp_attention_kernels kernels, numbers *back)
{
    fsdp_stream *stream = fsdp_device_stream(s->device);
    fsdp__attention_backward_args args = args_of(s->on_device, z);

    draw(back, z);
    FSDP_TRY(fsdp_device_set_attention(s->device, kernels));
    FSDP_TRY(fsdp__copy_to_device(stream, s->on_device, back, sizeof *back));
    FSDP_TRY(fsdp__launch_attention_forward(stream, &args.forward));
    FSDP_TRY(fsdp__launch_attention_backward(stream, &args));
    FSDP_TRY(fsdp__copy_to_host(stream, back, s->on_device, sizeof *back));
    return fsdp_stream_synchronize(stream);
}

/* All but what was not written are near; that is the same. */
static void check_near(const uint16_t *a, const uint16_t *b, const char *what)
{
    for (int64_t i = 0; i < MOST; i++) {
        double x = oracle_get(FSDP_BF16, a, i), y = oracle_get(FSDP_BF16, b, i);

        if (a[i] != b[i] && !(fabs(x - y) <= 0.03 * (1.0 + fabs(x))))
            TEST_FAIL("%s: element %lld is %g, and %g by cuDNN", what, (long long)i, x, y);
    }
}

static void check_kernels(const setting *s, const sizes *z, fsdp_attention_kernels kernels)
{
    static numbers exact, fast;

    CHECK_OK(compute(s, z, FSDP_ATTENTION_EXACT, &exact));
    CHECK_EQ(fakecuda.uses("cudnnBackendExecute"), 0);
    CHECK_OK(compute(s, z, kernels, &fast));
    CHECK_EQ(fakecuda.uses("cudnnBackendExecute"), 2);
    fakecuda.fail_call("cudnnBackendExecute", 0, 0, false);
    check_near(exact.out, fast.out, "out");
    check_near(exact.dq, fast.dq, "dq");
    check_near(exact.dk, fast.dk, "dk");
    check_near(exact.dv, fast.dv, "dv");
    for (int64_t i = 0; i < z->batch * z->heads * z->time; i++)
        CHECK_NEAR(exact.lse[i], fast.lse[i], 1e-3);
}

TEST(graphs_mean_what_the_own_kernels_compute)
{
    static const sizes cases[] = {
        {.batch = 2, .time = 19, .heads = 4, .kv_heads = 4, .head_dim = 16, .causal = true},
        {.batch = 2, .time = 33, .heads = 4, .kv_heads = 2, .head_dim = 32, .causal = true, .joined = true},
        {.batch = 1, .time = 40, .heads = 6, .kv_heads = 1, .head_dim = 8, .causal = true, .joined = true},
        {.batch = 2, .time = 21, .heads = 2, .kv_heads = 2, .head_dim = 16},
        {.batch = 2, .time = 37, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true, .window = 5},
        {.batch = 2, .time = 37, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true, .window = 1},
        {.batch = 2, .time = 37, .heads = 2, .kv_heads = 2, .head_dim = 16, .causal = true, .document = 8},
        {.batch = 2,
         .time = 30,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 24,
         .causal = true,
         .document = 11,
         .window = 6,
         .joined = true},
        {.batch = 1, .time = 1, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true},
    };
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        check_kernels(&s, &cases[i], FSDP_ATTENTION_FAST);
        check_kernels(&s, &cases[i], FSDP_ATTENTION_FAST_REPEATABLE);
    }
    tear_down(&s);
}

static const sizes small = {.batch = 1, .time = 6, .heads = 2, .kv_heads = 1, .head_dim = 8, .causal = true};

TEST(a_plan_is_made_once_and_plans_of_shapes_that_never_come_again_are_dropped)
{
    static numbers back;
    sizes z = small;
    setting s;
    char text[128];
    long most = 0;

    set_up(&s, test_context(), sizeof(numbers));
    for (int i = 0; i < 3; i++)
        CHECK_OK(compute(&s, &z, FSDP_ATTENTION_FAST, &back));
    CHECK_EQ(fakecuda.uses("cudnnBackendExecute"), 6);
    CHECK_EQ(fakecuda.uses("cudnnCreate"), 1);
    for (z.time = 7; z.time < 7 + 70; z.time++) {
        CHECK_OK(compute(&s, &z, FSDP_ATTENTION_FAST, &back));
        most = fakecuda.live(text, sizeof text) > most ? fakecuda.live(text, sizeof text) : most;
    }
    CHECK(fakecuda.live(text, sizeof text) < most); /* 71 shapes have 142 plans, of which 128 are kept */
    tear_down(&s);
}

TEST(what_continues_a_cache_of_keys_is_computed_by_own_kernels)
{
    fsdp__attention_backward_args args;
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    args = args_of(s.on_device, &small);
    args.forward.q_time = 1;
    CHECK_OK(fsdp_device_set_attention(s.device, FSDP_ATTENTION_FAST));
    CHECK_OK(fsdp__launch_attention_forward(fsdp_device_stream(s.device), &args.forward));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(s.device)));
    CHECK_EQ(fakecuda.uses("cudnnBackendExecute"), 0);
    tear_down(&s);
}

TEST(a_call_that_cudnn_does_not_take_fails_with_what_to_set)
{
    fsdp__attention_backward_args args;
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    args = args_of(s.on_device, &small);
    args.forward.softcap = 20.0f;
    CHECK_OK(fsdp_device_set_attention(s.device, FSDP_ATTENTION_FAST));
    CHECK_ERROR(fsdp__launch_attention_forward(fsdp_device_stream(s.device), &args.forward), FSDP_UNSUPPORTED,
                "capped scores (attention_softcap): set kernels.attention=exact");
    fsdp_clear_error();
    tear_down(&s);
}

TEST(a_cudnn_that_is_too_old_is_refused)
{
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    setenv("FSDP_FAKECUDA_CUDNN", "90501", 1);
    CHECK_ERROR(fsdp_device_set_attention(s.device, FSDP_ATTENTION_FAST), FSDP_UNSUPPORTED, "is version 9.5.1");
    CHECK_ERROR(fsdp_device_set_attention(s.device, FSDP_ATTENTION_FAST_REPEATABLE + 1), FSDP_INVALID, "number 3");
    unsetenv("FSDP_FAKECUDA_CUDNN");
    CHECK_ERROR(fsdp_device_set_attention(CHECK_PTR(fsdp_cpu(s.context)), FSDP_ATTENTION_FAST), FSDP_UNSUPPORTED,
                "device 'cpu'");
    CHECK_OK(fsdp_device_set_attention(CHECK_PTR(fsdp_cpu(s.context)), FSDP_ATTENTION_EXACT));
    tear_down(&s);
}

TEST(every_call_of_cudnn_may_fail)
{
    static const char *const calls[] = {"cudnnCreate",          "cudnnBackendCreateDescriptor",
                                        "cudnnBackendFinalize", "cudnnBackendSetAttribute",
                                        "cudnnBackendExecute",  "cudnnBackendGetAttribute"};
    static numbers back;

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        for (long nth = 1, failed = 1; failed; nth += nth < 4 ? 1 : 31) {
            fsdp_status status;
            setting s;

            set_up(&s, test_context(), sizeof(numbers));
            fakecuda.fail_call(calls[i], nth, 4000, false);
            status = compute(&s, &small, FSDP_ATTENTION_FAST, &back);
            failed = fakecuda.failed(calls[i]);
            fakecuda.fail_call(calls[i], 0, 0, false);
            if (failed && status == FSDP_OK &&
                strcmp(calls[i], "cudnnBackendFinalize") != 0) /* there are two engines */
                TEST_FAIL("%s failed the %ld. time, and nobody was told", calls[i], nth);
            if (status != FSDP_OK)
                CHECK_CONTAINS(fsdp_last_error(), calls[i]);
            fsdp_clear_error();
            CHECK_OK(compute(&s, &small, FSDP_ATTENTION_FAST, &back));
            tear_down(&s);
        }
}

TEST(attention_without_memory_is_an_error)
{
    static numbers back;
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, compute(&s, &small, FSDP_ATTENTION_FAST, &back));
    tear_down(&s);
}
#endif
