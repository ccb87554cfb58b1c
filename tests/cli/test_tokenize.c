/* fsdp tokenize: text to a file of tokens, and what it says when it cannot. */
#include "cli/fixture.h"
#include "fsdp/data.h"
#include "tokenizer/small.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"

static void write_tokenizer(const fixture *f)
{
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path = test_path(f->directory, "tokenizer.json");

    test_write_file(path, json, strlen(json));
}

FIXTURE_TEST(text_becomes_a_file_of_tokens)
{
    char *text = test_path(f->directory, "a.txt"), *out = test_path(f->directory, "out.bin");
    char *lines = test_path(f->directory, "a.jsonl");
    fsdp_tokens *tokens = NULL;

    write_tokenizer(f);
    test_write_file(text, "the%12\n%ing", 11);
    SAYS(0, "out.bin: 7 tokens (uint16) of 2 documents", "tokenize", text, "-o", out, "--tokenizer", f->directory,
         "--separator", "\\n%", "--threads", "2");
    CHECK_OK(fsdp_tokens_open((const char *const *)&out, 1, FSDP_TOKENS_AUTO, &tokens));
    CHECK_EQ(fsdp_tokens_count(tokens), 7);
    fsdp_tokens_close(tokens);
    SAYS(0, "1 document", "tokenize", text, "-o", out, "--tokenizer", f->directory, "--no-eos");
    SAYS(0, "/s, in place of an earlier one\n", "tokenize", text, "-o", out, "--tokenizer", f->directory, "--no-eos");
    SAYS(1, "a.txt' exists and is not a token file that fsdp made", "tokenize", f->data, "-o", text, "--tokenizer",
         f->directory);
    SAYS(1, "is one of the files that are read", "tokenize", text, "-o", text, "--tokenizer", f->directory);
    test_write_file(lines, "{\"text\": \"the\"}\n{\"text\": 1}\n", 28);
    SAYS(1, "a.jsonl': line 2: field 'text' is not a string", "tokenize", lines, "-o", out, "--tokenizer",
         f->directory);
    SAYS(0, "warning: 1 of 2 lines left out: first at ", "tokenize", lines, "-o", out, "--tokenizer", f->directory,
         "--on-bad-line", "skip");
    test_write_file(text, "BZh91AY&SY\1", 11);
    SAYS(1, "a.txt': it is bzip2 data: unpack it with 'bzip2 -d'", "tokenize", text, "-o", out, "--tokenizer",
         f->directory, "--replace-invalid");
}

FIXTURE_TEST(a_wrong_command_line_is_said_to_be)
{
    SAYS(0, "fsdp tokenize IN... -o OUT.bin --tokenizer FOLDER", "tokenize", "--help");
    SAYS(2, "tokenize: no file of text given", "tokenize", "-o", "x.bin");
    SAYS(2, "tokenize: -o OUT.bin, or --show N, is missing", "tokenize", f->data);
    SAYS(2, "tokenize: --tokenizer FOLDER is missing", "tokenize", f->data, "-o", "x.bin");
    SAYS(2, "--threads", "tokenize", f->data, "-o", "x.bin", "--tokenizer", f->directory, "--threads", "0");
    SAYS(2, "bytes of text need no file of tokens", "tokenize", f->data, "-o", "x.bin", "--tokenizer", "bytes");
    SAYS(1, "neither a tokenizer.json nor a tokenizer.model nor a vocab.json", "tokenize", f->data, "-o", "x.bin",
         "--tokenizer", f->directory);
    SAYS(1, "fsdp: --tokenizer: cannot open 'nowhere'", "tokenize", f->data, "-o", "x.bin", "--tokenizer", "nowhere");
}
