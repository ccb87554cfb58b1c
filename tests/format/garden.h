/* garden.h - folders of a kind of their own, with a gate and flowers, published and looked at. */
#pragma once

#include "format/publish.h"

typedef struct garden {
    fsdp_context *context;
    char *directory, *folder; /* the folder is in the directory, and not there yet */
    fsdp__publish_options options;
    fsdp__publication *publication; /* the last one that was begun */
} garden;

garden garden_create(void);
void garden_free(garden *g);

/* Into the content of the publication that was begun. */
void garden_add(const garden *g, const char *name, const char *text);
/* That the file has the text; NULL: that it is not there. */
void garden_check_file(const char *folder, const char *name, const char *text);

fsdp_status garden_begin(garden *g);
/* A gate, and roses or tulips. */
fsdp_status garden_plant(garden *g, const char *flower, const char *text);
/* That it is so, and nothing is left over. */
void garden_check(const garden *g, const char *flower, const char *text);
