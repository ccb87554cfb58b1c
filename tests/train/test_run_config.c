/* The config: what is read, what is refused, and in which words. */
#include <math.h>
#include <unistd.h>

#include "fsdp/train.h"
#include "support/test.h"
#include "train/run_config.h"

static fsdp_train_config *config;
static char *directory, *path;

static int setup(void **state)
{
    (void)state;
    directory = test_directory();
    path = test_path(directory, "c.yaml");
    return fsdp_train_config_create(&config);
}

static int teardown(void **state)
{
    (void)state;
    fsdp_train_config_free(config);
    return 0;
}

static fsdp_status load(const char *text)
{
    test_write_file(path, text, strlen(text));
    return fsdp_train_config_load(config, path);
}

/* `text` is refused with "<path><expected>". */
static void refuses(const char *text, const char *expected)
{
    char whole[1024];

    snprintf(whole, sizeof whole, "%s%s", path, expected);
    CHECK(load(text) != FSDP_OK);
    CHECK_STRING(fsdp_last_error(), whole);
}

TEST_WITH(every_key_has_its_default, setup, teardown)
{
    CHECK_NULL(config->model.path);
    CHECK_EQ(config->model.pretrained, -1);
    CHECK_EQ(config->model.n_layers, 0);
    CHECK_EQ(config->model.tie_word_embeddings, -1);
    CHECK_EQ(config->data.path_count, 0);
    CHECK_EQ(config->data.format, FSDP_TRAIN_AUTO);
    CHECK_EQ(config->data.shuffle, 0);
    CHECK_EQ(config->training.global_batch_size, -1);
    CHECK_EQ(config->training.no_sync, -1);
    CHECK_EQ(config->training.mixed_precision_param, FSDP_F32);
    CHECK_EQ(config->optimizer.name, FSDP_TRAIN_ADAMW);
    CHECK(isnan(config->optimizer.weight_decay));
    CHECK_EQ(config->lr_scheduler.decay_type, FSDP_DECAY_CONSTANT);
    CHECK_EQ(config->parallelism.reshard_after_forward, FSDP_RESHARD_AUTO);
    CHECK_EQ(config->activation_checkpoint.mode, FSDP_RECOMPUTE_NONE);
    CHECK_EQ(config->activation_checkpoint.selective_ac_option, 2);
    CHECK_EQ(config->checkpoint.enable, -1);
    CHECK_EQ(config->checkpoint.interval, 500);
    CHECK_EQ(config->checkpoint.keep_latest_k, 10);
    CHECK_EQ(config->checkpoint.load_step, -1);
    CHECK_EQ(config->save.dtype, FSDP_F32);
}

TEST_WITH(a_file_sets_what_it_names, setup, teardown)
{
    CHECK_OK(load("# a comment\n"
                  "model: {preset: llama-1m, tie_word_embeddings: true}\n"
                  "data:\n  path:\n    - a.txt\n    - 'b c.txt'\n  order: shuffled\n  dtype: uint32\n"
                  "training:\n  steps: 20\n  max_norm: 0\n  no_sync: false\n  mixed_precision_param: bfloat16\n"
                  "optimizer:\n  name: sgd\n  lr: 5e-2\n  momentum: .9\n  nesterov: true\n"
                  "lr_scheduler:\n"
                  "parallelism:\n  fsdp_reshard_after_forward: always\n"
                  "activation_checkpoint:\n  mode: selective\n  selective_ac_option: op\n"
                  "export:\n  path: out\n  dtype: float16\n"));
    CHECK_STRING(config->model.preset, "llama-1m");
    CHECK_EQ(config->model.tie_word_embeddings, 1);
    CHECK_EQ(config->data.path_count, 2);
    CHECK_STRING(config->data.paths[1], "b c.txt");
    CHECK_EQ(config->data.shuffle, 1);
    CHECK_EQ(config->data.token_bytes, 4);
    CHECK_EQ(config->training.steps, 20);
    CHECK_EQ(config->training.max_norm == 0, 1);
    CHECK_EQ(config->training.no_sync, 0);
    CHECK_EQ(config->training.mixed_precision_param, FSDP_BF16);
    CHECK_EQ(config->optimizer.name, FSDP_TRAIN_SGD);
    CHECK_NEAR(config->optimizer.lr, 0.05, 0);
    CHECK_NEAR(config->optimizer.momentum, 0.9, 0);
    CHECK(config->optimizer.nesterov);
    CHECK_EQ(config->parallelism.reshard_after_forward, -FSDP_RESHARD_ALWAYS);
    CHECK_EQ(config->activation_checkpoint.mode, FSDP_RECOMPUTE_SELECTIVE);
    CHECK_EQ(config->activation_checkpoint.selective_ac_option, 0);
    CHECK_STRING(config->save.path, "out");
    CHECK_EQ(config->save.dtype, FSDP_F16);
    CHECK_OK(load("data:\n  path: one.txt\n")); /* replaces the list */
    CHECK_EQ(config->data.path_count, 1);
    CHECK_STRING(config->data.paths[0], "one.txt");
    CHECK_OK(load("")); /* nothing named, nothing changed */
    CHECK_EQ(config->training.steps, 20);
}

