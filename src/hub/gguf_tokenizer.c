/* gguf_tokenizer.c - writes a folder's tokenizer into a file of llama.cpp: byte-level BPE of a tokenizer.json, or
 * SentencePiece's BPE of a tokenizer.json or tokenizer.model.
 *
 * llama.cpp has names for ways of splitting text where a tokenizer.json has patterns; those of GPT-2, SmolLM, Llama 3
 * and Qwen2 are known here. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "chat/templates.h"
#include "hub/gguf_tokenizer.h"

#define LIMIT_BYTES ((size_t)256 << 20)

static const char llama3_split[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_split[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- ways of splitting ---- */

static const fsdp__gguf_splitting splittings[] = {
    {.pre = "gpt-2"},
    {.pre = "smollm", .digits = true},
    {.pre = "llama-bpe", .regex = llama3_split, .whole_words = true},
    {.pre = "qwen2", .regex = qwen2_split, .nfc = true},
};

const fsdp__gguf_splitting *fsdp__gguf_splitting_named(const char *pre)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(splittings); i++)
        if (strcmp(splittings[i].pre, pre) == 0)
            return &splittings[i];
    return NULL;
}

/* Returns whether a pre-tokenizer, of one or several steps, splits in this way. */
static bool splits_so(const json_t *pre, const fsdp__gguf_splitting *s)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    const json_t *last = list ? json_array_get(list, json_array_size(list) - 1) : pre, *first = json_array_get(list, 0);
    bool two = s->regex || s->digits;

    if (strcmp(fsdp__gguf_json_text(last, "type"), "ByteLevel") != 0 ||
        fsdp__gguf_json_true(last, "use_regex", true) != !s->regex ||
        fsdp__gguf_json_true(last, "add_prefix_space", true) || (list ? json_array_size(list) : 1) != (two ? 2u : 1u))
        return false;
    if (s->digits)
        return strcmp(fsdp__gguf_json_text(first, "type"), "Digits") == 0 &&
               fsdp__gguf_json_true(first, "individual_digits", false);
    return !s->regex || (strcmp(fsdp__gguf_json_text(first, "type"), "Split") == 0 &&
                         strcmp(fsdp__gguf_json_text(first, "behavior"), "Isolated") == 0 &&
                         !fsdp__gguf_json_true(first, "invert", false) &&
                         strcmp(fsdp__gguf_json_text(json_object_get(first, "pattern"), "Regex"), s->regex) == 0);
}

static const fsdp__gguf_splitting *find_splitting(const json_t *pre)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(splittings); i++)
        if (splits_so(pre, &splittings[i]))
            return &splittings[i];
    return NULL;
}

/* ---- out ---- */

