/* yaml.c - the schema for libcyaml is made from the table of keys. Every value is read as text and then checked by the
 * table, so that the file and the command line give the same messages. libcyaml keeps no line numbers in what it loads
 * but says them when it refuses something: [Note: asking for a line]. */
#include "config/yaml.h"

#include <ctype.h>
#include <cyaml/cyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

/* ---- what libcyaml fills ---- */

typedef struct values {
    char *text[FSDP__KEYS_PER_SECTION]; /* in the order of the table */
    char **list;                        /* of the key that may be a list */
    uint32_t list_count;
} values;

typedef struct document {
    values *sections[FSDP__KEY_SECTIONS];
} document;

typedef struct schema {
    cyaml_schema_value_t root, list_entry;
    cyaml_schema_field_t sections[FSDP__KEY_SECTIONS + 2]; /* one for a question, one for the end */
    cyaml_schema_field_t keys[FSDP__KEY_SECTIONS][FSDP__KEYS_PER_SECTION + 2];
} schema;

/* Where a problem is: the innermost place and the names that lead to it. */
typedef struct problem {
    char text[256];
    char names[4][80]; /* innermost first */
    int name_count;
    int line;
} problem;

/* ---- the schema ---- */

static cyaml_schema_field_t text_field(const char *name, size_t offset)
{
    return (cyaml_schema_field_t){
        .key = name,
        .data_offset = (uint32_t)offset,
        .value = {.type = CYAML_STRING,
                  .flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                  .data_size = sizeof(char),
                  .string = {.min = 0, .max = CYAML_UNLIMITED}},
    };
}

static cyaml_schema_field_t list_field(const schema *s, const char *name)
{
    return (cyaml_schema_field_t){
        .key = name,
        .data_offset = offsetof(values, list),
        .count_offset = offsetof(values, list_count),
        .count_size = sizeof(uint32_t),
        .value = {.type = CYAML_SEQUENCE,
                  .flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                  .data_size = sizeof(char *),
                  .sequence = {.entry = &s->list_entry, .min = 0, .max = CYAML_UNLIMITED}},
    };
}

static cyaml_schema_field_t section_field(const char *name, size_t offset, const cyaml_schema_field_t *fields)
{
    return (cyaml_schema_field_t){
        .key = name,
        .data_offset = (uint32_t)offset,
        .value = {.type = CYAML_MAPPING,
                  .flags = CYAML_FLAG_POINTER_NULL_STR | CYAML_FLAG_OPTIONAL,
                  .data_size = sizeof(values),
                  .mapping = {.fields = fields}},
    };
}

/* [Note: asking for a line] A field that no value satisfies: an enumeration with one impossible text. Loading again
 * with it under the name asked for ends at that name's value, and libcyaml says the line. */
static cyaml_schema_field_t refusing_field(const char *name)
{
    static const cyaml_strval_t impossible[] = {{"\001", 0}};

    return (cyaml_schema_field_t){
        .key = name,
        .data_offset = 0,
        .value = {.type = CYAML_ENUM,
                  .flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT,
                  .data_size = sizeof(int),
                  .enumeration = {.strings = impossible, .count = 1}},
    };
}

/* `lists`: keys that may be lists are read as lists. `ask_section`, `ask_name`: the key (or, without a name, the
 * section) that is asked for, or NULL. */
static void schema_make(schema *s, const fsdp__key_table *table, bool lists, const char *ask_section,
                        const char *ask_name)
{
    int count;

    memset(s, 0, sizeof *s);
    s->list_entry = (cyaml_schema_value_t){.type = CYAML_STRING,
                                           .flags = CYAML_FLAG_POINTER,
                                           .data_size = sizeof(char),
                                           .string = {.min = 0, .max = CYAML_UNLIMITED}};
    for (count = 0; table->sections[count]; count++) {
        const char *section = table->sections[count];
        cyaml_schema_field_t *fields = s->keys[count];
        int used = 0, index = 0;

        for (int i = 0; i < table->count; i++) {
            const fsdp__key *key = &table->keys[i];

            if (strcmp(key->section, section) != 0)
                continue;
            if (ask_name && strcmp(section, ask_section) == 0 && strcmp(key->name, ask_name) == 0)
                ; /* stands below */
            else if (lists && key->type == FSDP__KEY_PATHS)
                fields[used++] = list_field(s, key->name);
            else
                fields[used++] = text_field(key->name, offsetof(values, text) + sizeof(char *) * (size_t)index);
            index++;
        }
        if (ask_name && strcmp(section, ask_section) == 0)
            fields[used] = refusing_field(ask_name);
        s->sections[count] = section_field(section, sizeof(values *) * (size_t)count, fields);
    }
    if (ask_section && !ask_name)
        s->sections[count] = refusing_field(ask_section);
    s->root = (cyaml_schema_value_t){.type = CYAML_MAPPING,
                                     .flags = CYAML_FLAG_POINTER,
                                     .data_size = sizeof(document),
                                     .mapping = {.fields = s->sections}};
}

