/* What a config file may be: exact lines, one document, nothing that is larger or deeper than a config, and no other
 * words of YAML than keys, values and lists. */
#include "config/pool.h"
#include "config/yaml.h"
#include "support/test.h"

static fsdp_status apply(const char *text, size_t bytes)
{
    pool p = {0};
    fsdp_status status;

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    status = fsdp__yaml_apply(&pool_table, &p, "c", text, bytes);
    fsdp__config_release(&pool_table, &p);
    return status;
}

static void refuses(const char *text, const char *expected)
{
    CHECK(apply(text, strlen(text)) != FSDP_OK);
    CHECK_STRING(fsdp_last_error(), expected);
}

TEST(lines_are_those_of_the_key_or_the_entry)
{
    refuses("water:\n  lanes:\n    - a\n    -\n    - c\n",
            "c:4: water.lanes has an empty entry: expected a file or a list of files");
    refuses("water:\n  lanes: [a,\n\n b,\n [c]]\n", "c:5: water.lanes holds a list: expected a list of files");
    refuses("water:\n  lanes: [a,\n {b: c}]\n", "c:3: water.lanes holds a section: expected a list of files");
    refuses("# people:\n#   attendants: x\npeople:\n  # attendants: y\n  attendants:\n    \"x\n\n     y\"\n",
            "c:5: people.attendants is 'x\\x0ay': expected -1 or an integer from 0 to 9000000000000000000");
    refuses("water: {length: 3, depth: 2,\n\n  length: 4}\n", "c:3: water.length is given twice");
    refuses("water:\n  name: 'attendants: 3'\npeople:\n  attendants: no\n",
            "c:4: people.attendants is 'no': expected -1 or an integer from 0 to 9000000000000000000");
    refuses("water:\r\n  name: a\r\n  length: no\r\n", "c:3: water.length is 'no': expected an integer from 1 to 50");
    refuses("\xEF\xBB\xBFwater:\n  length: no\n", "c:2: water.length is 'no': expected an integer from 1 to 50");
    refuses("water:\n  [a]: b\n", "c:2: water: expected a name, not a list");
    refuses("[a]: b\n", "c:1: expected a name, not a list");
    refuses("water: []\n", "c:1: water is a list: expected keys of the section, indented below it");
}

TEST(keys_that_another_holds_stand_below_it_and_are_printed_so)
{
    static const char *const same[] = {"people:\n  bar:\n    seats: 9\n    name: Oasis\n  attendants: 4\n",
                                       "people: {bar: {seats: 9, name: Oasis}, attendants: 4}\n",
                                       "people:\n  bar.seats: 9\n  bar.name: Oasis\n  attendants: 4\n"};

    for (int i = 0; i < 3; i++) {
        FILE *out = test_begin_text();
        char *printed;
        pool p = {0};

        CHECK_OK(fsdp__config_default(&pool_table, &p));
        CHECK_OK(fsdp__yaml_apply(&pool_table, &p, "c", same[i], strlen(same[i])));
        CHECK_EQ(p.bar.seats, 9);
        CHECK_STRING(p.bar.name, "Oasis");
        CHECK_EQ(p.attendants, 4);
        CHECK_OK(fsdp__config_set(&pool_table, &p, "people.bar.name", ""));
        CHECK_OK(fsdp__config_print(&pool_table, &p, out));
        printed = test_end_text(out);
        CHECK_CONTAINS(printed, "  attendants: 4\n  bar:\n    seats: 9\n    # name:\n  photos: 2MB\n");
        CHECK_OK(apply(printed, strlen(printed)));
        fsdp__config_release(&pool_table, &p);
    }
    CHECK_OK(apply("people:\n  bar:\n    # seats: 1\n", 30));
    refuses("people:\n  bar: 3\n", "c:2: people.bar is a single value: expected keys of its own, indented below it");
    refuses("people:\n  bar: {seats: 1}\n  bar:\n    seats: 2\n", "c:4: people.bar.seats is given twice");
    refuses("people:\n  bar:\n    seat: 2\n", "c:3: people.bar.seat is not a key of people; did you mean 'bar.seats'?");
    refuses("people:\n  bar:\n    seats: many\n", "c:3: people.bar.seats is 'many': expected an integer from 0 to 90");
}

