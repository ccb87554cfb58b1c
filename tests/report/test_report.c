/* What a report says of runs: advice with its figures, settings that differ, charts in which no value is lost. */
#include <math.h>

#include "report/figures.h"
#include "report/report.h"
#include "support/test.h"

enum {
    STEPS = 400
};

/* What the steps of a run are like. */
typedef struct shape {
    const char *label, *settings;
    double (*loss)(int step);
    double (*ms)(int step);
    int steps, planned;
    const char *model, *device;
} shape;

static double falls(int step)
{
    return 2 + 3 * exp(-step / 100.0) + 0.01 * ((step * 7919) % 13);
}

static double jumps(int step)
{
    return falls(step) + (step == 300 ? 4 : 0);
}

static double is_lost(int step)
{
    return step == 57 ? NAN : falls(step);
}

static double even(int step)
{
    return 100 + step % 3;
}

static double halts(int step)
{
    return step % 50 == 0 ? 1500 : 100;
}

static fsdp__recorded_run run_create(const shape *s)
{
    static const char *const names[] = {"loss", "step_ms", "tokens_per_second", "grad_norm"};
    fsdp__recorded_run run = {.label = strdup(s->label),
                              .path = strdup(s->label),
                              .ranks = strdup("4, then 2"),
                              .devices = s->device ? strdup(s->device) : NULL};

    run.header = json_pack("{s:s, s:s, s:i, s:o}", "model", s->model ? s->model : "m<1>", "version", FSDP_VERSION,
                           "steps", s->planned, "settings", json_loads(s->settings, 0, NULL));
    CHECK(run.header);
    run.series = calloc(4, sizeof *run.series);
    run.count = 4;
    for (int k = 0; k < 4; k++) {
        run.series[k].name = strdup(names[k]);
        run.series[k].points = calloc((size_t)s->steps, sizeof *run.series[k].points);
        run.series[k].count = s->steps;
        for (int i = 0; i < s->steps; i++) {
            double ms = s->ms(i + 1), values[] = {s->loss(i + 1), ms, 1e6 / ms, s->loss(i + 1)};

            run.series[k].points[i] = (fsdp__point_of_series){i + 1, values[k]};
        }
    }
    return run;
}

static void run_free(fsdp__recorded_run *run)
{
    for (int k = 0; k < run->count; k++) {
        free(run->series[k].name);
        free(run->series[k].points);
    }
    free(run->series);
    free(run->label);
    free(run->path);
    free(run->ranks);
    free(run->devices);
    json_decref(run->header);
}

static bool usual(const char *key, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "0.0003");
    return strcmp(key, "optimizer.lr") == 0;
}

/* Returns the text, or the page, of runs of these shapes. */
static char *shown(const shape *shapes, int count, fsdp_status (*show)(const fsdp__report *report, FILE *out))
{
    fsdp__recorded_run items[FSDP__MOST_RUNS];
    fsdp__report report = {.sources.runs = {items, count, count, usual}};
    FILE *out = test_begin_text();

    for (int i = 0; i < count; i++)
        items[i] = run_create(&shapes[i]);
    CHECK_OK(fsdp__advices_of(&report.sources, NULL, &report.advices));
    CHECK_OK(show(&report, out));
    fsdp__advices_free(&report.advices);
    for (int i = 0; i < count; i++)
        run_free(&items[i]);
    return test_end_text(out);
}

TEST(a_run_without_faults_gets_no_advice)
{
    const shape usual = {"a", "{}", falls, even, STEPS, STEPS, NULL, NULL};
    char *text = shown(&usual, 1, fsdp__report_text);

    CHECK_CONTAINS(text, "Nothing stands out");
    CHECK_CONTAINS(text, "  steps               400 of 400\n");
    CHECK_CONTAINS(text, "  a usual step        101 ms (median)\n");
    CHECK_EQ(test_count(text, "differ"), 0);
}

