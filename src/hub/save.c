/* save.c - a model folder written by all ranks at once.
 *
 *     prepare   rank 0 makes a folder beside the final one, with the files' headers and the small files
 *     write     every rank writes its own rows at their offsets
 *     publish   rank 0 gives the folder its name
 *
 * All ranks agree after each phase, so that a failure anywhere ends the save everywhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "format/plan.h"
#include "format/publish.h"
#include "hub/hub.h"
#include "tensor/tensor.h"

#define DEFAULT_LIMIT_BYTES 5000000000u /* what transformers splits at */

enum {
    CHUNK_NUMEL = 1 << 20 /* converted and written at a time */
};

static const fsdp__folder_kind model_folder = {.noun = "model", .mark = "config.json"};

/* A save in progress on one rank. */
typedef struct saver {
    char *folder;             /* final name, no slash at its end */
    char *temporary;          /* beside it */
    bool made;                /* rank 0 has made `temporary` */
    bool published, replaced; /* rank 0 has given it the name, and something had it before */
    const fsdp_state_dict *state;
    const fsdp_model_config *config;
    fsdp_dtype dtype;
    fsdp_process_group *group;
    fsdp__save_plan plan;
    int fd; /* of the file being written */
    char *path;
    void *chunk; /* CHUNK_NUMEL elements of dtype */
} saver;

static bool is_first(const saver *s)
{
    return fsdp_process_group_rank(s->group) == 0;
}

/* ---- files ---- */

