/* tree_module.c - a module that does what its node says. */
#include "shard/tree_module.h"

#include "autograd/autograd.h"
#include "shard/tree_apply.h"
#include "shard/tree_plain.h"

/* ---- forward ---- */

static fsdp_status fail_when_told(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    const tree_module *m = arg;
    void (*told)(void *arg) = m->feed->told;

    (void)tensor;
    (void)grad;
    m->feed->told = NULL;
    if (told)
        told(m->feed->told_arg);
    return m->feed->fail_backward && m->feed->failing == m->node
               ? FSDP_FAIL(FSDP_INVALID, "this module's backward was told to fail")
               : FSDP_OK;
}

/* Of the batch: also in a recomputation, when another may be the feed's. */
static fsdp_status batch_of(const tree_module *m, int *number, int *rank)
{
    uint64_t both = (uint64_t)m->feed->number << 32 | (uint32_t)m->feed->rank;

    FSDP_TRY(fsdp__recomputation_number(m->base.context, &both));
    *number = (int)(both >> 32);
    *rank = (int)(both & UINT32_MAX);
    return FSDP_OK;
}

/* (rows of the batch): other rows of a table of `count` on every rank and in every batch. */
static fsdp_tensor *ids_of(const tree_module *m, int64_t count, fsdp_device *device)
{
    int32_t ids[TREE_ROWS];
    int number, rank, rows;

    if (batch_of(m, &number, &rank) != FSDP_OK)
        return NULL;
    rows = tree_rows(m->feed->plan, number, rank);
    for (int i = 0; i < rows; i++)
        ids[i] = (int32_t)((i * 5 + number * 3 + rank) % count);
    return fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(rows), ids);
}

/* ---- what arrives of a parameter ---- */

static fsdp_status pass_gradient(fsdp__node *node, fsdp_tensor *const *grads)
{
    const fsdp_dtype *dtype = fsdp__node_state(node);
    fsdp_tensor *grad = fsdp_cast(grads[0], *dtype);

    return grad ? fsdp__node_give(node, 0, grad) : fsdp_last_status();
}

/* The values that are sent in one byte, in the compute dtype; the gradient is that of what arrives. */
static fsdp_tensor *coded_values(const tree_plan *plan, int param, fsdp_tensor *w)
{
    static const fsdp__op op = {.name = "coded", .backward = pass_gradient};
    const tree_param *p = &plan->params[tree_original(plan, param)];
    fsdp_dtype from = fsdp_tensor_dtype(w);
    float *values = malloc((size_t)fsdp_tensor_numel(w) * sizeof *values);
    int64_t outer = 1, inner = 1;
    fsdp_tensor *arrived;

    for (int d = 0; d < p->ndim; d++) {
        outer *= d < p->dim ? p->shape[d] : 1;
        inner *= d > p->dim ? p->shape[d] : 1;
    }
    CHECK_OK(fsdp_tensor_read(w, FSDP_F32, values));
    coded_round(tree_code(plan, param), values, outer, p->shape[p->dim], inner, plan->world / plan->replicas);
    arrived = fsdp_cast(fsdp_from_data(fsdp_tensor_device(w), FSDP_F32, p->ndim, p->shape, values),
                        tree_compute_dtype(plan, param));
    free(values);
    if (!arrived || fsdp__record(&op, &w, 1, &arrived, 1, NULL, 0, &from, sizeof from) != FSDP_OK)
        return NULL;
    return arrived;
}

/* As the engine gathers it. */
static fsdp_tensor *as_gathered(const tree_plan *plan, int param, fsdp_tensor *w)
{
    if (w && tree_code(plan, param))
        return coded_values(plan, param, w);
    return fsdp_cast(w, tree_compute_dtype(plan, param));
}

/* ---- forward, again ---- */

static fsdp_tensor *add_loss(fsdp_tensor *x, fsdp_tensor *loss)
{
    return x ? fsdp_add(x, fsdp_cast(fsdp_scale(loss, 0.25), fsdp_tensor_dtype(x))) : NULL;
}

static fsdp_tensor *apply(const tree_module *m, int index, fsdp_tensor *x)
{
    const tree_plan *plan = m->feed->plan;
    int param = plan->nodes[m->node].params[index];
    const tree_param *p = &plan->params[param];
    fsdp_tensor *w = m->params[index], *ids = NULL;
    int number, rank;

    if (batch_of(m, &number, &rank) != FSDP_OK)
        return NULL;
    if (p->gone || !tree_uses(plan, param, number, rank))
        return x;
    m->feed->trains = m->feed->trains || (w && fsdp_tensor_requires_grad(w));
    if (m->feed->plain)
        w = tree_plain_arrived(m->feed->player, tree_original(plan, param), as_gathered(plan, param, w));
    if (!w || !x)
        return NULL;
    x = fsdp_cast(x, fsdp_tensor_dtype(w));
    if (p->role == TREE_TABLE || p->role == TREE_HEAD)
        ids = ids_of(m, p->shape[0], fsdp_tensor_device(w));
    x = tree_apply(plan, param, x, w, ids, m->feed->team);
    if (x && m->feed->plain && tree_is_made_again(plan, param)) /* one that is written to is kept */
        CHECK_OK(fsdp_tensor_begin_write(x));
    return x;
}

