/* What runs write beside metrics.jsonl: a table, a file for Prometheus, event files for TensorBoard with histograms,
 * and how each of these tells what went wrong. */
#include "train/metrics.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/event_reader.h"
#include "models/models.h"
#include "train/quantities.h"
#include "train/story.h"

enum {
    OTHER = 65534 /* another user */
};

/* Sets a key to a path in the story's directory. */
static char *set_path(story *s, const char *key, const char *name)
{
    char *path = test_path(s->directory, name);

    story_set(s, key, path);
    return path;
}

static void write_text(const char *path, const char *text)
{
    test_write_file(path, text, strlen(text));
}

/* ---- a table ---- */

/* Of a row: what is in the column of this name; "" if it is empty. */
static const char *cell(const char *table, int row, const char *column, char out[64])
{
    const char *line = table, *at = table;
    int number = 0;

    while (strncmp(at, column, strlen(column)) != 0 || !strchr(",\n", at[strlen(column)])) {
        at += strcspn(at, ",\n");
        CHECK(*at == ','); /* there is such a column */
        at++;
        number++;
    }
    for (int i = 0; i < row; i++)
        line = strchr(line, '\n') + 1;
    CHECK(*line);
    for (int i = 0; i < number; i++)
        line += strcspn(line, ",\n") + 1;
    snprintf(out, 64, "%.*s", (int)strcspn(line, ",\n"), line);
    return out;
}

static int count_of(const char *text, char c)
{
    int count = 0;

    for (; *text; text++)
        count += *text == c;
    return count;
}

STORY_TEST(the_table_has_a_row_for_each_step_and_validation)
{
    char *path = set_path(s, "metrics.csv", "m.csv"), *table, text[64], first[64];

    story_set(s, "validation.share", "0.1");
    story_set(s, "validation.freq", "4");
    story_go(s, 2);
    story_go(s, 3); /* another run adds its rows */
    table = test_read_file(path, NULL);
    CHECK_EQ(count_of(table, '\n'), 1 + 2 * (STORY_STEPS + 2));
    CHECK_EQ(count_of(table, ',') % count_of(table, '\n'), 0);
    CHECK_EQ((size_t)(count_of(table, ',') / count_of(table, '\n')),
             1 + fsdp__step_quantities.count + fsdp__validation_quantities.count);
    CHECK_STRING(cell(table, 1, "step", text), "1");
    CHECK_STRING(cell(table, STORY_STEPS + 2, "step", text), "6");
    CHECK_EQ(strlen(cell(table, 1, "run", first)), 16);
    CHECK_STRING(cell(table, 2, "run", text), first);
    CHECK(strcmp(cell(table, STORY_STEPS + 3, "run", text), first) != 0);
    for (int step = 1; step <= STORY_STEPS; step++) {
        int row = STORY_STEPS + 2 + step + (step > 4);

        CHECK_NEAR(atof(cell(table, row, "loss", text)), s->losses[step], 1e-8);
        CHECK_STRING(cell(table, row, "validation_loss", text), "");
        CHECK_STRING(cell(table, row, "mfu", text), ""); /* nobody has asked for it */
        CHECK(atol(cell(table, row, "memory_peak_bytes_of_optimizer_state", text)) > 0);
    }
    CHECK_STRING(cell(table, 5, "step", text), "4");
    CHECK_STRING(cell(table, 5, "loss", text), "");
    CHECK(atof(cell(table, 5, "validation_loss", text)) > 1);
    CHECK_STRING(cell(table, 5, "validation_best", text), "1");
}

