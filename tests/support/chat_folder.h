/* chat_folder.h - a folder with a tokenizer of three special tokens and 256 bytes, and a chat template. */
#pragma once

/* Writes tokenizer.json (ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>, 3 + byte), tokenizer_config.json, and
 * chat_template.jinja (NULL: none). */
void chat_folder_write(const char *folder, const char *chat_template);

/* Templates of turns: with `generation` blocks, and without. */
extern const char chat_template_marked[], chat_template_plain[];
