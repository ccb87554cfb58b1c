/* What a report takes from a trace: the step of median length, what each rank does and waits for, who is slow and why,
 * what moves between ranks, and memory. The traces are written here, so that each figure is known. */
#include <stdlib.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/file.h"
#include "report/report.h"
#include "support/test.h"

typedef struct text {
    char *data;
    size_t bytes;
    FILE *out;
    int64_t at; /* where the step begins, in microseconds */
} text;

static void text_begin(text *t, int ranks, int machine_ranks)
{
    *t = (text){.data = NULL};
    t->out = open_memstream(&t->data, &t->bytes);
    fprintf(t->out,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"format\":\"fsdp trace\",\"version\":\"1\",\"world_size\":%d,"
            "\"ranks\":[",
            ranks);
    for (int r = 0; r < ranks; r++)
        fprintf(t->out,
                "%s\n{\"rank\":%d,\"host\":\"h<%d>\",\"machine\":%d,\"clock_offset_ns\":0,\"clock_uncertain_ns\":0,"
                "\"events\":9,\"dropped\":0}",
                r ? "," : "", r, r / machine_ranks, r / machine_ranks);
    fputs("]},\"traceEvents\":[\n", t->out);
}

static void span(text *t, int rank, int lane, const char *category, const char *name, int64_t begin, int64_t end,
                 const char *args)
{
    fprintf(t->out,
            "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.000,\"dur\":%lld.000,\"cat\":\"%s\",\"name\":\"%s\","
            "\"args\":{\"ns\":1%s}},\n",
            rank + 1, lane + 1, (long long)(t->at + begin), (long long)(end - begin), category, name, args);
}

static void call(text *t, int rank, const char *name, const char *group, int ranks, int first, int step, int number,
                 int64_t bytes, int64_t begin, int64_t end)
{
    char args[200];

    snprintf(args, sizeof args,
             ",\"call\":\"x\",\"group\":\"%s\",\"ranks\":%d,\"number\":%d,\"first_rank\":%d,\"rank_step\":%d,"
             "\"bytes\":%lld",
             group, ranks, number, first, step, (long long)bytes);
    span(t, rank, 1, "collective", name, begin, end, args);
}

static void memory(text *t, int rank, const char *kind, int64_t at, int64_t bytes)
{
    fprintf(t->out,
            "{\"ph\":\"C\",\"pid\":%d,\"tid\":1,\"ts\":%lld.000,\"name\":\"memory: %s\",\"args\":{\"bytes\":%lld}},\n",
            rank + 1, (long long)(t->at + at), kind, (long long)bytes);
}

/* A step of four ranks: each computes, meets the others in a gather, computes again, and steps its optimizer. */
static void put_rank(text *t, int number, int rank, int64_t alone, int64_t end)
{
    char name[20];

    snprintf(name, sizeof name, "step %d", number);
    span(t, rank, 0, "stage", name, 0, end, "");
    span(t, rank, 0, "stage", "forward", 0, 700, "");
    span(t, rank, 0, "kernel", "matmul", 0, alone, ",\"flops\":9");
    call(t, rank, "all_gather layers.1", "world", 4, 0, 1, number, 4000, alone, 650);
    span(t, rank, 0, "wait", "wait for all_gather layers.1", alone, 650, "");
    span(t, rank, 0, "unit", "forward layers.1", 650, 700, "");
    span(t, rank, 0, "kernel", "matmul", 650, 700, "");
    span(t, rank, 0, "kernel", "softmax", 700, 900, ""); /* in no list: another kernel */
    call(t, rank, "reduce_scatter layers.1", "shard", 2, rank / 2 * 2, 1, number, 200, 700, 710);
    call(t, rank, "all_reduce layers.1", "replicate", 2, rank % 2, 2, number, 100, 710, 720);
    call(t, rank, "broadcast", "world", 4, 0, 1, 100 + number, 64, 720, 730);
    span(t, rank, 0, "optimizer", "optimizer step", 900, end, "");
    fprintf(t->out,
            "{\"ph\":\"b\",\"pid\":%d,\"tid\":3,\"ts\":%lld.000,\"id2\":{\"local\":\"0x1\"},\"cat\":\"whole\",\"name\":"
            "\"whole: layers.1\",\"args\":{\"ns\":1}},\n"
            "{\"ph\":\"e\",\"pid\":%d,\"tid\":3,\"ts\":%lld.000,\"id2\":{\"local\":\"0x1\"},\"cat\":\"whole\",\"name\":"
            "\"whole: layers.1\"},\n",
            rank + 1, (long long)(t->at + alone), rank + 1, (long long)(t->at + 700));
    memory(t, rank, "activation", 10, 1000 + rank);
    memory(t, rank, "gradient", 700, 500);
    memory(t, rank, "activation", 800, 0);
    memory(t, rank, "all", 800, 500);
}

