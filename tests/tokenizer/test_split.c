/* The words of a text, as Hugging Face's pre-tokenizers split it; and what of patterns is refused. */
#include "base/compiler.h"
#include "base/text.h"
#include "tokenizer/nfc.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

typedef struct words {
    char text[512];
} words;

static fsdp_status add_word(void *arg, const fsdp__passage *word)
{
    words *w = arg;
    size_t used = strlen(w->text);

    snprintf(w->text + used, sizeof w->text - used, "%s%.*s", used ? "|" : "", (int)word->bytes, word->text);
    return FSDP_OK;
}

static void check_words(const char *pre_tokenizer, const char *text, const char *expected)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.pre_tokenizer = pre_tokenizer});
    fsdp__passage passage = {.text = text, .bytes = strlen(text)};
    fsdp__matcher *matcher = NULL;
    words found = {{0}};

    CHECK_OK(fsdp__matcher_create(&matcher));
    CHECK_OK(fsdp__pre_tokenize(&t->pre_tokenizer, matcher, &passage, add_word, &found));
    CHECK_STRING(found.text, expected);
    fsdp__matcher_free(matcher);
    fsdp_tokenizer_close(t);
}

#define SPLIT(pattern, behavior, invert)                                                       \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " pattern \
    ", \"behavior\": \"" behavior "\", \"invert\": " invert                                    \
    "}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"
#define REGEX(text) "{\"Regex\": \"" text "\"}"

TEST(every_behavior_splits_as_it_says)
{
    static const char *const behaviors[][2] = {
        {SPLIT(REGEX("1|2"), "Removed", "false"), "th|3he"},
        {SPLIT(REGEX("1|2"), "Removed", "true"), "1|1|2|1|2|1"},
        {SPLIT(REGEX("1|2"), "Isolated", "false"), "1|th|1|2|1|2|3he|1"},
        {SPLIT(REGEX("1|2"), "Isolated", "true"), "1|th|1|2|1|2|3he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithPrevious", "false"), "1|th1|2|1|2|3he1"},
        {SPLIT(REGEX("1|2"), "MergedWithPrevious", "true"), "1th|1|2|1|23he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithNext", "false"), "1th|1|2|1|23he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithNext", "true"), "1|th1|2|1|2|3he1"},
        {SPLIT(REGEX("1|2"), "Contiguous", "false"), "1|th|1212|3he|1"},
        {SPLIT(REGEX("1|2"), "Contiguous", "true"), "1|th|1212|3he|1"},
        {SPLIT("{\"String\": \"2\"}", "Isolated", "false"), "1th1|2|1|2|3he1"},
        {SPLIT("{\"String\": \"h.\"}", "Isolated", "false"), "1th12123he1"},
        {SPLIT("{\"String\": \"\"}", "Isolated", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX(""), "Isolated", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(behaviors); i++)
        check_words(behaviors[i][0], "1th12123he1", behaviors[i][1]);
}

/* An empty match is one between two parts, which do not join over it; right behind another match there is none. */
TEST(an_empty_match_parts_in_every_behavior)
{
    static const char *const behaviors[][2] = {
        {SPLIT(REGEX("1?"), "Removed", "false"), "t|h|2|2|3|h|e"},
        {SPLIT(REGEX("1?"), "Removed", "true"), "1|1|1|1"},
        {SPLIT(REGEX("1?"), "Isolated", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1?"), "Isolated", "true"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1?"), "MergedWithPrevious", "false"), "1|t|h1|21|2|3|h|e1"},
        {SPLIT(REGEX("1?"), "MergedWithPrevious", "true"), "1t|h|12|12|3|h|e|1"},
        {SPLIT(REGEX("1?"), "MergedWithNext", "false"), "1t|h|12|12|3|h|e|1"},
        {SPLIT(REGEX("1?"), "MergedWithNext", "true"), "1|t|h1|21|2|3|h|e1"},
        {SPLIT(REGEX("1?"), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1?"), "Contiguous", "true"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1*"), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1??"), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1{0}"), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("1{,2}"), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX(""), "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX("(?=h)"), "Contiguous", "false"), "1t|h12123|he1"},
        {SPLIT(REGEX("(?=h)"), "Contiguous", "true"), "1t|h12123|he1"},
        {SPLIT("{\"String\": \"\"}", "Contiguous", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT("{\"String\": \"\"}", "Contiguous", "true"), "1|t|h|1|2|1|2|3|h|e|1"},
    };
    static const char digits[] = SPLIT(REGEX("\\\\p{N}?"), "Contiguous", "false");

    for (size_t i = 0; i < FSDP__COUNT_OF(behaviors); i++)
        check_words(behaviors[i][0], "1th12123he1", behaviors[i][1]);
    check_words(digits, "the \u4f60\u4f60 12the", "t|h|e| |\u4f60|\u4f60| |12|t|h|e");
}

