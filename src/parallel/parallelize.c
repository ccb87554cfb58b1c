/* parallelize.c - applies a plan: everything is checked first, then ranks agree, and only then something changes. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "dist/dist.h"
#include "fsdp/comm.h"
#include "parallel/plan.h"

/* ---- planning ---- */

static void release(fsdp__tp_planning *p)
{
    for (int64_t i = 0; i < p->job_count; i++)
        fsdp__free(p->jobs[i].name);
    fsdp__free(p->jobs);
    fsdp__free(p->claims);
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
    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__tp_match(p, &entries[i]));
    for (int64_t i = 0; i < p->job_count; i++)
        FSDP_TRY(p->jobs[i].kind->check(p, &p->jobs[i]));
    return fsdp__module_walk(p->module, check_tied, p);
}

/* ---- what ranks must have alike ---- */

static void print_job(const fsdp__job *job, FILE *out)
{
    char from[FSDP__LAYOUT_TEXT], to[FSDP__LAYOUT_TEXT];

    fprintf(out, "'%s' %s", job->name, job->kind->name);
    for (int i = 0; i < FSDP_PARALLEL_TENSORS; i++)
        if (job->style.from[i].kind || job->style.to[i].kind)
            fprintf(out, ", %s to %s", fsdp__layout_text(job->style.from[i], from),
                    fsdp__layout_text(job->style.to[i], to));
    fprintf(out, "%s%s\n", job->style.loss_parallel ? ", loss parallel" : "", job->style.async ? ", asynchronous" : "");
}

static void print_claim(const fsdp__claim *claim, FILE *out)
{
    char text[FSDP__PLACEMENTS_TEXT];

    fprintf(out, "'%s' of a %s of shape (", claim->slot, claim->module->type->name);
    for (int d = 0; d < claim->tensor->ndim; d++)
        fprintf(out, "%s%lld", d > 0 ? ", " : "", (long long)claim->tensor->shape[d]);
    fprintf(out, ") as %s\n", fsdp__placements_text(&claim->placement, 1, text));
}

/* Writes the plan as text, a line for each job and claim. The caller frees it; NULL when out of memory. */
static char *plan_text(const fsdp__tp_planning *p)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = fsdp__begin_text(&text, &bytes);

    if (!out)
        return NULL;
    for (int64_t i = 0; i < p->job_count; i++)
        print_job(&p->jobs[i], out);
    for (int64_t i = 0; i < p->claim_count; i++)
        print_claim(&p->claims[i], out);
    if (fclose(out) == 0)
        return text;
    fsdp__free(text);
    return NULL;
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

/* Compares the texts of all ranks, unless one of them has failed to write its own. */
static fsdp_status compare_texts(const fsdp__tp_planning *p, const char *text, fsdp_status written, const char *what)
{
    void **texts = NULL;
    size_t *bytes = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_agree(p->plan->group, written));
    FSDP_TRY(fsdp_gather_objects(p->plan->group, text, strlen(text) + 1, &texts, &bytes));
    status = compare(p->plan->ranks, texts, what);
    fsdp_objects_free(p->plan->group, texts, bytes);
    return status;
}

static fsdp_status check_alike(const fsdp__tp_planning *p)
{
    FSDP__FREED char *text = plan_text(p);

    return compare_texts(p, text, text ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "cannot write a plan"),
                         "ranks do not have the same plan");
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

static fsdp_status share_seeds(const fsdp__tp_planning *p)
{
    FSDP__FREED uint64_t *values = NULL;
    seeds s = {0};
    void **objects = NULL;
    size_t *bytes = NULL;
    fsdp_status status = fsdp__module_walk(p->module, add_seed, &s);

    if (status == FSDP_OK && !(values = fsdp__calloc((size_t)s.count + 1, sizeof *values)))
        status = FSDP_NO_MEMORY;
    for (int64_t i = 0; status == FSDP_OK && i < s.count; i++)
        values[i] = *s.places[i];
    FSDP_TRY_GOTO(status, fsdp_agree(p->plan->group, status), out);
    FSDP_TRY_GOTO(status,
                  fsdp_gather_objects(p->plan->group, values, (size_t)s.count * sizeof *values, &objects, &bytes), out);
    for (int r = 1; status == FSDP_OK && r < p->plan->ranks; r++) /* every rank sees the same */
        if (bytes[r] != bytes[0])
            status = FSDP_FAIL(FSDP_MISMATCH, "rank 0 of the mesh has %zu dropouts below the %s, rank %d has %zu",
                               bytes[0] / sizeof *values, p->module->type->name, r, bytes[r] / sizeof *values);
    for (int64_t i = 0; status == FSDP_OK && i < s.count; i++)
        memcpy(s.places[i], (char *)objects[0] + (size_t)i * sizeof *values, sizeof *values);
    fsdp_objects_free(p->plan->group, objects, bytes);
out:
    fsdp__free(s.places);
    return status;
}

/* ---- what styles of callers have done ---- */

static fsdp_status print_placed(void *arg, fsdp_module *module, const char *name)
{
    char text[FSDP__PLACEMENTS_TEXT];

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        const fsdp_distribution *d = *slot->slot ? fsdp_tensor_distribution(*slot->slot) : NULL;

        if (*slot->slot)
            fprintf(arg, "'%s%s%s' as %s%s\n", name, *name ? "." : "", slot->name,
                    d ? fsdp__placements_text(d->placements, d->placement_count, text) : "a plain tensor",
                    d && d->partial_gradients ? " with partial gradients" : "");
    }
    return FSDP_OK;
}

/* Checks that parameters are placed alike on all ranks: a custom style may have done otherwise, which would be noticed
 * only where ranks wait for each other, or not at all. */
static fsdp_status check_placed(const fsdp__tp_planning *p)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;
    FILE *out = fsdp__begin_text(&text, &bytes);
    fsdp_status status = out ? fsdp__module_walk(p->module, print_placed, out) : FSDP_NO_MEMORY;

    if (out && fclose(out) != 0)
        status = FSDP_NO_MEMORY;
    if (status == FSDP_NO_MEMORY)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "cannot write how parameters are placed");
    return compare_texts(p, text, status, "ranks have not placed the same");
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
    for (int64_t i = 0; i < p->job_count; i++) {
        fsdp_status status = p->jobs[i].kind->apply ? p->jobs[i].kind->apply(&p->jobs[i], p->plan) : FSDP_OK;

        if (status != FSDP_OK)
            return fsdp_fail_prefix(status, "'%s'", p->jobs[i].name);
    }
    return fsdp__tp_manage(p->module, p->plan);
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
    FSDP_TRY_GOTO(status, share_seeds(&planning), out);
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
        status = FSDP_FAIL(FSDP_INVALID, "a plan of %d entries, but no list of them", count);
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
