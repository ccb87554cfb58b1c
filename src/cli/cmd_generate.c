/* cmd_generate.c - fsdp generate FOLDER: continues a text or a list of token ids. With -n N this process starts N ranks
 * of itself, hands them the prompt and waits for them; a rank (or the only process) joins by the environment. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/continuation.h"
#include "cli/own_process.h"
#include "cli/torchrun.h"
#include "device/device.h"

#define RANK_OPTION "as-rank" /* tells a rank that a process of this program started it, and where its prompt is */

static void usage(void)
{
    puts("fsdp generate FOLDER --prompt TEXT | --prompt-file FILE | --tokens 1,2,3\n"
         "fsdp generate FOLDER --chat [--system TEXT] [--prompt TEXT]\n"
         "\n"
         "Continues a text with a model. FOLDER is a Hugging Face folder or a checkpoint:\n"
         "step-N, step-best (the best validation), or a folder of checkpoints, whose\n"
         "newest is used.\n"
         "\n"
         "  --prompt TEXT           the text to continue; tokens are made by FOLDER's\n"
         "                          tokenizer, or are bytes\n"
         "  --prompt-file FILE      a file with the text; '-' is standard input\n"
         "  --tokenizer FOLDER      use the tokenizer of another folder, or a\n"
         "                          tokenizer.json; bytes: tokens are bytes\n"
         "  --chat                  talk with the model, by FOLDER's chat template: each\n"
         "                          line of standard input is a message, and its answer is\n"
         "                          printed; with --prompt there is this one message\n"
         "  --system TEXT           the system message of the talk\n"
         "  --chat-template FILE    another template, in Jinja\n"
         "  --tokens IDS            the token ids to continue; all ids are printed on one\n"
         "                          line\n"
         "  --max-new-tokens N      number of tokens to add; default 200\n"
         "  --temperature T         default 0.8; 0: always the most likely token\n"
         "  --top-k K               choose among the K most likely tokens; default 0:\n"
         "                          among all\n"
         "  --top-p P               choose among the fewest tokens that together have\n"
         "                          probability P, above 0; default 1: all\n"
         "  --seed S                default 0\n"
         "  --ignore-eos            continue after the token that ends a text\n"
         "                          (eos_token_id)\n"
         "  --adapter DIR           a folder of peft (LoRA): compute with the adapter in\n"
         "                          it beside the model's weights; DIR,DIR: each of\n"
         "                          several continues the text\n" FSDP__FOLDER_MODEL_HELP
         "  --comm-timeout SECONDS  how long to wait for a rank that stands still; default\n"
         "                          300; 0: for ever\n"
         "\n"
         "When the text becomes longer than the model's context, its later half is kept.");
}

/* ---- the command line ---- */

typedef struct texts {
    const char *prompt, *file, *most, *temperature, *top_k, *top_p, *seed, *dtype, *device, *timeout, *ranks, *rank_fd,
        *adapter, *team, *sequences;
    fsdp__torchrun torchrun;
} texts;

static fsdp_status read_numbers(const texts *t, fsdp__continuation *c)
{
    double temperature = 0.8, top_p = 1;
    int64_t seed = 0;

    c->options.max_new_tokens = 200;
    FSDP_TRY(fsdp__args_integer("--max-new-tokens", t->most, 0, 1 << 24, &c->options.max_new_tokens));
    FSDP_TRY(fsdp__args_number("--temperature", t->temperature, 0, 1000, &temperature));
    FSDP_TRY(fsdp__args_integer("--top-k", t->top_k, 0, 1 << 24, &c->options.top_k));
    FSDP_TRY(fsdp__args_number("--top-p", t->top_p, 0, 1, &top_p));
    if ((float)top_p <= 0) /* as an option of the library that would be: all */
        return FSDP_FAIL(FSDP_INVALID, "--top-p is '%s': expected a number above 0 and up to 1", t->top_p);
    FSDP_TRY(fsdp__args_integer("--seed", t->seed, 0, INT64_MAX, &seed));
    if ((float)temperature <= 0 && (t->top_k || t->top_p || t->seed))
        return FSDP_FAIL(FSDP_INVALID,
                         "generate: --temperature 0 takes the most likely token, and --%s has no effect: leave one of "
                         "them out",
                         t->top_k   ? "top-k"
                         : t->top_p ? "top-p"
                                    : "seed");
    c->options.temperature = (float)temperature;
    c->options.top_p = (float)top_p;
    c->options.seed = (uint64_t)seed;
    FSDP_TRY(fsdp__comm_timeout_option(t->timeout, &c->comm_timeout));
    c->device = t->device;
    FSDP_TRY(fsdp__team_option("--tensor-parallel", t->team, &c->team));
    FSDP_TRY(fsdp__adapters_read(t->adapter, &c->adapters));
    if (c->adapters.count > 1 && c->chat && !t->prompt && !t->file && !t->rank_fd)
        return FSDP_FAIL(FSDP_INVALID, "generate: --chat talks with one adapter: give --prompt TEXT to ask several");
    if (c->device)
        FSDP_TRY(fsdp__device_name_check("--device", c->device));
    c->dtype = FSDP_DTYPE_NONE;
    return t->dtype ? fsdp__dtype_option(t->dtype, &c->dtype) : FSDP_OK;
}

