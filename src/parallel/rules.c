/* rules.c - operations on distributed tensors: for each mesh dimension, what it cuts, and which parts that takes.
 *
 * [Note: one mesh dimension]
 * Inputs that a mesh dimension cuts must be cut along one label. The others that have the label are cut, too, without
 * communication. The result is cut there; or it is a sum of contributions, if the operation adds up over the label. It
 * is also one if an input is, of which the operation is a linear function; what is added to that comes from one rank.
 * An input that is the same on all ranks goes into computations that differ: its gradients are added up
 * (fsdp_parallel_copy). */
#include "parallel/rules.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/hash.h"
#include "fsdp/parallel.h"
#include "parallel/distributed.h"
#include "parallel/labels.h"
#include "parallel/wire.h"

#include <string.h>

static const fsdp_placement replicate = {.kind = FSDP_REPLICATE}, contribution = {.kind = FSDP_PARTIAL};

typedef struct plan {
    fsdp__global_call *call;
    fsdp__labels labels;
    fsdp_distribution result;
    fsdp_placement from[FSDP__GLOBAL_INPUTS][FSDP_MAX_MESH_DIMS], to[FSDP__GLOBAL_INPUTS][FSDP_MAX_MESH_DIMS];
    unsigned copied[FSDP__GLOBAL_INPUTS]; /* bit m: gradients are added up over mesh dimension m */
} plan;

/* ---- errors ---- */

static fsdp_status refuse(const plan *p, int input, int m, const char *why)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: input %d is %s, and %s (mesh dimension '%s'): redistribute it first",
                     p->call->name, input, fsdp__global_text(p->call->inputs[input], (char[FSDP__GLOBAL_TEXT]){0}), why,
                     p->result.mesh->names[m]);
}

static void refuse_operation(const char *op, const fsdp_tensor *input)
{
    FSDP_FAIL(FSDP_UNSUPPORTED,
              "%s: there is no rule for distributed tensors, and an input is %s: compute on the "
              "parts (fsdp_to_local)",
              op, fsdp__global_text(input, (char[FSDP__GLOBAL_TEXT]){0}));
}

/* ---- one mesh dimension ---- */

static int label_of(const plan *p, int input, int m)
{
    return p->labels.in[input][p->from[input][m].dim];
}

static fsdp_status find_cut(const plan *p, int m, int *cutter)
{
    *cutter = -1;
    for (int i = 0; i < p->call->count; i++) {
        fsdp_placement own = p->from[i][m], first;

        if (own.kind != FSDP_SHARD)
            continue;
        if (label_of(p, i, m) < 0)
            return refuse(p, i, m, "the dimension that is cut is repeated");
        if (p->labels.whole[label_of(p, i, m)])
            return refuse(p, i, m, "the operation needs all of the dimension that is cut");
        if (*cutter < 0) {
            *cutter = i;
            continue;
        }
        first = p->from[*cutter][m];
        own.dim = first.dim;
        if (label_of(p, i, m) != label_of(p, *cutter, m) || !fsdp__placement_equal(own, first))
            return refuse(p, i, m, "another input is cut in another way");
    }
    return FSDP_OK;
}

/* Finds out whether inputs are contributions, and checks that the operation is linear in them. */
static fsdp_status find_contributions(const plan *p, int m, int cutter, int *contributions)
{
    *contributions = 0;
    for (int i = 0; i < p->call->count; i++) {
        fsdp__linearity linear = p->labels.linear;

        if (p->from[i][m].kind != FSDP_PARTIAL)
            continue;
        if (p->from[i][m].op != FSDP_SUM)
            return refuse(p, i, m, "only contributions to a sum can be computed with");
        if (linear == FSDP__LINEAR_NONE || (linear == FSDP__LINEAR_FIRST && i > 0))
            return refuse(p, i, m, "the operation is not linear in what is to be added up");
        if (cutter >= 0)
            return refuse(p, i, m, "another input is cut");
        if (i == p->labels.added)
            continue;
        if (linear == FSDP__LINEAR_EACH && *contributions > 0)
            return refuse(p, i, m, "another input is to be added up, too");
        (*contributions)++;
    }
    return FSDP_OK;
}

