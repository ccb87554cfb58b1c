/* outboxes.c - makes outboxes, and frees them when nobody has them open. */
#include "comm/transport/arena/outboxes.h"

#include <time.h>

#include "base/alloc.h"

enum {
    LAST_LOOKS = 100, /* as the rank leaves */
    LOOK_NS = 1000000
};

/* An outbox, which may outlive its group. */
typedef struct fsdp__outbox {
    struct fsdp__outbox *next; /* of those that are kept */
    fsdp_device *device;
    fsdp__export memory;
    int index; /* of the group, whose place has `key` as long as one of its ranks has not freed it */
    uint64_t key;
    int size;
    int ranks[]; /* numbers in the arena */
} outbox;

/* ---- who has it open ---- */

static bool has_open(const fsdp__arena *arena, const outbox *o, int rank)
{
    return atomic_load(&fsdp__arena_words_of(arena, o->index, rank)->open) && !fsdp__board_is_gone(arena->board, rank);
}

/* Returns whether a peer may have the outbox open. Ranks that are threads read it where it is, and have done so when
 * its group is freed, unless the world has ended. */
static bool is_open(const fsdp__arena_view *view, const outbox *o)
{
    bool open = false;

    if ((view->all_readable && !fsdp__board_aborted(view->arena->board)) ||
        atomic_load(&fsdp__group_at(view->arena->board, o->index)->key) != o->key)
        return false;
    for (int r = 0; r < o->size && !open; r++)
        open = o->ranks[r] != view->rank && has_open(view->arena, o, o->ranks[r]);
    return open;
}

/* Frees the kept outboxes that nobody has open. Returns whether there are others. */
static bool look(fsdp__arena_view *view)
{
    for (outbox **link = &view->outboxes, *o; (o = *link) != NULL;) {
        if (is_open(view, o)) {
            link = &o->next;
            continue;
        }
        *link = o->next;
        fsdp__device_unexport(o->device, &o->memory);
        fsdp__free(o);
    }
    return view->outboxes != NULL;
}

/* ---- life ---- */

fsdp_status fsdp__outbox_new(const fsdp__arena_group *group, fsdp_device *device, size_t bytes, outbox **out)
{
    FSDP__FREED outbox *o = fsdp__calloc(1, sizeof *o + (size_t)group->size * sizeof *o->ranks);

    FSDP__TRY_NEW(o);
    (void)look(group->world);
    o->device = device;
    o->index = group->index;
    o->key = atomic_load(&group->place->key);
    o->size = group->size;
    for (int r = 0; r < group->size; r++)
        o->ranks[r] = group->ranks[r];
    FSDP_TRY(fsdp__device_export(device, bytes, true, &o->memory));
    *out = fsdp__take(&o);
    return FSDP_OK;
}

const fsdp__export *fsdp__outbox_memory(const outbox *o)
{
    return &o->memory;
}

void fsdp__outbox_free(fsdp__arena_view *view, outbox *o, bool shown)
{
    if (!shown) {
        fsdp__device_unexport(o->device, &o->memory);
        fsdp__free(o);
    } else {
        o->next = view->outboxes;
        view->outboxes = o;
    }
    (void)look(view);
}

void fsdp__outboxes_close(fsdp__arena_view *view)
{
    for (int i = 0; look(view) && i < LAST_LOOKS; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    while (view->outboxes) {
        outbox *o = view->outboxes;

        view->outboxes = o->next;
        fsdp__device_leave_export(o->device, &o->memory);
        fsdp__free(o);
    }
}
