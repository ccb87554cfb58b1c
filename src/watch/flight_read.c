/* flight_read.c - reads the files of flight recorders. */
#include "watch/flight_read.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "fsdp/comm.h"

enum {
    MOST_RANKS = 1 << 17,
    MOST_FILES = 1 << 16
};

static const int64_t most_ns = INT64_MAX / 4;               /* times up to here can be added and subtracted */
static const int64_t one_run_ns = 60 * INT64_C(1000000000); /* clocks of machines may differ by less */

/* ---- one file ---- */

static bool ends(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

static fsdp_status damaged(const char *path, size_t offset, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "'%s' is damaged at byte %zu: %s", path, offset, what);
}

static fsdp_status take_head(const char *path, const char *data, size_t bytes, fsdp__flight_log *out)
{
    fsdp__flight_head *head = &out->head;

    if (bytes < sizeof *head || memcmp(data, FSDP__FLIGHT_MAGIC, sizeof head->magic) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' is not the record of a rank's last calls (rank-N.flight)", path);
    memcpy(head, data, sizeof *head);
    if (head->version != FSDP__FLIGHT_VERSION || head->record_bytes != sizeof(fsdp__flight_record))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' was written by another version of this program (its format is %u, this one reads %d): "
                         "read it with that version",
                         path, head->version, FSDP__FLIGHT_VERSION);
    if (head->check != fsdp__flight_head_check(head))
        return damaged(path, 0, "its head does not fit its checksum");
    if (head->world < 1 || head->world > MOST_RANKS || head->rank < 0 || head->rank >= head->world ||
        head->machines < 1 || head->machine < 0 || !ends(head->host, sizeof head->host) ||
        !ends(head->build, sizeof head->build) || head->started_ns < 0 || head->started_ns > most_ns ||
        head->wall_ns < -most_ns || head->wall_ns > most_ns)
        return damaged(path, 0, "its head has a rank, world or name that cannot be");
    if (bytes < offsetof(fsdp__flight_file, records))
        return FSDP_FAIL(FSDP_FORMAT, "'%s' was cut short: it has %zu bytes of %zu", path, bytes,
                         sizeof(fsdp__flight_file));
    return FSDP_OK;
}

static fsdp_status take_end(const char *path, const char *data, fsdp__flight_log *out)
{
    const size_t at = offsetof(fsdp__flight_file, end);
    fsdp__flight_end *end = &out->end;

    memcpy(end, data + at, sizeof *end);
    if (end->state > FSDP__FLIGHT_BROKEN || end->written_ns < 0 || end->written_ns > most_ns || end->broken_ns < 0 ||
        end->broken_ns > most_ns || end->frozen_ns < 0 || end->frozen_ns > most_ns ||
        !ends(end->why, sizeof end->why) || !ends(end->ending, sizeof end->ending) ||
        !ends(end->owners, sizeof end->owners) || !ends(end->run, sizeof end->run) || !ends(end->id, sizeof end->id) ||
        !ends(end->folder, sizeof end->folder))
        return damaged(path, at, "what it says of the rank's end cannot be");
    memcpy(&out->place, data + offsetof(fsdp__flight_file, place), sizeof out->place);
    if (out->place.check != fsdp__flight_place_check(&out->place, out->place.turn) || out->place.ns < 0 ||
        out->place.ns > most_ns || !ends(out->place.word, sizeof out->place.word) ||
        !ends(out->place.module, sizeof out->place.module))
        out->place.turn = 0;
    return FSDP_OK;
}

static bool is_group(const fsdp__flight_group *g)
{
    int64_t members = 0;

    if (g->check != fsdp__flight_group_check(g) || g->size < 1 || g->size > MOST_RANKS || g->runs < 0 ||
        g->runs > FSDP__FLIGHT_RUNS || !ends(g->name, sizeof g->name))
        return false;
    for (int i = 0; i < g->runs; i++) {
        if (g->run[i].first < 0 || g->run[i].step < 1 || g->run[i].count < 1 || g->run[i].count > g->size)
            return false;
        members += g->run[i].count;
    }
    return members <= g->size;
}

