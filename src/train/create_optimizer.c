/* create_optimizer.c - makes a run's optimizer: which parameters are in which of its groups; and the schedule of its
 * learning rate. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "optim/optim.h"
#include "train/run_config.h"
#include "train/run_start.h"

/* ---- what the keys exclude ---- */

/* Returns whether several parameters are one vector for the optimizer. */
static bool is_flat(const fsdp_train_config *c)
{
    return c->parallelism.strategy == FSDP_TRAIN_FSDP1 && c->parallelism.fsdp1_use_orig_params != 1;
}

bool fsdp__train_steps_together(const fsdp_train_config *c)
{
    return c->optimizer.name == FSDP_TRAIN_MUON || c->optimizer.name == FSDP_TRAIN_ADAFACTOR;
}

static const char with_betas[] = "adamw, adam, adamw8bit, lion and muon";

/* Returns whether the optimizer has betas. */
static bool has_betas(const fsdp_train_config *c)
{
    return c->optimizer.name != FSDP_TRAIN_SGD && c->optimizer.name != FSDP_TRAIN_ADAFACTOR;
}

/* Refuses what groups have and the optimizer does not look at. */
static fsdp_status check_unused_of_groups(const fsdp_train_config *c)
{
    bool hides = c->optimizer.name == FSDP_TRAIN_MUON || c->optimizer.name == FSDP_TRAIN_ADAMW8BIT;

    for (int64_t g = 0; g < c->optimizer.group_count; g++) {
        const fsdp_train_group *group = &c->optimizer.groups[g];
        const char *key = !has_betas(c) && !isnan(group->beta1)   ? "beta1"
                          : !has_betas(c) && !isnan(group->beta2) ? "beta2"
                          : !hides && group->hidden >= 0          ? "hidden"
                                                                  : NULL;

        if (key)
            return FSDP_FAIL(FSDP_INVALID,
                             "optimizer.groups: '%s' has %s, which is for optimizer.name %s: set it, or leave this out",
                             group->pattern, key, strcmp(key, "hidden") == 0 ? "muon and adamw8bit" : with_betas);
    }
    return FSDP_OK;
}

/* Checks that the decay of a wsd schedule has room after a warm-up of so many steps; `of_warmup` and `of_steps` name
 * the keys. */
static fsdp_status check_fall(const fsdp_train_config *c, int64_t warmup, const char *of_warmup, int64_t steps,
                              const char *of_steps)
{
    if (c->lr_scheduler.decay_type != FSDP_DECAY_WSD || c->lr_scheduler.decay_steps + warmup <= steps)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "lr_scheduler.decay_steps %lld and %s %lld are more than the %lld %s",
                     (long long)c->lr_scheduler.decay_steps, of_warmup, (long long)warmup, (long long)steps, of_steps);
}

static fsdp_status check_schedule(const fsdp_train_config *c)
{
    if (c->lr_scheduler.warmup_tokens > 0 && c->lr_scheduler.warmup_steps > 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "lr_scheduler.warmup_tokens and lr_scheduler.warmup_steps exclude each other: %lld and %lld",
                         (long long)c->lr_scheduler.warmup_tokens, (long long)c->lr_scheduler.warmup_steps);
    if (!isnan(c->training.epochs)) /* it is not known yet how many steps they take */
        return FSDP_OK;
    return check_fall(c, c->lr_scheduler.warmup_steps, "warmup_steps", c->training.steps, "training.steps");
}

fsdp_status fsdp__train_check_optimizer(const fsdp_train_config *c)
{
    bool special = fsdp__train_steps_together(c) || c->optimizer.name == FSDP_TRAIN_ADAMW8BIT;
    bool grouped = special || c->optimizer.group_count > 0 || c->optimizer.decay != FSDP_TRAIN_DECAY_ALL;

    FSDP_TRY(check_unused_of_groups(c));
    if (c->optimizer.nesterov && c->optimizer.name == FSDP_TRAIN_SGD && !(c->optimizer.momentum > 0))
        return FSDP_FAIL(FSDP_INVALID, "optimizer.nesterov needs optimizer.momentum greater than 0");
    if (grouped && is_flat(c))
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer.%s is for single parameters, but with parallelism.strategy fsdp1 those of a unit "
                         "are one vector: set parallelism.fsdp1_use_orig_params to true",
                         special                        ? "name"
                         : c->optimizer.group_count > 0 ? "groups"
                                                        : "decay");
    if (c->optimizer.name == FSDP_TRAIN_ADAMW8BIT && c->parallelism.strategy == FSDP_TRAIN_FSDP1)
        return FSDP_FAIL(FSDP_INVALID, "optimizer.name adamw8bit needs whole rows of weights, which "
                                       "parallelism.strategy fsdp1 cuts between ranks: fsdp2 does not");
    return check_schedule(c);
}

