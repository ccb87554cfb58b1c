/* same_data.c - whether the data is what it was: a hash of every token, which rank 0 computes while the run is already
 * training. A checkpoint keeps it once it is ready, and which files it is of, in which state. A run that goes on
 * computes one on each machine and compares it; where the files are unchanged it need not read them. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/hash.h"
#include "base/text.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/run_start.h"

enum {
    BEAT_NS = 50 * 1000 * 1000
};

struct fsdp__data_digest {
    const fsdp_train_run *run;
    pthread_t thread;
    bool running; /* the thread has not been joined yet */
    _Atomic bool stop;
    _Atomic bool made;  /* the fields below are set, and change no more */
    fsdp_status status; /* of reading the data */
    char message[512];
    uint64_t identity; /* of the files; 0: not certain */
    char text[FSDP__DIGEST_TEXT];
};

/* Hashes all sources; the hash of several is that of their hashes. */
static fsdp_status hash_sources(fsdp__data_digest *d, uint64_t out[2])
{
    const fsdp_train_run *run = d->run;

    FSDP_TRY(fsdp__open_data_digest(&run->sources[0].data, &d->stop, out));
    for (int i = 1; i < run->source_count; i++) {
        uint64_t next[2];

        FSDP_TRY(fsdp__open_data_digest(&run->sources[i].data, &d->stop, next));
        out[0] = fsdp__hash_bytes(out[0], next, sizeof next);
        out[1] = fsdp__hash_bytes(out[1], next, sizeof next);
    }
    return FSDP_OK;
}

/* Returns which files the sources are, and in which state; 0: not certain. */
static uint64_t identify_sources(const fsdp_train_run *run)
{
    uint64_t identity = fsdp__open_data_identity(&run->sources[0].data);

    for (int i = 1; i < run->source_count; i++) {
        uint64_t next = fsdp__open_data_identity(&run->sources[i].data);

        identity = identity && next ? fsdp__hash_bytes(identity, &next, sizeof next) : 0;
    }
    return identity;
}

static int64_t tokens_of(const fsdp_train_run *run)
{
    int64_t count = 0;

    for (int i = 0; i < run->source_count; i++)
        count += fsdp__open_data_tokens(&run->sources[i].data);
    return count;
}

static void compute(fsdp__data_digest *d)
{
    uint64_t hash[2];

    d->status = hash_sources(d, hash);
    if (d->status == FSDP_OK)
        snprintf(d->text, sizeof d->text, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
    else /* each thread has a last error of its own */
        fsdp__shown(fsdp_last_error(), d->message, sizeof d->message);
    atomic_store_explicit(&d->made, true, memory_order_release);
}

/* Hashes the data, with less priority than training where there are not enough cores for both. */
static void *work(void *arg)
{
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 10);
    compute(arg);
    return NULL;
}

const char *fsdp__digest_of_checkpoint(const fsdp_train_run *run, int64_t *out_files)
{
    bool held = fsdp_hold_error(true); /* a missing value is no error */
    const char *text = NULL;

    *out_files = 0;
    if (run->resume.from) {
        (void)fsdp_checkpoint_get_text(run->resume.from, FSDP__VALUE_DIGEST, &text);
        (void)fsdp_checkpoint_get_integer(run->resume.from, FSDP__VALUE_FILES, out_files);
    }
    fsdp_release_error(held);
    return text;
}

/* Takes over what the checkpoint says of these files, if they have not changed since. */
static bool take_over(const fsdp_train_run *run, fsdp__data_digest *d)
{
    int64_t files;
    const char *text = fsdp__digest_of_checkpoint(run, &files);

    if (!text || d->identity == 0 || (uint64_t)files != d->identity || strlen(text) != sizeof d->text - 1)
        return false;
    memcpy(d->text, text, sizeof d->text);
    return true;
}

/* Returns whether the run goes on from a checkpoint whose digest it compares. */
static bool is_compared(const fsdp_train_run *run)
{
    int64_t files;

    return fsdp__train_loads(run->config, FSDP__TRAIN_DATALOADER) && fsdp__digest_of_checkpoint(run, &files);
}

fsdp_status fsdp__digest_begin(fsdp_train_run *run)
{
    fsdp__data_digest *d;

    if (!fsdp__train_saves(run->config))
        return FSDP_OK;
    if (fsdp_context_rank(run->context) != 0 && (fsdp_context_local_rank(run->context) != 0 || !is_compared(run)))
        return FSDP_OK;
    FSDP__TRY_NEW(d = run->digest = fsdp__calloc(1, sizeof *d));
    d->run = run;
    d->identity = identify_sources(run);
    if (take_over(run, d))
        d->made = true;
    else if (tokens_of(run) > FSDP__DIGEST_AT_ONCE)
        d->running = pthread_create(&d->thread, NULL, work, d) == 0;
    if (!d->made && !d->running)
        compute(d);
    return FSDP_OK;
}

/* Waits for the thread. Ranks that wait for this one see that it lives. */
static void wait_for_thread(const fsdp_train_run *run, fsdp__data_digest *d)
{
    int error;

    do {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += BEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        error = pthread_timedjoin_np(d->thread, NULL, &until);
        fsdp__context_beat(run->context);
    } while (error == ETIMEDOUT);
    d->running = false;
}

void fsdp__digest_wait(fsdp_train_run *run)
{
    if (run->digest && run->digest->running)
        wait_for_thread(run, run->digest);
}

fsdp_status fsdp__digest_get(const fsdp_train_run *run, const char **out_text, int64_t *out_files)
{
    const fsdp__data_digest *d = run->digest;

    *out_text = NULL;
    *out_files = 0;
    if (!d || !atomic_load_explicit(&d->made, memory_order_acquire))
        return FSDP_OK;
    if (d->status != FSDP_OK)
        return FSDP_FAIL(d->status, "data.path: %s", d->message);
    *out_text = d->text;
    *out_files = (int64_t)d->identity;
    return FSDP_OK;
}

void fsdp__digest_release(fsdp_train_run *run)
{
    fsdp__data_digest *d = run->digest;

    if (d && d->running) {
        atomic_store_explicit(&d->stop, true, memory_order_relaxed);
        (void)pthread_join(d->thread, NULL);
    }
    fsdp__free(d);
    run->digest = NULL;
}