TEST(what_stands_out_is_named_with_its_step)
{
    const shape shapes[] = {{"jump", "{}", jumps, even, STEPS, STEPS, NULL, NULL},
                            {"lost", "{}", is_lost, even, STEPS, STEPS, NULL, NULL},
                            {"halts", "{\"checkpoint.folder\": \"/c\"}", falls, halts, STEPS, 500, NULL, NULL}};
    char *text = shown(shapes, 3, fsdp__report_text);

    CHECK_CONTAINS(text, "- jump: The loss jumps from about 2.2");
    CHECK_CONTAINS(text, " at step 300, where the gradient's norm is ");
    CHECK_CONTAINS(text, "- lost: The loss is NaN or infinite in 1 of 400 steps, first at step 57.");
    CHECK_CONTAINS(text, "- halts: It has taken 400 of 500 steps: it goes on, was stopped, or failed, or it could "
                         "write no more lines. Once it has ended, the same "
                         "command goes on from its last checkpoint in /c.\n");
    CHECK_CONTAINS(text, "- halts: 8 of 400 steps take over twice the median of 100 ms, and cost 11.2 s beyond it");
    CHECK_CONTAINS(text, "the slowest is step 50, 1.5 s.");
}

/* The first step after a resume is slow by itself, and one bad validation may be chance. */
TEST(resumes_and_a_single_bad_validation_are_not_blamed)
{
    const shape halting = {"a", "{}", falls, halts, STEPS, STEPS, NULL, NULL};
    fsdp__point_of_series resumes[STEPS / 50], validations[] = {{100, 2.5}, {200, 3}, {300, 3.5}};
    fsdp__recorded_run run = run_create(&halting);
    fsdp__report report = {.sources.runs = {&run, 1, 1, usual}};
    FILE *out = test_begin_text();
    char *text;

    for (int i = 0; i < STEPS / 50; i++)
        resumes[i] = (fsdp__point_of_series){50 * i + 49, 0};
    run.resumes = (fsdp__series){.points = resumes, .count = STEPS / 50};
    run.validation = (fsdp__series){.points = validations, .count = 2};
    CHECK_OK(fsdp__advices_of(&report.sources, NULL, &report.advices));
    CHECK_OK(fsdp__report_text(&report, out));
    text = test_end_text(out);
    CHECK_CONTAINS(text, "Nothing stands out");
    fsdp__advices_free(&report.advices);
    run.validation.count = 3;
    report.advices = (fsdp__advices){.count = 0};
    CHECK_OK(fsdp__advices_of(&report.sources, NULL, &report.advices));
    CHECK_EQ(report.advices.count, 1);
    CHECK_CONTAINS(report.advices.items[0].text, "it learns its data by heart");
    fsdp__advices_free(&report.advices);
    run_free(&run);
}

/* As with fewer ranks from step 251 on. */
static double of_fewer_ranks(int step)
{
    return step > 250 ? 300 : 100;
}

static void check_advice(fsdp__recorded_run *run, int count, const char *part)
{
    fsdp__report report = {.sources.runs = {run, 1, 1, usual}};

    CHECK_OK(fsdp__advices_of(&report.sources, NULL, &report.advices));
    CHECK_EQ(report.advices.count, count);
    for (int i = 0; i < count; i++)
        CHECK_CONTAINS(report.advices.items[i].text, part);
    fsdp__advices_free(&report.advices);
}

/* A start has the speed and the memory of its own ranks, which say nothing of another start's. */
TEST(a_run_that_goes_on_with_other_ranks_is_not_said_to_be_slow_or_to_grow)
{
    const shape fewer = {"a", "{}", falls, of_fewer_ranks, STEPS, STEPS, NULL, NULL};
    fsdp__recorded_run run = run_create(&fewer);
    fsdp__point_of_series resumed = {250, 0};
    fsdp__series *memory = &run.series[3];

    free(memory->name);
    memory->name = strdup("memory_live_bytes");
    for (int i = 0; i < STEPS; i++)
        memory->points[i].value = of_fewer_ranks(i + 1);
    run.resumes = (fsdp__series){.points = &resumed, .count = 1};
    check_advice(&run, 0, "");
    for (int i = 350; i < STEPS; i++)
        memory->points[i].value += 3.0 * (i - 349);
    check_advice(&run, 1, "The memory of its last start at the end of a step grows: ");
    for (int i = 350; i < STEPS; i++) {
        memory->points[i].value = 300;
        run.series[1].points[i].value *= 3;
        run.series[2].points[i].value /= 3;
    }
    check_advice(&run, 2, "ts last start ");
    run.resumes.count = 0;
    check_advice(&run, 3, "");
    run_free(&run);
}