TEST(a_file_of_toml_is_told_how_to_be_written)
{
    static const char *const files[] = {"# a pool\n\n[water]\nlength = 3\n", "\tlength = 3\n", "[water]\r\nlength = 3"};
    static const int lines[] = {3, 1, 1};

    for (int i = 0; i < 3; i++) {
        char expected[160];

        snprintf(expected, sizeof expected,
                 "c:%d: this is TOML, but a config is YAML: '[training]' is written 'training:', and 'steps = 10' "
                 "below it '  steps: 10'",
                 lines[i]);
        refuses(files[i], expected);
    }
    CHECK_OK(apply("# a = b\nwater: {name: a=b}\n", 26));
}

TEST(what_yaml_has_beyond_a_config_is_refused)
{
    refuses("water:\n  name: &n x\n", "c:2: an anchor, '&n': a config cannot have one, so leave it out");
    refuses("water: &w\n  name: x\n", "c:1: an anchor, '&w': a config cannot have one, so leave it out");
    refuses("water:\n  name: x\n  lanes: [a,\n   *a]\n", "c:4: an alias, '*a': write the value itself instead");
    CHECK_ERROR(apply("water:\n  <<: *defaults\n", 21), FSDP_INVALID, "c:2: water.<< is not a key of water");
    refuses("water:\n  name: !!binary aGk=\n",
            "c:2: a tag, 'tag:yaml.org,2002:binary': a config cannot have one, so leave it out");
    refuses("water:\n  name: x\n---\npeople:\n  attendants: 3\n",
            "c:3: a second document begins here: a config has only one");
    refuses("water:\n  name: x\n...\n---\n", "c:4: a second document begins here: a config has only one");
    refuses("%YAML 1.1\n---\nwater:\n", "c:1: a line that begins with '%': a config cannot have directives");
    refuses("water:\n  name: 50%\n...\r%TAG !a! x\n",
            "c:3: a line that begins with '%': a config cannot have directives");
    CHECK_ERROR(apply("water:\xE2\x80\xA8%TAG !a! x\n", 20), FSDP_FORMAT, "a config cannot have directives");
    CHECK_OK(apply("water:\n  name: '% %'\n  # %\n", 27));
    CHECK_OK(apply("---\nwater:\n  name: x\n...\n", 24));
    CHECK_OK(apply("--- ~\n", 6));
    CHECK_OK(apply("water: ~\npeople: null\n", 22));
}

TEST(what_is_no_text_is_refused)
{
    static const char nul[] = "water:\n  name: a\0b\n", wide[] = "w\0a\0t\0e\0r\0";

    CHECK_ERROR(apply(nul, sizeof nul - 1), FSDP_FORMAT, "c:2: not text in UTF-8: byte 0x00");
    CHECK_ERROR(apply(wide, sizeof wide - 1), FSDP_FORMAT, "c:1: not text in UTF-8: byte 0x00");
    refuses("water:\n\n  name: a\xff\n", "c:3: not text in UTF-8: byte 0xff: invalid leading UTF-8 octet");
    refuses("water:\n  name: a\x1b[2Jb\n", "c:2: not text in UTF-8: byte 0x1b: control characters are not allowed");
    refuses("water:\n  name: \"a\\0b\"\n", "c:2: water.name has a NUL character in it");
    refuses("water:\n  \"na\\0me\": b\n", "c:2: water: 'na...' is not the name of a key or a section");
    refuses("\"wat\\e[2Jer\": b\n", "c:1: wat\\x1b[2Jer is not a section; did you mean 'water'?");
    refuses("water:\n  name: \"unfinished\n", "c:3: not YAML from here on (column 1): found unexpected end of stream");
    refuses("water:\n\tname: x\n", "c:2: a tab in column 1: YAML is indented by spaces alone");
    refuses("water:\n  name: x\n \tlength: 1\n", "c:3: a tab in column 2: YAML is indented by spaces alone");
    refuses("water:\n  name: @x\n",
            "c:2: not YAML from here on (column 9): found character that cannot start any token");
}

