/* calls.h - calls of the system that fail on demand, or say what another machine would hear. A program that uses one of
 * these gets stat, fstat and readdir of its own in front of the C library's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Makes fstat of `path` fail with EIO from here on, in the whole program: fstat of what has this path now (NULL: of
 * nothing any more). */
void test_fail_fstat(const char *path);
/* Does the same for readdir, of all folders. */
void test_fail_readdir(bool fails);
/* From here on each file system has `bytes` free; -1: what it has. */
void test_limit_room(int64_t bytes);
/* From here on stat and fstat give each file system another number, as it has on another machine. */
void test_renumber_devices(bool other);
