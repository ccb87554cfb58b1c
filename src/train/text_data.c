/* text_data.c - data that is text: a tokenizer turns it into tokens before a run, in a folder of caches; otherwise its
 * bytes are the tokens. */
#include "train/run_start.h"

#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "data/conversations.h"
#include "data/token_cache.h"
#include "data/token_file.h"
#include "data/tokens.h"
#include "fsdp/tokenizer.h"
#include "train/inputs.h"

enum {
    MAX_TEMPLATE = 4 << 20, /* fsdp_chat_open has read it: it is smaller */
    NEWS_SECONDS = 5
};

/* ---- which tokenizer ---- */

const char *fsdp__text_tokenizer_folder(const fsdp_train_run *run)
{
    struct stat info;

    if (fsdp__inputs_are_bytes(run->config))
        return NULL;
    return run->tokenizer && stat(run->tokenizer, &info) == 0 && S_ISDIR(info.st_mode) ? run->tokenizer
                                                                                       : run->config->model.path;
}

/* ---- news ---- */

/* Holds what a rank reports while it makes tokens. */
typedef struct news {
    const fsdp_train_run *run;
    const char *key;
    bool no_eos;
    int64_t said_ns;
} news;

static void tell_progress(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    news *n = arg;
    int64_t now = fsdp__clock_ns();

    if (now - n->said_ns < (int64_t)NEWS_SECONDS * 1000000000)
        return;
    n->said_ns = now;
    fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: %.0f%% of the text, %s tokens", n->key,
             100 * (double)bytes / (double)(all_bytes > 0 ? all_bytes : 1), FSDP__THOUSANDS(tokens));
}

/* Reports the result: a rank that made the tokens does so; of those that found them, only rank 0. */
static void tell_result(const news *n, const fsdp__cached_tokens *cached)
{
    if (cached->made)
        fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: %s tokens made%s, kept in '%s'", n->key,
                 FSDP__THOUSANDS(cached->summary.tokens),
                 cached->damaged ? " again, because the file of them was damaged" : "", cached->path);
    else if (fsdp_context_rank(n->run->context) == 0)
        fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: tokens of this text exist already: '%s'", n->key, cached->path);
    if (cached->made && cached->summary.left_out_bytes > 0)
        fsdp_log(n->run->context, FSDP_LOG_WARNING,
                 "%s: %lld bytes of the text have no token in this vocabulary, and were left out", n->key,
                 (long long)cached->summary.left_out_bytes);
    if (cached->made && n->no_eos)
        fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: the tokenizer has no end-of-text token to put after documents",
                 n->key);
    if (cached->left_out[0] && fsdp_context_rank(n->run->context) == 0)
        fsdp_log(n->run->context, FSDP_LOG_WARNING, "%s: %s", n->key, cached->left_out);
}

/* ---- text to tokens ---- */

static fsdp_status check_vocabulary(const fsdp_train_run *run, const fsdp_tokenizer *tokenizer)
{
    int64_t needed = fsdp_tokenizer_vocab_size(tokenizer);

    if (needed <= run->model_config.vocab_size)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "data.tokenizer: '%s' has %lld tokens, but the model has a vocabulary of %lld: name the model's "
                     "tokenizer, or, for a new model, set model.vocab_size=%lld",
                     run->tokenizer, (long long)needed, (long long)run->model_config.vocab_size, (long long)needed);
}

/* Holds what the files of a key are: texts, or conversations. */
typedef struct text_files {
    const char *key;
    char *const *paths;
    int64_t count;
    fsdp_chat_kind kind; /* NONE: texts */
    fsdp_chat *chat;     /* NULL: none is needed */
} text_files;

