/* parallelize.c - applies a plan: everything is checked first, then ranks agree, and only then something changes. */
#include <string.h>

#include "base/alloc.h"
#include "dist/dist.h"
#include "fsdp/comm.h"
#include "parallel/plan.h"

/* ---- planning ---- */

static void release(fsdp__tp_planning *p)
{
    for (int64_t i = 0; i < p->job_count; i++)
        fsdp__free(p->jobs[i].name);
    FSDP__FREE_ALL(p->jobs, p->claims);
    fsdp__tp_unref(p->plan);
}

/* Returns whether the caller's own style has the module, or one above it. */
static bool is_custom(const fsdp__tp_planning *planning, const char *name)
{
    for (int64_t i = 0; i < planning->job_count; i++) {
        const fsdp__job *job = &planning->jobs[i];
        size_t length = strlen(job->name);

        if (job->kind == &fsdp__custom_style && strncmp(job->name, name, length) == 0 &&
            (length == 0 || name[length] == '.' || !name[length]))
            return true;
    }
    return false;
}

/* Finds the claim of a parameter; with a module, that which it has. NULL: there is none. */
static const fsdp__claim *find_claim(const fsdp__tp_planning *planning, const fsdp_tensor *tensor,
                                     const fsdp_module *module)
{
    for (int64_t i = 0; i < planning->claim_count; i++)
        if (planning->claims[i].tensor == tensor && (!module || planning->claims[i].module == module))
            return &planning->claims[i];
    return NULL;
}

/* Checks that whoever else computes with a parameter that is cut, since it is tied, is in the plan as well: it would
 * take a part for the whole. Modules below one of a custom style are that style's affair. */
static fsdp_status check_tied(void *arg, fsdp_module *module, const char *name)
{
    const fsdp__tp_planning *planning = arg;

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        const fsdp__claim *claim = *slot->slot ? find_claim(planning, *slot->slot, NULL) : NULL;

        if (!claim || claim->placement.kind != FSDP_SHARD || find_claim(planning, *slot->slot, module) ||
            is_custom(planning, name))
            continue;
        return FSDP_FAIL(FSDP_INVALID,
                         "the pattern '%s' cuts a parameter that is tied to '%s%s%s', and no pattern names '%s', which "
                         "would take a part for the whole: add it to the plan",
                         claim->pattern, name, *name ? "." : "", slot->name, name);
    }
    return FSDP_OK;
}

static fsdp_status check_all(fsdp__tp_planning *p, const fsdp__tp_entry *entries, int count)
{
    FSDP_TRY(fsdp__check_work(p->module, FSDP__WORK_OF_LAYERS, p->plan->mesh));
    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__tp_match(p, &entries[i]));
    for (int64_t i = 0; i < p->job_count; i++)
        FSDP_TRY(p->jobs[i].kind->check(p, &p->jobs[i]));
    return fsdp__module_walk(p->module, check_tied, p);
}

/* ---- what ranks must have alike ---- */

static void print_job(const fsdp__job *job, FILE *out)
{
    fprintf(out, "'%s' %s", job->name, job->kind->name);
    for (int i = 0; i < FSDP_PARALLEL_TENSORS; i++)
        if (job->style.from[i].kind || job->style.to[i].kind)
            fprintf(out, ", %s to %s", FSDP__LAYOUT(job->style.from[i]), FSDP__LAYOUT(job->style.to[i]));
    fprintf(out, "%s%s\n", job->style.loss_parallel ? ", loss parallel" : "", job->style.async ? ", asynchronous" : "");
}

static void print_claim(const fsdp__claim *claim, FILE *out)
{
    fprintf(out, "'%s' of a %s of shape (", claim->slot, claim->module->type->name);
    for (int d = 0; d < claim->tensor->ndim; d++)
        fprintf(out, "%s%lld", d > 0 ? ", " : "", (long long)claim->tensor->shape[d]);
    fprintf(out, ") as %s\n", FSDP__PLACEMENTS(&claim->placement, 1));
}

/* Writes a line for each parameter: its shape, that of the whole if it was cut before, how it was placed then, its
 * dtype, and whether it is trained; and for what is beside a layer. */
