/* cmd_convert.c - fsdp convert FROM TO: converts a checkpoint to a Hugging Face folder and back, for another number of
 * ranks, or to another dtype; and either to a file of llama.cpp. */
#include <stdio.h>
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "cli/cli.h"
#include "cli/convert_gguf.h"
#include "cli/folder_model.h"
#include "cli/interrupt.h"
#include "cli/merged.h"
#include "cli/own_process.h"
#include "cli/spill.h"
#include "dist/dist.h"
#include "format/file_list.h"
#include "hub/held_folder.h"
#include "state/entry.h"
#include "tensor/tensor.h"
#include "train/adapter_on_disk.h"
#include "train/checkpoint_values.h"
#include "train/run_steps.h"

enum {
    MOST_RANKS = 1024,
    JSON_BYTES = 1 << 22
};

static void usage(void)
{
    puts("fsdp convert FROM TO [--ranks N] [--dtype DTYPE] [--step S]\n"
         "                     [--adapter DIR]\n"
         "fsdp convert FROM --to gguf -o FILE.gguf [--dtype f32|f16|bf16|q8_0]\n"
         "fsdp convert FILE.gguf -o FOLDER [--dtype DTYPE]\n"
         "\n"
         "Turns a checkpoint into a Hugging Face folder, or into a checkpoint for another\n"
         "number of ranks. FROM is a checkpoint (step-N, step-best for the best\n"
         "validation, or a folder of checkpoints, whose newest is used) or a Hugging Face\n"
         "folder.\n"
         "\n"
         "Without --ranks, TO becomes a Hugging Face folder with weights, config and\n"
         "tokenizer; if FROM is a checkpoint of an adapter (LoRA), a folder of peft. It\n"
         "must be new, empty, or written by fsdp. If FROM is a Hugging Face folder, only\n"
         "its parameters are written, not its other buffers.\n"
         "\n"
         "  -n, --ranks N    TO/step-S becomes a checkpoint of N ranks with everything\n"
         "                   that FROM holds\n"
         "  --dtype DTYPE    write weights as float32, bfloat16 or float16; default: as\n"
         "                   they are, but float32 in a Hugging Face folder if they differ\n"
         "  --adapter DIR    a folder of peft (LoRA): TO becomes the model of FROM with\n"
         "                   the adapter in its weights, which are in memory meanwhile;\n"
         "                   or a checkpoint of an adapter\n"
         "  --step S         default: the step of FROM, or 0 if it is a Hugging Face\n"
         "                   folder\n"
         "  -o, --output TO  the same as TO\n"
         "  --to gguf        TO becomes a file of llama.cpp with weights, config,\n"
         "                   tokenizer and chat template. A FROM that is such a file\n"
         "                   becomes a Hugging Face folder. The model is in memory\n"
         "                   then, in float32\n"
         "\n"
         "Otherwise only a few MiB are in memory at a time. A temporary file beside TO\n"
         "takes as many bytes as TO will have, and is removed at the end.");
}

typedef struct conversion {
    const char *from, *to, *adapter; /* the last: to be merged; NULL: none */
    fsdp__adapters adapters;         /* it, as a list of one */
    int ranks;                       /* 0: a Hugging Face folder */
    bool replaces;                   /* what is in the folder already, of an earlier command */
    fsdp_dtype dtype;
    int64_t step; /* -1: the step of FROM */
    fsdp__tensor_source source;
    fsdp__spill spill;
    fsdp_model_config config;
    fsdp_checkpoint_value *values;
    fsdp_checkpoint_file *files; /* of a folder; their data is owned by this struct */
    int file_count;
    fsdp__interrupt interrupt;
    fsdp__bar bar;
} conversion;

static void advance(void *arg, uint64_t done, uint64_t total)
{
    conversion *c = arg;

    fsdp__bar_draw_bytes(&c->bar, done, total);
}

/* ---- what each rank writes: rows by the chunk rule ---- */

