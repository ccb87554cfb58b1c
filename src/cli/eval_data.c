/* eval_data.c - what fsdp eval reads: tokens, text, conversations. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "chat/chat.h"
#include "cli/conversations.h"
#include "cli/eval.h"
#include "cli/token_text.h"
#include "data/token_cache.h"
#include "data/token_file.h"
#include "data/tokens.h"
#include "parallel/degrees.h"

enum {
    USUAL_WINDOW = 1024 /* in tokens, if the model takes that many */
};

/* ---- text of a model that has a tokenizer ---- */

static void draw_tokens(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    fsdp__eval *e = arg;

    (void)tokens;
    if (bytes > 0)
        fsdp__bar_draw(&e->bar, bytes, all_bytes);
}

/* Opens what the cache has, or what another process has found there. */
static fsdp_status open_own(fsdp__eval *e, const char *path)
{
    bool rows = false;

    FSDP_TRY(fsdp__rows_are_at(path, &rows));
    return rows ? fsdp__rows_open_own(path, &e->opened.rows) : fsdp__tokens_open_own(path, &e->opened.tokens);
}

/* Finds or makes the tokens of the text. Those that a training run has made are found, too. */
static fsdp_status get_tokens(fsdp__eval *e, const fsdp_tokenizer *tokenizer, fsdp__cached_tokens *cached)
{
    const char *folder = e->tokenizer ? e->tokenizer : e->folder.path;
    fsdp_tokenize_options options = {.field = e->field,
                                     .skip_bad_lines = e->skips_bad_lines,
                                     .learn_all = e->packing.all,
                                     .progress = draw_tokens,
                                     .progress_arg = e};
    FSDP__SCOPED(fsdp_chat_close_at) fsdp_chat *chat = NULL;

    if (e->format != FSDP_TOKENS_TEXT)
        FSDP_TRY(fsdp__conversations_open(folder, tokenizer, e->chat_template, &e->data, 1, &options, &chat));
    options.no_eos = fsdp_tokenizer_eos(tokenizer) < 0 && !chat;
    return fsdp__token_cache_get(tokenizer, &e->data, 1, e->cache ? e->cache : e->own_cache, true, &options, cached);
}

static fsdp_status tokenize(fsdp__eval *e, const fsdp_tokenizer *tokenizer)
{
    fsdp__cached_tokens cached;
    fsdp_status status;

    if (!e->cache)
        FSDP_TRY(fsdp__cache_folder(&e->own_cache));
    if (!e->cache && !e->own_cache)
        return FSDP_FAIL(FSDP_INVALID, "--data '%s' is text: name a folder for its tokens with --cache", e->data);
    snprintf(e->bar.note, sizeof e->bar.note, "bytes to tokens");
    fsdp__bar_begin(&e->bar);
    status = get_tokens(e, tokenizer, &cached);
    fsdp__bar_clear(&e->bar);
    e->bar.note[0] = '\0';
    FSDP_TRY(fsdp_fail_prefix(status, "--data"));
    e->tokens_path = cached.path;
    if (cached.made && cached.damaged)
        (void)fsdp__failure("--data: its tokens were made again, because the file of them was damaged: '%s'",
                            cached.path);
    if (cached.left_out[0])
        (void)fsdp__failure("warning: --data: %s", cached.left_out);
    FSDP_TRY(open_own(e, cached.path));
    if (e->opened.rows)
        fsdp__rows_name_text(e->opened.rows, e->data);
    return FSDP_OK;
}

static fsdp_status open_files(fsdp__eval *e, fsdp_token_format format)
{
    bool rows = false;
    fsdp_status status = e->rank_data ? open_own(e, e->rank_data) : fsdp__rows_are_at(e->data, &rows);

    if (status == FSDP_OK && !e->rank_data)
        status =
            rows ? fsdp__rows_open(e->data, &e->opened.rows) : fsdp_tokens_open(&e->data, 1, format, &e->opened.tokens);
    if (status == FSDP_OK && e->opened.tokens)
        status = fsdp__tokens_check_width(e->opened.tokens, e->config.vocab_size);
    FSDP_TRY(fsdp_fail_prefix(status, "--data"));
    if (!e->rank_path && e->opened.tokens && fsdp_tokens_warning(e->opened.tokens))
        (void)fsdp__failure("warning: --data: %s", fsdp_tokens_warning(e->opened.tokens));
    return FSDP_OK;
}

/* Returns the first option that is given and only what a tokenizer reads has; NULL: none is. */
static const char *option_of_text(const fsdp__eval *e)
{
    return e->field ? "field" : e->bad_line_text ? "on-bad-line" : e->cache ? "cache" : NULL;
}

