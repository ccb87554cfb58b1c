/* Data sets of arrays in memory and in files: what is read, to the byte; what is wrong with a file. */
#include "fsdp/dataset.h"
#include "support/test.h"

/* ---- files ---- */

static char *directory;

static int setup(void **state)
{
    (void)state;
    directory = test_directory();
    return 0;
}

/* A .npy of a version, with a header padded as NumPy does it, and `bytes` of elements behind it. */
static void write_npy(const char *name, int version, const char *header, const void *data, size_t bytes)
{
    char *path = test_path(directory, name);
    unsigned char file[1024] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version};
    size_t at = version == 1 ? 10 : 12, length = 128 - at;

    CHECK(strlen(header) < length && bytes < sizeof file - 128);
    file[8] = (unsigned char)length;
    memset(file + at, ' ', length);
    memcpy(file + at, header, strlen(header));
    file[127] = '\n';
    memcpy(file + 128, data, bytes);
    test_write_file(path, file, 128 + bytes);
}

static void write_bytes(const char *name, const void *data, size_t bytes)
{
    char *path = test_path(directory, name);

    test_write_file(path, data, bytes);
}

static fsdp_status open_one(const char *name, fsdp_dataset *out)
{
    char *path = test_path(directory, name);
    fsdp_status status = fsdp_dataset_open(&(fsdp_data_file){"x", path}, 1, out);

    return status;
}

static const float floats[6] = {1.5f, -2, 3, 0.25f, 5, -0.0f};

TEST_WITH(npy_files_of_every_version_are_read, setup, NULL)
{
    for (int version = 1; version <= 3; version++) {
        fsdp_dataset data;
        float item[3];

        write_npy("a.npy", version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", floats, 24);
        CHECK_OK(open_one("a.npy", &data));
        CHECK_EQ(data.length(data.arg), 2);
        CHECK_EQ(data.field_count, 1);
        CHECK_STRING(data.fields[0].name, "x");
        CHECK_EQ(data.fields[0].dtype, FSDP_F32);
        CHECK_EQ(data.fields[0].ndim, 1);
        CHECK_EQ(data.fields[0].shape[0], 3);
        CHECK_OK(data.item(data.arg, 1, (void *[]){item}));
        CHECK_BYTES(item, floats + 3, sizeof item);
        fsdp_dataset_release(&data);
        CHECK_NULL(data.item);
        fsdp_dataset_release(&data);
    }
}

TEST_WITH(npy_files_of_every_dtype_are_read, setup, NULL)
{
    static const struct {
        const char *header;
        fsdp_dtype dtype;
        int ndim;
    } files[] = {
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3, 1), }", FSDP_F16, 2},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)}", FSDP_I32, 1},
        {"{\n'shape': (2,3,),'fortran_order':False,'descr':'<i8'}", FSDP_I64, 1},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (6,), }", FSDP_U8, 0},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (1, 2, 3, 1, 1, 1), }", FSDP_BOOL, 5},
    };
    unsigned char bytes[48], item[48];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t size = 6 * fsdp_dtype_size(files[i].dtype), row;
        fsdp_dataset data;

        write_npy("b.npy", 1, files[i].header, bytes, size);
        CHECK_OK(open_one("b.npy", &data));
        CHECK_EQ(data.fields[0].dtype, files[i].dtype);
        CHECK_EQ(data.fields[0].ndim, files[i].ndim);
        row = size / (size_t)data.length(data.arg);
        CHECK_OK(data.item(data.arg, data.length(data.arg) - 1, (void *[]){item}));
        CHECK_BYTES(item, bytes + size - row, row);
        fsdp_dataset_release(&data);
    }
}

