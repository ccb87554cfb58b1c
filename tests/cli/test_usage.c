/* What the program says to a wrong command line, and with which exit status: 2 for usage, 1 for a failure. */
#include <sys/stat.h>

#include "cli/fixture.h"

/* Exit status `expected`, and `part` in what is printed. */

FIXTURE_TEST(help_and_version_are_no_errors)
{
    program p;

    SAYS(0, "fsdp 0.", "--version");
    SAYS(0, "fsdp train CONFIG.yaml", "help");
    SAYS(0, "fsdp train CONFIG.yaml", "--help");
    SAYS(0, "global_batch_size", "train", "--help");
    SAYS(0, "adafactor: as in torch.optim;", "help", "train");
    SAYS(0, "fsdp train CONFIG.yaml", "train", "config.yaml", "--help");
    SAYS(2, "train: unknown option '--learning_rate=1': here it is --optimizer.lr", "train", "--learning_rate=1");
    SAYS(2, "train: unknown option '--steps': with its section it is --training.steps or --validation.steps", "train",
         "--steps", "3");
    SAYS(2, "with its section it is --model.path or --data.path or --", "train", "--path=x");
    SAYS(2, "--adapter.r: adapter.r is not a key: here it is adapter.rank", "train", "--adapter.r=8");
    SAYS(2, "fsdp: chekpoint is not a section; did you mean 'checkpoint'?", "train", "--help", "chekpoint");
    p = RUN(0, "train", "--help", "checkpoint");
    CHECK(strncmp(p.output, "checkpoint:\n  ", 14) == 0);
    CHECK_CONTAINS(p.output, "keep_latest_k");
    CHECK(!strstr(p.output, "\n\n")); /* one section */
    SAYS(0, "WORLD_SIZE", "run", "--help");
    SAYS(0, "--temperature", "generate", "--help");
    SAYS(0, "fsdp inspect PATH", "inspect", "-h");
    SAYS(0, "--wrap-policy POLICY", "explain", "--help");
    SAYS(0, "fsdp repair FOLDER", "repair", "--help");
    SAYS(0, "nothing to repair", "repair", f->directory);
}

static size_t widest(const char *text)
{
    size_t most = 0;

    for (size_t line; *text; text += line + (text[line] != '\0')) {
        line = strcspn(text, "\n");
        most = line > most ? line : most;
    }
    return most;
}

FIXTURE_TEST(every_help_fits_80_columns)
{
    static const char command[] = "\n  fsdp ";
    program all = RUN(0, "--help");
    int count = 0;

    CHECK(widest(all.output) <= 80);
    for (const char *at = all.output; (at = strstr(at, command)); count++) {
        char name[16] = "";
        program p;

        at += sizeof command - 1;
        if (strncmp(at, "COMMAND", 7) == 0)
            break;
        memcpy(name, at, strcspn(at, " "));
        p = RUN(0, name, "--help");
        CHECK_CONTAINS(p.output, name);
        if (widest(p.output) > 80)
            fail_msg("fsdp %s --help has a line of %zu columns", name, widest(p.output));
    }
    CHECK_EQ(count, 15);
}

