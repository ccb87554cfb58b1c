/* fiber.cpp - stacks, the switch between them, and what sanitizers must know of it. Compiled without ThreadSanitizer,
 * which must not take the host's work between two fibers for that of a thread. */
#include <sys/mman.h>

#include "cudash/block.h"

#ifdef CUDASH_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read16(const void *);
extern "C" void __tsan_write16(void *);
#define TSAN(call) call
#else
#define TSAN(call)
#endif
#if FSDP__ASAN
#include <sanitizer/common_interface_defs.h>
#define ASAN(call) call
#else
#define ASAN(call)
#endif

enum {
    STACK = 128 << 10,
    GUARD = 4 << 10,
    NO_ORDER = 1 /* of a switch: it orders nothing */
};

/* Saves the registers that a call must keep, takes another stack, and restores those saved there. */
extern "C" void cudash_switch(void **save, void *load);
asm(R"(.text
.globl cudash_switch
.hidden cudash_switch
cudash_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

/* `ends`: the fiber never runs again. */
static void to_host(fiber *f, bool ends)
{
    (void)ends;
    TSAN(__tsan_switch_to_fiber(running->host_tsan, NO_ORDER));
    ASAN(__sanitizer_start_switch_fiber(ends ? NULL : &f->fake_stack, running->host_stack, running->host_stack_bytes));
    cudash_switch(&f->sp, running->host_sp);
    ASAN(__sanitizer_finish_switch_fiber(f->fake_stack, NULL, NULL));
    threadIdx = f->index;
}

void fiber_wait(fiber_state state, const char *file, int line)
{
    fiber *f = this_fiber();

    f->state = state;
    f->file = file;
    f->line = line;
    to_host(f, false);
}

static void enter(void)
{
    ASAN(__sanitizer_finish_switch_fiber(NULL, &running->host_stack, &running->host_stack_bytes));
    running->body(running->argument);
    this_fiber()->state = ENDED;
    to_host(this_fiber(), true);
    abort();
}

/* ---- stacks ---- */

static unsigned char *make_stack(void)
{
    unsigned char *p = (unsigned char *)mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE) != 0) {
        perror("cudash: a stack");
        abort();
    }
    return p + GUARD;
}

/* Lets the next fiber have it, while it is in the processor's cache. To ThreadSanitizer what two fibers have done on
 * one stack would be a race: so each keeps its own there. */
static void give_stack(fiber *f)
{
#ifndef CUDASH_TSAN
    running->idle[running->idle_count++] = f->stack;
    f->stack = NULL;
#else
    (void)f;
#endif
}

/* Gives a fiber that has not run yet a stack on which it calls the body. */
static void take_stack(fiber *f)
{
    void **sp;

    if (!f->stack)
        f->stack = running->idle_count > 0 ? running->idle[--running->idle_count] : make_stack();
    sp = (void **)(f->stack + STACK);
    *--sp = NULL; /* keeps the stack aligned as after a call */
    *--sp = (void *)enter;
    for (int r = 0; r < 6; r++)
        *--sp = NULL;
    f->sp = sp;
}

void fiber_resume(int i)
{
    fiber *f = &running->fibers[i];

    running->current = i;
    threadIdx = f->index;
    if (!f->sp)
        take_stack(f);
    TSAN(__tsan_switch_to_fiber(f->tsan, NO_ORDER));
    ASAN(__sanitizer_start_switch_fiber(&running->host_fake_stack, f->stack, STACK));
    cudash_switch(&running->host_sp, f->sp);
    ASAN(__sanitizer_finish_switch_fiber(running->host_fake_stack, NULL, NULL));
    if (f->state == ENDED)
        give_stack(f);
}

void fiber_start(int i)
{
    fiber *f = &running->fibers[i];

    TSAN(f->tsan = f->tsan ? f->tsan : __tsan_create_fiber(0));
    f->state = RUNS;
    f->index = {(unsigned)i, 0, 0};
    f->copies_count = f->groups = 0;
    f->sp = NULL;
}

/* ---- order, for ThreadSanitizer ---- */

#ifdef CUDASH_TSAN
static void each(int first, int end, fiber_state state, void (*function)(void *), void *order)
{
    for (int i = first; i < end; i++)
        if (running->fibers[i].state == state) {
            __tsan_switch_to_fiber(running->fibers[i].tsan, NO_ORDER);
            function(order);
        }
    __tsan_switch_to_fiber(running->host_tsan, NO_ORDER);
}
#endif

void fibers_meet(int first, int end, fiber_state state, void *order)
{
    (void)first, (void)end, (void)state, (void)order;
    TSAN(each(first, end, state, __tsan_release, order));
    TSAN(each(first, end, state, __tsan_acquire, order));
}

void fibers_begin(void)
{
    TSAN(each(0, running->count, RUNS, __tsan_acquire, &running->order[0]));
}

void fibers_end(void)
{
    TSAN(each(0, running->count, ENDED, __tsan_release, &running->order[0]));
}

void host_begins(void)
{
    TSAN(running->host_tsan = __tsan_get_current_fiber());
    TSAN(__tsan_release(&running->order[0]));
}

void host_ends(block *b)
{
    (void)b;
    TSAN(__tsan_acquire(&b->order[0]));
}

void tell_read_16(const void *p)
{
    (void)p;
    TSAN(__tsan_read16(p));
}

void tell_write_16(void *p)
{
    (void)p;
    TSAN(__tsan_write16(p));
}
