/* What a comparison says a strategy takes and sends is the closed form of docs/strategies.md, to the byte. The sizes
 * are those of the model's parameters, by the rule of the chunks. */
#include <fcntl.h>
#include <unistd.h>

#include "base/compiler.h"
#include "compare/measure.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run_config.h"

enum {
    BLOCKS = 3,
    GROUPS = BLOCKS + 1,
    WORLDS = 4
};

/* ---- closed forms ---- */

/* Of one group: P_g and S_g; what is sent of it, padded; moments of rank 0's rows; bare elements. */
typedef struct sizes {
    int64_t whole, shard, padded, moments, bare, rounded;
} sizes;

static int64_t rounded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void add(sizes *s, const fsdp_tensor *parameter, int64_t ranks)
{
    int64_t rows = fsdp_tensor_size(parameter, 0), inner = fsdp_tensor_numel(parameter) / rows;
    int64_t chunk = (rows + ranks - 1) / ranks * inner;

    s->whole += rounded(chunk * ranks * 4);
    s->shard += rounded(chunk * 4);
    s->padded += chunk * ranks * 4;
    s->moments += 2 * rounded(chunk * 4); /* rank 0 has a full chunk */
    s->bare += rows * inner * 4;
    s->rounded += rounded(rows * inner * 4);
}

static void add_group(sizes *s, fsdp_module *module, fsdp_module *model, int64_t ranks)
{
    fsdp_parameters own, blocks[BLOCKS];

    CHECK_OK(fsdp_module_parameters(module, &own));
    for (int b = 0; b < BLOCKS; b++)
        CHECK_OK(fsdp_module_parameters(fsdp_model_block(model, b), &blocks[b]));
    for (int64_t i = 0; i < own.count; i++) {
        bool of_block = false;

        for (int b = 0; b < BLOCKS && module == model; b++)
            for (int64_t k = 0; k < blocks[b].count; k++)
                of_block = of_block || blocks[b].items[k].tensor == own.items[i].tensor;
        if (!of_block)
            add(s, own.items[i].tensor, ranks);
    }
    for (int b = 0; b < BLOCKS; b++)
        fsdp_parameters_release(&blocks[b]);
    fsdp_parameters_release(&own);
}

/* FSDP1: one vector, padded once. */
static sizes flat(sizes s, int64_t ranks)
{
    int64_t chunk = (s.bare / 4 + ranks - 1) / ranks * 4;

    return (sizes){rounded(chunk * ranks), rounded(chunk), chunk * ranks, 2 * rounded(chunk), s.bare, s.rounded};
}

typedef struct expectation {
    const char *strategy;
    int64_t world, ranks, replicas, micros; /* `ranks` of one copy */
    sizes root, block, all;
    int64_t embedding;      /* its bytes: on one rank its gradient has memory when it comes, the last of a backward */
    bool keeps, sums_whole; /* parameters from forward to backward; gradients between microbatches */
} expectation;

static expectation expect(fsdp_context *context, const fsdp_model_config *config, const char *strategy, int micros)
{
    expectation e = {.strategy = strategy, .world = fsdp_context_world_size(context), .micros = micros};
    fsdp_module *model = fsdp_model_create(context, fsdp_meta(context), config);
    bool fsdp1 = strcmp(strategy, "fsdp1") == 0;

    CHECK_PTR(model);
    e.replicas = strcmp(strategy, "hsdp") == 0 ? 2 : 1;
    e.ranks = strcmp(strategy, "ddp") == 0 ? 1 : e.world / e.replicas;
    add_group(&e.root, model, model, e.ranks);
    add_group(&e.block, fsdp_model_block(model, 0), model, e.ranks);
    if (fsdp1) {
        e.root = flat(e.root, e.ranks);
        e.block = flat(e.block, e.ranks);
    }
    e.embedding = rounded(config->vocab_size * config->dim * 4);
    e.all = (sizes){e.root.whole + BLOCKS * e.block.whole,   e.root.shard + BLOCKS * e.block.shard,
                    e.root.padded + BLOCKS * e.block.padded, e.root.moments + BLOCKS * e.block.moments,
                    e.root.bare + BLOCKS * e.block.bare,     e.root.rounded + BLOCKS * e.block.rounded};
    e.keeps = strcmp(strategy, "zero1") == 0 || strcmp(strategy, "zero2") == 0;
    e.sums_whole = strcmp(strategy, "zero2") != 0 && strcmp(strategy, "zero3") != 0;
    fsdp_module_unref(model);
    return e;
}

