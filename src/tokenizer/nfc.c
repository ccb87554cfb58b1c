/* nfc.c - computes form C, but only of stretches of text that may not be in it. */
#include "tokenizer/nfc.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "base/text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_data.h"

enum {
    FIRST_COMBINING = 0x300, /* every character below it begins a new stretch */
    PARTS_MOST = 4,          /* of one character */
    FEW_BYTES = 64,

    FIRST_SYLLABLE = 0xac00, /* of Hangul: each has a leading consonant, a vowel, and possibly a trailing consonant */
    FIRST_LEADING = 0x1100,
    FIRST_VOWEL = 0x1161,
    BEFORE_TRAILING = 0x11a7,
    LEADING = 19,
    VOWELS = 21,
    TRAILING = 28
};

static unsigned combining_class(uint32_t character)
{
    return character < FIRST_COMBINING ? 0 : fsdp__combining_class(character);
}

bool fsdp__nfc_begins(uint32_t character)
{
    return combining_class(character) == 0;
}

/* Returns the bytes of the stretch at `at`: a character that begins one, and all after it that do not. */
static size_t stretch_bytes(const char *text, size_t bytes, size_t at)
{
    uint32_t character;
    size_t end = at + (size_t)fsdp__utf8_next(text + at, &character);

    while (end < bytes) {
        int length = fsdp__utf8_next(text + end, &character);

        if (fsdp__nfc_begins(character))
            break;
        end += (size_t)length;
    }
    return end - at;
}

/* Returns where the first stretch from `at` on begins that has more than one character, or one that may change. */
static size_t next_doubtful(const char *text, size_t bytes, size_t at)
{
    size_t last = at;

    while (at < bytes) {
        uint32_t character;
        int length;

        if ((unsigned char)text[at] < 0x80) {
            last = at++;
            continue;
        }
        length = fsdp__utf8_next(text + at, &character);
        if (!fsdp__nfc_begins(character))
            return last;
        last = at;
        at += (size_t)length;
    }
    return bytes;
}

/* ---- one stretch ---- */

/* Packs a character, with its position in the bits above it and its combining class in the highest bits. */
typedef uint64_t part;

static part make_part(uint32_t character, size_t place)
{
    uint64_t class = combining_class(character);

    return (class == FSDP__JOINS ? 0 : class) << 56 | (uint64_t)place << 24 | character;
}

static uint32_t character_of(part p)
{
    return p & 0xffffff;
}

static unsigned class_of(part p)
{
    return (unsigned)(p >> 56);
}

/* Returns the two parts that a character is made of; the second is 0 if the first is another spelling, and the first is
 * 0 if there are none. */
static void parts_of(uint32_t character, uint32_t parts[2])
{
    size_t run = fsdp__last_up_to(fsdp__decomposed, FSDP__DECOMPOSED, UINT32_MAX, (uint64_t)character << 12 | 0xfff);
    uint32_t end = run + 1 < FSDP__DECOMPOSED ? fsdp__decomposed[run + 1] & 0xfff : FSDP__DECOMPOSITIONS;
    uint32_t first = fsdp__decomposed[run] >> 12, at = (fsdp__decomposed[run] & 0xfff) + (character - first);
    bool found = character >= first && at < end;

    parts[0] = found ? fsdp__decompositions[at] >> 8 : 0;
    parts[1] = found ? fsdp__second_parts[fsdp__decompositions[at] & 0xff] : 0;
}

static size_t take_apart(uint32_t character, part *parts, size_t count)
{
    uint32_t made_of[2];

    parts_of(character, made_of);
    if (!made_of[0]) {
        parts[count] = make_part(character, count);
        return count + 1;
    }
    count = take_apart(made_of[0], parts, count);
    return made_of[1] ? take_apart(made_of[1], parts, count) : count;
}

static int compare_parts(const void *a, const void *b)
{
    return FSDP__COMPARE(*(const part *)a, *(const part *)b);
}

/* Sorts the characters that join the one before by their classes. */
static void order(part *parts, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        while (class_of(parts[begin]) > 0 && end < count && class_of(parts[end]) > 0)
            end++;
        if (end > begin + 1)
            qsort(parts + begin, end - begin, sizeof *parts, compare_parts);
    }
}

