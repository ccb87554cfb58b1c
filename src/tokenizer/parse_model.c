/* parse_model.c - parses the BPE model of a tokenizer.json: tokens and merges. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tokenizer/parse.h"

fsdp_status fsdp__unsupported_part(const char *path, const char *part, const char *name)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot read '%s': the %s '%s' is not supported: byte-level BPE tokenizers are (GPT-2, Llama 3, "
                     "SmolLM, Qwen), and SentencePiece's BPE and Unigram (Llama 2, Mistral, Phi-3, Gemma)",
                     path, part, FSDP__SHOWN_NAME(name));
}

fsdp_status fsdp__part_type(const fsdp__json_object *part, const char *what, const char **out)
{
    *out = NULL;
    if (!json_is_object(part->object))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the %s is not an object", part->path, what);
    return fsdp__json_string(part, "type", true, out);
}

/* ---- tokens ---- */

fsdp_status fsdp__parse_vocabulary(const char *path, const json_t *vocabulary, fsdp__bpe *bpe)
{
    const char *token;
    json_t *id;

    if (!json_is_object(vocabulary))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': 'vocab' is not an object of tokens and ids", path);
    json_object_foreach((json_t *)vocabulary, token, id)
    {
        fsdp_status status;

        if (!json_is_integer(id))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the id of token '%s' is not an integer", path,
                             FSDP__SHOWN_NAME(token));
        status = fsdp__vocabulary_add(&bpe->vocabulary, token, json_integer_value(id));
        FSDP_TRY(fsdp_fail_prefix(status, "cannot read '%s'", path));
    }
    return FSDP_OK;
}

void fsdp__find_byte_tokens(fsdp__bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++)
        bpe->byte_tokens[byte] = fsdp__vocabulary_find_bytes(&bpe->vocabulary, &(char){(char)byte}, 1);
}

/* ---- merges ---- */

static fsdp_status find_token(const char *path, const fsdp__bpe *bpe, const char *token, int64_t place, int32_t *out)
{
    FSDP_TRY(fsdp__vocabulary_find_text(&bpe->vocabulary, token, out));
    if (*out == FSDP__NO_TOKEN)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': merge %lld: '%s' is not in the vocabulary", path,
                         (long long)place, FSDP__SHOWN_NAME(token));
    return FSDP_OK;
}

fsdp_status fsdp__add_merge(const char *path, fsdp__bpe *bpe, const char *left, const char *right, int64_t place)
{
    fsdp__merge merge = {.rank = (uint32_t)place};
    FSDP__FREED char *joined = NULL;

    FSDP_TRY(find_token(path, bpe, left, place, &merge.left));
    FSDP_TRY(find_token(path, bpe, right, place, &merge.right));
    FSDP__TRY_NEW(joined = fsdp__sprintf("%s%s", left, right));
    FSDP_TRY(find_token(path, bpe, joined, place, &merge.result));
    fsdp__merges_add(&bpe->merges, &merge);
    return FSDP_OK;
}

static fsdp_status bad_merge(const char *path, int64_t place)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': merge %lld is neither \"a b\" nor [\"a\", \"b\"]", path,
                     (long long)place);
}

/* Splits a merge that is written as "a b". */
static fsdp_status split_merge(const char *path, fsdp__bpe *bpe, const char *text, int64_t place)
{
    const char *space = strchr(text, ' ');
    FSDP__FREED char *left = NULL;

    if (!space || strchr(space + 1, ' '))
        return bad_merge(path, place);
    FSDP__TRY_NEW(left = fsdp__strdup(text));
    left[space - text] = '\0';
    return fsdp__add_merge(path, bpe, left, space + 1, place);
}

static fsdp_status parse_merge(const char *path, fsdp__bpe *bpe, const json_t *merge, int64_t place)
{
    const char *left = json_string_value(json_array_get(merge, 0)),
               *right = json_string_value(json_array_get(merge, 1));

    if (json_is_string(merge))
        return split_merge(path, bpe, json_string_value(merge), place);
    if (json_array_size(merge) != 2 || !left || !right)
        return bad_merge(path, place);
    return fsdp__add_merge(path, bpe, left, right, place);
}

