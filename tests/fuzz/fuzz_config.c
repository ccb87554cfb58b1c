/* Any bytes as a config.json: what is accepted has consistent sizes, and is accepted again when written. */
#include <stdlib.h>
#include <string.h>

#include "hub/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp_model_config config, again;
    char *text = NULL;

    if (fsdp__config_parse("config.json", data, bytes, &config) != FSDP_OK)
        return 0;
    if (fsdp_model_config_check(&config) != FSDP_OK || fsdp_model_config_parameters(&config) <= 0)
        abort();
    if (fsdp__config_text(&config, FSDP_F32, &text) != FSDP_OK)
        abort();
    if (fsdp__config_parse("config.json", text, strlen(text), &again) != FSDP_OK ||
        fsdp_model_config_parameters(&again) != fsdp_model_config_parameters(&config))
        abort();
    free(text);
    return 0;
}
