/* row_fixture.c - writes rows, and opens them. */
#include "data/row_fixture.h"

#include <jansson.h>

#include "support/test.h"

enum {
    MOST_TOKENS = 512
};

static void make_folder(row_file *f)
{
    *f = (row_file){.folder = test_directory()};
    f->path = test_path(f->folder, "a.rows");
}

void row_file_of_lengths(row_file *f, const int64_t *lengths, int count)
{
    fsdp__rows_writer writer;
    int32_t ids[MOST_TOKENS];
    bool learned[MOST_TOKENS];

    make_folder(f);
    CHECK_OK(fsdp__rows_writer_open(&writer, f->path, 4));
    for (int r = 0; r < count; r++) {
        for (int i = 0; i < lengths[r]; i++) {
            ids[i] = 100 * (r + 1) + i;
            learned[i] = i % 3 == 0;
        }
        CHECK_OK(fsdp__rows_writer_add(&writer, ids, learned, lengths[r]));
    }
    CHECK_OK(fsdp__rows_writer_finish(&writer, ""));
    fsdp__rows_writer_close(&writer);
    CHECK_OK(fsdp__rows_open(f->path, &f->rows));
}

void row_file_write_reference(const char *path)
{
    json_t *reference = json_load_file(TEST_SOURCE_DIR "/tests/reference/finetune/sft-tokens.json", 0, NULL), *row;
    fsdp__rows_writer writer;
    size_t r;

    CHECK_PTR(reference);
    CHECK_OK(fsdp__rows_writer_open(&writer, path, 2));
    json_array_foreach(json_object_get(reference, "conversations"), r, row)
    {
        const json_t *list = json_object_get(row, "ids");
        const char *mask = json_string_value(json_object_get(row, "mask"));
        int32_t ids[MOST_TOKENS];
        bool learned[MOST_TOKENS];

        for (size_t i = 0; i < json_array_size(list); i++) {
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
            learned[i] = mask[i] == '1';
        }
        CHECK_OK(fsdp__rows_writer_add(&writer, ids, learned, (int64_t)json_array_size(list)));
    }
    CHECK_OK(fsdp__rows_writer_finish(&writer, ""));
    fsdp__rows_writer_close(&writer);
    json_decref(reference);
}

void row_file_of_reference(row_file *f)
{
    make_folder(f);
    row_file_write_reference(f->path);
    CHECK_OK(fsdp__rows_open(f->path, &f->rows));
}

void row_file_pack(row_file *f, const fsdp__packing_options *options)
{
    fsdp__packed_free(f->packed);
    CHECK_OK(fsdp__pack(f->rows, options, &f->packed));
}

void row_file_close(row_file *f)
{
    fsdp__packed_free(f->packed);
    fsdp__rows_close(f->rows);
    test_directory_free(f->folder);
}
