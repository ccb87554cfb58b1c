/* damage.c - one way or another of spoiling a file. */
#include "faults/damage.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "support/test.h"

uint64_t damage_random(uint64_t *seed, uint64_t below)
{
    uint64_t x = *seed += 0x9E3779B97F4A7C15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return below ? (x ^ x >> 31) % below : 0;
}

/* ---- what is no file ---- */

static void make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

/* A terabyte that is not there; an empty file where the file system holds none. */
static void make_sparse(const char *path)
{
    test_write_file(path, "", 0);
    if (truncate(path, (off_t)1 << 40) != 0)
        print_message("no sparse file of a terabyte here\n");
}

void damage_kind(const char *path, int kind, char what[200])
{
    static const char *const names[DAMAGE_KINDS] = {"a FIFO", "a directory", "a socket",  "a device",
                                                    "a loop", "dangling",    "all zeros", "empty"};

    snprintf(what, 200, "%s: %s", strrchr(path, '/') + 1, names[kind]);
    CHECK_EQ(unlink(path), 0);
    switch (kind) {
    case 0:
        CHECK_EQ(mkfifo(path, 0600), 0);
        return;
    case 1:
        CHECK_EQ(mkdir(path, 0700), 0);
        return;
    case 2:
        make_socket(path);
        return;
    case 3:
        CHECK_EQ(symlink("/dev/zero", path), 0);
        return;
    case 4:
        CHECK_EQ(symlink(path, path), 0);
        return;
    case 5:
        CHECK_EQ(symlink("/nowhere/at/all", path), 0);
        return;
    case 6:
        make_sparse(path);
        return;
    default:
        test_write_file(path, "", 0);
    }
}

/* ---- bytes ---- */

typedef struct content {
    char *data;
    size_t bytes;
    size_t text, text_end; /* its JSON: all of it, or the header */
} content;

static bool is_tensors(const char *path)
{
    return strstr(path, ".safetensors") && !strstr(path, ".json");
}

static content read_content(const char *path)
{
    content c = {0};
    uint64_t length = 0;

    CHECK_OK(fsdp__file_read(path, SIZE_MAX, &c.data, &c.bytes));
    c.text_end = c.bytes;
    if (is_tensors(path)) {
        memcpy(&length, c.data, sizeof length);
        c.text = sizeof length;
        c.text_end = c.text + length;
    }
    return c;
}

/* `with` in place of `length` bytes at `at` of the JSON; the header's length is told. */
static void replace(content *c, size_t at, size_t length, const char *with)
{
    size_t more = strlen(with);
    char *data = malloc(c->bytes - length + more);
    uint64_t header;

    memcpy(data, c->data, at);
    memcpy(data + at, with, more);
    memcpy(data + at + more, c->data + at + length, c->bytes - at - length);
    free(c->data);
    c->data = data;
    c->bytes += more - length;
    c->text_end += more - length;
    header = c->text_end - c->text;
    if (c->text > 0)
        memcpy(c->data, &header, sizeof header);
}

/* A random run of characters of `set` in the JSON, whose length goes into *length. */
static size_t find_run(const content *c, uint64_t *seed, const char *set, size_t *length)
{
    size_t span = c->text_end - c->text, start = damage_random(seed, span);

    for (size_t i = 0; i < span; i++) {
        size_t at = c->text + (start + i) % span;

        if (!strchr(set, c->data[at]) || (at > c->text && strchr(set, c->data[at - 1])))
            continue;
        for (*length = 1; at + *length < c->text_end && strchr(set, c->data[at + *length]);)
            ++*length;
        return at;
    }
    *length = 0;
    return c->text;
}

#define NUMBER "0123456789"
#define WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_."

static void damage_json(content *c, uint64_t *seed, char *what)
{
    static const char *const numbers[] = {"0",    "-1",         "1048576",    "2147483647",           "4294967296",
                                          "1e99", "4194304.5",  "[]",         "9223372036854775807",  "null",
                                          "\"\"", "{\"a\":[]}", "1073741824", "18446744073709551616", "true"};
    static const char *const words[] = {"",      "x",    "\\u001b[2J", "../../../etc/passwd", "\\ud800",
                                        "llama", "gpt2", "BF16",       "__metadata__",        "rope_parameters"};
    static const char *const marks[] = {"", ",", "[", "]", "{", "}", ":", "\"", "\\", "[[[[", "\x01", "\xff"};
    uint64_t kind = damage_random(seed, 3);
    const char *with = kind == 0   ? numbers[damage_random(seed, sizeof numbers / sizeof *numbers)]
                       : kind == 1 ? words[damage_random(seed, sizeof words / sizeof *words)]
                                   : marks[damage_random(seed, sizeof marks / sizeof *marks)];
    size_t length = 0, at = find_run(c, seed, kind == 0 ? NUMBER : kind == 1 ? WORD : "[]{}:,\"", &length);

    sprintf(what, "%.40s in place of '%.*s' at %zu", with, (int)(length < 40 ? length : 40), c->data + at, at);
    replace(c, at, length, with);
}

static void damage_bytes(content *c, uint64_t *seed, uint64_t kind, char *what)
{
    size_t end = kind == 1 ? c->bytes : c->text_end, at = damage_random(seed, end);

    switch (kind) {
    case 0: /* in what is parsed */
    case 1: /* anywhere */
        c->data[at] = (char)(c->data[at] ^ (1 << damage_random(seed, 8)));
        sprintf(what, "a bit at %zu", at);
        return;
    case 2:
        c->bytes = damage_random(seed, c->bytes);
        sprintf(what, "cut to %zu bytes", c->bytes);
        return;
    default:
        for (int i = 0; i < 8 && at + 8 < c->bytes; i++)
            c->data[at + (size_t)i] = (char)damage_random(seed, 256);
        sprintf(what, "eight bytes at %zu", at);
    }
}

bool damage_file(const char *path, uint64_t seed, char what[200])
{
    uint64_t kind = damage_random(&seed, 10);
    content c;

    if (kind == 9) {
        damage_kind(path, (int)damage_random(&seed, DAMAGE_KINDS), what);
        return true;
    }
    c = read_content(path);
    what += snprintf(what, 100, "%s: ", strrchr(path, '/') + 1);
    if (kind < 5)
        damage_json(&c, &seed, what);
    else
        damage_bytes(&c, &seed, kind - 5, what);
    CHECK_EQ(unlink(path), 0); /* it may be a link to the good one */
    test_write_file(path, c.data, c.bytes);
    free(c.data);
    return false;
}
