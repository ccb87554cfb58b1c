/* replicate_join.c - lets ranks run with fewer inputs than others (DDP's Join). */
#include "shard/doors/replicate_join.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "shard/reduce/bucket_order.h"
#include "shard/state/lazy_init.h"
#include "shard/state/methods.h"

enum {
    ABSENT,
    PRESENT,
    UNABLE /* it has inputs, but its forward has failed already */
};

/* Says what is counted: the ranks that record, that synchronise, and that were given an option or were not. */
enum {
    RECORDS,
    SYNCS,
    STOP_EARLY,
    NOT_STOP_EARLY,
    DIVIDE,
    NOT_DIVIDE,
    NUMBERS
};

/* Holds what all ranks say when an iteration begins: who is present, and what is counted. */
typedef struct roll {
    int32_t *present; /* one number for each rank, then NUMBERS that are counted */
    int ranks, count, first;
    bool records, syncs;
} roll;

static void close_roll(roll *r)
{
    fsdp__free(r->present);
}

static fsdp_status check_option(const char *name, int with, int without)
{
    if (with == 0 || without == 0)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_MISMATCH,
        "%d of %d ranks have joined (fsdp_module_join_begin) with %s, the others without: all must, or none", with,
        with + without, name);
}

static fsdp_status check_numbers(const roll *r, const int32_t *numbers)
{
    FSDP_TRY(check_option("stop_early", numbers[STOP_EARLY], numbers[NOT_STOP_EARLY]));
    FSDP_TRY(check_option("divide_by_present", numbers[DIVIDE], numbers[NOT_DIVIDE]));
    if ((r->records && numbers[RECORDS] != r->count) || (r->syncs && numbers[SYNCS] != r->count))
        return FSDP_FAIL(FSDP_MISMATCH,
                         "of %d ranks that still have inputs %d record this forward of a replicated module for a "
                         "backward, and %d synchronise its gradients: all must, or none",
                         r->count, numbers[RECORDS], numbers[SYNCS]);
    return FSDP_OK;
}

static fsdp_status call_roll(fsdp__param_group *group, int present, bool records, bool syncs, roll *out)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp_join_options *options = &group->buckets->join;
    int ranks = mesh->replicas;
    int32_t *numbers;

    *out = (roll){.ranks = ranks, .first = -1};
    FSDP__TRY_NEW(out->present = fsdp__calloc((size_t)ranks + NUMBERS, sizeof *out->present));
    numbers = out->present + ranks;
    out->present[fsdp_process_group_rank(mesh->replicate_pg)] = present;
    numbers[RECORDS] = records;
    numbers[SYNCS] = syncs;
    numbers[options->stop_early ? STOP_EARLY : NOT_STOP_EARLY] = 1;
    numbers[options->divide_by_present ? DIVIDE : NOT_DIVIDE] = 1;
    FSDP_TRY(fsdp__buckets_add_up(group, out->present, ranks + NUMBERS));
    for (int r = ranks - 1; r >= 0; r--) {
        out->count += out->present[r] > 0;
        out->first = out->present[r] > 0 ? r : out->first;
    }
    out->records = numbers[RECORDS] > 0;
    out->syncs = numbers[SYNCS] > 0;
    return check_numbers(out, numbers);
}

/* Returns the first rank that has said `said`, as a rank of the world; -1 if there is none. */
static int find_rank(const fsdp__param_group *group, const roll *r, int said)
{
    for (int i = 0; i < r->ranks; i++)
        if (r->present[i] == said)
            return fsdp_process_group_global_rank(group->residence.mesh.replicate_pg, i);
    return -1;
}

/* Fails if the iteration ends for all ranks because it does for one. */
static fsdp_status check_all(const fsdp__param_group *group, const roll *r)
{
    int unable = find_rank(group, r, UNABLE), gone = find_rank(group, r, ABSENT);

    if (unable >= 0)
        return FSDP_FAIL(FSDP_STATE, "rank %d cannot run this forward of a replicated module: its own error says why",
                         unable);
    if (!group->buckets->join.stop_early || gone < 0 || r->count == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE, "rank %d has no inputs left, and the others do: stop_early ends all", gone);
}

/* Ends the join; also after an error, which is then the same on all ranks. */
static void end_join(fsdp__buckets *b)
{
    b->joining = false;
    b->divisor = 0;
    b->speaker = 0;
}

void fsdp__replica_not_begun(fsdp__module_state *state)
{
    if (fsdp__replica_of(state))
        end_join(fsdp__replica_of(state)->buckets);
}

/* Sets, for this iteration, who speaks for all and what gradients are divided by. */
static void follow(fsdp__buckets *b, const roll *r)
{
    b->speaker = r->first;
    b->divisor = b->join.divide_by_present ? (float)r->count : 0;
}

