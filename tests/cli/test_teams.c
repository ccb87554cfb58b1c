/* Runs whose ranks compute each layer in teams, as other commands see them: inspect, verify, diff, convert, report,
 * compare. */
#include <jansson.h>

#include "cli/fixture.h"

#define RUN(expected, ...) program_run(f->directory, (expected), (const char *const[]){PROGRAM, __VA_ARGS__, NULL})
#define SAYS(expected, what, ...)                \
    do {                                         \
        program p_ = RUN(expected, __VA_ARGS__); \
                                                 \
        CHECK_CONTAINS(p_.output, what);         \
        program_free(&p_);                       \
    } while (0)

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

static void free_files(files *n)
{
    free(n->teams);
    free(n->alone);
    free(n->teams_model);
    free(n->folder);
    free(n->gguf);
    free(n->back);
    free(n->resaved);
    free(n->trace);
    free(n->metrics);
}

/* Trains in two teams of two, with a trace. */
static void train_teams(const fixture *f, const files *n)
{
    program p = RUN(0, "train", SMALL, "-n", "4", "--parallelism.tensor_parallel_degree=2",
                    "--training.local_batch_size=2", "--checkpoint.folder", n->teams, "--export.path", n->teams_model,
                    "--metrics.jsonl", n->metrics, "--metrics.trace.path", n->trace, "--metrics.trace.steps=2");

    program_free(&p);
}

FIXTURE_TEST(a_checkpoint_names_its_mesh_and_what_each_dimension_cuts)
{
    fixture *f = *state;
    files n = name_files(f);
    program p;

    train_teams(f, &n);
    p = RUN(0, "inspect", n.teams);
    CHECK_CONTAINS(p.output, "step-2: step 2, saved by 4 ranks, dp_shard=2 tp=2\n");
    CHECK_CONTAINS(p.output, "float32   [48, 100]                19,200 bytes  ranks 0 to 3, rows by dp_shard, "
                             "columns by tp\n"); /* down_proj */
    CHECK_CONTAINS(p.output,
                   "float32   [100, 48]                19,200 bytes  ranks 0 to 3, rows by dp_shard and tp\n");
    CHECK_CONTAINS(p.output, "float32   [48]                        192 bytes  2 parts of ranks 0 to 2, elements by "
                             "dp_shard\n");
    program_free(&p);
    SAYS(0, "\"mesh\": \"dp_shard=2 tp=2\"", "inspect", "--json", n.teams);
    SAYS(0, "whole: ", "verify", n.teams);
    free_files(&n);
}

FIXTURE_TEST(copies_and_fused_weights_are_told_apart)
{
    fixture *f = *state;
    files n = name_files(f);
    program p = RUN(0, "train", "--model.preset=gpt-10m", "--model.n_layers=1", "--model.dim=32", "--model.n_heads=4",
                    "--model.n_kv_heads=4", "--model.ffn_dim=64", "--model.vocab_size=256", "--model.max_seq_len=32",
                    "--training.seq_len=32", "--training.steps=1", "--training.local_batch_size=1", "--data.path",
                    f->data, "-n", "4", "--parallelism.tensor_parallel_degree=2",
                    "--parallelism.data_parallel_replicate_degree=2", "--checkpoint.folder", n.teams);

    program_free(&p);
    p = RUN(0, "inspect", n.teams);
    CHECK_CONTAINS(p.output, "saved by 4 ranks, dp_replicate=2 dp_shard=1 tp=2\n");
    CHECK_CONTAINS(p.output, "[32, 96]                 12,288 bytes  6 parts of ranks 0 to 1, columns by tp\n");
    CHECK_CONTAINS(p.output, "[32, 32]                  4,096 bytes  ranks 0 to 1, rows by tp\n");
    program_free(&p);
    free_files(&n);
}

/* Whatever is made of the checkpoint of teams is what is made of their export, to the bit. */
FIXTURE_TEST(a_checkpoint_of_teams_converts_to_everything)
{
    fixture *f = *state;
    files n = name_files(f);
    program p;

    train_teams(f, &n);
    p = RUN(0, "convert", n.teams, n.folder);
    program_free(&p);
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.folder, n.teams_model);
    p = RUN(0, "convert", n.teams, "--to", "gguf", "-o", n.gguf);
    program_free(&p);
    p = RUN(0, "convert", n.gguf, "-o", n.back);
    program_free(&p);
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.back, n.teams_model);
    p = RUN(0, "convert", n.teams, n.resaved, "--ranks", "3");
    program_free(&p);
    SAYS(0, ", 0 different, 0 only in A, 0 only in B", "diff", n.resaved, n.teams);
    SAYS(2, "would become a folder: for a file of llama.cpp add --to gguf", "convert", n.teams, "x.gguf");
    free_files(&n);
}

FIXTURE_TEST(a_report_tells_what_teams_wait_for_from_gathers_of_parameters)
{
    fixture *f = *state;
    files n = name_files(f);
    char *page = test_path(f->directory, "report.html"), *text;
    program p;

    train_teams(f, &n);
    p = RUN(0, "train", SMALL, "-n", "1", "--checkpoint.folder", n.alone);
    program_free(&p);
    p = RUN(0, "report", n.metrics, f->metrics, n.trace, "-o", page);
    CHECK_CONTAINS(p.output, "  parallelism.tensor_parallel_degree\n    teams.jsonl             2\n");
    program_free(&p);
    text = test_read_file(page, NULL);
    CHECK_CONTAINS(text, "<th>call</th><th>group</th>");
    CHECK_CONTAINS(text, "<td class=\"\">tp</td>");
    free(text);
    free(page);
    free_files(&n);
}

static const json_t *variant(const json_t *all, size_t i)
{
    return CHECK_PTR(json_array_get(json_object_get(all, "variants"), i));
}

FIXTURE_TEST(compare_tries_teams_beside_ranks_by_themselves_on_the_same_data)
{
    fixture *f = *state;
    program p = RUN(0, "compare", f->config, "-n", "2", "--model.n_heads=4", "--model.n_kv_heads=2", "--steps=1",
                    "--rounds=1", "--worlds=2", "--strategies=fsdp2,fsdp2:tp2", "--json");
    json_t *all = CHECK_PTR(json_loads(p.output, 0, NULL));
    double alone = json_number_value(json_object_get(variant(all, 0), "loss"));
    double teams = json_number_value(json_object_get(variant(all, 1), "loss"));

    CHECK_STRING(json_string_value(json_object_get(variant(all, 1), "strategy")), "fsdp2:tp2");
    CHECK_NEAR(teams, alone, 1e-5);
    json_decref(all);
    program_free(&p);
    SAYS(1, "--strategies fsdp2:tp2: parallelism.tensor_parallel_degree: attention cannot be cut over 2 ranks",
         "compare", f->config, "-n", "2", "--strategies=fsdp2,fsdp2:tp2");
    SAYS(2, "'ddp' takes no 'tp2' after a colon", "compare", f->config, "-n", "2", "--strategies=ddp:tp2");
    SAYS(2, "parallelism.tensor_parallel_degree is 'x'", "compare", f->config, "-n", "2", "--strategies=fsdp2:tpx");
}