static const struct {
    const char *header;
    fsdp_status status;
    const char *part;
} wrong_files[] = {
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }", FSDP_UNSUPPORTED, "elements are '<f8'; save"},
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (6,), }", FSDP_UNSUPPORTED, "elements are '>f4'"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", FSDP_UNSUPPORTED, "records"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", FSDP_UNSUPPORTED, "Fortran order"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,6), }", FSDP_UNSUPPORTED, "more than 6 dim"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", FSDP_FORMAT,
     "promises 20 bytes of elements, but it has 24"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", FSDP_FORMAT, "promises 28 bytes"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", FSDP_FORMAT, "one number, and not items"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", FSDP_FORMAT, "without a comma"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }", FSDP_FORMAT, "no size"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", FSDP_FORMAT, "too large"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8), }", FSDP_FORMAT, "too large"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (6,), }", FSDP_FORMAT, "fortran_order that is not True"},
    {"{'descr': '<f4', 'descr': '<f4', 'shape': (6,), }", FSDP_FORMAT, "one twice"},
    {"{'descr': '<f4', 'shape': (6,), }", FSDP_FORMAT, "lacks descr, fortran_order or shape"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}", FSDP_FORMAT, "another key"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x", FSDP_FORMAT, "continues after its end"},
    {"{'descr': '<f4', 'fortran_order': False 'shape': (6,)}", FSDP_FORMAT, "an entry without a comma"},
    {"{'descr': '<f4", FSDP_FORMAT, "does not end"},
    {"[]", FSDP_FORMAT, "is not a dictionary"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4), }", FSDP_FORMAT, "are too large"},
    {"{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (6,), }", FSDP_UNSUPPORTED, "elements are '\\x1b[2J'"},
};

TEST_WITH(npy_files_that_are_wrong_are_named, setup, NULL)
{
    fsdp_dataset data;

    for (size_t i = 0; i < sizeof wrong_files / sizeof *wrong_files; i++) {
        write_npy("c.npy", 1, wrong_files[i].header, floats, sizeof floats);
        CHECK_ERROR(open_one("c.npy", &data), wrong_files[i].status, wrong_files[i].part);
        CHECK_CONTAINS(fsdp_last_error(), "c.npy'");
        CHECK_NULL(data.item);
    }
    write_bytes("c.npy", "\x93NUMPY\x04\0\0\0", 10);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_UNSUPPORTED, ".npy version 4.0");
    write_bytes("c.npy", "\x93NUMPY\x01\0\x76", 9);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "ends in its header");
    write_bytes("c.npy", "\x93NUMPY\x01\0\x76\0{'de", 14);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "a header of 118 bytes at offset 8, in a file of 14");
    write_bytes("c.npy", "\x93NUMPY", 6);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "it is not a .npy file");
    write_bytes("c.npy", "PK\3\4", 4);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "it is a zip archive, as .npz, .pt and .docx are");
    write_bytes("c.npy", "abcd", 4);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "begins neither as a .npy nor as an IDX file");
    write_bytes("c.npy", "", 0);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "neither");
    write_bytes("c.npy", "\x1f\x8b\x08", 3);
    CHECK_ERROR(open_one("c.npy", &data), FSDP_FORMAT, "it is gzip data: unpack it with 'gzip -d'");
    CHECK_ERROR(open_one("none.npy", &data), FSDP_NOT_FOUND, "none.npy");
}

/* Of three items. */
static const unsigned char idx_images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 10, 11, 20, 21, 30, 31};
static const unsigned char idx_labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9};

