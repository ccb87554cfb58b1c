/* user_hooks.c - hooks of the caller's, around forwards and on the gradients of outputs and inputs.
 *
 * [Note: gradients of a call]
 * The inputs, behind all hooks before the forward, and the outputs, behind all those after it, are crossings of the
 * graph (autograd/boundary.c): the backward of the call lies between them. What sharding does to the module in the
 * backward also happens between the two, except for the gather, which waits for the first of them. */
#include "nn/user_hooks.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/status.h"

/* Holds the hooks of one fsdp_module_add_hooks. A graph may still need them when they are removed. */
typedef struct user_hooks {
    int64_t refs;
    int64_t handle;
    fsdp_module_hooks hooks;
    bool removed;
} user_hooks;

static const char user_key;

static void unref(user_hooks *user)
{
    if (--user->refs > 0)
        return;
    if (user->hooks.free_arg)
        user->hooks.free_arg(user->hooks.arg);
    fsdp__free(user);
}

/* ---- around the forward ---- */

static fsdp_status check_there(const fsdp_module *module, fsdp_tensor *const *tensors, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        if (!tensors[i])
            return fsdp_last_status() != FSDP_OK ? fsdp_last_status()
                                                 : FSDP_FAIL(FSDP_INVALID, "a hook of %s replaced %s %d with nothing",
                                                             module->type->name, what, i);
    return FSDP_OK;
}

static fsdp_status before(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    const user_hooks *user = arg;

    if (user->removed || !user->hooks.pre_forward)
        return FSDP_OK;
    FSDP_TRY(user->hooks.pre_forward(user->hooks.arg, module, inputs, count));
    return check_there(module, inputs, count, "input");
}

static fsdp_status after(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                         int output_count)
{
    const user_hooks *user = arg;
    uint64_t errors = fsdp__errors();
    bool failed;

    if (user->removed || !user->hooks.post_forward)
        return FSDP_OK;
    FSDP_TRY(user->hooks.post_forward(user->hooks.arg, module, inputs, count, outputs, output_count));
    /* One of several outputs may be left out, unless that is because an operation has failed. */
    failed = fsdp__errors() != errors && fsdp_last_status() != FSDP_OK;
    return output_count == 1 || failed ? check_there(module, outputs, output_count, "output") : FSDP_OK;
}

static void drop(void *arg, fsdp_module *module)
{
    (void)module;
    unref(arg);
}

/* ---- adding and removing ---- */

fsdp_status fsdp_module_add_hooks(fsdp_module *module, const fsdp_module_hooks *hooks, int64_t *out_handle)
{
    user_hooks *user;

    if (!module || !hooks)
        return FSDP_FAIL(FSDP_INVALID, "add_hooks: %s", module ? "no hooks" : "no module");
    FSDP__TRY_NEW(user = fsdp__calloc(1, sizeof *user));
    *user = (user_hooks){.refs = 1, .handle = ++module->parts->last_handle, .hooks = *hooks};
    user->hooks.free_arg = NULL; /* stays the caller's until it has been added */
    FSDP_TRY(fsdp__module_add_hooks(
        module, &(fsdp__module_hooks){
                    .key = &user_key, .arg = user, .pre_forward = before, .post_forward = after, .free_arg = drop}));
    user->hooks.free_arg = hooks->free_arg;
    if (out_handle)
        *out_handle = user->handle;
    return FSDP_OK;
}

static user_hooks *find(const fsdp_module *module, int64_t handle, bool removed)
{
    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        user_hooks *user = module->parts->hooks[i].arg;

        if (module->parts->hooks[i].key == &user_key && user->removed == removed && (removed || user->handle == handle))
            return user;
    }
    return NULL;
}

void fsdp__module_forget_removed_hooks(fsdp_module *module)
{
    user_hooks *user;

    while (module->parts->calls == 0 && module->parts->hook_count > 0 && (user = find(module, 0, true)))
        fsdp__module_remove_hooks(module, user);
}

