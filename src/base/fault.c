/* fault.c - "fail the n-th", one switch per kind and thread. */
#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static _Thread_local fsdp__fault_switches faults = {.error = ENOSPC};
static _Thread_local int resting;

void fsdp__fault_arm(fsdp__fault_kind kind, long nth)
{
    faults.kinds[kind] = (fsdp__fault_switch){.left = nth, .armed = nth};
}

bool fsdp__fault_hit(fsdp__fault_kind kind)
{
    return faults.kinds[kind].hit;
}

long fsdp__fault_uses(fsdp__fault_kind kind)
{
    return faults.kinds[kind].armed - faults.kinds[kind].left;
}

void fsdp__fault_set_act(fsdp__fault_act act, int error)
{
    faults.act = act;
    faults.error = error;
}

void fsdp__fault_take(fsdp__fault_switches *out)
{
    *out = faults;
    for (int kind = 0; kind < FSDP__FAULT_KINDS; kind++)
        if (kind != FSDP__FAULT_COLLECTIVE)
            faults.kinds[kind] = (fsdp__fault_switch){.left = 0};
}

void fsdp__fault_give(const fsdp__fault_switches *from)
{
    fsdp__fault_switch collectives = faults.kinds[FSDP__FAULT_COLLECTIVE];

    faults = *from;
    faults.kinds[FSDP__FAULT_COLLECTIVE] = collectives;
}

void fsdp__fault_rest(bool on)
{
    resting += on ? 1 : -1;
}

bool fsdp__fault(fsdp__fault_kind kind)
{
    fsdp__fault_switch *own = &faults.kinds[kind];

    if (resting || own->left == 0 || --own->left > 0)
        return false;
    own->hit = true;
    return true;
}

/* Kills the process at once: nothing of it runs any more, not even its exit handlers. */
static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

bool fsdp__fault_file(fsdp__fault_kind kind, size_t *bytes)
{
    if (faults.killing)
        die();
    if (!fsdp__fault(kind))
        return false;
    switch (faults.act) {
    case FSDP__FAULT_FAILS:
        errno = faults.error;
        return true;
    case FSDP__FAULT_KILLS:
        die();
        break;
    case FSDP__FAULT_KILLS_HALF:
        faults.killing = true;
        break;
    case FSDP__FAULT_SHORTENS:
        break;
    case FSDP__FAULT_DELAYS:
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        return false;
    }
    if (bytes && *bytes > 2)
        *bytes = *bytes / 2 - 1;
    return false;
}