static fsdp_status add_entry(const conversion *c, fsdp_mesh *mesh, int64_t index, const char *name,
                             fsdp_state_dict *state)
{
    const fsdp__source_tensor *t = c->spill.items[index].tensor;
    fsdp_distribution rows = {
        .mesh = mesh, .placement_count = 1, .placements = {{.kind = FSDP_SHARD}}, .ndim = t->ndim};
    int64_t first = 0, count = 1;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    memcpy(rows.global_shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    if (t->ndim > 0)
        count = fsdp_shard_range(t->shape[0], fsdp_mesh_size(mesh, 0), fsdp_mesh_coordinate(mesh, 0), &first);
    FSDP_TRY(fsdp__spill_rows(&c->spill, index, fsdp_mesh_context(mesh), first, count, &tensor));
    FSDP_TRY(t->ndim > 0 ? fsdp_tensor_set_distribution(tensor, &rows) : FSDP_OK);
    return fsdp_state_dict_add(state, name, tensor);
}

/* Returns the section of a tensor; `*name` is its name within that. */
static const char *section_of(const conversion *c, const fsdp__source_tensor *t, const char **name)
{
    const fsdp_checkpoint_tensor *entry = t->entry;

    *name = c->source.reader ? entry->name : t->name;
    return c->source.reader ? entry->section : FSDP__SECTION_MODEL;
}

static fsdp_status fill_state(const conversion *c, fsdp_mesh *mesh, const char *section, fsdp_state_dict *state)
{
    for (int64_t i = 0; i < c->spill.count; i++) {
        const char *name, *own = section_of(c, c->spill.items[i].tensor, &name);

        if (strcmp(own, section) == 0)
            FSDP_TRY(add_entry(c, mesh, i, name, state));
    }
    return FSDP_OK;
}

static fsdp_status make_state(const conversion *c, fsdp_context *context, const char *section, fsdp_state_dict **out)
{
    fsdp_process_group *world = fsdp_world(context);
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = NULL; /* the tensors keep references to it */
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp_mesh_from_groups(&world, 1, NULL, NULL, &mesh));
    FSDP_TRY(fsdp_state_dict_create(&state));
    FSDP_TRY(fill_state(c, mesh, section, state));
    *out = fsdp__take(&state);
    return FSDP_OK;
}

/* ---- to a Hugging Face folder ---- */

/* Returns the dtype of all weights; if they differ, the one that loses nothing. */
static fsdp_dtype common_dtype(const fsdp_state_dict *state)
{
    fsdp_dtype common = FSDP_DTYPE_NONE;

    for (int64_t i = 0; i < state->count; i++) {
        fsdp_dtype dtype = fsdp_tensor_dtype(state->entries[i].tensor);

        if (fsdp_dtype_is_floating(dtype))
            common = common == FSDP_DTYPE_NONE || common == dtype ? dtype : FSDP_F32;
    }
    return common == FSDP_DTYPE_NONE ? FSDP_F32 : common;
}

/* Begins to hold the folder: a signal finds the hold before anything is made. */
static fsdp_status begin_hold(conversion *c, fsdp_hub_hold *hold)
{
    fsdp__interrupt_holds(&c->interrupt, hold);
    return fsdp__hub_hold_begin(hold);
}

/* Removes what a failure has left, and lets signals find nothing any more. */
static void end_hold(conversion *c, fsdp_hub_hold *hold)
{
    fsdp_hub_abandon(hold);
    fsdp__interrupt_holds(&c->interrupt, NULL);
}

static fsdp_status write_held(conversion *c, fsdp_context *context, fsdp_hub_hold *hold, const fsdp_state_dict *state)
{
    fsdp_status status = begin_hold(c, hold);

    if (status == FSDP_OK)
        status = fsdp__hub_save_held(hold, state, &c->config, c->dtype ? c->dtype : common_dtype(state),
                                     fsdp_world(context), FSDP__FILE_LIMIT_BYTES);
    end_hold(c, hold);
    return status;
}

/* Writes the adapter of a checkpoint as a folder of peft. */
static fsdp_status write_adapter(fsdp_context *context, void *arg)
{
    conversion *c = arg;
    const fsdp__hub_target target = {.folder = c->to, .source = c->source.folder.path, .adapter = true};
    const fsdp_checkpoint_file *config = fsdp_checkpoint_file_find(c->source.reader, FSDP__ADAPTER_CONFIG);
    FSDP__FREED char *text = fsdp__sprintf("%.*s", (int)config->bytes, (const char *)config->data);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL, *named = NULL;
    FSDP__SCOPED(fsdp__hub_hold_free_at) fsdp_hub_hold *hold = fsdp__hub_hold_create(context, &target);
    fsdp_status status;

    if (!hold || !text)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(make_state(c, context, FSDP__SECTION_MODEL, &state));
    FSDP_TRY(fsdp__name_adapter(context, &c->config, state, c->source.folder.path, &named));
    fsdp__hub_hold_describe(hold, text);
    status = begin_hold(c, hold);
    if (status == FSDP_OK)
        status = fsdp__hub_save_held(hold, named, NULL, c->dtype, fsdp_world(context), FSDP__HUB_ONE_FILE);
    end_hold(c, hold);
    return status;
}

