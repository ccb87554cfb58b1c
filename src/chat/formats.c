/* formats.c - what a row is by its fields, and the messages that it stands for. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "chat/chat.h"
#include "format/json.h"

/* ---- what a row is ---- */

static const char *const names[] = {
    [FSDP_CHAT_NONE] = "nothing that is known",
    [FSDP_CHAT_MESSAGES] = "messages",
    [FSDP_CHAT_SHAREGPT] = "conversations (ShareGPT)",
    [FSDP_CHAT_COMPLETION] = "prompt and completion",
    [FSDP_CHAT_INSTRUCTION] = "instruction, input and output (Alpaca)",
    [FSDP_CHAT_TEXT] = "text",
    [FSDP_CHAT_PREFERENCE] = "chosen and rejected answers",
};

const char *fsdp_chat_kind_name(fsdp_chat_kind kind)
{
    return kind >= FSDP_CHAT_NONE && kind <= FSDP_CHAT_PREFERENCE ? names[kind] : names[FSDP_CHAT_NONE];
}

/* Returns whether a row has a field. A null is none: where rows are a table, each has a place for every field. */
static bool has(const json_t *row, const char *field)
{
    const json_t *value = json_object_get(row, field);

    return value && !json_is_null(value);
}

fsdp_chat_kind fsdp__chat_kind_of(const json_t *row)
{
    if (has(row, "chosen") && has(row, "rejected"))
        return FSDP_CHAT_PREFERENCE;
    if (has(row, "messages"))
        return FSDP_CHAT_MESSAGES;
    if (has(row, "conversations"))
        return FSDP_CHAT_SHAREGPT;
    if (has(row, "prompt") && has(row, "completion"))
        return FSDP_CHAT_COMPLETION;
    if (has(row, "instruction") && has(row, "output"))
        return FSDP_CHAT_INSTRUCTION;
    return has(row, "text") ? FSDP_CHAT_TEXT : FSDP_CHAT_NONE;
}

fsdp_chat_kind fsdp_chat_recognise(const char *row, size_t bytes)
{
    json_auto_t *parsed = NULL;
    fsdp_chat_kind kind = FSDP_CHAT_NONE;

    if (row && fsdp__json_parse_row(row, bytes, &parsed) == FSDP_OK)
        kind = fsdp__chat_kind_of(parsed);
    else
        fsdp_clear_error();
    return kind;
}

/* ---- messages ---- */

#define TRY_JSON(made)                                                      \
    do {                                                                    \
        if ((made) != 0)                                                    \
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hold a conversation"); \
    } while (0)

static fsdp_status new_message(const char *role, const json_t *content, json_t *messages)
{
    json_t *message = json_object();

    if (!message || json_object_set_new(message, "role", json_string(role)) != 0 ||
        json_object_set(message, "content", (json_t *)content) != 0) {
        json_decref(message);
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot read a message");
    }
    TRY_JSON(json_array_append_new(messages, message));
    return FSDP_OK;
}

/* Returns whether a message has what a template can write: content, or what an answer may have in its place. */
static bool says_something(const json_t *message)
{
    static const char *const any[] = {"content",           "tool_calls", "function_call",
                                      "reasoning_content", "thinking",   "reasoning"};

    for (size_t i = 0; i < FSDP__COUNT_OF(any); i++)
        if (json_object_get(message, any[i]) && !json_is_null(json_object_get(message, any[i])))
            return true;
    return false;
}

/* Checks a message's calls of tools: arguments that are a text are the text of JSON, which a model would learn to write
 * wrongly from one that is not. */
static fsdp_status check_calls(const json_t *message, const char *field, size_t number)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function ? function : call, "arguments");
        const char *text = json_string_value(arguments);
        json_auto_t *parsed = NULL;

        if (!text || text[strspn(text, " \t\r\n")] == '\0')
            continue;
        FSDP_TRY(fsdp__json_parse_text(arguments, &parsed));
        if (!parsed)
            return FSDP_FAIL(FSDP_FORMAT,
                             "field '%s': the arguments of tool call %zu of item %zu are a text that is no "
                             "JSON",
                             field, i + 1, number + 1);
    }
    return FSDP_OK;
}

