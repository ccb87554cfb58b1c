/* event_file.c - writes event files. A record is the length of its data, a checksum of that, the data, which is a
 * message of event.proto, and a checksum of it; numbers are little-endian. Numbers are written as `simple_value`, and
 * histograms without a plug-in's name, as old versions did: all readers take these. */
#include "format/event_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/host.h"
#include "format/event.pb-c.h"

enum {
    SESSION_START = 1,
    DTYPE_STRING = 7,
    NAME_BYTES = 160,
    HEAD_BYTES = sizeof(uint64_t) + sizeof(uint32_t), /* before a record's data, and a checksum behind it */
    ATTEMPTS = 1000
};

struct fsdp__event_file {
    char *path;
    int fd;
    uint64_t bytes; /* written so far */
};

/* ---- records ---- */

/* Computes CRC-32C, bit by bit: there are a few hundred bytes in a step. */
static uint32_t crc32c(const unsigned char *data, size_t bytes)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* Returns the checksum as the format hides it, so that a checksum of checksums is no special value. */
static uint32_t masked(const unsigned char *data, size_t bytes)
{
    uint32_t crc = crc32c(data, bytes);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put(unsigned char *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static fsdp_status write_record(fsdp__event_file *file, Fsdp__Event__Event *event)
{
    size_t bytes, all;
    FSDP__FREED unsigned char *record = NULL;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    event->has_wall_time = true;
    event->wall_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    bytes = fsdp__event__event__get_packed_size(event);
    all = HEAD_BYTES + bytes + sizeof(uint32_t);
    FSDP__TRY_NEW(record = fsdp__malloc(all));
    put(record, bytes, sizeof(uint64_t));
    put(record + sizeof(uint64_t), masked(record, sizeof(uint64_t)), sizeof(uint32_t));
    fsdp__event__event__pack(event, record + HEAD_BYTES);
    put(record + HEAD_BYTES + bytes, masked(record + HEAD_BYTES, bytes), sizeof(uint32_t));
    FSDP_TRY(fsdp__file_pwrite(file->fd, file->path, record, all, file->bytes));
    file->bytes += all;
    return FSDP_OK;
}

/* ---- a file ---- */

static fsdp_status write_beginning(fsdp__event_file *file, int64_t first_step)
{
    Fsdp__Event__SessionLog start = {PROTOBUF_C_MESSAGE_INIT(&fsdp__event__session_log__descriptor), true,
                                     SESSION_START};
    Fsdp__Event__Event version, session;
    char text[] = "brain.Event:2";

    fsdp__event__event__init(&version);
    version.file_version = text;
    FSDP_TRY(write_record(file, &version));
    fsdp__event__event__init(&session);
    session.has_step = true;
    session.step = first_step;
    session.session_log = &start;
    return write_record(file, &session);
}

/* Makes a file that is not there yet. TensorBoard reads files in the order of their names, so these begin with the
 * time. */
static fsdp_status make_file(fsdp__event_file *file, const fsdp__directory *folder)
{
    char name[NAME_BYTES];

    for (int attempt = 0; attempt < ATTEMPTS && file->fd < 0; attempt++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)time(NULL), FSDP__HOST_NAME,
                 (long)getpid(), attempt);
        if (faccessat(folder->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
            FSDP_TRY(fsdp__directory_create(folder, name, &file->fd));
    }
    if (file->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot make an event file in '%s': '%s' is taken", folder->path, name);
    file->path = fsdp__path_join(folder->path, name);
    return file->path ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__event_file_create(const fsdp__directory *folder, int64_t first_step, fsdp__event_file **out)
{
    fsdp__event_file *file = fsdp__calloc(1, sizeof *file);
    fsdp_status status;

    *out = NULL;
    FSDP__TRY_NEW(file);
    file->fd = -1;
    status = make_file(file, folder);
    if (status == FSDP_OK)
        status = write_beginning(file, first_step);
    if (status == FSDP_OK)
        *out = file;
    else
        FSDP_KEEP_FIRST(status, fsdp__event_file_close(file));
    return status;
}

fsdp_status fsdp__event_file_close(fsdp__event_file *file)
{
    fsdp_status status = FSDP_OK;

    if (!file)
        return FSDP_OK;
    if (file->fd >= 0)
        status = fsdp__file_close(file->fd, file->path ? file->path : "an event file");
    FSDP__FREE_ALL(file->path, file);
    return status;
}

/* ---- values ---- */

/* Holds a value and all that it points at. */
typedef struct message {
    Fsdp__Event__Value value;
    Fsdp__Event__Histogram histogram;
    Fsdp__Event__Tensor tensor;
    Fsdp__Event__Shape shape;
    Fsdp__Event__Dimension dimension, *dimensions;
    Fsdp__Event__Metadata metadata;
    Fsdp__Event__Plugin plugin;
    ProtobufCBinaryData text;
    char plugin_name[sizeof "text"];
} message;

static void set_histogram(message *m, const fsdp__event_histogram *from)
{
    Fsdp__Event__Histogram *to = &m->histogram;

    fsdp__event__histogram__init(to);
    to->has_min = to->has_max = to->has_num = to->has_sum = to->has_sum_squares = true;
    to->min = from->min;
    to->max = from->max;
    to->num = from->count;
    to->sum = from->sum;
    to->sum_squares = from->sum_squares;
    to->n_bucket_limit = to->n_bucket = from->bucket_count;
    to->bucket_limit = (double *)from->limits; /* only read */
    to->bucket = (double *)from->buckets;
    m->value.histo = to;
}

/* A text is a tensor of one string, which names the plug-in that shows it. */
static void set_text(message *m, const char *text)
{
    fsdp__event__tensor__init(&m->tensor);
    fsdp__event__shape__init(&m->shape);
    fsdp__event__dimension__init(&m->dimension);
    fsdp__event__metadata__init(&m->metadata);
    fsdp__event__plugin__init(&m->plugin);
    m->dimension.has_size = true;
    m->dimension.size = 1;
    m->dimensions = &m->dimension;
    m->shape.n_dim = 1;
    m->shape.dim = &m->dimensions;
    m->text = (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
    m->tensor.has_dtype = true;
    m->tensor.dtype = DTYPE_STRING;
    m->tensor.shape = &m->shape;
    m->tensor.n_string_val = 1;
    m->tensor.string_val = &m->text;
    snprintf(m->plugin_name, sizeof m->plugin_name, "text");
    m->plugin.name = m->plugin_name;
    m->metadata.plugin = &m->plugin;
    m->value.tensor = &m->tensor;
    m->value.metadata = &m->metadata;
}

static void set_value(message *m, const fsdp__event_value *from)
{
    fsdp__event__value__init(&m->value);
    m->value.tag = (char *)from->tag;
    if (from->text) {
        set_text(m, from->text);
    } else if (from->histogram) {
        set_histogram(m, from->histogram);
    } else {
        m->value.has_simple_value = true;
        m->value.simple_value = (float)from->number;
    }
}

fsdp_status fsdp__event_file_add(fsdp__event_file *file, int64_t step, const fsdp__event_value *values, size_t count)
{
    Fsdp__Event__Summary summary;
    Fsdp__Event__Event event;
    FSDP__FREED message *messages = fsdp__calloc(count + 1, sizeof *messages);
    FSDP__FREED Fsdp__Event__Value **pointers = fsdp__calloc(count + 1, sizeof *pointers);

    FSDP__TRY_NEW(messages);
    FSDP__TRY_NEW(pointers);
    for (size_t i = 0; i < count; i++) {
        set_value(&messages[i], &values[i]);
        pointers[i] = &messages[i].value;
    }
    fsdp__event__summary__init(&summary);
    summary.n_value = count;
    summary.value = pointers;
    fsdp__event__event__init(&event);
    event.has_step = true;
    event.step = step;
    event.summary = &summary;
    return write_record(file, &event);
}
