/* The gradient scaler: PyTorch's numbers, one decision of all ranks, and what it refuses. */
#include "base/compiler.h"
#include "fsdp/dist.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>

enum {
    ROWS = 5, /* uneven over 2 3 4; some of 8 ranks have none */
    COLS = 3,
    NUMEL = ROWS * COLS
};

static float value(int step, int64_t i)
{
    return (float)((step * 37 + i * 17) % 29 - 14) / 16;
}

/* A parameter of ones, or this rank's rows of it, and an optimizer of it alone. */
typedef struct model {
    bool offloaded; /* beside what the test computes on */
    fsdp_tensor *tensor;
    fsdp_mesh *mesh; /* NULL: not distributed */
    const fsdp_placement *placements;
    fsdp_optimizer *optimizer;
} model;

static fsdp_tensor *piece(const model *m, fsdp_context *context, const float *data)
{
    fsdp_tensor *whole = NULL, *part = NULL;

    CHECK_OK(fsdp_tensor_create(m->offloaded ? fsdp_cpu(context) : test_device(context), FSDP_F32, 2,
                                (const int64_t[]){ROWS, COLS}, FSDP_MEMORY_GRADIENT, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    if (!m->mesh)
        return whole;
    CHECK_OK(fsdp_distribute_tensor(whole, m->mesh, m->placements, &part));
    fsdp_tensor_unref(whole);
    return part;
}

static void model_init(model *m, fsdp_context *context)
{
    const fsdp_adam_options options = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    fsdp_parameter item = {.name = "weight"};
    float data[NUMEL];

    for (int i = 0; i < NUMEL; i++)
        data[i] = 1;
    item.tensor = m->tensor = piece(m, context, data);
    CHECK_OK(fsdp_tensor_set_requires_grad(m->tensor, true));
    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){1, &item}, &options, &m->optimizer));
}

static void model_free(model *m)
{
    fsdp_optimizer_free(m->optimizer);
    fsdp_tensor_unref(m->tensor);
}

/* What a backward of a scaled loss leaves; element `bad` (-1: none) is `with`. */
static void give_gradient(const model *m, fsdp_context *context, int step, double scale, int bad, float with)
{
    float data[NUMEL];
    fsdp_tensor *grad;

    for (int i = 0; i < NUMEL; i++)
        data[i] = (float)(value(step, i) * scale);
    if (bad >= 0)
        data[bad] = with;
    grad = piece(m, context, data);
    CHECK_OK(fsdp_tensor_set_grad(m->tensor, grad));
    fsdp_tensor_unref(grad);
}

/* Parameter and both moments; NULL moments are zeros. */
static void read_all(const model *m, float out[3][NUMEL])
{
    const fsdp__optimizer_param *param = &m->optimizer->groups[0].params[0];
    const fsdp_tensor *tensors[] = {m->tensor, param->moment1, param->moment2};

    memset(out, 0, 3 * NUMEL * sizeof(float));
    for (int i = 0; i < 3; i++)
        if (tensors[i])
            CHECK_OK(fsdp_tensor_read(tensors[i], FSDP_F32, out[i]));
}

static double scale_of(const fsdp_grad_scaler *scaler)
{
    return fsdp_grad_scaler_get_state(scaler).scale;
}

/* ---- the numbers ---- */

/* Unscale, clip, step, update. */
static bool take_step(fsdp_grad_scaler *scaler, const model *m, bool clip)
{
    bool stepped;

    if (clip) {
        CHECK_OK(fsdp_grad_scaler_unscale(scaler, m->optimizer));
        CHECK_OK(fsdp_clip_grad_norm(m->optimizer, 1, NULL));
    }
    CHECK_OK(fsdp_grad_scaler_step(scaler, m->optimizer, &stepped));
    CHECK_OK(fsdp_grad_scaler_update(scaler));
    CHECK_NEAR(m->optimizer->grad_scale, 1, 0);
    CHECK_OK(fsdp_optimizer_zero_grad(m->optimizer));
    return stepped;
}