TEST_WITH(an_unknown_name_is_refused_with_the_nearest_one, setup, teardown)
{
    refuses("# c\n\ntraining:\n  seed: 3\n\n  # c\n  stepz: 3\n",
            ":7: training.stepz is not a key of training; did you mean 'steps'?");
    refuses("training:\n  lr: 3\n", ":2: training.lr is not a key of training; did you mean 'optimizer.lr'?");
    refuses(
        "training:\n  zzz: 3\n",
        ":2: training.zzz is not a key of training, which has: steps, epochs, seq_len, global_batch_size, "
        "local_batch_size, max_norm, seed, device, threads, mixed_precision_param, mixed_precision_reduce, "
        "split_shards, no_sync, enable_cpu_offload, on_nan, early_stop, early_stop_min_delta, ema_decay, objective");
    refuses("training:\n  seed: 1\ntrainning:\n  steps: 10\n",
            ":3: trainning is not a section; did you mean 'training'?");
    refuses(
        "zzz: 1\n",
        ":1: zzz is not a section: expected model, data, training, optimizer, lr_scheduler, "
        "parallelism, activation_checkpoint, validation, kernels, comm, metrics, checkpoint, export, adapter or dpo");
    refuses("training: {seed: 3,\n  stepz: 3}\n", ":2: training.stepz is not a key of training; did you mean 'steps'?");
}

/* Each is told as a key that exists, and no key of ours is taken for one. */
TEST_WITH(a_word_of_another_program_is_refused_with_the_key_here, setup, teardown)
{
    const fsdp__key_table *table = &fsdp__train_keys;

    for (const fsdp__key_word *w = table->words; w->word; w++) {
        const char *dot = strchr(w->here, '.');
        char section[64], name[64];

        for (int k = 0; k < table->count; k++)
            CHECK(strcmp(table->keys[k].name, w->word) != 0);
        snprintf(section, sizeof section, "%.*s", (int)strcspn(w->here, "., "), w->here);
        CHECK(fsdp__key_is_section(table, section));
        if (!dot || dot[-1] == ' ')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(dot + 1, "=, "), dot + 1);
        if (strlen(section) == (size_t)(dot - w->here))
            CHECK(fsdp__key_find(table, section, name) != NULL);
    }
    refuses("adapter:\n  lora_alpha: 3\n", ":2: adapter.lora_alpha is not a key: here it is adapter.alpha");
    refuses("lora: {r: 8}\n", ":1: lora is not a section: here it is adapter");
    refuses("learning_rate: 1e-4\n", ":1: learning_rate is not a section: here it is optimizer.lr");
    CHECK_ERROR(fsdp_train_config_set(config, "lora.r", "8"), FSDP_INVALID,
                "lora.r is not a key: here it is adapter.rank");
}

