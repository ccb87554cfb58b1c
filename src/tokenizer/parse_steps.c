/* parse_steps.c - parses what a tokenizer.json does to text before and after its model. */
#include <string.h>

#include "base/compiler.h"
#include "tokenizer/parse.h"

/* ---- split patterns ---- */

static const char gpt2_split[] = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char qwen2_split[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* This is the pattern of the pre-tokenizer Digits. It uses Rust's tables, which are of Unicode 17 and have thirteen
 * more digits. */
const char fsdp__digit_pattern[] = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

/* Patterns that are known to end a word between a letter and a space that a letter follows, and after the end of a line
 * with no other white space beside it: those of GPT-2, Qwen2, Llama 3 and GPT-4o. */
static const char *const cutting[] = {
    gpt2_split,
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    qwen2_split,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};
/* Lists patterns that leave letters and spaces alone. */
static const char *const neutral[] = {fsdp__digit_pattern, "\\p{N}", "\\p{N}{1,3}", "\\p{N}+", "[0-9]", "\\d"};

static bool is_one_of(const char *regex, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(regex, list[i]) == 0)
            return true;
    return false;
}

static void find_cut(const char *regex, fsdp__split_step *step)
{
    bool isolates = step->behavior == FSDP__SPLIT_ISOLATED || (step->behavior == FSDP__SPLIT_REMOVED && step->invert);

    if (isolates && is_one_of(regex, cutting, FSDP__COUNT_OF(cutting)))
        step->cut = FSDP__CUTS;
    else if ((isolates || step->behavior == FSDP__SPLIT_CONTIGUOUS) && !step->invert &&
             is_one_of(regex, neutral, FSDP__COUNT_OF(neutral)))
        step->cut = FSDP__CUTS_NOWHERE;
}

static fsdp_status add_step(const char *path, fsdp__pre_tokenizer *to, const fsdp__split_step *step, const char *regex)
{
    fsdp__split_step *added;

    if (to->count == FSDP__SPLIT_STEPS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': the pre-tokenizer has over %d steps", path,
                         FSDP__SPLIT_STEPS);
    added = &to->steps[to->count];
    *added = *step;
    if (regex) {
        FSDP_TRY(fsdp__pattern_create(path, regex, &added->pattern));
        find_cut(regex, added);
    }
    to->count++;
    return FSDP_OK;
}

fsdp_status fsdp__add_byte_level(const char *path, bool add_prefix_space, bool splits, fsdp__pre_tokenizer *out)
{
    fsdp__split_step step = {
        .behavior = FSDP__SPLIT_ISOLATED, .add_prefix_space = add_prefix_space, .cut = FSDP__CUTS_NOWHERE};

    out->byte_level = true;
    return splits || add_prefix_space ? add_step(path, out, &step, splits ? gpt2_split : NULL) : FSDP_OK;
}

fsdp_status fsdp__add_qwen2_split(const char *path, fsdp__pre_tokenizer *out)
{
    return add_step(path, out, &(fsdp__split_step){.behavior = FSDP__SPLIT_ISOLATED}, qwen2_split);
}

/* ---- pre-tokenizers ---- */

static fsdp_status parse_byte_level(const fsdp__json_object *part, fsdp__pre_tokenizer *out)
{
    bool add_prefix_space = true, splits = true;

    FSDP_TRY(fsdp__json_bool(part, "add_prefix_space", &add_prefix_space));
    FSDP_TRY(fsdp__json_bool(part, "use_regex", &splits));
    return fsdp__add_byte_level(part->path, add_prefix_space, splits, out);
}

static fsdp_status parse_digits(const fsdp__json_object *part, fsdp__pre_tokenizer *out)
{
    fsdp__split_step step = {.behavior = FSDP__SPLIT_CONTIGUOUS};
    bool individual = false;

    FSDP_TRY(fsdp__json_bool(part, "individual_digits", &individual));
    if (individual)
        step.behavior = FSDP__SPLIT_ISOLATED;
    return add_step(part->path, out, &step, fsdp__digit_pattern);
}

