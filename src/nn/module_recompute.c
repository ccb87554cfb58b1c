/* module_recompute.c - a module whose forward is computed again in the backward, and checks of what must not have
 * changed until then. */
#include "nn/module_recompute.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "nn/module_path.h"

/* Holds what the forward depended on: a fact of a parameter, or of a module. */
typedef struct fact {
    uint64_t version;   /* of a parameter's bytes */
    bool requires_grad; /* of a parameter */
    bool training;      /* of a module */
} fact;

typedef struct call {
    fsdp_module *module; /* a reference */
    char *path;          /* path that it was called under */
    fsdp__forward forward;
    fact *facts; /* in the order of the walk */
    int64_t count, capacity;
    int64_t at; /* the next one to compare */
} call;

static void call_free(void *arg)
{
    call *c = arg;

    fsdp_module_unref(c->module);
    FSDP__FREE_ALL(c->path, c->facts, c);
}

static fact fact_of(const fsdp_tensor *parameter)
{
    return (fact){.version = parameter->storage->version, .requires_grad = fsdp_tensor_requires_grad(parameter)};
}

static fsdp_status add(call *c, fact f)
{
    FSDP_TRY(fsdp__grow(&c->facts, c->count, &c->capacity, sizeof *c->facts));
    c->facts[c->count++] = f;
    return FSDP_OK;
}

static fsdp_status note(void *arg, fsdp_module *module, const char *name)
{
    call *c = arg;

    (void)name;
    FSDP_TRY(add(c, (fact){.training = module->training}));
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        if (*module->parts->parameters[i].slot)
            FSDP_TRY(add(c, fact_of(*module->parts->parameters[i].slot)));
    return FSDP_OK;
}

/* ---- the second time ---- */

static fsdp_status fail_changed(const char *what, const char *module, const char *name, const char *change)
{
    return FSDP_FAIL(FSDP_STATE,
                     "%s '%s%s%s' %s between the forward and the backward of a recomputed module, which computes "
                     "its forward again: run the backward first",
                     what, module, *module && *name ? "." : "", name, change);
}

static fsdp_status fail_written(const char *module, const char *name, uint64_t before, uint64_t now)
{
    return FSDP_FAIL(FSDP_STATE,
                     "parameter '%s%s%s' was written to between the forward and the backward of a recomputed "
                     "module, which computes its forward again: it needs version %llu, this is version %llu; run "
                     "the backward first",
                     module, *module ? "." : "", name, (unsigned long long)before, (unsigned long long)now);
}

static const fact *next(call *c)
{
    static const fact none = {0};

    return c->at < c->count ? &c->facts[c->at++] : &none;
}

static fsdp_status compare_parameter(call *c, const fsdp__parameter_slot *slot, const char *module)
{
    const fact *before = next(c), now = fact_of(*slot->slot);

    if (now.version != before->version)
        return fail_written(module, slot->name, before->version, now.version);
    if (now.requires_grad != before->requires_grad)
        return fail_changed("parameter", module, slot->name, now.requires_grad ? "was thawed" : "was frozen");
    return FSDP_OK;
}

static fsdp_status compare(void *arg, fsdp_module *module, const char *name)
{
    call *c = arg;

    if (next(c)->training != module->training)
        return fail_changed("module", name, "", module->training ? "was set to train" : "was set to evaluate");
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        if (*module->parts->parameters[i].slot)
            FSDP_TRY(compare_parameter(c, &module->parts->parameters[i], name));
    return FSDP_OK;
}

static fsdp_status check_unchanged(call *c)
{
    c->at = 0;
    return fsdp__module_walk(c->module, compare, c);
}

static fsdp_status run(void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs, int output_count)
{
    call *c = arg;
    fsdp__viewpoint before;
    fsdp__taker outer;
    fsdp_status status;

    if (!fsdp_recomputing(c->module->context))
        return fsdp__forward_run(&c->forward, c->module, inputs, count, outputs, output_count);
    FSDP_TRY(fsdp__viewpoint_begin(c->module, c->path, &before));
    outer = fsdp__module_enter(c->module);
    status = check_unchanged(c);
    if (status == FSDP_OK)
        status = fsdp__forward_run(&c->forward, c->module, inputs, count, outputs, output_count);
    fsdp__context_set_taker(c->module->context, outer);
    if (status != FSDP_OK && !fsdp__recomputation_done(c->module->context))
        fsdp__module_say(c->module, status);
    fsdp__viewpoint_end(c->module->context, before);
    return status;
}

/* ---- the first time ---- */

fsdp_status fsdp__module_recomputed(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs,
                                    int count, fsdp_tensor **outputs, int output_count)
{
    const fsdp_recompute_options options = {.mode = module->parts->recompute, .free_arg = call_free};
    char path[FSDP__PATH_TEXT];
    fsdp_status status;
    call *c;

    if (!fsdp_grad_enabled(module->context) || fsdp_recomputing(module->context))
        return fsdp__forward_run(forward, module, inputs, count, outputs, output_count);
    c = fsdp__calloc(1, sizeof *c);
    if (!c)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot begin a recomputed forward");
    c->module = fsdp_module_ref(module);
    c->forward = *forward;
    c->path = fsdp__strdup(fsdp__module_path(module, path));
    status = c->path ? fsdp__module_walk(module, note, c) : FSDP_NO_MEMORY;
    if (status != FSDP_OK) {
        call_free(c);
        return status;
    }
    return fsdp_recompute_many(module->context, run, c, inputs, count, outputs, output_count, &options);
}

fsdp_status fsdp_module_set_recompute(fsdp_module *module, fsdp_recompute_mode mode)
{
    if (!module || mode < FSDP_RECOMPUTE_NONE || mode > FSDP_RECOMPUTE_CHEAP)
        return FSDP_FAIL(FSDP_INVALID, "set_recompute: a module and one of the four modes are needed");
    if (!fsdp__module_has_forward(module))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot recompute %s: it only holds modules and has no forward; set it on those that have",
                         module->type->name);
    module->parts->recompute = mode;
    return FSDP_OK;
}

fsdp_recompute_mode fsdp_module_recompute(const fsdp_module *module)
{
    return module ? module->parts->recompute : FSDP_RECOMPUTE_NONE;
}
