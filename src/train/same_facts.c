/* same_facts.c - facts about a model, its weights and data, and the comparison of lists of facts. */
#include "train/same_facts.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host.h"
#include "checkpoint/manifest.h"
#include "fsdp/format.h"

enum {
    SAMPLES = 16, /* places at which the data of a checkpoint's run is sampled */
    SAMPLE_TOKENS = 64,
    /* places that ranks compare among themselves, as all have the data: up to this many tokens all are read */
    SPANS = 1024,
    SPAN_TOKENS = 4096,
    TENSOR_SPANS = 4, /* of each tensor of a model */
    TENSOR_SPAN_BYTES = 16 << 10,
    NAMED = 4 /* differences that a message names; the rest are only counted */
};

/* ---- facts ---- */

void fsdp__facts_of_key(const fsdp_train_config *config, const fsdp__key *key, FILE *out)
{
    bool set = fsdp__key_is_set(config, key);

    fprintf(out, "%s.%s\t", key->section, key->name);
    if (!set || key->range & FSDP__LOCAL) /* whether a path is set decides what all ranks do together */
        fputs(set ? "set" : "not set", out);
    else
        fsdp__key_print(config, key, out);
    fputc('\n', out);
}

static uint64_t mark_hash(const uint64_t layers[FSDP_MODEL_MAX_MARKED_LAYERS / 64])
{
    return fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, layers, FSDP_MODEL_MAX_MARKED_LAYERS / 8);
}

static uint64_t longrope_hash(const fsdp_model_config *m)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, m->rope_short_factors, sizeof m->rope_short_factors);

    return fsdp__hash_bytes(hash, m->rope_long_factors, sizeof m->rope_long_factors);
}

void fsdp__facts_of_model(const fsdp_model_config *m, FILE *out)
{
    fprintf(
        out,
        "the model's architecture\t%s\nthe model's n_layers\t%lld\nthe model's dim\t%lld\nthe model's n_heads\t%lld\n"
        "the model's n_kv_heads\t%lld\nthe model's head_dim\t%lld\nthe model's ffn_dim\t%lld\n"
        "the model's vocab_size\t%lld\nthe model's max_seq_len\t%lld\nthe model's norm_eps\t%.9g\n"
        "the model's rope\t%.9g %d %.9g %.9g %.9g %lld\nthe model's biases and ties\t%d %d %d %d\n"
        "the model's local and bare layers\t%lld %016llx %016llx %.9g\n"
        "the model's scales of attention\t%.9g %.9g %.9g\nthe model's yarn\t%.9g %.9g %.9g %.9g %.9g %d %.9g\n",
        fsdp_architecture_name(m->architecture), (long long)m->n_layers, (long long)m->dim, (long long)m->n_heads,
        (long long)m->n_kv_heads, (long long)m->head_dim, (long long)m->ffn_dim, (long long)m->vocab_size,
        (long long)m->max_seq_len, (double)m->norm_eps, (double)m->rope_theta, (int)m->rope_type,
        (double)m->rope_factor, (double)m->rope_low_freq_factor, (double)m->rope_high_freq_factor,
        (long long)m->rope_original_max_seq_len, m->tie_word_embeddings, m->attention_bias, m->mlp_bias, m->gelu_erf,
        (long long)m->window, (unsigned long long)mark_hash(m->local_layers),
        (unsigned long long)mark_hash(m->no_rope_layers), (double)m->local_rope_theta, (double)m->query_scalar,
        (double)m->attention_softcap, (double)m->logits_softcap, (double)m->rope_attention_factor,
        (double)m->rope_mscale, (double)m->rope_mscale_all_dim, (double)m->rope_beta_fast, (double)m->rope_beta_slow,
        m->rope_keep_ramp, (double)m->rotary_fraction);
    if (m->rope_type == FSDP_ROPE_LONGROPE)
        fprintf(out, "the model's longrope\t%016llx\n", (unsigned long long)longrope_hash(m));
}

/* Returns where span `i` begins, of several of `length` of which the first and the last lie at the ends of `count`. */
static int64_t span_at(int64_t i, int64_t spans, int64_t count, int64_t length)
{
    return spans == 1 ? 0 : (int64_t)((double)(count - length) * ((double)i / (double)(spans - 1)));
}

fsdp_status fsdp__facts_hash_data(const fsdp_tokens *stream, uint64_t *out)
{
    int64_t count = fsdp_tokens_count(stream), length = FSDP__MIN(count, SAMPLE_TOKENS);
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[SAMPLE_TOKENS] = {0};

        FSDP_TRY(fsdp_tokens_read(stream, span_at(i, SAMPLES, count, length), length, tokens));
        hash = fsdp__hash_bytes(hash, tokens, sizeof tokens);
    }
    *out = hash;
    return FSDP_OK;
}

