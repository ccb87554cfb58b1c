/* Adapters over frozen weights in fewer bits: bitsandbytes' codes, the same bytes in every world however uneven the
 * weights are, which weights are quantized, what merging gives, memory, and misuse. */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "adapter/adapter.h"
#include "fsdp/adapter.h"
#include "fsdp/format.h"
#include "fsdp/hub.h"
#include "fsdp/replicate.h"
#include "fsdp/shard.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "state/entry.h"
#include "support/program.h"
#include "support/ranks.h"

static const char *const all_linear[] = {"all-linear"}, *const second[] = {"1"};

/* Sequential(Linear(5,7), Linear(7,40), Linear(40,0), Linear(0,13), Conv1D(13,11)), named 0 to 4: weights of less than
 * a block, of several, and without elements. */
static fsdp_module *tree(fsdp_context *context, fsdp_device *device)
{
    fsdp_module *const parts[] = {
        fsdp_linear_create(context, device, 5, 7, NULL), fsdp_linear_create(context, device, 7, 40, NULL),
        fsdp_linear_create(context, device, 40, 0, NULL), fsdp_linear_create(context, device, 0, 13, NULL),
        fsdp_conv1d_create(context, device, 13, 11, NULL)};

    return CHECK_PTR(fsdp_sequential_create(context, parts, 5));
}

static fsdp_lora_options usual(void)
{
    return (fsdp_lora_options){.rank = 2, .alpha = 6, .targets = all_linear, .target_count = 1};
}

/* ---- numbers ---- */

/* Compares a weight's bytes with the codes, scales and values of bitsandbytes, if they are there. */
static bool check_weight(const fsdp_safetensors *reference, const char *layer, const fsdp_module *module)
{
    static const char *const parts[] = {"absmax", "packed", "dequantized"};
    const fsdp__coded_weight *w = &fsdp__layer_code_of(module)->weight;
    const fsdp_tensor *bytes = fsdp__layer_weight_field(module);
    const fsdp_safetensors_entry *entries[3];
    uint8_t *own = malloc((size_t)fsdp_tensor_numel(bytes));
    float *values = malloc((size_t)(w->rows * w->cols) * sizeof *values);
    char name[200];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "nf4.%s.weight.%s", layer, parts[i]);
        entries[i] = fsdp_safetensors_find(reference, name);
    }
    CHECK_OK(fsdp_tensor_read(bytes, FSDP_U8, own));
    for (int64_t r = 0; entries[0] && r < fsdp__coded_rows(w); r++) {
        CHECK_BYTES(own + r * 36, (const char *)entries[0]->data + r * 4, 4);
        CHECK_BYTES(own + r * 36 + 4, (const char *)entries[1]->data + r * 32, 32);
    }
    if (entries[0]) {
        fsdp_tensor *decoded = NULL;

        CHECK_OK(fsdp__decode_weight(w, bytes, FSDP_F32, &decoded));
        CHECK_OK(fsdp_tensor_read(decoded, FSDP_F32, values));
        CHECK_BYTES(values, entries[2]->data, entries[2]->bytes);
        fsdp_tensor_unref(decoded);
    }
    free(own);
    free(values);
    return entries[0] != NULL;
}

