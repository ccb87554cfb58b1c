/* test_signature.c - two calls have the same signature where they are the same call. */
#include <string.h>

#include "comm/symmetric/signature.h"
#include "support/test.h"

static bool are_same(fsdp__call a, fsdp__call b)
{
    fsdp__signature first, second;

    fsdp__signature_fill(&a, &first);
    fsdp__signature_fill(&b, &second);
    return memcmp(&first, &second, sizeof first) == 0;
}

static void what_tells_calls_apart(void **state)
{
    const fsdp__call call = {
        .name = FSDP__CALL_BROADCAST, .sequence = 7, .dtype = FSDP_F32, .count = 10, .root = 0, .label = "a"};
    fsdp__call others[] = {call, call, call, call, call, call, call};

    (void)state;
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

static void where_the_memory_lies_tells_nothing(void **state)
{
    float values[8];
    fsdp__call call = {.name = FSDP__CALL_ALL_REDUCE, .dtype = FSDP_F32, .count = 4, .send = values, .recv = values};
    fsdp__call other = call;

    (void)state;
    other.send = other.recv = values + 4;
    CHECK(are_same(call, other));
}

TEST_MAIN(cmocka_unit_test(what_tells_calls_apart), cmocka_unit_test(where_the_memory_lies_tells_nothing))
