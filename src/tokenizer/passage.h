/* passage.h - texts on their way to tokens, and what of the first text each of their bytes was made of. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp/status.h"

/* The bytes of the first text that something was made of. */
typedef struct fsdp__origin {
    size_t begin, end;
} fsdp__origin;

/* Part of a text; it borrows everything. */
typedef struct fsdp__passage {
    const char *text;
    size_t bytes;
    bool traced;                 /* origins are asked for. Otherwise they are not kept */
    size_t at;                   /* the origin of the first byte, if they follow one another as in the first text */
    const fsdp__origin *origins; /* of each byte, if they do not; NULL: they do */
} fsdp__passage;

/* Returns the passage from byte `begin` up to `end`. */
fsdp__passage fsdp__passage_part(const fsdp__passage *passage, size_t begin, size_t end);
/* Returns the origin of the bytes from `begin` up to `end`, of which there is at least one. */
fsdp__origin fsdp__passage_origin(const fsdp__passage *passage, size_t begin, size_t end);

/* Returns the origin of what is put in front of a passage, which is not empty: that of its first character. */
fsdp__origin fsdp__passage_front(const fsdp__passage *passage);

/* Holds a text that is being made. */
typedef struct fsdp__text {
    char *bytes;
    int64_t count, capacity;
    bool traced;           /* keeps origins */
    fsdp__origin *origins; /* of each byte */
    int64_t origin_capacity;
} fsdp__text;

/* Appends bytes without origins. */
fsdp_status fsdp__text_append(fsdp__text *text, const char *bytes, size_t count);
/* Appends bytes that were all made of the same. */
fsdp_status fsdp__text_add(fsdp__text *text, const char *bytes, size_t count, fsdp__origin origin);
/* Appends part of a passage, each byte with its own origin. */
fsdp_status fsdp__text_copy(fsdp__text *text, const fsdp__passage *from, size_t begin, size_t end);
/* Empties the text, for one that is traced as `from` is. */
void fsdp__text_begin(fsdp__text *text, const fsdp__passage *from);
fsdp__passage fsdp__text_passage(const fsdp__text *text);
void fsdp__text_release(fsdp__text *text);