/* Opens the chat of the tokenizer's folder, and says what the rows are. */
static fsdp_status open_chat(const fsdp_train_run *run, const fsdp_tokenizer *tokenizer, text_files *files)
{
    const char *folder = fsdp__text_tokenizer_folder(run), *file = run->config->data.chat_template;
    fsdp_status status;

    if (files->kind == FSDP_CHAT_NONE)
        return FSDP_OK;
    status = fsdp_chat_open(folder, tokenizer, file, &files->chat);
    FSDP_TRY(fsdp_fail_prefix(status, "%s", file ? "data.chat_template" : files->key));
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO, "%s: rows of %s; %s '%s'", files->key, fsdp_chat_kind_name(files->kind),
                 fsdp_chat_has_template(files->chat) ? "the chat template is that of" : "there is no chat template in",
                 file     ? file
                 : folder ? folder
                          : run->tokenizer);
    return FSDP_OK;
}

/* Notes what the model learns to talk by: an export must have it, though the file may be gone by then. */
static fsdp_status note_talk(fsdp_train_run *run, const fsdp_chat *chat)
{
    const char *file = run->config->data.chat_template;
    size_t bytes = 0;
    int32_t end_of_turn;

    if (!chat || run->talks)
        return FSDP_OK;
    if (file)
        FSDP_TRY(fsdp__file_read(file, MAX_TEMPLATE, &run->chat_template, &bytes));
    FSDP_TRY(fsdp_chat_end_of_turn(chat, &end_of_turn));
    run->talk = (fsdp__hub_talk){.chat_template = run->chat_template, .end_of_turn = end_of_turn};
    run->talks = true;
    return FSDP_OK;
}

/* Opens what the cache has. */
static fsdp_status open_made(const text_files *files, const fsdp__cached_tokens *cached, fsdp__open_data *out)
{
    if (files->chat) {
        FSDP_TRY(fsdp__rows_open_own(cached->path, &out->rows));
        if (files->count == 1)
            fsdp__rows_name_text(out->rows, files->paths[0]);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__tokens_open_own(cached->path, &out->tokens));
    fsdp__tokens_name_text(out->tokens, files->paths[0], files->count > 1);
    return FSDP_OK;
}

/* Returns the folder for tokens of text; NULL: there is none. */
static const char *cache_of(const fsdp_train_config *c)
{
    return c->data.cache ? c->data.cache : c->usual_cache;
}

static fsdp_status open_cached(const fsdp_train_run *run, const fsdp_tokenizer *tokenizer, const text_files *files,
                               fsdp__open_data *out)
{
    const char *key = files->key;
    const fsdp_train_config *c = run->config;
    news n = {.run = run,
              .key = key,
              .no_eos = fsdp_tokenizer_eos(tokenizer) < 0 && !files->chat,
              .said_ns = fsdp__clock_ns()};
    fsdp_tokenize_options options = {.field = c->data.field,
                                     .no_eos = n.no_eos,
                                     .skip_bad_lines = c->data.skip_bad_lines == 1,
                                     .progress = tell_progress,
                                     .progress_arg = &n,
                                     .chat = files->chat,
                                     .chat_kind = files->kind,
                                     .learn_all = c->data.train_on == FSDP_TRAIN_ON_ALL};
    fsdp__cached_tokens cached;
    fsdp_status status =
        fsdp__token_cache_get(tokenizer, (const char *const *)files->paths, (int)files->count, cache_of(c),
                              fsdp_context_local_rank(run->context) == 0, &options, &cached);

    FSDP_TRY(fsdp_fail_prefix(status, "%s", key));
    tell_result(&n, &cached);
    status = open_made(files, &cached, out);
    fsdp__free(cached.path);
    return status;
}

static fsdp_status open_text(fsdp_train_run *run, text_files *files, fsdp__open_data *out)
{
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_status status;

    if (!cache_of(run->config))
        return FSDP_FAIL(FSDP_INVALID,
                         "%s is text, which the tokenizer of '%s' turns into tokens, but data.cache is not set: name a "
                         "folder for them (data.tokenizer: bytes needs none)",
                         files->key, run->tokenizer);
    FSDP_TRY(fsdp_fail_prefix(fsdp_tokenizer_open(run->tokenizer, &tokenizer), "data.tokenizer"));
    status = check_vocabulary(run, tokenizer);
    if (status == FSDP_OK)
        status = open_chat(run, tokenizer, files);
    if (status == FSDP_OK)
        status = note_talk(run, files->chat);
    if (status == FSDP_OK)
        status = open_cached(run, tokenizer, files, out);
    fsdp_chat_close(files->chat);
    fsdp_tokenizer_close(tokenizer);
    run->tokenizes = status == FSDP_OK;
    return status;
}

