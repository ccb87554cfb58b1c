/* `fsdp train` from a text to a model folder, and what becomes of the folder. */
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "cli/fixture.h"
#include "tokenizer/small.h"

/* Of a step of the last run in the file. */
static double metric(const char *path, int step, const char *key)
{
    FILE *file = fopen(path, "r");
    char line[1024];
    double value = NAN;

    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);

        CHECK(object != NULL);
        if (json_object_get(object, "run"))
            value = NAN;
        else if (json_integer_value(json_object_get(object, "step")) == step)
            value = json_number_value(json_object_get(object, key));
        json_decref(object);
    }
    fclose(file);
    CHECK(!isnan(value));
    return value;
}

FIXTURE_TEST(trains_exports_inspects_and_generates)
{
    program p = RUN(0, "train", f->config, "-n", "3", "--training.global_batch_size=24");
    char *first;

    CHECK_CONTAINS(p.output, "ranks:  3");
    CHECK_CONTAINS(p.output, "3 ranks x 2 microbatches x 4 sequences x 32");
    CHECK_CONTAINS(p.output, "step:  1  loss: 5.");
    CHECK_CONTAINS(p.output, "step: 10  loss: ");
    CHECK_CONTAINS(p.output, "  norm: ");
    CHECK_CONTAINS(p.output, " tok/s  ");
    CHECK_CONTAINS(p.output, "FLOP/s  lr: ");
    CHECK_CONTAINS(p.output, "model written to ");
    CHECK(metric(f->metrics, 30, "loss") < metric(f->metrics, 1, "loss") - 1.5);
    CHECK_EQ(metric(f->metrics, 30, "step"), 30);

    p = RUN(0, "inspect", f->model);
    CHECK_CONTAINS(p.output, "Llama, ");
    CHECK_CONTAINS(p.output, "n_kv_heads           1");
    CHECK_CONTAINS(p.output, "model.layers.1.mlp.down_proj.weight");
    CHECK_CONTAINS(p.output, "[48, 100]");
    CHECK_CONTAINS(p.output, "total: 21 tensors, ");

    p = RUN(0, "generate", f->model, "--prompt", "The qui", "--max-new-tokens", "40", "--temperature", "0");
    CHECK_CONTAINS(p.output, "The qui");
    CHECK_EQ(strlen(p.output), 7 + 40 + 1);
    p = RUN(0, "generate", "--tokens", "84,104,101", "--max-new-tokens=5", "--seed=7", f->model);
    first = strdup(p.output);
    CHECK_EQ(strncmp(first, "84,104,101,", 11), 0);
    p = RUN(0, "generate", "--tokens", "84,104,101", "--max-new-tokens=5", "--seed=7", f->model);
    CHECK_STRING(p.output, first);
    free(first);
    SAYS(1, "token 256 of --tokens is not in the vocabulary of '", "generate", f->model, "--tokens", "84,256");
}

FIXTURE_TEST(goes_on_from_an_exported_folder)
{
    char path[600], out[600];
    double loss;

    RUN(0, "train", f->config, "-n", "2");
    loss = metric(f->metrics, 30, "loss");
    /* other sizes of the world do not matter */
    snprintf(path, sizeof path, "--model.path=%s", f->model);
    snprintf(out, sizeof out, "--export.path=%s-2", f->model);
    RUN(0, "train", f->config, "--model.preset=", "--model.n_layers=", "--model.dim=", "--model.n_heads=",
        "--model.n_kv_heads=", "--model.ffn_dim=", "--model.max_seq_len=", path, out, "--training.steps=2");
    CHECK(metric(f->metrics, 1, "loss") < loss + 0.7);
}

/* The folder says what kind of model it is, the config how large. */
FIXTURE_TEST(a_folder_without_its_weights_may_change_its_sizes)
{
    char path[600];

    RUN(0, "train", f->config, "--training.steps=1");
    snprintf(path, sizeof path, "--model.path=%s", f->model);
    SAYS(0, "(Llama, 1 layer of 40)", "train", f->config, "--model.preset=", path, "--model.init=random",
         "--model.n_layers=1", "--model.dim=40", "--model.n_heads=4", "--model.n_kv_heads=2",
         "--model.ffn_dim=", "--training.steps=2", "--export.path=");
    SAYS(1, "model.n_layers changes the model, but the weights of '", "train", f->config, "--model.preset=", path,
         "--model.n_heads=4");
}

