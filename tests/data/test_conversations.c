/* Files of conversations: what they are taken for, rows in a file and in the cache, and files that are wrong. */
#include "data/conversations.h"
#include "data/packing.h"

#include <jansson.h>

#include "base/alloc.h"
#include "data/rows.h"
#include "data/token_cache.h"
#include "support/chat_folder.h"
#include "support/test.h"

typedef struct fixture {
    char *folder, *data, *out;
    fsdp_tokenizer *tokenizer;
    fsdp_chat *chat;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->folder = test_directory();
    f->data = test_path(f->folder, "chat.jsonl");
    f->out = test_path(f->folder, "rows.bin");
    chat_folder_write(f->folder, chat_template_plain);
    if (fsdp_tokenizer_open(f->folder, &f->tokenizer) != FSDP_OK ||
        fsdp_chat_open(f->folder, f->tokenizer, NULL, &f->chat) != FSDP_OK)
        return -1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_chat_close(f->chat);
    fsdp_tokenizer_close(f->tokenizer);
    return 0;
}

/* Writes the file, and makes rows of it as a run does. */
static fsdp_status make(const fixture *f, const char *text, bool skip, fsdp_tokenize_summary *summary)
{
    fsdp_tokenize_options options = {.chat = f->chat, .skip_bad_lines = skip, .threads = 2};

    test_write_file(f->data, text, strlen(text));
    CHECK_OK(fsdp__conversations_kind((const char *const *)&f->data, 1, &options.chat_kind));
    return fsdp_tokenize_files(f->tokenizer, (const char *const *)&f->data, 1, f->out, &options, summary);
}

#define TURN(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define GOOD "{\"messages\": [" TURN("user", "a") ", " TURN("assistant", "b") "]}\n"

TEST_OF(files_are_what_their_first_rows_are, setup, teardown, fixture *f)
{
    static const struct {
        const char *text;
        fsdp_chat_kind kind;
    } cases[] = {{GOOD, FSDP_CHAT_MESSAGES},
                 {"\n{\"id\": 1}\n{\"conversations\": []}\n", FSDP_CHAT_SHAREGPT},
                 {"{\"completion\": \"b\", \"prompt\": \"a\"}", FSDP_CHAT_COMPLETION},
                 {"{\"chosen\": \"b\", \"prompt\": \"a\", \"rejected\": \"c\"}", FSDP_CHAT_PREFERENCE},
                 {"{\"instruction\": \"a\", \"output\": \"b\"}", FSDP_CHAT_INSTRUCTION},
                 {"{\"text\": \"a\"}\n" GOOD, FSDP_CHAT_NONE},
                 {"{\"prompt\": \"a\"}\nno JSON\n", FSDP_CHAT_NONE},
                 {"", FSDP_CHAT_NONE}};

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_chat_kind kind;

        test_write_file(f->data, cases[i].text, strlen(cases[i].text));
        CHECK_OK(fsdp__conversations_kind((const char *const *)&f->data, 1, &kind));
        CHECK_EQ(kind, cases[i].kind);
    }
}

TEST_OF(rows_keep_their_order_and_what_is_learned, setup, teardown, fixture *f)
{
    enum {
        ROWS = 3000
    };
    FILE *file = test_begin_text();
    fsdp_tokenize_summary summary;
    fsdp__rows *rows = NULL;

    for (int i = 0; i < ROWS; i++)
        fprintf(file, "{\"messages\": [" TURN("user", "%d") ", " TURN("assistant", "%0*d") "]}\n", i, 1 + i % 40,
                i % 10);
    CHECK_OK(make(f, test_end_text(file), false, &summary));
    CHECK_OK(fsdp__rows_open(f->out, &rows));
    CHECK_EQ(fsdp__rows_count(rows), ROWS);
    CHECK_EQ(summary.documents, ROWS);
    CHECK_EQ(summary.learned_tokens, rows->learned);
    for (int i = 0; i < ROWS; i++) {
        int64_t learned, length = fsdp__rows_length(rows, i);
        bool bits[200];
        int32_t ids[200];

        CHECK(length < 200);
        CHECK_OK(fsdp__rows_learned(rows, i, 0, length, &learned));
        CHECK_EQ(learned, 1 + i % 40 + 1);
        CHECK_OK(fsdp__rows_get(rows, i, 0, length, ids, bits));
        CHECK(!bits[length - 1] && bits[length - 2] && ids[length - 2] == 2 && ids[0] == 1);
    }
    fsdp__rows_close(rows);
}

