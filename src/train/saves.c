/* saves.c - the checkpoints that a run writes: when, what, and what happens when one fails. */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/folder.h"
#include "checkpoint/retention.h"
#include "checkpoint/saver.h"
#include "checkpoint/superseded.h"
#include "device/device.h"
#include "state/entry.h"
#include "train/checkpoint_extras.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"

#define HOLD_NAME ".run"

enum {
    HOLD_WAIT_MS = 1000,
    NAMES_BYTES = 100 /* more than the longest name in it has: a step's folder, ".saving", and a rank's file */
};

static bool is_first(const fsdp_train_run *run)
{
    return fsdp_context_rank(run->context) == 0;
}

static fsdp_status of_folder(fsdp_status status)
{
    return fsdp_fail_prefix(status, "checkpoint.folder");
}

/* ---- the folder ---- */

/* Takes the hold. The ranks of a run that was killed a moment ago may be about to end: so it waits before it
 * refuses. */
static fsdp_status take_hold(const fsdp__directory *folder, fsdp__staging *out)
{
    int64_t until_ns = fsdp__clock_ns() + (int64_t)HOLD_WAIT_MS * 1000000;
    fsdp_status status = fsdp__staging_take(folder, HOLD_NAME, out);

    while (status == FSDP_STATE && fsdp__clock_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        status = fsdp__staging_take(folder, HOLD_NAME, out);
    }
    return status;
}

/* Refuses a folder whose files would have no names: ranks open them by absolute ones. */
static fsdp_status check_length(const fsdp__directory *folder)
{
    size_t bytes = strlen(folder->path);

    if (bytes + NAMES_BYTES < PATH_MAX)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "the absolute path of '%s' has %zu bytes, but that of a folder of checkpoints may have at most "
                     "%d: name another",
                     folder->path, bytes, PATH_MAX - NAMES_BYTES - 1);
}

static fsdp_status take_folder(fsdp__saves *saves, const char *path)
{
    FSDP_TRY(fsdp__directory_make_path(path, &saves->folder, &saves->made));
    FSDP_TRY(check_length(&saves->folder));
    return take_hold(&saves->folder, &saves->hold);
}

/* Checks whether the folder is held. It takes the lock for a moment, if there is one: a run that begins just then waits
 * for longer. */
static fsdp_status check_hold(const char *path)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    FSDP__SCOPED(fsdp__staging_leave) fsdp__staging hold = {.name = NULL};
    struct stat info;

    if (!fsdp__path_exists(path))
        return FSDP_OK;
    FSDP_TRY(fsdp__directory_open(path, &folder));
    if (!fsdp__directory_look(&folder, HOLD_NAME, &info))
        return FSDP_OK;
    return fsdp__staging_take(&folder, HOLD_NAME, &hold);
}

fsdp_status fsdp__saves_check_free(const char *folder)
{
    return fsdp_fail_prefix(check_hold(folder), "cannot write a checkpoint to '%s'", folder);
}

fsdp_status fsdp__saves_hold(fsdp_train_run *run)
{
    if (!fsdp__train_saves(run->config) || !is_first(run))
        return FSDP_OK;
    return of_folder(take_folder(&run->saves, run->config->checkpoint.folder));
}

/* Counts the bytes of a checkpoint, before there is optimizer state. */
static fsdp_status count_bytes(fsdp_train_run *run)
{
    double numel = 0, own_numel = 0, moments;
    fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp__train_state(run, &state));
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *entry = &state->entries[i];
        double whole = 1;

        for (int d = 0; d < entry->ndim; d++)
            whole *= (double)entry->global_shape[d];
        numel += whole;
        if (fsdp__entry_writes(entry, NULL))
            own_numel += (double)fsdp_tensor_numel(entry->tensor);
    }
    fsdp_state_dict_free(state);
    /* This is for each parameter that is trained, or was; shards and state are float32. */
    moments = fsdp__train_moments(run->config) * (double)(run->trained_parameters + run->kept_parameters) / numel;
    moments += run->ema.average ? (double)run->trained_parameters / numel : 0;
    run->saves.bytes = 4 * numel * (1 + moments);
    run->saves.own_bytes = 4 * own_numel * (1 + moments);
    return FSDP_OK;
}

/* Sets a newer checkpoint aside. A run that was told to go on from an older checkpoint makes the newer ones again. The
 * old ones get another name, so that nobody who looks for the newest finds what this run has left behind. */
