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
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/probe.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/stage.h"
#include "comm/group_calls.h"
#include "format/publish.h"
#include "state/joint_save.h"
#include "tensor/tensor.h"

static const fsdp__folder_kind checkpoint_folder = {.noun = "checkpoint", .mark = FSDP__MANIFEST_NAME};

struct fsdp_checkpoint_saver {
    pid_t process; /* that has made it */
    fsdp_context *context;
    fsdp_process_group *group;
    char *folder;
    fsdp__directory home; /* the folder that `folder` must stand for; its path is NULL if this was not set */
    fsdp_checkpoint_saver_options options;
    int64_t *pinned;
    int pinned_count;

    _Atomic bool stop;              /* tells the writer to give up */
    fsdp__publication *publication; /* it begins on the first rank only; all see there that they are to give up */

    bool pending; /* the fields below are in use */
    int64_t step;
    char *path;           /* of the checkpoint */
    fsdp__directory into; /* on the first rank: the directory in which it gets its name */
    fsdp__stage stage;
    fsdp_tensor *copy; /* kept for the next save */
    pthread_t thread;
    bool has_thread;
    _Atomic bool done; /* set by the thread */
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
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot keep a negative number of checkpoints: keep_latest_k is %lld, keep_every %lld",
                         (long long)options->keep_latest_k, (long long)options->keep_every);
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_create(const char *folder, const fsdp_checkpoint_saver_options *options,
                                         fsdp_process_group *group, fsdp_checkpoint_saver **out)
{
    FSDP__SCOPED(fsdp_checkpoint_saver_free_at) fsdp_checkpoint_saver *s = NULL;

    if (!folder || !*folder || !group || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot save checkpoints: folder, group and a place for the saver are required");
    *out = NULL;
    if (options)
        FSDP_TRY(check_options(options));
    s = fsdp__calloc(1, sizeof *s);
    if (!s)
        return out_of_memory();
    s->process = getpid();
    s->context = fsdp_process_group_context(group);
    s->group = group;
    if (options)
        s->options = *options;
    s->folder = fsdp__strdup(folder);
    s->publication = fsdp__publication_create(s->context);
    if (!s->folder || !s->publication)
        return out_of_memory();
    *out = fsdp__take(&s);
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
    return saver && saver->pending ? saver->step : -1;
}

/* Releases what one save needs. */
static void end(fsdp_checkpoint_saver *s)
{
    fsdp__publication_end(s->publication);
    fsdp__stage_release(&s->stage);
    fsdp__directory_close(&s->into);
    fsdp__free(fsdp__take(&s->path));
    s->pending = false;
    s->published = false;
}

/* Returns whether this is a child of fork(): it has no thread of its parent's, and what is on disk is not its. */
static bool is_inherited(const fsdp_checkpoint_saver *s)
{
    return getpid() != s->process;
}

static fsdp_status check_own(const fsdp_checkpoint_saver *s)
{
    return is_inherited(s) ? FSDP_FAIL(FSDP_STATE,
                                       "process %ld has made the saver of '%s', and a child of fork() cannot use it: "
                                       "make another",
                                       (long)s->process, s->folder)
                           : FSDP_OK;
}

static void join(fsdp_checkpoint_saver *s)
{
    if (!s->has_thread || is_inherited(s))
        return;
    pthread_join(s->thread, NULL);
    FSDP__TELL(WORK_BORROWED, .object = s);
    s->has_thread = false;
}

void fsdp_checkpoint_saver_free(fsdp_checkpoint_saver *saver)
{
    if (!saver)
        return;
    atomic_store(&saver->stop, true);
    join(saver);
    end(saver);
    fsdp__publication_free(saver->publication);
    fsdp_tensor_unref(saver->copy);
    fsdp__free(saver->pinned);
    fsdp__directory_close(&saver->home);
    FSDP__FREE_ALL(saver->folder, saver);
}

void fsdp_checkpoint_saver_abandon(fsdp_checkpoint_saver *saver)
{
    if (!saver)
        return;
    atomic_store(&saver->stop, true);
    fsdp__publication_abandon(saver->publication);
}

/* Makes all ranks fail if one did, and say that the save was given up if that is the reason. [collective] */
static fsdp_status agree(fsdp_checkpoint_saver *s, fsdp_status mine)
{
    if (!s->published && fsdp__publication_held(s->publication) != FSDP_OK)
        mine = FSDP_FAIL(FSDP_INTERRUPTED, "cannot save step %lld: it was given up", (long long)s->step);
    return fsdp_agree(s->group, mine);
}

/* ---- prepare ---- */

static fsdp_status remove_leftovers(const fsdp_checkpoint_saver *s)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder;
    fsdp_status status =
        s->home.path ? fsdp__directory_share(&s->home, &folder) : fsdp__directory_open(s->folder, &folder);

    if (status == FSDP_OK)
        fsdp__remove_leftovers(s->context, &folder);
    return status == FSDP_NO_MEMORY ? status : FSDP_OK; /* other failures are reported where the folder is needed */
}

