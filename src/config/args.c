/* args.c - parses the command line. */
#include "config/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/nearest.h"

/* Returns the name of which the word is the last part, as "svg" is of "memory-svg"; NULL: there is none. */
static const char *longer_name(const char *word, const char *const *names)
{
    size_t length = strlen(word);

    for (; *names; names++) {
        const char *end = strlen(*names) > length ? *names + strlen(*names) - length : NULL;

        if (length > 0 && end && end[-1] == '-' && strcmp(end, word) == 0)
            return *names;
    }
    return NULL;
}

/* Returns the option of a command that is called as the last words of a key (--seq-len for training.seq_len,
 * --batch-size for training.local_batch_size), as its first ones (--tensor-parallel), as all of it (--comm-timeout), or
 * as the section of a path (--data for data.path); NULL: there is none. */
static const char *name_of_key(const char *key, const char *const *names)
{
    char words[64];
    const char *last;

    snprintf(words, sizeof words, "%s", key);
    for (char *at = words; *at; at++)
        *at = *at == '.' || *at == '_' ? '-' : *at;
    last = words + strcspn(key, ".") + 1;
    for (const char *const *n = names; *n; n++) {
        size_t length = strlen(*n), whole = strlen(words);
        bool ends = whole > length && strcmp(words + whole - length, *n) == 0 && words[whole - length - 1] == '-';

        if (strcmp(words, *n) == 0 || (ends && words + whole - length >= last) ||
            (strncmp(last, *n, length) == 0 && last[length] == '-') ||
            (strcmp(last, "path") == 0 && strncmp(words, *n, length) == 0 && words + length + 1 == last))
            return *n;
    }
    return NULL;
}

/* Writes the options of the keys of this name, whatever their section; nothing if there is none. */
static void list_keys(const fsdp__key_table *keys, const char *name, char *out, size_t out_bytes)
{
    size_t used = 0;

    *out = '\0';
    for (int i = 0; i < keys->count && used < out_bytes; i++)
        if (strcmp(keys->keys[i].name, name) == 0)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s--%s.%s", used ? " or " : "",
                                     keys->keys[i].section, name);
}

static fsdp_status unknown_option(const fsdp__args *args, const char *command, const char *text)
{
    const char *names[32], *near;
    char name[64], of_keys[256] = "";
    int count = 0;

    snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 2, "="), text + 2);
    for (const fsdp__option *o = args->options; o->name && count < 30; o++)
        names[count++] = o->name;
    names[count++] = "help";
    names[count] = NULL;
    near = text[1] == '-' ? fsdp__nearest(name, names) : NULL;
    near = near || text[1] != '-' ? near : longer_name(name, names);
    if (text[1] == '-' && strchr(name, '.'))
        near = name_of_key(name, names);
    if (near)
        return FSDP_FAIL(FSDP_INVALID, "%s: unknown option '%s'; did you mean '--%s'?", command, text, near);
    if (text[1] == '-' && args->keys && fsdp__key_of_word(args->keys, name))
        return FSDP_FAIL(FSDP_INVALID, "%s: unknown option '%s': here it is --%s", command, text,
                         fsdp__key_of_word(args->keys, name));
    if (text[1] == '-' && args->keys)
        list_keys(args->keys, name, of_keys, sizeof of_keys);
    if (*of_keys)
        return FSDP_FAIL(FSDP_INVALID, "%s: unknown option '%s': with its section it is %s", command, text, of_keys);
    return FSDP_FAIL(FSDP_INVALID, "%s: unknown option '%s'; see 'fsdp %s --help'", command, text, command);
}

/* Returns whether the text is "--name" or "-name", with or without "=value". */
static bool has_name(const fsdp__option *o, const char *text)
{
    const char *name = text + (text[1] == '-' ? 2 : 1);

    return strlen(o->name) == strcspn(name, "=") && strncmp(name, o->name, strlen(o->name)) == 0;
}

/* Finds an option by its name, or otherwise by its letter. */
static const fsdp__option *find_option(const fsdp__args *args, const fsdp__option *help, const char *text)
{
    if (has_name(help, text))
        return help;
    for (const fsdp__option *o = args->options; o->name; o++)
        if (has_name(o, text))
            return o;
    for (const fsdp__option *o = args->options; o->name; o++)
        if (o->letter && text[1] == o->letter)
            return o;
    return text[1] == help->letter ? help : NULL;
}

/* Takes the value of the option at `*at`, which moves on if the value is the next argument. `inside` is the part of the
 * option's own argument that is the value, or NULL. */
static fsdp_status take_value(const char *inside, const char *command, int argc, char **argv, int *at, const char **out)
{
    const char *text = argv[*at], *following = *at + 1 < argc ? argv[*at + 1] : NULL;
    int name = (int)strcspn(text, "=");

    if (!inside && following && strncmp(following, "--", 2) == 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' needs a value: if it is '%.80s', write '%.*s=%.80s'", command, text,
                         following, name, text, following);
    if (!inside && !following)
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' needs a value", command, text);
    *at += !inside;
    *out = inside ? inside : following;
    return FSDP_OK;
}

