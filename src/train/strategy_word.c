/* strategy_word.c - a strategy and a wrap policy as one word each. */
#include "train/strategy_word.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "train/run_config.h"

/* Splits "size:20000" into "size" and what follows the colon; returns NULL if there is no colon. */
static const char *split(const char *text, char *word, size_t bytes)
{
    size_t length = strcspn(text, ":");

    snprintf(word, bytes, "%.*s", (int)length, text);
    return text[length] ? text + length + 1 : NULL;
}

/* ---- policies ---- */

static fsdp_status drop_policy(fsdp_train_config *c)
{
    c->parallelism.wrap_policy = FSDP_TRAIN_WRAP_BLOCKS;
    c->parallelism.wrap_min_num_params = 0;
    return fsdp_train_config_set(c, "parallelism.wrap_classes", "");
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

fsdp_status fsdp__train_set_policy(fsdp_train_config *c, const char *text)
{
    char word[80];
    const char *of = split(text, word, sizeof word);

    FSDP_TRY(drop_policy(c));
    FSDP_TRY(fsdp_train_config_set(c, "parallelism.wrap_policy", word));
    if (of && c->parallelism.wrap_policy == FSDP_TRAIN_WRAP_SIZE)
        return fsdp_train_config_set(c, "parallelism.wrap_min_num_params", of);
    if (of && c->parallelism.wrap_policy == FSDP_TRAIN_WRAP_CLASS)
        return add_classes(c, of);
    return of ? FSDP_FAIL(FSDP_INVALID, "'%s' takes nothing after a colon: only size:PARAMETERS and class:NAME+NAME do",
                          word)
              : FSDP_OK;
}

void fsdp__train_policy_word(const fsdp_train_config *c, char *text, size_t bytes)
{
    static const char *const names[] = {"blocks", "root", "size", "class", "always"};
    size_t used = (size_t)snprintf(text, bytes, "%s", names[c->parallelism.wrap_policy]);

    if (c->parallelism.wrap_min_num_params)
        snprintf(text + used, bytes - used, ":%lld", (long long)c->parallelism.wrap_min_num_params);
    for (int64_t i = 0; i < c->parallelism.wrap_class_count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%c%s", i ? '+' : ':', c->parallelism.wrap_classes[i]);
}

/* ---- strategies ---- */

void fsdp__train_drop_other_keys(fsdp_train_config *c, int before)
{
    fsdp__config_drop_refused(&fsdp__train_keys, c, "parallelism");
    if (fsdp__train_holds_all(c) || (before == FSDP_TRAIN_HSDP && c->parallelism.strategy != FSDP_TRAIN_HSDP)) {
        c->parallelism.data_parallel_replicate_degree = 1;
        c->parallelism.data_parallel_shard_degree = -1;
    }
}

/* Chooses the number of copies for words that imply several. */
static void choose_copies(fsdp_train_config *c, bool named)
{
    fsdp_sharding_strategy fsdp1 = fsdp__train_fsdp1_strategy(c);
    bool hybrid = c->parallelism.strategy == FSDP_TRAIN_HSDP ||
                  (c->parallelism.strategy == FSDP_TRAIN_FSDP1 && named &&
                   (fsdp1 == FSDP_HYBRID_SHARD || fsdp1 == FSDP_HYBRID_SHARD_ZERO2));

    if (hybrid && c->parallelism.data_parallel_replicate_degree == 1)
        c->parallelism.data_parallel_replicate_degree = 2;
}

/* ---- teams ---- */

static int64_t team_of(const fsdp_train_config *c)
{
    return c->parallelism.tensor_parallel_degree * c->parallelism.context_parallel_degree;
}

static bool names_team(const char *of)
{
    return strncmp(of, "tp", 2) == 0 || strncmp(of, "cp", 2) == 0;
}

/* Sets the degrees of "tp2", "cp2" or "cp2+tp2", each once. */
static fsdp_status set_degrees(fsdp_train_config *c, const char *of)
{
    bool has_tp = false, has_cp = false;

    for (const char *at = of; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL) {
        bool tp = *at == 't', *has = tp ? &has_tp : &has_cp;
        char number[32];

        if (!names_team(at) || *has)
            return FSDP_FAIL(FSDP_INVALID, "'%s' is no team: expected tpN, cpN or cpN+tpN", of);
        *has = true;
        snprintf(number, sizeof number, "%.*s", (int)strcspn(at + 2, "+"), at + 2);
        FSDP_TRY(fsdp_train_config_set(
            c, tp ? "parallelism.tensor_parallel_degree" : "parallelism.context_parallel_degree", number));
    }
    return FSDP_OK;
}

/* Sets the ranks of a team. A team gets the sequences that its ranks have by themselves, so that a step has as many as
 * before. */
static fsdp_status set_team(fsdp_train_config *c, const char *of)
{
    int64_t before = team_of(c), local = c->training.local_batch_size;

    FSDP_TRY(set_degrees(c, of));
    if (c->training.global_batch_size > 0)
        return FSDP_OK;
    if (local > INT64_MAX / team_of(c) || local * team_of(c) % before != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "training.local_batch_size %lld of teams of %lld ranks cannot be as many sequences a step in "
                         "teams of %lld: set training.global_batch_size",
                         (long long)local, (long long)before, (long long)team_of(c));
    c->training.local_batch_size = local * team_of(c) / before;
    return FSDP_OK;
}

static fsdp_status set_what_follows(fsdp_train_config *c, const char *word, const char *of)
{
    if (names_team(of))
        return set_team(c, of);
    if (c->parallelism.strategy == FSDP_TRAIN_FSDP1)
        return fsdp_train_config_set(c, "parallelism.fsdp1_strategy", of);
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s' takes no '%s' after a colon: fsdp1 takes its strategies, as fsdp1:shard_grad_op, and all "
                     "take the ranks of a team, as %s:cp2, fsdp2:tp2 or fsdp2:cp2+tp2",
                     word, of, word);
}

fsdp_status fsdp__train_set_strategy(fsdp_train_config *c, const char *text)
{
    char word[80];
    const char *of = split(text, word, sizeof word);
    int before = c->parallelism.strategy;

    FSDP_TRY(fsdp_train_config_set(c, "parallelism.strategy", word));
    if (of)
        FSDP_TRY(set_what_follows(c, word, of));
    fsdp__train_drop_other_keys(c, before);
    choose_copies(c, of != NULL);
    return c->parallelism.strategy == FSDP_TRAIN_DDP ? drop_policy(c) : FSDP_OK;
}