static fsdp_status print_parameters(void *arg, fsdp_module *module, const char *name)
{
    const fsdp__layer_beside *beside = fsdp__layer_beside_of(module);

    if (beside)
        fprintf(arg, "beside '%s' an adapter that is %s, scaled by %.9g\n", name, beside->off ? "off" : "on",
                (double)beside->scaling);
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        const fsdp_tensor *t = *slot->slot;
        const fsdp_distribution *d = t ? fsdp_tensor_distribution(t) : NULL;

        if (t)
            fprintf(arg, "'%s%s%s' of shape %s%s%s, %s, %s\n", name, *name ? "." : "", slot->name,
                    FSDP__SHOWN_SHAPE(t->ndim, d ? d->global_shape : t->shape), d ? " as " : "",
                    d ? FSDP__PLACEMENTS(d->placements, d->placement_count) : "", fsdp_dtype_name(t->dtype),
                    fsdp_tensor_requires_grad(t) ? "trained" : "frozen");
    }
    return FSDP_OK;
}

/* Writes what of a config changes what is computed, but no shape. */
static void print_config(const fsdp_model_config *c, FILE *out)
{
    fprintf(out, "norm_eps %g\nrope_theta %g\nrope_type %d\nrope_factor %g\n", (double)c->norm_eps,
            (double)c->rope_theta, (int)c->rope_type, (double)c->rope_factor);
    fprintf(out, "embd_dropout %g\ndropout %g\nattention_dropout %g\n", (double)c->embd_dropout, (double)c->dropout,
            (double)c->attention_dropout);
    fprintf(out, "window %lld\nattention_softcap %g\nlogits_softcap %g\nquery_scalar %g\n", (long long)c->window,
            (double)c->attention_softcap, (double)c->logits_softcap, (double)c->query_scalar);
    for (int64_t i = 0; c->window > 0 && i < c->n_layers; i++)
        fprintf(out, "layer %lld %s\n", (long long)i, fsdp_model_layer_is_local(c, i) ? "local" : "full");
}

static fsdp_status print_module(void *module, FILE *out)
{
    const fsdp_model_config *config = fsdp_model_get_config(module);

    if (config)
        print_config(config, out);
    return fsdp__module_walk(module, print_parameters, out);
}

/* Writes the plan, a line for each job and claim, and the model. */
static fsdp_status print_plan(void *planning, FILE *out)
{
    const fsdp__tp_planning *p = planning;

    for (int64_t i = 0; i < p->job_count; i++)
        print_job(&p->jobs[i], out);
    FSDP_TRY(print_module(p->module, out));
    for (int64_t i = 0; i < p->claim_count; i++)
        print_claim(&p->claims[i], out);
    return FSDP_OK;
}

/* Gives the first lines in which two texts differ. */
static void first_difference(const char **a, const char **b, int *a_length, int *b_length)
{
    for (;;) {
        size_t la = strcspn(*a, "\n"), lb = strcspn(*b, "\n");

        *a_length = (int)la;
        *b_length = (int)lb;
        if (la != lb || memcmp(*a, *b, la) != 0 || !(*a)[la] || !(*b)[lb])
            return;
        *a += la + 1;
        *b += lb + 1;
    }
}

static fsdp_status compare(int ranks, void *const *texts, const char *what)
{
    for (int r = 1; r < ranks; r++) {
        const char *a = texts[0], *b = texts[r];
        int a_length, b_length;

        if (strcmp(a, b) == 0)
            continue;
        first_difference(&a, &b, &a_length, &b_length);
        return FSDP_FAIL(FSDP_MISMATCH, "%s: rank 0 of the mesh has %.*s, rank %d has %.*s", what,
                         a_length > 0 ? a_length : 7, a_length > 0 ? a : "nothing", r, b_length > 0 ? b_length : 7,
                         b_length > 0 ? b : "nothing");
    }
    return FSDP_OK;
}

typedef fsdp_status (*printer)(void *of, FILE *out);

/* Compares what all ranks print, unless one of them cannot. */
static fsdp_status compare_prints(fsdp_process_group *group, printer print, void *of, const char *named,
                                  const char *what)
{
    FSDP__FREED char *text = NULL;
    size_t text_bytes = 0, *bytes = NULL;
    FILE *out = fsdp__begin_text(&text, &text_bytes);
    fsdp_status status = out ? print(of, out) : FSDP_NO_MEMORY;
    void **texts = NULL;

    if (out && fclose(out) != 0)
        status = FSDP_NO_MEMORY;
    if (status == FSDP_NO_MEMORY)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "cannot write %s", named);
    FSDP_TRY(fsdp_agree(group, status));
    FSDP_TRY(fsdp_gather_objects(group, text, strlen(text) + 1, &texts, &bytes));
    status = compare(fsdp_process_group_size(group), texts, what);
    fsdp_objects_free(group, texts, bytes);
    return status;
}