static fsdp_status hash_spans(const fsdp_tokens *stream, uint64_t *out)
{
    int64_t count = fsdp_tokens_count(stream), spans = FSDP__MIN((count + SPAN_TOKENS - 1) / SPAN_TOKENS, SPANS);
    int32_t tokens[SPAN_TOKENS];

    *out = FSDP__HASH_OF_NOTHING;
    for (int64_t i = 0; i < spans; i++) {
        int64_t length = FSDP__MIN(count, SPAN_TOKENS);

        FSDP_TRY(fsdp_tokens_read(stream, span_at(i, spans, count, length), length, tokens));
        *out = fsdp__hash_bytes(*out, tokens, (size_t)length * sizeof *tokens);
    }
    return FSDP_OK;
}

/* Writes how many rows there are. */
static void write_rows(const fsdp__rows *rows, const char *key, FILE *out)
{
    uint64_t hash[2];

    fsdp__rows_digest(rows, hash);
    fprintf(out, "what %s holds\t%lld rows of %lld tokens (%016llx)\n", key, (long long)rows->count,
            (long long)rows->tokens, (unsigned long long)hash[0]);
}

static void write_data(fsdp_status (*hash_of)(const fsdp_tokens *stream, uint64_t *out), const fsdp__open_data *data,
                       const char *key, FILE *out)
{
    uint64_t hash = 0;

    if (data->rows)
        write_rows(data->rows, key, out);
    else if (hash_of(data->tokens, &hash) == FSDP_OK)
        fprintf(out, "what %s holds\t%lld tokens (%016llx)\n", key, (long long)fsdp_tokens_count(data->tokens),
                (unsigned long long)hash);
    else
        fprintf(out, "what %s holds\t%s\n", key, fsdp_last_error());
}

void fsdp__facts_of_data(const fsdp__open_data *data, const char *key, FILE *out)
{
    write_data(hash_spans, data, key, out);
}

void fsdp__facts_of_sampled_data(const fsdp__open_data *data, const char *key, FILE *out)
{
    write_data(fsdp__facts_hash_data, data, key, out);
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

/* Returns the verb of a fact. Checkpoints keep the names, so these stay as they are. */
static const char *verb_of(const fact *f)
{
    static const char *const several[] = {
        "the tokens that are trained on",  "the model's biases and ties", "the model's local and bare layers",
        "the model's scales of attention", "the most new tokens",         "the windows of "};

    for (size_t i = 0; i < FSDP__COUNT_OF(several); i++) {
        int bytes = (int)strlen(several[i]); /* names end with their bytes, not with a zero */

        if (f->name_bytes >= bytes && memcmp(f->name, several[i], (size_t)bytes) == 0)
            return "are";
    }
    return "is";
}

/* Says which fact only one side has: of an adapter, for example. */
static void say_missing(fact first, fact second, char *text)
{
    fact one = second.name ? second : first;

    snprintf(text, FSDP__FACTS_TEXT, "only one of them has %.*s (or they are of different versions of fsdp)",
             FSDP__MIN(one.name_bytes, 60), one.name);
}

int fsdp__facts_differ(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *text)
{
    const char *a_end = a + a_bytes, *b_end = b + b_bytes;
    size_t used = 0, text_bytes = FSDP__FACTS_TEXT;
    int count = 0;

    text[0] = '\0';
    for (;;) {
        fact first = next_fact(&a, a_end), second = next_fact(&b, b_end);

        if (!first.name && !second.name)
            break;
        if (!first.name || !second.name || !same(first.name, first.name_bytes, second.name, second.name_bytes)) {
            if (!count)
                say_missing(first, second, text);
            return FSDP__MAX(count, 1);
        }
        if (same(first.value, first.value_bytes, second.value, second.value_bytes))
            continue;
        if (count++ < NAMED)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%.*s %s %.*s and %.*s", used ? ", " : "",
                                     FSDP__MIN(first.name_bytes, 60), first.name, verb_of(&first),
                                     FSDP__MIN(first.value_bytes, 60), first.value, FSDP__MIN(second.value_bytes, 60),
                                     second.value);
    }
    if (count > NAMED)
        snprintf(text + used, text_bytes - used, ", and %d more", count - NAMED);
    return count;
}

/* ---- weights ---- */

/* Hashes the beginning and the end of a tensor, and what lies in between, or some of it. */
static uint64_t hash_tensor(fsdp_weights *file, const fsdp_weights_entry *entry, uint64_t hash)
{
    int64_t element = (int64_t)fsdp_dtype_size(entry->dtype), numel = (int64_t)entry->bytes / element;
    int64_t length = FSDP__MIN(numel, TENSOR_SPAN_BYTES / element);
    int64_t spans = length == 0 ? 0 : FSDP__MIN((numel + length - 1) / length, TENSOR_SPANS);
    char bytes[TENSOR_SPAN_BYTES];

    for (int64_t i = 0; i < spans; i++)
        if (fsdp_weights_read(file, entry, span_at(i, spans, numel, length), length, bytes) == FSDP_OK)
            hash = fsdp__hash_bytes(hash, bytes, (size_t)(length * element));
    return hash;
}

