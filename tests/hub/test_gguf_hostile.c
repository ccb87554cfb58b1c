/* Files of llama.cpp that somebody has cut or changed: every one of a small file's beginnings, and every bit of its
 * header changed, is one error that names the file, or a model that the file has; and claims that no file can keep. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "hub/gguf.h"
#include "support/models.h"
#include "support/test.h"

/* A tokenizer of four pieces. */
static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"normalizer\":{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
    "\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"ab\":3,\"aba\":4},\"merges\":[\"a b\",\"ab a\"]}}";

typedef struct small {
    char *directory;
    fsdp_context *context;
    char *data; /* of the file */
    size_t bytes, header_bytes;
} small;

static void make_file(small *s, const fsdp_model_config *config)
{
    char *path = test_path(s->directory, "x.gguf"), *json = test_path(s->directory, "tokenizer.json");
    fsdp_module *model = CHECK_PTR(fsdp_model_create(s->context, fsdp_cpu(s->context), config));
    fsdp_state_dict *state = NULL;
    fsdp__gguf file;

    test_write_file(json, tokenizer_json, sizeof tokenizer_json - 1);
    CHECK_OK(fsdp_module_initialize(model, 1));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp__gguf_save(
        path, &(fsdp__gguf_model){
                  .state = state, .config = config, .name = "x", .tokenizer = s->directory, .type = FSDP__GGUF_Q8_0}));
    s->data = test_read_file(path, &s->bytes);
    CHECK_OK(fsdp__gguf_parse("x", (unsigned char *)s->data, s->bytes, &file));
    s->header_bytes = s->bytes;
    for (int64_t i = 0; i < file.tensor_count; i++)
        s->header_bytes = FSDP__MIN(s->header_bytes, (size_t)file.tensors[i].offset);
    fsdp__gguf_release(&file);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
}

static small setup(void)
{
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = FSDP_GEMMA2, .n_layers = 2, .dim = 32, .n_heads = 2, .n_kv_heads = 1,
                     .head_dim = 16, .ffn_dim = 32, .vocab_size = 6, .max_seq_len = 16, .rope_theta = 10000,
                     .window = 4, .local_layers = {1}, .query_scalar = 16, .attention_softcap = 50,
                     .logits_softcap = 30, .tie_word_embeddings = true, .init_std = 0.02f);
    small s = {.directory = test_directory(), .context = test_context()};

    make_file(&s, &config);
    return s;
}

static void teardown(small *s)
{
    fsdp_context_free(s->context);
    test_directory_free(s->directory);
}

/* Does all that a conversion does before it takes memory for the model. */
static fsdp_status read_all(const small *s, const unsigned char *data, size_t bytes, bool with_model)
{
    FSDP__SCOPED(fsdp__gguf_release) fsdp__gguf file = {0};
    FSDP__FREED char *json = NULL, *settings = NULL;
    fsdp_module *model;
    fsdp_state_dict *state = NULL;
    fsdp_model_config config;
    fsdp_status status;

    FSDP_TRY(fsdp__gguf_parse("x", data, bytes, &file));
    FSDP_TRY(fsdp__gguf_config(&file, &config));
    FSDP_TRY(fsdp__gguf_tokenizer(&file, &json, &settings));
    if (!with_model)
        return FSDP_OK;
    model = CHECK_PTR(fsdp_model_create(s->context, fsdp_meta(s->context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    status = fsdp__gguf_check(&file, &config, state);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return status;
}

static void check_named(size_t at)
{
    if (!strstr(fsdp_last_error(), "'x'"))
        TEST_FAIL("byte %zu: the message does not name the file: %s", at, fsdp_last_error());
}

TEST(every_beginning_of_a_file_is_refused)
{
    small s = setup();

    for (size_t cut = 0; cut < s.bytes; cut++) {
        unsigned char *copy = malloc(cut > 0 ? cut : 1); /* so that a read beyond the end is seen */

        if (cut >= s.bytes - 32 && cut > s.header_bytes) { /* the last tensor's padding may be missing */
            free(copy);
            continue;
        }
        memcpy(copy, s.data, cut);
        CHECK(read_all(&s, copy, cut, false) != FSDP_OK);
        check_named(cut);
        free(copy);
    }
    teardown(&s);
}

TEST(every_changed_bit_is_refused_or_is_another_model)
{
    small s = setup();
    unsigned char *copy = malloc(s.bytes);
    int refused = 0, taken = 0;

    for (size_t bit = 0; bit < 8 * s.header_bytes; bit++) {
        memcpy(copy, s.data, s.bytes);
        copy[bit / 8] = (unsigned char)(copy[bit / 8] ^ 1 << bit % 8);
        if (read_all(&s, copy, s.bytes, bit % 5 == 0) == FSDP_OK) {
            taken++;
        } else {
            check_named(bit / 8);
            refused++;
        }
    }
    CHECK(refused > 1000 && taken > 1000);
    free(copy);
    teardown(&s);
}

/* ---- claims ---- */

typedef struct claim {
    const char *says;
    void (*put)(fsdp__gguf_header *h);
} claim;

static uint64_t ignored;

static void put_alignment(fsdp__gguf_header *h, int64_t alignment)
{
    fsdp__gguf_put_integer(h, "general.alignment", FSDP__GGUF_U32, alignment);
}

static void alignment_0(fsdp__gguf_header *h)
{
    put_alignment(h, 0);
}

static void alignment_3(fsdp__gguf_header *h)
{
    put_alignment(h, 3);
}

static void alignment_of_text(fsdp__gguf_header *h)
{
    fsdp__gguf_put_text(h, "general.alignment", "32");
}

static void no_rows(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 2, (const int64_t[]){0, 32}, FSDP__GGUF_F32, &ignored);
}

/* Adds a matrix that claims other sizes than the writer could count; its offset and type stand behind them. */
static void claim_sizes(fsdp__gguf_header *h, uint64_t columns, uint64_t rows)
{
    const uint64_t sizes[] = {columns, rows};

    fsdp__gguf_add_tensor(h, "t", 2, (const int64_t[]){1, 1}, FSDP__GGUF_F32, &ignored);
    memcpy(h->data + h->bytes - 12 - sizeof sizes, sizes, sizeof sizes);
}

static void huge(fsdp__gguf_header *h)
{
    claim_sizes(h, UINT64_MAX / 2, 3);
}

static void overflow(fsdp__gguf_header *h)
{
    claim_sizes(h, (uint64_t)1 << 40, (uint64_t)1 << 40);
}

static void dimensions(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 5, (const int64_t[]){1, 1, 1, 1, 1}, FSDP__GGUF_F32, &ignored);
}

static void same_names(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 1, (const int64_t[]){1}, FSDP__GGUF_F32, &ignored);
    fsdp__gguf_add_tensor(h, "t", 1, (const int64_t[]){1}, FSDP__GGUF_F32, &ignored);
}

