/* Tokens of text are made once, and again when anything they are made of has changed. */
#include "data/token_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "data/token_sums.h"
#include "fsdp/data.h"
#include "support/calls.h"
#include "tokenizer/small.h"

#define ADDED(text) "[{\"content\": \"" text "\", \"id\": 270, \"special\": true}]"

typedef struct fixture {
    char *directory, *data, *cache;
    fsdp_tokenizer *tokenizer;
} fixture;

static fsdp_tokenizer *open_tokenizer(const fixture *f, const char *added)
{
    char *json = small_json(&(small_parts){.added_tokens = added}), *path = test_path(f->directory, "tokenizer.json");
    fsdp_tokenizer *tokenizer = NULL;

    test_write_file(path, json, strlen(json));
    CHECK_OK(fsdp_tokenizer_open(path, &tokenizer));
    return tokenizer;
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->cache = test_path(f->directory, "a/b/cache");
    f->tokenizer = open_tokenizer(f, ADDED("<|endoftext|>"));
    test_write_file(f->data, "the thing", 9);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_tokenizer_close(f->tokenizer);
    return 0;
}

static fsdp_status get(const fixture *f, const fsdp_tokenizer *tokenizer, const fsdp_tokenize_options *options,
                       fsdp__cached_tokens *out)
{
    return fsdp__token_cache_get(tokenizer, (const char *const *)&f->data, 1, f->cache, true, options, out);
}

/* Whether the tokens had to be made. */
static bool makes(const fixture *f, const fsdp_tokenizer *tokenizer, const fsdp_tokenize_options *options)
{
    fsdp__cached_tokens cached;

    CHECK_OK(get(f, tokenizer, options, &cached));
    CHECK_EQ(access(cached.path, R_OK), 0);
    fsdp__free(cached.path);
    return cached.made;
}

TEST_OF(tokens_are_made_once, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0}, no_eos = {.no_eos = true}, parted = {.separator = "x"};

    CHECK(makes(f, f->tokenizer, &none));
    CHECK(!makes(f, f->tokenizer, &none));
    CHECK(makes(f, f->tokenizer, &no_eos));
    CHECK(makes(f, f->tokenizer, &parted));
    CHECK(!makes(f, f->tokenizer, &none));
    CHECK_EQ(test_names_in(f->cache), 3);
}

/* Its bytes may be those of a text whose tokens are there. */
TEST_OF(a_name_that_is_none_of_its_content_is_refused, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached;

    CHECK(makes(f, f->tokenizer, &none));
    f->data = test_path(f->directory, "data.txt.xz");
    test_write_file(f->data, "the thing", 9);
    CHECK_ERROR(get(f, f->tokenizer, &none, &cached), FSDP_FORMAT,
                "its name ends in .xz, but no such file has its first bytes");
}

/* Of lines that were left out is told whoever finds the tokens, not who has made them alone. */
TEST_OF(lines_that_were_left_out_are_told_again, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0}, skip = {.skip_bad_lines = true};
    fsdp__cached_tokens cached;

    f->data = test_path(f->directory, "data.jsonl");
    test_write_file(f->data, "{\"text\": \"he\"}\n{\n", 17);
    CHECK(get(f, f->tokenizer, &none, &cached) != FSDP_OK);
    for (int time = 0; time < 2; time++) {
        CHECK_OK(get(f, f->tokenizer, &skip, &cached));
        CHECK_EQ(cached.made, time == 0);
        CHECK_CONTAINS(cached.left_out, "1 of 2 lines left out: first at ");
        CHECK_CONTAINS(cached.left_out, "data.jsonl:2: no key in quotes at column 2");
        fsdp__free(cached.path);
    }
    test_write_file(f->data, "{\"text\": \"he\"}\n", 15);
    CHECK(makes(f, f->tokenizer, &skip));
    CHECK(makes(f, f->tokenizer, &none));
    CHECK_OK(get(f, f->tokenizer, &none, &cached));
    CHECK_STRING(cached.left_out, "");
    fsdp__free(cached.path);
}

TEST_OF(what_has_changed_is_made_again, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    fsdp_tokenizer *other;

    CHECK(makes(f, f->tokenizer, &none));
    test_write_file(f->data, "the things", 10);
    CHECK(makes(f, f->tokenizer, &none));
    test_write_file(f->data, "the thinga", 10); /* as long, and maybe in the same second */
    CHECK(makes(f, f->tokenizer, &none));
    test_write_file(f->data, "the thing", 9);
    CHECK(!makes(f, f->tokenizer, &none));
    other = open_tokenizer(f, ADDED("</s>"));
    CHECK(makes(f, other, &none));
    CHECK(!makes(f, other, &none));
    fsdp_tokenizer_close(other);
}

