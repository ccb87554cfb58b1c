/* tensor.h - tensors as the layers above see them from inside.
 *
 * [Note: storage identity]
 * A storage is an object; its bytes come and go. Views hold the storage, never the bytes: `data` is computed at each
 * use. The sharding engine drops the bytes of an unsharded parameter after the forward and gives it new ones before
 * the backward, under the same views that autograd saved. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include "fsdp/tensor.h"

typedef struct fsdp__storage fsdp__storage;

/* Who wants to know before the bytes are written: see fsdp_tensor_begin_write. All zero: nobody. */
typedef struct fsdp__storage_guard {
    fsdp_status (*before_write)(void *arg, fsdp__storage *storage);
    void *arg;
} fsdp__storage_guard;

struct fsdp__storage {
    int64_t refs;
    fsdp_device *device;
    void *data; /* NULL while dropped */
    size_t bytes;
    fsdp_memory_kind kind;
    /* Bytes that are not the device's own (memory shared with peers): called once with `data` when they are let go,
     * instead of freeing. NULL: the bytes are freed to the device. */
    void (*release)(void *arg, void *data);
    void *release_arg;
    fsdp__storage_guard guard;
    uint64_t version; /* counts the writes by fsdp_tensor_begin_write: of all views, since they share it */
    uint64_t inside;  /* those of them that functions of checkpoints made */
    /* [Note: origins] */
    uint64_t run, origin, since;
    uint64_t number;       /* of those that functions have read and not made; 0: none yet */
    bool made_in_function; /* of a checkpoint */
    /* Whoever has the bytes brought back before a use brings what is right by then: autograd does not ask whether they
     * were written to since it saved them. */
    bool renewed;
    /* The bytes of a parameter that was given memory but no values; the first write takes it away. */
    bool unwritten;
    /* Work on another stream that still writes the bytes: the device's stream waits for it before the next access.
     * Borrowed: who sets it takes it away when the work is known to be done. */
    fsdp_event *written;
};

/* Bytes from the device at once, or none yet (`allocate` false). */
fsdp_status fsdp__storage_create(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, bool allocate,
                                 fsdp__storage **out);
void fsdp__storage_unref(fsdp__storage *storage);
/* New bytes from the device. Nothing to do when it has some. */
fsdp_status fsdp__storage_restore(fsdp__storage *storage);
/* The caller's bytes; the storage must have none. `release` may be NULL: borrowed. */
void fsdp__storage_adopt(fsdp__storage *storage, void *data, void (*release)(void *arg, void *data), void *arg);
/* Takes `storage->written` away after waiting for it on the device's stream. */
void fsdp__storage_await(fsdp__storage *storage);
/* Lets the bytes go, by `release` or to the device. Nothing to do when it has none. */
void fsdp__storage_drop(fsdp__storage *storage);

/* [Note: origins]
 * The function of a checkpoint runs twice, and must read the same values in both runs. A version tells this of a tensor
 * that the function does not write to. One that it does write to has another version in the second run; it has the same
 * values if the function has computed them in this run from the same ones. So while a function runs, an operation gives
 * its results an origin: a number made of the origins of what it read. A copy and a kernel do so, too, and what the
 * host writes has an origin made of its bytes. A write that leaves some of the old bytes, or may have used them, mixes
 * the old origin in. A tensor that was made outside and whose origin is not known in this run has for one which tensor
 * it is, and its version. To the others the writes since they got theirs are mixed in, and all that were made outside
 * of such functions. */
typedef struct fsdp__origins {
    uint64_t run;     /* the number of the run; 0: none */
    uint64_t runs;    /* begun so far */
    uint64_t numbers; /* given to storages so far */
} fsdp__origins;
/* NULL when out of memory. */
fsdp__origins *fsdp__origins_make(fsdp_context *context);
/* A run begins. Returns what `run` is to be when it has ended. */
uint64_t fsdp__origins_begin(fsdp__origins *origins);
/* Whether one is running on the storage's context. */
bool fsdp__origin_runs(const fsdp__storage *storage);
/* Whether this run has computed it, or a part of it. False outside of runs. */
bool fsdp__origin_is_known(const fsdp_tensor *tensor);
/* One number for all of them; NULLs are left out. */
uint64_t fsdp__origin_of(fsdp_tensor *const *tensors, int count);
/* An operation has made the tensor, which is no view, of what has the origin `from`. */
void fsdp__origin_made(const fsdp_tensor *result, uint64_t from);
/* After fsdp_tensor_begin_write: the tensor's bytes are replaced by, or also depend on, what has the origin `from`. */
void fsdp__origin_write(fsdp_tensor *tensor, uint64_t from, bool replaces);
/* Counts a write. */
void fsdp__origin_count_write(fsdp__storage *storage);

