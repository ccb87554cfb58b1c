/* Weights of folders: which files are read, tensors of torch.save as views of any kind, and what is refused. */
#include <unistd.h>

#include "base/compiler.h"
#include "format/pickler.h"
#include "fsdp/format.h"
#include "support/test.h"

#define REFERENCE_MODEL "models/tiny-llama-tied"

static void check_floats(fsdp_weights *weights, const char *name, const float *expected, int64_t numel)
{
    const fsdp_weights_entry *entry = CHECK_PTR(fsdp_weights_find(weights, name));
    float values[64];

    CHECK_EQ(entry->bytes, (size_t)numel * sizeof *values);
    /* Whole, and every part. */
    for (int64_t first = 0; first <= numel; first++)
        for (int64_t count = 0; first + count <= numel; count++) {
            CHECK_OK(fsdp_weights_read(weights, entry, first, count, values));
            CHECK_BYTES(values, expected + first, (size_t)count * sizeof *values);
        }
}

TEST(tensors_are_views_of_storages)
{
    static const pickled_view views[] = {
        {"rows", "FloatStorage", "0", 12, 0, 2, {3, 4}, {4, 1}},
        {"transposed", "FloatStorage", "0", 12, 0, 2, {4, 3}, {1, 4}},
        {"later", "FloatStorage", "1", 12, 5, 1, {3}, {1}},
        {"steps", "FloatStorage", "1", 12, 1, 2, {2, 2}, {6, 3}},
        {"expanded", "FloatStorage", "0", 12, 2, 2, {3, 2}, {0, 1}},
        {"overlapping", "FloatStorage", "0", 12, 0, 2, {3, 4}, {2, 1}},
        {"permuted", "FloatStorage", "0", 12, 0, 3, {2, 3, 2}, {1, 4, 2}},
        {"scalar", "FloatStorage", "0", 12, 7, 0, {0}, {0}},
        {"empty", "FloatStorage", "0", 12, 0, 2, {0, 5}, {5, 1}},
        {"one", "FloatStorage", "0", 12, 11, 2, {1, 1}, {99, 7}},
    };
    static const struct {
        const char *name;
        int numel;
        float values[12];
    } expected[] = {
        {"rows", 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {"transposed", 12, {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
        {"later", 3, {5, 6, 7}},
        {"steps", 4, {1, 4, 7, 10}},
        {"expanded", 6, {2, 3, 2, 3, 2, 3}},
        {"overlapping", 12, {0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7}},
        {"permuted", 12, {0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}},
        {"scalar", 1, {7}},
        {"empty", 0, {0}},
        {"one", 1, {11}},
    };
    char *directory = test_directory(), *path = test_path(directory, "pytorch_model.bin");
    fsdp_weights *weights = NULL;

    write_torch_file(path, views, FSDP__COUNT_OF(views), 2, 12);
    for (int folder = 0; folder < 2; folder++) {
        CHECK_OK(fsdp_weights_open(folder ? directory : path, &weights));
        CHECK_EQ(fsdp_weights_count(weights), FSDP__COUNT_OF(views));
        CHECK_EQ(fsdp_weights_file_count(weights), 1);
        CHECK_STRING(fsdp_weights_at(weights, 0)->name, "empty");
        CHECK_STRING(fsdp_weights_at(weights, 0)->file, path);
        CHECK_NULL(fsdp_weights_find(weights, "absent"));
        for (size_t i = 0; i < FSDP__COUNT_OF(expected); i++)
            check_floats(weights, expected[i].name, expected[i].values, expected[i].numel);
        CHECK_ERROR(fsdp_weights_read(weights, fsdp_weights_find(weights, "rows"), 3, 10, &weights), FSDP_INVALID,
                    "cannot read 10 elements from 3 on of tensor 'rows'");
        fsdp_weights_close(weights);
    }
}

/* Larger than a window, against its order. */
TEST(a_large_transposed_tensor_is_read_in_windows)
{
    enum {
        ROWS = 1200,
        COLUMNS = 1100
    };
    static const pickled_view view = {"w", "FloatStorage", "0", ROWS * COLUMNS, 0, 2, {COLUMNS, ROWS}, {1, COLUMNS}};
    char *directory = test_directory(), *path = test_path(directory, "pytorch_model.bin");
    float *values = malloc(sizeof(float) * 3 * ROWS);
    fsdp_weights *weights = NULL;

    write_torch_file(path, &view, 1, 1, ROWS * COLUMNS);
    CHECK_OK(fsdp_weights_open(path, &weights));
    CHECK_OK(fsdp_weights_read(weights, fsdp_weights_at(weights, 0), 7 * ROWS, 3 * ROWS, values));
    for (int64_t i = 0; i < 3 * ROWS; i++)
        if (values[i] != (float)(i % ROWS * COLUMNS + 7 + i / ROWS))
            TEST_FAIL("element %lld is %g", (long long)i, (double)values[i]);
    fsdp_weights_close(weights);
    free(values);
}

/* Compressed members are read in order, and again from their beginning. */
TEST(compressed_and_older_archives_are_read)
{
    static const pickled_view view = {"w", "ByteStorage", "0", 40000, 0, 1, {40000}, {1}};
    static unsigned char data[40000], part[100];
    char *directory = test_directory(), *path = test_path(directory, "pytorch_model.bin");
    fsdp_weights *weights = NULL;
    pickler p = {.bytes = 0};
    archived members[2];

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i / 7);
    pickle_state_dict(&p, &view, 1);
    members[0] = (archived){"a/data.pkl", p.data, p.bytes, 1};
    members[1] = (archived){"a/data/0", data, sizeof data, 1};
    write_archive(path, members, 2); /* without a byteorder */
    CHECK_OK(fsdp_weights_open(path, &weights));
    for (int64_t first = 39900; first >= 0; first -= 13300) {
        CHECK_OK(fsdp_weights_read(weights, fsdp_weights_at(weights, 0), first, 100, part));
        CHECK_BYTES(part, data + first, 100);
    }
    CHECK_OK(fsdp_weights_read(weights, fsdp_weights_at(weights, 0), 20000, 100, part));
    CHECK_BYTES(part, data + 20000, 100);
    fsdp_weights_close(weights);
}

TEST(every_fault_of_a_tensor_is_named)
{
    static const struct {
        pickled_view view;
        fsdp_status status;
        const char *part;
    } cases[] = {
        {{"w", "DoubleStorage", "0", 7, 0, 1, {6}, {1}}, FSDP_FORMAT, "but should hold 7 elements of DoubleStorage"},
        {{"w", "FloatStorage", "7", 12, 0, 1, {6}, {1}}, FSDP_FORMAT, "the archive lacks 'model/data/7'"},
        {{"w", "FloatStorage", "../0", 12, 0, 1, {6}, {1}}, FSDP_FORMAT, "the archive lacks 'model/data/../0'"},
        {{"w", "FloatStorage", "0", 11, 0, 1, {6}, {1}},
         FSDP_FORMAT,
         "'model/data/0' has 48 bytes, but should hold 11 elements of float32"},
        {{"w", "HalfStorage", "0", 12, 0, 1, {6}, {1}}, FSDP_FORMAT, "but should hold 12 elements of float16"},
        {{"w", "FloatStorage", "0", 12, 0, 1, {13}, {1}},
         FSDP_FORMAT,
         "its last element is number 12 of a storage of 12"},
        {{"w", "FloatStorage", "0", 12, 7, 2, {2, 3}, {3, 1}}, FSDP_FORMAT, "number 12 of a storage of 12"},
        {{"w", "FloatStorage", "0", 12, -1, 1, {6}, {1}}, FSDP_FORMAT, "it is not made of storage, offset"},
        {{"w", "FloatStorage", "0", 12, 0, 1, {-6}, {1}}, FSDP_FORMAT, "number 0 of its size is not a whole number"},
        {{"w", "FloatStorage", "0", 12, 0, 1, {6}, {-1}}, FSDP_FORMAT, "number 0 of its stride is not a whole number"},
        {{"w", "FloatStorage", "0", 12, 0, 2, {INT64_MAX, 2}, {0, 1}}, FSDP_FORMAT, "its shape is too large"},
        {{"w", "FloatStorage", "0", 12, 0, 1, {3}, {INT64_MAX}}, FSDP_FORMAT, "its strides are too large"},
        {{"w\x1b", "FloatStorage", "0", -1, 0, 1, {3}, {1}}, FSDP_FORMAT, "tensor 'w\\x1b': its storage is not a type"},
    };
    char *directory = test_directory(), *path = test_path(directory, "broken.bin");

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_weights *weights = NULL;

        write_torch_file(path, &cases[i].view, 1, 1, 12);
        CHECK_ERROR(fsdp_weights_open(path, &weights), cases[i].status, cases[i].part);
        CHECK_CONTAINS(fsdp_last_error(), "broken.bin");
        CHECK_NULL(weights);
    }
}

/* An archive with this pickle. */
static fsdp_status open_pickle(const char *path, const pickler *p)
{
    const archived members[] = {{"m/data.pkl", p->data, p->bytes, 0}, {"m/data/0", "01234567", 8, 0}};
    fsdp_weights *weights = NULL;
    fsdp_status status;

    write_archive(path, members, 2);
    status = fsdp_weights_open(path, &weights);
    fsdp_weights_close(weights);
    return status;
}

TEST(what_is_no_state_dict_is_refused)
{
#define CASE(text, status, part)             \
    {                                        \
        text, sizeof(text) - 1, status, part \
    }
    static const struct {
        const char *text;
        size_t bytes;
        fsdp_status status;
        const char *part;
    } cases[] = {
        CASE("].", FSDP_FORMAT, "it holds no state dict"),
        CASE("}K\x01Ns.", FSDP_FORMAT, "byte 1 of data.pkl: a key that is not a name"),
        CASE("}X\2\0\0\0a\0Ns.", FSDP_FORMAT, "a key that is not a name"),
        CASE("}X\1\0\0\0aNs.", FSDP_FORMAT, "tensor 'a': it is not a tensor, and a state dict holds nothing else"),
        CASE("}X\5\0\0\0model}s.", FSDP_FORMAT, "tensor 'model': it is not a tensor"),
        CASE("}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n)Rs.", FSDP_FORMAT, "it is not made of storage"),
        CASE("}X\1\0\0\0actorch._utils\n_rebuild_parameter\n)Rs.", FSDP_FORMAT, "it is not a tensor"),
        CASE("}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n(NK\0))tRs.", FSDP_FORMAT, "a view of is not a storage"),
        CASE("}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n(N\x85QK\0))tRs.", FSDP_FORMAT, "is not a storage"),
        CASE("}X\1\0\0\0acos\nsystem\n", FSDP_UNSUPPORTED, "it asks for 'os.system'"),
    };
    static const pickled_view twice[] = {{"a", "ByteStorage", "0", 8, 0, 1, {8}, {1}},
                                         {"a", "ByteStorage", "0", 8, 0, 1, {1}, {1}}};
    char *directory = test_directory(), *path = test_path(directory, "x.bin");
    pickler p;

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        p.bytes = 0;
        pickle_bytes(&p, cases[i].text, cases[i].bytes);
        CHECK_ERROR(open_pickle(path, &p), cases[i].status, cases[i].part);
        CHECK_CONTAINS(fsdp_last_error(), "x.bin");
    }
    p.bytes = 0;
    pickle_state_dict(&p, twice, 2);
    CHECK_ERROR(open_pickle(path, &p), FSDP_FORMAT, "tensor 'a': it is there twice");
#undef CASE
}

