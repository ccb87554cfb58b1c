/* flight.c - what a rank does is written down as its context's probes tell it. */
#include "watch/flight.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/lock.h"
#include "base/status.h"
#include "base/text.h"
#include "fsdp/comm.h"

/* A group that calls were heard of. */
typedef struct group {
    const void *object;
    uint64_t issued;                      /* number of its last call */
    uint64_t turns[FSDP__FLIGHT_RECORDS]; /* of the record of call n, at n % FSDP__FLIGHT_RECORDS */
} group;

typedef struct flight {
    fsdp_context *context;
    fsdp__subscriber *subscriber;
    pthread_mutex_t mutex; /* guards all that follows; threads of streams tell of calls, too */
    fsdp__flight_file *file;
    enum {
        OWN_MEMORY,
        IN_FILE,
        OF_LAUNCHER
    } where;
    fsdp__flight_file_id id; /* IN_FILE */
    group *groups[FSDP__FLIGHT_GROUPS];
    int group_count;
    uint64_t turn; /* of the last record */

    /* where the program is */
    const void *root; /* the state that begins each forward; NULL: not known yet */
    uint64_t step, microbatch;
    bool told_step; /* the run says which step it takes: optimizers need not be counted */
    bool stepped;   /* an optimizer has taken a step since the last forward */
    char module[FSDP__FLIGHT_NAME];
} flight;

/* Copies a text, cut to `bytes`, and fills the rest with zeros: all of it is part of the check. */
static void put_text(char *out, size_t bytes, const char *text)
{
    memset(out, 0, bytes);
    if (text)
        memcpy(out, text, strnlen(text, bytes - 1));
}

/* ---- groups ---- */

static void list_members(const fsdp__probe_event *e, fsdp__flight_group *out)
{
    fsdp__flight_run *run = NULL;

    out->size = e->ranks;
    for (int i = 0; i < e->ranks; i++) {
        int rank = fsdp_process_group_global_rank(e->object, i);

        if (run && run->count == 1)
            run->step = rank - run->first;
        if (run && rank == run->first + run->count * run->step) {
            run->count++;
            continue;
        }
        if (out->runs == FSDP__FLIGHT_RUNS)
            return;
        run = &out->run[out->runs++];
        *run = (fsdp__flight_run){.first = rank, .step = 1, .count = 1};
    }
}

/* Adds the group of a call. Returns -1 when there is no room. */
static int add_group(flight *f, const fsdp__probe_event *e)
{
    fsdp__flight_group *out;
    group *g;

    if (f->group_count == FSDP__FLIGHT_GROUPS)
        return -1;
    g = fsdp__calloc(1, sizeof *g);
    if (!g)
        return -1;
    g->object = e->object;
    out = &f->file->groups[f->group_count];
    list_members(e, out);
    put_text(out->name, sizeof out->name, e->group);
    atomic_store(&out->issued, e->number - 1); /* what came before was not heard */
    atomic_store(&out->begun, e->number - 1);
    atomic_store(&out->done, e->number - 1);
    atomic_store(&out->dropped, e->number - 1);
    atomic_thread_fence(memory_order_release);
    out->check = fsdp__flight_group_check(out);
    f->groups[f->group_count] = g;
    return f->group_count++;
}

/* Finds the group of a call that is issued. Another group may lie where a freed one did: its numbers begin again. */
static int group_of_new(flight *f, const fsdp__probe_event *e)
{
    for (int i = f->group_count; i-- > 0;)
        if (f->groups[i]->object == e->object)
            return e->number == f->groups[i]->issued + 1 ? i : add_group(f, e);
    return add_group(f, e);
}

/* ---- calls ---- */

static fsdp__flight_record *record_of(const flight *f, uint64_t turn)
{
    return &f->file->records[(turn - 1) % FSDP__FLIGHT_RECORDS];
}

static void issued(flight *f, const fsdp__probe_event *e)
{
    int at = group_of_new(f, e);
    fsdp__flight_record *r;

    if (at < 0) {
        atomic_fetch_add(&f->file->unlisted, 1);
        return;
    }
    r = record_of(f, ++f->turn);
    if (f->turn > FSDP__FLIGHT_RECORDS)
        atomic_store_explicit(&f->file->groups[r->group].dropped, r->number, memory_order_relaxed);
    atomic_store_explicit(&r->turn, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&r->begun, 0, memory_order_relaxed);
    atomic_store_explicit(&r->done, 0, memory_order_relaxed);
    r->issued = e->ns;
    r->number = e->number;
    r->bytes = e->bytes;
    r->step = f->step;
    r->microbatch = f->microbatch;
    r->group = (uint32_t)at;
    r->kind = (uint8_t)e->kind;
    r->dtype = (uint8_t)e->dtype;
    r->labelled = e->label && e->label[0];
    r->on_host = e->stream == NULL;
    put_text(r->name, sizeof r->name, e->name);
    put_text(r->module, sizeof r->module, r->labelled ? e->label : f->module);
    r->check = fsdp__flight_record_check(r, f->turn);
    atomic_store_explicit(&r->turn, f->turn, memory_order_release);
    f->groups[at]->issued = e->number;
    f->groups[at]->turns[e->number % FSDP__FLIGHT_RECORDS] = f->turn;
    atomic_store_explicit(&f->file->groups[at].issued, e->number, memory_order_release);
}

