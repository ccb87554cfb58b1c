/* yaml.c - reads a config file from libyaml's events. Every value is read as text and then checked by the table, so
 * that the file and the command line give the same messages. Whatever YAML has besides sections, keys, values, lists of
 * files and lists of maps is refused where it stands, so nothing here is deeper or longer than the table allows. */
#include "config/yaml.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum {
    LONGEST_VALUE = 64 * 1024, /* no number, name or path comes close to it */
    LONGEST_LIST = 256 * 1024, /* nor does a list */
    MOST_MAPS = 1024,          /* of one list */
    SHOWN_BYTES = 80           /* of a wrong key, in a message */
};

typedef struct reader {
    const fsdp__key_table *table;
    void *config;
    yaml_parser_t parser;
    yaml_event_t event; /* the last one */
    size_t line;        /* of the key or list entry being read: where a message points */
    bool section_given[FSDP__KEY_SECTIONS];
    bool key_given[FSDP__KEY_SECTIONS * FSDP__KEYS_PER_SECTION];
} reader;

/* ---- events ---- */

static void stand_at(reader *r, yaml_mark_t mark)
{
    r->line = mark.line + 1;
}

static fsdp_status not_yaml(reader *r)
{
    const yaml_parser_t *p = &r->parser;

    if (p->error == YAML_MEMORY_ERROR)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    if (p->error == YAML_READER_ERROR) { /* it has no mark, but the byte's offset */
        r->line = 1;
        for (size_t i = 0; i < p->problem_offset && i < (size_t)(p->input.string.end - p->input.string.start); i++)
            r->line += p->input.string.start[i] == '\n';
        return FSDP_FAIL(FSDP_FORMAT, "not text in UTF-8: byte 0x%02x: %s", (unsigned)p->problem_value, p->problem);
    }
    stand_at(r, p->problem_mark);
    if (p->error == YAML_SCANNER_ERROR && p->buffer.pointer < p->buffer.last && *p->buffer.pointer == '\t')
        return FSDP_FAIL(FSDP_FORMAT, "a tab in column %zu: YAML is indented by spaces alone",
                         p->problem_mark.column + 1);
    return FSDP_FAIL(FSDP_FORMAT, "not YAML from here on (column %zu): %s", p->problem_mark.column + 1, p->problem);
}

/* Refuses anchors and tags: an alias would repeat what an anchor names, and a tag would change its meaning. */
static fsdp_status refuse_references(reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;

    if (e->type == YAML_ALIAS_EVENT) {
        stand_at(r, e->start_mark);
        return FSDP_FAIL(FSDP_FORMAT, "an alias, '*%.*s': write the value itself instead", SHOWN_BYTES,
                         (const char *)e->data.alias.anchor);
    }
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (!anchor && !tag)
        return FSDP_OK;
    stand_at(r, e->start_mark);
    return FSDP_FAIL(FSDP_FORMAT, "%s, '%s%.*s': a config cannot have one, so leave it out",
                     anchor ? "an anchor" : "a tag", anchor ? "&" : "", SHOWN_BYTES,
                     (const char *)(anchor ? anchor : tag));
}

static fsdp_status next(reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return not_yaml(r);
    return refuse_references(r);
}

static const char *scalar(const reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

/* Returns whether the event is nothing; a quoted value is not. */
static bool is_nothing(const reader *r)
{
    return r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           fsdp__key_is_nothing(scalar(r));
}

/* Names the kind of event in words. */
static const char *kind(const reader *r)
{
    return r->event.type == YAML_SCALAR_EVENT           ? "a single value"
           : r->event.type == YAML_SEQUENCE_START_EVENT ? "a list"
                                                        : "a section";
}

/* ---- lists of texts ---- */

/* Checks that the event's text fits a C string that can be printed. */
static fsdp_status check_scalar(const reader *r, const char *section, const char *name)
{
    size_t length = r->event.data.scalar.length;

    if (length > LONGEST_VALUE)
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s is %zu bytes long: at most %d are read", section, name, length,
                         LONGEST_VALUE);
    if (memchr(scalar(r), '\0', length))
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s has a NUL character in it", section, name);
    return FSDP_OK;
}

