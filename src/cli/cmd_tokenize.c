/* cmd_tokenize.c - fsdp tokenize IN... -o OUT.bin --tokenizer FOLDER: turns files of text into a file of tokens. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/conversations.h"
#include "cli/token_text.h"
#include "data/encode_piece.h"
#include "tokenizer/tokenizer.h"

typedef struct request {
    const char **inputs;
    int input_count;
    const char *output, *tokenizer, *threads, *separator_text, *on_bad_line, *chat_template, *train_on, *show;
    int64_t shown; /* how many conversations are to be shown */
    bool replaces; /* an earlier output */
    fsdp_chat *chat;
    char *separator; /* with its escapes replaced */
    fsdp_tokenize_options options;
    fsdp__bar bar;
} request;

static void usage(void)
{
    puts("fsdp tokenize IN... -o OUT.bin --tokenizer FOLDER\n"
         "\n"
         "Writes text as a file of tokens for training. Each IN is a file, a folder (its\n"
         ".txt, .jsonl, .ndjson and .parquet files) or a pattern; files may be packed with\n"
         "gzip or zstd (.gz, .zst). They are read in the order given. Every line of a file\n"
         "of JSON lines (.jsonl, .ndjson, .json), and every row of Parquet, is a document;\n"
         "every other file is one document.\n"
         "Files that are packed in another way, or are not text, are refused, as are\n"
         "packed files and tables beside the texts of a folder. After each document comes\n"
         "the tokenizer's end-of-text token. OUT.bin begins with llm.c's header; its\n"
         "tokens are uint16 if the vocabulary fits, otherwise uint32.\n"
         "\n"
         "Rows of messages, ShareGPT's conversations, prompt and completion, or\n"
         "instruction and output are conversations: each becomes a row of tokens by the\n"
         "chat template of the tokenizer's folder, with the answers marked as what is\n"
         "learned. fsdp train does this by itself, too.\n"
         "\n"
         "  -o, --output OUT.bin    the file to write; it replaces a file made by fsdp\n"
         "                          tokenize, and no other\n"
         "  --tokenizer FOLDER      a folder with tokenizer.json, or with vocab.json and\n"
         "                          merges.txt\n"
         "  --field NAME            the field of JSON lines that holds the text; default\n"
         "                          text\n"
         "  --on-bad-line WHAT      what to do with a line that is not a JSON object or\n"
         "                          has no text in the field; error (the default): end the\n"
         "                          command; skip: leave the line out and count it\n"
         "  --separator TEXT        what separates the documents of a text file; it\n"
         "                          belongs to none of them; \\n, \\t and \\\\ stand for a\n"
         "                          newline, a tab and a backslash\n"
         "  --no-eos                write no end-of-text tokens\n"
         "  --plain-specials        treat special tokens in the text (<|endoftext|>) as\n"
         "                          ordinary text\n"
         "  --replace-invalid       replace bytes that are not UTF-8 by U+FFFD; otherwise\n"
         "                          they end the command\n"
         "  --chat-template FILE    the template of conversations, in Jinja\n"
         "  --train-on WHAT         what is learned of conversations: answers (default),\n"
         "                          or all\n"
         "  --show N                print the first N conversations as a model sees them,\n"
         "                          what is learned in \xe2\x9f\xa6 \xe2\x9f\xa7; -o may be left out\n"
         "  --threads N             default: one for each core");
}

/* ---- arguments ---- */

static fsdp_status read_separator(request *r)
{
    char *to;

    if (!r->separator_text)
        return FSDP_OK;
    r->separator = to = fsdp__strdup(r->separator_text);
    FSDP__TRY_NEW(to);
    for (const char *at = r->separator_text; *at; at++) {
        const char *escape = *at == '\\' && at[1] ? strchr("n\nt\t\\\\", at[1]) : NULL;

        if (escape)
            at++;
        *to++ = escape ? escape[1] : *at;
    }
    *to = '\0';
    r->options.separator = r->separator;
    return FSDP_OK;
}

/* ---- the work ---- */

static void progress(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    request *r = arg;

    snprintf(r->bar.note, sizeof r->bar.note, "MiB, %s tokens", fsdp__short_count(tokens, FSDP__ROOM(32)));
    fsdp__bar_draw_bytes(&r->bar, (uint64_t)bytes, (uint64_t)all_bytes);
}

static void report(const request *r, const fsdp_tokenize_summary *s)
{
    double seconds = (double)(fsdp__clock_ns() - r->bar.began_ns) / 1e9;
    char learned[60] = "", left_out[FSDP__LEFT_OUT_TEXT];
    const char *what = r->chat ? "conversation" : "document";

    if (r->chat)
        snprintf(learned, sizeof learned, ", %s of them learned,", FSDP__THOUSANDS(s->learned_tokens));
    printf("%s: %s tokens (uint%d)%s of %s %s%s, %s of text, %s/s%s\n", FSDP__SHOWN_PATH(r->output),
           FSDP__THOUSANDS(s->tokens), s->width * 8, learned, FSDP__THOUSANDS(s->documents), what,
           fsdp__plural(s->documents), FSDP__SIZE(s->text_bytes),
           FSDP__SIZE((double)s->text_bytes / (seconds > 0 ? seconds : 1)), fsdp__in_place(r->replaces));
    if (s->left_out_bytes > 0)
        (void)fsdp__failure("warning: %lld bytes of the text have no token in this vocabulary, and were left out",
                            (long long)s->left_out_bytes);
    if (s->left_out_lines > 0)
        (void)fsdp__failure("warning: %s", fsdp__left_out_text(s, left_out));
}

