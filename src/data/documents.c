/* documents.c - cuts files into pieces: at ends of lines or documents, or within a document where the tokenizer
 * produces the same words on both sides. */
#include "data/documents.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "format/json_scan.h"
#include "tokenizer/tokenizer.h"

enum {
    PIECE_BYTES = 1 << 20
};
#define WHOLE_MOST ((size_t)1 << 30) /* for a document that cannot be split */

/* ---- files ---- */

void fsdp__documents_open(fsdp__documents *documents, const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                          const fsdp__text_hash *hashes, const char *separator)
{
    *documents = (fsdp__documents){
        .tokenizer = tokenizer, .separator = separator, .files = files, .hashes = hashes, .piece_bytes = PIECE_BYTES};
    for (int64_t i = 0; i < files->count; i++) {
        struct stat info;

        if (stat(files->paths[i], &info) == 0) /* otherwise opening it tells why */
            documents->all_bytes += info.st_size;
    }
}

void fsdp__documents_close(fsdp__documents *documents)
{
    fsdp__text_file_close(documents->file);
    fsdp__free(documents->rest);
    *documents = (fsdp__documents){0};
}

void fsdp__piece_release(fsdp__piece *piece)
{
    fsdp__free(piece->text);
    *piece = (fsdp__piece){0};
}

int64_t fsdp__documents_position(const fsdp__documents *documents)
{
    return documents->done_bytes + (documents->file ? fsdp__text_file_position(documents->file) : 0);
}

/* ---- memory ---- */

static fsdp_status reserve(char **bytes, size_t *capacity, size_t wanted)
{
    char *larger;

    if (wanted <= *capacity)
        return FSDP_OK;
    FSDP__TRY_NEW(larger = fsdp__realloc(*bytes, wanted));
    *bytes = larger;
    *capacity = wanted;
    return FSDP_OK;
}

/* ---- files, one after another ---- */

/* Skips a byte order mark at the beginning, which is not part of the text. */
static fsdp_status skip_mark(fsdp__documents *d)
{
    char first[3];
    size_t count = 0, got = 1;

    while (count < sizeof first && got > 0) {
        FSDP_TRY(fsdp__text_file_read(d->file, first + count, sizeof first - count, &got));
        count += got;
    }
    if (fsdp__utf8_mark(first, count) > 0) {
        d->offset = sizeof first;
        return FSDP_OK;
    }
    FSDP_TRY(reserve(&d->rest, &d->rest_capacity, sizeof first));
    memcpy(d->rest, first, count);
    d->rest_bytes = count;
    return FSDP_OK;
}

static fsdp_status open_next(fsdp__documents *d)
{
    d->path = d->files->paths[d->next];
    if (d->hashes)
        d->hash = d->hashes[d->next];
    else
        FSDP_TRY(fsdp__text_hash_of(d->path, &d->hash));
    d->next++;
    FSDP_TRY(fsdp__text_file_open(d->path, &d->file));
    d->within = false;
    d->offset = 0;
    d->line = 1;
    return skip_mark(d);
}

/* Closes the file at its end. A file that is written to while it is read could give a text that it never held. */
static fsdp_status close_file(fsdp__documents *d)
{
    fsdp__text_hash hash = fsdp__text_file_hash(d->file);

    if (memcmp(&hash, &d->hash, sizeof hash) != 0)
        return FSDP_FAIL(FSDP_IO, "'%s' changed while it was tokenized: start again when nothing writes to it",
                         d->path);
    d->done_bytes += fsdp__text_file_position(d->file);
    fsdp__text_file_close(d->file);
    d->file = NULL;
    return FSDP_OK;
}

/* ---- pieces ---- */

/* Reads up to `wanted` bytes; if the file ends before that, sets `*ended`. */
static fsdp_status fill(fsdp__documents *d, fsdp__piece *piece, size_t wanted, bool *ended)
{
    FSDP_TRY(reserve(&piece->text, &piece->capacity, wanted));
    while (piece->bytes < wanted && !*ended) {
        size_t got;

        FSDP_TRY(fsdp__text_file_read(d->file, piece->text + piece->bytes, wanted - piece->bytes, &got));
        piece->bytes += got;
        *ended = got == 0;
    }
    return FSDP_OK;
}

