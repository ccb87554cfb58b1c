/* support/ranks.c - ranks as threads. */
#include "support/ranks.h"

#include <pthread.h>

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
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *rank = arg;

    test_enter_thread(&rank->test);
    if (setjmp(rank->test.escape) == 0) {
        rank->body(rank->context, rank->arg);
        CHECK_EQ(test_live_bytes(rank->context), 0);
    } else {
        rank->failed = true;
        fsdp_abort(rank->context, rank->test.message);
    }
    test_leave_thread();
    /* A rank that jumped out left its objects behind; they may still point to the context. */
    if (!rank->failed)
        fsdp_context_free(rank->context);
    return NULL;
}

int test_try_ranks(int world, test_rank_body body, void *arg, char *text, size_t bytes)
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
    for (int i = 0; i < world; i++) {
        ranks[i].context = contexts[i];
        ranks[i].body = body;
        ranks[i].arg = arg;
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
    free(ranks);
    return failures;
}

void test_run_ranks(int world, test_rank_body body, void *arg)
{
    char text[8192];
    int failures = test_try_ranks(world, body, arg, text, sizeof text);

    if (failures == 0)
        return;
    print_error("%s", text);
    TEST_FAIL("%d of %d ranks failed", failures, world);
}
