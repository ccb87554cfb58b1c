/* tensor.h - tensors as the layers above see them from inside.
 *
 * [Note: storage identity]
 * A storage is an object; its bytes come and go. Views hold the storage, never the bytes: `data` is computed at each
 * use. The sharding engine drops the bytes of an unsharded parameter after the forward and gives it new ones before
 * the backward, under the same views that autograd saved. */
#pragma once

#include "base/compiler.h"
#include "fsdp/tensor.h"

typedef struct fsdp__storage fsdp__storage;

/* Is told before the bytes are written: see fsdp_tensor_begin_write. All zero: nobody is. */
typedef struct fsdp__storage_guard {
    fsdp_status (*before_write)(void *arg, fsdp__storage *storage);
    void *arg;
    /* Returns where a copy of the bytes in another dtype lies, or NULL; may itself be NULL. Whoever writes all of the
     * bytes may write the copy, too, in the order of the device's stream. */
    void *(*copy_place)(void *arg, const fsdp__storage *storage, fsdp_dtype *dtype);
    void (*copied)(void *arg, const fsdp__storage *storage); /* that has been done: the copy is what the bytes are */
    /* Or NULL. Brings bytes that were dropped back, since somebody asks for them. */
    fsdp_status (*bring)(void *arg, fsdp__storage *storage);
    /* Or NULL. Returns where the lower 16 bits of f32 lie while the bytes are dropped and the copy has the others
     * ([Note: split numbers] in device/formulas.h); NULL: nowhere. */
    void *(*low_place)(void *arg, const fsdp__storage *storage);
} fsdp__storage_guard;

/* Holds what the host knows of integers that lie on a device, since they came from it. */
typedef struct fsdp__range {
    int64_t count;                /* of the integers; 0: nothing is known */
    int64_t lowest, lowest_count; /* the lowest, and how many there are of it */
    int64_t next_lowest, highest; /* the lowest of the others, or the highest if there are no others; the highest */
    uint64_t version;             /* of the storage that has them */
} fsdp__range;

/* Holds what is known of int32 that are positions in documents, in rows: fsdp__documents_of. */
typedef struct fsdp__documents {
    int64_t row;      /* how long a row is; 0: nothing is known */
    int64_t wrong;    /* the first that is neither 0 nor one more than the one before in its row; -1: none */
    int64_t pairs;    /* of a token and one that it sees: its own document's, up to itself */
    int64_t longest;  /* document's tokens */
    uint64_t version; /* of the storage that has them */
} fsdp__documents;

struct fsdp__storage {
    int64_t refs;
    fsdp_device *device;
    void *data; /* NULL while dropped */
    size_t bytes;
    fsdp_memory_kind kind;
    const void *owner; /* the module that it was made in: fsdp__taker */
    /* Set for bytes that are not the device's own (memory shared with peers): called once with `data` when they are let
     * go, instead of freeing them. NULL: the bytes are freed to the device. */
    void (*release)(void *arg, void *data);
    void *release_arg;
    fsdp__storage_guard guard;
    uint64_t version; /* counts writes by fsdp_tensor_begin_write, through any view, since views share it */
    uint64_t inside;  /* how many of those writes were made by functions that are recomputed */
    /* see [Note: origins] */
    uint64_t run, origin, since;
    uint64_t number;       /* identifies a storage that such functions have read and not made; 0: none yet */
    bool made_in_function; /* by a function that is recomputed */
    /* Set if the bytes are brought back before each use with the values that are right by then, and their version:
     * autograd does not ask whether they were written to since it saved them. A function that is recomputed does. It
     * names who brings them back, all of its storages together. With `strict` autograd asks all the same. */
    const void *renewed_by;
    bool strict;
    /* True for the bytes of a parameter that was given memory but no values; the first write clears it. */
    bool unwritten;
    fsdp__range range;         /* of all of its bytes, as integers of one dtype: fsdp__tensor_range */
    fsdp__documents documents; /* of all of its bytes, or nothing: fsdp__tensor_documents */
    /* Work on another stream that still writes the bytes: the device's stream waits for it before the next access.
     * Borrowed: whoever sets it clears it when the work is known to be done. */
    fsdp_event *written;
};

/* Makes a storage, with bytes from the device at once, or with none yet (`allocate` false). */
fsdp_status fsdp__storage_create(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, bool allocate,
                                 fsdp__storage **out);
void fsdp__storage_unref(fsdp__storage *storage);
/* Gets new bytes from the device. Does nothing if the storage has some. */
fsdp_status fsdp__storage_restore(fsdp__storage *storage);
/* Takes the caller's bytes; the storage must have none. `release` may be NULL: the bytes are borrowed. */
void fsdp__storage_adopt(fsdp__storage *storage, void *data, void (*release)(void *arg, void *data), void *arg);
/* Brings dropped bytes back if the guard can; otherwise they stay as they are. */
fsdp_status fsdp__storage_bring(fsdp__storage *storage);
/* Returns whether the tensor has bytes, or bytes that come when somebody asks for them. */
bool fsdp__tensor_has_bytes(const fsdp_tensor *tensor);
/* Waits for `storage->written` on the device's stream, and clears it. */
void fsdp__storage_await(fsdp__storage *storage);
/* Return the place of a copy beside the tensor, which must be all of its storage, and say that it was written: see
 * fsdp__storage_guard. Between the two there may be no other write. */
