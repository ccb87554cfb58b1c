/* answers.h - renders conversations, and finds what of their text is learned. */
#pragma once

#include "chat/chat.h"

/* Holds what is learned of a text, as ranges in their order. */
typedef struct fsdp__ranges {
    fsdp__jinja_range *at;
    int64_t count, capacity;
} fsdp__ranges;
fsdp_status fsdp__ranges_add(fsdp__ranges *ranges, size_t begin, size_t end);
void fsdp__ranges_release(fsdp__ranges *ranges);

#define FSDP__RENDERED FSDP__SCOPED(fsdp__rendered_release) fsdp__rendered

/* Renders the first `count` messages of a conversation; `prompt`: with what begins an answer. `now`: see
 * fsdp_chat_options. */
fsdp_status fsdp__chat_render(const fsdp_chat *chat, const json_t *conversation, size_t count, bool prompt, int64_t now,
                              fsdp__rendered *out);
/* Adds what is learned of `all`, which is the whole conversation's text. */
fsdp_status fsdp__chat_find_learned(const fsdp_chat *chat, const json_t *conversation, const fsdp_chat_options *options,
                                    const fsdp__rendered *all, fsdp__ranges *out);
