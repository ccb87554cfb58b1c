/* Calls in any order on a model that is sharded, whose sequences are cut over ranks and whose layers are cut over
 * others, all at once, and on a whole one: losses, gradients, norms and weights of both stay the same, whatever comes
 * between a forward and its backward, between microbatches, or instead of a step. Ranks are late now and then.
 * FSDP_TRAIN_ORDERS_SEED=n repeats one order, and FSDP_TRAIN_ORDERS_COUNT=n runs so many.
 * Links: parallel optim shard */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "fsdp/parallelize.h"
#include "nn/layers.h"
#include "parallel/meshes.h"
#include "support/dice.h"
#include "support/models.h"
#include "train/story.h"

enum {
    LENGTH = 12,
    VOCAB = 19,
    MOST_ROWS = 8,
    SLOTS = 2,
    CALLS = 24,
    CUT = 0,
    WHOLE = 1
};

typedef enum call {
    FORWARD,
    BACKWARD,
    BACKWARD_KEEP,
    DROP,
    EVALUATE,
    GENERATE,
    SYNC_OFF,
    SYNC_ON,
    SYNCHRONIZE,
    UNSHARD,
    UNSHARD_ASYNC,
    RESHARD,
    RESHARD_ALL,
    STEP,
    CLIP,
    ZERO_GRAD,
    FREEZE,
    THAW,
    FAIL_FORWARD,
    FAIL_BACKWARD,
    SET_RECOMPUTE,
    SAVE,
    LOAD,
    SUMMON,
    KINDS
} call;

typedef struct player {
    fsdp_context *context;
    uint64_t dice; /* the same on all ranks */
    int rank, dp, batch, rows;
    fsdp__parallel_meshes meshes;
    fsdp_module *models[2];
    fsdp_parameters parameters[2]; /* shards, and whole ones; held */
    fsdp_optimizer *optimizers[2];
    fsdp_tensor *losses[SLOTS][2];
    fsdp_state_dict *saved[2]; /* NULL: nothing is */
    bool held;                 /* gradients wait to be reduced, or may */
    bool recomputes, fails_forward, fails_backward;
} player;

/* ---- the models ---- */

typedef struct drawing {
    fsdp__parallel_degrees degrees;
    int dp;
    bool gpt2;
    float dropout;
    fsdp_model_parallel_options plan;
    fsdp_shard_options options;
} drawing;

static int ranks_of(const drawing *d)
{
    return d->dp * (int)(d->degrees.cp * d->degrees.tp);
}

/* At most eight ranks, of which two are in some team. */
static drawing draw(uint64_t *dice)
{
    drawing d = {.gpt2 = dice_below(dice, 2)};

    do {
        d.dp = 1 + dice_below(dice, 4);
        d.degrees = (fsdp__parallel_degrees){.cp = 1 + dice_below(dice, 3), .tp = 1 + dice_below(dice, 2)};
    } while (ranks_of(&d) > 8 || ranks_of(&d) == d.dp);
    d.degrees.replicas = d.dp > 1 && dice_below(dice, 3) == 0 ? (d.dp % 2 == 0 ? 2 : d.dp) : 1;
    d.dropout = d.gpt2 && dice_below(dice, 2) ? 0.25f : 0;
    d.plan.sequence_parallel = dice_below(dice, 2);
    d.plan.loss_parallel = dice_below(dice, 2);
    d.plan.async = d.plan.sequence_parallel && dice_below(dice, 2);
    d.plan.per_projection = dice_below(dice, 2);
    d.options.reshard_after_forward = (fsdp_reshard)dice_below(dice, 3);
    d.options.no_shared_memory = dice_below(dice, 2);
    d.options.overlap = dice_below(dice, 2) ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO;
    return d;
}

static fsdp_status fail_forward(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module, (void)inputs, (void)count;
    return ((player *)arg)->fails_forward ? FSDP_FAIL(FSDP_INVALID, "told to fail") : FSDP_OK;
}

static fsdp_status fail_backward(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    (void)module, (void)grads, (void)count;
    return ((player *)arg)->fails_backward ? FSDP_FAIL(FSDP_INVALID, "told to fail") : FSDP_OK;
}

