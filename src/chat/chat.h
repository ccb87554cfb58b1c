/* chat.h - the parts of a chat. */
#pragma once

#include <jansson.h>

#include "chat/jinja.h"
#include "fsdp/chat.h"

struct fsdp_chat {
    const fsdp_tokenizer *tokenizer;
    fsdp__jinja *usual, *tool_use; /* the templates; NULL: none */
    json_t *tokens;                /* the special tokens by their names: {"bos_token": "<s>"} */
    char *folder;                  /* for messages; NULL: none */
    uint64_t hash;                 /* of all that decides ids and masks beside the tokenizer */
};

/* Returns a hash of all that decides what a row becomes, but the tokenizer and the time. A template that asks for the
 * time gives other ids tomorrow: the local day is part of the hash then. */
uint64_t fsdp__chat_hash(const fsdp_chat *chat);

/* ---- formats ---- */

/* Returns what a parsed row is. */
fsdp_chat_kind fsdp__chat_kind_of(const json_t *row);
/* Makes a conversation of a row, or one of the two of a pair: {"messages": [...], "tools": ..., "chat_template_kwargs":
 * ..., "prompt_messages": N, "whole": true}. N is how many messages are a prompt, of which nothing is learned; `whole`
 * says that of the rest white space at the end is learned, too. The caller json_decref's it. */
fsdp_status fsdp__chat_conversation(const json_t *row, fsdp_chat_kind kind, bool rejected, json_t **out);
/* Returns whether a message of a conversation does not say that it is not learned. */
bool fsdp__chat_is_learned(const json_t *message);

FSDP__SCOPED_POINTER(fsdp_chat, fsdp_chat_close)
