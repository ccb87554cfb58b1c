/* held_folder.c - holds a folder for a model, from the start of a run to its export. */
#include "hub/held_folder.h"

#include <string.h>

#include "base/alloc.h"
#include "format/free_space.h"
#include "tensor/tensor.h"

static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json", NULL};
static const fsdp__folder_kind model_folder = {.noun = "model", .mark = "config.json", .alone = weights};
static const char *const adapter_weights[] = {"adapter_model.safetensors", NULL};
static const fsdp__folder_kind adapter_folder = {
    .noun = "adapter", .mark = FSDP__HUB_ADAPTER_CONFIG, .alone = adapter_weights};

enum {
    JSON_BYTES = 1 << 12 /* about the size of config.json and similar files */
};

fsdp_hub_hold *fsdp__hub_hold_create(fsdp_context *context, const fsdp__hub_target *target)
{
    FSDP__FREED fsdp_hub_hold *hold = fsdp__calloc(1, sizeof *hold);

    if (!hold)
        return NULL;
    hold->context = context;
    hold->target = *target;
    hold->publication = fsdp__publication_create(context);
    return hold->publication ? fsdp__take(&hold) : NULL;
}

fsdp_status fsdp__hub_hold_begin(fsdp_hub_hold *hold)
{
    fsdp__publish_options options = {.folder = hold->target.folder,
                                     .kind = hold->target.adapter ? &adapter_folder : &model_folder,
                                     .source = hold->target.source,
                                     .overwrite_hint = hold->target.overwrite_hint,
                                     .overwrite = hold->target.overwrite};

    return fsdp__publication_begin(hold->publication, &options);
}

fsdp_dtype fsdp__hub_dtype(const fsdp_state_dict_entry *entry, fsdp_dtype dtype)
{
    fsdp_dtype own = fsdp_tensor_dtype(entry->tensor);

    return dtype == FSDP_DTYPE_NONE || !fsdp_dtype_is_floating(own) ? own : dtype;
}

static fsdp_status name_for_adapter(fsdp__save_plan *plan)
{
    for (int64_t i = 0; i < plan->file_count; i++) { /* one, or none */
        fsdp__free(plan->files[i].name);
        FSDP__TRY_NEW(plan->files[i].name = fsdp__strdup(adapter_weights[0]));
    }
    return FSDP_OK;
}

fsdp_status fsdp__hub_plan(const fsdp_state_dict *state, fsdp_dtype dtype, uint64_t limit_bytes, fsdp__save_plan *out)
{
    FSDP__FREED fsdp_safetensors_entry *entries = fsdp__calloc((size_t)state->count, sizeof *entries);

    if (!entries)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model");
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *from = &state->entries[i];
        fsdp_safetensors_entry *entry = &entries[i];

        *entry =
            (fsdp_safetensors_entry){.name = from->name, .dtype = fsdp__hub_dtype(from, dtype), .ndim = from->ndim};
        memcpy(entry->shape, from->global_shape, sizeof entry->shape);
        entry->bytes = (size_t)fsdp__shape_numel(entry->ndim, entry->shape) * fsdp_dtype_size(entry->dtype);
    }
    FSDP_TRY(fsdp__save_plan_create(entries, state->count, limit_bytes, out));
    return limit_bytes == FSDP__HUB_ONE_FILE ? name_for_adapter(out) : FSDP_OK;
}

static fsdp_status list_planned(const fsdp_hub_hold *hold, const fsdp__save_plan *plan, bool has_config,
                                fsdp__file_list *list)
{
    const char *tokenizer = fsdp__hub_tokenizer_folder(&hold->target);

    for (int64_t i = 0; i < plan->file_count; i++)
        FSDP_TRY(fsdp__file_list_add(list, plan->files[i].name, plan->files[i].total_bytes));
    if (plan->index)
        FSDP_TRY(fsdp__file_list_add(list, weights[1], strlen(plan->index)));
    if (hold->target.adapter)
        FSDP_TRY(fsdp__file_list_add(list, FSDP__HUB_ADAPTER_CONFIG, JSON_BYTES));
    if (has_config) {
        FSDP_TRY(fsdp__file_list_add(list, "config.json", JSON_BYTES));
        FSDP_TRY(fsdp__file_list_add(list, "generation_config.json", JSON_BYTES));
    }
    return tokenizer && !hold->target.rescue ? fsdp__hub_list_tokenizer(tokenizer, list) : FSDP_OK;
}

fsdp_status fsdp__hub_hold_check_plan(fsdp_hub_hold *hold, const fsdp__save_plan *plan, bool has_config)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {0};

    FSDP_TRY(list_planned(hold, plan, has_config, &list));
    hold->bytes = fsdp__room_needed(&list, 1);
    return fsdp__publication_check(hold->publication, &list);
}

fsdp_status fsdp__hub_hold_check(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, uint64_t limit_bytes)
{
    FSDP__SCOPED(fsdp__save_plan_release) fsdp__save_plan plan = {0};

    FSDP_TRY(fsdp__hub_plan(state, dtype, limit_bytes, &plan));
    return fsdp__hub_hold_check_plan(hold, &plan, config != NULL);
}

void fsdp__hub_hold_describe(fsdp_hub_hold *hold, const char *adapter_config)
{
    if (hold)
        hold->adapter_config = adapter_config;
}

void fsdp__hub_hold_free(fsdp_hub_hold *hold)
{
    if (hold)
        fsdp__publication_free(hold->publication);
    fsdp__free(hold);
}

void fsdp_hub_abandon(fsdp_hub_hold *hold)
{
    if (hold)
        fsdp__publication_abandon(hold->publication);
}

fsdp_status fsdp_hub_repair(const char *folder, bool *out_finished)
{
    bool own;

    if (!folder)
        return FSDP_FAIL(FSDP_INVALID, "cannot repair a folder: its name is required");
    return fsdp__publish_repair(folder, out_finished ? out_finished : &own);
}
