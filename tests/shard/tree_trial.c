/* tree_trial.c - running a plan and comparing what was seen. */
#include "shard/tree_trial.h"

#include <limits.h>
#include <unistd.h>

#include "check/delays.h"
#include "shard/cut_net.h"
#include "shard/net.h"
#include "shard/tree_calls.h"
#include "shard/tree_print.h"
#include "support/dice.h"
#include "support/ranks.h"

/* ---- a run ---- */

/* Now and then a rank is late. */
static void dawdle(const tree_player *player)
{
    uint64_t random =
        player->plan->seed * 1000003u + (uint64_t)((player->plain ? 0 : player->place) * 977 + player->at);

    if (!player->plan->late || tree_ranks(player->plan) == 1 || player->plain)
        return;
    if (dice_chance(&random, 15))
        usleep((useconds_t)dice_below(&random, player->plan->orders ? 2000 : 1000));
    if (player->plan->orders && dice_below(&random, 400) == 0)
        usleep(10000);
}

/* Gathers, reductions and copies are late, each rank's others; half of the times the computing is, too. That takes
 * time: every fourth plan of any order. */
static void hold_up(fsdp_context *context, const tree_run *run)
{
    fsdp_device *device = test_device(context);
    uint64_t seed = run->plan->seed * 64 + (uint64_t)fsdp_context_rank(context) + 1;

    if (!run->plan->orders || run->residence->overlap != FSDP_OVERLAP_WORKER || run->plan->seed % 4 != 0)
        return;
    fsdp__device_delay(device, &(fsdp__delays){.seed = seed,
                                               .most_us = 100,
                                               .stream = run->plan->seed % 8 ? fsdp_device_stream(device) : NULL});
}

static void make_calls(tree_player *players, tree_run *run)
{
    int rank = players[0].place;

    for (int at = 0; at < run->plan->call_count; at++) {
        tree_player *player = &players[run->plan->second ? run->plan->calls[at].model : 0];

        run->at[rank] = player->at = at;
        if (rank == 0 && getenv("FSDP_TREE_TRACE"))
            tree_print_call(stderr, run->plan, at);
        dawdle(player);
        tree_make_call(player);
    }
    run->at[rank] = run->plan->call_count;
}

static void play(fsdp_context *context, void *arg)
{
    tree_run *run = arg;
    const tree_plan *plan = run->plan;
    tree_player players[TREE_MAX_MODELS];
    int models = plan->second ? 2 : 1;
    cut_meshes cut = {.root = NULL};
    tree_meshes meshes = {.data = NULL};

    if (plan->fsdp1 || (plan->second && plan->second->fsdp1)) /* it tells of each unit that is whole anyway */
        fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    if (run->residence && run->residence->behind)
        test_run_behind(test_device(context));
    if (run->residence)
        hold_up(context, run);
    if (plan->team > 1 && run->residence) {
        cut = cut_meshes_create(context, (cut_layout){plan->replicas, plan->world / plan->replicas, plan->team});
        meshes = (tree_meshes){cut.data, cut.parts};
    } else if ((plan->grid || plan->replicas > 1) && run->residence) {
        meshes.data = net_hybrid_mesh(context, plan->replicas);
    }
    for (int m = 0; m < models; m++)
        tree_player_begin(&players[m], context, run, m, meshes);
    make_calls(players, run);
    for (int m = 0; m < models; m++) {
        players[m].at = plan->call_count;
        tree_play_read_full(&players[m], NULL);
        tree_last_steps(&players[m]);
        tree_observe(&players[m]);
    }
    for (int m = 0; m < models; m++)
        tree_player_end(&players[m]);
    if (cut.root)
        cut_meshes_free(&cut);
    else
        fsdp_mesh_unref(meshes.data);
}

/* ---- comparing ---- */

static const char *name_of(const tree_run *run)
{
    return run->residence ? run->residence->name : "plain";
}

static bool run_passes(tree_run *run, char *text, size_t bytes)
{
    char why[2048];
    int at = 0;

    if (test_try_ranks(run->residence ? tree_ranks(run->plan) : 1, play, run, why, sizeof why) == 0)
        return true;
    for (int r = 0; r < tree_ranks(run->plan); r++)
        at = run->at[r] > at ? run->at[r] : at;
    snprintf(text, bytes, "%sat call %d, in '%s'", why, at + 1, name_of(run));
    return false;
}

