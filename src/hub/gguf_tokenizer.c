/* gguf_tokenizer.c - byte-level BPE of a tokenizer.json in files of llama.cpp, and back.
 *
 * llama.cpp has names for ways of splitting text where a tokenizer.json has patterns; those of GPT-2, SmolLM, Llama 3
 * and Qwen2 are known here. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/json.h"
#include "hub/gguf.h"

enum {
    NORMAL = 1,
    CONTROL = 3,
    USER_DEFINED = 4,
    UNUSED = 5
};

#define LIMIT_BYTES ((size_t)256 << 20)

static const char llama3_split[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_split[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- ways of splitting ---- */

typedef struct splitting {
    const char *pre;   /* llama.cpp's name */
    const char *regex; /* of a Split before the bytes; NULL: GPT-2's own */
    bool digits;       /* each digit is by itself */
} splitting;

static const splitting splittings[] = {
    {"gpt-2", NULL, false}, {"smollm", NULL, true}, {"llama-bpe", llama3_split, false}, {"qwen2", qwen2_split, false}};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static bool is_true(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* Returns whether a pre-tokenizer, of one or several steps, splits in this way. */
static bool splits_so(const json_t *pre, const splitting *s)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    const json_t *last = list ? json_array_get(list, json_array_size(list) - 1) : pre, *first = json_array_get(list, 0);
    bool two = s->regex || s->digits;

    if (strcmp(text_of(last, "type"), "ByteLevel") != 0 || is_true(last, "use_regex", true) != !s->regex ||
        is_true(last, "add_prefix_space", true) || (list ? json_array_size(list) : 1) != (two ? 2u : 1u))
        return false;
    if (s->digits)
        return strcmp(text_of(first, "type"), "Digits") == 0 && is_true(first, "individual_digits", false);
    return !s->regex || (strcmp(text_of(first, "type"), "Split") == 0 &&
                         strcmp(text_of(first, "behavior"), "Isolated") == 0 && !is_true(first, "invert", false) &&
                         strcmp(text_of(json_object_get(first, "pattern"), "Regex"), s->regex) == 0);
}

static const splitting *find_splitting(const json_t *pre)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(splittings); i++)
        if (splits_so(pre, &splittings[i]))
            return &splittings[i];
    return NULL;
}

/* ---- out ---- */

/* The tokens by their ids; texts are borrowed from the JSON. */
typedef struct tokens {
    const char **texts; /* NULL: no token has this id */
    int32_t *types;
    int64_t count;
} tokens;

static void release_tokens(tokens *t)
{
    fsdp__free(t->texts);
    fsdp__free(t->types);
}

static fsdp_status add_token(tokens *t, const char *path, const char *text, const json_t *id, int32_t type)
{
    if (!text || !json_is_integer(id) || json_integer_value(id) < 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a token without a text or an id", path);
    if (json_integer_value(id) >= t->count)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has token %lld, but the model has %lld", path,
                         (long long)json_integer_value(id), (long long)t->count);
    t->texts[json_integer_value(id)] = text;
    t->types[json_integer_value(id)] = type;
    return FSDP_OK;
}

static fsdp_status list_tokens(const char *path, const json_t *root, tokens *t)
{
    const char *text;
    json_t *value;
    size_t i;

    t->texts = fsdp__calloc((size_t)t->count + 1, sizeof *t->texts);
    t->types = fsdp__calloc((size_t)t->count + 1, sizeof *t->types);
    FSDP__TRY_NEW(t->texts && t->types);
    json_object_foreach(json_object_get(json_object_get(root, "model"), "vocab"), text, value)
        FSDP_TRY(add_token(t, path, text, value, NORMAL));
    json_array_foreach(json_object_get(root, "added_tokens"), i, value)
        FSDP_TRY(add_token(t, path, json_string_value(json_object_get(value, "content")), json_object_get(value, "id"),
                           is_true(value, "special", false) ? CONTROL : USER_DEFINED));
    return FSDP_OK;
}

