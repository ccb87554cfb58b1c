/* Any bytes as the config of a run: what is refused is refused at a line of it, in one line that a terminal only
 * prints; what is accepted is printed as YAML that reads back as the same. */
#include <stdlib.h>
#include <string.h>

#include "config/yaml.h"
#include "train/run_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_refusal(const uint8_t *data, size_t bytes)
{
    const char *message = fsdp_last_error();
    char *end;
    size_t lines = 2, line; /* the end of a file whose last line does not end is on the next */

    for (size_t i = 0; i < bytes; i++)
        lines += data[i] == '\n' || data[i] == '\r' || data[i] >= 0x80; /* YAML has line ends beyond ASCII too */
    if (strncmp(message, "config:", 7) != 0)
        abort();
    line = strtoul(message + 7, &end, 10);
    if (line < 1 || line > lines || *end != ':')
        abort();
    for (; *message; message++)
        if ((unsigned char)*message < 0x20 || *message == 0x7F)
            abort();
}

static char *print(const fsdp_train_config *config, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);

    if (!out || fsdp_train_config_print(config, out) != FSDP_OK || fclose(out) != 0)
        abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp_train_config *config = NULL, *again = NULL;
    char *printed, *second;
    size_t printed_bytes, second_bytes;

    if (fsdp_train_config_create(&config) != FSDP_OK || fsdp_train_config_create(&again) != FSDP_OK)
        abort();
    if (fsdp__yaml_apply(&fsdp__train_keys, config, "config", (const char *)data, bytes) != FSDP_OK) {
        check_refusal(data, bytes);
    } else {
        printed = print(config, &printed_bytes);
        if (fsdp__yaml_apply(&fsdp__train_keys, again, "printed", printed, printed_bytes) != FSDP_OK)
            abort();
        second = print(again, &second_bytes);
        if (strcmp(printed, second) != 0)
            abort();
        free(printed);
        free(second);
    }
    fsdp_train_config_free(config);
    fsdp_train_config_free(again);
    return 0;
}