TEST_WITH(idx_files_are_read_and_belong_together, setup, NULL)
{
    static const unsigned char ints[] = {0, 0, 12, 1, 0, 0, 0, 2, 0x80, 0, 0, 1, 0, 0, 1, 2};
    static const unsigned char reals[] = {0, 0, 13, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
    char *images = NULL, *labels = NULL, *other = NULL;
    unsigned char image[2], label;
    int32_t number;
    float real[2];
    fsdp_dataset data;

    write_bytes("images", idx_images, sizeof idx_images);
    write_bytes("labels", idx_labels, sizeof idx_labels);
    write_bytes("ints", ints, sizeof ints);
    write_bytes("reals", reals, sizeof reals);
    images = test_path(directory, "images");
    labels = test_path(directory, "labels");
    other = test_path(directory, "ints");
    CHECK_OK(fsdp_dataset_open((const fsdp_data_file[]){{"image", images}, {"label", labels}}, 2, &data));
    CHECK_EQ(data.length(data.arg), 3);
    CHECK_EQ(data.fields[0].ndim, 2);
    CHECK_EQ(data.fields[0].shape[0], 2);
    CHECK_EQ(data.fields[1].ndim, 0);
    CHECK_STRING(data.fields[1].name, "label");
    CHECK_OK(data.item(data.arg, 2, (void *[]){image, &label}));
    CHECK_EQ(image[1], 31);
    CHECK_EQ(label, 9);
    fsdp_dataset_release(&data);
    CHECK_ERROR(fsdp_dataset_open((const fsdp_data_file[]){{"image", images}, {"number", other}}, 2, &data),
                FSDP_MISMATCH, "images' has 3 items and '");
    CHECK_OK(open_one("ints", &data));
    CHECK_OK(data.item(data.arg, 0, (void *[]){&number}));
    CHECK_EQ(number, INT32_MIN + 1);
    CHECK_OK(data.item(data.arg, 1, (void *[]){&number}));
    CHECK_EQ(number, 258);
    fsdp_dataset_release(&data);
    CHECK_OK(open_one("reals", &data));
    CHECK_OK(data.item(data.arg, 0, (void *[]){real}));
    CHECK_NEAR(real[0], 1, 0);
    CHECK_NEAR(real[1], -2.5, 0);
    fsdp_dataset_release(&data);
}

TEST_WITH(idx_files_that_are_wrong_are_named, setup, NULL)
{
    fsdp_dataset data;
    unsigned char file[sizeof idx_images + 1] = {0};

    write_bytes("d", idx_images, sizeof idx_images - 1);
    CHECK_ERROR(open_one("d", &data), FSDP_FORMAT, "promises 6 bytes of elements, but it has 5");
    memcpy(file, idx_images, sizeof idx_images);
    write_bytes("d", file, sizeof file);
    CHECK_ERROR(open_one("d", &data), FSDP_FORMAT, "but it has 7");
    write_bytes("d", idx_images, 11);
    CHECK_ERROR(open_one("d", &data), FSDP_FORMAT, "ends in its header");
    file[2] = 0x0E;
    write_bytes("d", file, sizeof file);
    CHECK_ERROR(open_one("d", &data), FSDP_UNSUPPORTED, "elements of kind 0x0e at offset 2");
    write_bytes("d", "\0\0\x08\x07", 4);
    CHECK_ERROR(open_one("d", &data), FSDP_UNSUPPORTED, "7 dimensions at offset 3");
    write_bytes("d", "\0\0\x08\0\x01", 5);
    CHECK_ERROR(open_one("d", &data), FSDP_FORMAT, "one number");
    write_bytes("d", "\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16);
    CHECK_ERROR(open_one("d", &data), FSDP_FORMAT, "too large");
}

/* ---- memory ---- */

TEST_WITH(arrays_in_memory_are_a_data_set, setup, NULL)
{
    char name[] = "x";
    fsdp_data_field fields[] = {{name, FSDP_F32, 1, {3}}, {"y", FSDP_I64, 0, {0}}};
    const int64_t labels[] = {4, 5};
    const void *arrays[] = {floats, labels};
    fsdp_dataset data;
    float x[3];
    int64_t y;

    CHECK_OK(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data));
    name[0] = '?';
    fields[0].shape[0] = 1;
    CHECK_STRING(data.fields[0].name, "x");
    CHECK_EQ(data.fields[0].shape[0], 3);
    CHECK_OK(data.item(data.arg, 1, (void *[]){x, &y}));
    CHECK_BYTES(x, floats + 3, sizeof x);
    CHECK_EQ(y, 5);
    fsdp_dataset_release(&data);
    fields[0].shape[0] = 3;
    CHECK_OK(fsdp_dataset_from_memory(fields, (const void *[]){NULL, NULL}, 2, 0, &data));
    CHECK_EQ(data.length(data.arg), 0);
    fsdp_dataset_release(&data);
    CHECK_ERROR(fsdp_dataset_from_memory(fields, (const void *[]){floats, NULL}, 2, 2, &data), FSDP_INVALID,
                "field 'y' has no array");
    CHECK_ERROR(fsdp_dataset_from_memory(fields, NULL, 2, 2, &data), FSDP_INVALID, "arrays are required");
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, -1, &data), FSDP_INVALID, "a length of -1");
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 0, 2, &data), FSDP_INVALID, "no fields");
    fields[1].dtype = FSDP_DTYPE_NONE;
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data), FSDP_INVALID, "field 'y' has no dtype");
    fields[1] = (fsdp_data_field){"y", FSDP_I64, 6, {1}};
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data), FSDP_INVALID, "'y' has 6 dimensions: 0 to 5");
    fields[1] = (fsdp_data_field){"y", FSDP_I64, 2, {INT64_MAX / 8, 2}};
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data), FSDP_INVALID, "a size of 2 in dimension 1");
    fields[1].name = "";
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data), FSDP_INVALID,
                "field 1 of the items has no name");
    fields[1] = (fsdp_data_field){fields[0].name, FSDP_I64, 0, {0}};
    CHECK_ERROR(fsdp_dataset_from_memory(fields, arrays, 2, 2, &data), FSDP_INVALID, "fields 0 and 1 of the items");
    CHECK_ERROR(fsdp_dataset_open(NULL, 0, &data), FSDP_INVALID, "no files");
    CHECK_ERROR(fsdp_dataset_open(&(fsdp_data_file){0}, 1, &data), FSDP_INVALID, "file 0 has no name or no path");
    fsdp_dataset_release(NULL);
}

