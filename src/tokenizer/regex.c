/* regex.c - reads an expression twice: first to separate the kinds of characters, then to write its translation. */
#include "tokenizer/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

enum {
    GROUPS_MOST = 100,    /* nested */
    REPEATS_MOST = 65535, /* PCRE2's limit */
    SET_WORK = 16,        /* the work for a set; that for a character is 1 */
    WORK_MOST = 1000 * SET_WORK,
    NO_CHARACTER = FSDP__CHARACTERS
};

typedef struct reader {
    const char *path, *regex, *at;
    fsdp__symbols *symbols;
    bool writes;             /* on the second pass */
    fsdp__charset set, item; /* the set of an atom, and that of a part of it */
    bool ignore_case, dot_all;
    bool repeats;       /* the alternatives that were read last may be repeated as they are */
    uint32_t before;    /* the previous letter, if the next one could join it: "ss" is also U+00DF */
    int groups, behind; /* open groups; those of them that look behind */
    int work;           /* done so far */
    fsdp__text *out;
} reader;

static fsdp_status refuse(const reader *r, const char *at, const char *why)
{
    char shown[8] = "";
    uint32_t character;

    for (size_t used = 0; at[used] && used < 3;) {
        size_t length = (size_t)fsdp__utf8_next(at + used, &character);

        memcpy(shown + used, at + used, length);
        used += length;
    }
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': pattern '%s': '%s' at its offset %zu is not supported: %s",
                     r->path, FSDP__SHOWN_NAME(r->regex), FSDP__SHOWN_NAME(shown), (size_t)(at - r->regex), why);
}

static fsdp_status malformed(const reader *r, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': pattern '%s': %s at its offset %zu", r->path,
                     FSDP__SHOWN_NAME(r->regex), what, (size_t)(r->at - r->regex));
}

static fsdp_status put(reader *r, const char *text)
{
    return fsdp__text_append(r->out, text, strlen(text));
}

/* Counts work. A set looks at everything in it, up to a million characters, so a long pattern could take seconds to
 * read. */
static fsdp_status spend(reader *r, const char *at, int work)
{
    r->work += work;
    return r->work <= WORK_MOST
               ? FSDP_OK
               : refuse(r, at, "the pattern has over 1000 sets (a single character is a sixteenth of one)");
}

/* ---- sets of characters ---- */

static fsdp_status put_symbols(reader *r, int first, int last)
{
    char text[16];

    snprintf(text, sizeof text, first == last ? "\\x%02x" : "\\x%02x-\\x%02x", (unsigned)first, (unsigned)last);
    return put(r, text);
}

/* Writes the set that was read, which began at `at`. */
static fsdp_status put_set(reader *r, const char *at, bool inverted)
{
    const fsdp__symbols *symbols = r->symbols;
    bool any = false;

    FSDP_TRY(spend(r, at, 1));
    if (!r->writes)
        return fsdp__symbols_part(r->symbols, &r->set)
                   ? FSDP_OK
                   : refuse(r, at, "the pattern distinguishes more than 256 kinds of characters");
    FSDP_TRY(put(r, "["));
    for (int s = 0; s < symbols->count; s++) {
        int first = s;

        while (s < symbols->count && fsdp__charset_has(&r->set, symbols->example[s]) != inverted)
            s++;
        if (s > first)
            FSDP_TRY(put_symbols(r, first, s - 1));
        any = any || s > first;
    }
    return put(r, any ? "]" : "^\\x00-\\xff]");
}

#define CASED                                                                                              \
    (1u << FSDP__LL | 1u << FSDP__LM | 1u << FSDP__LT | 1u << FSDP__LU | 1u << FSDP__MN | 1u << FSDP__NL | \
     1u << FSDP__SO)
static const char beyond_ascii[] = "letters beyond ASCII, and marks that join them, where case is ignored";

/* Adds the other case of each letter of the set, and the two characters beyond ASCII that are cases of ASCII
 * letters. */
