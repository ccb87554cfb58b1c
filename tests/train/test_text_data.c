/* Training on text with a tokenizer: as on its tokens, made once for all ranks. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/tokenize.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "tokenizer/small.h"
#include "train/config.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"
enum {
    STEPS = 2
};

typedef struct fixture {
    char *directory, *text, *tokens, *cache;
    fsdp_train_config *config;
    float losses[STEPS];
    char log[4096], tokenizer[512]; /* of rank 0 */
    bool bytes;
    _Atomic int said; /* lines of all ranks that speak of damage */
} fixture;

static const char llama[] =
    "model.preset=llama-1m model.n_layers=1 model.dim=16 model.n_heads=2 model.n_kv_heads=1 model.ffn_dim=20 "
    "model.vocab_size=271 data.workers=0 training.steps=2 training.seq_len=8 metrics.log_freq=1 "
    "training.local_batch_size=1";

static void write_text(const fixture *f)
{
    FILE *file = fopen(f->text, "w");

    for (int i = 0; i < 40; i++)
        fprintf(file, "{\"body\": \"the %d in the thing\"}\n", 7 * i * i);
    fclose(file);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path;

    f->directory = test_directory();
    f->text = test_path(f->directory, "data.jsonl");
    f->tokens = test_path(f->directory, "tokens.bin");
    f->cache = test_path(f->directory, "cache");
    path = test_path(f->directory, "tokenizer.json");
    test_write_file(path, json, strlen(json));
    write_text(f);
    f->config = test_config("%s", llama);
    *state = f;
    return 0;
}

static void set_text(fixture *f)
{
    test_set_keys(f->config, "data.path=%s data.tokenizer=%s data.field=body data.cache=%s", f->text, f->directory,
                  f->cache);
}

static void hear(void *arg, fsdp_log_level level, const char *line)
{
    fixture *f = arg;

    (void)level;
    f->said += strstr(line, "made again, because the file of them was damaged") != NULL;
}

static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    fixture *f = arg;
    size_t used = strlen(f->log);

    hear(arg, level, line);
    snprintf(f->log + used, sizeof f->log - used, "%s\n", line);
}

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_summary summary;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_INFO, fsdp_context_rank(context) == 0 ? keep_line : hear, f);
    if (fsdp_context_rank(context) == 0)
        f->log[0] = '\0';
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    if (fsdp_context_rank(context) == 0) {
        fsdp_train_run_summary(run, &summary);
        snprintf(f->tokenizer, sizeof f->tokenizer, "%s", summary.tokenizer ? summary.tokenizer : "");
        f->bytes = summary.bytes;
    }
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            f->losses[step] = (float)report.loss;
    }
    fsdp_train_run_free(run);
}

TEST_OF(text_trains_as_its_tokens, setup, NULL, fixture *f)
{
    const fsdp_tokenize_options options = {.field = "body"};
    fsdp_tokenizer *tokenizer = NULL;
    float expected[STEPS];

    CHECK_OK(fsdp_tokenizer_open(f->directory, &tokenizer));
    CHECK_OK(fsdp_tokenize_files(tokenizer, (const char *const *)&f->text, 1, f->tokens, &options, NULL));
    fsdp_tokenizer_close(tokenizer);
    for (int world = 1; world <= 4; world++) {
        fsdp_train_config *text_config = f->config;

        SET(f, "data.path", f->tokens);
        f->config = test_config("%s", llama);
        SET(f, "data.path", f->tokens);
        test_run_ranks(world, train, f);
        memcpy(expected, f->losses, sizeof expected);
        f->config = text_config;
        set_text(f);
        test_run_ranks(world, train, f);
        CHECK_BYTES(f->losses, expected, sizeof expected);
        CHECK_EQ(test_names_in(f->cache), 1);
    }
}

/* The one file of the cache: half of its tokens become zeros. */
static void damage(const fixture *f)
{
    DIR *directory = opendir(f->cache);
    struct dirent *entry = NULL;
    char path[600];
    FILE *file;

    while ((entry = readdir(directory)) && entry->d_name[0] == '.')
        ;
    CHECK(entry != NULL);
    snprintf(path, sizeof path, "%s/%s", f->cache, entry->d_name);
    closedir(directory);
    file = fopen(path, "r+");
    CHECK(file && fseek(file, 1024, SEEK_SET) == 0);
    for (int i = 0; i < 600; i++)
        fputc(0, file);
    fclose(file);
}