static fsdp_status read_entry(reader *r, const fsdp__key *key, char **out)
{
    stand_at(r, r->event.start_mark);
    if (r->event.type != YAML_SCALAR_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s holds %s: expected a list of %ss", key->section, key->name, kind(r),
                         fsdp__key_entry(key));
    FSDP_TRY(check_scalar(r, key->section, key->name));
    if (is_nothing(r) || !*scalar(r))
        return FSDP_FAIL(FSDP_INVALID, "%s.%s has an empty entry: expected a %s or a list of %ss", key->section,
                         key->name, fsdp__key_entry(key), fsdp__key_entry(key));
    *out = fsdp__strdup(scalar(r));
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status read_list(reader *r, const fsdp__key *key)
{
    fsdp_status status = FSDP_OK;
    FSDP__FREED char **paths = NULL;
    int64_t count = 0, capacity = 0;

    for (;;) {
        FSDP_TRY_GOTO(status, next(r), out);
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (count == LONGEST_LIST) {
            stand_at(r, r->event.start_mark);
            status = FSDP_FAIL(FSDP_FORMAT, "%s.%s has more than %d entries", key->section, key->name, LONGEST_LIST);
            goto out;
        }
        if (fsdp__grow(&paths, count, &capacity, sizeof *paths) != 0) {
            status = FSDP_NO_MEMORY;
            goto out;
        }
        FSDP_TRY_GOTO(status, read_entry(r, key, &paths[count]), out);
        count++;
    }
    status = fsdp__key_set_paths(r->config, key, (const char *const *)paths, count);
out:
    for (int64_t i = 0; i < count; i++)
        fsdp__free(paths[i]);
    return status;
}

/* Reads a path as it is written; "[a, b]" in quotes is not a list. */
static fsdp_status read_path(reader *r, const fsdp__key *key)
{
    FSDP__FREED char *path = NULL;

    FSDP_TRY(read_entry(r, key, &path));
    return fsdp__key_set_paths(r->config, key, (const char *const *)&path, 1);
}

/* ---- lists of maps ---- */

static fsdp_status read_name(reader *r, const char *section, char *name, size_t name_bytes);

/* Reads the value of a key of the map. */
static fsdp_status read_map_key(reader *r, const fsdp__key *key, void *map)
{
    char allowed[256];

    FSDP_TRY(next(r));
    if (r->event.type != YAML_SCALAR_EVENT) {
        fsdp__key_allowed(key, allowed, sizeof allowed);
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s is %s: expected %s", key->section, key->name, kind(r), allowed);
    }
    FSDP_TRY(check_scalar(r, key->section, key->name));
    return fsdp__key_set(map, key, scalar(r));
}

/* Checks that all keys are there that must be; the message points at the map's first line. */
static fsdp_status check_map(reader *r, const fsdp__key_table *table, const void *map, yaml_mark_t mark)
{
    for (int k = 0; k < table->count; k++)
        if (table->keys[k].range & FSDP__REQUIRED && !fsdp__key_is_set(map, &table->keys[k])) {
            stand_at(r, mark);
            return FSDP_FAIL(FSDP_INVALID, "an entry of %s has no %s, which each must have", table->sections[0],
                             table->keys[k].name);
        }
    return FSDP_OK;
}

/* Reads the map that begins with the event at hand; its other keys get their defaults. */
static fsdp_status read_map(reader *r, const fsdp__key_table *table, void *map)
{
    const char *list = table->sections[0];
    yaml_mark_t mark = r->event.start_mark;
    bool given[FSDP__KEYS_PER_SECTION] = {false};
    char name[SHOWN_BYTES];

    stand_at(r, mark);
    for (int k = 0; k < table->count; k++)
        FSDP_TRY(fsdp__key_set(map, &table->keys[k], table->keys[k].initial ? table->keys[k].initial : ""));
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "%s holds %s: expected maps, such as {%s: ..}", list,
                         r->event.type == YAML_SCALAR_EVENT ? "a single value" : "a list", table->keys[0].name);
    for (;;) {
        const fsdp__key *key;

        FSDP_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return check_map(r, table, map, mark);
        FSDP_TRY(read_name(r, list, name, sizeof name));
        key = fsdp__key_find(table, list, name);
        if (!key)
            return fsdp__key_unknown(table, list, name);
        if (given[key - table->keys])
            return FSDP_FAIL(FSDP_FORMAT, "%s.%s is given twice in one entry", list, name);
        given[key - table->keys] = true;
        FSDP_TRY(read_map_key(r, key, map));
    }
}

