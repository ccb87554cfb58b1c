/* The runs of metrics.jsonl: what is resumed, taken twice, unfinished or no metrics; their figures and labels. */
#include <math.h>
#include <sys/stat.h>

#include "report/advice.h"
#include "report/figures.h"
#include "support/test.h"

#define HEADER "{\"run\": \"1\", \"model\": \"m\", \"steps\": 9, \"settings\": {\"optimizer.lr\": \"0.1\"}}\n"

typedef struct folder {
    char *path, *file;
    fsdp__recorded_runs runs;
} folder;

static folder folder_create(const char *text)
{
    folder f = {.path = test_directory()};

    f.file = test_path(f.path, "metrics.jsonl");
    test_write_file(f.file, text, strlen(text));
    return f;
}

static void folder_free(folder *f)
{
    fsdp__recorded_runs_free(&f->runs);
    test_directory_free(f->path);
}

TEST(a_run_has_a_series_for_each_number_of_its_steps)
{
    folder f = folder_create(HEADER "{\"step\": 1, \"loss\": 5, \"lr\": 0.1, \"words\": \"no\"}\n"
                                    "{\"step\": 2, \"loss\": null, \"lr\": 0.2, \"later\": 7}\n"
                                    "{\"validation\": 2, \"loss\": 4.5, \"perplexity\": 90}\n"
                                    "\n"
                                    "{\"step\": 3, \"later\": 8, \"loss\": 3, \"lr\": 0.3}\n");
    const fsdp__series *loss, *later;
    fsdp__run_figures figures;

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.path)); /* the folder will do */
    CHECK_EQ(f.runs.count, 1);
    CHECK_EQ(f.runs.runs[0].count, 3);
    loss = fsdp__series_of(&f.runs.runs[0], "loss");
    later = fsdp__series_of(&f.runs.runs[0], "later");
    CHECK_EQ(loss->count, 3);
    CHECK(isnan(loss->points[1].value));
    CHECK_EQ(later->count, 2);
    CHECK_NEAR(later->points[1].step, 3, 0);
    CHECK_NULL(fsdp__series_of(&f.runs.runs[0], "words"));
    CHECK_NULL(fsdp__series_of(&f.runs.runs[0], "perplexity"));
    figures = fsdp__run_figures_of(&f.runs.runs[0]);
    CHECK_NEAR(figures.last_step, 3, 0);
    CHECK_NEAR(figures.steps, 9, 0);
    CHECK_NEAR(figures.loss, 3, 0);
    CHECK_NEAR(figures.best_loss, 4.5, 0);
    CHECK(isnan(figures.seconds));
    CHECK(isnan(fsdp__header_number(&f.runs.runs[0], "world_size")));
    CHECK_STRING(fsdp__header_text(&f.runs.runs[0], "model"), "m");
    folder_free(&f);
}

TEST(rewards_of_validations_stand_beside_those_of_steps)
{
    folder f = folder_create(HEADER "{\"step\": 1, \"loss\": 5, \"reward_margin\": 0.5}\n"
                                    "{\"validation\": 1, \"loss\": 4, \"pairs\": 7, \"reward_margin\": 0.25}\n"
                                    "{\"step\": 2, \"loss\": 4, \"reward_margin\": 0.75}\n"
                                    "{\"validation\": 2, \"loss\": 3, \"pairs\": 7, \"reward_margin\": 0.125}\n");
    char key[FSDP__VALIDATION_KEY];
    const fsdp__series *margin;

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_EQ(f.runs.runs[0].count, 3);
    margin = fsdp__series_of(&f.runs.runs[0], fsdp__validation_key("reward_margin", key));
    CHECK_EQ(margin->count, 2);
    CHECK_NEAR(margin->points[1].value, 0.125, 0);
    CHECK(fsdp__is_validation_key(margin->name) && !fsdp__is_validation_key("reward_margin"));
    CHECK_EQ(f.runs.runs[0].validation.count, 2);
    folder_free(&f);
}

