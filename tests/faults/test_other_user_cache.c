/* Another user may write to the folder in which the tokens of text are kept. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "data/token_cache.h"
#include "data/tokens.h"
#include "faults/other_user.h"
#include "format/garden.h"
#include "tokenizer/small.h"

/* ---- the cache of tokens ---- */

typedef struct cache {
    char *folder, *text, *name; /* the last: of the tokens, where nobody else has any */
    fsdp_tokenizer *tokenizer;
} cache;

static fsdp_status get(const cache *c, fsdp__cached_tokens *out)
{
    return fsdp__token_cache_get(c->tokenizer, (const char *const *)&c->text, 1, c->folder, true,
                                 &(fsdp_tokenize_options){.no_eos = true, .threads = 1}, out);
}

static cache cache_create(other_area *f)
{
    cache c = {.folder = other_open_folder(f, "cache"), .text = test_path(f->directory, "text.txt")};
    char *json = small_json(&(small_parts){.added_tokens = NULL}), *path = test_path(f->directory, "tokenizer.json");
    fsdp__cached_tokens tokens;

    test_write_file(path, json, strlen(json));
    test_write_file(c.text, "the thing", 9);
    CHECK_OK(fsdp_tokenizer_open(path, &c.tokenizer));
    CHECK_OK(get(&c, &tokens));
    c.name = strdup(strrchr(tokens.path, '/') + 1);
    CHECK_EQ(unlink(tokens.path), 0);
    fsdp__free(tokens.path);
    return c;
}

static void cache_free(cache *c)
{
    fsdp_tokenizer_close(c->tokenizer);
    free(c->name);
}

static bool plant_tokens(void *arg)
{
    const cache *c = arg;

    return other_plant(c->folder, c->name, "other tokens");
}

TEST_WITH(tokens_of_another_are_not_used, other_setup, other_teardown)
{
    cache c = cache_create(*state);
    fsdp__cached_tokens tokens;

    other_do(plant_tokens, &c);
    for (int again = 0; again < 2; again++) {
        CHECK_OK(get(&c, &tokens));
        CHECK_EQ(tokens.made, !again);
        CHECK_CONTAINS(tokens.path, "-user-0.bin");
        fsdp__free(tokens.path);
    }
    garden_check_file(c.folder, c.name, "other tokens");
    /* Nor where only the folder's owner writes: that is another user, too. */
    CHECK_EQ(chown(c.folder, OTHER, OTHER), 0);
    CHECK_EQ(chmod(c.folder, 0755), 0);
    CHECK_OK(get(&c, &tokens));
    CHECK(!tokens.made && strstr(tokens.path, "-user-0.bin"));
    fsdp__free(tokens.path);
    cache_free(&c);
}

static bool is_refused(void *arg)
{
    fsdp__cached_tokens tokens;

    return get(arg, &tokens) == FSDP_INVALID &&
           strstr(fsdp_last_error(),
                  ".bin' belongs to user 65533, and only tokens of your own or of root are used: copy it");
}

/* A third user's, for the other one, who cannot write there. */
TEST_WITH(a_cache_of_another_that_cannot_be_written_to_is_refused, other_setup, other_teardown)
{
    cache c = cache_create(*state);
    char *path = test_path(c.folder, c.name);

    other_do(plant_tokens, &c);
    CHECK_EQ(chown(path, OTHER - 1, OTHER), 0);
    CHECK_EQ(chown(c.folder, OTHER - 1, OTHER), 0);
    CHECK_EQ(chmod(c.folder, 0755), 0);
    other_do(is_refused, &c);
    cache_free(&c);
}

/* Made by this user, and then replaced before it is opened again. */
TEST_WITH(tokens_that_were_swapped_are_not_opened, other_setup, other_teardown)
{
    cache c = cache_create(*state);
    fsdp__cached_tokens made;
    fsdp_tokens *tokens = NULL;

    CHECK_OK(get(&c, &made));
    CHECK_OK(fsdp__tokens_open_own(made.path, &tokens));
    fsdp_tokens_close(tokens);
    CHECK_EQ(chown(made.path, OTHER, OTHER), 0); /* as whole as it was */
    CHECK_ERROR(fsdp__tokens_open_own(made.path, &tokens), FSDP_INVALID,
                ".bin' belongs to user 65534, or has a second name");
    CHECK_NULL(tokens);
    CHECK_EQ(unlink(made.path), 0);
    other_do(plant_tokens, &c);
    CHECK_ERROR(fsdp__tokens_open_own(made.path, &tokens), FSDP_INVALID,
                ".bin' belongs to user 65534, or has a second name");
    fsdp__free(made.path);
    cache_free(&c);
}

/* The other user makes the lock's file and holds it; returns the process, when it does. */
static pid_t hold_lock(const char *path)
{
    int ends[2];
    char byte;
    pid_t holder;

    CHECK_EQ(pipe(ends), 0);
    holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        int fd;

        other_become();
        fd = open(path, O_RDWR | O_CREAT, 0666);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    CHECK_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return holder;
}

TEST_OF(a_lock_of_another_stalls_nobody, other_setup, other_teardown, other_area *f)
{
    cache c = cache_create(f);
    char *lock = fsdp__sprintf("%s/%s.lock", c.folder, c.name), *letter = test_path(f->precious, "letter");
    fsdp__cached_tokens tokens;
    pid_t holder = hold_lock(lock);

    CHECK_ERROR(get(&c, &tokens), FSDP_INVALID,
                ".lock' belongs to user 65534, or has a second name, in a folder that others");
    CHECK_EQ(kill(holder, SIGKILL), 0);
    CHECK_EQ(waitpid(holder, NULL, 0), holder);
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(symlink(letter, lock), 0);
    CHECK_ERROR(get(&c, &tokens), FSDP_IO, ".lock': Too many levels of symbolic links");
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(mkfifo(lock, 0666), 0);
    CHECK_ERROR(get(&c, &tokens), FSDP_INVALID, ".lock' belongs to user 0");
    CHECK_EQ(unlink(lock), 0);
    CHECK_OK(get(&c, &tokens));
    CHECK(tokens.made && !strstr(tokens.path, "-user-"));
    other_check_precious(f);
    fsdp__free(tokens.path);
    fsdp__free(lock);
    cache_free(&c);
}

TEST_OF(making_tokens_changes_nothing_outside_of_the_cache, other_setup, other_teardown, other_area *f)
{
    cache c = cache_create(f);
    char lock[400], tokens[400];
    const char *names[] = {lock, tokens, NULL};
    other_swapper s = {.names = names, .area = f->area, .precious = f->precious};

    snprintf(lock, sizeof lock, "cache/%s.lock", c.name);
    snprintf(tokens, sizeof tokens, "cache/%s", c.name);
    other_swapper_start(&s);
    for (int tries = 0; other_goes_on(&s, tries); tries++) {
        fsdp__cached_tokens made;

        if (get(&c, &made) == FSDP_OK)
            (void)unlink(made.path); /* to be made again */
        fsdp__free(made.path);
    }
    other_swapper_stop(&s);
    other_check_precious(f);
    cache_free(&c);
}

TEST_FILE_IN_MEMORY(geteuid() != 0, "only root can be another user")
