/* same_config.c - whether all ranks have the same config. Ranks that one process started got theirs from it; others may
 * have read another file, or have been given another command line, and would train something that nobody asked for, or
 * wait for each other. Each writes what must be the same as lines of text, "name<tab>value"; all compare all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fsdp/format.h"
#include "train/config.h"
#include "train/run.h"

enum {
    SAMPLES = 16, /* places at which the data is looked at */
    SAMPLE_TOKENS = 64,
    SAMPLE_BYTES = 64, /* of each tensor of the model */
    NAMED = 4          /* differences that a message names; the rest are counted */
};

/* ---- what must be the same ---- */

static void write_keys(const fsdp_train_config *config, FILE *out)
{
    for (int i = 0; i < fsdp__train_keys.count; i++) {
        const fsdp__key *key = &fsdp__train_keys.keys[i];
        bool set = fsdp__key_is_set(config, key);

        fprintf(out, "%s.%s\t", key->section, key->name);
        if (!set || key->range & FSDP__LOCAL) /* whether a path is set decides on what all do together */
            fputs(set ? "set" : "not set", out);
        else
            fsdp__key_print(config, key, out);
        fputc('\n', out);
    }
}

/* Names, types and shapes of the tensors that will be loaded, and how each begins: what a rank has of them must fit
 * what its peers have, and another checkpoint of the same model would be mixed with it. */
static void write_weights(const char *folder, FILE *out)
{
    fsdp_safetensors *file = NULL;
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    if (fsdp_safetensors_open(folder, &file) != FSDP_OK) { /* loading them will say it, where all have this line */
        fprintf(out, "what model.path holds\t%s\n", fsdp_last_error());
        return;
    }
    for (int64_t i = 0; i < fsdp_safetensors_count(file); i++) {
        const fsdp_safetensors_entry *entry = fsdp_safetensors_at(file, i);

        hash = fsdp__hash_bytes(hash, entry->name, strlen(entry->name) + 1);
        hash = fsdp__hash_bytes(hash, &entry->dtype, sizeof entry->dtype);
        hash = fsdp__hash_bytes(hash, entry->shape, (size_t)entry->ndim * sizeof *entry->shape);
        hash = fsdp__hash_bytes(hash, entry->data, FSDP__MIN(entry->bytes, (size_t)SAMPLE_BYTES));
    }
    fprintf(out, "what model.path holds\t%lld tensors (%016llx)\n", (long long)fsdp_safetensors_count(file),
            (unsigned long long)hash);
    fsdp_safetensors_close(file);
}

static void write_model(const fsdp_train_run *run, FILE *out)
{
    const fsdp_model_config *m = &run->model_config;

    fprintf(
        out,
        "the model's architecture\t%s\nthe model's n_layers\t%lld\nthe model's dim\t%lld\nthe model's n_heads\t%lld\n"
        "the model's n_kv_heads\t%lld\nthe model's head_dim\t%lld\nthe model's ffn_dim\t%lld\n"
        "the model's vocab_size\t%lld\nthe model's max_seq_len\t%lld\nthe model's norm_eps\t%.9g\n"
        "the model's rope\t%.9g %d %.9g %.9g %.9g %lld\nthe model's biases and ties\t%d %d %d %d\n"
        "the model's dropout\t%.9g %.9g\nthe model's init_std\t%.9g\n",
        m->architecture == FSDP_GPT2 ? "GPT-2" : "Llama", (long long)m->n_layers, (long long)m->dim,
        (long long)m->n_heads, (long long)m->n_kv_heads, (long long)m->head_dim, (long long)m->ffn_dim,
        (long long)m->vocab_size, (long long)m->max_seq_len, (double)m->norm_eps, (double)m->rope_theta, m->rope_llama3,
        (double)m->rope_factor, (double)m->rope_low_freq_factor, (double)m->rope_high_freq_factor,
        (long long)m->rope_original_max_seq_len, m->tie_word_embeddings, m->attention_bias, m->mlp_bias, m->gelu_erf,
        (double)m->embd_dropout, (double)m->dropout, (double)m->init_std);
    if (run->config->model.path && run->config->model.pretrained != 0)
        write_weights(run->config->model.path, out);
}

