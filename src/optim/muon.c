/* muon.c - steps of matrices that are made orthogonal.
 *
 * Momentum is kept by shards. To be made orthogonal a matrix must be whole, so matrices are divided among the ranks
 * that share them: of each batch every rank gets the parts of one matrix from all others, makes it orthogonal, and
 * sends the parts back. Both ways it is bfloat16, in which the result is computed anyway. That is 4 bytes an element
 * (over each mesh dimension that splits the matrix) and a share of the work, where gathering each matrix on every rank
 * would be 2 bytes times the number of ranks, and all of the work on each. What one rank computes of a whole matrix
 * does not depend on how it was cut. */
#include <math.h>

#include "base/alloc.h"
#include "base/text.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum {
    ITERATIONS = 5
};
static const double A = 3.4445, B = -4.775, C = 2.0315; /* of X = A X + (B G + C G G) X, with G = X X^T */

/* ---- who has what ---- */

/* The mesh dimensions that split a matrix; its ranks are numbered row-major over them. */
typedef struct split {
    int count, dims[FSDP_MAX_MESH_DIMS], sizes[FSDP_MAX_MESH_DIMS];
    fsdp_process_group *groups[FSDP_MAX_MESH_DIMS];
    int ranks, rank; /* 1 and 0 if it is whole */
} split;

static split split_of(const fsdp_tensor *tensor)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    split s = {.ranks = 1};

    for (int i = 0; distribution && i < distribution->placement_count; i++) {
        int size = (int)fsdp_mesh_size(distribution->mesh, i);

        if (distribution->placements[i].kind == FSDP_REPLICATE || size == 1)
            continue;
        s.dims[s.count] = i;
        s.sizes[s.count] = size;
        s.groups[s.count++] = fsdp_mesh_process_group(distribution->mesh, i);
        s.ranks *= size;
        s.rank = s.rank * size + fsdp_mesh_coordinate(distribution->mesh, i);
    }
    return s;
}

/* Gives the rows and columns of the whole matrix. */
static void matrix_shape(const fsdp_tensor *tensor, int64_t *rows, int64_t *cols)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    const int64_t *shape = distribution ? distribution->global_shape : tensor->shape;

    *rows = shape[0];
    *cols = shape[1];
}

fsdp_status fsdp__muon_check(const char *name, const fsdp_tensor *tensor)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    int ndim = distribution ? distribution->ndim : tensor->ndim;
    fsdp__spread spread;

    if (ndim != 2)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot optimize '%s' by Muon: it has %d dimension%s, and Muon is for matrices: add it as a "
                         "group of AdamW (fsdp_adam_add_group)",
                         name, ndim, fsdp__plural(ndim));
    return fsdp__spread_of(name, tensor, "optimize", &spread);
}

/* Elements that follow one another with equal strides: `rows` runs of `cols`. */
typedef struct block {
    int64_t rows, cols;
    int64_t in_part, part_stride;   /* where the first lies in a rank's part, and how far apart runs are there */
    int64_t in_whole, whole_stride; /* the same in the whole matrix */
} block;

/* Gives the blocks that the rank of this number has; returns how many they are. */
static int blocks_of(const fsdp_tensor *tensor, int number, block blocks[FSDP_MAX_SEGMENTS])
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    int64_t numel = fsdp_tensor_numel(tensor), offset[FSDP_MAX_DIMS], shape[FSDP_MAX_DIMS];
    int coordinates[FSDP_MAX_MESH_DIMS] = {0}, count;
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    split s = split_of(tensor);

    blocks[0] = (block){.rows = 1, .cols = numel, .part_stride = numel, .whole_stride = numel};
    if (s.count == 0)
        return numel > 0;
    for (int i = 0; i < d->placement_count; i++)
        coordinates[i] = fsdp_mesh_coordinate(d->mesh, i);
    for (int i = s.count - 1; i >= 0; i--) {
        coordinates[s.dims[i]] = number % s.sizes[i];
        number /= s.sizes[i];
    }
    count = fsdp_distribution_pieces(d, coordinates, pieces);
    fsdp_distribution_box(d, coordinates, offset, shape);
    for (int i = 0; i < count; i++) {
        const fsdp_piece *p = &pieces[i];

        if (fsdp_distribution_is_flat(d))
            blocks[i] = (block){.rows = 1, .cols = p->size[0], .in_whole = p->offset[0]};
        else
            blocks[i] = (block){.rows = p->size[0],
                                .cols = p->size[1],
                                .in_part = p->local_offset[0] * shape[1] + p->local_offset[1],
                                .part_stride = shape[1],
                                .in_whole = p->offset[0] * d->global_shape[1] + p->offset[1],
                                .whole_stride = d->global_shape[1]};
    }
    return count;
}

