/* adafactor.c - steps by a second moment of which the means of rows and of columns are kept.
 *
 * A rank has some elements of a matrix: rows, a part of its rows, or a run that begins and ends within rows. They are
 * cut into pieces, which are matrices, and each piece adds to the means of its rows and columns. One all-reduce adds
 * those of all ranks and parameters, so that every rank has all means and keeps them: they are few beside the elements.
 * A second one adds the squares of parameters and updates, from which the length of a step follows; these sums are
 * exact (base/digit_sum.h), so they do not depend on who has what. Updates are made twice, piece by piece, rather than
 * kept: the memory that a step takes beside its state does not grow with the model. */
#include <math.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum {
    PIECE = 1 << 20 /* elements of a piece, at most */
};

fsdp_status fsdp__adafactor_check(const char *name, const fsdp_tensor *tensor)
{
    fsdp__leaf_part part;
    fsdp__spread spread;

    if (fsdp__leaf_part_at(tensor, 0, &part))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot optimize '%s' by Adafactor: it is a flat parameter, whose rows and columns are not "
                         "those of its parameters: wrap with original parameters (use_orig_params)",
                         name);
    return fsdp__spread_of(name, tensor, "optimize", &spread);
}

/* ---- what a rank has of a parameter ---- */

/* The whole is (outer, rows, cols), where `outer` stands for all dimensions but the last two; a vector is one row. This
 * rank's elements are those of boxes, or of a run in the whole. */
typedef struct share {
    int ndim;
    bool factored;                /* two or more dimensions */
    int64_t whole[FSDP_MAX_DIMS]; /* the shape of all */
    int64_t size[FSDP_MAX_DIMS];  /* of this rank's tensor; of a run: of the whole */
    fsdp_piece boxes[FSDP_MAX_SEGMENTS];
    int64_t outer, rows, cols; /* of the whole */
    int64_t numel, first;      /* of this rank; first: where a run begins */
    bool follows;              /* there is one box, and its matrices follow one another in the whole */
} share;

/* A part of the elements of this rank, from its element `at` on: a contiguous tensor (outer, rows, cols). */
typedef struct piece {
    int64_t at, outer, rows, cols;
    int64_t row, col; /* where its rows, and its columns, begin among those of the whole */
} piece;

static int64_t product(const int64_t *sizes, int count)
{
    int64_t all = 1;

    for (int d = 0; d < count; d++)
        all *= sizes[d];
    return all;
}

static share share_of(const fsdp_tensor *tensor)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    share s = {.numel = fsdp_tensor_numel(tensor)};
    const int64_t *whole;

    s.ndim = fsdp__optimizer_whole_shape(tensor, &whole);
    s.factored = s.ndim >= 2;
    memcpy(s.whole, whole, sizeof s.whole);
    memcpy(s.size, tensor->shape, sizeof s.size);
    s.follows = fsdp_tensor_pieces(tensor, s.boxes) <= 1;
    if (distribution && fsdp_distribution_is_flat(distribution)) {
        s.first = s.factored ? s.boxes[0].offset[0] : 0;
        memcpy(s.size, s.whole, sizeof s.size);
        s.boxes[0] = (fsdp_piece){.local_offset = {0}};
        memcpy(s.boxes[0].size, s.whole, sizeof s.whole);
    }
    s.outer = s.factored ? product(s.whole, s.ndim - 2) : 1;
    s.rows = s.factored ? s.whole[s.ndim - 2] : 1;
    s.cols = s.factored ? s.whole[s.ndim - 1] : s.numel;
    for (int d = 1; d < s.ndim; d++)
        s.follows = s.follows && s.size[d] == s.whole[d];
    return s;
}

/* Gives the indices of an element of this rank's tensor. */
static void indices_of(const share *s, int64_t element, int64_t *at)
{
    for (int d = s->ndim - 1; d >= 0; d--) {
        at[d] = element % s->size[d];
        element /= s->size[d];
    }
}

/* Returns the box that has the element with these indices; they become those in the whole. */
static const fsdp_piece *box_of(const share *s, int64_t *at)
{
    const fsdp_piece *box = s->boxes;

    for (int d = 0; d < s->ndim; d++)
        while (at[d] >= box->local_offset[d] + box->size[d]) /* boxes lie one after the other, in one dimension */
            box++;
    for (int d = 0; d < s->ndim; d++)
        at[d] += box->offset[d] - box->local_offset[d];
    return box;
}

