/* metrics.jsonl: what it may not be, what every run adds to it, and how its end tells what went wrong. */
#include "train/config.h"
#include "train/metrics.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/ranks.h"

typedef struct fixture {
    char *directory, *data, *metrics, *other;
    fsdp_context *context;
    fsdp_train_config *config;
    fsdp_status status;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[4 * 16 * 2 + 1]; /* two steps an epoch */

    f->context = test_context();
    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    f->other = test_path(f->directory, "other");
    memset(text, 'a', sizeof text);
    test_write_file(f->data, text, sizeof text);
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=50 data.workers=0 training.steps=3 training.seq_len=16 "
                            "training.global_batch_size=4 training.local_batch_size=1 data.path=%s metrics.jsonl=%s",
                            f->data, f->metrics);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_context_free(f->context);
    return 0;
}

static void write_text(const char *path, const char *text)
{
    test_write_file(path, text, strlen(text));
}

static void check_holds(const char *path, const char *expected)
{
    char *text = test_read_file(path, &(size_t){0});

    CHECK_STRING(text, expected);
}

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_status status;

    CHECK_PTR(test_device(context));
    status = fsdp_train(context, f->config, NULL);
    if (fsdp_context_rank(context) == 0)
        f->status = status;
}

static fsdp_status run(fixture *f, int world)
{
    test_run_ranks(world, train, f);
    return f->status;
}

/* The n-th line of the file, from 0; NULL when there are fewer. json_decref it. */
static json_t *line_of(const char *path, int number)
{
    FILE *file = fopen(path, "r");
    char text[1024];
    json_t *object = NULL;

    CHECK(file != NULL);
    for (int i = 0; i <= number && fgets(text, sizeof text, file); i++)
        if (i == number)
            object = CHECK_PTR(json_loads(text, 0, NULL));
    fclose(file);
    return object;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- files that it may not be ---- */

TEST_OF(what_holds_something_else_is_refused, setup, teardown, fixture *f)
{
    static const char *const contents[] = {"notes\n", "{\"step\"", "{}", "\n", "[{\"step\": 1}]"};

    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        write_text(f->metrics, contents[i]);
        CHECK_ERROR(fsdp__metrics_check(f->config), FSDP_INVALID, "exists and does not hold metrics");
        CHECK_EQ(run(f, 2), FSDP_INVALID);
        check_holds(f->metrics, contents[i]);
    }
    write_text(f->metrics, "");
    CHECK_OK(fsdp__metrics_check(f->config));
    write_text(f->metrics, "{\"step\": 1, \"loss\": 2}\n"); /* of a version that wrote no header */
    CHECK_OK(fsdp__metrics_check(f->config));
    check_holds(f->metrics, "{\"step\": 1, \"loss\": 2}\n");
}

TEST_OF(what_cannot_be_written_is_known_at_the_start, setup, teardown, fixture *f)
{
    char *below = test_path(f->data, "m.jsonl");

    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", "/proc/none/m.jsonl"));
    CHECK_ERROR(fsdp__metrics_check(f->config), FSDP_NOT_FOUND, "none/m.jsonl': cannot make directory");
    CHECK_CONTAINS(fsdp_last_error(), "No such file or directory");
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", below));
    CHECK_ERROR(fsdp__metrics_check(f->config), FSDP_IO, "data.txt' is a file, not a folder");
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", f->directory));
    CHECK_ERROR(fsdp__metrics_check(f->config), FSDP_IO, "Is a directory");
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", "/dev/null"));
    CHECK_OK(fsdp__metrics_check(f->config));
    CHECK_OK(run(f, 1));
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", ""));
    CHECK_OK(fsdp__metrics_check(f->config));
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", f->metrics));
    CHECK_OK(fsdp__metrics_check(f->config));
    CHECK(access(f->metrics, F_OK) != 0);
}

TEST_OF(folders_of_files_are_made, setup, teardown, fixture *f)
{
    static const char *const keys[][2] = {
        {"metrics.jsonl", "a/b/m.jsonl"}, {"metrics.csv", "c/d/m.csv"}, {"metrics.prometheus", "e/f/m.prom"}};
    char *path;

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        path = test_path(f->directory, keys[i][1]);
        CHECK_OK(fsdp_train_config_set(f->config, keys[i][0], path));
    }
    CHECK_OK(run(f, 2));
    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        path = test_path(f->directory, keys[i][1]);
        CHECK_EQ(access(path, F_OK), 0);
    }
}