static fsdp_status ignore_case(reader *r, const char *at)
{
    FSDP_TRY(spend(r, at, SET_WORK));
    fsdp__charset_clear(&r->item);
    fsdp__charset_add_categories(&r->item, CASED);
    for (uint32_t c = fsdp__charset_next(&r->set, 0x80); c < FSDP__CHARACTERS; c = fsdp__charset_next(&r->set, c + 1))
        if (fsdp__charset_has(&r->item, c))
            return refuse(r, at, beyond_ascii);
    for (uint32_t c = 'a'; c <= 'z'; c++)
        if (fsdp__charset_has(&r->set, c) || fsdp__charset_has(&r->set, c - 'a' + 'A')) {
            fsdp__charset_add(&r->set, c, c);
            fsdp__charset_add(&r->set, c - 'a' + 'A', c - 'a' + 'A');
            if (c == 's' || c == 'k')
                fsdp__charset_add(&r->set, c == 's' ? 0x17f : 0x212a, c == 's' ? 0x17f : 0x212a);
        }
    return FSDP_OK;
}

static bool join(uint32_t first, uint32_t second)
{
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
}

static fsdp_status put_character(reader *r, const char *at, uint32_t character)
{
    uint32_t lower = character >= 'A' && character <= 'Z' ? character - 'A' + 'a' : character;

    fsdp__charset_clear(&r->set);
    fsdp__charset_add(&r->set, character, character);
    if (r->ignore_case) {
        if (join(r->before, lower))
            return refuse(r, at, "letters that may also be one character, where case is ignored");
        FSDP_TRY(ignore_case(r, at));
    }
    r->before = r->ignore_case ? lower : 0;
    return put_set(r, at, false);
}

/* ---- escapes ---- */

static fsdp_status read_hex(reader *r, const char *escape, const char *digits, size_t most, uint32_t *out)
{
    char text[8] = "";
    size_t count = strspn(digits, "0123456789abcdefABCDEF");

    count = count < most ? count : most;
    memcpy(text, digits, count);
    *out = (uint32_t)strtoul(text, NULL, 16);
    r->at = digits + count;
    if (count == 0 || *out >= FSDP__CHARACTERS || *out >> 11 == 0x1b)
        return refuse(r, escape, "no character has this number");
    return FSDP_OK;
}

static fsdp_status read_number(reader *r, const char *at, uint32_t *out)
{
    if (at[1] == 'u') {
        FSDP_TRY(read_hex(r, at, at + 2, 4, out));
        return r->at == at + 6 ? FSDP_OK : refuse(r, at, "no character has this number");
    }
    if (at[2] != '{') {
        FSDP_TRY(read_hex(r, at, at + 2, 2, out));
        return *out < 0x80 ? FSDP_OK : refuse(r, at, "a byte that is not a character");
    }
    FSDP_TRY(read_hex(r, at, at + 3, 6, out));
    return *r->at++ == '}' ? FSDP_OK : refuse(r, at, "no character has this number");
}

static fsdp_status read_property(reader *r, const char *at, bool *inverted)
{
    bool not = at[2] == '{' && at[3] == '^';
    const char *name = at + 3 + not, *end = at[2] == '{' ? strchr(name, '}') : NULL;

    if (!end)
        return refuse(r, at, "a property without its name in braces");
    if (!fsdp__charset_add_property(&r->item, name, (size_t)(end - name)))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': pattern '%s': the property '%.*s' at its offset %zu is not supported: it "
                         "is neither a category of characters nor a script",
                         r->path, FSDP__SHOWN_NAME(r->regex), (int)(end - name < 60 ? end - name : 60), name,
                         (size_t)(at - r->regex));
    *inverted = (at[1] == 'P') != not ;
    r->at = end + 1;
    return FSDP_OK;
}

/* Puts digits, white space, word characters or hexadecimal digits into r->item. */
static void read_kind(reader *r, char letter, bool in_class)
{
    fsdp__charset_clear(&r->item);
    if (letter == 'd' || letter == 'D') {
        fsdp__charset_add_categories(&r->item, 1u << FSDP__ND);
    } else if (letter == 's' || letter == 'S') {
        fsdp__charset_add_white_space(&r->item);
    } else if (letter == 'w' || letter == 'W') {
        fsdp__charset_add_word(&r->item, in_class);
    } else {
        fsdp__charset_add(&r->item, '0', '9');
        fsdp__charset_add(&r->item, 'A', 'F');
        fsdp__charset_add(&r->item, 'a', 'f');
    }
}

/* Reads what follows a backslash: a character, or NO_CHARACTER with the meant set in r->item (`*inverted`: its
 * complement). */
