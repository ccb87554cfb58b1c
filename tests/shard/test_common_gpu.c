/* Ranks that share a GPU hold a group's parameters once, in memory that all of them have (tests/backend/fakecuda):
 * every door in worlds of 2 to 4 has the bits of ranks that copy and of ranks that go through the host, gathers move
 * nothing, and the ledger counts the same bytes. Gathers and reductions run beside the computing, as on GPUs of their
 * own. */
#include "fsdp/optim.h"
#include "shard/doors.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <unistd.h>

#include "backend/fakecuda/control.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"
#include "shard/net_bytes.h"
#include "shard/state/module_state.h"
#include "shard/state/root.h"
#include "support/dice.h"

enum {
    BLOCKS = 2,
    STEPS = TEST_SANITIZED ? 2 : 3 /* the second uses what the first has made */
};

typedef enum carried {
    IN_COMMON,
    COPIED, /* by the same carrier */
    STAGED,
    WAYS
} carried;

typedef struct trial {
    const door *door;
    carried way;
    fsdp_reshard reshard;
    float *values[WAYS]; /* of rank 0 */
    int64_t count;
    int64_t moved[WAYS]; /* by gathers */
    size_t peak[WAYS], live[WAYS];
    bool shares[WAYS];
    bool beside[WAYS]; /* gathers and reductions run on a stream of their own */
} trial;

static int open_fake(void **state)
{
    (void)state;
    setenv("FSDP_TEST_DEVICE", "cuda", 1);
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    fakecuda.mend();
    return 0;
}

static int close_fake(void **state)
{
    (void)state;
    fakecuda.mend();
    return 0;
}

static door door_of(const trial *t)
{
    door d = *t->door;

    d.sharded.no_shared_memory = d.sharded.no_shared_memory || t->way != IN_COMMON;
    d.fsdp1.no_shared_memory = d.fsdp1.no_shared_memory || t->way != IN_COMMON;
    d.sharded.reshard_after_forward = t->reshard;
    return d;
}

static void keep(fsdp_context *context, trial *t, fsdp_module *module)
{
    fsdp_comm_stats stats;
    fsdp_memory_stats memory;
    fsdp_shard_info info;
    int64_t count;
    float *values;

    fsdp_context_comm_stats(context, &stats);
    fsdp_device_memory(test_device(context), &memory);
    values = net_values(module, &count);
    if (fsdp_context_rank(context) > 0) {
        free(values);
        return;
    }
    t->values[t->way] = values;
    t->count = count;
    t->moved[t->way] = stats.bytes_moved[FSDP_ALL_GATHER];
    t->peak[t->way] = memory.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
    t->live[t->way] = memory.live_bytes[FSDP_MEMORY_PARAMETER_SHARD];
    if (fsdp__module_state_of(module))
        t->beside[t->way] = fsdp__module_state_of(module)->root->comm->own_stream;
    if (fsdp_module_is_sharded(module)) {
        CHECK_OK(fsdp_module_shard_info(module, &info));
        t->shares[t->way] = info.shares_memory;
    }
}

