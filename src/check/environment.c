/* environment.c - the variables of tests of whole programs, read where a context is made from the environment:
 *   FSDP_TEST_RACES=1     its devices are checked for races
 *   FSDP_TEST_DEVICE=sim  the device that public entry points use
 *   FSDP_TEST_MACHINES=M  the ranks, which run on one machine, add as those of M machines do */
#include <stdlib.h>
#include <string.h>

#include "base/probe.h"
#include "check/races.h"
#include "comm/group_calls.h"
#include "device/device.h"

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    const char *races = getenv("FSDP_TEST_RACES"), *name = getenv("FSDP_TEST_DEVICE"),
               *machines = getenv("FSDP_TEST_MACHINES");
    fsdp_context *context = (fsdp_context *)(uintptr_t)e->context;
    int ranks = fsdp_context_world_size(context), count = machines ? atoi(machines) : 1;
    fsdp_device *device;

    (void)arg;
    if (count > 1 && ranks % count == 0)
        fsdp__context_add_by_machine(context, ranks / count);
    if (races && strcmp(races, "1") == 0)
        FSDP_TRY(fsdp__races_check(context, NULL));
    if (!name || !*name)
        return FSDP_OK;
    device = fsdp__device_open(context, name, 0);
    if (!device)
        return fsdp_last_status();
    fsdp__set_front_device(device);
    return FSDP_OK;
}

__attribute__((constructor)) static void subscribe(void)
{
    static fsdp__subscriber environment = {.points = FSDP__POINT_BIT(FSDP__POINT_CONTEXT_OPENED), .see = see};

    fsdp__subscribe(&environment);
}
