/* cudnn_graph.c - writes down graphs of cuDNN's operations as descriptors, and makes plans of them. */
#include "backend/cuda/cudnn_graph.h"

#include <string.h>

#define N(name) FSDP__CUDNN_##name

enum {
    ALIGNMENT = 16,
    MOST_CONFIGS = 16 /* of the heuristic's that are tried */
};

/* ---- descriptors ---- */

static fsdp__cudnn_descriptor make(fsdp__cudnn_graph *g, int kind)
{
    fsdp__cudnn_descriptor made = NULL;

    if (g->status == FSDP_OK && g->descriptor_count == FSDP__CUDNN_MOST_DESCRIPTORS)
        g->status = FSDP_FAIL(FSDP_INVALID, "a graph of cuDNN's has more than %d descriptors", g->descriptor_count);
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendCreateDescriptor, kind, &made);
    if (g->status == FSDP_OK)
        g->descriptors[g->descriptor_count++] = made;
    return made;
}

static void set(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d, int attribute, int type, int64_t count,
                const void *values)
{
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendSetAttribute, d, attribute, type, count, values);
}

static void set_int(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d, int attribute, int type, int value)
{
    set(g, d, attribute, type, 1, &value);
}

static void set_descriptor(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d, int attribute,
                           const fsdp__cudnn_descriptor *value)
{
    set(g, d, attribute, N(TYPE_BACKEND_DESCRIPTOR), 1, value);
}

static void set_tensor(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d, int attribute, const fsdp__cudnn_tensor *value)
{
    if (value)
        set_descriptor(g, d, attribute, &value->descriptor);
}

static void finish(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d)
{
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendFinalize, d);
}

static void finish_operation(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor d)
{
    finish(g, d);
    if (g->status == FSDP_OK && g->operation_count == FSDP__CUDNN_MOST_OPERATIONS)
        g->status = FSDP_FAIL(FSDP_INVALID, "a graph of cuDNN's has more than %d operations", g->operation_count);
    if (g->status == FSDP_OK)
        g->operations[g->operation_count++] = d;
}

/* ---- tensors ---- */

static fsdp__cudnn_tensor tensor(fsdp__cudnn_graph *g, int64_t id, int type, const int64_t shape[4],
                                 const int64_t strides[4], int flag)
{
    const int64_t alignment = ALIGNMENT;
    const bool yes = true;
    fsdp__cudnn_tensor t = {.descriptor = make(g, N(BACKEND_TENSOR_DESCRIPTOR))};

    memcpy(t.shape, shape, sizeof t.shape);
    set(g, t.descriptor, N(ATTR_TENSOR_UNIQUE_ID), N(TYPE_INT64), 1, &id);
    set_int(g, t.descriptor, N(ATTR_TENSOR_DATA_TYPE), N(TYPE_DATA_TYPE), type);
    set(g, t.descriptor, N(ATTR_TENSOR_DIMENSIONS), N(TYPE_INT64), 4, shape);
    set(g, t.descriptor, N(ATTR_TENSOR_STRIDES), N(TYPE_INT64), 4, strides);
    set(g, t.descriptor, N(ATTR_TENSOR_BYTE_ALIGNMENT), N(TYPE_INT64), 1, &alignment);
    if (flag)
        set(g, t.descriptor, flag, N(TYPE_BOOLEAN), 1, &yes);
    finish(g, t.descriptor);
    return t;
}

fsdp__cudnn_tensor fsdp__cudnn_stored(fsdp__cudnn_graph *graph, int64_t id, int type, const int64_t shape[4],
                                      const int64_t strides[4])
{
    return tensor(graph, id, type, shape, strides, 0);
}

fsdp__cudnn_tensor fsdp__cudnn_number(fsdp__cudnn_graph *graph, int64_t id, int type)
{
    static const int64_t ones[4] = {1, 1, 1, 1};

    return tensor(graph, id, type, ones, ones, N(ATTR_TENSOR_IS_BY_VALUE));
}

fsdp__cudnn_tensor fsdp__cudnn_virtual(fsdp__cudnn_graph *graph, int type, const int64_t shape[4],
                                       const int64_t strides[4])
{
    return tensor(graph, FSDP__CUDNN_FIRST_VIRTUAL + graph->virtual_count++, type, shape, strides,
                  N(ATTR_TENSOR_IS_VIRTUAL));
}