static double slower_later(int step)
{
    return step > 200 ? 150 : 100;
}

/* Nothing is said of quarters that nobody knows. */
TEST(steps_without_a_line_are_counted)
{
    const shape all = {"a", "{}", falls, slower_later, STEPS, STEPS + 26, NULL, NULL};
    fsdp__recorded_run run = run_create(&all);
    fsdp__report report = {.sources.runs = {&run, 1, 1, usual}};
    FILE *out = test_begin_text();
    char *text;

    for (int k = 0; k < run.count; k++)
        for (int i = 19; i < STEPS; i++)
            run.series[k].points[i].step += 26;
    CHECK_OK(fsdp__advices_of(&report.sources, NULL, &report.advices));
    CHECK_OK(fsdp__report_text(&report, out));
    CHECK_OK(fsdp__report_page(&report, out));
    text = test_end_text(out);
    CHECK_CONTAINS(text, "  steps               426 of 426, 26 without a line\n");
    CHECK_CONTAINS(text, ">426 of 426, 26 without a line</td>");
    CHECK_CONTAINS(text, "- No line tells of 26 of its steps, the first of which is step 20: ");
    CHECK_NULL(strstr(text, "It became slower"));
    fsdp__advices_free(&report.advices);
    run_free(&run);
    CHECK_CONTAINS(shown(&all, 1, fsdp__report_text), "It became slower");
}

TEST(a_run_without_a_step_stands_out_and_what_is_shown_moves_no_cursor)
{
    const shape none = {"red", "{\"a.b\": \"\\u001b[2J\"}", falls, even, 0, 10, NULL, NULL};
    const shape two[] = {none, {"b", "{}", falls, even, 30, 30, NULL, NULL}};
    char *text = shown(two, 2, fsdp__report_text);

    CHECK_CONTAINS(text, "It has taken 0 of 10 steps: it goes on, was stopped, or failed, or it could write no more "
                         "lines. Once it has ended it cannot "
                         "be continued: without checkpoint.folder it keeps no checkpoints.\n");
    CHECK_CONTAINS(text, "\\x1b[2J");
}

/* As of a run that was resumed with fewer training.steps than it had taken. */
TEST(a_run_beyond_its_last_step_does_not_say_how_many_it_has)
{
    const shape beyond = {"a", "{}", falls, even, 30, 10, NULL, NULL},
                short_of = {"a", "{}", falls, even, 30, 40, NULL, NULL};

    CHECK_CONTAINS(shown(&beyond, 1, fsdp__report_text), "  steps               30\n");
    CHECK_CONTAINS(shown(&beyond, 1, fsdp__report_page), ">30</td>");
    CHECK_CONTAINS(shown(&short_of, 1, fsdp__report_text), "  steps               30 of 40\n");
}

TEST(settings_that_differ_are_listed_and_others_are_not)
{
    const shape shapes[] = {
        {"a", "{\"optimizer.lr\": \"0.1\", \"data.path\": \"x\", \"metrics.jsonl\": \"1\", \"data.cache\": \"c\"}",
         falls, even, 30, 30, NULL, NULL},
        {"b", "{\"data.path\": \"x\", \"training.steps\": \"3\", \"metrics.jsonl\": \"2\"}", falls, even, 30, 30, NULL,
         NULL}};
    char *text = shown(shapes, 2, fsdp__report_text);

    CHECK_CONTAINS(text, "Settings that differ\n"
                         "  optimizer.lr\n"
                         "    a                       0.1\n"
                         "    b                       0.0003 (default)\n"
                         "  training.steps\n"
                         "    a                       (default)\n"
                         "    b                       3\n\n");
}

