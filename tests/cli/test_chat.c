/* Conversations on the command line, from a file of them to a model that talks: fsdp train, eval, generate --chat. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/fixture.h"
#include "support/chat_folder.h"

/* A small model whose tokens are those of chat_folder_write. */
#define SMALL                                                                                                     \
    "--model.preset=llama-1m", "--model.n_layers=1", "--model.dim=32", "--model.n_heads=2", "--model.ffn_dim=64", \
        "--model.vocab_size=259"

/* Two questions with an answer each, many times. */
static void write_chat(fixture *f)
{
    static const char *const asked[] = {"One?", "Two?"}, *const answers[] = {"yes", "no"};
    char text[8192] = "";

    for (int i = 0; i < 40; i++) {
        size_t used = strlen(text);

        snprintf(text + used, sizeof text - used,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": "
                 "\"%s\"}]}\n",
                 asked[i % 2], answers[i % 2]);
    }
    test_write_text(f->directory, "chat.jsonl", text);
}

static int setup(void **state)
{
    fixture *f;
    char *folder;

    fixture_setup(state);
    f = *state;
    folder = test_path(f->directory, "words");
    CHECK_EQ(mkdir(folder, 0700), 0);
    chat_folder_write(folder, chat_template_plain);
    setenv("XDG_CACHE_HOME", f->directory, 1);
    write_chat(f);
    return chdir(f->directory); /* programs begin there: files have short names */
}

static int teardown(void **state)
{
    CHECK_EQ(chdir("/"), 0);
    unsetenv("XDG_CACHE_HOME");
    (void)state;
    return 0;
}

#define CHAT_TEST(name) TEST_OF(name, setup, teardown, fixture *f)

static char *loss_of(const program *p)
{
    const char *at = CHECK_PTR(strstr(p->output, "loss: ")), *end = CHECK_PTR(strstr(at, "tokens: "));

    end = CHECK_PTR(strstr(end, "  ")); /* the speed follows */
    return CHECK_PTR(strndup(at, (size_t)(end - at)));
}

/* All of it: trained on two ranks, the model answers both questions, and stops. */
CHAT_TEST(a_model_learns_to_answer_and_to_stop)
{
    char *generation = test_path(f->directory, "talker/generation_config.json"), *text;
    size_t bytes;
    program p =
        RUN(0, "train", SMALL, "-n", "2", "--data.path=chat.jsonl", "--data.tokenizer=words", "--training.seq_len=64",
            "--training.local_batch_size=4", "--training.steps=60", "--optimizer.lr=0.02", "--export.path=talker");

    CHECK_CONTAINS(p.output, "data.path: rows of messages; the chat template is that of 'words'");
    CHECK_CONTAINS(p.output, "40 rows of ");
    text = test_read_file(generation, &bytes);
    CHECK_CONTAINS(text, "\"eos_token_id\": 2");
    p = RUN(0, "generate", "talker", "--chat", "--prompt", "One?", "--max-new-tokens=20");
    CHECK_STRING(p.output, "yes\n");
    p = RUN(0, "generate", "talker", "--chat", "--prompt", "Two?", "--max-new-tokens=20", "-n", "2");
    CHECK_STRING(p.output, "no\n");
}

/* The template that was named goes along, and its end of turn ends a text for any reader of the folder. */
CHAT_TEST(an_export_has_the_template_that_was_named)
{
    static const char other[] = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
                                "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    static const char *const folders[] = {"talker", "saved/step-1"};

    test_write_text(f->directory, "other.jinja", other);
    RUN(0, "train", SMALL, "--data.path=chat.jsonl", "--data.tokenizer=words", "--data.chat_template=other.jinja",
        "--training.seq_len=64", "--training.steps=1", "--export.path=talker", "--checkpoint.folder=saved",
        "--checkpoint.interval=1");
    for (int i = 0; i < 2; i++) {
        char name[128], *path, *text;
        size_t bytes;

        snprintf(name, sizeof name, "%s/chat_template.jinja", folders[i]);
        text = test_read_file(path = test_path(f->directory, name), &bytes);
        CHECK_EQ(bytes, strlen(other));
        CHECK_EQ(memcmp(text, other, bytes), 0);
        snprintf(name, sizeof name, "%s/generation_config.json", folders[i]);
        text = test_read_file(path = test_path(f->directory, name), &bytes);
        CHECK_CONTAINS(text, "\"eos_token_id\": 0");
    }
}

