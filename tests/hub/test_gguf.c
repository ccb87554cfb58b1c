/* Files of llama.cpp: what is written is read back, in every type; rows of query and key, transposed matrices and tied
 * heads; files that are not right. Where a python has the package gguf (FSDP_GGUF_PYTHON
 * names one), it reads the same numbers. */
#include "hub/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/file.h"
#include "hub/hub.h"
#include "support/models.h"
#include "support/test.h"

typedef struct variant {
    const char *name;
    fsdp_architecture architecture;
    int64_t kv_heads;
    bool tied, bias;
    fsdp_rope_type rope;
} variant;

static const variant variants[] = {
    {"gpt2", FSDP_GPT2, 4, true, false, FSDP_ROPE_DEFAULT},
    {"llama", FSDP_LLAMA, 2, false, true, FSDP_ROPE_DEFAULT},
    {"tied", FSDP_LLAMA, 1, true, false, FSDP_ROPE_LLAMA3},
    {"mistral", FSDP_MISTRAL, 4, false, false, FSDP_ROPE_LINEAR},
    {"qwen2", FSDP_QWEN2, 2, true, false, FSDP_ROPE_DEFAULT},
    {"qwen3", FSDP_QWEN3, 2, false, false, FSDP_ROPE_DEFAULT},
    {"olmo2", FSDP_OLMO2, 4, false, false, FSDP_ROPE_DEFAULT},
    {"smollm3", FSDP_SMOLLM3, 2, true, false, FSDP_ROPE_DEFAULT},
    {"phi3", FSDP_PHI3, 2, false, false, FSDP_ROPE_DEFAULT},
    {"phi3 long", FSDP_PHI3, 4, true, false, FSDP_ROPE_LONGROPE},
    {"gemma2", FSDP_GEMMA2, 2, true, false, FSDP_ROPE_DEFAULT},
    {"gemma3", FSDP_GEMMA3, 1, true, false, FSDP_ROPE_LINEAR},
};

/* Adds what the numbers of a variant do not say. */
static void set_family(fsdp_model_config *c)
{
    bool gemma2 = c->architecture == FSDP_GEMMA2, gemma3 = c->architecture == FSDP_GEMMA3;

    if (c->architecture == FSDP_PHI3)
        c->window = 8, c->local_layers[0] = 15, c->rotary_fraction = 0.75f;
    if (c->rope_type == FSDP_ROPE_LONGROPE) {
        c->window = 0, c->local_layers[0] = 0;
        c->rope_original_max_seq_len = 16, c->rope_factor = 2; /* of max_seq_len */
        for (int i = 0; i < 6; i++)
            c->rope_short_factors[i] = 1 + (float)i / 8, c->rope_long_factors[i] = 2 + (float)i;
    }
    if (c->architecture == FSDP_SMOLLM3)
        c->no_rope_layers[0] = 8;
    if (!gemma2 && !gemma3)
        return;
    c->window = 8;
    c->local_layers[0] = gemma2 ? 5 : 15;
    c->query_scalar = (float)c->head_dim;
    c->attention_softcap = gemma2 ? 40 : 0, c->logits_softcap = gemma2 ? 20 : 0;
    c->local_rope_theta = gemma3 ? 10000 : 0;
}

static fsdp_model_config config_of(const variant *v)
{
    fsdp_model_config config =
        MODEL_CONFIG(.architecture = v->architecture, .n_layers = 4, .dim = 64, .n_heads = 4, .n_kv_heads = v->kv_heads,
                     .head_dim = 16, .ffn_dim = 48, /* rows that are no blocks of q8_0 */ .vocab_size = 70,
                     .max_seq_len = 32, .rope_theta = v->architecture == FSDP_GPT2 ? 0 : 500000, .rope_type = v->rope,
                     .rope_factor = v->rope ? 8 : 0, .rope_low_freq_factor = v->rope == FSDP_ROPE_LLAMA3 ? 1 : 0,
                     .rope_high_freq_factor = v->rope == FSDP_ROPE_LLAMA3 ? 4 : 0,
                     .rope_original_max_seq_len = v->rope == FSDP_ROPE_LLAMA3 ? 8192 : 0,
                     .tie_word_embeddings = v->tied, .attention_bias = v->bias, .mlp_bias = v->bias, .init_std = 0.02f,
                     .has_bos_token = true, .bos_token = 3, .eos_token_count = 1, .eos_tokens = {5});

    set_family(&config);
    return config;
}

