/* support/ranks.c - ranks as threads. */
#include "support/ranks.h"

#include <pthread.h>

#include "device/races.h"

enum {
    MAX_WORLD = 64
};

typedef struct rank_thread {
    pthread_t thread;
    fsdp_context *context;
    test_rank_body body;
    void *arg;
    test_thread test;
    volatile bool failed;
    bool races;      /* on purpose */
    char race[1024]; /* that was found; "": none */
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *rank = arg;

    test_enter_thread(&rank->test);
    if (setjmp(rank->test.escape) == 0) {
        rank->body(rank->context, rank->arg);
        CHECK_EQ(test_live_bytes(rank->context), 0);
        if (!rank->races)
            test_check_races(rank->context);
    } else {
        rank->failed = true;
        fsdp_abort(rank->context, rank->test.message);
    }
    test_leave_thread();
    (void)fsdp__races_found(rank->context, rank->race, sizeof rank->race);
    /* A rank that jumped out left its objects behind; they may still point to the context. */
    if (!rank->failed)
        fsdp_context_free(rank->context);
    return NULL;
}

/* `race`: where the one goes that must be found; NULL: none must be. */
static int run_ranks(int world, test_rank_body body, void *arg, char *text, size_t bytes, char *race, size_t race_bytes)
{
    static const fsdp_context_options options = {.threads = 1};
    fsdp_context *contexts[MAX_WORLD] = {NULL};
    rank_thread *ranks;
    int failures = 0;
    size_t used = 0;

    text[0] = '\0';
    CHECK(world >= 1 && world <= MAX_WORLD);
    ranks = calloc((size_t)world, sizeof *ranks);
    CHECK(ranks != NULL);
    CHECK_OK(fsdp_context_create_threads(world, &options, contexts));
    for (int i = 0; i < world && race; i++)
        CHECK_OK(fsdp__races_check(contexts[i], i > 0 ? contexts[0] : NULL));
    if (!race)
        test_watch_races(contexts, world);
    for (int i = 0; i < world; i++) {
        ranks[i].context = contexts[i];
        ranks[i].body = body;
        ranks[i].arg = arg;
        ranks[i].races = race != NULL;
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
            TEST_FAIL("cannot start the thread of rank %d", i);
    }
    for (int i = 0; i < world; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < world; i++)
        if (ranks[i].failed) {
            failures++;
            if (used < bytes)
                used +=
                    (size_t)snprintf(text + used, bytes - used, "rank %d of %d: %s\n", i, world, ranks[i].test.message);
        }
    /* Who ended last knows it. */
    for (int i = 0; i < world && race; i++)
        if (i == 0 || ranks[i].race[0])
            snprintf(race, race_bytes, "%s", ranks[i].race);
    free(ranks);
    return failures;
}

int test_try_ranks(int world, test_rank_body body, void *arg, char *text, size_t bytes)
{
    return run_ranks(world, body, arg, text, bytes, NULL, 0);
}

static void fail_if_any(int failures, int world, const char *text)
{
    if (failures == 0)
        return;
    print_error("%s", text);
    TEST_FAIL("%d of %d ranks failed", failures, world);
}

void test_run_ranks(int world, test_rank_body body, void *arg)
{
    char text[8192];

    fail_if_any(run_ranks(world, body, arg, text, sizeof text, NULL, 0), world, text);
}

void test_run_racing_ranks(int world, test_rank_body body, void *arg, char *race, size_t bytes)
{
    char text[8192];

    fail_if_any(run_ranks(world, body, arg, text, sizeof text, race, bytes), world, text);
}
