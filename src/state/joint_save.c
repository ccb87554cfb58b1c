/* joint_save.c - how ranks agree on a save that they make together. */
#include "state/joint_save.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "format/staging.h"

static fsdp_status compare(const fsdp_process_group *group, const fsdp__joint_words *words,
                           const fsdp__joint_share *mine, const fsdp__joint_share *shares)
{
    int64_t written = 0;

    for (int r = 0; r < fsdp_process_group_size(group); r++)
        written += shares[r].written;
    if (shares[0].fingerprint != mine->fingerprint)
        return FSDP_FAIL(FSDP_MISMATCH, "%s: %s differ from those of rank 0", words->failure, words->compared);
    if (written != mine->numel)
        return FSDP_FAIL(FSDP_INVALID, "%s: the ranks of group '%s' write %lld of its %lld elements: all ranks %s",
                         words->failure, fsdp_process_group_name(group), (long long)written, (long long)mine->numel,
                         words->together);
    return FSDP_OK;
}

/* Opens the folders whose paths follow the first rank's share. */
static fsdp_status open_folders(const char *paths, size_t bytes, fsdp__directory *const *folders, int count)
{
    for (int i = 0; i < count; i++) {
        size_t length = strnlen(paths, bytes);

        if (length == bytes)
            return FSDP_FAIL(FSDP_MISMATCH, "rank 0 has not said where it saves");
        FSDP_TRY(fsdp__staging_join(paths, folders[i]));
        paths += length + 1;
        bytes -= length + 1;
    }
    return FSDP_OK;
}

/* Makes what the first rank sends: its share, and the paths of its folders. Other ranks send their share alone. */
static char *make_message(const fsdp__joint_share *mine, fsdp__directory *const *folders, int count, size_t *out_bytes)
{
    size_t bytes = sizeof *mine;
    char *message, *at;

    for (int i = 0; i < count; i++)
        bytes += strlen(folders[i]->path) + 1;
    message = fsdp__malloc(bytes);
    if (!message)
        return NULL;
    memcpy(message, mine, sizeof *mine);
    at = message + sizeof *mine;
    for (int i = 0; i < count; i++)
        at = stpcpy(at, folders[i]->path) + 1;
    *out_bytes = bytes;
    return message;
}

fsdp_status fsdp__joint_greet(fsdp_process_group *group, const fsdp__joint_words *words, const fsdp__joint_share *mine,
                              fsdp__directory *const *folders, int folder_count, fsdp__joint_share **out_shares)
{
    int rank = fsdp_process_group_rank(group), size = fsdp_process_group_size(group);
    FSDP__FREED fsdp__joint_share *shares = fsdp__calloc((size_t)size, sizeof *shares);
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};
    size_t bytes = 0;
    FSDP__FREED char *message = shares ? make_message(mine, folders, rank == 0 ? folder_count : 0, &bytes) : NULL;

    *out_shares = NULL;
    /* A rank without a message would leave the others waiting in the gather. */
    FSDP_TRY(fsdp_agree(group, message ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "%s", words->failure)));
    FSDP_TRY(fsdp__gather(group, message, bytes, &all));
    for (int r = 0; r < size; r++)
        memcpy(&shares[r], all.objects[r], sizeof *shares);
    FSDP_TRY(compare(group, words, mine, shares));
    if (rank != 0)
        FSDP_TRY(open_folders((const char *)all.objects[0] + sizeof *mine, all.bytes[0] - sizeof *mine, folders,
                              folder_count));
    *out_shares = fsdp__take(&shares);
    return FSDP_OK;
}
