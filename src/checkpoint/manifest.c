/* manifest.c - the manifest in memory, and its numbers as text. */
#include "checkpoint/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

static fsdp_status out_of_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for a manifest");
}

fsdp_status fsdp__manifest_wrong(const char *path, const fsdp_checkpoint_tensor *tensor, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s.%s' %s", path, FSDP__SHOWN_NAME(tensor->section),
                     FSDP__SHOWN_NAME(tensor->name), what);
}

void fsdp__manifest_release(fsdp__manifest *m)
{
    for (int64_t i = 0; i < m->section_count; i++)
        fsdp__free(m->sections[i]);
    for (int64_t i = 0; i < m->file_count; i++)
        FSDP__FREE_ALL(m->files[i].name, m->files[i].blocks);
    for (int64_t i = 0; i < m->small_count; i++)
        fsdp__free(m->small[i].name);
    for (int64_t i = 0; i < m->value_count; i++)
        FSDP__FREE_ALL(m->values[i].name, m->values[i].text);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        FSDP__FREE_ALL(m->tensors[i].name, m->tensors[i].parts);
    }
    FSDP__FREE_ALL(m->mesh, m->sections, m->files, m->small, m->values, m->tensors);
    *m = (fsdp__manifest){0};
}

const char *fsdp__rank_file_name(int rank, int world_size, char name[FSDP__RANK_FILE_NAME])
{
    snprintf(name, FSDP__RANK_FILE_NAME, "rank-%05d-of-%05d.safetensors", rank, world_size);
    return name;
}

bool fsdp__is_small_name(const char *name)
{
    bool own = strcmp(name, FSDP__MANIFEST_NAME) == 0 ||
               (fsdp__behind(name, "rank-") && fsdp__ends_with(name, ".safetensors"));

    return fsdp__is_plain_name(name) && !own;
}

/* ---- adding ---- */

int64_t fsdp__manifest_section(const fsdp__manifest *m, const char *section)
{
    for (int64_t i = 0; i < m->section_count; i++)
        if (strcmp(m->sections[i], section) == 0)
            return i;
    return -1;
}

fsdp_status fsdp__manifest_add_section(fsdp__manifest *m, const char *name, const char **out)
{
    int64_t there = fsdp__manifest_section(m, name);
    char *own;

    if (there >= 0) {
        *out = m->sections[there];
        return FSDP_OK;
    }
    if (fsdp__grow(&m->sections, m->section_count, &m->section_capacity, sizeof *m->sections) != FSDP_OK ||
        !(own = fsdp__strdup(name)))
        return out_of_memory();
    m->sections[m->section_count++] = own;
    *out = own;
    return FSDP_OK;
}

fsdp_status fsdp__manifest_add_small(fsdp__manifest *m, const char *name, uint64_t bytes, uint64_t checksum)
{
    char *own;

    if (fsdp__grow(&m->small, m->small_count, &m->small_capacity, sizeof *m->small) != FSDP_OK ||
        !(own = fsdp__strdup(name)))
        return out_of_memory();
    m->small[m->small_count++] = (fsdp__small_file){.name = own, .bytes = bytes, .checksum = checksum};
    return FSDP_OK;
}

fsdp_status fsdp__manifest_add_value(fsdp__manifest *m, const fsdp_checkpoint_value *value)
{
    bool is_text = value->type == FSDP_CHECKPOINT_TEXT;
    FSDP__FREED char *name = fsdp__strdup(value->name), *text = is_text ? fsdp__strdup(value->text) : NULL;
    fsdp_checkpoint_value own = *value;

    if (!name || (is_text && !text) ||
        fsdp__grow(&m->values, m->value_count, &m->value_capacity, sizeof *m->values) != FSDP_OK)
        return out_of_memory();
    own.name = fsdp__take(&name);
    own.text = fsdp__take(&text);
    m->values[m->value_count++] = own;
    return FSDP_OK;
}