/* Sequences before layers, or after them. */
static void cut(player *p, const drawing *d)
{
    fsdp_module *model = p->models[CUT];
    fsdp_shard_options options = d->options;
    bool first = dice_below(&p->dice, 2);

    if (p->meshes.cp && first)
        CHECK_OK(fsdp_model_context_parallel(model, p->meshes.cp));
    if (p->meshes.tp)
        CHECK_OK(fsdp_model_parallelize(model, p->meshes.tp, &d->plan));
    if (p->meshes.cp && !first)
        CHECK_OK(fsdp_model_context_parallel(model, p->meshes.cp));
    options.mesh = p->meshes.sharded;
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    CHECK_OK(fsdp_fully_shard(model, &options));
}

static void build(player *p, const drawing *d, int which)
{
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = d->gpt2 ? FSDP_GPT2 : FSDP_LLAMA, .n_layers = 2, .dim = 12, .n_heads = 2,
                     .n_kv_heads = 2, .head_dim = 6, .ffn_dim = 11, .vocab_size = VOCAB, .max_seq_len = LENGTH,
                     .rope_theta = 100, .rope_type = FSDP_ROPE_DEFAULT, .init_std = 0.3f, .dropout = d->dropout,
                     .embd_dropout = d->dropout, .tie_word_embeddings = d->gpt2);
    fsdp_device *device = test_device(p->context);

    p->models[which] = CHECK_PTR(fsdp_model_create(p->context, which ? device : fsdp_meta(p->context), &config));
    if (which == CUT)
        cut(p, d);
    CHECK_OK(fsdp_module_materialize(p->models[which], device));
    CHECK_OK(fsdp_module_initialize(p->models[which], 5));
    CHECK_OK(fsdp_module_parameters(p->models[which], &p->parameters[which]));
    for (int64_t i = 0; i < p->parameters[which].count; i++)
        (void)fsdp_tensor_ref(p->parameters[which].items[i].tensor);
    CHECK_OK(fsdp_sgd_create(&p->parameters[which], &(fsdp_sgd_options){.lr = 0.05, .momentum = 0.9},
                             &p->optimizers[which]));
}

static void add_failures(player *p)
{
    CHECK_OK(fsdp_module_add_hooks(fsdp_model_block(p->models[CUT], 1),
                                   &(fsdp_module_hooks){.arg = p, .pre_forward = fail_forward}, NULL));
    CHECK_OK(fsdp_module_add_hooks(fsdp_model_block(p->models[CUT], 0),
                                   &(fsdp_module_hooks){.arg = p, .pre_backward = fail_backward}, NULL));
}

/* ---- comparing ---- */

static void compare(const char *what, const char *name, fsdp_tensor *part, fsdp_tensor *want)
{
    fsdp_tensor *got;
    float *a, *b;
    int64_t numel = fsdp_tensor_numel(want);

    CHECK_OK(fsdp_full_tensor(part, &got));
    CHECK_EQ(fsdp_tensor_numel(got), numel);
    a = malloc((size_t)numel * sizeof *a);
    b = malloc((size_t)numel * sizeof *b);
    CHECK_OK(fsdp_tensor_read(got, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(want, FSDP_F32, b));
    for (int64_t i = 0; i < numel; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-4f + 1e-3f * fabsf(b[i])))
            TEST_FAIL("%s of %s, element %lld: %g, not %g", what, name, (long long)i, (double)a[i], (double)b[i]);
    free(a);
    free(b);
    fsdp_tensor_unref(got);
}

static void compare_losses(fsdp_context *context, fsdp_tensor *const *losses)
{
    double mine, whole, sum = 0;
    int world = fsdp_context_world_size(context);
    void **all;
    size_t *bytes;

    CHECK_OK(fsdp_tensor_item(losses[CUT], &mine));
    CHECK_OK(fsdp_tensor_item(losses[WHOLE], &whole));
    CHECK_OK(fsdp_gather_objects(fsdp_world(context), &mine, sizeof mine, &all, &bytes));
    for (int r = 0; r < world; r++)
        sum += *(const double *)all[r];
    fsdp_objects_free(fsdp_world(context), all, bytes);
    CHECK_NEAR(sum / world, whole, 1e-4 * (1 + whole));
}

