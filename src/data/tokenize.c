/* tokenize.c - turns files into a token file: this thread reads pieces and writes their ids in order, others encode
 * them. */
#include "data/tokenize.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/limits.h"
#include "data/encode_piece.h"
#include "data/rows.h"
#include "data/token_writer.h"

typedef enum slot_state {
    SLOT_FREE,
    SLOT_READ,
    SLOT_TAKEN, /* by a worker */
    SLOT_ENCODED
} slot_state;

typedef struct slot {
    slot_state state;
    fsdp__piece piece;
    fsdp__encoded encoded;
    fsdp_status status;
    char message[1024]; /* the last error belongs to one thread */
} slot;

/* The slots are a ring: pieces are read, encoded and written in their order. */
typedef struct tokenization {
    const fsdp_tokenizer *tokenizer;
    fsdp_tokenize_options options;
    fsdp__documents documents;
    fsdp__token_writer writer;
    fsdp__rows_writer rows; /* in its place, for conversations */
    fsdp_tokenize_summary summary;
    slot *slots;
    int slot_count, started; /* `started`: threads that run */
    int64_t read, taken, written;
    bool ended;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t *threads;
    fsdp_encoder **encoders; /* one for each thread */
} tokenization;

typedef struct worker {
    tokenization *all;
    fsdp_encoder *encoder;
} worker;

/* ---- encoding ---- */

static void encode_slot(const tokenization *t, fsdp_encoder *encoder, slot *s)
{
    fsdp_clear_error();
    s->status = fsdp__encode_piece(encoder, &t->options, fsdp_tokenizer_eos(t->tokenizer), &s->piece, &s->encoded);
    if (s->status != FSDP_OK)
        snprintf(s->message, sizeof s->message, "%s", fsdp_last_error());
}

static void *work(void *arg)
{
    FSDP__FREED worker *w = arg;
    tokenization *t = w->all;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        slot *s;

        while (t->taken == t->read && !t->ended)
            pthread_cond_wait(&t->changed, &t->lock);
        if (t->taken == t->read)
            break;
        s = &t->slots[t->taken++ % t->slot_count];
        s->state = SLOT_TAKEN;
        pthread_mutex_unlock(&t->lock);
        encode_slot(t, w->encoder, s);
        pthread_mutex_lock(&t->lock);
        s->state = SLOT_ENCODED;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- reading and writing ---- */

static fsdp_status write_rows(tokenization *t, const fsdp__encoded *encoded)
{
    const fsdp__encoded_rows *rows = &encoded->rows;

    for (int64_t i = 0, begin = 0; i < rows->count; begin = rows->ends[i++])
        FSDP_TRY(
            fsdp__rows_writer_add(&t->rows, encoded->ids.ids + begin, rows->learned + begin, rows->ends[i] - begin));
    t->summary.learned_tokens = t->rows.learned;
    return FSDP_OK;
}

static fsdp_status write_slot(tokenization *t, slot *s)
{
    if (s->status != FSDP_OK)
        return FSDP_FAIL(s->status, "%s", s->message);
    FSDP_TRY(t->options.chat ? write_rows(t, &s->encoded)
                             : fsdp__token_writer_add(&t->writer, s->encoded.ids.ids, s->encoded.ids.count));
    t->summary.documents += s->encoded.documents;
    t->summary.text_bytes += s->encoded.text_bytes;
    t->summary.tokens += s->encoded.ids.count;
    t->summary.lines += s->encoded.lines;
    if (s->encoded.left_out_lines > 0 && t->summary.left_out_lines == 0)
        memcpy(t->summary.first_left_out, s->encoded.first_left_out, sizeof s->encoded.first_left_out);
    t->summary.left_out_lines += s->encoded.left_out_lines;
    if (t->options.progress)
        t->options.progress(t->options.progress_arg, fsdp__documents_position(&t->documents), t->documents.all_bytes,
                            t->summary.tokens);
    return FSDP_OK;
}

/* Waits until the oldest piece has been encoded, and writes it. */
static fsdp_status write_oldest(tokenization *t)
{
    slot *s = &t->slots[t->written % t->slot_count];
    fsdp_status status;

    pthread_mutex_lock(&t->lock);
    while (s->state != SLOT_ENCODED)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    status = write_slot(t, s);
    pthread_mutex_lock(&t->lock);
    s->state = SLOT_FREE;
    t->written++;
    pthread_mutex_unlock(&t->lock);
    return status;
}

static fsdp_status run(tokenization *t)
{
    bool any = true;

    while (any || t->written < t->read) {
        if (!any || t->read - t->written == t->slot_count) {
            FSDP_TRY(write_oldest(t));
            continue;
        }
        FSDP_TRY(fsdp__documents_next(&t->documents, &t->slots[t->read % t->slot_count].piece, &any));
        if (!any)
            continue;
        pthread_mutex_lock(&t->lock);
        t->slots[t->read++ % t->slot_count].state = SLOT_READ;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
    }
    return FSDP_OK;
}

/* ---- life ---- */

static fsdp_status start_worker(tokenization *t, int number)
{
    FSDP__FREED worker *w = fsdp__malloc(sizeof *w);
    int error;

    FSDP__TRY_NEW(w);
    *w = (worker){.all = t, .encoder = t->encoders[number]};
    error = pthread_create(&t->threads[number], NULL, work, w);
    if (error != 0)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start thread %d of %d: %s%s", number + 1, t->options.threads,
                         strerrordesc_np(error), fsdp__limit_behind(error));
    w = NULL; /* the thread frees it */
    t->started++;
    return FSDP_OK;
}