/* ---- what of messages is learned ---- */

static const char *const learned_keys[] = {"weight", "train", "training"};

static bool says(const json_t *value, int number)
{
    return (number ? json_is_true(value) : json_is_false(value)) ||
           (json_is_number(value) && json_number_value(value) == number);
}

bool fsdp__chat_is_learned(const json_t *message)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(learned_keys); i++)
        if (says(json_object_get(message, learned_keys[i]), 0))
            return false;
    return true;
}

/* Checks the keys by which a message says whether it is learned, as OpenAI's and axolotl's rows do. */
static fsdp_status check_learned(const json_t *message, const char *field, size_t number)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    for (size_t i = 0; i < FSDP__COUNT_OF(learned_keys); i++) {
        const json_t *value = json_object_get(message, learned_keys[i]);

        if (!value || json_is_null(value) || says(value, 0))
            continue;
        if (!says(value, 1))
            return FSDP_FAIL(FSDP_FORMAT,
                             "field '%s': '%s' of item %zu is neither 0 or false (it is not learned) nor 1 or true",
                             field, learned_keys[i], number + 1);
        if (strcmp(role, "assistant") != 0)
            return FSDP_FAIL(FSDP_FORMAT,
                             "field '%s': by '%s' item %zu of the role '%s' is learned: only those of the role "
                             "assistant can be",
                             field, learned_keys[i], number + 1, FSDP__SHOWN_NAME(role));
    }
    return FSDP_OK;
}

/* ---- lists of messages ---- */

/* Returns what a message thinks, by the first of its names that it has. */
static json_t *thought_of(const json_t *message)
{
    static const char *const any[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *thought = NULL;

    for (size_t i = 0; i < FSDP__COUNT_OF(any) && (!thought || json_is_null(thought)); i++)
        thought = json_object_get(message, any[i]);
    return json_is_null(thought) ? NULL : thought;
}

static fsdp_status check_message(const json_t *message, const char *field, size_t number)
{
    const json_t *content = json_object_get(message, "content");

    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s': item %zu is no object with a 'role'", field, number + 1);
    if (json_is_number(content) || json_is_boolean(content) || fsdp__json_number_text(content))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s': the content of item %zu is no text", field, number + 1);
    if (!says_something(message))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s': item %zu has no 'content'", field, number + 1);
    FSDP_TRY(check_learned(message, field, number));
    return check_calls(message, field, number);
}

/* Adds a message as transformers gives it to a template: without keys that are null, and with what it thinks as both
 * `thinking` and `reasoning_content`. */
static fsdp_status copy_message(const json_t *from, const char *field, size_t number, json_t *messages)
{
    json_t *message, *thought = thought_of(from), *value;
    const char *key;

    FSDP_TRY(check_message(from, field, number));
    FSDP__TRY_NEW(message = json_object());
    TRY_JSON(json_array_append_new(messages, message));
    if (thought)
        TRY_JSON(json_object_set(message, "thinking", thought));
    json_object_foreach((json_t *)from, key, value) if (!json_is_null(value))
        TRY_JSON(json_object_set(message, key, value));
    if (thought)
        TRY_JSON(json_object_set(message, "reasoning_content", thought));
    return FSDP_OK;
}

static fsdp_status copy_messages(const json_t *from, const char *field, json_t *messages)
{
    if (!json_is_array(from))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s' is no list of messages", field);
    for (size_t i = 0; i < json_array_size(from); i++)
        FSDP_TRY(copy_message(json_array_get(from, i), field, i, messages));
    return FSDP_OK;
}

/* Sets a field of the conversation to that of the row, of a type, or to the JSON of a text. An empty text is none. */
static fsdp_status copy_json(const json_t *row, const char *field, json_type type, json_t *conversation)
{
    const char *what = type == JSON_ARRAY ? "list" : "object";
    json_t *value = json_object_get(row, field);
    json_auto_t *parsed = NULL;

    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0))
        return FSDP_OK;
    if (json_is_string(value)) {
        FSDP_TRY(fsdp__json_parse_text(value, &parsed));
        if (!parsed || json_typeof(parsed) != type)
            return FSDP_FAIL(FSDP_FORMAT, "field '%s' is a text, but no JSON %s", field, what);
        value = parsed;
    }
    if (json_typeof(value) != type || fsdp__json_number_text(value))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s' is no %s", field, what);
    TRY_JSON(json_object_set(conversation, field, value));
    return FSDP_OK;
}