typedef struct maps {
    const fsdp__key *key;
    void *items;
    int64_t count;
} maps;

static void release_maps(maps *m)
{
    fsdp__key_free_maps(m->key, m->items, m->count);
}

/* Makes room for one more map, of zeros, and returns it; NULL: there is no memory. */
static void *another(maps *m)
{
    void *grown = fsdp__realloc(m->items, (size_t)(m->count + 1) * m->key->items->bytes);

    if (!grown)
        return NULL;
    m->items = grown;
    return memset(fsdp__key_map(m->key, grown, m->count++), 0, m->key->items->bytes);
}

/* Reads the list that begins with the event at hand, or one map. */
static fsdp_status read_maps(reader *r, maps *m)
{
    bool list = r->event.type == YAML_SEQUENCE_START_EVENT;

    for (;;) {
        void *map;

        if (list)
            FSDP_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return FSDP_OK;
        stand_at(r, r->event.start_mark);
        if (m->count == MOST_MAPS)
            return FSDP_FAIL(FSDP_FORMAT, "%s.%s has more than %d entries", m->key->section, m->key->name, MOST_MAPS);
        FSDP__TRY_NEW(map = another(m));
        FSDP_TRY(read_map(r, &m->key->items->table, map));
        if (!list)
            return FSDP_OK;
    }
}

static void hand_over(maps *m, void *config)
{
    fsdp__key_take_maps(config, m->key, m->items, m->count);
    *m = (maps){.key = m->key};
}

static fsdp_status read_key_of_maps(reader *r, const fsdp__key *key)
{
    FSDP__SCOPED(release_maps) maps read = {.key = key};

    if (!is_nothing(r))
        FSDP_TRY(read_maps(r, &read));
    hand_over(&read, r->config);
    return FSDP_OK;
}

/* ---- values ---- */

static fsdp_status read_value(reader *r, const fsdp__key *key)
{
    char allowed[256];

    FSDP_TRY(next(r));
    if (r->event.type == YAML_SEQUENCE_START_EVENT && fsdp__key_is_list(key))
        return read_list(r, key);
    if (key->type == FSDP__KEY_MAPS && (r->event.type != YAML_SCALAR_EVENT || is_nothing(r)))
        return read_key_of_maps(r, key);
    if (r->event.type != YAML_SCALAR_EVENT) {
        fsdp__key_allowed(key, allowed, sizeof allowed);
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s is %s: expected %s", key->section, key->name, kind(r), allowed);
    }
    if (fsdp__key_is_list(key))
        return read_path(r, key);
    FSDP_TRY(check_scalar(r, key->section, key->name));
    return fsdp__key_set(r->config, key, scalar(r));
}

/* ---- sections ---- */

/* Reads the event as a name, whole and printable. */
static fsdp_status read_name(reader *r, const char *section, char *name, size_t name_bytes)
{
    stand_at(r, r->event.start_mark);
    if (r->event.type != YAML_SCALAR_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "%s%sexpected a name, not %s", section ? section : "", section ? ": " : "",
                         kind(r));
    if (r->event.data.scalar.length >= name_bytes || strlen(scalar(r)) != r->event.data.scalar.length)
        return FSDP_FAIL(FSDP_FORMAT, "%s%s'%.*s...' is not the name of a key or a section", section ? section : "",
                         section ? ": " : "", SHOWN_BYTES, scalar(r));
    memcpy(name, scalar(r), r->event.data.scalar.length + 1);
    return FSDP_OK;
}

/* Returns whether `name` holds keys: some are called "name.key". */
static bool holds_keys(const reader *r, const char *section, const char *name)
{
    size_t length = strlen(name);

    for (int i = 0; i < r->table->count; i++) {
        const fsdp__key *key = &r->table->keys[i];

        if (strcmp(key->section, section) == 0 && strncmp(key->name, name, length) == 0 && key->name[length] == '.')
            return true;
    }
    return false;
}

