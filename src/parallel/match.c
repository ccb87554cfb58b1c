/* match.c - which modules a pattern names: each name by itself, as PyTorch's parallelize_module matches them. */
#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"
#include "parallel/plan.h"

/* Holds the state of one walk. What fails to match is kept for the message. */
typedef struct search {
    fsdp__tp_planning *planning;
    const fsdp__tp_entry *entry;
    int64_t found;
    fsdp_module *deepest; /* the module behind which no name matched, of those that are the most names down */
    char *deepest_name;   /* owned */
    const char *rest;     /* what of the pattern it was to match */
    int depth;
} search;

static fsdp_status add_job(search *s, fsdp_module *module, const char *name)
{
    fsdp__tp_planning *p = s->planning;
    fsdp__job *job;

    FSDP_TRY(fsdp__grow(&p->jobs, p->job_count, &p->job_capacity, sizeof *p->jobs));
    job = &p->jobs[p->job_count];
    *job =
        (fsdp__job){.pattern = s->entry->pattern, .kind = s->entry->kind, .style = s->entry->style, .module = module};
    FSDP__TRY_NEW(job->name = fsdp__strdup(name));
    p->job_count++;
    s->found++;
    return FSDP_OK;
}

static fsdp_status note_deepest(search *s, fsdp_module *module, const char *name, const char *rest, int depth)
{
    if (s->deepest && depth <= s->depth)
        return FSDP_OK;
    fsdp__free(s->deepest_name);
    FSDP__TRY_NEW(s->deepest_name = fsdp__strdup(name));
    s->deepest = module;
    s->rest = rest;
    s->depth = depth;
    return FSDP_OK;
}

static fsdp_status walk(search *s, fsdp_module *module, const char *name, const char *rest, int depth)
{
    size_t length = strcspn(rest, ".");
    FSDP__FREED char *word = fsdp__sprintf("%.*s", (int)length, rest);
    bool any = false;

    FSDP__TRY_NEW(word);
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        const fsdp__child_slot *child = &module->parts->children[i];
        FSDP__FREED char *below = NULL;

        if (fnmatch(word, child->name, FNM_NOESCAPE) != 0)
            continue;
        any = true;
        FSDP__TRY_NEW(below = fsdp__dotted(name, child->name));
        if (rest[length])
            FSDP_TRY(walk(s, child->module, below, rest + length + 1, depth + 1));
        else
            FSDP_TRY(add_job(s, child->module, below));
    }
    return any ? FSDP_OK : note_deepest(s, module, name, rest, depth);
}

/* ---- the message ---- */

static size_t common(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] && a[n] != '.' && a[n] == b[n])
        n++;
    return n;
}

/* Returns the name of the child that begins as the pattern goes on; NULL if there are no children. */
static const char *nearest(const search *s)
{
    const struct fsdp__module_parts *parts = s->deepest->parts;
    const char *best = parts->child_count > 0 ? parts->children[0].name : NULL;

    for (int64_t i = 1; i < parts->child_count; i++)
        if (common(s->rest, parts->children[i].name) > common(s->rest, best))
            best = parts->children[i].name;
    return best;
}

static fsdp_status fail(const search *s)
{
    const char *best = nearest(s), *dot = *s->deepest_name && best ? "." : "";

    return FSDP_FAIL(FSDP_INVALID, "the pattern '%s' matches no module of the %s: the nearest is '%s%s%s'",
                     s->entry->pattern, s->planning->module->type->name, s->deepest_name, dot, best ? best : "");
}

fsdp_status fsdp__tp_match(fsdp__tp_planning *planning, const fsdp__tp_entry *entry)
{
    search s = {.planning = planning, .entry = entry};
    fsdp_status status;

    if (!entry->pattern)
        return FSDP_FAIL(FSDP_INVALID, "an entry of the plan has no pattern");
    if (!*entry->pattern)
        return add_job(&s, planning->module, "");
    status = walk(&s, planning->module, "", entry->pattern, 0);
    if (status == FSDP_OK && s.found == 0)
        status = fail(&s);
    fsdp__free(s.deepest_name);
    return status;
}