TEST(a_resumed_run_goes_on_and_the_later_line_of_a_step_counts)
{
    folder f = folder_create(
        HEADER "{\"step\": 1, \"loss\": 5}\n{\"step\": 2, \"loss\": 4}\n{\"validation\": 2, \"loss\": 9}\n"
               "{\"step\": 3, \"loss\": 3}\n"
               "{\"run\": \"2\", \"resumed_from\": 1}\n{\"step\": 2, \"loss\": 40}\n"
               "{\"step\": 2, \"loss\": 41}\n" HEADER "{\"step\": 1, \"loss\": 6}\n");
    const fsdp__series *loss;

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_EQ(f.runs.count, 2);
    loss = fsdp__series_of(&f.runs.runs[0], "loss");
    CHECK_EQ(f.runs.runs[0].continued, 1);
    CHECK_EQ(f.runs.runs[0].resumes.count, 1);
    CHECK_NEAR(f.runs.runs[0].resumes.points[0].step, 1, 0);
    CHECK_EQ(loss->count, 2);
    CHECK_NEAR(loss->points[1].value, 41, 0);
    CHECK_EQ(f.runs.runs[0].validation.count, 0); /* of work that was lost */
    CHECK_NEAR(fsdp__header_number(&f.runs.runs[0], "steps"), 9, 0);
    CHECK_EQ(fsdp__series_of(&f.runs.runs[1], "loss")->count, 1);
    folder_free(&f);
}

/* What a run has noticed itself is said again, but for that of steps that were lost. */
TEST(warnings_of_a_run_become_advice)
{
    folder f = folder_create(HEADER "{\"step\": 1, \"loss\": 5, \"step_ms\": 10, \"gather_ms\": 9}\n"
                                    "{\"warning\": 1, \"of\": \"waiting\", \"text\": \"It waits.\"}\n"
                                    "{\"step\": 2, \"loss\": 4}\n"
                                    "{\"warning\": 2, \"of\": \"starved\", \"text\": \"It starves.\"}\n"
                                    "{\"run\": \"2\", \"resumed_from\": 1}\n{\"step\": 2, \"loss\": 4}\n");
    fsdp__advices advices;
    int noticed = 0;

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_OK(fsdp__recorded_runs_label(&f.runs));
    CHECK_OK(fsdp__advices_of(&(fsdp__sources){.runs = f.runs}, NULL, &advices));
    for (int64_t i = 0; i < advices.count; i++) {
        noticed += strcmp(advices.items[i].text, "Noticed at step 1: It waits.") == 0;
        CHECK(!strstr(advices.items[i].text, "starves") && !strstr(advices.items[i].text, "of its time"));
    }
    CHECK_EQ(noticed, 1);
    fsdp__advices_free(&advices);
    folder_free(&f);
}

static int count_of(const fsdp__advices *advices, const char *part)
{
    int count = 0;

    for (int64_t i = 0; i < advices->count; i++)
        count += strstr(advices->items[i].text, part) != NULL;
    return count;
}

