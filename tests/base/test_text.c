/* What others named is shown without harm to a terminal. */
#include "base/text.h"

#include "support/test.h"

TEST(plain_text_stays_as_it_is)
{
    char out[100];

    CHECK_STRING(fsdp__shown("", out, sizeof out), "");
    CHECK_STRING(fsdp__shown("model.layers.0.weight", out, sizeof out), "model.layers.0.weight");
    CHECK_STRING(fsdp__shown("gr\xc3\xb6\xc3\x9f\x65 \xe6\xbc\xa2 \xf0\x9f\x90\x88 \\n", out, sizeof out),
                 "gr\xc3\xb6\xc3\x9f\x65 \xe6\xbc\xa2 \xf0\x9f\x90\x88 \\n");
}

TEST(what_moves_a_cursor_is_shown_as_bytes)
{
    char out[100];

    CHECK_STRING(fsdp__shown("a\x1b[2J\r\n\t\x7f", out, sizeof out), "a\\x1b[2J\\x0d\\x0a\\x09\\x7f");
    CHECK_STRING(fsdp__shown("\xc2\x9b", out, sizeof out), "\\xc2\\x9b");              /* CSI, in UTF-8 */
    CHECK_STRING(fsdp__shown("x\xe2\x80\xaey", out, sizeof out), "x\\xe2\\x80\\xaey"); /* right to left */
    CHECK_STRING(fsdp__shown("\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", out, sizeof out),     /* marks of direction */
                 "\\xe2\\x80\\x8e\\xe2\\x80\\x8f\\xd8\\x9c");
    CHECK_STRING(fsdp__shown("\xe2\x80\x8d\xd8\x9b", out, sizeof out),
                 "\xe2\x80\x8d\xd8\x9b"); /* letters and joiners */
    CHECK_STRING(fsdp__shown("\xe2\x80\xa8\xe2\x81\xa7", out, sizeof out), "\\xe2\\x80\\xa8\\xe2\\x81\\xa7");
}

TEST(what_is_no_utf8_is_shown_as_bytes)
{
    char out[100];

    CHECK_STRING(fsdp__shown("\xff\xfe", out, sizeof out), "\\xff\\xfe");
    CHECK_STRING(fsdp__shown("\xc0\xaf", out, sizeof out), "\\xc0\\xaf");          /* longer than it need be */
    CHECK_STRING(fsdp__shown("\xed\xa0\x80", out, sizeof out), "\\xed\\xa0\\x80"); /* half of a pair */
    CHECK_STRING(fsdp__shown("\xf4\x90\x80\x80", out, sizeof out), "\\xf4\\x90\\x80\\x80");
    CHECK_STRING(fsdp__shown("a\xe6\xbc", out, sizeof out), "a\\xe6\\xbc"); /* the end is missing */
}

TEST(a_long_text_loses_its_middle_between_two_characters)
{
    char text[400], out[12];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    CHECK_STRING(fsdp__shown(text, out, sizeof out), "xxxx...xxxx");
    CHECK_EQ(strlen(FSDP__SHOWN_NAME(text)), FSDP__NAME_TEXT - 1);
    CHECK_STRING(fsdp__shown("xxxxxxxyyyy", out, sizeof out), "xxxxxxxyyyy");
    CHECK_STRING(fsdp__shown("xxx\xc3\xb6xxxyyyy", out, sizeof out), "xxx...xyyyy");
    CHECK_STRING(fsdp__shown("xxxxx\xc3\xb6yyy\xc3\xb6", out, sizeof out), "xxxx...yy\xc3\xb6");
    CHECK_STRING(fsdp__shown("xxxxxxxxx\xc3\xb6yyy", out, sizeof out), "xxxx...yyy");
    CHECK_STRING(fsdp__shown("x\nxxxxy\n", out, sizeof out), "x...xxy\\x0a");
    CHECK_STRING(fsdp__shown("xxxx\n", out, sizeof out), "xxxx\\x0a");
}

/* Gives what bash makes of a word. */
static void read_by_bash(const char *word, char *out, size_t bytes)
{
    FILE *shell;
    size_t count;

    CHECK_EQ(setenv("WORD", word, 1), 0);
    shell = CHECK_PTR(popen("exec bash -c 'eval \"printf %s $WORD\"'", "r"));
    count = fread(out, 1, bytes - 1, shell);
    out[count] = '\0';
    CHECK_EQ(pclose(shell), 0);
    CHECK_EQ(unsetenv("WORD"), 0);
}

TEST(words_of_a_command_can_be_copied)
{
    static const char *const words[][2] = {{"/runs/lr=1e-3,a+b", "/runs/lr=1e-3,a+b"},
                                           {"my runs", "'my runs'"},
                                           {"it's $HOME\\", "'it'\\''s $HOME\\'"},
                                           {"", "''"},
                                           {"a;b&c|{d,e}~*?[x]!", "'a;b&c|{d,e}~*?[x]!'"},
                                           {"gr\xc3\xbc\xc3\x9f"
                                            "e",
                                            "'gr\xc3\xbc\xc3\x9f"
                                            "e'"},
                                           {"a\x1b[1m'\\\n", "$'a\\x1b[1m\\'\\\\\\x0a'"},
                                           {"\xff", "$'\\xff'"}};
    char text[100], back[100];

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        CHECK_STRING(fsdp__shell_word(words[i][0], text, sizeof text), words[i][1]);
        read_by_bash(text, back, sizeof back);
        CHECK_STRING(back, words[i][0]);
    }
    CHECK_STRING(fsdp__shell_word("-x y", text, sizeof text), "./'-x y'");
    CHECK_STRING(fsdp__shell_word("abc def", text, 10), "'abc def'");
    CHECK_STRING(fsdp__shell_word("abc def", text, 9), "abc def"); /* no room for the quotes */
}

