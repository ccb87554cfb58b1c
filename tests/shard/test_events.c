/* The order of events and collectives is PyTorch's: each case of tests/reference/runs/events-fsdp*.json is played with
 * a small net of the same shape, and what the log says of it (FSDP_LOG_DEBUG) compared, rank by rank. */
#include <jansson.h>

#include "fsdp/fsdp1.h"
#include "shard/net.h"

enum {
    LAYERS = 3,
    ITERATIONS = 3,
    TEXT = 8192
};

/* Where the engine differs, and why: the first `theirs` in the events of a case is `ours`. */
typedef struct difference {
    const char *name; /* of the case, as it begins */
    const char *theirs, *ours, *why;
    int64_t since; /* the first iteration that has it */
} difference;

#define BACK(layer) "reshard '" layer "' post_backward; "
#define DONE(layer) "post_backward '" layer "' post_backward; "
#define AHEAD(layer) "unshard '" layer "' pre_backward; all_gather 42 float32 2; "
#define LEFT(layer) "reshard '" layer "' post_backward; reduce_scatter 42 float32 2; " DONE(layer)
#define NOT_NEEDED(name, layer)                                                                       \
    {                                                                                                 \
        name, "; " DONE(layer), "; " BACK(layer) DONE(layer),                                         \
            "a gather ahead that nobody needed is given up by an event; PyTorch drops it silently", 0 \
    }

static const difference differences[] = {
    NOT_NEEDED("emb and layer 0 frozen", "layers.0"),
    NOT_NEEDED("all frozen but the head", "layers.2"),
    {"full, forward prefetch", AHEAD("layers.0") LEFT("layers.2"), LEFT("layers.2") AHEAD("layers.0"),
     "PyTorch makes the views of a flat parameter where it is gathered, here in the forward of the unit before, so "
     "that "
     "its autograd comes to them, and to the reduction behind them, a unit late",
     1},
};

/* Not played. */
static const struct {
    const char *name, *why; /* as above */
} skipped[] = {
    {"root not unsharded in backward", "PyTorch crashes"},
};

/* ---- the net of the files ---- */

typedef struct event_net {
    fsdp_module base;
    fsdp_module *emb, *layers, *head; /* emb, head: NULL, the identity */
    const json_t *layer_order;
    bool skip_middle;
} event_net;

typedef struct event_layer {
    fsdp_module base;
    fsdp_module *l;
} event_layer;

static fsdp_tensor *layer_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_add(fsdp_relu(fsdp_call(((event_layer *)self)->l, inputs[0])), inputs[0]);
}

static fsdp_module *layer_at(const event_net *n, int64_t i)
{
    return fsdp_module_child_at(n->layers, i, NULL);
}

static fsdp_tensor *event_net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    event_net *n = (event_net *)self;
    fsdp_tensor *x = n->emb ? fsdp_call(n->emb, inputs[0]) : inputs[0];
    int64_t calls = n->layer_order ? (int64_t)json_array_size(n->layer_order) : LAYERS;

    (void)count;
    for (int64_t i = 0; i < calls; i++) {
        int64_t layer = n->layer_order ? json_integer_value(json_array_get(n->layer_order, (size_t)i)) : i;

        if (!(n->skip_middle && layer == 1))
            x = fsdp_call(layer_at(n, layer), x);
    }
    return n->head ? fsdp_call(n->head, x) : x;
}

static const fsdp_module_type layer_type = {.name = "Layer", .forward = layer_forward};
static const fsdp_module_type event_net_type = {.name = "EventNet", .forward = event_net_forward};

static fsdp_module *layer_create(fsdp_context *context, int64_t width)
{
    event_layer *l;

    CHECK_OK(fsdp_module_create(context, &layer_type, sizeof *l, &l));
    l->l = fsdp_linear_create(context, test_device(context), width, width, NULL);
    CHECK_OK(fsdp_module_add_child(&l->base, "l", l->l));
    return &l->base;
}

