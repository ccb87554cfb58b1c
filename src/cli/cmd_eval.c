/* cmd_eval.c - fsdp eval FOLDER --data FILE: loss and perplexity of a model. With -n N this process starts N ranks of
 * itself and waits for them; a rank (or the only process) joins by the environment. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "cli/eval.h"
#include "cli/finite_values.h"
#include "cli/folder_model.h"
#include "cli/own_process.h"
#include "cli/token_text.h"
#include "device/device.h"
#include "nn/module.h"
#include "train/evaluate.h"
#include "train/same_device.h"
#include "train/same_facts.h"

/* Tells a rank which model to read. */
#define RANK_OPTION "as-rank"

enum {
    USUAL_BATCH = 8
};

static void usage(void)
{
    puts("fsdp eval FOLDER --data FILE [-n RANKS]\n"
         "\n"
         "Prints the mean loss of all tokens and the perplexity, exp(loss), of a model.\n"
         "FOLDER is a Hugging Face folder or a checkpoint: step-N, step-best (the best\n"
         "validation), or a folder of checkpoints, whose newest is used. Text (.txt,\n"
         ".jsonl, also .gz and .zst) is read with the model's tokenizer. Of conversations\n"
         "(JSON lines with messages and the like) the answers count; pairs of answers\n"
         "(chosen, rejected) are compared: DPO's loss, rewards, margin and accuracy.\n"
         "\n"
         "  --data FILE             what to predict: a file, a folder of files, or a\n"
         "                          pattern ('data/*.bin')\n"
         "  --format FORMAT         auto (the default: by llm.c's header, else by name),\n"
         "                          text or tokens\n"
         "  --tokenizer FOLDER      use the tokenizer of another folder, or a\n"
         "                          tokenizer.json; bytes: tokens are bytes; default:\n"
         "                          FOLDER's, or bytes if the vocabulary is 256\n"
         "  --field NAME            the field of JSON lines with the text; default text\n"
         "  --chat-template FILE    another template of conversations, in Jinja\n"
         "  --train-on WHAT         what counts of conversations: answers (default) or all\n"
         "  --on-long-row WHAT      what to do with a conversation of more than --seq-len\n"
         "                          tokens: error (the default), truncate, split or skip\n"
         "  --on-bad-line WHAT      what to do with a line that is not a JSON object or\n"
         "                          has no text in the field; error (the default): end the\n"
         "                          command; skip: leave the line out and count it\n"
         "  --seq-len N             tokens of a window; each is predicted from those\n"
         "                          before it; default 1024, or as many as the model takes\n"
         "  --batch-size N          windows that a rank computes together; default 8\n"
         "  --steps N               only the first N batches of all ranks; default all\n"
         "  --cache FOLDER          keeps tokens of text; default: that of fsdp train\n"
         "  --adapter DIR           a folder of peft (LoRA): the model computes with it;\n"
         "                          of several (A,B,C) the loss of each is printed\n"
         "  --reference FOLDER      of pairs: the model to compare with; with --adapter it\n"
         "                          is the model without it if no other is named\n"
         "  --beta NUMBER           what differences to it are multiplied by; default 0.1\n" FSDP__FOLDER_MODEL_HELP
         "  --context-parallel N    ranks that share each window: 2 N must divide it;\n"
         "                          not of pairs\n"
         "  --comm-timeout SECONDS  how long to wait for a rank that stands still; default\n"
         "                          300; 0: for ever\n"
         "\n"
         "The results are the same for any number of ranks. A loss that is NaN or infinite\n"
         "is an error, which names the weights that are not finite.");
}

/* ---- the command line ---- */

static fsdp_status read_choice(const char *option, const char *text, const char *const *choices, const char *expected,
                               int *out)
{
    *out = 0;
    for (int i = 0; text && choices[i]; i++)
        if (strcmp(text, choices[i]) == 0) {
            *out = i;
            return FSDP_OK;
        }
    return text ? FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected %s", option, text, expected) : FSDP_OK;
}

