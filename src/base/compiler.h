/* compiler.h - the only place that depends on one compiler or one kind of CPU. */
#ifndef BASE_COMPILER_H
#define BASE_COMPILER_H

#define FSDP__UNUSED __attribute__((unused))
#define FSDP__COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define FSDP__MIN(a, b) ((a) < (b) ? (a) : (b))
#define FSDP__MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
