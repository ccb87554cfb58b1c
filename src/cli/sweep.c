/* sweep.c - starts this program for each combination of values, and reads what the runs have left. A run is whatever
 * 'fsdp train FOLDER/config.yaml' does: one that fails does not end the sweep, and one that began earlier goes on. */
#include "cli/sweep.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/overrides.h"
#include "cli/own_process.h"
#include "report/figures.h"
#include "train/run_config.h"

/* Holds one key and its values. */
typedef struct axis {
    char *text; /* a copy of the option, cut into key and values */
    const char *key;
    const char *values[FSDP__SWEEP_RUNS];
    int count;
} axis;

typedef struct one_run {
    char *folder, *name;
    const char *values[FSDP__SWEEP_KEYS];
    int status; /* exit status; -1: not started */
    bool was_finished;
    bool has_metrics; /* which a report reads */
} one_run;

typedef struct plan {
    const fsdp__sweep *sweep;
    axis axes[FSDP__SWEEP_KEYS];
    int axis_count;
    one_run runs[FSDP__SWEEP_RUNS];
    int run_count;
    fsdp__directory folder; /* locked while the sweep runs; no path: not yet */
} plan;

/* Files that each run has in a folder of its own, whatever a config says: where that is, and what they are called there
 * (NULL: as before). */
static const struct {
    const char *key, *name;
    size_t place;
} own_files[] = {{"metrics.jsonl", "metrics.jsonl", offsetof(fsdp_train_config, metrics.jsonl)},
                 {"metrics.csv", NULL, offsetof(fsdp_train_config, metrics.csv)},
                 {"metrics.prometheus", NULL, offsetof(fsdp_train_config, metrics.prometheus)},
                 {"metrics.tensorboard", "tensorboard", offsetof(fsdp_train_config, metrics.tensorboard)},
                 {"metrics.trace.path", NULL, offsetof(fsdp_train_config, metrics.trace.path)},
                 {"metrics.flight_recorder", "flight", offsetof(fsdp_train_config, metrics.flight_recorder)},
                 {"checkpoint.folder", "checkpoints", offsetof(fsdp_train_config, checkpoint.folder)},
                 {"export.path", "model", offsetof(fsdp_train_config, save.path)},
                 {"export.fallback_path", "model-fallback", offsetof(fsdp_train_config, save.fallback_path)}};

/* ---- the options ---- */

/* Refuses a key that the command line gives beside its values: no run would have that value. */
static fsdp_status refuse_twice(int argc, char **argv, const fsdp__sweep *sweep)
{
    for (int i = 0; i < sweep->count; i++) {
        char key[128];

        snprintf(key, sizeof key, "%.*s", (int)strcspn(sweep->texts[i], "="), sweep->texts[i]);
        if (fsdp__override_is_given(argc, argv, key))
            return FSDP_FAIL(FSDP_INVALID, "train: both --sweep and --%s give values of %s: leave one of them out", key,
                             key);
    }
    return FSDP_OK;
}

fsdp_status fsdp__sweep_collect(int argc, char **argv, fsdp__sweep *out)
{
    static const char option[] = "--sweep";
    size_t length = strlen(option);

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *text = NULL;

        if (strncmp(argv[i], option, length) == 0 && argv[i][length] == '=')
            text = argv[i] + length + 1;
        else if (strcmp(argv[i], option) == 0 && i + 1 < argc)
            text = argv[++i];
        if (text && out->count == FSDP__SWEEP_KEYS)
            return FSDP_FAIL(FSDP_INVALID, "train: at most %d options --sweep", FSDP__SWEEP_KEYS);
        if (text)
            out->texts[out->count++] = text;
    }
    if (out->count == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "train: --sweep-folder is where the runs of a sweep lie, and there is no --sweep");
    return refuse_twice(argc, argv, out);
}