/* A GPT-2 folder as it is on the hub has a rate of 0.1 everywhere: attention cannot drop in training, so one is asked.
 */
FIXTURE_TEST(a_folder_that_drops_in_attention_needs_a_rate)
{
    char *folder = test_path(f->directory, "gpt2"), *file = test_path(f->directory, "gpt2/config.json"), path[600];
    const char *config = "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, "
                         "\"n_layer\": 2, \"n_head\": 2}";
    program p;

    CHECK_EQ(mkdir(folder, 0777), 0);
    test_write_file(file, config, strlen(config));
    snprintf(path, sizeof path, "--model.path=%s", folder);
    for (int drop = -1; drop <= 1; drop++) {
        const char *rate = drop < 0 ? "--model.dropout=" : drop == 0 ? "--model.dropout=0" : "--model.dropout=0.1";

        p = program_run(f->directory, drop < 0,
                        (const char *const[]){PROGRAM, "train", f->config, "--model.preset=", "--model.n_layers=",
                                              "--model.dim=", "--model.n_heads=", "--model.n_kv_heads=",
                                              "--model.ffn_dim=", "--model.max_seq_len=", "--model.init=random", path,
                                              rate, "--training.steps=2", NULL});
        if (drop < 0)
            CHECK_CONTAINS(p.output, "asks for dropout 0.1 in attention, which cannot be trained: set model.dropout");
    }
    SAYS(0, "GPT-2", "inspect", f->model);
    p = RUN(1, "train", f->config, "--model.dropout=0.1"); /* a Llama */
    CHECK_CONTAINS(p.output, "model.dropout is 0.1, but only GPT-2 has dropout here: leave it out");
}

/* A model that has a tokenizer does not learn bytes unless that is asked for. */
FIXTURE_TEST(text_beside_a_tokenizer_goes_through_it)
{
    static const char *const tokenizers[] = {"--data.tokenizer=", "--data.tokenizer=", "--data.tokenizer=bytes"};
    static const char *const says[] = {"\ntext:   its bytes are its tokens\n",
                                       "has 270 tokens, but the model has a vocabulary of 256",
                                       "\ntext:   its bytes are its tokens\n"};
    char *file = test_path(f->directory, "model/tokenizer.json"),
         *json = small_json(&(small_parts){.normalizer = NULL});
    char path[600], cache[600];
    program p;

    RUN(0, "train", f->config, "--training.steps=1");
    snprintf(path, sizeof path, "--model.path=%s", f->model);
    snprintf(cache, sizeof cache, "--data.cache=%s/cache", f->directory);
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            test_write_file(file, json, strlen(json));
        p = RUN(i == 1, "train", f->config, path, "--model.preset=", "--model.init=random", "--training.steps=1",
                "--export.path=", cache, tokenizers[i]);
        CHECK_CONTAINS(p.output, says[i]);
    }
    SAYS(0, "\ntext:   through the tokenizer of '", "train", f->config, path, "--model.preset=", "--model.init=random",
         "--training.steps=1", "--export.path=", cache, "--model.vocab_size=270");
}

/* Bytes are numbers of a vocabulary that has more of them, and the model may know others by these numbers. */
FIXTURE_TEST(a_model_with_weights_and_no_tokenizer_is_told_that_it_gets_bytes)
{
    static const char warning[] =
        "' has no tokenizer: bytes of text are its tokens; if it was trained on other tokens, "
        "set data.tokenizer";
    static const struct {
        const char *vocabulary, *first, *second;
        bool warns;
    } cases[] = {
        {"300", "--model.preset=", "--data.tokenizer=", true},
        {"300", "--model.preset=", "--data.tokenizer=bytes", false},
        {"300", "--model.preset=", "--model.init=random", false},
        {"256", "--model.preset=", "--data.tokenizer=", false},
    };
    char path[600], vocabulary[40], *config = test_path(f->directory, "tune.yaml"), text[2000];
    program p;

    snprintf(path, sizeof path, "--model.path=%s", f->model);
    snprintf(text, sizeof text, "data:\n  path: %s\ntraining:\n  steps: 1\n  seq_len: 32\n", f->data);
    test_write_file(config, text, strlen(text));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(vocabulary, sizeof vocabulary, "--model.vocab_size=%s", cases[i].vocabulary);
        p = RUN(0, "train", f->config, "--training.steps=1", vocabulary, "--metrics.jsonl=");
        CHECK(!strstr(p.output, warning));
        p = RUN(0, "train", config, path, cases[i].first, cases[i].second);
        CHECK_EQ(strstr(p.output, warning) != NULL, cases[i].warns);
        if (cases[i].warns)
            CHECK_CONTAINS(p.output, "data.path: the model in '");
    }
    RUN(0, "train", f->config, "--training.steps=1", "--model.vocab_size=300", "--metrics.jsonl=");
    snprintf(path, sizeof path, "--checkpoint.initial_load_path=%s", f->model);
    SAYS(0, warning, "train", f->config, path, "--model.vocab_size=300", "--training.steps=1",
         "--metrics.jsonl=", "--export.path=");
}

