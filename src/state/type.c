/* type.c - makes a state dict of one of FSDP1's types. */
#include "base/alloc.h"
#include "state/check.h"
#include "state/entry.h"

static fsdp_status add_local(const fsdp_state_dict *state, bool offload, fsdp_state_dict *out)
{
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(fsdp__state_dict_add_to(out, state->entries[i].name, state->entries[i].tensor, offload));
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_of_type(const fsdp_state_dict *state, const fsdp_state_dict_config *config,
                                    fsdp_state_dict **out)
{
    fsdp_full_state_options full;
    fsdp_sharded_state_options rows;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *local = NULL;

    if (!state || !config || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a state dict of a type: the %s is NULL",
                         !state    ? "state dict"
                         : !config ? "config"
                                   : "place for the result");
    *out = NULL;
    if (config->type < FSDP_FULL_STATE_DICT || config->type > FSDP_LOCAL_STATE_DICT)
        return FSDP_FAIL(FSDP_INVALID, "%d is not a type of state dict", (int)config->type);
    full = (fsdp_full_state_options){.rank0_only = config->rank0_only, .offload_to_cpu = config->offload_to_cpu};
    rows =
        (fsdp_sharded_state_options){.offload_to_cpu = config->offload_to_cpu, .over_replicas = config->over_replicas};
    if (config->type == FSDP_FULL_STATE_DICT)
        return fsdp_state_dict_gather(state, &full, out);
    if (config->type == FSDP_SHARDED_STATE_DICT)
        return fsdp_state_dict_shard_rows(state, &rows, out);
    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(state), &local));
    FSDP_TRY(add_local(state, config->offload_to_cpu, local));
    *out = fsdp__take(&local);
    return FSDP_OK;
}
