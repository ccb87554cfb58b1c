/* parallelism.schedule: whichever schedule a run follows, it is the same run to the bit; a schedule that is for another
 * run, or that only some ranks have, is refused on all of them. */
#include "base/hash.h"
#include "fsdp/models.h"
#include "fsdp/train.h"
#include "support/dice.h"
#include "support/ranks.h"
#include "train/comm_schedule.h"
#include "train/config.h"
#include "train/run_config.h"
#include "train/story.h"

#include <math.h>

enum {
    STEPS = 2,
    ATOMS = 20
};

typedef struct fixture {
    char *directory, *data, *file;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[1024];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "a quick brown fox jumps over "[i * 7 % 29];
    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->file = test_path(f->directory, "schedule.json");
    test_write_file(f->data, text, sizeof text);
    *state = f;
    return 0;
}

static fsdp_train_config *configure(const fixture *f, const char *keys)
{
    return test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.ffn_dim=50 "
                       "model.vocab_size=256 data.workers=0 training.seq_len=8 training.local_batch_size=2 "
                       "training.steps=4 metrics.log_freq=1 data.path=%s %s",
                       f->data, keys);
}

/* ---- schedules ---- */

static uint64_t model_hash(const fsdp_train_config *config)
{
    fsdp_context *context = test_context();
    fsdp_model_config model;
    fsdp_module *module;
    uint64_t hash;

    CHECK_OK(fsdp__train_model_config(config, &model));
    module = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &model));
    CHECK_OK(fsdp__comm_schedule_parameters(module, &hash));
    fsdp_module_unref(module);
    fsdp_context_free(context);
    return hash;
}

/* Writes a file with these units, which are JSON. */
static void write_schedule(const char *path, const fsdp_train_config *config, int world, const char *units)
{
    FILE *out = CHECK_PTR(fopen(path, "w"));

    fprintf(
        out,
        "{\"fsdp_schedule\": 1, \"model\": \"m\", \"parameters\": \"%016llx\", \"strategy\": \"%s\", \"ranks\": %d, "
        "\"machines\": %d, \"copies\": %d, \"reductions\": 2, \"units\": [%s]}",
        (unsigned long long)model_hash(config), fsdp__train_strategy_name(config), world, test_machines_of(world),
        fsdp__train_replicas(config, world), units);
    CHECK_EQ(fclose(out), 0);
}

/* In 16 bits only what shares its input with nothing else may be a unit (plan/schedule_atoms.h). */
static int list_atoms(bool gpt2, bool coarse, char atoms[ATOMS][64])
{
    static const char *const parts[][10] = {
        {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
        {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"},
        {"self_attn", "mlp"},
        {"attn", "mlp"},
    };
    const char *const *of = parts[2 * coarse + gpt2];
    int count = 0;

    for (int layer = 0; layer < 2; layer++)
        for (int i = 0; of[i]; i++)
            snprintf(atoms[count++], sizeof *atoms, "%s.%d.%s", gpt2 ? "transformer.h" : "model.layers", layer, of[i]);
    snprintf(atoms[count++], sizeof *atoms, gpt2 ? "transformer.ln_f" : "model.norm");
    return count;
}

/* Draws units of neighbours; some of the first and last atoms are left to the root. */
static char *draw_units(uint64_t *dice, bool gpt2, bool coarse, bool stays)
{
    char atoms[ATOMS][64];
    int count = list_atoms(gpt2, coarse, atoms), at = dice_below(dice, 3);
    FILE *out = test_begin_text();
    const char *between = "";

    count -= dice_below(dice, 2);
    if (dice_chance(dice, 50)) {
        fprintf(out, "{\"modules\": [\"%s\"]}", gpt2 ? "transformer.wte" : "model.embed_tokens");
        between = ",";
    }
    while (at < count) {
        int end = at + 1 + dice_below(dice, dice_chance(dice, 30) ? count : 4);

        fprintf(out, "%s{\"stays\": %s, \"forward_ahead\": %d, \"backward_ahead\": %d, \"modules\": [", between,
                stays && dice_chance(dice, 40) ? "true" : "false", dice_below(dice, 3), dice_below(dice, 3));
        for (between = ""; at < end && at < count; between = ",")
            fprintf(out, "%s\"%s\"", between, atoms[at++]);
        fputs("]}", out);
    }
    return test_end_text(out);
}

/* ---- runs ---- */

typedef struct result {
    fsdp_train_config *config;
    fsdp_train_report reports[STEPS];
    uint64_t weights[8]; /* a hash of each rank's shards */
    int64_t units;
} result;

static uint64_t hash_shards(fsdp_module *model)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        int64_t numel = fsdp_tensor_numel(parameters.items[i].tensor);
        float *values = malloc((size_t)numel * sizeof *values + 1);

        CHECK_OK(fsdp_tensor_read(parameters.items[i].tensor, FSDP_F32, values));
        hash = fsdp__hash_bytes(hash, parameters.items[i].name, strlen(parameters.items[i].name) + 1);
        hash = fsdp__hash_bytes(hash, values, (size_t)numel * sizeof *values);
        free(values);
    }
    fsdp_parameters_release(&parameters);
    return hash;
}

