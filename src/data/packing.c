/* packing.c - divides rows into windows, and reads them. */
#include "data/packing.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"

FSDP__SCOPED_POINTER(fsdp__packed, fsdp__packed_free)

/* Holds what is needed while rows are packed. */
typedef struct packer {
    fsdp__packed *packed;
    int64_t part_count, part_capacity;
    int64_t *window_of; /* each part's window */
    int64_t windows;
} packer;

/* ---- parts: rows, and what becomes of those that are too long ---- */

static fsdp_status refuse_long(const fsdp__packed *p, int64_t row, int64_t end)
{
    int64_t length = p->options.seq_len, count = 0;

    for (int64_t r = row; r < end; r++)
        count += fsdp__rows_length(p->rows, r) > length;
    return FSDP_FAIL(
        FSDP_INVALID,
        "row %lld of '%s' has %lld tokens, which is more than training.seq_len (--seq-len) %lld (%lld "
        "such row%s): take a larger training.seq_len, or say what happens to such rows by data.on_long_row "
        "(--on-long-row): truncate, split or skip",
        (long long)row + 1, fsdp__rows_text(p->rows), (long long)fsdp__rows_length(p->rows, row), (long long)length,
        (long long)count, fsdp__plural(count));
}

static fsdp_status add_part(packer *k, int64_t row, int64_t first, int64_t count, bool goes_on)
{
    fsdp__packed *p = k->packed;

    FSDP_TRY(fsdp__grow(&p->parts, k->part_count, &k->part_capacity, sizeof *p->parts));
    p->parts[k->part_count++] = (fsdp__packed_row){.row = row, .first = first, .count = count, .goes_on = goes_on};
    p->tokens += count;
    return FSDP_OK;
}

/* Refuses a pair, whose first row this is. */
static fsdp_status refuse_pair(const fsdp__packed *p, int64_t row, bool fits)
{
    long long pair = (long long)row / 2 + 1, first = (long long)fsdp__rows_length(p->rows, row);
    long long second = (long long)fsdp__rows_length(p->rows, row + 1);

    if (fits)
        return FSDP_FAIL(FSDP_INVALID,
                         "pair %lld of '%s' has %lld and %lld tokens, and the model has %lld positions: leave such "
                         "pairs out with data.on_long_row: skip (--on-long-row skip)",
                         pair, fsdp__rows_text(p->rows), first, second, (long long)p->options.row_most);
    return FSDP_FAIL(FSDP_INVALID,
                     "pair %lld of '%s' has %lld and %lld tokens, which do not fit training.seq_len (--seq-len) %lld "
                     "together: take a larger training.seq_len, or leave such pairs out with data.on_long_row: skip "
                     "(--on-long-row skip)",
                     pair, fsdp__rows_text(p->rows), first, second, (long long)p->options.seq_len);
}

/* Adds what is used of a row that is too long. */
static fsdp_status add_long(packer *k, int64_t row, int64_t count)
{
    fsdp__packed *p = k->packed;
    int64_t length = p->options.seq_len;

    p->long_rows++;
    p->row_count += p->options.long_row != FSDP_LONG_ROW_SKIP;
    if (p->options.long_row == FSDP_LONG_ROW_SPLIT) {
        for (int64_t first = 0; first < count; first += length)
            FSDP_TRY(add_part(k, row, first, FSDP__MIN(count - first, length), first + length < count));
        return FSDP_OK;
    }
    p->left_out += count;
    if (p->options.long_row == FSDP_LONG_ROW_SKIP)
        return FSDP_OK;
    p->left_out -= length;
    return add_part(k, row, 0, length, false);
}

int64_t fsdp__packed_end(const fsdp__packed *p)
{
    return p->options.row_count > 0 ? p->options.first_row + p->options.row_count : fsdp__rows_count(p->rows);
}