static fsdp_status start(tokenization *t)
{
    int threads = t->options.threads;

    t->slot_count = 2 * threads + 1;
    t->slots = fsdp__calloc((size_t)t->slot_count, sizeof *t->slots);
    t->threads = fsdp__calloc((size_t)threads, sizeof *t->threads);
    t->encoders = fsdp__calloc((size_t)threads, sizeof(fsdp_encoder *));
    FSDP__TRY_NEW(t->slots && t->threads && t->encoders);
    for (int i = 0; i < threads; i++)
        FSDP_TRY(fsdp_encoder_create(t->tokenizer, &t->encoders[i]));
    for (int i = 0; i < threads; i++)
        FSDP_TRY(start_worker(t, i));
    return FSDP_OK;
}

static void stop(tokenization *t)
{
    pthread_mutex_lock(&t->lock);
    t->ended = true;
    t->taken = t->read; /* after a failure nobody needs the rest */
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->threads[i], NULL);
    for (int i = 0; t->encoders && i < t->options.threads; i++) {
        if (t->encoders[i])
            t->summary.left_out_bytes += fsdp_encoder_left_out(t->encoders[i]);
        fsdp_encoder_free(t->encoders[i]);
    }
    for (int i = 0; t->slots && i < t->slot_count; i++) {
        fsdp__piece_release(&t->slots[i].piece);
        fsdp_token_list_release(&t->slots[i].encoded.ids);
        fsdp__encoded_rows_release(&t->slots[i].encoded.rows);
    }
    FSDP__FREE_ALL(t->slots, t->threads, t->encoders);
}

/* ---- what is asked for ---- */

static fsdp_status check_options(const fsdp_tokenizer *tokenizer, const fsdp_tokenize_options *o)
{
    if (o->threads < 0 || o->threads > FSDP__THREADS_MOST)
        return FSDP_FAIL(FSDP_INVALID, "cannot tokenize with %d threads: from 1 to %d, or 0", o->threads,
                         FSDP__THREADS_MOST);
    if (o->separator && !*o->separator)
        return FSDP_FAIL(FSDP_INVALID, "the separator between documents is empty");
    if (!o->no_eos && !o->chat && fsdp_tokenizer_eos(tokenizer) < 0)
        return FSDP_FAIL(FSDP_INVALID, "the tokenizer's files name no end-of-text token (eos_token), which is put "
                                       "after each document: ask for none");
    return FSDP_OK;
}

