/* fsdp eval: loss and perplexity of a folder, as PyTorch has them, on any number of ranks. */
#include <math.h>

#include "cli/fixture.h"
#include "tokenizer/small.h"

#define LLAMA REFERENCE "/models/tiny-llama"
#define GPT2 REFERENCE "/models/tiny-gpt2"
#define TOKENS REFERENCE "/tokens.bin"

static double number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    if (!at)
        TEST_FAIL("no '%s' in:\n%s", name, text);
    return strtod(at + strlen(name), NULL);
}

/* PyTorch's means of cross-entropies in double, of float32 logits, window by window. */
FIXTURE_TEST(the_loss_of_all_tokens_is_that_of_pytorch)
{
    static const struct {
        const char *folder, *ranks, *batch;
        double loss;
    } cases[] = {{LLAMA, "1", "8", 5.6348986594620145},
                 {LLAMA, "3", "64", 5.6348986594620145},
                 {GPT2, "2", "50", 5.632992824317298}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program p = RUN(0, "eval", cases[i].folder, "--data", TOKENS, "--seq-len=32", "--batch-size", cases[i].batch,
                        "-n", cases[i].ranks);

        CHECK_NEAR(number_behind(p.output, "loss: "), cases[i].loss, 2e-6);
        CHECK_NEAR(number_behind(p.output, "perplexity: "), exp(cases[i].loss), 1e-3);
        CHECK_CONTAINS(p.output, "data:   40,000 tokens, in windows of 32, ");
        CHECK_CONTAINS(p.output, "  tokens: 39,999  ");
        CHECK_CONTAINS(p.output, " tok/s\n"); /* as train says it */
    }
}

FIXTURE_TEST(steps_are_the_same_tokens_on_any_ranks)
{
    static const char *const ranks[][3] = {{"1", "1", "1"}, {"2", "1", "1"}, {"4", "1", "1"}, {"2", "2", "1"},
                                           {"4", "2", "1"}, {"4", "1", "4"}, {"4", "2", "2"}};
    char first[64] = "";

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        program p = RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=16", "--batch-size=3", "--steps=5", "-n",
                        ranks[i][0], "--tensor-parallel", ranks[i][1], "--context-parallel", ranks[i][2]);
        const char *loss = strstr(p.output, "loss: ");

        CHECK_CONTAINS(p.output, "  tokens: 240  ");
        if (i == 0)
            snprintf(first, sizeof first, "%.*s", (int)strcspn(loss, "t"), loss);
        CHECK_CONTAINS(p.output, first);
    }
    SAYS(1, "--seq-len 18 cannot be cut into 4 equal chunks", "eval", LLAMA, "--data", TOKENS, "--seq-len=18", "-n2",
         "--context-parallel=2");
    SAYS(1, "fsdp: --context-parallel is 2, but there are 3 ranks: expected a number that divides them\n", "eval",
         LLAMA, "--data", TOKENS, "--seq-len=16", "-n3", "--context-parallel=2");
    SAYS(1, "fsdp: --tensor-parallel is 3, but there are 2 ranks: expected a number that divides them\n", "eval", LLAMA,
         "--data", TOKENS, "-n2", "--tensor-parallel=3");
    SAYS(1, "fsdp: --tensor-parallel is 3, which does not divide the model's 4 heads (num_attention_heads): expected ",
         "eval", LLAMA, "--data", TOKENS, "-n3", "--tensor-parallel=3");
}

FIXTURE_TEST(text_is_the_bytes_of_a_model_of_bytes)
{
    char *packed = test_path(f->directory, "a.dat");

    RUN(0, "train", f->config, "--training.steps=2", "--metrics.jsonl=");
    SAYS(0, "tokens, in windows of 64, 8 a batch\ntext:   its bytes are its tokens\nloss: ", "eval", f->model, "--data",
         f->data);
    SAYS(1, "--tokenizer is for text, but --data '", "eval", f->model, "--data", f->data, "--format=tokens",
         "--tokenizer=bytes");
    test_write_file(packed, "\xfd\x37zXZ\0", 6);
    SAYS(1, "--data: cannot read '", "eval", f->model, "--data", packed);
    SAYS(1, "it is xz data: unpack it with 'xz -d'", "eval", f->model, "--data", packed);
    packed = test_path(f->directory, "a.jsonl");
    test_write_file(packed, "{\"a\": 1}\n", 9);
    SAYS(1, "a.jsonl' as text: it is JSON lines", "eval", f->model, "--data", packed);
    SAYS(1, "-seq-len 65 is more than the 64 positions of", "eval", f->model, "--data", f->data, "--seq-len=65");
}

