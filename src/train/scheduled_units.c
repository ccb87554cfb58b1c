/* scheduled_units.c - parallelism.schedule: where a run's schedule comes from, whether it fits the run, and how the
 * model is sharded by it. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "train/run_config.h"
#include "train/run_start.h"

bool fsdp__train_plans_schedule(const fsdp_train_config *config)
{
    return config->parallelism.schedule && strcmp(config->parallelism.schedule, "plan") == 0;
}

/* ---- where it comes from ---- */

/* Checks everything that does not need the model. */
static fsdp_status check(const fsdp_train_run *run, const fsdp__comm_schedule *s)
{
    const fsdp_train_config *c = run->config;
    int ranks = fsdp_context_world_size(run->context), machines = fsdp_context_machines(run->context);
    int copies = fsdp__train_replicas(c, ranks);
    const char *strategy = fsdp__train_strategy_name(c);

    if (s->world_size != ranks || s->machines != machines || s->copies != copies)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule is for (ranks, machines, copies of the parameters) = (%d, %d, %d), but "
                         "this run has (%d, %d, %d): plan again",
                         s->world_size, s->machines, s->copies, ranks, machines, copies);
    if (strcmp(s->strategy, strategy) != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule is for parallelism.strategy '%s', but this run has %s: plan again",
                         FSDP__SHOWN_NAME(s->strategy), strategy);
    for (int64_t i = 0; i < s->unit_count; i++)
        if (s->units[i].stays && !fsdp__train_chooses_stays(c))
            return FSDP_FAIL(FSDP_INVALID,
                             "parallelism.schedule keeps unit %lld whole, but parallelism.strategy %s decides that for "
                             "all units: plan again",
                             (long long)i, strategy);
    return FSDP_OK;
}

static fsdp_status take(fsdp_train_run *run, fsdp__comm_schedule *s)
{
    run->own_schedule = s;
    FSDP_TRY(check(run, s));
    run->comm_schedule = s;
    return FSDP_OK;
}

fsdp_status fsdp__train_read_schedule(fsdp_train_run *run)
{
    const char *path = run->config->parallelism.schedule;
    fsdp__comm_schedule *s = NULL;

    if (run->own && run->own->schedule) {
        run->comm_schedule = run->own->schedule;
        return FSDP_OK;
    }
    if (!path)
        return FSDP_OK;
    if (fsdp__train_plans_schedule(run->config)) {
        if (run->listener->plan)
            return FSDP_OK;
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "parallelism.schedule is plan, but nothing here plans: 'fsdp train' does, or "
                         "name the file of 'fsdp plan --schedule FILE'");
    }
    FSDP_TRY(fsdp_fail_prefix(fsdp__comm_schedule_read(path, &s), "parallelism.schedule"));
    return take(run, s);
}

fsdp_status fsdp__train_plan_schedule(fsdp_train_run *run)
{
    fsdp_status status;
    FILE *out;

    if (fsdp_context_rank(run->context) != 0)
        return FSDP_OK;
    out = fsdp__begin_text(&run->schedule_text, &run->schedule_bytes);
    status = out ? run->listener->plan(run->listener->arg, out) : FSDP_OK;
    FSDP_KEEP_FIRST(status, fsdp__end_text(out));
    return fsdp_fail_prefix(status, "parallelism.schedule plan");
}

fsdp_status fsdp__train_share_schedule(fsdp_train_run *run)
{
    fsdp_process_group *world = fsdp_world(run->context);
    int ranks = fsdp_context_world_size(run->context);
    FSDP__FREED const void **texts = fsdp__calloc((size_t)ranks, sizeof *texts);
    FSDP__FREED size_t *sizes = fsdp__calloc((size_t)ranks, sizeof *sizes);
    FSDP__FREED void *text = NULL;
    fsdp__comm_schedule *s = NULL;
    size_t bytes = 0;

    if (!world || !texts || !sizes)
        return world ? FSDP_NO_MEMORY : fsdp_last_status();
    for (int r = 0; r < ranks; r++) { /* those of rank 0 count */
        texts[r] = run->schedule_text;
        sizes[r] = run->schedule_bytes;
    }
    FSDP_TRY(fsdp_scatter_objects(world, 0, texts, sizes, &text, &bytes));
    FSDP_TRY(fsdp__comm_schedule_parse("the schedule of rank 0", text, bytes, &s));
    return take(run, s);
}

void fsdp__train_release_schedule(fsdp_train_run *run)
{
    fsdp__comm_schedule_free(run->own_schedule);
    fsdp__free(run->schedule_text);
}

/* ---- what it says of the model ---- */

/* Describes a module of a unit, for messages. */
typedef struct place {
    const fsdp__comm_schedule *s;
    const char *file;
    int64_t unit, module;
} place;

static const char *name_at(const place *p)
{
    return p->s->units[p->unit].modules[p->module];
}

/* Checks a module against one that the file has before it. What lies in a module is sharded before it, so from the last
 * unit to the first. */
