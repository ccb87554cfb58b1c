/* merge.c - puts adapters into the weights of their layers. A, B and m are small and gathered whole; DoRA's norms need
 * the whole weight, too. Each rank then calculates the part that it has. */
#include "adapter/adapter.h"

#include <math.h>
#include <string.h>

#include "adapter/quantize.h"
#include "base/alloc.h"
#include "nn/layers.h"
#include "state/entry.h"
#include "tensor/tensor.h"

/* Holds what a layer's merged weight is calculated from, in the stored order of its weight (rows,cols): V = W + s left
 * right. */
typedef struct factors {
    int64_t rows, cols, rank;
    bool transposed; /* a row is an input of the layer, and a column an output */
    float scaling;
    float *left, *right; /* (rows,rank), (rank,cols) */
    float *ratio;        /* m / n of each output; NULL: no DoRA */
} factors;

static void factors_release(factors *f)
{
    FSDP__FREE_ALL(f->left, f->right, f->ratio);
}

/* Says where the values come from. */
typedef struct source {
    const fsdp_adapter *adapter;
    const fsdp_state_dict *state;
} source;

/* Checks that an entry has the shape of a weight's bytes. */
static fsdp_status check_codes(const fsdp_state_dict_entry *entry, const fsdp__coded_weight *weight)
{
    const int64_t shape[] = {fsdp__coded_rows(weight), fsdp__coded_row_bytes(weight)};

    if (entry->ndim == 2 && memcmp(entry->global_shape, shape, sizeof shape) == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot merge '%s': it is uint8 of shape %s, but the codes of the adapter's layer have %s",
                     entry->name, FSDP__SHOWN_SHAPE(entry->ndim, entry->global_shape), FSDP__SHOWN_SHAPE(2, shape));
}

/* Makes a state dict of one entry, a weight in fewer bits decoded. */
static fsdp_status decoded(const source *from, const fsdp_state_dict_entry *entry, fsdp_state_dict **out)
{
    const fsdp__coded_layer *layer = fsdp__adapter_coded(from->adapter, entry->name);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *one = NULL;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

    if (layer && fsdp_tensor_dtype(entry->tensor) == FSDP_U8 &&
        !fsdp_device_is_meta(fsdp_tensor_device(entry->tensor))) {
        FSDP_TRY(check_codes(entry, &fsdp__layer_code_of(layer->module)->weight));
        FSDP_TRY(fsdp__coded_layer_decode(layer, entry->tensor, &part));
    }
    FSDP_TRY(fsdp_state_dict_create(&one));
    FSDP_TRY(fsdp_state_dict_add(one, entry->name, part ? part : entry->tensor));
    *out = fsdp__take(&one);
    return FSDP_OK;
}

/* ---- whole tensors ---- */

static const fsdp_state_dict_entry *part_of(const fsdp_state_dict *state, const char *layer, const char *part)
{
    FSDP__FREED char *name = fsdp__sprintf("%s.%s", layer, part);
    const fsdp_state_dict_entry *entry = name ? fsdp_state_dict_find(state, name) : NULL;

    if (name && !entry)
        (void)FSDP_FAIL(FSDP_NOT_FOUND, "the state has no '%s', which an adapter needs", name);
    return entry;
}

/* Checks that an entry has values, and the shape that the adapter's layer gives it; `cols` -1: it is a vector. */
static fsdp_status check_entry(const fsdp_state_dict_entry *entry, int64_t rows, int64_t cols)
{
    const int64_t shape[] = {rows, cols};
    int ndim = cols < 0 ? 1 : 2;

    if (fsdp_device_is_meta(fsdp_tensor_device(entry->tensor)))
        return FSDP_FAIL(FSDP_STATE, "cannot merge '%s': it is on the meta device and has no values: load it first",
                         entry->name);
    if (entry->ndim == ndim && memcmp(entry->global_shape, shape, (size_t)ndim * sizeof *shape) == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "cannot merge '%s': its shape is %s, but the adapter's layer gives it %s",
                     entry->name, FSDP__SHOWN_SHAPE(entry->ndim, entry->global_shape), FSDP__SHOWN_SHAPE(ndim, shape));
}

/* Gets the whole tensor (rows,cols), or a vector if `cols` is -1, as floats, on every rank; fsdp__free it. [collective]
 */
static fsdp_status gather(const source *from, const char *layer, const char *part, int64_t rows, int64_t cols,
                          float **out)
{
    const fsdp_state_dict_entry *entry = part_of(from->state, layer, part);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *one = NULL, *whole = NULL;
    FSDP__FREED float *values = NULL;
    const fsdp_tensor *t;

    if (!entry)
        return fsdp_last_status();
    FSDP_TRY(decoded(from, entry, &one));
    FSDP_TRY(check_entry(one->entries, rows, cols));
    FSDP_TRY(fsdp_state_dict_gather(one, NULL, &whole));
    t = whole->entries[0].tensor;
    FSDP__TRY_NEW(values = fsdp__malloc((size_t)fsdp_tensor_numel(t) * sizeof *values + 1));
    FSDP_TRY(fsdp_tensor_read(t, FSDP_F32, values));
    *out = fsdp__take(&values);
    return FSDP_OK;
}

