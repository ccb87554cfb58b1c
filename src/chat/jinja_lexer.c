/* jinja_lexer.c - whitespace control, as trim_blocks and lstrip_blocks have it, and the words inside of tags. */
#include "chat/jinja_lexer.h"

#include <ctype.h>
#include <string.h>

#include "base/text.h"
#include "chat/jinja_strings.h"

typedef struct lexer {
    fsdp__render *r;
    const char *text;
    size_t bytes, at;
    fsdp__word *words;
    int64_t count, capacity;
    bool line_begins; /* what was read last ended a line: blanks before the next tag may go */
    int depth;        /* brackets that are open */
} lexer;

static fsdp_status add_word(lexer *l, fsdp__word_kind kind, fsdp__jinja_string text)
{
    FSDP_TRY(fsdp__render_work(l->r, 0));
    FSDP_TRY(fsdp__grow(&l->words, l->count, &l->capacity, sizeof *l->words));
    l->words[l->count++] = (fsdp__word){kind, l->r->line, text};
    return FSDP_OK;
}

/* Goes forward to `to`, and counts the lines on the way. */
static void advance(lexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++)
        l->r->line += l->text[i] == '\n';
    l->line_begins = to > l->at ? l->text[to - 1] == '\n' : l->line_begins;
    l->at = to;
}

static bool begins(const lexer *l, size_t at, const char *with)
{
    size_t bytes = strlen(with);

    return l->bytes - at >= bytes && memcmp(l->text + at, with, bytes) == 0;
}

/* ---- plain text ---- */

/* Returns where the next tag, print or comment begins, or the end of the template. */
static size_t next_tag(const lexer *l)
{
    size_t at = l->at;

    while (at < l->bytes && !(l->text[at] == '{' && at + 1 < l->bytes && strchr("{%#", l->text[at + 1])))
        at++;
    return at;
}

/* Adds the text before a tag, without what the tag takes away of it. */
static fsdp_status add_text(lexer *l, size_t end, char sign, bool is_print)
{
    fsdp__jinja_string text = {l->text + l->at, end - l->at};

    if (sign == '-') {
        text = fsdp__jinja_string_strip(text, FSDP__STRIP_RIGHT, NULL);
    } else if (sign != '+' && !is_print) {
        const char *newline = text.bytes ? memrchr(text.at, '\n', text.bytes) : NULL;
        size_t line = newline ? (size_t)(newline + 1 - text.at) : 0;
        fsdp__jinja_string blanks = {text.at + line, text.bytes - line};

        if ((newline || l->line_begins) && fsdp__jinja_string_strip(blanks, FSDP__STRIP_LEFT, NULL).bytes == 0)
            text.bytes = line;
    }
    return text.bytes ? add_word(l, FSDP__WORD_TEXT, text) : FSDP_OK;
}

/* Takes the end of a tag or comment at `at`, with a '-' or '+' before it, and what follows that goes with it. */
static void take_end(lexer *l, size_t at, bool takes_newline)
{
    char sign = l->text[at] == '-' || l->text[at] == '+' ? l->text[at] : 0;
    size_t end = at + (sign ? 3 : 2);

    if (sign == '-') {
        fsdp__jinja_string rest = {l->text + end, l->bytes - end};

        end += rest.bytes - fsdp__jinja_string_strip(rest, FSDP__STRIP_LEFT, NULL).bytes;
    } else if (!sign && takes_newline && end < l->bytes && l->text[end] == '\n') {
        end++;
    }
    advance(l, end);
}

static fsdp_status skip_comment(lexer *l)
{
    size_t end = l->at + 2;

    while (end < l->bytes && !begins(l, end, "#}"))
        end++;
    if (end >= l->bytes)
        return FSDP__RENDER_FAIL(l->r, "Missing end of comment tag");
    if (end > l->at + 2 && (l->text[end - 1] == '-' || l->text[end - 1] == '+'))
        end--;
    take_end(l, end, true);
    return FSDP_OK;
}

