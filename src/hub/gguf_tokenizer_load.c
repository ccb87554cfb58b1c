/* gguf_tokenizer_load.c - makes tokenizer.json and tokenizer_config.json of the tokenizer of a file of llama.cpp. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "hub/gguf_tokenizer.h"

/* Holds a tokenizer in the making. */
typedef struct making {
    const fsdp__gguf *file;
    const fsdp__gguf_splitting *way;                     /* NULL: SentencePiece's */
    fsdp__gguf_tokens tokens;                            /* texts are keys of the vocabulary */
    json_t *root, *config, *vocabulary, *added, *merges; /* the last three are borrowed from root */
    bool in_front;                                       /* a space is put in front of a text */
} making;

static fsdp_status no_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
}

/* Sets a key, and takes the value over. */
static fsdp_status put(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0 ? FSDP_OK : no_memory();
}

/* ---- parts of a tokenizer.json ---- */

static json_t *byte_level(bool regex)
{
    return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                     regex);
}

static json_t *pre_tokenizer(const fsdp__gguf_splitting *way)
{
    if (!way)
        return json_null();
    if (way->digits)
        return json_pack("{s:s,s:[{s:s,s:b},o]}", "type", "Sequence", "pretokenizers", "type", "Digits",
                         "individual_digits", 1, byte_level(true));
    if (!way->regex)
        return byte_level(true);
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", way->regex, "behavior", "Isolated", "invert", 0, byte_level(false));
}

static json_t *normalizer(const making *m)
{
    json_t *spaces;

    if (m->way)
        return m->way->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    spaces = json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", " ", "content", FSDP__GGUF_MARK);
    if (!m->in_front)
        return spaces;
    return json_pack("{s:s,s:[{s:s,s:s},o]}", "type", "Sequence", "normalizers", "type", "Prepend", "prepend",
                     FSDP__GGUF_MARK, spaces);
}

static json_t *decoder(const making *m)
{
    json_t *steps;

    if (m->way)
        return byte_level(true);
    steps = json_pack("[{s:s,s:{s:s},s:s},{s:s},{s:s}]", "type", "Replace", "pattern", "String", FSDP__GGUF_MARK,
                      "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (m->in_front && json_array_append_new(steps, json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ",
                                                              "start", 1, "stop", 0)) != 0) {
        json_decref(steps);
        return NULL;
    }
    return json_pack("{s:s,s:o}", "type", "Sequence", "decoders", steps);
}

/* Appends a token to what goes around a text, and says which it is; NULL: none. */
static fsdp_status add_end(const json_t *vocabulary, const char *token, json_t *list, json_t *tokens)
{
    json_t *one;

    if (!token)
        return FSDP_OK;
    one = json_pack("{s:{s:s,s:i}}", "SpecialToken", "id", token, "type_id", 0);
    if (!one || json_array_append_new(list, one) != 0)
        return no_memory();
    return put(tokens, token,
               json_pack("{s:s,s:[O],s:[s]}", "id", token, "ids", json_object_get(vocabulary, token), "tokens", token));
}

static fsdp_status add_sequence(const char *name, int type, json_t *list)
{
    json_t *one = json_pack("{s:{s:s,s:i}}", "Sequence", "id", name, "type_id", type);

    return one && json_array_append_new(list, one) == 0 ? FSDP_OK : no_memory();
}

/* Puts tokens before a text, or two, and after; NULL: none. */
static fsdp_status put_post_processor(making *m, const char *begin, const char *end)
{
    json_t *all = json_pack("{s:s,s:[],s:[],s:{}}", "type", "TemplateProcessing", "single", "pair", "special_tokens");
    json_t *lists[] = {json_object_get(all, "single"), json_object_get(all, "pair")};
    json_t *tokens = json_object_get(all, "special_tokens");

    FSDP_TRY(put(m->root, "post_processor", all));
    for (int pair = 0; pair < 2; pair++) {
        FSDP_TRY(add_end(m->vocabulary, begin, lists[pair], tokens));
        FSDP_TRY(add_sequence("A", 0, lists[pair]));
        if (pair)
            FSDP_TRY(add_sequence("B", 1, lists[pair]));
        FSDP_TRY(add_end(m->vocabulary, end, lists[pair], tokens));
    }
    return FSDP_OK;
}

/* ---- tokens ---- */

/* Gets an array of tokenizer.ggml.*, with a value for each token. */
static fsdp_status get_beside(const fsdp__gguf *file, const char *key, fsdp__gguf_kind kind, uint64_t count,
                              const fsdp__gguf_value **out)
{
    FSDP_TRY(fsdp__gguf_array(file, key, kind, out));
    if ((*out)->count == count)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "'%s': there are %llu tokens, but %llu values of '%s'", file->path,
                     (unsigned long long)count, (unsigned long long)(*out)->count, key);
}

