/* test_signature.c - two calls have the same signature where they are the same call. */
#include <string.h>

#include "comm/health/signature.h"
#include "support/test.h"

static bool are_same(fsdp__call a, fsdp__call b)
{
    fsdp__signature first, second;

    fsdp__signature_fill(&a, &first);
    fsdp__signature_fill(&b, &second);
    return memcmp(&first, &second, sizeof first) == 0;
}

TEST(what_tells_calls_apart)
{
    const fsdp__call call = {
        .name = FSDP__CALL_BROADCAST, .sequence = 7, .dtype = FSDP_F32, .count = 10, .root = 0, .label = "a"};
    fsdp__call others[] = {call, call, call, call, call, call, call};

    CHECK(are_same(call, call));
    others[0].name = FSDP__CALL_ALL_GATHER;
    others[1].sequence = 8;
    others[2].dtype = FSDP_I32;
    others[3].count = 11;
    others[4].root = 1;
    others[5].root = 256; /* there may be so many over machines */
    others[6].label[0] = 'b';
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        CHECK(!are_same(call, others[i]));
}

TEST(where_the_memory_lies_tells_nothing)
{
    float values[8];
    fsdp__call call = {.name = FSDP__CALL_ALL_REDUCE, .dtype = FSDP_F32, .count = 4, .send = values, .recv = values};
    fsdp__call other = call;

    other.send = other.recv = values + 4;
    CHECK(are_same(call, other));
}

static void check_text(const fsdp__call *first, const fsdp__call *other, const char *expected)
{
    fsdp__signature a, b;
    char text[640];

    fsdp__signature_fill(first, &a);
    fsdp__signature_fill(other, &b);
    fsdp__signature_mismatch("g", &a, 4, &b, 6, text, sizeof text);
    CHECK_STRING(text, expected);
}

#define GATHER "all_gather_coalesced of 1 buffers with 32 bytes float32"
#define BOTH "ranks disagree in group 'g': call 7 is " GATHER " on rank 4 but " GATHER " on rank 6"

TEST(what_differs_is_said)
{
    fsdp_sharded_buffer buffer = {.numel = 16, .chunk = 8, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32},
                        odd = buffer;
    const fsdp__call call = {.name = FSDP__CALL_ALL_GATHER_COALESCED,
                             .sequence = 7,
                             .buffers = &buffer,
                             .buffer_count = 1,
                             .predivide = 1,
                             .divisor = 1};
    fsdp__call other = call, call_there = call;

    odd.numel = 15;
    other.buffers = &odd;
    check_text(&call, &other, BOTH " with other sizes or dtypes of the buffers");
    other = call;
    other.places = 3;
    check_text(&call, &other, BOTH " into shared memory");
    check_text(&other, &call, BOTH " into memory that is not shared");
    call_there.places = 4;
    check_text(&call_there, &other, BOTH " elsewhere in shared memory");
    other = call;
    other.force_copy = true;
    check_text(&call, &other, BOTH " with force_copy");
    check_text(&other, &call, BOTH " without force_copy");
    other = call;
    other.divisor = 2;
    check_text(&call, &other, BOTH " with another predivide or divisor");
    other = call;
    other.sequence = 8;
    check_text(&call, &other,
               "ranks disagree in group 'g': call 7 is " GATHER " on rank 4 but call 8, " GATHER " on rank 6");
    other = (fsdp__call){.name = FSDP__CALL_BARRIER, .sequence = 7};
    check_text(&call, &other, "ranks disagree in group 'g': call 7 is " GATHER " on rank 4 but barrier on rank 6");
}
