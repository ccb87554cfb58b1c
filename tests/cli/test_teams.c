/* Runs whose ranks compute each layer in teams, as other commands see them: inspect, verify, diff, convert, report,
 * compare. */
#include <jansson.h>

#include "cli/fixture.h"
#include "fsdp/fsdp.h"
#include "support/ranks.h"

/* A llama whose heads two ranks can share, 4 sequences a step whatever the layout. */
#define SMALL \
    f->config, "--training.steps=2", "--model.n_heads=4", "--model.n_kv_heads=2", "--training.global_batch_size=4"

/* Files of one test, in its folder. */
typedef struct files {
    char *teams, *alone; /* checkpoints */
    char *teams_model;   /* exports; `f->model` is that of one rank */
    char *folder, *gguf, *back, *resaved, *trace, *metrics;
} files;

static files name_files(const fixture *f)
{
    return (files){.teams = test_path(f->directory, "teams"),
                   .alone = test_path(f->directory, "alone"),
                   .teams_model = test_path(f->directory, "teams_model"),
                   .folder = test_path(f->directory, "folder"),
                   .gguf = test_path(f->directory, "model.gguf"),
                   .back = test_path(f->directory, "back"),
                   .resaved = test_path(f->directory, "resaved"),
                   .trace = test_path(f->directory, "trace.json"),
                   .metrics = test_path(f->directory, "teams.jsonl")};
}

/* Trains in two teams of two, with a trace. */
static void train_teams(const fixture *f, const files *n)
{
    RUN(0, "train", SMALL, "-n", "4", "--parallelism.tensor_parallel_degree=2", "--training.local_batch_size=2",
        "--checkpoint.folder", n->teams, "--export.path", n->teams_model, "--metrics.jsonl", n->metrics,
        "--metrics.trace.path", n->trace, "--metrics.trace.steps=2");
}

FIXTURE_TEST(a_checkpoint_names_its_mesh_and_what_each_dimension_cuts)
{
    files n = name_files(f);
    program p;

    train_teams(f, &n);
    p = RUN(0, "inspect", n.teams);
    CHECK_CONTAINS(p.output, "step-2: step 2, saved by 4 ranks, dp_shard=2 tp=2\n");
    CHECK_CONTAINS(p.output, "float32   [48, 100]                19,200 bytes  ranks 0 to 3, rows by dp_shard, "
                             "columns by tp\n"); /* down_proj */
    CHECK_CONTAINS(p.output,
                   "float32   [100, 48]                19,200 bytes  ranks 0 to 3, rows by dp_shard and tp\n");
    CHECK_CONTAINS(p.output, "float32   [48]                        192 bytes  ranks 0 and 2, elements by dp_shard\n");
    SAYS(0, "\"mesh\": \"dp_shard=2 tp=2\"", "inspect", "--json", n.teams);
    SAYS(0, "whole: ", "verify", n.teams);
}

FIXTURE_TEST(copies_and_fused_weights_are_told_apart)
{
    files n = name_files(f);
    program p;

    RUN(0, "train", "--model.preset=gpt-10m", "--model.n_layers=1", "--model.dim=32", "--model.n_heads=4",
        "--model.n_kv_heads=4", "--model.ffn_dim=64", "--model.vocab_size=256", "--model.max_seq_len=32",
        "--training.seq_len=32", "--training.steps=1", "--training.local_batch_size=1", "--data.path", f->data, "-n",
        "4", "--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=2",
        "--checkpoint.folder", n.teams);
    p = RUN(0, "inspect", n.teams);
    CHECK_CONTAINS(p.output, "saved by 4 ranks, dp_replicate=2 dp_shard=1 tp=2\n");
    CHECK_CONTAINS(p.output, "[32, 96]                 12,288 bytes  6 parts of ranks 0 and 1, columns by tp\n");
    CHECK_CONTAINS(p.output, "[32, 32]                  4,096 bytes  ranks 0 and 1, rows by tp\n");
}

