/* Parameters from folders: names, dtypes, rows of a rank, and what a folder that does not fit is told. */
#include <unistd.h>

#include "fsdp/hub.h"
#include "support/ranks.h"

/* One tensor of a file to be made; its elements are 0, 1, 2, ... plus `first`. */
typedef struct made {
    const char *name, *dtype;
    int64_t rows, columns; /* columns 0: one dimension */
    int first;
} made;

static uint16_t bf16_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t f16_bits(int value) /* small non-negative integers */
{
    int exponent = 0;

    if (value == 0)
        return 0;
    while (value >> (exponent + 1))
        exponent++;
    return (uint16_t)((exponent + 15) << 10 | (value - (1 << exponent)) << (10 - exponent));
}

static size_t put_element(unsigned char *to, const char *dtype, int value)
{
    float f32 = (float)value;
    uint16_t half = strcmp(dtype, "BF16") == 0 ? bf16_bits(f32) : f16_bits(value);

    if (strcmp(dtype, "F32") == 0)
        memcpy(to, &f32, 4);
    else if (strcmp(dtype, "I32") == 0)
        memcpy(to, &value, 4);
    else
        memcpy(to, &half, 2);
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4 : 2;
}

/* model.safetensors of the folder. `padding`: spaces after the header, to put the data at odd addresses. */
static void make_file(const char *folder, const made *tensors, int count, int padding)
{
    static unsigned char data[4096];
    char *path = test_path(folder, "model.safetensors"), header[4096] = "{", *end = header + 1;
    unsigned char *file;
    size_t bytes = 0, length;

    for (int i = 0; i < count; i++) {
        int64_t numel = tensors[i].rows * (tensors[i].columns ? tensors[i].columns : 1);
        size_t begin = bytes;

        for (int64_t at = 0; at < numel; at++)
            bytes += put_element(data + bytes, tensors[i].dtype, tensors[i].first + (int)at);
        end += sprintf(end, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", i ? "," : "", tensors[i].name,
                       tensors[i].dtype, (long long)tensors[i].rows);
        if (tensors[i].columns)
            end += sprintf(end, ",%lld", (long long)tensors[i].columns);
        end += sprintf(end, "],\"data_offsets\":[%zu,%zu]}", begin, bytes);
    }
    end += sprintf(end, "}%*s", padding, "");
    length = (size_t)(end - header);
    file = calloc(1, 8 + length + bytes);
    file[0] = (unsigned char)length;
    file[1] = (unsigned char)(length >> 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, data, bytes);
    test_write_file(path, file, 8 + length + bytes);
    free(file);
}

/* Adds a parameter of zeros; on a mesh of several ranks it is sharded by rows. */
static void add_parameter(fsdp_state_dict *state, fsdp_mesh *mesh, const char *name, int64_t rows, int64_t columns)
{
    fsdp_context *context = fsdp_mesh_context(mesh);
    fsdp_placement by_rows = {.kind = FSDP_SHARD, .dim = 0};
    int64_t shape[2] = {rows, columns};
    fsdp_tensor *whole = NULL, *local = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, columns ? 2 : 1, shape, FSDP_MEMORY_PARAMETER_SHARD,
                                &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, -1));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &by_rows, &local));
    CHECK_OK(fsdp_state_dict_add(state, name, local));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
}

/* What the entry holds must be elements of 0, 1, 2, ... plus `first`. */
static void check_values(const fsdp_state_dict *state, const char *name, int first)
{
    const fsdp_state_dict_entry *entry = CHECK_PTR(fsdp_state_dict_find(state, name));
    int64_t columns = entry->ndim == 2 ? entry->size[1] : 1, numel = fsdp_tensor_numel(entry->tensor);
    float values[256];

    CHECK(numel <= 256);
    CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_F32, values));
    for (int64_t i = 0; i < numel; i++)
        if (values[i] != (float)(first + entry->offset[0] * columns + i))
            TEST_FAIL("'%s': element %lld of %lld is %g", name, (long long)i, (long long)numel, (double)values[i]);
}

