/* parse_added.c - parses the tokens that a tokenizer.json adds to its model, and what its post-processor adds. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "base/text.h"
#include "tokenizer/parse.h"

/* ---- added tokens ---- */

static fsdp_status look_for(const fsdp__added_token *token, bool normalized, fsdp_tokenizer *to)
{
    fsdp__added_token looked_for = *token;
    fsdp__passage text = {.text = token->text, .bytes = token->bytes};
    fsdp__text scratch[2] = {{0}};
    fsdp_status status;

    if (!normalized)
        return fsdp__added_tokens_add(&to->raw, token);
    status = fsdp__normalize(&to->normalizer, true, &text, scratch, &text);
    looked_for.text = (char *)text.text; /* will be copied */
    looked_for.bytes = text.bytes;
    if (status == FSDP_OK && looked_for.bytes > 0)
        status = fsdp__added_tokens_add(&to->normalized, &looked_for);
    for (int i = 0; i < 2; i++)
        fsdp__text_release(&scratch[i]);
    return status;
}

/* Checks the id of a token that is not in the vocabulary. Hugging Face's tokenizers number such a token themselves,
 * whatever id the file gives. */
static fsdp_status check_id(const char *path, const char *text, int64_t id, const fsdp_tokenizer *to)
{
    if (id == to->next_id)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': added token '%s' has id %lld, and Hugging Face's tokenizers would give it "
                     "%lld: ids of added tokens follow those of the vocabulary without a gap, in the order of the list "
                     "(to load the file with tokenizers and to save it writes what it gives)",
                     path, FSDP__SHOWN_NAME(text), (long long)id, (long long)to->next_id);
}

/* Adds a token. If a token is given again, its last description counts. */
static fsdp_status add_token(const char *path, const fsdp__added_token *token, bool normalized, int64_t id,
                             fsdp_tokenizer *to)
{
    fsdp__vocabulary *vocabulary = &to->bpe.vocabulary;
    fsdp__added_token numbered = *token;
    int32_t known;

    if (token->bytes == 0)
        return FSDP_OK; /* nothing to search for */
    FSDP_TRY(fsdp__vocabulary_find_text(vocabulary, token->text, &known));
    if (known == FSDP__NO_TOKEN)
        FSDP_TRY(check_id(path, token->text, id, to));
    FSDP_TRY(fsdp_fail_prefix(fsdp__vocabulary_add(vocabulary, token->text, id), "cannot read '%s'", path));
    numbered.id = (int32_t)id;
    to->next_id = id < to->next_id ? to->next_id : id + 1;
    vocabulary->tokens[id].added = vocabulary->tokens[id].added || known == FSDP__NO_TOKEN;
    vocabulary->tokens[id].special = vocabulary->tokens[id].special || token->special;
    if (known != FSDP__NO_TOKEN) {
        fsdp__added_tokens_remove(&to->raw, numbered.id);
        fsdp__added_tokens_remove(&to->normalized, numbered.id);
    }
    return look_for(&numbered, normalized, to);
}

/* Adds a token as described in tokenizer.json's added_tokens or tokenizer_config.json's added_tokens_decoder. */
static fsdp_status add_described(const fsdp__json_object *token, int64_t id, fsdp_tokenizer *out)
{
    fsdp__added_token added = {0};
    const char *content = NULL;
    bool normalized;

    FSDP_TRY(fsdp__json_string(token, "content", true, &content));
    FSDP_TRY(fsdp__json_bool(token, "special", &added.special));
    normalized = !added.special;
    FSDP_TRY(fsdp__json_bool(token, "normalized", &normalized));
    FSDP_TRY(fsdp__json_bool(token, "single_word", &added.single_word));
    FSDP_TRY(fsdp__json_bool(token, "lstrip", &added.lstrip));
    FSDP_TRY(fsdp__json_bool(token, "rstrip", &added.rstrip));
    added.text = (char *)content; /* will be copied */
    added.bytes = strlen(content);
    return add_token(token->path, &added, normalized, id, out);
}

fsdp_status fsdp__add_special_token(const char *path, const char *content, int64_t id, fsdp_tokenizer *out)
{
    fsdp__added_token added = {.text = (char *)content, .bytes = strlen(content), .special = true};

    for (int64_t i = 0; i < out->raw.count; i++)
        if (out->raw.tokens[i].id == id)
            return FSDP_OK;
    return add_token(path, &added, false, id, out);
}

fsdp_status fsdp__add_searched_token(const char *path, const char *content, int64_t id, fsdp_tokenizer *out)
{
    fsdp__added_token added = {.text = (char *)content, .bytes = strlen(content), .id = (int32_t)id};

    return fsdp_fail_prefix(fsdp__added_tokens_add(&out->normalized, &added), "cannot read '%s'", path);
}

/* ---- tokens by id, of other files than tokenizer.json ---- */

typedef struct numbered {
    int64_t id;
    const char *key;
    const json_t *value;
} numbered;

FSDP__ORDER_BY_ONE(compare_ids, numbered, id)