/* Scales are powers of two, so what is scaled and unscaled has the bits of what never was. */
CONTEXT_TEST(scale_grows_and_backs_off)
{
    static const struct {
        int bad;
        double scale; /* after the step */
        int64_t tracker;
    } steps[] = {{-1, 65536, 1}, {-1, 65536, 2}, {-1, 131072, 0}, {4, 65536, 0},  {-1, 65536, 1}, {NUMEL - 1, 32768, 0},
                 {0, 16384, 0},  {-1, 16384, 1}, {-1, 16384, 2},  {-1, 32768, 0}, {-1, 32768, 1}};
    fsdp_grad_scaler_state s = fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler = NULL;
    model m = {.mesh = NULL}, plain = {.mesh = NULL};

    CHECK(s.scale == 65536 && s.growth_factor == 2 && s.backoff_factor == 0.5 && s.growth_interval == 2000 &&
          s.growth_tracker == 0);
    s.growth_interval = 3;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), &s, &scaler));
    model_init(&m, context);
    model_init(&plain, context);
    for (size_t i = 0; i < FSDP__COUNT_OF(steps); i++) {
        float before[3][NUMEL], after[3][NUMEL], expected[3][NUMEL];

        read_all(&m, before);
        give_gradient(&m, context, (int)i, scale_of(scaler), steps[i].bad, i == 3 ? NAN : INFINITY);
        CHECK_EQ(take_step(scaler, &m, i % 2 == 0), steps[i].bad < 0);
        read_all(&m, after);
        if (steps[i].bad < 0) {
            give_gradient(&plain, context, (int)i, 1, -1, 0);
            if (i % 2 == 0)
                CHECK_OK(fsdp_clip_grad_norm(plain.optimizer, 1, NULL));
            CHECK_OK(fsdp_optimizer_step(plain.optimizer));
            read_all(&plain, expected);
            CHECK_BYTES(after, expected, sizeof expected);
        } else {
            CHECK_BYTES(after, before, sizeof before);
        }
        s = fsdp_grad_scaler_get_state(scaler);
        CHECK(s.scale == steps[i].scale);
        CHECK_EQ(s.growth_tracker, steps[i].tracker);
    }
    CHECK_EQ(m.optimizer->groups[0].params[0].steps, 8);
    model_free(&m);
    model_free(&plain);
    fsdp_grad_scaler_free(scaler);
}

/* As far as the inverse is finite, and no further than f32 goes. */
CONTEXT_TEST(scale_stays_a_normal_number)
{
    fsdp_grad_scaler_state s = fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler = NULL;
    model m = {.mesh = NULL};

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    model_init(&m, context);
    s.scale = 0x1p-125;
    CHECK_OK(fsdp_grad_scaler_set_state(scaler, &s));
    for (int i = 0; i < 3; i++) {
        give_gradient(&m, context, i, 1, 0, INFINITY);
        CHECK(!take_step(scaler, &m, false));
        CHECK(scale_of(scaler) == 0x1p-126);
    }
    s.scale = 0x1p127;
    s.growth_interval = 1;
    s.growth_tracker = 0;
    CHECK_OK(fsdp_grad_scaler_set_state(scaler, &s));
    give_gradient(&m, context, 1, 1, -1, 0);
    CHECK(take_step(scaler, &m, false));
    CHECK(scale_of(scaler) == 0x1p127);
    model_free(&m);
    fsdp_grad_scaler_free(scaler);
}

CONTEXT_TEST(loss_and_gradients_are_scaled)
{
    fsdp_grad_scaler_state s = fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler = NULL;
    model m = {.mesh = NULL};
    float grad[NUMEL];
    double loss;

    s.scale = 8;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), &s, &scaler));
    model_init(&m, context);
    CHECK_OK(fsdp_scope_begin(context));
    fsdp_tensor *scaled = CHECK_PTR(fsdp_grad_scaler_scale(scaler, fsdp_mean(m.tensor)));

    CHECK_OK(fsdp_tensor_item(scaled, &loss));
    CHECK_NEAR(loss, 8, 1e-6);
    CHECK_OK(fsdp_backward(scaled));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(m.tensor), FSDP_F32, grad));
    CHECK_NEAR(grad[7], 8.0 / NUMEL, 1e-6);
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, m.optimizer));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(m.tensor), FSDP_F32, grad));
    CHECK_NEAR(grad[7], 1.0 / NUMEL, 1e-7);
    CHECK_NULL(fsdp_grad_scaler_scale(scaler, NULL));
    model_free(&m);
    fsdp_grad_scaler_free(scaler);
}

/* ---- ranks ---- */

