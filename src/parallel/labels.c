/* labels.c - the rules: one function for each kind of operation. */
#include "parallel/labels.h"

#include "base/compiler.h"
#include "fsdp/dist.h"
#include "ops/op.h"

#include <string.h>

/* Returns the shape of the whole input, also of a parameter, which is not global. */
static const int64_t *shape_of(const fsdp__global_call *call, int input)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(call->inputs[input]);

    return d ? d->global_shape : call->inputs[input]->shape;
}

static int ndim_of(const fsdp__global_call *call, int input)
{
    return call->inputs[input]->ndim;
}

static fsdp_status misfit(const fsdp__global_call *call, int a, int b)
{
    return FSDP_FAIL(FSDP_INVALID, "%s: distributed tensors %s and %s do not fit", call->name,
                     FSDP__SHOWN_SHAPE(ndim_of(call, a), shape_of(call, a)),
                     FSDP__SHOWN_SHAPE(ndim_of(call, b), shape_of(call, b)));
}

/* Adds a dimension to the result. */
static void add_out(fsdp__labels *l, int label, int64_t size)
{
    l->out[l->ndim] = label;
    l->sizes[l->ndim++] = size;
}

/* Gives the last `count` dimensions of the result, and those of the inputs over them (which end `skip` before their
 * last), labels from 0 on, broadcast. */
static fsdp_status broadcast(const fsdp__global_call *call, fsdp__labels *l, const int *skip)
{
    int most = 0, widest = 0;

    for (int i = 0; i < call->count; i++)
        if (call->inputs[i] && ndim_of(call, i) - skip[i] > most) {
            most = ndim_of(call, i) - skip[i];
            widest = i;
        }
    for (int d = 0; d < most; d++)
        add_out(l, d, 1);
    l->count = most;
    for (int i = 0; i < call->count; i++)
        for (int d = 0; call->inputs[i] && d < ndim_of(call, i) - skip[i]; d++) {
            int at = most - (ndim_of(call, i) - skip[i]) + d;
            int64_t size = shape_of(call, i)[d];

            if (size != 1 && l->sizes[at] != 1 && l->sizes[at] != size)
                return misfit(call, widest, i);
            l->sizes[at] = size != 1 ? size : l->sizes[at];
        }
    for (int i = 0; i < call->count; i++)
        for (int d = 0; call->inputs[i] && d < ndim_of(call, i) - skip[i]; d++) {
            int at = most - (ndim_of(call, i) - skip[i]) + d;

            l->in[i][d] = shape_of(call, i)[d] == l->sizes[at] ? at : -1;
        }
    return FSDP_OK;
}

static fsdp_status pointwise(const fsdp__global_call *call, fsdp__labels *l)
{
    return broadcast(call, l, (const int[FSDP__GLOBAL_INPUTS]){0});
}

/* Labels the dimensions of the first input in their order. */
static void label_first(const fsdp__global_call *call, fsdp__labels *l)
{
    l->count = ndim_of(call, 0);
    for (int d = 0; d < l->count; d++)
        l->in[0][d] = d;
}

/* Labels x (...,C) with weights (C,O) or (O,C), and a bias (O). */
static fsdp_status weight(const fsdp__global_call *call, fsdp__labels *l)
{
    int rows = ndim_of(call, 0) - 1, k = rows, o = rows + 1, by_in = call->rule == FSDP__RULE_CONV1D ? 0 : 1;

    if (rows < 0 || ndim_of(call, 1) != 2 || shape_of(call, 0)[rows] != shape_of(call, 1)[by_in])
        return misfit(call, 0, 1);
    if (call->inputs[2] && (ndim_of(call, 2) != 1 || shape_of(call, 2)[0] != shape_of(call, 1)[1 - by_in]))
        return misfit(call, 1, 2);
    label_first(call, l);
    l->count++;
    for (int d = 0; d < rows; d++)
        add_out(l, d, shape_of(call, 0)[d]);
    add_out(l, o, shape_of(call, 1)[1 - by_in]);
    l->in[1][by_in] = k;
    l->in[1][1 - by_in] = o;
    l->in[2][0] = o;
    l->added = 2;
    return FSDP_OK;
}

