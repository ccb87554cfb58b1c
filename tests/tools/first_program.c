/* A person's first program: a transformer of one's own from the public headers alone, trained behind the front door
 * that a word names, beside the plain one on all rows; then saved by all ranks and loaded whole. tools/test_install.sh
 * builds it as a user would, and runs it: fsdp run -n N -- first_program FOLDER WORD... */
#include <fsdp/fsdp.h>
#include <math.h>
#include <string.h>

enum {
    VOCABULARY = 13,
    DIM = 12,
    HEADS = 3,
    LENGTH = 5,
    ROWS = 12, /* of a step: 1, 2, 3 and 4 ranks have equal parts */
    BLOCKS = 2,
    STEPS = 3
};

/* ---- the model ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *norm, *qkv, *proj, *up, *down;
} block;

/* What goes on, and how large it has become: a loss of the block's own. */
static fsdp_status block_forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    const block *b = (block *)self;
    const float *weight = arg; /* of that loss */
    fsdp_tensor *x = inputs[0], *qkv = fsdp_call(b->qkv, fsdp_call(b->norm, x));
    fsdp_tensor *seen = fsdp_attention_packed(qkv, HEADS, HEADS, &(fsdp_attention_options){.causal = true});

    (void)count, (void)output_count;
    x = fsdp_add(x, fsdp_call(b->proj, seen));
    x = fsdp_add(x, fsdp_call(b->down, fsdp_gelu(fsdp_call(b->up, x))));
    outputs[0] = x;
    outputs[1] = fsdp_scale(fsdp_mean(fsdp_mul(x, x)), *weight);
    return FSDP_OK;
}

typedef struct model {
    fsdp_module base;
    fsdp_module *embedding, *blocks[BLOCKS], *head;
} model;

/* ids (rows, LENGTH), targets (rows * LENGTH) -> the loss, with those of the blocks. */
static fsdp_tensor *model_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const model *m = (model *)self;
    fsdp_tensor *x = fsdp_call(m->embedding, inputs[0]), *loss = NULL, *y[2];
    float weight = 0.01f;

    (void)count;
    for (int i = 0; i < BLOCKS; i++) {
        if (fsdp_module_call_many(m->blocks[i], &weight, &x, 1, y, 2) != FSDP_OK)
            return NULL;
        x = y[0];
        loss = loss ? fsdp_add(loss, y[1]) : y[1];
    }
    x = fsdp_reshape(fsdp_call(m->head, x), FSDP_SHAPE(-1, VOCABULARY));
    return fsdp_add(fsdp_cross_entropy(x, inputs[1]), loss);
}

static const fsdp_module_type block_type = {.name = "Block", .forward_many = block_forward};
static const fsdp_module_type model_type = {.name = "Model", .forward = model_forward};

static fsdp_status fill_block(block *b, fsdp_context *c)
{
    fsdp_device *d = fsdp_cpu(c);

    FSDP_TRY(fsdp_module_add_child(&b->base, "norm", b->norm = fsdp_layernorm_create(c, d, DIM, 1e-5f)));
    FSDP_TRY(fsdp_module_add_child(&b->base, "qkv", b->qkv = fsdp_linear_create(c, d, DIM, 3 * DIM, NULL)));
    FSDP_TRY(fsdp_module_add_child(&b->base, "proj", b->proj = fsdp_linear_create(c, d, DIM, DIM, NULL)));
    FSDP_TRY(fsdp_module_add_child(&b->base, "up", b->up = fsdp_linear_create(c, d, DIM, 2 * DIM, NULL)));
    return fsdp_module_add_child(&b->base, "down", b->down = fsdp_linear_create(c, d, 2 * DIM, DIM, NULL));
}

static fsdp_status fill_model(model *m, fsdp_context *c)
{
    static const char *const names[BLOCKS] = {"first", "second"};
    fsdp_device *d = fsdp_cpu(c);

    FSDP_TRY(fsdp_module_add_child(&m->base, "embedding",
                                   m->embedding = fsdp_embedding_create(c, d, VOCABULARY, DIM, NULL)));
    for (int i = 0; i < BLOCKS; i++) {
        block *b;

        FSDP_TRY(fsdp_module_create(c, &block_type, sizeof *b, &b));
        FSDP_TRY(fsdp_module_add_child(&m->base, names[i], m->blocks[i] = &b->base));
        FSDP_TRY(fill_block(b, c));
    }
    FSDP_TRY(fsdp_module_add_child(&m->base, "head", m->head = fsdp_linear_create(c, d, DIM, VOCABULARY, NULL)));
    return fsdp_module_initialize(&m->base, 1);
}

/* ---- how it is sharded ---- */

static fsdp_status shard(fsdp_module *module, const char *word)
{
    static const char *const classes[] = {"Block"};
    fsdp_wrap_policy blocks = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    fsdp_fsdp1_options fsdp1 = {.auto_wrap_policy = &blocks};
    fsdp_shard_options fsdp2 = {.zero_stage = strncmp(word, "zero", 4) ? 0 : word[4] - '0'};

    if (!strcmp(word, "plain"))
        return FSDP_OK;
    if (!strcmp(word, "ddp"))
        return fsdp_replicate(module, NULL);
    if (!strcmp(word, "fsdp1"))
        return fsdp_fsdp1_wrap(module, &fsdp1);
    return fsdp_fully_shard_by_policy(module, &blocks, &fsdp2);
}

