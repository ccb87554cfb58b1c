/* fsdp generate: on any number of ranks the same text, prompts from everywhere, where a text ends, readers that go. */
#include <sys/stat.h>

#include "base/text.h"
#include "cli/fixture.h"

/* A model of few steps in f->model. */
static void train(const fixture *f, const char *steps)
{
    RUN(0, "train", f->config, steps);
}

/* What `sh -c script` prints; $FSDP is the program and $MODEL the folder. */
static char *shell(const fixture *f, int expected, const char *script)
{
    program p;
    char *output;

    setenv("FSDP", PROGRAM, 1);
    setenv("MODEL", f->model, 1);
    p = program_run(f->directory, expected, (const char *const[]){"/bin/sh", "-c", script, NULL});
    output = strdup(p.output);
    return output;
}

static void check_same(const fixture *f, const char *script, const char *expected)
{
    char *output = shell(f, 0, script);

    CHECK_STRING(output, expected);
    free(output);
}

FIXTURE_TEST(ranks_and_prompts_from_anywhere_give_the_same_text)
{
    char *text, *ids;

    train(f, "--training.steps=12");
    text = shell(f, 0, "$FSDP generate $MODEL --prompt 'The quick' --max-new-tokens 24 --seed 5");
    CHECK_EQ(strncmp(text, "The quick", 9), 0);
    check_same(f, "$FSDP generate $MODEL --prompt 'The quick' --max-new-tokens 24 --seed 5 -n 2", text);
    check_same(f, "$FSDP generate $MODEL --prompt='The quick' --max-new-tokens=24 --seed=5 -n3", text);
    check_same(f, "echo 'The quick' | $FSDP generate $MODEL --prompt-file - --max-new-tokens 24 --seed 5", text);
    check_same(f, "echo 'The quick' | $FSDP generate $MODEL --prompt-file - --max-new-tokens 24 --seed 5 -n 2", text);
    check_same(f,
               "printf 'The quick' > $MODEL/../prompt;"
               "$FSDP generate $MODEL --prompt-file $MODEL/../prompt --max-new-tokens 24 --seed 5",
               text);
    check_same(f, "$FSDP generate $MODEL --prompt 'The quick' --max-new-tokens 24 --seed 5 --top-p 1 --top-k 256",
               text);
    ids = shell(f, 0, "$FSDP generate $MODEL --tokens 84,104,101 --max-new-tokens 3 --temperature 0");
    check_same(f, "$FSDP generate $MODEL --tokens 84,104,101 --max-new-tokens 3 --seed 4 --top-p 0.000001 -n 2", ids);
    free(ids);
    free(text);
}

/* At a temperature at which any byte may come. */
FIXTURE_TEST(what_is_no_character_is_printed_as_one)
{
    const char *at;
    char *text;

    train(f, "--training.steps=1");
    text = shell(f, 0,
                 "$FSDP generate $MODEL --prompt 'G\303\274te' --max-new-tokens 300 --temperature 900 | tr -d '\\000'");
    CHECK_EQ(strncmp(text, "G\303\274te", 5), 0);
    CHECK_CONTAINS(text, "\xEF\xBF\xBD");
    at = text;
    while (*at) {
        uint32_t character;
        int bytes = fsdp__utf8_next(at, &character);

        CHECK(bytes > 0);
        at += bytes;
    }
    free(text);
}

FIXTURE_TEST(a_text_ends_where_the_folder_says)
{
    char *path, *ids, *all, json[64];
    int64_t third;

    train(f, "--training.steps=12");
    all = shell(f, 0, "$FSDP generate $MODEL --tokens 84,104 --max-new-tokens 6 --temperature 9");
    third = atoi(strrchr(all, ',') + 1);
    snprintf(json, sizeof json, "{\"eos_token_id\": [300, %d]}", (int)third);
    path = test_path(f->directory, "model/generation_config.json");
    test_write_file(path, json, strlen(json));
    ids = shell(f, 0, "$FSDP generate $MODEL --tokens 84,104 --max-new-tokens 50 --temperature 9 -n 2");
    CHECK(strlen(ids) <= strlen(all));
    CHECK_EQ(strncmp(ids, all, strlen(ids) - 1), 0);
    CHECK_EQ(atoi(strrchr(ids, ',') + 1), third);
    check_same(f, "$FSDP generate $MODEL --tokens 84,104 --max-new-tokens 6 --temperature 9 --ignore-eos", all);
    test_write_file(path, "{\"eos_token_id\": \"x\"}", 21);
    SAYS(1, "generation_config.json': key 'eos_token_id' is neither a token id nor a list", "generate", f->model,
         "--tokens", "1");
    free(ids);
    free(all);
}

