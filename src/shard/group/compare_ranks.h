/* compare_ranks.h - a text of lines that all ranks must have alike: parameters, options. */
#pragma once

#include <stdio.h>

#include "shard/group/param_group.h"

/* Writes a line for each parameter of the group, in its order: name, dtype, whole shape, and whether it is frozen. */
void fsdp__write_parameters(FILE *text, const fsdp__param_group *group);
/* Compares a text among all ranks of the mesh. If two ranks differ, both get FSDP_MISMATCH, which names them and the
 * first line that differs; other ranks of a mesh of two dimensions may get FSDP_OK. A rank that has failed before
 * passes NULL: then its groups compare nothing. [collective] */
fsdp_status fsdp__compare_texts(const fsdp__mesh_info *mesh, const char *text);
