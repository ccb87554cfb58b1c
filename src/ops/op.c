/* op.c - checks and small computations that operations share. */
#include "ops/op.h"
#include "base/alloc.h"
#include "base/context.h"

#include <string.h>

/* ---- checks ---- */

static bool present(const fsdp_tensor *tensor)
{
    return tensor && tensor != FSDP_NO_BIAS;
}

/* Lets the ledger know what memory is taken for from here on. */
static void begin_op(const fsdp_tensor *input, const char *op)
{
    fsdp_context *context = fsdp_device_context(input->storage->device);
    fsdp__taker taker = fsdp__context_taker(context);

    taker.op = op;
    fsdp__context_set_taker(context, taker);
}

bool fsdp__op_inputs(const char *op, fsdp_tensor *const *inputs, int count)
{
    const fsdp_tensor *first = NULL;

    for (int i = 0; i < count; i++) {
        const fsdp_tensor *input = inputs[i];

        if (!present(input))
            continue;
        if (input->global) {
            fsdp__global_refuse(op, input);
            return false;
        }
        first = first ? first : input;
        if (input->storage->device != first->storage->device) {
            FSDP_FAIL(FSDP_INVALID, "%s: inputs are on %s and on %s%s", op, fsdp_device_name(first->storage->device),
                      fsdp_device_name(input->storage->device),
                      fsdp__device_elsewhere(input->storage->device, first->storage->device));
            return false;
        }
        if (fsdp__storage_bring(input->storage) != FSDP_OK)
            return false;
        if (!input->storage->data && input->storage->bytes > 0) {
            FSDP_FAIL(FSDP_STATE, "%s: input %s has no bytes now (a sharded parameter outside its module's call?)", op,
                      FSDP__SHAPE_OF(input));
            return false;
        }
    }
    if (first)
        begin_op(first, op);
    return true;
}

bool fsdp__op_same_dtype(const char *op, fsdp_tensor *const *inputs, int count)
{
    const fsdp_tensor *first = NULL;

    for (int i = 0; i < count; i++) {
        const fsdp_tensor *input = inputs[i];

        if (!present(input))
            continue;
        if (!fsdp_dtype_is_floating(input->dtype)) {
            fsdp__op_bad(op, "input", "floating", input);
            return false;
        }
        first = first ? first : input;
        if (input->dtype != first->dtype) {
            FSDP_FAIL(FSDP_INVALID, "%s: inputs are %s and %s: cast one", op, fsdp_dtype_name(first->dtype),
                      fsdp_dtype_name(input->dtype));
            return false;
        }
    }
    return true;
}

fsdp_tensor *fsdp__op_misfit(const char *op, const char *what, const fsdp_tensor *a, const char *other,
                             const fsdp_tensor *b)
{
    FSDP_FAIL(FSDP_INVALID, "%s: %s %s does not fit %s %s", op, what, FSDP__SHAPE_OF(a), other, FSDP__SHAPE_OF(b));
    return NULL;
}

fsdp_tensor *fsdp__op_bad(const char *op, const char *what, const char *must, const fsdp_tensor *tensor)
{
    FSDP_FAIL(FSDP_INVALID, "%s: %s must be %s, not %s %s", op, what, must, fsdp_dtype_name(tensor->dtype),
              FSDP__SHAPE_OF(tensor));
    return NULL;
}

bool fsdp__op_dim(const char *op, const fsdp_tensor *tensor, int ndim, int *dim)
{
    int given = *dim;

    *dim += given < 0 ? ndim : 0;
    if (*dim >= 0 && *dim < ndim)
        return true;
    FSDP_FAIL(FSDP_INVALID, "%s: input %s has no dimension %d", op, FSDP__SHAPE_OF(tensor), given);
    return false;
}

bool fsdp__op_has_list(const char *op, int count, const void *list)
{
    if (count < 1 || list)
        return true;
    FSDP_FAIL(FSDP_INVALID, "%s: the list of %d is NULL", op, count);
    return false;
}

/* ---- indices ---- */