static int position_in(const int *labels, int count, int label)
{
    for (int d = 0; d < count; d++)
        if (labels[d] == label)
            return d;
    return -1;
}

/* Decides what becomes of an input that every rank has whole. */
static void place_whole_input(plan *p, int i, int m, int cutter, bool adds)
{
    int label = cutter >= 0 ? label_of(p, cutter, m) : -1;
    int dim = label >= 0 ? position_in(p->labels.in[i], p->call->inputs[i]->ndim, label) : -1;

    if (dim >= 0) {
        p->to[i][m] = p->from[cutter][m];
        p->to[i][m].dim = dim;
    } else if (adds && (p->labels.linear == FSDP__LINEAR_ALL || i == p->labels.added)) {
        p->to[i][m] = contribution;
    } else {
        p->copied[i] |= 1u << m;
    }
}

static fsdp_status place(plan *p, int m)
{
    int cutter, contributions, at = -1;
    bool adds;

    FSDP_TRY(find_cut(p, m, &cutter));
    FSDP_TRY(find_contributions(p, m, cutter, &contributions));
    if (cutter >= 0)
        at = position_in(p->labels.out, p->labels.ndim, label_of(p, cutter, m));
    adds = contributions > 0 || (cutter >= 0 && at < 0);
    p->result.placements[m] = adds ? contribution : replicate;
    if (at >= 0) {
        p->result.placements[m] = p->from[cutter][m];
        p->result.placements[m].dim = at;
    }
    for (int i = 0; i < p->call->count; i++) {
        if (!p->call->inputs[i])
            continue;
        if (p->from[i][m].kind == FSDP_PARTIAL && !adds)
            return refuse(p, i, m, "what it is added to is not to be added up");
        p->to[i][m] = p->from[i][m];
        if (p->from[i][m].kind == FSDP_REPLICATE && (adds || at >= 0))
            place_whole_input(p, i, m, cutter, adds);
    }
    return FSDP_OK;
}

/* Leaves the gradients of a parameter to those who add up contributions to them (partial_gradients). Where each rank's
 * gradient would be whole, they would make a multiple of it. */
static fsdp_status leave_contributions(plan *p, int m)
{
    for (int i = 0; i < p->call->count; i++) {
        fsdp_tensor *input = p->call->inputs[i];
        const fsdp_distribution *d = input ? fsdp_tensor_distribution(input) : NULL;

        if (!d || !(d->partial_gradients & 1u << m) || !fsdp__will_record(&input, 1))
            continue;
        if (!(p->copied[i] & 1u << m))
            return refuse(p, i, m, "its gradients, which ranks add up, would be whole on each: no other input is cut");
        p->copied[i] &= ~(1u << m);
    }
    return FSDP_OK;
}

/* ---- all of them ---- */

static fsdp_status read_input(plan *p, int i)
{
    const fsdp_tensor *input = p->call->inputs[i];
    const fsdp_distribution *d = input ? fsdp_tensor_distribution(input) : NULL;

    for (int m = 0; m < p->result.placement_count; m++)
        p->from[i][m] = d ? d->placements[m] : replicate;
    if (!input)
        return FSDP_OK;
    if (!d && fsdp_tensor_numel(input) != 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: input %d %s is a plain tensor beside a distributed one: distribute it (fsdp_from_local)",
                         p->call->name, i, FSDP__SHAPE_OF(input));
    if (d && !fsdp_mesh_equal(d->mesh, p->result.mesh))
        return FSDP_FAIL(FSDP_INVALID, "%s: input %d is distributed over mesh %s, and the others over %s",
                         p->call->name, i, FSDP__MESH(d->mesh), FSDP__MESH(p->result.mesh));
    if (d && fsdp_distribution_is_flat(d))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: input %d is a part of a flat vector", p->call->name, i);
    return FSDP_OK;
}