static void train(fsdp_context *context, void *arg)
{
    result *r = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;
    fsdp_train_report report;
    int rank = fsdp_context_rank(context);

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, r->config, &run));
    fsdp_train_run_summary(run, &summary);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (rank == 0)
            r->reports[step] = report;
    }
    if (rank == 0)
        r->units = summary.units;
    r->weights[rank] = hash_shards(fsdp_train_run_model(run));
    fsdp_train_run_free(run);
}

static void check_same(const result *a, const result *b, int world)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_BYTES(&a->reports[step].loss, &b->reports[step].loss, sizeof(double));
        CHECK_BYTES(&a->reports[step].grad_norm, &b->reports[step].grad_norm, sizeof(double));
    }
    CHECK_BYTES(a->weights, b->weights, (size_t)world * sizeof *a->weights);
}

static const char *const ways[] = {
    "training.max_norm=0.5",
    "training.max_norm=0 training.global_batch_size=WORLD4",
    "training.mixed_precision_param=bfloat16 activation_checkpoint.mode=full",
    "activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=op",
    "parallelism.strategy=zero3 training.global_batch_size=WORLD4 training.no_sync=false",
    "parallelism.strategy=zero1 training.global_batch_size=WORLD4",
    "parallelism.strategy=zero2 training.mixed_precision_reduce=bfloat16",
    "model.frozen=model.layers.0.* training.global_batch_size=WORLD4",
    "parallelism.gather_dtype=float8",
    "training.enable_cpu_offload=true",
    "model.preset=gpt2-124m model.tie_word_embeddings=true activation_checkpoint.mode=full",
    "model.tie_word_embeddings=true training.mixed_precision_param=float16",
    "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2",
};

/* Puts the batch of two microbatches for this many ranks in. */
static void way_of(const char *way, int world, char text[256])
{
    const char *batch = strstr(way, "WORLD4");
    int before = batch ? (int)(batch - way) : (int)strlen(way);

    if (batch)
        snprintf(text, 256, "%.*s%d%s", before, way, 4 * world, batch + strlen("WORLD4"));
    else
        snprintf(text, 256, "%s", way);
}

