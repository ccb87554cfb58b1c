/* Tensors that several mesh dimensions cut, strided and by segments: state dicts of any layout become those of any
 * other, each element has one writer, and first values do not depend on the layout. */
#include "fsdp/state.h"
#include "nn/module.h"
#include "state/entry.h"
#include "support/dice.h"
#include "support/layouts.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    ENTRIES = 5,
    MOST = 512
};

static const char *const names[] = {"rep", "dp", "tp"};
static const char *const entry_names[ENTRIES] = {"a", "b", "c", "d", "e"};

static const struct {
    int ndim;
    int64_t shape[3];
} entries[ENTRIES] = {{2, {17, 5}}, {2, {3, 24}}, {1, {13}}, {3, {4, 7, 5}}, {2, {0, 4}}};

typedef struct mesh_case {
    int world, ndim;
    int64_t shape[3];
} mesh_case;

typedef struct drawing {
    const mesh_case *mesh;
    uint64_t seed;
} drawing;

static const mesh_case cases[] = {{1, 1, {1}},    {4, 2, {2, 2}},    {6, 2, {3, 2}},
                                  {6, 2, {2, 3}}, {8, 3, {2, 2, 2}}, {8, 2, {2, 4}}};

static void draw_on_all_meshes(test_rank_body body)
{
    const dice_seeds seeds = dice_seeds_of("LAYOUTS", test_long() ? 50 : 1);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            test_run_ranks(cases[i].world, body, &(drawing){&cases[i], seed});
}

static fsdp_tensor *make_whole(fsdp_context *context, int entry, float factor)
{
    fsdp_tensor *whole = NULL;
    float data[MOST];

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, entries[entry].ndim, entries[entry].shape,
                                FSDP_MEMORY_PARAMETER_SHARD, &whole));
    for (int64_t i = 0; i < fsdp_tensor_numel(whole); i++)
        data[i] = factor * (float)(entry * 1000 + i);
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
    return whole;
}

static fsdp_state_dict *make_state(fsdp_mesh *mesh, uint64_t *dice, float factor)
{
    int64_t shape[FSDP_MAX_MESH_DIMS];
    fsdp_state_dict *state = NULL;

    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++)
        shape[d] = fsdp_mesh_size(mesh, d);
    CHECK_OK(fsdp_state_dict_create(&state));
    for (int e = 0; e < ENTRIES; e++) {
        fsdp_tensor *whole = make_whole(fsdp_mesh_context(mesh), e, factor), *part = NULL;
        drawn_layout l;

        layout_draw(dice, fsdp_mesh_ndim(mesh), shape, entries[e].ndim, entries[e].shape, &l);
        CHECK_OK(fsdp_distribute_tensor(whole, mesh, l.placements, &part));
        CHECK_OK(fsdp_state_dict_add(state, entry_names[e], part));
        fsdp_tensor_unref(part);
        fsdp_tensor_unref(whole);
    }
    return state;
}

/* ---- values ---- */

typedef struct checking {
    int entry;
    const float *data;
} checking;

static fsdp_status check_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const checking *c = arg;

    for (int64_t i = 0; i < numel; i++)
        CHECK_EQ(c->data[local + i], c->entry * 1000 + global + i);
    return FSDP_OK;
}

static void check_values(const fsdp_state_dict *state)
{
    CHECK_EQ(state->count, ENTRIES);
    for (int e = 0; e < ENTRIES; e++) {
        float data[MOST];

        CHECK_OK(fsdp_tensor_read(state->entries[e].tensor, FSDP_F32, data));
        CHECK_OK(fsdp_state_dict_entry_runs(&state->entries[e], check_run, &(checking){e, data}));
    }
}

/* ---- one state into another ---- */

static void load(const fsdp_state_dict *state, const fsdp_state_dict *full, fsdp_full_state_options options)
{
    CHECK_OK(fsdp_state_dict_load_full(state, full, &options));
    check_values(state);
}

static void check_moves(fsdp_context *context, void *arg)
{
    const drawing *drawn = arg;
    const mesh_case *c = drawn->mesh;
    uint64_t dice = drawn->seed;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int round = 0; round < 6; round++) {
        fsdp_state_dict *a = make_state(mesh, &dice, 1), *b = make_state(mesh, &dice, 0), *full = NULL, *rows = NULL;
        bool first = fsdp_context_rank(context) == 0;

        CHECK_OK(fsdp_state_dict_gather(a, NULL, &full));
        check_values(full);
        load(b, full, (fsdp_full_state_options){.partial = false});
        fsdp_state_dict_free(b);
        b = make_state(mesh, &dice, 0);
        load(b, first ? full : NULL, (fsdp_full_state_options){.broadcast_from_rank0 = true});
        fsdp_state_dict_free(b);
        b = make_state(mesh, &dice, 0);
        load(b, a, (fsdp_full_state_options){.from_parts = true});
        CHECK_OK(fsdp_state_dict_shard_rows(b, NULL, &rows));
        check_values(rows);
        fsdp_state_dict_free(rows);
        fsdp_state_dict_free(full);
        fsdp_state_dict_free(a);
        fsdp_state_dict_free(b);
    }
    fsdp_mesh_unref(mesh);
}