TEST_OF(the_cache_knows_template_and_mask, setup, teardown, fixture *f)
{
    fsdp_tokenize_options options = {.chat = f->chat, .chat_kind = FSDP_CHAT_MESSAGES, .threads = 1};
    fsdp__cached_tokens first, again, all;
    fsdp__rows *rows = NULL;

    test_write_file(f->data, GOOD, strlen(GOOD));
#define GET(out) \
    CHECK_OK(fsdp__token_cache_get(f->tokenizer, (const char *const *)&f->data, 1, f->folder, true, &options, (out)))
    GET(&first);
    GET(&again);
    CHECK(first.made && !again.made);
    CHECK_STRING(first.path, again.path);
    CHECK_OK(fsdp__rows_open_own(first.path, &rows));
    CHECK_EQ(rows->learned, 2);
    fsdp__rows_close(rows);
    options.learn_all = true;
    GET(&all);
    CHECK(all.made && strcmp(all.path, first.path) != 0);
    CHECK_OK(fsdp__rows_open_own(all.path, &rows));
    CHECK_EQ(rows->learned, rows->tokens - 1);
    fsdp__rows_close(rows);
    fsdp__free(first.path);
    fsdp__free(again.path);
    fsdp__free(all.path);
}

/* ---- files that are wrong ---- */

static const struct {
    const char *text, *message;
} wrong[] = {
    {GOOD "{\"messages\": [" TURN("user", "a") "\n", "chat.jsonl': line 2: "},
    {GOOD "\n{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}\n",
     "chat.jsonl': line 3: the row has conversations (ShareGPT), and the first one messages"},
    {GOOD "{\"id\": 5, \"body\": \"x\"}\n", "chat.jsonl': line 2: the row has 'id', 'body': expected messages"},
    {GOOD "{\"messages\": \"a\"}\n", "chat.jsonl': line 2: field 'messages' is no list of messages"},
    {GOOD "{\"messages\": []}\n", "chat.jsonl': line 2: the conversation has no messages"},
    {GOOD GOOD "{\"messages\": [{\"content\": \"a\"}]}\n",
     "chat.jsonl': line 3: field 'messages': item 1 is no object with a 'role'"},
    {"{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\"}]}\n",
     "chat.jsonl': line 1: field 'messages': item 2 has no 'content'"},
    {"{\"conversations\": [{\"from\": \"bob\", \"value\": \"a\"}]}\n",
     "chat.jsonl': line 1: field 'conversations': item 1 is from 'bob': known are human, gpt"},
    {"{\"instruction\": \"a\", \"output\": [1]}\n", "chat.jsonl': line 1: field 'output' is no text"},
    {"{\"prompt\": [" TURN("user", "a") "], \"completion\": \"b\"}\n",
     "chat.jsonl': line 1: fields 'prompt' and 'completion' are not both texts"},
    {GOOD "{\"messages\": [" TURN("user", "\xff") "]}\n", "chat.jsonl': line 2: it is not UTF-8 at column"},
    {"[" GOOD "]\n" GOOD,
     "chat.jsonl': line 1: not a JSON object but an array: if the file is one, make JSON lines of it"},
    {GOOD "{\"messages\": [" TURN("user", "a\\ud83d") "]}\n",
     "chat.jsonl': line 2: field 'messages' has half a surrogate pair (as \\ud83d alone) at column "},
    {GOOD "{\"messages\": [" TURN("user", "a\\u0000") "]}\n",
     "chat.jsonl': line 2: field 'messages' has a NUL (\\u0000) at column "},
    {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}\n",
     "chat.jsonl': line 1: field 'messages': the content of item 1 is no text"},
    {GOOD "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
                                               "\"f\", \"arguments\": \"{\\\"a\\\": \"}}]}]}\n",
     "chat.jsonl': line 2: field 'messages': the arguments of tool call 1 of item 2 are a text that is no JSON"},
    {"{\n \"messages\": []\n}\n", "chat.jsonl': line 1: no key in quotes at column 2, where the line ends: a line is"},
    {GOOD "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assist",
     "chat.jsonl': line 2: a string does not end at column "},
};