TEST_WITH(a_folder_and_data_are_no_configs, setup, teardown)
{
    static const char text[] = "{\"model_type\": \"llama\"}";
    char *model = test_path(directory, "config.json");

    test_write_file(model, text, strlen(text));
    CHECK_ERROR(fsdp_train_config_load(config, directory), FSDP_INVALID,
                "is a folder and no config: name a model with --model.path=");
    CHECK_ERROR(fsdp_train_config_load(config, "chat.jsonl"), FSDP_INVALID,
                "'chat.jsonl' has the name of data and is no config: name it with --data.path=chat.jsonl");
    CHECK_ERROR(fsdp_train_config_load(config, model), FSDP_INVALID, "if this is a model's config.json, name its");
}

TEST_WITH(a_wrong_value_is_refused_with_what_is_allowed, setup, teardown)
{
    refuses("optimizer:\n  name: sgd\n\n  lr: abc\n", ":4: optimizer.lr is 'abc': expected a number greater than 0");
    refuses("optimizer:\n  lr: 0\n", ":2: optimizer.lr is '0': expected a number greater than 0");
    refuses("optimizer:\n  lr: nan\n", ":2: optimizer.lr is 'nan': expected a number greater than 0");
    refuses("optimizer:\n  beta1: 1\n", ":2: optimizer.beta1 is '1': expected a number from 0 to below 1");
    refuses("optimizer:\n  name: tiger\n",
            ":2: optimizer.name is 'tiger': expected adamw, adam, sgd, lion, adamw8bit, muon or adafactor");
    refuses("optimizer:\n  nesterov: yes\n", ":2: optimizer.nesterov is 'yes': expected true or false");
    refuses("training:\n  steps: 1.5\n",
            ":2: training.steps is '1.5': expected an integer from 1 to 9000000000000000000");
    refuses("training:\n  steps: 99999999999999999999\n",
            ":2: training.steps is '99999999999999999999': expected an integer from 1 to 9000000000000000000");
    refuses("training:\n  seed: -1\n", ":2: training.seed is '-1': expected an integer from 0 to 9000000000000000000");
    refuses("checkpoint:\n  load_step: 9100000000000000000\n",
            ":2: checkpoint.load_step is '9100000000000000000': expected best, -1 or an integer from 0 to "
            "9000000000000000000");
    refuses("checkpoint:\n  load_step: 9000000000000000001\n",
            ":2: checkpoint.load_step is '9000000000000000001': expected best, -1 or an integer from 0 to "
            "9000000000000000000");
    config->checkpoint.load_step = 9000000000000000001;
    CHECK_ERROR(fsdp_train_config_print(config, stdout), FSDP_INVALID,
                "checkpoint.load_step is 9000000000000000001: expected best, -1 or an integer from 0 to");
    config->checkpoint.load_step = -1;
    refuses("metrics:\n  jsonl: '-'\n",
            ":2: metrics.jsonl is '-': it cannot go to standard output: name a file or folder ('./-')");
    refuses("export:\n  path: '-'\n",
            ":2: export.path is '-': it cannot go to standard output: name a file or folder ('./-')");
    refuses("training:\n  steps:\n", ":2: training.steps is '': expected an integer from 1 to 9000000000000000000");
    refuses("training:\n  global_batch_size: 0\n",
            ":2: training.global_batch_size is '0': expected -1 or an integer from 1 to 1073741824");
    refuses("training:\n  max_norm: -1\n", ":2: training.max_norm is '-1': expected a number from 0");
    refuses("data:\n  workers: 65\n", ":2: data.workers is '65': expected an integer from 0 to 64");
    refuses("training:\n  device: cuda:123456\n",
            ":2: training.device is 'cuda:123456': expected cpu, cuda, cuda:N (N from 0 to 15) or auto");
    refuses("data:\n  path: ['']\n", ":2: data.path has an empty entry: expected a file or a list of files");
}

