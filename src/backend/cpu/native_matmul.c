/* native_matmul.c - the matrix product as a primitive of oneDNN, versions 2 and 3. */
#include "backend/cpu/native_matmul.h"

#include <dnnl.h>

bool fsdp__has_native_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
}

/* ---- what the two versions call differently ---- */

/* Describes a matrix (rows, cols): element (i,j) lies at i * row + j * col. */
typedef struct shape {
    int64_t rows, cols, row, col;
    fsdp_dtype dtype;
} shape;

static dnnl_data_type_t type_of(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? dnnl_f32 : dnnl_bf16;
}

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t description;

static bool describe(const shape *s, description *out)
{
    return dnnl_memory_desc_create_with_strides(out, 2, (dnnl_dims_t){s->rows, s->cols}, type_of(s->dtype),
                                                (dnnl_dims_t){s->row, s->col}) == dnnl_success;
}

static void forget(description *d)
{
    (void)dnnl_memory_desc_destroy(*d);
}

static const_dnnl_memory_desc_t described(const description *d)
{
    return *d;
}

static bool plan(dnnl_engine_t engine, const description *a, const description *b, const description *bias,
                 const description *c, dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, bias ? *bias : NULL, *c, attributes) == dnnl_success;
}

static bool add_sum(dnnl_post_ops_t after)
{
    return dnnl_post_ops_append_sum(after, 1.0f, 0, dnnl_data_type_undef) == dnnl_success;
}
#else
typedef dnnl_memory_desc_t description;

static bool describe(const shape *s, description *out)
{
    return dnnl_memory_desc_init_by_strides(out, 2, (dnnl_dims_t){s->rows, s->cols}, type_of(s->dtype),
                                            (dnnl_dims_t){s->row, s->col}) == dnnl_success;
}

static void forget(description *d)
{
    (void)d;
}

static const dnnl_memory_desc_t *described(const description *d)
{
    return d;
}

static bool plan(dnnl_engine_t engine, const description *a, const description *b, const description *bias,
                 const description *c, dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    dnnl_matmul_desc_t operation;

    return dnnl_matmul_desc_init(&operation, a, b, bias, c) == dnnl_success &&
           dnnl_primitive_desc_create(out, &operation, attributes, engine, NULL) == dnnl_success;
}

static bool add_sum(dnnl_post_ops_t after)
{
    return dnnl_post_ops_append_sum(after, 1.0f) == dnnl_success;
}
#endif

/* ---- the product ---- */

enum {
    A,
    B,
    C,
    BIAS,
    OPERANDS
};

typedef struct product {
    dnnl_engine_t engine;
    description descriptions[OPERANDS];
    int described;
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t after;
    dnnl_primitive_desc_t plan;
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[OPERANDS];
} product;

static bool takes(const fsdp__matmul_args *k)
{
    fsdp_dtype bias = k->bias ? k->bias_dtype : FSDP_F32;

    return k->batch == 1 && k->alpha == 1.0f && k->m > 0 && k->n > 0 && k->k > 0 && k->a_dtype != FSDP_F16 &&
           k->b_dtype != FSDP_F16 && k->c_dtype != FSDP_F16 && bias != FSDP_F16;
}

/* Returns false if oneDNN has no code for such a product. The library keeps the code that it makes, so that a shape is
 * quick the second time. */
static bool prepare(const fsdp__matmul_args *k, product *p)
{
    const shape shapes[] = {
        [A] = {k->m, k->k, k->a_row, k->a_col, k->a_dtype},
        [B] = {k->k, k->n, k->b_row, k->b_col, k->b_dtype},
        [C] = {k->m, k->n, k->c_row, 1, k->c_dtype},
        [BIAS] = {1, k->n, k->n, 1, k->bias_dtype},
    };
    int operands = k->bias ? OPERANDS : BIAS;

    for (; p->described < operands; p->described++)
        if (!describe(&shapes[p->described], &p->descriptions[p->described]))
            return false;
    if (dnnl_engine_create(&p->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_primitive_attr_create(&p->attributes) != dnnl_success || dnnl_post_ops_create(&p->after) != dnnl_success)
        return false;
    if (k->accumulate &&
        (!add_sum(p->after) || dnnl_primitive_attr_set_post_ops(p->attributes, p->after) != dnnl_success))
        return false;
    return plan(p->engine, &p->descriptions[A], &p->descriptions[B], k->bias ? &p->descriptions[BIAS] : NULL,
                &p->descriptions[C], p->attributes, &p->plan) &&
           dnnl_primitive_create(&p->primitive, p->plan) == dnnl_success;
}

static dnnl_status_t execute(const fsdp__matmul_args *k, product *p)
{
    static const int names[] = {[A] = DNNL_ARG_SRC, [B] = DNNL_ARG_WEIGHTS, [C] = DNNL_ARG_DST, [BIAS] = DNNL_ARG_BIAS};
    const void *data[] = {[A] = k->a, [B] = k->b, [C] = k->c, [BIAS] = k->bias};
    dnnl_status_t status = dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags);

    for (int i = 0; status == dnnl_success && i < p->described; i++) {
        p->args[i].arg = names[i];
        status = dnnl_memory_create(&p->args[i].memory, described(&p->descriptions[i]), p->engine,
                                    (void *)(uintptr_t)data[i]);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, p->stream, p->described, p->args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(p->stream);
    return status;
}

static void release(product *p)
{
    for (int i = 0; i < p->described; i++) {
        if (p->args[i].memory)
            (void)dnnl_memory_destroy(p->args[i].memory);
        forget(&p->descriptions[i]);
    }
    if (p->stream)
        (void)dnnl_stream_destroy(p->stream);
    if (p->primitive)
        (void)dnnl_primitive_destroy(p->primitive);
    if (p->plan)
        (void)dnnl_primitive_desc_destroy(p->plan);
    if (p->after)
        (void)dnnl_post_ops_destroy(p->after);
    if (p->attributes)
        (void)dnnl_primitive_attr_destroy(p->attributes);
    if (p->engine)
        (void)dnnl_engine_destroy(p->engine);
}

fsdp_status fsdp__native_matmul(const fsdp__matmul_args *k, bool *done)
{
    product p = {0};
    dnnl_status_t status = dnnl_success;

    *done = takes(k) && prepare(k, &p);
    if (*done)
        status = execute(k, &p);
    release(&p);
    if (status == dnnl_success)
        return FSDP_OK;
    return FSDP_FAIL(status == dnnl_out_of_memory ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED,
                     "oneDNN's matmul failed with status %d: (%lld,%lld) x (%lld,%lld)", (int)status, (long long)k->m,
                     (long long)k->k, (long long)k->k, (long long)k->n);
}
