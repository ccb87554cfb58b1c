/* json.c - reads JSON text, with errors that name file and key. */
#include "format/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json_scan.h"
#include "format/lfs_pointer.h"

enum {
    MAX_DEPTH = 900, /* Python's reader, which other programs use, ends at about a thousand */
    MAX_STRING_BYTES = 1 << 20,
    LIMIT_BYTES = 32 << 20, /* of a file of our own */
    MAX_UNITS = 4 << 20     /* a hundred thousand tensors in one file take 3.5 million */
};

/* Returns how much memory a value takes that begins with this character, in units of about 40 bytes: the most is 200
 * MB. Every value except the first of an object or array stands behind one of the last two characters. */
static int64_t units(char c)
{
    return c == '{' ? 8 : c == '[' ? 4 : c == ',' || c == ':' ? 2 : 0;
}

/* Limits what a text may hold. */
typedef struct limits {
    int64_t values; /* in units of memory */
    size_t string_bytes;
} limits;

static const limits usual = {MAX_UNITS, MAX_STRING_BYTES}, large = {4 * MAX_UNITS, MAX_STRING_BYTES};

/* `path` NULL: a row, whose caller knows the place. */
static fsdp_status too_much(const char *path, const char *what, size_t offset)
{
    if (!path)
        return FSDP_FAIL(FSDP_FORMAT, "%s at column %zu: more than a row may have: make several of it", what,
                         offset + 1);
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %s at offset %zu: more than the files of any model have", path,
                     what, offset);
}

/* Checks the text before memory is allocated for it: small texts can ask for much memory, since an object takes two
 * bytes. */
static fsdp_status check_extent(const char *path, const char *text, size_t bytes, const limits *most)
{
    int64_t depth = 0, taken = 0;

    for (size_t i = 0; i < bytes; i++) {
        size_t begin = i;

        if (text[i] == '"') {
            for (i++; i < bytes && text[i] != '"'; i++)
                i += text[i] == '\\'; /* skip what it escapes */
            if (i - begin > most->string_bytes)
                return too_much(path,
                                most->string_bytes > MAX_STRING_BYTES ? "a text of over 32 MiB"
                                                                      : "a string of over a million bytes",
                                begin);
            continue;
        }
        taken += units(text[i]);
        depth += (text[i] == '{' || text[i] == '[') - (text[i] == '}' || text[i] == ']');
        if (depth > MAX_DEPTH)
            return too_much(path, "JSON nested over 900 deep", i);
        if (taken > most->values)
            return too_much(
                path, most->values > MAX_UNITS ? "over four million JSON values" : "over a million JSON values", i);
    }
    return FSDP_OK;
}

/* Fails with jansson's message (`path` NULL: of a row), which is meant for people who read the text; for a NUL it is
 * meant for the caller's programmer, so that has a message of its own. */
static fsdp_status refuse(const char *path, const json_error_t *error)
{
    enum json_error_code code = json_error_code(error);
    const char *near = strstr(error->text, " near ");

    if (!path && code == json_error_invalid_utf8)
        return FSDP_FAIL(FSDP_FORMAT, "it is not UTF-8 at column %d", error->column + 1);
    if (!path)
        return FSDP_FAIL(code == json_error_out_of_memory ? FSDP_NO_MEMORY : FSDP_FORMAT, "%s at column %d",
                         FSDP__SHOWN_NAME(error->text), error->column);
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': line %d column %d: a NUL (\\u0000) in a string%s: fsdp reads no names, "
                         "tokens or texts that contain one: remove it",
                         path, error->line, error->column, FSDP__SHOWN_NAME(near ? near : ""));
    return FSDP_FAIL(code == json_error_out_of_memory ? FSDP_NO_MEMORY : FSDP_FORMAT,
                     "cannot read '%s': line %d column %d: %s", path, error->line, error->column,
                     FSDP__SHOWN_NAME(error->text));
}

static fsdp_status parse(const char *path, const void *text, size_t bytes, const limits *most, size_t flags,
                         json_t **out)
{
    json_error_t error;
    json_auto_t *value = NULL;

    if (path)
        FSDP_TRY(fsdp__lfs_pointer_refuse(path, text, bytes));
    FSDP_TRY(check_extent(path, text, bytes, most));
    value = json_loadb(text, bytes, flags, &error);
    if (!value)
        return refuse(path, &error);
    if (!json_is_object(value) && path)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': not a JSON object", path);
    if (!json_is_object(value))
        return FSDP_FAIL(FSDP_FORMAT, "not a JSON object");
    *out = json_incref(value);
    return FSDP_OK;
}

fsdp_status fsdp__json_parse(const char *path, const void *text, size_t bytes, json_t **out)
{
    return parse(path, text, bytes, &usual, JSON_REJECT_DUPLICATES, out);
}

fsdp_status fsdp__json_parse_large(const char *path, const void *text, size_t bytes, json_t **out)
{
    return parse(path, text, bytes, &large, JSON_REJECT_DUPLICATES, out);
}

static fsdp_status parse_foreign(const char *path, const void *text, size_t bytes, const limits *most, size_t flags,
                                 json_t **out)
{
    FSDP__FREED char *strict = NULL;
    size_t strict_bytes = 0;

    if (path)
        FSDP_TRY(fsdp__lfs_pointer_refuse(path, text, bytes));
    FSDP_TRY(check_extent(path, text, bytes, most)); /* checks what is there, before anything is made of it */
    FSDP_TRY(fsdp__json_to_strict(path, text, bytes, flags & JSON_ALLOW_NUL, &strict, &strict_bytes));
    return parse(path, strict, strict_bytes, most, flags, out);
}

fsdp_status fsdp__json_parse_foreign(const char *path, const void *text, size_t bytes, json_t **out)
{
    return parse_foreign(path, text, bytes, &usual, 0, out);
}

