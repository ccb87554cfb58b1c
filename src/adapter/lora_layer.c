/* lora_layer.c - what an adapted layer computes beside its base, in a hook after the base's forward. The hook is added
 * before the model is sharded, so it runs while the base's parameters are gathered. A, B and m may be units of their
 * own: they are read inside their own calls. */
#include "adapter/adapter.h"

#include <math.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "nn/layers.h"

static const char lora_key;

bool fsdp__lora_is_on(const fsdp_module *module)
{
    return fsdp__module_hooks_arg(module, &lora_key) != NULL;
}

/* ---- forward ---- */

/* Returns s B A x. */
static fsdp_tensor *low_rank(const fsdp__lora *l, fsdp_tensor *x)
{
    return fsdp_scale(fsdp_call(l->beside.b, fsdp_call(l->beside.a, x)), l->beside.scaling);
}

/* Returns W (out,in) in the adapter's dtype, a view where it can be one. */
static fsdp_tensor *base_weight(const fsdp__lora *l, fsdp_dtype dtype)
{
    fsdp_tensor *w = fsdp__layer_weight(&l->layer->base, dtype);

    return l->transposed ? fsdp_transpose(w, 0, 1) : w;
}

/* Returns the sum over the inputs that other ranks have as well. */
static fsdp_tensor *sum_inputs(const fsdp__lora *l, fsdp_tensor *x)
{
    return l->beside.sum && x ? l->beside.sum(l->beside.sum_arg, x) : x;
}

/* Computes the norms (out) of the rows of W + s B A, as a method of A inside one of B. */
static fsdp_status norms_in_a(fsdp_module *a, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                              int output_count)
{
    const fsdp__lora *l = arg;
    fsdp_tensor *down = fsdp__layer_weight_field(a), *up = fsdp__layer_weight_field(l->beside.b), *v;

    (void)inputs, (void)count, (void)output_count;
    fsdp_no_grad_begin(a->context);
    v = fsdp_add(base_weight(l, fsdp_tensor_dtype(down)), fsdp_scale(fsdp_matmul(up, down), l->beside.scaling));
    outputs[0] = fsdp_sqrt(sum_inputs(l, fsdp_sum_dim(fsdp_square(v), 1, false)));
    fsdp_no_grad_end(a->context);
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}

static fsdp_status norms_in_b(fsdp_module *b, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                              int output_count)
{
    const fsdp__lora *l = arg;

    (void)b;
    return fsdp_module_call_method_many(l->beside.a, norms_in_a, arg, inputs, count, outputs, output_count);
}

/* Returns these norms, constants. A and B may each be sharded by itself, so they are called where their weights are
 * read. Only what they compute is without gradients: in a block that is recomputed, a call under fsdp_no_grad would be
 * a forward of its own. */
static fsdp_tensor *row_norms(const fsdp__lora *l)
{
    fsdp_tensor *n = NULL;

    (void)fsdp_module_call_method_many(l->beside.b, norms_in_b, (void *)(uintptr_t)l, NULL, 0, &n, 1);
    return fsdp_detach(n);
}

/* Returns W x (...,out): from the base's product, which has the bias or not, unless dropout has changed x. */
static fsdp_tensor *base_product(const fsdp__lora *l, fsdp_tensor *x, fsdp_tensor *product, fsdp_tensor *bias,
                                 bool dropped)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(x);

    if (dropped)
        return fsdp__layer_product(&l->layer->base, x);
    product = fsdp_cast(product, dtype);
    return bias ? fsdp_sub(product, fsdp_cast(bias, dtype)) : product;
}

/* Returns what DoRA adds to the base's product: (m/n - 1) W x + (m/n) s B A x. */
static fsdp_tensor *dora(const fsdp__lora *l, fsdp_tensor *x, fsdp_tensor *base)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(x);
    fsdp_tensor *ratio = fsdp_cast(fsdp_call(l->beside.magnitude, row_norms(l)), dtype); /* (out) */

    if (!ratio)
        return NULL;
    return fsdp_add(fsdp_mul(fsdp_add_scalar(ratio, -1.0), base), fsdp_mul(ratio, fsdp_cast(low_rank(l, x), dtype)));
}

/* Returns the base's product, to which `bias` has been added unless it is NULL, and what the adapter adds. */
static fsdp_tensor *with_adapter(const fsdp__lora *l, fsdp_tensor *x, fsdp_tensor *product, fsdp_tensor *bias)
{
    fsdp_dtype own = fsdp_tensor_dtype(fsdp__layer_weight_field(l->beside.a)), base, wide;
    bool dropped = l->beside.dropout && l->layer->base.training;
    fsdp_tensor *added;

    if (l->beside.off || !product)
        return product;
    base = fsdp_tensor_dtype(product);
    wide = base == own ? own : FSDP_F32;
    x = fsdp_cast(x, own);
    x = dropped ? fsdp_call(l->beside.dropout, x) : x;
    added = l->beside.magnitude ? dora(l, x, base_product(l, x, product, bias, dropped)) : low_rank(l, x);
    return fsdp_cast(fsdp_add(fsdp_cast(product, wide), fsdp_cast(added, wide)), base);
}

