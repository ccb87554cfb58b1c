/* Safetensors files, indexes and folders: what is accepted, and what each broken one is told. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/compiler.h"
#include "format/safetensors.h"
#include "support/test.h"

/* A file with this header and `data_bytes` bytes 0, 1, 2, ... of data. */
static void write_file(const char *path, const char *header, size_t data_bytes)
{
    size_t length = strlen(header), bytes = 8 + length + data_bytes;
    unsigned char *file = calloc(1, bytes);

    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + length + i] = (unsigned char)i;
    test_write_file(path, file, bytes);
    free(file);
}

TEST(tensors_are_found_by_name_and_listed_in_its_order)
{
    char *directory = test_directory(), *path = test_path(directory, "a.safetensors");
    const fsdp_safetensors_entry *entry;
    fsdp_safetensors *file = NULL;

    write_file(path,
               "{\"__metadata__\":{\"format\":\"pt\"},"
               "\"w\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[5,17]},"
               "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[5,5]},"
               "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
               "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[17,25]}}   ",
               25);
    CHECK_OK(fsdp_safetensors_open(path, &file));
    CHECK_EQ(fsdp_safetensors_count(file), 4);
    CHECK_STRING(fsdp_safetensors_at(file, 0)->name, "b");
    CHECK_STRING(fsdp_safetensors_at(file, 3)->name, "w");
    entry = CHECK_PTR(fsdp_safetensors_find(file, "w"));
    CHECK_EQ(entry->dtype, FSDP_BF16);
    CHECK_EQ(entry->ndim, 2);
    CHECK_EQ(entry->shape[0], 3);
    CHECK_EQ(entry->bytes, 12);
    CHECK_EQ(*(const unsigned char *)entry->data, 5);
    CHECK_STRING(entry->file, path);
    CHECK_EQ(fsdp_safetensors_find(file, "scalar")->ndim, 0);
    CHECK_EQ(fsdp_safetensors_find(file, "empty")->bytes, 0);
    CHECK_NULL(fsdp_safetensors_find(file, "x"));
    fsdp_safetensors_close(file);
    fsdp_safetensors_close(NULL);
}

