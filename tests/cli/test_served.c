/* Every kind of folder that is written starts in the loaders of others: it has each file of their lists, and no file
 * that they would take for something else.
 *
 * transformers takes config.json, generation_config.json, model.safetensors or its index with all parts, and the
 * tokenizer's files. vLLM takes all *.safetensors, and of them those that the index names; of an adapter, r, lora_alpha
 * and target_modules, and a file with lora_A and lora_B alone; its tokenizer is the base's. llama.cpp's converter takes
 * model*.safetensors, whose tensors must be those of the index, the class in architectures, and the chat template of
 * tokenizer_config.json. */
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "base/text.h"
#include "cli/fixture.h"
#include "hub/hub.h"
#include "nn/module.h"

#define LLAMA REFERENCE "/models/tiny-llama"
#define TOKENS REFERENCE "/tokens.bin"

/* What a tokenizer may consist of, by the lists of the three. */
static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json",   "tokenizer.model",   "vocab.json",
    "merges.txt",     "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};

/* ---- a source with all of them ---- */

static void copy(const char *from, const char *folder, const char *name)
{
    char *path = test_path(folder, name);
    size_t bytes;
    char *data = test_read_file(from, &bytes);

    test_write_file(path, data, bytes);
}

static char *make_source(const fixture *f)
{
    char *source = test_path(f->directory, "source");

    SAYS(0, "model written to", "convert", LLAMA, source);
    copy(TEST_SOURCE_DIR "/tests/numbers/pieces/llama.json", source, "tokenizer.json");
    copy(TEST_SOURCE_DIR "/tests/numbers/pieces/bpe.model", source, "tokenizer.model");
    test_write_text(source, "tokenizer_config.json",
                    "{\"tokenizer_class\": \"LlamaTokenizer\", \"model_max_length\": 1000000000000000019884624838656,"
                    " \"chat_template\": \"{{ old }}\"}");
    test_write_text(source, "vocab.json", "{}");
    test_write_text(source, "merges.txt", "");
    test_write_text(source, "special_tokens_map.json", "{\"bos_token\": \"<s>\"}");
    test_write_text(source, "added_tokens.json", "{}");
    test_write_text(source, "chat_template.jinja", "{{ \"new\" }}\n");
    return source;
}

/* ---- what loaders look at ---- */

static bool has(const char *folder, const char *name)
{
    char *path = test_path(folder, name);
    FILE *file = fopen(path, "rb");

    if (file)
        fclose(file);
    return file;
}

static json_t *json_in(const char *folder, const char *name)
{
    char *path = test_path(folder, name);
    json_t *out = json_load_file(path, 0, NULL);

    if (!out)
        TEST_FAIL("'%s' is missing, or no JSON", path);
    return out;
}

/* Transformers refuses a file whose header does not say "pt". */
static json_t *header_of(const char *folder, const char *name)
{
    char *path = test_path(folder, name);
    size_t bytes;
    uint64_t length;
    char *data = test_read_file(path, &bytes);
    json_t *out;

    memcpy(&length, data, sizeof length);
    out = CHECK_PTR(json_loadb(data + 8, (size_t)length, 0, NULL));
    CHECK_STRING(json_string_value(json_object_get(json_object_get(out, "__metadata__"), "format")), "pt");
    json_object_del(out, "__metadata__");
    return out;
}

/* Returns the number of files of this ending; each must be in the object, unless that is NULL. */
static size_t count_files(const char *folder, const char *end, const json_t *listed)
{
    DIR *directory = CHECK_PTR(opendir(folder));
    size_t count = 0;

    for (struct dirent *e; (e = readdir(directory)) != NULL;) {
        if (!fsdp__ends_with(e->d_name, end))
            continue;
        count++;
        if (listed && !json_object_get(listed, e->d_name))
            TEST_FAIL("'%s/%s' is in no index", folder, e->d_name);
    }
    closedir(directory);
    return count;
}

/* The index names the files that are there, and their tensors, neither more nor fewer. */
static void check_index(const char *folder)
{
    json_t *index = json_in(folder, "model.safetensors.index.json"), *files = json_object(), *value, *header;
    json_t *map = CHECK_PTR(json_object_get(index, "weight_map"));
    const char *name;
    size_t tensors = 0;

    json_object_foreach(map, name, value) json_object_set_new(files, json_string_value(value), json_true());
    CHECK(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")) > 0);
    CHECK(json_object_size(files) > 1);
    CHECK_EQ(count_files(folder, ".safetensors", files), json_object_size(files));
    json_object_foreach(files, name, value)
    {
        CHECK(strncmp(name, "model", 5) == 0);
        header = header_of(folder, name);
        tensors += json_object_size(header);
        json_decref(header);
    }
    CHECK_EQ(tensors, json_object_size(map));
    json_decref(files);
    json_decref(index);
}

static void check_weights(const char *folder)
{
    if (has(folder, "model.safetensors")) {
        CHECK(!has(folder, "model.safetensors.index.json"));
        CHECK_EQ(count_files(folder, ".safetensors", NULL), 1);
        json_decref(header_of(folder, "model.safetensors"));
    } else {
        check_index(folder);
    }
    CHECK_EQ(count_files(folder, ".bin", NULL) + count_files(folder, ".pt", NULL), 0);
}

static void check_tokenizer(const char *folder)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(tokenizer_files); i++)
        if (!has(folder, tokenizer_files[i]))
            TEST_FAIL("'%s' has no %s", folder, tokenizer_files[i]);
}