fsdp_status fsdp_module_remove_hooks(fsdp_module *module, int64_t handle)
{
    user_hooks *user = module ? find(module, handle, false) : NULL;

    if (!user)
        return FSDP_FAIL(module ? FSDP_NOT_FOUND : FSDP_INVALID, "remove_hooks: %s has no hooks with the handle %lld",
                         module ? module->type->name : "no module", (long long)handle);
    user->removed = true;
    fsdp__module_forget_removed_hooks(module);
    return FSDP_OK;
}

/* ---- in the backward ---- */

struct fsdp__backward_call {
    int64_t refs;
    fsdp_module *module; /* a reference */
    user_hooks **users;  /* references */
    int64_t user_count;
    bool has_inputs;        /* some inputs want a gradient */
    bool *inputs, *outputs; /* which inputs and outputs do */
    int input_count, output_count;
    fsdp_tensor **grads; /* references to the outputs' gradients, between the two ends of the running backward */
};

static void forget_grads(fsdp__backward_call *c)
{
    for (int i = 0; i < c->output_count; i++)
        fsdp_tensor_unref(fsdp__take(&c->grads[i]));
}

void fsdp__backward_call_unref(fsdp__backward_call *c)
{
    if (!c || --c->refs > 0)
        return;
    forget_grads(c);
    for (int64_t i = 0; i < c->user_count; i++)
        unref(c->users[i]);
    fsdp_module_unref(c->module);
    FSDP__FREE_ALL(c->users, c->inputs, c->outputs, c->grads, c);
}

static void unref_call(void *call)
{
    fsdp__backward_call_unref(call);
}

/* Checks the gradients after a hook: a NULL must stay one, and nothing else may become one. */
static fsdp_status check_grads(const fsdp__backward_call *c, fsdp_tensor *const *before, fsdp_tensor *const *now,
                               int count)
{
    for (int i = 0; i < count; i++)
        if (!before[i] != !now[i])
            return !now[i] && fsdp_last_status() != FSDP_OK
                       ? fsdp_last_status()
                       : FSDP_FAIL(FSDP_INVALID,
                                   "a hook of %s replaced gradient %d with nothing, or nothing with a gradient",
                                   c->module->type->name, i);
    return FSDP_OK;
}

typedef fsdp_status (*hook_run)(const fsdp__backward_call *c, const fsdp_module_hooks *hooks, fsdp_tensor **grads);

static fsdp_status run_pre(const fsdp__backward_call *c, const fsdp_module_hooks *hooks, fsdp_tensor **grads)
{
    return hooks->pre_backward ? hooks->pre_backward(hooks->arg, c->module, grads, c->output_count) : FSDP_OK;
}

static fsdp_status run_post(const fsdp__backward_call *c, const fsdp_module_hooks *hooks, fsdp_tensor **grads)
{
    if (!hooks->post_backward)
        return FSDP_OK;
    return hooks->post_backward(hooks->arg, c->module, grads, c->input_count, c->grads, c->output_count);
}

/* Runs the hooks. `grads` has the gradients of those of `count` tensors that want one; hooks see them spread over all
 * tensors, and may replace them. */
static fsdp_status run_hooks(const fsdp__backward_call *c, hook_run run, const bool *wanted, int count,
                             fsdp_tensor **grads)
{
    fsdp_tensor **all = fsdp__calloc(2 * (size_t)count + 1, sizeof *all), **before;
    fsdp_status status = FSDP_OK;

    FSDP__TRY_NEW(all);
    before = all + count;
    for (int i = 0, at = 0; i < count; i++)
        all[i] = before[i] = wanted[i] ? grads[at++] : NULL;
    for (int64_t u = 0; u < c->user_count && status == FSDP_OK; u++)
        if (!c->users[u]->removed) {
            status = run(c, &c->users[u]->hooks, all);
            if (status == FSDP_OK)
                status = check_grads(c, before, all, count);
        }
    for (int i = 0, at = 0; i < count; i++)
        if (wanted[i])
            grads[at++] = all[i];
    fsdp__free(all);
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "%s", c->module->type->name);
}

