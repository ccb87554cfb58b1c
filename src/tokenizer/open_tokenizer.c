/* open_tokenizer.c - reads the files of a tokenizer: tokenizer.json, or tokenizer.model, or vocab.json and merges.txt;
 * and finds what ends a text. */
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "tokenizer/parse.h"
#include "tokenizer/tokenizer.h"

#define LIMIT_BYTES ((size_t)1 << 28)

/* ---- JSON files of the folder ---- */

static const char config_name[] = "tokenizer_config.json", tokens_name[] = "added_tokens_decoder";

/* Loads a JSON file. `*out` is NULL if the folder has no such file. No integer of the config is used. */
static fsdp_status load_json(const char *folder, const char *name, fsdp_tokenizer *t, char **path, json_t **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    *out = NULL;
    FSDP__TRY_NEW(*path = fsdp__path_join(folder, name));
    if (!fsdp__path_exists(*path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(*path, LIMIT_BYTES, &text, &bytes));
    t->hash = fsdp__hash_bytes(t->hash, text, bytes);
    return strcmp(name, config_name) == 0 ? fsdp__json_parse_as_reals(*path, text, bytes, out)
                                          : fsdp__json_parse_large(*path, text, bytes, out);
}

/* ---- added tokens of the config, end of text ---- */

/* Returns the text of a token, which is given as its text or as an object with "content". */
static const char *token_text(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* Reads the tokens of a config. Like transformers, it takes the config's description of a token that both files have,
 * and adds tokens that tokenizer.json does not have. */
static fsdp_status read_tokens(const char *folder, const char *name, fsdp_tokenizer *t)
{
    json_auto_t *file = NULL;
    FSDP__FREED char *path = NULL;
    const char *text;

    FSDP_TRY(load_json(folder, name, t, &path, &file));
    FSDP_TRY(fsdp__parse_tokens_by_id(path, json_object_get(file, tokens_name), t));
    text = token_text(json_object_get(file, "eos_token"));
    if (!text || t->eos != FSDP__NO_TOKEN)
        return FSDP_OK;
    FSDP_TRY(fsdp__vocabulary_find_text(&t->bpe.vocabulary, text, &t->eos));
    if (t->eos == FSDP__NO_TOKEN)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the eos_token '%s' is not a token", path,
                         FSDP__SHOWN_NAME(text));
    return FSDP_OK;
}

static fsdp_status read_folder(const char *folder, fsdp_tokenizer *t)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

    FSDP_TRY(read_tokens(folder, config_name, t));
    FSDP_TRY(read_tokens(folder, "special_tokens_map.json", t));
    for (size_t i = 0; i < FSDP__COUNT_OF(usual) && t->eos == FSDP__NO_TOKEN; i++) {
        int32_t id = fsdp_tokenizer_id(t, usual[i]);

        if (id != FSDP__NO_TOKEN && t->bpe.vocabulary.tokens[id].special)
            t->eos = id;
    }
    t->eos = t->eos == FSDP__NO_TOKEN ? t->model_eos : t->eos;
    fsdp__added_tokens_order(&t->raw);
    fsdp__added_tokens_order(&t->normalized);
    return FSDP_OK;
}

/* ---- vocab.json and merges.txt ---- */

static fsdp_status add_merge_line(const char *path, char *line, int64_t number, int64_t *rank, fsdp__bpe *bpe)
{
    char *space = strchr(line, ' ');
    size_t length = strlen(line);

    if (length > 0 && line[length - 1] == '\r')
        line[length - 1] = '\0';
    if (*line == '\0' || (number == 1 && strncmp(line, "#version", 8) == 0))
        return FSDP_OK;
    if (!space || strchr(space + 1, ' '))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld is not two tokens with a space between them", path,
                         (long long)number);
    *space = '\0';
    return fsdp__add_merge(path, bpe, line, space + 1, (*rank)++);
}

static fsdp_status read_merges(const char *path, fsdp_tokenizer *t)
{
    FSDP__FREED char *text = NULL;
    char *line, *end;
    size_t bytes = 0;
    int64_t lines = 1, rank = 0, number = 1;

    FSDP_TRY(fsdp__file_read(path, LIMIT_BYTES, &text, &bytes));
    t->hash = fsdp__hash_bytes(t->hash, text, bytes);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    if (strlen(text) < bytes)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it has a NUL at offset %zu: it is not text", path,
                         strlen(text));
    FSDP_TRY(fsdp__merges_init(&t->bpe.merges, lines));
    for (line = text; line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        FSDP_TRY(add_merge_line(path, line, number++, &rank, &t->bpe));
    }
    return FSDP_OK;
}

/* Sets up what a class of transformers does to text, because its files do not say it. */
static fsdp_status set_class(const char *path, const json_t *config, fsdp_tokenizer *t)
{
    static const char *const gpt2[] = {"GPT2Tokenizer", "GPT2TokenizerFast"};
    static const char *const qwen2[] = {"Qwen2Tokenizer", "Qwen2TokenizerFast"};
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    bool space = json_is_true(json_object_get(config, "add_prefix_space"));

    if (!name || strcmp(name, gpt2[0]) == 0 || strcmp(name, gpt2[1]) == 0)
        return fsdp__add_byte_level(path, space, true, &t->pre_tokenizer);
    if (strcmp(name, qwen2[0]) != 0 && strcmp(name, qwen2[1]) != 0)
        return fsdp__unsupported_part(path, "tokenizer_class without a tokenizer.json", name);
    FSDP_TRY(fsdp__normalizer_add(&t->normalizer, FSDP__NORMALIZE_NFC, NULL, 0, NULL));
    FSDP_TRY(fsdp__add_qwen2_split(path, &t->pre_tokenizer));
    return fsdp__add_byte_level(path, false, false, &t->pre_tokenizer);
}