static fsdp_status set_aside(const fsdp_train_run *run, int64_t step)
{
    FSDP__FREED char *to = NULL;

    FSDP_TRY(fsdp__supersede(&run->saves.folder, step, &to));
    fsdp_log(run->context, FSDP_LOG_WARNING,
             "step-%lld is newer than the checkpoint that the run continues from, and is '%s' from here on%s",
             (long long)step, to,
             run->config->checkpoint.keep_latest_k > 0 ? ", until there are checkpoint.keep_latest_k others" : "");
    return FSDP_OK;
}

static fsdp_status set_newer_aside(const fsdp_train_run *run)
{
    FSDP__FREED int64_t *steps = NULL;
    int64_t count = 0;

    if (run->config->checkpoint.load_step == FSDP_CHECKPOINT_NEWEST || run->step >= run->config->training.steps)
        return FSDP_OK;
    FSDP_TRY(fsdp__step_list_in(&run->saves.folder, "", &steps, &count));
    for (int64_t i = 0; i < count; i++)
        if (steps[i] > run->step)
            FSDP_TRY(set_aside(run, steps[i]));
    return FSDP_OK;
}

/* ---- life ---- */

static void tell_of_saver(const fsdp_train_run *run)
{
    if (run->listener->saver)
        run->listener->saver(run->listener->arg, run->saves.saver);
}

fsdp_status fsdp__saves_begin(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = c->checkpoint.keep_latest_k,
                                                   .keep_every = c->checkpoint.keep_every,
                                                   .async = c->checkpoint.async_mode == 1};
    fsdp__saves *saves = &run->saves;

    saves->last = run->resume.path ? run->step : -1;
    saves->finite_step = run->resume.path ? run->resume.finite_step : -1;
    if (!fsdp__train_saves(c))
        return is_first(run) ? fsdp__train_check_disk(run) : FSDP_OK;
    if (!fsdp_world(run->context))
        return fsdp_last_status();
    FSDP_TRY(count_bytes(run));
    if (is_first(run)) {
        fsdp__remove_leftovers(run->context, &saves->folder); /* now: they take room */
        FSDP_TRY(of_folder(fsdp__check_saving_names(&saves->folder, run->step)));
        FSDP_TRY(fsdp__extras_read(run, &saves->extras));
        FSDP_TRY(fsdp__train_check_disk(run));
        FSDP_TRY(of_folder(set_newer_aside(run)));
    }
    FSDP_TRY(of_folder(
        fsdp_checkpoint_saver_create(c->checkpoint.folder, &options, fsdp_world(run->context), &saves->saver)));
    tell_of_saver(run);
    return is_first(run) ? of_folder(fsdp__saver_stay(saves->saver, &saves->folder)) : FSDP_OK;
}

void fsdp__saves_release(fsdp_train_run *run)
{
    fsdp__saves *saves = &run->saves;
    fsdp_checkpoint_saver *saver = saves->saver;
    bool held = fsdp_hold_error(true);

    if (saver) {
        fsdp_checkpoint_saver_abandon(saver); /* ends the save under way, before a signal's thread forgets it */
        saves->saver = NULL;
        tell_of_saver(run);
        fsdp_checkpoint_saver_free(saver);
    }
    fsdp__extras_release(&saves->extras);
    (void)fsdp__staging_remove(&saves->hold);
    if (saves->folder.path)
        fsdp__directory_unmake(&saves->folder, saves->made); /* does nothing if there is a checkpoint in it */
    fsdp__directory_close(&saves->folder);
    fsdp_release_error(held);
}

/* ---- one checkpoint ---- */

/* Holds all that goes into a checkpoint. */
typedef struct content {
    fsdp_checkpoint_section sections[5]; /* those from the third on belong to the run */
    int count;
    fsdp__values values;
    fsdp_checkpoint_content whole;
} content;

