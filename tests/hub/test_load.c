/* Parameters from folders: names, dtypes, rows of a rank, and what a folder that does not fit is told. */
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
    free(path);
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

static void every_rank_reads_its_rows_in_any_dtype_and_alignment(void **state)
{
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2}};

    (void)state;
    for (int padding = 0; padding < 4; padding++) {
        make_file(folder, full_names, 3, padding);
        for (int world = 1; world <= 8; world += world == 4 ? 4 : 1)
            test_run_ranks(world, load_rows, &f);
    }
    test_directory_free(folder);
}

static void names_without_prefix_masks_and_a_tied_head_are_known(void **state)
{
    static const made tensors[] = {
        {"wte.weight", "F32", 7, 3, 10},          {"h.0.attn.c_attn.bias", "F32", 1, 0, 3},
        {"h.0.ln_1.weight", "F32", 5, 0, 40},     {"h.0.attn.bias", "F32", 4, 4, 0},
        {"h.0.attn.masked_bias", "F32", 1, 0, 0}, {"lm_head.weight", "F32", 7, 3, 10},
    };
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2, .tie_word_embeddings = true}};

    (void)state;
    make_file(folder, tensors, 6, 0);
    test_run_ranks(3, load_rows, &f);
    test_directory_free(folder);
}

static void a_tied_pair_may_be_stored_as_the_head(void **state)
{
    made tensors[] = {full_names[0], full_names[1], full_names[2]};
    char *folder = test_directory();
    fixture f = {.folder = folder, .config = {.architecture = FSDP_GPT2, .tie_word_embeddings = true}};

    (void)state;
    tensors[0].name = "lm_head.weight";
    make_file(folder, tensors, 3, 0);
    test_run_ranks(2, load_rows, &f);
    test_directory_free(folder);
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

static void a_folder_that_does_not_fit_is_refused_before_anything_changes(void **state)
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
        {{{"model.embed_tokens.weight", "I32", 7, 3, 0}}, 1, false, "is int32: float32, bfloat16 or float16 is needed"},
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

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_ERROR(load_one(cases[i].tensors, cases[i].count, cases[i].tied, &value), FSDP_FORMAT, cases[i].part);
        CHECK(value == -1);
    }
}

static void rotary_frequencies_and_an_equal_tied_head_are_ignored(void **state)
{
    static const made tensors[] = {
        {"model.embed_tokens.weight", "F32", 7, 3, 5},
        {"lm_head.weight", "F32", 7, 3, 5},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, 0, 0},
    };
    float value = 0;

    (void)state;
    CHECK_OK(load_one(tensors, 3, true, &value));
    CHECK(value == 5);
}

static void a_model_without_bytes_cannot_be_loaded(void **state)
{
    fsdp_context *context = test_context();
    fsdp_model_config config;
    fsdp_state_dict *parameters = NULL;
    fsdp_module *model;

    (void)state;
    CHECK_OK(fsdp_hub_read_config(TEST_SOURCE_DIR "/tests/reference/models/tiny-gpt2", &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &parameters));
    CHECK_ERROR(fsdp_hub_load(TEST_SOURCE_DIR "/tests/reference/models/tiny-gpt2", parameters, &config), FSDP_STATE,
                "into what is still on the meta device: 'transformer.wte.weight', 'transformer.wpe.weight', ");
    CHECK_ERROR(fsdp_hub_load(NULL, parameters, &config), FSDP_INVALID, "required");
    fsdp_state_dict_free(parameters);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

/* A config.json may promise anything: no memory is taken for what no file holds. */
static void a_folder_is_checked_by_its_headers_alone(void **state)
{
    static const char *const folders[] = {"tiny-gpt2", "tiny-llama", "tiny-llama-tied-st"};
    fsdp_context *context = test_context();
    fsdp_model_config config, wrong;
    char folder[300];

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(folder, sizeof folder, TEST_SOURCE_DIR "/tests/reference/models/%s", folders[i]);
        CHECK_OK(fsdp_hub_read_config(folder, &config));
        CHECK_OK(fsdp_hub_check(context, folder, &config));
    }
    wrong = config;
    wrong.dim = 1 << 20;
    wrong.n_layers = 1 << 14;
    CHECK_ERROR(fsdp_hub_check(context, folder, &wrong), FSDP_FORMAT,
                "its files hold 53760 elements, but a model of the config's sizes has");
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
    fsdp_context_free(context);
}

TEST_MAIN(cmocka_unit_test(a_folder_is_checked_by_its_headers_alone),
          cmocka_unit_test(every_rank_reads_its_rows_in_any_dtype_and_alignment),
          cmocka_unit_test(names_without_prefix_masks_and_a_tied_head_are_known),
          cmocka_unit_test(a_tied_pair_may_be_stored_as_the_head),
          cmocka_unit_test(a_folder_that_does_not_fit_is_refused_before_anything_changes),
          cmocka_unit_test(rotary_frequencies_and_an_equal_tied_head_are_ignored),
          cmocka_unit_test(a_model_without_bytes_cannot_be_loaded))
