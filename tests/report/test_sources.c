/* What a report is made of: a run's trace and flight records are found, named files are told apart by what they hold,
 * and what is damaged is left out if nobody has named it. */
#include <sys/stat.h>

#include "report/report.h"
#include "support/test.h"
#include "watch/flight_file.h"

#define TRACE                                                                                                      \
    "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"format\":\"fsdp trace\",\"version\":\"1\",\"world_size\":1,"     \
    "\"ranks\":[\n{\"rank\":0,\"host\":\"h\",\"machine\":0,\"clock_uncertain_ns\":0,\"dropped\":0}]},"             \
    "\"traceEvents\":[\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":0.000,\"dur\":9.000,\"cat\":\"kernel\",\"name\":" \
    "\"x\","                                                                                                       \
    "\"args\":{}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":1}\n]}\n"
#define RUN(settings) "{\"run\": \"1\", \"steps\": 2, \"settings\": {" settings "}}\n"
#define RUN_OF(id, more) "{\"run\": \"" id "\", \"settings\": {\"metrics.trace.path\": \"t.json\"}" more "}\n"
#define STEPS                                                                                                   \
    "{\"step\": 1, \"loss\": 5, \"step_ms\": 90, \"bytes_sent\": 30, \"memory_peak_bytes_of_gradient\": 700}\n" \
    "{\"step\": 2, \"loss\": 4, \"step_ms\": 50, \"bytes_sent\": 30, \"memory_peak_bytes_of_gradient\": 800}\n"
#define PLAN                                                                                                       \
    "{\n \"model\": \"m\", \"world_size\": 1, \"peak\": {\"bytes\": 1000}, \"peak_bytes\": {\"gradient\": 800},\n" \
    " \"bytes_sent\": {\"all_gather\": 20, \"all_reduce\": 10}, \"time\": {\"step_seconds\": 0.05}}\n"

typedef struct folder {
    char *path;
    fsdp__report *report;
} folder;

static folder folder_create(void)
{
    return (folder){test_directory(), calloc(1, sizeof(fsdp__report))};
}

static void forget(folder *f)
{
    fsdp__advices_free(&f->report->advices);
    fsdp__sources_release(&f->report->sources);
    memset(f->report, 0, sizeof *f->report);
}

static void folder_free(folder *f)
{
    forget(f);
    free(f->report);
    test_directory_free(f->path);
}

static void put(const folder *f, const char *name, const void *data, size_t bytes)
{
    char *path = test_path(f->path, name);

    test_write_file(path, data, bytes);
}

static void put_text(const folder *f, const char *name, const char *text)
{
    put(f, name, text, strlen(text));
}

static fsdp_status add(folder *f, const char *name)
{
    char *path = test_path(f->path, name);
    fsdp_status status = fsdp__sources_add(&f->report->sources, *name ? path : f->path);

    return status;
}

/* Returns what is printed of all that was added, and the page. */
static char *shown(folder *f)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__sources_finish(&f->report->sources));
    CHECK_OK(fsdp__advices_of(&f->report->sources, NULL, &f->report->advices));
    CHECK_OK(fsdp__report_text(f->report, out));
    CHECK_OK(fsdp__report_page(f->report, out));
    return test_end_text(out);
}

/* Writes the record of rank 0 of two, whose call nobody else has come to, begun so many seconds after 1970, by the run
 * with this id. */
static void put_flight_by(const folder *f, const char *name, int64_t seconds, const char *id)
{
    fsdp__flight_file *file = calloc(1, sizeof *file);
    fsdp__flight_record *record = &file->records[0];

    file->head = (fsdp__flight_head){.magic = FSDP__FLIGHT_MAGIC,
                                     .version = FSDP__FLIGHT_VERSION,
                                     .record_bytes = sizeof(fsdp__flight_record),
                                     .world = 2,
                                     .machines = 1,
                                     .wall_ns = seconds * 1000000000,
                                     .host = "<h>"};
    file->head.check = fsdp__flight_head_check(&file->head);
    snprintf(file->end.id, sizeof file->end.id, "%s", id);
    file->end.written_ns = 5000000000;
    file->groups[0] = (fsdp__flight_group){
        .issued = 1, .begun = 1, .size = 2, .runs = 1, .run = {{.first = 0, .step = 1, .count = 2}}, .name = "world"};
    file->groups[0].check = fsdp__flight_group_check(&file->groups[0]);
    *record = (fsdp__flight_record){.begun = 2000000000, .issued = 2000000000, .number = 1, .name = "all_reduce"};
    record->turn = 1;
    record->check = fsdp__flight_record_check(record, 1);
    put(f, name, file, sizeof *file);
    free(file);
}

