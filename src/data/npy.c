/* npy.c - parses the header of a .npy file: magic, version, length, and a Python dictionary with three keys, read
 * strictly. */
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "data/array_file.h"

static const unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

enum {
    PREAMBLE = 8,       /* magic and version */
    MOST_HEADER = 65536 /* bytes */
};

bool fsdp__is_npy(const unsigned char *data, size_t bytes)
{
    return bytes >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

/* The part of the dictionary that has not been read yet. */
typedef struct cursor {
    const char *path, *begin, *at, *end;
} cursor;

static fsdp_status fail(const cursor *c, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its header %s at offset %zu of the dictionary", c->path, what,
                     (size_t)(c->at - c->begin));
}

static void skip_spaces(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
        c->at++;
}

/* Skips spaces, and then `text` if it is there. */
static bool accept(cursor *c, const char *text)
{
    size_t length = strlen(text);

    skip_spaces(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, text, length) != 0)
        return false;
    c->at += length;
    return true;
}

/* Reads a 'string' without escapes. */
static fsdp_status read_string(cursor *c, char *text, size_t text_bytes)
{
    size_t length = 0;

    if (!accept(c, "'"))
        return fail(c, "has no quoted word");
    while (c->at < c->end && *c->at != '\'' && length + 1 < text_bytes)
        text[length++] = *c->at++;
    text[length] = '\0';
    if (c->at >= c->end || *c->at != '\'')
        return fail(c, "has a quoted word that does not end, or is too long");
    c->at++;
    return FSDP_OK;
}

static fsdp_status read_size(cursor *c, int64_t *out)
{
    const char *first;
    int64_t value = 0;

    skip_spaces(c);
    for (first = c->at; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *c->at - '0', &value))
            return fail(c, "has a size that is too large");
    if (c->at == first)
        return fail(c, "has no size where one should be");
    *out = value;
    return FSDP_OK;
}

/* Reads a shape: (3, 4) or (3,) or (). */
static fsdp_status read_shape(cursor *c, fsdp__array_header *out)
{
    if (!accept(c, "("))
        return fail(c, "has no shape in parentheses");
    out->ndim = 0;
    while (!accept(c, ")")) {
        if (out->ndim == FSDP_DATA_DIMS)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': it has more than %d dimensions", c->path,
                             FSDP_DATA_DIMS);
        FSDP_TRY(read_size(c, &out->shape[out->ndim++]));
        if (accept(c, ","))
            continue;
        if (out->ndim == 1 || !accept(c, ")"))
            return fail(c, "has a shape without a comma or its end");
        return FSDP_OK;
    }
    return FSDP_OK;
}

static fsdp_status find_dtype(const char *path, const char *descr, fsdp_dtype *out)
{
    static const struct {
        const char *descr;
        fsdp_dtype dtype;
    } known[] = {{"<f4", FSDP_F32}, {"<f2", FSDP_F16}, {"<i4", FSDP_I32},
                 {"<i8", FSDP_I64}, {"|u1", FSDP_U8},  {"|b1", FSDP_BOOL}};

    for (size_t i = 0; i < FSDP__COUNT_OF(known); i++)
        if (strcmp(descr, known[i].descr) == 0) {
            *out = known[i].dtype;
            return FSDP_OK;
        }
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot read '%s': its elements are '%s'; save them as float32, float16, int32, int64, uint8 or "
                     "bool (NumPy's astype)",
                     path, fsdp__shown(descr, FSDP__ROOM(64)));
}

enum {
    DESCR = 1,
    ORDER = 2,
    SHAPE = 4
};

static fsdp_status read_entry(cursor *c, fsdp__array_header *out, bool *fortran, int *seen)
{
    char key[16], descr[16];
    int which;

    FSDP_TRY(read_string(c, key, sizeof key));
    which = strcmp(key, "descr") == 0           ? DESCR
            : strcmp(key, "fortran_order") == 0 ? ORDER
            : strcmp(key, "shape") == 0         ? SHAPE
                                                : 0;
    if (!which || *seen & which || !accept(c, ":"))
        return fail(c, "has another key than descr, fortran_order and shape, or one twice,");
    *seen |= which;
    if (which == SHAPE)
        return read_shape(c, out);
    if (which == ORDER) {
        *fortran = accept(c, "True");
        return *fortran || accept(c, "False") ? FSDP_OK : fail(c, "has a fortran_order that is not True or False");
    }
    skip_spaces(c);
    if (c->at < c->end && *c->at == '[')
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': its elements are records: save one array for each field",
                         c->path);
    FSDP_TRY(read_string(c, descr, sizeof descr));
    return find_dtype(c->path, descr, &out->dtype);
}

static fsdp_status read_dictionary(cursor *c, fsdp__array_header *out, bool *fortran)
{
    int seen = 0;

    if (!accept(c, "{"))
        return fail(c, "is not a dictionary");
    while (!accept(c, "}")) {
        FSDP_TRY(read_entry(c, out, fortran, &seen));
        if (accept(c, ","))
            continue;
        if (!accept(c, "}"))
            return fail(c, "has an entry without a comma or the dictionary's end");
        break;
    }
    skip_spaces(c);
    if (c->at != c->end)
        return fail(c, "continues after its end");
    if (seen != (DESCR | ORDER | SHAPE))
        return fail(c, "lacks descr, fortran_order or shape");
    return FSDP_OK;
}

fsdp_status fsdp__npy_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out)
{
    size_t wide, length = 0;
    bool fortran = false;
    cursor c = {.path = path};

    *out = (fsdp__array_header){0};
    if (!fsdp__is_npy(data, bytes) || bytes < PREAMBLE)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is not a .npy file", path);
    if (data[6] < 1 || data[6] > 3 || data[7] != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': .npy version %d.%d is not supported: 1.0, 2.0 and 3.0 are", path, data[6],
                         data[7]);
    wide = data[6] == 1 ? 2 : 4;
    if (bytes < PREAMBLE + wide)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it ends in its header", path);
    for (size_t i = 0; i < wide; i++)
        length |= (size_t)data[PREAMBLE + i] << (8 * i);
    if (length > MOST_HEADER || length > bytes - PREAMBLE - wide)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a header of %zu bytes at offset %d, in a file of %zu", path,
                         length, PREAMBLE, bytes);
    out->offset = PREAMBLE + wide + length;
    c.begin = c.at = (const char *)data + PREAMBLE + wide;
    c.end = c.begin + length;
    FSDP_TRY(read_dictionary(&c, out, &fortran));
    if (fortran && out->ndim > 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': it is in Fortran order: save numpy.ascontiguousarray of it", path);
    return FSDP_OK;
}