fsdp_status fsdp__manifest_add_file(fsdp__manifest *m, const fsdp__rank_file *file)
{
    char name[FSDP__RANK_FILE_NAME];
    fsdp__rank_file own = *file;

    if (fsdp__grow(&m->files, m->file_count, &m->file_capacity, sizeof *m->files) != FSDP_OK ||
        !(own.name = fsdp__strdup(fsdp__rank_file_name(file->rank, m->world_size, name))))
        return out_of_memory();
    m->files[m->file_count++] = own;
    return FSDP_OK;
}

fsdp_status fsdp__manifest_add_tensor(fsdp__manifest *m, const fsdp_checkpoint_tensor *tensor)
{
    FSDP__FREED fsdp_checkpoint_part *parts = fsdp__calloc((size_t)tensor->part_count, sizeof *parts);
    FSDP__FREED char *name = fsdp__strdup(tensor->name);
    fsdp_checkpoint_tensor own = *tensor;

    if (!name || !parts || fsdp__grow(&m->tensors, m->tensor_count, &m->tensor_capacity, sizeof *m->tensors) != FSDP_OK)
        return out_of_memory();
    if (tensor->part_count > 0)
        memcpy(parts, tensor->parts, (size_t)tensor->part_count * sizeof *parts);
    own.name = fsdp__take(&name);
    own.parts = fsdp__take(&parts);
    m->tensors[m->tensor_count++] = own;
    return FSDP_OK;
}

/* ---- order ---- */

static int compare_rank(const void *rank, const void *file)
{
    return *(const int *)rank - ((const fsdp__rank_file *)file)->rank;
}

const fsdp__rank_file *fsdp__manifest_file(const fsdp__manifest *m, int rank)
{
    return m->file_count > 0 ? bsearch(&rank, m->files, (size_t)m->file_count, sizeof *m->files, compare_rank) : NULL;
}

static int compare(const void *a, const void *b, void *arg)
{
    const fsdp_checkpoint_tensor *x = a, *y = b;
    int64_t difference = fsdp__manifest_section(arg, x->section) - fsdp__manifest_section(arg, y->section);

    return difference != 0 ? (difference < 0 ? -1 : 1) : strcmp(x->name, y->name);
}

void fsdp__manifest_sort(fsdp__manifest *m)
{
    if (m->tensor_count > 1)
        qsort_r(m->tensors, (size_t)m->tensor_count, sizeof *m->tensors, compare, m);
}

int64_t fsdp__manifest_find(const fsdp__manifest *m, const char *section, const char *name)
{
    const fsdp_checkpoint_tensor wanted = {.section = section, .name = name};
    int64_t low = 0, high = m->tensor_count;

    if (fsdp__manifest_section(m, section) < 0)
        return -1;
    while (low < high) {
        int64_t middle = (low + high) / 2;

        if (compare(&m->tensors[middle], &wanted, (void *)(uintptr_t)m) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->tensor_count && compare(&m->tensors[low], &wanted, (void *)(uintptr_t)m) == 0 ? low : -1;
}

const char *fsdp__hex(uint64_t value, char out[FSDP__HEX_DIGITS + 1])
{
    snprintf(out, FSDP__HEX_DIGITS + 1, "%016llx", (unsigned long long)value);
    return out;
}

bool fsdp__hex_read(const char *digits, uint64_t *out)
{
    uint64_t value = 0;

    for (int i = 0; i < FSDP__HEX_DIGITS; i++) {
        char c = digits[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (digit < 0)
            return false;
        value = value << 4 | (uint64_t)digit;
    }
    *out = value;
    return true;
}

void fsdp__digest_text(uint64_t checksum, char out[FSDP__DIGEST_BYTES + 1])
{
    snprintf(out, FSDP__DIGEST_BYTES + 1, ",\"digest\":\"%016llx\"}\n", (unsigned long long)checksum);
}