static fsdp_status collect(fsdp_train_run *run, content *c)
{
    c->sections[0].name = FSDP__SECTION_MODEL;
    c->sections[1].name = FSDP__SECTION_OPTIMIZER;
    FSDP_TRY(fsdp__train_state(run, &c->sections[0].state));
    c->count = 2;
    if (run->ema.average)
        c->sections[c->count++] = (fsdp_checkpoint_section){.name = FSDP__SECTION_EMA, .state = run->ema.average};
    if (run->dpo.trained.state)
        c->sections[c->count++] = (fsdp_checkpoint_section){.name = FSDP__SECTION_DPO, .state = run->dpo.trained.state};
    if (run->dpo.validated.state)
        c->sections[c->count++] =
            (fsdp_checkpoint_section){.name = FSDP__SECTION_DPO_VALIDATED, .state = run->dpo.validated.state};
    FSDP_TRY(fsdp_optimizer_state_dict(run->optimizer, &c->sections[1].state));
    FSDP_TRY(fsdp__values_of(run, &c->values));
    c->whole = (fsdp_checkpoint_content){.step = run->step,
                                         .sections = c->sections,
                                         .section_count = c->count,
                                         .values = c->values.items,
                                         .value_count = c->values.count,
                                         .files = run->saves.extras.files,
                                         .file_count = run->saves.extras.count,
                                         .mesh = run->meshes.sharded};
    return FSDP_OK;
}

static void release(content *c)
{
    fsdp_state_dict_free(c->sections[0].state);
    fsdp_state_dict_free(c->sections[1].state);
    fsdp__values_release(&c->values);
}

/* Tells that the checkpoint has been written. */
static void tell(fsdp_train_run *run, int64_t step)
{
    char *path = fsdp__step_path(run->config->checkpoint.folder, step);
    const fsdp_train_saved saved = {.step = step,
                                    .path = path ? path : run->config->checkpoint.folder,
                                    .bytes = run->saves.bytes,
                                    .seconds = (double)(fsdp__clock_ns() - run->saves.began_ns) * 1e-9,
                                    .waited_seconds = (double)run->saves.waited_ns * 1e-9};

    run->saves.failure = FSDP_OK;
    if (run->saves.finite)
        run->saves.finite_step = step;
    if (run->listener->saved)
        run->listener->saved(run->listener->arg, &saved);
    fsdp__free(path);
}

/* Returns whether training may go on after a save that failed like this: it may if it failed on all ranks, since the
 * next one may find a disk that is mended. */
static bool can_be_mended(fsdp_status status)
{
    return status != FSDP_COMM && status != FSDP_MISMATCH && status != FSDP_INTERRUPTED;
}

static fsdp_status note(fsdp_train_run *run, fsdp_status status, int64_t step)
{
    fsdp__saves *saves = &run->saves;

    if (status == FSDP_OK || !can_be_mended(status))
        return status;
    fsdp__write_error(saves->message, sizeof saves->message, "there is no checkpoint of step %lld: ", (long long)step);
    /* No rank goes on where one has lost its device. */
    FSDP_TRY(fsdp__train_agree(run, fsdp__device_alive(run->device)));
    saves->failure = status;
    if (is_first(run))
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s%s", saves->message,
                 saves->ends ? "" : "; the run goes on, and tries again with the next one");
    return FSDP_OK;
}

/* Looks whether the save under way has ended. [collective] */
static fsdp_status look(fsdp_train_run *run, bool wait)
{
    int64_t pending = fsdp_checkpoint_saver_pending(run->saves.saver), step = -1;
    fsdp_status status;

    if (pending < 0)
        return FSDP_OK;
    status = (wait ? fsdp_checkpoint_saver_wait : fsdp_checkpoint_saver_poll)(run->saves.saver, &step);
    if (status == FSDP_OK && step >= 0)
        tell(run, step);
    return note(run, status, pending);
}

/* Returns the step of the best validation so far, whose checkpoint stays; 0: there is none, or nobody wants it. */
static int64_t best_step(const fsdp_train_run *run)
{
    return run->config->validation.keep_best ? run->validation.best_step : 0;
}

/* Pins the best checkpoint, and, while what is being saved is of no use, the newest one that is. */
static fsdp_status pin(fsdp_train_run *run)
{
    const fsdp__saves *saves = &run->saves;
    int64_t steps[2];
    int count = 0;

    if (best_step(run) > 0)
        steps[count++] = best_step(run);
    if (!saves->finite && saves->finite_step >= 0)
        steps[count++] = saves->finite_step;
    return fsdp_checkpoint_saver_pin(saves->saver, steps, count);
}

/* Checks the weights. A run that goes on through steps that are not finite, or whose last step has thrown a weight out
 * of range, still saves what it has, and reports it. [collective] */