typedef struct fixture {
    const char *folder;
    fsdp_model_config config;
} fixture;

static void load_rows(fsdp_context *context, void *arg)
{
    const fixture *f = arg;
    int64_t world = fsdp_context_world_size(context);
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    add_parameter(state, mesh, "transformer.wte.weight", 7, 3);
    add_parameter(state, mesh, "transformer.h.0.ln_1.weight", 5, 0);
    add_parameter(state, mesh, "transformer.h.0.attn.c_attn.bias", 1, 0);
    CHECK_OK(fsdp_agree(fsdp_world(context), fsdp_hub_load(f->folder, state, &f->config)));
    check_values(state, "transformer.wte.weight", 10);
    check_values(state, "transformer.h.0.ln_1.weight", 40);
    check_values(state, "transformer.h.0.attn.c_attn.bias", 3);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

static const made full_names[] = {
    {"transformer.wte.weight", "F32", 7, 3, 10},
    {"transformer.h.0.attn.c_attn.bias", "BF16", 1, 0, 3},
    {"transformer.h.0.ln_1.weight", "F16", 5, 0, 40},
};

TEST(every_rank_reads_its_rows_in_any_dtype_and_alignment)
{
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2}};

    for (int padding = 0; padding < 4; padding++) {
        make_file(folder, full_names, 3, padding);
        for (int world = 1; world <= 8; world += world == 4 ? 4 : 1)
            test_run_ranks(world, load_rows, &f);
    }
}

TEST(names_without_prefix_masks_and_a_tied_head_are_known)
{
    static const made tensors[] = {
        {"wte.weight", "F32", 7, 3, 10},          {"h.0.attn.c_attn.bias", "F32", 1, 0, 3},
        {"h.0.ln_1.weight", "F32", 5, 0, 40},     {"h.0.attn.bias", "F32", 4, 4, 0},
        {"h.0.attn.masked_bias", "F32", 1, 0, 0}, {"lm_head.weight", "F32", 7, 3, 10},
    };
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2, .tie_word_embeddings = true}};

    make_file(folder, tensors, 6, 0);
    test_run_ranks(3, load_rows, &f);
}

TEST(a_tied_pair_may_be_stored_as_the_head)
{
    made tensors[] = {full_names[0], full_names[1], full_names[2]};
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2, .tie_word_embeddings = true}};

    tensors[0].name = "lm_head.weight";
    make_file(folder, tensors, 3, 0);
    test_run_ranks(2, load_rows, &f);
}

/* Loads one parameter "model.embed_tokens.weight" (7,3) of a Llama from the tensors. */
static fsdp_status load_one(const made *tensors, int count, bool tied, float *first_value)
{
    char *folder = test_directory();
    fsdp_context *context = test_context();
    fsdp_model_config config = {.architecture = FSDP_LLAMA, .tie_word_embeddings = tied};
    int64_t world = 1;
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_status status;
    float values[21];

    make_file(folder, tensors, count, 0);
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    add_parameter(state, mesh, "model.embed_tokens.weight", 7, 3);
    status = fsdp_hub_load(folder, state, &config);
    CHECK_OK(fsdp_tensor_read(state->entries[0].tensor, FSDP_F32, values));
    *first_value = values[0];
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
    test_directory_free(folder);
    return status;
}

