/* print_tensor.c - the text that PyTorch shows for a tensor, character by character: precision 4, edges of 3 above 1000
 * elements, lines of 80 columns. All elements that are shown have one width and one notation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"
#include "tensor/tensor.h"

enum {
    EDGE = 3,
    THRESHOLD = 1000,
    LINE_WIDTH = 80,
    VALUE_TEXT = 64
};

typedef struct printer {
    FILE *file;
    int column; /* characters since the last line break */
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS]; /* of the elements that are shown */
    bool cut[FSDP_MAX_DIMS];      /* the dimension shows only its edges */
    const float *floats;          /* the elements shown; one of the two is set */
    const int64_t *integers;
    int width;
    bool integral, scientific;
} printer;

static void put(printer *p, const char *text)
{
    const char *line = strrchr(text, '\n');

    fputs(text, p->file);
    p->column = line ? (int)strlen(line + 1) : p->column + (int)strlen(text);
}

static void break_line(printer *p, int breaks, int indent)
{
    while (breaks-- > 0)
        put(p, "\n");
    while (indent-- > 0)
        put(p, " ");
}

/* ---- one element ---- */

static void format_float(const printer *p, double value, char text[VALUE_TEXT])
{
    if (isnan(value))
        snprintf(text, VALUE_TEXT, "nan");
    else if (isinf(value))
        snprintf(text, VALUE_TEXT, value < 0 ? "-inf" : "inf");
    else if (p->scientific)
        snprintf(text, VALUE_TEXT, "%.4e", value);
    else if (p->integral)
        snprintf(text, VALUE_TEXT, "%.0f.", value);
    else
        snprintf(text, VALUE_TEXT, "%.4f", value);
}

static void format_value(const printer *p, int64_t index, char text[VALUE_TEXT])
{
    if (p->floats)
        format_float(p, p->floats[index], text);
    else if (p->dtype == FSDP_BOOL)
        snprintf(text, VALUE_TEXT, "%s", p->integers[index] ? "True" : "False");
    else
        snprintf(text, VALUE_TEXT, "%lld", (long long)p->integers[index]);
}

/* Decides notation and width. Of floats, only finite ones that are not zero count. */
static void measure(printer *p, int64_t numel)
{
    double low = INFINITY, high = 0;
    char text[VALUE_TEXT];

    p->width = 1;
    p->integral = true;
    for (int64_t i = 0; p->floats && i < numel; i++) {
        double value = p->floats[i];
        if (!isfinite(value) || value == 0)
            continue;
        low = fmin(low, fabs(value));
        high = fmax(high, fabs(value));
        p->integral &= value == ceil(value);
    }
    p->scientific = high > 0 && (high / low > 1000.0 || high > 1.0e8 || low < 1.0e-4);
    for (int64_t i = 0; i < numel; i++) {
        if (p->floats && (!isfinite(p->floats[i]) || p->floats[i] == 0))
            continue;
        format_value(p, i, text);
        p->width = FSDP__MAX(p->width, (int)strlen(text));
    }
}

static void put_value(printer *p, int64_t index)
{
    char text[VALUE_TEXT];

    format_value(p, index, text);
    for (int i = (int)strlen(text); i < p->width; i++)
        put(p, " ");
    put(p, text);
}

/* ---- nested brackets ---- */

/* Prints the last dimension; `first` is the index of its first element. */
static void put_vector(printer *p, int indent, int64_t first)
{
    int64_t numel = p->shape[p->ndim - 1];
    int64_t cells = numel + p->cut[p->ndim - 1];
    int64_t cells_a_line = FSDP__MAX(1, (LINE_WIDTH - indent) / (p->width + 2));

    put(p, "[");
    for (int64_t cell = 0; cell < cells; cell++) {
        bool dots = cells > numel && cell == EDGE;
        if (cell > 0 && cell % cells_a_line == 0) {
            put(p, ",");
            break_line(p, 1, indent + 1);
        } else if (cell > 0) {
            put(p, ", ");
        }
        if (dots)
            put(p, " ...");
        else
            put_value(p, first + cell - (cells > numel && cell > EDGE));
    }
    put(p, "]");
}

static void put_nested(printer *p, int dim, int indent, int64_t first)
{
    int64_t below = fsdp__shape_numel(p->ndim - dim - 1, p->shape + dim + 1);

    if (dim == p->ndim - 1) {
        put_vector(p, indent, first);
        return;
    }
    put(p, "[");
    for (int64_t i = 0; i < p->shape[dim]; i++) {
        if (i > 0) {
            put(p, ",");
            break_line(p, p->ndim - dim - 1, indent + 1);
        }
        if (p->cut[dim] && i == EDGE) {
            put(p, "...,");
            break_line(p, p->ndim - dim - 1, indent + 1);
        }
        put_nested(p, dim + 1, indent + 1, first + i * below);
    }
    put(p, "]");
}

/* ---- the elements that are shown ---- */

