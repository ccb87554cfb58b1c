/* Microbatches in the order of a pipeline: forwards run ahead of backwards (1F1B), the calls of two models between each
 * other's.
 * Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    STEPS = 2,
    MODELS = 2,
    MICROS = 4
};

/* Two forwards ahead, then one backward for one forward. */
static const struct call {
    bool backward;
    int micro;
} schedule[] = {{false, 0}, {false, 1}, {true, 0}, {false, 2}, {true, 1}, {false, 3}, {true, 2}, {true, 3}};

typedef enum kind {
    SCATTERED = 1, /* earlier backwards reduce inside the replica; else not at all */
    KEPT = 2,      /* unsharded from the first forward to the last backward */
    AHEAD = 4,     /* unsharded by hand before each forward */
    HYBRID = 8,
    KINDS = 16
} kind;

static fsdp_module *create(fsdp_context *context, const way_run *run)
{
    int least = run->world % 2 == 0 ? 2 : run->world;
    way_run own = *run;
    fsdp_module *module;

    own.options.mesh = run->way && (run->arg & HYBRID) ? net_hybrid_mesh(context, least) : NULL;
    module = ways_net(context, &own, BLOCKS, run->arg & KEPT ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    fsdp_mesh_unref(own.options.mesh); /* the module has it */
    return module;
}

static void unshard_ahead(fsdp_module *module)
{
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_unshard(net_block_at(module, i)));
}

/* What the next backward is to do. */
static void prepare_backward(const way_run *run, fsdp_module *module, bool last)
{
    if (!run->way)
        return;
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, last || (run->arg & SCATTERED), true));
    CHECK_OK(fsdp_module_set_requires_all_reduce(module, last, true));
    CHECK_OK(fsdp_module_set_is_last_backward(module, last));
    CHECK_OK(fsdp_module_set_reshard_after_backward(module, last || !(run->arg & KEPT), true));
}

static void step(fsdp_context *context, const way_run *run, fsdp_module *const *models, int number)
{
    fsdp_tensor *losses[MODELS][MICROS];

    CHECK_OK(fsdp_scope_begin(context));
    for (size_t c = 0; c < FSDP__COUNT_OF(schedule); c++)
        for (int m = 0; m < MODELS; m++) {
            int micro = schedule[c].micro;

            dawdle(context, run);
            if (schedule[c].backward) {
                prepare_backward(run, models[m], micro == MICROS - 1);
                CHECK_OK(fsdp_backward(losses[m][micro]));
                continue;
            }
            if (run->way && (run->arg & AHEAD))
                unshard_ahead(models[m]);
            losses[m][micro] = ways_loss(run, models[m], (number * MODELS + m) * MICROS + micro);
        }
    fsdp_scope_end(context, NULL);
}

static void interleave(fsdp_context *context, way_run *run)
{
    fsdp_module *models[MODELS];
    fsdp_optimizer *optimizers[MODELS];

    for (int m = 0; m < MODELS; m++) {
        models[m] = create(context, run);
        optimizers[m] = ways_optimizer(models[m]);
    }
    for (int s = 0; s < STEPS; s++) {
        step(context, run, models, s);
        for (int m = 0; m < MODELS; m++) {
            note_gradients(run, models[m]);
            ways_step(optimizers[m]);
        }
    }
    for (int m = 0; m < MODELS; m++) {
        note_weights(run, models[m]);
        fsdp_optimizer_free(optimizers[m]);
        fsdp_module_unref(models[m]);
    }
}

TEST(forwards_run_ahead_of_backwards)
{
    for (int k = 0; k < KINDS; k += test_long() ? 1 : 5)
        in_every_way_with(interleave, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, k);
}