static fsdp_status read_format(const char *text, fsdp_token_format *out)
{
    static const char *const names[] = {"auto", "text", "tokens", NULL};
    static const fsdp_token_format formats[] = {FSDP_TOKENS_AUTO, FSDP_TOKENS_TEXT, FSDP_TOKENS_BINARY};
    int chosen;

    FSDP_TRY(read_choice("--format", text, names, "auto, text or tokens", &chosen));
    *out = formats[chosen];
    return FSDP_OK;
}

/* Reads what is said of conversations. */
static fsdp_status read_packing(fsdp__eval *e)
{
    static const char *const learned[] = {"answers", "all", NULL};
    static const char *const long_rows[] = {"error", "truncate", "split", "skip", NULL};
    int all, long_row;

    FSDP_TRY(read_choice("--train-on", e->train_on, learned, "answers or all", &all));
    FSDP_TRY(read_choice("--on-long-row", e->long_row_text, long_rows, "error, truncate, split or skip", &long_row));
    e->packing =
        (fsdp__packing_options){.packing = FSDP_PACKING_NEXT_FIT, .long_row = (fsdp_long_row)long_row, .all = all == 1};
    return FSDP_OK;
}

static fsdp_status read_line(fsdp__eval *e)
{
    FSDP_TRY(fsdp__adapters_read(e->adapters_text, &e->adapters));
    e->options.local_batch = USUAL_BATCH;
    e->dtype = FSDP_F32;
    e->beta = 0.1;
    if (e->rank_path)
        e->path = e->rank_path;
    if (!e->path)
        return FSDP_FAIL(FSDP_INVALID, "eval: no model folder given; see 'fsdp eval --help'");
    if (!e->data)
        return FSDP_FAIL(FSDP_INVALID, "eval: no data given: --data FILE");
    FSDP_TRY(fsdp__torchrun_read("eval", &e->torchrun, &e->ranks_text));
    if (!e->rank_path)
        FSDP_TRY(fsdp__ranks_read(e->ranks_text, &e->ranks));
    FSDP_TRY(fsdp__comm_timeout_option(e->timeout_text, &e->comm_timeout));
    if (e->seq_len_text)
        FSDP_TRY(fsdp__args_integer("--seq-len", e->seq_len_text, 1, 1 << 28, &e->options.seq_len));
    if (e->batch_text)
        FSDP_TRY(fsdp__args_integer("--batch-size", e->batch_text, 1, 1 << 24, &e->options.local_batch));
    if (e->steps_text)
        FSDP_TRY(fsdp__args_integer("--steps", e->steps_text, 1, INT64_MAX, &e->options.steps));
    if (e->dtype_text)
        FSDP_TRY(fsdp__dtype_option(e->dtype_text, &e->dtype));
    FSDP_TRY(fsdp__team_option("--tensor-parallel", e->tp_text, &e->tp));
    FSDP_TRY(fsdp__team_option("--context-parallel", e->cp_text, &e->cp));
    e->options.ranks_per_batch = e->tp * e->cp;
    if (e->device)
        FSDP_TRY(fsdp__device_name_check("--device", e->device));
    if (e->beta_text)
        FSDP_TRY(fsdp__args_number("--beta", e->beta_text, 0, 1e9, &e->beta));
    if (!(e->beta > 0)) /* as dpo.beta of a run */
        return FSDP_FAIL(FSDP_INVALID, "--beta is '%s': expected a number greater than 0", e->beta_text);
    FSDP_TRY(read_format(e->format_text, &e->format));
    FSDP_TRY(fsdp__bad_line_option(e->bad_line_text, &e->skips_bad_lines));
    FSDP_TRY(read_packing(e));
    if (e->rank_data) {
        e->data = e->rank_data;
        e->format = FSDP_TOKENS_BINARY;
    }
    return FSDP_OK;
}

/* Checks that there is a GPU if one was named: its text may take long to read. */
static fsdp_status check_device(const fsdp__eval *e)
{
    char kind[FSDP__DEVICE_KIND];
    int ordinal, count;

    if (!e->device || !fsdp__device_name_split(e->device, kind, &ordinal) || strcmp(kind, "cuda") != 0)
        return FSDP_OK;
    return fsdp__device_count(kind, &count);
}