static void compare_gradients(const player *p)
{
    for (int64_t i = 0; i < p->parameters[CUT].count && !p->held; i++) {
        fsdp_tensor *got = fsdp_tensor_grad(p->parameters[CUT].items[i].tensor);
        fsdp_tensor *want = fsdp_tensor_grad(p->parameters[WHOLE].items[i].tensor);

        if ((got != NULL) != (want != NULL))
            TEST_FAIL("%s has %s gradient", p->parameters[CUT].items[i].name, got ? "a" : "no");
        if (got)
            compare("gradient", p->parameters[CUT].items[i].name, got, want);
    }
}

static void compare_weights(const player *p)
{
    for (int64_t i = 0; i < p->parameters[CUT].count; i++)
        compare("value", p->parameters[CUT].items[i].name, p->parameters[CUT].items[i].tensor,
                p->parameters[WHOLE].items[i].tensor);
}

/* ---- forward and backward ---- */

static fsdp_tensor *ids(const player *p, int which, int number, int64_t length)
{
    int first = which == CUT ? p->batch * p->rows : 0, rows = which == CUT ? p->rows : p->rows * p->dp;
    int32_t values[MOST_ROWS * LENGTH];

    for (int i = 0; i < rows * (int)length; i++)
        values[i] = (7 * (first * (int)length + i) + 3 * number) % VOCAB;
    return CHECK_PTR(fsdp_from_data(test_device(p->context), FSDP_I32, FSDP_SHAPE(rows, length), values));
}

static fsdp_tensor *loss_of(const player *p, int which, int number)
{
    int first = which == CUT ? p->batch * p->rows : 0, rows = which == CUT ? p->rows : p->rows * p->dp;

    CHECK_OK(fsdp__set_rows_of_batch(p->context, (fsdp__rows_of_batch){first, rows}));
    CHECK_OK(fsdp_module_set_draws(p->models[which], (uint64_t)number));
    return fsdp_call(p->models[which], ids(p, which, number, LENGTH), ids(p, which, number + 5, LENGTH));
}

static void drop(fsdp_tensor **losses)
{
    for (int m = 0; m < 2; m++) {
        fsdp_tensor_unref(losses[m]);
        losses[m] = NULL;
    }
}

static void drop_all(player *p)
{
    for (int s = 0; s < SLOTS; s++)
        drop(p->losses[s]);
}

static void forward(player *p, fsdp_tensor **losses)
{
    int number = dice_below(&p->dice, 5);

    drop(losses);
    for (int m = 0; m < 2; m++)
        losses[m] = fsdp_tensor_ref(CHECK_PTR(loss_of(p, m, number)));
    compare_losses(p->context, losses);
}

static void backward(player *p, fsdp_tensor **losses, bool keep)
{
    if (!losses[CUT])
        return;
    for (int m = 0; m < 2; m++)
        CHECK_OK(fsdp_backward_from(&losses[m], NULL, 1, keep));
    if (!keep)
        drop(losses);
    compare_gradients(p);
}

static void evaluate(player *p)
{
    int number = dice_below(&p->dice, 5);
    fsdp_tensor *losses[2];

    fsdp_no_grad_begin(p->context);
    for (int m = 0; m < 2; m++) {
        fsdp_module_train(p->models[m], false);
        losses[m] = CHECK_PTR(loss_of(p, m, number));
        fsdp_module_train(p->models[m], true);
    }
    compare_losses(p->context, losses);
    fsdp_no_grad_end(p->context);
}

/* A text that cannot be cut. */
static void generate(const player *p)
{
    fsdp_module *model = p->models[CUT];

    fsdp_no_grad_begin(p->context);
    fsdp_module_train(model, false);
    CHECK_OK(fsdp_model_set_last_logits_only(model, true));
    CHECK_PTR(fsdp_call(model, ids(p, CUT, 1, 7)));
    CHECK_OK(fsdp_model_set_last_logits_only(model, false));
    fsdp_module_train(model, true);
    fsdp_no_grad_end(p->context);
}

static void zero_grad(player *p)
{
    for (int m = 0; m < 2; m++)
        fsdp_module_zero_grad(p->models[m]);
}

/* ---- failures ---- */

