/* Calls in any order on a model whose sequences are cut over ranks, and on a whole one: losses and gradients of both
 * stay the same, whatever lies between a forward and its backward. FSDP_CONTEXT_SEED=n repeats one order. */
#include "fsdp/models.h"
#include "fsdp/ops.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "nn/layers.h"
#include "support/dice.h"
#include "support/models.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum {
    BATCH = 2,
    LENGTH = 12,
    VOCAB = 19,
    MOST = 512, /* elements of a parameter */
    SLOTS = 2,
    CALLS = 14,
    CUT = 0,
    WHOLE = 1
};

typedef enum call {
    FORWARD,
    BACKWARD,
    BACKWARD_KEEP,
    EVALUATE,
    GENERATE,
    SWITCH_MODE,
    SET_RECOMPUTE,
    CONVERT,
    INITIALIZE,
    ZERO_GRAD,
    DROP,
    KINDS
} call;

typedef struct player {
    fsdp_context *context;
    uint64_t dice; /* the same on all ranks */
    fsdp_module *models[2];
    fsdp_process_group *group;
    fsdp_tensor *losses[SLOTS][2];
    bool recomputed[SLOTS]; /* functions of that forward are computed again */
    bool recomputes, trains, gpt2;
} player;

static fsdp_module *create(const player *p, float dropout, fsdp_mesh *mesh)
{
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = p->gpt2 ? FSDP_GPT2 : FSDP_LLAMA, .n_layers = 2, .dim = 12, .n_heads = 2,
                     .n_kv_heads = p->gpt2 ? 2 : 1, .head_dim = 6, .ffn_dim = 10, .vocab_size = VOCAB,
                     .max_seq_len = LENGTH, .rope_theta = 100, .rope_type = FSDP_ROPE_DEFAULT, .init_std = 0.3f,
                     .dropout = dropout, .embd_dropout = dropout, .tie_word_embeddings = p->gpt2);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(p->context, test_device(p->context), &config));

    if (mesh)
        CHECK_OK(fsdp_model_context_parallel(model, mesh));
    CHECK_OK(fsdp_module_initialize(model, 5));
    return model;
}

static fsdp_tensor *ids(const player *p, int number, int64_t count)
{
    int32_t values[BATCH * LENGTH];

    for (int i = 0; i < BATCH * LENGTH; i++)
        values[i] = (7 * i + 3 * number) % VOCAB;
    return CHECK_PTR(fsdp_from_data(test_device(p->context), FSDP_I32, FSDP_SHAPE(BATCH, count), values));
}

static fsdp_tensor *loss_of(const player *p, int which, int number)
{
    CHECK_OK(fsdp_module_set_draws(p->models[which], number));
    return CHECK_PTR(fsdp_call(p->models[which], ids(p, number, LENGTH), ids(p, number + 5, LENGTH)));
}

static void compare(const fsdp_tensor *got, const fsdp_tensor *want)
{
    float a[MOST], b[MOST];
    int64_t numel = fsdp_tensor_numel(want);

    CHECK_EQ(fsdp_tensor_numel(got), numel);
    CHECK(numel <= MOST);
    CHECK_OK(fsdp_tensor_read(got, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(want, FSDP_F32, b));
    CHECK_CLOSE(a, b, numel, 5e-5, 5e-5);
}

/* Ranks' gradients have the mean that the whole model's are. */
static void compare_gradients(const player *p)
{
    fsdp_parameters all[2];

    for (int m = 0; m < 2; m++)
        CHECK_OK(fsdp_module_parameters(p->models[m], &all[m]));
    for (int64_t i = 0; i < all[CUT].count; i++) {
        fsdp_tensor *want = fsdp_tensor_grad(all[WHOLE].items[i].tensor), *got;

        CHECK_EQ(fsdp_tensor_grad(all[CUT].items[i].tensor) != NULL, want != NULL);
        if (!want)
            continue;
        got = CHECK_PTR(fsdp_parallel_all_reduce(fsdp_tensor_grad(all[CUT].items[i].tensor), p->group));
        compare(CHECK_PTR(fsdp_scale(got, 1.0 / fsdp_process_group_size(p->group))), want);
    }
    for (int m = 0; m < 2; m++)
        fsdp_parameters_release(&all[m]);
}

static void drop(fsdp_tensor **losses)
{
    for (int m = 0; m < 2; m++) {
        fsdp_tensor_unref(losses[m]);
        losses[m] = NULL;
    }
}

/* ---- calls ---- */

static void forward(player *p, int slot)
{
    int number = dice_below(&p->dice, 5);
    fsdp_tensor **losses = p->losses[slot];

    drop(losses);
    p->recomputed[slot] = p->recomputes;
    for (int m = 0; m < 2; m++)
        losses[m] = fsdp_tensor_ref(loss_of(p, m, number));
    compare(losses[CUT], losses[WHOLE]);
}

static void backward(const player *p, fsdp_tensor **losses, bool keep)
{
    if (!losses[CUT])
        return;
    for (int m = 0; m < 2; m++)
        CHECK_OK(fsdp_backward_from(&losses[m], NULL, 1, keep));
    if (!keep)
        drop(losses);
    compare_gradients(p);
}

/* In the other mode than they are in, or in the same. */
static void evaluate(player *p)
{
    int number = dice_below(&p->dice, 5);
    bool trains = dice_below(&p->dice, 2);
    fsdp_tensor *losses[2];

    fsdp_no_grad_begin(p->context);
    for (int m = 0; m < 2; m++) {
        fsdp_module_train(p->models[m], trains);
        losses[m] = loss_of(p, m, number);
        fsdp_module_train(p->models[m], p->trains);
    }
    compare(losses[CUT], losses[WHOLE]);
    fsdp_no_grad_end(p->context);
}

/* A text that cannot be cut. */
static void generate(const player *p)
{
    fsdp_no_grad_begin(p->context);
    for (int m = 0; m < 2; m++) {
        fsdp_module_train(p->models[m], false);
        CHECK_OK(fsdp_model_set_last_logits_only(p->models[m], true));
        CHECK_PTR(fsdp_call(p->models[m], ids(p, 1, 7)));
        CHECK_OK(fsdp_model_set_last_logits_only(p->models[m], false));
        fsdp_module_train(p->models[m], p->trains);
    }
    fsdp_no_grad_end(p->context);
}

/* Of the model that is cut alone. */
static void set_recompute(player *p)
{
    fsdp_recompute_mode mode = (fsdp_recompute_mode)dice_below(&p->dice, 4);

    p->recomputes = mode != FSDP_RECOMPUTE_NONE;
    for (int64_t i = 0; i < fsdp_model_block_count(p->models[CUT]); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(p->models[CUT], i), mode));
}