/* After equal steps the same bytes live, in all residences; but where the device runs behind the host, memory of
 * gathers waits for the next ones if no backward came. Offloaded shards keep no cast on the device. */
static bool same_live_bytes(const tree_run *run, const tree_run *other, int rank, char *text, size_t bytes)
{
    const int64_t *mine = run->live[rank], *theirs = other->live[rank];
    bool alike = !other->residence->behind && (!run->residence->copy || test_on_cpu());
    int last = TREE_LAST_STEPS - 1;

    if (run->residence->behind || run->plan->orders ||
        (mine[last] == mine[last - 1] && (mine[last] == theirs[last] || !alike)))
        return true;
    snprintf(text, bytes,
             "rank %d in '%s': %lld bytes live after the last step, %lld after the one before; %lld in '%s'", rank,
             name_of(run), (long long)mine[last], (long long)mine[last - 1], (long long)theirs[last], name_of(other));
    return false;
}

/* What was seen before a call. */
static run_log log_before(const run_log *log, int call)
{
    run_log part = *log;

    while (part.count > 0 && part.entries[part.count - 1].call >= call)
        part.count--;
    return part;
}

/* What both saw before call `until`. */
static bool same_run(const tree_run *run, const tree_run *other, log_equality how, int until, char *text, size_t bytes)
{
    char why[512];
    int call = 0;

    for (int r = 0; r < tree_ranks(run->plan); r++) {
        const run_log mine = log_before(&run->logs[r], until), theirs = log_before(&other->logs[r], until);

        if (test_rank_was_here(tree_ranks(run->plan), r) &&
            !run_log_same(&mine, &theirs, how, &call, why, sizeof why)) {
            snprintf(text, bytes, "rank %d, %s\nat call %d, in '%s', as against '%s'", r, why, call + 1, name_of(run),
                     name_of(other));
            return false;
        }
    }
    return true;
}

static bool is_low(const tree_plan *plan)
{
    return tree_is_low_precision(plan) || (plan->second && tree_is_low_precision(plan->second));
}

/* Returns the call from which on the plain tree adds otherwise than the sharded one, as far as the plan says it. */
static int otherwise_from(const tree_plan *plan)
{
    bool other = plan->second && is_low(plan) && tree_adds_otherwise(plan->second);

    return plan->team > 1 || other || tree_adds_otherwise(plan) ? 0 : INT_MAX;
}

/* After many calls in any order what is rounded to 16 bits may be anywhere, unless all is added in the same order. */
static bool strays(const tree_plan *plan)
{
    return plan->orders && is_low(plan);
}

/* With the plain tree, whose values a GPU does not have to the last bit. */
static bool compares(const tree_plan *plan)
{
    return !strays(plan) || (otherwise_from(plan) > 0 && test_has_cpu_bits());
}

static bool splits(const tree_run *run)
{
    return run->residence && residence_splits(run->residence, run->plan->seed) && tree_splits_any(run->plan);
}

/* Halves are cast otherwise where two numbers are as near. */
static bool casts_otherwise(const tree_run *run, const tree_run *other)
{
    bool tied = false;

    for (int r = 0; r < TREE_MAX_WORLD; r++)
        tied = tied || run->tied[r] || other->tied[r];
    return tied && splits(run) != splits(other);
}

static bool same_as_plain(const tree_run *run, const tree_run *plain, char *text, size_t bytes)
{
    log_equality near = tree_is_low_precision(run->plan) || plain->rounded ? LOG_ROUGH : LOG_CLOSE;
    bool cast = casts_otherwise(run, plain), otherwise = plain->otherwise < INT_MAX;

    if (!cast && (!otherwise || test_has_cpu_bits()) &&
        !same_run(run, plain, LOG_VALUES, plain->otherwise, text, bytes))
        return false;
    /* Values that differ in their last bits may become codes that are one apart. */
    if (!(cast || otherwise) || strays(run->plan) || (otherwise && tree_is_coded(run->plan)))
        return true;
    return same_run(run, plain, cast ? LOG_ROUGH : near, INT_MAX, text, bytes);
}