static fsdp_status matmul(const fsdp__global_call *call, fsdp__labels *l)
{
    int a = ndim_of(call, 0), b = ndim_of(call, 1), skip[FSDP__GLOBAL_INPUTS] = {FSDP__MIN(a, 2), FSDP__MIN(b, 2)};
    int64_t inner = a > 0 ? shape_of(call, 0)[a - 1] : -1;
    int k;

    if (a < 1 || b < 1 || inner != shape_of(call, 1)[b == 1 ? 0 : b - 2])
        return misfit(call, 0, 1);
    FSDP_TRY(broadcast(call, l, skip));
    k = l->count++;
    l->in[0][a - 1] = l->in[1][b == 1 ? 0 : b - 2] = k;
    if (a > 1) {
        l->in[0][a - 2] = l->count;
        add_out(l, l->count++, shape_of(call, 0)[a - 2]);
    }
    if (b > 1) {
        l->in[1][b - 1] = l->count;
        add_out(l, l->count++, shape_of(call, 1)[b - 1]);
    }
    return FSDP_OK;
}

static fsdp_status rows(const fsdp__global_call *call, fsdp__labels *l)
{
    FSDP_TRY(pointwise(call, l));
    if (l->count > 0)
        l->whole[l->count - 1] = true;
    return FSDP_OK;
}

static fsdp_status find_dim(const fsdp__global_call *call, int *dim)
{
    return fsdp__op_dim(call->name, call->inputs[0], ndim_of(call, 0), dim) ? FSDP_OK : fsdp_last_status();
}

static fsdp_status reduce(fsdp__global_call *call, fsdp__labels *l)
{
    bool reduced[FSDP_MAX_DIMS] = {false};
    const int64_t *shape = shape_of(call, 0);

    label_first(call, l);
    for (int i = 0; i < call->dim_count; i++) {
        FSDP_TRY(find_dim(call, &call->dims[i]));
        reduced[call->dims[i]] = true;
    }
    call->reduced = 1;
    for (int d = 0; d < l->count; d++) {
        bool goes = call->dim_count == 0 || reduced[d];

        call->reduced *= goes ? shape[d] : 1;
        if (!goes || call->keep_dim)
            add_out(l, goes ? -1 : d, goes ? 1 : shape[d]);
    }
    return FSDP_OK;
}

static fsdp_status transpose(fsdp__global_call *call, fsdp__labels *l)
{
    label_first(call, l);
    FSDP_TRY(find_dim(call, &call->dims[0]));
    FSDP_TRY(find_dim(call, &call->dims[1]));
    for (int d = 0; d < l->count; d++) {
        int from = d == call->dims[0] ? call->dims[1] : d == call->dims[1] ? call->dims[0] : d;

        add_out(l, from, shape_of(call, 0)[from]);
    }
    return FSDP_OK;
}

static fsdp_status slice(fsdp__global_call *call, fsdp__labels *l)
{
    int dim;
    int64_t size;

    FSDP_TRY(find_dim(call, &call->dims[0]));
    dim = call->dims[0];
    label_first(call, l);
    if (call->sizes[0] < 0 || call->sizes[1] < 0 || call->sizes[0] > shape_of(call, 0)[dim] - call->sizes[1]) {
        return FSDP_FAIL(FSDP_INVALID,
                         "slice: elements %lld to %lld of dimension %d are not in a distributed tensor %s",
                         (long long)call->sizes[0], (long long)(call->sizes[0] + call->sizes[1]), dim,
                         FSDP__SHOWN_SHAPE(l->count, shape_of(call, 0)));
    }
    size = shape_of(call, 0)[dim];
    l->whole[dim] = call->sizes[1] != size;
    for (int d = 0; d < l->count; d++)
        add_out(l, d, d == dim ? call->sizes[1] : shape_of(call, 0)[d]);
    return FSDP_OK;
}