/* Copies `src` to `dst` without the middle of the dimensions that are cut, one box at a time. */
static fsdp_status copy_edges(const fsdp_tensor *src, fsdp_tensor *dst, int dim)
{
    if (dim == src->ndim)
        return fsdp__tensor_copy(dst, src, false);
    if (src->shape[dim] <= 2 * EDGE)
        return copy_edges(src, dst, dim + 1);
    for (int end = 0; end < 2; end++) {
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *from = NULL, *to = NULL;

        FSDP_TRY(fsdp__view_narrow(src, dim, end ? src->shape[dim] - EDGE : 0, EDGE, &from));
        FSDP_TRY(fsdp__view_narrow(dst, dim, end ? EDGE : 0, EDGE, &to));
        FSDP_TRY(copy_edges(from, to, dim + 1));
    }
    return FSDP_OK;
}

/* Copies what is shown to the host, as float or int64; fsdp__free it. Sets the printer's shape. */
static fsdp_status read_shown(printer *p, const fsdp_tensor *tensor, void **out)
{
    bool summarize = fsdp_tensor_numel(tensor) > THRESHOLD;
    fsdp_dtype dtype = fsdp_dtype_is_floating(tensor->dtype) ? FSDP_F32 : FSDP_I64;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *edges = NULL;
    FSDP__FREED void *data = NULL;

    for (int d = 0; d < p->ndim; d++) {
        p->cut[d] = summarize && tensor->shape[d] > 2 * EDGE;
        p->shape[d] = p->cut[d] ? 2 * EDGE : tensor->shape[d];
    }
    if (summarize) {
        FSDP_TRY(fsdp_tensor_create(tensor->storage->device, tensor->dtype, p->ndim, p->shape, FSDP_MEMORY_WORKSPACE,
                                    &edges));
        FSDP_TRY(copy_edges(tensor, edges, 0));
        tensor = edges;
    }
    FSDP__TRY_NEW(data = fsdp__calloc((size_t)fsdp_tensor_numel(tensor), fsdp_dtype_size(dtype)));
    FSDP_TRY(fsdp_tensor_read(tensor, dtype, data));
    *out = fsdp__take(&data);
    return FSDP_OK;
}

/* ---- what follows the elements ---- */

static void put_suffix(printer *p, int indent, const char *text)
{
    if (p->column + 2 + (int)strlen(text) + 2 > LINE_WIDTH) {
        put(p, ",");
        break_line(p, 1, indent);
        p->column = indent - 2; /* the margin counts on the first line only */
    } else {
        put(p, ", ");
    }
    put(p, text);
}

static void put_suffixes(printer *p, const fsdp_tensor *tensor, int indent)
{
    bool meta = fsdp_device_is_meta(tensor->storage->device), empty = fsdp_tensor_numel(tensor) == 0;
    bool usual = p->dtype == FSDP_F32 || (!meta && !empty && (p->dtype == FSDP_I64 || p->dtype == FSDP_BOOL));
    char text[FSDP__SHAPE_TEXT + 16];

    if (meta) {
        snprintf(text, sizeof text, "device='%s'", fsdp_device_name(tensor->storage->device));
        put_suffix(p, indent, text);
    }
    if (meta || (empty && p->ndim != 1)) {
        snprintf(text, sizeof text, "size=%s", FSDP__SHOWN_SHAPE(p->ndim, tensor->shape));
        put_suffix(p, indent, text);
    }
    if (!usual) {
        snprintf(text, sizeof text, "dtype=torch.%s", fsdp_dtype_name(p->dtype));
        put_suffix(p, indent, text);
    }
}

fsdp_status fsdp_tensor_print(const fsdp_tensor *tensor, FILE *stream)
{
    static const char opening[] = "tensor(";
    const int indent = (int)strlen(opening);
    printer p = {.file = stream};
    FSDP__FREED void *data = NULL;

    if (!tensor)
        return FSDP__FAIL_NULL("cannot print: the tensor is NULL");
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot print: the stream is NULL");
    p.dtype = tensor->dtype;
    p.ndim = tensor->ndim;
    if (!fsdp_device_is_meta(tensor->storage->device) && fsdp_tensor_numel(tensor) > 0) {
        FSDP_TRY(read_shown(&p, tensor, &data));
        if (fsdp_dtype_is_floating(p.dtype))
            p.floats = data;
        else
            p.integers = data;
        measure(&p, fsdp__shape_numel(p.ndim, p.shape));
    }
    put(&p, opening);
    if (fsdp_device_is_meta(tensor->storage->device))
        put(&p, "...");
    else if (!data)
        put(&p, "[]");
    else if (p.ndim == 0)
        put_value(&p, 0);
    else
        put_nested(&p, 0, indent, 0);
    put_suffixes(&p, tensor, indent);
    put(&p, ")\n");
    if (ferror(stream))
        return FSDP_FAIL(FSDP_IO, "cannot print a tensor: writing failed");
    return FSDP_OK;
}