TEST_WITH(a_wrong_shape_is_refused, setup, teardown)
{
    refuses("training:\n  seed: 1\n  steps: [10]\n",
            ":3: training.steps is a list: expected an integer from 1 to 9000000000000000000");
    refuses("training:\n  steps:\n    a: 1\n",
            ":2: training.steps is a section: expected an integer from 1 to 9000000000000000000");
    refuses("model:\n  frozen: [a, [b]]\n", ":2: model.frozen holds a list: expected a list of patterns");
    refuses("data:\n  path: [a, [b]]\n", ":2: data.path holds a list: expected a list of files");
    refuses("data:\n  path: {a: b}\n", ":2: data.path is a section: expected a file or a list of files");
    refuses("training: 3\n", ":1: training is a single value: expected keys of the section, indented below it");
    refuses("- a\n", ":1: a list: expected sections (model:, data:, training:, ...)");
    refuses("training:\n  steps: 3\n  seed: 1\n  steps: 4\n", ":4: training.steps is given twice");
    refuses("training:\n  steps: 3\ntraining:\n  seed: 4\n", ":3: training is given twice");
    CHECK_ERROR(load("training:\n  steps: \"3\n"), FSDP_FORMAT, "not YAML from here on");
    CHECK_ERROR(load("training:\n\tsteps: 3\n"), FSDP_FORMAT,
                ":2: a tab in column 1: YAML is indented by spaces alone");
    CHECK_ERROR(fsdp_train_config_load(config, "/nonexistent/c.yaml"), FSDP_NOT_FOUND, "/nonexistent/c.yaml");
}

TEST_WITH(overrides_speak_the_same_language, setup, teardown)
{
    CHECK_OK(fsdp_train_config_set(config, "training.steps", "7"));
    CHECK_EQ(config->training.steps, 7);
    CHECK_OK(fsdp_train_config_set(config, "data.path", "[a.txt, 'b c.txt']"));
    CHECK_EQ(config->data.path_count, 2);
    CHECK_STRING(config->data.paths[1], "b c.txt");
    CHECK_OK(fsdp_train_config_set(config, "data.path", "x.txt"));
    CHECK_EQ(config->data.path_count, 1);
    CHECK_OK(fsdp_train_config_set(config, "model.frozen", "[model.layers.0.*, '*norm*']"));
    CHECK_EQ(config->model.frozen_count, 2);
    CHECK_STRING(config->model.frozen[1], "*norm*");
    CHECK_OK(fsdp_train_config_set(config, "model.frozen", ""));
    CHECK_EQ(config->model.frozen_count, 0);
    CHECK_OK(fsdp_train_config_set(config, "metrics.jsonl", "m.jsonl"));
    CHECK_OK(fsdp_train_config_set(config, "metrics.jsonl", ""));
    CHECK_NULL(config->metrics.jsonl);
    CHECK_ERROR(fsdp_train_config_set(config, "training.stepz", "7"), FSDP_INVALID, "did you mean 'steps'?");
    CHECK_ERROR(fsdp_train_config_set(config, "training.steps", "x"), FSDP_INVALID, "expected an integer from 1");
    CHECK_ERROR(fsdp_train_config_set(config, "steps", "7"), FSDP_INVALID, "expected section.name");
    CHECK_OK(fsdp_train_config_set(config, "training.device", "cuda:15"));
    CHECK_ERROR(fsdp_train_config_set(config, "training.device", "cuda:16"), FSDP_INVALID, "(N from 0 to 15)");
    CHECK_STRING(config->training.device, "cuda:15");
    CHECK_OK(fsdp_train_config_set(config, "training.device", ""));
    CHECK_NULL(config->training.device);
    CHECK_EQ(config->training.steps, 7);
}

TEST_WITH(what_is_printed_reads_back, setup, teardown)
{
    fsdp_train_config *again = NULL;
    char *printed = test_path(directory, "printed.yaml"), *first, *second;
    size_t first_bytes, second_bytes;
    FILE *file;

    CHECK_OK(load("model: {preset: 'a: b''c'}\ndata:\n  path: [x, 'y, z']\noptimizer:\n  lr: 0.1\n  eps: 1.5e-9\n"
                  "training:\n  max_norm: 0.3333333333333333\n"));
    file = fopen(printed, "w");
    CHECK_OK(fsdp_train_config_print(config, file));
    fclose(file);
    first = test_read_file(printed, &first_bytes);
    CHECK_OK(fsdp_train_config_create(&again));
    CHECK_OK(fsdp_train_config_load(again, printed));
    CHECK_STRING(again->model.preset, "a: b'c");
    CHECK_STRING(again->data.paths[1], "y, z");
    CHECK_EQ(again->optimizer.lr == 0.1 && again->training.max_norm == 0.3333333333333333, 1);
    file = fopen(printed, "w");
    CHECK_OK(fsdp_train_config_print(again, file));
    fclose(file);
    second = test_read_file(printed, &second_bytes);
    CHECK_STRING(second, first);
    fsdp_train_config_free(again);
}

