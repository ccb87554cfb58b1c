/* parse.c - parses a whole tokenizer.json. */
#include "tokenizer/parse.h"

#include <string.h>

#include "base/alloc.h"

/* Returns whether the tokens are SentencePiece's, and not byte-level. */
static bool has_marks(const json_t *model, const json_t *pre_tokenizer)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));

    if (fsdp__has_pre_tokenizer(pre_tokenizer, "ByteLevel"))
        return false;
    return fallback || (type && strcmp(type, "Unigram") == 0) || fsdp__has_pre_tokenizer(pre_tokenizer, "Metaspace");
}

static fsdp_status parse_parts(const fsdp__json_object *file, fsdp_tokenizer *t)
{
    const json_t *pre_tokenizer = json_object_get(file->object, "pre_tokenizer");
    const json_t *normalizer = json_object_get(file->object, "normalizer");
    fsdp__json_object model;

    FSDP_TRY(fsdp__json_child(file, "model", &model));
    t->bpe.vocabulary.plain = has_marks(model.object, pre_tokenizer);
    FSDP_TRY(fsdp__parse_model(&model, t));
    t->next_id = t->bpe.vocabulary.used;
    FSDP_TRY(fsdp__parse_normalizer(file->path, normalizer, &t->normalizer));
    FSDP_TRY(fsdp__parse_pre_tokenizer(file->path, pre_tokenizer, t));
    FSDP_TRY(fsdp__parse_decoder(file->path, json_object_get(file->object, "decoder"), t));
    fsdp__find_words(t);
    FSDP_TRY(fsdp__parse_added_tokens(file, t));
    return fsdp__parse_post_processor(file->path, json_object_get(file->object, "post_processor"), t);
}

fsdp_status fsdp__tokenizer_parse(const char *path, const void *text, size_t bytes, fsdp_tokenizer **out)
{
    json_auto_t *object = NULL;
    FSDP__SCOPED(fsdp_tokenizer_close_at) fsdp_tokenizer *t = NULL;

    *out = NULL;
    FSDP_TRY(fsdp__json_parse_large(path, text, bytes, &object));
    FSDP__TRY_NEW(t = fsdp__calloc(1, sizeof *t));
    FSDP_TRY(parse_parts(&(fsdp__json_object){.path = path, .object = object}, t));
    t->eos = t->model_eos = FSDP__NO_TOKEN;
    *out = fsdp__take(&t);
    return FSDP_OK;
}
