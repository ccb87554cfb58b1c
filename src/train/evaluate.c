/* evaluate.c - computes the mean loss of a stream or of rows, with the same bits on any number of ranks. */
#include "train/evaluate.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "data/windows.h"
#include "device/device.h"
#include "nn/module.h"
#include "parallel/context_parallel.h"

/* ---- modules as they were ---- */

typedef struct snapshot {
    fsdp_named_modules modules;
    struct was {
        bool training, sharded;
    } * was; /* of each module */
} snapshot;

static bool is_sharded_now(fsdp_module *module)
{
    fsdp_shard_info info;

    return fsdp_module_is_sharded(module) && fsdp_module_shard_info(module, &info) == FSDP_OK &&
           info.state == FSDP_SHARDED;
}

static void release(snapshot *s)
{
    fsdp_named_modules_release(&s->modules);
    fsdp__free(s->was);
}

static fsdp_status take(snapshot *s, fsdp_module *module)
{
    FSDP_TRY(fsdp_module_modules(module, NULL, &s->modules));
    s->was = fsdp__calloc((size_t)s->modules.count, sizeof *s->was);
    if (!s->was) {
        release(s);
        return FSDP_NO_MEMORY;
    }
    for (int64_t i = 0; i < s->modules.count; i++)
        s->was[i] = (struct was){s->modules.items[i].module->training, is_sharded_now(s->modules.items[i].module)};
    return FSDP_OK;
}

/* Restores the modules. What the evaluation has left whole would spare the next step a gather: but a step must be the
 * same as without an evaluation. */
static fsdp_status restore(const snapshot *s)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < s->modules.count; i++) {
        fsdp_module *module = s->modules.items[i].module;

        module->training = s->was[i].training;
        if (s->was[i].sharded && !is_sharded_now(module))
            FSDP_KEEP_FIRST(status, fsdp_module_reshard(module));
    }
    return status;
}

/* ---- batches ---- */

typedef struct pass {
    fsdp_module *module;
    fsdp_device *device;
    const fsdp_tokens *tokens;
    const fsdp__packed *packed; /* in place of tokens; otherwise NULL */
    const fsdp_evaluate_options *options;
    int together, rank, ranks; /* ranks of a team that computes a batch; this team, and how many there are */
    int64_t count;             /* number of tokens to predict; or of windows */
    int64_t batches, rounds;   /* batches of all ranks; rounds of each rank */
    int32_t *inputs, *targets, *positions; /* of one batch; without rows that share windows no positions: NULL */
    int64_t *answers;                      /* of each batch of rows */
    float *pairs;                          /* two sums of each window are asked for; NULL: the mean loss is */
    int64_t width;                         /* numbers of a batch: 1, or two of each window */
    double *losses;                        /* `width` of each of this rank's batches */
} pass;

/* Returns the number of tokens that the batch predicts. */
static int64_t predicted(const pass *p, int64_t batch)
{
    int64_t size = p->options->local_batch * p->options->seq_len;

    if (p->packed)
        return p->answers[batch];
    return FSDP__MAX(FSDP__MIN(p->count - batch * size, size), 0);
}

/* Reads the windows of a batch of rows, as far as there are some; the rest is empty. */
static fsdp_status read_windows(const pass *p, int64_t batch)
{
    const fsdp_evaluate_options *o = p->options;
    int64_t first = batch * o->local_batch, end = FSDP__MIN(first + o->local_batch, p->count);

    for (int64_t w = first; w < end; w++) {
        int64_t at = (w - first) * o->seq_len;

        FSDP_TRY(fsdp__packed_read(p->packed, o->vocab_size, w, p->inputs + at, p->targets + at,
                                   p->positions ? p->positions + at : NULL));
    }
    return FSDP_OK;
}

/* Reads a batch. One beyond the last has no token at all. */
static fsdp_status read_batch(const pass *p, int64_t batch)
{
    const fsdp_evaluate_options *o = p->options;
    int64_t size = o->local_batch * o->seq_len, left = batch < p->batches ? predicted(p, batch) : 0;
    int64_t start = o->first + batch * size;

    memset(p->inputs, 0, (size_t)size * sizeof *p->inputs);
    if (p->positions)
        memset(p->positions, 0, (size_t)size * sizeof *p->positions);
    for (int64_t i = 0; i < size; i++)
        p->targets[i] = FSDP__NO_TARGET;
    if (p->packed)
        return batch < p->batches ? read_windows(p, batch) : FSDP_OK;
    for (int64_t done = 0; done < left; done += o->seq_len)
        FSDP_TRY(fsdp__window_read(p->tokens, o->vocab_size, start + done, FSDP__MIN(left - done, o->seq_len),
                                   p->inputs + done, p->targets + done));
    return FSDP_OK;
}