/* Writes the position of row-major element `index`, such as "(1, 5)". */
static const char *position_text(const fsdp_tensor *tensor, int64_t index, char text[FSDP__SHAPE_TEXT])
{
    int64_t position[FSDP_MAX_DIMS];

    for (int i = tensor->ndim - 1; i >= 0; i--) {
        position[i] = index % tensor->shape[i];
        index /= tensor->shape[i];
    }
    return fsdp__shape_text(tensor->ndim, position, text);
}

/* Returns whether the host knows, without reading them, that all indices are right; then `*valid` is set. */
static bool is_known_right(const fsdp_tensor *indices, int64_t limit, int64_t ignore, int64_t *valid)
{
    int64_t numel = fsdp_tensor_numel(indices);
    fsdp__range range;

    if (!fsdp__tensor_range(indices, &range) || range.highest >= limit)
        return false;
    *valid = numel;
    if (ignore == limit || range.lowest != ignore)
        return range.lowest >= 0;
    *valid -= range.lowest_count;
    /* A view may have only some of the integers, or one several times. */
    return range.count == numel && fsdp_tensor_is_contiguous(indices) && (*valid == 0 || range.next_lowest >= 0);
}

fsdp_status fsdp__op_check_indices(const char *op, const char *what, const fsdp_tensor *indices, int64_t limit,
                                   int64_t ignore, int64_t *valid)
{
    int64_t numel = fsdp_tensor_numel(indices);
    bool wide = indices->dtype == FSDP_I64;
    char text[FSDP__SHAPE_TEXT];
    FSDP__FREED void *values = NULL;

    if (is_known_right(indices, limit, ignore, valid))
        return FSDP_OK;
    *valid = numel;
    if (numel == 0 || !fsdp__device_has_bytes(indices->storage->device))
        return FSDP_OK;
    FSDP__TRY_NEW(values = fsdp__malloc((size_t)numel * fsdp_dtype_size(indices->dtype)));
    FSDP_TRY(fsdp_tensor_read(indices, indices->dtype, values));
    for (int64_t i = 0; i < numel; i++) {
        int64_t value = wide ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];

        if (value >= 0 && value < limit)
            continue;
        if (ignore != limit && value == ignore) {
            (*valid)--;
            continue;
        }
        return FSDP_FAIL(FSDP_INVALID, "%s: %s %lld at position %s is outside [0, %lld)", op, what, (long long)value,
                         position_text(indices, i, text), (long long)limit);
    }
    return FSDP_OK;
}

/* ---- positions in documents ---- */

