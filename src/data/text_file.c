/* text_file.c - reads text as it lies in a file, as zlib and libzstd unpack it, or as Arrow gives it. */
#include "data/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "base/file.h"
#include "data/content.h"
#include "data/parquet.h"

FSDP__SCOPED_POINTER(fsdp__text_file, fsdp__text_file_close)

enum {
    INPUT_BYTES = 1 << 17,
    MAGIC_BYTES = 4,
    HEAD_BYTES = 512,    /* of the unpacked contents: enough to tell what they are */
    WINDOW_LOG_MOST = 27 /* what the zstd program accepts by default: 128 MiB of memory */
};

typedef enum packing {
    PLAIN,
    GZIP,
    ZSTD,
    PARQUET
} packing;

struct fsdp__text_file {
    const char *path;
    int fd;
    packing packing;
    z_stream inflate;
    ZSTD_DStream *zstd;
    fsdp__parquet *parquet;
    int64_t bytes; /* of the file when it was opened */
    bool inside;   /* within a part (a member of gzip, a frame of zstd) */
    bool ended;    /* the end of the file was reached */
    int64_t position;
    fsdp__digest *hash; /* of all bytes up to `position` */
    size_t head_count;  /* of a part's unpacked contents, the first bytes */
    size_t at, count;   /* the unused rest of `input` */
    char head[HEAD_BYTES];
    unsigned char input[INPUT_BYTES];
};

/* ---- names ---- */

/* Returns the length of the name without an ending that says it is packed. */
static size_t unpacked_length(const char *path)
{
    size_t length = strlen(path);

    if (length > 3 && strcasecmp(path + length - 3, ".gz") == 0)
        return length - 3;
    return length > 4 && strcasecmp(path + length - 4, ".zst") == 0 ? length - 4 : length;
}

static bool is_named(const char *path, const char *ending)
{
    size_t length = unpacked_length(path), bytes = strlen(ending);

    return length > bytes && strncasecmp(path + length - bytes, ending, bytes) == 0;
}

bool fsdp__is_json_lines(const char *path)
{
    return is_named(path, ".jsonl") || is_named(path, ".ndjson") || is_named(path, ".json") ||
           fsdp__parquet_is_named(path);
}

bool fsdp__is_document(const char *path)
{
    return is_named(path, ".txt") || is_named(path, ".jsonl") || is_named(path, ".ndjson") ||
           fsdp__parquet_is_named(path);
}

bool fsdp__is_packed(const char *path)
{
    return unpacked_length(path) < strlen(path);
}

/* ---- opening ---- */

static fsdp_status cannot_read(const fsdp__text_file *f, const char *reason)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %s at about offset %lld", f->path, reason,
                     (long long)(f->position - (int64_t)f->count));
}

/* Reads more input after the unused rest. At the end of the file there is none. */
static fsdp_status fill(fsdp__text_file *f)
{
    ssize_t got;

    if (f->count > 0)
        memmove(f->input, f->input + f->at, f->count);
    f->at = 0;
    do
        got = read(f->fd, f->input + f->count, INPUT_BYTES - f->count);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return FSDP_FAIL(FSDP_IO, "cannot read '%s': %s", f->path, strerrordesc_np(errno));
    f->ended = got == 0;
    f->count += (size_t)got;
    f->position += got;
    fsdp__digest_add(f->hash, f->input + f->count - got, (size_t)got);
    return FSDP_OK;
}

static packing packing_of(const unsigned char *at, size_t bytes)
{
    if (bytes >= 2 && at[0] == 0x1f && at[1] == 0x8b)
        return GZIP;
    if (bytes < MAGIC_BYTES)
        return PLAIN;
    if (memcmp(at, "\x28\xb5\x2f\xfd", MAGIC_BYTES) == 0)
        return ZSTD;
    /* A skippable frame. */
    return (at[0] & 0xf0) == 0x50 && memcmp(at + 1, "\x2a\x4d\x18", MAGIC_BYTES - 1) == 0 ? ZSTD : PLAIN;
}

/* Returns how the next bytes are packed, which is never as Parquet. */
static packing find_packing(const fsdp__text_file *f)
{
    return packing_of(f->input + f->at, f->count);
}

