/* The device that a command computes on: which there are, what keeps a GPU from being used, what the log says of the
 * one that was chosen, and what ranks do of which one has none. The GPU is a fake one (tests/backend/fakecuda): its
 * plug-in lies beside the program. */
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "cli/fixture.h"
#include "device/plugin.h"
#include "fsdp/fsdp.h"

#define PLUGIN TEST_BINARY_DIR "/tests/libfsdp-cuda.so"
#define CARD "cuda:0 (fake GPU, compute capability 9.0, 4.00GiB of memory, "
#define NONE "there is no GPU here: nvidia-smi lists"

/* All commands that compute, on a device; `f->model` must be there. */
#define ALL_SAY(expected, what, device)                                                                     \
    do {                                                                                                    \
        SAYS(expected, what, "train", f->config, "--training.device=" device, "--training.steps=1",         \
             "--metrics.jsonl=", "--export.path=");                                                         \
        SAYS(expected, what, "eval", f->model, "--data", f->data, "--steps=1", "--device", device);         \
        SAYS(expected, what, "generate", f->model, "--tokens=1", "--max-new-tokens=1", "--device=" device); \
    } while (0)

/* Makes the config's value another one of as many letters. */
static void shorten(const fixture *f, const char *old, const char *new)
{
    size_t bytes;
    char *text = test_read_file(f->config, &bytes), *at = CHECK_PTR(memmem(text, bytes, old, strlen(old)));

    memcpy(at, new, strlen(old));
    test_write_file(f->config, text, bytes);
}

/* Gives a step few tokens, too: each thread of the fake GPU runs by itself. */
static void need_gpu(const fixture *f)
{
    test_skip_if(access(PLUGIN, F_OK) != 0, "there is no plug-in for the fake GPU");
    shorten(f, "  seq_len: 32\n", "  seq_len: 16\n");
    shorten(f, "local_batch_size: 4\n", "local_batch_size: 1\n");
}

static void make_model(const fixture *f)
{
    RUN(0, "train", f->config, "--training.steps=2", "--metrics.jsonl=");
}

/* ---- which there are ---- */

