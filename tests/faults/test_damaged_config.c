/* Damaged config files and command lines, through the program itself: each ends with one message and status 1 or 2, or
 * with 0 where what was damaged does not matter; none by a signal, and none takes memory to speak of. The damage is the
 * same on every run; TEST_LONG does all of it. */
#include <sys/resource.h>

#include "cli/fixture.h"

enum {
    MOST_BYTES = 4 << 20,
    MOST_ARGUMENTS = 24,
    LARGEST_RSS = 200 << 10 /* KiB, as getrusage counts */
};

static int cases(void)
{
    return test_long() ? 1000 : test_brief() ? 20 : 80;
}

/* ---- damage ---- */

static uint64_t random_state;

static size_t random_below(size_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return limit ? random_state % limit : 0;
}

typedef struct text {
    char *bytes;
    size_t count;
} text;

/* Puts `count` bytes at `at`; they may be the text's own. */
static void insert(text *t, size_t at, const char *from, size_t count)
{
    char *piece = malloc(count + 1);

    if (t->count + count > MOST_BYTES)
        count = 0;
    memcpy(piece, from, count);
    memmove(t->bytes + at + count, t->bytes + at, t->count - at);
    memcpy(t->bytes + at, piece, count);
    t->count += count;
    free(piece);
}

static void insert_word(text *t, size_t at)
{
    static const char *const words[] = {"&a ",
                                        "*a",
                                        "<<: *a\n",
                                        "---\n",
                                        "...\n",
                                        "!!binary ",
                                        "? ",
                                        ": ",
                                        "- ",
                                        "[",
                                        "{",
                                        "]",
                                        "}",
                                        "'",
                                        "\"",
                                        "|\n",
                                        ">-\n",
                                        "\n",
                                        "\n\t",
                                        "#",
                                        "%YAML 9\n",
                                        "~",
                                        "null",
                                        "true",
                                        "nan",
                                        "-",
                                        "1e999",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "0x10",
                                        "\x1b[2J",
                                        "\x07",
                                        "\xff",
                                        "\xc0\x80",
                                        "\xed\xa0\x80",
                                        "\xef\xbb\xbf",
                                        "\r",
                                        "=",
                                        "--",
                                        "-n",
                                        "--training.steps",
                                        "--data.path=",
                                        "[[[[[[[[",
                                        "training:\n",
                                        "  steps: 3\n",
                                        "metrics: {}\n"};
    const char *word = words[random_below(sizeof words / sizeof words[0])];

    insert(t, at, word, strlen(word));
}

/* What is much too much: one character, or a line, again and again. */
static void blow_up(text *t, size_t at)
{
    size_t length = random_below(2) ? 1 : 1 + strcspn(t->bytes + at, "\n"),
           times = 1000 + random_below(200000 / length);
    size_t begin = at;

    length = at + length > t->count ? t->count - at : length;
    for (size_t i = 0; length && i < 18 && length < times * 8; i++) { /* doubling */
        insert(t, begin, t->bytes + begin, length);
        length *= 2;
    }
}

static void damage(text *t)
{
    size_t at = random_below(t->count + 1), length = random_below(40);

    t->bytes[t->count] = '\0';
    switch (random_below(8)) {
    case 0:
        if (at < t->count)
            t->bytes[at] = (char)(t->bytes[at] ^ 1 << random_below(8));
        break;
    case 1:
        if (at < t->count)
            t->bytes[at] = (char)random_below(256);
        break;
    case 2: /* the end is missing */
        t->count = at;
        break;
    case 3: /* a piece is missing */
        length = at + length > t->count ? t->count - at : length;
        memmove(t->bytes + at, t->bytes + at + length, t->count - at - length);
        t->count -= length;
        break;
    case 4: /* a piece is there twice */
        length = at + length > t->count ? t->count - at : length;
        insert(t, at, t->bytes + at, length);
        break;
    case 5:
        if (random_below(8) == 0 && at < t->count) {
            blow_up(t, at);
            break;
        }
        /* fall through */
    default:
        insert_word(t, at);
        break;
    }
    t->bytes[t->count] = '\0';
}

/* ---- the program ---- */