/* A file that begins with these bytes. */
static fsdp_status open_bytes(const char *path, const void *data, size_t bytes)
{
    fsdp_weights *weights = NULL;

    test_write_file(path, data, bytes);
    return fsdp_weights_open(path, &weights);
}

TEST(other_formats_are_refused_by_name)
{
    static const archived strange[] = {{"notes.txt", "x", 1, 0}};
    static const archived script[] = {{"m/data.pkl", "}.", 2, 0}, {"m/constants.pkl", ").", 2, 0}};
    static const archived big[] = {{"m/data.pkl", "}.", 2, 0}, {"m/byteorder", "big", 3, 0}};
    char *directory = test_directory(), *path = test_path(directory, "x.bin"), tar[512] = "pickle";
    fsdp_weights *weights = NULL;

    CHECK_ERROR(open_bytes(path, "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15), FSDP_UNSUPPORTED,
                "the format that torch.save used before PyTorch 1.6");
    memcpy(tar + 257, "ustar", 5);
    CHECK_ERROR(open_bytes(path, tar, sizeof tar), FSDP_UNSUPPORTED, "it is a tar file");
    CHECK_ERROR(open_bytes(path, "hello", 5), FSDP_FORMAT, "x.bin': it does not begin as a file of torch.save does");
    CHECK_ERROR(open_bytes(path, "version https://git-lfs.github.com/spec/v1", 42), FSDP_FORMAT,
                "x.bin': it is a pointer of Git LFS: fetch the file with 'git lfs pull'");
    CHECK_ERROR(open_bytes(path, "", 0), FSDP_FORMAT, "it does not begin as a file of torch.save does");
    CHECK_ERROR(open_bytes(path, "PK\3\4 and no more", 16), FSDP_FORMAT, "not a whole zip archive");
    write_archive(path, strange, 1);
    CHECK_ERROR(fsdp_weights_open(path, &weights), FSDP_FORMAT, "not one of torch.save: it has no data.pkl");
    write_archive(path, script, 2);
    CHECK_ERROR(fsdp_weights_open(path, &weights), FSDP_UNSUPPORTED, "a program of TorchScript");
    write_archive(path, big, 2);
    CHECK_ERROR(fsdp_weights_open(path, &weights), FSDP_UNSUPPORTED, "its byteorder is not little");
    CHECK_ERROR(fsdp_weights_open(directory, &weights), FSDP_NOT_FOUND, "has no weights: neither model.safetensors,");
    CHECK_ERROR(fsdp_weights_open(NULL, &weights), FSDP_INVALID, "required");
}

TEST(an_index_names_its_files)
{
    static const pickled_view a = {"a", "FloatStorage", "0", 2, 0, 1, {2}, {1}};
    static const pickled_view b = {"b", "FloatStorage", "0", 2, 1, 1, {1}, {1}};
    static const pickled_view both[] = {{"b", "FloatStorage", "0", 2, 1, 1, {1}, {1}},
                                        {"c", "DoubleStorage", "0", 1, 0, 1, {1}, {1}}};
    double value;
    char *directory = test_directory(), *one = test_path(directory, "one.bin"), *two = test_path(directory, "two.bin");
    fsdp_weights *weights = NULL;

    write_torch_file(one, &a, 1, 1, 2);
    write_torch_file(two, &b, 1, 1, 2);
    test_write_text(directory, "pytorch_model.bin.index.json",
                    "{\"weight_map\":{\"a\":\"one.bin\",\"b\":\"two.bin\"}}");
    CHECK_OK(fsdp_weights_open(directory, &weights));
    CHECK_EQ(fsdp_weights_file_count(weights), 2);
    check_floats(weights, "a", (const float[]){0, 1}, 2);
    check_floats(weights, "b", (const float[]){1}, 1);
    fsdp_weights_close(weights);
    test_write_text(directory, "pytorch_model.bin.index.json",
                    "{\"weight_map\":{\"a\":\"one.bin\",\"c\":\"two.bin\"}}");
    CHECK_ERROR(fsdp_weights_open(directory, &weights), FSDP_FORMAT, "it lacks tensor 'c', which");
    test_write_text(directory, "pytorch_model.bin.index.json",
                    "{\"weight_map\":{\"a\":\"one.bin\",\"c\":\"three.bin\"}}");
    CHECK_ERROR(fsdp_weights_open(directory, &weights), FSDP_NOT_FOUND, "three.bin', in which '");
    write_torch_file(two, both, 2, 1, 2);
    test_write_text(directory, "pytorch_model.bin.index.json",
                    "{\"weight_map\":{\"a\":\"one.bin\",\"b\":\"./two.bin\"}}");
    CHECK_OK(fsdp_weights_open(directory, &weights));
    CHECK(fsdp_weights_find(weights, "c")->unlisted && !fsdp_weights_find(weights, "b")->unlisted);
    CHECK_EQ(fsdp_weights_find(weights, "c")->dtype, FSDP_DTYPE_NONE);
    CHECK_STRING(fsdp_weights_find(weights, "c")->dtype_name, "DoubleStorage");
    CHECK_ERROR(fsdp_weights_read(weights, fsdp_weights_find(weights, "c"), 0, 1, &value), FSDP_UNSUPPORTED,
                "tensor 'c' is DoubleStorage, which is not supported");
    fsdp_weights_close(weights);
    test_write_text(directory, "pytorch_model.bin.index.json",
                    "{\"weight_map\":{\"a\":\"one.bin\",\"b\":\"../two.bin\"}}");
    CHECK_ERROR(fsdp_weights_open(directory, &weights), FSDP_FORMAT, "not a plain file name");
    /* Safetensors come first. */
    test_write_text(directory, "model.safetensors", "\x08\0\0\0\0\0\0\0{      }");
    CHECK_ERROR(fsdp_weights_open(directory, &weights), FSDP_FORMAT, "model.safetensors");
    test_write_text(directory, "unfinished-save.json", "{}");
    CHECK_STATUS(fsdp_weights_open(directory, &weights), FSDP_STATE);
}

TEST(a_failed_allocation_leaves_nothing)
{
    static const pickled_view views[] = {{"a", "FloatStorage", "0", 12, 0, 2, {4, 3}, {1, 4}},
                                         {"b", "FloatStorage", "1", 12, 0, 1, {12}, {1}}};
    char *directory = test_directory(), *path = test_path(directory, "pytorch_model.bin");
    float values[12];

    write_torch_file(path, views, 2, 2, 12);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_weights *weights = NULL;
        fsdp_status status = fsdp_weights_open(directory, &weights);

        if (status == FSDP_OK)
            status = fsdp_weights_read(weights, fsdp_weights_at(weights, 0), 0, 12, values);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_weights_close(weights);
    }
}

