/* content_check.c - checks whether something can be saved. */
#include "checkpoint/content_check.h"

#include <string.h>

#include "base/text.h"
#include "checkpoint/manifest.h"
#include "state/check.h"
#include "tensor/tensor.h"

#define MOST_STEPS 1000000000000000000 /* of 18 digits in the folder's name */

enum {
    MOST_TEXT_BYTES = 1 << 17 /* of a name or a text: as JSON it may be six times as long, and must still be readable */
};

/* Returns whether the text is not too long, and UTF-8. */
static bool is_text(const char *text)
{
    size_t length = 0;
    uint32_t character;

    if (!text)
        return false;
    for (int bytes; text[length] && length <= MOST_TEXT_BYTES; length += (size_t)bytes) {
        bytes = fsdp__utf8_next(text + length, &character);
        if (bytes == 0)
            return false;
    }
    return length <= MOST_TEXT_BYTES;
}

/* ---- tensors ---- */

static fsdp_status check_section_name(const fsdp_checkpoint_content *content, int index)
{
    const char *name = content->sections[index].name;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    if (!name || !*name || strlen(name) > FSDP__SECTION_BYTES || name[strspn(name, letters)])
        return FSDP_FAIL(FSDP_INVALID,
                         "a section of a checkpoint cannot be called '%s': its name may have at most %d letters, "
                         "digits, '_' and '-'",
                         name ? FSDP__SHOWN_NAME(name) : "", FSDP__SECTION_BYTES);
    for (int i = 0; i < index; i++)
        if (strcmp(content->sections[i].name, name) == 0)
            return FSDP_FAIL(FSDP_INVALID, "a checkpoint has two sections called '%s'", name);
    return FSDP_OK;
}

static fsdp_status check_state(const fsdp_checkpoint_section *section)
{
    fsdp__names meta = {.count = 0}, unwritten = {.count = 0};

    if (!section->state)
        return FSDP_FAIL(FSDP_INVALID, "section '%s' of a checkpoint has no state", section->name);
    for (int64_t i = 0; i < section->state->count; i++) {
        const fsdp_state_dict_entry *entry = &section->state->entries[i];

        if (!is_text(entry->name))
            return FSDP_FAIL(FSDP_INVALID, "a tensor cannot be saved under the name '%s': it is not UTF-8, or too long",
                             FSDP__SHOWN_NAME(entry->name));
        fsdp__name_without_values(entry->tensor, entry->name, &meta, &unwritten);
    }
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE, "section '%s' has tensors on the meta device, without values: %s", section->name,
                         fsdp__names_text(&meta));
    if (unwritten.count > 0)
        return FSDP_FAIL(FSDP_STATE, "section '%s' has tensors that have memory but no values yet: %s", section->name,
                         fsdp__names_text(&unwritten));
    return fsdp__state_dict_check_current(section->state, "save");
}

/* ---- values and files ---- */

static fsdp_status check_values(const fsdp_checkpoint_content *content)
{
    for (int i = 0; i < content->value_count; i++) {
        const fsdp_checkpoint_value *value = &content->values[i];

        if (!is_text(value->name) || !*value->name)
            return FSDP_FAIL(FSDP_INVALID, "value %d of a checkpoint has no name in UTF-8", i);
        if (value->type < FSDP_CHECKPOINT_INTEGER || value->type > FSDP_CHECKPOINT_TEXT)
            return FSDP_FAIL(FSDP_INVALID, "value '%s' of a checkpoint has an unknown type",
                             FSDP__SHOWN_NAME(value->name));
        if (value->type == FSDP_CHECKPOINT_TEXT && !is_text(value->text))
            return FSDP_FAIL(FSDP_INVALID,
                             "value '%s' of a checkpoint is not UTF-8, or longer than %d bytes: put it into a file",
                             FSDP__SHOWN_NAME(value->name), MOST_TEXT_BYTES);
        for (int j = 0; j < i; j++)
            if (strcmp(content->values[j].name, value->name) == 0)
                return FSDP_FAIL(FSDP_INVALID, "a checkpoint has two values called '%s'",
                                 FSDP__SHOWN_NAME(value->name));
    }
    return FSDP_OK;
}

static fsdp_status check_files(const fsdp_checkpoint_content *content)
{
    for (int i = 0; i < content->file_count; i++) {
        const fsdp_checkpoint_file *file = &content->files[i];

        if (!is_text(file->name) || !fsdp__is_small_name(file->name))
            return FSDP_FAIL(FSDP_INVALID, "a file of a checkpoint cannot be called '%s'",
                             file->name ? FSDP__SHOWN_NAME(file->name) : "");
        if (!file->data && file->bytes > 0)
            return FSDP_FAIL(FSDP_INVALID, "file '%s' of a checkpoint has no bytes", FSDP__SHOWN_NAME(file->name));
        for (int j = 0; j < i; j++)
            if (strcmp(content->files[j].name, file->name) == 0)
                return FSDP_FAIL(FSDP_INVALID, "a checkpoint has two files called '%s'", FSDP__SHOWN_NAME(file->name));
    }
    return FSDP_OK;
}

fsdp_status fsdp__content_check(const fsdp_checkpoint_content *content, bool first)
{
    if (content->step < 0 || content->step >= MOST_STEPS)
        return FSDP_FAIL(FSDP_INVALID, "a checkpoint cannot have step %lld", (long long)content->step);
    if (content->section_count < 0 || content->value_count < 0 || content->file_count < 0)
        return FSDP_FAIL(FSDP_INVALID, "a checkpoint cannot have a negative number of sections, values or files");
    if ((content->section_count > 0 && !content->sections) || (content->value_count > 0 && !content->values) ||
        (content->file_count > 0 && !content->files))
        return FSDP_FAIL(FSDP_INVALID,
                         "a checkpoint has %d sections, %d values and %d files, but not each a list of them",
                         content->section_count, content->value_count, content->file_count);
    for (int i = 0; i < content->section_count; i++) {
        FSDP_TRY(check_section_name(content, i));
        FSDP_TRY(check_state(&content->sections[i]));
    }
    if (!first)
        return FSDP_OK;
    FSDP_TRY(check_values(content));
    return check_files(content);
}
