/* Of every parameter its unit, and each rank's part: the parts of all ranks are the whole, whichever front door it came
 * through; and the printed tree says who manages what. */
#include "fsdp/shard_map.h"

#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    PARAMETERS = 2 + BLOCKS * 4 + 4,
    WORLDS = 4
};

typedef enum door {
    BY_FULLY_SHARD,
    LAST_DIMENSION,
    HYBRID,
    BY_FSDP1,
    BY_FSDP1_AS_ONE, /* one parameter a unit: use_orig_params=False */
    BY_FSDP1_WITHOUT_SHARDS,
    BY_REPLICATE,
    WAYS
} door;

static const struct {
    fsdp_front_door door;
    const char *root, *block; /* in the printed tree, %s for the ranks */
} expected[WAYS] = {
    [BY_FULLY_SHARD] = {FSDP_DOOR_FULLY_SHARD, "[fully_shard: 6 parameters, 104 elements, over %s] Net(",
                        "(0-1): 2 x [fully_shard: 4 parameters, 172 elements, over %s] Block("},
    [LAST_DIMENSION] = {FSDP_DOOR_FULLY_SHARD, "[fully_shard: 6 parameters, 104 elements, over %s] Net(", "] Block("},
    [HYBRID] = {FSDP_DOOR_FULLY_SHARD, "elements, %s] Net(", "elements, %s] Block("},
    [BY_FSDP1] = {FSDP_DOOR_FSDP1, "[FSDP1 SHARD_GRAD_OP: 6 parameters, 104 elements, over %s] Net(", "] Block("},
    [BY_FSDP1_AS_ONE] = {FSDP_DOOR_FSDP1, "[FSDP1 SHARD_GRAD_OP: 6 parameters, 104 elements, over %s] Net(",
                         "] Block("},
    [BY_FSDP1_WITHOUT_SHARDS] = {FSDP_DOOR_FSDP1, "[FSDP1 NO_SHARD: 6 parameters, ", "] Block("},
    [BY_REPLICATE] = {FSDP_DOOR_REPLICATE, "[replicate: 14 parameters, 448 elements, ", "(0-1): 2 x Block("},
};

typedef struct run {
    door way;
    bool meta;
    fsdp_shard_map maps[WORLDS];
} run;

/* ---- building ---- */

static void wrap(fsdp_module *module, door way)
{
    const fsdp_fsdp1_options options = {.strategy = way == BY_FSDP1_WITHOUT_SHARDS ? FSDP_NO_SHARD : FSDP_SHARD_GRAD_OP,
                                        .use_orig_params = way != BY_FSDP1_AS_ONE};

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
}

static void shard(fsdp_context *context, fsdp_module *module, door way)
{
    fsdp_shard_options options = {.placement = way == LAST_DIMENSION ? net_last_dimension : NULL};

    if (way == BY_REPLICATE) {
        CHECK_OK(fsdp_replicate(module, NULL));
    } else if (way >= BY_FSDP1 && way <= BY_FSDP1_WITHOUT_SHARDS) {
        wrap(module, way);
    } else {
        options.mesh = way == HYBRID ? net_hybrid_mesh(context, fsdp_context_world_size(context)) : NULL;
        net_shard(module, &options);
        fsdp_mesh_unref(options.mesh);
    }
}

/* ---- one rank's entries ---- */

static void check_entry(fsdp_context *context, fsdp_module *module, const fsdp_shard_map_entry *e, door way)
{
    const fsdp_tensor *t = CHECK_PTR(fsdp_module_parameter(module, e->name));
    bool block = strncmp(e->name, "blocks.", 7) == 0 && way != BY_REPLICATE;
    int world = fsdp_context_world_size(context), whole = way == HYBRID || way >= BY_FSDP1_WITHOUT_SHARDS;
    int64_t inner = 1;

    CHECK_EQ(e->door, expected[way].door);
    CHECK_STRING(e->unit, !block ? "" : e->name[7] == '0' ? "blocks.0" : "blocks.1");
    CHECK_EQ(e->ranks, whole ? 1 : world);
    CHECK_EQ(e->replicas, whole ? world : 1);
    CHECK_EQ(e->rank, whole ? 0 : fsdp_context_rank(context));
    CHECK_EQ(e->local_numel, fsdp_tensor_numel(t));
    CHECK_EQ(e->dtype, FSDP_F32);
    CHECK(e->trained == (way == BY_FSDP1_AS_ONE || strcmp(e->name, "head.bias") != 0));
    for (int d = 0; d < e->ndim; d++)
        inner *= d == e->dim ? 1 : e->shape[d];
    CHECK_EQ(e->local_numel, e->dim < 0 ? e->count : e->count * inner);
    CHECK(e->dim >= 0 || e->in_flat + e->count <= e->flat_numel);
    if (way == LAST_DIMENSION)
        CHECK_EQ(e->dim, e->ndim - 1);
}

static void check_print(fsdp_context *context, fsdp_module *module, door way)
{
    int world = fsdp_context_world_size(context);
    char ranks[64], part[160], *text;
    FILE *stream = test_begin_text();

    if (way == HYBRID && world > 1)
        snprintf(ranks, sizeof ranks, "whole on %d ranks", world);
    else
        snprintf(ranks, sizeof ranks, "%s%d rank%s", way == HYBRID ? "over " : "", world, world == 1 ? "" : "s");
    CHECK_OK(fsdp_module_print(module, stream));
    text = test_end_text(stream);
    for (int block = 0; block < 2; block++) {
        const char *format = block ? expected[way].block : expected[way].root, *rest = strstr(format, "%s");

        snprintf(part, sizeof part, "%.*s%s%s", rest ? (int)(rest - format) : (int)strlen(format), format,
                 rest ? ranks : "", rest ? rest + 2 : "");
        if (world > 1 || way < BY_FSDP1) /* a world of one is no world to shard over, for FSDP1 */
            CHECK_CONTAINS(text, part);
    }
}

