/* partition.c - ZeRO-1 by whole parameters: partitions them among ranks, and broadcasts them after a step. */
#include "optim/partition.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"
#include "device/device.h"
#include "fsdp/dist.h"
#include "tensor/tensor.h"

/* ---- assignment ---- */

bool fsdp__partition_owns(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param)
{
    const struct fsdp__partition *p = optimizer->partition;

    return !p || param->owner == fsdp_process_group_rank(p->group);
}

static fsdp_device *device_of(const fsdp_optimizer *optimizer)
{
    for (int g = 0; g < optimizer->group_count; g++)
        if (optimizer->groups[g].count > 0)
            return optimizer->groups[g].params[0].tensor->storage->device;
    return NULL;
}

fsdp_status fsdp__partition_check(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->tensor);
    const fsdp_device *device = device_of(optimizer);
    int64_t numel = 1;

    if (!optimizer->partition)
        return FSDP_OK;
    for (int d = 0; distribution && d < distribution->ndim; d++)
        numel *= distribution->global_shape[d];
    if (distribution && numel != fsdp_tensor_numel(param->tensor))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot partition '%s' by whole parameters: it is sharded, and so is its state: an ordinary "
                         "optimizer will do (options.zero_stage of fsdp_fully_shard)",
                         param->name);
    if (device && param->tensor->storage->device != device)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot partition '%s': it is on device '%s', and other parameters are on '%s'", param->name,
                         fsdp_device_name(param->tensor->storage->device), fsdp_device_name(device));
    return FSDP_OK;
}

