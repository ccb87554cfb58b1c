/* quantize.c - frozen weights in fewer bits: which of a model's are, and how they get their values. */
#include "adapter/quantize.h"

#include "base/alloc.h"
#include "device/device.h"
#include "dist/dist.h"
#include "fsdp/replicate.h"
#include "fsdp/shard.h"
#include "nn/layers.h"

/* ---- which weights ---- */

/* Checks that the model can be changed: what shards or replicates it does not see that a parameter is another. */
static fsdp_status check_module(const fsdp_named_module *m)
{
    if (fsdp_module_is_sharded(m->module) || fsdp_module_is_replicated(m->module))
        return FSDP_FAIL(FSDP_STATE,
                         "cannot quantize the model: %s%s%s is sharded or replicated already: quantize before",
                         *m->name ? "'" : "it", m->name, *m->name ? "'" : "");
    return FSDP_OK;
}

static fsdp_status check_layer(const fsdp_named_module *m)
{
    const fsdp_distribution *d;

    if (fsdp__layer_code_of(m->module)->weight.code)
        return FSDP_FAIL(FSDP_STATE, "cannot quantize '%s': it is quantized already", m->name);
    d = fsdp_tensor_distribution(fsdp__layer_weight_field(m->module));
    if (d)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot quantize '%s': it is cut already, as %s over mesh %s: tensor parallel and weights in "
                         "fewer bits cannot be combined",
                         m->name, FSDP__PLACEMENTS(d->placements, d->placement_count), FSDP__MESH(d->mesh));
    if (!fsdp_device_is_meta(fsdp_tensor_device(fsdp__layer_weight_field(m->module))))
        return FSDP_FAIL(FSDP_STATE, "cannot quantize '%s': it has values: quantize while it is on the meta device",
                         m->name);
    return FSDP_OK;
}

/* Returns whether the module's weight is to be quantized: that of a frozen Linear or Conv1D which is no head and has
 * the weight for itself. A, B and modules that are trained whole are not frozen. */
static bool is_quantized(const fsdp_named_modules *all, const fsdp_named_module *m)
{
    return fsdp__layer_is_product(m->module) && !fsdp__adapter_ends(m->name, FSDP__ADAPTER_HEAD) &&
           !fsdp_tensor_requires_grad(fsdp__layer_weight_field(m->module)) &&
           !fsdp__adapter_shared_with(all, m->module);
}

static fsdp_status quantize(fsdp_adapter *adapter, const fsdp_named_module *m, fsdp__weight_code code)
{
    fsdp__coded_layer *item;

    FSDP_TRY(fsdp__grow(&adapter->coded, adapter->coded_count, &adapter->coded_capacity, sizeof *adapter->coded));
    item = &adapter->coded[adapter->coded_count];
    FSDP__TRY_NEW(item->name = fsdp__dotted(m->name, "weight"));
    item->module = fsdp_module_ref(m->module);
    adapter->coded_count++;
    return fsdp__layer_code_weight(m->module, code);
}

fsdp_status fsdp_adapter_quantize(fsdp_adapter *adapter, fsdp_quantization kind)
{
    FSDP__SCOPED(fsdp_named_modules_release) fsdp_named_modules all = {0};
    fsdp__weight_code code = kind == FSDP_QUANTIZE_NF4 ? FSDP__WEIGHT_NF4 : FSDP__WEIGHT_INT8;

    FSDP_TRY(fsdp__adapter_check(adapter, "quantize its model"));
    if (kind != FSDP_QUANTIZE_NF4 && kind != FSDP_QUANTIZE_INT8)
        return FSDP_FAIL(FSDP_INVALID, "a model is quantized to NF4 or to INT8, not to %d", (int)kind);
    FSDP_TRY(fsdp_module_modules(adapter->model, NULL, &all));
    for (int64_t i = 0; i < all.count; i++) {
        FSDP_TRY(check_module(&all.items[i]));
        if (is_quantized(&all, &all.items[i]))
            FSDP_TRY(check_layer(&all.items[i]));
    }
    for (int64_t i = 0; i < all.count; i++)
        if (is_quantized(&all, &all.items[i]))
            FSDP_TRY(quantize(adapter, &all.items[i], code));
    return FSDP_OK;
}

