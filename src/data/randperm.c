/* randperm.c - the Mersenne Twister, mt19937, and a shuffle by its numbers. */
#include "data/randperm.h"

enum {
    WORDS = 624,
    MIDDLE = 397
};

typedef struct twister {
    uint32_t state[WORDS];
    int next;
} twister;

static void seed_twister(twister *t, uint32_t seed)
{
    t->state[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        t->state[i] = 1812433253u * (t->state[i - 1] ^ t->state[i - 1] >> 30) + i;
    t->next = WORDS;
}

static void refresh(twister *t)
{
    for (int i = 0; i < WORDS; i++) {
        uint32_t y = (t->state[i] & 0x80000000u) | (t->state[(i + 1) % WORDS] & 0x7fffffffu);

        t->state[i] = t->state[(i + MIDDLE) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

static uint32_t draw(twister *t)
{
    uint32_t y;

    if (t->next == WORDS)
        refresh(t);
    y = t->state[t->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void fsdp__randperm(int64_t n, uint64_t seed, int64_t *out)
{
    twister t;

    seed_twister(&t, (uint32_t)seed);
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = 0; i + 1 < n; i++) {
        int64_t other = i + (int64_t)(draw(&t) % (uint64_t)(n - i)), saved = out[i];

        out[i] = out[other];
        out[other] = saved;
    }
}