CONTEXT_TEST(a_model_has_the_codes_scales_and_values_of_bitsandbytes)
{
    char *path = CHECK_PTR(test_reference("finetune/quant", ".safetensors")),
         *folder = test_path(REFERENCE, "models/tiny-llama");
    fsdp_lora_options o = usual();
    fsdp_safetensors *reference = NULL;
    fsdp_state_dict *codes = NULL;
    fsdp_adapter *adapter = NULL;
    fsdp_model_config config;
    fsdp_module *model;
    int64_t found = 0;

    CHECK_OK(fsdp_safetensors_open(path, &reference));
    CHECK_OK(fsdp_hub_read_config(folder, &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_adapter_load_base(adapter, folder, &config));
    for (int64_t i = 0; i < adapter->coded_count; i++)
        found += check_weight(reference, adapter->items[i].name, adapter->coded[i].module);
    CHECK_EQ(adapter->coded_count, adapter->count);
    CHECK(found > 0);
    CHECK_OK(fsdp_state_dict_from_module(model, &codes));
    CHECK_ERROR(fsdp_hub_save("/nowhere/at/all", codes, &config, FSDP_F32, fsdp_world(context)), FSDP_UNSUPPORTED,
                "self_attn.q_proj.weight' of a model with a config.json: it is uint8");
    fsdp_state_dict_free(codes);
    fsdp_clear_error(); /* it would stand behind the next case's */
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    fsdp_safetensors_close(reference);
}

/* ---- every world ---- */

typedef struct world {
    fsdp_quantization kind;
    bool replicated;
} world;

/* The whole bytes of a weight, gathered; and what a rank alone would have. */
static void check_bytes(fsdp_adapter *adapter, int64_t index, const fsdp_module *plain)
{
    const fsdp__coded_layer *layer = &adapter->coded[index];
    const fsdp__coded_weight *w = &fsdp__layer_code_of(layer->module)->weight;
    const fsdp_tensor *weight = fsdp_module_parameter((fsdp_module *)(uintptr_t)plain, layer->name);
    fsdp_tensor *whole = NULL;
    float values[512];
    uint8_t actual[2048], expected[2048];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(weight), FSDP_F32, values));
    fsdp__encode_weight(w, values, fsdp_tensor_numel(weight), expected);
    CHECK_OK(fsdp_full_tensor(fsdp__layer_weight_field(layer->module), &whole));
    CHECK_EQ(fsdp_tensor_numel(whole), fsdp__coded_rows(w) * fsdp__coded_row_bytes(w));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_U8, actual));
    if (fsdp_tensor_numel(weight) > 0)
        CHECK_BYTES(actual, expected, (size_t)fsdp_tensor_numel(whole));
    fsdp_tensor_unref(whole);
}

/* Adds up what each rank has of all parameters, in memory: rows as the first rank has them, whole lines. */
static size_t bytes_of_parts(fsdp_module *model, int parts, int ranks)
{
    fsdp_parameters parameters;
    size_t bytes = 0;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *t = parameters.items[i].tensor;
        const fsdp_distribution *d = CHECK_PTR(fsdp_tensor_distribution(t));
        int64_t numel = (d->global_shape[0] + ranks - 1) / ranks * parts;

        for (int dim = 1; dim < d->ndim; dim++)
            numel *= d->global_shape[dim];
        bytes += ((size_t)numel * fsdp_dtype_size(fsdp_tensor_dtype(t)) + 63) / 64 * 64;
    }
    fsdp_parameters_release(&parameters);
    return bytes;
}

/* Between steps a rank has its codes; while it computes it has all of them, and no decoded weight. */
static void check_memory(fsdp_context *context, fsdp_module *model)
{
    int ranks = fsdp_context_world_size(context);
    size_t gathered = ranks == 1 ? 0 : bytes_of_parts(model, ranks, ranks);
    fsdp_memory_stats memory;

    fsdp_device_memory(test_device(context), &memory);
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], bytes_of_parts(model, 1, ranks));
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
    CHECK_OK(fsdp_module_unshard(model));
    fsdp_device_memory(test_device(context), &memory);
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], gathered);
    CHECK_OK(fsdp_module_reshard(model));
}

