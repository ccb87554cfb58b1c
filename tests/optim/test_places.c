/* Loops of one's own have places for their steps' memory without a word: forwards and fsdp_optimizer_zero_grad mark
 * steps. On the dry device that stands for a GPU, which reserves what a GPU would, and computes nothing. */
#include "autograd/autograd.h"
#include "device/dry.h"
#include "device/steps.h"
#include "fsdp/nn.h"
#include "fsdp/optim.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    BATCH = 3001, /* odd on purpose */
    WIDTH = 515,
    LAYERS = 5,
    WARM = 6, /* steps until all has its place */
    STEPS = 200,
    MANY = 24000,    /* more than is noted between steps */
    SLACK = 8 << 20, /* two segments end in less than 2 MiB each behind what is needed */
};

typedef struct trainee {
    fsdp_device *device;
    fsdp_module *model;
    fsdp_optimizer *adamw;
    int64_t width;
} trainee;

static fsdp_module *mlp(fsdp_device *device, int64_t width)
{
    fsdp_context *context = fsdp_device_context(device);
    fsdp_module *layers[2 * LAYERS];

    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] =
            fsdp_linear_create(context, device, i ? 4 * width : width, i == LAYERS - 1 ? 30 * width : 4 * width, NULL);
        layers[2 * i + 1] = i % 2 ? fsdp_relu_create(context) : fsdp_gelu_create(context, true);
    }
    return CHECK_PTR(fsdp_sequential_create(context, layers, 2 * LAYERS));
}

static trainee create(fsdp_device *device, int64_t width)
{
    const fsdp_adam_options options = fsdp_adam_options_default();
    trainee t = {.device = device, .width = width, .model = mlp(device, width)};
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(t.model, 1));
    CHECK_OK(fsdp_module_parameters(t.model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &t.adamw));
    fsdp_parameters_release(&parameters);
    return t;
}

static void release(trainee *t)
{
    fsdp_optimizer_free(t->adamw);
    fsdp_module_unref(t->model);
}

static fsdp_tensor *input(const trainee *t, int64_t batch)
{
    return CHECK_PTR(fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(batch, t->width)));
}

static void evaluate(const trainee *t, int64_t batch)
{
    fsdp_context *context = fsdp_device_context(t->device);

    CHECK_OK(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    CHECK_PTR(fsdp_mean(fsdp_call(t->model, input(t, batch))));
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
}

/* Adds the gradients of a batch. */
static void accumulate_of(const trainee *t, int64_t batch)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_tensor *out;

    CHECK_OK(fsdp_scope_begin(context));
    out = CHECK_PTR(fsdp_call(t->model, input(t, batch)));
    CHECK_OK(fsdp_backward(fsdp_mean(fsdp_mul(out, out))));
    fsdp_scope_end(context, NULL);
}

static void accumulate(const trainee *t)
{
    accumulate_of(t, BATCH);
}

/* Takes a step, as the examples do: what it has made goes with its scope, after the gradients. */
static void step(const trainee *t)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_tensor *out;

    CHECK_OK(fsdp_scope_begin(context));
    out = CHECK_PTR(fsdp_call(t->model, input(t, BATCH)));
    CHECK_OK(fsdp_backward(fsdp_mean(fsdp_mul(out, out))));
    CHECK_OK(fsdp_optimizer_step(t->adamw));
    CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    fsdp_scope_end(context, NULL);
}

static fsdp_memory_stats memory_of(const fsdp_device *device)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    return stats;
}

/* Checks that hardly more is reserved than was live at the peak. */
static void check_reserved(const fsdp_device *device)
{
    fsdp_memory_stats stats = memory_of(device);

    print_message("%.2f %%\n", 100 * ((double)stats.reserved_bytes / (double)stats.peak_total_bytes - 1));
    CHECK(stats.reserved_bytes < stats.peak_total_bytes + SLACK);
}

static trainee set_up(void)
{
    return create(CHECK_PTR(fsdp__dry_gpu(test_context())), WIDTH);
}

static void tear_down(trainee *t)
{
    fsdp_context *context = fsdp_device_context(t->device);

    release(t);
    fsdp_context_free(context);
}

/* ---- one loop ---- */

typedef enum way {
    PLAIN,
    ZERO_FIRST, /* gradients are dropped before a step, not after it */
    TWICE,      /* both */
    ACCUMULATED,
    EVALUATED, /* between steps, with other sizes than theirs and with the same */
    WAYS
} way;

