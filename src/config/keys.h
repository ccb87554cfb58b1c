/* keys.h - one table of keys defines the YAML schema, the command line's overrides, the help text, the printed config
 * and every message about a value. A config is any struct: the table says where each field lies in it, and this layer
 * does not know what the fields mean. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fsdp/status.h"

typedef enum fsdp__key_type {
    FSDP__KEY_INTEGER, /* int64_t */
    FSDP__KEY_NUMBER,  /* double */
    FSDP__KEY_SIZE,    /* int64_t: bytes, parsed by size.h */
    FSDP__KEY_BOOL,    /* bool */
    /* int: the value of one of `choices`; with FSDP__OR_INTEGER they are below all allowed integers */
    FSDP__KEY_CHOICE,
    FSDP__KEY_TEXT,     /* char * */
    FSDP__KEY_PATHS,    /* char **, followed by its count */
    FSDP__KEY_PATTERNS, /* the same, with patterns of names */
    FSDP__KEY_NAMES,    /* the same, with names */
    FSDP__KEY_MAPS      /* a pointer to structs, followed by their count: a list of maps, `items` */
} fsdp__key_type;

typedef struct fsdp__choice {
    const char *text;
    int value;
} fsdp__choice;

/* Lists ranges of integers and numbers, and other properties of a key. */
enum {
    FSDP__ABOVE = 1,       /* `least` itself is not allowed */
    FSDP__BELOW = 2,       /* `most` itself is not allowed */
    FSDP__OR_MINUS = 4,    /* -1 is allowed too */
    FSDP__OR_INTEGER = 16, /* for a choice: an integer from `least` to `most` is allowed too */
    FSDP__LOCAL = 8,       /* local to this process: other ranks may have another value, as for paths and threads */
    FSDP__REQUIRED = 32,   /* in a map of a list: it must be given */
};

struct fsdp__key_items;

typedef struct fsdp__key {
    const char *section, *name; /* "trace.path": a key that `trace` holds, a level further down in the file */
    fsdp__key_type type;
    size_t offset; /* in the config */
    double least, most;
    int range;                   /* FSDP__ABOVE | ... */
    const fsdp__choice *choices; /* ends with a NULL text; for an integer: words for values out of range, or NULL */
    const char *initial;         /* the default as text; NULL: not set */
    const char *help;            /* what it means and, if `initial` is NULL, what holds when it is not set */
    /* Optional, for a text: refuses a value that no such key can have; `name` is "section.name", for the message. */
    fsdp_status (*check)(const char *name, const char *text);
    const struct fsdp__key_items *items; /* for maps: what each of them may hold */
} fsdp__key;

/* The limits of a table. */
enum {
    FSDP__KEYS_PER_SECTION = 40,
    FSDP__KEY_SECTIONS = 16
};
#define FSDP__KEY_LARGE 9e18 /* `most` of an integer without an upper limit */

/* Translates a key of other programs: its name there, and what it is here: "section.name", and a text after it if that
 * is not all. */
typedef struct fsdp__key_word {
    const char *word, *here;
} fsdp__key_word;

/* Says that keys of a section have an effect only beside others. */
typedef struct fsdp__key_need {
    const char *section, *names; /* with spaces between the names */
    /* What they need: alternatives with '|' between them, each "section.name" (a value that is not the default), or
     * "section.name=a,b" (one of these), "section.name=!a" (another value than these); a value may be a pattern, as
     * "cuda*". One that begins with '~' is not named in messages: by it a user has switched the keys off. */
    const char *needs;
    const char *usual; /* a value that says what holds anyway if the key is not set; NULL: there is none */
    bool idle;         /* without it the keys change nothing that was asked for: they are named, and not refused */
} fsdp__key_need;

