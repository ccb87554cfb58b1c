/* Entries: which box is whose, and who writes it. */
#include "fsdp/state.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

static const char *const names[] = {"x", "y"};

static fsdp_tensor *make(fsdp_context *context, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, ndim, shape, FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_tensor_fill_(tensor, 1));
    return tensor;
}

/* Adds a (5, 3) tensor under `placements`. */
static const fsdp_state_dict_entry *add(fsdp_state_dict *state, fsdp_mesh *mesh, const char *name,
                                        const fsdp_placement *placements)
{
    fsdp_tensor *whole = make(fsdp_mesh_context(mesh), 2, (const int64_t[]){5, 3}), *piece = NULL;
    const fsdp_state_dict_entry *entry;

    CHECK_OK(fsdp_distribute_tensor(whole, mesh, placements, &piece));
    CHECK_OK(fsdp_state_dict_add(state, name, piece));
    entry = fsdp_state_dict_find(state, name);
    CHECK_PTR(entry);
    CHECK(entry->tensor == piece); /* an alias, not a copy */
    CHECK_EQ(entry->ndim, 2);
    CHECK_EQ(entry->global_shape[0], 5);
    CHECK_EQ(entry->global_shape[1], 3);
    fsdp_tensor_unref(whole);
    fsdp_tensor_unref(piece);
    return entry;
}

/* `mesh` is 2 x 2, `row` this rank's second dimension of it, `flat` all four. */
static void check_distributed(fsdp_state_dict *state, fsdp_mesh *mesh, fsdp_mesh *row, fsdp_mesh *flat, int rank)
{
    const fsdp_placement r = {.kind = FSDP_REPLICATE}, s = {.kind = FSDP_SHARD};
    int x = rank / 2, y = rank % 2;
    const fsdp_state_dict_entry *entry;

    entry = add(state, mesh, "replicated", (const fsdp_placement[]){r, r});
    CHECK(entry->replicated);
    CHECK_EQ(entry->writer, rank == 0);

    entry = add(state, mesh, "hybrid", (const fsdp_placement[]){r, s});
    CHECK(!entry->replicated);
    CHECK_EQ(entry->writer, x == 0);
    CHECK_EQ(entry->offset[0], 3 * y);
    CHECK_EQ(entry->size[0], y == 0 ? 3 : 2);

    entry = add(state, mesh, "strided", (const fsdp_placement[]){s, r});
    CHECK_EQ(entry->writer, y == 0);
    CHECK_EQ(entry->offset[0], 3 * x);

    entry = add(state, flat, "rows", &s); /* 2, 2, 1 and 0 rows */
    CHECK(!entry->replicated);
    CHECK_EQ(entry->writer, rank < 3);
    CHECK_EQ(entry->offset[0], rank < 3 ? 2 * rank : 5);
    CHECK_EQ(entry->size[0], rank < 2 ? 2 : rank == 2 ? 1 : 0);

    entry = add(state, row, "slice", &r); /* each part of the world has its own */
    CHECK(!entry->replicated);
    CHECK_EQ(entry->writer, y == 0);
}

RANKS_TEST(every_box_has_one_writer, 4)
{
    int rank = fsdp_context_rank(context);
    fsdp_mesh *mesh = NULL, *part = NULL, *flat = NULL;
    const fsdp_state_dict_entry *entry;
    fsdp_tensor *plain = make(context, 1, (const int64_t[]){4});
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, names, &mesh));
    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){4}, NULL, &flat));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, names + 1, &part));
    CHECK_OK(fsdp_state_dict_create(&state));

    check_distributed(state, mesh, part, flat, rank);
    CHECK_OK(fsdp_state_dict_add(state, "plain", plain));
    entry = fsdp_state_dict_find(state, "plain");
    CHECK(entry->replicated);
    CHECK_EQ(entry->writer, rank == 0);
    CHECK_EQ(entry->size[0], 4);
    CHECK_EQ(entry->offset[0], 0);

    CHECK_EQ(state->count, 6);
    CHECK_STRING(state->entries[0].name, "replicated");
    CHECK_STRING(state->entries[5].name, "plain");
    CHECK_NULL(fsdp_state_dict_find(state, "none"));
    fsdp_state_dict_free(state);
    fsdp_tensor_unref(plain);
    fsdp_mesh_unref(part);
    fsdp_mesh_unref(flat);
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(a_world_of_one_writes_everything, 1)
{
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = NULL;
    const fsdp_state_dict_entry *entry;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){1}, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    entry = add(state, mesh, "rows", &(fsdp_placement){.kind = FSDP_SHARD});
    CHECK(entry->replicated);
    CHECK(entry->writer);
    CHECK_EQ(entry->size[0], 5);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