static fsdp_status come_to_inputs(void *arg, fsdp_tensor **grads, int count)
{
    fsdp__backward_call *c = arg;
    fsdp_status status;

    (void)count;
    status = run_hooks(c, run_post, c->inputs, c->input_count, grads);
    forget_grads(c);
    return status;
}

static fsdp_status come_to_outputs(void *arg, fsdp_tensor **grads, int count)
{
    fsdp__backward_call *c = arg;

    (void)count;
    FSDP_TRY(run_hooks(c, run_pre, c->outputs, c->output_count, grads));
    forget_grads(c);
    for (int i = 0, at = 0; i < c->output_count; i++)
        c->grads[i] = c->outputs[i] ? fsdp_tensor_ref(grads[at++]) : NULL;
    return c->has_inputs ? FSDP_OK : come_to_inputs(c, NULL, 0);
}

/* ---- their places in the graph ---- */

static fsdp_status add_users(fsdp__backward_call *c)
{
    const struct fsdp__module_parts *parts = c->module->parts;

    FSDP__TRY_NEW(c->users = fsdp__calloc((size_t)parts->hook_count, sizeof *c->users));
    for (int64_t i = 0; i < parts->hook_count; i++) {
        user_hooks *user = parts->hooks[i].arg;

        if (parts->hooks[i].key != &user_key || user->removed)
            continue;
        user->refs++;
        c->users[c->user_count++] = user;
    }
    return FSDP_OK;
}

static bool wants_gradients(const fsdp_module *module)
{
    bool wants = false;

    for (int64_t i = 0; i < module->parts->hook_count && !wants; i++) {
        const user_hooks *user = module->parts->hooks[i].arg;

        wants = module->parts->hooks[i].key == &user_key && !user->removed &&
                (user->hooks.pre_backward || user->hooks.post_backward);
    }
    return wants && fsdp_grad_enabled(module->context) && !fsdp_recomputing(module->context);
}

/* Adds one end of the call to the graph, which takes a reference if anything is recorded. */
static fsdp_status cross(fsdp__backward_call *c, fsdp_tensor **tensors, bool *wanted, int count,
                         fsdp_status (*come)(void *arg, fsdp_tensor **grads, int count), bool *recorded)
{
    const fsdp__crossing crossing = {.arg = c, .free_arg = unref_call, .gradients = come};

    for (int i = 0; i < count; i++)
        wanted[i] = fsdp_tensor_requires_grad(tensors[i]);
    FSDP_TRY(fsdp__boundary(tensors, count, &crossing, recorded));
    c->refs += *recorded;
    return FSDP_OK;
}

fsdp_status fsdp__backward_hooks_enter(fsdp_module *module, fsdp_tensor **inputs, int count, int output_count,
                                       fsdp__backward_call **out)
{
    fsdp__backward_call *c;

    if (!wants_gradients(module))
        return FSDP_OK;
    FSDP__TRY_NEW(c = *out = fsdp__calloc(1, sizeof *c));
    c->refs = 1;
    c->module = fsdp_module_ref(module);
    c->inputs = fsdp__calloc((size_t)count + 1, sizeof *c->inputs);
    c->outputs = fsdp__calloc((size_t)output_count, sizeof *c->outputs);
    c->grads = fsdp__calloc((size_t)output_count, sizeof *c->grads);
    FSDP__TRY_NEW(c->inputs && c->outputs && c->grads);
    c->input_count = count;
    c->output_count = output_count;
    FSDP_TRY(add_users(c));
    return cross(c, inputs, c->inputs, count, come_to_inputs, &c->has_inputs);
}

fsdp_status fsdp__backward_hooks_leave(fsdp__backward_call *c, fsdp_tensor **outputs, int count)
{
    bool recorded;

    return c ? cross(c, outputs, c->outputs, count, come_to_outputs, &recorded) : FSDP_OK;
}
