/* linear_cross_entropy.c - the head and its loss, computed a few rows at a time.
 *
 * Only the logits of one chunk exist at a time, in f32, or on a device that says so in the dtype of the weight. If
 * gradients are wanted they are made before the next chunk: dx chunk by chunk, the weight's by accumulating products,
 * straight into the tensor that will be its gradient. If the weight has 16 bits so has the gradient of the logits,
 * rounded once: matrix units multiply it as it is. The gradient takes the place of logits of its dtype. Where logits
 * have 16 bits their rows begin at multiples of 128 bytes: products and losses of a vocabulary like 50,257 would have
 * to take them apart. */
#include "ops/loss.h"

#include <math.h>

#include "base/compiler.h"

/* Logits of a chunk take about CHUNK_BYTES, but a product needs some rows to be worth reading the weight for: those of
 * the device, or CHUNK_MIN_ROWS. */
enum {
    CHUNK_BYTES = 64 << 20,
    CHUNK_MIN_ROWS = 128,
    ROW_BYTES = 128 /* rows on devices with narrow logits begin at multiples of it */
};

typedef struct head {
    fsdp_tensor *x, *targets; /* (N,C), (N) */
    fsdp__matrix weight;      /* (V,C) */
    fsdp_dtype logits_dtype;
    fsdp_tensor *logits;  /* (chunk,V) */
    fsdp_tensor *dlogits; /* (chunk,V), in the dtype of the weight; may be the logits */
    fsdp_tensor *dx;      /* (N,C) or NULL */
    fsdp_tensor *dweight; /* (V,C) or NULL; f32 if the sum needs it */
    fsdp_tensor *loss;    /* () f32 */
    float scale;          /* of the loss; its gradients are for `unit` of it (ops/loss.h) */
    float unit;
    float softcap;
    const fsdp__chunk_loss *part; /* how chunks make the loss where ranks have parts of the vocabulary; NULL: alone */
} head;

/* Views rows [first, first + rows) as a matrix. `*view` keeps them alive: the caller unrefs it. */
static fsdp_status rows_of(const fsdp_tensor *tensor, int64_t first, int64_t rows, fsdp_tensor **view,
                           fsdp__matrix *out)
{
    FSDP_TRY(fsdp__view_narrow(tensor, 0, first, rows, view));
    return fsdp__matrix_of(*view, out);
}

static fsdp_status chunk_loss(const head *h, const fsdp_tensor *logits, const fsdp_tensor *targets,
                              const fsdp_tensor *dlogits, bool first)
{
    const fsdp__cross_entropy_args args = {.logits = fsdp_tensor_data(logits),
                                           .targets = fsdp_tensor_data(targets),
                                           .dlogits = dlogits ? fsdp_tensor_data(dlogits) : NULL,
                                           .loss = fsdp_tensor_data(h->loss),
                                           .rows = logits->shape[0],
                                           .cols = logits->shape[1],
                                           .logits_row = logits->shape[0] > 1 ? logits->strides[0] : 0,
                                           .loss_scale = h->scale * h->unit,
                                           .ignore_index = FSDP_IGNORE_TARGET,
                                           .dtype = logits->dtype,
                                           .dlogits_dtype = dlogits ? dlogits->dtype : FSDP_F32,
                                           .accumulate_loss = !first,
                                           .softcap = h->softcap};

    if (h->part)
        return h->part->compute(h->part->arg, &(const fsdp__loss_chunk){.logits = logits,
                                                                        .targets = targets,
                                                                        .dlogits = dlogits,
                                                                        .loss = h->loss,
                                                                        .scale = args.loss_scale,
                                                                        .softcap = args.softcap,
                                                                        .first = first});
    return fsdp__launch_cross_entropy(fsdp__op_stream(logits), &args);
}

static fsdp_status chunk(const head *h, int64_t first, int64_t rows)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *x_view = NULL, *logits = NULL, *dlogits = NULL, *targets = NULL;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *dx = NULL;
    fsdp__matrix x, of_logits, gradient;

    FSDP_TRY(rows_of(h->x, first, rows, &x_view, &x));
    FSDP_TRY(rows_of(h->logits, 0, rows, &logits, &of_logits));
    if (h->dlogits)
        FSDP_TRY(rows_of(h->dlogits, 0, rows, &dlogits, &gradient));
    FSDP_TRY(fsdp__view_narrow(h->targets, 0, first, rows, &targets));
    FSDP_TRY(fsdp__gemm(x, fsdp__matrix_transposed(h->weight), NULL, logits, false));
    FSDP_TRY(chunk_loss(h, logits, targets, dlogits, first == 0));
    if (h->dx) {
        FSDP_TRY(fsdp__view_narrow(h->dx, 0, first, rows, &dx));
        FSDP_TRY(fsdp__gemm(gradient, h->weight, NULL, dx, false));
    }
    if (h->dweight)
        FSDP_TRY(fsdp__gemm(fsdp__matrix_transposed(gradient), x, NULL, h->dweight, first > 0));
    return FSDP_OK;
}

