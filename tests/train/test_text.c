/* Training on text with a tokenizer: as on its tokens, made once for all ranks. */
#include <dirent.h>

#include "fsdp/tokenize.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "tokenizer/small.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"
enum {
    STEPS = 2
};

typedef struct fixture {
    char *directory, *text, *tokens, *cache;
    fsdp_train_config *config;
    float losses[STEPS];
} fixture;

static const char *const llama[][2] = {
    {"model.preset", "llama-1m"}, {"model.n_layers", "1"},   {"model.dim", "16"},
    {"model.n_heads", "2"},       {"model.n_kv_heads", "1"}, {"model.ffn_dim", "20"},
    {"model.vocab_size", "271"},  {"data.workers", "0"},     {"training.steps", "2"},
    {"training.seq_len", "8"},    {"metrics.log_freq", "1"}, {"training.local_batch_size", "1"}};

static void set(fixture *f, const char *key, const char *value)
{
    CHECK_OK(fsdp_train_config_set(f->config, key, value));
}

static void write_text(const fixture *f)
{
    FILE *file = fopen(f->text, "w");

    for (int i = 0; i < 40; i++)
        fprintf(file, "{\"body\": \"the %d in the thing\"}\n", 7 * i * i);
    fclose(file);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path;

    f->directory = test_directory();
    f->text = test_path(f->directory, "data.jsonl");
    f->tokens = test_path(f->directory, "tokens.bin");
    f->cache = test_path(f->directory, "cache");
    path = test_path(f->directory, "tokenizer.json");
    test_write_file(path, json, strlen(json));
    write_text(f);
    CHECK_OK(fsdp_train_config_create(&f->config));
    for (size_t i = 0; i < sizeof llama / sizeof *llama; i++)
        set(f, llama[i][0], llama[i][1]);
    free(json);
    free(path);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_train_config_free(f->config);
    free(f->text);
    free(f->tokens);
    free(f->cache);
    test_directory_free(f->directory);
    free(f);
    return 0;
}

static void set_text(fixture *f)
{
    set(f, "data.path", f->text);
    set(f, "data.tokenizer", f->directory);
    set(f, "data.field", "body");
    set(f, "data.cache", f->cache);
}

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            f->losses[step] = (float)report.loss;
    }
    fsdp_train_run_free(run);
}

static int files_in(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void text_trains_as_its_tokens(void **state)
{
    fixture *f = *state;
    const fsdp_tokenize_options options = {.field = "body"};
    fsdp_tokenizer *tokenizer = NULL;
    float expected[STEPS];

    CHECK_OK(fsdp_tokenizer_open(f->directory, &tokenizer));
    CHECK_OK(fsdp_tokenize_files(tokenizer, (const char *const *)&f->text, 1, f->tokens, &options, NULL));
    fsdp_tokenizer_close(tokenizer);
    for (int world = 1; world <= 4; world++) {
        fsdp_train_config *text_config = f->config;

        set(f, "data.path", f->tokens);
        CHECK_OK(fsdp_train_config_create(&f->config));
        for (size_t i = 0; i < sizeof llama / sizeof *llama; i++)
            set(f, llama[i][0], llama[i][1]);
        set(f, "data.path", f->tokens);
        test_run_ranks(world, train, f);
        memcpy(expected, f->losses, sizeof expected);
        fsdp_train_config_free(f->config);
        f->config = text_config;
        set_text(f);
        test_run_ranks(world, train, f);
        CHECK_BYTES(f->losses, expected, sizeof expected);
        CHECK_EQ(files_in(f->cache), 1);
    }
}

static void check_refused(fixture *f, const char *part)
{
    fsdp_context *context = test_context();
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK(fsdp_train_run_create(context, f->config, &run) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), part);
    CHECK_NULL(run);
    fsdp_context_free(context);
}

static void what_does_not_fit_is_refused(void **state)
{
    fixture *f = *state;

    set_text(f);
    set(f, "model.vocab_size", "270");
    check_refused(f, "has 271 tokens, and the model a vocabulary of 270");
    set(f, "model.vocab_size", "300");
    set(f, "data.field", "text");
    check_refused(f, "data.path: cannot read");
    CHECK_CONTAINS(fsdp_last_error(), "data.jsonl': line 1: field 'text' is missing");
    set(f, "data.dtype", "uint16");
    check_refused(f, "data.tokenizer is of text, but data.dtype is of tokens");
}

static void a_tokenizer_is_where_it_is_said_to_be(void **state)
{
    fixture *f = *state;

    set_text(f);
    set(f, "data.tokenizer", "model");
    check_refused(f, "data.tokenizer is model, but there is no model.path");
    set(f, "data.tokenizer", f->cache);
    check_refused(f, "data.tokenizer: cannot open");
}

static void json_lines_need_a_tokenizer(void **state)
{
    fixture *f = *state;

    set(f, "data.path", f->text);
    set(f, "data.field", "body");
    check_refused(f, "data.field is 'body', of JSON lines, which are read with data.tokenizer alone");
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
TEST_MAIN(T(text_trains_as_its_tokens), T(what_does_not_fit_is_refused), T(a_tokenizer_is_where_it_is_said_to_be),
          T(json_lines_need_a_tokenizer))
