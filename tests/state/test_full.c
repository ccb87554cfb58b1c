/* Whole state: gathered to all ranks or the first, loaded from all or from the first, one tensor at a time. */
#include "base/compiler.h"
#include "device/device.h"
#include "fsdp/state.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    ENTRIES = 7,
    MOST = 256
};

#define R                      \
    {                          \
        .kind = FSDP_REPLICATE \
    }
#define S(d)                         \
    {                                \
        .kind = FSDP_SHARD, .dim = d \
    }

/* The last two are not distributed. */
typedef struct kind {
    const char *name;
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[3];
    fsdp_placement placements[2];
} kind;

static const kind rows[ENTRIES] = {{"a", FSDP_F32, 2, {17, 5}, {S(0)}}, {"b", FSDP_F32, 1, {3}, {S(0)}},
                                   {"c", FSDP_BF16, 2, {6, 3}, {S(0)}}, {"d", FSDP_F32, 3, {4, 7, 2}, {S(1)}},
                                   {"e", FSDP_F32, 2, {1, 9}, {S(0)}},  {"f", FSDP_I64, 0, {0}, {R}},
                                   {"g", FSDP_F32, 2, {2, 3}, {R}}};
static const kind hybrid[ENTRIES] = {{"a", FSDP_F32, 2, {17, 5}, {R, S(0)}},   {"b", FSDP_F32, 1, {3}, {S(0), S(0)}},
                                     {"c", FSDP_BF16, 2, {6, 3}, {S(0), R}},   {"d", FSDP_F32, 3, {4, 7, 2}, {R, S(1)}},
                                     {"e", FSDP_F32, 2, {1, 9}, {S(1), S(0)}}, {"f", FSDP_I64, 0, {0}, {R, R}},
                                     {"g", FSDP_F32, 2, {2, 3}, {R, R}}};

/* Exact in every dtype. */
static float value(int entry, int64_t i)
{
    return (float)((entry * 37 + i * 11) % 101 - 50);
}

static fsdp_tensor *make_whole(fsdp_device *device, const kind *k, int entry, float factor)
{
    fsdp_tensor *whole = NULL;
    float data[MOST];

    CHECK_OK(fsdp_tensor_create(device, k->dtype, k->ndim, k->shape, FSDP_MEMORY_PARAMETER_SHARD, &whole));
    for (int64_t i = 0; i < fsdp_tensor_numel(whole); i++)
        data[i] = factor * value(entry, i);
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    return whole;
}

/* This rank's parts, or whole tensors on `device` without a mesh. */
static fsdp_state_dict *make_state(fsdp_device *device, fsdp_mesh *mesh, const kind *kinds, float factor)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_state_dict_create(&state));
    for (int e = 0; e < ENTRIES; e++) {
        fsdp_tensor *whole = make_whole(device, &kinds[e], e, factor), *part = NULL;

        if (mesh && e < ENTRIES - 2)
            CHECK_OK(fsdp_distribute_tensor(whole, mesh, kinds[e].placements, &part));
        CHECK_OK(fsdp_state_dict_add(state, kinds[e].name, part ? part : whole));
        fsdp_tensor_unref(part);
        fsdp_tensor_unref(whole);
    }
    return state;
}

static void check_whole(const fsdp_state_dict *state, const kind *kinds, const fsdp_device *device)
{
    CHECK_EQ(state->count, ENTRIES);
    for (int e = 0; e < ENTRIES; e++) {
        const fsdp_state_dict_entry *entry = &state->entries[e];
        float data[MOST];

        CHECK_STRING(entry->name, kinds[e].name);
        CHECK_NULL(fsdp_tensor_distribution(entry->tensor));
        CHECK_EQ(fsdp_tensor_dtype(entry->tensor), kinds[e].dtype);
        CHECK(fsdp_tensor_device(entry->tensor) == device);
        CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_F32, data));
        for (int64_t i = 0; i < fsdp_tensor_numel(entry->tensor); i++)
            CHECK_NEAR(data[i], value(e, i), 0);
    }
}

static void check_parts(const fsdp_state_dict *state, const kind *kinds)
{
    fsdp_state_dict *whole = NULL;

    CHECK_OK(fsdp_state_dict_gather(state, NULL, &whole));
    check_whole(whole, kinds, fsdp_tensor_device(state->entries[0].tensor));
    fsdp_state_dict_free(whole);
}

/* ---- there and back ---- */