static fsdp_status spare_inputs(const fsdp__data_files *files, const char *out)
{
    struct stat info, input;

    if (stat(out, &info) != 0)
        return FSDP_OK;
    for (int64_t i = 0; i < files->count; i++)
        if (stat(files->paths[i], &input) == 0 && fsdp__same_file(&info, &input))
            return FSDP_FAIL(FSDP_INVALID, "'%s' is one of the files that are read: name another file for the tokens",
                             out);
    return FSDP_OK;
}

/* Opens the file of rows. What has the name already is replaced if it is one, or of the cache. */
static fsdp_status open_rows(tokenization *t, const char *out)
{
    fsdp__rows *old = NULL;
    struct stat info;
    bool held, is_rows;

    if (!t->documents.hashes && stat(out, &info) == 0) {
        held = fsdp_hold_error(true);
        is_rows = fsdp__rows_open(out, &old) == FSDP_OK;
        fsdp_release_error(held);
        fsdp__rows_close(old);
        if (!is_rows)
            return FSDP_FAIL(FSDP_INVALID, "'%s' exists and is not a file of rows that fsdp made: name another file",
                             out);
    }
    return fsdp__rows_writer_open(&t->rows, out, t->summary.width);
}

static fsdp_status tokenize(tokenization *t, const char *out)
{
    const fsdp__data_files *files = t->documents.files;
    char text[FSDP__LEFT_OUT_TEXT];

    FSDP_TRY(spare_inputs(files, out));
    t->summary.files = files->count;
    t->summary.width = fsdp_tokenizer_vocab_size(t->tokenizer) <= 1 << 16 ? 2 : 4;
    FSDP_TRY(t->options.chat ? open_rows(t, out)
                             : fsdp__token_writer_open(&t->writer, out, t->summary.width, t->documents.hashes != NULL));
    t->rows.pairs = t->options.chat_kind == FSDP_CHAT_PREFERENCE;
    FSDP_TRY(start(t));
    FSDP_TRY(run(t));
    if (t->summary.tokens == 0 && t->summary.left_out_lines > 0)
        return FSDP_FAIL(FSDP_FORMAT, "there is no text: %s", fsdp__left_out_text(&t->summary, text));
    if (t->summary.tokens == 0)
        return FSDP_FAIL(FSDP_FORMAT, "there is no text in '%s'%s: name data that has some", files->paths[0],
                         files->count > 1 ? " nor in the others" : "");
    (void)fsdp__left_out_text(&t->summary, text);
    return t->options.chat ? fsdp__rows_writer_finish(&t->rows, text) : fsdp__token_writer_finish(&t->writer, text);
}

fsdp_status fsdp__tokenize_files(const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                                 const fsdp__text_hash *hashes, const char *out, const fsdp_tokenize_options *options,
                                 fsdp_tokenize_summary *summary)
{
    tokenization t = {.tokenizer = tokenizer,
                      .writer = {.fd = -1},
                      .rows = {.file = {.fd = -1}},
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER};
    fsdp_status status;

    if (options)
        t.options = *options;
    FSDP_TRY(check_options(tokenizer, &t.options));
    if (t.options.threads == 0)
        t.options.threads = fsdp__allowed_cores();
    t.options.threads = FSDP__MIN(t.options.threads, FSDP__THREADS_MOST);
    fsdp__documents_open(&t.documents, tokenizer, files, hashes, t.options.separator);
    status = tokenize(&t, out);
    stop(&t);
    fsdp__token_writer_close(&t.writer);
    fsdp__rows_writer_close(&t.rows);
    fsdp__documents_close(&t.documents);
    if (summary)
        *summary = t.summary;
    return status;
}

fsdp_status fsdp_tokenize_files(const fsdp_tokenizer *tokenizer, const char *const *paths, int count, const char *out,
                                const fsdp_tokenize_options *options, fsdp_tokenize_summary *summary)
{
    FSDP__SCOPED(fsdp__data_files_release) fsdp__data_files files = {0};

    if (!tokenizer || !paths || count < 1 || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot tokenize: tokenizer, paths and out are required");
    FSDP_TRY(fsdp__data_files_list(paths, count, FSDP__LIST_DOCUMENTS, &files));
    return fsdp__tokenize_files(tokenizer, &files, NULL, out, options, summary);
}
