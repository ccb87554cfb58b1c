/* conv2d.c - Conv2d. */
#include "nn/layers.h"

#include <math.h>

#include "fsdp/layers.h"

/* Sizes are those of the unsharded weight, since the field may hold a shard. */
typedef struct conv2d {
    fsdp_layer layer;
    int64_t in, out, kernel[2];
    fsdp_conv2d_options options; /* zeros replaced by their defaults */
    bool has_bias;
} conv2d;

static fsdp_tensor *conv2d_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const conv2d *m = (const conv2d *)self;

    (void)count;
    return fsdp_conv2d(inputs[0], m->layer.weight, m->has_bias ? m->layer.bias : FSDP_NO_BIAS, &m->options);
}

static void conv2d_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const conv2d *m = (const conv2d *)self;
    const fsdp_conv2d_options *o = &m->options;
    int at = snprintf(text, bytes, "%lld, %lld, kernel_size=(%lld, %lld), stride=(%lld, %lld)", (long long)m->in,
                      (long long)m->out, (long long)m->kernel[0], (long long)m->kernel[1], (long long)o->stride[0],
                      (long long)o->stride[1]);

    if (o->padding[0] || o->padding[1])
        at += snprintf(text + at, bytes - (size_t)at, ", padding=(%lld, %lld)", (long long)o->padding[0],
                       (long long)o->padding[1]);
    if (o->dilation[0] != 1 || o->dilation[1] != 1)
        at += snprintf(text + at, bytes - (size_t)at, ", dilation=(%lld, %lld)", (long long)o->dilation[0],
                       (long long)o->dilation[1]);
    if (o->groups != 1)
        at += snprintf(text + at, bytes - (size_t)at, ", groups=%lld", (long long)o->groups);
    if (!m->has_bias)
        snprintf(text + at, bytes - (size_t)at, ", bias=False");
}

static const fsdp_module_type conv2d_type = {.name = "Conv2d", .forward = conv2d_forward, .describe = conv2d_describe};

static fsdp_status conv2d_build(conv2d *m, fsdp_device *device)
{
    int64_t in = m->in / m->options.groups;
    float bound = (float)(1.0 / sqrt((double)in * (double)m->kernel[0] * (double)m->kernel[1]));
    const fsdp_init uniform = {FSDP_INIT_UNIFORM, -bound, bound};

    FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32,
                                       FSDP_SHAPE(m->out, in, m->kernel[0], m->kernel[1]), uniform));
    if (m->has_bias)
        FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "bias", &m->layer.bias, device, FSDP_F32, FSDP_SHAPE(m->out),
                                           uniform));
    return FSDP_OK;
}

static fsdp_status check(const conv2d *m)
{
    int64_t groups = m->options.groups;

    if (m->in < 1 || m->out < 1 || m->kernel[0] < 1 || m->kernel[1] < 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "Conv2d: %lld channels to %lld by a kernel of %lld x %lld: all must be at least 1",
                         (long long)m->in, (long long)m->out, (long long)m->kernel[0], (long long)m->kernel[1]);
    if (groups < 1 || m->in % groups != 0 || m->out % groups != 0)
        return FSDP_FAIL(FSDP_INVALID, "Conv2d: %lld channels in and %lld out cannot be divided into %lld groups",
                         (long long)m->in, (long long)m->out, (long long)groups);
    return FSDP_OK;
}

fsdp_module *fsdp_conv2d_create(fsdp_context *context, fsdp_device *device, int64_t in_channels, int64_t out_channels,
                                int64_t kernel_height, int64_t kernel_width, const fsdp_conv2d_layer_options *options)
{
    conv2d *m = NULL;
    fsdp_status status;

    if (fsdp_module_create(context, &conv2d_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->in = in_channels;
    m->out = out_channels;
    m->kernel[0] = kernel_height, m->kernel[1] = kernel_width;
    m->has_bias = !(options && options->no_bias);
    if (options)
        m->options = options->conv;
    m->options.groups += m->options.groups == 0;
    for (int i = 0; i < 2; i++) {
        m->options.stride[i] += m->options.stride[i] == 0;
        m->options.dilation[i] += m->options.dilation[i] == 0;
    }
    status = check(m);
    return fsdp__module_built(&m->layer.base, status == FSDP_OK ? conv2d_build(m, device) : status);
}
