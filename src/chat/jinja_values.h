/* jinja_values.h - the values that a template works with, and what Python says of them. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "fsdp/status.h"

typedef enum fsdp__jinja_kind {
    FSDP__JINJA_VALUE_UNDEFINED,
    FSDP__JINJA_VALUE_NONE,
    FSDP__JINJA_VALUE_BOOL,
    FSDP__JINJA_VALUE_INTEGER,
    FSDP__JINJA_VALUE_BIG, /* an integer beyond 64 bits: it prints and compares; computing with it is an error */
    FSDP__JINJA_VALUE_REAL,
    FSDP__JINJA_VALUE_STRING,
    FSDP__JINJA_VALUE_LIST,
    FSDP__JINJA_VALUE_TUPLE,
    FSDP__JINJA_VALUE_MAP,
    FSDP__JINJA_VALUE_NAMESPACE,
    FSDP__JINJA_VALUE_LOOP,
    FSDP__JINJA_VALUE_CYCLER,
    FSDP__JINJA_VALUE_JOINER,
    FSDP__JINJA_VALUE_MACRO,
    FSDP__JINJA_VALUE_FUNCTION,
    FSDP__JINJA_VALUE_METHOD /* of a value, and not called */
} fsdp__jinja_kind;

typedef struct fsdp__jinja_string {
    const char *at; /* UTF-8 without NULs; no NUL follows it */
    size_t bytes;
} fsdp__jinja_string;

typedef struct fsdp__jinja_value fsdp__jinja_value;

typedef struct fsdp__jinja_list {
    fsdp__jinja_value *items;
    int64_t count;
} fsdp__jinja_list;

typedef struct fsdp__jinja_entry fsdp__jinja_entry;
typedef struct fsdp__jinja_map {
    fsdp__jinja_entry *entries; /* in the order in which they were added */
    int64_t count, capacity;
} fsdp__jinja_map;

/* Says where a `for` is. */
typedef struct fsdp__jinja_loop {
    const fsdp__jinja_list *items;
    int64_t index; /* from 0 */
} fsdp__jinja_loop;

/* Holds a cycler or a joiner. */
typedef struct fsdp__jinja_turn {
    fsdp__jinja_list items; /* of a joiner: what is put between */
    int64_t index;
} fsdp__jinja_turn;

struct fsdp__macro;
struct fsdp__callable;

struct fsdp__jinja_value {
    fsdp__jinja_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        fsdp__jinja_string
            string; /* also: why a value is undefined, the digits of a big integer, the name of a method */
        fsdp__jinja_list *list;
        fsdp__jinja_map *map;
        fsdp__jinja_loop *loop;
        fsdp__jinja_turn *turn;
        const struct fsdp__macro *macro;
        const struct fsdp__callable *function;
    };
};

struct fsdp__jinja_entry {
    fsdp__jinja_value key, value;
};

/* Holds a text that grows. */
typedef struct fsdp__builder {
    char *text;
    int64_t bytes, capacity;
} fsdp__builder;

/* Holds the state of one rendering. Everything that it makes lies in its pool until it ends. */
typedef struct fsdp__render {
    const char *name;
    int line; /* of what runs, for messages */
    int depth;
    int64_t work; /* what has been done so far, in steps of about a hundred instructions */
    size_t taken; /* bytes of the pool */
    struct fsdp__pool_block *pool;
    fsdp_status failed; /* why the pool gave nothing; the last error does not tell while errors are held */
    int64_t now;
    fsdp__builder *out; /* where text goes now */
} fsdp__render;

/* Fails with the template's name and the line. */
#define FSDP__RENDER_FAIL(r, ...) \
    fsdp_fail_prefix(FSDP_FAIL(FSDP_FORMAT, __VA_ARGS__), "%s: line %d", (r)->name, (r)->line)

enum {
    FSDP__JINJA_POOL = 128 << 20 /* bytes of a rendering, at most */
};
/* Returns memory of the pool, NULL if there is none or the template has had too much:
 * `failed` says which. */
void *fsdp__render_alloc(fsdp__render *r, size_t bytes);
void fsdp__render_release(fsdp__render *r);
/* Counts work; a template that does too much fails. */
fsdp_status fsdp__render_work(fsdp__render *r, size_t steps);
/* Goes one level down, which ends at a limit; `r->depth--` goes up. */
fsdp_status fsdp__render_deeper(fsdp__render *r);

/* ---- making values ---- */