TEST(a_file_without_tensors_is_valid)
{
    char *directory = test_directory(), *path = test_path(directory, "a.safetensors");
    fsdp_safetensors *file = NULL;

    write_file(path, "{}", 0);
    CHECK_OK(fsdp_safetensors_open(path, &file));
    CHECK_EQ(fsdp_safetensors_count(file), 0);
    CHECK_NULL(fsdp_safetensors_find(file, "x"));
    fsdp_safetensors_close(file);
}

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *header;
    size_t data_bytes;
    fsdp_status status;
    const char *part;
} header_faults[] = {
    {"[]", 0, FSDP_FORMAT, "does not begin with '{' at offset 8"},
    {" {}", 0, FSDP_FORMAT, "does not begin with '{'"},
    {"{", 0, FSDP_FORMAT, "line 1 column"},
    {"{} x", 0, FSDP_FORMAT, "line 1 column"},
    {"{\"a\":1}", 0, FSDP_FORMAT, "tensor 'a': its entry is not an object"},
    {"{\"a\":{}}", 0, FSDP_FORMAT, "tensor 'a': it has no dtype"},
    {"{" TENSOR("a", "F31", "1", "0", "4") "}", 4, FSDP_FORMAT, "tensor 'a': unknown dtype 'F31'"},
    {"{" TENSOR("a", "f32", "1", "0", "4") "}", 4, FSDP_FORMAT, "unknown dtype 'f32'"},
    {"{" TENSOR("a", "F64", "1", "0", "4") "}", 4, FSDP_FORMAT, "hold 4 bytes, but F64 of shape (1,) is 8"},
    {"{" TENSOR("a", "F4", "3", "0", "2") "}", 2, FSDP_FORMAT, "3 elements of F4 do not end with a byte"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, FSDP_FORMAT, "it has no shape"},
    {"{" TENSOR("a", "F32", "-1", "0", "4") "}", 4, FSDP_FORMAT, "size 0 of its shape"},
    {"{" TENSOR("a", "F32", "1,1.5", "0", "4") "}", 4, FSDP_FORMAT, "size 1 of its shape"},
    {"{" TENSOR("a", "F32", "1,1,1,1,1,1,1", "0", "4") "}", 4, FSDP_FORMAT, "7 dimensions"},
    {"{" TENSOR("a", "F32", "4294967296,4294967296", "0", "4") "}", 4, FSDP_FORMAT, "its shape is too large"},
    {"{" TENSOR("a", "F32", "4611686018427387904", "0", "4") "}", 4, FSDP_FORMAT, "its shape is too large"},
    {"{" TENSOR("a", "F32", "99999999999999999999", "0", "4") "}", 4, FSDP_FORMAT, "line 1 column"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, FSDP_FORMAT, "data_offsets are not two whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, FSDP_FORMAT, "data_offsets are not"},
    {"{" TENSOR("a", "F32", "1", "0.0", "4") "}", 4, FSDP_FORMAT, "data_offsets are not"},
    {"{" TENSOR("a", "F32", "1", "4", "0") "}", 4, FSDP_FORMAT, "data_offsets [4, 0] are not a range"},
    {"{" TENSOR("a", "F32", "1", "-4", "0") "}", 4, FSDP_FORMAT, "data_offsets [-4, 0] are not a range"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "}", 4, FSDP_FORMAT, "go beyond the file's 4 bytes of data"},
    {"{" TENSOR("a", "F32", "2,3", "0", "8") "}", 8, FSDP_FORMAT, "hold 8 bytes, but float32 of shape (2, 3) is 24"},
    {"{" TENSOR("a", "F32", "1", "0", "4") "," TENSOR("b", "F32", "1", "2", "6") "}", 6, FSDP_FORMAT,
     "tensor 'b': its data at offset 2 overlaps that of tensor 'a'"},
    {"{" TENSOR("a", "F32", "2", "0", "8") "," TENSOR("b", "F32", "0", "4", "4") "}", 8, FSDP_FORMAT,
     "tensor 'b': its data at offset 4 overlaps"},
    {"{" TENSOR("a", "F32", "1", "0", "4") "," TENSOR("b", "F32", "1", "5", "9") "}", 9, FSDP_FORMAT,
     "tensor 'b': 1 bytes before its data at offset 5 belong to no tensor"},
    {"{" TENSOR("a", "F32", "1", "0", "4") "}", 7, FSDP_FORMAT, "its last 3 bytes belong to no tensor"},
    {"{" TENSOR("a", "F32", "1", "0", "4") "," TENSOR("a", "F32", "1", "4", "8") "}", 8, FSDP_FORMAT,
     "duplicate object key"},
    {"{\"a\\u001b[2J\\n\":{}}", 0, FSDP_FORMAT, "tensor 'a\\x1b[2J\\x0a': it has no dtype"},
    {"{" TENSOR("\\u202e", "\\u0007", "1", "0", "4") "}", 4, FSDP_FORMAT, "'\\xe2\\x80\\xae': unknown dtype '\\x07'"},
    {"{\"__metadata__\":3}", 0, FSDP_FORMAT, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"n\":3}}", 0, FSDP_FORMAT, "'n' in __metadata__ is not a string"},
};

TEST(every_fault_of_a_header_is_named)
{
    char *directory = test_directory(), *path = test_path(directory, "broken.safetensors");

    for (size_t i = 0; i < FSDP__COUNT_OF(header_faults); i++) {
        fsdp_safetensors *file = NULL;

        write_file(path, header_faults[i].header, header_faults[i].data_bytes);
        CHECK_ERROR(fsdp_safetensors_open(path, &file), header_faults[i].status, header_faults[i].part);
        CHECK_CONTAINS(fsdp_last_error(), "broken.safetensors");
        CHECK_NULL(file);
    }
}

/* Somebody else's: who has no use for them may pass them over. */
TEST(dtypes_that_this_library_has_not_are_listed)
{
    char *directory = test_directory(), *path = test_path(directory, "x.safetensors");
    const fsdp_weights_entry *entry;
    fsdp_safetensors *file = NULL;
    fsdp_weights *weights = NULL;
    double value;

    write_file(path,
               "{\"__metadata__\":null," TENSOR("a", "F64", "2", "0", "16") "," TENSOR(
                   "b", "F4", "2,3", "16", "19") "," TENSOR("c", "F32", "1", "19", "23") "}",
               23);
    CHECK_OK(fsdp_safetensors_open(path, &file));
    CHECK_EQ(fsdp_safetensors_find(file, "a")->dtype, FSDP_DTYPE_NONE);
    CHECK_STRING(fsdp_safetensors_find(file, "a")->dtype_name, "F64");
    CHECK_EQ(fsdp_safetensors_find(file, "b")->bytes, 3);
    CHECK_STRING(fsdp_safetensors_find(file, "c")->dtype_name, "float32");
    fsdp_safetensors_close(file);
    CHECK_OK(fsdp_weights_open(path, &weights));
    entry = CHECK_PTR(fsdp_weights_find(weights, "a"));
    CHECK_STRING(entry->dtype_name, "F64");
    CHECK_EQ(entry->bytes, 16);
    CHECK_ERROR(fsdp_weights_read(weights, entry, 0, 1, &value), FSDP_UNSUPPORTED, "tensor 'a' is F64, which is not");
    fsdp_weights_close(weights);
}

TEST(the_length_of_the_header_is_checked)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *part;
    } cases[] = {
        {"", 0, "0 bytes are too few"},
        {"\2\0\0\0\0\0\0", 7, "7 bytes are too few"},
        {"\0\0\0\0\0\0\0\0", 8, "does not begin with '{'"},
        {"\0\0\0\0\0\0\0\0{", 9, "line 1 column"},
        {"a text of some words", 20,
         "x.safetensors': it is not a safetensors file: its header does not begin with '{'"},
        {"PK\3\4and more of it", 18, "not a safetensors file but a zip archive, as torch.save writes"},
        {"version https://git-lfs.github.com/spec/v1", 42, "is a pointer of Git LFS: fetch the file"},
        {"\3\0\0\0\0\0\0\0{}", 10, "header of 3 bytes goes beyond its 10 bytes"},
        {"\1\341\365\5\0\0\0\0{}", 10, "header of 100000001 bytes is over the limit"},
        {"\377\377\377\377\377\377\377\377{}", 10, "over the limit of 100000000"},
    };
    char *directory = test_directory(), *path = test_path(directory, "x.safetensors");
    fsdp_safetensors *file = NULL;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_write_file(path, cases[i].bytes, cases[i].count);
        CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_FORMAT, cases[i].part);
    }
    path = test_path(directory, "absent.safetensors");
    CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_NOT_FOUND, "absent.safetensors");
    CHECK_ERROR(fsdp_safetensors_open(NULL, &file), FSDP_INVALID, "required");
}

