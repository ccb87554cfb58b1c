/* checkpoint_listing.c - lists what is in a checkpoint, and who holds what. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/listing.h"
#include "train/checkpoint_values.h"

#define ORDER "of ranks " /* before the order of ranks of a mesh that is not theirs */

static uint64_t bytes_of(const fsdp_checkpoint_tensor *t)
{
    uint64_t bytes = 0;

    for (int64_t i = 0; i < t->part_count; i++)
        bytes += t->parts[i].bytes;
    return bytes;
}

/* ---- as text ---- */

/* Prints the lines of a text below its name. Texts that a run keeps have columns, separated by tabs. */
static void print_lines(const char *text)
{
    char line[1024];

    for (size_t length; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)FSDP__MIN(length, sizeof line), text);
        for (char *tab = line; (tab = strchr(tab, '\t'));)
            *tab = ' ';
        printf("    %s\n", FSDP__SHOWN_NAME(line));
    }
}

/* Returns whether an integer is a hash, which means nothing as a number. */
static bool is_hash(const char *name)
{
    static const char *const hashes[] = {FSDP__VALUE_VALIDATED_ON, FSDP__VALUE_SAMPLED_ON, FSDP__VALUE_DPO_VALIDATED_ON,
                                         FSDP__VALUE_FILES};

    for (size_t i = 0; i < FSDP__COUNT_OF(hashes); i++)
        if (strcmp(hashes[i], name) == 0)
            return true;
    return false;
}

static void print_value(const fsdp_checkpoint_value *v, int width)
{
    if (v->type == FSDP_CHECKPOINT_TEXT && strchr(v->text, '\n')) {
        printf("  %s\n", FSDP__SHOWN_NAME(v->name));
        print_lines(v->text);
        return;
    }
    printf("  %-*s  ", width, FSDP__SHOWN_NAME(v->name));
    if (v->type == FSDP_CHECKPOINT_INTEGER && is_hash(v->name))
        printf("%016llx (a hash)\n", (unsigned long long)v->integer);
    else if (v->type == FSDP_CHECKPOINT_INTEGER)
        printf("%lld\n", (long long)v->integer);
    else if (v->type == FSDP_CHECKPOINT_NUMBER)
        printf("%.17g\n", v->number);
    else
        printf("%s\n", FSDP__SHOWN_NAME(v->text));
}

static void print_values(const fsdp_checkpoint_reader *reader)
{
    int width = 0, count = fsdp_checkpoint_value_count(reader), files = fsdp_checkpoint_file_count(reader);

    for (int i = 0; i < count; i++)
        width = FSDP__MAX(width, (int)strlen(FSDP__SHOWN_NAME(fsdp_checkpoint_value_at(reader, i)->name)));
    for (int i = 0; i < files; i++)
        width = FSDP__MAX(width, (int)strlen(fsdp_checkpoint_file_at(reader, i)->name));
    if (count > 0)
        puts("values:");
    for (int i = 0; i < count; i++)
        print_value(fsdp_checkpoint_value_at(reader, i), width);
    if (files > 0)
        puts("files:");
    for (int i = 0; i < files; i++)
        printf("  %-*s  %s bytes\n", width, FSDP__SHOWN_PATH(fsdp_checkpoint_file_at(reader, i)->name),
               FSDP__THOUSANDS(fsdp_checkpoint_file_at(reader, i)->bytes));
}

/* Finds the next rank behind `rank` that has a part; -1: there is none. */
static int next_holder(const fsdp_checkpoint_tensor *t, int rank)
{
    int next = -1;

    for (int64_t i = 0; i < t->part_count; i++)
        if (t->parts[i].rank > rank && (next < 0 || t->parts[i].rank < next))
            next = t->parts[i].rank;
    return next;
}

/* Writes who holds a tensor: "ranks 0 to 3", "rank 2", "6 parts of ranks 0 and 2". */
static const char *holders_text(const fsdp_checkpoint_tensor *t, char *text, size_t bytes)
{
    fsdp__rank_list holders = {.count = 0};
    int used = 0;

    for (int rank = next_holder(t, -1); rank >= 0; rank = next_holder(t, rank))
        fsdp__rank_list_add(&holders, rank);
    if (t->part_count != holders.count)
        used = snprintf(text, bytes, "%lld parts of ", (long long)t->part_count);
    (void)fsdp__rank_list_text(&holders, text + used, bytes - (size_t)used);
    return text;
}

/* ---- what is cut over which dimension of the mesh ---- */

typedef struct mesh_text {
    int count; /* of dimensions */
    int64_t sizes[FSDP_MAX_MESH_DIMS];
    char names[FSDP_MAX_MESH_DIMS][64];
    int *places; /* owned: where each rank is, row-major; NULL: in the order of ranks */
} mesh_text;

static void forget_mesh(mesh_text *mesh)
{
    fsdp__free(mesh->places);
}

