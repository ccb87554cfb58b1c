/* fake_cudnn.c - cuDNN's backend API, as far as the plug-in calls it: libcudnn.so.9 beside the tests.
 *
 * A graph is computed as it is written down, one operation after the other, in plain loops on a stream of the runtime
 * (fake_cudnn_run.c): so results show what the graph means. Descriptors hold whatever attributes they are given. What
 * must not be asked for is refused: attributes of descriptors that are finished, others that are not, tensors of one id
 * that differ, pointers that are missing or not aligned. Of two engines the first adds in an order that depends on
 * time, if the graph adds to memory. */
#include "backend/fakecuda/fake_cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"

#define N(name) FSDP__CUDNN_##name
#define EXPORT __attribute__((visibility("default")))

enum {
    BAD_PARAMETER = 2000,
    VERSION = 91900,
    CUDART = 13000
};

#define BEGIN(call)                        \
    do {                                   \
        int begun = fake_use(FAKE_##call); \
                                           \
        if (begun)                         \
            return begun;                  \
        if (fake_is_lost(fake_current()))  \
            return 5000;                   \
    } while (0)

static _Thread_local char last_error[256];

static int refuse(const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return BAD_PARAMETER;
}

/* ---- descriptors ---- */

const fake_attribute *fake_attribute_of(const fake_descriptor *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

int64_t fake_value(const fake_descriptor *d, int name, int64_t otherwise)
{
    const fake_attribute *a = fake_attribute_of(d, name);
    int narrow;
    int64_t wide;

    if (!a)
        return otherwise;
    if (a->bytes == 1)
        return ((const bool *)a->values)[0];
    if (a->bytes == sizeof narrow)
        return memcpy(&narrow, a->values, sizeof narrow), narrow;
    return memcpy(&wide, a->values, sizeof wide), wide;
}

const fake_descriptor *fake_linked(const fake_descriptor *d, int name, int64_t i)
{
    const fake_attribute *a = d ? fake_attribute_of(d, name) : NULL;

    return a && i < a->count ? ((fake_descriptor *const *)a->values)[i] : NULL;
}

static size_t bytes_of(int type)
{
    switch (type) {
    case N(TYPE_INT64):
    case N(TYPE_VOID_PTR):
    case N(TYPE_HANDLE):
    case N(TYPE_BACKEND_DESCRIPTOR):
        return 8;
    case N(TYPE_BOOLEAN):
    case N(TYPE_CHAR):
        return 1;
    default:
        return sizeof(int);
    }
}

static int store(fake_descriptor *d, int name, int type, int64_t count, const void *values)
{
    fake_attribute *a = &d->attributes[d->count];

    if (d->count == FAKE_ATTRIBUTES)
        return refuse("too many attributes");
    *a = (fake_attribute){.name = name, .type = type, .count = count, .bytes = bytes_of(type)};
    a->values = malloc((size_t)count * a->bytes + 1);
    if (!a->values)
        return N(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    memcpy(a->values, values, (size_t)count * a->bytes);
    d->count++;
    return 0;
}

EXPORT int cudnnBackendCreateDescriptor(int kind, void **out);
int cudnnBackendCreateDescriptor(int kind, void **out)
{
    fake_descriptor *d;

    BEGIN(cudnnBackendCreateDescriptor);
    d = calloc(1, sizeof *d);
    if (!d)
        return N(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    d->kind = kind;
    *out = d;
    fake_count_object(1);
    return 0;
}

EXPORT int cudnnBackendDestroyDescriptor(void *descriptor);
int cudnnBackendDestroyDescriptor(void *descriptor)
{
    fake_descriptor *d = descriptor;

    for (int i = 0; i < d->count; i++)
        free(d->attributes[i].values);
    free(d);
    fake_count_object(-1);
    return 0;
}

EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values);
int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values)
{
    fake_descriptor *d = descriptor;

    BEGIN(cudnnBackendSetAttribute);
    if (!d || d->finished || !values || count < 1 || fake_attribute_of(d, name))
        return refuse("an attribute of a descriptor that is finished, or that has it");
    if (type == N(TYPE_BACKEND_DESCRIPTOR))
        for (int64_t i = 0; i < count; i++)
            if (!((fake_descriptor *const *)values)[i] || !((fake_descriptor *const *)values)[i]->finished)
                return refuse("a descriptor that is not finished");
    return store(d, name, type, count, values);
}

/* ---- what is finished ---- */

static int check_tensor(const fake_descriptor *d)
{
    const fake_attribute *shape = fake_attribute_of(d, N(ATTR_TENSOR_DIMENSIONS));
    const fake_attribute *strides = fake_attribute_of(d, N(ATTR_TENSOR_STRIDES));

    if (!shape || !strides || shape->count != 4 || strides->count != 4 ||
        fake_value(d, N(ATTR_TENSOR_UNIQUE_ID), 0) < 1 || fake_value(d, N(ATTR_TENSOR_BYTE_ALIGNMENT), 0) < 16)
        return refuse("a tensor without id, four dimensions, strides and alignment");
    return 0;
}

/* Finds out whether an operation of the graph adds to memory: a float32 tensor that a product fills. */
static bool adds_to_memory(const fake_descriptor *graph)
{
    const fake_descriptor *op;

    for (int64_t i = 0; (op = fake_linked(graph, N(ATTR_OPERATIONGRAPH_OPS), i)); i++)
        if (op->kind == N(BACKEND_OPERATION_MATMUL_DESCRIPTOR)) {
            const fake_descriptor *out = fake_linked(op, N(ATTR_OPERATION_MATMUL_CDESC), 0);

            if (fake_value(out, N(ATTR_TENSOR_DATA_TYPE), -1) == N(DATA_FLOAT) &&
                !fake_value(out, N(ATTR_TENSOR_IS_VIRTUAL), 0))
                return true;
        }
    return false;
}

EXPORT int cudnnBackendFinalize(void *descriptor);
int cudnnBackendFinalize(void *descriptor)
{
    fake_descriptor *d = descriptor;

    BEGIN(cudnnBackendFinalize);
    if (d->finished)
        return refuse("a descriptor that is finished already");
    if (d->kind == N(BACKEND_TENSOR_DESCRIPTOR) && check_tensor(d))
        return BAD_PARAMETER;
    if (d->kind == N(BACKEND_OPERATIONGRAPH_DESCRIPTOR) && !fake_graph_fits(d))
        return refuse("two tensors of one id, or one that nothing has filled before");
    if (d->kind == N(BACKEND_EXECUTION_PLAN_DESCRIPTOR))
        d->graph = fake_linked(d, N(ATTR_EXECUTION_PLAN_ENGINE_CONFIG), 0)->graph;
    d->finished = true;
    return 0;
}

/* ---- what is answered ---- */

static int give_configs(const fake_descriptor *heuristic, int64_t most, int64_t *count, void *const *configs)
{
    const fake_descriptor *graph = fake_linked(heuristic, N(ATTR_ENGINEHEUR_OPERATION_GRAPH), 0);

    *count = most < FAKE_ENGINES ? most : FAKE_ENGINES;
    for (int64_t i = 0; i < *count; i++) {
        fake_descriptor *config = configs[i];

        config->graph = graph;
        config->depends_on_time = i == 0 && adds_to_memory(graph);
        config->finished = true;
    }
    return 0;
}

static int give_engine(const fake_descriptor *config, int64_t *count, void *const *out)
{
    fake_descriptor *engine = out[0];

    engine->depends_on_time = config->depends_on_time;
    engine->finished = true;
    *count = 1;
    return 0;
}

EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *values);
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *values)
{
    const int note = N(NUMERICAL_NOTE_NONDETERMINISTIC);
    const int64_t workspace = FAKE_WORKSPACE;
    const fake_descriptor *d = descriptor;

    (void)type;
    BEGIN(cudnnBackendGetAttribute);
    if (!d->finished)
        return refuse("a question to a descriptor that is not finished");
    switch (name) {
    case N(ATTR_ENGINEHEUR_RESULTS):
        return give_configs(d, most, count, values);
    case N(ATTR_ENGINECFG_ENGINE):
        return give_engine(d, count, values);
    case N(ATTR_ENGINE_NUMERICAL_NOTE):
        *count = d->depends_on_time;
        if (*count)
            memcpy(values, &note, sizeof note);
        return 0;
    case N(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE):
        memcpy(values, &workspace, sizeof workspace);
        return 0;
    default:
        return refuse("an attribute that nobody has");
    }
}

