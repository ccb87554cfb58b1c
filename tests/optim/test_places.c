/* Loops of one's own have places for their steps' memory without a word: forwards and fsdp_optimizer_zero_grad mark
 * steps. On the dry device that stands for a GPU, which reserves what a GPU would, and computes nothing. */
#include "autograd/autograd.h"
#include "device/dry.h"
#include "device/steps.h"
#include "optim/trainee.h"

enum {
    WARM = 6, /* steps until all has its place */
    STEPS = 200,
    MANY = 24000, /* more than is noted between steps */
};

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
    accumulate_of(t, TRAINEE_BATCH);
}

/* Checks that hardly more is reserved than was live at the peak. */
static void check_reserved(const fsdp_device *device)
{
    fsdp_memory_stats stats = trainee_memory(device);

    print_message("%.2f %%\n", 100 * ((double)stats.reserved_bytes / (double)stats.peak_total_bytes - 1));
    CHECK(stats.reserved_bytes < stats.peak_total_bytes + TRAINEE_SLACK);
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
        evaluate(t, TRAINEE_BATCH / 3);
        evaluate(t, TRAINEE_BATCH);
    }
    if (how == ACCUMULATED)
        for (int i = 0; i < 2; i++)
            accumulate(t);
    if (how != ZERO_FIRST) {
        trainee_step(t);
        return;
    }
    accumulate(t);
    CHECK_OK(fsdp_optimizer_step(t->adamw));
    if (n % 4 == 0)
        evaluate(t, TRAINEE_BATCH / 2); /* it is in the step, and where steps differ once, places stay */
}

TEST(a_loop_of_ones_own_reserves_its_peak)
{
    for (way how = 0; how < WAYS; how++) {
        trainee t = trainee_set_up();
        uint64_t calls;

        for (int n = 1; n <= WARM; n++)
            loop(&t, how, n);
        calls = trainee_memory(t.device).system_allocations;
        for (int n = 1; n <= 8; n++)
            loop(&t, how, n);
        check_reserved(t.device);
        CHECK_EQ(trainee_memory(t.device).system_allocations, calls);
        trainee_tear_down(&t);
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
        return TRAINEE_BATCH / 4 + TRAINEE_BATCH * 3 / 4 * drawn / 1008;
    case GROWING:
        return TRAINEE_BATCH / 4 + TRAINEE_BATCH * 3 / 4 * n / STEPS;
    case SHRINKING:
        return TRAINEE_BATCH - TRAINEE_BATCH * 3 / 4 * n / STEPS;
    default:
        return TRAINEE_BATCH * (1 + drawn % 4) / 4;
    }
}

TEST(batches_of_any_lengths_reserve_what_the_largest_needs)
{
    for (lengths how = 0; how < LENGTHS; how++)
        for (int micros = 1; micros <= 3; micros += 2) {
            trainee t = trainee_set_up();
            int far = 0;

            for (int n = 0; n < STEPS; n++) {
                for (int i = 0; i < micros; i++)
                    accumulate_of(&t,
                                  length_of(how, micros == 1 || how == RANDOM || how == BUCKETS ? n * micros + i : n));
                CHECK_OK(fsdp_optimizer_step(t.adamw));
                CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
                if (how == RANDOM && n % 5 == 4)
                    evaluate(&t, length_of(how, n + STEPS));
                far += n >= WARM && trainee_is_far(t.device, 0.02);
            }
            print_message("%d steps are far\n", far);
            CHECK(far <= (how == GROWING ? STEPS / 3 : STEPS / 8));
            CHECK(!trainee_is_far(t.device, 0.005));
            trainee_tear_down(&t);
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
    CARRIED = 2 * TRAINEE_LAYERS, /* as many as there are parameters */
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
        replace(&held[n % SLOTS], new_tensor(t, FSDP_SHAPE(TRAINEE_BATCH, 4 * TRAINEE_WIDTH)));
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
        trainee t = trainee_set_up();
        fsdp_tensor *held[CARRIED] = {NULL};
        uint64_t calls = 0;

        for (int n = 0; n < STEPS; n++) {
            fsdp_tensor *next = how == STATE ? new_tensor(&t, FSDP_SHAPE(TRAINEE_BATCH, 4 * TRAINEE_WIDTH)) : NULL;

            accumulate(&t);
            if (next)
                replace(&held[0], next);
            CHECK_OK(fsdp_optimizer_step(t.adamw));
            carry(&t, how, held, n);
            CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
            calls = n == STEPS / 2 ? trainee_memory(t.device).system_allocations : calls;
        }
        /* Of all bytes 7 % are one parameter's. */
        CHECK(!trainee_is_far(t.device, how < AVERAGES ? 0.02 : 0.05));
        CHECK_EQ(trainee_memory(t.device).system_allocations, calls); /* no step maps memory */
        for (int i = 0; i < CARRIED; i++)
            fsdp_tensor_unref(held[i]);
        trainee_tear_down(&t);
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
        step_that_drops(t, drops, alike ? TRAINEE_BATCH : TRAINEE_BATCH / 2 + n * 7919 % TRAINEE_BATCH);
        live = n == 0 ? trainee_memory(t->device).live_total_bytes : live;
        CHECK_EQ(trainee_memory(t->device).live_total_bytes, live);
    }
    return trainee_memory(t->device).system_allocations;
}

