/* schedule_atoms.c - takes atoms from dry runs, and makes schedules of drafts. */
#include "plan/schedule_atoms.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

/* ---- prices ---- */

/* Holds what collectives of a plan took, all together. */
typedef struct total {
    double seconds, calls, numel;
} total;

/* Adds up the gathers, or the reductions. */
static total total_of(const fsdp__plan *plan, bool gathers)
{
    const fsdp_explanation *e = plan->e;
    const fsdp__plan_time *t = &plan->time;
    const int64_t *calls = e->step.calls;
    total sum = {.seconds = gathers ? t->parts[FSDP__PLAN_GATHERS] + t->hidden_gathers
                                    : t->parts[FSDP__PLAN_REDUCTIONS] + t->hidden_reductions,
                 .calls =
                     (double)(gathers ? calls[FSDP_ALL_GATHER] : calls[FSDP_REDUCE_SCATTER] + calls[FSDP_ALL_REDUCE])};

    for (int64_t i = 0; i < e->unit_count; i++)
        sum.numel += (double)(gathers ? e->units[i].gathers : e->units[i].reductions) * (double)e->units[i].numel;
    return sum;
}

/* Finds the latency and the time of an element by which the totals of both plans came about. */
static fsdp__atom_price fit(const fsdp__plan *always, const fsdp__plan *blocks, bool gathers)
{
    total a = total_of(always, gathers), b = total_of(blocks, gathers);
    double determinant = a.calls * b.numel - b.calls * a.numel, latency = 0;

    if (fabs(determinant) > 1e-9 * (a.calls * b.numel + b.calls * a.numel))
        latency = fmax((a.seconds * b.numel - b.seconds * a.numel) / determinant, 0);
    return (fsdp__atom_price){latency, b.numel > 0 ? fmax((b.seconds - latency * b.calls) / b.numel, 0) : 0};
}

/* ---- atoms ---- */

