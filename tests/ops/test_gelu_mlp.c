/* Two linears with GELU between them as one operation: its numbers are those of three, on every device, and models use
 * it where products take GELU along and nothing acts between. Links: models shard adapter */
#include <math.h>

#include "base/compiler.h"
#include "base/probe.h"
#include "fsdp/adapter.h"
#include "fsdp/models.h"
#include "fsdp/shard.h"
#include "ops/op.h"
#include "ops/two_backwards.h"
#include "support/models.h"

/* ---- the operation ---- */

enum {
    ROWS = 6,
    IN = 8,
    OUT = 5,
    INNER = 24, /* most */
    TENSORS = 5,
    NUMBERS = ROWS * OUT + ROWS * IN + INNER * (IN + OUT + 1) + OUT
};

typedef struct call {
    fsdp_dtype dtype;
    int64_t inner;
    bool conv1d, bias;
    unsigned wanted; /* a bit for each of x, weight, bias, second weight, bias that requires a gradient */
    bool keep, twice;
} call;

static fsdp_tensor *leaf(fsdp_context *context, const call *c, int index, int ndim, const int64_t *shape)
{
    float values[INNER * INNER];
    int64_t count = ndim == 2 ? shape[0] * shape[1] : shape[0];
    fsdp_tensor *tensor;

    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(0.7 * sin(0.9 * (double)i + 1.7 * index));
    tensor = CHECK_PTR(fsdp_cast(fsdp_from_data(test_device(context), FSDP_F32, ndim, shape, values), c->dtype));
    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, c->wanted >> index & 1));
    return tensor;
}

static fsdp_tensor *chain(const fsdp__gelu_mlp *m)
{
    fsdp_tensor *h =
        m->conv1d ? fsdp_conv1d(m->x, m->weights[0], m->biases[0]) : fsdp_linear(m->x, m->weights[0], m->biases[0]);
    fsdp_tensor *y = fsdp_gelu_tanh(h);

    return m->conv1d ? fsdp_conv1d(y, m->weights[1], m->biases[1]) : fsdp_linear(y, m->weights[1], m->biases[1]);
}

/* Computes the result, and the gradients that are wanted. Returns how many numbers these are. */
static int compute(fsdp_context *context, const call *c, bool one, float *out)
{
    int64_t shapes[2][2] = {{c->conv1d ? IN : c->inner, c->conv1d ? c->inner : IN},
                            {c->conv1d ? c->inner : OUT, c->conv1d ? OUT : c->inner}};
    fsdp_tensor *leaves[TENSORS] = {NULL}, *z, *loss;
    fsdp__gelu_mlp m = {.conv1d = c->conv1d};
    int at = ROWS * OUT;

    CHECK_OK(fsdp_scope_begin(context));
    leaves[0] = m.x = leaf(context, c, 0, 2, (const int64_t[]){ROWS, IN});
    for (int i = 0; i < 2; i++) {
        leaves[1 + 2 * i] = m.weights[i] = leaf(context, c, 1 + 2 * i, 2, shapes[i]);
        m.biases[i] = c->bias ? leaf(context, c, 2 + 2 * i, 1, (const int64_t[]){i ? OUT : c->inner}) : FSDP_NO_BIAS;
        leaves[2 + 2 * i] = c->bias ? m.biases[i] : NULL;
    }
    z = CHECK_PTR(one ? fsdp__gelu_mlp_apply(&m) : chain(&m));
    CHECK_OK(fsdp_tensor_read(z, FSDP_F32, out));
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(z, z)));
    for (int i = 0; c->wanted && i < 1 + c->twice; i++)
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, i < c->twice || c->keep));
    for (int i = 0; i < TENSORS; i++) {
        if (!leaves[i] || !(c->wanted >> i & 1))
            continue;
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(leaves[i])), FSDP_F32, out + at));
        at += (int)fsdp_tensor_numel(leaves[i]);
    }
    fsdp_scope_end(context, NULL);
    return at;
}

/* The three operations round what GELU is of, and the gradient before its derivative; the one may. */
static void check_call(fsdp_context *context, const call *c)
{
    static const double tolerances[] = {[FSDP_F32] = 1e-5, [FSDP_F16] = 4e-3, [FSDP_BF16] = 3e-2};
    float one[NUMBERS], three[NUMBERS], most = 0;
    int count = compute(context, c, true, one);

    CHECK_EQ(compute(context, c, false, three), count);
    for (int i = 0; i < count; i++)
        most = fmaxf(most, fabsf(three[i]));
    CHECK_CLOSE(one, three, count, tolerances[c->dtype], tolerances[c->dtype] * (double)most);
}

CONTEXT_TEST(one_operation_has_the_numbers_of_three)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        for (int i = 0; i < 8; i++) {
            /* 19: rows of what GELU is of are no multiple of 8, which cuBLAS does not take */
            call c = {dtypes[d], i & 4 ? 19 : INNER, i & 1, i & 2, 31, i & 1, false};

            c.wanted = c.bias ? 31 : 11;
            check_call(context, &c);
        }
}