/* Graphs that are to come back keep the values that they have saved; a function that is recomputed has saved none. */
static void write(player *p, call what)
{
    for (int s = 0; s < SLOTS; s++)
        drop(p->losses[s]);
    for (int m = 0; m < 2; m++) {
        fsdp_module_zero_grad(p->models[m]);
        if (what == INITIALIZE) {
            CHECK_OK(fsdp_module_initialize(p->models[m], 9));
            continue;
        }
        CHECK_OK(fsdp_module_to(p->models[m], FSDP_BF16));
        if (dice_below(&(uint64_t){p->dice}, 2)) /* and is used so */
            CHECK_OK(fsdp_backward(loss_of(p, m, 2)));
        fsdp_module_zero_grad(p->models[m]);
        CHECK_OK(fsdp_module_to(p->models[m], FSDP_F32));
    }
}

/* What is computed again would be in another mode: that is refused, unless a graph that was kept has it by now. */
static void switch_mode(player *p)
{
    p->trains = !p->trains;
    for (int m = 0; m < 2; m++)
        fsdp_module_train(p->models[m], p->trains);
    for (int s = 0; s < SLOTS; s++) {
        if (!p->losses[s][CUT] || !p->recomputed[s])
            continue;
        if (fsdp_backward(p->losses[s][CUT]) == FSDP_OK) {
            CHECK_OK(fsdp_backward(p->losses[s][WHOLE]));
            compare_gradients(p);
        } else {
            CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
            CHECK_CONTAINS(fsdp_last_error(), "between the forward and the backward");
            for (int m = 0; m < 2; m++) /* some have arrived */
                fsdp_module_zero_grad(p->models[m]);
        }
        drop(p->losses[s]);
    }
}

static void make_call(player *p, call what)
{
    int slot = dice_below(&p->dice, SLOTS);
    fsdp_tensor **losses = p->losses[slot];

    if (what == FORWARD)
        forward(p, slot);
    else if (what == BACKWARD || what == BACKWARD_KEEP)
        backward(p, losses, what == BACKWARD_KEEP);
    else if (what == EVALUATE)
        evaluate(p);
    else if (what == GENERATE)
        generate(p);
    else if (what == SET_RECOMPUTE)
        set_recompute(p);
    else if (what == CONVERT || what == INITIALIZE)
        write(p, what);
    else if (what == DROP)
        drop(losses);
    for (int m = 0; m < 2 && what == ZERO_GRAD; m++)
        fsdp_module_zero_grad(p->models[m]);
    if (what == SWITCH_MODE)
        switch_mode(p);
}

static void play(fsdp_context *context, void *arg)
{
    static const call often[] = {FORWARD, FORWARD, BACKWARD, BACKWARD, EVALUATE, SWITCH_MODE};
    player p = {.context = context, .dice = *(const uint64_t *)arg, .trains = true};
    float dropout = 0.25f * (float)dice_below(&p.dice, 2);
    fsdp_mesh *mesh;

    p.gpt2 = dropout > 0 || dice_below(&p.dice, 2);
    CHECK_OK(
        fsdp_mesh_create(context, FSDP_SHAPE(fsdp_context_world_size(context)), (const char *const[]){"cp"}, &mesh));
    p.group = fsdp_mesh_process_group(mesh, 0);
    p.models[CUT] = create(&p, dropout, mesh);
    p.models[WHOLE] = create(&p, dropout, NULL);
    CHECK_OK(fsdp__set_rows_of_batch(context, (fsdp__rows_of_batch){BATCH, BATCH}));
    for (int c = 0; c < CALLS; c++) {
        int what = dice_below(&p.dice, KINDS + 6);

        CHECK_OK(fsdp_scope_begin(context));
        make_call(&p, what < KINDS ? (call)what : often[what - KINDS]);
        fsdp_scope_end(context, NULL);
    }
    for (int s = 0; s < SLOTS; s++)
        drop(p.losses[s]);
    for (int m = 0; m < 2; m++)
        fsdp_module_unref(p.models[m]);
    fsdp_mesh_unref(mesh);
}

TEST(a_model_that_is_cut_stays_the_whole_one_in_any_order_of_calls)
{
    const dice_seeds seeds = dice_seeds_of("CONTEXT", test_long() ? 500 : test_brief() ? 2 : 6);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        char why[2048];

        if (test_try_ranks(1 + (int)(seed % 3), play, &seed, why, sizeof why) > 0)
            TEST_FAIL("FSDP_CONTEXT_SEED=%llu: %s", (unsigned long long)seed, why);
    }
}
