/* on_device.c - finds the prices of a device, which may be here or elsewhere, and its memory. */
#include "cli/on_device.h"

#include <string.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "plan/cards.h"
#include "plan/measure.h"
#include "plan/prices_file.h"

enum {
    QUICK_SECONDS = 3 /* before a plan */
};

fsdp_status fsdp__on_device_numbers(fsdp__on_device *d)
{
    return d->network_text ? fsdp__args_number("--network", d->network_text, 1e-6, 1e6, &d->network) : FSDP_OK;
}

fsdp_status fsdp__on_device_measure(fsdp__on_device *d, const char *name, double seconds)
{
    FSDP_TRY(fsdp__prices_measure(name, seconds, &d->prices));
    d->has_prices = true;
    return FSDP_OK;
}

static fsdp_status find_prices(fsdp__on_device *d, const char *name)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0)
        return fsdp__on_device_measure(d, name, QUICK_SECONDS);
    if (strncmp(name, "cuda:", 5) == 0)
        FSDP_TRY(fsdp__prices_of_card(name + 5, &d->prices));
    else if (strchr(name, '/') || fsdp__path_exists(name) || fsdp__ends_with(name, ".json"))
        FSDP_TRY(fsdp__prices_read(name, &d->prices));
    else
        return FSDP_FAIL(FSDP_INVALID, "--device is '%s': expected cpu, cuda, cuda:CARD, or a file of prices", name);
    d->has_prices = true;
    return FSDP_OK;
}

fsdp_status fsdp__on_device_open(fsdp__on_device *d, const char *name, fsdp_train_config *config)
{
    FSDP_TRY(find_prices(d, name));
    if (d->network > 0)
        d->prices.network.per_second = d->network * 1e9 / 8;
    return fsdp_train_config_set(config, "training.device", d->prices.gpu ? "cuda" : "cpu");
}

fsdp__plan_question fsdp__on_device_room(const fsdp__on_device *d, const fsdp__on_paper *paper)
{
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    double ranks = (double)(paper->world_size / paper->machine_count);
    fsdp__plan_question q = {.prices = d->has_prices ? &d->prices : NULL};

    if (d->has_prices && d->prices.memory_bytes > 0) {
        q.room = d->prices.gpu ? d->prices.memory_bytes : d->prices.memory_bytes / ranks;
        q.room_name = d->prices.gpu ? "all memory of the card" : "its share of the machine's memory";
    } else if (!d->has_prices && limit.bytes != FSDP__NO_LIMIT) {
        q.room = (double)limit.bytes / ranks;
        q.room_name = limit.name;
    }
    return q;
}
