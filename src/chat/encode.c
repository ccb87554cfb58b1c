/* encode.c - a row as tokens, and which of them are learned. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "chat/answers.h"
#include "format/json.h"
#include "format/json_scan.h"
#include "tokenizer/tokenizer.h"

/* ---- ranges to tokens ---- */

FSDP__UNUSED static void release_origins(fsdp__origins *origins)
{
    fsdp__free(origins->items);
}

/* Marks the tokens that overlap a range, as transformers does. Ranges are in order, and so are tokens that are not
 * empty; an empty one is a space that was left out at the end of what it was made of. */
static void mark(const fsdp__ranges *r, const fsdp__origins *origins, bool *learned, int64_t *answers)
{
    int64_t passed = 0;

    for (int64_t i = 0; i < origins->count; i++) {
        fsdp__origin token = origins->items[i];
        int64_t k = passed;

        while (k < r->count && token.begin >= r->at[k].end)
            k++;
        learned[i] = k < r->count && token.end > r->at[k].begin;
        *answers += learned[i];
        passed = token.end > token.begin ? k : passed;
    }
}

static fsdp_status grow_mask(fsdp_chat_row *out)
{
    return fsdp__grow(&out->learned, out->ids.count, &out->learned_capacity, sizeof *out->learned);
}

/* Encodes the row's text, and sets for each token whether it is learned. What the tokenizer puts in front of a text
 * comes first if it is asked for, and is not learned. */
static fsdp_status encode_text(const fsdp_chat *chat, fsdp_encoder *encoder, const fsdp__ranges *r, bool prefix,
                               fsdp_chat_row *out)
{
    FSDP__SCOPED(release_origins) fsdp__origins origins = {0};
    fsdp__origins *asked = r->count > 0 ? &origins : NULL;
    int64_t before = prefix ? chat->tokenizer->prefix.count : 0;

    out->ids.count = out->answers = 0;
    for (int64_t i = 0; i < before; i++)
        FSDP_TRY(fsdp__token_list_add(&out->ids, chat->tokenizer->prefix.ids[i]));
    if (encoder)
        FSDP_TRY(fsdp__encoder_trace(encoder, out->text, out->text_bytes, NULL, &out->ids, asked));
    else
        FSDP_TRY(fsdp__tokenizer_trace(chat->tokenizer, out->text, out->text_bytes, NULL, &out->ids, asked));
    FSDP_TRY(grow_mask(out));
    memset(out->learned, 0, (size_t)out->ids.count * sizeof *out->learned);
    mark(r, &origins, out->learned + before, &out->answers);
    return FSDP_OK;
}

/* ---- a row ---- */

/* Encodes a prompt and its completion, which are texts: what the tokenizer puts in front of a text stands in front of
 * both, and a token that ends a text behind them. */
static fsdp_status encode_completion(const fsdp_chat *chat, fsdp_encoder *encoder, const json_t *conversation,
                                     const fsdp_chat_options *options, fsdp_chat_row *out)
{
    const char *prompt = json_string_value(json_object_get(conversation, "prompt"));
    const char *completion = json_string_value(json_object_get(conversation, "completion"));
    FSDP__SCOPED(fsdp__ranges_release) fsdp__ranges r = {0};
    int32_t eos = fsdp_tokenizer_eos(chat->tokenizer);

    FSDP__TRY_NEW(out->text = fsdp__sprintf("%s%s", prompt, completion));
    out->text_bytes = strlen(out->text);
    FSDP_TRY(fsdp__ranges_add(&r, strlen(prompt), out->text_bytes));
    FSDP_TRY(encode_text(chat, encoder, &r, true, out));
    if (options->prompt || eos < 0 || (out->ids.count > 0 && out->ids.ids[out->ids.count - 1] == eos))
        return FSDP_OK;
    FSDP_TRY(fsdp__token_list_add(&out->ids, eos));
    FSDP_TRY(grow_mask(out));
    out->learned[out->ids.count - 1] = true;
    out->answers++;
    return FSDP_OK;
}

