/* test_verdict.c - what is concluded of a rank that gets no core, or of which news comes late. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/health/process.h"
#include "comm/health/verdict.h"
#include "support/test.h"

enum {
    RANKS = 2,
    TICK_MS = 20,
    TIMEOUT_MS = 10000,
    LOOKS = 5
};

static char hosts[RANKS][FSDP__PLACES_HOST_BYTES] = {"a", "b"};

/* What rank 0 knows, on a machine of `here` ranks. */
typedef struct rank {
    fsdp__board *board;
    fsdp__health health;
    fsdp__places places;
    fsdp__peers peers;
} rank;

static void open_rank(rank *r, int here)
{
    r->board = aligned_alloc(64, fsdp__board_bytes(here, RANKS));
    memset(r->board, 0, fsdp__board_bytes(here, RANKS));
    fsdp__board_begin(r->board, here, RANKS);
    r->health = (fsdp__health){.board = r->board};
    r->places = (fsdp__places){.ranks = RANKS, .machines = RANKS / here, .machine_ranks = here, .hosts = hosts};
    r->peers = (fsdp__peers){.known = NULL};
    fsdp__health_set_timeout(&r->health, TIMEOUT_MS, TICK_MS);
    CHECK_OK(fsdp__peers_open(&r->peers, &r->health, &r->places));
}

static void close_rank(rank *r)
{
    fsdp__peers_close(&r->peers);
    free(r->board);
}

static void tick(rank *r, int times)
{
    while (times-- > 0)
        fsdp__peers_tick(&r->peers);
}

/* ---- a rank that gets no core ---- */

static void *spin(void *pid)
{
    (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    while (*(volatile pid_t *)pid == 0)
        continue;
    return NULL;
}

static void stay_on_one_core(void)
{
    cpu_set_t cores;
    int core = 0;

    CHECK_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
    while (!CPU_ISSET(core, &cores))
        core++;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    CHECK_EQ(sched_setaffinity(0, sizeof cores, &cores), 0);
}

/* A process whose program sleeps, and whose worker is left what nobody else wants of this test's one core. */
static pid_t start_poor(void)
{
    pid_t pid = fork();
    pthread_t worker;

    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pthread_create(&worker, NULL, spin, &pid) != 0)
        _exit(1);
    for (;;)
        pause();
}

static void compute_ms(int ms)
{
    int64_t end = fsdp__thread_cpu_ns() + (int64_t)ms * 1000000;

    while (fsdp__thread_cpu_ns() < end)
        continue;
}

static void join_as(rank *r, int local, pid_t pid)
{
    fsdp__row *row = fsdp__row_at(r->board, local);

    atomic_store(&row->pid, (int32_t)pid);
    atomic_store(&row->thread, (int32_t)pid);
    atomic_store(&row->state, FSDP__RANK_JOINED);
}

