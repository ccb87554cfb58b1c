/* saved.c - a model of a folder, sharded and saved. */
#include "cli/saved.h"

#include "fsdp/checkpoint.h"
#include "fsdp/hub.h"
#include "fsdp/shard.h"
#include "support/ranks.h"

/* Beside the model: no dimensions, whole numbers, fewer rows than ranks, none. */
static fsdp_state_dict *make_others(fsdp_context *context)
{
    static const int64_t steps[] = {1, (int64_t)1 << 60, -3, 4, 5};
    fsdp_device *device = test_device(context);
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_state_dict_add(state, "scalar", CHECK_PTR(fsdp_full(device, FSDP_F32, 0, NULL, 2.5))));
    CHECK_OK(fsdp_state_dict_add(state, "steps", CHECK_PTR(fsdp_from_data(device, FSDP_I64, FSDP_SHAPE(5), steps))));
    CHECK_OK(fsdp_state_dict_add(state, "row", CHECK_PTR(fsdp_full(device, FSDP_BF16, FSDP_SHAPE(1, 3), -1))));
    CHECK_OK(fsdp_state_dict_add(state, "none", CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(0, 3), 1))));
    return state;
}

static void save(fsdp_context *context, void *arg)
{
    static const fsdp_checkpoint_value seed = {.name = "seed", .type = FSDP_CHECKPOINT_INTEGER, .integer = 42};
    const saved *s = arg;
    fsdp_checkpoint_section sections[] = {{.name = "model"}, {.name = "others"}};
    fsdp_checkpoint_content content = {.step = s->step,
                                       .sections = sections,
                                       .section_count = 2,
                                       .values = &seed,
                                       .value_count = 1,
                                       .file_count = !s->bare};
    fsdp_checkpoint_file config = {.name = "config.json"};
    char *path = test_path(s->model, "config.json");
    fsdp_model_config model_config;
    fsdp_module *model;

    CHECK_OK(fsdp_scope_begin(context));
    config.data = test_read_file(path, &config.bytes);
    content.files = &config;
    CHECK_OK(fsdp_hub_read_config(s->model, &model_config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &model_config));
    if (fsdp_context_world_size(context) > 1)
        CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(model, &sections[0].state));
    CHECK_OK(fsdp_hub_load(s->model, sections[0].state, &model_config));
    CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(model, "model.norm.weight"), (double)s->factor));
    sections[1].state = make_others(context);
    CHECK_OK(fsdp_checkpoint_save(s->folder, &content, fsdp_world(context)));
    fsdp_state_dict_free(sections[0].state);
    fsdp_state_dict_free(sections[1].state);
    fsdp_module_unref(model);
    fsdp_scope_end(context, NULL);
}

void saved_make(int world, const saved *s)
{
    test_run_ranks(world, save, (void *)(uintptr_t)s);
}

/* ---- again ---- */

typedef struct again {
    const char *path, *name, *folder;
} again;

/* Reads a section whole. */
static fsdp_state_dict *read_section(fsdp_context *context, fsdp_checkpoint_reader *reader, const char *section)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_create(&state));
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(reader, i);

        if (strcmp(t->section, section) == 0)
            CHECK_OK(fsdp_state_dict_add(state, t->name,
                                         CHECK_PTR(fsdp_zeros(fsdp_cpu(context), t->dtype, t->ndim, t->shape))));
    }
    CHECK_OK(fsdp_checkpoint_load(reader, section, state, NULL));
    return state;
}

static void save_again(fsdp_context *context, void *arg)
{
    const again *a = arg;
    fsdp_checkpoint_section sections[] = {{.name = "model"}, {.name = "optimizer"}};
    fsdp_checkpoint_value values[32];
    fsdp_checkpoint_file files[32];
    fsdp_checkpoint_content content = {.sections = sections, .section_count = 2, .values = values, .files = files};
    fsdp_checkpoint_reader *reader;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_checkpoint_open(a->path, &reader));
    content.step = fsdp_checkpoint_step(reader);
    for (; content.value_count < fsdp_checkpoint_value_count(reader); content.value_count++)
        values[content.value_count] = *fsdp_checkpoint_value_at(reader, content.value_count);
    for (int i = 0; i < fsdp_checkpoint_file_count(reader); i++)
        if (strcmp(fsdp_checkpoint_file_at(reader, i)->name, a->name) != 0)
            files[content.file_count++] = *fsdp_checkpoint_file_at(reader, i);
    CHECK_EQ(content.file_count, fsdp_checkpoint_file_count(reader) - 1);
    for (int i = 0; i < content.section_count; i++)
        sections[i].state = read_section(context, reader, sections[i].name);
    CHECK_OK(fsdp_checkpoint_save(a->folder, &content, fsdp_world(context)));
    for (int i = 0; i < content.section_count; i++)
        fsdp_state_dict_free(sections[i].state);
    fsdp_checkpoint_close(reader);
    fsdp_scope_end(context, NULL);
}

void saved_without(const char *path, const char *name, const char *folder)
{
    test_run_ranks(1, save_again, &(again){path, name, folder});
}