/* ---- operations ---- */

void fsdp__cudnn_pointwise_to(fsdp__cudnn_graph *graph, int mode, fsdp__cudnn_operands in,
                              const fsdp__cudnn_tensor *out)
{
    bool compares = mode == N(POINTWISE_CMP_GT) || mode == N(POINTWISE_CMP_GE);
    fsdp__cudnn_descriptor how = make(graph, N(BACKEND_POINTWISE_DESCRIPTOR)), operation;

    set_int(graph, how, N(ATTR_POINTWISE_MODE), N(TYPE_POINTWISE_MODE), mode);
    set_int(graph, how, N(ATTR_POINTWISE_MATH_PREC), N(TYPE_DATA_TYPE), compares ? N(DATA_BOOLEAN) : N(DATA_FLOAT));
    if (mode == N(POINTWISE_GEN_INDEX))
        set(graph, how, N(ATTR_POINTWISE_AXIS), N(TYPE_INT64), 1, &in.axis);
    finish(graph, how);
    operation = make(graph, N(BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
    set_descriptor(graph, operation, N(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), &how);
    set_tensor(graph, operation, N(ATTR_OPERATION_POINTWISE_XDESC), in.x);
    set_tensor(graph, operation, N(ATTR_OPERATION_POINTWISE_BDESC), in.b);
    set_tensor(graph, operation, N(ATTR_OPERATION_POINTWISE_TDESC), in.choice);
    set_tensor(graph, operation, N(ATTR_OPERATION_POINTWISE_YDESC), out);
    finish_operation(graph, operation);
}

fsdp__cudnn_tensor fsdp__cudnn_pointwise(fsdp__cudnn_graph *graph, int mode, int type, fsdp__cudnn_operands in)
{
    const int64_t *shape = in.x->shape;
    const int64_t strides[4] = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
    fsdp__cudnn_tensor out = fsdp__cudnn_virtual(graph, type, shape, strides);

    fsdp__cudnn_pointwise_to(graph, mode, in, &out);
    return out;
}

void fsdp__cudnn_matmul(fsdp__cudnn_graph *graph, const fsdp__cudnn_tensor *a, const fsdp__cudnn_tensor *b,
                        const fsdp__cudnn_tensor *out)
{
    fsdp__cudnn_descriptor how = make(graph, N(BACKEND_MATMUL_DESCRIPTOR)), operation;

    set_int(graph, how, N(ATTR_MATMUL_COMP_TYPE), N(TYPE_DATA_TYPE), N(DATA_FLOAT));
    finish(graph, how);
    operation = make(graph, N(BACKEND_OPERATION_MATMUL_DESCRIPTOR));
    set_descriptor(graph, operation, N(ATTR_OPERATION_MATMUL_DESC), &how);
    set_tensor(graph, operation, N(ATTR_OPERATION_MATMUL_ADESC), a);
    set_tensor(graph, operation, N(ATTR_OPERATION_MATMUL_BDESC), b);
    set_tensor(graph, operation, N(ATTR_OPERATION_MATMUL_CDESC), out);
    finish_operation(graph, operation);
}

void fsdp__cudnn_reduce(fsdp__cudnn_graph *graph, int operator, const fsdp__cudnn_tensor * x,
                        const fsdp__cudnn_tensor *out)
{
    fsdp__cudnn_descriptor how = make(graph, N(BACKEND_REDUCTION_DESCRIPTOR)), operation;

    set_int(graph, how, N(ATTR_REDUCTION_COMP_TYPE), N(TYPE_DATA_TYPE), N(DATA_FLOAT));
    set_int(graph, how, N(ATTR_REDUCTION_OPERATOR), N(TYPE_REDUCTION_OPERATOR_TYPE), operator);
    finish(graph, how);
    operation = make(graph, N(BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
    set_descriptor(graph, operation, N(ATTR_OPERATION_REDUCTION_DESC), &how);
    set_tensor(graph, operation, N(ATTR_OPERATION_REDUCTION_XDESC), x);
    set_tensor(graph, operation, N(ATTR_OPERATION_REDUCTION_YDESC), out);
    finish_operation(graph, operation);
}

void fsdp__cudnn_reshape(fsdp__cudnn_graph *graph, const fsdp__cudnn_tensor *x, const fsdp__cudnn_tensor *out)
{
    fsdp__cudnn_descriptor operation = make(graph, N(BACKEND_OPERATION_RESHAPE_DESCRIPTOR));

    set_tensor(graph, operation, N(ATTR_OPERATION_RESHAPE_XDESC), x);
    set_tensor(graph, operation, N(ATTR_OPERATION_RESHAPE_YDESC), out);
    finish_operation(graph, operation);
}

/* ---- plans ---- */

/* Returns a description of the card, if that is not the handle's. */
static fsdp__cudnn_descriptor describe_card(fsdp__cudnn_graph *g, const fsdp__cudnn_target *target)
{
    fsdp__cudnn_descriptor card;

    if (target->handle)
        return NULL;
    card = make(g, N(BACKEND_DEVICEPROP_DESCRIPTOR));
    set(g, card, N(ATTR_DEVICEPROP_JSON_REPRESENTATION), N(TYPE_CHAR), (int64_t)strlen(target->card), target->card);
    finish(g, card);
    return card;
}

static fsdp__cudnn_descriptor finish_graph(fsdp__cudnn_graph *g, const fsdp__cudnn_target *target)
{
    fsdp__cudnn_descriptor all = make(g, N(BACKEND_OPERATIONGRAPH_DESCRIPTOR));

    set(g, all, N(ATTR_OPERATIONGRAPH_OPS), N(TYPE_BACKEND_DESCRIPTOR), g->operation_count, g->operations);
    if (target->handle)
        set(g, all, N(ATTR_OPERATIONGRAPH_HANDLE), N(TYPE_HANDLE), 1, &target->handle);
    finish(g, all);
    return all;
}

/* Asks for engines with their settings, best first. They are descriptors of the graph. Returns how many there are. */
static int ask_heuristic(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor all, const fsdp__cudnn_descriptor *card,
                         fsdp__cudnn_descriptor configs[MOST_CONFIGS])
{
    fsdp__cudnn_descriptor heuristic = make(g, N(BACKEND_ENGINEHEUR_DESCRIPTOR));
    int64_t count = 0;

    set_descriptor(g, heuristic, N(ATTR_ENGINEHEUR_OPERATION_GRAPH), &all);
    set_int(g, heuristic, N(ATTR_ENGINEHEUR_MODE), N(TYPE_HEUR_MODE), N(HEUR_MODE_A));
    if (*card)
        set_descriptor(g, heuristic, N(ATTR_ENGINEHEUR_DEVICEPROP), card);
    finish(g, heuristic);
    for (int i = 0; i < MOST_CONFIGS; i++)
        configs[i] = make(g, N(BACKEND_ENGINECFG_DESCRIPTOR));
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendGetAttribute, heuristic, N(ATTR_ENGINEHEUR_RESULTS),
                                     N(TYPE_BACKEND_DESCRIPTOR), MOST_CONFIGS, &count, configs);
    return g->status == FSDP_OK ? (int)count : 0;
}

/* Returns whether an engine's results may depend on time. */
static bool depends_on_time(fsdp__cudnn_graph *g, fsdp__cudnn_descriptor config)
{
    fsdp__cudnn_descriptor engine = make(g, N(BACKEND_ENGINE_DESCRIPTOR));
    int notes[N(NUMERICAL_NOTE_TYPE_COUNT)];
    int64_t count = 0;

    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendGetAttribute, config, N(ATTR_ENGINECFG_ENGINE),
                                     N(TYPE_BACKEND_DESCRIPTOR), 1, &count, &engine);
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendGetAttribute, engine, N(ATTR_ENGINE_NUMERICAL_NOTE),
                                     N(TYPE_NUMERICAL_NOTE), N(NUMERICAL_NOTE_TYPE_COUNT), &count, notes);
    for (int64_t i = 0; g->status == FSDP_OK && i < count; i++)
        if (notes[i] == N(NUMERICAL_NOTE_NONDETERMINISTIC))
            return true;
    return false;
}

/* Builds what an engine would run. `*refused`: cuDNN could not, and another engine may. */
static void build_plan(fsdp__cudnn_graph *g, const fsdp__cudnn_target *target, const fsdp__cudnn_descriptor *card,
                       fsdp__cudnn_descriptor config, bool *refused)
{
    fsdp__cudnn_descriptor plan = make(g, N(BACKEND_EXECUTION_PLAN_DESCRIPTOR));

    set_descriptor(g, plan, N(ATTR_EXECUTION_PLAN_ENGINE_CONFIG), &config);
    if (*card)
        set_descriptor(g, plan, N(ATTR_EXECUTION_PLAN_DEVICEPROP), card);
    else
        set(g, plan, N(ATTR_EXECUTION_PLAN_HANDLE), N(TYPE_HANDLE), 1, &target->handle);
    if (g->status != FSDP_OK)
        return;
    finish(g, plan);
    *refused = g->status == FSDP_UNSUPPORTED;
    if (g->status == FSDP_OK)
        g->status = FSDP__CUDNN_CALL(g->cudnn, BackendGetAttribute, plan, N(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE),
                                     N(TYPE_INT64), 1, NULL, &g->workspace_bytes);
    if (g->status == FSDP_OK)
        g->plan = plan;
}

fsdp_status fsdp__cudnn_make_plan(fsdp__cudnn_graph *graph, const fsdp__cudnn_target *target, bool repeatable)
{
    fsdp__cudnn_descriptor all = finish_graph(graph, target), card = describe_card(graph, target);
    fsdp__cudnn_descriptor configs[MOST_CONFIGS];
    int count = ask_heuristic(graph, all, &card, configs);

    FSDP_TRY(graph->status);
    for (int i = 0; i < count && !graph->plan; i++) {
        bool refused = false;

        graph->status = FSDP_OK; /* of the engine before */
        if (!repeatable || !depends_on_time(graph, configs[i]))
            build_plan(graph, target, &card, configs[i], &refused);
        if (graph->status != FSDP_OK && !refused)
            return graph->status;
    }
    if (!graph->plan && graph->status == FSDP_OK)
        graph->status = FSDP_FAIL(FSDP_UNSUPPORTED, "cuDNN has no %sengine for it", count > 0 ? "deterministic " : "");
    return graph->status;
}

fsdp_status fsdp__cudnn_run_plan(const fsdp__cudnn_graph *graph, void *handle, int count, const int64_t *ids,
                                 void *const *pointers, void *workspace)
{
    const fsdp__cudnn *cudnn = graph->cudnn;
    fsdp__cudnn_descriptor pack = NULL;
    fsdp_status status;

    FSDP_TRY(FSDP__CUDNN_CALL(cudnn, BackendCreateDescriptor, N(BACKEND_VARIANT_PACK_DESCRIPTOR), &pack));
    FSDP_TRY_GOTO(
        status,
        FSDP__CUDNN_CALL(cudnn, BackendSetAttribute, pack, N(ATTR_VARIANT_PACK_UNIQUE_IDS), N(TYPE_INT64), count, ids),
        out);
    FSDP_TRY_GOTO(status,
                  FSDP__CUDNN_CALL(cudnn, BackendSetAttribute, pack, N(ATTR_VARIANT_PACK_DATA_POINTERS),
                                   N(TYPE_VOID_PTR), count, pointers),
                  out);
    FSDP_TRY_GOTO(status,
                  FSDP__CUDNN_CALL(cudnn, BackendSetAttribute, pack, N(ATTR_VARIANT_PACK_WORKSPACE), N(TYPE_VOID_PTR),
                                   1, &workspace),
                  out);
    FSDP_TRY_GOTO(status, FSDP__CUDNN_CALL(cudnn, BackendFinalize, pack), out);
    status = FSDP__CUDNN_CALL(cudnn, BackendExecute, handle, graph->plan, pack);
out:
    (void)cudnn->BackendDestroyDescriptor(pack);
    return status;
}

void fsdp__cudnn_graph_clear(fsdp__cudnn_graph *graph)
{
    while (graph->descriptor_count > 0)
        (void)graph->cudnn->BackendDestroyDescriptor(graph->descriptors[--graph->descriptor_count]);
    *graph = (fsdp__cudnn_graph){.cudnn = graph->cudnn};
}