/* Ends the text and writes it as a file of a folder. The caller frees the path. */
static char *write_text(text *t, const char *folder, const char *name)
{
    char *path = test_path(folder, name);

    fputs("{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":1}}\n]}\n",
          t->out);
    fclose(t->out);
    test_write_file(path, t->data, t->bytes);
    free(t->data);
    return path;
}

/* Writes three steps of four ranks, the last of which is slow; the second has the median length. */
static char *slow_rank(const char *folder)
{
    static const int64_t lengths[] = {950, 1000, 5000};
    text t;

    text_begin(&t, 4, 2);
    for (int step = 1; step <= 3; step++, t.at += 10000)
        for (int rank = 0; rank < 4; rank++)
            put_rank(&t, step, rank, rank == 3 ? 600 : 200, lengths[step - 1]);
    return write_text(&t, folder, "trace.json");
}

TEST(the_step_of_median_length_is_shown_with_what_each_rank_does)
{
    char *folder = test_directory(), *path = slow_rank(folder);
    fsdp__traced_step step;

    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.number, 2);
    CHECK_EQ(step.traced, 3);
    CHECK_EQ(step.ns, 1000000);
    for (int r = 0; r < 4; r++) {
        const fsdp__step_rank *rank = &step.ranks[r];
        int64_t all = 0;

        for (int a = 0; a < FSDP__ACTIVITIES; a++)
            all += rank->parts[a];
        CHECK_EQ(all, 1000000);
        CHECK_EQ(rank->parts[FSDP__DOES_PRODUCTS], r == 3 ? 650000 : 250000);
        CHECK_EQ(rank->parts[FSDP__WAITS_FOR_GATHERS], r == 3 ? 50000 : 450000);
        CHECK_EQ(rank->parts[FSDP__DOES_OTHER], 200000);
        CHECK_EQ(rank->parts[FSDP__DOES_OPTIMIZER], 100000);
        CHECK_EQ(rank->for_others, r == 3 ? 0 : 400000);
        CHECK_EQ(rank->awaited, r == 3 ? -1 : 3);
        CHECK_EQ(rank->caused, r == 3 ? 1200000 : 0);
        CHECK_EQ(rank->calls.count, 4);
    }
    fsdp__traced_step_release(&step);
}

TEST(the_slow_rank_is_named_with_what_it_does_longer)
{
    char *folder = test_directory(), *path = slow_rank(folder);
    fsdp__sources *sources = calloc(1, sizeof *sources);
    fsdp__advices advices;

    CHECK_OK(fsdp__sources_add(sources, path));
    CHECK_EQ(sources->items[0].of.step.slowest, 3);
    CHECK_EQ(sources->items[0].of.step.why, FSDP__SLOW_IN_COMPUTING);
    CHECK_OK(fsdp__advices_of(sources, NULL, &advices));
    CHECK_EQ(advices.count, 2);
    CHECK_CONTAINS(advices.items[0].text, "Rank 3 is slow: in step 2 of 1 ms the others wait 0.4 ms for it on the "
                                          "average; it computes for 0.95 ms, the others for 0.55 ms: ");
    CHECK_CONTAINS(advices.items[1].text,
                   "Nothing hides all_gather layers.1 in step 2: a rank waits 0.35 ms of 1 ms for "
                   "it on the average, 0.3 ms of that until the last rank has come to it; most of that is waiting for "
                   "ranks that come late, and mostly for rank 3.");
    fsdp__advices_free(&advices);
    fsdp__sources_release(sources);
    free(sources);
}