static double twice(int step)
{
    return 2 * even(step);
}

static double pauses(int step)
{
    return step % 4 == 0 ? 500 : 100;
}

/* Three of four steps are as fast as ever, and yet it takes twice the time. */
TEST(tokens_a_second_are_those_of_all_the_time)
{
    const shape shapes[] = {{"a", "{}", falls, pauses, 401, 401, NULL, NULL},
                            {"b", "{}", falls, even, 401, 401, NULL, NULL}};
    fsdp__recorded_run run = run_create(&shapes[0]);
    fsdp__point_of_series resumed = {3, 0};
    char *text = shown(shapes, 2, fsdp__report_text);

    CHECK_CONTAINS(text, "  tokens a second     5k\n  a usual step        100 ms (median)\n");
    CHECK_CONTAINS(text, "- b makes 1.98 times as many tokens a second as a: 9.901k and 5k.");
    CHECK_NEAR(fsdp__tokens_per_second(&run, 0, 4), 3000 / 0.7, 0.001); /* 1,000 a step */
    run.resumes.points = &resumed; /* the slow fourth step is the first of a start */
    run.resumes.count = 1;
    CHECK_NEAR(fsdp__tokens_per_second(&run, 0, 4), 1e4, 0.001);
    CHECK(isnan(fsdp__tokens_per_second(&run, 0, 1)));
    run_free(&run);
}

/* Runs whose loss and speed say nothing of each other are not compared. */
TEST(runs_are_compared_where_model_and_data_are_the_same)
{
    static const char *const others[] = {"{\"training.seq_len\": \"8\"}", "{\"data.path\": \"y\"}",
                                         "{\"data.tokenizer\": \"bytes\"}"};
    shape shapes[] = {{"a", "{}", falls, twice, STEPS, STEPS, NULL, NULL},
                      {"b", "{}", falls, even, STEPS, STEPS, NULL, NULL}};
    char *text = shown(shapes, 2, fsdp__report_text);

    CHECK_CONTAINS(text, "- b makes 2.00 times as many tokens a second as a: ");
    CHECK_CONTAINS(text, "- b reaches what a ends with, 2.1");
    CHECK_CONTAINS(text, ", the mean loss of its last 20 steps, in ");
    for (size_t i = 0; i <= FSDP__COUNT_OF(others); i++) {
        shapes[1].settings = i < FSDP__COUNT_OF(others) ? others[i] : "{}";
        shapes[1].model = i < FSDP__COUNT_OF(others) ? NULL : "other";
        text = shown(shapes, 2, fsdp__report_text);
        CHECK_EQ(test_count(text, "times as many") + test_count(text, "reaches"), 0);
    }
}

TEST(ranks_and_devices_of_all_starts_are_shown)
{
    const shape one = {"a", "{}", falls, even, 30, 30, NULL, "cpu, then <gpu>"};
    char *text = shown(&one, 1, fsdp__report_text), *page = shown(&one, 1, fsdp__report_page);

    CHECK_CONTAINS(text, "  ranks               4, then 2\n  device              cpu, then <gpu>\n");
    CHECK_CONTAINS(page, ">4, then 2</td>");
    CHECK_CONTAINS(page, ">cpu, then &#60;gpu&#62;</td>");
}

