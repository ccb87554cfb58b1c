/* Runs on rows: conversations of unequal length of which the answers are learned. Losses, norms and weights are those
 * of tests/reference/finetune, whatever the ranks, the microbatches, the strategy and the packing. */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "data/row_fixture.h"
#include "support/chat_folder.h"
#include "support/program.h"
#include "train/config.h"
#include "train/replay.h"
#include "train/steps.h"

enum {
    STEPS = 10,
    KEYS = 40
};

/* A run of the reference, told by its file, and how it is repeated. */
typedef struct repeated {
    json_t *file;
    const char *model;
    int world;
    const char *keys[KEYS]; /* pairs of key and value; NULL ends them */
    char texts[8][160];
    int key_count;
    fsdp_train_report reports[STEPS];
} repeated;

static void set(repeated *r, const char *key, const char *value)
{
    r->keys[r->key_count++] = key;
    r->keys[r->key_count++] = value;
}

static void set_number(repeated *r, int text, const char *key, double value)
{
    snprintf(r->texts[text], sizeof r->texts[text], "%.17g", value);
    set(r, key, r->texts[text]);
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* The keys of a run of the reference at a world and in so many microbatches. */
static void prepare(repeated *r, const char *name, const row_file *rows, int world, int microbatches)
{
    const char *all = getenv("FSDP_REFERENCE");
    char path[512];

    snprintf(path, sizeof path, "%s/finetune/%s.json", REFERENCE, name);
    if (access(path, R_OK) != 0 && all)
        snprintf(path, sizeof path, "%s/finetune/%s.json", all, name);
    *r = (repeated){.file = json_load_file(path, 0, NULL), .world = world};
    CHECK_PTR(r->file);
    r->model = json_string_value(json_object_get(r->file, "model"));
    snprintf(r->texts[0], sizeof r->texts[0], "%s/models/%s", REFERENCE, r->model);
    set(r, "model.path", r->texts[0]);
    set(r, "data.path", rows->path);
    set(r, "data.packing", json_is_true(json_object_get(r->file, "packed")) ? "true" : "false");
    set(r, "training.seq_len", "128");
    set_number(r, 1, "training.global_batch_size", number(r->file, "global_batch"));
    set_number(r, 2, "training.local_batch_size", number(r->file, "global_batch") / world / microbatches);
    set(r, "training.steps", "10");
    set(r, "training.max_norm", "1");
    set(r, "optimizer.lr", "0.003");
    set(r, "optimizer.weight_decay", "0.1");
    set(r, "optimizer.beta1", "0.9");
    set(r, "optimizer.beta2", "0.95");
    set(r, "metrics.log_freq", "1");
    set(r, "data.workers", "0");
}

static fsdp_train_config *config_of(const repeated *r)
{
    fsdp_train_config *config = test_empty_config();

    for (int i = 0; i < r->key_count; i += 2)
        CHECK_OK(fsdp_train_config_set(config, r->keys[i], r->keys[i + 1]));
    return config;
}

static void take_steps(fsdp_context *context, void *arg)
{
    repeated *r = arg;
    fsdp_train_config *config = config_of(r);

    fsdp_train_report report;
    fsdp_train_run *run = NULL;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, config, &run));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            r->reports[step] = report;
    }
    if (config->parallelism.strategy == FSDP_TRAIN_FSDP2 && config->training.mixed_precision_param == FSDP_F32)
        replay_check_weights(&(replay){.reference = r->file}, fsdp_train_run_model(run));
    fsdp_train_run_free(run);
}

/* How far the losses are from a list of the reference, at most, relative to it. */
static double distance(const repeated *r, const char *list)
{
    double most = 0;

    for (size_t step = 0; step < STEPS; step++) {
        double expected = json_number_value(json_array_get(json_object_get(r->file, list), step));

        most = fmax(most, fabs(r->reports[step].loss / expected - 1));
        if (strcmp(list, "loss") == 0)
            most = fmax(most, fabs(r->reports[step].grad_norm /
                                       json_number_value(json_array_get(json_object_get(r->file, "grad_norm"), step)) -
                                   1) /
                                  10);
    }
    return most;
}

