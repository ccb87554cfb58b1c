/* build.h - which build of this library a process runs, for ranks that compare it. */
#ifndef BASE_BUILD_H
#define BASE_BUILD_H

enum {
    FSDP__BUILD_BYTES = 64
};

/* What to do where ranks have several, for messages. */
#define FSDP__ONE_BUILD "start all ranks from one build, the same on every machine"

/* "0.1.0, build 3fa9...": the version, and the build id of the program or library that `address` lies in, which the
 * linker makes of all that is in it: the same for the same sources, compiler and options. "0.1.0, no build id" where it
 * was linked without one. `out` is filled with zeros up to its end. */
void fsdp__build_of(const void *address, char out[FSDP__BUILD_BYTES]);
/* Of this library: of the program that it is linked into where it is no library of its own. */
void fsdp__build_own(char out[FSDP__BUILD_BYTES]);

#endif