static void transpose(const float *from, int64_t rows, int64_t cols, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            to[j * rows + i] = from[i * cols + j];
}

/* Gets A and B in the order that the weight is stored in. [collective] */
static fsdp_status gather_factors(const source *from, const fsdp__adapted *item, factors *f)
{
    FSDP__FREED float *a = NULL, *b = NULL;

    *f = (factors){.rows = item->out, .cols = item->in, .rank = item->rank, .scaling = item->lora->beside.scaling};
    FSDP_TRY(gather(from, item->name, "lora_A.weight", item->rank, item->in, &a));
    FSDP_TRY(gather(from, item->name, "lora_B.weight", item->out, item->rank, &b));
    if (!item->lora->transposed) {
        f->left = fsdp__take(&b);
        f->right = fsdp__take(&a);
        return FSDP_OK;
    }
    f->transposed = true;
    f->rows = item->in;
    f->cols = item->out;
    FSDP__TRY_NEW(f->left = fsdp__malloc((size_t)(f->rows * f->rank) * sizeof(float) + 1));
    FSDP__TRY_NEW(f->right = fsdp__malloc((size_t)(f->rank * f->cols) * sizeof(float) + 1));
    transpose(a, f->rank, f->rows, f->left);
    transpose(b, f->cols, f->rank, f->right);
    return FSDP_OK;
}

/* ---- arithmetic ---- */

/* Adds s left right to `count` elements of a row, from column `first` on. */
static void add_product(const factors *f, int64_t row, int64_t first, int64_t count, float *values)
{
    for (int64_t k = 0; k < f->rank; k++) {
        float factor = f->scaling * f->left[row * f->rank + k];
        const float *right = f->right + k * f->cols + first;

        for (int64_t i = 0; i < count; i++)
            values[i] += factor * right[i];
    }
}

/* Calculates elements [first, first + count) of a row of the merged weight from those of W. */
static void merge_row(const factors *f, int64_t row, int64_t first, int64_t count, float *values)
{
    add_product(f, row, first, count, values);
    for (int64_t i = 0; f->ratio && i < count; i++)
        values[i] *= f->ratio[f->transposed ? first + i : row];
}

/* Calculates the norms of V's outputs. `weight` is whole, and becomes V. */
static fsdp_status norms(const factors *f, float *weight, float **out)
{
    int64_t outputs = f->transposed ? f->cols : f->rows;
    FSDP__FREED double *squares = fsdp__calloc((size_t)outputs + 1, sizeof *squares);
    FSDP__FREED float *n = fsdp__calloc((size_t)outputs + 1, sizeof *n);

    FSDP__TRY_NEW(squares);
    FSDP__TRY_NEW(n);
    for (int64_t row = 0; row < f->rows; row++) {
        float *v = weight + row * f->cols;

        add_product(f, row, 0, f->cols, v);
        for (int64_t i = 0; i < f->cols; i++)
            squares[f->transposed ? i : row] += (double)v[i] * v[i];
    }
    for (int64_t i = 0; i < outputs; i++)
        n[i] = (float)sqrt(squares[i]);
    *out = fsdp__take(&n);
    return FSDP_OK;
}

/* Gets the norms of a layer's outputs; fsdp__free them. [collective] */
static fsdp_status layer_norms(const source *from, const fsdp__adapted *item, const factors *f, float **out)
{
    FSDP__FREED float *weight = NULL;

    FSDP_TRY(gather(from, item->name, "weight", f->rows, f->cols, &weight));
    return norms(f, weight, out);
}

/* ---- merging ---- */

/* Gets everything that a layer's merged weight needs besides W. [collective] */
static fsdp_status prepare(const source *from, const fsdp__adapted *item, factors *f)
{
    FSDP__FREED float *n = NULL;

    FSDP_TRY(gather_factors(from, item, f));
    if (!item->lora->beside.magnitude)
        return FSDP_OK;
    FSDP_TRY(layer_norms(from, item, f, &n));
    FSDP_TRY(gather(from, item->name, "lora_magnitude_vector.weight", item->out, -1, &f->ratio));
    for (int64_t i = 0; i < item->out; i++)
        f->ratio[i] /= n[i];
    return FSDP_OK;
}

typedef struct local_merge {
    const factors *f;
    float *values; /* this rank's part of W */
} local_merge;

/* Merges a run of elements, which may go over several rows. */
static fsdp_status merge_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const local_merge *m = arg;

    while (numel > 0) {
        int64_t row = global / m->f->cols, first = global % m->f->cols, count = FSDP__MIN(numel, m->f->cols - first);

        merge_row(m->f, row, first, count, m->values + local);
        global += count;
        local += count;
        numel -= count;
    }
    return FSDP_OK;
}

