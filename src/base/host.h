/* host.h - what this machine is called. */
#ifndef BASE_HOST_H
#define BASE_HOST_H

enum {
    FSDP__HOST_BYTES = 65 /* Linux: HOST_NAME_MAX, and its end */
};

/* For messages and files that people read; "?" where the system does not say. */
void fsdp__host_name(char name[FSDP__HOST_BYTES]);

#endif
