/* jinja_call.c - looks up what is called, and checks the arguments. */
#include "chat/jinja_call.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

const char *fsdp__jinja_name(fsdp__jinja_string string, char *out, size_t out_bytes)
{
    char text[64];

    snprintf(text, sizeof text, "%.*s", (int)FSDP__MIN(string.bytes, sizeof text - 1), string.at);
    return fsdp__shown(text, out, out_bytes);
}

const fsdp__callable *fsdp__callable_find(const fsdp__callable *table, size_t count, fsdp__jinja_string name)
{
    for (size_t i = 0; i < count; i++)
        if (fsdp__jinja_string_is(name, table[i].name))
            return &table[i];
    return NULL;
}

bool fsdp__has_word(const char *words, fsdp__jinja_string word)
{
    while (words && *words) {
        size_t bytes = strcspn(words, " ");

        if (fsdp__jinja_strings_equal((fsdp__jinja_string){words, bytes}, word))
            return true;
        words += bytes + (words[bytes] != 0);
    }
    return false;
}

static int64_t count_words(const char *words)
{
    int64_t count = *words != 0;

    while ((words = strchr(words, ' ')))
        words++, count++;
    return count;
}

fsdp_status fsdp__callable_call(fsdp__render *r, const fsdp__callable *callable, const fsdp__jinja_value *of,
                                const fsdp__arguments *arguments, fsdp__jinja_value *out)
{
    bool any = callable->parameters[0] == '*', any_name = any && callable->parameters[1] == '*';
    int64_t most = count_words(callable->parameters);

    for (int64_t i = 0; i < arguments->named_count && !any_name; i++)
        if (any || !fsdp__has_word(callable->parameters, arguments->named[i].key.string))
            return FSDP__RENDER_FAIL(r, "%s() has no argument '%s' that is known here", callable->name,
                                     FSDP__JINJA_NAME(arguments->named[i].key.string));
    if (!any && arguments->count > most)
        return FSDP__RENDER_FAIL(r, "%s() takes %d arguments, not %d", callable->name, (int)most,
                                 (int)arguments->count);
    return callable->call(r, of, arguments, out);
}

const fsdp__jinja_value *fsdp__argument(const fsdp__arguments *arguments, int64_t index, const char *name)
{
    if (index < arguments->count)
        return &arguments->values[index];
    for (int64_t i = 0; i < arguments->named_count; i++)
        if (fsdp__jinja_string_is(arguments->named[i].key.string, name))
            return &arguments->named[i].value;
    return NULL;
}

fsdp_status fsdp__argument_string(fsdp__render *r, const fsdp__arguments *arguments, int64_t index, const char *name,
                                  fsdp__jinja_string *out)
{
    const fsdp__jinja_value *value = fsdp__argument(arguments, index, name);

    if (!value)
        return FSDP_OK;
    if (value->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", value->string.at);
    if (value->kind != FSDP__JINJA_VALUE_STRING)
        return FSDP__RENDER_FAIL(r, "the argument '%s' has to be a string, not %s", name,
                                 fsdp__jinja_value_type(value));
    *out = value->string;
    return FSDP_OK;
}

fsdp_status fsdp__argument_integer(fsdp__render *r, const fsdp__arguments *arguments, int64_t index, const char *name,
                                   int64_t *out)
{
    const fsdp__jinja_value *value = fsdp__argument(arguments, index, name);

    if (!value)
        return FSDP_OK;
    if (value->kind != FSDP__JINJA_VALUE_INTEGER && value->kind != FSDP__JINJA_VALUE_BOOL)
        return FSDP__RENDER_FAIL(r, "the argument '%s' has to be an integer, not %s", name,
                                 fsdp__jinja_value_type(value));
    *out = fsdp__jinja_value_integer(value);
    return FSDP_OK;
}

bool fsdp__argument_truth(const fsdp__arguments *arguments, int64_t index, const char *name)
{
    const fsdp__jinja_value *value = fsdp__argument(arguments, index, name);

    return value && fsdp__jinja_value_truth(value);
}