static fsdp_status read_escape(reader *r, bool in_class, uint32_t *character, bool *inverted)
{
    static const char names[] = "tnrfvae", meant[] = "\t\n\r\f\v\a\x1b";
    const char *at = r->at, *name;
    char letter = at[1];

    *character = NO_CHARACTER;
    *inverted = letter >= 'A' && letter <= 'Z';
    if (!letter)
        return malformed(r, "it ends with a backslash");
    r->at += 2;
    if (strchr("dDsSwWhHpP", letter))
        FSDP_TRY(spend(r, at, SET_WORK));
    if (strchr("dDsSwWhH", letter)) {
        read_kind(r, letter, in_class);
        return FSDP_OK;
    }
    if (letter == 'p' || letter == 'P') {
        fsdp__charset_clear(&r->item);
        return read_property(r, at, inverted);
    }
    if (letter == 'x' || letter == 'u')
        return read_number(r, at, character);
    name = strchr(names, letter);
    if (name)
        *character = (unsigned char)meant[name - names];
    else if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9'))
        return refuse(r, at, "an escape that libraries of regular expressions read in different ways");
    else
        r->at = at + 1 + fsdp__utf8_next(at + 1, character);
    return FSDP_OK;
}

/* ---- classes ---- */

/* Reads a character of a class, or an escape in it, with the same results as read_escape. */
static fsdp_status read_item(reader *r, uint32_t *character, bool *inverted)
{
    if (!*r->at)
        return malformed(r, "missing ] of a class");
    if (*r->at == '[')
        return refuse(r, r->at, "a class within a class");
    if (r->at[0] == '&' && r->at[1] == '&')
        return refuse(r, r->at, "an intersection of classes");
    if (*r->at == '\\')
        return read_escape(r, true, character, inverted);
    r->at += fsdp__utf8_next(r->at, character);
    return FSDP_OK;
}

/* Adds one part of a class, which may be a range, to r->set. */
static fsdp_status read_part(reader *r, bool first)
{
    const char *begin = r->at;
    uint32_t from, to;
    bool inverted, plain_hyphen = *begin == '-' && !first;

    FSDP_TRY(spend(r, begin, 1));
    FSDP_TRY(read_item(r, &from, &inverted));
    to = from;
    if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
        if (from == NO_CHARACTER || plain_hyphen)
            return refuse(r, r->at, "a range that does not begin with a character");
        r->at++;
        FSDP_TRY(read_item(r, &to, &inverted));
        if (to == NO_CHARACTER || to < from)
            return refuse(r, begin, "a range that ends before it begins");
    }
    if (from == NO_CHARACTER)
        fsdp__charset_unite(&r->set, &r->item, inverted);
    else
        fsdp__charset_add(&r->set, from, to);
    return FSDP_OK;
}

static fsdp_status read_class(reader *r)
{
    const char *begin = r->at++;
    bool inverted = *r->at == '^';

    r->at += inverted;
    if (*r->at == ']' && !strchr(r->at + 1, ']'))
        return malformed(r, "an empty class");
    FSDP_TRY(spend(r, begin, SET_WORK));
    fsdp__charset_clear(&r->set);
    for (bool first = true; first || *r->at != ']'; first = false)
        FSDP_TRY(read_part(r, first));
    r->at++;
    r->before = 0;
    if (r->ignore_case)
        FSDP_TRY(ignore_case(r, begin));
    return put_set(r, begin, inverted);
}

/* ---- repeats ---- */

/* Returns the length of {n}, {n,}, {,m} or {n,m}; 0: it is none of these, and the brace is a character. */
static size_t interval_bytes(const char *at)
{
    size_t low = strspn(at + 1, "0123456789"), high = at[1 + low] == ',' ? strspn(at + 2 + low, "0123456789") : 0;
    const char *end = at + 1 + low + (at[1 + low] == ',') + high;

    return low + high > 0 && *end == '}' ? (size_t)(end + 1 - at) : 0;
}