static fsdp_status check_alike(fsdp__tp_planning *p)
{
    return compare_prints(p->plan->group, print_plan, p, "a plan", "ranks do not have the same plan");
}

fsdp_status fsdp__check_models_alike(fsdp_module *model, fsdp_process_group *group)
{
    return compare_prints(group, print_module, model, "what a model has", "ranks do not have the same model");
}

/* ---- dropouts ---- */

/* The seeds of dropouts, which are those of the first rank: what is replicated is dropped alike, and parts of one
 * tensor by one mask. */
typedef struct seeds {
    uint64_t **places, *values;
    int64_t count, capacity;
} seeds;

static fsdp_status add_seed(void *arg, fsdp_module *module, const char *name)
{
    seeds *s = arg;
    uint64_t *place = fsdp__dropout_seed(module);

    (void)name;
    if (!place)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&s->places, s->count, &s->capacity, sizeof(uint64_t *)));
    s->places[s->count++] = place;
    return FSDP_OK;
}

fsdp_status fsdp__share_dropout_seeds(fsdp_module *module, fsdp_process_group *group, fsdp_status so_far)
{
    FSDP__FREED uint64_t *values = NULL;
    seeds s = {0};
    void **objects = NULL;
    size_t *bytes = NULL;
    fsdp_status status = so_far == FSDP_OK ? fsdp__module_walk(module, add_seed, &s) : so_far;

    if (status == FSDP_OK && !(values = fsdp__calloc((size_t)s.count + 1, sizeof *values)))
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot share the seeds of %lld dropouts", (long long)s.count);
    for (int64_t i = 0; status == FSDP_OK && i < s.count; i++)
        values[i] = *s.places[i];
    FSDP_TRY_GOTO(status, fsdp_agree(group, status), out);
    FSDP_TRY_GOTO(status, fsdp_gather_objects(group, values, (size_t)s.count * sizeof *values, &objects, &bytes), out);
    for (int r = 1; status == FSDP_OK && r < fsdp_process_group_size(group); r++) /* every rank sees the same */
        if (bytes[r] != bytes[0])
            status = FSDP_FAIL(FSDP_MISMATCH, "rank 0 of the mesh has %zu dropouts below the %s, rank %d has %zu",
                               bytes[0] / sizeof *values, module->type->name, r, bytes[r] / sizeof *values);
    for (int64_t i = 0; status == FSDP_OK && i < s.count; i++)
        memcpy(s.places[i], (char *)objects[0] + (size_t)i * sizeof *values, sizeof *values);
    fsdp_objects_free(group, objects, bytes);
out:
    fsdp__free(s.places);
    return status;
}

/* ---- what styles of callers have done ---- */

static fsdp_status print_placed(void *arg, fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        const fsdp_distribution *d = *slot->slot ? fsdp_tensor_distribution(*slot->slot) : NULL;

        if (*slot->slot)
            fprintf(arg, "'%s%s%s' as %s%s\n", name, *name ? "." : "", slot->name,
                    d ? FSDP__PLACEMENTS(d->placements, d->placement_count) : "a plain tensor",
                    d && d->partial_gradients ? " with partial gradients" : "");
    }
    return FSDP_OK;
}

static fsdp_status print_all_placed(void *module, FILE *out)
{
    return fsdp__module_walk(module, print_placed, out);
}

/* Checks that parameters are placed alike on all ranks: a custom style may have done otherwise, which would be noticed
 * only where ranks wait for each other, or not at all. */
static fsdp_status check_placed(const fsdp__tp_planning *p)
{
    return compare_prints(p->plan->group, print_all_placed, p->module, "how parameters are placed",
                          "ranks have not placed the same");
}

/* ---- the call ---- */

static bool has_custom(const fsdp__tp_planning *p)
{
    for (int64_t i = 0; i < p->job_count; i++)
        if (p->jobs[i].kind == &fsdp__custom_style)
            return true;
    return false;
}

