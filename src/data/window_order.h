/* window_order.h - the order in which windows are visited.
 *
 * A shuffled epoch is a keyed permutation of [0, windows) that is computed, not stored: an unbalanced Feistel network
 * over Z_a x Z_b with a * b just over the number of windows. The few values outside are skipped by walking along the
 * cycle. Any window of any epoch costs the same few calls of Philox, wherever a run resumes. */
#ifndef DATA_WINDOW_ORDER_H
#define DATA_WINDOW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp__order {
    int64_t windows; /* per epoch, at least 1 */
    bool shuffle;
    uint64_t seed;
    /* Filled by fsdp__order_at. */
    int64_t epoch; /* the epoch that `key` belongs to; -1: none yet */
    uint64_t key;
    uint64_t left, right; /* left * right >= windows */
} fsdp__order;

void fsdp__order_init(fsdp__order *order, int64_t windows, bool shuffle, uint64_t seed);
/* Returns the window at `position` (from 0), counted over all epochs. It stores the epoch's key in `order`, so each
 * thread needs an object of its own. */
int64_t fsdp__order_at(fsdp__order *order, int64_t position);

#endif