/* `first` is the first run, and `alike` the first whose shards rest as this one's do. */
static bool same_everywhere(const tree_run *run, const tree_run *plain, const tree_run *first, const tree_run *alike,
                            char *text, size_t bytes)
{
    bool same = casts_otherwise(run, first) || same_run(run, first, LOG_BITS, INT_MAX, text, bytes);

    for (int r = 0; r < tree_ranks(run->plan); r++)
        if (test_rank_was_here(tree_ranks(run->plan), r) && !same_live_bytes(run, alike, r, text, bytes))
            return false;
    same = same && same_run(run, alike, LOG_BITS, INT_MAX, text, bytes);
    return same && (!compares(run->plan) || same_as_plain(run, plain, text, bytes));
}

static void free_logs(tree_run *run)
{
    for (int r = 0; r < TREE_MAX_WORLD; r++)
        run_log_free(&run->logs[r]);
}

/* NULL: nothing is saved, or ranks are not threads of one process. */
static char *directory_for(const tree_plan *plan)
{
    bool saves = false;

    for (int c = 0; c < plan->call_count; c++)
        saves = saves || plan->calls[c].kind == TREE_CHECKPOINT;
    return saves && test_machines_of(tree_ranks(plan)) == 1 && !getenv("FSDP_TEST_JOINED") ? test_directory() : NULL;
}

bool tree_passes(const tree_plan *plan, uint32_t which, char *text, size_t bytes)
{
    tree_run *runs = calloc(RESIDENCES + 1, sizeof *runs), *plain = &runs[RESIDENCES], *first = NULL;
    const tree_run *alike[2] = {NULL};
    const tree_run **of_class;
    char *directory = directory_for(plan);
    bool passes;

    plain->plan = plan;
    plain->directory = directory;
    plain->otherwise = otherwise_from(plan);
    passes = !compares(plan) || run_passes(plain, text, bytes);
    for (int i = 0; i < RESIDENCES && passes; i++) {
        if (!(which >> i & 1))
            continue;
        runs[i].plan = plan;
        runs[i].residence = &residences[i];
        runs[i].directory = directory;
        first = first ? first : &runs[i];
        of_class = &alike[splits(&runs[i])];
        *of_class = *of_class ? *of_class : &runs[i];
        passes = run_passes(&runs[i], text, bytes) && same_everywhere(&runs[i], plain, first, *of_class, text, bytes);
    }
    for (int i = 0; i <= RESIDENCES; i++)
        free_logs(&runs[i]);
    free(runs);
    if (directory)
        test_directory_free(directory);
    return passes;
}

/* ---- many plans ---- */

static bool number_passes(const tree_trial *trial, uint64_t seed, uint32_t which)
{
    static tree_plan plans[TREE_MAX_MODELS];
    char text[4096], reduced[4096];

    trial->draw(seed, plans);
    if (tree_passes(plans, which, text, sizeof text))
        return true;
    fprintf(stderr, "%s\nin this plan, FSDP_%s_SEED=%llu repeats it:\n", text, trial->name, (unsigned long long)seed);
    tree_print(stderr, plans);
    if (getenv("FSDP_TEST_JOINED")) /* other processes have another failure, or none */
        return false;
    tree_reduce(plans, which, text);
    if (!tree_passes(plans, which, reduced, sizeof reduced)) {
        fprintf(stderr, "%s\nreduced to this:\n", reduced);
        tree_print(stderr, plans);
    }
    return false;
}

/* What ranks that failed have left behind lives on, and fills the device's memory: no other plan, nor another case, can
 * be told from it. */
static void pass_or_end(const tree_trial *trial, uint64_t seed, uint32_t which)
{
    if (number_passes(trial, seed, which))
        return;
    if (getenv("FSDP_TEST_JOINED"))
        TEST_FAIL("plan %llu failed", (unsigned long long)seed);
    fprintf(stderr, "plan %llu failed: this ends the program\n", (unsigned long long)seed);
    fflush(NULL);
    _exit(1);
}

void tree_try(const tree_trial *trial)
{
    int usual = test_long() ? trial->longer : test_brief() ? trial->brief : trial->shorter;
    const dice_seeds seeds = dice_seeds_of(trial->name, (uint64_t)usual);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        pass_or_end(trial, seed, seeds.only ? (1u << RESIDENCES) - 1 : trial->residences(seed));
}
