/* Reference runs: 20 steps of PyTorch's FSDP2, repeated by `fsdp train` with real rank processes. Losses, norms, final
 * weights and communication must agree. What the files hold is told in their own README; FSDP_REFERENCE names the
 * folder with all of them, of which tests/reference has a part. */
#include <jansson.h>
#include <math.h>

#include "fsdp/format.h"
#include "support/program.h"

typedef struct run {
    const char *name, *model;
    const char *final; /* the run whose final weights it must reach; NULL: none is known */
    const char *exact; /* of a run in bf16: the same in f32 */
} run;

/* Worlds and accumulation change the last digits only, so runs of one model and optimizer end in the same place. */
static const run runs[] = {
    {"gpt2-ws1", "tiny-gpt2", "gpt2-ws2", NULL},
    {"gpt2-ws2", "tiny-gpt2", "gpt2-ws2", NULL},
    {"gpt2-ws3", "tiny-gpt2", "gpt2-ws2", NULL},
    {"gpt2-ws4", "tiny-gpt2", "gpt2-ws2", NULL},
    {"gpt2-adam-ws2", "tiny-gpt2", NULL, NULL},
    {"gpt2-sgd-ws2", "tiny-gpt2", NULL, NULL},
    {"gpt2-bf16-ws2", "tiny-gpt2", NULL, "gpt2-ws2"},
    {"gpt2-bf16-reduce-bf16-ws2", "tiny-gpt2", NULL, "gpt2-ws2"},
    {"zero1-gpt2-ws3", "tiny-gpt2", "gpt2-ws2", NULL},
    {"fsdp1-gpt2-gradop-accum3-ws2", "tiny-gpt2", "gpt2-ws2", NULL},
    {"ddp-llama-ws3", "tiny-llama", "llama-ws3", NULL},
    {"llama-ws1", "tiny-llama", "llama-ws3", NULL},
    {"llama-ws2", "tiny-llama", "llama-ws3", NULL},
    {"llama-ws3", "tiny-llama", "llama-ws3", NULL},
    {"llama-ws4", "tiny-llama", "llama-ws3", NULL},
    {"llama-accum3-ws2", "tiny-llama", "llama-ws3", NULL},
    {"llama-accum3-sync-ws2", "tiny-llama", "llama-ws3", NULL},
    {"llama-hsdp-2x2", "tiny-llama", "llama-ws3", NULL},
    {"fsdp2-llama-hsdp-sync-accum3-2x2", "tiny-llama", "llama-ws3", NULL},
    {"fsdp2-llama-hsdp-nosync-accum3-2x2", "tiny-llama", "llama-ws3", NULL},
    {"llama-noreshard-ws2", "tiny-llama", "llama-ws3", NULL},
    {"llama-reshard2-ws4", "tiny-llama", "llama-ws3", NULL},
    {"fsdp2-llama-reshard2-accum3-ws4", "tiny-llama", "llama-ws3", NULL},
    {"fsdp2-llama-default-reshard-ws2", "tiny-llama", "llama-ws3", NULL},
    {"fsdp2-llama-bwdprefetch2-ws2", "tiny-llama", "llama-ws3", NULL},
    {"llama-bf16-ws2", "tiny-llama", NULL, "llama-ws2"},
    {"llama-frozen-ws2", "tiny-llama", "llama-frozen-ws2", NULL},
    {"fsdp2-llama-freeze-after-ws2", "tiny-llama", NULL, NULL},
    {"llama-tied-ws2", "tiny-llama-tied-st", "llama-tied-ws2", NULL},
    {"tp-llama-1x2", "tiny-llama", "llama-ws3", NULL},
    {"tp-llama-2x2", "tiny-llama", "llama-ws3", NULL},
    {"tp-llama-2x2-sp", "tiny-llama", "llama-ws3", NULL},
    {"tp-llama-2x2-sp-loss", "tiny-llama", "llama-ws3", NULL},
    {"tp-llama-2x2-sp-accum3", "tiny-llama", "llama-ws3", NULL},
    {"tp-llama-2x2-bf16", "tiny-llama", NULL, "tp-llama-2x2-sp"},
};
enum {
    RUNS = sizeof runs / sizeof runs[0]
};

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_number_value(value) : otherwise;
}

