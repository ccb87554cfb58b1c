/* jinja_text.h - values as text: as Python prints them, and as its json module writes them. */
#pragma once

#include "chat/jinja_values.h"

/* Appends bytes; a rendering that writes too much fails. */
fsdp_status fsdp__builder_add(fsdp__render *r, fsdp__builder *builder, const char *text, size_t bytes);
void fsdp__builder_release(fsdp__builder *builder);
/* A builder that is released when its scope is left. */
#define FSDP__BUILDER FSDP__SCOPED(fsdp__builder_release) fsdp__builder

/* Appends what str() gives, or repr(): a string in quotes. Undefined is nothing. */
fsdp_status fsdp__jinja_value_print(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out);
fsdp_status fsdp__jinja_value_repr(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out);
/* Makes a string of what str() gives; a string stays as it is. */
fsdp_status fsdp__jinja_value_str(fsdp__render *r, const fsdp__jinja_value *value, fsdp__jinja_string *out);
/* Makes a string value of what a builder holds. */
fsdp_status fsdp__builder_value(fsdp__render *r, const fsdp__builder *builder, fsdp__jinja_value *out);

/* Holds options of json.dumps. */
typedef struct fsdp__json_style {
    const char *indent;           /* NULL: all on one line; one level's white space */
    fsdp__jinja_string item, key; /* separators: after an item, after a key */
    bool ascii, sorted;
} fsdp__json_style;
fsdp_status fsdp__jinja_value_json(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__json_style *style,
                                   fsdp__builder *out);
