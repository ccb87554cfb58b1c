/* rows.c - writes and reads files of rows. A row's tokens are written as they come; bits and ends are kept in memory
 * until the file is completed: some 12 bytes for a row of 30 tokens. */
#include "data/rows.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "data/token_file.h"
#include "data/token_header.h"

/* Lists offsets in the header. Checksums have theirs from 56 on, the note of token files is at 256. */
enum {
    WIDTH_AT = 16,
    ROWS_AT = 24,
    TOKENS_AT = 32,
    LEARNED_AT = 40,
    PAIRS_AT = 48,
    NOTE_AT = 256
};

static const char mark[16] = "fsdp rows 1\n";

FSDP__SCOPED_POINTER(fsdp__rows, fsdp__rows_close)

static size_t aligned(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static size_t bit_bytes(int64_t tokens)
{
    return ((size_t)tokens + 7) / 8;
}

/* ---- writing ---- */

fsdp_status fsdp__rows_writer_open(fsdp__rows_writer *writer, const char *path, int width)
{
    *writer = (fsdp__rows_writer){.file = {.fd = -1}};
    return fsdp__token_writer_open(&writer->file, path, width, true);
}

static fsdp_status check_ids(const fsdp__rows_writer *w, const int32_t *ids, int64_t count)
{
    int64_t limit = w->file.width == 2 ? UINT16_MAX : INT32_MAX;

    if (count < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot write row %lld of '%s': it has no tokens", (long long)w->rows,
                         w->file.path);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] > limit)
            return FSDP_FAIL(FSDP_INVALID, "cannot write row %lld of '%s': token %d does not fit uint%d",
                             (long long)w->rows, w->file.path, (int)ids[i], w->file.width * 8);
    return FSDP_OK;
}

/* Makes room for the bits of `count` more tokens. */
static fsdp_status reserve_bits(fsdp__rows_writer *w, int64_t count)
{
    int64_t needed = (int64_t)bit_bytes(w->file.tokens + count), before = w->bit_capacity;

    if (needed <= before)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&w->bits, FSDP__MAX(needed, 2 * before), &w->bit_capacity, 1));
    memset(w->bits + before, 0, (size_t)(w->bit_capacity - before));
    return FSDP_OK;
}

static void set_bits(fsdp__rows_writer *w, const bool *learned, int64_t count)
{
    for (int64_t i = 1; i < count; i++) { /* the first of a row is never learned */
        int64_t at = w->file.tokens + i;

        if (learned && !learned[i])
            continue;
        w->bits[at / 8] |= (unsigned char)(1U << at % 8);
        w->learned++;
    }
}

fsdp_status fsdp__rows_writer_add(fsdp__rows_writer *writer, const int32_t *ids, const bool *learned, int64_t count)
{
    FSDP_TRY(check_ids(writer, ids, count));
    FSDP_TRY(reserve_bits(writer, count));
    FSDP_TRY(fsdp__grow(&writer->ends, writer->rows, &writer->end_capacity, sizeof *writer->ends));
    set_bits(writer, learned, count);
    FSDP_TRY(fsdp__token_writer_add(&writer->file, ids, count));
    writer->ends[writer->rows++] = (uint64_t)writer->file.tokens;
    return FSDP_OK;
}

static void fill_header(const fsdp__rows_writer *w, const char *note, unsigned char *header)
{
    int32_t width = w->file.width;

    memset(header, 0, FSDP__TOKEN_HEADER_BYTES);
    memcpy(header, mark, sizeof mark);
    memcpy(header + WIDTH_AT, &width, sizeof width);
    memcpy(header + ROWS_AT, &w->rows, sizeof w->rows);
    memcpy(header + TOKENS_AT, &w->file.tokens, sizeof w->file.tokens);
    memcpy(header + LEARNED_AT, &w->learned, sizeof w->learned);
    header[PAIRS_AT] = w->pairs;
    memcpy(header + NOTE_AT, note, FSDP__MIN(strlen(note), (size_t)FSDP__TOKEN_NOTE_BYTES - 1));
}

/* Writes a part, and zeros up to where the next may begin. */
static fsdp_status write_part(fsdp__rows_writer *w, const void *data, size_t bytes)
{
    static const unsigned char zeros[8];

    FSDP_TRY(fsdp__token_writer_bytes(&w->file, data, bytes));
    return fsdp__token_writer_bytes(&w->file, zeros, aligned(bytes) - bytes);
}