TEST_OF(a_run_is_the_same_to_the_bit_by_every_schedule, open_fixture, NULL, const fixture *f)
{
    uint64_t dice = 7;

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int world = 1; world <= 4; world++) {
            bool gpt2 = strstr(ways[i], "gpt2"), zero = strstr(ways[i], "zero"), hybrid = strstr(ways[i], "hsdp");
            bool coarse = strstr(ways[i], "mixed_precision_param");
            result plain = {.units = 0}, scheduled = {.units = 0};
            char keys[256], *units = draw_units(&dice, gpt2, coarse, !zero);

            if (((int)i + world) % 2 == 0 && !(hybrid && world == 4) && !test_long())
                continue;
            way_of(ways[i], world, keys);
            if (hybrid && world % 2 != 0)
                way_of(ways[0], world, keys);
            plain.config = configure(f, keys);
            scheduled.config = configure(f, keys);
            write_schedule(f->file, plain.config, world, units);
            CHECK_OK(fsdp_train_config_set(scheduled.config, "parallelism.schedule", f->file));
            test_run_ranks(world, train, &plain);
            test_run_ranks(world, train, &scheduled);
            check_same(&plain, &scheduled, world);
        }
}

/* Units gather and reduce as the file says. */
TEST_OF(a_schedule_is_followed, open_fixture, NULL, const fixture *f)
{
    static const struct {
        const char *units;
        int count, gathers;
    } files[] = {
        {"", 1, 1},
        {"{\"modules\": [\"model.layers.0\"]}, {\"modules\": [\"model.layers.1\"]}", 3, 5},
        {"{\"modules\": [\"model.layers.0\"]}, {\"modules\": [\"model.layers.1\"], \"stays\": true}", 3, 4},
        {"{\"modules\": [\"model.layers.0\", \"model.layers.1\"], \"forward_ahead\": 1}", 2, 3},
        {"{\"modules\": [\"model.embed_tokens\", \"model.layers.0\"], \"stays\": true}, "
         "{\"modules\": [\"model.layers.1.mlp\", \"lm_head\"], \"stays\": true}",
         3, 3},
    };

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        result r = {.config = configure(f, "")};

        write_schedule(f->file, r.config, 2, files[i].units);
        CHECK_OK(fsdp_train_config_set(r.config, "parallelism.schedule", f->file));
        test_run_ranks(2, train, &r);
        CHECK_EQ(r.units, files[i].count);
        CHECK_EQ(r.reports[1].all_gather, files[i].gathers);
        CHECK_EQ(r.reports[1].reduce_scatter, files[i].count);
    }
}

/* ---- refusals ---- */

typedef struct refusal {
    fsdp_train_config *config, *other; /* of rank 0, and of the others */
    const char *text;
} refusal;

static void refuse(fsdp_context *context, void *arg)
{
    const refusal *r = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK(fsdp_train_run_create(context, fsdp_context_rank(context) == 0 ? r->config : r->other, &run) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), r->text);
    CHECK_NULL(run);
}

static void expect(const fixture *f, const char *keys, const char *text)
{
    refusal r = {.config = configure(f, keys), .text = text};

    CHECK_OK(fsdp_train_config_set(r.config, "parallelism.schedule", f->file));
    r.other = r.config;
    test_run_ranks(2, refuse, &r);
}

