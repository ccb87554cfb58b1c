/* save.c - writes a model folder from all ranks at once.
 *
 *     prepare   rank 0 makes the files in its staging folder, with the weights' headers and all of the small files
 *     write     every rank writes its own rows at their offsets
 *     publish   rank 0 moves them into place
 *
 * All ranks agree after each phase, so that a failure anywhere ends the save everywhere. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/text.h"
#include "hub/held_folder.h"
#include "state/check.h"
#include "state/entry.h"
#include "state/joint_save.h"
#include "tensor/tensor.h"

enum {
    CHUNK_BYTES = 1 << 22 /* bytes converted and written at a time */
};

/* A save in progress on one rank. */
typedef struct saver {
    fsdp_hub_hold *hold;     /* on rank 0 */
    bool begins;             /* this save begins the hold */
    bool published;          /* the files are in their places */
    fsdp__directory staging; /* rank 0's folder, where all ranks write */
    const fsdp_state_dict *state;
    const fsdp_model_config *config; /* NULL: only weights */
    fsdp_dtype dtype;
    fsdp_process_group *group;
    fsdp__save_plan plan;
    int fd; /* of the file being written */
    char *path;
    void *chunk; /* CHUNK_BYTES */
} saver;

static bool is_first(const saver *s)
{
    return fsdp_process_group_rank(s->group) == 0;
}

/* ---- files ---- */

static fsdp_status open_file(saver *s, const char *name, int flags)
{
    s->path = fsdp__path_join(s->staging.path, name);
    if (!s->path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s'", name);
    s->fd = openat(s->staging.fd, name, flags | O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot open '%s': %s%s", s->path, strerrordesc_np(errno), fsdp__limit_behind(errno));
    return FSDP_OK;
}

/* Closes the file, even if it could not be opened. `status` is that of the writing so far. */
static fsdp_status close_file(saver *s, fsdp_status status)
{
    /* Every rank syncs what it wrote: when all agree, the whole file is on disk. */
    if (status == FSDP_OK)
        status = fsdp__file_sync(s->fd, s->path);
    if (s->fd >= 0 && close(s->fd) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_IO, "cannot close '%s': %s", s->path, strerrordesc_np(errno));
    fsdp__free(fsdp__take(&s->path));
    s->fd = -1;
    return status;
}

/* Creates a file and extends it to `length_bytes`. */
static fsdp_status create_file(saver *s, const char *name, const void *data, size_t bytes, uint64_t length_bytes)
{
    fsdp_status status = open_file(s, name, O_CREAT | O_EXCL);

    if (status == FSDP_OK)
        status = fsdp__file_pwrite(s->fd, s->path, data, bytes, 0);
    if (status == FSDP_OK && ftruncate(s->fd, (off_t)length_bytes) != 0)
        status = FSDP_FAIL(FSDP_IO, "cannot extend '%s' to %llu bytes: %s%s", s->path, (unsigned long long)length_bytes,
                           strerrordesc_np(errno), fsdp__limit_behind(errno));
    return close_file(s, status);
}

/* ---- prepare ---- */

/* Checks that all tensors have values to write. */
static fsdp_status check_values(const fsdp_state_dict *state)
{
    fsdp__names meta = {.count = 0}, unwritten = {.count = 0};

    for (int64_t i = 0; i < state->count; i++)
        fsdp__name_without_values(state->entries[i].tensor, state->entries[i].name, &meta, &unwritten);
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE, "cannot write a model that is still on the meta device and has no values: %s",
                         fsdp__names_text(&meta));
    if (unwritten.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot write a model that has memory but no values yet: %s: call fsdp_module_initialize, or "
                         "load them with fsdp_hub_load",
                         fsdp__names_text(&unwritten));
    return fsdp__state_dict_check_current(state, "write");
}

/* Refuses integers in a model that a config describes. Such a model has none: they are codes that no other program
 * could read. */
static fsdp_status check_numbers(const fsdp_state_dict *state)
{
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *e = &state->entries[i];

        if (!fsdp_dtype_is_floating(fsdp_tensor_dtype(e->tensor)))
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot write '%s' of a model with a config.json: it is %s (a weight in fewer bits is "
                             "written from the state of fsdp_adapter_merge)",
                             e->name, fsdp_dtype_name(fsdp_tensor_dtype(e->tensor)));
    }
    return FSDP_OK;
}

static fsdp_status check_arguments(const saver *s)
{
    if (s->dtype != FSDP_F32 && s->dtype != FSDP_BF16 && s->dtype != FSDP_F16 && (s->config || s->dtype))
        return FSDP_FAIL(FSDP_INVALID, "cannot write a model as %s: float32, bfloat16 and float16 are possible",
                         fsdp_dtype_name(s->dtype));
    if (s->config) {
        FSDP_TRY(fsdp_model_config_check(s->config));
        FSDP_TRY(check_numbers(s->state));
    }
    return check_values(s->state);
}

static fsdp_status create_text(saver *s, const char *name, const char *text)
{
    return create_file(s, name, text, strlen(text), strlen(text));
}