/* ---- libcyaml's door ---- */

static void *memory(void *arg, void *pointer, size_t bytes)
{
    (void)arg;
    if (bytes == 0) {
        fsdp__free(pointer);
        return NULL;
    }
    return fsdp__realloc(pointer, bytes);
}

/* "Load: Unexpected key: stepz", then "Load: Backtrace:" and, innermost first,
 * "  in mapping field 'training' (line: 2, column: 3)". */
static void hear(cyaml_log_t level, void *arg, const char *format, va_list values_of_format)
{
    problem *p = arg;
    char line[512], *at;

    (void)level;
    vsnprintf(line, sizeof line, format, values_of_format);
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "Load: ", 6) == 0) {
        if (!p->text[0] && !strstr(line, "Backtrace"))
            snprintf(p->text, sizeof p->text, "%.250s", line + 6);
        return;
    }
    at = strstr(line, "(line: ");
    if (at && !p->line)
        p->line = atoi(at + 7);
    at = strstr(line, "field '");
    if (at && p->name_count < 4)
        snprintf(p->names[p->name_count++], sizeof p->names[0], "%.*s", (int)strcspn(at + 7, "'"), at + 7);
}

static bool load(const schema *s, const char *text, size_t bytes, document **out, problem *p)
{
    const cyaml_config_t door = {
        .log_fn = hear, .log_ctx = p, .mem_fn = memory, .log_level = CYAML_LOG_ERROR, .flags = CYAML_CFG_DEFAULT};
    cyaml_err_t error;

    memset(p, 0, sizeof *p);
    error = cyaml_load_data((const uint8_t *)text, bytes, &door, &s->root, (cyaml_data_t **)out, NULL);
    if (error != CYAML_OK && !p->text[0])
        snprintf(p->text, sizeof p->text, "%s", cyaml_strerror(error));
    return error == CYAML_OK;
}

static void unload(const schema *s, document *d)
{
    problem p;
    const cyaml_config_t door = {.log_fn = hear, .log_ctx = &p, .mem_fn = memory, .log_level = CYAML_LOG_ERROR};

    memset(&p, 0, sizeof p);
    cyaml_free(&door, &s->root, d, 0);
}

/* ---- lines ---- */

static bool line_has_key(const char *line, const char *name)
{
    const char *word = line + strspn(line, " \t\"'-{");
    size_t length = strlen(name);

    return strncmp(word, name, length) == 0 && word[length + strspn(word + length, " \"'")] == ':';
}

/* A block value may begin below its key: the nearest line from `line` upward that has the key. */
static int line_of_key(const char *text, int line, const char *name)
{
    int found = line, at = 1;

    for (const char *from = text; from && at <= line; at++) {
        if (line_has_key(from, name))
            found = at;
        from = strchr(from, '\n');
        from = from ? from + 1 : NULL;
    }
    return found;
}

/* The first line from `line` on that has the key. */
static int next_line_of_key(const char *text, int line, const char *name)
{
    int at = 1;

    for (const char *from = text; from; at++) {
        if (at > line && line_has_key(from, name))
            return at;
        from = strchr(from, '\n');
        from = from ? from + 1 : NULL;
    }
    return line;
}

/* The line of a key, or of a section when name is NULL. */
static int ask_line(const fsdp__key_table *table, const char *text, size_t bytes, bool lists, const char *section,
                    const char *name, int otherwise)
{
    schema s;
    problem p;
    document *d = NULL;

    schema_make(&s, table, lists, section, name);
    if (load(&s, text, bytes, &d, &p)) {
        unload(&s, d);
        return otherwise;
    }
    return line_of_key(text, p.line ? p.line : otherwise, name ? name : section);
}

/* ---- messages ---- */