STORY_TEST(a_table_with_other_columns_is_refused)
{
    static const char *const contents[] = {"notes\n", "run,steps\n", "runs", "{\"run\": \"1\"}\n"};
    char *path = set_path(s, "metrics.csv", "m.csv"), *table, *more, text[64];

    for (size_t i = 0; i < FSDP__COUNT_OF(contents); i++) {
        write_text(path, contents[i]);
        CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "metrics.csv: '");
        CHECK_CONTAINS(fsdp_last_error(), "m.csv' exists and does not begin with the columns of this version: name");
        story_run(s, 2);
        CHECK_EQ(s->status, FSDP_INVALID);
        table = test_read_file(path, NULL);
        CHECK_STRING(table, contents[i]);
    }
    write_text(path, "");
    story_go(s, 1);
    table = test_read_file(path, NULL);
    CHECK_EQ(truncate(path, (off_t)strlen(table) - 30), 0); /* as a full disk leaves it */
    story_go(s, 1);
    more = test_read_file(path, NULL);
    CHECK_STRING(cell(more, STORY_STEPS + 1, "step", text), "1");
    CHECK_EQ(count_of(more, '\n'), 1 + 2 * STORY_STEPS);
}

/* What another version has written stays as it is; all that this one writes is in the file beside it. */
STORY_TEST(a_table_of_another_version_goes_on_in_a_file_beside_it)
{
    static const char older[] = "run,step,loss\n0123456789abcdef,1,5.5\n";
    char *path = set_path(s, "metrics.csv", "m.old.csv"), *beside = test_path(s->directory, "m.old-2.csv"), *table;

    write_text(path, older);
    CHECK_OK(fsdp__metrics_check(s->config));
    CHECK(access(beside, F_OK) != 0);
    story_go(s, 2);
    story_go(s, 1);
    table = test_read_file(path, NULL);
    CHECK_STRING(table, older);
    table = test_read_file(beside, NULL);
    CHECK_EQ(count_of(table, '\n'), 1 + 2 * STORY_STEPS);
    write_text(beside, older);
    story_go(s, 1);
    table = test_read_file(test_path(s->directory, "m.old-3.csv"), NULL);
    CHECK_EQ(count_of(table, '\n'), 1 + STORY_STEPS);
}

/* Ours are the first of them. */
STORY_TEST(a_table_with_more_columns_goes_on_in_a_file_beside_it)
{
    char *path = set_path(s, "metrics.csv", "m.csv"), *beside = test_path(s->directory, "m-2.csv"), *ours, *newer;

    story_go(s, 1);
    ours = test_read_file(path, NULL);
    CHECK(asprintf(&newer, "%.*s,later\n", (int)strcspn(ours, "\n"), ours) > 0);
    write_text(path, newer);
    CHECK_OK(fsdp__metrics_check(s->config));
    story_go(s, 1);
    CHECK_STRING(test_read_file(path, NULL), newer);
    ours = test_read_file(beside, NULL);
    CHECK_EQ(count_of(ours, '\n'), 1 + STORY_STEPS);
    *strrchr(newer, '\n') = '\0'; /* a line that does not end may be anything */
    write_text(path, newer);
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "does not begin with the columns of this version");
    free(newer);
}

STORY_TEST(two_keys_cannot_name_one_file)
{
    char *path = set_path(s, "metrics.csv", "one"), *dotted = test_path(s->directory, "./one"), *text;

    story_set(s, "metrics.jsonl", dotted);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.csv: '");
    CHECK_CONTAINS(s->message, "one' exists and does not begin with the columns");
    unlink(path);
    story_set(s, "metrics.csv", "");
    story_set(s, "metrics.prometheus", path);
    story_run(s, 1);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.prometheus: '");
    text = test_read_file(path, NULL);
    CHECK_CONTAINS(text, "{\"run\": \"");
}

/* ---- Prometheus ---- */

/* The value of the sample whose line begins so; NaN where there is none. */
static double sample(const char *text, const char *name)
{
    size_t length = strlen(name);

    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (strncmp(line, name, length) == 0)
            return atof(strrchr(strndupa(line, strcspn(line, "\n")), ' '));
    return NAN;
}