/* Returns the offset after the last separator; 0: there is none. */
static size_t behind_separator(const fsdp__documents *d, const fsdp__piece *piece)
{
    size_t length = strlen(d->separator);

    for (size_t at = piece->bytes; at >= length; at--)
        if (piece->text[at - 1] == d->separator[length - 1] &&
            memcmp(piece->text + at - length, d->separator, length) == 0)
            return at;
    return 0;
}

/* Returns where the piece may end; 0: nowhere. `*ends` says that a document ends there. */
static size_t find_end(const fsdp__documents *d, const fsdp__piece *piece, bool *ends)
{
    size_t seen = piece->bytes, end;

    *ends = true;
    if (piece->json_lines) {
        const char *line_end = memrchr(piece->text, '\n', piece->bytes);

        return line_end ? (size_t)(line_end - piece->text) + 1 : 0;
    }
    if (d->separator) {
        end = behind_separator(d, piece);
        if (end > 0)
            return end;
        seen -= FSDP__MIN(seen, strlen(d->separator)); /* a separator may begin there and continue in what follows */
    }
    *ends = false;
    return fsdp__tokenizer_find_cut(d->tokenizer, piece->text, seen);
}

static fsdp_status too_long(const fsdp__documents *d, const fsdp__piece *piece)
{
    if (piece->json_lines)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld has over %zu bytes%s", piece->path,
                         (long long)d->line, WHOLE_MOST,
                         fsdp__json_begins_array(piece->text, piece->bytes)
                             ? ": it is not a JSON object but an array: " FSDP__JSON_ARRAY_ADVICE
                             : "");
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot read '%s': the document at offset %lld has over %zu bytes without a place where the "
                     "tokenizer is known to begin a new word: give a separator between documents, or JSON lines",
                     piece->path, (long long)d->offset, WHOLE_MOST);
}

/* Keeps what was read past the end of the piece, as the beginning of the next one. */
static fsdp_status keep_rest(fsdp__documents *d, fsdp__piece *piece, size_t end)
{
    size_t rest = piece->bytes - end;

    FSDP_TRY(reserve(&d->rest, &d->rest_capacity, rest));
    if (rest > 0)
        memcpy(d->rest, piece->text + end, rest);
    d->rest_bytes = rest;
    piece->bytes = end;
    return FSDP_OK;
}

static void go_on(fsdp__documents *d, const fsdp__piece *piece)
{
    d->within = !piece->ends;
    d->offset += (int64_t)piece->bytes;
    for (size_t i = 0; piece->json_lines && i < piece->bytes; i++)
        d->line += piece->text[i] == '\n';
}

static fsdp_status read_piece(fsdp__documents *d, fsdp__piece *piece)
{
    size_t wanted = FSDP__MAX(d->piece_bytes, d->rest_bytes + 1), end;
    bool ended = false;

    FSDP_TRY(reserve(&piece->text, &piece->capacity, wanted));
    if (d->rest_bytes > 0)
        memcpy(piece->text, d->rest, d->rest_bytes);
    piece->bytes = d->rest_bytes;
    piece->path = d->path;
    piece->json_lines = fsdp__is_json_lines(d->path);
    piece->continues = d->within;
    piece->offset = d->offset;
    piece->line = d->line;
    for (;; wanted *= 2) {
        FSDP_TRY(fill(d, piece, wanted, &ended));
        if (ended) {
            end = piece->bytes;
            piece->ends = true;
            break;
        }
        end = find_end(d, piece, &piece->ends);
        if (end > 0)
            break;
        if (wanted >= WHOLE_MOST)
            return too_long(d, piece);
    }
    FSDP_TRY(keep_rest(d, piece, end));
    go_on(d, piece);
    return ended ? close_file(d) : FSDP_OK;
}

fsdp_status fsdp__documents_next(fsdp__documents *documents, fsdp__piece *piece, bool *any)
{
    *any = documents->file || documents->next < documents->files->count;
    if (!*any)
        return FSDP_OK;
    if (!documents->file)
        FSDP_TRY(open_next(documents));
    return read_piece(documents, piece);
}