bool fsdp__text_is_packed(const void *data, size_t bytes)
{
    return packing_of(data, bytes) != PLAIN;
}

static fsdp_status refuse_strange(const fsdp__text_file *f)
{
    FSDP_TRY(fsdp__content_refuse(f->path, NULL, f->input, f->count, false));
    return fsdp__content_refuse_name(f->path, f->count);
}

static fsdp_status prepare(fsdp__text_file *f)
{
    if (f->packing == GZIP && inflateInit2(&f->inflate, 15 + 16) != Z_OK) {
        f->packing = PLAIN; /* nothing to free */
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot read '%s': out of memory", f->path);
    }
    if (f->packing == ZSTD) {
        f->zstd = ZSTD_createDStream();
        if (!f->zstd)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot read '%s': out of memory", f->path);
        ZSTD_DCtx_setParameter(f->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MOST);
    }
    return f->packing == PARQUET ? fsdp__parquet_open(f->path, &f->parquet) : FSDP_OK;
}

fsdp_status fsdp__text_file_open(const char *path, fsdp__text_file **out)
{
    FSDP__SCOPED(fsdp__text_file_close_at) fsdp__text_file *f = fsdp__calloc(1, sizeof *f);
    struct stat info;

    *out = NULL;
    FSDP__TRY_NEW(f);
    f->path = path;
    f->fd = -1;
    FSDP__TRY_NEW(f->hash = fsdp__digest_create());
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* opening a FIFO must not block */
    if (f->fd < 0 || fstat(f->fd, &info) != 0)
        return fsdp__file_error("open", path);
    if (!S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_IO, "cannot read '%s': it is not a regular file", path);
    f->bytes = info.st_size;
    FSDP_TRY(fill(f));
    f->packing = fsdp__parquet_is_named(path) && fsdp__parquet_begins(f->input, f->count) ? PARQUET : find_packing(f);
    FSDP_TRY(f->packing == PLAIN ? refuse_strange(f) : prepare(f));
    *out = fsdp__take(&f);
    return FSDP_OK;
}

/* ---- reading ---- */

static void use(fsdp__text_file *f, size_t bytes)
{
    f->at += bytes;
    f->count -= bytes;
    f->inside = f->inside || bytes > 0;
}

static fsdp_status read_plain(fsdp__text_file *f, char *into, size_t room, size_t *got)
{
    *got = FSDP__MIN(room, f->count);
    memcpy(into, f->input + f->at, *got);
    use(f, *got);
    f->inside = false;
    return FSDP_OK;
}

static fsdp_status read_gzip(fsdp__text_file *f, char *into, size_t room, size_t *got)
{
    int result;

    f->inflate.next_in = f->input + f->at;
    f->inflate.avail_in = (uInt)f->count;
    f->inflate.next_out = (unsigned char *)into;
    f->inflate.avail_out = (uInt)FSDP__MIN(room, (size_t)1 << 30);
    *got = f->inflate.avail_out;
    result = inflate(&f->inflate, Z_NO_FLUSH);
    use(f, f->count - f->inflate.avail_in);
    *got -= f->inflate.avail_out;
    if (result == Z_STREAM_END) {
        f->inside = false;
        inflateReset(&f->inflate); /* another member may follow */
    } else if (result == Z_MEM_ERROR) {
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot read '%s': out of memory", f->path);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return cannot_read(f, "its gzip data is damaged");
    }
    return FSDP_OK;
}

static fsdp_status read_zstd(fsdp__text_file *f, char *into, size_t room, size_t *got)
{
    ZSTD_inBuffer in = {.src = f->input + f->at, .size = f->count};
    ZSTD_outBuffer out = {.dst = into, .size = room};
    size_t left = ZSTD_decompressStream(f->zstd, &out, &in);

    if (ZSTD_isError(left))
        return cannot_read(f, ZSTD_getErrorName(left));
    use(f, in.pos);
    if (left == 0)
        f->inside = false;
    *got = out.pos;
    return FSDP_OK;
}