static void put_flight_of(const folder *f, const char *name, int64_t seconds)
{
    put_flight_by(f, name, seconds, "");
}

static void put_flight(const folder *f, const char *name)
{
    put_flight_of(f, name, 0);
}

TEST(a_folder_is_searched_for_the_trace_and_the_flight_records_of_its_run)
{
    folder f = folder_create();
    char *inside = test_path(f.path, "metrics.jsonl.flight"), *text;

    CHECK_EQ(mkdir(inside, 0700), 0);
    put_text(&f, "metrics.jsonl", RUN("\"metrics.trace.path\": \"elsewhere/t.json\"") "{\"step\": 1, \"loss\": 5}\n");
    put_text(&f, "t.json", TRACE);
    put_flight(&f, "metrics.jsonl.flight/rank-0.flight");
    CHECK_OK(add(&f, ""));
    CHECK_EQ(f.report->sources.count, 2); /* each once, although the settings and the folder lead to both */
    CHECK_EQ(fsdp__source_of(&f.report->sources, FSDP__SOURCE_TRACE, 0, 0)->of.step.ns, 9000);
    CHECK(fsdp__source_of(&f.report->sources, FSDP__SOURCE_FLIGHT, 0, 0));
    CHECK_NULL(fsdp__source_of(&f.report->sources, FSDP__SOURCE_FLIGHT, 0, 1));
    text = shown(&f);
    CHECK_CONTAINS(text, "- the others wait for rank 1: it has not come to call 1 of group 'world' (all_reduce)");
    CHECK_CONTAINS(text, "rank 0 on &#60;h&#62;");
    CHECK_CONTAINS(text, "metrics.jsonl.flight)\n  rank 0 ");
    CHECK_CONTAINS(text, "- It has taken 1 of 2 steps. Once it has ended it cannot be continued");
    CHECK_CONTAINS(text, "What was traced, by rank\n");
    folder_free(&f);
}

TEST(metrics_find_what_their_run_has_left_beside_them)
{
    folder f = folder_create();
    char *inside = test_path(f.path, "m.flight"), *text;

    CHECK_EQ(mkdir(inside, 0700), 0);
    put_text(&f, "m", RUN("\"metrics.trace.path\": \"t.json\"") STEPS);
    put_text(&f, "t.json", TRACE);
    put_flight(&f, "m.flight/rank-0.flight");
    put_text(&f, "other.json", TRACE); /* of another run, perhaps */
    CHECK_OK(add(&f, "m"));
    CHECK_EQ(f.report->sources.count, 2);
    forget(&f);
    put_text(&f, "t.json", "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"format\":\"fsdp trace\"");
    CHECK_OK(add(&f, "m")); /* nobody has asked for this trace */
    CHECK_EQ(f.report->sources.count, 1);
    text = shown(&f);
    CHECK_CONTAINS(text, "\nLeft out: cannot read '");
    CHECK_CONTAINS(text, "t.json': line 1: it is cut short");
    CHECK_ERROR(add(&f, "t.json"), FSDP_FORMAT, "t.json': line 1: it is cut short");
    folder_free(&f);
}

#define STARTED(time, more) "{\"run\": \"" time "\", \"started\": \"2026-03-01T10:" time "Z\"" more "}\n"

