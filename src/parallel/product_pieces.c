/* product_pieces.c - products in pieces, beside the collectives that bring or take them. */
#include "parallel/product_pieces.h"

#include "base/compiler.h"
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/dist.h"
#include "parallel/wire.h"

/* ---- pieces ---- */

/* Describes some rows of every rank's part: [o, o + outer) of the dimensions before, [s, s + length) of its chunk. */
typedef struct piece {
    int64_t o, outer, s, length;
    int64_t at; /* where its boxes begin, in rows of one rank */
} piece;

static int64_t cut_at(int64_t size, int64_t i, int64_t count)
{
    return size * i / count;
}

static piece piece_of(const fsdp__pieces *p, int i)
{
    int64_t cut = p->by_outer ? p->outer : p->chunk;
    int64_t first = cut_at(cut, i, p->count), length = cut_at(cut, i + 1, p->count) - first;

    return p->by_outer ? (piece){first, length, 0, p->chunk, first * p->chunk * p->mid}
                       : (piece){0, p->outer, first, length, p->outer * first * p->mid};
}

/* Returns how many rows of the cut dimension a rank has in the piece; the others of its box are padding. */
static int64_t length_of(const fsdp__pieces *p, const piece *of, int rank, int64_t *start)
{
    int64_t length = fsdp_shard_range(p->whole, p->ranks, rank, start);

    *start += of->s;
    return FSDP__MAX(FSDP__MIN(of->length, length - of->s), 0);
}

fsdp__pieces fsdp__pieces_of(const fsdp_tensor *like, int dim, int64_t whole, const fsdp__route *route)
{
    fsdp__pieces p = {.route = *route,
                      .ranks = fsdp_process_group_size(route->group),
                      .rank = fsdp_process_group_rank(route->group),
                      .outer = fsdp__shape_numel(dim, like->shape),
                      .whole = whole,
                      .mid = fsdp__shape_numel(like->ndim - 2 - dim, like->shape + dim + 1),
                      .compute = fsdp__op_stream(like)};
    int64_t cut;

    p.chunk = fsdp__wire_chunk(whole, p.ranks);
    p.by_outer = p.outer >= FSDP__PIECES || p.outer >= p.chunk;
    cut = p.by_outer ? p.outer : p.chunk;
    p.count = (int)FSDP__MAX(FSDP__MIN(cut, FSDP__PIECES), 1);
    return p;
}

void fsdp__pieces_close(fsdp__pieces *p)
{
    fsdp_tensor_unref(p->boxes);
    fsdp_tensor_unref(p->result);
}

static char *address(const fsdp_tensor *tensor, int64_t row, int64_t columns)
{
    char *data = fsdp_tensor_data(tensor);

    return data ? data + (size_t)(row * columns) * fsdp_dtype_size(tensor->dtype) : NULL;
}

/* Returns the first row of a rank's box. */
static int64_t box_row(const fsdp__pieces *p, const piece *of, int rank)
{
    return of->at * p->ranks + rank * of->outer * of->length * p->mid;
}

/* Describes rows of the dimensions before, each `batch` rows after the one before it. */
typedef struct block {
    const fsdp_tensor *tensor;
    int64_t row, batch, columns;
} block;

/* Returns a rank's rows of a piece, in its box, in a tensor of all rows, or in this rank's part. */
static block in_box(const fsdp__pieces *p, const piece *of, int rank)
{
    return (block){p->boxes, box_row(p, of, rank), of->length * p->mid, p->columns};
}

static block in_full(const fsdp__pieces *p, const piece *of, int64_t start, const fsdp_tensor *full)
{
    return (block){full, (of->o * p->whole + start) * p->mid, p->whole * p->mid, full->shape[full->ndim - 1]};
}

static block in_part(const fsdp__pieces *p, const piece *of, const fsdp_tensor *part)
{
    int64_t start, length = fsdp_shard_range(p->whole, p->ranks, p->rank, &start);

    return (block){part, (of->o * length + of->s) * p->mid, length * p->mid, part->shape[part->ndim - 1]};
}