/* What an upper layer hangs on a tensor; freed with it. */
typedef struct fsdp__attachment {
    void *state;
    void (*free_state)(void *state);
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
};

/* A view on `storage`; the caller owns `*out`. NULL strides: contiguous. */
fsdp_status fsdp__tensor_create_view(fsdp__storage *storage, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                     const int64_t *strides, int64_t offset, fsdp_tensor **out);
/* Another tensor on the same bytes, without autograd and distribution; the caller owns `*out`. */
fsdp_status fsdp__tensor_alias(const fsdp_tensor *tensor, fsdp_tensor **out);

/* The same numbers in `dtype`, contiguous, of the same memory kind; on meta, and where there are no values yet, the
 * place alone. The caller owns `*out`. */
fsdp_status fsdp__tensor_convert(const fsdp_tensor *tensor, fsdp_dtype dtype, fsdp_tensor **out);
/* `tensor` stays the same object, so that whoever holds it sees the change: bytes, dtype and strides are those of
 * `from`, of the same shape and contiguous. Aliases keep what they have. */
void fsdp__tensor_take(fsdp_tensor *tensor, const fsdp_tensor *from);

/* Gives `tensor` (one reference) to the innermost scope and returns it. On failure unrefs it, returns NULL. */
fsdp_tensor *fsdp__scope_adopt(fsdp_tensor *tensor);

/* Same shape and dtype as asked, device of `like`, from the scope, counted as activation. */
fsdp_tensor *fsdp__empty_like(const fsdp_tensor *like, fsdp_dtype dtype);

/* Whether a number can be an element, what is behind its point cut off; an unsigned one wraps around, as in PyTorch.
 * FSDP_INVALID, and words for what has it: "int32 cannot be nan". */
fsdp_status fsdp__check_number(fsdp_dtype dtype, double value);

/* ---- shape arithmetic (shape.c) ---- */
int64_t fsdp__shape_numel(int ndim, const int64_t *shape); /* -1 on overflow or a negative size */
void fsdp__shape_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides);
bool fsdp__shape_equal(const fsdp_tensor *a, const fsdp_tensor *b);
/* "(2, 3)" into `text`; returns `text`. */
#define FSDP__SHAPE_TEXT 128
const char *fsdp__shape_text(int ndim, const int64_t *shape, char text[FSDP__SHAPE_TEXT]);

/* Views without autograd (view.c); the caller owns `*out`. Errors name the shapes. */
fsdp_status fsdp__view_reshape(const fsdp_tensor *tensor, int ndim, const int64_t *shape, fsdp_tensor **out);
fsdp_status fsdp__view_transpose(const fsdp_tensor *tensor, int dim0, int dim1, fsdp_tensor **out);
fsdp_status fsdp__view_narrow(const fsdp_tensor *tensor, int dim, int64_t start, int64_t length, fsdp_tensor **out);

/* For messages about what still needs values: adds `name` to `meta` where the tensor is on the meta device, and to
 * `unwritten` (NULL: to none) where it has memory only. */
struct fsdp__names;
void fsdp__name_without_values(const fsdp_tensor *tensor, const char *name, struct fsdp__names *meta,
                               struct fsdp__names *unwritten);

/* copy.c: strided copy with conversion, on the device's stream. */
fsdp_status fsdp__tensor_copy(fsdp_tensor *dst, const fsdp_tensor *src, bool accumulate);
/* With conversion, from any device to any other, by way of the host. Same shapes. [blocks] where these differ */
fsdp_status fsdp__tensor_copy_across(fsdp_tensor *dst, const fsdp_tensor *src);

#endif