/* Merged weights are the decoded ones plus s B A, and B is zero. */
static void check_merged(fsdp_adapter *adapter, const fsdp_module *plain)
{
    fsdp_state_dict *merged = NULL, *whole = NULL;

    CHECK_OK(fsdp_adapter_merge(adapter, NULL, &merged));
    CHECK_OK(fsdp_state_dict_gather(merged, NULL, &whole));
    for (int64_t i = 0; i < adapter->coded_count; i++) {
        const fsdp__coded_layer *layer = &adapter->coded[i];
        const fsdp__coded_weight *w = &fsdp__layer_code_of(layer->module)->weight;
        const fsdp_state_dict_entry *entry = CHECK_PTR(fsdp_state_dict_find(whole, layer->name));
        const fsdp_tensor *weight = fsdp_module_parameter((fsdp_module *)(uintptr_t)plain, layer->name);
        float values[512], actual[512], expected[512];
        uint8_t bytes[2048];

        CHECK_EQ(fsdp_tensor_dtype(entry->tensor), FSDP_F32);
        CHECK_EQ(entry->global_shape[0], w->rows);
        CHECK_EQ(entry->global_shape[1], w->cols);
        CHECK_OK(fsdp_tensor_read(weight, FSDP_F32, values));
        fsdp__encode_weight(w, values, fsdp_tensor_numel(weight), bytes);
        CHECK_OK(fsdp__decode_weight_rows(fsdp_device_stream(fsdp_cpu(adapter->model->context)), w, bytes,
                                          fsdp_tensor_numel(weight), FSDP_F32, expected));
        CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(fsdp_cpu(adapter->model->context))));
        CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_F32, actual));
        for (int64_t e = 0; e < fsdp_tensor_numel(weight); e++)
            CHECK_NEAR(actual[e], expected[e], 0); /* -0 + 0 is 0 */
    }
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(merged);
}

static void check_world(fsdp_context *context, void *arg)
{
    const world *w = arg;
    fsdp_module *model = tree(context, fsdp_meta(context)), *plain = tree(context, test_device(context));
    fsdp_lora_options o = usual();
    fsdp_adapter *adapter = NULL;

    CHECK_OK(fsdp_module_initialize(plain, 9));
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp_adapter_quantize(adapter, w->kind));
    if (w->replicated)
        CHECK_OK(fsdp_replicate(model, NULL));
    else
        CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_adapter_initialize_base(adapter, 9));
    CHECK_OK(fsdp_adapter_initialize(adapter, 1));
    CHECK_EQ(adapter->coded_count, 5);
    for (int64_t i = 0; i < adapter->coded_count; i++)
        check_bytes(adapter, i, plain);
    check_merged(adapter, plain);
    fsdp_module_unref(plain);
    if (!w->replicated)
        check_memory(context, model);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

TEST(every_world_has_the_same_bytes)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++)
        for (int way = 0; way < 4; way++) {
            world w = {way % 2 ? FSDP_QUANTIZE_INT8 : FSDP_QUANTIZE_NF4, way / 2};

            if (worlds[i] <= 3 || !w.replicated)
                test_run_ranks(worlds[i], check_world, &w);
        }
}

/* ---- which weights ---- */

CONTEXT_TEST(trained_shared_and_head_weights_are_left_alone)
{
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_lora_options o = usual();
    fsdp_state_dict *base = NULL;
    fsdp_adapter *adapter = NULL;

    o.targets = second;
    o.saved = (const char *const[]){"0"};
    o.saved_count = 1;
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_INT8));
    CHECK_EQ(adapter->coded_count, 4); /* all but the one that is trained, adapted or not */
    CHECK_NULL(fsdp__adapter_coded(adapter, "0.weight"));
    CHECK_PTR(fsdp__adapter_coded(adapter, "4.weight"));
    CHECK_OK(fsdp_adapter_base_state_dict(adapter, &base));
    CHECK_NULL(fsdp_state_dict_find(base, "1.weight"));
    CHECK_PTR(fsdp_state_dict_find(base, "1.bias"));
    CHECK_PTR(fsdp_state_dict_find(base, "0.weight"));
    fsdp_state_dict_free(base);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

/* ---- misuse ---- */

static fsdp_adapter *adapted(fsdp_module *model)
{
    fsdp_lora_options o = usual();
    fsdp_adapter *adapter = NULL;

    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    return adapter;
}