static void train(fsdp_context *context, void *arg)
{
    trial *t = arg;
    int world = fsdp_context_world_size(context);
    const door d = door_of(t);
    fsdp_mesh *mesh = door_is_hybrid(&d, world) ? net_hybrid_mesh(context, 2) : NULL;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *units[BLOCKS];

    CHECK_OK(fsdp_context_set_carrier(context, t->way == STAGED ? FSDP_CARRIER_STAGED : FSDP_CARRIER_PEER));
    for (int i = 0; i < BLOCKS; i++)
        units[i] = net_block_at(module, i);
    door_wrap(&d, module, units, BLOCKS, mesh);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    fsdp_device_reset_peak(test_device(context));
    net_train(module, STEPS);
    keep(context, t, module);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

/* Whether the door keeps parameters where a gather without a cast can leave them. */
static bool may_share(const door *d)
{
    bool apart = d->sharded.no_shared_memory || d->sharded.offload_policy.cpu || d->sharded.placement ||
                 d->fsdp1.no_shared_memory || d->fsdp1.cpu_offload.cpu;

    return !apart && (d->kind == DOOR_SHARDED || (d->kind == DOOR_FSDP1 && d->fsdp1.strategy != FSDP_NO_SHARD));
}

static void compare_ways(int world, const door *d, fsdp_reshard reshard)
{
    trial t = {.door = d, .reshard = reshard};

    for (int way = 0; way < WAYS; way++) {
        t.way = (carried)way;
        test_run_ranks(world, train, &t);
    }
    for (int way = 1; way < WAYS; way++) {
        if (memcmp(t.values[0], t.values[way], (size_t)t.count * sizeof(float)) != 0)
            TEST_FAIL("%s, world %d: other bits than way %d", d->name, world, way);
        CHECK_EQ(t.peak[0], t.peak[way]);
        CHECK_EQ(t.live[0], t.live[way]);
        CHECK(!t.shares[way]);
    }
    for (int way = 0; way < WAYS; way++)
        CHECK(t.beside[way]);
    CHECK_EQ(t.shares[IN_COMMON], may_share(d));
    if (may_share(d)) {
        CHECK_EQ(t.moved[IN_COMMON], 0);
        CHECK(t.moved[COPIED] > 0);
    }
    for (int way = 0; way < WAYS; way++)
        free(t.values[way]);
}

TEST_WITH(every_door_has_the_same_bits_and_gathers_move_nothing, open_fake, close_fake)
{
    for (int i = 1; i < DOORS; i++)
        for (int world = 2; world <= 4; world++)
            if (test_takes(i + world, 3, TEST_SANITIZED ? 13 : 9) ||
                ((test_long() || !TEST_SANITIZED) && doors[i].hybrid && world == 4))
                compare_ways(world, &doors[i], (fsdp_reshard)((i + world) % 3));
}

/* ---- ranks that have GPUs in turn ---- */

static int open_two(void **state)
{
    int opened = open_fake(state);

    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    return opened;
}

static void check_device(fsdp_context *context, void *arg)
{
    (void)arg;
    CHECK_STRING(fsdp_device_name(test_device(context)), fsdp_context_rank(context) % 2 ? "cuda:1" : "cuda:0");
    CHECK(!net_ranks_share(context));
}

TEST_WITH(ranks_with_gpus_in_turn_have_none_in_common, open_two, close_fake)
{
    trial t = {.door = &doors[1]};

    test_run_ranks(2, check_device, NULL);
    test_run_ranks(4, check_device, NULL);
    for (int way = IN_COMMON; way < WAYS; way += STAGED) {
        t.way = (carried)way;
        test_run_ranks(3, train, &t);
        CHECK(!t.shares[way]);
    }
    CHECK(t.moved[IN_COMMON] > 0);
    net_check_same(t.values[IN_COMMON], t.values[STAGED], t.count);
}

/* Each way has the bits of the others, and another stream for what is exchanged than for computing. */
static void compare_apart(int world, const door *d)
{
    trial t = {.door = d};

    for (int way = COPIED; way < WAYS; way++) {
        t.way = (carried)way;
        test_run_ranks(world, train, &t);
        CHECK_EQ(t.beside[way], world > 1);
    }
    net_check_same(t.values[COPIED], t.values[STAGED], t.count);
}

TEST_WITH(ranks_with_gpus_of_their_own_exchange_beside_the_computing, open_two, close_fake)
{
    for (int i = 1; i < DOORS; i++)
        for (int world = 1; world <= 4; world++)
            if (test_takes(i + world, 5, TEST_SANITIZED ? 23 : 11) ||
                (doors[i].hybrid && world == 4 && test_takes(i, 2, 3)))
                compare_apart(world, &doors[i]);
}

/* ---- what is summoned over NCCL ---- */

static void convert_summoned(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_parameters parameters;

    (void)arg;
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_NCCL));
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    net_train(module, 1);
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    CHECK_STATUS(fsdp_module_to(module, FSDP_BF16), FSDP_STATE);
    CHECK_OK(fsdp_module_end_summon(module));
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        CHECK_EQ(fsdp_tensor_dtype(parameters.items[i].tensor), FSDP_F32);
    fsdp_parameters_release(&parameters);
    net_train(module, 1);
    fsdp_module_unref(module);
}

TEST_WITH(what_is_summoned_over_nccl_keeps_its_dtype, open_two, close_fake)
{
    test_run_ranks(2, convert_summoned, NULL);
}

/* ---- stamps of waits ---- */

/* Changes dtypes between questions how long was waited, each of which reads the stamps of the steps before. */
static void ask_between_dtypes(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    int64_t gathers, earlier = 0, reductions;

    (void)arg;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(fsdp_module_exposed_time(module, &gathers, &reductions));
        CHECK(gathers >= earlier);
        earlier = gathers;
        net_train(module, 1);
        CHECK_OK(fsdp_module_to(module, FSDP_BF16));
        CHECK_OK(fsdp_module_to(module, FSDP_F32));
    }
    CHECK(gathers > 0);
    fsdp_module_unref(module);
}

TEST_WITH(a_gpu_s_waits_are_still_counted_when_dtypes_have_changed, open_two, close_fake)
{
    test_run_ranks(2, ask_between_dtypes, NULL);
}

/* ---- places of steps ---- */

enum {
    WIDTH = 300,
    ROWS = 301,
    PLACED_STEPS = 5
};