TEST_OF(a_schedule_for_another_run_is_refused, open_fixture, NULL, const fixture *f)
{
    static const char *const keys[][2] = {
        {"model.dim=32", "is for a model 'm' with other parameters than this run's"},
        {"parallelism.strategy=zero3", "is for parallelism.strategy 'fsdp2', but this run has zero3"},
        {"parallelism.strategy=ddp", "parallelism.strategy is ddp: leave it out"},
        {"parallelism.strategy=fsdp1", "parallelism.strategy is fsdp1: leave it out"},
        {"parallelism.wrap_policy=always", "decides what parallelism.wrap_policy would"},
        {"parallelism.prefetch=1", "decides what parallelism.prefetch would"},
        {"parallelism.keep_last_unit=true", "decides what parallelism.keep_last_unit would"},
        {"parallelism.fsdp_reshard_after_forward=never", "decides what parallelism.fsdp_reshard_after_forward would"},
        {"parallelism.schedule_memory=1GiB", "parallelism.schedule_memory needs parallelism.schedule plan"},
        {"parallelism.schedule_prices=cpu", "parallelism.schedule_prices needs parallelism.schedule plan"},
    };
    static const char *const units[][2] = {
        {"{\"modules\": [\"model.layers.0.\"]}", "units[0] has a module 'model.layers.0.', which the model has not"},
        {"{\"modules\": [\"model.norm\"]}, {\"modules\": [\"model.layers.1\", \"model.layers.1\"]}",
         "schedule.json: units[1] has the module 'model.layers.1', and so has units[1]: leave it out of one"},
        {"{\"modules\": [\"lm_head\"]}, {\"modules\": [\"lm_head\"]}", "'lm_head', and so has units[0]"},
        {"{\"modules\": [\"model.layers.0.mlp\"]}, {\"modules\": [\"model.layers.0\"]}",
         "units[1] has the module 'model.layers.0', of which 'model.layers.0.mlp' in units[0] is a part"},
        {"{\"modules\": [\"model.layers.2\"]}", "units[0] has a module 'model.layers.2', which the model has not"},
        {"{\"modules\": [\"model.layers\"]}", "it has no forward"},
    };
    fsdp_train_config *config = configure(f, ""), *zero = configure(f, "parallelism.strategy=zero2");

    write_schedule(f->file, config, 2, "{\"modules\": [\"model.layers.1\"], \"stays\": true}");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        expect(f, keys[i][0], keys[i][1]);
    write_schedule(f->file, config, 4, "");
    expect(f, "", "is for (ranks, machines, copies of the parameters) = (4, ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        write_schedule(f->file, config, 2, units[i][0]);
        expect(f, "", units[i][1]);
    }
    write_schedule(f->file, zero, 2, "{\"modules\": [\"model.layers.1\"], \"stays\": true}");
    expect(f, "parallelism.strategy=zero2", "keeps unit 0 whole, but parallelism.strategy zero2 decides that");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.schedule", "plan"));
    test_run_ranks(2, refuse,
                   &(refusal){config, config, "parallelism.schedule is plan, but nothing here plans: 'fsdp train'"});
}

TEST_OF(a_rank_with_another_file_is_named, open_fixture, NULL, const fixture *f)
{
    char *second = test_path(f->directory, "second.json");
    refusal r = {.config = configure(f, ""), .other = configure(f, "")};

    write_schedule(f->file, r.config, 3, "{\"modules\": [\"model.layers.0\"]}");
    write_schedule(second, r.config, 3, "{\"modules\": [\"model.layers.1\"]}");
    CHECK_OK(fsdp_train_config_set(r.config, "parallelism.schedule", f->file));
    CHECK_OK(fsdp_train_config_set(r.other, "parallelism.schedule", second));
    r.text = "have different configs: what parallelism.schedule holds is a schedule (";
    test_run_ranks(3, refuse, &r);
    CHECK_OK(fsdp_train_config_set(r.other, "parallelism.schedule", ""));
    r.text = "parallelism.schedule is";
    test_run_ranks(3, refuse, &r);
    CHECK_OK(fsdp_train_config_set(r.other, "parallelism.schedule", f->directory));
    r.text = "parallelism.schedule: ";
    test_run_ranks(3, refuse, &r);
}

/* ---- files ---- */

static fsdp_status parse(const char *text)
{
    fsdp__comm_schedule *s = NULL;
    fsdp_status status = fsdp__comm_schedule_parse("s", text, strlen(text), &s);

    CHECK((status == FSDP_OK) == (s != NULL));
    fsdp__comm_schedule_free(s);
    return status;
}

#define HEAD "\"fsdp_schedule\": 1, \"model\": \"m\", \"strategy\": \"fsdp2\""
#define SUM "\"parameters\": \"0123456789abcdef\", \"ranks\": 2"