TEST(white_space_is_unicodes)
{
    static const char spaces[] = SPLIT(REGEX("\\\\s+"), "Isolated", "false");
    static const char others[] = SPLIT(REGEX("[^\\\\S\\\\n]"), "Isolated", "false");

    check_words(spaces, "a \u3000b\u180e\u2028c", "a| \u3000|b\u180e|\u2028|c");
    check_words(others, "a \n\u2003b", "a| |\n|\u2003|b");
}

TEST(gpt2_splits_as_ever)
{
    static const char gpt2[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";

    check_words(gpt2, "It's  we'll 12x3, \n\n ok?! \u4f60\u597d ",
                "It|'s| | we|'ll| 12|x|3|,| \n\n| ok|?!| \u4f60\u597d| ");
}

/* PCRE2 would read each of them otherwise, or not at all. */
TEST(what_oniguruma_reads_otherwise_is_translated)
{
    static const char *const patterns[][3] = {
        {"a{,3}", "aaaaab", "aaa|aa|b"},
        {"a{,}", "aa{,}b", "a|a{,}|b"},
        {"a{ 2}", "aaa{ 2}b", "aa|a{ 2}|b"},
        {"a{1,2}+", "aaaaab", "aaaaa|b"},
        {"a{2}+", "aaaaab", "aaaa|ab"},
        {"a{2}?", "aaaaa", "aa|aa|a"},
        {"a{2,3}?+", "aaaaab", "aaaa|ab"},
        {"a**", "aab", "aa|b"},
        {"a\\v", "a\na\v", "a\n|a\v"},
        {"\\h+", "xaF9g", "x|aF9|g"},
        {"(?m:.)+", "a\nb", "a\nb"},
        {"a(?i)b|c", "aBCcaC", "aB|Cc|aC"},
        {"(?i)a|b", "xAB", "x|A|B"},
        {"^a", "aa\na", "a|a\n|a"},
        {"a$", "aa\na", "a|a|\n|a"},
        {"(?<=a|bc)x", "axbcxx", "a|x|bc|x|x"},
        {"(?<!a)x", "axxx", "ax|x|x"},
        {"\\w+", "a\u00bd\u24d0\ua7cb.", "a\u00bd\u24d0\ua7cb|."},
        {"[\\w]+", "a\u00bd.", "a|\u00bd."},
        {"(?i:'s)", "x'\u017fx", "x|'\u017f|x"},
        {"[]a]+", "x]a", "x|]a"},
        {"[a-c-e]+", "d-ed", "d|-e|d"},
        {"\\p{^L}+", "a1b", "a|1|b"},
        {"a\\u0062", "xab", "x|ab"},
        {"[\\p{han}\\p{Hira_gana}]+", "a\u4e2d\u3042b", "a|\u4e2d\u3042|b"},
        {"\\p{So}+", "a\U0001fa77\U0001fae8b", "a|\U0001fa77\U0001fae8|b"},
    };
    fsdp__matcher *matcher = NULL;

    CHECK_OK(fsdp__matcher_create(&matcher));
    for (size_t i = 0; i < FSDP__COUNT_OF(patterns); i++) {
        fsdp__pre_tokenizer p = {.count = 1, .steps = {{.behavior = FSDP__SPLIT_ISOLATED}}};
        fsdp__passage text = {.text = patterns[i][1], .bytes = strlen(patterns[i][1])};
        words found = {{0}};

        CHECK_OK(fsdp__pattern_create("t.json", patterns[i][0], &p.steps[0].pattern));
        CHECK_OK(fsdp__pre_tokenize(&p, matcher, &text, add_word, &found));
        CHECK_STRING(found.text, patterns[i][2]);
        fsdp__pre_tokenizer_release(&p);
    }
    fsdp__matcher_free(matcher);
}

static const char *const untranslated[][2] = {
    {"a\\b", "'\\b' at its offset 1"},
    {"a\\B", "'\\B' at its offset 1"},
    {"\\Z", "'\\Z' at its offset 0"},
    {"\\G", "'\\G' at its offset 0"},
    {"a\\K", "'\\K' at its offset 1"},
    {"\\R", "'\\R' at its offset 0"},
    {"\\X", "'\\X' at its offset 0"},
    {"\\N", "'\\N' at its offset 0"},
    {"\\O", "'\\O' at its offset 0"},
    {"\\Qa\\E", "'\\Qa' at its offset 0"},
    {"\\C", "'\\C' at its offset 0"},
    {"(a)\\1", "'\\1' at its offset 3"},
    {"(a)\\g1", "'\\g1' at its offset 3"},
    {"\\k<a>", "'\\k<' at its offset 0"},
    {"\\012", "'\\01' at its offset 0"},
    {"\\cA", "'\\cA' at its offset 0"},
    {"\\xe9", "'\\xe' at its offset 0 is not supported: a byte"},
    {"\\x{110000}", "'\\x{' at its offset 0 is not supported: no character has this number"},
    {"\\u{e9}", "'\\u{' at its offset 0"},
    {"\\pL", "'\\pL' at its offset 0 is not supported: a property without"},
    {"a\\p{Emoji}", "the property 'Emoji' at its offset 1"},
    {"[[:alpha:]]", "'[:a' at its offset 1 is not supported: a class within a class"},
    {"[a[b]]", "'[b]' at its offset 2 is not supported: a class within a class"},
    {"[a&&b]", "'&&b' at its offset 2 is not supported: an intersection"},
    {"[a-\\d]", "'a-\\' at its offset 1"},
    {"[\\d-a]", "'-a]' at its offset 3"},
    {"[b-a]", "'b-a' at its offset 1"},
    {"a{3,1}", "'{3,' at its offset 1"},
    {"a{70000}", "'{70' at its offset 1"},
    {"a|*b", "'*b' at its offset 2 is not supported: there is nothing"},
    {"(?=a)*", "'*' at its offset 5 is not supported: there is nothing"},
    {"(?:(?=a))*", "'*' at its offset 9 is not supported: there is nothing"}, /* an assertion alone */
    {"(?:(?:\\A))?", "'?' at its offset 10 is not supported: there is nothing"},
    {"(?:b|$){2}", "'{2}' at its offset 7 is not supported: there is nothing"},
    {"(?:(?<!a)|)+", "'+' at its offset 11 is not supported: there is nothing"},
    {"(?:(?:a|(?=b))|(?i)c)+", "'+' at its offset 21 is not supported: there is nothing"},
    {"(*NO_JIT)a", "'*NO' at its offset 1 is not supported: there is nothing"},
    {"(?x:a b)", "'(?x' at its offset 0"},
    {"(?s:.)", "'(?s' at its offset 0"},
    {"(?~a)", "'(?~' at its offset 0"},
    {"(?<n>a)", "'(?<' at its offset 0"},
    {"(?(1)a)", "'(?(' at its offset 0"},
    {"(?#a)", "'(?#' at its offset 0"},
    {"(?<=a+)b", "'+)b' at its offset 5 is not supported: a repeat within a look-behind"},
    {"(?i:ss)", "'s)' at its offset 5 is not supported: letters that may also be one character"},
    {"(?i:fi)", "'i)' at its offset 5"},
    {"(?i:\u00e9)", "'\u00e9)' at its offset 4 is not supported: letters beyond ASCII"},
    {"(?i:[\\p{L}])", "'[\\p' at its offset 4 is not supported: letters beyond ASCII"},
};

TEST(what_is_not_translated_is_refused_with_its_place)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(untranslated); i++) {
        fsdp__pattern *pattern = NULL;

        CHECK_ERROR(fsdp__pattern_create("t.json", untranslated[i][0], &pattern), FSDP_UNSUPPORTED,
                    "cannot read 't.json': pattern");
        CHECK_CONTAINS(fsdp_last_error(), untranslated[i][1]);
        CHECK_NULL(pattern);
    }
}