static fsdp_status check_pair(const place *before, const place *p)
{
    const char *inside = fsdp__behind(name_at(before), name_at(p));

    if (strcmp(name_at(before), name_at(p)) == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule: %s: units[%lld] has the module '%s', and so has units[%lld]: leave it "
                         "out of one, or plan again",
                         p->file, (long long)p->unit, FSDP__SHOWN_NAME(name_at(p)), (long long)before->unit);
    if (before->unit != p->unit && inside && *inside == '.')
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule: %s: units[%lld] has the module '%s', of which '%s' in units[%lld] is a "
                         "part: put the outer one first, or plan again",
                         p->file, (long long)p->unit, FSDP__SHOWN_NAME(name_at(p)), FSDP__SHOWN_NAME(name_at(before)),
                         (long long)before->unit);
    return FSDP_OK;
}

static fsdp_status check_module(const fsdp_train_run *run, const place *p)
{
    const char *name = name_at(p);

    if (name[strlen(name) - 1] == '.' || !fsdp_module_child(run->model, name))
        return FSDP_FAIL(
            FSDP_INVALID,
            "parallelism.schedule: %s: units[%lld] has a module '%s', which the model has not: correct the "
            "name, or plan again",
            p->file, (long long)p->unit, FSDP__SHOWN_NAME(name));
    for (place before = {p->s, p->file, 0, 0}; before.unit <= p->unit; before.unit++)
        for (before.module = 0; before.module < p->s->units[before.unit].module_count; before.module++) {
            if (before.unit == p->unit && before.module == p->module)
                return FSDP_OK;
            FSDP_TRY(check_pair(&before, p));
        }
    return FSDP_OK;
}

fsdp_status fsdp__train_check_scheduled(const fsdp_train_run *run)
{
    const fsdp__comm_schedule *s = run->comm_schedule;
    const char *path = run->config->parallelism.schedule;
    place p = {.s = s, .file = !path || fsdp__train_plans_schedule(run->config) ? "what was planned" : path};

    if (run->model_hash != s->parameters)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule is for a model '%s' with other parameters than this run's: their names, "
                         "shapes or dtypes differ: plan again",
                         FSDP__SHOWN_NAME(s->model));
    for (p.unit = 0; p.unit < s->unit_count; p.unit++)
        for (p.module = 0; p.module < s->units[p.unit].module_count; p.module++)
            FSDP_TRY(check_module(run, &p));
    return FSDP_OK;
}

bool fsdp__train_is_scheduled(void *schedule, const fsdp_module *module, const char *name)
{
    const fsdp__comm_schedule *s = schedule;

    (void)module;
    for (int64_t i = 0; i < s->unit_count; i++)
        for (int64_t m = 0; m < s->units[i].module_count; m++)
            if (strcmp(s->units[i].modules[m], name) == 0)
                return true;
    return false;
}

/* ---- sharding ---- */

static fsdp_module *first_of(const fsdp_train_run *run, int64_t unit)
{
    return fsdp_module_child(run->model, run->comm_schedule->units[unit].modules[0]);
}

static fsdp_status shard_unit(const fsdp_train_run *run, const fsdp__comm_unit *unit, const fsdp_shard_options *options)
{
    FSDP__FREED fsdp_module **modules = fsdp__calloc((size_t)unit->module_count, sizeof(fsdp_module *));
    fsdp_shard_options own = *options;

    FSDP__TRY_NEW(modules);
    for (int64_t m = 0; m < unit->module_count; m++)
        modules[m] = fsdp_module_child(run->model, unit->modules[m]);
    if (unit->stays)
        own.reshard_after_forward = FSDP_RESHARD_NEVER;
    return fsdp_fully_shard_modules(modules, (int)unit->module_count, &own);
}

/* Lists the units that follow each one, and those before it, the nearest first. */
static fsdp_status set_prefetch(const fsdp_train_run *run)
{
    const fsdp__comm_schedule *s = run->comm_schedule;
    FSDP__FREED fsdp_module **list = fsdp__calloc((size_t)s->unit_count + 1, sizeof(fsdp_module *));

    FSDP__TRY_NEW(list);
    for (int64_t i = 0; i < s->unit_count; i++) {
        int forward = (int)FSDP__MIN(s->units[i].forward_ahead, s->unit_count - 1 - i);
        int backward = (int)FSDP__MIN(s->units[i].backward_ahead, i);

        for (int k = 0; k < forward; k++)
            list[k] = first_of(run, i + 1 + k);
        FSDP_TRY(fsdp_module_set_modules_to_forward_prefetch(first_of(run, i), list, forward));
        for (int k = 0; k < backward; k++)
            list[k] = first_of(run, i - 1 - k);
        FSDP_TRY(fsdp_module_set_modules_to_backward_prefetch(first_of(run, i), list, backward));
    }
    return FSDP_OK;
}

fsdp_status fsdp__train_shard_scheduled(const fsdp_train_run *run, const fsdp_shard_options *options)
{
    const fsdp__comm_schedule *s = run->comm_schedule;

    for (int64_t i = s->unit_count; i-- > 0;) /* what lies inside a module begins after it */
        FSDP_TRY(shard_unit(run, &s->units[i], options));
    FSDP_TRY(fsdp_fully_shard(run->model, options));
    FSDP_TRY(set_prefetch(run));
    return s->reductions > 1 ? fsdp_module_set_reduce_scatter_max_inputs(run->model, (int)s->reductions, true)
                             : FSDP_OK;
}