/* Holds the folder. Whatever the ranks write lies in folders inside staging: once these are gone nothing new can get
 * into staging, and it can be removed while other ranks have not heard yet that the save was given up. */
static fsdp_status hold_folder(fsdp_checkpoint_saver *s)
{
    fsdp__publish_options options = {
        .folder = s->path, .kind = &checkpoint_folder, .parent = s->home.path ? &s->home : NULL, .only_new = true};

    /* A saver that was given up removes nothing any more. */
    FSDP_TRY(fsdp__publication_held(s->publication));
    FSDP_TRY(remove_leftovers(s));
    FSDP_TRY(fsdp__publication_begin(s->publication, &options));
    FSDP_TRY(fsdp__publication_parent(s->publication, &s->into));
    FSDP_TRY(fsdp__publication_scratch(s->publication, "parts", &s->stage.scratch));
    return fsdp__publication_content(s->publication, &s->stage.folder);
}

static fsdp_status prepare(fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    int rank = fsdp_process_group_rank(s->group);

    s->stage.context = s->context;
    s->stage.rank = rank;
    s->stage.stop = &s->stop;
    if (!content)
        return FSDP_FAIL(FSDP_INVALID, "cannot save a checkpoint: its content is required");
    s->step = content->step;
    FSDP_TRY(fsdp__stage_create(content, s->group, &s->stage));
    s->path = fsdp__step_path(s->folder, content->step);
    if (!s->path)
        return out_of_memory();
    return is_first(s) ? hold_folder(s) : FSDP_OK;
}

/* ---- greet ---- */

/* Returns whether each rank has tensors of its own in the section. */
static bool is_own(const fsdp_checkpoint_content *content, const char *section)
{
    for (int i = 0; i < content->section_count; i++)
        if (strcmp(content->sections[i].name, section) == 0)
            return content->sections[i].own;
    return false;
}

static fsdp__joint_share share_of(const fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, &s->step, sizeof s->step);
    fsdp__joint_share mine = {.bytes = s->stage.data.count > 0 ? s->stage.data.plan.files[0].total_bytes : 0};

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

/* Adds the manifests: those of the ranks, which lie there until the first has made one of all. A rank is taken to
 * describe as much as this one, and a file, with checksums of blocks of at least 1 MiB. */
static fsdp_status add_manifests(const fsdp_checkpoint_saver *s, const fsdp__joint_share *shares, fsdp__file_list *list)
{
    const uint64_t of_file = 256, block = (uint64_t)1 << 20;
    FSDP__FREED char *own = NULL;
    uint64_t all = 0, one;

    FSDP_TRY(fsdp__manifest_text(&s->stage.manifest, &own));
    for (int r = 0; r < fsdp_process_group_size(s->group); r++) {
        one = strlen(own) + of_file + (shares[r].bytes / block + 1) * FSDP__HEX_DIGITS;
        all += one;
        if (r > 0)
            FSDP_TRY(fsdp__file_list_add(list, "parts", one));
    }
    return fsdp__file_list_add(list, FSDP__MANIFEST_NAME, all);
}