/* Sorts by decreasing size. Insertion keeps parameters of one size in their order. */
static fsdp_status sort(fsdp__optimizer_group *group)
{
    int64_t *sorted = fsdp__calloc((size_t)FSDP__MAX(group->count, 1), sizeof *sorted);

    FSDP__TRY_NEW(sorted);
    for (int64_t i = 0; i < group->count; i++) {
        int64_t at = i, numel = fsdp_tensor_numel(group->params[i].tensor);

        for (; at > 0 && fsdp_tensor_numel(group->params[sorted[at - 1]].tensor) < numel; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
    group->sorted = sorted;
    return FSDP_OK;
}

fsdp_status fsdp__partition_add_group(fsdp_optimizer *optimizer, fsdp__optimizer_group *group)
{
    struct fsdp__partition *p = optimizer->partition;

    if (!p)
        return FSDP_OK;
    for (int64_t i = 0; i < group->count; i++)
        FSDP_TRY(fsdp__partition_check(optimizer, &group->params[i]));
    FSDP_TRY(sort(group));
    for (int64_t i = 0; i < group->count; i++) {
        fsdp__optimizer_param *param = &group->params[group->sorted[i]];
        int least = 0;

        for (int r = 1; r < fsdp_process_group_size(p->group); r++)
            least = p->loads[r] < p->loads[least] ? r : least;
        param->owner = least;
        p->loads[least] += fsdp_tensor_numel(param->tensor);
    }
    fsdp__partition_forget(optimizer);
    return FSDP_OK;
}

/* Drops the state of others' parameters. All ranks have stepped alike until now, so each keeps its own. */
static void drop_state_of_others(fsdp_optimizer *optimizer)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        if (!fsdp__partition_owns(optimizer, w.param))
            fsdp__optimizer_forget_state(w.param);
}

fsdp_status fsdp_optimizer_partition_state(fsdp_optimizer *optimizer, const fsdp_partition_options *options)
{
    fsdp_process_group *group = options ? options->group : NULL;
    fsdp_status status = FSDP_OK;

    if (!optimizer)
        return FSDP__FAIL_NULL("cannot partition the state: the optimizer is NULL");
    if (!device_of(optimizer))
        return FSDP_FAIL(FSDP_INVALID, "an optimizer with parameters is required");
    if (optimizer->partition)
        return FSDP_FAIL(FSDP_STATE, "the state of this optimizer is partitioned already");
    if (!group)
        group = fsdp_world(fsdp_device_context(device_of(optimizer)));
    FSDP__TRY_MADE(group);
    FSDP__TRY_NEW(optimizer->partition = fsdp__calloc(1, sizeof *optimizer->partition));
    optimizer->partition->group = group;
    optimizer->partition->bucket_view = options && options->parameters_as_bucket_view;
    optimizer->partition->loads = fsdp__calloc((size_t)fsdp_process_group_size(group), sizeof(int64_t));
    if (!optimizer->partition->loads)
        status = FSDP_NO_MEMORY;
    for (int g = 0; g < optimizer->group_count && status == FSDP_OK; g++)
        status = fsdp__partition_add_group(optimizer, &optimizer->groups[g]);
    if (status == FSDP_OK)
        drop_state_of_others(optimizer);
    else
        fsdp__partition_free(optimizer);
    return status;
}

void fsdp__partition_free(fsdp_optimizer *optimizer)
{
    if (!optimizer->partition)
        return;
    fsdp__partition_forget(optimizer);
    for (int g = 0; g < optimizer->group_count; g++)
        fsdp__free(fsdp__take(&optimizer->groups[g].sorted));
    fsdp__free(optimizer->partition->loads);
    fsdp__free(fsdp__take(&optimizer->partition));
}

void fsdp__partition_forget(fsdp_optimizer *optimizer)
{
    struct fsdp__partition *p = optimizer->partition;

    if (!p)
        return;
    fsdp_state_dict_free(fsdp__take(&p->consolidated));
}

const char *fsdp_optimizer_partition(const fsdp_optimizer *optimizer, int rank, int group, int64_t index)
{
    const fsdp__optimizer_group *g;

    if (!optimizer || !optimizer->partition || group < 0 || group >= optimizer->group_count)
        return NULL;
    g = &optimizer->groups[group];
    for (int64_t i = 0; i < g->count; i++)
        if (g->params[g->sorted[i]].owner == rank && index-- == 0)
            return g->params[g->sorted[i]].name;
    return NULL;
}

/* ---- after a step ---- */

typedef fsdp_status (*each_param)(void *arg, const fsdp__optimizer_param *param);

/* Runs `run` for a rank's parameters, in the order of its broadcasts. */
static fsdp_status each_of_rank(const fsdp_optimizer *optimizer, int rank, each_param run, void *arg)
{
    for (int g = 0; g < optimizer->group_count; g++) {
        const fsdp__optimizer_group *group = &optimizer->groups[g];

        for (int64_t i = 0; i < group->count; i++)
            if (group->params[group->sorted[i]].owner == rank)
                FSDP_TRY(run(arg, &group->params[group->sorted[i]]));
    }
    return FSDP_OK;
}

/* Begins the write of a stepped parameter. One without a gradient was not stepped, and stays as it is: a gradient is
 * there on all ranks or on none. */
static fsdp_status begin_write(void *arg, const fsdp__optimizer_param *param)
{
    (void)arg;
    return fsdp_tensor_grad(param->tensor) ? fsdp_tensor_begin_write(param->tensor) : FSDP_OK;
}

static fsdp_status broadcast_one(void *arg, const fsdp__optimizer_param *param)
{
    const struct fsdp__partition *p = arg;
    fsdp_tensor *t = param->tensor;

    return fsdp_broadcast(p->group, fsdp_tensor_data(t), fsdp_tensor_numel(t), t->dtype, param->owner,
                          fsdp_device_stream(t->storage->device));
}

/* The parameters of one rank, one after the other. */
typedef struct bucket {
    size_t bytes;
    fsdp_dtype dtype; /* of all; NONE: they differ */
    fsdp_tensor *tensor;
    bool out; /* copies out of the bucket */
} bucket;

static fsdp_status measure(void *arg, const fsdp__optimizer_param *param)
{
    bucket *b = arg;

    b->dtype = b->bytes == 0 || b->dtype == param->tensor->dtype ? param->tensor->dtype : FSDP_DTYPE_NONE;
    b->bytes += (size_t)fsdp_tensor_numel(param->tensor) * fsdp_dtype_size(param->tensor->dtype);
    return FSDP_OK;
}

static fsdp_status copy_one(void *arg, const fsdp__optimizer_param *param)
{
    bucket *b = arg;
    fsdp_tensor *t = param->tensor;
    size_t bytes = (size_t)fsdp_tensor_numel(t) * fsdp_dtype_size(t->dtype);
    char *place = (char *)fsdp_tensor_data(b->tensor) + b->bytes;
    void *from = b->out ? place : fsdp_tensor_data(t), *to = b->out ? fsdp_tensor_data(t) : place;

    b->bytes += bytes;
    return bytes > 0 ? fsdp__copy_on_device(fsdp_device_stream(t->storage->device), to, from, bytes) : FSDP_OK;
}

static fsdp_status broadcast_bucket(const fsdp_optimizer *optimizer, int rank)
{
    const struct fsdp__partition *p = optimizer->partition;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;
    bucket b = {.bytes = 0};
    int64_t numel;

    FSDP_TRY(each_of_rank(optimizer, rank, measure, &b));
    if (b.bytes == 0)
        return FSDP_OK;
    b.dtype = b.dtype == FSDP_DTYPE_NONE ? FSDP_U8 : b.dtype;
    numel = (int64_t)(b.bytes / fsdp_dtype_size(b.dtype));
    FSDP_TRY(fsdp_tensor_create(device_of(optimizer), b.dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, &tensor));
    b.tensor = tensor;
    b.bytes = 0;
    if (rank == fsdp_process_group_rank(p->group))
        FSDP_TRY(each_of_rank(optimizer, rank, copy_one, &b));
    FSDP_TRY(fsdp_broadcast(p->group, fsdp_tensor_data(tensor), numel, b.dtype, rank,
                            fsdp_device_stream(device_of(optimizer))));
    b.bytes = 0;
    b.out = true;
    return rank == fsdp_process_group_rank(p->group) ? FSDP_OK : each_of_rank(optimizer, rank, copy_one, &b);
}

static fsdp_status publish(const fsdp_optimizer *optimizer)
{
    struct fsdp__partition *p = optimizer->partition;
    int size = fsdp_process_group_size(p->group);

    if (size == 1)
        return FSDP_OK;
    /* All writes begin before any rank waits for this one: a graph that has saved a parameter must see it written on
     * all ranks or on none. */
    for (int rank = 0; rank < size; rank++)
        FSDP_TRY(each_of_rank(optimizer, rank, begin_write, NULL));
    for (int rank = 0; rank < size; rank++)
        FSDP_TRY(p->bucket_view ? broadcast_bucket(optimizer, rank) : each_of_rank(optimizer, rank, broadcast_one, p));
    return FSDP_OK;
}

fsdp_status fsdp__partition_publish(const fsdp_optimizer *optimizer)
{
    if (!optimizer->partition)
        return FSDP_OK;
    return fsdp__partition_abort(optimizer, publish(optimizer));
}

fsdp_status fsdp__partition_abort(const fsdp_optimizer *optimizer, fsdp_status status)
{
    if (status != FSDP_OK && optimizer->partition)
        fsdp_abort(fsdp_process_group_context(optimizer->partition->group), fsdp_last_error());
    return status;
}