FIXTURE_TEST(the_devices_of_this_machine_are_listed)
{
    need_gpu(f);
    setenv("FSDP_FAKECUDA_MEMORY", "3000000000", 1);
    SAYS(0,
         "\ncuda:1  fake GPU, compute capability 9.0, 2.79GiB of memory, 2.79GiB of it free; its driver is for CUDA ",
         "inspect", "--devices");
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    SAYS(0, " core", "inspect", "--devices");
    setenv("FSDP_FAKECUDA_DEVICES", "3", 1); /* torchrun's word */
    SAYS(0, "2 of 3", "run", "--nproc-per-node=gpu", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE");
    SAYS(2, "inspect: --devices is of this machine: leave out the path", "inspect", "--devices", f->model);
    SAYS(2, "inspect: --devices is of this machine: leave out --parts", "inspect", "--devices", "--parts");
    unsetenv("FSDP_FAKECUDA_DEVICES");
    unsetenv("FSDP_FAKECUDA_MEMORY");
    SAYS(0, "'fsdp inspect --devices' lists the devices of this machine", "train", "--help", "training");
    SAYS(0, "'fsdp inspect --devices' lists what is here", "eval", "--help");
    SAYS(0, "'fsdp inspect --devices' lists what is here", "generate", "--help");
}

static const json_t *device_of(const json_t *list, size_t i, const char *name)
{
    const json_t *device = json_array_get(json_object_get(list, "devices"), i);

    CHECK_STRING(json_string_value(json_object_get(device, "name")), name);
    return device;
}

FIXTURE_TEST(programs_get_the_devices_as_json)
{
    program p;
    json_t *list;
    const json_t *gpu;

    need_gpu(f);
    p = RUN(0, "inspect", "--devices", "--json");
    list = CHECK_PTR(json_loads(p.output, 0, NULL));
    CHECK_EQ(json_array_size(json_object_get(list, "devices")), 3);
    CHECK(json_integer_value(json_object_get(device_of(list, 0, "cpu"), "cores")) > 0);
    CHECK(json_integer_value(json_object_get(device_of(list, 0, "cpu"), "memory_bytes")) > 0);
    gpu = device_of(list, 2, "cuda:1");
    CHECK_STRING(json_string_value(json_object_get(gpu, "card")), "fake GPU");
    CHECK_STRING(json_string_value(json_object_get(gpu, "compute_capability")), "9.0");
    CHECK_EQ(json_integer_value(json_object_get(gpu, "memory_bytes")), 4LL << 30);
    CHECK_EQ(json_integer_value(json_object_get(gpu, "free_bytes")), 4LL << 30);
    json_decref(list);

    setenv("FSDP_FAKECUDA_DRIVER", "0", 1);
    p = RUN(0, "inspect", "--devices", "--json");
    unsetenv("FSDP_FAKECUDA_DRIVER");
    list = CHECK_PTR(json_loads(p.output, 0, NULL));
    CHECK_EQ(json_array_size(json_object_get(list, "devices")), 2);
    CHECK_CONTAINS(json_string_value(json_object_get(device_of(list, 1, "cuda"), "error")), "there is no CUDA driver");
    json_decref(list);
}

/* ---- what the card can do ---- */

FIXTURE_TEST(the_peak_is_that_of_the_card_or_of_the_config)
{
    need_gpu(f);
    SAYS(0,
         "peak:   66.9 TFLOP/s (an estimate: 'fake GPU' is in no table, and has 132 multiprocessors x 256 FLOP a clock "
         "x "
         "1.980 GHz)",
         "train", f->config, "--training.device=cuda", "--training.steps=1", "--metrics.jsonl=");
    SAYS(0, " (metrics.peak_tflops 50)", "train", f->config, "--training.device=cuda", "--training.steps=1",
         "--metrics.jsonl=", "--metrics.peak_tflops=50");
    setenv("FSDP_FAKECUDA_NAME", "NVIDIA H200", 1);
    SAYS(0, "peak:   67.0 TFLOP/s (NVIDIA H200: dense products of float32, by its data sheet)", "train", f->config,
         "--training.device=cuda", "--training.steps=1", "--metrics.jsonl=");
    SAYS(0, "peak:   989 TFLOP/s (NVIDIA H200: dense products of bfloat16, by its data sheet)", "train", f->config,
         "--training.device=cuda", "--training.steps=1",
         "--metrics.jsonl=", "--training.mixed_precision_param=bfloat16");
    setenv("FSDP_FAKECUDA_NAME", "NVIDIA H200 MIG 1g.18gb", 1);
    SAYS(0, "(an estimate: 'NVIDIA H200 MIG 1g.18gb' is in no table, and has 132", "train", f->config,
         "--training.device=cuda", "--training.steps=1", "--metrics.jsonl=");
    setenv("FSDP_FAKECUDA_CAPABILITY", "190", 1); /* of which nobody knows what it does in a clock */
    SAYS(0, "peak:   not known, so there is no MFU: 'NVIDIA H200 MIG 1g.18gb' is in no table: set metrics.peak_tflops",
         "train", f->config, "--training.device=cuda", "--training.steps=1", "--metrics.jsonl=");
}

/* Sets variables of the fake GPUs; NULL: not set. */
static void set_links(const char *links, const char *without, const char *peers)
{
    const char *const names[] = {"FSDP_FAKENVML_LINKS", "FSDP_FAKENVML_WITHOUT", "FSDP_FAKECUDA_PEERS"};
    const char *const values[] = {links, without, peers};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
}

#define TRAINED "train", f->config, "--training.steps=1", "--metrics.jsonl=", "--comm.carrier=staged"

FIXTURE_TEST(a_run_says_by_what_its_gpus_are_joined)
{
    static const struct {
        const char *links, *without, *peers, *text;
    } cases[] = {
        {"18", NULL, NULL, "3 x NVIDIA H200, joined by NVLink (18 links each)\n"},
        {"0", NULL, NULL, "3 x NVIDIA H200, joined through PCIe\n"},
        {NULL, NULL, NULL, "3 x NVIDIA H200, joined by what NVML does not tell\n"},
        {"4", "0-1,1-2", NULL, "joined by NVLink (4 links each); some pairs through PCIe: 0-1, 1-2\n"},
        {"4", "0-1", "0-2", "(4 links each); some pairs through PCIe: 0-1; some pairs through the host: 0-2\n"},
        {"0", NULL, "0-2,1-2", "joined through PCIe; some pairs through the host: 0-2, 1-2\n"},
        {NULL, NULL, "0", "joined through the host alone: none reaches another's memory\n"},
    };

    need_gpu(f);
    setenv("FSDP_FAKECUDA_DEVICES", "3", 1);
    setenv("FSDP_FAKECUDA_NAME", "NVIDIA H200", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_links(cases[i].links, cases[i].without, cases[i].peers);
        SAYS(0, cases[i].text, TRAINED, "--training.device=cuda", "-n", "3");
    }
    set_links("18", NULL, NULL);
    SAYS(0, "GPUs of this machine: 2 x NVIDIA H200", TRAINED, "--training.device=cuda", "-n", "2");
    SAYS(0, "(rank 0's)\nlinks:  2 x NVIDIA H200, joined by NVLink (18 links each)\n", "compare", f->config, "-n", "2",
         "--strategies=ddp", "--rounds=1", "--steps=1", "--worlds=2", "--training.device=cuda");
    unsetenv("FSDP_FAKECUDA_NAME");
    set_links(NULL, NULL, NULL);
}

FIXTURE_TEST(a_run_on_one_gpu_says_nothing_of_links)
{
    need_gpu(f);
    setenv("FSDP_FAKENVML_LINKS", "18", 1);
    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    CHECK(!strstr(RUN(0, TRAINED, "--training.device=cuda").output, "GPUs of this machine"));
    CHECK(!strstr(RUN(0, TRAINED, "--training.device=cuda:1", "-n", "2").output, "GPUs of this machine"));
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    CHECK(!strstr(RUN(0, TRAINED, "--training.device=cuda", "-n", "2").output, "GPUs of this machine"));
}

/* ---- what keeps a GPU from being used ---- */

FIXTURE_TEST(every_reason_against_a_gpu_is_told_by_every_command)
{
    static const struct {
        const char *variable, *value, *reason;
    } cases[] = {
        {"FSDP_FAKECUDA_DRIVER", "0", "there is no CUDA driver here: install NVIDIA's driver (nvidia-smi shows it;"},
        {"FSDP_FAKECUDA_DRIVER", "11080",
         "the CUDA driver is too old: it knows CUDA 11.8, and this program was built "},
        {"FSDP_FAKECUDA_DEVICES", "0", NONE},
        {"FSDP_FAKECUDA_CAPABILITY", "70",
         "cannot open device 'cuda:0': fake GPU is too old: its compute capability is 7.0, and the kernels of this "},
        {"FSDP_FAKECUDA_FAIL", "cudaGetDeviceCount:1:999", "CUDA does not start: unknown error (cudaErrorUnknown)"},
        {"FSDP_FAKECUDA_FAIL", "cudaMemGetInfo:1:999",
         "cannot open device 'cuda:0': device 'cuda:0' has failed and cannot be used any more: cudaMemGetInfo: "},
        {"FSDP_FAKECUDA_FAIL", "cudaStreamCreateWithPriority:1:2", "cuda:0 has no memory left"},
    };

    need_gpu(f);
    make_model(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].variable, cases[i].value, 1);
        ALL_SAY(1, cases[i].reason, "cuda");
        SAYS(0, cases[i].reason, "inspect", "--devices");
        if (!test_takes((int)i, 3, 3)) { /* who says it by the same call */
            unsetenv(cases[i].variable);
            continue;
        }
        SAYS(0, "no GPU is used: ", "eval", f->model, "--data", f->data, "--steps=1", "--device=auto");
        SAYS(0, cases[i].reason, "generate", f->model, "--tokens=1", "--max-new-tokens=1", "--device=auto");
        unsetenv(cases[i].variable);
    }
    ALL_SAY(1, "cannot open device 'cuda:7': there are 2 GPUs here, from cuda:0 on (nvidia-smi lists", "cuda:7");
    setenv("FSDP_FAKECUDA_DRIVER", "0", 1);
    SAYS(0, "no GPU is used: there is no CUDA driver here", "train", f->config, "--training.steps=1",
         "--training.device=auto", "--metrics.jsonl=", "--export.path=");
    /* Nothing was begun. */
    SAYS(1, "there is no CUDA driver here", "train", f->config, "--training.device=cuda", "--checkpoint.folder=ckpt",
         "--data.path=/nonexistent");
    unsetenv("FSDP_FAKECUDA_DRIVER");
    CHECK(access("ckpt", F_OK) != 0);
}