#define TWO_BYTES(x)                                                                    \
    "\x69\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}," \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}" x

/* By another of the same tensors, as an export does: rows of the two would be mixed, and nothing would tell. */
TEST(a_file_that_is_replaced_while_it_is_read_is_an_error)
{
    char *directory = test_directory(), *path = test_path(directory, "model.safetensors");
    char *other = test_path(directory, "other");
    fsdp_weights *weights = NULL;
    char byte = 0;

    test_write_file(path, TWO_BYTES("xy"), sizeof TWO_BYTES("xy") - 1);
    test_write_file(other, TWO_BYTES("XY"), sizeof TWO_BYTES("XY") - 1);
    for (int read_before = 0; read_before < 2; read_before++) {
        CHECK_OK(fsdp_weights_open(directory, &weights));
        if (read_before)
            CHECK_OK(fsdp_weights_read(weights, fsdp_weights_find(weights, "a"), 0, 1, &byte));
        CHECK_EQ(rename(other, path), 0);
        if (read_before) { /* the file that was there is still open */
            CHECK_OK(fsdp_weights_read(weights, fsdp_weights_find(weights, "b"), 0, 1, &byte));
            CHECK_EQ(byte, 'Y');
        } else {
            CHECK_ERROR(fsdp_weights_read(weights, fsdp_weights_find(weights, "a"), 0, 1, &byte), FSDP_STATE,
                        "model.safetensors': it has been replaced since it was opened");
            CHECK_EQ(byte, 0);
            test_write_file(other, TWO_BYTES("pq"), sizeof TWO_BYTES("pq") - 1);
        }
        fsdp_weights_close(weights);
    }
}

