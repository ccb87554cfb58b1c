/* saver.c - all ranks save a checkpoint together.
 *
 *     prepare   every rank checks what it has; the first finds the folder free, and holds it
 *     greet     all learn the staging folder, and whether they have the same tensors, all of them
 *     write     every rank writes its own files: at once, or from a copy on a thread
 *     finish    the first makes one manifest of all and gives the folder its name
 *
 * All ranks agree after each phase, so that a failure anywhere ends the save everywhere. */
#include "checkpoint/saver.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/hash.h"
#include "checkpoint/folder.h"
#include "checkpoint/retention.h"
#include "checkpoint/stage.h"
#include "comm/internal.h"
#include "format/publish.h"
#include "format/staging.h"
#include "tensor/tensor.h"

static const fsdp__folder_kind checkpoint_folder = {.noun = "checkpoint", .mark = FSDP__MANIFEST_NAME};

struct fsdp_checkpoint_saver {
    fsdp_context *context;
    fsdp_process_group *group;
    char *folder;
    fsdp__directory home; /* the folder that `folder` must stand for; its path is NULL if this was not set */
    fsdp_checkpoint_saver_options options;
    int64_t *pinned;
    int pinned_count;

    _Atomic bool stop;     /* tells the writer to give up */
    pthread_mutex_t mutex; /* guards the two fields below, which another thread may read */
    bool abandoned;
    fsdp__publication *publication; /* on the first rank, while it saves */

    bool pending; /* the fields below are in use */
    int64_t step;
    char *path;           /* of the checkpoint */
    fsdp__directory into; /* on the first rank: the directory in which it gets its name */
    fsdp__stage stage;
    fsdp_tensor *copy; /* kept for the next save */
    pthread_t thread;
    bool has_thread;
    fsdp__fault_switches faults; /* of this thread, while the other one writes */
    _Atomic bool done;           /* set by the thread */
    fsdp_status status;
    char message[1024];
    bool published;
};

static bool is_first(const fsdp_checkpoint_saver *s)
{
    return s->stage.rank == 0;
}

static fsdp_status out_of_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for a checkpoint");
}

/* ---- life ---- */