TEST_WITH(any_allocation_may_fail, setup, NULL)
{
    fsdp_dataset data;

    write_bytes("images", idx_images, sizeof idx_images);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        char *path = test_path(directory, "images");
        fsdp_status status = fsdp_dataset_open((const fsdp_data_file[]){{"a", path}, {"b", path}}, 2, &data);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_dataset_release(&data);
    }
}

static fsdp_status no_item(void *arg, int64_t index, void *const *fields)
{
    (void)arg;
    (void)fields;
    return index == 2 ? FSDP_IO : FSDP_OK;
}

TEST_WITH(a_digest_is_of_every_byte_of_every_item, setup, NULL)
{
    fsdp_data_field fields[] = {{.name = "x", .dtype = FSDP_F32, .ndim = 1, .shape = {3}},
                                {.name = "y", .dtype = FSDP_U8}};
    float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    unsigned char y[4] = {0, 1, 2, 3}, *const bytes[] = {(unsigned char *)x, y};
    const void *const data[] = {x, y};
    const size_t sizes[] = {sizeof x, sizeof y};
    uint64_t expected[2], digest[2];
    fsdp_dataset set;

    CHECK_OK(fsdp_dataset_from_memory(fields, data, 2, 4, &set));
    CHECK_OK(fsdp_dataset_digest(&set, expected));
    CHECK_OK(fsdp_dataset_digest(&set, digest));
    CHECK_BYTES(digest, expected, sizeof digest);
    for (int f = 0; f < 2; f++)
        for (size_t at = 0; at < sizes[f]; at++) {
            bytes[f][at] ^= 1;
            CHECK_OK(fsdp_dataset_digest(&set, digest));
            CHECK(digest[0] != expected[0] && digest[1] != expected[1]);
            bytes[f][at] ^= 1;
        }
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_dataset_digest(&set, digest));
    set.item = no_item;
    CHECK_ERROR(fsdp_dataset_digest(&set, digest), FSDP_IO, "item 2 of the data set");
    fsdp_dataset_release(&set);
    fields[1].name = "z";
    CHECK_OK(fsdp_dataset_from_memory(fields, data, 2, 4, &set));
    CHECK_OK(fsdp_dataset_digest(&set, digest));
    CHECK(digest[0] != expected[0]);
    fsdp_dataset_release(&set);
    CHECK_OK(fsdp_dataset_from_memory(fields, data, 2, 3, &set)); /* fewer items */
    CHECK_OK(fsdp_dataset_digest(&set, digest));
    CHECK(digest[0] != expected[0]);
    fsdp_dataset_release(&set);
    CHECK_ERROR(fsdp_dataset_digest(&set, digest), FSDP_INVALID, "cannot hash a data set");
}