TEST(a_folder_that_does_not_fit_is_refused_before_anything_changes)
{
    static const struct {
        made tensors[2];
        int count;
        bool tied;
        const char *part;
    } cases[] = {
        {{{"model.norm.weight", "F32", 7, 3, 0}}, 1, false, "no file holds tensor 'model.embed_tokens.weight'"},
        {{{"model.embed_tokens.weight", "F32", 3, 7, 0}},
         1,
         false,
         "tensor 'model.embed_tokens.weight' has shape (3, 7), but the model's has (7, 3)"},
        {{{"model.embed_tokens.weight", "F32", 21, 0, 0}}, 1, false, "has shape (21,), but"},
        {{{"model.embed_tokens.weight", "I32", 7, 3, 0}},
         1,
         false,
         "is int32, but float32, bfloat16 or float16 is needed"},
        {{{"model.embed_tokens.weight", "F32", 7, 3, 0}, {"model.extra", "F32", 1, 0, 0}},
         2,
         false,
         "tensor 'model.extra' belongs to no parameter"},
        {{{"model.embed_tokens.weight", "F32", 7, 3, 0}, {"lm_head.weight", "F32", 7, 3, 0}},
         2,
         false,
         "tensor 'lm_head.weight' belongs to no parameter"},
        {{{"model.embed_tokens.weight", "F32", 7, 3, 0}, {"lm_head.weight", "F32", 7, 3, 1}},
         2,
         true,
         "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', but config.json ties them"},
        {{{"model.embed_tokens.weight", "F32", 7, 3, 0}, {"lm_head.weight", "BF16", 7, 3, 0}},
         2,
         true,
         "another shape or dtype"},
        {{{"model.embed_tokens.weight", "F32", 7, 3, 0}, {"embed_tokens.weight", "F32", 7, 3, 0}},
         2,
         false,
         "tensor 'embed_tokens.weight' belongs to no parameter"},
    };
    float value = 0;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_ERROR(load_one(cases[i].tensors, cases[i].count, cases[i].tied, &value), FSDP_FORMAT, cases[i].part);
        CHECK(value == -1);
    }
}

TEST(rotary_frequencies_and_an_equal_tied_head_are_ignored)
{
    static const made tensors[] = {
        {"model.embed_tokens.weight", "F32", 7, 3, 5},
        {"lm_head.weight", "F32", 7, 3, 5},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, 0, 0},
    };
    float value = 0;

    CHECK_OK(load_one(tensors, 3, true, &value));
    CHECK(value == 5);
}

CONTEXT_TEST(a_model_without_bytes_cannot_be_loaded)
{
    fsdp_model_config config;
    fsdp_state_dict *parameters = NULL;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(TEST_SOURCE_DIR "/tests/reference/models/tiny-gpt2", &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &parameters));
    CHECK_ERROR(fsdp_hub_load(TEST_SOURCE_DIR "/tests/reference/models/tiny-gpt2", parameters, &config), FSDP_STATE,
                "into what is still on the meta device: 'transformer.wte.weight', 'transformer.wpe.weight', ");
    CHECK_ERROR(fsdp_hub_load(NULL, parameters, &config), FSDP_INVALID, "required");
    fsdp_state_dict_free(parameters);
    fsdp_module_unref(model);
}

/* ---- the usual causes ---- */

/* What is other in the files, and in the config, than in those of a Llama. */
typedef struct odd_model {
    const char *without, *prefix, *extra; /* part of the names that are not there; before all; one more name */
    const char *dtype;                    /* of the extra one; NULL: F32 */
    int64_t rows;                         /* of embedding and head */
    void (*ask)(fsdp_model_config *config);
    const char *part; /* of what is said */
} odd_model;

static void ask_layers(fsdp_model_config *config)
{
    config->n_layers = 1 << 14;
}

static void ask_fewer_layers(fsdp_model_config *config)
{
    config->n_layers--;
}

static void ask_size(fsdp_model_config *config)
{
    config->ffn_dim *= 2;
}

static void ask_gpt2(fsdp_model_config *config)
{
    config->architecture = FSDP_GPT2;
    config->n_kv_heads = config->n_heads;
    config->head_dim = config->dim / config->n_heads;
}

static void ask_qwen2(fsdp_model_config *config)
{
    config->architecture = FSDP_QWEN2;
}