fsdp_status fsdp__rows_writer_finish(fsdp__rows_writer *writer, const char *note)
{
    unsigned char header[FSDP__TOKEN_HEADER_BYTES];
    size_t token_bytes = (size_t)writer->file.tokens * (size_t)writer->file.width;

    if (writer->rows == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot write '%s': there are no rows", writer->file.path);
    FSDP_TRY(fsdp__token_writer_bytes(&writer->file, "\0\0\0\0\0\0\0", aligned(token_bytes) - token_bytes));
    FSDP_TRY(write_part(writer, writer->bits, bit_bytes(writer->file.tokens)));
    FSDP_TRY(write_part(writer, writer->ends, (size_t)writer->rows * sizeof *writer->ends));
    fill_header(writer, note, header);
    return fsdp__token_writer_finish_as(&writer->file, header);
}

void fsdp__rows_writer_close(fsdp__rows_writer *writer)
{
    fsdp__token_writer_close(&writer->file);
    FSDP__FREE_ALL(writer->bits, writer->ends);
    *writer = (fsdp__rows_writer){.file = {.fd = -1}};
}

/* ---- opening ---- */

bool fsdp__rows_begin(const void *data, size_t bytes)
{
    return bytes >= sizeof mark && memcmp(data, mark, sizeof mark) == 0;
}

fsdp_status fsdp__rows_are_at(const char *path, bool *out)
{
    FSDP__CLOSED int fd = -1;
    unsigned char begin[sizeof mark];
    struct stat info;
    size_t bytes = 0;

    *out = false;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < (off_t)sizeof begin)
        return FSDP_OK; /* it may be a pattern; whoever opens it will tell */
    FSDP_TRY(fsdp__file_open(path, &fd, &bytes));
    FSDP_TRY(fsdp__file_pread(fd, path, begin, sizeof begin, 0));
    *out = fsdp__rows_begin(begin, sizeof begin);
    return FSDP_OK;
}

static fsdp_status refuse(const fsdp__rows *rows, const char *why)
{
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read the rows of '%s': %s; in the folder of data.cache the next start makes it again; "
                     "elsewhere, remove it",
                     rows->path, why);
}

/* Takes the counts from the header; `data_bytes` are those between header and checksums. */
static fsdp_status read_header(fsdp__rows *rows, size_t *data_bytes)
{
    const unsigned char *header = rows->map.data;
    uint64_t limit = rows->map.bytes; /* so no product below overflows */
    int32_t width;

    if (!fsdp__rows_begin(header, rows->map.bytes) || rows->map.bytes < FSDP__TOKEN_HEADER_BYTES)
        return refuse(rows, "it does not begin as a file of rows");
    memcpy(&width, header + WIDTH_AT, sizeof width);
    memcpy(&rows->count, header + ROWS_AT, sizeof rows->count);
    memcpy(&rows->tokens, header + TOKENS_AT, sizeof rows->tokens);
    memcpy(&rows->learned, header + LEARNED_AT, sizeof rows->learned);
    rows->pairs = header[PAIRS_AT] != 0;
    if ((width != 2 && width != 4) || (rows->pairs && rows->count % 2 != 0) || (uint64_t)rows->count > limit / 8 ||
        (uint64_t)rows->tokens > limit / 2 || rows->count < 1)
        return refuse(rows, "its header is damaged, or it is cut short");
    rows->width = width;
    rows->bits_at = aligned((size_t)rows->tokens * (size_t)width);
    rows->ends_at = rows->bits_at + aligned(bit_bytes(rows->tokens));
    *data_bytes = rows->ends_at + (size_t)rows->count * sizeof(uint64_t);
    if (rows->map.bytes !=
        FSDP__TOKEN_HEADER_BYTES + *data_bytes + fsdp__token_sums_blocks(*data_bytes) * sizeof(uint64_t))
        return refuse(rows, "its size is not what its header says: it is damaged or cut short");
    return FSDP_OK;
}

static uint64_t end_of(const fsdp__rows *rows, int64_t row)
{
    uint64_t end = 0;

    if (row >= 0)
        memcpy(&end, rows->map.data + FSDP__TOKEN_HEADER_BYTES + rows->ends_at + (size_t)row * sizeof end, sizeof end);
    return end;
}

static fsdp_status compare(const fsdp__rows *rows, size_t begin, size_t end)
{
    return fsdp__token_sums_compare(&rows->sums, rows->path, rows->map.data, begin, end);
}

/* Checks that the ends grow up to the number of tokens, so that no row can be read outside of the file. */
static fsdp_status check_ends(const fsdp__rows *rows)
{
    FSDP_TRY(compare(rows, rows->ends_at, rows->sums.token_bytes));
    for (int64_t row = 0; row < rows->count; row++)
        if (end_of(rows, row) <= end_of(rows, row - 1))
            return refuse(rows, "the ends of its rows are not in order");
    return end_of(rows, rows->count - 1) == (uint64_t)rows->tokens ? FSDP_OK
                                                                   : refuse(rows, "its last row ends elsewhere");
}

static fsdp_status understand(fsdp__rows *rows)
{
    size_t data_bytes = 0;

    FSDP_TRY(read_header(rows, &data_bytes));
    FSDP_TRY(fsdp__token_sums_open(rows->path, rows->map.data, data_bytes, &rows->sums));
    return check_ends(rows);
}

static fsdp_status open_rows(const char *path, bool own, fsdp__rows **out)
{
    FSDP__SCOPED(fsdp__rows_close_at) fsdp__rows *rows = NULL;

    *out = NULL;
    FSDP__TRY_NEW(rows = fsdp__calloc(1, sizeof *rows));
    FSDP__TRY_NEW(rows->path = fsdp__strdup(path));
    FSDP_TRY(own ? fsdp__token_file_map_own(path, &rows->map) : fsdp__file_map(path, &rows->map));
    FSDP_TRY(understand(rows));
    if (own && rows->sums.name != fsdp__token_sums_name(path))
        return FSDP_FAIL(FSDP_FORMAT, "'%s' was not made under this name", path);
    *out = fsdp__take(&rows);
    return FSDP_OK;
}

