/* A table of keys: its struct is filled, printed and explained by the table alone. */
#include <math.h>

#include "config/pool.h"
#include "support/test.h"

TEST(fields_are_found_by_their_offset)
{
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_EQ(p.water.length, 25);
    CHECK(isnan(p.water.depth));
    CHECK(p.water.heated);
    CHECK_EQ(p.water.shape, 7);
    CHECK_NULL(p.water.name);
    CHECK_EQ(p.water.lane_count, 0);
    CHECK_EQ(p.attendants, -1);
    CHECK_OK(fsdp__config_set(&pool_table, &p, "water.depth", "1.5"));
    CHECK_OK(fsdp__config_set(&pool_table, &p, "water.lanes", "[a, 'b c']"));
    CHECK_OK(fsdp__config_set(&pool_table, &p, "people.attendants", "12345678901"));
    CHECK_NEAR(p.water.depth, 1.5, 0);
    CHECK_EQ(p.water.lane_count, 2);
    CHECK_STRING(p.water.lanes[1], "b c");
    CHECK_EQ(p.attendants, 12345678901);
    fsdp__config_release(&pool_table, &p);
    CHECK_NULL(p.water.lanes);
    fsdp__config_release(&pool_table, &p); /* nothing is left to free twice */
}

TEST(a_choice_may_be_a_number_too)
{
    static const char *const texts[] = {"none", "some", "2", "30"};
    static const int values[] = {0, -1, 2, 30};
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_EQ(p.water.slide, 0);
    for (int i = 0; i < 4; i++) {
        char text[1024] = "";
        FILE *stream = fmemopen(text, sizeof text, "w");

        CHECK_OK(fsdp__config_set(&pool_table, &p, "water.slide", texts[i]));
        CHECK_EQ(p.water.slide, values[i]);
        CHECK_OK(fsdp__config_print(&pool_table, &p, stream));
        fclose(stream);
        CHECK_CONTAINS(strstr(text, "slide: "), texts[i]);
    }
    fsdp__config_release(&pool_table, &p);
}

TEST(messages_are_made_of_the_table)
{
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.length", "51"), FSDP_INVALID,
                "water.length is '51': expected an integer from 1 to 50");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.shape", "oval"), FSDP_INVALID,
                "water.shape is 'oval': expected round or square");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.slide", "1"), FSDP_INVALID,
                "water.slide is '1': expected none, some or an integer from 2 to 30");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "wtaer.shape", "round"), FSDP_INVALID,
                "wtaer is not a section; did you mean 'water'?");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "staff.count", "1"), FSDP_INVALID,
                "staff is not a section: expected water or people");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "people.lanes", "1"), FSDP_INVALID,
                "people.lanes is not a key of people; did you mean 'water.lanes'?");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "people.xyz", "1"), FSDP_INVALID,
                "people.xyz is not a key of people, which has: attendants");
    CHECK_ERROR(fsdp__config_set(&pool_table, &p, "depth", "1"), FSDP_INVALID,
                "'depth' is not a key: expected section.name, such as water.depth");
    fsdp__config_release(&pool_table, &p);
}

