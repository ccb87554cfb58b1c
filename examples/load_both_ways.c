/* load_both_ways.c - weight files into a sharded model, both ways that there are, with one file in memory at a time and
 * what that takes on each rank: (1) a leader reads a model in its own memory, the others build shapes, and FSDP1 sends
 * each unit from the leader as it wraps it; (2) all build shapes and shard them, and rank 0 hands the tensors of one
 * file after the other to the shards of all. The first argument is the folder of the files, which are made here.
 *
 *     fsdp run -n 3 -- ./load_both_ways weights */
#include <fsdp/fsdp.h>
#include <string.h>

enum {
    WORDS = 50,
    DIM = 24,
    INNER = 37,
    BLOCKS = 3,
    FILES = BLOCKS + 1,
    PARTS = BLOCKS + 2,
    MOST_NOTES = 8
};

typedef struct note { /* bytes in the ledger */
    size_t host, host_peak, device, device_peak;
} note;

typedef struct job {
    fsdp_context *c;
    fsdp_device *device; /* the device to train on */
    const char *folder;
    fsdp_module *model;
    fsdp_state_dict *own; /* that of the leader's model in its own memory */
    int64_t compared;     /* how many tensors */
    note notes[MOST_NOTES];
    int note_count;
} job;

/* ---- the model: Sequential(Embedding, 3 x Block(up, down, a buffer `scale`), Head tied to the embedding) ---- */

typedef struct part {
    fsdp_module base;
    fsdp_tensor *own; /* Block: the buffer; Head: the weight */
} part;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *up = fsdp_module_call(fsdp_module_child(self, "up"), inputs, count);
    fsdp_tensor *down = fsdp_call(fsdp_module_child(self, "down"), fsdp_gelu(up));

    return fsdp_add(inputs[0], fsdp_mul(down, ((part *)self)->own));
}

static fsdp_tensor *head_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_linear(inputs[0], ((part *)self)->own, FSDP_NO_BIAS);
}

static const fsdp_module_type block_type = {.name = "Block", .forward = block_forward};
static const fsdp_module_type head_type = {.name = "Head", .forward = head_forward};

static fsdp_status block_create(fsdp_device *device, part **out)
{
    fsdp_context *c = fsdp_device_context(device);

    FSDP_TRY(fsdp_module_create(c, &block_type, sizeof **out, out));
    FSDP_TRY(fsdp_module_add_child(&(*out)->base, "up", fsdp_linear_create(c, device, DIM, INNER, NULL)));
    FSDP_TRY(fsdp_module_add_child(&(*out)->base, "down", fsdp_linear_create(c, device, INNER, DIM, NULL)));
    FSDP_TRY(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(DIM), FSDP_MEMORY_PARAMETER_SHARD, &(*out)->own));
    return fsdp_module_add_buffer(&(*out)->base, "scale", &(*out)->own, true);
}

static fsdp_status net_create(fsdp_device *device, fsdp_module **out)
{
    fsdp_context *c = fsdp_device_context(device);
    fsdp_module *parts[PARTS] = {fsdp_embedding_create(c, device, WORDS, DIM, NULL)};
    part *p = NULL;

    for (int i = 1; i <= BLOCKS; i++) {
        FSDP_TRY(block_create(device, &p));
        parts[i] = &p->base;
    }
    FSDP_TRY(fsdp_module_create(c, &head_type, sizeof *p, &p));
    FSDP_TRY(fsdp_module_tie_parameter(&p->base, "weight", &p->own, fsdp_module_parameter(parts[0], "weight")));
    parts[PARTS - 1] = &p->base;
    *out = fsdp_sequential_create(c, parts, PARTS);
    return *out ? FSDP_OK : fsdp_last_status();
}

/* ---- files: "0" to "3" in the folder, for the embedding and the blocks ---- */

static fsdp_status write_files(const job *j)
{
    fsdp_module *model = NULL;
    fsdp_state_dict *state = NULL;
    char path[4096];

    FSDP_TRY(net_create(fsdp_cpu(j->c), &model));
    FSDP_TRY(fsdp_module_initialize(model, 7));
    for (int f = 0; f < FILES; f++) {
        FSDP_TRY(fsdp_state_dict_from_module(fsdp_module_child_at(model, f, NULL), &state));
        if (fsdp_state_dict_find(state, "scale"))
            FSDP_TRY(fsdp_tensor_fill_(fsdp_state_dict_find(state, "scale")->tensor, 0.5));
        snprintf(path, sizeof path, "%s/%d", j->folder, f);
        FSDP_TRY(fsdp_hub_save(path, state, NULL, FSDP_F32, fsdp_world(j->c)));
        fsdp_state_dict_free(state);
    }
    fsdp_module_unref(model);
    return FSDP_OK;
}