static void go_round(fsdp_context *context, fsdp_mesh *mesh, const kind *kinds)
{
    static const fsdp_full_state_options offload = {.cpu_offload = true}, broadcast = {.broadcast_from_rank0 = true};
    fsdp_device *device = test_device(context), *cpu = fsdp_cpu(context);
    fsdp_state_dict *state = make_state(device, mesh, kinds, 1), *whole = NULL, *of_first = NULL;

    check_parts(state, kinds);
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &whole));
    CHECK_OK(fsdp_state_dict_gather(state, &offload, &of_first));
    if (fsdp_context_rank(context) == 0)
        check_whole(of_first, kinds, cpu);
    else
        CHECK_EQ(of_first->count, 0);
    fsdp_state_dict_free(state);

    state = make_state(device, mesh, kinds, 0);
    CHECK_OK(fsdp_state_dict_load_full(state, whole, NULL)); /* on the device, everywhere */
    check_parts(state, kinds);
    fsdp_state_dict_free(state);

    state = make_state(device, mesh, kinds, 0);
    CHECK_OK(fsdp_state_dict_load_full(state, of_first, &broadcast)); /* in the host's memory, of rank 0 */
    check_parts(state, kinds);
    fsdp_state_dict_free(state);

    state = make_state(device, mesh, kinds, 0);
    CHECK_OK(fsdp_state_dict_load_full(state, fsdp_context_rank(context) == 0 ? whole : NULL, &broadcast));
    check_parts(state, kinds);
    fsdp_state_dict_free(state);

    fsdp_state_dict_free(whole);
    whole = make_state(cpu, NULL, kinds, 1);
    state = make_state(device, mesh, kinds, 0);
    CHECK_OK(fsdp_state_dict_load_full(state, whole, NULL)); /* in the host's memory, everywhere */
    check_parts(state, kinds);
    fsdp_state_dict_free(state);
    fsdp_state_dict_free(of_first);
    fsdp_state_dict_free(whole);
}

static void check_round(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"replicate", "shard"};
    int64_t world = fsdp_context_world_size(context), shape[] = {2, world / 2};
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    go_round(context, mesh, rows);
    fsdp_mesh_unref(mesh);
    if (world % 2 == 0) {
        CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
        go_round(context, mesh, hybrid);
        fsdp_mesh_unref(mesh);
    }
    test_drop_workspace(context);
}

TEST(whole_state_goes_out_and_in)
{
    static const int worlds[] = {1, 2, 3, 4, 6, 8};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], check_round, NULL);
}

/* ---- memory ---- */

static int64_t live_bytes(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return (int64_t)stats.live_total_bytes;
}

/* Above what lives now, since the last call of fsdp_device_reset_peak. */
static int64_t peak_above(fsdp_context *context, int64_t live)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return (int64_t)stats.peak_total_bytes - live;
}

/* Of the largest of three tensors of rows, padded to a multiple of the ranks; and not. */
static int64_t largest(int64_t world, bool padded)
{
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t count = rows[i].shape[0], row = rows[i].ndim == 2 ? rows[i].shape[1] : 1;

        count = padded ? (count + world - 1) / world * world : count;
        row *= (int64_t)fsdp_dtype_size(rows[i].dtype);
        most = FSDP__MAX(most, (int64_t)fsdp__device_rounded((size_t)(count * row)));
    }
    return most;
}

WORLDS_TEST(one_tensor_at_a_time, 2, 4)
{
    static const fsdp_full_state_options offload = {.cpu_offload = true}, broadcast = {.broadcast_from_rank0 = true};
    int64_t world = fsdp_context_world_size(context), before, kept;
    bool first = fsdp_context_rank(context) == 0;
    fsdp_state_dict *state, *some = NULL, *whole = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    state = make_state(test_device(context), mesh, rows, 1);
    CHECK_OK(fsdp_state_dict_create(&some));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_state_dict_add(some, rows[i].name, state->entries[i].tensor));
    fsdp_state_dict_free(state);
    /* Twice: a stream's workspace is kept. */
    for (int round = 0; round < 2; round++) {
        fsdp_state_dict_free(whole);
        before = live_bytes(context);
        fsdp_device_reset_peak(test_device(context));
        CHECK_OK(fsdp_state_dict_gather(some, &offload, &whole));
    }
    kept = live_bytes(context) - before;
    if (!first || !test_on_cpu())
        CHECK_EQ(kept, 0);
    if (!first)
        CHECK_EQ(peak_above(context, before), largest(world, true));
    else if (!test_on_cpu())
        CHECK_EQ(peak_above(context, before), largest(world, true));
    for (int round = 0; round < 2; round++) {
        before = live_bytes(context);
        fsdp_device_reset_peak(test_device(context));
        CHECK_OK(fsdp_state_dict_load_full(some, whole, &broadcast));
    }
    CHECK_EQ(live_bytes(context), before);
    CHECK_EQ(peak_above(context, before), first && test_on_cpu() ? 0 : largest(world, false));
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(some);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

