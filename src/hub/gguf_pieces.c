/* gguf_pieces.c - tokenizers of SentencePiece in files of llama.cpp, where tokens have scores: of two neighbours that
 * are a token together, those of the highest score become it first. A tokenizer.json has a list of merges instead. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "hub/gguf_tokenizer.h"

/* ---- what is done to a text before it is cut ---- */

static bool replaces_spaces(const json_t *step, const char *key)
{
    return strcmp(fsdp__gguf_json_text(json_object_get(step, "pattern"), "String"), " ") == 0 &&
           (!key || strcmp(fsdp__gguf_json_text(step, key), FSDP__GGUF_MARK) == 0);
}

/* Returns whether llama.cpp does the same as a step of the normalizer. */
static bool take_normalizer(const json_t *step, bool *in_front, bool *marks)
{
    const char *type = fsdp__gguf_json_text(step, "type");
    bool prepends = strcmp(type, "Prepend") == 0, replaces = strcmp(type, "Replace") == 0;
    const json_t *list = json_object_get(step, "normalizers");
    bool all = list != NULL;
    json_t *one;
    size_t i;

    *in_front |= prepends;
    *marks |= replaces;
    json_array_foreach(list, i, one) all = all && take_normalizer(one, in_front, marks);
    return all || (prepends && strcmp(fsdp__gguf_json_text(step, "prepend"), FSDP__GGUF_MARK) == 0) ||
           (replaces && replaces_spaces(step, "content"));
}

/* Does the same for the pre-tokenizer. Words are split only where no token could go across. */
static bool take_pre_tokenizer(const json_t *step, const json_t *vocabulary, bool *in_front, bool *marks)
{
    const char *type = fsdp__gguf_json_text(step, "type"), *scheme = fsdp__gguf_json_text(step, "prepend_scheme");
    bool splits = fsdp__gguf_json_true(step, "split", true);

    if (strcmp(type, "Split") == 0) /* of Gemma: its normalizer has left no spaces */
        return *marks && replaces_spaces(step, NULL);
    if (strcmp(type, "Metaspace") != 0)
        return false;
    *marks = strcmp(fsdp__gguf_json_text(step, "replacement"), FSDP__GGUF_MARK) == 0;
    *in_front |= *scheme ? strcmp(scheme, "never") != 0 : fsdp__gguf_json_true(step, "add_prefix_space", true);
    return !splits || !json_object_get(vocabulary, FSDP__GGUF_MARK FSDP__GGUF_MARK);
}

fsdp_status fsdp__gguf_space_in_front(const char *path, const json_t *root, bool *out)
{
    const json_t *normalizer = json_object_get(root, "normalizer"), *pre = json_object_get(root, "pre_tokenizer");
    const json_t *vocabulary = json_object_get(json_object_get(root, "model"), "vocab");
    bool marks = false, same = true;

    *out = false;
    if (json_is_object(normalizer))
        same = take_normalizer(normalizer, out, &marks);
    if (same && json_is_object(pre))
        same = take_pre_tokenizer(pre, vocabulary, out, &marks);
    if (same && marks)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_UNSUPPORTED,
        "'%s' cannot be written as GGUF: its normalizer or pre_tokenizer does something else than Llama's, "
        "Mistral's or Gemma's",
        path);
}

/* ---- scores ---- */

static bool is_added(int32_t type)
{
    return type == FSDP__PIECE_CONTROL || type == FSDP__PIECE_USER_DEFINED;
}

fsdp_status fsdp__gguf_list_pieces(const char *path, const fsdp__sentencepiece *model, fsdp__gguf_tokens *t)
{
    const char *what = !model->bpe             ? "is a Unigram model, not BPE"
                       : model->table          ? "has a table of characters to be replaced"
                       : model->single_spaces  ? "removes spaces (remove_extra_whitespaces)"
                       : !model->byte_fallback ? "has no tokens of bytes"
                                               : NULL;

    if (what)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s' cannot be written as GGUF: it %s", path, what);
    for (int64_t id = 0; id < model->count; id++) {
        const fsdp__piece *piece = &model->pieces[id];
        const char *text = id < t->count ? t->texts[id] : NULL;

        if (text && strcmp(text, piece->text) != 0 && !is_added(t->types[id]))
            return FSDP_FAIL(FSDP_INVALID, "token %lld is '%s' in tokenizer.json, but '%s' in '%s'", (long long)id,
                             text, piece->text, path);
        if (!text || !is_added(t->types[id]))
            FSDP_TRY(fsdp__gguf_tokens_set(t, path, piece->text, id, (int32_t)piece->type, piece->score));
    }
    return FSDP_OK;
}

static const json_t *find_part(const json_t *vocabulary, const char *text, size_t bytes)
{
    return json_object_getn(vocabulary, text, bytes);
}

/* Returns where the first character after `at` begins. */
static size_t next_character(const char *text, size_t at)
{
    for (at++; ((unsigned char)text[at] & 0xc0) == 0x80;)
        at++;
    return at;
}

