/* run_lines.c - reads the lines of metrics.jsonl. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json.h"
#include "report/run_starts.h"

enum {
    LINE = 1 << 20, /* the longest line; ours have some 600 bytes */
    MOST_TRIES = 64,
    MOST_DAMAGED = 64 /* more than there are whole lines; a file with so many holds no metrics */
};

typedef struct reading {
    const char *path;
    fsdp__starts starts;
    int64_t line, unread;   /* unread: the number of a line that is no JSON; 0: none */
    int64_t whole, damaged; /* numbers of lines; one that begins with a part of another is both */
    bool has_header;
    char *first_damage; /* what is wrong with the first damaged line; NULL: there is none */
    char *text;
} reading;

/* Finds a whole line behind a part of one: of two runs at once, one went on where the other could not end its line.
 * Fails only without memory. */
static fsdp_status find_whole(const reading *r, json_t **out)
{
    const char *at = r->text;

    *out = NULL;
    for (int i = 0; i < MOST_TRIES && (at = strstr(at + 1, "{\"")) != NULL; i++) {
        json_auto_t *line = NULL;
        fsdp_status status = fsdp__json_parse(r->path, at, strlen(at), &line);

        if (status == FSDP_NO_MEMORY)
            return status;
        if (line && fsdp__start_knows(line)) {
            *out = json_incref(line);
            return FSDP_OK;
        }
    }
    return FSDP_OK;
}

/* Refuses a file by what is wrong with its first damaged line. */
static fsdp_status refuse(const reading *r)
{
    return FSDP_FAIL(FSDP_FORMAT, "%s%s", r->first_damage,
                     r->whole == 0 ? ": name the file that metrics.jsonl of the run's config names" : "");
}

/* Leaves out a line, or the part of one, that `what` is wrong with. Fails if that leaves too little. */
static fsdp_status leave_out(reading *r, int64_t line, const char *what)
{
    r->damaged++;
    (void)FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld%s", r->path, (long long)line, what);
    if (!r->first_damage)
        FSDP__TRY_NEW(r->first_damage = fsdp__strdup(fsdp_last_error()));
    return r->damaged < r->whole + MOST_DAMAGED ? FSDP_OK : refuse(r);
}

static fsdp_status add_line(reading *r, const json_t *line)
{
    fsdp_status status = fsdp__start_knows(line)
                             ? fsdp__starts_add(&r->starts, line, r->line)
                             : FSDP_FAIL(FSDP_FORMAT, "neither the header of a run, nor a step, nor a validation");

    if (status == FSDP_FORMAT) {
        char what[FSDP__NAME_TEXT];

        snprintf(what, sizeof what, ": %s", fsdp_last_error());
        return leave_out(r, r->line, what);
    }
    FSDP_TRY(status);
    r->whole++;
    r->has_header = r->has_header || json_object_get(line, "run");
    return FSDP_OK;
}

/* Gives the JSON of a line, whatever stands before it; NULL: there is none. */
static fsdp_status parse_line(const reading *r, bool *is_glued, json_t **out)
{
    fsdp_status status = fsdp__json_parse(r->path, r->text, strlen(r->text), out);

    *is_glued = false;
    if (status == FSDP_NO_MEMORY || *out)
        return status;
    status = find_whole(r, out);
    *is_glued = *out != NULL;
    return status;
}

/* Reads a line. A part of one may have been left unfinished: then it is the last one, or a header follows. */
static fsdp_status read_line(reading *r)
{
    json_auto_t *line = NULL;
    int64_t unread = r->unread;
    bool is_glued, begins;

    r->line++;
    if (r->text[strspn(r->text, " \t\r\n")] == '\0')
        return FSDP_OK;
    FSDP_TRY(parse_line(r, &is_glued, &line));
    begins = line && json_object_get(line, "run");
    r->unread = line ? 0 : r->line;
    if (unread && !begins)
        FSDP_TRY(leave_out(r, unread, " is no JSON object"));
    if (is_glued && !begins)
        FSDP_TRY(leave_out(r, r->line, " begins with a part of another line"));
    return line ? add_line(r, line) : FSDP_OK;
}

