/* archive.c - zip archives, by means of libzip. */
#include "format/archive.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

struct fsdp__archive {
    char *path;
    zip_t *zip;
    zip_file_t *member; /* the one that was read last; NULL: none */
    int64_t member_index;
    bool stored; /* it is not compressed */
    uint64_t at; /* the next byte of it that will be read */
};

/* Fails with the text of the error, and releases it. */
static fsdp_status bad_archive(const char *path, zip_error_t *error)
{
    bool memory = zip_error_code_zip(error) == ZIP_ER_MEMORY;
    fsdp_status status = FSDP_FAIL(memory ? FSDP_NO_MEMORY : FSDP_FORMAT,
                                   "cannot read '%s': not a whole zip archive: %s", path, zip_error_strerror(error));

    zip_error_fini(error);
    return status;
}

/* Opens an archive. The source is taken over, also on failure; NULL: `error` says why. */
static fsdp_status open_source(const char *path, zip_source_t *source, zip_error_t *error, fsdp__archive **out)
{
    fsdp__archive *archive = fsdp__calloc(1, sizeof *archive);
    zip_t *zip = source ? zip_open_from_source(source, ZIP_RDONLY, error) : NULL;

    if (!zip && source)
        zip_source_free(source);
    if (archive)
        archive->path = fsdp__strdup(path);
    if (zip && archive && archive->path) {
        archive->zip = zip;
        *out = archive;
        zip_error_fini(error);
        return FSDP_OK;
    }
    if (zip)
        zip_discard(zip);
    if (archive)
        fsdp__free(archive->path);
    fsdp__free(archive);
    if (!zip)
        return bad_archive(path, error);
    zip_error_fini(error);
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
}

fsdp_status fsdp__archive_open(const char *path, fsdp__archive **out)
{
    zip_source_t *source;
    zip_error_t error;
    FILE *file;
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__file_open(path, &fd, NULL));
    file = fdopen(fd, "rb");
    if (!file)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot open '%s': %s%s", path, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    fd = -1; /* the file's from here on */
    zip_error_init(&error);
    source = zip_source_filep_create(file, 0, -1, &error);
    if (!source)
        fclose(file);
    return open_source(path, source, &error, out);
}

static void close_member(fsdp__archive *archive)
{
    if (archive->member)
        zip_fclose(archive->member);
    archive->member = NULL;
}

void fsdp__archive_close(fsdp__archive *archive)
{
    if (!archive)
        return;
    close_member(archive);
    zip_discard(archive->zip);
    FSDP__FREE_ALL(archive->path, archive);
}

int64_t fsdp__archive_count(const fsdp__archive *archive)
{
    return zip_get_num_entries(archive->zip, 0);
}

const char *fsdp__archive_name(const fsdp__archive *archive, int64_t member)
{
    const char *name = zip_get_name(archive->zip, (zip_uint64_t)member, ZIP_FL_ENC_RAW);

    return name ? name : "";
}

int64_t fsdp__archive_find(const fsdp__archive *archive, const char *name)
{
    return zip_name_locate(archive->zip, name, ZIP_FL_ENC_RAW);
}

static fsdp_status bad_member(const fsdp__archive *archive, int64_t member, const char *why)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': '%s' in it: %s", archive->path,
                     FSDP__SHOWN_NAME(fsdp__archive_name(archive, member)), why);
}

fsdp_status fsdp__archive_size(fsdp__archive *archive, int64_t member, uint64_t *out_bytes)
{
    zip_stat_t info;

    if (zip_stat_index(archive->zip, (zip_uint64_t)member, 0, &info) != 0 || !(info.valid & ZIP_STAT_SIZE))
        return bad_member(archive, member, zip_strerror(archive->zip));
    *out_bytes = info.size;
    return FSDP_OK;
}

static fsdp_status open_member(fsdp__archive *archive, int64_t member)
{
    zip_stat_t info;

    close_member(archive);
    if (zip_stat_index(archive->zip, (zip_uint64_t)member, 0, &info) != 0)
        return bad_member(archive, member, zip_strerror(archive->zip));
    archive->member = zip_fopen_index(archive->zip, (zip_uint64_t)member, 0);
    if (!archive->member)
        return bad_member(archive, member, zip_strerror(archive->zip));
    archive->member_index = member;
    archive->stored = info.valid & ZIP_STAT_COMP_METHOD && info.comp_method == ZIP_CM_STORE;
    archive->at = 0;
    return FSDP_OK;
}

/* Reads on, to the end of `bytes`, which the member must have. */
static fsdp_status read_on(fsdp__archive *archive, void *out, size_t bytes)
{
    char *to = out;

    while (bytes > 0) {
        zip_int64_t got = zip_fread(archive->member, to, bytes);

        if (got <= 0)
            return bad_member(archive, archive->member_index,
                              got < 0 ? zip_file_strerror(archive->member) : "it ends before its size");
        to += got;
        bytes -= (size_t)got;
        archive->at += (uint64_t)got;
    }
    return FSDP_OK;
}

/* Goes to an offset: seeks in a stored member, reads a compressed one up to there. */
static fsdp_status seek(fsdp__archive *archive, int64_t member, uint64_t offset)
{
    char passed[4096];

    if (!archive->member || archive->member_index != member)
        FSDP_TRY(open_member(archive, member));
    if (archive->at != offset && archive->stored) {
        if (zip_fseek(archive->member, (zip_int64_t)offset, SEEK_SET) != 0)
            return bad_member(archive, member, zip_file_strerror(archive->member));
        archive->at = offset;
    }
    if (archive->at > offset)
        FSDP_TRY(open_member(archive, member));
    while (archive->at < offset)
        FSDP_TRY(read_on(archive, passed, FSDP__MIN(sizeof passed, (size_t)(offset - archive->at))));
    return FSDP_OK;
}

fsdp_status fsdp__archive_read(fsdp__archive *archive, int64_t member, uint64_t offset, void *out, size_t bytes)
{
    fsdp_status status = seek(archive, member, offset);

    if (status == FSDP_OK)
        status = read_on(archive, out, bytes);
    if (status != FSDP_OK)
        close_member(archive); /* its position is not known */
    return status;
}
