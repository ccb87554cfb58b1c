/* Conversations as transformers renders and encodes them (FSDP_REFERENCE), and what of them is learned. */
#include <time.h>

#include "chat/chat.h"
#include "support/test.h"

static char *reference(const char *folder, const char *name)
{
    const char *root = getenv("FSDP_REFERENCE");
    char path[4096];

    if (!root)
        skip();
    snprintf(path, sizeof path, "%s/finetune/chat/%s%s%s", root, folder, *folder ? "/" : "", name);
    return strdup(path);
}

static json_t *load(const char *folder, const char *name)
{
    char *path = reference(folder, name);
    json_t *out = json_load_file(path, 0, NULL);

    CHECK(out != NULL);
    free(path);
    return out;
}

static int64_t parse_now(const char *text)
{
    struct tm parts = {.tm_isdst = -1};

    CHECK(strptime(text, "%Y-%m-%dT%H:%M:%S", &parts) != NULL);
    return (int64_t)mktime(&parts);
}

/* Returns a byte offset for one in characters. */
static size_t bytes_of(const char *text, int64_t characters)
{
    size_t at = 0;

    while (characters > 0 || ((unsigned char)text[at] & 0xc0) == 0x80)
        characters -= ((unsigned char)text[++at] & 0xc0) != 0x80;
    return at;
}

static void check_ids(const char *name, const fsdp_chat_row *row, const json_t *ids)
{
    if (row->ids.count != (int64_t)json_array_size(ids))
        TEST_FAIL("%s: %lld ids, not %zu", name, (long long)row->ids.count, json_array_size(ids));
    for (int64_t i = 0; i < row->ids.count; i++)
        if (row->ids.ids[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            TEST_FAIL("%s: id %lld is %d", name, (long long)i, row->ids.ids[i]);
}

/* Compares what role spans give with the reference's, whose last white space counts. */
static void check_spans(const char *name, const fsdp_chat_row *row, const json_t *spans,
                        const fsdp_tokenizer *tokenizer)
{
    const json_t *span;
    size_t i, at = 0;
    json_array_foreach(spans, i, span)
    {
        size_t begin = bytes_of(row->text, json_integer_value(json_array_get(span, 0)));
        size_t end = bytes_of(row->text, json_integer_value(json_array_get(span, 1)));

        while (end > begin && strchr("\n ", row->text[end - 1]))
            end--;
        CHECK(begin >= at && end > begin);
        at = end;
        {
            fsdp_token_list ids = {0};
            fsdp_token_list before = {0};

            CHECK_OK(fsdp_tokenizer_encode(tokenizer, row->text, begin, NULL, &before));
            CHECK_OK(fsdp_tokenizer_encode(tokenizer, row->text, end, NULL, &ids));
            for (int64_t k = before.count; k < ids.count; k++)
                if (!row->learned[k])
                    TEST_FAIL("%s: token %lld of %lld is not learned", name, (long long)k, (long long)row->ids.count);
            if (ids.count < row->ids.count && row->learned[ids.count])
                TEST_FAIL("%s: token %lld is learned", name, (long long)ids.count);
            fsdp_token_list_release(&before);
            fsdp_token_list_release(&ids);
        }
    }
}

static void check_result(const char *name, const fsdp_chat_row *row, const json_t *expected)
{
    const char *mask = json_string_value(json_object_get(expected, "mask"));

    if (strcmp(row->text, json_string_value(json_object_get(expected, "text"))) != 0)
        TEST_FAIL("%s: '%s'\n not '%s'", name, row->text, json_string_value(json_object_get(expected, "text")));
    check_ids(name, row, json_object_get(expected, "ids"));
    for (int64_t i = 0; mask && i < row->ids.count; i++)
        if (row->learned[i] != (mask[i] == '1'))
            TEST_FAIL("%s: token %lld is%s learned", name, (long long)i, row->learned[i] ? "" : " not");
}

/* Makes a row of a conversation of the reference, and says how it is encoded. */
static char *row_of(const json_t *conversation, fsdp_chat_options *options)
{
    json_t *row = json_object();
    char *text;

    json_object_set(row, "messages", json_object_get(conversation, "messages"));
    if (json_object_get(conversation, "tools"))
        json_object_set(row, "tools", json_object_get(conversation, "tools"));
    if (json_object_get(conversation, "kwargs"))
        json_object_set(row, "chat_template_kwargs", json_object_get(conversation, "kwargs"));
    options->prompt = json_is_true(json_object_get(conversation, "gen"));
    text = json_dumps(row, 0);
    json_decref(row);
    return text;
}

static void check_conversation(const fsdp_chat *chat, const fsdp_tokenizer *tokenizer, const json_t *conversation,
                               const json_t *expected, int64_t now)
{
    const char *name = json_string_value(json_object_get(expected, "name"));
    const char *message = json_string_value(json_object_get(expected, "message"));
    bool has_mask = json_is_string(json_object_get(expected, "mask"));
    const json_t *spans = json_object_get(expected, "prefix_spans");
    fsdp_chat_options options = {.now = now, .no_mask = !has_mask};
    fsdp_chat_row row = {0};
    char *text = row_of(conversation, &options);
    fsdp_status status = fsdp_chat_encode(chat, NULL, text, strlen(text), &options, &row);

    CHECK_EQ(fsdp_chat_recognise(text, strlen(text)), FSDP_CHAT_MESSAGES);
    if (json_object_get(expected, "error")) {
        CHECK_EQ(status, FSDP_FORMAT);
        if (message)
            CHECK_CONTAINS(fsdp_last_error(), message);
    } else {
        CHECK_OK(status);
        check_result(name, &row, expected);
    }
    if (!has_mask && json_is_array(spans) && !options.prompt) {
        options.no_mask = false;
        CHECK_OK(fsdp_chat_encode(chat, NULL, text, strlen(text), &options, &row));
        check_spans(name, &row, spans, tokenizer);
    }
    fsdp_chat_row_release(&row);
    free(text);
}

static void check_folder(const char *folder)
{
    json_t *all = load("", "conversations.json"), *vectors = load(folder, "vectors.json"), *expected;
    int64_t now = parse_now(json_string_value(json_object_get(vectors, "now")));
    char *path = reference(folder, "");
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_chat *chat = NULL;
    size_t i;

    CHECK_OK(fsdp_tokenizer_open(path, &tokenizer));
    CHECK_OK(fsdp_chat_open(path, tokenizer, NULL, &chat));
    CHECK(json_array_size(all) == 30);
    json_array_foreach(json_object_get(vectors, "cases"), i, expected)
        check_conversation(chat, tokenizer, json_array_get(all, i), expected, now);
    fsdp_chat_close(chat);
    fsdp_tokenizer_close(tokenizer);
    json_decref(all);
    json_decref(vectors);
    free(path);
}

CALL_TEST(chatml_agrees, check_folder("chatml"))
CALL_TEST(headers_agree, check_folder("llama3-headers"))
CALL_TEST(instructions_in_brackets_agree, check_folder("mistral-inst"))
CALL_TEST(turns_agree, check_folder("gemma-turns"))
CALL_TEST(tools_and_thoughts_agree, check_folder("qwen3-tools"))
CALL_TEST(a_default_system_message_agrees, check_folder("smollm2-default-system"))
