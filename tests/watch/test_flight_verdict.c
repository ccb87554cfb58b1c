/* test_flight_verdict.c - what is said of ranks that have recorded: who is to blame, and which records are no good. */
#include <unistd.h>

#include "fsdp/watch.h"
#include "watch/blame.h"

static const int worlds[] = {2, 3, 4, 8};

TEST(the_rank_that_does_not_come_is_named)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++)
        for (int late = 0; late < worlds[i]; late += worlds[i] - 1) {
            blame b = {.folder = test_directory(), .late = late};
            char part[200];
            fsdp__flight_logs logs;

            test_run_ranks(worlds[i], one_does_not_come, &b);
            snprintf(part, sizeof part, "the others wait for rank %d: it has not come to call ", late);
            check_verdict(b.folder, part);
            check_verdict(b.folder, "group 'world' (all_reduce, 20B float32), where rank");
            check_verdict(b.folder, "it is in step 1, microbatch 1, in the forward of 'layers.7'");
            check_verdict(b.folder, "was the first to report: ");
            logs = read_logs(b.folder);
            CHECK_EQ(logs.count, worlds[i]);
            CHECK_EQ(logs.logs[0].end.state, FSDP__FLIGHT_BROKEN);
            fsdp__flight_logs_release(&logs);
            test_directory_free((char *)(uintptr_t)b.folder);
        }
}

TEST(a_rank_without_a_record_is_named)
{
    blame b = {.folder = test_directory(), .late = 2};
    char *path = test_path(b.folder, "rank-2.flight");

    test_run_ranks(4, one_does_not_come, &b);
    CHECK_EQ(unlink(path), 0);
    check_verdict(b.folder, "the others wait for rank 2: it has not come to call ");
    check_verdict(b.folder, "where ranks 0, 1 and 3 have waited ");
    check_verdict(b.folder, "it has left no record: its process was killed, or its file lies elsewhere");
    test_directory_free((char *)(uintptr_t)b.folder);
}

/* As where a rank was asked for its record, and killed later on. */
TEST(a_record_that_is_older_than_the_others_is_no_word_of_the_end)
{
    blame b = {.folder = test_directory(), .late = 1};
    fsdp__flight_logs logs;
    char *text;

    test_run_ranks(3, one_does_not_come, &b);
    logs = read_logs(b.folder);
    CHECK(logs.logs[1].end.written_ns > 0);
    logs.logs[1].now -= INT64_C(20000000000);
    text = judge(&logs);
    CHECK_CONTAINS(text, "the others wait for rank 1: it has not come to call ");
    CHECK_CONTAINS(text, "; its record is 20");
    CHECK_CONTAINS(text, " s older than the last, and there is none of what it did since; then it was in step 1");
    free(text);
    fsdp__flight_logs_release(&logs);
    test_directory_free((char *)(uintptr_t)b.folder);
}

/* Of two that are not in the call, the one comes later that has issued it: its machine waits for the other, too. */
TEST(a_rank_that_has_issued_the_call_is_not_the_first_to_blame)
{
    blame b = {.folder = test_directory(), .late = 2};
    fsdp__flight_logs logs;
    fsdp__flight_log *first;
    char *text;

    test_run_ranks(4, one_does_not_come, &b);
    logs = read_logs(b.folder);
    first = &logs.logs[0];
    first->records[first->count - 1].begun = 0;
    for (int g = 0; g < first->group_count; g++)
        first->groups[g].begun -= first->groups[g].begun == first->records[first->count - 1].number;
    text = judge(&logs);
    CHECK_CONTAINS(text, "the others wait for rank 0: it has not come to call ");
    CHECK_CONTAINS(text, "it has issued the call, behind others that are not done; ");
    CHECK(strstr(text, "the others wait for rank 2: ") < strstr(text, "the others wait for rank 0: "));
    CHECK_CONTAINS(text, "the others wait for rank 2: ");
    free(text);
    fsdp__flight_logs_release(&logs);
    test_directory_free((char *)(uintptr_t)b.folder);
}

/* The last rank makes another call, or one of another size. */
static void one_differs(fsdp_context *context, void *arg)
{
    blame *b = arg;
    bool last = fsdp_context_rank(context) == fsdp_context_world_size(context) - 1;
    fsdp_process_group *world = fsdp_world(context);

    CHECK_OK(fsdp_flight_start(context, b->folder, false, NULL));
    CHECK_OK(add_up(world, 3));
    CHECK_STATUS(last && b->late ? fsdp_barrier(world) : add_up(world, last ? 4 : 3), FSDP_MISMATCH);
}

TEST(the_first_call_in_which_ranks_differ_is_named)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++)
        for (int other = 0; other < 2; other++) {
            blame b = {.folder = test_directory(), .late = other};
            char part[200];

            test_run_ranks(worlds[i], one_differs, &b);
            check_verdict(b.folder, "ranks make different calls: rank");
            snprintf(part, sizeof part, "but rank %d makes call ", worlds[i] - 1);
            check_verdict(b.folder, part);
            check_verdict(b.folder, other ? "(barrier)" : "(all_reduce, 16B float32)");
            test_directory_free((char *)(uintptr_t)b.folder);
        }
}