/* Places are chosen anew ever more rarely, and each time two steps at most return memory, which others map again. */
TEST(whenever_a_loop_drops_its_gradients_few_steps_return_memory)
{
    for (moment drops = 0; drops < MOMENTS; drops++)
        for (int alike = 0; alike < 2; alike++) {
            trainee t = trainee_set_up();
            uint64_t calls = calls_of_steps(&t, drops, alike), later = calls_of_steps(&t, drops, alike);

            CHECK(calls < STEPS);
            CHECK(later - calls < STEPS / 4);
            trainee_tear_down(&t);
        }
}

/* A loop that never drops its gradients has no steps. */
TEST(without_an_end_of_steps_more_is_reserved)
{
    trainee t = trainee_set_up();
    fsdp_memory_stats stats;

    for (int n = 0; n < WARM; n++) {
        accumulate(&t);
        CHECK_OK(fsdp_optimizer_step(t.adamw));
    }
    stats = trainee_memory(t.device);
    CHECK(stats.reserved_bytes > stats.peak_total_bytes + TRAINEE_SLACK);
    trainee_tear_down(&t);
}

/* An end without a step, and a step that ends twice, are none. */
TEST(marks_without_a_step_do_nothing)
{
    trainee t = trainee_set_up();
    fsdp_context *context = fsdp_device_context(t.device);
    fsdp_optimizer *none = NULL;
    const fsdp_adam_options options = fsdp_adam_options_default();

    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){0, NULL}, &options, &none));
    for (int n = 0; n < WARM; n++) {
        CHECK_OK(fsdp_optimizer_zero_grad(none));
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        trainee_step(&t);
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
    }
    check_reserved(t.device);
    CHECK_OK(fsdp__note_forward(context));
    fsdp__end_step(context);
    fsdp__end_step(context);
    trainee_step(&t);
    check_reserved(t.device);
    fsdp_optimizer_free(none);
    trainee_tear_down(&t);
}

/* ---- several models ---- */

TEST(two_models_of_a_device_that_step_together_reserve_their_peak)
{
    trainee t = trainee_set_up(), other = trainee_create(t.device, TRAINEE_WIDTH / 2);

    for (int n = 0; n < WARM; n++) {
        accumulate(&t);
        accumulate(&other);
        CHECK_OK(fsdp_optimizer_step(t.adamw));
        CHECK_OK(fsdp_optimizer_step(other.adamw));
        CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        CHECK_OK(fsdp_optimizer_zero_grad(other.adamw));
    }
    check_reserved(t.device);
    trainee_release(&other);
    trainee_tear_down(&t);
}

/* Steps of each differ from those of the other, so one of them has places; what is reserved does not grow. */
TEST(two_models_of_a_device_that_step_in_turns_are_served)
{
    trainee t = trainee_set_up(), other = trainee_create(t.device, TRAINEE_WIDTH / 2);
    size_t reserved;

    for (int n = 0; n < 40; n++)
        trainee_step(n % 2 ? &other : &t);
    reserved = trainee_memory(t.device).reserved_bytes;
    for (int n = 0; n < 200; n++)
        trainee_step(n % 2 ? &other : &t);
    CHECK(trainee_memory(t.device).reserved_bytes <= reserved + TRAINEE_SLACK);
    trainee_release(&other);
    trainee_tear_down(&t);
}