/* Returns the end of a value: the next comma that is in no brackets and no quotes, or the end of the text. */
static char *end_of_value(char *at)
{
    int depth = 0;

    for (char quote = 0; *at && (quote || depth > 0 || *at != ','); at++) {
        if (quote)
            quote = *at == quote ? 0 : quote;
        else if (*at == '\'' || *at == '"')
            quote = *at;
        else
            depth += strchr("[{", *at) ? 1 : strchr("]}", *at) ? -1 : 0;
    }
    return at;
}

static fsdp_status read_axis(const char *text, axis *out)
{
    char *equals, *at, *end;

    FSDP__TRY_NEW(out->text = fsdp__strdup(text));
    equals = strchr(out->text, '=');
    if (!equals || equals == out->text || !equals[1])
        return FSDP_FAIL(FSDP_INVALID, "--sweep '%s': expected section.key=value,value, such as optimizer.lr=1e-4,3e-4",
                         text);
    *equals = '\0';
    out->key = out->text;
    for (size_t i = 0; i < FSDP__COUNT_OF(own_files); i++)
        if (strcmp(out->key, own_files[i].key) == 0)
            return FSDP_FAIL(
                FSDP_INVALID,
                "--sweep: runs that differ in %s alone are equal, and each has its files in a folder of its "
                "own: sweep another key",
                out->key);
    for (at = equals + 1; at; at = end) {
        bool last;

        end = end_of_value(at);
        last = !*end;
        *end = '\0';
        end = last ? NULL : end + 1;
        if (!*at || out->count == FSDP__SWEEP_RUNS)
            return FSDP_FAIL(FSDP_INVALID, "--sweep '%s' has %s", text, *at ? "too many values" : "an empty value");
        out->values[out->count++] = at;
    }
    return FSDP_OK;
}

/* ---- the runs ---- */

/* Appends text to the name of a run, with '_' for characters that a folder's name should not have. */
static void append_name(char *name, size_t bytes, const char *text)
{
    size_t used = strlen(name);

    for (; *text && used + 1 < bytes; text++)
        name[used++] =
            strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=,+-", *text) ? *text : '_';
    name[used] = '\0';
}

/* Makes run `number`, of which the last key changes fastest. */
static fsdp_status make_run(plan *p, int number)
{
    one_run *r = &p->runs[number];
    char name[200] = "";
    int left = number;

    for (int a = p->axis_count - 1; a >= 0; a--) {
        r->values[a] = p->axes[a].values[left % p->axes[a].count];
        left /= p->axes[a].count;
    }
    for (int a = 0; a < p->axis_count; a++) {
        append_name(name, sizeof name, a ? "," : "");
        append_name(name, sizeof name, p->axes[a].key);
        append_name(name, sizeof name, "=");
        append_name(name, sizeof name, r->values[a]);
    }
    for (int i = 0; i < number; i++)
        if (strcmp(p->runs[i].name, name) == 0)
            return FSDP_FAIL(FSDP_INVALID, "--sweep: two runs would be called '%s': give each value once", name);
    r->status = -1;
    FSDP__TRY_NEW(r->name = fsdp__strdup(name));
    FSDP__TRY_NEW(r->folder = fsdp__path_join(p->sweep->folder, name));
    return FSDP_OK;
}

static fsdp_status make_plan(plan *p, bool has_epochs)
{
    int64_t runs = 1;

    for (; p->axis_count < p->sweep->count; p->axis_count++) {
        FSDP_TRY(read_axis(p->sweep->texts[p->axis_count], &p->axes[p->axis_count]));
        runs *= p->axes[p->axis_count].count;
        for (int a = 0; a < p->axis_count; a++)
            if (strcmp(p->axes[a].key, p->axes[p->axis_count].key) == 0)
                return FSDP_FAIL(FSDP_INVALID, "--sweep: %s is given twice", p->axes[a].key);
        if (strcmp(p->axes[p->axis_count].key, "training.steps") == 0 && has_epochs)
            return FSDP_FAIL(FSDP_INVALID,
                             "--sweep: training.epochs takes the place of training.steps: leave one of them out");
        if (runs > FSDP__SWEEP_RUNS)
            return FSDP_FAIL(FSDP_INVALID, "--sweep: more than %d runs", FSDP__SWEEP_RUNS);
    }
    for (; p->run_count < runs; p->run_count++)
        FSDP_TRY(make_run(p, p->run_count));
    return FSDP_OK;
}

