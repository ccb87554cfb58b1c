/* Parts in any placements: made to parts by rows, loaded into parts in any others, gathered for the first of a replica.
 */
#include "base/compiler.h"
#include "fsdp/state.h"
#include "support/ranks.h"

enum {
    ENTRIES = 4,
    MOST = 128
};

static const int64_t shapes[ENTRIES][2] = {{17, 5}, {3, 2}, {6, 9}, {1, 7}}; /* b is f32, c bf16; d is not cut */

/* How all entries but the last lie. */
typedef enum layout {
    ROWS,
    COLUMNS,
    FLAT,  /* one after the other, with a gap of one element, cut into equal parts */
    WHOLE, /* on every rank, over the mesh */
    LAYOUTS,
    PLAIN = -1 /* without a mesh */
} layout;

static float value(int entry, int64_t i)
{
    return (float)((entry * 37 + i * 11) % 101 - 50);
}

static int64_t numel_of(int entry)
{
    return shapes[entry][0] * shapes[entry][1];
}

/* Over the last dimension of the mesh, replicated over another. */
static void place(const fsdp_mesh *mesh, layout how, int entry, fsdp_placement *out)
{
    int last = fsdp_mesh_ndim(mesh) - 1;
    int64_t total = 0, first = 0;

    out[0] = out[1] = (fsdp_placement){.kind = FSDP_REPLICATE};
    for (int e = 0; e < ENTRIES - 1; e++) {
        first += e < entry ? numel_of(e) + 1 : 0;
        total += numel_of(e) + 1;
    }
    if (how == ROWS || how == COLUMNS)
        out[last] = (fsdp_placement){.kind = FSDP_SHARD, .dim = how == COLUMNS};
    if (how == FLAT)
        out[last] = (fsdp_placement){.kind = FSDP_FLAT,
                                     .first = first,
                                     .chunk = (total + fsdp_mesh_size(mesh, last) - 1) / fsdp_mesh_size(mesh, last)};
}

static fsdp_state_dict *make_state(fsdp_context *context, fsdp_mesh *mesh, layout how, float factor)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_create(&state));
    for (int e = 0; e < ENTRIES; e++) {
        const char name[] = {(char)('a' + e), '\0'};
        fsdp_tensor *whole, *part = NULL;
        fsdp_placement placements[2];
        float data[MOST];

        CHECK_OK(fsdp_tensor_create(test_device(context), e == 2 ? FSDP_BF16 : FSDP_F32, 2, shapes[e],
                                    FSDP_MEMORY_PARAMETER_SHARD, &whole));
        for (int64_t i = 0; i < numel_of(e); i++)
            data[i] = factor * value(e, i);
        CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, data));
        if (mesh && e < ENTRIES - 1) {
            place(mesh, how, e, placements);
            CHECK_OK(fsdp_distribute_tensor(whole, mesh, placements, &part));
        }
        CHECK_OK(fsdp_state_dict_add(state, name, part ? part : whole));
        fsdp_tensor_unref(part);
        fsdp_tensor_unref(whole);
    }
    return state;
}

static void check_values(const fsdp_state_dict *state)
{
    CHECK_EQ(state->count, ENTRIES);
    for (int e = 0; e < ENTRIES; e++) {
        fsdp_tensor *whole;
        float data[MOST];

        CHECK_OK(fsdp_full_tensor(state->entries[e].tensor, &whole));
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, data));
        for (int64_t i = 0; i < numel_of(e); i++)
            CHECK_NEAR(data[i], value(e, i), 0);
        fsdp_tensor_unref(whole);
    }
}

/* ---- by rows ---- */

static void check_rows(fsdp_context *context, fsdp_mesh *mesh, layout how, bool over_replicas)
{
    const fsdp_sharded_state_options options = {.offload_to_cpu = true, .over_replicas = over_replicas};
    int last = fsdp_mesh_ndim(mesh) - 1;
    fsdp_state_dict *state = make_state(context, mesh, how, 1), *rows;

    CHECK_OK(fsdp_state_dict_shard_rows(state, &options, &rows));
    check_values(rows);
    for (int e = 0; e < ENTRIES - 1; e++) {
        const fsdp_distribution *d = fsdp_tensor_distribution(rows->entries[e].tensor);
        bool cut = (how != WHOLE || over_replicas) && fsdp_mesh_size(mesh, last) > 1;
        bool others = over_replicas && (how == WHOLE || fsdp_mesh_size(mesh, last) == 1);

        CHECK(fsdp_tensor_device(rows->entries[e].tensor) == fsdp_cpu(context));
        CHECK(!rows->entries[e].flat);
        if (cut)
            CHECK(d->placements[last].kind == FSDP_SHARD && d->placements[last].dim == 0);
        if (last == 1)
            CHECK_EQ(d->placements[0].kind, others ? FSDP_SHARD : FSDP_REPLICATE);
        if (how == ROWS && test_on_cpu() && !others) /* the same tensor */
            CHECK(rows->entries[e].tensor == state->entries[e].tensor);
    }
    CHECK_NULL(fsdp_tensor_distribution(rows->entries[ENTRIES - 1].tensor));
    fsdp_state_dict_free(rows);
    fsdp_state_dict_free(state);
}