static fsdp_status write_folder(fsdp_context *context, void *arg)
{
    conversion *c = arg;
    const fsdp__hub_target target = {.folder = c->to, .source = c->source.folder.path};
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL, *merged = NULL;
    FSDP__SCOPED(fsdp__hub_hold_free_at) fsdp_hub_hold *hold = fsdp__hub_hold_create(context, &target);

    if (!hold)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(make_state(c, context, FSDP__SECTION_MODEL, &state));
    if (c->adapter && fsdp__merge_adapter(context, &c->config, state, c->adapter, &merged) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "--adapter");
    return write_held(c, context, hold, merged ? merged : state);
}

/* ---- to a checkpoint ---- */

/* Makes as many sections as FROM has, in the same order. */
static fsdp_status make_sections(const conversion *c, fsdp_context *context, fsdp_checkpoint_section *sections,
                                 int *count)
{
    for (int64_t i = 0; i < (c->source.reader ? fsdp_checkpoint_count(c->source.reader) : 1); i++) {
        const char *name = c->source.reader ? fsdp_checkpoint_at(c->source.reader, i)->section : FSDP__SECTION_MODEL;

        if (*count > 0 && strcmp(sections[*count - 1].name, name) == 0)
            continue;
        sections[*count].name = name;
        FSDP_TRY(make_state(c, context, name, &sections[*count].state));
        ++*count;
    }
    return FSDP_OK;
}

/* Saves the checkpoint. If a signal ends the save, nothing is left behind: the first rank's saver holds the folder for
 * all. */
static fsdp_status save(conversion *c, fsdp_context *context, const fsdp_checkpoint_content *content)
{
    fsdp_process_group *world = fsdp_world(context);
    bool is_first = fsdp_context_rank(context) == 0;
    FSDP__SCOPED(fsdp_checkpoint_saver_free_at) fsdp_checkpoint_saver *saver = NULL;
    fsdp_status status = is_first ? fsdp__saves_check_free(c->to) : FSDP_OK; /* a run may have begun in the meantime */

    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_create(c->to, NULL, world, &saver);
    FSDP_TRY(fsdp_agree(world, status));
    if (is_first)
        fsdp__interrupt_saver(&c->interrupt, saver);
    status = fsdp_checkpoint_saver_save(saver, content);
    if (is_first) {
        fsdp_checkpoint_saver_abandon(saver); /* of a failure something may be left */
        fsdp__interrupt_saver(&c->interrupt, NULL);
    }
    return status;
}

static fsdp_status write_checkpoint(fsdp_context *context, void *arg)
{
    conversion *c = arg;
    int most = (int)(c->source.reader ? fsdp_checkpoint_count(c->source.reader) : 1), count = 0;
    FSDP__FREED fsdp_checkpoint_section *sections = fsdp__calloc((size_t)most + 1, sizeof *sections);
    fsdp_checkpoint_content content = {.step = c->step, .sections = sections, .values = c->values};
    fsdp_status status =
        sections ? make_sections(c, context, sections, &count) : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");

    content.section_count = count;
    content.value_count = c->source.reader ? fsdp_checkpoint_value_count(c->source.reader) : 0;
    content.files = c->files;
    content.file_count = c->file_count;
    if (status == FSDP_OK)
        status = save(c, context, &content);
    for (int i = 0; i < count; i++)
        fsdp_state_dict_free(sections[i].state);
    return status;
}

/* ---- what is stored beside the tensors ---- */