static fsdp_status backward_of(fsdp_context *context, fsdp_module *module)
{
    fsdp_tensor *out = fsdp_call(module, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(ROWS, WIDTH)));
    fsdp_tensor *loss = fsdp_mean(fsdp_mul(out, out));

    return loss ? fsdp_backward(loss) : fsdp_last_status();
}

static fsdp_status placed_step(fsdp_context *context, fsdp_module *module, fsdp_optimizer *adamw)
{
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    status = backward_of(context, module);
    if (status == FSDP_OK)
        status = fsdp_optimizer_step(adamw);
    CHECK_OK(fsdp_optimizer_zero_grad(adamw));
    fsdp_scope_end(context, NULL);
    return status;
}

/* Takes steps that have places; then one rank fails, and another is late. */
static void place(fsdp_context *context, void *arg)
{
    const fsdp_carrier *carrier = arg;
    const fsdp_adam_options options = fsdp_adam_options_default();
    int rank = fsdp_context_rank(context);
    fsdp_device *meta = fsdp_meta(context);
    fsdp_module *layers[] = {fsdp_linear_create(context, meta, WIDTH, 4 * WIDTH, NULL), fsdp_gelu_create(context, true),
                             fsdp_linear_create(context, meta, 4 * WIDTH, WIDTH, NULL)};
    fsdp_module *module = CHECK_PTR(fsdp_sequential_create(context, layers, 3));
    fsdp_optimizer *adamw = NULL;
    fsdp_parameters parameters;
    fsdp_memory_stats stats;
    fsdp_status status;

    CHECK_OK(fsdp_context_set_carrier(context, *carrier));
    CHECK_OK(fsdp_fully_shard(layers[0], NULL));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &adamw));
    fsdp_parameters_release(&parameters);
    for (int n = 0; n < PLACED_STEPS; n++)
        CHECK_OK(placed_step(context, module, adamw));
    fsdp_device_memory(test_device(context), &stats);
    CHECK(stats.reserved_bytes <= stats.peak_total_bytes + 4 * (2 << 20)); /* segments end so behind what is needed */
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (rank == 1)
        fsdp_abort(context, "rank 1 has enough");
    if (rank == 2)
        (void)usleep(20000);
    status = placed_step(context, module, adamw);
    if (status == FSDP_OK) /* all of it was queued */
        status = fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    CHECK(status != FSDP_OK);
    fsdp_optimizer_free(adamw);
    fsdp_module_unref(module);
}

TEST_WITH(ranks_that_are_threads_of_a_gpu_have_places_until_one_fails, open_fake, close_fake)
{
    fsdp_carrier carriers[] = {FSDP_CARRIER_STAGED, FSDP_CARRIER_PEER};

#if FSDP__TSAN
    skip(); /* devices that are let go on because the world has ended write what others still read */
#endif
    for (size_t i = TEST_SANITIZED && !test_long() ? 1 : 0; i < FSDP__COUNT_OF(carriers); i++)
        test_run_ranks(3, place, &carriers[i]);
}

/* ---- random orders ---- */

enum {
    ORDER_STEPS = 7,
    KEPT = 2 /* tensors that a loop keeps over steps */
};

typedef struct order {
    uint64_t seed;
    bool placed;
    float *values[2]; /* of rank 0: elsewhere, in places */
    int64_t count;
} order;

/* What a rank trains, and what it has drawn; all but `late` is the same on all ranks. */
typedef struct player {
    fsdp_context *context;
    fsdp_module *module, *first;
    fsdp_optimizer *adamw;
    fsdp_tensor *kept[KEPT];
    uint64_t dice, late;
    int width, rows; /* blocks of 256 KiB and more have places */
    bool frozen;
} player;

static fsdp_tensor *rows_of(player *p, int rows)
{
    FSDP__FREED float *values = CHECK_PTR(fsdp__malloc((size_t)(rows * p->width) * sizeof *values));
    fsdp_tensor *x = CHECK_PTR(fsdp_zeros(test_device(p->context), FSDP_F32, FSDP_SHAPE(rows, p->width)));

    for (int i = 0; i < rows * p->width; i++)
        values[i] = (float)(dice_below(&p->dice, 2001) - 1000) / 1000;
    CHECK_OK(fsdp_tensor_write(x, FSDP_F32, values));
    return x;
}

static void look_on(player *p)
{
    fsdp_no_grad_begin(p->context);
    for (int rows = p->rows - 7 * dice_below(&p->dice, 3); rows <= p->rows; rows += 7) /* as if more tokens came */
        CHECK_PTR(fsdp_mean(fsdp_call(p->module, rows_of(p, rows))));
    fsdp_no_grad_end(p->context);
}

