/* compare_ranks.c - writes parameters as text, and compares texts among ranks. */
#include "shard/group/compare_ranks.h"

#include <string.h>

#include "base/hash.h"
#include "comm/group_calls.h"
#include "dist/dist.h"

void fsdp__write_parameters(FILE *text, const fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        const fsdp_distribution *d = fsdp_tensor_distribution(p->sharded);
        char name[256];

        fprintf(text, "parameter %s: %s %s", fsdp__param_text(p, name, sizeof name), fsdp_dtype_name(p->orig_dtype),
                FSDP__SHOWN_SHAPE(d ? d->ndim : p->sharded->ndim, d ? d->global_shape : p->sharded->shape));
        if (p->dim > 0)
            fprintf(text, ", sharded in dimension %d", p->dim);
        if (p->parallel)
            fprintf(text, ", over %s as %s%s before", FSDP__MESH(p->parallel->mesh),
                    FSDP__PLACEMENTS(p->parallel->placements, p->parallel->placement_count),
                    fsdp__param_is_contributed(p) ? " with partial gradients" : "");
        fprintf(text, "%s%s\n", fsdp_tensor_requires_grad(p->sharded) ? "" : ", frozen",
                fsdp_device_is_meta(fsdp_tensor_device(p->sharded)) ? ", on meta" : "");
    }
}

static int line_length(const char *text)
{
    return (int)strcspn(text, "\n");
}

static fsdp_status fail_different(const char *first, const char *other, int first_rank, int other_rank)
{
    while (*first && *other && line_length(first) == line_length(other) &&
           memcmp(first, other, (size_t)line_length(first)) == 0) {
        first += line_length(first) + 1;
        other += line_length(other) + 1;
    }
    return FSDP_FAIL(FSDP_MISMATCH,
                     "ranks do not have the same parameters and options: rank %d has %.*s, and rank %d has %.*s; all "
                     "must have the same, in one order",
                     first_rank, *first ? line_length(first) : 7, *first ? first : "no more", other_rank,
                     *other ? line_length(other) : 7, *other ? other : "no more");
}

static fsdp_status find_difference(fsdp_process_group *pg, const char *text)
{
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};

    FSDP_TRY(fsdp__gather(pg, text, strlen(text) + 1, &all));
    for (int r = 1; r < fsdp_process_group_size(pg); r++)
        if (strcmp(all.objects[0], all.objects[r]) != 0)
            return fail_different(all.objects[0], all.objects[r], fsdp_process_group_global_rank(pg, 0),
                                  fsdp_process_group_global_rank(pg, r));
    return FSDP_OK;
}

/* Compares hashes first: texts of many ranks and parameters are long, and alike unless there is a mistake. */
static fsdp_status compare(fsdp_process_group *pg, const char *text)
{
    enum {
        BITS = 64
    };
    uint64_t hash = text ? fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, strlen(text)) : 0;
    uint8_t said[2 * BITS + 1]; /* some rank has this bit 0; has it 1; has no text */
    bool differ = false;

    for (int i = 0; i < BITS; i++) {
        said[i] = (hash >> i & 1) == 0;
        said[BITS + i] = (hash >> i & 1) != 0;
    }
    said[2 * BITS] = !text;
    FSDP_TRY(fsdp__process_group_any(pg, &(fsdp__any){.flags = said, .count = sizeof said}));
    for (int i = 0; i < BITS; i++)
        differ = differ || (said[i] && said[BITS + i]);
    return differ && !said[2 * BITS] ? find_difference(pg, text) : FSDP_OK;
}

fsdp_status fsdp__compare_texts(const fsdp__mesh_info *mesh, const char *text)
{
    fsdp_status status = FSDP_OK;

    if (mesh->ranks > 1)
        status = compare(mesh->shard_pg, text);
    if (mesh->replicas > 1) /* in any case: other shard groups may have found nothing */
        FSDP_KEEP_FIRST(status, compare(mesh->replicate_pg, text));
    for (int i = 0; i < mesh->parallel_count; i++)
        FSDP_KEEP_FIRST(status, compare(mesh->parallel_pgs[i], text));
    return status;
}
