/* text_fixture.c - text becomes tokens, which are compared. */
#include "data/text_fixture.h"

#include "fsdp/data.h"
#include "tokenizer/small.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"
void text_write(const text_fixture *f, const char *name, const void *data, size_t bytes)
{
    char *path = test_path(f->directory, name);

    test_write_file(path, data, bytes);
}

text_fixture text_fixture_make(void)
{
    text_fixture f = {.directory = test_directory()};
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path = test_path(f.directory, "tokenizer.json");

    f.out = test_path(f.directory, "out.bin");
    test_write_file(path, json, strlen(json));
    CHECK_OK(fsdp_tokenizer_open(f.directory, &f.tokenizer));
    return f;
}

void text_fixture_free(text_fixture *f)
{
    fsdp_tokenizer_close(f->tokenizer);
    test_directory_free(f->directory);
}

fsdp_status text_tokenize(const text_fixture *f, const char *name, const fsdp_tokenize_options *options,
                          fsdp_tokenize_summary *summary)
{
    char *path = test_path(f->directory, name);
    fsdp_status status = fsdp_tokenize_files(f->tokenizer, (const char *const *)&path, 1, f->out, options, summary);

    return status;
}

void text_refused(const text_fixture *f, const char *name, const fsdp_tokenize_options *options, const char *part)
{
    fsdp_tokenize_summary summary;

    CHECK(text_tokenize(f, name, options, &summary) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), part);
}

void text_tokens(const text_fixture *f, const int32_t *expected)
{
    fsdp_tokens *tokens = NULL;
    int64_t count = 0;

    CHECK_OK(fsdp_tokens_open((const char *const *)&f->out, 1, FSDP_TOKENS_AUTO, &tokens));
    while (expected[count] >= 0) {
        int32_t id = -1;

        CHECK_OK(fsdp_tokens_read(tokens, count, 1, &id));
        CHECK_EQ(id, expected[count++]);
    }
    CHECK_EQ(fsdp_tokens_count(tokens), count);
    fsdp_tokens_close(tokens);
}
