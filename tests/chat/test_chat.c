/* Rows of every kind, what of them is learned, and what is wrong in them. */
#include "fsdp/chat.h"

#include "chat/chat.h"
#include "support/chat_folder.h"
#include "support/test.h"

/* ---- rows of every kind; the folder of these tests has a token for each byte ---- */

/* Encodes a row, and writes its text with what is learned in [brackets]. */
static void check_row(const fsdp_chat *chat, const char *json, const char *expected)
{
    char shown[1000];
    size_t n = 0;
    bool inside = false;
    fsdp_chat_row row = {0};

    if (fsdp_chat_encode(chat, NULL, json, strlen(json), NULL, &row) != FSDP_OK)
        TEST_FAIL("%s: %s", json, fsdp_last_error());
    for (int64_t i = 0; i < row.ids.count; i++) {
        int32_t id = row.ids.ids[i];

        if (row.learned[i] != inside)
            shown[n++] = inside ? ']' : '[';
        inside = row.learned[i];
        shown[n++] = id < 3 ? "^<>"[id] : (char)(id - 3);
    }
    if (inside)
        shown[n++] = ']';
    shown[n] = 0;
    CHECK_STRING(shown, expected);
    fsdp_chat_row_release(&row);
}

static void check_refused(const fsdp_chat *chat, const char *json, const char *part)
{
    fsdp_chat_row row = {0};

    CHECK(fsdp_chat_encode(chat, NULL, json, strlen(json), NULL, &row) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), part);
    fsdp_chat_row_release(&row);
}

/* A folder with a template, open. */
typedef struct fixture {
    char *folder;
    fsdp_tokenizer *tokenizer;
    fsdp_chat *chat;
} fixture;

static fixture open_fixture(const char *chat_template)
{
    fixture f = {.folder = test_directory()};

    chat_folder_write(f.folder, chat_template);
    CHECK_OK(fsdp_tokenizer_open(f.folder, &f.tokenizer));
    CHECK_OK(fsdp_chat_open(f.folder, f.tokenizer, NULL, &f.chat));
    return f;
}

static void close_fixture(fixture *f)
{
    fsdp_chat_close(f->chat);
    fsdp_tokenizer_close(f->tokenizer);
    test_directory_free(f->folder);
}

#define ANSWER(content, more) "{\"role\": \"assistant\", \"content\": \"" content "\", " more "}"

static const struct {
    const char *row, *expected;
} rows[] = {
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
     "<user\na>\n<assistant\n[b>]\n"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}, {\"from\": "
     "\"observation\", \"value\": \"c\"}], \"system\": \"s\"}",
     "<system\ns>\n<user\na>\n<assistant\n[b>]\n<tool\nc>\n"},
    {"{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}]}", "<user\na>\n"},
    {"{\"instruction\": \"do\", \"input\": \"x\", \"output\": \"y\", \"history\": [[\"q\", \"r\"]]}",
     "<user\nq>\n<assistant\n[r>]\n<user\ndo\nx>\n<assistant\n[y>]\n"},
    {"{\"instruction\": \"do\", \"input\": \"\", \"output\": \"y\", \"system\": \"\"}",
     "<user\ndo>\n<assistant\n[y>]\n"},
    {"{\"prompt\": \"a \", \"completion\": \"bc\"}", "a [bc>]"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
     "{\"role\": "
     "\"user\", \"content\": \"c\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"d\"}]}",
     "<user\na>\n<assistant\nb>\n<user\nc>\n<assistant\n[d>]\n"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a<|im_end|>\", \"x\": NaN}]}", "<user\na>>\n"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 0}, " ANSWER(
         "b", "\"weight\": 0") ", " ANSWER("c", "\"weight\": 1") ", " ANSWER("d",
                                                                             "\"train\": false, \"weight\": null") "]}",
     "<user\na>\n<assistant\nb>\n<assistant\n[c>]\n<assistant\nd>\n"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\", "
     "\"training\": "
     "false}, {\"from\": \"gpt\", \"value\": \"c\", \"weight\": 1.0}]}",
     "<user\na>\n<assistant\nb>\n<assistant\n[c>]\n"},
};

