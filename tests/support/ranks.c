/* support/ranks.c - ranks as threads. */
#include "support/ranks.h"

#include <pthread.h>
#include <stdlib.h>

#include "check/races.h"
#include "comm/comm.h"
#include "comm/health/failure.h"
#include "comm/world.h"
#include "support/machines.h"
#include "support/processes.h"

enum {
    MAX_WORLD = 66
};

typedef struct rank_thread {
    pthread_t thread;
    fsdp_context *context;
    test_rank_body body;
    void *arg;
    test_thread test;
    volatile bool failed, left; /* left the meeting */
    bool races;                 /* on purpose */
    char race[1024];            /* that was found; "": none */
} rank_thread;

/* One world runs at a time. Its ranks may be processes. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    int world, here, ended, round;
} * meeting;

static void open_meeting(int world)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;

    if (!meeting) {
        meeting = test_shared_new(sizeof *meeting);
        pthread_mutexattr_init(&mutex);
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&meeting->mutex, &mutex);
        pthread_condattr_init(&condition);
        pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
        pthread_cond_init(&meeting->moved, &condition);
    }
    meeting->world = world;
    meeting->here = meeting->ended = 0;
}

void test_meet(void)
{
    int round;

    if (!meeting) /* no world has run yet: the case's own thread is alone */
        return;
    pthread_mutex_lock(&meeting->mutex);
    round = meeting->round;
    meeting->here++;
    while (round == meeting->round && meeting->here + meeting->ended < meeting->world)
        pthread_cond_wait(&meeting->moved, &meeting->mutex);
    if (round == meeting->round) {
        meeting->round++;
        meeting->here = 0;
    }
    pthread_cond_broadcast(&meeting->moved);
    pthread_mutex_unlock(&meeting->mutex);
}

static void leave_meeting(rank_thread *rank)
{
    pthread_mutex_lock(&meeting->mutex);
    rank->left = true;
    meeting->ended++;
    pthread_cond_broadcast(&meeting->moved);
    pthread_mutex_unlock(&meeting->mutex);
}

/* Gives groups on GPUs the carrier that FSDP_TEST_CARRIER names. Peers are on one machine: worlds on several have the
 * one that is chosen for them. */
static void set_carrier(fsdp_context *context)
{
    const char *name = getenv("FSDP_TEST_CARRIER");
    int carrier = 0;

    if (!name || (fsdp_context_machines(context) > 1 && strcmp(name, "peer") == 0))
        return;
    while (carrier < FSDP_CARRIERS && strcmp(fsdp_carrier_name((fsdp_carrier)carrier), name) != 0)
        carrier++;
    CHECK_OK(fsdp_context_set_carrier(context, (fsdp_carrier)carrier));
}

/* Says whether devices were let go on because the world has ended, and so write what others still read ([Note:
 * released] in comm/transport/arena/peer.h): nobody takes that for a result. */
static bool was_released(fsdp_context *context)
{
    fsdp_carrier wanted = fsdp__comm_get(context)->wanted;

    return (wanted == FSDP_CARRIER_PEER || wanted == FSDP_CARRIER_NCCL) && fsdp__comm_is_broken(fsdp_world(context));
}

static void *rank_main(void *arg)
{
    rank_thread *rank = arg;

    test_enter_thread(&rank->test);
    if (setjmp(rank->test.escape) == 0) {
        set_carrier(rank->context);
        rank->body(rank->context, rank->arg);
        CHECK_EQ(test_live_bytes(rank->context), 0);
        if (!rank->races && !was_released(rank->context))
            test_check_races(rank->context);
    } else {
        rank->failed = true;
        fsdp_abort(rank->context, rank->test.message);
    }
    leave_meeting(rank);
    test_leave_thread();
    (void)fsdp__races_found(rank->context, rank->race, sizeof rank->race);
    /* A rank that jumped out left its objects behind; they may still point to the context. */
    if (!rank->failed)
        fsdp_context_free(rank->context);
    return NULL;
}

/* Holds what the running test has chosen; NULL: what the environment says. */
static const test_machines *chosen;

static pthread_once_t environment_read = PTHREAD_ONCE_INIT; /* of every expected element it is asked */
static int machines_of_environment;

fsdp_status (*test_join)(fsdp_context **context);

/* Is the context of the world that somebody else has started; NULL: there is none, or it has been left. */
static fsdp_context *joined;
static int joined_ranks, joined_rank; /* 0: there was none */

static void leave_joined(void)
{
    fsdp_context_free(joined);
}

