/* The chunk rule, boxes, and what hangs on a tensor. */
#include "fsdp/dist.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

TEST(the_chunk_rule_gives_every_row_to_one_rank)
{
    static const int worlds[] = {1, 2, 3, 4, 7, 8, 64};

    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        for (int64_t n = 0; n <= 130; n++) {
            int64_t chunk = (n + worlds[w] - 1) / worlds[w], next = 0;

            for (int rank = 0; rank < worlds[w]; rank++) {
                int64_t start = -1, length = fsdp_shard_range(n, worlds[w], rank, &start);

                CHECK_EQ(start, next);
                CHECK(length >= 0 && length <= chunk);
                CHECK(length == chunk || start + length == n);
                CHECK(length > 0 || start == n);
                next = start + length;
            }
            CHECK_EQ(next, n);
        }
}

TEST(trailing_ranks_may_hold_little_or_nothing)
{
    static const struct {
        int64_t n, world, lengths[4];
    } cases[] = {{6, 4, {2, 2, 2, 0}}, {1, 4, {1, 0, 0, 0}}, {5, 4, {2, 2, 1, 0}}, {7, 3, {3, 3, 1}}, {0, 2, {0, 0}}};
    int64_t start;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int64_t rank = 0; rank < cases[i].world; rank++)
            CHECK_EQ(fsdp_shard_range(cases[i].n, cases[i].world, rank, &start), cases[i].lengths[rank]);
    /* No product overflows. */
    CHECK_EQ(fsdp_shard_range(INT64_MAX, 3, 2, &start), INT64_MAX - 2 * (INT64_MAX / 3 + 1));
    CHECK_EQ(start, 2 * (INT64_MAX / 3 + 1));
    CHECK_EQ(fsdp_shard_range(3, INT64_MAX, INT64_MAX - 1, &start), 0);
    CHECK_EQ(fsdp_shard_range(INT64_MIN, 3, 2, &start), 0);
    CHECK_EQ(fsdp_shard_range(3, 2, INT64_MIN, &start), 0);
    CHECK_EQ(fsdp_shard_range(3, 0, 0, &start), 0);
    CHECK_EQ(start, 3);
}

RANKS_TEST(boxes_cover_the_tensor_as_often_as_it_is_replicated, 8)
{
    static const char *const names[] = {"a", "b", "c"};
    static const int64_t mesh_shape[] = {2, 2, 2};
    unsigned random = 1;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 3, mesh_shape, names, &mesh));
    for (int round = 0; round < 200; round++) {
        fsdp_distribution d = {.mesh = mesh, .placement_count = 3, .ndim = 2};
        int held[8][7] = {{0}}, copies = 1;

        for (int i = 0; i < 2; i++)
            d.global_shape[i] = (random = random * 1664525u + 1013904223u) >> 8 & 7;
        for (int i = 0; i < 3; i++) {
            unsigned draw = (random = random * 1664525u + 1013904223u) >> 16 & 3;

            d.placements[i] = draw < 2 ? (fsdp_placement){.kind = FSDP_SHARD, .dim = (int)draw}
                                       : (fsdp_placement){.kind = FSDP_REPLICATE};
            copies *= draw < 2 ? 1 : 2;
        }
        for (int r = 0; r < 8; r++) {
            int64_t offset[2], size[2];

            fsdp_distribution_box(&d, (const int[]){r / 4, r / 2 % 2, r % 2}, offset, size);
            for (int64_t i = 0; i < size[0]; i++)
                for (int64_t j = 0; j < size[1]; j++)
                    held[offset[0] + i][offset[1] + j]++;
            for (int i = 0; i < 2; i++)
                CHECK(offset[i] >= 0 && size[i] >= 0 && offset[i] + size[i] <= d.global_shape[i]);
        }
        for (int64_t i = 0; i < d.global_shape[0]; i++)
            for (int64_t j = 0; j < d.global_shape[1]; j++)
                CHECK_EQ(held[i][j], copies);
    }
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(a_distribution_must_fit_and_is_kept_with_its_mesh, 3)
{
    int rank = fsdp_context_rank(context);
    int64_t shape[2] = {rank < 2 ? 2 : 1, 3}, offset[2], size[2];
    fsdp_tensor *tensor = NULL, *view = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_distribution d = {.placement_count = 1, .ndim = 2, .global_shape = {5, 3}};

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){3}, NULL, &mesh));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shape, FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_NULL(fsdp_tensor_distribution(tensor));
    fsdp_tensor_box(tensor, offset, size);
    CHECK_EQ(offset[0], 0);
    CHECK_EQ(size[0], shape[0]);
    d.mesh = mesh;
    d.placements[0] = (fsdp_placement){.kind = FSDP_SHARD, .dim = 0};
    CHECK_OK(fsdp_tensor_set_distribution(tensor, &d));
    fsdp_mesh_unref(mesh); /* the tensor holds it */
    fsdp_tensor_box(tensor, offset, size);
    CHECK_EQ(offset[0], 2 * rank);
    CHECK_EQ(size[0], shape[0]);
    CHECK_EQ(offset[1], 0);
    CHECK_EQ(size[1], 3);
    CHECK_EQ(fsdp_tensor_distribution(tensor)->global_shape[0], 5);
    CHECK(fsdp_tensor_distribution(tensor)->mesh == mesh);
    CHECK_OK(fsdp_tensor_set_distribution(tensor, fsdp_tensor_distribution(tensor))); /* itself */
    CHECK_OK(fsdp__tensor_alias(tensor, &view));
    CHECK_NULL(fsdp_tensor_distribution(view));

    d.global_shape[0] = 20;
    CHECK_ERROR(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID, "this rank's piece has shape (");
    d.global_shape[0] = 5;
    d.ndim = 1;
    CHECK_STATUS(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID);
    d.ndim = 2;
    d.placement_count = 2;
    CHECK_ERROR(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID, "2 placements for a mesh of 1");
    d.placement_count = 1;
    d.placements[0].dim = 2;
    CHECK_ERROR(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID, "cannot shard dimension 2");
    d.placements[0] = (fsdp_placement){.kind = (fsdp_placement_kind)7};
    CHECK_STATUS(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID);
    d.placements[0] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = (fsdp_reduce_op)9};
    CHECK_STATUS(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID);
    CHECK_EQ(fsdp_tensor_distribution(tensor)->placements[0].kind, FSDP_SHARD);
    fsdp_tensor_unref(view);
    fsdp_tensor_unref(tensor);
}