static fsdp_status add_system(const json_t *row, json_t *messages)
{
    const json_t *system = json_object_get(row, "system");

    if (!system || json_is_null(system) || (json_is_string(system) && json_string_length(system) == 0))
        return FSDP_OK;
    if (!json_is_string(system))
        return FSDP_FAIL(FSDP_FORMAT, "field 'system' is no text");
    return new_message("system", system, messages);
}

/* ---- ShareGPT ---- */

static const struct {
    const char *from, *role;
} roles[] = {{"human", "user"},        {"user", "user"},
             {"gpt", "assistant"},     {"assistant", "assistant"},
             {"chatgpt", "assistant"}, {"model", "assistant"},
             {"system", "system"},     {"observation", "tool"},
             {"tool", "tool"},         {"function_call", "assistant"}};

/* Adds an answer whose value is the text of a call, {"name", "arguments"}, or of a list of calls. Another text is what
 * the answer says. */
static fsdp_status add_calls(const json_t *value, json_t *messages)
{
    json_auto_t *parsed = NULL, *list = NULL, *calls = json_array();
    json_t *call, *message;
    size_t i;

    FSDP__TRY_NEW(calls);
    FSDP_TRY(fsdp__json_parse_text(value, &parsed));
    if (json_is_object(parsed))
        FSDP__TRY_NEW(list = json_pack("[O]", parsed));
    json_array_foreach(list ? list : parsed, i, call)
    {
        if (!json_is_string(json_object_get(call, "name")))
            return new_message("assistant", value, messages);
        TRY_JSON(json_array_append_new(calls, json_pack("{s:s, s:O}", "type", "function", "function", call)));
    }
    if (json_array_size(calls) == 0)
        return new_message("assistant", value, messages);
    FSDP__TRY_NEW(message = json_pack("{s:s, s:O}", "role", "assistant", "tool_calls", calls));
    TRY_JSON(json_array_append_new(messages, message));
    return FSDP_OK;
}

/* Adds the message of a turn that has `from` and `value`. */
static fsdp_status add_value(const char *from, const json_t *value, size_t number, json_t *messages)
{
    if (strcmp(from, "function_call") == 0)
        return add_calls(value, messages);
    for (size_t i = 0; i < FSDP__COUNT_OF(roles); i++)
        if (strcmp(roles[i].from, from) == 0)
            return new_message(roles[i].role, value, messages);
    return FSDP_FAIL(FSDP_FORMAT,
                     "field 'conversations': item %zu is from '%s': known are human, gpt, system, observation and "
                     "function_call",
                     number + 1, FSDP__SHOWN_NAME(from));
}

static fsdp_status add_turn(const json_t *turn, size_t number, json_t *messages)
{
    const char *from = json_string_value(json_object_get(turn, "from"));
    const json_t *value = json_object_get(turn, "value");
    json_t *message, *learned;

    if (!from && json_object_get(turn, "role"))
        return copy_message(turn, "conversations", number, messages);
    if (!from || !json_is_string(value))
        return FSDP_FAIL(FSDP_FORMAT, "field 'conversations': item %zu has no 'from' and 'value' that are texts",
                         number + 1);
    FSDP_TRY(add_value(from, value, number, messages));
    message = json_array_get(messages, json_array_size(messages) - 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(learned_keys); i++)
        if ((learned = json_object_get(turn, learned_keys[i])) && !json_is_null(learned))
            TRY_JSON(json_object_set(message, learned_keys[i], learned));
    return check_message(message, "conversations", number);
}