TEST(flight_records_are_those_of_the_run_that_wrote_them)
{
    const int64_t ten = 1772359200; /* 2026-03-01 10:00 UTC; records go on for five seconds */
    folder f = folder_create();
    char *inside = test_path(f.path, "m.flight"), *text;

    CHECK_EQ(mkdir(inside, 0700), 0);
    put_text(&f, "m", STARTED("00:02", "") STEPS STARTED("00:09", "") STEPS);
    put_flight_of(&f, "m.flight/rank-0.flight", ten);
    CHECK_OK(add(&f, "m"));
    text = shown(&f);
    CHECK_EQ(fsdp__source_of(&f.report->sources, FSDP__SOURCE_FLIGHT, -1, 0)->run, 0);
    CHECK_CONTAINS(text, "\n- m: the others wait for rank 1");
    forget(&f);
    put_flight_of(&f, "m.flight/rank-0.flight", ten + 8);
    CHECK_OK(add(&f, "m"));
    text = shown(&f);
    CHECK_CONTAINS(text, "\n- m, run 2: the others wait for rank 1");
    folder_free(&f);
}

TEST(flight_records_of_another_start_are_left_out_unless_they_are_named)
{
    static const char *const metrics[] = {STARTED("00:09", "") STEPS,
                                          STARTED("00:02", "") STEPS STARTED("00:09", ", \"resumed_from\": 1") STEPS};
    const int64_t ten = 1772359200;
    folder f = folder_create();
    char *inside = test_path(f.path, "m.flight"), *text;

    CHECK_EQ(mkdir(inside, 0700), 0);
    for (int i = 0; i < 4; i++) {
        put_text(&f, "m", metrics[i % 2]);
        put_flight_of(&f, "m.flight/rank-0.flight", i < 2 ? ten : ten + 30);
        CHECK_OK(add(&f, "m"));
        CHECK_NULL(fsdp__source_of(&f.report->sources, FSDP__SOURCE_FLIGHT, -1, 0));
        text = shown(&f);
        CHECK_NULL(strstr(text, "rank 1"));
        CHECK_CONTAINS(text, "\nLeft out: the flight records '");
        CHECK_CONTAINS(text, i < 2 ? "they go from 2026-03-01 10:00:00 UTC to 2026-03-01 10:00:05 UTC, and it was "
                                     "started at 2026-03-01 10:00:09 UTC"
                                   : "they go from 2026-03-01 10:00:30 UTC");
        forget(&f);
        CHECK_OK(add(&f, "m"));
        CHECK_OK(add(&f, "m.flight/rank-0.flight"));
        text = shown(&f);
        CHECK_CONTAINS(text, "rank-0.flight': the others wait for rank 1");
        forget(&f);
    }
    folder_free(&f);
}

/* Of two runs at once no time tells whose records they are. */
TEST(flight_records_that_have_an_id_are_of_the_run_with_that)
{
    static const char metrics[] = STARTED("00:02", "") STEPS STARTED("00:03", "") STEPS
        "{\"run\": \"c\", \"id\": \"c\", \"started\": \"2026-03-01T10:00:04Z\"}\n"
        "{\"run\": \"d\", \"id\": \"d\", \"resumed_from\": 1, \"continues\": \"c\"}\n";
    static const char *const ids[] = {"00:03", "00:02", "d", "c", "gone"};
    static const int64_t runs[] = {1, 0, 2, -1, -1}; /* those of an earlier start, or of another run, are left out */
    const int64_t ten = 1772359200;
    folder f = folder_create();
    char *inside = test_path(f.path, "m.flight");

    CHECK_EQ(mkdir(inside, 0700), 0);
    put_text(&f, "m", metrics);
    for (size_t i = 0; i < FSDP__COUNT_OF(ids); i++) {
        const fsdp__source *flight;

        put_flight_by(&f, "m.flight/rank-0.flight", ten, ids[i]);
        CHECK_OK(add(&f, "m"));
        flight = fsdp__source_of(&f.report->sources, FSDP__SOURCE_FLIGHT, -1, 0);
        CHECK_EQ(flight ? flight->run : -1, runs[i]);
        forget(&f);
    }
    folder_free(&f);
}

