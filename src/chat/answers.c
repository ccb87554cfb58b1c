/* answers.c - finds answers in a conversation's text: in `generation` blocks, or by rendering parts of it. */
#include "chat/answers.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/text.h"
#include "chat/jinja_strings.h"
#include "tokenizer/tokenizer.h"

#define TRY_JSON(made)                                                      \
    do {                                                                    \
        if ((made) != 0)                                                    \
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hold a conversation"); \
    } while (0)

fsdp_status fsdp__ranges_add(fsdp__ranges *ranges, size_t begin, size_t end)
{
    FSDP_TRY(fsdp__grow(&ranges->at, ranges->count, &ranges->capacity, sizeof *ranges->at));
    ranges->at[ranges->count++] = (fsdp__jinja_range){.begin = begin, .end = end, .message = -1};
    return FSDP_OK;
}

void fsdp__ranges_release(fsdp__ranges *ranges)
{
    fsdp__free(ranges->at);
    *ranges = (fsdp__ranges){0};
}

/* ---- rendering ---- */

/* Sets the variables for the first `count` messages, and one more behind them; `more` NULL: none. */
static fsdp_status set_variables(const fsdp_chat *chat, const json_t *conversation, size_t count, json_t *more,
                                 bool prompt, json_t *to)
{
    const json_t *messages = json_object_get(conversation, "messages");
    json_t *tools = json_object_get(conversation, "tools"), *part;

    FSDP__TRY_NEW(part = json_array());
    TRY_JSON(json_object_set_new(to, "messages", part));
    for (size_t i = 0; i < count; i++)
        TRY_JSON(json_array_append(part, json_array_get(messages, i)));
    if (more)
        TRY_JSON(json_array_append(part, more));
    TRY_JSON(tools ? json_object_set(to, "tools", tools) : json_object_set_new(to, "tools", json_null()));
    TRY_JSON(json_object_set_new(to, "documents", json_null()));
    TRY_JSON(json_object_set_new(to, "add_generation_prompt", json_boolean(prompt)));
    TRY_JSON(json_object_update(to, chat->tokens));
    if (json_object_get(conversation, "chat_template_kwargs"))
        TRY_JSON(json_object_update(to, json_object_get(conversation, "chat_template_kwargs")));
    return FSDP_OK;
}

static const fsdp__jinja *template_of(const fsdp_chat *chat, const json_t *conversation)
{
    return (json_object_get(conversation, "tools") && chat->tool_use) || !chat->usual ? chat->tool_use : chat->usual;
}

static fsdp_status render_with(const fsdp_chat *chat, const json_t *conversation, size_t count, json_t *more,
                               bool prompt, int64_t now, fsdp__rendered *out)
{
    json_auto_t *variables = json_object();

    *out = (fsdp__rendered){0};
    if (!fsdp_chat_has_template(chat))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s%s%s no chat template, which conversations need: name one with data.chat_template "
                         "(--chat-template)",
                         chat->folder ? "'" : "there is", chat->folder ? chat->folder : "",
                         chat->folder ? "' has" : "");
    FSDP__TRY_NEW(variables);
    FSDP_TRY(set_variables(chat, conversation, count, more, prompt, variables));
    return fsdp__jinja_render(template_of(chat, conversation), variables, now ? now : (int64_t)time(NULL), out);
}

fsdp_status fsdp__chat_render(const fsdp_chat *chat, const json_t *conversation, size_t count, bool prompt, int64_t now,
                              fsdp__rendered *out)
{
    return render_with(chat, conversation, count, NULL, prompt, now, out);
}

/* ---- answers by rendering what comes before them, and up to them ---- */

/* An answer: messages `first` up to `behind` of a conversation. */
typedef struct turn {
    const fsdp_chat *chat;
    const json_t *conversation;
    size_t first, behind;
    int64_t now;
} turn;

static fsdp_status no_mask(const char *format, ...) FSDP_PRINTF(1, 2);
static fsdp_status no_mask(const char *format, ...)
{
    char why[500];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot tell which tokens are answers: the template has no 'generation' blocks, and %s: learn "
                     "all tokens with data.train_on: all, or name a template with such blocks (data.chat_template), "
                     "as TRL has them for many models (chat_templates/*_training.jinja)",
                     why);
}

