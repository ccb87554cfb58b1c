/* trace_spans.h - makes of notes what has a beginning and an end, and what belongs together. */
#pragma once

#include "watch/trace_recorder.h"

typedef enum fsdp__span_kind {
    FSDP__SPAN_WORK,     /* a kernel, copy, collective, step, batch, part or stage: from BEGUN to DONE */
    FSDP__SPAN_ISSUE,    /* from ISSUED until it was queued */
    FSDP__SPAN_WAIT,     /* of the host */
    FSDP__SPAN_FORWARD,  /* of a unit */
    FSDP__SPAN_BACKWARD, /* the same */
    FSDP__SPAN_WHOLE,    /* a unit's parameters are whole, or on their way: a row of its own */
    FSDP__SPAN_ACTIVITY  /* of a GPU, by its own record */
} fsdp__span_kind;

typedef struct fsdp__trace_span {
    int64_t begin, end;
    const fsdp__note *note;  /* of its beginning; of a wait, of its end */
    const fsdp__note *other; /* of a wait: what was issued to the stream that it waited for; NULL: not known */
    int64_t kept;            /* of a forward: by how many bytes activations have grown */
    int64_t below;           /* for trace_spans.c */
    fsdp__span_kind kind;
    uint16_t lane;
    bool unfinished; /* when the recording ended */
    bool apart;      /* it overlaps another one of its lane without lying in it */
} fsdp__trace_span;

/* Describes an arrow from where something was issued to where it ran. */
typedef struct fsdp__trace_arrow {
    int64_t from, to; /* spans */
} fsdp__trace_arrow;

typedef struct fsdp__trace_spans {
    fsdp__trace_span *spans; /* lane by lane, those that contain others before them */
    int64_t count, capacity;
    fsdp__trace_arrow *arrows;
    int64_t arrow_count, arrow_capacity;
    int64_t last_ns;
} fsdp__trace_spans;

/* Makes the spans of a stopped recorder, whose notes they point to. Release them, also after a failure. */
fsdp_status fsdp__trace_spans_create(const fsdp__recorder *recorder, fsdp__trace_spans *out);
void fsdp__trace_spans_release(fsdp__trace_spans *spans);