void *fsdp__tensor_copy_place(const fsdp_tensor *tensor, fsdp_dtype *dtype);
void fsdp__tensor_copied(const fsdp_tensor *tensor);
/* Returns where the lower halves of the tensor's numbers lie, which must be all of its storage; the copy has the upper
 * ones, and who writes both needs no other bytes. NULL: the numbers are not in halves. */
void *fsdp__tensor_low_place(const fsdp_tensor *tensor);
/* Lets the bytes go, by `release` or to the device. Does nothing if the storage has none. */
void fsdp__storage_drop(fsdp__storage *storage);

/* [Note: origins]
 * A function given to fsdp_recompute runs twice, and must read the same values in both runs. The version shows this for
 * a tensor that the function does not write to. A tensor that it does write to has another version in the second run;
 * its values are the same if the function has computed them in this run from the same values. So while a function runs,
 * an operation gives its results an origin: a number made from the origins of what it read. A copy and a kernel do so,
 * too, and what the host writes has an origin made from its bytes. A write that leaves some of the old bytes, or may
 * have used them, mixes the old origin in. If a tensor was made outside and its origin is not known in this run, the
 * origin is made from which tensor it is and its version. For the others, the writes since they got their origins are
 * mixed in, and so are all writes that were made outside of such functions. */
typedef struct fsdp__origins {
    uint64_t run;     /* the number of the run; 0: none */
    uint64_t runs;    /* runs begun so far */
    uint64_t numbers; /* numbers given to storages so far */
} fsdp__origins;
/* Returns the context's origins, made at the first call; NULL when out of memory. */
fsdp__origins *fsdp__origins_make(fsdp_context *context);
/* Begins a run. Returns the value that `run` must get back when the run has ended. */
uint64_t fsdp__origins_begin(fsdp__origins *origins);
/* Returns whether a run is going on in the storage's context. */
bool fsdp__origin_runs(const fsdp__storage *storage);
/* Returns whether this run has computed the tensor, or a part of it. False outside of runs. */
bool fsdp__origin_is_known(const fsdp_tensor *tensor);
/* Returns one number made from the origins of all tensors; NULLs are left out. */
uint64_t fsdp__origin_of(fsdp_tensor *const *tensors, int count);
/* Notes that an operation has made the tensor, which is no view, from what has the origin `from`. */
void fsdp__origin_made(const fsdp_tensor *result, uint64_t from);
/* Call it after fsdp_tensor_begin_write: notes that the tensor's bytes are replaced by, or also depend on, what has the
 * origin `from`. */
void fsdp__origin_write(fsdp_tensor *tensor, uint64_t from, bool replaces);
/* Counts a write. */
void fsdp__origin_count_write(fsdp__storage *storage);

/* Holds state that an upper layer attaches to a tensor; freed with it. */
typedef struct fsdp__attachment {
    void *state;
    void (*free_state)(void *state);
    /* Set where the tensor is a part of a larger one: calls `run` for each run of its elements, with the place of the
     * first in the whole and in the tensor (fsdp_tensor_runs). */
    fsdp_status (*runs)(const fsdp_tensor *tensor,
                        fsdp_status (*run)(void *arg, int64_t global, int64_t local, int64_t numel), void *arg);
    void *(*share)(void *state); /* a copy for an alias of a `global` tensor, NULL when out of memory; or NULL */
} fsdp__attachment;

struct fsdp_tensor {
    int64_t refs;
    fsdp__storage *storage;
    int64_t offset; /* elements from the storage's start */
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t strides[FSDP_MAX_DIMS];
    fsdp__attachment autograd;     /* autograd/: requires_grad, grad, producer, hooks */
    fsdp__attachment distribution; /* dist/: mesh, placements, global shape */
    bool global;                   /* operations take it for the whole: [Note: distributed tensors] in ops/global.h */
};

/* Makes a view of `storage`; the caller owns `*out`. NULL strides: contiguous. */
fsdp_status fsdp__tensor_create_view(fsdp__storage *storage, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                     const int64_t *strides, int64_t offset, fsdp_tensor **out);
/* Makes another tensor on the same bytes, without autograd, and without distribution unless it is global; the caller
 * owns `*out`. */
fsdp_status fsdp__tensor_alias(const fsdp_tensor *tensor, fsdp_tensor **out);

