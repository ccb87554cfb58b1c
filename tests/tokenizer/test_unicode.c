/* Every character, as Hugging Face's tokenizers takes it, whatever tables of Unicode the machine has. */
#include <sys/mman.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "base/text.h"
#include "numbers/unicode.h"
#include "tokenizer/nfc.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_data.h"

/* ---- texts of every character ---- */

static bool is_character(uint32_t code)
{
    return code > 0 && code >> 11 != 0x1b; /* a NUL, or a surrogate */
}

/* All of them, each with `before` and `after` around it. */
static fsdp__text every_character(const char *before, const char *after)
{
    fsdp__text text = {0};

    for (uint32_t code = 0; code < FSDP__CHARACTERS; code++) {
        char utf8[4];

        if (!is_character(code))
            continue;
        CHECK_OK(fsdp__text_append(&text, before, strlen(before)));
        CHECK_OK(fsdp__text_append(&text, utf8, fsdp__utf8_of(code, utf8)));
        CHECK_OK(fsdp__text_append(&text, after, strlen(after)));
    }
    return text;
}

static uint64_t number_of(const char *text, size_t bytes)
{
    return fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes);
}

static int64_t characters_in(const char *text, size_t bytes)
{
    int64_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* ---- patterns ---- */

/* What `pattern`, repeated, finds in the text. */
static fsdp__text find_all(const char *pattern, const fsdp__text *text)
{
    char repeated[256];
    fsdp__pattern *compiled = NULL;
    fsdp__matcher *matcher = NULL;
    fsdp__search search;
    fsdp__text found = {0};
    size_t begin = 0, end = 0, bytes = (size_t)text->count;

    snprintf(repeated, sizeof repeated, "%s+", pattern);
    CHECK_OK(fsdp__pattern_create("t.json", repeated, &compiled));
    CHECK_OK(fsdp__matcher_create(&matcher));
    CHECK_OK(fsdp__search_begin(&search, compiled, matcher, 0, text->bytes, bytes));
    for (;;) {
        CHECK_OK(fsdp__search_next(&search, &begin, &end));
        if (begin == bytes)
            break;
        CHECK_OK(fsdp__text_append(&found, text->bytes + begin, end - begin));
    }
    fsdp__matcher_free(matcher);
    fsdp__pattern_free(compiled);
    return found;
}

TEST(patterns_match_the_characters_that_they_always_match)
{
    fsdp__text text = every_character("", "");

    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++) {
        fsdp__text found = find_all(kinds[i].pattern, &text);

        if (characters_in(found.bytes, (size_t)found.count) != kinds[i].count ||
            number_of(found.bytes, (size_t)found.count) != kinds[i].number)
            TEST_FAIL("%s matches %lld characters, expected %lld", kinds[i].pattern,
                      (long long)characters_in(found.bytes, (size_t)found.count), (long long)kinds[i].count);
        fsdp__text_release(&found);
    }
    fsdp__text_release(&text);
}

static fsdp_status add_word(void *arg, const fsdp__passage *word)
{
    fsdp__text *words = arg;

    if (words->count > 0)
        CHECK_OK(fsdp__text_append(words, "|", 1));
    return fsdp__text_append(words, word->text, word->bytes);
}

/* Patterns that were drawn: each is refused with its place, or splits as it does with Oniguruma. */
TEST(drawn_patterns_split_as_ever_or_are_refused)
{
    fsdp__matcher *matcher = NULL;
    size_t refused = 0;

    CHECK_OK(fsdp__matcher_create(&matcher));
    for (size_t i = 0; i < FSDP__COUNT_OF(drawn); i++) {
        fsdp__pre_tokenizer p = {.count = 1, .steps = {{.behavior = FSDP__SPLIT_ISOLATED}}};
        fsdp__passage text = {.text = drawn[i][1], .bytes = strlen(drawn[i][1])};
        fsdp__text words = {0};

        if (fsdp__pattern_create("t.json", drawn[i][0], &p.steps[0].pattern) != FSDP_OK) {
            CHECK_ERROR(fsdp_last_status(), FSDP_UNSUPPORTED, "at its offset");
            refused++;
            continue;
        }
        CHECK_OK(fsdp__pre_tokenize(&p, matcher, &text, add_word, &words));
        CHECK_OK(fsdp__text_append(&words, "", 1));
        if (strcmp(words.bytes, drawn[i][2]) != 0)
            TEST_FAIL("'%s' splits '%s' into '%s', expected '%s'", drawn[i][0], drawn[i][1], words.bytes, drawn[i][2]);
        fsdp__text_release(&words);
        fsdp__pre_tokenizer_release(&p);
    }
    CHECK(refused < FSDP__COUNT_OF(drawn) / 4);
    fsdp__matcher_free(matcher);
}