static bool is_below(const char *name, const char *module)
{
    size_t length = strlen(module);

    return strncmp(name, module, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

static int64_t block_of(const fsdp_explanation *blocks, const char *name)
{
    for (int64_t i = 0; i < blocks->unit_count; i++)
        if (blocks->units[i].name[0] && is_below(name, blocks->units[i].name))
            return i;
    return -1;
}

/* Returns whether two atoms of a block lie in the same child of it. */
static bool same_child(const fsdp__atom *a, const fsdp__atom *b, const char *block)
{
    size_t length = strlen(block) + 1;

    if (a->block != b->block || strlen(a->name) < length || strlen(b->name) < length)
        return false;
    length += strcspn(a->name + length, ".");
    return strncmp(a->name, b->name, length) == 0 && (b->name[length] == '\0' || b->name[length] == '.');
}

static void find_parts(fsdp__atoms *atoms, const fsdp_explanation *blocks)
{
    for (int64_t i = 0; i < atoms->count; i++)
        for (int64_t j = atoms->count; j-- > 0 && atoms->items[i].block >= 0;)
            if (i != j && same_child(&atoms->items[i], &atoms->items[j], blocks->units[atoms->items[i].block].name))
                atoms->items[i].part = FSDP__MIN(i, j);
}

/* Adds the atoms in the order in which the forward begins their modules. numbers[unit] is an atom's number, from 1. */
static void add_atoms(const fsdp_explanation *e, const fsdp_explanation *blocks, int64_t *numbers, fsdp__atoms *atoms)
{
    for (int64_t i = 0; i < e->event_count; i++) {
        const fsdp_explained_unit *u = &e->units[e->events[i].unit];

        if (e->events[i].event != FSDP_EVENT_PRE_FORWARD || e->events[i].phase != FSDP_PHASE_FORWARD ||
            u->parameter_count == 0 || !u->name[0] || numbers[e->events[i].unit] > 0)
            continue;
        atoms->items[atoms->count] =
            (fsdp__atom){.name = u->name, .numel = (double)u->numel, .block = block_of(blocks, u->name), .part = -1};
        numbers[e->events[i].unit] = ++atoms->count;
    }
    find_parts(atoms, blocks);
}

/* Shares the computing of the first microbatch's forward and of the last one's backward out to the atoms. */
static void add_times(const fsdp__plan *plan, const int64_t *numbers, fsdp__atoms *atoms)
{
    const fsdp_explanation *e = plan->e;
    fsdp__atom *current = NULL;

    for (int64_t i = 0; i < e->event_count; i++) {
        const fsdp_explained_event *event = &e->events[i];
        bool forward = event->phase == FSDP_PHASE_FORWARD && event->microbatch == 0;
        bool backward = event->phase == FSDP_PHASE_BACKWARD && event->microbatch == e->microbatches - 1;

        if (current && i > 0 && (forward || backward))
            *(forward ? &current->forward : &current->backward) += plan->computed[i] - plan->computed[i - 1];
        if ((event->event == FSDP_EVENT_PRE_FORWARD || event->event == FSDP_EVENT_PRE_BACKWARD) &&
            numbers[event->unit] > 0)
            current = &atoms->items[numbers[event->unit] - 1];
    }
}

/* Returns the module that is the atom's part: the child of its block; NULL: that has no forward. */
static const char *name_of_part(const fsdp__atoms *atoms, const fsdp__atom *atom, const char *block)
{
    size_t length = strlen(block) + 1;

    length += strcspn(atom->name + length, ".");
    for (int64_t i = 0; i < atoms->module_count; i++)
        if (strlen(atoms->modules[i]) == length && strncmp(atoms->modules[i], atom->name, length) == 0)
            return atoms->modules[i];
    return NULL;
}

/* Makes one atom of each part, and leaves out what lies between parts: [Note: same bits]. */
static void coarsen(fsdp__atoms *atoms, const fsdp_explanation *blocks)
{
    double forward = 0, backward = 0; /* of what was left out */
    int64_t count = 0, part = -1;

    for (int64_t i = 0; i < atoms->count; i++) {
        fsdp__atom a = atoms->items[i];
        const char *name = a.block < 0  ? a.name
                           : a.part < 0 ? NULL
                                        : name_of_part(atoms, &a, blocks->units[a.block].name);

        a.forward += forward;
        a.backward += backward;
        forward = name ? 0 : a.forward;
        backward = name ? 0 : a.backward;
        if (name && a.part >= 0 && a.part == part) {
            atoms->items[count - 1].numel += a.numel;
            atoms->items[count - 1].forward += a.forward;
            atoms->items[count - 1].backward += a.backward;
        } else if (name) {
            part = a.part;
            a.name = name;
            atoms->items[count++] = a;
        }
    }
    atoms->count = count;
}

fsdp_status fsdp__atoms_make(const fsdp__plan *always, const fsdp__plan *blocks, bool coarse, fsdp__atoms *out)
{
    const fsdp_explanation *e = always->e;
    size_t units = (size_t)e->unit_count + 1;
    FSDP__FREED int64_t *numbers = fsdp__calloc(units, sizeof *numbers);

    *out = (fsdp__atoms){.items = fsdp__calloc(units, sizeof *out->items),
                         .modules = fsdp__calloc(units, sizeof *out->modules)};
    if (!numbers || !out->items || !out->modules) {
        fsdp__atoms_release(out);
        return FSDP_NO_MEMORY;
    }
    for (int64_t i = 0; i < e->unit_count; i++)
        if (e->units[i].name[0])
            out->modules[out->module_count++] = e->units[i].name;
    add_atoms(e, blocks->e, numbers, out);
    add_times(always, numbers, out);
    if (coarse)
        coarsen(out, blocks->e);
    out->model_hash = always->model_hash;
    out->gather = fit(always, blocks, true);
    out->reduce = fit(always, blocks, false);
    return FSDP_OK;
}

void fsdp__atoms_release(fsdp__atoms *atoms)
{
    FSDP__FREE_ALL(atoms->items, atoms->modules);
    *atoms = (fsdp__atoms){.count = 0};
}

/* ---- schedules of drafts ---- */

bool fsdp__draft_begins(const fsdp__draft *draft, int64_t atom)
{
    if (draft->places[atom] & FSDP__DRAFT_ROOT)
        return false;
    return (draft->places[atom] & FSDP__DRAFT_CUT) || atom == 0 || (draft->places[atom - 1] & FSDP__DRAFT_ROOT);
}

/* Returns the atom behind the last one of the unit that begins with `first`. */
static int64_t end_of(const fsdp__atoms *atoms, const fsdp__draft *draft, int64_t first)
{
    int64_t end = first + 1;

    while (end < atoms->count && !(draft->places[end] & FSDP__DRAFT_ROOT) && !fsdp__draft_begins(draft, end))
        end++;
    return end;
}

/* Returns whether all atoms below a module are among these. */
static bool holds_only(const fsdp__atoms *atoms, const char *module, int64_t first, int64_t end)
{
    for (int64_t i = 0; i < atoms->count; i++)
        if ((i < first || i >= end) && is_below(atoms->items[i].name, module))
            return false;
    return true;
}

/* Returns the outermost module that holds the atom, and no atom that is not in the unit. */
static const char *outermost(const fsdp__atoms *atoms, int64_t atom, int64_t first, int64_t end)
{
    const char *best = atoms->items[atom].name;

    for (int64_t i = 0; i < atoms->module_count; i++)
        if (strlen(atoms->modules[i]) < strlen(best) && is_below(best, atoms->modules[i]) &&
            holds_only(atoms, atoms->modules[i], first, end))
            best = atoms->modules[i];
    return best;
}

static fsdp_status fill_unit(const fsdp__atoms *atoms, const fsdp__draft *draft, int64_t first, int64_t end,
                             fsdp__comm_unit *unit)
{
    unit->stays = draft->places[first] & FSDP__DRAFT_STAYS;
    unit->forward_ahead = draft->forward_ahead;
    unit->backward_ahead = draft->backward_ahead;
    unit->modules = fsdp__calloc((size_t)(end - first), sizeof *unit->modules);
    FSDP__TRY_NEW(unit->modules);
    for (int64_t i = first; i < end; i++) {
        const char *module = outermost(atoms, i, first, end);

        if (unit->module_count > 0 && strcmp(unit->modules[unit->module_count - 1], module) == 0)
            continue;
        unit->modules[unit->module_count] = fsdp__strdup(module);
        FSDP__TRY_NEW(unit->modules[unit->module_count]);
        unit->module_count++;
    }
    return FSDP_OK;
}

fsdp_status fsdp__draft_schedule(const fsdp__atoms *atoms, const fsdp__draft *draft, fsdp__comm_schedule **out)
{
    FSDP__SCOPED(fsdp__comm_schedule_free_at) fsdp__comm_schedule *s = fsdp__calloc(1, sizeof *s);

    *out = NULL;
    FSDP__TRY_NEW(s);
    s->parameters = atoms->model_hash;
    s->reductions = draft->reductions;
    s->units = fsdp__calloc((size_t)atoms->count + 1, sizeof *s->units);
    FSDP__TRY_NEW(s->units);
    for (int64_t i = 0; i < atoms->count; i++)
        if (fsdp__draft_begins(draft, i))
            FSDP_TRY(fill_unit(atoms, draft, i, end_of(atoms, draft, i), &s->units[s->unit_count++]));
    *out = fsdp__take(&s);
    return FSDP_OK;
}