static void join(void)
{
    if (!test_join || test_join(&joined) != FSDP_OK) {
        print_error("cannot join: %s\n", test_join ? fsdp_last_error() : "this test is none of TEST_FILE_JOINED");
        exit(1);
    }
    joined_ranks = fsdp_context_world_size(joined);
    joined_rank = fsdp_context_rank(joined);
    machines_of_environment = fsdp_context_machines(joined);
    (void)atexit(leave_joined);
}

static void read_environment(void)
{
    const char *text = getenv("FSDP_TEST_MACHINES");

    machines_of_environment = text ? atoi(text) : 1;
    if (getenv("FSDP_TEST_JOINED"))
        join();
}

static int machines_wanted(void)
{
    int machines;

    pthread_once(&environment_read, read_environment);
    machines = chosen ? chosen->machines : machines_of_environment;
    return machines > 1 ? machines : 1;
}

int test_machines_of(int world)
{
    int machines = machines_wanted();

    return world % machines == 0 ? machines : 1;
}

void test_only_on_one_machine(const char *reason)
{
    if (machines_wanted() == 1)
        return;
    print_message("skipped on %d machines: %s\n", machines_wanted(), reason);
    skip();
}

int test_machines_world(int world)
{
    int machines = machines_wanted();

    return joined_ranks > 0 ? joined_ranks : (world + machines - 1) / machines * machines;
}

bool test_ranks_are_processes(void)
{
    const char *text = getenv("FSDP_TEST_RANKS");

    return text && strcmp(text, "processes") == 0;
}

void test_need_threads(const char *reason)
{
    if (!test_ranks_are_processes() && !getenv("FSDP_TEST_JOINED"))
        return;
    print_message("skipped where ranks are processes: %s\n", reason);
    skip();
}

bool test_rank_was_here(int world, int rank)
{
    if (test_ranks_are_processes() && machines_wanted() == 1)
        return rank == 0;
    return joined_ranks == 0 || world == 1 || rank == joined_rank;
}

int test_rank_block(int world, int first, int stride, int count)
{
    int machine_ranks = world / test_machines_of(world), of_machine[MAX_WORLD] = {0}, block;

    for (int i = 0; i < count; i++)
        of_machine[(first + i * stride) / machine_ranks]++;
    block = of_machine[first / machine_ranks];
    for (int m = 0; m < MAX_WORLD; m++)
        if (of_machine[m] > 0 && of_machine[m] != block)
            return 1;
    return block < count ? block : 1;
}

/* A rank that jumped out ends the world for all: nothing more is run. */
static int run_joined(int world, test_rank_body body, void *arg, char *text, size_t bytes)
{
    test_thread test;
    volatile bool failed = true;

    if (world != joined_ranks)
        return 0;
    test_enter_thread(&test);
    if (setjmp(test.escape) == 0) {
        body(joined, arg);
        CHECK_EQ(test_live_bytes(joined), 0);
        CHECK_OK(fsdp_barrier(fsdp_world(joined)));
        failed = false;
    } else {
        fsdp_abort(joined, test.message);
        (void)snprintf(text, bytes, "rank %d of %d: %s\n", joined_rank, world, test.message);
    }
    test_leave_thread();
    return failed;
}

/* `over`: the machines, or NULL: what the environment says. `network`: NULL where there is none. */
static void make_contexts(int world, test_machines *over, fsdp_context **contexts, thread_network **network)
{
    static const fsdp_context_options options = {.threads = 1};
    int machines = test_machines_of(world);
    test_machines from_environment = {.machines = machines, .machine_ranks = world / machines};

    *network = NULL;
    if (over || machines > 1)
        CHECK_OK(test_machines_create(over ? over : &from_environment, network, contexts));
    else
        CHECK_OK(fsdp_context_create_threads(world, &options, contexts));
    if (over)
        over->network = *network;
}

static void run_process(void *arg, int rank, fsdp_context *context)
{
    rank_thread *own = (rank_thread *)arg + rank;

    own->context = context;
    if (context) {
        (void)rank_main(own);
        return;
    }
    own->failed = true;
    (void)snprintf(own->test.message, sizeof own->test.message, "cannot join: %s", fsdp_last_error());
    leave_meeting(own);
}

static void process_ended(void *arg, int rank, int status)
{
    rank_thread *own = (rank_thread *)arg + rank;

    if (status != 0 && !own->failed) {
        own->failed = true;
        (void)snprintf(own->test.message, sizeof own->test.message, "its process ended with wait status %d", status);
    }
    if (!own->left)
        leave_meeting(own);
}

