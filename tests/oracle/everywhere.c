/* everywhere.c - all that a case of a kernel goes through: every table against the oracle; the list of the kernel's
 * buffers (device/kernel_buffers.c) against what the kernel does; the call on a device of its own, moved there by that
 * list. */
#include "oracle/trial.h"

#include "device/kernel_buffers.h"

enum {
    MOST_LISTED = 64,
    POISON = 0xFF /* NaN in every floating dtype */
};

typedef struct listed {
    fsdp__buffer buffers[MOST_LISTED];
    int count;
} listed;

static void *note_buffer(void *arg, const fsdp__buffer *found)
{
    listed *l = arg;

    CHECK(l->count < MOST_LISTED);
    l->buffers[l->count++] = *found;
    return (void *)(uintptr_t)found->pointer;
}

/* What the list says of each byte of a buffer: fsdp__access, or 0. free() it. */
static unsigned char *access_map(const listed *l, const buffer *b)
{
    uintptr_t first = (uintptr_t)data_of(b), end = first + bytes_of(b);
    unsigned char *map = calloc(bytes_of(b) + 1, 1);

    CHECK(map != NULL);
    for (int i = 0; i < l->count; i++) {
        uintptr_t at = (uintptr_t)l->buffers[i].pointer;

        for (size_t k = 0; at >= first && at < end && k < l->buffers[i].bytes; k++)
            map[at - first + k] |= (unsigned char)l->buffers[i].access;
    }
    return map;
}

/* Every listed buffer lies in one of the case's. */
static void check_places(const test_case *c, const listed *l)
{
    for (int i = 0; i < l->count; i++) {
        const unsigned char *first = l->buffers[i].pointer, *end = first + l->buffers[i].bytes;
        bool inside = false;

        for (int b = 0; b < c->count; b++) {
            const unsigned char *data = data_of(&c->buffers[b]);
            inside = inside || (first >= data && end <= data + bytes_of(&c->buffers[b]));
        }
        if (!inside)
            TEST_FAIL("%s %s: '%s' of %zu bytes goes past its buffer", fsdp__kernel_infos[c->kernel].name, c->text,
                      l->buffers[i].name, l->buffers[i].bytes);
    }
}

/* The arguments with a table of their own, which a walk may write to; own_args_free them. */
typedef struct own_args {
    fsdp__kernel_args args;
    void *table;
} own_args;

static own_args own_args_of(fsdp__kernel kernel, const void *args)
{
    own_args own;
    const void *table;
    size_t bytes = fsdp__kernel_table(kernel, args, &table);

    memcpy(&own.args, args, fsdp__kernel_infos[kernel].args_bytes);
    own.table = malloc(bytes + 1);
    CHECK(own.table != NULL);
    if (bytes > 0) {
        memcpy(own.table, table, bytes);
        fsdp__kernel_set_table(kernel, &own.args, own.table);
    }
    return own;
}

static void own_args_free(own_args *own)
{
    free(own->table);
}

/* Buffer b after a run in which bytes not listed as read began as POISON. */
static void check_bytes(const test_case *c, int b, const unsigned char *map)
{
    const buffer *seen = &c->buffers[b];
    const unsigned char *data = data_of(seen), *expected = seen->first + GUARD, *initial = seen->initial + GUARD;

    for (size_t i = 0; i < bytes_of(seen); i++) {
        unsigned char before = map[i] & FSDP__READS ? initial[i] : POISON;
        bool left_alone = data[i] == before && expected[i] == initial[i];

        if (!(map[i] & FSDP__WRITES) && data[i] != before)
            TEST_FAIL("%s %s: wrote byte %zu of buffer %d, which is not listed", fsdp__kernel_infos[c->kernel].name,
                      c->text, i, b);
        if (map[i] & FSDP__WRITES && data[i] != expected[i] && !left_alone)
            TEST_FAIL("%s %s: byte %zu of buffer %d depends on bytes that are not listed as read",
                      fsdp__kernel_infos[c->kernel].name, c->text, i, b);
    }
}

/* The kernel runs again with every byte changed that it is not said to read: the result must not know, and what it is
 * not said to write must be as it was. */