/* a + b in b's dtype. */
static fsdp_tensor *add_as(fsdp_tensor *a, fsdp_tensor *b)
{
    return a && b ? fsdp_add(fsdp_cast(a, fsdp_tensor_dtype(b)), b) : NULL;
}

/* An auxiliary loss is taken with what goes on in any case. */
fsdp_tensor *tree_run_node(fsdp_module *module, int number, int rank, fsdp_tensor *x)
{
    const tree_module *m = (const tree_module *)module;
    const tree_node *node = &m->feed->plan->nodes[m->node];
    tree_take take = tree_takes(m->feed->plan, m->node, number, rank);
    fsdp_tensor *y[2];

    if (node->second == TREE_NONE)
        return fsdp_call(module, x);
    if (fsdp_module_call_many(module, m->feed, &x, 1, y, 2) != FSDP_OK || take == TREE_FIRST)
        return y[0];
    if (node->second == TREE_SCALAR)
        return add_loss(take == TREE_BOTH ? y[0] : x, y[1]);
    return take == TREE_BOTH ? fsdp_scale(add_as(y[1], y[0]), 0.5) : y[1];
}

static fsdp_tensor *call_child(const tree_module *m, int index, fsdp_tensor *x)
{
    int number, rank;

    if (batch_of(m, &number, &rank) != FSDP_OK)
        return NULL;
    return tree_run_node(fsdp_module_child_at(&m->base, index, NULL), number, rank, x);
}

static fsdp_tensor *sequence(const tree_module *m, fsdp_tensor *x)
{
    for (int i = 0; i < m->feed->plan->nodes[m->node].child_count; i++)
        x = call_child(m, i, x);
    return x;
}

static fsdp_tensor *flow(const tree_module *m, fsdp_tensor *x)
{
    const tree_node *node = &m->feed->plan->nodes[m->node];
    fsdp_tensor *sum = x;
    int chosen, number, rank;

    if (node->child_count == 0)
        return x;
    switch (node->flow) {
    case TREE_SEQUENCE:
        return sequence(m, x);
    case TREE_RESIDUAL:
        return fsdp_scale(add_as(x, sequence(m, x)), 0.5);
    case TREE_TWICE:
        return sequence(m, sequence(m, x));
    case TREE_SUM:
        for (int i = 0; i < node->child_count; i++)
            sum = add_as(sum, call_child(m, i, x));
        return fsdp_scale(sum, 1.0 / (node->child_count + 1));
    default:
        if (batch_of(m, &number, &rank) != FSDP_OK)
            return NULL;
        chosen = tree_chooses(m->feed->plan, m->node, number, rank);
        return chosen < node->child_count ? call_child(m, chosen, x) : x;
    }
}

static fsdp_tensor *second_of(tree_second what, fsdp_tensor *given, fsdp_tensor *half)
{
    if (what == TREE_SCALAR)
        return given ? fsdp_mean(fsdp_mul(given, given)) : NULL;
    return what == TREE_HALF ? half : given;
}

static fsdp_tensor *run(const tree_module *m, fsdp_tensor *x, fsdp_tensor **second)
{
    const tree_node *node = &m->feed->plan->nodes[m->node];
    int count = node->param_count;
    fsdp_tensor *given = x;

    for (int i = 0; i < count / 2; i++)
        x = apply(m, i, x);
    if (second)
        *second = second_of(node->second, given, x);
    x = flow(m, x);
    for (int i = count / 2; i < count; i++)
        x = apply(m, i, x);
    return x;
}

static fsdp_status pass(void *arg)
{
    (void)arg;
    return FSDP_OK;
}

