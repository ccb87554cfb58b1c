/* load.c - parameters from a folder's safetensors: every rank reads its own rows through the map. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "fsdp/format.h"
#include "hub/hub.h"
#include "tensor/tensor.h"

/* A load in progress. */
typedef struct loader {
    const char *folder;
    const fsdp_model_config *config; /* NULL: names are what they are */
    const fsdp_state_dict *state;
    fsdp_hub_keys *keys; /* what only one of the two has is passed over, and gets in there; NULL: it is an error */
    bool headers_only;   /* nothing is to be read: the state may be on the meta device */
    fsdp_safetensors *files;
    const fsdp_safetensors_entry **sources; /* per entry of the state */
    bool *used;                             /* per tensor of the files */
} loader;

const char *fsdp__embedding_name(fsdp_architecture architecture)
{
    return architecture == FSDP_GPT2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

/* Folders of the bare body have no "transformer." or "model.": the name without it. */
static const char *bare_name(const char *name, fsdp_architecture architecture)
{
    const char *prefix = architecture == FSDP_GPT2 ? "transformer." : "model.";
    size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

static const fsdp_safetensors_entry *find_source(const loader *l, const char *name)
{
    const fsdp_safetensors_entry *found = fsdp_safetensors_find(l->files, name);

    if (found || !l->config)
        return found;
    found = fsdp_safetensors_find(l->files, bare_name(name, l->config->architecture));
    if (!found && l->config->tie_word_embeddings && strcmp(name, fsdp__embedding_name(l->config->architecture)) == 0)
        found = fsdp_safetensors_find(l->files, FSDP__HEAD_NAME); /* a tied pair may be stored under either name */
    return found;
}

static fsdp_status check_source(const fsdp_state_dict_entry *entry, const fsdp_safetensors_entry *source)
{
    char wanted[FSDP__SHAPE_TEXT], got[FSDP__SHAPE_TEXT];
    fsdp_dtype dtype = fsdp_tensor_dtype(entry->tensor);

    if (source->ndim != entry->ndim ||
        memcmp(source->shape, entry->global_shape, (size_t)entry->ndim * sizeof *source->shape) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' has shape %s, but the model's has %s",
                         source->file, FSDP__SHOWN_NAME(source->name),
                         fsdp__shape_text(source->ndim, source->shape, got),
                         fsdp__shape_text(entry->ndim, entry->global_shape, wanted));
    if (!fsdp_dtype_is_floating(dtype) && source->dtype != dtype)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' is %s, but the model's is %s", source->file,
                         FSDP__SHOWN_NAME(source->name), fsdp_dtype_name(source->dtype), fsdp_dtype_name(dtype));
    if (fsdp_dtype_is_floating(dtype) && !fsdp_dtype_is_floating(source->dtype))
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' is %s: float32, bfloat16 or float16 is needed",
                         source->file, FSDP__SHOWN_NAME(source->name), fsdp_dtype_name(source->dtype));
    return FSDP_OK;
}

/* ---- tensors beyond the parameters ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Constants that versions of transformers have stored: masks and rotary frequencies. */
static bool known_constant(const char *name, fsdp_architecture architecture)
{
    if (architecture == FSDP_LLAMA)
        return ends_with(name, "rotary_emb.inv_freq");
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

/* Compares one run of a tied head with the embedding. */
typedef struct alias {
    const fsdp_safetensors_entry *head, *embedding;
} alias;

static fsdp_status compare_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const alias *pair = arg;
    size_t size = fsdp_dtype_size(pair->head->dtype), at = (size_t)global * size;

    (void)local;
    if (memcmp((const char *)pair->head->data + at, (const char *)pair->embedding->data + at, (size_t)numel * size) !=
        0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' differs from '%s', but config.json ties them",
                         pair->head->file, pair->head->name, pair->embedding->name);
    return FSDP_OK;
}

/* A stored head of a tied model must be the embedding again; each rank looks at the rows it holds. */
static fsdp_status check_tied_head(const loader *l, const fsdp_safetensors_entry *head)
{
    const fsdp_state_dict_entry *entry = fsdp_state_dict_find(l->state, fsdp__embedding_name(l->config->architecture));
    alias pair = {.head = head, .embedding = entry ? l->sources[entry - l->state->entries] : NULL};

    if (!entry)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s' belongs to no parameter", head->file, head->name);
    if (head->dtype != pair.embedding->dtype || head->ndim != pair.embedding->ndim ||
        memcmp(head->shape, pair.embedding->shape, (size_t)head->ndim * sizeof *head->shape) != 0)
        return FSDP_FAIL(
            FSDP_FORMAT,
            "cannot load '%s': tensor '%s' has another shape or dtype than '%s', but config.json ties them", head->file,
            head->name, pair.embedding->name);
    if (l->headers_only)
        return FSDP_OK;
    return fsdp_state_dict_entry_runs(entry, compare_run, &pair);
}