static fsdp_status create_config(saver *s)
{
    FSDP__FREED char *config = NULL, *generation = NULL;

    FSDP_TRY(fsdp__hub_keep_config(s->hold->context, s->hold->target.source, s->config, s->dtype, &config));
    FSDP_TRY(create_text(s, "config.json", config));
    FSDP_TRY(fsdp__hub_generation_config(s->hold->context, s->hold->target.source, s->config, s->hold->target.talk,
                                         &generation));
    return create_text(s, "generation_config.json", generation);
}

/* Copies the tokenizer. If the weights matter most, a failure is only a warning. */
static fsdp_status copy_tokenizer(saver *s)
{
    const fsdp__hub_target *target = &s->hold->target;
    const char *tokenizer = fsdp__hub_tokenizer_folder(target);
    fsdp_status status;

    if (!tokenizer)
        return FSDP_OK;
    status = fsdp__hub_copy_tokenizer(tokenizer, &s->staging);
    if (status == FSDP_OK && target->talk && target->talk->chat_template)
        status = fsdp__directory_write_atomic(&s->staging, FSDP__HUB_CHAT_TEMPLATE, target->talk->chat_template,
                                              strlen(target->talk->chat_template));
    if (status == FSDP_OK)
        status = fsdp__hub_agree_on_template(&s->staging);
    if (status == FSDP_OK || !target->rescue)
        return status;
    fsdp_log(s->hold->context, FSDP_LOG_WARNING, "the tokenizer is not copied: %s", fsdp_last_error());
    return FSDP_OK;
}

static fsdp_status create_files(saver *s)
{
    if (s->begins)
        FSDP_TRY(fsdp__hub_hold_begin(s->hold));
    FSDP_TRY(fsdp__hub_hold_check_plan(s->hold, &s->plan, s->config != NULL));
    FSDP_TRY(fsdp__publication_content(s->hold->publication, &s->staging));
    if (s->config)
        FSDP_TRY(create_config(s));
    if (s->hold->adapter_config)
        FSDP_TRY(create_text(s, FSDP__HUB_ADAPTER_CONFIG, s->hold->adapter_config));
    if (s->plan.index)
        FSDP_TRY(create_text(s, "model.safetensors.index.json", s->plan.index));
    FSDP_TRY(copy_tokenizer(s));
    for (int64_t i = 0; i < s->plan.file_count; i++) {
        const fsdp__save_file *file = &s->plan.files[i];

        FSDP_TRY(create_file(s, file->name, file->header, file->header_bytes, file->total_bytes));
    }
    return FSDP_OK;
}

static fsdp_status prepare(saver *s, uint64_t limit_bytes)
{
    if (is_first(s) && !s->hold)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a model to be written");
    s->chunk = fsdp__malloc(CHUNK_BYTES);
    if (!s->chunk)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model");
    FSDP_TRY(check_arguments(s));
    FSDP_TRY(fsdp__hub_plan(s->state, s->dtype, limit_bytes, &s->plan));
    return is_first(s) ? create_files(s) : FSDP_OK;
}

/* ---- greet ---- */

/* Returns a hash of the plan and of the parts: ranks where these differ would overwrite each other's data. */
static uint64_t fingerprint(const fsdp_state_dict *state, const fsdp__save_plan *plan)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t i = 0; i < state->count; i++)
        hash = fsdp__entry_hash(hash, &state->entries[i]);
    for (int64_t f = 0; f < plan->file_count; f++)
        hash = fsdp__hash_bytes(hash, plan->files[f].header, plan->files[f].header_bytes);
    return hash;
}

static bool writes(const saver *s, const fsdp_state_dict_entry *entry)
{
    return fsdp__entry_writes(entry, s->group);
}

static fsdp__joint_share share_of(const saver *s)
{
    fsdp__joint_share mine = {.fingerprint = fingerprint(s->state, &s->plan)};

    for (int64_t i = 0; i < s->state->count; i++) {
        const fsdp_state_dict_entry *entry = &s->state->entries[i];

        mine.numel += fsdp__shape_numel(entry->ndim, entry->global_shape);
        mine.written += writes(s, entry) ? fsdp_tensor_numel(entry->tensor) : 0;
    }
    return mine;
}

/* [collective] */
static fsdp_status greet(saver *s)
{
    static const fsdp__joint_words words = {.failure = "cannot write the model",
                                            .compared = "names, shapes or placements",
                                            .together = "that share it must save it together"};
    fsdp__joint_share mine = share_of(s);
    FSDP__FREED fsdp__joint_share *shares = NULL;

    return fsdp__joint_greet(s->group, &words, &mine, (fsdp__directory *[]){&s->staging}, 1, &shares);
}

/* ---- write ---- */

/* A run of one tensor's elements. */
typedef struct run_writer {
    saver *s;
    const fsdp_state_dict_entry *entry;
    uint64_t offset; /* of the whole tensor in its file */
} run_writer;

