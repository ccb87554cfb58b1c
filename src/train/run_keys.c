/* run_keys.c - the table of a training run's keys. */
#include "train/run_config.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/limits.h"
#include "device/device.h"
#include "fsdp/adapter.h"

/* Refuses "-" for what a run writes: elsewhere that is standard output, which has the run's own lines. */
static fsdp_status check_place(const char *name, const char *text)
{
    if (strcmp(text, "-") != 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s is '-': it cannot go to standard output: name a file or folder ('./-')", name);
}

static const fsdp__choice load_choices[] = {{"each", 0}, {"leader", 1}, {NULL, 0}};
static const fsdp__choice init_choices[] = {{"pretrained", 1}, {"random", 0}, {NULL, 0}};
static const fsdp__choice bool_choices[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
static const fsdp__choice format_choices[] = {
    {"auto", FSDP_TRAIN_AUTO}, {"text", FSDP_TRAIN_TEXT}, {"tokens", FSDP_TRAIN_TOKENS}, {NULL, 0}};
static const fsdp__choice token_choices[] = {{"uint16", 2}, {"uint32", 4}, {NULL, 0}};
static const fsdp__choice on_nan_choices[] = {
    {"stop", FSDP_TRAIN_STOP}, {"skip", FSDP_TRAIN_SKIP}, {"continue", FSDP_TRAIN_CONTINUE}, {NULL, 0}};
static const fsdp__choice bad_line_choices[] = {{"error", 0}, {"skip", 1}, {NULL, 0}};
static const fsdp__choice objective_choices[] = {
    {"next_token", FSDP_TRAIN_NEXT_TOKEN}, {"dpo", FSDP_TRAIN_DPO}, {NULL, 0}};
static const fsdp__choice train_on_choices[] = {
    {"answers", FSDP_TRAIN_ON_ANSWERS}, {"all", FSDP_TRAIN_ON_ALL}, {NULL, 0}};
static const fsdp__choice packing_choices[] = {
    {"true", FSDP_PACKING_NEXT_FIT}, {"best_fit", FSDP_PACKING_BEST_FIT}, {"false", FSDP_PACKING_PAD}, {NULL, 0}};
static const fsdp__choice long_row_choices[] = {{"error", FSDP_LONG_ROW_ERROR},
                                                {"truncate", FSDP_LONG_ROW_TRUNCATE},
                                                {"split", FSDP_LONG_ROW_SPLIT},
                                                {"skip", FSDP_LONG_ROW_SKIP},
                                                {NULL, 0}};
static const fsdp__choice order_choices[] = {{"sequential", 0}, {"shuffled", 1}, {NULL, 0}};
static const fsdp__choice param_choices[] = {
    {"float32", FSDP_F32}, {"bfloat16", FSDP_BF16}, {"float16", FSDP_F16}, {NULL, 0}};
static const fsdp__choice export_choices[] = {
    {"float32", FSDP_F32}, {"bfloat16", FSDP_BF16}, {"float16", FSDP_F16}, {NULL, 0}};
static const fsdp__choice base_choices[] = {{"float32", FSDP_F32}, {"bfloat16", FSDP_BF16}, {NULL, 0}};
static const fsdp__choice quantize_choices[] = {
    {"none", FSDP_QUANTIZE_NONE}, {"nf4", FSDP_QUANTIZE_NF4}, {"int8", FSDP_QUANTIZE_INT8}, {NULL, 0}};
static const fsdp__choice optimizer_choices[] = {{"adamw", FSDP_TRAIN_ADAMW},
                                                 {"adam", FSDP_TRAIN_ADAM},
                                                 {"sgd", FSDP_TRAIN_SGD},
                                                 {"lion", FSDP_TRAIN_LION},
                                                 {"adamw8bit", FSDP_TRAIN_ADAMW8BIT},
                                                 {"muon", FSDP_TRAIN_MUON},
                                                 {"adafactor", FSDP_TRAIN_ADAFACTOR},
                                                 {NULL, 0}};
static const fsdp__choice adjust_choices[] = {
    {"match_rms_adamw", FSDP_MUON_MATCH_RMS_ADAMW}, {"original", FSDP_MUON_ORIGINAL}, {NULL, 0}};
static const fsdp__choice decayed_choices[] = {
    {"all", FSDP_TRAIN_DECAY_ALL}, {"matrices", FSDP_TRAIN_DECAY_MATRICES}, {NULL, 0}};
static const fsdp__choice decay_choices[] = {{"constant", FSDP_DECAY_CONSTANT},
                                             {"linear", FSDP_DECAY_LINEAR},
                                             {"cosine", FSDP_DECAY_COSINE},
                                             {"wsd", FSDP_DECAY_WSD},
                                             {"inverse_sqrt", FSDP_DECAY_INVERSE_SQRT},
                                             {NULL, 0}};
static const fsdp__choice fall_choices[] = {
    {"cosine", FSDP_FALL_COSINE}, {"linear", FSDP_FALL_LINEAR}, {"1-sqrt", FSDP_FALL_SQRT}, {NULL, 0}};
static const fsdp__choice reshard_choices[] = {
    {"default", -FSDP_RESHARD_AUTO}, {"always", -FSDP_RESHARD_ALWAYS}, {"never", -FSDP_RESHARD_NEVER}, {NULL, 0}};
static const fsdp__choice strategy_choices[] = {
    {"fsdp2", FSDP_TRAIN_FSDP2}, {"zero1", FSDP_TRAIN_ZERO1}, {"zero2", FSDP_TRAIN_ZERO2}, {"zero3", FSDP_TRAIN_ZERO3},
    {"hsdp", FSDP_TRAIN_HSDP},   {"fsdp1", FSDP_TRAIN_FSDP1}, {"ddp", FSDP_TRAIN_DDP},     {NULL, 0}};
static const fsdp__choice fsdp1_choices[] = {
    {"full_shard", FSDP_FULL_SHARD},     {"shard_grad_op", FSDP_SHARD_GRAD_OP},           {"no_shard", FSDP_NO_SHARD},
    {"hybrid_shard", FSDP_HYBRID_SHARD}, {"hybrid_shard_zero2", FSDP_HYBRID_SHARD_ZERO2}, {NULL, 0}};
static const fsdp__choice backward_prefetch_choices[] = {
    {"pre", FSDP_BACKWARD_PRE}, {"post", FSDP_BACKWARD_POST}, {"none", FSDP_BACKWARD_NONE}, {NULL, 0}};
static const fsdp__choice compress_choices[] = {
    {"none", FSDP_DTYPE_NONE}, {"bfloat16", FSDP_BF16}, {"float16", FSDP_F16}, {NULL, 0}};
static const fsdp__choice wrap_choices[] = {{"blocks", FSDP_TRAIN_WRAP_BLOCKS}, {"root", FSDP_TRAIN_WRAP_ROOT},
                                            {"size", FSDP_TRAIN_WRAP_SIZE},     {"class", FSDP_TRAIN_WRAP_CLASS},
                                            {"always", FSDP_TRAIN_WRAP_ALWAYS}, {NULL, 0}};
static const fsdp__choice gather_choices[] = {{"none", FSDP_TRAIN_GATHER_NONE},
                                              {"float8", FSDP_TRAIN_GATHER_FLOAT8},
                                              {"int8", FSDP_TRAIN_GATHER_INT8},
                                              {NULL, 0}};
static const fsdp__choice checkpoint_choices[] = {{"none", FSDP_RECOMPUTE_NONE},
                                                  {"full", FSDP_RECOMPUTE_FULL},
                                                  {"selective", FSDP_RECOMPUTE_SELECTIVE},
                                                  {"cheap", FSDP_RECOMPUTE_CHEAP},
                                                  {NULL, 0}};
static const fsdp__choice selective_choices[] = {{"op", 0}, {NULL, 0}};
static const fsdp__choice which_choices[] = {
    {"last", FSDP_TRAIN_LAST}, {"best", FSDP_TRAIN_BEST}, {"ema", FSDP_TRAIN_EMA}, {NULL, 0}};
static const fsdp__choice validated_choices[] = {{"last", FSDP_TRAIN_LAST}, {"ema", FSDP_TRAIN_EMA}, {NULL, 0}};
static const fsdp__choice step_choices[] = {{"best", FSDP_CHECKPOINT_BEST}, {NULL, 0}};
static const fsdp__choice mfu_choices[] = {
    {"auto", FSDP_TRAIN_MFU_AUTO}, {"measured", FSDP_TRAIN_MFU_MEASURED}, {"none", FSDP_TRAIN_MFU_NONE}, {NULL, 0}};
static const fsdp__choice attention_choices[] = {{"exact", FSDP_ATTENTION_EXACT},
                                                 {"fast", FSDP_ATTENTION_FAST},
                                                 {"fast_repeatable", FSDP_ATTENTION_FAST_REPEATABLE},
                                                 {NULL, 0}};
static const fsdp__choice sums_choices[] = {{"exact", 0}, {"nccl", 1}, {NULL, 0}};
static const fsdp__choice buffers_choices[] = {{"registered", FSDP_NCCL_REGISTERED},
                                               {"copy_engines", FSDP_NCCL_COPY_ENGINES},
                                               {"plain", FSDP_NCCL_PLAIN},
                                               {NULL, 0}};
static const fsdp__choice carrier_choices[] = {{"auto", FSDP_CARRIER_AUTO},
                                               {"peer", FSDP_CARRIER_PEER},
                                               {"nccl", FSDP_CARRIER_NCCL},
                                               {"staged", FSDP_CARRIER_STAGED},
                                               {NULL, 0}};
static const fsdp__choice async_choices[] = {{"disabled", 0}, {"async", 1}, {NULL, 0}};

#define AT(section, field) offsetof(fsdp_train_config, section.field)
/* Define the columns: section, name, field, range, default, help. */
#define INTEGER(section, name, least, most, range, initial, help)                                                  \
    {                                                                                                              \
#section, #name, FSDP__KEY_INTEGER, AT(section, name), least, most, range, NULL, initial, help, NULL, NULL \
    }
#define INTEGER_OR(section, name, least, most, range, choices, initial, help)                                         \
    {                                                                                                                 \
#section, #name, FSDP__KEY_INTEGER, AT(section, name), least, most, range, choices, initial, help, NULL, NULL \
    }
#define NUMBER(section, name, least, most, range, initial, help)                                                  \
    {                                                                                                             \
#section, #name, FSDP__KEY_NUMBER, AT(section, name), least, most, range, NULL, initial, help, NULL, NULL \
    }
#define BOOL(section, name, initial, help)                                                                   \
    {                                                                                                        \
#section, #name, FSDP__KEY_BOOL, AT(section, name), 0, 0, 0, bool_choices, initial, help, NULL, NULL \
    }
#define BOOL_LOCAL(section, name, initial, help)                                                                       \
    {                                                                                                                  \
#section, #name, FSDP__KEY_BOOL, AT(section, name), 0, 0, FSDP__LOCAL, bool_choices, initial, help, NULL, NULL \
    }
#define CHOICE(section, name, field, choices, initial, help)                                               \
    {                                                                                                      \
#section, #name, FSDP__KEY_CHOICE, AT(section, field), 0, 0, 0, choices, initial, help, NULL, NULL \
    }
#define CHOICE_OR(section, name, field, least, most, choices, initial, help)                                          \
    {                                                                                                                 \
#section, #name, FSDP__KEY_CHOICE, AT(section, field), least, most, FSDP__OR_INTEGER, choices, initial, help, \
            NULL, NULL                                                                                                \
    }
#define SIZE(section, name, least, initial, help)                                                                      \
    {                                                                                                                  \
#section, #name, FSDP__KEY_SIZE, AT(section, name), least, FSDP__KEY_LARGE, 0, NULL, initial, help, NULL, NULL \
    }
#define TEXT(section, name, range, help) TEXT_OF(section, name, range, help, NULL)
#define TEXT_OF(section, name, range, help, check)                                                     \
    {                                                                                                  \
#section, #name, FSDP__KEY_TEXT, AT(section, name), 0, 0, range, NULL, NULL, help, check, NULL \
    }
/* "export" is a keyword of C++, which reads the public header. */
#define SAVE_TEXT(name, help)                                                                                   \
    {                                                                                                           \
        "export", #name, FSDP__KEY_TEXT, AT(save, name), 0, 0, FSDP__LOCAL, NULL, NULL, help, check_place, NULL \
    }
#define SAVE_CHOICE(name, choices, initial, help)                                                      \
    {                                                                                                  \
        "export", #name, FSDP__KEY_CHOICE, AT(save, name), 0, 0, 0, choices, initial, help, NULL, NULL \
    }
#define SAVE_SIZE(name, least, initial, help)                                                                       \
    {                                                                                                               \
        "export", #name, FSDP__KEY_SIZE, AT(save, name), least, FSDP__KEY_LARGE, 0, NULL, initial, help, NULL, NULL \
    }
#define SAVE_BOOL(name, initial, help)                                                                    \
    {                                                                                                     \
        "export", #name, FSDP__KEY_BOOL, AT(save, name), 0, 0, 0, bool_choices, initial, help, NULL, NULL \
    }
#define PATHS(section, name, field, help)                                                                     \
    {                                                                                                         \
#section, #name, FSDP__KEY_PATHS, AT(section, field), 0, 0, FSDP__LOCAL, NULL, NULL, help, NULL, NULL \
    }

#define PATTERNS(section, name, field, help)                                                           \
    {                                                                                                  \
#section, #name, FSDP__KEY_PATTERNS, AT(section, field), 0, 0, 0, NULL, NULL, help, NULL, NULL \
    }
#define NAMES(section, name, field, help)                                                           \
    {                                                                                               \
#section, #name, FSDP__KEY_NAMES, AT(section, field), 0, 0, 0, NULL, NULL, help, NULL, NULL \
    }
/* A list of maps; `items` says what each of them may hold. */
#define MAPS(section, name, field, range, items, help)                                                  \
    {                                                                                                   \
#section, #name, FSDP__KEY_MAPS, AT(section, field), 0, 0, range, NULL, NULL, help, NULL, items \
    }

/* Lists what an entry of optimizer.groups may hold. */
#define GROUP_NUMBER(name, most, range, initial, help)                                                                \
    {                                                                                                                 \
        "optimizer.groups", #name, FSDP__KEY_NUMBER, offsetof(fsdp_train_group, name), 0, most, range, NULL, initial, \
            help, NULL, NULL                                                                                          \
    }
static const fsdp__key group_keys[] = {
    {"optimizer.groups", "pattern", FSDP__KEY_TEXT, offsetof(fsdp_train_group, pattern), 0, 0, FSDP__REQUIRED, NULL,
     NULL, "names of parameters ('*.bias'), as in model.frozen", NULL, NULL},
    GROUP_NUMBER(weight_decay, INFINITY, 0, NULL, "not set: optimizer.weight_decay, where optimizer.decay has it"),
    GROUP_NUMBER(lr_scale, INFINITY, 0, "1", "the factor of optimizer.lr"),
    GROUP_NUMBER(beta1, 1, FSDP__BELOW, NULL, "not set: optimizer.beta1"),
    GROUP_NUMBER(beta2, 1, FSDP__BELOW, NULL, "not set: optimizer.beta2"),
    {"optimizer.groups", "hidden", FSDP__KEY_CHOICE, offsetof(fsdp_train_group, hidden), 0, 0, 0, bool_choices, NULL,
     "whether muon and adamw8bit take them as hidden matrices; not set: by name and shape", NULL, NULL},
};
static const char *const group_sections[] = {"optimizer.groups", NULL};
static const fsdp__key_items group_items = {.table = {.keys = group_keys,
                                                      .count = (int)FSDP__COUNT_OF(group_keys),
                                                      .sections = group_sections,
                                                      .example = "optimizer.groups.pattern"},
                                            .bytes = sizeof(fsdp_train_group)};

/* clang-format off */
static const fsdp__key source_keys[] = {
    {"data.mixture", "path", FSDP__KEY_TEXT, offsetof(fsdp_train_source, path), 0, 0, FSDP__REQUIRED, NULL, NULL, "a file, a folder or a pattern", NULL, NULL},
    {"data.mixture", "weight", FSDP__KEY_NUMBER, offsetof(fsdp_train_source, weight), 0, INFINITY, FSDP__ABOVE, NULL, "1", "its share of the windows is this, divided by the sum of all weights", NULL, NULL},
};
static const char *const source_sections[] = {"data.mixture", NULL};
static const fsdp__key_items source_items = {
    .table = {.keys = source_keys, .count = (int)FSDP__COUNT_OF(source_keys), .sections = source_sections, .example = "data.mixture.path"},
    .bytes = sizeof(fsdp_train_source)};

static const fsdp__key keys[] = {
    TEXT(model, path, FSDP__LOCAL, "the Hugging Face folder to start from"),
    TEXT(model, preset, 0, "a model made from scratch, instead of a folder: gpt-10m, gpt2-124m, llama-1m, llama-100m, llama-1b or llama-8b"),
    CHOICE(model, init, pretrained, init_choices, NULL, "where the first weights come from; not set: pretrained with model.path, random with model.preset"),
    CHOICE(model, load, load_by_leader, load_choices, "each", "who reads the weights of model.path\neach: every rank reads its own rows\nleader: one rank of each machine reads everything and sends the other ranks their rows; choose this if many readers slow the storage down"),
    INTEGER(model, n_layers, 1, 10000, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    INTEGER(model, dim, 1, 1 << 20, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    INTEGER(model, n_heads, 1, 1 << 16, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    INTEGER(model, n_kv_heads, 1, 1 << 16, 0, NULL, "replaces the preset's value, or the folder's with init random (Llama only)"),
    INTEGER(model, ffn_dim, 1, 1 << 24, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    INTEGER(model, vocab_size, 1, 1 << 28, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    INTEGER(model, max_seq_len, 1, 1 << 28, 0, NULL, "replaces the preset's value, or the folder's with init random"),
    CHOICE(model, tie_word_embeddings, tie_word_embeddings, bool_choices, NULL, "whether the head is the embedding; replaces the preset's value, or the folder's with init random"),
    NUMBER(model, dropout, 0, 1, FSDP__BELOW, NULL, "the rate after the embeddings and in each residual branch (GPT-2 only); if set, it replaces the folder's three rates, and attention drops nothing"),
    PATTERNS(model, frozen, frozen, "a pattern (model.layers.0.*) or a list of patterns: parameters with these names are not trained; each pattern must match a parameter; optimizer state that frozen parameters have in a checkpoint is kept"),

    PATHS(data, path, paths, "a file, a folder, a pattern (data/*.bin) or a list of them; a list is one stream"),
    CHOICE(data, format, format, format_choices, "auto", "auto decides by llm.c's header, else by the name (.txt and .jsonl, also packed, are text; .bin, .u16 and .u32 are tokens), else by the first bytes"),
    CHOICE(data, dtype, token_bytes, token_choices, NULL, "the type of tokens in token files; not set: by llm.c's header, else by the name (.bin, .u16, .u32), else uint16"),
    CHOICE(data, order, shuffle, order_choices, "sequential", "sequential: window after window\nshuffled: every window once an epoch, in an order set by training.seed"),
    INTEGER(data, workers, 0, 64, FSDP__LOCAL, "1", "number of threads that read ahead; 0: the step reads"),
    TEXT(data, tokenizer, FSDP__LOCAL, "the folder of the tokenizer for text (.txt, .jsonl, also .gz and .zst)\nmodel: the tokenizer of model.path\nbytes: no tokenizer, bytes are tokens (vocabulary 256)\nnot set: the tokenizer of model.path or of checkpoint.initial_load_path if they have one, else bytes"),
    TEXT(data, field, 0, "the field of JSON lines that holds the text; not set: text"),
    CHOICE(data, on_bad_line, skip_bad_lines, bad_line_choices, "error", "what to do with a line that is not a JSON object or has no text in the field\nerror: end the run before training begins\nskip: leave the line out; the log says how many were"),
    TEXT(data, cache, FSDP__LOCAL, "the folder that keeps the tokens of text; not set: fsdp in $XDG_CACHE_HOME, or in ~/.cache"),
    TEXT(data, chat_template, FSDP__LOCAL, "a file with the template that makes a text of a conversation, in Jinja; not set: that of the tokenizer's folder"),
    CHOICE(data, train_on, train_on, train_on_choices, NULL, "which tokens of conversations are learned\nanswers: those of the answers; the loss is the mean over all answers of a step\nall: all tokens\nnot set: answers"),
    CHOICE(data, packing, packing, packing_choices, NULL, "how conversations share windows of training.seq_len tokens; attention and positions begin anew in each\ntrue: as many as fit, in their order\nbest_fit: the longest first, each where it leaves the least room, so that windows are fuller\nfalse: each has a window of its own, with padding after it\nnot set: true"),
    CHOICE(data, on_long_row, long_row, long_row_choices, "error", "what to do with a conversation of more than training.seq_len tokens\nerror: end the run before training begins\ntruncate: use its beginning\nsplit: use its parts as if they were several\nskip: leave it out"),
    MAPS(data, mixture, mixture, FSDP__LOCAL, &source_items, "several sources in place of data.path, as [{path: a.jsonl, weight: 2}, {path: b.bin}]: each is gone through in its own epochs, and has its share of every stretch of windows"),

    INTEGER(training, steps, 1, FSDP__KEY_LARGE, 0, "1000", "number of optimizer steps"),
    NUMBER(training, epochs, 0, 1e9, FSDP__ABOVE, NULL, "how often the data is gone through, in place of training.steps, which is set to as many steps as that takes (fsdp plan opens no data, and uses training.steps)"),
    INTEGER(training, seq_len, 1, 1 << 28, 0, "256", "tokens of a sequence"),
    INTEGER(training, global_batch_size, 1, 1 << 30, FSDP__OR_MINUS, "-1", "sequences of a step, over all ranks; -1: local_batch_size x ranks, or, if the run continues, as many as it had"),
    INTEGER(training, local_batch_size, 1, 1 << 24, 0, "8", "sequences of a microbatch on one rank; a step has global / (local x ranks) microbatches"),
    NUMBER(training, max_norm, 0, INFINITY, 0, "1.0", "clips gradients to this total norm; 0: no clipping"),
    INTEGER(training, seed, 0, FSDP__KEY_LARGE, 0, "42", "the seed of first weights and of shuffling"),
    TEXT_OF(training, device, FSDP__LOCAL, "cpu: the processor (the default)\ncuda: a GPU for each rank, by its number on its machine; several ranks share one where there are more ranks\ncuda:N: the GPU with this number\nauto: a GPU if every rank has one, otherwise the processor; the log says which, and why\n'fsdp inspect --devices' lists the devices of this machine", fsdp__device_name_check),
    INTEGER(training, threads, 1, FSDP__THREADS_MOST, FSDP__LOCAL, NULL, "compute threads of each rank (only in the program fsdp); not set: OMP_NUM_THREADS, else the rank's share of the cores"),
    CHOICE(training, mixed_precision_param, mixed_precision_param, param_choices, "float32", "the dtype in which parameters are gathered and computed with; shards stay float32; with float16 the loss is scaled dynamically, and steps with infinite gradients are skipped"),
    CHOICE(training, mixed_precision_reduce, mixed_precision_reduce, param_choices, "float32", "the dtype in which gradients are reduced; float16 works as in mixed_precision_param"),
    BOOL(training, split_shards, "false", "with mixed_precision_param bfloat16: keep shards as the bfloat16 that is gathered and 16 more bits, in 4 bytes a parameter in place of 6; shards and checkpoints have all bits of float32, but ties are gathered rounded away from zero; for ranks that share no memory of parameters (one rank; ranks on GPUs of their own)"),
    CHOICE(training, no_sync, no_sync, bool_choices, NULL, "with several microbatches: add up whole gradients, and reduce them in the last microbatch only; not set: true, but false with parallelism.strategy zero2 and zero3"),
    BOOL(training, enable_cpu_offload, "false", "keep parameters, gradients and optimizer state on the host, and update them there; on the CPU they are there already, and nothing moves"),
    CHOICE(training, on_nan, on_nan, on_nan_choices, "stop", "what happens when the loss or the gradient norm of a step is NaN or infinite\nstop: the run ends and exports nothing (also if the loss of a validation is not finite)\nskip: the step is left out\ncontinue: the step is taken"),
    INTEGER(training, early_stop, 0, FSDP__KEY_LARGE, 0, "0", "the run ends after this many validations in a row without an improvement, and exports what export.which says; 0: never"),
    NUMBER(training, early_stop_min_delta, 0, INFINITY, 0, "0", "a validation is an improvement if its loss is lower than that of the last improvement by more than this"),
    NUMBER(training, ema_decay, 0, 1, FSDP__BELOW, "0", "keep an average of the weights, in float32, beside them and in checkpoints: after each step average = ema_decay * average + (1 - ema_decay) * weights (0.999: of about a thousand steps); validation.which and export.which use it; 0: none"),
    CHOICE(training, objective, objective, objective_choices, "next_token", "what is learned\nnext_token: to predict each next token\ndpo: to prefer the chosen of two answers to the rejected one (section dpo; the data has chosen and rejected)"),

    CHOICE(optimizer, name, name, optimizer_choices, "adamw", "adamw, adam, sgd: as in torch.optim\nlion: the sign of a momentum\nadamw8bit: adamw, whose moments of hidden matrices (of 4096 or more elements) are bytes with a scale for each 256\nmuon: hidden matrices step by a momentum that is made orthogonal, all else by adamw\nadafactor: as in torch.optim; of second moments the means of rows and columns, of first ones nothing\nhidden matrices: weights of two dimensions in a numbered list of layers (model.layers.0.*), so neither embeddings nor the head"),
    NUMBER(optimizer, lr, 0, INFINITY, FSDP__ABOVE, "3e-4", "the base learning rate"),
    NUMBER(optimizer, beta1, 0, 1, FSDP__BELOW, "0.9", "of all but sgd and adafactor"),
    NUMBER(optimizer, beta2, 0, 1, FSDP__BELOW, NULL, "of all but sgd and adafactor; not set: 0.99 for lion, else 0.95"),
    NUMBER(optimizer, eps, 0, INFINITY, 0, "1e-8", "of all but sgd, lion and adafactor"),
    NUMBER(optimizer, weight_decay, 0, INFINITY, 0, NULL, "L2 for adam and sgd, else decoupled; not set: 0.1 for adamw, adamw8bit and muon, else 0"),
    NUMBER(optimizer, momentum, 0, INFINITY, 0, NULL, "of sgd and muon; not set: 0 for sgd, 0.95 for muon"),
    BOOL(optimizer, nesterov, "false", "of sgd, where it needs a momentum; muon always has it"),
    CHOICE(optimizer, decay, decay, decayed_choices, "all", "which parameters get optimizer.weight_decay\nall: every parameter\nmatrices: parameters of two or more dimensions, so neither biases nor norms, as Trainer of transformers has it"),
    CHOICE(optimizer, muon_adjust, muon_adjust, adjust_choices, "match_rms_adamw", "how muon's learning rate depends on the shape of a matrix\nmatch_rms_adamw: times 0.2 sqrt(max(rows, columns)), so that steps are as long as those of adamw, and one optimizer.lr is for both\noriginal: times sqrt(max(1, rows / columns)), with optimizer.lr about 0.02"),
    MAPS(optimizer, groups, groups, 0, &group_items, "parameters with values of their own; the first pattern that matches a name counts, and each must match one that no earlier one has"),

    INTEGER(lr_scheduler, warmup_steps, 0, FSDP__KEY_LARGE, 0, "0", "number of steps in which the learning rate rises linearly"),
    CHOICE(lr_scheduler, decay_type, decay_type, decay_choices, "constant", "how the learning rate falls after the warm-up\nlinear, cosine: until training.steps\nwsd: it stays, and falls in the last decay_steps\ninverse_sqrt: with the root of the steps, never to an end\nthe last two are those of transformers, whose warm-up begins at min_lr_factor (inverse_sqrt: 0), so that the first step may change nothing"),
    NUMBER(lr_scheduler, min_lr_factor, 0, 1, 0, "0", "the fraction of the base learning rate that is left at the end"),
    INTEGER(lr_scheduler, warmup_tokens, 1, FSDP__KEY_LARGE, 0, NULL, "tokens of all ranks in which the learning rate rises, in place of warmup_steps: the warm-up has as many steps as it takes to see them"),
    INTEGER(lr_scheduler, decay_steps, 1, FSDP__KEY_LARGE, 0, NULL, "with decay_type wsd: number of steps in which the learning rate falls; not set: a tenth of training.steps"),
    CHOICE(lr_scheduler, decay_shape, decay_shape, fall_choices, "cosine", "with decay_type wsd: how it falls"),
    INTEGER(lr_scheduler, timescale, 1, FSDP__KEY_LARGE, 0, NULL, "with decay_type inverse_sqrt: the number of steps T in sqrt(T / (step + T - warm-up)); not set: those of the warm-up, or 10000 without one"),

    CHOICE(parallelism, strategy, strategy, strategy_choices, "fsdp2", "what is sharded while a step runs\nzero1: optimizer state; parameters are gathered once a step, and gradients reduced once\nzero2: gradients, too; every microbatch reduces them\nzero3: parameters, too\nfsdp2: as fsdp_reshard_after_forward and no_sync say\nhsdp: the same, over several copies (data_parallel_replicate_degree)\nfsdp1: as fsdp1_strategy says\nddp: nothing; gradients are all-reduced in buckets"),
    INTEGER(parallelism, data_parallel_replicate_degree, 1, 1 << 20, 0, "1", "number of copies of the parameters; if it is 1, strategy hsdp on several machines makes one copy on each; each copy is sharded over consecutive ranks: parameters, gradients and optimizer state take that many times the memory, gathers stay within a copy, and each reduction also sends 2 (copies - 1) / copies of a shard"),
    INTEGER(parallelism, data_parallel_shard_degree, 1, 1 << 20, FSDP__OR_MINUS, "-1", "number of ranks over which FSDP shards one copy of the parameters, each counted with those that have the same sequences; -1: all ranks / data_parallel_replicate_degree / context_parallel_degree / tensor_parallel_degree"),
    INTEGER(parallelism, context_parallel_degree, 1, 1 << 16, 0, "1", "number of ranks (neighbours, or tensor_parallel_degree apart) that have the same sequences and compute a part of each: that divides the memory of activations, for sequences that one rank cannot hold; FSDP shards over these ranks, too; twice the number must divide training.seq_len; keys and values of each layer travel"),
    INTEGER(parallelism, tensor_parallel_degree, 1, 1 << 16, 0, "1", "number of consecutive ranks that compute each layer together: its matrices are cut by heads and columns over them, they have the same sequences, and only then FSDP shards what each has; it must divide the model's heads and key/value heads, and should divide the ranks of a machine, as each layer's results travel"),
    BOOL(parallelism, sequence_parallel, "true", "with tensor_parallel_degree: between the layers a rank has its part of each sequence, which divides the memory of norms and residuals; it sends as many bytes"),
    BOOL(parallelism, loss_parallel, "true", "with tensor_parallel_degree: the loss is computed from parts of the vocabulary, and no rank has all logits"),
    BOOL(parallelism, enable_async_tensor_parallel, "false", "with tensor_parallel_degree and sequence_parallel: gathers before attention and MLP, and reductions behind them, travel in up to four pieces, each while another one is multiplied; the bytes are the same; it takes a core of each rank beside those that compute (docs/parallel.md says where it pays)"),
    CHOICE_OR(parallelism, fsdp_reshard_after_forward, reshard_after_forward, 1, 1 << 20, reshard_choices, "default", "default: all units but the root are resharded after their forward\nalways: the root, too\nnever: parameters stay whole until the backward is done\nan integer k that divides the ranks: each rank keeps 1/k, and the backward gathers over k ranks"),
    CHOICE(parallelism, gather_dtype, gather_dtype, gather_choices, "none", "none: gather in the compute dtype\nfloat8, int8: gather the weights of linear layers in one byte an element (with a scale for each weight, or for every 128 elements), and compute with what arrives; a rank then also keeps the bytes that it sends, and holds whole parameters in its own memory"),
    CHOICE(parallelism, fsdp1_strategy, fsdp1_strategy, fsdp1_choices, NULL, "with strategy fsdp1, PyTorch's ShardingStrategy\nfull_shard: parameters, gradients and optimizer state are sharded; the root's parameters stay whole from the forward to the backward\nshard_grad_op: all parameters stay whole from the forward to the backward\nno_shard: nothing is sharded\nhybrid_shard, hybrid_shard_zero2: full_shard and shard_grad_op inside each of several copies (data_parallel_replicate_degree)\nnot set: full_shard, or hybrid_shard if there are copies"),
    CHOICE(parallelism, fsdp1_use_orig_params, fsdp1_use_orig_params, bool_choices, NULL, "with strategy fsdp1: optimizers get the original parameters instead of one a unit; each begins at a multiple of 16 bytes of the unit's vector, and a unit may have frozen parameters beside others; not set: false"),
    CHOICE(parallelism, fsdp1_backward_prefetch, fsdp1_backward_prefetch, backward_prefetch_choices, NULL, "with strategy fsdp1: when the backward gathers the unit before the current one\npre: before the current unit's backward\npost: after it\nnone: not before its own backward begins\nnot set: pre"),
    CHOICE(parallelism, fsdp1_forward_prefetch, fsdp1_forward_prefetch, bool_choices, NULL, "with strategy fsdp1: the forward gathers the next unit ahead, which takes its memory; not set: false"),
    NUMBER(parallelism, ddp_bucket_cap_mb, 0, 1 << 20, FSDP__ABOVE, NULL, "with strategy ddp: MiB at which a bucket of gradients is full and is sent; not set: 25, and 1 for the first bucket"),
    CHOICE(parallelism, ddp_find_unused_parameters, ddp_find_unused_parameters, bool_choices, NULL, "with strategy ddp: ranks may use different parameters in a step; this costs one more all-reduce, and buckets follow the order of the model; not set: false"),
    CHOICE(parallelism, ddp_static_graph, ddp_static_graph, bool_choices, NULL, "with strategy ddp: each rank uses the same parameters in every step, though perhaps not all of them; not set: false"),
    CHOICE(parallelism, ddp_gradient_as_bucket_view, ddp_gradient_as_bucket_view, bool_choices, NULL, "with strategy ddp: gradients lie in the buckets that are sent, which halves their memory while they are reduced; not set: false"),
    CHOICE(parallelism, ddp_compress, ddp_compress, compress_choices, NULL, "with strategy ddp: gradients are rounded to this dtype, divided and summed in it, which halves the bytes that are sent; not set: none"),
    CHOICE(parallelism, wrap_policy, wrap_policy, wrap_choices, "blocks", "which modules are units; a unit is gathered and reduced as a whole, without the parameters of units inside it; the model itself is always a unit\nblocks: every block\nroot: no other module\nsize: by wrap_min_num_params\nclass: by wrap_classes\nalways: every module\nMore units need less memory for whole parameters and more collectives, with the same bytes."),
    INTEGER(parallelism, wrap_min_num_params, 1, FSDP__KEY_LARGE, 0, NULL, "with wrap_policy size: a module is a unit if it has at least this many parameters (elements) outside the units inside it; not set: 100000000"),
    NAMES(parallelism, wrap_classes, wrap_classes, "with wrap_policy class: a name (LlamaDecoderLayer, GPT2Block, Linear) or a list of names; the model must have modules of each"),
    INTEGER(parallelism, prefetch, 0, 1 << 20, 0, "0", "number of units to gather ahead in the forward and in the backward, each of which takes its memory; 0: one in the backward; over several machines one or two in both"),
    BOOL(parallelism, keep_last_unit, "false", "the unit that ends the forward stays whole until its backward, which comes next; this saves one gather in each microbatch, which nothing would hide"),
    TEXT(parallelism, schedule, FSDP__LOCAL, "when parameters and gradients travel, in place of wrap_policy, prefetch, keep_last_unit and fsdp_reshard_after_forward; results are the same bits\nplan: rank 0 plans at the start: units are merged, split, kept whole and gathered ahead so that communication takes the least time of a step\na file that 'fsdp plan --schedule FILE' has written for this model and as many ranks, machines and copies\nnot set: no schedule"),
    SIZE(parallelism, schedule_memory, 1, NULL, "with schedule plan: the memory of a rank that the planned step may take (24GiB); not set: what the device has, or the rank's share of the machine"),
    TEXT(parallelism, schedule_prices, FSDP__LOCAL, "with schedule plan: the prices of the plan: cpu, cuda, cuda:CARD or a file of 'fsdp plan --measure'; not set: training.device, measured for some seconds"),

    CHOICE(activation_checkpoint, mode, mode, checkpoint_choices, "none", "what a block keeps for its backward; results, gathers and bytes sent are the same in every mode\nnone: everything\nfull: its input; the rest is computed again, which takes about a third more time\ncheap: its input, attention and the results of all matrix products; only what is cheap is computed again\nselective: as the next key says"),
    CHOICE_OR(activation_checkpoint, selective_ac_option, selective_ac_option, 1, 1 << 20, selective_choices, "2", "with mode selective\nan integer n: every n-th block keeps its input only\nop: every block keeps its input, attention and every second matrix product"),

    CHOICE(validation, enable, enable, bool_choices, NULL, "evaluate the model every freq steps and after the last one; not set: true if path or share is set"),
    PATHS(validation, path, paths, "what to evaluate on; it is read as data.path is"),
    NUMBER(validation, share, 0, 1, FSDP__BELOW, "0", "instead of a path: the fraction of data.path to evaluate on; these are its last windows, which are never trained on"),
    INTEGER(validation, freq, 1, FSDP__KEY_LARGE, 0, "100", "number of steps between validations"),
    INTEGER(validation, steps, 1, FSDP__KEY_LARGE, FSDP__OR_MINUS, "-1", "batches of a validation, over all ranks (the same tokens for any number of ranks); -1: all there are"),
    INTEGER(validation, local_batch_size, 1, 1 << 24, 0, NULL, "sequences of a batch on one rank; not set: training.local_batch_size"),
    BOOL(validation, keep_best, "true", "with checkpoint.enable: write a checkpoint after each validation that is the best so far, and keep it until there is a better one"),
    CHOICE(validation, which, which, validated_choices, "last", "last: the weights are evaluated\nema: their average is (training.ema_decay)"),

    CHOICE(kernels, attention, attention, attention_choices, "exact", "what computes attention on a GPU\nexact: kernels of our own, which give the same bits in every run\nfast: cuDNN's, in bfloat16 and float16; runs differ in the last bits\nfast_repeatable: those of cuDNN's that NVIDIA calls deterministic; the backward then takes 2 bytes of scratch for each pair of tokens of a sequence, in every head\nA model that cuDNN cannot compute ends the run at its start."),

    NUMBER(comm, timeout, 0, 1e9, FSDP__LOCAL, "300", "seconds to wait for a rank that stands still (a rank that computes may take longer); 0: for ever"),
    CHOICE(comm, carrier, carrier, carrier_choices, "auto", "how ranks on GPUs exchange; results are the same bits\nauto: peer on one machine, nccl over several; staged if that is not available, and the log says why\npeer: GPUs of one machine read each other's memory\nnccl: NVIDIA's NCCL\nstaged: through memory of the host\nA carrier that is named and not available ends the run."),
    CHOICE(comm, reduce, reduce, sums_choices, "exact", "who adds up gradients on GPUs, and everything else that is reduced there\nexact: the carrier, in the order of the ranks, with one rounding: the same bits by every carrier\nnccl: NCCL, which sends less between machines, but adds in an order of its own and rounds at each addition; comm.carrier must be nccl or auto, which is then nccl"),
    CHOICE(comm, nccl_buffers, nccl_buffers, buffers_choices, "registered", "what NCCL is shown of a GPU's memory; results are the same bits\nregistered: 64 MiB for each group, in which exact sums are packed and arrive\ncopy_engines: 32 MiB more, through which parameters are gathered, too; NCCL lets copy engines gather and exchange where it can (2.28 or later, GPUs that one machine's links join), so that no kernel of NCCL's takes multiprocessors from the computation, but each gathered row is copied once more\nplain: nothing; NCCL copies through buffers of its own"),
    BOOL_LOCAL(comm, trace, "false", "every rank logs what happens to each group of parameters, and each collective"),

    INTEGER(metrics, log_freq, 1, FSDP__KEY_LARGE, 0, "10", "number of steps between log lines"),
    TEXT_OF(metrics, jsonl, FSDP__LOCAL, "a file that gets a JSON object for each step, after those of earlier runs", check_place),
    TEXT_OF(metrics, trace.path, 0, "a file for a trace of some steps, of all ranks: what ran when, on which stream, and how much memory it took, to be opened at ui.perfetto.dev or in chrome://tracing; .json, or .json.gz to have it packed", check_place),
    TEXT_OF(metrics, trace.steps, 0, "which steps are traced: 5, 3-5 or '3-5, 100'; not set: the second to the fourth that the run takes", fsdp__step_ranges_check),
    TEXT_OF(metrics, csv, FSDP__LOCAL, "a file that gets a row for each step and each validation, after those of earlier runs", check_place),
    TEXT_OF(metrics, prometheus, FSDP__LOCAL, "a file that is replaced with each log line, in the text format of Prometheus: FILE.prom in the folder that node_exporter's textfile collector reads", check_place),
    TEXT_OF(metrics, tensorboard, FSDP__LOCAL, "a folder for TensorBoard, to which every run adds a file; it is made if it is missing", check_place),
    BOOL(metrics, exact, "false", "on a GPU, on one rank, the host waits for the numbers of each step before it queues the next one; otherwise it reads them a step later, and training.on_nan acts a step later, with the same result"),
    INTEGER(metrics, histogram_freq, 0, FSDP__KEY_LARGE, 0, "0", "number of steps between looks at each unit's gradients and weights, which each rank copies to the host for them: metrics.tensorboard gets histograms and norms, and the log and metrics.jsonl get warnings of gradients that vanish, explode or are all 0, and of steps that are too large; 0: never"),
    TEXT(metrics, sample_prompt, 0, "with metrics.tensorboard: a text that the model continues, always by its most likely token; it needs data of text, or a tokenizer"),
    INTEGER(metrics, sample_freq, 1, FSDP__KEY_LARGE, 0, "100", "number of steps between such texts"),
    INTEGER(metrics, sample_tokens, 1, 1 << 20, 0, "64", "tokens of such a text; every token takes a forward, which gathers as in training"),
    CHOICE(metrics, mfu, mfu, mfu_choices, "auto", "the peak of which MFU is a share (6 N + 12 layers x width x sequence FLOP a token, N without embeddings; frozen parameters count 4)\nauto: that of a known GPU's data sheet, for dense products of the compute dtype; on other devices there is no MFU\nmeasured: the rate of a large product, which takes some tenths of a second at the start\nnone: no MFU"),
    NUMBER(metrics, peak_tflops, 0, 1e9, 0, "0", "the peak of a device in TFLOP/s (dense products of the compute dtype): of each GPU, or of all processors of a machine; it takes the place of the data sheet's; 0: not set"),
    TEXT_OF(metrics, flight_recorder, FSDP__LOCAL, "the folder for the last calls of every rank, which are written when a rank fails, hangs (comm.timeout) or dies, and on SIGUSR2; 'fsdp flight FOLDER' shows them; ranks that mpirun, srun or torchrun has started keep them there all the time, so that one that is killed leaves them: name a local disk or /dev/shm\nnot set: flight in checkpoint.folder, else <metrics.jsonl>.flight, else fsdp-flight-<process> in $TMPDIR or /tmp", check_place),

    CHOICE(checkpoint, enable, enable, bool_choices, NULL, "write checkpoints, and continue from one that is there; not set: true if checkpoint.folder is set"),
    TEXT_OF(checkpoint, folder, 0, "the folder of this run's checkpoints (step-N); no other run may use it; a run that finds a checkpoint there continues from it, with any number of ranks, and reads no weights of model.path", check_place),
    INTEGER(checkpoint, interval, 1, FSDP__KEY_LARGE, 0, "500", "number of steps between checkpoints; the last step writes one, too, and so do SIGUSR1, and SIGTERM, SIGINT and SIGHUP, which then end the run"),
    INTEGER(checkpoint, keep_latest_k, 0, 1 << 20, 0, "10", "number of newest checkpoints to keep; older ones are removed; 0: all are kept"),
    INTEGER(checkpoint, keep_every, 0, FSDP__KEY_LARGE, 0, "0", "checkpoints of steps that are multiples of this are never removed; 0: there are none"),
    CHOICE(checkpoint, async_mode, async_mode, async_choices, "disabled", "async: a rank copies what it writes in its memory, and a thread writes the copy while training continues\ndisabled: training waits for the disk"),
    INTEGER_OR(checkpoint, load_step, 0, FSDP__KEY_LARGE, FSDP__OR_MINUS, step_choices, "-1", "the step of the checkpoint to continue from; -1: the newest; best: the one of the best validation so far"),
    TEXT(checkpoint, initial_load_path, FSDP__LOCAL, "a checkpoint (step-N, or step-best for the best validation), a folder of checkpoints (its newest is used), or a Hugging Face folder; its weights replace those of model.path at the start of a run, and nothing else of it is read; it is not read at all if checkpoint.folder has a checkpoint"),
    NAMES(checkpoint, exclude_from_loading, exclude_from_loading, "what starts afresh when a run continues: optimizer, lr_scheduler, dataloader (the position in the data), or a list of them"),

    SAVE_TEXT(path, "the Hugging Face folder to write at the end; it must be new, empty, or written by an earlier export"),
    SAVE_BOOL(overwrite, "false", "write into any folder: files of the same names are replaced, and all others stay"),
    SAVE_TEXT(fallback_path, "the folder to write if export.path fails at the end; if it is not set, or fails, too: <name of export.path>-recovered beside metrics.jsonl, or in the working directory"),
    SAVE_CHOICE(which, which_choices, NULL, "last: the weights of the last step\nbest: those of the step with the best validation, from its checkpoint, or, without checkpoint.folder, from a copy that each rank keeps of its shard in the host's memory\nema: the average of the weights (training.ema_decay)\nnot set: best with training.early_stop (unless validation.keep_best is false), else last"),
    SAVE_CHOICE(dtype, export_choices, "float32", "the dtype of the exported weights"),
    SAVE_SIZE(max_shard_size, 1, "5GB", "the largest size of a file of weights; more weights are split over several files, with an index; a larger tensor gets a file of its own"),
    SAVE_CHOICE(merge, bool_choices, NULL, "with an adapter: true: export.path gets the model, with the adapter in its weights\nfalse: it gets the adapter alone, a folder of peft; not set: false"),

    TEXT(adapter, path, FSDP__LOCAL, "the folder of an adapter to train on, as peft writes it; it sets the keys below, except base_dtype and quantize"),
    INTEGER(adapter, rank, 1, 1 << 16, 0, NULL, "train a new LoRA adapter of this rank beside the model's frozen weights, instead of the model"),
    NUMBER(adapter, alpha, 0, FSDP__KEY_LARGE, FSDP__ABOVE, NULL, "the adapter's part is multiplied by alpha / rank; not set: by 1"),
    NUMBER(adapter, dropout, 0, 1, FSDP__BELOW, NULL, "the rate at which the adapter's inputs are dropped in training; not set: 0"),
    NAMES(adapter, targets, targets, "a name or a list of names (q_proj): layers whose names end so get an adapter; not set: all-linear, all Linear and Conv1D layers except the head"),
    TEXT(adapter, target_pattern, 0, "instead of adapter.targets: a regular expression for the whole name of a layer"),
    NAMES(adapter, exclude, exclude, "names of layers that get no adapter, matched as adapter.targets"),
    NAMES(adapter, rank_pattern, rank_pattern, "other ranks: the end of a layer's name, which may be a regular expression, and a rank (down_proj=6), or a list of them"),
    NAMES(adapter, alpha_pattern, alpha_pattern, "other alphas, in the same way"),
    NAMES(adapter, modules_to_save, modules_to_save, "names of modules (lm_head) that are trained whole, and saved with the adapter"),
    CHOICE(adapter, rslora, rslora, bool_choices, NULL, "multiply by alpha / sqrt(rank) instead; not set: false"),
    CHOICE(adapter, dora, dora, bool_choices, NULL, "train the length of each row of a weight by itself (DoRA); not set: false"),
    CHOICE(adapter, base_dtype, base_dtype, base_choices, "float32", "the dtype in which the frozen weights are held; the adapter is in float32"),
    CHOICE(adapter, quantize, quantize, quantize_choices, "none", "QLoRA: the frozen weights of linear layers but the head are held in 4 bits (nf4, blocks of 64) or 8 (int8, rows), each with a scale, and decoded where they are used; the others have base_dtype"),

    NUMBER(dpo, beta, 0, FSDP__KEY_LARGE, FSDP__ABOVE, NULL, "with training.objective dpo: what the difference in log-probability to the reference is multiplied by; the larger, the nearer the model stays to it; not set: 0.1"),
    NUMBER(dpo, label_smoothing, 0, 0.5, FSDP__BELOW, NULL, "the share of pairs that is taken to be the wrong way round (conservative DPO); not set: 0"),
};
/* clang-format on */

static const char *const sections[] = {
    "model",      "data",    "training", "optimizer", "lr_scheduler", "parallelism", "activation_checkpoint",
    "validation", "kernels", "comm",     "metrics",   "checkpoint",   "export",      "adapter",
    "dpo",        NULL};

/* Lists names of transformers' TrainingArguments, TRL's configs, peft's LoraConfig and bitsandbytes' config for which
 * the nearest key is not the right one. */
static const fsdp__key_word words[] = {
    {"learning_rate", "optimizer.lr"},
    {"optim", "optimizer.name"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.eps"},
    {"num_train_epochs", "training.epochs"},
    {"max_steps", "training.steps"},
    {"per_device_train_batch_size", "training.local_batch_size"},
    {"gradient_accumulation_steps", "training.global_batch_size, the sequences of a step over all ranks"},
    {"max_grad_norm", "training.max_norm"},
    {"max_length", "training.seq_len"},
    {"max_seq_length", "training.seq_len"},
    {"bf16", "training.mixed_precision_param=bfloat16"},
    {"fp16", "training.mixed_precision_param=float16"},
    {"gradient_checkpointing", "activation_checkpoint.mode"},
    {"lr_scheduler_type", "lr_scheduler.decay_type"},
    {"warmup_ratio", "lr_scheduler.warmup_steps, a number of steps"},
    {"eval_dataset", "validation.path"},
    {"eval_steps", "validation.freq"},
    {"per_device_eval_batch_size", "validation.local_batch_size"},
    {"early_stopping_patience", "training.early_stop"},
    {"save_steps", "checkpoint.interval"},
    {"save_total_limit", "checkpoint.keep_latest_k"},
    {"resume_from_checkpoint", "checkpoint.folder, whose newest checkpoint a run goes on from by itself"},
    {"output_dir", "export.path for the model, and checkpoint.folder for checkpoints"},
    {"logging_steps", "metrics.log_freq"},
    {"model_name_or_path", "model.path"},
    {"dataset_name", "data.path"},
    {"train_dataset", "data.path"},
    {"dataset_text_field", "data.field"},
    {"dataloader_num_workers", "data.workers"},
    {"assistant_only_loss", "data.train_on"},
    {"completion_only_loss", "data.train_on"},
    {"train_on_inputs", "data.train_on"},
    {"packing_strategy", "data.packing"},
    {"loss_type", "training.objective"},
    {"lora", "adapter"},
    {"peft", "adapter"},
    {"qlora", "adapter, with adapter.quantize"},
    {"r", "adapter.rank"},
    {"lora_r", "adapter.rank"},
    {"lora_alpha", "adapter.alpha"},
    {"lora_dropout", "adapter.dropout"},
    {"target_modules", "adapter.targets"},
    {"lora_target_modules", "adapter.targets"},
    {"exclude_modules", "adapter.exclude"},
    {"use_rslora", "adapter.rslora"},
    {"use_dora", "adapter.dora"},
    {"load_in_4bit", "adapter.quantize=nf4"},
    {"load_in_8bit", "adapter.quantize=int8"},
    {"bnb_4bit_quant_type", "adapter.quantize"},
    {NULL, NULL},
};

/* A list's count stands behind it. */
#define COUNTS(count, list) \
    _Static_assert(offsetof(fsdp_train_config, count) == offsetof(fsdp_train_config, list) + sizeof(void *), #list)
COUNTS(data.path_count, data.paths);
COUNTS(data.mixture_count, data.mixture);
COUNTS(validation.path_count, validation.paths);
COUNTS(parallelism.wrap_class_count, parallelism.wrap_classes);
COUNTS(optimizer.group_count, optimizer.groups);
COUNTS(checkpoint.exclude_count, checkpoint.exclude_from_loading);
COUNTS(adapter.modules_to_save_count, adapter.modules_to_save);

const fsdp__key_table fsdp__train_keys = {.keys = keys,
                                          .count = (int)FSDP__COUNT_OF(keys),
                                          .sections = sections,
                                          .example = "training.steps",
                                          .words = words,
                                          .needs = fsdp__train_key_needs};