/* Checks everything that can be wrong without the other ranks. */
static fsdp_status prepare(fsdp__eval *e)
{
    FSDP_TRY(check_device(e));
    FSDP_TRY(fsdp__model_folder_find(e->path, &e->folder));
    FSDP_TRY(fsdp__folder_adapter_check(&e->folder, &e->adapters));
    FSDP_TRY(fsdp_hub_read_config(e->folder.path, &e->config));
    FSDP_TRY(fsdp__folder_model_check(&e->config, e->ranks.count, e->tp, e->cp)); /* a rank has no count */
    e->options.vocab_size = e->config.vocab_size;
    return fsdp__eval_open_data(e);
}

/* ---- the evaluation ---- */

static void draw(void *arg, int64_t done, int64_t all)
{
    fsdp__eval *e = arg;

    fsdp__bar_draw(&e->bar, done, all);
}

static fsdp_status print_begin(const fsdp__eval *e, fsdp_device *device)
{
    char parameters[40], text[160], adapter[2 * PATH_MAX];

    FSDP_TRY(fsdp__folder_adapter_text(&e->folder, adapter, sizeof adapter));
    printf("model:  %s (%s, %lld layer%s of %lld), %s parameters\n", FSDP__SHOWN_PATH(e->folder.path),
           fsdp_architecture_name(e->config.architecture), (long long)e->config.n_layers,
           fsdp__plural(e->config.n_layers), (long long)e->config.dim,
           fsdp__short_count(fsdp_model_config_parameters(&e->config), parameters, sizeof parameters));
    if (*adapter)
        printf("        %s\n", adapter);
    fsdp__eval_print_data(e);
    if (e->opened.tokens && fsdp_tokens_have_text(e->opened.tokens))
        puts("text:   its bytes are its tokens");
    else if (e->tokens_path || e->rank_data)
        printf("text:   through the tokenizer of '%s'\n",
               FSDP__SHOWN_PATH(e->tokenizer ? e->tokenizer : e->folder.path));
    fsdp__device_describe(device, text, sizeof text);
    if (strcmp(text, "cpu") != 0)
        printf("device: %s\n", text);
    (void)fflush(stdout); /* if stdout is a file, too: what comes next may take long */
    return FSDP_OK;
}

static void print_end(const fsdp__eval *e, const fsdp_evaluation *found, const fsdp__rewards *rewards)
{
    printf("loss: %.6f", found->loss);
    if (fsdp__eval_is_pairs(e))
        printf("  margin: %.6f  accuracy: %.4f  chosen: %.6f  rejected: %.6f", rewards->margin, rewards->accuracy,
               rewards->chosen, rewards->rejected);
    else
        printf("  perplexity: %.6g", found->perplexity);
    printf("  tokens: %s  %s tok/s\n", FSDP__THOUSANDS(found->tokens),
           FSDP__THOUSANDS((int64_t)((double)found->tokens / found->seconds + 0.5)));
}

/* Writes the facts that must agree. If ranks had read other files or been given another command line, results would be
 * mixed. */
static void write_facts(const void *arg, FILE *out)
{
    const fsdp__eval *e = arg;

    fsdp__facts_of_model(&e->config, out);
    fsdp__facts_of_weights(e->folder.path, e->folder.is_checkpoint, "the model's folder", out);
    fsdp__facts_of_adapters(&e->adapters, out);
    fsdp__eval_facts_of_reference(e, out);
    fsdp__facts_of_data(&e->opened, "--data", out);
    fprintf(out, "--train-on\t%d\n--on-long-row\t%d\n", (int)e->packing.all, (int)e->packing.long_row);
    fprintf(out, "--seq-len\t%lld\n--batch-size\t%lld\n--steps\t%lld\n--dtype\t%s\n", (long long)e->options.seq_len,
            (long long)e->options.local_batch, (long long)e->options.steps, fsdp_dtype_name(e->dtype));
}

