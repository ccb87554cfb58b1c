/* load_section.c - loads a section of a checkpoint into the tensors of a state dict, whichever ranks hold which parts
 * of them. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "dist/dist.h"
#include "fsdp/state.h"
#include "state/check.h"
#include "state/entry.h"
#include "tensor/tensor.h"

/* ---- what two parts share ----
 *
 * Elements that are consecutive in the whole tensor, and all belong to a part, are consecutive in the part, too. */

/* Describes what one side has of a tensor: a box, or a run of a flat vector (offset[0], size[0]). */
typedef struct extent {
    bool flat;
    const int64_t *offset, *size;
} extent;

/* Gets a run of elements that are contiguous on both sides: the position of its first element in each, row-major. */
typedef fsdp_status (*overlap_run)(void *arg, int64_t in_a, int64_t in_b, int64_t numel);

typedef struct walk {
    int ndim;
    const int64_t *shape;
    const extent *a, *b;
    int64_t first, end; /* runs are limited to these elements of the whole tensor */
    overlap_run run;
    void *arg;
} walk;

/* Returns where an element of the whole tensor lies in a part that contains it. */
static int64_t place_in(const walk *w, const extent *part, int64_t global)
{
    int64_t place = 0, stride = 1;

    if (part->flat)
        return global - part->offset[0];
    for (int d = w->ndim - 1; d >= 0; d--) {
        place += (global % w->shape[d] - part->offset[d]) * stride;
        stride *= part->size[d];
        global /= w->shape[d];
    }
    return place;
}

static fsdp_status run_cut(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const walk *w = arg;
    int64_t first = FSDP__MAX(global, w->first), end = FSDP__MIN(global + numel, w->end);

    (void)local;
    if (first >= end)
        return FSDP_OK;
    return w->run(w->arg, place_in(w, w->a, first), place_in(w, w->b, first), end - first);
}

/* Calls `run` for each run of elements that two parts share, in the order of both. Stops at the first failure and
 * returns it. */
static fsdp_status overlap_runs(int ndim, const int64_t *shape, const extent *a, const extent *b, overlap_run run,
                                void *arg)
{
    walk w = {.ndim = ndim, .shape = shape, .a = a, .b = b, .end = INT64_MAX, .run = run, .arg = arg};
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    const extent *box = a->flat ? b : a, *flat = a->flat ? a : b;

    if (!a->flat && !b->flat)
        return fsdp_box_intersect(ndim, a->offset, a->size, b->offset, b->size, offset, size)
                   ? fsdp_box_runs(ndim, shape, offset, size, run_cut, &w)
                   : FSDP_OK;
    w.first = flat->offset[0];
    w.end = w.first + flat->size[0];
    if (box->flat)
        return run_cut(&w, box->offset[0], 0, box->size[0]);
    return fsdp_box_runs(ndim, shape, box->offset, box->size, run_cut, &w);
}

/* ---- the load ---- */

enum {
    CHUNK_BYTES = 1 << 22 /* bytes that are collected before they are written to a tensor */
};

/* A load in progress. */
typedef struct loader {
    fsdp_checkpoint_reader *reader;
    const char *section;
    const fsdp_state_dict *state;
    bool partial;
    fsdp_state_dict_keys *keys; /* NULL: nobody wants them */
    const fsdp_checkpoint_tensor **sources;
    bool *used; /* per tensor of the checkpoint */
    unsigned char *chunk;
} loader;

static fsdp_status out_of_memory(const loader *l)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot load '%s'", l->reader->path);
}

/* ---- what only one of the two has ---- */

static fsdp_status fail_different(const loader *l, fsdp__names *missing, fsdp__names *unexpected)
{
    const char *many = missing->count > 1 ? "s" : "";

    if (unexpected->count == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s' of '%s': it has no tensor%s %s", l->section, l->reader->path,
                         many, fsdp__names_text(missing));
    if (missing->count == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s' of '%s': tensor%s %s belong%s to nothing that is loaded",
                         l->section, l->reader->path, unexpected->count > 1 ? "s" : "", fsdp__names_text(unexpected),
                         unexpected->count > 1 ? "" : "s");
    return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s' of '%s': it has no tensor%s %s, but %s, which belong%s to nothing",
                     l->section, l->reader->path, many, fsdp__names_text(missing), fsdp__names_text(unexpected),
                     unexpected->count > 1 ? "" : "s");
}

/* ---- what fits what ---- */