static void add_tensor(FILE *header, const char *name, const char *dtype, int ndim, const int64_t *shape, size_t *at)
{
    size_t bytes = strcmp(dtype, "F8_E4M3") == 0 ? 1 : strcmp(dtype, "F64") == 0 ? 8 : 4;

    fprintf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", *at ? "," : "", name, dtype);
    for (int d = 0; d < ndim; d++) {
        fprintf(header, "%s%lld", d ? "," : "", (long long)shape[d]);
        bytes *= (size_t)shape[d];
    }
    fprintf(header, "],\"data_offsets\":[%zu,%zu]}", *at, *at + bytes);
    *at += bytes;
}

/* model.safetensors with zeros, of the parameters and what is other with them. */
static void make_odd(const char *folder, const fsdp_state_dict *parameters, const odd_model *odd)
{
    char *path = test_path(folder, "model.safetensors"), *text = NULL, name[200];
    size_t length = 0, at = 0;
    FILE *header = CHECK_PTR(open_memstream(&text, &length)), *file;

    fputs("{", header);
    for (int64_t i = 0; i < parameters->count; i++) {
        const fsdp_state_dict_entry *e = &parameters->entries[i];
        bool resized = odd->rows && (strstr(e->name, "embed") || strstr(e->name, "lm_head"));
        int64_t shape[FSDP_MAX_DIMS];

        if (odd->without && strstr(e->name, odd->without))
            continue;
        memcpy(shape, e->global_shape, sizeof shape);
        shape[0] = resized ? odd->rows : shape[0];
        snprintf(name, sizeof name, "%s%s", odd->prefix ? odd->prefix : "", e->name);
        add_tensor(header, name, "F32", e->ndim, shape, &at);
    }
    if (odd->extra)
        add_tensor(header, odd->extra, odd->dtype ? odd->dtype : "F32", 1, (const int64_t[]){64}, &at);
    fputs("}", header);
    CHECK_EQ(fclose(header), 0);
    file = CHECK_PTR(fopen(path, "w"));
    for (int i = 0; i < 8; i++)
        putc((int)(length >> (8 * i) & 0xff), file);
    CHECK_EQ(fwrite(text, 1, length, file), length);
    CHECK_EQ(fclose(file), 0);
    CHECK_EQ(truncate(path, (off_t)(8 + length + at)), 0);
    free(text);
}

static const odd_model odd_models[] = {
    {.part = NULL},
    {.without = "lm_head",
     .part = "no file holds tensor 'lm_head.weight': if the embedding is also the head, config.json has to say "
             "tie_word_embeddings true"},
    {.rows = 60,
     .part = "tensor 'model.embed_tokens.weight' has shape (60, 64), but the model's has (259, 64), and 1 more have "
             "other shapes: config.json says vocab_size 259: if the vocabulary was resized to 60, it"},
    {.ask = ask_layers, .part = "no file holds tensors 'model.layers.3.self_attn.q_proj.weight', "},
    {.ask = ask_layers, .part = "and 6 more: config.json says num_hidden_layers 16384, but there are 3 layers"},
    {.ask = ask_fewer_layers,
     .part = "and 6 more belong to no parameter of the model: config.json says "
             "num_hidden_layers 2, but there are 3 layers"},
    {.ask = ask_size,
     .part = "mlp.gate_proj.weight' has shape (172, 64), but the model's has (344, 64), and 8 more have other shapes: "
             "config.json is that of a model with other sizes"},
    {.ask = ask_gpt2, .part = "another architecture: Llama or its like (model_type llama, mistral or qwen2)"},
    {.ask = ask_qwen2, .part = "a Qwen2 has these biases; without them it may be a llama or mistral"},
    {.extra = "model.layers.0.self_attn.q_proj.bias", .part = "or of a Llama whose config.json has attention_bias"},
    {.without = "layers", .extra = "transformer.h.0.ln_1.weight", .part = "architecture: GPT-2 (model_type gpt2)"},
    {.without = ".1.mlp.up", .extra = "model.layers.1.mlp.up_proj.qweight", .part = "these weights are quantized"},
    {.without = "model.norm.weight",
     .extra = "model.norm.weight",
     .dtype = "F8_E4M3",
     .part = "tensor 'model.norm.weight' is F8_E4M3, but float32, bfloat16 or float16 is needed; quantized"},
    {.extra = "model.layers.0.mlp.up_proj.lora_A.weight",
     .part = "weights of an adapter (LoRA): name its model, and its folder"},
    {.prefix = "module.", .part = "begin with what a wrapper puts before them"},
    {.prefix = "_orig_mod.", .part = "what torch.compile puts before them"},
    {.prefix = "another.", .part = "these are not the weights of a Llama, or they have other names"},
    {.extra = "model.layers.0.self_attn.q_norm.weight", .part = "(model_type qwen3, olmo2 or gemma3_text)"},
    {.extra = "model.layers.0.self_attn.rotary_emb.inv_freq", .dtype = "F64", .part = NULL}, /* nobody reads it */
    {.extra = "model.layers.99999999999999999999.x", .part = "belongs to no parameter"},
};

