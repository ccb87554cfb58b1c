/* tree_print.c - plans as text. */
#include "shard/tree_print.h"

static void print_param(FILE *stream, const tree_plan *plan, int param)
{
    static const char *const roles[TREE_ROLES] = {"matrix", "tall",    "table", "scale",
                                                  "bias",   "element", "cube",  "unused"};
    const tree_param *p = &plan->params[param];

    if (p->gone)
        return;
    fprintf(stream, " p%d=%s(", param, roles[p->role]);
    for (int d = 0; d < p->ndim; d++)
        fprintf(stream, d == 0 ? "%lld" : ",%lld", (long long)p->shape[d]);
    fprintf(stream, ")%s%s", p->dtype == FSDP_F32 ? "" : fsdp_dtype_name(p->dtype), p->frozen ? " frozen" : "");
    if (p->dim > 0)
        fprintf(stream, " in dimension %d", p->dim);
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
    if (n->checkpoint)
        fprintf(stream, " (%s checkpoint)", n->checkpoint == FSDP_RECOMPUTE_FULL ? "full" : "selective");
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
    fprintf(stream, "%s%s%s\n", policy->keep_forward_inputs ? ", inputs kept" : "", s->backwards ? ", backwards" : "",
            s->marked        ? ", marked as conditional"
            : s->conditional ? ", conditional"
                             : "");
}

void tree_print_call(FILE *stream, const tree_plan *plan, int index)
{
    static const char *const names[TREE_KINDS] = {
        [TREE_FORWARD] = "forward",
        [TREE_FORWARD_PART] = "forward of a state's first module",
        [TREE_EVALUATE] = "evaluate",
        [TREE_BACKWARD] = "backward",
        [TREE_BACKWARD_KEEP] = "backward, graph kept",
        [TREE_DROP] = "drop a loss",
        [TREE_UNSHARD] = "unshard",
        [TREE_UNSHARD_ASYNC] = "unshard, asynchronous",
        [TREE_WAIT_UNSHARD] = "wait for the unshard",
        [TREE_RESHARD] = "reshard",
        [TREE_RESHARD_ALL] = "reshard_all",
        [TREE_ZERO_GRAD] = "zero_grad",
        [TREE_STEP] = "step",
        [TREE_CLIP] = "clip",
        [TREE_FREEZE] = "freeze or unfreeze",
        [TREE_SYNC_OFF] = "sync off",
        [TREE_SYNC_ON] = "sync on",
        [TREE_ALL_REDUCE_OFF] = "all-reduce off",
        [TREE_ALL_REDUCE_ON] = "all-reduce on",
        [TREE_FORCE_SUM] = "set force sum",
        [TREE_LAST_OFF] = "not the last backward",
        [TREE_LAST_ON] = "the last backward",
        [TREE_MICROBATCH] = "not the last microbatch",
        [TREE_LAST_MICROBATCH] = "the last microbatch",
        [TREE_SET_RESHARD_FORWARD] = "set reshard after forward",
        [TREE_SET_RESHARD_BACKWARD] = "set reshard after backward",
        [TREE_SET_UNSHARD_BACKWARD] = "set unshard in backward",
        [TREE_SET_DIVIDE] = "set divide factor",
        [TREE_PREFETCH_FORWARD] = "set modules to prefetch in the forward",
        [TREE_PREFETCH_BACKWARD] = "set modules to prefetch in the backward",
        [TREE_SET_MAX_INPUTS] = "set reductions in flight",
        [TREE_POST_OPTIM] = "event behind the optimizer",
        [TREE_SEPARATE_CHANNEL] = "set a channel of their own for reductions",
        [TREE_CUSTOM] = "set collectives of the caller's",
        [TREE_WRITE] = "write",
        [TREE_RESET] = "reset",
        [TREE_FAIL_FORWARD] = "forward that fails",
        [TREE_FAIL_BACKWARD] = "backward that fails",
    };
    const tree_call *c = &plan->calls[index];
    int params = plan->param_count > 0 ? plan->param_count : 1;

    fprintf(stream, "  %2d. %s: of states %d, of nodes %d, of parameters %d, loss %d, number %d%s%s\n", index + 1,
            names[c->kind], c->target % plan->state_count, c->target % plan->node_count, c->target % params, c->slot,
            c->number, c->on ? ", on" : "", c->recurse ? ", recurse" : "");
}

void tree_print(FILE *stream, const tree_plan *plan)
{
    bool printed[TREE_MAX_NODES] = {false};

    fprintf(stream, "seed %llu: %d ranks, width %d%s%s, %s%s\n", (unsigned long long)plan->seed, plan->world,
            plan->width, plan->real ? "" : ", built on the meta device", plan->inputs ? ", gradients of inputs" : "",
            plan->adamw ? "AdamW" : "SGD", plan->late ? ", late" : "");
    if (plan->rowless)
        fprintf(stream, "  some batches have no rows\n");
    if (plan->replicated)
        fprintf(stream, "  replicated in buckets\n");
    if (plan->flat)
        fprintf(stream, plan->fsdp1 ? "  units of FSDP1\n" : "  flat groups\n");
    if (plan->replicas > 1)
        fprintf(stream, "  %d replicas\n", plan->replicas);
    if (plan->wrap != FSDP_WRAP_NONE)
        fprintf(stream, "  states by a policy of kind %d, at least %lld, mask 0x%x\n", (int)plan->wrap,
                (long long)plan->wrap_least, plan->wrap_mask);
    print_node(stream, plan, 0, 0, printed);
    for (int s = 0; s < plan->state_count; s++)
        print_state(stream, plan, s);
    for (int i = 0; i < plan->call_count; i++)
        tree_print_call(stream, plan, i);
}