static fsdp_status open_file(saver *s, const char *name, int flags)
{
    s->path = fsdp__path_join(s->temporary, name);
    if (!s->path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s'", name);
    s->fd = open(s->path, flags | O_WRONLY | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot open '%s': %s", s->path, strerrordesc_np(errno));
    return FSDP_OK;
}

/* Also of a file that could not be opened. `status` is that of the writing so far. */
static fsdp_status close_file(saver *s, fsdp_status status)
{
    /* Every rank syncs what it wrote: when all agree, all of the file is on disk. */
    if (status == FSDP_OK)
        status = fsdp__file_sync(s->fd, s->path);
    if (s->fd >= 0 && close(s->fd) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_IO, "cannot close '%s': %s", s->path, strerrordesc_np(errno));
    fsdp__free(s->path);
    s->path = NULL;
    s->fd = -1;
    return status;
}

/* `length_bytes`: what the file is extended to. */
static fsdp_status create_file(saver *s, const char *name, const void *data, size_t bytes, uint64_t length_bytes)
{
    fsdp_status status = open_file(s, name, O_CREAT | O_EXCL);

    if (status == FSDP_OK)
        status = fsdp__file_pwrite(s->fd, s->path, data, bytes, 0);
    if (status == FSDP_OK && ftruncate(s->fd, (off_t)length_bytes) != 0)
        status = FSDP_FAIL(FSDP_IO, "cannot extend '%s' to %llu bytes: %s", s->path, (unsigned long long)length_bytes,
                           strerrordesc_np(errno));
    return close_file(s, status);
}

/* ---- prepare ---- */

static fsdp_status check_arguments(const saver *s)
{
    if (s->dtype != FSDP_F32 && s->dtype != FSDP_BF16 && s->dtype != FSDP_F16)
        return FSDP_FAIL(FSDP_INVALID, "cannot write a model as %s: float32, bfloat16 and float16 are possible",
                         fsdp_dtype_name(s->dtype));
    FSDP_TRY(fsdp_model_config_check(s->config));
    for (int64_t i = 0; i < s->state->count; i++) {
        const fsdp_tensor *tensor = s->state->entries[i].tensor;

        if (!fsdp_dtype_is_floating(fsdp_tensor_dtype(tensor)))
            return FSDP_FAIL(FSDP_INVALID, "cannot write tensor '%s': it is %s, not floating",
                             s->state->entries[i].name, fsdp_dtype_name(fsdp_tensor_dtype(tensor)));
        if (fsdp_device_is_meta(fsdp_tensor_device(tensor)))
            return FSDP_FAIL(FSDP_STATE, "cannot write tensor '%s': it is on the meta device and has no values",
                             s->state->entries[i].name);
    }
    return FSDP_OK;
}

static fsdp_status create_json(saver *s)
{
    char *config = NULL, *generation = NULL;
    fsdp_status status = FSDP_OK;

    FSDP_TRY_GOTO(status, fsdp__config_text(s->config, s->dtype, &config), out);
    FSDP_TRY_GOTO(status, create_file(s, "config.json", config, strlen(config), strlen(config)), out);
    FSDP_TRY_GOTO(status, fsdp__generation_config_text(s->config, &generation), out);
    FSDP_TRY_GOTO(status, create_file(s, "generation_config.json", generation, strlen(generation), strlen(generation)),
                  out);
    if (s->plan.index)
        FSDP_TRY_GOTO(
            status,
            create_file(s, "model.safetensors.index.json", s->plan.index, strlen(s->plan.index), strlen(s->plan.index)),
            out);
out:
    free(generation);
    free(config);
    return status;
}

fsdp_status fsdp__hub_check_folder(const char *folder)
{
    return fsdp__publish_check(folder, &model_folder);
}

static fsdp_status create_files(saver *s)
{
    FSDP_TRY(fsdp__hub_check_folder(s->folder));
    FSDP_TRY(fsdp__publish_begin(s->folder, &model_folder, &s->temporary));
    /* From here on it is to be removed, or published. */
    s->made = true;
    FSDP_TRY(create_json(s));
    if (fsdp__path_exists(s->folder)) /* the tokenizer stays when the model is replaced */
        FSDP_TRY(fsdp_hub_copy_tokenizer(s->folder, s->temporary));
    for (int64_t i = 0; i < s->plan.file_count; i++) {
        const fsdp__save_file *file = &s->plan.files[i];

        FSDP_TRY(create_file(s, file->name, file->header, file->header_bytes, file->total_bytes));
    }
    return FSDP_OK;
}

/* Follows from names, global shapes, dtype and limit alone: the same on every rank. */
static fsdp_status make_plan(saver *s, uint64_t limit_bytes)
{
    fsdp_safetensors_entry *entries = fsdp__calloc((size_t)s->state->count, sizeof *entries);
    fsdp_status status;

    if (!entries)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model to '%s'", s->folder);
    for (int64_t i = 0; i < s->state->count; i++) {
        const fsdp_state_dict_entry *from = &s->state->entries[i];
        fsdp_safetensors_entry *entry = &entries[i];

        *entry = (fsdp_safetensors_entry){.name = from->name, .dtype = s->dtype, .ndim = from->ndim};
        memcpy(entry->shape, from->global_shape, sizeof entry->shape);
        entry->bytes = (size_t)fsdp__shape_numel(entry->ndim, entry->shape) * fsdp_dtype_size(s->dtype);
    }
    status = fsdp__save_plan_create(entries, s->state->count, limit_bytes, &s->plan);
    fsdp__free(entries);
    return status;
}

static fsdp_status prepare(saver *s, const char *folder, uint64_t limit_bytes)
{
    if (!*folder)
        return FSDP_FAIL(FSDP_INVALID, "cannot write a model: the folder's name is empty");
    s->folder = fsdp__publish_name(folder);
    /* For any dtype: this one has not been checked yet. */
    s->chunk = fsdp__malloc(CHUNK_NUMEL * fsdp_dtype_size(FSDP_F32));
    if (!s->folder || !s->chunk)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model to '%s'", folder);
    FSDP_TRY(check_arguments(s));
    FSDP_TRY(make_plan(s, limit_bytes));
    return is_first(s) ? create_files(s) : FSDP_OK;
}

/* ---- what rank 0 tells the others ---- */

/* Ranks whose plans differ would write over each other. */
static uint64_t fingerprint(const fsdp__save_plan *plan)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t f = 0; f < plan->file_count; f++)
        hash = fsdp__hash_bytes(hash, plan->files[f].header, plan->files[f].header_bytes);
    return hash;
}

/* Everybody learns rank 0's folder. The message: the fingerprint, then the name. [collective] */
static fsdp_status share_folder(saver *s)
{
    uint64_t mine = fingerprint(&s->plan), first;
    size_t name_bytes = s->temporary ? strlen(s->temporary) + 1 : 1, *sizes = NULL;
    char *message = fsdp__malloc(sizeof mine + name_bytes);
    void **messages = NULL;
    fsdp_status status;

    if (message) {
        memcpy(message, &mine, sizeof mine);
        memcpy(message + sizeof mine, s->temporary ? s->temporary : "", name_bytes);
    }
    /* A rank without a message would leave the others waiting in the gather. */
    status = fsdp_agree(s->group, message ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model"));
    if (status == FSDP_OK)
        status = fsdp_gather_objects(s->group, message, sizeof mine + name_bytes, &messages, &sizes);
    fsdp__free(message);
    FSDP_TRY(status);
    memcpy(&first, messages[0], sizeof first);
    if (first != mine)
        status = FSDP_FAIL(FSDP_MISMATCH, "cannot write the model: names or shapes differ from those of rank 0");
    else if (!s->temporary && !(s->temporary = fsdp__strdup((const char *)messages[0] + sizeof first)))
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the model");
    fsdp_objects_free(s->group, messages, sizes);
    return status;
}

/* ---- write ---- */

/* A run of one tensor's elements. */
typedef struct run_writer {
    saver *s;
    const fsdp_state_dict_entry *entry;
    uint64_t offset; /* of the whole tensor in its file */
} run_writer;

/* Elements [first, first + numel) of the local tensor, converted, into s->chunk. */
static fsdp_status read_chunk(saver *s, const fsdp_tensor *tensor, int64_t first, int64_t numel)
{
    fsdp_tensor *view = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__tensor_create_view(tensor->storage, tensor->dtype, FSDP_SHAPE(numel), NULL, tensor->offset + first,
                                      &view));
    status = fsdp_tensor_read(view, s->dtype, s->chunk);
    fsdp_tensor_unref(view);
    return status;
}