static void loop(const trainee *t, way how, int n)
{
    if (how == ZERO_FIRST || how == TWICE)
        CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    if (how == EVALUATED && n % 3 == 1) {
        evaluate(t, BATCH / 3);
        evaluate(t, BATCH);
    }
    if (how == ACCUMULATED)
        for (int i = 0; i < 2; i++)
            accumulate(t);
    if (how != ZERO_FIRST) {
        step(t);
        return;
    }
    accumulate(t);
    CHECK_OK(fsdp_optimizer_step(t->adamw));
    if (n % 4 == 0)
        evaluate(t, BATCH / 2); /* it is in the step, and where steps differ once, places stay */
}

TEST(a_loop_of_ones_own_reserves_its_peak)
{
    for (way how = 0; how < WAYS; how++) {
        trainee t = set_up();
        uint64_t calls;

        for (int n = 1; n <= WARM; n++)
            loop(&t, how, n);
        calls = memory_of(t.device).system_allocations;
        for (int n = 1; n <= 8; n++)
            loop(&t, how, n);
        check_reserved(t.device);
        CHECK_EQ(memory_of(t.device).system_allocations, calls);
        tear_down(&t);
    }
}

/* ---- batches that change ---- */

typedef enum lengths {
    RANDOM,
    GROWING,
    SHRINKING,
    BUCKETS,
    LENGTHS
} lengths;

static int64_t length_of(lengths how, int64_t n)
{
    int64_t drawn = (n * 7919 + 13) * 104729 % 1009; /* 0 to 1008 */

    switch (how) {
    case RANDOM:
        return BATCH / 4 + BATCH * 3 / 4 * drawn / 1008;
    case GROWING:
        return BATCH / 4 + BATCH * 3 / 4 * n / STEPS;
    case SHRINKING:
        return BATCH - BATCH * 3 / 4 * n / STEPS;
    default:
        return BATCH * (1 + drawn % 4) / 4;
    }
}

/* Returns whether more is reserved than the largest step so far needed, and a share of that. */
static bool is_far(const fsdp_device *device, double share)
{
    fsdp_memory_stats stats = memory_of(device);

    return (double)stats.reserved_bytes > (1 + share) * (double)stats.peak_total_bytes + SLACK;
}

TEST(batches_of_any_lengths_reserve_what_the_largest_needs)
{
    for (lengths how = 0; how < LENGTHS; how++)
        for (int micros = 1; micros <= 3; micros += 2) {
            trainee t = set_up();
            int far = 0;

            for (int n = 0; n < STEPS; n++) {
                for (int i = 0; i < micros; i++)
                    accumulate_of(&t,
                                  length_of(how, micros == 1 || how == RANDOM || how == BUCKETS ? n * micros + i : n));
                CHECK_OK(fsdp_optimizer_step(t.adamw));
                CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
                if (how == RANDOM && n % 5 == 4)
                    evaluate(&t, length_of(how, n + STEPS));
                far += n >= WARM && is_far(t.device, 0.02);
            }
            print_message("%d steps are far\n", far);
            /* Where all steps are larger than those before, each reserves what the next places will not need. */
            CHECK(how == GROWING || far <= STEPS / 8);
            CHECK(!is_far(t.device, how == GROWING ? 0.1 : 0.005));
            tear_down(&t);
        }
}

/* ---- what a loop carries from step to step ---- */

typedef enum carries {
    RING,     /* of tensors, of which each step makes one and drops the oldest */
    STATE,    /* one, which is made before a step and replaces the one of the step before after it */
    AVERAGES, /* of all parameters, each made anew beside the one before */
    ALL_ANEW, /* the same, but the ones before are dropped when all are made */
    CARRIES
} carries;

enum {
    CARRIED = 2 * LAYERS, /* as many as there are parameters */
    SLOTS = 3
};

static fsdp_tensor *new_tensor(const trainee *t, int ndim, const int64_t *shape)
{
    fsdp_tensor *out = NULL;

    CHECK_OK(fsdp_tensor_create(t->device, FSDP_F32, ndim, shape, FSDP_MEMORY_ACTIVATION, &out));
    return out;
}

static void replace(fsdp_tensor **slot, fsdp_tensor *by)
{
    fsdp_tensor_unref(*slot);
    *slot = by;
}