/* Reads the key that the event names, and its value. */
static fsdp_status read_key(reader *r, const char *section, const char *name)
{
    const fsdp__key *key = fsdp__key_find(r->table, section, name);
    bool *given;

    if (!key)
        return fsdp__key_unknown(r->table, section, name);
    given = &r->key_given[key - r->table->keys];
    if (*given)
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s is given twice", section, name);
    *given = true;
    return read_value(r, key);
}

/* Reads the keys that `within` holds, which are called "within.key". */
static fsdp_status read_held(reader *r, const char *section, const char *within)
{
    char name[SHOWN_BYTES], full[2 * SHOWN_BYTES + 1];

    FSDP_TRY(next(r));
    if (is_nothing(r))
        return FSDP_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "%s.%s is %s: expected keys of its own, indented below it", section, within,
                         kind(r));
    for (;;) {
        FSDP_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return FSDP_OK;
        FSDP_TRY(read_name(r, section, name, sizeof name));
        snprintf(full, sizeof full, "%s.%s", within, name);
        FSDP_TRY(read_key(r, section, full));
    }
}

static fsdp_status read_section(reader *r, const char *section)
{
    char name[SHOWN_BYTES];

    FSDP_TRY(next(r));
    if (is_nothing(r))
        return FSDP_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "%s is %s: expected keys of the section, indented below it", section, kind(r));
    for (;;) {
        FSDP_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return FSDP_OK;
        FSDP_TRY(read_name(r, section, name, sizeof name));
        FSDP_TRY((holds_keys(r, section, name) ? read_held : read_key)(r, section, name));
    }
}