/* Whether it is known what the tensor is. */
static fsdp_status check_extra(const loader *l, const fsdp_safetensors_entry *extra, bool *known)
{
    *known = l->config && known_constant(extra->name, l->config->architecture);
    if (*known || !l->config || !l->config->tie_word_embeddings || strcmp(extra->name, FSDP__HEAD_NAME) != 0)
        return FSDP_OK;
    *known = true;
    return check_tied_head(l, extra);
}

static fsdp_status check_bytes(const loader *l)
{
    fsdp__names meta = {.count = 0};

    for (int64_t i = 0; i < l->state->count && !l->headers_only; i++)
        fsdp__name_without_values(l->state->entries[i].tensor, l->state->entries[i].name, &meta, NULL);
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot load '%s' into what is still on the meta device: %s: call fsdp_module_materialize "
                         "first",
                         l->folder, fsdp__names_text(&meta));
    return FSDP_OK;
}

/* ---- what only one of the two has ---- */

static fsdp_status add_key(char ***keys, int64_t *count, const char *name)
{
    char **more = fsdp__realloc(*keys, (size_t)(*count + 1) * sizeof *more);

    if (!more)
        return FSDP_NO_MEMORY;
    *keys = more;
    more[*count] = fsdp__strdup(name);
    if (!more[*count])
        return FSDP_NO_MEMORY;
    ++*count;
    return FSDP_OK;
}

static void free_keys(char **keys, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        fsdp__free(keys[i]);
    fsdp__free(keys);
}

void fsdp_hub_keys_release(fsdp_hub_keys *keys)
{
    if (!keys)
        return;
    free_keys(keys->missing, keys->missing_count);
    free_keys(keys->unexpected, keys->unexpected_count);
    *keys = (fsdp_hub_keys){.missing_count = 0};
}

/* One message for all of them. */
typedef struct difference {
    fsdp__names missing, unexpected;
    const char *file; /* of the first that is not expected */
} difference;

static fsdp_status fail_different(const loader *l, difference *d)
{
    fsdp_status status;

    if (d->missing.count == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor%s %s belong%s to no parameter of the model", d->file,
                         d->unexpected.count > 1 ? "s" : "", fsdp__names_text(&d->unexpected),
                         d->unexpected.count > 1 ? "" : "s");
    status = FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': no file holds tensor%s %s", l->folder,
                       d->missing.count > 1 ? "s" : "", fsdp__names_text(&d->missing));
    if (d->unexpected.count > 0)
        status = FSDP_FAIL(status, "%s; and no parameter of the model is %s", fsdp_last_error(),
                           fsdp__names_text(&d->unexpected));
    return status;
}

static fsdp_status note_missing(const loader *l, const char *name, difference *d)
{
    fsdp__names_add(&d->missing, FSDP__SHOWN_NAME(name));
    return l->keys ? add_key(&l->keys->missing, &l->keys->missing_count, name) : FSDP_OK;
}

static fsdp_status note_unexpected(const loader *l, const fsdp_safetensors_entry *extra, difference *d)
{
    d->file = d->file ? d->file : extra->file;
    fsdp__names_add(&d->unexpected, FSDP__SHOWN_NAME(extra->name));
    return l->keys ? add_key(&l->keys->unexpected, &l->keys->unexpected_count, extra->name) : FSDP_OK;
}

static fsdp_status match_extra(const loader *l, difference *d)
{
    for (int64_t i = 0; i < fsdp_safetensors_count(l->files); i++) {
        bool known = l->used[i];

        if (!known)
            FSDP_TRY(check_extra(l, fsdp_safetensors_at(l->files, i), &known));
        if (!known)
            FSDP_TRY(note_unexpected(l, fsdp_safetensors_at(l->files, i), d));
    }
    return FSDP_OK;
}

static fsdp_status match(loader *l)
{
    difference d = {.file = NULL};

    FSDP_TRY(check_bytes(l));
    for (int64_t i = 0; i < l->state->count; i++) {
        l->sources[i] = find_source(l, l->state->entries[i].name);
        if (!l->sources[i]) {
            FSDP_TRY(note_missing(l, l->state->entries[i].name, &d));
            continue;
        }
        FSDP_TRY(check_source(&l->state->entries[i], l->sources[i]));
        /* What is left over in the end belongs to no parameter, and is looked at by itself. */
        l->used[l->sources[i] - fsdp_safetensors_at(l->files, 0)] = true;
    }
    FSDP_TRY(match_extra(l, &d));
    return !l->keys && d.missing.count + d.unexpected.count > 0 ? fail_different(l, &d) : FSDP_OK;
}

/* ---- reading ---- */

