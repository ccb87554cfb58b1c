/* Values and their text: what is printed reads back as the same, and what could not is refused. */
#include <float.h>

#include "config/pool.h"
#include "config/yaml.h"
#include "support/test.h"

/* Prints `p` and reads it again. */
static pool reread(const pool *p)
{
    FILE *out = test_begin_text();
    char *printed;
    pool again = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &again));
    CHECK_OK(fsdp__config_print(&pool_table, p, out));
    printed = test_end_text(out);
    CHECK_OK(fsdp__yaml_apply(&pool_table, &again, "printed", printed, strlen(printed)));
    return again;
}

TEST(every_text_is_printed_so_that_it_reads_back)
{
    static const char *const texts[] = {
        "a",         "a b",      "it's",     "\"q\"",        "a: b",         "#a",           "- a",
        "?",         "[a, b]",   "{a}",      "&a",           "*a",           "!a",           "%a",
        "@a",        "`a",       "a\nb",     "\n",           " a ",          "a\tb",         "\x1b[2J",
        "\x7f",      "\\n",      "\\",       "true",         "1e3",          "...",          "---",
        "\xC3\xA9t", "\xC2\x85", "\xC2\x9B", "\xE2\x80\xA8", "\xEF\xBB\xBF", "\xEF\xBF\xBF", "\xF0\x9F\x8C\x8A x\n",
        "a\r\nb"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *list[] = {texts[i], "null", "~", texts[i]};
        pool p = {0}, again;

        CHECK_OK(fsdp__config_default(&pool_table, &p));
        CHECK_OK(fsdp__config_set(&pool_table, &p, "water.name", texts[i]));
        CHECK_OK(fsdp__key_set_paths(&p, fsdp__key_find(&pool_table, "water", "lanes"), list, i % 2 ? 4 : 1));
        again = reread(&p);
        CHECK_STRING(again.water.name, texts[i]);
        CHECK_EQ(again.water.lane_count, i % 2 ? 4 : 1);
        for (int64_t k = 0; k < again.water.lane_count; k++)
            CHECK_STRING(again.water.lanes[k], list[k]);
        fsdp__config_release(&pool_table, &p);
        fsdp__config_release(&pool_table, &again);
    }
}

TEST(every_number_is_printed_exactly)
{
    static const double numbers[] = {0.1, 1.0 / 3, DBL_MIN, 4.9e-324, 3e-4, 5, 4.999999999999999, 1e-8};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        pool p = {0}, again;

        CHECK_OK(fsdp__config_default(&pool_table, &p));
        p.water.depth = numbers[i];
        p.attendants = 8999999999999999999;
        again = reread(&p);
        CHECK_BYTES(&again.water.depth, &numbers[i], sizeof(double));
        CHECK_EQ(again.attendants, 8999999999999999999);
        fsdp__config_release(&pool_table, &again);
        fsdp__config_release(&pool_table, &p);
    }
}

TEST(whole_numbers_are_printed_as_one_writes_them)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{300, "depth: 300\n"}, {100000, "depth: 100000\n"}, {1e9, "depth: 1e+09\n"}, {0, "depth: 0\n"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *out = test_begin_text();
        pool p = {0};

        CHECK_OK(fsdp__config_default(&pool_table, &p));
        p.water.depth = cases[i].value;
        CHECK_OK(fsdp__config_print(&pool_table, &p, out));
        CHECK_CONTAINS(test_end_text(out), cases[i].text);
        fsdp__config_release(&pool_table, &p);
    }
}

TEST(a_number_is_all_of_the_text)
{
    static const char *const wrong[] = {" 5", "\t5", "5 ", "5x", "0x5", "", "+", "--5", "5.0", "1e1"};
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.length", wrong[i]), FSDP_INVALID,
                    "expected an integer from 1 to 50");
    for (size_t i = 0; i < 4; i++)
        CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.depth", wrong[i]), FSDP_INVALID,
                    "expected a number greater than 0 and up to 5");
    CHECK_OK(fsdp__config_set(&pool_table, &p, "water.length", "+5"));
    CHECK_EQ(p.water.length, 5);
    fsdp__config_release(&pool_table, &p);
}

