/* ways.c - running a body in every way, and comparing what was noted. */
#include "shard/ways.h"

static const way all_ways[] = {
    {"in place, inline", false, false, FSDP_OVERLAP_INLINE},
    {"in place, worker streams", false, false, FSDP_OVERLAP_WORKER},
    {"copy, inline", true, false, FSDP_OVERLAP_INLINE},
    {"copy, worker streams", true, false, FSDP_OVERLAP_WORKER},
    {"cast, inline", false, true, FSDP_OVERLAP_INLINE},
    {"cast, worker streams", false, true, FSDP_OVERLAP_WORKER},
    {"copy and cast, inline", true, true, FSDP_OVERLAP_INLINE},
    {"copy and cast, worker streams", true, true, FSDP_OVERLAP_WORKER},
};

/* ---- in a body ---- */

void note(fsdp_context *context, way_run *run, const float *values, int64_t count)
{
    notes *n = &run->notes[fsdp_context_rank(context)];

    if (count == 0)
        return;
    n->values = realloc(n->values, (size_t)(n->count + count) * sizeof *values);
    memcpy(n->values + n->count, values, (size_t)count * sizeof *values);
    n->count += count;
}

void note_weights(way_run *run, fsdp_module *module)
{
    int64_t count;
    float *values = net_values(module, &count);

    note(module->context, run, values, count);
    free(values);
}

void note_tensor(way_run *run, fsdp_tensor *tensor)
{
    float *values = malloc((size_t)(fsdp_tensor_numel(tensor) + 1) * sizeof *values);

    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    note(fsdp_device_context(fsdp_tensor_device(tensor)), run, values, fsdp_tensor_numel(tensor));
    free(values);
}

void note_gradients(way_run *run, fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *gradient = fsdp_tensor_grad(parameters.items[i].tensor), *whole;
        float there = gradient != NULL;

        note(module->context, run, &there, 1);
        if (!gradient)
            continue;
        CHECK_OK(fsdp_full_tensor(gradient, &whole));
        note_tensor(run, whole);
        fsdp_tensor_unref(whole);
    }
    fsdp_parameters_release(&parameters);
}

bool is_slow(fsdp_context *context, const way_run *run)
{
    return run->way && run->world > 1 && fsdp_context_rank(context) == run->slow;
}

void dawdle(fsdp_context *context, const way_run *run)
{
    if (is_slow(context, run))
        usleep(WAYS_SLOW_US);
}

fsdp_module *ways_net(fsdp_context *context, const way_run *run, int blocks, fsdp_reshard reshard)
{
    fsdp_shard_options options = run->options;
    fsdp_module *module;

    options.reshard_after_forward = reshard;
    if (run->way)
        return net_sharded(context, blocks, &options);
    module = net_create(context, test_device(context), blocks);
    CHECK_OK(fsdp_module_initialize(module, 1));
    net_renew(module);
    return module;
}

fsdp_tensor *ways_loss(const way_run *run, fsdp_module *module, int step)
{
    fsdp_context *context = module->context;
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world, rank = fsdp_context_rank(context);
    fsdp_tensor *x, *targets;

    net_batch(context, step, rank * rows, rows, &x, &targets);
    return CHECK_PTR(fsdp_call(module, x, targets));
}

void ways_backward(const way_run *run, fsdp_module *module, int step)
{
    CHECK_OK(fsdp_scope_begin(module->context));
    CHECK_OK(fsdp_backward(ways_loss(run, module, step)));
    fsdp_scope_end(module->context, NULL);
}

float ways_evaluate(const way_run *run, fsdp_module *module, int step)
{
    double loss;

    fsdp_no_grad_begin(module->context);
    CHECK_OK(fsdp_scope_begin(module->context));
    CHECK_OK(fsdp_tensor_item(ways_loss(run, module, step), &loss));
    fsdp_scope_end(module->context, NULL);
    fsdp_no_grad_end(module->context);
    return (float)loss;
}

fsdp_optimizer *ways_optimizer(fsdp_module *module)
{
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.5, .momentum = 0.9}, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

void ways_step(fsdp_optimizer *optimizer)
{
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
}