/* This rank's box of a tensor, in the dtype of the file. */
typedef struct box_reader {
    const fsdp_safetensors_entry *source;
    int64_t numel;
    const void *data; /* of all its elements: in the map where they lie together, else `buffer` */
    char *buffer;
} box_reader;

static fsdp_status read_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    box_reader *p = arg;
    size_t size = fsdp_dtype_size(p->source->dtype);
    const char *from = (const char *)p->source->data + (size_t)global * size;

    /* Files need not align their data. */
    if (numel == p->numel && (uintptr_t)from % size == 0) {
        p->data = from;
        return FSDP_OK;
    }
    if (!p->buffer)
        p->buffer = fsdp__malloc((size_t)p->numel * size);
    if (!p->buffer)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot load tensor '%s'", p->source->name);
    memcpy(p->buffer + (size_t)local * size, from, (size_t)numel * size);
    p->data = p->buffer;
    return FSDP_OK;
}

static fsdp_status read_entry(const fsdp_state_dict_entry *entry, const fsdp_safetensors_entry *source)
{
    box_reader p = {.source = source, .numel = fsdp_tensor_numel(entry->tensor)};
    fsdp_status status = FSDP_OK;

    if (p.numel == 0) /* others write their rows of it */
        return fsdp_tensor_begin_write(entry->tensor);
    FSDP_TRY_GOTO(status, fsdp_state_dict_entry_runs(entry, read_run, &p), out);
    FSDP_TRY_GOTO(status, fsdp_tensor_write(entry->tensor, source->dtype, p.data), out);
out:
    fsdp__free(p.buffer);
    return status;
}

static void close_loader(loader *l)
{
    fsdp__free(l->used);
    fsdp__free(l->sources);
    fsdp_safetensors_close(l->files);
}

/* The files of the folder, and where in them each entry of the state is; close_loader also after a failure. */
static fsdp_status open_loader(loader *l)
{
    l->sources = fsdp__calloc((size_t)l->state->count, sizeof *l->sources);
    l->used = l->sources ? fsdp__calloc((size_t)fsdp_safetensors_count(l->files), sizeof *l->used) : NULL;
    if (!l->used)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot load '%s'", l->folder);
    return match(l);
}

static fsdp_status load(loader *l)
{
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_safetensors_open(l->folder, &l->files));
    /* All of it before the first write: a folder that does not fit leaves the model as it was. */
    FSDP_TRY_GOTO(status, open_loader(l), out);
    for (int64_t i = 0; i < l->state->count; i++)
        if (l->sources[i])
            FSDP_TRY_GOTO(status, read_entry(&l->state->entries[i], l->sources[i]), out);
out:
    close_loader(l);
    return status;
}

fsdp_status fsdp_hub_load(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config)
{
    if (!folder || !state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder and state are required");
    return load(&(loader){.folder = folder, .config = config, .state = state});
}

fsdp_status fsdp_hub_load_partly(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_hub_keys *out)
{
    fsdp_hub_keys keys = {.missing_count = 0};
    fsdp_status status;

    if (!folder || !state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a model: folder and state are required");
    status = load(&(loader){.folder = folder, .config = config, .state = state, .keys = &keys});
    if (status != FSDP_OK || !out)
        fsdp_hub_keys_release(&keys);
    if (out)
        *out = keys;
    return status;
}

/* ---- before there is a model ---- */

/* Even a model without bytes takes memory for its modules: sizes that no file can fill are found before. */
static fsdp_status check_numel(const loader *l)
{
    int64_t needed = fsdp_model_config_parameters(l->config), held = 0;

    for (int64_t i = 0; i < fsdp_safetensors_count(l->files); i++) {
        const fsdp_safetensors_entry *entry = fsdp_safetensors_at(l->files, i);

        held += fsdp__shape_numel(entry->ndim, entry->shape);
    }
    if (held < needed)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot load '%s': a model of the sizes in its config.json has %lld parameters, but its files "
                         "hold %lld elements",
                         l->folder, (long long)needed, (long long)held);
    return FSDP_OK;
}

fsdp_status fsdp_hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config)
{
    loader l = {.folder = folder, .config = config, .headers_only = true};
    fsdp_state_dict *state = NULL;
    fsdp_module *model = NULL;
    fsdp_status status = FSDP_OK;

    if (!context || !folder || !config)
        return FSDP_FAIL(FSDP_INVALID, "cannot check a model folder: context, folder and config are required");
    FSDP_TRY(fsdp_model_config_check(config));
    FSDP_TRY(fsdp_safetensors_open(folder, &l.files));
    FSDP_TRY_GOTO(status, check_numel(&l), out);
    model = fsdp_model_create(context, fsdp_meta(context), config);
    if (!model) {
        status = fsdp_last_status();
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp_state_dict_from_module(model, &state), out);
    l.state = state;
    FSDP_TRY_GOTO(status, open_loader(&l), out);
out:
    close_loader(&l);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return status;
}
