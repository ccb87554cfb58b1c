/* changes.c - proposes changes of a config, tries each by a dry run, and keeps those that are worth their price. */
#include "plan/changes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "plan/plan.h"
#include "train/run_config.h"

enum {
    FEWER_RANKS = 16,    /* numbers of ranks that are tried */
    SMALL_CALL = 1 << 20 /* bytes of a collective that takes little longer than none */
};

typedef struct search {
    fsdp_train_config *config; /* with the changes that were kept */
    fsdp__plan_options options;
    fsdp__changes *out;
    fsdp__plan *plan; /* of the config as it was given */
    bool waits;       /* gathers and reductions take a large part of the time */
    fsdp__change proposed[FSDP__CHANGES];
    int count;
} search;

/* ---- figures ---- */

static fsdp__change_figures figures_of(const fsdp__plan *plan)
{
    const fsdp_explained_step *step = &plan->e->step;
    int64_t sent = fsdp__sum_of_calls(step->bytes_sent);

    if (plan->e->machines > 1)
        sent = FSDP__MAX(fsdp__sum_of_calls(step->network.sent), fsdp__sum_of_calls(step->network.received));
    return (fsdp__change_figures){.bytes = plan->peak.total,
                                  .needed = fsdp__needed_bytes(step),
                                  .sent = sent,
                                  .calls = fsdp__sum_of_calls(step->calls),
                                  .flops = step->flops,
                                  .seconds = plan->time.step,
                                  .tokens = plan->tokens_per_step};
}

static fsdp_status apply(const fsdp__change *change, fsdp_train_config *config)
{
    for (int i = 0; i < change->setting_count; i++)
        FSDP_TRY(fsdp_train_config_set(config, change->settings[i].key, change->settings[i].value));
    return FSDP_OK;
}

/* Plans the config with a change. What the engine refuses is no change: *possible tells. */
static fsdp_status try_change(search *s, fsdp__change *change, bool *possible)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;
    FSDP__SCOPED(fsdp__plan_free_at) fsdp__plan *plan = NULL;
    fsdp_status status;

    *possible = false;
    FSDP_TRY(fsdp__train_config_copy(s->config, &config));
    status = apply(change, config);
    FSDP_TRY(fsdp__plan_try(status, config, &s->options, &plan));
    if (!plan)
        return FSDP_OK;
    s->out->tried++;
    change->before = s->out->last;
    change->after = figures_of(plan);
    *possible = true;
    return FSDP_OK;
}

/* ---- what is worth its price ---- */

/* Returns how many times as much of it there is for a token; 1: there was none. */
static double ratio(double after, double after_tokens, double before, double before_tokens)
{
    return before > 0 ? after / after_tokens / (before / before_tokens) : after > 0 ? INFINITY : 1;
}

typedef struct ratios {
    double bytes, sent, calls, flops, seconds;
} ratios;

static ratios ratios_of(const fsdp__change *c)
{
    const fsdp__change_figures *a = &c->after, *b = &c->before;

    return (ratios){.bytes = ratio((double)a->bytes, 1, (double)b->bytes, 1),
                    .sent = ratio((double)a->sent, a->tokens, (double)b->sent, b->tokens),
                    .calls = ratio((double)a->calls, a->tokens, (double)b->calls, b->tokens),
                    .flops = ratio(a->flops, a->tokens, b->flops, b->tokens),
                    .seconds = ratio(a->seconds, a->tokens, b->seconds, b->tokens)};
}

/* Returns whether a step that takes these times is enough faster, or as fast with enough less memory. */
static bool is_faster(const search *s, const fsdp__change *c, ratios r)
{
    bool has_room = s->out->room > 0 ? (double)c->after.needed <= s->out->room : r.bytes <= 1.25;

    return (r.seconds <= 0.97 && has_room) || (r.bytes <= 0.9 && r.seconds <= 1.005);
}

/* Returns whether one figure is enough lower, and none of the others much higher. Memory may be, where there is twice
 * as much. */