/* Returns the place behind `{%`, a sign, blanks, a word, blanks and a sign, where the tag's end is; 0: it is another
 * tag. */
static size_t behind_word(const lexer *l, size_t at, const char *word)
{
    at += 2;
    at += at < l->bytes && (l->text[at] == '-' || l->text[at] == '+');
    while (at < l->bytes && isspace((unsigned char)l->text[at]))
        at++;
    if (!begins(l, at, word))
        return 0;
    at += strlen(word);
    while (at < l->bytes && isspace((unsigned char)l->text[at]))
        at++;
    return begins(l, at, "%}") || begins(l, at, "-%}") || begins(l, at, "+%}") ? at : 0;
}

static char sign_at(const lexer *l, size_t at)
{
    char sign = at < l->bytes ? l->text[at] : 0;

    return sign == '-' || sign == '+' ? sign : 0;
}

/* Adds what stands between `raw` and `endraw`. */
static fsdp_status add_raw(lexer *l, size_t tag_end)
{
    size_t close = 0, at;

    take_end(l, tag_end, false);
    for (at = l->at; at < l->bytes && !close; at++)
        close = begins(l, at, "{%") ? behind_word(l, at, "endraw") : 0;
    if (!close)
        return FSDP__RENDER_FAIL(l->r, "Missing end of raw directive");
    FSDP_TRY(add_text(l, at - 1, sign_at(l, at + 1), false));
    advance(l, at - 1);
    take_end(l, close, true);
    return FSDP_OK;
}

/* ---- words inside of a tag ---- */

static fsdp_status add_number(lexer *l)
{
    size_t end = l->at, behind;
    const char *t = l->text;

    while (end < l->bytes && (isalnum((unsigned char)t[end]) || t[end] == '_'))
        end++;
    behind = end;
    if (end + 1 < l->bytes && t[end] == '.' && isdigit((unsigned char)t[end + 1]))
        for (end++; end < l->bytes && (isalnum((unsigned char)t[end]) || t[end] == '_');)
            end++;
    if (end < l->bytes && (t[end] == '-' || t[end] == '+') && (t[end - 1] | 32) == 'e' && t[l->at + 1] != 'x')
        for (end++; end < l->bytes && isdigit((unsigned char)t[end]);)
            end++;
    (void)behind;
    FSDP_TRY(add_word(l, FSDP__WORD_NUMBER, (fsdp__jinja_string){t + l->at, end - l->at}));
    advance(l, end);
    return FSDP_OK;
}

