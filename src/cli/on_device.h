/* on_device.h - the device of a run that nobody starts, what it takes there, and how much memory there is. */
#pragma once

#include "cli/on_paper.h"
#include "plan/show_plan.h"

typedef struct fsdp__on_device {
    const char *name, *network_text; /* as they were given, or NULL */
    double network;                  /* Gbit/s; 0: not given */
    fsdp__prices prices;
    bool has_prices;
} fsdp__on_device;

/* Lists the options that set the words. */
#define FSDP__ON_DEVICE_OPTIONS(d)             \
    {"device", 0, &(d)->name, NULL},           \
    {                                          \
        "network", 0, &(d)->network_text, NULL \
    }

/* Reads the numbers. */
fsdp_status fsdp__on_device_numbers(fsdp__on_device *d);
/* Measures the device that `name` names, which is here, for some seconds. */
fsdp_status fsdp__on_device_measure(fsdp__on_device *d, const char *name);
/* Gets the prices of the device `name`: one that is here, a card, or a file of prices; and makes the run that is asked
 * about one on that device. Where nobody asks for the time, one that is here is not measured. */
fsdp_status fsdp__on_device_open(fsdp__on_device *d, const char *name, bool timed, fsdp_train_config *config);
/* Finds out how much memory a rank has there: fsdp__room_of. Without prices that is this machine's. */
fsdp__plan_question fsdp__on_device_room(const fsdp__on_device *d, const fsdp__on_paper *paper);

/* Answers for parallelism.schedule plan: finds the schedule that a run would find by these prices, in the memory that
 * the config gives or in `room`, and makes the config one that follows it. Without prices the config is one by blocks,
 * and a line says so. Does nothing for another config. */
fsdp_status fsdp__on_device_schedule(const fsdp__plan_options *options, double room, fsdp_train_config *config);
