/* Names and sizes of element types. */
#include "fsdp/dtype.h"
#include "support/test.h"

TEST(every_name_of_a_dtype_finds_it)
{
    static const struct {
        fsdp_dtype dtype;
        size_t bytes;
        bool floating;
        const char *names[4]; /* the first is PyTorch's */
    } cases[] = {
        {FSDP_F32, 4, true, {"float32", "f32", "F32"}},
        {FSDP_BF16, 2, true, {"bfloat16", "bf16", "BF16"}},
        {FSDP_F16, 2, true, {"float16", "f16", "F16", "half"}},
        {FSDP_I32, 4, false, {"int32", "i32", "I32"}},
        {FSDP_I64, 8, false, {"int64", "i64", "I64"}},
        {FSDP_U8, 1, false, {"uint8", "u8", "U8"}},
        {FSDP_BOOL, 1, false, {"bool", "BOOL"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(fsdp_dtype_size(cases[i].dtype), cases[i].bytes);
        CHECK_EQ(fsdp_dtype_is_floating(cases[i].dtype), cases[i].floating);
        CHECK_STRING(fsdp_dtype_name(cases[i].dtype), cases[i].names[0]);
        for (int n = 0; n < 4 && cases[i].names[n]; n++)
            CHECK_EQ(fsdp_dtype_from_name(cases[i].names[n]), cases[i].dtype);
    }
}

TEST(what_is_no_dtype_is_none)
{
    CHECK_EQ(fsdp_dtype_from_name("float64"), FSDP_DTYPE_NONE);
    CHECK_EQ(fsdp_dtype_from_name("none"), FSDP_DTYPE_NONE);
    CHECK_EQ(fsdp_dtype_from_name(""), FSDP_DTYPE_NONE);
    CHECK_EQ(fsdp_dtype_from_name(NULL), FSDP_DTYPE_NONE);
    CHECK_EQ(fsdp_dtype_size(FSDP_DTYPE_NONE), 0);
    CHECK_EQ(fsdp_dtype_size((fsdp_dtype)99), 0);
    CHECK_EQ(fsdp_dtype_size((fsdp_dtype)-1), 0);
}
