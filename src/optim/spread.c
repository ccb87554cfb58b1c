/* spread.c - how a parameter is spread over ranks. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "comm/group_calls.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

int fsdp__optimizer_whole_shape(const fsdp_tensor *tensor, const int64_t **shape)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    *shape = distribution ? distribution->global_shape : tensor->shape;
    return distribution ? distribution->ndim : tensor->ndim;
}

bool fsdp__spread_equal(const fsdp__spread *a, const fsdp__spread *b)
{
    return a->device == b->device && a->sharded == b->sharded &&
           (a->mesh == b->mesh || fsdp_mesh_equal(a->mesh, b->mesh));
}

fsdp_status fsdp__spread_of(const char *name, const fsdp_tensor *tensor, const char *what, fsdp__spread *out)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    *out = (fsdp__spread){.device = fsdp_tensor_device(tensor)};
    for (int i = 0; distribution && i < distribution->placement_count; i++) {
        if (distribution->placements[i].kind == FSDP_PARTIAL)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot %s '%s': it is partial over mesh dimension '%s'", what, name,
                             fsdp_mesh_dim_name(distribution->mesh, i));
        if (distribution->placements[i].kind != FSDP_REPLICATE)
            out->sharded |= 1u << i;
    }
    if (out->sharded)
        out->mesh = distribution->mesh;
    return FSDP_OK;
}

void fsdp__step_label_add(fsdp__step_label *label, const fsdp__optimizer_param *param)
{
    if (label->count++ == 0) {
        label->first = param->name;
        label->hash = FSDP__HASH_OF_NOTHING;
    }
    label->hash = fsdp__hash_bytes(label->hash, param->name, strlen(param->name) + 1);
}

void fsdp__step_label_set(const fsdp__step_label *label, fsdp_process_group *group)
{
    char text[FSDP__LABEL_BYTES + 64], name[24];
    size_t length = strlen(label->first);

    /* The end of a name says more than its beginning. */
    snprintf(name, sizeof name, "%s", label->first + (length < sizeof name ? 0 : length - sizeof name + 1));
    snprintf(text, sizeof text, "%lld gradients %08x from %s", (long long)label->count, (unsigned)label->hash, name);
    fsdp__process_group_set_label(group, text);
}
