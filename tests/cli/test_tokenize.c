/* fsdp tokenize: text to a file of tokens, and what it says when it cannot. */
#include "cli/fixture.h"
#include "fsdp/data.h"
#include "tokenizer/small.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"
#define SAYS(expected, part, ...)                                                                                 \
    do {                                                                                                          \
        program p_ =                                                                                              \
            program_run(f->directory, (expected), (const char *const[]){PROGRAM, "tokenize", __VA_ARGS__, NULL}); \
        CHECK_CONTAINS(p_.output, (part));                                                                        \
        program_free(&p_);                                                                                        \
    } while (0)

static void write_tokenizer(const fixture *f)
{
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path = test_path(f->directory, "tokenizer.json");

    test_write_file(path, json, strlen(json));
    free(path);
    free(json);
}

FIXTURE_TEST(text_becomes_a_file_of_tokens)
{
    fixture *f = *state;
    char *text = test_path(f->directory, "a.txt"), *out = test_path(f->directory, "out.bin");
    char *lines = test_path(f->directory, "a.jsonl");
    fsdp_tokens *tokens = NULL;

    write_tokenizer(f);
    test_write_file(text, "the%12\n%ing", 11);
    SAYS(0, "out.bin: 7 tokens (uint16) of 2 documents", text, "-o", out, "--tokenizer", f->directory, "--separator",
         "\\n%", "--threads", "2");
    CHECK_OK(fsdp_tokens_open((const char *const *)&out, 1, FSDP_TOKENS_AUTO, &tokens));
    CHECK_EQ(fsdp_tokens_count(tokens), 7);
    fsdp_tokens_close(tokens);
    SAYS(0, "1 document", text, "-o", out, "--tokenizer", f->directory, "--no-eos");
    SAYS(1, "a.txt' exists and is not a token file that fsdp made", f->data, "-o", text, "--tokenizer", f->directory);
    SAYS(1, "is one of the files that are read", text, "-o", text, "--tokenizer", f->directory);
    test_write_file(lines, "{\"text\": \"the\"}\n{\"text\": 1}\n", 28);
    SAYS(1, "a.jsonl': line 2: field 'text' is not a string", lines, "-o", out, "--tokenizer", f->directory);
    SAYS(0, "warning: 1 of 2 lines left out: first at ", lines, "-o", out, "--tokenizer", f->directory, "--on-bad-line",
         "skip");
    test_write_file(text, "BZh91AY&SY\1", 11);
    SAYS(1, "a.txt': it is bzip2 data: unpack it with 'bzip2 -d'", text, "-o", out, "--tokenizer", f->directory,
         "--replace-invalid");
    free(lines);
    free(text);
    free(out);
}

FIXTURE_TEST(a_wrong_command_line_is_said_to_be)
{
    fixture *f = *state;

    SAYS(0, "fsdp tokenize IN... -o OUT.bin --tokenizer FOLDER", "--help");
    SAYS(2, "tokenize: no file of text given", "-o", "x.bin");
    SAYS(2, "tokenize: -o OUT.bin is missing", f->data);
    SAYS(2, "tokenize: --tokenizer FOLDER is missing", f->data, "-o", "x.bin");
    SAYS(2, "--threads", f->data, "-o", "x.bin", "--tokenizer", f->directory, "--threads", "0");
    SAYS(2, "bytes of text need no file of tokens", f->data, "-o", "x.bin", "--tokenizer", "bytes");
    SAYS(1, "neither a tokenizer.json nor a tokenizer.model nor a vocab.json", f->data, "-o", "x.bin", "--tokenizer",
         f->directory);
}