/* Of one microbatch stages 1 and 2 are the same. What is reduced across copies is there twice meanwhile: its part, in
 * one piece. */
static int64_t gradient_peak(const expectation *e)
{
    bool across = e->replicas > 1;
    int64_t block_again = across ? rounded(e->block.padded / e->ranks) : 0;
    int64_t root_again = across ? rounded(e->root.padded / e->ranks) : 0;
    int64_t parts =
        e->root.whole + FSDP__MAX(e->block.whole + BLOCKS * e->block.shard + block_again, e->all.shard + root_again);
    int64_t last = e->root.whole + e->block.whole + e->all.shard;
    int64_t alone = e->root.whole + FSDP__MAX(0, e->block.whole - e->embedding) + e->all.shard;
    int64_t whole = FSDP__MAX(e->all.whole + e->block.shard + block_again, e->root.whole + e->all.shard + root_again);

    if (e->ranks == 1 && !across) /* what the backward writes is the part: it lies where the optimizer reads it */
        return e->micros == 1 || e->sums_whole ? e->all.shard : alone;
    return e->micros == 1 ? parts : e->sums_whole ? whole : last;
}

static void check_memory(const expectation *e, const fsdp_memory_stats *m)
{
    bool ddp = strcmp(e->strategy, "ddp") == 0;
    int64_t parameters = ddp ? e->all.rounded : e->all.shard, moments = ddp ? 2 * e->all.rounded : e->all.moments;
    int64_t gathered = e->ranks == 1 ? 0 : e->keeps ? e->all.whole : e->root.whole + 2 * e->block.whole;

    CHECK_EQ(m->peak_bytes[FSDP_MEMORY_PARAMETER_SHARD], parameters);
    CHECK_EQ(m->live_bytes[FSDP_MEMORY_PARAMETER_SHARD], parameters);
    CHECK_EQ(m->peak_bytes[FSDP_MEMORY_OPTIMIZER_STATE], moments);
    CHECK_EQ(m->live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], moments);
    CHECK_EQ(m->peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], gathered);
    CHECK_EQ(m->live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
    CHECK_EQ(m->live_bytes[FSDP_MEMORY_GRADIENT], 0);
    if (ddp)
        CHECK(m->peak_bytes[FSDP_MEMORY_GRADIENT] >= (size_t)e->all.bare &&
              m->peak_bytes[FSDP_MEMORY_GRADIENT] <= 2 * (size_t)e->all.rounded);
    else
        CHECK_EQ(m->peak_bytes[FSDP_MEMORY_GRADIENT], gradient_peak(e));
}

static void check_sent(const expectation *e, const fsdp_comm_stats *s)
{
    bool ddp = strcmp(e->strategy, "ddp") == 0, several = e->ranks > 1;
    int64_t m = e->micros, part = e->ranks - 1;
    int64_t gathers = e->keeps ? GROUPS : m * (2 * GROUPS - 1), reductions = e->sums_whole ? GROUPS : m * GROUPS;
    int64_t gathered = e->keeps ? e->all.padded : m * (2 * e->all.padded - e->root.padded);

    CHECK_EQ(s->calls[FSDP_ALL_GATHER], several ? gathers : 0);
    CHECK_EQ(s->bytes_sent[FSDP_ALL_GATHER], ddp ? 0 : part * gathered / e->ranks);
    CHECK_EQ(s->calls[FSDP_REDUCE_SCATTER], several ? reductions : 0);
    CHECK_EQ(s->bytes_sent[FSDP_REDUCE_SCATTER], ddp ? 0 : part * (e->all.padded / e->ranks) * reductions / GROUPS);
    if (ddp)
        CHECK_EQ(s->bytes_sent[FSDP_ALL_REDUCE], 2 * (e->world - 1) * e->all.bare / e->world);
}