/* Reads a step of three ranks that wait for this call of this group alone. Returns what is advised. */
static char *advice_of_wait(const char *name, const char *group, int machine_ranks)
{
    char *folder = test_directory(), *path, *advice, wait[80];
    fsdp__sources *sources = calloc(1, sizeof *sources);
    fsdp__advices advices;
    text t;

    snprintf(wait, sizeof wait, "wait for %s", name);
    text_begin(&t, 3, machine_ranks);
    for (int rank = 0; rank < 3; rank++) {
        span(&t, rank, 0, "stage", "step 1", 0, 1000, "");
        call(&t, rank, name, group, 3, 0, 1, 1, 30, 100, 500);
        span(&t, rank, strcmp(group, "tp") == 0, "kernel", "x", 0, 100, ""); /* teams: where calls are */
        span(&t, rank, 0, "wait", wait, 0, strcmp(group, "tp") == 0 ? 0 : 500, "");
    }
    path = write_text(&t, folder, "trace.json");
    CHECK_OK(fsdp__sources_add(sources, path));
    CHECK_OK(fsdp__advices_of(sources, NULL, &advices));
    CHECK_EQ(advices.count, 1);
    advice = strdup(advices.items[0].text);
    fsdp__advices_free(&advices);
    fsdp__sources_release(sources);
    free(sources);
    test_directory_free(folder);
    return advice;
}

TEST(a_network_is_named_only_with_several_machines)
{
    static const struct {
        const char *call, *group, *part;
    } cases[] = {{"all_gather x", "world", "try parallelism.prefetch=2"},
                 {"reduce_scatter x", "world", "try a larger training.global_batch_size"},
                 {"all_gather", "tp", "it; the next layer needs it at once: try a smaller parallelism.tensor_parallel"},
                 {"broadcast", "world", "Nothing hides broadcast in step 1: a rank waits 0.4 ms of 1 ms"}};

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        char *one = advice_of_wait(cases[i].call, cases[i].group, 3);
        char *three = advice_of_wait(cases[i].call, cases[i].group, 1);

        CHECK_CONTAINS(one, cases[i].part);
        CHECK(!strstr(one, "network"));
        CHECK_CONTAINS(three, cases[i].part);
        CHECK_CONTAINS(three, "a faster network");
        free(one);
        free(three);
    }
}

TEST(each_reason_of_a_slow_rank_is_told_from_the_others)
{
    static const struct {
        int lane;
        const char *category, *name;
        fsdp__step_reason why;
    } cases[] = {{0, "kernel", "matmul", FSDP__SLOW_IN_COMPUTING},
                 {2, "data", "batch 7", FSDP__SLOW_IN_DATA},
                 {0, "checkpoint", "write x", FSDP__SLOW_IN_CHECKPOINT},
                 {0, "unit", "forward x", FSDP__SLOW_IN_HOST}};
    char *folder = test_directory();

    for (size_t i = 0; i <= FSDP__COUNT_OF(cases); i++) { /* the last one begins its step later */
        text t;
        fsdp__traced_step step;
        char *path;

        text_begin(&t, 3, 3);
        for (int rank = 0; rank < 3; rank++) {
            int64_t come = rank == 1 ? 800 : 100;

            span(&t, rank, 0, "stage", "step 1", i == FSDP__COUNT_OF(cases) ? come : 0, 1000, "");
            if (i < FSDP__COUNT_OF(cases))
                span(&t, rank, cases[i].lane, cases[i].category, cases[i].name, 0, come, "");
            call(&t, rank, "reduce_scatter", "world", 3, 0, 1, 1, 30, come, 900);
            span(&t, rank, 0, "wait", "wait for reduce_scatter", come, 900, "");
        }
        path = write_text(&t, folder, "trace.json");
        CHECK_OK(fsdp__traced_step_read(path, &step));
        CHECK_EQ(step.slowest, 1);
        CHECK_EQ(step.why, i < FSDP__COUNT_OF(cases) ? cases[i].why : FSDP__SLOW_BETWEEN_STEPS);
        CHECK_EQ(step.its - step.usual, 700000);
        CHECK_EQ(step.ranks[0].parts[FSDP__WAITS_FOR_REDUCTIONS], 800000);
        fsdp__traced_step_release(&step);
    }
}