/* Of the cut model; then it is evaluated. Gradients are gone, other graphs are not. */
static void fail_once(player *p, fsdp_tensor **losses, bool backward)
{
    p->fails_forward = !backward;
    p->fails_backward = backward;
    if (!backward) {
        CHECK_NULL(loss_of(p, CUT, 3));
    } else if (!losses[CUT]) {
        p->fails_backward = false;
        return;
    } else if (fsdp_backward(losses[CUT]) == FSDP_OK) { /* what lies before block 0 is frozen */
        p->fails_backward = false;
    }
    if (p->fails_forward || p->fails_backward)
        CHECK_CONTAINS(fsdp_last_error(), "told to fail");
    p->fails_forward = p->fails_backward = false;
    if (backward || dice_below(&p->dice, 2))
        CHECK_OK(fsdp_module_reset_iteration(p->models[CUT]));
    if (backward)
        drop(losses);
    zero_grad(p);
    evaluate(p);
}

/* ---- weights ---- */

/* A graph that is to come back keeps what it has saved, and a sharded one gathers other values. */
static void step(player *p)
{
    if (p->held)
        return;
    drop_all(p);
    for (int m = 0; m < 2; m++)
        CHECK_OK(fsdp_optimizer_step(p->optimizers[m]));
    compare_weights(p);
}

static void clip(player *p)
{
    double limit = 0.5 * dice_below(&p->dice, 3), norms[2];

    if (p->held)
        return;
    for (int m = 0; m < 2; m++)
        CHECK_OK(fsdp_clip_grad_norm(p->optimizers[m], limit, &norms[m]));
    CHECK_NEAR(norms[CUT], norms[WHOLE], 1e-3 * (1e-2 + norms[WHOLE]));
}

/* A block, or one parameter. */
static void set_trained(player *p, bool trained)
{
    int what = dice_below(&p->dice, 4), which = dice_below(&p->dice, (int)p->parameters[CUT].count);

    if (p->recomputes)
        drop_all(p);
    for (int m = 0; m < 2; m++)
        if (what < 2)
            CHECK_OK(fsdp_module_set_requires_grad(fsdp_model_block(p->models[m], what), trained));
        else
            CHECK_OK(fsdp_tensor_set_requires_grad(p->parameters[m].items[which].tensor, trained));
}

static void set_recompute(player *p)
{
    fsdp_recompute_mode mode = (fsdp_recompute_mode)dice_below(&p->dice, 4);

    p->recomputes = p->recomputes || mode != FSDP_RECOMPUTE_NONE;
    for (int64_t i = 0; i < fsdp_model_block_count(p->models[CUT]); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(p->models[CUT], i), mode));
}

/* Copies of all values, whole. */
static void save(player *p)
{
    for (int m = 0; m < 2; m++) {
        fsdp_state_dict *state;

        CHECK_OK(fsdp_module_reshard_all(p->models[CUT]));
        CHECK_OK(fsdp_state_dict_from_module(p->models[m], &state));
        fsdp_state_dict_free(p->saved[m]);
        CHECK_OK(fsdp_state_dict_gather(state, NULL, &p->saved[m]));
        fsdp_state_dict_free(state);
    }
}

static void load(player *p)
{
    if (!p->saved[CUT])
        return;
    drop_all(p);
    CHECK_OK(fsdp_module_reshard_all(p->models[CUT]));
    for (int m = 0; m < 2; m++) {
        fsdp_state_dict *state;

        CHECK_OK(fsdp_state_dict_from_module(p->models[m], &state));
        CHECK_OK(fsdp_state_dict_load_full(state, p->saved[m], NULL));
        fsdp_state_dict_free(state);
    }
    compare_weights(p);
}

/* ---- whole and sharded ---- */

static void shard_or_not(player *p, call what)
{
    int64_t which = dice_below(&p->dice, 3);
    fsdp_module *root = p->models[CUT], *module = which < 2 ? fsdp_model_block(root, which) : root;

    if (what == UNSHARD)
        CHECK_OK(fsdp_module_unshard(module));
    else if (what == UNSHARD_ASYNC)
        CHECK_OK(fsdp_module_unshard_async(module));
    else if (what == RESHARD)
        CHECK_OK(fsdp_module_reshard(module));
    else if (what == RESHARD_ALL)
        CHECK_OK(fsdp_module_reshard_all(root));
    else
        CHECK_OK(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.no_writeback = true}));
    if (what == SUMMON)
        CHECK_OK(fsdp_module_end_summon(module));
}

