/* test_flight.c - the flight recorder: what it keeps, where, and what it refuses. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "fsdp/watch.h"
#include "watch/blame.h"
#include "watch/flight.h"

static const int worlds[] = {1, 2, 3, 4, 8};

/* ---- what it keeps ---- */

TEST(the_last_calls_are_kept_and_the_first_are_counted)
{
    fsdp_context *context = test_context();
    char *folder = test_directory();
    fsdp__flight_logs logs;
    const fsdp__flight_log *log;

    CHECK_OK(fsdp_flight_start(context, folder, false, "a run"));
    for (int i = 0; i < FSDP__FLIGHT_RECORDS + 100; i++)
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp_flight_write(context));
    logs = read_logs(folder);
    log = &logs.logs[0];
    CHECK_EQ(logs.count, 1);
    CHECK_STRING(log->end.run, "a run");
    CHECK_EQ(log->count, FSDP__FLIGHT_RECORDS);
    CHECK_EQ(log->damaged, 0);
    CHECK_EQ(log->group_count, 1);
    CHECK_STRING(log->groups[0].name, "world");
    CHECK_EQ(log->groups[0].issued, FSDP__FLIGHT_RECORDS + 100);
    CHECK_EQ(log->groups[0].done, FSDP__FLIGHT_RECORDS + 100);
    CHECK_EQ(log->groups[0].dropped, 100);
    for (int64_t i = 0; i < log->count; i++) {
        const fsdp__flight_record *r = &log->records[i];

        CHECK_EQ(r->turn, i + 101);
        CHECK_EQ(r->number, i + 101);
        CHECK_STRING(r->name, "barrier");
        CHECK(r->issued <= r->begun && r->begun <= r->done && r->done <= log->now);
    }
    fsdp__flight_logs_release(&logs);
    fsdp_context_free(context);
}

static void check_call(const fsdp__flight_log *log, int64_t index, int step, int microbatch, const char *module)
{
    CHECK_EQ(log->records[index].step, step);
    CHECK_EQ(log->records[index].microbatch, microbatch);
    CHECK_STRING(log->records[index].module, module);
}

TEST(a_call_knows_its_step_microbatch_and_module)
{
    fsdp_context *context = test_context();
    char *folder = test_directory(), text[256];
    int root, block;
    fsdp__flight_logs logs;

    CHECK_OK(fsdp_flight_start(context, folder, false, NULL));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    for (int i = 0; i < 2; i++) { /* two microbatches, and a step of the optimizer */
        tell_change(context, &root, "pre_forward", "");
        tell_change(context, &block, "pre_forward", "layers.0");
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    }
    FSDP__TELL(STEP_BEGUN, .context = context, .object = &root, .ns = fsdp__clock_ns());
    FSDP__TELL(STEP_DONE, .context = context, .object = &root, .ns = fsdp__clock_ns());
    tell_change(context, &root, "pre_forward", "");
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    FSDP__TELL(STAGE_BEGUN, .context = context, .name = "step", .number = 41, .ns = fsdp__clock_ns());
    tell_change(context, &root, "pre_forward", "");
    tell_change(context, &block, "post_forward", "layers.1");
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp_flight_write(context));
    logs = read_logs(folder);
    CHECK_EQ(logs.logs[0].count, 5);
    check_call(&logs.logs[0], 0, 0, 0, "");
    check_call(&logs.logs[0], 1, 1, 1, "layers.0");
    check_call(&logs.logs[0], 2, 1, 2, "layers.0");
    check_call(&logs.logs[0], 3, 2, 1, "the root");
    check_call(&logs.logs[0], 4, 41, 1, "layers.1");
    fsdp__flight_place_text(&logs.logs[0], text, sizeof text);
    CHECK_CONTAINS(text, "in step 41, microbatch 1, after the forward of 'layers.1', for ");
    fsdp__flight_logs_release(&logs);
    fsdp_context_free(context);
}