/* ---- this rank's part of a weight, as floats ---- */

/* Describes where the elements are whose codes this rank has: a run of them, as in a flat vector that ends with the
 * last block. */
static fsdp_status distribute(const char *name, const fsdp_tensor *bytes, const fsdp__coded_weight *weight,
                              fsdp_distribution *d)
{
    int split = 0;

    *d = *fsdp_tensor_distribution(bytes);
    d->ndim = 2;
    d->global_shape[0] = weight->rows;
    d->global_shape[1] = weight->cols;
    for (int i = 0; i < d->placement_count; i++) {
        fsdp_placement *p = &d->placements[i];
        int ranks = fsdp_mesh_size(d->mesh, i);

        if (p->kind == FSDP_REPLICATE)
            continue;
        if (p->kind != FSDP_SHARD || p->dim != 0 || p->segment_count > 0 || split++ > 0)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot use '%s' in fewer bits: it is not sharded in dimension 0, by one dimension of the "
                             "mesh",
                             name);
        *p = (fsdp_placement){.kind = FSDP_FLAT,
                              .chunk = (fsdp__coded_rows(weight) + ranks - 1) / ranks * fsdp__coded_row_numel(weight)};
    }
    return FSDP_OK;
}

/* Makes a view of `storage` for this rank's part of a weight, distributed as its bytes are. */
static fsdp_status view_part(const char *name, const fsdp_tensor *bytes, const fsdp__coded_weight *weight,
                             fsdp__storage *storage, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS] = {weight->rows, weight->cols};
    fsdp_distribution d = {.ndim = 2};

    if (fsdp_tensor_distribution(bytes)) {
        FSDP_TRY(distribute(name, bytes, weight, &d));
        fsdp_distribution_box(&d, d.mesh->coordinate, offset, size);
    }
    FSDP_TRY(fsdp__tensor_create_view(storage, FSDP_F32, d.mesh && fsdp_distribution_is_flat(&d) ? 1 : 2, size, NULL, 0,
                                      &view));
    if (d.mesh)
        FSDP_TRY(fsdp_tensor_set_distribution(view, &d));
    *out = fsdp__take(&view);
    return FSDP_OK;
}

/* Returns the most elements whose codes lie in this rank's bytes; the last block may have fewer. */
static int64_t part_numel(const fsdp_tensor *bytes, const fsdp__coded_weight *weight)
{
    return fsdp_tensor_numel(bytes) / fsdp__coded_row_bytes(weight) * fsdp__coded_row_numel(weight);
}

int64_t fsdp__adapter_numel(const fsdp_adapter *adapter, const fsdp_parameter *parameter)
{
    const fsdp__coded_layer *layer = adapter ? fsdp__adapter_coded(adapter, parameter->name) : NULL;

    return layer ? part_numel(parameter->tensor, &fsdp__layer_code_of(layer->module)->weight)
                 : fsdp_tensor_numel(parameter->tensor);
}

static fsdp_status storage_for(fsdp_context *context, int64_t numel, fsdp__storage **out)
{
    return fsdp__storage_create(fsdp_cpu(context), (size_t)numel * sizeof(float), FSDP_MEMORY_WORKSPACE, true, out);
}

/* ---- decoding ---- */

fsdp_status fsdp__coded_layer_decode(const fsdp__coded_layer *layer, const fsdp_tensor *bytes, fsdp_tensor **out)
{
    const fsdp__coded_weight *weight = &fsdp__layer_code_of(layer->module)->weight;
    fsdp_context *context = layer->module->context;
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    FSDP__FREED uint8_t *codes = fsdp__malloc((size_t)fsdp_tensor_numel(bytes) + 1);
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

    FSDP__TRY_NEW(codes);
    FSDP_TRY(storage_for(context, part_numel(bytes, weight), &storage));
    FSDP_TRY(view_part(layer->name, bytes, weight, storage, &part));
    FSDP_TRY(fsdp_tensor_read(bytes, FSDP_U8, codes));
    FSDP_TRY(fsdp__decode_weight_rows(stream, weight, codes, fsdp_tensor_numel(part), FSDP_F32, storage->data));
    FSDP_TRY(fsdp_stream_synchronize(stream)); /* it reads `codes` */
    *out = fsdp__take(&part);
    return FSDP_OK;
}

