/* config_values.c - values of a config.json, read as all its parts read them. */
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "hub/config_parts.h"

fsdp_status fsdp__config_unsupported(const fsdp__json_object *from, const char *key, const char *value,
                                     const char *known)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': %s '%s' is not supported: %s", from->path, key,
                     FSDP__SHOWN_NAME(value), known);
}

fsdp_status fsdp__config_unsupported_number(const fsdp__json_object *from, const char *key, double value,
                                            const char *known)
{
    char text[32];

    snprintf(text, sizeof text, "%g", value);
    return fsdp__config_unsupported(from, key, text, known);
}

fsdp_status fsdp__config_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out)
{
    const json_t *value = json_object_get(from->object, key);
    double number = json_is_real(value) ? json_real_value(value) : NAN;

    if (!(fabs(number) <= 9007199254740992.0) || number != floor(number))
        return fsdp__json_integer(from, key, required, out);
    *out = (int64_t)number;
    return FSDP_OK;
}
