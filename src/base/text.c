/* text.c - names, values and sizes, as readers see them. */
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"

enum {
    PART_BYTES = 2048 /* of a message: most are shorter, and need no memory */
};

int fsdp__utf8_next(const char *text, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    int bytes = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    uint32_t value = bytes == 1 ? at[0] : at[0] & (0xFFu >> (bytes + 1));

    for (int i = 1; i < bytes; i++) { /* a text that ends too early has a NUL here */
        if (at[i] >> 6 != 2)
            return 0;
        value = value << 6 | (at[i] & 0x3F);
    }
    if (!bytes || value < least[bytes] || value >> 11 == 0x1B || value > 0x10FFFF)
        return 0;
    *character = value;
    return bytes;
}

size_t fsdp__utf8_of(uint32_t character, char out[4])
{
    size_t bytes = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};

    for (size_t i = bytes; i-- > 1; character >>= 6)
        out[i] = (char)(0x80 | (character & 0x3f));
    out[0] = (char)(first[bytes] | character);
    return bytes;
}

size_t fsdp__utf8_mark(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* Returns whether a character turns the direction of its neighbours: all that Unicode's property Bidi_Control has. */
static bool turns(uint32_t code)
{
    return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Returns whether a character moves the cursor, begins a line that looks like another message, or turns the direction
 * of its neighbours. */
static bool moves(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 || turns(code);
}

/* Shows the character that `*text` begins with, and goes on to the next; where `out` is NULL it only does that. Returns
 * how many bytes it takes. */
static size_t show_next(const char **text, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = *text;
    uint32_t code = 0;
    int length = fsdp__utf8_next(at, &code);
    bool plain = length > 0 && !moves(code);
    size_t count = length > 0 ? (size_t)length : 1;

    *text += count;
    if (plain && out)
        memcpy(out, at, count);
    for (size_t i = 0; i < count && !plain && out; i++) {
        unsigned char byte = (unsigned char)at[i];
        const char shown[] = {'\\', 'x', digits[byte >> 4], digits[byte & 15]};

        memcpy(out + 4 * i, shown, sizeof shown);
    }
    return plain ? count : 4 * count;
}

/* Shows what of a text takes no more than `room` bytes, and goes on to what is behind it. Returns how many it takes. */
static size_t show_part(const char **text, char *out, size_t room)
{
    size_t used = 0;

    while (**text) {
        const char *next = *text;

        if (show_next(&next, NULL) > room - used)
            break;
        used += show_next(text, out + used);
    }
    return used;
}

const char *fsdp__shown(const char *text, char *out, size_t out_bytes)
{
    static const char cut[] = "...";
    size_t whole = 0, used;

    for (const char *at = text; *at;)
        whole += show_next(&at, NULL);
    used = show_part(&text, out, whole < out_bytes ? whole : (out_bytes - sizeof cut) / 2);
    if (*text) {
        size_t left = whole - used;

        memcpy(out + used, cut, sizeof cut - 1);
        used += sizeof cut - 1;
        while (left > out_bytes - 1 - used)
            left -= show_next(&text, NULL);
        used += show_part(&text, out + used, left);
    }
    out[used] = '\0';
    return out;
}

/* Adds to a text, and counts what has no room. */
static void put(const char *text, size_t count, char *out, size_t out_bytes, size_t *used)
{
    if (*used + count < out_bytes)
        memcpy(out + *used, text, count);
    *used += count;
}

const char *fsdp__shell_word(const char *path, char *out, size_t out_bytes)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%";
    bool escapes = false, quotes = !*path || path[strspn(path, plain)];
    const char *begin, *at = path;
    size_t used = 0;

    while (*at && !escapes) {
        const char *before = at;

        escapes = show_next(&at, NULL) != (size_t)(at - before);
    }
    begin = escapes ? "$'" : quotes ? "'" : "";
    put("./", path[0] == '-' ? 2 : 0, out, out_bytes, &used);
    put(begin, strlen(begin), out, out_bytes, &used);
    for (at = path; *at;) {
        char shown[4 * 4];

        if (*at == '\'' || (escapes && *at == '\\')) {
            put("'\\", escapes ? 0 : 1, out, out_bytes, &used); /* outside simple quotes, which have no escapes */
            put((const char[]){'\\', *at++}, 2, out, out_bytes, &used);
            put("'", escapes ? 0 : 1, out, out_bytes, &used);
            continue;
        }
        put(shown, show_next(&at, shown), out, out_bytes, &used);
    }
    put("'", quotes, out, out_bytes, &used);
    if (used >= out_bytes)
        return fsdp__shown(path, out, out_bytes);
    out[used] = '\0';
    return out;
}

const char *fsdp__shown_message(char *out, size_t out_bytes, const char *format, va_list arguments)
{
    char part[PART_BYTES], *whole = NULL;
    va_list again;

    va_copy(again, arguments);
    if (vsnprintf(part, sizeof part, format, arguments) >= PART_BYTES && vasprintf(&whole, format, again) < 0)
        whole = NULL;
    va_end(again);
    fsdp__shown(whole ? whole : part, out, out_bytes);
    free(whole);
    return out;
}

const char *fsdp__size_text(double bytes, char *out, size_t out_bytes)
{
    double kib = bytes / 1024, mib = kib / 1024, gib = mib / 1024;

    if (gib >= 1024)
        snprintf(out, out_bytes, "%.2fTiB", gib / 1024);
    else if (gib >= 1)
        snprintf(out, out_bytes, "%.2fGiB", gib);
    else if (bytes >= 1 && kib < 0.1)
        snprintf(out, out_bytes, "%.0fB", bytes);
    else
        snprintf(out, out_bytes, "%.1f%s", mib >= 1 ? mib : kib, mib >= 1 ? "MiB" : "KiB");
    return out;
}

const char *fsdp__size_text_beside(double bytes, double other, char *out, size_t out_bytes)
{
    char theirs[40];

    fsdp__size_text(bytes, out, out_bytes);
    if (bytes != other && strcmp(out, fsdp__size_text(other, theirs, sizeof theirs)) == 0)
        snprintf(out, out_bytes, "%.0fB", bytes);
    return out;
}

const char *fsdp__text_behind_rank(const char *text, int *rank)
{
    int named, end = 0;

    if (sscanf(text, "rank %d: %n", &named, &end) != 1 || end == 0)
        return text;
    *rank = named;
    return text + end;
}

bool fsdp__is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

const char *fsdp__behind(const char *text, const char *begin)
{
    size_t length = strlen(begin);

    return strncmp(text, begin, length) == 0 ? text + length : NULL;
}

bool fsdp__is_plain_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

bool fsdp__ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

void fsdp__print_json_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", (unsigned)(unsigned char)*text);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

void fsdp__print_xml_text(const char *text, FILE *out)
{
    uint32_t code = 0;

    for (int length; *text; text += length) {
        length = fsdp__utf8_next(text, &code);
        if (length == 0 || code < ' ' || code == 0xFFFE || code == 0xFFFF) {
            fputc('?', out);
            length = length > 0 ? length : 1;
        } else if (code >= 0x7F && moves(code)) {
            char shown[4 * 4];
            const char *at = text;

            fwrite(shown, 1, show_next(&at, shown), out);
        } else if (code < 0x80 && strchr("<>&\"'", (int)code)) {
            fprintf(out, "&#%d;", (int)code);
        } else {
            fwrite(text, 1, (size_t)length, out);
        }
    }
}

const char *fsdp__json_name(const char *name, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == ' ')
            *c = '_';
    return out;
}

