/* The command line: where options may stand, what they take, and what a wrong one is told. */
#include "config/args.h"
#include "support/test.h"

/* What the options of these tests set. */
typedef struct values {
    const char *count;
    bool help;
    char dotted[64];
} values;

static fsdp_status take(void *arg, const char *key, const char *value)
{
    values *v = arg;

    snprintf(v->dotted, sizeof v->dotted, "%s=%s", key, value);
    return strcmp(key, "a.bad") == 0 ? FSDP_FAIL(FSDP_INVALID, "not this one") : FSDP_OK;
}

/* Parses "program WORDS...". */
static fsdp_status parse(values *v, fsdp__args *args, bool dotted, const char *const *words)
{
    const fsdp__option options[] = {{"count", 'c', &v->count, NULL}, {"help", 'h', NULL, &v->help}, {0}};
    char *argv[10] = {(char[]){"do"}};
    int argc = 1;
    fsdp_status status;

    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    *v = (values){0};
    *args = (fsdp__args){.options = options, .dotted = dotted ? take : NULL, .arg = v, .positional_most = 1};
    status = fsdp__args_parse(args, "do", argc, argv);
    args->options = NULL;
    if (args->rest) /* argv ends here: what is kept points into `words` */
        CHECK_STRING(args->rest[0], "--count");
    args->rest = NULL;
    return status;
}
#define PARSE(dotted, ...) parse(&v, &args, (dotted), (const char *const[]){__VA_ARGS__, NULL})

TEST(options_stand_anywhere_until_two_dashes)
{
    values v;
    fsdp__args args;

    CHECK_OK(PARSE(false, "--count", "3", "file", "-h"));
    CHECK_STRING(v.count, "3");
    CHECK(v.help);
    CHECK_STRING(args.positional[0], "file");
    CHECK_OK(PARSE(false, "-c4"));
    CHECK_STRING(v.count, "4");
    CHECK_OK(PARSE(false, "-c=2"));
    CHECK_STRING(v.count, "2");
    CHECK_OK(PARSE(false, "-count", "4"));
    CHECK_STRING(v.count, "4");
    CHECK_OK(PARSE(false, "-c", "-3"));
    CHECK_STRING(v.count, "-3");
    CHECK_ERROR(PARSE(false, "--count", "--help"), FSDP_INVALID, "if it is '--help', write '--count=--help'");
    CHECK_ERROR(PARSE(false, "-count", "--"), FSDP_INVALID, "if it is '--', write '-count=--'");
    CHECK_OK(PARSE(false, "--count=4", "--count", "5"));
    CHECK_STRING(v.count, "5");
    CHECK_OK(PARSE(false, "--count=5"));
    CHECK_STRING(v.count, "5");
    CHECK_OK(PARSE(false, "--", "--count", "6"));
    CHECK_NULL(v.count);
    CHECK_EQ(args.positional_count, 0);
}

TEST(dotted_options_go_to_the_config)
{
    values v;
    fsdp__args args;

    CHECK_OK(PARSE(true, "--a.b=c=d"));
    CHECK_STRING(v.dotted, "a.b=c=d");
    CHECK_OK(PARSE(true, "--a.b", "c", "file"));
    CHECK_STRING(v.dotted, "a.b=c");
    CHECK_STRING(args.positional[0], "file");
    CHECK_OK(PARSE(true, "--a.b", "-1"));
    CHECK_STRING(v.dotted, "a.b=-1");
    CHECK_OK(PARSE(true, "--a.b="));
    CHECK_STRING(v.dotted, "a.b=");
    CHECK_OK(PARSE(true, "--a.b=--c"));
    CHECK_STRING(v.dotted, "a.b=--c");
    CHECK_ERROR(PARSE(true, "--a.b"), FSDP_INVALID, "do: '--a.b' needs a value");
    CHECK_ERROR(PARSE(true, "--a.b", "--c"), FSDP_INVALID,
                "do: '--a.b' needs a value: if it is '--c', write '--a.b=--c'");
    CHECK_ERROR(PARSE(true, "--a.bad=1", "file"), FSDP_INVALID, "not this one");
    CHECK_EQ(args.positional_count, 0); /* nothing is read after a failure */
    CHECK_ERROR(PARSE(false, "--a.b=c"), FSDP_INVALID, "do: unknown option '--a.b=c'");
}

TEST(a_word_may_begin_what_follows)
{
    bool help = false;
    const fsdp__option options[] = {{"help", 'h', NULL, &help}, {0}};
    fsdp__args args = {.options = options, .runs = true};
    char *words[] = {"do", "-h", "program", "--its", "--", "own", NULL}, *dashes[] = {"do", "--", "-h", NULL};

    CHECK_OK(fsdp__args_parse(&args, "do", 6, words));
    CHECK(help && args.rest == words + 2 && args.positional_count == 0);
    CHECK_OK(fsdp__args_parse(&args, "do", 3, dashes));
    CHECK(args.rest == dashes + 2);
}

TEST(what_is_wrong_is_said)
{
    values v;
    fsdp__args args;
    int64_t integer = 9;
    double number = 9;

    CHECK_ERROR(PARSE(false, "--cuont"), FSDP_INVALID, "do: unknown option '--cuont'; did you mean '--count'?");
    CHECK_ERROR(PARSE(false, "-z"), FSDP_INVALID, "do: unknown option '-z'; see 'fsdp do --help'");
    CHECK_ERROR(PARSE(false, "--help=1"), FSDP_INVALID, "do: '--help' takes no value");
    CHECK_ERROR(PARSE(false, "--count"), FSDP_INVALID, "do: '--count' needs a value");
    CHECK_ERROR(PARSE(false, "a", "b"), FSDP_INVALID, "do: unexpected argument 'b'");
    CHECK_ERROR(fsdp__args_integer("-n", "3x", 1, 4, &integer), FSDP_INVALID,
                "-n is '3x': expected an integer from 1 to 4");
    CHECK_ERROR(fsdp__args_integer("-n", "5", 1, 4, &integer), FSDP_INVALID, "-n is '5'");
    CHECK_EQ(integer, 9);
    CHECK_OK(fsdp__args_integer("-n", "4", 1, 4, &integer));
    CHECK_EQ(integer, 4);
    CHECK_ERROR(fsdp__args_number("-t", "nan", 0, 1, &number), FSDP_INVALID,
                "-t is 'nan': expected a number from 0 to 1");
    CHECK_OK(fsdp__args_number("-t", "0.5", 0, 1, &number));
    CHECK_NEAR(number, 0.5, 0);
}
