/* Every key of a run has an effect by itself, or is in the table of what keys need: then it is refused or named where
 * that is absent, and neither with it, nor with a value that says what holds anyway. */
#include <string.h>

#include "config/config.h"
#include "support/test.h"
#include "train/config.h"
#include "train/run_config.h"

/* Lists the keys that need no other key, and those whose section's own check says what is missing. A new key is an
 * entry here, or in key_needs.c. */
static const char *const by_themselves[] = {
    "model.path preset init n_layers dim n_heads n_kv_heads ffn_dim vocab_size max_seq_len tie_word_embeddings dropout "
    "frozen",
    "data.path format dtype order workers tokenizer field cache chat_template train_on packing on_long_row mixture",
    "training.steps epochs seq_len global_batch_size local_batch_size max_norm seed device threads "
    "mixed_precision_param mixed_precision_reduce split_shards enable_cpu_offload on_nan objective",
    "optimizer.name lr weight_decay groups",
    "lr_scheduler.warmup_steps decay_type warmup_tokens",
    "parallelism.strategy data_parallel_replicate_degree data_parallel_shard_degree context_parallel_degree "
    "tensor_parallel_degree fsdp_reshard_after_forward gather_dtype wrap_policy prefetch schedule",
    "activation_checkpoint.mode",
    "validation.path share",
    "kernels.attention",
    "comm.timeout reduce trace",
    "metrics.log_freq jsonl trace.path csv prometheus tensorboard histogram_freq mfu peak_tflops flight_recorder",
    "checkpoint.folder initial_load_path",
    "export.path",
    "adapter.path rank",
};

static bool is_word(const char *word, const char *list)
{
    size_t length = strlen(word);

    for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    return false;
}

/* Returns whether the key is one of "section.name name ..". */
static bool is_by_itself(const fsdp__key *key)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(by_themselves); i++) {
        size_t length = strlen(key->section);

        if (strncmp(by_themselves[i], key->section, length) == 0 && by_themselves[i][length] == '.' &&
            is_word(key->name, by_themselves[i] + length + 1))
            return true;
    }
    return false;
}

static bool is_of(const fsdp__key_need *need, const fsdp__key *key)
{
    return strcmp(need->section, key->section) == 0 && is_word(key->name, need->names);
}

#define EACH_KEY(key) \
    for (const fsdp__key *key = fsdp__train_keys.keys; key < fsdp__train_keys.keys + fsdp__train_keys.count; key++)
#define EACH_NEED(need) for (const fsdp__key_need *need = fsdp__train_key_needs; need->section; need++)

TEST(every_key_stands_by_itself_or_says_what_it_needs)
{
    EACH_KEY(key)
    {
        int entries = 0;

        EACH_NEED(need)
        entries += is_of(need, key);
        if ((entries > 0) == is_by_itself(key))
            TEST_FAIL("%s.%s: %d entries in key_needs.c, and %sin this test's list: it must be in one of them",
                      key->section, key->name, entries, entries ? "" : "not ");
    }
}

/* ---- each entry, with and without what it needs ---- */

/* Sets the key to a value that is neither its default nor `usual`. */
static void set_other(fsdp_train_config *config, const fsdp__key *key, const char *usual)
{
    const char *value = "x";
    char name[100], text[40];

    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    if (key->choices)
        for (const fsdp__choice *c = key->choices; c->text; c++)
            if ((!key->initial || strcmp(c->text, key->initial) != 0) && (!usual || strcmp(c->text, usual) != 0)) {
                value = c->text;
                break;
            }
    if (!key->choices && key->type != FSDP__KEY_TEXT && !fsdp__key_is_list(key)) {
        snprintf(text, sizeof text, "%g", key->most <= 1 ? 0.25 : 3.0);
        value = key->type == FSDP__KEY_SIZE ? "3MiB" : text;
    }
    if (strcmp(name, "metrics.trace.steps") == 0)
        value = "3-5";
    CHECK_OK(fsdp_train_config_set(config, name, value));
}

/* Gives the config the alternative of this number; false: there are fewer. */
static bool meet(fsdp_train_config *config, const fsdp__key_need *need, int number)
{
    const char *at = need->needs;
    char text[120], *values;
    const fsdp__key *key;

    for (; number > 0 && at; number--)
        at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    if (!at)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "|"), at);
    values = strchr(text, '=');
    if (values)
        *values++ = '\0';
    key = fsdp__key_named(&fsdp__train_keys, text + (*text == '~'));
    CHECK(key != NULL);
    if (!values || (*values == '!' && key->initial && strstr(values, key->initial)))
        set_other(config, key, NULL);
    else if (*values != '!')
        CHECK_OK(fsdp_train_config_set(config, text + (*text == '~'), strtok(values, ",*")));
    return true;
}