/* Makes what the step after it is to find. */
static void carry(const trainee *t, carries how, fsdp_tensor **held, int n)
{
    fsdp_tensor *made[CARRIED] = {NULL};
    fsdp_parameters parameters;

    if (how == RING)
        replace(&held[n % SLOTS], new_tensor(t, FSDP_SHAPE(BATCH, 4 * WIDTH)));
    if (how < AVERAGES)
        return;
    CHECK_OK(fsdp_module_parameters(t->model, &parameters));
    CHECK_EQ(parameters.count, CARRIED);
    for (int i = 0; i < CARRIED; i++) {
        const fsdp_tensor *like = parameters.items[i].tensor;

        made[i] = new_tensor(t, fsdp_tensor_ndim(like), fsdp_tensor_shape(like));
        if (how == AVERAGES)
            replace(&held[i], made[i]);
    }
    for (int i = 0; i < CARRIED && how == ALL_ANEW; i++)
        replace(&held[i], made[i]);
    fsdp_parameters_release(&parameters);
}

TEST(what_loops_carry_over_steps_takes_little_more_than_its_bytes)
{
    for (carries how = 0; how < CARRIES; how++) {
        trainee t = set_up();
        fsdp_tensor *held[CARRIED] = {NULL};
        uint64_t calls = 0;

        for (int n = 0; n < STEPS; n++) {
            fsdp_tensor *next = how == STATE ? new_tensor(&t, FSDP_SHAPE(BATCH, 4 * WIDTH)) : NULL;

            accumulate(&t);
            if (next)
                replace(&held[0], next);
            CHECK_OK(fsdp_optimizer_step(t.adamw));
            carry(&t, how, held, n);
            CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
            calls = n == STEPS / 2 ? memory_of(t.device).system_allocations : calls;
        }
        /* Of all bytes 7 % are one parameter's. */
        CHECK(!is_far(t.device, how < AVERAGES ? 0.02 : 0.05));
        CHECK_EQ(memory_of(t.device).system_allocations, calls); /* no step maps memory */
        for (int i = 0; i < CARRIED; i++)
            fsdp_tensor_unref(held[i]);
        tear_down(&t);
    }
}

/* ---- where gradients are dropped ---- */

typedef enum moment {
    BEFORE_FORWARD, /* when the inputs are there */
    BEFORE_BACKWARD,
    AFTER_STEP,
    MOMENTS
} moment;

/* Takes a step that drops gradients at that moment. What lives at the next forward, and was made after that, may have
 * no place. */
static void step_that_drops(const trainee *t, moment drops, int64_t batch)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_tensor *in, *out;

    CHECK_OK(fsdp_scope_begin(context));
    in = input(t, batch);
    if (drops == BEFORE_FORWARD)
        CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    out = CHECK_PTR(fsdp_call(t->model, in));
    out = CHECK_PTR(fsdp_mean(fsdp_mul(out, out)));
    if (drops == BEFORE_BACKWARD)
        CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    CHECK_OK(fsdp_backward(out));
    CHECK_OK(fsdp_optimizer_step(t->adamw));
    if (drops == AFTER_STEP)
        CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    fsdp_scope_end(context, NULL);
}

/* Returns how many calls of the system steps have needed, of which what lives between them is the same. */
static uint64_t calls_of_steps(const trainee *t, moment drops, bool alike)
{
    size_t live = 0;

    for (int n = 0; n < STEPS; n++) {
        step_that_drops(t, drops, alike ? BATCH : BATCH / 2 + n * 7919 % BATCH);
        live = n == 0 ? memory_of(t->device).live_total_bytes : live;
        CHECK_EQ(memory_of(t->device).live_total_bytes, live);
    }
    return memory_of(t->device).system_allocations;
}

/* Places are chosen anew ever more rarely, and each time two steps at most return memory, which others map again. */
TEST(whenever_a_loop_drops_its_gradients_few_steps_return_memory)
{
    for (moment drops = 0; drops < MOMENTS; drops++)
        for (int alike = 0; alike < 2; alike++) {
            trainee t = set_up();
            uint64_t calls = calls_of_steps(&t, drops, alike), later = calls_of_steps(&t, drops, alike);

            CHECK(calls < STEPS);
            CHECK(later - calls < STEPS / 4);
            tear_down(&t);
        }
}

/* A loop that never drops its gradients has no steps. */
TEST(without_an_end_of_steps_more_is_reserved)
{
    trainee t = set_up();
    fsdp_memory_stats stats;

    for (int n = 0; n < WARM; n++) {
        accumulate(&t);
        CHECK_OK(fsdp_optimizer_step(t.adamw));
    }
    stats = memory_of(t.device);
    CHECK(stats.reserved_bytes > stats.peak_total_bytes + SLACK);
    tear_down(&t);
}