/* A device that fails after it was opened, when its memory is looked at. */
FIXTURE_TEST(a_gpu_that_is_lost_is_not_taken_for_one_without_memory)
{
    program p;

    need_gpu(f);
    setenv("FSDP_FAKECUDA_FAIL", "cudaMemGetInfo:2:999", 1);
    SAYS(0, "\ncuda:0  cannot be used: device 'cuda:0' has failed and ", "inspect", "--devices");
    SAYS(0, "\"error\": \"device 'cuda:0' has failed and ", "inspect", "--devices", "--json");
    p = RUN(1, "train", f->config, "--training.device=cuda", "--training.steps=1",
            "--metrics.jsonl=", "--export.path=");
    CHECK_CONTAINS(p.output, "device 'cuda:0' has failed and cannot be used any more: cudaMemGetInfo: ");
    CHECK(!strstr(p.output, "take a smaller model"));
}

/* The second of the ranks is lost while it gives what a checkpoint saves. */
FIXTURE_TEST(a_run_whose_gpu_is_lost_in_a_checkpoint_does_not_say_that_it_goes_on)
{
    char script[2000];
    program p;

    need_gpu(f);
    snprintf(script, sizeof script,
             "test $RANK != $LOST || export FSDP_FAKECUDA_FAIL=cudaMemcpyAsync:60:999:lost; "
             "exec %s train %s --training.device=cuda --training.steps=2 --checkpoint.folder=%s/lost "
             "--checkpoint.interval=1 --metrics.jsonl= --export.path=",
             PROGRAM, f->config, f->directory);
    for (int ranks = 1; ranks <= 2; ranks++) {
        setenv("LOST", ranks == 1 ? "0" : "1", 1);
        p = RUN(1, "run", "-n", ranks == 1 ? "1" : "2", "--", "sh", "-c", script);
        CHECK_CONTAINS(p.output, "step:  1  ");
        CHECK_CONTAINS(p.output, "has failed and cannot be used any more: cudaMemcpyAsync: ");
        CHECK(!strstr(p.output, "the run goes on"));
        CHECK(!strstr(p.output, "step:  2  "));
    }
}