static fsdp_status find_plan(fsdp__global_call *call, plan *p)
{
    int64_t cuts[FSDP_MAX_DIMS];

    for (int d = 0; d < FSDP_MAX_DIMS; d++)
        cuts[d] = 1;
    for (int i = call->count - 1; i >= 0; i--)
        if (call->inputs[i] && call->inputs[i]->global)
            p->result = *fsdp_tensor_distribution(call->inputs[i]);
    p->result.partial_gradients = 0;
    for (int i = 0; i < call->count; i++)
        FSDP_TRY(read_input(p, i));
    for (int m = 0; m < p->result.placement_count; m++)
        if (p->from[0][m].kind == FSDP_SHARD)
            cuts[p->from[0][m].dim] *= p->result.mesh->shape[m];
    for (int m = 0; m < p->result.placement_count; m++)
        if (p->from[0][m].kind == FSDP_SHARD && p->from[0][m].segment_count > 0)
            cuts[p->from[0][m].dim] = INT64_MAX; /* segments are of one dimension: no other is cut as that is */
    FSDP_TRY(fsdp__find_labels(call, cuts, &p->labels));
    p->result.ndim = p->labels.ndim;
    memcpy(p->result.global_shape, p->labels.sizes, sizeof p->labels.sizes);
    for (int m = 0; m < p->result.placement_count; m++)
        FSDP_TRY(place(p, m));
    for (int m = 0; m < p->result.placement_count; m++)
        FSDP_TRY(leave_contributions(p, m));
    return FSDP_OK;
}

/* ---- parts ---- */

static fsdp_tensor *replicated(fsdp_tensor *plain, const plan *p)
{
    fsdp_distribution d = {.mesh = p->result.mesh, .placement_count = p->result.placement_count, .ndim = plain->ndim};
    fsdp_tensor *alias = NULL;

    memcpy(d.global_shape, plain->shape, sizeof d.global_shape);
    /* An identity that is recorded: its gradient is that of the tensor. */
    alias = fsdp_reshape(plain, plain->ndim, plain->shape);
    return alias && fsdp_tensor_set_distribution(alias, &d) == FSDP_OK ? alias : NULL;
}

static fsdp_tensor *make_part(const plan *p, int i)
{
    fsdp_tensor *x = p->call->inputs[i];
    bool moves = false;

    for (int m = 0; m < p->result.placement_count; m++)
        moves = moves || !fsdp__placement_equal(p->from[i][m], p->to[i][m]);
    if (moves && !fsdp_tensor_distribution(x))
        x = replicated(x, p);
    if (moves && x)
        x = fsdp__redistributed(x, p->to[i]);
    for (int m = 0; x && m < p->result.placement_count; m++)
        if (p->copied[i] & 1u << m && fsdp_tensor_requires_grad(x))
            x = fsdp_parallel_copy(x, p->result.mesh->groups[m]);
    return x;
}

static void unmark(fsdp__global_call *call)
{
    for (int i = 0; i < call->count; i++)
        if (call->inputs[i] && call->inputs[i]->global) {
            call->inputs[i]->global = false;
            call->unmarked |= 1u << i;
        }
}

static void mark_again(fsdp__global_call *call)
{
    for (int i = 0; i < call->count; i++)
        if (call->unmarked & 1u << i)
            call->inputs[i]->global = true;
    fsdp__free(fsdp__take(&call->result));
}

/* Says where a part lies for a dropout: in one dimension, or, if several are cut, anywhere, with draws of its own. */
static void find_draws(const plan *p, fsdp__global_call *call, const int64_t *offset)
{
    const fsdp_placement *placements = p->result.placements;
    uint64_t own = call->key;
    int dim = -1;

    for (int m = 0; m < p->result.placement_count; m++) {
        if (placements[m].kind != FSDP_SHARD)
            continue;
        own = fsdp__mix(own, (uint64_t)p->result.mesh->coordinate[m] + 1);
        dim = (dim == -1 || dim == placements[m].dim) && placements[m].segment_count == 0 ? placements[m].dim : -2;
    }
    call->dims[0] = dim >= 0 ? dim : p->result.ndim - 1;
    call->sizes[0] = dim >= 0 ? offset[dim] : 0;
    call->sizes[1] = dim >= 0 ? p->result.global_shape[dim] : -1;
    call->key = dim == -2 ? own : call->key;
}