/* An end without a step, and a step that ends twice, are none. */
TEST(marks_without_a_step_do_nothing)
{
    trainee t = set_up();
    fsdp_context *context = fsdp_device_context(t.device);
    fsdp_optimizer *none = NULL;
    const fsdp_adam_options options = fsdp_adam_options_default();

    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){0, NULL}, &options, &none));
    for (int n = 0; n < WARM; n++) {
        CHECK_OK(fsdp_optimizer_zero_grad(none));
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        step(&t);
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
    }
    check_reserved(t.device);
    CHECK_OK(fsdp__note_forward(context));
    fsdp__end_step(context);
    fsdp__end_step(context);
    step(&t);
    check_reserved(t.device);
    fsdp_optimizer_free(none);
    tear_down(&t);
}

/* ---- several models ---- */

TEST(two_models_of_a_device_that_step_together_reserve_their_peak)
{
    trainee t = set_up(), other = create(t.device, WIDTH / 2);

    for (int n = 0; n < WARM; n++) {
        accumulate(&t);
        accumulate(&other);
        CHECK_OK(fsdp_optimizer_step(t.adamw));
        CHECK_OK(fsdp_optimizer_step(other.adamw));
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        CHECK_OK(fsdp_optimizer_zero_grad(other.adamw));
    }
    check_reserved(t.device);
    release(&other);
    tear_down(&t);
}

/* Steps of each differ from those of the other, so one of them has places; what is reserved does not grow. */
TEST(two_models_of_a_device_that_step_in_turns_are_served)
{
    trainee t = set_up(), other = create(t.device, WIDTH / 2);
    size_t reserved;

    for (int n = 0; n < 40; n++)
        step(n % 2 ? &other : &t);
    reserved = memory_of(t.device).reserved_bytes;
    for (int n = 0; n < 200; n++)
        step(n % 2 ? &other : &t);
    CHECK(memory_of(t.device).reserved_bytes <= reserved + SLACK);
    release(&other);
    tear_down(&t);
}

/* What a larger model has left is kept for later ones. */
TEST(models_made_after_others_were_freed_reserve_no_more_than_the_largest)
{
    trainee t = set_up();

    for (int64_t less = 0; less < 300; less += 100) {
        release(&t);
        t = create(t.device, WIDTH - less);
        for (int n = 0; n < 8; n++)
            step(&t);
        check_reserved(t.device);
    }
    tear_down(&t);
}

/* ---- orders ---- */

TEST(a_model_gets_another_dtype_between_steps)
{
    trainee t = set_up();
    const fsdp_adam_options options = fsdp_adam_options_default();

    for (int n = 0; n < WARM; n++)
        step(&t);
    for (int i = 0; i < 4; i++) {
        fsdp_parameters parameters;

        CHECK_OK(fsdp_module_to(t.model, i % 2 ? FSDP_F16 : FSDP_BF16));
        CHECK_OK(fsdp_module_to(t.model, FSDP_F32));
        fsdp_optimizer_free(t.adamw);
        CHECK_OK(fsdp_module_parameters(t.model, &parameters));
        CHECK_OK(fsdp_adamw_create(&parameters, &options, &t.adamw));
        fsdp_parameters_release(&parameters);
        for (int n = 0; n < WARM; n++)
            step(&t);
    }
    tear_down(&t);
}

/* A step fails after half of it; the next ones have their places again. */
TEST(a_step_that_fails_takes_no_places)
{
    trainee t = set_up();
    fsdp_context *context = fsdp_device_context(t.device);

    for (int n = 0; n < WARM; n++)
        step(&t);
    for (int drops = 0; drops < 2; drops++) { /* its gradients, or the next step goes on with them */
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_PTR(fsdp_call(t.model, input(&t, BATCH)));
        CHECK(!fsdp_call(t.model, fsdp_zeros(t.device, FSDP_F32, FSDP_SHAPE(7, t.width + 1))));
        fsdp_scope_end(context, NULL);
        if (drops)
            CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        for (int n = 0; n < 30; n++)
            step(&t);
        check_reserved(t.device);
    }
    tear_down(&t);
}

TEST(any_host_allocation_may_fail_in_a_loop)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp_status status = fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context);
        fsdp_device *device = context ? fsdp__dry_gpu(context) : NULL;
        void *memory = NULL;

        status = device ? FSDP_OK : FSDP_NO_MEMORY;
        for (int i = 0; i < 3 && status == FSDP_OK; i++) {
            status = fsdp__note_forward(context);
            if (status == FSDP_OK)
                status = fsdp__device_alloc(device, 1 << 20, FSDP_MEMORY_ACTIVATION, &memory);
            if (status == FSDP_OK)
                fsdp__device_free(device, memory, 1 << 20, FSDP_MEMORY_ACTIVATION);
            fsdp__end_step(context);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_context_free(context);
    }
}