/* Whose gradient is bad, and who has one at all. */
typedef enum which {
    OFFLOADED, /* of one shard, on the host; first, before the group meets on the device, where a rank without rows is
                */
    ONE_SHARD,
    WITHOUT_GRADIENTS,
    NOT_DISTRIBUTED,
    WHICH
} which;

static void decide_together(fsdp_context *context, fsdp_mesh *mesh, const fsdp_placement *placements, which w)
{
    int rank = fsdp_context_rank(context), world = fsdp_context_world_size(context);
    model m = {.offloaded = w == OFFLOADED, .mesh = w == NOT_DISTRIBUTED ? NULL : mesh, .placements = placements};
    fsdp_grad_scaler *scaler = NULL;
    fsdp_comm_stats stats;

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    model_init(&m, context);
    for (int step = 0; step < 4; step++) {
        float before[3][NUMEL], after[3][NUMEL];
        bool bad = step % 2 == 1, mine = w != NOT_DISTRIBUTED || rank == world - 1;

        read_all(&m, before);
        if (w != WITHOUT_GRADIENTS || rank == 0)
            give_gradient(&m, context, step, scale_of(scaler), bad && mine ? (step - 1) % NUMEL : -1, INFINITY);
        fsdp_context_reset_comm_stats(context);
        CHECK_EQ(take_step(scaler, &m, false), !bad);
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], world > 1);
        CHECK(scale_of(scaler) == (step == 0 ? 65536 : step < 3 ? 32768 : 16384));
        read_all(&m, after);
        if (bad)
            CHECK_BYTES(after, before, sizeof before);
        else if (fsdp_tensor_numel(m.tensor) > 0 && (w != WITHOUT_GRADIENTS || rank == 0))
            CHECK(memcmp(after, before, sizeof before) != 0);
    }
    model_free(&m);
    fsdp_grad_scaler_free(scaler);
}

static void check_ranks(fsdp_context *context, void *arg)
{
    static const fsdp_placement rows = {.kind = FSDP_SHARD};
    static const fsdp_placement hybrid[] = {{.kind = FSDP_REPLICATE}, {.kind = FSDP_SHARD}};
    static const char *const names[] = {"replicate", "shard"};
    int64_t world = fsdp_context_world_size(context), shape[] = {2, world / 2};
    fsdp_mesh *mesh = NULL;

    (void)arg;
    (void)test_device(context); /* from now on the one in front */
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    for (which w = 0; w < WHICH; w++)
        decide_together(context, mesh, &rows, w);
    fsdp_mesh_unref(mesh);
    if (world % 2 == 0) {
        CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
        for (which w = 0; w < WHICH; w++)
            decide_together(context, mesh, hybrid, w);
        fsdp_mesh_unref(mesh);
    }
    test_drop_workspace(context);
}

TEST(all_ranks_leave_a_step_out_or_none)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], check_ranks, NULL);
}

/* ---- several optimizers, and errors ---- */

CONTEXT_TEST(one_scaler_serves_several_optimizers)
{
    fsdp_grad_scaler *scaler = NULL;
    model a = {.mesh = NULL}, b = {.mesh = NULL};
    bool stepped;

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    model_init(&a, context);
    model_init(&b, context);
    give_gradient(&a, context, 1, 65536, -1, 0);
    give_gradient(&b, context, 1, 65536, 3, INFINITY);
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, a.optimizer));
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, b.optimizer));
    CHECK_OK(fsdp_grad_scaler_step(scaler, b.optimizer, &stepped));
    CHECK(!stepped);
    CHECK_OK(fsdp_grad_scaler_step(scaler, a.optimizer, &stepped));
    CHECK(stepped); /* as in PyTorch: each for itself */
    CHECK_OK(fsdp_grad_scaler_update(scaler));
    CHECK(scale_of(scaler) == 32768);
    model_free(&a);
    model_free(&b);
    fsdp_grad_scaler_free(scaler);
}

static fsdp_optimizer *another(const model *m)
{
    fsdp_parameter item = {.name = "weight", .tensor = m->tensor};
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){1, &item}, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    return optimizer;
}