static fsdp_status from_sharegpt(const json_t *row, json_t *messages)
{
    const json_t *turns = json_object_get(row, "conversations");

    if (!json_is_array(turns))
        return FSDP_FAIL(FSDP_FORMAT, "field 'conversations' is no list");
    FSDP_TRY(add_system(row, messages));
    for (size_t i = 0; i < json_array_size(turns); i++)
        FSDP_TRY(add_turn(json_array_get(turns, i), i, messages));
    return FSDP_OK;
}

/* ---- Alpaca ---- */

static fsdp_status add_history(const json_t *history, json_t *messages)
{
    if (!history || json_is_null(history))
        return FSDP_OK;
    if (!json_is_array(history))
        return FSDP_FAIL(FSDP_FORMAT, "field 'history' is no list of [question, answer]");
    for (size_t i = 0; i < json_array_size(history); i++) {
        const json_t *pair = json_array_get(history, i), *question = json_array_get(pair, 0);
        const json_t *answer = json_array_get(pair, 1);

        if (json_array_size(pair) != 2 || !json_is_string(question) || !json_is_string(answer))
            return FSDP_FAIL(FSDP_FORMAT, "field 'history': item %zu is no [question, answer]", i + 1);
        FSDP_TRY(new_message("user", question, messages));
        FSDP_TRY(new_message("assistant", answer, messages));
    }
    return FSDP_OK;
}

static fsdp_status from_instruction(const json_t *row, json_t *messages)
{
    const json_t *instruction = json_object_get(row, "instruction"), *output = json_object_get(row, "output");
    const char *input = json_string_value(json_object_get(row, "input"));
    json_auto_t *question = NULL;

    if (!json_is_string(instruction) || !json_is_string(output))
        return FSDP_FAIL(FSDP_FORMAT, "field '%s' is no text", json_is_string(output) ? "instruction" : "output");
    if (!input && json_object_get(row, "input") && !json_is_null(json_object_get(row, "input")))
        return FSDP_FAIL(FSDP_FORMAT, "field 'input' is no text");
    FSDP_TRY(add_system(row, messages));
    FSDP_TRY(add_history(json_object_get(row, "history"), messages));
    FSDP__TRY_NEW(question = input && *input ? json_sprintf("%s\n%s", json_string_value(instruction), input)
                                             : json_incref((json_t *)instruction));
    FSDP_TRY(new_message("user", question, messages));
    return new_message("assistant", output, messages);
}

/* ---- prompt and completion ---- */

/* Adds a prompt and its completion, whose field is `name`: two texts, or two lists of messages. */
static fsdp_status add_completion(const json_t *prompt, const json_t *completion, const char *name, json_t *messages,
                                  json_t *conversation)
{
    if (json_is_string(prompt) && json_is_string(completion)) {
        TRY_JSON(json_object_set(conversation, "prompt", (json_t *)prompt));
        TRY_JSON(json_object_set(conversation, "completion", (json_t *)completion));
        return FSDP_OK;
    }
    if (!json_is_array(prompt) || !json_is_array(completion))
        return FSDP_FAIL(FSDP_FORMAT, "fields 'prompt' and '%s' are not both texts, or both lists of messages", name);
    FSDP_TRY(copy_messages(prompt, "prompt", messages));
    TRY_JSON(json_object_set_new(conversation, "prompt_messages", json_integer((json_int_t)json_array_size(prompt))));
    return copy_messages(completion, name, messages);
}

/* ---- pairs ---- */

/* Returns how many bytes two texts begin with in common: whole characters, and not the space before where they part,
 * which belongs to the answers' first words. */
static size_t common_bytes(const char *a, const char *b)
{
    size_t count = 0;

    while (a[count] && a[count] == b[count])
        count++;
    while (count > 0 && ((unsigned char)a[count] & 0xc0) == 0x80)
        count--;
    return count > 0 && a[count - 1] == ' ' ? count - 1 : count;
}

static size_t common_turns(const json_t *a, const json_t *b)
{
    size_t count = 0;

    while (count < json_array_size(a) && count < json_array_size(b) &&
           json_equal(json_array_get(a, count), json_array_get(b, count)))
        count++;
    return count;
}