/* Checks on the first rank whether there is room for the files of all. */
static fsdp_status check_room(const fsdp_checkpoint_saver *s, const fsdp__joint_share *shares)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {0};
    char name[FSDP__RANK_FILE_NAME];

    FSDP_TRY(add_manifests(s, shares, &list));
    for (int r = 0; r < fsdp_process_group_size(s->group); r++)
        FSDP_TRY(fsdp__file_list_add(&list, fsdp__rank_file_name(r, s->stage.world_size, name), shares[r].bytes));
    for (int i = 0; i < s->stage.file_count; i++)
        FSDP_TRY(fsdp__file_list_add(&list, s->stage.files[i].name, s->stage.files[i].bytes));
    return fsdp__publication_check(s->publication, &list);
}

/* [collective] */
static fsdp_status greet(fsdp_checkpoint_saver *s, const fsdp_checkpoint_content *content)
{
    char failure[64];
    const fsdp__joint_words words = {.failure = failure,
                                     .compared = "the step, or names, dtypes or shapes of tensors,",
                                     .together = "that share the tensors must save them together"};
    fsdp__directory *folders[] = {&s->stage.folder, &s->stage.scratch};
    fsdp__joint_share mine = share_of(s, content), *shares;
    fsdp_status status;

    snprintf(failure, sizeof failure, "cannot save step %lld", (long long)s->step);
    FSDP_TRY(fsdp__joint_greet(s->group, &words, &mine, folders, 2, &shares));
    status = is_first(s) ? check_room(s, shares) : FSDP_OK;
    fsdp__free(shares);
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
    if (s->copy && fsdp_tensor_numel(s->copy) < bytes)
        fsdp_tensor_unref(fsdp__take(&s->copy));
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

    FSDP__TELL(WORK_BORROWED, .object = s);
    s->status = fsdp__stage_write(&s->stage);
    snprintf(s->message, sizeof s->message, "%s", s->status == FSDP_OK ? "" : fsdp_last_error());
    FSDP__TELL(WORK_LENT, .object = s);
    atomic_store(&s->done, true);
    return NULL;
}

/* Starts the thread, with all signals blocked: they are for the program's own threads. */
static fsdp_status start_thread(fsdp_checkpoint_saver *s)
{
    sigset_t all, before;
    int error;

    FSDP__TELL(WORK_LENT, .object = s);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&s->thread, NULL, write_copy, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        FSDP__TELL(WORK_BORROWED, .object = s);
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start a thread to save step %lld: %s%s", (long long)s->step,
                         strerrordesc_np(error), fsdp__limit_behind(error));
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
        fsdp_fail_prefix(status, "the checkpoint is in '%s', but not all ranks know it", s->path);
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
    return agree(s, status);
}

fsdp_status fsdp_checkpoint_saver_save(fsdp_checkpoint_saver *saver, const fsdp_checkpoint_content *content)
{
    fsdp_status status;

    if (!saver)
        return FSDP_FAIL(FSDP_INVALID, "cannot save a checkpoint: there is no saver");
    FSDP_TRY(check_own(saver));
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
    FSDP_TRY(check_own(saver));
    return saver->pending ? finish(saver, written(saver), out_step) : FSDP_OK;
}

fsdp_status fsdp_checkpoint_saver_poll(fsdp_checkpoint_saver *saver, int64_t *out_step)
{
    uint8_t busy;

    if (out_step)
        *out_step = -1;
    if (!saver)
        return FSDP_FAIL(FSDP_INVALID, "cannot look for a checkpoint: there is no saver");
    FSDP_TRY(check_own(saver));
    if (!saver->pending)
        return FSDP_OK;
    busy = !atomic_load(&saver->done);
    FSDP_TRY(fsdp__process_group_any(saver->group, &(fsdp__any){.flags = &busy, .count = 1}));
    return busy ? FSDP_OK : finish(saver, written(saver), out_step);
}

fsdp_status fsdp_checkpoint_save(const char *folder, const fsdp_checkpoint_content *content, fsdp_process_group *group)
{
    FSDP__SCOPED(fsdp_checkpoint_saver_free_at) fsdp_checkpoint_saver *saver = NULL;
    fsdp_status status = fsdp_checkpoint_saver_create(folder, NULL, group, &saver);

    if (group) /* the other ranks agree at this point, too */
        status = fsdp_agree(group, status);
    FSDP_TRY(status);
    return fsdp_checkpoint_saver_save(saver, content);
}
