/* Replicated modules: whole parameters on every rank, gradients averaged in buckets.
 * Links: optim state */
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 4,
    WORLDS = 4
};

/* ---- it trains as the plain and the sharded model do ---- */

typedef struct variant {
    bool fully_shard; /* for comparison */
    bool bare;        /* built on the meta device, values later */
    fsdp_replicate_options options;
    int micros; /* all but the last without synchronisation */
    float *values[WORLDS];
    int64_t count;
} variant;

static fsdp_module *replicated(fsdp_context *context, const variant *v)
{
    fsdp_module *module = net_create(context, v->bare ? fsdp_meta(context) : test_device(context), BLOCKS);

    if (!v->bare) /* rank 0's values are everybody's */
        CHECK_OK(fsdp_module_initialize(module, 1 + (uint64_t)fsdp_context_rank(context)));
    CHECK_OK(fsdp_replicate(module, &v->options));
    if (v->bare) {
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
        CHECK_OK(fsdp_module_initialize(module, 1));
    }
    return module;
}

static void train(fsdp_context *context, void *arg)
{
    variant *v = arg;
    fsdp_shard_options shard = {.no_shared_memory = v->options.no_shared_memory, .overlap = v->options.overlap};
    fsdp_module *module = v->fully_shard ? net_sharded(context, BLOCKS, &shard) : replicated(context, v);
    int64_t count;

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < v->micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, micro == v->micros - 1, true));
            net_forward_backward(module, step, micro, v->micros);
        }
        net_sgd(module, 0.1f);
    }
    v->values[fsdp_context_rank(context)] = net_values(module, &count);
    if (fsdp_context_rank(context) == 0)
        v->count = count;
    fsdp_module_unref(module);
}

/* All ranks have the same bits; `*first`, if it is NULL, becomes those. */
static void run_variant(variant *v, int world, float **first)
{
    test_run_ranks(world, train, v);
    for (int r = 0; r < world; r++) {
        if (!*first) {
            *first = v->values[r];
            continue;
        }
        CHECK_BYTES(v->values[r], *first, (size_t)v->count * sizeof(float));
        free(v->values[r]);
    }
}

static variant variant_of(int bits)
{
    static const double caps[] = {0, 1e-4, 5e-4};
    variant v = {.micros = 1};

    v.options.gradient_as_bucket_view = bits & 1;
    v.options.no_shared_memory = bits >> 1 & 1;
    v.options.overlap = bits >> 2 & 1 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
    v.bare = bits >> 3 & 1;
    v.options.bucket_cap_mb = caps[(bits >> 4) % 3];
    v.options.find_unused_parameters = (bits >> 4) / 3 == 1;
    v.options.static_graph = (bits >> 4) / 3 == 2;
    return v;
}

static void every_variant_equals_plain_and_fully_shard(void **state)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    (void)state;
    for (int world = 1; world <= WORLDS; world++)
        for (int micros = 1; micros <= 2; micros++) {
            variant sharded = {.fully_shard = true, .micros = micros};
            float *first = NULL;

            run_variant(&sharded, world, &first);
            CHECK_CLOSE(first, expected, count, 1e-5, 1e-6);
            for (int bits = world + micros; bits < 9 << 4; bits += test_long() ? 1 : test_brief() ? 23 : 5) {
                variant v = variant_of(bits);

                v.micros = micros;
                run_variant(&v, world, &first);
            }
            free(first);
        }
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_equals_plain_and_fully_shard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
