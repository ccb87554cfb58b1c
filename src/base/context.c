/* context.c - what one rank owns. */
#include "base/context.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/text.h"

enum {
    LINE_BYTES = 4096
};

struct fsdp_context {
    fsdp__subscriber subscribers; /* the first of them, which is the log: see probe.h */
    fsdp_context_options options; /* every field resolved */
    pthread_mutex_t log_mutex;    /* recursive: a sink may log */
    fsdp_log_level log_level;
    fsdp_log_sink log_sink;
    void *log_arg;
    fsdp__heart own_heart, *heart;
    _Atomic bool ended; /* its world has */
    fsdp__taker taker;
    pthread_t _Atomic taking; /* the thread that it is on */
    fsdp__owner_namer namer;  /* or NULL */
    struct {
        void *state;
        void (*free_state)(void *);
    } slots[FSDP__SLOTS];
};

/* Sets the number of machines where it is not given: they are of equal size, one after the other. */
static fsdp_status resolve_machines(fsdp_context_options *o)
{
    if (o->machines == 0) {
        o->machines = o->world_size / o->local_world_size + (o->world_size % o->local_world_size != 0);
        o->machine = o->rank / o->local_world_size;
    }
    if (o->machines < 0 || o->machines > o->world_size || o->machine < 0 || o->machine >= o->machines)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a context: machine %d of %d does not fit a world of %d",
                         o->machine, o->machines, o->world_size);
    return FSDP_OK;
}

static fsdp_status resolve(const fsdp_context_options *given, fsdp_context_options *out)
{
    fsdp_context_options options = given ? *given : (fsdp_context_options){0};

    if (options.world_size == 0)
        options.world_size = 1;
    if (options.local_world_size == 0) {
        options.local_rank = options.rank;
        options.local_world_size = options.world_size;
    }
    if (options.world_size < 0 || options.rank < 0 || options.rank >= options.world_size)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a context: rank %d is not in a world of %d", options.rank,
                         options.world_size);
    if (options.local_world_size < 0 || options.local_world_size > options.world_size || options.local_rank < 0 ||
        options.local_rank >= options.local_world_size)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a context: local rank %d of %d does not fit a world of %d",
                         options.local_rank, options.local_world_size, options.world_size);
    FSDP_TRY(resolve_machines(&options));
    if (options.threads < 0 || options.threads > FSDP__THREADS_MOST)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a context: %d threads: expected 0 to %d", options.threads,
                         FSDP__THREADS_MOST);
    if (options.threads == 0)
        options.threads = fsdp__allowed_cores() / options.local_world_size;
    if (options.threads == 0)
        options.threads = 1;
    *out = options;
    return FSDP_OK;
}

fsdp_status fsdp_context_create(const fsdp_context_options *options, fsdp_context **out)
{
    fsdp_context_options resolved;
    fsdp_context *context;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a context: no place for the result");
    *out = NULL;
    FSDP_TRY(resolve(options, &resolved));
    context = fsdp__calloc(1, sizeof *context);
    if (!context)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot create a context");
    context->options = resolved;
    context->heart = &context->own_heart;
    context->log_mutex = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    fsdp_context_set_log(context, FSDP_LOG_INFO, NULL, NULL);
    *out = context;
    return FSDP_OK;
}

/* ---- its subscribers, whose places stay as long as it does: a thread may be about to look at one ---- */

fsdp__subscriber *fsdp__context_subscribe(fsdp_context *context, uint64_t points,
                                          fsdp_status (*see)(void *arg, fsdp__probe_event *event), void *arg)
{
    fsdp__subscriber *last = &context->subscribers, *place;

    while (last->next && last->next->see)
        last = last->next;
    place = last->next;
    if (!place) {
        place = fsdp__calloc(1, sizeof *place);
        if (!place)
            return NULL;
        last->next = place;
    }
    place->see = see;
    place->arg = arg;
    fsdp__listen(place, points);
    return place;
}

