/* continuation.c - takes a prompt and a model, and generates the continuation. */
#include "cli/continuation.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "cli/finite_values.h"
#include "cli/own_process.h"
#include "device/device.h"
#include "hub/held_folder.h"
#include "launch/launch.h"
#include "nn/module.h"
#include "train/same_device.h"
#include "train/same_facts.h"

/* ---- the prompt ---- */

/* Reads comma-separated ids. The command line has been checked for their form. */
static fsdp_status read_ids(fsdp__continuation *c)
{
    size_t most = 1;
    char *at;

    for (const char *letter = c->ids; *letter; letter++)
        most += *letter == ',';
    c->tokens = fsdp__calloc(most + (size_t)c->options.max_new_tokens, sizeof *c->tokens);
    if (!c->tokens)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read --tokens");
    for (const char *text = c->ids; c->count < (int64_t)most; text = at + 1)
        c->tokens[c->count++] = (int32_t)strtol(text, &at, 10);
    return FSDP_OK;
}

/* Chooses whose tokenizer and template a talk has: the first adapter's, where that has brought its own. */
static void choose_tokenizer(fsdp__continuation *c)
{
    const char *first = fsdp__adapters_at(&c->adapters, 0);

    if (c->chat && !c->tokenizer && first && fsdp__hub_has_tokenizer(first))
        c->tokenizer = first;
}

/* Opens the talk; the prompt, if there is one, is its first message. */
static fsdp_status read_message(fsdp__continuation *c)
{
    const char *folder = c->tokenizer ? c->tokenizer : c->folder.path;

    if (!c->text.tokenizer)
        return FSDP_FAIL(FSDP_NOT_FOUND, "--chat needs a tokenizer, and '%s' has none: give --tokenizer FOLDER",
                         c->folder.path);
    FSDP_TRY(fsdp__talk_open(folder, c->text.tokenizer, c->chat_template, c->system, &c->talk));
    if (!c->prompt.text)
        return FSDP_OK;
    FSDP_TRY(fsdp_fail_prefix(fsdp__talk_say(&c->talk, "user", c->prompt.text), "--prompt"));
    return fsdp__talk_tokens(&c->talk, c->options.max_new_tokens, &c->tokens, &c->count);
}

static fsdp_status read_prompt(fsdp__continuation *c)
{
    choose_tokenizer(c);
    FSDP_TRY(fsdp__token_text_open(c->folder.path, c->tokenizer, c->config.vocab_size, &c->text));
    if (c->chat)
        return read_message(c);
    return fsdp__token_text_encode(&c->text, c->prompt.text, c->prompt.bytes, c->options.max_new_tokens, &c->tokens,
                                   &c->count);
}

/* Adds a token at which to stop, unless it is none, or known. */
static void add_stop(fsdp__continuation *c, int32_t id)
{
    bool known = id < 0 || c->stops.count == (int)FSDP__COUNT_OF(c->stops.ids);

    for (int i = 0; i < c->stops.count; i++)
        known = known || c->stops.ids[i] == id;
    if (!known)
        c->stops.ids[c->stops.count++] = id;
}

/* Reads the stop tokens of the model, or, if it has none, of the tokenizer. */
static fsdp_status read_stops(fsdp__continuation *c)
{
    int32_t end = -1;

    FSDP_TRY(fsdp_hub_read_stop_tokens(c->folder.path, &c->stops));
    if (c->stops.count == 0 && c->text.tokenizer && fsdp_tokenizer_eos(c->text.tokenizer) >= 0)
        c->stops.ids[c->stops.count++] = fsdp_tokenizer_eos(c->text.tokenizer);
    if (c->chat)
        FSDP_TRY(fsdp_chat_end_of_turn(c->talk.chat, &end));
    add_stop(c, end);
    if (c->chat && c->text.tokenizer)
        add_stop(c, fsdp_tokenizer_eos(c->text.tokenizer));
    c->options.stop_tokens = c->stops.ids;
    c->options.stop_token_count = c->stops.count;
    return FSDP_OK;
}

fsdp_status fsdp__continuation_prepare(fsdp__continuation *c)
{
    FSDP_TRY(fsdp__model_folder_find(c->path, &c->folder));
    FSDP_TRY(fsdp__folder_adapter_check(&c->folder, &c->adapters));
    FSDP_TRY(fsdp_hub_read_config(c->folder.path, &c->config));
    FSDP_TRY(c->ids ? read_ids(c) : read_prompt(c));
    for (int64_t i = 0; i < c->count; i++)
        if (c->tokens[i] >= c->config.vocab_size)
            return FSDP_FAIL(FSDP_INVALID, "token %d of %s is not in the vocabulary of '%s', which has %lld",
                             (int)c->tokens[i], c->ids ? "--tokens" : "the prompt", c->folder.path,
                             (long long)c->config.vocab_size);
    return c->ignore_eos ? FSDP_OK : read_stops(c);
}

