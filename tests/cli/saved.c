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