fsdp_status fsdp__rows_open(const char *path, fsdp__rows **out)
{
    return open_rows(path, false, out);
}

fsdp_status fsdp__rows_open_own(const char *path, fsdp__rows **out)
{
    return open_rows(path, true, out);
}

void fsdp__rows_close(fsdp__rows *rows)
{
    if (!rows)
        return;
    fsdp__file_unmap(&rows->map);
    fsdp__token_sums_release(&rows->sums);
    FSDP__FREE_ALL(rows->path, rows->text, rows);
}

/* ---- reading ---- */

void fsdp__rows_name_text(fsdp__rows *rows, const char *path)
{
    fsdp__free(rows->text);
    rows->text = fsdp__strdup(path); /* without memory the file is named */
}

const char *fsdp__rows_text(const fsdp__rows *rows)
{
    return rows->text ? rows->text : rows->path;
}

int64_t fsdp__rows_count(const fsdp__rows *rows)
{
    return rows->count;
}

int64_t fsdp__rows_length(const fsdp__rows *rows, int64_t row)
{
    return (int64_t)(end_of(rows, row) - end_of(rows, row - 1));
}

const char *fsdp__rows_note(const fsdp__rows *rows)
{
    return (const char *)rows->map.data + NOTE_AT; /* the writer ends it with a NUL, and the seal has been compared */
}

static fsdp_status check_range(const fsdp__rows *rows, int64_t row, int64_t first, int64_t count)
{
    if (row < 0 || row >= rows->count)
        return FSDP_FAIL(FSDP_INVALID, "cannot read row %lld of '%s': it has %lld", (long long)row, rows->path,
                         (long long)rows->count);
    if (first < 0 || count < 0 || first > fsdp__rows_length(rows, row) - count)
        return FSDP_FAIL(FSDP_INVALID, "cannot read %lld tokens at %lld of row %lld of '%s': it has %lld",
                         (long long)count, (long long)first, (long long)row, rows->path,
                         (long long)fsdp__rows_length(rows, row));
    return FSDP_OK;
}

static fsdp_status get_ids(const fsdp__rows *rows, size_t at, size_t count, int32_t *out)
{
    size_t width = (size_t)rows->width;
    const unsigned char *from = rows->map.data + FSDP__TOKEN_HEADER_BYTES + at * width;

    FSDP_TRY(compare(rows, at * width, (at + count) * width));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = 0;

        memcpy(&id, from + i * width, width);
        out[i] = (int32_t)id;
    }
    return FSDP_OK;
}

/* Returns whether a token is learned. */
static bool bit_of(const fsdp__rows *rows, size_t at)
{
    return rows->map.data[FSDP__TOKEN_HEADER_BYTES + rows->bits_at + at / 8] >> at % 8 & 1;
}

static fsdp_status compare_bits(const fsdp__rows *rows, size_t at, size_t count)
{
    return compare(rows, rows->bits_at + at / 8, rows->bits_at + (at + count + 7) / 8);
}

fsdp_status fsdp__rows_get(const fsdp__rows *rows, int64_t row, int64_t first, int64_t count, int32_t *ids,
                           bool *learned)
{
    size_t at;

    FSDP_TRY(check_range(rows, row, first, count));
    at = (size_t)(end_of(rows, row - 1) + (uint64_t)first);
    if (ids)
        FSDP_TRY(get_ids(rows, at, (size_t)count, ids));
    if (!learned)
        return FSDP_OK;
    FSDP_TRY(compare_bits(rows, at, (size_t)count));
    for (size_t i = 0; i < (size_t)count; i++)
        learned[i] = bit_of(rows, at + i);
    return FSDP_OK;
}

fsdp_status fsdp__rows_learned(const fsdp__rows *rows, int64_t row, int64_t first, int64_t count, int64_t *out)
{
    size_t at;

    *out = 0;
    FSDP_TRY(check_range(rows, row, first, count));
    at = (size_t)(end_of(rows, row - 1) + (uint64_t)first);
    FSDP_TRY(compare_bits(rows, at, (size_t)count));
    for (size_t i = 0; i < (size_t)count; i++)
        *out += bit_of(rows, at + i);
    return FSDP_OK;
}

fsdp_status fsdp__rows_check(const fsdp__rows *rows)
{
    return compare(rows, 0, rows->sums.token_bytes);
}

void fsdp__rows_digest(const fsdp__rows *rows, uint64_t out[2])
{
    const unsigned char *sums = rows->map.data + FSDP__TOKEN_HEADER_BYTES + rows->sums.token_bytes;
    uint64_t seed = (uint64_t)rows->count * 2 + (rows->width == 2);

    fsdp__checksum_wide(sums, rows->sums.table_bytes, seed, out);
}
