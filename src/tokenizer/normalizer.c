/* normalizer.c - the steps of a normalizer. Each reads one text and writes another. */
#include "tokenizer/normalizer.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "tokenizer/utf8.h"

/* ---- SentencePiece's table: a trie of what is replaced (a double array, as darts-clone has it), and what by ---- */

typedef struct table {
    const char *units; /* of 32 bits, little-endian, not aligned */
    size_t unit_count;
    const char *strings; /* each ends with a NUL */
    size_t string_bytes;
} table;

static uint32_t read_u32(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;

    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Finds the parts of a table; false: it is none. */
static bool read_table(const char *bytes, size_t count, table *out)
{
    uint32_t size = count >= 4 ? read_u32(bytes) : 0;

    if (size < 4 || size % 4 != 0 || size > count - 4)
        return false;
    *out = (table){
        .units = bytes + 4, .unit_count = size / 4, .strings = bytes + 4 + size, .string_bytes = count - 4 - size};
    return out->string_bytes > 0 && out->strings[out->string_bytes - 1] == '\0';
}

static bool read_unit(const table *t, size_t at, uint32_t *out)
{
    if (at >= t->unit_count)
        return false;
    *out = read_u32(t->units + 4 * at);
    return true;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* Returns how many bytes of the text are replaced, as many as possible, and by what; 0: none. */
static size_t find_longest(const table *t, const char *text, size_t bytes, const char **by)
{
    uint32_t unit, leaf;
    size_t at = 0, longest = 0;

    if (!read_unit(t, 0, &unit))
        return 0;
    at ^= offset_of(unit);
    for (size_t i = 0; i < bytes; i++) {
        at ^= (unsigned char)text[i];
        if (!read_unit(t, at, &unit) || (unit & (1u << 31 | 0xff)) != (unsigned char)text[i])
            break;
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) && read_unit(t, at, &leaf) && (leaf & 0x7fffffff) < t->string_bytes) {
            longest = i + 1;
            *by = t->strings + (leaf & 0x7fffffff);
        }
    }
    return longest;
}

static size_t character_bytes(const char *text, size_t bytes)
{
    uint32_t character;
    int length = fsdp__utf8_at(text, bytes, &character);

    return length > 0 ? (size_t)length : 1;
}

static fsdp_status by_table(const fsdp__normalizer_step *step, const fsdp__passage *in, fsdp__text *out)
{
    table t;

    if (!read_table(step->what, step->what_bytes, &t))
        return FSDP_FAIL(FSDP_FORMAT, "not a table of characters");
    for (size_t i = 0; i < in->bytes;) {
        const char *by = NULL;
        size_t taken = find_longest(&t, in->text + i, in->bytes - i, &by);

        if (taken > 0) {
            FSDP_TRY(fsdp__text_add(out, by, strlen(by), fsdp__passage_origin(in, i, i + taken)));
        } else {
            taken = character_bytes(in->text + i, in->bytes - i);
            FSDP_TRY(fsdp__text_copy(out, in, i, i + taken));
        }
        i += taken;
    }
    return FSDP_OK;
}

/* ---- the other steps ---- */

static fsdp_status replace(const fsdp__normalizer_step *step, const fsdp__passage *in, fsdp__text *out)
{
    size_t done = 0;

    for (size_t i = 0; i + step->what_bytes <= in->bytes;) {
        size_t end = i + step->what_bytes;

        if (memcmp(in->text + i, step->what, step->what_bytes) != 0) {
            i++;
            continue;
        }
        FSDP_TRY(fsdp__text_copy(out, in, done, i));
        FSDP_TRY(fsdp__text_add(out, step->with, strlen(step->with), fsdp__passage_origin(in, i, end)));
        done = i = end;
    }
    return fsdp__text_copy(out, in, done, in->bytes);
}

