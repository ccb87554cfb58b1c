/* units.c - which modules of the model are sharded together: parallelism.wrap_policy. */
#include "base/alloc.h"
#include "shard/doors/wrap_policy.h"
#include "train/run_config.h"
#include "train/run_start.h"

/* ---- keys ---- */

/* Checks parallelism.schedule, which decides all that these keys would. */
static fsdp_status check_schedule(const fsdp_train_config *config)
{
    const char *key = config->parallelism.wrap_policy != FSDP_TRAIN_WRAP_BLOCKS         ? "wrap_policy"
                      : config->parallelism.prefetch > 0                                ? "prefetch"
                      : config->parallelism.keep_last_unit                              ? "keep_last_unit"
                      : config->parallelism.reshard_after_forward != -FSDP_RESHARD_AUTO ? "fsdp_reshard_after_forward"
                                                                                        : NULL;

    if (!config->parallelism.schedule)
        return FSDP_OK;
    if (config->parallelism.strategy == FSDP_TRAIN_DDP || config->parallelism.strategy == FSDP_TRAIN_FSDP1)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.schedule schedules what fully_shard gathers and reduces, but "
                         "parallelism.strategy is %s: leave it out, or set fsdp2, hsdp or one of zero1 to zero3",
                         fsdp__train_strategy_name(config));
    return key ? FSDP_FAIL(FSDP_INVALID,
                           "parallelism.schedule decides what parallelism.%s would: leave one of them out", key)
               : FSDP_OK;
}

fsdp_status fsdp__train_check_units(const fsdp_train_config *config)
{
    int policy = config->parallelism.wrap_policy;

    FSDP_TRY(check_schedule(config));
    if (config->parallelism.wrap_class_count == 0 && policy == FSDP_TRAIN_WRAP_CLASS)
        return FSDP_FAIL(FSDP_INVALID, "parallelism.wrap_policy class needs parallelism.wrap_classes: the names of "
                                       "classes of modules, such as LlamaDecoderLayer or GPT2Block");
    if (config->parallelism.prefetch > 0 && policy == FSDP_TRAIN_WRAP_ROOT)
        return FSDP_FAIL(FSDP_INVALID, "parallelism.prefetch gathers units ahead, but with parallelism.wrap_policy "
                                       "root there is only one: leave one of them out");
    if (config->parallelism.keep_last_unit && policy == FSDP_TRAIN_WRAP_ROOT)
        return FSDP_FAIL(FSDP_INVALID, "parallelism.keep_last_unit keeps a unit below the root, but with "
                                       "parallelism.wrap_policy root there is none: leave one of them out");
    return FSDP_OK;
}

/* ---- units ---- */

static bool is_block(void *arg, const fsdp_module *module, const char *name)
{
    fsdp_module *model = arg;

    (void)name;
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        if (fsdp_model_block(model, i) == module)
            return true;
    return false;
}

static fsdp_wrap_policy policy_of(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    if (c->parallelism.strategy == FSDP_TRAIN_DDP)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE}; /* ddp has buckets instead */
    if (run->comm_schedule && run->comm_schedule->unit_count == 0)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
    if (run->comm_schedule)
        return (fsdp_wrap_policy){
            .kind = FSDP_WRAP_LAMBDA, .wraps = fsdp__train_is_scheduled, .arg = (void *)(uintptr_t)run->comm_schedule};
    if (run->own && run->own->policy)
        return *run->own->policy;
    switch (c->parallelism.wrap_policy) {
    case FSDP_TRAIN_WRAP_ROOT:
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
    case FSDP_TRAIN_WRAP_SIZE:
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .min_num_params = c->parallelism.wrap_min_num_params};
    case FSDP_TRAIN_WRAP_CLASS:
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_CLASSES,
                                  .classes = (const char *const *)c->parallelism.wrap_classes,
                                  .class_count = (int)c->parallelism.wrap_class_count};
    case FSDP_TRAIN_WRAP_ALWAYS:
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_ALWAYS};
    default:
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_LAMBDA, .wraps = is_block, .arg = run->model};
    }
}

fsdp_status fsdp__train_choose_units(fsdp_train_run *run)
{
    const fsdp_wrap_policy policy = policy_of(run);
    fsdp_status status;

    FSDP_TRY(fsdp__comm_schedule_parameters(run->model, &run->model_hash));
    if (run->comm_schedule)
        FSDP_TRY(fsdp__train_check_scheduled(run));
    status = fsdp_module_wrap_units(run->model, &policy, NULL, 0, &run->units);
    if (status == FSDP_OK && policy.kind == FSDP_WRAP_SIZE && run->units.count == 1 && !(run->own && run->own->policy))
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.wrap_policy size makes no unit of any module below this %s: set "
                         "parallelism.wrap_min_num_params, which is %lld, to fewer parameters (in fsdp explain and "
                         "compare: size:NUMBER), or the policy to root",
                         run->model->type->name, (long long)fsdp__wrap_policy_size(&policy));
    if (status == FSDP_OK)
        status = fsdp__wrap_units_check(&run->units, &policy);
    return status == FSDP_OK
               ? FSDP_OK
               : fsdp_fail_prefix(status, "parallelism.%s", run->comm_schedule ? "schedule" : "wrap_policy");
}

/* ---- parallelism.keep_last_unit, prefetch ---- */

/* Lists the units below the root that have something to gather. Forwards begin in the order of the tree; backwards go
 * from the end, in the order from the bottom up. */
static void list_gathered(const fsdp_wrap_units *units, bool bottom_up, fsdp_module **out, int64_t *count)
{
    *count = 0;
    for (int64_t i = 0; i < units->count; i++) {
        int64_t at = bottom_up ? units->bottom_up[i] : i;

        if (at > 0 && units->items[at].parameters.count > 0)
            out[(*count)++] = units->items[at].module;
    }
}

fsdp_status fsdp__train_keep_last_unit(const fsdp_train_run *run)
{
    const fsdp_wrap_units *units = &run->units;
    FSDP__FREED fsdp_module **below = NULL;
    int64_t count;

    if (!run->config->parallelism.keep_last_unit)
        return FSDP_OK;
    FSDP__TRY_NEW(below = fsdp__calloc((size_t)units->count, sizeof(fsdp_module *)));
    list_gathered(units, true, below, &count);
    return count > 0 ? fsdp_module_set_reshard_after_forward(below[count - 1], false, false) : FSDP_OK;
}

fsdp_status fsdp__train_set_prefetch(const fsdp_train_run *run)
{
    const fsdp_wrap_units *units = &run->units;
    int64_t count, most = FSDP__MIN(run->config->parallelism.prefetch, units->count);
    FSDP__FREED fsdp_module **down = NULL;
    fsdp_module **up;

    if (most == 0)
        return FSDP_OK;
    FSDP__TRY_NEW(down = fsdp__calloc(2 * (size_t)units->count, sizeof(fsdp_module *)));
    up = down + units->count;
    list_gathered(units, false, down, &count);
    list_gathered(units, true, up, &count);
    for (int64_t i = 0; i < count / 2; i++) { /* so that what comes next in the backward also comes later in the list */
        fsdp_module *last = up[count - 1 - i];

        up[count - 1 - i] = up[i];
        up[i] = last;
    }
    for (int64_t i = 0; i < count; i++) {
        int ahead = (int)FSDP__MIN(most, count - 1 - i);

        FSDP_TRY(fsdp_module_set_modules_to_forward_prefetch(down[i], down + i + 1, ahead));
        FSDP_TRY(fsdp_module_set_modules_to_backward_prefetch(up[i], up + i + 1, ahead));
    }
    return FSDP_OK;
}
