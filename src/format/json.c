/* json.c - JSON text with errors that name file and key. */
#include "format/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

fsdp_status fsdp__json_parse(const char *path, const void *text, size_t bytes, json_t **out)
{
    json_error_t error;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);

    if (!value)
        return FSDP_FAIL(json_error_code(&error) == json_error_out_of_memory ? FSDP_NO_MEMORY : FSDP_FORMAT,
                         "cannot read '%s': line %d column %d: %s", path, error.line, error.column, error.text);
    if (!json_is_object(value)) {
        json_decref(value);
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': not a JSON object", path);
    }
    *out = value;
    return FSDP_OK;
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

/* `*out` is NULL when the key is absent or null. */
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