CONTEXT_TEST(gradients_that_nobody_wants_are_not_made)
{
    for (unsigned wanted = 0; wanted < 32; wanted++)
        check_call(context, &(call){FSDP_F32, INNER, true, true, wanted, false, false});
}

CONTEXT_TEST(gradients_are_added_in_a_second_backward)
{
    for (int keep = 0; keep < 2; keep++)
        check_call(context, &(call){FSDP_F32, INNER, true, true, 31, keep, true});
}

/* A backward that has failed may be tried again, or says that it cannot. */
static fsdp_status forward_and_backward(fsdp_context *context, const fsdp__gelu_mlp *m)
{
    fsdp_tensor *z;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    z = fsdp__gelu_mlp_apply(m);
    status = z ? fsdp_backward_from(&z, &z, 1, false) : fsdp_last_status();
    if (z && status != FSDP_OK) {
        fsdp_status again = fsdp_backward_from(&z, &z, 1, false);

        CHECK(again == FSDP_OK || again == FSDP_STATE);
    }
    fsdp_scope_end(context, NULL);
    return status;
}

CONTEXT_TEST(without_memory_it_fails)
{
    const call c = {.dtype = FSDP_F32, .inner = INNER, .conv1d = true, .bias = true, .wanted = 31};
    fsdp__gelu_mlp m = {.conv1d = true};

    m.x = leaf(context, &c, 0, 2, (const int64_t[]){ROWS, IN});
    for (int i = 0; i < 2; i++) {
        m.weights[i] = leaf(context, &c, 1, 2, (const int64_t[]){i ? INNER : IN, i ? OUT : INNER});
        m.biases[i] = leaf(context, &c, 2, 1, (const int64_t[]){i ? OUT : INNER});
    }
    CHECK_OK(forward_and_backward(context, &m)); /* kernels have their scratch */
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, forward_and_backward(context, &m));
}

/* ---- models ---- */

enum {
    LAYERS = 2,
    TOKENS = 2 * 6 /* that two_take calls a model with */
};

typedef struct variant {
    const char *name;
    bool apart; /* also where products take GELU along */
    bool erf;
    fsdp_shard_options options;
    fsdp_recompute_mode recompute;
    const char *hooked, *alone, *adapted; /* a module that has a hook, is sharded by itself, or has an adapter */
    const char *frozen;
    bool kept;     /* what a pass of GELU makes is: nobody needs it, or the second layer reads another tensor */
    int64_t inner; /* 0: 32 */
} variant;

typedef struct outcome {
    const variant *v;
    bool hooked; /* a hook on GELU has it called by itself */
    bool dry;
    two_backwards of;
} outcome;

static void prepare_block(fsdp_module *block, const outcome *o)
{
    if (o->hooked || o->v->hooked)
        two_hook(block, o->hooked ? "mlp.act" : o->v->hooked);
    if (o->v->frozen)
        CHECK_OK(fsdp_module_set_requires_grad(two_part(block, o->v->frozen), false));
    CHECK_OK(fsdp_module_set_recompute(block, o->v->recompute));
    if (o->v->alone)
        CHECK_OK(fsdp_fully_shard(two_part(block, o->v->alone), &o->v->options));
    CHECK_OK(fsdp_fully_shard(block, &o->v->options));
}

static fsdp_module *build(fsdp_context *context, const outcome *o, fsdp_adapter **adapter)
{
    const fsdp_lora_options lora = {.rank = 2, .targets = &o->v->adapted, .target_count = 1};
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = FSDP_GPT2, .n_layers = LAYERS, .dim = 16, .n_heads = 4, .n_kv_heads = 4,
                     .head_dim = 4, .ffn_dim = o->v->inner ? o->v->inner : 32, .vocab_size = 16, .max_seq_len = 32,
                     .gelu_erf = o->v->erf);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, o->of.device, &config));

    *adapter = NULL;
    if (o->v->adapted)
        CHECK_OK(fsdp_adapter_add(model, &lora, adapter));
    two_fill(model, "ln_");
    for (int64_t i = 0; i < LAYERS; i++)
        prepare_block(fsdp_model_block(model, i), o);
    CHECK_OK(fsdp_fully_shard(model, &o->v->options));
    return model;
}

static void take(fsdp_context *context, outcome *o)
{
    fsdp_adapter *adapter;
    fsdp_module *model;

    o->of.device = two_device(context, o->dry);
    model = build(context, o, &adapter);
    two_take(context, model, adapter, &o->of);
}

/* Where GELU is apart, a step has a pass of it in each forward, one of its derivative in each backward, and one more
 * there for each result that was not kept. Where it comes along it has none. */
