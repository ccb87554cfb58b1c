/* fsdp convert: there and back at any number of ranks, with all that belongs to it; dtypes; what is refused, and that
 * nothing is left then. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "base/file.h"
#include "cli/fixture.h"
#include "cli/saved.h"
#include "format/staging.h"
#include "fsdp/checkpoint.h"
#include "fsdp/hub.h"

static void train(const fixture *f)
{
    RUN(0, "train", f->config, "--training.steps=1");
}

static int count_files(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    for (struct dirent *e; directory && (e = readdir(directory)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (directory)
        closedir(directory);
    return count;
}

FIXTURE_TEST(a_folder_becomes_a_checkpoint_and_one_again)
{
    static const char tokenizer[] = "{\"model\": 1}";
    static const char *const ranks[] = {"1", "2", "3", "5"};
    char *file = test_path(f->directory, "model/tokenizer.json");

    train(f);
    test_write_file(file, tokenizer, sizeof tokenizer - 1);
    for (size_t i = 0; i < 4; i++) {
        char name[40], *checkpoints, *back, *copy, *read;
        size_t bytes;

        snprintf(name, sizeof name, "of %s", ranks[i]);
        checkpoints = test_path(f->directory, name);
        snprintf(name, sizeof name, "back %s", ranks[i]);
        back = test_path(f->directory, name);
        SAYS(0, "written to", "convert", f->model, checkpoints, "--ranks", ranks[i], "--step", "7");
        SAYS(0, "21 equal, 0 different, 0 only in A, 0 only in B", "diff", checkpoints, f->model);
        SAYS(0, "model written to", "convert", checkpoints, back);
        SAYS(0, "21 equal, 0 different, 0 only in A, 0 only in B", "diff", f->model, back);
        snprintf(name, sizeof name, "back %s/tokenizer.json", ranks[i]);
        copy = test_path(f->directory, name);
        read = test_read_file(copy, &bytes);
        CHECK_EQ(bytes, sizeof tokenizer - 1);
        CHECK_BYTES(read, tokenizer, bytes);
    }
}

/* ---- tokens ---- */

static void replace(const char *path, const char *from, const char *to)
{
    size_t bytes;
    char *text = test_read_file(path, &bytes), *at = CHECK_PTR(strstr(text, from));
    char *other = malloc(bytes + strlen(to) + 1);
    int before = (int)(at - text);

    sprintf(other, "%.*s%s%s", before, text, to, at + strlen(from));
    test_write_file(path, other, strlen(other));
    free(other);
}

/* A key that fsdp does not know, with what no parser holds. */
#define VENDOR "\"vendor\": {\"z\": NaN, \"a\": [1e999, \"\\udead\"]}"

/* Of a folder that is in the fixture's. */
static void check_tokens(const fixture *f, const char *folder, const char *generation)
{
    char *path = test_path(f->directory, folder), *file, *text;
    char name[100];
    fsdp_model_config m;
    size_t bytes;

    CHECK_OK(fsdp_hub_read_config(path, &m));
    CHECK_EQ(m.eos_token_count, 2);
    CHECK_EQ(m.eos_tokens[0], 5);
    CHECK_EQ(m.eos_tokens[1], 6);
    CHECK(m.has_bos_token && m.bos_token == 4);
    CHECK(m.has_pad_token && m.pad_token == 7);
    CHECK(m.has_unk_token && m.unk_token == 8);
    snprintf(name, sizeof name, "%s/generation_config.json", folder);
    file = test_path(f->directory, name);
    text = test_read_file(file, &bytes);
    CHECK_CONTAINS(text, generation);
    file = test_path(path, "config.json");
    text = test_read_file(file, &bytes);
    CHECK_CONTAINS(text, VENDOR);
}

#define TRAIN                                                                            \
    "$FSDP train --model.path=model --training.seq_len=16 --training.steps=1 --training" \
    ".local_batch_size=1"

/* A command in the fixture's folder, which says `part`. */
static void in_folder(const fixture *f, const char *command, const char *part)
{
    char script[1000];
    program p;

    setenv("FSDP", PROGRAM, 1);
    snprintf(script, sizeof script, "cd '%s' && exec %s", f->directory, command);
    p = program_run(f->directory, 0, (const char *const[]){"/bin/sh", "-c", script, NULL});
    CHECK_CONTAINS(p.output, part);
}