/* Lists the entries of an object in the order of their ids, which are its keys or its values; fsdp__free() the list. */
static fsdp_status list_by_id(const char *path, const json_t *object, bool keys, numbered **out)
{
    FSDP__FREED numbered *list = fsdp__calloc(json_object_size(object) + 1, sizeof *list);
    size_t count = 0;
    const char *key;
    json_t *value;

    FSDP__TRY_NEW(list);
    json_object_foreach((json_t *)object, key, value)
    {
        char *end = NULL;
        int64_t id = keys ? strtoll(key, &end, 10) : json_integer_value(value);

        if (keys ? !json_is_object(value) || end == key || *end : !json_is_integer(value))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': '%s' is not followed by a token and its id", path,
                             FSDP__SHOWN_NAME(key));
        list[count++] = (numbered){.id = id, .key = key, .value = value};
    }
    qsort(list, count, sizeof *list, compare_ids);
    *out = fsdp__take(&list);
    return FSDP_OK;
}

fsdp_status fsdp__parse_tokens_by_id(const char *path, const json_t *tokens, fsdp_tokenizer *out)
{
    FSDP__FREED numbered *list = NULL;

    FSDP_TRY(list_by_id(path, tokens, true, &list));
    for (size_t i = 0; i < json_object_size(tokens); i++) {
        fsdp__json_object token = {.path = path, .object = list[i].value};

        FSDP_TRY(add_described(&token, list[i].id, out));
    }
    return FSDP_OK;
}

fsdp_status fsdp__parse_ids_of_tokens(const char *path, const json_t *ids, fsdp_tokenizer *out)
{
    FSDP__FREED numbered *list = NULL;

    FSDP_TRY(list_by_id(path, ids, false, &list));
    for (size_t i = 0; i < json_object_size(ids); i++)
        FSDP_TRY(fsdp__add_special_token(path, list[i].key, list[i].id, out));
    return FSDP_OK;
}

fsdp_status fsdp__parse_added_tokens(const fsdp__json_object *file, fsdp_tokenizer *out)
{
    const json_t *list = json_object_get(file->object, "added_tokens");

    for (size_t i = 0; i < json_array_size(list); i++) {
        fsdp__json_object token = {.path = file->path, .object = json_array_get(list, i)};
        int64_t id = -1;

        if (!json_is_object(token.object))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': added token %zu is not an object", file->path, i);
        FSDP_TRY(fsdp__json_integer(&token, "id", true, &id));
        FSDP_TRY(add_described(&token, id, out));
    }
    fsdp__added_tokens_order(&out->raw);
    fsdp__added_tokens_order(&out->normalized);
    return FSDP_OK;
}

/* ---- post-processors ---- */

/* Inserts an id at position `at` of the list. */
static fsdp_status insert_id(fsdp_token_list *list, int64_t at, const json_t *value, const fsdp_tokenizer *tokenizer,
                             const char *path)
{
    int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;

    if (!fsdp__vocabulary_has(&tokenizer->bpe.vocabulary, id))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the post-processor names an id that no token has", path);
    FSDP_TRY(fsdp__token_list_add(list, 0));
    memmove(list->ids + at + 1, list->ids + at, (size_t)(list->count - 1 - at) * sizeof *list->ids);
    list->ids[at] = (int32_t)id;
    return FSDP_OK;
}

/* Adds the ids of a special token of the template: before the text, in front of those of earlier processors, or after
 * it. */
static fsdp_status add_special(const fsdp__json_object *part, const json_t *item, fsdp_tokenizer *out, bool before,
                               int64_t *at)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *specials = json_object_get(part->object, "special_tokens");
    const json_t *special = name ? json_object_get(specials, name) : NULL, *ids = json_object_get(special, "ids");
    fsdp_token_list *list = before ? &out->prefix : &out->suffix;

    if (!json_is_array(ids))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the post-processor's special token '%s' has no ids",
                         part->path, FSDP__SHOWN_NAME(name ? name : ""));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        FSDP_TRY(insert_id(list, before ? *at : list->count, json_array_get(ids, i), out, part->path));
        ++*at;
    }
    return FSDP_OK;
}

static fsdp_status parse_template(const fsdp__json_object *part, fsdp_tokenizer *out)
{
    const json_t *list = json_object_get(part->object, "single");
    bool before = true;
    int64_t at = 0;

    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the post-processor has no list 'single'", part->path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *special = json_object_get(item, "SpecialToken");

        if (special)
            FSDP_TRY(add_special(part, special, out, before, &at));
        else if (json_object_get(item, "Sequence") && before)
            before = false;
        else
            return FSDP_FAIL(FSDP_FORMAT,
                             "cannot read '%s': part %zu of the post-processor's template is neither a special token "
                             "nor the only text",
                             part->path, i);
    }
    return FSDP_OK;
}

fsdp_status fsdp__parse_post_processor(const char *path, const json_t *post_processor, fsdp_tokenizer *out)
{
    fsdp__json_object part = {.path = path, .object = post_processor};
    const json_t *list;
    const char *type;

    if (!post_processor || json_is_null(post_processor))
        return FSDP_OK;
    FSDP_TRY(fsdp__part_type(&part, "post-processor", &type));
    if (strcmp(type, "ByteLevel") == 0) {
        out->trims = true;
        return fsdp__json_bool(&part, "trim_offsets", &out->trims);
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        return parse_template(&part, out);
    if (strcmp(type, "Sequence") != 0)
        return fsdp__unsupported_part(path, "post-processor", type);
    list = json_object_get(post_processor, "processors");
    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the post-processor 'Sequence' has no list 'processors'", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        FSDP_TRY(fsdp__parse_post_processor(path, json_array_get(list, i), out));
    return FSDP_OK;
}