/* The host is a step ahead there: a trace begins and ends with the steps that it is of all the same. */
FIXTURE_TEST(a_trace_has_all_that_a_gpu_ran_in_its_steps)
{
    char *path = test_path(f->directory, "trace.json"), set[300], steps[60];
    int issued[3];

    need_gpu(f);
    snprintf(set, sizeof set, "--metrics.trace.path=%s", path);
    for (int last = 2; last < 5; last++) { /* each step has the same kernels */
        program p;
        char *text;

        snprintf(steps, sizeof steps, "--metrics.trace.steps=2-%d", last);
        p = RUN(0, "train", f->config, "--training.device=cuda", "--training.steps=5", "--export.path=", set, steps);
        CHECK_EQ(test_count(p.output, "a trace was written to"), 1);
        text = test_read_file(path, NULL);
        issued[last - 2] = test_count(text, "\"cat\":\"kernel\"");
    }
    CHECK(issued[0] > 0);
    CHECK_EQ(issued[1], 2 * issued[0]);
    CHECK_EQ(issued[2], 3 * issued[0]);
}

/* A library that cannot be opened is told when the first product needs it. */
FIXTURE_TEST(a_library_of_nvidia_s_that_is_missing_is_named_by_every_command)
{
    char *file = test_path(f->directory, "libcublasLt.so.13");

    need_gpu(f);
    make_model(f);
    test_write_file(file, "none", 4);
    setenv("FSDP_CUDA_LIBRARIES", f->directory, 1);
    ALL_SAY(1, "cannot open libcublasLt.so.13, which matrix products on a GPU need: ", "cuda");
}

