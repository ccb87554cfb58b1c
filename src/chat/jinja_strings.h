/* jinja_strings.h - what Python's strings can do, character by character. */
#pragma once

#include "chat/jinja_values.h"

enum {
    FSDP__STRIP_LEFT = 1,
    FSDP__STRIP_RIGHT = 2,
    FSDP__STRIP_BOTH = 3
};

/* Takes characters of the set `characters`, or white space where that is NULL, from the ends. */
fsdp__jinja_string fsdp__jinja_string_strip(fsdp__jinja_string string, int sides, const fsdp__jinja_string *characters);
/* Makes a string of a literal's text, with Python's escapes. */
fsdp_status fsdp__jinja_string_unescape(fsdp__render *r, fsdp__jinja_string text, fsdp__jinja_value *out);
/* Returns whether `part` is at the beginning, or at the end. */
bool fsdp__jinja_string_begins(fsdp__jinja_string string, fsdp__jinja_string part);
bool fsdp__jinja_string_ends(fsdp__jinja_string string, fsdp__jinja_string part);
/* Returns where `part` begins, in bytes from `from` on; SIZE_MAX: nowhere. */
size_t fsdp__jinja_string_find(fsdp__jinja_string string, fsdp__jinja_string part, size_t from);

/* Cut at every `separator` (NULL: at white space), `most` times at most (-1: as often as it goes). */
fsdp_status fsdp__jinja_string_split(fsdp__render *r, fsdp__jinja_string string, const fsdp__jinja_string *separator,
                                     int64_t most, fsdp__jinja_value *out);
fsdp_status fsdp__jinja_string_split_right(fsdp__render *r, fsdp__jinja_string string,
                                           const fsdp__jinja_string *separator, int64_t most, fsdp__jinja_value *out);
fsdp_status fsdp__jinja_string_lines(fsdp__render *r, fsdp__jinja_string string, bool keep_ends,
                                     fsdp__jinja_value *out);
fsdp_status fsdp__jinja_string_replace(fsdp__render *r, fsdp__jinja_string string, fsdp__jinja_string old,
                                       fsdp__jinja_string by, int64_t most, fsdp__jinja_value *out);

typedef enum fsdp__case {
    FSDP__CASE_UPPER,
    FSDP__CASE_LOWER,
    FSDP__CASE_CAPITALIZE,
    FSDP__CASE_TITLE,       /* of strings: a letter behind none is a capital */
    FSDP__CASE_TITLE_FILTER /* of Jinja's filter: the first letter of words between blanks, dashes and brackets */
} fsdp__case;
fsdp_status fsdp__jinja_string_case(fsdp__render *r, fsdp__jinja_string string, fsdp__case to, fsdp__jinja_value *out);

/* Gets items `begin` to `end` in steps (Python's slice; NULL: left out) of a string, by characters, or of a list. */
fsdp_status fsdp__jinja_value_slice(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__jinja_value *begin,
                                    const fsdp__jinja_value *end, const fsdp__jinja_value *step,
                                    fsdp__jinja_value *out);