static fsdp_status read_config(const char *folder, fsdp_tokenizer *t)
{
    json_auto_t *config = NULL;
    FSDP__FREED char *path = NULL;
    int32_t end;

    FSDP_TRY(load_json(folder, config_name, t, &path, &config));
    FSDP_TRY(set_class(path, config, t));
    FSDP_TRY(fsdp__parse_tokens_by_id(path, json_object_get(config, tokens_name), t));
    end = fsdp_tokenizer_id(t, "<|endoftext|>");
    return end == FSDP__NO_TOKEN ? FSDP_OK : fsdp__add_special_token(path, "<|endoftext|>", end, t);
}

/* Reads added_tokens.json, which older folders have. */
static fsdp_status read_added(const char *folder, fsdp_tokenizer *t)
{
    json_auto_t *file = NULL;
    FSDP__FREED char *path = NULL;

    FSDP_TRY(load_json(folder, "added_tokens.json", t, &path, &file));
    return fsdp__parse_ids_of_tokens(path, file, t);
}

static fsdp_status read_pair(const char *folder, fsdp_tokenizer *t)
{
    json_auto_t *vocabulary = NULL;
    FSDP__FREED char *path = NULL, *merges = NULL;

    t->bpe.unknown = FSDP__NO_TOKEN;
    FSDP_TRY(load_json(folder, "vocab.json", t, &path, &vocabulary));
    if (!vocabulary)
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "'%s' has neither a tokenizer.json nor a tokenizer.model nor a vocab.json and merges.txt",
                         folder);
    FSDP_TRY(fsdp__parse_vocabulary(path, vocabulary, &t->bpe));
    t->next_id = t->bpe.vocabulary.used;
    FSDP__TRY_NEW(merges = fsdp__path_join(folder, "merges.txt"));
    FSDP_TRY(read_merges(merges, t));
    fsdp__find_byte_tokens(&t->bpe);
    FSDP_TRY(read_config(folder, t));
    return read_added(folder, t);
}

/* ---- a folder, or a tokenizer.json ---- */

static fsdp_status open_file(const char *path, fsdp_tokenizer **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read(path, LIMIT_BYTES, &text, &bytes));
    if (fsdp__ends_with(path, ".model"))
        FSDP_TRY(fsdp__tokenizer_parse_model(path, text, bytes, out));
    else
        FSDP_TRY(fsdp__tokenizer_parse(path, text, bytes, out));
    (*out)->hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes);
    return FSDP_OK;
}

static fsdp_status open_pair(const char *folder, fsdp_tokenizer **out)
{
    FSDP__SCOPED(fsdp_tokenizer_close_at) fsdp_tokenizer *t = fsdp__calloc(1, sizeof *t);

    FSDP__TRY_NEW(t);
    t->eos = t->model_eos = FSDP__NO_TOKEN;
    FSDP_TRY(read_pair(folder, t));
    *out = fsdp__take(&t);
    return FSDP_OK;
}

/* Does what the config says of the tokens around a text, which a tokenizer.model does not know. */
static fsdp_status set_ends(const char *folder, fsdp_tokenizer *t)
{
    json_auto_t *config = NULL;
    FSDP__FREED char *path = NULL;

    FSDP_TRY(load_json(folder, config_name, t, &path, &config));
    if (json_is_false(json_object_get(config, "add_bos_token")))
        t->prefix.count = 0;
    if (json_is_true(json_object_get(config, "add_eos_token")) && t->model_eos != FSDP__NO_TOKEN)
        return fsdp__token_list_add(&t->suffix, t->model_eos);
    return FSDP_OK;
}

static fsdp_status open_folder(const char *folder, fsdp_tokenizer **out)
{
    FSDP__FREED char *json = fsdp__path_join(folder, "tokenizer.json");
    FSDP__FREED char *model = fsdp__path_join(folder, "tokenizer.model");

    FSDP__TRY_NEW(json);
    FSDP__TRY_NEW(model);
    if (fsdp__path_exists(json))
        return open_file(json, out);
    if (!fsdp__path_exists(model))
        return open_pair(folder, out);
    FSDP_TRY(open_file(model, out));
    return set_ends(folder, *out);
}

fsdp_status fsdp_tokenizer_open(const char *path, fsdp_tokenizer **out)
{
    FSDP__SCOPED(fsdp_tokenizer_close_at) fsdp_tokenizer *t = NULL;
    FSDP__FREED char *folder = NULL;
    struct stat info;
    bool is_folder;

    if (!path || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a tokenizer: path and out are required");
    *out = NULL;
    is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    FSDP_TRY(is_folder ? open_folder(path, &t) : open_file(path, &t));
    FSDP__TRY_NEW(folder = is_folder ? fsdp__strdup(path) : fsdp__path_parent(path));
    FSDP_TRY(read_folder(folder, t));
    *out = fsdp__take(&t);
    return FSDP_OK;
}
