/* manifest_check.h - checks whether a manifest is that of a whole checkpoint. */
#pragma once

#include "checkpoint/manifest.h"

/* Checks that every element of every tensor lies in one part, that every byte of a file's data belongs to one part, and
 * that names are allowed ones. Gives parts the names of their files. `path` is for messages, which name tensor and
 * file. */
fsdp_status fsdp__manifest_check(const char *path, fsdp__manifest *m);