/* Sets what the computation of the part needs beside the parts. */
static void find_arguments(const plan *p, fsdp__global_call *call)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];

    fsdp_distribution_box(&p->result, p->result.mesh->coordinate, offset, size);
    if (call->rule == FSDP__RULE_RESHAPE || call->rule == FSDP__RULE_EXPAND)
        memcpy(call->sizes, size, sizeof size);
    if (call->rule == FSDP__RULE_SLICE)
        call->sizes[1] = size[call->dims[0]];
    for (int m = 0; m < p->result.placement_count; m++)
        call->counted = call->counted || p->result.placements[m].kind == FSDP_PARTIAL;
    if (call->rule == FSDP__RULE_DROPOUT)
        find_draws(p, call, offset);
}

/* Finds the first row that this rank has of a table whose rows are cut. */
static fsdp_status find_rows(const plan *p, fsdp__global_call *call)
{
    fsdp_distribution table = *fsdp_tensor_distribution(call->inputs[0]);
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];

    call->first = -1;
    call->reduced = table.global_shape[0];
    memcpy(table.placements, p->to[0], sizeof p->to[0]);
    for (int m = 0; m < table.placement_count; m++) {
        if (table.placements[m].kind != FSDP_SHARD || table.placements[m].dim != 0)
            continue;
        if (table.placements[m].segment_count > 0)
            return refuse(p, 0, m, "rows in segments are not looked up");
        fsdp_distribution_box(&table, table.mesh->coordinate, offset, size);
        call->first = offset[0];
    }
    return FSDP_OK;
}

static fsdp_status begin(fsdp__global_call *call)
{
    plan p = {.call = call};
    fsdp_distribution *result;

    if (call->count > FSDP__GLOBAL_INPUTS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: %d distributed inputs, %d are possible", call->name, call->count,
                         FSDP__GLOBAL_INPUTS);
    FSDP_TRY(find_plan(call, &p));
    if (call->rule == FSDP__RULE_EMBEDDING)
        FSDP_TRY(find_rows(&p, call));
    find_arguments(&p, call);
    FSDP__TRY_NEW(result = fsdp__malloc(sizeof *result));
    *result = p.result;
    call->result = result;
    unmark(call);
    for (int i = 0; i < call->count; i++) {
        call->parts[i] = call->inputs[i] ? make_part(&p, i) : NULL;
        if (call->inputs[i] && !call->parts[i])
            return fsdp_last_status();
    }
    return FSDP_OK;
}

/* ---- what the operations call ---- */

static bool begin_call(fsdp__global_call *call)
{
    if (begin(call) == FSDP_OK)
        return true;
    mark_again(call);
    return false;
}

static void end_call(fsdp__global_call *call, fsdp_tensor *const *results, int count)
{
    const fsdp_distribution *result = call->result;
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < count && status == FSDP_OK; i++)
        status = fsdp__make_global(results[i], result);
    mark_again(call);
    if (status != FSDP_OK)
        results[0]->global = false;
}

static const int64_t *whole_shape(const fsdp_tensor *tensor)
{
    return fsdp_tensor_distribution(tensor)->global_shape;
}

static fsdp_tensor *total(const fsdp__global_call *call, fsdp_tensor *part)
{
    const fsdp_distribution *result = call->result;

    for (int m = 0; part && m < result->placement_count; m++)
        if (result->placements[m].kind == FSDP_PARTIAL)
            part = fsdp__wire_all_reduce(part, FSDP_SUM, false, result->mesh->groups[m]);
    return part;
}

const fsdp__global_rules fsdp__parallel_rules = {
    .begin = begin_call, .end = end_call, .shape = whole_shape, .refuse = refuse_operation, .total = total};