TEST(of_a_list_the_first_names_are_shown)
{
    static const char *const names[] = {"a", "b\x1b", "c", "d", "e"};
    static const char *const expected[] = {"",
                                           "'a'",
                                           "'a' and 'b\\x1b'",
                                           "'a', 'b\\x1b' and 'c'",
                                           "'a', 'b\\x1b', 'c' and 1 more",
                                           "'a', 'b\\x1b', 'c' and 2 more"};
    char longer[400];

    for (int count = 0; count <= 5; count++) {
        fsdp__names list = {.count = 0};

        for (int i = 0; i < count; i++)
            fsdp__names_add(&list, names[i]);
        CHECK_STRING(fsdp__names_text(&list), expected[count]);
        CHECK_EQ(list.count, count);
    }
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    fsdp__names list = {.count = 0};
    for (int i = 0; i < 1000; i++)
        fsdp__names_add(&list, longer);
    CHECK_CONTAINS(fsdp__names_text(&list), "xxx...xxx");
}

TEST(sizes_are_in_units_that_fit)
{
    char out[24];

    CHECK_STRING(fsdp__size_text_beside(1153434, 1153435, out, sizeof out), "1153434B");
    CHECK_STRING(fsdp__size_text_beside(1153434, 1153434, out, sizeof out), "1.1MiB");
    CHECK_STRING(fsdp__size_text_beside(1153434, 2 << 20, out, sizeof out), "1.1MiB");
    CHECK_STRING(fsdp__size_text(0, out, sizeof out), "0.0KiB");
    CHECK_STRING(fsdp__size_text(1, out, sizeof out), "1B");
    CHECK_STRING(fsdp__size_text(102, out, sizeof out), "102B");
    CHECK_STRING(fsdp__size_text(103, out, sizeof out), "0.1KiB");
    CHECK_STRING(fsdp__size_text(512, out, sizeof out), "0.5KiB");
    CHECK_STRING(fsdp__size_text(1 << 20, out, sizeof out), "1.0MiB");
    CHECK_STRING(fsdp__size_text(0x1p42, out, sizeof out), "4.00TiB");
    CHECK_STRING(fsdp__size_text(100 << 20, out, sizeof out), "100.0MiB");
    CHECK_STRING(fsdp__size_text(128 << 20, out, sizeof out), "128.0MiB");
    CHECK_STRING(fsdp__size_text(1.5 * (1 << 30), out, sizeof out), "1.50GiB");
}

TEST(json_strings_are_escaped)
{
    FILE *out = test_begin_text();

    fsdp__print_json_string("a \"b\" \\ \n\x01 \xC3\xA9", out);
    CHECK_STRING(test_end_text(out), "\"a \\\"b\\\" \\\\ \\u000a\\u0001 \xC3\xA9\"");
}

TEST(text_of_xml_is_escaped)
{
    FILE *out = test_begin_text();

    CHECK(out != NULL);
    fsdp__print_xml_text("a<b> & \"c\" 'd'\n\x1b \xC3\xA9 \xFF\xEF\xBF\xBF \xC2\x9B\xE2\x80\xAE\x7F\xE2\x81\xA6 ", out);
    CHECK_STRING(
        test_end_text(out),
        "a&#60;b&#62; &#38; &#34;c&#34; &#39;d&#39;?? \xC3\xA9 ?? \\xc2\\x9b\\xe2\\x80\\xae\\x7f\\xe2\\x81\\xa6 ");
}

TEST(the_rank_that_a_message_begins_with_is_taken_off_it)
{
    static const char *const without[] = {"", "rank", "rank 3", "rank 3 failed: x", "rank x: y", "a rank 3: y"};
    int rank = -1;

    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        CHECK(fsdp__text_behind_rank(without[i], &rank) == without[i]);
        CHECK_EQ(rank, -1);
    }
    CHECK_STRING(fsdp__text_behind_rank("rank 12: rank 3: y", &rank), "rank 3: y");
    CHECK_EQ(rank, 12);
}

TEST(a_name_becomes_one_of_json)
{
    char key[FSDP__JSON_NAME], cut[5];

    assert_string_equal(fsdp__json_name("unsharded parameter", key, sizeof key), "unsharded_parameter");
    assert_string_equal(fsdp__json_name("gradient", key, sizeof key), "gradient");
    assert_string_equal(fsdp__json_name("a b c", cut, sizeof cut), "a_b_");
}

TEST(lists_of_ranks_are_short)
{
    static const struct {
        int ranks[10], count;
        const char *text;
    } cases[] = {
        {{2}, 1, "rank 2"},
        {{0, 2}, 2, "ranks 0 and 2"},
        {{4, 5}, 2, "ranks 4 and 5"},
        {{0, 1, 3}, 3, "ranks 0, 1 and 3"},
        {{0, 1, 2, 3}, 4, "ranks 0 to 3"},
        {{0, 2, 4, 6, 8, 10, 12, 14}, 8, "ranks 0, 2, 4, 6, 8, 10, 12 and 14"},
        {{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, 10, "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more"},
        {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 10, "ranks 1 to 10"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp__rank_list list = {.count = 0};

        for (int k = 0; k < cases[i].count; k++)
            fsdp__rank_list_add(&list, cases[i].ranks[k]);
        CHECK_STRING(fsdp__rank_list_text(&list, FSDP__ROOM(160)), cases[i].text);
    }
}