TEST(a_file_is_read_and_printed_by_the_table)
{
    static const char text[] =
        "water:\n  length: 33\n  heated: false\n  lanes:\n    - x\n    - y\npeople: {attendants: 4}\n";
    char *directory = test_directory(), *path = test_path(directory, "pool.yaml"), *printed;
    FILE *file;
    size_t bytes = 0;
    pool p = {0}, again = {0};

    test_write_file(path, text, sizeof text - 1);
    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_OK(fsdp__config_load(&pool_table, &p, path));
    CHECK_EQ(p.water.length, 33);
    CHECK(!p.water.heated);
    CHECK_EQ(p.water.lane_count, 2);
    CHECK_EQ(p.attendants, 4);

    file = CHECK_PTR(fopen(path, "w"));
    CHECK_OK(fsdp__config_print(&pool_table, &p, file));
    fclose(file);
    printed = test_read_file(path, &bytes);
    CHECK_CONTAINS(printed, "  # depth:\n");
    CHECK_CONTAINS(printed, "people:\n  attendants: 4\n");
    CHECK_OK(fsdp__config_default(&pool_table, &again));
    CHECK_OK(fsdp__config_load(&pool_table, &again, path));
    CHECK_EQ(again.water.length, 33);
    CHECK_EQ(again.water.lane_count, 2);

    test_write_file(path, "just words\n", 11);
    CHECK_ERROR(fsdp__config_load(&pool_table, &p, path), FSDP_FORMAT, "expected sections (water:, people:)");
    fsdp__config_release(&pool_table, &again);
    fsdp__config_release(&pool_table, &p);
}

TEST(a_table_that_is_too_large_is_refused)
{
    fsdp__key many[FSDP__KEYS_PER_SECTION + 1];
    const char *names[FSDP__KEY_SECTIONS + 2] = {0};
    fsdp__key_table large = {.keys = many, .count = FSDP__KEYS_PER_SECTION + 1, .sections = pool_table.sections};
    pool p = {0};

    for (int i = 0; i <= FSDP__KEYS_PER_SECTION; i++)
        many[i] = pool_table.keys[0];
    CHECK_ERROR(fsdp__config_default(&large, &p), FSDP_UNSUPPORTED, "section water has 41 keys: at most 40");
    large.count--;
    CHECK_OK(fsdp__config_default(&large, &p));
    for (int i = 0; i <= FSDP__KEY_SECTIONS; i++)
        names[i] = "water";
    large.sections = names;
    CHECK_ERROR(fsdp__config_default(&large, &p), FSDP_UNSUPPORTED, "a config has 17 sections: at most 16");
}

TEST(fields_that_were_written_by_hand_are_checked_as_text_is)
{
    char *hole[] = {"a", NULL};
    pool_ticket ticket = {.name = NULL, .price = NAN, .hours = 2};
    pool p = {0}, q;

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_OK(fsdp__config_check(&pool_table, &p));
#define REFUSED(change, message) q = p, change, CHECK_ERROR(fsdp__config_check(&pool_table, &q), FSDP_INVALID, message)
    REFUSED(q.water.length = 51, "water.length is 51: expected an integer from 1 to 50");
    REFUSED(q.water.depth = 0, "water.depth is 0: expected a number greater than 0");
    REFUSED(q.water.depth = INFINITY, "water.depth is inf: expected a number");
    REFUSED(q.water.shape = 6, "water.shape is 6: expected round or square");
    REFUSED(q.water.slide = 1, "water.slide is 1: expected none, some or an integer");
    REFUSED(q.water.name = "\xff", "water.name is not text in UTF-8");
    REFUSED(q.water.lane_count = 2, "water.lanes: its number of entries is 2, but there is no list");
    REFUSED(q.water.lane_count = -1, "water.lanes: its number of entries is -1, but it must not be negative");
    REFUSED((q.water.lanes = hole, q.water.lane_count = 2), "water.lanes: entry 1 of 2 is NULL");
    REFUSED(q.attendants = -2, "people.attendants is -2: expected -1 or an integer from 0");
    REFUSED(q.photos = 1, "people.photos is 1: expected a size");
    REFUSED(q.ticket_count = 1, "people.tickets: its number of entries is 1, but there is no list");
    REFUSED((q.tickets = &ticket, q.ticket_count = 1), "people.tickets: entry 0 has no name");
    ticket.name = "day";
    CHECK_OK(fsdp__config_check(&pool_table, &q));
    ticket.price = 101;
    CHECK_ERROR(fsdp__config_check(&pool_table, &q), FSDP_INVALID, "people.tickets.price is 101: expected a number");
#undef REFUSED
    fsdp__config_release(&pool_table, &p);
}