/* Notes that a call has begun or is done, if its record is still there. */
static void moved(flight *f, const fsdp__probe_event *e, bool done)
{
    int at = f->group_count - 1;
    fsdp__flight_group *out;
    fsdp__flight_record *r;
    uint64_t turn;

    while (at >= 0 && (f->groups[at]->object != e->object || f->groups[at]->issued < e->number))
        at--;
    if (at < 0)
        return;
    out = &f->file->groups[at];
    turn = f->groups[at]->turns[e->number % FSDP__FLIGHT_RECORDS];
    r = turn ? record_of(f, turn) : NULL;
    if (r && r->turn == turn && r->number == e->number && r->group == (uint32_t)at)
        atomic_store_explicit(done ? &r->done : &r->begun, e->ns, memory_order_release);
    atomic_store_explicit(done ? &out->done : &out->begun, e->number, memory_order_release);
}

/* ---- where the program is ---- */

static void set_place(flight *f, const char *word, int64_t ns)
{
    fsdp__flight_place *place = &f->file->place;
    uint64_t turn = place->turn + 1;

    /* The turn of a writer that has died in the middle is 0: only a reader sees that. */
    atomic_store_explicit(&place->turn, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    place->ns = ns;
    place->step = f->step;
    place->microbatch = f->microbatch;
    put_text(place->word, sizeof place->word, word);
    memcpy(place->module, f->module, sizeof place->module);
    place->check = fsdp__flight_place_check(place, turn);
    atomic_store_explicit(&place->turn, turn, memory_order_release);
}

/* Counts steps and microbatches by the forwards of the root, which is the first to begin one. */
static void count_forward(flight *f, const void *state)
{
    if (!f->root)
        f->root = state;
    if (state != f->root)
        return;
    if (!f->told_step && (f->stepped || f->step == 0)) {
        f->step++;
        f->microbatch = 0;
    }
    f->stepped = false;
    f->microbatch++;
}

static void changed(flight *f, const fsdp__probe_event *e)
{
    if (strcmp(e->word, "pre_forward") == 0)
        count_forward(f, e->object);
    put_text(f->module, sizeof f->module, e->name && e->name[0] ? e->name : "the root");
    set_place(f, e->word, e->ns);
}

static void took_step(flight *f, const fsdp__probe_event *e)
{
    f->stepped = true;
    f->module[0] = '\0';
    set_place(f, e->point == FSDP__POINT_STEP_BEGUN ? "optimizer" : "after optimizer", e->ns);
}

/* A run tells which step it takes, and what it does beside computing. */
static void begun_stage(flight *f, const fsdp__probe_event *e)
{
    if (strcmp(e->name, "step") == 0) {
        f->told_step = true;
        f->step = e->number;
        f->microbatch = 0;
    }
    f->module[0] = '\0';
    set_place(f, e->name, e->ns);
}

/* ---- the end ---- */

/* Notes why the world is broken; what was noted before stays. Returns whether this rank should write its record now. */
static bool broken(flight *f, const fsdp__probe_event *e)
{
    fsdp__flight_end *end = &f->file->end;

    if (end->state != FSDP__FLIGHT_RUNS_ON)
        return false;
    put_text(end->why, sizeof end->why, e->name);
    atomic_store(&end->broken_ns, fsdp__clock_ns());
    atomic_store(&end->state, FSDP__FLIGHT_BROKEN);
    return f->where != OF_LAUNCHER && f->file->head.world > 1 && end->folder[0];
}

/* All ranks end here, for the same reason, and none is to blame. */
static void settled(const flight *f)
{
    uint64_t before = FSDP__FLIGHT_RUNS_ON;

    (void)atomic_compare_exchange_strong(&f->file->end.state, &before, FSDP__FLIGHT_SETTLED);
}

static fsdp_status write_now(flight *f)
{
    FSDP__FREED fsdp__flight_file *copy = NULL;
    fsdp_status status = FSDP_OK;

    if (f->where == IN_FILE)
        return FSDP_OK;
    pthread_mutex_lock(&f->mutex);
    if (f->file->end.folder[0] == '\0')
        status = FSDP_FAIL(FSDP_STATE, "cannot write the flight record of rank %d: no folder was named for it",
                           f->file->head.rank);
    else
        status = fsdp__flight_copy(f->file, &copy);
    pthread_mutex_unlock(&f->mutex); /* calls need not wait for the disk */
    return status == FSDP_OK ? fsdp__flight_save(copy) : status;
}

/* Writes what led to the end of the world, whose failure is the one to report: not one to write. */
static void write_broken(flight *f)
{
    const char *folder = f->file->end.folder;
    fsdp__error_aside aside;

    fsdp__put_error_aside(&aside);
    if (write_now(f) == FSDP_OK)
        fsdp_log(f->context, FSDP_LOG_WARNING, "the last calls of this rank are in '%s': fsdp flight %s", folder,
                 FSDP__SHELL_WORD(folder));
    else
        fsdp_log(f->context, FSDP_LOG_WARNING, "the last calls of this rank could not be written to '%s': %s", folder,
                 fsdp_last_error());
    fsdp__put_error_back(&aside);
}

/* ---- what it hears ---- */

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    flight *f = arg;
    bool writes = false;

    pthread_mutex_lock(&f->mutex);
    if (e->point == FSDP__POINT_WORLD_BROKEN)
        writes = broken(f, e);
    else if (e->point == FSDP__POINT_RUN_ENDED)
        settled(f);
    else if (e->point == FSDP__POINT_MEMORY_LACKED)
        put_text(f->file->end.owners, sizeof f->file->end.owners, e->name);
    else if (f->file->end.state == FSDP__FLIGHT_BROKEN || f->file->end.frozen_ns)
        ; /* what follows is how the rank ends: its calls end without being done */
    else if (e->point == FSDP__POINT_COLLECTIVE_ISSUED)
        issued(f, e);
    else if (e->point == FSDP__POINT_COLLECTIVE_BEGUN || e->point == FSDP__POINT_COLLECTIVE_DONE)
        moved(f, e, e->point == FSDP__POINT_COLLECTIVE_DONE);
    else if (e->point == FSDP__POINT_SHARD_CHANGED)
        changed(f, e);
    else if (e->point == FSDP__POINT_STAGE_BEGUN)
        begun_stage(f, e);
    else
        took_step(f, e);
    pthread_mutex_unlock(&f->mutex);
    if (writes)
        write_broken(f);
    return FSDP_OK;
}