/* Six steps of three ranks: rank 1 is slow in the fourth, and all of them are in the fifth. */
TEST(a_rank_that_is_slow_in_one_step_only_is_named_with_it)
{
    char *folder = test_directory(), *path;
    fsdp__sources *sources = calloc(1, sizeof *sources);
    fsdp__advices advices;
    text t;

    text_begin(&t, 3, 3);
    for (int step = 1; step <= 6; step++, t.at += 10000)
        for (int rank = 0; rank < 3; rank++) {
            int64_t come = (step == 4 && rank == 1) || step == 5 ? 3800 : 100 + rank,
                    end = step < 4 || step > 5 ? 900 : 4500;
            char name[20];

            snprintf(name, sizeof name, "step %d", step);
            span(&t, rank, 0, "stage", name, 0, end, "");
            span(&t, rank, 0, "kernel", "matmul", 0, come, "");
            call(&t, rank, "all_gather x", "world", 3, 0, 1, step, 30, come, end);
            span(&t, rank, 0, "wait", "wait for all_gather x", come, end, "");
        }
    path = write_text(&t, folder, "trace.json");
    CHECK_OK(fsdp__sources_add(sources, path));
    CHECK_EQ(sources->items[0].of.step.slowest, -1);
    CHECK_EQ(sources->items[0].of.step.odd_count, 1);
    CHECK_OK(fsdp__advices_of(sources, NULL, &advices));
    CHECK_CONTAINS(
        advices.items[0].text,
        "Rank 1 was slow in step 4, which took 4.5 ms (step 3, in the middle of all, took 0.9 ms): the others "
        "waited 3.7 ms for it on the average, longest at all_gather x; it computes for 3.8 ms, the others "
        "for 0.1 ms: ");
    CHECK(advices.count < 2 || !strstr(advices.items[1].text, "was slow"));
    fsdp__advices_free(&advices);
    fsdp__sources_release(sources);
    free(sources);
}

TEST(a_rank_whose_calls_end_later_has_a_slow_network)
{
    char *folder = test_directory(), *path;
    text t;
    fsdp__traced_step step;

    text_begin(&t, 3, 1);
    for (int rank = 0; rank < 3; rank++) {
        int64_t end = rank == 2 ? 700 : 200;

        span(&t, rank, 0, "stage", "step 1", 0, 1000, "");
        call(&t, rank, "all_gather x", "world", 3, 0, 1, 1, 30, 100, end);
        span(&t, rank, 0, "wait", "wait for all_gather x", 100, end, "");
        call(&t, rank, "all_gather y", "world", 3, 0, 1, 2, 30, end, 750);
        span(&t, rank, 0, "wait", "wait for all_gather y", end, 750, "");
    }
    path = write_text(&t, folder, "trace.json");
    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.slowest, 2);
    CHECK_EQ(step.why, FSDP__SLOW_IN_CALLS);
    CHECK_EQ(step.its, 650000);
    CHECK_EQ(step.usual, 150000);
    fsdp__traced_step_release(&step);
}

TEST(what_moves_between_ranks_is_exact)
{
    char *folder = test_directory(), *path = slow_rank(folder);
    fsdp__traced_step step;

    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.matrix_sides, 4);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            /* all have a quarter of the gather; neighbours half of the sums; ranks two apart reduce and gather halves
             */
            CHECK_NEAR(step.matrix[i][k], i == k ? 0 : 1000 + (i / 2 == k / 2) * 100 + (i % 2 == k % 2) * 100, 0);
    CHECK_EQ(step.matrix_left_out, 4); /* nobody says who broadcasts */
    CHECK_EQ(step.traffic_count, 4);
    CHECK_STRING(step.traffic[0].group, "world");
    CHECK_EQ(step.traffic[0].kind, FSDP_ALL_GATHER);
    CHECK_EQ(step.traffic[0].sent, 3000);
    CHECK_STRING(step.traffic[1].group, "shard");
    CHECK_EQ(step.traffic[1].calls, 1);
    CHECK_EQ(step.traffic[1].sent, 100);
    CHECK_EQ(step.traffic[2].sent, 100);
    CHECK_EQ(step.traffic[3].sent, -1);
    fsdp__traced_step_release(&step);
}

