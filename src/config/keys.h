/* keys.h - one table of keys makes the YAML schema, the command line's overrides, the help text, the printed config and
 * every message about a value. A config is any struct: the table says where in it each field lies, and this layer does
 * not know what it means. */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fsdp/status.h"

typedef enum fsdp__key_type {
    FSDP__KEY_INTEGER,  /* int64_t */
    FSDP__KEY_NUMBER,   /* double */
    FSDP__KEY_SIZE,     /* int64_t: bytes, as size.h reads them */
    FSDP__KEY_BOOL,     /* bool */
    FSDP__KEY_CHOICE,   /* int: the value of one of `choices`; with FSDP__OR_INTEGER, below all integers allowed */
    FSDP__KEY_TEXT,     /* char * */
    FSDP__KEY_PATHS,    /* char **, with its count behind it */
    FSDP__KEY_PATTERNS, /* the same, of patterns of names */
    FSDP__KEY_NAMES     /* the same, of names */
} fsdp__key_type;

typedef struct fsdp__choice {
    const char *text;
    int value;
} fsdp__choice;

/* Ranges of integers and numbers, and what else a key is. */
enum {
    FSDP__ABOVE = 1,       /* `least` itself is not allowed */
    FSDP__BELOW = 2,       /* `most` itself is not allowed */
    FSDP__OR_MINUS = 4,    /* -1 is allowed too */
    FSDP__OR_INTEGER = 16, /* of a choice: an integer from `least` to `most` too */
    FSDP__LOCAL = 8,       /* of this process: its peers may have another value, as of paths and threads */
};

typedef struct fsdp__key {
    const char *section, *name;
    fsdp__key_type type;
    size_t offset; /* in the config */
    double least, most;
    int range;                   /* FSDP__ABOVE | ... */
    const fsdp__choice *choices; /* up to a NULL text; of an integer, words for values out of range, or NULL */
    const char *initial;         /* the default as text; NULL: not set */
    const char *help;            /* what it means and, where `initial` is NULL, what then holds */
} fsdp__key;

/* What a table may have at most. */
enum {
    FSDP__KEYS_PER_SECTION = 32,
    FSDP__KEY_SECTIONS = 16
};
#define FSDP__KEY_LARGE 9e18 /* `most` of an integer that may be as large as they get */

typedef struct fsdp__key_table {
    const fsdp__key *keys; /* section by section */
    int count;
    const char *const *sections; /* NULL-terminated, in the order of the file */
    const char *example;         /* "section.name" of one of them, for messages */
} fsdp__key_table;

/* Whether it has a list, and what one entry of it is called. */
bool fsdp__key_is_list(const fsdp__key *key);
const char *fsdp__key_entry(const fsdp__key *key);

const fsdp__key *fsdp__key_find(const fsdp__key_table *table, const char *section,
                                const char *name); /* NULL when absent */

/* "an integer from 1", "a number greater than 0", "sequential or shuffled", ... */
void fsdp__key_allowed(const fsdp__key *key, char *text, size_t text_bytes);

/* Nothing, or what YAML writes for it. */
bool fsdp__key_is_nothing(const char *text);
/* Sets the key's field from text. The error says the key, the text and what is allowed, without a place. */
fsdp_status fsdp__key_set(void *config, const fsdp__key *key, const char *text);
/* Of a list: takes `count` entries in place of what is there (copies). */
fsdp_status fsdp__key_set_paths(void *config, const fsdp__key *key, const char *const *paths, int64_t count);
/* Adds what `text` names, as fsdp__key_set reads it, to the entries that are there. */
fsdp_status fsdp__key_add_paths(void *config, const fsdp__key *key, const char *text);
/* Whether it has a value, and that value as YAML which reads back as the same. */
bool fsdp__key_is_set(const void *config, const fsdp__key *key);
void fsdp__key_print(const void *config, const fsdp__key *key, FILE *out);

bool fsdp__key_is_section(const fsdp__key_table *table, const char *section);
/* Fails: "<key> is not a key of training; did you mean 'steps'?", or about the section when there is none of that
 * name, or `name` is NULL. */
fsdp_status fsdp__key_unknown(const fsdp__key_table *table, const char *section, const char *name);

#endif
