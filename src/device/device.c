/* device.c - what a device is, and its memory calls. */
#include "device/impl.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/lock.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/text.h"

/* ---- what it is ---- */

const char *fsdp__device_elsewhere(const fsdp_device *device, const fsdp_device *other)
{
    return device->context == other->context ? "" : " of another context";
}

const char *fsdp_device_name(const fsdp_device *device)
{
    return device ? device->name : NULL;
}

int fsdp_device_ordinal(const fsdp_device *device)
{
    return device ? device->ordinal : -1;
}

bool fsdp_device_is_meta(const fsdp_device *device)
{
    return device && device->backend->is_meta;
}

fsdp_status fsdp_device_set_attention(fsdp_device *device, fsdp_attention_kernels kernels)
{
    if (!device)
        return FSDP__FAIL_NULL("cannot choose kernels of attention: the device is NULL");
    if (kernels < FSDP_ATTENTION_EXACT || kernels > FSDP_ATTENTION_FAST_REPEATABLE)
        return FSDP_FAIL(FSDP_INVALID, "there are no kernels of attention with number %d", (int)kernels);
    if (kernels != FSDP_ATTENTION_EXACT && !device->backend->open_attention)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "fast attention is cuDNN's, which device '%s' does not have: compute on a GPU "
                         "(training.device=cuda), or set kernels.attention=exact",
                         device->name);
    if (kernels != FSDP_ATTENTION_EXACT)
        FSDP_TRY(device->backend->open_attention(device));
    device->attention = kernels;
    return FSDP_OK;
}

bool fsdp__device_has_bytes(const fsdp_device *device)
{
    return device->backend->has_bytes;
}

fsdp_context *fsdp_device_context(const fsdp_device *device)
{
    return device ? device->context : NULL;
}

bool fsdp__device_host_access(const fsdp_device *device)
{
    return device->backend->host_access;
}

const fsdp__clique_ops *fsdp__device_cliques(const fsdp_device *device)
{
    return device->backend->cliques;
}

bool fsdp__device_shared_memory(const fsdp_device *device)
{
    return device->backend->shared_memory;
}

bool fsdp__device_carries(const fsdp_device *device)
{
    return device->backend->carries;
}

void fsdp__device_condemn(fsdp_device *device, fsdp_status status, const char *text)
{
    device->backend->condemn(device, status, text);
}

void fsdp__device_judge(fsdp_device *device, fsdp_status (*judge)(void *world), void *world)
{
    device->backend->judge(device, judge, world);
}

bool fsdp__device_joins_products(const fsdp_device *device)
{
    return device->backend->joins_products;
}

int64_t fsdp__device_head_rows(const fsdp_device *device)
{
    return device->backend->head_rows;
}

bool fsdp__device_narrow_logits(const fsdp_device *device)
{
    return device->backend->narrow_logits;
}

bool fsdp__device_wide_gradients(const fsdp_device *device)
{
    return device->backend->wide_gradients;
}

bool fsdp__device_gelu_products(const fsdp_device *device)
{
    return device->backend->gelu_products;
}

bool fsdp__device_makes_again(const fsdp_device *device)
{
    return device->backend->makes_again;
}

bool fsdp__device_sums_operands(const fsdp_device *device)
{
    return device->backend->sums_operands;
}

fsdp_stream *fsdp_device_stream(fsdp_device *device)
{
    return device ? device->stream : NULL;
}

void fsdp_device_memory(const fsdp_device *device, fsdp_memory_stats *out)
{
    if (!out)
        return;
    *out = (fsdp_memory_stats){0};
    if (device)
        fsdp__allocator_stats(device->allocator, out);
}

void fsdp_device_reset_peak(fsdp_device *device)
{
    if (device)
        fsdp__allocator_reset_peak(device->allocator);
}

/* ---- who has it ---- */

void fsdp__device_each_owned(const fsdp_device *device, void (*visit)(void *arg, const struct fsdp__owned *owned),
                             void *arg)
{
    fsdp__allocator_each(device->allocator, visit, arg);
}

typedef struct list {
    fsdp__owned *items;
    int64_t count, capacity;
} list;

static void count_item(void *arg, const fsdp__owned *owned)
{
    list *l = arg;

    (void)owned;
    l->capacity++;
}

static void add_item(void *arg, const fsdp__owned *owned)
{
    list *l = arg;

    if (l->count < l->capacity)
        l->items[l->count++] = *owned;
}

/* Sums up who owns what now; nobody, where there is no memory for a list. */
static void sum_up(const fsdp_device *device, fsdp__owners *out)
{
    bool held = fsdp_hold_error(true);
    fsdp_memory_stats stats;
    list all = {.items = NULL};

    fsdp_device_memory(device, &stats);
    fsdp__device_each_owned(device, count_item, &all);
    all.items = fsdp__malloc((size_t)all.capacity * sizeof *all.items);
    if (all.items)
        fsdp__device_each_owned(device, add_item, &all);
    fsdp__owners_of(all.items, all.count, stats.live_total_bytes, out);
    fsdp__free(all.items);
    fsdp_release_error(held);
}

void fsdp__device_note_refusal(fsdp_device *device)
{
    FSDP__HELD(&device->refusal_mutex);
    sum_up(device, &device->refusal);
    device->refused = true;
}

