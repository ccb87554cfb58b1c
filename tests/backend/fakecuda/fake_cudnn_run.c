/* fake_cudnn_run.c - computes a graph of cuDNN's operations as it is written down. Every tensor is an array of floats
 * while that is done, rounded to its type; those in memory are read and written by their strides. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake_cudnn.h"
#include "oracle/oracle.h"

#define N(name) FSDP__CUDNN_##name

enum {
    MOST_TENSORS = 64,
    MOST_OPERATIONS = 48,
    OPERANDS = 4 /* x or a, b, the choice, and the result */
};

typedef struct tensor {
    int64_t id, shape[4], strides[4];
    int type;
    bool is_virtual, by_value;
    char *data;    /* in memory */
    float number;  /* by value */
    float *values; /* contiguous */
} tensor;

typedef struct operation {
    int kind, mode;
    int64_t axis;
    tensor *in[OPERANDS - 1], *out;
} operation;

struct fake_job {
    tensor tensors[MOST_TENSORS];
    operation operations[MOST_OPERATIONS];
    int tensor_count, operation_count;
    void *workspace;
};

/* ---- what is written down ---- */

static const int operand_names[][OPERANDS + 1] = {
    {N(BACKEND_OPERATION_POINTWISE_DESCRIPTOR), N(ATTR_OPERATION_POINTWISE_XDESC), N(ATTR_OPERATION_POINTWISE_BDESC),
     N(ATTR_OPERATION_POINTWISE_TDESC), N(ATTR_OPERATION_POINTWISE_YDESC)},
    {N(BACKEND_OPERATION_MATMUL_DESCRIPTOR), N(ATTR_OPERATION_MATMUL_ADESC), N(ATTR_OPERATION_MATMUL_BDESC), -1,
     N(ATTR_OPERATION_MATMUL_CDESC)},
    {N(BACKEND_OPERATION_REDUCTION_DESCRIPTOR), N(ATTR_OPERATION_REDUCTION_XDESC), -1, -1,
     N(ATTR_OPERATION_REDUCTION_YDESC)},
    {N(BACKEND_OPERATION_RESHAPE_DESCRIPTOR), N(ATTR_OPERATION_RESHAPE_XDESC), -1, -1, N(ATTR_OPERATION_RESHAPE_YDESC)},
};

static const fake_descriptor *operand(const fake_descriptor *op, int i)
{
    for (size_t k = 0; k < sizeof operand_names / sizeof *operand_names; k++)
        if (operand_names[k][0] == op->kind && operand_names[k][i + 1] >= 0)
            return fake_linked(op, operand_names[k][i + 1], 0);
    return NULL;
}

static bool in_memory(const fake_descriptor *t)
{
    return !fake_value(t, N(ATTR_TENSOR_IS_VIRTUAL), 0);
}

/* Returns whether an operation before the n-th has filled a tensor. */
static bool filled(const fake_descriptor *graph, int64_t n, const fake_descriptor *t)
{
    for (int64_t i = 0; i < n; i++)
        if (operand(fake_linked(graph, N(ATTR_OPERATIONGRAPH_OPS), i), OPERANDS - 1) == t)
            return true;
    return false;
}

/* Returns whether all tensors with the id of this one are this one. */
static bool is_the_only_one(const fake_descriptor *graph, const fake_descriptor *t)
{
    int64_t id = fake_value(t, N(ATTR_TENSOR_UNIQUE_ID), 0);
    const fake_descriptor *op, *other;

    for (int64_t i = 0; (op = fake_linked(graph, N(ATTR_OPERATIONGRAPH_OPS), i)); i++)
        for (int k = 0; k < OPERANDS; k++)
            if ((other = operand(op, k)) && other != t && fake_value(other, N(ATTR_TENSOR_UNIQUE_ID), 0) == id)
                return false;
    return true;
}

bool fake_graph_fits(const fake_descriptor *graph)
{
    const fake_descriptor *op, *t;

    for (int64_t i = 0; (op = fake_linked(graph, N(ATTR_OPERATIONGRAPH_OPS), i)); i++)
        for (int k = 0; k < OPERANDS; k++)
            if ((t = operand(op, k)) &&
                (!is_the_only_one(graph, t) || (k < OPERANDS - 1 && !in_memory(t) && !filled(graph, i, t))))
                return false;
    return true;
}

/* ---- jobs ---- */