TEST(rows_of_every_kind_become_turns)
{
    const char *const templates[] = {chat_template_marked, chat_template_plain};

    for (int t = 0; t < 2; t++) {
        fixture f = open_fixture(templates[t]);

        for (size_t i = 0; i < FSDP__COUNT_OF(rows); i++)
            check_row(f.chat, rows[i].row, rows[i].expected);
        close_fixture(&f);
    }
}

static void check_rendered(const char *chat_template, const char *row, const char *expected)
{
    fixture f = open_fixture(chat_template);

    check_row(f.chat, row, expected);
    close_fixture(&f);
}

/* Two questions and answers. */
#define TALK                                                                                                    \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, " \
    "{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}"

static const char as_phi[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' if add_generation_prompt else '<|endoftext|>' }}";
static const char as_deepseek[] =
    "{% for m in messages %}{{ ('<|im_start|>' if m.role == 'assistant' else 'U ') + m.content + '<|im_end|>' }}{% "
    "endfor %}{{ '<|im_start|>do\\n' if add_generation_prompt }}";

/* As Phi-3's: a token ends the conversation, if there is no prompt. */
CALL_TEST(a_token_at_the_end_of_all_is_of_the_last_answer,
          check_rendered(as_phi, TALK, "<user\na>\n<assistant\n[b>]\n<user\nc>\n<assistant\n[d>\n^]"))

/* As DeepSeek's: a prompt begins a thought that no message has. The answer may begin with the same letter. */
CALL_TEST(an_answer_begins_where_its_turn_does, check_rendered(as_deepseek, TALK, "U a><[b>]U c><[d>]"))

TEST(parts_of_a_talk_are_rendered_again_after_a_failure)
{
    const char *const templates[] = {as_phi, as_deepseek};

    for (int i = 0; i < 2; i++) {
        fixture f = open_fixture(templates[i]);
        fsdp_chat_row row = {0};

        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
            CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_chat_encode(f.chat, NULL, TALK, strlen(TALK), NULL, &row));
        CHECK_EQ(row.answers, i == 0 ? 6 : 4);
        fsdp_chat_row_release(&row);
        close_fixture(&f);
    }
}

/* A block behind the loop is of the last message, and one in a loop inside of a turn of that turn's. */
CALL_TEST(
    blocks_of_a_message_that_is_not_learned_are_left_out,
    check_rendered("{% set messages = messages[1:] %}{% set first = messages[0] %}{% for m in messages %}{% for p in "
                   "[m.content] %}{% generation %}{{ p }}{% endgeneration %}{% endfor %}{% endfor %}{% generation %}"
                   "<|im_end|>{% endgeneration %}",
                   "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, " ANSWER(
                       "b", "\"weight\": 0") ", " ANSWER("c", "\"weight\": 1") "]}",
                   "b[c>]"))

#define THOUGHTS "{% for m in messages %}{{ m.thinking }},{{ m.reasoning_content }};{% endfor %}"
#define THINKS(keys) "{\"messages\": [" ANSWER("", keys) "]}"

/* transformers fills reasoning_content with the first of three names, and thinking if it has none. */
TEST(thoughts_have_two_names)
{
    static const char *const cases[][2] = {
        {"\"reasoning_content\": \"x\"", "x,x;"},
        {"\"reasoning\": \"x\", \"thinking\": null", "x,x;"},
        {"\"thinking\": \"y\", \"reasoning\": \"x\"", "y,y;"},
        {"\"thinking\": \"y\", \"reasoning_content\": \"x\"", "y,x;"},
    };
    fixture f = open_fixture(THOUGHTS);

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        const fsdp_chat_options options = {.no_mask = true};
        fsdp_chat_row row = {0};
        char json[200];

        snprintf(json, sizeof json, THINKS("%s"), cases[i][0]);
        CHECK_OK(fsdp_chat_encode(f.chat, NULL, json, strlen(json), &options, &row));
        CHECK_STRING(row.text, cases[i][1]);
        fsdp_chat_row_release(&row);
    }
    close_fixture(&f);
}