TEST_OF(wrong_files_have_one_clear_error_each, setup, teardown, fixture *f)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(wrong); i++) {
        const char *found, *message = wrong[i].message;

        CHECK(make(f, wrong[i].text, false, NULL) == FSDP_FORMAT);
        found = strstr(message, "chat_template"); /* whose folder differs from run to run */
        CHECK_CONTAINS(fsdp_last_error(), found ? found : message);
        CHECK_CONTAINS(fsdp_last_error(), "data.on_bad_line=skip (--on-bad-line=skip) leaves such lines out");
    }
}

/* Of each of these the good row is read. */
TEST_OF(what_other_programs_write_is_read, setup, teardown, fixture *f)
{
    static const char *const texts[] = {
        "\xef\xbb\xbf" GOOD, "{\"messages\": [" TURN("user", "a") ", " TURN("assistant", "b") "]}\r\n\r\n",
        "{\"id\": \"\\ud83d\", \"score\": NaN, \"messages\": [" TURN("user", "a") ", " TURN("assistant", "b") "]}\n",
        "{\"messages\": 5, \"messages\": [" TURN("user", "a") ", " TURN("assistant", "b") "]}\n"};
    fsdp_tokenize_summary first, summary;

    CHECK_OK(make(f, GOOD, false, &first));
    for (size_t i = 0; i < FSDP__COUNT_OF(texts); i++) {
        CHECK_OK(make(f, texts[i], false, &summary));
        CHECK_EQ(summary.tokens, first.tokens);
        CHECK_EQ(summary.learned_tokens, first.learned_tokens);
    }
}

TEST_OF(a_byte_of_zero_is_named, setup, teardown, fixture *f)
{
    static const char text[] = GOOD "{\"messages\": [\0\0\0]}\n";
    fsdp_tokenize_options options = {.chat = f->chat, .chat_kind = FSDP_CHAT_MESSAGES};

    test_write_file(f->data, text, sizeof text - 1);
    CHECK_ERROR(fsdp_tokenize_files(f->tokenizer, (const char *const *)&f->data, 1, f->out, &options, NULL),
                FSDP_FORMAT, "chat.jsonl': line 2: no value at column 15 (a NUL byte)");
}