CONTEXT_TEST(what_does_not_fit_is_said_with_its_usual_cause)
{
    char *folder = test_directory();
    fsdp_model_config config, asked;
    fsdp_state_dict *parameters;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(TEST_SOURCE_DIR "/tests/reference/models/tiny-llama", &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &parameters));
    for (size_t i = 0; i < FSDP__COUNT_OF(odd_models); i++) {
        make_odd(folder, parameters, &odd_models[i]);
        asked = config;
        if (odd_models[i].ask)
            odd_models[i].ask(&asked);
        if (odd_models[i].part)
            CHECK_ERROR(fsdp_hub_check(context, folder, &asked), FSDP_FORMAT, odd_models[i].part);
        else
            CHECK_OK(fsdp_hub_check(context, folder, &asked));
    }
    fsdp_state_dict_free(parameters);
    fsdp_module_unref(model);
}

/* A config.json may promise anything: no memory is taken for what no file holds. */
CONTEXT_TEST(a_folder_is_checked_by_its_headers_alone)
{
    static const char *const folders[] = {"tiny-gpt2", "tiny-llama", "tiny-llama-tied-st"};
    fsdp_model_config config, wrong;
    char folder[300];

    for (int i = 0; i < 3; i++) {
        snprintf(folder, sizeof folder, TEST_SOURCE_DIR "/tests/reference/models/%s", folders[i]);
        CHECK_OK(fsdp_hub_read_config(folder, &config));
        CHECK_OK(fsdp_hub_check(context, folder, &config));
    }
    wrong = config;
    wrong.dim = 1 << 20;
    wrong.n_layers = 1 << 14;
    CHECK_ERROR(fsdp_hub_check(context, folder, &wrong), FSDP_FORMAT,
                "embed_tokens.weight' has shape (259, 48), but the model's has (259, 1048576), and ");
    wrong = config;
    wrong.vocab_size--;
    CHECK_ERROR(fsdp_hub_check(context, folder, &wrong), FSDP_FORMAT, "embed_tokens.weight' has shape");
    wrong = config;
    wrong.n_layers--;
    CHECK_ERROR(fsdp_hub_check(context, folder, &wrong), FSDP_FORMAT, "and 6 more belong to no parameter of the model");
    wrong.n_layers = 0;
    CHECK_ERROR(fsdp_hub_check(context, folder, &wrong), FSDP_INVALID, "n_layers is 0");
    CHECK_ERROR(fsdp_hub_check(context, NULL, &config), FSDP_INVALID, "required");
    CHECK_ERROR(fsdp_hub_check(context, "/nowhere", &config), FSDP_NOT_FOUND, "/nowhere");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_hub_check(context, folder, &config));
}
