/* show.c - what text, JSON and SVG show in the same way. */
#include "explain/show.h"

#include <ctype.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"

static bool same_figures(const fsdp_explained_unit *a, const fsdp_explained_unit *b)
{
    return strcmp(a->type, b->type) == 0 && a->parameter_count == b->parameter_count && a->numel == b->numel &&
           a->padded_numel == b->padded_numel && a->shard_numel == b->shard_numel && a->gathers == b->gathers &&
           a->gathered_bytes == b->gathered_bytes && a->reductions == b->reductions &&
           a->reduced_bytes == b->reduced_bytes && a->flops == b->flops;
}

int64_t fsdp__alike_units(const fsdp_explanation *e, int64_t first)
{
    int64_t count = 1;

    while (first + count < e->unit_count && same_figures(&e->units[first], &e->units[first + count]))
        count++;
    return count;
}

/* Returns where the number at the end of a name begins. */
static size_t number_at(const char *name)
{
    size_t at = strlen(name);

    while (at > 0 && isdigit((unsigned char)name[at - 1]))
        at--;
    return at;
}

const char *fsdp__units_name(const fsdp_explanation *e, int64_t first, int64_t count, char *text, size_t bytes)
{
    const char *name = e->units[first].name, *last = e->units[first + count - 1].name;
    size_t at = number_at(name);

    if (!*name)
        name = "(root)";
    if (count == 1)
        snprintf(text, bytes, "%s", name);
    else if (number_at(last) == at && memcmp(name, last, at) == 0 && name[at])
        snprintf(text, bytes, "%s-%s", name, last + at);
    else
        snprintf(text, bytes, "%s and %lld alike", name, (long long)(count - 1));
    return text;
}

/* Returns whether the names are the same except for numbers. */
static bool same_names(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0123456789");
            b += strspn(b, "0123456789");
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

static bool same_parameters(const fsdp_explanation *e, const fsdp_explained_parameter *a,
                            const fsdp_explained_parameter *b)
{
    return a->unit == b->unit && a->dim == b->dim && a->across == b->across && a->box_count == b->box_count &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->parts, b->parts, (size_t)e->part_count * sizeof *a->parts) == 0 && same_names(a->name, b->name);
}

int64_t fsdp__alike_parameters(const fsdp_explanation *e, int64_t index)
{
    int64_t count = 0;

    for (int64_t i = 0; i < e->parameter_count; i++) {
        if (!same_parameters(e, &e->parameters[i], &e->parameters[index]))
            continue;
        if (i < index)
            return 0;
        count++;
    }
    return count;
}

fsdp_explained_box fsdp__part_box(const fsdp_explained_parameter *p, int part, int box)
{
    const fsdp_explained_part *own = &p->parts[part];

    return p->boxes ? p->boxes[part * p->box_count + box]
                    : (fsdp_explained_box){own->first, own->count, own->across_first, own->across_count};
}

/* Returns whether a part has these indices of the dimensions that are cut. */
static bool has(const fsdp_explained_parameter *p, int part, int64_t at, int64_t across)
{
    for (int i = 0; i < p->box_count && p->parts[part].numel > 0; i++) {
        fsdp_explained_box box = fsdp__part_box(p, part, i);

        if (box.first <= at && at < box.first + box.count &&
            (p->across < 0 || (box.across_first <= across && across < box.across_first + box.across_count)))
            return true;
    }
    return false;
}

int fsdp__holder(const fsdp_explanation *e, const fsdp_explained_parameter *p, double place, int64_t across)
{
    int64_t all = p->dim < 0 ? p->numel : p->ndim ? p->shape[p->dim] : 1;

    for (int i = 0; i < e->part_count; i++)
        if (has(p, i, (int64_t)(place * (double)all), across))
            return e->first_part + i;
    return -1;
}

int64_t fsdp__next_across(const fsdp_explanation *e, const fsdp_explained_parameter *p, int64_t from)
{
    int64_t next = p->across < 0 ? 1 : p->shape[p->across];

    for (int i = 0; i < e->part_count && p->across >= 0; i++)
        for (int k = 0; k < p->box_count && p->parts[i].numel > 0; k++)
            if (fsdp__part_box(p, i, k).across_first > from)
                next = FSDP__MIN(next, fsdp__part_box(p, i, k).across_first);
    return next;
}

bool fsdp__is_whole(const fsdp_explanation *e, const fsdp_explained_parameter *p)
{
    for (int i = 0; i < e->part_count; i++)
        if (p->parts[i].numel != p->numel)
            return false;
    return true;
}

size_t fsdp__parameter_bytes(const fsdp_explained_step *step)
{
    return step->live_bytes[FSDP_MEMORY_PARAMETER_SHARD] + step->peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
}

bool fsdp__begins_phase(const fsdp_explanation *e, int64_t event)
{
    const fsdp_explained_event *now = &e->events[event], *before = now - 1;

    return event == 0 || now->phase != before->phase || now->microbatch != before->microbatch;
}

const char *fsdp__phase_name(fsdp_explained_phase phase)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};

    return names[phase];
}

const char *fsdp__bytes_text(double bytes, char *text, size_t text_bytes)
{
    if (bytes <= 0)
        snprintf(text, text_bytes, "-");
    else
        fsdp__size_text(bytes, text, text_bytes);
    return text;
}
