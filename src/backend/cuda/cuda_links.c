/* cuda_links.c - says by what the GPUs of a machine are joined: CUDA knows which reach each other's memory, and NVML,
 * which comes with the driver, whether that is by NVLink.
 *
 * Nothing of a run depends on it but a line of the log. So a call that fails is taken for a no, and without NVML the
 * line says less. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries.h"
#include "base/compiler.h"

enum {
    CARD = 16,       /* bytes of "0000:3b:00.0" */
    MOST_LINKS = 18, /* of NVLink that a GPU has */
    SHOWN_PAIRS = 6,
    BY_NVLINK = 2 /* NVML_P2P_CAPS_INDEX_NVLINK */
};

/* ---- NVML ---- */

typedef struct nvmlDevice_st *nvml_gpu;

/* Its functions answer with 0 where all went well. The header comes with no package that the plug-in is built with. */
typedef struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *card, nvml_gpu *out);
    int (*pair)(nvml_gpu one, nvml_gpu other, int index, int *status);
    int (*link)(nvml_gpu gpu, unsigned link, int *active);
} nvml;

static const fsdp__cuda_library library = {
    .file = "libnvidia-ml.so.1", .purpose = "words about links", .package = "NVIDIA's driver"};

static bool begin_nvml(nvml *out)
{
    static const char *const names[] = {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2",
                                        "nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkState"};
    void *handle;

    return fsdp__cuda_library_open(&library, &handle) == FSDP_OK &&
           fsdp__cuda_library_functions(&library, handle, names, (void **)out, FSDP__COUNT_OF(names)) == FSDP_OK &&
           out->init() == 0;
}

static int count_links(const nvml *n, nvml_gpu gpu)
{
    int links = 0;

    for (unsigned l = 0; l < MOST_LINKS; l++) {
        int active = 0;

        links += n->link(gpu, l, &active) == 0 && active == 1;
    }
    return links;
}

/* ---- what there is ---- */

typedef enum way {
    NVLINK,
    REACHED, /* otherwise: through PCIe, where NVML was asked */
    HOST,
    WAYS
} way;

typedef struct links {
    int count;
    bool asked; /* NVML has answered for all GPUs */
    nvml_gpu gpus[FSDP__MOST_GPUS];
    int fewest, most; /* links of NVLink of a GPU */
    int pairs[WAYS];
    char shown[WAYS][128]; /* the first pairs: "0-1, 0-2" */
} links;

static bool reaches(int one, int other)
{
    int can = 0;

    if (cudaDeviceCanAccessPeer(&can, one, other) == cudaSuccess)
        return can != 0;
    (void)cudaGetLastError();
    return false;
}

static bool find_gpu(const nvml *n, int ordinal, nvml_gpu *out)
{
    char card[CARD];

    if (cudaDeviceGetPCIBusId(card, CARD, ordinal) == cudaSuccess)
        return n->find(card, out) == 0;
    (void)cudaGetLastError();
    return false;
}

static void find_gpus(const nvml *n, links *l)
{
    for (int i = 0; i < l->count && l->asked; i++) {
        int own;

        l->asked = find_gpu(n, i, &l->gpus[i]);
        own = l->asked ? count_links(n, l->gpus[i]) : 0;
        l->fewest = i == 0 ? own : FSDP__MIN(l->fewest, own);
        l->most = FSDP__MAX(l->most, own);
    }
}

static way way_between(const nvml *n, const links *l, int one, int other)
{
    int status = -1;

    if (!reaches(one, other) || !reaches(other, one))
        return HOST;
    return l->asked && n->pair(l->gpus[one], l->gpus[other], BY_NVLINK, &status) == 0 && status == 0 ? NVLINK : REACHED;
}

static void note_pair(links *l, way by, int one, int other)
{
    size_t used = strlen(l->shown[by]);

    if (l->pairs[by]++ < SHOWN_PAIRS)
        snprintf(l->shown[by] + used, sizeof l->shown[by] - used, "%s%d-%d", used ? ", " : "", one, other);
}

static void look_at_links(links *l)
{
    nvml n;
    bool begun = begin_nvml(&n);

    l->asked = begun;
    find_gpus(&n, l);
    for (int i = 0; i < l->count; i++)
        for (int j = i + 1; j < l->count; j++)
            note_pair(l, way_between(&n, l, i, j), i, j);
    if (begun)
        (void)n.shutdown();
}

/* ---- how it is said ---- */

static void add(char *text, size_t bytes, const char *more)
{
    size_t used = strlen(text);

    snprintf(text + used, bytes - used, "%s", more);
}

/* Says which pairs have another way than the best one that there is. */
static void add_pairs(const links *l, way by, const char *name, char *text, size_t bytes)
{
    char more[256];
    int rest = l->pairs[by] - SHOWN_PAIRS;

    if (l->pairs[by] == 0)
        return;
    snprintf(more, sizeof more, "; some pairs %s: %s", name, l->shown[by]);
    add(text, bytes, more);
    snprintf(more, sizeof more, " and %d more", rest);
    if (rest > 0)
        add(text, bytes, more);
}

static void write_links(const links *l, char *text, size_t bytes)
{
    const char *reached = l->asked ? "through PCIe" : "by what NVML does not tell";
    char fewest[16] = "";

    if (l->fewest < l->most)
        snprintf(fewest, sizeof fewest, "%d to ", l->fewest);
    if (l->pairs[NVLINK] > 0) {
        snprintf(text, bytes, "joined by NVLink (%s%d links each)", fewest, l->most);
        add_pairs(l, REACHED, reached, text, bytes);
        add_pairs(l, HOST, "through the host", text, bytes);
    } else if (l->pairs[REACHED] > 0) {
        snprintf(text, bytes, "joined %s", reached);
        add_pairs(l, HOST, "through the host", text, bytes);
    } else {
        snprintf(text, bytes, "joined through the host alone: none reaches another's memory");
    }
}

/* Returns whether the cards 0 to count - 1 are of one model. */
static bool are_alike(const fsdp_device *device, int count)
{
    struct cudaDeviceProp facts;

    for (int i = 0; i < count; i++) {
        if (cudaGetDeviceProperties(&facts, i) != cudaSuccess) {
            (void)cudaGetLastError();
            return false;
        }
        if (strncmp(facts.name, fsdp__cuda_state_of(device)->model, sizeof fsdp__cuda_state_of(device)->model - 1) != 0)
            return false;
    }
    return true;
}

static fsdp__link worst_of(const links *l)
{
    if (l->pairs[HOST] > 0)
        return FSDP__LINK_HOST;
    if (l->pairs[REACHED] > 0)
        return l->asked ? FSDP__LINK_PCIE : FSDP__LINK_UNKNOWN;
    return FSDP__LINK_NVLINK;
}

fsdp__link fsdp__cuda_links(fsdp_device *device, int count, char *text, size_t bytes)
{
    links l = {.count = count};
    char ways[512];

    if (fsdp__cuda_use(device) != FSDP_OK)
        return FSDP__LINK_UNKNOWN;
    look_at_links(&l);
    write_links(&l, ways, sizeof ways);
    snprintf(text, bytes, "%d x %s, %s", count,
             are_alike(device, count) ? fsdp__cuda_state_of(device)->model : "GPU (of several models)", ways);
    return worst_of(&l);
}
