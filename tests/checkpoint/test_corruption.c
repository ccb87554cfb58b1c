/* One bit of a checkpoint is flipped, a file is cut or lost, exchanged for that of another step, a manifest is edited:
 * nothing of it is loaded as if it were whole, and the error names the file. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/scene.h"
#include "faults/damage.h"
#include "faults/tree.h"
#include "support/dice.h"

enum {
    WORLD = 2,
    FILES = 5
};

static const char *const files[FILES] = {"manifest.json", "rank-00000-of-00002.safetensors",
                                         "rank-00001-of-00002.safetensors", "config.json", "empty"};

typedef struct stage {
    char *directory, *folder, *path, *other; /* step-2, and step-1 beside it */
    char *good;                              /* a copy of step-2 */
    fsdp_context *context;
} stage;

static void save_both(fsdp_context *context, void *arg)
{
    scene_save_to(arg, context, SCENE_ROWS, 1, 1);
    scene_save_to(arg, context, SCENE_ROWS, 2, 2);
}

static stage stage_create(void)
{
    stage s = {.directory = test_directory()};

    s.folder = test_path(s.directory, "checkpoints");
    s.path = test_path(s.folder, "step-2");
    s.other = test_path(s.folder, "step-1");
    s.good = test_path(s.directory, "good");
    test_run_ranks(WORLD, save_both, s.folder);
    tree_copy(s.path, s.good);
    s.context = test_context();
    return s;
}

static void stage_free(stage *s)
{
    fsdp_context_free(s->context);
    test_directory_free(s->directory);
}

/* What a run does before its first step. */
static fsdp_status load_all(const stage *s)
{
    scene model = scene_create(s->context, SCENE_PLAIN, FSDP_F32, 0, false);
    scene optimizer = scene_create(s->context, SCENE_PLAIN, FSDP_BF16, 0, false);
    fsdp_checkpoint_reader *reader = NULL;
    fsdp_status status = fsdp_checkpoint_open(s->folder, &reader);

    if (status == FSDP_OK)
        status = fsdp_checkpoint_load(reader, "model", model.state, NULL);
    if (status == FSDP_OK)
        status = fsdp_checkpoint_load(reader, "optimizer", optimizer.state, NULL);
    fsdp_checkpoint_close(reader);
    scene_free(&optimizer);
    scene_free(&model);
    return status;
}

static void restore(const stage *s, const char *name)
{
    char *from = test_path(s->good, name), *to = test_path(s->path, name), *data;
    size_t bytes = 0;

    test_remove_tree(to);
    data = test_read_file(from, &bytes);
    test_write_file(to, data, bytes);
}

/* ---- damage ---- */

static void flip_bit(const char *path, uint64_t *seed)
{
    size_t bytes = 0;
    char *data = test_read_file(path, &bytes);
    uint64_t bit = damage_random(seed, bytes * 8);

    data[bit / 8] ^= (char)(1 << bit % 8);
    test_write_file(path, data, bytes);
}

static void cut(const char *path, uint64_t *seed)
{
    struct stat info;

    CHECK_EQ(stat(path, &info), 0);
    CHECK_EQ(truncate(path, (off_t)damage_random(seed, (uint64_t)info.st_size)), 0);
}

/* The same file of the other step. */
static void mix(const stage *s, const char *path, const char *name)
{
    char *from = test_path(s->other, name), *data;
    size_t bytes = 0;

    data = test_read_file(from, &bytes);
    test_write_file(path, data, bytes);
}

/* A digit of the manifest becomes another: what people edit. */
static void edit(const char *path, uint64_t *seed)
{
    size_t bytes = 0, at;
    char *data = test_read_file(path, &bytes);

    do
        at = damage_random(seed, bytes);
    while (data[at] < '0' || data[at] > '9');
    data[at] = (char)('0' + (data[at] - '0' + 1 + (int)damage_random(seed, 9)) % 10);
    test_write_file(path, data, bytes);
}