FIXTURE_TEST(a_plug_in_of_another_build_is_told_with_its_version_only_if_that_is_another)
{
    static const fsdp__plugin_shape same = FSDP__PLUGIN_SHAPE;
    static const char *const says[] = {
        "libfsdp-cuda.so is of another build than this program: install both from one build",
        "libfsdp-cuda.so is of another build than this program (version 9.9, here " FSDP_VERSION "): install both"};
    char *folder = test_path(f->directory, "plugins"), *path = test_path(f->directory, "plugins/libfsdp-cuda.so");

    need_gpu(f);
    CHECK_EQ(mkdir(folder, 0700), 0);
    setenv("FSDP_PLUGIN_PATH", folder, 1);
    for (int i = 0; i < 2; i++) {
        size_t count;
        char *bytes = test_read_file(PLUGIN, &count);
        fsdp__plugin_shape *shape = CHECK_PTR(memmem(bytes, count, &same, sizeof same)), other = same;

        if (i == 0)
            other.kernels++;
        else
            strcpy(other.version, "9.9");
        memcpy(shape, &other, sizeof other);
        test_write_file(path, bytes, count);
        SAYS(1, says[i], "train", f->config, "--training.device=cuda");
    }
}

/* Programs beside which there is no plug-in, or none that is whole. */
FIXTURE_TEST(a_plug_in_that_is_missing_or_damaged_is_told_with_what_to_do)
{
    char *alone = test_path(f->directory, "fsdp"), *plugin = test_path(f->directory, "libfsdp-cuda.so"), *bytes;
    const char *const list[] = {alone, "inspect", "--devices", NULL};
    const char *const train[] = {alone, "train", f->config, "--training.device=cuda", NULL};
    static const char other[200] = "a file of another kind";
    size_t count;
    program p;

    bytes = test_read_file(PROGRAM, &count);
    test_write_file(alone, bytes, count);
    CHECK_EQ(chmod(alone, 0700), 0);
    p = program_run(f->directory, 1, train);
    CHECK_CONTAINS(p.output, "there is no libfsdp-cuda.so in FSDP_PLUGIN_PATH (not set), ");
    CHECK_CONTAINS(p.output, "it is built and installed where CUDA's compiler nvcc is found");
    p = program_run(f->directory, 0, list);
    CHECK_CONTAINS(p.output, "\ncuda    cannot be used: there is no libfsdp-cuda.so in FSDP_PLUGIN_PATH (not set), ");
    test_write_file(plugin, other, sizeof other);
    p = program_run(f->directory, 1, train);
    CHECK_CONTAINS(p.output, "libfsdp-cuda.so: it is not a library of this system: install it again");
    if (access(PLUGIN, F_OK) == 0) {
        bytes = test_read_file(PLUGIN, &count);
        test_write_file(plugin, bytes, count / 8); /* the rest of it may be for debuggers alone */
        p = program_run(f->directory, 0, list);
        CHECK_CONTAINS(p.output, "libfsdp-cuda.so: it is cut off, with ");
    }
}

FIXTURE_TEST(names_that_are_no_device_are_refused_before_anything_is_read)
{
    static const char *const wrong[] = {"gpu",     "CUDA",    "cuda:", "cuda:-1", "cuda:01",
                                        "cuda:16", "cuda:1 ", "cpu:0", "meta",    "cuda:123456"};
    char option[40], expected[120];

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(option, sizeof option, "--training.device=%s", wrong[i]);
        snprintf(expected, sizeof expected,
                 "training.device is '%s': expected cpu, cuda, cuda:N (N from 0 to 15) or auto", wrong[i]);
        SAYS(2, expected, "train", "--model.preset=none", option);
        snprintf(expected, sizeof expected, "fsdp: --device is '%s': expected cpu, cuda, cuda:N ", wrong[i]);
        SAYS(2, expected, "generate", "/nonexistent", "--tokens=1", "--device", wrong[i]);
        SAYS(2, expected, "eval", "/nonexistent", "--data", "/nonexistent", "--device", wrong[i]);
    }
}