TEST(any_layout_becomes_any_other)
{
    draw_on_all_meshes(check_moves);
}

/* ---- who writes ---- */

typedef struct counting {
    int64_t *counts;
} counting;

static fsdp_status count_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const counting *c = arg;

    (void)local;
    for (int64_t i = 0; i < numel; i++)
        c->counts[global + i]++;
    return FSDP_OK;
}

/* Each element is written once by the ranks of a group. */
static void check_written_once(const fsdp_state_dict_entry *entry, fsdp_process_group *group)
{
    int64_t counts[MOST] = {0};
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(group)));

    if (fsdp__entry_writes(entry, group))
        CHECK_OK(fsdp_state_dict_entry_runs(entry, count_run, &(counting){counts}));
    CHECK_OK(fsdp_all_reduce(group, counts, counts, MOST, FSDP_I64, FSDP_SUM, stream));
    CHECK_OK(fsdp_stream_synchronize(stream));
    for (int64_t i = 0; i < fsdp__shape_numel(entry->ndim, entry->global_shape); i++)
        CHECK_EQ(counts[i], 1);
}

/* Tensors of a slice are the same in the others: one rank of them all writes, if they save together. */
static void check_slices(fsdp_mesh *mesh, uint64_t *dice)
{
    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++) {
        fsdp_mesh *slice = NULL;
        fsdp_state_dict *state;
        const char *name = fsdp_mesh_dim_name(mesh, d);

        CHECK_OK(fsdp_mesh_slice(mesh, 1, &name, &slice));
        state = make_state(slice, dice, 1);
        for (int e = 0; e < ENTRIES; e++) {
            check_written_once(&state->entries[e], fsdp_world(fsdp_mesh_context(mesh)));
            check_written_once(&state->entries[e], fsdp_mesh_process_group(slice, 0));
        }
        fsdp_state_dict_free(state);
        fsdp_mesh_unref(slice);
    }
}

static void check_writers(fsdp_context *context, void *arg)
{
    const drawing *drawn = arg;
    const mesh_case *c = drawn->mesh;
    uint64_t dice = drawn->seed;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int round = 0; round < 4; round++) {
        fsdp_state_dict *state = make_state(mesh, &dice, 1);

        for (int e = 0; e < ENTRIES; e++)
            check_written_once(&state->entries[e], fsdp_world(context));
        fsdp_state_dict_free(state);
        check_slices(mesh, &dice);
    }
    fsdp_mesh_unref(mesh);
}

TEST(every_element_has_one_writer)
{
    draw_on_all_meshes(check_writers);
}

/* ---- memory ---- */

enum {
    ROWS = 96,
    COLUMNS = 640
};

static size_t peak_of(fsdp_device *device)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    return stats.peak_total_bytes;
}

/* Loads what is cut by columns in segments into what is cut by rows. Besides both, a rank has the whole twice while the
 * boxes that it gets are put in order, and the half that it sent. */
RANKS_TEST(no_rank_has_more_than_one_whole_tensor, 4)
{
    const fsdp_placement columns[] = {{.kind = FSDP_SHARD, .dim = 1, .split_factor = 2},
                                      {.kind = FSDP_SHARD, .dim = 1, .segment_count = 3, .segments = {320, 160, 160}}};
    const fsdp_placement rows[] = {{.kind = FSDP_SHARD}, {.kind = FSDP_SHARD}};
    const size_t whole_bytes = sizeof(float) * ROWS * COLUMNS;
    fsdp_device *device = test_device(context);
    fsdp_tensor *whole = NULL, *from = NULL, *to = NULL;
    fsdp_state_dict *a = NULL, *b = NULL;
    fsdp_mesh *mesh = NULL;
    size_t before;

    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_STAGED)); /* others have memory of their own */
    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, names + 1, &mesh));
    CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(ROWS, COLUMNS), FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, 3));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, columns, &from));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, rows, &to));
    fsdp_tensor_unref(whole);
    CHECK_OK(fsdp_state_dict_create(&a));
    CHECK_OK(fsdp_state_dict_create(&b));
    CHECK_OK(fsdp_state_dict_add(a, "x", from));
    CHECK_OK(fsdp_state_dict_add(b, "x", to));
    before = (size_t)test_live_bytes(context);
    fsdp_device_reset_peak(device);
    CHECK_OK(fsdp_state_dict_load_full(b, a, &(fsdp_full_state_options){.from_parts = true}));
    CHECK(peak_of(device) - before <= whole_bytes * 5 / 2 + 4096);
    CHECK_EQ(test_live_bytes(context), before);
    fsdp_state_dict_free(a);
    fsdp_state_dict_free(b);
    fsdp_tensor_unref(from);
    fsdp_tensor_unref(to);
    fsdp_mesh_unref(mesh);
}

/* ---- first values ---- */

