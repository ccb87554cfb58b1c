/* bench_load - measures time and memory of a load; prints one JSON line on rank 0.
 *
 *     bench_load --write FOLDER                                  makes a Llama of 238 million parameters, 0.95 GB
 *     fsdp run -n 2 -- bench_load FOLDER                         every rank reads its own rows
 *     fsdp run -n 2 -- bench_load --load leader FOLDER           rank 0 reads for all
 *
 * peak_mib is the most memory that a process had, on the rank that had most, beyond what it had before the shards had
 * memory; shard_mib is what the shards take. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fsdp/hub.h"
#include "fsdp/launch.h"
#include "fsdp/shard.h"

static const fsdp_model_config large = {.architecture = FSDP_LLAMA,
                                        .n_layers = 16,
                                        .dim = 1024,
                                        .n_heads = 16,
                                        .n_kv_heads = 16,
                                        .head_dim = 64,
                                        .ffn_dim = 2816,
                                        .vocab_size = 32000,
                                        .max_seq_len = 2048,
                                        .norm_eps = 1e-5f,
                                        .rope_theta = 10000,
                                        .init_std = 0.02f,
                                        .tie_word_embeddings = true};

static void check(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fprintf(stderr, "bench_load: %s\n", fsdp_last_error());
    exit(1);
}

static void write_folder(fsdp_context *context, const char *folder)
{
    fsdp_module *model = fsdp_model_create(context, fsdp_cpu(context), &large);
    fsdp_state_dict *state = NULL;

    check(model ? FSDP_OK : fsdp_last_status());
    check(fsdp_module_initialize(model, 1));
    check(fsdp_state_dict_from_module(model, &state));
    check(fsdp_hub_save(folder, state, &large, FSDP_F32, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
}

/* Returns the most MiB that were in memory since the last call with `forget`, which starts to count anew. */
static double peak_mib(bool forget)
{
    FILE *file = fopen(forget ? "/proc/self/clear_refs" : "/proc/self/status", forget ? "w" : "r");
    char line[256];
    long kib = 0;

    if (file && forget)
        fputs("5", file);
    while (file && !forget && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %ld", &kib);
    if (file)
        fclose(file);
    return (double)kib / 1024;
}

static fsdp_module *make_shards(fsdp_context *context, const fsdp_model_config *config)
{
    fsdp_module *model = fsdp_model_create(context, fsdp_meta(context), config);

    check(model ? FSDP_OK : fsdp_last_status());
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        check(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    check(fsdp_fully_shard(model, NULL));
    return model;
}

static void load(fsdp_context *context, const char *folder, bool leader)
{
    fsdp_state_dict *state = NULL;
    fsdp_model_config config;
    fsdp_module *model;
    double before, shard_mib = 0, seconds;
    int64_t began;
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    float peak;

    check(fsdp_hub_read_config(folder, &config));
    model = make_shards(context, &config);
    peak_mib(true);
    before = peak_mib(false);
    check(fsdp_module_materialize(model, fsdp_cpu(context)));
    check(fsdp_state_dict_from_module(model, &state));
    for (int64_t i = 0; i < state->count; i++)
        shard_mib += (double)fsdp_tensor_numel(state->entries[i].tensor) * 4 / (1 << 20);
    check(fsdp_barrier(fsdp_world(context)));
    began = fsdp__clock_ns();
    check(leader ? fsdp_hub_load_by_leader(folder, state, &config, fsdp_world(context))
                 : fsdp_agree(fsdp_world(context), fsdp_hub_load(folder, state, &config)));
    seconds = (double)(fsdp__clock_ns() - began) / 1e9;
    peak = (float)(peak_mib(false) - before);
    check(fsdp_all_reduce(fsdp_world(context), &peak, &peak, 1, FSDP_F32, FSDP_MAX, stream));
    check(fsdp_stream_synchronize(stream));
    if (fsdp_context_rank(context) == 0)
        printf("{\"ranks\": %d, \"load\": \"%s\", \"shard_mib\": %.1f, \"peak_mib\": %.1f, \"seconds\": %.2f}\n",
               fsdp_context_world_size(context), leader ? "leader" : "each", shard_mib, (double)peak, seconds);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"write", 0, NULL, 'w'}, {"load", 1, NULL, 'l'}, {0}};
    bool writes = false, leader = false;
    fsdp_context *context = NULL;
    int letter;

    while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (letter == 'w')
            writes = true;
        else if (letter == 'l')
            leader = strcmp(optarg, "leader") == 0;
        else
            return 2;
    }
    if (optind + 1 != argc)
        return 2;
    check(fsdp_context_from_env(&context));
    if (writes)
        write_folder(context, argv[optind]);
    else
        load(context, argv[optind], leader);
    fsdp_context_free(context);
    return 0;
}