FIXTURE_TEST(other_dtypes_are_computed_in)
{
    char *text;

    train(f, "--training.steps=12");
    text = shell(f, 0, "$FSDP generate $MODEL --prompt The --max-new-tokens 8 --dtype bfloat16 --temperature 0");
    check_same(f, "$FSDP generate $MODEL --prompt The --max-new-tokens 8 --dtype bfloat16 --temperature 0 -n 2", text);
    free(text);
}

FIXTURE_TEST(a_reader_may_leave)
{
    char *text;

    train(f, "--training.steps=1");
    text = shell(f, 0, "$FSDP generate $MODEL --prompt x --max-new-tokens 1000000 -n 2 | head -c 9 | wc -c");
    CHECK_EQ(atoi(text), 9);
    free(text);
    text = shell(f, 0, "$FSDP generate $MODEL --prompt x --max-new-tokens 1000000 | head -c 9 | wc -c");
    CHECK_EQ(atoi(text), 9);
    free(text);
    text = shell(f, 1, "$FSDP generate $MODEL --prompt x --max-new-tokens 1000000 -n 2 > /dev/full");
    CHECK_CONTAINS(text, "cannot write to standard output: No space left on device");
    free(text);
}

/* Waits for the first tokens, so that ranks are there. */
FIXTURE_TEST(an_interrupt_ends_all_ranks)
{
    const char *const argv[] = {PROGRAM,    "generate", f->model, "--prompt", "The", "--max-new-tokens",
                                "10000000", "-n",       "2",      NULL};
    char mark[64], *output = test_path(f->directory, "output");
    pid_t found[4];
    program p;

    train(f, "--training.steps=1");
    snprintf(mark, sizeof mark, "INTERRUPTED_BY=%d", (int)getpid());
    setenv("INTERRUPTED_BY", strchr(mark, '=') + 1, 1);
    test_write_file(output, "", 0);
    p = program_start(f->directory, argv);
    for (struct stat info = {0}; info.st_size < 20; usleep(5000))
        CHECK_EQ(stat(p.output_path, &info), 0);
    CHECK_EQ(kill(p.pid, SIGINT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGINT);
    CHECK_EQ(find_processes(mark, found, 4), 0);
}

FIXTURE_TEST(wrong_command_lines_are_refused)
{
    char *text;

    SAYS(2, "give either --prompt TEXT or --tokens", "generate", "/nowhere", "--prompt", "x", "--tokens", "1");
    SAYS(2, "give either --prompt TEXT or --tokens", "generate", "/nowhere", "--prompt", "x", "--prompt-file", "y");
    SAYS(2, "--top-p is '2'", "generate", "/nowhere", "--prompt", "x", "--top-p", "2");
    SAYS(2, "--top-p is '0': expected a number above 0 and up to 1", "generate", "/nowhere", "--prompt", "x", "--top-p",
         "0");
    SAYS(2, "--top-p is '1e-60'", "generate", "/nowhere", "--prompt", "x", "--top-p", "1e-60");
    SAYS(2, "--dtype is 'int8': expected float32, bfloat16 or float16", "generate", "/nowhere", "--prompt", "x",
         "--dtype", "int8");
    SAYS(2, "-n is '0'", "generate", "/nowhere", "--prompt", "x", "-n", "0");
    SAYS(1, "there is no '/nowhere'", "generate", "/nowhere", "--prompt", "x", "-n", "2");
    SAYS(1, "'" PROGRAM "' is a file: a model folder or a checkpoint is expected", "generate", PROGRAM, "--prompt",
         "x");
    SAYS(1, "'/dev/null' is not a folder: a model folder or a checkpoint is expected", "generate", "/dev/null",
         "--prompt", "x");
    SAYS(1, "/nowhere/prompt", "generate", "/nowhere", "--prompt-file", "/nowhere/prompt");
    text = shell(f, 1, "echo | $FSDP generate $MODEL --prompt-file -");
    CHECK_CONTAINS(text, "--prompt-file: '-' holds no text");
    free(text);
    text = shell(f, 1, "echo hello | gzip | $FSDP generate $MODEL --prompt-file -");
    CHECK_CONTAINS(text, "--prompt-file: cannot read '-': it is gzip data: unpack it with 'gzip -d'");
    free(text);
    text = shell(f, 1, "printf 'a\\000b' | $FSDP generate $MODEL --prompt-file -");
    CHECK_CONTAINS(text, "--prompt-file: cannot read '-': it is not text: a NUL byte at offset 1");
    free(text);
}
