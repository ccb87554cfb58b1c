/* Any bytes as a chat template: it is refused, or it renders within its limits, and twice to the same text. */
#include <stdlib.h>
#include <string.h>

#include "chat/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"a\\u00e9 b\"}, "
    "{\"role\": \"assistant\", \"content\": \"two\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
    "{\"q\": [1, 2.5, true, null]}}}]}], \"tools\": null, \"bos_token\": \"<s>\", \"add_generation_prompt\": true}";

static void render(const fsdp__jinja *jinja, const json_t *values, fsdp__rendered *out)
{
    if (fsdp__jinja_render(jinja, values, 0, out) != FSDP_OK && (out->text || out->marked))
        abort();
    for (int64_t i = 0; i < out->count; i++)
        if (out->marked[i].begin >= out->marked[i].end || out->marked[i].end > out->bytes)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static json_t *values;
    fsdp__jinja *jinja = NULL;
    fsdp__rendered once = {0}, again = {0};

    if (!values)
        values = json_loads(variables, 0, NULL);
    if (fsdp__jinja_parse("template", (const char *)data, bytes, &jinja) != FSDP_OK)
        return 0;
    render(jinja, values, &once);
    render(jinja, values, &again);
    if (once.bytes != again.bytes || (once.bytes && memcmp(once.text, again.text, once.bytes) != 0))
        abort();
    fsdp__rendered_release(&once);
    fsdp__rendered_release(&again);
    fsdp__jinja_free(jinja);
    return 0;
}