/* Returns the name of the file that was damaged. */
static const char *damage(const stage *s, uint64_t *seed)
{
    int kind = (int)damage_random(seed, 8);
    int file = kind == 7 ? 0 : kind == 6 ? 1 + (int)damage_random(seed, 2) : (int)damage_random(seed, FILES - 1);
    char *path = test_path(s->path, files[file]);

    if (kind <= 3)
        flip_bit(path, seed);
    else if (kind == 4)
        cut(path, seed);
    else if (kind == 5)
        CHECK_EQ(unlink(path), 0);
    else if (kind == 6)
        mix(s, path, files[file]);
    else
        edit(path, seed);
    return files[file];
}

TEST(no_damage_is_loaded)
{
    stage s = stage_create();
    const dice_seeds seeds = dice_seeds_of("CORRUPTION", test_long() ? 10000 : 400);

    CHECK_OK(load_all(&s));
    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t random = seed;
        const char *name = damage(&s, &random);
        fsdp_status status = load_all(&s);

        if (status == FSDP_OK)
            TEST_FAIL("FSDP_CORRUPTION_SEED=%llu: a damaged '%s' was loaded", (unsigned long long)seed, name);
        CHECK_CONTAINS(fsdp_last_error(), name);
        CHECK_CONTAINS(fsdp_last_error(), "step-2");
        restore(&s, name);
    }
    CHECK_OK(load_all(&s));
    CHECK_EQ(test_live_bytes(s.context), 0);
    stage_free(&s);
}

/* Every bit of one rank's file, one after the other. */
TEST(every_bit_counts)
{
    stage s = stage_create();
    char *path = test_path(s.path, files[1]);
    size_t bytes = 0, step = test_long() ? 1 : 97;
    char *data = test_read_file(path, &bytes);

    for (size_t bit = 0; bit < bytes * 8; bit += step) {
        data[bit / 8] ^= (char)(1 << bit % 8);
        test_write_file(path, data, bytes);
        CHECK_ERROR(load_all(&s), FSDP_FORMAT, files[1]);
        data[bit / 8] ^= (char)(1 << bit % 8);
    }
    stage_free(&s);
}

TEST(damage_in_a_tensor_names_it)
{
    stage s = stage_create();
    char *path = test_path(s.path, files[1]), *data;
    fsdp_checkpoint_reader *reader = NULL;
    const fsdp_checkpoint_tensor *tensor;
    size_t bytes = 0;

    CHECK_OK(fsdp_checkpoint_open(s.path, &reader));
    tensor = CHECK_PTR(fsdp_checkpoint_tensor_find(reader, "model", "weight"));
    data = test_read_file(path, &bytes);
    data[tensor->parts[0].begin] ^= 1;
    test_write_file(path, data, bytes);
    CHECK_ERROR(fsdp_checkpoint_verify(reader, NULL, NULL), FSDP_FORMAT, "do not fit their checksum, where tensors");
    CHECK_CONTAINS(fsdp_last_error(), "'model.");
    CHECK_CONTAINS(fsdp_last_error(), files[1]);
    fsdp_checkpoint_close(reader);
    stage_free(&s);
}

/* ---- manifests whose digest fits, and that say what cannot be ---- */

static char *with_digest(const char *text)
{
    size_t length = strlen(text) - FSDP__DIGEST_BYTES;
    char *whole = malloc(strlen(text) + 1);

    memcpy(whole, text, length);
    fsdp__digest_text(fsdp__checksum(text, length), whole + length);
    return whole;
}

