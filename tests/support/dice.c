/* dice.c - numbers from a seed. */
#include "support/dice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int dice_below(uint64_t *state, int count)
{
    return (int)(next(state) % (uint64_t)count);
}

bool dice_chance(uint64_t *state, int percent)
{
    return dice_below(state, 100) < percent;
}

float dice_normal(uint64_t key, uint64_t index)
{
    uint32_t words[4], *pair = words + (index % 4 & ~(uint64_t)1);
    float radius, angle;

    fsdp__philox(key, index / 4, words);
    radius = sqrtf(-2.0f * logf((float)pair[0] * 0x1p-32f + 0x1p-33f)); /* the logarithm's argument is in (0, 1] */
    angle = 6.283185307179586f * ((float)(pair[1] >> 8) * 0x1p-24f);
    return radius * (index % 2 ? sinf(angle) : cosf(angle));
}

static uint64_t number_from(const char *name, const char *what, uint64_t otherwise)
{
    char variable[64];
    const char *text;

    (void)snprintf(variable, sizeof variable, "FSDP_%s_%s", name, what);
    text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

dice_seeds dice_seeds_of(const char *name, uint64_t usual)
{
    uint64_t only = number_from(name, "SEED", 0), first = number_from(name, "FROM", 1);

    if (only)
        return (dice_seeds){only, only + 1, true};
    return (dice_seeds){first, first + number_from(name, "COUNT", usual), false};
}