static fsdp_status check_source(const loader *l, const fsdp_state_dict_entry *entry,
                                const fsdp_checkpoint_tensor *source)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(entry->tensor);

    if (source->ndim != entry->ndim ||
        memcmp(source->shape, entry->global_shape, (size_t)entry->ndim * sizeof *source->shape) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s.%s' has shape %s, but %s is needed",
                         l->reader->path, l->section, FSDP__SHOWN_NAME(source->name), FSDP__SHAPE_OF(source),
                         FSDP__SHOWN_SHAPE(entry->ndim, entry->global_shape));
    if (source->dtype != dtype && !(fsdp_dtype_is_floating(source->dtype) && fsdp_dtype_is_floating(dtype)))
        return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': tensor '%s.%s' is %s, but %s is needed", l->reader->path,
                         l->section, FSDP__SHOWN_NAME(source->name), fsdp_dtype_name(source->dtype),
                         fsdp_dtype_name(dtype));
    return FSDP_OK;
}

static fsdp_status check_bytes(const loader *l)
{
    if (fsdp__state_dict_check_values(l->state, "load into") == FSDP_OK &&
        fsdp__state_dict_check_current(l->state, "load into") == FSDP_OK)
        return FSDP_OK;
    return fsdp_fail_prefix(FSDP_STATE, "'%s'", l->reader->path);
}

static fsdp_status match_entry(loader *l, int64_t index, fsdp__names *missing)
{
    const fsdp_state_dict_entry *entry = &l->state->entries[index];
    const fsdp_checkpoint_tensor *source = fsdp_checkpoint_tensor_find(l->reader, l->section, entry->name);

    if (!source) {
        fsdp__names_add(missing, FSDP__SHOWN_NAME(entry->name));
        return l->keys ? fsdp__state_dict_keys_add(&l->keys->missing, &l->keys->missing_count, entry->name) : FSDP_OK;
    }
    l->sources[index] = source;
    l->used[source - l->reader->manifest.tensors] = true;
    return check_source(l, entry, source);
}

static fsdp_status match(loader *l)
{
    fsdp__names missing = {.count = 0}, unexpected = {.count = 0};

    FSDP_TRY(check_bytes(l));
    for (int64_t i = 0; i < l->state->count; i++)
        FSDP_TRY(match_entry(l, i, &missing));
    for (int64_t i = 0; i < l->reader->manifest.tensor_count; i++) {
        const fsdp_checkpoint_tensor *tensor = &l->reader->manifest.tensors[i];

        if (l->used[i] || strcmp(tensor->section, l->section) != 0)
            continue;
        fsdp__names_add(&unexpected, FSDP__SHOWN_NAME(tensor->name));
        if (l->keys)
            FSDP_TRY(fsdp__state_dict_keys_add(&l->keys->unexpected, &l->keys->unexpected_count, tensor->name));
    }
    if (!l->partial && missing.count + unexpected.count > 0)
        return fail_different(l, &missing, &unexpected);
    return FSDP_OK;
}

/* ---- bytes ---- */

/* Elements of one local tensor, which are collected as long as they are consecutive. */
typedef struct filling {
    loader *l;
    fsdp_tensor *tensor;
    fsdp_dtype dtype; /* of the file */
    const fsdp_checkpoint_part *part;
    fsdp__piece_place place; /* of the box that is filled */
    int64_t first, count;    /* the elements in the chunk, by their place in the tensor */
} filling;

static fsdp_status flush(filling *f)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;

    if (f->count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(f->tensor->storage, f->tensor->dtype, FSDP_SHAPE(f->count), NULL,
                                      f->tensor->offset + f->first, &view));
    f->count = 0;
    return fsdp_tensor_write(view, f->dtype, f->l->chunk);
}

/* Takes a run. Where boxes lie beside each other in the tensor, it ends with a row of its box at the latest. */
static fsdp_status fill_run(void *arg, int64_t in_part, int64_t in_box, int64_t numel)
{
    filling *f = arg;
    int64_t size = (int64_t)fsdp_dtype_size(f->dtype), room = CHUNK_BYTES / size;
    int64_t in_own = in_box / f->place.inner * f->place.stride + f->place.first + in_box % f->place.inner;

    while (numel > 0) {
        int64_t some;

        if (f->count == room || f->first + f->count != in_own)
            FSDP_TRY(flush(f));
        if (f->count == 0)
            f->first = in_own;
        some = FSDP__MIN(numel, room - f->count);
        FSDP_TRY(fsdp__reader_copy(f->l->reader, f->part->rank, f->part->begin + (uint64_t)(in_part * size),
                                   (size_t)(some * size), f->l->chunk + f->count * size));
        f->count += some;
        in_part += some;
        in_own += some;
        numel -= some;
    }
    return FSDP_OK;
}

/* Fills one box of an entry. */
static fsdp_status load_piece(filling *f, const fsdp_state_dict_entry *entry, int k,
                              const fsdp_checkpoint_tensor *source)
{
    extent own = {.flat = entry->flat, .offset = entry->pieces[k].offset, .size = entry->pieces[k].size};

    f->place = fsdp__piece_place_of(entry->pieces, entry->piece_count, entry->flat ? 1 : entry->ndim, k);
    for (int64_t i = 0; i < source->part_count; i++) {
        extent part = {.flat = source->parts[i].flat, .offset = source->parts[i].offset, .size = source->parts[i].size};

        f->part = &source->parts[i];
        FSDP_TRY(overlap_runs(source->ndim, source->shape, &part, &own, fill_run, f));
    }
    return FSDP_OK;
}

