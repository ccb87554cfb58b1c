/* json_scan.h - scans JSON as Python's json module takes it, which writes most of the JSON that people have: beyond the
 * standard it takes NaN, Infinity, -Infinity, numbers of any size, halves of surrogate pairs, a key given twice (the
 * last counts), and any depth. Nothing is built and no number is computed: one pass finds one member, or makes a text
 * that jansson takes. The caller checks that the text is UTF-8. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "fsdp/status.h"

/* Holds what is wrong with a text, and where: an offset in bytes. */
typedef struct fsdp__json_fault {
    const char *what;
    size_t offset;
} fsdp__json_fault;

/* Describes a member of an object. */
typedef struct fsdp__json_member {
    const char
        *text; /* borrowed: the value as written, for a string what stands between the quotes; NULL: no such key */
    size_t bytes;
    bool is_string;
    bool escaped; /* a string with a backslash in it: see fsdp__json_unescape */
} fsdp__json_member;

/* Finds the member `key` of the object that is the whole text. FSDP_FORMAT sets `*fault` and no last error: a caller
 * that reads many texts knows better how to name the place. */
fsdp_status fsdp__json_find(const char *text, size_t bytes, const char *key, fsdp__json_member *out,
                            fsdp__json_fault *fault);

/* Returns whether a text begins as an array does, after a byte order mark and white space. */
bool fsdp__json_begins_array(const void *text, size_t bytes);
/* Says in messages what to do with a file that is one array, if each line has to be an object. */
#define FSDP__JSON_ARRAY_ADVICE "make JSON lines of it with jq -c '.[]'"

/* Lists the keys of the object that is the whole text, for a message: "'id', 'body'", as many as `out` has room for; ""
 * for an empty object. */
void fsdp__json_list_keys(const char *text, size_t bytes, char *out, size_t out_bytes);

/* Writes what a string stands for into `out`, which has room for its bytes as written. Half a surrogate pair is no
 * character: U+FFFD stands for it. Returns how many bytes were written; `*halves` is how many halves there were. */
size_t fsdp__json_unescape(const char *text, size_t bytes, char *out, int64_t *halves);

enum {
    FSDP__JSON_ROW_TEXT = 32 << 20 /* bytes of a text in a row of data, at most */
};

/* Describes an escape that stands for no text: half a surrogate pair, or \u0000. */
typedef struct fsdp__json_no_text {
    const char *key; /* the member of the outermost object that it is in, one of `keys`; NULL: there is none */
    size_t offset;
    bool nul;
} fsdp__json_no_text;

/* Finds the first such escape in the members named `keys`, which end with NULL, of the object that is the whole text.
 * The text must be good: fsdp__json_to_strict has taken it. */
fsdp_status fsdp__json_find_no_text(const char *text, size_t bytes, const char *const *keys, fsdp__json_no_text *out);

/* Makes a text that jansson takes and that has the same keys and values, except for what jansson cannot hold: half a
 * surrogate pair and \u0000 become U+FFFD. NaN, infinities and numbers that overflow a double become strings of their
 * name ("NaN"), and integers beyond 64 bits become doubles; or, where it `keeps_numbers`, all of these become objects,
 * which fsdp__json_number_text knows again. A byte order mark at the beginning is left out. The caller fsdp__free's
 * `*out`. `path` is for the message, which has line and column; NULL: the caller knows the line. */
fsdp_status fsdp__json_to_strict(const char *path, const char *text, size_t bytes, bool keeps_numbers, char **out,
                                 size_t *out_bytes);