/* Makes a copy of this rank's part of W on the host, merged, in `dtype`. Without factors it is merged with nothing. */
static fsdp_status merge_part(const fsdp_state_dict_entry *entry, const factors *f, fsdp_dtype dtype, fsdp_tensor **out)
{
    const fsdp_tensor *w = entry->tensor;
    const fsdp_distribution *distribution = fsdp_tensor_distribution(w);
    FSDP__FREED float *values = fsdp__malloc((size_t)fsdp_tensor_numel(w) * sizeof *values + 1);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *copy = NULL;
    local_merge m = {f, values};

    FSDP__TRY_NEW(values);
    FSDP_TRY(fsdp_tensor_read(w, FSDP_F32, values));
    if (f)
        FSDP_TRY(fsdp_state_dict_entry_runs(entry, merge_run, &m));
    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(fsdp_device_context(fsdp_tensor_device(w))), dtype, fsdp_tensor_ndim(w),
                                fsdp_tensor_shape(w), FSDP_MEMORY_WORKSPACE, &copy));
    if (distribution)
        FSDP_TRY(fsdp_tensor_set_distribution(copy, distribution));
    FSDP_TRY(fsdp_tensor_write(copy, FSDP_F32, values));
    *out = fsdp__take(&copy);
    return FSDP_OK;
}

static const fsdp__adapted *adapted_of(const fsdp_adapter *adapter, const char *weight)
{
    for (int64_t i = 0; i < adapter->count; i++) {
        size_t length = strlen(adapter->items[i].name);

        if (strncmp(weight, adapter->items[i].name, length) == 0 && strcmp(weight + length, ".weight") == 0)
            return &adapter->items[i];
    }
    return NULL;
}

static fsdp_status merge_entry(const source *from, const fsdp_state_dict_entry *entry, fsdp_state_dict *out)
{
    const fsdp__adapted *item = adapted_of(from->adapter, entry->name);
    const fsdp__coded_layer *coded = fsdp__adapter_coded(from->adapter, entry->name);
    fsdp_dtype dtype = coded ? fsdp__layer_code_of(coded->module)->dtype : fsdp_tensor_dtype(entry->tensor);
    FSDP__SCOPED(factors_release) factors f = {0};
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *base = NULL;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *merged = NULL;

    if (!item && !coded)
        return fsdp_state_dict_add(out, entry->name, entry->tensor);
    FSDP_TRY(decoded(from, entry, &base));
    if (item) {
        FSDP_TRY(item->lora->transposed ? check_entry(base->entries, item->in, item->out)
                                        : check_entry(base->entries, item->out, item->in));
        FSDP_TRY(prepare(from, item, &f));
    }
    FSDP_TRY(merge_part(base->entries, item ? &f : NULL, dtype, &merged));
    return fsdp_state_dict_add(out, entry->name, merged);
}

fsdp_status fsdp_adapter_merge(const fsdp_adapter *adapter, const fsdp_state_dict *from, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *own = NULL, *merged = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "a merge needs a place for the result");
    *out = NULL;
    FSDP_TRY(fsdp__adapter_check(adapter, "merge it"));
    if (!from)
        FSDP_TRY(fsdp_state_dict_from_module(adapter->model, &own));
    if (!from)
        from = own;
    FSDP_TRY(fsdp_state_dict_create(&merged));
    for (int64_t i = 0; i < from->count; i++)
        if (!fsdp__adapter_is_low_rank(from->entries[i].name))
            FSDP_TRY(merge_entry(&(source){adapter, from}, &from->entries[i], merged));
    *out = fsdp__take(&merged);
    return FSDP_OK;
}

/* ---- magnitudes ---- */

/* Writes whole values into a layer's magnitude, which may be sharded. [collective] */
static fsdp_status set_magnitude(const fsdp_state_dict *state, const fsdp__adapted *item, const float *values)
{
    const fsdp_state_dict_entry *entry = part_of(state, item->name, "lora_magnitude_vector.weight");
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *to = NULL, *full = NULL;

    if (!entry)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(item->module->context), FSDP_F32, FSDP_SHAPE(item->out), FSDP_MEMORY_WORKSPACE,
                                &whole));
    FSDP_TRY(fsdp_tensor_write(whole, FSDP_F32, values));
    FSDP_TRY(fsdp_state_dict_create(&to));
    FSDP_TRY(fsdp_state_dict_create(&full));
    FSDP_TRY(fsdp_state_dict_add(to, entry->name, entry->tensor));
    FSDP_TRY(fsdp_state_dict_add(full, entry->name, whole));
    return fsdp_state_dict_load_full(to, full, NULL);
}

fsdp_status fsdp__adapter_set_magnitudes(const fsdp_adapter *adapter, const fsdp_state_dict *state)
{
    const source from = {adapter, state};

    for (int64_t i = 0; i < adapter->count; i++) {
        const fsdp__adapted *item = &adapter->items[i];
        FSDP__SCOPED(factors_release) factors f = {0};
        FSDP__FREED float *n = NULL;

        FSDP_TRY(gather_factors(&from, item, &f));
        FSDP_TRY(layer_norms(&from, item, &f, &n));
        FSDP_TRY(set_magnitude(state, item, n));
    }
    return FSDP_OK;
}
