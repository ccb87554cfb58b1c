/* Ids to text, whole and token by token. */
#include "tokenizer/small.h"

#define ADDED "[{\"content\": \"<e>\", \"id\": 270, \"special\": true}, {\"content\": \"\u2581 \u4f60\", \"id\": 271}]"

static char *decode(const fsdp_tokenizer *t, const int32_t *ids, int64_t count, bool skip)
{
    fsdp_decode_options options = {.skip_specials = skip};
    char *text = NULL;
    size_t bytes = 0;

    CHECK_OK(fsdp_tokenizer_decode(t, ids, count, &options, &text, &bytes));
    CHECK_EQ(strlen(text), bytes);
    return text;
}

static void check_decodes(const fsdp_tokenizer *t, const int32_t *ids, int64_t count, bool skip, const char *expected)
{
    char *text = decode(t, ids, count, skip);

    CHECK_STRING(text, expected);
    free(text);
}

TEST(tokens_are_joined)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.added_tokens = ADDED});

    check_decodes(t, (const int32_t[]){258, ' ', 271, 270, 'a'}, 5, false, " the \u2581 \u4f60<e>a");
    check_decodes(t, (const int32_t[]){258, ' ', 271, 270, 'a'}, 5, true, " the \u2581 \u4f60a");
    check_decodes(t, NULL, 0, false, "");
    fsdp_tokenizer_close(t);
}

TEST(bytes_that_are_no_character_become_fffd)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});

    check_decodes(t, (const int32_t[]){'a', 0xe2, 0x82}, 3, false, "a\ufffd");
    check_decodes(t, (const int32_t[]){0xe2, 0x82, 'a', 0xff, 0xff}, 5, false, "\ufffda\ufffd\ufffd");
    check_decodes(t, (const int32_t[]){0xf0, 0x80, 0x80}, 3, false, "\ufffd\ufffd\ufffd");
    check_decodes(t, (const int32_t[]){0xed, 0xa0, 0x80}, 3, false, "\ufffd\ufffd\ufffd");
    fsdp_tokenizer_close(t);
}

TEST(ids_that_there_are_not_are_errors)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    fsdp_decoder *decoder = NULL;
    char *text = NULL;
    const char *piece;
    size_t bytes = 0;

    CHECK_ERROR(fsdp_tokenizer_decode(t, (const int32_t[]){'a', 270}, 2, NULL, &text, &bytes), FSDP_INVALID,
                "cannot decode id 270: the tokenizer has no such token (it has ids up to 269)");
    CHECK_NULL(text);
    CHECK_OK(fsdp_decoder_create(t, NULL, &decoder));
    CHECK_ERROR(fsdp_decoder_push(decoder, -1, &piece, &bytes), FSDP_INVALID, "cannot decode id -1");
    fsdp_decoder_free(decoder);
    fsdp_tokenizer_close(t);
}

/* Every piece is UTF-8 by itself, and together they are the whole. */
TEST(pieces_are_whole_characters)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.added_tokens = ADDED});
    fsdp_decoder *decoder = NULL;
    uint64_t random = 7;

    CHECK_OK(fsdp_decoder_create(t, NULL, &decoder));
    for (int trial = 0; trial < 300; trial++) {
        int32_t ids[24];
        char joined[512] = "", *whole;
        const char *piece;
        size_t bytes;

        for (int i = 0; i < 24; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((random >> 33) % 4 ? 0x80 + (random >> 40) % 128 : 1 + (random >> 40) % 270);
            CHECK_OK(fsdp_decoder_push(decoder, ids[i], &piece, &bytes));
            CHECK_EQ(strlen(piece), bytes);
            strcat(joined, piece);
        }
        CHECK_OK(fsdp_decoder_finish(decoder, &piece, &bytes));
        strcat(joined, piece);
        whole = decode(t, ids, 24, false);
        CHECK_STRING(joined, whole);
        free(whole);
    }
    fsdp_decoder_free(decoder);
    fsdp_tokenizer_close(t);
}

TEST(a_character_comes_with_its_last_byte)
{
    static const int32_t ids[] = {0xf0, 0x9f, 0x99, 0x82};
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    fsdp_decoder *decoder = NULL;
    const char *piece;
    size_t bytes;

    CHECK_OK(fsdp_decoder_create(t, NULL, &decoder));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(fsdp_decoder_push(decoder, ids[i], &piece, &bytes));
        CHECK_STRING(piece, i < 3 ? "" : "\U0001f642");
    }
    CHECK_OK(fsdp_decoder_push(decoder, 0xf0, &piece, &bytes));
    CHECK_OK(fsdp_decoder_finish(decoder, &piece, &bytes));
    CHECK_STRING(piece, "\ufffd");
    fsdp_decoder_free(decoder);
    fsdp_tokenizer_close(t);
}