static void release(plan *p)
{
    fsdp__directory_close(&p->folder);
    for (int a = 0; a < FSDP__SWEEP_KEYS; a++)
        fsdp__free(p->axes[a].text);
    for (int i = 0; i < FSDP__SWEEP_RUNS; i++)
        FSDP__FREE_ALL(p->runs[i].name, p->runs[i].folder);
}

/* ---- the config of a run ---- */

/* Puts what a key names into the run's folder, under its own last name or the one given. */
static fsdp_status put_into(const one_run *r, fsdp_train_config *config, const char *key, const char *value,
                            const char *name)
{
    const char *slash = value ? strrchr(value, '/') : NULL;
    FSDP__FREED char *path = fsdp__path_join(r->folder, name ? name : slash ? slash + 1 : value);

    FSDP__TRY_NEW(path);
    return fsdp_train_config_set(config, key, path);
}

/* Sets paths that no two runs share. */
static fsdp_status set_paths(const one_run *r, fsdp_train_config *c)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(own_files); i++) {
        const char *value = *(char *const *)((const char *)c + own_files[i].place);

        if (value || i == 0) /* metrics are the table's */
            FSDP_TRY(put_into(r, c, own_files[i].key, value, own_files[i].name));
    }
    return FSDP_OK;
}

static fsdp_status make_config(const plan *p, const one_run *r, const fsdp_train_config *config,
                               fsdp_train_config **out)
{
    FSDP_TRY(fsdp__train_config_copy(config, out));
    for (int a = 0; a < p->axis_count; a++)
        FSDP_TRY(fsdp_fail_prefix(fsdp_train_config_set(*out, p->axes[a].key, r->values[a]), "--sweep"));
    return set_paths(r, *out);
}

/* Returns the text of the run's config; free() it. NULL and a last error: it has none. */
static char *config_text(const fsdp_train_config *own, size_t *bytes)
{
    FSDP__FREED char *text = NULL;
    FILE *out = fsdp__begin_text(&text, bytes);
    fsdp_status status = out ? fsdp_train_config_print(own, out) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(out));
    return status == FSDP_OK ? fsdp__take(&text) : NULL;
}

/* Writes a file of a run's folder, whole or not at all: if a sweep was killed, the next one would take a part for the
 * config of another run. */
static fsdp_status write_text(const one_run *r, const char *name, const char *text, size_t bytes)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};

    FSDP_TRY(fsdp__directory_open(r->folder, &folder));
    return fsdp__directory_write_atomic(&folder, name, text, bytes);
}

static char *path_of(const one_run *r, const char *name)
{
    return fsdp__path_join(r->folder, name);
}

/* Takes the sweep's folder for this process alone, since two sweeps would write into each other's runs. On a file
 * system without locks the sweep runs all the same. */