static fsdp_status write_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    run_writer *w = arg;
    size_t size = fsdp_dtype_size(w->s->dtype);

    for (int64_t done = 0; done < numel;) {
        int64_t count = FSDP__MIN(numel - done, (int64_t)CHUNK_NUMEL);

        FSDP_TRY(read_chunk(w->s, w->entry->tensor, local + done, count));
        FSDP_TRY(fsdp__file_pwrite(w->s->fd, w->s->path, w->s->chunk, (size_t)count * size,
                                   w->offset + (uint64_t)(global + done) * size));
        done += count;
    }
    return FSDP_OK;
}

static bool writes(const fsdp_state_dict_entry *entry)
{
    return entry->writer && fsdp_tensor_numel(entry->tensor) > 0;
}

static fsdp_status write_entries(saver *s, const fsdp__save_file *file)
{
    for (int64_t i = file->first; i < file->first + file->count; i++) {
        const fsdp_state_dict_entry *entry = &s->state->entries[i];
        run_writer w = {.s = s, .entry = entry, .offset = s->plan.offsets[i]};

        if (writes(entry))
            FSDP_TRY(fsdp_box_runs(entry->ndim, entry->global_shape, entry->offset, entry->size, write_run, &w));
    }
    return FSDP_OK;
}

/* This rank's rows of one file. */
static fsdp_status write_file(saver *s, const fsdp__save_file *file)
{
    bool mine = false;
    fsdp_status status;

    for (int64_t i = file->first; i < file->first + file->count; i++)
        mine |= writes(&s->state->entries[i]);
    if (!mine)
        return FSDP_OK;
    /* Rank 0 has made it, with its header and at its full length. */
    status = open_file(s, file->name, 0);
    if (status == FSDP_OK)
        status = write_entries(s, file);
    return close_file(s, status);
}

static fsdp_status write_files(saver *s)
{
    FSDP_TRY(share_folder(s));
    for (int64_t i = 0; i < s->plan.file_count; i++)
        FSDP_TRY(write_file(s, &s->plan.files[i]));
    return FSDP_OK;
}

/* ---- all of it ---- */

static fsdp_status publish(saver *s)
{
    if (!is_first(s))
        return FSDP_OK;
    FSDP_TRY(fsdp__publish(s->temporary, s->folder, &s->replaced));
    s->published = true;
    return FSDP_OK;
}

/* Rank 0 leaves one folder behind: the new one, or what was there before. */
static fsdp_status clean_up(saver *s, fsdp_status status)
{
    if (!s->made)
        return status;
    if (status == FSDP_OK) {
        fsdp__publish_finish(fsdp_process_group_context(s->group), s->temporary);
        return FSDP_OK;
    }
    if (s->published)
        FSDP_KEEP_FIRST(status, fsdp__publish_undo(s->temporary, s->folder, s->replaced));
    FSDP_KEEP_FIRST(status, fsdp__remove_tree(s->temporary));
    return status;
}

fsdp_status fsdp__hub_save_split(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes)
{
    saver s = {.state = state, .config = config, .dtype = dtype, .group = group, .fd = -1};
    fsdp_status status;

    if (!folder || !state || !config || !group)
        return FSDP_FAIL(FSDP_INVALID, "cannot write a model: folder, state, config and group are required");
    FSDP_TRY_GOTO(status, fsdp_agree(group, prepare(&s, folder, limit_bytes)), out);
    FSDP_TRY_GOTO(status, fsdp_agree(group, write_files(&s)), out);
    FSDP_TRY_GOTO(status, fsdp_agree(group, publish(&s)), out);
out:
    status = clean_up(&s, status);
    fsdp__save_plan_release(&s.plan);
    fsdp__free(s.chunk);
    fsdp__free(s.temporary);
    fsdp__free(s.folder);
    return status;
}

fsdp_status fsdp_hub_save(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                          fsdp_dtype dtype, fsdp_process_group *group)
{
    return fsdp__hub_save_split(folder, state, config, dtype, group, DEFAULT_LIMIT_BYTES);
}
