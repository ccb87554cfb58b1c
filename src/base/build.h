/* build.h - which build of this library a process runs, for ranks that compare their builds. */
#pragma once

enum {
    FSDP__BUILD_BYTES = 64
};

/* Says in messages what to do if ranks have several builds. */
#define FSDP__ONE_BUILD "start all ranks from one build, the same on every machine"

/* Writes "0.1.0, build 3fa9...": the version, and the build id of the program or library that contains `address`. The
 * linker computes the id from everything in it, so it is the same for the same sources, compiler and options. Writes
 * "0.1.0, no build id" where it was linked without one. `out` is filled with zeros up to its end. */
void fsdp__build_of(const void *address, char out[FSDP__BUILD_BYTES]);
/* Writes the build of this library, or of the program that it is linked into. */
void fsdp__build_own(char out[FSDP__BUILD_BYTES]);
