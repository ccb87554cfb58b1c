/* conversations.c - what a user needs to trust the mask. */
#include "cli/conversations.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/text.h"
#include "data/conversations.h"
#include "train/evaluate.h"

#define BEGIN "\xe2\x9f\xa6"
#define END "\xe2\x9f\xa7"

fsdp_status fsdp__conversations_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file,
                                     const char *const *paths, int count, fsdp_tokenize_options *options,
                                     fsdp_chat **out)
{
    struct stat info;
    bool is_folder = stat(folder, &info) == 0 && S_ISDIR(info.st_mode);

    *out = NULL;
    if (options->field)
        return FSDP_OK;
    FSDP_TRY(fsdp__conversations_kind(paths, count, &options->chat_kind));
    if (options->chat_kind == FSDP_CHAT_NONE)
        return FSDP_OK;
    FSDP_TRY(fsdp_chat_open(is_folder ? folder : NULL, tokenizer, file, out));
    options->chat = *out;
    return FSDP_OK;
}

void fsdp__conversations_describe(const fsdp__packed *packed, int64_t batch)
{
    long long seq_len = (long long)packed->options.seq_len;

    printf("data:   %s %s of %s tokens, of which %s count (%s), in %s windows of %lld, %lld a batch\n",
           FSDP__THOUSANDS(packed->row_count / (packed->rows->pairs ? 2 : 1)),
           packed->rows->pairs ? "pairs" : "conversations", FSDP__THOUSANDS(packed->tokens),
           FSDP__THOUSANDS(fsdp__evaluate_answers(packed, 0)), packed->options.all ? "--train-on all" : "the answers",
           FSDP__THOUSANDS(packed->windows), seq_len, (long long)batch);
    if (packed->left_out > 0)
        printf("long:   %s of more than %lld tokens; %s tokens are not used\n",
               FSDP__THOUSANDS(packed->long_rows / (packed->rows->pairs ? 2 : 1)), seq_len,
               FSDP__THOUSANDS(packed->left_out));
}

typedef struct showing {
    const fsdp__shown_rows *shown;
    const fsdp_tokenizer *tokenizer;
    const fsdp_chat *chat;
    FILE *to;
    int64_t done;
    fsdp_chat_row row;
    fsdp_status status;
} showing;

static fsdp_status print_tokens(const showing *s, int64_t begin, int64_t end)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp_tokenizer_decode(s->tokenizer, s->row.ids.ids + begin, end - begin, NULL, &text, &bytes));
    (void)fwrite(text, 1, bytes, s->to);
    return FSDP_OK;
}

static fsdp_status show(showing *s, const char *path, int64_t line, const char *text, size_t bytes, bool rejected)
{
    bool all = s->shown->learn_all && fsdp_chat_recognise(text, bytes) != FSDP_CHAT_PREFERENCE;
    const fsdp_chat_options options = {.no_mask = all, .rejected = rejected, .refuse_unwritten = true};
    const fsdp_chat_row *row = &s->row;

    FSDP_TRY(fsdp_fail_prefix(fsdp_chat_encode(s->chat, NULL, text, bytes, &options, &s->row),
                              "cannot read '%s': line %lld", path, (long long)line));
    fprintf(s->to, "%s:%lld: %lld tokens, %lld of them learned\n", path, (long long)line, (long long)row->ids.count,
            (long long)(row->ids.count > 0 ? (all ? row->ids.count - 1 : row->answers - row->learned[0]) : 0));
    for (int64_t begin = 0, end; begin < row->ids.count; begin = end) {
        bool learned = begin > 0 && (all || row->learned[begin]);

        for (end = begin + 1; end < row->ids.count && (all || row->learned[end]) == learned;)
            end++;
        (void)fputs(learned ? BEGIN : "", s->to);
        FSDP_TRY(print_tokens(s, begin, end));
        (void)fputs(learned ? END : "", s->to);
    }
    (void)fputs(row->text_bytes && row->text[row->text_bytes - 1] == '\n' ? "\n" : "\n\n", s->to);
    return FSDP_OK;
}

static bool show_next(void *arg, const char *path, int64_t line, const char *text, size_t bytes)
{
    showing *s = arg;

    if (strspn(text, " \t\r\n") >= bytes)
        return true;
    s->status = show(s, path, line, text, bytes, false);
    if (s->status == FSDP_OK && fsdp_chat_recognise(text, bytes) == FSDP_CHAT_PREFERENCE)
        s->status = show(s, path, line, text, bytes, true);
    return s->status == FSDP_OK && ++s->done < s->shown->rows;
}

fsdp_status fsdp__conversations_show(const fsdp__shown_rows *shown, const fsdp_tokenizer *tokenizer,
                                     const fsdp_chat *chat, FILE *to)
{
    showing s = {.shown = shown, .tokenizer = tokenizer, .chat = chat, .to = to};
    fsdp_status status = fsdp__conversations_lines(shown->paths, shown->count, show_next, &s);

    fsdp_chat_row_release(&s.row);
    FSDP_TRY(status);
    return s.status;
}
