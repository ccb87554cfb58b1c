/* text_fixture.h - a folder with a small tokenizer (tokenizer/small.h, and an end-of-text token), and texts in it. */
#pragma once

#include "fsdp/tokenize.h"
#include "support/test.h"

enum {
    EOS = 270
};

typedef struct text_fixture {
    char *directory, *out;
    fsdp_tokenizer *tokenizer; /* open */
} text_fixture;

text_fixture text_fixture_make(void);
void text_fixture_free(text_fixture *f);
void text_write(const text_fixture *f, const char *name, const void *data, size_t bytes);
/* Of the file of that name, to f->out. */
fsdp_status text_tokenize(const text_fixture *f, const char *name, const fsdp_tokenize_options *options,
                          fsdp_tokenize_summary *summary);
/* It fails, and says this. */
void text_refused(const text_fixture *f, const char *name, const fsdp_tokenize_options *options, const char *part);
/* f->out holds these; the list ends with -1. */
void text_tokens(const text_fixture *f, const int32_t *expected);
#define CHECK_TOKENS(...) text_tokens(&f, (const int32_t[]){__VA_ARGS__, -1})
