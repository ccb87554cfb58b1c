/* Any bytes as the manifest of a checkpoint, with and without a digest that fits: what is taken for one is whole, and
 * its text is read as the same again. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_check.h"
#include "tensor/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_whole(const fsdp__manifest *m)
{
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const fsdp_checkpoint_tensor *tensor = &m->tensors[i];
        uint64_t covered = 0;

        for (int64_t k = 0; k < tensor->part_count; k++)
            covered += tensor->parts[k].bytes / fsdp_dtype_size(tensor->dtype);
        if (covered != (uint64_t)fsdp__shape_numel(tensor->ndim, tensor->shape))
            abort();
    }
    for (int64_t i = 0; i < m->small_count; i++)
        if (strchr(m->small[i].name, '/'))
            abort();
}

static void check_again(const fsdp__manifest *m)
{
    fsdp__manifest again;
    char *first = NULL, *second = NULL;

    if (fsdp__manifest_text(m, &first) != FSDP_OK ||
        fsdp__manifest_parse("manifest.json", first, strlen(first), &again) != FSDP_OK)
        abort();
    if (fsdp__manifest_text(&again, &second) != FSDP_OK || strcmp(first, second) != 0)
        abort();
    fsdp__manifest_release(&again);
    fsdp__free(second);
    fsdp__free(first);
}

static void parse(const void *data, size_t bytes)
{
    fsdp__manifest m;

    if (fsdp__manifest_parse("manifest.json", data, bytes, &m) == FSDP_OK &&
        fsdp__manifest_check("manifest.json", &m) == FSDP_OK) {
        check_whole(&m);
        check_again(&m);
    }
    fsdp__manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *fitting = malloc(bytes + FSDP__DIGEST_BYTES + 1);

    parse(data, bytes);
    /* The corpus has texts without their ends, so that mutations get past the digest. */
    memcpy(fitting, data, bytes);
    fsdp__digest_text(fsdp__checksum(data, bytes), fitting + bytes);
    parse(fitting, bytes + FSDP__DIGEST_BYTES);
    free(fitting);
    return 0;
}