static void put_tensor(const char *directory, const char *file, const char *tensor)
{
    char *path = test_path(directory, file), header[256];

    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", tensor);
    write_file(path, header, 3);
}

#define INDEX "model.safetensors.index.json"

TEST(an_index_opens_all_its_files)
{
    char *directory = test_directory();
    fsdp_safetensors *files = NULL;

    put_tensor(directory, "1.safetensors", "z");
    put_tensor(directory, "2.safetensors", "a");
    test_write_text(directory, INDEX,
                    "{\"metadata\":{},\"weight_map\":{\"a\":\"2.safetensors\",\"z\":\"1.safetensors\"}}");
    CHECK_OK(fsdp_safetensors_open(directory, &files));
    CHECK_EQ(fsdp_safetensors_count(files), 2);
    CHECK_EQ(fsdp_safetensors_file_count(files), 2);
    CHECK_STRING(fsdp_safetensors_at(files, 0)->name, "a");
    CHECK_CONTAINS(fsdp_safetensors_find(files, "z")->file, "1.safetensors");
    fsdp_safetensors_close(files);
    put_tensor(directory, "model.safetensors", "single"); /* is preferred, as transformers does */
    CHECK_OK(fsdp_safetensors_open(directory, &files));
    CHECK_STRING(fsdp_safetensors_at(files, 0)->name, "single");
    fsdp_safetensors_close(files);
}

/* An index says what is meant; what a file holds besides may be an old buffer. */
TEST(what_an_index_does_not_list_is_marked)
{
    char *directory = test_directory(), *path = test_path(directory, "1.safetensors");
    fsdp_safetensors *files = NULL;

    write_file(path,
               "{" TENSOR("a", "U8", "1", "0", "1") "," TENSOR("b", "U8", "1", "1", "2") "," TENSOR("c", "U8", "1", "2",
                                                                                                    "3") "}",
               3);
    put_tensor(directory, "2.safetensors", "z");
    test_write_text(directory, INDEX, "{\"weight_map\":{\"b\":\"./1.safetensors\",\"z\":\".//./2.safetensors\"}}");
    CHECK_OK(fsdp_safetensors_open(directory, &files));
    CHECK_EQ(fsdp_safetensors_count(files), 4);
    CHECK_EQ(fsdp_safetensors_file_count(files), 2);
    CHECK(fsdp_safetensors_find(files, "a")->unlisted && fsdp_safetensors_find(files, "c")->unlisted);
    CHECK(!fsdp_safetensors_find(files, "b")->unlisted && !fsdp_safetensors_find(files, "z")->unlisted);
    fsdp_safetensors_close(files);
    test_write_text(directory, INDEX,
                    "{\"weight_map\":{\"b\":\"1.safetensors\",\"c\":\"././1.safetensors\"}}"); /* one file */
    CHECK_OK(fsdp_safetensors_open(directory, &files));
    CHECK_EQ(fsdp_safetensors_file_count(files), 1);
    fsdp_safetensors_close(files);
    put_tensor(directory, "2.safetensors", "a"); /* one that the index means, and one that it does not */
    test_write_text(directory, INDEX, "{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}");
    CHECK_ERROR(fsdp_safetensors_open(directory, &files), FSDP_FORMAT, "cannot tell which tensor 'a' is meant: both '");
}

