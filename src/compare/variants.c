/* variants.c - strategies and policies as configs. */
#include "compare/variants.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "train/config.h"

static const char all_strategies[] = "ddp,zero1,zero2,zero3,fsdp2,hsdp,fsdp1";

/* ---- lists ---- */

/* The next word of a list, cut out of it; false: there is none left. */
static bool next_word(const char **list, char *word, size_t bytes)
{
    size_t length = strcspn(*list, ",");

    if (!**list)
        return false;
    snprintf(word, bytes, "%.*s", (int)length, *list);
    *list += length;
    *list += **list == ',';
    return true;
}

/* "size:20000" -> "size", "20000"; without a colon `of` is NULL. */
static void split(char *word, char **of)
{
    *of = strchr(word, ':');
    if (*of)
        *(*of)++ = '\0';
}

static fsdp_status prefix(fsdp_status status, const char *option, const char *word)
{
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "--%s %s", option, word);
}

/* ---- policies ---- */

static fsdp_status set(fsdp_train_config *c, const char *key, const char *value)
{
    return fsdp_train_config_set(c, key, value);
}

static fsdp_status drop_policy(fsdp_train_config *c)
{
    c->parallelism.wrap_policy = FSDP_TRAIN_WRAP_BLOCKS;
    c->parallelism.wrap_min_num_params = 0;
    return set(c, "parallelism.wrap_classes", "");
}

static fsdp_status add_classes(fsdp_train_config *c, const char *names)
{
    while (*names) {
        char name[160];
        size_t length = strcspn(names, "+");

        snprintf(name, sizeof name, "%.*s", (int)length, names);
        FSDP_TRY(fsdp_train_config_add(c, "parallelism.wrap_classes", name));
        names += length;
        names += *names == '+';
    }
    return FSDP_OK;
}

static fsdp_status set_policy(fsdp_train_config *c, const char *text)
{
    char word[160], *of;

    snprintf(word, sizeof word, "%s", text);
    split(word, &of);
    FSDP_TRY(drop_policy(c));
    FSDP_TRY(set(c, "parallelism.wrap_policy", word));
    if (of && c->parallelism.wrap_policy == FSDP_TRAIN_WRAP_SIZE)
        FSDP_TRY(set(c, "parallelism.wrap_min_num_params", of));
    else if (of && c->parallelism.wrap_policy == FSDP_TRAIN_WRAP_CLASS)
        FSDP_TRY(add_classes(c, of));
    else if (of)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has nothing behind a colon: size:PARAMETERS and class:NAME+NAME have",
                         word);
    return fsdp__train_check_units(c);
}