static fsdp_status bad_position(const char *op, const fsdp_tensor *positions, const int32_t *values, int64_t wrong)
{
    char text[FSDP__SHAPE_TEXT];

    position_text(positions, wrong, text);
    if (wrong % positions->shape[1] == 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: position %d at %s: a row begins with 0", op, (int)values[wrong], text);
    return FSDP_FAIL(FSDP_INVALID,
                     "%s: position %d at %s is neither 0, where a document begins, nor %d, one more than the token "
                     "before it",
                     op, (int)values[wrong], text, (int)values[wrong - 1] + 1);
}

fsdp_status fsdp__op_check_positions(const char *op, fsdp_tensor *positions, int64_t batch, int64_t time,
                                     fsdp_tensor **contiguous, int64_t *pairs)
{
    FSDP__FREED int32_t *values = NULL;
    const fsdp__documents *known;
    fsdp__documents found;

    if (positions->dtype != FSDP_I32) {
        fsdp__op_bad(op, "positions", "int32", positions);
        return FSDP_INVALID;
    }
    if (positions->ndim != 2 || positions->shape[0] != batch || positions->shape[1] != time)
        return FSDP_FAIL(FSDP_INVALID, "%s: positions %s do not fit a batch of %lld x %lld tokens", op,
                         FSDP__SHAPE_OF(positions), (long long)batch, (long long)time);
    FSDP__TRY_MADE(*contiguous = fsdp__op_contiguous(positions));
    known = fsdp__tensor_documents(positions);
    *pairs = known ? known->pairs : 0;
    if (known || fsdp_tensor_numel(positions) == 0 || !fsdp__device_has_bytes(positions->storage->device))
        return FSDP_OK;
    FSDP__TRY_NEW(values = fsdp__malloc((size_t)fsdp_tensor_numel(positions) * sizeof *values));
    FSDP_TRY(fsdp_tensor_read(positions, FSDP_I32, values));
    found = fsdp__documents_of(values, batch, time);
    if (found.wrong >= 0)
        return bad_position(op, positions, values, found.wrong);
    *pairs = found.pairs;
    fsdp__tensor_note_documents(positions, found);
    return FSDP_OK;
}

int64_t fsdp__op_longest_document(const fsdp_tensor *positions)
{
    const fsdp__documents *known = fsdp__tensor_documents(positions);
    size_t bytes = (size_t)fsdp_tensor_numel(positions) * sizeof(int32_t);
    FSDP__FREED int32_t *values = NULL;

    if (known)
        return known->longest;
    if (bytes == 0 || !fsdp__device_has_bytes(positions->storage->device))
        return positions->shape[1];
    values = fsdp__malloc(bytes);
    if (!values) {
        (void)fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read positions");
        return 0;
    }
    if (fsdp_tensor_read(positions, FSDP_I32, values) != FSDP_OK)
        return 0;
    return fsdp__documents_of(values, positions->shape[0], positions->shape[1]).longest;
}

/* ---- small computations ---- */

fsdp_stream *fsdp__op_stream(const fsdp_tensor *tensor)
{
    return fsdp_device_stream(tensor->storage->device);
}

fsdp_tensor *fsdp__op_contiguous(fsdp_tensor *tensor)
{
    fsdp_tensor *copy;

    if (!tensor || fsdp_tensor_is_contiguous(tensor))
        return tensor;
    copy = fsdp__empty_like(tensor, tensor->dtype);
    if (!copy || fsdp__tensor_copy(copy, tensor, false) != FSDP_OK)
        return NULL;
    return copy;
}

fsdp_tensor *fsdp__op_of_one(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor **y)
{
    fsdp_tensor *from;

    if (!x || !fsdp__op_inputs(op->name, &x, 1) || !fsdp__op_same_dtype(op->name, &x, 1))
        return NULL;
    from = fsdp__op_contiguous(x);
    *y = fsdp__empty_like(x, x->dtype);
    return *y ? from : NULL;
}

fsdp_tensor *fsdp__op_reuse(fsdp_tensor *grad)
{
    return !grad || fsdp__grad_exclusive(grad) ? grad : fsdp__empty_like(grad, grad->dtype);
}

int64_t fsdp__op_last(const fsdp_tensor *tensor)
{
    return tensor->ndim > 0 ? tensor->shape[tensor->ndim - 1] : 1;
}

fsdp_status fsdp__op_wide(const fsdp_tensor *x, int64_t cols, fsdp_tensor **out)
{
    int64_t shape[FSDP_MAX_DIMS];

    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = cols;
    return fsdp_tensor_create(x->storage->device, x->dtype, x->ndim, shape, FSDP_MEMORY_ACTIVATION, out);
}

fsdp_tensor *fsdp__op_gradient(fsdp__node *node, int input, const fsdp_tensor *like)
{
    fsdp_tensor *place;

    if (fsdp__node_place(node, input, &place) != FSDP_OK)
        return NULL;
    return place ? place : fsdp__empty_like(like, like->dtype);
}

int64_t fsdp__op_rows(const fsdp_tensor *tensor)
{
    return tensor->ndim > 0 ? fsdp__shape_numel(tensor->ndim - 1, tensor->shape) : 1;
}

fsdp_status fsdp__op_scale(const fsdp_tensor *x, float alpha, const fsdp_tensor *scalar, fsdp_tensor *y)
{
    const fsdp__scale_args args = {.x = fsdp_tensor_data(x),
                                   .y = fsdp_tensor_data(y),
                                   .scalar = scalar ? fsdp_tensor_data(scalar) : NULL,
                                   .alpha = alpha,
                                   .numel = fsdp_tensor_numel(x),
                                   .dtype = x->dtype};

    return fsdp__launch_scale(fsdp__op_stream(y), &args);
}

fsdp_status fsdp__op_reduce(const fsdp_tensor *x, int64_t outer, int64_t reduced, int64_t inner, fsdp_tensor *out,
                            bool accumulate)
{
    const fsdp__reduce_args args = {.x = fsdp_tensor_data(x),
                                    .y = fsdp_tensor_data(out),
                                    .outer = outer,
                                    .reduced = reduced,
                                    .inner = inner,
                                    .alpha = 1.0f,
                                    .x_dtype = x->dtype,
                                    .y_dtype = out->dtype,
                                    .accumulate = accumulate};

    return fsdp__launch_reduce(fsdp__op_stream(out), &args);
}

/* The dimensions of a tensor, with adjacent ones that are all reduced, or all kept, joined into one. */
typedef struct runs {
    int count;
    int64_t sizes[FSDP_MAX_DIMS];
    bool reduced[FSDP_MAX_DIMS];
} runs;

static runs runs_of(const fsdp_tensor *x, const bool *reduced)
{
    runs r = {.count = 0};

    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 1)
            continue;
        if (r.count > 0 && r.reduced[r.count - 1] == reduced[d]) {
            r.sizes[r.count - 1] *= x->shape[d];
        } else {
            r.sizes[r.count] = x->shape[d];
            r.reduced[r.count++] = reduced[d];
        }
    }
    return r;
}