/* A step without answers has no loss, which is no failure, and took no time, which is no speed. */
TEST(steps_that_are_left_out_are_neither_failed_nor_lost_nor_fast)
{
#define LEARNED(step, loss)                                                                                   \
    "{\"step\": " step ", \"loss\": " loss ", \"grad_norm\": 1, \"skipped\": 2, \"tokens_per_second\": 100, " \
    "\"step_ms\": 10}\n"
#define LEFT_OUT(step) "{\"step\": " step ", \"left_out\": true, \"skipped\": 4, \"step_ms\": 0.004}\n"
    folder f = folder_create(HEADER LEARNED("1", "5") LEARNED("2", "4") LEFT_OUT("3") LEARNED("4", "3") LEFT_OUT("5")
                                 LEARNED("7", "2") LEFT_OUT("8") LEFT_OUT("9"));
    fsdp__advices advices;
    fsdp__run_figures figures;

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_OK(fsdp__recorded_runs_label(&f.runs));
    CHECK_OK(fsdp__advices_of(&(fsdp__sources){.runs = f.runs}, NULL, &advices));
    figures = fsdp__run_figures_of(&f.runs.runs[0]);
    CHECK_NEAR(figures.last_step, 9, 0);
    CHECK_NEAR(figures.missing, 1, 0);
    CHECK_NEAR(figures.first_missing, 6, 0);
    CHECK_NEAR(figures.loss, 2, 0);
    CHECK_NEAR(figures.tokens_per_second, 100, 1e-9);
    CHECK_NEAR(figures.step_ms, 10, 0);
    CHECK_EQ(fsdp__series_of(&f.runs.runs[0], "loss")->count, 4);
    CHECK_EQ(count_of(&advices, "4 of 8 steps were left out, the first is step 3: no token of them is an answer."), 1);
    CHECK_EQ(count_of(&advices, "NaN") + count_of(&advices, "skipped") + count_of(&advices, "It has taken"), 0);
    fsdp__advices_free(&advices);
    folder_free(&f);
}

static fsdp_status shorten(void *arg, const fsdp__recorded_run *run, bool gathers, char *text)
{
    CHECK(!run->continued);
    *(int *)arg += 1;
    snprintf(text, FSDP__PLANNED_TEXT, "%s are shorter so.", gathers ? "gathers" : "reductions");
    return FSDP_OK;
}

static fsdp_status price(void *arg, const fsdp__recorded_run *run, const char *key, const char *value, char *text)
{
    CHECK(!run->continued);
    *(int *)arg += 100;
    snprintf(text, FSDP__PLANNED_TEXT, "%s=%s costs that.", key, value);
    return FSDP_OK;
}