static void map_all(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_shard_map *map = &r->maps[fsdp_context_rank(context)];
    fsdp_module *module = net_create(context, r->meta ? fsdp_meta(context) : test_device(context), BLOCKS);

    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "head.bias"), r->way == BY_FSDP1_AS_ONE));
    shard(context, module, r->way);
    CHECK_OK(fsdp_module_shard_map(module, map));
    CHECK_EQ(map->count, PARAMETERS);
    if (r->way < BY_FSDP1 || fsdp_context_world_size(context) > 1) {
        for (int64_t i = 0; i < map->count; i++)
            check_entry(context, module, &map->items[i], r->way);
        check_print(context, module, r->way);
    }
    fsdp_module_unref(module);
}

/* ---- all ranks' ---- */

/* Every index once, in the order of the ranks. */
static void check_whole(const run *r, int64_t at, int world)
{
    const fsdp_shard_map_entry *first = &r->maps[0].items[at];
    int64_t end = 0, numel = 0;

    for (int rank = 0; rank < first->ranks; rank++) {
        const fsdp_shard_map_entry *e = &r->maps[rank].items[at];

        CHECK_STRING(e->name, first->name);
        CHECK(e->count == 0 || e->first == end);
        end += e->count;
        numel += e->local_numel;
    }
    CHECK_EQ(numel, first->numel);
    CHECK_EQ(end, first->dim < 0 ? first->numel : first->shape[first->dim]);
    CHECK_EQ(first->ranks * first->replicas, world);
}

TEST(the_parts_of_all_ranks_are_the_whole)
{
    test_need_threads("each process has its own map");
    for (int world = 1; world <= WORLDS; world++)
        for (int i = 0; i < 2 * WAYS; i++) {
            run r = {.way = (door)(i / 2), .meta = i % 2 == 1 && i / 2 != BY_REPLICATE};

            test_run_ranks(world, map_all, &r);
            for (int64_t at = 0; at < PARAMETERS; at++)
                check_whole(&r, at, world);
            for (int rank = 0; rank < world; rank++)
                fsdp_shard_map_release(&r.maps[rank]);
        }
}

/* ---- what is whose ---- */

static const fsdp_shard_map_entry *entry(const fsdp_shard_map *map, const char *name)
{
    for (int64_t i = 0; i < map->count; i++)
        if (strcmp(map->items[i].name, name) == 0)
            return &map->items[i];
    TEST_FAIL("no entry '%s'", name);
}

/* Two modules as one unit, a parameter that is ignored, one of an outer unit; and while a group is unsharded. */
RANKS_TEST(every_parameter_has_the_name_of_its_unit, 3)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 0);
    fsdp_tensor *ignored = fsdp_module_parameter(module, "blocks.0.up.bias");
    const fsdp_shard_options options = {.ignored_params = &ignored, .ignored_param_count = 1};
    fsdp_module *const ends[] = {((net *)module)->norm, ((net *)module)->head};
    fsdp_shard_map map;

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_fully_shard_modules(ends, 2, &options));
    CHECK_OK(fsdp_fully_shard(((net_block *)block)->up, &options));
    CHECK_OK(fsdp_fully_shard(module, &options));
    for (int unsharded = 0; unsharded < 2; unsharded++) {
        const fsdp_shard_map_entry *e;

        CHECK_OK(fsdp_module_shard_map(module, &map));
        CHECK_STRING(entry(&map, "norm.weight")->unit, "norm,head");
        CHECK_STRING(entry(&map, "blocks.0.up.weight")->unit, "blocks.0.up");
        CHECK_STRING(entry(&map, "blocks.0.down.weight")->unit, "");
        e = entry(&map, "blocks.0.up.weight");
        CHECK_EQ(e->shape[0], NET_FFN);
        CHECK_EQ(e->local_numel, e->count * NET_DIM);
        e = entry(&map, "blocks.0.up.bias");
        CHECK_EQ(e->door, FSDP_DOOR_NONE);
        CHECK_NULL(e->unit);
        CHECK_EQ(e->count, NET_FFN);
        CHECK_EQ(e->ranks, 1);
        fsdp_shard_map_release(&map);
        CHECK_OK(fsdp_module_unshard(module));
        CHECK_OK(fsdp_module_unshard(((net_block *)block)->up));
    }
    CHECK_OK(fsdp_module_shard_map(block, &map)); /* of a part: what is above has no name there */
    CHECK_STRING(entry(&map, "up.weight")->unit, "up");
    CHECK_NULL(entry(&map, "down.weight")->unit);
    CHECK_EQ(entry(&map, "down.weight")->door, FSDP_DOOR_FULLY_SHARD);
    fsdp_shard_map_release(&map);
    CHECK_OK(fsdp_module_reshard_all(module));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_shard_map none = {0};

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_module_shard_map(module, &none));
        fsdp_shard_map_release(&none);
    }
    CHECK_ERROR(fsdp_module_shard_map(NULL, &map), FSDP_INVALID, "module is null");
    fsdp_module_unref(module);
}

CONTEXT_TEST(a_plain_module_is_nobodys)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    fsdp_shard_map map;

    CHECK_OK(fsdp_module_shard_map(module, &map));
    for (int64_t i = 0; i < map.count; i++) {
        CHECK_EQ(map.items[i].door, FSDP_DOOR_NONE);
        CHECK_EQ(map.items[i].local_numel, map.items[i].numel);
    }
    fsdp_shard_map_release(&map);
    fsdp_shard_map_release(&map);
    fsdp_shard_map_release(NULL);
    fsdp_module_unref(module);
}
