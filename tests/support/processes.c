/* support/processes.c - forks ranks and reaps them. */
#include "support/processes.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transport/arena/shm.h"

enum {
    MOST_RANKS = 66
};

typedef struct starting {
    const test_processes *p;
    fsdp__arena *arena;
    sem_t forked; /* all of them are */
} starting;

void *test_shared_new(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        TEST_FAIL("out of memory");
    return memory;
}

void test_shared_free(void *memory, size_t bytes)
{
    (void)munmap(memory, bytes);
}

static void be_rank(const starting *s, int rank)
{
    const fsdp_context_options options = {.rank = rank, .world_size = s->p->world, .threads = 1};
    fsdp_context *context = NULL;

    if (fsdp__shm_join(s->arena->fd, true, &options, &context) != FSDP_OK)
        context = NULL;
    s->p->run(s->p->arg, rank, context);
}

/* A signal ends this process, and is no case's failure, which it would be for cmocka. */
static _Noreturn void be_child(const starting *s, int rank)
{
    static const int caught[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs does not outlive a test that fails */
    for (size_t i = 0; i < FSDP__COUNT_OF(caught); i++)
        (void)signal(caught[i], SIG_DFL);
    be_rank(s, rank);
    fflush(NULL);
    _exit(0);
}

/* The thread that forks lives as long as the children, which end with it, and its stack is no shared one. */
static void *fork_and_reap(void *arg)
{
    starting *s = arg;
    pid_t pids[MOST_RANKS];

    fflush(NULL);
    for (int r = 1; r < s->p->world; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            be_child(s, r);
    }
    (void)sem_post(&s->forked);
    for (int r = 1; r < s->p->world; r++) {
        int status = -1;

        (void)waitpid(pids[r], &status, 0);
        s->p->ended(s->p->arg, r, status);
    }
    return NULL;
}

static void *be_first(void *arg)
{
    be_rank(arg, 0);
    return NULL;
}

void test_run_processes(const test_processes *p)
{
    starting s = {.p = p};
    pthread_t reaper, first;

    CHECK(p->world <= MOST_RANKS);
    CHECK_OK(fsdp__shm_create(p->world, &s.arena));
    CHECK_EQ(sem_init(&s.forked, 0, 0), 0);
    CHECK_EQ(pthread_create(&reaper, NULL, fork_and_reap, &s), 0);
    while (sem_wait(&s.forked) != 0)
        continue;
    CHECK_EQ(pthread_create(&first, NULL, be_first, &s), 0);
    pthread_join(first, NULL);
    pthread_join(reaper, NULL);
    (void)sem_destroy(&s.forked);
    fsdp__arena_unref(s.arena);
}