/* The whole file is something else: names the first sections. */
static fsdp_status refuse_top(const fsdp__key_table *table, const char *is)
{
    char names[256] = "";
    size_t used = 0;
    int i = 0;

    for (; table->sections[i] && i < 3 && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s:", i ? ", " : "", table->sections[i]);
    return FSDP_FAIL(FSDP_FORMAT, "%s: expected sections (%s%s)", is, names, table->sections[i] ? ", ..." : "");
}

static fsdp_status refuse_kind(const fsdp__key_table *table, const problem *p, bool lists, const char *is)
{
    const char *name = p->names[0], *section = p->names[FSDP__MAX(p->name_count, 1) - 1];
    const fsdp__key *key = p->name_count > 1 ? fsdp__key_find(table, section, name) : NULL;
    char allowed[256];

    if (p->name_count == 0)
        return refuse_top(table, is);
    if (key && lists && key->type == FSDP__KEY_PATHS)
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s holds %s: expected a list of files", section, name, is);
    if (!key)
        return FSDP_FAIL(FSDP_FORMAT, "%s is %s: expected keys of the section, indented below it", name, is);
    fsdp__key_allowed(key, allowed, sizeof allowed);
    return FSDP_FAIL(FSDP_FORMAT, "%s.%s is %s: expected %s", section, name, is, allowed);
}

/* libcyaml refused the file: says it in the words of the table. */
static fsdp_status explain(const fsdp__key_table *table, const char *path, const char *text, size_t bytes, bool lists,
                           const problem *p)
{
    const char *section = p->name_count ? p->names[p->name_count - 1] : NULL;
    int line = p->line ? p->line : 1;

    if (strncmp(p->text, "Unexpected key: ", 16) == 0) {
        const char *name = p->text + 16;

        line = ask_line(table, text, bytes, lists, section ? section : name, section ? name : NULL, line);
        (void)fsdp__key_unknown(table, section ? section : name, section ? name : NULL);
    } else if (strncmp(p->text, "Mapping field already seen: ", 28) == 0) {
        const char *name = p->text + 28;
        bool nested = section && strcmp(section, name) != 0;

        line = next_line_of_key(text, line, name);
        (void)FSDP_FAIL(FSDP_FORMAT, "%s%s%s is given twice", nested ? section : "", nested ? "." : "", name);
    } else if (strstr(p->text, "got event: SEQUENCE_START")) {
        (void)refuse_kind(table, p, lists, "a list");
        line = line_of_key(text, line, p->names[0]);
    } else if (strstr(p->text, "got event: MAPPING_START")) {
        (void)refuse_kind(table, p, lists, "a section");
        line = line_of_key(text, line, p->names[0]);
    } else if (strstr(p->text, "got event: SCALAR")) {
        (void)refuse_kind(table, p, lists, "a single value");
    } else if (strncmp(p->text, "libyaml: ", 9) == 0) {
        (void)FSDP_FAIL(FSDP_FORMAT, "not YAML from here on: %s", p->text + 9);
    } else {
        (void)FSDP_FAIL(FSDP_FORMAT, "%s", p->text);
    }
    return fsdp_fail_prefix(fsdp_last_status(), "%s:%d", path, line);
}

/* ---- values ---- */

static fsdp_status apply_section(const fsdp__key_table *table, void *config, const char *section, const values *v,
                                 const fsdp__key **at)
{
    int index = 0;

    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];

        if (strcmp(key->section, section) != 0)
            continue;
        *at = key;
        if (key->type == FSDP__KEY_PATHS && v->list)
            FSDP_TRY(fsdp__key_set_paths(config, key, (const char *const *)v->list, v->list_count));
        else if (key->type == FSDP__KEY_PATHS && v->text[index]) /* as it is: no "[a, b]" inside quotes */
            FSDP_TRY(fsdp__key_set_paths(config, key, (const char *const *)&v->text[index], 1));
        else if (v->text[index])
            FSDP_TRY(fsdp__key_set(config, key, v->text[index]));
        index++;
    }
    return FSDP_OK;
}

fsdp_status fsdp__yaml_apply(const fsdp__key_table *table, void *config, const char *path, const char *text,
                             size_t bytes)
{
    fsdp_status status = FSDP_OK;
    schema s;
    problem p;
    document *d = NULL;
    const fsdp__key *at = NULL;
    bool lists = false;

    schema_make(&s, table, false, NULL, NULL);
    if (!load(&s, text, bytes, &d, &p)) {
        const fsdp__key *key = p.name_count == 2 ? fsdp__key_find(table, p.names[1], p.names[0]) : NULL;

        lists = key && key->type == FSDP__KEY_PATHS && strstr(p.text, "got event: SEQUENCE_START");
        if (!lists)
            return explain(table, path, text, bytes, false, &p);
        schema_make(&s, table, true, NULL, NULL);
        d = NULL;
        if (!load(&s, text, bytes, &d, &p))
            return explain(table, path, text, bytes, true, &p);
    }
    for (int i = 0; d && table->sections[i] && status == FSDP_OK; i++)
        if (d->sections[i])
            status = apply_section(table, config, table->sections[i], d->sections[i], &at);
    if (status != FSDP_OK && status != FSDP_NO_MEMORY && at)
        fsdp_fail_prefix(status, "%s:%d", path, ask_line(table, text, bytes, lists, at->section, at->name, 1));
    if (d)
        unload(&s, d);
    return status;
}