/* A model and its state; its biases are no zeros. */
typedef struct made {
    fsdp_context *context;
    fsdp_module *model;
    fsdp_state_dict *state;
} made;

static made make(const fsdp_model_config *config)
{
    made m = {.context = test_context()};

    m.model = CHECK_PTR(fsdp_model_create(m.context, test_device(m.context), config));
    CHECK_OK(fsdp_module_initialize(m.model, 3));
    CHECK_OK(fsdp_state_dict_from_module(m.model, &m.state));
    for (int64_t i = 0; i < m.state->count; i++) {
        fsdp_tensor *t = m.state->entries[i].tensor;
        int64_t numel = fsdp_tensor_numel(t);
        float *values = malloc((size_t)numel * sizeof *values);

        for (int64_t e = 0; e < numel; e++)
            values[e] = sinf((float)(e * 7 + i * 13)) * (e % 5 == 0 ? 3.0f : 0.1f);
        CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
        free(values);
    }
    return m;
}

static void unmake(made *m)
{
    fsdp_state_dict_free(m->state);
    fsdp_module_unref(m->model);
    fsdp_context_free(m->context);
}

static fsdp__gguf open_file(const char *path, fsdp__mapping *mapping)
{
    fsdp__gguf file;

    CHECK_OK(fsdp__file_map(path, mapping));
    CHECK_OK(fsdp__gguf_parse(path, mapping->data, mapping->bytes, &file));
    return file;
}

/* The largest difference of the file's tensors, relative to the largest number of each. */
static double difference(const made *a, const made *b)
{
    double worst = 0;

    CHECK_EQ(a->state->count, b->state->count);
    for (int64_t i = 0; i < a->state->count; i++) {
        int64_t numel = fsdp_tensor_numel(a->state->entries[i].tensor);
        float *x = malloc((size_t)numel * sizeof *x), *y = malloc((size_t)numel * sizeof *y);

        CHECK_OK(fsdp_tensor_read(a->state->entries[i].tensor, FSDP_F32, x));
        CHECK_OK(fsdp_tensor_read(b->state->entries[i].tensor, FSDP_F32, y));
        for (int64_t e = 0; e < numel; e++)
            worst = fmax(worst, (double)fabsf(x[e] - y[e]) / 3);
        free(x);
        free(y);
    }
    return worst;
}

static float *logits_of(const made *m, int64_t numel)
{
    int32_t ids[24];
    fsdp_tensor *tokens = NULL, *logits;
    float *out = malloc((size_t)numel * sizeof *out);

    for (int i = 0; i < 24; i++)
        ids[i] = i * i % 70;
    CHECK_OK(fsdp_tensor_create(test_device(m->context), FSDP_I32, FSDP_SHAPE(1, 24), FSDP_MEMORY_WORKSPACE, &tokens));
    CHECK_OK(fsdp_tensor_write(tokens, FSDP_I32, ids));
    logits = CHECK_PTR(fsdp_call(m->model, tokens));
    CHECK_EQ(fsdp_tensor_numel(logits), numel);
    CHECK_OK(fsdp_tensor_read(logits, FSDP_F32, out));
    fsdp_tensor_unref(tokens);
    return out;
}

/* The largest difference of logits, relative to the largest logit. */
static double difference_of_logits(const made *a, const made *b)
{
    enum {
        NUMEL = 24 * 70
    };
    float *x = logits_of(a, NUMEL), *y = logits_of(b, NUMEL);
    double worst = 0, largest = 0;

    for (int i = 0; i < NUMEL; i++) {
        worst = fmax(worst, (double)fabsf(x[i] - y[i]));
        largest = fmax(largest, (double)fabsf(x[i]));
    }
    free(x);
    free(y);
    return worst / largest;
}