static void *get_in_thread(void *arg)
{
    fixture *f = arg;
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached;
    bool made = fsdp__token_cache_get(f->tokenizer, (const char *const *)&f->data, 1, f->cache, false, &none,
                                      &cached) == FSDP_OK &&
                cached.made;

    fsdp__free(cached.path);
    return made ? f : NULL;
}

TEST_OF(one_makes_them_and_the_others_wait, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    pthread_t threads[3];
    void *made;

    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, get_in_thread, f), 0);
    CHECK(makes(f, f->tokenizer, &none));
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(pthread_join(threads[i], &made), 0);
        CHECK_NULL(made);
    }
    CHECK_EQ(test_names_in(f->cache), 1);
}

#define KEY "cannot keep tokens of text in data.cache (fsdp eval: --cache; name another folder): "

TEST_OF(a_folder_that_cannot_be_written_is_named, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached;
    char *folder = f->cache, file[700];

    f->cache = f->data; /* a file */
    CHECK(get(f, f->tokenizer, &none, &cached) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), f->data);
    CHECK_CONTAINS(fsdp_last_error(), KEY);
    CHECK_NULL(cached.path);
    f->cache = fsdp__sprintf("%s/below/it", f->data);
    CHECK(get(f, f->tokenizer, &none, &cached) != FSDP_OK);
    fsdp__free(fsdp__take(&f->cache));
    CHECK_CONTAINS(fsdp_last_error(), KEY "cannot make directory '");
    snprintf(file, sizeof file, "/below/it': '%s' is a file, not a folder", f->data);
    CHECK_CONTAINS(fsdp_last_error(), file);
    f->cache = (char[]){"/proc/none"}; /* where nobody makes folders */
    CHECK(get(f, f->tokenizer, &none, &cached) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), KEY "cannot make directory '");
    f->cache = folder;
    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status = get(f, f->tokenizer, &none, &cached);

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        if (status == FSDP_OK)
            unlink(cached.path);
        fsdp__free(cached.path);
    }
}

TEST_OF(what_cannot_be_examined_is_told, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached, again;
    char lock[600];

    CHECK_OK(get(f, f->tokenizer, &none, &cached));
    snprintf(lock, sizeof lock, "%s.lock", cached.path);
    CHECK_EQ(unlink(cached.path), 0);
    for (int i = 0; i < 2; i++) {
        char message[700];
        fsdp_status status;

        snprintf(message, sizeof message, "cannot examine '%s': Input/output error", i == 0 ? lock : f->cache);
        test_write_file(lock, "", 0);
        test_fail_fstat(i == 0 ? lock : f->cache);
        status = get(f, f->tokenizer, &none, &again);
        test_fail_fstat(NULL);
        CHECK_ERROR(status, FSDP_IO, message);
    }
    fsdp__free(cached.path);
}

TEST_OF(a_lack_of_memory_is_an_error, setup, teardown, fixture *f)
{
    fsdp_tokenize_options one = {.threads = 1};
    fsdp__cached_tokens cached;

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = get(f, f->tokenizer, &one, &cached);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__free(cached.path);
    }
}

/* ---- damage ---- */

enum {
    LINES = 40000,
    BLOCK_TOKENS = FSDP__SUM_BLOCK_BYTES / 2
};

/* Text of several blocks of tokens, no two of which are alike. */
static void write_long_text(const fixture *f)
{
    FILE *file = fopen(f->data, "w");

    for (int i = 0; i < LINES; i++)
        fprintf(file, "the %d\n", 7 * i);
    fclose(file);
}

/* The file of the tokens, which are there or are made. free() what it holds, and fsdp__free its path. */
static char *get_whole(const fixture *f, fsdp__cached_tokens *out, size_t *bytes)
{
    static const fsdp_tokenize_options none = {0};
    char *data = NULL, *copy;

    CHECK_OK(get(f, f->tokenizer, &none, out));
    CHECK_OK(fsdp__file_read(out->path, SIZE_MAX, &data, bytes));
    copy = malloc(*bytes);
    memcpy(copy, data, *bytes);
    fsdp__free(data);
    return copy;
}

/* With such content in the place of the whole file the tokens are made anew, once. */
static void check_remade(const fixture *f, const char *path, const char *content, size_t content_bytes,
                         const char *whole, size_t whole_bytes)
{
    for (int time = 0; time < 2; time++) {
        fsdp__cached_tokens cached;
        size_t bytes;
        char *data;

        if (time == 0)
            test_write_file(path, content, content_bytes);
        data = get_whole(f, &cached, &bytes);
        CHECK_EQ(cached.made, time == 0);
        CHECK_EQ(cached.damaged, time == 0);
        CHECK_STRING(cached.path, path);
        CHECK_EQ(bytes, whole_bytes);
        CHECK_BYTES(data, whole, whole_bytes);
        free(data);
        fsdp__free(cached.path);
    }
}

