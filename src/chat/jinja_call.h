/* jinja_call.h - what a template can call: filters, tests, methods and functions, each in a table of its own file. */
#pragma once

#include "chat/jinja_values.h"

/* The arguments of a call. */
typedef struct fsdp__arguments {
    const fsdp__jinja_value *values; /* by position */
    int64_t count;
    const fsdp__jinja_entry *named; /* their keys are strings */
    int64_t named_count;
} fsdp__arguments;

/* Describes something that is called with a value before its arguments: `of` is what a filter is put on, or a method's
 * object; a function has none. */
typedef struct fsdp__callable {
    const char *name;
    const char *parameters; /* "width first blank"; "*": any number without names; "**": any with names, too */
    fsdp_status (*call)(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments,
                        fsdp__jinja_value *out);
} fsdp__callable;

/* Begin such a function, and define one that only makes another call. */
#define FSDP__CALLABLE(name)                                                                        \
    static fsdp_status name(FSDP__UNUSED fsdp__render *r, FSDP__UNUSED const fsdp__jinja_value *of, \
                            FSDP__UNUSED const fsdp__arguments *arguments, FSDP__UNUSED fsdp__jinja_value *out)
#define FSDP__CALLABLE_IS(name, what) \
    FSDP__CALLABLE(name)              \
    {                                 \
        return what;                  \
    }

/* Returns whether a list of words, with a space between two, has this one; NULL has none. */
bool fsdp__has_word(const char *words, fsdp__jinja_string word);
/* Returns the entry of a table, NULL if there is none. */
const fsdp__callable *fsdp__callable_find(const fsdp__callable *table, size_t count, fsdp__jinja_string name);
/* Calls it, if it takes these arguments. */
fsdp_status fsdp__callable_call(fsdp__render *r, const fsdp__callable *callable, const fsdp__jinja_value *of,
                                const fsdp__arguments *arguments, fsdp__jinja_value *out);
/* Returns an argument by its place from 0 on, or by its name; NULL if it was not given. */
const fsdp__jinja_value *fsdp__argument(const fsdp__arguments *arguments, int64_t index, const char *name);
/* Read an argument. One that was not given leaves `*out` as it is; one of another type is an error. */
fsdp_status fsdp__argument_string(fsdp__render *r, const fsdp__arguments *arguments, int64_t index, const char *name,
                                  fsdp__jinja_string *out);
fsdp_status fsdp__argument_integer(fsdp__render *r, const fsdp__arguments *arguments, int64_t index, const char *name,
                                   int64_t *out);
bool fsdp__argument_truth(const fsdp__arguments *arguments, int64_t index, const char *name);

/* Copies a name for a message. */
#define FSDP__JINJA_NAME(string) fsdp__jinja_name((string), (char[64]){0}, 64)
const char *fsdp__jinja_name(fsdp__jinja_string string, char *out, size_t out_bytes);

/* Apply a filter, a test or a method by its name. */
fsdp_status fsdp__jinja_filter(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                               const fsdp__arguments *arguments, fsdp__jinja_value *out);
fsdp_status fsdp__jinja_test(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                             const fsdp__arguments *arguments, bool *out);
fsdp_status fsdp__jinja_method(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                               const fsdp__arguments *arguments, fsdp__jinja_value *out);
/* Returns whether a value has a method of this name: called or not, known here or not. */
bool fsdp__jinja_has_method(const fsdp__jinja_value *of, fsdp__jinja_string name);
/* Returns a function that every template has, NULL if there is none of this name. */
const fsdp__callable *fsdp__jinja_function(fsdp__jinja_string name);