/* ---- what was chosen ---- */

FIXTURE_TEST(the_log_says_which_device_was_chosen)
{
    program p;

    need_gpu(f);
    make_model(f);
    ALL_SAY(0, "device: " CARD, "auto");
    SAYS(0, "device: cuda:1 (fake GPU", "eval", f->model, "--data", f->data, "--steps=1", "--device=cuda:1");
    SAYS(0, "\ndevice: " CARD, "compare", f->config, "-n", "1", "--strategies=ddp", "--rounds=1", "--steps=1",
         "--worlds=1", "--training.device=cuda");
    SAYS(0, "\"device\": \"" CARD, "compare", f->config, "-n", "1", "--strategies=ddp", "--rounds=1", "--steps=1",
         "--worlds=1", "--training.device=cuda", "--json");
    p = RUN(0, "generate", f->model, "--tokens=1", "--max-new-tokens=1", "--device=cpu");
    CHECK(!strstr(p.output, "device"));
    setenv("FSDP_FAKECUDA_DEVICES", "0", 1);
    SAYS(0, "\ndevice: cpu\n", "compare", f->config, "-n", "1", "--strategies=ddp", "--rounds=1", "--steps=1",
         "--worlds=1", "--training.device=auto");
    SAYS(0, "peak", "explain", f->config, "-n", "2", "--training.device=cuda"); /* computes nothing */
}

FIXTURE_TEST(of_several_ranks_the_log_says_whose_device_it_names)
{
    need_gpu(f);
    SAYS(0, "of it free) (rank 0's)\n", "train", f->config, "-n", "2", "--training.device=cuda", "--training.steps=1",
         "--metrics.jsonl=", "--export.path=");
    SAYS(0, "of it free) (rank 0's)\n", "compare", f->config, "-n", "2", "--strategies=ddp", "--rounds=1", "--steps=1",
         "--worlds=2", "--training.device=cuda");
    SAYS(0, "of it free)\n", "train", f->config, "--training.device=cuda", "--training.steps=1",
         "--metrics.jsonl=", "--export.path=");
}

/* ---- ranks of which one has none ---- */

/* Runs a command on so many ranks, of which `without` is on a machine without a GPU, and checks what it prints. */
static void ranks_say(const fixture *f, int expected, int ranks, int without, const char *what, const char *command)
{
    char count[16], script[2000];
    program p;

    snprintf(count, sizeof count, "%d", ranks);
    snprintf(script, sizeof script, "test $RANK != %d || export FSDP_FAKECUDA_DEVICES=0; exec %s %s", without, PROGRAM,
             command);
    p = program_run(f->directory, expected,
                    (const char *const[]){PROGRAM, "run", "-n", count, "--", "sh", "-c", script, NULL});
    CHECK_CONTAINS(p.output, what);
    CHECK(!strstr(p.output, "device: "));
    CHECK(expected == 0 || !strstr(p.output, "step:"));
}

FIXTURE_TEST(ranks_of_which_one_has_no_gpu_use_none_or_fail_together)
{
    static const struct {
        int ranks, without;
    } cases[] = {{2, 0}, {3, 1}, {2, 1}};
    char command[1000], expected[200];

    need_gpu(f);
    make_model(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "train %s --training.steps=1 --metrics.jsonl= --export.path= ", f->config);
        if (cases[i].without == 0)
            snprintf(expected, sizeof expected, "[rank 0] no GPU is used: " NONE);
        else
            snprintf(expected, sizeof expected, "[rank 0] no GPU is used: rank %d: " NONE, cases[i].without);
        strcat(command, "--training.device=auto");
        ranks_say(f, 0, cases[i].ranks, cases[i].without, expected, command);
        strcat(command, " --training.device=cuda");
        snprintf(expected, sizeof expected, "rank %d: " NONE, cases[i].without);
        ranks_say(f, 1, cases[i].ranks, cases[i].without, expected, command);
    }
    snprintf(command, sizeof command, "eval %s --data %s --steps=2 --device=auto", f->model, f->data);
    ranks_say(f, 0, 2, 1, "no GPU is used: rank 1: " NONE, command);
    snprintf(command, sizeof command, "eval %s --data %s --steps=2 --device=cuda", f->model, f->data);
    ranks_say(f, 1, 2, 1, NONE, command);
    snprintf(command, sizeof command, "generate %s --tokens=1 --max-new-tokens=1 --device=cuda", f->model);
    ranks_say(f, 1, 2, 1, "rank 1: " NONE, command);
}