/* ---- pairs ---- */

/* Makes the mask (B,T) of one answer of each window: the second begins at the second position 0. */
static fsdp_tensor *mask_of(const fsdp_tensor *like, const int32_t *positions, int side)
{
    int64_t rows = like->shape[0], length = like->shape[1];
    FSDP__FREED float *mask = fsdp__calloc((size_t)(rows * length) + 1, sizeof *mask);

    for (int64_t b = 0; mask && positions && b < rows; b++) {
        int64_t second = 1;

        while (second < length && positions[b * length + second] != 0)
            second++;
        for (int64_t t = 0; t < length; t++)
            mask[b * length + t] = (t >= second) == side;
    }
    return mask ? fsdp_from_data(fsdp_tensor_device(like), FSDP_F32, 2, like->shape, mask) : NULL;
}

fsdp_status fsdp__pair_sums(fsdp_tensor *losses, const int32_t *positions, fsdp_tensor *sums[2])
{
    for (int side = 0; side < 2; side++) {
        FSDP__TRY_MADE(sums[side] =
                           fsdp_neg(fsdp_sum_dim(fsdp_mul(losses, mask_of(losses, positions, side)), 1, false)));
    }
    return FSDP_OK;
}

static fsdp_status read_pairs(const pass *p, fsdp_tensor *losses, double *out)
{
    int64_t size = p->options->local_batch;
    FSDP__FREED float *values = fsdp__calloc((size_t)size, sizeof *values);
    fsdp_tensor *sums[2];

    FSDP__TRY_NEW(values);
    FSDP_TRY(fsdp__pair_sums(losses, p->positions, sums));
    for (int side = 0; side < 2; side++) {
        FSDP_TRY(fsdp_tensor_read(sums[side], FSDP_F32, values));
        for (int64_t b = 0; b < size; b++)
            out[side * size + b] = (double)values[b];
    }
    return FSDP_OK;
}

/* Stores the sums of all windows; `all` has those of each rank. */
static void store_pairs(const pass *p, void *const *all)
{
    int64_t size = p->options->local_batch;

    for (int64_t w = 0; w < fsdp__evaluate_windows(p->packed, p->options); w++) {
        int64_t batch = w / size;
        const double *sums =
            (const double *)all[batch % p->ranks * p->together] + batch / p->ranks * p->width + w % size;

        p->pairs[2 * w] = (float)sums[0];
        p->pairs[2 * w + 1] = (float)sums[size];
    }
}

static fsdp_status run_batch(const pass *p, double *loss)
{
    const fsdp__host_call call = {.device = p->device,
                                  .rows = p->options->local_batch,
                                  .time = p->options->seq_len,
                                  .tokens = p->inputs,
                                  .targets = p->targets,
                                  .positions = p->positions};
    fsdp_context *context = p->module->context;
    fsdp_tensor *mean;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    mean = fsdp__call_from_host(p->module, &call);
    if (!mean)
        status = fsdp_last_status();
    else
        status = p->pairs ? read_pairs(p, mean, loss) : fsdp_tensor_item(mean, loss);
    fsdp_scope_end(context, NULL);
    return status;
}

static fsdp_status run_batches(const pass *p)
{
    fsdp_context *context = p->module->context;
    fsdp_status status;

    fsdp_no_grad_begin(context);
    status = fsdp_grad_enabled(context) ? FSDP_NO_MEMORY : FSDP_OK; /* the first call on a context allocates memory */
    for (int64_t round = 0; round < p->rounds && status == FSDP_OK; round++) {
        status = read_batch(p, round * p->ranks + p->rank);
        if (status == FSDP_OK)
            status = run_batch(p, &p->losses[round * p->width]);
        if (status == FSDP_OK && p->options->progress)
            p->options->progress(p->options->arg, FSDP__MIN((round + 1) * p->ranks, p->batches), p->batches);
    }
    fsdp_no_grad_end(context);
    return status;
}