static fsdp_status add_file(conversion *c, const char *name, const void *data, size_t bytes)
{
    FSDP__FREED char *copy = fsdp__malloc(bytes + 1), *own = fsdp__strdup(name);

    if (!copy || !own)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    if (bytes > 0)
        memcpy(copy, data, bytes);
    c->files[c->file_count++] =
        (fsdp_checkpoint_file){.name = fsdp__take(&own), .data = fsdp__take(&copy), .bytes = bytes};
    return FSDP_OK;
}

static fsdp_status copy_extras(conversion *c)
{
    const fsdp_checkpoint_reader *reader = c->source.reader;
    int files = fsdp_checkpoint_file_count(reader), values = fsdp_checkpoint_value_count(reader);

    c->files = fsdp__calloc((size_t)files + 1, sizeof *c->files);
    c->values = fsdp__calloc((size_t)values + 1, sizeof *c->values);
    if (!c->files || !c->values)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    for (int i = 0; i < files; i++) {
        const fsdp_checkpoint_file *file = fsdp_checkpoint_file_at(reader, i);

        FSDP_TRY(add_file(c, file->name, file->data, file->bytes));
    }
    for (int i = 0; i < values; i++)
        c->values[i] = *fsdp_checkpoint_value_at(reader, i);
    return FSDP_OK;
}

static fsdp_status list_extras(const char *folder, fsdp__file_list *list)
{
    FSDP__FREED char *path = fsdp__path_join(folder, "generation_config.json");

    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(fsdp__file_list_add(list, "config.json", JSON_BYTES));
    if (fsdp__path_exists(path))
        FSDP_TRY(fsdp__file_list_add(list, "generation_config.json", JSON_BYTES));
    return fsdp__hub_list_tokenizer(folder, list);
}

/* Reads config.json, generation_config.json and the tokenizer. */
static fsdp_status read_extras(conversion *c)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {.count = 0};

    FSDP_TRY(list_extras(c->source.folder.path, &list));
    c->files = fsdp__calloc((size_t)list.count + 1, sizeof *c->files);
    if (!c->files)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    for (int64_t i = 0; i < list.count; i++) {
        FSDP__FREED char *path = fsdp__path_join(c->source.folder.path, list.files[i].name), *data = NULL;
        size_t bytes = 0;

        FSDP_TRY(path ? fsdp__file_read(path, (size_t)list.files[i].bytes, &data, &bytes) : FSDP_NO_MEMORY);
        FSDP_TRY(add_file(c, list.files[i].name, data, bytes));
    }
    return FSDP_OK;
}

/* ---- all of it ---- */

/* Checks that what FROM says of its adapter is its own and can be read, and that no other is to be put into it. */
static fsdp_status check_adapter(const conversion *c)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;

    if (c->adapter)
        return fsdp__adapter_on_disk_refuse(c->source.folder.path);
    if (!fsdp_checkpoint_file_find(c->source.reader, FSDP__ADAPTER_CONFIG))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it was saved without the " FSDP__ADAPTER_CONFIG
                         " that lies in it: take that file out of the folder",
                         c->source.folder.path);
    return fsdp__adapter_on_disk_options(c->source.folder.path, &options);
}

/* Checks that the folder has the model of its config, because what is written must be one, too. Of a Hugging Face
 * folder it lists only the model's tensors. */
static fsdp_status check_model(conversion *c)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;

    if (!c->source.folder.path)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a file: give the folder that it is in, with its config.json", c->from);
    if (c->source.reader && !fsdp_checkpoint_file_find(c->source.reader, "config.json"))
        return c->ranks > 0 ? FSDP_OK
                            : FSDP_FAIL(FSDP_INVALID,
                                        "'%s' has no config.json: it holds a program's own model, which can become a "
                                        "checkpoint for other ranks (--ranks), but not a Hugging Face folder",
                                        c->source.folder.path);
    FSDP_TRY(fsdp_hub_read_config(c->source.folder.path, &c->config));
    FSDP_TRY(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context));
    if (c->source.folder.is_adapter)
        return check_adapter(c);
    if (c->ranks > 0 && c->source.reader && fsdp__checkpoint_has_adapter(c->source.reader))
        return FSDP_OK; /* an older version has written it: its run says what the adapter is */
    FSDP_TRY(fsdp__model_folder_check(&c->source.folder, context, &c->config, false));
    return c->source.reader ? FSDP_OK : fsdp__tensor_source_list_model(&c->source, context, &c->config);
}