/* Converts elements [first, first + numel) of the local tensor into s->chunk. */
static fsdp_status read_chunk(const saver *s, const fsdp_state_dict_entry *entry, int64_t first, int64_t numel)
{
    const fsdp_tensor *tensor = entry->tensor;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;

    FSDP_TRY(fsdp__tensor_create_view(tensor->storage, tensor->dtype, FSDP_SHAPE(numel), NULL, tensor->offset + first,
                                      &view));
    return fsdp_tensor_read(view, fsdp__hub_dtype(entry, s->dtype), s->chunk);
}

static fsdp_status write_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    run_writer *w = arg;
    size_t size = fsdp_dtype_size(fsdp__hub_dtype(w->entry, w->s->dtype));

    for (int64_t done = 0; done < numel;) {
        int64_t count = FSDP__MIN(numel - done, (int64_t)(CHUNK_BYTES / size));

        FSDP_TRY(read_chunk(w->s, w->entry, local + done, count));
        FSDP_TRY(fsdp__file_pwrite(w->s->fd, w->s->path, w->s->chunk, (size_t)count * size,
                                   w->offset + (uint64_t)(global + done) * size));
        done += count;
    }
    return FSDP_OK;
}

static fsdp_status write_entries(saver *s, const fsdp__save_file *file)
{
    for (int64_t i = file->first; i < file->first + file->count; i++) {
        const fsdp_state_dict_entry *entry = &s->state->entries[i];
        run_writer w = {.s = s, .entry = entry, .offset = s->plan.offsets[i]};

        if (writes(s, entry))
            FSDP_TRY(fsdp_state_dict_entry_runs(entry, write_run, &w));
    }
    return FSDP_OK;
}

/* Writes this rank's rows of one file. */
static fsdp_status write_file(saver *s, const fsdp__save_file *file)
{
    bool mine = false;
    fsdp_status status;

    for (int64_t i = file->first; i < file->first + file->count; i++)
        mine |= writes(s, &s->state->entries[i]);
    if (!mine)
        return FSDP_OK;
    /* Rank 0 has made the file, with its header and at its full length. */
    status = open_file(s, file->name, 0);
    if (status == FSDP_OK)
        status = write_entries(s, file);
    return close_file(s, status);
}

static fsdp_status write_files(saver *s)
{
    FSDP_TRY(greet(s));
    for (int64_t i = 0; i < s->plan.file_count; i++)
        FSDP_TRY(write_file(s, &s->plan.files[i]));
    return FSDP_OK;
}

/* ---- all of it ---- */

/* Ends a phase that makes files: if it failed on one rank, it fails on all. If the cause is that the hold was given up,
 * the message says that. [collective] */
static fsdp_status agree(saver *s, fsdp_status mine)
{
    fsdp_status held = s->hold ? fsdp__publication_held(s->hold->publication) : FSDP_OK;

    return fsdp_agree(s->group, held != FSDP_OK ? held : mine);
}

static fsdp_status publish(saver *s)
{
    if (!is_first(s))
        return FSDP_OK;
    FSDP_TRY(fsdp__publication_commit(s->hold->publication));
    s->published = true;
    return FSDP_OK;
}

static fsdp_status save(saver *s, uint64_t limit_bytes)
{
    fsdp_status status = FSDP_OK;

    FSDP_TRY_GOTO(status, agree(s, prepare(s, limit_bytes)), out);
    FSDP_TRY_GOTO(status, agree(s, write_files(s)), out);
    FSDP_TRY_GOTO(status, fsdp_agree(s->group, publish(s)), out);
out:
    if (status != FSDP_OK && s->published)
        fsdp_fail_prefix(status, "the model is in '%s', but not all ranks know it", s->hold->target.folder);
    /* After success nothing is left to abandon. */
    fsdp_hub_abandon(s->hold);
    fsdp__save_plan_release(&s->plan);
    fsdp__free(s->chunk);
    fsdp__directory_close(&s->staging);
    return status;
}

fsdp_status fsdp__hub_save_held(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes)
{
    saver s = {.hold = hold, .state = state, .config = config, .dtype = dtype, .group = group, .fd = -1};

    return save(&s, limit_bytes);
}

fsdp_status fsdp_hub_save_split(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes)
{
    const fsdp__hub_target target = {.folder = folder};
    saver s = {.begins = true, .state = state, .config = config, .dtype = dtype, .group = group, .fd = -1};
    fsdp_status status;

    limit_bytes = FSDP__MIN(limit_bytes, FSDP__HUB_ONE_FILE - 1);
    if (!folder || !state || !group) {
        status = FSDP_FAIL(FSDP_INVALID, "cannot write a model: folder, state and group are required");
        return group ? fsdp_agree(group, status) : status; /* the other ranks agree, too */
    }
    if (is_first(&s))
        s.hold = fsdp__hub_hold_create(fsdp_process_group_context(group), &target);
    status = save(&s, limit_bytes);
    fsdp__hub_hold_free(s.hold);
    return status;
}

fsdp_status fsdp_hub_save(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                          fsdp_dtype dtype, fsdp_process_group *group)
{
    return fsdp_hub_save_split(folder, state, config, dtype, group, FSDP__FILE_LIMIT_BYTES);
}
