/* check_tree.c - what must hold of a tree before its first forward. */
#include "shard/state/lazy_init.h"

#include "base/text.h"
#include "shard/state/prefetch.h"

/* Returns the i-th parameter of a state, counted group after group; NULL behind the last. */
static const fsdp__param *param_at(const fsdp__module_state *state, int64_t i)
{
    for (int64_t g = 0; g < state->group_count; g++) {
        if (i < state->groups[g]->param_count)
            return &state->groups[g]->params[i];
        i -= state->groups[g]->param_count;
    }
    return NULL;
}

static fsdp_status check_below(void *root, fsdp__module_state *state)
{
    return fsdp__root_find(root, state) >= 0 ? FSDP_OK : FSDP_STATE;
}

/* Checks that states that share parameters have one root, since they gather and reduce on one stream, in one order. */
static fsdp_status check_shared(const fsdp__root *root, char *const *names)
{
    for (int64_t i = 0; i < root->state_count; i++)
        if (fsdp__module_state_each(root->states[i], check_below, (void *)(uintptr_t)root) != FSDP_OK)
            return FSDP_FAIL(FSDP_STATE,
                             "'%s' shares parameters with a sharded module outside of the outermost one: run the first "
                             "forward through a sharded module that has both",
                             names[i]);
    return FSDP_OK;
}

/* Checks that fields name what they named when the parameter was sharded: a tensor that the caller has put there since
 * would be lost at the next gather. */
static fsdp_status check_fields(const fsdp__param *param)
{
    char text[256];

    FSDP_TRY(fsdp__param_group_check_summon(param->group, "run a forward with"));
    for (int64_t i = 0; i < param->field_count; i++) {
        const fsdp_tensor *named = *param->fields[i].field;

        if (named != param->sharded && named != param->unsharded)
            return FSDP_FAIL(FSDP_STATE,
                             "parameter %s names another tensor than when it was sharded: write its values "
                             "(fsdp_tensor_write), or replace it before fully_shard",
                             fsdp__param_text(param, text, sizeof text));
    }
    return FSDP_OK;
}

/* Checks that shards are still on the device they were put on: memory on another one, given to a shard, would be paid
 * for twice. */
static fsdp_status check_on_host(const fsdp__module_state *state)
{
    const fsdp_device *expected = NULL, *other = NULL;
    fsdp__names names = {.count = 0};

    for (int64_t i = 0; param_at(state, i); i++) {
        const fsdp__param *p = param_at(state, i);

        if (p->sharded->storage->device == p->group->residence.shard_device)
            continue;
        expected = p->group->residence.shard_device;
        other = p->sharded->storage->device;
        fsdp__names_add(&names, p->name ? p->name : "?");
    }
    if (names.count == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE,
                     "shards are on device '%s' and not on device '%s', where they were put: %s; write their values "
                     "(fsdp_tensor_write) instead of replacing their memory",
                     fsdp_device_name(other), fsdp_device_name(expected), fsdp__names_text(&names));
}

static fsdp_status check_ready(const fsdp__root *root)
{
    fsdp__names meta = {.count = 0};

    for (int64_t i = 0; i < root->state_count; i++)
        for (int64_t j = 0; param_at(root->states[i], j); j++)
            FSDP_TRY(check_fields(param_at(root->states[i], j)));
    for (int64_t i = 0; i < root->state_count; i++) {
        const fsdp__module_state *state = root->states[i];

        for (int64_t j = 0; fsdp__module_state_is_meta(state) && param_at(state, j); j++)
            fsdp__names_add(&meta, param_at(state, j)->name ? param_at(state, j)->name : "?");
        if (!fsdp__module_state_is_meta(state))
            FSDP_TRY(check_on_host(state));
    }
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "still on the meta device: %s: call fsdp_module_materialize before the first forward",
                         fsdp__names_text(&meta));
    return FSDP_OK;
}

static fsdp_status check_shared_comm(const fsdp__root *root, char *const *names)
{
    for (int64_t i = 0; i < root->state_count; i++) {
        const fsdp__root *own = root->states[i]->root;

        if (own != root && own->sharing != own)
            return FSDP_FAIL(FSDP_STATE,
                             "'%s' shares its communication context, but is below another sharded module: give that "
                             "one to fsdp_share_comm_context",
                             names[i]);
    }
    return FSDP_OK;
}

static fsdp_status check_doors(const fsdp__root *root, char *const *names)
{
    for (int64_t i = 0; i < root->state_count; i++) {
        const fsdp__module_state *state = root->states[i];

        if (state->door->check_tree)
            FSDP_TRY(state->door->check_tree(root, state, names[i]));
    }
    return FSDP_OK;
}

static fsdp_status check_prefetch(const fsdp__root *root, char *const *names)
{
    for (int64_t i = 0; i < root->state_count; i++)
        if (!fsdp__prefetch_is_within(root->states[i], root))
            return FSDP_FAIL(FSDP_STATE,
                             "'%s' is to prefetch a module that is not below the same outermost module: set its lists "
                             "anew",
                             names[i]);
    return FSDP_OK;
}

fsdp_status fsdp__check_tree(const fsdp__root *root, char *const *names)
{
    FSDP_TRY(check_shared(root, names));
    FSDP_TRY(check_ready(root));
    FSDP_TRY(check_doors(root, names));
    FSDP_TRY(check_prefetch(root, names));
    return check_shared_comm(root, names);
}
