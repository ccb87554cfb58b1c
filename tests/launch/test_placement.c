/* test_placement.c - cores of ranks: who binds itself, to which, and how many threads it has. */
#include "launch/placement.h"

#include <sys/wait.h>
#include <unistd.h>

#include "fsdp/launch.h"
#include "support/test.h"

/* "0-3,6" */
static cpu_set_t cores_of(const char *text)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;

        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, &set);
        text = *end ? end + 1 : end;
    }
    return set;
}

typedef struct placement_case {
    int online;
    const char *cores[6]; /* of the ranks; NULL: no more */
    int machines[6], local_ranks[6];
    const char *bound[6]; /* NULL: it does not bind itself */
    int threads[6];
} placement_case;

static const placement_case cases[] = {
    /* nobody has bound them */
    {4, {"0-3", "0-3"}, {0, 0}, {0, 1}, {"0-1", "2-3"}, {2, 2}},
    {4, {"0-3", "0-3", "0-3"}, {0, 0, 0}, {0, 1, 2}, {"0", "1", "2-3"}, {1, 1, 2}},
    {4, {"0-3", "0-3", "0-3", "0-3"}, {0, 0, 1, 1}, {0, 1, 0, 1}, {"0-1", "2-3", "0-1", "2-3"}, {2, 2, 2, 2}},
    /* alone on its machine: nothing to share */
    {4, {"0-3", "0-3"}, {0, 1}, {0, 0}, {NULL, NULL}, {4, 4}},
    /* each has its own already */
    {4, {"0-1", "2-3"}, {0, 0}, {0, 1}, {NULL, NULL}, {2, 2}},
    {4, {"0", "1-3"}, {0, 0}, {0, 1}, {NULL, NULL}, {1, 3}},
    /* bound together: they share, but are left there */
    {8, {"0-3", "0-3"}, {0, 0}, {0, 1}, {NULL, NULL}, {2, 2}},
    {8, {"0-2", "0-2", "0-2"}, {0, 0, 0}, {0, 1, 2}, {NULL, NULL, NULL}, {1, 1, 1}},
    /* one was bound, so that was on purpose */
    {4, {"0-3", "3"}, {0, 0}, {0, 1}, {NULL, NULL}, {3, 1}},
    /* and one of another machine says nothing of this one */
    {4, {"0-3", "0-3", "3"}, {0, 0, 1}, {0, 1, 0}, {"0-1", "2-3", NULL}, {2, 2, 1}},
    /* fewer cores than ranks */
    {2, {"0-1", "0-1", "0-1"}, {0, 0, 0}, {0, 1, 2}, {NULL, NULL, NULL}, {1, 1, 1}},
};

static int seats_of(const placement_case *c, fsdp__seat *seats)
{
    int count = 0;

    for (; count < 6 && c->cores[count]; count++)
        seats[count] = (fsdp__seat){.machine = c->machines[count],
                                    .local_rank = c->local_ranks[count],
                                    .online = c->online,
                                    .cores = cores_of(c->cores[count])};
    return count;
}

TEST(ranks_are_placed_where_nobody_has_bound_them)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp__seat seats[6];
        int count = seats_of(&cases[i], seats);

        for (int r = 0; r < count; r++) {
            fsdp__place_of_rank place;

            fsdp__place_choose(seats, count, r, &place);
            if (place.binds != (cases[i].bound[r] != NULL) || place.threads != cases[i].threads[r])
                TEST_FAIL("case %zu, rank %d: binds %d, %d threads", i, r, place.binds, place.threads);
            if (place.binds) {
                cpu_set_t expected = cores_of(cases[i].bound[r]);

                CHECK(CPU_EQUAL(&place.cores, &expected));
            }
        }
    }
}

TEST(who_told_openmp_where_to_run_is_left_alone)
{
    fsdp__seat seats[6];
    fsdp__place_of_rank place;
    int count = seats_of(&cases[0], seats);

    seats[1].told = true;
    for (int r = 0; r < 2; r++) {
        fsdp__place_choose(seats, count, r, &place);
        CHECK(!place.binds);
        CHECK_EQ(place.threads, 2);
    }
    seats[1].told = false;
    setenv("OMP_PROC_BIND", "true", 1);
    fsdp__place_choose(seats, count, 0, &place);
    CHECK(!place.binds);
}

/* ---- processes ---- */

/* A rank that says how it was placed by its status: 0 as expected. */
static int rank_main(int rank, int ranks, const cpu_set_t *expected, int threads)
{
    fsdp_context *context = NULL;
    char text[16];
    cpu_set_t now;
    int wrong;

    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", ranks);
    setenv("WORLD_SIZE", text, 1);
    if (fsdp_context_from_env(&context) != FSDP_OK)
        return 1;
    wrong = sched_getaffinity(0, sizeof now, &now) != 0 || !CPU_EQUAL(&now, expected) ? 2 : 0;
    wrong |= fsdp_context_threads(context) == threads ? 0 : 4;
    fsdp_context_free(context);
    return wrong;
}

static void check_processes(const cpu_set_t *before, const cpu_set_t *expected, const int *threads)
{
    pid_t pids[2];

    for (int r = 0; r < 2; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r] == 0) {
            if (sched_setaffinity(0, sizeof before[r], &before[r]) != 0)
                _exit(99);
            _exit(rank_main(r, 2, &expected[r], threads[r]));
        }
    }
    for (int r = 0; r < 2; r++) {
        int status = -1;

        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        CHECK_EQ(status, 0);
    }
}

TEST(processes_that_nobody_has_bound_bind_themselves)
{
    cpu_set_t all, one, before[2], expected[2];
    int cores, threads[2], cpu = 0;

    unsetenv("OMP_NUM_THREADS");
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    cores = CPU_COUNT(&all);
    before[0] = before[1] = expected[0] = expected[1] = all;
    for (int r = 0; r < 2; r++) {
        if (cores == sysconf(_SC_NPROCESSORS_ONLN))
            (void)fsdp__share_of_cores(&all, r, 2, &expected[r]);
        threads[r] = CPU_EQUAL(&expected[r], &all) ? (cores > 1 ? cores / 2 : 1) : CPU_COUNT(&expected[r]);
    }
    check_processes(before, expected, threads);
    if (cores < 2)
        return;
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    before[0] = expected[0] = one;
    before[1] = expected[1] = all;
    threads[0] = 1;
    threads[1] = cores - 1;
    check_processes(before, expected, threads);
}