static fsdp_status check_options(const fsdp_checkpoint_saver_options *options)
{
    if (options->keep_latest_k < 0 || options->keep_every < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot keep fewer than no checkpoints: keep_latest_k is %lld, keep_every %lld",
                         (long long)options->keep_latest_k, (long long)options->keep_every);
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_create(const char *folder, const fsdp_checkpoint_saver_options *options,
                                         fsdp_process_group *group, fsdp_checkpoint_saver **out)
{
    fsdp_checkpoint_saver *s;

    if (!folder || !*folder || !group || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot save checkpoints: folder, group and a place for the saver are required");
    *out = NULL;
    if (options)
        FSDP_TRY(check_options(options));
    s = fsdp__calloc(1, sizeof *s);
    if (!s)
        return out_of_memory();
    s->context = fsdp_process_group_context(group);
    s->group = group;
    if (options)
        s->options = *options;
    s->folder = fsdp__strdup(folder);
    pthread_mutex_init(&s->mutex, NULL);
    if (!s->folder) {
        fsdp_checkpoint_saver_free(s);
        return out_of_memory();
    }
    *out = s;
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_pin(fsdp_checkpoint_saver *saver, const int64_t *steps, int count)
{
    int64_t *pinned;

    if (!saver || count < 0 || (!steps && count > 0))
        return FSDP_FAIL(FSDP_INVALID, "cannot pin checkpoints: a saver and a list of steps are required");
    pinned = fsdp__malloc((size_t)count * sizeof *pinned);
    if (!pinned)
        return out_of_memory();
    if (count > 0)
        memcpy(pinned, steps, (size_t)count * sizeof *pinned);
    fsdp__free(saver->pinned);
    saver->pinned = pinned;
    saver->pinned_count = count;
    return FSDP_OK;
}

fsdp_status fsdp__saver_stay(fsdp_checkpoint_saver *saver, const fsdp__directory *folder)
{
    fsdp__directory_close(&saver->home);
    return fsdp__directory_share(folder, &saver->home);
}

int64_t fsdp_checkpoint_saver_pending(const fsdp_checkpoint_saver *saver)
{
    return saver->pending ? saver->step : -1;
}

/* Releases what one save needs. */
static void end(fsdp_checkpoint_saver *s)
{
    fsdp__publication *publication;

    pthread_mutex_lock(&s->mutex);
    publication = s->publication;
    s->publication = NULL;
    pthread_mutex_unlock(&s->mutex);
    fsdp__publication_free(publication);
    fsdp__stage_release(&s->stage);
    fsdp__directory_close(&s->into);
    fsdp__free(s->path);
    s->path = NULL;
    s->pending = false;
    s->published = false;
}

static void join(fsdp_checkpoint_saver *s)
{
    if (!s->has_thread)
        return;
    pthread_join(s->thread, NULL);
    fsdp__fault_give(&s->faults);
    s->has_thread = false;
}

void fsdp_checkpoint_saver_free(fsdp_checkpoint_saver *saver)
{
    if (!saver)
        return;
    atomic_store(&saver->stop, true);
    join(saver);
    end(saver);
    fsdp_tensor_unref(saver->copy);
    pthread_mutex_destroy(&saver->mutex);
    fsdp__free(saver->pinned);
    fsdp__directory_close(&saver->home);
    fsdp__free(saver->folder);
    fsdp__free(saver);
}

void fsdp_checkpoint_saver_abandon(fsdp_checkpoint_saver *saver)
{
    if (!saver)
        return;
    pthread_mutex_lock(&saver->mutex);
    saver->abandoned = true;
    atomic_store(&saver->stop, true);
    if (saver->publication)
        fsdp__publication_abandon(saver->publication);
    pthread_mutex_unlock(&saver->mutex);
}

/* Returns FSDP_INTERRUPTED if the save was abandoned on this rank. */
static fsdp_status check_held(fsdp_checkpoint_saver *s)
{
    bool abandoned;

    pthread_mutex_lock(&s->mutex);
    abandoned = s->abandoned;
    pthread_mutex_unlock(&s->mutex);
    return abandoned ? FSDP_FAIL(FSDP_INTERRUPTED, "cannot save step %lld: it was given up", (long long)s->step)
                     : FSDP_OK;
}

/* Makes all ranks fail if one did, and say that the save was given up if that is the reason. [collective] */
static fsdp_status agree(fsdp_checkpoint_saver *s, fsdp_status mine)
{
    fsdp_status held = s->published ? FSDP_OK : check_held(s);

    return fsdp_agree(s->group, held != FSDP_OK ? held : mine);
}

/* ---- prepare ---- */

/* Enters the folder. Whatever the ranks write lies in folders inside staging: once these are gone nothing new can get
 * into staging, and it can be removed while other ranks have not heard yet that the save was given up. */
static fsdp_status enter_folder(fsdp_checkpoint_saver *s, fsdp__publication *publication)
{
    FSDP_TRY(fsdp__publication_scratch(publication, "parts", &s->stage.scratch));
    return fsdp__publication_content(publication, &s->stage.folder);
}

static fsdp_status remove_leftovers(const fsdp_checkpoint_saver *s)
{
    fsdp__directory folder;
    fsdp_status status =
        s->home.path ? fsdp__directory_share(&s->home, &folder) : fsdp__directory_open(s->folder, &folder);

    if (status == FSDP_OK)
        fsdp__remove_leftovers(s->context, &folder);
    fsdp__directory_close(&folder);
    return status == FSDP_NO_MEMORY ? status : FSDP_OK; /* other failures are reported where the folder is needed */
}

/* Holds the folder. The publication is stored first, so that nobody can abandon a half-made one. */
static fsdp_status hold_folder(fsdp_checkpoint_saver *s)
{
    fsdp__publish_options options = {
        .folder = s->path, .kind = &checkpoint_folder, .parent = s->home.path ? &s->home : NULL, .only_new = true};
    fsdp__publication *publication = fsdp__publication_create(s->context);

    if (!publication)
        return out_of_memory();
    pthread_mutex_lock(&s->mutex);
    s->publication = publication;
    pthread_mutex_unlock(&s->mutex);
    FSDP_TRY(check_held(s));
    FSDP_TRY(remove_leftovers(s));
    FSDP_TRY(fsdp__publication_begin(publication, &options));
    FSDP_TRY(fsdp__publication_parent(publication, &s->into));
    return enter_folder(s, publication);
}

static fsdp_status prepare(fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    int rank = fsdp_process_group_rank(s->group);

    s->stage.rank = rank;
    s->stage.stop = &s->stop;
    if (!content)
        return FSDP_FAIL(FSDP_INVALID, "cannot save a checkpoint: its content is required");
    s->step = content->step;
    FSDP_TRY(fsdp__stage_create(content, rank, fsdp_process_group_size(s->group), &s->stage));
    s->path = fsdp__step_path(s->folder, content->step, "");
    if (!s->path)
        return out_of_memory();
    return is_first(s) ? hold_folder(s) : FSDP_OK;
}

/* ---- greet ---- */

/* What a rank sends; on the first rank the names of its folders follow. */
typedef struct greeting {
    uint64_t fingerprint; /* of step, names, dtypes and shapes */
    int64_t numel, written;
    uint64_t bytes; /* of this rank's file */
} greeting;

/* Returns whether each rank has tensors of its own in the section. */
static bool is_own(const fsdp_checkpoint_content *content, const char *section)
{
    for (int i = 0; i < content->section_count; i++)
        if (strcmp(content->sections[i].name, section) == 0)
            return content->sections[i].own;
    return false;
}

static greeting greeting_of(const fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, &s->step, sizeof s->step);
    greeting mine = {.bytes = s->stage.data.count > 0 ? s->stage.data.plan.files[0].total_bytes : 0};

    for (int i = 0; i < content->section_count; i++) {
        hash = fsdp__hash_bytes(hash, content->sections[i].name, strlen(content->sections[i].name) + 1);
        hash = fsdp__hash_bytes(hash, &content->sections[i].own, sizeof content->sections[i].own);
    }
    for (int64_t i = 0; i < s->stage.manifest.tensor_count; i++) {
        const fsdp_checkpoint_tensor *tensor = &s->stage.manifest.tensors[i];
        int64_t head[2] = {tensor->dtype, tensor->ndim};

        if (is_own(content, tensor->section))
            continue;
        hash = fsdp__hash_bytes(hash, tensor->section, strlen(tensor->section) + 1);
        hash = fsdp__hash_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = fsdp__hash_bytes(hash, head, sizeof head);
        hash = fsdp__hash_bytes(hash, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
        mine.numel += fsdp__shape_numel(tensor->ndim, tensor->shape);
        for (int64_t k = 0; k < tensor->part_count; k++)
            mine.written += (int64_t)(tensor->parts[k].bytes / fsdp_dtype_size(tensor->dtype));
    }
    mine.fingerprint = hash;
    return mine;
}

/* Checks that all ranks save the same state, and that all of it is here: if one of the ranks that share it is missing,
 * its rows would be lost. */
static fsdp_status compare(const fsdp_checkpoint_saver *s, const greeting *mine, void *const *messages)
{
    int64_t written = 0;

    for (int r = 0; r < fsdp_process_group_size(s->group); r++) {
        greeting theirs;

        memcpy(&theirs, messages[r], sizeof theirs);
        written += theirs.written;
        if (r == 0 && theirs.fingerprint != mine->fingerprint)
            return FSDP_FAIL(
                FSDP_MISMATCH,
                "cannot save step %lld: the step, or names, dtypes or shapes of tensors, differ from those "
                "of rank 0",
                (long long)s->step);
    }
    if (written != mine->numel)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot save step %lld: the ranks of group '%s' write %lld of its %lld elements: all ranks "
                         "that share the tensors must save them together",
                         (long long)s->step, fsdp_process_group_name(s->group), (long long)written,
                         (long long)mine->numel);
    return FSDP_OK;
}

/* Checks on the first rank whether there is room for the files of all. */
static fsdp_status check_room(const fsdp_checkpoint_saver *s, void *const *messages)
{
    fsdp__file_list list = {0};
    fsdp_status status = FSDP_OK;

    for (int r = 0; r < fsdp_process_group_size(s->group) && status == FSDP_OK; r++) {
        char name[FSDP__RANK_FILE_NAME];
        greeting theirs;

        memcpy(&theirs, messages[r], sizeof theirs);
        status = fsdp__file_list_add(&list, fsdp__rank_file_name(r, s->stage.world_size, name), theirs.bytes);
    }
    for (int i = 0; i < s->stage.file_count && status == FSDP_OK; i++)
        status = fsdp__file_list_add(&list, s->stage.files[i].name, s->stage.files[i].bytes);
    if (status == FSDP_OK)
        status = fsdp__publication_check(s->publication, &list);
    fsdp__file_list_release(&list);
    return status;
}

/* Learns the name of the folder and the name of the scratch folder, which follow the greeting of the first rank. */
static fsdp_status learn_folder(fsdp_checkpoint_saver *s, const char *names, size_t bytes)
{
    size_t first = strnlen(names, bytes) + 1;

    if (first >= bytes)
        return FSDP_FAIL(FSDP_MISMATCH, "rank 0 has not said where it saves");
    FSDP_TRY(fsdp__staging_join(names, &s->stage.folder));
    return fsdp__staging_join(names + first, &s->stage.scratch);
}

static char *make_message(const fsdp_checkpoint_saver *s, const greeting *mine, size_t *out_bytes)
{
    const char *folder = is_first(s) ? s->stage.folder.path : "", *scratch = is_first(s) ? s->stage.scratch.path : "";
    size_t first = strlen(folder) + 1, second = strlen(scratch) + 1;
    char *message = fsdp__malloc(sizeof *mine + first + second);

    if (!message)
        return NULL;
    memcpy(message, mine, sizeof *mine);
    memcpy(message + sizeof *mine, folder, first);
    memcpy(message + sizeof *mine + first, scratch, second);
    *out_bytes = sizeof *mine + first + second;
    return message;
}

/* [collective] */
static fsdp_status greet(fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    greeting mine = greeting_of(s, content);
    size_t bytes = 0, *sizes = NULL;
    char *message = make_message(s, &mine, &bytes);
    void **messages = NULL;
    fsdp_status status;

    /* A rank without a message would leave the others waiting in the gather, so agree first. */
    status = fsdp_agree(s->group, message ? FSDP_OK : out_of_memory());
    if (status == FSDP_OK)
        status = fsdp_gather_objects(s->group, message, bytes, &messages, &sizes);
    fsdp__free(message);
    FSDP_TRY(status);
    status = compare(s, &mine, messages);
    if (status == FSDP_OK)
        status = is_first(s) ? check_room(s, messages)
                             : learn_folder(s, (const char *)messages[0] + sizeof mine, sizes[0] - sizeof mine);
    fsdp_objects_free(s->group, messages, sizes);
    return status;
}

/* ---- write ---- */

/* Copies everything, even tensors in the host's memory, since they change, too. */
static fsdp_status take_copy(fsdp_checkpoint_saver *s)
{
    int64_t bytes = (int64_t)fsdp__rank_data_bytes(&s->stage.data);
    fsdp__data_cursor cursor = {.data = &s->stage.data};

    if (bytes == 0)
        return FSDP_OK;
    if (s->copy && fsdp_tensor_numel(s->copy) < bytes) {
        fsdp_tensor_unref(s->copy);
        s->copy = NULL;
    }
    if (!s->copy)
        FSDP_TRY(fsdp_tensor_create(fsdp_cpu(s->context), FSDP_U8, FSDP_SHAPE(bytes), FSDP_MEMORY_WORKSPACE, &s->copy));
    FSDP_TRY(fsdp_tensor_begin_write(s->copy));
    FSDP_TRY(fsdp__data_cursor_read(&cursor, fsdp_tensor_data(s->copy), (size_t)bytes));
    s->stage.copy = fsdp_tensor_data(s->copy);
    return FSDP_OK;
}

static void *write_copy(void *arg)
{
    fsdp_checkpoint_saver *s = arg;

    fsdp__fault_give(&s->faults);
    s->status = fsdp__stage_write(&s->stage);
    snprintf(s->message, sizeof s->message, "%s", s->status == FSDP_OK ? "" : fsdp_last_error());
    fsdp__fault_take(&s->faults);
    atomic_store(&s->done, true);
    return NULL;
}

/* Starts the thread, with all signals blocked: they are for the program's own threads. */
static fsdp_status start_thread(fsdp_checkpoint_saver *s)
{
    sigset_t all, before;
    int error;

    fsdp__fault_take(&s->faults);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&s->thread, NULL, write_copy, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        fsdp__fault_give(&s->faults);
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start a thread to save step %lld: %s", (long long)s->step,
                         strerrordesc_np(error));
    }
    s->has_thread = true;
    return FSDP_OK;
}