static fsdp_status take_groups(const char *path, const char *data, fsdp__flight_log *out)
{
    for (int i = 0; i < FSDP__FLIGHT_GROUPS; i++) {
        size_t at = offsetof(fsdp__flight_file, groups) + (size_t)i * sizeof(fsdp__flight_group);
        fsdp__flight_group *g = &out->groups[i];

        memcpy(g, data + at, sizeof *g);
        if (g->check == 0)
            break;
        if (!is_group(g))
            return damaged(path, at, "a group's name and members do not fit their checksum");
        out->group_count++;
    }
    memcpy(&out->unlisted, data + offsetof(fsdp__flight_file, unlisted), sizeof out->unlisted);
    return FSDP_OK;
}

static bool is_record(const fsdp__flight_log *log, const fsdp__flight_record *r)
{
    return r->turn > 0 && r->check == fsdp__flight_record_check(r, r->turn) && r->group < (uint32_t)log->group_count &&
           ends(r->name, sizeof r->name) && ends(r->module, sizeof r->module) && r->number > 0 && r->issued >= 0 &&
           r->issued <= most_ns && r->begun <= most_ns && r->done <= most_ns && r->kind <= FSDP_COLLECTIVES &&
           r->dtype < FSDP_BOOL + 1 && (r->begun == 0 || r->begun >= r->issued) &&
           (r->done == 0 || (r->begun > 0 && r->done >= r->begun));
}

FSDP__ORDER_BY_ONE(by_turn, fsdp__flight_record, turn)

static fsdp_status take_records(const char *data, size_t bytes, fsdp__flight_log *out)
{
    size_t first = offsetof(fsdp__flight_file, records), count = (bytes - first) / sizeof(fsdp__flight_record);

    if (count > FSDP__FLIGHT_RECORDS)
        count = FSDP__FLIGHT_RECORDS;
    out->records = fsdp__malloc((count + 1) * sizeof *out->records);
    FSDP__TRY_NEW(out->records);
    for (size_t i = 0; i < count; i++) {
        static const fsdp__flight_record none;
        fsdp__flight_record *r = &out->records[out->count];

        memcpy(r, data + first + i * sizeof *r, sizeof *r);
        if (memcmp(r, &none, sizeof none) == 0) /* never used */
            continue;
        if (is_record(out, r) && (r->turn - 1) % FSDP__FLIGHT_RECORDS == i)
            out->count++;
        else
            out->damaged++;
    }
    qsort(out->records, (size_t)out->count, sizeof *out->records, by_turn);
    return FSDP_OK;
}

/* Returns the last time in the record. */
static int64_t last_moment(const fsdp__flight_log *log)
{
    int64_t last = log->head.started_ns;

    for (int64_t i = 0; i < log->count; i++) {
        const fsdp__flight_record *r = &log->records[i];
        int64_t moment = r->done ? r->done : r->begun ? r->begun : r->issued;

        last = moment > last ? moment : last;
    }
    return log->place.turn && log->place.ns > last ? log->place.ns : last;
}

/* Returns what time it was when the record was as it is. One that no one has copied is as it is now. */
static int64_t moment_of(const fsdp__flight_log *log)
{
    int64_t last = last_moment(log), end = log->end.written_ns, now = fsdp__clock_ns();

    if (log->end.frozen_ns)
        end = log->end.frozen_ns;
    if (log->end.state == FSDP__FLIGHT_BROKEN && (end == 0 || log->end.broken_ns < end))
        end = log->end.broken_ns;
    if (end > 0)
        return end > last ? end : last;
    if (strcmp(FSDP__HOST_NAME, log->head.host) == 0 && log->head.pid > 0 &&
        (kill(log->head.pid, 0) == 0 || errno == EPERM))
        return now > last ? now : last;
    return last;
}

