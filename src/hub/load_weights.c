/* load_weights.c - loads parameters from a folder's weights: every rank gets its own rows. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "hub/hub.h"
#include "hub/mismatch.h"
#include "hub/read.h"
#include "state/check.h"
#include "state/entry.h"
#include "tensor/tensor.h"

/* A load in progress. */
typedef struct loader {
    const char *folder;
    const fsdp_model_config *config; /* NULL: names are taken as they are */
    const fsdp_state_dict *state;
    fsdp_state_dict_keys *keys;         /* collects the names that are skipped; NULL: they are an error */
    bool headers_only;                  /* no values will be read: the state may be on the meta device */
    fsdp_process_group *group;          /* its rank 0 reads for all; NULL: each rank reads for itself */
    const fsdp__hub_listener *listener; /* NULL: nobody listens */
    fsdp__hub_reader reader;
    fsdp__mismatch mismatch;
    fsdp_weights *files;
    const fsdp_weights_entry **sources; /* one per entry of the state */
    bool *used;                         /* one per tensor of the files */
} loader;

/* Returns the name without "transformer." or "model.", which folders of the body alone do not have. */
static const char *bare_name(const char *name, fsdp_architecture architecture)
{
    const char *prefix = architecture == FSDP_GPT2 ? "transformer." : "model.";
    size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

const fsdp_weights_entry *fsdp__hub_find(const fsdp_weights *files, const fsdp_model_config *config, const char *name)
{
    const fsdp_weights_entry *found = fsdp_weights_find(files, name);

    if (found || !config)
        return found;
    found = fsdp_weights_find(files, bare_name(name, config->architecture));
    if (!found && config->tie_word_embeddings && strcmp(name, fsdp__embedding_name(config->architecture)) == 0)
        found = fsdp_weights_find(files, FSDP__HEAD_NAME); /* a tied pair may be stored under either name */
    return found;
}

static fsdp_status check_dtype(const fsdp_state_dict_entry *entry, const fsdp_weights_entry *source)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(entry->tensor);

    if (!fsdp_dtype_is_floating(dtype) && source->dtype != dtype)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' is %s, but the model's is %s", source->file,
                         FSDP__SHOWN_NAME(source->name), source->dtype_name, fsdp_dtype_name(dtype));
    if (fsdp_dtype_is_floating(dtype) && !fsdp_dtype_is_floating(source->dtype))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot load '%s': tensor '%s' is %s, but float32, bfloat16 or float16 is needed; quantized "
                         "weights are not supported",
                         source->file, FSDP__SHOWN_NAME(source->name), source->dtype_name);
    return FSDP_OK;
}

/* ---- tensors beyond the parameters ---- */

/* Returns whether the name is that of a constant that some version of transformers has stored: a mask or rotary
 * frequencies. */
static bool known_constant(const char *name, fsdp_architecture architecture)
{
    if (architecture == FSDP_GPT2)
        return fsdp__ends_with(name, ".attn.bias") || fsdp__ends_with(name, ".attn.masked_bias");
    return fsdp__ends_with(name, "rotary_emb.inv_freq");
}

/* Checks that the stored head of a tied model equals the embedding. */
static fsdp_status check_tied_head(loader *l, const fsdp_weights_entry *head)
{
    const fsdp_state_dict_entry *entry = fsdp_state_dict_find(l->state, fsdp__embedding_name(l->config->architecture));
    const fsdp_weights_entry *embedding = entry ? l->sources[entry - l->state->entries] : NULL;
    bool same = false;

    if (!entry)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' belongs to no parameter", head->file, head->name);
    if (head->dtype != embedding->dtype || head->ndim != embedding->ndim ||
        memcmp(head->shape, embedding->shape, (size_t)head->ndim * sizeof *head->shape) != 0)
        return FSDP_FAIL(
            FSDP_FORMAT,
            "cannot load '%s': tensor '%s' has another shape or dtype than '%s', but config.json ties them", head->file,
            head->name, embedding->name);
    if (l->headers_only || l->mismatch.misshapen > 0) /* that is what the error will say */
        return FSDP_OK;
    FSDP_TRY(fsdp__hub_compare_part(&l->reader, entry, head, embedding, &same));
    if (!same)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' differs from '%s', but config.json ties them",
                         head->file, head->name, embedding->name);
    return FSDP_OK;
}

