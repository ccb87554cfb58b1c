/* test_stopped.c - ranks that are processes, and are stopped, or wait for each other. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/group_calls.h"
#include "comm/transport/arena/shm.h"
#include "support/frost.h"
#include "support/test.h"

enum {
    WORLD = 3,
    TICK_MS = 2,
    TIMEOUT_MS = 200,
    LONG_MS = 1000000, /* no test takes as long */
    AS_EXPECTED = 42,
    PAST_TIMEOUT_US = 400000
};

/* What a rank does; its exit status. */
typedef struct play play;
typedef int (*act)(fsdp_context *context, const play *p);

struct play {
    int ranks;
    act act;
    int64_t timeout_ms;
    fsdp__arena *arena;
    pid_t pids[WORLD];
    int lines[2];   /* a pipe: warnings of all ranks, for the test */
    int go[2];      /* another: from the test */
    bool last_told; /* rank 2 makes its last call when the test tells it to */
};

static void pass_on(void *arg, fsdp_log_level level, const char *line)
{
    const play *p = arg;
    char text[512];
    int bytes = snprintf(text, sizeof text, "%s\n", line);

    if (level == FSDP_LOG_WARNING && write(p->lines[1], text, (size_t)bytes) != bytes)
        _exit(9);
}

static void rank_main(play *p, int rank)
{
    fsdp_context_options options = {.rank = rank, .world_size = p->ranks, .threads = 1};
    fsdp_context *context = NULL;
    int code;

    if (fsdp__shm_join(p->arena->fd, false, &options, &context) != FSDP_OK)
        _exit(2);
    fsdp_context_set_log(context, FSDP_LOG_WARNING, pass_on, p);
    /* Of a process that has not joined nobody can know that it would run. */
    for (int r = 0; r < p->ranks; r++)
        while (atomic_load(&fsdp__row_at(p->arena->board, r)->state) == FSDP__RANK_AWAITED)
            usleep(1000);
    if (fsdp__context_set_comm_ticks(context, p->timeout_ms, TICK_MS) != FSDP_OK)
        _exit(3);
    code = p->act(context, p);
    fsdp_context_free(context);
    _exit(code);
}

static void start(play *p)
{
    CHECK_OK(fsdp__shm_create(p->ranks, &p->arena));
    CHECK_EQ(pipe(p->lines), 0);
    CHECK_EQ(pipe2(p->go, O_NONBLOCK), 0);
    for (int r = 0; r < p->ranks; r++) {
        p->pids[r] = fork();
        if (p->pids[r] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that is stopped does not outlive a test that fails */
            rank_main(p, r);
        }
    }
}

static void check_exit(const play *p, int rank, int code)
{
    int status;

    CHECK_EQ(waitpid(p->pids[rank], &status, 0), p->pids[rank]);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), code);
}

static void finish(play *p)
{
    for (int i = 0; i < 2; i++) {
        close(p->lines[i]);
        close(p->go[i]);
    }
    fsdp__arena_unref(p->arena);
}

/* The next warning, as soon as there is one. */
static void read_line(const play *p, char line[512])
{
    int at = 0;

    while (at < 511 && read(p->lines[0], line + at, 1) == 1 && line[at] != '\n')
        at++;
    line[at] = '\0';
}

/* Until the process has stopped. */
static void stop(const play *p, int rank)
{
    int status;

    CHECK_EQ(kill(p->pids[rank], SIGSTOP), 0);
    CHECK_EQ(waitpid(p->pids[rank], &status, WUNTRACED), p->pids[rank]);
    CHECK(WIFSTOPPED(status));
}

static void tell_to_go(const play *p)
{
    CHECK_EQ(write(p->go[1], "x", 1), 1);
}

/* Computes until the test tells it to go on. */
static void compute_until_told(const play *p)
{
    char byte;

    while (read(p->go[0], &byte, 1) < 0 && errno == EAGAIN)
        continue;
}

/* ---- one that is stopped ---- */

static int stop_before_a_call(fsdp_context *context, const play *p)
{
    char expected[160];

    if (fsdp_barrier(fsdp_world(context)) != FSDP_OK)
        return 4;
    snprintf(expected, sizeof expected, "for rank 1, which is stopped (process %d), last in call 1 of group 'world'",
             atomic_load(&fsdp__row_at(p->arena->board, 1)->pid));
    if (fsdp_context_rank(context) == 1)
        raise(SIGSTOP);
    if (fsdp_context_rank(context) == 2 && p->last_told)
        compute_until_told(p);
    if (fsdp_barrier(fsdp_world(context)) == FSDP_OK)
        return 0;
    return fsdp_last_status() == FSDP_COMM && strstr(fsdp_last_error(), expected) ? AS_EXPECTED : 5;
}

TEST(a_stopped_rank_ends_the_run_with_the_timeout)
{
    play p = {.ranks = 3, .act = stop_before_a_call, .timeout_ms = TIMEOUT_MS};

    start(&p);
    check_exit(&p, 0, AS_EXPECTED);
    check_exit(&p, 2, AS_EXPECTED);
    CHECK_EQ(kill(p.pids[1], SIGCONT), 0);
    check_exit(&p, 1, AS_EXPECTED);
    finish(&p);
}

