/* disk_needs.c - what a run writes to each file system, before it trains. Only what is certain counts, as in
 * memory_needs.c: a run that is refused could not have come to its end. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "format/free_space.h"
#include "hub/held_folder.h"
#include "train/run_config.h"
#include "train/run_steps.h"

enum {
    PARTS = 5,
    MOST_STEPS = 1000000 /* for metrics: a run that is to take more is mostly ended by hand */
};

/* Names the moments when most lies on the disks: old checkpoints go between them. */
typedef enum moment {
    LAST_CHECKPOINT,
    EXPORT
} moment;

/* Describes what is written for one key. */
typedef struct part {
    const char *key, *path; /* NULL: nothing is */
    double bytes;
    char what[60];
    dev_t disk;
    double free; /* there */
} part;

/* Returns the number of steps that the run surely takes: a validation may end it early. */
static int64_t steps_of(const fsdp_train_run *run)
{
    int64_t left = FSDP__MAX(run->config->training.steps - run->step, 0);

    return run->validation.stops ? 0 : run->config->training.early_stop > 0 ? FSDP__MIN(left, 1) : left;
}

/* Returns how many checkpoints the run surely writes. */
static int64_t saves_of(const fsdp_train_run *run)
{
    int64_t steps = steps_of(run), end = run->step + steps, interval = run->config->checkpoint.interval;

    if (steps == 0 || !fsdp__train_saves(run->config))
        return 0;
    return run->config->training.early_stop > 0 ? 1 : end / interval - run->step / interval + (end % interval != 0);
}

/* Returns how many more checkpoints there are than now: one is removed only when another is whole. */
static int64_t checkpoints_at(const fsdp_train_run *run, moment at)
{
    int64_t keep = run->config->checkpoint.keep_latest_k, saves = saves_of(run), there = 0;
    FSDP__FREED int64_t *list = NULL;
    bool held = fsdp_hold_error(true);

    (void)fsdp__step_list_in(&run->saves.folder, "", &list, &there);
    fsdp_release_error(held);
    if (there > 0)
        return at == LAST_CHECKPOINT || keep == 0 || keep > there ? FSDP__MIN(saves, 1) : 0;
    return FSDP__MIN(saves, at == EXPORT && keep == 1 ? 1 : 2);
}

static part part_of_checkpoints(const fsdp_train_run *run, moment at)
{
    int64_t count = saves_of(run) > 0 ? checkpoints_at(run, at) : 0;
    part p = {.key = "checkpoint.folder", .path = run->config->checkpoint.folder};

    p.bytes = count > 0 ? (double)count * run->saves.bytes : 0;
    snprintf(p.what, sizeof p.what, "%lld checkpoint%s", (long long)count, fsdp__plural(count));
    return p;
}

static part part_of_export(const fsdp_train_run *run, moment at)
{
    return (part){.key = "export.path",
                  .path = run->config->save.path,
                  .bytes = run->hold && at == EXPORT ? (double)run->hold->bytes : 0,
                  .what = "the model"};
}

/* Returns the part of metrics that have about so many bytes in each step. */
static part part_of_metrics(const fsdp_train_run *run, const char *key, const char *path, int bytes)
{
    int64_t steps = steps_of(run);

    return (part){.key = key, .path = path, .bytes = (double)FSDP__MIN(steps, MOST_STEPS) * bytes, .what = "metrics"};
}

/* Finds the disk, and what is free there: that of the folder or the file if there is one, which may be a mount of its
 * own, and else that of the folder it comes into. Returns false where none is filled, as by a pipe, or it is not
 * known: what cannot be opened has an error of its own. */
static bool find_disk(part *p)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    FSDP__FREED char *name = NULL;
    struct stat info;
    bool there = stat(p->path, &info) == 0;

    if (there && !S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))
        return false;
    if (!there && (fsdp__directory_of_target(p->path, &folder, &name) != FSDP_OK || fstat(folder.fd, &info) != 0))
        return false;
    p->disk = info.st_dev;
    return fsdp__room_free(there ? p->path : folder.path, &p->free) == FSDP_OK;
}

/* Lists the parts that are written at all; returns their number. */
static int list_parts(const fsdp_train_run *run, moment at, part out[PARTS])
{
    const fsdp_train_config *c = run->config;
    const part all[PARTS] = {part_of_checkpoints(run, at), part_of_export(run, at),
                             part_of_metrics(run, "metrics.jsonl", c->metrics.jsonl, 400),
                             part_of_metrics(run, "metrics.csv", c->metrics.csv, 150),
                             part_of_metrics(run, "metrics.tensorboard", c->metrics.tensorboard, 800)};
    bool held = fsdp_hold_error(true);
    int count = 0;

    for (int i = 0; i < PARTS; i++)
        if (all[i].path && all[i].bytes > 0) {
            out[count] = all[i];
            count += find_disk(&out[count]);
        }
    fsdp_release_error(held);
    return count;
}

/* Returns whether two folders of a file system share their free space, of which other programs may take some between
 * two looks. Folders with quotas of their own differ by more. */
static bool are_one(double free, double other)
{
    return fabs(free - other) <= FSDP__MAX(free, other) / 16;
}

/* Checks the sum of all parts that go where the first of these goes. */
static fsdp_status check_sum(const part *parts, int count)
{
    double sum = 0, free = parts[0].free;
    char text[600] = "";

    for (int i = 0; i < count; i++) {
        size_t used = strlen(text);

        if (parts[i].disk != parts[0].disk || !are_one(parts[i].free, parts[0].free))
            continue;
        sum += parts[i].bytes;
        free = FSDP__MIN(free, parts[i].free);
        snprintf(text + used, sizeof text - used, "%s%s for %s (%s)", used ? ", " : "", FSDP__SIZE(parts[i].bytes),
                 parts[i].what, parts[i].key);
    }
    if (sum <= free)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO,
                     "the run writes %s at least to the file system of '%s', which has %s free: %s: make room, or name "
                     "a folder on another for one of them",
                     fsdp__size_text_beside(sum, free, FSDP__ROOM(40)), parts[0].path,
                     fsdp__size_text_beside(free, sum, FSDP__ROOM(40)), text);
}

/* Checks the room for one checkpoint, which each rank writes its file of. */
static fsdp_status check_one(const fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list files = {.count = 0};

    for (int rank = 0; rank < ranks; rank++)
        FSDP_TRY(fsdp__file_list_add(&files, "rank", (uint64_t)(run->saves.bytes / ranks)));
    return fsdp_fail_prefix(fsdp__room_check(run->config->checkpoint.folder, &files), "checkpoint.folder");
}

static fsdp_status check_moment(const fsdp_train_run *run, moment at)
{
    part parts[PARTS];
    int count = list_parts(run, at, parts);

    for (int i = 0; i < count; i++)
        FSDP_TRY(check_sum(&parts[i], count - i));
    return FSDP_OK;
}

fsdp_status fsdp__train_check_disk(const fsdp_train_run *run)
{
    if (saves_of(run) > 0)
        FSDP_TRY(check_one(run));
    FSDP_TRY(check_moment(run, LAST_CHECKPOINT));
    return check_moment(run, EXPORT);
}