TEST_OF(a_damaged_file_is_made_anew, setup, teardown, fixture *f)
{
    fsdp__cached_tokens cached;
    size_t bytes, places[] = {0, 4, 8, 16, 32, 56, 64, 72, 80, 1023, 1024, 1024 + FSDP__SUM_BLOCK_BYTES, 0, 0, 0};
    size_t count = sizeof places / sizeof *places;
    char *whole, *other;

    write_long_text(f);
    whole = get_whole(f, &cached, &bytes);
    CHECK(bytes > 1024 + 3 * FSDP__SUM_BLOCK_BYTES);
    other = calloc(1, bytes + 9);
    places[count - 3] = bytes / 2; /* and in the table */
    places[count - 2] = bytes - 9;
    places[count - 1] = bytes - 1;
    for (size_t i = 0; i < count; i++) {
        memcpy(other, whole, bytes);
        other[places[i]] ^= 1;
        check_remade(f, cached.path, other, bytes, whole, bytes);
    }
    memcpy(other, whole, bytes);
    memset(other + 2000, 0, bytes - 4000);
    check_remade(f, cached.path, other, bytes, whole, bytes); /* zeros inside */
    check_remade(f, cached.path, whole, bytes - 1, whole, bytes);
    check_remade(f, cached.path, whole, bytes - 2 * FSDP__SUM_BLOCK_BYTES, whole, bytes);
    check_remade(f, cached.path, whole, 1024, whole, bytes);
    check_remade(f, cached.path, whole, 100, whole, bytes);
    check_remade(f, cached.path, whole, 0, whole, bytes);
    memset(other, 0, bytes + 9);
    check_remade(f, cached.path, other, bytes, whole, bytes);
    memcpy(other, whole, bytes);
    check_remade(f, cached.path, other, bytes + 8, whole, bytes); /* more behind it */
    check_remade(f, cached.path, other, bytes + 9, whole, bytes);
    free(other);
    free(whole);
    fsdp__free(cached.path);
}

/* Whole, but of another text; and tokens that were not made for the cache. */
TEST_OF(what_has_another_name_is_made_anew, setup, teardown, fixture *f)
{
    fsdp__cached_tokens first, second;
    size_t first_bytes, second_bytes, bytes;
    char *a, *b, *plain, *out = test_path(f->directory, "plain.bin");

    a = get_whole(f, &first, &first_bytes);
    CHECK_OK(fsdp_tokenize_files(f->tokenizer, (const char *const *)&f->data, 1, out, NULL, NULL));
    CHECK_OK(fsdp__file_read(out, SIZE_MAX, &plain, &bytes));
    check_remade(f, first.path, plain, bytes, a, first_bytes);
    test_write_file(f->data, "the things", 10);
    b = get_whole(f, &second, &second_bytes);
    CHECK(strcmp(first.path, second.path) != 0);
    check_remade(f, second.path, a, first_bytes, b, second_bytes);
    free(a);
    free(b);
    fsdp__free(plain);
    fsdp__free(first.path);
    fsdp__free(second.path);
}

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte;

    CHECK_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Who has the file open finds the damage where it comes to it, keeps its mapping, and what it has seen before. */
TEST_OF(damage_behind_an_open_file_is_found_where_it_is_read, setup, teardown, fixture *f)
{
    fsdp__cached_tokens cached, again;
    fsdp_tokens *tokens = NULL;
    struct stat before, after;
    int32_t token;
    size_t bytes;

    write_long_text(f);
    free(get_whole(f, &cached, &bytes));
    CHECK_EQ(stat(cached.path, &before), 0);
    CHECK_OK(fsdp_tokens_open((const char *const *)&cached.path, 1, FSDP_TOKENS_BINARY, &tokens));
    CHECK_OK(fsdp_tokens_read(tokens, BLOCK_TOKENS, 1, &token));
    flip(cached.path, 1024 + FSDP__SUM_BLOCK_BYTES + 70);     /* in the block that was looked at, */
    flip(cached.path, 1024 + 2 * FSDP__SUM_BLOCK_BYTES + 70); /* and in the one behind it */
    CHECK_OK(fsdp_tokens_read(tokens, 2 * BLOCK_TOKENS - 1, 1, &token));
    CHECK_ERROR(fsdp_tokens_read(tokens, 2 * BLOCK_TOKENS - 1, 2, &token), FSDP_FORMAT,
                "the tokens at offset 132096 (a block of 65536 bytes) do not fit their checksum");
    free(get_whole(f, &again, &bytes));
    CHECK(again.made && again.damaged);
    CHECK_EQ(stat(cached.path, &after), 0);
    CHECK(before.st_ino != after.st_ino); /* replaced, not written over: a mapping that shrinks kills */
    CHECK_EQ(fsdp_tokens_count(tokens), (int64_t)again.summary.tokens);
    CHECK_OK(fsdp_tokens_read(tokens, 0, 1, &token));
    fsdp_tokens_close(tokens);
    fsdp__free(again.path);
    fsdp__free(cached.path);
}