static bool is_cheaper(const search *s, const fsdp__change *c, ratios r)
{
    bool has_room = r.bytes <= 1.1 || 2 * (double)c->after.needed <= s->out->room;

    if (r.sent <= 0.9)
        return has_room && r.flops <= 1.01 && r.calls <= 1.01;
    if (r.flops <= 0.95)
        return has_room && r.sent <= 1.01 && r.calls <= 1.01;
    if (r.calls <= 0.5 && c->before.sent < c->before.calls * SMALL_CALL)
        return has_room && r.sent <= 1.01 && r.flops <= 1.01;
    return r.bytes <= 0.9 && r.sent <= 1.01 && r.flops <= 1.01 && r.calls <= 1.5;
}

static bool is_tight(const search *s)
{
    return s->out->room > 0 && (double)s->out->last.needed > s->out->room;
}

/* Returns what the change gains, as a logarithm; 0 or less: it is not worth its price. */
static double gain_of(const search *s, const fsdp__change *c)
{
    ratios r = ratios_of(c);
    double other =
        r.seconds > 0 && c->before.seconds > 0 ? 2 * log(r.seconds) : log(r.sent) + log(r.flops) + 0.1 * log(r.calls);

    if (is_tight(s)) { /* what makes it fit comes first, the cheapest of it before others */
        if (r.bytes > 0.95)
            return 0;
        return (double)c->after.needed <= s->out->room ? 1000 - other : -log(r.bytes);
    }
    if (c->before.seconds > 0 ? !is_faster(s, c, r) : !is_cheaper(s, c, r))
        return 0;
    return FSDP__MAX(-other - 0.5 * log(r.bytes), 1e-9);
}

/* ---- what is proposed ---- */

static fsdp__change *propose(search *s, const char *why, const char *price)
{
    fsdp__change *change = &s->proposed[s->count++];

    *change = (fsdp__change){.why = why, .price = price};
    return change;
}

static void FSDP_PRINTF(3, 4) with(fsdp__change *change, const char *key, const char *format, ...)
{
    fsdp__change_setting *setting = &change->settings[change->setting_count++];
    va_list arguments;

    setting->key = key;
    va_start(arguments, format);
    vsnprintf(setting->value, sizeof setting->value, format, arguments);
    va_end(arguments);
}

static void propose_units(search *s)
{
    const fsdp_train_config *c = s->config;
    int64_t numel = s->out->numel;

    if (c->parallelism.strategy == FSDP_TRAIN_DDP)
        return;
    if (c->parallelism.wrap_policy != FSDP_TRAIN_WRAP_BLOCKS)
        with(propose(s, "Blocks as units: as many are whole as are needed at a time, and calls are large.", NULL),
             "parallelism.wrap_policy", "blocks");
    for (int parts = 4; parts <= 64 && numel / parts > 0; parts *= 4) {
        fsdp__change *change =
            propose(s, "Units of this size: fewer parameters are whole at a time, or fewer calls are made.", NULL);

        with(change, "parallelism.wrap_policy", "size");
        with(change, "parallelism.wrap_min_num_params", "%lld", (long long)(numel / parts));
    }
    if (c->parallelism.wrap_policy != FSDP_TRAIN_WRAP_ALWAYS)
        with(propose(s, "Single layers as units: fewer parameters are whole at a time.", NULL),
             "parallelism.wrap_policy", "always");
}