/* Files that PyTorch has written, beside the same weights as safetensors. */
TEST(files_of_pytorch_hold_what_safetensors_hold)
{
    const char *reference = getenv("FSDP_REFERENCE");
    fsdp_weights *pickled = NULL, *plain = NULL;
    char a[300], b[300], *x, *y;

    if (!reference)
        skip(); /* FSDP_REFERENCE has them */
    snprintf(a, sizeof a, "%s/" REFERENCE_MODEL, reference);
    snprintf(b, sizeof b, "%s/" REFERENCE_MODEL "-st", reference);
    CHECK_OK(fsdp_weights_open(a, &pickled));
    CHECK_OK(fsdp_weights_open(b, &plain));
    CHECK_EQ(fsdp_weights_file_count(pickled), 2);
    CHECK_EQ(fsdp_weights_count(pickled), fsdp_weights_count(plain));
    for (int64_t i = 0; i < fsdp_weights_count(plain); i++) {
        const fsdp_weights_entry *p = fsdp_weights_at(pickled, i), *q = fsdp_weights_at(plain, i);
        int64_t numel = (int64_t)(q->bytes / fsdp_dtype_size(q->dtype));

        CHECK_STRING(p->name, q->name);
        CHECK_EQ(p->dtype, q->dtype);
        CHECK_EQ(p->bytes, q->bytes);
        x = malloc(p->bytes);
        y = malloc(q->bytes);
        CHECK_OK(fsdp_weights_read(pickled, p, 0, numel, x));
        CHECK_OK(fsdp_weights_read(plain, q, 0, numel, y));
        CHECK_BYTES(x, y, q->bytes);
        free(x);
        free(y);
    }
    fsdp_weights_close(pickled);
    fsdp_weights_close(plain);
}