static const char *text(const json_t *object, const char *key, const char *otherwise)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value ? value : otherwise;
}

/* ---- from a reference file to a config ---- */

/* Fragments of names as patterns. Freezing before and after the sharding is the same. */
static void write_frozen(const json_t *reference, FILE *file)
{
    const json_t *fragments = json_object_get(reference, "frozen"), *fragment;
    size_t i;

    if (!fragments)
        fragments = json_object_get(reference, "freeze_after");
    json_array_foreach(fragments, i, fragment)
        fprintf(file, "%s'*%s*'", i == 0 ? "  frozen: [" : ", ", json_string_value(fragment));
    fputs(fragments ? "]\n" : "", file);
}

/* Returns how many ranks compute each layer together: of a tensor parallel run the mesh is [shard, tensor]. */
static int team_of(const json_t *reference)
{
    bool tensor_parallel = strncmp(text(reference, "name", ""), "tp-", 3) == 0;

    return tensor_parallel ? (int)json_integer_value(json_array_get(json_object_get(reference, "mesh"), 1)) : 1;
}

static void write_parallelism(const json_t *reference, FILE *file)
{
    const json_t *reshard = json_object_get(reference, "reshard_after_forward");
    const json_t *mesh = json_object_get(reference, "mesh");
    double ahead = number(reference, "forward_prefetch", number(reference, "backward_prefetch", 0));
    const char *word = json_is_false(reshard) ? "never" : json_is_null(reshard) ? "default" : "always";
    char ranks[16];

    if (strcmp(text(reference, "kind", "fsdp2"), "fsdp2") != 0) {
        fprintf(file, "parallelism:\n  strategy: %s\n", text(reference, "kind", ""));
        fputs(strcmp(text(reference, "strategy", ""), "gradop") == 0 ? "  fsdp1_strategy: shard_grad_op\n" : "", file);
        return;
    }
    if (team_of(reference) > 1) {
        fprintf(file,
                "parallelism:\n  tensor_parallel_degree: %d\n"
                "  sequence_parallel: %s\n  loss_parallel: %s\n",
                team_of(reference), json_object_get(reference, "sequence_parallel") ? "true" : "false",
                json_object_get(reference, "loss_parallel") ? "true" : "false");
        return;
    }
    snprintf(ranks, sizeof ranks, "%d", (int)json_integer_value(reshard));
    fprintf(file, "parallelism:\n  fsdp_reshard_after_forward: %s\n  prefetch: %d\n",
            json_is_integer(reshard) ? ranks : word, (int)ahead);
    if (mesh)
        fprintf(file, "  data_parallel_replicate_degree: %d\n  data_parallel_shard_degree: %d\n",
                (int)json_integer_value(json_array_get(mesh, 0)), (int)json_integer_value(json_array_get(mesh, 1)));
}