static fsdp_status read_interval(reader *r, size_t bytes, char *out, size_t room)
{
    const char *begin = r->at, *comma = memchr(begin, ',', bytes);
    long low = strtol(begin + 1, NULL, 10), high = low;

    r->at += bytes;
    if (comma)
        high = comma[1] == '}' ? low : strtol(comma + 1, NULL, 10);
    if (low > high)
        return refuse(r, begin, "a repeat whose least is above its most");
    if (high > REPEATS_MOST)
        return refuse(r, begin, "a repeat of over 65535 times");
    snprintf(out, room, comma && comma[1] == '}' ? "{%ld,}" : "{%ld,%ld}", low, high);
    if (comma && *r->at == '?') { /* after {n} it is a repeat of its own */
        strncat(out, "?", 2);
        r->at++;
    }
    return FSDP_OK;
}

/* Writes the repeat that follows to `out`, in PCRE2's syntax; "": there is none. */
static fsdp_status read_repeat(reader *r, char *out, size_t room)
{
    size_t bytes = *r->at == '{' ? interval_bytes(r->at) : 0;

    *out = '\0';
    if (bytes > 0)
        return read_interval(r, bytes, out, room);
    if (!*r->at || !strchr("*+?", *r->at))
        return FSDP_OK;
    snprintf(out, room, "%.*s", r->at[1] == '?' || r->at[1] == '+' ? 2 : 1, r->at);
    r->at += strlen(out);
    return FSDP_OK;
}

/* Reads the repeats of the atom that begins at `begin` of the translation. */
static fsdp_status read_repeats(reader *r, int64_t begin)
{
    static const char open[] = "(?:";
    size_t bytes = sizeof open - 1;
    char text[64];

    for (bool first = true;; first = false) {
        const char *at = r->at;

        FSDP_TRY(read_repeat(r, text, sizeof text));
        if (!*text)
            return FSDP_OK;
        if (r->behind > 0)
            return refuse(r, at, "a repeat within a look-behind");
        if (!first) {
            FSDP_TRY(put(r, open));
            memmove(r->out->bytes + begin + bytes, r->out->bytes + begin,
                    (size_t)r->out->count - bytes - (size_t)begin);
            memcpy(r->out->bytes + begin, open, bytes);
            FSDP_TRY(put(r, ")"));
        }
        r->before = *text == '{' ? r->before : 0;
        FSDP_TRY(put(r, text));
    }
}

/* ---- groups ---- */

static fsdp_status read_alternatives(reader *r);

/* Reads the contents of the group that begins with `open`, and its closing parenthesis if it `closes` with its own. */
static fsdp_status read_inside(reader *r, const char *open, bool closes)
{
    if (++r->groups > GROUPS_MOST)
        return refuse(r, open, "over 100 groups inside each other");
    FSDP_TRY(read_alternatives(r));
    r->groups--;
    if (closes && *r->at != ')')
        return malformed(r, "missing closing parenthesis");
    r->at += closes;
    return put(r, ")");
}

static fsdp_status read_group(reader *r, const char *open, size_t bytes)
{
    bool behind = strncmp(open, "(?<", 3) == 0;

    r->behind += behind;
    r->at = open + bytes;
    FSDP_TRY(bytes == 1 ? put(r, "(?:") : fsdp__text_append(r->out, open, bytes));
    FSDP_TRY(read_inside(r, open, true));
    r->behind -= behind;
    return FSDP_OK;
}

/* Reads options. (?i) applies to everything that follows in its group, alternatives included; (?i: has a group of its
 * own. */
static fsdp_status read_options(reader *r)
{
    const char *begin = r->at, *at = begin + 2;
    bool case_before = r->ignore_case, dot_before = r->dot_all, on = true, group;

    for (; *at && *at != ':' && *at != ')'; at++) {
        if (*at == '-')
            on = false;
        else if (*at == 'i')
            r->ignore_case = on;
        else if (*at == 'm')
            r->dot_all = on;
        else
            return refuse(r, begin, "a group of another kind than (?: (?= (?! (?> (?<= (?<! (?i: and (?m:");
    }
    r->at = at;
    if (!*at)
        return malformed(r, "missing closing parenthesis");
    group = *at == ':';
    r->at++;
    FSDP_TRY(put(r, "(?:"));
    FSDP_TRY(read_inside(r, begin, group));
    r->ignore_case = case_before;
    r->dot_all = dot_before;
    return FSDP_OK;
}