/* Gives every parameter of a module to the ranks, as drawn. */
static void distribute_all(fsdp_module *module, fsdp_mesh *mesh, uint64_t *dice)
{
    int64_t shape[FSDP_MAX_MESH_DIMS];

    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++)
        shape[d] = fsdp_mesh_size(mesh, d);
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        fsdp_tensor **slot = module->parts->parameters[i].slot, *part = NULL;
        drawn_layout l;

        layout_draw(dice, fsdp_mesh_ndim(mesh), shape, fsdp_tensor_ndim(*slot), fsdp_tensor_shape(*slot), &l);
        CHECK_OK(fsdp_distribute_tensor(*slot, mesh, l.placements, &part));
        fsdp_tensor_unref(*slot);
        *slot = part;
    }
}

static void check_same_values(fsdp_module *cut, fsdp_module *whole)
{
    for (int64_t i = 0; i < cut->parts->parameter_count; i++) {
        fsdp_tensor *full = NULL;
        float mine[MOST], expected[MOST];

        CHECK_OK(fsdp_full_tensor(*cut->parts->parameters[i].slot, &full));
        CHECK_OK(fsdp_tensor_read(full, FSDP_F32, mine));
        CHECK_OK(fsdp_tensor_read(*whole->parts->parameters[i].slot, FSDP_F32, expected));
        CHECK_BYTES(mine, expected, (size_t)fsdp_tensor_numel(full) * sizeof *mine);
        fsdp_tensor_unref(full);
    }
}

/* Built on the meta device or not; then in another dtype, in which it is still distributed. */
static void check_initial(fsdp_context *context, void *arg)
{
    const drawing *drawn = arg;
    const mesh_case *c = drawn->mesh;
    uint64_t dice = drawn->seed;
    fsdp_module *whole = fsdp_linear_create(context, test_device(context), 11, 24, NULL);
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    CHECK_OK(fsdp_module_initialize(whole, 7));
    for (int round = 0; round < 8; round++) {
        fsdp_device *device = round % 2 ? fsdp_meta(context) : test_device(context);
        fsdp_module *cut = fsdp_linear_create(context, device, 11, 24, NULL);
        const fsdp_distribution *d;

        distribute_all(cut, mesh, &dice);
        CHECK_OK(fsdp_module_materialize(cut, test_device(context)));
        CHECK_OK(fsdp_module_initialize(cut, 7));
        check_same_values(cut, whole);
        CHECK_OK(fsdp_module_to(cut, FSDP_BF16));
        d = CHECK_PTR(fsdp_tensor_distribution(*cut->parts->parameters[0].slot));
        CHECK_EQ(d->global_shape[0], 24);
        CHECK_EQ(fsdp_tensor_dtype(*cut->parts->parameters[0].slot), FSDP_BF16);
        fsdp_module_unref(cut);
    }
    fsdp_module_unref(whole);
    fsdp_mesh_unref(mesh);
}

TEST(first_values_are_the_same_at_every_layout)
{
    draw_on_all_meshes(check_initial);
}

/* ---- a rank that differs ---- */

/* Rank 1 has segments of other lengths, and so other elements. */
RANKS_TEST(a_rank_that_is_cut_otherwise_is_named, 2)
{
    bool odd = fsdp_context_rank(context) == 1;
    const fsdp_placement fused = {.kind = FSDP_SHARD, .segment_count = 2, .segments = {odd ? 4 : 8, odd ? 8 : 4}};
    const int64_t length = 12;
    fsdp_tensor *whole = NULL, *part = NULL;
    fsdp_state_dict *state = NULL, *full = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, NULL, &mesh));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 1, &length, FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, 1));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &fused, &part));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_state_dict_add(state, "x", part));
    CHECK_ERROR(fsdp_state_dict_gather(state, NULL, &full), FSDP_MISMATCH,
                "rank 1 has a state dict with other names, shapes or placements than rank 0");
    CHECK_NULL(full);
    fsdp_state_dict_free(state);
    fsdp_tensor_unref(part);
    fsdp_tensor_unref(whole);
    fsdp_mesh_unref(mesh);
}

/* ---- a failure ---- */

/* One rank fails at its n-th allocation: it says so, and nobody hangs. */
static void check_fault(fsdp_context *context, void *arg)
{
    long nth = *(const long *)arg;
    uint64_t dice = 21;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *a, *b;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, names + 1, &mesh));
    a = make_state(mesh, &dice, 1);
    b = make_state(mesh, &dice, 0);
    test_meet();
    if (fsdp_context_rank(context) == 2)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, nth);
    status = fsdp_state_dict_load_full(b, a, &(fsdp_full_state_options){.from_parts = true});
    if (fsdp_context_rank(context) == 2)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    if (status != FSDP_OK)
        fsdp_abort(context, fsdp_last_error());
    fsdp_state_dict_free(a);
    fsdp_state_dict_free(b);
    fsdp_mesh_unref(mesh);
}

TEST(a_failed_allocation_on_one_rank_hangs_nobody)
{
    for (long nth = 1; nth < 90; nth += 8)
        test_run_ranks(4, check_fault, &nth);
}
