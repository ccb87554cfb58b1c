/* keys.c - what a table of config keys says about itself: names, ranges, and the nearest name to a wrong one. */
#include "config/keys.h"

#include <math.h>
#include <string.h>

#include "config/nearest.h"
#include "config/size.h"

const fsdp__key *fsdp__key_find(const fsdp__key_table *table, const char *section, const char *name)
{
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].section, section) == 0 && strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

const fsdp__key *fsdp__key_named(const fsdp__key_table *table, const char *name)
{
    size_t length = strcspn(name, ".");
    char section[64];

    if (!name[length] || length >= sizeof section)
        return NULL;
    snprintf(section, sizeof section, "%.*s", (int)length, name);
    return fsdp__key_find(table, section, name + length + 1);
}

bool fsdp__key_is_nothing(const char *text)
{
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

static void allowed_choices(const fsdp__key *key, char *text, size_t text_bytes)
{
    bool or_integer = key->range & FSDP__OR_INTEGER;
    size_t used = 0;

    for (const fsdp__choice *c = key->choices; c->text && used < text_bytes; c++) {
        const char *before = c == key->choices ? "" : c[1].text || or_integer ? ", " : " or ";

        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", before, c->text);
    }
    if (or_integer && used < text_bytes)
        snprintf(text + used, text_bytes - used, " or an integer from %lld to %lld", (long long)key->least,
                 (long long)key->most);
}

static void allowed_range(const fsdp__key *key, char *text, size_t text_bytes)
{
    bool integer = key->type == FSDP__KEY_INTEGER;
    const char *up_to = key->range & FSDP__BELOW ? " to below" : key->range & FSDP__ABOVE ? " and up to" : " to";
    char least[48], most[64] = "";

    snprintf(least, sizeof least, "%s %.10g", key->range & FSDP__ABOVE ? "greater than" : "from", key->least);
    if (integer)
        snprintf(most, sizeof most, "%s %lld", up_to, (long long)key->most);
    else if (!isinf(key->most))
        snprintf(most, sizeof most, "%s %.10g", up_to, key->most);
    snprintf(text, text_bytes, "%s%s%s%s %s%s", key->choices ? key->choices->text : "", key->choices ? ", " : "",
             key->range & FSDP__OR_MINUS ? "-1 or " : "", integer ? "an integer" : "a number", least, most);
}

static void allowed_maps(const fsdp__key_items *items, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "a list of maps {");

    for (int k = 0; k < items->table.count && used < text_bytes; k++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s: ..", k ? ", " : "", items->table.keys[k].name);
    if (used < text_bytes)
        snprintf(text + used, text_bytes - used, "}");
}

bool fsdp__key_is_list(const fsdp__key *key)
{
    return key->type == FSDP__KEY_PATHS || key->type == FSDP__KEY_PATTERNS || key->type == FSDP__KEY_NAMES;
}

const char *fsdp__key_entry(const fsdp__key *key)
{
    return key->type == FSDP__KEY_PATTERNS ? "pattern" : key->type == FSDP__KEY_NAMES ? "name" : "file";
}

void fsdp__key_allowed(const fsdp__key *key, char *text, size_t text_bytes)
{
    switch (key->type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_NUMBER:
        allowed_range(key, text, text_bytes);
        break;
    case FSDP__KEY_SIZE:
        snprintf(text, text_bytes, "a size (5GB, 500MB, 2GiB) from %s to %s",
                 fsdp__size_write((int64_t)key->least, (char[FSDP__SIZE_TEXT]){0}),
                 fsdp__size_write((int64_t)key->most, (char[FSDP__SIZE_TEXT]){0}));
        break;
    case FSDP__KEY_BOOL:
    case FSDP__KEY_CHOICE:
        allowed_choices(key, text, text_bytes);
        break;
    case FSDP__KEY_TEXT:
        snprintf(text, text_bytes, "a text");
        break;
    case FSDP__KEY_PATHS:
    case FSDP__KEY_PATTERNS:
    case FSDP__KEY_NAMES:
        snprintf(text, text_bytes, "a %s or a list of %ss", fsdp__key_entry(key), fsdp__key_entry(key));
        break;
    case FSDP__KEY_MAPS:
        allowed_maps(key->items, text, text_bytes);
        break;
    }
}

/* ---- unknown names ---- */

/* Lists the sections as "a, b or c". */
static void list_sections(const fsdp__key_table *table, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; table->sections[i] && used < text_bytes; i++) {
        const char *before = i == 0 ? "" : table->sections[i + 1] ? ", " : " or ";

        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", before, table->sections[i]);
    }
}

const char *fsdp__key_of_word(const fsdp__key_table *table, const char *word)
{
    for (const fsdp__key_word *w = table->words; w && w->word; w++)
        if (strcmp(w->word, word) == 0)
            return w->here;
    return NULL;
}

static fsdp_status unknown_section(const fsdp__key_table *table, const char *section)
{
    const char *near = fsdp__nearest(section, table->sections), *here = fsdp__key_of_word(table, section);
    char list[512];

    if (here)
        return FSDP_FAIL(FSDP_INVALID, "%s is not a section: here it is %s", section, here);
    if (near)
        return FSDP_FAIL(FSDP_INVALID, "%s is not a section; did you mean '%s'?", section, near);
    list_sections(table, list, sizeof list);
    return FSDP_FAIL(FSDP_INVALID, "%s is not a section: expected %s", section, list);
}

bool fsdp__key_is_section(const fsdp__key_table *table, const char *section)
{
    for (int i = 0; table->sections[i]; i++)
        if (strcmp(table->sections[i], section) == 0)
            return true;
    return false;
}

fsdp_status fsdp__key_unknown(const fsdp__key_table *table, const char *section, const char *name)
{
    const char *names[FSDP__KEYS_PER_SECTION + 1], *near, *here = name ? fsdp__key_of_word(table, name) : NULL;
    char list[512] = "";
    size_t used = 0;
    int count = 0;

    if (here)
        return FSDP_FAIL(FSDP_INVALID, "%s.%s is not a key: here it is %s", section, name, here);
    if (!name || !fsdp__key_is_section(table, section))
        return unknown_section(table, section);
    for (int i = 0; i < table->count && count < FSDP__KEYS_PER_SECTION; i++)
        if (strcmp(table->keys[i].section, section) == 0)
            names[count++] = table->keys[i].name;
    names[count] = NULL;
    near = fsdp__nearest(name, names);
    if (near)
        return FSDP_FAIL(FSDP_INVALID, "%s.%s is not a key of %s; did you mean '%s'?", section, name, section, near);
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].name, name) == 0)
            return FSDP_FAIL(FSDP_INVALID, "%s.%s is not a key of %s; did you mean '%s.%s'?", section, name, section,
                             table->keys[i].section, name);
    for (int i = 0; i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    return FSDP_FAIL(FSDP_INVALID, "%s.%s is not a key of %s, which has: %s", section, name, section, list);
}
