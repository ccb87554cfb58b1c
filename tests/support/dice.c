/* dice.c - numbers from a seed. */
#include "support/dice.h"

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