TEST_WITH(teams_are_checked, setup, teardown)
{
    static const char *const others[][3] = {
        {"parallelism.strategy", "ddp", "fsdp2"},     {"parallelism.strategy", "fsdp1", "fsdp2"},
        {"adapter.quantize", "nf4", "none"},          {"parallelism.schedule", "plan", ""},
        {"parallelism.gather_dtype", "int8", "none"},
    };

    CHECK_OK(load("model:\n  preset: llama-1m\ndata:\n  path: x.txt\nparallelism:\n  tensor_parallel_degree: 2\n"));
    CHECK_OK(fsdp_train_config_check(config, 2));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID,
                "parallelism.tensor_parallel_degree is 2, but there are 3 ranks: expected a number that divides them");
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "but there is 1 rank: ");
    CHECK_OK(load("training:\n  global_batch_size: 12\n  local_batch_size: 4\n"));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID,
                "training.global_batch_size 12 is not a multiple of 8 (training.local_batch_size 4 x 2 teams of 2 "
                "ranks): the nearest that are: 8 and 16");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_shard_degree", "6"));
    CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_INVALID, "but there are 3 teams of 2 ranks: expected -1 or 3");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_shard_degree", "-1"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward", "3"));
    CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_UNSUPPORTED, "a number of ranks in parallelism.fsdp_reshard");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward", "default"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK_OK(fsdp_train_config_set(config, others[i][0], others[i][1]));
        CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_UNSUPPORTED,
                    "parallelism.tensor_parallel_degree 2 cannot be combined with ");
        CHECK_OK(fsdp_train_config_set(config, others[i][0], others[i][2]));
    }
    CHECK_OK(fsdp_train_config_set(config, "parallelism.strategy", "ddp"));
    CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_UNSUPPORTED, "set hsdp, with a copy for each team in");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.strategy", "hsdp"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_replicate_degree", "3"));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.enable_async_tensor_parallel", "true"));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.sequence_parallel", "false"));
    CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_INVALID,
                "parallelism.enable_async_tensor_parallel needs parallelism.sequence_parallel true");
    CHECK_OK(load("parallelism:\n  sequence_parallel: true\n  tensor_parallel_degree: 1\n"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID, "needs parallelism.tensor_parallel_degree: ");
}

TEST_WITH(teams_of_sequences_are_checked, setup, teardown)
{
    CHECK_OK(load("model:\n  preset: llama-1m\ndata:\n  path: x.txt\ntraining:\n  seq_len: 48\n"
                  "metrics:\n  tensorboard: tb\nparallelism:\n  context_parallel_degree: 3\n"));
    CHECK_OK(fsdp_train_config_check(config, 3));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID,
                "parallelism.context_parallel_degree is 3, but there are 4 ranks: expected a number that divides them");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.tensor_parallel_degree", "2"));
    CHECK_OK(fsdp_train_config_check(config, 12));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.context_parallel_degree", "6"));
    CHECK_ERROR(fsdp_train_config_check(config, 6), FSDP_INVALID, "make teams of 12 ranks, but there are 6");
    CHECK_OK(fsdp_train_config_set(config, "training.seq_len", "50"));
    CHECK_ERROR(fsdp_train_config_check(config, 12), FSDP_INVALID,
                "training.seq_len 50 cannot be cut into 12 equal chunks, two for each of 6 ranks "
                "(parallelism.context_parallel_degree): the nearest that can "
                "are 48 and 60");
    CHECK_OK(fsdp_train_config_set(config, "training.seq_len", "10"));
    CHECK_ERROR(fsdp_train_config_check(config, 12), FSDP_INVALID, "the nearest that can is 12");
    CHECK_OK(fsdp_train_config_set(config, "training.seq_len", "48"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.tensor_parallel_degree", "1"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.schedule", "plan"));
    CHECK_ERROR(fsdp_train_config_check(config, 12), FSDP_UNSUPPORTED,
                "parallelism.context_parallel_degree 6 cannot be combined with parallelism.schedule");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.schedule", ""));
    CHECK_OK(fsdp_train_config_check(config, 12));
}