/* ---- runs ---- */

static const char keys[] =
    "model.preset=llama-1m model.n_layers=3 model.dim=20 model.n_heads=2 model.n_kv_heads=1 model.ffn_dim=51 "
    "model.vocab_size=259 data.workers=0 training.max_norm=0 training.seq_len=7 training.local_batch_size=1 "
    "metrics.log_freq=1";

typedef struct scene {
    fsdp_train_config *config;
    const char *strategy;
    int micros;
} scene;

static void measure(fsdp_context *context, void *arg)
{
    const scene *s = arg;
    fsdp__start_record *record = calloc(1, sizeof *record);
    expectation e;

    CHECK_OK(fsdp__measure_start(context, s->config, &(fsdp_train_listener){0}, 2, record));
    CHECK(record->done);
    CHECK_EQ(record->steps, FSDP__WARMUP_STEPS + 2);
    CHECK_EQ(record->microbatches, s->micros);
    CHECK(record->resident_bytes > 0 && record->resident_peak_bytes >= record->resident_bytes / 2);
    CHECK_STRING(record->warnings, "");
    if (fsdp_context_rank(context) == 0) { /* which has the most of everything */
        fsdp_model_config model;

        CHECK_OK(fsdp__train_model_config(s->config, &model));
        e = expect(context, &model, s->strategy, s->micros);
        check_memory(&e, &record->memory);
        if (e.world > 1)
            check_sent(&e, &record->comm);
    }
    free(record);
}

static void run(const char *data, int world, scene s)
{
    char text[32];

    s.config = test_config("%s", keys);
    CHECK_OK(fsdp_train_config_set(s.config, "data.path", data));
    CHECK_OK(fsdp_train_config_set(s.config, "parallelism.strategy", s.strategy));
    if (strcmp(s.strategy, "hsdp") == 0)
        CHECK_OK(fsdp_train_config_set(s.config, "parallelism.data_parallel_replicate_degree", "2"));
    snprintf(text, sizeof text, "%d", world * s.micros);
    CHECK_OK(fsdp_train_config_set(s.config, "training.global_batch_size", text));
    test_run_ranks(world, measure, &s);
}

TEST(figures_are_those_of_the_closed_forms)
{
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "zero3", "fsdp2", "fsdp1", "hsdp"};
    static const int least[] = {1, 1, 1, 1,
                                1, 2, 4}; /* ranks: fsdp1 of one is no_shard, and copies are to be sharded */
    char *directory = test_directory(), *data = test_path(directory, "data.txt");
    FILE *file = fopen(data, "w");

    for (int i = 0; i < 100; i++)
        fprintf(file, "The quick brown fox jumps over the lazy dog %d times. ", i % 7);
    fclose(file);
    for (int world = test_brief() ? 2 : 1; world <= WORLDS; world += test_brief() ? 2 : 1)
        for (int micros = test_brief() ? 2 : 1; micros <= 2; micros++)
            for (size_t i = 0; i < FSDP__COUNT_OF(strategies); i++)
                if (world >= least[i])
                    run(data, world, (scene){.strategy = strategies[i], .micros = micros});
}

/* ---- records ---- */

TEST(what_a_rank_has_not_written_is_missed)
{
    char *directory = test_directory(), *path = test_path(directory, "records");
    fsdp__start_record *records = calloc(2, sizeof *records);
    int fd = open(path, O_RDWR | O_CREAT, 0600);

    records[1].done = true;
    records[1].steps = 7;
    CHECK_OK(fsdp__record_write(fd, 1, &records[1]));
    CHECK_ERROR(fsdp__records_read(fd, 2, records), FSDP_IO, "rank 0 has ended without its figures");
    records[0].done = true;
    CHECK_OK(fsdp__record_write(fd, 0, &records[0]));
    records[1].steps = 0;
    CHECK_OK(fsdp__records_read(fd, 2, records));
    CHECK_EQ(records[1].steps, 7);
    close(fd);
    free(records);
}