/* What was read is written as it was. */
static void check_same_again(const char *path, const fsdp__gguf_model *model)
{
    size_t bytes, again_bytes;
    char *directory = test_directory(), *other = test_path(directory, "again.gguf");
    char *file = test_read_file(path, &bytes), *again;

    CHECK_OK(fsdp__gguf_save(other, model));
    again = test_read_file(other, &again_bytes);
    CHECK_EQ(bytes, again_bytes);
    CHECK_BYTES(again, file, bytes);
    test_directory_free(directory);
}

static void check_round_trip(const variant *v, fsdp__gguf_type type, double most)
{
    char *directory = test_directory(), *path = test_path(directory, "model.gguf");
    fsdp_model_config config = config_of(v), read;
    bool gemma = v->architecture == FSDP_GEMMA2 || v->architecture == FSDP_GEMMA3;
    made a = make(&config), b;
    const fsdp__gguf_model model = {.state = a.state, .config = &config, .name = v->name, .type = type};
    fsdp__mapping mapping;
    fsdp__gguf file;

    CHECK_OK(fsdp__gguf_save(path, &model));
    CHECK_EQ(fsdp__gguf_save(path, &model), FSDP_IO);
    CHECK_CONTAINS(fsdp_last_error(), "exists already");
    file = open_file(path, &mapping);
    CHECK_OK(fsdp__gguf_config(&file, &read));
    if (v->architecture == FSDP_MISTRAL) /* it is a Llama there */
        config.architecture = FSDP_LLAMA;
    config.has_bos_token = false, config.bos_token = 0; /* no tokenizer says them */
    config.eos_token_count = 0, config.eos_tokens[0] = 0;
    CHECK(memcmp(&config, &read, sizeof config) == 0);
    b = make(&read);
    for (int64_t i = 0; i < b.state->count; i++)
        CHECK_OK(fsdp_tensor_fill_(b.state->entries[i].tensor, 9));
    CHECK_OK(fsdp__gguf_load(&file, &read, b.state));
    CHECK(difference(&a, &b) <= fmax(most, gemma ? 0x1p-24 : 0)); /* of norms 1 more is written */
    if (type == FSDP__GGUF_F32)
        CHECK(difference_of_logits(&a, &b) == 0);
    check_same_again(path, &(fsdp__gguf_model){.state = b.state, .config = &read, .name = v->name, .type = type});
    CHECK((fsdp__gguf_find_tensor(&file, "output.weight") == NULL) == v->tied);
    fsdp__gguf_release(&file);
    fsdp__file_unmap(&mapping);
    unmake(&a);
    unmake(&b);
    test_directory_free(directory);
}

TEST(what_is_written_is_read_back)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(variants); i++) {
        check_round_trip(&variants[i], FSDP__GGUF_F32, 0);
        check_round_trip(&variants[i], FSDP__GGUF_F16, 0x1p-11);
        check_round_trip(&variants[i], FSDP__GGUF_BF16, 0x1p-8);
        check_round_trip(&variants[i], FSDP__GGUF_Q8_0, 1.0 / 200);
    }
}

/* In a head the file has a row of the first half, then its partner of the second half. */
TEST(rows_of_query_lie_in_pairs)
{
    const variant *v = &variants[1];
    char *directory = test_directory(), *path = test_path(directory, "model.gguf");
    fsdp_model_config config = config_of(v);
    made a = make(&config);
    const fsdp__gguf_model model = {.state = a.state, .config = &config, .name = "x"};
    fsdp_tensor *q = CHECK_PTR(fsdp_module_parameter(a.model, "model.layers.1.self_attn.q_proj.weight"));
    float own[64 * 64];
    fsdp__mapping mapping;
    const fsdp__gguf_tensor *t;
    fsdp__gguf file;

    CHECK_OK(fsdp__gguf_save(path, &model));
    file = open_file(path, &mapping);
    t = CHECK_PTR(fsdp__gguf_find_tensor(&file, "blk.1.attn_q.weight"));
    CHECK_OK(fsdp_tensor_read(q, FSDP_F32, own));
    CHECK(memcmp(t->data + 16 * 256, own + 16 * 64, 256) == 0); /* row 0 of head 1 */
    CHECK(memcmp(t->data + 17 * 256, own + 24 * 64, 256) == 0); /* its partner, row 8 */
    CHECK(memcmp(t->data + 18 * 256, own + 17 * 64, 256) == 0);
    fsdp__gguf_release(&file);
    fsdp__file_unmap(&mapping);
    unmake(&a);
}