TEST(a_page_is_whole_and_needs_nothing_else)
{
    const shape shapes[] = {{"<script>a & b", "{\"optimizer.lr\": \"<b>\"}", jumps, even, STEPS, STEPS, NULL, NULL},
                            {"b", "{}", is_lost, halts, STEPS, STEPS, NULL, NULL}};
    char *page = shown(shapes, 2, fsdp__report_page);

    CHECK_EQ(test_count(page, "<script"), 0);
    CHECK_EQ(test_count(page, "http"), 0);
    CHECK_CONTAINS(page, "&#60;script&#62;a &#38; b");
    CHECK_CONTAINS(page, "&#60;b&#62;");
    CHECK_EQ(test_count(page, "<svg "), 8); /* four charts, on both scales */
    CHECK_EQ(test_count(page, "</svg>"), 8);
    CHECK_EQ(test_count(page, "<div"), test_count(page, "</div>"));
    CHECK_EQ(test_count(page, "<table"), test_count(page, "</table>"));
    CHECK_CONTAINS(page, "<h2>Constant within each run</h2>");
    CHECK_CONTAINS(page, ".scroll :is(th,td):first-child{position:sticky;left:0;"); /* a row keeps its name */
    CHECK_CONTAINS(page, "0.0003 (default)");
    CHECK_CONTAINS(page, "not finite at step 57");
    CHECK_EQ(test_count(page, "nan"), test_count(page, "--nan") + test_count(page, ".nan") +
                                          test_count(page, "class=\"nan") + test_count(page, "on_nan"));
    CHECK_CONTAINS(page, "</html>");
}

/* Draws one series. */
static char *drawn(const fsdp__point_of_series *points, int64_t count, bool log_x)
{
    fsdp__series series = {.points = (fsdp__point_of_series *)(uintptr_t)points, .count = count};
    fsdp__curve curve = {.series = &series, .name = "x"};
    fsdp__chart chart = {.title = "x", .curves = &curve, .count = 1, .log_x = log_x};
    FILE *out = test_begin_text();

    fsdp__chart_draw(&chart, out);
    return test_end_text(out);
}

static double higher(int step)
{
    return falls(step) + 0.5;
}

TEST(losses_are_drawn_with_how_they_differ)
{
    const shape shapes[] = {{"a<", "{}", falls, even, 95, 95, NULL, NULL},
                            {"b", "{}", higher, even, 100, 100, NULL, NULL},
                            {"short", "{}", falls, even, 5, 5, NULL, NULL},
                            {"none", "{}", falls, even, 0, 5, NULL, NULL}};
    fsdp__report *empty = test_new(sizeof *empty);
    char *picture = shown(shapes, 4, fsdp__report_svg), first[16], next[16];
    const char *line;

    CHECK_CONTAINS(picture, "<svg xmlns=");
    CHECK_CONTAINS(picture, "loss, means of 10 steps");
    CHECK_CONTAINS(picture, "difference to a&#60;");
    line = strstr(strstr(picture, "aria-label=\"Differences\""), "line c1\" d=\"M");
    CHECK_EQ(sscanf(line, "line c1\" d=\"M%*f %15[0-9.]h0L%*f %15[0-9.]", first, next), 2);
    CHECK_STRING(first, next); /* it is half a unit higher all the time */
    CHECK_CONTAINS(picture, "short: 4.9537 at the end of its few steps");
    CHECK_EQ(test_count(picture, "line dots c2\""), 1); /* its single losses, which no means are compared with */
    CHECK_CONTAINS(picture, "none: no losses");
    CHECK_NULL(strstr(picture, ": nan"));
    CHECK_ERROR(fsdp__report_svg(empty, stdout), FSDP_INVALID, "no run has a step with a loss");
}

TEST(losses_of_a_few_steps_are_drawn_step_by_step)
{
    const shape shapes[] = {{"a", "{}", falls, even, 3, 3, NULL, NULL}, {"b", "{}", higher, even, 9, 9, NULL, NULL}};
    char *picture = shown(shapes, 2, fsdp__report_svg);

    CHECK_CONTAINS(picture, "loss of each step");
    CHECK_CONTAINS(picture, "aria-label=\"Differences\"");
    CHECK_NULL(strstr(picture, ": nan"));
    CHECK_EQ(test_count(picture, "line dots c0\""), 1);
    CHECK_EQ(test_count(picture, "line dots c1\""), 2);
}