/* ---- life ---- */

static void flight_free(void *state)
{
    flight *f = state;

    fsdp__unsubscribe(f->subscriber);
    if (f->file) {
        settled(f);
        if (f->where == IN_FILE && f->file->end.state == FSDP__FLIGHT_SETTLED)
            fsdp__flight_remove_file(f->file->end.folder, f->file->head.rank, &f->id);
        (void)munmap(f->file, sizeof *f->file);
    }
    for (int i = 0; i < f->group_count; i++)
        fsdp__free(f->groups[i]);
    pthread_mutex_destroy(&f->mutex);
    fsdp__free(f);
}

static int64_t wall_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - fsdp__clock_ns();
}

static void write_head(const flight *f)
{
    fsdp__flight_head *head = &f->file->head;

    *head = (fsdp__flight_head){.magic = FSDP__FLIGHT_MAGIC,
                                .version = FSDP__FLIGHT_VERSION,
                                .record_bytes = sizeof(fsdp__flight_record),
                                .rank = fsdp_context_rank(f->context),
                                .world = fsdp_context_world_size(f->context),
                                .machine = fsdp_context_machine(f->context),
                                .machines = fsdp_context_machines(f->context),
                                .pid = (int32_t)getpid(),
                                .started_ns = fsdp__clock_ns(),
                                .wall_ns = wall_ns()};
    fsdp__host_name(head->host);
    fsdp__build_own(head->build);
    head->check = fsdp__flight_head_check(head);
    atomic_store(&f->file->end.state, FSDP__FLIGHT_RUNS_ON);
}