/* Returns how many ranks failed, and adds a line for each. */
static int count_failed(const rank_thread *ranks, int world, char *text, size_t bytes)
{
    int failures = 0;
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < world; i++) {
        if (!ranks[i].failed)
            continue;
        failures++;
        if (used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "rank %d of %d: %s\n", i, world, ranks[i].test.message);
    }
    return failures;
}

static int run_processes(int world, test_rank_body body, void *arg, char *text, size_t bytes)
{
    size_t all = (size_t)world * sizeof(rank_thread);
    rank_thread *ranks = test_shared_new(all);
    int failures;

    open_meeting(world);
    for (int i = 0; i < world; i++)
        ranks[i] = (rank_thread){.body = body, .arg = arg};
    test_run_processes(&(test_processes){world, run_process, process_ended, ranks});
    failures = count_failed(ranks, world, text, bytes);
    test_shared_free(ranks, all);
    return failures;
}

/* `race`: where the one goes that must be found; NULL: none must be. */
static int run_ranks(int world, test_machines *over, test_rank_body body, void *arg, char *text, size_t bytes,
                     char *race, size_t race_bytes)
{
    fsdp_context *contexts[MAX_WORLD] = {NULL};
    thread_network *network;
    rank_thread *ranks;
    int failures;

    text[0] = '\0';
    CHECK(world >= 1 && world <= MAX_WORLD);
    (void)machines_wanted();
    if (joined_ranks > 0 && world > 1)
        return over || race ? 0 : run_joined(world, body, arg, text, bytes);
    if (test_ranks_are_processes() && world > 1 && !over && !race && test_machines_of(world) == 1)
        return run_processes(world, body, arg, text, bytes);
    ranks = calloc((size_t)world, sizeof *ranks);
    CHECK(ranks != NULL);
    chosen = over;
    open_meeting(world);
    make_contexts(world, over, contexts, &network);
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
    failures = count_failed(ranks, world, text, bytes);
    chosen = NULL;
    if (network && failures == 0) { /* else some have not been closed */
        CHECK_EQ(thread_network_unread(network), 0);
        thread_network_free(network);
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
    return run_ranks(world, NULL, body, arg, text, bytes, NULL, 0);
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

    fail_if_any(run_ranks(world, NULL, body, arg, text, sizeof text, NULL, 0), world, text);
}

bool test_run_fault(int world, test_rank_body body, void *arg, test_fault *fault)
{
    fault->hit = false;
    fault->failed = 0;
    test_run_ranks(world, body, arg);
    CHECK(fault->hit || fault->failed == 0);
    return fault->hit;
}

void test_run_worlds(int first, int last, test_rank_body body, void *arg)
{
    for (int world = first; world <= last; world++)
        test_run_ranks(world, body, arg);
}

void test_run_racing_ranks(int world, test_rank_body body, void *arg, char *race, size_t bytes)
{
    char text[8192];

    fail_if_any(run_ranks(world, NULL, body, arg, text, sizeof text, race, bytes), world, text);
}

int test_try_machines(test_machines *machines, test_rank_body body, void *arg, char *text, size_t bytes)
{
    return run_ranks(machines->machines * machines->machine_ranks, machines, body, arg, text, bytes, NULL, 0);
}

void test_run_machines(int machines, int machine_ranks, bool one_level, test_rank_body body, void *arg)
{
    test_machines over = {.machines = machines, .machine_ranks = machine_ranks, .one_level = one_level};
    char text[8192];

    fail_if_any(test_try_machines(&over, body, arg, text, sizeof text), machines * machine_ranks, text);
}

void test_tell_failure(fsdp_context *context, fsdp_status status, int *failed)
{
    if (status == FSDP_OK)
        return;
    fsdp_abort(context, fsdp_last_error());
    CHECK(fsdp_last_error()[0] != '\0');
    __atomic_fetch_add(failed, 1, __ATOMIC_RELAXED);
}

void test_begin_fault(fsdp_context *context, const test_fault *fault)
{
    if (fsdp_context_rank(context) == 1)
        fsdp__fault_arm(fault->kind, fault->nth);
}

void test_end_fault(fsdp_context *context, test_fault *fault, fsdp_status status)
{
    if (fsdp_context_rank(context) == 1) {
        fault->hit = fsdp__fault_hit(fault->kind);
        fsdp__fault_arm(fault->kind, 0);
    }
    test_tell_failure(context, status, &fault->failed);
}
