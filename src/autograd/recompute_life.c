/* recompute_life.c - what a recomputation has given up, and when it drops what it holds: [Note: recomputation] in
 * recompute_forward.c. */
#include "autograd/recompute.h"

#include "base/alloc.h"

bool fsdp__recomputation_gave_up(const fsdp__recomputation *c, const fsdp__node *node)
{
    for (int i = 0; node && !node->released && i < node->saved_count; i++)
        if (node->saved[i] && node->saved[i]->storage == c->nothing)
            return true;
    return false;
}

int64_t fsdp__recomputation_last(const fsdp__recomputation *c)
{
    int64_t last = c->entry_count - 1;

    while (last > 0 && !fsdp__recomputation_gave_up(c, c->entries[last].node))
        last--;
    return last;
}

void fsdp__recomputation_drop(fsdp__recomputation_entry *e)
{
    for (int i = 0; i < e->kept_count; i++)
        fsdp_tensor_unref(e->kept[i]);
    fsdp__free(fsdp__take(&e->kept));
    e->kept_count = 0;
}

void fsdp__recomputation_settle(fsdp__recomputation *c)
{
    for (int i = 0; i < c->input_count; i++)
        fsdp_tensor_unref(c->inputs[i]);
    c->input_count = 0;
    for (int64_t i = 0; i < c->entry_count; i++)
        fsdp__recomputation_drop(&c->entries[i]);
    for (int64_t i = 0; i < c->value_count; i++)
        fsdp_tensor_unref(c->values[i]);
    c->value_count = 0;
}

static void recomputation_free(fsdp__recomputation *c)
{
    if (c->options.free_arg)
        c->options.free_arg(c->arg);
    fsdp__storage_unref(c->nothing);
    FSDP__FREE_ALL(c->inputs, c->wanted, c->versions, c->entries, c->numbers, c->values, c);
}

/* The last reference does not free it inside a backward: what `arg` holds, such as a module, may be in use until that
 * ends. */
void fsdp__recomputation_unref(fsdp__recomputation *c)
{
    fsdp__run *run = NULL;

    if (!c || --c->refs > 0)
        return;
    fsdp__recomputation_settle(c);
    for (fsdp__run *r = fsdp__autograd_get(c->context)->running; r; r = r->outer)
        run = r;
    if (!run) {
        recomputation_free(c);
        return;
    }
    c->next_dead = run->dead;
    run->dead = c;
}

void fsdp__recomputations_free(fsdp__recomputation *dead)
{
    while (dead) {
        fsdp__recomputation *c = dead;

        dead = c->next_dead;
        recomputation_free(c);
    }
}

void fsdp__recomputation_forget(fsdp__node *node)
{
    fsdp__recomputation *c = node->recomputation;

    if (!c)
        return;
    c->entries[node->place].node = NULL;
    node->recomputation = NULL;
    fsdp__recomputation_unref(c);
}
