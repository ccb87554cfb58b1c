/* Tokens of text are made once, and again when anything they are made of has changed. */
#include "data/token_cache.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include "base/alloc.h"
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
    free(json);
    free(path);
    return tokenizer;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);

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
    free(f->data);
    free(f->cache);
    test_directory_free(f->directory);
    free(f);
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

static int files_in(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void tokens_are_made_once(void **state)
{
    fixture *f = *state;
    static const fsdp_tokenize_options none = {0}, no_eos = {.no_eos = true}, parted = {.separator = "x"};

    CHECK(makes(f, f->tokenizer, &none));
    CHECK(!makes(f, f->tokenizer, &none));
    CHECK(makes(f, f->tokenizer, &no_eos));
    CHECK(makes(f, f->tokenizer, &parted));
    CHECK(!makes(f, f->tokenizer, &none));
    CHECK_EQ(files_in(f->cache), 3);
}

/* Its bytes may be those of a text whose tokens are there. */
static void a_name_that_is_none_of_its_content_is_refused(void **state)
{
    fixture *f = *state;
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached;

    CHECK(makes(f, f->tokenizer, &none));
    free(f->data);
    f->data = test_path(f->directory, "data.txt.xz");
    test_write_file(f->data, "the thing", 9);
    CHECK_ERROR(get(f, f->tokenizer, &none, &cached), FSDP_FORMAT,
                "its name ends in .xz, but its first bytes are those");
}

/* Of lines that were left out is told whoever finds the tokens, not who has made them alone. */
static void lines_that_were_left_out_are_told_again(void **state)
{
    fixture *f = *state;
    static const fsdp_tokenize_options none = {0}, skip = {.skip_bad_lines = true};
    fsdp__cached_tokens cached;

    free(f->data);
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

static void what_has_changed_is_made_again(void **state)
{
    fixture *f = *state;
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

static void one_makes_them_and_the_others_wait(void **state)
{
    fixture *f = *state;
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
    CHECK_EQ(files_in(f->cache), 1);
}

static void a_folder_that_cannot_be_written_is_named(void **state)
{
    fixture *f = *state;
    static const fsdp_tokenize_options none = {0};
    fsdp__cached_tokens cached;
    char *folder = f->cache;

    f->cache = f->data; /* a file */
    CHECK(get(f, f->tokenizer, &none, &cached) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), f->data);
    CHECK_NULL(cached.path);
    f->cache = folder;
    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status = get(f, f->tokenizer, &none, &cached);

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        if (status == FSDP_OK)
            unlink(cached.path);
        fsdp__free(cached.path);
    }
}

static void a_lack_of_memory_is_an_error(void **state)
{
    fixture *f = *state;
    fsdp_tokenize_options one = {.threads = 1};
    fsdp__cached_tokens cached;

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = get(f, f->tokenizer, &one, &cached);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__free(cached.path);
    }
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
TEST_MAIN(T(tokens_are_made_once), T(lines_that_were_left_out_are_told_again),
          T(a_name_that_is_none_of_its_content_is_refused), T(what_has_changed_is_made_again),
          T(one_makes_them_and_the_others_wait), T(a_folder_that_cannot_be_written_is_named),
          T(a_lack_of_memory_is_an_error))
