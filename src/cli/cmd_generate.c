/* cmd_generate.c - fsdp generate FOLDER: continues a text or a list of token ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "device/device.h"
#include "launch/launch.h"

typedef struct request {
    const char *folder, *prompt, *ids;
    fsdp_generate_options options;
    fsdp_model_config config;
    int32_t *tokens; /* prompt, then what is generated */
    int64_t count;
} request;

static void usage(void)
{
    puts("fsdp generate FOLDER --prompt TEXT | --tokens 1,2,3\n"
         "\n"
         "  --prompt TEXT          continue a text (models whose tokens are bytes)\n"
         "  --tokens IDS           continue token ids; prints all ids on one line\n"
         "  --max-new-tokens N     default 200\n"
         "  --temperature T        default 0.8; 0: always the most likely token\n"
         "  --top-k K              choose among the K most likely tokens; default 0: among all\n"
         "  --seed S               default 0");
}

/* ---- prompt: what can be said without the folder, then what it says to it ---- */

static int allocate(request *r, size_t count)
{
    r->tokens = fsdp__calloc(count + (size_t)r->options.max_new_tokens, sizeof *r->tokens);
    return r->tokens ? 0 : fsdp__failure("%s", fsdp_last_error());
}

static int read_prompt(request *r)
{
    size_t length = strlen(r->prompt);

    if (length == 0)
        return fsdp__usage_error("generate: --prompt is empty: give at least one character");
    if (allocate(r, length) != 0)
        return FSDP__FAILED;
    for (size_t i = 0; i < length; i++)
        r->tokens[i] = (unsigned char)r->prompt[i];
    r->count = (int64_t)length;
    return 0;
}

static int read_ids(request *r)
{
    const char *at = r->ids;
    size_t most = 1;

    for (const char *c = r->ids; *c; c++)
        most += *c == ',';
    if (allocate(r, most) != 0)
        return FSDP__FAILED;
    for (;;) {
        char *end;
        long value = strtol(at, &end, 10);

        if (end == at || (*end && *end != ',') || value < 0 || value > INT32_MAX)
            return fsdp__usage_error("generate: --tokens is '%s': expected token ids with commas between them", r->ids);
        r->tokens[r->count++] = (int32_t)value;
        if (!*end)
            return 0;
        at = end + 1;
    }
}

static int check_prompt(const request *r)
{
    char *tokenizer = fsdp__path_join(r->folder, "tokenizer.json");
    bool has_tokenizer = tokenizer && fsdp__path_exists(tokenizer);

    fsdp__free(tokenizer);
    if (r->prompt && (r->config.vocab_size != 256 || has_tokenizer))
        return fsdp__failure(
            "'%s' is no byte-level model (%s%lld tokens in its vocabulary), and tokenizers are not read "
            "yet: give ids with --tokens 1,2,3",
            r->folder, has_tokenizer ? "it has a tokenizer.json, " : "", (long long)r->config.vocab_size);
    for (int64_t i = 0; i < r->count; i++)
        if (r->tokens[i] >= r->config.vocab_size)
            return fsdp__failure("token %d of --tokens is not in the vocabulary of '%s', which has %lld", r->tokens[i],
                                 r->folder, (long long)r->config.vocab_size);
    return 0;
}

/* ---- model ---- */

static fsdp_status load_model(fsdp_context *context, const request *r, fsdp_module **out)
{
    fsdp_state_dict *state = NULL;
    fsdp_status status = FSDP_OK;
    fsdp_module *model;

    *out = NULL;
    FSDP_TRY(fsdp_hub_check(context, r->folder, &r->config));
    model = fsdp_model_create(context, fsdp_meta(context), &r->config);
    if (!model)
        return fsdp_last_status();
    FSDP_TRY_GOTO(status, fsdp_module_materialize(model, fsdp__front_device(context)), out);
    FSDP_TRY_GOTO(status, fsdp_state_dict_from_module(model, &state), out);
    FSDP_TRY_GOTO(status, fsdp_hub_load(r->folder, state, &r->config), out);
    fsdp_module_train(model, false);
    *out = model;
    model = NULL;
out:
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return status;
}