TEST(a_record_has_who_had_the_memory_that_ran_out)
{
    fsdp_context *context = test_context();
    char *folder = test_directory(), *text;
    fsdp__flight_logs logs;
    FILE *out = test_begin_text();

    CHECK_OK(fsdp_flight_start(context, folder, false, NULL));
    FSDP__TELL(MEMORY_LACKED, .context = context, .name = "  live: 2 KiB, most of it of\n  1 KiB layers.0: linear");
    CHECK_OK(fsdp_flight_write(context));
    logs = read_logs(folder);
    CHECK_OK(fsdp__flight_print(&logs, 10, out));
    CHECK_OK(fsdp__flight_print_json(&logs, out));
    text = test_end_text(out);
    CHECK_CONTAINS(text, "\n  live: 2 KiB, most of it of\n  1 KiB layers.0: linear\n");
    CHECK_CONTAINS(text, "\"owners\": [\"  live: 2 KiB, most of it of\", \"  1 KiB layers.0: linear\"]");
    fsdp__flight_logs_release(&logs);
    fsdp_context_free(context);
}

TEST(groups_have_their_members_and_their_own_numbers)
{
    fsdp_context *context = NULL;
    char *folder = test_directory();
    const int ranks[] = {1, 3, 5, 6};
    fsdp_process_group *group = NULL;
    fsdp__flight_logs logs;
    const fsdp__flight_log *log;

    CHECK_OK(fsdp_context_create_fake(3, 8, &context));
    CHECK_OK(fsdp_flight_start(context, folder, false, NULL));
    for (int i = 0; i < 2; i++) { /* the second may lie where the first one did */
        CHECK_OK(fsdp_process_group_create(context, ranks, 4, "some", &group));
        for (int k = 0; k <= i; k++)
            CHECK_OK(fsdp_barrier(group));
        fsdp_process_group_free(group);
    }
    CHECK_OK(fsdp_flight_write(context));
    logs = read_logs(folder);
    log = &logs.logs[0];
    CHECK_EQ(logs.world, 8);
    CHECK_EQ(log->group_count, 3);
    CHECK_STRING(log->groups[0].name, "world");
    for (int r = 0; r < 8; r++) {
        CHECK(fsdp__flight_is_member(&log->groups[0], r));
        CHECK_EQ(fsdp__flight_is_member(&log->groups[1], r), r == 1 || r == 3 || r == 5 || r == 6);
    }
    CHECK_EQ(log->groups[1].issued, 1);
    CHECK_EQ(log->groups[2].issued, 2);
    fsdp__flight_logs_release(&logs);
    fsdp_context_free(context);
}

/* ---- a run in which nothing is wrong ---- */

static void go_well(fsdp_context *context, void *arg)
{
    blame *b = arg;

    CHECK_OK(fsdp_flight_start(context, b->folder, b->late == 1, "well"));
    for (int i = 0; i < 5; i++)
        CHECK_OK(add_up(fsdp_world(context), i));
    test_meet();
    if (b->late == 0)
        CHECK_OK(fsdp_flight_write(context));
    if (b->late == 1 && fsdp_context_rank(context) == 0) {
        check_verdict(b->folder, "no rank waits for another one");
        CHECK_OK(fsdp_flight_write(context));
    }
    test_meet();
}

TEST(a_run_in_which_nobody_waits_is_said_to_be_one)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++) {
        blame b = {.folder = test_directory()};

        test_run_ranks(worlds[i], go_well, &b);
        check_verdict(b.folder, "no rank waits for another one");
        test_directory_free((char *)(uintptr_t)b.folder);
    }
}

TEST(a_record_in_a_file_is_there_all_the_time_and_gone_when_all_is_well)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++) {
        char *above = test_directory();
        blame b = {.folder = test_path(above, "flight"), .late = 1};
        struct stat info;

        test_run_ranks(worlds[i], go_well, &b);
        CHECK_EQ(stat(b.folder, &info), -1);
        test_directory_free(above);
    }
}

TEST(the_file_of_another_context_with_the_same_name_stays)
{
    char *above = test_directory(), *folder = test_path(above, "flight"), *file = test_path(folder, "rank-0.flight");
    fsdp_context *first = test_context(), *second = test_context();
    fsdp__flight_logs logs;

    CHECK_OK(fsdp_flight_start(first, folder, true, "first"));
    CHECK_OK(fsdp_flight_start(second, folder, true, "second")); /* replaces the file, and not the record */
    CHECK_OK(fsdp_barrier(fsdp_world(first)));
    CHECK_OK(fsdp_barrier(fsdp_world(second)));
    CHECK_OK(fsdp_barrier(fsdp_world(second)));
    fsdp_context_free(first);
    logs = read_logs(folder);
    CHECK_EQ(logs.logs[0].count, 2);
    CHECK_STRING(logs.logs[0].end.run, "second");
    fsdp__flight_logs_release(&logs);
    fsdp_context_free(second);
    CHECK_EQ(access(file, F_OK), -1);
    CHECK_EQ(access(folder, F_OK), -1);
}