const char *fsdp_device_owners(fsdp_device *device, char *text, size_t bytes)
{
    fsdp__owners owners;
    char where[60];

    if (!device || !text || bytes == 0) {
        if (text && bytes > 0)
            text[0] = '\0';
        return text ? text : "";
    }
    pthread_mutex_lock(&device->refusal_mutex);
    owners = device->refusal;
    if (!device->refused)
        sum_up(device, &owners);
    device->refused = false;
    pthread_mutex_unlock(&device->refusal_mutex);
    snprintf(where, sizeof where, "live on device '%s'", device->name);
    return fsdp__owners_text(device->context, &owners, where, text, bytes);
}

const char *fsdp__device_owners_now(fsdp_device *device, const char *where, char *text, size_t bytes)
{
    fsdp__owners owners;

    sum_up(device, &owners);
    return fsdp__owners_text(device->context, &owners, where, text, bytes);
}

/* ---- memory ---- */

/* Tells that the ledger of a kind has changed. */
static void tell_counted(const fsdp_device *device, const void *owner, fsdp_memory_kind kind, int64_t delta_bytes)
{
    if (delta_bytes != 0)
        FSDP__TELL(MEMORY_COUNTED, .context = device->context, .stream = device->stream, .object = owner,
                   .kind = (int)kind, .number = (uint64_t)delta_bytes);
}

/* Returns whose a live block is, for those who are told that it is counted. */
static const void *owner_of(const fsdp_device *device, const void *pointer)
{
    return fsdp__is_probed(FSDP__POINT_MEMORY_COUNTED) ? fsdp__allocator_owner(device->allocator, pointer) : NULL;
}

static fsdp_status take(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out)
{
    fsdp_status status = FSDP__ASK(ALLOCATION, .bytes = bytes);

    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot allocate %s of %s on device '%s'", FSDP__SIZE(bytes),
                                fsdp_memory_kind_name(kind), device->name);
    return fsdp__allocator_take(device->allocator, bytes, kind, out);
}

fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out)
{
    fsdp_status status = take(device, bytes, kind, out);

    if (status == FSDP_NO_MEMORY)
        fsdp__device_note_refusal(device);
    FSDP_TRY(status);
    if (bytes > 0)
        FSDP__TELL(MEMORY_TAKEN, .context = device->context, .stream = device->stream, .memory = *out, .bytes = bytes,
                   .kind = (int)kind);
    tell_counted(device, fsdp__context_taker(device->context).owner, kind, (int64_t)fsdp__device_rounded(bytes));
    return FSDP_OK;
}

void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind)
{
    const void *owner;

    if (!pointer || bytes == 0)
        return;
    owner = owner_of(device, pointer);
    FSDP__TELL(MEMORY_GIVEN_BACK, .context = device->context, .stream = device->stream, .memory = pointer,
               .bytes = bytes, .kind = (int)kind);
    if (!fsdp__allocator_give(device->allocator, pointer))
        fsdp_log(device->context, FSDP_LOG_ERROR, "device '%s': freed %zu bytes of %s that were not live", device->name,
                 bytes, fsdp_memory_kind_name(kind));
    else
        tell_counted(device, owner, kind, -(int64_t)fsdp__device_rounded(bytes));
}

fsdp_status fsdp__workspace_take(fsdp_device *device, size_t bytes, fsdp__workspace *out)
{
    FSDP_TRY(fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, &out->data));
    out->device = device;
    out->bytes = bytes;
    return FSDP_OK;
}

void fsdp__workspace_release(const fsdp__workspace *workspace)
{
    if (workspace->device)
        fsdp__device_free(workspace->device, workspace->data, workspace->bytes, FSDP_MEMORY_WORKSPACE);
}

void fsdp__device_recount(fsdp_device *device, const void *pointer, fsdp_memory_kind kind)
{
    const void *owner = owner_of(device, pointer);
    fsdp_memory_kind before = kind;
    int64_t bytes = (int64_t)fsdp__allocator_recount(device->allocator, pointer, kind, &before);

    tell_counted(device, owner, before, -bytes);
    tell_counted(device, owner, kind, bytes);
}

void fsdp__device_reown(fsdp_device *device, const void *pointer, size_t bytes, fsdp_memory_kind kind,
                        const void *owner)
{
    int64_t counted = (int64_t)fsdp__device_rounded(bytes);

    tell_counted(device, owner_of(device, pointer), kind, -counted);
    fsdp__allocator_set_owner(device->allocator, pointer, owner);
    tell_counted(device, owner, kind, counted);
}

void fsdp__device_account(fsdp_device *device, const void *owner, fsdp_memory_kind kind, int64_t delta_bytes,
                          bool shared)
{
    tell_counted(device, owner, kind, fsdp__allocator_account(device->allocator, owner, kind, delta_bytes, shared));
}

/* ---- what a device says itself that it has run ---- */

bool fsdp__device_has_activities(const fsdp_device *device)
{
    return device->backend->activities_start != NULL;
}

fsdp_status fsdp__device_activities_start(fsdp_device *device)
{
    fsdp_status status;

    if (!device->backend->activities_start)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "device '%s' keeps no record of what it runs", device->name);
    status = device->backend->activities_start(device);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

fsdp_status fsdp__device_activities_stop(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                         fsdp__activity_sum *out)
{
    fsdp_status status;

    *out = (fsdp__activity_sum){.told = 0};
    if (!device->backend->activities_stop)
        return FSDP_OK;
    status = device->backend->activities_stop(device, tell, arg, out);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

void fsdp__device_activity_enter(fsdp_device *device, uint64_t number)
{
    if (device->backend->activity_enter)
        device->backend->activity_enter(device, number);
}

void fsdp__device_activity_leave(fsdp_device *device)
{
    if (device->backend->activity_leave)
        device->backend->activity_leave(device);
}