static int write_tokens(request *r, const fsdp_tokenizer *tokenizer)
{
    fsdp_tokenize_summary summary;
    fsdp_status status;

    r->replaces = fsdp__path_exists(r->output);
    fsdp__bar_begin(&r->bar);
    r->options.progress = progress;
    r->options.progress_arg = r;
    status = fsdp_tokenize_files(tokenizer, r->inputs, r->input_count, r->output, &r->options, &summary);
    fsdp__bar_clear(&r->bar);
    if (status != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    report(r, &summary);
    return 0;
}

static int tokenize(request *r)
{
    FSDP__SCOPED(fsdp_tokenizer_close_at) fsdp_tokenizer *tokenizer = NULL;
    const fsdp__shown_rows shown = {r->inputs, r->input_count, r->shown, r->options.learn_all};
    int result = 0;

    if (fsdp_fail_prefix(fsdp_tokenizer_open(r->tokenizer, &tokenizer), "--tokenizer") != FSDP_OK ||
        fsdp__conversations_open(r->tokenizer, tokenizer, r->chat_template, r->inputs, r->input_count, &r->options,
                                 &r->chat) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (r->shown > 0 && !r->chat)
        result = fsdp__failure("--show shows conversations, and '%s' has none", r->inputs[0]);
    else if (r->shown > 0 && fsdp__conversations_show(&shown, tokenizer, r->chat, stdout) != FSDP_OK)
        result = fsdp__failure("%s", fsdp_last_error());
    if (result == 0 && r->output)
        result = write_tokens(r, tokenizer);
    fsdp_chat_close(r->chat);
    return result;
}

/* ---- the command line ---- */

static int with_line(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {{"output", 'o', &r->output, NULL},
                                    {"tokenizer", 0, &r->tokenizer, NULL},
                                    {"field", 0, &r->options.field, NULL},
                                    {"on-bad-line", 0, &r->on_bad_line, NULL},
                                    {"separator", 0, &r->separator_text, NULL},
                                    {"threads", 0, &r->threads, NULL},
                                    {"chat-template", 0, &r->chat_template, NULL},
                                    {"train-on", 0, &r->train_on, NULL},
                                    {"show", 0, &r->show, NULL},
                                    {"no-eos", 0, NULL, &r->options.no_eos},
                                    {"plain-specials", 0, NULL, &r->options.plain_specials},
                                    {"replace-invalid", 0, NULL, &r->options.replace_invalid},
                                    {0}};
    fsdp__args args = {.options = options, .list = r->inputs};
    int64_t threads = 0;
    int status;

    if (!fsdp__take_line(&args, "tokenize", usage, argc, argv, &status))
        return status;
    if (args.positional_count == 0)
        return fsdp__usage_error("tokenize: no file of text given");
    if ((!r->output && !r->show) || !r->tokenizer)
        return fsdp__usage_error("tokenize: %s is missing",
                                 r->output || r->show ? "--tokenizer FOLDER" : "-o OUT.bin, or --show N,");
    if (r->output && fsdp__output_is_apart("--output", r->output) != FSDP_OK)
        return fsdp__usage_error("tokenize: %s", fsdp_last_error());
    if (fsdp__args_integer("--show", r->show, 1, 1 << 20, &r->shown) != FSDP_OK)
        return fsdp__usage_error("tokenize: %s", fsdp_last_error());
    r->options.learn_all = r->train_on && strcmp(r->train_on, "all") == 0;
    if (r->train_on && !r->options.learn_all && strcmp(r->train_on, "answers") != 0)
        return fsdp__usage_error("tokenize: --train-on is '%s': expected answers or all", r->train_on);
    if (strcmp(r->tokenizer, "bytes") == 0)
        return fsdp__usage_error("tokenize: bytes of text need no file of tokens: train and eval read the text itself");
    if (fsdp__args_integer("--threads", r->threads, 1, FSDP__THREADS_MOST, &threads) != FSDP_OK)
        return fsdp__usage_error("tokenize: %s", fsdp_last_error());
    if (fsdp__bad_line_option(r->on_bad_line, &r->options.skip_bad_lines) != FSDP_OK)
        return fsdp__usage_error("tokenize: %s", fsdp_last_error());
    if (read_separator(r) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    r->options.threads = (int)threads;
    r->input_count = args.positional_count;
    return tokenize(r);
}

int fsdp__cmd_tokenize(int argc, char **argv)
{
    request r = {.inputs = fsdp__calloc((size_t)argc, sizeof *r.inputs)};
    int result = r.inputs ? with_line(&r, argc, argv) : fsdp__failure("%s", fsdp_last_error());

    FSDP__FREE_ALL(r.separator, r.inputs);
    return result;
}
