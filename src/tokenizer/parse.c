/* parse.c - parses a whole tokenizer.json. */
#include "tokenizer/parse.h"

#include "base/alloc.h"
#include "tokenizer/tokenizer.h"

static fsdp_status parse_parts(const fsdp__json_object *file, fsdp_tokenizer *t)
{
    fsdp__json_object model;

    FSDP_TRY(fsdp__json_child(file, "model", &model));
    FSDP_TRY(fsdp__parse_model(&model, &t->bpe));
    t->next_id = t->bpe.vocabulary.used;
    FSDP_TRY(fsdp__parse_normalizer(file->path, json_object_get(file->object, "normalizer"), &t->nfc));
    FSDP_TRY(fsdp__parse_pre_tokenizer(file->path, json_object_get(file->object, "pre_tokenizer"), &t->pre_tokenizer));
    FSDP_TRY(fsdp__parse_decoder(file->path, json_object_get(file->object, "decoder")));
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
    t->eos = FSDP__NO_TOKEN;
    *out = fsdp__take(&t);
    return FSDP_OK;
}
