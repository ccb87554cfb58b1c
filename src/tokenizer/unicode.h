/* unicode.h - sets of characters by their Unicode properties.
 *
 * The tables are those of the Unicode version that Hugging Face's tokenizers use, whatever the machine has, because ids
 * depend on them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__CHARACTERS = 0x110000,
    FSDP__JOINS = 255 /* no combining class has this number */
};

/* Lists the general categories, in alphabetical order. */
typedef enum fsdp__category {
    FSDP__CC,
    FSDP__CF,
    FSDP__CN,
    FSDP__CO,
    FSDP__CS,
    FSDP__LL,
    FSDP__LM,
    FSDP__LO,
    FSDP__LT,
    FSDP__LU,
    FSDP__MC,
    FSDP__ME,
    FSDP__MN,
    FSDP__ND,
    FSDP__NL,
    FSDP__NO,
    FSDP__PC,
    FSDP__PD,
    FSDP__PE,
    FSDP__PF,
    FSDP__PI,
    FSDP__PO,
    FSDP__PS,
    FSDP__SC,
    FSDP__SK,
    FSDP__SM,
    FSDP__SO,
    FSDP__ZL,
    FSDP__ZP,
    FSDP__ZS,
    FSDP__CATEGORIES
} fsdp__category;

/* Returns the index of the last entry whose bits of `mask` are not above `key`, in a table in which these rise, and
 * begin at or below it. */
size_t fsdp__last_up_to(const uint32_t *entries, size_t count, uint32_t mask, uint64_t key);
fsdp__category fsdp__category_of(uint32_t character);
/* Returns the canonical combining class of a character, or FSDP__JOINS (unicode_data.h). */
unsigned fsdp__combining_class(uint32_t character);
/* Extends the hash by all tables of unicode_data.h, because other tables mean other ids. */
uint64_t fsdp__unicode_hash(uint64_t hash);
/* Returns whether the character is a letter, a mark, a digit or a connector: what `single_word` of added tokens calls
 * part of a word. */
bool fsdp__is_word_character(uint32_t character);

typedef struct fsdp__charset {
    uint64_t words[FSDP__CHARACTERS / 64];
} fsdp__charset;

void fsdp__charset_clear(fsdp__charset *set);
void fsdp__charset_add(fsdp__charset *set, uint32_t first, uint32_t last);
/* Adds the categories in `mask`, where bit c stands for category c. */
void fsdp__charset_add_categories(fsdp__charset *set, uint32_t mask);
/* Adds what Oniguruma's \p{name} means: a category ("Lu"), a group of them ("L"), a script ("Han"), "Any" or
 * "White_Space". Case, spaces, '_' and '-' are ignored. Returns false if the name is none of these. */
bool fsdp__charset_add_property(fsdp__charset *set, const char *name, size_t bytes);
void fsdp__charset_add_white_space(fsdp__charset *set);
/* Adds Oniguruma's \w. Inside a class it stands for a few characters less. */
void fsdp__charset_add_word(fsdp__charset *set, bool in_class);
void fsdp__charset_unite(fsdp__charset *set, const fsdp__charset *other, bool inverted);
bool fsdp__charset_has(const fsdp__charset *set, uint32_t character);
/* Returns the first member from `from` on, or FSDP__CHARACTERS if there is none. */
uint32_t fsdp__charset_next(const fsdp__charset *set, uint32_t from);