static void propose_gathers(search *s)
{
    const fsdp_train_config *c = s->config;
    bool shards = c->parallelism.strategy != FSDP_TRAIN_DDP && c->parallelism.strategy != FSDP_TRAIN_FSDP1;

    if (!shards)
        return;
    if (c->parallelism.reshard_after_forward != -FSDP_RESHARD_NEVER)
        with(propose(s, "Parameters stay whole from the forward to the backward, which gathers nothing again.", NULL),
             "parallelism.fsdp_reshard_after_forward", "never");
    else
        with(propose(s, "Parameters that are given up after their forward leave their memory to activations.", NULL),
             "parallelism.fsdp_reshard_after_forward", "default");
    if (!c->parallelism.keep_last_unit)
        with(propose(s, "The last unit of the forward is the first of the backward: kept, it is gathered once.", NULL),
             "parallelism.keep_last_unit", "true");
    if (c->parallelism.prefetch < 2)
        with(propose(s, "Gathers two units ahead, so that more of each is hidden.", NULL), "parallelism.prefetch", "2");
    if (s->options.machines > 1 && c->parallelism.gather_dtype == FSDP_TRAIN_GATHER_NONE)
        with(propose(s, "Weights of linear layers cross the network in one byte an element.",
                     "They are rounded to that for computing; docs/fsdp.md shows what the loss does then."),
             "parallelism.gather_dtype", "float8");
}

static void propose_strategies(search *s)
{
    const fsdp_train_config *c = s->config;
    bool fsdp2 = c->parallelism.strategy == FSDP_TRAIN_FSDP2 && c->parallelism.data_parallel_replicate_degree == 1;

    if (fsdp2 && s->options.machines > 1 && s->options.world_size > s->options.machines) {
        fsdp__change *change = propose(s, "A copy on each machine: gathers stay inside it.", NULL);

        with(change, "parallelism.strategy", "hsdp");
        with(change, "parallelism.data_parallel_replicate_degree", "%d", s->options.machines);
    }
    if (fsdp2 && s->out->frozen > s->out->numel / 2)
        with(propose(s,
                     "Most parameters are frozen, and yet gathered in every step. With all of them on every rank only "
                     "the gradients of the others are sent.",
                     NULL),
             "parallelism.strategy", "ddp");
    if (c->parallelism.strategy == FSDP_TRAIN_DDP && s->options.machines > 1 && c->parallelism.ddp_compress <= 0)
        with(propose(s, "Gradients cross the network in half the bytes.", "They are rounded to 8 bits, and added so."),
             "parallelism.ddp_compress", "bfloat16");
    if (c->parallelism.strategy == FSDP_TRAIN_DDP)
        with(propose(s, "Sharded parameters, gradients and optimizer state take a part of the memory.", NULL),
             "parallelism.strategy", "fsdp2");
}

static void propose_arithmetic(search *s)
{
    const fsdp_train_config *c = s->config;

    if (c->training.mixed_precision_param == FSDP_F32 && c->parallelism.strategy != FSDP_TRAIN_DDP)
        with(propose(s, "Weights and activations take half the bytes, and so do gathers.",
                     "Products round to 8 bits of mantissa; processors without products of bfloat16 are not faster."),
             "training.mixed_precision_param", "bfloat16");
    if (c->activation_checkpoint.mode != FSDP_RECOMPUTE_NONE) {
        with(propose(s, "Nothing is computed twice: there is room for the activations.", NULL),
             "activation_checkpoint.mode", "none");
    } else {
        fsdp__change *change;

        with(propose(s, "Blocks keep products and attention; the backward computes what is cheap again.", NULL),
             "activation_checkpoint.mode", "cheap");
        change = propose(s, "Blocks keep less for their backward, which computes the rest again.", NULL);
        with(change, "activation_checkpoint.mode", "selective");
        with(change, "activation_checkpoint.selective_ac_option", "op");
    }
    if (c->activation_checkpoint.mode != FSDP_RECOMPUTE_FULL)
        with(propose(s, "Blocks keep nothing but their input; the backward computes the rest again.", NULL),
             "activation_checkpoint.mode", "full");
    if (c->training.enable_cpu_offload)
        with(propose(s, "Shards stay on the device: there is room for them.", NULL), "training.enable_cpu_offload",
             "false");
    else if (s->plan->gpu)
        with(propose(s, "Shards and optimizer state rest in the host's memory.", NULL), "training.enable_cpu_offload",
             "true");
}

/* Returns whether gathers and reductions that are waited for are a fifth of the planned time. */
static bool waits_long(const fsdp__plan *plan)
{
    const fsdp__plan_time *time = &plan->time;

    return time->parts[FSDP__PLAN_GATHERS] + time->parts[FSDP__PLAN_REDUCTIONS] > 0.2 * time->step;
}