/* Copies a token's text. Spaces that the file has instead of marks become marks again, where there is nothing else. */
static char *copy_token(const making *m, fsdp__gguf_text text, int32_t type)
{
    size_t mark = strlen(FSDP__GGUF_MARK), spaces = 0;
    char *out;

    while (!m->way && type == FSDP__PIECE_USER_DEFINED && spaces < text.bytes && text.data[spaces] == ' ')
        spaces++;
    if (spaces == 0 || spaces < text.bytes) {
        if ((out = fsdp__calloc(text.bytes + 1, 1)) != NULL)
            memcpy(out, text.data, text.bytes);
        return out;
    }
    if ((out = fsdp__calloc(spaces * mark + 1, 1)) != NULL)
        for (size_t i = 0; i < spaces; i++)
            memcpy(out + i * mark, FSDP__GGUF_MARK, mark);
    return out;
}

static fsdp_status add_added(making *m, const char *token, int64_t id, int32_t type)
{
    json_t *one = json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content", token, "single_word", 0,
                            "lstrip", 0, "rstrip", 0, "normalized", 0, "special", type != FSDP__PIECE_USER_DEFINED);

    return one && json_array_append_new(m->added, one) == 0 ? FSDP_OK : no_memory();
}

static fsdp_status take_token(making *m, int64_t id, fsdp__gguf_text text, int32_t type, float score)
{
    FSDP__FREED char *token = copy_token(m, text, type);

    FSDP__TRY_NEW(token);
    if (type == FSDP__PIECE_UNUSED)
        return FSDP_OK;
    if (!isfinite(score))
        return FSDP_FAIL(FSDP_FORMAT, "'%s': the score of token %lld is not finite", m->file->path, (long long)id);
    if (text.bytes == 0 || memchr(text.data, 0, text.bytes) || json_object_get(m->vocabulary, token) ||
        json_object_set_new(m->vocabulary, token, json_integer((json_int_t)id)) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': token %lld is empty, is given twice, or is no UTF-8", m->file->path,
                         (long long)id);
    m->tokens.texts[id] =
        json_object_iter_key(json_object_iter_at(m->vocabulary, token)); /* lives as long as the vocabulary */
    m->tokens.types[id] = type;
    m->tokens.scores[id] = score;
    if (type == FSDP__PIECE_CONTROL || type == FSDP__PIECE_USER_DEFINED || type == FSDP__PIECE_UNKNOWN)
        return add_added(m, token, id, type);
    return FSDP_OK;
}

/* Fills the vocabulary and the list of added tokens. */
static fsdp_status take_tokens(making *m)
{
    const fsdp__gguf_value *texts, *types = fsdp__gguf_find(m->file, "tokenizer.ggml.token_type"), *scores = NULL;
    const unsigned char *at;

    FSDP_TRY(fsdp__gguf_array(m->file, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, &texts));
    if (types || !m->way)
        FSDP_TRY(get_beside(m->file, "tokenizer.ggml.token_type", FSDP__GGUF_I32, texts->count, &types));
    if (!m->way)
        FSDP_TRY(get_beside(m->file, "tokenizer.ggml.scores", FSDP__GGUF_REAL, texts->count, &scores));
    FSDP_TRY(fsdp__gguf_tokens_init(&m->tokens, (int64_t)texts->count));
    at = texts->data;
    for (uint64_t i = 0; i < texts->count; i++) {
        fsdp__gguf_text text = fsdp__gguf_next_text(&at);
        int32_t type = types ? fsdp__gguf_i32_at(types, i) : FSDP__PIECE_NORMAL;

        FSDP_TRY(take_token(m, (int64_t)i, text, type, scores ? fsdp__gguf_real_at(scores, i) : 0));
    }
    return FSDP_OK;
}

static fsdp_status take_merges(making *m)
{
    const fsdp__gguf_value *texts;
    const unsigned char *at;

    if (!m->way)
        return fsdp__gguf_merges_of_scores(m->file->path, &m->tokens, m->vocabulary, m->merges);
    FSDP_TRY(fsdp__gguf_array(m->file, "tokenizer.ggml.merges", FSDP__GGUF_TEXT, &texts));
    at = texts->data;
    for (uint64_t i = 0; i < texts->count; i++) {
        fsdp__gguf_text text = fsdp__gguf_next_text(&at);

        if (json_array_append_new(m->merges, json_stringn(text.data, text.bytes)) != 0)
            return FSDP_FAIL(FSDP_FORMAT, "'%s': merge %llu is no UTF-8", m->file->path, (unsigned long long)i);
    }
    return FSDP_OK;
}

/* ---- all of it ---- */

/* Sets a special token of tokenizer_config.json. `*out` becomes its text, borrowed, or NULL; `usual` is the id that
 * llama.cpp takes for one of SentencePiece's that the file does not name. */
static fsdp_status take_special(making *m, const char *key, const char *name, int64_t usual, const char **out)
{
    int64_t id = m->way ? -1 : usual;

    FSDP_TRY(fsdp__gguf_integer(m->file, key, false, &id));
    *out = id >= 0 && id < m->tokens.count ? m->tokens.texts[id] : NULL;
    return *out ? put(m->config, name, json_string(*out)) : FSDP_OK;
}