/* Checks that the second epoch begins after the tokens of the steps before. */
static void check_epoch_line(const char *output, long long tokens_per_step)
{
    const char *line = strstr(output, "\nepoch:  2 begins in step ");
    long long step = 0, tokens = 0;

    CHECK(line != NULL);
    CHECK(sscanf(line, "\nepoch:  2 begins in step %lld, after", &step) == 1);
    for (const char *c = strstr(line, "after "); *c != '\n'; c++)
        if (*c >= '0' && *c <= '9')
            tokens = 10 * tokens + (*c - '0');
    CHECK_EQ(tokens, (step - 1) * tokens_per_step);
}

FIXTURE_TEST(data_that_is_doubtful_or_begins_again_is_told)
{
    char option[600], *bin = test_path(f->directory, "text.bin"), *text;
    size_t bytes;
    program p = RUN(0, "train", f->config, "--training.steps=200", "--metrics.log_freq=200");

    check_epoch_line(p.output, 4 * 32);
    SAYS(0, "begins in step 1\n", "train", f->config, "--training.steps=1", "--training.local_batch_size=1500",
         "--training.global_batch_size=3000", "--training.seq_len=8", "--metrics.jsonl=", "--export.path=");
    CHECK(strstr(p.output, "warning: data") == NULL); /* a machine that others use may have others */
    CHECK(metric(f->metrics, 200, "epoch") >= 1);
    CHECK_EQ(metric(f->metrics, 200, "tokens"), 200 * 4 * 32);

    text = test_read_file(f->data, &bytes);
    test_write_file(bin, text, bytes / 2 * 2);
    snprintf(option, sizeof option, "--data.path=%s", bin);
    p = RUN(1, "train", f->config, "-n", "2", option, "--data.dtype=uint16", "--training.steps=1",
            "--model.vocab_size=65536");
    CHECK_CONTAINS(p.output, "data.path: cannot read '");
    CHECK_CONTAINS(p.output, "as uint16 tokens: its first 4096 bytes are text");
    for (size_t i = 0; i < bytes / 4; i++)
        ((uint32_t *)(void *)text)[i] = (uint32_t)i % 256;
    test_write_file(bin, text, bytes / 4 * 4);
    p = RUN(0, "train", f->config, "-n", "2", option, "--data.dtype=uint16", "--training.steps=1");
    CHECK_CONTAINS(p.output, "fsdp: warning: [rank 0] data.path: '");
    CHECK_CONTAINS(p.output, "is read as uint16 tokens, but every second one of its first 2048 is 0");
    SAYS(1, "uint16 is too small for a vocabulary of 65537: name it .u32 or .u16, or set data.dtype", "train",
         f->config, option, "--training.steps=1", "--model.vocab_size=65537");
    SAYS(1, "data.dtype is for tokens, but data.format is text", "train", f->config, option, "--data.dtype=uint16",
         "--data.format=text");
    SAYS(1, "llm_c_gpt2.bin' as uint32: its header (magic 20240520 at offset 0) says uint16", "train", f->config,
         "--data.dtype=uint32", "--data.path=" TEST_SOURCE_DIR "/tests/numbers/llm_c_gpt2.bin");
}

