/* build.c - finds build ids in the notes of what is loaded. */
#include "base/build.h"

#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "fsdp/context.h"

enum {
    MOST_ID_BYTES = 20 /* of SHA-1; only so much is shown of a longer id */
};

typedef struct search {
    uintptr_t address;
    const unsigned char *id; /* what was found; it lies in the note */
    size_t bytes;
} search;

static bool has_address(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && address - (object->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

/* Finds the id among the notes of `bytes` bytes; returns its length, 0 if there is none. */
static size_t find_id(const unsigned char *notes, size_t bytes, size_t alignment, const unsigned char **out)
{
    ElfW(Nhdr) note;
    size_t step = alignment == 8 ? 8 : 4;

    for (size_t at = 0; at + sizeof note <= bytes;) {
        size_t name = at + sizeof note, id;

        memcpy(&note, notes + at, sizeof note);
        id = at + FSDP__ROUND_UP(sizeof note + note.n_namesz, step);
        if (id > bytes || note.n_descsz > bytes - id)
            return 0;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof ELF_NOTE_GNU &&
            memcmp(notes + name, ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0) {
            *out = notes + id;
            return note.n_descsz;
        }
        at = FSDP__ROUND_UP(id + note.n_descsz, step);
    }
    return 0;
}

static int look_at(struct dl_phdr_info *object, size_t bytes, void *arg)
{
    search *s = arg;

    (void)bytes;
    if (!has_address(object, s->address))
        return 0;
    for (int i = 0; i < object->dlpi_phnum && s->bytes == 0; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t notes = object->dlpi_addr + part->p_vaddr;

        if (part->p_type == PT_NOTE)
            s->bytes = find_id((const unsigned char *)notes, part->p_memsz, part->p_align, &s->id);
    }
    return 1;
}

void fsdp__build_of(const void *address, char out[FSDP__BUILD_BYTES])
{
    search s = {.address = (uintptr_t)address};
    int used;

    (void)dl_iterate_phdr(look_at, &s);
    memset(out, 0, FSDP__BUILD_BYTES);
    used = snprintf(out, FSDP__BUILD_BYTES, FSDP_VERSION ", %s", s.bytes > 0 ? "build " : "no build id");
    for (size_t i = 0; i < s.bytes && i < MOST_ID_BYTES; i++)
        used += snprintf(out + used, FSDP__BUILD_BYTES - (size_t)used, "%02x", s.id[i]);
}

void fsdp__build_own(char out[FSDP__BUILD_BYTES])
{
    fsdp__build_of((const void *)&fsdp__build_own, out);
}
