/* json_scan.c - a pass over JSON text that keeps one bit for each open level. */
#include "format/json_scan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

enum {
    BITS = 64
};

typedef struct scan {
    const char *text, *at, *end;
    const char *what; /* what is wrong at `at`; NULL: nothing */
    bool no_memory;
    /* What is open: a bit for each level, 1 for an object. */
    uint64_t *levels;
    int64_t depth, capacity;
    /* The member that is searched for; NULL: none. */
    const char *key;
    bool is_key; /* the next value belongs to it */
    fsdp__json_member *member;
    bool is_open; /* it is an object or array that has not ended yet */
    /* The keys of the outermost object are listed here; NULL: nowhere. */
    char *keys;
    size_t keys_bytes;
    /* An escape that stands for no text is noted in `no_text`; NULL: nowhere. `top` is the outermost member that is
     * open. */
    const char *const *text_keys;
    fsdp__json_member top;
    fsdp__json_no_text *no_text;
    /* A strict text is made here: it has `written` bytes so far, which stand for everything before `copied`. */
    char *out;
    int64_t written, out_capacity;
    const char *copied;
    bool keeps_numbers; /* those that jansson cannot hold become objects */
} scan;

static bool fail(scan *s, const char *what)
{
    s->what = what;
    return false;
}

/* Adds to the strict text. */
static void write_out(scan *s, const char *text, size_t bytes)
{
    if (s->no_memory || fsdp__grow(&s->out, s->written + (int64_t)bytes, &s->out_capacity, 1) != 0) {
        s->no_memory = true;
        return;
    }
    memcpy(s->out + s->written, text, bytes);
    s->written += (int64_t)bytes;
}

/* Puts `by` into the strict text in place of what stands from `begin` to `at`. */
static void replace(scan *s, const char *begin, const char *by, size_t bytes)
{
    if (!s->out)
        return;
    write_out(s, s->copied, (size_t)(begin - s->copied));
    write_out(s, by, bytes);
    s->copied = s->at;
}

/* ---- what is open ---- */

static bool in_object(const scan *s)
{
    return s->depth > 0 && s->levels[(s->depth - 1) / BITS] >> ((s->depth - 1) % BITS) & 1;
}

static bool open_level(scan *s, bool object)
{
    uint64_t bit = (uint64_t)1 << (s->depth % BITS);

    if (fsdp__grow(&s->levels, s->depth / BITS, &s->capacity, sizeof *s->levels) != 0) {
        s->no_memory = true;
        return false;
    }
    s->levels[s->depth / BITS] = (s->levels[s->depth / BITS] & ~bit) | (object ? bit : 0);
    s->depth++;
    s->at++;
    return true;
}

/* ---- strings ---- */

/* Returns the UTF-16 unit of four hexadecimal digits, or -1. */
static int32_t hex_unit(const char *at, const char *end)
{
    int32_t unit = 0;

    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef";
        char c = at[i] >= 'A' && at[i] <= 'F' ? (char)(at[i] + ('a' - 'A')) : at[i];
        const char *digit = c ? strchr(digits, c) : NULL;

        if (!digit)
            return -1;
        unit = unit * 16 + (int32_t)(digit - digits);
    }
    return unit;
}

