/* Over several machines, where nobody has said how gathers run, a forward gathers ahead what came next in the forward
 * before; and only then, and nothing twice; what is gathered ahead, by FSDP1 too, is used. That it changes no bit the
 * random orders of calls show, over machines. */
#include "fsdp/fsdp1.h"
#include "shard/net_bytes.h"
#include "support/dice.h"

enum {
    BLOCKS = 4
};

typedef struct ahead {
    int machines, machine_ranks;
    fsdp_shard_options options;
    bool expected;
} ahead;

typedef struct listening {
    fsdp_module *root;
    bool gathered[BLOCKS]; /* begun, in this forward */
    int order[2 * BLOCKS]; /* blocks whose gathers have begun */
    int count;
    int early; /* blocks whose gather had begun when the one before them was left */
} listening;

static void listen(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    listening *l = arg;

    for (int i = 0; i < BLOCKS; i++) {
        if (module != net_block_at(l->root, i))
            continue;
        l->gathered[i] = l->gathered[i] || event == FSDP_EVENT_UNSHARD;
        if (event == FSDP_EVENT_UNSHARD && l->count < 2 * BLOCKS)
            l->order[l->count++] = i;
        l->early += event == FSDP_EVENT_POST_FORWARD && i + 1 < BLOCKS && l->gathered[i + 1];
    }
}

static void gather_next(fsdp_context *context, void *arg)
{
    const ahead *a = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &a->options);
    fsdp_tensor *x, *by_itself;

    for (int forward = 0; forward < 4; forward++) {
        listening l = {.root = module};

        CHECK_OK(fsdp_module_set_shard_listener(module, listen, &l));
        if (forward == 2)
            net_forward_backward(module, forward, 0, 1);
        else
            net_evaluate(module, forward, 3);
        CHECK_EQ(l.early, a->expected && forward > 0 ? BLOCKS - 1 : 0);
    }
    for (int i = 0; i < 2; i++) { /* nothing comes after it */
        listening l = {.root = module};

        CHECK_OK(fsdp_module_set_shard_listener(module, listen, &l));
        CHECK_OK(fsdp_scope_begin(context));
        x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM)));
        by_itself = CHECK_PTR(fsdp_call(net_block_at(module, 1), x));
        CHECK_EQ(l.early, 0);
        CHECK_OK(fsdp_backward(fsdp_mean(by_itself)));
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_module_set_shard_listener(module, NULL, NULL));
    fsdp_module_unref(module);
}

TEST(over_several_machines_a_forward_gathers_what_is_next)
{
    ahead all[] = {
        {2, 1, {0}, true},
        {3, 2, {.no_shared_memory = true}, true},
        {2, 2, {.overlap = FSDP_OVERLAP_WORKER}, false},
        {2, 2, {.overlap = FSDP_OVERLAP_INLINE}, false},
        {1, 2, {0}, false},
    };

    test_only_on_cpu("another device runs behind the host");
    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        test_run_machines(all[i].machines, all[i].machine_ranks, false, gather_next, &all[i]);
}

/* Lists of some: as a run has them that says how many it wants. */
static void gather_with_lists(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);

    for (int i = 0; i < BLOCKS; i++) {
        fsdp_module *after = i + 1 < BLOCKS ? net_block_at(module, i + 1) : NULL;

        CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(net_block_at(module, i), &after, after != NULL));
    }
    for (int forward = 0; forward < 3; forward++) {
        listening l = {.root = module};

        CHECK_OK(fsdp_module_set_shard_listener(module, listen, &l));
        net_evaluate(module, forward, 3);
        CHECK_EQ(l.count, BLOCKS);
        for (int i = 0; i < BLOCKS; i++)
            CHECK_EQ(l.order[i], i);
    }
    CHECK_OK(fsdp_module_set_shard_listener(module, NULL, NULL));
    fsdp_module_unref(module);
}

TEST(lists_take_the_place_of_that)
{
    fsdp_shard_options options = {0};

    test_run_machines(2, 1, false, gather_with_lists, &options);
}

/* ---- units of two sizes ---- */

/* A block and the first layer in it are units. The block's own takes more bytes where rows of it are padded to three
 * ranks, as many where they are to two. */
typedef struct pairs {
    fsdp_module *root;
    bool gathered[BLOCKS]; /* a block, since the pass began */
    int forward, backward; /* blocks whose gather had begun when the pass came to the layer before them */
} pairs;

static fsdp_module *layer_of(const pairs *p, int block)
{
    return ((net_block *)net_block_at(p->root, block))->up;
}