static void check_list(test_case *c, fsdp__kernel_function function, const void *args)
{
    unsigned char *maps[FSDP__COUNT_OF(c->buffers)];
    own_args own = own_args_of(c->kernel, args);
    listed l = {.count = 0};

    fsdp__kernel_buffers(c->kernel, &own.args, note_buffer, &l);
    own_args_free(&own);
    check_places(c, &l);
    for (int b = 0; b < c->count; b++) {
        unsigned char *data = data_of(&c->buffers[b]);

        maps[b] = access_map(&l, &c->buffers[b]);
        memcpy(c->buffers[b].block, c->buffers[b].initial, bytes_of(&c->buffers[b]) + 2 * GUARD);
        for (size_t i = 0; i < bytes_of(&c->buffers[b]); i++)
            if (!(maps[b][i] & FSDP__READS))
                data[i] = POISON;
    }
    if (function(c->stream, args) != FSDP_OK)
        TEST_FAIL("%s %s: %s", fsdp__kernel_infos[c->kernel].name, c->text, fsdp_last_error());
    for (int b = 0; b < c->count; b++) {
        check_bytes(c, b, maps[b]);
        free(maps[b]);
    }
}

/* ---- on another device ---- */

/* The case's buffers there, with their guards. */
typedef struct moved {
    const test_case *c;
    unsigned char *blocks[FSDP__COUNT_OF(((test_case *)0)->buffers)];
} moved;

static void *move_there(void *arg, const fsdp__buffer *found)
{
    const moved *m = arg;

    for (int b = 0; b < m->c->count; b++) {
        uintptr_t at = (uintptr_t)found->pointer, first = (uintptr_t)data_of(&m->c->buffers[b]);
        if (at >= first && at < first + bytes_of(&m->c->buffers[b]))
            return m->blocks[b] + GUARD + (at - first);
    }
    TEST_FAIL("%s: '%s' is no buffer of the case", m->c->text, found->name);
}

static void launch_elsewhere(test_case *c, const oracle_table *table, const void *args)
{
    own_args own = own_args_of(c->kernel, args);
    fsdp_stream *stream = fsdp_device_stream(table->device);
    moved m = {.c = c};

    for (int b = 0; b < c->count; b++) {
        size_t bytes = bytes_of(&c->buffers[b]) + 2 * GUARD, shift = c->buffers[b].shift;

        CHECK_OK(fsdp__device_alloc(table->device, bytes + shift, FSDP_MEMORY_ACTIVATION, (void **)&m.blocks[b]));
        m.blocks[b] += shift;
        CHECK_OK(fsdp__copy_to_device(stream, m.blocks[b], c->buffers[b].initial, bytes));
    }
    fsdp__kernel_buffers(c->kernel, &own.args, move_there, &m);
    if (fsdp__launch(stream, c->kernel, &own.args) != FSDP_OK)
        TEST_FAIL("%s %s (%s): %s", fsdp__kernel_infos[c->kernel].name, c->text, table->name, fsdp_last_error());
    for (int b = 0; b < c->count; b++)
        CHECK_OK(fsdp__copy_to_host(stream, c->buffers[b].block, m.blocks[b], bytes_of(&c->buffers[b]) + 2 * GUARD));
    if (fsdp_stream_synchronize(stream) != FSDP_OK)
        TEST_FAIL("%s %s (%s): %s", fsdp__kernel_infos[c->kernel].name, c->text, table->name, fsdp_last_error());
    for (int b = 0; b < c->count; b++) {
        size_t bytes = bytes_of(&c->buffers[b]) + 2 * GUARD, shift = c->buffers[b].shift;

        fsdp__device_free(table->device, m.blocks[b] - shift, bytes + shift, FSDP_MEMORY_ACTIVATION);
    }
    own_args_free(&own);
}

static void check_elsewhere(test_case *c, const oracle_table *table, const void *args)
{
    launch_elsewhere(c, table, args);
    if (table->own_bits) {
        compare_all(c, table->name);
        keep_first(c);
        launch_elsewhere(c, table, args);
    }
    check_bits(c, table->name, table->own_bits || !table->own_functions);
}

/* ---- all of it ---- */

void check_everywhere(test_case *c, const void *args)
{
    for (int i = 0; i < c->table_count; i++) {
        const oracle_table *table = &c->tables[i];

        if (table->device)
            check_elsewhere(c, table, args);
        else
            check_table(c, table, args);
        if (table->lists)
            check_list(c, table->kernels[c->kernel], args);
    }
    free_case(c);
}
