/* pickler.c - pickles and archives, made by hand. */
#include "format/pickler.h"

#include <unistd.h>
#include <zip.h>

#include "support/test.h"

void pickle_bytes(pickler *p, const void *data, size_t bytes)
{
    CHECK(p->bytes + bytes <= sizeof p->data);
    memcpy(p->data + p->bytes, data, bytes);
    p->bytes += bytes;
}

static void put_number(pickler *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        pickle_bytes(p, &(unsigned char){(unsigned char)(value >> (8 * i))}, 1);
}

void pickle_text(pickler *p, const char *text)
{
    PICKLE(p, "X");
    put_number(p, strlen(text), 4);
    pickle_bytes(p, text, strlen(text));
}

void pickle_integer(pickler *p, int64_t value)
{
    if (value == (int32_t)value) {
        PICKLE(p, "J");
        put_number(p, (uint64_t)value, 4);
    } else {
        PICKLE(p, "\x8a\x08");
        put_number(p, (uint64_t)value, 8);
    }
}

static void put_sizes(pickler *p, const int64_t *sizes, int count)
{
    PICKLE(p, "(");
    for (int i = 0; i < count; i++)
        pickle_integer(p, sizes[i]);
    PICKLE(p, "t");
}

void pickle_view(pickler *p, const pickled_view *view)
{
    pickle_text(p, view->name);
    PICKLE(p, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pickle_text(p, "storage");
    PICKLE(p, "ctorch\n");
    pickle_bytes(p, view->storage_type, strlen(view->storage_type));
    PICKLE(p, "\n");
    pickle_text(p, view->key);
    pickle_text(p, "cpu");
    pickle_integer(p, view->storage_numel);
    PICKLE(p, "tQ");
    pickle_integer(p, view->offset);
    put_sizes(p, view->shape, view->ndim);
    put_sizes(p, view->strides, view->ndim);
    PICKLE(p, "\x89"
              "ccollections\nOrderedDict\n)RtR");
}

void pickle_state_dict(pickler *p, const pickled_view *views, int count)
{
    PICKLE(p, "\x80\x02"
              "ccollections\nOrderedDict\n)Rq\0(");
    for (int i = 0; i < count; i++)
        pickle_view(p, &views[i]);
    PICKLE(p, "u}");
    pickle_text(p, "_metadata");
    PICKLE(p, "}sb.");
}

void write_archive(const char *path, const archived *members, int count)
{
    int error = 0;
    zip_t *zip;

    unlink(path);
    zip = CHECK_PTR(zip_open(path, ZIP_CREATE | ZIP_EXCL, &error));
    for (int i = 0; i < count; i++) {
        zip_source_t *source = CHECK_PTR(zip_source_buffer(zip, members[i].data, members[i].bytes, 0));
        zip_int64_t index = zip_file_add(zip, members[i].name, source, 0);

        CHECK(index >= 0);
        CHECK_EQ(zip_set_file_compression(zip, (zip_uint64_t)index,
                                          members[i].compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0),
                 0);
    }
    CHECK_EQ(zip_close(zip), 0);
}

void write_torch_file(const char *path, const pickled_view *views, int count, int storages, int numel)
{
    static char names[8][32];
    archived members[10] = {0};
    float *values = calloc((size_t)numel + 1, sizeof *values);
    pickler p = {.bytes = 0};

    CHECK(storages <= 8);
    pickle_state_dict(&p, views, count);
    for (int i = 0; i < numel; i++)
        values[i] = (float)i;
    members[0] = (archived){"model/data.pkl", p.data, p.bytes, 0};
    members[1] = (archived){"model/byteorder", "little", 6, 0};
    for (int i = 0; i < storages; i++) {
        snprintf(names[i], sizeof names[i], "model/data/%d", i);
        members[2 + i] = (archived){names[i], values, (size_t)numel * sizeof *values, 0};
    }
    write_archive(path, members, 2 + storages);
    free(values);
}
