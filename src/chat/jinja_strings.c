/* jinja_strings.c - strings are UTF-8: what counts characters walks over them. */
#include "chat/jinja_strings.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

#include "base/text.h"
#include "chat/jinja_text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

/* Returns what str.isspace() says. */
static bool is_space(uint32_t character)
{
    return fsdp__is_white_space(character) || (character >= 0x1c && character <= 0x1f);
}

/* Returns the character at an offset, and its length, which is at least 1. */
static int character_at(fsdp__jinja_string string, size_t at, uint32_t *character)
{
    int length = fsdp__utf8_at(string.at + at, string.bytes - at, character);

    return length > 0 ? length : 1;
}

/* ---- ends ---- */

static bool goes(const char *at, int length, uint32_t character, const fsdp__jinja_string *characters)
{
    if (!characters)
        return is_space(character);
    return fsdp__jinja_string_find(*characters, (fsdp__jinja_string){at, (size_t)length}, 0) != SIZE_MAX;
}

fsdp__jinja_string fsdp__jinja_string_strip(fsdp__jinja_string string, int sides, const fsdp__jinja_string *characters)
{
    uint32_t character = 0;

    while ((sides & FSDP__STRIP_LEFT) && string.bytes > 0) {
        int length = character_at(string, 0, &character);

        if (!goes(string.at, length, character, characters))
            break;
        string.at += length;
        string.bytes -= (size_t)length;
    }
    while ((sides & FSDP__STRIP_RIGHT) && string.bytes > 0) {
        size_t at = string.bytes - 1;

        while (at > 0 && ((unsigned char)string.at[at] & 0xc0) == 0x80)
            at--;
        character_at(string, at, &character);
        if (!goes(string.at + at, (int)(string.bytes - at), character, characters))
            break;
        string.bytes = at;
    }
    return string;
}

bool fsdp__jinja_string_begins(fsdp__jinja_string string, fsdp__jinja_string part)
{
    return part.bytes <= string.bytes && (part.bytes == 0 || memcmp(string.at, part.at, part.bytes) == 0);
}

bool fsdp__jinja_string_ends(fsdp__jinja_string string, fsdp__jinja_string part)
{
    return part.bytes <= string.bytes &&
           (part.bytes == 0 || memcmp(string.at + string.bytes - part.bytes, part.at, part.bytes) == 0);
}

size_t fsdp__jinja_string_find(fsdp__jinja_string string, fsdp__jinja_string part, size_t from)
{
    const char *end = string.at + string.bytes, *at = string.at + from;

    if (part.bytes == 0)
        return from <= string.bytes ? from : SIZE_MAX;
    for (; (size_t)(end - at) >= part.bytes; at++) {
        at = memchr(at, part.at[0], (size_t)(end - at) - part.bytes + 1);
        if (!at)
            break;
        if (memcmp(at, part.at, part.bytes) == 0)
            return (size_t)(at - string.at);
    }
    return SIZE_MAX;
}

/* ---- literals ---- */

/* Reads up to `most` digits of a base. Returns how many there are. */
static int read_digits(fsdp__jinja_string text, size_t at, int most, int base, uint32_t *out)
{
    char digits[9] = "", *end;

    for (int i = 0; i < most && at + (size_t)i < text.bytes; i++)
        digits[i] = text.at[at + (size_t)i];
    if (digits[0] == '-' || digits[0] == '+' || digits[0] == ' ' || (digits[0] == '0' && (digits[1] | 32) == 'x'))
        return 0;
    *out = (uint32_t)strtoul(digits, &end, base);
    return (int)(end - digits);
}

