/* event_reader.c - records, checksums by a table, and messages field by field. */
#include "format/event_reader.h"

#include <dirent.h>

typedef struct bytes {
    const unsigned char *at, *end;
} bytes;

static uint32_t masked_checksum(const unsigned char *data, size_t count)
{
    uint32_t table[256], crc = UINT32_MAX;

    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82f63b78 : table[i] >> 1;
    }
    for (size_t i = 0; i < count; i++)
        crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    crc ^= UINT32_MAX;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* ---- the wire ---- */

static uint64_t read_varint(bytes *b)
{
    uint64_t value = 0;

    for (int shift = 0;; shift += 7) {
        CHECK(b->at < b->end && shift < 64);
        value |= (uint64_t)(*b->at & 127) << shift;
        if (!(*b->at++ & 128))
            return value;
    }
}

static double read_double(bytes *b)
{
    double value;

    CHECK(b->end - b->at >= 8);
    memcpy(&value, b->at, 8);
    b->at += 8;
    return value;
}

static bytes read_part(bytes *b)
{
    uint64_t count = read_varint(b);
    bytes part = {b->at, b->at + count};

    CHECK(count <= (uint64_t)(b->end - b->at));
    b->at += count;
    return part;
}

/* A field's number and wire type: 10 x number + type. */
static int read_key(bytes *b)
{
    uint64_t key = read_varint(b);

    return (int)(10 * (key >> 3) + (key & 7));
}

static char *text_of(bytes b)
{
    return strndup((const char *)b.at, (size_t)(b.end - b.at));
}

/* ---- messages ---- */

static void read_histogram(bytes b, read_event *out)
{
    double *const numbers[] = {NULL, &out->min, &out->max, &out->num, &out->sum, &out->squares};
    int limits = 0, buckets = 0;

    while (b.at < b.end) {
        int key = read_key(&b);

        if (key == 62 || key == 72) {
            bytes part = read_part(&b);

            while (part.at < part.end && (key == 62 ? limits : buckets) < 2100)
                *(key == 62 ? &out->limits[limits++] : &out->buckets[buckets++]) = read_double(&part);
        } else {
            CHECK(key % 10 == 1 && key / 10 >= 1 && key / 10 <= 5);
            *numbers[key / 10] = read_double(&b);
        }
    }
    CHECK_EQ(limits, buckets);
    out->bucket_count = limits;
    out->kind = 'h';
}

/* A tensor of one string: dtype 7, shape [1]. */
static void read_tensor(bytes b, read_event *out)
{
    static const unsigned char shape[] = {0x12, 2, 8, 1};

    CHECK_EQ(read_key(&b), 10);
    CHECK_EQ(read_varint(&b), 7);
    CHECK_EQ(read_key(&b), 22);
    CHECK_BYTES(read_part(&b).at, shape, sizeof shape);
    CHECK_EQ(read_key(&b), 82);
    out->text = text_of(read_part(&b));
    CHECK(b.at == b.end);
    out->kind = 't';
}

static void read_value(bytes b, read_event *out)
{
    static const unsigned char plugin[] = {0x0a, 6, 0x0a, 4, 't', 'e', 'x', 't'};
    float number;
    bytes part;

    while (b.at < b.end) {
        switch (read_key(&b)) {
        case 12:
            part = read_part(&b);
            snprintf(out->tag, sizeof out->tag, "%.*s", (int)(part.end - part.at), (const char *)part.at);
            break;
        case 25:
            CHECK(b.end - b.at >= 4);
            memcpy(&number, b.at, 4);
            b.at += 4;
            out->number = (double)number;
            out->kind = 'n';
            break;
        case 52:
            read_histogram(read_part(&b), out);
            break;
        case 82:
            read_tensor(read_part(&b), out);
            break;
        case 92:
            part = read_part(&b);
            CHECK_EQ(part.end - part.at, sizeof plugin);
            CHECK_BYTES(part.at, plugin, sizeof plugin);
            out->dashboard = true;
            break;
        default:
            CHECK(!"a field of a value that nobody writes");
        }
    }
}

static read_event *append(read_events *events, const read_event *common)
{
    if ((events->count & (events->count - 1)) == 0) /* none, or a power of two: as many again */
        events->items =
            realloc(events->items, (size_t)(events->count > 0 ? 2 * events->count : 1) * sizeof *events->items);
    events->items[events->count] = *common;
    return &events->items[events->count++];
}

static void read_event_message(bytes b, read_events *out)
{
    read_event common = {.kind = '?'};
    bytes summary = {NULL, NULL}, part;

    while (b.at < b.end) {
        switch (read_key(&b)) {
        case 11:
            common.wall_time = read_double(&b);
            break;
        case 20:
            common.step = (int64_t)read_varint(&b);
            break;
        case 32:
            common.kind = 'v';
            common.text = text_of(read_part(&b));
            break;
        case 52:
            summary = read_part(&b);
            break;
        case 72:
            part = read_part(&b);
            CHECK_EQ(read_key(&part), 10);
            CHECK_EQ(read_varint(&part), 1);
            common.kind = 's';
            break;
        default:
            CHECK(!"a field of an event that nobody writes");
        }
    }
    if (!summary.at)
        append(out, &common);
    while (summary.at < summary.end) {
        CHECK_EQ(read_key(&summary), 12);
        read_value(read_part(&summary), append(out, &common));
    }
}

/* ---- files ---- */

static void check_checksum(const unsigned char *data, size_t count)
{
    uint32_t expected;

    memcpy(&expected, data + count, sizeof expected);
    CHECK_EQ(masked_checksum(data, count), expected);
}

read_events events_read(const char *path)
{
    read_events events = {NULL, 0};
    size_t size;
    unsigned char *data = (unsigned char *)test_read_file(path, &size), *at = data;

    while (at < data + size) {
        uint64_t count;

        CHECK(data + size - at >= 16);
        memcpy(&count, at, sizeof count);
        check_checksum(at, 8);
        CHECK(count <= (uint64_t)(data + size - at - 16));
        check_checksum(at + 12, count);
        read_event_message((bytes){at + 12, at + 12 + count}, &events);
        at += 16 + count;
    }
    return events;
}

read_events events_read_folder(const char *folder, char *path, size_t path_bytes)
{
    DIR *directory = CHECK_PTR(opendir(folder));
    char *found = NULL;
    struct dirent *entry;
    read_events events;

    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        CHECK(!found);
        CHECK_CONTAINS(entry->d_name, "events.out.tfevents.");
        found = test_path(folder, entry->d_name);
    }
    closedir(directory);
    events = events_read(CHECK_PTR(found));
    if (path)
        snprintf(path, path_bytes, "%s", found);
    return events;
}

void events_free(read_events *events)
{
    for (int i = 0; i < events->count; i++)
        free(events->items[i].text);
    free(events->items);
    *events = (read_events){NULL, 0};
}

const read_event *events_find(const read_events *events, const char *tag, int64_t step, bool must)
{
    for (int i = 0; i < events->count; i++)
        if (strcmp(events->items[i].tag, tag) == 0 && events->items[i].step == step)
            return &events->items[i];
    if (must)
        test_fail(__FILE__, __LINE__, "no '%s' at step %lld", tag, (long long)step);
    return NULL;
}