FIXTURE_TEST(a_wrong_command_line_is_status_2)
{
    program p = program_run(f->directory, 2, (const char *const[]){PROGRAM, NULL});

    CHECK_CONTAINS(p.output, "fsdp train CONFIG.yaml");
    SAYS(2, "fsdp: unknown command 'trian'; did you mean 'train'?", "trian");
    SAYS(2,
         "fsdp: unknown command 'xyzzy': there are train, explain, plan, compare, report, run, generate, eval, "
         "inspect, ",
         "xyzzy");
    SAYS(2, "train: no config file given", "train");
    SAYS(2, "compare: no config file given", "compare");
    SAYS(2, "train: unknown option '--rank'; did you mean '--ranks'?", "train", f->config, "--rank", "2");
    SAYS(2, "train: unknown option '-z'", "train", f->config, "-z");
    SAYS(2, "train: '-n' needs a value", "train", f->config, "-n");
    SAYS(2, "-n is 'two': expected an integer from 1 to 4096", "train", f->config, "-n", "two");
    SAYS(2, "-n is '0': expected", "train", "-n0", f->config);
    SAYS(2, "train: unexpected argument 'b.yaml'", "train", f->config, "b.yaml");
    SAYS(2, "--training.stepz: training.stepz is not a key of training; did you mean 'steps'?", "train", f->config,
         "--training.stepz=3");
    SAYS(2, "training.steps is 'x': expected an integer from 1", "train", f->config, "--training.steps=x");
    SAYS(2, "train: '--training.steps' needs a value", "train", f->config, "--training.steps");
    SAYS(2, "'--metrics.jsonl' needs a value: if it is '--print-config', write '--metrics.jsonl=--print-config'",
         "train", f->config, "--metrics.jsonl", "--print-config");
    SAYS(2, "run: say how many ranks", "run", "--", "true");
    SAYS(2, "run: no program given", "run", "-n", "2");
    SAYS(2, "run: no program given: fsdp run -n 3 --", "run", "-np", "3");
    SAYS(2, "generate: no model folder given", "generate", "--prompt", "x");
    SAYS(2, "give either --prompt TEXT or --tokens", "generate", f->directory);
    SAYS(2, "--temperature is '-1': expected a number from 0", "generate", f->directory, "--prompt", "x",
         "--temperature=-1");
    SAYS(2, "inspect: no model folder given; see 'fsdp inspect --help'", "inspect");
    SAYS(2, "repair: no model folder given; see 'fsdp repair --help'", "repair");
    SAYS(1, "cannot repair '/nonexistent': there is no such folder", "repair", "/nonexistent");
}