/* How many tokens, and some of them: another file of the same size, or files in another order, are seen too. */
static void write_data(const fsdp_train_run *run, FILE *out)
{
    int64_t count = fsdp_tokens_count(run->tokens), length = FSDP__MIN(count, SAMPLE_TOKENS);
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[SAMPLE_TOKENS] = {0};
        double part = (double)i / (SAMPLES - 1);

        if (fsdp_tokens_read(run->tokens, (int64_t)((double)(count - length) * part), length, tokens) != FSDP_OK) {
            fprintf(out, "what data.path holds\t%s\n", fsdp_last_error());
            return;
        }
        hash = fsdp__hash_bytes(hash, tokens, sizeof tokens);
    }
    fprintf(out, "what data.path holds\t%lld tokens (%016llx)\n", (long long)count, (unsigned long long)hash);
}

/* free() it; NULL and a last error when out of memory. */
static char *facts_of(const fsdp_train_run *run, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);

    if (out) {
        write_keys(run->config, out);
        write_model(run, out);
        write_data(run, out);
    }
    if (out && fclose(out) == 0 && text)
        return text;
    (void)FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    free(text);
    return NULL;
}

/* ---- the comparison ---- */

/* One line of facts; `name` is NULL at the end. */
typedef struct fact {
    const char *name, *value;
    int name_bytes, value_bytes;
} fact;

static fact next_fact(const char **at, const char *end)
{
    fact f = {.name = *at < end ? *at : NULL};
    const char *stop = f.name ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    const char *tab = stop ? memchr(*at, '\t', (size_t)(stop - *at)) : NULL;

    if (!tab)
        return (fact){0};
    f.value = tab + 1;
    f.name_bytes = (int)(tab - f.name);
    f.value_bytes = (int)(stop - f.value);
    *at = stop + 1;
    return f;
}

static bool same(const char *a, int a_bytes, const char *b, int b_bytes)
{
    return a_bytes == b_bytes && memcmp(a, b, (size_t)a_bytes) == 0;
}

/* "training.seed is 1 and 2, data.order is ..."; returns how many differ. */
static int differences(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *text, size_t text_bytes)
{
    const char *a_end = a + a_bytes, *b_end = b + b_bytes;
    size_t used = 0;
    int count = 0;

    text[0] = '\0';
    for (;;) {
        fact first = next_fact(&a, a_end), second = next_fact(&b, b_end);

        if (!first.name && !second.name)
            return count;
        if (!first.name || !second.name || !same(first.name, first.name_bytes, second.name, second.name_bytes)) {
            if (!count)
                snprintf(text, text_bytes, "they are of different versions of fsdp");
            return FSDP__MAX(count, 1);
        }
        if (same(first.value, first.value_bytes, second.value, second.value_bytes))
            continue;
        if (count++ < NAMED)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%.*s is %.*s and %.*s", used ? ", " : "",
                                     FSDP__MIN(first.name_bytes, 60), first.name, FSDP__MIN(first.value_bytes, 60),
                                     first.value, FSDP__MIN(second.value_bytes, 60), second.value);
    }
}

static fsdp_status compare(void *const *facts, const size_t *bytes, int ranks)
{
    char text[NAMED * 200], more[32] = "";

    for (int rank = 1; rank < ranks; rank++) {
        int count = differences(facts[0], bytes[0], facts[rank], bytes[rank], text, sizeof text);

        if (count > NAMED)
            snprintf(more, sizeof more, ", and %d more", count - NAMED);
        if (count)
            return FSDP_FAIL(FSDP_INVALID, "ranks 0 and %d have different configs: %s%s: start all with the same", rank,
                             text, more);
    }
    return FSDP_OK;
}

fsdp_status fsdp__same_config(const fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);
    fsdp_process_group *world;
    void **all = NULL;
    size_t *sizes = NULL, bytes = 0;
    char *facts;
    fsdp_status status;

    if (ranks == 1)
        return FSDP_OK;
    world = fsdp_world(run->context);
    if (!world)
        return fsdp_last_status();
    facts = facts_of(run, &bytes);
    if (!facts)
        return FSDP_NO_MEMORY;
    status = fsdp_gather_objects(world, facts, bytes, &all, &sizes);
    free(facts);
    FSDP_TRY(status);
    status = compare(all, sizes, ranks);
    fsdp_objects_free(world, all, sizes);
    return status;
}