/* Adds a pair, unless it is too long. */
static fsdp_status add_pair(packer *k, int64_t row)
{
    fsdp__packed *p = k->packed;
    int64_t first = fsdp__rows_length(p->rows, row), second = fsdp__rows_length(p->rows, row + 1);

    int64_t most = p->options.row_most > 0 ? p->options.row_most : p->options.seq_len;

    if (first + second > p->options.seq_len || FSDP__MAX(first, second) > most) {
        p->long_rows += 2;
        p->left_out += first + second;
        return p->options.long_row == FSDP_LONG_ROW_ERROR ? refuse_pair(p, row, first + second <= p->options.seq_len)
                                                          : FSDP_OK;
    }
    p->row_count += 2;
    FSDP_TRY(add_part(k, row, 0, first, false));
    return add_part(k, row + 1, 0, second, false);
}

static fsdp_status add_pairs(packer *k)
{
    const fsdp__packed *p = k->packed;
    int64_t first = p->options.first_row, end = fsdp__packed_end(p);

    for (int64_t row = first; row + 1 < end; row += 2)
        FSDP_TRY(add_pair(k, row));
    if (k->part_count > 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "all %lld pairs of '%s' have more tokens than training.seq_len %lld, and are left out",
                     (long long)(end - first) / 2, fsdp__rows_text(p->rows), (long long)p->options.seq_len);
}

static fsdp_status add_parts(packer *k)
{
    fsdp__packed *p = k->packed;
    const fsdp__packing_options *o = &p->options;
    int64_t end = fsdp__packed_end(p);

    for (int64_t row = o->first_row; row < end; row++) {
        int64_t count = fsdp__rows_length(p->rows, row);

        if (count > o->seq_len && o->long_row == FSDP_LONG_ROW_ERROR)
            return refuse_long(p, row, end);
        if (count > o->seq_len) {
            FSDP_TRY(add_long(k, row, count));
            continue;
        }
        FSDP_TRY(add_part(k, row, 0, count, false));
        p->row_count++;
    }
    if (k->part_count > 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "all %lld rows of '%s' have more tokens than training.seq_len %lld, and are left out",
                     (long long)(end - o->first_row), fsdp__rows_text(p->rows), (long long)o->seq_len);
}

/* ---- which window ---- */

static void pad(packer *k)
{
    for (int64_t i = 0; i < k->part_count; i++)
        k->window_of[i] = k->windows++;
}

static void next_fit(packer *k)
{
    const fsdp__packed *p = k->packed;
    int64_t left = 0;

    for (int64_t i = 0; i < k->part_count; i++) {
        if (p->parts[i].count > left) {
            k->windows++;
            left = p->options.seq_len;
        }
        left -= p->parts[i].count;
        k->window_of[i] = k->windows - 1;
    }
}

static void pair(packer *k)
{
    for (int64_t i = 0; i < k->part_count; i++)
        k->window_of[i] = i / 2;
    k->windows = k->part_count / 2;
}

/* Windows by the room they have left: a stack for each number of tokens. */
typedef struct rooms {
    int64_t *top;   /* of the stack of windows with this much room, from 0 to `most`; -1: none */
    int64_t *below; /* of each window: the next in its stack */
    uint64_t *some; /* a bit for each stack that is not empty */
    int64_t most;   /* seq_len */
} rooms;

static void put_window(rooms *r, int64_t window, int64_t room)
{
    r->below[window] = r->top[room];
    r->top[room] = window;
    r->some[room / 64] |= (uint64_t)1 << room % 64;
}

/* Returns the least room of any window that is enough; -1: none has it. */
static int64_t find_room(const rooms *r, int64_t needed)
{
    uint64_t bits = r->some[needed / 64] & ~(uint64_t)0 << needed % 64;

    for (int64_t word = needed / 64;; bits = r->some[word]) {
        if (bits)
            return word * 64 + __builtin_ctzll(bits);
        if (++word > r->most / 64)
            return -1;
    }
}

static int64_t take_window(rooms *r, int64_t room)
{
    int64_t window = r->top[room];

    r->top[room] = r->below[window];
    if (r->top[room] < 0)
        r->some[room / 64] &= ~((uint64_t)1 << room % 64);
    return window;
}

/* Gives each part a window: `order` has the longest parts first, and those of one length in the order of the rows. */
static void fill_rooms(packer *k, rooms *r, const int64_t *order)
{
    for (int64_t i = 0; i < k->part_count; i++) {
        int64_t count = k->packed->parts[order[i]].count, room = find_room(r, count);
        int64_t window = room < 0 ? k->windows++ : take_window(r, room);

        k->window_of[order[i]] = window;
        put_window(r, window, (room < 0 ? r->most : room) - count);
    }
}