static fsdp_status check_ids(const char *ids)
{
    const char *at = ids;

    for (;;) {
        char *end;
        long value = strtol(at, &end, 10);

        if (end == at || (*end && *end != ',') || value < 0 || value > INT32_MAX)
            return FSDP_FAIL(FSDP_INVALID, "generate: --tokens is '%s': expected token ids with commas between them",
                             ids);
        if (!*end)
            return FSDP_OK;
        at = end + 1;
    }
}

static fsdp_status check_line(const texts *t, const fsdp__continuation *c)
{
    if (t->sequences)
        return FSDP_FAIL(FSDP_INVALID, "generate: there is no --context-parallel: tokens are made one at a time, which "
                                       "is no sequence to cut over ranks; --tensor-parallel N shares each layer, and "
                                       "-n alone the weights");
    if (!c->path)
        return FSDP_FAIL(FSDP_INVALID, "generate: no model folder given; see 'fsdp generate --help'");
    if (c->chat && c->ids)
        return FSDP_FAIL(FSDP_INVALID, "generate: --chat makes its own tokens: leave --tokens out");
    if (!t->rank_fd && !t->prompt + !t->file + !c->ids != 2 && !(c->chat && !t->prompt && !t->file))
        return FSDP_FAIL(FSDP_INVALID, "generate: give either --prompt TEXT or --tokens 1,2,3, or --prompt-file FILE");
    if (t->prompt && !*t->prompt)
        return FSDP_FAIL(FSDP_INVALID, "generate: --prompt is empty: give at least one character");
    return c->ids ? check_ids(c->ids) : FSDP_OK;
}

/* ---- the two roles ---- */

static int run(fsdp__continuation *c, const fsdp__ranks *ranks)
{
    if (c->as_rank)
        (void)signal(SIGPIPE, SIG_IGN); /* if it ended one rank, all ranks would fail */
    else
        fsdp__explain_bus_errors();
    if (fsdp__continuation_run(c, ranks) == FSDP_OK)
        return 0;
    if (c->as_rank)
        return FSDP__FAILED;
    return c->joined ? fsdp__rank_failure(ranks) : fsdp__ranks_fail_to_join(ranks);
}

/* Starts the ranks. They get the command line as it is, and the prompt if it came from elsewhere. */
static int launch(const fsdp__continuation *c, int ranks, int argc, char **argv)
{
    FSDP__FREED const char **line = fsdp__calloc((size_t)argc + 3, sizeof *line); /* ends with NULL */
    fsdp_launch_options options = {.ranks = ranks, .argv = line};
    char as_rank[40] = "--" RANK_OPTION "=-1";
    FSDP__CLOSED int fd = -1;

    if (!line || (c->prompt.text && fsdp__prompt_hand_over(&c->prompt, &fd) != FSDP_OK))
        return fsdp__failure("%s", fsdp_last_error());
    if (fd >= 0)
        snprintf(as_rank, sizeof as_rank, "--" RANK_OPTION "=%d", fd);
    line[0] = "/proc/self/exe";
    line[1] = "generate";
    line[2] = as_rank;
    for (int i = 1; i < argc; i++) /* one step-N for all, whatever is saved in the meantime */
        line[i + 2] = argv[i] == c->path ? c->folder.path : argv[i];
    return fsdp__launch_ranks(&options);
}

