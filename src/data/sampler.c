/* sampler.c - PyTorch's DistributedSampler, with exactly its permutation. */
#include <stdint.h>

#include "base/alloc.h"
#include "data/sampler.h"

/* ---- PyTorch's permutations: the Mersenne Twister, mt19937, and a shuffle by its numbers ---- */

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

/* Computes torch.randperm(n) of a CPU generator seeded with `seed`, of which only the lower 32 bits count. */
static void randperm(int64_t n, uint64_t seed, int64_t *out)
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

FSDP__SCOPED_POINTER(fsdp_distributed_sampler, fsdp_distributed_sampler_free)

struct fsdp_distributed_sampler {
    fsdp_sampler_options options;
    int64_t epoch;
    int64_t first;    /* items of the epoch's order before this one are left out */
    bool begun;       /* a loader has the indices */
    int64_t count;    /* number of items of this rank */
    int64_t *order;   /* of all items; NULL without shuffle */
    int64_t *indices; /* of this rank */
};

/* Returns this rank's share of `items`. */
static int64_t share(const fsdp_distributed_sampler *s, int64_t items)
{
    return (items + (s->options.drop_last ? 0 : s->options.world_size - 1)) / s->options.world_size;
}

static void fill(fsdp_distributed_sampler *s)
{
    const fsdp_sampler_options *o = &s->options;

    s->count = share(s, o->length - s->first);
    for (int64_t i = 0; i < s->count; i++) {
        /* after the end the first items come again */
        int64_t at = (s->first + i * o->world_size + o->rank) % o->length;

        s->indices[i] = s->order ? s->order[at] : at;
    }
}

static fsdp_status check_options(const fsdp_sampler_options *options)
{
    if (options->length < 0 || options->length > INT64_MAX / 64)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a sampler of %lld items", (long long)options->length);
    if (options->world_size < 0 || options->rank < 0 ||
        options->rank >= (options->world_size > 0 ? options->world_size : 1))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a sampler: no rank %d in a world of %d", options->rank,
                         options->world_size);
    return FSDP_OK;
}

fsdp_status fsdp_distributed_sampler_create(const fsdp_sampler_options *options, fsdp_distributed_sampler **out)
{
    FSDP__SCOPED(fsdp_distributed_sampler_free_at) fsdp_distributed_sampler *s = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a sampler: there is no place for it");
    *out = NULL;
    if (!options)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a sampler: options are required");
    FSDP_TRY(check_options(options));
    FSDP__TRY_NEW(s = fsdp__calloc(1, sizeof *s));
    s->options = *options;
    s->options.world_size = options->world_size > 0 ? options->world_size : 1;
    s->indices = fsdp__malloc((size_t)(fsdp__sampler_most(s) + 1) * sizeof *s->indices);
    s->order = options->shuffle ? fsdp__malloc((size_t)(options->length + 1) * sizeof *s->order) : NULL;
    if (!s->indices || (options->shuffle && !s->order))
        return FSDP_NO_MEMORY;
    fsdp__sampler_set_position(s, 0, 0);
    *out = fsdp__take(&s);
    return FSDP_OK;
}

void fsdp_distributed_sampler_free(fsdp_distributed_sampler *sampler)
{
    if (!sampler)
        return;
    FSDP__FREE_ALL(sampler->order, sampler->indices, sampler);
}

fsdp_status fsdp_distributed_sampler_set_epoch(fsdp_distributed_sampler *sampler, int64_t epoch)
{
    if (!sampler || epoch < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot set the epoch of a sampler: no sampler, or epoch %lld is negative",
                         (long long)epoch);
    /* A position that was set is for the epoch that has not begun yet, even if the caller names that epoch again. */
    if (epoch != sampler->epoch || sampler->begun)
        fsdp__sampler_set_position(sampler, epoch, 0);
    return FSDP_OK;
}

void fsdp__sampler_set_position(fsdp_distributed_sampler *sampler, int64_t epoch, int64_t items)
{
    sampler->epoch = epoch;
    sampler->first = items;
    sampler->begun = false;
    if (sampler->order)
        randperm(sampler->options.length, sampler->options.seed + (uint64_t)epoch, sampler->order);
    fill(sampler);
}

void fsdp__sampler_begin(fsdp_distributed_sampler *sampler)
{
    if (sampler->begun && sampler->first > 0) {
        sampler->first = 0;
        fill(sampler);
    }
    sampler->begun = true;
}

int64_t fsdp_distributed_sampler_length(const fsdp_distributed_sampler *sampler)
{
    return sampler ? sampler->count : 0;
}

const int64_t *fsdp_distributed_sampler_indices(const fsdp_distributed_sampler *sampler)
{
    return sampler ? sampler->indices : NULL;
}

int64_t fsdp__sampler_most(const fsdp_distributed_sampler *sampler)
{
    return share(sampler, sampler->options.length);
}

int fsdp__sampler_ranks(const fsdp_distributed_sampler *sampler)
{
    return sampler->options.world_size;
}

fsdp_data_position fsdp__sampler_position(const fsdp_distributed_sampler *sampler)
{
    return (fsdp_data_position){.epoch = sampler->epoch,
                                .items = sampler->begun ? 0 : sampler->first,
                                .length = sampler->options.length,
                                .shuffle = sampler->options.shuffle,
                                .seed = sampler->options.seed};
}

int64_t fsdp__sampler_items(const fsdp_distributed_sampler *sampler)
{
    return sampler->options.length;
}