static bool print_byte(void *arg, int32_t token)
{
    (void)arg;
    putchar(token);
    return fflush(stdout) == 0; /* nobody reads on: main says why */
}

static void print_ids(const request *r)
{
    for (int64_t i = 0; i < r->count; i++)
        printf("%s%d", i ? "," : "", (int)r->tokens[i]);
    putchar('\n');
}

/* The layers of a small model are over before a second thread has begun. */
static fsdp_status create_context(const request *r, fsdp_context **out)
{
    bool small = fsdp_model_config_parameters(&r->config) < 16 * 1000 * 1000;

    return small ? fsdp__context_from_env(1, out) : fsdp_context_from_env(out);
}

static fsdp_status generate(request *r)
{
    fsdp_context *context = NULL;
    fsdp_module *model = NULL;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(create_context(r, &context));
    FSDP_TRY_GOTO(status, load_model(context, r, &model), out);
    if (r->prompt)
        fputs(r->prompt, stdout);
    FSDP_TRY_GOTO(status, fsdp_generate(model, r->tokens, &r->count, &r->options, r->prompt ? print_byte : NULL, NULL),
                  out);
    if (r->prompt)
        putchar('\n');
    else
        print_ids(r);
out:
    fsdp_module_unref(model);
    fsdp_context_free(context);
    return status;
}

/* ---- command ---- */

static fsdp_status read_numbers(request *r, const char *most, const char *temperature, const char *top_k,
                                const char *seed)
{
    int64_t value = 0;
    double number = 0.8;

    if (most)
        FSDP_TRY(fsdp__args_integer("--max-new-tokens", most, 0, 1 << 24, &r->options.max_new_tokens));
    if (temperature)
        FSDP_TRY(fsdp__args_number("--temperature", temperature, 0, 1000, &number));
    if (top_k)
        FSDP_TRY(fsdp__args_integer("--top-k", top_k, 0, 1 << 24, &r->options.top_k));
    if (seed)
        FSDP_TRY(fsdp__args_integer("--seed", seed, 0, INT64_MAX, &value));
    r->options.temperature = (float)number;
    r->options.seed = (uint64_t)value;
    return FSDP_OK;
}

int fsdp__cmd_generate(int argc, char **argv)
{
    request r = {.options = {.max_new_tokens = 200}};
    const char *most = NULL, *temperature = NULL, *top_k = NULL, *seed = NULL;
    bool help = false;
    const fsdp__option options[] = {{"prompt", 'p', &r.prompt, NULL},   {"tokens", 0, &r.ids, NULL},
                                    {"max-new-tokens", 0, &most, NULL}, {"temperature", 0, &temperature, NULL},
                                    {"top-k", 0, &top_k, NULL},         {"seed", 0, &seed, NULL},
                                    {"help", 'h', NULL, &help},         {0}};
    fsdp__args args = {.options = options, .positional_most = 1};
    int status;

    if (fsdp__args_parse(&args, "generate", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (help) {
        usage();
        return 0;
    }
    if (args.positional_count == 0)
        return fsdp__usage_error("generate: no model folder given; see 'fsdp generate --help'");
    if (!r.prompt == !r.ids)
        return fsdp__usage_error("generate: give either --prompt TEXT or --tokens 1,2,3");
    if (read_numbers(&r, most, temperature, top_k, seed) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    fsdp__explain_bus_errors();
    r.folder = args.positional[0];
    status = r.prompt ? read_prompt(&r) : read_ids(&r);
    if (status == 0 && fsdp_hub_read_config(r.folder, &r.config) != FSDP_OK)
        status = fsdp__failure("%s", fsdp_last_error());
    if (status == 0)
        status = check_prompt(&r);
    if (status == 0 && generate(&r) != FSDP_OK)
        status = fsdp__failure("%s", fsdp_last_error());
    fsdp__free(r.tokens);
    return status;
}
