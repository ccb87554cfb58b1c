/* tokenizer.c - the files of a model folder that belong to its tokenizer. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "hub/hold.h"

#define LIMIT_BYTES ((size_t)1 << 30)

static const char *const files[] = {
    "tokenizer.json", "tokenizer_config.json",   "tokenizer.model",   "vocab.json",
    "merges.txt",     "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
};

static fsdp_status copy_file(const char *from, const char *to)
{
    fsdp_status status;
    size_t bytes = 0;
    char *data = NULL;

    if (!fsdp__path_exists(from))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(from, LIMIT_BYTES, &data, &bytes));
    status = fsdp__file_write_atomic(to, data, bytes);
    fsdp__free(data);
    return status;
}

fsdp_status fsdp_hub_copy_tokenizer(const char *from, const char *to)
{
    fsdp_status status = FSDP_OK;

    if (!from || !to)
        return FSDP_FAIL(FSDP_INVALID, "cannot copy a tokenizer: from and to are required");
    for (size_t i = 0; i < FSDP__COUNT_OF(files) && status == FSDP_OK; i++) {
        char *source = fsdp__path_join(from, files[i]), *target = source ? fsdp__path_join(to, files[i]) : NULL;

        status = target ? copy_file(source, target)
                        : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot copy the tokenizer of '%s'", from);
        fsdp__free(target);
        fsdp__free(source);
    }
    return status;
}

/* What copy_file will want of it, hours from now. */
static fsdp_status check_file(const char *path, const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return FSDP_FAIL(FSDP_IO, "cannot read '%s' of the tokenizer: it is not a regular file", path);
    if (access(path, R_OK) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot read '%s' of the tokenizer: %s", path, strerrordesc_np(errno));
    if ((uint64_t)info->st_size > LIMIT_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s' of the tokenizer: it is larger than %zu bytes", path,
                         LIMIT_BYTES);
    return FSDP_OK;
}

fsdp_status fsdp__hub_list_tokenizer(const char *folder, fsdp__file_list *list)
{
    fsdp_status status = FSDP_OK;

    for (size_t i = 0; i < FSDP__COUNT_OF(files) && status == FSDP_OK; i++) {
        char *path = fsdp__path_join(folder, files[i]);
        struct stat info;

        if (!path)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list the tokenizer of '%s'", folder);
        if (stat(path, &info) == 0) {
            status = check_file(path, &info);
            if (status == FSDP_OK)
                status = fsdp__file_list_add(list, files[i], (uint64_t)info.st_size);
        }
        fsdp__free(path);
    }
    return status;
}
