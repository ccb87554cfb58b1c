/* Text to ids and back. Expected ids are what Hugging Face's tokenizers gives for the same tokenizer.json. */
#include "base/compiler.h"
#include "tokenizer/small.h"

#define ADDED(content, id, more) "{\"content\": \"" content "\", \"id\": " #id ", " more "}"

TEST(words_become_their_merges)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});

    CHECK_IDS(t, "", );
    CHECK_IDS(t, "the other thing", 't', 257, ' ', 'o', 't', 257, 'r', 256, 'h', 260);
    CHECK_IDS(t, " the the", 258, 258);
    CHECK_IDS(t, "a  the\n\na", 'a', ' ', 258, '\n', '\n', 'a');
    CHECK_IDS(t, "1234 \xc3\xa9", 267, '4', ' ', 0xc3, 0xa9);
    CHECK_EQ(fsdp_tokenizer_vocab_size(t), 270);
    CHECK_EQ(fsdp_tokenizer_id(t, "\u0120the"), 258);
    CHECK_EQ(fsdp_tokenizer_id(t, "nothing"), -1);
    CHECK_EQ(fsdp_tokenizer_eos(t), -1);
    fsdp_tokenizer_close(t);
}

TEST(merges_are_read_in_both_spellings)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.merges_as_pairs = true});

    CHECK_IDS(t, "the other thing", 't', 257, ' ', 'o', 't', 257, 'r', 256, 'h', 260);
    fsdp_tokenizer_close(t);
}

/* Merges never make "the" or "Ċa": they are tokens that only a whole word becomes. */
TEST(a_word_that_is_a_token_may_skip_the_merges)
{
    static const char split[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}";
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.model = "\"ignore_merges\": true, ", .pre_tokenizer = split});

    CHECK_IDS(t, "\na", 269);
    CHECK_IDS(t, "123", 267);
    CHECK_IDS(t, "there", 't', 257, 'r', 'e');
    CHECK_IDS(t, "the", 263);
    fsdp_tokenizer_close(t);
}

TEST(a_space_may_be_put_before_the_text)
{
    fsdp_tokenizer *t =
        small_tokenizer(&(small_parts){.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
                                       .added_tokens = "[" ADDED("<e>", 270, "\"special\": true") "]"});

    CHECK_IDS(t, "the", 258);
    CHECK_IDS(t, " the", 258);
    CHECK_IDS(t, "a<e>the<e>", 264, 270, 258, 270);
    fsdp_tokenizer_close(t);
}

TEST(digits_stand_alone_or_together)
{
    static const char alone[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
        "\"individual_digits\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}";
    static const char together[] = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
                                   "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}";
    fsdp_tokenizer *a = small_tokenizer(&(small_parts){.pre_tokenizer = alone});
    fsdp_tokenizer *b = small_tokenizer(&(small_parts){.pre_tokenizer = together});

    CHECK_IDS(a, "a 1234th", 'a', ' ', '1', '2', '3', '4', 262);
    CHECK_IDS(b, "a 1234th", 'a', ' ', 267, '4', 262);
    fsdp_tokenizer_close(a);
    fsdp_tokenizer_close(b);
}

/* Added tokens: what is around them, and what in a text is one. */
TEST(added_tokens_are_found_first)
{
    static const char added[] = "[{\"content\": \"<e>\", \"id\": 270, \"special\": true},"
                                "{\"content\": \"<e><e>\", \"id\": 271, \"special\": true},"
                                "{\"content\": \"<l>\", \"id\": 272, \"special\": true, \"lstrip\": true},"
                                "{\"content\": \"<r>\", \"id\": 273, \"rstrip\": true, \"normalized\": false},"
                                "{\"content\": \"one\", \"id\": 274, \"single_word\": true, \"normalized\": true}]";
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.added_tokens = added});
    static const fsdp_encode_options plain = {.plain_specials = true};

    CHECK_IDS(t, "<e>", 270);
    CHECK_IDS(t, "the<e>the", 't', 257, 270, 't', 257);
    CHECK_IDS(t, "<e><e><e>", 271, 270);
    CHECK_IDS(t, "a \t<l> a", 'a', 272, 264);
    CHECK_IDS(t, "a <r> \n the", 'a', ' ', 273, 't', 257);
    CHECK_IDS(t, "one, none one1 one", 274, ',', ' ', 'n', 'o', 'n', 'e', ' ', 'o', 'n', 'e', '1', ' ', 274);
    CHECK_IDS(t, "<r>  <l>", 273, 272);
    check_encodes(t, "<e><r>", &plain, (const int32_t[]){'<', 'e', '>', 273, -1});
    CHECK_EQ(fsdp_tokenizer_vocab_size(t), 275);
    fsdp_tokenizer_close(t);
}

