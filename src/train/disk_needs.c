/* disk_needs.c - what a run writes to each file system, before it trains. Only what is certain counts, as in
 * memory_needs.c: a run that is refused could not have come to its end. */
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
#include "train/run_start.h"
#include "train/run_steps.h"

enum {
    PARTS = 5,
    MOST_STEPS = 1000000 /* for metrics: a run that is to take more is mostly ended by hand */
};

/* Describes what is written for one key. */
typedef struct part {
    const char *key, *path; /* NULL: nothing is */
    double bytes;
    char what[60];
    bool is_folder;     /* the path is a folder, once there is one, and not a name in a folder */
    struct stat folder; /* that it is written into */
    double free;        /* there */
} part;

/* Returns how many checkpoints the run adds to those that are there: one is removed only when another is whole. */
static int64_t checkpoints_of(const fsdp_train_run *run)
{
    int64_t steps = run->config->training.steps, interval = run->config->checkpoint.interval, there = 0;
    int64_t left = steps / interval - run->step / interval + (steps % interval != 0);
    FSDP__FREED int64_t *list = NULL;
    bool held = fsdp_hold_error(true);

    (void)fsdp__step_list_in(&run->saves.folder, "", &list, &there);
    fsdp_release_error(held);
    return run->step >= steps ? 0 : FSDP__MIN(left, there > 0 ? 1 : 2);
}

static part part_of_checkpoints(const fsdp_train_run *run)
{
    int64_t count = fsdp__train_saves(run->config) ? checkpoints_of(run) : 0;
    part p = {.key = "checkpoint.folder", .path = run->config->checkpoint.folder, .is_folder = true};

    p.bytes = (double)count * run->saves.bytes;
    snprintf(p.what, sizeof p.what, "%lld checkpoint%s", (long long)count, fsdp__plural(count));
    return p;
}

/* Returns the part of metrics that have about so many bytes in each step. */
static part part_of_metrics(const fsdp_train_run *run, const char *key, const char *path, int bytes)
{
    int64_t steps = FSDP__MIN(run->config->training.steps - run->step, MOST_STEPS);

    return (part){.key = key,
                  .path = path,
                  .bytes = (double)steps * bytes,
                  .what = "metrics",
                  .is_folder = path == run->config->metrics.tensorboard};
}

/* Finds the folder, and what is free there. One that cannot be opened has an error of its own. */
static fsdp_status find_folder(part *p)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    FSDP__FREED char *name = NULL;

    if (!p->is_folder || fsdp__directory_open(p->path, &folder) != FSDP_OK)
        FSDP_TRY(fsdp__directory_of_target(p->path, &folder, &name));
    if (fstat(folder.fd, &p->folder) != 0)
        return fsdp__file_error("examine", folder.path);
    return fsdp__room_free(folder.path, &p->free);
}

/* Lists the parts that are written at all; returns their number. */
static int list_parts(const fsdp_train_run *run, part out[PARTS])
{
    const fsdp_train_config *c = run->config;
    const part all[PARTS] = {part_of_checkpoints(run),
                             {.key = "export.path",
                              .path = run->hold ? c->save.path : NULL,
                              .bytes = run->hold ? (double)run->hold->bytes : 0,
                              .what = "the model"},
                             part_of_metrics(run, "metrics.jsonl", c->metrics.jsonl, 400),
                             part_of_metrics(run, "metrics.csv", c->metrics.csv, 150),
                             part_of_metrics(run, "metrics.tensorboard", c->metrics.tensorboard, 800)};
    bool held = fsdp_hold_error(true);
    int count = 0;

    for (int i = 0; i < PARTS; i++)
        if (all[i].path && all[i].bytes > 0) {
            out[count] = all[i];
            count += find_folder(&out[count]) == FSDP_OK;
        }
    fsdp_release_error(held);
    return count;
}

/* Checks the sum of all parts that go where the first of these goes. */
static fsdp_status check_sum(const part *parts, int count)
{
    double sum = 0, free = parts[0].free;
    char text[600] = "";

    for (int i = 0; i < count; i++) {
        size_t used = strlen(text);

        if (parts[i].folder.st_dev != parts[0].folder.st_dev)
            continue;
        sum += parts[i].bytes;
        free = FSDP__MIN(free, parts[i].free);
        snprintf(text + used, sizeof text - used, "%s%s for %s (%s)", used ? ", " : "",
                 fsdp__size_text(parts[i].bytes, FSDP__ROOM(40)), parts[i].what, parts[i].key);
    }
    if (sum <= free)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO,
                     "the run writes %s at least to the file system of '%s', which has %s free: %s: make room, or name "
                     "a folder on another for one of them",
                     fsdp__size_text_beside(sum, free, FSDP__ROOM(40)), parts[0].path,
                     fsdp__size_text_beside(free, sum, FSDP__ROOM(40)), text);
}

fsdp_status fsdp__train_check_disk(const fsdp_train_run *run)
{
    part parts[PARTS];
    int count = list_parts(run, parts);

    for (int i = 0; i < count; i++)
        FSDP_TRY(check_sum(&parts[i], count - i));
    return FSDP_OK;
}
