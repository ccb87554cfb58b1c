/* The hash against its published values. */
#include "base/hash.h"
#include "support/test.h"

static uint64_t hash_of(const char *text)
{
    return fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, strlen(text));
}

TEST(fnv_1a_gives_the_published_values)
{
    CHECK(hash_of("") == 0xcbf29ce484222325u);
    CHECK(hash_of("a") == 0xaf63dc4c8601ec8cu);
    CHECK(hash_of("foobar") == 0x85944171f73967e8u);
}

TEST(a_hash_goes_on_where_it_ended)
{
    CHECK(fsdp__hash_bytes(hash_of("foo"), "bar", 3) == hash_of("foobar"));
}