/* What a larger model has left is kept for later ones. */
TEST(models_made_after_others_were_freed_reserve_no_more_than_the_largest)
{
    trainee t = trainee_set_up();

    for (int64_t less = 0; less < 300; less += 100) {
        trainee_release(&t);
        t = trainee_create(t.device, TRAINEE_WIDTH - less);
        for (int n = 0; n < 8; n++)
            trainee_step(&t);
        check_reserved(t.device);
    }
    trainee_tear_down(&t);
}

/* ---- orders ---- */

TEST(a_model_gets_another_dtype_between_steps)
{
    trainee t = trainee_set_up();
    const fsdp_adam_options options = fsdp_adam_options_default();

    for (int n = 0; n < WARM; n++)
        trainee_step(&t);
    for (int i = 0; i < 4; i++) {
        fsdp_parameters parameters;

        CHECK_OK(fsdp_module_to(t.model, i % 2 ? FSDP_F16 : FSDP_BF16));
        CHECK_OK(fsdp_module_to(t.model, FSDP_F32));
        fsdp_optimizer_free(t.adamw);
        CHECK_OK(fsdp_module_parameters(t.model, &parameters));
        CHECK_OK(fsdp_adamw_create(&parameters, &options, &t.adamw));
        fsdp_parameters_release(&parameters);
        for (int n = 0; n < WARM; n++)
            trainee_step(&t);
    }
    trainee_tear_down(&t);
}

/* A step fails after half of it; the next ones have their places again. */
TEST(a_step_that_fails_takes_no_places)
{
    trainee t = trainee_set_up();
    fsdp_context *context = fsdp_device_context(t.device);

    for (int n = 0; n < WARM; n++)
        trainee_step(&t);
    for (int drops = 0; drops < 2; drops++) { /* its gradients, or the next step goes on with them */
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_PTR(fsdp_call(t.model, input(&t, TRAINEE_BATCH)));
        CHECK(!fsdp_call(t.model, fsdp_zeros(t.device, FSDP_F32, FSDP_SHAPE(7, t.width + 1))));
        fsdp_scope_end(context, NULL);
        if (drops)
            CHECK_OK(fsdp_optimizer_zero_grad(t.adamw));
        for (int n = 0; n < 30; n++)
            trainee_step(&t);
        check_reserved(t.device);
    }
    trainee_tear_down(&t);
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

/* No room for notes is left, and none of them can be forgotten: that is not tried for each request. */
TEST(more_may_live_between_steps_than_is_noted)
{
    static void *live[MANY];
    const size_t bytes = 280 << 10;
    trainee t = trainee_set_up();
    uint64_t calls;

    for (int n = 0; n < WARM; n++)
        trainee_step(&t);
    for (int i = 0; i < MANY; i++)
        CHECK_OK(fsdp__device_alloc(t.device, bytes, FSDP_MEMORY_ACTIVATION, &live[i]));
    for (int i = 0; i < MANY; i++) { /* one is returned, and one is asked for */
        fsdp__device_free(t.device, live[i], bytes, FSDP_MEMORY_ACTIVATION);
        CHECK_OK(fsdp__device_alloc(t.device, bytes, FSDP_MEMORY_ACTIVATION, &live[i]));
    }
    trainee_step(&t);
    for (int i = 0; i < MANY; i++)
        fsdp__device_free(t.device, live[i], bytes, FSDP_MEMORY_ACTIVATION);
    for (int n = 0; n < WARM; n++)
        trainee_step(&t);
    calls = trainee_memory(t.device).system_allocations;
    for (int n = 0; n < WARM; n++)
        trainee_step(&t);
    CHECK_EQ(trainee_memory(t.device).system_allocations, calls);
    check_reserved(t.device);
    trainee_tear_down(&t);
}

/* ---- devices without places ---- */

TEST(marks_on_a_processor_do_nothing)
{
    fsdp_context *context = test_context();
    fsdp_memory_stats before, after;

    CHECK_OK(fsdp__note_forward(context)); /* nothing is open */
    fsdp__end_step(context);
    before = trainee_memory(CHECK_PTR(fsdp_cpu(context)));
    CHECK_OK(fsdp__note_forward(context));
    fsdp__end_step(context);
    after = trainee_memory(fsdp_cpu(context));
    CHECK_EQ(after.reserved_bytes, before.reserved_bytes);
    fsdp_context_free(context);
}