static void overlap(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 1, (const int64_t[]){16}, FSDP__GGUF_F32, &ignored);
    h->data_bytes -= 32;
    fsdp__gguf_add_tensor(h, "u", 1, (const int64_t[]){8}, FSDP__GGUF_F32, &ignored);
}

static void rows_of_no_blocks(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 2, (const int64_t[]){32, 3}, FSDP__GGUF_Q8_0, &ignored);
}

static void other_type(fsdp__gguf_header *h)
{
    fsdp__gguf_add_tensor(h, "t", 1, (const int64_t[]){1}, (fsdp__gguf_type)12, &ignored);
}

static void long_array(fsdp__gguf_header *h)
{
    fsdp__gguf_put_array(h, "list", FSDP__GGUF_U64, UINT64_MAX / 8 + 1);
}

static void many_keys(fsdp__gguf_header *h)
{
    h->values = UINT64_MAX;
}

static void many_tensors(fsdp__gguf_header *h)
{
    h->tensors = UINT64_MAX / 2;
}

TEST(claims_that_no_file_can_keep_are_named)
{
    static const claim claims[] = {
        {"general.alignment is 0: expected a multiple of 8", alignment_0},
        {"general.alignment is 3: expected a multiple of 8", alignment_3},
        {"key 'general.alignment' is no whole number", alignment_of_text},
        {"a tensor's size is 0 or too large", no_rows},
        {"a tensor's size is 0 or too large", huge},
        {"a tensor's size is 0 or too large", overflow},
        {"a tensor has not 1 to 4 dimensions", dimensions},
        {"two tensors are called 't'", same_names},
        {"tensor 'u' is not aligned, or overlaps another", overlap},
        {"rows of tensor 't' are no blocks of 32", rows_of_no_blocks},
        {"tensor 't' is of type 12", other_type},
        {"an array is longer than the file", long_array},
        {"it claims more keys than it can hold", many_keys},
        {"it claims more tensors than it can hold", many_tensors},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(claims); i++) {
        unsigned char *all;
        fsdp__gguf_header h;
        fsdp__gguf file;

        fsdp__gguf_header_begin(&h);
        claims[i].put(&h);
        CHECK_OK(fsdp__gguf_header_finish(&h));
        all = calloc((size_t)h.bytes + 256, 1);
        memcpy(all, h.data, (size_t)h.bytes);
        CHECK(fsdp__gguf_parse("x", all, (size_t)h.bytes + 256, &file) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), claims[i].says);
        check_named(i);
        free(all);
        fsdp__gguf_header_release(&h);
    }
}
