/* file_digest.c - hashes a file, or pieces of it. */
#include "format/file_digest.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

enum {
    PIECE_BYTES = 16384,
    PIECES = 64 /* a file of up to so many pieces is read whole */
};

static fsdp_status add_piece(int fd, const char *path, off_t at, uint64_t *hash)
{
    char piece[PIECE_BYTES];
    ssize_t got;

    do
        got = pread(fd, piece, sizeof piece, at);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return FSDP_FAIL(FSDP_IO, "cannot read '%s': %s", path, strerrordesc_np(errno));
    *hash = fsdp__hash_bytes(*hash, piece, (size_t)got);
    return FSDP_OK;
}

static fsdp_status add_pieces(int fd, const char *path, off_t bytes, uint64_t *hash)
{
    bool large = bytes > (off_t)PIECES * PIECE_BYTES;
    off_t step = large ? (bytes - PIECE_BYTES) / (PIECES - 1) : PIECE_BYTES;

    for (off_t i = 0; i < PIECES && i * step < bytes; i++)
        FSDP_TRY(add_piece(fd, path, large && i == PIECES - 1 ? bytes - PIECE_BYTES : i * step, hash));
    return FSDP_OK;
}

fsdp_status fsdp__file_digest(const fsdp__directory *in, const char *name, uint64_t *out)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    struct stat info;
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__directory_open_file(in, name, &fd, &info));
    FSDP_TRY(add_pieces(fd, name, info.st_size, &hash));
    *out = hash ? hash : 1;
    return FSDP_OK;
}
