/* jinja.h - templates of conversations: the part of Jinja that they use, as the library jinja2 runs it in its immutable
 * sandbox with trim_blocks and lstrip_blocks, with loop controls and `generation` blocks.
 *
 * A construct that is not known is an error with its line. A template is somebody else's program, so a rendering has
 * limits: memory, output, depth, and the work that it does. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "fsdp/status.h"

typedef struct fsdp__jinja fsdp__jinja; /* read-only once it is parsed; may be shared by threads */

/* Parses a template; `name` is for messages. The text is copied. */
fsdp_status fsdp__jinja_parse(const char *name, const char *text, size_t bytes, fsdp__jinja **out);
void fsdp__jinja_free(fsdp__jinja *jinja); /* NULL is allowed */
/* Returns whether the template has a `generation` block. */
bool fsdp__jinja_marks(const fsdp__jinja *jinja);

/* Marks a range of bytes of a text. */
typedef struct fsdp__jinja_range {
    size_t begin, end;
    int64_t message; /* the number of the message, from 0, in whose turn of a loop the block lies; -1: in none */
} fsdp__jinja_range;

/* Holds what a rendering gives. */
typedef struct fsdp__rendered {
    char *text; /* followed by a NUL */
    size_t bytes;
    fsdp__jinja_range *marked; /* what `generation` blocks enclose, in order; none of them is empty */
    int64_t count, capacity;
    bool lost; /* a block lay in a macro or a `set` block: where its text comes to lie is not known */
} fsdp__rendered;
void fsdp__rendered_release(fsdp__rendered *rendered);

/* Renders with the members of an object as variables; a null is None, which is defined. `now`: what strftime_now takes
 * for the time, in seconds since 1970. */
fsdp_status fsdp__jinja_render(const fsdp__jinja *jinja, const json_t *variables, int64_t now, fsdp__rendered *out);

FSDP__SCOPED_POINTER(fsdp__jinja, fsdp__jinja_free)
