/* fsdp inspect and fsdp verify: what is in folders, files and checkpoints, and whether it is whole; and fsdp eval of a
 * checkpoint. */
#include <jansson.h>
#include <math.h>

#include "cli/fixture.h"
#include "cli/saved.h"
#include "fsdp/fsdp.h"
#include "support/ranks.h"

enum {
    RANKS = 3
};

/* A model folder at f->model, and what its checkpoints are made of. */
typedef struct source {
    fixture *f;
    char *folder; /* of the checkpoints */
    int64_t step;
    const char *changes[2][2]; /* of config.json: what stands there, and as many letters in its place */
} source;

static char *config_text(const source *s, size_t *bytes)
{
    char *path = test_path(s->f->model, "config.json"), *text = test_read_file(path, bytes);

    for (int i = 0; i < 2 && s->changes[i][0]; i++)
        memcpy(CHECK_PTR(strstr(text, s->changes[i][0])), s->changes[i][1], strlen(s->changes[i][1]));
    return text;
}

static void save(fsdp_context *context, void *arg)
{
    const source *s = arg;
    fsdp_checkpoint_value values[] = {
        {.name = "tokens", .type = FSDP_CHECKPOINT_INTEGER, .integer = 4096},
        {.name = "best", .type = FSDP_CHECKPOINT_NUMBER, .number = 0.1},
        {.name = "why", .type = FSDP_CHECKPOINT_TEXT, .text = "a \"quoted\" word"},
        {.name = "facts", .type = FSDP_CHECKPOINT_TEXT, .text = "steps\t7\nend\t\x1b"},
    };
    fsdp_checkpoint_file file = {.name = "config.json"};
    fsdp_checkpoint_section section = {.name = "model"};
    fsdp_checkpoint_content content = {.step = s->step,
                                       .sections = &section,
                                       .section_count = 1,
                                       .values = values,
                                       .value_count = 4,
                                       .files = &file,
                                       .file_count = 1};
    fsdp_model_config config;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(s->f->model, &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(model, &section.state));
    CHECK_OK(fsdp_hub_load(s->f->model, section.state, &config));
    file.data = config_text(s, &file.bytes);
    CHECK_OK(fsdp_checkpoint_save(s->folder, &content, fsdp_world(context)));
    fsdp_state_dict_free(section.state);
    fsdp_module_unref(model);
}

static source make(fixture *f)
{
    source s = {.f = f, .folder = test_path(f->directory, "checkpoints"), .step = 7};

    RUN(0, "train", f->config, "--training.steps=1", "--metrics.jsonl=");
    test_run_ranks(RANKS, save, &s);
    s.step = 12;
    test_run_ranks(1, save, &s);
    return s;
}

/* Changes one byte in the middle of the file, and back. */
static void flip(const char *path)
{
    FILE *file = CHECK_PTR(fopen(path, "r+"));
    int byte;

    CHECK_EQ(fseek(file, 0, SEEK_END), 0);
    CHECK_EQ(fseek(file, ftell(file) / 2, SEEK_SET), 0);
    byte = getc(file);
    CHECK_EQ(fseek(file, -1, SEEK_CUR), 0);
    putc(byte ^ 4, file);
    CHECK_EQ(fclose(file), 0);
}

/* ---- inspect ---- */

