/* libraries.c - opens NVIDIA's libraries. */
#include "backend/cuda/libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "FSDP_CUDA_LIBRARIES"
#define INSTALLED "/usr/local/cuda/lib64"

typedef struct search {
    const char *file;
    void *handle;
    bool over;     /* it is open, or it was found and cannot be opened */
    char why[512]; /* it could not be opened */
} search;

/* Opens `path`, or what the loader finds by a name without a slash. */
static void open_path(search *s, const char *path)
{
    const char *why;

    s->handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    why = s->handle ? NULL : dlerror();
    if (why)
        snprintf(s->why, sizeof s->why, "%s", why);
}

/* Looks in a folder whose name has `length` characters. */
static void look_in(search *s, const char *folder, size_t length)
{
    char path[PATH_MAX];

    if (s->over || length == 0 || length + 1 + strlen(s->file) >= sizeof path)
        return;
    snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, s->file);
    if (access(path, F_OK) != 0)
        return;
    open_path(s, path);
    s->over = true;
}

static void look_in_folders(search *s, const char *folders)
{
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");

        look_in(s, folders, length);
        folders += length + (folders[length] == ':');
    }
}

static void look_beside_this(search *s)
{
    const char *slash = NULL;
    Dl_info info;

    if (dladdr((const void *)&fsdp__cuda_library_open, &info) && info.dli_fname)
        slash = strrchr(info.dli_fname, '/');
    if (slash)
        look_in(s, info.dli_fname, (size_t)(slash - info.dli_fname));
}

static void ask_loader(search *s)
{
    if (s->over)
        return;
    open_path(s, s->file);
    s->over = s->handle != NULL;
}

fsdp_status fsdp__cuda_library_open(const fsdp__cuda_library *library, void **out)
{
    const char *folders = getenv(VARIABLE);
    search s = {.file = library->file};

    look_in_folders(&s, folders);
    look_beside_this(&s);
    ask_loader(&s);
    look_in(&s, INSTALLED, strlen(INSTALLED));
    *out = s.handle;
    if (s.handle)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "cannot open %s, which %s on a GPU need: %s; it was looked for in " VARIABLE
                     " (%s), beside the plug-in, by the loader and in " INSTALLED
                     ": install %s, or name the folder that has it in " VARIABLE,
                     library->file, library->purpose, s.why, folders && *folders ? folders : "not set",
                     library->package);
}

fsdp_status fsdp__cuda_library_functions(const fsdp__cuda_library *library, void *handle, const char *const *names,
                                         void **functions, int count)
{
    for (int i = 0; i < count; i++) {
        functions[i] = dlsym(handle, names[i]);
        if (!functions[i])
            return FSDP_FAIL(FSDP_UNSUPPORTED, "%s has no function %s: install %s in the version of this plug-in",
                             library->file, names[i], library->package);
    }
    return FSDP_OK;
}