static void describe_policy(const fsdp_train_config *c, char *text, size_t bytes)
{
    static const char *const names[] = {"blocks", "root", "size", "class", "always"};
    size_t used = (size_t)snprintf(text, bytes, "%s", names[c->parallelism.wrap_policy]);

    if (c->parallelism.wrap_min_num_params)
        snprintf(text + used, bytes - used, ":%lld", (long long)c->parallelism.wrap_min_num_params);
    for (int64_t i = 0; i < c->parallelism.wrap_class_count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%c%s", i ? '+' : ':', c->parallelism.wrap_classes[i]);
}

/* ---- strategies ---- */

static void drop_copies(fsdp_train_config *c)
{
    c->parallelism.data_parallel_replicate_degree = 1;
    c->parallelism.data_parallel_shard_degree = -1;
}

/* What is of the config's own strategy does not go with another. */
static void drop_other_keys(fsdp_train_config *c, int before)
{
    if (c->parallelism.strategy != FSDP_TRAIN_FSDP1) {
        c->parallelism.fsdp1_strategy = c->parallelism.fsdp1_use_orig_params = -1;
        c->parallelism.fsdp1_backward_prefetch = c->parallelism.fsdp1_forward_prefetch = -1;
    }
    if (c->parallelism.strategy != FSDP_TRAIN_DDP) {
        c->parallelism.ddp_bucket_cap_mb = NAN;
        c->parallelism.ddp_find_unused_parameters = c->parallelism.ddp_static_graph = -1;
        c->parallelism.ddp_gradient_as_bucket_view = c->parallelism.ddp_compress = -1;
    }
    if (before == FSDP_TRAIN_HSDP && c->parallelism.strategy != FSDP_TRAIN_HSDP)
        drop_copies(c);
}

/* Of words that say how many copies there are. */
static void choose_copies(fsdp_train_config *c, bool named)
{
    fsdp_sharding_strategy fsdp1 = fsdp__train_fsdp1_strategy(c);
    bool hybrid = c->parallelism.strategy == FSDP_TRAIN_HSDP ||
                  (c->parallelism.strategy == FSDP_TRAIN_FSDP1 && named &&
                   (fsdp1 == FSDP_HYBRID_SHARD || fsdp1 == FSDP_HYBRID_SHARD_ZERO2));

    if (fsdp__train_holds_all(c))
        drop_copies(c);
    else if (hybrid && c->parallelism.data_parallel_replicate_degree == 1)
        c->parallelism.data_parallel_replicate_degree = 2;
}

static fsdp_status set_strategy(fsdp_train_config *c, const char *text)
{
    char word[64], *of;
    int before = c->parallelism.strategy;

    snprintf(word, sizeof word, "%s", text);
    split(word, &of);
    FSDP_TRY(set(c, "parallelism.strategy", word));
    if (of && c->parallelism.strategy != FSDP_TRAIN_FSDP1)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has nothing behind a colon: fsdp1 has, as fsdp1:shard_grad_op", word);
    drop_other_keys(c, before);
    if (of)
        FSDP_TRY(set(c, "parallelism.fsdp1_strategy", of));
    choose_copies(c, of != NULL);
    return c->parallelism.strategy == FSDP_TRAIN_DDP ? drop_policy(c) : FSDP_OK;
}

/* ---- variants ---- */

/* Nothing in the user's folders changes, and every step's loss is asked for. */
static fsdp_status write_nothing(fsdp_train_config *c)
{
    FSDP_TRY(set(c, "metrics.jsonl", ""));
    FSDP_TRY(set(c, "export.path", ""));
    FSDP_TRY(set(c, "export.fallback_path", ""));
    c->metrics.log_freq = 1;
    c->comm.trace = false;
    return FSDP_OK;
}

typedef struct builder {
    const fsdp_train_config *config;
    int world_size;
    bool all;      /* strategies that nobody has named */
    bool policies; /* are named */
    int64_t capacity;
    fsdp__variants *out;
} builder;

static bool is_there(const fsdp__variants *variants, const fsdp__variant *v)
{
    for (int i = 0; i < variants->count; i++)
        if (strcmp(variants->items[i].strategy, v->strategy) == 0 && strcmp(variants->items[i].policy, v->policy) == 0)
            return true;
    return false;
}

/* Takes the variant over, unless it is there already. */
static fsdp_status keep(builder *b, fsdp__variant *v)
{
    fsdp__variants *out = b->out;

    if (is_there(out, v))
        return FSDP_OK;
    if (out->count == FSDP__VARIANTS)
        return FSDP_FAIL(FSDP_INVALID, "more than %d strategies and policies: name fewer", FSDP__VARIANTS);
    if (fsdp__grow(&out->items, out->count, &b->capacity, sizeof *out->items))
        return FSDP_NO_MEMORY;
    out->items[out->count++] = *v;
    v->config = NULL;
    return FSDP_OK;
}

/* `policy` NULL: the config's. */
static fsdp_status add(builder *b, const char *strategy, const char *policy)
{
    fsdp__variant v = {.config = NULL};
    fsdp_status status;

    FSDP_TRY(fsdp__train_config_copy(b->config, &v.config));
    FSDP_TRY_GOTO(status, write_nothing(v.config), out);
    if (policy)
        FSDP_TRY_GOTO(status, prefix(set_policy(v.config, policy), "policies", policy), out);
    FSDP_TRY_GOTO(status, prefix(set_strategy(v.config, strategy), "strategies", strategy), out);
    snprintf(v.strategy, sizeof v.strategy, "%s", strategy);
    if (v.config->parallelism.strategy != FSDP_TRAIN_DDP)
        describe_policy(v.config, v.policy, sizeof v.policy);
    snprintf(v.label, sizeof v.label, "%s%s%s", v.strategy, b->policies && v.policy[0] ? " " : "",
             b->policies ? v.policy : "");
    status = fsdp_train_config_check(v.config, b->world_size);
    if (status != FSDP_OK && b->all) {
        snprintf(v.refused, sizeof v.refused, "%s", fsdp_last_error());
        status = FSDP_OK;
    }
    FSDP_TRY_GOTO(status, prefix(status, "strategies", v.label), out);
    status = keep(b, &v);
out:
    fsdp_train_config_free(v.config);
    return status;
}

static fsdp_status add_policies(builder *b, const char *strategy, const char *policies)
{
    char policy[160];

    if (!policies)
        return add(b, strategy, NULL);
    while (next_word(&policies, policy, sizeof policy))
        FSDP_TRY(add(b, strategy, policy));
    return FSDP_OK;
}

/* The config's own keys, as `fsdp train` would look at them. */
static fsdp_status check_config(const fsdp_train_config *config, int world_size)
{
    fsdp_model_config model;

    FSDP_TRY(fsdp_train_config_check(config, world_size));
    return fsdp__train_model_config(config, &model);
}

static fsdp_status check_list(const char *option, const char *list)
{
    return list && !*list ? FSDP_FAIL(FSDP_INVALID, "--%s names none", option) : FSDP_OK;
}

/* Each word by itself, on a config of its own. */
static fsdp_status check_words(const char *option, const char *list,
                               fsdp_status (*set_word)(fsdp_train_config *, const char *))
{
    fsdp_status status = check_list(option, list);
    char word[160];

    while (status == FSDP_OK && list && next_word(&list, word, sizeof word)) {
        fsdp_train_config *scratch = NULL;

        FSDP_TRY(fsdp_train_config_create(&scratch));
        status = prefix(set_word(scratch, word), option, word);
        fsdp_train_config_free(scratch);
    }
    return status;
}

fsdp_status fsdp__variants_check_words(const char *strategies, const char *policies)
{
    FSDP_TRY(check_words("strategies", strategies, set_strategy));
    return check_words("policies", policies, set_policy);
}

fsdp_status fsdp__variants_create(const fsdp_train_config *config, int world_size, const char *strategies,
                                  const char *policies, fsdp__variants *out)
{
    builder b = {
        .config = config, .world_size = world_size, .all = !strategies, .policies = policies != NULL, .out = out};
    const char *list = strategies ? strategies : all_strategies;
    fsdp_status status = FSDP_OK;
    char strategy[64];

    *out = (fsdp__variants){NULL, 0};
    FSDP_TRY(check_config(config, world_size));
    FSDP_TRY(fsdp__variants_check_words(strategies, policies));
    while (status == FSDP_OK && next_word(&list, strategy, sizeof strategy))
        status = add_policies(&b, strategy, policies);
    if (status != FSDP_OK)
        fsdp__variants_release(out);
    return status;
}

void fsdp__variants_release(fsdp__variants *variants)
{
    for (int i = 0; i < variants->count; i++)
        fsdp_train_config_free(variants->items[i].config);
    fsdp__free(variants->items);
    *variants = (fsdp__variants){NULL, 0};
}