/* Makes a row whose question has so many bytes. free() it. */
static char *long_row(size_t bytes)
{
    char *text = malloc(bytes + 200), *at = text;

    at += sprintf(at, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    memset(at, ' ', bytes);
    strcpy(at + bytes, "\"}, " TURN("assistant", "b") "]}\n");
    return text;
}

TEST_OF(a_row_may_be_long_and_has_an_end, setup, teardown, fixture *f)
{
    char *fits = long_row(3 << 20), *beyond = long_row((32 << 20) + 1), *both = malloc(strlen(beyond) + 100);
    fsdp_tokenize_summary summary;

    CHECK_OK(make(f, fits, false, &summary));
    CHECK_EQ(summary.documents, 1);
    sprintf(both, "%s%s", GOOD, beyond);
    CHECK_ERROR(
        make(f, both, false, NULL), FSDP_FORMAT,
        "chat.jsonl': line 2: a text of over 32 MiB at column 43: more than a row may have: make several of it");
    free(fits);
    free(beyond);
    free(both);
}

TEST_OF(a_role_of_which_the_template_writes_nothing_is_refused, setup, teardown, fixture *f)
{
    static const char template[] =
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% elif m.role == 'ipython' %}{{ m.content | tojson }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fsdp_chat_close(f->chat);
    chat_folder_write(f->folder, template);
    CHECK_OK(fsdp_chat_open(f->folder, f->tokenizer, NULL, &f->chat));
    CHECK_OK(make(f, GOOD, false, NULL));
    CHECK_OK(make(f, "{\"messages\": [" TURN("ipython", "\\\"a\\\"") ", " TURN("assistant", "b") "]}\n", false, NULL));
    CHECK_ERROR(make(f, GOOD "{\"messages\": [" TURN("human", " why") ", " TURN("assistant", "b") "]}\n", false, NULL),
                FSDP_FORMAT, "chat.jsonl': line 2: message 1 has the role 'human', for which the chat template writes");
}

TEST_OF(halves_of_pairs_may_be_replaced, setup, teardown, fixture *f)
{
    fsdp_tokenize_options options = {.chat = f->chat, .chat_kind = FSDP_CHAT_MESSAGES, .replace_invalid = true};
    const char text[] = "{\"messages\": [" TURN("user", "a\\ud83d") ", " TURN("assistant", "b") "]}\n";

    test_write_file(f->data, text, sizeof text - 1);
    CHECK_OK(fsdp_tokenize_files(f->tokenizer, (const char *const *)&f->data, 1, f->out, &options, NULL));
}

TEST_OF(bad_rows_may_be_left_out, setup, teardown, fixture *f)
{
    fsdp_tokenize_summary summary;

    CHECK_OK(make(f, GOOD "{\"messages\": []}\n" GOOD "x\n", true, &summary));
    CHECK_EQ(summary.documents, 2);
    CHECK_EQ(summary.left_out_lines, 2);
    CHECK_CONTAINS(summary.first_left_out, "chat.jsonl:2: the conversation has no messages");
}

/* No token is predicted from nothing, so the first of a row is nobody's answer. */
TEST_OF(what_is_counted_is_what_is_there, setup, teardown, fixture *f)
{
    static const char text[] =
        "{\"prompt\": \"\", \"completion\": \"b\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    fsdp_tokenize_options options = {.chat = f->chat, .chat_kind = FSDP_CHAT_COMPLETION};
    fsdp_tokenize_summary summary;
    fsdp__rows *rows = NULL;

    for (int all = 0; all < 2; all++) {
        test_write_file(f->data, text, sizeof text - 1);
        options.learn_all = all;
        CHECK_OK(fsdp_tokenize_files(f->tokenizer, (const char *const *)&f->data, 1, f->out, &options, &summary));
        CHECK_EQ(summary.tokens, 5);
        CHECK_EQ(summary.learned_tokens, 3);
        CHECK_OK(fsdp__rows_open(f->out, &rows));
        CHECK_EQ(rows->learned, 3);
        fsdp__rows_close(rows);
    }
    fsdp_chat_close(f->chat);
    chat_folder_write(f->folder, template);
    CHECK_OK(fsdp_chat_open(f->folder, f->tokenizer, NULL, &f->chat));
    CHECK_OK(
        make(f, "{\"messages\": [" TURN("user", "") "]}\n{\"messages\": [" TURN("user", "a") "]}\n", false, &summary));
    CHECK_EQ(summary.documents, 1);
}

TEST_OF(what_is_no_file_of_rows_is_not_replaced, setup, teardown, fixture *f)
{
    test_write_file(f->out, "mine", 4);
    CHECK_ERROR(make(f, GOOD, false, NULL), FSDP_INVALID, "exists and is not a file of rows");
}

/* ---- pairs ---- */

/* A row as text, in which what is learned stands in brackets. */
static void check_row(const fsdp__rows *rows, int64_t row, const char *expected)
{
    int64_t length = fsdp__rows_length(rows, row);
    int32_t ids[200];
    bool learned[200];
    char text[400];
    size_t used = 0;

    CHECK(length <= 200);
    CHECK_OK(fsdp__rows_get(rows, row, 0, length, ids, learned));
    for (int64_t i = 0; i < length; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "%s%c%s", learned[i] && (i == 0 || !learned[i - 1]) ? "[" : "",
            ids[i] < 3 ? '#' : (char)(ids[i] - 3), learned[i] && (i + 1 == length || !learned[i + 1]) ? "]" : "");
    CHECK_STRING(text, expected);
}

/* All ways in which pairs are written. A prompt that is not there is what both begin with. */
TEST_OF(pairs_are_two_rows_each, setup, teardown, fixture *f)
{
    fsdp_tokenize_summary summary;
    fsdp__packed *packed;
    fsdp__rows *rows = NULL;

    CHECK_OK(make(f,
                  "{\"prompt\": \"ab\", \"chosen\": \" c\", \"rejected\": \"\"}\n"
                  "{\"chosen\": \"say \\u00e4 b\", \"rejected\": \"say \\u00e5\"}\n"
                  "{\"chosen\": \"one\", \"rejected\": \"one\"}\n",
                  true, &summary));
    CHECK_EQ(summary.documents, 2);
    CHECK_CONTAINS(summary.first_left_out, "'chosen' and 'rejected' are the same");
    CHECK_OK(fsdp__rows_open(f->out, &rows));
    CHECK(rows->pairs);
    CHECK_EQ(fsdp__rows_count(rows), 4);
    check_row(rows, 0, "ab[ c#]");
    check_row(rows, 1, "ab[#]");
    check_row(rows, 2, "say[ \xc3\xa4 b#]");
    check_row(rows, 3, "say[ \xc3\xa5#]");
    CHECK_ERROR(fsdp__pack(rows, &(fsdp__packing_options){.seq_len = 64, .packing = FSDP_PACKING_NEXT_FIT}, &packed),
                FSDP_INVALID, "has pairs of chosen and rejected answers");
    fsdp__rows_close(rows);
}

TEST_OF(pairs_of_messages_share_their_first_turns, setup, teardown, fixture *f)
{
#define USER "{\"role\": \"user\", \"content\": \"q\"}"
#define SAYS(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
    static const char *const given =
        "{\"prompt\": [" USER "], \"chosen\": [" SAYS("a") "], \"rejected\": [" SAYS("b") "]}\n";
    static const char *const implied =
        "{\"chosen\": [" USER ", " SAYS("a") "], \"rejected\": [" USER ", " SAYS("b") "]}\n";
    char *text[2] = {NULL, NULL};
    size_t bytes[2];

    for (int i = 0; i < 2; i++) {
        CHECK_OK(make(f, i ? implied : given, false, NULL));
        text[i] = test_read_file(f->out, &bytes[i]);
    }
    CHECK_EQ(bytes[0], bytes[1]);
    CHECK(memcmp(text[0], text[1], bytes[0]) == 0);
    CHECK_ERROR(make(f, "{\"chosen\": [" USER "], \"rejected\": \"x\"}\n", false, NULL), FSDP_FORMAT,
                "are not both texts, or both lists");
    CHECK_ERROR(make(f, "{\"chosen\": [" SAYS("a") "], \"rejected\": [" SAYS("b") "]}\n", false, NULL), FSDP_FORMAT,
                "there is no field 'prompt'");
#undef USER
#undef SAYS
}

/* ---- the reference: ids and masks of transformers ---- */

TEST_OF(rows_of_the_reference_agree, setup, teardown, fixture *f)
{
    const char *root = getenv("FSDP_REFERENCE");
    char data[4096], folder[4096], tokens[4096];
    fsdp_tokenize_options options = {.chat_kind = FSDP_CHAT_MESSAGES};
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_chat *chat = NULL;
    fsdp__rows *rows = NULL;
    json_t *file, *one;
    size_t i;

    if (!root)
        skip();
    snprintf(data, sizeof data, "%s/finetune/sft-train.jsonl", root);
    snprintf(folder, sizeof folder, "%s/finetune/byte-chat", root);
    snprintf(tokens, sizeof tokens, "%s/finetune/sft-tokens.json", root);
    file = json_load_file(tokens, 0, NULL);
    CHECK(file != NULL);
    CHECK_OK(fsdp_tokenizer_open(folder, &tokenizer));
    CHECK_OK(fsdp_chat_open(folder, tokenizer, NULL, &chat));
    options.chat = chat;
    CHECK_OK(fsdp_tokenize_files(tokenizer, (const char *const[]){data}, 1, f->out, &options, NULL));
    CHECK_OK(fsdp__rows_open(f->out, &rows));
    CHECK_EQ(fsdp__rows_count(rows), json_array_size(json_object_get(file, "conversations")));
    json_array_foreach(json_object_get(file, "conversations"), i, one)
    {
        const char *mask = json_string_value(json_object_get(one, "mask"));
        int64_t length = fsdp__rows_length(rows, (int64_t)i);
        int32_t ids[1000];
        bool learned[1000];

        CHECK_EQ(length, strlen(mask));
        CHECK_OK(fsdp__rows_get(rows, (int64_t)i, 0, length, ids, learned));
        for (int64_t k = 0; k < length; k++) {
            CHECK_EQ(ids[k], json_integer_value(json_array_get(json_object_get(one, "ids"), (size_t)k)));
            CHECK_EQ(learned[k], mask[k] == '1');
        }
    }
    fsdp__rows_close(rows);
    fsdp_chat_close(chat);
    fsdp_tokenizer_close(tokenizer);
    json_decref(file);
}
