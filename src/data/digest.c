/* digest.c - computes digests of tokens and of items, in order. */
#include "data/digest.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "data/batch_maker.h"
#include "data/fields.h"
#include "data/tokens.h"

enum {
    READ_TOKENS = 8192,
    CERTAIN_S = 2 /* file times may be this coarse, or this far from the machine's clock */
};

/* ---- tokens ---- */

static fsdp_status add_tokens(fsdp__digest *digest, const fsdp_tokens *tokens, int64_t first, int64_t count,
                              const _Atomic bool *stop)
{
    int32_t read[READ_TOKENS];

    while (count > 0) {
        int64_t part = FSDP__MIN(count, (int64_t)READ_TOKENS);

        if (stop && atomic_load_explicit(stop, memory_order_relaxed))
            return FSDP_FAIL(FSDP_INTERRUPTED, "stopped reading the data");
        FSDP_TRY(fsdp_tokens_read(tokens, first, part, read));
        fsdp__digest_add(digest, read, (size_t)part * sizeof *read);
        first += part;
        count -= part;
    }
    return FSDP_OK;
}

fsdp_status fsdp__tokens_digest(const fsdp_tokens *tokens, int64_t first, int64_t count, const _Atomic bool *stop,
                                uint64_t out[2])
{
    FSDP__SCOPED(fsdp__digest_free_at) fsdp__digest *digest = fsdp__digest_create();

    FSDP__TRY_NEW(digest);
    FSDP_TRY(add_tokens(digest, tokens, first, count, stop));
    fsdp__digest_bits(digest, out);
    return FSDP_OK;
}

fsdp_status fsdp_tokens_digest(const fsdp_tokens *tokens, uint64_t out[2])
{
    if (!tokens || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot hash tokens: they and a place for the hash are required");
    return fsdp__tokens_digest(tokens, 0, fsdp_tokens_count(tokens), NULL, out);
}

/* ---- files ---- */

/* Adds what changes along with a file's content. Its times must be older than CERTAIN_S, or a change after this look
 * might not show. The device is left out: the same file has another device number on another machine, or after a
 * reboot. */
static bool add_file(fsdp__digest *digest, const fsdp__token_file *file, int64_t now_s)
{
    struct stat info;
    int64_t facts[7];

    if (stat(file->path, &info) != 0 || (uint64_t)info.st_dev != file->map.device ||
        (uint64_t)info.st_ino != file->map.inode || (size_t)info.st_size != file->map.bytes ||
        info.st_ctim.tv_sec > now_s - CERTAIN_S)
        return false;
    facts[0] = (int64_t)info.st_ino;
    facts[1] = (int64_t)info.st_size;
    facts[2] = info.st_mtim.tv_sec;
    facts[3] = info.st_mtim.tv_nsec;
    facts[4] = info.st_ctim.tv_sec;
    facts[5] = info.st_ctim.tv_nsec;
    facts[6] = file->width; /* the same file may be read in another width */
    fsdp__digest_add(digest, facts, sizeof facts);
    return true;
}

uint64_t fsdp__tokens_identity(const fsdp_tokens *tokens)
{
    int64_t now_s = (int64_t)time(NULL);
    FSDP__SCOPED(fsdp__digest_free_at) fsdp__digest *digest = fsdp__digest_create();
    uint64_t hash[2];

    if (!digest)
        return 0;
    for (int64_t i = 0; i < tokens->file_count; i++)
        if (!add_file(digest, &tokens->files[i], now_s))
            return 0;
    fsdp__digest_bits(digest, hash);
    return hash[0];
}

/* ---- data sets ---- */

static void add_fields(fsdp__digest *digest, const fsdp_dataset *dataset, int64_t length)
{
    fsdp__digest_add(digest, &length, sizeof length);
    for (int f = 0; f < dataset->field_count; f++) {
        const fsdp_data_field *field = &dataset->fields[f];
        int64_t facts[] = {field->dtype, field->ndim};

        fsdp__digest_add(digest, field->name, strlen(field->name) + 1);
        fsdp__digest_add(digest, facts, sizeof facts);
        fsdp__digest_add(digest, field->shape, (size_t)field->ndim * sizeof *field->shape);
    }
}

/* Adds the items to the hash. `places` is memory for one item. */
static fsdp_status add_items(fsdp__digest *digest, const fsdp_dataset *dataset, int64_t length, void *const *places)
{
    for (int64_t i = 0; i < length; i++) {
        FSDP_TRY(fsdp__item_make(dataset, i, places));
        for (int f = 0; f < dataset->field_count; f++)
            fsdp__digest_add(digest, places[f], fsdp__field_bytes(&dataset->fields[f]));
    }
    return FSDP_OK;
}

/* Allocates memory for an item, separately for each field. */
static fsdp_status make_places(const fsdp_dataset *dataset, void **places)
{
    for (int f = 0; f < dataset->field_count; f++)
        FSDP__TRY_NEW(places[f] = fsdp__calloc(fsdp__field_bytes(&dataset->fields[f]) + 1, 1));
    return FSDP_OK;
}

fsdp_status fsdp_dataset_digest(const fsdp_dataset *dataset, uint64_t out[2])
{
    FSDP__SCOPED(fsdp__digest_free_at) fsdp__digest *digest = NULL;
    FSDP__FREED void **places = NULL;
    int64_t length;
    fsdp_status status;

    if (!dataset || !out || !dataset->length || !dataset->item)
        return FSDP_FAIL(FSDP_INVALID, "cannot hash a data set: one with two functions, and a place for the hash, are "
                                       "required");
    FSDP_TRY(fsdp__fields_check(dataset->fields, dataset->field_count));
    length = dataset->length(dataset->arg);
    FSDP__TRY_NEW(digest = fsdp__digest_create());
    FSDP__TRY_NEW(places = fsdp__calloc((size_t)dataset->field_count, sizeof *places));
    status = make_places(dataset, places);
    if (status == FSDP_OK) {
        add_fields(digest, dataset, length);
        status = add_items(digest, dataset, length, places);
    }
    if (status == FSDP_OK)
        fsdp__digest_bits(digest, out);
    for (int f = 0; f < dataset->field_count; f++)
        fsdp__free(places[f]);
    return status;
}