TEST(every_fault_of_an_index_is_named)
{
    static const struct {
        const char *text;
        fsdp_status status;
        const char *part;
    } cases[] = {
        {"", FSDP_FORMAT, INDEX "': line 1"},
        {"[]", FSDP_FORMAT, "not a JSON object"},
        {"{}", FSDP_FORMAT, "no weight_map"},
        {"{\"weight_map\":[]}", FSDP_FORMAT, "no weight_map"},
        {"{\"weight_map\":{\"a\":3}}", FSDP_FORMAT, "the file of tensor 'a' is not a string"},
        {"{\"weight_map\":{\"a\":\"\"}}", FSDP_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", FSDP_FORMAT,
         "'../1.safetensors', which is not a plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", FSDP_FORMAT, "'/etc/passwd', which is not a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", FSDP_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"./../1.safetensors\"}}", FSDP_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"./\"}}", FSDP_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"./sub/1.safetensors\"}}", FSDP_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"a\\u001b\":\"\\u0007/\"}}", FSDP_FORMAT, "tensor 'a\\x1b' is said to be in '\\x07/'"},
        {"{\"weight_map\":{\"a\":\"3.safetensors\"}}", FSDP_NOT_FOUND, "3.safetensors', in which '"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}}", FSDP_FORMAT,
         "1.safetensors': it lacks tensor 'b'"},
        {"{\"weight_map\":{\"c\":\"1.safetensors\"}}", FSDP_FORMAT, "1.safetensors': it lacks tensor 'c'"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"3.safetensors\"}}", FSDP_NOT_FOUND, "3.safetensors'"},
    };
    char *directory = test_directory();

    put_tensor(directory, "1.safetensors", "a");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fsdp_safetensors *files = NULL;

        test_write_text(directory, INDEX, cases[i].text);
        CHECK_ERROR(fsdp_safetensors_open(directory, &files), cases[i].status, cases[i].part);
        CHECK_NULL(files);
    }
}

/* The name of a tensor leaves room for what is wrong with it. */
TEST(a_very_long_name_is_cut_in_messages)
{
    char *directory = test_directory(), *path = test_path(directory, "x.safetensors"), header[3000];
    fsdp_safetensors *file = NULL;

    snprintf(header, sizeof header, "{\"%02000d\":{}}", 0);
    write_file(path, header, 0);
    CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_FORMAT, "000': it has no dtype");
    CHECK_CONTAINS(fsdp_last_error(), "000...000");
}

/* Terabytes that are not there: neither memory nor time is taken for them. */
TEST(a_sparse_file_costs_nothing)
{
    static const char header[] = "\102\0\0\0\0\0\0\0"
                                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1099511627776],\"data_offsets\":[0,8]}} ";
    char *directory = test_directory(), *path = test_path(directory, "x.safetensors");
    fsdp_safetensors *file = NULL;

    test_write_file(path, header, sizeof header - 1);
    if (truncate(path, (off_t)1 << 40) != 0) {
        print_message("this file system holds no file of a terabyte\n");
        skip();
    }
    CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_FORMAT, "hold 8 bytes, but uint8 of shape (1099511627776,)");
    CHECK_EQ(truncate(path, 0), 0);
    CHECK_EQ(truncate(path, (off_t)1 << 40), 0);
    CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_FORMAT, "does not begin with '{'");
    path = test_path(directory, INDEX);
    test_write_file(path, "", 0);
    CHECK_EQ(truncate(path, (off_t)1 << 40), 0);
    CHECK_ERROR(fsdp_safetensors_open(path, &file), FSDP_FORMAT, "1099511627776 bytes are more than the limit");
}

TEST(folders_without_safetensors_say_what_they_have)
{
    char *directory = test_directory();
    fsdp_safetensors *files = NULL;

    CHECK_ERROR(fsdp_safetensors_open(directory, &files), FSDP_NOT_FOUND, "has neither model.safetensors nor");
    test_write_text(directory, "pytorch_model-00001-of-00002.bin", "x");
    CHECK_ERROR(fsdp_safetensors_open(directory, &files), FSDP_UNSUPPORTED,
                "has only pytorch_model.bin files: convert it to safetensors");
}

TEST(a_failed_allocation_leaves_nothing)
{
    char *directory = test_directory();

    put_tensor(directory, "1.safetensors", "z");
    put_tensor(directory, "2.safetensors", "a");
    test_write_text(directory, INDEX, "{\"weight_map\":{\"a\":\"2.safetensors\",\"z\":\"1.safetensors\"}}");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_safetensors *files = NULL;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_safetensors_open(directory, &files));
        fsdp_safetensors_close(files);
    }
}