/* ---- the groups ---- */

enum {
    OF_NO_GROUP = -1
};

/* Returns the number of the first group of the config whose pattern matches. */
static int64_t group_of(const fsdp_train_config *c, const char *name)
{
    for (int64_t g = 0; g < c->optimizer.group_count; g++)
        if (fnmatch(c->optimizer.groups[g].pattern, name, 0) == 0)
            return g;
    return OF_NO_GROUP;
}

static fsdp_status check_patterns(const fsdp_train_config *c, const fsdp_parameters *parameters)
{
    for (int64_t g = 0; g < c->optimizer.group_count; g++) {
        const char *pattern = c->optimizer.groups[g].pattern, *taken = NULL;
        bool first = false;

        for (int64_t i = 0; i < parameters->count && !first; i++) {
            const char *name = parameters->items[i].name;

            taken = fnmatch(pattern, name, 0) == 0 ? name : taken;
            first = group_of(c, name) == g;
        }
        if (!first && taken)
            return FSDP_FAIL(FSDP_INVALID,
                             "optimizer.groups: '%s' matches '%s' and no parameter that an earlier pattern does not "
                             "match: put it before that one",
                             pattern, taken);
        if (!first)
            return FSDP_FAIL(FSDP_INVALID, "optimizer.groups: '%s' matches no parameter; the nearest is '%s'", pattern,
                             fsdp__train_nearest_parameter(pattern, parameters));
    }
    return FSDP_OK;
}

/* Returns the number of dimensions of the parameter, whatever this rank has of it. */
static int dimensions(const fsdp_tensor *tensor)
{
    const int64_t *shape;

    return fsdp__optimizer_whole_shape(tensor, &shape);
}

static double or_else(double value, double otherwise)
{
    return isnan(value) ? otherwise : value;
}

/* Returns whether the optimizer decays weights if nothing is said. */
static bool decays(const fsdp_train_config *c)
{
    return c->optimizer.name == FSDP_TRAIN_ADAMW || c->optimizer.name == FSDP_TRAIN_ADAMW8BIT ||
           c->optimizer.name == FSDP_TRAIN_MUON;
}

/* Returns the weight decay of a parameter. */
static double decay_of(const fsdp_train_config *c, int64_t group, const fsdp_tensor *tensor)
{
    double own = group == OF_NO_GROUP ? NAN : c->optimizer.groups[group].weight_decay;

    if (!isnan(own))
        return own;
    if (c->optimizer.decay == FSDP_TRAIN_DECAY_MATRICES && dimensions(tensor) < 2)
        return 0;
    return or_else(c->optimizer.weight_decay, decays(c) ? 0.1 : 0);
}

/* Returns whether a part of the name is a number: the parameter is in one of a list of layers. */
static bool is_numbered(const char *name)
{
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        size_t digits = strspn(at, "0123456789");

        if (digits > 0 && at[digits] == '.')
            return true;
    }
    return false;
}

/* Returns whether an optimizer that treats hidden matrices otherwise does so with the parameter. */
static bool is_special(const fsdp_train_config *c, int64_t group, const fsdp_parameter *p)
{
    int own = group == OF_NO_GROUP ? -1 : c->optimizer.groups[group].hidden;

    if (c->optimizer.name != FSDP_TRAIN_MUON && c->optimizer.name != FSDP_TRAIN_ADAMW8BIT)
        return false;
    return own >= 0 ? own == 1 : dimensions(p->tensor) == 2 && is_numbered(p->name);
}