/* Each sample follows the two lines of its name, which come once. */
static void check_format(const char *text)
{
    char help[120] = "", seen[8192] = "";

    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        char name[120], expected[160];

        if (sscanf(line, "# HELP %100[a-z_] ", name) == 1) {
            snprintf(help, sizeof help, "%s", name);
            snprintf(expected, sizeof expected, " %s ", name);
            CHECK(!strstr(seen, expected));
            strncat(seen, expected, sizeof seen - strlen(seen) - 1);
        } else if (line[0] == '#') {
            snprintf(expected, sizeof expected, "# TYPE %s gauge\n", help);
            CHECK_EQ(strncmp(line, expected, strlen(expected)), 0);
        } else {
            CHECK_EQ(sscanf(line, "%100[a-z_]{run=\"%*16[0-9a-f]\",rank=\"0\"", name), 1);
            CHECK_STRING(name, help);
        }
    }
}

STORY_TEST(the_file_for_prometheus_has_the_last_step_that_was_logged)
{
    char *path = set_path(s, "metrics.prometheus", "m.prom"), *text;
    struct stat info;
    DIR *directory;
    int names = 0;

    story_set(s, "metrics.log_freq", "4");
    story_set(s, "validation.share", "0.1");
    story_go(s, 2);
    text = test_read_file(path, NULL);
    check_format(text);
    CHECK(sample(text, "fsdp_train_step{") == STORY_STEPS);
    CHECK_NEAR(sample(text, "fsdp_train_loss{"), s->losses[STORY_STEPS], 1e-8);
    CHECK(sample(text, "fsdp_train_validation_step{") == STORY_STEPS);
    CHECK(sample(text, "fsdp_train_validation_loss{") > 1);
    CHECK_CONTAINS(text, ",kind=\"optimizer state\"} ");
    CHECK(isnan(sample(text, "fsdp_train_mfu{")));
    CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0644); /* the collector is another user */
    directory = opendir(s->directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        names += strstr(entry->d_name, ".tmp") != NULL;
    closedir(directory);
    CHECK_EQ(names, 0);
    story_set(s, "training.steps", "5");
    story_set(s, "validation.share", "0");
    story_go(s, 1); /* the file is there already */
    text = test_read_file(path, NULL);
    CHECK(sample(text, "fsdp_train_step{") == 5);
    CHECK(isnan(sample(text, "fsdp_train_validation_step{")));
}

STORY_TEST(only_its_own_file_is_replaced)
{
    char *path = set_path(s, "metrics.prometheus", "m.prom"), *other = test_path(s->directory, "other"), *text;

    write_text(path, "# HELP node_load1 of the machine\n");
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "exists and does not hold these metrics");
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    text = test_read_file(path, NULL);
    CHECK_STRING(text, "# HELP node_load1 of the machine\n");
    CHECK_EQ(rename(path, other), 0);
    CHECK_EQ(symlink(other, path), 0);
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "is not a regular file, and each write replaces it");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "is not a regular file");
    story_set(s, "metrics.prometheus", "/proc/none/m.prom");
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_NOT_FOUND, "metrics.prometheus: cannot write '/proc/none/m.prom'");
}

STORY_TEST(a_flight_folder_that_cannot_be_used_ends_the_run_at_its_start)
{
    char *folder = set_path(s, "metrics.flight_recorder", "flight"), *inside = test_path(folder, "a/b");

    story_run(s, 2); /* it would be made if it was needed */
    CHECK_OK(s->status);
    CHECK(access(folder, F_OK) != 0);
    CHECK_EQ(mkdir(folder, 0700), 0);
    story_set(s, "metrics.flight_recorder", inside);
    story_run(s, 2);
    CHECK_OK(s->status);
    CHECK(access(inside, F_OK) != 0);
    story_set(s, "metrics.flight_recorder", folder);
    CHECK_EQ(chmod(folder, 0777), 0);
    story_run(s, 2);
    CHECK_STATUS(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.flight_recorder: cannot write flight records to '");
    CHECK_EQ(chmod(folder, 0500), 0);
    story_run(s, 2);
    if (geteuid() != 0) { /* who may write anywhere */
        CHECK_STATUS(s->status, FSDP_IO);
        CHECK_CONTAINS(s->message, "metrics.flight_recorder: cannot write to '");
    }
    CHECK_EQ(rmdir(folder), 0);
    write_text(folder, "a file");
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "metrics.flight_recorder: ");
}