/* Saves two matrices from a mesh whose ranks are in the order of `ranks`: columns by "tp", rows by "dp". */
static void save_reordered(fsdp_context *context, void *arg)
{
    static const int ranks[] = {0, 2, 1, 3}; /* dp: {0, 1} and {2, 3}; tp: {0, 2} and {1, 3} */
    const fsdp_placement rows[] = {{.kind = FSDP_SHARD}, {.kind = FSDP_REPLICATE}};
    const fsdp_placement columns[] = {{.kind = FSDP_REPLICATE}, {.kind = FSDP_SHARD, .dim = 1}};
    int rank = fsdp_context_rank(context);
    const int dp[] = {rank / 2 * 2, rank / 2 * 2 + 1}, tp[] = {rank % 2, rank % 2 + 2};
    fsdp_process_group *groups[2];
    fsdp_tensor *whole, *part;
    fsdp_checkpoint_section section = {.name = "model"};
    fsdp_checkpoint_content content = {.step = 1, .sections = &section, .section_count = 1};
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_process_group_create(context, dp, 2, "dp", &groups[0]));
    CHECK_OK(fsdp_process_group_create(context, tp, 2, "tp", &groups[1]));
    CHECK_OK(fsdp_mesh_from_groups(groups, 2, ranks, (const char *const[]){"dp", "tp"}, &mesh));
    CHECK_OK(fsdp_state_dict_create(&section.state));
    for (int i = 0; i < 2; i++) {
        whole = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(4, 6), 1));
        CHECK_OK(fsdp_distribute_tensor(whole, mesh, i ? columns : rows, &part));
        CHECK_OK(fsdp_state_dict_add(section.state, i ? "columns" : "rows", part));
        fsdp_tensor_unref(part);
    }
    content.mesh = mesh;
    CHECK_OK(fsdp_checkpoint_save(arg, &content, fsdp_world(context)));
    fsdp_state_dict_free(section.state);
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(mesh);
    for (int i = 0; i < 2; i++)
        fsdp_process_group_free(groups[i]);
}

FIXTURE_TEST(a_mesh_of_ranks_in_another_order_is_described_as_it_is)
{
    char *folder = test_path(f->directory, "reordered");
    program p;

    test_run_ranks(4, save_reordered, folder);
    p = RUN(0, "inspect", folder);
    CHECK_CONTAINS(p.output, "saved by 4 ranks, dp=2 tp=2 of ranks 0,2,1,3\n");
    CHECK_CONTAINS(p.output, "ranks 0 and 1, rows by dp\n");
    CHECK_CONTAINS(p.output, "ranks 0 and 2, columns by tp\n");
}

/* Whatever is made of the checkpoint of teams is what is made of their export, to the bit. */
FIXTURE_TEST(a_checkpoint_of_teams_converts_to_everything)
{
    files n = name_files(f);

    train_teams(f, &n);
    RUN(0, "convert", n.teams, n.folder);
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.folder, n.teams_model);
    RUN(0, "convert", n.teams, "--to", "gguf", "-o", n.gguf);
    RUN(0, "convert", n.gguf, "-o", n.back);
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.back, n.teams_model);
    RUN(0, "convert", n.teams, n.resaved, "--ranks", "3");
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.resaved, n.teams);
    SAYS(2, "would become a folder: for a file of llama.cpp add --to gguf", "convert", n.teams, "x.gguf");
}

FIXTURE_TEST(a_report_tells_what_teams_wait_for_from_gathers_of_parameters)
{
    files n = name_files(f);
    char *page = test_path(f->directory, "report.html"), *text;

    train_teams(f, &n);
    RUN(0, "train", SMALL, "-n", "1", "--checkpoint.folder", n.alone);
    SAYS(0, "  parallelism.tensor_parallel_degree\n    teams.jsonl             2\n", "report", n.metrics, f->metrics,
         n.trace, "-o", page);
    text = test_read_file(page, NULL);
    CHECK_CONTAINS(text, "<th>call</th><th>group</th>");
    CHECK_CONTAINS(text, "<td class=\"\">tp</td>");
}

static const json_t *variant(const json_t *all, size_t i)
{
    return CHECK_PTR(json_array_get(json_object_get(all, "variants"), i));
}

FIXTURE_TEST(compare_tries_teams_beside_ranks_by_themselves_on_the_same_data)
{
    program p = RUN(0, "compare", f->config, "-n", "2", "--model.n_heads=4", "--model.n_kv_heads=2", "--steps=1",
                    "--rounds=1", "--worlds=2", "--strategies=fsdp2,fsdp2:tp2,ddp:cp2", "--json");
    json_t *all = CHECK_PTR(json_loads(p.output, 0, NULL));
    double alone = json_number_value(json_object_get(variant(all, 0), "loss"));
    double teams = json_number_value(json_object_get(variant(all, 1), "loss"));

    CHECK_STRING(json_string_value(json_object_get(variant(all, 1), "strategy")), "fsdp2:tp2");
    CHECK_NEAR(teams, alone, 1e-5);
    json_decref(all);
    SAYS(1, "--strategies fsdp2:tp2: parallelism.tensor_parallel_degree is 2, which does not divide the model's ",
         "compare", f->config, "-n", "2", "--strategies=fsdp2,fsdp2:tp2");
    SAYS(2, "'cp2+x' is no team: expected tpN, cpN or cpN+tpN", "compare", f->config, "-n", "2",
         "--strategies=fsdp2:cp2+x");
    SAYS(2, "'ddp' takes no 'x2' after a colon", "compare", f->config, "-n", "2", "--strategies=ddp:x2");
    SAYS(2, "parallelism.tensor_parallel_degree is 'x'", "compare", f->config, "-n", "2", "--strategies=fsdp2:tpx");
}