TEST(a_stopped_rank_is_named_at_once_and_may_go_on)
{
    play p = {.ranks = 3, .act = stop_before_a_call, .timeout_ms = LONG_MS, .last_told = true};
    char line[512], expected[256];

    start(&p);
    read_line(&p, line);
    snprintf(expected, sizeof expected,
             "[rank 0] rank 1 is stopped, and rank 0 waits for it in call 2 of group 'world' (barrier): 'kill -CONT "
             "%d' lets it continue",
             p.pids[1]);
    CHECK_STRING(line, expected); /* of the first rank that waits */
    tell_to_go(&p);
    CHECK_EQ(kill(p.pids[1], SIGCONT), 0);
    for (int r = 0; r < p.ranks; r++)
        check_exit(&p, r, 0);
    finish(&p);
}

/* ---- one that is frozen ---- */

static int be_frozen_before_a_call(fsdp_context *context, const play *p)
{
    char expected[160];

    if (fsdp_barrier(fsdp_world(context)) != FSDP_OK)
        return 4;
    snprintf(expected, sizeof expected, "is stopped by the freezer of its control group (process %d), last in call 1",
             atomic_load(&fsdp__row_at(p->arena->board, 1)->pid));
    if (fsdp_context_rank(context) == 1) {
        if (write(p->lines[1], "here\n", 5) != 5)
            return 6;
        compute_until_told(p);
    }
    if (fsdp_barrier(fsdp_world(context)) == FSDP_OK)
        return 0;
    return fsdp_last_status() == FSDP_COMM && strstr(fsdp_last_error(), expected) ? AS_EXPECTED : 5;
}

/* Checks with one version, if there is such a thing. */
static void check_frost(frost f)
{
    play p = {.ranks = 2, .act = be_frozen_before_a_call, .timeout_ms = TIMEOUT_MS};
    char line[512] = "";
    bool there, frozen;
    int status;

    start(&p);
    while (strcmp(line, "here") != 0) /* before, it may be in its first call still */
        read_line(&p, line);
    there = frost_begin(&f);
    frozen = there && frost_take(&f, p.pids[1]);
    if (!frozen)
        tell_to_go(&p);
    CHECK_EQ(waitpid(p.pids[0], &status, 0), p.pids[0]);
    if (frozen) { /* do this before a check fails: what version 1 has frozen cannot even be killed */
        CHECK(frost_thaw(&f));
        tell_to_go(&p);
    }
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), frozen ? AS_EXPECTED : 0);
    check_exit(&p, 1, frozen ? AS_EXPECTED : 0);
    if (there)
        frost_end(&f);
    finish(&p);
}

TEST(a_frozen_rank_ends_the_run_with_the_timeout)
{
    check_frost((frost)FROST_2);
    check_frost((frost)FROST_2_BESIDE_1);
    check_frost((frost)FROST_1);
}

/* ---- all that are stopped together ---- */

static int compute_before_a_call(fsdp_context *context, const play *p)
{
    if (fsdp_context_rank(context) == 1)
        compute_until_told(p);
    return fsdp_barrier(fsdp_world(context)) == FSDP_OK ? 0 : 4;
}

TEST(a_job_that_is_stopped_and_continued_goes_on)
{
    play p = {.ranks = 2, .act = compute_before_a_call, .timeout_ms = TIMEOUT_MS};
    char line[512];

    start(&p);
    read_line(&p, line); /* rank 0 waits */
    CHECK_CONTAINS(line, "for rank 1, which computes, before its first call of other ranks");
    stop(&p, 0);
    stop(&p, 1);
    usleep(PAST_TIMEOUT_US); /* were it counted, it would end the run */
    CHECK_EQ(kill(p.pids[1], SIGCONT), 0);
    CHECK_EQ(kill(p.pids[0], SIGCONT), 0);
    read_line(&p, line); /* it waits on */
    CHECK_CONTAINS(line, "for rank 1, which computes");
    tell_to_go(&p);
    check_exit(&p, 0, 0);
    check_exit(&p, 1, 0);
    finish(&p);
}

/* ---- circles ---- */

static int wait_in_a_circle(fsdp_context *context, const play *p)
{
    fsdp_process_group *groups[WORLD], *own = NULL;
    int rank = fsdp_context_rank(context), code = 4;
    char expected[160];

    for (int r = 0; r < p->ranks; r++) {
        int next = (r + 1) % p->ranks, ranks[2] = {r < next ? r : next, r < next ? next : r};
        char name[24];

        snprintf(name, sizeof name, "group %d", r);
        if (fsdp_process_group_create(context, ranks, 2, name, &groups[r]) != FSDP_OK)
            return 5;
        if (r == rank)
            own = groups[r];
    }
    if (fsdp_barrier(own) == FSDP_MISMATCH)
        code = AS_EXPECTED;
    for (int r = 0; r < p->ranks; r++) {
        snprintf(expected, sizeof expected, "rank %d waits for rank %d in call 1 of group 'group %d' (barrier)", r,
                 (r + 1) % p->ranks, r);
        code = strstr(fsdp_last_error(), expected) ? code : 6;
        fsdp_process_group_free(groups[r]);
    }
    return code;
}

TEST(processes_that_wait_in_a_circle_are_all_named)
{
    for (int ranks = 2; ranks <= WORLD; ranks++) {
        play p = {.ranks = ranks, .act = wait_in_a_circle, .timeout_ms = 0};

        start(&p);
        for (int r = 0; r < ranks; r++)
            check_exit(&p, r, AS_EXPECTED);
        finish(&p);
    }
}