static fsdp_tensor *forward(fsdp_module *self, fsdp_tensor *given, fsdp_tensor **second)
{
    tree_module *m = (tree_module *)self;
    const tree_node *node = &m->feed->plan->nodes[m->node];
    const fsdp_mp_policy *policy =
        m->feed->plain && node->state >= 0 ? &m->feed->plan->states[node->state].policy : &(fsdp_mp_policy){0};
    fsdp_tensor *x = given;
    const fsdp__crossing crossing = {.callback = pass};
    bool recorded;

    if (policy->param_dtype && !policy->keep_forward_inputs)
        x = fsdp_cast(x, policy->param_dtype);
    /* As the engine does: the gradients of x add up behind a node of their own. */
    if (x && m->feed->plain && node->state >= 0 && fsdp__boundary(&x, 1, &crossing, &recorded) != FSDP_OK)
        return NULL;
    x = run(m, x, second);
    if (m->feed->failing == m->node && !m->feed->fail_backward) {
        FSDP_FAIL(FSDP_INVALID, "this module's forward was told to fail");
        return NULL;
    }
    if (x && policy->output_dtype)
        x = fsdp_cast(x, policy->output_dtype);
    if (second && *second && policy->output_dtype)
        *second = fsdp_cast(*second, policy->output_dtype);
    if (x && x != given && fsdp_tensor_requires_grad(x) && fsdp_tensor_add_grad_hook(x, fail_when_told, m) != FSDP_OK)
        return NULL;
    return x;
}

static fsdp_tensor *tree_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return forward(self, inputs[0], NULL);
}

static fsdp_status tree_forward_many(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs, int output_count)
{
    (void)count;
    CHECK(arg == ((tree_module *)self)->feed && output_count == 2);
    outputs[0] = forward(self, inputs[0], &outputs[1]);
    return FSDP_OK;
}

/* ---- building ---- */

/* Values of about 1 where x is multiplied, less than 1 where something is added to it: what is computed stays tame, so
 * that roundings stay small through a few steps. */
static fsdp_init init_of(const tree_param *p)
{
    float count = p->role == TREE_CUBE ? (float)(p->shape[0] * p->shape[1]) : 1.0f;

    if (p->role == TREE_SCALE || p->role == TREE_ELEMENT || p->role == TREE_CUBE)
        return (fsdp_init){FSDP_INIT_UNIFORM, 0.8f / count, 1.2f / count};
    return (fsdp_init){FSDP_INIT_UNIFORM, -0.25f, 0.25f};
}

static void add_params(tree_module *m, fsdp_device *device)
{
    const tree_plan *plan = m->feed->plan;
    const tree_node *node = &plan->nodes[m->node];

    for (int i = 0; i < node->param_count; i++) {
        const tree_param *p = &plan->params[node->params[i]];
        char name[16];

        snprintf(name, sizeof name, "p%d", node->params[i]);
        if (p->gone || p->tied >= 0)
            continue;
        CHECK_OK(
            fsdp_module_add_parameter(&m->base, name, &m->params[i], device, p->dtype, p->ndim, p->shape, init_of(p)));
        CHECK_OK(fsdp_tensor_set_requires_grad(m->params[i], !p->frozen));
    }
}

/* The field of a parameter that is there. */
static fsdp_tensor **field_of(fsdp_module *const *modules, const tree_plan *plan, int param)
{
    int node = plan->params[param].node, i = 0;

    while (plan->nodes[node].params[i] != param)
        i++;
    return &((tree_module *)modules[node])->params[i];
}

static void tie_params(const tree_plan *plan, fsdp_module *const *modules)
{
    for (int p = 0; p < plan->param_count; p++) {
        const tree_param *param = &plan->params[p];
        char name[16];

        snprintf(name, sizeof name, "p%d", p);
        if (param->gone || param->tied < 0 || !plan->nodes[param->node].reached)
            continue;
        CHECK_OK(fsdp_module_tie_parameter(modules[param->node], name, field_of(modules, plan, p),
                                           *field_of(modules, plan, tree_original(plan, p))));
    }
}

static void add_children(const tree_plan *plan, fsdp_module *const *modules)
{
    bool held[TREE_MAX_NODES] = {false}; /* by a parent: the reference of its creation is gone */

    for (int i = 0; i < plan->node_count; i++)
        for (int k = 0; k < plan->nodes[i].child_count && plan->nodes[i].reached; k++) {
            int child = plan->nodes[i].children[k];
            char name[16];

            snprintf(name, sizeof name, "%d", child);
            if (held[child])
                (void)fsdp_module_ref(modules[child]);
            held[child] = true;
            CHECK_OK(fsdp_module_add_child(modules[i], name, modules[child]));
        }
}

void tree_modules_create(fsdp_context *context, fsdp_device *device, tree_feed *feed, fsdp_module **modules)
{
    static const fsdp_module_type types[] = {{.name = "Tree", .forward = tree_forward},
                                             {.name = "Tree", .forward_many = tree_forward_many}};
    const tree_plan *plan = feed->plan;

    for (int i = 0; i < plan->node_count; i++) {
        tree_module *m;

        if (!plan->nodes[i].reached)
            continue;
        CHECK_OK(fsdp_module_create(context, &types[plan->nodes[i].second != TREE_NONE], sizeof *m, &m));
        m->feed = feed;
        m->node = i;
        modules[i] = &m->base;
        add_params(m, device);
    }
    tie_params(plan, modules);
    add_children(plan, modules);
}