TEST_OF(a_damaged_file_that_cannot_be_replaced_is_an_error, setup, teardown, fixture *f)
{
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached, again;
    size_t bytes;

    free(get_whole(f, &cached, &bytes));
    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status;

        test_write_file(cached.path, "x", 1);
        status = get(f, f->tokenizer, &none, &again);

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        if (status == FSDP_OK)
            CHECK(again.made && again.damaged);
        else
            CHECK_CONTAINS(fsdp_last_error(), "are damaged, and could not be made again");
        fsdp__free(again.path);
    }
    fsdp__free(cached.path);
}

/* ---- a text that changes meanwhile ---- */

enum {
    LONG_BYTES = 4 << 20 /* more than is read before the first tokens are written */
};

/* What is done to one of two files once the first tokens are written. */
typedef struct edit {
    const char *path, *a, *b;
    off_t at, end; /* a byte there becomes another, and the file ends there; 0: it ends where it did */
    bool done;
} edit;

static void change(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    edit *e = arg;
    int fd = e->done ? -1 : open(e->path, O_WRONLY | O_CLOEXEC);

    (void)bytes;
    (void)all_bytes;
    (void)tokens;
    if (e->done)
        return;
    e->done = true;
    CHECK_EQ(pwrite(fd, "g", 1, e->at), 1);
    if (e->end > 0)
        CHECK_EQ(ftruncate(fd, e->end), 0);
    close(fd);
}

/* A long text and a short one behind it. */
static void write_texts(const char *a, const char *b)
{
    char *text = malloc(LONG_BYTES);

    for (int i = 0; i < LONG_BYTES; i++)
        text[i] = "the thing\n"[i % 10];
    test_write_file(a, text, LONG_BYTES);
    test_write_file(b, "the thing", 9);
    free(text);
}

/* With this edit meanwhile tokens are made as if there were none, or refused and not kept. */
static void check_edit(const fixture *f, edit e, bool refused, const char *whole, size_t whole_bytes)
{
    fsdp_tokenize_options options = {.threads = 1, .progress = change, .progress_arg = &e};
    fsdp__cached_tokens cached;
    char message[600], *data;
    fsdp_status status = get(f, f->tokenizer, &options, &cached);
    size_t bytes;

    CHECK(e.done);
    snprintf(message, sizeof message, "'%s' changed while it was tokenized", e.path);
    if (refused)
        CHECK_ERROR(status, FSDP_IO, message);
    else
        CHECK_OK(status);
    fsdp__free(cached.path);
    write_texts(e.a, e.b);
    data = get_whole(f, &cached, &bytes);
    CHECK_EQ(cached.made, refused);
    CHECK_EQ(bytes, whole_bytes);
    CHECK_BYTES(data, whole, whole_bytes);
    CHECK_EQ(unlink(cached.path), 0);
    fsdp__free(cached.path);
    free(data);
}

TEST_OF(tokens_are_of_the_text_that_their_name_stands_for, setup, teardown, fixture *f)
{
    char *folder = test_path(f->directory, "texts"), *a, *b, *whole;
    fsdp__cached_tokens cached;
    size_t bytes;

    CHECK_EQ(mkdir(folder, 0777), 0);
    a = test_path(folder, "a.txt");
    b = test_path(folder, "b.txt");
    f->data = folder;
    write_texts(a, b);
    whole = get_whole(f, &cached, &bytes);
    CHECK_EQ(unlink(cached.path), 0);
    fsdp__free(cached.path);
    check_edit(f, (edit){a, a, b, .at = LONG_BYTES - 11}, true, whole, bytes);
    check_edit(f, (edit){a, a, b, .at = LONG_BYTES - 11, .end = LONG_BYTES - 5}, true, whole, bytes);
    check_edit(f, (edit){a, a, b, .at = LONG_BYTES}, true, whole, bytes);
    check_edit(f, (edit){b, a, b, .at = 0}, true, whole, bytes);
    check_edit(f, (edit){a, a, b, .at = 0}, false, whole, bytes); /* it has been read already */
    free(whole);
}
