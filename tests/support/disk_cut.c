/* disk_cut.c - a folder as a disk may have it after a power cut. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support/disk.h"
#include "support/test.h"

/* ---- what is kept ---- */

static bool is_waited_for(const disk *d, int index, int calls)
{
    const disk_call *call = &d->calls[index];

    if (call->kind == DISK_SYNC)
        return true;
    for (int i = index + 1; i < calls; i++) {
        const disk_call *sync = &d->calls[i];

        if (sync->kind != DISK_SYNC)
            continue;
        if (call->kind != DISK_NAMES_CHANGE && sync->node == call->node)
            return true;
        for (int k = 0; k < call->change_count; k++)
            if (sync->node == call->changes[k].folder)
                return true;
    }
    return false;
}

bool disk_is_sure(const disk *d, int calls)
{
    for (int i = 0; i < calls; i++)
        if (!is_waited_for(d, i, calls))
            return false;
    return true;
}

/* Draws a number from 0 to 3. */
static int draw(int index, int luck)
{
    uint64_t x = (uint64_t)(unsigned)index * 0x9e3779b97f4a7c15u + (uint64_t)(unsigned)luck * 0xd1b54a32d192ed03u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int)(x >> 62);
}

/* Keeps halves: 0 is nothing of it, 2 all. */
static int kept_halves(const disk *d, int index, int calls, int luck)
{
    bool names = d->calls[index].kind == DISK_NAMES_CHANGE;

    if (is_waited_for(d, index, calls))
        return 2;
    switch (luck) {
    case DISK_ALL:
        return 2;
    case DISK_NOTHING:
        return 0;
    case DISK_ONLY_NAMES:
        return names ? 2 : 0;
    case DISK_ONLY_BYTES:
        return names ? 0 : 2;
    default:
        return names ? draw(index, luck) / 2 * 2 : draw(index, luck) * 2 / 3;
    }
}

/* ---- names ---- */

typedef struct names {
    disk_change *items; /* by `to` */
    int count;
} names;

static void drop_name(names *n, int i)
{
    n->items[i] = n->items[--n->count];
}

static bool has_names(const names *n, int folder)
{
    for (int i = 0; i < n->count; i++)
        if (n->items[i].folder == folder)
            return true;
    return false;
}

/* `sure`: somebody has waited for it. */
static void apply(const disk *d, names *n, const disk_change *change, bool sure)
{
    if (change->to == DISK_NONE && d->nodes[change->from].folder && !sure && has_names(n, change->from))
        return;
    for (int i = n->count - 1; i >= 0; i--) {
        const disk_change *item = &n->items[i];
        bool here = item->folder == change->folder && strcmp(item->name, change->name) == 0;

        /* Without hard links what gets a name loses the one it had. */
        if (change->to == DISK_NONE ? here && item->to == change->from : here || item->to == change->to)
            drop_name(n, i);
    }
    if (change->to != DISK_NONE)
        n->items[n->count++] = *change;
}

static names names_after(const disk *d, int calls, int luck)
{
    names n = {.items = calloc((size_t)d->name_count + 2 * (size_t)calls + 1, sizeof *n.items)};

    CHECK(n.items);
    for (int i = 0; i < d->name_count; i++)
        n.items[n.count++] = d->names[i];
    for (int i = 0; i < calls; i++) {
        const disk_call *call = &d->calls[i];

        if (call->kind != DISK_NAMES_CHANGE || !kept_halves(d, i, calls, luck))
            continue;
        /* Of a rename, the old name goes with the new one. */
        apply(d, &n, &call->changes[call->change_count - 1], is_waited_for(d, i, calls));
    }
    return n;
}

/* ---- bytes ---- */

typedef struct content {
    unsigned char *data;
    size_t bytes;
} content;

static void resize(content *c, size_t bytes)
{
    unsigned char *data = realloc(c->data, bytes + 1);

    CHECK(data);
    if (bytes > c->bytes)
        memset(data + c->bytes, 0, bytes - c->bytes);
    *c = (content){.data = data, .bytes = bytes};
}

static content content_after(const disk *d, int node, int calls, int luck)
{
    content c = {.data = NULL};

    resize(&c, d->nodes[node].bytes);
    if (c.bytes > 0)
        memcpy(c.data, d->nodes[node].data, c.bytes);
    for (int i = 0; i < calls; i++) {
        const disk_call *call = &d->calls[i];
        int halves = call->node == node ? kept_halves(d, i, calls, luck) : 0;
        size_t bytes = call->bytes * (size_t)halves / 2;

        if (call->kind == DISK_RESIZE && halves == 2)
            resize(&c, call->bytes);
        if (call->kind != DISK_WRITE || bytes == 0)
            continue;
        if (call->offset + bytes > c.bytes)
            resize(&c, call->offset + bytes);
        memcpy(c.data + call->offset, call->data, bytes);
    }
    return c;
}

/* ---- the folder ---- */

static void make(const disk *d, const names *n, int folder, const char *path, int calls, int luck)
{
    CHECK(mkdir(path, 0777) == 0);
    for (int i = 0; i < n->count; i++) {
        const disk_change *item = &n->items[i];
        char *below;

        if (item->folder != folder)
            continue;
        below = test_path(path, item->name);
        if (d->nodes[item->to].folder) {
            make(d, n, item->to, below, calls, luck);
        } else {
            content c = content_after(d, item->to, calls, luck);

            test_write_file(below, c.data, c.bytes);
            free(c.data);
        }
    }
}

void disk_cut(const disk *d, int calls, int luck, const char *folder)
{
    names n = names_after(d, calls, luck);

    make(d, &n, 0, folder, calls, luck);
    free(n.items);
}