/* Evaluates the model, with an adapter if `adapter` is not NULL. */
static fsdp_status evaluate_one(fsdp__eval *e, fsdp_context *context, fsdp_device *device, const char *adapter)
{
    bool prints = fsdp_context_rank(context) == 0;
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    fsdp__rewards rewards;
    fsdp_evaluation found;
    fsdp_status status;

    FSDP_TRY(fsdp__folder_model_load(context, e->folder.path, &e->config,
                                     &(fsdp__folder_model_options){.dtype = e->dtype_text ? e->dtype : FSDP_DTYPE_NONE,
                                                                   .device = device,
                                                                   .adapter = adapter,
                                                                   .tp = e->tp,
                                                                   .cp = e->cp},
                                     &model));
    fsdp__bar_begin(&e->bar);
    e->bar.possible = e->bar.possible && prints;
    e->options.progress = draw;
    e->options.arg = e;
    status = fsdp__eval_is_pairs(e) ? fsdp__eval_compare(e, model, &found, &rewards)
             : e->packed            ? fsdp__evaluate_packed(model, e->packed, &e->options, &found)
                                    : fsdp_evaluate(model, e->opened.tokens, &e->options, &found);
    fsdp__bar_clear(&e->bar);
    FSDP_TRY(status);
    if (prints && adapter)
        printf("adapter: %s\n", FSDP__SHOWN_PATH(adapter));
    if (prints)
        print_end(e, &found, &rewards);
    if (isfinite(found.loss))
        return FSDP_OK;
    return fsdp__fail_not_finite(context, e->folder.path, &e->adapters,
                                 isnan(found.loss) ? "the loss is nan" : "the loss is inf");
}

/* Checks that what a rank has printed has arrived. The launcher speaks for it. */
static fsdp_status check_output(const fsdp__eval *e)
{
    char text[256];

    return e->rank_path && fsdp__output_failed(text, sizeof text) ? FSDP_FAIL(FSDP_IO, "%s", text) : FSDP_OK;
}

static fsdp_status evaluate(fsdp__eval *e, fsdp_context *context)
{
    fsdp_device *device = NULL;

    FSDP_TRY(fsdp__line_agree(&e->line, &e->ranks, context));
    FSDP_TRY(fsdp__same_device(context, "--device", e->device, &device));
    FSDP_TRY(fsdp__facts_agree(context, "evaluate different things", write_facts, e));
    FSDP_TRY(fsdp__adapters_check(&e->adapters));
    if (fsdp_context_rank(context) == 0)
        FSDP_TRY(print_begin(e, device));
    FSDP_TRY(fsdp__eval_reference(e, context, device));
    for (int i = 0; i < FSDP__MAX(e->adapters.count, 1); i++)
        FSDP_TRY(evaluate_one(e, context, device, fsdp__adapters_at(&e->adapters, i)));
    return check_output(e);
}

/* ---- the two roles ---- */

static void title(const fsdp__eval *e, const fsdp_context *context)
{
    char run[200];

    snprintf(run, sizeof run, "eval %s", e->path);
    fsdp__ranks_title(context, run);
}

static int run(fsdp__eval *e)
{
    fsdp_context *context = NULL;
    fsdp_status status;

    if (e->rank_path)
        (void)signal(SIGPIPE, SIG_IGN); /* check_output tells it */
    else
        fsdp__explain_bus_errors();
    if (fsdp_context_from_env(&context) != FSDP_OK)
        return e->rank_path ? FSDP__FAILED : fsdp__ranks_fail_to_join(&e->ranks);
    title(e, context);
    status = fsdp_context_set_comm_timeout(context, e->comm_timeout);
    if (status == FSDP_OK)
        status = evaluate(e, context);
    if (status != FSDP_OK)
        fsdp_abort(context, fsdp_last_error());
    fsdp_context_free(context);
    if (status == FSDP_OK)
        return 0;
    return e->rank_path ? FSDP__FAILED : fsdp__rank_failure(&e->ranks);
}