TEST_WITH(keys_are_checked_against_each_other, setup, teardown)
{
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "set model.path");
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "set data.path");
    CHECK_OK(fsdp_train_config_set(config, "data.path", "x.txt"));
    CHECK_OK(fsdp_train_config_check(config, 3));
    CHECK_OK(load("training:\n  global_batch_size: 12\n  local_batch_size: 2\n"));
    CHECK_OK(fsdp_train_config_check(config, 2));
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID,
                "training.global_batch_size 12 is not a multiple of 8 (training.local_batch_size 2 x 4 ranks): the "
                "nearest that are: 8 and 16");
    CHECK_OK(fsdp_train_config_set(config, "training.global_batch_size", "5"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID, "nearest that is: 6");
    CHECK_OK(fsdp_train_config_set(config, "training.global_batch_size", "12"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_shard_degree", "3"));
    CHECK_ERROR(fsdp_train_config_check(config, 2), FSDP_INVALID, "there are 2 ranks: expected -1 or 2");
    CHECK_OK(fsdp_train_config_check(config, 3));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward", "2"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID,
                "parallelism.fsdp_reshard_after_forward 2 does not divide the 3 ranks that shard");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward", "3"));
    CHECK_OK(fsdp_train_config_check(config, 3));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward", "default"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_replicate_degree", "2"));
    CHECK_OK(fsdp_train_config_check(config, 6));
    CHECK_ERROR(
        fsdp_train_config_check(config, 3), FSDP_INVALID,
        "parallelism.data_parallel_replicate_degree is 2, but there are 3 ranks: expected a number that divides");
    CHECK_ERROR(fsdp_train_config_check(config, 2), FSDP_INVALID,
                "shard_degree is 3, but there are 2 ranks for 2 copies: expected -1 or 1");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_shard_degree", "-1"));
    CHECK_OK(fsdp_train_config_check(config, 2));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_replicate_degree", "1"));
    CHECK_OK(fsdp_train_config_set(config, "optimizer.nesterov", "true"));
    CHECK_OK(fsdp_train_config_set(config, "optimizer.name", "sgd"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID, "optimizer.momentum");
    CHECK_OK(fsdp_train_config_set(config, "optimizer.name", "muon"));
    CHECK_OK(fsdp_train_config_check(config, 3));
    CHECK_OK(fsdp_train_config_set(config, "optimizer.name", "adamw"));
    CHECK_OK(fsdp_train_config_set(config, "optimizer.nesterov", "false"));
    CHECK_OK(fsdp_train_config_set(config, "model.init", "pretrained"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID, "has no weights");
    CHECK_OK(fsdp_train_config_set(config, "model.path", "folder"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID, "exclude each other");
    CHECK_OK(fsdp_train_config_set(config, "model.preset", ""));
    CHECK_OK(fsdp_train_config_set(config, "model.dim", "64"));
    CHECK_ERROR(fsdp_train_config_check(config, 3), FSDP_INVALID,
                "model.dim changes the model, but the weights of 'folder' fit its own config.json: set");
    CHECK_OK(fsdp_train_config_set(config, "model.init", "random"));
    CHECK_OK(fsdp_train_config_check(config, 3));
}

TEST_WITH(keys_of_other_optimizers_are_refused, setup, teardown)
{
    static const struct {
        const char *name, *key, *value, *back, *message;
    } cases[] = {
        {"sgd", "beta1", "0.8", "0.9",
         "optimizer.beta1 needs optimizer.name adamw, adam, adamw8bit, lion or muon: set one"},
        {"adafactor", "beta2", "0.8", "",
         "optimizer.beta2 needs optimizer.name adamw, adam, adamw8bit, lion or muon: set one"},
        {"lion", "eps", "1e-6", "1e-8", "optimizer.eps needs optimizer.name adamw, adam, adamw8bit or muon: set one"},
        {"adamw", "momentum", "0.9", "",
         "optimizer.momentum needs optimizer.name sgd or muon: set one of them, or leave"},
        {"lion", "nesterov", "true", "false", "optimizer.nesterov needs optimizer.name sgd or muon: set"},
        {"adamw", "muon_adjust", "original", "match_rms_adamw", "optimizer.muon_adjust needs optimizer.name muon"},
        {"sgd", "groups", "[{pattern: '*', beta2: 0.8}]", "", "optimizer.groups: '*' has beta2, which is for"},
        {"adafactor", "groups", "[{pattern: '*', beta1: 0.8}]", "", "optimizer.groups: '*' has beta1, which is for"},
        {"adamw", "groups", "[{pattern: 'a', hidden: true}]", "",
         "optimizer.groups: 'a' has hidden, which is for optimizer.name muon and adamw8bit: set it, or leave this out"},
    };
    char key[40];

    (void)state;

    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(config, "data.path", "data"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(key, sizeof key, "optimizer.%s", cases[i].key);
        CHECK_OK(fsdp_train_config_set(config, "optimizer.name", cases[i].name));
        CHECK_OK(fsdp_train_config_check(config, 2));
        CHECK_OK(fsdp_train_config_set(config, key, cases[i].value));
        CHECK_ERROR(fsdp_train_config_check(config, 2), FSDP_INVALID, cases[i].message);
        CHECK_OK(fsdp_train_config_set(config, key, cases[i].back));
    }
}

TEST_WITH(checkpoints_have_a_folder_of_their_own, setup, teardown)
{
    static const char *const needing[][2] = {
        {"checkpoint.enable", "true"},   {"checkpoint.interval", "7"},
        {"checkpoint.keep_every", "10"}, {"checkpoint.async_mode", "async"},
        {"checkpoint.load_step", "3"},   {"checkpoint.exclude_from_loading", "optimizer"}};
    static const char *const inside[] = {"folder", "folder/", "folder/a/b", "./folder", "./folder/a"};
    char link[300], folder[300];

    CHECK_OK(fsdp_train_config_set(config, "data.path", "a.txt"));
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    for (size_t i = 0; i < sizeof needing / sizeof *needing; i++) {
        CHECK_OK(fsdp_train_config_set(config, needing[i][0], needing[i][1]));
        CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, needing[i][0]);
        CHECK(!fsdp__train_saves(config));
        CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", "folder"));
        CHECK_OK(fsdp_train_config_check(config, 1));
        CHECK(fsdp__train_saves(config));
        CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", ""));
        fsdp_train_config_free(config);
        CHECK_OK(fsdp_train_config_create(&config));
        CHECK_OK(fsdp_train_config_set(config, "data.path", "a.txt"));
        CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    }
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.enable", "false")); /* then all of it may stand there */
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.load_step", "3"));
    CHECK_OK(fsdp_train_config_check(config, 1));
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.enable", ""));
    CHECK_OK(fsdp_train_config_set(config, "export.path", "folder"));
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", inside[i]));
        CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "is export.path, or lies in it");
    }
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", "folders"));
    CHECK_OK(fsdp_train_config_check(config, 1));
    /* Through a link. */
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(folder, sizeof folder, "%s/link/a/b", directory);
    CHECK_EQ(symlink(directory, link), 0);
    CHECK_OK(fsdp_train_config_set(config, "export.path", directory));
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", folder));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "lies in it");
    CHECK_OK(fsdp_train_config_set(config, "export.path", ""));
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.exclude_from_loading", "[optimizer, optimiser]"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "has 'optimiser': expected optimizer, lr_scheduler");
    CHECK(!fsdp__train_loads(config, FSDP__TRAIN_OPTIMIZER) && fsdp__train_loads(config, FSDP__TRAIN_DATALOADER));
}