static bool is_first_half(int32_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_second_half(int32_t unit)
{
    return unit >= 0xdc00 && unit < 0xe000;
}

/* Returns the character whose digits begin at `at`; `*bytes` is their length, with those of a second half. A half
 * without its other half is returned as it is. -1: there are no digits. */
static int32_t escaped_character(const char *at, const char *end, int *bytes)
{
    int32_t first = hex_unit(at, end), second;

    *bytes = 4;
    if (!is_first_half(first) || end - at < 6 || at[4] != '\\' || at[5] != 'u')
        return first;
    second = hex_unit(at + 6, end);
    if (!is_second_half(second))
        return first;
    *bytes = 10;
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
}

/* Notes an escape that stands for no text, if it is the first in a member that is looked at. */
static void note_no_text(const scan *s, const char *begin, bool nul)
{
    if (!s->no_text || s->no_text->key)
        return;
    for (const char *const *key = s->text_keys; *key; key++)
        if (s->top.bytes == strlen(*key) && memcmp(s->top.text, *key, s->top.bytes) == 0)
            *s->no_text = (fsdp__json_no_text){*key, (size_t)(begin - s->text), nul};
}

/* Scans an escape, from its backslash on. */
static bool scan_escape(scan *s)
{
    const char *begin = s->at++;
    int32_t character;
    int bytes;

    if (s->at == s->end)
        return fail(s, "a string does not end");
    if (*s->at != 'u') {
        if (!*s->at || !strchr("\"\\/bfnrt", *s->at))
            return fail(s, "a backslash before a character that it does not escape");
        s->at++;
        return true;
    }
    character = escaped_character(s->at + 1, s->end, &bytes);
    if (character < 0)
        return fail(s, "\\u without four hexadecimal digits");
    s->at += 1 + bytes;
    if (character == 0 || is_first_half(character) || is_second_half(character)) {
        replace(s, begin, "\\ufffd", 6);
        note_no_text(s, begin, character == 0);
    }
    return true;
}

/* Scans a string from its opening quote on; `*out` is what stands before the closing one. */
static bool scan_string(scan *s, fsdp__json_member *out)
{
    *out = (fsdp__json_member){.text = ++s->at, .is_string = true};
    while (s->at < s->end && *s->at != '"') {
        if ((unsigned char)*s->at < 0x20)
            return fail(s, "a control character in a string");
        if (*s->at != '\\') {
            s->at++;
            continue;
        }
        out->escaped = true;
        if (!scan_escape(s))
            return false;
    }
    if (s->at == s->end)
        return fail(s, "a string does not end");
    out->bytes = (size_t)(s->at++ - out->text);
    return true;
}

size_t fsdp__json_unescape(const char *text, size_t bytes, char *out, int64_t *halves)
{
    static const char letters[] = "bfnrt", stands_for[] = "\b\f\n\r\t";
    const char *end = text + bytes;
    size_t used = 0;

    *halves = 0;
    while (text < end) {
        const char *letter;
        int32_t character;
        int taken;

        if (*text != '\\') {
            out[used++] = *text++;
            continue;
        }
        letter = strchr(letters, text[1]);
        if (text[1] != 'u') {
            out[used++] = letter ? stands_for[letter - letters] : text[1];
            text += 2;
            continue;
        }
        character = escaped_character(text + 2, end, &taken);
        if (is_first_half(character) || is_second_half(character)) {
            character = 0xfffd;
            ++*halves;
        }
        used += fsdp__utf8_of((uint32_t)character, out + used);
        text += 2 + taken;
    }
    return used;
}

/* ---- numbers and words ---- */

static bool accept(scan *s, const char *word)
{
    size_t bytes = strlen(word);

    if ((size_t)(s->end - s->at) < bytes || memcmp(s->at, word, bytes) != 0)
        return false;
    s->at += bytes;
    return true;
}

static bool accept_digits(scan *s)
{
    const char *begin = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > begin;
}

/* Accepts an optional part of a number, which counts only if it has digits. */
static bool accept_part(scan *s, const char *marks, bool signs)
{
    const char *begin = s->at;

    if (s->at == s->end || !strchr(marks, *s->at) || !*s->at)
        return false;
    s->at++;
    if (signs && s->at < s->end && (*s->at == '+' || *s->at == '-'))
        s->at++;
    if (accept_digits(s))
        return true;
    s->at = begin;
    return false;
}

/* Puts a name or a number into the strict text as a string, or as an object that stands for a number. */
static void replace_by_name(scan *s, const char *begin)
{
    size_t bytes = (size_t)(s->at - begin);
    const char *before = s->keeps_numbers ? "{\"\":\"\\u0000" : "\"", *behind = s->keeps_numbers ? "\"}" : "\"";

    replace(s, begin, before, strlen(before));
    if (s->out) {
        write_out(s, begin, bytes);
        write_out(s, behind, strlen(behind));
    }
}

/* Replaces a number that jansson cannot hold: it has integers of 64 bits, and doubles that do not overflow. */
static void replace_number(scan *s, const char *begin, bool integer)
{
    FSDP__FREED char *text = NULL;
    bool beyond;

    if (!s->out || s->no_memory)
        return;
    text = fsdp__sprintf("%.*s", (int)(s->at - begin), begin); /* terminated */
    if (!text) {
        s->no_memory = true;
        return;
    }
    errno = 0;
    if (integer)
        (void)strtoll(text, NULL, 10);
    beyond = integer && errno == ERANGE;
    if (!isfinite(strtod(text, NULL)) || (beyond && s->keeps_numbers))
        replace_by_name(s, begin);
    else if (beyond)
        replace(s, s->at, "e0", 2);
}

static bool scan_number(scan *s)
{
    const char *begin = s->at;
    bool integer = true;

    if (s->at < s->end && *s->at == '-')
        s->at++;
    if (s->at < s->end && *s->at == '0') {
        s->at++;
    } else if (!accept_digits(s)) {
        s->at = begin;
        return fail(s, "no value");
    }
    if (accept_part(s, ".", false))
        integer = false;
    if (accept_part(s, "eE", true))
        integer = false;
    replace_number(s, begin, integer);
    return true;
}

static bool scan_word(scan *s)
{
    static const char *const strange[] = {"NaN", "Infinity", "-Infinity"};
    const char *begin = s->at;

    if (accept(s, "null") || accept(s, "true") || accept(s, "false"))
        return true;
    for (int i = 0; i < 3; i++)
        if (accept(s, strange[i])) {
            replace_by_name(s, begin);
            return true;
        }
    return scan_number(s);
}

/* ---- structure ---- */

static void skip_spaces(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static char next(scan *s)
{
    skip_spaces(s);
    return s->at < s->end ? *s->at : '\0';
}

static bool is_wanted(scan *s, const fsdp__json_member *key)
{
    size_t bytes = key->bytes;
    const char *text = key->text;
    FSDP__FREED char *plain = NULL;
    int64_t halves = 0;

    if (key->escaped) { /* almost no key is */
        text = plain = fsdp__malloc(key->bytes);
        if (!plain) {
            s->no_memory = true;
            return false;
        }
        bytes = fsdp__json_unescape(key->text, key->bytes, plain, &halves);
    }
    return bytes == strlen(s->key) && memcmp(text, s->key, bytes) == 0 && halves == 0;
}

/* Lists a key, if it fits. */
static void list_key(scan *s, const fsdp__json_member *key)
{
    size_t used = strlen(s->keys);

    if (key->bytes + sizeof ", ''" <= s->keys_bytes - used)
        snprintf(s->keys + used, s->keys_bytes - used, "%s'%.*s'", used ? ", " : "", (int)key->bytes, key->text);
}

static bool scan_key(scan *s)
{
    fsdp__json_member key;

    if (next(s) != '"')
        return fail(s, "no key in quotes");
    if (!scan_string(s, &key))
        return false;
    if (next(s) != ':')
        return fail(s, "no colon after a key");
    s->at++;
    s->is_key = s->key && s->depth == 1 && is_wanted(s, &key);
    if (s->keys && s->depth == 1)
        list_key(s, &key);
    if (s->depth == 1)
        s->top = key;
    return true;
}

/* Scans what follows a value: the ends of what is open, and a comma if something is still open; `*more`: a value
 * follows. */
static bool scan_ends(scan *s, bool *more)
{
    *more = false;
    while (s->depth > 0) {
        bool object = in_object(s);
        char c = next(s);

        if (c == ',') {
            s->at++;
            *more = true;
            return !object || scan_key(s);
        }
        if (c != (object ? '}' : ']'))
            return fail(s, object ? "no comma or '}' after a member" : "no comma or ']' after an element");
        s->at++;
        s->depth--;
        if (s->is_open && s->depth == 1) {
            s->member->bytes = (size_t)(s->at - s->member->text);
            s->is_open = false;
        }
    }
    return true;
}

/* Scans a value, or the beginning of one: `*whole` is false if its first member or element follows. */
static bool scan_value(scan *s, bool *whole)
{
    fsdp__json_member value = {.text = NULL};
    bool is_key = s->is_key;
    char c = next(s);

    *whole = true;
    s->is_key = false;
    value.text = s->at;
    if (c == '{' || c == '[') {
        if (!open_level(s, c == '{'))
            return false;
        *whole = next(s) == (c == '{' ? '}' : ']');
    } else if (c == '"' ? !scan_string(s, &value) : !scan_word(s)) {
        return false;
    }
    if (is_key) {
        if (!value.is_string)
            value.bytes = (size_t)(s->at - value.text);
        *s->member = value;
        s->is_open = c == '{' || c == '[';
    }
    return *whole || c == '[' || scan_key(s);
}

static bool scan_text(scan *s)
{
    bool whole, more = true;

    while (more) {
        if (!scan_value(s, &whole))
            return false;
        if (whole && !scan_ends(s, &more))
            return false;
    }
    skip_spaces(s);
    return s->at == s->end || fail(s, "text after its end");
}

/* ---- what is offered ---- */

bool fsdp__json_begins_array(const void *text, size_t bytes)
{
    const char *at = text;
    scan s = {.at = at + fsdp__utf8_mark(at, bytes), .end = at + bytes};

    return next(&s) == '[';
}

fsdp_status fsdp__json_find(const char *text, size_t bytes, const char *key, fsdp__json_member *out,
                            fsdp__json_fault *fault)
{
    scan s = {.text = text, .at = text, .end = text + bytes, .key = key, .member = out};
    bool good;

    *out = (fsdp__json_member){.text = NULL};
    *fault = (fsdp__json_fault){.what = NULL};
    if (next(&s) != '{')
        good = fail(&s, "not a JSON object");
    else
        good = scan_text(&s);
    fsdp__free(s.levels);
    if (s.no_memory)
        return FSDP_NO_MEMORY;
    if (good)
        return FSDP_OK;
    *fault = (fsdp__json_fault){.what = s.what, .offset = (size_t)(s.at - text)};
    return FSDP_FORMAT;
}

void fsdp__json_list_keys(const char *text, size_t bytes, char *out, size_t out_bytes)
{
    scan s = {.text = text, .at = text, .end = text + bytes, .keys = out, .keys_bytes = out_bytes};

    out[0] = '\0';
    (void)scan_text(&s);
    fsdp__free(s.levels);
}

fsdp_status fsdp__json_find_no_text(const char *text, size_t bytes, const char *const *keys, fsdp__json_no_text *out)
{
    scan s = {.text = text, .at = text, .end = text + bytes, .text_keys = keys, .no_text = out};

    *out = (fsdp__json_no_text){.key = NULL};
    if (!memmem(text, bytes, "\\u", 2)) /* as almost always */
        return FSDP_OK;
    (void)scan_text(&s);
    fsdp__free(s.levels);
    return s.no_memory ? FSDP_NO_MEMORY : FSDP_OK;
}

static fsdp_status refuse(const char *path, const scan *s)
{
    long long line = 1, column = 1;

    if (s->no_memory)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path ? path : "a row");
    if (!path)
        return FSDP_FAIL(FSDP_FORMAT, "%s at column %zu", s->what, (size_t)(s->at - s->text) + 1);
    for (const char *at = s->text; at < s->at; at++) {
        line += *at == '\n';
        column = *at == '\n' ? 1 : column + 1;
    }
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld column %lld: %s", path, line, column, s->what);
}

fsdp_status fsdp__json_to_strict(const char *path, const char *text, size_t bytes, bool keeps_numbers, char **out,
                                 size_t *out_bytes)
{
    size_t mark = fsdp__utf8_mark(text, bytes);
    scan s = {.text = text + mark, .at = text + mark, .end = text + bytes, .copied = text + mark};
    fsdp_status status = FSDP_OK;

    *out = NULL;
    s.keeps_numbers = keeps_numbers;
    s.no_memory = fsdp__grow(&s.out, (int64_t)bytes + 1, &s.out_capacity, 1) != 0;
    if (s.no_memory || !scan_text(&s) || s.no_memory) {
        status = refuse(path, &s);
    } else {
        replace(&s, s.end, "", 1); /* adds a NUL at the end, which is not counted */
        status = s.no_memory ? refuse(path, &s) : FSDP_OK;
    }
    if (status == FSDP_OK) {
        *out_bytes = (size_t)s.written - 1;
        *out = fsdp__take(&s.out);
    }
    FSDP__FREE_ALL(s.levels, s.out);
    return status;
}
