/* prompt.c - gets text from the command line, a file, standard input, or the process that started this rank. */
#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "data/content.h"

#define LIMIT_BYTES ((size_t)1 << 30)

/* Refuses packed and binary contents, and removes a byte order mark at the beginning, which is not part of the text. */
static fsdp_status check_text(const char *path, fsdp__prompt *prompt)
{
    size_t mark = fsdp__utf8_mark(prompt->text, prompt->bytes);

    FSDP_TRY(fsdp__content_refuse(path, NULL, prompt->text, prompt->bytes, false));
    FSDP_TRY(fsdp__content_check_text(path, 0, prompt->text, prompt->bytes));
    prompt->bytes -= mark;
    memmove(prompt->text, prompt->text + mark, prompt->bytes + 1);
    return FSDP_OK;
}

fsdp_status fsdp__prompt_read(const char *path, fsdp__prompt *out)
{
    fsdp_status status;

    FSDP_TRY(
        fsdp__file_read_stream(strcmp(path, "-") == 0 ? "/dev/stdin" : path, LIMIT_BYTES, &out->text, &out->bytes));
    if (out->bytes > 0 && out->text[out->bytes - 1] == '\n')
        out->text[--out->bytes] = '\0';
    status = check_text(path, out);
    if (status == FSDP_OK && out->bytes > 0)
        return FSDP_OK;
    fsdp__prompt_release(out);
    FSDP_TRY(fsdp_fail_prefix(status, "--prompt-file"));
    return FSDP_FAIL(FSDP_INVALID, "--prompt-file: '%s' holds no text: give at least one character", path);
}

fsdp_status fsdp__prompt_copy(const char *text, fsdp__prompt *out)
{
    out->bytes = strlen(text);
    out->text = fsdp__malloc(out->bytes + 1);
    if (!out->text)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read the prompt");
    memcpy(out->text, text, out->bytes + 1);
    return FSDP_OK;
}

void fsdp__prompt_release(fsdp__prompt *prompt)
{
    fsdp__free(prompt->text);
    *prompt = (fsdp__prompt){0};
}

/* ---- from process to process: memory without a name ---- */

fsdp_status fsdp__prompt_hand_over(const fsdp__prompt *prompt, int *out)
{
    FSDP__CLOSED int fd = memfd_create("fsdp-prompt", 0);

    if (fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot hand the prompt to the ranks: %s%s", strerror(errno),
                         fsdp__limit_behind(errno));
    FSDP_TRY(fsdp__file_pwrite(fd, "the prompt", prompt->text, prompt->bytes, 0));
    *out = fd;
    fd = -1;
    return FSDP_OK;
}

fsdp_status fsdp__prompt_take_over(int fd, fsdp__prompt *out)
{
    char path[40];
    fsdp_status status;

    /* The file is opened again, because all ranks inherit one descriptor, and with it one position. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status = fsdp__file_read_stream(path, LIMIT_BYTES, &out->text, &out->bytes);
    close(fd);
    return status;
}
