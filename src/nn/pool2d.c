/* pool2d.c - MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, and Flatten, which ends a network of them. */
#include "fsdp/layers.h"

typedef struct pool2d {
    fsdp_module base;
    fsdp_pool2d_options options; /* zeros replaced by defaults; for ADAPTIVE the kernel is the result's size */
} pool2d;

static fsdp_tensor *max_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_max_pool2d(inputs[0], &((const pool2d *)self)->options);
}

static fsdp_tensor *avg_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_avg_pool2d(inputs[0], &((const pool2d *)self)->options);
}

static fsdp_tensor *adaptive_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const pool2d *m = (const pool2d *)self;

    (void)count;
    return fsdp_adaptive_avg_pool2d(inputs[0], m->options.kernel[0], m->options.kernel[1]);
}

/* Returns "3" for a pair of equal numbers, otherwise "(3, 2)". */
static const char *pair_text(const int64_t pair[2], char text[64])
{
    if (pair[0] == pair[1])
        snprintf(text, 64, "%lld", (long long)pair[0]);
    else
        snprintf(text, 64, "(%lld, %lld)", (long long)pair[0], (long long)pair[1]);
    return text;
}

static void pool_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const fsdp_pool2d_options *o = &((const pool2d *)self)->options;
    char kernel[64], stride[64], padding[64], dilation[64];
    int at = snprintf(text, bytes, "kernel_size=%s, stride=%s, padding=%s", pair_text(o->kernel, kernel),
                      pair_text(o->stride, stride), pair_text(o->padding, padding));

    if (self->type->forward == max_forward)
        snprintf(text + at, bytes - (size_t)at, ", dilation=%s, ceil_mode=False", pair_text(o->dilation, dilation));
}

static void adaptive_describe(const fsdp_module *self, char *text, size_t bytes)
{
    char size[64];

    snprintf(text, bytes, "output_size=%s", pair_text(((const pool2d *)self)->options.kernel, size));
}

static const fsdp_module_type max_type = {.name = "MaxPool2d", .forward = max_forward, .describe = pool_describe};
static const fsdp_module_type avg_type = {.name = "AvgPool2d", .forward = avg_forward, .describe = pool_describe};
static const fsdp_module_type adaptive_type = {
    .name = "AdaptiveAvgPool2d", .forward = adaptive_forward, .describe = adaptive_describe};

static fsdp_module *pool_create(fsdp_context *context, const fsdp_module_type *type, const fsdp_pool2d_options *options)
{
    pool2d *m = NULL;

    if (!options || options->kernel[0] < 1 || options->kernel[1] < 1) {
        FSDP_FAIL(FSDP_INVALID, "%s: a kernel of at least 1 x 1 is required", type->name);
        return NULL;
    }
    if (fsdp_module_create(context, type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->options = *options;
    for (int i = 0; i < 2; i++) {
        m->options.stride[i] = options->stride[i] ? options->stride[i] : options->kernel[i];
        m->options.dilation[i] += options->dilation[i] == 0;
    }
    return &m->base;
}

fsdp_module *fsdp_max_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options)
{
    return pool_create(context, &max_type, options);
}

fsdp_module *fsdp_avg_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options)
{
    return pool_create(context, &avg_type, options);
}

fsdp_module *fsdp_adaptive_avg_pool2d_create(fsdp_context *context, int64_t height, int64_t width)
{
    pool2d *m = NULL;

    if (fsdp_module_create(context, &adaptive_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->options.kernel[0] = height, m->options.kernel[1] = width;
    return &m->base;
}

/* ---- Flatten ---- */

typedef struct flatten {
    fsdp_module base;
    int start, end;
} flatten;

static fsdp_tensor *flatten_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const flatten *m = (const flatten *)self;

    (void)count;
    return fsdp_flatten(inputs[0], m->start, m->end);
}

static void flatten_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const flatten *m = (const flatten *)self;

    snprintf(text, bytes, "start_dim=%d, end_dim=%d", m->start, m->end);
}

static const fsdp_module_type flatten_type = {
    .name = "Flatten", .forward = flatten_forward, .describe = flatten_describe};

fsdp_module *fsdp_flatten_create(fsdp_context *context, int start, int end)
{
    flatten *m = NULL;

    if (fsdp_module_create(context, &flatten_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->start = start;
    m->end = end;
    return &m->base;
}