TEST(malformed_patterns_are_errors)
{
    static const char *const patterns[][2] = {
        {"(a", "missing closing parenthesis at its offset 2"},
        {"(?i", "missing closing parenthesis at its offset 3"},
        {"(?i:a", "missing closing parenthesis at its offset 5"},
        {"a)", "a closing parenthesis without an opening one at its offset 1"},
        {"[a", "missing ] of a class at its offset 2"},
        {"[^]", "an empty class at its offset 2"},
        {"a\\", "it ends with a backslash at its offset 1"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(patterns); i++) {
        fsdp__pattern *pattern = NULL;

        CHECK_ERROR(fsdp__pattern_create("t.json", patterns[i][0], &pattern), FSDP_FORMAT, patterns[i][1]);
        CHECK_NULL(pattern);
    }
}

TEST(too_much_of_a_pattern_is_refused)
{
    char groups[] =
        "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((";
    fsdp__pattern *pattern = NULL;
    fsdp__text kinds = {0};

    for (uint32_t c = 0x4e00; c < 0x4e00 + 256; c++) {
        char utf8[4];

        CHECK_OK(fsdp__text_append(&kinds, utf8, fsdp__utf8_of(c, utf8)));
    }
    CHECK_OK(fsdp__text_append(&kinds, "", 1));
    CHECK_ERROR(fsdp__pattern_create("t.json", kinds.bytes, &pattern), FSDP_UNSUPPORTED,
                "distinguishes more than 256 kinds of characters");
    kinds.bytes[kinds.count - 4] = '\0'; /* 255 of them, and all others */
    CHECK_OK(fsdp__pattern_create("t.json", kinds.bytes, &pattern));
    fsdp__pattern_free(pattern);
    CHECK_ERROR(fsdp__pattern_create("t.json", groups, &pattern), FSDP_UNSUPPORTED, "over 100 groups");
    fsdp__text_release(&kinds);
}

/* Each takes a look at up to a million characters. */
TEST(a_pattern_of_very_many_sets_is_refused)
{
    static const struct {
        const char *begin, *part, *end;
        int most; /* of the part */
    } cases[] = {
        {"", "\\P{L}", "", 941}, /* 17 of 16000 each */
        {"", "\\S", "", 941},     {"[", "\\P{L}", "]", 940}, {"", "[^a]", "", 888},
        {"(?i)", ".?A", "", 888}, {"", "a", "", 16000},      {"[", "\xe4\xb8\x80", "]", 15983},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
        for (int more = 0; more < 2; more++) {
            fsdp__pattern *pattern = NULL;
            fsdp__text text = {0};

            CHECK_OK(fsdp__text_append(&text, cases[i].begin, strlen(cases[i].begin)));
            for (int n = 0; n < cases[i].most + more; n++)
                CHECK_OK(fsdp__text_append(&text, cases[i].part, strlen(cases[i].part)));
            CHECK_OK(fsdp__text_append(&text, cases[i].end, strlen(cases[i].end) + 1));
            if (more)
                CHECK_ERROR(fsdp__pattern_create("t.json", text.bytes, &pattern), FSDP_UNSUPPORTED,
                            "the pattern has over 1000 sets");
            else
                CHECK_OK(fsdp__pattern_create("t.json", text.bytes, &pattern));
            fsdp__pattern_free(pattern);
            fsdp__text_release(&text);
        }
}