TEST(a_late_start_goes_on_with_the_numbers_of_a_group_that_was_made_again)
{
    fsdp_context *context = NULL;
    char *folder = test_directory();
    const int ranks[] = {0, 1};
    fsdp_process_group *group = NULL;
    fsdp__flight_logs logs;

    CHECK_OK(fsdp_context_create_fake(0, 2, &context));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp_process_group_create(context, ranks, 2, "some", &group));
        for (int k = 0; k < 2 + i; k++)
            CHECK_OK(fsdp_barrier(group));
        if (i == 0)
            fsdp_process_group_free(group);
    }
    CHECK_OK(fsdp_flight_start(context, folder, false, NULL));
    CHECK_OK(fsdp_barrier(group));
    CHECK_OK(fsdp_flight_write(context));
    logs = read_logs(folder);
    CHECK_EQ(logs.logs[0].group_count, 1);
    CHECK_EQ(logs.logs[0].count, 1);
    CHECK_EQ(logs.logs[0].records[0].number, 4);
    CHECK_EQ(logs.logs[0].groups[0].issued, 4);
    CHECK_EQ(logs.logs[0].groups[0].dropped, 3);
    fsdp__flight_logs_release(&logs);
    fsdp_process_group_free(group);
    fsdp_context_free(context);
}

/* Returns the last line of a log. */
static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 1024, "%s", line);
}

static void break_without_a_folder(fsdp_context *context, void *arg)
{
    blame *b = arg;
    char line[1024] = "";

    CHECK_OK(fsdp_flight_start(context, b->folder, false, NULL));
    test_meet();
    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_line, line);
    if (fsdp_context_rank(context) == 0)
        fsdp_abort(context, "the test ends it");
    else
        CHECK_STATUS(fsdp_barrier(fsdp_world(context)), FSDP_COMM);
    if (fsdp_context_rank(context) == 0) {
        CHECK_CONTAINS(line, "the last calls of this rank could not be written to '");
        CHECK_CONTAINS(line, "others may write to that folder");
    } else {
        CHECK_CONTAINS(fsdp_last_error(), "the test ends it");
    }
    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
}

TEST(a_record_that_cannot_be_written_says_why_and_the_failure_stays)
{
    blame b = {.folder = test_directory()};

    CHECK_EQ(chmod(b.folder, 0777), 0);
    test_run_ranks(2, break_without_a_folder, &b);
    CHECK_EQ(chmod(b.folder, 0700), 0);
    test_directory_free((char *)(uintptr_t)b.folder);
}

/* ---- memory that a launcher shares ---- */

typedef struct shared {
    fsdp__flight_memory memory;
    blame blame;
} shared;

static void record_in_shared_memory(fsdp_context *context, void *arg)
{
    shared *s = arg;
    int rank = fsdp_context_rank(context), world = fsdp_context_world_size(context);
    fsdp__subscriber *counter;

    fsdp__flight_join(context, s->memory.fd);
    CHECK_OK(add_up(fsdp_world(context), 2));
    test_meet();
    counter = count_calls(context, &s->blame);
    if (rank == world - 1) {
        await_begun(&s->blame, world - 1);
        /* as the launcher does when this process is killed */
        fsdp__flight_memory_ending(&s->memory, rank, "rank was killed by signal 9 (Killed)");
        fsdp__flight_memory_freeze(&s->memory);
        fsdp_abort(context, "it was killed");
    } else {
        CHECK_STATUS(add_up(fsdp_world(context), 3), FSDP_COMM);
    }
    fsdp__unsubscribe(counter);
}

