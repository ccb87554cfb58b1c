/* jinja_strings.h - what Python's strings can do, character by character. */
#ifndef CHAT_JINJA_STRINGS_H
#define CHAT_JINJA_STRINGS_H

#include "chat/jinja_values.h"

enum {
    FSDP__STRIP_LEFT = 1,
    FSDP__STRIP_RIGHT = 2,
    FSDP__STRIP_BOTH = 3
};

/* Takes characters of the set `characters`, or white space where that is NULL, from the ends. */
fsdp__string fsdp__string_strip(fsdp__string string, int sides, const fsdp__string *characters);
/* Makes a string of a literal's text, with Python's escapes. */
fsdp_status fsdp__string_unescape(fsdp__render *r, fsdp__string text, fsdp__value *out);
/* Returns whether `part` is at the beginning, or at the end. */
bool fsdp__string_begins(fsdp__string string, fsdp__string part);
bool fsdp__string_ends(fsdp__string string, fsdp__string part);
/* Returns where `part` begins, in bytes from `from` on; SIZE_MAX: nowhere. */
size_t fsdp__string_find(fsdp__string string, fsdp__string part, size_t from);

/* Cut at every `separator` (NULL: at white space), `most` times at most (-1: as often as it goes). */
fsdp_status fsdp__string_split(fsdp__render *r, fsdp__string string, const fsdp__string *separator, int64_t most,
                               fsdp__value *out);
fsdp_status fsdp__string_split_right(fsdp__render *r, fsdp__string string, const fsdp__string *separator, int64_t most,
                                     fsdp__value *out);
fsdp_status fsdp__string_lines(fsdp__render *r, fsdp__string string, bool keep_ends, fsdp__value *out);
fsdp_status fsdp__string_replace(fsdp__render *r, fsdp__string string, fsdp__string old, fsdp__string by, int64_t most,
                                 fsdp__value *out);

typedef enum fsdp__case {
    FSDP__CASE_UPPER,
    FSDP__CASE_LOWER,
    FSDP__CASE_CAPITALIZE,
    FSDP__CASE_TITLE,       /* of strings: a letter behind none is a capital */
    FSDP__CASE_TITLE_FILTER /* of Jinja's filter: the first letter of words between blanks, dashes and brackets */
} fsdp__case;
fsdp_status fsdp__string_case(fsdp__render *r, fsdp__string string, fsdp__case to, fsdp__value *out);

/* Gets items `begin` to `end` in steps (Python's slice; NULL: left out) of a string, by characters, or of a list. */
fsdp_status fsdp__value_slice(fsdp__render *r, const fsdp__value *value, const fsdp__value *begin,
                              const fsdp__value *end, const fsdp__value *step, fsdp__value *out);

#endif
