/* config.c - creates, sets and prints a whole config by its table of keys. */
#include "config/config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "config/yaml.h"

#define LARGEST_FILE ((size_t)4 << 20) /* of YAML: most of that can only be names of data files */

/* ---- life ---- */

/* Checks that the table fits: the YAML reader has room for only so many keys. */
static fsdp_status check_table(const fsdp__key_table *table)
{
    int sections = 0;

    for (; table->sections[sections]; sections++) {
        int count = 0;

        for (int i = 0; i < table->count; i++)
            count += strcmp(table->keys[i].section, table->sections[sections]) == 0;
        if (count > FSDP__KEYS_PER_SECTION)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "section %s has %d keys: at most %d are possible",
                             table->sections[sections], count, FSDP__KEYS_PER_SECTION);
    }
    if (sections > FSDP__KEY_SECTIONS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a config has %d sections: at most %d are possible", sections,
                         FSDP__KEY_SECTIONS);
    return FSDP_OK;
}

fsdp_status fsdp__config_default(const fsdp__key_table *table, void *config)
{
    FSDP_TRY(check_table(table));
    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];

        FSDP_TRY(fsdp__key_set(config, key, key->initial ? key->initial : ""));
    }
    return FSDP_OK;
}

void fsdp__config_release(const fsdp__key_table *table, void *config)
{
    for (int i = 0; i < table->count; i++)
        fsdp__key_release(config, &table->keys[i]);
}

fsdp_status fsdp__config_check(const fsdp__key_table *table, const void *config)
{
    for (int i = 0; i < table->count; i++)
        FSDP_TRY(fsdp__key_check(config, &table->keys[i]));
    return FSDP_OK;
}

/* ---- setting ---- */

static fsdp_status copy_text(char *const *from, char **to)
{
    char *copy = *from ? fsdp__strdup(*from) : NULL;

    if (*from && !copy)
        return FSDP_NO_MEMORY;
    fsdp__free(*to);
    *to = copy;
    return FSDP_OK;
}

static size_t value_bytes(fsdp__key_type type)
{
    switch (type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_SIZE:
        return sizeof(int64_t);
    case FSDP__KEY_NUMBER:
        return sizeof(double);
    case FSDP__KEY_BOOL:
        return sizeof(bool);
    default:
        return sizeof(int);
    }
}

static fsdp_status copy_maps(const fsdp__key *key, const void *from, void *to)
{
    int64_t count;
    void *maps = fsdp__key_maps(from, key, &count);
    void *copy = fsdp__calloc((size_t)FSDP__MAX(count, 1), key->items->bytes);
    fsdp_status status = copy ? FSDP_OK : FSDP_NO_MEMORY;

    for (int64_t i = 0; i < count && status == FSDP_OK; i++)
        status = fsdp__config_copy(&key->items->table, fsdp__key_map(key, maps, i), fsdp__key_map(key, copy, i));
    if (status == FSDP_OK)
        fsdp__key_take_maps(to, key, copy, count);
    else if (copy)
        fsdp__key_free_maps(key, copy, count);
    return status;
}

fsdp_status fsdp__config_copy(const fsdp__key_table *table, const void *from, void *to)
{
    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];
        const char *source = (const char *)from + key->offset;
        char *target = (char *)to + key->offset;

        if (key->type == FSDP__KEY_TEXT)
            FSDP_TRY(copy_text((char *const *)source, (char **)target));
        else if (fsdp__key_is_list(key))
            FSDP_TRY(fsdp__key_set_paths(to, key, *(const char *const *const *)source,
                                         *(const int64_t *)(source + sizeof(char **))));
        else if (key->type == FSDP__KEY_MAPS)
            FSDP_TRY(copy_maps(key, from, to));
        else
            memcpy(target, source, value_bytes(key->type));
    }
    return FSDP_OK;
}

fsdp_status fsdp__config_load(const fsdp__key_table *table, void *config, const char *path)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read_stream(path, LARGEST_FILE, &text, &bytes));
    return fsdp__yaml_apply(table, config, path, text, bytes);
}

/* Finds a key by "section.name". */
static fsdp_status find(const fsdp__key_table *table, const char *key, const fsdp__key **out)
{
    const char *dot = strchr(key, '.');
    char section[64];

    if (!dot || (size_t)(dot - key) >= sizeof section)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is not a key: expected section.name, such as %s", key, table->example);
    memcpy(section, key, (size_t)(dot - key));
    section[dot - key] = '\0';
    *out = fsdp__key_find(table, section, dot + 1);
    return *out ? FSDP_OK : fsdp__key_unknown(table, section, dot + 1);
}

fsdp_status fsdp__config_set(const fsdp__key_table *table, void *config, const char *key, const char *value)
{
    const fsdp__key *found = NULL;

    FSDP_TRY(find(table, key, &found));
    if (found->type == FSDP__KEY_MAPS && !fsdp__key_is_nothing(value))
        return fsdp__yaml_maps(config, found, value, false);
    return fsdp__key_set(config, found, value);
}

