/* native_conv.c - a convolution as a primitive of oneDNN, versions 2 and 3. */
#include "backend/cpu/native_conv.h"

#include <dnnl.h>

#include "base/alloc.h"

struct fsdp__native_conv {
    fsdp__conv_pass pass;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t forward, plan; /* `forward` only if it is not the plan itself: the hint for a gradient's */
    dnnl_primitive_t primitive;
    dnnl_primitive_t pack[FSDP__CONV_OPERANDS], unpack[FSDP__CONV_OPERANDS]; /* NULL: not needed */
    dnnl_memory_desc_t plain[FSDP__CONV_OPERANDS], any[FSDP__CONV_OPERANDS], bias;
    int described;
};

#define DNNL_TRY(expression)             \
    do {                                 \
        int status_ = (int)(expression); \
        if (status_ != 0)                \
            return status_;              \
    } while (0)

/* ---- what the two versions call differently ---- */

typedef struct geometry {
    dnnl_dims_t stride, dilation, padding;
} geometry;

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t description;

static description described(const dnnl_memory_desc_t *d)
{
    return *d;
}

static int describe(dnnl_memory_desc_t *out, int ndim, const dnnl_dims_t dims, const dnnl_dims_t strides)
{
    return strides ? (int)dnnl_memory_desc_create_with_strides(out, ndim, dims, dnnl_f32, strides)
                   : (int)dnnl_memory_desc_create_with_tag(out, ndim, dims, dnnl_f32, dnnl_format_tag_any);
}

static void forget(dnnl_memory_desc_t *d)
{
    if (*d)
        (void)dnnl_memory_desc_destroy(*d);
}

static int plan_forward(fsdp__native_conv *c, const geometry *g, bool bias, dnnl_primitive_desc_t *out)
{
    return (int)dnnl_convolution_forward_primitive_desc_create(
        out, c->engine, dnnl_forward_training, dnnl_convolution_direct, c->any[FSDP__CONV_X], c->any[FSDP__CONV_W],
        bias ? c->bias : NULL, c->any[FSDP__CONV_Y], g->stride, g->dilation, g->padding, g->padding, c->attributes);
}

static int plan_input(fsdp__native_conv *c, const geometry *g)
{
    return (int)dnnl_convolution_backward_data_primitive_desc_create(
        &c->plan, c->engine, dnnl_convolution_direct, c->any[FSDP__CONV_X], c->any[FSDP__CONV_W], c->any[FSDP__CONV_Y],
        g->stride, g->dilation, g->padding, g->padding, c->forward, c->attributes);
}

static int plan_weight(fsdp__native_conv *c, const geometry *g)
{
    return (int)dnnl_convolution_backward_weights_primitive_desc_create(
        &c->plan, c->engine, dnnl_convolution_direct, c->any[FSDP__CONV_X], c->any[FSDP__CONV_W], NULL,
        c->any[FSDP__CONV_Y], g->stride, g->dilation, g->padding, g->padding, c->forward, c->attributes);
}
#else
typedef const dnnl_memory_desc_t *description;

static description described(const dnnl_memory_desc_t *d)
{
    return d;
}

static int describe(dnnl_memory_desc_t *out, int ndim, const dnnl_dims_t dims, const dnnl_dims_t strides)
{
    return strides ? (int)dnnl_memory_desc_init_by_strides(out, ndim, dims, dnnl_f32, strides)
                   : (int)dnnl_memory_desc_init_by_tag(out, ndim, dims, dnnl_f32, dnnl_format_tag_any);
}

static void forget(dnnl_memory_desc_t *d)
{
    (void)d;
}

static int plan_of(fsdp__native_conv *c, const dnnl_convolution_desc_t *operation, dnnl_primitive_desc_t *out)
{
    return (int)dnnl_primitive_desc_create(out, operation, c->attributes, c->engine, c->forward);
}

static int plan_forward(fsdp__native_conv *c, const geometry *g, bool bias, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t operation;

    DNNL_TRY(dnnl_dilated_convolution_forward_desc_init(
        &operation, dnnl_forward_training, dnnl_convolution_direct, &c->any[FSDP__CONV_X], &c->any[FSDP__CONV_W],
        bias ? &c->bias : NULL, &c->any[FSDP__CONV_Y], g->stride, g->dilation, g->padding, g->padding));
    return plan_of(c, &operation, out);
}

static int plan_input(fsdp__native_conv *c, const geometry *g)
{
    dnnl_convolution_desc_t operation;

    DNNL_TRY(dnnl_dilated_convolution_backward_data_desc_init(
        &operation, dnnl_convolution_direct, &c->any[FSDP__CONV_X], &c->any[FSDP__CONV_W], &c->any[FSDP__CONV_Y],
        g->stride, g->dilation, g->padding, g->padding));
    return plan_of(c, &operation, &c->plan);
}