/* What the model and the keys say before there is a rank is said so, without one, and nothing is left behind. */
FIXTURE_TEST(what_a_model_excludes_is_said_before_ranks_are_started)
{
#define TP "--parallelism.tensor_parallel_degree=2"
    static const struct {
        const char *ranks, *keys[3], *text;
    } cases[] = {
        {"4",
         {"--parallelism.tensor_parallel_degree=4", "--model.n_heads=4", "--model.n_kv_heads=2"},
         "parallelism.tensor_parallel_degree is 4, which does not divide the model's 2 key/value heads "
         "(model.n_kv_heads): expected 1 or 2\n"},
        {"2",
         {"--parallelism.context_parallel_degree=2", "--training.seq_len=18", TP},
         "parallelism.tensor_parallel_degree 2 and parallelism.context_parallel_degree 2 make teams of 4 ranks"},
        {"2",
         {"--parallelism.context_parallel_degree=2", "--training.seq_len=18", "--model.n_heads=4"},
         "training.seq_len 18 cannot be cut into 4 equal chunks, two for each of 2 ranks "
         "(parallelism.context_parallel_degree): the nearest that can are 16 and 20\n"},
        {"2", {"--training.seq_len=1000", "--model.n_heads=4", TP}, "training.seq_len 1000 is more than the "},
    };
    static const char *const commands[] = {"train", "explain", "plan"};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t c = 0; c < sizeof commands / sizeof *commands; c++) {
            char text[300];

            snprintf(text, sizeof text, "fsdp: %s", cases[i].text);
            SAYS(1, text, commands[c], f->config, "-n", cases[i].ranks, cases[i].keys[0], cases[i].keys[1],
                 cases[i].keys[2]);
        }
#undef TP
}

FIXTURE_TEST(moments_of_bytes_that_a_team_would_cut_are_refused_before_ranks_are_started)
{
#define BYTES                                                                                        \
    f->config, "-n", "2", "--model.n_heads=4", "--model.n_kv_heads=2", "--optimizer.name=adamw8bit", \
        "--parallelism.tensor_parallel_degree=2", "--training.steps=1", "--checkpoint.folder="
    static const char *const commands[] = {"train", "explain", "compare"};
    program p;

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        p = RUN(1, commands[i], BYTES, "--model.ffn_dim=600");
        CHECK_CONTAINS(p.output, "optimizer.name adamw8bit keeps moments of 256 columns at a time, but "
                                 "parallelism.tensor_parallel_degree 2 gives a rank 300 of the 600 columns of "
                                 "'model.layers.0.mlp.down_proj.weight': set parallelism.tensor_parallel_degree=1, or "
                                 "optimizer.name=adamw\n");
        CHECK_NULL(strstr(p.output, "fsdp flight"));
        CHECK_NULL(strstr(p.output, "rank 0"));
    }
    RUN(0, "train", BYTES, "--model.ffn_dim=512"); /* whole blocks; o_proj has too few numbers for bytes */
    /* those that are named as not hidden have moments of float32 */
    RUN(0, "train", BYTES, "--model.ffn_dim=600", "--optimizer.groups=[{pattern: '*down_proj.weight', hidden: false}]");
#undef BYTES
}

FIXTURE_TEST(keys_without_a_meaning_for_ranks_by_themselves_are_told)
{
    SAYS(0, "keys without an effect: parallelism.sequence_parallel (needs parallelism.tensor_parallel_degree)\n",
         "train", SMALL, "--parallelism.sequence_parallel=false");
    SAYS(0, "keys without an effect: parallelism.loss_parallel (needs ", "train", SMALL, "-n", "2",
         "--training.local_batch_size=2", "--parallelism.loss_parallel=false");
    SAYS(1, "parallelism.enable_async_tensor_parallel needs parallelism.tensor_parallel_degree: set that", "train",
         SMALL, "--parallelism.enable_async_tensor_parallel=true");
}

FIXTURE_TEST(generation_has_no_sequence_to_cut)
{
    SAYS(2, "generate: there is no --context-parallel: tokens are made one at a time", "generate", f->model,
         "--prompt=a", "--context-parallel=2");
}