static void put_tokens(fsdp__gguf_header *h, const tokens *t)
{
    char pad[32];

    fsdp__gguf_put_array(h, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, (uint64_t)t->count);
    for (int64_t i = 0; i < t->count; i++) {
        const char *text = t->texts[i];

        snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
        text = text ? text : pad;
        fsdp__gguf_add_text(h, text, strlen(text));
    }
    fsdp__gguf_put_array(h, "tokenizer.ggml.token_type", FSDP__GGUF_I32, (uint64_t)t->count);
    for (int64_t i = 0; i < t->count; i++)
        fsdp__gguf_add_i32(h, t->texts[i] ? t->types[i] : UNUSED);
}

/* Puts merges, each "left right" or [left, right]. */
static fsdp_status put_merges(fsdp__gguf_header *h, const char *path, const json_t *merges)
{
    json_t *merge;
    size_t i;

    fsdp__gguf_put_array(h, "tokenizer.ggml.merges", FSDP__GGUF_TEXT, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        const char *left = json_string_value(json_array_get(merge, 0)),
                   *right = json_string_value(json_array_get(merge, 1));
        FSDP__FREED char *both = left && right ? fsdp__sprintf("%s %s", left, right) : NULL;
        const char *text = both ? both : json_string_value(merge);

        if (!text)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': merge %zu is no pair of tokens", path, i);
        fsdp__gguf_add_text(h, text, strlen(text));
    }
    return FSDP_OK;
}

/* Returns the text of a special token, which is a text or an object with its content; NULL: none. */
static const char *special_text(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);

    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static int64_t id_of(const tokens *t, const char *text)
{
    for (int64_t i = 0; text && i < t->count; i++)
        if (t->texts[i] && strcmp(t->texts[i], text) == 0)
            return i;
    return -1;
}

static void put_id(fsdp__gguf_header *h, const char *key, int64_t id)
{
    if (id >= 0)
        fsdp__gguf_put_integer(h, key, FSDP__GGUF_U32, id);
}

/* Returns whether a post-processor puts this token in front of a text. */
static bool begins_with(const json_t *post, const char *token)
{
    const json_t *first = json_array_get(json_object_get(post, "single"), 0);
    json_t *step;
    size_t i;

    json_array_foreach(json_object_get(post, "processors"), i, step)
    {
        if (begins_with(step, token))
            return true;
    }
    return strcmp(text_of(json_object_get(first, "SpecialToken"), "id"), token) == 0;
}

static void put_specials(fsdp__gguf_header *h, const tokens *t, const json_t *root, const json_t *config,
                         const fsdp_model_config *model)
{
    const char *bos = special_text(config, "bos_token");
    int64_t begin = id_of(t, bos), end = id_of(t, special_text(config, "eos_token"));

    if (begin < 0 && model->has_bos_token && model->bos_token < t->count)
        begin = model->bos_token, bos = t->texts[begin];
    if (end < 0 && model->eos_token_count > 0)
        end = model->eos_tokens[0];
    put_id(h, "tokenizer.ggml.bos_token_id", begin);
    put_id(h, "tokenizer.ggml.eos_token_id", end);
    put_id(h, "tokenizer.ggml.unknown_token_id", id_of(t, special_text(config, "unk_token")));
    put_id(h, "tokenizer.ggml.padding_token_id", id_of(t, special_text(config, "pad_token")));
    fsdp__gguf_put_integer(
        h, "tokenizer.ggml.add_bos_token", FSDP__GGUF_BOOL,
        bos && (begins_with(json_object_get(root, "post_processor"), bos) || is_true(config, "add_bos_token", false)));
}