CHAT_TEST(eval_takes_the_mean_over_all_answers)
{
    char *first, *again, *all;
    program p;

    RUN(0, "train", SMALL, "--data.path=chat.jsonl", "--data.tokenizer=words", "--training.seq_len=64",
        "--training.steps=1", "--export.path=talker");
    p = RUN(0, "eval", "talker", "--data", "chat.jsonl");
    CHECK_CONTAINS(p.output, "data:   40 conversations of ");
    CHECK_CONTAINS(p.output, "of which 140 count (the answers)"); /* "yes", "no", and the end of each */
    CHECK_CONTAINS(p.output, "  tokens: 140  ");
    first = loss_of(&p);
    p = RUN(0, "eval", "talker", "--data", "chat.jsonl", "-n", "3", "--batch-size=1", "--seq-len=40");
    again = loss_of(&p);
    CHECK_NEAR(strtod(again + 6, NULL), strtod(first + 6, NULL), 1e-5);
    CHECK_CONTAINS(again, "tokens: 140");
    /* Rows that were made before are the same. */
    RUN(0, "tokenize", "chat.jsonl", "--tokenizer", "words", "-o", "rows.bin");
    SAYS(0, first, "eval", "talker", "--data", "rows.bin", "-n", "2");
    p = RUN(0, "eval", "talker", "--data", "chat.jsonl", "--train-on=all");
    all = loss_of(&p);
    CHECK(strcmp(all, first) != 0);
    CHECK_CONTAINS(p.output, "count (--train-on all)");
    free(first);
    free(again);
    free(all);
}

/* An adapter of a run on conversations has tokenizer and template beside it, and talks by them. */
CHAT_TEST(an_adapter_that_learned_to_talk_has_tokenizer_and_template)
{
    static const char other[] = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
                                "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "adapter_config.json", "adapter_model.safetensors"};
    char *bare = test_path(f->directory, "bare");

    CHECK_EQ(mkdir(bare, 0700), 0);
    chat_folder_write(bare, NULL);
    test_write_text(f->directory, "other.jinja", other);
    SAYS(0, "done:", "train", SMALL, "--data.path=data.txt", "--data.tokenizer=bare", "--training.seq_len=64",
         "--training.steps=1", "--export.path=base");
    for (int again = 0; again < 2; again++) /* over its own folder, too */
        SAYS(0, "adapter: LoRA of rank 16", "train", "--model.path=base", "--data.path=chat.jsonl",
             "--data.chat_template=other.jinja", "--training.seq_len=64", "--training.local_batch_size=4",
             "--training.steps=2", "--adapter.rank=16", "--export.path=lora");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = malloc(600);

        snprintf(path, 600, "%s/lora/%s", f->directory, files[i]);
        if (access(path, R_OK) != 0)
            TEST_FAIL("there is no '%s'", path);
        free(path);
    }
    SAYS(1, "'base' has no chat template", "generate", "base", "--chat", "--prompt", "One?");
    SAYS(0, "", "generate", "base", "--adapter=lora", "--chat", "--prompt", "One?", "--max-new-tokens=5");
    SAYS(0, "\nadapter written to plain\n", "train", "--model.path=base", "--data.path=data.txt",
         "--training.seq_len=64", "--training.steps=1", "--adapter.rank=2", "--export.path=plain");
    CHECK(access("plain/adapter_config.json", R_OK) == 0 && access("plain/tokenizer.json", R_OK) != 0);
}

/* Rows that are ready do not say by which template they were made. */
CHAT_TEST(a_run_on_ready_rows_says_which_template_its_model_is_left_with)
{
    char *path = test_path(f->directory, "talker/generation_config.json"), *text;

    SAYS(0, "of 40 conversations", "tokenize", "chat.jsonl", "--tokenizer=words", "-o", "rows.bin");
    SAYS(0, "rows do not say by which chat template they were made: the model is left with that of 'words'", "train",
         SMALL, "--data.path=rows.bin", "--data.tokenizer=words", "--training.seq_len=64",
         "--training.local_batch_size=4", "--training.steps=1", "--export.path=talker");
    text = test_read_file(path, NULL);
    CHECK_CONTAINS(text, "\"eos_token_id\": 2");
    SAYS(0, "and none is known: the model is left without one, and without an end of turn", "train", SMALL,
         "--data.path=rows.bin", "--training.seq_len=64", "--training.local_batch_size=4", "--training.steps=1");
    SAYS(1, "data.chat_template is 'none.jinja', but there is no tokenizer for it", "train", SMALL,
         "--data.path=rows.bin", "--data.chat_template=none.jinja", "--training.seq_len=64", "--training.steps=1");
    SAYS(1, "data.chat_template: cannot open 'none.jinja'", "train", SMALL, "--data.path=rows.bin",
         "--data.tokenizer=words", "--data.chat_template=none.jinja", "--training.seq_len=64", "--training.steps=1");
    test_write_file("empty.jinja", "", 0);
    SAYS(1, "data.chat_template: 'empty.jinja' is empty", "train", SMALL, "--data.path=chat.jsonl",
         "--data.tokenizer=words", "--data.chat_template=empty.jinja", "--training.seq_len=64", "--training.steps=1");
}

