/* test_build.c - the build that a process runs. */
#include "base/build.h"
#include "fsdp/context.h"
#include "support/test.h"

TEST(it_is_version_and_build_id_of_what_an_address_lies_in)
{
    char own[FSDP__BUILD_BYTES], of_test[FSDP__BUILD_BYTES], of_libc[FSDP__BUILD_BYTES];
    static const char start[] = FSDP_VERSION ", build ";

    memset(own, 'x', sizeof own);
    fsdp__build_own(own);
    CHECK_EQ(strncmp(own, start, strlen(start)), 0);
    CHECK_EQ(strlen(own), strlen(start) + 40); /* SHA-1 */
    CHECK_EQ(strspn(own + strlen(start), "0123456789abcdef"), 40);
    for (size_t i = strlen(own); i < sizeof own; i++)
        CHECK_EQ(own[i], 0);
    fsdp__build_of(start, of_test); /* the library is linked into the test */
    CHECK_STRING(of_test, own);
    fsdp__build_of((const void *)&getenv, of_libc);
    CHECK(strcmp(of_libc, own) != 0);
}

TEST(what_is_in_no_library_has_none)
{
    char text[FSDP__BUILD_BYTES] = "";

    fsdp__build_of(text, text);
    CHECK_STRING(text, FSDP_VERSION ", no build id");
}
