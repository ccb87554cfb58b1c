/* main.c - picks the command. */
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "config/nearest.h"
#include "launch/descriptors.h"

typedef struct command {
    const char *name, *usage, *does;
    int (*run)(int argc, char **argv);
    bool computes; /* it computes in this process, with threads */
} command;

static const command commands[] = {
    {"train", "fsdp train CONFIG.yaml [-n RANKS] [--section.key=value ...]", "train a model, fully sharded",
     fsdp__cmd_train, true},
    {"explain", "fsdp explain FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--strategy NAME]",
     "show what a strategy does to a model, and what a step would cost", fsdp__cmd_explain, false},
    {"plan", "fsdp plan FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--machines MACHINES]",
     "say whether a run will fit, and how long it will take", fsdp__cmd_plan, false},
    {"compare", "fsdp compare CONFIG.yaml|PRESET -n RANKS [--strategies LIST]",
     "train some steps with each strategy, and compare what they cost", fsdp__cmd_compare, false},
    {"report", "fsdp report RUN... [-o REPORT.html]", "show what runs did, what stands out, and how they differ",
     fsdp__cmd_report, false},
    {"run", "fsdp run -n RANKS -- PROGRAM [ARGS]", "start the ranks of your own program", fsdp__cmd_run, false},
    {"generate", "fsdp generate FOLDER --prompt TEXT | --tokens 1,2,3 [-n RANKS]",
     "continue a text with a model folder", fsdp__cmd_generate, true},
    {"eval", "fsdp eval FOLDER --data FILE [-n RANKS]", "print the loss and perplexity of a model folder or checkpoint",
     fsdp__cmd_eval, true},
    {"inspect", "fsdp inspect PATH | --devices [--json]",
     "show what is in a model folder, weights or a checkpoint; list devices", fsdp__cmd_inspect, false},
    {"verify", "fsdp verify PATH", "read a whole checkpoint or model folder, and say whether it is intact",
     fsdp__cmd_verify, false},
    {"tokenize", "fsdp tokenize IN... -o OUT.bin --tokenizer FOLDER", "turn text into a file of tokens, on all cores",
     fsdp__cmd_tokenize, false},
    {"diff", "fsdp diff A B", "say which tensors of two models are equal, and how far apart others are", fsdp__cmd_diff,
     false},
    {"convert", "fsdp convert FROM TO [--ranks N] [--dtype DTYPE]",
     "turn a checkpoint into a Hugging Face folder, or change its ranks", fsdp__cmd_convert, false},
    {"flight", "fsdp flight FOLDER|FILE...", "say what ranks did last, and which one the others wait for",
     fsdp__cmd_flight, false},
    {"repair", "fsdp repair FOLDER", "finish an interrupted save into a model folder", fsdp__cmd_repair, false},
};
enum {
    COMMANDS = sizeof commands / sizeof commands[0]
};

static int help(FILE *to)
{
    fprintf(to, "fsdp %s: fully sharded data parallel training\n\n", FSDP_VERSION);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(to, "  %s\n      %s\n", commands[i].usage, commands[i].does);
    fputs("\n  fsdp COMMAND --help    options of a command\n"
          "  fsdp --version\n",
          to);
    return 0;
}

static int unknown(const char *name)
{
    const char *names[COMMANDS + 2];
    const char *near;
    char known[300] = "";

    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    names[COMMANDS] = "help";
    names[COMMANDS + 1] = NULL;
    near = fsdp__nearest(name, names);
    if (near)
        return fsdp__usage_error("unknown command '%s'; did you mean '%s'?", name, near);
    for (int i = 0; i < COMMANDS; i++) {
        size_t used = strlen(known);

        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", commands[i].name);
    }
    return fsdp__usage_error("unknown command '%s': there are %s and help", name, known);
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (argc < 2) {
        help(stderr);
        return FSDP__USAGE;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("fsdp %s\n", FSDP_VERSION);
        return 0;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (strcmp(name, "help") == 0 && argc == 2))
        return help(stdout);
    if (strcmp(name, "help") == 0) { /* fsdp help train = fsdp train --help */
        static char flag[] = "--help";

        name = argv[2];
        argv[1] = argv[2];
        argv[2] = flag;
        argc = 3;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(name);
}

/* Blocks SIGUSR1, "save now", and SIGUSR2, "show your last calls", which may come before there is anything to save or
 * show: they wait until somebody looks for them. */
static void hold_back_wishes(const char *name)
{
    sigset_t wishes;

    sigemptyset(&wishes);
    sigaddset(&wishes, SIGUSR1);
    sigaddset(&wishes, SIGUSR2);
    if (strcmp(name, "train") == 0)
        (void)pthread_sigmask(SIG_BLOCK, &wishes, NULL);
}

/* Checks that this user may read, change and remove what a command makes. Call it while there is one thread. */
static fsdp_status check_umask(void)
{
    mode_t mask = umask(0);

    (void)umask(mask);
    if ((mask & S_IRWXU) == 0)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_INVALID,
        "umask %03o takes your own rights from files and folders that you make, so nobody could go on with "
        "them: set another first, such as 'umask 022'",
        (unsigned)mask);
}

/* Checks that calls find room, since a stack that ends is a signal that names nothing. */
static fsdp_status check_stack(void)
{
    const uint64_t least = (uint64_t)256 << 10, limit = fsdp__stack_limit();

    return limit >= least ? FSDP_OK
                          : FSDP_FAIL(FSDP_NO_MEMORY,
                                      "'ulimit -s' leaves a stack of %llu KiB, and fsdp needs %llu: raise the limit",
                                      (unsigned long long)limit >> 10, (unsigned long long)least >> 10);
}

/* Prepares the process before anything is read or printed. */
static fsdp_status prepare(int argc, char **argv)
{
    unsigned taken;

    FSDP_TRY(check_stack());
    hold_back_wishes(argc > 1 ? argv[1] : "");
    FSDP_TRY(fsdp__take_standard_descriptors(&taken));
    fsdp__leave_process_one();
    if (argc > 1 && strcmp(argv[1], "run") != 0)
        FSDP_TRY(check_umask());
    for (int i = 0; i < COMMANDS && argc > 1; i++)
        if (commands[i].computes && strcmp(commands[i].name, argv[1]) == 0)
            fsdp__start_with_short_spin(argv);
    (void)prctl(PR_SET_NAME, "fsdp"); /* it may have been started as /proc/self/exe */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    /* A file that may not grow is an error that names the file. The programs of `fsdp run` get the signal as usual. */
    if (argc > 1 && strcmp(argv[1], "run") != 0)
        (void)signal(SIGXFSZ, SIG_IGN);
    fsdp__die_in_order();
    return FSDP_OK;
}

/* Copies the arguments into one block, because `ps` may later show something else where they are now
 * (fsdp__ranks_title). */
static char **copy_arguments(int argc, char **argv)
{
    size_t bytes = (size_t)(argc + 1) * sizeof *argv;
    char **copy, *at;

    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    copy = fsdp__malloc(bytes);
    if (!copy)
        return NULL;
    at = (char *)(copy + argc + 1);
    for (int i = 0; i < argc; i++) {
        copy[i] = at;
        at = stpcpy(at, argv[i]) + 1;
    }
    copy[argc] = NULL;
    return copy;
}

int main(int argc, char **argv)
{
    FSDP__FREED char **arguments = copy_arguments(argc, argv);
    char text[256];
    int status;

    if (!arguments || prepare(argc, arguments) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = dispatch(argc, arguments);
    if (status == 0 && fsdp__output_failed(text, sizeof text))
        return fsdp__failure("%s", text);
    return status;
}