fsdp_status fsdp__config_add(const fsdp__key_table *table, void *config, const char *key, const char *value)
{
    const fsdp__key *found = NULL;

    FSDP_TRY(find(table, key, &found));
    if (found->type == FSDP__KEY_MAPS)
        return fsdp__key_is_nothing(value) ? FSDP_OK : fsdp__yaml_maps(config, found, value, true);
    return fsdp__key_is_list(found) ? fsdp__key_add_paths(config, found, value) : fsdp__key_set(config, found, value);
}

/* ---- printing ---- */

/* Prints "trace:" in front of the first of the keys "trace.path", ..; `within` and `length` are what the key before was
 * within. Returns the rest of the name. */
static const char *print_holder(const char *name, const char **within, int *length, FILE *stream)
{
    const char *dot = strchr(name, '.');
    int holder = dot ? (int)(dot - name) : 0;

    if (dot && (holder != *length || strncmp(name, *within, (size_t)holder) != 0))
        fprintf(stream, "  %.*s:\n", holder, name);
    *within = name;
    *length = holder;
    return dot ? dot + 1 : name;
}

fsdp_status fsdp__config_print(const fsdp__key_table *table, const void *config, FILE *stream)
{
    const char *section = "", *within = "";
    int length = 0;

    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];
        const char *name = key->name;

        if (strcmp(section, key->section) != 0) {
            fprintf(stream, "%s:\n", key->section);
            length = 0;
        }
        section = key->section;
        name = print_holder(name, &within, &length, stream);
        if (!fsdp__key_is_set(config, key)) {
            fprintf(stream, "%s# %s:\n", length ? "    " : "  ", name);
            continue;
        }
        fprintf(stream, "%s%s: ", length ? "    " : "  ", name);
        fsdp__key_print(config, key, stream);
        fputc('\n', stream);
    }
    return ferror(stream) ? FSDP_FAIL(FSDP_IO, "cannot print the config") : FSDP_OK;
}

/* Prints a text in lines of at most 80 columns, where there is a space to break at. The first one begins where the
 * stream is, at column `at`, and the others at `indent`. The text's own lines after its first are a list: what does not
 * fit one of them is indented by two more. */
static void print_wrapped(const char *text, int at, int indent, FILE *stream)
{
    const int columns = 80;
    int hang = indent;
    bool begins = true; /* the line has no word yet */

    while (*text) {
        int word = (int)strcspn(text, " \n");

        if (!begins && at + 1 + word > columns)
            at = fprintf(stream, "\n%*s", hang, "") - 1;
        else if (!begins)
            at += fprintf(stream, " ");
        at += fprintf(stream, "%.*s", word, text);
        begins = text[word] == '\n';
        if (begins) {
            at = fprintf(stream, "\n%*s", indent, "") - 1;
            hang = indent + 2;
        }
        text += word + (text[word] != '\0');
    }
    fputc('\n', stream);
}

enum {
    HELP_COLUMN = 6,
    ALLOWED_COLUMN = 30
};

/* Prints a key that is called `name` here. */
static void print_help(const fsdp__key *key, const char *name, FILE *stream)
{
    char allowed[256];
    size_t length;

    fsdp__key_allowed(key, allowed, sizeof allowed);
    length = strlen(allowed);
    if (key->initial)
        snprintf(allowed + length, sizeof allowed - length, "; default %s", key->initial);
    else if (key->range & FSDP__REQUIRED)
        snprintf(allowed + length, sizeof allowed - length, "; must be given");
    print_wrapped(allowed, fprintf(stream, "  %-27s ", name), ALLOWED_COLUMN, stream);
    fprintf(stream, "%*s", HELP_COLUMN, "");
    print_wrapped(key->help, HELP_COLUMN, HELP_COLUMN, stream);
    for (int k = 0; key->items && k < key->items->table.count; k++) {
        char inner[80];

        snprintf(inner, sizeof inner, "%s[].%s", name, key->items->table.keys[k].name);
        print_help(&key->items->table.keys[k], inner, stream);
    }
}

fsdp_status fsdp__config_help(const fsdp__key_table *table, const char *only, FILE *stream)
{
    const char *section = "";

    if (only && !fsdp__key_is_section(table, only))
        return fsdp__key_unknown(table, only, NULL);
    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];

        if (only && strcmp(only, key->section) != 0)
            continue;
        if (strcmp(section, key->section) != 0)
            fprintf(stream, "%s%s:\n", *section ? "\n" : "", key->section);
        section = key->section;
        print_help(key, key->name, stream);
    }
    return ferror(stream) ? FSDP_FAIL(FSDP_IO, "cannot print the help") : FSDP_OK;
}