static void write_config(const run *r, const json_t *reference, const char *directory, const char *path)
{
    const json_t *optim = json_object_get(reference, "optim"), *betas = json_object_get(optim, "betas");
    const char *param = text(reference, "param_dtype", "float32");
    int accum = (int)number(reference, "accum", 1),
        world = (int)number(reference, "world_size", 1) / team_of(reference);
    int batch = (int)number(reference, "global_batch", 0);
    FILE *file = fopen(path, "w");

    CHECK(file != NULL);
    fprintf(file, "model:\n  path: %s/models/%s\n", REFERENCE, r->model);
    write_frozen(reference, file);
    fprintf(file, "data:\n  path: %s/tokens.bin\n  order: sequential\n", REFERENCE);
    fprintf(file, "training:\n  steps: %d\n  seq_len: %d\n  global_batch_size: %d\n  local_batch_size: %d\n",
            (int)number(reference, "steps", 0), (int)number(reference, "seq", 0), batch, batch / world / accum);
    fprintf(file, "  max_norm: %g\n  mixed_precision_param: %s\n  mixed_precision_reduce: %s\n",
            number(reference, "clip", 0), param, text(reference, "reduce_dtype", "float32"));
    if (json_object_get(reference, "no_sync"))
        fprintf(file, "  no_sync: %s\n", json_is_true(json_object_get(reference, "no_sync")) ? "true" : "false");
    fprintf(file, "optimizer:\n  name: %s\n  lr: %.17g\n  weight_decay: %.17g\n  momentum: %.17g\n  nesterov: %s\n",
            text(optim, "name", ""), number(optim, "lr", 0), number(optim, "weight_decay", 0),
            number(optim, "momentum", 0), json_is_true(json_object_get(optim, "nesterov")) ? "true" : "false");
    if (betas)
        fprintf(file, "  beta1: %.17g\n  beta2: %.17g\n  eps: %.17g\n", json_number_value(json_array_get(betas, 0)),
                json_number_value(json_array_get(betas, 1)), number(optim, "eps", 0));
    write_parallelism(reference, file);
    fprintf(file, "metrics:\n  jsonl: %s/metrics.jsonl\nexport:\n  path: %s/final\n", directory, directory);
    fclose(file);
}

/* ---- comparing ---- */

static void check_near(const char *what, int64_t step, double actual, double expected, double relative)
{
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        TEST_FAIL("step %lld: %s is %.9g, expected %.9g (%.2e relative)", (long long)step, what, actual, expected,
                  fabs(actual - expected) / fabs(expected));
}

/* `other_key`: counted with the first; NULL: none. */
static void check_count(const json_t *line, const char *key, const json_t *reference, const char *reference_key,
                        const char *other_key)
{
    const json_t *counts = json_object_get(reference, "comm_per_step");
    double expected = number(counts, reference_key, 0) + (other_key ? number(counts, other_key, 0) : 0);
    double actual = number(line, key, -1);

    if (actual != expected)
        TEST_FAIL("%s: %g calls in step 1, expected %g", key, actual, expected);
}

/* Of a tensor parallel run the clip is not counted in the reference: it adds up once over each dimension of the mesh.
 * Without sequence parallel PyTorch's plan prepares the input of each projection, and ours that of attention and MLP:
 * it saves three all-reduces a layer. */
static void check_team_counts(const json_t *line, const json_t *reference)
{
    const json_t *counts = json_object_get(reference, "comm_per_step");
    double saved = json_object_get(reference, "sequence_parallel") ? 0 : 3 * 3;

    CHECK_EQ(number(line, "all_gather", -1), number(counts, "c10d._allgather_base_ over 2", 0) +
                                                 number(counts, "c10d_functional.all_gather_into_tensor over 2", 0));
    CHECK_EQ(number(line, "reduce_scatter", -1), number(counts, "c10d._reduce_scatter_base_ over 2", 0) +
                                                     number(counts, "c10d_functional.reduce_scatter_tensor over 2", 0));
    CHECK_EQ(number(line, "all_reduce", -1), number(counts, "c10d_functional.all_reduce over 2", 0) - saved +
                                                 (number(reference, "world_size", 0) > 2 ? 2 : 1));
}

/* Live bytes must be the same from step 3 on, bytes on the wire from step `from`. */
static void check_no_drift(const json_t *line, int64_t step, int64_t from, int64_t *live, int64_t *sent)
{
    int64_t now_live = (int64_t)number(line, "memory_live_bytes", -1),
            now_sent = (int64_t)number(line, "bytes_sent", -1);

    if (step == 3)
        *live = now_live;
    if (step > 3)
        CHECK_EQ(now_live, *live);
    if (step <= from)
        *sent = now_sent;
    CHECK_EQ(now_sent, *sent);
    CHECK(number(line, "memory_peak_bytes", -1) >= (double)now_live);
    CHECK(number(line, "tokens_per_second", -1) > 0 && number(line, "step_ms", -1) > 0);
}

