/* cases_images.c - the calls of kernels over images. */
#include "oracle/cases.h"

/* ---- convolutions ---- */

/* oneDNN makes code for every shape, which takes longer than all the rest: of these cases a third is drawn. */
static bool drawn(test_case *c)
{
    return test_long() || between(c, 0, 2) == 0;
}

/* Mostly small: the oracle visits every product. Now and then channels that oneDNN takes in blocks. */
static fsdp__conv2d_sizes conv2d_sizes(test_case *c)
{
    static const int64_t group_counts[] = {1, 1, 1, 2, 3};
    fsdp__conv2d_sizes s = {.batch = between(c, 1, 5),
                            .groups = group_counts[between(c, 0, 4)],
                            .in_height = between(c, 1, 9),
                            .in_width = between(c, 1, 9),
                            .dtype = c->dtype};
    bool wide = between(c, 0, 5) == 0;

    s.in = s.groups * (wide ? 32 : between(c, 1, 4));
    s.out = s.groups * (wide ? 64 : between(c, 1, 5));
    if (wide)
        s.batch = between(c, 1, 2), s.in_height = between(c, 1, 4), s.in_width = 3;
    for (int i = 0; i < 2; i++) {
        s.stride[i] = between(c, 1, 3);
        s.dilation[i] = between(c, 1, 2);
        s.padding[i] = between(c, 0, 3);
    }
    do
        s.kernel_height = between(c, 1, 4);
    while (s.in_height + 2 * s.padding[0] < s.dilation[0] * (s.kernel_height - 1) + 1);
    do
        s.kernel_width = between(c, 1, 4);
    while (s.in_width + 2 * s.padding[1] < s.dilation[1] * (s.kernel_width - 1) + 1);
    s.out_height = (s.in_height + 2 * s.padding[0] - s.dilation[0] * (s.kernel_height - 1) - 1) / s.stride[0] + 1;
    s.out_width = (s.in_width + 2 * s.padding[1] - s.dilation[1] * (s.kernel_width - 1) - 1) / s.stride[1] + 1;
    return s;
}

#define SIZES_TEXT "%ld x %ld x %ld x %ld, %ld channels of %ld x %ld, stride %ld %ld, padding %ld %ld, groups %ld"
#define SIZES_VALUES(s)                                                                                               \
    (long)(s).batch, (long)(s).in, (long)(s).in_height, (long)(s).in_width, (long)(s).out, (long)(s).kernel_height,   \
        (long)(s).kernel_width, (long)(s).stride[0], (long)(s).stride[1], (long)(s).padding[0], (long)(s).padding[1], \
        (long)(s).groups

static int64_t x_numel(const fsdp__conv2d_sizes *s)
{
    return s->batch * s->in * s->in_height * s->in_width;
}

static int64_t y_numel(const fsdp__conv2d_sizes *s)
{
    return s->batch * s->out * s->out_height * s->out_width;
}

static int64_t weight_numel(const fsdp__conv2d_sizes *s)
{
    return s->out * (s->in / s->groups) * s->kernel_height * s->kernel_width;
}

void conv2d_forward_case(test_case *c)
{
    fsdp__conv2d_forward_args a = {.sizes = conv2d_sizes(c)};
    const fsdp__conv2d_sizes *s = &a.sizes;

    if (!drawn(c))
        return;
    a.x = an_input(c, s->dtype, x_numel(s), -2.0, 2.0);
    a.weight = an_input(c, s->dtype, weight_numel(s), -2.0, 2.0);
    a.bias = coin(c) ? an_input(c, s->dtype, s->out, -2.0, 2.0) : NULL;
    a.y = an_output(c, s->dtype, y_numel(s), 1e-6, 1e-6 * (double)(20 + weight_numel(s) / s->out));
    check(c, &a, SIZES_TEXT ", bias %d", SIZES_VALUES(*s), a.bias != NULL);
}

void conv2d_input_case(test_case *c)
{
    fsdp__conv2d_input_args a = {.sizes = conv2d_sizes(c), .accumulate = coin(c)};
    const fsdp__conv2d_sizes *s = &a.sizes;

    if (!drawn(c))
        return;
    a.dy = an_input(c, s->dtype, y_numel(s), -2.0, 2.0);
    a.weight = an_input(c, s->dtype, weight_numel(s), -2.0, 2.0);
    a.dx = an_output(c, s->dtype, x_numel(s), 1e-6, 1e-6 * (double)(20 + weight_numel(s) / (s->in / s->groups)));
    check(c, &a, SIZES_TEXT ", accumulate %d", SIZES_VALUES(*s), a.accumulate);
}