/* Refuses a name that would put such a folder among checkpoints. There it would look like an incomplete checkpoint, at
 * which the next run stops. */
static fsdp_status check_name(const char *to)
{
    size_t length = strlen(to);
    FSDP__FREED char *path = NULL, *folder = NULL, *newest = NULL;
    const char *slash;
    bool held, among;
    int64_t step;

    while (length > 1 && to[length - 1] == '/')
        length--;
    path = fsdp__sprintf("%.*s", (int)length, to);
    folder = path ? fsdp__path_parent(path) : NULL;
    if (!folder)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    slash = strrchr(path, '/');
    held = fsdp_hold_error(true);
    among = (fsdp__step_name(slash ? slash + 1 : path, "", &step) || fsdp__is_step_best(path)) &&
            fsdp_checkpoint_find(folder, -1, &newest) == FSDP_OK;
    fsdp_release_error(held);
    if (!among)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "'%s' is named like a checkpoint, and lies among checkpoints: name another folder",
                     to);
}

static fsdp_status check_target(conversion *c)
{
    FSDP__FREED char *list = NULL;

    if (c->ranks == 0) {
        FSDP__TRY_NEW(list = fsdp__path_join(c->to, FSDP__LIST_NAME));
        c->replaces = fsdp__path_exists(list);
        return check_name(c->to);
    }
    if (c->step < 0)
        c->step = c->source.reader ? fsdp_checkpoint_step(c->source.reader) : 0;
    if (fsdp_checkpoint_exists(c->to, c->step))
        return FSDP_FAIL(FSDP_IO, "'%s/step-%lld' exists already: name another folder, or another step with --step",
                         c->to, (long long)c->step);
    return fsdp__saves_check_free(c->to);
}

static fsdp_status spill_to(conversion *c)
{
    FSDP__FREED char *beside = fsdp__path_parent(c->to);
    fsdp_status status;

    if (!beside)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    status = fsdp__spill_make(&c->source, beside, c->adapter ? FSDP_DTYPE_NONE : c->dtype, advance, c, &c->spill);
    fsdp__bar_clear(&c->bar);
    return status;
}

/* Finds the folder of --adapter, which may be a checkpoint. */
static fsdp_status find_adapter(conversion *c)
{
    if (!c->adapter)
        return FSDP_OK;
    FSDP_TRY(fsdp__adapters_read(c->adapter, &c->adapters));
    if (c->adapters.count > 1)
        return FSDP_FAIL(FSDP_INVALID, "--adapter is '%s': expected one folder, of which the model gets the adapter",
                         c->adapter);
    c->adapter = fsdp__adapters_at(&c->adapters, 0);
    return FSDP_OK;
}

static fsdp_status convert(conversion *c)
{
    FSDP_TRY(find_adapter(c));
    FSDP_TRY(fsdp__tensor_source_open(c->from, &c->source));
    FSDP_TRY(check_model(c));
    FSDP_TRY(check_target(c));
    if (c->source.reader)
        FSDP_TRY(fsdp__tensor_source_list(&c->source, c->ranks == 0));
    if (c->ranks > 0)
        FSDP_TRY(c->source.reader ? copy_extras(c) : read_extras(c));
    FSDP_TRY(spill_to(c));
    if (c->ranks == 0)
        return fsdp_run_threads(1, NULL, c->source.folder.is_adapter ? write_adapter : write_folder, c);
    return fsdp_run_threads(c->ranks, &(fsdp_context_options){.threads = 1}, write_checkpoint, c);
}

static void release(conversion *c)
{
    for (int i = 0; i < c->file_count; i++)
        FSDP__FREE_ALL(c->files[i].name, c->files[i].data);
    FSDP__FREE_ALL(c->files, c->values);
    fsdp__adapters_release(&c->adapters);
    fsdp__spill_release(&c->spill);
    fsdp__tensor_source_release(&c->source);
}

/* Warns about values that are not finite. They are copied as they are, but not silently. */
static void warn_not_finite(const fsdp__spill *spill)
{
    if (spill->not_finite)
        (void)fsdp__failure("warning: tensor '%s' holds NaN or infinite values: the first is element %lld",
                            FSDP__SHOWN_NAME(spill->not_finite->name), (long long)spill->not_finite_element);
}