static fsdp_status parse_merges(const char *path, const json_t *merges, fsdp__bpe *bpe)
{
    size_t count = json_array_size(merges);

    if (!json_is_array(merges))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': 'merges' is not an array", path);
    FSDP_TRY(fsdp__merges_init(&bpe->merges, (int64_t)count));
    for (size_t i = 0; i < count; i++)
        FSDP_TRY(parse_merge(path, bpe, json_array_get(merges, i), (int64_t)i));
    return FSDP_OK;
}

/* ---- other settings of a model ---- */

static fsdp_status refuse_text(const fsdp__json_object *model, const char *key)
{
    const char *text = NULL;

    FSDP_TRY(fsdp__json_string(model, key, false, &text));
    return text && *text ? fsdp__unsupported_part(model->path, key, text) : FSDP_OK;
}

static fsdp_status refuse_settings(const fsdp__json_object *model)
{
    float dropout = 0;

    FSDP_TRY(fsdp__json_float(model, "dropout", false, &dropout));
    if (dropout != 0)
        return fsdp__unsupported_part(model->path, "model's setting", "dropout");
    FSDP_TRY(refuse_text(model, "continuing_subword_prefix"));
    return refuse_text(model, "end_of_word_suffix");
}

static fsdp_status find_unknown(const fsdp__json_object *model, fsdp__bpe *bpe)
{
    const char *text = NULL;

    bpe->unknown = FSDP__NO_TOKEN;
    FSDP_TRY(fsdp__json_string(model, "unk_token", false, &text));
    if (!text)
        return FSDP_OK;
    FSDP_TRY(fsdp__vocabulary_find_text(&bpe->vocabulary, text, &bpe->unknown));
    if (bpe->unknown == FSDP__NO_TOKEN)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the unk_token '%s' is not in the vocabulary", model->path,
                         FSDP__SHOWN_NAME(text));
    return FSDP_OK;
}

/* ---- SentencePiece's: tokens of bytes, pieces with scores ---- */

fsdp_status fsdp__find_written_bytes(fsdp__bpe *bpe, int *count)
{
    char text[8];

    *count = 0;
    for (int byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        FSDP_TRY(fsdp__vocabulary_find_text(&bpe->vocabulary, text, &bpe->byte_tokens[byte]));
        *count += bpe->byte_tokens[byte] != FSDP__NO_TOKEN;
    }
    return FSDP_OK;
}

void fsdp__find_words(fsdp_tokenizer *tokenizer)
{
    const fsdp__vocabulary *v = &tokenizer->bpe.vocabulary;
    size_t mark = sizeof FSDP__SPACE_MARK - 1;

    tokenizer->words = v->plain && fsdp__vocabulary_find_bytes(v, FSDP__SPACE_MARK, mark) != FSDP__NO_TOKEN &&
                       !tokenizer->bpe.ignore_merges;
    for (int64_t id = 0; tokenizer->words && id < v->count; id++) {
        size_t count = v->tokens[id].present ? v->tokens[id].bytes : 0;
        const char *text = v->bytes + v->tokens[id].at;

        for (size_t i = 1; tokenizer->words && i + mark <= count; i++)
            if (memcmp(text + i, FSDP__SPACE_MARK, mark) == 0 &&
                (i < mark || memcmp(text + i - mark, FSDP__SPACE_MARK, mark) != 0))
                tokenizer->words = false;
    }
}