static void see_pair(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    pairs *p = arg;

    for (int i = 0; i < BLOCKS; i++) {
        p->gathered[i] = p->gathered[i] || (module == net_block_at(p->root, i) && event == FSDP_EVENT_UNSHARD);
        if (module != layer_of(p, i))
            continue;
        p->forward += event == FSDP_EVENT_PRE_FORWARD && i + 1 < BLOCKS && p->gathered[i + 1];
        p->backward += event == FSDP_EVENT_PRE_BACKWARD && i > 0 && p->gathered[i - 1];
    }
    if (module == p->root && event == FSDP_EVENT_POST_FORWARD)
        memset(p->gathered, 0, sizeof p->gathered);
}

static void gather_pairs(fsdp_context *context, void *arg)
{
    pairs p = {.root = net_create(context, fsdp_meta(context), BLOCKS)};
    int world = fsdp_context_world_size(context), all = world == 3 ? BLOCKS - 1 : 0;
    size_t up = rounded((size_t)(12 * NET_DIM * 4)) + rounded((size_t)12 * 4), whole;
    fsdp_memory_stats stats;

    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(fsdp_fully_shard(layer_of(&p, i), arg));
        CHECK_OK(fsdp_fully_shard(net_block_at(p.root, i), arg));
    }
    CHECK_OK(fsdp_fully_shard(p.root, arg));
    CHECK_OK(fsdp_module_materialize(p.root, test_device(context)));
    CHECK_OK(fsdp_module_initialize(p.root, 1));
    CHECK_OK(fsdp_module_set_shard_listener(p.root, see_pair, &p));
    for (int step = 0; step < 3; step++) {
        memset(p.gathered, 0, sizeof p.gathered);
        p.forward = p.backward = 0;
        fsdp_device_reset_peak(test_device(context));
        net_forward_backward(p.root, step, 0, 1);
        fsdp_device_memory(test_device(context), &stats);
        whole = root_bytes(world).whole + block_bytes(world).whole;
        /* A block that runs, its layer, and the block behind it. */
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], whole + block_bytes(world).whole - up);
        CHECK_EQ(p.forward, step > 0 ? all : 0);
        CHECK_EQ(p.backward, all);
    }
    CHECK_OK(fsdp_module_set_shard_listener(p.root, NULL, NULL));
    fsdp_module_unref(p.root);
}

/* What is smaller than the unit that computes does not fill the time, so the one after it is gathered, too. */
TEST(behind_a_small_unit_comes_one_more)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}};

    test_only_on_cpu("another device runs behind the host");
    for (int i = 0; i < 2; i++) {
        test_run_machines(3, 1, false, gather_pairs, &options[i]);
        test_run_machines(2, 1, false, gather_pairs, &options[i]);
    }
}

/* ---- meshes that are not the same on all ranks ---- */

enum {
    EXPERT_RANKS = 2, /* the first; the last is alone */
    ALL_RANKS = 3
};

typedef struct experts {
    fsdp_overlap overlap;
    float *values[ALL_RANKS];
    int64_t counts[ALL_RANKS];
} experts;

static fsdp_status place_experts(void *mesh, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    (void)parameter;
    if (strncmp(name, "up", 2) == 0)
        out->mesh = mesh;
    return FSDP_OK;
}

/* Of every other block the first layer lies over those ranks, or over the last one: padded in another way. */
static void train_experts(fsdp_context *context, void *arg)
{
    static const int ranks[] = {0, 1, 2};
    experts *e = arg;
    int rank = fsdp_context_rank(context);
    fsdp_process_group *groups[2] = {NULL};
    fsdp_shard_options options = {.overlap = e->overlap}, of_experts = options;
    fsdp_module *model = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_process_group_create(context, ranks, EXPERT_RANKS, "first", &groups[0]));
    CHECK_OK(fsdp_process_group_create(context, ranks + EXPERT_RANKS, 1, "last", &groups[1]));
    CHECK_OK(fsdp_mesh_from_groups(&groups[rank >= EXPERT_RANKS], 1, NULL, (const char *const[]){"experts"}, &mesh));
    of_experts.placement = place_experts;
    of_experts.placement_arg = mesh;
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fully_shard(net_block_at(model, i), i % 2 ? &options : &of_experts));
    CHECK_OK(fsdp_fully_shard(model, &options));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_module_initialize(model, 1));
    net_train(model, 3);
    e->values[rank] = net_values(model, &e->counts[rank]);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
    fsdp_process_group_free(groups[0]);
    fsdp_process_group_free(groups[1]);
}

