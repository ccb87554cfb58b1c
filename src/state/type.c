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
    const fsdp_full_state_options full = {.rank0_only = config->rank0_only, .offload_to_cpu = config->offload_to_cpu};
    const fsdp_sharded_state_options rows = {.offload_to_cpu = config->offload_to_cpu,
                                             .over_replicas = config->over_replicas};
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *local = NULL;

    if (config->type == FSDP_FULL_STATE_DICT)
        return fsdp_state_dict_gather(state, &full, out);
    if (config->type == FSDP_SHARDED_STATE_DICT)
        return fsdp_state_dict_shard_rows(state, &rows, out);
    FSDP_TRY(fsdp_state_dict_create(&local));
    FSDP_TRY(add_local(state, config->offload_to_cpu, local));
    *out = fsdp__take(&local);
    return FSDP_OK;
}