/* ---- from any parts to any parts ---- */

static void check_move(fsdp_context *context, fsdp_mesh *from, layout was, fsdp_mesh *to, layout becomes)
{
    const fsdp_full_state_options parts = {.from_parts = true};
    fsdp_state_dict *old = make_state(context, from, was, 1), *new = make_state(context, to, becomes, 0);

    CHECK_OK(fsdp_state_dict_load_full(new, old, &parts));
    check_values(new);
    fsdp_state_dict_free(new);
    fsdp_state_dict_free(old);
}

static void check_first(fsdp_context *context, fsdp_mesh *mesh, layout how)
{
    const fsdp_full_state_options options = {.rank0_only = true};
    int last = fsdp_mesh_ndim(mesh) - 1;
    bool first = how == WHOLE || fsdp_mesh_coordinate(mesh, last) == 0;
    fsdp_state_dict *state = make_state(context, mesh, how, 1), *whole;

    CHECK_OK(fsdp_state_dict_gather(state, &options, &whole));
    CHECK_EQ(whole->count, first ? ENTRIES : 0);
    if (first)
        check_values(whole);
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(state);
}

static void check_all(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"replicate", "shard"};
    int64_t world = fsdp_context_world_size(context), replicas = *(int *)arg, shape[] = {replicas, world / replicas};
    fsdp_mesh *meshes[2];

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &meshes[0]));
    CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &meshes[1]));
    for (int m = 0; m < 2; m++)
        for (int how = 0; how < LAYOUTS; how++) {
            check_rows(context, meshes[m], (layout)how, false);
            check_rows(context, meshes[m], (layout)how, true);
            check_first(context, meshes[m], (layout)how);
            check_move(context, NULL, PLAIN, meshes[m], (layout)how);
            check_move(context, meshes[m], (layout)how, NULL, PLAIN);
            for (int n = 0; n < 2 * LAYOUTS; n++)
                check_move(context, meshes[m], (layout)how, meshes[n % 2], (layout)(n / 2));
        }
    fsdp_mesh_unref(meshes[0]);
    fsdp_mesh_unref(meshes[1]);
    test_drop_workspace(context);
}

TEST(parts_of_any_layout_become_parts_of_any_other)
{
    static const int worlds[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {4, 4}};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        if (!test_brief() || worlds[w][0] != 2)
            test_run_ranks(worlds[w][0], check_all, (void *)&worlds[w][1]);
}

/* ---- refused ---- */

WORLDS_TEST(what_cannot_be_loaded_is_said_on_all_ranks, 2, 3)
{
    const fsdp_full_state_options parts = {.from_parts = true},
                                  both = {.from_parts = true, .broadcast_from_rank0 = true};
    int64_t world = fsdp_context_world_size(context);
    fsdp_state_dict *rows, *flat, *fewer, *out;
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    rows = make_state(context, mesh, ROWS, 1);
    flat = make_state(context, mesh, FLAT, 0);
    CHECK_OK(fsdp_state_dict_create(&fewer));
    CHECK_STATUS(fsdp_state_dict_shard_rows(NULL, NULL, &out), FSDP_INVALID);
    CHECK_STATUS(fsdp_state_dict_load_full(flat, rows, NULL), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "from a part of it: gather the state dict first");
    CHECK_STATUS(fsdp_state_dict_load_full(flat, rows, &both), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "contradict each other");
    CHECK_STATUS(fsdp_state_dict_load_full(flat, fewer, &parts), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "does not have it");
    /* One rank has other names: an error on all, and no hang. */
    if (fsdp_context_rank(context) == 1)
        CHECK_OK(fsdp_state_dict_add(rows, "more", rows->entries[0].tensor));
    CHECK_STATUS(fsdp_state_dict_shard_rows(rows, NULL, &out), FSDP_MISMATCH);
    CHECK_NULL(out);
    fsdp_state_dict_free(fewer);
    fsdp_state_dict_free(flat);
    fsdp_state_dict_free(rows);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

/* ---- a rank that does not come ---- */

RANKS_TEST(a_rank_that_does_something_else_is_an_error, 3)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_state_dict *state, *out = NULL;
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    state = make_state(context, mesh, FLAT, 1);
    if (fsdp_context_rank(context) != 1)
        CHECK(fsdp_state_dict_shard_rows(state, NULL, &out) != FSDP_OK);
    else
        CHECK(fsdp_barrier(fsdp_world(context)) != FSDP_OK);
    CHECK_NULL(out);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}