static fsdp_status start(fsdp_checkpoint_saver *s)
{
    atomic_store(&s->done, false);
    s->status = FSDP_OK;
    s->message[0] = '\0';
    if (s->options.async)
        return start_thread(s);
    s->status = fsdp__stage_write(&s->stage);
    atomic_store(&s->done, true);
    return s->status;
}

/* ---- finish ---- */

static fsdp_status publish(fsdp_checkpoint_saver *s)
{
    if (!is_first(s))
        return FSDP_OK;
    FSDP_TRY(fsdp__stage_collect(&s->stage));
    FSDP_TRY(fsdp__publication_commit(s->publication));
    s->published = true;
    return FSDP_OK;
}

static void apply_retention(const fsdp_checkpoint_saver *s)
{
    fsdp__retention rule = {.keep_latest_k = s->options.keep_latest_k,
                            .keep_every = s->options.keep_every,
                            .pinned = s->pinned,
                            .pinned_count = s->pinned_count};

    if (is_first(s) && s->options.keep_latest_k > 0)
        fsdp__retention_apply(s->context, &s->into, &rule, s->step);
}

/* Returns the result of the thread, as an error of this thread. */
static fsdp_status written(fsdp_checkpoint_saver *s)
{
    join(s);
    return s->status == FSDP_OK ? FSDP_OK : FSDP_FAIL(s->status, "%s", s->message);
}