/* Returns the number of rows in a chunk, the same on all ranks. The device's are of f32: of half as many bytes there
 * may be twice as many. */
static int64_t chunk_rows(const head *h)
{
    int64_t cols = h->part ? h->part->most : h->weight.rows;
    int64_t rows = CHUNK_BYTES / (4 * FSDP__MAX(cols, 1));
    int64_t least = fsdp__device_head_rows(h->x->storage->device) * 4 / (int64_t)fsdp_dtype_size(h->logits_dtype);

    return FSDP__MIN(FSDP__MAX(rows, FSDP__MAX(least, (int64_t)CHUNK_MIN_ROWS)), h->x->shape[0]);
}

/* Makes a matrix of (rows, V) for logits, with room between its rows where the device wants that. */
static fsdp_status new_logits(const head *h, fsdp_dtype dtype, int64_t rows, fsdp_tensor **out)
{
    fsdp_device *device = h->x->storage->device;
    int64_t cols = h->weight.rows, unit = ROW_BYTES / (int64_t)fsdp_dtype_size(dtype);
    bool padded = fsdp__device_narrow_logits(device) && !h->part && rows > 1;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;

    FSDP_TRY(fsdp_tensor_create(device, dtype, FSDP_SHAPE(rows, padded ? FSDP__ROUND_UP(cols, unit) : cols),
                                FSDP_MEMORY_WORKSPACE, &whole));
    return fsdp__view_narrow(whole, 1, 0, cols, out);
}

/* Makes the workspace of a chunk, which all chunks use in turn. */
static fsdp_status make_logits(head *h, int64_t rows)
{
    FSDP_TRY(new_logits(h, h->logits_dtype, rows, &h->logits));
    if (!h->dx && !h->dweight)
        return FSDP_OK;
    if (h->weight.dtype == h->logits_dtype)
        h->dlogits = fsdp_tensor_ref(h->logits);
    else
        FSDP_TRY(new_logits(h, h->weight.dtype, rows, &h->dlogits));
    return FSDP_OK;
}

static fsdp_status all_chunks(head *h)
{
    int64_t rows = h->x->shape[0], step = chunk_rows(h);
    fsdp_status status = FSDP_OK;

    if (step == 0) {
        if (h->dweight)
            FSDP_TRY(fsdp_tensor_fill_(h->dweight, 0.0));
        return fsdp_tensor_fill_(h->loss, isnan(h->scale) ? (double)NAN : 0.0);
    }
    FSDP_TRY_GOTO(status, make_logits(h, step), out);
    for (int64_t first = 0; first < rows; first += step)
        FSDP_TRY_GOTO(status, chunk(h, first, FSDP__MIN(step, rows - first)), out);
    FSDP_TRY_GOTO(status, fsdp__loss_of_unit(h->loss, h->unit), out);
out:
    fsdp_tensor_unref(h->logits);
    fsdp_tensor_unref(h->dlogits);
    h->logits = h->dlogits = NULL;
    return status;
}

/* Runs all chunks. If there are several, the gradient of a 16-bit weight is summed in f32 and rounded once; a single
 * product rounds by itself. */
static fsdp_status run(head *h, fsdp_tensor *dx, fsdp_tensor *dweight)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *wide = NULL, *flat = NULL;

    h->dweight = dweight;
    if (dweight && dweight->dtype != FSDP_F32 && chunk_rows(h) < h->x->shape[0]) {
        FSDP_TRY(
            fsdp_tensor_create(dweight->storage->device, FSDP_F32, 2, dweight->shape, FSDP_MEMORY_WORKSPACE, &wide));
        h->dweight = wide;
    }
    if (dx)
        FSDP_TRY(fsdp__view_reshape(dx, 2, h->x->shape, &flat));
    h->dx = flat;
    FSDP_TRY(all_chunks(h));
    return wide ? fsdp__tensor_copy(dweight, wide, false) : FSDP_OK;
}