/* Returns which run is reduced next: the longest, so that the next pass has the least to read. -1: none is left.
 * `*left` is how many are left. */
static int next_run(const runs *r, int *left)
{
    int at = -1;

    *left = 0;
    for (int i = 0; i < r->count; i++) {
        if (!r->reduced[i])
            continue;
        (*left)++;
        at = at < 0 || r->sizes[i] > r->sizes[at] ? i : at;
    }
    return at;
}

fsdp_status fsdp__op_reduce_dims(const fsdp_tensor *x, const bool *reduced, fsdp__reduce_op op, float alpha,
                                 fsdp_tensor *out, bool accumulate)
{
    runs r = runs_of(x, reduced);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *from = NULL;
    int left;

    if (fsdp_tensor_numel(out) == 0)
        return FSDP_OK;
    do {
        int at = next_run(&r, &left);
        fsdp__reduce_args args = {.outer = at >= 0 ? fsdp__shape_numel(at, r.sizes) : 1,
                                  .reduced = at >= 0 ? r.sizes[at] : 1,
                                  .inner = at >= 0 ? fsdp__shape_numel(r.count - at - 1, r.sizes + at + 1)
                                                   : fsdp_tensor_numel(x),
                                  .alpha = left > 1 ? 1.0f : alpha,
                                  .op = op,
                                  .y_dtype = left > 1 ? FSDP_F32 : out->dtype,
                                  .accumulate = left <= 1 && accumulate};
        const int64_t kept[] = {args.outer, args.inner};
        fsdp_tensor *next = out;
        fsdp_status status;

        if (left > 1)
            FSDP_TRY(fsdp_tensor_create(x->storage->device, FSDP_F32, 2, kept, FSDP_MEMORY_ACTIVATION, &next));
        args.x = fsdp_tensor_data(from ? from : x);
        args.x_dtype = from ? FSDP_F32 : x->dtype;
        args.y = fsdp_tensor_data(next);
        status = fsdp__launch_reduce(fsdp__op_stream(out), &args);
        fsdp_tensor_unref(from);
        from = left > 1 ? next : NULL;
        FSDP_TRY(status);
        if (at >= 0)
            r.sizes[at] = 1, r.reduced[at] = false;
    } while (left > 1);
    return FSDP_OK;
}

fsdp_status fsdp__op_broadcast(fsdp_tensor *dst, const fsdp_tensor *src, const int64_t *strides)
{
    fsdp__copy_args args = {.src = fsdp_tensor_data(src),
                            .dst = fsdp_tensor_data(dst),
                            .src_dtype = src->dtype,
                            .dst_dtype = dst->dtype,
                            .ndim = dst->ndim};

    memcpy(args.shape, dst->shape, sizeof args.shape);
    memcpy(args.dst_strides, dst->strides, sizeof args.dst_strides);
    memcpy(args.src_strides, strides, (size_t)dst->ndim * sizeof *strides);
    if (fsdp_tensor_numel(dst) == 0)
        return FSDP_OK;
    return fsdp__launch_copy(fsdp__op_stream(dst), &args);
}