/* Of a folder that has none. */
FIXTURE_TEST(an_option_that_counts_for_nothing_is_refused)
{
    const struct {
        const char *command, *says, *options[5];
    } cases[] = {
        {"plan", "--price and --no-time do not go together", {"llama-1m", "--no-time", "--price=3"}},
        {"plan", "--price and --fit do not go together", {"llama-1m", "--fit=1GiB", "--price=3"}},
        {"plan", "--price and --schedule do not", {"llama-1m", "--schedule=s.json", "--price=3"}},
        {"plan", "--network and --no-time do not", {"llama-1m", "--no-time", "--network=3", "--machines=2"}},
        {"plan", "--network has no effect without --machines", {"llama-1m", "--network=3"}},
        {"plan", "--measure and --ranks do not", {"--measure=m.json", "-n2"}},
        {"plan", "--measure and --json do not", {"--measure=m.json", "--json"}},
        {"plan", "--measure measures what is here, and no model", {"llama-1m", "--measure=m.json"}},
        {"explain", "--network has no effect without --device", {"llama-1m", "--network=3", "--machines=2"}},
        {"report", "--network has no effect without --device", {"metrics.jsonl", "--network=3"}},
        {"generate", "--system has no effect without --chat: give that, too", {"m", "--prompt=a", "--system=b"}},
        {"generate", "--chat-template has no effect without --chat", {"m", "--prompt=a", "--chat-template=b"}},
        {"generate", "--tokenizer and --tokens do not go", {"m", "--tokens=1", "--tokenizer=b"}},
        {"generate", "and --top-k has no effect", {"m", "--prompt=a", "--temperature=0", "--top-k=3"}},
        {"generate", "and --seed has no effect", {"m", "--prompt=a", "--temperature=0", "--seed=3"}},
        {"flight", "--calls and --json do not", {"m", "--calls=3", "--json"}},
        {"eval", "'--data.path'; did you mean '--data'?", {"m", "--data.path", "x"}},
        {"eval", "'--training.seq_len=3'; did you mean '--seq-len'?", {"m", "--training.seq_len=3"}},
        {"eval", "did you mean '--batch-size'?", {"m", "--training.local_batch_size=3"}},
        {"eval", "did you mean '--comm-timeout'?", {"m", "--comm.timeout=3"}},
        {"eval", "did you mean '--tensor-parallel'?", {"m", "--parallelism.tensor_parallel_degree=3"}},
        {"eval", "unknown option '--optimizer.lr=3'; see 'fsdp eval --help'", {"m", "--optimizer.lr=3"}},
        {"tokenize", "did you mean '--on-bad-line'?", {"m", "--data.on_bad_line=skip"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const *o = cases[i].options;

        SAYS(2, cases[i].says, cases[i].command, o[0], o[1], o[2], o[3]);
    }
}

/* What counts for nothing shows only where the data or the folder is looked at. */
FIXTURE_TEST(an_option_for_other_data_is_refused)
{
    char *tokens = test_path(f->directory, "t.u16"), *other = test_path(f->directory, "other");
    char *inside = test_path(other, "model"), says[700];

    RUN(0, "train", f->config);
    test_write_file(tokens, "a\0b\0c\0d", 8);
    SAYS(1, "--on-bad-line is for text, but --data '", "eval", f->model, "--data", tokens, "--on-bad-line=skip");
    SAYS(1, "--cache is for text, but --data '", "eval", f->model, "--data", tokens, "--cache=c");
    SAYS(1, "--field is for what a tokenizer reads, but the bytes of --data '", "eval", f->model, "--data", f->data,
         "--field=x");
    SAYS(1, "--parts is for a checkpoint, and '", "inspect", f->model, "--parts");
    CHECK_EQ(mkdir(other, 0700), 0);
    CHECK_EQ(rename(f->model, inside), 0);
    snprintf(says, sizeof says, "did you mean '%s'?", inside);
    SAYS(1, says, "generate", other, "--prompt=a");
    SAYS(1, says, "convert", other, f->model);
}

FIXTURE_TEST(explain_reads_no_weights)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672, \"num_attention_heads\": 64, "
        "\"num_hidden_layers\": 40, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"vocab_size\": 128256, "
        "\"max_position_embeddings\": 8192, \"rope_theta\": 500000.0, \"tie_word_embeddings\": false}";
    char *folder = test_directory(), *file = test_path(folder, "config.json");
    program p;

    test_write_file(file, config, strlen(config));
    p = RUN(0, "explain", folder, "-n", "8", "--batch=64");
    CHECK_CONTAINS(p.output, "36,327,530,496 parameters in 41 units, 8 ranks");
    CHECK_CONTAINS(p.output, "fsdp: a step does not fit: a rank has ");
}

static void check_told_once(fixture *f, const char *svg)
{
    const char *const begin = "What fits into ";
    program p = RUN(0, "plan", "llama-1m", "--device=cuda:L40S", "--fit=100MiB", "--memory-svg", svg);

    CHECK_CONTAINS(p.output, begin);
    CHECK_NULL(strstr(strstr(p.output, begin) + 1, begin));
    CHECK_CONTAINS(p.output, "memory.svg has the picture");
}

FIXTURE_TEST(plan_tells_and_refuses)
{
    char *prices = test_path(f->directory, "prices.json"), *schedule = test_path(f->directory, "schedule.json"),
         *svg = test_path(f->directory, "memory.svg");
    program p;

    SAYS(0, "to the byte what a run's ledger will show without workspace", "plan", "llama-1m", "-n", "4", "--no-time");
    SAYS(0, "by rates of NVIDIA H100 80GB HBM3 (its data sheet)", "plan", "llama-1m", "--device", "cuda:H100");
    SAYS(0, "the least possible is", "plan", "llama-1m", "-n1000", "--machines=500", "--no-time");
    SAYS(0, "\"fits\": true", "plan", f->config, "--device=cuda:B200", "--price=4", "--json");
    SAYS(0, "local_batch_size: ", "plan", "llama-1m", "--device=cuda:L40S", "--fit", "100MiB");
    SAYS(1, "nothing fits into 1.0MiB for a rank: the least of ", "plan", "llama-1m", "--device=cuda:L40S",
         "--fit=1MiB");
    SAYS(2, "--fit is 'much': expected a size, such as 24GiB", "plan", "llama-1m", "--fit=much");
    SAYS(2, "--fit is '24', which has no unit: is it 24GiB?", "plan", "llama-1m", "--fit=24");
    SAYS(1, "did you mean 'H100'?", "plan", "llama-1m", "--device=cuda:H1O0");
    SAYS(1, "--device is 'tpu': expected cpu, cuda, cuda:CARD, or a file of prices", "plan", "llama-1m",
         "--device=tpu");
    SAYS(1, "prices.json", "plan", "llama-1m", "--device", prices);
    test_write_file(prices, "{\"fsdp_prices\": 9}", 18);
    SAYS(1, "its version is 9", "plan", "llama-1m", "--device", prices);
    SAYS(2, "no model given", "plan");
    SAYS(2, "plan: unknown option '--svg=a.svg'; did you mean '--memory-svg'?", "plan", "llama-1m", "--svg=a.svg");
    SAYS(0, "memory.svg has the picture", "plan", "llama-1m", "--no-time", "--memory-svg", svg);
    CHECK_NULL(strstr(RUN(0, "plan", "llama-1m", "--no-time", "--json", "--memory-svg", svg).output, "memory.svg"));
    check_told_once(f, svg);
    SAYS(2, "plan: --trace has no effect without --memory-svg", "plan", "llama-1m", "--trace", "trace.json");
    SAYS(2, "--schedule and --memory-svg are answered one at a time", "plan", "llama-1m", "--schedule", schedule,
         "--memory-svg", svg);
    SAYS(2, "--schedule and --fit are answered one at a time", "plan", "llama-1m", "--schedule", schedule,
         "--fit=1GiB");
    SAYS(2, "--measure and --schedule are answered one at a time", "plan", "--measure=m.json", "--schedule", schedule);
    SAYS(1, "prices.json'", "plan", "llama-1m", "--no-time", "--memory-svg", prices, "--trace=nothing");
    p = RUN(1, "plan", "llama-1m", "--no-time", "--memory-svg", svg, "--trace=nothing");
    CHECK_CONTAINS(p.output, "fsdp: --trace: ");
    CHECK_EQ(test_count(p.output, "\n"), 1); /* before the plan */
    SAYS(2, "what can be measured is cpu or cuda", "plan", "--measure", prices, "--device=tpu");
    test_write_file(prices, "{\"mine\": 1}", 11);
    SAYS(1, "exists and holds no schedule: name another file", "plan", "llama-1m", "--device=cuda:H100", "--schedule",
         prices);
    SAYS(1, "leave out --no-time", "plan", "llama-1m", "--no-time", "--schedule", schedule);
    SAYS(1, "--fit chooses the units, and so does parallelism.schedule", "plan", "llama-1m", "--device=cuda:H100",
         "--fit=1GiB", "--parallelism.schedule=plan");
    SAYS(1, "no schedule fits into 1.0MiB for a rank: the leanest of", "plan", "llama-1m", "--device=cuda:H100",
         "--parallelism.schedule=plan", "--parallelism.schedule_memory=1MiB");
    SAYS(1, "prices.json' exists and holds no prices that --measure wrote: name another file", "plan", "--measure",
         prices);
}

/* What trains by parallelism.schedule plan is told about by it: its units, memory and time. */
FIXTURE_TEST(a_config_that_plans_its_schedule_is_told_about)
{
    static const char blocks[] = "warning: parallelism.schedule plan is planned by the times of a device";

    SAYS(0, "strategy fsdp2, units by a schedule, computed in ", "explain", "llama-1m", "--seq-len=32",
         "--device=cuda:H100", "--parallelism.schedule=plan");
    SAYS(0, blocks, "explain", "llama-1m", "--seq-len=32", "--parallelism.schedule=plan");
    SAYS(0, "fsdp2, units by a schedule, 2 ranks\n", "plan", "llama-1m", "--seq-len=32", "--device=cuda:H100",
         "--parallelism.schedule=plan", "--parallelism.schedule_memory=1GiB");
    SAYS(0, "It fits: a rank has", "plan", "llama-1m", "--seq-len=32", "--parallelism.schedule=plan",
         "--parallelism.schedule_prices=cuda:H100");
    SAYS(0, "\"policy\": \"a schedule\"", "plan", "llama-1m", "--seq-len=32", "--device=cuda:H100", "--json",
         "--parallelism.schedule=plan");
    SAYS(0, blocks, "plan", "llama-1m", "--no-time", "--parallelism.schedule=plan");
    SAYS(0, "fsdp2, units by blocks, 2 ranks\n", "plan", "llama-1m", "--no-time", "--parallelism.schedule=plan");
    SAYS(1, "parallelism.strategy is ddp: leave it out", "plan", "llama-1m", "--no-time", "--strategy=ddp",
         "--parallelism.schedule=plan");
    SAYS(0, "fsdp2", "compare", f->config, "-n2", "--strategies=fsdp2,zero2", "--rounds=1", "--steps=1", "--worlds=4",
         "--parallelism.schedule=plan", "--parallelism.schedule_prices=cuda:H100");
}

FIXTURE_TEST(a_dash_is_no_file)
{
    SAYS(1, "--svg: '-' is standard output, where the command itself prints: name a file", "explain", "llama-1m",
         "--svg=-");
    SAYS(2, "explain: '-' is standard input, which is not read here: name a file ('./-')", "explain", "-");
    SAYS(2, "tokenize: --output: '-' is standard output", "tokenize", "text", "--tokenizer=folder", "-o", "-");
    SAYS(2, "convert: --output: '-' is standard output", "convert", "folder", "-o", "-");
}

FIXTURE_TEST(explain_tells_and_refuses)
{
    char *svg = test_path(f->directory, "rows.svg"), *text, *toml;

    SAYS(0, "llama-1m: 1,000,576 parameters in 5 units, 2 ranks", "explain", "llama-1m");
    SAYS(0, "rows.svg has the picture\n", "explain", "llama-1m", "--svg", svg);
    text = test_read_file(svg, NULL);
    CHECK_CONTAINS(text, "<svg xmlns=");
    SAYS(0, "rows.svg has the picture, in place of an earlier one\n", "explain", "llama-1m", "--svg", svg);
    CHECK_NULL(strstr(RUN(0, "explain", "llama-1m", "--json", "--svg", svg).output, "rows.svg"));
    SAYS(0, "strategy fsdp1 shard_grad_op, units by size 60000", "explain", "--strategy=fsdp1:shard_grad_op",
         "llama-1m", "-n3", "--wrap-policy", "size:60000");
    SAYS(0, "2 microbatches of 3 sequences of 5 tokens on each rank, as rank 1", "explain", "llama-1m", "--batch=3",
         "--seq-len=5", "--microbatches=2", "--rank=1", "--wrap-policy=class:LlamaMLP+LlamaAttention");
    SAYS(0, "\"policy\": \"blocks\"", "explain", f->config, "--json");
    SAYS(0, "\"changes_tried\": ", "explain", f->config, "--json");
    SAYS(0, "What would be better; ", "explain", "llama-1m");
    SAYS(0, "a step ", "explain", "llama-1m", "-n4", "--machines=2", "--device=cuda:H100", "--network=1");
    SAYS(1, "did you mean 'H100'?", "explain", "llama-1m", "--device=cuda:H1OO");
    SAYS(1, "--svg: '/dev/stdout' is standard output, where the command itself prints: name a file", "explain",
         "llama-1m", "--svg=/dev/stdout");
    toml = test_path(f->directory, "config.toml");
    test_write_file(toml, "[model]\n", 8);
    SAYS(1, "this is TOML, but a config is YAML", "explain", toml);
    SAYS(0, "in 2 copies", "explain", "llama-1m", "-n", "4", "--strategy", "hsdp");
    SAYS(0, "in 4 copies", "explain", "llama-1m", "-n", "8", "--strategy", "hsdp",
         "--parallelism.data_parallel_replicate_degree=4");
    SAYS(0, "8 ranks on 4 machines in 4 copies", "explain", "llama-1m", "-n", "8", "--strategy=hsdp", "--machines=4");
    SAYS(0, "between 2 machines of 2 ranks, each rank for itself", "explain", "llama-1m", "-n", "4", "--machines=2",
         "--one-level");
    SAYS(2, "--machines is 3, which does not divide the 4 ranks: each machine must have equally many", "explain",
         "llama-1m", "-n4", "--machines=3");
    SAYS(2, "--machines is 5, more than the 4 ranks: give more ranks with -n", "explain", "llama-1m", "-n4",
         "--machines=5");
    SAYS(2, "--one-level has no effect without --machines", "explain", "llama-1m", "--one-level");
    SAYS(2, "explain: no model given: a folder, a preset such as llama-1m, or a config", "explain");
    SAYS(2, "--rank is '2': expected an integer from 0 to 1", "explain", "llama-1m", "--rank=2");
    SAYS(2, "explain: unknown option '--strategie=x'; did you mean '--strategy'?", "explain", "llama-1m",
         "--strategie=x");
    SAYS(2, "--strategy: parallelism.strategy is 'zero4'", "explain", "llama-1m", "--strategy=zero4");
    SAYS(2, "--strategy: 'zero2' takes no 'x' after a colon", "explain", "llama-1m", "--strategy=zero2:x");
    SAYS(2, "--wrap-policy: parallelism.wrap_policy is 'leaves'", "explain", "llama-1m", "--wrap-policy=leaves");
    SAYS(1, "no model preset 'llama-2m', only", "explain", "llama-2m");
    SAYS(1, "there is no '/nonexistent'", "explain", "/nonexistent");
    SAYS(1, "is of class 'LlamaMPL'", "explain", "llama-1m", "--wrap-policy=class:LlamaMPL");
    SAYS(1, "set parallelism.wrap_min_num_params, which is 100000000, to fewer", "explain", "llama-1m",
         "--wrap-policy=size");
    SAYS(1, "training.seq_len 9999999 is more than the", "explain", "llama-1m", "--seq-len=9999999");
    SAYS(1, "--svg: cannot write '/nonexistent/x.svg'", "explain", "llama-1m", "--svg=/nonexistent/x.svg");
    SAYS(1, "is a file of the config, which the run reads", "explain", f->config, "--svg", f->config);
}

FIXTURE_TEST(a_picture_replaces_only_a_picture)
{
    char *text;

    SAYS(1, "data.txt' exists and is no SVG picture: name another file, or remove it", "explain", "llama-1m", "--svg",
         f->data);
    text = test_read_file(f->data, NULL);
    CHECK_CONTAINS(text, "The quick brown fox");
    test_write_file(f->data, "<svg>old", 8);
    SAYS(0, "units", "explain", "llama-1m", "--svg", f->data);
}

/* As an export does: where a link leads is written, and it is still one. */
FIXTURE_TEST(a_picture_is_written_through_a_link)
{
    char *folder = test_path(f->directory, "elsewhere"), *link = test_path(f->directory, "link.svg"), *picture, *text;
    struct stat info;

    CHECK_EQ(mkdir(folder, 0777), 0);
    picture = test_path(folder, "picture.svg");
    test_write_file(picture, "<svg>old", 8);
    CHECK_EQ(symlink("elsewhere/picture.svg", link), 0);
    SAYS(0, "units", "explain", "llama-1m", "--svg", link);
    CHECK_EQ(lstat(link, &info), 0);
    CHECK(S_ISLNK(info.st_mode));
    text = test_read_file(picture, NULL);
    CHECK_CONTAINS(text, "<svg xmlns=");
    CHECK_EQ(unlink(picture), 0);
    SAYS(1, "link.svg': it is a symbolic link that leads nowhere", "explain", "llama-1m", "--svg", link);
    CHECK_EQ(rmdir(folder), 0);
    SAYS(1, "--svg: '/dev/null' exists and is not a file", "explain", "llama-1m", "--svg=/dev/null");
}

FIXTURE_TEST(options_stand_anywhere_and_win_over_the_file)
{
    program p = RUN(0, "train", "--training.steps=7", "--print-config", f->config, "--optimizer.lr=0.5");

    CHECK_CONTAINS(p.output, "  steps: 7\n");
    CHECK_CONTAINS(p.output, "  lr: 0.5\n");
    CHECK_CONTAINS(p.output, "  seq_len: 32\n");
    CHECK_CONTAINS(p.output, "  # weight_decay:\n");
    p = RUN(0, "train", "--training.steps", "7", "--print-config", "-np", "2", f->config, "--optimizer.lr", "0.5",
            "--training.steps", "8", "--training.global_batch_size", "-1");
    CHECK_CONTAINS(p.output, "  steps: 8\n");
    CHECK_CONTAINS(p.output, "  lr: 0.5\n");
    CHECK_CONTAINS(p.output, "  global_batch_size: -1\n");
}

FIXTURE_TEST(a_list_of_the_command_line_is_one)
{
    SAYS(0, "  path: a.txt\n", "train", f->config, "--print-config", "--data.path=a.txt");
    SAYS(0, "  path: [a.txt, 'b c.txt', d.txt, e.txt]\n", "train", "--data.path", "a.txt", f->config, "--print-config",
         "--data.path=['b c.txt', d.txt]", "--data.path", "e.txt");
    SAYS(0, "  # path:\n", "train", f->config, "--print-config", "--data.path=");
    SAYS(0, "  path: a.txt\n", "train", f->config, "--print-config", "--data.path=", "--data.path=a.txt");
    SAYS(0, "  frozen: [lm_head.weight, model.norm.weight]\n", "train", f->config, "--print-config",
         "--model.frozen=lm_head.weight", "--model.frozen", "model.norm.weight");
    SAYS(0, "  wrap_classes: [LlamaDecoderLayer, Embedding]\n", "train", f->config, "--print-config",
         "--parallelism.wrap_classes=LlamaDecoderLayer", "--parallelism.wrap_classes", "Embedding");
}

FIXTURE_TEST(a_config_that_cannot_be_is_status_1)
{
    char *other = test_path(f->directory, "other.yaml"), expected[512];

    SAYS(1, "cannot open '/nonexistent.yaml'", "train", "/nonexistent.yaml");
    test_write_file(other, "training:\n  stepz: 3\n", 21);
    snprintf(expected, sizeof expected, "fsdp: %s:2: training.stepz is not a key of training; did you mean 'steps'?",
             other);
    SAYS(1, expected, "train", other);
    SAYS(1, "training.global_batch_size 12 is not a multiple of 8 (training.local_batch_size 4 x 2 ranks)", "train",
         f->config, "-n", "2", "--training.global_batch_size=12");
    SAYS(1, "parallelism.data_parallel_shard_degree is 3, but there are 2 ranks: expected -1 or 2", "train", f->config,
         "-n", "2", "--parallelism.data_parallel_shard_degree=3");
    SAYS(1, "no model preset 'llama-2m', only gpt-10m,", "train", f->config, "--model.preset=llama-2m");
    SAYS(1, "model.dim 48 does not fit 5 heads: the nearest that do: 45 and 50", "train", f->config,
         "--model.preset=gpt-10m", "--model.n_heads=5");
    SAYS(1, "model.dim 127 does not fit 3 heads of an even number each: the nearest that do: 126 and 132", "train",
         f->config, "--model.dim", "127");
    SAYS(1, "model.dim 4 is too small for 3 heads: it must be at least 6", "train", f->config, "--model.dim=4");
    SAYS(1, "model.n_kv_heads 2 does not divide 3 heads: the nearest that do: 1 and 3", "train", f->config,
         "--model.n_kv_heads=2");
    SAYS(1, "model.n_kv_heads is 4: expected at most the number of heads, 3", "train", f->config,
         "--model.n_kv_heads=4");
    SAYS(1, "training.seq_len 65 is more than the 64 positions of the model: set training.seq_len=64", "train",
         f->config, "--training.seq_len=65");
}

FIXTURE_TEST(a_umask_that_takes_the_own_rights_is_refused)
{
    const char *const argv[] = {"/bin/sh", "-c", "umask 777; exec \"$0\" train llama-1m", PROGRAM, NULL};
    program p = program_run(f->directory, 1, argv);

    CHECK_CONTAINS(p.output, "umask 777 takes your own rights from files and folders that you make");
}