#define CALLS_OF(value)                                                                                             \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": " value \
    "}]}"
static const char calls[] =
    "{% for m in messages %}{% generation %}{% for c in m.tool_calls %}{{ c.function.name }}({{ "
    "c.function.arguments|tojson }}){% else %}{{ m.content }}{% endfor %}{% endgeneration %};{% "
    "endfor %}";

CALL_TEST(a_call_is_one,
          check_rendered(calls, CALLS_OF("\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}\""), "[a];[f({})];"))
CALL_TEST(a_list_of_calls_is_several,
          check_rendered(calls,
                         CALLS_OF("\"[{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 1}}, {\\\"name\\\": "
                                  "\\\"g\\\", \\\"arguments\\\": {}}]\""),
                         "[a];[f({\"x\": 1})g({})];"))
CALL_TEST(what_is_no_call_is_text, check_rendered(calls, CALLS_OF("\"[{\\\"x\\\": 1}]\""), "[a];[[{\"x\": 1}]];"))

CALL_TEST(words_for_the_template_may_be_a_text,
          check_rendered("{{ x }}{{ messages|length }}",
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"chat_template_kwargs\": "
                         "\"{\\\"x\\\": 5}\"}",
                         "51"))

/* ---- tokenizers of SentencePiece ---- */

/* Answers of several lines, with spaces, and with characters that become bytes or the unknown token. Expected is the
 * mask of transformers (apply_chat_template with return_assistant_tokens_mask). */
