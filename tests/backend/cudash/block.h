/* block.h - the fibers of a block: what the files of cudash share. */
#pragma once

#include <stdio.h>

#include "cudash/cudash.h"

enum {
    MOST_THREADS = 1024,
    MOST_COPIES = 64, /* asynchronous ones of a thread that are not done */
    WARP = 32
};

enum fiber_state {
    RUNS,
    AT_BARRIER,
    TOGETHER, /* waits for the lanes of its mask */
    MEETS,    /* they are there */
    ENDED
};

/* A copy into shared memory that runs beside the kernel, of a group of its thread's. */
struct copy {
    unsigned char *to;
    const unsigned char *from;
    int bytes, group;
};

/* What lanes do together: lanes[i] is what lane i gave, NULL where it is not of the mask. */
typedef void (*collective)(void *const *lanes);

struct fiber {
    void *sp;                /* NULL: has not run yet */
    unsigned char *stack;    /* while it runs; to its next block's fiber for ThreadSanitizer */
    void *tsan, *fake_stack; /* of the sanitizers */
    fiber_state state;
    uint3 index;
    const char *file; /* where it waits */
    int line;
    collective run;
    void *data;
    unsigned mask;
    copy copies[MOST_COPIES]; /* started and not done, the oldest first */
    int copies_count, groups; /* groups that are closed */
};

/* One block at a time, with what the threads of all keep. Made once, and used by one thread of the host at a time. */
struct block {
    fiber fibers[MOST_THREADS];
    unsigned char *idle[MOST_THREADS]; /* stacks that no fiber has */
    int idle_count, count, current;
    void *host_sp;
    void *host_tsan, *host_fake_stack;
    const void *host_stack;
    size_t host_stack_bytes;
    void (*body)(const void *);
    const void *argument;
    unsigned char *shared;
    size_t shared_bytes;
    unsigned char *fixed; /* static shared memory, with what lies between; NULL: no thread has come to any */
    size_t fixed_bytes;
    uint64_t *begun; /* for each function of the layout the count of the block that came to its variables last */
    uint64_t blocks; /* that have run, with this one */
    unsigned char *unwritten,
        *fixed_unwritten;                /* for ThreadSanitizer: 1 for each of their bytes that nobody has written */
    uint64_t draws;                      /* what is drawn next */
    char order[1 + MOST_THREADS / WARP]; /* addresses for ThreadSanitizer: of the block, of each warp */
    block *next_free;
};

CUDASH_THREAD block *running __asm__("cudash_running"); /* of thread.c */

static inline fiber *this_fiber(void)
{
    return &running->fibers[running->current];
}

/* Ends the process with what two threads do that must be together. */
[[noreturn]] void cudash_fail(const char *what, const fiber *a, const fiber *b);

/* Makes a fiber whose first run calls the body. */
void fiber_start(int i);
/* Runs fiber i until it waits or ends. */
void fiber_resume(int i);
/* Gives the thread of the host back, until somebody sets this fiber's state to RUNS and resumes it. */
void fiber_wait(fiber_state state, const char *file, int line);
/* For ThreadSanitizer. `order` is an address that stands for a group, one of block::order. */
/* What the fibers of first to end - 1 in `state` have done is before what they do from now on. */
void fibers_meet(int first, int end, fiber_state state, void *order);
/* What all fibers of the block do is after what a block before it has done on the same fibers, and the host before the
 * launch; called at the start of a block, at its end, and by the host around a launch. */
void fibers_begin(void);
void fibers_end(void);
void host_begins(void);
void host_ends(block *b);

/* Lets the lanes of a warp go on that are together; false: none. */
bool warp_go_on(int first, int end);

/* What shared memory is: at the start of a launch, before each block (variables: when a thread of it comes to them), at
 * the end. */
void shared_begin(void);
void shared_reset(void);
void shared_end(void);

/* Says to a race check what an instruction reads or writes. */
void tell_read_16(const void *p);
void tell_write_16(void *p);