/* The C library keeps the first seven blocks of a size for calls of malloc alone, so those are freed first. */
CONTEXT_TEST(a_new_optimizer_is_not_taken_for_a_freed_one_at_its_address)
{
    fsdp_grad_scaler *scaler = NULL;
    fsdp_optimizer *others[24];
    float after[3][NUMEL];
    model m = {.mesh = NULL};

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    model_init(&m, context);
    for (size_t i = 0; i < FSDP__COUNT_OF(others); i++)
        others[i] = another(&m);
    give_gradient(&m, context, 1, 65536, -1, 0);
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, others[16]));
    for (size_t i = 0; i <= 16; i++) /* the last one is the scaler's */
        fsdp_optimizer_free(others[i]);
    for (size_t i = 0; i <= 16; i++) {
        bool stepped;

        others[i] = another(&m);
        give_gradient(&m, context, 0, 65536, -1, 0);
        CHECK_OK(fsdp_grad_scaler_step(scaler, others[i], &stepped));
        read_all(&m, after);
        for (int e = 0; e < NUMEL; e++)
            CHECK_NEAR(after[0][e], 1 - (float)(i + 1) * value(0, e), 0);
    }
    for (size_t i = 0; i < FSDP__COUNT_OF(others); i++)
        fsdp_optimizer_free(others[i]);
    model_free(&m);
    fsdp_grad_scaler_free(scaler);
}

CONTEXT_TEST(calls_out_of_order_are_refused)
{
    fsdp_grad_scaler *scaler = NULL;
    model m = {.mesh = NULL};

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    model_init(&m, context);
    CHECK_ERROR(fsdp_grad_scaler_update(scaler), FSDP_STATE, "no gradients were unscaled since the last update");
    for (int round = 0; round < 2; round++) {
        give_gradient(&m, context, round, scale_of(scaler), -1, 0);
        CHECK_OK(fsdp_grad_scaler_unscale(scaler, m.optimizer));
        CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, m.optimizer), FSDP_STATE,
                    "they have been unscaled already since the last update");
        CHECK_OK(fsdp_grad_scaler_step(scaler, m.optimizer, NULL));
        CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, m.optimizer), FSDP_STATE, "after the step");
        CHECK_ERROR(fsdp_grad_scaler_step(scaler, m.optimizer, NULL), FSDP_STATE, "cannot step twice");
        CHECK_OK(fsdp_grad_scaler_update(scaler));
        CHECK_ERROR(fsdp_grad_scaler_update(scaler), FSDP_STATE, "since the last update");
    }
    fsdp_clear_error();
    CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, NULL), FSDP_INVALID, "are required");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_grad_scaler_step(NULL, m.optimizer, NULL), FSDP_INVALID, "are required");
    m.tensor->dtype = FSDP_F16;
    CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, m.optimizer), FSDP_UNSUPPORTED, "gradient of 'weight': it is float16");
    m.tensor->dtype = FSDP_F32;
    model_free(&m);
    fsdp_grad_scaler_free(scaler);
}

CONTEXT_TEST(impossible_states_are_named)
{
    fsdp_grad_scaler_state states[10], good = fsdp_grad_scaler_state_default();
    static const char *const said[] = {"scale must",          "scale must",           "scale must",
                                       "growth_factor must",  "growth_factor must",   "backoff_factor must",
                                       "backoff_factor must", "growth_interval must", "growth_tracker must",
                                       "growth_tracker must"};
    fsdp_grad_scaler *scaler = NULL, *none = NULL;

    for (int i = 0; i < 10; i++)
        states[i] = good;
    states[0].scale = 0;
    states[1].scale = NAN;
    states[2].scale = 1e39;
    states[3].growth_factor = 1;
    states[4].growth_factor = INFINITY;
    states[5].backoff_factor = 1;
    states[6].backoff_factor = 0;
    states[7].growth_interval = 0;
    states[8].growth_tracker = -1;
    states[9].growth_tracker = 2000;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    for (int i = 0; i < 10; i++) {
        CHECK_ERROR(fsdp_grad_scaler_create(fsdp_world(context), &states[i], &none), FSDP_INVALID, said[i]);
        CHECK_NULL(none);
        CHECK_ERROR(fsdp_grad_scaler_set_state(scaler, &states[i]), FSDP_INVALID, said[i]);
    }
    CHECK(scale_of(scaler) == 65536);
    CHECK_ERROR(fsdp_grad_scaler_create(NULL, NULL, &none), FSDP_INVALID, "fsdp_world(context)");
    CHECK_ERROR(fsdp_grad_scaler_create(fsdp_world(context), NULL, NULL), FSDP_INVALID, "a place for the result");
    CHECK_ERROR(fsdp_grad_scaler_set_state(scaler, NULL), FSDP_INVALID, "the state is NULL");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_grad_scaler_set_state(NULL, &good), FSDP_INVALID, "it is NULL");
    fsdp_clear_error();
    CHECK_NULL(fsdp_grad_scaler_scale(NULL, NULL));
    CHECK_CONTAINS(fsdp_last_error(), "cannot scale a loss: the gradient scaler is NULL");
    CHECK(fsdp_grad_scaler_get_state(NULL).scale == 0);
    fsdp_grad_scaler_free(scaler);
    fsdp_grad_scaler_free(NULL);
}