static void check_mask(const char *tokenizer, const char *expected)
{
    static const char tight[] = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content "
                                "}}{% endgeneration %}{% else "
                                "%}{{ m.content }}{% endif %}{% endfor %}";
    static const char talk[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"the \"}, {\"role\": \"assistant\", \"content\": \"(x) "
        "one\\n  two\U0001f642 \"}, {\"role\": \"user\", \"content\": \"5\ud55c\"}, {\"role\": \"assistant\", "
        "\"content\": \"\u4e2d </s>\"}]}";
    char *folder = test_directory(), *path = test_path(folder, "t.jinja"), *of = NULL, shown[200] = "";
    fsdp_tokenizer *t = NULL;
    fsdp_chat *chat = NULL;
    fsdp_chat_row row = {0};

    test_write_file(path, tight, sizeof tight - 1);
    CHECK(asprintf(&of, TEST_SOURCE_DIR "/tests/numbers/pieces/%s", tokenizer) > 0);
    CHECK_OK(fsdp_tokenizer_open(of, &t));
    CHECK_OK(fsdp_chat_open(NULL, t, path, &chat));
    CHECK_OK(fsdp_chat_encode(chat, NULL, talk, sizeof talk - 1, NULL, &row));
    for (int64_t i = 0; i < row.ids.count; i++)
        shown[i] = row.learned[i] ? '1' : '0';
    CHECK_STRING(shown, expected);
    fsdp_chat_row_release(&row);
    fsdp_chat_close(chat);
    fsdp_tokenizer_close(t);
    free(of);
    test_directory_free(folder);
}

CALL_TEST(answers_of_llama_2, check_mask("llama.json", "0111111111111111000011111"))
CALL_TEST(answers_of_mistral, check_mask("mistral.json", "0111111111111111000011111"))
CALL_TEST(answers_of_gemma, check_mask("gemma.json", "00111111111111111000011111"))
CALL_TEST(answers_of_t5, check_mask("t5.json", "01111111111110111"))
CALL_TEST(answers_of_a_model, check_mask("bpe.model", "0111111111111111000011111"))

/* ---- special tokens and numbers ---- */

/* Checks what a template writes of the folder's special tokens. */
static void check_tokens(const char *folder, const fsdp_tokenizer *tokenizer, const char *config, const char *expected)
{
    static const char row[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}";
    const fsdp_chat_options options = {.no_mask = true};
    fsdp_chat_row out = {0};
    fsdp_chat *chat;

    test_write_text(folder, "tokenizer_config.json", config);
    CHECK_OK(fsdp_chat_open(folder, tokenizer, NULL, &chat));
    CHECK_OK(fsdp_chat_encode(chat, NULL, row, sizeof row - 1, &options, &out));
    CHECK_STRING(out.text, expected);
    fsdp_chat_row_release(&out);
    fsdp_chat_close(chat);
}

TEST(special_tokens_have_the_names_that_transformers_gives_them)
{
    fixture f = open_fixture("{{ bos_token }} {{ eos_token }} {{ boi_token }} {{ think }} {{ eot_token }}");

    test_write_text(f.folder, "special_tokens_map.json", "{\"bos_token\": {\"content\": \"<s>\"}}");
    check_tokens(f.folder, f.tokenizer,
                 "{\"bos_token\": \"<b>\", \"eos_token\": \"</s>\", \"eot_token\": \"<e>\", \"extra_special_tokens\": "
                 "{\"boi_token\": \"<i>\", \"think\": {\"content\": \"<t>\"}}}",
                 "<s> </s> <i> <t> <e>");
    check_tokens(f.folder, f.tokenizer,
                 "{\"bos_token\": \"<b>\", \"extra_special_tokens\": [\"<i>\"], \"added_tokens_decoder\": {}}",
                 "<b>    ");
    close_fixture(&f);
}

/* Python's json module and the template's tojson give the text that is expected. */
TEST(numbers_are_written_as_python_does)
{
    static const char row[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"n\": -98765432109876543210}, {\"role\": "
        "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
        "{\"a\": 12345678901234567890, \"b\": 1e400, \"c\": 1.10, \"d\": 1E5, \"e\": -0, \"f\": [NaN, -Infinity], "
        "\"g\": -0.0, \"h\": 9223372036854775807, \"i\": 1e16, \"j\": -1e-400, \"k\": 1e22, \"l\": 0.00001, "
        "\"m\": {\"\": \"\\u0000\u00a01\"}}}}, {\"function\": {\"name\": \"g\", \"arguments\": \"{\\\"x\\\": "
        "12345678901234567890, \\\"y\\\": NaN}\"}}]}], \"tools\": \"[18446744073709551616]\"}";
    static const char text[] =
        "{% for m in messages %}{{ m.n }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson }} {{ "
        "m.tool_calls[1].function.arguments }} {{ m.tool_calls[0].function.arguments.f }}{% endif %}{% endfor %}{{ "
        "tools }}";
    fixture f = open_fixture(text);
    const fsdp_chat_options options = {.no_mask = true, .replace_invalid = true};
    fsdp_chat_row out = {0};

    CHECK_OK(fsdp_chat_encode(f.chat, NULL, row, sizeof row - 1, &options, &out));
    CHECK_STRING(
        out.text,
        "-98765432109876543210{\"a\": 12345678901234567890, \"b\": Infinity, \"c\": 1.1, \"d\": 100000.0, \"e\": 0, "
        "\"f\": [NaN, -Infinity], \"g\": -0.0, \"h\": 9223372036854775807, \"i\": 1e+16, \"j\": -0.0, \"k\": "
        "1e+22, \"l\": 1e-05, \"m\": {\"\": \"\ufffd\u00a01\"}} {\"x\": 12345678901234567890, \"y\": NaN} [nan, "
        "-inf][18446744073709551616]");
    fsdp_chat_row_release(&out);
    close_fixture(&f);
}

/* ---- what is wrong ---- */

TEST(a_row_that_is_wrong_is_told)
{
    fixture f = open_fixture(chat_template_plain);

    check_refused(f.chat, "{\"id\": 1, \"body\": \"x\"}", "the row has 'id', 'body': expected messages");
    check_refused(f.chat, "[1]", "not a JSON object but an array");
    check_refused(f.chat, "{\"messages\": []}", "the conversation has no messages");
    check_refused(f.chat, "{\"messages\": {}}", "field 'messages' is no list of messages");
    check_refused(f.chat, "{\"messages\": [{\"content\": \"x\"}]}", "item 1 is no object with a 'role'");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "the content of item 1 is no text");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"user\", \"content\": NaN}]}",
                  "the content of item 1 is no text");
    check_refused(f.chat, "{\"messages\": [{\"role\": 12345678901234567890, \"content\": \"x\"}]}",
                  "item 1 is no object with a 'role'");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"user\"}]}", "field 'messages': item 1 has no 'content'");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "item 1 has no 'content'");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": []}]}",
                  "has no attribute 'content'");
    check_refused(f.chat, "{\"conversations\": [{\"from\": \"bob\", \"value\": \"\"}]}", "item 1 is from 'bob'");
    check_refused(f.chat, "{\"instruction\": 1, \"output\": \"x\"}", "field 'instruction' is no text");
    check_refused(f.chat, "{\"prompt\": \"a\", \"completion\": []}", "are not both texts");
    check_refused(f.chat, "{\"messages\": [" ANSWER("x", "\"weight\": 0.5") "]}",
                  "field 'messages': 'weight' of item 1 is neither 0 or false (it is not learned) nor 1 or true");
    check_refused(f.chat, "{\"messages\": [" ANSWER("x", "\"train\": \"no\"") "]}", "'train' of item 1 is neither");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"weight\": 1}]}",
                  "by 'weight' item 1 of the role 'user' is learned: only those of the role assistant can be");
    check_refused(f.chat, "{\"conversations\": [{\"from\": \"gpt\", \"value\": \"\", \"weight\": 2}]}",
                  "field 'conversations': 'weight' of item 1 is neither");
    check_refused(
        f.chat,
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [" ANSWER("x", "\"weight\": 0") "]}",
        "message 2 says that it is not learned, but of what follows a prompt all is");
    check_refused(f.chat, CALLS_OF("\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \\\"x\\\"}\""),
                  "the arguments of tool call 1 of item 2 are a text that is no JSON");
    check_refused(f.chat, "{\"messages\": [" ANSWER("x", "\"y\": 1") "], \"chat_template_kwargs\": \"[]\"}",
                  "field 'chat_template_kwargs' is a text, but no JSON object");
    check_refused(f.chat, "{\"messages\": [" ANSWER("x", "\"y\": 1") "], \"chat_template_kwargs\": 1}",
                  "field 'chat_template_kwargs' is no object");
    check_refused(f.chat, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}",
                  "the conversation begins with an answer: learn all tokens with data.train_on: all");
    close_fixture(&f);
    f = open_fixture(NULL);
    CHECK(!fsdp_chat_has_template(f.chat));
    check_refused(f.chat, rows[0].row, "has no chat template, which conversations need");
    check_row(f.chat, rows[5].row, rows[5].expected);
    close_fixture(&f);
}

