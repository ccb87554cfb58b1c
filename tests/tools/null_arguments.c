/* Calls every public function with NULL for each of its pointers in turn, and for all of them, each time in a process
 * of its own, and says which of them end it. Each is called with two numbers, so that a check of one does not hide what
 * follows it. calls.inc is what null_arguments.py writes. */
#include <fsdp/fsdp.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PATIENCE_S = 60, /* a call may wait for nothing */
    MOST = 2,
    PAGE = 4096
};

struct call {
    const char *name;
    void (*make)(unsigned nulls);
    unsigned pointers;
    int count;
};

static char zeros[1 << 16];
static int number; /* what each number is, and one more than each value of an enum */

/* What arguments of these types are. Of any other type they are zeros, or NULL if nobody sees what is in it. */
static struct object {
    const char *type;
    void *object;
} objects[48];

static void *object_of(const char *type, void *other)
{
    for (struct object *o = objects; o->type; o++)
        if (strcmp(o->type, type) == 0)
            return o->object;
    return other;
}

static const char *text_of(const char *name)
{
    static const char *const texts[][2] = {{"folder", "base"},       {"path", "base/step-1"},   {"name", "weight"},
                                           {"section", "model"},     {"key", "training.steps"}, {"value", "8"},
                                           {"dotted_name", "weight"}};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i][0], name) == 0)
            return texts[i][1];
    return "x";
}

static void check_result(const void *result)
{
    if (result && (uintptr_t)result < PAGE) /* a member of NULL */
        abort();
}

#include "calls.inc"

static void need(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fprintf(stderr, "null_arguments: %s\n", fsdp_last_error());
    exit(2);
}

static void add(const char *type, void *object)
{
    struct object *o = objects;

    while (o->type)
        o++;
    *o = (struct object){type, object};
    if (!object)
        need(fsdp_last_status());
}

static fsdp_status nothing(void *arg, int64_t global, int64_t local, int64_t numel)
{
    (void)arg;
    return global + local + numel < 0 ? FSDP_INVALID : FSDP_OK;
}