static event_net *event_net_create(fsdp_context *context, int64_t width, bool root_params)
{
    event_net *n;

    CHECK_OK(fsdp_module_create(context, &event_net_type, sizeof *n, &n));
    n->layers = fsdp_module_list_create(context);
    if (root_params) {
        n->emb = fsdp_linear_create(context, test_device(context), width, width, NULL);
        n->head = fsdp_linear_create(context, test_device(context), width, 3, NULL);
        CHECK_OK(fsdp_module_add_child(&n->base, "emb", n->emb));
    }
    CHECK_OK(fsdp_module_add_child(&n->base, "layers", n->layers));
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(fsdp_module_list_append(n->layers, layer_create(context, width)));
    if (root_params)
        CHECK_OK(fsdp_module_add_child(&n->base, "head", n->head));
    CHECK_OK(fsdp_module_initialize(&n->base, 1));
    return n;
}

/* ---- a case: its net, sharded as it says ---- */

typedef struct play {
    const json_t *file, *spec; /* of the case */
    const char *strategy;      /* FSDP1's; NULL: FSDP2 */
    fsdp_context *context;
    event_net *net;
    char text[TEXT];
    size_t used;
} play;

static bool is_set(const json_t *spec, const char *key)
{
    return json_is_true(json_object_get(spec, key));
}