/* Reads the escape whose backslash is at `at`, and returns where it ends. */
static fsdp_status escape(fsdp__render *r, fsdp__jinja_string text, size_t *at, fsdp__builder *out)
{
    static const char letters[] = "ntr\\'\"abfv", meant[] = "\n\t\r\\'\"\a\b\f\v";
    char c = text.at[*at + 1], bytes[4];
    const char *found = c ? strchr(letters, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t character = 0;

    if (c == '\n') {
        *at += 2;
        return FSDP_OK;
    }
    if (found) {
        *at += 2;
        return fsdp__builder_add(r, out, &meant[found - letters], 1);
    }
    if (c == 'N')
        return FSDP__RENDER_FAIL(r, "the escape \\N{...} is not known");
    if (digits && read_digits(text, *at + 2, digits, 16, &character) != digits)
        return FSDP__RENDER_FAIL(r, "the escape \\%c needs %d digits", c, digits);
    if (!digits && (digits = read_digits(text, *at + 1, 3, 8, &character)) > 0)
        digits--;
    else if (!digits) {
        *at += 1;
        return fsdp__builder_add(r, out, "\\", 1);
    }
    if (character == 0 || character > 0x10ffff || (character >= 0xd800 && character < 0xe000))
        return FSDP__RENDER_FAIL(r, "an escape of no character (%#x)", (unsigned)character);
    *at += 2 + (size_t)digits;
    return fsdp__builder_add(r, out, bytes, fsdp__utf8_of(character, bytes));
}

fsdp_status fsdp__jinja_string_unescape(fsdp__render *r, fsdp__jinja_string text, fsdp__jinja_value *out)
{
    FSDP__BUILDER made = {0};

    for (size_t at = 0; at < text.bytes;) {
        const char *slash = memchr(text.at + at, '\\', text.bytes - at);
        size_t plain = slash ? (size_t)(slash - text.at) - at : text.bytes - at;

        FSDP_TRY(fsdp__builder_add(r, &made, text.at + at, plain));
        at += plain;
        if (slash)
            FSDP_TRY(escape(r, text, &at, &made));
    }
    return fsdp__builder_value(r, &made, out);
}

/* ---- parts ---- */

/* Holds a list that grows item by item. */
typedef struct parts {
    fsdp__render *r;
    fsdp__jinja_value list;
    int64_t capacity;
} parts;

static fsdp_status add_part(parts *p, const char *at, size_t bytes)
{
    int64_t count = p->list.list ? p->list.list->count : 0;

    if (count == p->capacity) {
        fsdp__jinja_value grown;

        p->capacity = p->capacity ? 2 * p->capacity : 4;
        FSDP_TRY(fsdp__jinja_value_new_list(p->r, FSDP__JINJA_VALUE_LIST, p->capacity, &grown));
        if (count)
            memcpy(grown.list->items, p->list.list->items, (size_t)count * sizeof *grown.list->items);
        grown.list->count = count;
        p->list = grown;
    }
    p->list.list->items[p->list.list->count++] = fsdp__jinja_value_of_text(at, bytes);
    return FSDP_OK;
}

static fsdp_status end_parts(parts *p, fsdp__jinja_value *out)
{
    if (!p->list.list)
        return fsdp__jinja_value_new_list(p->r, FSDP__JINJA_VALUE_LIST, 0, out);
    *out = p->list;
    return FSDP_OK;
}

/* Returns how many bytes from `at` on are white space, or are not. */
static size_t run_of(fsdp__jinja_string s, size_t at, bool space)
{
    size_t begin = at;

    while (at < s.bytes) {
        uint32_t character = 0;
        int length = character_at(s, at, &character);

        if (is_space(character) != space)
            break;
        at += (size_t)length;
    }
    return at - begin;
}

static fsdp_status split_at_space(parts *p, fsdp__jinja_string s, int64_t most)
{
    size_t at = run_of(s, 0, true);

    for (; at < s.bytes; most--) {
        size_t word = most == 0 ? s.bytes - at : run_of(s, at, false);

        FSDP_TRY(add_part(p, s.at + at, word));
        if (most == 0)
            return FSDP_OK;
        at += word;
        at += run_of(s, at, true);
    }
    return FSDP_OK;
}

fsdp_status fsdp__jinja_string_split(fsdp__render *r, fsdp__jinja_string string, const fsdp__jinja_string *separator,
                                     int64_t most, fsdp__jinja_value *out)
{
    parts p = {.r = r};
    size_t at = 0, found;

    if (!separator) {
        FSDP_TRY(split_at_space(&p, string, most));
        return end_parts(&p, out);
    }
    if (separator->bytes == 0)
        return FSDP__RENDER_FAIL(r, "empty separator");
    FSDP_TRY(fsdp__render_work(r, string.bytes / 64));
    for (; most != 0 && (found = fsdp__jinja_string_find(string, *separator, at)) != SIZE_MAX; most--) {
        FSDP_TRY(add_part(&p, string.at + at, found - at));
        at = found + separator->bytes;
    }
    FSDP_TRY(add_part(&p, string.at + at, string.bytes - at));
    return end_parts(&p, out);
}

fsdp_status fsdp__jinja_string_split_right(fsdp__render *r, fsdp__jinja_string string,
                                           const fsdp__jinja_string *separator, int64_t most, fsdp__jinja_value *out)
{
    fsdp__jinja_value all;
    int64_t joined; /* parts that stay together at the beginning */

    FSDP_TRY(fsdp__jinja_string_split(r, string, separator, -1, &all));
    joined = most < 0 ? 0 : all.list->count - 1 - most;
    if (joined > 0) {
        const fsdp__jinja_string last = all.list->items[joined].string, first = all.list->items[0].string;

        all.list->items[joined].string = (fsdp__jinja_string){
            separator ? string.at : first.at, (size_t)(last.at + last.bytes - (separator ? string.at : first.at))};
        all.list->items += joined;
        all.list->count -= joined;
    }
    *out = all;
    return FSDP_OK;
}

static bool ends_line(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

fsdp_status fsdp__jinja_string_lines(fsdp__render *r, fsdp__jinja_string string, bool keep_ends, fsdp__jinja_value *out)
{
    parts p = {.r = r};
    size_t begin = 0;

    for (size_t at = 0; at < string.bytes;) {
        uint32_t character = 0;
        size_t end = at;

        at += (size_t)character_at(string, at, &character);
        if (!ends_line(character))
            continue;
        if (character == '\r' && at < string.bytes && string.at[at] == '\n')
            at++;
        FSDP_TRY(add_part(&p, string.at + begin, (keep_ends ? at : end) - begin));
        begin = at;
    }
    if (begin < string.bytes)
        FSDP_TRY(add_part(&p, string.at + begin, string.bytes - begin));
    return end_parts(&p, out);
}

fsdp_status fsdp__jinja_string_replace(fsdp__render *r, fsdp__jinja_string string, fsdp__jinja_string old,
                                       fsdp__jinja_string by, int64_t most, fsdp__jinja_value *out)
{
    FSDP__BUILDER made = {0};
    size_t at = 0, found;

    for (; most != 0 && (found = fsdp__jinja_string_find(string, old, at)) != SIZE_MAX; most--) {
        FSDP_TRY(fsdp__builder_add(r, &made, string.at + at, found - at));
        FSDP_TRY(fsdp__builder_add(r, &made, by.at, by.bytes));
        at = found + old.bytes;
        if (old.bytes == 0) { /* stands before every character, and at the end */
            uint32_t character = 0;
            size_t length;

            if (at == string.bytes)
                break;
            length = (size_t)character_at(string, at, &character);
            FSDP_TRY(fsdp__builder_add(r, &made, string.at + at, length));
            at += length;
        }
    }
    FSDP_TRY(fsdp__builder_add(r, &made, string.at + at, string.bytes - at));
    return fsdp__builder_value(r, &made, out);
}

/* ---- upper and lower case ---- */

/* Lists characters that become several. */
static const struct {
    uint32_t character;
    const char *upper, *title;
} several[] = {{0xdf, "SS", "Ss"},     {0x149, "\u02bcN", "\u02bcN"}, {0xfb00, "FF", "Ff"},
               {0xfb01, "FI", "Fi"},   {0xfb02, "FL", "Fl"},          {0xfb03, "FFI", "Ffi"},
               {0xfb04, "FFL", "Ffl"}, {0xfb05, "ST", "St"},          {0xfb06, "ST", "St"}};

/* Adds a character as a capital, or as a small letter. */
static fsdp_status add_cased(fsdp__render *r, locale_t locale, uint32_t character, bool upper, bool title,
                             fsdp__builder *out)
{
    char bytes[4];

    for (size_t i = 0; upper && i < FSDP__COUNT_OF(several); i++)
        if (several[i].character == character) {
            const char *text = title ? several[i].title : several[i].upper;

            return fsdp__builder_add(r, out, text, strlen(text));
        }
    if (!upper && character == 0x130)
        return fsdp__builder_add(r, out, "i\u0307", 3);
    character =
        upper ? (uint32_t)towupper_l((wint_t)character, locale) : (uint32_t)towlower_l((wint_t)character, locale);
    return fsdp__builder_add(r, out, bytes, fsdp__utf8_of(character, bytes));
}

/* Returns whether a character begins a word behind `before`, 0 at the beginning. */
static bool begins_word(locale_t locale, fsdp__case to, uint32_t before)
{
    if (to == FSDP__CASE_TITLE)
        return !before || !(iswupper_l((wint_t)before, locale) || iswlower_l((wint_t)before, locale));
    return !before ||
           (to == FSDP__CASE_TITLE_FILTER && (is_space(before) || (before < 0x80 && strchr("-({[<", (int)before))));
}

static bool is_cased(uint32_t character)
{
    unsigned category = fsdp__category_of(character);

    return category == FSDP__LU || category == FSDP__LL || category == FSDP__LT;
}

/* Returns whether a character counts for nothing where Unicode asks what stands around another: marks, and signs that
 * stand in words. */
static bool is_ignorable(uint32_t character)
{
    static const uint32_t signs[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                     0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    unsigned category = fsdp__category_of(character);

    for (size_t i = 0; i < FSDP__COUNT_OF(signs); i++)
        if (signs[i] == character)
            return true;
    return category == FSDP__MN || category == FSDP__ME || category == FSDP__CF || category == FSDP__LM ||
           category == FSDP__SK;
}

/* Returns whether a sigma in front of this text ends a word. */
static bool ends_word(fsdp__jinja_string rest)
{
    uint32_t character = 0;

    for (size_t at = 0; at < rest.bytes;) {
        at += (size_t)character_at(rest, at, &character);
        if (!is_ignorable(character))
            return !is_cased(character);
    }
    return true;
}

enum {
    SIGMA = 0x3a3
};

static fsdp_status add_all_cased(fsdp__render *r, locale_t locale, fsdp__jinja_string string, fsdp__case to,
                                 fsdp__builder *out)
{
    uint32_t before = 0, character = 0;
    bool behind_letter = false; /* but for what is ignorable */

    for (size_t at = 0; at < string.bytes; before = character) {
        bool title = to >= FSDP__CASE_CAPITALIZE && begins_word(locale, to, before);
        bool upper = title || to == FSDP__CASE_UPPER;

        at += (size_t)character_at(string, at, &character);
        if (character == SIGMA && !upper && behind_letter &&
            ends_word((fsdp__jinja_string){string.at + at, string.bytes - at}))
            FSDP_TRY(fsdp__builder_add(r, out, "\u03c2", 2));
        else
            FSDP_TRY(add_cased(r, locale, character, upper, title, out));
        if (!is_ignorable(character))
            behind_letter = is_cased(character) && !(title && to == FSDP__CASE_TITLE_FILTER);
    }
    return FSDP_OK;
}

fsdp_status fsdp__jinja_string_case(fsdp__render *r, fsdp__jinja_string string, fsdp__case to, fsdp__jinja_value *out)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    FSDP__BUILDER made = {0};
    fsdp_status status;

    if (!locale)
        return FSDP__RENDER_FAIL(r, "the C library does not know C.UTF-8, which upper and lower case need");
    status = add_all_cased(r, locale, string, to, &made);
    freelocale(locale);
    FSDP_TRY(status);
    return fsdp__builder_value(r, &made, out);
}

/* ---- slices ---- */

static fsdp_status slice_bound(fsdp__render *r, const fsdp__jinja_value *value, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!value || value->kind == FSDP__JINJA_VALUE_NONE)
        return FSDP_OK;
    if (value->kind != FSDP__JINJA_VALUE_INTEGER && value->kind != FSDP__JINJA_VALUE_BOOL)
        return FSDP__RENDER_FAIL(r, "slice indices must be integers or None");
    *out = fsdp__jinja_value_integer(value);
    return FSDP_OK;
}

/* Counts a bound from the end where it is negative, and puts it between `low` and `high`. */
static int64_t clamp(int64_t at, int64_t count, int64_t low, int64_t high)
{
    if (at < 0)
        at = at < -count ? low : at + count;
    return at < low ? low : at > high ? high : at;
}

static fsdp_status slice_list(fsdp__render *r, const fsdp__jinja_list *from, int64_t begin, int64_t end, int64_t step,
                              fsdp__jinja_kind kind, fsdp__jinja_value *out)
{
    int64_t count =
        step > 0 ? (end > begin ? (end - begin - 1) / step + 1 : 0) : (begin > end ? (begin - end - 1) / -step + 1 : 0);

    FSDP_TRY(fsdp__jinja_value_new_list(r, kind, count, out));
    for (int64_t i = 0; i < count; i++)
        out->list->items[i] = from->items[begin + i * step];
    return FSDP_OK;
}

static fsdp_status join_characters(fsdp__render *r, const fsdp__jinja_list *characters, fsdp__jinja_value *out)
{
    FSDP__BUILDER made = {0};

    for (int64_t i = 0; i < characters->count; i++)
        FSDP_TRY(fsdp__builder_add(r, &made, characters->items[i].string.at, characters->items[i].string.bytes));
    return fsdp__builder_value(r, &made, out);
}

fsdp_status fsdp__jinja_value_slice(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__jinja_value *begin,
                                    const fsdp__jinja_value *end, const fsdp__jinja_value *step, fsdp__jinja_value *out)
{
    bool is_string = value->kind == FSDP__JINJA_VALUE_STRING;
    int64_t by, first, last, count;
    fsdp__jinja_list items;
    fsdp__jinja_value characters;

    if (!is_string && !fsdp__jinja_value_is_list(value))
        return FSDP__RENDER_FAIL(r, "'%s' object cannot be sliced", fsdp__jinja_value_type(value));
    FSDP_TRY(slice_bound(r, step, 1, &by));
    if (by == 0 || by < -INT32_MAX || by > INT32_MAX)
        return FSDP__RENDER_FAIL(r, by ? "a slice's step is too large" : "slice step cannot be zero");
    FSDP_TRY(fsdp__jinja_value_items(r, value, &items));
    count = items.count;
    FSDP_TRY(slice_bound(r, begin, by > 0 ? 0 : INT64_MAX, &first));
    FSDP_TRY(slice_bound(r, end, by > 0 ? INT64_MAX : INT64_MIN, &last));
    first = by > 0 ? clamp(first, count, 0, count) : clamp(first, count, -1, count - 1);
    last = by > 0 ? clamp(last, count, 0, count) : clamp(last, count, -1, count - 1);
    if (!is_string)
        return slice_list(r, &items, first, last, by, value->kind, out);
    FSDP_TRY(slice_list(r, &items, first, last, by, FSDP__JINJA_VALUE_LIST, &characters));
    return join_characters(r, characters.list, out);
}