/* Reads "0,2,1,3", all ranks in another order. Returns whether it is that. */
static bool read_places(const char *text, int ranks, mesh_text *mesh)
{
    int length = 0, rank = -1;

    if (!(mesh->places = fsdp__malloc((size_t)ranks * sizeof *mesh->places)))
        return false;
    for (int i = 0; i < ranks; i++)
        mesh->places[i] = -1;
    for (int i = 0; i < ranks; i++, text += length) {
        if (sscanf(text, i ? ",%9d%n" : "%9d%n", &rank, &length) != 1 || rank < 0 || rank >= ranks ||
            mesh->places[rank] >= 0)
            return false;
        mesh->places[rank] = i;
    }
    return !*text;
}

/* Reads "dp_shard=2 tp=2". No dimensions: there is no such text, or its mesh is not that of all ranks. */
static mesh_text mesh_of(const fsdp_checkpoint_reader *reader)
{
    const char *text = fsdp_checkpoint_mesh(reader);
    int64_t ranks = 1, most = fsdp_checkpoint_world_size(reader);
    mesh_text mesh = {.count = 0};

    for (int length = 0; *text && mesh.count < FSDP_MAX_MESH_DIMS; text += length + (text[length] == ' ')) {
        long long size = 0;

        if (sscanf(text, "%63[^= ]=%9lld%n", mesh.names[mesh.count], &size, &length) != 2 || size < 1)
            break;
        mesh.sizes[mesh.count++] = size;
        ranks *= FSDP__MIN(size, most + 1);
        if (ranks > most)
            break;
    }
    if (ranks != most ||
        (strncmp(text, ORDER, strlen(ORDER)) == 0 ? !read_places(text + strlen(ORDER), (int)most, &mesh) : *text))
        mesh.count = 0;
    return mesh;
}

/* Returns whether two ranks differ in dimension `dim` of the mesh alone. */
static bool are_beside(const mesh_text *mesh, int dim, int64_t a, int64_t b)
{
    a = mesh->places ? mesh->places[a] : a;
    b = mesh->places ? mesh->places[b] : b;
    for (int d = mesh->count - 1; d >= 0; a /= mesh->sizes[d], b /= mesh->sizes[d], d--)
        if ((a % mesh->sizes[d] == b % mesh->sizes[d]) == (d == dim))
            return false;
    return true;
}

/* Returns whether the dimension of the mesh cuts dimension `d` of the tensor. The first part's rank is the first in
 * each dimension of the mesh, since of those that hold a part the first has written it. */
static bool cuts(const mesh_text *mesh, int dim, const fsdp_checkpoint_tensor *t, int d)
{
    const fsdp_checkpoint_part *first = t->parts;

    for (int64_t k = 1; k < t->part_count; k++)
        if (are_beside(mesh, dim, first->rank, t->parts[k].rank) &&
            (first->offset[d] != t->parts[k].offset[d] || first->size[d] != t->parts[k].size[d]))
            return true;
    return false;
}

/* Prints ", rows by dp_shard, columns by tp". */
static void print_cuts(const mesh_text *mesh, const fsdp_checkpoint_tensor *t)
{
    bool flat = t->part_count > 0 && t->parts[0].flat;
    int ndim = flat ? 1 : t->ndim;

    for (int d = 0; d < ndim; d++) {
        const char *before = NULL;

        for (int m = 0; m < mesh->count; m++) {
            if (!cuts(mesh, m, t, d))
                continue;
            if (before)
                printf("%s", before);
            else if (ndim <= 2)
                printf(", %s by ", ndim == 1 ? "elements" : d == 0 ? "rows" : "columns");
            else
                printf(", dimension %d by ", d);
            printf("%s", FSDP__SHOWN_NAME(mesh->names[m]));
            before = " and ";
        }
    }
}

static void print_part(const fsdp_checkpoint_tensor *t, const fsdp_checkpoint_part *part)
{
    int ndim = part->flat ? 1 : t->ndim;

    printf("    rank %d: %s%s at %s; %s bytes of %s, from byte %s on\n", part->rank, part->flat ? "elements " : "",
           FSDP__SHAPE(part->size, ndim), FSDP__SHAPE(part->offset, ndim), FSDP__THOUSANDS(part->bytes), part->file,
           FSDP__THOUSANDS(part->begin));
}

static void print_tensors(const fsdp_checkpoint_reader *reader, bool parts)
{
    FSDP__SCOPED(forget_mesh) mesh_text mesh = mesh_of(reader);
    const char *section = NULL;
    int width = 0;

    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++)
        width = FSDP__MAX(width, (int)strlen(FSDP__SHOWN_NAME(fsdp_checkpoint_at(reader, i)->name)));
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(reader, i);

        if (!section || strcmp(section, t->section) != 0)
            printf("%s:\n", t->section);
        section = t->section;
        printf("  %-*s  %-8s  %-16s %14s bytes  %s", width, FSDP__SHOWN_NAME(t->name), fsdp_dtype_name(t->dtype),
               FSDP__SHAPE(t->shape, t->ndim), FSDP__THOUSANDS(bytes_of(t)), holders_text(t, FSDP__ROOM(160)));
        print_cuts(&mesh, t);
        putchar('\n');
        for (int64_t k = 0; k < t->part_count && parts; k++)
            print_part(t, &t->parts[k]);
    }
}

