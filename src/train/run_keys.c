/* run_keys.c - the table of a training run's keys. */
#include "train/run_config.h"

#include <math.h>
#include <stddef.h>

#include "base/cores.h"

static const fsdp__choice load_choices[] = {{"each", 0}, {"leader", 1}, {NULL, 0}};
static const fsdp__choice init_choices[] = {{"pretrained", 1}, {"random", 0}, {NULL, 0}};
static const fsdp__choice bool_choices[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
static const fsdp__choice format_choices[] = {
    {"auto", FSDP_TRAIN_AUTO}, {"text", FSDP_TRAIN_TEXT}, {"tokens", FSDP_TRAIN_TOKENS}, {NULL, 0}};
static const fsdp__choice token_choices[] = {{"uint16", 2}, {"uint32", 4}, {NULL, 0}};
static const fsdp__choice on_nan_choices[] = {
    {"stop", FSDP_TRAIN_STOP}, {"skip", FSDP_TRAIN_SKIP}, {"continue", FSDP_TRAIN_CONTINUE}, {NULL, 0}};
static const fsdp__choice bad_line_choices[] = {{"error", 0}, {"skip", 1}, {NULL, 0}};
static const fsdp__choice order_choices[] = {{"sequential", 0}, {"shuffled", 1}, {NULL, 0}};
static const fsdp__choice param_choices[] = {
    {"float32", FSDP_F32}, {"bfloat16", FSDP_BF16}, {"float16", FSDP_F16}, {NULL, 0}};
static const fsdp__choice export_choices[] = {
    {"float32", FSDP_F32}, {"bfloat16", FSDP_BF16}, {"float16", FSDP_F16}, {NULL, 0}};
static const fsdp__choice optimizer_choices[] = {
    {"adamw", FSDP_TRAIN_ADAMW}, {"adam", FSDP_TRAIN_ADAM}, {"sgd", FSDP_TRAIN_SGD}, {NULL, 0}};
static const fsdp__choice decay_choices[] = {
    {"constant", FSDP_DECAY_CONSTANT}, {"linear", FSDP_DECAY_LINEAR}, {"cosine", FSDP_DECAY_COSINE}, {NULL, 0}};
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
static const fsdp__choice checkpoint_choices[] = {
    {"none", FSDP_RECOMPUTE_NONE}, {"full", FSDP_RECOMPUTE_FULL}, {"selective", FSDP_RECOMPUTE_SELECTIVE}, {NULL, 0}};
static const fsdp__choice selective_choices[] = {{"op", 0}, {NULL, 0}};
static const fsdp__choice which_choices[] = {{"last", FSDP_TRAIN_LAST}, {"best", FSDP_TRAIN_BEST}, {NULL, 0}};
static const fsdp__choice step_choices[] = {{"best", FSDP_CHECKPOINT_BEST}, {NULL, 0}};
static const fsdp__choice async_choices[] = {{"disabled", 0}, {"async", 1}, {NULL, 0}};

#define AT(section, field) offsetof(fsdp_train_config, section.field)
/* The columns: section, name, field, range, default, help. */
#define INTEGER(section, name, least, most, range, initial, help)                                      \
    {                                                                                                  \
#section, #name, FSDP__KEY_INTEGER, AT(section, name), least, most, range, NULL, initial, help \
    }
#define INTEGER_OR(section, name, least, most, range, choices, initial, help)                             \
    {                                                                                                     \
#section, #name, FSDP__KEY_INTEGER, AT(section, name), least, most, range, choices, initial, help \
    }
#define NUMBER(section, name, least, most, range, initial, help)                                      \
    {                                                                                                 \
#section, #name, FSDP__KEY_NUMBER, AT(section, name), least, most, range, NULL, initial, help \
    }
#define BOOL(section, name, initial, help)                                                       \
    {                                                                                            \
#section, #name, FSDP__KEY_BOOL, AT(section, name), 0, 0, 0, bool_choices, initial, help \
    }
#define BOOL_LOCAL(section, name, initial, help)                                                           \
    {                                                                                                      \
#section, #name, FSDP__KEY_BOOL, AT(section, name), 0, 0, FSDP__LOCAL, bool_choices, initial, help \
    }
#define CHOICE(section, name, field, choices, initial, help)                                   \
    {                                                                                          \
#section, #name, FSDP__KEY_CHOICE, AT(section, field), 0, 0, 0, choices, initial, help \
    }
#define CHOICE_OR(section, name, field, least, most, choices, initial, help)                                         \
    {                                                                                                                \
#section, #name, FSDP__KEY_CHOICE, AT(section, field), least, most, FSDP__OR_INTEGER, choices, initial, help \
    }
#define TEXT(section, name, range, help)                                                  \
    {                                                                                     \
#section, #name, FSDP__KEY_TEXT, AT(section, name), 0, 0, range, NULL, NULL, help \
    }
/* "export" is a keyword of C++, which reads the public header. */
#define SAVE_TEXT(name, help)                                                                \
    {                                                                                        \
        "export", #name, FSDP__KEY_TEXT, AT(save, name), 0, 0, FSDP__LOCAL, NULL, NULL, help \
    }
#define SAVE_CHOICE(name, choices, initial, help)                                          \
    {                                                                                      \
        "export", #name, FSDP__KEY_CHOICE, AT(save, name), 0, 0, 0, choices, initial, help \
    }
#define SAVE_SIZE(name, least, initial, help)                                                           \
    {                                                                                                   \
        "export", #name, FSDP__KEY_SIZE, AT(save, name), least, FSDP__KEY_LARGE, 0, NULL, initial, help \
    }
#define SAVE_BOOL(name, initial, help)                                                        \
    {                                                                                         \
        "export", #name, FSDP__KEY_BOOL, AT(save, name), 0, 0, 0, bool_choices, initial, help \
    }
#define PATHS(section, name, field, help)                                                         \
    {                                                                                             \
#section, #name, FSDP__KEY_PATHS, AT(section, field), 0, 0, FSDP__LOCAL, NULL, NULL, help \
    }

#define PATTERNS(section, name, field, help)                                               \
    {                                                                                      \
#section, #name, FSDP__KEY_PATTERNS, AT(section, field), 0, 0, 0, NULL, NULL, help \
    }
#define NAMES(section, name, field, help)                                               \
    {                                                                                   \
#section, #name, FSDP__KEY_NAMES, AT(section, field), 0, 0, 0, NULL, NULL, help \
    }

/* clang-format off */
static const fsdp__key keys[] = {
    TEXT(model, path, FSDP__LOCAL, "Hugging Face folder to start from"),
    TEXT(model, preset, 0, "in place of a folder: gpt-10m, gpt2-124m, llama-1m, llama-100m, llama-1b, llama-8b"),
    CHOICE(model, init, pretrained, init_choices, NULL, "first weights; not set: pretrained with model.path, random with model.preset"),
    CHOICE(model, load, load_by_leader, load_choices, "each", "who reads the weights of model.path; each: every rank its own rows; leader: one rank of each machine all of them, once, and sends the others theirs: where many readers make the storage slow"),
    INTEGER(model, n_layers, 1, 10000, 0, NULL, "in place of the preset's, or the folder's with init random"),
    INTEGER(model, dim, 1, 1 << 20, 0, NULL, "in place of the preset's, or the folder's with init random"),
    INTEGER(model, n_heads, 1, 1 << 16, 0, NULL, "in place of the preset's, or the folder's with init random"),
    INTEGER(model, n_kv_heads, 1, 1 << 16, 0, NULL, "in place of the preset's, or the folder's with init random (Llama)"),
    INTEGER(model, ffn_dim, 1, 1 << 24, 0, NULL, "in place of the preset's, or the folder's with init random"),
    INTEGER(model, vocab_size, 1, 1 << 28, 0, NULL, "in place of the preset's, or the folder's with init random"),
    INTEGER(model, max_seq_len, 1, 1 << 28, 0, NULL, "in place of the preset's, or the folder's with init random"),
    CHOICE(model, tie_word_embeddings, tie_word_embeddings, bool_choices, NULL, "in place of the preset's, or the folder's with init random: the head is the embedding"),
    NUMBER(model, dropout, 0, 1, FSDP__BELOW, NULL, "GPT-2: after the embeddings and in each residual branch; set, it is in place of the folder's three rates, and attention drops nothing"),
    PATTERNS(model, frozen, frozen, "parameters that are not trained, by name: pattern (model.layers.0.*), or list of them; each must match one; optimizer state that they have in a checkpoint is kept"),

    PATHS(data, path, paths, "file, folder, pattern (data/*.bin), or list of them that makes one stream"),
    CHOICE(data, format, format, format_choices, "auto", "text, tokens, or auto: by llm.c's header, else by name (.txt, .jsonl, also packed; .bin, .u16, .u32), else by the first bytes"),
    CHOICE(data, dtype, token_bytes, token_choices, NULL, "of token files; not set: by llm.c's header, by name (.bin, .u16, .u32), else uint16"),
    CHOICE(data, order, shuffle, order_choices, "sequential", "sequential: window after window; shuffled: every window once an epoch, by training.seed"),
    INTEGER(data, workers, 0, 64, FSDP__LOCAL, "1", "threads that read ahead; 0: read in the step"),
    TEXT(data, tokenizer, FSDP__LOCAL, "folder of a tokenizer, which makes tokens of text (.txt, .jsonl, also .gz and .zst); model: that of model.path; bytes: none, bytes are tokens (vocabulary 256); not set: that of model.path or checkpoint.initial_load_path where they have one, else bytes"),
    TEXT(data, field, 0, "of JSON lines, the field that holds the text; not set: text"),
    CHOICE(data, on_bad_line, skip_bad_lines, bad_line_choices, "error", "a line that is not a JSON object, or has no text in the field: error: end the run before it begins; skip: leave the line out, and say how many"),
    TEXT(data, cache, FSDP__LOCAL, "folder in which the tokens of text are kept; not set: fsdp in $XDG_CACHE_HOME, or in ~/.cache"),

    INTEGER(training, steps, 1, FSDP__KEY_LARGE, 0, "1000", "optimizer steps"),
    INTEGER(training, seq_len, 1, 1 << 28, 0, "256", "tokens a sequence"),
    INTEGER(training, global_batch_size, 1, 1 << 30, FSDP__OR_MINUS, "-1", "sequences a step over all ranks; -1: local_batch_size x ranks, or where a run goes on as many as it had"),
    INTEGER(training, local_batch_size, 1, 1 << 24, 0, "8", "sequences a microbatch and rank; accumulation is global / (local x ranks)"),
    NUMBER(training, max_norm, 0, INFINITY, 0, "1.0", "clip gradients to this total norm; 0: do not clip"),
    INTEGER(training, seed, 0, FSDP__KEY_LARGE, 0, "42", "of first weights and shuffling"),
    INTEGER(training, threads, 1, FSDP__THREADS_MOST, FSDP__LOCAL, NULL, "compute threads of each rank, in the program fsdp; not set: OMP_NUM_THREADS, else a rank's share of the cores"),
    CHOICE(training, mixed_precision_param, mixed_precision_param, param_choices, "float32", "gather parameters and compute in it; shards stay float32; float16: the loss is scaled, dynamically, and steps with infinite gradients are left out"),
    CHOICE(training, mixed_precision_reduce, mixed_precision_reduce, param_choices, "float32", "reduce gradients in it; float16: as with mixed_precision_param"),
    CHOICE(training, no_sync, no_sync, bool_choices, NULL, "with accumulation: reduce on the last microbatch only, and add up whole gradients until then; not set: true, but false with parallelism.strategy zero2 and zero3"),
    BOOL(training, enable_cpu_offload, "false", "keep parameters, gradients and optimizer state on the host, and step there; where the run computes on the CPU they are there anyway, and nothing moves"),
    CHOICE(training, on_nan, on_nan, on_nan_choices, "stop", "a step whose loss or gradient norm is NaN or infinite: stop: end the run, export nothing (also where the loss of a validation is); skip: leave the step out; continue: take it"),
    INTEGER(training, early_stop, 0, FSDP__KEY_LARGE, 0, "0", "validations in a row without an improvement after which the run ends, and exports what export.which says; 0: none do"),
    NUMBER(training, early_stop_min_delta, 0, INFINITY, 0, "0", "an improvement is a validation loss lower by more than this than that of the last improvement"),

    CHOICE(optimizer, name, name, optimizer_choices, "adamw", "as in torch.optim"),
    NUMBER(optimizer, lr, 0, INFINITY, FSDP__ABOVE, "3e-4", "base learning rate"),
    NUMBER(optimizer, beta1, 0, 1, FSDP__BELOW, "0.9", "adamw, adam"),
    NUMBER(optimizer, beta2, 0, 1, FSDP__BELOW, "0.95", "adamw, adam"),
    NUMBER(optimizer, eps, 0, INFINITY, 0, "1e-8", "adamw, adam"),
    NUMBER(optimizer, weight_decay, 0, INFINITY, 0, NULL, "decoupled for adamw, L2 for adam and sgd; not set: 0.1 for adamw, else 0"),
    NUMBER(optimizer, momentum, 0, INFINITY, 0, "0", "sgd"),
    BOOL(optimizer, nesterov, "false", "sgd; needs momentum"),

    INTEGER(lr_scheduler, warmup_steps, 0, FSDP__KEY_LARGE, 0, "0", "steps in which the rate rises linearly"),
    CHOICE(lr_scheduler, decay_type, decay_type, decay_choices, "constant", "after the warm-up, until training.steps"),
    NUMBER(lr_scheduler, min_lr_factor, 0, 1, 0, "0", "part of the base rate that is left at the end"),

    CHOICE(parallelism, strategy, strategy, strategy_choices, "fsdp2", "what a rank has only a part of while a step runs; zero1: optimizer state: parameters are gathered, and gradients reduced, once a step; zero2: gradients too, reduced in each microbatch; zero3: parameters too; fsdp2: as fsdp_reshard_after_forward and no_sync say; hsdp: the same, over several copies (data_parallel_replicate_degree); fsdp1: as fsdp1_strategy says; ddp: nothing, gradients are all-reduced in buckets"),
    INTEGER(parallelism, data_parallel_replicate_degree, 1, 1 << 20, 0, "1", "copies of the parameters, of strategy hsdp on several machines one on each if this is 1; with several each is sharded over consecutive ranks: parameters, gradients and optimizer state take as many times the memory, gathers stay among those ranks, and each reduction sends 2 (copies - 1) / copies of a shard besides"),
    INTEGER(parallelism, data_parallel_shard_degree, 1, 1 << 20, FSDP__OR_MINUS, "-1", "ranks that share one copy of the parameters; -1: all / data_parallel_replicate_degree"),
    CHOICE_OR(parallelism, fsdp_reshard_after_forward, reshard_after_forward, 1, 1 << 20, reshard_choices, "default", "default: all but the root; always: the root too; never: keep whole until the backward is done; an integer that divides the ranks: keep that part, and gather over so many ranks in the backward"),
    CHOICE(parallelism, gather_dtype, gather_dtype, gather_choices, "none", "float8, int8: gather weights of linear layers in one byte an element (and a scale for each, or for every 128) and compute with what arrives in the compute dtype; a rank also keeps what it sends, and holds whole parameters in memory of its own; none: in the compute dtype"),
    CHOICE(parallelism, fsdp1_strategy, fsdp1_strategy, fsdp1_choices, NULL, "of strategy fsdp1, as PyTorch's ShardingStrategy; full_shard: parameters, gradients and optimizer state, the root's parameters whole from the forward to the backward; shard_grad_op: all parameters so; no_shard: nothing; hybrid_shard, hybrid_shard_zero2: the first two inside each of several copies (data_parallel_replicate_degree); not set: full_shard, or hybrid_shard where there are copies"),
    CHOICE(parallelism, fsdp1_use_orig_params, fsdp1_use_orig_params, bool_choices, NULL, "of strategy fsdp1: optimizers have the original parameters, not one a unit; these begin at multiples of 16 bytes of its vector, and frozen ones may be in a unit with others; not set: false"),
    CHOICE(parallelism, fsdp1_backward_prefetch, fsdp1_backward_prefetch, backward_prefetch_choices, NULL, "of strategy fsdp1: when the backward gathers the unit before: ahead of a unit's backward, behind it, not before its own begins; not set: pre"),
    CHOICE(parallelism, fsdp1_forward_prefetch, fsdp1_forward_prefetch, bool_choices, NULL, "of strategy fsdp1: the forward gathers the next unit ahead, with its memory; not set: false"),
    NUMBER(parallelism, ddp_bucket_cap_mb, 0, 1 << 20, FSDP__ABOVE, NULL, "of strategy ddp: MiB from which a bucket of gradients is full, and is sent; not set: 25, and 1 for the first one"),
    CHOICE(parallelism, ddp_find_unused_parameters, ddp_find_unused_parameters, bool_choices, NULL, "of strategy ddp: ranks may use different parameters in a step: one more all-reduce, and buckets in the order of the model; not set: false"),
    CHOICE(parallelism, ddp_static_graph, ddp_static_graph, bool_choices, NULL, "of strategy ddp: each rank uses the same parameters in every step, though not all of them perhaps; not set: false"),
    CHOICE(parallelism, ddp_gradient_as_bucket_view, ddp_gradient_as_bucket_view, bool_choices, NULL, "of strategy ddp: gradients lie in the buckets they are sent in: half of their memory while they are reduced; not set: false"),
    CHOICE(parallelism, ddp_compress, ddp_compress, compress_choices, NULL, "of strategy ddp: gradients are rounded to it, divided and summed in it: half of the bytes sent; not set: none"),
    CHOICE(parallelism, wrap_policy, wrap_policy, wrap_choices, "blocks", "which modules are units, each gathered and reduced together, with the parameters of no unit inside it; the model is one of them; blocks: every block; root: no other; size: by wrap_min_num_params; class: by wrap_classes; always: every module. More units: less memory for whole parameters, and more collectives, of the same bytes"),
    INTEGER(parallelism, wrap_min_num_params, 1, FSDP__KEY_LARGE, 0, NULL, "of wrap_policy size: a module is a unit when it has as many parameters (elements) that no unit inside it has; not set: 100000000"),
    NAMES(parallelism, wrap_classes, wrap_classes, "of wrap_policy class: a name (LlamaDecoderLayer, GPT2Block, Linear), or list of them; the model must have modules of each"),
    INTEGER(parallelism, prefetch, 0, 1 << 20, 0, "0", "units to gather ahead, in the forward and in the backward, each with its memory; 0: one in the backward, and over several machines one or two in both"),
    BOOL(parallelism, keep_last_unit, "false", "the unit that a forward ends with stays whole until its backward, which begins with it: a gather less in each microbatch, that nothing would hide"),

    CHOICE(activation_checkpoint, mode, mode, checkpoint_choices, "none", "what a block keeps for its backward: none: everything; full: its input, the rest is computed again, for about a third more time; selective: as the next key says; the results are the same to the bit, and so are gathers and bytes sent"),
    CHOICE_OR(activation_checkpoint, selective_ac_option, selective_ac_option, 1, 1 << 20, selective_choices, "2", "with mode selective: an integer n: every n-th block keeps its input only; op: every block keeps its input, attention and every second matrix product"),

    CHOICE(validation, enable, enable, bool_choices, NULL, "evaluate the model every freq steps and after the last one; not set: true where path or share is set"),
    PATHS(validation, path, paths, "what to evaluate on, read as data.path is"),
    NUMBER(validation, share, 0, 1, FSDP__BELOW, "0", "in place of a path: this part of data.path, its last windows, which are never trained on"),
    INTEGER(validation, freq, 1, FSDP__KEY_LARGE, 0, "100", "steps between validations"),
    INTEGER(validation, steps, 1, FSDP__KEY_LARGE, FSDP__OR_MINUS, "-1", "batches of a validation, over all ranks together: the same tokens in any world; -1: all there are"),
    INTEGER(validation, local_batch_size, 1, 1 << 24, 0, NULL, "sequences a batch and rank; not set: training.local_batch_size"),
    BOOL(validation, keep_best, "true", "with checkpoint.enable: a checkpoint after a validation that is the best so far, which stays until a better one"),

    NUMBER(comm, timeout, 0, 1e9, FSDP__LOCAL, "300", "seconds to wait for a rank that stands still (one that computes may take longer); 0: for ever"),
    BOOL_LOCAL(comm, trace, "false", "log what happens to each group of parameters, and each collective, on every rank"),

    INTEGER(metrics, log_freq, 1, FSDP__KEY_LARGE, 0, "10", "steps between log lines"),
    TEXT(metrics, jsonl, FSDP__LOCAL, "file that gets a JSON object per step, after those of earlier runs"),

    CHOICE(checkpoint, enable, enable, bool_choices, NULL, "write checkpoints, and go on from one that is there; not set: true with checkpoint.folder"),
    TEXT(checkpoint, folder, 0, "folder of the checkpoints, step-N each, of this run alone; a run that finds one there goes on from it, at any number of ranks, and reads no weights of model.path"),
    INTEGER(checkpoint, interval, 1, FSDP__KEY_LARGE, 0, "500", "steps between checkpoints; the last step has one too, and so has one that SIGUSR1 asks for, or SIGTERM, SIGINT or SIGHUP, which then end the run"),
    INTEGER(checkpoint, keep_latest_k, 0, 1 << 20, 0, "10", "newest checkpoints that are kept, older ones are removed; 0: all"),
    INTEGER(checkpoint, keep_every, 0, FSDP__KEY_LARGE, 0, "0", "checkpoints of steps that are its multiples are never removed; 0: none of them is spared"),
    CHOICE(checkpoint, async_mode, async_mode, async_choices, "disabled", "async: a rank copies what it writes in its memory, a thread writes it, and training goes on meanwhile; disabled: training waits for the disk"),
    INTEGER_OR(checkpoint, load_step, 0, FSDP__KEY_LARGE, FSDP__OR_MINUS, step_choices, "-1", "step of the checkpoint to go on from; -1: the newest; best: that of the best validation so far"),
    TEXT(checkpoint, initial_load_path, FSDP__LOCAL, "checkpoint (step-N, or step-best for that of the best validation), folder of checkpoints (its newest), or Hugging Face folder whose weights a run begins with, in place of those of model.path; nothing else is read of it, and nothing at all where checkpoint.folder holds a checkpoint"),
    NAMES(checkpoint, exclude_from_loading, exclude_from_loading, "what begins anew where a run goes on: optimizer, lr_scheduler, dataloader (the place in the data), or list of them"),

    SAVE_TEXT(path, "Hugging Face folder written at the end: new, empty, or written by an export before"),
    SAVE_BOOL(overwrite, "false", "write into any folder: files of the same names are replaced, all others stay"),
    SAVE_TEXT(fallback_path, "folder to write when export.path fails at the end; not set, or where that fails too: <name of export.path>-recovered beside metrics.jsonl, or in the working directory"),
    SAVE_CHOICE(which, which_choices, NULL, "whose weights: last: of the last step; best: of the step with the best validation, from its checkpoint, or, without checkpoint.folder, from a copy of a rank's share of the weights in the host's memory; not set: best with training.early_stop (unless validation.keep_best is false), else last"),
    SAVE_CHOICE(dtype, export_choices, "float32", "of the exported weights"),
    SAVE_SIZE(max_shard_size, 1, "5GB", "of a file of weights: more are split over several, with an index; a tensor that is larger has its own"),
};
/* clang-format on */

static const char *const sections[] = {
    "model",      "data", "training", "optimizer",  "lr_scheduler", "parallelism", "activation_checkpoint",
    "validation", "comm", "metrics",  "checkpoint", "export",       NULL};

_Static_assert(offsetof(fsdp_train_config, data.path_count) ==
                   offsetof(fsdp_train_config, data.paths) + sizeof(char **),
               "the count of a list stands behind it");
_Static_assert(offsetof(fsdp_train_config, validation.path_count) ==
                   offsetof(fsdp_train_config, validation.paths) + sizeof(char **),
               "the count of a list stands behind it");
_Static_assert(offsetof(fsdp_train_config, parallelism.wrap_class_count) ==
                   offsetof(fsdp_train_config, parallelism.wrap_classes) + sizeof(char **),
               "the count of a list stands behind it");
_Static_assert(offsetof(fsdp_train_config, checkpoint.exclude_count) ==
                   offsetof(fsdp_train_config, checkpoint.exclude_from_loading) + sizeof(char **),
               "the count of a list stands behind it");

const fsdp__key_table fsdp__train_keys = {
    .keys = keys, .count = (int)FSDP__COUNT_OF(keys), .sections = sections, .example = "training.steps"};
