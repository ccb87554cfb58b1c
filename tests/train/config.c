/* config.c - configs of runs for tests. */
#include "train/config.h"

#include "support/test.h"

static void free_config(void *config)
{
    fsdp_train_config_free(config);
}

static void set_keys(fsdp_train_config *config, const char *keys, va_list arguments)
{
    char *text = NULL, *rest;

    CHECK(vasprintf(&text, keys, arguments) >= 0);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');

        CHECK(value != NULL);
        *value++ = '\0';
        CHECK_OK(fsdp_train_config_set(config, word, value));
    }
    free(text);
}

fsdp_train_config *test_empty_config(void)
{
    fsdp_train_config *config;

    CHECK_OK(fsdp_train_config_create(&config));
    return test_own(config, free_config);
}

fsdp_train_config *test_config(const char *keys, ...)
{
    fsdp_train_config *config = test_empty_config();
    va_list arguments;

    va_start(arguments, keys);
    set_keys(config, keys, arguments);
    va_end(arguments);
    return config;
}

fsdp_train_config *test_small_config(const char *keys)
{
    char *data = test_path(test_directory(), "data.txt");

    test_write_letters(data, 4096, 26);
    return test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                       "model.ffn_dim=50 model.vocab_size=256 data.workers=0 training.seq_len=8 "
                       "training.local_batch_size=2 training.steps=3 data.path=%s %s",
                       data, keys);
}

void test_set_keys(fsdp_train_config *config, const char *keys, ...)
{
    va_list arguments;

    va_start(arguments, keys);
    set_keys(config, keys, arguments);
    va_end(arguments);
}
