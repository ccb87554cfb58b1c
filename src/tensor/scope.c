/* scope.c - drops the tensors that nobody unrefs by hand.
 *
 * One array holds the tensors of all open scopes; a scope is the index where it begins. */
#include "base/alloc.h"
#include "base/context.h"
#include "tensor/tensor.h"

typedef struct scopes {
    fsdp_tensor **tensors; /* one reference each */
    int64_t count, capacity;
    int64_t *begins;
    int64_t depth, begins_capacity;
} scopes;

/* Drops the tensors from `begin` on, youngest first. Those that are freed must not add to the scopes. */
static void drop_from(scopes *s, int64_t begin)
{
    while (s->count > begin)
        fsdp_tensor_unref(s->tensors[--s->count]);
}

static void scopes_free(void *state)
{
    scopes *s = state;

    drop_from(s, 0);
    FSDP__FREE_ALL(s->tensors, s->begins, s);
}

static scopes *scopes_of(fsdp_context *context)
{
    return fsdp__context_get_or_make(context, FSDP__SLOT_SCOPE, sizeof(scopes), scopes_free);
}

fsdp_status fsdp_scope_begin(fsdp_context *context)
{
    scopes *s;

    if (!context)
        return FSDP_FAIL(FSDP_INVALID, "cannot begin a scope: the context is NULL");
    s = scopes_of(context);
    if (!s || fsdp__grow(&s->begins, s->depth, &s->begins_capacity, sizeof *s->begins) != 0)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot begin a scope");
    s->begins[s->depth++] = s->count;
    return FSDP_OK;
}

/* Swaps `keep` with the tensor at `place`. A tensor of an outer scope is not found, and stays where it is. */
static bool move_to(scopes *s, int64_t place, fsdp_tensor *keep)
{
    for (int64_t i = place; keep && i < s->count; i++)
        if (s->tensors[i] == keep) {
            s->tensors[i] = s->tensors[place];
            s->tensors[place] = keep;
            return true;
        }
    return false;
}

void fsdp_scope_end_many(fsdp_context *context, fsdp_tensor *const *keep, int count)
{
    scopes *s = fsdp__context_get(context, FSDP__SLOT_SCOPE);
    int64_t kept;

    if (!s || s->depth == 0) {
        fsdp_log(context, FSDP_LOG_ERROR, "fsdp_scope_end without fsdp_scope_begin");
        return;
    }
    kept = s->begins[--s->depth];
    for (int i = 0; keep && i < count; i++)
        kept += move_to(s, kept, keep[i]);
    drop_from(s, kept);
}

void fsdp_scope_end(fsdp_context *context, fsdp_tensor *keep)
{
    fsdp_scope_end_many(context, &keep, 1);
}

fsdp_tensor *fsdp__scope_adopt(fsdp_tensor *tensor)
{
    scopes *s;

    if (!tensor)
        return NULL;
    s = scopes_of(fsdp_device_context(tensor->storage->device));
    if (!s || fsdp__grow(&s->tensors, s->count, &s->capacity, sizeof *s->tensors) != 0) {
        fsdp_tensor_unref(tensor);
        return NULL;
    }
    s->tensors[s->count++] = tensor;
    return tensor;
}