static int plan_weight(fsdp__native_conv *c, const geometry *g)
{
    dnnl_convolution_desc_t operation;

    DNNL_TRY(dnnl_dilated_convolution_backward_weights_desc_init(
        &operation, dnnl_convolution_direct, &c->any[FSDP__CONV_X], &c->any[FSDP__CONV_W], NULL, &c->any[FSDP__CONV_Y],
        g->stride, g->dilation, g->padding, g->padding));
    return plan_of(c, &operation, &c->plan);
}
#endif

/* ---- making it ---- */

/* Returns the layout that oneDNN has chosen for an operand. */
static description chosen(const fsdp__native_conv *c, fsdp__conv_operand operand)
{
    static const dnnl_query_t gradients[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md,
                                             dnnl_query_diff_dst_md};
    static const dnnl_query_t values[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md};
    bool gradient = (c->pass == FSDP__CONV_INPUT && operand != FSDP__CONV_W) ||
                    (c->pass == FSDP__CONV_WEIGHT && operand != FSDP__CONV_X);

    return dnnl_primitive_desc_query_md(c->plan, gradient ? gradients[operand] : values[operand], 0);
}

static int describe_operands(fsdp__native_conv *c, const fsdp__conv_part *part)
{
    const fsdp__conv2d_sizes *s = &part->sizes;
    int64_t x_plane = s->in_height * s->in_width, y_plane = s->out_height * s->out_width;
    int64_t in = s->in / s->groups, out = s->out / s->groups, kernel = s->kernel_height * s->kernel_width;
    const dnnl_dims_t dims[] = {{s->batch, s->in, s->in_height, s->in_width},
                                {s->groups, out, in, s->kernel_height, s->kernel_width},
                                {s->batch, s->out, s->out_height, s->out_width}};
    const dnnl_dims_t strides[] = {{part->x_image, x_plane, s->in_width, 1},
                                   {out * part->weight, part->weight, kernel, s->kernel_width, 1},
                                   {part->y_image, y_plane, s->out_width, 1}};

    for (; c->described < FSDP__CONV_OPERANDS; c->described++) {
        int ndim = c->described == FSDP__CONV_W ? 5 : 4;

        DNNL_TRY(describe(&c->plain[c->described], ndim, dims[c->described], strides[c->described]));
        DNNL_TRY(describe(&c->any[c->described], ndim, dims[c->described], NULL));
    }
    return describe(&c->bias, 1, (dnnl_dims_t){s->out}, (dnnl_dims_t){1});
}

static int plan(fsdp__native_conv *c, const fsdp__conv_part *part)
{
    const fsdp__conv2d_sizes *s = &part->sizes;
    const geometry g = {.stride = {s->stride[0], s->stride[1]},
                        .dilation = {s->dilation[0] - 1, s->dilation[1] - 1},
                        .padding = {s->padding[0], s->padding[1]}};

    if (c->pass == FSDP__CONV_FORWARD)
        return plan_forward(c, &g, part->bias, &c->plan);
    DNNL_TRY(plan_forward(c, &g, false, &c->forward));
    return c->pass == FSDP__CONV_INPUT ? plan_input(c, &g) : plan_weight(c, &g);
}

static int make_reorder(fsdp__native_conv *c, description from, description to, dnnl_primitive_t *out)
{
    dnnl_primitive_desc_t reorder = NULL;
    int status = (int)dnnl_reorder_primitive_desc_create(&reorder, from, c->engine, to, c->engine, c->attributes);

    if (status == 0)
        status = (int)dnnl_primitive_create(out, reorder);
    if (reorder)
        (void)dnnl_primitive_desc_destroy(reorder);
    return status;
}

static int make_reorders(fsdp__native_conv *c)
{
    static const fsdp__conv_operand results[] = {FSDP__CONV_Y, FSDP__CONV_X, FSDP__CONV_W}; /* of each pass */

    for (int i = 0; i < FSDP__CONV_OPERANDS; i++) {
        description packed = chosen(c, (fsdp__conv_operand)i), plain = described(&c->plain[i]);

        if (dnnl_memory_desc_equal(packed, plain))
            continue;
        if (results[c->pass] == (fsdp__conv_operand)i)
            DNNL_TRY(make_reorder(c, packed, plain, &c->unpack[i]));
        else
            DNNL_TRY(make_reorder(c, plain, packed, &c->pack[i]));
    }
    return 0;
}

static int prepare(fsdp__native_conv *c, const fsdp__conv_part *part)
{
    DNNL_TRY(dnnl_engine_create(&c->engine, dnnl_cpu, 0));
    DNNL_TRY(dnnl_primitive_attr_create(&c->attributes));
    /* The caller provides scratch, so that it is counted, and belongs to the caller's thread. */
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(c->attributes, dnnl_scratchpad_mode_user));
    DNNL_TRY(describe_operands(c, part));
    DNNL_TRY(plan(c, part));
    DNNL_TRY(dnnl_primitive_create(&c->primitive, c->plan));
    return make_reorders(c);
}