/* ---- errors ---- */

/* The same words on all ranks, but for who had them first. */
static void check_refused(const fsdp_state_dict *state, const fsdp_state_dict *full, fsdp_status status,
                          const char *words)
{
    fsdp_context *context = fsdp_device_context(fsdp_tensor_device(state->entries[0].tensor));
    const fsdp_full_state_options broadcast = {.broadcast_from_rank0 = true};

    CHECK_ERROR(fsdp_state_dict_load_full(state, full, NULL), status, words);
    CHECK_ERROR(fsdp_state_dict_load_full(state, fsdp_context_rank(context) == 0 ? full : NULL, &broadcast), status,
                words);
}

static void check_errors(fsdp_context *context, void *arg)
{
    static const kind others[] = {{"a", FSDP_F32, 2, {5, 17}, {S(0)}}, {"a", FSDP_I32, 2, {17, 5}, {S(0)}}};
    int64_t world = fsdp_context_world_size(context);
    fsdp_device *device = test_device(context);
    const fsdp_full_state_options partial = {.partial = true};
    fsdp_state_dict *state, *full, *odd;
    fsdp_tensor *tensor;
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    state = make_state(device, mesh, rows, 1);
    full = make_state(device, NULL, rows, 1);
    check_refused(state, NULL, FSDP_INVALID, "cannot load a state dict: it is NULL");

    CHECK_OK(fsdp_state_dict_create(&odd));
    check_refused(state, odd, FSDP_INVALID, "cannot load 'a': the state dict does not have it");
    CHECK_OK(fsdp_state_dict_load_full(state, odd, &partial));
    for (int i = 0; i < 2; i++) {
        tensor = make_whole(device, &others[i], 0, 0);
        CHECK_OK(fsdp_state_dict_add(odd, "a", tensor));
        check_refused(state, odd, FSDP_INVALID,
                      i ? "cannot load 'a', which is float32, from int32"
                        : "cannot load 'a': it has shape (5, 17), but shape (17, 5) is needed");
        fsdp_tensor_unref(tensor);
        fsdp_state_dict_free(odd);
        odd = NULL;
        CHECK_OK(fsdp_state_dict_create(&odd));
    }
    fsdp_state_dict_free(odd);
    if (world > 1)
        check_refused(state, state, FSDP_INVALID, "cannot load 'a' from a part of it: gather the state dict first");
    tensor = make_whole(device, &rows[1], 1, 1);
    CHECK_OK(fsdp_state_dict_add(full, "stranger", tensor));
    check_refused(state, full, FSDP_INVALID, "the state dict has 'stranger', which nothing takes");
    CHECK_OK(fsdp_state_dict_load_full(state, full, &partial));
    check_parts(state, rows); /* nothing was written before */
    CHECK_ERROR(fsdp_state_dict_gather(NULL, NULL, &odd), FSDP_INVALID, "it is NULL");
    CHECK_ERROR(fsdp_state_dict_load_full(NULL, full, NULL), FSDP_INVALID, "it is NULL");
    fsdp_tensor_unref(tensor);

    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

static void check_odd(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_device *device = test_device(context);
    fsdp_state_dict *state = make_state(device, NULL, rows, 1), *full = make_state(device, NULL, rows, 1), *odd = NULL;
    fsdp_tensor *tensor, *part = NULL;

    (void)arg;
    /* A name that one rank alone has. */
    tensor = make_whole(device, &rows[6], 6, 1);
    CHECK_OK(fsdp_state_dict_add(state, fsdp_context_rank(context) == world - 1 ? "odd" : "even", tensor));
    if (world > 1)
        CHECK_ERROR(fsdp_state_dict_gather(state, NULL, &odd), FSDP_MISMATCH,
                    "has a state dict with other names, shapes or placements than rank 0");
    fsdp_tensor_unref(tensor);
    CHECK_OK(
        fsdp_tensor_create(fsdp_meta(context), FSDP_F32, 1, (const int64_t[]){2}, FSDP_MEMORY_PARAMETER_SHARD, &part));
    fsdp_state_dict_free(state);
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_state_dict_add(state, "empty", part));
    CHECK_ERROR(fsdp_state_dict_gather(state, NULL, &odd), FSDP_STATE,
                "cannot gather what is still on the meta device: 'empty': call");
    check_refused(state, full, FSDP_STATE, "cannot load what is still on the meta device: 'empty': call");
    fsdp_tensor_unref(part);
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
    test_drop_workspace(context);
}