/* A token is found in white space that the one before it took, unless its own lstrip leaves nothing of it. */
TEST(added_tokens_may_stand_in_the_space_of_others)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.added_tokens = "[" ADDED("<r>", 270, "\"rstrip\": true") ", " //
                                                       ADDED("\\n", 271, "\"special\": true") ", "                    //
                                                       ADDED("\u3000", 272, "\"lstrip\": true") "]"});

    CHECK_IDS(t, "<r> \n x", 270, 271, ' ', 'x');
    CHECK_IDS(t, "<r>\u3000x", 270, 'x');
    CHECK_IDS(t, "<r>\n", 270, 271);
    fsdp_tokenizer_close(t);
}

TEST(a_template_is_put_around_the_text)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){
        .added_tokens = "[" ADDED("<b>", 270, "\"special\": true") "," ADDED("<e>", 271, "\"special\": true") "]",
        .post_processor =
            "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
            "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<b>\"}}, "
            "{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"<e>\"}}], \"special_tokens\": "
            "{\"<b>\": {\"ids\": [270]}, \"<e>\": {\"ids\": [271]}}}]}"});
    static const fsdp_encode_options around = {.add_specials = true};

    check_encodes(t, "the", &around, (const int32_t[]){270, 't', 257, 271, -1});
    check_encodes(t, "", &around, (const int32_t[]){270, 271, -1});
    CHECK_IDS(t, "the", 't', 257);
    fsdp_tokenizer_close(t);
}

TEST(form_c_is_made_of_the_text)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){
        .normalizer = "{\"type\": \"NFC\"}", .added_tokens = "[" ADDED("e\u0301", 270, "\"normalized\": true") "]"});

    CHECK_IDS(t, "a\u0301 \u1100\u1161\u11a8", 0xc3, 0xa1, ' ', 0xea, 0xb0, 0x81);
    CHECK_IDS(t, "\u212b\u00c5", 0xc3, 0x85, 0xc3, 0x85);
    CHECK_IDS(t, "xe\u0301x\u00e9", 'x', 270, 'x', 270);
    CHECK_IDS(t, "\uff0c\u0301", 0xef, 0xbc, 0x8c, 0xcc, 0x81);
    CHECK_IDS(t, "x\u1df8\u0301", 'x', 0xe1, 0xb7, 0xb8, 0xcc, 0x81); /* Unicode 10 would turn them round */
    fsdp_tokenizer_close(t);
}

/* ---- bytes without a token ---- */

TEST(bytes_of_no_token_are_left_out_and_counted)
{
    static const char json[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
                               "{\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}";
    char *directory = test_directory(), *path = test_path(directory, "tokenizer.json");
    fsdp_tokenizer *t = NULL;
    fsdp_encoder *encoder = NULL;
    fsdp_token_list list = {0};

    test_write_file(path, json, strlen(json));
    CHECK_OK(fsdp_tokenizer_open(directory, &t));
    CHECK_OK(fsdp_encoder_create(t, &encoder));
    for (int round = 0; round < 2; round++)
        CHECK_OK(fsdp_encoder_encode(encoder, "axb cab", 7, NULL, &list));
    CHECK_EQ(list.count, 4);
    CHECK_EQ(list.ids[0], 2);
    CHECK_EQ(list.ids[1], 2);
    CHECK_EQ(fsdp_encoder_left_out(encoder), 6); /* x, the space and c, twice */
    fsdp_token_list_release(&list);
    fsdp_encoder_free(encoder);
    fsdp_tokenizer_close(t);
}

TEST(an_unknown_token_stands_for_them)
{
    fsdp_tokenizer *t = NULL;
    char *directory = test_directory(), *path = test_path(directory, "t.json");

    for (int fused = 0; fused < 2; fused++) {
        char json[512];

        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
                 "{\"unk_token\": \"?\", \"fuse_unk\": %s, \"vocab\": {\"a\": 0, \"?\": 1}, \"merges\": []}}",
                 fused ? "true" : "false");
        test_write_file(path, json, strlen(json));
        CHECK_OK(fsdp_tokenizer_open(path, &t));
        check_encodes(t, "axya", NULL, fused ? (const int32_t[]){0, 1, 0, -1} : (const int32_t[]){0, 1, 1, 0, -1});
        fsdp_tokenizer_close(t);
    }
}