typedef struct fsdp__key_table {
    const fsdp__key *keys; /* section by section */
    int count;
    const char *const *sections; /* NULL-terminated, in the order of the file */
    const char *example;         /* "section.name" of a key, for messages */
    const fsdp__key_word *words; /* up to one whose word is NULL; or NULL */
    const fsdp__key_need *needs; /* up to one whose section is NULL; or NULL */
} fsdp__key_table;

/* Describes the maps of a list, such as "optimizer.groups: [{pattern: '*.bias', weight_decay: 0}]". The table's only
 * section is the list's "section.name", its keys are no lists, and their offsets refer to one struct of the list. */
typedef struct fsdp__key_items {
    fsdp__key_table table;
    size_t bytes; /* of a struct */
} fsdp__key_items;

/* Returns whether the key has a list of texts, and what one entry of it is called. */
bool fsdp__key_is_list(const fsdp__key *key);
const char *fsdp__key_entry(const fsdp__key *key);

const fsdp__key *fsdp__key_find(const fsdp__key_table *table, const char *section,
                                const char *name); /* NULL when absent */

const fsdp__key *fsdp__key_named(const fsdp__key_table *table, const char *name); /* "section.name" */

/* Writes what is allowed: "an integer from 1 to 8", "a number greater than 0", "sequential or shuffled", ... */
void fsdp__key_allowed(const fsdp__key *key, char *text, size_t text_bytes);

/* Returns whether the text is empty, or what YAML writes for nothing. */
bool fsdp__key_is_nothing(const char *text);
/* Sets the key's field from text. The error names the key, the text and what is allowed, but no place. */
fsdp_status fsdp__key_set(void *config, const fsdp__key *key, const char *text);
/* Checks a value that may have been written into the field without fsdp__key_set, which would have refused it: what is
 * out of range, a list that is not there, an entry that is NULL. */
fsdp_status fsdp__key_check(const void *config, const fsdp__key *key);
/* Replaces the entries of a list by copies of `count` entries. */
fsdp_status fsdp__key_set_paths(void *config, const fsdp__key *key, const char *const *paths, int64_t count);
/* Appends what `text` names to the entries of a list; `text` is read as by fsdp__key_set. */
fsdp_status fsdp__key_add_paths(void *config, const fsdp__key *key, const char *text);
/* Frees what the key's value holds: texts, lists. The key is not set afterwards. */
void fsdp__key_release(void *config, const fsdp__key *key);
/* Sets a key of maps to `count` structs, which it takes over with the memory that they lie in. */
void fsdp__key_take_maps(void *config, const fsdp__key *key, void *maps, int64_t count);
/* Give the maps of a key, and one of them. */
void *fsdp__key_maps(const void *config, const fsdp__key *key, int64_t *count);
void *fsdp__key_map(const fsdp__key *key, void *maps, int64_t index);
/* Frees structs that no key holds. */
void fsdp__key_free_maps(const fsdp__key *key, void *maps, int64_t count);
/* Tell whether the key has a value, and print that value as YAML which reads back as the same. */
bool fsdp__key_is_set(const void *config, const fsdp__key *key);
void fsdp__key_print(const void *config, const fsdp__key *key, FILE *out);

/* ---- needs.c ---- */

/* Returns what the key needs and the config does not have; NULL: it has all of it, or the key has its usual value. */
const fsdp__key_need *fsdp__key_lacks(const fsdp__key_table *table, const void *config, const fsdp__key *key);
/* Writes what is needed: "validation.path or validation.share", "optimizer.name sgd or muon". */
void fsdp__key_needed(const fsdp__key_need *need, char *text, size_t text_bytes);

bool fsdp__key_is_section(const fsdp__key_table *table, const char *section);
/* Returns what the word of another program is here, or NULL. */
const char *fsdp__key_of_word(const fsdp__key_table *table, const char *word);
/* Fails with "<key> is not a key of training; did you mean 'steps'?", or with a message about the section if there is
 * no section of that name, or if `name` is NULL. */
fsdp_status fsdp__key_unknown(const fsdp__key_table *table, const char *section, const char *name);