/* Where others may write, a file that is not the user's is not replaced. */
STORY_TEST(a_file_of_another_user_in_a_shared_folder_is_left_alone)
{
    char *folder = test_path(s->directory, "shared"), *path = test_path(folder, "m.prom"), *text;

    if (geteuid() != 0) {
        skip();
    }
    CHECK(mkdir(folder, 0777) == 0 && chmod(folder, 0777) == 0);
    write_text(path, "# HELP fsdp_train_step of somebody else\n");
    CHECK_EQ(chown(path, OTHER, OTHER), 0);
    story_set(s, "metrics.prometheus", path);
    story_run(s, 1);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.prometheus: user 65534 owns '");
    text = test_read_file(path, NULL);
    CHECK_STRING(text, "# HELP fsdp_train_step of somebody else\n");
}

/* ---- TensorBoard ---- */

STORY_TEST(an_event_file_has_all_quantities_of_each_step)
{
    char *folder = set_path(s, "metrics.tensorboard", "runs/a"); /* both are made */
    read_events events;

    story_set(s, "validation.share", "0.1");
    story_go(s, 2);
    events = events_read_folder(folder, NULL, 0);
    CHECK_EQ(events.items[1].kind, 's');
    CHECK_EQ(events.items[1].step, 1);
    CHECK_CONTAINS(events_find(&events, "config", 1, true)->text, "\n      seq_len: 8\n");
    for (int step = 1; step <= STORY_STEPS; step++) {
        CHECK_NEAR(events_find(&events, "train/loss", step, true)->number, s->losses[step], 1e-6);
        CHECK(events_find(&events, "speed/tokens_per_second", step, true)->number > 0);
        CHECK(events_find(&events, "memory/memory_peak_bytes_of/gradient", step, true)->number > 0);
        CHECK(events_find(&events, "communication/bytes_sent", step, true)->number > 0);
        CHECK(events_find(&events, "communication/gather_ms", step, true)->number >= 0);
        CHECK_NULL(events_find(&events, "train/loss_scale", step, false));
        CHECK_NULL(events_find(&events, "speed/mfu", step, false));
    }
    CHECK(events_find(&events, "validation/loss", STORY_STEPS, true)->number > 1);
    events_free(&events);
}

/* Without it TensorBoard would show the steps twice that the first run has done after its last checkpoint. */
STORY_TEST(a_resumed_run_begins_a_new_file_at_its_first_step)
{
    char *folder = set_path(s, "metrics.tensorboard", "board"), path[512], *away;
    read_events events;

    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, 2, 4);
    events = events_read_folder(folder, path, sizeof path);
    CHECK(events_find(&events, "train/loss", 4, true) && !events_find(&events, "train/loss", 5, false));
    events_free(&events);
    away = test_path(s->directory, "away");
    CHECK_EQ(rename(path, away), 0);
    story_go_on(s, 1);
    events = events_read_folder(folder, NULL, 0);
    CHECK_EQ(events.items[1].kind, 's');
    CHECK_EQ(events.items[1].step, 5);
    CHECK(events_find(&events, "train/loss", 5, true) && !events_find(&events, "train/loss", 4, false));
    events_free(&events);
}

STORY_TEST(a_folder_that_cannot_be_one_is_refused_at_the_start)
{
    char *file = set_path(s, "metrics.tensorboard", "data.txt"), *inside = test_path(file, "board");

    CHECK_ERROR(fsdp_train_config_check(s->config, 1), FSDP_INVALID,
                "metrics.tensorboard: '"); /* it is a file of the data */
    story_set(s, "metrics.tensorboard", inside);
    CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_IO, "data.txt' is a file, not a folder");
    story_set(s, "metrics.tensorboard", "/proc/none/board");
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "metrics.tensorboard: cannot ");
    story_set(s, "metrics.tensorboard", s->folder);
    story_set(s, "checkpoint.folder", s->folder);
    CHECK_ERROR(fsdp_train_config_check(s->config, 1), FSDP_INVALID, "is also what checkpoint.folder names");
    story_set(s, "metrics.tensorboard", "");
    story_set(s, "metrics.histogram_freq", "2");
    CHECK_OK(fsdp_train_config_check(s->config, 1)); /* what stands out is said without TensorBoard, too */
}

