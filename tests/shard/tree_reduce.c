/* tree_reduce.c - a plan that fails, made as small as is cheap: what can be left out is. */
#include "shard/tree_trial.h"

typedef struct reduction {
    tree_plan *plan;
    const char *failure; /* of the whole plan */
    uint32_t which;
    int tries; /* left */
} reduction;

enum {
    TRIES = 600
};

/* Moves behind what a smaller plan says otherwise: numbers, and names in quotes. */
static const char *pass(const char *at)
{
    for (;;) {
        const char *end = *at == '\'' ? strchr(at + 1, '\'') : NULL;
        size_t number = strspn(at, "0123456789");

        if (end)
            at = end + 1;
        else if (number > 0)
            at += number + (strncmp(at + number, "e-", 2) == 0 || strncmp(at + number, "e+", 2) == 0 ? 2 : 0);
        else if (*at == '.' || *at == '-')
            at++;
        else
            return at;
    }
}

bool tree_fails_alike(const char *text, const char *other)
{
    static const char place[] = "\nat call "; /* what follows says where */
    const char *end = strstr(text, place), *other_end = strstr(other, place);

    text = pass(text);
    other = pass(other);
    while (*text && text != end && other != other_end && *text == *other) {
        text = pass(text + 1);
        other = pass(other + 1);
    }
    return (!*text || text == end) && (!*other || other == other_end);
}

/* Keeps `smaller` if it fails alike, and not of the memory that plans which failed before it have left full: then it is
 * the last try. A plan that cannot be has a failure of its own, which would hide the one that is looked for. */
static bool try(reduction *r, tree_plan *smaller)
{
    char text[4096];

    if (r->tries-- <= 0)
        return false;
    tree_settle(smaller);
    if (tree_passes(smaller, r->which, text, sizeof text))
        return false;
    if (strstr(text, "no memory left")) {
        r->tries = 0;
        return false;
    }
    if (!tree_fails_alike(text, r->failure))
        return false;
    *r->plan = *smaller;
    return true;
}

static void drop_calls(reduction *r)
{
    for (int length = r->plan->call_count; length >= 1; length /= 2)
        for (int i = r->plan->call_count - length; i >= 0; i -= length) {
            tree_plan smaller = *r->plan;

            memmove(&smaller.calls[i], &smaller.calls[i + length],
                    (size_t)(smaller.call_count - i - length) * sizeof *smaller.calls);
            smaller.call_count -= length;
            (void)try(r, &smaller);
            if (i > r->plan->call_count)
                i = r->plan->call_count;
        }
}

static void drop_children(reduction *r)
{
    for (int node = 0; node < r->plan->node_count; node++)
        for (int k = r->plan->nodes[node].child_count - 1; k >= 0; k--) {
            tree_plan smaller = *r->plan;
            tree_node *n = &smaller.nodes[node];

            if (!n->reached)
                continue;
            memmove(&n->children[k], &n->children[k + 1], (size_t)(n->child_count - k - 1) * sizeof *n->children);
            n->child_count--;
            (void)try(r, &smaller);
        }
}

static void simplify_params(reduction *r)
{
    for (int p = r->plan->param_count - 1; p >= 0; p--) {
        tree_plan smaller = *r->plan;

        if (smaller.params[p].gone || !smaller.nodes[smaller.params[p].node].reached)
            continue;
        smaller.params[p].gone = true;
        if (try(r, &smaller))
            continue;
        smaller = *r->plan;
        smaller.params[p].dim = smaller.params[p].way = 0;
        smaller.params[p].frozen = smaller.params[p].ignored = smaller.params[p].fickle = false;
        smaller.params[p].tied = -1;
        smaller.params[p].dtype = FSDP_F32;
        if (memcmp(&smaller.params[p], &r->plan->params[p], sizeof smaller.params[p]) != 0)
            (void)try(r, &smaller);
    }
}

