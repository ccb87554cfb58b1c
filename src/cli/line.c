/* line.c - turns command lines into facts that ranks compare: for every option and key, what was given. */
#include "cli/line.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "train/run_config.h"
#include "train/same_facts.h"

/* Replaces tabs and line ends in a value, which would separate facts, by other characters that nobody types. */
static char inside_value(char letter)
{
    return letter == '\n' ? '\1' : letter == '\t' ? '\2' : letter;
}

static void print_value(const char *value, FILE *out)
{
    for (; *value; value++)
        fputc(inside_value(*value), out);
}

fsdp_status fsdp__line_key(void *arg, const char *key, const char *value)
{
    fsdp__line *line = arg;
    const char *dot = strchr(key, '.');
    const char *keys = line->keys ? line->keys : "";
    char section[64], *more;

    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    if (!fsdp__key_find(&fsdp__train_keys, section, dot + 1))
        return fsdp_fail_prefix(fsdp__key_unknown(&fsdp__train_keys, section, dot + 1), "--%s", key);
    more = fsdp__sprintf("%s%s\t%s\n", keys, key, value);
    if (!more)
        return fsdp_last_status();
    for (char *at = more + strlen(keys) + strlen(key) + 1; at[1]; at++)
        *at = inside_value(*at);
    fsdp__free(line->keys);
    line->keys = more;
    return FSDP_OK;
}

static bool is_local(const fsdp__line *line, const char *name)
{
    for (size_t i = 0; line->local && line->local[i]; i++)
        if (strcmp(line->local[i], name) == 0)
            return true;
    return false;
}

/* Returns whether the option is not the first of several names of one option. */
static bool is_alias(const fsdp__option *options, const fsdp__option *o)
{
    while (options < o && (options->value != o->value || options->flag != o->flag))
        options++;
    return options < o;
}

static void write_option(const fsdp__line *line, const fsdp__option *o, FILE *out)
{
    bool given = o->value ? *o->value != NULL : *o->flag;
    const char *value = given && o->value && !is_local(line, o->name) ? *o->value : "given";

    fprintf(out, "--%s\t", o->name);
    print_value(given ? value : "not given", out);
    fputc('\n', out);
}

/* Returns whether the key has all that was given for it, and not the last alone. */
static bool adds_up(const fsdp__key *key)
{
    return fsdp__key_is_list(key) || key->type == FSDP__KEY_MAPS;
}

/* Writes what counts of all that was given for a key: all entries of a list, otherwise the last value. */
static void write_key(const fsdp__line *line, const fsdp__key *key, FILE *out)
{
    char name[128];
    int bytes = snprintf(name, sizeof name, "%s.%s\t", key->section, key->name);
    const char *last = NULL;

    fprintf(out, "--%s", name);
    for (const char *at = line->keys; at && *at; at = strchr(at, '\n') + 1) {
        if (strncmp(at, name, (size_t)bytes) != 0)
            continue;
        last = at + bytes;
        if (adds_up(key))
            fprintf(out, "%.*s ", (int)strcspn(last, "\n"), last);
    }
    if (!last || !adds_up(key))
        fprintf(out, "%.*s", last ? (int)strcspn(last, "\n") : (int)strlen("not given"), last ? last : "not given");
    fputc('\n', out);
}

static void write_line(const void *arg, FILE *out)
{
    const fsdp__line *line = arg;
    const fsdp__args *args = line->args;

    fprintf(out, "the command\t%s\nthe file or folder\t", line->command);
    print_value(args->positional_count == 0 ? "not given" : is_local(line, "") ? "given" : args->positional[0], out);
    fputc('\n', out);
    for (const fsdp__option *o = args->options; o->name; o++)
        if (!is_alias(args->options, o))
            write_option(line, o, out);
    for (int i = 0; i < fsdp__train_keys.count && args->dotted; i++)
        write_key(line, &fsdp__train_keys.keys[i], out);
}

fsdp_status fsdp__line_agree(const fsdp__line *line, const fsdp__ranks *ranks, fsdp_context *context)
{
    return ranks->joins ? fsdp__facts_agree(context, "were given different command lines", write_line, line) : FSDP_OK;
}

int fsdp__line_refuse(void)
{
    fsdp__ranks ranks = {0};
    bool held = fsdp_hold_error(true); /* the error about the line comes first */
    bool known = fsdp__ranks_read(NULL, &ranks) == FSDP_OK;

    fsdp_release_error(held);
    return fsdp__ranks_refuse(known ? &ranks : &(fsdp__ranks){0}, FSDP__USAGE);
}