/* Returns how many elements of the matrix the rank of this number has. */
static int64_t part_of(const fsdp_tensor *tensor, int number)
{
    block blocks[FSDP_MAX_SEGMENTS];
    int count = blocks_of(tensor, number, blocks);
    int64_t numel = 0;

    for (int i = 0; i < count; i++)
        numel += blocks[i].rows * blocks[i].cols;
    return numel;
}

/* ---- one matrix ---- */

static fsdp_status create(fsdp_device *device, fsdp_dtype dtype, int64_t numel, fsdp_tensor **out)
{
    return fsdp_tensor_create(device, dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, out);
}

/* Adds factor * from, in bfloat16, to `to`, in f32. */
static fsdp_status add_scaled(fsdp_stream *stream, double factor, const fsdp_tensor *from, const fsdp_tensor *to)
{
    const fsdp__optimizer_span span = {
        .param = fsdp_tensor_data(to), .grad = fsdp_tensor_data(from), .numel = fsdp_tensor_numel(to)};

    return fsdp__launch_sgd(stream, &(fsdp__sgd_args){.spans = &span,
                                                      .count = 1,
                                                      .param_dtype = FSDP_F32,
                                                      .grad_dtype = FSDP_BF16,
                                                      .lr = -factor,
                                                      .grad_scale = 1,
                                                      .step = 1});
}

static fsdp_status cast(fsdp_stream *stream, const fsdp_tensor *from, const fsdp_tensor *to)
{
    const fsdp__span span = {
        .src = fsdp_tensor_data(from), .dst = fsdp_tensor_data(to), .numel = fsdp_tensor_numel(from)};

    return fsdp__launch_cast_spans(
        stream, &(fsdp__cast_spans_args){.spans = &span, .count = 1, .src_dtype = from->dtype, .dst_dtype = to->dtype});
}

/* Gives the 2-norm of a tensor; waits for it. */
static fsdp_status norm_of(fsdp_stream *stream, const fsdp_tensor *x, double *out)
{
    fsdp__span span = {.src = fsdp_tensor_data(x), .numel = fsdp_tensor_numel(x)};
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0};
    fsdp__digit_sum sum = {0};

    FSDP_TRY(fsdp__workspace_take(x->storage->device, sizeof sum, &work));
    FSDP_TRY(fsdp__launch_power_sum(
        stream, &(fsdp__power_sum_args){.spans = &span, .count = 1, .dtype = x->dtype, .p = 2, .sum = work.data}));
    FSDP_TRY(fsdp__copy_to_host(stream, &sum, work.data, sizeof sum));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    *out = sqrt(fsdp__digit_sum_value(&sum));
    return FSDP_OK;
}

/* Holds what is needed beside a matrix X (rows, cols) in bfloat16; n is the smaller of the two. */
typedef struct newton {
    fsdp_stream *stream;
    int64_t rows, cols, n;
    bool tall;                   /* G is X^T X, and stands on the right */
    fsdp_tensor *x, *gram, *mix; /* bfloat16: X; G (n,n), and what it is mixed to */
    fsdp_tensor *square, *next;  /* f32: (n,n), (rows, cols) */
} newton;

static void release_newton(newton *w)
{
    fsdp_tensor *const all[] = {w->gram, w->mix, w->square, w->next};

    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        fsdp_tensor_unref(all[i]);
}

/* f32 `c` (m,n) = alpha * a (m,k) x b (k,n). */
static fsdp_status multiply(const newton *w, fsdp__matmul_args args)
{
    args.batch = 1;
    args.a_dtype = args.b_dtype = FSDP_BF16;
    args.c_dtype = FSDP_F32;
    args.bias_dtype = FSDP_F32;
    return fsdp__launch_matmul(w->stream, &args);
}