static fsdp_status copy(const fsdp__pieces *p, int64_t outer, int64_t length, block from, block to)
{
    int64_t run = length * p->mid * from.columns;
    const fsdp__copy_args args = {.src = address(from.tensor, from.row, from.columns),
                                  .dst = address(to.tensor, to.row, to.columns),
                                  .src_dtype = from.tensor->dtype,
                                  .dst_dtype = to.tensor->dtype,
                                  .ndim = 2,
                                  .shape = {outer, run},
                                  .src_strides = {from.batch * from.columns, 1},
                                  .dst_strides = {to.batch * to.columns, 1}};

    return outer * run > 0 ? fsdp__launch_copy(p->compute, &args) : FSDP_OK;
}

/* Returns whether a sum is over no columns: a rank may have none of a layer's features. */
static bool is_empty(const fsdp__factor *f)
{
    return f->weight.rows == 0;
}

/* Adds, or sets, the products. Empty ones are left to the caller. */
static fsdp_status multiply(const fsdp__pieces *p, int64_t outer, int64_t length, block from, const fsdp__factor *f,
                            block to, bool accumulate)
{
    const fsdp__matrix *w = &f->weight;
    int64_t rows = length * p->mid;
    bool one = from.batch == rows && to.batch == rows; /* all rows lie one after the other */
    const fsdp__matmul_args args = {.a = address(from.tensor, from.row, from.columns),
                                    .b = w->data,
                                    .c = address(to.tensor, to.row, to.columns),
                                    .bias = f->bias ? fsdp_tensor_data(f->bias) : NULL,
                                    .m = one ? outer * rows : rows,
                                    .n = w->cols,
                                    .k = w->rows,
                                    .a_row = w->rows,
                                    .a_col = 1,
                                    .b_row = w->row,
                                    .b_col = w->col,
                                    .c_row = w->cols,
                                    .batch = one ? 1 : outer,
                                    .a_batch = one ? 0 : from.batch * from.columns,
                                    .c_batch = one ? 0 : to.batch * to.columns,
                                    .a_dtype = from.tensor->dtype,
                                    .b_dtype = w->dtype,
                                    .c_dtype = to.tensor->dtype,
                                    .bias_dtype = f->bias ? f->bias->dtype : FSDP_DTYPE_NONE,
                                    .alpha = 1.0f,
                                    .accumulate = accumulate};

    return outer * rows * w->cols > 0 && !is_empty(f) ? fsdp__launch_matmul(p->compute, &args) : FSDP_OK;
}

/* ---- memory and order ---- */

/* Takes the boxes of all pieces, and sees that nothing undefined travels. */
static fsdp_status take_boxes(fsdp__pieces *p, const fsdp_tensor *like, bool clears)
{
    int64_t numel = p->outer * p->chunk * p->mid * (p->columns = like->shape[like->ndim - 1]) * p->ranks;

    FSDP_TRY(fsdp_tensor_create(like->storage->device, like->dtype, 1, &numel, FSDP_MEMORY_ACTIVATION, &p->boxes));
    return clears ? fsdp__launch_fill_run(p->compute, fsdp_tensor_data(p->boxes), like->dtype, numel, 0) : FSDP_OK;
}

static int64_t box_numel(const fsdp__pieces *p, const piece *of)
{
    return of->outer * of->length * p->mid * p->columns;
}

/* ---- gather, and multiply ---- */

static fsdp_status issue_gathers(const fsdp__pieces *p, const fsdp_tensor *part)
{
    for (int i = 0; i < p->count; i++) {
        piece of = piece_of(p, i);
        int64_t start, length = length_of(p, &of, p->rank, &start);

        FSDP_TRY(copy(p, of.outer, length, in_part(p, &of, part), in_box(p, &of, p->rank)));
    }
    FSDP_TRY(fsdp__side_stream_follow(p->route.side, p->compute));
    for (int i = 0; i < p->count; i++) {
        piece of = piece_of(p, i);

        FSDP_TRY(fsdp_all_gather(p->route.group, address(p->boxes, box_row(p, &of, p->rank), p->columns),
                                 address(p->boxes, box_row(p, &of, 0), p->columns), box_numel(p, &of), part->dtype,
                                 p->route.side->stream));
        FSDP_TRY(fsdp__side_stream_mark(p->route.side, i));
    }
    return FSDP_OK;
}

/* Multiplies what a rank has of a piece, which lies in `from`. */
static fsdp_status multiply_rows(const fsdp__pieces *p, const piece *of, int rank, block from,
                                 const fsdp__factor *factors, int count, const fsdp_tensor *gathered)
{
    int64_t start, length = length_of(p, of, rank, &start);

    for (int i = 0; i < count; i++)
        FSDP_TRY(multiply(p, of->outer, length, from, &factors[i], in_full(p, of, start, factors[i].full), false));
    return gathered ? copy(p, of->outer, length, from, in_full(p, of, start, gathered)) : FSDP_OK;
}