static void check_one_template(const char *folder)
{
    char *path = test_path(folder, "tokenizer_config.json");
    size_t bytes;
    char *text = test_read_file(path, &bytes);

    CHECK_CONTAINS(text, "\"chat_template\": \"{{ \\\"new\\\" }}\\n\"");
    CHECK_CONTAINS(text, "\"model_max_length\": 1000000000000000019884624838656");
}

static void check_model(const char *folder)
{
    json_t *config = json_in(folder, "config.json"), *generation = json_in(folder, "generation_config.json");

    CHECK_STRING(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)), "LlamaForCausalLM");
    CHECK_STRING(json_string_value(json_object_get(config, "model_type")), "llama");
    CHECK(json_object_get(config, "torch_dtype") || json_object_get(config, "dtype"));
    CHECK(json_is_object(generation));
    CHECK(!has(folder, "adapter_config.json"));
    json_decref(config);
    json_decref(generation);
    check_weights(folder);
    check_tokenizer(folder);
    check_one_template(folder);
}

static void check_adapter(const char *folder)
{
    json_t *config = json_in(folder, "adapter_config.json"), *tensors = header_of(folder, "adapter_model.safetensors");
    json_t *value;
    const char *name;

    CHECK_STRING(json_string_value(json_object_get(config, "peft_type")), "LORA");
    CHECK_STRING(json_string_value(json_object_get(config, "bias")), "none");
    CHECK_CONTAINS(json_string_value(json_object_get(config, "base_model_name_or_path")), "source");
    CHECK_EQ(json_integer_value(json_object_get(config, "r")), 4);
    CHECK(json_is_number(json_object_get(config, "lora_alpha")));
    CHECK_EQ(json_array_size(json_object_get(config, "target_modules")), 2);
    CHECK(!json_is_true(json_object_get(config, "use_dora")));
    CHECK(json_array_size(json_object_get(config, "modules_to_save")) == 0);
    json_object_foreach(tensors, name, value) if (strncmp(name, "base_model.model.model.layers.", 30) != 0 ||
                                                  (!fsdp__ends_with(name, "_proj.lora_A.weight") &&
                                                   !fsdp__ends_with(name, "_proj.lora_B.weight")))
        TEST_FAIL("vLLM knows no tensor '%s'", name);
    CHECK(json_object_size(tensors) > 0 && !has(folder, "config.json"));
    CHECK_EQ(count_files(folder, ".safetensors", NULL), 1);
    json_decref(config);
    json_decref(tensors);
}

/* ---- each kind ---- */

#define RUN_ON(source)                                                                              \
    "--model.path", (source), "--data.path=" TOKENS, "--training.steps=1", "--training.seq_len=16", \
        "--training.local_batch_size=1"

FIXTURE_TEST(a_trained_model_starts_in_their_loaders)
{
    char *source = make_source(f), *out = test_path(f->directory, "out"), *saves = test_path(f->directory, "saves");
    char *back = test_path(f->directory, "back");

    SAYS(0, "", "train", "-n", "2", RUN_ON(source), "--export.path", out, "--checkpoint.folder", saves,
         "--checkpoint.interval=1");
    check_model(out);
    SAYS(0, "model written to", "convert", saves, back); /* from a checkpoint */
    check_model(back);
}

FIXTURE_TEST(an_adapter_and_a_merged_model_start_in_their_loaders)
{
    char *source = make_source(f), *adapter = test_path(f->directory, "adapter");
    char *merged = test_path(f->directory, "merged"), *tuned = test_path(f->directory, "tuned");

    SAYS(0, "", "train", RUN_ON(source), "--adapter.rank=4", "--adapter.targets=q_proj", "--adapter.targets=v_proj",
         "--export.path", adapter);
    check_adapter(adapter);
    SAYS(0, "model written to", "convert", source, merged, "--adapter", adapter);
    check_model(merged);
    SAYS(0, "", "train", RUN_ON(source), "--adapter.rank=4", "--export.merge=true", "--export.path", tuned);
    check_model(tuned);
}

typedef struct splitting {
    const char *source, *to;
} splitting;

static fsdp_status write_split(fsdp_context *context, void *arg)
{
    const splitting *s = arg;
    const fsdp__hub_target target = {.folder = s->to, .source = s->source};
    fsdp_hub_hold *hold = NULL;
    fsdp_module *model;
    fsdp_state_dict *state = NULL;
    fsdp_model_config config;

    FSDP_TRY(fsdp_hub_read_config(s->source, &config));
    model = fsdp_model_create(context, fsdp_cpu(context), &config);
    FSDP_TRY(model ? FSDP_OK : fsdp_last_status());
    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    FSDP_TRY(fsdp_hub_load(s->source, state, &config));
    if (fsdp_process_group_rank(fsdp_world(context)) == 0) {
        hold = fsdp__hub_hold_create(context, &target);
        FSDP_TRY(fsdp__hub_hold_begin(hold));
    }
    FSDP_TRY(fsdp__hub_save_held(hold, state, &config, FSDP_F32, fsdp_world(context), 100000));
    fsdp__hub_hold_free(hold);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return FSDP_OK;
}

/* A second, smaller model in the same folder leaves no part of the first behind. */
FIXTURE_TEST(a_model_in_several_files_starts_in_their_loaders)
{
    char *source = make_source(f), *out = test_path(f->directory, "split");
    splitting s = {source, out};

    CHECK_OK(fsdp_run_threads(1, NULL, write_split, &s));
    check_model(out);
    CHECK(has(out, "model.safetensors.index.json"));
    SAYS(0, "model written to", "convert", source, out);
    check_model(out);
    CHECK(has(out, "model.safetensors"));
}
