/* A model of one's own through safetensors, from the public headers alone: saved behind any front door in any world,
 * and loaded behind any other, with PyTorch's names; names that only one side has, strict or not. Links: shard */
#include "check/fault.h"
#include "fsdp/format.h"
#include "fsdp/fsdp1.h"
#include "fsdp/hub.h"
#include "fsdp/replicate.h"
#include "support/ranks.h"

/* ---- a model ---- */

typedef struct half {
    fsdp_module base;
    fsdp_tensor *gain; /* (5) bf16 */
} half;

typedef struct model {
    fsdp_module base;
    fsdp_tensor *tied, *mean, *seen, *scratch;
    fsdp_module *up, *part;
} model;

static fsdp_tensor *pass(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return inputs[0];
}

static const fsdp_module_type half_type = {.name = "Half", .forward = pass};
static const fsdp_module_type model_type = {.name = "Model", .forward = pass};
static const fsdp_init uniform = {FSDP_INIT_UNIFORM, -1, 1};

static void add_buffer(model *m, const char *name, fsdp_tensor **slot, fsdp_device *device, fsdp_dtype dtype, int ndim,
                       const int64_t *shape, bool persistent)
{
    CHECK_OK(fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_WORKSPACE, slot));
    CHECK_OK(fsdp_module_add_buffer(&m->base, name, slot, persistent));
}

