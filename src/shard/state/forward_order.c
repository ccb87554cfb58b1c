/* forward_order.c - keeps two lists of first uses. */
#include "shard/state/forward_order.h"

#include "base/alloc.h"

static int64_t find(fsdp__module_state *const *states, int64_t count, const fsdp__module_state *state)
{
    for (int64_t i = 0; i < count; i++)
        if (states[i] == state)
            return i;
    return -1;
}

void fsdp__forward_order_begin(fsdp__forward_order *o)
{
    *o = (fsdp__forward_order){.now = o->before,
                               .now_capacity = o->before_capacity,
                               .before = o->now,
                               .before_count = o->now_count,
                               .before_capacity = o->now_capacity};
}

fsdp__module_state *fsdp__forward_order_after(const fsdp__forward_order *o, const fsdp__module_state *state)
{
    int64_t at = find(o->before, o->before_count, state);

    for (int64_t i = at + 1; at >= 0 && i < o->before_count; i++)
        if (o->before[i] && find(o->now, o->now_count, o->before[i]) < 0)
            return o->before[i];
    return NULL;
}

fsdp_status fsdp__forward_order_enter(fsdp__forward_order *o, fsdp__module_state *state, fsdp__module_state **next)
{
    *next = NULL;
    if (find(o->now, o->now_count, state) >= 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&o->now, o->now_count, &o->now_capacity, sizeof *o->now));
    o->now[o->now_count++] = state;
    *next = fsdp__forward_order_after(o, state);
    return FSDP_OK;
}

void fsdp__forward_order_forget(fsdp__forward_order *o, const fsdp__module_state *state)
{
    int64_t now = find(o->now, o->now_count, state), before = find(o->before, o->before_count, state);

    if (now >= 0)
        o->now[now] = NULL;
    if (before >= 0)
        o->before[before] = NULL;
}

void fsdp__forward_order_release(fsdp__forward_order *o)
{
    FSDP__FREE_ALL(o->now, o->before);
    *o = (fsdp__forward_order){0};
}