FIXTURE_TEST(tokens_stay_what_they_are_on_every_way)
{
    static const char generation[] = "{\"eos_token_id\": [6, 5, 9], \"temperature\": 0.6}\n";
    char *config = test_path(f->directory, "model/config.json");
    char *file = test_path(f->directory, "model/generation_config.json");

    train(f);
    replace(config, "\"eos_token_id\": null", "\"eos_token_id\": [5, 6], \"pad_token_id\": 7, \"unk_token_id\": 8");
    replace(config, "\"bos_token_id\": null", "\"bos_token_id\": 4, " VENDOR);
    test_write_file(file, generation, sizeof generation - 1);
    in_folder(f, "$FSDP convert model there --ranks 2", "written");
    check_tokens(f, "there/step-0", generation);
    in_folder(f, "$FSDP convert there back", "written");
    check_tokens(f, "back", generation);
    in_folder(f, TRAIN " --data.path=data.txt --checkpoint.folder=runs --export.path=tuned", "tuned");
    check_tokens(f, "tuned", generation);
    check_tokens(f, "runs/step-1", generation);
    test_write_file(file, "{", 1); /* nobody needs it in order to train */
    in_folder(f, TRAIN " --data.path=data.txt --export.path=other", "generation_config.json is not copied: ");
    check_tokens(f, "other", "\"pad_token_id\": 7");
}

FIXTURE_TEST(a_smaller_vocabulary_drops_tokens_that_it_has_not)
{
    static const char generation[] = "{\"eos_token_id\": [5, 6]}";
    char *config = test_path(f->directory, "model/config.json"), *data = test_path(f->directory, "few.u16"), *text;
    char *file = test_path(f->directory, "model/generation_config.json"), *path = test_path(f->directory, "small");
    uint16_t tokens[100];
    fsdp_model_config m;
    size_t bytes;

    train(f);
    replace(config, "\"eos_token_id\": null", "\"eos_token_id\": [5, 6], \"pad_token_id\": 7");
    test_write_file(file, generation, sizeof generation - 1);
    for (int i = 0; i < 100; i++)
        tokens[i] = (uint16_t)(i % 6);
    test_write_file(data, tokens, sizeof tokens);
    in_folder(f, TRAIN " --data.path=few.u16 --model.init=random --model.vocab_size=6 --export.path=small", "small");
    CHECK_OK(fsdp_hub_read_config(path, &m));
    CHECK_EQ(m.eos_token_count, 1);
    CHECK_EQ(m.eos_tokens[0], 5);
    CHECK(!m.has_pad_token);
    file = test_path(path, "generation_config.json");
    text = test_read_file(file, &bytes);
    CHECK_CONTAINS(text, "\"eos_token_id\": 5\n");
}

FIXTURE_TEST(a_checkpoint_is_cut_for_other_ranks_with_all_that_it_has)
{
    static const char *const ranks[] = {"1", "2", "3", "4", "8"};
    char *first = test_path(f->directory, "first");
    saved s = {.model = f->model, .folder = first, .step = 30, .factor = 1};

    train(f);
    saved_make(3, &s);
    for (size_t i = 0; i < 5; i++) {
        char *folder = test_path(f->directory, ranks[i]);
        fsdp_checkpoint_reader *reader;
        int64_t seed = 0;

        SAYS(0, "step-30", "convert", first, folder, "-n", ranks[i]);
        SAYS(0, "25 equal, 0 different, 0 only in A, 0 only in B", "diff", first, folder);
        CHECK_OK(fsdp_checkpoint_open(folder, &reader));
        CHECK_EQ(fsdp_checkpoint_world_size(reader), atoi(ranks[i]));
        CHECK_OK(fsdp_checkpoint_get_integer(reader, "seed", &seed));
        CHECK_EQ(seed, 42);
        CHECK_PTR(fsdp_checkpoint_file_find(reader, "config.json"));
        CHECK_OK(fsdp_checkpoint_verify(reader, NULL, NULL));
        fsdp_checkpoint_close(reader);
    }
}

/* It knows no config.json: its tensors are cut as they are, and no run of fsdp train goes on from it. */
FIXTURE_TEST(a_checkpoint_of_a_program_s_own_model_is_cut_too)
{
    char *first = test_path(f->directory, "first"), *second = test_path(f->directory, "second"), option[600];
    saved s = {.model = f->model, .folder = first, .step = 12, .factor = 1, .bare = true};

    train(f);
    saved_make(2, &s);
    SAYS(0, "checkpoint of 3 ranks written", "convert", first, second, "--ranks", "3");
    SAYS(0, "25 equal, 0 different", "diff", first, second);
    SAYS(1, "has no config.json: it holds a program's own model", "convert", first, second);
    snprintf(option, sizeof option, "--checkpoint.folder=%s", first);
    SAYS(1, "no run has saved it: to begin with its weights, set checkpoint.initial_load_path", "train", f->config,
         option);
}

