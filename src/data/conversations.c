/* conversations.c - looks at the first rows of files, and encodes rows. */
#include "data/conversations.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "data/files.h"
#include "data/text_file.h"
#include "format/json_scan.h"
#include "tokenizer/bpe.h"

enum {
    LOOKED_AT = 1 << 20, /* bytes of a file; more if its first line goes on after them */
    LINE_MOST = FSDP__JSON_ROW_TEXT
};

FSDP__SCOPED_POINTER(fsdp__text_file, fsdp__text_file_close)

/* ---- what files are ---- */

/* Holds the beginning of a file. */
typedef struct beginning {
    char *text;
    size_t bytes;
    bool goes_on; /* the file does, perhaps within a line */
} beginning;

static void release_beginning(beginning *b)
{
    fsdp__free(b->text);
}

/* Reads up to so many bytes. */
static fsdp_status read_up_to(fsdp__text_file *file, size_t most, beginning *b)
{
    char *longer = fsdp__realloc(b->text, most);
    size_t got = 1;

    FSDP__TRY_NEW(longer);
    b->text = longer;
    while (got > 0 && b->bytes < most) {
        FSDP_TRY(fsdp__text_file_read(file, b->text + b->bytes, most - b->bytes, &got));
        b->bytes += got;
    }
    b->goes_on = b->bytes == most;
    return FSDP_OK;
}

static fsdp_status read_beginning(const char *path, beginning *b)
{
    FSDP__SCOPED(fsdp__text_file_close_at) fsdp__text_file *file = NULL;
    size_t most = LOOKED_AT;

    FSDP_TRY(fsdp__text_file_open(path, &file));
    FSDP_TRY(read_up_to(file, most, b));
    while (b->goes_on && most < LINE_MOST && !memchr(b->text, '\n', b->bytes))
        FSDP_TRY(read_up_to(file, most *= 2, b));
    return FSDP_OK;
}

static void each_of(const char *path, const beginning *b, fsdp__each_line each, void *arg)
{
    const char *at = b->text, *last = at + b->bytes;

    for (int64_t line = 1; at < last; line++) {
        const char *end = memchr(at, '\n', (size_t)(last - at));

        if (!end && b->goes_on)
            return; /* perhaps this line does */
        end = end ? end : last;
        if (!each(arg, path, line, at, (size_t)(end - at)))
            return;
        at = end + 1;
    }
}

fsdp_status fsdp__conversations_lines(const char *const *paths, int64_t count, fsdp__each_line each, void *arg)
{
    FSDP__SCOPED(fsdp__data_files_release) fsdp__data_files files = {0};
    FSDP__SCOPED(release_beginning) beginning b = {0};

    FSDP_TRY(fsdp__data_files_list(paths, count, FSDP__LIST_ANY, &files));
    for (int64_t i = 0; i < files.count; i++)
        if (fsdp__is_json_lines(files.paths[i])) {
            FSDP_TRY(read_beginning(files.paths[i], &b));
            each_of(files.paths[i], &b, each, arg);
            break;
        }
    return FSDP_OK;
}

static bool find_kind(void *arg, FSDP__UNUSED const char *path, FSDP__UNUSED int64_t line, const char *text,
                      size_t bytes)
{
    fsdp_chat_kind *kind = arg;

    *kind = fsdp_chat_recognise(text, bytes);
    return *kind == FSDP_CHAT_NONE;
}

fsdp_status fsdp__conversations_kind(const char *const *paths, int64_t count, fsdp_chat_kind *out)
{
    *out = FSDP_CHAT_NONE;
    FSDP_TRY(fsdp__conversations_lines(paths, count, find_kind, out));
    if (*out == FSDP_CHAT_TEXT)
        *out = FSDP_CHAT_NONE;
    return FSDP_OK;
}

/* ---- rows ---- */

void fsdp__encoded_rows_release(fsdp__encoded_rows *rows)
{
    FSDP__FREE_ALL(rows->learned, rows->ends);
    fsdp_chat_row_release(&rows->row);
}

/* Encodes a line, or one of the two conversations of a pair. */
static fsdp_status encode_one(const fsdp_chat *chat, const fsdp_chat_options *options, fsdp_encoder *encoder,
                              const char *line, size_t bytes, fsdp_token_list *ids, fsdp__encoded_rows *rows)
{
    const fsdp_chat_row *row = &rows->row;
    int64_t before = ids->count;

    FSDP_TRY(fsdp_chat_encode(chat, encoder, line, bytes, options, &rows->row));
    if (row->ids.count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&rows->ends, rows->count, &rows->capacity, sizeof *rows->ends));
    FSDP_TRY(fsdp__grow(&rows->learned, before + row->ids.count, &rows->learned_capacity, sizeof *rows->learned));
    for (int64_t i = 0; i < row->ids.count; i++)
        FSDP_TRY(fsdp__token_list_add(ids, row->ids.ids[i]));
    for (int64_t i = 0; i < row->ids.count; i++) {
        bool learned = i > 0 && (options->no_mask || row->learned[i]); /* nothing predicts the first */

        rows->learned[before + i] = learned;
        rows->answers += learned;
    }
    rows->ends[rows->count++] = ids->count;
    return FSDP_OK;
}

/* Encodes both conversations of a pair, or takes back the first. */
static fsdp_status encode_pair(const fsdp_chat *chat, const fsdp_chat_options *options, fsdp_encoder *encoder,
                               const char *line, size_t bytes, fsdp_token_list *ids, fsdp__encoded_rows *rows)
{
    fsdp_chat_options own = *options;
    int64_t first = rows->count, answers = rows->answers;
    fsdp_status status;

    own.no_mask = false;
    own.rejected = false;
    status = encode_one(chat, &own, encoder, line, bytes, ids, rows);
    own.rejected = true;
    if (status == FSDP_OK)
        status = encode_one(chat, &own, encoder, line, bytes, ids, rows);
    if (status == FSDP_OK && rows->count != first + 2)
        status = FSDP_FAIL(FSDP_FORMAT, "an answer and its prompt have no tokens");
    if (status == FSDP_OK)
        return FSDP_OK;
    rows->count = first;
    rows->answers = answers;
    return status;
}

fsdp_status fsdp__conversations_encode(const fsdp_chat *chat, const fsdp_chat_options *options, fsdp_encoder *encoder,
                                       const char *line, size_t bytes, fsdp_token_list *ids, fsdp__encoded_rows *rows)
{
    bool pairs = options->kind == FSDP_CHAT_PREFERENCE;

    return (pairs ? encode_pair : encode_one)(chat, options, encoder, line, bytes, ids, rows);
}