/* G = X X^T, or X^T X of a tall matrix: the smaller one. */
static fsdp_status make_gram(const newton *w)
{
    void *x = fsdp_tensor_data(w->x);
    int64_t a_row = w->tall ? 1 : w->cols, a_col = w->tall ? w->cols : 1;

    FSDP_TRY(multiply(w, (fsdp__matmul_args){.a = x,
                                             .b = x,
                                             .c = fsdp_tensor_data(w->square),
                                             .m = w->n,
                                             .n = w->n,
                                             .k = w->tall ? w->rows : w->cols,
                                             .a_row = a_row,
                                             .a_col = a_col,
                                             .b_row = a_col,
                                             .b_col = a_row,
                                             .c_row = w->n,
                                             .alpha = 1}));
    return cast(w->stream, w->square, w->gram);
}

/* mix = B G + C G G. */
static fsdp_status mix_gram(const newton *w)
{
    void *g = fsdp_tensor_data(w->gram);

    FSDP_TRY(multiply(w, (fsdp__matmul_args){.a = g,
                                             .b = g,
                                             .c = fsdp_tensor_data(w->square),
                                             .m = w->n,
                                             .n = w->n,
                                             .k = w->n,
                                             .a_row = w->n,
                                             .a_col = 1,
                                             .b_row = w->n,
                                             .b_col = 1,
                                             .c_row = w->n,
                                             .alpha = (float)C}));
    FSDP_TRY(add_scaled(w->stream, B, w->gram, w->square));
    return cast(w->stream, w->square, w->mix);
}

/* X = A X + mix X. */
static fsdp_status iterate(const newton *w)
{
    void *x = fsdp_tensor_data(w->x), *mix = fsdp_tensor_data(w->mix);

    FSDP_TRY(make_gram(w));
    FSDP_TRY(mix_gram(w));
    FSDP_TRY(multiply(w, (fsdp__matmul_args){.a = w->tall ? x : mix,
                                             .b = w->tall ? mix : x,
                                             .c = fsdp_tensor_data(w->next),
                                             .m = w->rows,
                                             .n = w->cols,
                                             .k = w->n,
                                             .a_row = w->n,
                                             .a_col = 1,
                                             .b_row = w->cols,
                                             .b_col = 1,
                                             .c_row = w->cols,
                                             .alpha = 1}));
    FSDP_TRY(add_scaled(w->stream, A, w->x, w->next));
    return cast(w->stream, w->next, w->x);
}

/* Makes the matrix orthogonal, more or less: its singular values come near 1. */
static fsdp_status orthogonalize(fsdp_tensor *x, int64_t rows, int64_t cols)
{
    fsdp_device *device = x->storage->device;
    FSDP__SCOPED(release_newton)
    newton w = {.stream = fsdp_device_stream(device),
                .rows = rows,
                .cols = cols,
                .n = FSDP__MIN(rows, cols),
                .tall = rows > cols,
                .x = x};
    double norm = 0;

    FSDP_TRY(create(device, FSDP_BF16, w.n * w.n, &w.gram));
    FSDP_TRY(create(device, FSDP_BF16, w.n * w.n, &w.mix));
    FSDP_TRY(create(device, FSDP_F32, w.n * w.n, &w.square));
    FSDP_TRY(create(device, FSDP_F32, rows * cols, &w.next));
    FSDP_TRY(norm_of(w.stream, x, &norm));
    FSDP_TRY(fsdp_tensor_fill_(w.next, 0));
    FSDP_TRY(add_scaled(w.stream, 1 / (norm + 1e-7), x, w.next));
    FSDP_TRY(cast(w.stream, w.next, x));
    for (int i = 0; i < ITERATIONS; i++)
        FSDP_TRY(iterate(&w));
    return FSDP_OK;
}

/* ---- a batch: one matrix for each rank ---- */