static fsdp_status apply_all(const fsdp__tp_planning *p)
{
    for (int64_t i = 0; i < p->claim_count; i++)
        FSDP_TRY(fsdp__tp_place(p->plan, &p->claims[i]));
    FSDP_TRY(fsdp__note_work(p->module, FSDP__WORK_OF_LAYERS, p->plan->mesh));
    FSDP_TRY(fsdp__tp_manage(p->module, p->plan));
    for (int64_t i = 0; i < p->job_count; i++) {
        fsdp_status status = p->jobs[i].kind->apply ? p->jobs[i].kind->apply(&p->jobs[i], p->plan) : FSDP_OK;

        if (status != FSDP_OK)
            return fsdp_fail_prefix(status, "'%s'", p->jobs[i].name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__parallelize(fsdp_module *module, fsdp_mesh *mesh, const fsdp__tp_entry *entries, int count,
                              fsdp_status so_far)
{
    fsdp__tp_planning planning = {.module = module};
    fsdp_status status;

    FSDP_TRY(fsdp__tp_create(module, mesh, &planning.plan));
    status = so_far == FSDP_OK ? check_all(&planning, entries, count) : so_far;
    FSDP_TRY_GOTO(status, fsdp_agree(planning.plan->group, status), out);
    FSDP_TRY_GOTO(status, check_alike(&planning), out);
    FSDP_TRY_GOTO(status, fsdp__share_dropout_seeds(module, planning.plan->group, FSDP_OK), out);
    FSDP_TRY_GOTO(status, fsdp_agree(planning.plan->group, apply_all(&planning)), out);
    if (has_custom(&planning))
        FSDP_TRY_GOTO(status, check_placed(&planning), out);
out:
    release(&planning);
    return status;
}

static const fsdp__style_kind *kind_of(fsdp_parallel_kind kind)
{
    static const fsdp__style_kind *const kinds[] = {&fsdp__column_wise,       &fsdp__row_wise,
                                                    &fsdp__sequence_parallel, &fsdp__prepare_input,
                                                    &fsdp__prepare_output,    &fsdp__custom_style};

    return kind >= FSDP_COLUMN_WISE && kind <= FSDP_CUSTOM_PARALLEL ? kinds[kind] : NULL;
}

/* Checks that the style is told nothing that another kind is for. */
static fsdp_status check_fields(const fsdp_parallel_entry *entry)
{
    const fsdp_parallel_style *s = &entry->style;
    bool column = s->kind == FSDP_COLUMN_WISE;
    const char *field = s->loss_parallel && !column                       ? "loss_parallel"
                        : s->segment_count != 0 && !column                ? "segments"
                        : s->async && !column && s->kind != FSDP_ROW_WISE ? "async"
                        : s->apply && s->kind != FSDP_CUSTOM_PARALLEL     ? "apply"
                                                                          : NULL;

    return field ? FSDP_FAIL(FSDP_INVALID, "'%s' is %s, which has no %s: leave it out", entry->pattern,
                             kind_of(s->kind)->name, field)
                 : FSDP_OK;
}

fsdp_status fsdp_parallelize_module(fsdp_module *module, fsdp_mesh *mesh, const fsdp_parallel_entry *plan, int count)
{
    FSDP__FREED fsdp__tp_entry *entries = NULL;
    fsdp_status status = FSDP_OK;

    if (count < 0 || (count > 0 && !plan)) {
        status = FSDP_FAIL(FSDP_INVALID, "a plan of %d entries%s", count,
                           count < 0 ? ": expected 0 or more" : ", but no list of them");
        count = 0;
    }
    FSDP__TRY_NEW(entries = fsdp__calloc((size_t)count + 1, sizeof *entries));
    for (int i = 0; i < count; i++) {
        entries[i] = (fsdp__tp_entry){plan[i].pattern, kind_of(plan[i].style.kind), plan[i].style};
        if (!entries[i].kind)
            status = FSDP_FAIL(FSDP_INVALID, "'%s': %d is no parallel style", plan[i].pattern ? plan[i].pattern : "",
                               (int)plan[i].style.kind);
        else if (status == FSDP_OK && plan[i].pattern)
            status = check_fields(&plan[i]);
    }
    return fsdp__parallelize(module, mesh, entries, count, status);
}
