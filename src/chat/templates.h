/* templates.h - where the chat templates of a folder are. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "fsdp/status.h"

enum {
    FSDP__TEMPLATE_BYTES = 4 << 20, /* of a file, at most */
    FSDP__CHAT_CONFIG_BYTES = 64 << 20
};

/* A template; all zero: there is none. */
typedef struct fsdp__template {
    char *name; /* for messages: its file, or "tokenizer_config.json (chat_template)" */
    char *text;
    size_t bytes;
} fsdp__template;

typedef struct fsdp__templates {
    fsdp__template usual, tool_use; /* the second for conversations with tools */
} fsdp__templates;

/* Reads what a folder has: chat_template.jinja, or chat_template of tokenizer_config.json (a text, or a list with
 * `default` and `tool_use`), or of chat_template.json; and additional_chat_templates/tool_use.jinja. Release them, also
 * after a failure. */
fsdp_status fsdp__templates_read(const char *folder, fsdp__templates *out);
/* Reads a JSON file of a folder, if it is there; otherwise `*out` stays NULL. fsdp__free `path`, which messages name.
 */
fsdp_status fsdp__chat_config_read(const char *folder, const char *name, char **path, json_t **out);
/* Reads one file in place of the usual template. */
fsdp_status fsdp__template_read(const char *path, fsdp__template *out);
void fsdp__templates_release(fsdp__templates *all);