/* Reads rows. The bytes of the file are hashed as far as its rows have gone, and at their end to the last. */
static fsdp_status read_parquet(fsdp__text_file *f, char *into, size_t room, size_t *got)
{
    double until;

    FSDP_TRY(fsdp__parquet_read(f->parquet, into, room, got));
    until = fsdp__parquet_progress(f->parquet) * (double)f->bytes;
    while (!f->ended && (*got == 0 || (double)f->position < until)) {
        f->count = 0;
        FSDP_TRY(fill(f));
    }
    f->count = 0;
    return FSDP_OK;
}

static const char *packed_name(const fsdp__text_file *f)
{
    return f->packing == GZIP ? "its gzip data" : "its zstd data";
}

/* Handles the place between two parts: the file ends, or another part begins. After a member of gzip there may be zeros
 * that fill a block of a tape or a device. */
static fsdp_status begin_part(fsdp__text_file *f)
{
    f->head_count = 0;
    for (;;) {
        while (f->packing == GZIP && f->count > 0 && f->input[f->at] == 0) {
            f->at++;
            f->count--;
        }
        if (f->ended || f->count >= MAGIC_BYTES)
            break;
        FSDP_TRY(fill(f));
    }
    if (f->count == 0 || f->packing == PLAIN || find_packing(f) == f->packing)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': after %s there are other bytes, from offset %lld on", f->path,
                     packed_name(f), (long long)fsdp__text_file_position(f));
}

/* Refuses contents that are not text, which includes data that is packed twice. */
static fsdp_status look_inside(fsdp__text_file *f, const char *bytes, size_t count)
{
    size_t more = FSDP__MIN(count, HEAD_BYTES - f->head_count);

    if (f->packing == PLAIN || (more == 0 && f->inside))
        return FSDP_OK;
    memcpy(f->head + f->head_count, bytes, more);
    f->head_count += more;
    if (f->head_count < HEAD_BYTES && f->inside)
        return FSDP_OK;
    return fsdp__content_refuse(f->path, packed_name(f), f->head, f->head_count, false);
}

fsdp_status fsdp__text_file_read(fsdp__text_file *file, char *into, size_t room, size_t *got)
{
    *got = 0;
    if (file->packing == PARQUET)
        return read_parquet(file, into, room, got);
    while (*got == 0) {
        size_t before;

        if (!file->inside)
            FSDP_TRY(begin_part(file));
        else if (file->count == 0 && !file->ended)
            FSDP_TRY(fill(file));
        before = file->count;
        if (before == 0 && !file->inside)
            return FSDP_OK;
        FSDP_TRY(file->packing == GZIP   ? read_gzip(file, into, room, got)
                 : file->packing == ZSTD ? read_zstd(file, into, room, got)
                                         : read_plain(file, into, room, got));
        FSDP_TRY(look_inside(file, into, *got));
        if (*got == 0 && file->count == before) { /* it needs more input */
            if (file->ended)
                return cannot_read(file, "it is cut short");
            FSDP_TRY(fill(file));
        }
    }
    return FSDP_OK;
}

int64_t fsdp__text_file_position(const fsdp__text_file *file)
{
    return file->position - (int64_t)file->count;
}

fsdp__text_hash fsdp__text_file_hash(const fsdp__text_file *file)
{
    uint64_t bits[2];

    fsdp__digest_bits(file->hash, bits);
    return (fsdp__text_hash){.bytes = (uint64_t)file->position, .high = bits[0], .low = bits[1]};
}

fsdp_status fsdp__text_hash_of(const char *path, fsdp__text_hash *out)
{
    FSDP__SCOPED(fsdp__text_file_close_at) fsdp__text_file *f = NULL;

    FSDP_TRY(fsdp__text_file_open(path, &f));
    do {
        f->count = 0;
        FSDP_TRY(fill(f));
    } while (!f->ended);
    *out = fsdp__text_file_hash(f);
    return FSDP_OK;
}

void fsdp__text_file_close(fsdp__text_file *file)
{
    if (!file)
        return;
    if (file->packing == GZIP)
        inflateEnd(&file->inflate);
    ZSTD_freeDStream(file->zstd);
    fsdp__parquet_close(file->parquet);
    fsdp__digest_free(file->hash);
    if (file->fd >= 0)
        close(file->fd);
    fsdp__free(file);
}