static model *create(fsdp_context *context, fsdp_device *device)
{
    model *m;
    half *h;

    CHECK_OK(fsdp_module_create(context, &model_type, sizeof *m, &m));
    CHECK_OK(fsdp_module_create(context, &half_type, sizeof *h, &h));
    CHECK_OK(fsdp_module_add_parameter(&h->base, "gain", &h->gain, device, FSDP_BF16, FSDP_SHAPE(5), uniform));
    CHECK_OK(fsdp_module_add_child(&m->base, "up", m->up = fsdp_linear_create(context, device, 3, 7, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "part", m->part = &h->base));
    CHECK_OK(fsdp_module_tie_parameter(&m->base, "tied", &m->tied, ((fsdp_layer *)m->up)->weight));
    add_buffer(m, "running_mean", &m->mean, device, FSDP_F32, FSDP_SHAPE(4), true);
    add_buffer(m, "num_batches_tracked", &m->seen, device, FSDP_I64, 0, NULL, true);
    add_buffer(m, "scratch", &m->scratch, device, FSDP_F32, FSDP_SHAPE(2), false);
    return m;
}

static void fill(model *m, uint64_t seed, int64_t seen)
{
    const float mean[] = {(float)seed, 0.1f, -2, 1e-9f};

    CHECK_OK(fsdp_module_initialize(&m->base, seed));
    CHECK_OK(fsdp_tensor_write(m->mean, FSDP_F32, mean));
    CHECK_OK(fsdp_tensor_write(m->seen, FSDP_I64, &seen));
}

typedef enum door {
    PLAIN, /* a world of one */
    SHARDED,
    FLAT,
    DDP,
    DOORS
} door;

static model *behind(fsdp_context *context, door which)
{
    static const char *const classes[] = {"Half"};
    const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    model *m = create(context, which == PLAIN ? test_device(context) : fsdp_meta(context));

    if (which == SHARDED) {
        CHECK_OK(fsdp_fully_shard(m->part, NULL));
        CHECK_OK(fsdp_fully_shard(&m->base, NULL));
    } else if (which == FLAT) {
        CHECK_OK(fsdp_fsdp1_wrap(&m->base, &(fsdp_fsdp1_options){.auto_wrap_policy = &policy}));
    } else if (which == DDP) {
        CHECK_OK(fsdp_replicate(&m->base, NULL));
    }
    CHECK_OK(fsdp_module_materialize(&m->base, test_device(context)));
    return m;
}

/* ---- out, and in again ---- */

typedef struct move {
    door which;
    const char *folder;
} move;

static void save(fsdp_context *context, void *arg)
{
    const move *way = arg;
    model *m = behind(context, way->which);
    fsdp_state_dict *state;

    fill(m, 5, (int64_t)1 << 40);
    CHECK_OK(fsdp_state_dict_from_module(&m->base, &state));
    CHECK_OK(fsdp_hub_save(way->folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_module_unref(&m->base);
}

static void check_equal(fsdp_state_dict *state, const fsdp_state_dict *expected)
{
    fsdp_state_dict *full;

    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    CHECK_EQ(full->count, expected->count);
    for (int64_t i = 0; i < full->count; i++) {
        fsdp_tensor *a = full->entries[i].tensor, *b = expected->entries[i].tensor;
        int64_t values[2][32] = {{0}};

        CHECK_STRING(full->entries[i].name, expected->entries[i].name);
        CHECK_EQ(fsdp_tensor_dtype(a), fsdp_tensor_dtype(b));
        CHECK_OK(fsdp_tensor_read(a, fsdp_tensor_dtype(a), values[0]));
        CHECK_OK(fsdp_tensor_read(b, fsdp_tensor_dtype(b), values[1]));
        CHECK_BYTES(values[0], values[1], sizeof values[0]);
    }
    fsdp_state_dict_free(full);
}

static void load(fsdp_context *context, void *arg)
{
    const move *way = arg;
    model *m = behind(context, way->which), *plain = behind(context, PLAIN);
    fsdp_state_dict *state, *expected;

    fill(m, 6, 0);
    fill(plain, 5, (int64_t)1 << 40);
    CHECK_OK(fsdp_state_dict_from_module(&m->base, &state));
    CHECK_OK(fsdp_state_dict_from_module(&plain->base, &expected));
    CHECK_OK(fsdp_hub_load(way->folder, state, NULL));
    check_equal(state, expected);
    CHECK_OK(fsdp_hub_load_partly(way->folder, state, NULL, NULL));
    fsdp_state_dict_free(expected);
    fsdp_state_dict_free(state);
    fsdp_module_unref(&plain->base);
    fsdp_module_unref(&m->base);
}

TEST(state_goes_through_files_from_any_door_into_any_other)
{
    for (int from = 0; from < DOORS; from++)
        for (int to = 0; to < DOORS; to++) {
            char *folder = test_directory();
            move out = {(door)from, folder}, in = {(door)to, folder};

            test_run_ranks(from == PLAIN ? 1 : 1 + (from + to) % 3, save, &out);
            test_run_ranks(to == PLAIN ? 1 : 1 + (from + 2 * to + 1) % 4, load, &in);
            test_directory_free(folder);
        }
}

TEST(files_have_the_names_and_dtypes_of_the_model)
{
    static const struct {
        const char *name;
        fsdp_dtype dtype;
    } expected[] = {{"tied", FSDP_F32},
                    {"running_mean", FSDP_F32},
                    {"num_batches_tracked", FSDP_I64},
                    {"up.bias", FSDP_F32},
                    {"part.gain", FSDP_BF16}};
    char *folder = test_directory();
    move out = {SHARDED, folder};
    fsdp_safetensors *files;

    test_run_ranks(3, save, &out);
    CHECK_OK(fsdp_safetensors_open(folder, &files));
    CHECK_EQ(fsdp_safetensors_count(files), 5);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const fsdp_safetensors_entry *entry = CHECK_PTR(fsdp_safetensors_find(files, expected[i].name));

        CHECK_EQ(entry->dtype, expected[i].dtype);
    }
    fsdp_safetensors_close(files);
}

/* ---- names that only one side has ---- */

static fsdp_module *other_model(fsdp_context *context, fsdp_dtype counter)
{
    fsdp_device *device = test_device(context);
    model *m;

    CHECK_OK(fsdp_module_create(context, &model_type, sizeof *m, &m));
    CHECK_OK(fsdp_module_add_child(&m->base, "up", fsdp_linear_create(context, device, 3, 7, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "down", fsdp_linear_create(context, device, 7, 3, NULL)));
    add_buffer(m, "num_batches_tracked", &m->seen, device, counter, 0, NULL, true);
    CHECK_OK(fsdp_module_initialize(&m->base, 9));
    CHECK_OK(fsdp_tensor_fill_(m->seen, 0));
    return &m->base;
}

static double counted(fsdp_module *module)
{
    double value;

    CHECK_OK(fsdp_tensor_item(((model *)module)->seen, &value));
    return value;
}

CONTEXT_TEST(names_that_differ_are_an_error_or_a_list)
{
    char *folder = test_directory();
    move out = {SHARDED, folder};
    fsdp_module *module = other_model(context, FSDP_I64);
    fsdp_state_dict *dict;
    fsdp_state_dict_keys keys = {.missing_count = 7};

    test_run_ranks(2, save, &out);
    CHECK_OK(fsdp_state_dict_from_module(module, &dict));
    CHECK_ERROR(fsdp_hub_load(folder, dict, NULL), FSDP_FORMAT,
                "no file holds tensors 'up.weight', 'down.weight' and 'down.bias'; and no parameter of the model is ");
    CHECK_CONTAINS(fsdp_last_error(), "'tied'");
    CHECK_NEAR(counted(module), 0, 0); /* nothing has changed */
    CHECK_OK(fsdp_hub_load_partly(folder, dict, NULL, &keys));
    CHECK_EQ(keys.missing_count, 3);
    CHECK_STRING(keys.missing[0], "up.weight");
    CHECK_STRING(keys.missing[2], "down.bias");
    CHECK_EQ(keys.unexpected_count, 3);
    CHECK_NEAR(counted(module), (double)((int64_t)1 << 40), 0);
    fsdp_state_dict_keys_release(&keys);
    fsdp_state_dict_keys_release(NULL);
    fsdp_state_dict_free(dict);
    fsdp_module_unref(module);

    module = other_model(context, FSDP_I32);
    CHECK_OK(fsdp_state_dict_from_module(module, &dict));
    CHECK_ERROR(fsdp_hub_load_partly(folder, dict, NULL, &keys), FSDP_FORMAT,
                "tensor 'num_batches_tracked' is int64, but the model's is int32");
    CHECK(keys.missing_count == 0 && !keys.missing);
    CHECK_STATUS(fsdp_hub_load_partly(NULL, dict, NULL, &keys), FSDP_INVALID);
    CHECK_STATUS(fsdp_hub_load_partly(folder, NULL, NULL, &keys), FSDP_INVALID);
    fsdp_state_dict_free(dict);
    fsdp_module_unref(module);
}

/* ---- a disk that fails ---- */

typedef struct attempt {
    const char *folder;
    int rank; /* whose disk it is */
    long nth;
    bool hit;
    fsdp_status status[2];
} attempt;

static void save_with_fault(fsdp_context *context, void *arg)
{
    attempt *a = arg;
    int rank = fsdp_context_rank(context);
    model *m = behind(context, SHARDED);
    fsdp_state_dict *state;

    fill(m, 9, 9);
    CHECK_OK(fsdp_state_dict_from_module(&m->base, &state));
    test_meet();
    if (rank == a->rank)
        fsdp__fault_arm(FSDP__FAULT_WRITE, a->nth);
    a->status[rank] = fsdp_hub_save(a->folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(context));
    if (rank == a->rank) {
        a->hit = fsdp__fault_hit(FSDP__FAULT_WRITE);
        fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    }
    fsdp_state_dict_free(state);
    fsdp_module_unref(&m->base);
}

static void check_holds(const char *folder, uint64_t seed, int64_t seen)
{
    fsdp_context *context = test_context();
    model *expected = behind(context, PLAIN), *m = behind(context, PLAIN);
    fsdp_state_dict *state, *wanted;

    fill(expected, seed, seen);
    CHECK_OK(fsdp_state_dict_from_module(&m->base, &state));
    CHECK_OK(fsdp_state_dict_from_module(&expected->base, &wanted));
    CHECK_OK(fsdp_hub_load(folder, state, NULL));
    check_equal(state, wanted);
    fsdp_state_dict_free(wanted);
    fsdp_state_dict_free(state);
    fsdp_module_unref(&m->base);
    fsdp_module_unref(&expected->base);
    fsdp_context_free(context);
}

/* Where any write of either rank fails, both say so, and the model that was there before is there. */
TEST(a_write_that_fails_costs_nothing)
{
    for (int rank = 0; rank < 2; rank++) {
        char *folder = test_directory();
        move out = {SHARDED, folder};
        attempt a = {.folder = folder, .rank = rank, .nth = 1, .hit = true};

        test_run_ranks(2, save, &out);
        for (; a.hit; a.nth++) {
            test_run_ranks(2, save_with_fault, &a);
            CHECK_EQ(a.status[0] == FSDP_OK, !a.hit);
            CHECK_EQ(a.status[1] == FSDP_OK, !a.hit);
            if (a.hit)
                check_holds(folder, 5, (int64_t)1 << 40);
        }
        CHECK(a.nth > 2);
        check_holds(folder, 9, 9);
        test_directory_free(folder);
    }
}