/* ---- what a run adds ---- */

TEST_OF(every_run_begins_with_a_header, setup, teardown, fixture *f)
{
    const char *device = getenv("FSDP_TEST_DEVICE") ? getenv("FSDP_TEST_DEVICE") : "cpu";
    json_t *first, *second, *third, *step;

    CHECK_OK(run(f, 2));
    CHECK_OK(run(f, 2));
    CHECK_OK(fsdp_train_config_set(f->config, "optimizer.lr", "0.5"));
    CHECK_OK(run(f, 1));
    first = CHECK_PTR(line_of(f->metrics, 0));
    second = CHECK_PTR(line_of(f->metrics, 4));
    third = CHECK_PTR(line_of(f->metrics, 8));
    CHECK_NULL(line_of(f->metrics, 12));
    CHECK_STRING(text_of(first, "version"), FSDP_VERSION);
    CHECK_STRING(text_of(first, "model"), "llama-1m");
    CHECK_EQ(strncmp(text_of(first, "device"), device, strlen(device)), 0); /* of a GPU the card follows */
    CHECK_EQ(strlen(text_of(first, "run")), 16);
    CHECK_EQ(strlen(text_of(first, "started")), strlen("2026-03-01T09:30:00Z"));
    CHECK_EQ(json_integer_value(json_object_get(first, "world_size")), 2);
    CHECK_EQ(json_integer_value(json_object_get(third, "world_size")), 1);
    CHECK_EQ(json_integer_value(json_object_get(first, "tokens_per_step")), 64);
    CHECK_EQ(json_integer_value(json_object_get(first, "steps")), 3);
    CHECK(json_integer_value(json_object_get(first, "parameters")) > 10000);
    CHECK(strcmp(text_of(first, "run"), text_of(second, "run")) != 0);
    CHECK_STRING(text_of(second, "config"), text_of(first, "config"));
    CHECK(strcmp(text_of(third, "config"), text_of(first, "config")) != 0);
    for (int i = 1; i <= 3; i++) {
        step = CHECK_PTR(line_of(f->metrics, 4 + i));
        CHECK_EQ(json_integer_value(json_object_get(step, "step")), i);
        CHECK_EQ(json_integer_value(json_object_get(step, "tokens")), 64 * i);
        CHECK_EQ(json_integer_value(json_object_get(step, "epoch")), i == 3); /* the data begins again */
        CHECK_EQ(json_integer_value(json_object_get(step, "skipped")), 0);
        json_decref(step);
    }
    json_decref(first);
    json_decref(second);
    json_decref(third);
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(CHECK_PTR(json_object_get(object, key)));
}

/* A whole gather and a reduction of everything at least, half of each by one of two ranks; a block is gathered twice.
 */
TEST_OF(several_machines_have_what_goes_between_them, setup, teardown, fixture *f)
{
    json_t *header, *step;
    double bytes, sent = 0;

    test_run_machines(2, 1, false, train, f);
    CHECK_OK(f->status);
    header = CHECK_PTR(line_of(f->metrics, 0));
    CHECK_EQ(number_of(header, "machines"), 2);
    bytes = number_of(header, "parameters") * sizeof(float);
    for (int i = 2; i <= 3; i++) { /* two microbatches each */
        step = CHECK_PTR(line_of(f->metrics, i));
        CHECK(number_of(step, "network_sent") > bytes && number_of(step, "network_sent") < 4 * bytes);
        CHECK(i == 2 || number_of(step, "network_sent") == sent);
        sent = number_of(step, "network_sent");
        CHECK(number_of(step, "network_received") > bytes * 0.9 && number_of(step, "network_received") < 4 * bytes);
        CHECK(number_of(step, "gather_ms") >= 0 && number_of(step, "gather_ms") <= number_of(step, "step_ms"));
        CHECK(number_of(step, "reduce_ms") >= 0 && number_of(step, "reduce_ms") <= number_of(step, "step_ms"));
        json_decref(step);
    }
    json_decref(header);
    CHECK_OK(run(f, 1));
    header = CHECK_PTR(line_of(f->metrics, 4));
    step = CHECK_PTR(line_of(f->metrics, 5));
    CHECK_NULL(json_object_get(header, "machines"));
    CHECK_NULL(json_object_get(step, "network_sent"));
    CHECK_NULL(json_object_get(step, "gather_ms"));
    json_decref(header);
    json_decref(step);
}