TEST(the_launcher_keeps_what_ranks_did_and_writes_it)
{
    for (size_t i = 1; i < FSDP__COUNT_OF(worlds); i++) {
        char *folder = test_directory(), written[FSDP__FLIGHT_TEXT], part[100];
        shared s = {.memory.fd = -1};

        CHECK_OK(fsdp__flight_memory_create(worlds[i], folder, &s.memory));
        CHECK(!fsdp__flight_memory_tells(&s.memory));
        CHECK_ERROR(fsdp__flight_memory_write(&s.memory, written), FSDP_STATE, "no rank has recorded any calls");
        test_run_ranks(worlds[i], record_in_shared_memory, &s);
        CHECK(fsdp__flight_memory_tells(&s.memory));
        CHECK_OK(fsdp__flight_memory_write(&s.memory, written));
        CHECK_STRING(written, folder);
        fsdp__flight_memory_free(&s.memory);
        snprintf(part, sizeof part, "the others wait for rank %d", worlds[i] - 1);
        check_verdict(folder, part);
        test_directory_free(folder);
    }
}

static void join_too_small(fsdp_context *context, void *arg)
{
    shared *s = arg;

    fsdp__flight_join(context, s->memory.fd); /* there is a warning in the log */
    CHECK_OK(add_up(fsdp_world(context), 2));
    CHECK_EQ(fsdp_flight_write(context), fsdp_context_rank(context) == 0 ? FSDP_OK : FSDP_STATE);
}

TEST(a_rank_without_memory_for_its_record_goes_on_without)
{
    char *folder = test_directory();
    shared s = {.memory.fd = -1};

    CHECK_OK(fsdp__flight_memory_create(1, folder, &s.memory));
    test_run_ranks(2, join_too_small, &s);
    fsdp__flight_memory_free(&s.memory);
}

/* ---- what is wrong ---- */

/* A record in a file stays in its folder, is written there and removed from there. */
static void check_other_folder(const char *folder)
{
    fsdp_context *context = test_context(), *both = test_context();
    char *first = test_path(folder, "first"), *second = test_path(folder, "second");
    char *record = test_path(folder, "first/rank-0.flight");

    CHECK_OK(fsdp_flight_start(context, first, true, "a"));
    CHECK_ERROR(fsdp_flight_start(context, second, false, "b"), FSDP_STATE, "they are recorded in a file of '");
    CHECK_ERROR(fsdp_flight_start(context, second, true, "b"), FSDP_STATE, "they are recorded already, in ");
    CHECK_OK(fsdp_flight_start(context, first, false, "c")); /* another name alone */
    CHECK_OK(fsdp_flight_write(context));
    CHECK_EQ(access(record, F_OK), 0);
    CHECK_OK(fsdp_flight_start(both, first, false, NULL)); /* in memory: this folder, then another */
    CHECK_OK(fsdp_flight_start(both, second, false, NULL));
    CHECK_OK(fsdp_flight_write(both));
    fsdp_context_free(both);
    fsdp_context_free(context);
    CHECK(access(record, F_OK) != 0);
}

TEST(what_cannot_be_recorded_is_refused)
{
    fsdp_context *context = test_context();
    char *folder = test_directory(), *open = test_path(folder, "open"), *link = test_path(folder, "link"),
         *file = test_path(folder, "file"), long_name[2000];

    CHECK_ERROR(fsdp_flight_start(NULL, folder, false, NULL), FSDP_INVALID, "no context");
    CHECK_ERROR(fsdp_flight_start(context, NULL, true, NULL), FSDP_INVALID, "in_file needs a folder");
    CHECK_ERROR(fsdp_flight_start(context, "", false, NULL), FSDP_INVALID, "the folder's name is empty");
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    CHECK_ERROR(fsdp_flight_start(context, long_name, false, NULL), FSDP_INVALID, "more than 1023 bytes");
    CHECK_ERROR(fsdp_flight_write(NULL), FSDP_STATE, "no context");
    CHECK_ERROR(fsdp_flight_write(context), FSDP_STATE, "this rank does not record");
    CHECK_EQ(mkdir(open, 0777), 0);
    CHECK_EQ(chmod(open, 0777), 0);
    CHECK_ERROR(fsdp_flight_start(context, open, true, NULL), FSDP_INVALID, "others may write to that folder");
    CHECK_EQ(symlink(open, link), 0);
    CHECK_STATUS(fsdp_flight_start(context, link, true, NULL), FSDP_INVALID);
    test_write_file(file, "x", 1);
    CHECK_STATUS(fsdp_flight_start(context, file, true, NULL), FSDP_IO);
    CHECK_OK(fsdp_flight_start(context, NULL, false, NULL));
    CHECK_ERROR(fsdp_flight_write(context), FSDP_STATE, "no folder was named");
    CHECK_ERROR(fsdp_flight_start(context, folder, true, NULL), FSDP_STATE, "they are recorded already, in memory");
    CHECK_OK(fsdp_flight_start(context, folder, false, NULL));
    CHECK_OK(fsdp_flight_write(context));
    fsdp_context_free(context);
    check_other_folder(folder);
}