/* ---- tokens, and bytes ---- */

/* Warns where nobody has said that the tokens are bytes, and a model with weights may know others. */
static void warn_of_bytes(const fsdp_train_run *run, const char *key)
{
    const fsdp_train_config *c = run->config;
    const char *weights = c->checkpoint.initial_load_path             ? c->checkpoint.initial_load_path
                          : c->model.path && c->model.pretrained != 0 ? c->model.path
                                                                      : NULL;

    if (!weights || c->data.tokenizer || run->model_config.vocab_size == 256)
        return;
    fsdp_log(run->context, FSDP_LOG_WARNING,
             "%s: the model in '%s' has no tokenizer: bytes of text are its tokens; if it was trained on other tokens, "
             "set data.tokenizer",
             key, weights);
}

static fsdp_status open_files(const fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                              fsdp_tokens **out)
{
    const fsdp_train_config *c = run->config;
    fsdp_status status = fsdp_tokens_open((const char *const *)paths, (int)count, fsdp__inputs_token_format(c), out);

    if (status == FSDP_OK)
        status = fsdp__tokens_check_width(*out, run->model_config.vocab_size);
    FSDP_TRY(fsdp_fail_prefix(status, "%s", key));
    if (fsdp_context_rank(run->context) == 0 && fsdp_tokens_warning(*out))
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s: %s", key, fsdp_tokens_warning(*out));
    if (fsdp_context_rank(run->context) == 0 && fsdp_tokens_have_text(*out))
        warn_of_bytes(run, key);
    return FSDP_OK;
}

/* Opens rows where the only path is a file of them. */
static fsdp_status open_rows(const char *key, char *const *paths, int64_t count, fsdp__open_data *out)
{
    bool are = false;
    fsdp_status status = count == 1 ? fsdp__rows_are_at(paths[0], &are) : FSDP_OK;

    if (status == FSDP_OK && are)
        status = fsdp__rows_open(paths[0], &out->rows);
    return fsdp_fail_prefix(status, "%s", key);
}

/* Opens the chat of the tokenizer's folder; NULL: it has no template, or cannot be read. */
static fsdp_status open_template(const fsdp_train_run *run, fsdp_tokenizer **tokenizer, fsdp_chat **chat)
{
    const char *file = run->config->data.chat_template;
    fsdp_status status = FSDP_OK;

    if (file && !run->tokenizer)
        return FSDP_FAIL(FSDP_INVALID,
                         "data.chat_template is '%s', but there is no tokenizer for it: set data.tokenizer to that of "
                         "the rows, or leave this out",
                         file);
    if (run->tokenizer)
        status = fsdp_tokenizer_open(run->tokenizer, tokenizer);
    if (status == FSDP_OK && *tokenizer)
        status = fsdp_chat_open(fsdp__text_tokenizer_folder(run), *tokenizer, file, chat);
    if (status == FSDP_NO_MEMORY || (status != FSDP_OK && file))
        return file ? fsdp_fail_prefix(status, "data.chat_template") : status;
    if (fsdp_chat_has_template(*chat))
        return FSDP_OK;
    fsdp_chat_close(fsdp__take(chat));
    return FSDP_OK;
}

/* Notes what the model learns to talk by, of rows that are ready: they do not say how they were made, so the
 * tokenizer's folder, or data.chat_template, is taken at its word. */