/* ---- training ---- */

static fsdp_status step(fsdp_module *module, int number, int first, int rows)
{
    fsdp_device *d = fsdp_cpu(module->context);
    int32_t ids[ROWS * LENGTH], targets[ROWS * LENGTH];
    fsdp_tensor *loss;

    for (int i = 0; i < rows * LENGTH; i++) {
        ids[i] = ((first * LENGTH + i) * 7 + number * 3) % VOCABULARY;
        targets[i] = (ids[i] * 5 + 1) % VOCABULARY;
    }
    loss = fsdp_call(module, fsdp_from_data(d, FSDP_I32, FSDP_SHAPE(rows, LENGTH), ids),
                     fsdp_from_data(d, FSDP_I32, FSDP_SHAPE(rows * LENGTH), targets));
    return loss ? fsdp_backward(loss) : fsdp_last_status();
}

static fsdp_status train(fsdp_module *module, int first, int rows)
{
    fsdp_sgd_options options = {.lr = 0.5, .momentum = 0.9};
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters parameters;

    FSDP_TRY(fsdp_module_parameters(module, &parameters));
    FSDP_TRY(fsdp_sgd_create(&parameters, &options, &optimizer));
    fsdp_parameters_release(&parameters);
    for (int i = 0; i < STEPS; i++) {
        FSDP_TRY(fsdp_scope_begin(module->context));
        FSDP_TRY(step(module, i, first, rows));
        fsdp_scope_end(module->context, NULL);
        FSDP_TRY(fsdp_optimizer_step(optimizer));
        FSDP_TRY(fsdp_optimizer_zero_grad(optimizer));
    }
    fsdp_optimizer_free(optimizer);
    return FSDP_OK;
}

static fsdp_status largest_difference(const fsdp_state_dict *a, const fsdp_state_dict *b, double *out)
{
    float x[VOCABULARY * 3 * DIM], y[VOCABULARY * 3 * DIM];

    *out = a->count == b->count ? 0 : INFINITY;
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        int64_t numel = fsdp_tensor_numel(a->entries[i].tensor);

        if (strcmp(a->entries[i].name, b->entries[i].name) != 0)
            return FSDP_FAIL(FSDP_MISMATCH, "'%s' is not '%s'", a->entries[i].name, b->entries[i].name);
        FSDP_TRY(fsdp_tensor_read(a->entries[i].tensor, FSDP_F32, x));
        FSDP_TRY(fsdp_tensor_read(b->entries[i].tensor, FSDP_F32, y));
        for (int64_t k = 0; k < numel; k++)
            *out = fmax(*out, fabs((double)x[k] - (double)y[k]));
    }
    return FSDP_OK;
}

/* Trained behind the door on this rank's rows, and plain on all rows: nearly the same. What is loaded from the file
 * that all ranks wrote is the same. */
static fsdp_status compare(model *mine, model *plain, const char *folder, const char *word)
{
    fsdp_context *c = mine->base.context;
    int rows = ROWS / fsdp_context_world_size(c);
    fsdp_state_dict *state, *whole, *expected;
    double trained, loaded;

    FSDP_TRY(shard(&mine->base, word));
    FSDP_TRY(train(&mine->base, fsdp_context_rank(c) * rows, rows));
    FSDP_TRY(train(&plain->base, 0, ROWS));
    FSDP_TRY(fsdp_state_dict_from_module(&mine->base, &state));
    FSDP_TRY(fsdp_state_dict_from_module(&plain->base, &expected));
    FSDP_TRY(fsdp_state_dict_gather(state, NULL, &whole));
    FSDP_TRY(largest_difference(whole, expected, &trained));
    FSDP_TRY(fsdp_hub_save(folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(c)));
    FSDP_TRY(fsdp_hub_load(folder, expected, NULL));
    FSDP_TRY(largest_difference(whole, expected, &loaded));
    FSDP_TRY(fsdp_barrier(fsdp_world(c)));
    fsdp_state_dict_free(state);
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(expected);
    if (trained > 1e-5 || loaded != 0)
        return FSDP_FAIL(FSDP_MISMATCH, "%s: trained, %g away from the plain model; loaded, %g", word, trained, loaded);
    if (fsdp_context_rank(c) == 0)
        printf("%s: as plain\n", word);
    return FSDP_OK;
}

static fsdp_status run(fsdp_context *c, const char *folder, const char *word)
{
    model *mine = NULL, *plain = NULL;
    fsdp_status status = fsdp_module_create(c, &model_type, sizeof *mine, &mine);

    if (status == FSDP_OK)
        status = fsdp_module_create(c, &model_type, sizeof *plain, &plain);
    if (status == FSDP_OK)
        status = fill_model(mine, c);
    if (status == FSDP_OK)
        status = fill_model(plain, c);
    if (status == FSDP_OK)
        status = compare(mine, plain, folder, word);
    fsdp_module_unref((fsdp_module *)mine);
    fsdp_module_unref((fsdp_module *)plain);
    return status;
}

int main(int argc, char **argv)
{
    fsdp_context *c = NULL;
    fsdp_status status = fsdp_context_from_env(&c);

    for (int i = 2; i < argc && status == FSDP_OK; i++)
        status = run(c, argv[1], argv[i]);
    if (status != FSDP_OK)
        fprintf(stderr, "first_program: %s\n", fsdp_last_error());
    fsdp_context_free(c);
    return status != FSDP_OK;
}