TEST(sizes_have_the_units_that_people_write)
{
    static const struct {
        const char *text;
        int64_t bytes;
        const char *printed;
    } cases[] = {
        {"5GB", 5000000000, "photos: 5GB\n"},
        {"500MB", 500000000, "photos: 500MB\n"},
        {"2GiB", (int64_t)2 << 30, "photos: 2GiB\n"},
        {"1.5gb", 1500000000, "photos: 1500MB\n"},
        {"3 KiB", 3072, "photos: 3KiB\n"},
        {"1TB", 1000000000000, "photos: 1TB\n"},
        {"200001", 200001, "photos: 200001\n"},
        {"1024B", 1024, "photos: 1KiB\n"},
        {"1.0001KB", 1000, "photos: 1KB\n"},
        {".5TiB", (int64_t)1 << 39, "photos: 512GiB\n"},
        {"9007199254740993", 9007199254740993, "photos: 9007199254740993\n"},
    };
    static const char *const wrong[] = {"",     "GB",     "5 ",           "5XB", "-5GB",
                                        "5GBs", "5  GB",  "1.2.3GB",      "999", "0",
                                        "nan",  "0x10GB", "9000000000TB", "5e9", "9000000000000000001"};
    pool p = {0}, again;

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_EQ(p.photos, 2000000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *out = test_begin_text();

        CHECK_OK(fsdp__config_set(&pool_table, &p, "people.photos", cases[i].text));
        CHECK_EQ(p.photos, cases[i].bytes);
        CHECK_OK(fsdp__config_print(&pool_table, &p, out));
        CHECK_CONTAINS(test_end_text(out), cases[i].printed);
        again = reread(&p);
        CHECK_EQ(again.photos, cases[i].bytes);
        fsdp__config_release(&pool_table, &again);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_ERROR(fsdp__config_set(&pool_table, &p, "people.photos", wrong[i]), FSDP_INVALID,
                    "expected a size (5GB, 500MB, 2GiB) from 1KB");
    fsdp__config_release(&pool_table, &p);
}

TEST(lists_are_set_whole_or_added_to)
{
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_OK(fsdp__config_add(&pool_table, &p, "water.lanes", "a"));
    CHECK_OK(fsdp__config_add(&pool_table, &p, "water.lanes", "[b, 'c, d', \"e\"]"));
    CHECK_EQ(p.water.lane_count, 4);
    CHECK_STRING(p.water.lanes[2], "c, d");
    CHECK_OK(fsdp__config_add(&pool_table, &p, "water.lanes", ""));
    CHECK_EQ(p.water.lane_count, 4);
    CHECK_ERROR(fsdp__config_add(&pool_table, &p, "water.lanes", "[f, ]"), FSDP_INVALID, "has an empty entry");
    CHECK_EQ(p.water.lane_count, 4);
    CHECK_STRING(p.water.lanes[0], "a");
    CHECK_STRING(p.water.lanes[3], "e");
    CHECK_OK(fsdp__config_set(&pool_table, &p, "water.lanes", "[ 'a'b ,\"c , ' d']"));
    CHECK_EQ(p.water.lane_count, 3);
    CHECK_STRING(p.water.lanes[0], "'a'b");
    CHECK_STRING(p.water.lanes[1], "\"c");
    CHECK_STRING(p.water.lanes[2], " d");
    CHECK_OK(fsdp__config_set(&pool_table, &p, "water.lanes", "f"));
    CHECK_EQ(p.water.lane_count, 1);
    CHECK_OK(fsdp__config_add(&pool_table, &p, "water.length", "7")); /* no list: set */
    CHECK_EQ(p.water.length, 7);
    CHECK_ERROR(fsdp__config_add(&pool_table, &p, "water.lane", "7"), FSDP_INVALID, "did you mean 'lanes'?");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_OK(fsdp__config_set(&pool_table, &p, "water.name", ""));
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__config_add(&pool_table, &p, "water.lanes", "[g, h]"));
    }
    CHECK_EQ(p.water.lane_count, 3);
    fsdp__config_release(&pool_table, &p);
}

TEST(what_is_not_utf8_is_refused)
{
    /* a lone continuation, one too long, a surrogate, beyond the last character, cut short */
    static const char *const wrong[] = {"a\x80",     "a\xC0\xAF", "a\xED\xA0\x80", "a\xF4\x90\x80\x80",
                                        "a\xE2\x80", "a\xFF"};
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.name", wrong[i]), FSDP_INVALID,
                    "water.name is not text in UTF-8: byte 1 is 0x");
        CHECK_ERROR(fsdp__config_set(&pool_table, &p, "water.lanes", wrong[i]), FSDP_INVALID,
                    "water.lanes is not text in UTF-8: byte 1 is 0x");
    }
    CHECK_NULL(p.water.name);
    CHECK_EQ(p.water.lane_count, 0);
    fsdp__config_release(&pool_table, &p);
}
