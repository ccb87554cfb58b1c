/* unicode.h - sets of characters, by what Unicode says of them.
 *
 * The tables are of one version, that of Hugging Face's tokenizers, whatever the machine has: ids depend on them. */
#ifndef TOKENIZER_UNICODE_H
#define TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__CHARACTERS = 0x110000
};

/* In the order of their names. */
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

/* The value of the run that `character` is in (unicode_data.h). */
unsigned fsdp__run_value(const uint32_t *runs, size_t count, uint32_t character);
/* Goes on with the hash of all tables of unicode_data.h: other tables, other ids. */
uint64_t fsdp__unicode_hash(uint64_t hash);
/* Letters, marks, digits and what joins them, as single_word of added tokens takes it. */
bool fsdp__is_word_character(uint32_t character);

typedef struct fsdp__charset {
    uint64_t words[FSDP__CHARACTERS / 64];
} fsdp__charset;

void fsdp__charset_clear(fsdp__charset *set);
void fsdp__charset_add(fsdp__charset *set, uint32_t first, uint32_t last);
/* `mask` has bit c for category c. */
void fsdp__charset_add_categories(fsdp__charset *set, uint32_t mask);
/* What \p{name} of Oniguruma means: a category ("Lu"), a group of them ("L"), a script ("Han"), "Any" or "White_Space";
 * case, spaces, '_' and '-' do not count. false: none of these. */
bool fsdp__charset_add_property(fsdp__charset *set, const char *name, size_t bytes);
void fsdp__charset_add_white_space(fsdp__charset *set);
/* Oniguruma's \w, which stands for a few characters less in a class. */
void fsdp__charset_add_word(fsdp__charset *set, bool in_class);
void fsdp__charset_unite(fsdp__charset *set, const fsdp__charset *other, bool inverted);
bool fsdp__charset_has(const fsdp__charset *set, uint32_t character);
/* The first member from `from` on; FSDP__CHARACTERS: there is none. */
uint32_t fsdp__charset_next(const fsdp__charset *set, uint32_t from);

#endif
