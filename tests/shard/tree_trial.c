/* tree_trial.c - running a plan and comparing what was seen. */
#include "shard/tree_trial.h"

#include <unistd.h>

#include "shard/tree_calls.h"
#include "shard/tree_print.h"
#include "support/dice.h"
#include "support/ranks.h"

/* ---- a run ---- */

/* Now and then a rank is late. */
static void dawdle(const tree_player *player)
{
    uint64_t random = player->plan->seed * 1000003u + (uint64_t)(player->first_rank * 977 + player->at);

    if (player->plan->late && player->plan->world > 1 && !player->plain && dice_chance(&random, 15))
        usleep((useconds_t)dice_below(&random, 1000));
}

static void play(fsdp_context *context, void *arg)
{
    tree_run *run = arg;
    tree_player player;

    tree_player_begin(&player, context, run);
    for (player.at = 0; player.at < run->plan->call_count; player.at++) {
        run->at[player.first_rank] = player.at;
        if (player.first_rank == 0 && getenv("FSDP_TREE_TRACE"))
            tree_print_call(stderr, run->plan, player.at);
        dawdle(&player);
        tree_make_call(&player);
    }
    run->at[player.first_rank] = player.at;
    tree_last_steps(&player);
    tree_observe(&player);
    tree_player_end(&player);
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

    if (test_try_ranks(run->residence ? run->plan->world : 1, play, run, why, sizeof why) == 0)
        return true;
    for (int r = 0; r < run->plan->world; r++)
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

    if (run->residence->behind || (mine[last] == mine[last - 1] && (mine[last] == theirs[last] || !alike)))
        return true;
    snprintf(text, bytes,
             "rank %d in '%s': %lld bytes live after the last step, %lld after the one before; %lld in '%s'", rank,
             name_of(run), (long long)mine[last], (long long)mine[last - 1], (long long)theirs[last], name_of(other));
    return false;
}

static bool same_run(const tree_run *run, const tree_run *other, log_equality how, char *text, size_t bytes)
{
    char why[512];
    int call = 0;

    for (int r = 0; r < run->plan->world; r++)
        if (!run_log_same(&run->logs[r], &other->logs[r], how, &call, why, sizeof why)) {
            snprintf(text, bytes, "rank %d, %s\nat call %d, in '%s', as against '%s'", r, why, call + 1, name_of(run),
                     name_of(other));
            return false;
        }
    return true;
}

static bool same_everywhere(const tree_run *run, const tree_run *plain, const tree_run *first, char *text, size_t bytes)
{
    log_equality rounded = tree_is_low_precision(run->plan) ? LOG_ROUGH : LOG_CLOSE;
    log_equality like_plain = plain->otherwise ? rounded : LOG_VALUES;

    for (int r = 0; r < run->plan->world; r++)
        if (!same_live_bytes(run, first, r, text, bytes))
            return false;
    /* Values that differ in their last bits may become codes that are one apart. */
    if (plain->otherwise && tree_is_coded(run->plan))
        return same_run(run, first, LOG_BITS, text, bytes);
    return same_run(run, plain, like_plain, text, bytes) && same_run(run, first, LOG_BITS, text, bytes);
}

static void free_logs(tree_run *run)
{
    for (int r = 0; r < TREE_MAX_WORLD; r++)
        run_log_free(&run->logs[r]);
}

bool tree_passes(const tree_plan *plan, uint32_t which, char *text, size_t bytes)
{
    tree_run *runs = calloc(RESIDENCES + 1, sizeof *runs), *plain = &runs[RESIDENCES], *first = NULL;
    bool passes;

    plain->plan = plan;
    plain->otherwise = tree_adds_otherwise(plan);
    passes = run_passes(plain, text, bytes);
    for (int i = 0; i < RESIDENCES && passes; i++) {
        if (!(which >> i & 1))
            continue;
        runs[i].plan = plan;
        runs[i].residence = &residences[i];
        first = first ? first : &runs[i];
        passes = run_passes(&runs[i], text, bytes) && same_everywhere(&runs[i], plain, first, text, bytes);
    }
    for (int i = 0; i <= RESIDENCES; i++)
        free_logs(&runs[i]);
    free(runs);
    return passes;
}