/* ---- the mean ---- */

/* Adds up the losses; `all` has those of each rank. */
static void add_up(const pass *p, void *const *all, fsdp_evaluation *out)
{
    double sum = 0;

    out->tokens = 0;
    for (int64_t batch = 0; batch < p->batches; batch++) {
        const double *losses = all[batch % p->ranks * p->together];

        out->tokens += predicted(p, batch);
        if (predicted(p, batch) > 0 && !p->pairs) /* the mean of nothing is NaN */
            sum += losses[batch / p->ranks] * (double)predicted(p, batch);
    }
    if (p->pairs) {
        store_pairs(p, all);
        return;
    }
    out->loss = sum / (double)out->tokens;
    if (isnan(out->loss)) /* NaN has a sign, which must not be printed */
        out->loss = NAN;
    out->perplexity = exp(out->loss);
}

static fsdp_status gather(const pass *p, fsdp_evaluation *out)
{
    int ranks = p->ranks * p->together;
    fsdp_process_group *world = ranks > 1 ? fsdp_world(p->module->context) : NULL;
    size_t bytes = (size_t)(p->rounds * p->width) * sizeof *p->losses, *sizes = NULL;
    void **all = NULL, *mine = p->losses;

    if (ranks == 1) {
        add_up(p, &mine, out);
        return FSDP_OK;
    }
    FSDP__TRY_MADE(world);
    FSDP_TRY(fsdp_gather_objects(world, p->losses, bytes, &all, &sizes));
    for (int r = 0; r < ranks; r++)
        if (sizes[r] != bytes) {
            fsdp_objects_free(world, all, sizes);
            return FSDP_FAIL(FSDP_MISMATCH, "cannot evaluate: rank %d was given another stream or other batches", r);
        }
    add_up(p, all, out);
    fsdp_objects_free(world, all, sizes);
    return FSDP_OK;
}

/* ---- the call ---- */

static fsdp_status check(const pass *p, const fsdp_evaluation *out)
{
    const fsdp_evaluate_options *o = p->options;
    const fsdp_tokens *tokens = p->tokens;
    int64_t size;

    if (!p->module || !(tokens || p->packed) || !o || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot evaluate: module, tokens, options and a place for the result are "
                                       "required");
    if (o->ranks_per_batch < 0 || fsdp_context_world_size(p->module->context) % FSDP__MAX(o->ranks_per_batch, 1) != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot evaluate: ranks_per_batch %d must divide the %d ranks",
                         o->ranks_per_batch, fsdp_context_world_size(p->module->context));
    if (o->seq_len < 1 || o->local_batch < 1 || o->steps < 0 || o->first < 0 || o->vocab_size < 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot evaluate: seq_len %lld and local batch %lld must be positive, and neither %lld steps "
                         "nor a begin at %lld nor a vocabulary of %lld may be negative",
                         (long long)o->seq_len, (long long)o->local_batch, (long long)o->steps, (long long)o->first,
                         (long long)o->vocab_size);
    if (__builtin_mul_overflow(o->seq_len, o->local_batch, &size) || size > INT32_MAX)
        return FSDP_FAIL(FSDP_INVALID, "cannot evaluate: %lld sequences of %lld tokens are too many for one batch",
                         (long long)o->local_batch, (long long)o->seq_len);
    if (p->packed || fsdp_tokens_count(tokens) - o->first >= 2)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot evaluate: at least two tokens are needed, one to predict the other, but of %lld tokens "
                     "fewer are left from number %lld on",
                     (long long)fsdp_tokens_count(tokens), (long long)o->first);
}

/* Takes the module's device. One without parameters may be on any; one on meta is refused when it is called. */
static fsdp_status find_device(pass *p)
{
    FSDP_TRY(fsdp__module_device(p->module, &p->device));
    if (!p->device || fsdp_device_is_meta(p->device))
        p->device = fsdp__front_device(p->module->context);
    return p->device ? FSDP_OK : fsdp_last_status();
}

int64_t fsdp__evaluate_windows(const fsdp__packed *packed, const fsdp_evaluate_options *options)
{
    if (options->steps > 0 && options->steps < (packed->windows - 1) / options->local_batch + 1)
        return options->steps * options->local_batch;
    return packed->windows;
}