/* Gives the piece that begins at this rank's element `at`; returns false after the last. */
static bool piece_at(const share *s, int64_t at, piece *out)
{
    int last = s->ndim - 1;
    int64_t left = s->numel - at, index[FSDP_MAX_DIMS], rows, cols, matrix = 0;
    const fsdp_piece *box;

    if (left <= 0)
        return false;
    *out = (piece){.at = at, .outer = 1, .rows = 1, .cols = FSDP__MIN(left, PIECE)};
    if (!s->factored)
        return true;
    indices_of(s, s->first + at, index);
    box = box_of(s, index);
    rows = box->offset[last - 1] + box->size[last - 1] - index[last - 1]; /* from here on */
    cols = box->offset[last] + box->size[last] - index[last];
    out->cols = FSDP__MIN(FSDP__MIN(cols, left), PIECE);
    if (out->cols == s->size[last])
        out->rows = FSDP__MAX(FSDP__MIN(FSDP__MIN(rows, left / out->cols), PIECE / out->cols), 1);
    if (out->cols * out->rows == s->size[last] * s->size[last - 1] && s->follows)
        out->outer = FSDP__MAX(FSDP__MIN(left, PIECE) / (out->rows * out->cols), 1);
    for (int d = 0; d < last - 1; d++)
        matrix = matrix * s->whole[d] + index[d];
    out->row = matrix * s->rows + index[last - 1];
    out->col = matrix * s->cols + index[last];
    return true;
}

static int64_t numel_of(const piece *p)
{
    return p->outer * p->rows * p->cols;
}

#define EACH_PIECE(p, share) for (piece p = {0}; piece_at(share, p.at, &p); p.at += numel_of(&p))

/* ---- a step of parameters that are spread alike ---- */

typedef struct member {
    fsdp__optimizer_param *param;
    share has;
    float *variance, *row_var, *col_var; /* the state: of a vector, or of a matrix */
    float *rows, *cols;                  /* the means, in the job's memory; later see factor() */
} member;

typedef struct job {
    const fsdp_optimizer *optimizer;
    const fsdp__optimizer_group *group;
    fsdp__spread spread;
    fsdp_stream *stream;
    member *members;
    int64_t count;
    fsdp_tensor *means;    /* f32: the rows and columns of all members */
    fsdp_tensor *zeros;    /* f32: as many as the largest piece has rows or columns */
    fsdp_tensor *norms;    /* digit sums, two of each member: of its parameter, and of its update */
    fsdp_tensor *scaled;   /* f32: the gradients of a piece, unless they can be used where they lie */
    fsdp_tensor *update;   /* f32: of a piece */
    fsdp__digit_sum *sums; /* the norms, on the host */
} job;

static void release(job *j)
{
    fsdp_tensor *const all[] = {j->means, j->zeros, j->norms, j->scaled, j->update};

    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        fsdp_tensor_unref(all[i]);
    FSDP__FREE_ALL(j->members, j->sums);
}

/* Puts the parameters that are due and spread as the first of them is into the job, and takes them off the list. */
static fsdp_status take_alike(job *j, fsdp__optimizer_param **due, int64_t *count)
{
    int64_t left = 0;

    FSDP_TRY(fsdp__spread_of(due[0]->name, due[0]->tensor, "optimize", &j->spread));
    j->stream = fsdp_device_stream(j->spread.device);
    FSDP__TRY_NEW(j->members = fsdp__calloc((size_t)*count, sizeof *j->members));
    for (int64_t i = 0; i < *count; i++) {
        fsdp__spread its;

        FSDP_TRY(fsdp__spread_of(due[i]->name, due[i]->tensor, "optimize", &its));
        if (fsdp__spread_equal(&its, &j->spread))
            j->members[j->count++] = (member){.param = due[i], .has = share_of(due[i]->tensor)};
        else
            due[left++] = due[i];
    }
    *count = left;
    return FSDP_OK;
}