TEST(nothing_is_longer_or_deeper_than_a_config)
{
    enum {
        BYTES = 200000
    };
    char *text = malloc(BYTES + 100);
    int used = sprintf(text, "water:\n  depth: ");

    memset(text + used, '1', BYTES);
    text[used + BYTES] = '\0';
    refuses(text, "c:2: water.depth is 200000 bytes long: at most 65536 are read");
    text[used + 65536] = '\0';
    CHECK_ERROR(apply(text, strlen(text)), FSDP_INVALID, "11111...': expected a number greater than 0 and up to 5");
    CHECK(strlen(fsdp_last_error()) < 200);
    used = sprintf(text, "water:\n  lanes: ['");
    memset(text + used, 'x', BYTES);
    memcpy(text + used + BYTES, "']\n", 4);
    refuses(text, "c:2: water.lanes is 200000 bytes long: at most 65536 are read");
    used = sprintf(text, "? ");
    memset(text + used, 'x', BYTES);
    memcpy(text + used + BYTES, "\n: b\n", 6);
    CHECK_ERROR(apply(text, strlen(text)), FSDP_FORMAT, "xx...' is not the name of a key or a section");
    for (int opening = 0; opening < 2; opening++) { /* "[[[[" and "{{{{", also where a list may stand */
        for (int within = 0; within < 2; within++) {
            used = within ? sprintf(text, "water:\n  lanes: ") : 0;
            memset(text + used, "[{"[opening], BYTES);
            CHECK_STATUS(apply(text, (size_t)used + BYTES), FSDP_FORMAT);
        }
    }
    memcpy(text, "water: {lanes: [", 16);
    text = realloc(text, 800000); /* "a,a,a," */
    for (used = 16; used < 700000; used += 2)
        memcpy(text + used, "a,", 2);
    CHECK_ERROR(apply(text, 700000), FSDP_FORMAT, "c:1: water.lanes has more than 262144 entries");
    for (int i = 0; i < BYTES / 2; i++) /* "- - - -" */
        memcpy(text + (ptrdiff_t)2 * i, "- ", 2);
    CHECK_STATUS(apply(text, BYTES), FSDP_FORMAT);
    free(text);
}

/* As many files as anybody has: read, printed and read again. Were one of these quadratic, the test would not end. */
TEST(a_list_may_be_long)
{
    enum {
        PATHS = 60000
    };
    char *text = test_new(64 * PATHS), *printed;
    size_t used = (size_t)sprintf(text, "water:\n  lanes:\n");
    pool p = {0}, again = {0};
    FILE *out = test_begin_text();

    for (int i = 0; i < PATHS; i++)
        used += (size_t)sprintf(text + used, "    - /data/tokens of a web/part-%06d.bin\n", i);
    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_OK(fsdp__config_default(&pool_table, &again));
    CHECK_OK(fsdp__yaml_apply(&pool_table, &p, "c", text, used));
    CHECK_EQ(p.water.lane_count, PATHS);
    CHECK_STRING(p.water.lanes[PATHS - 1], "/data/tokens of a web/part-059999.bin");
    CHECK_OK(fsdp__config_print(&pool_table, &p, out));
    printed = test_end_text(out);
    CHECK_OK(fsdp__yaml_apply(&pool_table, &again, "c", printed, strlen(printed)));
    CHECK_EQ(again.water.lane_count, PATHS);
    for (int i = 0; i < PATHS; i++)
        CHECK_STRING(again.water.lanes[i], p.water.lanes[i]);
    fsdp__config_release(&pool_table, &p);
    fsdp__config_release(&pool_table, &again);
}