static double reference_at(const json_t *list, int64_t step)
{
    return json_number_value(json_array_get(list, (size_t)step - 1));
}

/* How far norms of the reference in bf16 are from those in f32, at most: which step it is, is chance. */
static double scatter_of(const json_t *norms, const json_t *exact)
{
    double widest = 0;

    for (int64_t step = 1; step <= (int64_t)json_array_size(norms); step++)
        widest = fmax(widest, fabs(reference_at(norms, step) / reference_at(exact, step) - 1));
    return widest;
}

/* `exact` is the f32 run that a bf16 run is a rounding of; NULL for a run in f32. Norms of bf16 runs scatter around its
 * norms more than losses do: ours may be off by what the reference's are off, and a percent. */
static void check_metrics(const json_t *reference, const json_t *exact, const char *path)
{
    const json_t *losses = json_object_get(reference, "loss"), *norms = json_object_get(reference, "grad_norm");
    const json_t *norms_exact = exact ? json_object_get(exact, "grad_norm") : norms;
    double relative = exact ? 1e-2 : 2e-4, scatter = scatter_of(norms, norms_exact);
    double lr = number(json_object_get(reference, "optim"), "lr", 0);
    int64_t step = 0, live = 0, sent = 0;
    char line[1024];
    FILE *file = fopen(path, "r");

    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);

        CHECK(object != NULL);
        if (json_object_get(object, "run")) { /* the header */
            CHECK_EQ(step, 0);
            json_decref(object);
            continue;
        }
        step++;
        CHECK_EQ((int64_t)number(object, "step", 0), step);
        check_near("loss", step, number(object, "loss", NAN), reference_at(losses, step), relative);
        check_near("grad_norm", step, number(object, "grad_norm", NAN), reference_at(norms_exact, step),
                   relative + scatter);
        check_near("lr", step, number(object, "lr", NAN), lr, 1e-8);
        if (team_of(reference) > 1) /* of this step alone, not since the start */
            CHECK(number(object, "team_bytes_sent", -1) > 0 &&
                  number(object, "team_bytes_sent", -1) <= number(object, "bytes_sent", -1));
        /* Of zero1 and ddp whole parameters have owners, and buckets another size. */
        if (step == 1 && team_of(reference) > 1)
            check_team_counts(object, reference);
        else if (step == 1 && !json_object_get(reference, "partition") &&
                 !json_object_get(reference, "bucket_cap_mb")) {
            check_count(object, "all_gather", reference, "c10d._allgather_base_", "c10d.allgather_");
            check_count(object, "reduce_scatter", reference, "c10d._reduce_scatter_base_", NULL);
            check_count(object, "all_reduce", reference, "c10d.allreduce_", "c10d_functional.all_reduce");
        }
        check_no_drift(object, step, json_object_get(reference, "bucket_cap_mb") ? 3 : 1, &live, &sent);
        json_decref(object);
    }
    fclose(file);
    CHECK_EQ(step, json_array_size(losses));
}

/* The gradient of an attention key's bias is zero but for rounding. GPT-2's c_attn.bias is query, key, value. */
static bool is_key_bias(const char *name, int64_t i, int64_t numel)
{
    return strstr(name, "attn.c_attn.bias") && i >= numel / 3 && i < numel / 3 * 2;
}

/* Every tensor of the exported folder against the reference's: |a - b| <= 1e-4 + 1e-3 |b|. Adam steps by the sign of a
 * gradient however small it is, so the reference's own worlds exceed that: a key's bias, and a handful of other
 * elements, may, but by no more than a third of one step of the optimizer. */