/* What is wrong with one message costs no other, and is the command's failure in the end. */
CHAT_TEST(a_talk_goes_on_behind_a_message_that_is_no_text)
{
    static const char script[] =
        "printf 'a\\377\\nb\\n\\n\\377\\na\\000b\\n' | \"$0\" generate talker --chat --max-new-tokens=1 >said";
    program p;
    size_t bytes;

    RUN(0, "train", SMALL, "--data.path=chat.jsonl", "--data.tokenizer=words", "--training.seq_len=64",
        "--training.steps=1", "--export.path=talker");
    p = program_run(f->directory, 1, (const char *const[]){"sh", "-c", script, PROGRAM, NULL});
    CHECK_CONTAINS(p.output, "the message is left out: it is not UTF-8 at byte 2 (0xff)");
    CHECK_CONTAINS(p.output, "the message is left out: it is not UTF-8 at byte 1 (0xff)");
    CHECK_CONTAINS(p.output, "the message is left out: it has a NUL at byte 2");
    CHECK_CONTAINS(p.output, "3 messages were left out");
    CHECK(strchr(test_read_file("said", &bytes), '\n') != NULL); /* an answer to "b" */
    SAYS(1, "--prompt: it is not UTF-8 at byte 1 (0xff)", "generate", "talker", "--chat", "--prompt", "\xff");
    SAYS(1, "--system: it is not UTF-8 at byte 1 (0xff)", "generate", "talker", "--chat", "--system", "\xff");
    test_write_text(f->directory, "cut.jsonl", "{\"prompt\": \"\", \"completion\": \"b\"}\n{\"prompt\": \"x\n");
    p = RUN(1, "tokenize", "cut.jsonl", "--tokenizer=words", "--show=2");
    CHECK_CONTAINS(p.output, "cut.jsonl:1: 2 tokens, 1 of them learned");
    CHECK_CONTAINS(p.output, "cannot read 'cut.jsonl': line 2: a string does not end at column 14");
}

CHAT_TEST(what_is_wrong_with_conversations_is_said_once)
{
    RUN(0, "train", SMALL, "--data.path=chat.jsonl", "--data.tokenizer=words", "--training.seq_len=64",
        "--training.steps=1", "--export.path=talker");
    SAYS(1, "--data: row 1 of 'chat.jsonl' has 28 tokens, which is more than training.seq_len (--seq-len) 16", "eval",
         "talker", "--data", "chat.jsonl", "--seq-len=16");
    SAYS(0, "long:   40 of more than 16 tokens; ", "eval", "talker", "--data", "chat.jsonl", "--seq-len=16",
         "--on-long-row=truncate", "--train-on=all");
    SAYS(1, "row 1 of 'chat.jsonl' has 28 tokens", "train", SMALL, "--data.path=chat.jsonl", "--data.tokenizer=words",
         "--training.seq_len=16", "--training.steps=1");
    SAYS(2, "--train-on is 'questions': expected answers or all", "eval", "talker", "--data", "chat.jsonl",
         "--train-on=questions");
    SAYS(1, "--train-on is for conversations, but --data 'data.txt' is text or tokens", "eval", "talker", "--data",
         "data.txt", "--train-on=all");
    test_write_text(f->directory, "bad.jsonl",
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                    "\"content\": \"b\"}]}\n{\"messages\": 3}\n");
    SAYS(1, "bad.jsonl': line 2", "eval", "talker", "--data", "bad.jsonl");
    test_write_text(f->directory, "silent.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    SAYS(1, "no token of --data 'silent.jsonl' is an answer, which the role assistant gives in messages", "eval",
         "talker", "--data", "silent.jsonl");
    SAYS(1, "(hf download owner/talks --repo-type dataset --local-dir talks)", "train", "--model.path=talker",
         "--data.path=owner/talks");
    test_write_text(
        f->directory, "human.jsonl",
        "{\"messages\": [{\"role\": \"human\", \"content\": \"a\"}, {\"role\": \"gpt\", \"content\": \"b\"}]}\n");
    SAYS(1, "nothing to learn: answers are what the role assistant says in messages", "train", "--model.path=talker",
         "--data.path=human.jsonl", "--training.seq_len=64", "--training.steps=1");
    SAYS(1, "--data: cannot open 'none.jinja'", "eval", "talker", "--data", "chat.jsonl", "--chat-template=none.jinja");
}