/* Puts the chat template: chat_template.jinja, or of tokenizer_config.json a text or the default of a list. */
static fsdp_status put_template(fsdp__gguf_header *h, const char *folder, const json_t *config)
{
    const json_t *given = json_object_get(config, "chat_template");
    const char *text = json_string_value(given);
    FSDP__FREED char *path = fsdp__path_join(folder, "chat_template.jinja"), *file = NULL;
    size_t bytes, i;
    json_t *one;

    FSDP__TRY_NEW(path);
    if (fsdp__path_exists(path)) {
        FSDP_TRY(fsdp__file_read(path, LIMIT_BYTES, &file, &bytes));
        text = file;
    }
    json_array_foreach(given, i, one)
    {
        if (!file && (!text || strcmp(text_of(one, "name"), "default") == 0))
            text = json_string_value(json_object_get(one, "template"));
    }
    if (text)
        fsdp__gguf_put_text(h, "tokenizer.chat_template", text);
    return FSDP_OK;
}

static fsdp_status put_parsed(fsdp__gguf_header *h, const char *folder, const char *path, const json_t *root,
                              const json_t *config, const fsdp_model_config *model)
{
    const json_t *bpe = json_object_get(root, "model");
    const splitting *s = find_splitting(json_object_get(root, "pre_tokenizer"));
    FSDP__SCOPED(release_tokens) tokens t = {.count = model->vocab_size};

    if (strcmp(text_of(bpe, "type"), "BPE") != 0 || is_true(bpe, "byte_fallback", false) || !s)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' cannot be written as GGUF: only byte-level BPE that splits text as GPT-2, SmolLM, "
                         "Llama 3 or Qwen2 does",
                         path);
    FSDP_TRY(list_tokens(path, root, &t));
    fsdp__gguf_put_text(h, "tokenizer.ggml.model", "gpt2");
    fsdp__gguf_put_text(h, "tokenizer.ggml.pre", s->pre);
    put_tokens(h, &t);
    FSDP_TRY(put_merges(h, path, json_object_get(bpe, "merges")));
    put_specials(h, &t, root, config, model);
    return put_template(h, folder, config);
}

/* Reads a JSON file of the folder. `*out` stays NULL if it does not exist. */
static fsdp_status load(const char *folder, const char *name, char **path, json_t **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;

    FSDP__TRY_NEW(*path = fsdp__path_join(folder, name));
    if (!fsdp__path_exists(*path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(*path, LIMIT_BYTES, &text, &bytes));
    return fsdp__json_parse_large(*path, text, bytes, out);
}

fsdp_status fsdp__gguf_put_tokenizer(fsdp__gguf_header *header, const char *folder, const fsdp_model_config *config)
{
    FSDP__FREED char *path = NULL, *config_path = NULL;
    json_t *root = NULL, *settings = NULL;
    fsdp_status status = load(folder, "tokenizer.json", &path, &root);

    if (status == FSDP_OK && !root)
        status = FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no tokenizer.json", folder);
    if (status == FSDP_OK)
        status = load(folder, "tokenizer_config.json", &config_path, &settings);
    if (status == FSDP_OK)
        status = put_parsed(header, folder, path, root, settings, config);
    json_decref(root);
    json_decref(settings);
    return status;
}

/* ---- in ---- */

static json_t *byte_level(bool regex)
{
    return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                     regex);
}

static json_t *pre_tokenizer(const splitting *s)
{
    if (s->digits)
        return json_pack("{s:s,s:[{s:s,s:b},o]}", "type", "Sequence", "pretokenizers", "type", "Digits",
                         "individual_digits", 1, byte_level(true));
    if (!s->regex)
        return byte_level(true);
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", s->regex, "behavior", "Isolated", "invert", 0, byte_level(false));
}

/* Puts a token in front of a text. */
static json_t *post_processor(const char *token, int64_t id)
{
    json_t *special = json_pack("{s:{s:s,s:i}}", "SpecialToken", "id", token, "type_id", 0);
    json_t *a = json_pack("{s:{s:s,s:i}}", "Sequence", "id", "A", "type_id", 0);
    json_t *b = json_pack("{s:{s:s,s:i}}", "Sequence", "id", "B", "type_id", 1);

    return json_pack("{s:s,s:[O,O],s:[o,o,o],s:{s:{s:s,s:[I],s:[s]}}}", "type", "TemplateProcessing", "single", special,
                     a, "pair", special, a, b, "special_tokens", token, "id", token, "ids", (json_int_t)id, "tokens",
                     token);
}

