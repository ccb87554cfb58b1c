/* dry_run.c - a run in which everything happens except computing: it shows the memory that the run takes and what it
 * sends. */
#include "base/alloc.h"
#include "base/context.h"
#include "base/text.h"
#include "data/packing.h"
#include "device/dry.h"
#include "fsdp/comm.h"
#include "train/run_config.h"
#include "train/run_start.h"

/* Refuses split shards where several ranks of a machine shard on its processors: they share what they gather. The
 * engine refuses that by their memory, which a dry run does not have. */
static fsdp_status check_split(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int world = fsdp_context_world_size(run->context);
    int64_t tp = c->parallelism.tensor_parallel_degree;
    bool on_cpu = !c->training.device || fsdp__behind(c->training.device, "cpu");

    if (!c->training.split_shards || !on_cpu || world / fsdp_context_machines(run->context) <= tp ||
        fsdp__train_replicas(c, world) * tp >= world)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "training.split_shards is for ranks that share no memory of parameters, but those on "
                     "a machine's processors do: leave it out, or set training.device to cuda");
}

/* Finds out whether the data are rows, as far as they are there: their losses are weighed. */
static bool has_rows(const fsdp_train_config *c)
{
    bool rows = fsdp__train_is_dpo(c) || fsdp__text_is_rows(c, c->data.paths, c->data.path_count);

    for (int64_t i = 0; i < c->data.mixture_count && !rows; i++)
        rows = fsdp__text_is_rows(c, &c->data.mixture[i].path, 1);
    return rows;
}

/* Takes the data's place. Windows that may have several rows tell positions: here each window has a single one, as
 * long as it can be. */
static fsdp_status stand_for_data(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int64_t numel = c->training.local_batch_size * c->training.seq_len;
    int64_t longest = run->model_config.max_seq_len > 0 ? run->model_config.max_seq_len : c->training.seq_len;

    run->has_rows = has_rows(c);
    if (!run->has_rows || (c->data.packing == FSDP_PACKING_PAD && !fsdp__train_is_dpo(c)))
        return FSDP_OK;
    FSDP__TRY_NEW(run->dry_positions = fsdp__calloc((size_t)numel, sizeof *run->dry_positions));
    for (int64_t i = 0; i < numel; i++)
        run->dry_positions[i] = (int32_t)(i % c->training.seq_len % longest);
    return FSDP_OK;
}

static fsdp_status build(fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);

    run->device = fsdp__train_on_gpu(run->config) ? fsdp__dry_gpu(run->context) : fsdp__dry(run->context);
    if (!run->device)
        return fsdp_last_status();
    fsdp__train_resolve_replicas(run);
    FSDP_TRY(fsdp__train_config_check_step(run->config, ranks));
    fsdp__train_count_ranks(run);
    FSDP_TRY(check_split(run));
    if (!run->own || !run->own->build) {
        FSDP_TRY(fsdp__train_config_check_model(run->config));
        FSDP_TRY(fsdp__train_model_config(run->config, &run->model_config));
        FSDP_TRY(fsdp__train_check_model(run->config, &run->model_config));
    }
    FSDP_TRY(fsdp__train_count_batches(run));
    FSDP_TRY(stand_for_data(run));
    FSDP_TRY(fsdp__train_read_schedule(run));
    FSDP_TRY(fsdp__train_read_adapter(run));
    FSDP_TRY(fsdp__train_make_model(run));
    FSDP_TRY(fsdp__train_shard_model(run));
    FSDP_TRY(fsdp__train_fill_model(run));
    return fsdp__train_make_optimizer(run);
}

fsdp_status fsdp__train_run_create_dry(fsdp_context *context, const fsdp_train_config *config,
                                       const fsdp__train_own *own, fsdp_train_run **out)
{
    static const fsdp_train_listener nobody;
    fsdp_train_run *run = fsdp__calloc(1, sizeof *run);
    fsdp_status status = FSDP_NO_MEMORY;
    bool held;

    *out = NULL;
    if (run) {
        run->context = context;
        run->config = config;
        run->listener = &nobody;
        run->own = own;
        status = build(run);
    }
    if (status == FSDP_OK) {
        *out = run;
        return FSDP_OK;
    }
    held = fsdp_hold_error(true);
    fsdp_train_run_free(run);
    fsdp_release_error(held);
    return status;
}

/* ---- before the start ---- */

/* Builds rank 0 without bytes: whether moments can be bytes and shards halves depends on which parameters there are,
 * and how they are cut. */
static fsdp_status check_parameters(const fsdp_train_config *config, int world_size)
{
    static const fsdp__train_own nothing;
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp_train_run *run = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_context_create_fake(0, world_size, &context));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* the run itself says what it warns of */
    status = fsdp__train_run_create_dry(context, config, &nothing, &run);
    fsdp_train_run_free(run);
    return status;
}

fsdp_status fsdp__train_check_start(const fsdp_train_config *config, int world_size)
{
    FSDP_TRY(fsdp_train_config_check(config, world_size));
    FSDP_TRY(fsdp__train_check_on_paper(config, world_size));
    if (config->training.split_shards ||
        (config->optimizer.name == FSDP_TRAIN_ADAMW8BIT && config->parallelism.tensor_parallel_degree > 1))
        return check_parameters(config, world_size);
    return FSDP_OK;
}