static fsdp_tensor *add_to_product(fsdp__layer_beside *beside, fsdp_tensor *x, fsdp_tensor *y)
{
    return with_adapter((const fsdp__lora *)beside, x, y, NULL);
}

static fsdp_status add_to_output(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    const fsdp__lora *l = arg;

    (void)module, (void)count, (void)output_count;
    if (l->beside.sum) /* a plan has added it to its part of the product */
        return FSDP_OK;
    outputs[0] = with_adapter(l, inputs[0], outputs[0], l->layer->bias);
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}

/* ---- building ---- */

/* Maps norms n (out) to m/n. */
static fsdp_tensor *magnitude_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *m = fsdp__layer_weight_field(self);

    (void)count;
    return fsdp_div(m, fsdp_cast(inputs[0], fsdp_tensor_dtype(m)));
}

static const fsdp_module_type magnitude_type = {.name = "DoraMagnitude", .forward = magnitude_forward};

static fsdp_module *magnitude_create(fsdp_context *context, fsdp_device *device, int64_t out)
{
    const fsdp_init ones = {FSDP_INIT_ONES, 0.0f, 0.0f};
    fsdp_layer *m = NULL;

    if (fsdp_module_create(context, &magnitude_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(
        &m->base, fsdp_module_add_parameter(&m->base, "weight", &m->weight, device, FSDP_F32, FSDP_SHAPE(out), ones));
}

static fsdp_status add_child(fsdp_module *module, const char *name, fsdp_module *child, fsdp_module **slot)
{
    FSDP_TRY(fsdp_module_add_child(module, name, child));
    *slot = child;
    return FSDP_OK;
}

static fsdp_status add_children(fsdp_module *module, const fsdp_lora_options *options, const fsdp__adapted *item,
                                fsdp__lora *l)
{
    const fsdp_init zeros = {FSDP_INIT_ZEROS, 0.0f, 0.0f};
    const fsdp_linear_options a = {.no_bias = true}, b = {.no_bias = true, .weight_init = &zeros};
    fsdp_context *context = module->context;
    fsdp_device *device = fsdp_tensor_device(l->layer->weight);

    FSDP_TRY(add_child(module, "lora_A", fsdp_linear_create(context, device, item->in, item->rank, &a), &l->beside.a));
    FSDP_TRY(add_child(module, "lora_B", fsdp_linear_create(context, device, item->rank, item->out, &b), &l->beside.b));
    if (options->dora)
        FSDP_TRY(add_child(module, "lora_magnitude_vector", magnitude_create(context, device, item->out),
                           &l->beside.magnitude));
    if (options->dropout > 0)
        FSDP_TRY(
            add_child(module, "lora_dropout",
                      fsdp_dropout_create(context, (float)options->dropout, fsdp__rng_key(options->seed, item->name)),
                      &l->beside.dropout));
    return FSDP_OK;
}

static void free_lora(void *arg, fsdp_module *module)
{
    (void)module;
    fsdp__free(arg);
}

fsdp_status fsdp__lora_attach(fsdp_module *module, const fsdp_lora_options *options, fsdp__adapted *item)
{
    FSDP__FREED fsdp__lora *l = fsdp__calloc(1, sizeof *l);
    fsdp__module_hooks hooks = {.key = &lora_key, .post_forward = add_to_output, .free_arg = free_lora};

    FSDP__TRY_NEW(l);
    l->layer = (fsdp_layer *)module;
    l->beside.add = add_to_product;
    l->transposed = fsdp__layer_form_of(module) == FSDP__LAYER_CONV1D;
    item->in = fsdp_tensor_size(l->layer->weight, l->transposed ? 0 : 1);
    item->out = fsdp_tensor_size(l->layer->weight, l->transposed ? 1 : 0);
    l->beside.scaling = (float)(item->alpha / (options->rslora ? sqrt((double)item->rank) : (double)item->rank));
    if (fsdp__module_hooks_arg(module, &lora_key))
        return FSDP_FAIL(FSDP_STATE, "'%s' has an adapter already", item->name);
    FSDP_TRY(add_children(module, options, item, l));
    item->lora = l;
    hooks.beside = &l->beside;
    hooks.arg = fsdp__take(&l);
    return fsdp__module_add_hooks(module, &hooks);
}
