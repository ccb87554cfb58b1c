/* variants.c - makes strategies and policies into configs. */
#include "compare/variants.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "config/config.h"
#include "train/run_config.h"
#include "train/strategy_word.h"

static const char all_strategies[] = "ddp,zero1,zero2,zero3,fsdp2,hsdp,fsdp1";

/* ---- lists ---- */

/* Cuts the next word out of a list without empty words; false: none is left. */
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

static fsdp_status prefix(fsdp_status status, const char *option, const char *word)
{
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "--%s %s", option, word);
}

static fsdp_status set_policy(fsdp_train_config *c, const char *word)
{
    FSDP_TRY(fsdp__train_set_policy(c, word));
    return fsdp__train_check_units(c);
}

/* ---- variants ---- */

/* Makes the config write nothing to the user's folders, and report the loss of every step. */
static fsdp_status write_nothing(fsdp_train_config *c)
{
    FSDP_TRY(fsdp_train_config_set(c, "metrics.jsonl", ""));
    FSDP_TRY(fsdp_train_config_set(c, "metrics.trace.path", ""));
    FSDP_TRY(fsdp_train_config_set(c, "metrics.csv", ""));
    FSDP_TRY(fsdp_train_config_set(c, "metrics.prometheus", ""));
    FSDP_TRY(fsdp_train_config_set(c, "metrics.tensorboard", ""));
    FSDP_TRY(fsdp_train_config_set(c, "checkpoint.enable", "false"));
    FSDP_TRY(fsdp_train_config_set(c, "export.path", ""));
    c->metrics.log_freq = 1;
    c->metrics.histogram_freq = 0;
    c->comm.trace = false;
    fsdp__config_drop_refused(&fsdp__train_keys, c, NULL); /* what belongs to these */
    return FSDP_OK;
}

typedef struct builder {
    const fsdp_train_config *config;
    int world_size;
    bool all;      /* the caller has named no strategies */
    bool policies; /* the caller has named policies */
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

/* Takes the variant over, unless an equal one is there already. */
static fsdp_status keep(builder *b, fsdp__variant *v)
{
    fsdp__variants *out = b->out;

    if (is_there(out, v))
        return FSDP_OK;
    if (out->count == FSDP__VARIANTS)
        return FSDP_FAIL(FSDP_INVALID, "more than %d strategies and policies: name fewer", FSDP__VARIANTS);
    FSDP_TRY(fsdp__grow(&out->items, out->count, &b->capacity, sizeof *out->items));
    out->items[out->count++] = *v;
    v->config = NULL;
    return FSDP_OK;
}

/* Adds a variant. `policy` NULL means the config's. */
static fsdp_status add(builder *b, const char *strategy, const char *policy)
{
    fsdp__variant v = {.config = NULL};
    fsdp_status status;

    FSDP_TRY(fsdp__train_config_copy(b->config, &v.config));
    FSDP_TRY_GOTO(status, write_nothing(v.config), out);
    if (policy)
        FSDP_TRY_GOTO(status, prefix(set_policy(v.config, policy), "policies", policy), out);
    FSDP_TRY_GOTO(status, prefix(fsdp__train_set_strategy(v.config, strategy), "strategies", strategy), out);
    snprintf(v.strategy, sizeof v.strategy, "%s", strategy);
    if (v.config->parallelism.strategy != FSDP_TRAIN_DDP)
        fsdp__train_policy_word(v.config, v.policy, sizeof v.policy);
    snprintf(v.label, sizeof v.label, "%s%s%s", v.strategy, b->policies && v.policy[0] ? " " : "",
             b->policies ? v.policy : "");
    status = fsdp__train_check_start(v.config, b->world_size);
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

static fsdp_status check_list(const char *option, const char *list)
{
    if (list && !*list)
        return FSDP_FAIL(FSDP_INVALID, "--%s names none", option);
    if (list && (*list == ',' || strstr(list, ",,") || list[strlen(list) - 1] == ','))
        return FSDP_FAIL(FSDP_INVALID, "--%s is '%s': expected names with one comma between two", option, list);
    return FSDP_OK;
}

/* Checks each word by itself, on a config of its own. */
static fsdp_status check_words(const char *option, const char *list,
                               fsdp_status (*set_word)(fsdp_train_config *, const char *))
{
    char word[160];

    FSDP_TRY(check_list(option, list));
    while (list && next_word(&list, word, sizeof word)) {
        FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *scratch = NULL;

        FSDP_TRY(fsdp_train_config_create(&scratch));
        FSDP_TRY(prefix(set_word(scratch, word), option, word));
    }
    return FSDP_OK;
}

fsdp_status fsdp__variants_check_words(const char *strategies, const char *policies)
{
    FSDP_TRY(check_words("strategies", strategies, fsdp__train_set_strategy));
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
    FSDP_TRY(fsdp__train_check_start(config, world_size));
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