/* Finds whether the purpose of the tensor is known. */
static fsdp_status check_extra(loader *l, const fsdp_weights_entry *extra, bool *known)
{
    *known = l->config && known_constant(extra->name, l->config->architecture);
    if (*known || !l->config || !l->config->tie_word_embeddings || strcmp(extra->name, FSDP__HEAD_NAME) != 0)
        return FSDP_OK;
    *known = true;
    return check_tied_head(l, extra);
}

static fsdp_status check_bytes(const loader *l)
{
    if (l->headers_only || (fsdp__state_dict_check_values(l->state, "load into") == FSDP_OK &&
                            fsdp__state_dict_check_current(l->state, "load into") == FSDP_OK))
        return FSDP_OK;
    return fsdp_fail_prefix(FSDP_STATE, "'%s'", l->folder);
}

/* ---- what fits what ---- */

static fsdp_status note_missing(loader *l, const char *name)
{
    fsdp__mismatch_missing(&l->mismatch, name);
    return l->keys ? fsdp__state_dict_keys_add(&l->keys->missing, &l->keys->missing_count, name) : FSDP_OK;
}

static fsdp_status note_unexpected(loader *l, const fsdp_weights_entry *extra)
{
    fsdp__mismatch_unexpected(&l->mismatch, extra->name, extra->file);
    return l->keys ? fsdp__state_dict_keys_add(&l->keys->unexpected, &l->keys->unexpected_count, extra->name) : FSDP_OK;
}

/* Notes tensors that belong to no parameter. An index lists what is meant, so a tensor that it leaves out is not
 * reported. */
static fsdp_status match_extra(loader *l)
{
    for (int64_t i = 0; i < fsdp_weights_count(l->files); i++) {
        const fsdp_weights_entry *entry = fsdp_weights_at(l->files, i);
        bool known = l->used[i] || entry->unlisted;

        if (!known)
            FSDP_TRY(check_extra(l, entry, &known));
        if (!known)
            FSDP_TRY(note_unexpected(l, entry));
    }
    return FSDP_OK;
}

static fsdp_status match_entry(loader *l, int64_t index)
{
    const fsdp_state_dict_entry *entry = &l->state->entries[index];
    const fsdp_weights_entry *source = fsdp__hub_find(l->files, l->config, entry->name);

    if (!source)
        return note_missing(l, entry->name);
    l->sources[index] = source;
    /* The tensors that are unused at the end belong to no parameter, and are checked separately. */
    l->used[source - fsdp_weights_at(l->files, 0)] = true;
    return fsdp__mismatch_fits(&l->mismatch, entry, source->name, source->ndim, source->shape)
               ? check_dtype(entry, source)
               : FSDP_OK;
}

static fsdp_status match(loader *l)
{
    FSDP_TRY(check_bytes(l));
    for (int64_t i = 0; i < l->state->count; i++)
        FSDP_TRY(match_entry(l, i));
    FSDP_TRY(match_extra(l));
    return fsdp__mismatch_status(&l->mismatch, l->keys != NULL);
}

static void close_loader(loader *l)
{
    fsdp__hub_reader_release(&l->reader);
    FSDP__FREE_ALL(l->used, l->sources);
    fsdp_weights_close(l->files);
}

/* Opens the files. Call close_loader also after a failure, here and below. */
static fsdp_status open_files(loader *l)
{
    l->mismatch.place = l->folder;
    l->mismatch.config = l->config;
    FSDP_TRY(fsdp_weights_open(l->folder, &l->files));
    for (int64_t i = 0; i < fsdp_weights_count(l->files); i++)
        fsdp__mismatch_see(&l->mismatch, fsdp_weights_at(l->files, i)->name);
    return FSDP_OK;
}

/* Finds each entry of the state in the files. */
static fsdp_status find_sources(loader *l)
{
    l->sources = fsdp__calloc((size_t)l->state->count, sizeof *l->sources);
    l->used = l->sources ? fsdp__calloc((size_t)fsdp_weights_count(l->files), sizeof *l->used) : NULL;
    if (!l->used)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot load '%s'", l->folder);
    return match(l);
}