/* The manifest with the first `from` replaced by `to`. */
static fsdp_status load_edited(const stage *s, const char *from, const char *to)
{
    char *path = test_path(s->path, files[0]), *text, *place, *edited, *whole;
    fsdp_checkpoint_reader *reader = NULL;
    fsdp_status status;
    size_t length;

    restore(s, files[0]);
    text = test_read_file(path, NULL);
    place = CHECK_PTR(strstr(text, from));
    length = strlen(text) + strlen(to) + 1;
    edited = malloc(length);
    snprintf(edited, length, "%.*s%s%s", (int)(place - text), text, to, place + strlen(from));
    whole = with_digest(edited);
    test_write_file(path, whole, strlen(whole));
    status = fsdp_checkpoint_open(s->path, &reader);
    fsdp_checkpoint_close(reader);
    free(whole);
    free(edited);
    return status;
}

TEST(a_manifest_that_cannot_be_is_refused)
{
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"version\":1", "\"version\":2", "another version of fsdp"},
        {"\"format\":\"fsdp checkpoint\"", "\"format\":\"fsdp\"", "not the manifest of a checkpoint"},
        {"\"step\":2", "\"step\":-2", "key 'step' is not a number from 0"},
        {"\"step\":2", "\"step\":3", "the manifest of step 3"},
        {"\"world_size\":2", "\"world_size\":1", "key 'rank' is not a number from 0 to 0"},
        {"\"world_size\":2", "\"world_size\":0", "key 'world_size'"},
        {"\"name\":\"config.json\"", "\"name\":\"../config.json\"", "no file may be called '../config.json'"},
        {"\"name\":\"empty\"", "\"name\":\"config.json\"", "file 'config.json' is listed twice"},
        {"\"rank\":1,", "\"rank\":0,", "not in the order of the ranks"},
        {"\"block_bytes\":1048576", "\"block_bytes\":64", "checksums for another size"},
        {"\"block_bytes\":1048576", "\"block_bytes\":0", "key 'block_bytes'"},
        {"\"dtype\":\"U8\"", "\"dtype\":\"U9\"", "'model.flags' has no known dtype"},
        {"\"shape\":[3]", "\"shape\":[4]", "'model.bias' has 1 of its 4 elements in no file"},
        {"\"shape\":[3]", "\"shape\":[2]", "'model.bias' has a part outside its shape"},
        {"\"shape\":[3]", "\"shape\":[-3]", "'model.bias' has an impossible shape"},
        {"\"shape\":[3]", "\"shape\":[4611686018427387904,4]", "'model.bias' has an impossible shape"},
        {"\"shape\":[3]", "\"shape\":3", "'model.bias' has no shape"},
        {"\"shape\":[3]", "\"shape\":[1,1,1,1,1,1,1]", "'model.bias' has no shape"},
        {"\"integer\":2", "\"integer\":\"2\"", "key 'integer'"},
        {"\"text\":", "\"texts\":", "has an unknown type"},
        {"\"values\":", "\"value\":", "it has no values"},
        {"\"small\":", "\"smalls\":", "no list of small files"},
        {"\"files\":", "\"file\":", "no list of files"},
        {"\"tensors\":", "\"tensor\":", "no sections of tensors"},
        {"\"boxes\":", "\"box\":", "has no parts"},
        {"\"boxes\":[[0,", "\"boxes\":[[7,", "of a rank that does not exist"},
        {"\"boxes\":[[0,", "\"boxes\":[[1,", "not in the order of the files"},
        {"\"boxes\":[[0,", "\"boxes\":[[0.5,", "an impossible place"},
        {"\"boxes\":[[0,", "\"boxes\":[[0,0,", "a part without a place"},
    };
    stage s = stage_create();

    CHECK_OK(load_edited(&s, "\"mesh\"", "\"mesh\""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_status status = load_edited(&s, cases[i].from, cases[i].to);

        CHECK(status == FSDP_FORMAT || status == FSDP_UNSUPPORTED);
        CHECK_CONTAINS(fsdp_last_error(), cases[i].message);
        CHECK_CONTAINS(fsdp_last_error(), "manifest.json");
    }
    stage_free(&s);
}

TEST_FILE_IN_MEMORY(false, NULL)