void fsdp__continuation_release(fsdp__continuation *c)
{
    fsdp__prompt_release(&c->prompt);
    fsdp__talk_close(&c->talk);
    fsdp__token_text_close(&c->text);
    fsdp__model_folder_release(&c->folder);
    fsdp__adapters_release(&c->adapters);
    fsdp__free(c->tokens);
}

/* ---- the model ---- */

/* Creates the context, with one thread for a small model, whose layers are done before a second thread has begun. */
static fsdp_status create_context(const fsdp__continuation *c, fsdp_context **out)
{
    bool small = fsdp_model_config_parameters(&c->config) < 16 * 1000 * 1000;

    return small ? fsdp__context_from_env(1, out) : fsdp_context_from_env(out);
}

/* ---- what is generated ---- */

static bool print_token(void *arg, int32_t token)
{
    fsdp__continuation *c = arg;

    if (fsdp__token_text_print(&c->text, token, stdout))
        return true;
    c->left = errno == EPIPE;
    return false; /* main prints why */
}

/* Checks the output. The launcher speaks for a rank. If the reader has had enough, that is no failure: the launcher
 * should succeed. */
static fsdp_status check_output(const fsdp__continuation *c)
{
    char text[256];

    if (c->as_rank && c->left)
        return freopen("/dev/null", "w", stdout) ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot open '/dev/null'");
    return c->as_rank && fsdp__output_failed(text, sizeof text) ? FSDP_FAIL(FSDP_IO, "%s", text) : FSDP_OK;
}

static void print_ids(const fsdp__continuation *c)
{
    for (int64_t i = 0; i < c->count; i++)
        printf("%s%d", i ? "," : "", (int)c->tokens[i]);
    putchar('\n');
}

/* Adds a message. One that the template refuses is left out, and the talk is what it was before. */
static fsdp_status take_message(fsdp__continuation *c, const char *line, bool *taken)
{
    FSDP__FREED char *before = fsdp__strdup(c->talk.messages);
    fsdp_status status;

    *taken = false;
    FSDP__TRY_NEW(before);
    FSDP_TRY(fsdp__talk_say(&c->talk, "user", line));
    status = fsdp__talk_tokens(&c->talk, c->options.max_new_tokens, &c->tokens, &c->count);
    *taken = status == FSDP_OK;
    if (status != FSDP_FORMAT)
        return status;
    fsdp__free(c->talk.messages);
    c->talk.messages = fsdp__take(&before);
    fsdp__talk_leave_out(&c->talk);
    return FSDP_OK;
}

/* Answers the messages that come line by line, until there are no more. */
static fsdp_status talk_lines(fsdp__continuation *c, fsdp_module *model)
{
    FSDP__FREED char *line = NULL;
    size_t room = 0;

    while (fsdp__talk_read(&c->talk, &line, &room)) {
        bool taken;
        int64_t before;

        fsdp__free(fsdp__take(&c->tokens));
        FSDP_TRY(take_message(c, line, &taken));
        if (!taken)
            continue;
        FSDP_TRY(fsdp__talk_cache(&c->talk, model, c->tokens, c->count + c->options.max_new_tokens));
        before = c->count;
        c->options.cache = c->talk.cache;
        FSDP_TRY(fsdp_generate(model, c->tokens, &c->count, &c->options, print_token, c));
        if (!fsdp__token_text_end(&c->text, stdout))
            break;
        putchar('\n');
        FSDP_TRY(fsdp__talk_answer(&c->talk, c->text.tokenizer, c->tokens, before, c->count));
    }
    FSDP_TRY(check_output(c));
    if (c->talk.left_out > 0)
        return FSDP_FAIL(FSDP_FORMAT, "%lld message%s left out", (long long)c->talk.left_out,
                         c->talk.left_out == 1 ? " was" : "s were");
    return FSDP_OK;
}

/* The cache ends before the model and its device do. */
static fsdp_status talk(fsdp__continuation *c, fsdp_module *model)
{
    fsdp_status status = talk_lines(c, model);

    fsdp_kv_cache_free(fsdp__take(&c->talk.cache));
    c->options.cache = NULL;
    return status;
}

static fsdp_status generate(fsdp__continuation *c, fsdp_module *model)
{
    bool prints = fsdp_context_rank(model->context) == 0, streams = prints && !c->ids;

    if (c->chat && !c->prompt.text)
        return talk(c, model);
    if (streams && !c->chat)
        fsdp__token_text_echo(&c->text, c->prompt.text, c->prompt.bytes, stdout);
    FSDP_TRY(fsdp_generate(model, c->tokens, &c->count, &c->options, streams ? print_token : NULL, c));
    if (!prints)
        return FSDP_OK;
    if (c->ids)
        print_ids(c);
    else if (fsdp__token_text_end(&c->text, stdout))
        putchar('\n');
    return check_output(c);
}