TEST(ranks_with_other_meshes_gather_in_the_same_order)
{
    experts by[] = {{.overlap = FSDP_OVERLAP_INLINE}, {.overlap = FSDP_OVERLAP_AUTO}, {.overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(by); i++)
        test_run_machines(ALL_RANKS, 1, false, train_experts, &by[i]);
    for (int rank = 0; rank < ALL_RANKS; rank++)
        for (size_t i = 0; i < FSDP__COUNT_OF(by); i++) {
            CHECK_BYTES(by[i].values[rank], by[0].values[rank], (size_t)by[0].counts[rank] * sizeof(float));
            if (i > 0)
                free(by[i].values[rank]);
        }
    for (int rank = 0; rank < ALL_RANKS; rank++)
        free(by[0].values[rank]);
}

/* ---- another order ---- */

enum {
    STEPS = 3
};

/* Its blocks in the order that `path` says, by letters; it fails where there is another one. */
typedef struct paths {
    fsdp_module base;
    fsdp_module *steps[STEPS];
    const char *path;
} paths;

static fsdp_tensor *paths_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const paths *p = (paths *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    for (const char *at = p->path; *at && x; at++) {
        if (*at < 'a') {
            (void)FSDP_FAIL(FSDP_INVALID, "the path ends at '%c'", *at);
            return NULL;
        }
        x = fsdp_call(p->steps[*at - 'a'], x);
    }
    return x;
}

static const fsdp_module_type paths_type = {.name = "Paths", .forward = paths_forward};

typedef struct gathers {
    paths *of;
    int count[STEPS];
} gathers;

static void count_gathers(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    gathers *g = arg;

    for (int i = 0; i < STEPS; i++)
        g->count[i] += module == g->of->steps[i] && event == FSDP_EVENT_UNSHARD;
}

static void go(paths *p, const char *path, bool records, int a, int b, int c)
{
    fsdp_context *context = p->base.context;
    gathers g = {.of = p};
    fsdp_tensor *x, *y;

    p->path = path;
    CHECK_OK(fsdp_module_set_shard_listener(&p->base, count_gathers, &g));
    if (!records)
        fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM)));
    y = CHECK_PTR(fsdp_call(&p->base, x));
    CHECK_EQ(g.count[0], a);
    CHECK_EQ(g.count[1], b);
    CHECK_EQ(g.count[2], c);
    if (records)
        CHECK_OK(fsdp_backward(fsdp_mean(y)));
    fsdp_scope_end(context, NULL);
    if (!records)
        fsdp_no_grad_end(context);
}

/* While a gather ahead is on its way: nothing of it is left. */
static void go_wrong(paths *p, const char *path)
{
    fsdp_context *context = p->base.context;
    fsdp_tensor *x;

    p->path = path;
    CHECK_OK(fsdp_module_set_shard_listener(&p->base, NULL, NULL));
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM)));
    CHECK_NULL(fsdp_call(&p->base, x));
    CHECK_CONTAINS(fsdp_last_error(), "the path ends at");
    fsdp_scope_end(context, NULL);
}

static void change_order(fsdp_context *context, void *arg)
{
    static const char *const names[STEPS] = {"a", "b", "c"};
    paths *p;

    CHECK_OK(fsdp_module_create(context, &paths_type, sizeof *p, &p));
    for (int i = 0; i < STEPS; i++) {
        p->steps[i] = net_block_create(context, fsdp_meta(context));
        CHECK_OK(fsdp_module_add_child(&p->base, names[i], p->steps[i]));
        CHECK_OK(fsdp_fully_shard(p->steps[i], arg));
    }
    CHECK_OK(fsdp_fully_shard(&p->base, arg));
    CHECK_OK(fsdp_module_materialize(&p->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&p->base, 1));

    go(p, "ab", false, 1, 1, 0); /* an evaluation comes first, of a part */
    go(p, "abac", true, 2, 1, 1);
    go(p, "abac", true, 2, 1, 1); /* what comes again is expected once */
    go(p, "ca", false, 1, 1, 1);  /* b is expected behind a, and given up */
    go(p, "ca", true, 1, 0, 1);
    go(p, "", false, 0, 0, 1); /* expected, once */
    go(p, "", false, 0, 0, 0);
    go(p, "abc", true, 1, 1, 1);
    go_wrong(p, "a!"); /* b is on its way */
    go(p, "abc", true, 1, 1, 1);
    go(p, "abc", true, 1, 1, 1);
    go_wrong(p, "!"); /* a is */
    go(p, "abac", false, 2, 1, 1);
    CHECK_OK(fsdp_module_set_shard_listener(&p->base, NULL, NULL));
    fsdp_module_unref(&p->base);
}

TEST(what_comes_next_is_learnt_from_each_forward)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}};

    test_only_on_cpu("another device runs behind the host");
    for (int i = 0; i < 2; i++) {
        test_run_machines(2, 1, false, change_order, &options[i]);
        test_run_machines(3, 1, false, change_order, &options[i]);
        test_run_machines(2, 2, false, change_order, &options[i]);
    }
}

/* ---- no gather is for nobody ---- */

enum {
    UNITS = 4,
    USES = 8,
    ITERATIONS = 3
};