static void free_subscribers(fsdp_context *context)
{
    fsdp__listen(&context->subscribers, 0);
    for (fsdp__subscriber *s = context->subscribers.next, *next; s; s = next) {
        next = s->next;
        fsdp__listen(s, 0);
        fsdp__free(s);
    }
}

void fsdp_context_free(fsdp_context *context)
{
    if (!context)
        return;
    for (int slot = FSDP__SLOTS - 1; slot >= 0; slot--)
        if (context->slots[slot].state && context->slots[slot].free_state)
            context->slots[slot].free_state(context->slots[slot].state);
    free_subscribers(context);
    pthread_mutex_destroy(&context->log_mutex);
    fsdp__free(context);
}

int fsdp_context_rank(const fsdp_context *context)
{
    return context ? context->options.rank : -1;
}

int fsdp_context_world_size(const fsdp_context *context)
{
    return context ? context->options.world_size : 0;
}

int fsdp_context_local_rank(const fsdp_context *context)
{
    return context ? context->options.local_rank : -1;
}

int fsdp_context_local_world_size(const fsdp_context *context)
{
    return context ? context->options.local_world_size : 0;
}

int fsdp_context_machine(const fsdp_context *context)
{
    return context ? context->options.machine : -1;
}

int fsdp_context_machines(const fsdp_context *context)
{
    return context ? context->options.machines : 0;
}

int fsdp_context_threads(const fsdp_context *context)
{
    return context ? context->options.threads : 0;
}

void fsdp__context_set_threads(fsdp_context *context, int threads)
{
    context->options.threads = threads;
}

void *fsdp__context_get(const fsdp_context *context, fsdp__slot slot)
{
    return context ? context->slots[slot].state : NULL;
}

void *fsdp__context_get_or_make(fsdp_context *context, fsdp__slot slot, size_t bytes, void (*free_state)(void *))
{
    if (!context)
        return NULL;
    if (!context->slots[slot].state) {
        void *state = fsdp__calloc(1, bytes);

        if (state)
            fsdp__context_attach(context, slot, state, free_state);
    }
    return context->slots[slot].state;
}

void fsdp__context_attach(fsdp_context *context, fsdp__slot slot, void *state, void (*free_state)(void *))
{
    context->slots[slot].state = state;
    context->slots[slot].free_state = free_state;
}

/* ---- signs of life ---- */

void fsdp__context_note_end(fsdp_context *context)
{
    atomic_store(&context->ended, true);
}

bool fsdp__context_has_ended(const fsdp_context *context)
{
    return atomic_load(&context->ended);
}

/* When two threads of one rank beat at once the counter may advance by only one: that it moves is all that is
 * needed. */
void fsdp__context_beat(fsdp_context *context)
{
    _Atomic uint64_t *beats = &context->heart->beats;

    atomic_store_explicit(beats, atomic_load_explicit(beats, memory_order_relaxed) + 1, memory_order_relaxed);
}

fsdp__taker fsdp__context_taker(const fsdp_context *context)
{
    bool mine = pthread_equal(atomic_load_explicit(&context->taking, memory_order_relaxed), pthread_self());

    return mine ? context->taker : (fsdp__taker){.owner = NULL};
}

void fsdp__context_set_taker(fsdp_context *context, fsdp__taker taker)
{
    atomic_store_explicit(&context->taking, pthread_self(), memory_order_relaxed);
    context->taker = taker;
}

fsdp__taker fsdp__context_enter(fsdp_context *context, const void *owner)
{
    fsdp__taker before = fsdp__context_taker(context);

    fsdp__context_set_taker(context, (fsdp__taker){.owner = owner, .backward = before.backward});
    return before;
}

void fsdp__context_set_namer(fsdp_context *context, fsdp__owner_namer name)
{
    context->namer = name;
}

const char *fsdp__context_owner_name(const fsdp_context *context, const void *owner, char *text, size_t bytes)
{
    bool mine = pthread_equal(atomic_load_explicit(&context->taking, memory_order_relaxed), pthread_self());

    text[0] = '\0';
    if (owner && mine && context->namer && !context->namer(context, owner, text, bytes))
        text[0] = '\0';
    return text;
}