/* Appends to the list of added tokens. Returns false when out of memory. */
static bool add_added(json_t *added, uint64_t id, const char *token, bool special)
{
    return json_array_append_new(added, json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content",
                                                  token, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
                                                  "special", special)) == 0;
}

/* Fills the vocabulary and the list of added tokens. */
static fsdp_status take_tokens(const fsdp__gguf *file, json_t *vocabulary, json_t *added)
{
    const fsdp__gguf_value *texts, *types = fsdp__gguf_find(file, "tokenizer.ggml.token_type");
    const unsigned char *at;

    FSDP_TRY(fsdp__gguf_array(file, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, &texts));
    if (types)
        FSDP_TRY(fsdp__gguf_array(file, "tokenizer.ggml.token_type", FSDP__GGUF_I32, &types));
    if (types && types->count != texts->count)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': there are %llu tokens, but %llu types of tokens", file->path,
                         (unsigned long long)texts->count, (unsigned long long)types->count);
    at = texts->data;
    for (uint64_t i = 0; i < texts->count; i++) {
        fsdp__gguf_text text = fsdp__gguf_next_text(&at);
        int32_t type = types ? fsdp__gguf_i32_at(types, i) : NORMAL;
        FSDP__FREED char *token = fsdp__sprintf("%.*s", (int)text.bytes, text.data);

        FSDP__TRY_NEW(token);
        if (type == UNUSED)
            continue;
        if (strlen(token) != text.bytes || json_object_get(vocabulary, token) ||
            json_object_set_new(vocabulary, token, json_integer((json_int_t)i)) != 0)
            return FSDP_FAIL(FSDP_FORMAT, "'%s': token %llu is given twice, or is no UTF-8", file->path,
                             (unsigned long long)i);
        if ((type == CONTROL || type == USER_DEFINED) && !add_added(added, i, token, type == CONTROL))
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
    }
    return FSDP_OK;
}

static fsdp_status take_merges(const fsdp__gguf *file, json_t *merges)
{
    const fsdp__gguf_value *texts;
    const unsigned char *at;

    FSDP_TRY(fsdp__gguf_array(file, "tokenizer.ggml.merges", FSDP__GGUF_TEXT, &texts));
    at = texts->data;
    for (uint64_t i = 0; i < texts->count; i++) {
        fsdp__gguf_text text = fsdp__gguf_next_text(&at);

        if (json_array_append_new(merges, json_stringn(text.data, text.bytes)) != 0)
            return FSDP_FAIL(FSDP_FORMAT, "'%s': merge %llu is no UTF-8", file->path, (unsigned long long)i);
    }
    return FSDP_OK;
}

/* Sets a special token of tokenizer_config.json. `*out` becomes its text, borrowed, or NULL. */
static fsdp_status take_special(const fsdp__gguf *file, const char *key, const json_t *vocabulary, json_t *config,
                                const char *name, const char **out)
{
    int64_t id = -1;
    const char *token;
    json_t *value;

    *out = NULL;
    FSDP_TRY(fsdp__gguf_integer(file, key, false, &id));
    json_object_foreach((json_t *)(uintptr_t)vocabulary, token, value)
    {
        if (json_integer_value(value) == id)
            *out = token;
    }
    if (id >= 0 && *out)
        json_object_set_new(config, name, json_string(*out));
    return FSDP_OK;
}