typedef struct batch {
    const fsdp_optimizer *optimizer;
    const fsdp__optimizer_group *group;
    fsdp__optimizer_param **params; /* matrix i is rank i's */
    int count;
    split split; /* of all of them; its ranks share them */
    fsdp_device *device;
    fsdp_stream *stream;
    int64_t part;               /* elements of the largest part of any matrix by any rank */
    fsdp_tensor *slots, *other; /* bfloat16, (ranks, part) */
} batch;

static void release_batch(batch *r)
{
    fsdp_tensor_unref(r->slots);
    fsdp_tensor_unref(r->other);
}

static char *slot(const fsdp_tensor *buffer, const batch *r, int i)
{
    return (char *)fsdp_tensor_data(buffer) + (size_t)(i * r->part) * fsdp_dtype_size(FSDP_BF16);
}

/* dst += weight * (scale * src - dst) */
static fsdp_status lerp(const batch *r, const void *src, fsdp_dtype dtype, void *dst, int64_t numel, double weight,
                        float scale)
{
    const fsdp__span span = {.src = src, .dst = dst, .numel = numel};

    return fsdp__launch_lerp_spans(r->stream, &(fsdp__lerp_spans_args){.spans = &span,
                                                                       .count = 1,
                                                                       .src_dtype = dtype,
                                                                       .dst_dtype = FSDP_F32,
                                                                       .weight = (float)weight,
                                                                       .scale = scale});
}

/* Moves the momentum of this rank's part, and puts what is to be made orthogonal into a slot. */
static fsdp_status prepare(const batch *r, int i)
{
    const fsdp__optimizer_param *p = r->params[i];
    const fsdp_tensor *grad = fsdp_tensor_grad(p->tensor);
    const fsdp_muon_options *options = &r->group->options.muon;
    int64_t numel = fsdp_tensor_numel(p->tensor);
    float *m = fsdp_tensor_data(p->moment1), scale = r->optimizer->grad_scale;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *u = NULL;
    fsdp__span span;

    if (numel == 0)
        return FSDP_OK;
    FSDP_TRY(lerp(r, fsdp_tensor_data(grad), grad->dtype, m, numel, 1 - options->momentum, scale));
    FSDP_TRY(create(r->device, FSDP_F32, numel, &u));
    FSDP_TRY(fsdp_tensor_fill_(u, 0));
    if (options->nesterov) {
        FSDP_TRY(lerp(r, fsdp_tensor_data(grad), grad->dtype, fsdp_tensor_data(u), numel, 1, scale));
        FSDP_TRY(lerp(r, m, FSDP_F32, fsdp_tensor_data(u), numel, options->momentum, 1));
    } else {
        FSDP_TRY(lerp(r, m, FSDP_F32, fsdp_tensor_data(u), numel, 1, 1));
    }
    span = (fsdp__span){.src = fsdp_tensor_data(u), .dst = slot(r->slots, r, i), .numel = numel};
    return fsdp__launch_cast_spans(
        r->stream, &(fsdp__cast_spans_args){.spans = &span, .count = 1, .src_dtype = FSDP_F32, .dst_dtype = FSDP_BF16});
}

/* Copies a block from its slot to its place in the matrix, or back. */
static fsdp_status move_block(const batch *r, const block *b, char *in_slot, char *whole, bool back)
{
    size_t size = fsdp_dtype_size(FSDP_BF16);
    char *part = in_slot + (size_t)b->in_part * size, *place = whole + (size_t)b->in_whole * size;
    bool together = b->rows == 1 || (b->cols == b->part_stride && b->cols == b->whole_stride);
    const fsdp__span span = {.src = back ? place : part, .dst = back ? part : place, .numel = b->rows * b->cols};
    fsdp__copy_args args = {.src = span.src,
                            .dst = (void *)(uintptr_t)span.dst,
                            .src_dtype = FSDP_BF16,
                            .dst_dtype = FSDP_BF16,
                            .ndim = 2,
                            .shape = {b->rows, b->cols},
                            .src_strides = {back ? b->whole_stride : b->part_stride, 1},
                            .dst_strides = {back ? b->part_stride : b->whole_stride, 1}};

    if (!together)
        return fsdp__launch_copy(r->stream, &args);
    return fsdp__launch_cast_spans(
        r->stream,
        &(fsdp__cast_spans_args){.spans = &span, .count = 1, .src_dtype = FSDP_BF16, .dst_dtype = FSDP_BF16});
}

