/* json_value.c - makes JSON values and puts them together. */
#include "explain/json_value.h"

#include <math.h>

#include "base/text.h"

void fsdp__json_put(json_t **object, const char *key, json_t *value)
{
    if (!*object)
        json_decref(value);
    else if (!value || json_object_set_new(*object, key, value) != 0) {
        json_decref(*object);
        *object = NULL;
    }
}

void fsdp__json_append(json_t **array, json_t *value)
{
    if (!*array)
        json_decref(value);
    else if (!value || json_array_append_new(*array, value) != 0) {
        json_decref(*array);
        *array = NULL;
    }
}

json_t *fsdp__json_text(const char *text)
{
    json_t *value = text ? json_string(text) : json_null();

    return value ? value : json_string(fsdp__shown(text, FSDP__ROOM(1024)));
}

json_t *fsdp__json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *fsdp__json_by_kind(const size_t bytes[FSDP_MEMORY_KINDS])
{
    json_t *object = json_object();

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        fsdp__json_put(&object,
                       fsdp__json_name(fsdp_memory_kind_name((fsdp_memory_kind)kind), FSDP__ROOM(FSDP__JSON_NAME)),
                       json_integer((json_int_t)bytes[kind]));
    return object;
}

json_t *fsdp__json_by_collective(const int64_t *numbers, int count)
{
    json_t *object = json_object();

    for (int kind = 0; kind < count; kind++)
        fsdp__json_put(&object, fsdp_collective_name((fsdp_collective)kind), json_integer(numbers[kind]));
    return object;
}

fsdp_status fsdp__json_print(json_t *value, FILE *out)
{
    bool printed;

    if (!value)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot write JSON: out of memory");
    printed = json_dumpf(value, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF;
    json_decref(value);
    return printed ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot write JSON");
}
