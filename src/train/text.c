/* text.c - data that is text, which a tokenizer turns into tokens before a run: in a folder of caches. */
#include "train/run.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "data/token_cache.h"
#include "fsdp/tokenizer.h"
#include "hub/hold.h"
#include "train/inputs.h"

enum {
    NEWS_SECONDS = 5
};

const char *fsdp__text_tokenizer(const fsdp_train_config *config)
{
    const char *named = config->data.tokenizer;

    return named && strcmp(named, "model") == 0 ? config->model.path : named;
}

/* What a rank says while it makes tokens. */
typedef struct news {
    const fsdp_train_run *run;
    const char *key;
    int64_t said_ns;
} news;

static void tell_progress(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    news *n = arg;
    int64_t now = fsdp__clock_ns();
    char text[32];

    if (now - n->said_ns < (int64_t)NEWS_SECONDS * 1000000000)
        return;
    n->said_ns = now;
    fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: %.0f%% of the text, %s tokens", n->key,
             100 * (double)bytes / (double)(all_bytes > 0 ? all_bytes : 1), fsdp__thousands(tokens, text, sizeof text));
}

/* One that makes them says so; of those that find them, rank 0. */
static void tell_result(const news *n, const fsdp__cached_tokens *cached)
{
    char text[32];

    if (cached->made)
        fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: %s tokens made, kept in '%s'", n->key,
                 fsdp__thousands(cached->summary.tokens, text, sizeof text), cached->path);
    else if (fsdp_context_rank(n->run->context) == 0)
        fsdp_log(n->run->context, FSDP_LOG_INFO, "%s: tokens of this text are there: '%s'", n->key, cached->path);
    if (cached->made && cached->summary.left_out_bytes > 0)
        fsdp_log(n->run->context, FSDP_LOG_WARNING,
                 "%s: %lld bytes of the text have no token in this vocabulary, and were left out", n->key,
                 (long long)cached->summary.left_out_bytes);
}

static fsdp_status check_vocabulary(const fsdp_train_run *run, const char *folder, const fsdp_tokenizer *tokenizer)
{
    int64_t needed = fsdp_tokenizer_vocab_size(tokenizer);

    if (needed <= run->model_config.vocab_size)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "data.tokenizer: '%s' has %lld tokens, and the model a vocabulary of %lld: name the model's "
                     "tokenizer, or, for a new model, set model.vocab_size=%lld",
                     folder, (long long)needed, (long long)run->model_config.vocab_size, (long long)needed);
}

static fsdp_status open_cached(const fsdp_train_run *run, const char *key, const fsdp_tokenizer *tokenizer,
                               char *const *paths, int64_t count, fsdp_tokens **out)
{
    const fsdp_train_config *c = run->config;
    news n = {.run = run, .key = key, .said_ns = fsdp__clock_ns()};
    fsdp_tokenize_options options = {.field = c->data.field, .progress = tell_progress, .progress_arg = &n};
    fsdp__cached_tokens cached;
    fsdp_status status = fsdp__token_cache_get(tokenizer, (const char *const *)paths, (int)count, c->data.cache,
                                               fsdp_context_local_rank(run->context) == 0, &options, &cached);

    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "%s", key);
    tell_result(&n, &cached);
    status = fsdp_tokens_open((const char *const *)&cached.path, 1, FSDP_TOKENS_BINARY, out);
    fsdp__free(cached.path);
    return status;
}

static fsdp_status open_text(const fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                             fsdp_tokens **out)
{
    const char *folder = fsdp__text_tokenizer(run->config);
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_status status;

    if (!run->config->data.cache)
        return FSDP_FAIL(FSDP_INVALID, "data.tokenizer: data.cache is not set: name a folder for the tokens");
    status = fsdp_tokenizer_open(folder, &tokenizer);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "data.tokenizer");
    status = check_vocabulary(run, folder, tokenizer);
    if (status == FSDP_OK)
        status = open_cached(run, key, tokenizer, paths, count, out);
    fsdp_tokenizer_close(tokenizer);
    return status;
}

/* Bytes are what the model of a byte-level tokenizer has never seen as tokens: its weights are of no use then. */
static void warn_of_bytes(const fsdp_train_run *run, const char *key, const fsdp_tokens *tokens)
{
    const char *folder = run->config->model.path;

    if (folder && fsdp_tokens_have_text(tokens) && fsdp__hub_has_tokenizer(folder))
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "%s: the tokens are the bytes of the text, and '%s' has a tokenizer: data.tokenizer: model makes its "
                 "tokens",
                 key, folder);
}

fsdp_status fsdp__text_open(const fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                            fsdp_tokens **out)
{
    if (fsdp__text_tokenizer(run->config))
        return open_text(run, key, paths, count, out);
    FSDP_TRY(fsdp_tokens_open((const char *const *)paths, (int)count, fsdp__inputs_token_format(run->config), out));
    if (fsdp_context_rank(run->context) != 0)
        return FSDP_OK;
    if (fsdp_tokens_warning(*out))
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s: %s", key, fsdp_tokens_warning(*out));
    warn_of_bytes(run, key, *out);
    return FSDP_OK;
}
