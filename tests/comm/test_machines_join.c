/* test_machines_join.c - ranks that find out by themselves where the others are. */
#include <pthread.h>

#include "check/fault.h"
#include "comm/group_calls.h"
#include "comm/transport/network/network_transport.h"
#include "comm/transport/network/numbering.h"
#include "support/machines.h"
#include "support/test.h"

enum {
    RANKS = 4,
    SHORT_MS = 300, /* comm.timeout where what comes of it is not looked at */
    TICK_MS = 20,
    ENOUGH_MS = 1000000
};

typedef struct joining {
    pthread_t thread;
    thread_network *network;
    const fsdp__network_ops *ops, *other; /* other: in their place */
    fsdp__arena **arenas;                 /* of each machine */
    int carrier;                          /* its rank there */
    bool one_level, within; /* a time, of which there is enough: then calls of the network are counted, too */
    fsdp_status status;
    char error[512];
    long fails; /* its n-th allocation; 0: none */
    int loses;  /* its n-th call of the network; 0: none */
    bool hurry; /* not to wait long for others */
    bool failed;
    int rank, machine; /* what came of it */
    int32_t sum;
} joining;

static fsdp_status share(void *arg, const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                         fsdp__arena **out)
{
    const joining *j = arg;

    (void)ops, (void)network;
    *out = fsdp__arena_ref(j->arenas[fsdp__machine_of(places, places->rank)]);
    return FSDP_OK;
}

static fsdp_status call(joining *j, fsdp_context *context)
{
    int32_t mine = 1 << fsdp_context_rank(context);

    j->rank = fsdp_context_rank(context);
    j->machine = fsdp_context_machine(context);
    if (j->hurry)
        FSDP_TRY(fsdp__context_set_comm_ticks(context, SHORT_MS, TICK_MS));
    return fsdp_all_reduce(fsdp_world(context), &mine, &j->sum, 1, FSDP_I32, FSDP_SUM,
                           fsdp_device_stream(fsdp_cpu(context)));
}

static void *join_main(void *arg)
{
    joining *j = arg;
    const fsdp__network_options options = {.threads = 1,
                                           .all_readable = true,
                                           .joining.ms = j->within ? ENOUGH_MS : 0,
                                           .one_level = j->one_level,
                                           .share = share,
                                           .arg = j};
    fsdp_context *context = NULL;

    thread_network_choose(j->network, j->carrier);
    thread_network_fail(j->network, j->carrier, j->loses);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, j->fails);
    j->status = fsdp__network_join(j->other ? j->other : j->ops, &options, &context);
    j->failed = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    if (j->status == FSDP_OK)
        j->status = call(j, context);
    if (j->status != FSDP_OK)
        snprintf(j->error, sizeof j->error, "%s", fsdp_last_error());
    fsdp_context_free(context);
    return NULL;
}

