/* Checked host memory. */
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "support/test.h"

/* Two blocks as oneDNN takes them for a product. Returns where the heap ends while they are there. */
static char *take_and_free(void)
{
    void *volatile first = malloc(700000), *volatile second = malloc(700000);
    char *end = sbrk(0);

    free(second);
    free(first);
    return end;
}

/* The first case: what others free would be taken again. */
TEST(what_is_freed_at_the_end_of_the_heap_stays)
{
    char *end;

#if FSDP__ASAN || FSDP__TSAN || !defined(__GLIBC__)
    skip(); /* another malloc */
#endif
    take_and_free(); /* the first is mapped by itself */
    end = take_and_free();
    CHECK(sbrk(0) != end);
    fsdp__keep_heap();
    end = take_and_free();
    for (int i = 0; i < 3; i++) {
        CHECK(sbrk(0) == end);
        CHECK(take_and_free() == end);
    }
}

TEST(zero_bytes_give_a_pointer)
{
    void *a = fsdp__malloc(0), *b = fsdp__calloc(0, 8), *c = fsdp__calloc(8, 0), *d = fsdp__realloc(NULL, 0);

    CHECK(a && b && c && d);
    fsdp__free(a);
    fsdp__free(b);
    fsdp__free(c);
    fsdp__free(d);
    fsdp__free(NULL);
}

TEST(calloc_zeroes_and_refuses_overflow)
{
    unsigned char *bytes = fsdp__calloc(7, 3), zeros[21] = {0};

    CHECK_PTR(bytes);
    CHECK_BYTES(bytes, zeros, sizeof zeros);
    fsdp__free(bytes);
    CHECK_NULL(fsdp__calloc(SIZE_MAX / 2, 3));
    CHECK_EQ(fsdp_last_status(), FSDP_NO_MEMORY);
    CHECK_CONTAINS(fsdp_last_error(), "out of memory");
}

TEST(strings_are_copied_and_formatted)
{
    char *copy = fsdp__strdup("layers.0"), *made = fsdp__sprintf("%s.%s[%d]", copy, "weight", 42);

    CHECK_STRING(copy, "layers.0");
    CHECK_STRING(made, "layers.0.weight[42]");
    fsdp__free(copy);
    fsdp__free(made);
}

/* Up to 255 characters are formatted beside the text, and longer ones in it. */
TEST(texts_of_any_length_are_formatted_whole)
{
    char long_text[600];

    memset(long_text, 'a', sizeof long_text);
    for (int length = 0; length < 600; length++) {
        char *made = fsdp__sprintf("%.*s", length, long_text);

        CHECK_PTR(made);
        CHECK_EQ(strlen(made), length);
        CHECK_EQ(strspn(made, "a"), length);
        fsdp__free(made);
    }
}

TEST(grow_makes_room_for_the_next_item)
{
    int64_t *items = NULL, capacity = 0;

    for (int64_t i = 0; i < 1000; i++) {
        CHECK_EQ(fsdp__grow(&items, i, &capacity, sizeof *items), 0);
        CHECK(capacity > i);
        items[i] = i * i;
    }
    for (int64_t i = 0; i < 1000; i++)
        CHECK_EQ(items[i], i * i);
    CHECK_EQ(fsdp__grow(&items, 100000, &capacity, sizeof *items), 0);
    CHECK(capacity > 100000);
    fsdp__free(items);
}

TEST(a_failed_grow_changes_nothing)
{
    int32_t *items = NULL, *before;
    int64_t capacity = 0;

    CHECK_EQ(fsdp__grow(&items, 0, &capacity, sizeof *items), 0);
    before = items;
    items[0] = 5;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK(fsdp__grow(&items, capacity, &capacity, sizeof *items) != 0);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK(items == before && items[0] == 5);
    CHECK_EQ(capacity, 8);
    CHECK(fsdp__grow(&items, INT64_MAX / 4, &capacity, SIZE_MAX / 2) != 0);
    CHECK_EQ(capacity, 8);
    fsdp__free(items);
}

TEST(every_call_is_a_fault_point)
{
    void *kept = fsdp__malloc(16);

    for (int which = 0; which < 5; which++) {
        void *got = NULL;

        fsdp_clear_error();
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
        switch (which) {
        case 0:
            got = fsdp__malloc(8);
            break;
        case 1:
            got = fsdp__calloc(2, 8);
            break;
        case 2:
            got = fsdp__realloc(kept, 4096);
            break;
        case 3:
            got = fsdp__strdup("text");
            break;
        default:
            got = fsdp__sprintf("%d", 7);
            break;
        }
        CHECK_NULL(got);
        CHECK(fsdp__fault_hit(FSDP__FAULT_ALLOCATION));
        CHECK_EQ(fsdp_last_status(), FSDP_NO_MEMORY);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    fsdp__free(kept);
}
