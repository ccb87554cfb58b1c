/* story.c - runs in pieces. */
#include "train/story.h"
#include "train/config.h"

#include <math.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "train/run.h"

story *story_new(void)
{
    story *s = test_new(sizeof *s);
    char *data;
    FILE *file;

    s->directory = test_directory();
    s->folder = test_path(s->directory, "checkpoints");
    s->model = test_path(s->directory, "model");
    data = test_path(s->directory, "data.txt");
    file = fopen(data, "w");
    for (int i = 0; i < 30; i++)
        fprintf(file, "%d bottles of beer on the wall. ", 300 - i);
    fclose(file);
    s->config = test_config("model.preset=llama-1m model.n_layers=2 model.dim=12 model.n_heads=3 model.n_kv_heads=1 "
                            "model.ffn_dim=10 data.workers=0 data.order=shuffled training.steps=6 training.seq_len=8 "
                            "training.global_batch_size=12 training.local_batch_size=1 optimizer.lr=0.01 "
                            "lr_scheduler.warmup_steps=2 lr_scheduler.decay_type=cosine metrics.log_freq=1 "
                            "data.path=%s",
                            data);
    return s;
}

int story_setup(void **state)
{
    *state = story_new();
    return 0;
}

void story_set(story *s, const char *key, const char *value)
{
    CHECK_OK(fsdp_train_config_set(s->config, key, value));
}

void story_get_worse(story *s)
{
    test_set_keys(s->config, "validation.share=0.2 validation.freq=1 lr_scheduler.warmup_steps=0 "
                             "lr_scheduler.decay_type=constant optimizer.lr=3 training.max_norm=0");
    story_set(s, "export.path", s->model);
}

void story_edit_manifest(const story *s, const char *step, const char *from, const char *to)
{
    char *folder = test_path(s->folder, step), *path = test_path(folder, "manifest.json");
    char *text = test_read_file(path, NULL), *place = CHECK_PTR(strstr(text, from)), end[FSDP__DIGEST_BYTES + 1];
    size_t length = strlen(text) - FSDP__DIGEST_BYTES;

    memcpy(place, to, strlen(to));
    fsdp__digest_text(fsdp__checksum(text, length), end);
    memcpy(text + length, end, FSDP__DIGEST_BYTES);
    test_write_file(path, text, length + FSDP__DIGEST_BYTES);
}

/* ---- a piece ---- */

typedef struct rank_of_story {
    story *story;
    int rank, world;
    int64_t step;
} rank_of_story;

static void started(void *arg, const fsdp_train_summary *summary)
{
    rank_of_story *r = arg;

    r->step = summary->resumed_step;
    if (r->rank == 0) {
        r->story->resumed_step = summary->resumed_from ? summary->resumed_step : -1;
        r->story->resumed_ranks = summary->resumed_ranks;
    }
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    rank_of_story *r = arg;

    if (r->rank == 0 && report->step <= STORY_STEPS) {
        r->story->losses[report->step] = report->loss;
        r->story->tokens = report->tokens;
        r->story->epoch = report->epoch;
    }
}

static void validated(void *arg, const fsdp_train_validation *validation)
{
    rank_of_story *r = arg;

    if (r->rank == 0) {
        r->story->best_step = validation->best_step;
        r->story->last_step = validation->step;
    }
}

static void saved(void *arg, const fsdp_train_saved *what)
{
    rank_of_story *r = arg;

    if (r->rank == 0 && r->story->saved_count <= STORY_STEPS)
        r->story->saved[r->story->saved_count++] = what->step;
    if (r->rank == 0 && r->story->away && r->story->saved_count == 1)
        CHECK_EQ(rename(r->story->folder, r->story->away), 0);
}

static fsdp_train_demand demand(void *arg)
{
    rank_of_story *r = arg;

    r->step++; /* of the step that was just taken, of which the report may come later */
    if (r->rank != r->world - 1)
        return FSDP_TRAIN_GO_ON;
    return r->step == r->story->end_after    ? FSDP_TRAIN_END
           : r->step == r->story->save_after ? FSDP_TRAIN_SAVE
                                             : FSDP_TRAIN_GO_ON;
}

static void failed(void *arg, fsdp_status status, const char *message)
{
    rank_of_story *r = arg;

    (void)status;
    if (r->rank == 0)
        snprintf(r->story->message, sizeof r->story->message, "%s", message);
}

static void logged(void *arg, fsdp_log_level level, const char *line)
{
    rank_of_story *r = arg;
    size_t used = r->rank == 0 ? strlen(r->story->log) : 0;

    (void)level;
    if (r->rank == 0)
        snprintf(r->story->log + used, sizeof r->story->log - used, "%s\n", line);
}