CONTEXT_TEST(bad_entries_are_refused)
{
    fsdp_tensor *tensor = make(context, 2, (const int64_t[]){2, 3}), *turned = NULL, *partial = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *list = NULL;
    fsdp_distribution d = {.placement_count = 1, .ndim = 2, .global_shape = {2, 3}};

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){1}, NULL, &mesh));
    CHECK_OK(fsdp__view_transpose(tensor, 0, 1, &turned));
    CHECK_OK(fsdp__tensor_alias(tensor, &partial));
    d.mesh = mesh;
    d.placements[0] = (fsdp_placement){.kind = FSDP_PARTIAL};
    CHECK_OK(fsdp_tensor_set_distribution(partial, &d));
    CHECK_OK(fsdp_state_dict_create(&list));
    CHECK_NULL(fsdp_state_dict_find(list, "a"));
    CHECK_OK(fsdp_state_dict_add(list, "a", tensor));
    CHECK_ERROR(fsdp_state_dict_add(list, "a", tensor), FSDP_INVALID, "'a' to a state: the name is taken");
    CHECK_ERROR(fsdp_state_dict_add(list, "b", turned), FSDP_INVALID, "'b' to a state: it is not contiguous");
    CHECK_ERROR(fsdp_state_dict_add(list, "c", partial), FSDP_INVALID, "'c' to a state: its value is partial");
    CHECK_STATUS(fsdp_state_dict_add(list, NULL, tensor), FSDP_INVALID);
    CHECK_NULL(fsdp_state_dict_find(list, NULL));
    CHECK_NULL(fsdp_state_dict_find(NULL, "a"));
    CHECK_STATUS(fsdp_state_dict_create(NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_state_dict_gather(list, NULL, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_state_dict_shard_rows(list, NULL, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_state_dict_of_type(list, NULL, &list), FSDP_INVALID);
    CHECK_STATUS(fsdp_state_dict_of_type(NULL, &(fsdp_state_dict_config){0}, &list), FSDP_INVALID);
    CHECK_EQ(list->count, 1);
    fsdp_state_dict_free(list);
    fsdp_state_dict_free(NULL);
    fsdp_tensor_unref(partial);
    fsdp_tensor_unref(turned);
    fsdp_tensor_unref(tensor);
    fsdp_mesh_unref(mesh);
}

CONTEXT_TEST(thousands_of_names_are_found)
{
    fsdp_tensor *tensor = make(context, 1, (const int64_t[]){1});
    fsdp_state_dict *list = NULL;
    char name[32];

    CHECK_OK(fsdp_state_dict_create(&list));
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "layers.%d.weight", i);
        CHECK_OK(fsdp_state_dict_add(list, name, tensor));
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "layers.%d.weight", i);
        CHECK(fsdp_state_dict_find(list, name) == &list->entries[i]);
    }
    CHECK_NULL(fsdp_state_dict_find(list, "layers.5000.weight"));
    fsdp_state_dict_free(list);
    fsdp_tensor_unref(tensor);
}

CONTEXT_TEST(adding_survives_every_failed_allocation)
{
    fsdp_tensor *tensor = make(context, 1, (const int64_t[]){3});

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_state_dict *list = NULL;
        fsdp_status status = fsdp_state_dict_create(&list);

        for (int i = 0; i < 100 && status == FSDP_OK; i++) {
            char name[16];

            snprintf(name, sizeof name, "p%d", i);
            status = fsdp_state_dict_add(list, name, tensor);
            if (status != FSDP_OK) { /* as if it had not been tried */
                CHECK_EQ(list->count, i);
                CHECK_NULL(fsdp_state_dict_find(list, name));
            }
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_state_dict_free(list);
    }
    fsdp_tensor_unref(tensor);
}