/* Writes the facts that must agree. If ranks had read other files or been given another command line, results would be
 * mixed. */
static void write_facts(const void *arg, FILE *out)
{
    const fsdp__continuation *c = arg;
    const fsdp_generate_options *o = &c->options;
    size_t bytes = (size_t)c->count * sizeof *c->tokens;

    fsdp__facts_of_model(&c->config, out);
    fsdp__facts_of_weights(c->folder.path, c->folder.is_checkpoint, "the model's folder", out);
    fsdp__facts_of_adapters(&c->adapters, out);
    fprintf(out, "the prompt\t%lld tokens (%016llx)\n", (long long)c->count,
            (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, c->tokens, bytes));
    fprintf(out, "stop tokens\t");
    for (int64_t i = 0; i < c->stops.count; i++)
        fprintf(out, "%s%d", i > 0 ? " " : "", (int)c->stops.ids[i]);
    fprintf(out, "\n");
    fprintf(out, "the most new tokens\t%lld\n--temperature\t%.9g\n--top-k\t%lld\n--top-p\t%.9g\n--seed\t%llu\n",
            (long long)o->max_new_tokens, (double)o->temperature, (long long)o->top_k, (double)o->top_p,
            (unsigned long long)o->seed);
    fprintf(out, "--dtype\t%s\n--tensor-parallel\t%d\nthe cache\t%s\n",
            c->dtype == FSDP_DTYPE_NONE ? "not set" : fsdp_dtype_name(c->dtype), c->team,
            o->no_cache ? "not used" : "used");
}

/* Opens the device on all ranks. What is printed is the text alone, so the log says which GPU it is, and which adapter
 * a checkpoint has. */
static fsdp_status open_device(const fsdp__continuation *c, fsdp_context *context, fsdp_device **out)
{
    char text[160], adapter[2 * PATH_MAX];

    FSDP_TRY(fsdp__same_device(context, "--device", c->device, out));
    fsdp__device_describe(*out, text, sizeof text);
    if (fsdp_context_rank(context) == 0 && strcmp(text, "cpu") != 0)
        fsdp_log(context, FSDP_LOG_INFO, "device: %s", text);
    FSDP_TRY(fsdp__folder_adapter_text(&c->folder, adapter, sizeof adapter));
    if (fsdp_context_rank(context) == 0 && *adapter)
        fsdp_log(context, FSDP_LOG_INFO, "%s", adapter);
    return FSDP_OK;
}

static fsdp_status explain(const fsdp__continuation *c, fsdp_context *context)
{
    char what[200];

    fsdp__shown(fsdp_last_error(), what, sizeof what);
    return fsdp__fail_not_finite(context, c->folder.path, &c->adapters, what);
}

/* Continues the prompt with an adapter, or without one if that is NULL. */
static fsdp_status run_one(fsdp__continuation *c, fsdp_context *context, fsdp_device *device, const char *adapter)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;

    FSDP_TRY(fsdp__folder_model_load(
        context, c->folder.path, &c->config,
        &(fsdp__folder_model_options){.dtype = c->dtype, .device = device, .adapter = adapter, .tp = c->team}, &model));
    if (c->adapters.count > 1 && fsdp_context_rank(context) == 0)
        printf("adapter: %s\n", adapter);
    return generate(c, model);
}

static fsdp_status run_each(fsdp__continuation *c, fsdp_context *context, fsdp_device *device)
{
    int64_t prompt = c->count;

    FSDP_TRY(fsdp__adapters_check(&c->adapters));
    for (int i = 0; i < FSDP__MAX(c->adapters.count, 1) && !c->left; i++) {
        c->count = prompt;
        FSDP_TRY(run_one(c, context, device, fsdp__adapters_at(&c->adapters, i)));
    }
    return FSDP_OK;
}

fsdp_status fsdp__continuation_run(fsdp__continuation *c, const fsdp__ranks *ranks)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp_device *device = NULL;
    fsdp_status status;
    char run[200];

    FSDP_TRY(create_context(c, &context));
    c->joined = true;
    snprintf(run, sizeof run, "generate %s", c->path);
    fsdp__ranks_title(context, run);
    status = fsdp_context_set_comm_timeout(context, c->comm_timeout);
    if (status == FSDP_OK && ranks)
        status = fsdp__line_agree(&c->line, ranks, context);
    if (status == FSDP_OK)
        status = open_device(c, context, &device);
    if (status == FSDP_OK)
        status = fsdp__facts_agree(context, "generate different things", write_facts, c);
    if (status == FSDP_OK)
        status = run_each(c, context, device);
    if (status == FSDP_NOT_FINITE) /* on every rank, because all have the same logits */
        status = explain(c, context);
    if (status != FSDP_OK)
        fsdp_abort(context, fsdp_last_error());
    return status;
}
