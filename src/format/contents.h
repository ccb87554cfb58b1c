/* contents.h - what in a folder may be replaced, and what is somebody else's. */
#ifndef FORMAT_CONTENTS_H
#define FORMAT_CONTENTS_H

#include "format/file_list.h"

typedef struct fsdp__content_rules {
    const fsdp__directory *folder;
    const char *const *alone; /* see publish.h */
    bool overwrite;
    const char *hint; /* how to ask for overwriting; NULL: there is no way */
} fsdp__content_rules;

/* Whether the folder may be written to at all: it is empty, has a list that fits, or is to be overwritten. */
fsdp_status fsdp__contents_check(const fsdp__content_rules *rules);
/* Whether files of these names may come into it, and what they replace is as the export left it. */
fsdp_status fsdp__contents_check_new(const fsdp__content_rules *rules, const fsdp__file_list *fresh);
/* Adds the listed files that are as the export left them and that no new one replaces. */
fsdp_status fsdp__contents_gone(const fsdp__content_rules *rules, const fsdp__file_list *fresh, fsdp__file_list *gone);

#endif
