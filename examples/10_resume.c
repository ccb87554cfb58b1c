/* 10_resume.c - a training that goes on where it was: every start does 40 steps more and saves twice, without stopping
 * for it, and the next start may be on any number of ranks.
 *
 *     fsdp run -n 2 -- ./10_resume */
#include <fsdp/fsdp.h>

#define FOLDER "10_checkpoints"

enum {
    BATCH = 32,
    STEPS = 40,
    EVERY = 20
};

typedef struct run {
    fsdp_context *context;
    fsdp_module *model;
    fsdp_optimizer *adamw;
    fsdp_checkpoint_saver *saver;
    int64_t step; /* how many are done */
    double loss;
} run;

static fsdp_status build(run *r)
{
    fsdp_device *meta = fsdp_meta(r->context);
    fsdp_module *layers[] = {fsdp_linear_create(r->context, meta, 2, 48, NULL), fsdp_gelu_create(r->context, NULL),
                             fsdp_linear_create(r->context, meta, 48, 1, NULL)};
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;

    r->model = fsdp_sequential_create(r->context, layers, 3);
    if (!r->model)
        return fsdp_last_status();
    FSDP_TRY(fsdp_fully_shard(r->model, NULL));
    FSDP_TRY(fsdp_module_materialize(r->model, fsdp_cpu(r->context)));
    FSDP_TRY(fsdp_module_initialize(r->model, 42));
    options.lr = 5e-3f;
    FSDP_TRY(fsdp_module_parameters(r->model, &parameters));
    FSDP_TRY(fsdp_adamw_create(&parameters, &options, &r->adamw));
    fsdp_parameters_release(&parameters);
    return FSDP_OK;
}

/* ---- saving and loading ---- */

/* Makes the states to save, or to load into. */
static fsdp_status states_create(run *r, fsdp_checkpoint_section sections[2])
{
    sections[0] = (fsdp_checkpoint_section){.name = "model"};
    sections[1] = (fsdp_checkpoint_section){.name = "optimizer"};
    FSDP_TRY(fsdp_optimizer_init_state(r->adamw)); /* make room for it, also before the first step */
    FSDP_TRY(fsdp_optimizer_state_dict(r->adamw, &sections[1].state));
    return fsdp_state_dict_from_module(r->model, &sections[0].state);
}

static fsdp_status save(run *r)
{
    const fsdp_checkpoint_value step = {.name = "step", .type = FSDP_CHECKPOINT_INTEGER, .integer = r->step};
    fsdp_checkpoint_section sections[2];
    fsdp_status status = states_create(r, sections);

    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_save(
            r->saver,
            &(fsdp_checkpoint_content){
                .step = r->step, .sections = sections, .section_count = 2, .values = &step, .value_count = 1});
    fsdp_state_dict_free(sections[0].state);
    fsdp_state_dict_free(sections[1].state);
    return status;
}

static fsdp_status resume(run *r)
{
    fsdp_checkpoint_reader *from = NULL;
    fsdp_checkpoint_section sections[2];
    fsdp_status status = states_create(r, sections), found = fsdp_checkpoint_open(FOLDER, &from); /* the newest */

    for (int i = 0; i < 2 && status == FSDP_OK && found == FSDP_OK; i++)
        status = fsdp_checkpoint_load(from, sections[i].name, sections[i].state, NULL);
    if (status == FSDP_OK && found == FSDP_OK)
        status = fsdp_optimizer_load_state_dict(r->adamw, sections[1].state);
    if (status == FSDP_OK && found == FSDP_OK)
        status = fsdp_checkpoint_get_integer(from, "step", &r->step);
    if (status == FSDP_OK && found == FSDP_OK && fsdp_context_rank(r->context) == 0)
        printf("goes on behind step %lld of %d rank(s)\n", (long long)r->step, fsdp_checkpoint_world_size(from));
    fsdp_checkpoint_close(from);
    fsdp_state_dict_free(sections[0].state);
    fsdp_state_dict_free(sections[1].state);
    return found == FSDP_OK || found == FSDP_NOT_FOUND ? status : found; /* not found: it is the first start */
}

static fsdp_status learn(run *r)
{
    float points[BATCH * 2], heights[BATCH];
    unsigned seed = (unsigned)r->step * 1000 + (unsigned)fsdp_context_rank(r->context);
    fsdp_tensor *x, *y, *error;

    for (int i = 0; i < BATCH; i++) {
        points[2 * i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 24);
        points[2 * i + 1] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 24);
        heights[i] = points[2 * i] * points[2 * i + 1];
    }
    x = fsdp_from_data(fsdp_cpu(r->context), FSDP_F32, FSDP_SHAPE(BATCH, 2), points);
    y = fsdp_from_data(fsdp_cpu(r->context), FSDP_F32, FSDP_SHAPE(BATCH, 1), heights);
    error = fsdp_mse_loss(fsdp_call(r->model, x), y, FSDP_LOSS_MEAN);
    FSDP_TRY(error ? fsdp_tensor_item(error, &r->loss) : fsdp_last_status());
    FSDP_TRY(fsdp_backward(error));
    FSDP_TRY(fsdp_optimizer_step(r->adamw));
    return fsdp_optimizer_zero_grad(r->adamw);
}

static fsdp_status train(run *r)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 2, .async = true};

    FSDP_TRY(fsdp_checkpoint_saver_create(FOLDER, &options, fsdp_world(r->context), &r->saver));
    FSDP_TRY(build(r));
    FSDP_TRY(fsdp_agree(fsdp_world(r->context), resume(r))); /* a rank may fail alone */
    for (int i = 0; i < STEPS; i++) {
        FSDP_TRY(fsdp_scope_begin(r->context));
        FSDP_TRY(learn(r));
        fsdp_scope_end(r->context, NULL);
        FSDP_TRY(fsdp_checkpoint_saver_poll(r->saver, NULL)); /* is one saved by now? */
        if (++r->step % EVERY == 0)
            FSDP_TRY(save(r));
    }
    if (fsdp_context_rank(r->context) == 0)
        printf("step %lld  loss %.5f\n", (long long)r->step, r->loss);
    return fsdp_checkpoint_saver_wait(r->saver, NULL);
}

int main(void)
{
    run r = {.context = NULL};
    fsdp_status status = fsdp_context_from_env(&r.context);

    if (status == FSDP_OK)
        status = train(&r);
    if (status != FSDP_OK)
        fprintf(stderr, "10_resume: %s\n", fsdp_last_error());
    if (status != FSDP_OK && r.context)
        fsdp_abort(r.context, fsdp_last_error());
    fsdp_checkpoint_saver_free(r.saver);
    fsdp_optimizer_free(r.adamw);
    fsdp_module_unref(r.model);
    fsdp_context_free(r.context);
    return status != FSDP_OK;
}
