/* window_order.c - sequential order and the computed shuffle. */
#include "data/window_order.h"

#include <stdio.h>

#include "base/rng.h"

enum {
    ROUNDS = 8 /* even: both halves are mixed equally often */
};

void fsdp__order_init(fsdp__order *order, int64_t windows, bool shuffle, uint64_t seed)
{
    uint64_t left = 1;

    while (left * left < (uint64_t)windows) /* near the square root both halves are mixed equally well */
        left++;
    *order = (fsdp__order){.windows = windows, .shuffle = shuffle, .seed = seed, .epoch = -1, .left = left};
    order->right = ((uint64_t)windows + left - 1) / left;
}

static uint64_t mix(uint64_t key, int round, uint64_t value)
{
    uint32_t words[4];

    fsdp__philox(key, value * ROUNDS + (uint64_t)round, words);
    return (uint64_t)words[1] << 32 | words[0];
}

/* Applies a bijection of [0, left * right). Each round adds to one half a function of the other half. */
static uint64_t permute(const fsdp__order *order, uint64_t value)
{
    uint64_t low = value % order->left, high = value / order->left;

    for (int round = 0; round < ROUNDS; round += 2) {
        low = (low + mix(order->key, round, high) % order->left) % order->left;
        high = (high + mix(order->key, round + 1, low) % order->right) % order->right;
    }
    return high * order->left + low;
}

int64_t fsdp__order_at(fsdp__order *order, int64_t position)
{
    int64_t epoch = position / order->windows;
    uint64_t window = (uint64_t)(position % order->windows);

    if (!order->shuffle)
        return (int64_t)window;
    if (order->epoch != epoch) {
        char name[48];

        snprintf(name, sizeof name, "shuffle %lld", (long long)epoch);
        order->key = fsdp__rng_key(order->seed, name);
        order->epoch = epoch;
    }
    /* The grid may have a few more places than there are windows. Walking on from those keeps the mapping a
     * bijection. */
    do
        window = permute(order, window);
    while (window >= (uint64_t)order->windows);
    return (int64_t)window;
}