CONTEXT_TEST(calls_that_make_no_sense_are_refused)
{
    fsdp_module *model = tree(context, fsdp_meta(context)), *whole = tree(context, test_device(context));
    fsdp_adapter *adapter = adapted(model), *late = adapted(whole);

    CHECK_ERROR(fsdp_adapter_quantize(NULL, FSDP_QUANTIZE_NF4), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_load_base(NULL, "x", NULL), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_initialize_base(NULL, 1), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NONE), FSDP_INVALID, "to NF4 or to INT8, not to 0");
    CHECK_ERROR(fsdp_adapter_quantize(adapter, (fsdp_quantization)7), FSDP_INVALID, "not to 7");
    CHECK_ERROR(fsdp_adapter_quantize(late, FSDP_QUANTIZE_NF4), FSDP_STATE, "'0': it has values: quantize while");
    CHECK_EQ(late->coded_count, 0);
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_ERROR(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4), FSDP_STATE, "'0': it is quantized already");
    CHECK_ERROR(fsdp_adapter_load_base(adapter, "/nowhere/at/all", NULL), FSDP_STATE, "is on the meta device");
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_ERROR(fsdp_adapter_load_base(adapter, "/nowhere/at/all", NULL), FSDP_NOT_FOUND, "/nowhere/at/all");
    CHECK_ERROR(fsdp_adapter_load_base(adapter, NULL, NULL), FSDP_INVALID, "folder and state are required");
    fsdp_adapter_free(late);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(whole);
    fsdp_module_unref(model);
}

static fsdp_status last_dimension(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)arg, (void)name;
    out->dim = fsdp_tensor_ndim(t) - 1;
    return FSDP_OK;
}

static void check_refusals(fsdp_context *context, void *arg)
{
    fsdp_module *model = tree(context, fsdp_meta(context)), *other = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model), *later = adapted(other);

    (void)arg;
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_OK(fsdp_fully_shard(model, &(fsdp_shard_options){.placement = last_dimension}));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_ERROR(fsdp_adapter_initialize_base(adapter, 1), FSDP_UNSUPPORTED, "'0.weight' in fewer bits: it is not");
    CHECK_OK(fsdp_fully_shard(other, NULL));
    CHECK_ERROR(fsdp_adapter_quantize(later, FSDP_QUANTIZE_NF4), FSDP_STATE, "it is sharded or replicated already");
    fsdp_adapter_free(later);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(other);
    fsdp_module_unref(model);
}

static void check_retype(fsdp_context *context, void *arg)
{
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model);

    (void)arg;
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_ERROR(fsdp_module_to(model, FSDP_BF16), FSDP_STATE, "its bytes are codes");
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

/* A weight that tensor parallel has cut. */
static void check_cut(fsdp_context *context, void *arg)
{
    const char *tp = "tp";
    const fsdp_placement rows = {.kind = FSDP_SHARD};
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model);
    fsdp_tensor *part = NULL, **slot = model->parts->children[0].module->parts->parameters[0].slot;
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, &tp, &mesh));
    CHECK_OK(fsdp_distribute_tensor(*slot, mesh, &rows, &part));
    fsdp_tensor_unref(*slot);
    *slot = part;
    CHECK_ERROR(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4), FSDP_UNSUPPORTED,
                "cannot quantize '0': it is cut already, as (Shard(dim=0),) over mesh (tp=2)");
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(columns_and_a_late_change_of_dtype_are_refused)
{
    test_run_ranks(2, check_cut, NULL);
    test_run_ranks(2, check_refusals, NULL);
    test_run_ranks(2, check_retype, NULL);
}

/* One rank has codes of another length. */
RANKS_TEST(a_rank_with_other_codes_is_found_out, 3)
{
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model);
    fsdp_status status;

    CHECK_OK(fsdp_adapter_quantize(adapter, fsdp_context_rank(context) == 1 ? FSDP_QUANTIZE_INT8 : FSDP_QUANTIZE_NF4));
    status = fsdp_fully_shard(model, NULL);
    if (status == FSDP_OK)
        status = fsdp_module_materialize(model, test_device(context));
    CHECK_EQ(status, FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "ranks disagree");
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