static void go_back(player *p)
{
    fsdp_tensor *out = fsdp_call(p->module, rows_of(p, p->rows - p->rows / 5 * dice_below(&p->dice, 3)));
    fsdp_tensor *loss = CHECK_PTR(fsdp_mean(fsdp_mul(out, out)));
    bool twice = dice_chance(&p->dice, 20);

    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, twice));
    if (twice)
        CHECK_OK(fsdp_backward(loss));
    if (dice_chance(&p->dice, 20)) {
        int slot = dice_below(&p->dice, KEPT);

        fsdp_tensor_unref(p->kept[slot]);
        p->kept[slot] = fsdp_tensor_ref(out);
    }
}

/* Changes what lives between steps. */
static void change(player *p)
{
    if (dice_chance(&p->dice, 25)) {
        p->frozen = !p->frozen;
        CHECK_OK(fsdp_module_set_requires_grad(p->first, !p->frozen));
    }
    if (dice_chance(&p->dice, 25))
        CHECK_OK(fsdp_module_unshard(p->first));
    if (dice_chance(&p->dice, 25))
        CHECK_OK(fsdp_module_reshard_all(p->module));
    if (dice_chance(&p->dice, 25))
        look_on(p);
    if (dice_chance(&p->late, 20))
        (void)usleep(2000);
}

static void play_step(player *p)
{
    CHECK_OK(fsdp_scope_begin(p->context));
    change(p);
    for (int micros = 1 + dice_below(&p->dice, 2); micros > 0; micros--)
        go_back(p);
    CHECK_OK(fsdp_module_reshard_all(p->module));
    CHECK_OK(fsdp_optimizer_step(p->adamw));
    CHECK_OK(fsdp_optimizer_zero_grad(p->adamw));
    fsdp_scope_end(p->context, NULL);
}

static void set_up(player *p)
{
    const fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_shard_options options = {.offload_policy.cpu = dice_chance(&p->dice, 30)};
    fsdp_device *meta = fsdp_meta(p->context);
    fsdp_module *layers[] = {fsdp_linear_create(p->context, meta, p->width, 2 * p->width, NULL),
                             fsdp_gelu_create(p->context, true),
                             fsdp_linear_create(p->context, meta, 2 * p->width, p->width, NULL)};
    fsdp_parameters parameters;

    p->module = CHECK_PTR(fsdp_sequential_create(p->context, layers, 3));
    p->first = layers[0];
    CHECK_OK(fsdp_fully_shard(p->first, &options));
    CHECK_OK(fsdp_fully_shard(p->module, &options));
    CHECK_OK(fsdp_module_materialize(p->module, test_device(p->context)));
    CHECK_OK(fsdp_module_initialize(p->module, 1));
    CHECK_OK(fsdp_module_parameters(p->module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &p->adamw));
    fsdp_parameters_release(&parameters);
}

static void play_order(fsdp_context *context, void *arg)
{
    order *o = arg;
    int rank = fsdp_context_rank(context);
    int width = test_long() ? WIDTH : 37; /* parameters have places, too, or only what depends on rows */
    player p = {.context = context,
                .dice = o->seed,
                .late = o->seed + (uint64_t)rank,
                .width = width,
                .rows = (1 << 16) / width};
    fsdp_memory_stats stats;
    float *values;
    int64_t count;

    set_up(&p);
    for (int n = 0; n < ORDER_STEPS; n++)
        play_step(&p);
    fsdp_device_memory(test_device(context), &stats);
    CHECK(!o->placed || stats.reserved_bytes <= stats.peak_total_bytes * 5 / 4 + 4 * (2 << 20));
    values = net_values(p.module, &count);
    if (rank == 0) {
        o->values[o->placed] = values;
        o->count = count;
    } else {
        free(values);
    }
    for (int i = 0; i < KEPT; i++)
        fsdp_tensor_unref(p.kept[i]);
    fsdp_optimizer_free(p.adamw);
    fsdp_module_unref(p.module);
}

/* Where the driver cannot map memory, nothing has a place. */
TEST_WITH(random_orders_of_steps_have_the_same_bits_with_places, open_fake, close_fake)
{
    const dice_seeds seeds = dice_seeds_of("COMMON", test_long() ? 40 : 1);

    if (TEST_SANITIZED && !test_long())
        skip();
    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        order o = {.seed = seed};

        for (int placed = 0; placed < 2; placed++) {
            o.placed = placed;
            setenv("FSDP_FAKECUDA_MAPPING", placed ? "1" : "0", 1);
            test_run_ranks(1 + (int)(seed % 2), play_order, &o);
        }
        unsetenv("FSDP_FAKECUDA_MAPPING");
        net_check_same(o.values[0], o.values[1], o.count);
    }
}

#endif