static fsdp_status take_all(const char *path, const void *data, size_t bytes, fsdp__flight_log *out)
{
    FSDP_TRY(take_head(path, data, bytes, out));
    FSDP_TRY(take_end(path, data, out));
    FSDP_TRY(take_groups(path, data, out));
    FSDP_TRY(take_records(data, bytes, out));
    FSDP__TRY_NEW(out->path = fsdp__strdup(path));
    out->now = moment_of(out);
    return FSDP_OK;
}

fsdp_status fsdp__flight_log_parse(const char *path, const void *data, size_t bytes, fsdp__flight_log *out)
{
    fsdp_status status;

    memset(out, 0, sizeof *out);
    status = take_all(path, data, bytes, out);
    if (status != FSDP_OK)
        fsdp__flight_log_release(out);
    return status;
}

void fsdp__flight_log_release(fsdp__flight_log *log)
{
    FSDP__FREE_ALL(log->records, log->path);
    log->records = NULL;
    log->path = NULL;
}

bool fsdp__flight_is_member(const fsdp__flight_group *group, int rank)
{
    for (int i = 0; i < group->runs; i++) {
        const fsdp__flight_run *run = &group->run[i];

        if (rank >= run->first && (rank - run->first) % run->step == 0 && (rank - run->first) / run->step < run->count)
            return true;
    }
    return false;
}

/* ---- many ---- */

static fsdp_status read_one(const char *path, fsdp__flight_logs *out)
{
    fsdp__flight_log *grown, log;
    size_t bytes = 0;
    FSDP__FREED char *data = NULL;

    if (out->count >= MOST_FILES)
        return FSDP_FAIL(FSDP_INVALID, "there are more than %d files of last calls", MOST_FILES);
    FSDP_TRY(fsdp__file_read(path, sizeof(fsdp__flight_file), &data, &bytes));
    FSDP_TRY(fsdp__flight_log_parse(path, data, bytes, &log));
    grown = fsdp__realloc(out->logs, (size_t)(out->count + 1) * sizeof *grown);
    if (!grown) {
        fsdp__flight_log_release(&log);
        return FSDP_NO_MEMORY;
    }
    out->logs = grown;
    out->logs[out->count++] = log;
    return FSDP_OK;
}

static bool is_record_name(const char *name)
{
    int64_t rank;
    int length = 0;

    return sscanf(name, "rank-%7" SCNd64 ".flight%n", &rank, &length) == 1 && length > 0 && name[length] == '\0';
}

/* Reads a file of a folder. What is wrong with it is kept, for the case that there is no other. */
static fsdp_status read_entry(const char *folder, const char *name, fsdp__flight_logs *out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);
    fsdp_status status = path ? read_one(path, out) : FSDP_NO_MEMORY;

    if (status == FSDP_OK || status == FSDP_NO_MEMORY)
        return status;
    if (out->failed++ == 0)
        snprintf(out->error, sizeof out->error, "%s", fsdp_last_error());
    return FSDP_OK;
}

static fsdp_status read_names(const char *path, bool inner, fsdp__flight_logs *out);

static bool is_records_folder(const char *path, const char *name)
{
    FSDP__FREED char *inside = NULL;
    struct stat info;

    if (!fsdp__ends_with(name, ".flight") && strcmp(name, "flight") != 0)
        return false;
    inside = fsdp__path_join(path, name);
    return inside && lstat(inside, &info) == 0 && S_ISDIR(info.st_mode);
}

static fsdp_status read_inner(const char *path, const char *name, fsdp__flight_logs *out)
{
    FSDP__FREED char *inside = fsdp__path_join(path, name);

    return inside ? read_names(inside, false, out) : FSDP_NO_MEMORY;
}

/* Reads the records in a folder, or, if `inner`, those in the folders of records that it has, as the folder of a run:
 * metrics.jsonl.flight/ or, of checkpoints, flight/. */
static fsdp_status read_names(const char *path, bool inner, fsdp__flight_logs *out)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    DIR *names = NULL;
    const struct dirent *entry;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp__directory_open(path, &folder));
    FSDP_TRY(fsdp__directory_list(&folder, &names));
    while (status == FSDP_OK && (entry = fsdp__directory_next(names, path, &status)) != NULL)
        if (inner && is_records_folder(path, entry->d_name))
            status = read_inner(path, entry->d_name, out);
        else if (!inner && is_record_name(entry->d_name))
            status = read_entry(path, entry->d_name, out);
    closedir(names);
    return status;
}