static void run_rank(fsdp_context *context, void *arg)
{
    story *s = arg;
    rank_of_story r = {
        .story = s, .rank = fsdp_context_rank(context), .world = fsdp_context_world_size(context), .step = -1};
    const fsdp_train_listener listener = {.arg = &r,
                                          .started = started,
                                          .stepped = stepped,
                                          .validated = validated,
                                          .failed = failed,
                                          .saved = saved,
                                          .demand = demand};
    bool faulty = s->nth && r.rank == r.world - 1;
    fsdp_status status;

    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_INFO, logged, &r);
    if (faulty)
        fsdp__fault_arm(s->kind, s->nth);
    status = fsdp_train(context, s->config, &listener);
    if (faulty) {
        s->fired = fsdp__fault_hit(s->kind);
        fsdp__fault_arm(s->kind, 0);
    }
    s->statuses[r.rank] = status;
    fsdp_context_set_log(context, FSDP_LOG_INFO, NULL, NULL);
}

void story_run(story *s, int world)
{
    for (int i = 0; i <= STORY_STEPS; i++)
        s->losses[i] = NAN;
    s->saved_count = 0;
    s->resumed_step = -1;
    s->resumed_ranks = 0;
    s->message[0] = s->log[0] = '\0';
    s->fired = false;
    test_run_ranks(world, run_rank, s);
    s->status = s->statuses[0];
    for (int rank = 1; rank < world; rank++)
        CHECK_EQ(s->statuses[rank] == FSDP_OK, s->status == FSDP_OK);
}

void story_go(story *s, int world)
{
    story_run(s, world);
    if (s->status != FSDP_OK)
        TEST_FAIL("the run failed on %d ranks: %s", world, s->message);
}

void story_stop(story *s, int world, int step)
{
    s->end_after = step;
    story_run(s, world);
    CHECK_EQ(s->status, FSDP_INTERRUPTED);
}

void story_go_on(story *s, int world)
{
    int step = s->end_after;

    s->end_after = 0;
    story_go(s, world);
    CHECK_EQ(s->resumed_step, step);
}

bool story_has(const story *s, const char *name)
{
    char *path = test_path(s->folder, name);
    bool there = access(path, F_OK) == 0;

    return there;
}

char *story_weights(const story *s, size_t *bytes)
{
    char *path = test_path(s->model, s->config->adapter.rank > 0 ? "adapter_model.safetensors" : "model.safetensors");
    char *data = test_read_file(path, bytes);

    return data;
}

void story_check_weights(const story *s, const char *expected, size_t bytes)
{
    size_t written;
    char *weights = story_weights(s, &written);

    CHECK_EQ(written, bytes);
    CHECK_BYTES(weights, expected, bytes);
}

/* ---- a state ---- */

static uint64_t digest_of(const fsdp_state_dict *state)
{
    fsdp_state_dict *full = NULL;
    uint64_t all = 0;

    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    for (int64_t i = 0; i < full->count; i++) {
        const fsdp_state_dict_entry *e = &full->entries[i];
        size_t bytes = (size_t)fsdp_tensor_numel(e->tensor) * fsdp_dtype_size(fsdp_tensor_dtype(e->tensor));
        uint64_t hash = FSDP__HASH_OF_NOTHING;
        char *data = malloc(bytes + 1);

        CHECK_OK(fsdp_tensor_read(e->tensor, fsdp_tensor_dtype(e->tensor), data));
        hash = fsdp__hash_bytes(hash, e->name, strlen(e->name) + 1);
        all += fsdp__hash_bytes(hash, data, bytes); /* in whatever order they are */
        free(data);
    }
    fsdp_state_dict_free(full);
    return all;
}

story_state story_state_of(fsdp_train_run *run)
{
    story_state out = {.step = run->step, .window = fsdp_loader_position(run->loader)};
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_module_reshard_all(run->model));
    CHECK_OK(fsdp_state_dict_from_module(run->model, &state));
    out.model = digest_of(state);
    fsdp_state_dict_free(state);
    CHECK_OK(fsdp_optimizer_state_dict(run->optimizer, &state));
    out.optimizer = state->count > 0 ? digest_of(state) : 0;
    fsdp_state_dict_free(state);
    out.ema = run->ema.average ? digest_of(run->ema.average) : 0;
    if (run->scaler)
        out.scale = fsdp_grad_scaler_get_state(run->scaler).scale;
    return out;
}

/* ---- by other ranks ---- */

static fsdp_train_run *begin(fsdp_context *context, const story *s)
{
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    return run;
}

void story_leave(fsdp_context *context, void *passage)
{
    story_passage *p = passage;
    fsdp_train_run *run = begin(context, p->story);
    story_state state;

    for (int step = 0; step < 2; step++)
        CHECK_OK(fsdp_train_step(run, NULL));
    CHECK_OK(fsdp_train_save(run));
    state = story_state_of(run);
    if (fsdp_context_rank(context) == 0)
        p->left = state;
    fsdp_train_run_free(run);
}

void story_find(fsdp_context *context, void *passage)
{
    story_passage *p = passage;
    fsdp_train_run *run = begin(context, p->story);
    story_state state = story_state_of(run);
    fsdp_train_report report;

    if (fsdp_context_rank(context) == 0)
        p->found = state;
    CHECK_OK(fsdp_train_step(run, &report));
    CHECK_EQ(report.step, 3);
    CHECK(isfinite(report.loss));
    fsdp_train_run_free(run);
}