TEST(it_survives_every_failed_allocation)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp_grad_scaler *scaler = NULL;
        fsdp_status status;
        model m = {.mesh = NULL};

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        context = test_context();
        model_init(&m, context);
        give_gradient(&m, context, 1, 65536, -1, 0);
        (void)fsdp_world(context);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler);
        if (status == FSDP_OK)
            status = fsdp_grad_scaler_step(scaler, m.optimizer, NULL);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_grad_scaler_free(scaler);
        model_free(&m);
        test_drop_workspace(context);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

/* One rank's gradient, set by hand, lies otherwise. Who mends it on that rank alone has all gradients as they were. */
WORLDS_TEST(what_fails_on_one_rank_is_told_on_all, 2, 4)
{
    bool wrong = fsdp_context_rank(context) == 1;
    float after[3][NUMEL], expected[3][NUMEL];
    fsdp_grad_scaler *scaler;
    fsdp_tensor *turned;
    model m = {0}, plain = {0};

    model_init(&m, context);
    model_init(&plain, context);
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    give_gradient(&m, context, 0, 65536, -1, 0);
    CHECK_OK(fsdp_scope_begin(context));
    turned = fsdp_transpose(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(COLS, ROWS)), 0, 1);
    if (wrong)
        CHECK_OK(fsdp_tensor_set_grad(m.tensor, CHECK_PTR(turned)));
    fsdp_scope_end(context, NULL);
    CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, m.optimizer), wrong ? FSDP_UNSUPPORTED : FSDP_STATE,
                wrong ? "is not contiguous" : "rank 1 could not");
    if (wrong)
        give_gradient(&m, context, 0, 65536, -1, 0);
    CHECK_OK(fsdp_grad_scaler_step(scaler, m.optimizer, NULL));
    CHECK_OK(fsdp_grad_scaler_update(scaler));
    give_gradient(&plain, context, 0, 1, -1, 0);
    CHECK_OK(fsdp_optimizer_step(plain.optimizer));
    read_all(&m, after);
    read_all(&plain, expected);
    CHECK_BYTES(after, expected, sizeof expected);
    fsdp_grad_scaler_free(scaler);
    model_free(&m);
    model_free(&plain);
}

/* Says which allocation of rank 0 fails, whether it did, and what each rank's call returned. */
typedef struct lacking {
    long nth;
    bool hit;
    fsdp_status status[2];
    atomic_bool heard; /* rank 1 has an answer */
} lacking;

static fsdp_status unscale_nothing(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context);
    fsdp_optimizer *optimizer = NULL;
    fsdp_grad_scaler *scaler = NULL;
    lacking *l = arg;

    FSDP_TRY(fsdp_sgd_create(&(fsdp_parameters){0, NULL}, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    FSDP_TRY(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, rank == 0 ? l->nth : 0);
    l->status[rank] = fsdp_grad_scaler_unscale(scaler, optimizer);
    if (rank == 0)
        l->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
    else
        l->heard = true;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    while (!l->heard) /* a rank that leaves is not waited for anyway */
        sched_yield();
    fsdp_grad_scaler_free(scaler);
    fsdp_optimizer_free(optimizer);
    return FSDP_OK;
}

/* The host's stream comes with the first call that needs it: on a rank that computes elsewhere, maybe with this one. */
TEST(a_rank_that_lacks_the_hosts_stream_is_not_waited_for)
{
    lacking l = {.nth = 1, .hit = true};
    int failures = 0;

    for (; l.hit; l.nth++) {
        l.heard = false;
        CHECK_OK(fsdp_run_threads(2, NULL, unscale_nothing, &l)); /* whose devices are not there yet */
        CHECK_EQ(l.status[0] != FSDP_OK, l.status[1] != FSDP_OK);
        failures += l.status[0] != FSDP_OK;
    }
    CHECK(failures > 3);
}