static int64_t answers_of(const repeated *r, size_t step)
{
    const json_t *micros = json_array_get(json_object_get(r->file, "answer_tokens"), step), *ranks, *count;
    int64_t sum = 0;
    size_t a, k;

    json_array_foreach(micros, a, ranks) json_array_foreach(ranks, k, count) sum += json_integer_value(count);
    return sum;
}

static void check_run(repeated *r)
{
    const json_t *wrong = json_object_get(r->file, "wrong_mean_of_means");

    test_run_ranks(r->world, take_steps, r);
    if (!(distance(r, "loss") <= 1e-5))
        TEST_FAIL("losses or norms are off by %g", distance(r, "loss"));
    for (size_t step = 0; step < STEPS; step++)
        CHECK_EQ(r->reports[step].answer_tokens, answers_of(r, step));
    if (wrong) { /* a mean of means would have these losses */
        double off = 0;

        for (size_t step = 0; step < STEPS; step++) {
            const json_t *loss = json_array_get(json_object_get(wrong, "loss"), step);

            off = fmax(off, json_is_number(loss) ? fabs(r->reports[step].loss / json_number_value(loss) - 1) : 1);
        }
        CHECK(off > 1e-3);
    }
    json_decref(r->file);
}

typedef struct way {
    const char *name;
    int world, microbatches;
    const char *key, *value, *other_key, *other_value;
} way;

/* All runs of a model come to the same numbers, so any of them may be repeated at any world. */
static void check_ways(const way *ways, size_t count)
{
    row_file rows;

    row_file_of_reference(&rows);
    for (size_t i = 0; i < count; i++) {
        const way *w = &ways[i];
        repeated r;

        if (test_brief() && i != (count > 5 ? 5 : 0))
            continue;
        prepare(&r, w->name, &rows, w->world, w->microbatches);
        if (w->key)
            set(&r, w->key, w->value);
        if (w->other_key)
            set(&r, w->other_key, w->other_value);
        check_run(&r);
    }
    row_file_close(&rows);
}