/* Once reductions are on again, the next backward or this call brings what has been held. */
static void synchronize(player *p, call what)
{
    if (what == SYNCHRONIZE)
        CHECK_OK(fsdp_module_synchronize_gradients(p->models[CUT]));
    else
        CHECK_OK(fsdp_module_set_requires_gradient_sync(p->models[CUT], what == SYNC_ON, true));
    if (what == SYNC_ON)
        CHECK_OK(fsdp_module_synchronize_gradients(p->models[CUT]));
    p->held = what == SYNC_OFF || (p->held && what == SYNCHRONIZE);
    compare_gradients(p);
}

/* ---- all of them ---- */

static void make_call(player *p, call what)
{
    fsdp_tensor **losses = p->losses[dice_below(&p->dice, SLOTS)];

    if (what == FORWARD)
        forward(p, losses);
    else if (what == BACKWARD || what == BACKWARD_KEEP)
        backward(p, losses, what == BACKWARD_KEEP);
    else if (what == DROP)
        drop(losses);
    else if (what == EVALUATE)
        evaluate(p);
    else if (what == GENERATE)
        generate(p);
    else if (what == SYNC_OFF || what == SYNC_ON || what == SYNCHRONIZE)
        synchronize(p, what);
    else if (what == STEP)
        step(p);
    else if (what == CLIP)
        clip(p);
    else if (what == ZERO_GRAD)
        zero_grad(p);
    else if (what == FREEZE || what == THAW)
        set_trained(p, what == THAW);
    else if (what == FAIL_FORWARD || what == FAIL_BACKWARD)
        fail_once(p, losses, what == FAIL_BACKWARD);
    else if (what == SET_RECOMPUTE)
        set_recompute(p);
    else if (what == SAVE)
        save(p);
    else if (what == LOAD)
        load(p);
    else
        shard_or_not(p, what);
}

static void play_calls(player *p)
{
    static const call often[] = {FORWARD, FORWARD, BACKWARD, BACKWARD, STEP, EVALUATE, UNSHARD, SYNC_OFF, SYNC_ON};

    for (int c = 0; c < CALLS; c++) {
        int what = dice_below(&p->dice, KINDS + (int)FSDP__COUNT_OF(often)), late = dice_below(&p->dice, 16);
        call kind = what < KINDS ? (call)what : often[what - KINDS];

        if (getenv("FSDP_TRAIN_ORDERS_TRACE") && p->rank == 0)
            fprintf(stderr, "call %d: kind %d\n", c, (int)kind);
        if (late == p->rank)
            usleep(1000);
        CHECK_OK(fsdp_scope_begin(p->context));
        make_call(p, kind);
        fsdp_scope_end(p->context, NULL);
    }
    compare_weights(p);
}

static void release(player *p)
{
    drop_all(p);
    for (int m = 0; m < 2; m++) {
        fsdp_state_dict_free(p->saved[m]);
        fsdp_optimizer_free(p->optimizers[m]);
        for (int64_t i = 0; i < p->parameters[m].count; i++)
            fsdp_tensor_unref(p->parameters[m].items[i].tensor);
        fsdp_parameters_release(&p->parameters[m]);
        fsdp_module_unref(p->models[m]);
    }
    fsdp__parallel_meshes_release(&p->meshes);
}

static void play(fsdp_context *context, void *arg)
{
    player p = {.context = context, .dice = *(const uint64_t *)arg, .rank = fsdp_context_rank(context)};
    const drawing d = draw(&p.dice);

    p.dp = d.dp;
    p.batch = p.rank / (int)(d.degrees.cp * d.degrees.tp);
    p.rows = 1 + (d.dp < 4 && dice_below(&p.dice, 2));
    CHECK_OK(fsdp__parallel_meshes_create(context, &d.degrees, &p.meshes));
    build(&p, &d, CUT);
    build(&p, &d, WHOLE);
    add_failures(&p);
    play_calls(&p);
    release(&p);
}

TEST(a_model_that_is_cut_in_every_way_stays_the_whole_one_in_any_order_of_calls)
{
    const dice_seeds seeds = dice_seeds_of("TRAIN_ORDERS", test_long() ? 1000 : test_brief() ? 2 : 6);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t dice = seed;
        const drawing d = draw(&dice);
        char why[2048];

        if (test_try_ranks(ranks_of(&d), play, &seed, why, sizeof why) > 0)
            TEST_FAIL("FSDP_TRAIN_ORDERS_SEED=%llu (%d x cp %d x tp %d): %s", (unsigned long long)seed, d.dp,
                      (int)d.degrees.cp, (int)d.degrees.tp, why);
    }
}