static void wrap(const play *p, const char *strategy)
{
    static const char *const strategies[] = {"full", "gradop", "none", "hybrid", "hybrid2"};
    const char *backward = json_string_value(json_object_get(p->spec, "backward_prefetch"));
    fsdp_fsdp1_options options = {.use_orig_params = is_set(p->spec, "use_orig_params"),
                                  .forward_prefetch = is_set(p->spec, "forward_prefetch")};

    while (strcmp(strategies[options.strategy], strategy) != 0)
        options.strategy++;
    if (backward && strcmp(backward, "pre") != 0)
        options.backward_prefetch = strcmp(backward, "post") == 0 ? FSDP_BACKWARD_POST : FSDP_BACKWARD_NONE;
    if (json_object_get(p->spec, "mesh"))
        options.mesh = net_hybrid_mesh(p->context, 2);
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(layer_at(p->net, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(&p->net->base, &options));
    fsdp_mesh_unref(options.mesh);
}

static void shard(const play *p)
{
    const json_t *reshard = json_object_get(p->spec, "reshard_after_forward");
    fsdp_shard_options options = {.reshard_after_forward = json_is_true(reshard)    ? FSDP_RESHARD_ALWAYS
                                                           : json_is_false(reshard) ? FSDP_RESHARD_NEVER
                                                                                    : FSDP_RESHARD_AUTO,
                                  .reshard_after_forward_ranks = (int)json_integer_value(reshard)};
    fsdp_module *ends[] = {p->net->emb, p->net->head};

    for (int i = 0; i < LAYERS; i++) {
        CHECK_OK(fsdp_fully_shard(layer_at(p->net, i), &options));
        if (is_set(p->spec, "checkpoint"))
            CHECK_OK(fsdp_module_set_recompute(layer_at(p->net, i), FSDP_RECOMPUTE_FULL));
    }
    if (is_set(p->spec, "grouped_head"))
        CHECK_OK(fsdp_fully_shard_modules(ends, 2, &options));
    CHECK_OK(fsdp_fully_shard(&p->net->base, &options));
}

static void freeze(const play *p)
{
    const json_t *frozen = json_object_get(p->spec, "frozen"), *fragment;
    fsdp_parameters parameters;
    size_t index;

    CHECK_OK(fsdp_module_parameters(&p->net->base, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        json_array_foreach(frozen, index, fragment) if (strstr(parameters.items[i].name, json_string_value(fragment)))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, false));
    fsdp_parameters_release(&parameters);
}

/* "" or "layers.1" */
static fsdp_module *module_of(const play *p, const char *name)
{
    return *name ? layer_at(p->net, name[strlen(name) - 1] - '0') : &p->net->base;
}

static void set_prefetch(const play *p, const char *key,
                         fsdp_status (*set)(fsdp_module *module, fsdp_module *const *modules, int count))
{
    const char *name;
    json_t *listed;

    json_object_foreach(json_object_get(p->spec, key), name, listed)
    {
        fsdp_module *modules[LAYERS];
        size_t count = json_array_size(listed);

        for (size_t i = 0; i < count; i++)
            modules[i] = module_of(p, json_string_value(json_array_get(listed, i)));
        CHECK_OK(set(module_of(p, name), modules, (int)count));
    }
}

static void build(play *p)
{
    p->net = event_net_create(p->context, json_integer_value(json_object_get(p->file, "width")),
                              !json_is_false(json_object_get(p->spec, "root_params")));
    p->net->layer_order = json_object_get(p->spec, "layer_order");
    p->net->skip_middle = strcmp(json_string_value(json_object_get(p->spec, "mode")) ?: "", "skip_middle") == 0;
    if (p->strategy) {
        wrap(p, p->strategy);
        return;
    }
    shard(p);
    freeze(p);
    set_prefetch(p, "forward_prefetch", fsdp_module_set_modules_to_forward_prefetch);
    set_prefetch(p, "backward_prefetch", fsdp_module_set_modules_to_backward_prefetch);
}

/* ---- what happens ---- */

static void add_text(play *p, const char *format, ...) FSDP_PRINTF(2, 3);
static void add_text(play *p, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    p->used += (size_t)vsnprintf(p->text + p->used, sizeof p->text - p->used, format, arguments);
    va_end(arguments);
    CHECK(p->used < sizeof p->text);
}

/* With NO_SHARD nothing is gathered: PyTorch tells nothing of it. */
static bool is_whole(const play *p)
{
    return p->strategy && strcmp(p->strategy, "none") == 0;
}

/* Lines of the log become "unshard 'layers.0' forward; " and "all_gather 42 float32 2; "; others are passed over. */
static void listen(void *arg, fsdp_log_level level, const char *line)
{
    play *p = arg;
    char what[32], name[64] = "", training[32], dtype[16];
    const char *rest = strstr(line, "] ");
    int ranks;
    long long count;

    (void)level;
    rest = rest ? rest + 2 : line;
    if (sscanf(rest, "%31[a-z_]: %lld %15s over %d ranks", what, &count, dtype, &ranks) == 4)
        add_text(p, "%s %lld %s %d; ", what, count, dtype, ranks);
    else if (sscanf(rest, "%31s '' (%31[a-z_])", what, training) == 2 ||
             sscanf(rest, "%31s '%63[^']' (%31[a-z_])", what, name, training) == 3)
        if (((strcmp(what, "unshard") == 0 || strcmp(what, "reshard") == 0) && !is_whole(p)) ||
            strcmp(what, "post_backward") == 0)
            add_text(p, "%s '%s' %s; ", what, name, training);
}

static fsdp_tensor *forward(play *p)
{
    int64_t width = json_integer_value(json_object_get(p->file, "width"));
    float values[64];
    fsdp_tensor *x;

    for (int i = 0; i < 2 * width; i++)
        values[i] = (float)(i * 7 % 11) / 11.0f - 0.3f;
    x = CHECK_PTR(fsdp_from_data(test_device(p->context), FSDP_F32, FSDP_SHAPE(2, width), values));
    if (is_set(p->spec, "input_requires_grad"))
        CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    return CHECK_PTR(fsdp_mean(CHECK_PTR(fsdp_call(&p->net->base, x))));
}

static void backward(play *p, fsdp_tensor *loss)
{
    add_text(p, "backward; ");
    CHECK_OK(fsdp_backward(loss));
}

static void play_two_forwards(play *p, bool two_backwards)
{
    fsdp_module *root = &p->net->base;
    fsdp_tensor *first = forward(p), *second;

    add_text(p, "forward; ");
    second = forward(p);
    if (!two_backwards) {
        backward(p, CHECK_PTR(fsdp_add(first, second)));
        return;
    }
    CHECK_OK(fsdp_module_set_is_last_backward(root, false));
    backward(p, first);
    CHECK_OK(fsdp_module_set_is_last_backward(root, true));
    backward(p, second);
}

static void play_microbatches(play *p)
{
    fsdp_module *root = &p->net->base;
    bool no_sync = !json_is_false(json_object_get(p->spec, "no_sync"));

    for (int micro = 0; micro < 2; micro++) {
        bool held = no_sync && micro == 0;

        if (p->strategy && held)
            CHECK_OK(fsdp_fsdp1_no_sync_begin(root));
        else if (!p->strategy)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(root, !held, true));
        if (is_set(p->spec, "rab_last"))
            CHECK_OK(fsdp_module_set_reshard_after_backward(root, micro == 1, true));
        if (micro > 0)
            add_text(p, "forward; ");
        backward(p, forward(p));
        if (p->strategy && held)
            CHECK_OK(fsdp_fsdp1_no_sync_end(root));
    }
}