/* A link that another user has put into a shared folder does not lead the run elsewhere. */
STORY_TEST(a_link_of_another_user_is_not_followed)
{
    char *shared = test_path(s->directory, "shared"), *link = test_path(shared, "board");
    DIR *directory;
    int names = 0;

    if (geteuid() != 0) {
        skip();
    }
    CHECK(mkdir(s->folder, 0700) == 0 && mkdir(shared, 0777) == 0 && chmod(shared, 0777) == 0);
    CHECK(symlink(s->folder, link) == 0 && lchown(link, OTHER, OTHER) == 0);
    story_set(s, "metrics.tensorboard", link);
    story_run(s, 1);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "metrics.tensorboard: ");
    directory = opendir(s->folder);
    for (struct dirent *entry; (entry = readdir(directory));)
        names += entry->d_name[0] != '.';
    closedir(directory);
    CHECK_EQ(names, 0);
}

/* ---- failures ---- */

static fsdp_status use_all(fsdp_context *context, const fsdp_train_config *config, int *good)
{
    fsdp_train_summary summary = {.model = "m", .world_size = 1, .run = "0123456789abcdef"};
    fsdp_train_report report = {.step = 1};
    fsdp_train_validation validation = {.step = 1};
    fsdp__metrics *metrics = NULL;
    fsdp_status status = fsdp__metrics_begin(context, config, &summary, &metrics);

    *good = 0;
    CHECK((status == FSDP_OK) == (metrics != NULL));
    if (status != FSDP_OK)
        return status;
    for (report.step = 1; report.step <= 3; report.step++)
        *good += fsdp__metrics_write(metrics, &report) == FSDP_OK;
    *good += fsdp__metrics_write_validation(metrics, &validation) == FSDP_OK;
    return fsdp__metrics_end(metrics);
}

static void ignore(void *arg, fsdp_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    CHECK(strstr(line, "; the run goes on without metrics"));
}

/* And one place that fails takes nothing from the others, nor from a later call. */
STORY_TEST(every_failure_of_a_place_is_told_once)
{
    char *paths[] = {set_path(s, "metrics.jsonl", "m.jsonl"), set_path(s, "metrics.csv", "m.csv"),
                     set_path(s, "metrics.prometheus", "m.prom"), set_path(s, "metrics.tensorboard", "board")};
    fsdp_context *context = test_context();
    fsdp__fault_kind kinds[] = {FSDP__FAULT_ALLOCATION, FSDP__FAULT_WRITE};
    int good;

    fsdp_context_set_log(context, FSDP_LOG_WARNING, ignore, NULL);
    for (int kind = 0; kind < 2; kind++)
        for (long n = 0; test_next_fault(kinds[kind], &n);) {
            fsdp_status status = use_all(context, s->config, &good);

            CHECK_FAULT(kinds[kind], status);
            CHECK(status == FSDP_OK ? good == 4 : good == 3 || good == 0); /* 0: it did not begin */
            test_remove_tree(paths[3]);
        }
    fsdp_context_free(context);
}

STORY_TEST(a_full_disk_is_told_at_the_start)
{
    story_set(s, "metrics.csv", "/dev/full");
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_IO);
    CHECK_CONTAINS(s->message, "metrics.csv: cannot write '/dev/full': No space left on device");
}

/* ---- MFU ---- */

typedef struct mfu_run {
    story *story;
    double peak, flops, mfu[STORY_STEPS + 1], speed[STORY_STEPS + 1];
    fsdp_model_config config;
    int64_t trained;
    char source[120];
} mfu_run;