static fsdp_status take_config(const fsdp__gguf *file, json_t *root, const json_t *vocabulary, json_t *config)
{
    FSDP__FREED char *template = NULL;
    const char *bos, *other;
    int64_t add_bos = 0;

    FSDP_TRY(take_special(file, "tokenizer.ggml.bos_token_id", vocabulary, config, "bos_token", &bos));
    FSDP_TRY(take_special(file, "tokenizer.ggml.eos_token_id", vocabulary, config, "eos_token", &other));
    FSDP_TRY(take_special(file, "tokenizer.ggml.unknown_token_id", vocabulary, config, "unk_token", &other));
    FSDP_TRY(take_special(file, "tokenizer.ggml.padding_token_id", vocabulary, config, "pad_token", &other));
    FSDP_TRY(fsdp__gguf_integer(file, "tokenizer.ggml.add_bos_token", false, &add_bos));
    if (bos && add_bos)
        json_object_set_new(root, "post_processor",
                            post_processor(bos, json_integer_value(json_object_get(vocabulary, bos))));
    FSDP_TRY(fsdp__gguf_string(file, "tokenizer.chat_template", false, &template));
    if (template && json_object_set_new(config, "chat_template", json_string(template)) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': tokenizer.chat_template is no UTF-8", file->path);
    return FSDP_OK;
}

static const splitting *splitting_named(const char *pre)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(splittings); i++)
        if (strcmp(splittings[i].pre, pre) == 0)
            return &splittings[i];
    return NULL;
}

static fsdp_status take_all(const fsdp__gguf *file, const splitting *s, json_t *root, json_t *config)
{
    json_t *vocabulary = json_object(), *added = json_array(), *merges = json_array();
    bool llama3 = s->regex == llama3_split;

    json_object_update_new(
        root, json_pack("{s:s,s:n,s:n,s:o,s:o?,s:o,s:n,s:o}", "version", "1.0", "truncation", "padding", "added_tokens",
                        added, "normalizer", s->regex == qwen2_split ? json_pack("{s:s}", "type", "NFC") : NULL,
                        "pre_tokenizer", pre_tokenizer(s), "post_processor", "decoder", byte_level(true)));
    json_object_set_new(root, "model",
                        json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "type", "BPE", "dropout", "unk_token",
                                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                                  "ignore_merges", llama3, "vocab", vocabulary, "merges", merges));
    if (!json_object_get(root, "model") || !json_object_get(root, "added_tokens"))
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
    FSDP_TRY(take_tokens(file, vocabulary, added));
    FSDP_TRY(take_merges(file, merges));
    return take_config(file, root, vocabulary, config);
}

/* Gives a JSON's text in memory of ours. */
static fsdp_status dump(const json_t *value, char **out)
{
    size_t bytes = json_dumpb(value, NULL, 0, JSON_INDENT(1));

    *out = bytes > 0 ? fsdp__calloc(bytes + 1, 1) : NULL;
    if (!*out)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
    json_dumpb(value, *out, bytes, JSON_INDENT(1));
    return FSDP_OK;
}

fsdp_status fsdp__gguf_tokenizer(const fsdp__gguf *file, char **json, char **config_json)
{
    FSDP__FREED char *model = NULL, *pre = NULL;
    const splitting *s;
    json_t *root, *config;
    fsdp_status status;

    *json = *config_json = NULL;
    FSDP_TRY(fsdp__gguf_string(file, "tokenizer.ggml.model", false, &model));
    if (!model || strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__gguf_string(file, "tokenizer.ggml.pre", false, &pre));
    s = splitting_named(pre ? pre : "gpt-2");
    if (strcmp(model, "gpt2") != 0 || !s)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' has a tokenizer of kind '%s'%s%s: byte-level BPE (gpt2) that splits as gpt-2, smollm, "
                         "llama-bpe or qwen2 can be read",
                         file->path, model, pre ? ", which splits as " : "", pre ? pre : "");
    root = json_object();
    config = json_pack("{s:s,s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
    status =
        root && config ? take_all(file, s, root, config) : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a tokenizer");
    if (status == FSDP_OK)
        status = dump(root, json);
    if (status == FSDP_OK)
        status = dump(config, config_json);
    json_decref(root);
    json_decref(config);
    return status;
}