static fsdp_status parse_behavior(const fsdp__json_object *part, fsdp__split_behavior *out)
{
    static const char *const names[] = {
        [FSDP__SPLIT_REMOVED] = "Removed",
        [FSDP__SPLIT_ISOLATED] = "Isolated",
        [FSDP__SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [FSDP__SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [FSDP__SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = NULL;

    FSDP_TRY(fsdp__json_string(part, "behavior", true, &name));
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (fsdp__split_behavior)i;
            return FSDP_OK;
        }
    return fsdp__unsupported_part(part->path, "behavior of Split", name);
}

static fsdp_status parse_split(const fsdp__json_object *part, fsdp__pre_tokenizer *out)
{
    fsdp__split_step step = {0};
    fsdp__json_object pattern;
    const char *regex = NULL, *literal = NULL;
    fsdp_status status;

    FSDP_TRY(parse_behavior(part, &step.behavior));
    FSDP_TRY(fsdp__json_bool(part, "invert", &step.invert));
    FSDP_TRY(fsdp__json_child(part, "pattern", &pattern));
    if (pattern.object) {
        FSDP_TRY(fsdp__json_string(&pattern, "Regex", false, &regex));
        FSDP_TRY(fsdp__json_string(&pattern, "String", false, &literal));
    }
    if (!regex == !literal)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the pattern of a Split is neither a Regex nor a String",
                         part->path);
    if (regex)
        return add_step(part->path, out, &step, regex);
    FSDP_TRY(fsdp__pattern_create_literal(part->path, literal, &step.pattern));
    status = add_step(part->path, out, &step, NULL);
    if (status != FSDP_OK)
        fsdp__pattern_free(step.pattern);
    return status;
}

static fsdp_status parse_step(const char *path, const json_t *value, fsdp__pre_tokenizer *out);

static fsdp_status parse_sequence(const fsdp__json_object *part, fsdp__pre_tokenizer *out)
{
    const json_t *list = json_object_get(part->object, "pretokenizers");

    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the pre-tokenizer 'Sequence' has no list 'pretokenizers'",
                         part->path);
    for (size_t i = 0; i < json_array_size(list); i++)
        FSDP_TRY(parse_step(part->path, json_array_get(list, i), out));
    return FSDP_OK;
}

static fsdp_status parse_step(const char *path, const json_t *value, fsdp__pre_tokenizer *out)
{
    fsdp__json_object part = {.path = path, .object = value};
    const char *type;

    FSDP_TRY(fsdp__part_type(&part, "pre-tokenizer", &type));
    if (strcmp(type, "Sequence") == 0)
        return parse_sequence(&part, out);
    if (out->byte_level)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': the pre-tokenizer '%s' after ByteLevel is not supported",
                         path, type);
    if (strcmp(type, "ByteLevel") == 0)
        return parse_byte_level(&part, out);
    if (strcmp(type, "Digits") == 0)
        return parse_digits(&part, out);
    if (strcmp(type, "Split") == 0)
        return parse_split(&part, out);
    return fsdp__unsupported_part(path, "pre-tokenizer", type);
}

bool fsdp__has_pre_tokenizer(const json_t *pre_tokenizer, const char *type)
{
    const char *own = json_string_value(json_object_get(pre_tokenizer, "type"));
    const json_t *list = json_object_get(pre_tokenizer, "pretokenizers");
    bool has = own && strcmp(own, type) == 0;

    for (size_t i = 0; !has && i < json_array_size(list); i++)
        has = fsdp__has_pre_tokenizer(json_array_get(list, i), type);
    return has;
}

/* ---- SentencePiece's: marks for spaces ---- */