TEST(padded_rows_are_those_of_the_reference)
{
    static const way ways[] = {
        {"sft-llama-ws1", 1, 1, NULL, NULL, NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, NULL, NULL, NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, "training.no_sync", "false", NULL, NULL},
        {"sft-gpt2-accum2-ws2", 2, 2, NULL, NULL, NULL, NULL},
        {"sft-llama-accum3-ws2", 3, 4, NULL, NULL, NULL, NULL}, /* some ranks have no answers */
        {"sft-llama-accum3-ws2", 4, 1, "data.workers", "2", NULL, NULL},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

TEST(every_strategy_takes_the_mean_over_all_answers)
{
    static const char strategy[] = "parallelism.strategy";
    static const way ways[] = {
        {"sft-llama-accum3-ws2", 2, 3, strategy, "ddp", NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, strategy, "fsdp1", NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, strategy, "zero1", NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, strategy, "zero2", NULL, NULL},
        {"sft-llama-accum3-ws2", 2, 3, strategy, "zero3", NULL, NULL},
        {"sft-llama-accum3-ws2", 4, 3, strategy, "hsdp", "parallelism.data_parallel_replicate_degree", "2"},
        {"sft-llama-accum3-ws2", 4, 3, strategy, "ddp", "parallelism.ddp_bucket_cap_mb", "0.01"},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

TEST(packed_rows_are_those_of_the_reference)
{
    static const way ways[] = {
        {"sft-packed-llama-ws1", 1, 1, NULL, NULL, NULL, NULL},
        {"sft-packed-gpt2-ws2", 2, 1, NULL, NULL, NULL, NULL},
        {"sft-packed-llama-accum2-ws2", 2, 2, NULL, NULL, NULL, NULL},
        {"sft-packed-llama-accum2-ws2", 4, 2, NULL, NULL, NULL, NULL},
        {"sft-packed-llama-accum2-ws2", 2, 4, "parallelism.strategy", "ddp", NULL, NULL},
        {"sft-packed-gpt2-ws2", 4, 1, "activation_checkpoint.mode", "full", NULL, NULL},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

/* Gives the messages of a text: <|im_start|>role, a newline, the content, <|im_end|> and a newline, as the ids of
 * chat_folder_write. */
static json_t *messages_of(const json_t *ids)
{
    json_t *messages = json_array();
    char text[1024];
    size_t used = 0, i;
    const json_t *id;

    json_array_foreach(ids, i, id)
    {
        int token = (int)json_integer_value(id);

        if (token == 1) {
            used = 0;
        } else if (token == 2) {
            char *content = strchr(text, '\n');

            text[used] = *content = '\0';
            CHECK_EQ(json_array_append_new(messages, json_pack("{s:s, s:s}", "role", text, "content", content + 1)), 0);
        } else {
            CHECK(used < sizeof text - 1);
            text[used++] = (char)(token - 3);
        }
    }
    return json_pack("{s:o}", "messages", messages);
}

static void write_conversations(const char *path)
{
    json_t *reference = json_load_file(REFERENCE "/finetune/sft-tokens.json", 0, NULL), *row;
    FILE *file = fopen(path, "w");
    size_t i;

    CHECK(file && reference);
    json_array_foreach(json_object_get(reference, "conversations"), i, row)
    {
        json_t *line = messages_of(json_object_get(row, "ids"));

        CHECK_EQ(json_dumpf(line, file, 0), 0);
        fputc('\n', file);
        json_decref(line);
    }
    fclose(file);
    json_decref(reference);
}

/* The whole way, from a file of messages through the chat template: with a template that says what an answer is, and
 * with one of which that is found out. */
TEST(conversations_are_those_of_the_reference)
{
    static const way ways[] = {
        {"sft-llama-accum3-ws2", 2, 3, NULL, NULL, NULL, NULL},
        {"sft-llama-ws1", 1, 2, NULL, NULL, NULL, NULL},
        {"sft-packed-llama-accum2-ws2", 2, 2, NULL, NULL, NULL, NULL},
        {"sft-packed-llama-accum2-ws2", 4, 2, "parallelism.strategy", "zero2", NULL, NULL},
        {"sft-packed-llama-ws1", 1, 1, NULL, NULL, NULL, NULL},
    };
    char *folder = test_directory(), *path = test_path(folder, "chat.jsonl");
    row_file rows = {.path = path};

    write_conversations(path);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        repeated r;

        if (!test_takes((int)i, 1, 5))
            continue;
        chat_folder_write(folder, i % 2 == 0 ? chat_template_marked : chat_template_plain);
        prepare(&r, ways[i].name, &rows, ways[i].world, ways[i].microbatches);
        set(&r, "data.tokenizer", folder);
        set(&r, "data.cache", folder);
        if (ways[i].key)
            set(&r, ways[i].key, ways[i].value);
        check_run(&r);
    }
}

/* float16's scale of the loss goes on top. */
TEST(a_scaled_loss_is_that_of_the_reference_too)
{
    row_file rows;
    repeated r;

    if (test_brief())
        skip(); /* float16_goes_with_teams scales losses as well */
    row_file_of_reference(&rows);
    prepare(&r, "sft-llama-accum3-ws2", &rows, 2, 3);
    set(&r, "training.mixed_precision_param", "float16");
    test_run_ranks(2, take_steps, &r);
    CHECK(distance(&r, "loss") <= 2e-2);
    for (int step = 0; step < STEPS; step++)
        CHECK(!r.reports[step].not_finite);
    json_decref(r.file);
    row_file_close(&rows);
}

/* ---- what is odd ---- */

/* Rows of which those from `first` up to `end` have no answer. */
static void write_gaps(const char *path, int count, int first, int end)
{
    fsdp__rows_writer writer;

    CHECK_OK(fsdp__rows_writer_open(&writer, path, 2));
    for (int i = 0; i < count; i++) {
        int32_t ids[6] = {1, 2, 3 + i % 50, 4, 5, 6};
        bool learned[6] = {false, false, true, true, i % 2, false};

        CHECK_OK(fsdp__rows_writer_add(&writer, ids, i >= first && i < end ? (bool[6]){0} : learned, 6));
    }
    CHECK_OK(fsdp__rows_writer_finish(&writer, ""));
    fsdp__rows_writer_close(&writer);
}

typedef struct odd {
    const char *keys[KEYS];
    int steps;
    fsdp_train_report reports[STEPS];
    char log[4096];
} odd;

static void note_log(void *arg, fsdp_log_level level, const char *line)
{
    odd *o = arg;

    if (level <= FSDP_LOG_INFO && strlen(o->log) + strlen(line) + 2 < sizeof o->log)
        strcat(strcat(o->log, line), "\n");
}

static void take_odd_steps(fsdp_context *context, void *arg)
{
    odd *o = arg;
    fsdp_train_config *config = NULL;

    fsdp_context_set_log(context, FSDP_LOG_INFO, fsdp_context_rank(context) == 0 ? note_log : NULL, o);
    config = test_empty_config();
    for (int i = 0; o->keys[i]; i += 2)
        CHECK_OK(fsdp_train_config_set(config, o->keys[i], o->keys[i + 1]));
    train_steps(context, config, o->steps, o->reports);
}

/* A step in which nothing is learned changes nothing, and is said; the next one goes on. */
TEST(a_step_without_answers_is_left_out)
{
    char *folder = test_directory(), *path = test_path(folder, "a.rows");
    odd o = {.keys = {"model.preset",
                      "llama-1m",
                      "model.n_layers",
                      "1",
                      "model.vocab_size",
                      "64",
                      "data.path",
                      path,
                      "data.packing",
                      "false",
                      "training.seq_len",
                      "8",
                      "training.local_batch_size",
                      "2",
                      "training.global_batch_size",
                      "8",
                      "training.steps",
                      "4",
                      "metrics.log_freq",
                      "1",
                      NULL},
             .steps = 4};

    write_gaps(path, 32, 8, 17); /* the second step of eight rows, and one of the third */
    test_run_ranks(2, take_odd_steps, &o);
    CHECK_CONTAINS(o.log, "step 2 is left out: no token of it is an answer");
    CHECK_EQ(o.reports[1].skipped, 1);
    CHECK_EQ(o.reports[1].answer_tokens, 0);
    CHECK(isnan(o.reports[1].loss) && !o.reports[1].not_finite && o.reports[1].left_out);
    CHECK(o.reports[1].tokens_per_second == 0 && o.reports[1].padded_tokens_per_second == 0);
    for (int step = 0; step < 4; step += step == 0 ? 2 : 1) {
        CHECK(isfinite(o.reports[step].loss) && isfinite(o.reports[step].grad_norm));
        CHECK_EQ(o.reports[step].answer_tokens, step == 2 ? 18 : 20);
        CHECK_EQ(o.reports[step].tokens, 48 * (step + 1)); /* without padding */
    }
    CHECK(o.reports[3].loss < o.reports[0].loss);
    CHECK_CONTAINS(o.log, "32 rows of 192 tokens, of which 58 are learned (the answers), in 32 windows of 8, which are "
                          "75.0% full (a row in each)");
    CHECK_CONTAINS(o.log, "9 rows have no answer, of which nothing is learned; the first is row 9 of '");
}

TEST(of_rows_that_are_held_out_it_is_not_said_that_nothing_is_learned)
{
    char *folder = test_directory(), *path = test_path(folder, "a.rows");
    odd o = {.keys = {"model.preset", "llama-1m", "model.n_layers", "1", "model.vocab_size", "64", "data.path", path,
                      "training.seq_len", "8", "training.local_batch_size", "2", "training.steps", "1",
                      "validation.share", "0.5", NULL},
             .steps = 1};

    write_gaps(path, 32, 8, 17);
    test_run_ranks(1, take_odd_steps, &o);
    CHECK_CONTAINS(o.log, "8 rows have no answer, of which nothing is learned; the first is row 9 of '");
}
