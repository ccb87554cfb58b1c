/* find_plugin.c - finds plug-ins, checks that they are whole, and loads them. */
#include "base/find_plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"

/* ---- where it may lie ---- */

/* Returns the folder of the library that contains this code, or of the program if it is linked in there. */
static fsdp_status own_folder(char **out)
{
    char path[PATH_MAX];
    struct link_map *map = NULL;
    Dl_info info;
    ssize_t bytes;

    *out = NULL;
    if (dladdr1((const void *)&fsdp__plugin_load, &info, (void **)&map, RTLD_DL_LINKMAP) && map && *map->l_name) {
        *out = fsdp__path_parent(map->l_name);
    } else {
        bytes = readlink("/proc/self/exe", path, sizeof path - 1);
        if (bytes < 0)
            return FSDP_OK;
        path[bytes] = '\0';
        *out = fsdp__path_parent(path);
    }
    return *out ? FSDP_OK : fsdp_last_status();
}

/* Looks for the file; if it is there, `*out` is its path. */
static fsdp_status look(const char *folder, const char *below, const char *file, char **out)
{
    struct stat info;
    FSDP__FREED char *path = fsdp__sprintf("%s%s%s/%s", folder, *below ? "/" : "", below, file);

    if (!path)
        return fsdp_last_status();
    if (lstat(path, &info) == 0 || fsdp__path_exists(path)) /* a link to nothing is meant to be it, too */
        *out = fsdp__take(&path);
    return FSDP_OK;
}

static fsdp_status look_in_path(const char *folders, const char *file, char **out)
{
    FSDP__FREED char *list = fsdp__strdup(folders);
    char *rest = list, *folder;

    if (!list)
        return fsdp_last_status();
    while (!*out && (folder = strsep(&rest, ":")))
        if (*folder)
            FSDP_TRY(look(folder, "", file, out));
    return FSDP_OK;
}

/* Looks in the folders of the build, and in those where cmake/install.cmake puts it. */
static fsdp_status look_around(const char *own, const char *file, char **out)
{
    static const char *const below[] = {"", "fsdp", FSDP_PLUGINS_FROM_PROGRAM};

    for (size_t i = 0; i < FSDP__COUNT_OF(below) && own && !*out; i++)
        FSDP_TRY(look(own, below[i], file, out));
    if (!*out)
        FSDP_TRY(look(FSDP_PLUGINS_INSTALLED, "", file, out));
    return FSDP_OK;
}

static fsdp_status find(const fsdp__plugin *plugin, char **out)
{
    const char *folders = getenv("FSDP_PLUGIN_PATH");
    FSDP__FREED char *own = NULL;
    char file[64];

    *out = NULL;
    snprintf(file, sizeof file, "libfsdp-%s.so", plugin->name);
    FSDP_TRY(own_folder(&own));
    if (folders)
        FSDP_TRY(look_in_path(folders, file, out));
    if (!*out)
        FSDP_TRY(look_around(own, file, out));
    if (*out)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "there is no %s in FSDP_PLUGIN_PATH (%s), %s (and fsdp, " FSDP_PLUGINS_FROM_PROGRAM
                     " there) or " FSDP_PLUGINS_INSTALLED ": it is built and installed %s; name its folder in "
                     "FSDP_PLUGIN_PATH where it lies elsewhere",
                     file, folders && *folders ? FSDP__SHOWN_NAME(folders) : "not set",
                     own ? FSDP__SHOWN_NAME(own) : "the program's folder", plugin->built);
}

/* ---- loading ---- */

/* This is the header of the library or program that contains this code; the linker places it. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

/* Returns how many bytes of the file a loader reads, as its header says, and at least those of the header; 0: there is
 * no header, or it is one for another kind of machine. */
static fsdp_status mapped_bytes(int fd, const char *path, size_t bytes, uint64_t *out)
{
    ElfW(Ehdr) header;
    ElfW(Phdr) part;

    *out = sizeof header;
    if (bytes < sizeof header)
        return FSDP_OK;
    FSDP_TRY(fsdp__file_pread(fd, path, &header, sizeof header, 0));
    /* The magic number, the class and the order of bytes come first. */
    if (memcmp(header.e_ident, __ehdr_start.e_ident, EI_VERSION) != 0 || header.e_machine != __ehdr_start.e_machine ||
        header.e_phentsize != sizeof part) {
        *out = 0;
        return FSDP_OK;
    }
    *out = header.e_phoff + (uint64_t)header.e_phnum * sizeof part;
    if (bytes < *out)
        return FSDP_OK;
    for (int i = 0; i < header.e_phnum; i++) {
        FSDP_TRY(fsdp__file_pread(fd, path, &part, sizeof part, header.e_phoff + (uint64_t)i * sizeof part));
        if (part.p_type == PT_LOAD)
            *out = FSDP__MAX(*out, part.p_offset + part.p_filesz);
    }
    return FSDP_OK;
}

/* Checks that the file is whole. One that was copied in part would be loaded all the same, and the process would die at
 * the first missing byte. The loader reports everything else that is wrong with it. */
static fsdp_status check_whole(const char *path)
{
    uint64_t needed;
    size_t bytes;
    FSDP__CLOSED int fd = -1;

    if (!fsdp__path_exists(path))
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot load %s: it is a link to a file that is not there: install it again",
                         FSDP__SHOWN_NAME(path));
    FSDP_TRY(fsdp__file_open(path, &fd, &bytes));
    FSDP_TRY(mapped_bytes(fd, path, bytes, &needed));
    if (needed == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load %s: it is not a library of this system: install it again",
                         FSDP__SHOWN_NAME(path));
    if (bytes < needed)
        return FSDP_FAIL(FSDP_FORMAT, "cannot load %s: it is cut off, with %zu bytes of %llu: install it again",
                         FSDP__SHOWN_NAME(path), bytes, (unsigned long long)needed);
    return FSDP_OK;
}

static fsdp_status open_plugin(const fsdp__plugin *plugin, const char *path, const void **out)
{
    const void *(*table)(void) = NULL;
    const char *why;
    void *library;
    int version;

    FSDP_TRY(check_whole(path));
    library = dlopen(path, RTLD_NOW | (plugin->global ? RTLD_GLOBAL : RTLD_LOCAL));
    why = library ? NULL : dlerror();
    if (!library)
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot load %s: %s; %s", FSDP__SHOWN_NAME(path),
                         why ? why : "no reason given", plugin->needs);
    *(void **)&table = dlsym(library, plugin->symbol);
    *out = table ? table() : NULL;
    if (!*out)
        return FSDP_FAIL(FSDP_FORMAT, "%s is not a plug-in: %s %s", FSDP__SHOWN_NAME(path),
                         table ? "there is nothing in its" : "it has no", plugin->symbol);
    version = *(const int *)*out;
    if (version != plugin->version)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s is a plug-in for another version of this program (its interface has number %d, and %d is "
                         "needed): install both from one build",
                         FSDP__SHOWN_NAME(path), version, plugin->version);
    return FSDP_OK;
}

fsdp_status fsdp__plugin_load(const fsdp__plugin *plugin, const void **out)
{
    FSDP__FREED char *path = NULL;
    fsdp_status status;

    *out = NULL;
    FSDP_TRY(find(plugin, &path));
    status = open_plugin(plugin, path, out);
    if (status != FSDP_OK)
        *out = NULL;
    return status;
}