/* Writes names, types and shapes of the tensors that will be loaded, and hashes of much of their contents: what a rank
 * has of them must fit what its peers have, and otherwise another checkpoint of the same model would be mixed with
 * it. */
static void write_tensors(const char *key, const char *folder, FILE *out)
{
    fsdp_weights *file = NULL;
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    if (fsdp_weights_open(folder, &file) != FSDP_OK) { /* loading them will report it, if all ranks have this line */
        fprintf(out, "what %s holds\t%s\n", key, fsdp_last_error());
        return;
    }
    for (int64_t i = 0; i < fsdp_weights_count(file); i++) {
        const fsdp_weights_entry *entry = fsdp_weights_at(file, i);

        hash = fsdp__hash_bytes(hash, entry->name, strlen(entry->name) + 1);
        hash = fsdp__hash_bytes(hash, &entry->dtype, sizeof entry->dtype);
        hash = fsdp__hash_bytes(hash, entry->shape, (size_t)entry->ndim * sizeof *entry->shape);
        if (entry->dtype != FSDP_DTYPE_NONE) /* otherwise it cannot be read, and nobody will */
            hash = hash_tensor(file, entry, hash);
    }
    fprintf(out, "what %s holds\t%lld tensors (%016llx)\n", key, (long long)fsdp_weights_count(file),
            (unsigned long long)hash);
    fsdp_weights_close(file);
}

/* Writes facts of a checkpoint, whose manifest has checksums of everything. */
static void write_checkpoint(const char *key, const char *path, FILE *out)
{
    FSDP__FREED char *name = fsdp__path_join(path, FSDP__MANIFEST_NAME), *text = NULL;
    size_t bytes = 0;

    if (name && fsdp__file_read(name, SIZE_MAX, &text, &bytes) == FSDP_OK)
        fprintf(out, "what %s holds\ta checkpoint (%016llx)\n", key,
                (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes));
    else
        fprintf(out, "what %s holds\t%s\n", key, fsdp_last_error());
}

void fsdp__facts_of_weights(const char *folder, bool is_checkpoint, const char *key, FILE *out)
{
    (is_checkpoint ? write_checkpoint : write_tensors)(key, folder, out);
}

/* ---- of all ranks ---- */

/* Returns a rank's message: the name of its machine with a terminating zero, then its facts. free() it; NULL and a last
 * error when out of memory. */
static char *facts_of(void (*write)(const void *arg, FILE *out), const void *arg, size_t *bytes)
{
    FSDP__FREED char *text = NULL;
    FILE *out = fsdp__begin_text(&text, bytes);

    if (out) {
        fprintf(out, "%s%c", FSDP__HOST_NAME, '\0');
        write(arg, out);
    }
    return fsdp__end_text(out) == FSDP_OK ? fsdp__take(&text) : NULL;
}

static fsdp_status compare(const char *what, void *const *all, const size_t *bytes, int ranks)
{
    const char *first = all[0];
    size_t first_host = strlen(first) + 1;
    char text[FSDP__FACTS_TEXT], machine[FSDP__HOST_BYTES + 16] = "";

    for (int rank = 1; rank < ranks; rank++) {
        const char *other = all[rank];
        size_t host = strlen(other) + 1;

        if (!fsdp__facts_differ(first + first_host, bytes[0] - first_host, other + host, bytes[rank] - host, text))
            continue;
        if (strcmp(first, other) != 0)
            snprintf(machine, sizeof machine, " (machine '%s')", other);
        return FSDP_FAIL(FSDP_INVALID, "ranks 0 and %d%s %s: %s: start all ranks with the same", rank, machine, what,
                         text);
    }
    return FSDP_OK;
}

fsdp_status fsdp__facts_agree(fsdp_context *context, const char *what, void (*write)(const void *arg, FILE *out),
                              const void *arg)
{
    int ranks = fsdp_context_world_size(context);
    fsdp_process_group *world;
    FSDP__FREED char *facts = NULL;
    size_t *sizes = NULL, bytes = 0;
    void **all = NULL;
    fsdp_status status;

    if (ranks == 1)
        return FSDP_OK;
    world = fsdp_world(context);
    if (!world)
        return fsdp_last_status();
    FSDP__TRY_NEW(facts = facts_of(write, arg, &bytes));
    FSDP_TRY(fsdp_gather_objects(world, facts, bytes, &all, &sizes));
    status = compare(what, all, sizes, ranks);
    fsdp_objects_free(world, all, sizes);
    return status;
}