/* Refuses betas of a group if muon takes all of its parameters. */
static fsdp_status check_betas(const fsdp_train_config *c, const fsdp_parameters *parameters)
{
    for (int64_t g = 0; g < c->optimizer.group_count && c->optimizer.name == FSDP_TRAIN_MUON; g++) {
        const fsdp_train_group *group = &c->optimizer.groups[g];
        bool used = isnan(group->beta1) && isnan(group->beta2);

        for (int64_t i = 0; i < parameters->count && !used; i++)
            used = group_of(c, parameters->items[i].name) == g && !is_special(c, g, &parameters->items[i]);
        if (!used)
            return FSDP_FAIL(FSDP_INVALID,
                             "optimizer.groups: '%s' has %s, but all that it matches are hidden matrices, which muon "
                             "steps without betas: leave it out",
                             group->pattern, isnan(group->beta1) ? "beta2" : "beta1");
    }
    return FSDP_OK;
}

fsdp_status fsdp__train_check_groups(const fsdp_train_run *run)
{
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};

    if (run->config->optimizer.group_count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    FSDP_TRY(check_patterns(run->config, &parameters));
    return check_betas(run->config, &parameters);
}

/* A group of the optimizer that is being made. */
typedef struct made {
    int64_t group; /* of the config */
    double decay;
    bool special;
    fsdp_parameters parameters; /* items of the caller's list */
} made;

/* Returns a beta of the group; `own` is that of its entry in the config. */
static float beta(double own, double whole, double usual)
{
    return (float)or_else(own, or_else(whole, usual));
}

static fsdp_status add_adam(const fsdp_train_config *c, const made *m, double beta1, double beta2,
                            fsdp_optimizer **optimizer)
{
    fsdp_adam_options adam = {.lr = (float)c->optimizer.lr,
                              .beta1 = beta(beta1, c->optimizer.beta1, 0.9),
                              .beta2 = beta(beta2, c->optimizer.beta2, 0.95),
                              .eps = (float)c->optimizer.eps,
                              .weight_decay = (float)m->decay,
                              .state_bits = c->optimizer.name == FSDP_TRAIN_ADAMW8BIT && m->special ? 8 : 32};

    if (*optimizer)
        return fsdp_adam_add_group(*optimizer, &m->parameters, &adam);
    return (c->optimizer.name == FSDP_TRAIN_ADAM ? fsdp_adam_create : fsdp_adamw_create)(&m->parameters, &adam,
                                                                                         optimizer);
}

static fsdp_status add_sgd(const fsdp_train_config *c, const made *m, fsdp_optimizer **optimizer)
{
    const fsdp_sgd_options sgd = {.lr = (float)c->optimizer.lr,
                                  .momentum = (float)or_else(c->optimizer.momentum, 0),
                                  .weight_decay = (float)m->decay,
                                  .nesterov = c->optimizer.nesterov};

    return *optimizer ? fsdp_sgd_add_group(*optimizer, &m->parameters, &sgd)
                      : fsdp_sgd_create(&m->parameters, &sgd, optimizer);
}

static fsdp_status add_lion(const fsdp_train_config *c, const made *m, double beta1, double beta2,
                            fsdp_optimizer **optimizer)
{
    const fsdp_lion_options lion = {.lr = (float)c->optimizer.lr,
                                    .beta1 = beta(beta1, c->optimizer.beta1, 0.9),
                                    .beta2 = beta(beta2, c->optimizer.beta2, 0.99),
                                    .weight_decay = (float)m->decay};

    return *optimizer ? fsdp_lion_add_group(*optimizer, &m->parameters, &lion)
                      : fsdp_lion_create(&m->parameters, &lion, optimizer);
}

static fsdp_status add_muon(const fsdp_train_config *c, const made *m, fsdp_optimizer **optimizer)
{
    const fsdp_muon_options muon = {.lr = (float)c->optimizer.lr,
                                    .momentum = or_else(c->optimizer.momentum, 0.95),
                                    .weight_decay = (float)m->decay,
                                    .nesterov = true,
                                    .adjust = (fsdp_muon_adjust)c->optimizer.muon_adjust};

    return *optimizer ? fsdp_muon_add_group(*optimizer, &m->parameters, &muon)
                      : fsdp_muon_create(&m->parameters, &muon, optimizer);
}