FIXTURE_TEST(a_checkpoint_is_listed_with_who_holds_what)
{
    source s = make(f);
    char *step = test_path(s.folder, "step-7");
    program p = RUN(0, "inspect", step);

    CHECK_CONTAINS(p.output, "step-7: step 7, saved by 3 ranks");
    CHECK_CONTAINS(p.output,
                   "\n  tokens       4096\n  best         0.10000000000000001\n  why          a \"quoted\" word\n"
                   "  facts\n    steps 7\n    end \\x1b\n");
    CHECK_CONTAINS(p.output, "\nfiles:\n  config.json  ");
    CHECK_CONTAINS(p.output, "\nmodel:\n  lm_head.weight ");
    CHECK_CONTAINS(p.output, "float32   [256, 48]                49,152 bytes  ranks 0 to 2\n");
    CHECK_CONTAINS(p.output, "\ntotal: ");
    CHECK_NULL(strstr(p.output, "rank 1: "));
    SAYS(0, "    rank 1: [86, 48] at [86, 0]; 16,512 bytes of rank-00001-of-00003.safetensors, from byte ", "inspect",
         step, "--parts");
    SAYS(0, "step-12: step 12, saved by 1 rank\n", "inspect", s.folder);
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

FIXTURE_TEST(a_checkpoint_is_listed_as_json)
{
    source s = make(f);
    char *step = test_path(s.folder, "step-7");
    program p = RUN(0, "inspect", "--json", step);
    json_t *all = CHECK_PTR(json_loads(p.output, 0, NULL)), *tensor, *part;
    size_t i, k;

    CHECK_STRING(json_string_value(json_object_get(all, "kind")), "checkpoint");
    CHECK_EQ(integer_of(all, "step"), 7);
    CHECK_EQ(integer_of(all, "world_size"), RANKS);
    CHECK_EQ(integer_of(json_object_get(all, "values"), "tokens"), 4096);
    CHECK(json_number_value(json_object_get(json_object_get(all, "values"), "best")) == 0.1);
    CHECK_STRING(json_string_value(json_object_get(json_object_get(all, "values"), "why")), "a \"quoted\" word");
    CHECK(json_array_size(json_object_get(all, "tensors")) > 10);
    json_array_foreach(json_object_get(all, "tensors"), i, tensor)
    {
        int64_t bytes = 0;

        json_array_foreach(json_object_get(tensor, "parts"), k, part) bytes += integer_of(part, "bytes");
        CHECK_EQ(bytes, integer_of(tensor, "bytes"));
        CHECK_STRING(json_string_value(json_object_get(tensor, "section")), "model");
    }
    json_decref(all);
}

FIXTURE_TEST(folders_and_files_of_weights_are_listed)
{
    char *file = test_path(f->model, "model.safetensors");
    program p;
    json_t *all;

    make(f);
    p = RUN(0, "inspect", f->model, "--json");
    all = CHECK_PTR(json_loads(p.output, 0, NULL));
    CHECK_EQ(integer_of(json_object_get(all, "model"), "dim"), 48);
    CHECK_STRING(json_string_value(json_object_get(json_array_get(json_object_get(all, "tensors"), 0), "file")),
                 "model.safetensors");
    json_decref(all);
    SAYS(0, "  model.embed_tokens.weight ", "inspect", file);
    SAYS(0, "\"kind\": \"weights\", \"path\": ", "inspect", file, "--json");
    SAYS(1, "none", "inspect", "none");
    SAYS(2, "inspect: unknown option '--jsn'; did you mean '--json'?", "inspect", f->model, "--jsn");
}

FIXTURE_TEST(an_adapter_is_described_and_a_value_that_is_not_finite_is_named)
{
    char *adapter = test_path(f->directory, "adapter"), *weights = test_path(adapter, "adapter_model.safetensors");
    char *out = test_path(f->directory, "merged");
    const float bad = NAN;
    FILE *file;

    RUN(0, "train", f->config, "--training.steps=1", "--metrics.jsonl=");
    RUN(0, "train", "--model.path", f->model, "--data.path", f->data, "--training.steps=1", "--training.seq_len=16",
        "--adapter.rank=4", "--adapter.targets=q_proj", "--adapter.targets=v_proj", "--export.path", adapter);
    SAYS(0,
         ": an adapter (LoRA)\n  rank                 4\n  alpha                4\n  targets              q_proj, "
         "v_proj\n",
         "inspect", adapter);
    SAYS(0, "\"adapter\": {\"rank\": 4, \"alpha\": 4, \"rslora\": false, \"dora\": false, \"targets\": [\"q_proj\", ",
         "inspect", "--json", adapter);
    SAYS(0, ": whole: 8 tensors, all values are finite; its adapter_config.json can be read", "verify", adapter);
    SAYS(0, "8 equal, 0 different", "diff", adapter, adapter);
    file = CHECK_PTR(fopen(weights, "r+"));
    CHECK_EQ(fseek(file, -(long)sizeof bad, SEEK_END), 0);
    CHECK_EQ(fwrite(&bad, sizeof bad, 1, file), 1);
    CHECK_EQ(fclose(file), 0);
    SAYS(1, "v_proj.lora_B.weight' holds NaN or infinite values", "verify", adapter);
    SAYS(1, "the loss is nan: '", "eval", f->model, "--data", f->data, "--seq-len=16", "--steps=1", "--adapter",
         adapter);
    SAYS(1, "v_proj.lora_B.weight' holds NaN", "generate", f->model, "--tokens=1,2", "--adapter", adapter);
    SAYS(1, "v_proj.lora_B.weight' holds NaN", "convert", f->model, out, "--adapter", adapter);
    CHECK_EQ(remove(weights), 0);
    SAYS(1, "adapter_model.safetensors': No such file", "inspect", adapter);
    SAYS(1, "adapter_model.safetensors': No such file", "verify", adapter);
}

/* ---- verify ---- */

FIXTURE_TEST(what_is_whole_is_said_to_be)
{
    source s = make(f);
    char *step = test_path(s.folder, "step-7"), *file = test_path(f->model, "model.safetensors");

    SAYS(0,
         "step-7: whole: 21 tensors of 3 ranks, every checksum is right; shapes are those of its config.json; "
         "all weights are finite\n",
         "verify", step);
    SAYS(0, "step-12: whole: 21 tensors of 1 rank, ", "verify", s.folder);
    SAYS(0, "step-7: whole: ", "verify", s.folder, "--all");
    SAYS(0,
         "model: whole: 21 tensors, all values are finite; shapes are those of its config.json (only checkpoints have "
         "checksums)\n",
         "verify", f->model);
    SAYS(0, "model.safetensors: whole: 21 tensors, all values are finite (only checkpoints have checksums)\n", "verify",
         file);
    SAYS(0, "fsdp verify PATH [--all]", "verify", "--help");
    SAYS(2, "verify: no checkpoint or model folder given", "verify");
    SAYS(1, "has no checkpoints: it has no folder named step-N", "verify", f->model, "--all");
    SAYS(1, "none", "verify", "none");
}

/* Verifies a file of weights with a tensor of float32, and one of each of these. */
static void check_unread(const fixture *f, const char *first, const char *second, const char *says)
{
    char *file = test_path(f->directory, "unread.safetensors"), *text = NULL;
    size_t bytes;
    FILE *out = CHECK_PTR(open_memstream(&text, &bytes));
    uint64_t length = (uint64_t)fprintf(out,
                                        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                        "\"b\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[4,12]},"
                                        "\"c\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[12,20]}}",
                                        first, second);

    fwrite((const char[20]){0}, 1, 20, out);
    CHECK_EQ(fclose(out), 0);
    out = CHECK_PTR(fopen(file, "w"));
    fwrite(&length, 1, sizeof length, out);
    fwrite(text, 1, bytes, out);
    CHECK_EQ(fclose(out), 0);
    SAYS(0, says, "verify", file);
    free(text);
}

FIXTURE_TEST(what_cannot_be_looked_at_is_counted_by_the_first_dtype)
{
    check_unread(f, "F64", "F64", "all values are finite but for 2 of F64, which were not checked (");
    check_unread(f, "F64", "U64", "all values are finite but for 2 of F64 and others, which were not checked (");
    check_unread(f, "U64", "F64", "all values are finite but for 2 of U64 and others, which were not checked (");
}

FIXTURE_TEST(a_damaged_checkpoint_is_named)
{
    static const char *const files[] = {"manifest.json", "config.json", "rank-00000-of-00003.safetensors",
                                        "rank-00002-of-00003.safetensors"};
    source s = make(f);
    char *step = test_path(s.folder, "step-7");
    program p;

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *file = test_path(step, files[i]);

        flip(file);
        SAYS(1, files[i], "verify", step);
        p = RUN(1, "verify", s.folder, "--all"); /* the others are looked at all the same */
        CHECK_CONTAINS(p.output, "step-12: whole: ");
        CHECK_CONTAINS(p.output, files[i]);
        CHECK_CONTAINS(p.output, ": 1 of 2 checkpoints are damaged");
        flip(file);
        SAYS(0, "step-7: whole", "verify", step);
        if (i == sizeof files / sizeof *files - 1) {
            CHECK_EQ(remove(file), 0);
            SAYS(1, files[i], "verify", step);
        }
    }
}

