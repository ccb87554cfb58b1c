/* fault.c - "fail the n-th", one switch per kind and thread. */
#include "base/fault.h"

static _Thread_local struct {
    long left; /* uses until the fault; 0: off */
    bool hit;
} faults[FSDP__FAULT_KINDS];
static _Thread_local int resting;

void fsdp__fault_arm(fsdp__fault_kind kind, long nth)
{
    faults[kind].left = nth;
    faults[kind].hit = false;
}

bool fsdp__fault_hit(fsdp__fault_kind kind)
{
    return faults[kind].hit;
}

void fsdp__fault_rest(bool on)
{
    resting += on ? 1 : -1;
}

bool fsdp__fault(fsdp__fault_kind kind)
{
    if (resting || faults[kind].left == 0 || --faults[kind].left > 0)
        return false;
    faults[kind].hit = true;
    return true;
}