void conv2d_weight_case(test_case *c)
{
    fsdp__conv2d_weight_args a = {.sizes = conv2d_sizes(c), .accumulate = coin(c)};
    const fsdp__conv2d_sizes *s = &a.sizes;

    if (!drawn(c))
        return;
    a.dy = an_input(c, s->dtype, y_numel(s), -2.0, 2.0);
    a.x = an_input(c, s->dtype, x_numel(s), -2.0, 2.0);
    a.dweight = an_output(c, s->dtype, weight_numel(s), 1e-6, 1e-6 * (double)(20 + y_numel(s) / s->out));
    check(c, &a, SIZES_TEXT ", accumulate %d", SIZES_VALUES(*s), a.accumulate);
}

/* ---- pooling ---- */

static fsdp__pool_sizes pool_sizes(test_case *c)
{
    fsdp__pool_sizes s = {
        .planes = a_size(c, 40), .kind = (fsdp__pooling)between(c, 0, 2), .count_padding = coin(c), .dtype = c->dtype};

    for (int i = 0; i < 2; i++) {
        s.in[i] = between(c, 1, 17);
        s.out[i] = between(c, 1, 9);
        if (s.kind == FSDP__POOL_ADAPTIVE)
            continue;
        s.stride[i] = between(c, 1, 4);
        s.dilation[i] = s.kind == FSDP__POOL_MAX ? between(c, 1, 3) : 1;
        do {
            s.kernel[i] = between(c, 1, 5);
            s.padding[i] = between(c, 0, s.kernel[i] / 2);
        } while (s.in[i] + 2 * s.padding[i] < s.dilation[i] * (s.kernel[i] - 1) + 1);
        s.out[i] = (s.in[i] + 2 * s.padding[i] - s.dilation[i] * (s.kernel[i] - 1) - 1) / s.stride[i] + 1;
    }
    return s;
}

#define POOL_TEXT "kind %d of %ld x %ld x %ld, kernel %ld %ld, stride %ld %ld, padding %ld %ld, out %ld %ld"
#define POOL_VALUES(s)                                                                                           \
    (int)(s).kind, (long)(s).planes, (long)(s).in[0], (long)(s).in[1], (long)(s).kernel[0], (long)(s).kernel[1], \
        (long)(s).stride[0], (long)(s).stride[1], (long)(s).padding[0], (long)(s).padding[1], (long)(s).out[0],  \
        (long)(s).out[1]

void pool_forward_case(test_case *c)
{
    fsdp__pool_forward_args a = {.sizes = pool_sizes(c)};
    const fsdp__pool_sizes *s = &a.sizes;
    int64_t results = s->planes * s->out[0] * s->out[1];

    a.x = an_input(c, s->dtype, s->planes * s->in[0] * s->in[1], -2.0, 2.0);
    a.y = an_output(c, s->dtype, results, 1e-6, 2e-6);
    a.index = s->kind == FSDP__POOL_MAX && coin(c) ? an_output(c, FSDP_I32, results, 0.0, 0.0) : NULL;
    check(c, &a, POOL_TEXT, POOL_VALUES(*s));
}

void pool_backward_case(test_case *c)
{
    fsdp__pool_backward_args a = {.sizes = pool_sizes(c), .accumulate = coin(c)};
    const fsdp__pool_sizes *s = &a.sizes;
    int64_t results = s->planes * s->out[0] * s->out[1];

    a.dy = an_input(c, s->dtype, results, -2.0, 2.0);
    if (s->kind == FSDP__POOL_MAX)
        a.index = an_input(c, FSDP_I32, results, -1.0, (double)(s->in[0] * s->in[1] - 1));
    a.dx = an_output(c, s->dtype, s->planes * s->in[0] * s->in[1], 1e-6, 1e-5);
    check(c, &a, POOL_TEXT ", accumulate %d", POOL_VALUES(*s), a.accumulate);
}

/* ---- norms over channels ---- */