static const fsdp__op linear_cross_entropy_op = {
    .name = "linear_cross_entropy", .backward = fsdp__loss_backward, .free_state = fsdp__loss_state_free};

/* Makes the gradients to fill: owned by the caller, NULL if not wanted. */
static fsdp_status gradients_for(fsdp_tensor *x, fsdp_tensor *weight, fsdp__loss_state *out)
{
    fsdp_device *device = x->storage->device;

    if (fsdp_tensor_requires_grad(x))
        FSDP_TRY(fsdp_tensor_create(device, x->dtype, x->ndim, x->shape, FSDP_MEMORY_ACTIVATION, &out->gradients[0]));
    if (!fsdp_tensor_requires_grad(weight))
        return FSDP_OK;
    if (fsdp_tensor_is_leaf(weight))
        return fsdp__reserve_grad(weight, &out->gradients[1]);
    return fsdp_tensor_create(device, weight->dtype, 2, weight->shape, FSDP_MEMORY_ACTIVATION, &out->gradients[1]);
}

fsdp_tensor *fsdp_linear_cross_entropy(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets)
{
    return fsdp_linear_cross_entropy_with(x, weight, targets, NULL);
}

fsdp_tensor *fsdp_linear_cross_entropy_with(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets,
                                            const fsdp_cross_entropy_options *options)
{
    return fsdp__linear_cross_entropy_part(x, weight, targets, options, NULL);
}

fsdp_tensor *fsdp__linear_cross_entropy_part(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets,
                                             const fsdp_cross_entropy_options *options, const fsdp__chunk_loss *part)
{
    const char *name = linear_cross_entropy_op.name;
    fsdp_tensor *inputs[] = {x, weight, targets}, *from, *wanted;
    fsdp__loss_state state = {.unit = 1.0f};
    fsdp_status status;
    head h = {.unit = 1.0f, .softcap = options ? options->softcap : 0.0f, .part = part};
    bool recording;
    int64_t count;

    if (fsdp__loss_recall(&linear_cross_entropy_op, x, weight, &h.loss))
        return h.loss;
    if (!x || !weight || !targets || !fsdp__op_inputs(name, inputs, 3) || !fsdp__op_same_dtype(name, inputs, 2))
        return NULL;
    if (weight->ndim != 2)
        return fsdp__op_bad(name, "weight", "a matrix", weight);
    if (x->ndim < 1 || fsdp__op_last(x) != weight->shape[1])
        return fsdp__op_misfit(name, "input", x, "weight", weight);
    if (fsdp__loss_targets(name, x, part ? part->classes : weight->shape[0], targets, &wanted, &count) != FSDP_OK ||
        fsdp__loss_scale(name, options, count, &h.scale) != FSDP_OK)
        return NULL;
    from = fsdp__op_contiguous(x);
    h.loss = fsdp_empty(x->storage->device, FSDP_F32, 0, NULL); /* () */
    if (!from || !h.loss || fsdp__matrix_of(weight, &h.weight) != FSDP_OK)
        return NULL;
    h.logits_dtype = fsdp__device_narrow_logits(x->storage->device) ? weight->dtype : FSDP_F32;
    recording = fsdp__will_record(inputs, 2);
    if (recording)
        h.unit = state.unit = fsdp__loss_unit(weight->dtype);
    const int64_t flat[] = {fsdp__op_rows(x), fsdp__op_last(x)}; /* (N,C) */
    FSDP_TRY_GOTO(status, fsdp__view_reshape(from, 2, flat, &h.x), out);
    FSDP_TRY_GOTO(status, fsdp__view_reshape(wanted, 1, flat, &h.targets), out);
    if (recording)
        FSDP_TRY_GOTO(status, gradients_for(x, weight, &state), out);
    FSDP_TRY_GOTO(status, run(&h, state.gradients[0], state.gradients[1]), out);
    FSDP_TRY_GOTO(status,
                  fsdp__record_with(&fsdp__loss_traits, &linear_cross_entropy_op, inputs, 2, &h.loss, 1, NULL, 0,
                                    &state, sizeof state),
                  out);
out:
    fsdp_tensor_unref(h.x);
    fsdp_tensor_unref(h.targets);
    if (status != FSDP_OK)
        fsdp__loss_state_free(&state); /* otherwise the node has them */
    return status == FSDP_OK ? h.loss : NULL;
}