/* Returns the Hangul syllable that the two form; 0: none. */
static uint32_t join_hangul(uint32_t first, uint32_t second)
{
    uint32_t syllable = first - FIRST_SYLLABLE;

    if (first - FIRST_LEADING < LEADING && second - FIRST_VOWEL < VOWELS)
        return FIRST_SYLLABLE + ((first - FIRST_LEADING) * VOWELS + (second - FIRST_VOWEL)) * TRAILING;
    if (syllable < LEADING * VOWELS * TRAILING && syllable % TRAILING == 0 && second > BEFORE_TRAILING &&
        second < BEFORE_TRAILING + TRAILING)
        return first + (second - BEFORE_TRAILING);
    return 0;
}

/* Returns the character that has the decomposition at this index. */
static uint32_t whole_of(uint32_t at)
{
    uint32_t run = fsdp__decomposed[fsdp__last_up_to(fsdp__decomposed, FSDP__DECOMPOSED, 0xfff, at)];

    return (run >> 12) + at - (run & 0xfff);
}

/* Returns the character that the two form; 0: none. */
static uint32_t join(uint32_t first, uint32_t second)
{
    size_t index = fsdp__last_up_to(fsdp__second_parts, FSDP__SECOND_PARTS, UINT32_MAX, second), low = 0;
    size_t high = fsdp__second_parts[index] == second ? FSDP__COMPOSITIONS : 0;
    uint32_t sought = first << 8 | (uint32_t)index; /* second parts are in order, and so are the decompositions */

    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t at = fsdp__compositions[middle];

        if (fsdp__decompositions[at] == sought)
            return whole_of(at);
        if (fsdp__decompositions[at] < sought)
            low = middle + 1;
        else
            high = middle;
    }
    return join_hangul(first, second);
}

/* Composes the parts. Returns how many are left. */
static size_t compose(part *parts, size_t count)
{
    size_t kept = 0, begin = SIZE_MAX; /* `begin`: the character that others may join */

    for (size_t i = 0; i < count; i++) {
        bool reaches = begin != SIZE_MAX && (kept == begin + 1 || class_of(parts[kept - 1]) < class_of(parts[i]));
        uint32_t joined = reaches ? join(character_of(parts[begin]), character_of(parts[i])) : 0;

        if (joined) {
            parts[begin] = make_part(joined, 0);
            continue;
        }
        if (class_of(parts[i]) == 0)
            begin = kept;
        parts[kept++] = parts[i];
    }
    return kept;
}

/* Appends a stretch in form C. The first characters may stay as they are; what follows is made of all that follows. */
static fsdp_status append_composed(fsdp__text *out, const fsdp__passage *stretch)
{
    const char *text = stretch->text;
    size_t bytes = stretch->bytes;
    part few[PARTS_MOST * FEW_BYTES], *parts = few;
    FSDP__FREED part *many = NULL;
    size_t count = 0, at = 0;
    bool same = true;

    if (bytes > FEW_BYTES)
        parts = many = fsdp__malloc(PARTS_MOST * bytes * sizeof *parts);
    FSDP__TRY_NEW(parts);
    for (size_t i = 0; i < bytes;) {
        uint32_t character;

        i += (size_t)fsdp__utf8_next(text + i, &character);
        count = take_apart(character, parts, count);
    }
    order(parts, count);
    count = compose(parts, count);
    for (size_t i = 0; i < count; i++) {
        char utf8[4];
        size_t length = fsdp__utf8_of(character_of(parts[i]), utf8);

        same = same && length <= bytes - at && memcmp(text + at, utf8, length) == 0;
        FSDP_TRY(same ? fsdp__text_copy(out, stretch, at, at + length)
                      : fsdp__text_add(out, utf8, length, fsdp__passage_origin(stretch, at, bytes)));
        at += same ? length : 0;
    }
    return FSDP_OK;
}

fsdp_status fsdp__nfc(const fsdp__passage *in, fsdp__text *scratch, fsdp__passage *out)
{
    const char *text = in->text;
    size_t bytes = in->bytes, doubtful = next_doubtful(text, bytes, 0), done = 0;

    *out = *in;
    if (doubtful == bytes)
        return FSDP_OK;
    fsdp__text_begin(scratch, in);
    while (done < bytes) {
        size_t stretch = doubtful < bytes ? stretch_bytes(text, bytes, doubtful) : 0;

        fsdp__passage doubted = fsdp__passage_part(in, doubtful, doubtful + stretch);

        FSDP_TRY(fsdp__text_copy(scratch, in, done, doubtful));
        if (stretch)
            FSDP_TRY(append_composed(scratch, &doubted));
        done = doubtful + stretch;
        doubtful = next_doubtful(text, bytes, done);
    }
    *out = fsdp__text_passage(scratch);
    return FSDP_OK;
}