/* Ranks 0 and 1 wait in two groups of the same two. */
static void wait_in_a_circle(fsdp_context *context, void *arg)
{
    const int both[] = {0, 1};
    blame *b = arg;
    fsdp_process_group *group = NULL;

    CHECK_OK(fsdp_flight_start(context, b->folder, false, NULL));
    CHECK_OK(fsdp_process_group_create(context, both, 2, "other", &group));
    CHECK_OK(fsdp_barrier(group));
    CHECK_STATUS(add_up(fsdp_context_rank(context) == 0 ? group : fsdp_world(context), 2), FSDP_MISMATCH);
    fsdp_process_group_free(group);
}

TEST(ranks_that_wait_for_each_other_are_named)
{
    blame b = {.folder = test_directory()};

    test_only_on_one_machine("a circle over machines ends after the timeout");
    test_run_ranks(2, wait_in_a_circle, &b);
    check_verdict(b.folder, "ranks wait for each other: rank ");
    check_verdict(b.folder, "rank 0 waits for rank 1 in call 2 of group 'other' (all_reduce");
    check_verdict(b.folder, "rank 1 waits for rank 0 in call ");
    test_directory_free((char *)(uintptr_t)b.folder);
}

/* ---- damage ---- */

/* The file of a rank that has waited in vain, and its size. */
static char *a_file(const char *folder, size_t *bytes)
{
    blame b = {.folder = folder, .late = 1};
    char *path = test_path(folder, "rank-0.flight"), *data;

    test_run_ranks(2, one_does_not_come, &b);
    data = test_read_file(path, bytes);
    return data;
}

static fsdp_status parse(const void *data, size_t bytes, fsdp__flight_log *log)
{
    return fsdp__flight_log_parse("x.flight", data, bytes, log);
}

TEST(what_is_damaged_is_told_or_left_out)
{
    char *folder = test_directory();
    size_t bytes;
    char *data = a_file(folder, &bytes);
    fsdp__flight_file *file = (fsdp__flight_file *)(void *)data;
    fsdp__flight_log log;
    int64_t count;

    CHECK_EQ(bytes, sizeof *file);
    CHECK_OK(parse(data, bytes, &log));
    count = log.count;
    CHECK_EQ(log.damaged, 0);
    fsdp__flight_log_release(&log);
    file->records[0].turn = 0; /* it was being written when its process died */
    file->records[1].bytes++;
    CHECK_OK(parse(data, bytes, &log));
    CHECK_EQ(log.count, count - 2);
    CHECK_EQ(log.damaged, 2);
    fsdp__flight_log_release(&log);
    CHECK_OK(parse(data, offsetof(fsdp__flight_file, records) + sizeof(fsdp__flight_record) - 1, &log));
    CHECK_EQ(log.count, 0);
    fsdp__flight_log_release(&log);
    CHECK_ERROR(parse(data, 8000, &log), FSDP_FORMAT, "was cut short: it has 8000 bytes");
    CHECK_ERROR(parse(data, 20, &log), FSDP_FORMAT, "'x.flight' is not the record of a rank's last calls");
    file->groups[0].size++;
    CHECK_ERROR(parse(data, bytes, &log), FSDP_FORMAT, "a group's name and members do not fit their checksum");
    file->head.world++;
    CHECK_ERROR(parse(data, bytes, &log), FSDP_FORMAT, "is damaged at byte 0: its head does not fit");
    file->head.version++;
    CHECK_ERROR(parse(data, bytes, &log), FSDP_UNSUPPORTED, "was written by another version");
}

TEST(no_changed_byte_breaks_a_reader)
{
    char *folder = test_directory();
    size_t bytes, end = offsetof(fsdp__flight_file, records) + 8 * sizeof(fsdp__flight_record);
    char *data = a_file(folder, &bytes);

    for (size_t at = 0; at < end; at += test_long() ? 1 : 7) {
        fsdp__flight_log log;

        data[at] ^= (char)(1 + at % 255);
        if (parse(data, end, &log) == FSDP_OK) {
            fsdp__flight_logs logs = {.logs = &log, .count = 1, .world = log.head.world};
            char *text = judge(&logs);

            CHECK(text[0]);
            free(text);
            fsdp__flight_log_release(&log);
        }
        data[at] ^= (char)(1 + at % 255);
    }
}

TEST(files_of_an_earlier_run_are_left_out)
{
    char *folder = test_directory();
    const char *paths[] = {folder, folder};
    blame b = {.folder = folder, .late = 3};
    fsdp__flight_logs logs;
    char *run, *inside;

    test_run_ranks(4, one_does_not_come, &b);
    b = (blame){.folder = folder, .late = 1};
    test_run_ranks(2, one_does_not_come, &b);
    CHECK_OK(fsdp__flight_logs_read(paths, 2, &logs)); /* each of the ranks is there twice */
    CHECK_EQ(logs.world, 2);
    CHECK_EQ(logs.count, 2);
    CHECK_EQ(logs.left_out, 6);
    fsdp__flight_logs_release(&logs);
    run = test_directory(); /* the folder of a run, which has the folder of records */
    inside = test_path(run, "metrics.jsonl.flight");
    CHECK_EQ(rename(folder, inside), 0);
    CHECK_OK(fsdp__flight_logs_read((const char *[]){run}, 1, &logs));
    CHECK_EQ(logs.count, 2);
    fsdp__flight_logs_release(&logs);
    CHECK_ERROR(fsdp__flight_logs_read((const char *[]){"/nowhere"}, 1, &logs), FSDP_NOT_FOUND, "/nowhere");
    folder = test_directory();
    CHECK_ERROR(fsdp__flight_logs_read((const char *[]){folder}, 1, &logs), FSDP_NOT_FOUND,
                "it has no file named rank-N.flight");
}