static fsdp_status make(const job *j, fsdp_dtype dtype, int64_t numel, bool clear, fsdp_tensor **out)
{
    FSDP_TRY(fsdp_tensor_create(j->spread.device, dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, out));
    return clear ? fsdp_tensor_fill_(*out, 0) : FSDP_OK;
}

static bool is_scaled(const job *j, const fsdp_tensor *grad)
{
    return grad->dtype != FSDP_F32 || !(j->optimizer->grad_scale >= 1 && j->optimizer->grad_scale <= 1);
}

/* Takes all memory that the step needs. */
static fsdp_status take_memory(job *j)
{
    int64_t means = 0, side = 0, largest = 0, scaled = 0;

    for (int64_t i = 0; i < j->count; i++) {
        const share *s = &j->members[i].has;

        means += s->factored ? s->outer * (s->rows + s->cols) : 0;
        EACH_PIECE(p, s)
        {
            side = s->factored ? FSDP__MAX(side, p.outer * FSDP__MAX(p.rows, p.cols)) : side;
            largest = FSDP__MAX(largest, numel_of(&p));
            if (is_scaled(j, fsdp_tensor_grad(j->members[i].param->tensor)))
                scaled = FSDP__MAX(scaled, numel_of(&p));
        }
    }
    FSDP__TRY_NEW(j->sums = fsdp__calloc((size_t)(2 * j->count), sizeof *j->sums));
    FSDP_TRY(make(j, FSDP_F32, means, true, &j->means));
    FSDP_TRY(make(j, FSDP_F32, side, true, &j->zeros));
    FSDP_TRY(make(j, FSDP_I64, 2 * j->count * FSDP__DIGIT_SUM_WORDS, true, &j->norms));
    FSDP_TRY(make(j, FSDP_F32, scaled, false, &j->scaled));
    FSDP_TRY(make(j, FSDP_F32, largest, false, &j->update));
    means = 0;
    for (int64_t i = 0; i < j->count; i++) {
        member *m = &j->members[i];

        m->variance = m->row_var = fsdp_tensor_data(m->param->moment1);
        m->col_var = m->has.factored ? fsdp_tensor_data(m->param->moment2) : NULL;
        m->rows = (float *)fsdp_tensor_data(j->means) + means;
        m->cols = m->rows + m->has.outer * m->has.rows;
        means += m->has.factored ? m->has.outer * (m->has.rows + m->has.cols) : 0;
    }
    return FSDP_OK;
}

