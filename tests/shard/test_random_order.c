/* The random-order test: 5 to 40 public calls, drawn from a seed, give the same in every residence of memory, inline
 * and on worker streams, at any speed of the ranks; and in f32 what plain models give.
 *
 * A sequence that fails is printed with its seed. In the environment:
 *     FSDP_ORDER_SEED=n    runs only sequence n
 *     FSDP_ORDER_FROM=n    leaves out the first n sequences
 *     FSDP_ORDER_COUNT=n   runs so many
 *     FSDP_ORDER_CALLS=k   cuts sequences off after k calls, to find the shortest that fails
 *     FSDP_ORDER_TRACE=1   prints calls as rank 0 makes them
 * A new call is a line of `kinds`, a function that draws it (order_draw.h) and one that carries it out (order_calls.h).
 * Links: optim state launch */
#include <unistd.h>

#include "base/compiler.h"
#include "device/delays.h"
#include "fsdp/launch.h"
#include "shard/net.h"
#include "shard/order_build.h"
#include "shard/order_draw.h"
#include "support/ranks.h"

/* ---- the calls ---- */

static const struct {
    const char *name;
    int weight;
    bool (*draw)(order_draw *draw, order_call *call);
    order_run_call sharded, plain; /* NULL: nothing to do */
} kinds[ORDER_KINDS] = {
    [ORDER_FORWARD] = {"forward", 14, draw_forward, play_forward, play_forward},
    [ORDER_FORWARD_PART] = {"forward of a block", 4, draw_forward_part, play_forward, play_forward},
    [ORDER_EVALUATE] = {"evaluate", 7, draw_evaluate, play_evaluate, play_evaluate},
    [ORDER_BACKWARD] = {"backward", 14, draw_backward, play_backward, plain_backward},
    [ORDER_BACKWARD_KEEP] = {"backward, graph kept", 3, draw_backward_keep, play_backward, plain_backward},
    [ORDER_DROP] = {"drop a loss", 3, draw_drop, play_drop, play_drop},
    [ORDER_UNSHARD] = {"unshard", 6, draw_unshard, play_unshard, NULL},
    [ORDER_UNSHARD_ASYNC] = {"unshard_async", 4, draw_unshard_async, play_unshard_async, NULL},
    [ORDER_WAIT_UNSHARD] = {"wait_unshard", 4, draw_wait_unshard, play_wait_unshard, NULL},
    [ORDER_RESHARD] = {"reshard", 3, draw_reshard, play_reshard, NULL},
    [ORDER_RESHARD_ALL] = {"reshard_all", 2, draw_reshard_all, play_reshard_all, NULL},
    [ORDER_READ_WHOLE] = {"read whole", 4, draw_in_window, play_read_whole, play_read_whole},
    [ORDER_READ_FULL] = {"read full", 2, draw_always, play_read_full, play_read_full},
    [ORDER_READ_GRADIENTS] = {"read gradients", 2, draw_settled, play_read_gradients, play_read_gradients},
    [ORDER_SUMMON] = {"summon", 4, draw_summon, play_summon, play_summon},
    [ORDER_ZERO_GRAD] = {"zero_grad", 6, draw_zero_grad, play_zero_grad, play_zero_grad},
    [ORDER_OPTIMIZER_ZERO_GRAD] = {"optimizer zero_grad", 4, draw_optimizer_zero_grad, play_optimizer_zero_grad,
                                   play_optimizer_zero_grad},
    [ORDER_STEP] = {"step", 14, draw_step, play_step, play_step},
    [ORDER_CLIP] = {"clip", 3, draw_clip, play_clip, play_clip},
    [ORDER_UNSCALE] = {"unscale", 2, draw_unscale, play_unscale, play_unscale},
    [ORDER_FREEZE] = {"freeze", 3, draw_freeze, play_freeze, play_freeze},
    [ORDER_UNFREEZE] = {"unfreeze", 4, draw_unfreeze, play_freeze, play_freeze},
    [ORDER_FREEZE_ONE] = {"freeze or unfreeze one", 3, draw_freeze_one, play_freeze_one, play_freeze_one},
    [ORDER_SYNC_OFF] = {"sync off", 3, draw_sync_off, play_sync, NULL},
    [ORDER_SYNC_ON] = {"sync on", 4, draw_sync_on, play_sync, NULL},
    [ORDER_ALL_REDUCE_OFF] = {"all-reduce off", 3, draw_all_reduce_off, play_all_reduce, NULL},
    [ORDER_ALL_REDUCE_ON] = {"all-reduce on", 4, draw_all_reduce_on, play_all_reduce, NULL},
    [ORDER_NO_SYNC_BEGIN] = {"no_sync begins", 2, draw_no_sync_begin, play_no_sync, NULL},
    [ORDER_NO_SYNC_END] = {"no_sync ends", 4, draw_no_sync_end, play_no_sync, NULL},
    [ORDER_SYNCHRONIZE] = {"synchronize gradients", 2, draw_synchronize, play_synchronize, plain_synchronize},
    [ORDER_LAST_OFF] = {"not the last backward", 1, draw_last_off, play_last, NULL},
    [ORDER_LAST_ON] = {"the last backward", 2, draw_last_on, play_last, NULL},
    [ORDER_SET_RESHARD_FORWARD] = {"set reshard after forward", 2, draw_set_reshard_forward, play_set_reshard_forward,
                                   NULL},
    [ORDER_SET_RESHARD_BACKWARD] = {"set reshard after backward", 2, draw_set_reshard_backward,
                                    play_set_reshard_backward, NULL},
    [ORDER_SET_FORWARD_PREFETCH] = {"set modules to forward prefetch", 2, draw_set_prefetch, play_set_prefetch, NULL},
    [ORDER_SET_BACKWARD_PREFETCH] = {"set modules to backward prefetch", 2, draw_set_prefetch, play_set_prefetch, NULL},
    [ORDER_SET_IN_FLIGHT] = {"set reductions in flight", 1, draw_set_in_flight, play_set_in_flight, NULL},
    [ORDER_SET_CHANNEL] = {"set separate reduce-scatter group", 2, draw_set_channel, play_set_channel, NULL},
    [ORDER_SET_DIVIDE] = {"set divide factor", 1, draw_set_divide, play_set_divide, play_set_divide},
    [ORDER_WRITE] = {"write", 2, draw_write, play_write, play_write},
    [ORDER_FILL] = {"fill", 2, draw_write, play_write, play_write},
    [ORDER_COPY] = {"copy", 2, draw_write, play_write, play_write},
    [ORDER_INITIALIZE] = {"initialize", 2, draw_initialize, play_initialize, play_initialize},
    [ORDER_SAVE] = {"save", 2, draw_save, play_save, play_save},
    [ORDER_LOAD] = {"load", 2, draw_load, play_load, play_load},
    [ORDER_LOAD_FULL] = {"load whole tensors", 2, draw_load, play_load_full, play_load_full},
    [ORDER_NEW_OPTIMIZER] = {"new optimizer", 2, draw_new_optimizer, play_new_optimizer, play_new_optimizer},
    [ORDER_RESET] = {"reset", 1, draw_reset, play_reset, plain_reset},
    [ORDER_REBUILD] = {"free the model and build it", 1, draw_rebuild, play_rebuild, play_rebuild},
    [ORDER_FAIL_FORWARD] = {"forward that fails", 1, draw_fail_forward, play_fail_forward, plain_reset},
    [ORDER_FAIL_SHAPE] = {"forward of a wrong shape", 1, draw_fail_forward, play_fail_shape, plain_reset},
    [ORDER_FAIL_BACKWARD] = {"backward that fails", 1, draw_fail_backward, play_fail_backward, plain_fail_backward},
    [ORDER_REFUSE_SHARD] = {"refused: fully_shard again", 1, draw_refuse_shard, play_refuse_shard, NULL},
    [ORDER_REFUSE_UNSHARD] = {"refused: unshard of a part", 1, draw_refuse_unshard, play_refuse_unshard, NULL},
    [ORDER_REFUSE_WALKED] = {"refused: backward again", 1, draw_refuse_walked, play_refuse_walked, play_refuse_walked},
    [ORDER_REFUSE_STATE] = {"refused: state while whole", 1, draw_in_window, play_refuse_state, NULL},
    [ORDER_REFUSE_OPTIMIZER] = {"refused: optimizer while whole", 1, draw_refuse_optimizer, play_refuse_optimizer,
                                NULL},
    [ORDER_REFUSE_WRITE] = {"refused: write to a whole one", 1, draw_refuse_write, play_refuse_write, NULL},
};