static void propose_batches(search *s)
{
    const fsdp_train_config *c = s->config;
    int64_t batch = c->training.local_batch_size, micro = s->plan->e->microbatches;
    int64_t sequences = batch * micro * fsdp__train_data_ranks(c, s->options.world_size);

    if (micro % 2 == 0)
        with(propose(s, "Half as many microbatches, of twice the size, gather half as often.", NULL),
             "training.local_batch_size", "%lld", (long long)(2 * batch));
    if (micro > 1 && c->training.no_sync == 0)
        with(propose(s, "Gradients are reduced once a step, not in each microbatch.", NULL), "training.no_sync",
             "true");
    if (batch % 2 == 0 && is_tight(s)) {
        fsdp__change *change =
            propose(s, "Twice as many microbatches, of half the size, need fewer activations.", NULL);

        with(change, "training.local_batch_size", "%lld", (long long)(batch / 2));
        with(change, "training.global_batch_size", "%lld", (long long)sequences);
    }
    if (s->waits && s->options.world_size > 1)
        with(propose(s, "Four times as many microbatches in a step reduce once for all of them.",
                     "A step has four times the sequences: optimizer.lr and training.steps have to follow."),
             "training.global_batch_size", "%lld", (long long)(4 * sequences));
}

/* ---- the search ---- */

/* Tries what is proposed and still worth its price, and drops the rest. Returns the best of it in *best; -1: none. */
static fsdp_status try_all(search *s, int *best)
{
    double most = 0;
    int kept = 0;

    *best = -1;
    for (int i = 0; i < s->count; i++) {
        fsdp__change change = s->proposed[i];
        bool possible, tight = is_tight(s);
        double gain;

        FSDP_TRY(try_change(s, &change, &possible));
        gain = possible ? gain_of(s, &change) : 0;
        if (gain <= 0 && !tight)
            continue; /* it will not become better */
        if (gain > most) {
            most = gain;
            *best = kept;
        }
        s->proposed[kept++] = change;
    }
    s->count = kept;
    return FSDP_OK;
}

/* Returns whether two changes set the same key: only one of them can be kept. */
static bool are_rivals(const fsdp__change *a, const fsdp__change *b)
{
    for (int i = 0; i < a->setting_count; i++)
        for (int k = 0; k < b->setting_count; k++)
            if (strcmp(a->settings[i].key, b->settings[k].key) == 0)
                return true;
    return false;
}

static fsdp_status keep(search *s, int best)
{
    const fsdp__change change = s->proposed[best];
    int left = 0;

    FSDP_TRY(apply(&change, s->config));
    s->out->items[s->out->count++] = change;
    s->out->last = change.after;
    for (int i = 0; i < s->count; i++)
        if (!are_rivals(&change, &s->proposed[i]))
            s->proposed[left++] = s->proposed[i];
    s->count = left;
    return FSDP_OK;
}

static fsdp_status search_all(search *s)
{
    int best;

    propose_arithmetic(s);
    propose_batches(s);
    if (s->options.world_size > 1) {
        propose_gathers(s);
        propose_strategies(s);
        propose_units(s);
    }
    FSDP_TRY(try_all(s, &best));
    while (best >= 0) {
        FSDP_TRY(keep(s, best));
        FSDP_TRY(try_all(s, &best));
    }
    return FSDP_OK;
}

/* ---- padding ---- */

static double padding_share(const fsdp_explanation *e)
{
    double numel = 0, padded = 0;

    for (int64_t i = 0; i < e->unit_count; i++) {
        numel += (double)e->units[i].numel;
        padded += (double)e->units[i].padded_numel;
    }
    return padded > 0 ? 1 - numel / padded : 0;
}

