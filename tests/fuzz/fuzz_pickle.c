/* Any bytes as a data.pkl: items are values that were made, and no item follows itself. */
#include <stdlib.h>

#include "format/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__pickle pickle = {.values = NULL};

    if (fsdp__pickle_parse("x.bin", data, bytes, &pickle) == FSDP_OK) {
        for (int64_t i = 0; i < pickle.value_count; i++) {
            const fsdp__pickle_value *value = &pickle.values[i];
            const char *end = (const char *)data + bytes;
            int64_t items = 0;

            if (value->kind == FSDP__PICKLE_TEXT && (value->integer > end - value->text || value->at >= bytes))
                abort();
            for (int32_t at = value->first; at >= 0; at = pickle.links[at].next, items++)
                if (at >= pickle.link_count || pickle.links[at].value >= pickle.value_count ||
                    items > pickle.link_count)
                    abort();
            if (value->first >= 0 && items != value->integer)
                abort();
        }
        if (pickle.result < pickle.values || pickle.result >= pickle.values + pickle.value_count)
            abort();
    }
    fsdp__pickle_release(&pickle);
    return 0;
}