/* An empty state dict on some ranks is not that of the others, and on all ranks it is nothing to do. */
WORLDS_TEST(a_rank_with_nothing_is_told_on_all_ranks, 1, 3)
{
    const fsdp_full_state_options first = {.cpu_offload = true};
    bool alone = fsdp_context_world_size(context) == 1;
    fsdp_module *relu = CHECK_PTR(fsdp_relu_create(context));
    fsdp_state_dict *state = make_state(test_device(context), NULL, rows, 1), *some = NULL, *none = NULL, *out = NULL;

    CHECK_OK(fsdp_state_dict_gather(state, &first, &some)); /* rank 0 has all of it */
    CHECK_STATUS(fsdp_state_dict_gather(some, NULL, &out), alone ? FSDP_OK : FSDP_MISMATCH);
    fsdp_state_dict_free(out);
    CHECK_STATUS(fsdp_state_dict_shard_rows(some, NULL, &out), alone ? FSDP_OK : FSDP_MISMATCH);
    fsdp_state_dict_free(out);
    CHECK_STATUS(fsdp_state_dict_load_full(some, some, NULL), alone ? FSDP_OK : FSDP_MISMATCH);
    CHECK_OK(fsdp_state_dict_from_module(relu, &none));
    CHECK_OK(fsdp_state_dict_gather(none, NULL, &out));
    CHECK_OK(fsdp_state_dict_load_full(none, out, NULL));
    fsdp_state_dict_free(out);
    fsdp_state_dict_free(none);
    for (int type = FSDP_FULL_STATE_DICT - 1; type <= FSDP_LOCAL_STATE_DICT + 1; type++) {
        bool known = type >= FSDP_FULL_STATE_DICT && type <= FSDP_LOCAL_STATE_DICT;
        const fsdp_state_dict_config config = {.type = (fsdp_state_dict_type)type};

        CHECK_STATUS(fsdp_state_dict_of_type(state, &config, &out), known ? FSDP_OK : FSDP_INVALID);
        fsdp_state_dict_free(out);
    }
    CHECK_OK(fsdp_state_dict_create(&none));
    CHECK_ERROR(fsdp_state_dict_gather(none, NULL, &out), FSDP_INVALID, "it does not know its ranks");
    CHECK_ERROR(fsdp_state_dict_shard_rows(none, NULL, &out), FSDP_INVALID, "it does not know its ranks");
    CHECK_ERROR(fsdp_state_dict_load_full(none, none, NULL), FSDP_INVALID, "it does not know its ranks");
    fsdp_state_dict_free(none);
    fsdp_state_dict_free(some);
    fsdp_state_dict_free(state);
    fsdp_module_unref(relu);
    test_drop_workspace(context);
}

TEST(what_does_not_fit_is_named_on_all_ranks)
{
    for (int world = 1; world <= 3; world++) {
        test_run_ranks(world, check_errors, NULL);
        test_run_ranks(world, check_odd, NULL);
    }
}

/* A world that could not meet is broken, so each time has one of its own. */
TEST(it_survives_every_failed_allocation)
{
    const fsdp_full_state_options offload = {.cpu_offload = true}, broadcast = {.broadcast_from_rank0 = true};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_state_dict *own, *whole = NULL;
        fsdp_context *context;
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        context = test_context();
        own = make_state(test_device(context), NULL, rows, 1);
        CHECK_PTR(fsdp_world(context));
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_state_dict_gather(own, &offload, &whole);
        CHECK((whole != NULL) == (status == FSDP_OK));
        if (status == FSDP_OK)
            status = fsdp_state_dict_load_full(own, whole, &broadcast);
        if (status == FSDP_OK)
            status = fsdp_state_dict_load_full(own, whole, NULL);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_state_dict_free(whole);
        fsdp_state_dict_free(own);
        (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context))); /* what was queued may have failed */
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}