/* Takes from the config what the entry needs: its default may be among the values, or "=!value" says what it must not
 * be. */
static void deprive(fsdp_train_config *config, const fsdp__key_need *need)
{
    char text[120], *values;
    const fsdp__key *key;
    const char *value = NULL;

    snprintf(text, sizeof text, "%s", need->needs);
    values = strchr(text, '=');
    if (!values || strchr(text, '|'))
        return;
    *values++ = '\0';
    key = fsdp__key_named(&fsdp__train_keys, text);
    if (*values == '!')
        value = strtok(values + 1, ",");
    for (const fsdp__choice *c = key->choices; !value && c && c->text; c++)
        if (!strstr(values, c->text))
            value = c->text;
    if (value)
        CHECK_OK(fsdp_train_config_set(config, text, value));
}

/* Makes a config with the key and all that it needs, except that nothing is done for `need`. */
static fsdp_train_config *without(const fsdp__key *key, const fsdp__key_need *need)
{
    fsdp_train_config *config = test_empty_config();

    EACH_NEED(other)
    if (is_of(other, key) && other != need)
        (void)meet(config, other, 0);
    set_other(config, key, need->usual);
    return config;
}

/* Checks that the key is refused, or only named, in words that name it and what it needs. */
static void check_said(fsdp_train_config *config, const fsdp__key *key, const fsdp__key_need *need)
{
    char name[100], idle[600], needed[256], first[100];
    const char *said = idle;

    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    snprintf(first, sizeof first, "%.*s", (int)strcspn(need->needs, "=|"), need->needs);
    fsdp__key_needed(need, needed, sizeof needed);
    fsdp__config_idle(&fsdp__train_keys, config, idle, sizeof idle);
    if (!need->idle) {
        CHECK_ERROR(fsdp__config_check_needs(&fsdp__train_keys, config), FSDP_INVALID, name);
        said = fsdp_last_error();
    }
    CHECK_CONTAINS(said, name);
    CHECK_CONTAINS(said, needed);
    CHECK_CONTAINS(needed, first);
}

static const fsdp__key_need *lacks(const fsdp_train_config *config, const fsdp__key *key)
{
    return fsdp__key_lacks(&fsdp__train_keys, config, key);
}

static void check_entry(const fsdp__key *key, const fsdp__key_need *need)
{
    fsdp_train_config *config = without(key, need);

    deprive(config, need);
    if (lacks(config, key) != need)
        TEST_FAIL("%s.%s is given without %s, and that is not noticed", key->section, key->name, need->needs);
    check_said(config, key, need);
    if (need->usual) {
        CHECK_OK(fsdp__key_set(config, key, need->usual));
        CHECK_NULL(lacks(config, key));
    }
    CHECK_OK(fsdp__key_set(config, key, key->initial ? key->initial : ""));
    CHECK_NULL(lacks(config, key));
    for (int i = 0;; i++) {
        config = without(key, need);
        if (!meet(config, need, i))
            break;
        if (lacks(config, key))
            TEST_FAIL("%s.%s has what it needs, number %d of %s, and is refused", key->section, key->name, i,
                      need->needs);
    }
}

TEST(a_key_without_what_it_needs_is_refused_or_named)
{
    EACH_NEED(need)
    {
        int keys = 0;

        EACH_KEY(key)
        if (is_of(need, key)) {
            check_entry(key, need);
            keys++;
        }
        CHECK_EQ(keys, test_count(need->names, " ") + 1);
    }
}

/* What a comparison takes away takes along what belongs to it, and nothing else. */
TEST(keys_that_would_be_refused_are_dropped)
{
    fsdp_train_config *config = test_config("metrics.sample_freq=3 metrics.sample_prompt=a export.dtype=bfloat16 "
                                            "optimizer.beta1=0.5");

    fsdp__config_drop_refused(&fsdp__train_keys, config, "export");
    CHECK_EQ(config->save.dtype, FSDP_F32);
    CHECK_ERROR(fsdp__config_check_needs(&fsdp__train_keys, config), FSDP_INVALID, "metrics.sample_prompt needs ");
    fsdp__config_drop_refused(&fsdp__train_keys, config, NULL);
    CHECK_OK(fsdp__config_check_needs(&fsdp__train_keys, config));
    CHECK_NULL(config->metrics.sample_prompt);
    CHECK_EQ(config->metrics.sample_freq, 3); /* it is named, and not refused */
    CHECK_NEAR(config->optimizer.beta1, 0.5, 0);
}
