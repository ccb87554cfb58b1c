/* jinja_values.h - the values that a template works with, and what Python says of them. */
#ifndef CHAT_JINJA_VALUES_H
#define CHAT_JINJA_VALUES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "fsdp/status.h"

typedef enum fsdp__kind {
    FSDP__VALUE_UNDEFINED,
    FSDP__VALUE_NONE,
    FSDP__VALUE_BOOL,
    FSDP__VALUE_INTEGER,
    FSDP__VALUE_BIG, /* an integer beyond 64 bits: it prints, and does nothing else */
    FSDP__VALUE_REAL,
    FSDP__VALUE_STRING,
    FSDP__VALUE_LIST,
    FSDP__VALUE_TUPLE,
    FSDP__VALUE_MAP,
    FSDP__VALUE_NAMESPACE,
    FSDP__VALUE_LOOP,
    FSDP__VALUE_CYCLER,
    FSDP__VALUE_JOINER,
    FSDP__VALUE_MACRO,
    FSDP__VALUE_FUNCTION,
    FSDP__VALUE_METHOD /* of a value, and not called */
} fsdp__kind;

typedef struct fsdp__string {
    const char *at; /* UTF-8 without NULs; no NUL follows it */
    size_t bytes;
} fsdp__string;

typedef struct fsdp__value fsdp__value;

typedef struct fsdp__list {
    fsdp__value *items;
    int64_t count;
} fsdp__list;

typedef struct fsdp__entry fsdp__entry;
typedef struct fsdp__map {
    fsdp__entry *entries; /* in the order in which they were added */
    int64_t count, capacity;
} fsdp__map;

/* Where a `for` is. */
typedef struct fsdp__loop {
    const fsdp__list *items;
    int64_t index; /* from 0 */
} fsdp__loop;

/* A cycler or a joiner. */
typedef struct fsdp__turn {
    fsdp__list items; /* of a joiner: what is put between */
    int64_t index;
} fsdp__turn;

struct fsdp__macro;
struct fsdp__function;

struct fsdp__value {
    fsdp__kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        fsdp__string string; /* also: why a value is undefined, the digits of a big integer, the name of a method */
        fsdp__list *list;
        fsdp__map *map;
        fsdp__loop *loop;
        fsdp__turn *turn;
        const struct fsdp__macro *macro;
        const struct fsdp__function *function;
    };
};

struct fsdp__entry {
    fsdp__value key, value;
};

/* A text that grows. */
typedef struct fsdp__builder {
    char *text;
    int64_t bytes, capacity;
} fsdp__builder;

/* One rendering. Everything that it makes lies in its pool until it ends. */
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

/* Returns memory of the pool, NULL if there is none or the template has had too much:
 * `failed` says which. */
void *fsdp__render_alloc(fsdp__render *r, size_t bytes);
void fsdp__render_release(fsdp__render *r);
/* Counts work; a template that does too much fails. */
fsdp_status fsdp__render_work(fsdp__render *r, size_t steps);
/* Goes one level down, which ends at a limit; `r->depth--` goes up. */
fsdp_status fsdp__render_deeper(fsdp__render *r);

/* ---- making values ---- */

#define FSDP__NOTHING ((fsdp__value){.kind = FSDP__VALUE_NONE})
fsdp__value fsdp__value_of_bool(bool truth);
fsdp__value fsdp__value_of_integer(int64_t integer);
fsdp__value fsdp__value_of_real(double real);
/* Borrows the text. */
fsdp__value fsdp__value_of_text(const char *text, size_t bytes);
/* Copies the text to the pool. */
fsdp_status fsdp__value_copy_text(fsdp__render *r, const char *text, size_t bytes, fsdp__value *out);
/* Makes an undefined value with a message that says why. */
fsdp_status fsdp__value_undefined(fsdp__render *r, fsdp__value *out, const char *format, ...) FSDP_PRINTF(3, 4);
/* Makes a list, or a tuple, of `count` items, which are undefined. */
fsdp_status fsdp__value_new_list(fsdp__render *r, fsdp__kind kind, int64_t count, fsdp__value *out);
fsdp_status fsdp__value_new_map(fsdp__render *r, fsdp__kind kind, fsdp__value *out);
/* Makes a tuple of two. */
fsdp_status fsdp__value_pair(fsdp__render *r, fsdp__value first, fsdp__value second, fsdp__value *out);
/* Adds an entry, or sets that of an equal key. */
fsdp_status fsdp__map_set(fsdp__render *r, fsdp__map *map, fsdp__value key, fsdp__value value);
/* Returns the value of a key, NULL if there is none. */
const fsdp__value *fsdp__map_get(const fsdp__map *map, fsdp__string key);
fsdp_status fsdp__value_of_json(fsdp__render *r, const json_t *json, fsdp__value *out);

/* ---- asking them ---- */

bool fsdp__string_is(fsdp__string string, const char *text);
bool fsdp__strings_equal(fsdp__string a, fsdp__string b);
bool fsdp__value_is_list(const fsdp__value *value);   /* or a tuple */
bool fsdp__value_is_number(const fsdp__value *value); /* or a bool, as in Python; not a big one */
/* Returns the number as an integer: 1 for True. Of a real its whole part. */
int64_t fsdp__value_integer(const fsdp__value *value);
double fsdp__value_real(const fsdp__value *value);
bool fsdp__value_truth(const fsdp__value *value);
/* Returns Python's name of its type: "str", "dict". */
const char *fsdp__value_type(const fsdp__value *value);
fsdp_status fsdp__value_equal(fsdp__render *r, const fsdp__value *a, const fsdp__value *b, bool *out);
/* Compares as Python orders them: negative, 0 or positive; what has no order is an error. `sign` is for the message. */
fsdp_status fsdp__value_compare(fsdp__render *r, const fsdp__value *a, const fsdp__value *b, const char *sign,
                                int *out);
/* Lists what a value gives when it is iterated: items, keys, characters. */
fsdp_status fsdp__value_items(fsdp__render *r, const fsdp__value *value, fsdp__list *out);
/* Counts them without listing them. */
fsdp_status fsdp__value_length(fsdp__render *r, const fsdp__value *value, int64_t *out);
/* Returns the number of characters. */
int64_t fsdp__string_length(fsdp__string string);

#endif