static fsdp_status add_adafactor(const fsdp_train_config *c, const made *m, fsdp_optimizer **optimizer)
{
    fsdp_adafactor_options adafactor = fsdp_adafactor_options_default();

    adafactor.lr = c->optimizer.lr;
    adafactor.weight_decay = m->decay;
    return *optimizer ? fsdp_adafactor_add_group(*optimizer, &m->parameters, &adafactor)
                      : fsdp_adafactor_create(&m->parameters, &adafactor, optimizer);
}

/* Adds a group to the optimizer, and makes it with the first one. */
static fsdp_status add(const fsdp_train_config *c, const made *m, fsdp_optimizer **optimizer)
{
    static const fsdp_train_group none = {.beta1 = NAN, .beta2 = NAN};
    const fsdp_train_group *own = m->group == OF_NO_GROUP ? &none : &c->optimizer.groups[m->group];

    if (c->optimizer.name == FSDP_TRAIN_SGD)
        return add_sgd(c, m, optimizer);
    if (c->optimizer.name == FSDP_TRAIN_LION)
        return add_lion(c, m, own->beta1, own->beta2, optimizer);
    if (c->optimizer.name == FSDP_TRAIN_ADAFACTOR)
        return add_adafactor(c, m, optimizer);
    if (c->optimizer.name == FSDP_TRAIN_MUON && m->special)
        return add_muon(c, m, optimizer);
    return add_adam(c, m, own->beta1, own->beta2, optimizer);
}

/* Collects the parameters from `first` on that are in no group yet and belong to the same group as that one. */
static void collect(const fsdp_train_config *c, const fsdp_parameters *all, int64_t first, bool *taken, made *m)
{
    m->group = group_of(c, all->items[first].name);
    m->decay = decay_of(c, m->group, all->items[first].tensor);
    m->special = is_special(c, m->group, &all->items[first]);
    m->parameters.count = 0;
    for (int64_t i = first; i < all->count; i++) {
        const fsdp_parameter *p = &all->items[i];

        if (taken[i] || !fsdp_tensor_requires_grad(p->tensor) || group_of(c, p->name) != m->group)
            continue;
        if (decay_of(c, m->group, p->tensor) != m->decay || is_special(c, m->group, p) != m->special)
            continue;
        taken[i] = true;
        m->parameters.items[m->parameters.count++] = *p;
    }
}

/* ---- moments that are bytes, of columns that a team cuts ---- */

/* Returns how a team cuts the columns of a parameter whose moments are bytes; NULL: it does not. */
static const fsdp_placement *cut_columns(const fsdp_train_config *c, const fsdp_parameter *p)
{
    const fsdp__optimizer_group bytes = {.kind = FSDP__OPTIMIZER_ADAMW, .options.adam.state_bits = 8};
    const fsdp_distribution *d = fsdp_tensor_distribution(p->tensor);

    if (!d || !fsdp_tensor_requires_grad(p->tensor) || !is_special(c, group_of(c, p->name), p) ||
        !fsdp__optimizer_has_bytes(&bytes, p->tensor))
        return NULL;
    for (int i = 0; i < d->placement_count; i++)
        if (d->placements[i].kind == FSDP_SHARD && d->placements[i].dim == 1)
            return &d->placements[i];
    return NULL;
}

/* Returns a number of columns of which each rank would get blocks that are not whole; 0: there is none. */
static int64_t cut_blocks(const fsdp_parameter *p, const fsdp_placement *columns, int64_t ranks)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(p->tensor);

    for (int i = 0; i < FSDP__MAX(columns->segment_count, 1); i++) {
        int64_t length = columns->segment_count > 0 ? columns->segments[i] : d->global_shape[1];
        int64_t chunk = (length - 1) / ranks + 1;

        if (ranks > 1 && ((chunk < length && chunk % FSDP__BYTE_BLOCK != 0) ||
                          (columns->segment_count > 1 && length % FSDP__BYTE_BLOCK != 0)))
            return length;
    }
    return 0;
}