static fsdp_status hold_folder(plan *p)
{
    const char *path = p->sweep->folder;

    if (p->folder.path)
        return FSDP_OK;
    FSDP_TRY(fsdp__make_directories(path));
    FSDP_TRY(fsdp__directory_open(path, &p->folder));
    if (flock(p->folder.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return FSDP_FAIL(FSDP_STATE, "--sweep: another sweep runs in '%s': wait for it, or name another --sweep-folder",
                         path);
    return FSDP_OK;
}

/* Refuses values of a key that mean the same, such as 1e-3 and 0.001: the runs would be equal. */
static fsdp_status check_values(const axis *a, const fsdp_train_config *config)
{
    uint64_t hashes[FSDP__SWEEP_RUNS];

    for (int i = 0; i < a->count; i++) {
        FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *own = NULL;

        FSDP_TRY(fsdp__train_config_copy(config, &own));
        FSDP_TRY(fsdp_fail_prefix(fsdp_train_config_set(own, a->key, a->values[i]), "--sweep"));
        FSDP_TRY(fsdp__train_config_hash(own, &hashes[i]));
        for (int j = 0; j < i; j++)
            if (hashes[j] == hashes[i])
                return FSDP_FAIL(FSDP_INVALID, "--sweep: %s is the same with '%s' and '%s': give each value once",
                                 a->key, a->values[j], a->values[i]);
    }
    return FSDP_OK;
}

/* Refuses a config of an earlier start that differs, and finds out whether it can stay as it is, with what somebody may
 * have noted in it. The sweep's folder may have been moved since, or have had another path: then only the paths of the
 * run's files differ. */
static fsdp_status check_earlier(const one_run *r, const char *path, const fsdp_train_config *own, bool *stays)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *earlier = NULL;
    char difference[200];

    FSDP_TRY(fsdp_train_config_create(&earlier));
    FSDP_TRY(fsdp_fail_prefix(fsdp_train_config_load(earlier, path), "--sweep"));
    FSDP_TRY(fsdp__train_config_difference(earlier, own, NULL, difference, sizeof difference));
    *stays = !*difference;
    FSDP_TRY(set_paths(r, earlier));
    FSDP_TRY(fsdp__train_config_difference(earlier, own, NULL, difference, sizeof difference));
    if (*difference)
        return FSDP_FAIL(FSDP_INVALID,
                         "--sweep: '%s' is of a run with other keys: %s: set it back, name another --sweep-folder, or "
                         "remove it",
                         r->folder, difference);
    return FSDP_OK;
}

/* Prepares the folder of a run: writes its config, unless an earlier start has finished, or left one that can stay. */
static fsdp_status prepare(plan *p, one_run *r, const fsdp_train_config *config)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *own = NULL;
    FSDP__FREED char *path = path_of(r, "config.yaml"), *finished = path_of(r, "finished"), *text = NULL;
    bool stays = false;
    size_t bytes = 0;

    FSDP__TRY_NEW(path && finished);
    FSDP_TRY(make_config(p, r, config, &own));
    FSDP__TRY_NEW(text = config_text(own, &bytes));
    FSDP_TRY(hold_folder(p));
    FSDP_TRY(fsdp__make_directories(r->folder));
    if (fsdp__path_exists(path))
        FSDP_TRY(check_earlier(r, path, own, &stays));
    r->was_finished = fsdp__path_exists(finished);
    return r->was_finished || stays ? FSDP_OK : write_text(r, "config.yaml", text, bytes);
}

/* ---- a start ---- */

/* Runs 'fsdp train' with a config. Returns a signal that has come meanwhile; 0: none. */
static int train(const plan *p, one_run *r, const char *config)
{
    const char *argv[FSDP__COUNT_OF(p->sweep->rest) + 4] = {"fsdp", "train", config};
    int count = 3;

    for (int i = 0; p->sweep->rest[i]; i++)
        argv[count++] = p->sweep->rest[i];
    return fsdp__sweep_start(argv, &r->status);
}

/* Makes a run, or passes over one that has finished. */
static void take(plan *p, int number)
{
    one_run *r = &p->runs[number];
    FSDP__FREED char *config = path_of(r, "config.yaml");
    int signal;

    printf("sweep:  run %d of %d: %s%s\n", number + 1, p->run_count, FSDP__SHOWN_PATH(r->name),
           r->was_finished ? " (finished)" : "");
    if (r->was_finished) {
        r->status = 0;
        return;
    }
    if (!config) {
        r->status = fsdp__failure("%s", fsdp_last_error());
        return;
    }
    signal = train(p, r, config);
    if (signal) {
        fsdp__failure("the sweep was interrupted in run %d of %d; the same command continues it", number + 1,
                      p->run_count);
        fsdp__die_of(signal);
    }
    if (r->status == 0 && write_text(r, "finished", "", 0) != FSDP_OK)
        fsdp__failure("%s", fsdp_last_error());
}

/* ---- the table ---- */

static void print_cell(double value, const char *format, int width)
{
    char text[40] = "-";

    if (!isnan(value))
        snprintf(text, sizeof text, format, value);
    printf("  %*s", width, text);
}