void fsdp__list_checkpoint(const fsdp_checkpoint_reader *reader, bool parts)
{
    int64_t count = fsdp_checkpoint_count(reader), all_parts = 0;
    int ranks = fsdp_checkpoint_world_size(reader);
    const char *mesh = fsdp_checkpoint_mesh(reader);
    uint64_t bytes = 0;

    printf("%s: step %lld, saved by %d rank%s%s%s\n", FSDP__SHOWN_PATH(fsdp_checkpoint_path(reader)),
           (long long)fsdp_checkpoint_step(reader), ranks, fsdp__plural(ranks), *mesh ? ", " : "",
           FSDP__SHOWN_NAME(mesh));
    print_values(reader);
    print_tensors(reader, parts);
    for (int64_t i = 0; i < count; i++) {
        bytes += bytes_of(fsdp_checkpoint_at(reader, i));
        all_parts += fsdp_checkpoint_at(reader, i)->part_count;
    }
    printf("total: %s tensors in %s parts, %s bytes (%s)\n", FSDP__THOUSANDS(count), FSDP__THOUSANDS(all_parts),
           FSDP__THOUSANDS(bytes), FSDP__SIZE(bytes));
}

/* ---- as JSON ---- */

static void print_values_as_json(const fsdp_checkpoint_reader *reader)
{
    printf(", \"values\": {");
    for (int i = 0; i < fsdp_checkpoint_value_count(reader); i++) {
        const fsdp_checkpoint_value *v = fsdp_checkpoint_value_at(reader, i);

        printf("%s", i ? ", " : "");
        fsdp__print_json_string(v->name, stdout);
        printf(": ");
        if (v->type == FSDP_CHECKPOINT_TEXT)
            fsdp__print_json_string(v->text, stdout);
        else if (v->type == FSDP_CHECKPOINT_INTEGER)
            printf("%lld", (long long)v->integer);
        else
            printf(isfinite(v->number) ? "%.17g" : "null", v->number);
    }
    printf("}, \"files\": [");
    for (int i = 0; i < fsdp_checkpoint_file_count(reader); i++) {
        printf("%s{\"name\": ", i ? ", " : "");
        fsdp__print_json_string(fsdp_checkpoint_file_at(reader, i)->name, stdout);
        printf(", \"bytes\": %zu}", fsdp_checkpoint_file_at(reader, i)->bytes);
    }
    printf("]");
}

static void print_tensor_as_json(const fsdp_checkpoint_tensor *t)
{
    printf("{\"section\": ");
    fsdp__print_json_string(t->section, stdout);
    printf(", \"name\": ");
    fsdp__print_json_string(t->name, stdout);
    printf(", \"dtype\": \"%s\", \"shape\": %s, \"bytes\": %llu, \"parts\": [", fsdp_dtype_name(t->dtype),
           FSDP__SHAPE(t->shape, t->ndim), (unsigned long long)bytes_of(t));
    for (int64_t k = 0; k < t->part_count; k++) {
        const fsdp_checkpoint_part *part = &t->parts[k];
        int ndim = part->flat ? 1 : t->ndim;

        printf("%s{\"rank\": %d, \"flat\": %s, \"offset\": %s, \"size\": %s, \"file\": ", k ? ", " : "", part->rank,
               part->flat ? "true" : "false", FSDP__SHAPE(part->offset, ndim), FSDP__SHAPE(part->size, ndim));
        fsdp__print_json_string(part->file, stdout);
        printf(", \"begin\": %llu, \"bytes\": %llu}", (unsigned long long)part->begin, (unsigned long long)part->bytes);
    }
    printf("]}");
}

void fsdp__list_checkpoint_as_json(const fsdp_checkpoint_reader *reader)
{
    printf("{\"kind\": \"checkpoint\", \"path\": ");
    fsdp__print_json_string(fsdp_checkpoint_path(reader), stdout);
    printf(", \"step\": %lld, \"world_size\": %d, \"mesh\": ", (long long)fsdp_checkpoint_step(reader),
           fsdp_checkpoint_world_size(reader));
    fsdp__print_json_string(fsdp_checkpoint_mesh(reader), stdout);
    print_values_as_json(reader);
    printf(", \"tensors\": [");
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        printf("%s\n", i ? "," : "");
        print_tensor_as_json(fsdp_checkpoint_at(reader, i));
    }
    printf("]}\n");
}