/* ---- the base's first values ---- */

void fsdp__base_values_release(fsdp__base_values *values)
{
    fsdp_state_dict_free(values->state);
    fsdp__storage_unref(values->storage);
}

static fsdp_tensor *bytes_of(const fsdp__coded_layer *layer)
{
    return fsdp__layer_weight_field(layer->module);
}

static fsdp_status add_parts(fsdp__base_values *values)
{
    const fsdp_adapter *adapter = values->adapter;

    for (int64_t i = 0; i < adapter->coded_count; i++) {
        const fsdp__coded_layer *layer = &adapter->coded[i];
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

        if (fsdp_device_is_meta(fsdp_tensor_device(bytes_of(layer))))
            return FSDP_FAIL(FSDP_STATE,
                             "cannot give '%s' values: it is on the meta device: call "
                             "fsdp_module_materialize first",
                             layer->name);
        FSDP_TRY(view_part(layer->name, bytes_of(layer), &fsdp__layer_code_of(layer->module)->weight, values->storage,
                           &part));
        FSDP_TRY(fsdp_state_dict_add(values->state, layer->name, part));
    }
    return FSDP_OK;
}

fsdp_status fsdp__base_values_begin(const fsdp_adapter *adapter, fsdp__base_values *out)
{
    int64_t most = 0;

    *out = (fsdp__base_values){.adapter = adapter};
    FSDP_TRY(fsdp_adapter_base_state_dict(adapter, &out->state));
    for (int64_t i = 0; i < adapter->coded_count; i++)
        most = FSDP__MAX(
            most, part_numel(bytes_of(&adapter->coded[i]), &fsdp__layer_code_of(adapter->coded[i].module)->weight));
    if (adapter->coded_count == 0)
        return FSDP_OK;
    FSDP_TRY(storage_for(adapter->model->context, most, &out->storage));
    return add_parts(out);
}

/* Encodes this rank's part of a weight from where it has arrived. */
static fsdp_status take_part(const fsdp__coded_layer *layer, const fsdp_tensor *part)
{
    fsdp_tensor *bytes = bytes_of(layer);
    FSDP__FREED uint8_t *codes = fsdp__malloc((size_t)fsdp_tensor_numel(bytes) + 1);

    FSDP__TRY_NEW(codes);
    FSDP_TRY(fsdp_stream_synchronize(fsdp_device_stream(fsdp_tensor_device(part))));
    fsdp__encode_weight(&fsdp__layer_code_of(layer->module)->weight, fsdp_tensor_data(part), fsdp_tensor_numel(part),
                        codes);
    return fsdp_tensor_write(bytes, FSDP_U8, codes);
}

fsdp_status fsdp__base_values_arrived(void *arg, const fsdp_state_dict_entry *entry)
{
    const fsdp__base_values *values = arg;
    const fsdp__coded_layer *layer = fsdp__adapter_coded(values->adapter, entry->name);

    return layer ? take_part(layer, entry->tensor) : FSDP_OK;
}

fsdp_status fsdp_adapter_load_base(fsdp_adapter *adapter, const char *folder, const fsdp_model_config *config)
{
    FSDP__SCOPED(fsdp__base_values_release) fsdp__base_values values = {0};

    FSDP_TRY(fsdp__adapter_check(adapter, "load its base"));
    FSDP_TRY(fsdp__base_values_begin(adapter, &values));
    return fsdp__hub_load_each(folder, values.state, config, NULL,
                               &(fsdp__hub_listener){fsdp__base_values_arrived, &values});
}