/* Starts the ranks. They get the command line as it is, and all read the same step-N of a folder of checkpoints. */
static int launch(const fsdp__eval *e, int argc, char **argv)
{
    FSDP__FREED const char **line = fsdp__calloc((size_t)argc + 4, sizeof *line); /* ends with NULL */
    FSDP__FREED char *data = e->tokens_path ? fsdp__sprintf("--" FSDP__EVAL_RANK_DATA "=%s", e->tokens_path) : NULL;
    FSDP__FREED char *as_rank = fsdp__sprintf("--" RANK_OPTION "=%s", e->folder.path);
    fsdp_launch_options options = {.ranks = (int)e->ranks.count, .argv = line};

    if (!line || !as_rank || (!data && e->tokens_path))
        return fsdp__failure("%s", fsdp_last_error());
    line[0] = "/proc/self/exe";
    line[1] = "eval";
    line[2] = as_rank;
    memcpy(line + 3, argv + 1, (size_t)(argc - 1) * sizeof *line);
    line[argc + 2] = data;
    return fsdp__launch_ranks(&options);
}

static int with_line(fsdp__eval *e, int argc, char **argv)
{
    if (read_line(e) != FSDP_OK)
        return fsdp__line_refuse();
    if (prepare(e) != FSDP_OK)
        return fsdp__ranks_refuse(&e->ranks, FSDP__FAILED);
    return e->ranks.count > 1 && !e->ranks.joins && !e->rank_path ? launch(e, argc, argv) : run(e);
}

static void release(fsdp__eval *e)
{
    fsdp__packed_free(e->packed);
    fsdp__open_data_close(&e->opened);
    fsdp__free(e->own_cache);
    fsdp__adapters_release(&e->adapters);
    FSDP__FREE_ALL(e->tokens_path, e->reference_sums, e->sums);
    fsdp__model_folder_release(&e->folder);
    fsdp__model_folder_release(&e->reference_folder);
}

int fsdp__cmd_eval(int argc, char **argv)
{
    static const char *const local[] = {"",        "data",          "cache",     "tokenizer",
                                        "adapter", "chat-template", "reference", NULL};
    fsdp__eval e = {.path = NULL};
    const fsdp__option options[] = {{"data", 0, &e.data, NULL},
                                    {"format", 0, &e.format_text, NULL},
                                    {"seq-len", 0, &e.seq_len_text, NULL},
                                    {"batch-size", 0, &e.batch_text, NULL},
                                    {"steps", 0, &e.steps_text, NULL},
                                    {"cache", 0, &e.cache, NULL},
                                    {"tokenizer", 0, &e.tokenizer, NULL},
                                    {"field", 0, &e.field, NULL},
                                    {"chat-template", 0, &e.chat_template, NULL},
                                    {"train-on", 0, &e.train_on, NULL},
                                    {"on-long-row", 0, &e.long_row_text, NULL},
                                    {"on-bad-line", 0, &e.bad_line_text, NULL},
                                    {"dtype", 0, &e.dtype_text, NULL},
                                    {"device", 0, &e.device, NULL},
                                    {"adapter", 0, &e.adapters_text, NULL},
                                    {"reference", 0, &e.reference, NULL},
                                    {"beta", 0, &e.beta_text, NULL},
                                    {"comm-timeout", 0, &e.timeout_text, NULL},
                                    {"tensor-parallel", 0, &e.tp_text, NULL},
                                    {"context-parallel", 0, &e.cp_text, NULL},
                                    {"ranks", 'n', &e.ranks_text, NULL},
                                    {"np", 0, &e.ranks_text, NULL},
                                    FSDP__TORCHRUN_OPTIONS(&e.torchrun),
                                    {RANK_OPTION, 0, &e.rank_path, NULL},
                                    {FSDP__EVAL_RANK_DATA, 0, &e.rank_data, NULL},
                                    {0}};
    fsdp__args args = {.options = options, .positional_most = 1};
    int status;

    e.line = (fsdp__line){.command = "eval", .args = &args, .local = local};
    if (fsdp__args_parse(&args, "eval", argc, argv) != FSDP_OK)
        return fsdp__line_refuse();
    if (args.help) {
        usage();
        return 0;
    }
    e.path = args.positional_count > 0 ? args.positional[0] : NULL;
    status = with_line(&e, argc, argv);
    release(&e);
    return status;
}