#define FSDP__NOTHING ((fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_NONE})
fsdp__jinja_value fsdp__jinja_value_of_bool(bool truth);
fsdp__jinja_value fsdp__jinja_value_of_integer(int64_t integer);
fsdp__jinja_value fsdp__jinja_value_of_real(double real);
/* Borrows the text. */
fsdp__jinja_value fsdp__jinja_value_of_text(const char *text, size_t bytes);
/* Copies the text to the pool. */
fsdp_status fsdp__jinja_value_copy_text(fsdp__render *r, const char *text, size_t bytes, fsdp__jinja_value *out);
/* Makes an undefined value with a message that says why. */
fsdp_status fsdp__jinja_value_undefined(fsdp__render *r, fsdp__jinja_value *out, const char *format, ...)
    FSDP_PRINTF(3, 4);
/* Makes a list, or a tuple, of `count` items, which are undefined. */
fsdp_status fsdp__jinja_value_new_list(fsdp__render *r, fsdp__jinja_kind kind, int64_t count, fsdp__jinja_value *out);
fsdp_status fsdp__jinja_value_new_map(fsdp__render *r, fsdp__jinja_kind kind, fsdp__jinja_value *out);
/* Makes a tuple of two. */
fsdp_status fsdp__jinja_value_pair(fsdp__render *r, fsdp__jinja_value first, fsdp__jinja_value second,
                                   fsdp__jinja_value *out);
/* Adds an entry, or sets that of an equal key. */
fsdp_status fsdp__jinja_map_set(fsdp__render *r, fsdp__jinja_map *map, fsdp__jinja_value key, fsdp__jinja_value value);
/* Returns the value of a key, NULL if there is none. */
const fsdp__jinja_value *fsdp__jinja_map_get(const fsdp__jinja_map *map, fsdp__jinja_string key);
fsdp_status fsdp__jinja_value_of_json(fsdp__render *r, const json_t *json, fsdp__jinja_value *out);

/* ---- integers of any size (jinja_numbers.c) ---- */

/* Makes an integer of decimal digits, with '-' before them or not: a big one if 64 bits do not hold it. */
fsdp_status fsdp__jinja_integer_of_digits(fsdp__render *r, fsdp__jinja_string digits, fsdp__jinja_value *out);
/* Makes an integer of the whole part of a finite number. */
fsdp_status fsdp__jinja_integer_of_real(fsdp__render *r, double real, fsdp__jinja_value *out);
/* Compares two numbers exactly, big ones too: negative, 0 or positive; NaN equals everything. */
int fsdp__jinja_numbers_compare(const fsdp__jinja_value *a, const fsdp__jinja_value *b);
/* Returns whether one of two values is NaN, which equals nothing and has no order. */
bool fsdp__jinja_either_is_nan(const fsdp__jinja_value *a, const fsdp__jinja_value *b);
/* Changes the sign of a big integer. */
fsdp_status fsdp__jinja_big_negate(fsdp__render *r, const fsdp__jinja_value *a, fsdp__jinja_value *out);

/* ---- asking them ---- */

bool fsdp__jinja_string_is(fsdp__jinja_string string, const char *text);
bool fsdp__jinja_strings_equal(fsdp__jinja_string a, fsdp__jinja_string b);
bool fsdp__jinja_value_is_list(const fsdp__jinja_value *value);   /* or a tuple */
bool fsdp__jinja_value_is_number(const fsdp__jinja_value *value); /* or a bool, as in Python; not a big one */
/* Returns the number as an integer: 1 for True. Of a real its whole part. */
int64_t fsdp__jinja_value_integer(const fsdp__jinja_value *value);
double fsdp__jinja_value_real(const fsdp__jinja_value *value);
bool fsdp__jinja_value_truth(const fsdp__jinja_value *value);
/* Returns Python's name of its type: "str", "dict". */
const char *fsdp__jinja_value_type(const fsdp__jinja_value *value);
fsdp_status fsdp__jinja_value_equal(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b, bool *out);
/* Compares as Python orders them: negative, 0 or positive (NaN: 0); what has no order is an error. `sign` is for the
 * message. */
fsdp_status fsdp__jinja_value_compare(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b,
                                      const char *sign, int *out);
/* Lists what a value gives when it is iterated: items, keys, characters. */
fsdp_status fsdp__jinja_value_items(fsdp__render *r, const fsdp__jinja_value *value, fsdp__jinja_list *out);
/* Counts them without listing them. */
fsdp_status fsdp__jinja_value_length(fsdp__render *r, const fsdp__jinja_value *value, int64_t *out);
/* Returns the number of characters. */
int64_t fsdp__jinja_string_length(fsdp__jinja_string string);