TEST(no_mask_can_be_had_where_the_text_changes)
{
    static const char last[] =
        "{% for m in messages %}{{ m.role + (' last ' if loop.last else ' ') + m.content }}\n{% endfor %}";
    static const char ends[] = /* an answer, if it is the last, in another way */
        "{% for m in messages %}{{ m.content + ('<|im_end|>' if loop.last else '<|im_start|>') }}{% endfor %}";
    static const char begins[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}{{ "
        "'<|im_start|>model\\n' if add_generation_prompt }}";
    static const char macro[] =
        "{% macro f(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{% for m in "
        "messages %}{{ f(m) }}{% endfor %}";
    fixture f = open_fixture(last);

    check_refused(f.chat, rows[3].row, "it changes the text of a conversation's beginning");
    close_fixture(&f);
    f = open_fixture(ends);
    check_refused(f.chat, TALK, "it may leave out what message 2 thinks, or end it otherwise");
    close_fixture(&f);
    f = open_fixture(begins);
    check_refused(f.chat, TALK,
                  "what it writes for a prompt (add_generation_prompt) is not what it writes in front of message 2");
    close_fixture(&f);
    f = open_fixture(macro);
    check_refused(f.chat, rows[0].row, "'generation' block in a macro");
    close_fixture(&f);
}

TEST(null_is_refused_or_empty)
{
    static const char nulls[] = "{\"messages\": null, \"chosen\": null, \"prompt\": \"a\", \"completion\": \"b\"}";
    fixture f = open_fixture(chat_template_plain);
    fsdp_chat *chat = NULL;
    fsdp_chat_row row = {0};
    int32_t end;

    CHECK_ERROR(fsdp_chat_open(f.folder, NULL, NULL, &chat), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_chat_open(f.folder, f.tokenizer, NULL, NULL), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_chat_encode(NULL, NULL, "{}", 2, NULL, &row), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_chat_encode(f.chat, NULL, NULL, 2, NULL, &row), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_chat_encode(f.chat, NULL, "{}", 2, NULL, NULL), FSDP_INVALID, "are required");
    CHECK(fsdp_chat_encode(f.chat, NULL, "", 0, NULL, &row) != FSDP_OK);
    CHECK_EQ(fsdp_chat_recognise(NULL, 0), FSDP_CHAT_NONE);
    CHECK_EQ(fsdp_chat_recognise("", 0), FSDP_CHAT_NONE);
    CHECK_EQ(fsdp_chat_recognise(nulls, strlen(nulls)), FSDP_CHAT_COMPLETION);
    CHECK(fsdp_chat_kind_name((fsdp_chat_kind)99) != NULL);
    CHECK(!fsdp_chat_has_template(NULL));
    CHECK_OK(fsdp_chat_end_of_turn(NULL, &end));
    CHECK_EQ(end, -1);
    CHECK_ERROR(fsdp_chat_end_of_turn(f.chat, NULL), FSDP_INVALID, "needs a place");
    fsdp_chat_row_release(&row);
    fsdp_chat_row_release(&row); /* it is empty */
    fsdp_chat_row_release(NULL);
    fsdp_chat_close(NULL);
    close_fixture(&f);
}

/* The end of a turn is looked for while errors are held, so no failure may be known by the last error alone. */
TEST(no_end_of_turn_is_known_when_an_allocation_fails)
{
    fixture f = open_fixture(chat_template_marked);
    int32_t usual, found;

    CHECK_OK(fsdp_chat_end_of_turn(f.chat, &usual));
    CHECK_EQ(usual, 2);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_chat_end_of_turn(f.chat, &found);

        if (status == FSDP_OK)
            CHECK_EQ(found, usual);
        else
            CHECK_EQ(status, FSDP_NO_MEMORY);
    }
    close_fixture(&f);
}

TEST(a_failed_row_can_be_filled_again)
{
    fixture f = open_fixture(chat_template_marked);
    fsdp_chat_row row = {0};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = FSDP_OK;

        for (size_t i = 0; i < FSDP__COUNT_OF(rows) && status == FSDP_OK; i++)
            status = fsdp_chat_encode(f.chat, NULL, rows[i].row, strlen(rows[i].row), NULL, &row);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    CHECK_OK(fsdp_chat_encode(f.chat, NULL, rows[0].row, strlen(rows[0].row), NULL, &row));
    CHECK(row.answers > 0);
    fsdp_chat_row_release(&row);
    close_fixture(&f);
}