/* Calls its units, Linear(7,7) of x, in the order of `uses`. */
typedef struct walker {
    fsdp_module base;
    fsdp_module *units[UNITS];
    int uses[USES], use_count;
} walker;

static fsdp_tensor *walk(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    walker *w = (walker *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    for (int i = 0; i < w->use_count; i++)
        x = fsdp_add(x, fsdp_call(w->units[w->uses[i]], x));
    return fsdp_mean(fsdp_mul(x, x));
}

static const fsdp_module_type walker_type = {.name = "Walker", .forward = walk};

/* What became of the gathers of each unit. */
typedef struct followed {
    walker *w;
    bool open[UNITS];
    int begun, dropped;
} followed;

static void follow(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    followed *g = arg;

    for (int i = 0; i < UNITS; i++) {
        if (module != g->w->units[i])
            continue;
        g->begun += event == FSDP_EVENT_UNSHARD;
        g->dropped += event == FSDP_EVENT_RESHARD && g->open[i];
        if (event == FSDP_EVENT_UNSHARD || event == FSDP_EVENT_WAIT || event == FSDP_EVENT_RESHARD)
            g->open[i] = event == FSDP_EVENT_UNSHARD;
    }
}

typedef struct walking {
    uint64_t seed;
    bool fsdp1, ahead;
    fsdp_overlap overlap;
    int begun; /* of the last iteration, on rank 0 */
} walking;

static walker *walker_create(fsdp_context *context, const walking *p)
{
    static const fsdp_sharding_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_SHARD_GRAD_OP};
    fsdp_shard_options options = {.overlap = p->ahead ? p->overlap : FSDP_OVERLAP_INLINE};
    fsdp_fsdp1_options fsdp1 = {.strategy = strategies[p->seed % 2],
                                .use_orig_params = p->seed % 3 == 0,
                                .forward_prefetch = p->ahead,
                                .backward_prefetch =
                                    p->ahead ? (fsdp_backward_prefetch)(p->seed / 2 % 3) : FSDP_BACKWARD_NONE,
                                .overlap = options.overlap};
    uint64_t random = p->seed;
    walker *w;

    CHECK_OK(fsdp_module_create(context, &walker_type, sizeof *w, &w));
    w->use_count = 1 + dice_below(&random, USES);
    for (int i = 0; i < w->use_count; i++)
        w->uses[i] = dice_below(&random, UNITS);
    for (int i = 0; i < UNITS; i++) {
        char name[16];

        snprintf(name, sizeof name, "%d", i);
        w->units[i] = fsdp_linear_create(context, fsdp_meta(context), NET_DIM, NET_DIM, NULL);
        CHECK_OK(fsdp_module_add_child(&w->base, name, w->units[i]));
        CHECK_OK(p->fsdp1 ? fsdp_fsdp1_wrap(w->units[i], &fsdp1) : fsdp_fully_shard(w->units[i], &options));
    }
    CHECK_OK(p->fsdp1 ? fsdp_fsdp1_wrap(&w->base, &fsdp1) : fsdp_fully_shard(&w->base, &options));
    CHECK_OK(fsdp_module_materialize(&w->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&w->base, 1));
    return w;
}

static void walk_through(fsdp_context *context, void *arg)
{
    walking *p = arg;
    followed g = {.w = walker_create(context, p)};

    CHECK_OK(fsdp_module_set_shard_listener(&g.w->base, follow, &g));
    for (int i = 0; i < ITERATIONS; i++) {
        fsdp_tensor *x;

        g.begun = 0;
        CHECK_OK(fsdp_scope_begin(context));
        x = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM), 0.5));
        if (i == 1)
            fsdp_no_grad_begin(context);
        x = CHECK_PTR(fsdp_call(&g.w->base, x));
        if (i == 1)
            fsdp_no_grad_end(context);
        else
            CHECK_OK(fsdp_backward(x));
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(&g.w->base);
        CHECK_EQ(g.dropped, 0);
    }
    if (fsdp_context_rank(context) == 0)
        p->begun = g.begun;
    fsdp_module_unref(&g.w->base);
}

/* In whatever order units are used, again and again: as many gathers as where each use gathers for itself. */
TEST(what_is_gathered_ahead_is_used)
{
    const dice_seeds seeds = dice_seeds_of("AHEAD", test_long() ? 2000 : test_brief() ? 12 : 60);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        walking p = {
            .seed = seed, .fsdp1 = seed % 3 > 0, .overlap = seed % 4 ? FSDP_OVERLAP_AUTO : FSDP_OVERLAP_WORKER};
        int alone;

        test_run_ranks(2, walk_through, &p);
        alone = p.begun;
        p.ahead = true;
        test_run_ranks(2, walk_through, &p);
        if (p.begun != alone)
            TEST_FAIL("seed %d: %d gathers ahead or not, %d without any ahead", (int)seed, p.begun, alone);
    }
}
