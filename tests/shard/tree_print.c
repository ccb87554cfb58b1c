/* tree_print.c - plans as text. */
#include "shard/tree_print.h"

#include "shard/tree_calls.h"

static void print_param(FILE *stream, const tree_plan *plan, int param)
{
    static const char *const roles[TREE_HEAD + 1] = {"matrix",  "tall", "table", "scale",  "bias",
                                                     "element", "cube", "gated", "unused", "head"};
    const tree_param *p = &plan->params[param];

    if (p->gone)
        return;
    fprintf(stream, " p%d=%s(", param, roles[p->role]);
    for (int d = 0; d < p->ndim; d++)
        fprintf(stream, d == 0 ? "%lld" : ",%lld", (long long)p->shape[d]);
    fprintf(stream, ")%s%s", p->dtype == FSDP_F32 ? "" : fsdp_dtype_name(p->dtype), p->frozen ? " frozen" : "");
    if (p->dim > 0)
        fprintf(stream, " in dimension %d", p->dim);
    if (p->way == TREE_OWN_ROWS)
        fprintf(stream, " with own rows");
    else if (p->way > 0)
        fprintf(stream, " cut in dimension %d", p->way - 1);
    if (p->ignored)
        fprintf(stream, " ignored");
    if (p->fickle)
        fprintf(stream, " fickle");
    if (p->tied >= 0)
        fprintf(stream, " tied to p%d", p->tied);
}

/* A node with several parents is printed whole at the first. */
static void print_node(FILE *stream, const tree_plan *plan, int node, int depth, bool *printed)
{
    static const char *const flows[TREE_FLOWS] = {"sequence", "residual", "sum", "twice", "branch", "choice"};
    static const char *const seconds[] = {"", "y and what was half done", "y and x", "y and a loss"};
    static const char *const takes[TREE_TAKES] = {"y is", "both are", "the second is", "what the rank says is"};
    const tree_node *n = &plan->nodes[node];

    fprintf(stream, "  %*s%d", 2 * depth, "", node);
    if (printed[node]) {
        fprintf(stream, " again\n");
        return;
    }
    printed[node] = true;
    if (n->child_count > 0)
        fprintf(stream, " %s", flows[n->flow]);
    if (n->second)
        fprintf(stream, " (hands on %s, of which %s taken)", seconds[n->second], takes[n->take]);
    if (n->recompute)
        fprintf(stream, " (%s recompute)", ((const char *[]){"no", "full", "selective", "cheap"})[n->recompute]);
    if (n->state >= 0)
        fprintf(stream, " [state %d]", n->state);
    for (int i = 0; i < n->param_count; i++)
        print_param(stream, plan, n->params[i]);
    fputc('\n', stream);
    for (int i = 0; i < n->child_count; i++)
        print_node(stream, plan, n->children[i], depth + 1, printed);
}

static void print_state(FILE *stream, const tree_plan *plan, int state)
{
    static const char *const reshards[] = {"auto", "always", "never"};
    const tree_state *s = &plan->states[state];
    const fsdp_mp_policy *policy = &s->policy;

    if (s->member_count == 0)
        return;
    fprintf(stream, "  state %d: reshard %s", state, reshards[s->reshard]);
    if (s->code)
        fprintf(stream, ", gathered in %s", coded_extension(s->code)->name);
    if (s->slice)
        fprintf(stream, " to slices over %d ranks", s->slice);
    if (s->stage)
        fprintf(stream, ", stage %d", s->stage);
    if (policy->param_dtype)
        fprintf(stream, ", computed in %s", fsdp_dtype_name(policy->param_dtype));
    if (policy->reduce_dtype)
        fprintf(stream, ", reduced in %s", fsdp_dtype_name(policy->reduce_dtype));
    if (policy->output_dtype)
        fprintf(stream, ", output in %s", fsdp_dtype_name(policy->output_dtype));
    if (tree_splits(plan, state))
        fprintf(stream, ", shards in halves");
    fprintf(stream, "%s%s%s\n", policy->keep_forward_inputs ? ", inputs kept" : "", s->backwards ? ", backwards" : "",
            s->marked        ? ", marked as conditional"
            : s->conditional ? ", conditional"
                             : "");
}

void tree_print_call(FILE *stream, const tree_plan *plan, int index)
{
    const tree_call *c = &plan->calls[index];
    const tree_plan *of = plan->second && c->model > 0 ? plan->second : plan;
    int params = of->param_count > 0 ? of->param_count : 1;

    fprintf(stream, "  %2d. %s%s: of states %d, of nodes %d, of parameters %d, loss %d, number %d%s%s\n", index + 1,
            of == plan ? "" : "of the second: ", tree_kinds[c->kind].name, c->target % of->state_count,
            c->target % of->node_count, c->target % params, c->slot, c->number, c->on ? ", on" : "",
            c->recurse ? ", recurse" : "");
}

void tree_print(FILE *stream, const tree_plan *plan)
{
    bool printed[TREE_MAX_NODES] = {false};

    fprintf(stream, "seed %llu: %d ranks, width %d%s%s, %s%s\n", (unsigned long long)plan->seed, plan->world,
            plan->width, plan->real ? "" : ", built on the meta device", plan->inputs ? ", gradients of inputs" : "",
            plan->adamw ? "AdamW" : "SGD", plan->late ? ", late" : "");
    if (plan->team > 1)
        fprintf(stream, "  each rank is a team of %d\n", plan->team);
    if (plan->rowless)
        fprintf(stream, "  some batches have no rows\n");
    if (plan->replicated)
        fprintf(stream, "  replicated in buckets\n");
    if (plan->flat)
        fprintf(stream, "  %s%s%s\n", plan->fsdp1 ? "units of FSDP1" : "flat groups",
                plan->as_one ? ", without original parameters" : "", plan->low_sums ? ", low gradients" : "");
    if (plan->parts > 0)
        fprintf(stream, "  states of %d groups\n", plan->parts);
    if (plan->grid || plan->replicas > 1)
        fprintf(stream, "  %d replicas\n", plan->replicas);
    if (plan->wrap != FSDP_WRAP_NONE)
        fprintf(stream, "  states by a policy of kind %d, at least %lld, mask 0x%x\n", (int)plan->wrap,
                (long long)plan->wrap_least, plan->wrap_mask);
    print_node(stream, plan, 0, 0, printed);
    for (int s = 0; s < plan->state_count; s++)
        print_state(stream, plan, s);
    for (int i = 0; i < plan->call_count; i++)
        tree_print_call(stream, plan, i);
    if (plan->second) {
        fprintf(stream, "the second: ");
        tree_print(stream, plan->second);
    }
}