/* Checks everything before the first write: a folder that does not fit leaves the model as it was. */
static fsdp_status prepare(loader *l)
{
    FSDP_TRY(open_files(l));
    FSDP_TRY(fsdp__hub_reader_init(&l->reader, l->files, l->group));
    return find_sources(l);
}

/* Fills an entry, and tells the listener. */
static fsdp_status read_entry(loader *l, const fsdp_state_dict_entry *entry, const fsdp_weights_entry *source)
{
    FSDP_TRY(fsdp__hub_read_part(&l->reader, entry, source));
    return l->listener && !l->reader.ended ? l->listener->arrived(l->listener->arg, entry) : FSDP_OK;
}

static fsdp_status read_all(loader *l)
{
    fsdp_status status = FSDP_OK;

    /* With a leader the other ranks are in the same collectives, whatever has failed here. */
    for (int64_t i = 0; i < l->state->count && !l->reader.ended && (l->group || status == FSDP_OK); i++)
        if (l->sources[i])
            FSDP_KEEP_FIRST(status, read_entry(l, &l->state->entries[i], l->sources[i]));
    return status;
}

/* Asks whether all entries may be written now. If one may not, the others stay as they were, too. */
static fsdp_status ask_to_write(const loader *l)
{
    for (int64_t i = 0; i < l->state->count; i++)
        if (l->sources[i])
            FSDP_TRY(fsdp__entry_ask_to_write(&l->state->entries[i]));
    return FSDP_OK;
}

static fsdp_status load(loader *l)
{
    FSDP_TRY(prepare(l));
    FSDP_TRY(ask_to_write(l));
    return read_all(l);
}

/* [collective] */
static fsdp_status load_by_leader(loader *l)
{
    FSDP_TRY(fsdp_agree(l->group, prepare(l)));
    FSDP_TRY(fsdp__state_dict_check_same(l->state, l->group));
    FSDP_TRY(fsdp_agree(l->group, ask_to_write(l)));
    return fsdp_agree(l->group, read_all(l));
}

fsdp_status fsdp__hub_load_each(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_process_group *group, const fsdp__hub_listener *listener)
{
    FSDP__SCOPED(close_loader)
    loader l = {.folder = folder, .config = config, .state = state, .group = group, .listener = listener};

    if (!folder || !state)
        return group ? fsdp_agree(group, FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder, state and group are "
                                                                 "required"))
                     : FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder and state are required");
    return group ? load_by_leader(&l) : load(&l);
}

fsdp_status fsdp_hub_load(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config)
{
    return fsdp__hub_load_each(folder, state, config, NULL, NULL);
}

fsdp_status fsdp_hub_load_by_leader(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                    fsdp_process_group *group)
{
    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder, state and group are required");
    return fsdp__hub_load_each(folder, state, config, group, NULL);
}

fsdp_status fsdp_hub_load_partly(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_state_dict_keys *out)
{
    fsdp_state_dict_keys keys = {.missing_count = 0};
    FSDP__SCOPED(close_loader) loader l = {.folder = folder, .config = config, .state = state, .keys = &keys};
    fsdp_status status;

    if (!folder || !state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder and state are required");
    status = load(&l);
    if (status != FSDP_OK || !out)
        fsdp_state_dict_keys_release(&keys);
    if (out)
        *out = keys;
    return status;
}

/* ---- before there is a model ---- */

fsdp_status fsdp__hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config, bool by_keys)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    FSDP__SCOPED(close_loader)
    loader l = {.folder = folder, .config = config, .headers_only = true, .mismatch.by_keys = by_keys};

    if (!context || !folder || !config)
        return FSDP_FAIL(FSDP_INVALID, "cannot check a model folder: context, folder and config are required");
    FSDP_TRY(fsdp_model_config_check(config));
    FSDP_TRY(open_files(&l));
    FSDP_TRY(fsdp__mismatch_outline(&l.mismatch, context, &state));
    l.state = state;
    return find_sources(&l);
}

fsdp_status fsdp_hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config)
{
    return fsdp__hub_check(context, folder, config, false);
}