/* Orders that are likely to go wrong: calls on one model, with others between them now and then. Ended by ORDER_KINDS.
 */
enum {
    PHRASE_CALLS = 8
};
static const order_kind phrases[][PHRASE_CALLS] = {
    {ORDER_OPTIMIZER_ZERO_GRAD, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_UNSHARD, ORDER_READ_WHOLE, ORDER_RESHARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_EVALUATE, ORDER_FREEZE, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_EVALUATE, ORDER_ZERO_GRAD, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_EVALUATE, ORDER_NEW_OPTIMIZER, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_EVALUATE, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_UNSCALE, ORDER_CLIP, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_FORWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_FORWARD, ORDER_BACKWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD_KEEP, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_DROP, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_WRITE, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_SYNC_OFF, ORDER_FORWARD, ORDER_BACKWARD, ORDER_SYNC_ON, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP,
     ORDER_KINDS},
    {ORDER_SYNC_OFF, ORDER_FORWARD, ORDER_BACKWARD, ORDER_ZERO_GRAD, ORDER_SYNC_ON, ORDER_FORWARD, ORDER_BACKWARD,
     ORDER_KINDS},
    {ORDER_ALL_REDUCE_OFF, ORDER_FORWARD, ORDER_BACKWARD, ORDER_ALL_REDUCE_ON, ORDER_FORWARD, ORDER_BACKWARD,
     ORDER_STEP, ORDER_KINDS},
    {ORDER_ALL_REDUCE_OFF, ORDER_FORWARD, ORDER_BACKWARD, ORDER_SYNCHRONIZE, ORDER_STEP, ORDER_KINDS},
    {ORDER_UNSHARD, ORDER_FREEZE_ONE, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_UNSHARD, ORDER_ZERO_GRAD, ORDER_STEP, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_UNSHARD, ORDER_STEP, ORDER_EVALUATE, ORDER_KINDS},
    {ORDER_UNSHARD_ASYNC, ORDER_WAIT_UNSHARD, ORDER_READ_WHOLE, ORDER_FORWARD, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
    {ORDER_UNSHARD_ASYNC, ORDER_STEP, ORDER_WAIT_UNSHARD, ORDER_EVALUATE, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_BACKWARD, ORDER_SUMMON, ORDER_STEP, ORDER_EVALUATE, ORDER_KINDS},
    {ORDER_FORWARD, ORDER_SUMMON, ORDER_BACKWARD, ORDER_STEP, ORDER_KINDS},
};

/* ---- drawing a program ---- */

static bool changes_parameters(order_kind kind)
{
    return kind == ORDER_STEP || kind == ORDER_WRITE || kind == ORDER_FILL || kind == ORDER_COPY ||
           kind == ORDER_SUMMON || kind == ORDER_INITIALIZE || kind == ORDER_LOAD || kind == ORDER_LOAD_FULL ||
           kind == ORDER_FREEZE || kind == ORDER_UNFREEZE || kind == ORDER_FREEZE_ONE;
}

/* Between the forward and the backward of a checkpoint a change is an error. */
static bool is_error(const order_draw *d, order_kind kind, int model)
{
    bool waits = false;

    for (int s = 0; s < ORDER_SLOTS; s++)
        waits = waits || d->sketches[model].slots[s].state == ORDER_SLOT_ALIVE;
    return waits && d->program->plans[model].checkpoints && changes_parameters(kind);
}

/* A flat unit has zeros for what was trained in its forward, which the sketch does not follow. */
static bool is_uneven(const order_program *p, order_kind kind)
{
    return order_is_flat(p) && (kind == ORDER_FREEZE || kind == ORDER_FREEZE_ONE);
}

static bool add_call(order_draw *d, order_kind kind, int model)
{
    order_program *p = d->program;
    order_call call = {
        .kind = kind, .model = model, .target = -1, .param = -1, .slot = -1, .number = -1, .recurse = -1};

    if (p->count >= d->limit || is_error(d, kind, model) || is_uneven(p, kind) || !kinds[kind].draw(d, &call))
        return false;
    for (int m = 0; m < p->models; m++)
        call.whole[m] = order_params_of(&p->plans[m], d->sketches[m].windows);
    p->calls[p->count++] = call;
    return true;
}

static order_kind random_kind(order_draw *d)
{
    int total = 0, at, kind = 0;

    for (int k = 0; k < ORDER_KINDS; k++)
        total += kinds[k].weight;
    for (at = pick(d, total); at >= kinds[kind].weight; kind++)
        at -= kinds[kind].weight;
    return (order_kind)kind;
}

static int random_model(order_draw *d)
{
    return d->program->models > 1 && dice_chance(&d->random, 35);
}

static void draw_phrase(order_draw *d)
{
    const order_kind *phrase = phrases[pick(d, (int)FSDP__COUNT_OF(phrases))];
    int model = random_model(d);

    for (; *phrase != ORDER_KINDS; phrase++) {
        if (dice_chance(&d->random, 15))
            add_call(d, random_kind(d), random_model(d));
        d->root_only = dice_chance(&d->random, 60);
        add_call(d, *phrase, model);
        d->root_only = false;
    }
}

/* After a backward that was not the last, one that is. */
static void settle(order_draw *d, int model)
{
    if (!d->sketches[model].unsettled)
        return;
    d->root_only = true;
    add_call(d, ORDER_LAST_ON, model);
    while (!add_call(d, ORDER_FORWARD, model))
        add_call(d, ORDER_DROP, model);
    for (int i = 0; i < (d->program->plans[model].checkpoints ? ORDER_SLOTS : 1); i++)
        add_call(d, ORDER_DROP, model);
    add_call(d, ORDER_UNFREEZE, model);
    add_call(d, ORDER_FORWARD, model);
    for (int i = 0; i < ORDER_SLOTS && d->sketches[model].unsettled; i++)
        add_call(d, ORDER_BACKWARD, model);
    d->root_only = false;
}

/* Of every fifth seed, where they go with what is drawn about resharding. */
static void choose_stages(uint64_t seed, order_plan *plan)
{
    plan->staged = seed % 5 == 3;
    for (int g = 0; g < plan->group_count && plan->staged; g++) {
        bool never = plan->slice_ranks[g] ? plan->slice_ranks[g] == 1 : plan->reshard[g] == FSDP_RESHARD_NEVER;
        bool always = plan->slice_ranks[g] ? plan->slice_ranks[g] > 1 : plan->reshard[g] == FSDP_RESHARD_ALWAYS;
        int any = (int)(seed / 5 + (uint64_t)g);

        plan->zero_stage[g] = never ? 1 + any % 2 : always ? 3 : 1 + any % 3;
    }
}

static void draw_plan(order_draw *d, order_plan *plan)
{
    int shards = d->program->replicas > 0 ? d->program->world / d->program->replicas : d->program->world;

    plan->blocks = 1 + pick(d, ORDER_MAX_BLOCKS);
    plan->form = (order_form)pick(d, ORDER_FORMS);
    plan->grouping = (order_grouping)pick(d, ORDER_GROUPINGS);
    if ((plan->grouping == ORDER_GROUP_PAIR_BLOCKS && plan->blocks < 2) ||
        (plan->grouping == ORDER_GROUP_PAIR_ENDS && plan->form == ORDER_FORM_FUSED))
        plan->grouping = ORDER_GROUP_BLOCKS;
    plan->flat = order_is_flat(d->program);
    plan->as_one = plan->flat && d->program->seed / 5 % 2;
    plan->whole = plan->flat && shards == 1;
    if (plan->flat && plan->grouping != ORDER_GROUP_ROOT)
        plan->grouping = ORDER_GROUP_BLOCKS;
    if (order_replicates(d->program))
        plan->grouping = ORDER_GROUP_ROOT;
    plan->real = pick(d, 2);
    if (d->program->seed % 4 == 1)
        plan->checkpoints = (uint32_t)(d->program->seed / 4 + (uint64_t)plan->blocks) & ((1u << plan->blocks) - 1);
    order_plan_finish(plan);
    for (int g = 0; g < plan->group_count; g++) {
        plan->reshard[g] = (fsdp_reshard)pick(d, 3);
        if (pick(d, 3) == 0)
            plan->slice_ranks[g] = shards % 2 == 0 ? 2 : pick(d, 2) ? shards : 1;
        if (plan->flat)
            plan->slice_ranks[g] = 0;
        if (plan->whole)
            plan->reshard[g] = FSDP_RESHARD_NEVER;
    }
    choose_stages(d->program->seed, plan);
    if (plan->form == ORDER_FORM_TWICE && plan->targets[1].group > 0)
        d->program->exact = false; /* the gradients of both uses are reduced apart */
}

/* Depends on the seed alone; `limit` cuts off. */
static void draw_program(uint64_t seed, int limit, order_program *p)
{
    order_draw d = {.random = seed * 0x2545f4914f6cdd1du + 1, .program = p};

    *p = (order_program){.seed = seed, .exact = true};
    p->world = test_machines_world(1 + pick(&d, 5));
    if (dice_chance(&d.random, 40))
        do {
            p->replicas = 1 + pick(&d, p->world);
        } while (p->world % p->replicas != 0);
    p->models = 1 + pick(&d, 2);
    p->bf16 = dice_chance(&d.random, 40);
    p->reduce_f32 = p->bf16 && pick(&d, 2);
    for (int m = 0; m < p->models; m++) {
        draw_plan(&d, &p->plans[m]);
        if (order_replicates(p)) {
            p->plans[m].reshard[0] = FSDP_RESHARD_NEVER;
            p->plans[m].slice_ranks[0] = 0;
        }
        order_sketch_begin(&d.sketches[m], &p->plans[m]);
    }
    d.limit = 5 + pick(&d, 36);
    d.limit = limit > 0 && limit < d.limit ? limit : d.limit;
    for (int m = 0; m < p->models; m++)
        if (dice_chance(&d.random, 85))
            add_call(&d, ORDER_NEW_OPTIMIZER, m);
    while (p->count < d.limit)
        if (dice_chance(&d.random, 25))
            draw_phrase(&d);
        else
            add_call(&d, random_kind(&d), random_model(&d));
    d.limit = ORDER_MAX_CALLS;
    for (int m = 0; m < p->models; m++)
        settle(&d, m);
}

/* ---- running it ---- */

/* Now and then a rank is late. */
static void dawdle(const order_player *player)
{
    uint64_t random = player->program->seed * 1000003u + (uint64_t)(player->first_rank * 977 + player->at);

    if (player->program->world == 1 || player->plain)
        return;
    if (dice_chance(&random, 15))
        usleep((useconds_t)dice_below(&random, 2000));
    if (dice_below(&random, 400) == 0)
        usleep(10000);
}

static void make_call(order_player *player, const order_call *call)
{
    order_run_call run = player->plain ? kinds[call->kind].plain : kinds[call->kind].sharded;

    if (player->first_rank == 0 && getenv("FSDP_ORDER_TRACE"))
        order_print_call(stderr, player->program, player->at, kinds[call->kind].name);
    dawdle(player);
    if (!run)
        return;
    CHECK_OK(fsdp_scope_begin(player->context));
    run(player, call);
    fsdp_scope_end(player->context, NULL);
}

/* Gathers, reductions and copies are late, each rank's others; half of the times the computing is, too. That takes
 * time: every fourth sequence. */
static void hold_up(fsdp_context *context, const order_run *run)
{
    fsdp_device *device = test_device(context);
    uint64_t seed = run->program->seed * 64 + (uint64_t)fsdp_context_rank(context) + 1;

    fsdp__device_delay(device, &(fsdp__delays){.seed = seed,
                                               .most_us = 100,
                                               .stream = run->program->seed % 8 ? fsdp_device_stream(device) : NULL});
}

static void play(fsdp_context *context, void *arg)
{
    order_run *run = arg;
    const order_program *p = run->program;
    order_player player = {.program = p,
                           .run = run,
                           .context = context,
                           .plain = run->residence == NULL,
                           .first_rank = fsdp_context_rank(context),
                           .ranks = run->residence ? 1 : p->world,
                           .logs = run->logs};

    if (run->residence && run->residence->behind)
        CHECK_OK(fsdp__device_run_on_worker(test_device(context)));
    if (run->residence && run->residence->overlap == FSDP_OVERLAP_WORKER && p->seed % 4 == 0)
        hold_up(context, run);
    if (p->replicas > 0 && !player.plain)
        player.mesh = net_hybrid_mesh(context, p->replicas);
    for (int m = 0; m < p->models; m++)
        order_build(&player, run, m);
    for (player.at = 0; player.at < p->count; player.at++) {
        run->at[player.first_rank] = player.at;
        make_call(&player, &p->calls[player.at]);
    }
    player.at--;
    for (int m = 0; m < p->models; m++) {
        const order_call end = {.model = m, .whole = {p->calls[player.at].whole[0], p->calls[player.at].whole[1]}};

        order_observe(&player, m, &end);
        play_read_full(&player, &end);
    }
    for (int m = 0; m < p->models; m++)
        order_tear_down(&player.models[m], false);
    fsdp_mesh_unref(player.mesh);
}

/* ---- comparing ---- */

static bool same_run(const order_run *run, const order_run *other, log_equality how, int *call)
{
    char text[512];

    for (int r = 0; r < run->program->world; r++)
        if (test_rank_was_here(run->program->world, r) &&
            !run_log_same(&run->logs[r], &other->logs[r], how, call, text, sizeof text)) {
            print_error("rank %d, %s\nin '%s', as against '%s'\n", r, text, run->residence->name,
                        other->residence ? other->residence->name : "plain");
            return false;
        }
    return true;
}

/* Also what follows: a rank that is ahead may be the one that went wrong. */
static void print_failure(const order_program *p, int call)
{
    print_error("at call %d of this sequence, FSDP_ORDER_SEED=%llu repeats it:\n", call + 1,
                (unsigned long long)p->seed);
    order_print_program(stderr, p);
    for (int i = 0; i < p->count; i++) {
        if (i == call + 1)
            print_error("  ---\n");
        order_print_call(stderr, p, i, kinds[p->calls[i].kind].name);
    }
}

/* ---- the test ---- */

static int number_from(const char *name)
{
    const char *text = getenv(name);

    return text ? atoi(text) : 0;
}

static bool play_residence(order_run *run, const order_run *plain, const order_run *first, int *call)
{
    char text[4096];

    if (test_try_ranks(run->residence ? run->program->world : 1, play, run, text, sizeof text) > 0) {
        print_error("%sin '%s'\n", text, run->residence ? run->residence->name : "plain");
        for (int r = 0; r < run->program->world; r++)
            *call = run->at[r] > *call ? run->at[r] : *call;
        return false;
    }
    if (plain && !same_run(run, plain, run->program->exact ? LOG_VALUES : LOG_CLOSE, call))
        return false;
    return !first || same_run(run, first, LOG_BITS, call);
}

/* With plain models. */
static bool compares(const order_program *p)
{
    return !p->bf16;
}

/* All residences; of many sequences the first, another in shared memory and one that copies. */
static bool plays_in(uint64_t seed, uint64_t which)
{
    return test_long() || number_from("FSDP_ORDER_SEED") || which == 0 || which == 1 + seed % 2 ||
           which == 3 + seed / 2 % 3;
}

static bool sequence_passes(uint64_t seed)
{
    order_run runs[FSDP__COUNT_OF(residences)] = {{0}}, plain = {0};
    order_program program;
    bool passes;
    int call = 0;

    draw_program(seed, number_from("FSDP_ORDER_CALLS"), &program);
    plain.program = &program;
    passes = !compares(&program) || play_residence(&plain, NULL, NULL, &call);
    for (size_t i = 0; i < FSDP__COUNT_OF(residences) && passes; i++) {
        if (!plays_in(seed, i))
            continue;
        runs[i].program = &program;
        runs[i].residence = &residences[i];
        passes = play_residence(&runs[i], compares(&program) ? &plain : NULL, i > 0 ? &runs[0] : NULL, &call);
    }
    if (!passes)
        print_failure(&program, call);
    for (int r = 0; r < ORDER_MAX_WORLD; r++) {
        run_log_free(&plain.logs[r]);
        for (size_t i = 0; i < FSDP__COUNT_OF(residences); i++)
            run_log_free(&runs[i].logs[r]);
    }
    return passes;
}

enum {
    SHORT = 120,
    BRIEF = 40,
    LONG = TEST_SANITIZED ? 2000 : 20000
};

static void every_order_gives_the_same(void **state)
{
    int only = number_from("FSDP_ORDER_SEED"), count = number_from("FSDP_ORDER_COUNT"), failed = 0;
    int from = number_from("FSDP_ORDER_FROM");

    (void)state;
    if (count == 0)
        count = test_long() ? LONG : test_brief() ? BRIEF : SHORT;
    if (only) {
        CHECK(sequence_passes((uint64_t)only));
        return;
    }
    for (int seed = from + 1; seed <= from + count; seed++)
        failed += !sequence_passes((uint64_t)seed);
    if (failed)
        TEST_FAIL("%d of %d sequences failed", failed, count);
}

TEST_MAIN_JOINED(cmocka_unit_test(every_order_gives_the_same))