/* The weights are whole, and no text could be generated with them. */
FIXTURE_TEST(a_damaged_file_beside_the_weights_is_named)
{
    static const char *const names[] = {"tokenizer.json", "generation_config.json"};

    make(f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *file = test_path(f->model, names[i]), *config = test_path(f->model, "config.json"), *aside;

        test_write_file(file, "{\"model\": {", 11);
        SAYS(1, names[i], "verify", f->model);
        aside = test_path(f->directory, "config.json");
        CHECK_EQ(rename(config, aside), 0);
        SAYS(1, names[i], "verify", f->model); /* weights alone */
        CHECK_EQ(rename(aside, config), 0);
        CHECK_EQ(unlink(file), 0);
        SAYS(0, "model: whole: ", "verify", f->model);
    }
}

FIXTURE_TEST(a_config_of_another_model_is_found)
{
    static const struct {
        const char *changes[2][2], *what;
    } cases[] = {
        {{{"\"intermediate_size\": 100", "\"intermediate_size\": 104"}},
         "mlp.gate_proj.weight' has shape (100, 48), but the model's has (104, 48)"},
        {{{"\"vocab_size\": 256", "\"vocab_size\": 512"},
          {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true "}},
         "tensor 'model.embed_tokens.weight' has shape (256, 48), but the model's has (512, 48); and no parameter of "
         "the model is 'lm_head.weight': config.json says vocab_size 512: if the vocabulary was resized to 256, it"},
    };
    source s = make(f);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.step = 20 + (int64_t)i;
        memcpy(s.changes, cases[i].changes, sizeof s.changes);
        test_run_ranks(2, save, &s);
        SAYS(1, cases[i].what, "verify", s.folder);
    }
}

FIXTURE_TEST(a_value_that_is_not_finite_is_named)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    source s = make(f);
    char *path = test_path(f->model, "model.safetensors");
    size_t bytes;
    char *data = test_read_file(path, &bytes);

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(data + bytes - 4 * (i + 1), &bad[i], sizeof bad[i]);
        test_write_file(path, data, bytes);
        SAYS(1, "model.safetensors': tensor 'lm_head.weight' holds NaN or infinite values: the first is element ",
             "verify", f->model);
    }
    SAYS(1, "the first is element 12285\n", "verify", path);
    for (int i = 0; i < 2; i++) { /* whatever computes with them says which they are */
        const char *ranks = i ? "2" : "1";

        SAYS(1, "the loss is nan: '", "eval", f->model, "--data", f->data, "--seq-len=8", "--steps=1", "-n", ranks);
        SAYS(1, "tensor 'lm_head.weight' holds NaN or infinite values: the first is", "eval", f->model, "--data",
             f->data, "--seq-len=8", "--steps=1", "-n", ranks);
        SAYS(1, "tensor 'lm_head.weight' holds NaN or infinite values: the first is", "generate", f->model, "--tokens",
             "1,2", "-n", ranks);
    }
    data[bytes - 1] = data[bytes - 5] = data[bytes - 9] = 0; /* small numbers */
    test_write_file(path, data, bytes);
    saved_make(2, &(saved){.model = f->model, .folder = s.folder, .step = 20, .factor = NAN});
    SAYS(1, "step-20': tensor 'model.norm.weight' holds NaN or infinite values: the first is element 0\n", "verify",
         s.folder);
    SAYS(1, "step-7: whole", "verify", s.folder, "--all");
}