TEST(many_runs_stay_readable)
{
    const shape one = {"a", "{\"optimizer.lr\": \"1\"}", falls, even, STEPS, STEPS, NULL, NULL};
    shape shapes[8];
    char *page, *text;

    for (int i = 0; i < 8; i++) {
        shapes[i] = one;
        shapes[i].settings = i ? "{\"training.steps\": \"3\"}" : one.settings;
        shapes[i].ms = i == 5 ? even : twice;
        shapes[i].label = i == 5 ? "fast" : "slow";
    }
    page = shown(shapes, 8, fsdp__report_page);
    text = shown(shapes, 8, fsdp__report_text);
    CHECK_CONTAINS(page, "<h2>Side by side</h2>");
    CHECK_EQ(test_count(page, "<h3>Loss of "), 8);
    CHECK_EQ(test_count(page, "class=\"pale\""), 2 * 8 * 7);
    CHECK_CONTAINS(page, "<tr><th>run</th><th>optimizer.lr</th><th>training.steps</th></tr>");
    CHECK_EQ(
        test_count(text, "- fast makes most tokens a second of those that can be compared with slow (same model, "), 1);
    CHECK_EQ(test_count(text, "times as many"), 0); /* not a line for each pair */
    CHECK_CONTAINS(text, "- fast is the first to reach what slow ends with, 2.1");
}

TEST(a_chart_of_odd_values_has_finite_places)
{
    static const fsdp__point_of_series sets[][3] = {
        {{1, 5}, {2, 5}, {3, 5}},       {{0, 0}, {1, NAN}, {2, 0}},
        {{1, NAN}, {2, NAN}, {3, NAN}}, {{1, 1.7e308}, {2, -1.7e308}, {3, 0}},
        {{7, 3}, {7, 3}, {7, 3}},       {{1, 1e-300}, {1e9, 2e-300}, {1e12, 0}},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(sets); i++)
        for (int64_t count = 0; count <= 3; count++)
            for (int log_x = 0; log_x < 2; log_x++) {
                char *text = drawn(sets[i], count, log_x);

                if (test_count(text, "nan") != test_count(text, "class=\"nan"))
                    TEST_FAIL("set %zu, %d points: %s", i, (int)count, text);
                CHECK_EQ(test_count(text, "inf") + test_count(text, "-nan"), 0);
                CHECK(strlen(text) < 20000); /* not a tick for each step */
            }
}

TEST(one_extreme_among_very_many_steps_is_drawn)
{
    fsdp__point_of_series *points = calloc(100000, sizeof *points);
    char *text;
    double top = 1e9;

    for (int i = 0; i < 100000; i++)
        points[i] = (fsdp__point_of_series){i + 1, 1};
    points[77777].value = 1000;
    text = drawn(points, 100000, false);
    for (const char *at = strstr(text, "band"); at && at < strstr(text, "class=\"line"); at = strchr(at + 1, 'V'))
        if (*at == 'V')
            top = FSDP__MIN(top, atof(at + 1));
    CHECK_NEAR(top, 12 + 0.05 / 1.1 * 192, 1); /* the room above it is a twentieth of the values */
    CHECK(strlen(text) < 20000);
    free(points);
}

TEST(values_have_units)
{
    char text[FSDP__VALUE_TEXT];

    CHECK_STRING(fsdp__value_text(FSDP__UNIT_NONE, 3.14159, text), "3.142");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_COUNT, 1234567, text), "1.235M");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_COUNT, 999, text), "999");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_BYTES, 1536, text), "1.5KiB");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_MS, 12.34, text), "12.3 ms");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_MS, 12340, text), "12.34 s");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_FRACTION, 0.414, text), "41.4 %");
    CHECK_STRING(fsdp__value_text(FSDP__UNIT_COUNT, INFINITY, text), "not finite");
}

TEST(the_median_is_of_finite_values)
{
    fsdp__point_of_series points[] = {{1, 4}, {2, NAN}, {3, 1}, {4, 3}};
    fsdp__series series = {.points = points, .count = 4};

    CHECK_NEAR(fsdp__median(&series, 0, 4), 3, 0);
    CHECK_NEAR(fsdp__median(&series, 2, 4), 2, 0);
    CHECK(isnan(fsdp__median(&series, 1, 2)));
    CHECK(isnan(fsdp__median(&series, 2, 2)));
    CHECK(isnan(fsdp__median(NULL, 0, 1)));
}
