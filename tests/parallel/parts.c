#include "parallel/parts.h"

#include <math.h>

#include "support/test.h"

fsdp_mesh *team_mesh(fsdp_context *context)
{
    fsdp_mesh *mesh;

    CHECK_OK(
        fsdp_mesh_create(context, FSDP_SHAPE(fsdp_context_world_size(context)), (const char *const[]){"tp"}, &mesh));
    return mesh;
}

void check_alike(const char *name, int64_t at, float got, float wanted)
{
    if (!(fabsf(got - wanted) <= 2e-5f + 2e-4f * fabsf(wanted)))
        TEST_FAIL("%s: element %lld is %g, and %g on one rank", name, (long long)at, (double)got, (double)wanted);
}

static void check_piece(const char *name, const fsdp_piece *p, int64_t cols, int64_t whole_cols, const float *got,
                        const float *whole)
{
    for (int64_t r = 0; r < p->size[0]; r++)
        for (int64_t c = 0; c < p->size[1]; c++) {
            int64_t at = (p->offset[0] + r) * whole_cols + p->offset[1] + c;

            check_alike(name, at, got[(p->local_offset[0] + r) * cols + p->local_offset[1] + c], whole[at]);
        }
}

void check_part(const char *name, const fsdp_tensor *tensor, const float *got, const float *whole)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    bool matrix = fsdp_tensor_ndim(tensor) > 1;
    int64_t cols = matrix ? fsdp_tensor_size(tensor, 1) : 1;
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    int count = fsdp_tensor_pieces(tensor, pieces);

    CHECK(fsdp_tensor_ndim(tensor) <= 2);
    for (int i = 0; i < count; i++) {
        if (!matrix) {
            pieces[i].size[1] = 1;
            pieces[i].offset[1] = pieces[i].local_offset[1] = 0;
        }
        check_piece(name, &pieces[i], cols, !matrix ? 1 : d ? d->global_shape[1] : cols, got, whole);
    }
}
