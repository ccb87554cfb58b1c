/* owners.c - sums up who has what, and prints it. */
#include "device/owners.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum {
    NAME_SHOWN = 60
};

/* ---- sums ---- */

/* Operations tell activations apart, and scratch. What else there is has been made once, by whatever was running. */
static const char *op_of(const fsdp__owned *o)
{
    bool tells = o->kind == FSDP_MEMORY_ACTIVATION || o->kind == FSDP_MEMORY_WORKSPACE;

    return tells && o->taker.op ? o->taker.op : "";
}

static bool is_backward(const fsdp__owned *o)
{
    return o->kind == FSDP_MEMORY_ACTIVATION && o->taker.backward;
}

static int compare_owners(const void *a, const void *b)
{
    const fsdp__owned *x = a, *y = b;

    if (x->kind != y->kind)
        return (int)x->kind - (int)y->kind;
    if (x->taker.owner != y->taker.owner)
        return (uintptr_t)x->taker.owner < (uintptr_t)y->taker.owner ? -1 : 1;
    if (is_backward(x) != is_backward(y))
        return (int)is_backward(x) - (int)is_backward(y);
    return strcmp(op_of(x), op_of(y));
}

/* Puts `new` among the rows, if it is large enough; what falls out is counted with the others. */
static void add_row(fsdp__owners *o, fsdp__owned new)
{
    int at = o->count;

    while (at > 0 && o->rows[at - 1].bytes < new.bytes)
        at--;
    if (o->count == FSDP__OWNERS_SHOWN) {
        const fsdp__owned *out = at == o->count ? &new : &o->rows[o->count - 1];

        o->other_bytes += out->bytes;
        o->other_count += out->count;
        if (out == &new)
            return;
        o->count--;
    }
    memmove(&o->rows[at + 1], &o->rows[at], (size_t)(o->count - at) * sizeof *o->rows);
    o->rows[at] = new;
    o->count++;
}

void fsdp__owners_of(fsdp__owned *items, int64_t count, size_t live_bytes, fsdp__owners *out)
{
    *out = (fsdp__owners){.live_bytes = live_bytes};
    if (count > 0)
        qsort(items, (size_t)count, sizeof *items, compare_owners);
    for (int64_t i = 0, next; i < count; i = next) {
        fsdp__owned sum = items[i];

        for (next = i + 1; next < count && compare_owners(&items[i], &items[next]) == 0; next++) {
            sum.bytes += items[next].bytes;
            sum.count += items[next].count;
        }
        if (sum.bytes > 0)
            add_row(out, sum);
    }
}

/* ---- the table ---- */

static const char *name_of(const fsdp_context *context, const fsdp__owned *o, char *text, size_t bytes)
{
    char shown[NAME_SHOWN + 1];
    const char *op = op_of(o);

    fsdp__shown(fsdp__context_owner_name(context, o->taker.owner, FSDP__ROOM(256)), shown, sizeof shown);
    snprintf(text, bytes, "%s%s%s%s", shown, *shown && *op ? ": " : "", op, is_backward(o) ? " (backward)" : "");
    return *text ? text : "-";
}

const char *fsdp__owners_text(const fsdp_context *context, const fsdp__owners *owners, const char *where, char *text,
                              size_t bytes)
{
    FILE *out = bytes > 0 ? fmemopen(text, bytes, "w") : NULL;

    if (bytes > 0)
        text[0] = '\0';
    if (!out)
        return text;
    fprintf(out, "  %s: %s%s", where, FSDP__SIZE(owners->live_bytes), owners->count > 0 ? ", most of it of" : "");
    for (int i = 0; i < owners->count; i++) {
        const fsdp__owned *o = &owners->rows[i];

        fprintf(out, "\n  %10s in %-6lld %-20s %s", FSDP__SIZE(o->bytes), (long long)o->count,
                fsdp_memory_kind_name(o->kind), name_of(context, o, FSDP__ROOM(NAME_SHOWN + 80)));
    }
    if (owners->other_count > 0)
        fprintf(out, "\n  %10s in %-6lld others", FSDP__SIZE(owners->other_bytes), (long long)owners->other_count);
    fclose(out);
    text[bytes - 1] = '\0'; /* a stream that is full ends without */
    return text;
}

/* ---- accounts ---- */

void fsdp__accounts_add(fsdp__accounts *a, const void *owner, fsdp_memory_kind kind, int64_t bytes)
{
    /* They mostly come in the same order again. */
    for (int64_t i = 0; i < a->count; i++) {
        int64_t at = (a->last + i) % a->count;
        fsdp__owned *o = &a->items[at];

        if (o->taker.owner != owner || o->kind != kind)
            continue;
        o->bytes += (size_t)bytes;
        o->count += bytes > 0 ? 1 : bytes < 0 ? -1 : 0;
        a->last = at;
        return;
    }
    if (owner && a->count >= FSDP__ACCOUNTS - FSDP_MEMORY_KINDS)
        fsdp__accounts_add(a, NULL, kind, bytes);
    else
        a->items[a->count++] =
            (fsdp__owned){.kind = kind, .taker = {.owner = owner}, .bytes = (size_t)bytes, .count = bytes > 0};
}

const char *fsdp_memory_kind_name(fsdp_memory_kind kind)
{
    static const char *const names[] = {
#define KIND_NAME(name, text) text,
        FSDP_MEMORY_MAP(KIND_NAME)
#undef KIND_NAME
    };

    return (unsigned)kind < FSDP_MEMORY_KINDS ? names[kind] : "unknown";
}