TEST(a_large_world_folds_to_machines_and_these_to_sets)
{
    static const struct {
        int ranks, machine_ranks, sides, fold;
        bool machines;
    } cases[] = {{16, 2, 16, 1, false}, {24, 2, 12, 1, true}, {66, 2, 11, 3, true}, {40, 40, 14, 3, false}};
    char *folder = test_directory();

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        int ranks = cases[i].ranks;
        text t;
        fsdp__traced_step step;
        double all = 0;
        char *path;

        text_begin(&t, ranks, cases[i].machine_ranks);
        for (int r = 0; r < ranks; r++) {
            span(&t, r, 0, "stage", "step 1", 0, 100, "");
            call(&t, r, "all_gather x", "world", ranks, 0, 1, 1, 10 * ranks, 10, 20);
        }
        path = write_text(&t, folder, "trace.json");
        CHECK_OK(fsdp__traced_step_read(path, &step));
        CHECK_EQ(step.matrix_sides, cases[i].sides);
        CHECK_EQ(step.matrix_fold, cases[i].fold);
        CHECK_EQ(step.matrix_of_machines, cases[i].machines);
        for (int a = 0; a < step.matrix_sides; a++)
            for (int b = 0; b < step.matrix_sides; b++)
                all += step.matrix[a][b];
        CHECK_NEAR(all, 10.0 * ranks * (ranks - 1), 1e-6);
        fsdp__traced_step_release(&step);
    }
}

TEST(memory_and_units_are_those_of_the_step)
{
    char *folder = test_directory(), *path = slow_rank(folder);
    fsdp__traced_step step;

    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.highest.rank, 3); /* it has three bytes more */
    CHECK_EQ(step.highest.peak, 1503);
    CHECK_EQ(step.highest.moments[0].bytes[FSDP_MEMORY_GRADIENT], 500); /* from the step before */
    CHECK_EQ(step.highest.moments[0].at, 0);
    CHECK_EQ(step.highest.moments[step.highest.count - 1].at, 800000);
    CHECK_EQ(step.unit_count, 4);
    CHECK_EQ(step.units[0].state, FSDP__UNIT_WHOLE);
    CHECK_EQ(step.units[0].begin, 200000);
    CHECK_EQ(step.units[0].end, 700000);
    CHECK_STRING(step.units[3].name, "layers.1");
    fsdp__traced_step_release(&step);
}

TEST(groups_that_cannot_be_told_apart_blame_nobody)
{
    char *folder = test_directory(), *path;
    text t;
    fsdp__traced_step step;

    text_begin(&t, 4, 4);
    for (int r = 0; r < 4; r++) { /* two groups of one name, of which the trace does not list the members */
        span(&t, r, 0, "stage", "step 1", 0, 1000, "");
        span(&t, r, 1, "collective", "all_gather x", r == 1 ? 900 : 10, 950,
             ",\"group\":\"shard\",\"ranks\":2,\"number\":1,\"bytes\":100");
        span(&t, r, 0, "wait", "wait for all_gather x", r == 1 ? 900 : 10, 950, "");
    }
    path = write_text(&t, folder, "trace.json");
    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.slowest, -1);
    CHECK_EQ(step.ranks[0].for_others, 0);
    CHECK_EQ(step.matrix_left_out, 4);
    fsdp__traced_step_release(&step);
}

