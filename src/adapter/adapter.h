/* adapter.h - what the files of this layer share: the adapted layers of a model, and the names that are matched. */
#pragma once

#include "base/compiler.h"
#include "fsdp/adapter.h"
#include "nn/layers.h"

/* Describes one adapted layer, the argument of its hook. The children belong to the layer. */
typedef struct fsdp__lora {
    fsdp__layer_beside beside; /* first: a pointer to one is one to the other */
    fsdp_layer *layer;
    bool transposed; /* a Conv1D: its weight is (in,out) */
} fsdp__lora;

typedef struct fsdp__adapted {
    char *name;
    fsdp_module *module; /* a reference */
    fsdp__lora *lora;    /* lives as long as the module */
    int64_t rank, in, out;
    double alpha;
} fsdp__adapted;

/* A layer whose frozen weight is held in fewer bits. */
typedef struct fsdp__coded_layer {
    char *name;          /* of its weight */
    fsdp_module *module; /* a reference */
} fsdp__coded_layer;

struct fsdp_adapter {
    fsdp_module *model; /* a reference */
    fsdp_lora_options *options;
    fsdp__adapted *items;
    int64_t count, capacity;
    char **saved; /* names of the modules that are trained whole */
    int64_t saved_count, saved_capacity;
    fsdp__coded_layer *coded;
    int64_t coded_count, coded_capacity;
};

/* ---- choose_layers.c ---- */

/* Refuses an adapter that is NULL; `what` was to be done with it. */
fsdp_status fsdp__adapter_check(const fsdp_adapter *adapter, const char *what);
/* Returns another name of the weight of a module that has one: the model uses it elsewhere, too. NULL: there is none.
 */
const char *fsdp__adapter_shared_with(const fsdp_named_modules *all, const fsdp_module *module);
/* Turns A and B of all layers on or off, whatever modules that are trained whole hold. */
void fsdp__adapter_switch(fsdp_adapter *adapter, bool on);
/* Names the output head, which gets no adapter and keeps its dtype. */
#define FSDP__ADAPTER_HEAD "lm_head"

/* ---- lora_layer.c ---- */

/* Returns whether the module is an adapted layer. */
bool fsdp__lora_is_on(const fsdp_module *module);
/* Gives the layer its children and the hook that computes with them. `name` is the layer's in the model. */
fsdp_status fsdp__lora_attach(fsdp_module *module, const fsdp_lora_options *options, fsdp__adapted *item);

/* ---- match.c ---- */

/* Returns whether a regular expression matches the whole name, or with `end` its end after a dot. */
fsdp_status fsdp__adapter_regex(const char *regex, const char *name, bool end, bool *out);
/* Returns whether a name, or its end after a dot, is `end`. */
bool fsdp__adapter_ends(const char *name, const char *end);

/* ---- options.c ---- */

/* Makes a copy with strings of its own and defaults filled in. Refuses values that make no sense. */
fsdp_status fsdp__lora_options_copy(const fsdp_lora_options *options, fsdp_lora_options **out);

/* ---- state.c ---- */

/* Does what fsdp_adapter_state_dict does, with the names that peft writes. */
fsdp_status fsdp__adapter_peft_state(const fsdp_adapter *adapter, const fsdp_state_dict *from, fsdp_state_dict **out);
/* Return whether the model's tensor of this name belongs to the adapter; whether it is an A, B or m. */
bool fsdp__adapter_owns(const fsdp_adapter *adapter, const char *name);
bool fsdp__adapter_is_low_rank(const char *name);
/* Returns the layer whose weight of this name is held in fewer bits; NULL: it is not. */
const fsdp__coded_layer *fsdp__adapter_coded(const fsdp_adapter *adapter, const char *name);

/* ---- folder.c ---- */

/* Does what fsdp_adapter_load does, into the tensors of a state dict of the model; NULL: those of the model. */
fsdp_status fsdp__adapter_load_state(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *folder);
#define FSDP__ADAPTER_CONFIG "adapter_config.json"
#define FSDP__ADAPTER_WEIGHTS "adapter_model.safetensors"
/* Gives the text of adapter_config.json; free() it. */
fsdp_status fsdp__adapter_config_text(const fsdp_adapter *adapter, const char *base, char **out);
/* Parses such a text. */
fsdp_status fsdp__adapter_config_parse(const char *path, const void *text, size_t bytes, fsdp_lora_options **out);

FSDP__SCOPED_POINTER(fsdp_lora_options, fsdp_lora_options_free)
FSDP__SCOPED_POINTER(fsdp_adapter, fsdp_adapter_free)

/* ---- merge.c ---- */

/* Sets the magnitudes of all layers to the row norms of W + s B A. `state` is that of the model. [collective] */
fsdp_status fsdp__adapter_set_magnitudes(const fsdp_adapter *adapter, const fsdp_state_dict *state);