/* Where a key is advised that changes what a step costs, the planner says what. */
TEST(what_is_advised_is_planned)
{
    static const struct {
        const char *settings, *more, *advice;
        int asked;
    } cases[] = {
        {"", "\"gather_ms\": 9, \"reduce_ms\": 1", "To wait less for gathers: gathers are shorter so.", 1},
        {"", "\"gather_ms\": 1, \"reduce_ms\": 9", "To wait less for reductions: reductions are shorter so.", 1},
        {"", "\"gather_ms\": 0.1, \"reduce_ms\": 0.1", NULL, 0},
        {"\"training.mixed_precision_param\": \"float16\"", "\"skipped\": 4",
         "needs no scale. training.mixed_precision_param=bfloat16 costs that.", 100},
        {"\"training.mixed_precision_param\": \"bfloat16\"", "\"skipped\": 4",
         "4 of 1 steps were skipped: their losses or gradients were not finite.", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        int asked = 0;
        const fsdp__advice_planner planner = {shorten, price, &asked};
        fsdp__advices advices;
        folder f;

        snprintf(text, sizeof text, "{\"run\": \"1\", \"settings\": {%s}}\n{\"step\": 1, \"step_ms\": 20, %s}\n",
                 cases[i].settings, cases[i].more);
        f = folder_create(text);
        CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
        CHECK_OK(fsdp__recorded_runs_label(&f.runs));
        CHECK_OK(fsdp__advices_of(&(fsdp__sources){.runs = f.runs}, &planner, &advices));
        CHECK_EQ(asked, cases[i].asked);
        CHECK_EQ(count_of(&advices, cases[i].advice ? cases[i].advice : "shorter"), cases[i].advice != NULL);
        fsdp__advices_free(&advices);
        folder_free(&f);
    }
}

#define START(id, hour, ranks, device)                                                             \
    "{\"run\": \"" id "\", \"started\": \"" hour "\", \"resumed_from\": 0, \"world_size\": " ranks \
    ", \"device\": \"" device "\"}\n"

TEST(a_resumed_run_keeps_its_start_and_what_each_start_had)
{
    folder f = folder_create(START("1", "08:00", "4", "cuda (H100, 70 GiB free)") START(
        "2", "09:00", "4", "cuda (H100, 60 GiB free)") START("3", "10:00", "2", "cpu") START("4", "11:00", "4", "cpu"));

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_EQ(f.runs.count, 1);
    CHECK_EQ(f.runs.runs[0].continued, 3);
    CHECK_STRING(fsdp__header_text(&f.runs.runs[0], "started"), "08:00");
    CHECK_STRING(f.runs.runs[0].ranks, "4, then 2, then 4");
    CHECK_STRING(f.runs.runs[0].devices, "cuda (H100, 70 GiB free), then cpu"); /* the card is the same */
    folder_free(&f);
}

/* Reads a text as a file. Its message contains `part`, or it is one run. */
static fsdp_status read_text(const char *text, const char *part)
{
    folder f = folder_create(text);
    fsdp_status status = fsdp__recorded_runs_read(&f.runs, f.file);

    if (part)
        CHECK_CONTAINS(fsdp_last_error(), part);
    else
        CHECK_EQ(f.runs.count, 1);
    folder_free(&f);
    return status;
}

TEST(an_unfinished_line_is_passed_over_where_one_can_be)
{
    CHECK_OK(read_text(HEADER "{\"step\": 1, \"loss\": 5}\n{\"step\": 2, \"lo", NULL));
    CHECK_OK(read_text(HEADER "{\"step\": 1, \"lo\n{\"run\": \"2\", \"resumed_from\": 0}\n{\"step\": 1, \"loss\": 5}\n",
                       NULL));
    CHECK_OK(read_text("{\"step\": 1, \"loss\": 5}\n", NULL)); /* no header: an old file's tail */
    CHECK_EQ(read_text("{\"step\": 1, \"lo\n{\"loss\": 5}\n", "line 1 is no JSON object"), FSDP_FORMAT);
}

/* Reads lines of which some are damaged, and checks what is said of them (NULL: nothing). */
static void check_left_out(const char *text, const char *said, double last_step)
{
    folder f = folder_create(text);

    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_EQ(f.runs.count, 1);
    CHECK_NEAR(fsdp__run_figures_of(&f.runs.runs[0]).last_step, last_step, 0);
    if (said)
        CHECK_CONTAINS(CHECK_PTR(f.runs.left_out), said);
    else
        CHECK(!f.runs.left_out);
    folder_free(&f);
}

#define LINE(step) "{\"step\": " step ", \"loss\": 5}\n"

TEST(damaged_lines_amid_others_are_left_out_and_named)
{
    check_left_out(HEADER LINE("1") LINE("2"), NULL, 2);
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"lo\n" LINE("3"),
                   "line 3 is no JSON object; all other lines were read", 3);
    check_left_out(HEADER LINE("1") LINE("2") "\x01\x02\n{\"loss\": 1}\n" LINE("3"),
                   "line 4 is no JSON object; 1 more line is damaged, and all others were read", 3);
    check_left_out(HEADER LINE("1") LINE("-4") LINE("5"), "line 3: 'step' is -4, which no run has written", 5);
    check_left_out(HEADER LINE("1") LINE("1e30") LINE("5"), "line 3: 'step' is 1e+30, which no run has written", 5);
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"lo" LINE("3") LINE("4"),
                   "line 3 begins with a part of another line; all other lines were read", 4);
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"l\n"
                                    "{\"step\": 3, \"lo" LINE("4"),
                   "line 3 is no JSON object; 1 more line is damaged, and all others were read", 4);
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"lo{\"run\": \"2\", \"resumed_from\": 1}\n" LINE("2"), NULL, 2);
    check_left_out(HEADER LINE("1") "x\ny\nz\n", "line 3 is no JSON object; 1 more line is damaged", 1);
    check_left_out("{\"run\": \"1\", \"world_size\": -3}\n" LINE("1") LINE("2"), "line 1: 'world_size' is -3", 2);
    check_left_out("{\"run\": \"1\", \"world_size\": \"four\"}\n" LINE("1") LINE("2"),
                   "line 1: 'world_size' is no number", 2);
    check_left_out("{\"run\": \"1\", \"started\": 2026}\n" LINE("1") LINE("2"), "line 1: 'started' is no text", 2);
}