static fsdp_status parse_piece(const char *path, const json_t *piece, int64_t id, fsdp_tokenizer *out)
{
    const char *text = json_string_value(json_array_get(piece, 0));
    const json_t *score = json_array_get(piece, 1);

    if (json_array_size(piece) != 2 || !text || !*text || !json_is_number(score))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': piece %lld is not [\"a\", -1.5]", path, (long long)id);
    FSDP_TRY(fsdp_fail_prefix(fsdp__vocabulary_add(&out->bpe.vocabulary, text, id), "cannot read '%s'", path));
    out->unigram.scores[id] = json_number_value(score);
    out->unigram.order[id] = (int32_t)id;
    out->unigram.unknown_score = FSDP__MIN(out->unigram.unknown_score, out->unigram.scores[id]);
    return FSDP_OK;
}

static fsdp_status parse_unigram(const fsdp__json_object *model, fsdp_tokenizer *out)
{
    const json_t *vocabulary = json_object_get(model->object, "vocab");
    int64_t count = (int64_t)json_array_size(vocabulary), unknown = -1;
    int bytes;

    if (count == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': 'vocab' is not a list of pieces and scores", model->path);
    FSDP__TRY_NEW(out->unigram.scores = fsdp__calloc((size_t)count, sizeof *out->unigram.scores));
    FSDP__TRY_NEW(out->unigram.order = fsdp__calloc((size_t)count, sizeof *out->unigram.order));
    for (int64_t i = 0; i < count; i++)
        FSDP_TRY(parse_piece(model->path, json_array_get(vocabulary, (size_t)i), i, out));
    FSDP_TRY(fsdp__json_integer(model, "unk_id", false, &unknown));
    if (unknown < 0 || unknown >= count)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': 'unk_id' is %lld: it must be the id of a piece", model->path,
                         (long long)unknown);
    out->bpe.unknown = (int32_t)unknown;
    out->unigram.on = true;
    out->unigram.count = count;
    out->unigram.unknown_score -= 10; /* SentencePiece's penalty */
    fsdp__unigram_sort(&out->unigram, &out->bpe.vocabulary);
    return fsdp__find_written_bytes(&out->bpe, &bytes);
}

/* Finds the tokens of bytes. One of SentencePiece's has an unknown token, or one for each byte. */
static fsdp_status find_bytes(const fsdp__json_object *model, fsdp__bpe *bpe)
{
    int bytes;

    if (!bpe->vocabulary.plain) {
        fsdp__find_byte_tokens(bpe);
        return bpe->byte_fallback ? fsdp__unsupported_part(model->path, "model's setting", "byte_fallback") : FSDP_OK;
    }
    bpe->characters = true;
    FSDP_TRY(fsdp__find_written_bytes(bpe, &bytes));
    if (bpe->unknown == FSDP__NO_TOKEN && !(bpe->byte_fallback && bytes == 256))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the model has neither an unk_token nor a token for each byte",
                         model->path);
    return FSDP_OK;
}

fsdp_status fsdp__parse_model(const fsdp__json_object *model, fsdp_tokenizer *out)
{
    const char *type = "BPE"; /* early files do not have it */
    fsdp__bpe *bpe = &out->bpe;

    if (!model->object)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key 'model' is missing", model->path);
    FSDP_TRY(fsdp__json_string(model, "type", false, &type));
    FSDP_TRY(fsdp__json_bool(model, "byte_fallback", &bpe->byte_fallback));
    if (strcmp(type, "Unigram") == 0 && bpe->vocabulary.plain)
        return parse_unigram(model, out);
    if (strcmp(type, "BPE") != 0)
        return fsdp__unsupported_part(model->path, "model", type);
    FSDP_TRY(refuse_settings(model));
    FSDP_TRY(fsdp__json_bool(model, "fuse_unk", &bpe->fuse_unknown));
    FSDP_TRY(fsdp__json_bool(model, "ignore_merges", &bpe->ignore_merges));
    FSDP_TRY(fsdp__parse_vocabulary(model->path, json_object_get(model->object, "vocab"), bpe));
    FSDP_TRY(parse_merges(model->path, json_object_get(model->object, "merges"), bpe));
    FSDP_TRY(find_unknown(model, bpe));
    return find_bytes(model, bpe);
}
