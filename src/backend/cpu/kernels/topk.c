/* topk.c - finds the indices of the largest, or smallest, of each row.
 *
 * A value and its index make one whole number, in the order that is wanted, so no two are equal. Numbers that may be
 * among the k smallest are collected, up to somewhat more than 2k; then all but the k smallest of them are dropped, and
 * from then on only numbers smaller than the largest of these are collected. Loops over numbers have no branch that
 * depends on them. */
#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

enum {
    BLOCK = 64,    /* numbers that are read between checks of the room */
    SPARE = 512,   /* room beside twice k: few numbers of a short row are dropped before its end */
    INSERTED = 12, /* at most so many are sorted by insertion */
};

/* Makes the number to sort by. NaN is larger than everything; -0 equals 0. */
FSDP__INLINE uint64_t key_of(float x, int64_t index, bool largest)
{
    uint32_t bits = x != x ? 0x7fc00000u : fsdp__float_bits(x == 0.0f ? 0.0f : x);

    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)(largest ? ~bits : bits) << 32 | (uint64_t)index;
}

FSDP__INLINE uint64_t middle(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t low = FSDP__MIN(a, b), high = FSDP__MAX(a, b);

    return FSDP__MAX(low, FSDP__MIN(high, c));
}

/* Moves those up to a pivot, which is one of them, to the front, and returns how many they are: 1 to n - 1 if n > 2. */
static int64_t divide(uint64_t *keys, int64_t n)
{
    uint64_t pivot = middle(keys[n / 8], keys[n / 2], keys[n - 1 - n / 8]);
    int64_t count = 0;

    for (int64_t i = 0; i < n; i++) {
        uint64_t key = keys[i];

        keys[i] = keys[count];
        keys[count] = key;
        count += key <= pivot;
    }
    return count;
}

/* Moves the k smallest of n to the front, 0 < k < n. */
static void select_smallest(uint64_t *keys, int64_t n, int64_t k)
{
    while (n > 2 && k < n) {
        int64_t count = divide(keys, n);

        if (k == count)
            return;
        if (k < count) {
            n = count;
        } else {
            keys += count;
            n -= count;
            k -= count;
        }
    }
    if (n == 2 && k == 1 && keys[1] < keys[0]) {
        uint64_t key = keys[0];

        keys[0] = keys[1];
        keys[1] = key;
    }
}

static void insert(uint64_t *keys, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        uint64_t key = keys[i];
        int64_t at = i;

        for (; at > 0 && keys[at - 1] > key; at--)
            keys[at] = keys[at - 1];
        keys[at] = key;
    }
}

/* Sorts. Only the smaller part is sorted by a call, so that few calls are nested. */
static void sort(uint64_t *keys, int64_t n)
{
    while (n > INSERTED) {
        int64_t count = divide(keys, n);

        if (count <= n - count) {
            sort(keys, count);
            keys += count;
            n -= count;
        } else {
            sort(keys + count, n - count);
            n = count;
        }
    }
    insert(keys, n);
}

/* Drops all but the k smallest, and returns the largest of these. */
static uint64_t throw_out(uint64_t *keys, int64_t n, int64_t k)
{
    uint64_t limit = 0;

    select_smallest(keys, n, k);
    for (int64_t i = 0; i < k; i++)
        limit = FSDP__MAX(limit, keys[i]);
    return limit;
}

/* Selects for one row. `keys` has `room`, at least k + BLOCK. */
static void select_row(const fsdp__topk_args *k, int64_t row, uint64_t *keys, int64_t room)
{
    const void *x = fsdp__at(k->dtype, k->x, row * k->cols);
    int32_t *out = k->indices + row * k->k;
    uint64_t limit = UINT64_MAX;
    int64_t count = 0;

    for (int64_t at = 0, end; at < k->cols; at = end) {
        end = FSDP__MIN(at + BLOCK, k->cols);
        if (count + BLOCK > room) {
            limit = throw_out(keys, count, k->k);
            count = k->k;
        }
        FSDP__EACH_FLOAT(
            k->dtype, T, for (int64_t i = at; i < end; i++) {
                keys[count] = key_of(fsdp__load(T, x, i), i, k->largest);
                count += keys[count] < limit;
            });
    }
    if (k->k < count)
        select_smallest(keys, count, k->k);
    sort(keys, k->k);
    for (int64_t i = 0; i < k->k; i++)
        out[i] = (int32_t)(uint32_t)keys[i];
}

FSDP__KERNEL(topk, k)
{
    int64_t room = FSDP__MIN(2 * k->k + SPARE, k->cols + BLOCK);
    uint64_t *keys;

    if (k->rows == 0 || k->k == 0)
        return FSDP_OK;
    FSDP__TRY_NEW(keys = fsdp__stream_workspace(stream, (size_t)(fsdp__threads() * room) * sizeof *keys));
#pragma omp parallel for schedule(static) if (k->rows * k->cols > FSDP__PARALLEL_MIN)
    for (int64_t row = 0; row < k->rows; row++)
        select_row(k, row, keys + fsdp__thread() * room, room);
    return FSDP_OK;
}