static fsdp_status need_mark(const fsdp__json_object *part)
{
    const char *mark = FSDP__SPACE_MARK;

    FSDP_TRY(fsdp__json_string(part, "replacement", false, &mark));
    return strcmp(mark, FSDP__SPACE_MARK) == 0 ? FSDP_OK : fsdp__unsupported_part(part->path, "mark of spaces", mark);
}

/* Reads where a space is put in front. Older files have add_prefix_space. */
static fsdp_status parse_scheme(const fsdp__json_object *part, fsdp__metaspace *out)
{
    static const char *const names[] = {
        [FSDP__METASPACE_NEVER] = "never", [FSDP__METASPACE_FIRST] = "first", [FSDP__METASPACE_ALWAYS] = "always"};
    const char *name = NULL;
    bool adds = true;

    FSDP_TRY(fsdp__json_bool(part, "add_prefix_space", &adds));
    FSDP_TRY(fsdp__json_string(part, "prepend_scheme", false, &name));
    *out = adds ? FSDP__METASPACE_ALWAYS : FSDP__METASPACE_NEVER;
    for (size_t i = FSDP__METASPACE_NEVER; name && i < FSDP__COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (fsdp__metaspace)i;
            return FSDP_OK;
        }
    return name ? fsdp__unsupported_part(part->path, "prepend_scheme", name) : FSDP_OK;
}

static fsdp_status parse_metaspace(const fsdp__json_object *part, fsdp_tokenizer *out)
{
    FSDP_TRY(need_mark(part));
    FSDP_TRY(parse_scheme(part, &out->metaspace));
    out->metaspace_splits = true;
    return fsdp__json_bool(part, "split", &out->metaspace_splits);
}

fsdp_status fsdp__parse_pre_tokenizer(const char *path, const json_t *pre_tokenizer, fsdp_tokenizer *out)
{
    fsdp__json_object part = {.path = path, .object = pre_tokenizer};
    bool marks = fsdp__tokenizer_has_marks(out);
    const char *type;

    if (pre_tokenizer && !json_is_null(pre_tokenizer)) {
        FSDP_TRY(fsdp__part_type(&part, "pre-tokenizer", &type));
        if (marks && strcmp(type, "Metaspace") == 0)
            return parse_metaspace(&part, out);
        FSDP_TRY(parse_step(path, pre_tokenizer, &out->pre_tokenizer));
    }
    if (!out->pre_tokenizer.byte_level && !marks)
        return fsdp__unsupported_part(path, "pre-tokenizer", "without ByteLevel");
    return FSDP_OK;
}

/* ---- normalizers, decoders ---- */

static fsdp_status add_normalizer(const char *path, fsdp__normalizer *to, fsdp__normalizer_kind kind, const char *what,
                                  const char *with)
{
    fsdp_status status = fsdp__normalizer_add(to, kind, what, what ? strlen(what) : 0, with);

    return fsdp_fail_prefix(status, "cannot read '%s'", path);
}

/* Reads a pattern that is a text, and what it is replaced by. */
static fsdp_status parse_replace(const fsdp__json_object *part, const char **what, const char **with)
{
    fsdp__json_object pattern;

    *what = NULL;
    FSDP_TRY(fsdp__json_child(part, "pattern", &pattern));
    FSDP_TRY(fsdp__json_string(part, "content", true, with));
    if (pattern.object)
        FSDP_TRY(fsdp__json_string(&pattern, "String", false, what));
    return *what && **what ? FSDP_OK : fsdp__unsupported_part(part->path, "Replace of", "a Regex");
}

static fsdp_status parse_normalizer_step(const fsdp__json_object *part, const char *type, fsdp__normalizer *out)
{
    const char *what = NULL, *with = NULL;

    if (strcmp(type, "NFC") == 0)
        return add_normalizer(part->path, out, FSDP__NORMALIZE_NFC, NULL, NULL);
    if (strcmp(type, "Prepend") == 0) {
        FSDP_TRY(fsdp__json_string(part, "prepend", true, &with));
        return add_normalizer(part->path, out, FSDP__NORMALIZE_PREPEND, NULL, with);
    }
    if (strcmp(type, "Replace") != 0)
        return fsdp__unsupported_part(part->path, "normalizer", type);
    FSDP_TRY(parse_replace(part, &what, &with));
    return add_normalizer(part->path, out, FSDP__NORMALIZE_REPLACE, what, with);
}

