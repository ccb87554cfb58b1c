/* token_cache.c - names of hashes, and a lock while tokens are made. */
#include "data/token_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/directory.h"
#include "base/file.h"
#include "chat/chat.h"
#include "data/encode_piece.h"
#include "data/files.h"
#include "data/rows.h"
#include "data/text_file.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "tokenizer/tokenizer.h"

FSDP__SCOPED_POINTER(fsdp__rows, fsdp__rows_close)

enum {
    NAME_VERSION = 3, /* change it when tokens are made in another way */
    ROWS_VERSION = 2, /* change it when rows are, or other rows are refused */
    WAIT_NS = 20 * 1000 * 1000
};
#define LEADER_NS ((int64_t)10 * 1000 * 1000 * 1000)

/* ---- the name ---- */

/* Files, and the hash that each had when it became part of the name. */
typedef struct hashed_files {
    fsdp__data_files list;
    fsdp__text_hash *hashes;
} hashed_files;

static fsdp_status hashed_files_open(const char *const *paths, int count, hashed_files *out)
{
    FSDP_TRY(fsdp__data_files_list(paths, count, FSDP__LIST_DOCUMENTS, &out->list));
    FSDP__TRY_NEW(out->hashes = fsdp__calloc((size_t)out->list.count, sizeof *out->hashes));
    for (int64_t i = 0; i < out->list.count; i++)
        FSDP_TRY(fsdp__text_hash_of(out->list.paths[i], &out->hashes[i]));
    return FSDP_OK;
}

static void hashed_files_release(hashed_files *files)
{
    fsdp__data_files_release(&files->list);
    fsdp__free(files->hashes);
}

static void hash_text(fsdp__digest *digest, const char *text)
{
    fsdp__digest_add(digest, text ? text : "", text ? strlen(text) + 1 : 0);
    fsdp__digest_add(digest, text ? "+" : "-", 1);
}

/* Hashes what decides the rows of conversations; nothing where there are none. */
static void hash_chat(fsdp__digest *digest, const fsdp_tokenize_options *o)
{
    const uint64_t hashed[] = {o->chat ? fsdp__chat_hash(o->chat) : 0, (uint64_t)o->chat_kind, o->learn_all,
                               ROWS_VERSION};

    if (o->chat)
        fsdp__digest_add(digest, hashed, sizeof hashed);
}

static void hash_all(fsdp__digest *digest, const hashed_files *files, const fsdp_tokenize_options *o)
{
    const unsigned char flags[] = {NAME_VERSION, o->no_eos, o->plain_specials, o->replace_invalid, o->skip_bad_lines};

    fsdp__digest_add(digest, flags, sizeof flags);
    hash_text(digest, o->field ? o->field : "text");
    hash_text(digest, o->separator);
    hash_chat(digest, o);
    for (int64_t i = 0; i < files->list.count; i++) {
        fsdp__digest_add(digest, &files->hashes[i], sizeof files->hashes[i]);
        fsdp__digest_add(digest, &(unsigned char){fsdp__is_json_lines(files->list.paths[i])}, 1);
    }
}