/* ---- what is computed ---- */

static double number_behind(const char *text, const char *name)
{
    const char *at = CHECK_PTR(strstr(text, name));

    return strtod(at + strlen(name), NULL);
}

/* The largest difference of two exports' weights. */
static double difference(const char *first, const char *second)
{
    fsdp_weights *files[2];
    double most = 0;

    CHECK_OK(fsdp_weights_open(first, &files[0]));
    CHECK_OK(fsdp_weights_open(second, &files[1]));
    CHECK_EQ(fsdp_weights_count(files[0]), fsdp_weights_count(files[1]));
    for (int64_t i = 0; i < fsdp_weights_count(files[0]); i++) {
        const fsdp_weights_entry *e[2] = {fsdp_weights_at(files[0], i), fsdp_weights_at(files[1], i)};
        int64_t count = (int64_t)e[0]->bytes / (int64_t)sizeof(float);
        float *values[2];

        CHECK_STRING(e[0]->name, e[1]->name);
        CHECK_EQ(e[0]->dtype, FSDP_F32);
        CHECK_EQ(e[0]->bytes, e[1]->bytes);
        for (int k = 0; k < 2; k++) {
            values[k] = calloc((size_t)count, sizeof(float));
            CHECK_OK(fsdp_weights_read(files[k], e[k], 0, count, values[k]));
        }
        for (int64_t at = 0; at < count; at++)
            most = fmax(most, fabs((double)values[0][at] - (double)values[1][at]));
        free(values[0]);
        free(values[1]);
    }
    fsdp_weights_close(files[0]);
    fsdp_weights_close(files[1]);
    return most;
}

/* Trains with SGD, which a difference in the last bits does not lead elsewhere. */
static void train_on(const fixture *f, const char *device, const char *ranks, const char *path)
{
    char export[600];

    snprintf(export, sizeof export, "--export.path=%s", path);
    RUN(0, "train", f->config, "--training.steps=2", "--training.global_batch_size=4", "--training.local_batch_size=2",
        "--optimizer.name=sgd", "--optimizer.lr=0.1", "--metrics.jsonl=", export, "--export.overwrite=true",
        "--training.device", device, "-n", ranks);
}

/* Weights, text and loss of a model that was trained, asked and evaluated on a GPU are those of the CPU. */
FIXTURE_TEST(what_a_gpu_trains_generates_and_evaluates_is_what_the_cpu_does)
{
    char *other = test_path(f->directory, "other");
    program p, q;

    need_gpu(f);
    train_on(f, "cpu", "1", f->model);
    for (int ranks = 1; ranks <= 2; ranks++) {
        train_on(f, "cuda", ranks == 1 ? "1" : "2", other);
        CHECK(difference(f->model, other) < 1e-6);
    }
    p = RUN(0, "generate", f->model, "--tokens=84,104,101", "--max-new-tokens=6", "--temperature=0");
    q = RUN(0, "generate", other, "--tokens=84,104,101", "--max-new-tokens=6", "--temperature=0", "--device=cuda", "-n",
            "2");
    CHECK_CONTAINS(q.output, p.output);
    p = RUN(0, "eval", f->model, "--data", f->data, "--steps=4");
    q = RUN(0, "eval", other, "--data", f->data, "--steps=4", "--device=cuda", "-n", "2");
    CHECK_NEAR(number_behind(q.output, "loss: "), number_behind(p.output, "loss: "), 1e-5);
}