static int64_t count_ways(const json_t *vocabulary, const char *text)
{
    size_t bytes = strlen(text);
    int64_t ways = 0;

    for (size_t at = next_character(text, 0); at < bytes; at = next_character(text, at))
        ways += find_part(vocabulary, text, at) && find_part(vocabulary, text + at, bytes - at);
    return ways;
}

/* Finds the token that a merge makes. */
static fsdp_status find_made(const char *path, const json_t *vocabulary, const json_t *merge, int64_t *out)
{
    const char *left = json_string_value(json_array_get(merge, 0));
    const char *right = json_string_value(json_array_get(merge, 1));
    FSDP__FREED char *text = NULL;
    const json_t *id;
    char *space;

    FSDP__TRY_NEW(text = left && right              ? fsdp__sprintf("%s%s", left, right)
                         : json_string_value(merge) ? fsdp__strdup(json_string_value(merge))
                                                    : fsdp__strdup(" "));
    if (!left && (space = strchr(text, ' ')) != NULL)
        memmove(space, space + 1, strlen(space));
    id = json_object_get(vocabulary, text);
    if (!json_is_integer(id))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a merge makes '%s', which is no token", path, text);
    *out = json_integer_value(id);
    return FSDP_OK;
}

/* Counts the merges of each token; its score is lower than those of tokens whose merges come before. */
static fsdp_status count_merges(const char *path, const json_t *model, fsdp__gguf_tokens *t, int64_t *counts)
{
    const json_t *vocabulary = json_object_get(model, "vocab");
    int64_t last = -1, id = -1, order = 0;
    json_t *merge;
    size_t i;

    json_array_foreach(json_object_get(model, "merges"), i, merge)
    {
        FSDP_TRY(find_made(path, vocabulary, merge, &id));
        if (is_added(t->types[id]))
            continue;
        if (id != last && counts[id] > 0)
            return FSDP_FAIL(
                FSDP_UNSUPPORTED,
                "'%s' cannot be written as GGUF: merges that make '%s' are not one after the other, so that "
                "no score of it gives their order",
                path, t->texts[id]);
        if (id != last)
            t->scores[id] = (float)-order++;
        counts[id]++;
        last = id;
    }
    return FSDP_OK;
}

fsdp_status fsdp__gguf_score_by_merges(const char *path, const json_t *model, fsdp__gguf_tokens *t)
{
    FSDP__FREED int64_t *counts = fsdp__calloc((size_t)t->count + 1, sizeof *counts);
    const json_t *vocabulary = json_object_get(model, "vocab");
    int64_t lowest = (int64_t)json_array_size(json_object_get(model, "merges"));

    FSDP__TRY_NEW(counts);
    FSDP_TRY(count_merges(path, model, t, counts));
    for (int64_t id = 0; id < t->count; id++) {
        if (!t->texts[id] || t->types[id] != FSDP__PIECE_NORMAL)
            continue;
        if (counts[id] == 0) /* a character */
            t->scores[id] = (float)-lowest;
        if (counts[id] != count_ways(vocabulary, t->texts[id]))
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "'%s' cannot be written as GGUF: two tokens can be '%s' in %lld ways, and llama.cpp would "
                             "take any, but there are %lld merges",
                             path, t->texts[id], (long long)count_ways(vocabulary, t->texts[id]),
                             (long long)counts[id]);
    }
    return FSDP_OK;
}

/* ---- merges ---- */

static fsdp_status add_merges(const json_t *vocabulary, const char *text, json_t *merges)
{
    size_t bytes = strlen(text);

    for (size_t at = next_character(text, 0); at < bytes; at = next_character(text, at))
        if (find_part(vocabulary, text, at) && find_part(vocabulary, text + at, bytes - at) &&
            json_array_append_new(merges, json_pack("[s%,s%]", text, at, text + at, bytes - at)) != 0)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
    return FSDP_OK;
}

fsdp_status fsdp__gguf_merges_of_scores(const char *path, const fsdp__gguf_tokens *t, const json_t *vocabulary,
                                        json_t *merges)
{
    FSDP__FREED fsdp__scored_piece *order = fsdp__calloc((size_t)t->count + 1, sizeof *order);
    int64_t count = 0;
    bool differ = false;

    FSDP__TRY_NEW(order);
    for (int64_t id = 0; id < t->count; id++)
        if (t->texts[id] && (t->types[id] == FSDP__PIECE_NORMAL || t->types[id] == FSDP__PIECE_USER_DEFINED))
            order[count++] = (fsdp__scored_piece){.score = t->scores[id], .id = id};
    qsort(order, (size_t)count, sizeof *order, fsdp__by_score);
    for (int64_t i = 0; i < count; i++) {
        differ |= order[i].score < order[0].score;
        FSDP_TRY(add_merges(vocabulary, t->texts[order[i].id], merges));
    }
    if (!differ && json_array_size(merges) > 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s': all tokens have the same score: the file does not say which merges "
                         "come first",
                         path);
    return FSDP_OK;
}