static void check_passes(const outcome *o, bool joined)
{
    const variant *v = o->v;
    bool again = v->recompute != FSDP_RECOMPUTE_NONE || (fsdp__device_makes_again(o->of.device) && !v->kept);
    int passes[] = {o->of.forward[FSDP__KERNEL_ACTIVATION_FORWARD], o->of.backward[FSDP__KERNEL_ACTIVATION_FORWARD],
                    o->of.backward[FSDP__KERNEL_ACTIVATION_BACKWARD]};

    if (passes[0] != (joined ? 0 : LAYERS) || passes[1] != (again && !joined ? LAYERS : 0) ||
        passes[2] != (joined ? 0 : LAYERS))
        TEST_FAIL("%s: %d, %d and %d passes of GELU", v->name, passes[0], passes[1], passes[2]);
}

/* A joined MLP keeps what GELU makes. A GPU makes the result of a pass again, which then is there for one block. */
static void check_peaks(const outcome *plain, const outcome *hooked, bool joined)
{
    int64_t inner = plain->v->inner ? plain->v->inner : 32, result = TOKENS * inner * (int64_t)sizeof(float);
    bool again = joined && fsdp__device_makes_again(plain->of.device) && !plain->v->kept;

    CHECK(plain->of.peak <= hooked->of.peak + (again ? (LAYERS - 1) * result : 0));
}

/* The sum of squares of what gradients differ by. */
static double apart(const two_backwards *a, const two_backwards *b)
{
    double sum = 0;

    for (int64_t p = 0; p < a->count; p++)
        for (int64_t i = 0; i < a->numel[p]; i++)
            sum += pow((double)(a->gradients[p][i] - b->gradients[p][i]), 2);
    return sum;
}

static const variant in_f32 = {.name = "f32"};

static void compare(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    outcome plain = {.v = v}, hooked = {.v = v, .hooked = true}, exact = {.v = &in_f32};
    bool joined = fsdp__device_gelu_products(test_device(context)) && !v->apart;

    take(context, &plain);
    take(context, &hooked);
    if (v->options.mp_policy.param_dtype == FSDP_BF16 && joined) {
        take(context, &exact);
        CHECK_NEAR(plain.of.loss, hooked.of.loss, 2e-2);
        CHECK(apart(&plain.of, &exact.of) < 1.2 * apart(&hooked.of, &exact.of)); /* it rounds less often */
        two_free(&exact.of);
    } else {
        two_check_close(&plain.of, &hooked.of, joined ? 1e-5 : 0);
    }
    check_passes(&plain, joined);
    check_passes(&hooked, false);
    check_peaks(&plain, &hooked, joined);
    two_free(&plain.of);
    two_free(&hooked.of);
}

static const variant variants[] = {
    {.name = "gpt2"},
    {.name = "bf16", .options = {.mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}}},
    {.name = "stays", .options = {.reshard_after_forward = FSDP_RESHARD_NEVER}},
    {.name = "erf", .apart = true, .erf = true},
    {.name = "hook on c_fc", .apart = true, .hooked = "mlp.c_fc"},
    {.name = "hook on c_proj", .apart = true, .hooked = "mlp.c_proj"},
    {.name = "hook on mlp", .hooked = "mlp"},
    {.name = "c_fc alone", .apart = true, .alone = "mlp.c_fc"},
    {.name = "c_proj alone", .apart = true, .alone = "mlp.c_proj", .kept = true},
    {.name = "mlp alone", .alone = "mlp"},
    {.name = "full", .apart = true, .recompute = FSDP_RECOMPUTE_FULL},
    {.name = "cheap", .apart = true, .recompute = FSDP_RECOMPUTE_CHEAP},
    {.name = "selective", .apart = true, .recompute = FSDP_RECOMPUTE_SELECTIVE},
    {.name = "adapted", .apart = true, .adapted = "c_fc", .kept = true},
    {.name = "c_fc frozen", .frozen = "mlp.c_fc"},
    {.name = "c_proj frozen", .frozen = "mlp.c_proj", .kept = true},
    {.name = "no multiple of 8", .inner = 19}};

TEST(models_take_gelu_along_where_nothing_acts_between)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(variants); i++)
        for (int world = 1; world <= 4; world++)
            if (test_takes((int)i + world + 2, 1, 6)) /* each in one world at most */
                test_run_ranks(world, compare, (void *)(uintptr_t)&variants[i]);
}

static void compare_dry(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    outcome real = {.v = v}, dry = {.v = v, .dry = true};

    take(context, &real);
    take(context, &dry);
    CHECK_BYTES(dry.of.forward, real.of.forward, sizeof dry.of.forward);
    CHECK_BYTES(dry.of.backward, real.of.backward, sizeof dry.of.backward);
    CHECK_EQ(dry.of.peak, real.of.peak);
    two_free(&real.of);
    two_free(&dry.of);
}

TEST(a_dry_step_has_the_passes_and_the_memory_of_a_step_on_a_gpu)
{
    const char *device = getenv("FSDP_TEST_DEVICE");

    if (!device || strcmp(device, "cuda") != 0)
        skip();
    for (size_t i = 0; i < FSDP__COUNT_OF(variants); i++)
        if (test_takes((int)i, 1, 3))
            test_run_ranks(1, compare_dry, (void *)(uintptr_t)&variants[i]);
}