TEST_WITH(a_model_does_not_take_the_name_of_a_checkpoint, setup, teardown)
{
    static const char *const steps[] = {"folders/step-2", "./folders/step-0/", "folders//step-7/model",
                                        "folders/step-9.saving"};

    CHECK_OK(fsdp_train_config_set(config, "data.path", "a.txt"));
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(config, "checkpoint.folder", "folders"));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        CHECK_OK(fsdp_train_config_set(config, "export.path", steps[i]));
        CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "is named like a checkpoint, in checkpoint.fold");
        CHECK_OK(fsdp_train_config_set(config, "export.path", "elsewhere"));
        CHECK_OK(fsdp_train_config_set(config, "export.fallback_path", steps[i]));
        CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "is named like a checkpoint, in checkpoint.fold");
        CHECK_OK(fsdp_train_config_set(config, "export.fallback_path", ""));
    }
    CHECK_OK(fsdp_train_config_set(config, "export.path", "folders/step-model"));
    CHECK_OK(fsdp_train_config_check(config, 1));
    CHECK_OK(fsdp_train_config_set(config, "export.path", "step-2"));
    CHECK_OK(fsdp_train_config_check(config, 1));
}

/* What is printed has every key. */
static char *printed(const fsdp_train_config *c)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp_train_config_print(c, out));
    return test_end_text(out);
}

