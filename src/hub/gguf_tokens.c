/* gguf_tokens.c - the tokens of a tokenizer by their ids, and keys of its JSON files. */
#include "base/alloc.h"
#include "hub/gguf_tokenizer.h"

const char *fsdp__gguf_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

bool fsdp__gguf_json_true(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

fsdp_status fsdp__gguf_tokens_init(fsdp__gguf_tokens *t, int64_t count)
{
    t->count = count;
    t->texts = fsdp__calloc((size_t)count + 1, sizeof *t->texts);
    t->types = fsdp__calloc((size_t)count + 1, sizeof *t->types);
    t->scores = fsdp__calloc((size_t)count + 1, sizeof *t->scores);
    FSDP__TRY_NEW(t->texts && t->types && t->scores);
    return FSDP_OK;
}

void fsdp__gguf_tokens_release(fsdp__gguf_tokens *t)
{
    FSDP__FREE_ALL(t->texts, t->types, t->scores);
    *t = (fsdp__gguf_tokens){.count = 0};
}

fsdp_status fsdp__gguf_tokens_set(fsdp__gguf_tokens *t, const char *path, const char *text, int64_t id, int32_t type,
                                  float score)
{
    if (!text || id < 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a token without a text or an id", path);
    if (id >= t->count)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has token %lld, but the model has %lld", path, (long long)id,
                         (long long)t->count);
    t->texts[id] = text;
    t->types[id] = type;
    t->scores[id] = score;
    return FSDP_OK;
}