/* Returns the first parameter whose blocks a team of so many ranks would cut; NULL: there is none. */
static const fsdp_parameter *first_cut(const fsdp_train_config *c, const fsdp_parameters *parameters, int64_t ranks)
{
    for (int64_t i = 0; i < parameters->count; i++) {
        const fsdp_placement *columns = cut_columns(c, &parameters->items[i]);

        if (columns && cut_blocks(&parameters->items[i], columns, ranks) > 0)
            return &parameters->items[i];
    }
    return NULL;
}

/* Checks, where moments are bytes, that ranks have whole blocks of columns. The error names the nearest possible
 * degree.
 */
static fsdp_status check_columns(const fsdp_train_run *run, const fsdp_parameters *parameters)
{
    const fsdp_train_config *c = run->config;
    int64_t degree = c->parallelism.tensor_parallel_degree, fewer = degree - 1, length;
    const fsdp_parameter *p =
        c->optimizer.name == FSDP_TRAIN_ADAMW8BIT && degree > 1 ? first_cut(c, parameters, degree) : NULL;

    if (!p)
        return FSDP_OK;
    while (degree % fewer != 0 || first_cut(c, parameters, fewer))
        fewer--;
    length = cut_blocks(p, cut_columns(c, p), degree);
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "optimizer.name adamw8bit keeps moments of %d columns at a time, but "
                     "parallelism.tensor_parallel_degree %lld gives a rank %lld of the %lld columns of '%s': set "
                     "parallelism.tensor_parallel_degree=%lld, or optimizer.name=adamw",
                     (int)FSDP__BYTE_BLOCK, (long long)degree, (long long)((length - 1) / degree + 1),
                     (long long)length, p->name, (long long)fewer);
}

fsdp_status fsdp__train_create_optimizer(fsdp_train_run *run, const fsdp_parameters *parameters)
{
    const fsdp_train_config *c = run->config;
    size_t count = (size_t)parameters->count + 1;
    FSDP__FREED bool *taken = fsdp__calloc(count, sizeof *taken);
    FSDP__FREED fsdp_parameter *items = fsdp__calloc(count, sizeof *items);
    made m = {.parameters = {.items = items}};

    FSDP_TRY(check_columns(run, parameters));
    FSDP__TRY_NEW(taken && items && (run->lr_scales = fsdp__calloc(count, sizeof *run->lr_scales)));
    for (int64_t i = 0; i < parameters->count; i++) {
        if (taken[i] || !fsdp_tensor_requires_grad(parameters->items[i].tensor))
            continue;
        collect(c, parameters, i, taken, &m);
        FSDP_TRY(add(c, &m, &run->optimizer));
        run->lr_scales[fsdp_optimizer_group_count(run->optimizer) - 1] =
            m.group == OF_NO_GROUP ? 1 : c->optimizer.groups[m.group].lr_scale;
    }
    return FSDP_OK;
}

/* ---- the schedule ---- */

fsdp_status fsdp__train_make_schedule(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int64_t tokens = FSDP__MAX(run->sequences * c->training.seq_len, 1), warmup = c->lr_scheduler.warmup_tokens;
    int64_t decay = c->lr_scheduler.decay_steps;

    run->schedule = (fsdp_schedule){
        .warmup_steps = warmup > 0 ? (warmup - 1) / tokens + 1 : c->lr_scheduler.warmup_steps,
        .total_steps = c->training.steps - run->resume.schedule_step,
        .decay = (fsdp_decay)c->lr_scheduler.decay_type,
        .min_factor = c->lr_scheduler.min_lr_factor,
        .decay_steps = decay > 0 ? decay : (c->training.steps - 1) / 10 + 1,
        .fall = (fsdp_fall)c->lr_scheduler.decay_shape,
        .timescale = c->lr_scheduler.timescale,
    };
    return check_fall(c, run->schedule.warmup_steps,
                      warmup > 0 ? "the warm-up of warmup_tokens, in steps," : "warmup_steps",
                      run->schedule.total_steps,
                      run->resume.schedule_step > 0 ? "steps that are left"
                      : isnan(c->training.epochs)   ? "training.steps"
                                                    : "steps of training.epochs");
}