/* ---- files that are not right ---- */

/* Cuts a file at each byte, and changes each byte of its header. */
TEST(no_part_of_a_file_is_taken_for_all)
{
    const int64_t shape[] = {2, 32};
    fsdp__gguf_header h;
    uint64_t offset;
    size_t all;
    unsigned char *copy;
    fsdp__gguf file;

    fsdp__gguf_header_begin(&h);
    fsdp__gguf_put_text(&h, "general.architecture", "llama");
    fsdp__gguf_put_array(&h, "list", FSDP__GGUF_TEXT, 2);
    fsdp__gguf_add_text(&h, "one", 3);
    fsdp__gguf_add_text(&h, "", 0);
    fsdp__gguf_add_tensor(&h, "x", 2, shape, FSDP__GGUF_Q8_0, &offset);
    CHECK_OK(fsdp__gguf_header_finish(&h));
    all = (size_t)h.bytes + 68;
    copy = calloc(all, 1);
    for (size_t cut = 0; cut < all; cut++) {
        memcpy(copy, h.data, (size_t)h.bytes);
        CHECK(fsdp__gguf_parse("x", copy, cut, &file) != FSDP_OK);
    }
    for (size_t at = 0; at < (size_t)h.bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, h.data, (size_t)h.bytes);
            copy[at] = (unsigned char)(copy[at] ^ 1 << bit);
            if (fsdp__gguf_parse("x", copy, all, &file) == FSDP_OK)
                fsdp__gguf_release(&file);
        }
    memcpy(copy, h.data, (size_t)h.bytes);
    CHECK_OK(fsdp__gguf_parse("x", copy, all, &file));
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
    free(copy);
}

static void check_refused(void (*spoil)(fsdp__gguf_header *), const char *says)
{
    fsdp_model_config config;
    fsdp__gguf_header h;
    fsdp__gguf file;

    fsdp__gguf_header_begin(&h);
    spoil(&h);
    CHECK_OK(fsdp__gguf_header_finish(&h));
    if (fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file) == FSDP_OK) {
        CHECK(fsdp__gguf_config(&file, &config) != FSDP_OK);
        fsdp__gguf_release(&file);
    }
    CHECK_CONTAINS(fsdp_last_error(), says);
    fsdp__gguf_header_release(&h);
}

static void twice(fsdp__gguf_header *h)
{
    fsdp__gguf_put_real(h, "a", 1);
    fsdp__gguf_put_real(h, "a", 1);
}

static void other_model(fsdp__gguf_header *h)
{
    fsdp__gguf_put_text(h, "general.architecture", "mamba");
}

static void number_as_name(fsdp__gguf_header *h)
{
    fsdp__gguf_put_real(h, "general.architecture", 1);
}

static void no_table(fsdp__gguf_header *h)
{
    fsdp__gguf_put_text(h, "general.architecture", "llama");
}

static void beyond_the_end(fsdp__gguf_header *h)
{
    uint64_t offset;

    fsdp__gguf_add_tensor(h, "x", 1, &(const int64_t){5}, FSDP__GGUF_F32, &offset);
}

TEST(what_is_wrong_with_a_file_is_said)
{
    check_refused(twice, "bad GGUF file 'x.gguf': key 'a' is given twice");
    check_refused(other_model, "architecture 'mamba': gpt2, llama, qwen2");
    check_refused(number_as_name, "'x.gguf': key 'general.architecture' is no text");
    check_refused(no_table, "has no matrix token_embd.weight");
    check_refused(beyond_the_end, "it ends before the end of tensor 'x'");
}

static void check_unsupported(const fsdp_model_config *config, const char *says)
{
    const fsdp_state_dict none = {.count = 0};
    const fsdp__gguf_model model = {.state = &none, .config = config, .name = "x"};

    CHECK_EQ(fsdp__gguf_save("/nowhere/x.gguf", &model), FSDP_UNSUPPORTED);
    CHECK_CONTAINS(fsdp_last_error(), says);
}