TEST(amounts_below_nothing_are_damage)
{
    static const char *const keys[] = {"step_ms", "tokens_per_second", "gather_ms", "memory_peak_bytes", "mfu"};
    char text[400], said[80];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(text, sizeof text, HEADER LINE("1") "{\"step\": 2, \"loss\": 5, \"%s\": -5}\n" LINE("3"), keys[i]);
        snprintf(said, sizeof said, "line 3: '%s' is -5, which no run has written; all other lines were read", keys[i]);
        check_left_out(text, said, 3);
    }
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"loss\": -5, \"reward_margin\": -1, \"mfu\": null}\n", NULL, 2);
    check_left_out(HEADER LINE("1") "{\"step\": 2, \"loss\": 5, \"step_ms\": \"long\"}\n" LINE("3"),
                   "line 3: 'step_ms' is no number", 3);
}

/* Puts `count` bytes in the place of the loss's name of step 2. */
static void check_amid(char byte, int count, const char *said)
{
    folder f = folder_create("");
    FILE *out = fopen(f.file, "w");

    fputs(HEADER LINE("1") "{\"step\": 2, \"lo", out);
    for (int i = 0; i < count; i++)
        fputc(byte, out);
    fputs("\": 5}\n" LINE("3"), out);
    CHECK_EQ(fclose(out), 0);
    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_NEAR(fsdp__run_figures_of(&f.runs.runs[0]).last_step, 3, 0);
    CHECK_CONTAINS(CHECK_PTR(f.runs.left_out), said);
    folder_free(&f);
}

TEST(a_line_with_zeros_or_without_an_end_costs_no_other)
{
    check_amid('\0', 1, "line 3 is no JSON object; all other lines were read");
    check_amid('\0', 1 << 21, "line 3 is no JSON object; all other lines were read");
    check_amid('x', 1 << 21, "line 3 has over a million characters: it holds no metrics; all other lines were read");
}

TEST(a_report_names_the_lines_that_it_leaves_out)
{
    folder f = folder_create(HEADER LINE("1") "{\"step\": 2, \"lo\n" LINE("3"));
    fsdp__sources *sources = CHECK_PTR(calloc(1, sizeof *sources));

    CHECK_OK(fsdp__sources_add(sources, f.file));
    CHECK_EQ(sources->unread_count, 1);
    CHECK_CONTAINS(sources->unread[0], "line 3 is no JSON object");
    fsdp__sources_release(sources);
    free(sources);
    folder_free(&f);
}

TEST(zeros_of_a_power_cut_swallow_no_header)
{
    char text[4096] = HEADER "{\"step\": 1, \"loss\": 5}\n";
    size_t bytes = strlen(text) + 1000;
    folder f = {.path = test_directory()};

    strcpy(text + bytes, HEADER "{\"step\": 1, \"loss\": 6}\n");
    bytes += strlen(text + bytes);
    f.file = test_path(f.path, "metrics.jsonl");
    test_write_file(f.file, text, bytes);
    CHECK_OK(fsdp__recorded_runs_read(&f.runs, f.file));
    CHECK_EQ(f.runs.count, 2);
    folder_free(&f);
}