enum {
    ZEROS = 1 /* in place of NULs in a line, however many: JSON has neither */
};

/* Reads the next line, without the NULs that a power cut may leave before it. Returns its bytes; 0: the file ends. */
static size_t next_line(reading *r, FILE *file)
{
    size_t bytes = 0;

    for (int c = getc_unlocked(file); c != EOF; c = getc_unlocked(file)) { /* no other thread reads it */
        if (c == '\0' && (bytes == 0 || r->text[bytes - 1] == ZEROS))
            continue;
        r->text[bytes++] = c == '\0' ? ZEROS : (char)c;
        if (c == '\n' || bytes == LINE - 1)
            break;
    }
    r->text[bytes] = '\0';
    return bytes;
}

/* Leaves out a line that is too long for one of ours. A file that begins with one is refused: it may have no end. */
static fsdp_status pass_over(reading *r, FILE *file)
{
    static const char what[] = " has over a million characters: it holds no metrics";

    r->line++;
    FSDP_TRY(leave_out(r, r->line, what));
    if (r->whole == 0)
        return refuse(r);
    for (int c = getc_unlocked(file); c != EOF && c != '\n';)
        c = getc_unlocked(file);
    return FSDP_OK;
}

static fsdp_status read_lines(reading *r, FILE *file)
{
    for (size_t bytes = next_line(r, file); bytes > 0; bytes = next_line(r, file)) {
        bool is_long = bytes == LINE - 1 && r->text[bytes - 1] != '\n';

        FSDP_TRY(is_long ? pass_over(r, file) : read_line(r));
    }
    return ferror(file) ? fsdp__file_error("read", r->path) : FSDP_OK;
}

static fsdp_status read_all(reading *r)
{
    FSDP__FREED char *text = fsdp__malloc(LINE);
    fsdp_status status;
    FILE *file;
    int fd = -1;

    FSDP__TRY_NEW(text);
    FSDP_TRY(fsdp__file_open(r->path, &fd, NULL));
    file = fdopen(fd, "r");
    if (!file) {
        status = fsdp__file_error("read", r->path);
        close(fd);
        return status;
    }
    r->text = text;
    status = read_lines(r, file);
    fclose(file);
    if (status == FSDP_OK && r->damaged > 0 && r->damaged >= r->whole && !r->has_header)
        return refuse(r);
    return status;
}

/* Keeps the word on lines that were left out. */
static fsdp_status tell_damaged(const reading *r, fsdp__recorded_runs *all)
{
    int64_t more = r->damaged - 1;

    fsdp__free(fsdp__take(&all->left_out));
    if (!r->first_damage)
        return FSDP_OK;
    all->left_out = more > 0 ? fsdp__sprintf("%s; %lld more line%s damaged, and all others were read", r->first_damage,
                                             (long long)more, more == 1 ? " is" : "s are")
                             : fsdp__sprintf("%s; all other lines were read", r->first_damage);
    return all->left_out ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status read_file(fsdp__recorded_runs *all, const char *path)
{
    reading r = {.path = path};
    int64_t before = all->count;
    fsdp_status status = read_all(&r);

    if (status == FSDP_OK)
        status = fsdp_fail_prefix(fsdp__starts_join(&r.starts, path, all), "cannot read '%s'", path);
    if (status == FSDP_OK)
        status = tell_damaged(&r, all);
    fsdp__free(r.first_damage);
    fsdp__starts_free(&r.starts);
    if (status != FSDP_OK || all->count > before)
        return status;
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it holds no run: name the metrics.jsonl of fsdp train", path);
}

fsdp_status fsdp__recorded_runs_read(fsdp__recorded_runs *all, const char *path)
{
    FSDP__FREED char *inside = NULL;
    struct stat info;

    if (stat(path, &info) != 0)
        return fsdp__file_error("read", path);
    if (!S_ISDIR(info.st_mode))
        return read_file(all, path);
    FSDP__TRY_NEW(inside = fsdp__path_join(path, "metrics.jsonl"));
    if (fsdp__path_exists(inside))
        return read_file(all, inside);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "'%s' has no metrics.jsonl: name the file that metrics.jsonl of the run's config names", path);
}