TEST(damaged_files_are_refused)
{
    static const char *const texts[][2] = {
        {"[]", "s"},
        {"{\"units\": []}", "fsdp_schedule"},
        {"{\"fsdp_schedule\": 2}", "its version is 2, and this program reads 1"},
        {"{" HEAD ", \"ranks\": 2, \"units\": []}", "parameters"},
        {"{" HEAD ", \"parameters\": \"0123456789ABCDEF\", \"ranks\": 2, \"units\": []}", "16 hexadecimal digits"},
        {"{" HEAD ", \"parameters\": \"12\", \"ranks\": 2, \"units\": []}", "16 hexadecimal digits"},
        {"{" HEAD ", " SUM "}", "\"units\" must be a list"},
        {"{" HEAD ", " SUM ", \"copies\": 0, \"units\": []}", "\"copies\" is 0"},
        {"{" HEAD ", " SUM ", \"machines\": -1, \"units\": []}", "\"machines\" is -1"},
        {"{" HEAD ", " SUM ", \"reductions\": 5000, \"units\": []}", "\"reductions\" is 5000"},
        {"{" HEAD ", " SUM ", \"step_seconds\": \"x\", \"units\": []}", "\"step_seconds\" is no number"},
        {"{" HEAD ", " SUM ", \"units\": [3]}", "s: units[0]: a unit is no object"},
        {"{" HEAD ", " SUM ", \"unit\": []}", "s: 'unit' is no key of a schedule"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": [\"a\"]}, {\"modules\": [\"b\"], \"forwardahead\": 3}]}",
         "s: units[1]: 'forwardahead' is no key of a schedule"},
        {"{" HEAD ", " SUM ", \"units\": [{}]}", "\"modules\" of a unit must be a list"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": []}]}", "\"modules\" of a unit must be a list"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": [\"a\", \"\"]}]}", "something that is no name"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": [\"a\", 1]}]}", "something that is no name"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": [\"a\"], \"stays\": 1}]}", "stays"},
        {"{" HEAD ", " SUM ", \"units\": [{\"modules\": [\"a\"], \"forward_ahead\": -1}]}", "\"forward_ahead\" is -1"},
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK(parse(texts[i][0]) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), texts[i][1]);
    }
    CHECK_OK(parse("{" HEAD ", " SUM ", \"units\": []}"));
}

static char *print(const fsdp__comm_schedule *s)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__comm_schedule_print(s, out));
    return test_end_text(out);
}

TEST(what_is_printed_reads_back_as_the_same)
{
    static const char text[] =
        "{" HEAD ", " SUM ", \"machines\": 2, \"copies\": 2, \"prices\": \"an H100\", \"step_seconds\": 0.1, "
        "\"exposed_seconds\": 1e-9, \"peak_bytes\": 123456789012, \"reductions\": 3, \"units\": [{\"modules\": "
        "[\"a.b\", \"\\u00e4\"], \"stays\": true, \"forward_ahead\": 1, \"backward_ahead\": 2}, {\"modules\": "
        "[\"c\"]}]}";
    fsdp__comm_schedule *s, *again;
    uint64_t hash, other;
    char *first, *second;

    CHECK_OK(fsdp__comm_schedule_parse("s", text, strlen(text), &s));
    first = print(s);
    CHECK_OK(fsdp__comm_schedule_parse("s", first, strlen(first), &again));
    second = print(again);
    CHECK_STRING(first, second);
    CHECK_OK(fsdp__comm_schedule_hash(s, &hash));
    CHECK_OK(fsdp__comm_schedule_hash(again, &other));
    CHECK_EQ(hash, other);
    again->units[1].stays = true;
    CHECK_OK(fsdp__comm_schedule_hash(again, &other));
    CHECK(hash != other);
    fsdp__comm_schedule_free(s);
    fsdp__comm_schedule_free(again);
}

/* ---- planned at the start ---- */

typedef struct planned {
    const fixture *f;
    fsdp_train_config *config;
    bool fails, damaged;
    double loss;
    char failure[300];
    struct planned *got; /* by each rank: what it has come to */
} planned;