TEST_OF(a_start_that_fails_leaves_the_file_as_it_was, setup, teardown, fixture *f)
{
    CHECK_OK(fsdp_train_config_set(f->config, "training.local_batch_size", "64"));
    CHECK_OK(fsdp_train_config_set(f->config, "training.global_batch_size", "64"));
    CHECK_EQ(run(f, 1), FSDP_INVALID); /* too little data */
    CHECK(access(f->metrics, F_OK) != 0);
    write_text(f->metrics, "{\"run\": \"1\"}\n");
    CHECK_EQ(run(f, 1), FSDP_INVALID);
    check_holds(f->metrics, "{\"run\": \"1\"}\n");
}

static fsdp_status begin_with_model(const fixture *f, const char *model, fsdp__metrics **out)
{
    fsdp_train_summary summary = {.model = model, .world_size = 1, .run = "0123456789abcdef"};

    return fsdp__metrics_begin(f->context, f->config, &summary, out);
}

TEST_OF(a_line_that_was_cut_off_does_not_swallow_the_header, setup, teardown, fixture *f)
{
    fsdp__metrics *metrics = NULL;
    json_t *header;

    write_text(f->metrics, "{\"run\": \"1\"}\n{\"step\": 1, \"lo");
    CHECK_OK(begin_with_model(f, "a \"b\" \\c\n", &metrics));
    CHECK_OK(fsdp__metrics_end(metrics));
    header = CHECK_PTR(line_of(f->metrics, 2));
    CHECK_STRING(text_of(header, "model"), "a \"b\" \\c\n");
    json_decref(header);
}

TEST_OF(what_is_not_finite_is_null, setup, teardown, fixture *f)
{
    fsdp_train_report report = {.step = 7, .loss = NAN, .grad_norm = INFINITY, .lr = 0.25, .skipped = 2};
    fsdp__metrics *metrics = NULL;
    json_t *line;

    CHECK_OK(begin_with_model(f, "m", &metrics));
    CHECK_OK(fsdp__metrics_write(metrics, &report));
    line = CHECK_PTR(line_of(f->metrics, 1)); /* it is there before the end */
    CHECK(json_is_null(json_object_get(line, "loss")) && json_is_null(json_object_get(line, "grad_norm")));
    CHECK_EQ(json_number_value(json_object_get(line, "lr")) == 0.25, true);
    CHECK_EQ(json_integer_value(json_object_get(line, "skipped")), 2);
    json_decref(line);
    CHECK_OK(fsdp__metrics_end(metrics));
    CHECK_OK(fsdp__metrics_end(NULL));
}

/* ---- what goes wrong while it is written ---- */

TEST_OF(a_full_disk_and_a_pipe_that_nobody_reads_are_errors, setup, teardown, fixture *f)
{
    fsdp__metrics *metrics = (fsdp__metrics *)1;

    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", "/dev/full"));
    CHECK_ERROR(begin_with_model(f, "m", &metrics), FSDP_IO, "cannot write '/dev/full': No space left on device");
    CHECK_NULL(metrics);
    CHECK_EQ(run(f, 2), FSDP_IO);
    CHECK_EQ(mkfifo(f->other, 0666), 0);
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", f->other));
    CHECK_ERROR(begin_with_model(f, "m", &metrics), FSDP_IO, f->other);
    CHECK_EQ(run(f, 2), FSDP_IO);
}

TEST_OF(every_failed_write_and_allocation_is_told, setup, teardown, fixture *f)
{
    for (int kind = 0; kind < 2; kind++) {
        fsdp__fault_kind fault = kind ? FSDP__FAULT_WRITE : FSDP__FAULT_ALLOCATION;

        for (long n = 0; test_next_fault(fault, &n);) {
            fsdp_train_report report = {.step = 1};
            fsdp_train_validation validation = {.step = 1};
            fsdp__metrics *metrics = NULL;
            fsdp_status status = begin_with_model(f, "m", &metrics);

            if (status == FSDP_OK)
                status = fsdp__metrics_write(metrics, &report);
            if (status == FSDP_OK)
                status = fsdp__metrics_write_validation(metrics, &validation);
            CHECK_FAULT(fault, status);
            (void)fsdp__metrics_end(metrics);
        }
    }
}
