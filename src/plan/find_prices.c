/* find_prices.c - finds prices by name. */
#include "plan/find_prices.h"

#include <string.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "plan/measure.h"

fsdp_status fsdp__prices_find(const char *option, const char *name, bool timed, fsdp__prices *out)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0)
        return fsdp__prices_measure(name, timed ? FSDP__PRICES_QUICK : -1, out);
    if (strncmp(name, "cuda:", 5) == 0)
        return fsdp__prices_of_card(name + 5, out);
    if (strchr(name, '/') || fsdp__path_exists(name) || fsdp__ends_with(name, ".json"))
        return fsdp__prices_read(name, out);
    return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected cpu, cuda, cuda:CARD, or a file of prices", option, name);
}

void fsdp__prices_of_machine(int threads, int ranks_of_machine, fsdp__prices *prices)
{
    double times = (double)threads / prices->cores * ranks_of_machine;

    for (int i = 0; i < prices->rate_count; i++)
        prices->rates[i].per_second *= times;
    prices->per_second *= times;
    prices->cores = threads * ranks_of_machine;
}

double fsdp__room_of(const fsdp__prices *prices, int ranks_of_machine, const char **name)
{
    if (!prices) {
        fsdp__memory_limit limit = fsdp__memory_limit_of_all();

        *name = limit.name;
        return limit.bytes == FSDP__NO_LIMIT ? 0 : (double)limit.bytes / ranks_of_machine;
    }
    *name = prices->gpu ? "all memory of the card" : "its share of the machine's memory";
    return prices->gpu ? prices->memory_bytes : prices->memory_bytes / ranks_of_machine;
}