static fsdp_status announce(const fsdp__module_state *state, fsdp__param_group *group, bool recording, fsdp_status mine)
{
    bool syncs = recording && state->reduce_grads && state->reduction.all_reduce;
    roll r;
    fsdp_status status;

    if (!group->buckets->joining)
        return mine;
    status = call_roll(group, mine == FSDP_OK ? PRESENT : UNABLE, recording, syncs, &r);
    if (status == FSDP_OK)
        status = mine != FSDP_OK ? mine : check_all(group, &r);
    if (status == FSDP_OK)
        follow(group->buckets, &r);
    else
        end_join(group->buckets);
    close_roll(&r);
    return status;
}

fsdp_status fsdp__replica_begin_forward(fsdp__module_state *state, bool recording)
{
    fsdp__param_group *group = fsdp__replica_of(state);

    if (!group)
        return FSDP_OK;
    FSDP_TRY(announce(state, group, recording, fsdp__replica_check(state, recording)));
    return fsdp__replica_prepare(state, recording);
}

/* ---- what a rank without inputs does ---- */

/* Sends all buckets, with nothing in them but what this rank has kept without synchronisation. */
static fsdp_status shadow_backward(fsdp__module_state *state, fsdp__param_group *group)
{
    fsdp__reduce_settings settings = state->reduction;
    bool reduced;
    fsdp_status status;

    settings.all_reduce = true;
    settings.landed = NULL; /* no optimizer steps here */
    for (int64_t i = 0; i < group->param_count; i++)
        group->params[i].due = group->params[i].due || group->buckets->places[i].bucket >= 0;
    group->buckets->absent = true;
    status = fsdp__buckets_reduce(group, state->comm, &settings, &reduced);
    group->buckets->absent = false;
    if (status == FSDP_OK)
        status = fsdp__comm_context_finish_reduction(state->comm);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__put_grad(group->params[i].sharded, NULL);
    return status;
}

static fsdp_status shadow(fsdp__module_state *state, fsdp__param_group *group, const roll *r)
{
    follow(group->buckets, r);
    FSDP_TRY(fsdp__replica_prepare(state, r->records));
    group->buckets->open = false; /* this rank has no backward of its own */
    fsdp__replica_settle(state, r->records && r->syncs);
    return r->syncs ? shadow_backward(state, group) : FSDP_OK;
}

/* Takes part in the others' iterations until no rank has inputs. */
static fsdp_status follow_others(fsdp__module_state *state, fsdp__param_group *group)
{
    for (bool more = true; more;) {
        FSDP__SCOPED(close_roll) roll r = {0};

        FSDP_TRY(call_roll(group, ABSENT, false, false, &r));
        FSDP_TRY(check_all(group, &r));
        more = r.count > 0;
        if (more)
            FSDP_TRY(shadow(state, group, &r));
    }
    return FSDP_OK;
}

/* ---- the calls ---- */

static fsdp_status idle_replica(fsdp_module *module, fsdp__module_state **state, fsdp__param_group **out)
{
    FSDP_TRY(fsdp__method_state(module, state));
    *out = fsdp__replica_of(*state);
    if (!*out)
        return FSDP_FAIL(FSDP_STATE, "this %s is not replicated: it cannot join", module->type->name);
    if ((*state)->training != FSDP__IDLE)
        return FSDP_FAIL(FSDP_STATE, "cannot join while a %s runs",
                         (*state)->training == FSDP__FORWARD ? "forward" : "backward");
    return FSDP_OK;
}

fsdp_status fsdp_module_join_begin(fsdp_module *module, const fsdp_join_options *options)
{
    fsdp__module_state *state;
    fsdp__param_group *group;

    FSDP_TRY(idle_replica(module, &state, &group));
    if (group->buckets->joining)
        return FSDP_FAIL(FSDP_STATE, "fsdp_module_join_begin was called already, without fsdp_module_join_end");
    group->buckets->join = options ? *options : (fsdp_join_options){0};
    group->buckets->joining = true;
    return FSDP_OK;
}

fsdp_status fsdp_module_join_end(fsdp_module *module)
{
    fsdp__module_state *state;
    fsdp__param_group *group;
    fsdp_status status;

    FSDP_TRY(idle_replica(module, &state, &group));
    if (!group->buckets->joining)
        return FSDP_FAIL(FSDP_STATE, "fsdp_module_join_end without fsdp_module_join_begin");
    FSDP_TRY(fsdp__module_need_ready(module, NULL, 0)); /* as the others' forwards do */
    if (!state->root->agreed)
        FSDP_TRY(fsdp__begin_together(state, module, FSDP_OK));
    status = follow_others(state, group);
    if (status == FSDP_OK)
        status = fsdp__replica_broadcast(state, group->buckets->speaker); /* the last one that was present */
    else
        (void)fsdp__root_reset(state->root); /* as on the other ranks, whose forward has failed */
    end_join(group->buckets);
    return status;
}