static fsdp_status read_folder(const char *path, fsdp__flight_logs *out)
{
    int before = out->count;
    int64_t failed = out->failed;

    FSDP_TRY(read_names(path, false, out));
    return out->count > before || out->failed > failed ? FSDP_OK : read_names(path, true, out);
}

int64_t fsdp__flight_wall(const fsdp__flight_log *log, int64_t ns)
{
    int64_t sum;

    return __builtin_add_overflow(ns, log->head.wall_ns, &sum) ? 0 : sum;
}

/* Orders by rank, and of one rank the newest first. */
static int by_rank(const void *a, const void *b)
{
    const fsdp__flight_log *x = a, *y = b;
    int64_t newer = fsdp__flight_wall(y, y->now), older = fsdp__flight_wall(x, x->now);

    FSDP__ORDER_BY(x->head.rank, y->head.rank);
    return FSDP__COMPARE(newer, older);
}

/* Leaves out what is not of the newest run: files that were written before a rank of it had started, or are of another
 * number of ranks; and all but the newest of a rank. */
static void keep_one_run(fsdp__flight_logs *out)
{
    const fsdp__flight_log *newest = &out->logs[0];
    int64_t started;
    int kept = 0;

    for (int i = 1; i < out->count; i++)
        if (fsdp__flight_wall(&out->logs[i], out->logs[i].now) > fsdp__flight_wall(newest, newest->now))
            newest = &out->logs[i];
    out->world = newest->head.world;
    started = fsdp__flight_wall(newest, newest->head.started_ns);
    qsort(out->logs, (size_t)out->count, sizeof *out->logs, by_rank);
    for (int i = 0; i < out->count; i++) {
        fsdp__flight_log *log = &out->logs[i];

        if (log->head.world == out->world && fsdp__flight_wall(log, log->now) >= started - one_run_ns &&
            (kept == 0 || out->logs[kept - 1].head.rank != log->head.rank)) {
            if (kept != i)
                out->logs[kept] = *log;
            kept++;
            continue;
        }
        fsdp__flight_log_release(log);
        out->left_out++;
    }
    out->count = kept;
}

fsdp_status fsdp__flight_logs_read(const char *const *paths, int count, fsdp__flight_logs *out)
{
    fsdp_status status = FSDP_OK;

    *out = (fsdp__flight_logs){.count = 0};
    for (int i = 0; i < count && status == FSDP_OK; i++) {
        struct stat info;

        status =
            stat(paths[i], &info) == 0 && S_ISDIR(info.st_mode) ? read_folder(paths[i], out) : read_one(paths[i], out);
    }
    if (status == FSDP_OK && out->count == 0)
        status = out->failed
                     ? FSDP_FAIL(FSDP_FORMAT, "%s", out->error)
                     : FSDP_FAIL(FSDP_NOT_FOUND,
                                 "'%s' has no records of ranks' last calls: it has no file named rank-N.flight, and no "
                                 "folder of such files (metrics.jsonl.flight, flight)",
                                 count > 0 ? paths[0] : "");
    if (status != FSDP_OK) {
        fsdp__flight_logs_release(out);
        return status;
    }
    keep_one_run(out);
    return FSDP_OK;
}

void fsdp__flight_logs_release(fsdp__flight_logs *logs)
{
    for (int i = 0; i < logs->count; i++)
        fsdp__flight_log_release(&logs->logs[i]);
    fsdp__free(fsdp__take(&logs->logs));
    logs->count = 0;
}

const fsdp__flight_log *fsdp__flight_log_of(const fsdp__flight_logs *logs, int rank)
{
    int low = 0, high = logs->count;

    while (low < high) {
        int middle = (low + high) / 2;

        if (logs->logs[middle].head.rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < logs->count && logs->logs[low].head.rank == rank ? &logs->logs[low] : NULL;
}
