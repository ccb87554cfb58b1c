/* on_device.c - finds the prices of a device, which may be here or elsewhere, and its memory. */
#include "cli/on_device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "plan/measure.h"
#include "plan/schedule.h"
#include "train/run_config.h"

enum {
    LONG_SECONDS = 45 /* for a file of prices */
};

fsdp_status fsdp__on_device_numbers(fsdp__on_device *d)
{
    return fsdp__args_number("--network", d->network_text, 1e-6, 1e6, &d->network);
}

fsdp_status fsdp__on_device_measure(fsdp__on_device *d, const char *name)
{
    FSDP_TRY(fsdp__prices_measure(name, LONG_SECONDS, &d->prices));
    d->has_prices = true;
    return FSDP_OK;
}

fsdp_status fsdp__on_device_open(fsdp__on_device *d, const char *name, bool timed, fsdp_train_config *config)
{
    FSDP_TRY(fsdp__prices_find("--device", name, timed, &d->prices));
    d->has_prices = true;
    if (d->network > 0)
        d->prices.network.per_second = d->network * 1e9 / 8;
    return fsdp_train_config_set(config, "training.device", d->prices.gpu ? "cuda" : "cpu");
}

fsdp__plan_question fsdp__on_device_room(const fsdp__on_device *d, const fsdp__on_paper *paper)
{
    fsdp__plan_question q = {.prices = d->has_prices ? &d->prices : NULL};

    q.room = fsdp__room_of(q.prices, (int)(paper->world_size / paper->machine_count), &q.room_name);
    return q;
}

/* ---- parallelism.schedule plan ---- */

/* Writes the schedule to a file in memory, which stays open until the program ends: dry runs read it again and again.
 */
static fsdp_status keep_in_memory(const fsdp__comm_schedule *schedule, char *path, size_t bytes)
{
    int fd = memfd_create("fsdp-schedule", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(dup(fd), "w") : NULL;
    fsdp_status status;

    if (!file)
        return FSDP_FAIL(FSDP_IO, "cannot keep a schedule in memory: %s%s", strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    status = fsdp__comm_schedule_print(schedule, file);
    if (fclose(file) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_IO, "cannot keep a schedule in memory: %s%s", strerrordesc_np(errno),
                           fsdp__limit_behind(errno));
    snprintf(path, bytes, "/proc/self/fd/%d", fd);
    return status;
}

fsdp_status fsdp__on_device_schedule(const fsdp__plan_options *options, double room, fsdp_train_config *config)
{
    double memory = (double)config->parallelism.schedule_memory;
    char path[40] = "";

    if (!fsdp__train_plans_schedule(config))
        return FSDP_OK;
    if (options->prices) {
        FSDP__SCOPED(fsdp__scheduled_release) fsdp__scheduled found = {0};

        FSDP_TRY(fsdp__schedule_find(config, options, memory > 0 ? memory : room, FSDP__SCHEDULE_TRIES, &found));
        FSDP_TRY(keep_in_memory(found.plan, path, sizeof path));
    } else {
        FSDP_TRY(fsdp__train_config_check_step(config, options->world_size)); /* it may refuse schedules */
        (void)fsdp__failure("warning: parallelism.schedule plan is planned by the times of a device, and without "
                            "--device, or with --no-time, there are none: what follows is of blocks");
    }
    FSDP_TRY(fsdp_train_config_set(config, "parallelism.schedule_prices", ""));
    config->parallelism.schedule_memory = 0;
    return fsdp_train_config_set(config, "parallelism.schedule", path);
}
