/* shadow.c - a sorted list of spans for each watched range. All bytes of a span have been used in the same way: a use
 * that ends inside a span cuts it, and a write makes one span of all that it covers. */
#include "check/shadow.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

typedef struct span {
    uintptr_t start, end;
    fsdp__use write;  /* step 0: none */
    fsdp__use freed;  /* since the write; step 0: it was not given back */
    fsdp__use *reads; /* since the write; no actor of one of them knows of another */
    int64_t read_count, read_capacity;
} span;

/* Its entries are sorted by address and do not overlap. */
typedef struct owner_list {
    fsdp__owner *items;
    int64_t count, capacity;
} owner_list;

typedef struct range {
    struct range *next;
    uintptr_t start, end;
    int owner;
    span **spans; /* sorted by address, without overlap */
    int64_t count, capacity;
    owner_list blocks, parts;
} range;

struct fsdp__shadow {
    range *ranges;
};

/* ---- ranges ---- */

fsdp__shadow *fsdp__shadow_create(void)
{
    return fsdp__calloc(1, sizeof(fsdp__shadow));
}

static void span_free(span *s)
{
    FSDP__FREE_ALL(s->reads, s);
}

static void range_free(range *r)
{
    for (int64_t i = 0; i < r->count; i++)
        span_free(r->spans[i]);
    FSDP__FREE_ALL(r->spans, r->blocks.items, r->parts.items, r);
}

void fsdp__shadow_free(fsdp__shadow *shadow)
{
    if (!shadow)
        return;
    while (shadow->ranges) {
        range *r = shadow->ranges;

        shadow->ranges = r->next;
        range_free(r);
    }
    fsdp__free(shadow);
}

static range *range_at(const fsdp__shadow *shadow, uintptr_t at)
{
    range *r = shadow->ranges;

    while (r && !(at >= r->start && at < r->end))
        r = r->next;
    return r;
}

bool fsdp__shadow_watch(fsdp__shadow *shadow, const void *pointer, size_t bytes, int owner)
{
    range *r = range_at(shadow, (uintptr_t)pointer);

    if (r && r->start == (uintptr_t)pointer) /* perhaps it has grown */
        r->end = FSDP__MAX(r->end, r->start + bytes);
    if (r)
        return true;
    r = fsdp__calloc(1, sizeof *r);
    if (!r)
        return false;
    r->start = (uintptr_t)pointer;
    r->end = r->start + bytes;
    r->owner = owner;
    r->next = shadow->ranges;
    shadow->ranges = r;
    return true;
}

void fsdp__shadow_forget(fsdp__shadow *shadow, const void *pointer)
{
    range **link = &shadow->ranges, *found;

    while (*link && (*link)->start != (uintptr_t)pointer)
        link = &(*link)->next;
    found = *link;
    if (!found)
        return;
    *link = found->next;
    range_free(found);
}

bool fsdp__shadow_watches(const fsdp__shadow *shadow, const void *pointer)
{
    return range_at(shadow, (uintptr_t)pointer) != NULL;
}

/* ---- spans ---- */

/* Returns the first span that ends behind `at`. */
static int64_t first_behind(const range *r, uintptr_t at)
{
    int64_t low = 0, high = r->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (r->spans[middle]->end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static span *insert(range *r, int64_t index, uintptr_t start, uintptr_t end)
{
    span *s;

    if (fsdp__grow(&r->spans, r->count, &r->capacity, sizeof(span *)) != 0)
        return NULL;
    s = fsdp__calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->start = start;
    s->end = end;
    memmove(r->spans + index + 1, r->spans + index, (size_t)(r->count - index) * sizeof(span *));
    r->spans[index] = s;
    r->count++;
    return s;
}

/* Cuts span `index` in two at `at`, which lies inside it. */
static bool cut(range *r, int64_t index, uintptr_t at)
{
    span *left = r->spans[index], *right = insert(r, index + 1, at, left->end);

    if (!right)
        return false;
    right->write = left->write;
    right->freed = left->freed;
    if (left->read_count > 0) {
        right->reads = fsdp__malloc((size_t)left->read_count * sizeof *right->reads);
        if (!right->reads)
            return false;
        memcpy(right->reads, left->reads, (size_t)left->read_count * sizeof *right->reads);
        right->read_count = right->read_capacity = left->read_count;
    }
    left->end = at;
    return true;
}

/* Makes spans for all bytes of [start, end), cut at both ends. Gets the first span and the one behind the last. */
static bool lay_out(range *r, uintptr_t start, uintptr_t end, int64_t *first, int64_t *behind)
{
    int64_t i = first_behind(r, start);

    if (i < r->count && r->spans[i]->start < start) {
        if (!cut(r, i, start))
            return false;
        i++;
    }
    *first = i;
    for (uintptr_t at = start; at < end; at = r->spans[i++]->end) {
        if (i == r->count || r->spans[i]->start > at) {
            if (!insert(r, i, at, i == r->count ? end : FSDP__MIN(end, r->spans[i]->start)))
                return false;
        } else if (r->spans[i]->end > end && !cut(r, i, end)) {
            return false;
        }
    }
    *behind = i;
    return true;
}

/* ---- uses ---- */

static bool is_before(const fsdp__use *use, const fsdp__vector_clock *clock)
{
    return use->step <= fsdp__vector_clock_at(clock, use->actor);
}

/* Returns whether `earlier` lies after the free: see [Note: memory given back]. */
static bool is_after(const fsdp__use *earlier, const fsdp__use *free)
{
    return free->frees && earlier->known >= free->step;
}

/* Returns the use of `s` with which `use`, whose actor knows of `clock`, is not ordered; NULL: none. */
static const fsdp__use *conflicting(const span *s, const fsdp__use *use, const fsdp__vector_clock *clock)
{
    if (!is_before(&s->write, clock) && !is_after(&s->write, use))
        return &s->write;
    for (int64_t i = 0; (use->writes || use->frees) && i < s->read_count; i++)
        if (!is_before(&s->reads[i], clock) && !is_after(&s->reads[i], use))
            return &s->reads[i];
    return is_before(&s->freed, clock) ? NULL : &s->freed;
}

/* Adds a read. Reads that lie before it need no record: what comes after this one comes after them. */
static bool add_read(span *s, const fsdp__use *use, const fsdp__vector_clock *clock)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < s->read_count; i++)
        if (!is_before(&s->reads[i], clock))
            s->reads[kept++] = s->reads[i];
    s->read_count = kept;
    if (fsdp__grow(&s->reads, s->read_count, &s->read_capacity, sizeof *s->reads) != 0)
        return false;
    s->reads[s->read_count++] = *use;
    return true;
}