static void add_model(fsdp_context *context)
{
    static fsdp_tensor *tensors[2];
    static fsdp_module *modules[2];
    static fsdp_parameters parameters;
    fsdp_module *module = fsdp_linear_create(context, fsdp_cpu(context), 3, 2, NULL);
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_optimizer *optimizer = NULL;
    fsdp_state_dict *state = NULL;
    fsdp_grad_scaler *scaler = NULL;

    need(fsdp_scope_begin(context));
    need(fsdp_fully_shard(module, NULL));
    need(fsdp_module_initialize(module, 1));
    need(fsdp_module_parameters(module, &parameters));
    need(fsdp_adamw_create(&parameters, &options, &optimizer));
    need(fsdp_state_dict_from_module(module, &state));
    need(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    tensors[0] = tensors[1] = fsdp_zeros(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(1, 3));
    modules[0] = modules[1] = fsdp_linear_create(context, fsdp_cpu(context), 3, 2, NULL);
    add("fsdp_module", module);
    add("fsdp_parameters", &parameters);
    add("fsdp_optimizer", optimizer);
    add("fsdp_state_dict", state);
    add("fsdp_state_dict_entry", (void *)&state->entries[0]);
    add("fsdp_grad_scaler", scaler);
    add("fsdp_tensor", tensors[0]);
    add("fsdp_tensor *", tensors);
    add("fsdp_module *", modules);
    add("fsdp_distribution", (void *)fsdp_tensor_distribution(parameters.items[0].tensor));
}

static void add_checkpoint(fsdp_context *context)
{
    fsdp_checkpoint_section section = {.name = "model", .state = object_of("fsdp_state_dict", NULL)};
    fsdp_checkpoint_content content = {.step = 1, .sections = &section, .section_count = 1};
    fsdp_checkpoint_saver *saver = NULL;
    fsdp_checkpoint_reader *reader = NULL;
    fsdp_safetensors *file = NULL;
    fsdp_weights *weights = NULL;

    need(fsdp_checkpoint_save("base", &content, fsdp_world(context)));
    need(fsdp_checkpoint_saver_create("saves", NULL, fsdp_world(context), &saver));
    need(fsdp_checkpoint_open("base/step-1", &reader));
    need(fsdp_safetensors_open("base/step-1/rank-00000-of-00001.safetensors", &file));
    need(fsdp_weights_open("base/step-1/rank-00000-of-00001.safetensors", &weights));
    add("fsdp_checkpoint_saver", saver);
    add("fsdp_checkpoint_reader", reader);
    add("fsdp_checkpoint_tensor", (void *)fsdp_checkpoint_at(reader, 0));
    add("fsdp_safetensors", file);
    add("fsdp_weights", weights);
    add("fsdp_weights_entry", (void *)fsdp_weights_at(weights, 0));
}

static void add_data(const char *tokenizer_folder)
{
    static const fsdp_data_field field = {"x", FSDP_F32, 1, {2}};
    static const void *const arrays[] = {zeros};
    static fsdp_dataset set;
    const fsdp_loader_options windows = {.local_batch = 1, .microbatches = 1, .seq_len = 4, .world_size = 1};
    const fsdp_sampler_options indices = {.length = 8, .world_size = 1};
    fsdp_data_loader_options batches = {.batch_size = 2};
    fsdp_tokens *tokens = NULL;
    fsdp_loader *loader = NULL;
    fsdp_data_loader *data_loader = NULL;
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_encoder *encoder = NULL;
    fsdp_decoder *decoder = NULL;
    fsdp_chat *chat = NULL;
    FILE *out = fopen("tokens.u16", "wb");

    if (!out || fwrite(zeros, 1, 512, out) != 512 || fclose(out) != 0)
        exit(2);
    need(fsdp_tokens_open((const char *const[]){"tokens.u16"}, 1, FSDP_TOKENS_AUTO, &tokens));
    need(fsdp_loader_create(tokens, &windows, &loader));
    need(fsdp_distributed_sampler_create(&indices, &batches.sampler));
    need(fsdp_dataset_from_memory(&field, arrays, 1, 8, &set));
    need(fsdp_data_loader_create(&set, &batches, &data_loader));
    need(fsdp_tokenizer_open(tokenizer_folder, &tokenizer));
    need(fsdp_encoder_create(tokenizer, &encoder));
    need(fsdp_decoder_create(tokenizer, NULL, &decoder));
    need(fsdp_chat_open(tokenizer_folder, tokenizer, NULL, &chat));
    add("fsdp_tokens", tokens);
    add("fsdp_loader", loader);
    add("fsdp_distributed_sampler", batches.sampler);
    add("fsdp_dataset", &set);
    add("fsdp_data_loader", data_loader);
    add("fsdp_tokenizer", tokenizer);
    add("fsdp_encoder", encoder);
    add("fsdp_decoder", decoder);
    add("fsdp_chat", chat);
}

static void add_rest(fsdp_context *context)
{
    static int64_t sizes[] = {1, 3, 1, 1};
    static const char *texts[] = {"weight", "bias"};
    static fsdp_process_group *groups[2];
    fsdp_mesh *mesh = NULL;
    fsdp_stream *stream = NULL;
    fsdp_event *event = NULL;
    fsdp_train_config *config = NULL;

    groups[0] = groups[1] = fsdp_world(context);
    need(fsdp_mesh_create(context, 1, sizes, NULL, &mesh));
    need(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_INLINE, &stream));
    need(fsdp_event_create(fsdp_cpu(context), &event));
    need(fsdp_train_config_create(&config));
    add("fsdp_context", context);
    add("fsdp_device", fsdp_cpu(context));
    add("fsdp_process_group", groups[0]);
    add("fsdp_process_group *", groups);
    add("fsdp_mesh", mesh);
    add("fsdp_stream", stream);
    add("fsdp_event", event);
    add("fsdp_train_config", config);
    add("int64_t", sizes);
    add("char *", texts);
    add("FILE", fopen("/dev/null", "w"));
}

/* Makes the call in a process of its own. Returns the signal that has ended it; 0: none. */
static int signal_of(const struct call *call, unsigned nulls)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        (void)alarm(PATIENCE_S);
        call->make(nulls);
        _exit(0);
    }
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int attack(const struct call *call)
{
    int crashes = 0;

    for (int i = -1; i < call->count; i++) {
        unsigned nulls = i < 0 ? ~0u : 1u << i;
        int ended = i < 0 || call->pointers >> i & 1 ? signal_of(call, nulls) : 0;

        if (ended)
            printf("%s: signal %d with NULL for %s%.0d, numbers %d\n", call->name, ended, i < 0 ? "all" : "argument ",
                   i + 1, number);
        crashes += ended != 0;
    }
    return crashes;
}

int main(int argc, char **argv)
{
    fsdp_context *context = NULL;
    int crashes = 0;

    need(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context));
    add_model(context);
    add_checkpoint(context);
    add_data(argv[1]);
    add_rest(context);
    fflush(NULL);
    if (!freopen("/dev/null", "w", stderr))
        return 2;
    for (number = 1; number <= MOST; number++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            if (argc < 3 || strcmp(argv[2], calls[i].name) == 0)
                crashes += attack(&calls[i]);
    printf("%zu functions, %d crashes\n", sizeof calls / sizeof *calls, crashes);
    return crashes > 0;
}
