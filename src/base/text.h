/* text.h - names, values and sizes, as readers see them. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Gets the character that `text` begins with. Returns how many bytes it has; 0 when they are not UTF-8: only the
 * shortest form counts, no surrogates, nothing beyond U+10FFFF. A NUL is one byte. */
int fsdp__utf8_next(const char *text, uint32_t *character);
/* Writes a character as UTF-8. Returns how many bytes it has. */
size_t fsdp__utf8_of(uint32_t character, char out[4]);
/* Returns how many bytes a byte order mark at the beginning of a text takes: 3, or 0 where there is none. */
size_t fsdp__utf8_mark(const char *text, size_t bytes);

/* Copies `text` to `out` as one line that is safe to print on a terminal: control characters, those that reverse the
 * direction of writing, and bytes that are not UTF-8 are shown as \x1b. What does not fit loses its middle, and "..."
 * stands there: the reason of an error is at the end of its message, after the paths. There must be room for 4 bytes.
 * Returns `out`. */
const char *fsdp__shown(const char *text, char *out, size_t out_bytes);
/* Shows what a format and its arguments give, however long that is, in the same way. Where there is no memory for a
 * long one its end is missing. */
const char *fsdp__shown_message(char *out, size_t out_bytes, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* Writes a path as a word of a command that is to be copied into a shell: as it is, in quotes, or, where fsdp__shown
 * would change it, as $'\x1b'. One that begins with "-" gets "./" before it. What does not fit is shown as fsdp__shown
 * does. Returns `out`. */
const char *fsdp__shell_word(const char *path, char *out, size_t out_bytes);
#define FSDP__SHELL_WORD(path) fsdp__shell_word((path), FSDP__ROOM(4 * 4096 + 8))

/* Passes room for a text of fewer than `size` bytes, until the end of the block that the call stands in:
 * fsdp__shown(text, FSDP__ROOM(24)). */
#define FSDP__ROOM(size) ((char[size]){0}), (size)

/* Writes a number of bytes as people read it: "1.21GiB", "25.9MiB", "0.5KiB", "37B". Returns `out`. */
const char *fsdp__size_text(double bytes, char *out, size_t out_bytes);
#define FSDP__SIZE(bytes) fsdp__size_text((double)(bytes), FSDP__ROOM(40))
/* Does so beside another number, from which it must read differently if it differs: exactly where it must, "1153434B".
 */
const char *fsdp__size_text_beside(double bytes, double other, char *out, size_t out_bytes);

/* Returns what follows the "rank N: " that a message of several ranks begins with, and stores N; where it does not
 * begin so, returns `text`, and `*rank` stays. */
const char *fsdp__text_behind_rank(const char *text, int *rank);

/* Returns what a word ends with beside a count, "rank%s": "s", and nothing beside 1. */
static inline const char *fsdp__plural(int64_t count)
{
    return count == 1 ? "" : "s";
}
/* Returns what a line about something written says where it replaces what an earlier command wrote there. */
static inline const char *fsdp__in_place(bool replaces)
{
    return replaces ? ", in place of an earlier one" : "";
}
/* Returns whether a name is one of `names`, which end with NULL. */
bool fsdp__is_one_of(const char *name, const char *const *names);
/* Returns what follows `begin` in a text that begins so; NULL: it begins otherwise. */
const char *fsdp__behind(const char *text, const char *begin);
bool fsdp__ends_with(const char *text, const char *end);
/* Returns whether the name is that of a file beside another: it has no slash, and is neither "." nor "..". */
bool fsdp__is_plain_name(const char *name);

/* Prints the text in quotes, as JSON writes it; the text is taken to be UTF-8. */
void fsdp__print_json_string(const char *text, FILE *out);

/* Prints the text as XML shows it, between tags and in attributes, with a '?' for what XML cannot have: control
 * characters, and bytes that are not UTF-8. What moves or turns other text is written as fsdp__shown does. */
void fsdp__print_xml_text(const char *text, FILE *out);

enum {
    FSDP__JSON_NAME = 64 /* enough for the names in the ledger */
};
/* Writes a name as JSON's keys have it: "parameter shard" becomes parameter_shard. Returns `out`. */
const char *fsdp__json_name(const char *name, char *out, size_t out_bytes);

/* Writes at most `columns` characters of a dotted name, and a NUL, to `out`. Of a long name that is the end, which says
 * more than the beginning, after a dot if there is one. */
void fsdp__name_end(const char *name, size_t columns, char *out);
/* Writes "1,234,567". Returns `text`. */
const char *fsdp__thousands(int64_t value, char *text, size_t text_bytes);
#define FSDP__THOUSANDS(value) fsdp__thousands((int64_t)(value), FSDP__ROOM(40))
/* Returns a float as Python writes it: the shortest text that reads back as the same number, "1e-05", "0.0". */
const char *fsdp__float_text(float value, char text[32]);

/* Holds the first names of a list, for messages, and the number of all. It begins empty. */
enum {
    FSDP__NAMES_SHOWN = 3,
    FSDP__NAMES_TEXT = 720
};
typedef struct fsdp__names {
    char text[FSDP__NAMES_TEXT], last[FSDP__NAMES_TEXT / FSDP__NAMES_SHOWN];
    int64_t count;
} fsdp__names;
void fsdp__names_add(fsdp__names *names, const char *name);
/* Returns "'a'", "'a' and 'b'", "'a', 'b' and 'c'", "'a', 'b', 'c' and 4 more". Call it once, when all have been
 * added. */
const char *fsdp__names_text(fsdp__names *names);

/* Limits the bytes that a message shows of a name from somebody else's file, so that there is room for the rest. */
#define FSDP__NAME_TEXT 200
#define FSDP__SHOWN_NAME(name) fsdp__shown((name), FSDP__ROOM(FSDP__NAME_TEXT))

/* A list of ranks, in rising order. */
typedef struct fsdp__rank_list {
    int shown[8], last;
    int64_t count;
    bool gaps; /* between the first and the last */
} fsdp__rank_list;
void fsdp__rank_list_add(fsdp__rank_list *list, int rank);
/* Writes "rank 2", "ranks 0 and 2", "ranks 0 to 3", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 5 more". Returns `text`. */
const char *fsdp__rank_list_text(const fsdp__rank_list *list, char *text, size_t bytes);