/* One line that begins with "fsdp: " and that a terminal only prints; nothing where all went well. */
static void check_output(const program *p, const char *what, int number)
{
    const char *said = p->output;
    size_t length = strcspn(said, "\n");

    if (p->status == 0 && strncmp(said, "fsdp: ", 6) != 0)
        return;
    if ((p->status != 1 && p->status != 2) || strncmp(said, "fsdp: ", 6) != 0 || said[length] != '\n' ||
        said[length + 1])
        TEST_FAIL("%s %d: status %d, and it says:\n%.2000s", what, number, p->status, said);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)said[i] < 0x20 || said[i] == 0x7F)
            TEST_FAIL("%s %d: byte %d in its message:\n%.2000s", what, number, said[i], said);
}

/* Of all programs that this one has started. */
static void check_memory(void)
{
    struct rusage usage;

    CHECK_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
    if (!TEST_SANITIZED && usage.ru_maxrss > LARGEST_RSS)
        TEST_FAIL("one took %ld KiB of memory", usage.ru_maxrss);
}

/* ---- the tests ---- */

FIXTURE_TEST(damaged_files_are_refused_in_one_line)
{
    text t = {.bytes = malloc(2 * MOST_BYTES)};
    char *whole, *path = test_path(f->directory, "damaged.yaml"), *nowhere = test_path(f->directory, "none");
    char data[600];
    size_t bytes;

    random_state = 0x9E3779B97F4A7C15u;
    whole = test_read_file(f->config, &bytes);
    snprintf(data, sizeof data, "--data.path=%s", nowhere);
    for (int i = 0; i < cases(); i++) {
        /* What is still a config is printed, or, with data that is not there, taken up to where data is opened. */
        const char *const argv[] = {PROGRAM, "train", path, i % 2 ? data : "--print-config", NULL};
        program p;

        memcpy(t.bytes, whole, bytes);
        t.count = bytes;
        for (size_t k = 0, changes = 1 + random_below(4); k < changes; k++)
            damage(&t);
        test_write_file(path, t.bytes, t.count);
        p = program_start(f->directory, argv);
        program_wait(&p);
        check_output(&p, "file", i);
        if (p.status == 0 && i % 2)
            TEST_FAIL("file %d: trained without data", i);
    }
    check_memory();
    free(t.bytes);
}

/* One argument a line; no line starts a program, and what follows the damage ends each of them. */
static const char *const lines[] = {
    "train\nCONFIG\n-n\n2\n--training.steps=3\n--optimizer.lr\n1e-3",
    "train\n--data.path=[a, 'b c', \"d\"]\n--data.path\ne\nCONFIG\n--training.seed\n-1",
    "train\n-np\n4\n--model.preset=llama-1m\n--model.dim=64\n--model.init=random\n--metrics.jsonl=",
    "train\n--help\n--print-config\n--ranks=3",
    "run\n-n\n3\n-np\n4\n--ranks=2",
    "generate\n/nonexistent/model\n--prompt\ntext\n--temperature=0.5\n--top-k\n3\n--seed=7\n--max-new-tokens=5",
    "generate\n/nonexistent/model\n--tokens\n1,2,3\n-p\nx",
    "inspect\n/nonexistent/model\n-h",
};

/* Splits `t` into `argv` in place; returns how many. */
static int split(text *t, fixture *f, const char **argv)
{
    int count = 0;
    char *rest = t->bytes;

    argv[count++] = PROGRAM;
    for (char *argument; count < MOST_ARGUMENTS && (argument = strsep(&rest, "\n"));) {
        if (strlen(argument) > 100000) /* of what Linux takes */
            argument[100000] = '\0';
        argv[count++] = strcmp(argument, "CONFIG") == 0 ? f->config : argument;
    }
    if (strcmp(argv[1], "train") == 0) {
        argv[count++] = "-n1";
        argv[count++] = "--print-config";
    }
    argv[count] = NULL;
    return count;
}

FIXTURE_TEST(damaged_command_lines_are_refused_in_one_line)
{
    text t = {.bytes = malloc(2 * MOST_BYTES)};

    random_state = 0xD1B54A32D192ED03u;
    for (int i = 0; i < cases(); i++) {
        const char *line = lines[(size_t)i % (sizeof lines / sizeof lines[0])], *argv[MOST_ARGUMENTS + 4];
        program p;

        t.count = strlen(line);
        memcpy(t.bytes, line, t.count);
        for (size_t k = 0, changes = random_below(4); k < changes; k++)
            damage(&t);
        t.bytes[t.count] = '\0';
        split(&t, f, argv);
        p = program_start(f->directory, argv);
        program_wait(&p);
        if (strncmp(p.output, "fsdp ", 5) != 0 || p.status != 0) /* "--help" may be what it has become */
            check_output(&p, "command line", i);
    }
    check_memory();
    free(t.bytes);
}
