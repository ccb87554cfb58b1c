/* channel_norm.c - BatchNorm1d, BatchNorm2d, GroupNorm. */
#include "nn/layers.h"

#include "base/text.h"
#include "fsdp/layers.h"

/* Parameters are NULL without affine. */
typedef struct channel_norm {
    fsdp_layer layer;
    int64_t channels, groups;
    bool affine;
} channel_norm;

static fsdp_tensor *or_none(fsdp_tensor *parameter)
{
    return parameter ? parameter : FSDP_NO_BIAS;
}

static fsdp_status add_affine(channel_norm *m, fsdp_device *device)
{
    const fsdp_init ones = {FSDP_INIT_ONES, 0.0f, 0.0f}, zeros = {FSDP_INIT_ZEROS, 0.0f, 0.0f};

    if (m->channels < 1)
        return FSDP_FAIL(FSDP_INVALID, "%s: %lld channels: at least 1 is required", m->layer.base.type->name,
                         (long long)m->channels);
    if (!m->affine)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32,
                                       FSDP_SHAPE(m->channels), ones));
    return fsdp_module_add_parameter(&m->layer.base, "bias", &m->layer.bias, device, FSDP_F32, FSDP_SHAPE(m->channels),
                                     zeros);
}

static const char *truth(bool value)
{
    return value ? "True" : "False";
}

/* ---- batch norm ---- */

typedef struct batch_norm {
    channel_norm norm;
    fsdp_tensor *running_mean, *running_var, *num_batches_tracked; /* all or none */
    double momentum;
    bool cumulative_average;
    int least_dims, most_dims; /* number of dimensions of an input */
} batch_norm;

static fsdp_tensor *batch_norm_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const batch_norm *m = (const batch_norm *)self;
    const fsdp_batch_norm_options options = {.running_mean = m->running_mean,
                                             .running_var = m->running_var,
                                             .num_batches_tracked = m->num_batches_tracked,
                                             .training = self->training || !m->running_mean,
                                             .cumulative_average = m->cumulative_average,
                                             .momentum = m->momentum,
                                             .eps = m->norm.layer.eps};
    int dims = fsdp_tensor_ndim(inputs[0]);

    (void)count;
    if (dims < m->least_dims || dims > m->most_dims) {
        FSDP_FAIL(FSDP_INVALID, "an input of %d dimensions: it takes %s", dims,
                  m->most_dims == 4 ? "(N,C,H,W)" : "(N,C) or (N,C,L)");
        return NULL;
    }
    return fsdp_batch_norm(inputs[0], or_none(m->norm.layer.weight), or_none(m->norm.layer.bias), &options);
}

static void batch_norm_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const batch_norm *m = (const batch_norm *)self;
    char eps[32], momentum[32];

    snprintf(text, bytes, "%lld, eps=%s, momentum=%s, affine=%s, bias=%s, track_running_stats=%s",
             (long long)m->norm.channels, fsdp__float_text(m->norm.layer.eps, eps),
             m->cumulative_average ? "None" : fsdp__float_text((float)m->momentum, momentum), truth(m->norm.affine),
             truth(m->norm.affine), truth(m->running_mean != NULL));
}

static const fsdp_module_type batch_norm1d_type = {
    .name = "BatchNorm1d", .forward = batch_norm_forward, .describe = batch_norm_describe};
static const fsdp_module_type batch_norm2d_type = {
    .name = "BatchNorm2d", .forward = batch_norm_forward, .describe = batch_norm_describe};

static fsdp_status fill_ones(fsdp_module *module, fsdp_tensor *buffer)
{
    (void)module;
    return fsdp_tensor_fill_(buffer, 1.0);
}

static fsdp_status fill_zeros(fsdp_module *module, fsdp_tensor *buffer)
{
    (void)module;
    return fsdp_tensor_fill_(buffer, 0.0);
}

static fsdp_status add_statistic(batch_norm *m, const char *name, fsdp_tensor **slot, fsdp_device *device, bool row,
                                 fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer))
{
    FSDP_TRY(fsdp_tensor_create(device, row ? FSDP_F32 : FSDP_I64, row ? 1 : 0, &m->norm.channels,
                                FSDP_MEMORY_PARAMETER_SHARD, slot));
    return fsdp__module_add_initial_buffer(&m->norm.layer.base, name, slot, fill);
}

static fsdp_status batch_norm_build(batch_norm *m, fsdp_device *device, bool running)
{
    FSDP_TRY(add_affine(&m->norm, device));
    if (!running)
        return FSDP_OK;
    FSDP_TRY(add_statistic(m, "running_mean", &m->running_mean, device, true, fill_zeros));
    FSDP_TRY(add_statistic(m, "running_var", &m->running_var, device, true, fill_ones));
    return add_statistic(m, "num_batches_tracked", &m->num_batches_tracked, device, false, fill_zeros);
}

static fsdp_module *batch_norm_create(fsdp_context *context, const fsdp_module_type *type, fsdp_device *device,
                                      int64_t channels, const fsdp_batch_norm_layer_options *options)
{
    const fsdp_batch_norm_layer_options o = options ? *options : (fsdp_batch_norm_layer_options){0};
    batch_norm *m = NULL;

    if (fsdp_module_create(context, type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->norm.channels = channels;
    m->norm.affine = !o.no_affine;
    m->norm.layer.eps = o.eps != 0.0f ? o.eps : 1e-5f;
    m->momentum = o.momentum != 0.0 ? o.momentum : 0.1;
    m->cumulative_average = o.cumulative_average;
    m->least_dims = type == &batch_norm2d_type ? 4 : 2;
    m->most_dims = type == &batch_norm2d_type ? 4 : 3;
    return fsdp__module_built(&m->norm.layer.base, batch_norm_build(m, device, !o.no_running_stats));
}

fsdp_module *fsdp_batch_norm1d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                      const fsdp_batch_norm_layer_options *options)
{
    return batch_norm_create(context, &batch_norm1d_type, device, channels, options);
}

fsdp_module *fsdp_batch_norm2d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                      const fsdp_batch_norm_layer_options *options)
{
    return batch_norm_create(context, &batch_norm2d_type, device, channels, options);
}

/* ---- group norm ---- */

static fsdp_tensor *group_norm_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const channel_norm *m = (const channel_norm *)self;

    (void)count;
    return fsdp_group_norm(inputs[0], m->groups, or_none(m->layer.weight), or_none(m->layer.bias), m->layer.eps);
}

static void group_norm_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const channel_norm *m = (const channel_norm *)self;
    char eps[32];

    snprintf(text, bytes, "%lld, %lld, eps=%s, affine=%s, bias=%s", (long long)m->groups, (long long)m->channels,
             fsdp__float_text(m->layer.eps, eps), truth(m->affine), truth(m->affine));
}

static const fsdp_module_type group_norm_type = {
    .name = "GroupNorm", .forward = group_norm_forward, .describe = group_norm_describe};

fsdp_module *fsdp_group_norm_create(fsdp_context *context, fsdp_device *device, int64_t groups, int64_t channels,
                                    float eps, bool no_affine)
{
    channel_norm *m = NULL;

    if (groups < 1 || channels % groups != 0) {
        FSDP_FAIL(FSDP_INVALID, "GroupNorm: %lld channels cannot be divided into %lld groups", (long long)channels,
                  (long long)groups);
        return NULL;
    }
    if (fsdp_module_create(context, &group_norm_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->groups = groups;
    m->channels = channels;
    m->affine = !no_affine;
    m->layer.eps = eps != 0.0f ? eps : 1e-5f;
    return fsdp__module_built(&m->layer.base, add_affine(m, device));
}