static char *page_of(const char *path)
{
    fsdp__report *report = calloc(1, sizeof *report);
    char *data = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&data, &bytes);

    CHECK_OK(fsdp__sources_add(&report->sources, path));
    CHECK_OK(fsdp__sources_finish(&report->sources));
    CHECK_OK(fsdp__advices_of(&report->sources, NULL, &report->advices));
    CHECK_OK(fsdp__report_page(report, out));
    CHECK_OK(fsdp__report_text(report, out));
    fclose(out);
    fsdp__advices_free(&report->advices);
    fsdp__sources_release(&report->sources);
    free(report);
    return data;
}

TEST(a_trace_alone_is_a_page)
{
    char *folder = test_directory(), *path = slow_rank(folder), *page = page_of(path);

    CHECK_CONTAINS(page, "<h2>Step 2, rank by rank</h2>");
    CHECK_CONTAINS(page, "<b>rank 3</b>");
    CHECK_CONTAINS(page, "<h2>Memory within the step</h2>");
    CHECK_CONTAINS(page, "activation 1003B");
    CHECK_CONTAINS(page, "From rank (left) to rank (above)");
    CHECK_CONTAINS(page, "Not in it: 4 calls");
    CHECK_CONTAINS(page, "on h&#60;1&#62;");
    CHECK_CONTAINS(page, "Step 2, by rank\n");
    CHECK_CONTAINS(page, "- Rank 3 is slow");
    free(page);
}

TEST(a_picture_of_several_traces_has_a_title_for_each)
{
    char *folder = test_directory(), *path = slow_rank(folder), *other = test_path(folder, "two_ranks.json.gz"), *data;
    fsdp__report *report = calloc(1, sizeof *report);
    FILE *out;
    size_t bytes = 0;

    CHECK_EQ(rename(path, other), 0);
    slow_rank(folder);
    CHECK_OK(fsdp__sources_add(&report->sources, path));
    CHECK_OK(fsdp__sources_add(&report->sources, other));
    out = open_memstream(&data, &bytes);
    CHECK_OK(fsdp__report_svg(report, out));
    fclose(out);
    CHECK_EQ(strncmp(data, "<svg xmlns=", 11), 0);
    CHECK_CONTAINS(data, ">trace</text>");
    CHECK_CONTAINS(data, ">two ranks</text>");
    CHECK_CONTAINS(data, ">layers.1</text>");
    CHECK_CONTAINS(data, ">at most 1.465KiB</text>"); /* the peak of rank 0 */
    CHECK_CONTAINS(data, ">0.5KiB</text>");           /* of its scale */
    CHECK_CONTAINS(data, ">rank 0</text>");
    CHECK_CONTAINS(data, "</svg>\n");
    fsdp__sources_release(&report->sources);
    free(report);
    free(data);
}

TEST(traces_of_one_name_have_their_paths_as_titles)
{
    char *folders[] = {test_directory(), test_directory()}, *paths[2], *data, title[200];
    fsdp__report *report = calloc(1, sizeof *report);
    FILE *out;
    size_t bytes = 0;

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp__sources_add(&report->sources, paths[i] = slow_rank(folders[i])));
    out = open_memstream(&data, &bytes);
    CHECK_OK(fsdp__report_svg(report, out));
    fclose(out);
    for (int i = 0; i < 2; i++) {
        snprintf(title, sizeof title, ">%s</text>", paths[i]);
        CHECK_CONTAINS(data, title);
    }
    fsdp__sources_release(&report->sources);
    free(report);
    free(data);
}

/* Reads a trace whose one event is this; returns its outcome. */
static fsdp_status read_event(const char *event, const char *part)
{
    char *folder = test_directory(), *path;
    text t;
    fsdp__traced_step step;
    fsdp_status status;

    text_begin(&t, 2, 2);
    for (int r = 0; r < 2; r++)
        span(&t, r, 0, "stage", "step 1", 0, 10, "");
    fprintf(t.out, "%s,\n", event);
    path = write_text(&t, folder, "trace.json");
    status = fsdp__traced_step_read(path, &step);
    fsdp__traced_step_release(&step);
    if (part) {
        CHECK_CONTAINS(fsdp_last_error(), part);
        CHECK_CONTAINS(fsdp_last_error(), "trace.json': line 6: ");
    }
    test_directory_free(folder);
    return status;
}