static int be_rank(fsdp__continuation *c, const char *fd_text)
{
    int64_t fd = -1;

    c->as_rank = true;
    if (fsdp__args_integer("--" RANK_OPTION, fd_text, -1, INT_MAX, &fd) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if ((fd >= 0 && fsdp__prompt_take_over((int)fd, &c->prompt) != FSDP_OK) || fsdp__continuation_prepare(c) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return run(c, NULL);
}

static int with_line(fsdp__continuation *c, texts *t, int argc, char **argv)
{
    fsdp__ranks ranks;

    if (check_line(t, c) != FSDP_OK || read_numbers(t, c) != FSDP_OK)
        return fsdp__line_refuse();
    if (t->rank_fd)
        return be_rank(c, t->rank_fd);
    if (fsdp__torchrun_read("generate", &t->torchrun, &t->ranks) != FSDP_OK ||
        fsdp__ranks_read(t->ranks, &ranks) != FSDP_OK)
        return fsdp__line_refuse();
    if (c->chat && !t->prompt && !t->file && (ranks.count > 1 || ranks.joins))
        return fsdp__usage_error("generate: --chat reads messages line by line in one process: give --prompt TEXT to "
                                 "ask several ranks, or leave -n out");
    if (ranks.over_mpi && ranks.count != 1 && t->file && strcmp(t->file, "-") == 0)
        return fsdp__usage_error("generate: --prompt-file - is standard input, but of the ranks that %s has started "
                                 "only rank 0 has one: name a file that all of them see",
                                 ranks.starter);
    if ((t->file && fsdp__prompt_read(t->file, &c->prompt) != FSDP_OK) ||
        (t->prompt && fsdp__prompt_copy(t->prompt, &c->prompt) != FSDP_OK) ||
        fsdp__continuation_prepare(c) != FSDP_OK ||
        fsdp__folder_model_check(&c->config, ranks.count, c->team, 1) != FSDP_OK)
        return fsdp__ranks_refuse(&ranks, FSDP__FAILED);
    return ranks.count > 1 && !ranks.joins ? launch(c, (int)ranks.count, argc, argv) : run(c, &ranks);
}

int fsdp__cmd_generate(int argc, char **argv)
{
    static const char *const local[] = {"", "prompt-file", "tokenizer", "adapter",
                                        NULL}; /* the contents are compared instead */
    FSDP__SCOPED(fsdp__continuation_release) fsdp__continuation c = {.path = NULL};
    texts t = {.prompt = NULL};
    const fsdp__option options[] = {{"prompt", 'p', &t.prompt, NULL},
                                    {"prompt-file", 0, &t.file, NULL},
                                    {"tokens", 0, &c.ids, NULL},
                                    {"max-new-tokens", 0, &t.most, NULL},
                                    {"temperature", 0, &t.temperature, NULL},
                                    {"top-k", 0, &t.top_k, NULL},
                                    {"top-p", 0, &t.top_p, NULL},
                                    {"seed", 0, &t.seed, NULL},
                                    {"dtype", 0, &t.dtype, NULL},
                                    {"device", 0, &t.device, NULL},
                                    {"adapter", 0, &t.adapter, NULL},
                                    {"tokenizer", 0, &c.tokenizer, NULL},
                                    {"ignore-eos", 0, NULL, &c.ignore_eos},
                                    {"chat", 0, NULL, &c.chat},
                                    {"system", 0, &c.system, NULL},
                                    {"chat-template", 0, &c.chat_template, NULL},
                                    {"comm-timeout", 0, &t.timeout, NULL},
                                    {"tensor-parallel", 0, &t.team, NULL},
                                    {"context-parallel", 0, &t.sequences, NULL}, /* to be refused by name */
                                    {"ranks", 'n', &t.ranks, NULL},
                                    {"np", 0, &t.ranks, NULL},
                                    FSDP__TORCHRUN_OPTIONS(&t.torchrun),
                                    {RANK_OPTION, 0, &t.rank_fd, NULL},
                                    {0}};
    static const fsdp__option_rule rules[] = {
        {"system", "chat", NULL}, {"chat-template", "chat", NULL}, {"tokenizer", NULL, "tokens"}, {0}};
    fsdp__args args = {.options = options, .rules = rules, .positional_most = 1};

    c.line = (fsdp__line){.command = "generate", .args = &args, .local = local};
    if (fsdp__args_parse(&args, "generate", argc, argv) != FSDP_OK)
        return fsdp__line_refuse();
    if (args.help) {
        usage();
        return 0;
    }
    c.path = args.positional_count > 0 ? args.positional[0] : NULL;
    return with_line(&c, &t, argc, argv);
}
