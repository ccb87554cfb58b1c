/* read.c - reads tensors of files into parts of tensors, a window at a time. */
#include "hub/read.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "tensor/tensor.h"

enum {
    WORD_BYTES = 8 /* at the start of a message: whether the leader could read it */
};

fsdp_status fsdp__hub_reader_init(fsdp__hub_reader *reader, fsdp_weights *files, fsdp_process_group *group)
{
    *reader = (fsdp__hub_reader){.files = files, .group = group};
    reader->window = fsdp__malloc(FSDP__READ_WINDOW_BYTES + WORD_BYTES);
    reader->other = reader->window ? fsdp__malloc(FSDP__READ_WINDOW_BYTES + WORD_BYTES) : NULL;
    return reader->other ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read weights");
}

void fsdp__hub_reader_release(fsdp__hub_reader *reader)
{
    FSDP__FREE_ALL(reader->window, reader->other);
    *reader = (fsdp__hub_reader){.files = NULL};
}

static bool leads(const fsdp__hub_reader *reader)
{
    return !reader->group || fsdp_process_group_rank(reader->group) == 0;
}

/* ---- this rank's part, from its first element to its last ---- */

typedef struct part {
    fsdp__hub_reader *reader;
    const fsdp_state_dict_entry *entry;
    const fsdp_weights_entry *source;
    int64_t capacity;       /* elements in a window */
    int64_t written;        /* of the part */
    int64_t filled;         /* after `written`, in reader->window */
    int64_t first, arrived; /* with a leader: the elements of the whole tensor that are in reader->other */
} part;

static part part_of(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry, const fsdp_weights_entry *source)
{
    return (part){.reader = reader,
                  .entry = entry,
                  .source = source,
                  .capacity = (int64_t)(FSDP__READ_WINDOW_BYTES / fsdp_dtype_size(source->dtype))};
}

static fsdp_status flush(part *p)
{
    const fsdp_tensor *tensor = p->entry->tensor;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;

    if (p->filled == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(tensor->storage, tensor->dtype, FSDP_SHAPE(p->filled), NULL,
                                      tensor->offset + p->written, &view));
    p->written += p->filled;
    p->filled = 0;
    return fsdp_tensor_write(view, p->source->dtype, p->reader->window);
}

/* Returns whether this rank's part is empty; other ranks write the rows. */
static bool is_empty(const part *p)
{
    return fsdp_tensor_numel(p->entry->tensor) == 0;
}

/* ---- each rank for itself ---- */

static fsdp_status read_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    part *p = arg;
    size_t size = fsdp_dtype_size(p->source->dtype);

    (void)local; /* runs are contiguous */
    for (int64_t done = 0; done < numel;) {
        int64_t count = FSDP__MIN(numel - done, p->capacity - p->filled);

        FSDP_TRY(fsdp_weights_read(p->reader->files, p->source, global + done, count,
                                   p->reader->window + (size_t)p->filled * size));
        p->filled += count;
        done += count;
        if (p->filled == p->capacity)
            FSDP_TRY(flush(p));
    }
    return FSDP_OK;
}

/* ---- by a leader ---- */

/* Copies the elements of a run that are in the message. */
static fsdp_status take_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    part *p = arg;
    size_t size = fsdp_dtype_size(p->source->dtype);
    int64_t begin = FSDP__MAX(global, p->first), end = FSDP__MIN(global + numel, p->first + p->arrived);

    (void)local;
    while (begin < end) {
        int64_t count = FSDP__MIN(end - begin, p->capacity - p->filled);

        memcpy(p->reader->window + (size_t)p->filled * size,
               p->reader->other + WORD_BYTES + (size_t)(begin - p->first) * size, (size_t)count * size);
        p->filled += count;
        begin += count;
        if (p->filled == p->capacity)
            FSDP_TRY(flush(p));
    }
    return FSDP_OK;
}

/* Sends elements [first, first + arrived) of the tensor from the leader's file to the memory of all ranks. If the
 * leader could not read them, it tells the others, which are in the same collective. [collective] */
static fsdp_status receive(part *p)
{
    fsdp__hub_reader *reader = p->reader;
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(reader->group)));
    size_t bytes = (size_t)p->arrived * fsdp_dtype_size(p->source->dtype);
    fsdp_status status = FSDP_OK;
    char *failed = reader->other;

    reader->ended = true;
    if (leads(reader)) {
        status = fsdp_weights_read(reader->files, p->source, p->first, p->arrived, reader->other + WORD_BYTES);
        *failed = status != FSDP_OK;
    }
    FSDP_TRY(fsdp_broadcast(reader->group, reader->other, (int64_t)(bytes + WORD_BYTES), FSDP_U8, 0, stream));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    reader->ended = *failed;
    return status;
}

/* [collective] */
static fsdp_status read_by_leader(part *p)
{
    int64_t numel = fsdp__shape_numel(p->source->ndim, p->source->shape);
    fsdp_status status = FSDP_OK;

    for (p->first = 0; p->first < numel && !p->reader->ended; p->first += p->arrived) {
        p->arrived = FSDP__MIN(numel - p->first, p->capacity);
        FSDP_KEEP_FIRST(status, receive(p));
        if (status == FSDP_OK && !p->reader->ended && !is_empty(p))
            status = fsdp_state_dict_entry_runs(p->entry, take_run, p);
    }
    return status;
}

fsdp_status fsdp__hub_read_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                const fsdp_weights_entry *source)
{
    part p = part_of(reader, entry, source);
    fsdp_status status = FSDP_OK;

    if (reader->group)
        status = read_by_leader(&p);
    else if (!is_empty(&p))
        status = fsdp_state_dict_entry_runs(entry, read_run, &p);
    if (status == FSDP_OK && !reader->ended)
        status = is_empty(&p) ? fsdp_tensor_begin_write(entry->tensor) : flush(&p);
    return status;
}

/* ---- two tensors that should be equal ---- */

typedef struct pair {
    fsdp__hub_reader *reader;
    const fsdp_weights_entry *a, *b;
    bool same;
} pair;

static fsdp_status compare_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    pair *p = arg;
    size_t size = fsdp_dtype_size(p->a->dtype);

    (void)local;
    for (int64_t done = 0, count; done < numel && p->same; done += count) {
        count = FSDP__MIN(numel - done, (int64_t)(FSDP__READ_WINDOW_BYTES / size));
        FSDP_TRY(fsdp_weights_read(p->reader->files, p->a, global + done, count, p->reader->window));
        FSDP_TRY(fsdp_weights_read(p->reader->files, p->b, global + done, count, p->reader->other));
        p->same = memcmp(p->reader->window, p->reader->other, (size_t)count * size) == 0;
    }
    return FSDP_OK;
}

fsdp_status fsdp__hub_compare_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                   const fsdp_weights_entry *a, const fsdp_weights_entry *b, bool *out_same)
{
    pair p = {.reader = reader, .a = a, .b = b, .same = true};
    fsdp_status status = FSDP_OK;

    if (!reader->group)
        status = fsdp_state_dict_entry_runs(entry, compare_run, &p);
    else if (leads(reader))
        status = compare_run(&p, 0, 0, fsdp__shape_numel(a->ndim, a->shape));
    *out_same = p.same;
    return status;
}