TEST(what_llama_cpp_would_compute_otherwise_is_not_written)
{
    fsdp_model_config config = config_of(&variants[3]);

    config.window = 8, config.local_layers[0] = 1;
    check_unsupported(&config, "a Mistral with local layers (sliding_window) cannot be written as GGUF (layer 0)");
    config.window = 0, config.rope_type = FSDP_ROPE_YARN;
    check_unsupported(&config, "dynamic or yarn rotary positions");
    config.rope_type = FSDP_ROPE_LONGROPE;
    check_unsupported(&config, "a Mistral with longrope rotary positions");
    config = config_of(&variants[7]);
    config.no_rope_layers[0] = 4;
    check_unsupported(&config, "a SmolLM3 with no_rope_layers other than every fourth");
    check_unsupported(&config, "(layer 2)");
    config = config_of(&variants[5]);
    config.attention_bias = true;
    check_unsupported(&config, "a Qwen3 with biases of attention");
    config.attention_bias = false, config.rope_type = FSDP_ROPE_LLAMA3;
    check_unsupported(&config, "a Qwen3 with llama3 rotary positions");
    config = config_of(&variants[0]);
    config.gelu_erf = true;
    check_unsupported(&config, "the erf form of GELU");
}

TEST(gemma_and_phi3_that_llama_cpp_does_not_know_are_not_written)
{
    fsdp_model_config config = config_of(&variants[8]);

    config.local_layers[0] = 14;
    check_unsupported(&config, "a Phi3 with layer_types that differ");
    config = config_of(&variants[8]);
    config.head_dim = 32;
    check_unsupported(&config, "heads that are not as wide as the model together");
    config = config_of(&variants[10]);
    config.local_layers[0] = 10;
    check_unsupported(&config, "a Gemma2 with layer_types other than the usual cannot be written as GGUF (layer 0)");
    config = config_of(&variants[10]);
    config.logits_softcap = 0;
    check_unsupported(&config, "final_logit_softcapping of null");
    config = config_of(&variants[10]);
    config.tie_word_embeddings = false;
    check_unsupported(&config, "a Gemma2 with a head of its own");
    config.n_layers = 46; /* a 27B model, whose scores are scaled by dim / n_heads: here 16, too */
    config.query_scalar = 24;
    check_unsupported(&config, "another query_pre_attn_scalar");
    config = config_of(&variants[11]);
    config.attention_softcap = 50;
    check_unsupported(&config, "a Gemma3 with soft caps");
    config = config_of(&variants[11]);
    config.local_rope_theta = 500000;
    check_unsupported(&config, "another rope_theta of local layers");
    config = config_of(&variants[11]);
    config.window = 0;
    check_unsupported(&config, "layer_types other than the usual");
}

/* ---- the package gguf ---- */

TEST(the_package_gguf_reads_the_same_numbers)
{
    static const fsdp__gguf_type types[] = {FSDP__GGUF_F32, FSDP__GGUF_F16, FSDP__GGUF_BF16, FSDP__GGUF_Q8_0};
    const char *python = getenv("FSDP_GGUF_PYTHON");
    char *directory, command[2048];

    if (!python || !*python)
        skip(); /* a python with the package gguf */
    directory = test_directory();
    for (size_t i = 0; i < FSDP__COUNT_OF(variants) * FSDP__COUNT_OF(types); i++) {
        const variant *v = &variants[i / FSDP__COUNT_OF(types)];
        char *path = test_path(directory, "model.gguf"), *folder = test_path(directory, "folder");
        fsdp_model_config config = config_of(v);
        made a = make(&config);
        const fsdp__gguf_model model = {.state = a.state, .config = &config, .name = v->name, .type = types[i % 4]};

        remove(path);
        CHECK_OK(fsdp__gguf_save(path, &model));
        CHECK_OK(fsdp_hub_save(folder, a.state, &config, FSDP_F32, fsdp_world(a.context)));
        snprintf(command, sizeof command, "'%s' '%s/tests/hub/check_gguf.py' '%s' '%s'", python, TEST_SOURCE_DIR, path,
                 folder);
        CHECK_EQ(system(command), 0);
        unmake(&a);
    }
}
