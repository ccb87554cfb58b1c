/* degrees.c - checks degrees of parallelism against ranks, heads and lengths. */
#include "parallel/degrees.h"

#include "base/compiler.h"
#include "base/text.h"

/* ---- ranks ---- */

static fsdp_status check_divides(int world_size, fsdp__degree degree)
{
    return world_size % degree.ranks == 0
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "%s is %lld, but there %s %d rank%s: expected a number that divides them",
                           degree.key, (long long)degree.ranks, world_size == 1 ? "is" : "are", world_size,
                           fsdp__plural(world_size));
}

fsdp_status fsdp__check_teams(int world_size, fsdp__degree tensors, fsdp__degree sequences)
{
    FSDP_TRY(check_divides(world_size, tensors));
    FSDP_TRY(check_divides(world_size, sequences));
    if (world_size % (tensors.ranks * sequences.ranks) == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "%s %lld and %s %lld make teams of %lld ranks, but there %s %d: expected degrees whose product "
                     "divides them",
                     tensors.key, (long long)tensors.ranks, sequences.key, (long long)sequences.ranks,
                     (long long)(tensors.ranks * sequences.ranks), world_size == 1 ? "is" : "are", world_size);
}

/* ---- heads ---- */

/* Writes the degrees that divide both numbers of heads: "1, 2 or 4". */
static void degrees_text(const fsdp_model_config *c, char *text, size_t bytes)
{
    int64_t found[64];
    int count = 0;
    size_t used = 0;

    for (int64_t d = 1; d <= c->n_kv_heads && count < (int)FSDP__COUNT_OF(found); d++)
        if (c->n_heads % d == 0 && c->n_kv_heads % d == 0)
            found[count++] = d;
    for (int i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld",
                                 i == 0           ? ""
                                 : i + 1 == count ? " or "
                                                  : ", ",
                                 (long long)found[i]);
}

fsdp_status fsdp__check_heads(fsdp__degree tensors, const fsdp_model_config *c, const char *heads, const char *kv_heads)
{
    bool of_queries = c->n_heads % tensors.ranks != 0;
    char text[512] = "";

    if (!of_queries && c->n_kv_heads % tensors.ranks == 0)
        return FSDP_OK;
    degrees_text(c, text, sizeof text);
    return FSDP_FAIL(FSDP_INVALID, "%s is %lld, which does not divide the model's %lld %s (%s): expected %s",
                     tensors.key, (long long)tensors.ranks, (long long)(of_queries ? c->n_heads : c->n_kv_heads),
                     of_queries ? "heads" : "key/value heads", of_queries ? heads : kv_heads, text);
}

/* ---- lengths ---- */

fsdp_status fsdp__check_cut_length(const char *what, int64_t length, fsdp__degree sequences)
{
    int64_t unit = 2 * sequences.ranks, below = length / unit * unit;
    char nearest[80];

    if (length % unit == 0 && length > 0)
        return FSDP_OK;
    if (below == 0)
        snprintf(nearest, sizeof nearest, " is %lld", (long long)unit);
    else
        snprintf(nearest, sizeof nearest, " are %lld and %lld", (long long)below, (long long)(below + unit));
    return FSDP_FAIL(FSDP_INVALID,
                     "%s %lld cannot be cut into %lld equal chunks, two for each of %lld rank%s%s%s%s: the nearest "
                     "that can%s",
                     what, (long long)length, (long long)unit, (long long)sequences.ranks,
                     fsdp__plural(sequences.ranks), sequences.key ? " (" : "", sequences.key ? sequences.key : "",
                     sequences.key ? ")" : "", nearest);
}
