/* Any bytes as a command line, its arguments ended by NUL, with options of all kinds and a config behind: values are
 * the arguments' own bytes, keys are set or refused, and nothing is read past the last argument. */
#include <stdlib.h>
#include <string.h>

#include "config/args.h"
#include "train/run_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum {
    MOST = 64
};

static fsdp_status set(void *config, const char *key, const char *value)
{
    return strlen(value) % 2 ? fsdp_train_config_add(config, key, value) : fsdp_train_config_set(config, key, value);
}

/* Whether `value` points into one of the arguments. */
static bool is_inside(const char *value, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (value >= argv[i] && value <= argv[i] + strlen(argv[i]))
            return true;
    return !value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp_train_config *config = NULL;
    const char *ranks = NULL, *text = NULL;
    bool help = false;
    const fsdp__option options[] = {{"ranks", 'n', &ranks, NULL},
                                    {"np", 0, &ranks, NULL},
                                    {"text", 't', &text, NULL},
                                    {"help", 'h', NULL, &help},
                                    {0}};
    fsdp__args args = {.options = options, .dotted = set, .positional_most = 2};
    char program[] = "train", *argv[MOST + 1] = {program};
    char *copy = calloc(bytes + 1, 1);
    int argc = 1;

    if (!copy || fsdp_train_config_create(&config) != FSDP_OK)
        abort();
    if (bytes)
        memcpy(copy, data, bytes);
    for (size_t at = 0; at < bytes && argc < MOST; at += strlen(copy + at) + 1) {
        argv[argc] = strdup(copy + at); /* a block of its own: reading past it is seen */
        argc++;
    }
    args.arg = config;
    if (fsdp__args_parse(&args, "train", argc, argv) == FSDP_OK) {
        if (!is_inside(ranks, argc, argv) || !is_inside(text, argc, argv))
            abort();
        for (int i = 0; i < args.positional_count; i++)
            if (!is_inside(args.positional[i], argc, argv))
                abort();
    } else if (strpbrk(fsdp_last_error(), "\n\x1b") || !*fsdp_last_error()) {
        abort();
    }
    for (int i = 1; i < argc; i++)
        free(argv[i]);
    free(copy);
    fsdp_train_config_free(config);
    return 0;
}