static fsdp_status find_name(const fsdp_tokenizer *tokenizer, const hashed_files *files,
                             const fsdp_tokenize_options *options, const char *folder, char **out)
{
    FSDP__SCOPED(fsdp__digest_free_at) fsdp__digest *digest = fsdp__digest_create();
    uint64_t hash[2];
    char name[80];

    FSDP__TRY_NEW(digest);
    hash_all(digest, files, options);
    fsdp__digest_bits(digest, hash);
    snprintf(name, sizeof name, "%s-%016llx%016llx-tokenizer-%016llx.bin", options->chat ? "rows" : "text",
             (unsigned long long)hash[0], (unsigned long long)hash[1],
             (unsigned long long)fsdp__tokenizer_hash(tokenizer));
    *out = fsdp__path_join(folder, name);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- what has the name ---- */

/* Compares the whole file with its checksums and name, and takes over its note about its tokens, whoever has made
 * it. */
static fsdp_status compare_rows(fsdp__cached_tokens *tokens)
{
    FSDP__SCOPED(fsdp__rows_close_at) fsdp__rows *rows = NULL;

    FSDP_TRY(fsdp__rows_open_own(tokens->path, &rows));
    FSDP_TRY(fsdp__rows_check(rows));
    snprintf(tokens->left_out, sizeof tokens->left_out, "%s", fsdp__rows_note(rows));
    return FSDP_OK;
}

static fsdp_status compare_whole(fsdp__cached_tokens *tokens)
{
    FSDP__SCOPED(fsdp__token_file_close) fsdp__token_file file = {.path = tokens->path};

    FSDP_TRY(fsdp__token_file_open_own(&file, tokens->path));
    FSDP_TRY(fsdp__token_file_compare(&file, 0, file.count));
    snprintf(tokens->left_out, sizeof tokens->left_out, "%s", fsdp__token_header_note(file.map.data));
    return FSDP_OK;
}

/* Looks whether intact tokens are there. A file that is damaged or another one does not count; that is noted. */
static fsdp_status look(fsdp__cached_tokens *tokens, bool rows, bool *out_there)
{
    fsdp_status status = rows ? compare_rows(tokens) : compare_whole(tokens);

    *out_there = status == FSDP_OK;
    tokens->damaged = tokens->damaged || status == FSDP_FORMAT;
    if (status != FSDP_FORMAT && status != FSDP_NOT_FOUND)
        return status;
    fsdp_clear_error();
    return FSDP_OK;
}

/* ---- a folder that others may write to ---- */

/* Replaces a name by one of this user's own. Whoever may write to the folder can give other tokens any name. */
static fsdp_status make_own(char **path)
{
    char *own = fsdp__sprintf("%.*s-user-%u.bin", (int)(strlen(*path) - strlen(".bin")), *path, (unsigned)geteuid());

    FSDP__TRY_NEW(own);
    fsdp__free(*path);
    *path = own;
    return FSDP_OK;
}

/* Chooses a name in the folder. Tokens that another user has made are not used: they could have been made from any
 * text. */
static fsdp_status choose_in(const fsdp__directory *folder, char **path)
{
    struct stat own, found;
    bool there = fsdp__directory_look(folder, strrchr(*path, '/') + 1, &found);

    if (fstat(folder->fd, &own) != 0)
        return fsdp__file_error("examine", folder->path);
    if (there ? fsdp__directory_trusts(folder, &found)
              : !fsdp__directory_is_shared(folder) || fsdp__directory_owns(folder, &own))
        return FSDP_OK;
    if (there && faccessat(folder->fd, ".", W_OK, AT_EACCESS) != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' belongs to user %u, and only tokens of your own or of root are used: copy it to a "
                         "folder of yours and name that (data.cache; fsdp eval: --cache), or let root own it",
                         *path, (unsigned)found.st_uid);
    FSDP_TRY(make_own(path));
    there = fsdp__directory_look(folder, strrchr(*path, '/') + 1, &found);
    return there && !fsdp__directory_trusts(folder, &found) ? fsdp__token_file_refuse(*path, &found) : FSDP_OK;
}

/* Names the key of the folder: it may be the default, which the user has not named. */
static fsdp_status name_cache(fsdp_status status)
{
    return fsdp_fail_prefix(status,
                            "cannot keep tokens of text in data.cache (fsdp eval: --cache; name another folder)");
}

static fsdp_status choose_name(const char *folder, char **path)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory held = {0};

    if (!fsdp__path_exists(folder))
        return FSDP_OK;
    FSDP_TRY(name_cache(fsdp__directory_open(folder, &held)));
    return choose_in(&held, path);
}

/* ---- the lock ---- */

typedef struct cache_lock {
    fsdp__directory in;
    char *name;
    int fd; /* -1: it is not open */
} cache_lock;