/* Makes a recorder that writes to `file`, which it owns from here on, also when it fails. */
static fsdp_status start(fsdp_context *context, fsdp__flight_file *file, int where, fsdp__flight_file_id id,
                         flight **out)
{
    static const fsdp__point points[] = {FSDP__POINT_COLLECTIVE_ISSUED, FSDP__POINT_COLLECTIVE_BEGUN,
                                         FSDP__POINT_COLLECTIVE_DONE,   FSDP__POINT_SHARD_CHANGED,
                                         FSDP__POINT_STAGE_BEGUN,       FSDP__POINT_RUN_ENDED,
                                         FSDP__POINT_WORLD_BROKEN,      FSDP__POINT_STEP_BEGUN,
                                         FSDP__POINT_STEP_DONE,         FSDP__POINT_MEMORY_LACKED};
    flight *f = fsdp__calloc(1, sizeof *f);
    uint64_t bits = 0;

    if (!f) {
        (void)munmap(file, sizeof *file);
        return FSDP_NO_MEMORY;
    }
    f->context = context;
    f->file = file;
    f->where = where;
    f->id = id;
    pthread_mutex_init(&f->mutex, NULL);
    write_head(f);
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++)
        bits |= FSDP__POINT_BIT(points[i]);
    f->subscriber = fsdp__context_subscribe(context, bits, see, f);
    if (!f->subscriber) {
        flight_free(f);
        return FSDP_NO_MEMORY;
    }
    fsdp__context_attach(context, FSDP__SLOT_FLIGHT, f, flight_free);
    *out = f;
    return FSDP_OK;
}

void fsdp__flight_join(fsdp_context *context, int fd)
{
    fsdp__flight_file *file = NULL;
    fsdp_status status;
    flight *f;

    if (fsdp__context_get(context, FSDP__SLOT_FLIGHT))
        return;
    status = fsdp__flight_map(fd, fsdp_context_rank(context), &file);
    if (status == FSDP_OK)
        status = start(context, file, OF_LAUNCHER, (fsdp__flight_file_id){0}, &f);
    if (status != FSDP_OK)
        fsdp_log(context, FSDP_LOG_WARNING, "the last calls of this rank are not recorded: %s", fsdp_last_error());
}

static fsdp_status own_memory(fsdp__flight_file **out)
{
    void *memory = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return FSDP_FAIL(FSDP_NO_MEMORY, "no memory for %zu bytes of a flight record", sizeof **out);
    *out = memory;
    return FSDP_OK;
}

/* Names the folder and the run from now on. A folder that is NULL leaves that of the launcher. */
static void set_names(flight *f, const char *folder, const char *run)
{
    FSDP__HELD(&f->mutex);
    if (folder)
        put_text(f->file->end.folder, sizeof f->file->end.folder, folder);
    put_text(f->file->end.run, sizeof f->file->end.run, run);
}

fsdp_status fsdp_flight_start(fsdp_context *context, const char *folder, bool in_file, const char *run)
{
    flight *f = context ? fsdp__context_get(context, FSDP__SLOT_FLIGHT) : NULL;
    char absolute[FSDP__FLIGHT_TEXT];
    fsdp__flight_file *file = NULL;
    fsdp__flight_file_id id = {0};

    if (!context || (in_file && !folder))
        return FSDP_FAIL(FSDP_INVALID, "cannot record calls: %s", context ? "in_file needs a folder" : "no context");
    if (f && in_file && f->where != OF_LAUNCHER)
        return FSDP_FAIL(FSDP_STATE, "cannot record calls in '%s': they are recorded already, in %s", folder,
                         f->where == IN_FILE ? f->file->end.folder : "memory");
    if (folder)
        FSDP_TRY(fsdp__flight_folder(folder, absolute));
    if (f && folder && f->where == IN_FILE && strcmp(absolute, f->file->end.folder) != 0)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot record calls in '%s': they are recorded in a file of '%s', and it stays there", folder,
                         f->file->end.folder);
    if (!f) {
        FSDP_TRY(in_file ? fsdp__flight_map_file(absolute, fsdp_context_rank(context), &file, &id) : own_memory(&file));
        FSDP_TRY(start(context, file, in_file ? IN_FILE : OWN_MEMORY, id, &f));
    }
    set_names(f, folder ? absolute : NULL, run);
    return FSDP_OK;
}

fsdp_status fsdp_flight_write(fsdp_context *context)
{
    flight *f = context ? fsdp__context_get(context, FSDP__SLOT_FLIGHT) : NULL;

    if (!f)
        return FSDP_FAIL(FSDP_STATE, "cannot write a flight record: %s",
                         context ? "this rank does not record (fsdp_flight_start)" : "no context");
    return write_now(f);
}

void fsdp__flight_is_of(fsdp_context *context, const char *id)
{
    flight *f = fsdp__context_get(context, FSDP__SLOT_FLIGHT);

    if (!f)
        return;
    FSDP__HELD(&f->mutex);
    put_text(f->file->end.id, sizeof f->file->end.id, id);
}

const char *fsdp__flight_where(fsdp_context *context, char *folder)
{
    flight *f = fsdp__context_get(context, FSDP__SLOT_FLIGHT);

    FSDP__HELD(&f->mutex);
    memcpy(folder, f->file->end.folder, FSDP__FLIGHT_TEXT);
    return folder;
}