FIXTURE_TEST(weights_change_their_dtype)
{
    char *narrow = test_path(f->directory, "narrow"), *wide = test_path(f->directory, "wide");
    char *runs = test_path(f->directory, "runs"), *other = test_path(f->directory, "other");
    saved s = {.model = f->model, .folder = runs, .step = 1, .factor = 1};
    program p;

    train(f);
    SAYS(0, "model written", "convert", f->model, narrow, "--dtype", "bfloat16");
    p = RUN(1, "diff", f->model, narrow);
    CHECK_CONTAINS(p.output, "float32 and bfloat16");
    CHECK_CONTAINS(p.output, "0 equal, 21 different");
    SAYS(0, "model written", "convert", narrow, wide, "--dtype", "float32"); /* the same numbers */
    p = RUN(1, "diff", narrow, wide);
    CHECK_NULL(strstr(p.output, "differs"));
    saved_make(2, &s);
    SAYS(0, "step-1", "convert", runs, other, "-n", "3", "--dtype=float16"); /* others stay what they are */
    p = RUN(1, "diff", runs, other);
    CHECK_CONTAINS(p.output, "equal      others.scalar\n");
    CHECK_CONTAINS(p.output, "float32 and float16");
    CHECK_CONTAINS(p.output, "4 equal, 21 different, 0 only in A, 0 only in B");
}

FIXTURE_TEST(what_is_refused_leaves_everything_as_it_was)
{
    char *runs = test_path(f->directory, "runs"), *mine = test_path(f->directory, "mine");
    char *note = test_path(f->directory, "mine/note.txt"), *file = test_path(f->directory, "model/model.safetensors");
    int before;

    train(f);
    SAYS(0, "written to", "convert", f->model, runs, "--ranks", "2");
    before = count_files(f->directory);
    SAYS(1, "runs/step-0' exists already: name another folder", "convert", f->model, runs, "--ranks", "3");
    SAYS(1, "is a file: give the folder", "convert", file, mine);
    SAYS(1, "/nowhere", "convert", "/nowhere", mine);
    CHECK_EQ(count_files(f->directory), before);
    CHECK_EQ(mkdir(mine, 0777), 0);
    test_write_file(note, "mine", 4);
    SAYS(1, "mine'", "convert", runs, mine);
    CHECK_EQ(count_files(mine), 1);
    SAYS(1, "model", "convert", f->model, f->model, "--dtype", "bfloat16");
    SAYS(0, "21 equal", "diff", runs, f->model);
    CHECK_EQ(count_files(f->directory), before + 1);
    SAYS(2, "name both folders", "convert", f->model);
    SAYS(2, "--step needs --ranks", "convert", f->model, mine, "--step", "3");
    SAYS(2, "--dtype is 'int64'", "convert", f->model, mine, "--dtype", "int64");
    SAYS(2, "--ranks is '0'", "convert", f->model, mine, "--ranks", "0");
}

/* A model folder "step-9" among checkpoints would be the newest of them, and no whole one. */
FIXTURE_TEST(no_model_folder_takes_the_name_of_a_checkpoint)
{
    char *runs = test_path(f->directory, "runs"), *among = test_path(f->directory, "runs/step-9//");
    char *models = test_path(f->directory, "models"), *apart = test_path(f->directory, "models/step-9");
    char *later = test_path(f->directory, "models/step-10"), *beside = test_path(f->directory, "runs/step-9.model");

    train(f);
    SAYS(0, "written to", "convert", f->model, runs, "--ranks", "2");
    SAYS(1, "is named like a checkpoint, and lies among checkpoints: name another folder", "convert", runs, among);
    CHECK_EQ(count_files(runs), 1);
    SAYS(0, "model written to", "convert", runs, beside);
    CHECK_EQ(mkdir(models, 0777), 0);
    SAYS(0, "model written to", "convert", runs, apart);
    SAYS(0, "model written to", "convert", runs, later);
    SAYS(0, "21 equal", "diff", runs, later);
}