TEST(a_trace_is_that_of_the_run_whose_id_it_has)
{
    static const char head[] = "\"format\":\"fsdp trace\",";
    static const char trace[] = TRACE;
    const char *at = strstr(trace, head) + strlen(head);
    char of_first[sizeof TRACE + 60], of_none[sizeof TRACE + 60], *text;
    folder f = folder_create();

    snprintf(of_first, sizeof of_first, "%.*s\"run\":\"one\",%s", (int)(at - trace), trace, at);
    snprintf(of_none, sizeof of_none, "%.*s\"run\":\"gone\",\"started\":\"2026-03-01\",%s", (int)(at - trace), trace,
             at);
    put_text(&f, "m", RUN_OF("one", "") STEPS RUN_OF("two", "") STEPS RUN_OF("three", ", \"resumed_from\": 1") STEPS);
    put_text(&f, "t.json", of_first);
    CHECK_OK(add(&f, "m"));
    text = shown(&f);
    CHECK_CONTAINS(text, "\nm: What was traced");
    forget(&f);
    put_text(&f, "t.json", of_none);
    CHECK_OK(add(&f, "m"));
    text = shown(&f);
    CHECK_EQ(f.report->sources.count, 0);
    CHECK_CONTAINS(text, "t.json' is not of this run: it is of run gone, of 2026-03-01; name it to see it");
    forget(&f);
    CHECK_OK(add(&f, "m"));
    CHECK_OK(add(&f, "t.json"));
    text = shown(&f);
    CHECK_CONTAINS(text, "t.json' (of run gone, of 2026-03-01): What was traced");
    folder_free(&f);
}

TEST(a_plan_stands_beside_the_run_that_it_was_made_for)
{
    folder f = folder_create();
    char *text;

    put_text(&f, "metrics.jsonl", RUN("") STEPS);
    put_text(&f, "plan.json", PLAN);
    CHECK_OK(add(&f, "metrics.jsonl"));
    CHECK_OK(add(&f, "plan.json"));
    text = shown(&f);
    CHECK_CONTAINS(text, "  a usual step (median)                            50 ms         50 ms\n");
    CHECK_CONTAINS(text, "  most gradient                                     800B          800B\n");
    CHECK_CONTAINS(text, "  sent by rank 0 in a step                           30B           30B\n");
    CHECK_CONTAINS(text, "<td class=\"number\">1.000</td>");
    folder_free(&f);
}

TEST(what_is_none_of_these_is_one_clear_error)
{
    folder f = folder_create();
    fsdp__flight_head head = {.magic = FSDP__FLIGHT_MAGIC};

    put_text(&f, "other.json", "{\n \"version\": 1\n}\n");
    put_text(&f, "broken.json", "{\n \"peak\": ");
    put(&f, "rank-0.flight", &head, sizeof head);
    CHECK_ERROR(add(&f, "absent"), FSDP_NOT_FOUND, "absent");
    CHECK_ERROR(add(&f, "other.json"), FSDP_FORMAT, "it is JSON, but no plan of fsdp plan --json");
    CHECK_ERROR(add(&f, "broken.json"), FSDP_FORMAT, "broken.json");
    CHECK_ERROR(add(&f, "rank-0.flight"), FSDP_UNSUPPORTED, "another version of this program");
    CHECK_ERROR(add(&f, ""), FSDP_FORMAT, "another version of this program");
    CHECK_EQ(f.report->sources.count, 0);
    folder_free(&f);
}

TEST(memory_that_is_refused_while_a_folder_is_read_is_an_error)
{
    folder f = folder_create();
    char *inside = test_path(f.path, "flight");

    CHECK_EQ(mkdir(inside, 0700), 0);
    put_text(&f, "metrics.jsonl", RUN("\"metrics.trace.path\": \"t.json\"") STEPS);
    put_text(&f, "t.json", TRACE);
    put_text(&f, "plan.json", PLAN);
    put_flight(&f, "flight/rank-0.flight");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = add(&f, "");

        if (status == FSDP_OK)
            status = fsdp__sources_finish(&f.report->sources);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        forget(&f);
    }
    folder_free(&f);
}