fsdp__activity fsdp__context_set_activity(fsdp_context *context, fsdp__activity activity)
{
    return (fsdp__activity)atomic_exchange_explicit(&context->heart->activity, activity, memory_order_relaxed);
}

void fsdp__context_set_heart(fsdp_context *context, fsdp__heart *heart)
{
    context->heart = heart;
}

/* ---- the log ---- */

/* Writes the line and its end in one write, so that lines of ranks that share a terminal do not mix. */
static void write_to_stderr(void *arg, fsdp_log_level level, const char *line)
{
    char text[LINE_BYTES + 1];
    size_t bytes = strnlen(line, LINE_BYTES), done = 0;

    (void)arg;
    (void)level;
    memcpy(text, line, bytes);
    text[bytes++] = '\n';
    while (done < bytes) {
        ssize_t written = write(STDERR_FILENO, text + done, bytes - done);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return; /* there is nobody to tell */
        done += (size_t)written;
    }
}

/* Logs what happens to groups of parameters, and the collectives that move tensors, in their order. */
static fsdp_status log_event(void *arg, fsdp__probe_event *e)
{
    if (e->point == FSDP__POINT_SHARD_CHANGED && e->number > 0)
        fsdp_log(arg, FSDP_LOG_DEBUG, "%s '%s' (%s)", e->word, e->name ? e->name : "?", e->phase);
    if (e->point == FSDP__POINT_COLLECTIVE_ISSUED && e->dtype != FSDP_DTYPE_NONE && e->ranks > 1)
        fsdp_log(arg, FSDP_LOG_DEBUG, "%s: %lld %s over %d ranks of group '%s'", e->word,
                 (long long)(e->bytes / fsdp_dtype_size(e->dtype)), fsdp_dtype_name(e->dtype), e->ranks, e->group);
    return FSDP_OK;
}

void fsdp_context_set_log(fsdp_context *context, fsdp_log_level level, fsdp_log_sink sink, void *arg)
{
    if (!context)
        return;
    pthread_mutex_lock(&context->log_mutex);
    context->log_level = level;
    context->log_sink = sink ? sink : write_to_stderr;
    context->log_arg = sink ? arg : NULL;
    pthread_mutex_unlock(&context->log_mutex);
    context->subscribers.see = log_event;
    context->subscribers.arg = context;
    fsdp__listen(&context->subscribers, level >= FSDP_LOG_DEBUG ? FSDP__POINT_BIT(FSDP__POINT_SHARD_CHANGED) |
                                                                      FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_ISSUED)
                                                                : 0);
}

/* What does not fit loses its middle: the reason of an error stands at the end. */
static void format_line(char *line, size_t bytes, const char *format, va_list arguments)
{
    va_list again;

    va_copy(again, arguments);
    if (vsnprintf(line, bytes, format, arguments) >= (int)bytes)
        fsdp__shown_message(line, bytes, format, again);
    va_end(again);
}

void fsdp_log(fsdp_context *context, fsdp_log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    int saved_errno = errno, prefix = 0;
    va_list arguments;

    if (!context || !format)
        return;
    if (context->options.world_size > 1)
        prefix = snprintf(line, sizeof line, "[rank %d] ", context->options.rank);
    va_start(arguments, format);
    format_line(line + prefix, sizeof line - (size_t)prefix, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&context->log_mutex); /* workers log too */
    if (level <= context->log_level)
        context->log_sink(context->log_arg, level, line);
    pthread_mutex_unlock(&context->log_mutex);
    errno = saved_errno;
}

void fsdp__warn(const char *format, ...)
{
    char line[LINE_BYTES];
    int prefix = snprintf(line, sizeof line, "fsdp: warning: ");
    va_list arguments;

    va_start(arguments, format);
    format_line(line + prefix, sizeof line - (size_t)prefix, format, arguments);
    va_end(arguments);
    write_to_stderr(NULL, FSDP_LOG_WARNING, line);
}