/* Sorts parts by their length, the longest first. `begin` has room for seq_len + 2 numbers. */
static void sort_by_length(const packer *k, int64_t *begin, int64_t *order)
{
    int64_t most = k->packed->options.seq_len;

    memset(begin, 0, (size_t)(most + 2) * sizeof *begin);
    for (int64_t i = 0; i < k->part_count; i++)
        begin[most - k->packed->parts[i].count + 1]++;
    for (int64_t i = 0; i <= most; i++)
        begin[i + 1] += begin[i];
    for (int64_t i = 0; i < k->part_count; i++)
        order[begin[most - k->packed->parts[i].count]++] = i;
}

/* Numbers windows by the first of their parts. */
static void number_windows(packer *k, int64_t *number)
{
    int64_t next = 0;

    for (int64_t w = 0; w < k->windows; w++)
        number[w] = -1;
    for (int64_t i = 0; i < k->part_count; i++) {
        int64_t *of = &number[k->window_of[i]];

        if (*of < 0)
            *of = next++;
        k->window_of[i] = *of;
    }
}

static fsdp_status best_fit(packer *k)
{
    int64_t most = k->packed->options.seq_len;
    FSDP__FREED int64_t *top = fsdp__calloc((size_t)most + 2, sizeof *top);
    FSDP__FREED int64_t *below = fsdp__calloc((size_t)k->part_count, sizeof *below);
    FSDP__FREED int64_t *order = fsdp__calloc((size_t)k->part_count, sizeof *order);
    FSDP__FREED uint64_t *some = fsdp__calloc((size_t)most / 64 + 1, sizeof *some);
    rooms r = {.top = top, .below = below, .some = some, .most = most};

    FSDP__TRY_NEW(top && below && order && some);
    sort_by_length(k, top, order);
    for (int64_t i = 0; i <= most; i++)
        top[i] = -1;
    fill_rooms(k, &r, order);
    number_windows(k, below);
    return FSDP_OK;
}

/* Brings parts into the order of their windows, and in those into the order of the rows. */
static fsdp_status sort_by_window(packer *k)
{
    fsdp__packed *p = k->packed;
    fsdp__packed_row *sorted = fsdp__calloc((size_t)k->part_count, sizeof *sorted);
    FSDP__FREED int64_t *at = fsdp__calloc((size_t)k->windows, sizeof *at);

    p->begins = fsdp__calloc((size_t)k->windows + 1, sizeof *p->begins);
    if (!sorted || !at || !p->begins) {
        fsdp__free(sorted);
        FSDP__TRY_NEW(NULL);
    }
    for (int64_t i = 0; i < k->part_count; i++)
        p->begins[k->window_of[i] + 1]++;
    for (int64_t w = 0; w < k->windows; w++) {
        at[w] = p->begins[w];
        p->begins[w + 1] += p->begins[w];
    }
    for (int64_t i = 0; i < k->part_count; i++)
        sorted[at[k->window_of[i]]++] = p->parts[i];
    fsdp__free(p->parts);
    p->parts = sorted;
    p->windows = k->windows;
    return FSDP_OK;
}

static fsdp_status divide(packer *k)
{
    FSDP__FREED int64_t *window_of = NULL;

    FSDP_TRY((k->packed->options.packing == FSDP_PACKING_PAIRS ? add_pairs : add_parts)(k));
    FSDP__TRY_NEW(window_of = k->window_of = fsdp__calloc((size_t)k->part_count, sizeof *window_of));
    switch (k->packed->options.packing) {
    case FSDP_PACKING_PAD:
        pad(k);
        break;
    case FSDP_PACKING_NEXT_FIT:
        next_fit(k);
        break;
    case FSDP_PACKING_BEST_FIT:
        FSDP_TRY(best_fit(k));
        break;
    case FSDP_PACKING_PAIRS:
        pair(k);
        break;
    }
    return sort_by_window(k);
}