FIXTURE_TEST(what_cannot_be_evaluated_is_refused_once)
{
    char *one = test_path(f->directory, "one.bin"), *beyond = test_path(f->directory, "beyond.u16");
    const uint16_t tokens[] = {1, 2, 3, 60000, 5};

    test_write_file(one, tokens, 2);
    test_write_file(beyond, tokens, sizeof tokens);
    SAYS(2, "eval: no model folder given", "eval", "--data", TOKENS);
    SAYS(2, "eval: no data given: --data FILE", "eval", LLAMA);
    SAYS(2, "--seq-len is '0': expected an integer from 1", "eval", LLAMA, "--data", TOKENS, "--seq-len=0");
    SAYS(2, "--steps is '-1': expected an integer from 1", "eval", LLAMA, "--data", TOKENS, "--steps=-1");
    SAYS(2, "--format is 'csv': expected auto, text or tokens", "eval", LLAMA, "--data", TOKENS, "--format=csv");
    SAYS(2, "eval: unknown option '--date'; did you mean '--data'?", "eval", LLAMA, "--date", TOKENS);
    SAYS(1, "config.json", "eval", f->directory, "--data", TOKENS);
    SAYS(1, "none.bin", "eval", LLAMA, "--data", "none.bin", "-n", "2");
    SAYS(1, "one.bin' has only one token, and none to predict", "eval", LLAMA, "--data", one);
    SAYS(1, "token 60000 at position 3 of '", "eval", LLAMA, "--data", beyond);
    for (int ranks = 2; ranks <= 3; ranks++) {
        char number[16];
        program p;

        snprintf(number, sizeof number, "%d", ranks);
        p = RUN(1, "eval", LLAMA, "--data", beyond, "-n", number);
        CHECK_CONTAINS(p.output, "token 60000 at position 3 of '");
        CHECK_NULL(strstr(strstr(p.output, "fsdp: ") + 1, "fsdp: "));
    }
}

/* The tokens are those that `fsdp tokenize` makes, and those that `fsdp train` has made. */
FIXTURE_TEST(text_goes_through_the_folders_tokenizer)
{
    char *tokens = test_path(f->directory, "tokens.bin"), *path = test_path(f->model, "tokenizer.json");
    char *json = small_json(&(small_parts){.normalizer = NULL}), loss[64];
    char *cache = test_path(f->directory, "fsdp"), *other = test_path(f->directory, "other");
    char *lines = test_path(f->directory, "lines.jsonl");
    const char *at;
    program p;

    setenv("XDG_CACHE_HOME", f->directory, 1);
    RUN(0, "train", f->config, "--training.steps=1", "--metrics.jsonl=", "--model.vocab_size=300");
    test_write_file(path, json, strlen(json));
    RUN(0, "tokenize", f->data, "-o", tokens, "--no-eos", "--tokenizer", f->model);
    p = RUN(0, "eval", f->model, "--data", tokens);
    at = CHECK_PTR(strstr(p.output, "loss: "));
    snprintf(loss, sizeof loss, "\n%.*s", (int)(strstr(at, "  tokens: ") - at) % 60, at);
    SAYS(0, loss, "eval", f->model, "--data", f->data);
    SAYS(0, loss, "eval", f->model, "--data", f->data, "-n", "3");
    CHECK_EQ(test_names_in(cache), 1);
    SAYS(0, "\ntext:   through the tokenizer of '", "eval", f->model, "--data", f->data, "-n", "2");
    SAYS(0, "\ntext:   its bytes are its tokens\nloss: ", "eval", f->model, "--data", f->data, "--tokenizer=bytes");
    SAYS(1, "--field is for text, but --data '", "eval", f->model, "--data", tokens, "--field=body");
    test_write_file(lines, "{\"body\": \"the other thing\"}\n{\n", 30);
    SAYS(1, "lines.jsonl': line 2: no key in quotes at column 2", "eval", f->model, "--data", lines, "--field=body");
    SAYS(0, "warning: --data: 1 of 2 lines left out: first at ", "eval", f->model, "--data", lines, "--field=body",
         "--on-bad-line=skip", "--seq-len=2", "-n", "2");
    SAYS(2, "--on-bad-line is 'drop': expected error or skip", "eval", f->model, "--data", lines, "--on-bad-line=drop");
    SAYS(0, loss, "eval", f->model, "--data", f->data, "-n", "2", "--cache", other);
    CHECK_EQ(test_names_in(other), 1);
    unsetenv("XDG_CACHE_HOME");
    SAYS(0, loss, "eval", f->model, "--data", f->data, "--cache", other);
    SAYS(1, "cannot keep tokens of text in data.cache (fsdp eval: --cache; name another folder): cannot ", "eval",
         f->model, "--data", f->data, "--cache", "/proc");
    unsetenv("HOME");
    SAYS(1, "data.txt' is text: name a folder for its tokens with --cache", "eval", f->model, "--data", f->data);
    CHECK_EQ(test_names_in(other), 1);
}