/* Finishes the save when this rank has written. [collective] */
static fsdp_status finish(fsdp_checkpoint_saver *s, fsdp_status mine, int64_t *out_step)
{
    fsdp_status status = FSDP_OK;

    FSDP_TRY_GOTO(status, agree(s, mine), out);
    FSDP_TRY_GOTO(status, agree(s, publish(s)), out);
    if (out_step)
        *out_step = s->step;
    apply_retention(s);
out:
    if (status != FSDP_OK && s->published)
        fsdp_fail_prefix(status, "the checkpoint is in '%s', but not all ranks know", s->path);
    end(s);
    return status;
}

/* ---- the calls ---- */

static fsdp_status begin(fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    fsdp_status status = prepare(s, content);

    FSDP_TRY(agree(s, status));
    status = greet(s, content);
    if (status == FSDP_OK && s->options.async)
        status = take_copy(s);
    FSDP_TRY(agree(s, status));
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_save(fsdp_checkpoint_saver *saver, const fsdp_checkpoint_content *content)
{
    fsdp_status status;

    if (!saver)
        return FSDP_FAIL(FSDP_INVALID, "cannot save a checkpoint: there is no saver");
    FSDP_TRY(fsdp_checkpoint_saver_wait(saver, NULL));
    status = begin(saver, content);
    if (status != FSDP_OK) {
        end(saver);
        return status;
    }
    status = start(saver);
    if (!saver->options.async)
        return finish(saver, status, NULL);
    status = agree(saver, status);
    if (status != FSDP_OK) {
        join(saver);
        end(saver);
        return status;
    }
    saver->pending = true;
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_wait(fsdp_checkpoint_saver *saver, int64_t *out_step)
{
    if (out_step)
        *out_step = -1;
    if (!saver)
        return FSDP_FAIL(FSDP_INVALID, "cannot wait for a checkpoint: there is no saver");
    return saver->pending ? finish(saver, written(saver), out_step) : FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_poll(fsdp_checkpoint_saver *saver, int64_t *out_step)
{
    uint8_t busy;

    if (out_step)
        *out_step = -1;
    if (!saver)
        return FSDP_FAIL(FSDP_INVALID, "cannot look for a checkpoint: there is no saver");
    if (!saver->pending)
        return FSDP_OK;
    busy = !atomic_load(&saver->done);
    FSDP_TRY(fsdp__process_group_any(saver->group, &busy, 1));
    return busy ? FSDP_OK : finish(saver, written(saver), out_step);
}

fsdp_status fsdp_checkpoint_save(const char *folder, const fsdp_checkpoint_content *content, fsdp_process_group *group)
{
    fsdp_checkpoint_saver *saver = NULL;
    fsdp_status status = fsdp_checkpoint_saver_create(folder, NULL, group, &saver);

    if (group) /* the other ranks agree at this point, too */
        status = fsdp_agree(group, status);
    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_save(saver, content);
    fsdp_checkpoint_saver_free(saver);
    return status;
}