fsdp_status fsdp__json_parse_as_reals(const char *path, const void *text, size_t bytes, json_t **out)
{
    return parse_foreign(path, text, bytes, &large, JSON_DECODE_INT_AS_REAL, out);
}

static const limits row = {MAX_UNITS, FSDP__JSON_ROW_TEXT};

fsdp_status fsdp__json_parse_row(const void *text, size_t bytes, json_t **out)
{
    return parse_foreign(NULL, text, bytes, &row, JSON_ALLOW_NUL, out);
}

fsdp_status fsdp__json_parse_text(const json_t *text, json_t **out)
{
    FSDP__FREED char *strict = NULL;
    size_t bytes = 0;
    fsdp_status status;
    bool held;

    *out = NULL;
    if (!json_is_string(text))
        return FSDP_OK;
    held = fsdp_hold_error(true);
    status = fsdp__json_to_strict(NULL, json_string_value(text), json_string_length(text), true, &strict, &bytes);
    if (status == FSDP_OK)
        status = check_extent(NULL, strict, bytes, &row);
    fsdp_release_error(held);
    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(status, "cannot read a text of JSON");
    if (status == FSDP_OK)
        *out = json_loadb(strict, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    return FSDP_OK;
}

const char *fsdp__json_number_text(const json_t *value)
{
    const json_t *text = json_object_get(value, "");

    return json_string_length(text) > 0 && json_string_value(text)[0] == '\0' ? json_string_value(text) + 1 : NULL;
}

static fsdp_status check_owner(const fsdp__directory *in, const char *name, const struct stat *info)
{
    if (fsdp__directory_trusts(in, info))
        return FSDP_OK;
    if (info->st_nlink > 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s/%s' has a second name, and others may write to its folder, so it may belong to another "
                         "folder and is not trusted: remove it, or name another folder",
                         in->path, name);
    return FSDP_FAIL(
        FSDP_INVALID,
        "'%s/%s' belongs to user %u, and it may not change files of this user (%u): remove it, or name another folder",
        in->path, name, (unsigned)info->st_uid, (unsigned)geteuid());
}

static fsdp_status load(const char *path, int fd, json_t **out)
{
    json_auto_t *object = NULL;
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read_all(fd, path, LIMIT_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__json_parse(path, text, bytes, &object));
    if (json_integer_value(json_object_get(object, "version")) != FSDP__JSON_VERSION)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': it was written by another version of fsdp", path);
    *out = json_incref(object);
    return FSDP_OK;
}

fsdp_status fsdp__json_load(const fsdp__directory *in, const char *name, json_t **out)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    FSDP__CLOSED int fd = -1;
    struct stat info;

    FSDP__TRY_NEW(path);
    FSDP_TRY(fsdp__directory_open_file(in, name, &fd, &info));
    FSDP_TRY(check_owner(in, name, &info));
    return load(path, fd, out);
}

fsdp_status fsdp__json_save(const fsdp__directory *in, const char *name, json_t *value)
{
    FSDP__FREED char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;

    json_decref(value);
    if (!text)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s/%s'", in->path, name);
    return fsdp__directory_write_atomic(in, name, text, strlen(text));
}

static const char *type_text(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

/* Gets a value; `*out` is NULL when the key is absent or null. */
static fsdp_status get(const fsdp__json_object *from, const char *key, bool required, json_t **out)
{
    json_t *value = json_object_get(from->object, key);

    *out = json_is_null(value) ? NULL : value;
    if (!*out && required)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is missing", from->path, key);
    return FSDP_OK;
}

static fsdp_status wrong_type(const fsdp__json_object *from, const char *key, const json_t *value, const char *wanted)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is %s, not %s", from->path, key, type_text(value),
                     wanted);
}

fsdp_status fsdp__json_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out)
{
    json_t *value;

    FSDP_TRY(get(from, key, required, &value));
    if (value && !json_is_integer(value))
        return wrong_type(from, key, value, "an integer");
    if (value)
        *out = json_integer_value(value);
    return FSDP_OK;
}

fsdp_status fsdp__json_float(const fsdp__json_object *from, const char *key, bool required, float *out)
{
    json_t *value;

    FSDP_TRY(get(from, key, required, &value));
    if (value && !json_is_number(value))
        return wrong_type(from, key, value, "a number");
    if (value && !(fabs(json_number_value(value)) <= 3e38))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is out of range", from->path, key);
    if (value)
        *out = (float)json_number_value(value);
    return FSDP_OK;
}

fsdp_status fsdp__json_bool(const fsdp__json_object *from, const char *key, bool *out)
{
    json_t *value;

    FSDP_TRY(get(from, key, false, &value));
    if (value && !json_is_boolean(value))
        return wrong_type(from, key, value, "true or false");
    if (value)
        *out = json_is_true(value);
    return FSDP_OK;
}

fsdp_status fsdp__json_string(const fsdp__json_object *from, const char *key, bool required, const char **out)
{
    json_t *value;

    FSDP_TRY(get(from, key, required, &value));
    if (value && !json_is_string(value))
        return wrong_type(from, key, value, "a string");
    if (value)
        *out = json_string_value(value);
    return FSDP_OK;
}

fsdp_status fsdp__json_child(const fsdp__json_object *from, const char *key, fsdp__json_object *out)
{
    json_t *value;

    FSDP_TRY(get(from, key, false, &value));
    if (value && !json_is_object(value))
        return wrong_type(from, key, value, "an object");
    *out = (fsdp__json_object){.path = from->path, .object = value};
    return FSDP_OK;
}

double fsdp__json_shortest(float value)
{
    char text[32];

    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            return strtod(text, NULL);
    }
    return (double)value;
}