static void play_evaluation(play *p)
{
    fsdp_no_grad_begin(p->context);
    (void)forward(p);
    fsdp_no_grad_end(p->context);
}

static void play_iteration(play *p)
{
    const char *mode = json_string_value(json_object_get(p->spec, "mode"));

    mode = mode ? mode : "";
    p->used = 0;
    p->text[0] = '\0';
    if (strcmp(mode, "unshard_first") == 0) {
        CHECK_OK(fsdp_module_unshard(&p->net->base));
        for (int i = 0; i < LAYERS; i++)
            CHECK_OK(fsdp_module_unshard(layer_at(p->net, i)));
        add_text(p, "forward; ");
    }
    if (strcmp(mode, "two_forwards") == 0 || strcmp(mode, "two_forwards_two_backwards") == 0)
        play_two_forwards(p, mode[strlen("two_forwards")] != '\0');
    else if (strcmp(mode, "accum") == 0)
        play_microbatches(p);
    else if (strcmp(mode, "eval") == 0)
        play_evaluation(p);
    else
        backward(p, forward(p));
}

/* ---- what is expected ---- */

static void expect_event(play *p, const json_t *event)
{
    const char *what = json_string_value(json_array_get(event, 0)), *training;
    char small[32] = "";

    if (json_array_size(event) == 1) {
        add_text(p, "%s; ", what);
        return;
    }
    if (strcmp(what, "reshard (kept)") == 0)
        return;
    if (json_array_size(event) == 4) {
        add_text(p, "%s %lld %s %lld; ",
                 strstr(what, "allgather")   ? "all_gather"
                 : strstr(what, "allreduce") ? "all_reduce"
                                             : "reduce_scatter",
                 (long long)json_integer_value(json_array_get(event, 1)), json_string_value(json_array_get(event, 2)),
                 (long long)json_integer_value(json_array_get(event, 3)));
        return;
    }
    training = json_string_value(json_array_get(event, 2));
    training = strcmp(training, "BACKWARD_PRE") == 0    ? "PRE_BACKWARD" /* FSDP1's names */
               : strcmp(training, "BACKWARD_POST") == 0 ? "POST_BACKWARD"
                                                        : training;
    for (size_t i = 0; training[i] && i < sizeof small - 1; i++)
        small[i] = (char)(training[i] == '_' ? '_' : training[i] - 'A' + 'a');
    add_text(p, "%s '%s' %s; ", what, json_string_value(json_array_get(event, 1)), small);
}