/* Puts what stands around a text. Files without a word of it mean what llama.cpp takes them for. */
static fsdp_status take_ends(making *m, const char *begin, const char *end)
{
    int64_t add_begin = !m->way, add_end = 0;

    FSDP_TRY(fsdp__gguf_integer(m->file, "tokenizer.ggml.add_bos_token", false, &add_begin));
    FSDP_TRY(fsdp__gguf_integer(m->file, "tokenizer.ggml.add_eos_token", false, &add_end));
    begin = add_begin ? begin : NULL;
    end = add_end ? end : NULL;
    if (!begin && !end)
        return FSDP_OK;
    return put_post_processor(m, begin, end);
}

static fsdp_status take_config(making *m)
{
    FSDP__FREED char *template = NULL;
    const char *begin, *end, *unknown, *padding;

    FSDP_TRY(take_special(m, "tokenizer.ggml.bos_token_id", "bos_token", 1, &begin));
    FSDP_TRY(take_special(m, "tokenizer.ggml.eos_token_id", "eos_token", 2, &end));
    FSDP_TRY(take_special(m, "tokenizer.ggml.unknown_token_id", "unk_token", 0, &unknown));
    FSDP_TRY(take_special(m, "tokenizer.ggml.padding_token_id", "pad_token", -1, &padding));
    FSDP_TRY(take_ends(m, begin, end));
    if (!m->way && unknown)
        FSDP_TRY(put(json_object_get(m->root, "model"), "unk_token", json_string(unknown)));
    FSDP_TRY(fsdp__gguf_string(m->file, "tokenizer.chat_template", false, &template));
    if (template && json_object_set_new(m->config, "chat_template", json_string(template)) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': tokenizer.chat_template is no UTF-8", m->file->path);
    return FSDP_OK;
}

static fsdp_status take_all(making *m)
{
    bool pieces = !m->way;
    int64_t in_front = 1;
    json_t *model;

    FSDP_TRY(fsdp__gguf_integer(m->file, "tokenizer.ggml.add_space_prefix", false, &in_front));
    m->in_front = in_front != 0;
    model = json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:{},s:[]}", "type", "BPE", "dropout", "unk_token",
                      "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", pieces, "byte_fallback", pieces,
                      "ignore_merges", m->way && m->way->whole_words, "vocab", "merges");
    m->root = json_pack("{s:s,s:n,s:n,s:[],s:o,s:o,s:n,s:o,s:o}", "version", "1.0", "truncation", "padding",
                        "added_tokens", "normalizer", normalizer(m), "pre_tokenizer", pre_tokenizer(m->way),
                        "post_processor", "decoder", decoder(m), "model", model);
    m->config = json_pack("{s:s,s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
    if (!m->root || !m->config)
        return no_memory();
    m->vocabulary = json_object_get(model, "vocab");
    m->merges = json_object_get(model, "merges");
    m->added = json_object_get(m->root, "added_tokens");
    FSDP_TRY(take_tokens(m));
    FSDP_TRY(take_merges(m));
    return take_config(m);
}

/* Gives a JSON's text in memory of ours. */
static fsdp_status dump(const json_t *value, char **out)
{
    size_t bytes = json_dumpb(value, NULL, 0, JSON_INDENT(1));

    *out = bytes > 0 ? fsdp__calloc(bytes + 1, 1) : NULL;
    if (!*out)
        return no_memory();
    json_dumpb(value, *out, bytes, JSON_INDENT(1));
    return FSDP_OK;
}

static void release(making *m)
{
    fsdp__gguf_tokens_release(&m->tokens);
    json_decref(m->root);
    json_decref(m->config);
}

fsdp_status fsdp__gguf_tokenizer(const fsdp__gguf *file, char **json, char **config_json)
{
    FSDP__FREED char *model = NULL, *pre = NULL, *root = NULL;
    FSDP__SCOPED(release) making m = {.file = file};
    bool pieces;

    *json = *config_json = NULL;
    FSDP_TRY(fsdp__gguf_string(file, "tokenizer.ggml.model", false, &model));
    if (!model || strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__gguf_string(file, "tokenizer.ggml.pre", false, &pre));
    pieces = strcmp(model, "llama") == 0;
    m.way = pieces ? NULL : fsdp__gguf_splitting_named(pre ? pre : "gpt-2");
    if (!pieces && (strcmp(model, "gpt2") != 0 || !m.way))
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "'%s' has a tokenizer of kind '%s'%s%s: SentencePiece's (llama), and byte-level BPE (gpt2) that "
            "splits as gpt-2, smollm, llama-bpe or qwen2 can be read",
            file->path, model, pre ? ", which splits as " : "", pre ? pre : "");
    FSDP_TRY(take_all(&m));
    FSDP_TRY(dump(m.root, &root));
    FSDP_TRY(dump(m.config, config_json));
    *json = fsdp__take(&root);
    return FSDP_OK;
}