TEST_WITH(a_copy_has_the_same_values_and_is_its_own, setup, teardown)
{
    fsdp_train_config *from, *copy;
    char *before, *after;

    CHECK_OK(fsdp_train_config_create(&from));
    CHECK_OK(fsdp_train_config_set(from, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(from, "data.path", "[a, b]"));
    CHECK_OK(fsdp_train_config_set(from, "training.enable_cpu_offload", "true"));
    CHECK_OK(fsdp_train_config_set(from, "training.steps", "7"));
    CHECK_OK(fsdp_train_config_set(from, "optimizer.lr", "0.5"));
    CHECK_OK(fsdp_train_config_set(from, "parallelism.strategy", "zero2"));
    before = printed(from);
    CHECK_OK(fsdp__train_config_copy(from, &copy));
    after = printed(copy);
    CHECK_STRING(after, before);
    CHECK_OK(fsdp_train_config_set(copy, "data.path", "c"));
    CHECK_OK(fsdp_train_config_set(copy, "model.preset", ""));
    fsdp_train_config_free(copy);
    after = printed(from);
    CHECK_STRING(after, before);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__train_config_copy(from, &copy);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK((status == FSDP_OK) == (copy != NULL));
        fsdp_train_config_free(copy);
    }
    fsdp_train_config_free(from);
}

/* A program may write the fields itself. */
TEST_WITH(fields_out_of_range_are_refused_before_a_run, setup, teardown)
{
    fsdp_train_config saved;
    FILE *nowhere = CHECK_PTR(fopen("/dev/null", "w"));

    CHECK_OK(load("model: {preset: llama-1m}\ndata: {path: a.bin}\n"));
    saved = *config;
    CHECK_OK(fsdp_train_config_check(config, 1));
    config->training.objective = 77;
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "training.objective is 77: expected");
    *config = saved;
    config->training.ema_decay = NAN;
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "training.ema_decay is nan: expected");
    *config = saved;
    config->training.epochs = INFINITY;
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "training.epochs is inf: expected");
    *config = saved;
    config->optimizer.group_count = 2;
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "optimizer.groups: its number of entries is 2");
    CHECK_ERROR(fsdp_train_config_print(config, nowhere), FSDP_INVALID, "optimizer.groups");
    *config = saved;
    fsdp_clear_error();
    CHECK_ERROR(fsdp_train_config_check(NULL, 1), FSDP_INVALID, "it is NULL");
    fclose(nowhere);
}

TEST_WITH(a_failed_allocation_leaves_nothing_behind, setup, teardown)
{
    static const char text[] = "model:\n  preset: a\ndata:\n  path: [a, b]\ntraining:\n  steps: 3\n";

    test_write_file(path, text, sizeof text - 1);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_train_config *fresh = NULL;
        fsdp_status status = fsdp_train_config_create(&fresh);

        if (status == FSDP_OK)
            status = fsdp_train_config_load(fresh, path);
        if (status == FSDP_OK)
            status = fsdp_train_config_set(fresh, "data.path", "[c, d, e]");
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_train_config_free(fresh);
    }
}