/* Names the parameter whose rows are padded most. */
static void name_padded(const fsdp_explanation *e, fsdp__padding *out)
{
    double most = 0;

    out->ranks = e->world_size / FSDP__MAX(e->replicas, 1);
    for (int64_t i = 0; i < e->parameter_count; i++) {
        const fsdp_explained_parameter *p = &e->parameters[i];
        int64_t rows = p->dim >= 0 && p->ndim > 0 ? p->shape[p->dim] : 0;
        int64_t padding = rows > 0 ? FSDP__ROUND_UP(rows, out->ranks) - rows : 0;
        double elements = rows > 0 ? (double)padding * (double)p->numel / (double)rows : 0;

        if (elements <= most)
            continue;
        most = elements;
        out->rows = rows;
        snprintf(out->parameter, sizeof out->parameter, "%s", p->name);
    }
}

/* Looks for a number of ranks, at least half of the current one, with a quarter of the padding at most. */
static fsdp_status look_at_padding(search *s, fsdp__padding *out)
{
    fsdp__plan_options options = s->options;
    int step = options.machines, ranks = options.world_size;

    out->share = padding_share(s->plan->e);
    if (out->share < 0.02)
        return FSDP_OK;
    name_padded(s->plan->e, out);
    for (int tried = 0; tried < FEWER_RANKS && out->better == 0 && (ranks - step) * 2 >= s->options.world_size;
         tried++) {
        fsdp__plan *plan = NULL;
        fsdp_status status;

        options.world_size = ranks -= step;
        status = fsdp__plan_make(s->config, &options, &plan);
        if (status == FSDP_INVALID || status == FSDP_UNSUPPORTED)
            continue;
        FSDP_TRY(status);
        out->better_share = padding_share(plan->e);
        out->better = out->better_share <= out->share / 4 ? ranks : 0;
        fsdp__plan_free(plan);
    }
    return FSDP_OK;
}

/* ---- all ---- */

static void end(search *s)
{
    fsdp__plan_free(s->plan);
    fsdp_train_config_free(s->config);
}

/* Plans the config as it is. End the search, also after a failure. */
static fsdp_status begin(search *s, const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                         fsdp__changes *out)
{
    *s = (search){.options = *options, .out = out};
    s->options.rank_alone = true;
    *out = (fsdp__changes){.room = room, .several_machines = options->machines > 1};
    FSDP_TRY(fsdp__train_config_copy(config, &s->config));
    FSDP_TRY(fsdp__plan_make(config, &s->options, &s->plan));
    out->first = out->last = figures_of(s->plan);
    out->numel = s->plan->e->numel;
    out->frozen = s->plan->e->numel - s->plan->e->trained_numel;
    s->waits = waits_long(s->plan);
    return FSDP_OK;
}

fsdp_status fsdp__changes_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                               fsdp__changes *out)
{
    FSDP__SCOPED(end) search s;

    FSDP_TRY(begin(&s, config, options, room, out));
    FSDP_TRY(look_at_padding(&s, &out->padding));
    return search_all(&s);
}

fsdp_status fsdp__changes_of_wait(const fsdp_train_config *config, const fsdp__plan_options *options,
                                  fsdp__change_wait wait, fsdp__changes *out)
{
    FSDP__SCOPED(end) search s;
    int best;

    FSDP_TRY(begin(&s, config, options, 0, out));
    if (wait == FSDP__CHANGE_GATHERS) {
        propose_gathers(&s);
        propose_units(&s);
    } else {
        s.waits = true;
        propose_batches(&s);
    }
    propose_strategies(&s);
    FSDP_TRY(try_all(&s, &best));
    return best >= 0 ? keep(&s, best) : FSDP_OK;
}

fsdp_status fsdp__changes_of_setting(const fsdp_train_config *config, const fsdp__plan_options *options,
                                     const char *key, const char *value, fsdp__changes *out)
{
    FSDP__SCOPED(end) search s;
    bool possible = false;

    FSDP_TRY(begin(&s, config, options, 0, out));
    with(propose(&s, "", NULL), key, "%s", value);
    FSDP_TRY(try_change(&s, &s.proposed[0], &possible));
    return possible ? keep(&s, 0) : FSDP_OK;
}