static fsdp_status concat(fsdp__global_call *call, fsdp__labels *l)
{
    label_first(call, l);
    FSDP_TRY(find_dim(call, &call->dims[0]));
    for (int d = 0; d < l->count; d++)
        add_out(l, d, d == call->dims[0] ? 0 : shape_of(call, 0)[d]);
    for (int i = 0; i < call->count; i++) {
        if (ndim_of(call, i) != l->count)
            return misfit(call, 0, i);
        for (int d = 0; d < l->count; d++) {
            if (d != call->dims[0] && shape_of(call, i)[d] != l->sizes[d])
                return misfit(call, 0, i);
            l->in[i][d] = d;
        }
        l->sizes[call->dims[0]] += shape_of(call, i)[call->dims[0]];
    }
    l->whole[call->dims[0]] = true;
    return FSDP_OK;
}

static fsdp_status expand(fsdp__global_call *call, fsdp__labels *l)
{
    int added = call->ndim - ndim_of(call, 0);

    label_first(call, l);
    if (added < 0 || call->ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "expand: %d dimensions cannot become %d", ndim_of(call, 0), call->ndim);
    for (int d = 0; d < call->ndim; d++) {
        int64_t own = d >= added ? shape_of(call, 0)[d - added] : 1;
        int64_t size = call->sizes[d] == -1 && d >= added ? own : call->sizes[d];

        add_out(l, size == own && d >= added ? d - added : -1, size);
        if (d >= added && size != own) {
            if (own != 1)
                return FSDP_FAIL(FSDP_INVALID, "expand: dimension %d of %lld cannot be repeated to %lld", d,
                                 (long long)own, (long long)size);
            l->whole[d - added] = true;
        }
    }
    return FSDP_OK;
}

static fsdp_status embedding(const fsdp__global_call *call, fsdp__labels *l)
{
    int v = ndim_of(call, 1), c = v + 1;

    if (ndim_of(call, 0) != 2 || v >= FSDP_MAX_DIMS)
        return misfit(call, 0, 1);
    l->count = v + 2;
    l->in[0][0] = v;
    l->in[0][1] = c;
    for (int d = 0; d < v; d++) {
        l->in[1][d] = d;
        add_out(l, d, shape_of(call, 1)[d]);
    }
    add_out(l, c, shape_of(call, 0)[1]);
    return FSDP_OK;
}

static fsdp_status loss(const fsdp__global_call *call, fsdp__labels *l)
{
    int rows_count = ndim_of(call, 0) - 1;

    if (rows_count < 0 || ndim_of(call, 1) != rows_count)
        return misfit(call, 0, 1);
    label_first(call, l);
    l->whole[rows_count] = true;
    for (int d = 0; d < rows_count; d++)
        l->in[1][d] = d;
    return FSDP_OK;
}

/* ---- reshape ---- */

/* Sets the size that is -1. */
static fsdp_status complete_sizes(fsdp__global_call *call)
{
    int64_t whole = fsdp__shape_numel(ndim_of(call, 0), shape_of(call, 0)), known = 1;
    int open = -1;

    for (int d = 0; d < call->ndim && call->ndim <= FSDP_MAX_DIMS; d++) {
        if (call->sizes[d] == -1 && open < 0)
            open = d;
        else
            known *= call->sizes[d];
    }
    if (open >= 0 && known > 0 && whole % known == 0)
        call->sizes[open] = whole / known;
    if (call->ndim < 0 || call->ndim > FSDP_MAX_DIMS || fsdp__shape_numel(call->ndim, call->sizes) != whole)
        return FSDP_FAIL(FSDP_INVALID, "reshape: a distributed tensor %s cannot become %s",
                         FSDP__SHOWN_SHAPE(ndim_of(call, 0), shape_of(call, 0)),
                         call->ndim >= 0 && call->ndim <= FSDP_MAX_DIMS ? FSDP__SHOWN_SHAPE(call->ndim, call->sizes)
                                                                        : "so many dimensions");
    return FSDP_OK;
}