static void check_weights(const char *folder, const char *final)
{
    fsdp_safetensors *ours = NULL, *theirs = NULL;
    int exceeding = 0;

    CHECK_OK(fsdp_safetensors_open(folder, &ours));
    CHECK_OK(fsdp_safetensors_open(final, &theirs));
    for (int64_t i = 0; i < fsdp_safetensors_count(ours); i++) {
        const fsdp_safetensors_entry *a = fsdp_safetensors_at(ours, i), *b = fsdp_safetensors_find(theirs, a->name);
        int64_t numel = (int64_t)(a->bytes / sizeof(float));

        if (!b)
            TEST_FAIL("'%s' is not in '%s'", a->name, final);
        CHECK_EQ(a->dtype, FSDP_F32);
        CHECK_EQ(a->bytes, b->bytes);
        for (int64_t at = 0; at < numel; at++) {
            float left, right;

            memcpy(&left, (const char *)a->data + at * 4, sizeof left); /* the file does not align them */
            memcpy(&right, (const char *)b->data + at * 4, sizeof right);
            if (fabs(left - right) <= 1e-4 + 1e-3 * fabs(right))
                continue;
            exceeding += !is_key_bias(a->name, at, numel);
            if (exceeding > 10 || !(fabs(left - right) <= 1e-3))
                TEST_FAIL("'%s' [%lld] is %.9g, expected %.9g", a->name, (long long)at, left, right);
        }
    }
    CHECK(fsdp_safetensors_count(ours) >= 20);
    fsdp_safetensors_close(ours);
    fsdp_safetensors_close(theirs);
}

/* ---- one run ---- */

static char *find_file(const char *name, const char *suffix)
{
    return test_reference(test_path("runs", name), suffix);
}

static void repeats_the_reference(void **state)
{
    const run *r = *state;
    char *directory = test_directory(), *config = test_path(directory, "config.yaml");
    char *metrics = test_path(directory, "metrics.jsonl"), *folder = test_path(directory, "final");
    char *source = find_file(r->name, ".json"), *final = find_file(r->name, "-final.safetensors");
    char *exact_source = r->exact ? find_file(r->exact, ".json") : NULL;
    json_t *reference = source ? json_load_file(source, 0, NULL) : NULL;
    json_t *exact = exact_source ? json_load_file(exact_source, 0, NULL) : NULL;
    const char *starter = getenv("FSDP_TEST_STARTER");
    char ranks[16];
    program p;

    CHECK(reference != NULL);
    write_config(r, reference, directory, config);
    snprintf(ranks, sizeof ranks, "%d", (int)number(reference, "world_size", 1));
    p = program_run(directory, 0,
                    starter ? (const char *const[]){starter, ranks, PROGRAM, "train", config, NULL}
                            : (const char *const[]){PROGRAM, "train", config, "-n", ranks, NULL});
    CHECK_CONTAINS(p.output, "step: 20  loss: ");
    CHECK((exact != NULL) == (json_object_get(reference, "param_dtype") != NULL));
    check_metrics(reference, exact, metrics);
    if (!final && r->final)
        final = find_file(r->final, "-final.safetensors");
    if (final)
        check_weights(folder, final);

    json_decref(reference);
    json_decref(exact);
    test_directory_free(directory);
}

/* FSDP_TEST_STARTER: a program that starts so many ranks, its first argument, on FSDP_TEST_STARTER_MACHINES. */
static bool can_be_repeated(const run *r)
{
    const char *machines = getenv("FSDP_TEST_STARTER_MACHINES");
    char *source = find_file(r->name, ".json");
    json_t *reference = source ? json_load_file(source, 0, NULL) : NULL;
    int ranks = (int)number(reference, "world_size", 1);
    bool there = reference != NULL;

    json_decref(reference);
    return there && (!machines || ranks % atoi(machines) == 0);
}

static void skip_the_reference(void **state)
{
    (void)state;
    skip();
}

static int test_main(void)
{
    struct CMUnitTest tests[RUNS];
    int each = test_brief() ? 5 : 1; /* under a sanitizer some: it watches the same program in all */

    setenv("OMP_NUM_THREADS", "1", 1);
    for (int i = 0; i < RUNS; i++)
        tests[i] = (struct CMUnitTest){
            .name = runs[i].name,
            .test_func = i % each == 1 % each && can_be_repeated(&runs[i]) ? repeats_the_reference : skip_the_reference,
            .initial_state = (void *)(uintptr_t)&runs[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

TEST_FILE(test_main)