fsdp_status fsdp__pack(const fsdp__rows *rows, const fsdp__packing_options *options, fsdp__packed **out)
{
    FSDP__SCOPED(fsdp__packed_free_at) fsdp__packed *packed = NULL;

    *out = NULL;
    if (rows->pairs && options->packing != FSDP_PACKING_PAIRS)
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' has pairs of chosen and rejected answers, which are compared and have no loss of their "
                         "own: training.objective: dpo of 'fsdp train' reads them",
                         fsdp__rows_text(rows));
    FSDP__TRY_NEW(packed = fsdp__calloc(1, sizeof *packed));
    packed->rows = rows;
    packed->options = *options;
    FSDP_TRY(divide(&(packer){.packed = packed}));
    *out = fsdp__take(&packed);
    return FSDP_OK;
}

void fsdp__packed_free(fsdp__packed *packed)
{
    if (!packed)
        return;
    FSDP__FREE_ALL(packed->parts, packed->begins, packed);
}

/* ---- reading ---- */

enum {
    CHUNK = 512 /* tokens that are read at a time, and one more */
};

static fsdp_status check_vocabulary(const fsdp__packed *p, const fsdp__packed_row *part, int64_t vocabulary,
                                    const int32_t *ids)
{
    if (vocabulary == 0)
        return FSDP_OK;
    for (int64_t i = 0; i < part->count; i++)
        if (ids[i] >= vocabulary)
            return FSDP_FAIL(FSDP_FORMAT, "token %d of row %lld of '%s' is beyond the vocabulary of %lld", (int)ids[i],
                             (long long)part->row + 1, fsdp__rows_text(p->rows), (long long)vocabulary);
    return FSDP_OK;
}

/* Writes the targets: each token's is the next one, where that is learned. */
static fsdp_status read_targets(const fsdp__packed *p, const fsdp__packed_row *part, int32_t *targets)
{
    int64_t last = part->count - !part->goes_on; /* so many tokens have one after them */
    int32_t next[CHUNK];
    bool learned[CHUNK];

    for (int64_t done = 0; done < last; done += CHUNK) {
        int64_t count = FSDP__MIN(last - done, (int64_t)CHUNK);

        FSDP_TRY(fsdp__rows_get(p->rows, part->row, part->first + done + 1, count, next, learned));
        for (int64_t i = 0; i < count; i++)
            targets[done + i] = p->options.all || learned[i] ? next[i] : FSDP__NO_TARGET;
    }
    return FSDP_OK;
}

fsdp_status fsdp__packed_read(const fsdp__packed *packed, int64_t vocab_size, int64_t window, int32_t *inputs,
                              int32_t *targets, int32_t *positions)
{
    int64_t length = packed->options.seq_len, at = 0;

    memset(inputs, 0, (size_t)length * sizeof *inputs);
    if (positions)
        memset(positions, 0, (size_t)length * sizeof *positions);
    for (int64_t i = 0; i < length; i++)
        targets[i] = FSDP__NO_TARGET;
    for (int64_t i = packed->begins[window]; i < packed->begins[window + 1]; i++) {
        const fsdp__packed_row *part = &packed->parts[i];

        FSDP_TRY(fsdp__rows_get(packed->rows, part->row, part->first, part->count, inputs + at, NULL));
        FSDP_TRY(check_vocabulary(packed, part, vocab_size, inputs + at));
        FSDP_TRY(read_targets(packed, part, targets + at));
        for (int64_t t = 0; positions && t < part->count; t++)
            positions[at + t] = (int32_t)t;
        at += part->count;
    }
    return FSDP_OK;
}

fsdp_status fsdp__packed_answers(const fsdp__packed *packed, int64_t window, int64_t *out)
{
    *out = 0;
    for (int64_t i = packed->begins[window]; i < packed->begins[window + 1]; i++) {
        const fsdp__packed_row *part = &packed->parts[i];
        int64_t count = part->count - !part->goes_on, learned = count;

        if (!packed->options.all)
            FSDP_TRY(fsdp__rows_learned(packed->rows, part->row, part->first + 1, count, &learned));
        *out += learned;
    }
    return FSDP_OK;
}

int64_t fsdp__packed_tokens(const fsdp__packed *packed, int64_t window)
{
    int64_t count = 0;

    for (int64_t i = packed->begins[window]; i < packed->begins[window + 1]; i++)
        count += packed->parts[i].count;
    return count;
}