const char *fsdp__float_text(float value, char text[32])
{
    int digits = 1;

    do
        snprintf(text, 32, "%.*g", digits, (double)value);
    while (strtof(text, NULL) != value && digits++ < 9);
    if (!strpbrk(text, ".einf"))
        snprintf(text, 32, "%.1f", (double)value);
    return text;
}

const char *fsdp__thousands(int64_t value, char *text, size_t text_bytes)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    size_t used = 0;

    for (int i = 0; i < length && used + 2 < text_bytes; i++) {
        if (i && (length - i) % 3 == 0 && digits[i - 1] != '-')
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

/* ---- lists ---- */

static void append(fsdp__names *names, const char *between, const char *name)
{
    size_t used = strlen(names->text);

    snprintf(names->text + used, sizeof names->text - used, "%s%s", between, name);
}

/* Adds a name. The last of the shown names is kept back, since an "and" may have to go before it. */
void fsdp__names_add(fsdp__names *names, const char *name)
{
    char shown[sizeof names->last - 2];

    if (names->count++ >= FSDP__NAMES_SHOWN)
        return;
    if (names->count > 1)
        append(names, names->count > 2 ? ", " : "", names->last);
    snprintf(names->last, sizeof names->last, "'%s'", fsdp__shown(name, shown, sizeof shown));
}

const char *fsdp__names_text(fsdp__names *names)
{
    char more[40];

    if (names->count == 0)
        return "";
    if (names->count > FSDP__NAMES_SHOWN) {
        snprintf(more, sizeof more, " and %lld more", (long long)(names->count - FSDP__NAMES_SHOWN));
        append(names, ", ", names->last);
        append(names, more, "");
    } else {
        append(names, names->count > 1 ? " and " : "", names->last);
    }
    return names->text;
}

void fsdp__name_end(const char *name, size_t columns, char *out)
{
    size_t length = strlen(name);
    const char *end, *dot;

    if (length <= columns) {
        snprintf(out, columns + 1, "%s", name);
        return;
    }
    end = name + length - (columns - 2);
    dot = strchr(end, '.');
    snprintf(out, columns + 1, "..%s", dot && dot[1] ? dot + 1 : end);
}

/* ---- lists of ranks ---- */

void fsdp__rank_list_add(fsdp__rank_list *list, int rank)
{
    if (list->count < (int64_t)FSDP__COUNT_OF(list->shown))
        list->shown[list->count] = rank;
    list->gaps = list->gaps || (list->count > 0 && rank != list->last + 1);
    list->last = rank;
    list->count++;
}

const char *fsdp__rank_list_text(const fsdp__rank_list *list, char *text, size_t bytes)
{
    int64_t shown = FSDP__MIN(list->count, (int64_t)FSDP__COUNT_OF(list->shown));
    size_t at = (size_t)snprintf(text, bytes, "rank%s ", fsdp__plural(list->count));

    if (list->count > 2 && !list->gaps) {
        (void)snprintf(text + at, bytes - at, "%d to %d", list->shown[0], list->last);
        return text;
    }
    for (int64_t i = 0; i < shown && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%d",
                               i == 0                 ? ""
                               : i + 1 == list->count ? " and "
                                                      : ", ",
                               list->shown[i]);
    if (list->count > shown && at < bytes)
        (void)snprintf(text + at, bytes - at, " and %lld more", (long long)(list->count - shown));
    return text;
}
