/* folder_contents.h - what may be replaced in a folder, and what belongs to somebody else. */
#pragma once

#include "format/file_list.h"

typedef struct fsdp__content_rules {
    const fsdp__directory *folder;
    const char *const *alone; /* see publish.h */
    bool overwrite;
    const char *hint; /* how to ask for overwriting; NULL: it cannot be asked for */
} fsdp__content_rules;

/* Checks whether the folder may be written to at all: it is empty, has a list that matches its files, or is to be
 * overwritten. */
fsdp_status fsdp__contents_check(const fsdp__content_rules *rules);
/* Checks whether files of these names may be put there: what they replace must be as the export left it. */
fsdp_status fsdp__contents_check_new(const fsdp__content_rules *rules, const fsdp__file_list *fresh);
/* Adds the listed files that are still as the export left them and that no new file replaces. */
fsdp_status fsdp__contents_gone(const fsdp__content_rules *rules, const fsdp__file_list *fresh, fsdp__file_list *gone);
