/* pattern.c - patterns through PCRE2, compiled to machine code where it can. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pattern.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

enum {
    REGEX_BYTES_MOST = 65536,
    STACK_FIRST = 32 * 1024,
    STACK_MOST = 16 * 1024 * 1024
};

struct fsdp__pattern {
    pcre2_code *code;
    bool jit;
};

struct fsdp__matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- what both libraries read alike ---- */

/* Oniguruma reads `at`, which follows a backslash, otherwise. */
static bool is_foreign_escape(char at)
{
    return at && strchr("hHRXKGABbQEogkyY", at);
}

/* What of the regular expression the two libraries read in two ways; NULL: nothing. */
static const char *find_foreign(const char *regex)
{
    bool in_class = false;

    for (const char *at = regex; *at; at++) {
        if (*at == '\\') {
            at++;
            if (is_foreign_escape(*at))
                return at - 1;
            if (!*at)
                return NULL;
            if (strchr("pPx", *at) && at[1] == '{') /* a name or number, no repetition */
                at += strcspn(at, "}") - (strchr(at, '}') == NULL);
        } else if (in_class) {
            if (*at == '[' || (at[0] == '&' && at[1] == '&'))
                return at;
            in_class = *at != ']';
        } else if (*at == '[') {
            in_class = true;
            at += at[1] == '^';
            at += at[1] == ']';
        } else if ((at[0] == '}' && at[1] == '+') || strncmp(at, "(*", 2) == 0 || strncmp(at, "(?<", 3) == 0 ||
                   strncmp(at, "(?m", 3) == 0 || strncmp(at, "(?x", 3) == 0 || *at == '^' || *at == '$') {
            return at;
        }
    }
    return NULL;
}

/* White space is Unicode's property for Oniguruma; PCRE2 has U+180E beside it. */
static char *translate(const char *regex)
{
    static const char space[] = "\\p{White_Space}";
    char *out = fsdp__malloc(strlen(regex) * (sizeof space / 2) + 1), *to = out;

    if (!out)
        return NULL;
    for (const char *at = regex; *at; at++) {
        if (at[0] == '\\' && (at[1] == 's' || at[1] == 'S')) {
            memcpy(to, space, sizeof space - 1);
            to[1] = at[1] == 's' ? 'p' : 'P';
            to += sizeof space - 1;
            at++;
        } else {
            *to++ = *at;
            if (*at == '\\' && at[1])
                *to++ = *++at;
        }
    }
    *to = '\0';
    return out;
}

/* ---- patterns ---- */

static fsdp_status compile(const char *path, const char *regex, uint32_t options, fsdp__pattern **out)
{
    fsdp__pattern *pattern = fsdp__calloc(1, sizeof *pattern);
    PCRE2_UCHAR text[160];
    PCRE2_SIZE offset = 0;
    int error = 0;

    if (!pattern)
        return FSDP_NO_MEMORY;
    pattern->code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, options | PCRE2_UTF | PCRE2_NO_UTF_CHECK,
                                  &error, &offset, NULL);
    if (!pattern->code) {
        fsdp__free(pattern);
        pcre2_get_error_message(error, text, sizeof text);
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': pattern '%s': %s at its offset %zu", path,
                         FSDP__SHOWN_NAME(regex), (const char *)text, (size_t)offset);
    }
    pattern->jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0; /* where memory may be executed */
    *out = pattern;
    return FSDP_OK;
}

fsdp_status fsdp__pattern_create(const char *path, const char *regex, fsdp__pattern **out)
{
    const char *foreign = find_foreign(regex);
    char *translated;
    fsdp_status status;

    if (strlen(regex) > REGEX_BYTES_MOST)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a pattern of over %d bytes", path, REGEX_BYTES_MOST);
    if (foreign)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': pattern '%s': '%.3s' at its offset %zu is not supported",
                         path, FSDP__SHOWN_NAME(regex), foreign, (size_t)(foreign - regex));
    translated = translate(regex);
    if (!translated)
        return FSDP_NO_MEMORY;
    status = compile(path, translated, PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, out);
    fsdp__free(translated);
    return status;
}

fsdp_status fsdp__pattern_create_literal(const char *path, const char *text, fsdp__pattern **out)
{
    return compile(path, text, PCRE2_LITERAL, out);
}

void fsdp__pattern_free(fsdp__pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    fsdp__free(pattern);
}

/* ---- matching ---- */

fsdp_status fsdp__matcher_create(fsdp__matcher **out)
{
    fsdp__matcher *matcher = fsdp__calloc(1, sizeof *matcher);

    if (!matcher)
        return FSDP_NO_MEMORY;
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    if (!matcher->data || !matcher->context) {
        fsdp__matcher_free(matcher);
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory: cannot match patterns");
    }
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    *out = matcher;
    return FSDP_OK;
}

void fsdp__matcher_free(fsdp__matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    fsdp__free(matcher);
}

fsdp_status fsdp__pattern_find(const fsdp__pattern *pattern, fsdp__matcher *matcher, const char *text, size_t bytes,
                               size_t *begin, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(matcher->data);
    int result = pattern->jit ? pcre2_jit_match(pattern->code, subject, bytes, *end, 0, matcher->data, matcher->context)
                              : pcre2_match(pattern->code, subject, bytes, *end, PCRE2_NO_UTF_CHECK, matcher->data,
                                            matcher->context);

    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR message[160];

        pcre2_get_error_message(result, message, sizeof message);
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot split the text at offset %zu of a piece of %zu bytes: %s", *end,
                         bytes, (const char *)message);
    }
    *begin = result < 0 ? bytes : found[0];
    *end = result < 0 ? bytes : found[1];
    return FSDP_OK;
}
