/* pattern.c - matches with PCRE2, compiled to machine code where that is possible. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pattern.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tokenizer/regex.h"

FSDP__SCOPED_POINTER(fsdp__pattern, fsdp__pattern_free)
FSDP__SCOPED_POINTER(fsdp__matcher, fsdp__matcher_free)

enum {
    REGEX_BYTES_MOST = 65536,
    STACK_FIRST = 32 * 1024,
    STACK_MOST = 16 * 1024 * 1024
};

struct fsdp__pattern {
    fsdp__symbols symbols; /* none: the pattern is matched against the text itself */
    pcre2_code *code;
    bool jit;
};

struct fsdp__matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct {
        char *symbols;
        uint32_t *places;
        int64_t symbol_capacity, place_capacity;
    } texts[FSDP__SEARCHES];
};

/* ---- patterns ---- */

/* Compiles `regex` with PCRE2; `shown` is the expression in the tokenizer's file, for messages. */
static fsdp_status compile(const char *path, const char *shown, const char *regex, uint32_t options,
                           fsdp__pattern *pattern)
{
    PCRE2_UCHAR text[160];
    PCRE2_SIZE offset = 0;
    int error = 0;

    pattern->code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, options, &error, &offset, NULL);
    if (!pattern->code) {
        pcre2_get_error_message(error, text, sizeof text);
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': pattern '%s': %s", path, FSDP__SHOWN_NAME(shown),
                         (const char *)text);
    }
    pattern->jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0; /* only where memory may be executed */
    return FSDP_OK;
}

static fsdp_status translate(const char *path, const char *regex, fsdp__pattern *pattern)
{
    FSDP__SCOPED(fsdp__text_release) fsdp__text translated = {0};

    FSDP_TRY(fsdp__regex_translate(path, regex, &pattern->symbols, &translated));
    return compile(path, regex, translated.bytes, 0, pattern);
}

fsdp_status fsdp__pattern_create(const char *path, const char *regex, fsdp__pattern **out)
{
    FSDP__SCOPED(fsdp__pattern_free_at) fsdp__pattern *pattern = NULL;

    if (strlen(regex) > REGEX_BYTES_MOST)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a pattern of over %d bytes", path, REGEX_BYTES_MOST);
    FSDP__TRY_NEW(pattern = fsdp__calloc(1, sizeof *pattern));
    FSDP_TRY(translate(path, regex, pattern));
    *out = fsdp__take(&pattern);
    return FSDP_OK;
}

fsdp_status fsdp__pattern_create_literal(const char *path, const char *text, fsdp__pattern **out)
{
    FSDP__SCOPED(fsdp__pattern_free_at) fsdp__pattern *pattern = fsdp__calloc(1, sizeof *pattern);

    FSDP__TRY_NEW(pattern);
    FSDP_TRY(compile(path, text, text, PCRE2_LITERAL, pattern));
    *out = fsdp__take(&pattern);
    return FSDP_OK;
}

void fsdp__pattern_free(fsdp__pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    fsdp__symbols_release(&pattern->symbols);
    fsdp__free(pattern);
}

/* ---- matching ---- */

fsdp_status fsdp__matcher_create(fsdp__matcher **out)
{
    FSDP__SCOPED(fsdp__matcher_free_at) fsdp__matcher *matcher = fsdp__calloc(1, sizeof *matcher);

    FSDP__TRY_NEW(matcher);
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    if (!matcher->data || !matcher->context)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory: cannot match patterns");
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    *out = fsdp__take(&matcher);
    return FSDP_OK;
}

void fsdp__matcher_free(fsdp__matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    for (int i = 0; i < FSDP__SEARCHES; i++)
        FSDP__FREE_ALL(matcher->texts[i].symbols, matcher->texts[i].places);
    fsdp__free(matcher);
}

static bool is_ascii(const char *text, size_t bytes)
{
    size_t at = 0;
    uint64_t eight, all = 0;

    for (; at + sizeof eight <= bytes; at += sizeof eight) {
        memcpy(&eight, text + at, sizeof eight);
        all |= eight;
    }
    for (; at < bytes; at++)
        all |= (unsigned char)text[at];
    return (all & 0x8080808080808080u) == 0;
}

fsdp_status fsdp__search_begin(fsdp__search *search, const fsdp__pattern *pattern, fsdp__matcher *matcher, int level,
                               const char *text, size_t bytes)
{
    int64_t count = (int64_t)bytes;
    bool plain = is_ascii(text, bytes);

    *search =
        (fsdp__search){.pattern = pattern, .matcher = matcher, .bytes = bytes, .symbols = text, .symbol_count = bytes};
    if (pattern->symbols.count == 0)
        return FSDP_OK;
    if (bytes > UINT32_MAX)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot split a piece of %zu bytes of text: at most 4 GiB", bytes);
    if (fsdp__grow(&matcher->texts[level].symbols, count, &matcher->texts[level].symbol_capacity, 1) != 0 ||
        (!plain && fsdp__grow(&matcher->texts[level].places, count, &matcher->texts[level].place_capacity,
                              sizeof *matcher->texts[level].places) != 0))
        return FSDP_NO_MEMORY;
    search->symbols = matcher->texts[level].symbols;
    search->places = plain ? NULL : matcher->texts[level].places;
    search->symbol_count = fsdp__symbols_of(&pattern->symbols, text, bytes, matcher->texts[level].symbols,
                                            plain ? NULL : matcher->texts[level].places);
    return FSDP_OK;
}

/* Returns the first symbol that begins at `at` of the text or after it. */
static size_t symbol_of(const fsdp__search *search, size_t at)
{
    size_t symbol = search->symbol_at + (search->places ? 0 : at - search->at);

    while (search->places && search->places[symbol] < at)
        symbol++;
    return symbol;
}

fsdp_status fsdp__search_next(fsdp__search *search, size_t *begin, size_t *end)
{
    const fsdp__matcher *matcher = search->matcher;
    const pcre2_code *code = search->pattern->code;
    PCRE2_SPTR subject = (PCRE2_SPTR)search->symbols;
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(matcher->data);
    size_t count = search->symbol_count, from = symbol_of(search, *end);
    int result = search->pattern->jit ? pcre2_jit_match(code, subject, count, from, 0, matcher->data, matcher->context)
                                      : pcre2_match(code, subject, count, from, 0, matcher->data, matcher->context);

    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR message[160];

        pcre2_get_error_message(result, message, sizeof message);
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot split the text at offset %zu of a piece of %zu bytes: %s", *end,
                         search->bytes, (const char *)message);
    }
    search->symbol_at = result < 0 ? count : found[1];
    search->at = search->places ? search->places[search->symbol_at] : search->symbol_at;
    *end = search->at;
    *begin = result < 0 ? *end : search->places ? search->places[found[0]] : found[0];
    return FSDP_OK;
}