static fsdp_status read_text(fsdp__eval *e)
{
    FSDP__SCOPED(fsdp__token_text_close) fsdp__token_text text;
    fsdp_status status = fsdp__token_text_open(e->folder.path, e->tokenizer, e->config.vocab_size, &text);

    if (status != FSDP_OK && e->tokenizer)
        return fsdp_fail_prefix(status, "--tokenizer");
    if (status == FSDP_NOT_FOUND)
        return FSDP_FAIL(FSDP_INVALID,
                         "--data '%s' is text, but '%s' has neither a tokenizer (tokenizer.json, or vocab.json and "
                         "merges.txt) nor a vocabulary of bytes, but one of %lld: give a file of its tokens, or name a "
                         "tokenizer with --tokenizer (bytes: its bytes are its tokens)",
                         e->data, e->folder.path, (long long)e->config.vocab_size);
    FSDP_TRY(status);
    if (!text.tokenizer && !e->rank_data && option_of_text(e))
        return FSDP_FAIL(
            FSDP_INVALID,
            "--%s is for what a tokenizer reads, but the bytes of --data '%s' are its tokens: leave it out",
            option_of_text(e), e->data);
    return text.tokenizer ? tokenize(e, text.tokenizer) : open_files(e, FSDP_TOKENS_TEXT);
}

/* ---- what is there ---- */

/* Chooses the tokens of a window, where they are not given. Of a pair each answer has the positions for itself. */
static fsdp_status choose_window(fsdp__eval *e)
{
    int64_t rows = fsdp__eval_is_pairs(e) ? 2 : 1, most = rows * e->config.max_seq_len;

    if (e->options.seq_len == 0)
        e->options.seq_len = FSDP__MIN(most, rows * USUAL_WINDOW);
    if (e->cp > 1)
        FSDP_TRY(fsdp__check_cut_length("--seq-len", e->options.seq_len, (fsdp__degree){"--context-parallel", e->cp}));
    if (e->options.seq_len <= most)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "--seq-len %lld is more than %sthe %lld positions of '%s'",
                     (long long)e->options.seq_len, rows == 2 ? "twice " : "", (long long)e->config.max_seq_len,
                     e->folder.path);
}

/* Says how pairs are cut, and refuses what is not for them. */
static fsdp_status check_pairs(fsdp__eval *e)
{
    if (!fsdp__eval_is_pairs(e))
        return FSDP_OK;
    if (e->packing.all)
        return FSDP_FAIL(FSDP_INVALID,
                         "--train-on is all, but --data '%s' has pairs, whose answers are compared: leave "
                         "it out",
                         e->data);
    if (e->packing.long_row != FSDP_LONG_ROW_ERROR && e->packing.long_row != FSDP_LONG_ROW_SKIP)
        return FSDP_FAIL(FSDP_INVALID,
                         "--on-long-row is %s, but --data '%s' has pairs, which are not cut: give error "
                         "or skip",
                         e->long_row_text, e->data);
    e->packing.packing = FSDP_PACKING_PAIRS;
    return FSDP_OK;
}

/* Packs conversations, and refuses what is said of them where there are none. */
static fsdp_status pack(fsdp__eval *e)
{
    const char *option = e->chat_template ? "chat-template" : e->train_on ? "train-on" : NULL;

    FSDP_TRY(choose_window(e));
    option = option || !e->long_row_text ? option : "on-long-row";
    if (!e->opened.rows && option)
        return FSDP_FAIL(FSDP_INVALID, "--%s is for conversations, but --data '%s' is text or tokens: leave it out",
                         option, e->data);
    if (!e->opened.rows)
        return fsdp__eval_find_reference(e);
    if (e->opened.rows->learned == 0 && !e->packing.all)
        return FSDP_FAIL(FSDP_INVALID,
                         "no token of --data '%s' is an answer, which the role assistant gives in messages, and gpt in "
                         "conversations: --train-on all takes all tokens",
                         e->data);
    FSDP_TRY(check_pairs(e));
    FSDP_TRY(fsdp__eval_find_reference(e));
    e->packing.seq_len = e->options.seq_len;
    if (fsdp__pack(e->opened.rows, &e->packing, &e->packed) == FSDP_OK)
        return FSDP_OK;
    return fsdp_fail_prefix(fsdp_last_status(), "--data");
}

fsdp_status fsdp__eval_open_data(fsdp__eval *e)
{
    int64_t text, tokens;

    FSDP_TRY(fsdp_fail_prefix(fsdp__token_files_count_text(&e->data, 1, e->format, &text, &tokens), "--data"));
    if (text > 0 && tokens > 0)
        return FSDP_FAIL(FSDP_INVALID, "--data '%s' is %lld files of text and %lld of tokens: name only one kind",
                         e->data, (long long)text, (long long)tokens);
    if (text == 0 && !e->rank_data && (e->tokenizer || option_of_text(e)))
        return FSDP_FAIL(FSDP_INVALID, "--%s is for text, but --data '%s' is tokens: leave it out",
                         e->tokenizer ? "tokenizer" : option_of_text(e), e->data);
    FSDP_TRY(text > 0 ? read_text(e) : open_files(e, e->format));
    FSDP_TRY(pack(e));
    if (e->packed || fsdp_tokens_count(e->opened.tokens) >= 2)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "--data '%s' has only one token, and none to predict from it", e->data);
}

void fsdp__eval_print_data(const fsdp__eval *e)
{
    if (e->packed)
        fsdp__conversations_describe(e->packed, e->options.local_batch);
    else
        printf("data:   %s tokens, in windows of %lld, %lld a batch\n",
               FSDP__THOUSANDS(fsdp_tokens_count(e->opened.tokens)), (long long)e->options.seq_len,
               (long long)e->options.local_batch);
}
