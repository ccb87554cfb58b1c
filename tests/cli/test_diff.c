/* fsdp diff: equal, apart, in another dtype or shape, missing; folders, files and checkpoints; exit statuses. */
#include "cli/fixture.h"
#include "cli/saved.h"

static void train(const fixture *f, const char *export)
{
    char path[600];

    snprintf(path, sizeof path, "--export.path=%s%s", f->model, export);
    RUN(0, "train", f->config, "--training.steps=1", path);
}

/* A file of tensors; `header` without its length, `data` behind it. */
static void write_tensors(const char *path, const char *header, const void *data, size_t bytes)
{
    char file[1000] = {0};
    size_t length = strlen(header);

    file[0] = (char)(length & 0xff);
    file[1] = (char)(length >> 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, data, bytes);
    test_write_file(path, file, 8 + length + bytes);
}

FIXTURE_TEST(the_same_model_is_equal_however_it_is_stored)
{
    char *folder = test_path(f->directory, "runs"), *file = test_path(f->directory, "model/model.safetensors");
    char *step = test_path(f->directory, "runs/step-7");
    saved s = {.model = f->model, .folder = folder, .step = 7, .factor = 1};
    program p;

    train(f, "");
    saved_make(3, &s);
    p = RUN(0, "diff", f->model, file);
    CHECK_CONTAINS(p.output, "equal      model.layers.0.mlp.up_proj.weight\n");
    CHECK_CONTAINS(p.output, "21 equal, 0 different, 0 only in A, 0 only in B");
    p = RUN(1, "diff", step, f->model, "--brief"); /* but for the norm, which was set to 1 when it was saved */
    CHECK_EQ(strncmp(p.output, "differs    model.norm.weight  by ", 33), 0);
    CHECK_CONTAINS(p.output, "20 equal, 1 different, 0 only in A, 0 only in B");
    s.step = 9;
    saved_make(2, &s);
    p = RUN(0, "diff", folder, step); /* the newest; of two checkpoints all sections */
    CHECK_CONTAINS(p.output, "equal      model.model.norm.weight\n");
}

FIXTURE_TEST(what_is_apart_is_shown)
{
    static const float a[] = {1, 2, 3, 4, 5, 6, 0}, b[] = {1, 2.5f, 3, 4, 5, -6, -0.0f};
    static const uint16_t narrow[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0};
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"zero\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}";
    static const char transposed[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
                                     "\"zwei\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}";
    static const char half[] = "{\"x\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                               "\"zero\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[12,14]}}";
    char *first = test_path(f->directory, "a.safetensors"), *second = test_path(f->directory, "b.safetensors");
    program p;

    write_tensors(first, header, a, sizeof a);
    write_tensors(second, header, b, sizeof b);
    p = RUN(1, "diff", first, second);
    CHECK_STRING(p.output, "differs    x  by 12 at most, at [1, 2]: 6 and -6; 2 of 6 elements\n"
                           "equal      zero\n"
                           "1 equal, 1 different, 0 only in A, 0 only in B\n");
    write_tensors(second, transposed, a, sizeof a);
    p = RUN(1, "diff", first, second);
    CHECK_STRING(p.output, "shape      x  [2, 3] and [3, 2]\n"
                           "only in A  zero  float32 []\n"
                           "only in B  zwei  float32 [1]\n"
                           "0 equal, 1 different, 1 only in A, 1 only in B\n");
    write_tensors(second, half, narrow, sizeof narrow);
    p = RUN(1, "diff", first, second, "--brief");
    CHECK_STRING(p.output, "dtype      x  float32 and bfloat16\n"
                           "dtype      zero  float32 and bfloat16\n"
                           "0 equal, 2 different, 0 only in A, 0 only in B\n");
}

FIXTURE_TEST(no_numbers_and_large_ones_count)
{
    static const uint32_t a[] = {0x7fc00000, 0x7fc00000, 0x7f800000, 0}, b[] = {0x7fc00000, 0, 0x7f800000, 0};
    static const int64_t large[] = {(int64_t)1 << 60, 5}, larger[] = {((int64_t)1 << 60) + 1, 5};
    char *first = test_path(f->directory, "a.safetensors"), *second = test_path(f->directory, "b.safetensors");

    write_tensors(first, "{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", a, sizeof a);
    write_tensors(second, "{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", b, sizeof b);
    SAYS(1, "by inf at most, at [1]: nan and 0; 1 of 4 elements", "diff", first, second);
    write_tensors(first, "{\"x\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}}", large, sizeof large);
    write_tensors(second, "{\"x\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}}", larger, sizeof larger);
    SAYS(1, "at [0]: 1.1529215e+18 and 1.1529215e+18; 1 of 2 elements", "diff", first, second);
}

FIXTURE_TEST(trouble_is_status_2)
{
    char *folder = test_path(f->directory, "runs"), *part = test_path(f->directory, "runs/step-7");
    char *file = test_path(f->directory, "runs/step-7/rank-00001-of-00002.safetensors"), *bytes;
    saved s = {.model = f->model, .folder = folder, .step = 7, .factor = 1};
    size_t count;
    program p;

    SAYS(2, "diff: give two models", "diff", f->model);
    SAYS(2, "'/nowhere'", "diff", "/nowhere", "/nowhere");
    train(f, "");
    saved_make(2, &s);
    bytes = test_read_file(file, &count);
    bytes[count - 5] ^= 1;
    test_write_file(file, bytes, count);
    p = RUN(2, "diff", part, f->model); /* a checksum is looked at before a number is */
    CHECK_CONTAINS(p.output, "rank-00001-of-00002.safetensors");
}