/* Found before anything is written; and a part whose checksum is wrong never gets into another file. */
FIXTURE_TEST(what_fails_leaves_nothing)
{
    char *runs = test_path(f->directory, "runs"), *out = test_path(f->directory, "deep/er/out"), *bytes;
    char *part = test_path(f->directory, "runs/step-0/rank-00001-of-00002.safetensors");
    char script[1500];
    size_t count;
    int before;

    train(f);
    SAYS(0, "written to", "convert", f->model, runs, "--ranks", "2");
    before = count_files(f->directory);
    snprintf(script, sizeof script, "ulimit -f 64; exec %s convert %s %s", PROGRAM, runs, out);
    {
        program p = program_run(f->directory, 1, (const char *const[]){"/bin/sh", "-c", script, NULL});

        CHECK_CONTAINS(p.output, "cannot take ");
        CHECK_CONTAINS(p.output, "'ulimit -f' says how large a file may be");
    }
    bytes = test_read_file(part, &count);
    bytes[count - 9] ^= 4;
    test_write_file(part, bytes, count);
    SAYS(1, "rank-00001-of-00002.safetensors", "convert", runs, out);
    SAYS(1, "rank-00001-of-00002.safetensors", "convert", runs, out, "--ranks", "3");
    CHECK_EQ(count_files(f->directory), before);
    CHECK(!fsdp__path_exists(test_path(f->directory, "deep"))); /* nor empty folders above it */
}

/* Its room was taken before, so it is a call that fails. */
FIXTURE_TEST(a_temporary_file_that_cannot_be_written_is_named)
{
    char script[2500], part[600];
    program p;

    if (TEST_SANITIZED) /* which wants to be loaded first */
        skip();
    train(f);
    in_folder(f, "$FSDP convert model runs", "written to");
    snprintf(script, sizeof script,
             "export CALLS_ACT=ENOSPC\n"
             "convert() { LD_PRELOAD=" TEST_BINARY_DIR "/tests/preload_calls.so %s convert runs \"$PWD/$1\"; }\n"
             "cd '%s' && export CALLS_BELOW=$PWD && CALLS_LOG=log convert first\n"
             "CALLS_NTH=$(grep -n pwrite log | head -n 1 | cut -d: -f1) convert second || true",
             PROGRAM, f->directory);
    snprintf(part, sizeof part, "cannot write '%s/(a temporary file)': No space left on device at byte 0",
             f->directory);
    p = program_run(f->directory, 0, (const char *const[]){"/bin/sh", "-c", script, NULL});
    CHECK_CONTAINS(p.output, part);
}

/* ---- beside runs ---- */

/* Whether it has come: a program that ends before is not waited for. */
static bool appears(const char *path, pid_t pid)
{
    while (access(path, F_OK) != 0) {
        siginfo_t ended = {0};

        if (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == pid)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
    }
    return true;
}

/* It is interrupted in the middle of a save. On a machine so fast that it ends before the signal comes: again. */
FIXTURE_TEST(a_signal_leaves_no_temporary_files)
{
    char *runs = test_path(f->directory, "runs"), *saving = test_path(f->directory, "runs/step-0.saving/new");
    char *step = test_path(f->directory, "runs/step-0");
    int interrupted = 0;

    train(f);
    for (int i = 0; i < 200 && interrupted < 3; i++) {
        program p = program_start(f->directory,
                                  (const char *const[]){PROGRAM, "convert", f->model, runs, "--ranks", "40", NULL});
        bool seen = appears(saving, p.pid), whole;

        if (seen)
            kill(p.pid, SIGTERM);
        program_wait(&p);
        if (seen && p.status == 128 + SIGTERM) {
            interrupted++;
            whole = access(step, F_OK) == 0; /* the signal came behind its last rename */
            CHECK_EQ(count_files(runs), whole ? 1 : 0);
        } else {
            CHECK_EQ(p.status, 0);
        }
        test_remove_tree(runs);
    }
    CHECK(interrupted > 0);
}

/* It would remove what is put there, by the rules of its own checkpoints. */
FIXTURE_TEST(a_folder_that_a_run_writes_to_is_refused)
{
    char *runs = test_path(f->directory, "runs");
    fsdp__directory folder;
    fsdp__staging held;

    train(f);
    CHECK_EQ(mkdir(runs, 0777), 0);
    CHECK_OK(fsdp__directory_open(runs, &folder));
    CHECK_OK(fsdp__staging_take(&folder, ".run", &held));
    SAYS(1, "runs': another run writes there: process", "convert", f->model, runs, "--ranks", "2");
    CHECK_EQ(count_files(runs), 1);
    fsdp__staging_leave(&held); /* as one leaves it that was killed */
    SAYS(0, "written to", "convert", f->model, runs, "--ranks", "2");
    fsdp__directory_close(&folder);
}