fsdp_status fsdp__parse_normalizer(const char *path, const json_t *normalizer, fsdp__normalizer *out)
{
    fsdp__json_object part = {.path = path, .object = normalizer};
    const json_t *list;
    const char *type;

    if (!normalizer || json_is_null(normalizer))
        return FSDP_OK;
    FSDP_TRY(fsdp__part_type(&part, "normalizer", &type));
    if (strcmp(type, "Sequence") != 0)
        return parse_normalizer_step(&part, type, out);
    list = json_object_get(normalizer, "normalizers");
    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the normalizer 'Sequence' has no list 'normalizers'", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        FSDP_TRY(fsdp__parse_normalizer(path, json_array_get(list, i), out));
    return FSDP_OK;
}

/* Reads a Strip, which may leave out one space in front. */
static fsdp_status parse_strip(const fsdp__json_object *part, fsdp_tokenizer *out)
{
    const char *what = NULL;
    int64_t start = 0, stop = 0;

    FSDP_TRY(fsdp__json_string(part, "content", true, &what));
    FSDP_TRY(fsdp__json_integer(part, "start", true, &start));
    FSDP_TRY(fsdp__json_integer(part, "stop", true, &stop));
    if (strcmp(what, " ") != 0 || start < 0 || start > 1 || stop != 0)
        return fsdp__unsupported_part(part->path, "decoder", "Strip of more than a space in front");
    out->strips = start == 1;
    return FSDP_OK;
}

/* Reads a decoder of a tokenizer with marks for spaces. Spaces in their place and bytes go without saying. */
static fsdp_status parse_mark_decoder(const fsdp__json_object *part, const char *type, fsdp_tokenizer *out)
{
    const char *what, *with;
    fsdp__metaspace scheme;

    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0)
        return FSDP_OK;
    if (strcmp(type, "Strip") == 0)
        return parse_strip(part, out);
    if (strcmp(type, "Metaspace") == 0) {
        FSDP_TRY(need_mark(part));
        FSDP_TRY(parse_scheme(part, &scheme));
        out->strips = scheme != FSDP__METASPACE_NEVER;
        return FSDP_OK;
    }
    if (strcmp(type, "Replace") != 0)
        return fsdp__unsupported_part(part->path, "decoder", type);
    FSDP_TRY(parse_replace(part, &what, &with));
    if (strcmp(what, FSDP__SPACE_MARK) != 0 || strcmp(with, " ") != 0)
        return fsdp__unsupported_part(part->path, "decoder's Replace of", what);
    return FSDP_OK;
}

fsdp_status fsdp__parse_decoder(const char *path, const json_t *decoder, fsdp_tokenizer *out)
{
    fsdp__json_object part = {.path = path, .object = decoder};
    const json_t *list;
    const char *type;

    if (!decoder || json_is_null(decoder))
        return fsdp__tokenizer_has_marks(out) ? fsdp__unsupported_part(path, "decoder", "null") : FSDP_OK;
    FSDP_TRY(fsdp__part_type(&part, "decoder", &type));
    if (strcmp(type, "Sequence") != 0) {
        if (fsdp__tokenizer_has_marks(out))
            return parse_mark_decoder(&part, type, out);
        return strcmp(type, "ByteLevel") == 0 ? FSDP_OK : fsdp__unsupported_part(path, "decoder", type);
    }
    list = json_object_get(decoder, "decoders");
    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the decoder 'Sequence' has no list 'decoders'", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        FSDP_TRY(fsdp__parse_decoder(path, json_array_get(list, i), out));
    return FSDP_OK;
}