int64_t fsdp__evaluate_answers(const fsdp__packed *packed, int64_t windows)
{
    int64_t count = 0;

    for (int64_t w = 0; w < packed->windows && (windows == 0 || w < windows); w++) {
        int64_t answers = 0;

        if (fsdp__packed_answers(packed, w, &answers) == FSDP_OK)
            count += answers;
    }
    return count;
}

/* Counts the answers of each batch of rows, which every rank must know. */
static fsdp_status count_answers(pass *p)
{
    FSDP__TRY_NEW(p->answers = fsdp__calloc((size_t)p->batches, sizeof *p->answers));
    for (int64_t w = 0; w < fsdp__evaluate_windows(p->packed, p->options); w++) {
        int64_t answers;

        FSDP_TRY(fsdp__packed_answers(p->packed, w, &answers));
        p->answers[w / p->options->local_batch] += answers;
    }
    if (p->packed->options.packing == FSDP_PACKING_PAD)
        return FSDP_OK;
    p->positions = fsdp__calloc((size_t)(p->options->local_batch * p->options->seq_len), sizeof *p->positions);
    return p->positions ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status prepare(pass *p)
{
    const fsdp_evaluate_options *o = p->options;
    int64_t size = o->local_batch * o->seq_len;

    p->together = FSDP__MAX(o->ranks_per_batch, 1);
    p->rank = fsdp_context_rank(p->module->context) / p->together;
    p->ranks = fsdp_context_world_size(p->module->context) / p->together;
    p->count = p->packed ? p->packed->windows : fsdp_tokens_count(p->tokens) - o->first - 1;
    p->batches = (p->count - 1) / (p->packed ? o->local_batch : size) + 1;
    if (o->steps > 0)
        p->batches = FSDP__MIN(p->batches, o->steps);
    if (p->packed)
        FSDP_TRY(count_answers(p));
    p->rounds = (p->batches - 1) / p->ranks + 1;
    p->inputs = fsdp__calloc((size_t)size, sizeof *p->inputs);
    p->targets = fsdp__calloc((size_t)size, sizeof *p->targets);
    p->width = p->pairs ? 2 * o->local_batch : 1;
    p->losses = fsdp__calloc((size_t)(p->rounds * p->width), sizeof *p->losses);
    return p->inputs && p->targets && p->losses ? find_device(p) : FSDP_NO_MEMORY;
}

static fsdp_status evaluate(pass p, fsdp_evaluation *out)
{
    int64_t began_ns = fsdp__clock_ns();
    fsdp_status status = FSDP_OK;
    snapshot before = {.was = NULL};

    FSDP_TRY(check(&p, out));
    FSDP_TRY_GOTO(status, prepare(&p), out);
    FSDP_TRY_GOTO(status, take(&before, p.module), out);
    fsdp_module_train(p.module, false);
    status = run_batches(&p);
    FSDP_KEEP_FIRST(status, restore(&before));
    release(&before);
    if (status == FSDP_OK)
        status = gather(&p, out);
    if (status == FSDP_OK)
        out->seconds = (double)(fsdp__clock_ns() - began_ns) * 1e-9;
out:
    if (status != FSDP_OK)
        fsdp_abort(p.module->context, fsdp_last_error()); /* otherwise peers would wait for this rank */
    FSDP__FREE_ALL(p.inputs, p.targets, p.positions, p.answers, p.losses);
    return status;
}

fsdp_status fsdp_evaluate(fsdp_module *module, const fsdp_tokens *tokens, const fsdp_evaluate_options *options,
                          fsdp_evaluation *out)
{
    return evaluate((pass){.module = module, .tokens = tokens, .options = options}, out);
}

fsdp_status fsdp__evaluate_packed(fsdp_module *module, const fsdp__packed *packed, const fsdp_evaluate_options *options,
                                  fsdp_evaluation *out)
{
    return evaluate((pass){.module = module, .packed = packed, .options = options}, out);
}

fsdp_status fsdp__evaluate_pairs(fsdp_module *module, const fsdp__packed *packed, const fsdp_evaluate_options *options,
                                 float *out, fsdp_evaluation *found)
{
    *found = (fsdp_evaluation){.loss = NAN, .perplexity = NAN};
    return evaluate((pass){.module = module, .packed = packed, .options = options, .pairs = out}, found);
}