static fsdp_status look_at_weights(fsdp_train_run *run)
{
    char name[FSDP__FINITE_NAME], other[80] = "";
    fsdp__saves *saves = &run->saves;

    FSDP_TRY(fsdp__train_agree(run, fsdp_module_reshard_all(run->model))); /* a state consists of shards */
    FSDP_TRY(fsdp__find_not_finite(run, name));
    saves->finite = !*name;
    if (!saves->finite && saves->finite_step >= 0)
        snprintf(other, sizeof other, "; step-%lld, whose weights are finite, is kept beside it",
                 (long long)saves->finite_step);
    if (!saves->finite && is_first(run))
        fsdp_log(run->context, FSDP_LOG_WARNING, "the checkpoint of step %lld has NaN or infinite values in '%s'%s",
                 (long long)run->step, name, other);
    return fsdp__train_agree(run, pin(run));
}

static fsdp_status save(fsdp_train_run *run)
{
    fsdp__activity before;
    content c = {.whole = {.step = run->step}};
    fsdp_status status;

    run->saves.began_ns = fsdp__clock_ns();
    status = look_at_weights(run);
    if (status == FSDP_OK)
        status = fsdp__train_agree(run, collect(run, &c));
    before = fsdp__context_set_activity(run->context, FSDP__WRITING);
    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_save(run->saves.saver, &c.whole);
    (void)fsdp__context_set_activity(run->context, before);
    run->saves.waited_ns = fsdp__clock_ns() - run->saves.began_ns;
    release(&c);
    return status;
}

fsdp_status fsdp_train_save(fsdp_train_run *run)
{
    fsdp_status status;

    if (!run)
        return FSDP__FAIL_NULL("cannot save a checkpoint: there is no run");
    if (!run->saves.saver)
        return FSDP_FAIL(FSDP_STATE, "the run keeps no checkpoints: set checkpoint.folder");
    FSDP_TRY(fsdp__ahead_settle(run, 0, NULL));
    FSDP_TRY(look(run, true));
    if (run->saves.last == run->step && run->saves.failure == FSDP_OK)
        return FSDP_OK; /* nothing has changed since */
    status = save(run);
    FSDP_TRY(status);
    run->saves.last = run->step;
    if (fsdp_checkpoint_saver_pending(run->saves.saver) < 0)
        tell(run, run->step);
    return FSDP_OK;
}

/* ---- when ---- */

/* Agrees on the strongest demand of any rank. [collective] */
static fsdp_status agree_on_demand(fsdp_train_run *run, fsdp_train_demand *demand)
{
    const fsdp_train_listener *l = run->listener;
    unsigned char mine = (unsigned char)(l->demand ? l->demand(l->arg) : FSDP_TRAIN_GO_ON);
    int ranks = fsdp_context_world_size(run->context);
    void **all = NULL;
    size_t *bytes = NULL;

    *demand = (fsdp_train_demand)mine;
    if (ranks == 1)
        return FSDP_OK;
    FSDP_TRY(fsdp_gather_objects(fsdp_world(run->context), &mine, 1, &all, &bytes));
    for (int rank = 0; rank < ranks; rank++)
        if (bytes[rank] == 1 && *(const unsigned char *)all[rank] > *demand)
            *demand = (fsdp_train_demand) * (const unsigned char *)all[rank];
    fsdp_objects_free(fsdp_world(run->context), all, bytes);
    return FSDP_OK;
}

/* Returns whether the run ends with this step. */
static bool is_last(const fsdp_train_run *run)
{
    return run->step >= run->config->training.steps || run->validation.stops;
}

fsdp_status fsdp__saves_after_step(fsdp_train_run *run, bool *out_stop)
{
    fsdp_train_demand demand;

    *out_stop = false;
    if (!run->saves.saver)
        return FSDP_OK;
    FSDP_TRY(agree_on_demand(run, &demand));
    FSDP_TRY(look(run, false)); /* looks after the save before, which this one may replace */
    *out_stop = demand == FSDP_TRAIN_END;
    run->saves.ends = *out_stop || is_last(run);
    if (demand == FSDP_TRAIN_GO_ON && run->step % run->config->checkpoint.interval != 0 && !run->saves.ends &&
        best_step(run) != run->step)
        return FSDP_OK;
    FSDP_TRY(fsdp__ahead_settle(run, 0, NULL)); /* a step that stops the run is no save that has failed */
    FSDP_TRY(note(run, fsdp_train_save(run), run->step));
    return run->saves.ends ? look(run, true) : FSDP_OK;
}

fsdp_status fsdp__saves_failure(const fsdp_train_run *run)
{
    if (run->saves.failure == FSDP_OK)
        return FSDP_OK;
    return FSDP_FAIL(run->saves.failure, "%s", run->saves.message);
}