/* ---- handles ---- */

typedef struct handle {
    cudaStream_t stream;
} handle;

EXPORT int cudnnCreate(void **out);
int cudnnCreate(void **out)
{
    BEGIN(cudnnCreate);
    *out = calloc(1, sizeof(handle));
    if (!*out)
        return N(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    fake_count_object(1);
    return 0;
}

EXPORT int cudnnDestroy(void *h);
int cudnnDestroy(void *h)
{
    free(h);
    fake_count_object(-1);
    return 0;
}

EXPORT int cudnnSetStream(void *h, void *stream);
int cudnnSetStream(void *h, void *stream)
{
    if (!fake_is_stream(stream))
        return refuse("no stream");
    ((handle *)h)->stream = stream;
    return 0;
}

EXPORT size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    const char *version = getenv("FSDP_FAKECUDA_CUDNN");

    return version ? (size_t)atol(version) : VERSION;
}

EXPORT size_t cudnnGetCudartVersion(void);
size_t cudnnGetCudartVersion(void)
{
    return CUDART;
}

EXPORT const char *cudnnGetErrorString(int status);
const char *cudnnGetErrorString(int status)
{
    return status == BAD_PARAMETER ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_OTHER";
}

EXPORT void cudnnGetLastErrorString(char *message, size_t bytes);
void cudnnGetLastErrorString(char *message, size_t bytes)
{
    snprintf(message, bytes, "%s", last_error);
    last_error[0] = '\0';
}

EXPORT int cudnnBackendExecute(void *h, void *plan, void *pack);
int cudnnBackendExecute(void *h, void *plan, void *pack)
{
    cudaStream_t stream = ((handle *)h)->stream;
    fake_job *job;

    BEGIN(cudnnBackendExecute);
    if (!stream || !((fake_descriptor *)plan)->finished || !((fake_descriptor *)pack)->finished)
        return refuse("a stream, a plan or a pack that is not there");
    job = fake_job_of(((fake_descriptor *)plan)->graph, pack);
    if (!job)
        return refuse("a pointer is missing, not aligned, or of no tensor");
    if (fake_enqueue_recorded(stream, FAKE_RUNS_KERNEL, 0, fake_job_run, &job, sizeof job) == cudaSuccess)
        return 0;
    fake_job_free(job);
    return N(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
}