static const char *const usual_roles[] = {"system", "user", "assistant", "tool"};

static bool is_usual(const char *role)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(usual_roles); i++)
        if (strcmp(usual_roles[i], role) == 0)
            return true;
    return false;
}

/* Finds out whether a conversation has the same text without a message. One that cannot be rendered has not. */
static fsdp_status is_left_out(const fsdp_chat *chat, const json_t *conversation, size_t number,
                               const fsdp_chat_options *options, const fsdp__rendered *all, bool *out)
{
    json_auto_t *without = json_copy((json_t *)conversation);
    json_auto_t *messages = json_copy(json_object_get(conversation, "messages"));
    FSDP__RENDERED text = {0};
    fsdp_status status;
    bool held;

    *out = false;
    if (!without || !messages || json_object_set(without, "messages", messages) != 0)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hold a conversation");
    (void)json_array_remove(messages, number);
    held = fsdp_hold_error(true);
    status = fsdp__chat_render(chat, without, json_array_size(messages), options->prompt, options->now, &text);
    fsdp_release_error(held);
    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(status, "cannot render a conversation");
    *out = status == FSDP_OK && text.bytes == all->bytes && memcmp(text.text, all->text, all->bytes) == 0;
    return FSDP_OK;
}

/* Refuses a message of a role that templates mostly do not know, and of which this one has written nothing: what is
 * left out so is missed by nobody. */
static fsdp_status check_roles(const fsdp_chat *chat, const json_t *conversation, const fsdp_chat_options *options,
                               const fsdp__rendered *all)
{
    const json_t *message;
    size_t number;

    json_array_foreach(json_object_get(conversation, "messages"), number, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        bool left_out = false;

        if (!is_usual(role))
            FSDP_TRY(is_left_out(chat, conversation, number, options, all, &left_out));
        if (left_out)
            return FSDP_FAIL(FSDP_FORMAT,
                             "message %zu has the role '%s', for which the chat template writes nothing: it may know "
                             "only %s, %s, %s and %s",
                             number + 1, FSDP__SHOWN_NAME(role), usual_roles[0], usual_roles[1], usual_roles[2],
                             usual_roles[3]);
    }
    return FSDP_OK;
}

static fsdp_status encode(const fsdp_chat *chat, fsdp_encoder *encoder, const json_t *conversation,
                          const fsdp_chat_options *options, fsdp_chat_row *out)
{
    size_t count = json_array_size(json_object_get(conversation, "messages"));
    FSDP__SCOPED(fsdp__ranges_release) fsdp__ranges learned = {0};
    FSDP__RENDERED all = {0};

    fsdp__free(fsdp__take(&out->text));
    if (json_object_get(conversation, "prompt"))
        return encode_completion(chat, encoder, conversation, options, out);
    FSDP_TRY(fsdp__chat_render(chat, conversation, count, options->prompt, options->now, &all));
    if (options->refuse_unwritten)
        FSDP_TRY(check_roles(chat, conversation, options, &all));
    if (!options->no_mask)
        FSDP_TRY(fsdp__chat_find_learned(chat, conversation, options, &all, &learned));
    out->text = fsdp__take(&all.text);
    out->text_bytes = all.bytes;
    return encode_text(chat, encoder, &learned, false, out);
}

static fsdp_status check_kind(const json_t *row, const char *text, size_t bytes, fsdp_chat_kind wanted,
                              fsdp_chat_kind *kind)
{
    char keys[100];

    *kind = fsdp__chat_kind_of(row);
    if (wanted != FSDP_CHAT_NONE && *kind != FSDP_CHAT_NONE && *kind != wanted)
        return FSDP_FAIL(FSDP_FORMAT, "the row has %s, and the first one %s: all rows of the data must be of one kind",
                         fsdp_chat_kind_name(*kind), fsdp_chat_kind_name(wanted));
    if (*kind != FSDP_CHAT_NONE && *kind != FSDP_CHAT_TEXT)
        return FSDP_OK;
    fsdp__json_list_keys(text, bytes, keys, sizeof keys);
    return FSDP_FAIL(FSDP_FORMAT,
                     "the row has %s: expected messages, conversations, prompt with completion, instruction "
                     "with output, or chosen with rejected",
                     keys[0] ? keys : "no fields");
}

