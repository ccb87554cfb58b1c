/* print_module.c - prints the tree as PyTorch does, down to the short form of equal neighbours in a ModuleList. */
#include "nn/layers.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* Writes `text` with every line but the first indented by two. */
static void put_indented(FILE *out, const char *text)
{
    for (; *text; text++) {
        fputc(*text, out);
        if (*text == '\n')
            fputs("  ", out);
    }
}

static char *picture(const fsdp_module *module);

/* Writes "(2): " or, for a run of equal children, "(0-2): 3 x ". */
static void put_list(FILE *out, char *const *children, int64_t count)
{
    for (int64_t first = 0, last; first < count; first = last + 1) {
        last = first;
        while (last + 1 < count && strcmp(children[last + 1], children[first]) == 0)
            last++;
        fprintf(out, "\n  (%lld", (long long)first);
        if (last > first)
            fprintf(out, "-%lld): %lld x ", (long long)last, (long long)(last - first + 1));
        else
            fputs("): ", out);
        put_indented(out, children[first]);
    }
}

static void put_named(FILE *out, const fsdp_module *module, char *const *children)
{
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        fprintf(out, "\n  (%s): ", module->parts->children[i].name);
        put_indented(out, children[i]);
    }
}

/* Writes which hooks act around the module's calls, if they describe themselves. */
static void put_hooks(FILE *out, const fsdp_module *module)
{
    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[i];
        char text[256] = "";

        if (!hooks->describe)
            continue;
        hooks->describe(hooks->arg, text, sizeof text);
        fprintf(out, "[%s] ", text);
    }
}

static void put_module(FILE *out, const fsdp_module *module, char *const *children)
{
    char text[512] = "";

    if (module->type->describe)
        module->type->describe(module, text, sizeof text);
    put_hooks(out, module);
    fprintf(out, "%s(", module->type->name);
    if (module->parts->child_count == 0) {
        fprintf(out, "%s)", text);
        return;
    }
    if (*text)
        fprintf(out, "\n  %s", text);
    if (module->type == &fsdp__module_list_type)
        put_list(out, children, module->parts->child_count);
    else
        put_named(out, module, children);
    fputs("\n)", out);
}

/* Returns the text of the module, for the caller to free(); NULL if out of memory. */
static char *picture(const fsdp_module *module)
{
    int64_t count = module->parts->child_count;
    char **children = fsdp__calloc((size_t)count + 1, sizeof *children), *text = NULL;
    bool complete = children;
    FILE *out = NULL;
    size_t bytes;

    for (int64_t i = 0; complete && i < count; i++) {
        children[i] = picture(module->parts->children[i].module);
        complete = children[i];
    }
    if (complete)
        out = open_memstream(&text, &bytes);
    if (out) {
        put_module(out, module, children);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    for (int64_t i = 0; children && i < count; i++)
        free(children[i]);
    fsdp__free(children);
    return text;
}

fsdp_status fsdp_module_print(fsdp_module *module, FILE *stream)
{
    char *text;
    bool written;

    if (!module || !stream)
        return FSDP__FAIL_NULL("cannot print a module: the module and a stream are required");
    text = picture(module);
    if (!text)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot print %s: out of memory", module->type->name);
    written = fprintf(stream, "%s\n", text) >= 0;
    free(text);
    return written ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot print %s", module->type->name);
}