static fsdp_status add_string(lexer *l)
{
    char quote = l->text[l->at];
    size_t end = l->at + 1;
    fsdp__jinja_value value;

    while (end < l->bytes && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->bytes)
        return FSDP__RENDER_FAIL(l->r, "a string that does not end");
    FSDP_TRY(fsdp__jinja_string_unescape(l->r, (fsdp__jinja_string){l->text + l->at + 1, end - l->at - 1}, &value));
    FSDP_TRY(add_word(l, FSDP__WORD_STRING, value.string));
    advance(l, end + 1);
    return FSDP_OK;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static fsdp_status add_name(lexer *l)
{
    size_t end = l->at;

    while (end < l->bytes && is_name(l->text[end]))
        end++;
    FSDP_TRY(add_word(l, FSDP__WORD_NAME, (fsdp__jinja_string){l->text + l->at, end - l->at}));
    advance(l, end);
    return FSDP_OK;
}

static fsdp_status add_sign(lexer *l)
{
    static const char *const signs[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};

    for (size_t i = 0; i < FSDP__COUNT_OF(signs); i++)
        if (begins(l, l->at, signs[i])) {
            l->depth += strchr("([{", signs[i][0]) != NULL;
            l->depth -= strchr(")]}", signs[i][0]) != NULL;
            FSDP_TRY(add_word(l, FSDP__WORD_SIGN, (fsdp__jinja_string){l->text + l->at, strlen(signs[i])}));
            advance(l, l->at + strlen(signs[i]));
            return FSDP_OK;
        }
    return FSDP__RENDER_FAIL(l->r, "unexpected char %s", FSDP__SHOWN_NAME(((char[]){l->text[l->at], 0})));
}

static fsdp_status add_next(lexer *l)
{
    char c = l->text[l->at];

    if (isdigit((unsigned char)c))
        return add_number(l);
    if (is_name(c))
        return add_name(l);
    return c == '"' || c == '\'' ? add_string(l) : add_sign(l);
}

/* Adds the words of a tag up to its end, which has to be there. */
static fsdp_status add_tag(lexer *l, bool is_print)
{
    const char *end = is_print ? "}}" : "%}";

    FSDP_TRY(add_word(l, is_print ? FSDP__WORD_PRINT_BEGIN : FSDP__WORD_TAG_BEGIN, (fsdp__jinja_string){end, 0}));
    advance(l, l->at + 2 + (sign_at(l, l->at + 2) != 0));
    l->depth = 0;
    for (;;) {
        while (l->at < l->bytes && isspace((unsigned char)l->text[l->at]))
            advance(l, l->at + 1);
        if (l->at >= l->bytes)
            return FSDP__RENDER_FAIL(l->r, "the template ends inside of a tag: '%s' is missing", end);
        if (l->depth <= 0 && (begins(l, l->at, end) || (sign_at(l, l->at) && begins(l, l->at + 1, end)))) {
            FSDP_TRY(add_word(l, is_print ? FSDP__WORD_PRINT_END : FSDP__WORD_TAG_END, (fsdp__jinja_string){end, 2}));
            take_end(l, l->at, !is_print);
            return FSDP_OK;
        }
        FSDP_TRY(add_next(l));
    }
}

static fsdp_status cut(lexer *l)
{
    while (l->at < l->bytes) {
        size_t tag = next_tag(l), raw;
        char kind = tag < l->bytes ? l->text[tag + 1] : 0;

        if (!kind) {
            fsdp__jinja_string rest = {l->text + l->at, l->bytes - l->at};

            return add_word(l, FSDP__WORD_TEXT, rest);
        }
        FSDP_TRY(add_text(l, tag, sign_at(l, tag + 2), kind == '{'));
        advance(l, tag);
        if (kind == '#') {
            FSDP_TRY(skip_comment(l));
            continue;
        }
        raw = kind == '%' ? behind_word(l, tag, "raw") : 0;
        FSDP_TRY(raw ? add_raw(l, raw) : add_tag(l, kind == '{'));
    }
    return FSDP_OK;
}

/* Copies the template with '\n' for all ends of lines, and without that of the last line. */
static fsdp_status copy_lines(fsdp__render *r, const char *text, size_t bytes, fsdp__jinja_value *out)
{
    char *to = fsdp__render_alloc(r, bytes + 1);
    size_t n = 0;

    if (!to)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        to[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    n -= n > 0 && to[n - 1] == '\n';
    to[n] = 0;
    *out = fsdp__jinja_value_of_text(to, n);
    return FSDP_OK;
}

fsdp_status fsdp__jinja_cut(fsdp__render *r, const char *text, size_t bytes, fsdp__word **out, int64_t *count)
{
    lexer l = {.r = r, .line_begins = true};
    fsdp__jinja_value lines;
    fsdp_status status;

    *out = NULL;
    *count = 0;
    FSDP_TRY(copy_lines(r, text, bytes, &lines));
    l.text = lines.string.at;
    l.bytes = lines.string.bytes;
    status = cut(&l);
    if (status == FSDP_OK)
        status = add_word(&l, FSDP__WORD_END, (fsdp__jinja_string){"", 0});
    if (status != FSDP_OK)
        fsdp__free(l.words);
    else
        *out = l.words;
    *count = l.count;
    return status;
}