TEST(a_start_or_a_write_that_fails_leaves_nothing)
{
    for (int in_file = 0; in_file < 2; in_file++)
        for (int kind = 0; kind < 2; kind++)
            for (long n = 0; test_next_fault(kind ? FSDP__FAULT_WRITE : FSDP__FAULT_ALLOCATION, &n);) {
                fsdp_context *context = NULL;
                char *above = test_directory(), *folder = test_path(above, "flight");
                fsdp_status status = fsdp_context_create(NULL, &context);

                if (status == FSDP_OK)
                    status = fsdp_flight_start(context, folder, in_file, NULL);
                if (status == FSDP_OK)
                    status = fsdp_flight_write(context);
                CHECK_FAULT(kind ? FSDP__FAULT_WRITE : FSDP__FAULT_ALLOCATION, status);
                fsdp_context_free(context);
                test_directory_free(above);
            }
}

/* ---- limits ---- */

static struct rlimit set_limit(int resource, rlim_t value)
{
    struct rlimit before, now;

    CHECK_EQ(getrlimit((__rlimit_resource_t)resource, &before), 0);
    now = (struct rlimit){.rlim_cur = FSDP__MIN(value, before.rlim_max), .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &now), 0);
    return before;
}

TEST(a_record_that_a_limit_forbids_names_the_limit)
{
    char *folder = test_directory();
    fsdp__flight_memory memory;
    fsdp__flight_file_id id;
    fsdp__flight_file *file;
    struct rlimit before = set_limit(RLIMIT_NOFILE, 0);
    fsdp_status status = fsdp__flight_memory_create(2, folder, &memory);

    set_limit(RLIMIT_NOFILE, before.rlim_cur);
    CHECK_ERROR(status, FSDP_IO, "Too many open files; 'ulimit -n' says how many files a process may have open");
    (void)signal(SIGXFSZ, SIG_IGN);
    before = set_limit(RLIMIT_FSIZE, 4096);
    status = fsdp__flight_map_file(folder, 0, &file, &id);
    set_limit(RLIMIT_FSIZE, before.rlim_cur);
    (void)signal(SIGXFSZ, SIG_DFL);
    CHECK_ERROR(status, FSDP_IO, "File too large; 'ulimit -f' says how large a file may be");
    CHECK_EQ(test_names_in(folder), 0);
    if (TEST_SANITIZED)
        return; /* it has reserved terabytes */
    before = set_limit(RLIMIT_AS, (rlim_t)1 << 40);
    status = fsdp__flight_memory_create(1 << 26, folder, &memory);
    set_limit(RLIMIT_AS, before.rlim_cur);
    CHECK_ERROR(status, FSDP_IO, "Cannot allocate memory; 'ulimit -v' says how much address space");
}

/* ---- readers ---- */

static void *make_calls(void *arg)
{
    blame *b = arg;
    fsdp_context *context = test_context();

    CHECK_OK(fsdp_flight_start(context, b->folder, true, NULL));
    b->begun = 1;
    while (!b->over)
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp_context_free(context);
    return NULL;
}

TEST(a_reader_sees_whole_records_while_they_are_written)
{
    blame b = {.folder = test_directory()};
    pthread_t writer;

    CHECK_EQ(pthread_create(&writer, NULL, make_calls, &b), 0);
    await_begun(&b, 1);
    for (int i = 0; i < (test_long() ? 1000 : 50); i++) {
        fsdp__flight_logs logs = read_logs(b.folder);
        const fsdp__flight_log *log = &logs.logs[0];

        for (int64_t k = 0; k < log->count; k++) {
            CHECK_EQ(log->records[k].number, log->records[k].turn);
            CHECK_STRING(log->records[k].name, "barrier");
        }
        fsdp__flight_logs_release(&logs);
    }
    b.over = true;
    CHECK_EQ(pthread_join(writer, NULL), 0);
    test_directory_free((char *)(uintptr_t)b.folder);
}