/* Calls `take` with one file after the other, as tensors in the host's memory on the leader; the others have none. */
static fsdp_status read_files(job *j, fsdp_status (*take)(job *j, const fsdp_state_dict *file))
{
    bool leader = fsdp_context_rank(j->c) == 0;
    char text[4096];

    for (int f = 0; f < FILES; f++) {
        fsdp_safetensors *map = NULL;
        fsdp_state_dict *file = NULL;

        FSDP_TRY(fsdp_scope_begin(j->c)); /* the file's tensors live in this scope */
        FSDP_TRY(fsdp_state_dict_create(&file));
        snprintf(text, sizeof text, "%s/%d", j->folder, f);
        if (leader)
            FSDP_TRY(fsdp_safetensors_open(text, &map));
        for (int64_t i = 0; leader && i < fsdp_safetensors_count(map); i++) {
            const fsdp_safetensors_entry *e = fsdp_safetensors_at(map, i);
            fsdp_tensor *t = fsdp_from_data(fsdp_cpu(j->c), e->dtype, e->ndim, e->shape, e->data);

            snprintf(text, sizeof text, "%d.%s", f, e->name);
            FSDP_TRY(t ? fsdp_state_dict_add(file, text, t) : fsdp_last_status());
        }
        fsdp_safetensors_close(map);
        FSDP_TRY(take(j, leader ? file : NULL));
        fsdp_state_dict_free(file);
        fsdp_scope_end(j->c, NULL);
    }
    return FSDP_OK;
}

/* ---- what it takes ---- */

static void take_note(job *j, const char *when)
{
    fsdp_memory_stats host, device = {0};
    note *n = &j->notes[j->note_count++];

    fsdp_device_memory(fsdp_cpu(j->c), &host);
    if (j->device != fsdp_cpu(j->c))
        fsdp_device_memory(j->device, &device);
    *n = (note){host.live_total_bytes, host.peak_total_bytes, device.live_total_bytes, device.peak_total_bytes};
    for (int rank = 0; rank < fsdp_context_world_size(j->c); rank++, fsdp_barrier(fsdp_world(j->c)))
        if (rank == fsdp_context_rank(j->c)) { /* one rank after the other */
            printf("%-21s rank %d: host %6zu, at most %6zu; device %6zu, at most %6zu\n", when, rank, n->host,
                   n->host_peak, n->device, n->device_peak);
            fflush(stdout);
        }
    fsdp_device_reset_peak(fsdp_cpu(j->c));
    fsdp_device_reset_peak(j->device);
}

/* ---- (1) a leader's model, sent unit by unit ---- */

static fsdp_status copy_file(job *j, const fsdp_state_dict *file)
{
    for (int64_t i = 0; file && i < file->count; i++) {
        const fsdp_state_dict_entry *to = fsdp_state_dict_find(j->own, file->entries[i].name);

        if (!to)
            return FSDP_FAIL(FSDP_NOT_FOUND, "the model has no '%s'", file->entries[i].name);
        FSDP_TRY(fsdp_tensor_copy_(to->tensor, file->entries[i].tensor));
    }
    return FSDP_OK;
}

/* param_init_fn: gets bytes on the device for a module of the unit that is wrapped next, and on the leader also values
 * for what has bytes and is not sharded yet. The others get theirs from the leader. */
static fsdp_status init(void *arg, fsdp_module *module)
{
    job *j = arg;
    fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp_module_materialize(module, j->device));
    if (!j->own)
        return FSDP_OK;
    FSDP_TRY(fsdp_state_dict_from_module(j->model, &state));
    for (int64_t i = 0; i < state->count; i++) {
        fsdp_tensor *t = state->entries[i].tensor, *from = fsdp_state_dict_find(j->own, state->entries[i].name)->tensor;

        if (!fsdp_device_is_meta(fsdp_tensor_device(t)) && !fsdp_tensor_distribution(t))
            FSDP_TRY(fsdp_tensor_write(t, fsdp_tensor_dtype(from), fsdp_tensor_data(from)));
    }
    fsdp_state_dict_free(state);
    return FSDP_OK;
}

static fsdp_status load_with_a_leader(job *j)
{
    static const char *const classes[] = {"Block"};
    const fsdp_wrap_policy blocks = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    const fsdp_fsdp1_options options = {.auto_wrap_policy = &blocks,
                                        .use_orig_params = true,
                                        .param_init_fn = init,
                                        .param_init_arg = j,
                                        .sync_module_states = true};
    fsdp_module *module = NULL;

    if (fsdp_context_rank(j->c) == 0) {
        FSDP_TRY(net_create(fsdp_cpu(j->c), &module));
        FSDP_TRY(fsdp_state_dict_from_module(module, &j->own));
    }
    FSDP_TRY(net_create(fsdp_meta(j->c), &j->model));
    take_note(j, "leader: built");
    FSDP_TRY(read_files(j, copy_file));
    take_note(j, "leader: read");
    FSDP_TRY(fsdp_fsdp1_wrap(j->model, &options));
    take_note(j, "leader: wrapped");
    fsdp_state_dict_free(j->own);
    j->own = NULL;
    fsdp_module_unref(module);
    take_note(j, "leader: its own freed");
    return FSDP_OK;
}

