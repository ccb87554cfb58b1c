/* fsdp generate with what a folder may hold: a tokenizer, a checkpoint of any number of ranks, the newest of several.
 */
#include <sys/stat.h>

#include "base/text.h"
#include "cli/fixture.h"
#include "cli/saved.h"
#include "tokenizer/small.h"

static char *output_of(const fixture *f, int expected, const char *const *argv)
{
    program p = program_run(f->directory, expected, argv);
    char *output = strdup(p.output);

    return output;
}
#define OUTPUT(expected, ...) output_of(f, (expected), (const char *const[]){PROGRAM, "generate", __VA_ARGS__, NULL})

static void train(const fixture *f, const char *steps, const char *vocab_size)
{
    RUN(0, "train", f->config, steps, vocab_size);
}

/* ---- a tokenizer ---- */

/* The text of ids with commas between them. */
static char *decode(const fsdp_tokenizer *tokenizer, const char *ids)
{
    fsdp_token_list list = {.count = 0};
    int32_t all[64];
    size_t bytes;
    char *text;

    for (char *at = (char *)(uintptr_t)ids; *at && *at != '\n'; at += *at == ',') {
        CHECK(list.count < 64);
        all[list.count++] = (int32_t)strtol(at, &at, 10);
    }
    CHECK_OK(fsdp_tokenizer_decode(tokenizer, all, list.count, &(fsdp_decode_options){.skip_specials = true}, &text,
                                   &bytes));
    return text;
}

FIXTURE_TEST(text_goes_through_the_folders_tokenizer)
{
    static const small_parts parts = {
        .added_tokens = "[{\"id\": 270, \"content\": \"<|end|>\", \"special\": true, \"single_word\": false, "
                        "\"lstrip\": false, \"rstrip\": false, \"normalized\": false}]"};
    fsdp_tokenizer *tokenizer = small_tokenizer(&parts);
    char *json = small_json(&parts), *other = test_path(f->directory, "other"), *text, *ids, *decoded;

    train(f, "--training.steps=2", "--model.vocab_size=271");
    text = OUTPUT(1, f->model, "--prompt", "the in");
    CHECK_CONTAINS(text, "has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its 271 tokens");
    free(text);
    text = OUTPUT(0, f->model, "--prompt", "the in", "--tokenizer", "bytes", "--max-new-tokens", "300", "--temperature",
                  "900"); /* of any of 271 */
    CHECK_EQ(strncmp(text, "the in", 6), 0);
    for (const char *at = text; *at;) {
        uint32_t character;
        int bytes = fsdp__utf8_next(at, &character);

        CHECK(bytes > 0);
        at += bytes;
    }
    free(text);
    mkdir(other, 0777);
    test_write_text(other, "tokenizer.json", json);
    ids = OUTPUT(0, f->model, "--tokens", "116,257,32,259", "--max-new-tokens", "20", "--temperature", "3");
    decoded = decode(tokenizer, ids);
    text = OUTPUT(0, f->model, "--prompt", "the in", "--tokenizer", other, "--max-new-tokens", "20", "--temperature",
                  "3", "-n", "2");
    CHECK_EQ(text[strlen(text) - 1], '\n');
    text[strlen(text) - 1] = '\0';
    CHECK_STRING(text, decoded);
    test_write_text(f->model, "tokenizer.json", json);
    free(decoded);
    decoded = OUTPUT(0, f->model, "--prompt", "the in", "--max-new-tokens", "20", "--temperature", "3");
    decoded[strlen(decoded) - 1] = '\0';
    CHECK_STRING(decoded, text);
    fsdp_tokenizer_close(tokenizer);
    free(decoded);
    free(text);
    free(ids);
}

/* ---- checkpoints ---- */

FIXTURE_TEST(a_checkpoint_is_read_like_a_folder)
{
    char *folder = test_path(f->directory, "runs"), *step = test_path(f->directory, "runs/step-5"), *first, *other;
    saved s = {.model = f->model, .folder = folder, .step = 5, .factor = 1};

    train(f, "--training.steps=12", "--training.seed=3");
    saved_make(3, &s);
    first = OUTPUT(0, folder, "--prompt", "The", "--max-new-tokens", "16", "--temperature", "2");
    CHECK_EQ(strncmp(first, "The", 3), 0);
    other = OUTPUT(0, step, "--prompt", "The", "--max-new-tokens", "16", "--temperature", "2", "-n", "2");
    CHECK_STRING(other, first);
    free(other);
    s.step = 10; /* the newest counts */
    s.factor = 0;
    saved_make(1, &s);
    other = OUTPUT(0, folder, "--prompt", "The", "--max-new-tokens", "16", "--temperature", "2", "-n", "2");
    CHECK(strcmp(other, first) != 0);
    free(other);
    other = OUTPUT(0, step, "--prompt", "The", "--max-new-tokens", "16", "--temperature", "2");
    CHECK_STRING(other, first);
    free(other);
    free(first);
}

FIXTURE_TEST(a_checkpoint_that_does_not_fit_is_refused)
{
    char *folder = test_path(f->directory, "runs"), *manifest = test_path(f->directory, "runs/step-5/manifest.json");
    saved s = {.model = f->model, .folder = folder, .step = 5, .factor = 1};
    char *output;

    output = OUTPUT(1, folder, "--prompt", "x");
    CHECK_CONTAINS(output, "there is no '");
    CHECK_CONTAINS(output, "/runs");
    free(output);
    train(f, "--training.steps=1", "--training.seed=3");
    saved_make(2, &s);
    test_write_file(manifest, "{", 1);
    output = OUTPUT(1, folder, "--prompt", "x", "-n", "2");
    CHECK_CONTAINS(output, "manifest.json");
    free(output);
}