static fsdp_status single_spaces(const fsdp__passage *in, fsdp__text *out)
{
    size_t waiting = SIZE_MAX; /* where the spaces begin of which one will be left */

    for (size_t i = 0; i < in->bytes; i++) {
        if (in->text[i] == ' ') {
            waiting = out->count > 0 && waiting == SIZE_MAX ? i : waiting;
            continue;
        }
        if (waiting != SIZE_MAX)
            FSDP_TRY(fsdp__text_add(out, " ", 1, fsdp__passage_origin(in, waiting, i)));
        waiting = SIZE_MAX;
        FSDP_TRY(fsdp__text_copy(out, in, i, i + 1));
    }
    return FSDP_OK;
}

static fsdp_status prepend(const fsdp__normalizer_step *step, const fsdp__passage *in, fsdp__text *out)
{
    if (in->bytes > 0)
        FSDP_TRY(fsdp__text_add(out, step->with, strlen(step->with), fsdp__passage_front(in)));
    return fsdp__text_copy(out, in, 0, in->bytes);
}

static fsdp_status apply(const fsdp__normalizer_step *step, const fsdp__passage *in, fsdp__text *out)
{
    switch (step->kind) {
    case FSDP__NORMALIZE_NFC:
        break;
    case FSDP__NORMALIZE_PREPEND:
    case FSDP__NORMALIZE_PREPEND_FIRST:
        return prepend(step, in, out);
    case FSDP__NORMALIZE_REPLACE:
        return replace(step, in, out);
    case FSDP__NORMALIZE_SINGLE_SPACES:
        return single_spaces(in, out);
    case FSDP__NORMALIZE_TABLE:
        return by_table(step, in, out);
    }
    return FSDP_OK;
}

/* ---- all of it ---- */

fsdp_status fsdp__normalizer_add(fsdp__normalizer *normalizer, fsdp__normalizer_kind kind, const char *what,
                                 size_t what_bytes, const char *with)
{
    fsdp__normalizer_step *step = &normalizer->steps[normalizer->count];
    table t;

    if (normalizer->count == FSDP__NORMALIZER_STEPS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "the normalizer has over %d steps", FSDP__NORMALIZER_STEPS);
    if (kind == FSDP__NORMALIZE_TABLE && !read_table(what, what_bytes, &t))
        return FSDP_FAIL(FSDP_FORMAT, "the normalizer's table of characters is damaged");
    normalizer->count++; /* from here on it is released with the others */
    *step = (fsdp__normalizer_step){.kind = kind, .what_bytes = what_bytes};
    if (what) {
        FSDP__TRY_NEW(step->what = fsdp__malloc(what_bytes + 1));
        memcpy(step->what, what, what_bytes);
        step->what[what_bytes] = '\0';
    }
    if (with)
        FSDP__TRY_NEW(step->with = fsdp__strdup(with));
    return FSDP_OK;
}

fsdp_status fsdp__normalize(const fsdp__normalizer *normalizer, bool first, const fsdp__passage *in,
                            fsdp__text scratch[2], fsdp__passage *out)
{
    fsdp__passage passage = *in;
    int next = 0;

    for (int i = 0; i < normalizer->count; i++) {
        const fsdp__normalizer_step *step = &normalizer->steps[i];
        fsdp__text *to = &scratch[next];

        if (step->kind == FSDP__NORMALIZE_PREPEND_FIRST && !first)
            continue;
        if (step->kind == FSDP__NORMALIZE_NFC) {
            FSDP_TRY(fsdp__nfc(&passage, to, &passage));
        } else {
            fsdp__text_begin(to, &passage);
            FSDP_TRY(apply(step, &passage, to));
            passage = fsdp__text_passage(to);
        }
        next ^= passage.text == to->bytes;
    }
    *out = passage;
    return FSDP_OK;
}

void fsdp__normalizer_release(fsdp__normalizer *normalizer)
{
    for (int i = 0; i < normalizer->count; i++)
        FSDP__FREE_ALL(normalizer->steps[i].what, normalizer->steps[i].with);
    *normalizer = (fsdp__normalizer){0};
}