TEST(what_is_no_utf8_is_an_error_with_its_offset)
{
    static const char *const broken[] = {"abcdefghij\xff", "\xc3",     "a\xe2\x82",
                                         "\xed\xa0\x80",   "\xc0\x80", "\xf5\x80\x80\x80"};
    static const int offsets[] = {10, 0, 1, 0, 0, 0};
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    fsdp_token_list list = {0};

    for (size_t i = 0; i < FSDP__COUNT_OF(broken); i++) {
        char part[64];

        snprintf(part, sizeof part, "not UTF-8 at offset %d (", offsets[i]);
        CHECK_ERROR(fsdp_tokenizer_encode(t, broken[i], strlen(broken[i]), NULL, &list), FSDP_FORMAT, part);
    }
    CHECK_EQ(list.count, 0);
    fsdp_tokenizer_close(t);
}

/* ---- long words: a heap has to do what looking through all pairs does ---- */

static int64_t encode_word(const fsdp_tokenizer *t, const char *text, size_t bytes, fsdp_token_list *list)
{
    list->count = 0;
    CHECK_OK(fsdp_tokenizer_encode(t, text, bytes, NULL, list));
    return list->count;
}

/* The slow way: of all pairs the one of the lowest rank, the leftmost. Ids of merges are in the order of their ranks.
 */
static int64_t merge_slowly(const fsdp_tokenizer *t, int32_t *ids, int64_t count)
{
    for (;;) {
        int64_t best = -1;
        int32_t best_id = INT32_MAX;

        for (int64_t i = 0; i + 1 < count; i++) {
            char text[8] = {0};
            fsdp_token_list pair = {.ids = ids + i, .count = 2};
            char *both = NULL;
            size_t bytes = 0;
            int32_t id;

            CHECK_OK(fsdp_tokenizer_decode(t, pair.ids, 2, NULL, &both, &bytes));
            for (size_t b = 0, to = 0; b < bytes; b++)
                to += (size_t)snprintf(text + to, sizeof text - to, "%s",
                                       both[b] == ' ' ? "\u0120" : (char[]){both[b], 0});
            free(both);
            id = fsdp_tokenizer_id(t, text);
            if (id >= 256 && id < best_id && !(id == 263 && ids[i] == 't')) { /* t + he is no merge */
                best = i;
                best_id = id;
            }
        }
        if (best < 0)
            return count;
        ids[best] = best_id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(--count - best - 1) * sizeof *ids);
    }
}

TEST(long_words_merge_as_short_ones)
{
    static const char letters[] = "thering";
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    fsdp_token_list list = {0};
    uint64_t random = 1;

    for (size_t bytes = 1; bytes < 200; bytes += 7) {
        char word[200];
        int32_t ids[200];
        int64_t count;

        for (size_t i = 0; i < bytes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            word[i] = letters[(random >> 33) % (sizeof letters - 1)];
            ids[i] = word[i];
        }
        count = merge_slowly(t, ids, (int64_t)bytes);
        CHECK_EQ(encode_word(t, word, bytes, &list), count);
        CHECK_BYTES(list.ids, ids, (size_t)count * sizeof *ids);
    }
    fsdp_token_list_release(&list);
    fsdp_tokenizer_close(t);
}

TEST(a_million_bytes_without_a_break_are_one_word)
{
    enum {
        BYTES = 1 << 20
    };
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    fsdp_token_list list = {0};
    char *text = malloc(BYTES);

    for (size_t i = 0; i < BYTES; i++)
        text[i] = "the"[i % 3];
    CHECK_EQ(encode_word(t, text, BYTES, &list), 2 * (BYTES / 3) + 1);
    CHECK_EQ(list.ids[1001], 257);
    memset(text, ' ', BYTES);
    CHECK_EQ(encode_word(t, text, BYTES, &list), BYTES / 2);
    free(text);
    fsdp_token_list_release(&list);
    fsdp_tokenizer_close(t);
}