static fsdp_status load_entry(loader *l, const fsdp_state_dict_entry *entry, const fsdp_checkpoint_tensor *source)
{
    filling f = {.l = l, .tensor = entry->tensor, .dtype = source->dtype};

    if (fsdp_tensor_numel(entry->tensor) == 0) /* other ranks write their rows of it */
        return fsdp_tensor_begin_write(entry->tensor);
    for (int k = 0; k < entry->piece_count; k++)
        FSDP_TRY(load_piece(&f, entry, k, source));
    return flush(&f);
}

/* ---- all of it ---- */

static fsdp_status check_section(const loader *l)
{
    fsdp__names names = {.count = 0};

    if (fsdp_checkpoint_has_section(l->reader, l->section))
        return FSDP_OK;
    for (int64_t i = 0; i < l->reader->manifest.section_count; i++)
        fsdp__names_add(&names, l->reader->manifest.sections[i]);
    return FSDP_FAIL(FSDP_NOT_FOUND, "cannot load '%s': it has no section '%s'%s%s", l->reader->path, l->section,
                     names.count ? ", but " : "", fsdp__names_text(&names));
}

static fsdp_status load(loader *l)
{
    FSDP_TRY(check_section(l));
    l->sources = fsdp__calloc((size_t)l->state->count, sizeof *l->sources);
    l->used = fsdp__calloc((size_t)l->reader->manifest.tensor_count, sizeof *l->used);
    l->chunk = fsdp__malloc(CHUNK_BYTES);
    if (!l->sources || !l->used || !l->chunk)
        return out_of_memory(l);
    FSDP_TRY(match(l)); /* check all of it before the first write */
    for (int64_t i = 0; i < l->state->count; i++)
        if (l->sources[i])
            FSDP_TRY(fsdp__entry_ask_to_write(&l->state->entries[i]));
    for (int64_t i = 0; i < l->state->count; i++)
        if (l->sources[i])
            FSDP_TRY(load_entry(l, &l->state->entries[i], l->sources[i]));
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_load(fsdp_checkpoint_reader *reader, const char *section, fsdp_state_dict *state,
                                 const fsdp_checkpoint_load_options *options)
{
    loader l = {.reader = reader, .section = section, .state = state};
    fsdp_status status;

    if (!reader || !section || !state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a checkpoint: reader, section and state are required");
    l.partial = options && options->partial;
    l.keys = options ? options->keys : NULL;
    if (l.keys)
        *l.keys = (fsdp_state_dict_keys){.missing_count = 0};
    status = load(&l);
    FSDP__FREE_ALL(l.chunk, l.used, l.sources);
    return status;
}

/* ---- a run of elements ---- */

typedef struct run_reader {
    fsdp_checkpoint_reader *reader;
    const fsdp_checkpoint_part *part;
    size_t size;
    unsigned char *out;
} run_reader;

static fsdp_status read_run(void *arg, int64_t in_part, int64_t in_run, int64_t numel)
{
    const run_reader *r = arg;

    return fsdp__reader_copy(r->reader, r->part->rank, r->part->begin + (uint64_t)in_part * r->size,
                             (size_t)numel * r->size, r->out + (size_t)in_run * r->size);
}

fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *reader, const fsdp_checkpoint_tensor *tensor, int64_t first,
                                 int64_t numel, void *out)
{
    extent run = {.flat = true, .offset = &first, .size = &numel};
    run_reader r = {.reader = reader, .out = out};
    int64_t total;

    if (!reader || !tensor || (!out && numel > 0))
        return FSDP_FAIL(FSDP_INVALID, "cannot read from a checkpoint: reader, tensor and a place are required");
    total = fsdp__shape_numel(tensor->ndim, tensor->shape);
    if (first < 0 || numel < 0 || first > total || numel > total - first)
        return FSDP_FAIL(FSDP_INVALID, "cannot read %lld elements from %lld on: tensor '%s.%s' has %lld",
                         (long long)numel, (long long)first, tensor->section, FSDP__SHOWN_NAME(tensor->name),
                         (long long)total);
    r.size = fsdp_dtype_size(tensor->dtype);
    for (int64_t i = 0; i < tensor->part_count; i++) {
        extent part = {.flat = tensor->parts[i].flat, .offset = tensor->parts[i].offset, .size = tensor->parts[i].size};

        r.part = &tensor->parts[i];
        FSDP_TRY(overlap_runs(tensor->ndim, tensor->shape, &part, &run, read_run, &r));
    }
    return FSDP_OK;
}
