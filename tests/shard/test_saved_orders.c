/* Orders of calls around checkpoints: a save while parameters are whole by hand, and a load into an optimizer that has
 * not stepped, which then steps and is saved again. Shards rest whole or in halves.
 * Links: checkpoint optim state */
#include "fsdp/checkpoint.h"
#include "fsdp/optim.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 4
};

typedef struct trial {
    bool split;
    const char *folder;
    float *expected; /* of a run that nothing interrupts: the bits of all others */
    int64_t count;
} trial;

typedef struct training {
    fsdp_module *module;
    fsdp_optimizer *optimizer;
} training;

static training begin(fsdp_context *context, const trial *t)
{
    const fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                        .mp_policy = {.param_dtype = FSDP_BF16, .split_shards = t->split},
                                        .no_shared_memory = true};
    fsdp_adam_options adam = fsdp_adam_options_default();
    training run = {.module = net_sharded(context, BLOCKS, &options)};
    fsdp_parameters parameters;

    adam.lr = 0.02;
    CHECK_OK(fsdp_module_parameters(run.module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &run.optimizer));
    fsdp_parameters_release(&parameters);
    return run;
}

static void end(training *run)
{
    fsdp_optimizer_free(run->optimizer);
    fsdp_module_unref(run->module);
}

static void take_steps(const training *run, int from, int to)
{
    for (int step = from; step < to; step++) {
        (void)net_forward_backward(run->module, step, 0, 1);
        CHECK_OK(fsdp_optimizer_step(run->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(run->optimizer));
    }
}

static void check_values(fsdp_module *module, const trial *t)
{
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_EQ(count, t->count);
    CHECK_BYTES(values, t->expected, (size_t)count * sizeof *values);
    free(values);
}

/* The run that the others are to be like. */
static void train_through(fsdp_context *context, void *arg)
{
    trial *t = arg;
    training run = begin(context, t);
    int64_t count;
    float *values;

    take_steps(&run, 0, STEPS);
    values = net_values(run.module, &count);
    if (fsdp_context_rank(context) == 0) {
        t->expected = values;
        t->count = count;
    } else {
        free(values);
    }
    end(&run);
}

static void in_worlds(test_rank_body body)
{
    for (int world = 1; world < 4; world++)
        for (int split = 0; split < 2; split++) {
            char *folder = test_directory();
            trial t = {.split = split, .folder = folder};

            test_run_ranks(world, train_through, &t);
            test_run_ranks(world, body, &t);
            free(t.expected);
            test_directory_free(folder);
        }
}

/* ---- saving and loading ---- */

static void save(fsdp_context *context, const trial *t, const training *run, int step)
{
    fsdp_checkpoint_section sections[] = {{.name = "model"}, {.name = "optimizer"}};

    CHECK_OK(fsdp_state_dict_from_module(run->module, &sections[0].state));
    CHECK_OK(fsdp_optimizer_state_dict(run->optimizer, &sections[1].state));
    CHECK_OK(fsdp_checkpoint_save(t->folder,
                                  &(fsdp_checkpoint_content){.step = step, .sections = sections, .section_count = 2},
                                  fsdp_world(context)));
    fsdp_state_dict_free(sections[0].state);
    fsdp_state_dict_free(sections[1].state);
}

static void load_section(const trial *t, int step, const char *name, fsdp_state_dict *state)
{
    fsdp_checkpoint_reader *reader;
    char *path;

    CHECK_OK(fsdp_checkpoint_find(t->folder, step, &path));
    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, name, state, NULL));
    fsdp_checkpoint_close(reader);
    free(path);
}

static void load_model(const trial *t, const training *run, int step)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_from_module(run->module, &state));
    load_section(t, step, "model", state);
    fsdp_state_dict_free(state);
}

static void load(const trial *t, const training *run, int step)
{
    fsdp_state_dict *state;

    load_model(t, run, step);
    CHECK_OK(fsdp_optimizer_init_state(run->optimizer));
    CHECK_OK(fsdp_optimizer_state_dict(run->optimizer, &state));
    load_section(t, step, "optimizer", state);
    CHECK_OK(fsdp_optimizer_load_state_dict(run->optimizer, state));
    fsdp_state_dict_free(state);
}

/* Each run begins as a new one, whose parameters were gathered before they are loaded; the last has a gradient, too. */
static void train_in_pieces(fsdp_context *context, void *arg)
{
    const trial *t = arg;

    for (int step = 0; step < STEPS; step++) {
        training run = begin(context, t);

        net_evaluate(run.module, 7, 6);
        if (step == STEPS - 1) {
            (void)net_forward_backward(run.module, 9, 0, 1);
            CHECK_OK(fsdp_optimizer_zero_grad(run.optimizer));
        }
        if (step > 0)
            load(t, &run, step);
        take_steps(&run, step, step + 1);
        save(context, t, &run, step + 1);
        if (step == STEPS - 1) {
            load(t, &run, STEPS);
            check_values(run.module, t);
        }
        end(&run);
    }
}

TEST(an_optimizer_that_has_not_stepped_is_loaded_steps_and_is_saved_again)
{
    in_worlds(train_in_pieces);
}

/* ---- a save between unshard and reshard ---- */

/* What is saved was listed before; then all is gathered by hand, saved and stepped on while that is written. */
static void save_whole(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    const fsdp_checkpoint_saver_options options = {.async = true};
    fsdp_checkpoint_section section = {.name = "model"};
    fsdp_checkpoint_saver *saver;
    fsdp_state_dict *refused;
    training run = begin(context, t), other = begin(context, t);

    take_steps(&run, 0, STEPS - 1);
    CHECK_OK(fsdp_checkpoint_saver_create(t->folder, &options, fsdp_world(context), &saver));
    CHECK_OK(fsdp_state_dict_from_module(run.module, &section.state));
    CHECK_OK(fsdp_module_unshard(net_block_at(run.module, 1)));
    CHECK_OK(fsdp_module_unshard(run.module));
    CHECK_STATUS(fsdp_state_dict_from_module(run.module, &refused), FSDP_STATE);
    CHECK_OK(fsdp_checkpoint_saver_save(
        saver, &(fsdp_checkpoint_content){.step = 1, .sections = &section, .section_count = 1}));
    fsdp_state_dict_free(section.state);
    CHECK_EQ(net_state(net_block_at(run.module, 1)), FSDP_UNSHARDED);
    take_steps(&run, STEPS - 1, STEPS);
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    fsdp_checkpoint_saver_free(saver);
    CHECK_OK(fsdp_module_reshard_all(run.module));
    check_values(run.module, t);
    end(&run);

    /* The moments of these steps, and the values of the file. */
    take_steps(&other, 0, STEPS - 1);
    CHECK_OK(fsdp_module_initialize(other.module, 5));
    load_model(t, &other, 1);
    take_steps(&other, STEPS - 1, STEPS);
    check_values(other.module, t);
    end(&other);
}

TEST(a_save_while_parameters_are_whole_by_hand_has_their_shards)
{
    in_worlds(save_whole);
}
