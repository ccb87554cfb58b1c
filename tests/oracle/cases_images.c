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
