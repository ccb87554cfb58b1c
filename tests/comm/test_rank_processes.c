/* Ranks that are processes (support/processes.h): what they share, and what is said of those that fail or die. */
#include <signal.h>
#include <unistd.h>

#include "support/ranks.h"

static int main_with_processes(void)
{
    setenv("FSDP_TEST_RANKS", "processes", 1);
    return test_run_cases(__FILE__);
}

TEST_FILE(main_with_processes)

enum {
    WORLD = 4
};

typedef struct seen {
    pid_t processes[WORLD];
    int *made[WORLD]; /* by each rank */
    int alone;        /* how many are */
} seen;

static int own; /* of each process */

static void look(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), next = (rank + 1) % WORLD;
    seen *s = arg;

    s->processes[rank] = getpid();
    s->made[rank] = CHECK_PTR(malloc(sizeof(int)));
    *s->made[rank] = rank;
    own++;
    test_meet();
    CHECK_EQ(*s->made[next], next);
    __atomic_fetch_add(&s->alone, own == 1, __ATOMIC_RELAXED);
    test_meet();
    free(s->made[next]);
}

TEST(ranks_are_processes_that_share_what_a_case_has)
{
    seen s = {0};

    test_run_ranks(WORLD, look, &s);
    CHECK_EQ(s.processes[0], getpid());
    for (int r = 0; r < WORLD; r++)
        for (int other = 0; other < r; other++)
            CHECK(s.processes[r] != s.processes[other]);
    CHECK_EQ(s.alone, WORLD);
}

static void fail_or_die(fsdp_context *context, void *arg)
{
    (void)arg;
    if (fsdp_context_rank(context) == 1)
        TEST_FAIL("as it is told");
    if (fsdp_context_rank(context) == 2)
        (void)raise(SIGKILL);
}

TEST(what_became_of_a_rank_is_said)
{
    char text[4096];

    CHECK_EQ(test_try_ranks(3, fail_or_die, NULL, text, sizeof text), 2);
    CHECK_CONTAINS(text, "rank 1 of 3: ");
    CHECK_CONTAINS(text, "as it is told");
    CHECK_CONTAINS(text, "rank 2 of 3: its process ended with wait status 9");
}