void ways_end(way_run *run, fsdp_module *module, fsdp_optimizer *optimizer)
{
    note_weights(run, module);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

void ways_last_step(way_run *run, fsdp_module *module, fsdp_optimizer *optimizer)
{
    ways_step(optimizer);
    ways_end(run, module, optimizer);
}

/* ---- running it ---- */

typedef struct ways_call {
    way_body body;
    way_run *run;
} ways_call;

static void run_rank(fsdp_context *context, void *arg)
{
    const ways_call *call = arg;

    call->body(context, call->run);
}

/* What fails is printed with the way. */
static void run_way(way_run *run, way_body body)
{
    ways_call call = {.body = body, .run = run};
    char text[1024];

    if (test_try_ranks(run->way ? run->world : 1, run_rank, &call, text, sizeof text) > 0)
        TEST_FAIL("%s%d ranks, rank %d slow, %s", text, run->world, run->slow, run->way ? run->way->name : "plain");
}

/* Some ways compute on the test's device, others on the CPU. */
static void check_same(const way_run *run, int rank, const way_run *other, int other_rank, bool bits)
{
    const notes *a = &run->notes[rank], *b = &other->notes[other_rank];
    int64_t i = 0;

    bits = bits && test_has_cpu_bits();
    while (i < a->count && i < b->count &&
           (bits ? memcmp(&a->values[i], &b->values[i], sizeof(float)) == 0
                 : a->values[i] == b->values[i] ||
                       (a->values[i] - b->values[i] < 1e-4f && b->values[i] - a->values[i] < 1e-4f)))
        i++;
    if (i < a->count || i < b->count)
        TEST_FAIL("%d ranks, %s: note %lld of %lld on rank %d is %.9g; %s, rank %d: %.9g of %lld", run->world,
                  run->way->name, (long long)i, (long long)a->count, rank, i < a->count ? (double)a->values[i] : 0.0,
                  other->way ? other->way->name : "plain", other_rank, i < b->count ? (double)b->values[i] : 0.0,
                  (long long)b->count);
}

static void forget_notes(way_run *run)
{
    for (int r = 0; r < WAYS_WORLDS; r++)
        free(run->notes[r].values);
}

/* On the CPU half of the ways in each world, the other half in the next one: one that shares memory and one that
 * copies, one inline and one on worker streams; in worlds of 3 in both dtypes, in worlds of 2 in bf16, in others the
 * one on worker streams alone, in f32. Under a sanitizer each world has one. A device of its own copies without being
 * told: the ways that copy offload there. */
static bool goes(const way *w, int world)
{
    bool worker = w->overlap == FSDP_OVERLAP_WORKER;

    if (test_long())
        return true;
    if (test_on_cpu() && test_brief())
        return worker && w->copy == (world == 2) && w->bf16 == (world == 2);
    if (test_on_cpu())
        return (w->copy + worker + world) % 2 == 0 && (world == 3 || (world == 2 ? w->bf16 : worker && !w->bf16));
    return w->copy ? worker && world % 2 != w->bf16 : worker == (world % 2 != 0);
}

/* Whether a way goes whose bits are nearly those of a plain model. */
static bool one_is_f32(int world)
{
    bool found = false;

    for (size_t i = 0; i < FSDP__COUNT_OF(all_ways); i++)
        found = found || (!all_ways[i].bf16 && goes(&all_ways[i], world));
    return found;
}

static void run_world(way_body body, int world, int check, int arg)
{
    way_run plain = {.world = world, .arg = arg}, runs[FSDP__COUNT_OF(all_ways)] = {{0}}, *like[2] = {NULL};

    if (check & WAYS_EQUAL_PLAIN && one_is_f32(world))
        run_way(&plain, body);
    for (size_t i = 0; i < FSDP__COUNT_OF(all_ways); i++) {
        const way *w = &all_ways[i];
        way_run *run = &runs[i];

        if (!goes(w, world))
            continue;
        if (!like[w->bf16])
            like[w->bf16] = run;
        *run = (way_run){.way = w, .world = world, .slow = (int)i % world, .arg = arg};
        run->options = (fsdp_shard_options){.no_shared_memory = w->copy, .overlap = w->overlap};
        run->options.offload_policy = (fsdp_offload_policy){.cpu = w->copy && !test_on_cpu(), .pageable = world > 2};
        if (w->bf16)
            run->options.mp_policy.param_dtype = FSDP_BF16;
        run_way(run, body);
        for (int r = 0; r < world; r++) {
            check_same(run, r, like[w->bf16], r, true);
            if (check & WAYS_RANKS_AGREE)
                check_same(run, r, run, 0, true);
        }
        if (check & WAYS_EQUAL_PLAIN && !w->bf16)
            check_same(run, 0, &plain, 0, false);
    }
    forget_notes(&plain);
    for (size_t i = 0; i < FSDP__COUNT_OF(all_ways); i++)
        forget_notes(&runs[i]);
}

void in_every_way_with(way_body body, int check, int arg)
{
    for (int world = test_brief() ? 2 : 1; world <= (test_brief() ? 3 : WAYS_WORLDS); world++)
        if (world != 4 || test_long())
            run_world(body, world, check, arg);
}

void in_every_way(way_body body, int check)
{
    in_every_way_with(body, check, 0);
}