FIXTURE_TEST(the_same_run_gives_the_same_bits)
{
    char *file = test_path(f->model, "model.safetensors"), *first, *second;
    size_t first_bytes, second_bytes;

    RUN(0, "train", f->config, "-n", "2", "--training.steps=8");
    first = test_read_file(file, &first_bytes);
    RUN(0, "train", f->config, "-n", "2", "--training.steps=8");
    second = test_read_file(file, &second_bytes);
    CHECK_EQ(first_bytes, second_bytes);
    CHECK_BYTES(first, second, first_bytes);
}

/* A schedule that is planned and saved, replayed, and planned at the start. */
FIXTURE_TEST(a_planned_schedule_changes_no_bit)
{
    char *file = test_path(f->model, "model.safetensors"), *schedule = test_path(f->directory, "schedule.json");
    char option[300], *first, *other;
    size_t first_bytes, bytes;
    program p;

    RUN(0, "train", f->config, "-n", "2", "--training.steps=3");
    first = test_read_file(file, &first_bytes);
    p = RUN(0, "plan", f->config, "-n", "2", "--device=cuda:H100", "--schedule", schedule);
    CHECK_CONTAINS(p.output, "\n  blocks  ");
    CHECK_CONTAINS(p.output, "\n  plan  ");
    CHECK_CONTAINS(p.output, "schedule.json: --parallelism.schedule=");
    for (int planned = 0; planned < (test_brief() ? 1 : 2); planned++) {
        snprintf(option, sizeof option, "--parallelism.schedule=%s", planned ? "plan" : schedule);
        p = RUN(0, "train", f->config, "-n", "2", "--training.steps=3", option,
                planned ? "--parallelism.schedule_prices=cuda:H100" : "--training.steps=3");
        if (planned)
            CHECK_CONTAINS(CHECK_PTR(strstr(p.output, "parallelism.schedule plan: looking for a schedule, by up to")),
                           "dry runs at rates of ");
        other = test_read_file(file, &bytes);
        CHECK_EQ(first_bytes, bytes);
        CHECK_BYTES(first, other, bytes);
    }
    snprintf(option, sizeof option, "--parallelism.schedule=%s", schedule);
    SAYS(1, "parameters) = (2, 1, 1), but this run has (3, 1, 1): plan again", "train", f->config, "-n", "3", option);
}

FIXTURE_TEST(text_prompts_need_a_tokenizer_or_bytes)
{
    program p = RUN(1, "generate", REFERENCE "/models/tiny-gpt2", "--prompt", "x");

    CHECK_CONTAINS(p.output, "has no tokenizer");
    CHECK_CONTAINS(p.output, "--tokenizer FOLDER");
    CHECK_CONTAINS(p.output, "--tokens 1,2,3");
}

FIXTURE_TEST(runs_a_program_of_ones_own)
{
    program p =
        RUN(0, "run", "-n", "3", "--", "sh", "-c", "echo \"<$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE>\"");

    CHECK_CONTAINS(p.output, "<0/3 0/3>");
    CHECK_CONTAINS(p.output, "<2/3 2/3>");
    p = RUN(7, "run", "-n", "2", "--", "sh", "-c", "if [ $RANK = 1 ]; then exit 7; else sleep 60; fi");
    CHECK_CONTAINS(p.output, "rank 1");
}

/* Start-up is measured, not asserted: a busy machine is no failure. */
FIXTURE_TEST(prints_how_long_the_first_step_takes)
{
    struct timespec a, b;
    program p;

    clock_gettime(CLOCK_MONOTONIC, &a);
    p = RUN(0, "train", f->config, "-n", "2", "--training.steps=1", "--export.path=");
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK(!strstr(p.output, "unshard"));
    printf("one step of a small model on two ranks, start to exit: %.3f s\n",
           (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9);
}

FIXTURE_TEST(shows_what_happens_to_each_group)
{
    program p = RUN(0, "train", f->config, "-n", "2", "--training.steps=1", "--export.path=", "--comm.trace=true");

    CHECK_CONTAINS(p.output, "[rank 0] unshard '' (forward)");
    CHECK_CONTAINS(p.output, "[rank 1] reduce ");
    CHECK_CONTAINS(p.output, "float32 over 2 ranks of group");
}

TEST_FILE_IN_MEMORY(false, NULL)