/* Copies the parts of this rank's matrix from their slots to their places in it, or back. */
static fsdp_status move_parts(const batch *r, const fsdp_tensor *slots, const fsdp_tensor *whole, bool back)
{
    block blocks[FSDP_MAX_SEGMENTS];

    for (int i = 0; i < r->split.ranks; i++) {
        int count = blocks_of(r->params[r->split.rank]->tensor, i, blocks);

        for (int k = 0; k < count; k++)
            FSDP_TRY(move_block(r, &blocks[k], slot(slots, r, i), fsdp_tensor_data(whole), back));
    }
    return FSDP_OK;
}

/* Makes this rank's matrix of the batch orthogonal: its parts are in the slots, and come back there. */
static fsdp_status own_matrix(const batch *r)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;
    int64_t rows, cols;

    if (r->split.rank >= r->count)
        return FSDP_OK;
    matrix_shape(r->params[r->split.rank]->tensor, &rows, &cols);
    if (rows * cols == 0)
        return FSDP_OK;
    FSDP_TRY(create(r->device, FSDP_BF16, rows * cols, &whole));
    FSDP_TRY(move_parts(r, r->slots, whole, false));
    FSDP_TRY(orthogonalize(whole, rows, cols));
    return move_parts(r, r->slots, whole, true);
}

/* Steps this rank's part of a matrix: p = (1 - lr decay) p - adjusted lr * orthogonal. */
static fsdp_status apply(const batch *r, int i)
{
    const fsdp__optimizer_param *p = r->params[i];
    const fsdp_muon_options *options = &r->group->options.muon;
    const fsdp__optimizer_span span = {
        .param = fsdp_tensor_data(p->tensor), .grad = slot(r->slots, r, i), .numel = fsdp_tensor_numel(p->tensor)};
    int64_t rows, cols;
    double factor;

    matrix_shape(p->tensor, &rows, &cols);
    if (span.numel == 0 || r->group->lr == 0)
        return FSDP_OK;
    factor = options->adjust == FSDP_MUON_ORIGINAL ? sqrt(FSDP__MAX(1.0, (double)rows / (double)cols))
                                                   : 0.2 * sqrt((double)FSDP__MAX(rows, cols));
    return fsdp__launch_sgd(r->stream, &(fsdp__sgd_args){.spans = &span,
                                                         .count = 1,
                                                         .param_dtype = p->tensor->dtype,
                                                         .grad_dtype = FSDP_BF16,
                                                         .lr = r->group->lr * factor,
                                                         .weight_decay = options->weight_decay / factor,
                                                         .grad_scale = 1,
                                                         .step = 1});
}

static void swap(batch *r)
{
    fsdp_tensor *slots = r->slots;

    r->slots = r->other;
    r->other = slots;
}

/* Moves the first of the dimensions that slots are numbered by, which has `size` ranks, behind the others. */
static fsdp_status rotate(batch *r, int size)
{
    int64_t rest = r->split.ranks / size;
    const fsdp__copy_args args = {.src = fsdp_tensor_data(r->slots),
                                  .dst = fsdp_tensor_data(r->other),
                                  .src_dtype = FSDP_BF16,
                                  .dst_dtype = FSDP_BF16,
                                  .ndim = 3,
                                  .shape = {rest, size, r->part},
                                  .src_strides = {r->part, rest * r->part, 1},
                                  .dst_strides = {size * r->part, r->part, 1}};

    if (r->part > 0)
        FSDP_TRY(fsdp__launch_copy(r->stream, &args));
    swap(r);
    return FSDP_OK;
}

/* Exchanges the slots: those of matrix i go to rank i, or come back from it. That is done over one mesh dimension after
 * the other, each time for all ranks that differ in the others: so it needs no groups but the mesh's. */