static fsdp_status plan(void *arg, FILE *out)
{
    const planned *p = arg;
    char *text;
    size_t bytes;

    if (p->fails)
        return FSDP_FAIL(FSDP_NO_MEMORY, "nothing fits");
    text = test_read_file(p->f->file, &bytes);
    fwrite(text, 1, p->damaged ? bytes / 2 : bytes, out);
    return FSDP_OK;
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    planned *p = arg;

    if (report->step == STEPS)
        p->loss = report->loss;
}

static void failed(void *arg, fsdp_status status, const char *message)
{
    planned *p = arg;

    if (status != FSDP_COMM)
        snprintf(p->failure, sizeof p->failure, "%s", message);
}

static void train_planned(fsdp_context *context, void *arg)
{
    planned own = *(const planned *)arg;
    fsdp_train_listener listener = {.arg = &own, .plan = plan, .stepped = stepped, .failed = failed};

    CHECK_PTR(test_device(context));
    CHECK_EQ(fsdp_train(context, own.config, &listener) == FSDP_OK, !own.fails && !own.damaged);
    own.got[fsdp_context_rank(context)] = own;
}

/* Returns whether a rank says so. All look at the same, and who fails first ends the others. */
static bool is_said(const planned *got, int world, const char *text)
{
    for (int r = 0; r < world; r++)
        if (strstr(got[r].failure, text))
            return true;
    return false;
}

TEST_OF(all_ranks_take_the_plan_of_rank_0, open_fixture, NULL, const fixture *f)
{
    for (int world = 1; world <= 4; world++) {
        planned got[4], p = {.f = f, .config = configure(f, "training.steps=2"), .got = got};
        result plain = {.config = configure(f, "training.steps=2")};

        write_schedule(f->file, p.config, world,
                       "{\"modules\": [\"model.embed_tokens\", \"model.layers.0\"], \"stays\": true}, "
                       "{\"modules\": [\"model.layers.1.mlp\"]}");
        CHECK_OK(fsdp_train_config_set(p.config, "parallelism.schedule", "plan"));
        test_run_ranks(world, train, &plain);
        test_run_ranks(world, train_planned, &p);
        CHECK_BYTES(&got[0].loss, &plain.reports[STEPS - 1].loss, sizeof(double));
        p.fails = true;
        test_run_ranks(world, train_planned, &p);
        CHECK_CONTAINS(got[0].failure, "parallelism.schedule plan: nothing fits");
        p.fails = false;
        p.damaged = true;
        test_run_ranks(world, train_planned, &p);
        CHECK(is_said(got, world, "the schedule of rank 0"));
    }
}

/* ---- checkpoints ---- */

/* What is saved has the names of parameters, and nothing of units. */
STORY_TEST(a_run_goes_on_under_another_schedule)
{
    static const char *const units[] = {"{\"modules\": [\"model.layers.0\", \"model.layers.1.self_attn\"]}", NULL,
                                        "{\"modules\": [\"model.embed_tokens\"], \"stays\": true}"};
    char *path = test_path(s->directory, "schedule.json"), *weights;
    size_t bytes;

    story_set(s, "export.path", s->model);
    story_go(s, 3);
    weights = story_weights(s, &bytes);
    story_set(s, "checkpoint.folder", s->folder);
    for (int piece = 0; piece < 3; piece++) {
        story_set(s, "parallelism.schedule", units[piece] ? path : "");
        if (units[piece])
            write_schedule(path, s->config, 3, units[piece]);
        s->end_after = piece < 2 ? 2 * piece + 2 : 0;
        story_run(s, 3);
        CHECK_EQ(s->status, piece < 2 ? FSDP_INTERRUPTED : FSDP_OK);
        CHECK_EQ(s->resumed_step, piece == 0 ? -1 : 2 * piece);
    }
    story_check_weights(s, weights, bytes);
}