static fsdp_status take_dotted(fsdp__args *args, const char *command, int argc, char **argv, int *at)
{
    const char *text = argv[*at] + 2, *equals = strchr(text, '='), *value = NULL;
    char key[128];

    snprintf(key, sizeof key, "%.*s", (int)strcspn(text, "="), text);
    FSDP_TRY(take_value(equals ? equals + 1 : NULL, command, argc, argv, at, &value));
    return args->dotted(args->arg, key, value);
}

static fsdp_status take_option(const fsdp__option *o, const char *command, int argc, char **argv, int *at)
{
    const char *text = argv[*at], *equals = strchr(text, '=');
    const char *inside = has_name(o, text) ? (equals ? equals + 1 : NULL)
                         : text[2]         ? text + 2 + (text[2] == '=')
                                           : NULL;

    if (o->value)
        return take_value(inside, command, argc, argv, at, o->value);
    if (inside)
        return FSDP_FAIL(FSDP_INVALID, "%s: '--%s' takes no value", command, o->name);
    *o->flag = true;
    return FSDP_OK;
}

/* ---- what options need ---- */

static bool is_given(const fsdp__args *args, const char *name, size_t length)
{
    for (const fsdp__option *o = args->options; o->name; o++)
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0 &&
            (o->value ? *o->value != NULL : *o->flag))
            return true;
    return false;
}

/* Returns the first of the names that is given, and its length; NULL: none is. */
static const char *first_given(const fsdp__args *args, const char *names, int *length)
{
    for (; names && *names; names += strspn(names, " ")) {
        *length = (int)strcspn(names, " ");
        if (is_given(args, names, (size_t)*length))
            return names;
        names += *length;
    }
    return NULL;
}

/* Refuses an option that would count for nothing beside the others. */
static fsdp_status check_rules(const fsdp__args *args, const char *command)
{
    for (const fsdp__option_rule *r = args->rules; r && r->option; r++) {
        int length;
        const char *other = first_given(args, r->excludes, &length);

        if (!is_given(args, r->option, strlen(r->option)))
            continue;
        if (other)
            return FSDP_FAIL(FSDP_INVALID, "%s: --%s and --%.*s do not go together: leave one of them out", command,
                             r->option, length, other);
        if (r->needs && !first_given(args, r->needs, &length))
            return FSDP_FAIL(FSDP_INVALID, "%s: --%s has no effect without --%s: give that, too, or leave --%s out",
                             command, r->option, r->needs, r->option);
    }
    return FSDP_OK;
}

static fsdp_status parse(fsdp__args *args, const char *command, int argc, char **argv)
{
    const fsdp__option help = {.name = "help", .letter = 'h', .flag = &args->help};

    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        const fsdp__option *o;

        bool is_word = text[0] != '-' || text[1] == '\0', is_end = strcmp(text, "--") == 0;

        if (is_end || (is_word && args->runs)) {
            args->rest = argv + i + is_end;
            return FSDP_OK;
        }
        if (is_word) {
            if (strcmp(text, "-") == 0)
                return FSDP_FAIL(FSDP_INVALID, "%s: '-' is standard input, which is not read here: name a file ('./-')",
                                 command);
            if (!args->list && args->positional_count == args->positional_most)
                return FSDP_FAIL(FSDP_INVALID, "%s: unexpected argument '%s'", command, text);
            (args->list ? args->list : args->positional)[args->positional_count++] = text;
            continue;
        }
        o = find_option(args, &help, text);
        if (o)
            FSDP_TRY(take_option(o, command, argc, argv, &i));
        else if (args->dotted && strncmp(text, "--", 2) == 0 && memchr(text, '.', strcspn(text, "=")))
            FSDP_TRY(take_dotted(args, command, argc, argv, &i));
        else
            return unknown_option(args, command, text);
    }
    return FSDP_OK;
}

fsdp_status fsdp__args_parse(fsdp__args *args, const char *command, int argc, char **argv)
{
    FSDP_TRY(parse(args, command, argc, argv));
    return args->help ? FSDP_OK : check_rules(args, command);
}

fsdp_status fsdp__args_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    long long value;

    if (!text)
        return FSDP_OK;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most)
        return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected an integer from %lld to %lld", name, text,
                         (long long)least, (long long)most);
    *out = value;
    return FSDP_OK;
}

fsdp_status fsdp__args_number(const char *name, const char *text, double least, double most, double *out)
{
    char *end;
    double value = text ? strtod(text, &end) : 0;

    if (!text)
        return FSDP_OK;
    if (end == text || *end || !(value >= least && value <= most))
        return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected a number from %g to %g", name, text, least, most);
    *out = value;
    return FSDP_OK;
}