static void simplify_nodes(reduction *r)
{
    for (int i = 0; i < r->plan->node_count; i++) {
        tree_plan smaller = *r->plan;

        if (!smaller.nodes[i].reached)
            continue;
        smaller.nodes[i].state = -1;
        if (i > 0 && r->plan->nodes[i].state >= 0)
            (void)try(r, &smaller);
        smaller = *r->plan;
        smaller.nodes[i].second = TREE_NONE;
        if (r->plan->nodes[i].second != TREE_NONE)
            (void)try(r, &smaller);
        smaller = *r->plan;
        smaller.nodes[i].flow = TREE_SEQUENCE;
        if (r->plan->nodes[i].flow != TREE_SEQUENCE)
            (void)try(r, &smaller);
    }
}

static void drop_team(reduction *r)
{
    tree_plan smaller = *r->plan;

    smaller.team = 0;
    if (r->plan->team > 1 && !r->plan->second)
        (void)try(r, &smaller);
}

static void simplify_options(reduction *r)
{
    tree_plan smaller = *r->plan;

    for (int s = 0; s < smaller.state_count; s++)
        smaller.states[s].policy = (fsdp_mp_policy){0};
    (void)try(r, &smaller);
    smaller = *r->plan;
    for (int s = 0; s < smaller.state_count; s++)
        smaller.states[s].code = CODED_NOT;
    (void)try(r, &smaller);
    for (int s = 0; s < r->plan->state_count; s++) {
        smaller = *r->plan;
        smaller.states[s].reshard = FSDP_RESHARD_AUTO;
        smaller.states[s].slice = 0;
        smaller.states[s].marked = false;
        if ((r->plan->states[s].reshard != FSDP_RESHARD_AUTO || r->plan->states[s].slice ||
             r->plan->states[s].marked) &&
            r->plan->states[s].member_count > 0)
            (void)try(r, &smaller);
    }
    smaller = *r->plan;
    smaller.second = NULL;
    if (r->plan->second)
        (void)try(r, &smaller);
    for (int world = 1; world < r->plan->world && world < 3 && !r->plan->second; world++) {
        smaller = *r->plan;
        smaller.world = world;
        smaller.replicas = smaller.replicated ? world : 1;
        for (int s = 0; s < smaller.state_count; s++)
            smaller.states[s].slice = 0;
        (void)try(r, &smaller);
    }
    smaller = *r->plan;
    smaller.wrap = FSDP_WRAP_NONE;
    if (r->plan->wrap != FSDP_WRAP_NONE)
        (void)try(r, &smaller);
    smaller = *r->plan;
    smaller.fsdp1 = smaller.as_one = smaller.low_sums = false;
    if (r->plan->fsdp1 && !r->plan->orders) /* those are either sharded or units */
        (void)try(r, &smaller);
    smaller = *r->plan;
    smaller.flat = smaller.fsdp1 = smaller.as_one = smaller.low_sums = false;
    if (r->plan->flat)
        (void)try(r, &smaller);
    smaller = *r->plan;
    smaller.real = true;
    smaller.inputs = smaller.inputs && tree_is_uneven(&smaller);
    smaller.late = smaller.adamw = false;
    (void)try(r, &smaller);
}

static void fewer_residences(reduction *r)
{
    for (int i = 0; i < 32; i++) {
        uint32_t before = r->which;
        tree_plan same = *r->plan;

        if (!(before >> i & 1) || before == 1u << i)
            continue;
        r->which = before & ~(1u << i);
        if (!try(r, &same))
            r->which = before;
    }
}

void tree_reduce(tree_plan *plan, uint32_t which, const char *failure)
{
    reduction r = {.plan = plan, .failure = failure, .which = which, .tries = TRIES};
    int before;

    fewer_residences(&r);
    do {
        before = plan->call_count;
        drop_calls(&r);
        drop_children(&r);
        simplify_params(&r);
        simplify_nodes(&r);
        drop_team(&r);
        simplify_options(&r);
    } while (r.tries > 0 && plan->call_count < before);
}
