/* json_scan.h - JSON as Python's json module takes it, which writes most of what people have: beside the standard's it
 * takes NaN, Infinity, -Infinity, numbers of any size, halves of surrogate pairs, a key given twice (the last counts),
 * and any depth. Nothing is built and no number is computed: one pass finds one member, or makes the text such as
 * jansson takes it. That the text is UTF-8 is the caller's to check. */
#ifndef FORMAT_JSON_SCAN_H
#define FORMAT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "fsdp/status.h"

/* What is wrong with a text, and where: an offset in bytes. */
typedef struct fsdp__json_fault {
    const char *what;
    size_t offset;
} fsdp__json_fault;

/* A member of an object. */
typedef struct fsdp__json_member {
    const char
        *text; /* borrowed: its value as written, of a string what stands between the quotes; NULL: no such key */
    size_t bytes;
    bool is_string;
    bool escaped; /* a string with a backslash in it: fsdp__json_unescape */
} fsdp__json_member;

/* The member `key` of the object that is the whole text. FSDP_FORMAT leaves no last error, but `*fault`: who reads many
 * texts knows better where they stand. */
fsdp_status fsdp__json_find(const char *text, size_t bytes, const char *key, fsdp__json_member *out,
                            fsdp__json_fault *fault);

/* Whether a text begins as an array does, behind a byte order mark and white space. */
bool fsdp__json_begins_array(const void *text, size_t bytes);
/* For messages: what the owner of a file that is one array does, where each line has to be an object. */
#define FSDP__JSON_ARRAY_ADVICE "make JSON lines of it with jq -c '.[]'"

/* The keys of the object that is the whole text, for a message: "'id', 'body'", as many as `out` has room for; "" of an
 * empty object. */
void fsdp__json_list_keys(const char *text, size_t bytes, char *out, size_t out_bytes);

/* What a string stands for, into `out`, which has room for its bytes as written. Half a surrogate pair is no character:
 * U+FFFD stands for it. Returns how many bytes there are; `*halves` is how many halves there were. */
size_t fsdp__json_unescape(const char *text, size_t bytes, char *out, int64_t *halves);

/* A text that jansson takes and that has the same keys and values, but for what it cannot hold: NaN, infinities and
 * numbers that overflow a double become strings of their name ("NaN"), integers beyond 64 bits doubles, half a
 * surrogate pair and \u0000 U+FFFD. A byte order mark at the beginning is left out. The caller fsdp__free's `*out`.
 * `path` is for the message, which has line and column. */
fsdp_status fsdp__json_to_strict(const char *path, const char *text, size_t bytes, char **out, size_t *out_bytes);

#endif