static fsdp_status read_parenthesis(reader *r, bool *repeats)
{
    static const char *const kinds[] = {"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!"};

    if (r->at[1] != '?')
        return read_group(r, r->at, 1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(r->at, kinds[i], strlen(kinds[i])) == 0) {
            FSDP_TRY(read_group(r, r->at, strlen(kinds[i])));
            *repeats = i == 0 ? r->repeats : i == 1;
            return FSDP_OK;
        }
    return read_options(r);
}

/* ---- atoms ---- */

/* Writes an anchor: the beginning of a line, which is not the end of the text, or the end of a line. */
static fsdp_status put_line_anchor(reader *r, bool end)
{
    const char *at = r->at++;

    fsdp__charset_clear(&r->set);
    fsdp__charset_add(&r->set, '\n', '\n');
    FSDP_TRY(put(r, end ? "(?:\\z|(?=" : "(?:\\A|(?<="));
    FSDP_TRY(put_set(r, at, false));
    return put(r, end ? "))" : ")(?!\\z))");
}

static fsdp_status read_dot(reader *r)
{
    const char *at = r->at++;

    fsdp__charset_clear(&r->set);
    if (!r->dot_all)
        fsdp__charset_add(&r->set, '\n', '\n');
    return put_set(r, at, true);
}

static fsdp_status read_backslash(reader *r, bool *repeats)
{
    const char *at = r->at;
    uint32_t character;
    bool inverted;

    if (at[1] == 'A' || at[1] == 'z') {
        *repeats = false;
        r->at += 2;
        return put(r, at[1] == 'A' ? "\\A" : "\\z");
    }
    FSDP_TRY(read_escape(r, false, &character, &inverted));
    if (character != NO_CHARACTER)
        return put_character(r, at, character);
    r->before = 0;
    r->set = r->item;
    return put_set(r, at, inverted);
}

static fsdp_status read_atom(reader *r, bool *repeats)
{
    const char *at = r->at;
    uint32_t character;

    *repeats = true;
    switch (*at) {
    case '(':
        return read_parenthesis(r, repeats);
    case '[':
        return read_class(r);
    case '\\':
        return read_backslash(r, repeats);
    case '.':
        r->before = 0;
        return read_dot(r);
    case '^':
    case '$':
        *repeats = false;
        return put_line_anchor(r, *at == '$');
    default:
        r->at += fsdp__utf8_next(at, &character);
        return put_character(r, at, character);
    }
}

static bool is_repeat(const char *at)
{
    return *at == '*' || *at == '+' || *at == '?' || (*at == '{' && interval_bytes(at) > 0);
}

/* Reads alternatives up to a closing parenthesis or the end. As in Oniguruma, a (?: ) around them cannot be repeated if
 * one of them consists of an assertion alone. */
static fsdp_status read_alternatives(reader *r)
{
    bool repeats = false, all = true;
    int64_t atoms = 0; /* of the current alternative */

    while (*r->at && *r->at != ')') {
        int64_t begin = r->out->count;

        if (*r->at == '|') {
            r->at++;
            r->before = 0;
            all = all && (atoms != 1 || repeats);
            atoms = 0;
            repeats = false;
            FSDP_TRY(put(r, "|"));
            continue;
        }
        if (is_repeat(r->at))
            return refuse(r, r->at, "there is nothing to repeat");
        FSDP_TRY(read_atom(r, &repeats));
        atoms++;
        if (repeats)
            FSDP_TRY(read_repeats(r, begin));
    }
    r->repeats = all && (atoms != 1 || repeats);
    return FSDP_OK;
}

static fsdp_status read_all(reader *r)
{
    r->at = r->regex;
    r->before = 0;
    r->work = 0;
    r->out->count = 0;
    FSDP_TRY(read_alternatives(r));
    if (*r->at)
        return malformed(r, "a closing parenthesis without an opening one");
    return fsdp__text_append(r->out, "", 1);
}

fsdp_status fsdp__regex_translate(const char *path, const char *regex, fsdp__symbols *symbols, fsdp__text *out)
{
    FSDP__FREED reader *r = fsdp__calloc(1, sizeof *r);

    FSDP__TRY_NEW(r);
    r->path = path;
    r->regex = regex;
    r->symbols = symbols;
    r->out = out;
    FSDP_TRY(fsdp__symbols_init(symbols));
    FSDP_TRY(read_all(r));
    FSDP_TRY(fsdp__symbols_seal(symbols));
    r->writes = true;
    return read_all(r);
}