/* Adds what all ranks have in the tensor, in the order of ranks. */
static fsdp_status add_over_ranks(const job *j, const fsdp_tensor *tensor)
{
    fsdp__any any = {.send = fsdp_tensor_data(tensor),
                     .recv = fsdp_tensor_data(tensor),
                     .numel = fsdp_tensor_numel(tensor),
                     .dtype = tensor->dtype,
                     .op = FSDP_SUM,
                     .stream = j->stream,
                     .labelled = true};
    fsdp__step_label label = {.count = 0};

    if (!j->spread.mesh || !j->spread.sharded || any.numel == 0)
        return FSDP_OK;
    for (int64_t i = 0; i < j->count; i++)
        fsdp__step_label_add(&label, j->members[i].param);
    for (int i = 0; i < fsdp_mesh_ndim(j->spread.mesh); i++) {
        fsdp_process_group *group = fsdp_mesh_process_group(j->spread.mesh, i);
        fsdp_status status;

        if (!(j->spread.sharded >> i & 1) || fsdp_mesh_size(j->spread.mesh, i) == 1)
            continue;
        fsdp__step_label_set(&label, group);
        status = fsdp__process_group_any(group, &any);
        fsdp__process_group_set_label(group, NULL);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* ---- computing ---- */

/* y = f(x) */
static fsdp_status apply_to(const job *j, fsdp__unary_op op, double low, const float *x, float *y, int64_t numel)
{
    return fsdp__launch_unary_forward(
        j->stream,
        &(fsdp__unary_forward_args){
            .x = x, .y = y, .numel = numel, .low = (float)low, .high = INFINITY, .op = op, .dtype = FSDP_F32});
}

/* y (rows) [+]= alpha * the sums of the rows of x (rows, cols), or of their squares where zeros are given. */
static fsdp_status sum(const job *j, fsdp__reduce_args args)
{
    args.x_dtype = args.y_dtype = FSDP_F32;
    args.accumulate = args.center != NULL;
    return fsdp__launch_reduce(j->stream, &args);
}

/* dst += weight * (src - dst) */
static fsdp_status move(const job *j, const float *src, float *dst, int64_t numel, double weight)
{
    const fsdp__span span = {.src = src, .dst = dst, .numel = numel};

    return fsdp__launch_lerp_spans(j->stream, &(fsdp__lerp_spans_args){.spans = &span,
                                                                       .count = 1,
                                                                       .src_dtype = FSDP_F32,
                                                                       .dst_dtype = FSDP_F32,
                                                                       .weight = (float)weight,
                                                                       .scale = 1});
}

/* Returns 1 - beta2 of the step that is being taken. */
static double weight_of(const job *j, const member *m)
{
    return pow((double)m->param->steps + 1, j->group->options.adafactor.beta2_decay);
}

/* Gives the gradients of a piece in f32, scaled. */
static fsdp_status gradients(const job *j, const member *m, const piece *p, const float **out)
{
    const fsdp_tensor *grad = fsdp_tensor_grad(m->param->tensor);
    const char *data = (const char *)fsdp_tensor_data(grad) + (size_t)p->at * fsdp_dtype_size(grad->dtype);
    float *scaled = fsdp_tensor_data(j->scaled);
    const fsdp__span span = {.src = data, .dst = scaled, .numel = numel_of(p)};

    *out = is_scaled(j, grad) ? scaled : (const float *)(const void *)data;
    if (!is_scaled(j, grad))
        return FSDP_OK;
    FSDP_TRY(fsdp__launch_cast_spans(
        j->stream,
        &(fsdp__cast_spans_args){.spans = &span, .count = 1, .src_dtype = grad->dtype, .dst_dtype = FSDP_F32}));
    return fsdp__launch_scale(
        j->stream,
        &(fsdp__scale_args){
            .x = scaled, .y = scaled, .alpha = j->optimizer->grad_scale, .numel = span.numel, .dtype = FSDP_F32});
}

/* Adds the squares of a piece's gradients to the means of its rows and columns. */
static fsdp_status add_means(const job *j, const member *m, const piece *p)
{
    const share *s = &m->has;
    const float *g, *zeros = fsdp_tensor_data(j->zeros);

    FSDP_TRY(gradients(j, m, p, &g));
    FSDP_TRY(sum(j, (fsdp__reduce_args){.x = g,
                                        .center = zeros,
                                        .y = m->rows + p->row,
                                        .outer = p->outer * p->rows,
                                        .reduced = p->cols,
                                        .inner = 1,
                                        .alpha = 1 / (float)s->cols}));
    return sum(j, (fsdp__reduce_args){.x = g,
                                      .center = zeros,
                                      .y = m->cols + p->col,
                                      .outer = p->outer,
                                      .reduced = p->rows,
                                      .inner = p->cols,
                                      .alpha = 1 / (float)s->rows});
}

/* Moves the state of a vector by the squares of its gradients. */
static fsdp_status move_variance(const job *j, const member *m)
{
    float *squares = fsdp_tensor_data(j->update);

    EACH_PIECE(p, &m->has)
    {
        const float *g;

        FSDP_TRY(gradients(j, m, &p, &g));
        FSDP_TRY(apply_to(j, FSDP__SQUARE, 0, g, squares, p.cols));
        FSDP_TRY(move(j, squares, m->variance + p.at, p.cols, weight_of(j, m)));
    }
    return FSDP_OK;
}

/* Moves the state of a matrix by its means, and puts other values in their place: for the rows, the state's rows,
 * divided by their mean in each matrix (at least `eps`); for the columns, these means. */
static fsdp_status factor(const job *j, const member *m, double eps)
{
    const share *s = &m->has;

    if (s->outer * s->rows * s->cols == 0)
        return FSDP_OK;
    FSDP_TRY(move(j, m->rows, m->row_var, s->outer * s->rows, weight_of(j, m)));
    FSDP_TRY(move(j, m->cols, m->col_var, s->outer * s->cols, weight_of(j, m)));
    FSDP_TRY(sum(j, (fsdp__reduce_args){.x = m->row_var,
                                        .y = m->cols,
                                        .outer = s->outer,
                                        .reduced = s->rows,
                                        .inner = 1,
                                        .alpha = 1 / (float)s->rows}));
    FSDP_TRY(apply_to(j, FSDP__CLAMP, eps, m->cols, m->cols, s->outer));
    return fsdp__launch_binary(j->stream, &(fsdp__binary_args){.a = m->row_var,
                                                               .b = m->cols,
                                                               .y = m->rows,
                                                               .ndim = 2,
                                                               .shape = {s->outer, s->rows},
                                                               .a_strides = {s->rows, 1},
                                                               .b_strides = {1, 0},
                                                               .op = FSDP__DIV,
                                                               .dtype = FSDP_F32});
}

/* Returns eps1: that of the options, or of the parameter's dtype. */
static double eps_of(const job *j, const member *m)
{
    fsdp_dtype dtype = m->param->tensor->dtype;

    if (j->group->options.adafactor.eps1 > 0)
        return j->group->options.adafactor.eps1;
    return dtype == FSDP_BF16 ? 0x1p-7 : dtype == FSDP_F16 ? 0x1p-10 : 0x1p-23;
}

/* Makes the update of a piece: its gradients divided by the root of their second moment. */
static fsdp_status make_update(const job *j, const member *m, const piece *p)
{
    const float *g;
    float *u = fsdp_tensor_data(j->update);
    double eps = eps_of(j, m);
    int64_t numel = numel_of(p);
    fsdp__binary_args args = {.y = u, .op = FSDP__MUL, .dtype = FSDP_F32, .ndim = 1, .shape = {numel}};

    FSDP_TRY(gradients(j, m, p, &g));
    if (m->has.factored)
        FSDP_TRY(fsdp__launch_binary(j->stream, &(fsdp__binary_args){.a = m->rows + p->row,
                                                                     .b = m->col_var + p->col,
                                                                     .y = u,
                                                                     .ndim = 3,
                                                                     .shape = {p->outer, p->rows, p->cols},
                                                                     .a_strides = {p->rows, 1, 0},
                                                                     .b_strides = {p->cols, 0, 1},
                                                                     .op = FSDP__MUL,
                                                                     .dtype = FSDP_F32}));
    FSDP_TRY(apply_to(j, FSDP__CLAMP, eps * eps, m->has.factored ? u : m->variance + p->at, u, numel));
    FSDP_TRY(apply_to(j, FSDP__RSQRT, 0, u, u, numel));
    args.a = u;
    args.b = g;
    args.a_strides[0] = args.b_strides[0] = 1;
    return fsdp__launch_binary(j->stream, &args);
}

/* Adds the squares of a tensor's elements to a sum. */
static fsdp_status add_squares(const job *j, const void *x, fsdp_dtype dtype, int64_t numel, fsdp__digit_sum *out)
{
    const fsdp__span span = {.src = x, .numel = numel};

    return fsdp__launch_power_sum(
        j->stream,
        &(fsdp__power_sum_args){.spans = &span, .count = 1, .dtype = dtype, .p = 2, .sum = out, .accumulate = true});
}

static fsdp__digit_sum *sums_of(const job *j, int64_t i)
{
    return (fsdp__digit_sum *)fsdp_tensor_data(j->norms) + 2 * i;
}

static fsdp_status add_norm_of_param(const job *j, int64_t i)
{
    const fsdp_tensor *tensor = j->members[i].param->tensor;

    if (fsdp_tensor_numel(tensor) == 0)
        return FSDP_OK;
    return add_squares(j, fsdp_tensor_data(tensor), tensor->dtype, fsdp_tensor_numel(tensor), &sums_of(j, i)[0]);
}

static fsdp_status add_norm_of_update(const job *j, int64_t i)
{
    EACH_PIECE(p, &j->members[i].has)
    {
        FSDP_TRY(make_update(j, &j->members[i], &p));
        FSDP_TRY(add_squares(j, fsdp_tensor_data(j->update), FSDP_F32, numel_of(&p), &sums_of(j, i)[1]));
    }
    return FSDP_OK;
}

/* p = (1 - lr decay) p - length * update, with length = rho max(eps2, rms(p)) / max(1, rms(update) / d). */
static fsdp_status apply(const job *j, const member *m, const fsdp__digit_sum sums[2])
{
    const fsdp_adafactor_options *options = &j->group->options.adafactor;
    const fsdp_tensor *tensor = m->param->tensor;
    double numel = (double)product(m->has.whole, m->has.ndim), lr = j->group->lr;
    double rms = sqrt(fsdp__digit_sum_value(&sums[0]) / numel),
           of_update = sqrt(fsdp__digit_sum_value(&sums[1]) / numel);
    double rho = FSDP__MIN(lr, 1 / sqrt((double)m->param->steps + 1));
    double length = rho * FSDP__MAX(options->eps2, rms) / FSDP__MAX(1, of_update / options->d);

    if (lr == 0 || length == 0)
        return FSDP_OK;
    EACH_PIECE(p, &m->has)
    {
        const fsdp__optimizer_span span = {.param = (char *)fsdp_tensor_data(tensor) +
                                                    (size_t)p.at * fsdp_dtype_size(tensor->dtype),
                                           .grad = fsdp_tensor_data(j->update),
                                           .numel = numel_of(&p)};

        FSDP_TRY(make_update(j, m, &p));
        FSDP_TRY(fsdp__launch_sgd(j->stream, &(fsdp__sgd_args){.spans = &span,
                                                               .count = 1,
                                                               .param_dtype = tensor->dtype,
                                                               .grad_dtype = FSDP_F32,
                                                               .lr = length,
                                                               .weight_decay = lr * options->weight_decay / length,
                                                               .grad_scale = 1,
                                                               .step = 1}));
    }
    return FSDP_OK;
}

static fsdp_status apply_all(const job *j)
{
    size_t bytes = (size_t)(2 * j->count) * sizeof *j->sums;

    FSDP_TRY(fsdp__copy_to_host(j->stream, j->sums, fsdp_tensor_data(j->norms), bytes));
    FSDP_TRY(fsdp_stream_synchronize(j->stream));
    for (int64_t i = 0; i < j->count; i++)
        FSDP_TRY(apply(j, &j->members[i], j->sums + 2 * i));
    return FSDP_OK;
}

static fsdp_status add_all_means(const job *j, const member *m)
{
    EACH_PIECE(p, &m->has)
    {
        FSDP_TRY(add_means(j, m, &p));
    }
    return FSDP_OK;
}

/* What needs memory of its own comes before the state moves: later sums are of fewer elements. */
static fsdp_status sum_up(const job *j)
{
    for (int64_t i = 0; i < j->count; i++) {
        FSDP_TRY(add_norm_of_param(j, i));
        if (j->members[i].has.factored)
            FSDP_TRY(add_all_means(j, &j->members[i]));
    }
    return add_over_ranks(j, j->means);
}

static fsdp_status take_step(const job *j)
{
    FSDP_TRY(sum_up(j));
    for (int64_t i = 0; i < j->count; i++) {
        const member *m = &j->members[i];

        FSDP_TRY(m->has.factored ? factor(j, m, eps_of(j, m)) : move_variance(j, m));
    }
    for (int64_t i = 0; i < j->count; i++)
        FSDP_TRY(add_norm_of_update(j, i));
    FSDP_TRY(add_over_ranks(j, j->norms));
    return apply_all(j);
}

fsdp_status fsdp__adafactor_step(const fsdp_optimizer *optimizer, fsdp__optimizer_group *group)
{
    FSDP__FREED fsdp__optimizer_param **due = fsdp__calloc((size_t)group->count + 1, sizeof(void *));
    int64_t count = 0;

    FSDP__TRY_NEW(due);
    for (int64_t i = 0; i < group->count; i++)
        if (group->params[i].due)
            due[count++] = &group->params[i];
    while (count > 0) {
        FSDP__SCOPED(release) job j = {.optimizer = optimizer, .group = group};

        FSDP_TRY(take_alike(&j, due, &count));
        FSDP_TRY(take_memory(&j));
        FSDP_TRY(take_step(&j));
    }
    return FSDP_OK;
}