/* The file with names that have no "model." before them, and one more tensor, of a dtype that cannot be read. */
static void add_old_buffer(const char *path)
{
    static const char entry[] = "\"layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"F64\",\"shape\":[1],";
    size_t bytes, length = 0, made;
    char *file = test_read_file(path, &bytes), *text = NULL, *header;
    FILE *out = CHECK_PTR(open_memstream(&text, &made));
    size_t data;

    for (int i = 0; i < 8; i++)
        length |= (size_t)(unsigned char)file[i] << (8 * i);
    header = CHECK_PTR(strndup(file + 8, length));
    data = bytes - 8 - length;
    fprintf(out, "{%s\"data_offsets\":[%zu,%zu]},", entry, data, data + 8);
    for (const char *at = header + 1; *at; at++) {
        if (strncmp(at, "\"model.", 7) == 0) {
            putc('"', out);
            at += 6;
        } else {
            putc(*at, out);
        }
    }
    CHECK_EQ(fclose(out), 0);
    out = CHECK_PTR(fopen(path, "w"));
    for (int i = 0; i < 8; i++)
        putc((int)(made >> (8 * i) & 0xff), out);
    fwrite(text, 1, made, out);
    fwrite(file + 8 + length, 1, data, out);
    fwrite("\0\0\0\0\0\0\xf8\x7f", 1, 8, out);
    CHECK_EQ(fclose(out), 0);
    free(text);
    free(header);
}

/* Names are those of the model afterwards, and a buffer that nobody reads stays behind. */
FIXTURE_TEST(what_a_folder_holds_besides_its_parameters_stays_behind)
{
    char *plain = test_path(f->directory, "plain"), *checkpoints = test_path(f->directory, "checkpoints");
    char *back = test_path(f->directory, "back"), *file = test_path(f->model, "model.safetensors");

    train(f);
    SAYS(0, "written to", "convert", f->model, plain);
    add_old_buffer(file);
    SAYS(0, ": whole: 22 tensors, all values are finite but for 1 of F64, which was not checked; shapes are those",
         "verify", f->model);
    SAYS(0, "F64       [1]                           8 bytes  model.safetensors", "inspect", f->model);
    SAYS(0, "model written to", "convert", f->model, back);
    SAYS(0, "21 equal, 0 different, 0 only in A, 0 only in B", "diff", plain, back);
    SAYS(0, "written to", "convert", f->model, checkpoints, "--ranks", "2");
    SAYS(0, "21 equal, 0 different, 0 only in A, 0 only in B", "diff", plain, checkpoints);
    SAYS(0, "shapes are those of its config.json", "verify", checkpoints);
    SAYS(2, "unread     layers.0.self_attn.rotary_emb.inv_freq  F64 and F64\n", "diff", f->model, f->model);
    SAYS(2, "1 tensor was not compared, because the dtype is not supported", "diff", f->model, f->model);
}

/* Copied as it is, with a warning; but nothing becomes infinite on the way. */
FIXTURE_TEST(what_is_not_finite_is_said)
{
    static const float values[] = {NAN, 1e6f};
    char *file = test_path(f->model, "model.safetensors"), *to = test_path(f->directory, "to");
    size_t bytes;
    char *data;

    train(f);
    data = test_read_file(file, &bytes);
    for (int i = 0; i < 2; i++) {
        memcpy(data + bytes - 4, &values[i], 4);
        test_write_file(file, data, bytes);
        if (i == 0)
            SAYS(0, "warning: tensor 'lm_head.weight' holds NaN or infinite values: the first is element 12287\n",
                 "convert", f->model, to, "--dtype", "float16");
        else
            SAYS(1, "cannot convert tensor 'lm_head.weight': its element 12287 is too large for float16", "convert",
                 f->model, to, "--dtype", "float16");
    }
    SAYS(0, "model written to", "convert", f->model, to, "--dtype", "bfloat16");
    SAYS(0, ", in place of an earlier one\n", "convert", f->model, to, "--dtype", "bfloat16");
}

FIXTURE_TEST(a_folder_becomes_a_gguf_and_one_again)
{
    char *file = test_path(f->directory, "model.gguf"), *back = test_path(f->directory, "back");

    train(f);
    SAYS(0, "model.gguf as float32, without a tokenizer", "convert", f->model, "--to", "gguf", "-o", file);
    SAYS(1, "exists already", "convert", f->model, file, "--to", "gguf");
    SAYS(0, "written to", "convert", file, "-o", back);
    SAYS(0, "21 equal, 0 different, 0 only in A, 0 only in B", "diff", back, f->model);
    SAYS(1, "exists already", "convert", file, back);
    SAYS(1, "--dtype is 'q4_0': expected f32, f16, bf16 or q8_0", "convert", f->model, "x.gguf", "--to", "gguf",
         "--dtype", "q4_0");
    SAYS(2, "--to is 'onnx': expected gguf", "convert", f->model, "x", "--to", "onnx");
    SAYS(2, "a GGUF file has no ranks", "convert", file, "x", "-n", "2");
}

TEST_FILE_IN_MEMORY(false, NULL)
