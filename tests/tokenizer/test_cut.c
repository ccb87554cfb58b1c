/* Texts may be parted at certain places: both parts, encoded alone, give the ids of the whole. */
#include "base/compiler.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(regex, behavior, invert)                                                         \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"" behavior \
    "\", \"invert\": " invert "}"
#define SEQUENCE(first) "{\"type\": \"Sequence\", \"pretokenizers\": [" first ", " BYTE_LEVEL "]}"
#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LLAMA_3                                                                                                \
    ENGLISH "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
            "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define QWEN_2                                                                                            \
    ENGLISH "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
            "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define BEFORE "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define GPT_4O                                                                                    \
    BEFORE UPPER "*" LOWER "+" ENGLISH "?|" BEFORE UPPER "+" LOWER "*" ENGLISH "?|\\\\p{N}{1,3}|" \
                 " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const char added[] = "[{\"content\": \"<e>\", \"id\": 270, \"special\": true, \"rstrip\": true},"
                            "{\"content\": \"a the\", \"id\": 271, \"lstrip\": true, \"normalized\": false}]";

static const small_parts kinds[] = {
    {.added_tokens = added},
    {.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", .added_tokens = added},
    {.pre_tokenizer =
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": false}, "
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}"},
    {.pre_tokenizer = SEQUENCE(SPLIT(LLAMA_3, "Isolated", "false")), .added_tokens = added},
    {.pre_tokenizer = SEQUENCE(SPLIT(QWEN_2, "Isolated", "false")), .normalizer = "{\"type\": \"NFC\"}"},
    {.pre_tokenizer = SEQUENCE(SPLIT(GPT_4O, "Removed", "true"))},
};

/* What texts are made of: all that patterns tell apart. */
static const char *const fragments[] = {
    "the",        "a",   "A",     "in",           "he",     "x",      " ",      " ",       " ",      "  ",
    "\n",         "\n",  "\n\n",  "\r\n",         "\t",     "'s",     "'ll",    "don't",   ".",      "!",
    "/",          "12",  "3",     "\u4f60\u597d", "\u3002", "\u3000", "\u00a0", "e\u0301", "\u0301", "\u0e01\u0e33",
    "\U0001f642", "<e>", "a the", "\u00bd",
};

static uint64_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

static size_t make_text(uint64_t *random, char *out, size_t room)
{
    size_t used = 0;

    for (int i = 0; i < 40; i++) {
        const char *fragment = fragments[draw(random) % FSDP__COUNT_OF(fragments)];

        if (used + strlen(fragment) >= room)
            break;
        memcpy(out + used, fragment, strlen(fragment));
        used += strlen(fragment);
    }
    out[used] = '\0';
    return used;
}

static void encode(fsdp_encoder *encoder, const char *text, size_t bytes, fsdp_token_list *out)
{
    CHECK_OK(fsdp_encoder_encode(encoder, text, bytes, NULL, out));
}

/* Of every prefix of the text, where it would be parted. Returns in how many places. */
static int check_cuts(const fsdp_tokenizer *t, fsdp_encoder *encoder, const char *text, size_t bytes)
{
    fsdp_token_list whole = {0}, parts = {0};
    size_t last = 0;
    int places = 0;

    encode(encoder, text, bytes, &whole);
    for (size_t seen = 1; seen <= bytes; seen++) {
        size_t cut = fsdp__tokenizer_find_cut(t, text, seen);

        CHECK(cut < seen);
        if (cut == 0 || cut == last)
            continue;
        last = cut;
        places++;
        parts.count = 0;
        encode(encoder, text, cut, &parts);
        encode(encoder, text + cut, bytes - cut, &parts);
        if (parts.count != whole.count || memcmp(parts.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) != 0)
            TEST_FAIL("'%s' parted at %zu has other ids", text, cut);
    }
    fsdp_token_list_release(&whole);
    fsdp_token_list_release(&parts);
    return places;
}

TEST(parts_have_the_ids_of_the_whole)
{
    int texts = test_long() ? 20000 : 150;

    for (size_t kind = 0; kind < FSDP__COUNT_OF(kinds); kind++) {
        fsdp_tokenizer *t = small_tokenizer(&kinds[kind]);
        fsdp_encoder *encoder = NULL;
        uint64_t random = kind;
        int places = 0;

        CHECK(fsdp__tokenizer_can_cut(t));
        CHECK_OK(fsdp_encoder_create(t, &encoder));
        for (int i = 0; i < texts; i++) {
            char text[256];
            size_t bytes = make_text(&random, text, sizeof text);

            places += check_cuts(t, encoder, text, bytes);
        }
        CHECK(places > texts / 8); /* or nothing was tried */
        fsdp_encoder_free(encoder);
        fsdp_tokenizer_close(t);
    }
}

TEST(other_patterns_are_not_parted)
{
    static const small_parts unknown[] = {
        {.pre_tokenizer = SEQUENCE(SPLIT("a b|.", "Isolated", "false"))},
        {.pre_tokenizer = SEQUENCE(SPLIT(LLAMA_3, "MergedWithNext", "false"))},
        {.pre_tokenizer = SEQUENCE(SPLIT(LLAMA_3, "Removed", "false"))},
        {.pre_tokenizer = BYTE_LEVEL},
        {.normalizer = "{\"type\": \"NFC\"}", .added_tokens = "[{\"content\": \"e\u0301 a\", \"id\": 270}]"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(unknown); i++) {
        fsdp_tokenizer *t = small_tokenizer(&unknown[i]);

        CHECK(!fsdp__tokenizer_can_cut(t));
        CHECK_EQ(fsdp__tokenizer_find_cut(t, "a b a b", 7), 0);
        fsdp_tokenizer_close(t);
    }
}