/* Gives the figures of what a run has left, and notes whether it has left any; NaN where it has left nothing. */
static fsdp__run_figures figures_of(one_run *r)
{
    fsdp__run_figures none = {NAN, NAN, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    FSDP__FREED char *path = path_of(r, "metrics.jsonl");
    FSDP__SCOPED(fsdp__recorded_runs_free) fsdp__recorded_runs runs = {.count = 0};
    bool held = fsdp_hold_error(true);

    r->has_metrics = path && fsdp__recorded_runs_read(&runs, path) == FSDP_OK && runs.count > 0;
    if (r->has_metrics)
        none = fsdp__run_figures_of(&runs.runs[runs.count - 1]);
    fsdp_release_error(held);
    return none;
}

static void print_row(const plan *p, one_run *r, const int *widths)
{
    fsdp__run_figures f = figures_of(r);

    for (int a = 0; a < p->axis_count; a++)
        printf("%s%-*s", a ? "  " : "", widths[a], r->values[a]);
    print_cell(f.loss, "%.4f", 9);
    print_cell(f.best_loss, "%.4f", 9);
    print_cell(f.tokens_per_second, "%.0f", 10);
    printf("  %9s", isnan(f.peak_bytes) ? "-" : FSDP__SIZE(f.peak_bytes));
    if (r->status > 0)
        printf("  failed (exit status %d)", r->status);
    putchar('\n');
}

/* Prints the command that compares the runs: those that have metrics, and no more than a report takes. */
static void print_report(const plan *p)
{
    int count = 0;

    for (int i = 0; i < p->run_count; i++)
        count += p->runs[i].has_metrics;
    if (count == 0)
        return;
    if (count > FSDP__MOST_RUNS)
        printf("\nto compare the first %d: fsdp report", FSDP__MOST_RUNS);
    else
        printf("\nto compare them: fsdp report");
    count = 0;
    for (int i = 0; i < p->run_count && count < FSDP__MOST_RUNS; i++)
        if (p->runs[i].has_metrics) {
            printf(" %s", FSDP__SHELL_WORD(p->runs[i].folder));
            count++;
        }
    printf(" -o report.html\n");
}

static void print_table(plan *p)
{
    int widths[FSDP__SWEEP_KEYS];

    putchar('\n');
    for (int a = 0; a < p->axis_count; a++) {
        widths[a] = (int)strlen(p->axes[a].key);
        for (int v = 0; v < p->axes[a].count; v++)
            widths[a] = FSDP__MAX(widths[a], (int)strlen(p->axes[a].values[v]));
        printf("%s%-*s", a ? "  " : "", widths[a], p->axes[a].key);
    }
    printf("  %9s  %9s  %10s  %9s\n", "loss", "best val.", "tokens/s", "peak");
    for (int i = 0; i < p->run_count; i++)
        print_row(p, &p->runs[i], widths);
    print_report(p);
}

static int run_all(plan *p, const fsdp_train_config *config)
{
    int failed = 0;

    if (make_plan(p, !isnan(config->training.epochs)) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    for (int a = 0; a < p->axis_count; a++)
        if (check_values(&p->axes[a], config) != FSDP_OK)
            return fsdp__usage_error("%s", fsdp_last_error());
    for (int i = 0; i < p->run_count; i++) /* all of them first: a wrong value costs no run */
        if (prepare(p, &p->runs[i], config) != FSDP_OK)
            return fsdp__failure("%s", fsdp_last_error());
    for (int i = 0; i < p->run_count; i++) {
        take(p, i);
        failed += p->runs[i].status != 0;
    }
    print_table(p);
    return failed ? FSDP__FAILED : 0;
}

int fsdp__sweep_run(const fsdp__sweep *sweep, const fsdp_train_config *config)
{
    FSDP__FREED plan *p = fsdp__calloc(1, sizeof *p);
    int status;

    if (!p)
        return fsdp__failure("%s", fsdp_last_error());
    p->sweep = sweep;
    status = run_all(p, config);
    release(p);
    return status;
}