/* Takes a step of drawn microbatches, of which any may go back twice and leave a tensor to the loop, and evaluates
 * between them. Any allocation may fail: then the loop drops the gradients, and goes on. */
static void draw_step(const trainee *t, uint64_t *dice, fsdp_tensor **held)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_status status = FSDP_OK;

    if (dice_chance(dice, 25))
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1 + dice_below(dice, 300));
    status = fsdp_scope_begin(context);
    if (status != FSDP_OK)
        return;
    for (int micros = 1 + dice_below(dice, 3); micros > 0 && status == FSDP_OK; micros--) {
        fsdp_tensor *out = fsdp_call(
            t->model, fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(BATCH / (1 + dice_below(dice, 4)), t->width)));
        fsdp_tensor *loss = fsdp_mean(fsdp_mul(out, out));
        bool twice = dice_chance(dice, 20);

        status = loss ? fsdp_backward_from(&loss, NULL, 1, twice) : fsdp_last_status();
        if (status == FSDP_OK && twice)
            status = fsdp_backward(loss);
        if (dice_chance(dice, 20))
            replace(&held[dice_below(dice, SLOTS)], fsdp_tensor_ref(out));
        fsdp_no_grad_begin(context);
        if (dice_chance(dice, 20))
            (void)fsdp_call(t->model, fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(BATCH / 3, t->width)));
        fsdp_no_grad_end(context);
    }
    if (status == FSDP_OK)
        (void)fsdp_optimizer_step(t->adamw);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    fsdp_scope_end(context, NULL);
}

TEST(after_random_steps_of_which_some_fail_others_reserve_their_peak)
{
    uint64_t seeds = test_long() ? 1000 : 16, far = 0;

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        trainee t = set_up();
        fsdp_tensor *held[SLOTS] = {NULL};
        uint64_t dice = seed;
        size_t live;

        step(&t); /* makes moments */
        live = memory_of(t.device).live_total_bytes;
        for (int n = 0; n < 30; n++) {
            draw_step(&t, &dice, held);
            CHECK(!is_far(t.device, 3));
        }
        for (int i = 0; i < SLOTS; i++)
            fsdp_tensor_unref(held[i]);
        CHECK_EQ(memory_of(t.device).live_total_bytes, live);
        for (int n = 0; n < 60; n++)
            step(&t);
        far += is_far(t.device, 0.02);
        tear_down(&t);
    }
    CHECK(far <= seeds / 100); /* what a step leaves out of a larger one keeps its place */
}

/* No room for notes is left, and none of them can be forgotten: that is not tried for each request. */
TEST(more_may_live_between_steps_than_is_noted)
{
    static void *live[MANY];
    const size_t bytes = 280 << 10;
    trainee t = set_up();
    uint64_t calls;

    for (int n = 0; n < WARM; n++)
        step(&t);
    for (int i = 0; i < MANY; i++)
        CHECK_OK(fsdp__device_alloc(t.device, bytes, FSDP_MEMORY_ACTIVATION, &live[i]));
    for (int i = 0; i < MANY; i++) { /* one is returned, and one is asked for */
        fsdp__device_free(t.device, live[i], bytes, FSDP_MEMORY_ACTIVATION);
        CHECK_OK(fsdp__device_alloc(t.device, bytes, FSDP_MEMORY_ACTIVATION, &live[i]));
    }
    step(&t);
    for (int i = 0; i < MANY; i++)
        fsdp__device_free(t.device, live[i], bytes, FSDP_MEMORY_ACTIVATION);
    for (int n = 0; n < WARM; n++)
        step(&t);
    calls = memory_of(t.device).system_allocations;
    for (int n = 0; n < WARM; n++)
        step(&t);
    CHECK_EQ(memory_of(t.device).system_allocations, calls);
    check_reserved(t.device);
    tear_down(&t);
}

/* ---- devices without places ---- */

TEST(marks_on_a_processor_do_nothing)
{
    fsdp_context *context = test_context();
    fsdp_memory_stats before, after;

    CHECK_OK(fsdp__note_forward(context)); /* nothing is open */
    fsdp__end_step(context);
    before = memory_of(CHECK_PTR(fsdp_cpu(context)));
    CHECK_OK(fsdp__note_forward(context));
    fsdp__end_step(context);
    after = memory_of(fsdp_cpu(context));
    CHECK_EQ(after.reserved_bytes, before.reserved_bytes);
    fsdp_context_free(context);
}