TEST(what_is_no_metrics_is_refused_by_line)
{
    char *deep = malloc(1 << 21);
    folder f = folder_create("x");
    char *absent = test_path(f.path, "absent"), *empty = test_path(f.path, "empty");

    CHECK_EQ(read_text("", "it holds no run"), FSDP_FORMAT);
    CHECK_EQ(
        read_text("hello\nworld\n", "line 1 is no JSON object: name the file that metrics.jsonl of the run's config"),
        FSDP_FORMAT);
    CHECK_EQ(read_text("[1, 2]\n{\"step\": 1}\n", "line 1 is no JSON object"), FSDP_FORMAT);
    CHECK_EQ(read_text("{\"loss\": 1}\n", "line 1: neither the header of a run, nor a step"), FSDP_FORMAT);
    CHECK_EQ(read_text("{\"step\": 1, \"loss\": \"high\"}\n", "line 1: 'loss' is neither a number nor null"),
             FSDP_FORMAT);
    CHECK_EQ(read_text("{\"validation\": 1, \"loss\": []}\n", "line 1: 'loss' is neither a number nor null"),
             FSDP_FORMAT);
    memset(deep, '[', 1 << 21);
    deep[(1 << 21) - 1] = '\0';
    CHECK_EQ(read_text(deep, "line 1 has over a million characters"), FSDP_FORMAT);
    CHECK_ERROR(fsdp__recorded_runs_read(&f.runs, absent), FSDP_NOT_FOUND, "absent");
    CHECK_EQ(mkdir(empty, 0700), 0);
    CHECK_ERROR(fsdp__recorded_runs_read(&f.runs, empty), FSDP_NOT_FOUND, "has no metrics.jsonl");
    CHECK_EQ(f.runs.count, 0);
    free(deep);
    folder_free(&f);
}

TEST(a_file_of_very_many_runs_or_keys_is_refused)
{
    char *text = calloc(1, 1 << 16);

    for (int i = 0; i <= FSDP__MOST_RUNS; i++)
        strcat(text, HEADER);
    CHECK_EQ(read_text(text, "more than 32 runs"), FSDP_INVALID);
    strcpy(text, "{\"step\": 1");
    for (int i = 0; i < 300; i++)
        sprintf(text + strlen(text), ", \"k%d\": 1", i);
    strcat(text, "}\n");
    CHECK_EQ(read_text(text, "its steps have over 256 keys"), FSDP_FORMAT);
    free(text);
}

TEST(runs_are_told_apart_by_the_shortest_name)
{
    folder a = folder_create(HEADER HEADER), b = folder_create(HEADER);
    char *other = test_path(a.path, "x.jsonl"), *inside = test_path(a.path, "b"), *same, *twin;
    char *above = test_path(b.path, "b");

    test_write_file(other, HEADER, strlen(HEADER));
    CHECK_EQ(mkdir(inside, 0700), 0);
    CHECK_EQ(mkdir(above, 0700), 0);
    same = test_path(inside, "metrics.jsonl");
    twin = test_path(above, "metrics.jsonl");
    test_write_file(same, HEADER, strlen(HEADER));
    test_write_file(twin, HEADER, strlen(HEADER));
    CHECK_OK(fsdp__recorded_runs_read(&a.runs, a.file));
    CHECK_OK(fsdp__recorded_runs_read(&a.runs, other));
    CHECK_OK(fsdp__recorded_runs_read(&a.runs, inside));
    CHECK_OK(fsdp__recorded_runs_read(&a.runs, above));
    CHECK_OK(fsdp__recorded_runs_label(&a.runs));
    CHECK_STRING(a.runs.runs[0].label, strrchr(a.path, '/') + 1);
    CHECK_CONTAINS(a.runs.runs[1].label, ", run 2");
    CHECK_STRING(a.runs.runs[2].label, "x.jsonl");
    CHECK_STRING(a.runs.runs[3].label, same); /* both would be "b" */
    CHECK_STRING(a.runs.runs[4].label, twin);
    folder_free(&a);
    folder_free(&b);
}

TEST(an_allocation_that_fails_is_an_error)
{
    folder f = folder_create(START("1", "08:00", "4", "a") "{\"step\": 1, \"loss\": 5}\n" START("2", "09:00", "2", "b")
                                 HEADER "{\"step\": 2, \"loss\": 4}\n");

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__recorded_runs_read(&f.runs, f.file);

        if (status == FSDP_OK)
            status = fsdp__recorded_runs_label(&f.runs);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__recorded_runs_free(&f.runs);
    }
    folder_free(&f);
}