/* Multiplies this rank's own rows, all at once, which nobody has to bring, and then those of the others. */
static fsdp_status multiply_gathered(const fsdp__pieces *p, const fsdp_tensor *part, const fsdp__factor *factors,
                                     int count, const fsdp_tensor *gathered)
{
    const piece all = {.outer = p->outer, .length = p->chunk};

    FSDP_TRY(multiply_rows(p, &all, p->rank, in_part(p, &all, part), factors, count, gathered));
    for (int i = 0; i < p->count; i++) {
        piece of = piece_of(p, i);

        FSDP_TRY(fsdp__side_stream_await(p->route.side, i, p->route.group, p->compute));
        for (int r = 0; r < p->ranks; r++)
            if (r != p->rank)
                FSDP_TRY(multiply_rows(p, &of, r, in_box(p, &of, r), factors, count, gathered));
    }
    return FSDP_OK;
}

fsdp_status fsdp__gather_and_multiply(fsdp__pieces *p, fsdp_tensor *part, const fsdp__factor *factors, int count,
                                      fsdp_tensor *gathered)
{
    fsdp_status status;

    FSDP_TRY(take_boxes(p, part, false));
    status = issue_gathers(p, part);
    if (status == FSDP_OK)
        status = multiply_gathered(p, part, factors, count, gathered);
    return fsdp__side_stream_settled(p->route.side, status);
}

/* ---- multiply, and scatter ---- */

static fsdp_status multiply_piece(const fsdp__pieces *p, const piece *of, const fsdp__factor *factors, int count)
{
    for (int r = 0; r < p->ranks; r++) {
        int64_t start, length = length_of(p, of, r, &start);
        bool any = false;

        for (int i = 0; i < count; i++) {
            FSDP_TRY(multiply(p, of->outer, length, in_full(p, of, start, factors[i].full), &factors[i],
                              in_box(p, of, r), any));
            any = any || !is_empty(&factors[i]);
        }
    }
    return FSDP_OK;
}

static fsdp_status issue_reduction(const fsdp__pieces *p, int i)
{
    piece of = piece_of(p, i);

    FSDP_TRY(fsdp__side_stream_follow(p->route.side, p->compute));
    FSDP_TRY(fsdp_reduce_scatter(p->route.group, address(p->boxes, box_row(p, &of, 0), p->columns),
                                 address(p->result, of.at, p->columns), box_numel(p, &of), p->boxes->dtype, FSDP_SUM,
                                 p->route.side->stream));
    return fsdp__side_stream_mark(p->route.side, i);
}

fsdp_status fsdp__multiply_and_scatter(fsdp__pieces *p, const fsdp__factor *factors, int count, const fsdp_tensor *part)
{
    bool clears = p->chunk * p->ranks != p->whole;
    fsdp_status status = FSDP_OK;
    int64_t numel, empty = 0;

    for (int i = 0; i < count; i++)
        empty += is_empty(&factors[i]);
    FSDP_TRY(take_boxes(p, part, clears || empty == count));
    numel = fsdp_tensor_numel(p->boxes) / p->ranks;
    FSDP_TRY(fsdp_tensor_create(part->storage->device, part->dtype, 1, &numel, FSDP_MEMORY_ACTIVATION, &p->result));
    for (int i = 0; i < p->count && status == FSDP_OK; i++) {
        piece of = piece_of(p, i);

        status = multiply_piece(p, &of, factors, count);
        if (status == FSDP_OK)
            status = issue_reduction(p, i);
    }
    return fsdp__side_stream_settled(p->route.side, status);
}

fsdp_status fsdp__scattered(fsdp__pieces *p, fsdp_tensor *part)
{
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < p->count && status == FSDP_OK; i++) {
        piece of = piece_of(p, i);
        int64_t start, length = length_of(p, &of, p->rank, &start);
        block from = {p->result, of.at, of.length * p->mid, p->columns};

        status = fsdp__side_stream_await(p->route.side, i, p->route.group, p->compute);
        if (status == FSDP_OK)
            status = copy(p, of.outer, length, from, in_part(p, &of, part));
    }
    return fsdp__side_stream_settled(p->route.side, status);
}