/* As the file has it: the last iteration that it tells of, not after `iteration`. */
static void expect(play *p, int64_t iteration)
{
    const json_t *events = NULL, *event;
    char key[32];
    size_t index;

    for (int64_t i = iteration; i >= 0 && !events; i--) {
        snprintf(key, sizeof key, "iteration%lld", (long long)i);
        events = json_object_get(p->spec, key);
    }
    json_array_foreach(events, index, event) expect_event(p, event);
}

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void apply_differences(play *p, const char *name, int64_t iteration)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(differences); i++) {
        const difference *d = &differences[i];
        char after[TEXT], *at;

        if (!begins_with(name, d->name) || iteration < d->since)
            continue;
        at = strstr(p->text, d->theirs);
        if (!at)
            TEST_FAIL("'%s': there is no '%s' any more", name, d->theirs);
        snprintf(after, sizeof after, "%s", at + strlen(d->theirs));
        p->used = (size_t)(at - p->text);
        add_text(p, "%s%s", d->ours, after);
    }
}

/* ---- running ---- */

/* What differs, from the last event that is the same. */
static void check_text(const char *name, int64_t iteration, const char *actual, const char *expected)
{
    size_t at = 0, same = 0;

    for (; actual[at] == expected[at] && actual[at]; at++)
        if (actual[at] == ';')
            same = at;
    if (actual[at] != expected[at])
        TEST_FAIL("'%s', iteration %lld, differs after %.40s:\n  is       %.300s\n  expected %.300s", name,
                  (long long)iteration, actual + (same < 40 ? 0 : same - 40), actual + same, expected + same);
}

static void play_case(fsdp_context *context, void *arg)
{
    play p = *(const play *)arg, *expected = calloc(1, sizeof *expected);
    const char *name = json_string_value(json_object_get(p.spec, "case"));

    p.context = context;
    build(&p);
    *expected = p;
    fsdp_context_set_log(context, FSDP_LOG_DEBUG, listen, &p);
    for (int64_t i = 0; i < ITERATIONS; i++) {
        CHECK_OK(fsdp_scope_begin(context));
        play_iteration(&p);
        fsdp_scope_end(context, NULL);
        expected->used = 0;
        expected->text[0] = '\0';
        expect(expected, i);
        apply_differences(expected, name, i);
        check_text(name, i, p.text, expected->text);
        fsdp_module_zero_grad(&p.net->base);
    }
    fsdp_context_set_log(context, FSDP_LOG_INFO, NULL, NULL);
    free(expected);
    fsdp_module_unref(&p.net->base);
}

static bool is_skipped(const char *name)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(skipped); i++)
        if (begins_with(name, skipped[i].name))
            return true;
    return false;
}

static void play_file(const char *path)
{
    json_t *file = json_load_file(path, 0, NULL);
    const json_t *spec;
    int64_t played = 0;
    size_t index;

    CHECK(file != NULL);
    json_array_foreach(json_object_get(file, "cases"), index, spec)
    {
        play p = {.file = file, .spec = spec, .strategy = json_string_value(json_object_get(spec, "strategy"))};

        if (is_skipped(json_string_value(json_object_get(spec, "case"))))
            continue;
        test_run_ranks((int)json_integer_value(json_object_get(file, "world_size")), play_case, &p);
        played++;
    }
    CHECK(played > 2);
    json_decref(file);
}

TEST(events_and_collectives_come_in_the_order_of_pytorch)
{
    test_only_on_one_machine("over several a forward gathers ahead by itself");
    play_file(TEST_SOURCE_DIR "/tests/reference/runs/events-fsdp2-ws2.json");
    play_file(TEST_SOURCE_DIR "/tests/reference/runs/events-fsdp2-reshard2-ws4.json");
    play_file(TEST_SOURCE_DIR "/tests/reference/runs/events-fsdp1-ws2.json");
    play_file(TEST_SOURCE_DIR "/tests/reference/runs/events-fsdp1-hybrid-2x2.json");
}