/* ---- eval ---- */

FIXTURE_TEST(a_checkpoint_is_evaluated_as_the_folder_it_was_made_of)
{
    source s = make(f);
    char *step = test_path(s.folder, "step-7"), loss[64];
    program p = RUN(0, "eval", f->model, "--data", f->data);
    const char *at = CHECK_PTR(strstr(p.output, "loss: "));

    snprintf(loss, sizeof loss, "\n%.*s", (int)strcspn(at, "t"), at);
    SAYS(0, loss, "eval", step, "--data", f->data);
    SAYS(0, loss, "eval", s.folder, "--data", f->data, "-n", "2");
    SAYS(0, "step-12 (Llama", "eval", s.folder, "--data", f->data, "--steps=1");
}

/* What fsdp_hub_save writes without a config. */
static void save_alone(fsdp_context *context, void *arg)
{
    const source *s = arg;
    fsdp_state_dict *state = NULL;
    fsdp_module *linear = CHECK_PTR(fsdp_linear_create(context, test_device(context), 3, 5, NULL));

    CHECK_OK(fsdp_module_initialize(linear, 1));
    CHECK_OK(fsdp_state_dict_from_module(linear, &state));
    CHECK_OK(fsdp_hub_save(s->folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_module_unref(linear);
}

FIXTURE_TEST(weights_without_a_config_are_read)
{
    source s = {.f = f, .folder = f->model};
    program p;

    test_run_ranks(1, save_alone, &s);
    p = RUN(0, "inspect", f->model);
    CHECK_CONTAINS(p.output, "  weight  float32   [5, 3] ");
    CHECK_CONTAINS(p.output, "total: 2 tensors, 20 elements, 80 bytes");
    p = RUN(0, "inspect", f->model, "--json");
    CHECK_CONTAINS(p.output, "{\"kind\": \"weights\", ");
    CHECK_NULL(strstr(p.output, "\"model\": {"));
    SAYS(0, ": whole: 2 tensors, all values are finite (only checkpoints have checksums)\n", "verify", f->model);
    SAYS(1, "has no config.json, which says what model it holds", "generate", f->model, "--prompt", "x");
    SAYS(1, "has no weights: neither model.safetensors, ", "inspect", f->directory);
    SAYS(1, "has no weights: neither model.safetensors, ", "verify", f->directory);
}

FIXTURE_TEST(a_checkpoint_without_a_manifest_is_named)
{
    source s = make(f);
    char *step = test_path(s.folder, "step-7"), *other = test_path(f->directory, "kept"), *manifest;
    const char *const folders[] = {step, other};

    manifest = test_path(step, "manifest.json");
    CHECK_EQ(remove(manifest), 0);
    for (int i = 0; i < 2; i++) { /* under whichever name */
        SAYS(1, "is not a whole checkpoint: it has files of ranks, but no manifest.json, which says", "verify",
             folders[i]);
        SAYS(1, "is not a whole checkpoint: it has files of ranks, but no manifest.json, which says", "inspect",
             folders[i]);
        SAYS(1, "is not a whole checkpoint: it has files of ranks, but no manifest.json, which says", "generate",
             folders[i], "--prompt", "x");
        if (i == 0)
            CHECK_EQ(rename(step, other), 0);
    }
}

TEST_FILE_IN_MEMORY(false, NULL)
