/* The hash against its published values. */
#include "base/hash.h"
#include "support/test.h"

static uint64_t hash_of(const char *text)
{
    return fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, strlen(text));
}

static void fnv_1a_gives_the_published_values(void **state)
{
    (void)state;
    CHECK(hash_of("") == 0xcbf29ce484222325u);
    CHECK(hash_of("a") == 0xaf63dc4c8601ec8cu);
    CHECK(hash_of("foobar") == 0x85944171f73967e8u);
}

static void a_hash_goes_on_where_it_ended(void **state)
{
    (void)state;
    CHECK(fsdp__hash_bytes(hash_of("foo"), "bar", 3) == hash_of("foobar"));
}

TEST_MAIN(cmocka_unit_test(fnv_1a_gives_the_published_values), cmocka_unit_test(a_hash_goes_on_where_it_ended))
