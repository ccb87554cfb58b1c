/* on_device.c - finds the prices of a device, which may be here or elsewhere, and its memory. */
#include "cli/on_device.h"

#include "base/limits.h"
#include "plan/find_prices.h"
#include "plan/measure.h"

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

fsdp_status fsdp__on_device_open(fsdp__on_device *d, const char *name, fsdp_train_config *config)
{
    FSDP_TRY(fsdp__prices_find("--device", name, &d->prices));
    d->has_prices = true;
    if (d->network > 0)
        d->prices.network.per_second = d->network * 1e9 / 8;
    return fsdp_train_config_set(config, "training.device", d->prices.gpu ? "cuda" : "cpu");
}

fsdp__plan_question fsdp__on_device_room(const fsdp__on_device *d, const fsdp__on_paper *paper)
{
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    int ranks = (int)(paper->world_size / paper->machine_count);
    fsdp__plan_question q = {.prices = d->has_prices ? &d->prices : NULL};

    if (d->has_prices && d->prices.memory_bytes > 0) {
        q.room = fsdp__prices_room(&d->prices, ranks, &q.room_name);
    } else if (!d->has_prices && limit.bytes != FSDP__NO_LIMIT) {
        q.room = (double)limit.bytes / ranks;
        q.room_name = limit.name;
    }
    return q;
}