/* Opens a lock file that only this user can open, and therefore hold. */
static fsdp_status open_lock(const char *path, cache_lock *lock)
{
    FSDP__FREED char *whole = fsdp__sprintf("%s.lock", path);
    struct stat info;

    FSDP__TRY_NEW(whole);
    FSDP_TRY(fsdp__directory_of(whole, &lock->in, &lock->name));
    lock->fd = openat(lock->in.fd, lock->name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    if (lock->fd < 0)
        return name_cache(fsdp__file_error("create", whole));
    if (fstat(lock->fd, &info) != 0)
        return fsdp__file_error("examine", whole);
    if (!S_ISREG(info.st_mode) || !fsdp__directory_admits(&lock->in, &info))
        return fsdp__token_file_refuse(whole, &info);
    return FSDP_OK;
}

static void close_lock(cache_lock *lock)
{
    if (lock->fd >= 0)
        (void)close(lock->fd);
    fsdp__directory_close(&lock->in);
    fsdp__free(lock->name);
}

/* Tries to take the lock. Returns true if nobody makes tokens; with LOCK_SH others may be asking at the same time. */
static bool take_lock(int fd, int kind)
{
    return flock(fd, kind | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR); /* some systems have no locks */
}

static void sleep_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
}

/* Waits until somebody else makes the tokens or has made them, or until nobody seems to begin. */
static void wait_for_leader(const char *path, int fd)
{
    for (int64_t waited = 0; waited < LEADER_NS && !fsdp__path_exists(path); waited += WAIT_NS) {
        if (!take_lock(fd, LOCK_SH))
            return;
        (void)flock(fd, LOCK_UN);
        sleep_a_moment();
    }
}

/* ---- all ---- */

typedef struct request {
    const fsdp_tokenizer *tokenizer;
    const hashed_files *files;
    bool leads;
    const fsdp_tokenize_options *options;
} request;

/* Makes the tokens, holding the lock. It is released when its file is closed, or when the process ends. */
static fsdp_status make_locked(const request *r, fsdp__cached_tokens *out, int fd)
{
    bool there;

    if (!r->leads)
        wait_for_leader(out->path, fd);
    while (!take_lock(fd, LOCK_EX))
        sleep_a_moment();
    FSDP_TRY(look(out, r->options->chat != NULL, &there));
    if (there) /* somebody made it in the meantime */
        return FSDP_OK;
    FSDP_TRY(
        fsdp__tokenize_files(r->tokenizer, &r->files->list, r->files->hashes, out->path, r->options, &out->summary));
    (void)fsdp__left_out_text(&out->summary, out->left_out);
    out->made = true;
    return FSDP_OK;
}

static fsdp_status make(const request *r, fsdp__cached_tokens *out)
{
    FSDP__SCOPED(close_lock) cache_lock lock = {.fd = -1};

    FSDP_TRY(open_lock(out->path, &lock));
    FSDP_TRY(make_locked(r, out, lock.fd));
    (void)unlinkat(lock.in.fd, lock.name, 0); /* whoever waits for it finds the tokens */
    return FSDP_OK;
}

static fsdp_status find_or_make(const request *r, const char *folder, fsdp__cached_tokens *out)
{
    bool there;
    fsdp_status status;

    FSDP_TRY(name_cache(fsdp__make_directories(folder)));
    FSDP_TRY(look(out, r->options->chat != NULL, &there));
    if (there)
        return FSDP_OK;
    status = make(r, out);
    if (status != FSDP_OK && out->damaged)
        return fsdp_fail_prefix(status, "the tokens in '%s' are damaged, and could not be made again", out->path);
    return status;
}

fsdp_status fsdp__token_cache_get(const fsdp_tokenizer *tokenizer, const char *const *paths, int count,
                                  const char *folder, bool leads, const fsdp_tokenize_options *options,
                                  fsdp__cached_tokens *out)
{
    FSDP__SCOPED(hashed_files_release) hashed_files files = {0};
    const request r = {.tokenizer = tokenizer, .files = &files, .leads = leads, .options = options};
    fsdp_status status = hashed_files_open(paths, count, &files);

    *out = (fsdp__cached_tokens){0};
    if (status == FSDP_OK)
        status = find_name(tokenizer, &files, options, folder, &out->path);
    if (status == FSDP_OK)
        status = choose_name(folder, &out->path);
    if (status == FSDP_OK)
        status = find_or_make(&r, folder, out);
    if (status != FSDP_OK)
        fsdp__free(fsdp__take(&out->path));
    return status;
}
