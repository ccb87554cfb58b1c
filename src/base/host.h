/* host.h - the name of this machine. */
#pragma once

enum {
    FSDP__HOST_BYTES = 65 /* Linux: HOST_NAME_MAX, and a terminating zero */
};

/* Writes the name, for messages and files that people read; "?" where the system does not tell it. Returns `name`. */
const char *fsdp__host_name(char name[FSDP__HOST_BYTES]);
#define FSDP__HOST_NAME fsdp__host_name((char[FSDP__HOST_BYTES]){0})