/* Makes a contiguous tensor with the same numbers in `dtype`, in memory of the same kind. On meta, and where there are
 * no values yet, it only makes room for them. The caller owns `*out`. */
fsdp_status fsdp__tensor_convert(const fsdp_tensor *tensor, fsdp_dtype dtype, fsdp_tensor **out);
/* Gives `tensor` the bytes, dtype and strides of `from`, which has the same shape and is contiguous. `tensor` stays the
 * same object, so that whoever holds it sees the change. Aliases keep what they have. */
void fsdp__tensor_take(fsdp_tensor *tensor, const fsdp_tensor *from);

/* Gives `tensor` (one reference) to the innermost scope and returns it. On failure unrefs it and returns NULL. */
fsdp_tensor *fsdp__scope_adopt(fsdp_tensor *tensor);

/* Makes a tensor in the scope, with the shape and device of `like` and the dtype asked for, counted as activation. */
fsdp_tensor *fsdp__empty_like(const fsdp_tensor *like, fsdp_dtype dtype);

/* Checks whether a number can be an element, with its fraction cut off; an unsigned type wraps around, as in PyTorch.
 * If not, returns FSDP_INVALID with a last error such as "int32 cannot be nan", which the caller prefixes. */
fsdp_status fsdp__check_number(fsdp_dtype dtype, double value);

/* ---- shape arithmetic (shape.c) ---- */
int64_t fsdp__shape_numel(int ndim, const int64_t *shape); /* -1 on overflow or a negative size */
void fsdp__shape_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides);
bool fsdp__shape_equal(const fsdp_tensor *a, const fsdp_tensor *b);
/* Writes "(2, 3)" into `text` and returns `text`. */
#define FSDP__SHAPE_TEXT 128
const char *fsdp__shape_text(int ndim, const int64_t *shape, char text[FSDP__SHAPE_TEXT]);
/* Write a shape, or a tensor's, for a message: the text stays until the end of the block that the call stands in. */
#define FSDP__SHOWN_SHAPE(ndim, shape) fsdp__shape_text((ndim), (shape), (char[FSDP__SHAPE_TEXT]){0})
#define FSDP__SHAPE_OF(tensor) FSDP__SHOWN_SHAPE((tensor)->ndim, (tensor)->shape)

/* Make views without autograd (tensor_view.c); the caller owns `*out`. Errors name the shapes. */
fsdp_status fsdp__view_reshape(const fsdp_tensor *tensor, int ndim, const int64_t *shape, fsdp_tensor **out);
fsdp_status fsdp__view_transpose(const fsdp_tensor *tensor, int dim0, int dim1, fsdp_tensor **out);
fsdp_status fsdp__view_narrow(const fsdp_tensor *tensor, int dim, int64_t start, int64_t length, fsdp_tensor **out);

/* Collects names for messages about what still needs values: adds `name` to `meta` if the tensor is on the meta device,
 * and to `unwritten` (NULL: to none) if it has memory only. */
struct fsdp__names;
void fsdp__name_without_values(const fsdp_tensor *tensor, const char *name, struct fsdp__names *meta,
                               struct fsdp__names *unwritten);

/* Gets the range of the integers of a tensor that the host has written to a device whose memory it cannot reach, if
 * nobody has written there since. Returns false where it is not known. Those of a view may be fewer than the range has.
 */
bool fsdp__tensor_range(const fsdp_tensor *tensor, fsdp__range *out);

/* Looks at positions (rows,row). */
fsdp__documents fsdp__documents_of(const int32_t *positions, int64_t rows, int64_t row);
/* Notes that all positions of an int32 tensor were found right. Nothing is noted of a view of a part. */
void fsdp__tensor_note_documents(const fsdp_tensor *tensor, fsdp__documents found);
/* Returns what the host knows of a tensor (rows,row) that has right positions: it has written them to a device whose
 * memory it cannot reach, or noted it, and nobody has written there since. NULL: nothing. */
const fsdp__documents *fsdp__tensor_documents(const fsdp_tensor *tensor);

/* Copies with any strides, and converts, on the device's stream (tensor_copy.c). */
fsdp_status fsdp__tensor_copy(fsdp_tensor *dst, const fsdp_tensor *src, bool accumulate);
/* Copies from any device to any other, by way of the host, and converts. Same shapes. [blocks] if the devices differ */
fsdp_status fsdp__tensor_copy_across(fsdp_tensor *dst, const fsdp_tensor *src);

FSDP__SCOPED_POINTER(fsdp_tensor, fsdp_tensor_unref)
FSDP__SCOPED_POINTER(fsdp__storage, fsdp__storage_unref)

/* Returns the last status to the caller if a tensor expression, or another call that records its error, has given NULL:
 * FSDP__TRY_MADE(y = fsdp_exp(x)); */
#define FSDP__TRY_MADE(...)            \
    do {                               \
        if (!(__VA_ARGS__))            \
            return fsdp_last_status(); \
    } while (0)