static fsdp_status exchange(batch *r)
{
    fsdp__step_label label = {.count = 0};

    for (int i = 0; i < r->count && r->split.count > 0; i++)
        fsdp__step_label_add(&label, r->params[i]);
    for (int i = 0; i < r->split.count; i++) {
        int size = r->split.sizes[i];
        fsdp_status status;

        fsdp__step_label_set(&label, r->split.groups[i]);
        status =
            fsdp__process_group_all_to_all(r->split.groups[i], fsdp_tensor_data(r->slots), fsdp_tensor_data(r->other),
                                           r->split.ranks / size * r->part, FSDP_BF16, r->stream);
        fsdp__process_group_set_label(r->split.groups[i], NULL);
        FSDP_TRY(status);
        swap(r);
        if (r->split.count > 1)
            FSDP_TRY(rotate(r, size));
    }
    return FSDP_OK;
}

static fsdp_status take_batch(batch *r)
{
    for (int i = 0; i < r->count; i++)
        for (int rank = 0; rank < r->split.ranks; rank++) {
            int64_t part = part_of(r->params[i]->tensor, rank);

            r->part = FSDP__MAX(r->part, part);
        }
    FSDP_TRY(create(r->device, FSDP_BF16, r->split.ranks * r->part, &r->slots));
    for (int i = 0; i < r->count; i++)
        FSDP_TRY(prepare(r, i));
    if (r->split.count > 0)
        FSDP_TRY(create(r->device, FSDP_BF16, r->split.ranks * r->part, &r->other));
    FSDP_TRY(exchange(r));
    FSDP_TRY(own_matrix(r));
    FSDP_TRY(exchange(r));
    for (int i = 0; i < r->count; i++)
        FSDP_TRY(apply(r, i));
    return FSDP_OK;
}

/* ---- all of them ---- */

static int64_t elements_of(const fsdp__optimizer_param *param)
{
    int64_t rows, cols;

    matrix_shape(param->tensor, &rows, &cols);
    return rows * cols;
}

/* Returns whether both can be in one batch. */
static bool go_together(const fsdp__optimizer_param *a, const fsdp__optimizer_param *b)
{
    split x = split_of(a->tensor), y = split_of(b->tensor);
    bool same = x.count == y.count && a->tensor->storage->device == b->tensor->storage->device;

    for (int i = 0; i < x.count && same; i++)
        same = x.groups[i] == y.groups[i];
    return same;
}

/* Lists the matrices that are due, the largest first, so that those of a batch take about as long. */
static int64_t list_due(const fsdp__optimizer_group *group, fsdp__optimizer_param **due)
{
    int64_t count = 0;

    for (int64_t i = 0; i < group->count; i++) {
        int64_t at = count;

        if (!group->params[i].due)
            continue;
        for (; at > 0 && elements_of(due[at - 1]) < elements_of(&group->params[i]); at--)
            due[at] = due[at - 1];
        due[at] = &group->params[i];
        count++;
    }
    return count;
}

/* Takes the first of the list, and others that go with it, into a batch; closes the gaps in the list. */
static fsdp_status take_some(batch *r, fsdp__optimizer_param **due, int64_t *count)
{
    int64_t left = 0;

    r->split = split_of(due[0]->tensor);
    r->device = due[0]->tensor->storage->device;
    r->stream = fsdp_device_stream(r->device);
    FSDP__TRY_NEW(r->params = fsdp__calloc((size_t)r->split.ranks, sizeof *r->params));
    for (int64_t i = 0; i < *count; i++) {
        bool goes = r->count < r->split.ranks && (r->count == 0 || go_together(r->params[0], due[i]));

        *(goes ? &r->params[r->count++] : &due[left++]) = due[i];
    }
    *count = left;
    return FSDP_OK;
}

fsdp_status fsdp__muon_step(const fsdp_optimizer *optimizer, fsdp__optimizer_group *group)
{
    FSDP__FREED fsdp__optimizer_param **due = fsdp__calloc((size_t)group->count + 1, sizeof(void *));
    int64_t count;

    FSDP__TRY_NEW(due);
    count = list_due(group, due);
    for (int64_t i = 0; i < count; i++)
        FSDP_TRY(fsdp__muon_check(due[i]->name, due[i]->tensor));
    while (count > 0) {
        FSDP__SCOPED(release_batch) batch r = {.optimizer = optimizer, .group = group};
        fsdp_status status = take_some(&r, due, &count);

        if (status == FSDP_OK)
            status = take_batch(&r);
        fsdp__free(r.params);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}