/* ---- what is no pattern ---- */

TEST(words_and_digits_are_those_of_rust)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){
        .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
                         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"});
    fsdp__matcher *matcher = NULL;
    fsdp__text joining = {0}, parting = {0};

    CHECK_OK(fsdp__matcher_create(&matcher));
    for (uint32_t code = 0; code < FSDP__CHARACTERS; code++) {
        char text[5] = "x";
        size_t bytes = is_character(code) ? fsdp__utf8_of(code, text + 1) : 0;
        fsdp__passage passage = {.text = text, .bytes = bytes + 1};
        fsdp__text words = {0};

        if (bytes == 0)
            continue;
        if (fsdp__is_word_character(code))
            CHECK_OK(fsdp__text_append(&joining, text + 1, bytes));
        CHECK_OK(fsdp__pre_tokenize(&t->pre_tokenizer, matcher, &passage, add_word, &words));
        if (words.count > (int64_t)bytes + 1)
            CHECK_OK(fsdp__text_append(&parting, text + 1, bytes));
        fsdp__text_release(&words);
    }
    CHECK_EQ(number_of(joining.bytes, (size_t)joining.count), word_characters);
    CHECK_EQ(number_of(parting.bytes, (size_t)parting.count), digits);
    fsdp__text_release(&joining);
    fsdp__text_release(&parting);
    fsdp__matcher_free(matcher);
    fsdp_tokenizer_close(t);
}

static void check_form_c(const char *before, const char *after, uint64_t expected)
{
    fsdp__text text = every_character(before, after), scratch = {0};
    fsdp__passage passage = fsdp__text_passage(&text);

    CHECK_OK(fsdp__nfc(&passage, &scratch, &passage));
    CHECK_EQ(number_of(passage.text, passage.bytes), expected);
    fsdp__text_release(&text);
    fsdp__text_release(&scratch);
}

TEST(form_c_is_that_of_unicode_9)
{
    check_form_c("q\u0301", "", form_c_behind);
    check_form_c("q", "\u0334", form_c_before);
}

/* A table that has changed makes other ids, so the hash that names caches has to follow each of them. */
TEST(a_change_of_any_table_changes_the_hash)
{
    static const struct {
        const void *begin;
        size_t bytes;
    } tables[] = {
        {fsdp__category_runs, sizeof fsdp__category_runs},   {fsdp__script_runs, sizeof fsdp__script_runs},
        {fsdp__combining_runs, sizeof fsdp__combining_runs}, {fsdp__decomposed, sizeof fsdp__decomposed},
        {fsdp__decompositions, sizeof fsdp__decompositions}, {fsdp__second_parts, sizeof fsdp__second_parts},
        {fsdp__compositions, sizeof fsdp__compositions},
    };
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint64_t before = fsdp__unicode_hash(0);

    for (size_t i = 0; i < FSDP__COUNT_OF(tables); i++)
        for (int last = 0; last < 2; last++) {
            uint8_t *byte = (uint8_t *)(uintptr_t)tables[i].begin + (last ? tables[i].bytes - 1 : 0);
            void *at = (void *)((uintptr_t)byte & ~(page - 1));

            CHECK_EQ(mprotect(at, page, PROT_READ | PROT_WRITE), 0);
            *(volatile uint8_t *)byte ^= 1;
            CHECK(fsdp__unicode_hash(0) != before);
            *(volatile uint8_t *)byte ^= 1;
            CHECK_EQ(mprotect(at, page, PROT_READ), 0);
            CHECK(fsdp__unicode_hash(0) == before);
        }
}