FIXTURE_TEST(other_dtypes_are_computed_in)
{
    double loss = 5.6348986594620145;

    for (int ranks = 1; ranks <= 2; ranks++) {
        char number[16];
        program p;

        snprintf(number, sizeof number, "%d", ranks);
        p = RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--dtype=bfloat16", "-n", number);
        CHECK_NEAR(number_behind(p.output, "loss: "), loss, 1e-2);
        CHECK(number_behind(p.output, "loss: ") != 5.634899); /* what float32 prints */
    }
    SAYS(2, "--dtype is 'int64': expected float32, bfloat16 or float16", "eval", LLAMA, "--data", TOKENS,
         "--dtype=int64");
}

FIXTURE_TEST(text_for_a_model_of_other_tokens_is_refused)
{
    char *config = test_path(f->directory, "c.yaml");
    const char *text = "model: {preset: llama-1m, n_layers: 1, dim: 24, n_heads: 2, ffn_dim: 50, vocab_size: 300}\n";
    char *json, *written, *wide, *at;
    size_t bytes;

    test_write_file(config, text, strlen(text));
    RUN(0, "train", config, "--training.steps=1", "--data.path", f->data, "--training.seq_len=8", "--export.path",
        f->model);
    SAYS(1, "data.txt' is text, but '", "eval", f->model, "--data", f->data);
    SAYS(1, "fsdp: --tokenizer: cannot open 'nosuch'", "eval", f->model, "--data", f->data, "--tokenizer=nosuch");
    SAYS(1, "nor a vocabulary of bytes, but one of 300: give a file of its tokens, or name a tokenizer with", "eval",
         f->model, "--data", f->data, "-n", "2");
    SAYS(0, "text:   its bytes are its tokens\nloss: ", "eval", f->model, "--data", f->data, "--tokenizer=bytes", "-n",
         "2");
    SAYS(0, "loss: ", "eval", f->model, "--data", TOKENS, "--steps=1");
    /* Files of tokens are looked at before weights are. */
    json = test_path(f->model, "config.json");
    written = test_read_file(json, &bytes);
    wide = malloc(bytes + 3);
    at = CHECK_PTR(strstr(written, "\"vocab_size\": 300"));
    CHECK_EQ(snprintf(wide, bytes + 3, "%.*s\"vocab_size\": 70000%s", (int)(at - written), written, at + 17),
             bytes + 2);
    test_write_file(json, wide, bytes + 2);
    free(wide);
    SAYS(1, "uint16 is too small for a vocabulary of 70000", "eval", f->model, "--data", TOKENS);
}