/* Puts one span, written by `use`, in the place of spans [first, behind). */
static void become_one(range *r, int64_t first, int64_t behind, const fsdp__use *use)
{
    span *s = r->spans[first];

    s->end = r->spans[behind - 1]->end;
    s->write = *use;
    s->freed = (fsdp__use){0};
    s->read_count = 0;
    for (int64_t i = first + 1; i < behind; i++)
        span_free(r->spans[i]);
    memmove(r->spans + first + 1, r->spans + behind, (size_t)(r->count - behind) * sizeof(span *));
    r->count -= behind - first - 1;
}

static fsdp__shadow_answer use_in(range *r, uintptr_t start, uintptr_t end, const fsdp__use *use,
                                  const fsdp__vector_clock *clock, fsdp__conflict *out)
{
    fsdp__shadow_answer answer = FSDP__SHADOW_ORDERED;
    int64_t first, behind;

    if (!lay_out(r, start, end, &first, &behind))
        return FSDP__SHADOW_NO_MEMORY;
    for (int64_t i = first; i < behind && answer == FSDP__SHADOW_ORDERED; i++) {
        const fsdp__use *other = conflicting(r->spans[i], use, clock);

        if (!other)
            continue;
        *out = (fsdp__conflict){r->spans[i]->start, r->spans[i]->end, *other};
        answer = FSDP__SHADOW_CONFLICT;
    }
    for (int64_t i = first; i < behind && !use->writes; i++) {
        if (use->frees)
            r->spans[i]->freed = *use;
        else if (!add_read(r->spans[i], use, clock))
            return FSDP__SHADOW_NO_MEMORY;
    }
    if (use->writes)
        become_one(r, first, behind, use);
    return answer;
}

fsdp__shadow_answer fsdp__shadow_use(fsdp__shadow *shadow, const void *pointer, size_t bytes, const fsdp__use *use,
                                     const fsdp__vector_clock *clock, fsdp__conflict *out)
{
    uintptr_t start = (uintptr_t)pointer;
    range *r = range_at(shadow, start);
    fsdp__use own = *use;

    if (!r || bytes == 0)
        return FSDP__SHADOW_ORDERED;
    own.known = r->owner >= 0 ? fsdp__vector_clock_at(clock, r->owner) : 0;
    return use_in(r, start, FSDP__MIN(start + bytes, r->end), &own, clock, out);
}

/* ---- owners ---- */

static int64_t owner_behind(const owner_list *list, uintptr_t at)
{
    int64_t low = 0, high = list->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (list->items[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_owners(owner_list *list, uintptr_t start, uintptr_t end)
{
    int64_t first = owner_behind(list, start), behind = first;

    while (behind < list->count && list->items[behind].start < end)
        behind++;
    if (behind == first)
        return;
    memmove(list->items + first, list->items + behind, (size_t)(list->count - behind) * sizeof *list->items);
    list->count -= behind - first;
}

bool fsdp__shadow_own(fsdp__shadow *shadow, const void *pointer, size_t bytes, const char *kind, const char *name)
{
    const fsdp__owner owner = {(uintptr_t)pointer, (uintptr_t)pointer + bytes, kind, name};
    range *r = range_at(shadow, owner.start);
    owner_list *list;
    int64_t at;

    if (!r || bytes == 0)
        return true;
    /* A new block has no parts of old blocks. */
    remove_owners(&r->parts, owner.start, owner.end);
    if (!name)
        remove_owners(&r->blocks, owner.start, owner.end);
    list = name ? &r->parts : &r->blocks;
    if (fsdp__grow(&list->items, list->count, &list->capacity, sizeof *list->items) != 0)
        return false;
    at = owner_behind(list, owner.start);
    memmove(list->items + at + 1, list->items + at, (size_t)(list->count - at) * sizeof *list->items);
    list->items[at] = owner;
    list->count++;
    return true;
}

static const fsdp__owner *find_owner(const owner_list *list, uintptr_t at)
{
    int64_t i = owner_behind(list, at);

    return i < list->count && list->items[i].start <= at ? &list->items[i] : NULL;
}

fsdp__owner fsdp__shadow_owner(const fsdp__shadow *shadow, uintptr_t at)
{
    const range *r = range_at(shadow, at);
    const fsdp__owner *block = r ? find_owner(&r->blocks, at) : NULL, *part = r ? find_owner(&r->parts, at) : NULL;

    return part ? *part : block ? *block : (fsdp__owner){.start = r ? r->start : at, .end = at + 1};
}
