/* same_config.c - whether all ranks have the same config. Ranks that one process started got theirs from it; others may
 * have read another file, or have been given another command line, and would train something that nobody asked for, or
 * wait for each other. Each writes what must be the same as facts; all compare all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "fsdp/format.h"
#include "train/config.h"
#include "train/facts.h"
#include "train/run.h"

enum {
    SAMPLE_BYTES = 64 /* of each tensor of the model */
};

/* ---- what must be the same ---- */

static void write_keys(const fsdp_train_config *config, FILE *out)
{
    for (int i = 0; i < fsdp__train_keys.count; i++)
        fsdp__facts_of_key(config, &fsdp__train_keys.keys[i], out);
}

/* Names, types and shapes of the tensors that will be loaded, and how each begins: what a rank has of them must fit
 * what its peers have, and another checkpoint of the same model would be mixed with it. */
static void write_weights(const char *key, const char *folder, FILE *out)
{
    fsdp_weights *file = NULL;
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    if (fsdp_weights_open(folder, &file) != FSDP_OK) { /* loading them will say it, where all have this line */
        fprintf(out, "what %s holds\t%s\n", key, fsdp_last_error());
        return;
    }
    for (int64_t i = 0; i < fsdp_weights_count(file); i++) {
        const fsdp_weights_entry *entry = fsdp_weights_at(file, i);
        int64_t numel = (int64_t)(FSDP__MIN(entry->bytes, (size_t)SAMPLE_BYTES) / fsdp_dtype_size(entry->dtype));
        char begin[SAMPLE_BYTES] = {0};

        hash = fsdp__hash_bytes(hash, entry->name, strlen(entry->name) + 1);
        hash = fsdp__hash_bytes(hash, &entry->dtype, sizeof entry->dtype);
        hash = fsdp__hash_bytes(hash, entry->shape, (size_t)entry->ndim * sizeof *entry->shape);
        if (fsdp_weights_read(file, entry, 0, numel, begin) == FSDP_OK)
            hash = fsdp__hash_bytes(hash, begin, (size_t)numel * fsdp_dtype_size(entry->dtype));
    }
    fprintf(out, "what %s holds\t%lld tensors (%016llx)\n", key, (long long)fsdp_weights_count(file),
            (unsigned long long)hash);
    fsdp_weights_close(file);
}

/* Its manifest has checksums of all that it holds. */
static void write_checkpoint(const char *key, const char *path, FILE *out)
{
    char *name = fsdp__path_join(path, FSDP__MANIFEST_NAME), *text = NULL;
    size_t bytes = 0;

    if (name && fsdp__file_read(name, SIZE_MAX, &text, &bytes) == FSDP_OK)
        fprintf(out, "what %s holds\ta checkpoint (%016llx)\n", key,
                (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes));
    else
        fprintf(out, "what %s holds\t%s\n", key, fsdp_last_error());
    fsdp__free(text);
    fsdp__free(name);
}

static void write_first_weights(const fsdp_train_run *run, FILE *out)
{
    const fsdp_train_config *c = run->config;

    if (run->resume.path)
        write_checkpoint("checkpoint.folder", run->resume.path, out);
    else if (run->initial.path)
        (run->initial.is_checkpoint ? write_checkpoint : write_weights)("checkpoint.initial_load_path",
                                                                        run->initial.path, out);
    else if (c->model.path && c->model.pretrained != 0)
        write_weights("model.path", c->model.path, out);
}

static void write_model(const fsdp_train_run *run, FILE *out)
{
    const fsdp_model_config *m = &run->model_config;

    fsdp__facts_of_model(m, out);
    fprintf(out, "the model's dropout\t%.9g %.9g\nthe model's init_std\t%.9g\n", (double)m->embd_dropout,
            (double)m->dropout, (double)m->init_std);
    write_first_weights(run, out);
}

/* free() it; NULL and a last error when out of memory. */
static char *facts_of(const fsdp_train_run *run, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);

    if (out) {
        write_keys(run->config, out);
        write_model(run, out);
        fsdp__facts_of_data(run->tokens, "data.path", out);
        if (run->validation.own)
            fsdp__facts_of_data(run->validation.own, "validation.path", out);
        fprintf(out, "the step to go on from\t%lld\n", (long long)run->step);
    }
    if (out && fclose(out) == 0 && text)
        return text;
    (void)FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    free(text);
    return NULL;
}

/* ---- the comparison ---- */

static fsdp_status compare(void *const *facts, const size_t *bytes, int ranks)
{
    char text[FSDP__FACTS_TEXT];

    for (int rank = 1; rank < ranks; rank++)
        if (fsdp__facts_differ(facts[0], bytes[0], facts[rank], bytes[rank], text))
            return FSDP_FAIL(FSDP_INVALID, "ranks 0 and %d have different configs: %s: start all with the same", rank,
                             text);
    return FSDP_OK;
}

fsdp_status fsdp__same_config(const fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);
    fsdp_process_group *world;
    void **all = NULL;
    size_t *sizes = NULL, bytes = 0;
    char *facts;
    fsdp_status status;

    if (ranks == 1)
        return FSDP_OK;
    world = fsdp_world(run->context);
    if (!world)
        return fsdp_last_status();
    facts = facts_of(run, &bytes);
    if (!facts)
        return FSDP_NO_MEMORY;
    status = fsdp_gather_objects(world, facts, bytes, &all, &sizes);
    free(facts);
    FSDP_TRY(status);
    status = compare(all, sizes, ranks);
    fsdp_objects_free(world, all, sizes);
    return status;
}