/* Returns the dimension of the result that begins where dimension `dim` does and can be cut as that is; -1: none. */
static int reshaped_dim(const fsdp__global_call *call, int dim, int64_t cuts)
{
    const int64_t *shape = shape_of(call, 0);
    int64_t before = fsdp__shape_numel(dim, shape);
    int found = -1;

    for (int d = 0; d < call->ndim; d++) {
        bool same = call->sizes[d] == shape[dim];

        if (fsdp__shape_numel(d, call->sizes) != before)
            continue;
        if (same && (before != 0 || d == dim))
            return d;
        if (found < 0 && call->sizes[d] != 1 && before != 0 && call->sizes[d] % cuts == 0 && shape[dim] % cuts == 0)
            found = d;
    }
    return found;
}

static fsdp_status reshape(fsdp__global_call *call, const int64_t *cuts, fsdp__labels *l)
{
    FSDP_TRY(complete_sizes(call));
    label_first(call, l);
    for (int d = 0; d < call->ndim; d++)
        add_out(l, -1, call->sizes[d]);
    for (int d = 0; d < l->count; d++) {
        int to = cuts[d] > 1 ? reshaped_dim(call, d, cuts[d]) : -1;

        if (to >= 0 && l->out[to] < 0)
            l->out[to] = d;
        else
            l->whole[d] = true;
    }
    return FSDP_OK;
}

fsdp_status fsdp__find_labels(fsdp__global_call *call, const int64_t *cuts, fsdp__labels *out)
{
    static const fsdp__linearity linear[] = {
        [FSDP__RULE_POINTWISE] = FSDP__LINEAR_NONE, [FSDP__RULE_LINEAR] = FSDP__LINEAR_FIRST,
        [FSDP__RULE_PRODUCT] = FSDP__LINEAR_EACH,   [FSDP__RULE_SUM] = FSDP__LINEAR_ALL,
        [FSDP__RULE_WEIGHT] = FSDP__LINEAR_EACH,    [FSDP__RULE_CONV1D] = FSDP__LINEAR_EACH,
        [FSDP__RULE_MATMUL] = FSDP__LINEAR_EACH,    [FSDP__RULE_ROWS] = FSDP__LINEAR_NONE,
        [FSDP__RULE_REDUCE] = FSDP__LINEAR_FIRST,   [FSDP__RULE_TRANSPOSE] = FSDP__LINEAR_FIRST,
        [FSDP__RULE_RESHAPE] = FSDP__LINEAR_FIRST,  [FSDP__RULE_EXPAND] = FSDP__LINEAR_FIRST,
        [FSDP__RULE_SLICE] = FSDP__LINEAR_FIRST,    [FSDP__RULE_CONCAT] = FSDP__LINEAR_ALL,
        [FSDP__RULE_DROPOUT] = FSDP__LINEAR_FIRST,  [FSDP__RULE_EMBEDDING] = FSDP__LINEAR_FIRST,
        [FSDP__RULE_LOSS] = FSDP__LINEAR_NONE,
    };

    *out = (fsdp__labels){.linear = linear[call->rule], .added = -1};
    memset(out->in, -1, sizeof out->in);
    switch (call->rule) {
    case FSDP__RULE_WEIGHT:
    case FSDP__RULE_CONV1D:
        return weight(call, out);
    case FSDP__RULE_MATMUL:
        return matmul(call, out);
    case FSDP__RULE_ROWS:
        return rows(call, out);
    case FSDP__RULE_REDUCE:
        return reduce(call, out);
    case FSDP__RULE_TRANSPOSE:
        return transpose(call, out);
    case FSDP__RULE_RESHAPE:
        return reshape(call, cuts, out);
    case FSDP__RULE_EXPAND:
        return expand(call, out);
    case FSDP__RULE_SLICE:
        return slice(call, out);
    case FSDP__RULE_CONCAT:
        return concat(call, out);
    case FSDP__RULE_EMBEDDING:
        return embedding(call, out);
    case FSDP__RULE_LOSS:
        return loss(call, out);
    default:
        return pointwise(call, out);
    }
}