TEST_OF(damaged_tokens_are_made_anew_with_one_line, setup, NULL, fixture *f)
{
    float expected[STEPS];

    set_text(f);
    for (int world = 1; world <= 4; world++) {
        test_run_ranks(world, train, f);
        CHECK_EQ(f->said, 0);
        memcpy(expected, f->losses, sizeof expected);
        damage(f);
        test_run_ranks(world, train, f);
        CHECK_BYTES(f->losses, expected, sizeof expected);
        CHECK_EQ(f->said, 1);
        CHECK_EQ(test_names_in(f->cache), 1);
        f->said = 0;
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

TEST_OF(what_does_not_fit_is_refused, setup, NULL, fixture *f)
{
    set_text(f);
    SET(f, "model.vocab_size", "270");
    check_refused(f, "has 271 tokens, but the model has a vocabulary of 270");
    SET(f, "model.vocab_size", "300");
    SET(f, "data.field", "text");
    check_refused(f, "data.path: cannot read");
    CHECK_CONTAINS(fsdp_last_error(),
                   "data.jsonl': line 1: field 'text' is missing, and the line has 'body': name the");
    CHECK_CONTAINS(fsdp_last_error(), "; fields of conversations are messages, conversations, prompt with completion, "
                                      "instruction with output, or chosen with rejected");
    SET(f, "data.dtype", "uint16");
    check_refused(f, "data.tokenizer is for text, but data.dtype is for tokens");
}

TEST_OF(a_tokenizer_is_where_it_is_said_to_be, setup, NULL, fixture *f)
{
    set_text(f);
    SET(f, "data.tokenizer", "model");
    check_refused(f, "data.tokenizer is model, but there is no model.path");
    SET(f, "data.tokenizer", f->cache);
    check_refused(f, "data.tokenizer: cannot open");
}

/* The file of their tokens is one that nobody knows. */
TEST_OF(too_little_text_is_named_with_what_to_do, setup, NULL, fixture *f)
{
    set_text(f);
    SET(f, "training.local_batch_size", "1000");
    check_refused(f, "data.jsonl' has ");
    CHECK_CONTAINS(fsdp_last_error(), "but one window of 8 for each of 1000 sequences (1 rank x 1000) needs 8001: take "
                                      "more data, or a smaller training.local_batch_size or training.seq_len");
    CHECK(!strstr(fsdp_last_error(), f->cache));
}

/* Without a tokenizer the braces would be trained on; only the bytes of text that is named so are asked for. */
TEST_OF(json_lines_need_a_tokenizer, setup, NULL, fixture *f)
{
    SET(f, "data.path", f->text);
    check_refused(f, "data.path: cannot read '");
    CHECK_CONTAINS(fsdp_last_error(), "data.jsonl' as text: it is JSON lines, and braces and keys would be tokens too: "
                                      "set data.tokenizer to a folder with a tokenizer.json, which reads its texts");
    SET(f, "data.format", "text");
    check_refused(f, "data.jsonl' as text: it is JSON lines");
    SET(f, "data.format", "auto");
    SET(f, "data.field", "body");
    check_refused(f, "data.field is 'body', a field of JSON lines, which only a tokenizer reads, and there is none");
    SET(f, "data.field", "");
    SET(f, "data.tokenizer", "bytes");
    check_refused(f, "data.jsonl' as text: it is JSON lines");
    SET(f, "data.field", "body");
    check_refused(f, "data.field is 'body', a field of JSON lines, but data.tokenizer is bytes");
    SET(f, "data.field", "");
    SET(f, "data.format", "tokens");
    check_refused(f, "data.tokenizer is for text, but data.format is tokens");
}

/* ---- a model with a tokenizer ---- */

static const char model_json[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 16, "
    "\"intermediate_size\": "
    "20, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 271, "
    "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false}";

/* A config of its own: the fixture's folder is the model's. */
static void begin_with_folder(fixture *f)
{
    char *path = test_path(f->directory, "config.json");

    test_write_file(path, model_json, sizeof model_json - 1);
    f->config = test_config("model.path=%s model.init=random data.workers=0 data.cache=%s training.steps=2 "
                            "training.seq_len=8 training.local_batch_size=1",
                            f->directory, f->cache);
}

static void train_alone(fixture *f, float *losses)
{
    test_run_ranks(1, train, f);
    memcpy(losses, f->losses, sizeof f->losses);
}

TEST_OF(a_models_own_tokenizer_reads_its_text, setup, NULL, fixture *f)
{
    float named[STEPS], own[STEPS], bytes[STEPS];
    char *prose = test_path(f->directory, "data.txt"), *folder = test_path(f->directory, "d"), *packed;

    begin_with_folder(f);
    test_set_keys(f->config, "data.path=%s data.field=body data.tokenizer=model", f->text);
    train_alone(f, named);
    CHECK_STRING(f->tokenizer, f->directory);
    SET(f, "data.tokenizer", "");
    train_alone(f, own);
    CHECK_BYTES(own, named, sizeof own);
    CHECK_STRING(f->tokenizer, f->directory);
    for (int i = 0; i < 2; i++) { /* data.format says what it is, not what reads it */
        test_write_file(prose, "the other thing in the thing, he said, and the rest", 51);
        SET(f, "data.path", prose);
        SET(f, "data.field", "");
        SET(f, "data.format", i ? "text" : "auto");
        SET(f, "data.tokenizer", "");
        train_alone(f, own);
        CHECK_STRING(f->tokenizer, f->directory);
        CHECK(!f->bytes);
        SET(f, "data.tokenizer", "bytes");
        train_alone(f, bytes);
        CHECK_STRING(f->tokenizer, "");
        CHECK(f->bytes);
        CHECK(memcmp(own, bytes, sizeof own) != 0);
    }
    CHECK_EQ(mkdir(folder, 0777), 0); /* a folder's files are told by their names */
    packed = test_path(folder, "a.jsonl");
    CHECK_EQ(rename(f->text, packed), 0);
    test_set_keys(f->config, "data.path=%s data.field=body data.format=auto data.tokenizer=", folder);
    train_alone(f, own);
    CHECK_BYTES(own, named, sizeof own);
}

TEST_OF(tokens_beside_a_tokenizer_are_tokens, setup, NULL, fixture *f)
{
    uint16_t ids[64];
    float losses[STEPS];
    char both[1024];

    begin_with_folder(f);
    for (int i = 0; i < 64; i++)
        ids[i] = (uint16_t)(256 + i % 15);
    test_write_file(f->tokens, ids, sizeof ids);
    SET(f, "data.path", f->tokens);
    train_alone(f, losses);
    CHECK_STRING(f->tokenizer, "");
    CHECK(!f->bytes);
    snprintf(both, sizeof both, "[%s, %s]", f->tokens, f->text);
    SET(f, "data.path", both);
    check_refused(f, "data.path has 1 files of text, for the tokenizer of '");
    SET(f, "data.path", f->text);
    SET(f, "data.cache", "");
    check_refused(f, "data.path is text, which the tokenizer of '");
}

TEST_OF(bad_lines_are_left_out_and_told, setup, NULL, fixture *f)
{
    float whole[STEPS], rest[STEPS];
    FILE *file;

    begin_with_folder(f);
    SET(f, "data.path", f->text);
    SET(f, "data.field", "body");
    train_alone(f, whole);
    file = fopen(f->text, "a");
    fputs("{\"body\": \"cut\n{\"bod\": 1}\n", file);
    fclose(file);
    check_refused(f, "data.jsonl': line 41: a string does not end");
    CHECK_CONTAINS(fsdp_last_error(), "; data.on_bad_line=skip (--on-bad-line=skip) leaves such lines out");
    SET(f, "data.on_bad_line", "skip");
    for (int time = 0; time < 2; time++) { /* made, and found */
        train_alone(f, rest);
        CHECK_BYTES(rest, whole, sizeof rest);
        CHECK_CONTAINS(f->log, "data.path: 2 of 42 lines left out: first at ");
        CHECK_CONTAINS(f->log, "data.jsonl:41: a string does not end");
    }
}

static void train_whole(fsdp_context *context, void *arg)
{
    fixture *f = arg;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train(context, f->config, NULL));
}

/* A checkpoint keeps the tokenizer that its tokens are of, and gives it to a run that begins with its weights. */
TEST_OF(a_checkpoint_has_the_tokenizer_of_its_tokens, setup, NULL, fixture *f)
{
    char *folder = test_path(f->directory, "steps"), *kept = test_path(folder, "step-2/tokenizer.json");
    float losses[STEPS];

    set_text(f);
    SET(f, "checkpoint.enable", "true");
    SET(f, "checkpoint.folder", folder);
    test_run_ranks(1, train_whole, f);
    CHECK_EQ(access(kept, R_OK), 0);
    f->config = test_config("%s", llama);
    test_set_keys(f->config, "data.path=%s data.field=body data.cache=%s checkpoint.initial_load_path=%s", f->text,
                  f->cache, folder);
    train_alone(f, losses);
    CHECK_CONTAINS(f->tokenizer, "step-2");
}

/* Bytes that a run was begun on, as before a folder's tokenizer was the default, are not taken for its tokens. */
TEST_OF(a_run_on_bytes_goes_on_with_bytes_alone, setup, NULL, fixture *f)
{
    char *elsewhere = test_directory(), *folder = test_path(elsewhere, "steps");
    char *kept = test_path(folder, "step-2/tokenizer.json");
    char *prose = test_path(f->directory, "data.txt");

    begin_with_folder(f);
    test_write_file(prose, "the other thing in the thing, he said, and the rest", 51);
    test_set_keys(f->config, "data.path=%s data.tokenizer=bytes checkpoint.enable=true checkpoint.folder=%s", prose,
                  folder);
    test_run_ranks(1, train_whole, f);
    CHECK_EQ(access(folder, R_OK), 0);
    CHECK(access(kept, F_OK) != 0); /* whose tokenizer would not be that of its tokens */
    SET(f, "training.steps", "4");
    SET(f, "data.tokenizer", "");
    check_refused(f, "and this run go through different data: ");
    CHECK_CONTAINS(fsdp_last_error(), "data.tokenizer: bytes");
    SET(f, "data.tokenizer", "bytes");
    test_run_ranks(1, train_whole, f);
}
