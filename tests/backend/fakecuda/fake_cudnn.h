/* fake_cudnn.h - what the two files of the fake cuDNN share. */
#pragma once

#include "backend/cuda/cudnn_calls.h"
#include "backend/fakecuda/fake.h"

enum {
    FAKE_ATTRIBUTES = 12, /* of a descriptor, at most */
    FAKE_ENGINES = 2,
    FAKE_WORKSPACE = 1000 /* bytes that a plan needs, and overwrites */
};

typedef struct fake_attribute {
    int name, type;
    int64_t count;
    size_t bytes; /* of each value */
    void *values;
} fake_attribute;

typedef struct fake_descriptor {
    int kind, count;
    bool finished, depends_on_time;
    fake_attribute attributes[FAKE_ATTRIBUTES];
    const struct fake_descriptor *graph; /* of a configuration of an engine, and of a plan */
} fake_descriptor;

/* Returns an attribute, or NULL. */
const fake_attribute *fake_attribute_of(const fake_descriptor *d, int name);
/* Returns an attribute that is one number. */
int64_t fake_value(const fake_descriptor *d, int name, int64_t otherwise);
/* Returns the i-th descriptor of an attribute, or NULL. */
const fake_descriptor *fake_linked(const fake_descriptor *d, int name, int64_t i);

/* ---- fake_cudnn_run.c ---- */

/* Returns whether all tensors of an id are the same, and each is filled before it is read. */
bool fake_graph_fits(const fake_descriptor *graph);

typedef struct fake_job fake_job;

/* Makes a graph and its pointers ready to run; NULL: they do not fit. */
fake_job *fake_job_of(const fake_descriptor *graph, const fake_descriptor *pack);
/* Computes and frees it; `argument` points to the pointer. */
void fake_job_run(const void *argument);
void fake_job_free(fake_job *job);