/* Renders the messages before the answer, with what begins one, or those up to its end. */
static fsdp_status render_part(const turn *t, bool before, fsdp__rendered *out)
{
    fsdp_status status =
        fsdp__chat_render(t->chat, t->conversation, before ? t->first : t->behind, before, t->now, out);
    char text[400];

    if (status == FSDP_OK || status == FSDP_NO_MEMORY)
        return status;
    fsdp__shown(fsdp_last_error(), text, sizeof text);
    return no_mask("%s", text);
}

static bool begins_with(const fsdp__rendered *text, const char *with, size_t bytes)
{
    return bytes <= text->bytes && memcmp(text->text, with, bytes) == 0;
}

static fsdp_status render_probe(const turn *t, const char *content, fsdp__rendered *out)
{
    const json_t *answer = json_array_get(json_object_get(t->conversation, "messages"), t->first);
    json_auto_t *message = json_pack("{s:O, s:s}", "role", json_object_get(answer, "role"), "content", content);
    fsdp_status status;
    bool held = fsdp_hold_error(true);

    status = message ? render_with(t->chat, t->conversation, t->first, message, false, t->now, out) : FSDP_NO_MEMORY;
    fsdp_release_error(held);
    return status == FSDP_NO_MEMORY ? FSDP_FAIL(status, "cannot render a conversation") : FSDP_OK;
}

/* Renders what the template writes in front of an answer, whatever that is: what two different ones have in common. It
 * is empty if the template does not take them. */
static fsdp_status render_head(const turn *t, fsdp__rendered *out)
{
    FSDP__RENDERED one = {0};
    size_t same = 0;

    FSDP_TRY(render_probe(t, "0", out));
    FSDP_TRY(render_probe(t, "1", &one));
    while (same < out->bytes && same < one.bytes && out->text[same] == one.text[same])
        same++;
    out->bytes = same;
    return FSDP_OK;
}

/* Finds where an answer begins in the text up to its end: behind what begins one. A template may begin an answer with
 * more than it writes in front of one that is there (DeepSeek's: "<think>"); then it begins behind the latter. */
static fsdp_status find_begin(const turn *t, const fsdp__rendered *with, size_t *out)
{
    FSDP__RENDERED before = {0}, head = {0};

    FSDP_TRY(render_part(t, true, &before));
    *out = before.bytes;
    if (begins_with(with, before.text, before.bytes))
        return FSDP_OK;
    FSDP_TRY(render_head(t, &head));
    *out = head.bytes;
    if (head.bytes > 0 && begins_with(with, head.text, head.bytes) && begins_with(&before, head.text, head.bytes))
        return FSDP_OK;
    return no_mask("what it writes for a prompt (add_generation_prompt) is not what it writes in front of message %zu",
                   t->first + 1);
}

/* Returns the bytes of the special token with which a text ends; 0: it ends with none. */
static size_t special_at_end(const fsdp_tokenizer *t, fsdp__jinja_string text)
{
    const fsdp__added_tokens *const lists[] = {&t->raw, &t->normalized};
    fsdp__jinja_string token;
    size_t most = 0;

    for (size_t l = 0; l < FSDP__COUNT_OF(lists); l++)
        for (int64_t i = 0; i < lists[l]->count; i++) {
            token.at = fsdp__vocabulary_bytes(&t->bpe.vocabulary, lists[l]->tokens[i].id, &token.bytes);
            if (lists[l]->tokens[i].special && fsdp__jinja_string_ends(text, token))
                most = FSDP__MAX(most, token.bytes);
        }
    return most;
}

static fsdp__jinja_string without_space(const char *text, size_t bytes)
{
    return fsdp__jinja_string_strip((fsdp__jinja_string){text, bytes}, FSDP__STRIP_RIGHT, NULL);
}

static bool ends_special(const turn *t, const char *text, size_t bytes)
{
    return special_at_end(t->chat->tokenizer, without_space(text, bytes)) > 0;
}

/* Finds where an answer ends in the whole text. A template may end every conversation with a token (Phi-3's), behind
 * that of the last turn. The whole text does not have it there if more messages follow. */