int fsdp__native_conv_create(const fsdp__conv_part *part, fsdp__native_conv **out)
{
    fsdp__native_conv *c = fsdp__calloc(1, sizeof *c);
    int status;

    *out = NULL;
    if (!c)
        return dnnl_out_of_memory;
    c->pass = part->pass;
    status = prepare(c, part);
    if (status != 0)
        fsdp__native_conv_free(c);
    else
        *out = c;
    return status;
}

void fsdp__native_conv_free(fsdp__native_conv *c)
{
    if (!c)
        return;
    for (int i = 0; i < FSDP__CONV_OPERANDS; i++) {
        if (c->pack[i])
            (void)dnnl_primitive_destroy(c->pack[i]);
        if (c->unpack[i])
            (void)dnnl_primitive_destroy(c->unpack[i]);
        forget(&c->plain[i]);
        forget(&c->any[i]);
    }
    forget(&c->bias);
    if (c->primitive)
        (void)dnnl_primitive_destroy(c->primitive);
    if (c->plan)
        (void)dnnl_primitive_desc_destroy(c->plan);
    if (c->forward)
        (void)dnnl_primitive_desc_destroy(c->forward);
    if (c->attributes)
        (void)dnnl_primitive_attr_destroy(c->attributes);
    if (c->engine)
        (void)dnnl_engine_destroy(c->engine);
    fsdp__free(c);
}

size_t fsdp__native_conv_packed_bytes(const fsdp__native_conv *c, fsdp__conv_operand operand)
{
    return c->pack[operand] || c->unpack[operand] ? dnnl_memory_desc_get_size(chosen(c, operand)) : 0;
}

static description scratchpad(const fsdp__native_conv *c)
{
    return dnnl_primitive_desc_query_md(c->plan, dnnl_query_scratchpad_md, 0);
}

size_t fsdp__native_conv_scratch_bytes(const fsdp__native_conv *c)
{
    return dnnl_memory_desc_get_size(scratchpad(c));
}

bool fsdp__native_conv_is_memory(int status)
{
    return status == (int)dnnl_out_of_memory;
}

/* ---- running it ---- */

typedef struct argument {
    int name;
    description description;
    const void *data;
} argument;

enum {
    MOST_ARGUMENTS = 5
};

static int execute(const fsdp__native_conv *c, dnnl_primitive_t primitive, const argument *arguments, int count)
{
    dnnl_exec_arg_t args[MOST_ARGUMENTS];
    dnnl_stream_t stream = NULL;
    int made = 0, status = (int)dnnl_stream_create(&stream, c->engine, dnnl_stream_default_flags);

    for (; status == 0 && made < count; made += status == 0) {
        args[made].arg = arguments[made].name;
        status = (int)dnnl_memory_create(&args[made].memory, arguments[made].description, c->engine,
                                         (void *)(uintptr_t)arguments[made].data);
    }
    if (status == 0)
        status = (int)dnnl_primitive_execute(primitive, stream, count, args);
    if (status == 0)
        status = (int)dnnl_stream_wait(stream);
    while (made > 0)
        (void)dnnl_memory_destroy(args[--made].memory);
    if (stream)
        (void)dnnl_stream_destroy(stream);
    return status;
}

int fsdp__native_conv_pack(const fsdp__native_conv *c, fsdp__conv_operand operand, const float *plain, float *packed)
{
    const argument arguments[] = {{DNNL_ARG_FROM, described(&c->plain[operand]), plain},
                                  {DNNL_ARG_TO, chosen(c, operand), packed}};

    return execute(c, c->pack[operand], arguments, 2);
}

int fsdp__native_conv_unpack(const fsdp__native_conv *c, fsdp__conv_operand operand, const float *packed, float *plain)
{
    const argument arguments[] = {{DNNL_ARG_FROM, chosen(c, operand), packed},
                                  {DNNL_ARG_TO, described(&c->plain[operand]), plain}};

    return execute(c, c->unpack[operand], arguments, 2);
}

int fsdp__native_conv_run(const fsdp__native_conv *c, float *const operands[FSDP__CONV_OPERANDS], const float *bias,
                          void *scratch)
{
    static const int names[][FSDP__CONV_OPERANDS] = {
        [FSDP__CONV_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [FSDP__CONV_INPUT] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [FSDP__CONV_WEIGHT] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    argument arguments[MOST_ARGUMENTS];
    int count = 0;

    for (; count < FSDP__CONV_OPERANDS; count++)
        arguments[count] = (argument){names[c->pass][count], chosen(c, (fsdp__conv_operand)count), operands[count]};
    arguments[count++] = (argument){DNNL_ARG_SCRATCHPAD, scratchpad(c), scratch};
    if (bias)
        arguments[count++] = (argument){DNNL_ARG_BIAS, described(&c->bias), bias};
    return execute(c, c->primitive, arguments, count);
}
