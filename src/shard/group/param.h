/* param.h - one parameter: the local rows that the outside sees (`sharded`), and the unsharded one that the forward and
 * backward use (`unsharded`), which has bytes only while its group is unsharded (FSDP2's FSDPParam).
 *
 * [Note: what fields name]
 * Outside a forward or backward the fields of modules name the shards, even where the engine keeps a group unsharded
 * (`stays_unsharded`) for the next use. From fsdp_module_unshard to the reshard (`explicit`) they name the unsharded
 * parameters. From fsdp_module_summon_full_params to its end (`summoned`) they name whole tensors of their own. */
#pragma once

#include "fsdp/comm.h"
#include "nn/module.h"
#include "shard/group/mesh_info.h"

/* Describes a parameter seen as elements: `rows` is its sharded dimension, outer the product of the dimensions before
 * it and inner that of those behind it. */
typedef struct fsdp__extent {
    int64_t outer, rows, inner;
} fsdp__extent;

/* Holds what one rank has of one parameter: `outer` runs of `inner` elements. In the parameter they begin at `at` and
 * are `stride` apart; in the rank's part of a flat group's vector they lie one after the other, from `in_shard` on. */
typedef struct fsdp__part {
    int64_t at, in_shard;         /* `in_shard` is 0 unless the group is flat */
    int64_t outer, stride, inner; /* inner 0: nothing */
} fsdp__part;

/* Describes a field of a module that names a parameter. */
typedef struct fsdp__param_field {
    fsdp_module *module;
    fsdp_tensor **field;
    const void *user; /* another state that uses the parameter; NULL: its own state */
} fsdp__param_field;

struct fsdp__param_group;

typedef struct fsdp__param {
    struct fsdp__param_group *group;
    fsdp_tensor *sharded;   /* the tensor the model was built with, now this rank's rows */
    fsdp_tensor *unsharded; /* a leaf of the whole shape; made with the group's memory */
    char *name;             /* dotted, from the root; NULL before lazy initialisation, unless it is replicated */
    char *unit_name;        /* of a flat group: dotted, from the module of the call */
    fsdp__param_field *fields;
    int64_t field_count, field_capacity;
    /* What `sharded` was before, if it was a part of a parameter that another mesh cuts (tensor parallel): the engine
     * takes that part for the whole parameter, but `sharded` tells its place in all of it. NULL: it was whole. */
    const fsdp_distribution *parallel; /* the tensor's; once that is sharded, `before` holds it */
    fsdp__attachment before;
    fsdp_mesh *joint;                      /* the group's mesh beside that one; a reference */
    int dim;                               /* the dimension that is sharded */
    fsdp__extent extent;                   /* of the unsharded parameter */
    fsdp__part part;                       /* this rank's */
    int64_t chunk_numel;                   /* padded elements of one rank's part; flat group: this rank's, unpadded */
    fsdp_placement placement;              /* over the shard group; `first` is 0 unless the group is flat */
    size_t shard_offset, unsharded_offset; /* bytes, in the group's regions */
    size_t cast_offset;                    /* in the region of casts: cast.h */
    fsdp_dtype orig_dtype, param_dtype, reduce_dtype; /* of the shard; of the gathered one; of sums of gradients */
    fsdp_gather_extension extension;                  /* `pre` NULL: none */
    size_t sent_offset;                               /* with extensions: bytes, in what a rank sends (encoded.h) */
    const fsdp_module *named_in; /* the state's module that was first asked to initialize it; or NULL */
    bool due;                    /* all ranks reduce it next: see trained_parameters.h */
    bool copied;                 /* who wrote the shard last wrote its cast, too: cast.h */
    bool partial_used; /* some rank of the replica has added to its partial gradient, which is otherwise zero */
    fsdp_tensor *accumulated_grad; /* in reduce_dtype, from backwards without reduction; or NULL */
    fsdp_tensor *summoned; /* whole and plain, in orig_dtype, which fields name while summoned: summon.c; else NULL */
} fsdp__param;

/* Initializes a parameter of a group that is being formed. Takes a reference to `tensor`, the one the model was built
 * with, which is to be sharded in dimension 0. */
void fsdp__param_init(fsdp__param *param, fsdp_tensor *tensor);
/* Returns the dtype that a policy's `wanted` (NONE: as it is) gives to something of a parameter of dtype `own`: bytes
 * (U8) are codes, which travel as they are. */
fsdp_dtype fsdp__param_dtype_by(fsdp_dtype wanted, fsdp_dtype own);
/* Takes a tensor into account that was cut over another mesh: see fsdp__param.parallel; before the group is laid out.
 * Two meshes must be parts of one mesh, and have no dimension in common. */
fsdp_status fsdp__param_join(fsdp__param *param, fsdp__mesh_info *mesh);
/* Returns whether a gradient of the parameter is this rank's contribution only, and has to be added up over the mesh
 * that cut it before. */
bool fsdp__param_is_contributed(const fsdp__param *param);
/* Gives the shape of the unsharded parameter, and returns the number of its dimensions. */
int fsdp__param_whole_shape(const fsdp__param *param, int64_t shape[FSDP_MAX_DIMS]);
/* Chooses another dimension to shard; before the group is laid out. */
void fsdp__param_set_dim(fsdp__param *param, int dim);
/* Turns the model's tensor into its distributed self: it gets the shape and distribution of this rank's rows, but not
 * the group's memory yet. So if it has values, rows of a later dimension than 0 still lie apart. The group must be laid
 * out. In a flat group it becomes a run, of one dimension. */
fsdp_status fsdp__param_shard(fsdp__param *param, const fsdp__mesh_info *mesh);
/* Turns the tensor back into the plain whole one; only while the group has no memory. */
void fsdp__param_unwrap(fsdp__param *param);
void fsdp__param_release(fsdp__param *param);

/* Adds a field that names the parameter. The field that the parameter was registered with comes first, once it has been
 * added: it names the parameter and says how it gets its first values. */
fsdp_status fsdp__param_add_field(fsdp__param *param, fsdp__param_field field);
void fsdp__param_forget_user(fsdp__param *param, const void *user);
/* Puts the unsharded parameter, or the shard, into every field that names the parameter. */
void fsdp__param_publish(fsdp__param *param, bool unsharded);
/* Puts any tensor that stands for the parameter into those fields. */
void fsdp__param_set_fields(fsdp__param *param, fsdp_tensor *tensor);
/* Names the parameter by the field that it was registered with, in the module of the dotted name `module`. */
fsdp_status fsdp__param_set_name(fsdp__param *param, const char *module, const char *field);
/* Returns the parameter's text for messages: "'name'" if it is known, otherwise its place in the group's modules. */
const char *fsdp__param_text(const fsdp__param *param, char *text, size_t bytes);

/* Tells subscribers (base/probe.h), for their messages, what lies where the param's tensors have their bytes. */
void fsdp__param_name_memory(const fsdp__param *param);

int64_t fsdp__param_numel(const fsdp__param *param);
int64_t fsdp__param_shard_numel(const fsdp__param *param);
/* Returns whether the rows of every rank lie together in the unsharded parameter: one that has none says what the
 * others say. */
bool fsdp__param_is_one_run(const fsdp__param *param);
/* Returns the parameter's shape for a collective; the caller fills in memory and dtypes. */
fsdp_sharded_buffer fsdp__param_buffer(const fsdp__param *param);
/* Returns the bytes of the unsharded parameter in `dtype`, as it lies in memory: rows padded to a multiple of the
 * ranks, rounded up. */
size_t fsdp__param_padded_bytes(const fsdp__param *param, int ranks, fsdp_dtype dtype);