static int64_t numel(const tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

static const void *pointer_of(const fake_descriptor *pack, int64_t id)
{
    const fake_attribute *ids = fake_attribute_of(pack, N(ATTR_VARIANT_PACK_UNIQUE_IDS));
    const fake_attribute *pointers = fake_attribute_of(pack, N(ATTR_VARIANT_PACK_DATA_POINTERS));

    for (int64_t i = 0; ids && pointers && i < ids->count && i < pointers->count; i++)
        if (((const int64_t *)ids->values)[i] == id)
            return ((void *const *)pointers->values)[i];
    return NULL;
}

static bool set_data(tensor *t, const fake_descriptor *pack)
{
    const void *data = pointer_of(pack, t->id);

    if (t->is_virtual)
        return !data;
    if (!data)
        return false;
    if (t->by_value)
        memcpy(&t->number, data, sizeof t->number);
    t->data = (char *)(uintptr_t)data;
    return t->by_value || (uintptr_t)data % 16 == 0;
}

static tensor *tensor_of(fake_job *job, const fake_descriptor *d, const fake_descriptor *pack, bool *fits)
{
    int64_t id = fake_value(d, N(ATTR_TENSOR_UNIQUE_ID), 0);
    tensor *t = job->tensors;

    while (t < job->tensors + job->tensor_count && t->id != id)
        t++;
    if (t < job->tensors + job->tensor_count)
        return t;
    if (job->tensor_count == MOST_TENSORS)
        return *fits = false, t - 1;
    job->tensor_count++;
    t->id = id;
    t->type = (int)fake_value(d, N(ATTR_TENSOR_DATA_TYPE), 0);
    t->is_virtual = !in_memory(d);
    t->by_value = fake_value(d, N(ATTR_TENSOR_IS_BY_VALUE), 0);
    memcpy(t->shape, fake_attribute_of(d, N(ATTR_TENSOR_DIMENSIONS))->values, sizeof t->shape);
    memcpy(t->strides, fake_attribute_of(d, N(ATTR_TENSOR_STRIDES))->values, sizeof t->strides);
    *fits &= set_data(t, pack);
    return t;
}

static void add_operation(fake_job *job, const fake_descriptor *op, const fake_descriptor *pack, bool *fits)
{
    const fake_descriptor *how = fake_linked(op, N(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), 0), *t;
    const fake_descriptor *reduction = fake_linked(op, N(ATTR_OPERATION_REDUCTION_DESC), 0);
    operation *o = &job->operations[job->operation_count++];

    o->kind = op->kind;
    o->mode = (int)(how         ? fake_value(how, N(ATTR_POINTWISE_MODE), -1)
                    : reduction ? fake_value(reduction, N(ATTR_REDUCTION_OPERATOR), -1)
                                : 0);
    o->axis = how ? fake_value(how, N(ATTR_POINTWISE_AXIS), 0) : 0;
    for (int k = 0; k < OPERANDS - 1; k++)
        if ((t = operand(op, k)))
            o->in[k] = tensor_of(job, t, pack, fits);
    o->out = tensor_of(job, operand(op, OPERANDS - 1), pack, fits);
}

void fake_job_free(fake_job *job)
{
    for (int i = 0; i < job->tensor_count; i++)
        free(job->tensors[i].values);
    free(job);
}

fake_job *fake_job_of(const fake_descriptor *graph, const fake_descriptor *pack)
{
    const fake_attribute *workspace = fake_attribute_of(pack, N(ATTR_VARIANT_PACK_WORKSPACE));
    fake_job *job = calloc(1, sizeof *job);
    const fake_descriptor *op;
    bool fits = job && workspace;

    for (int64_t i = 0; fits && (op = fake_linked(graph, N(ATTR_OPERATIONGRAPH_OPS), i)); i++)
        add_operation(job, op, pack, &fits);
    if (fits)
        memcpy(&job->workspace, workspace->values, sizeof job->workspace);
    if (fits && job->workspace)
        return job;
    if (job)
        fake_job_free(job);
    return NULL;
}

/* ---- values ---- */

static fsdp_dtype dtype_of(const tensor *t)
{
    return t->type == N(DATA_BFLOAT16) ? FSDP_BF16 : t->type == N(DATA_HALF) ? FSDP_F16 : FSDP_F32;
}

static int64_t place_in_memory(const tensor *t, int64_t i)
{
    int64_t place = 0;

    for (int d = 3; d >= 0; d--)
        place += i % t->shape[d] * t->strides[d], i /= t->shape[d];
    return place;
}

static float read_one(const tensor *t, int64_t place)
{
    int32_t whole;

    if (t->type != N(DATA_INT32))
        return (float)oracle_get(dtype_of(t), t->data, place);
    memcpy(&whole, t->data + place * (int64_t)sizeof whole, sizeof whole);
    return (float)whole;
}

/* Gives a tensor its array, with what is in memory. */
static void load(tensor *t)
{
    if (t->values)
        return;
    t->values = calloc((size_t)numel(t) + 1, sizeof *t->values);
    for (int64_t i = 0; i < numel(t); i++)
        if (t->by_value)
            t->values[i] = t->number;
        else if (!t->is_virtual)
            t->values[i] = read_one(t, place_in_memory(t, i));
}

/* Rounds to the tensor's type, and writes what lies in memory. */
static void store(tensor *t)
{
    fsdp_dtype dtype = dtype_of(t);
    float rounded[1];

    for (int64_t i = 0; i < numel(t); i++) {
        void *to = t->is_virtual ? (void *)rounded : t->data;
        int64_t place = t->is_virtual ? 0 : place_in_memory(t, i);

        oracle_put(dtype, to, place, (double)t->values[i]);
        t->values[i] = (float)oracle_get(dtype, to, place);
    }
}

/* Returns the element of `t` that meets the i-th of `like`: dimensions of 1 repeat, and so do heads that are fewer. */
static float met(const tensor *t, const tensor *like, int64_t i)
{
    int64_t at[4], place = 0;

    for (int d = 3; d >= 0; d--)
        at[d] = i % like->shape[d] / (like->shape[d] / t->shape[d]), i /= like->shape[d];
    for (int d = 0; d < 4; d++)
        place = place * t->shape[d] + at[d];
    return t->values[place];
}

/* ---- operations ---- */

static float compute(int mode, float x, float b, float choice)
{
    switch (mode) {
    case N(POINTWISE_ADD):
        return x + b;
    case N(POINTWISE_SUB):
        return x - b;
    case N(POINTWISE_MUL):
        return x * b;
    case N(POINTWISE_DIV):
        return x / b;
    case N(POINTWISE_EXP):
        return expf(x);
    case N(POINTWISE_LOG):
        return logf(x);
    case N(POINTWISE_IDENTITY):
        return x;
    case N(POINTWISE_CMP_GT):
        return x > b;
    case N(POINTWISE_CMP_GE):
        return x >= b;
    case N(POINTWISE_BINARY_SELECT):
        return choice != 0.0f ? x : b;
    default:
        return NAN;
    }
}

static void run_pointwise(const operation *o)
{
    for (int64_t i = 0; i < numel(o->out); i++) {
        int64_t after = 1;

        for (int d = 3; d > o->axis; d--)
            after *= o->out->shape[d];
        o->out->values[i] = o->mode == N(POINTWISE_GEN_INDEX)
                                ? (float)(i / after % o->out->shape[o->axis])
                                : compute(o->mode, met(o->in[0], o->out, i), o->in[1] ? met(o->in[1], o->out, i) : 0.0f,
                                          o->in[2] ? met(o->in[2], o->out, i) : 0.0f);
    }
}

/* Sums go to memory on top of what is there, if that is float32: blocks of threads would add to it. */
static void run_matmul(const operation *o)
{
    const tensor *a = o->in[0], *b = o->in[1];
    int64_t rows = a->shape[2], depth = a->shape[3], cols = b->shape[3], heads = o->out->shape[1];
    bool adds = !o->out->is_virtual && o->out->type == N(DATA_FLOAT);

    for (int64_t i = 0; i < numel(o->out); i++) {
        int64_t col = i % cols, row = i / cols % rows, plane = i / cols / rows;
        int64_t b_plane = plane / heads * b->shape[1] + plane % heads / (heads / b->shape[1]);
        const float *x = a->values + (plane * rows + row) * depth, *y = b->values + b_plane * depth * cols + col;
        double sum = adds ? (double)o->out->values[i] : 0.0;

        for (int64_t p = 0; p < depth; p++)
            sum += (double)x[p] * (double)y[p * cols];
        o->out->values[i] = (float)sum;
    }
}

static void run_reduction(const operation *o)
{
    const tensor *x = o->in[0], *y = o->out;
    bool sums = o->mode == N(REDUCE_TENSOR_ADD);

    for (int64_t i = 0; i < numel(y); i++)
        y->values[i] = sums ? 0.0f : -FLT_MAX;
    for (int64_t i = 0; i < numel(x); i++) {
        int64_t at[4], rest = i, place = 0;

        for (int d = 3; d >= 0; d--)
            at[d] = rest % x->shape[d] / (x->shape[d] / y->shape[d]), rest /= x->shape[d];
        for (int d = 0; d < 4; d++)
            place = place * y->shape[d] + at[d];
        y->values[place] = sums ? y->values[place] + x->values[i] : fmaxf(y->values[place], x->values[i]);
    }
}

/* The last two dimensions change places, which is the only view that is asked for. */
static void run_reshape(const operation *o)
{
    const tensor *x = o->in[0], *y = o->out;
    int64_t rows = y->shape[2], cols = y->shape[3];
    bool turned =
        x->shape[2] == cols && x->shape[3] == rows && y->strides[2] == x->strides[3] && y->strides[3] == x->strides[2];

    for (int64_t i = 0; i < numel(y); i++)
        y->values[i] = turned ? x->values[i / (rows * cols) * rows * cols + i % cols * rows + i / cols % rows] : NAN;
}

static void run_operation(const operation *o)
{
    for (int k = 0; k < OPERANDS - 1; k++)
        if (o->in[k])
            load(o->in[k]);
    load(o->out);
    if (o->kind == N(BACKEND_OPERATION_POINTWISE_DESCRIPTOR))
        run_pointwise(o);
    else if (o->kind == N(BACKEND_OPERATION_MATMUL_DESCRIPTOR))
        run_matmul(o);
    else if (o->kind == N(BACKEND_OPERATION_REDUCTION_DESCRIPTOR))
        run_reduction(o);
    else
        run_reshape(o);
    store(o->out);
}

void fake_job_run(const void *argument)
{
    fake_job *job;

    memcpy(&job, argument, sizeof job);
    memset(job->workspace, 0x7f, FAKE_WORKSPACE);
    for (int i = 0; i < job->operation_count; i++)
        run_operation(&job->operations[i]);
    fake_job_free(job);
}