/* ---- (2) shards, filled file by file ---- */

static fsdp_status by_columns(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    (void)arg, (void)name;
    out->dim = fsdp_tensor_ndim(parameter) - 1;
    return FSDP_OK;
}

static fsdp_status fill_shards(job *j, const fsdp_state_dict *file)
{
    const fsdp_full_state_options options = {.broadcast_from_rank0 = true, .partial = true};
    fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp_state_dict_from_module(j->model, &state));
    FSDP_TRY(fsdp_state_dict_load_full(state, file, &options));
    fsdp_state_dict_free(state);
    return FSDP_OK;
}

static fsdp_status load_into_shards(job *j)
{
    const fsdp_mp_policy mixed = {.param_dtype = FSDP_BF16, .output_dtype = FSDP_F32, .buffer_dtype = FSDP_BF16};
    const fsdp_shard_options of_blocks[BLOCKS] = {
        {.reshard_after_forward = FSDP_RESHARD_NEVER}, {.placement = by_columns}, {.mp_policy = mixed}};

    FSDP_TRY(net_create(fsdp_meta(j->c), &j->model));
    take_note(j, "shards: built");
    for (int i = 0; i < BLOCKS; i++)
        FSDP_TRY(fsdp_fully_shard(fsdp_module_child_at(j->model, i + 1, NULL), &of_blocks[i]));
    FSDP_TRY(fsdp_fully_shard(j->model, NULL));
    FSDP_TRY(fsdp_module_materialize(j->model, j->device));
    take_note(j, "shards: sharded");
    FSDP_TRY(read_files(j, fill_shards));
    take_note(j, "shards: read");
    return FSDP_OK;
}

/* ---- both ---- */

/* Checks that every tensor of every file is in the model, whole and to the bit; a `take` of read_files. */
static fsdp_status compare(job *j, const fsdp_state_dict *file)
{
    float got[WORDS * DIM], wanted[WORDS * DIM];
    fsdp_state_dict *state = NULL, *full = NULL;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_state_dict_from_module(j->model, &state));
    FSDP_TRY(fsdp_state_dict_gather(state, NULL, &full));
    for (int64_t i = 0; file && i < file->count && status == FSDP_OK; i++) {
        const fsdp_state_dict_entry *e = fsdp_state_dict_find(full, file->entries[i].name);

        FSDP_TRY(fsdp_tensor_read(e->tensor, FSDP_F32, got));
        FSDP_TRY(fsdp_tensor_read(file->entries[i].tensor, FSDP_F32, wanted));
        if (memcmp(got, wanted, (size_t)fsdp_tensor_numel(e->tensor) * sizeof *got) != 0)
            status = FSDP_FAIL(FSDP_MISMATCH, "'%s' is not what its file holds", e->name);
        j->compared++;
    }
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
    return status;
}

static fsdp_status run(fsdp_context *c, fsdp_device *device, const char *folder, job *j)
{
    static fsdp_status (*const ways[])(job * j) = {load_with_a_leader, load_into_shards};

    *j = (job){.c = c, .device = device, .folder = folder};
    FSDP_TRY(write_files(j));
    fsdp_device_reset_peak(fsdp_cpu(c));
    for (int way = 0; way < 2; way++) {
        int32_t ids[] = {3, 1, 4, 1, 5};

        FSDP_TRY(ways[way](j));
        FSDP_TRY(read_files(j, compare));
        if (fsdp_context_rank(c) == 0 && j->compared != (way + 1) * (1 + BLOCKS * 5))
            return FSDP_FAIL(FSDP_MISMATCH, "the files hold %lld tensors", (long long)j->compared);
        FSDP_TRY(fsdp_scope_begin(c));
        if (!fsdp_call(j->model, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 5), ids)))
            return fsdp_last_status();
        fsdp_scope_end(c, NULL);
        fsdp_module_unref(j->model);
        j->model = NULL;
        fsdp_device_reset_peak(fsdp_cpu(c));
        fsdp_device_reset_peak(device);
    }
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    fsdp_context *c = NULL;
    job j = {0};
    fsdp_status status = fsdp_context_from_env(&c);

    if (status == FSDP_OK)
        status = run(c, fsdp_cpu(c), argc > 1 ? argv[1] : "weights", &j);
    if (status != FSDP_OK)
        fprintf(stderr, "load_both_ways: %s\n", fsdp_last_error());
    fsdp_state_dict_free(j.own);
    fsdp_module_unref(j.model);
    fsdp_context_free(c);
    return status != FSDP_OK;
}