/* All join; the caller looks at what came of each. */
static void join_all(joining *all, int ranks, const int *machine_of, int machines, const fsdp__network_ops *ops)
{
    thread_network *network = thread_network_new(ranks, machines, machine_of);
    fsdp__arena *arenas[RANKS] = {NULL};

    for (int m = 0; m < machines; m++) {
        CHECK_OK(fsdp__arena_create(ranks / machines, ranks, false, &arenas[m]));
        arenas[m]->board->first = m * (ranks / machines);
    }
    for (int r = 0; r < ranks; r++) {
        all[r].network = network;
        all[r].ops = ops;
        all[r].arenas = arenas;
        all[r].carrier = r;
        CHECK_EQ(pthread_create(&all[r].thread, NULL, join_main, &all[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
    for (int m = 0; m < machines; m++)
        fsdp__arena_unref(arenas[m]);
    thread_network_free(network);
}

TEST(ranks_are_numbered_by_machine)
{
    static const int round_robin[] = {0, 1, 0, 1}, ranks[] = {0, 2, 1, 3};

    for (int one_level = 0; one_level < 2; one_level++) {
        joining all[RANKS] = {{0}};

        for (int r = 0; r < RANKS; r++)
            all[r].one_level = all[r].within = one_level;
        join_all(all, RANKS, round_robin, 2, &thread_network_ops);
        for (int r = 0; r < RANKS; r++) {
            CHECK_STATUS(all[r].status, FSDP_OK);
            CHECK_EQ(all[r].rank, ranks[r]);
            CHECK_EQ(all[r].machine, round_robin[r]);
            CHECK_EQ(all[r].sum, 15);
        }
    }
}

TEST(what_does_not_fit_is_refused_by_all)
{
    static const int unequal[] = {0, 0, 1};
    joining few[3] = {{0}}, mixed[2] = {{.one_level = true}, {0}}, old[1] = {{0}};
    fsdp__network_ops other = thread_network_ops;

    join_all(few, 3, unequal, 2, &thread_network_ops);
    for (int r = 0; r < 3; r++)
        CHECK_CONTAINS(few[r].error, "machine 'a' has 2 ranks, machine 'b' has 1");
    join_all(mixed, 2, NULL, 2, &thread_network_ops);
    for (int r = 0; r < 2; r++)
        CHECK_CONTAINS(mixed[r].error, "FSDP_ONE_LEVEL=1 is set for MPI's rank 0 and not for its rank 1");
    other.version++;
    join_all(old, 1, NULL, 1, &other);
    CHECK_CONTAINS(old[0].error, "the network library is of version 5, this program needs 4");
}

/* Threads are of one build; but a carrier that lies on the heap is in no library. */
TEST(carriers_of_two_builds_are_refused_by_all)
{
    fsdp__network_ops *other = malloc(sizeof *other);
    joining all[3] = {{0}};

    memcpy(other, &thread_network_ops, sizeof *other);
    all[2].other = other;
    join_all(all, 3, NULL, 3, &thread_network_ops);
    for (int r = 0; r < 3; r++) {
        CHECK_STATUS(all[r].status, FSDP_MISMATCH);
        CHECK_CONTAINS(all[r].error, "MPI's rank 0 (machine 'a') runs its plug-in of fsdp " FSDP_VERSION ", build ");
        CHECK_CONTAINS(all[r].error, ", and its rank 2 (machine 'c') its plug-in of fsdp " FSDP_VERSION
                                     ", no build id: start all ranks from one build");
    }
    free(other);
}

/* ---- one rank fails, nobody waits for it ---- */

static void check_all_failed(const joining *all, int ranks, int blamed, fsdp_status status)
{
    for (int r = 0; r < ranks; r++)
        if (r == blamed)
            CHECK_STATUS(all[r].status, status);
        else
            CHECK(all[r].status == FSDP_COMM || all[r].status == status);
}

/* Each allocation of the whole join, from finding out where the others are to the world that is attached. */
static void run_out_of_memory(int machines, int machine_ranks, int blamed)
{
    int ranks = machines * machine_ranks;
    bool failed = true, named = false;

    for (long fails = 1; failed; fails++) {
        joining all[RANKS] = {{0}};
        char whom[64];

        all[blamed].fails = fails;
        join_all(all, ranks, NULL, machines, &thread_network_ops);
        failed = all[blamed].failed;
        if (failed)
            check_all_failed(all, ranks, blamed, FSDP_NO_MEMORY);
        for (int r = 0; r < ranks && !failed; r++)
            CHECK_STATUS(all[r].status, FSDP_OK);
        snprintf(whom, sizeof whom, "rank %d (machine '%c'): out of memory", blamed, 'a' + blamed / machine_ranks);
        named |= strstr(all[(blamed + machine_ranks) % ranks].error, whom) != NULL;
    }
    CHECK(named);
}

TEST(a_rank_without_memory_ends_the_join_of_all)
{
    joining all[RANKS] = {{0}};

    all[2].fails = 1; /* it cannot even hear of the others */
    join_all(all, RANKS, NULL, 2, &thread_network_ops);
    CHECK_CONTAINS(all[0].error, "1 of the ranks cannot go on");
    for (int blamed = 0; blamed < 2; blamed++)
        run_out_of_memory(2, 1, blamed);
    for (int blamed = 0; blamed < RANKS; blamed += 3)
        run_out_of_memory(2, 2, blamed);
}

/* Its calls are those of joining and, as time goes by, of listening: from some call on the world may be there. */
TEST(a_rank_without_network_ends_the_join_of_all)
{
    enum {
        CERTAIN = 3, /* these come before the thread that listens */
        CALLS = 8
    };

    for (int machine_ranks = 1; machine_ranks <= 2; machine_ranks++)
        for (int i = 0; i < 2 * CALLS; i++) {
            joining all[RANKS] = {{0}};
            int blamed = i % 2 * machine_ranks, nth = 1 + i / 2;

            all[blamed].loses = nth;
            for (int r = 0; r < 2 * machine_ranks; r++)
                all[r].within = i % 4 < 2;
            for (int r = 0; r < 2 * machine_ranks; r++)
                all[r].hurry = nth > CERTAIN;
            join_all(all, 2 * machine_ranks, NULL, 2, &thread_network_ops);
            if (nth <= CERTAIN)
                check_all_failed(all, 2 * machine_ranks, blamed, FSDP_COMM);
        }
}