/* A call that would put zeros, or other bytes, in the place of codes is refused, and changes nothing. */
WORLDS_TEST(codes_are_not_overwritten_by_a_call_that_cannot_make_them, 1, 2)
{
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model);
    fsdp_tensor *bytes;
    uint8_t before[36 * 5], after[36 * 5];
    size_t part;

    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_ERROR(fsdp_module_initialize(model, 1), FSDP_STATE, "'0.weight': it is held in fewer bits");
    CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_adapter_initialize_base(adapter, 1));
    bytes = fsdp_module_parameter(model, "1.weight");
    part = (size_t)fsdp_tensor_numel(bytes);
    CHECK_OK(fsdp_tensor_read(bytes, FSDP_U8, before));
    CHECK_ERROR(fsdp_module_initialize(model, 2), FSDP_STATE, "call fsdp_adapter_initialize_base");
    CHECK_OK(fsdp_module_summon_full_params(model, NULL));
    CHECK_ERROR(fsdp_adapter_initialize_base(adapter, 2), FSDP_STATE, "is gathered");
    CHECK_OK(fsdp_module_end_summon(model));
    CHECK_OK(fsdp_tensor_read(bytes, FSDP_U8, after));
    CHECK_BYTES(after, before, part);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

/* Copies a state, but for 1.weight, in whose place come bytes of another shape. */
static fsdp_state_dict *with_other_bytes(const fsdp_state_dict *state, fsdp_context *context, int64_t rows)
{
    fsdp_state_dict *out = NULL;
    fsdp_tensor *bytes = NULL;

    CHECK_OK(fsdp_tensor_create(fsdp_cpu(context), FSDP_U8, FSDP_SHAPE(rows, 36), FSDP_MEMORY_WORKSPACE, &bytes));
    CHECK_OK(fsdp_tensor_fill_(bytes, 0));
    CHECK_OK(fsdp_state_dict_create(&out));
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *e = &state->entries[i];

        CHECK_OK(fsdp_state_dict_add(out, e->name, strcmp(e->name, "1.weight") == 0 ? bytes : e->tensor));
    }
    fsdp_tensor_unref(bytes);
    return out;
}

CONTEXT_TEST(bytes_of_another_shape_are_not_merged)
{
    fsdp_module *model = tree(context, fsdp_meta(context));
    fsdp_adapter *adapter = adapted(model);
    fsdp_state_dict *own = NULL, *merged = NULL;

    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_adapter_initialize_base(adapter, 1));
    CHECK_OK(fsdp_adapter_initialize(adapter, 1));
    CHECK_OK(fsdp_state_dict_from_module(model, &own));
    for (int64_t rows = 4; rows <= 6; rows++) { /* of 280 elements: 5 blocks */
        fsdp_state_dict *other = with_other_bytes(own, context, rows);

        if (rows == 5)
            CHECK_OK(fsdp_adapter_merge(adapter, other, &merged));
        else
            CHECK_ERROR(fsdp_adapter_merge(adapter, other, &merged), FSDP_INVALID, "cannot merge '1.weight': it is");
        fsdp_state_dict_free(merged);
        fsdp_state_dict_free(other);
    }
    fsdp_state_dict_free(own);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

static fsdp_status use(fsdp_context *context, fsdp_module *model)
{
    FSDP__SCOPED(fsdp_adapter_free_at) fsdp_adapter *adapter = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *merged = NULL;
    fsdp_lora_options o = usual();

    o.dora = true;
    FSDP_TRY(fsdp_adapter_add(model, &o, &adapter));
    FSDP_TRY(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    FSDP_TRY(fsdp_module_materialize(model, test_device(context)));
    FSDP_TRY(fsdp_adapter_initialize_base(adapter, 1));
    FSDP_TRY(fsdp_adapter_initialize(adapter, 1));
    return fsdp_adapter_merge(adapter, NULL, &merged);
}

TEST(whatever_allocation_fails_nothing_leaks)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context;
        fsdp_module *model;
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        context = test_context();
        model = tree(context, fsdp_meta(context));
        CHECK_PTR(test_device(context));
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = use(context, model);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_module_unref(model);
        test_drop_workspace(context);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}