static int run(conversion *c)
{
    int result = 0;

    if (fsdp__interrupt_start(&c->interrupt, false, false) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    fsdp__explain_bus_errors();
    fsdp__bar_begin(&c->bar);
    if (convert(c) != FSDP_OK)
        result = fsdp__failure("%s", fsdp_last_error());
    else if (c->ranks > 0)
        printf("checkpoint of %d rank%s written to %s/step-%lld\n", c->ranks, fsdp__plural(c->ranks),
               FSDP__SHOWN_PATH(c->to), (long long)c->step);
    else
        printf("%s written to %s%s\n", c->source.folder.is_adapter ? "adapter" : "model", FSDP__SHOWN_PATH(c->to),
               fsdp__in_place(c->replaces));
    if (result == 0)
        warn_not_finite(&c->spill);
    release(c);
    fsdp__interrupt_stop(&c->interrupt);
    return result;
}

static fsdp_status read_line(conversion *c, const char *ranks, const char *dtype, const char *step)
{
    int64_t count = 0;

    FSDP_TRY(fsdp__args_integer("--ranks", ranks, 1, MOST_RANKS, &count));
    FSDP_TRY(fsdp__args_integer("--step", step, 0, INT64_MAX, &c->step));
    if (c->adapter && ranks)
        return FSDP_FAIL(FSDP_INVALID, "convert: --adapter is merged into a Hugging Face folder: leave --ranks out");
    if (step && !ranks)
        return FSDP_FAIL(FSDP_INVALID, "convert: --step needs --ranks: only a checkpoint has a step");
    c->ranks = (int)count;
    return dtype ? fsdp__dtype_option(dtype, &c->dtype) : FSDP_OK;
}

/* Converts to or from a file of llama.cpp, which has neither ranks nor steps. */
static int convert_gguf(const char *from, const char *to, const char *kind, const char *dtype)
{
    fsdp_status status = kind ? fsdp__convert_to_gguf(from, to, dtype) : fsdp__convert_from_gguf(from, to, dtype);

    return status == FSDP_OK ? 0 : fsdp__failure("%s", fsdp_last_error());
}

int fsdp__cmd_convert(int argc, char **argv)
{
    const char *ranks = NULL, *dtype = NULL, *step = NULL, *kind = NULL, *to = NULL;
    conversion c = {.step = -1};
    const fsdp__option options[] = {{"ranks", 'n', &ranks, NULL},
                                    {"dtype", 0, &dtype, NULL},
                                    {"step", 0, &step, NULL},
                                    {"adapter", 0, &c.adapter, NULL},
                                    {"to", 0, &kind, NULL},
                                    {"output", 'o', &to, NULL},
                                    {0}};
    fsdp__args args = {.options = options, .positional_most = 2};
    int status;

    if (!fsdp__take_line(&args, "convert", usage, argc, argv, &status))
        return status;
    if (to && fsdp__output_is_apart("--output", to) != FSDP_OK)
        return fsdp__usage_error("convert: %s", fsdp_last_error());
    if (to && args.positional_count < 2)
        args.positional[args.positional_count++] = to;
    else if (to)
        return fsdp__usage_error("convert: both '%s' and --output %s are given as TO", args.positional[1], to);
    if (args.positional_count < 2)
        return fsdp__usage_error("convert: name both folders: fsdp convert FROM TO");
    if (kind && strcmp(kind, "gguf") != 0)
        return fsdp__usage_error("convert: --to is '%s': expected gguf", kind);
    if (!kind && !fsdp__is_gguf(args.positional[0]) && fsdp__ends_with(args.positional[1], ".gguf"))
        return fsdp__usage_error("convert: '%s' would become a folder: for a file of llama.cpp add --to gguf",
                                 args.positional[1]);
    if (kind || fsdp__is_gguf(args.positional[0])) {
        if (ranks || step)
            return fsdp__usage_error("convert: a GGUF file has no %s", ranks ? "ranks" : "step");
        if (c.adapter)
            return fsdp__usage_error("convert: --adapter is for folders: merge first, then convert the result");
        return convert_gguf(args.positional[0], args.positional[1], kind, dtype);
    }
    if (read_line(&c, ranks, dtype, step) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    c.from = args.positional[0];
    c.to = args.positional[1];
    return run(&c);
}