/* Takes what both answers begin with as their prompt, and leaves the rest of one as its answer. */
static fsdp_status split_answer(const json_t *chosen, const json_t *rejected, const json_t *of, json_t **prompt,
                                json_t **answer)
{
    size_t count;

    if (json_is_string(chosen) && json_is_string(rejected)) {
        count = common_bytes(json_string_value(chosen), json_string_value(rejected));
        FSDP__TRY_NEW(*prompt = json_stringn(json_string_value(of), count));
        FSDP__TRY_NEW(*answer = json_string(json_string_value(of) + count));
        return FSDP_OK;
    }
    if (!json_is_array(chosen) || !json_is_array(rejected))
        return FSDP_FAIL(FSDP_FORMAT, "fields 'chosen' and 'rejected' are not both texts, or both lists of messages");
    count = common_turns(chosen, rejected);
    FSDP__TRY_NEW(*prompt = json_array());
    FSDP__TRY_NEW(*answer = json_array());
    for (size_t i = 0; i < json_array_size(of); i++)
        TRY_JSON(json_array_append(i < count ? *prompt : *answer, json_array_get(of, i)));
    return FSDP_OK;
}

/* Sets one of the two conversations of a pair. What is learned of it is all that follows the prompt. */
static fsdp_status from_pair(const json_t *row, bool is_rejected, json_t *messages, json_t *conversation)
{
    const json_t *chosen = json_object_get(row, "chosen"), *rejected = json_object_get(row, "rejected");
    const json_t *prompt = json_object_get(row, "prompt"), *of = is_rejected ? rejected : chosen;
    const char *name = is_rejected ? "rejected" : "chosen";
    json_auto_t *own = NULL, *answer = NULL;

    if (json_equal(chosen, rejected))
        return FSDP_FAIL(FSDP_FORMAT, "fields 'chosen' and 'rejected' are the same: no answer is the better one");
    TRY_JSON(json_object_set_new(conversation, "whole", json_true()));
    if (prompt && !json_is_null(prompt))
        return add_completion(prompt, of, name, messages, conversation);
    FSDP_TRY(split_answer(chosen, rejected, of, &own, &answer));
    if (json_is_string(own) ? json_string_length(own) == 0 : json_array_size(own) == 0)
        return FSDP_FAIL(FSDP_FORMAT, "there is no field 'prompt', and 'chosen' and 'rejected' begin with nothing in "
                                      "common that could be one");
    return add_completion(own, answer, name, messages, conversation);
}

static fsdp_status convert(const json_t *row, fsdp_chat_kind kind, bool rejected, json_t *messages,
                           json_t *conversation)
{
    FSDP_TRY(copy_json(row, "tools", JSON_ARRAY, conversation));
    FSDP_TRY(copy_json(row, "chat_template_kwargs", JSON_OBJECT, conversation));
    switch (kind) {
    case FSDP_CHAT_MESSAGES:
        return copy_messages(json_object_get(row, "messages"), "messages", messages);
    case FSDP_CHAT_SHAREGPT:
        return from_sharegpt(row, messages);
    case FSDP_CHAT_COMPLETION:
        return add_completion(json_object_get(row, "prompt"), json_object_get(row, "completion"), "completion",
                              messages, conversation);
    case FSDP_CHAT_PREFERENCE:
        return from_pair(row, rejected, messages, conversation);
    default:
        return from_instruction(row, messages);
    }
}

fsdp_status fsdp__chat_conversation(const json_t *row, fsdp_chat_kind kind, bool rejected, json_t **out)
{
    json_auto_t *conversation = json_object();
    json_t *messages = json_array();

    *out = NULL;
    FSDP__TRY_NEW(conversation);
    FSDP__TRY_NEW(messages);
    TRY_JSON(json_object_set_new(conversation, "messages", messages));
    FSDP_TRY(convert(row, kind, rejected, messages, conversation));
    if (json_array_size(messages) == 0 && !json_object_get(conversation, "prompt"))
        return FSDP_FAIL(FSDP_FORMAT, "the conversation has no messages");
    *out = json_incref(conversation);
    return FSDP_OK;
}