static fsdp_status find_end(const turn *t, const fsdp__rendered *with, const fsdp__rendered *all, size_t *out)
{
    fsdp__jinja_string text = without_space(with->text, with->bytes);
    size_t token = special_at_end(t->chat->tokenizer, text);

    *out = with->bytes;
    if (begins_with(all, with->text, *out))
        return FSDP_OK;
    *out = text.bytes - token;
    if (token > 0 && begins_with(all, with->text, *out) && ends_special(t, with->text, *out))
        return FSDP_OK;
    return no_mask("it changes the text of a conversation's beginning when more messages follow (it may leave out what "
                   "message %zu thinks, or end it otherwise)",
                   t->behind);
}

/* Finds an answer. White space behind the special token at its end is not learned, unless the whole of it is. */
static fsdp_status find_answer(const turn *t, const fsdp__rendered *all, fsdp__ranges *out)
{
    FSDP__RENDERED with = {0};
    size_t begin = 0, end;

    if (t->first == 0)
        return no_mask("the conversation begins with an answer");
    FSDP_TRY(render_part(t, false, &with));
    FSDP_TRY(find_end(t, &with, all, &end));
    FSDP_TRY(find_begin(t, &with, &begin));
    end = FSDP__MAX(begin, end);
    if (!json_object_get(t->conversation, "whole") && ends_special(t, all->text + begin, end - begin))
        end = begin + without_space(all->text + begin, end - begin).bytes;
    return fsdp__ranges_add(out, begin, end);
}

/* ---- what is learned ---- */

static fsdp_status find_answers(turn t, const fsdp__rendered *all, fsdp__ranges *out)
{
    const json_t *message;

    json_array_foreach(json_object_get(t.conversation, "messages"), t.first, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));

        t.behind = t.first + 1;
        if (role && strcmp(role, "assistant") == 0 && fsdp__chat_is_learned(message))
            FSDP_TRY(find_answer(&t, all, out));
    }
    return FSDP_OK;
}

/* Finds what follows a prompt, which is one answer, whatever the template marks. */
static fsdp_status find_completion(turn t, const fsdp__rendered *all, fsdp__ranges *out)
{
    const json_t *messages = json_object_get(t.conversation, "messages");

    t.behind = json_array_size(messages);
    for (size_t i = t.first; i < t.behind; i++)
        if (!fsdp__chat_is_learned(json_array_get(messages, i)))
            return FSDP_FAIL(FSDP_FORMAT,
                             "message %zu says that it is not learned, but of what follows a prompt all is: make a row "
                             "of 'messages' of it",
                             i + 1);
    return find_answer(&t, all, out);
}

/* Takes the blocks of messages that are learned. A block outside of the loop is of the last message. */
static fsdp_status take_blocks(const json_t *messages, const fsdp__rendered *all, fsdp__ranges *out)
{
    size_t last = json_array_size(messages) - 1;

    if (all->lost)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot tell which tokens are answers: the template has a 'generation' block in a macro or "
                         "a 'set' block: learn all tokens with data.train_on: all, or name another template "
                         "(data.chat_template)");
    for (int64_t i = 0; i < all->count; i++) {
        const fsdp__jinja_range *block = &all->marked[i];

        if (fsdp__chat_is_learned(json_array_get(messages, block->message < 0 ? last : (size_t)block->message)))
            FSDP_TRY(fsdp__ranges_add(out, block->begin, block->end));
    }
    return FSDP_OK;
}

fsdp_status fsdp__chat_find_learned(const fsdp_chat *chat, const json_t *conversation, const fsdp_chat_options *options,
                                    const fsdp__rendered *all, fsdp__ranges *out)
{
    const json_t *prompt = json_object_get(conversation, "prompt_messages");
    turn t = {
        .chat = chat, .conversation = conversation, .first = (size_t)json_integer_value(prompt), .now = options->now};

    if (prompt)
        return find_completion(t, all, out);
    if (fsdp__jinja_marks(template_of(chat, conversation)))
        return take_blocks(json_object_get(conversation, "messages"), all, out);
    return options->prompt ? FSDP_OK : find_answers(t, all, out);
}