static fsdp_status note_talk_of_rows(fsdp_train_run *run, const char *key)
{
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_chat *chat = NULL;
    fsdp_status status = run->talks ? FSDP_OK : open_template(run, &tokenizer, &chat);

    if (status == FSDP_OK)
        status = note_talk(run, chat);
    if (status == FSDP_OK && fsdp_context_rank(run->context) == 0 && chat)
        fsdp_log(run->context, FSDP_LOG_INFO,
                 "%s: rows do not say by which chat template they were made: the model is left with that of '%s' "
                 "(data.chat_template names another)",
                 key, run->config->data.chat_template ? run->config->data.chat_template : run->tokenizer);
    else if (status == FSDP_OK && fsdp_context_rank(run->context) == 0 && !run->talks)
        fsdp_log(run->context, FSDP_LOG_INFO,
                 "%s: rows do not say by which chat template they were made, and none is known: the model is left "
                 "without one, and without an end of turn (data.tokenizer and data.chat_template name them)",
                 key);
    fsdp_chat_close(chat);
    fsdp_tokenizer_close(tokenizer);
    return status;
}

/* Finds out what conversations the files are, if the config lets them be some. */
static fsdp_status look_at_rows(const fsdp_train_config *c, char *const *paths, int64_t count, fsdp_chat_kind *out)
{
    bool held;
    fsdp_status status;

    *out = FSDP_CHAT_NONE;
    if (c->data.field || c->data.format == FSDP_TRAIN_TEXT || fsdp__inputs_are_bytes(c))
        return FSDP_OK;
    held = fsdp_hold_error(true);
    status = fsdp__conversations_kind((const char *const *)paths, count, out);
    fsdp_release_error(held);
    return status;
}

/* Finds out whether the files are conversations. Where they cannot be read, what opens them tells why. Conversations
 * are never learned as bytes unless that was said. */
static fsdp_status find_kind(const fsdp_train_run *run, text_files *files)
{
    const fsdp_train_config *c = run->config;
    fsdp_status status = look_at_rows(c, files->paths, files->count, &files->kind);

    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(status, "%s: no memory to look at '%s'", files->key, files->paths[0]);
    if (status != FSDP_OK || files->kind == FSDP_CHAT_NONE || run->tokenizer)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_INVALID,
        "%s: '%s' has rows of %s, which a tokenizer turns into tokens, and there is none: set "
        "data.tokenizer to a folder with a tokenizer and a chat template (data.tokenizer: bytes learns the "
        "bytes of the file, braces and all)",
        files->key, files->paths[0], fsdp_chat_kind_name(files->kind));
}

fsdp_status fsdp__text_open(fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                            fsdp__open_data *out)
{
    text_files files = {.key = key, .paths = paths, .count = count};
    int64_t text = 1, tokens = 0;

    FSDP_TRY(open_rows(key, paths, count, out));
    if (out->rows)
        return note_talk_of_rows(run, key);
    FSDP_TRY(find_kind(run, &files));
    if (run->config->data.field && !run->tokenizer)
        return FSDP_FAIL(FSDP_INVALID,
                         "data.field is '%s', a field of JSON lines, which only a tokenizer reads, and there is none: "
                         "set data.tokenizer",
                         run->config->data.field);
    if (fsdp__inputs_are_bytes(run->config))
        return open_files(run, key, paths, count, &out->tokens);
    if (!run->config->data.tokenizer && run->tokenizer) {
        FSDP_TRY(fsdp_fail_prefix(fsdp__token_files_count_text((const char *const *)paths, count,
                                                               fsdp__inputs_token_format(run->config), &text, &tokens),
                                  "%s", key));
    }
    if (text > 0 && tokens > 0 && run->tokenizer)
        return FSDP_FAIL(
            FSDP_INVALID,
            "%s has %lld files of text, for the tokenizer of '%s', and %lld files of tokens: name only one kind", key,
            (long long)text, run->tokenizer, (long long)tokens);
    return text > 0 && run->tokenizer ? open_text(run, &files, out) : open_files(run, key, paths, count, &out->tokens);
}

bool fsdp__text_is_rows(const fsdp_train_config *config, char *const *paths, int64_t count)
{
    fsdp_chat_kind kind = FSDP_CHAT_NONE;
    bool are = false, held;

    if (count < 1)
        return false;
    held = fsdp_hold_error(true);
    if (count == 1)
        (void)fsdp__rows_are_at(paths[0], &are);
    fsdp_release_error(held);
    return are || (look_at_rows(config, paths, count, &kind) == FSDP_OK && kind != FSDP_CHAT_NONE);
}