static int64_t id_in(const json_t *id)
{
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* Returns whether a token is a control token for llama.cpp's converter, though its file does not say so. */
static bool looks_special(const char *text)
{
    static const char *const known[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
    size_t bytes = strlen(text);

    for (size_t i = 0; i < FSDP__COUNT_OF(known); i++)
        if (strcmp(text, known[i]) == 0)
            return true;
    return (strncmp(text, "<|", 2) == 0 && bytes > 3 && fsdp__ends_with(text, "|>")) ||
           (strncmp(text, "<unused", 7) == 0 && fsdp__ends_with(text, ">"));
}

static fsdp_status add_added(fsdp__gguf_tokens *t, const char *path, const char *text, int64_t id, bool special)
{
    bool control = special || (text && looks_special(text));

    return fsdp__gguf_tokens_set(t, path, text, id, control ? FSDP__PIECE_CONTROL : FSDP__PIECE_USER_DEFINED,
                                 FSDP__GGUF_ADDED_SCORE);
}

/* Returns whether a token stands for a byte: "<0x0A>". */
static bool is_byte(const char *text)
{
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>' && isxdigit((unsigned char)text[3]) &&
           isxdigit((unsigned char)text[4]);
}

/* Lists the vocabulary of a tokenizer.json. */
static fsdp_status list_vocabulary(const char *path, const json_t *root, fsdp__gguf_tokens *t)
{
    const json_t *model = json_object_get(root, "model");
    const char *text, *unknown = fsdp__gguf_json_text(model, "unk_token");
    json_t *value;

    json_object_foreach(json_object_get(model, "vocab"), text, value)
    {
        int32_t type = !t->pieces                   ? FSDP__PIECE_NORMAL
                       : strcmp(text, unknown) == 0 ? FSDP__PIECE_UNKNOWN
                       : is_byte(text)              ? FSDP__PIECE_BYTE
                                                    : FSDP__PIECE_NORMAL;

        FSDP_TRY(fsdp__gguf_tokens_set(t, path, text, id_in(value), type, 0));
    }
    return FSDP_OK;
}

/* Writes a text with spaces in place of marks: so llama.cpp finds it in a text before that is cut. */
static void put_spaced(fsdp__gguf_header *h, const char *text)
{
    size_t mark = strlen(FSDP__GGUF_MARK);
    FSDP__FREED char *copy = fsdp__strdup(text);
    char *to = copy;

    h->failed |= !copy;
    if (!copy)
        return;
    for (const char *from = copy; *from;) {
        bool marked = strncmp(from, FSDP__GGUF_MARK, mark) == 0;

        *to++ = marked ? ' ' : *from;
        from += marked ? mark : 1;
    }
    fsdp__gguf_add_text(h, copy, (size_t)(to - copy));
}

static void put_token(fsdp__gguf_header *h, const fsdp__gguf_tokens *t, int64_t id)
{
    char pad[32];

    snprintf(pad, sizeof pad, "[PAD%lld]", (long long)id);
    if (!t->texts[id])
        fsdp__gguf_add_text(h, pad, strlen(pad));
    else if (t->pieces && t->types[id] == FSDP__PIECE_USER_DEFINED)
        put_spaced(h, t->texts[id]);
    else
        fsdp__gguf_add_text(h, t->texts[id], strlen(t->texts[id]));
}

static void put_tokens(fsdp__gguf_header *h, const fsdp__gguf_tokens *t)
{
    fsdp__gguf_put_array(h, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, (uint64_t)t->count);
    for (int64_t i = 0; i < t->count; i++)
        put_token(h, t, i);
    if (t->pieces)
        fsdp__gguf_put_array(h, "tokenizer.ggml.scores", FSDP__GGUF_REAL, (uint64_t)t->count);
    for (int64_t i = 0; i < t->count && t->pieces; i++)
        fsdp__gguf_add_real(h, t->texts[i] ? t->scores[i] : FSDP__GGUF_PADDING_SCORE);
    fsdp__gguf_put_array(h, "tokenizer.ggml.token_type", FSDP__GGUF_I32, (uint64_t)t->count);
    for (int64_t i = 0; i < t->count; i++)
        fsdp__gguf_add_i32(h, t->texts[i] ? t->types[i] : FSDP__PIECE_UNUSED);
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

static int64_t id_of(const fsdp__gguf_tokens *t, const char *text)
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

/* Returns whether a post-processor puts this token before a text, or after it. */
static bool goes_around(const json_t *post, const char *token, bool behind)
{
    const json_t *single = json_object_get(post, "single");
    const json_t *end = json_array_get(single, behind ? json_array_size(single) - 1 : 0);
    json_t *step;
    size_t i;

    json_array_foreach(json_object_get(post, "processors"), i, step)
    {
        if (goes_around(step, token, behind))
            return true;
    }
    return strcmp(fsdp__gguf_json_text(json_object_get(end, "SpecialToken"), "id"), token) == 0;
}

/* A folder's files, and what a tokenizer.model says. */
typedef struct source {
    const char *folder;
    const fsdp_model_config *config;
    char *path, *model_path;
    char *model_data;
    json_t *root, *settings, *added; /* tokenizer.json, tokenizer_config.json, added_tokens.json; NULL: there is none */
    bool has_model;
    fsdp__sentencepiece model;
    const fsdp__gguf_splitting *way; /* of a vocab.json: root was made of that */
} source;

/* Returns the id of a special token: as tokenizer_config.json says, or else as a file with less says. */
static int64_t special_id(const source *s, const fsdp__gguf_tokens *t, const char *key, int64_t of_model, int64_t other)
{
    int64_t id = id_of(t, special_text(s->settings, key));

    id = id < 0 && s->has_model ? of_model : id;
    id = id < 0 ? other : id;
    return id < t->count ? id : -1;
}

/* Returns whether a token goes around every text. A tokenizer.model alone has `usual`. */
static bool is_put(const source *s, const fsdp__gguf_tokens *t, int64_t id, bool behind, bool usual)
{
    const char *key = behind ? "add_eos_token" : "add_bos_token";

    if (id < 0 || !t->texts[id])
        return false;
    return s->root ? goes_around(json_object_get(s->root, "post_processor"), t->texts[id], behind) ||
                         fsdp__gguf_json_true(s->settings, key, false)
                   : fsdp__gguf_json_true(s->settings, key, usual);
}

static void put_specials(fsdp__gguf_header *h, const source *s, const fsdp__gguf_tokens *t)
{
    const fsdp_model_config *c = s->config;
    int64_t begin = special_id(s, t, "bos_token", s->model.bos, c->has_bos_token ? c->bos_token : -1);
    int64_t end = special_id(s, t, "eos_token", s->model.eos, c->eos_token_count > 0 ? c->eos_tokens[0] : -1);
    int64_t unknown = id_of(t, fsdp__gguf_json_text(json_object_get(s->root, "model"), "unk_token"));

    put_id(h, "tokenizer.ggml.bos_token_id", begin);
    put_id(h, "tokenizer.ggml.eos_token_id", end);
    put_id(h, "tokenizer.ggml.unknown_token_id", special_id(s, t, "unk_token", s->model.unknown, unknown));
    put_id(h, "tokenizer.ggml.padding_token_id", special_id(s, t, "pad_token", -1, -1));
    fsdp__gguf_put_integer(h, "tokenizer.ggml.add_bos_token", FSDP__GGUF_BOOL, is_put(s, t, begin, false, true));
    fsdp__gguf_put_integer(h, "tokenizer.ggml.add_eos_token", FSDP__GGUF_BOOL, is_put(s, t, end, true, false));
}

static fsdp_status put_template(fsdp__gguf_header *h, const char *folder)
{
    FSDP__SCOPED(fsdp__templates_release) fsdp__templates all = {0};

    FSDP_TRY(fsdp__templates_read(folder, &all));
    if (all.usual.text)
        fsdp__gguf_put_text(h, "tokenizer.chat_template", all.usual.text);
    return FSDP_OK;
}

/* ---- kinds ---- */

/* Returns the id that a key is, -1: none. */
static int64_t id_of_key(const char *key)
{
    char *end;
    long long id = strtoll(key, &end, 10);

    return end > key && *end == '\0' ? id : -1;
}

/* Lists the tokens of all files but a tokenizer.model; of a token in several of them tokenizer.json says the type. */
static fsdp_status list_tokens(const source *s, fsdp__gguf_tokens *t)
{
    const char *key;
    json_t *value;
    size_t i;

    if (s->root)
        FSDP_TRY(list_vocabulary(s->path, s->root, t));
    json_object_foreach(s->added, key, value) FSDP_TRY(add_added(t, "added_tokens.json", key, id_in(value), false));
    json_object_foreach(json_object_get(s->settings, "added_tokens_decoder"), key, value)
        FSDP_TRY(add_added(t, "tokenizer_config.json", json_string_value(json_object_get(value, "content")),
                           id_of_key(key), fsdp__gguf_json_true(value, "special", false)));
    json_array_foreach(json_object_get(s->root, "added_tokens"), i, value)
        FSDP_TRY(add_added(t, s->path, json_string_value(json_object_get(value, "content")),
                           id_in(json_object_get(value, "id")), fsdp__gguf_json_true(value, "special", false)));
    return FSDP_OK;
}

static fsdp_status put_bytes(fsdp__gguf_header *h, const source *s)
{
    const json_t *bpe = json_object_get(s->root, "model");
    const fsdp__gguf_splitting *way = s->way ? s->way : find_splitting(json_object_get(s->root, "pre_tokenizer"));
    FSDP__SCOPED(fsdp__gguf_tokens_release) fsdp__gguf_tokens t = {.pieces = false};

    if (strcmp(fsdp__gguf_json_text(bpe, "type"), "BPE") != 0 || !way)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "'%s' cannot be written as GGUF: only SentencePiece's BPE, and byte-level BPE that splits text "
            "as GPT-2, SmolLM, Llama 3 or Qwen2 does",
            s->path);
    FSDP_TRY(fsdp__gguf_tokens_init(&t, s->config->vocab_size));
    FSDP_TRY(list_tokens(s, &t));
    fsdp__gguf_put_text(h, "tokenizer.ggml.model", "gpt2");
    fsdp__gguf_put_text(h, "tokenizer.ggml.pre", way->pre);
    put_tokens(h, &t);
    FSDP_TRY(put_merges(h, s->path, json_object_get(bpe, "merges")));
    put_specials(h, s, &t);
    return FSDP_OK;
}

static fsdp_status put_pieces(fsdp__gguf_header *h, const source *s)
{
    FSDP__SCOPED(fsdp__gguf_tokens_release) fsdp__gguf_tokens t = {.pieces = true};
    bool in_front = s->model.space_in_front;

    FSDP_TRY(fsdp__gguf_tokens_init(&t, s->config->vocab_size));
    FSDP_TRY(list_tokens(s, &t));
    if (s->root)
        FSDP_TRY(fsdp__gguf_space_in_front(s->path, s->root, &in_front));
    if (s->has_model)
        FSDP_TRY(fsdp__gguf_list_pieces(s->model_path, &s->model, &t));
    else
        FSDP_TRY(fsdp__gguf_score_by_merges(s->path, json_object_get(s->root, "model"), &t));
    fsdp__gguf_put_text(h, "tokenizer.ggml.model", "llama");
    fsdp__gguf_put_text(h, "tokenizer.ggml.pre", "default");
    put_tokens(h, &t);
    put_specials(h, s, &t);
    fsdp__gguf_put_integer(h, "tokenizer.ggml.add_space_prefix", FSDP__GGUF_BOOL, in_front);
    return FSDP_OK;
}

/* ---- the folder ---- */

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

static fsdp_status load_model(source *s)
{
    size_t bytes;

    FSDP__TRY_NEW(s->model_path = fsdp__path_join(s->folder, "tokenizer.model"));
    s->has_model = fsdp__path_exists(s->model_path);
    if (!s->has_model)
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(s->model_path, LIMIT_BYTES, &s->model_data, &bytes));
    return fsdp__sentencepiece_parse(s->model_path, s->model_data, bytes, &s->model);
}

/* ---- vocab.json and merges.txt ---- */

/* Adds the lines of a merges.txt but its first, which says a version. */
static fsdp_status read_merges(const source *s, json_t *merges)
{
    FSDP__FREED char *path = fsdp__path_join(s->folder, "merges.txt"), *text = NULL;
    size_t bytes;

    FSDP__TRY_NEW(path);
    FSDP_TRY(fsdp__file_read(path, LIMIT_BYTES, &text, &bytes));
    for (char *line = text, *end; *line; line = end) {
        size_t length = strcspn(line, "\r\n");

        end = line + length + strspn(line + length, "\r\n");
        if (length > 0 && strncmp(line, "#version", 8) != 0 &&
            json_array_append_new(merges, json_stringn(line, length)) != 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is no UTF-8", path);
    }
    return FSDP_OK;
}

/* Makes of the two files what a tokenizer.json would say, by the class that tokenizer_config.json names. */
static fsdp_status load_pair(source *s)
{
    const char *kind = fsdp__gguf_json_text(s->settings, "tokenizer_class");
    bool qwen2 = strncmp(kind, "Qwen2Tokenizer", 14) == 0;
    json_t *vocabulary = NULL;

    fsdp__free(s->path);
    FSDP_TRY(load(s->folder, "vocab.json", &s->path, &vocabulary));
    if (!vocabulary)
        return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no tokenizer.json, no tokenizer.model, and no vocab.json",
                         s->folder);
    s->root = json_pack("{s:{s:s,s:o,s:[]}}", "model", "type", "BPE", "vocab", vocabulary, "merges");
    FSDP__TRY_NEW(s->root);
    s->way = fsdp__gguf_splitting_named(qwen2 ? "qwen2" : "gpt-2");
    if (*kind && !qwen2 && strncmp(kind, "GPT2Tokenizer", 13) != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' cannot be written as GGUF: how a '%s' without a tokenizer.json splits "
                         "text is not known",
                         s->folder, kind);
    return read_merges(s, json_object_get(json_object_get(s->root, "model"), "merges"));
}

static fsdp_status put_all(fsdp__gguf_header *h, source *s)
{
    FSDP__FREED char *settings = NULL, *added = NULL;
    bool pieces;

    FSDP_TRY(load(s->folder, "tokenizer.json", &s->path, &s->root));
    FSDP_TRY(load(s->folder, "tokenizer_config.json", &settings, &s->settings));
    FSDP_TRY(load(s->folder, "added_tokens.json", &added, &s->added));
    pieces = !s->root || fsdp__gguf_json_true(json_object_get(s->root, "model"), "byte_fallback", false);
    if (pieces)
        FSDP_TRY(load_model(s));
    if (!s->root && !s->has_model)
        FSDP_TRY(load_pair(s));
    FSDP_TRY(pieces && !s->way ? put_pieces(h, s) : put_bytes(h, s));
    return put_template(h, s->folder);
}

static void release_source(source *s)
{
    json_decref(s->root);
    json_decref(s->settings);
    json_decref(s->added);
    fsdp__sentencepiece_release(&s->model);
    FSDP__FREE_ALL(s->path, s->model_path, s->model_data);
}

fsdp_status fsdp__gguf_put_tokenizer(fsdp__gguf_header *header, const char *folder, const fsdp_model_config *config)
{
    FSDP__SCOPED(release_source) source s = {.folder = folder, .config = config};

    return put_all(header, &s);
}
