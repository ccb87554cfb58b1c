/* release.c - frees an explanation. */
#include "base/alloc.h"
#include "explain/explain.h"

static void free_text(const char *text)
{
    fsdp__free((char *)(uintptr_t)text);
}

static void free_units(fsdp_explanation *e)
{
    for (int64_t i = 0; i < e->unit_count; i++) {
        free_text(e->units[i].name);
        free_text(e->units[i].type);
        fsdp__free((fsdp_explained_life *)(uintptr_t)e->units[i].lives);
    }
    fsdp__free((fsdp_explained_unit *)(uintptr_t)e->units);
}

static void free_parameters(fsdp_explanation *e)
{
    for (int64_t i = 0; i < e->parameter_count; i++) {
        free_text(e->parameters[i].name);
        fsdp__free((fsdp_explained_part *)(uintptr_t)e->parameters[i].parts);
        fsdp__free((fsdp_explained_box *)(uintptr_t)e->parameters[i].boxes);
    }
    fsdp__free((fsdp_explained_parameter *)(uintptr_t)e->parameters);
}

void fsdp_explanation_free(fsdp_explanation *e)
{
    if (!e)
        return;
    free_units(e);
    free_parameters(e);
    for (int64_t i = 0; i < e->variant_count; i++)
        free_text(e->variants[i].policy);
    fsdp__free((fsdp_explained_variant *)(uintptr_t)e->variants);
    fsdp__free((fsdp_explained_event *)(uintptr_t)e->events);
    free_text(e->model);
    free_text(e->strategy);
    free_text(e->policy);
    free_text(e->tree);
    fsdp__free(e);
}
