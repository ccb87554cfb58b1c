/* recompute_life.c - drops what a recomputation holds: [Note: recomputation] in recompute_forward.c. */
#include "autograd/recompute.h"

#include "base/alloc.h"

static void drop_kept(fsdp__recomputation_entry *e)
{
    for (int i = 0; i < e->kept_count; i++)
        fsdp_tensor_unref(e->kept[i]);
    fsdp__free(e->kept);
    e->kept = NULL;
    e->kept_count = 0;
}

void fsdp__recomputation_settle(fsdp__recomputation *c)
{
    for (int i = 0; i < c->input_count; i++)
        fsdp_tensor_unref(c->inputs[i]);
    c->input_count = 0;
    for (int64_t i = 0; i < c->entry_count; i++)
        drop_kept(&c->entries[i]);
    for (int64_t i = 0; i < c->value_count; i++)
        fsdp_tensor_unref(c->values[i]);
    c->value_count = 0;
}

static void recomputation_free(fsdp__recomputation *c)
{
    if (c->options.free_arg)
        c->options.free_arg(c->arg);
    fsdp__storage_unref(c->nothing);
    fsdp__free(c->inputs);
    fsdp__free(c->wanted);
    fsdp__free(c->versions);
    fsdp__free(c->entries);
    fsdp__free(c->numbers);
    fsdp__free(c->values);
    fsdp__free(c);
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
