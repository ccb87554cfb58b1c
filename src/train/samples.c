/* samples.c - continues a prompt every few steps. */
#include "train/run_start.h"
#include "train/run_steps.h"

#include <string.h>

#include "base/alloc.h"
#include "fsdp/generate.h"
#include "fsdp/tokenizer.h"

struct fsdp__samples {
    fsdp_tokenizer *tokenizer; /* NULL: tokens are bytes */
    fsdp_token_list prompt;
    int32_t *tokens; /* the prompt, and room for what is generated */
    int32_t stop[FSDP_MODEL_MAX_EOS_TOKENS];
    int64_t stop_count;
};

void fsdp__samples_release(fsdp_train_run *run)
{
    fsdp__samples *s = run->samples;

    run->samples = NULL;
    if (!s)
        return;
    fsdp_token_list_release(&s->prompt);
    fsdp_tokenizer_close(s->tokenizer);
    FSDP__FREE_ALL(s->tokens, s);
}

/* Makes tokens of the prompt as the data's were made. */
static fsdp_status encode(const fsdp_train_run *run, fsdp__samples *s)
{
    static const fsdp_encode_options options = {.add_specials = true};
    const char *prompt = run->config->metrics.sample_prompt;
    size_t bytes = strlen(prompt);

    if (run->tokenizer) {
        FSDP_TRY(fsdp_tokenizer_open(run->tokenizer, &s->tokenizer));
        FSDP_TRY(fsdp_tokenizer_encode(s->tokenizer, prompt, bytes, &options, &s->prompt));
    } else if (!fsdp__train_has_bytes(run)) {
        return FSDP_FAIL(FSDP_INVALID, "metrics.sample_prompt: data.path has tokens, and there is no tokenizer to make "
                                       "them of the prompt: set model.path to a folder that has one");
    }
    FSDP__TRY_NEW(s->tokens = fsdp__calloc(bytes + (size_t)(s->prompt.count + run->config->metrics.sample_tokens),
                                           sizeof *s->tokens));
    for (int64_t i = 0; i < s->prompt.count; i++)
        s->tokens[i] = s->prompt.ids[i];
    if (run->tokenizer)
        return FSDP_OK;
    for (size_t i = 0; i < bytes; i++)
        s->tokens[i] = (unsigned char)prompt[i];
    s->prompt.count = (int64_t)bytes;
    return FSDP_OK;
}

static fsdp_status open_samples(fsdp_train_run *run)
{
    const fsdp_model_config *m = &run->model_config;
    fsdp__samples *s = run->samples;

    FSDP_TRY(encode(run, s));
    if (s->prompt.count < 1)
        return FSDP_FAIL(FSDP_INVALID, "metrics.sample_prompt: '%s' has no token to begin with",
                         run->config->metrics.sample_prompt);
    for (int64_t i = 0; i < s->prompt.count; i++)
        if (s->tokens[i] >= m->vocab_size)
            return FSDP_FAIL(FSDP_INVALID,
                             "metrics.sample_prompt: token %lld is %d, which a model of %lld tokens does not have",
                             (long long)i, (int)s->tokens[i], (long long)m->vocab_size);
    for (int i = 0; i < m->eos_token_count && s->tokenizer; i++)
        s->stop[s->stop_count++] = (int32_t)m->eos_tokens[i];
    return FSDP_OK;
}

fsdp_status fsdp__samples_open(fsdp_train_run *run)
{
    if (!run->config->metrics.sample_prompt)
        return FSDP_OK;
    run->samples = fsdp__calloc(1, sizeof *run->samples);
    return run->samples ? open_samples(run) : FSDP_NO_MEMORY;
}

/* ---- a sample ---- */

/* Makes text of all tokens; fsdp__free it. */
static fsdp_status decode(const fsdp__samples *s, int64_t count, char **out)
{
    char *text;

    if (s->tokenizer)
        return fsdp_tokenizer_decode(s->tokenizer, s->tokens, count, NULL, out, &(size_t){0});
    FSDP__TRY_NEW(text = fsdp__malloc((size_t)count + 1));
    for (int64_t i = 0; i < count; i++)
        text[i] = s->tokens[i] > 0 && s->tokens[i] < 256 ? (char)s->tokens[i] : '?';
    text[count] = '\0';
    *out = text;
    return FSDP_OK;
}

static fsdp_status write_sample(fsdp_train_run *run, int64_t count)
{
    FSDP__FREED char *text = NULL;

    FSDP_TRY(decode(run->samples, count, &text));
    (void)fsdp__metrics_write_text(run->metrics, run->step, "sample", text);
    return FSDP_OK;
}

fsdp_status fsdp__samples_after_step(fsdp_train_run *run)
{
    fsdp__samples *s = run->samples;
    fsdp_generate_options options = {.reshard = true};
    int64_t count;
    fsdp_status status;

    if (!s || run->step % run->config->metrics.sample_freq != 0)
        return FSDP_OK;
    options.max_new_tokens = run->config->metrics.sample_tokens;
    options.stop_tokens = s->stop;
    options.stop_token_count = s->stop_count;
    count = s->prompt.count;
    status = fsdp_generate(run->model, s->tokens, &count, &options, NULL, NULL);
    if (status == FSDP_NOT_FINITE) { /* on all ranks: they have the same weights. training.on_nan decides about them */
        (void)fsdp__metrics_write_text(run->metrics, run->step, "sample", fsdp_last_error());
        fsdp_clear_error();
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_fail_prefix(status, "metrics.sample_prompt after step %lld", (long long)run->step));
    return run->metrics ? write_sample(run, count) : FSDP_OK;
}