/* Refuses escapes that stand for no text, in the fields that a conversation is made of. */
static fsdp_status check_text(const char *row, size_t bytes)
{
    static const char *const keys[] = {"messages",
                                       "conversations",
                                       "prompt",
                                       "completion",
                                       "chosen",
                                       "rejected",
                                       "instruction",
                                       "input",
                                       "output",
                                       "history",
                                       "system",
                                       "tools",
                                       "chat_template_kwargs",
                                       NULL};
    fsdp__json_no_text found;

    FSDP_TRY(fsdp__json_find_no_text(row, bytes, keys, &found));
    if (!found.key)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "field '%s' has %s at column %zu, which is not a character", found.key,
                     found.nul ? "a NUL (\\u0000)" : "half a surrogate pair (as \\ud83d alone)", found.offset + 1);
}

fsdp_status fsdp_chat_encode(const fsdp_chat *chat, fsdp_encoder *encoder, const char *row, size_t bytes,
                             const fsdp_chat_options *options, fsdp_chat_row *out)
{
    static const fsdp_chat_options none = {0};
    json_auto_t *parsed = NULL, *conversation = NULL;
    fsdp_chat_kind kind;

    if (!chat || !row || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot encode a conversation: chat, row and out are required");
    options = options ? options : &none;
    if (fsdp__json_begins_array(row, bytes))
        return FSDP_FAIL(FSDP_FORMAT, "not a JSON object but an array: if the file is one, " FSDP__JSON_ARRAY_ADVICE);
    FSDP_TRY(fsdp__json_parse_row(row, bytes, &parsed));
    FSDP_TRY(check_kind(parsed, row, bytes, options->kind, &kind));
    if (!options->replace_invalid)
        FSDP_TRY(check_text(row, bytes));
    FSDP_TRY(fsdp__chat_conversation(parsed, kind, options->rejected, &conversation));
    return encode(chat, encoder, conversation, options, out);
}

void fsdp_chat_row_release(fsdp_chat_row *row)
{
    if (!row)
        return;
    fsdp_token_list_release(&row->ids);
    FSDP__FREE_ALL(row->learned, row->text);
    *row = (fsdp_chat_row){0};
}

/* Renders a talk, and encodes what comes after its answer. A template that cannot do it has no end of turn. */
static fsdp_status encode_end(const fsdp_chat *chat, fsdp_chat_row *row)
{
    static const char talk[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                               "\"content\": \"an-answer-0\"}]}";
    const fsdp_chat_options options = {.no_mask = true};
    const char *answer;

    FSDP_TRY(fsdp_chat_encode(chat, NULL, talk, sizeof talk - 1, &options, row));
    answer = strstr(row->text, "an-answer-0");
    row->ids.count = 0;
    return answer ? fsdp_tokenizer_encode(chat->tokenizer, answer, strlen(answer), NULL, &row->ids) : FSDP_OK;
}

fsdp_status fsdp_chat_end_of_turn(const fsdp_chat *chat, int32_t *out)
{
    FSDP__SCOPED(fsdp_chat_row_release) fsdp_chat_row row = {0};
    fsdp_status status = FSDP_NOT_FOUND;
    bool held;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "the end of a turn needs a place for the result");
    held = fsdp_hold_error(true);
    if (fsdp_chat_has_template(chat))
        status = encode_end(chat, &row);
    fsdp_release_error(held);
    *out = -1;
    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(status, "no memory to find the end of a turn");
    for (int64_t i = 0; status == FSDP_OK && i < row.ids.count && *out < 0; i++)
        if (chat->tokenizer->bpe.vocabulary.tokens[row.ids.ids[i]].special)
            *out = row.ids.ids[i];
    return FSDP_OK;
}