#define X "{\"ph\":\"X\",\"pid\":1,\"tid\":1,"
#define CALL X "\"ts\":1,\"dur\":1,\"cat\":\"collective\",\"name\":\"all_gather\",\"args\":{\"group\":\"g\","

TEST(an_event_that_cannot_be_is_refused_by_line)
{
    CHECK_OK(read_event(X "\"ts\":1,\"dur\":1,\"cat\":\"of another version\",\"name\":\"x\"}", NULL));
    CHECK_OK(read_event("{\"ph\":\"?\",\"pid\":1,\"tid\":1}", NULL));
    CHECK_EQ(read_event("[]", "it is no JSON object"), FSDP_FORMAT);
    CHECK_EQ(read_event(X "\"ts\":-1,\"dur\":1,\"cat\":\"kernel\"}", "its 'ts' is no time"), FSDP_FORMAT);
    CHECK_EQ(read_event(X "\"ts\":1,\"dur\":1e300,\"cat\":\"kernel\"}", "its 'dur' is no time"), FSDP_FORMAT);
    CHECK_EQ(read_event("{\"ph\":\"X\",\"pid\":3,\"tid\":1}", "its 'pid' is no number from 1 to 2"), FSDP_FORMAT);
    CHECK_EQ(read_event("{\"ph\":\"X\",\"pid\":1,\"tid\":0}", "its 'tid' is no number"), FSDP_FORMAT);
    CHECK_EQ(read_event(CALL "\"ranks\":0}}", "its 'ranks' is no number"), FSDP_FORMAT);
    CHECK_EQ(read_event(CALL "\"ranks\":2,\"first_rank\":1,\"rank_step\":1}}", "ranks beyond the run's 2"),
             FSDP_FORMAT);
    CHECK_EQ(read_event(CALL "\"ranks\":2,\"bytes\":-1}}", "its 'bytes' is no number"), FSDP_FORMAT);
    CHECK_EQ(read_event("{\"ph\":\"e\",\"pid\":1,\"tid\":1,\"ts\":1,\"cat\":\"whole\"}", "has not begun"), FSDP_FORMAT);
}

/* Reads the first bytes of a file as a trace. */
static fsdp_status read_part(const char *path, const char *data, size_t bytes)
{
    fsdp__traced_step step;
    fsdp_status status;

    test_write_file(path, data, bytes);
    status = fsdp__traced_step_read(path, &step);
    fsdp__traced_step_release(&step);
    return status;
}

TEST(a_trace_that_is_cut_short_or_damaged_is_an_error_and_a_whole_one_may_be_packed)
{
    char *folder = test_directory(), *path = slow_rank(folder), *packed = test_path(folder, "t.json.gz"), *data = NULL;
    size_t bytes = 0;
    gzFile out = gzopen(packed, "wb");
    fsdp__traced_step step;

    CHECK_OK(fsdp__file_read(path, 1 << 20, &data, &bytes));
    CHECK_EQ(gzwrite(out, data, (unsigned)bytes), (int)bytes);
    gzclose(out);
    for (size_t cut = 0; cut < bytes - 3; cut += 1 + cut / 40)
        CHECK_EQ(read_part(path, data, cut), FSDP_FORMAT);
    fsdp__free(data);
    CHECK_OK(fsdp__traced_step_read(packed, &step));
    CHECK_EQ(step.ranks[3].caused, 1200000);
    fsdp__traced_step_release(&step);
    CHECK_OK(fsdp__file_read(packed, 1 << 20, &data, &bytes));
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 40)
        CHECK_EQ(read_part(path, data, cut), FSDP_FORMAT);
    for (size_t at = 0; at < bytes; at += 1 + bytes / 60) { /* damaged: an error, or nothing that matters */
        data[at] ^= 0x55;
        (void)read_part(path, data, bytes);
        data[at] ^= 0x55;
    }
    fsdp__free(data);
}

TEST(memory_that_is_refused_while_a_trace_is_read_is_an_error)
{
    char *folder = test_directory(), *path = slow_rank(folder);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__traced_step step;
        fsdp_status status = fsdp__traced_step_read(path, &step);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__traced_step_release(&step);
    }
}