/* A set has several elements. */
static fsdp__channel_norm_sizes norm_sizes(test_case *c)
{
    fsdp__channel_norm_sizes s = {.groups = between(c, 0, 3),
                                  .batch = between(c, 2, 9),
                                  .inner = coin(c) ? between(c, 2, 90) : between(c, 2, 9),
                                  .dtype = c->dtype,
                                  .weight_dtype = coin(c) ? FSDP_F32 : c->dtype};

    s.channels = s.groups == 0 ? between(c, 1, 40) : s.groups * between(c, 1, 9);
    if (s.groups == 0 && between(c, 0, 2) == 0)
        s.inner = 1;
    return s;
}

static int64_t sets_of(const fsdp__channel_norm_sizes *s)
{
    return s->groups == 0 ? s->channels : s->batch * s->groups;
}

void channel_norm_forward_case(test_case *c)
{
    fsdp__channel_norm_forward_args a = {.sizes = norm_sizes(c), .eps = 1e-2f, .momentum = real(c, 0.0, 1.0)};
    const fsdp__channel_norm_sizes *s = &a.sizes;
    int64_t numel = s->batch * s->channels * s->inner;

    a.x = an_input(c, s->dtype, numel, -2.0, 5.0);
    a.weight = coin(c) ? an_input(c, s->weight_dtype, s->channels, -2.0, 2.0) : NULL;
    a.bias = coin(c) ? an_input(c, s->weight_dtype, s->channels, -2.0, 2.0) : NULL;
    a.y = an_output(c, s->dtype, numel, 1e-5, 2e-5);
    a.mean = an_output(c, FSDP_F32, sets_of(s), 2e-6, 2e-6);
    a.rstd = an_output(c, FSDP_F32, sets_of(s), 1e-5, 0.0);
    if (s->groups == 0 && between(c, 0, 2)) {
        a.fixed = coin(c);
        a.running_dtype = any_float(c);
        a.running_mean = a_buffer(c, a.running_dtype, s->channels, 0.0, 2.0, !a.fixed, 2e-6, 2e-6);
        a.running_var = a_buffer(c, a.running_dtype, s->channels, 0.5, 2.0, !a.fixed, 4e-6, 4e-6);
        if (!a.fixed && coin(c)) {
            a.cumulative = coin(c);
            a.batches = a_buffer(c, FSDP_I64, 1, 0.0, 40.0, true, 0.0, 0.0);
        }
    }
    check(c, &a, "%ld x %ld x %ld, groups %ld, weight %d, bias %d, running %d, fixed %d, batches %d", (long)s->batch,
          (long)s->channels, (long)s->inner, (long)s->groups, a.weight != NULL, a.bias != NULL, a.running_mean != NULL,
          a.fixed, a.batches != NULL);
}

void channel_norm_backward_case(test_case *c)
{
    fsdp__channel_norm_backward_args a = {
        .sizes = norm_sizes(c), .accumulate = coin(c), .accumulate_weight = coin(c), .accumulate_bias = coin(c)};
    const fsdp__channel_norm_sizes *s = &a.sizes;
    int64_t numel = s->batch * s->channels * s->inner;

    a.fixed = s->groups == 0 && coin(c);
    a.x = an_input(c, s->dtype, numel, -2.0, 3.0);
    a.dy = an_input(c, s->dtype, numel, -2.0, 2.0);
    a.weight = coin(c) ? an_input(c, s->weight_dtype, s->channels, -2.0, 2.0) : NULL;
    a.mean = an_input(c, FSDP_F32, sets_of(s), -0.5, 0.5);
    a.rstd = an_input(c, FSDP_F32, sets_of(s), 0.5, 1.5);
    a.dx = between(c, 0, 5) ? an_output(c, s->dtype, numel, 1e-5, 3e-5) : NULL;
    a.dweight = coin(c) ? an_output(c, s->weight_dtype, s->channels, 4e-6, 1e-4) : NULL;
    a.dbias = coin(c) ? an_output(c, s->weight_dtype, s->channels, 4e-6, 1e-4) : NULL;
    check(c, &a, "%ld x %ld x %ld, groups %ld, weight %d, dx %d, fixed %d", (long)s->batch, (long)s->channels,
          (long)s->inner, (long)s->groups, a.weight != NULL, a.dx != NULL, a.fixed);
}