static void note_start(void *arg, const fsdp_train_summary *summary)
{
    mfu_run *m = arg;

    m->peak = summary->peak_flops;
    m->flops = summary->mfu_flops_per_token;
    m->config = summary->model_config;
    m->trained = summary->trained_parameters;
    snprintf(m->source, sizeof m->source, "%s", summary->peak_source);
}

static void note_step(void *arg, const fsdp_train_report *report)
{
    mfu_run *m = arg;

    m->mfu[report->step] = report->mfu;
    m->speed[report->step] = report->tokens_per_second;
}

static void run_mfu(fsdp_context *context, void *arg)
{
    mfu_run *m = arg;
    bool first = fsdp_context_rank(context) == 0;
    const fsdp_train_listener listener = {
        .arg = m, .started = first ? note_start : NULL, .stepped = first ? note_step : NULL};

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train(context, m->story->config, &listener));
}

STORY_TEST(mfu_is_a_share_of_what_was_measured)
{
    mfu_run m = {.story = s}, none = {.story = s};

    story_set(s, "metrics.mfu", "measured");
    test_run_ranks(2, run_mfu, &m);
    CHECK(m.peak > 0);
    CHECK_STRING(m.source, "measured by products of float32");
    for (int step = 1; step <= STORY_STEPS; step++)
        CHECK_NEAR(m.mfu[step], m.speed[step] * m.flops / m.peak, 1e-9 * m.mfu[step]);
    story_set(s, "metrics.mfu", "auto");
    test_run_ranks(2, run_mfu, &none);
    if (none.peak == 0)
        CHECK(none.mfu[1] == 0 && none.source[0] == '\0'); /* a processor */
    else
        CHECK_CONTAINS(none.source, "an estimate: ");
}

STORY_TEST(mfu_is_a_share_of_what_the_config_says)
{
    mfu_run m = {.story = s};

    story_set(s, "metrics.peak_tflops", "2.5");
    test_run_ranks(1, run_mfu, &m);
    CHECK(m.peak == 2.5e12);
    CHECK_STRING(m.source, "metrics.peak_tflops 2.5");
    for (int step = 1; step <= STORY_STEPS; step++)
        CHECK_NEAR(m.mfu[step], m.speed[step] * m.flops / 2.5e12, 1e-9 * m.mfu[step]);
    story_set(s, "metrics.mfu", "measured");
    CHECK_ERROR(fsdp_train_config_check(s->config, 1), FSDP_INVALID,
                "metrics.peak_tflops 2.5 gives the peak, but metrics.mfu=measured takes another one");
}

/* A frozen parameter counts 4 instead of 6; an adapter adds its own. */
static void check_counted(story *s, const mfu_run *m, double frozen, double added)
{
    double all = fsdp_model_config_mfu_flops_per_token(&m->config, s->config->training.seq_len);

    CHECK_NEAR(m->flops, all - 2 * frozen + 6 * added, 1);
}

STORY_TEST(frozen_parameters_count_for_less)
{
    mfu_run m = {.story = s};

    story_set(s, "training.steps", "1");
    test_run_ranks(1, run_mfu, &m);
    check_counted(s, &m, 0, 0);
    story_set(s, "model.frozen", "model.*"); /* the head is trained */
    test_run_ranks(2, run_mfu, &m);
    CHECK_EQ(m.trained, m.config.vocab_size * m.config.dim);
    check_counted(s, &m, (double)(fsdp__mfu_parameters(&m.config) - m.trained), 0);
}

STORY_TEST(adapters_count_beside_a_frozen_base)
{
    mfu_run m = {.story = s};

    story_set(s, "training.steps", "1");
    story_set(s, "adapter.rank", "2");
    test_run_ranks(2, run_mfu, &m);
    CHECK(m.trained > 0);
    check_counted(s, &m, (double)fsdp__mfu_parameters(&m.config), (double)m.trained);
}