static void end(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(who_gets_no_core_does_not_stand_still)
{
    fsdp__pulse pulse = {0};
    cpu_set_t before;
    pid_t pid;
    rank r;

    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    stay_on_one_core();
    pid = start_poor();
    open_rank(&r, RANKS);
    join_as(&r, 1, pid);
    for (int starved = 0; starved < LOOKS; starved += pulse.starves) {
        int64_t still = pulse.still, silent = pulse.silent;

        fsdp__pulse_take(r.board, 1, &pulse);
        CHECK(pulse.starves ? pulse.still == still && pulse.silent == silent : pulse.still <= still + 1);
        compute_ms(1);
    }
    end(pid);
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
    close_rank(&r);
}

TEST(who_gets_no_core_is_not_silent)
{
    cpu_set_t before;
    int counted = 0;
    pid_t pid;
    rank r;

    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    stay_on_one_core();
    pid = start_poor();
    open_rank(&r, RANKS);
    join_as(&r, 1, pid);
    tick(&r, (int)fsdp__peers_fresh_ticks(&r.peers) + 1); /* as long as nobody asks why */
    for (int uncounted = 0; uncounted < LOOKS;) {
        int64_t silent = fsdp__peers_known(&r.peers, 1).silent;

        tick(&r, 1);
        counted += fsdp__peers_known(&r.peers, 1).silent > silent;
        uncounted += fsdp__peers_known(&r.peers, 1).silent == silent;
        compute_ms(1);
    }
    end(pid);
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(fsdp__peers_known(&r.peers, 1).silent, fsdp__peers_fresh_ticks(&r.peers) + 1 + counted);
    tick(&r, 1); /* it is gone */
    CHECK_EQ(fsdp__peers_known(&r.peers, 1).silent, fsdp__peers_fresh_ticks(&r.peers) + 2 + counted);
    close_rank(&r);
}

TEST(who_sleeps_stands_still)
{
    fsdp__pulse pulse = {0};
    pid_t pid = fork();
    rank r;

    CHECK(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    while (fsdp__process_state(pid, pid) != 'S')
        usleep(1000);
    open_rank(&r, RANKS);
    join_as(&r, 1, pid);
    while (pulse.still < LOOKS) /* a sanitizer's own thread may run now and then */
        fsdp__pulse_take(r.board, 1, &pulse);
    end(pid);
    close_rank(&r);
}

/* ---- news that comes late ---- */

/* Rank 0 hears rank 1, and itself. */
static void hear(rank *r, fsdp__said said)
{
    for (int i = 0; i < RANKS; i++)
        fsdp__peers_hear(&r->peers, i, i == 1 ? &said : &(fsdp__said){.in = 1});
}

/* It hears itself alone. */
static void listen(rank *r, int64_t ticks)
{
    while (ticks-- > 0) {
        tick(r, 1);
        fsdp__peers_hear(&r->peers, 0, &(fsdp__said){.in = 1});
    }
}

TEST(one_look_is_not_all_of_a_silence)
{
    int64_t limit;
    fsdp__said said;
    rank r;

    open_rank(&r, 1);
    limit = atomic_load(&r.health.timeout_ticks);
    hear(&r, (fsdp__said){.in = 0});
    listen(&r, limit);
    for (int looks = 1; looks <= 3; looks++) { /* all at once */
        hear(&r, (fsdp__said){.still = looks});
        CHECK(fsdp__board_said(r.board, 1, &said));
        CHECK(said.still > 0 && said.still <= looks * fsdp__peers_fresh_ticks(&r.peers));
        fsdp__verdict_look(&r.peers, 1, (fsdp__awaited){.tested = limit});
        CHECK_EQ(fsdp__board_aborted(r.board), false);
    }
    for (int looks = 4; !fsdp__board_aborted(r.board) && looks < 100; looks++) {
        listen(&r, fsdp__peers_fresh_ticks(&r.peers));
        hear(&r, (fsdp__said){.still = looks});
        fsdp__verdict_look(&r.peers, 1, (fsdp__awaited){.tested = atomic_load(&r.peers.ticks)});
    }
    CHECK_ERROR(fsdp__board_holds(r.board), FSDP_COMM, "rank 1 (machine 'b') has stood still for ");
    close_rank(&r);
}

/* What it has sent before may have come since this rank has looked last. */
TEST(who_has_left_is_named_after_a_look_for_what_it_sent)
{
    rank r;

    open_rank(&r, 1);
    hear(&r, (fsdp__said){.left = 1});
    tick(&r, 100);
    fsdp__verdict_look(&r.peers, 1, (fsdp__awaited){.tested = 0});
    CHECK_EQ(fsdp__board_aborted(r.board), false);
    fsdp__verdict_look(&r.peers, 1, (fsdp__awaited){.since = 99, .tested = 100});
    CHECK_EQ(fsdp__board_aborted(r.board), false);
    fsdp__verdict_look(&r.peers, 1, (fsdp__awaited){.tested = 100});
    CHECK_ERROR(fsdp__board_holds(r.board), FSDP_COMM, "rank 1 has left (machine 'b')");
    close_rank(&r);
}