/* Refuses a file that is something else as a whole; the message names the first sections. */
static fsdp_status refuse_top(const fsdp__key_table *table, const char *is)
{
    char names[256] = "";
    size_t used = 0;
    int i = 0;

    for (; table->sections[i] && i < 3 && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s:", i ? ", " : "", table->sections[i]);
    return FSDP_FAIL(FSDP_FORMAT, "%s: expected sections (%s%s)", is, names, table->sections[i] ? ", ..." : "");
}

static fsdp_status read_sections(reader *r)
{
    char name[SHOWN_BYTES];

    stand_at(r, r->event.start_mark);
    if (is_nothing(r))
        return FSDP_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return refuse_top(r->table, kind(r));
    for (;;) {
        int i = 0;

        FSDP_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return FSDP_OK;
        FSDP_TRY(read_name(r, NULL, name, sizeof name));
        while (r->table->sections[i] && strcmp(r->table->sections[i], name) != 0)
            i++;
        if (!r->table->sections[i])
            return fsdp__key_unknown(r->table, name, NULL);
        if (r->section_given[i])
            return FSDP_FAIL(FSDP_FORMAT, "%s is given twice", name);
        r->section_given[i] = true;
        FSDP_TRY(read_section(r, r->table->sections[i]));
    }
}

/* Reads one document, or none. */
static fsdp_status read_stream(reader *r)
{
    FSDP_TRY(next(r)); /* skips the start of the stream */
    FSDP_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return FSDP_OK;
    FSDP_TRY(next(r));
    FSDP_TRY(read_sections(r));
    FSDP_TRY(next(r)); /* skips the end of the document */
    FSDP_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return FSDP_OK;
    stand_at(r, r->event.start_mark);
    return FSDP_FAIL(FSDP_FORMAT, "a second document begins here: a config has only one");
}

/* Returns whether a line may begin at `at`, by YAML's rules for line breaks. */
static bool begins_line(const char *text, const char *at)
{
    if (at == text || at[-1] == '\n' || at[-1] == '\r')
        return true;
    return (at - text >= 2 && memcmp(at - 2, "\xC2\x85", 2) == 0) ||
           (at - text >= 3 && memcmp(at - 3, "\xE2\x80", 2) == 0 && (at[-1] == '\xA8' || at[-1] == '\xA9'));
}

/* Refuses directives ("%TAG ..."): they are of no use here, and libyaml compares each with all others. */
static fsdp_status refuse_directives(reader *r, const char *text, size_t bytes)
{
    const char *from = text, *at;

    for (; (at = memchr(from, '%', bytes - (size_t)(from - text))); from = at + 1)
        if (begins_line(text, at)) {
            r->line = 1;
            for (const char *c = text; c < at; c++)
                r->line += *c == '\n';
            return FSDP_FAIL(FSDP_FORMAT, "a line that begins with '%%': a config cannot have directives");
        }
    return FSDP_OK;
}

/* Refuses a file whose first line other than comments is "[training]" or "steps = 10": torchtitan's configs begin like
 * that, and none of ours do. */
static fsdp_status refuse_toml(reader *r, const char *text, size_t bytes)
{
    const char *end = text + bytes, *line = text, *stop;

    for (r->line = 1; line < end; r->line++, line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        while (line < stop && (*line == ' ' || *line == '\t' || *line == '\r'))
            line++;
        if (line >= stop || *line == '#')
            continue;
        if (memchr(line, ':', (size_t)(stop - line)) || (*line != '[' && !memchr(line, '=', (size_t)(stop - line))))
            break;
        return FSDP_FAIL(FSDP_FORMAT, "this is TOML, but a config is YAML: '[training]' is written 'training:', and "
                                      "'steps = 10' below it '  steps: 10'");
    }
    return FSDP_OK;
}

fsdp_status fsdp__yaml_apply(const fsdp__key_table *table, void *config, const char *path, const char *text,
                             size_t bytes)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors put it in front of UTF-8 */
    reader r = {.table = table, .config = config};
    fsdp_status status;

    if (bytes >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    if (!yaml_parser_initialize(&r.parser))
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    status = refuse_toml(&r, text, bytes);
    if (status == FSDP_OK)
        status = refuse_directives(&r, text, bytes);
    if (status == FSDP_OK)
        status = read_stream(&r);
    if (status != FSDP_OK && status != FSDP_NO_MEMORY)
        fsdp_fail_prefix(status, "%s:%zu", path, r.line);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}

/* Reads the one list, or map, that the text is. */
static fsdp_status read_text_of_maps(reader *r, maps *m)
{
    FSDP_TRY(next(r)); /* skips the start of the stream */
    FSDP_TRY(next(r));
    FSDP_TRY(next(r));
    if (r->event.type != YAML_SEQUENCE_START_EVENT && r->event.type != YAML_MAPPING_START_EVENT)
        return FSDP_FAIL(FSDP_FORMAT, "it is neither a list nor a map");
    FSDP_TRY(read_maps(r, m));
    FSDP_TRY(next(r)); /* skips the end of the document */
    FSDP_TRY(next(r));
    return r->event.type == YAML_STREAM_END_EVENT ? FSDP_OK : FSDP_FAIL(FSDP_FORMAT, "it continues after its end");
}

/* Puts maps behind those that the key has. */
static fsdp_status append(maps *m, void *config)
{
    int64_t count;
    void *there = fsdp__key_maps(config, m->key, &count);
    size_t bytes = m->key->items->bytes;
    char *all = fsdp__calloc((size_t)(count + m->count), bytes);

    FSDP__TRY_NEW(all);
    memcpy(all, there, (size_t)count * bytes);
    memcpy(all + (size_t)count * bytes, m->items, (size_t)m->count * bytes);
    memset(there, 0, (size_t)count * bytes); /* its texts have moved */
    fsdp__key_take_maps(config, m->key, all, count + m->count);
    fsdp__free(m->items);
    *m = (maps){.key = m->key};
    return FSDP_OK;
}

fsdp_status fsdp__yaml_maps(void *config, const fsdp__key *key, const char *text, bool add)
{
    FSDP__SCOPED(release_maps) maps read = {.key = key};
    reader r = {.table = &key->items->table, .config = config};
    fsdp_status status;

    if (!yaml_parser_initialize(&r.parser))
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, strlen(text));
    status = refuse_directives(&r, text, strlen(text));
    if (status == FSDP_OK)
        status = read_text_of_maps(&r, &read);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status != FSDP_OK && status != FSDP_NO_MEMORY)
        return fsdp_fail_prefix(status, "%s.%s is '%.80s%s'", key->section, key->name, text,
                                strlen(text) > 80 ? "..." : "");
    FSDP_TRY(status);
    if (add && *(void **)((char *)config + key->offset) && read.count > 0)
        return append(&read, config);
    if (!add || read.count > 0)
        hand_over(&read, config);
    return FSDP_OK;
}
