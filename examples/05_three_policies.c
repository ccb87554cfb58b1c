/* 05_three_policies.c - MyModel of 03_who_holds_what.c, wrapped by FSDP1 with one of three policies: which modules
 * become units, what rank 0 holds of each parameter, and which of them are whole before, in and after a forward.
 *
 *     fsdp run -n 3 -- ./05_three_policies             size: 500 parameters or more
 *     fsdp run -n 3 -- ./05_three_policies class       modules of the class MySubModule
 *     fsdp run -n 3 -- ./05_three_policies lambda      a function that says yes to everything */
#include <fsdp/fsdp.h>
#include <string.h>

/* ---- the model: parts that are called one after the other ---- */

static fsdp_tensor *call_in_order(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *h = inputs[0];

    for (int64_t i = 0; i < fsdp_module_child_count(self); i++)
        h = fsdp_module_call(fsdp_module_child_at(self, i, NULL), &h, count);
    return h;
}

static const fsdp_module_type sub_type = {.name = "MySubModule", .forward = call_in_order};
static const fsdp_module_type model_type = {.name = "MyModel", .forward = call_in_order};

static fsdp_module *sub_create(fsdp_context *c, int64_t in, int64_t out)
{
    fsdp_module *m = NULL;

    if (fsdp_module_create(c, &sub_type, sizeof *m, &m) == FSDP_OK &&
        fsdp_module_add_child(m, "linear", fsdp_linear_create(c, fsdp_cpu(c), in, out, NULL)) == FSDP_OK &&
        fsdp_module_add_child(m, "relu", fsdp_relu_create(c)) == FSDP_OK)
        return m;
    fsdp_module_unref(m);
    return NULL;
}

static fsdp_status model_create(fsdp_context *c, fsdp_module **out)
{
    fsdp_module *block2[3];

    FSDP_TRY(fsdp_module_create(c, &model_type, sizeof **out, out));
    FSDP_TRY(fsdp_module_add_child(*out, "block1", sub_create(c, 10, 20)));
    block2[0] = fsdp_linear_create(c, fsdp_cpu(c), 20, 30, NULL);
    block2[1] = fsdp_relu_create(c);
    block2[2] = sub_create(c, 30, 40);
    FSDP_TRY(fsdp_module_add_child(*out, "block2", fsdp_sequential_create(c, block2, 3)));
    return fsdp_module_add_child(*out, "output_layer", fsdp_linear_create(c, fsdp_cpu(c), 40, 5, NULL));
}

/* ---- the policies ---- */

static bool yes(void *arg, const fsdp_module *module, const char *name)
{
    (void)arg, (void)module, (void)name;
    return true;
}

static fsdp_wrap_policy policy_of(const char *word)
{
    static const char *const classes[] = {"MySubModule"};
    fsdp_wrap_policy size = {.kind = FSDP_WRAP_SIZE, .min_num_params = 500};
    fsdp_wrap_policy class = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    fsdp_wrap_policy lambda = {.kind = FSDP_WRAP_LAMBDA, .wraps = yes};

    return !strcmp(word, "class") ? class : !strcmp(word, "lambda") ? lambda : size;
}

/* ---- printing ---- */

static fsdp_status print_parts(fsdp_module *model, const fsdp_shard_map *map)
{
    fsdp_process_group *world = fsdp_world(model->context);
    int64_t held[8];
    size_t *bytes;
    void **all; /* what each rank holds */

    for (int64_t i = 0; i < map->count && i < 8; i++)
        held[i] = map->items[i].local_numel;
    FSDP_TRY(fsdp_gather_objects(world, held, sizeof held, &all, &bytes));
    if (fsdp_context_rank(model->context) == 0) {
        fsdp_module_print(model, stdout);
        printf("\n%-22s %8s  %-15s %s\n", "parameter", "elements", "unit", "of these on rank 0, 1, ...");
        for (int64_t i = 0; i < map->count && i < 8; i++) {
            printf("%-22s %8lld  %-15s", map->items[i].name, (long long)map->items[i].numel,
                   *map->items[i].unit ? map->items[i].unit : "(root)");
            for (int rank = 0; rank < fsdp_process_group_size(world); rank++)
                printf(" %6lld", (long long)((int64_t *)all[rank])[i]);
            printf("\n");
        }
    }
    fsdp_objects_free(world, all, bytes);
    return FSDP_OK;
}

/* A parameter that is no distributed tensor is whole. What waits for its backward is whole, too, but not seen. */
static void print_whole(fsdp_module *model, const char *when, const char *name)
{
    fsdp_memory_stats memory;
    fsdp_parameters p = {0};

    if (fsdp_context_rank(model->context) != 0 || fsdp_module_parameters(model, &p) != FSDP_OK)
        return;
    fsdp_device_memory(fsdp_cpu(model->context), &memory);
    printf("%-7s %-15s %6zu bytes are whole:", when, name, memory.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER]);
    for (int64_t i = 0; i < p.count; i++)
        if (!fsdp_tensor_distribution(p.items[i].tensor) && !strstr(p.items[i].name, ".bias"))
            printf(" %s", p.items[i].name);
    printf("\n");
    fsdp_parameters_release(&p);
}

static void see(void *model, fsdp_module *module, fsdp_shard_event event)
{
    fsdp_shard_info info;

    if (event == FSDP_EVENT_WAIT && fsdp_module_shard_info(module, &info) == FSDP_OK)
        print_whole(model, "in", *info.name ? info.name : "(root)");
}

static fsdp_status run(fsdp_context *c, const fsdp_wrap_policy *policy, fsdp_module **model)
{
    fsdp_shard_map map;

    FSDP_TRY(model_create(c, model));
    FSDP_TRY(fsdp_module_initialize(*model, 1));
    FSDP_TRY(fsdp_fsdp1_wrap(*model, &(fsdp_fsdp1_options){.auto_wrap_policy = policy, .use_orig_params = true}));
    FSDP_TRY(fsdp_module_shard_map(*model, &map));
    FSDP_TRY(print_parts(*model, &map));
    fsdp_shard_map_release(&map);
    FSDP_TRY(fsdp_module_set_shard_listener(*model, see, *model));
    print_whole(*model, "before", "");
    if (!fsdp_call(*model, fsdp_full(fsdp_cpu(c), FSDP_F32, FSDP_SHAPE(2, 10), 0.5)))
        return fsdp_last_status();
    print_whole(*model, "after", "");
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    fsdp_wrap_policy policy = policy_of(argc > 1 ? argv[1] : "size");
    fsdp_context *c = NULL;
    fsdp_module *model = NULL;
    fsdp_status status = fsdp_context_from_env(&c);

    status = status == FSDP_OK ? run(c, &policy, &model) : status;
    fsdp_module_unref(model);
    if (status != FSDP_OK)
        fprintf(stderr, "05_three_policies: %s\n", fsdp_last_error());
    fsdp_context_free(c);
    return status != FSDP_OK;
}
