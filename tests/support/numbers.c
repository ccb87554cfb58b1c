/* numbers.c - arrays of tests/numbers, and the tensors that they are cut into. */
#include "support/numbers.h"

#include "data/array_file.h"

static struct {
    char *file; /* the one that is read */
    float *data;
    number_tensor *tensors;
    int count;
} numbers;

static char *path_of(const char *x, const char *ending)
{
    char *path = NULL;

    if (asprintf(&path, TEST_SOURCE_DIR "/tests/numbers/%s%s", x, ending) < 0)
        TEST_FAIL("out of memory");
    return path;
}

void *number_array(const char *x, fsdp_dtype dtype, int64_t *count)
{
    char *path = path_of(x, ".npy"), *file, *array;
    fsdp__array_header header;
    size_t bytes;

    file = test_read_file(path, &bytes);
    CHECK_OK(fsdp__array_parse(path, (const unsigned char *)file, bytes, &header));
    CHECK_EQ(header.dtype, dtype);
    bytes -= header.offset;
    array = malloc(bytes + 1); /* which stays when the case ends */
    memcpy(array, file + header.offset, bytes);
    *count = (int64_t)(bytes / fsdp_dtype_size(dtype));
    free(path);
    return array;
}

/* "name 2 3": its values are the next ones. Returns how many. */
static int64_t add_tensor(char *line, const float *data)
{
    number_tensor *t;
    int64_t numel = 1;
    char *rest, *word = strtok_r(line, " ", &rest);

    numbers.tensors = realloc(numbers.tensors, (size_t)(numbers.count + 1) * sizeof *numbers.tensors);
    t = &numbers.tensors[numbers.count++];
    *t = (number_tensor){.data = data};
    CHECK(snprintf(t->name, sizeof t->name, "%s", word) < (int)sizeof t->name);
    while ((word = strtok_r(NULL, " ", &rest))) {
        CHECK(t->ndim < (int)(sizeof t->shape / sizeof *t->shape));
        t->shape[t->ndim] = atoll(word);
        numel *= t->shape[t->ndim++];
    }
    return numel;
}

static void read_file(const char *x)
{
    char *path, *text, *rest, *line;
    int64_t count, at = 0;

    if (numbers.file && strcmp(numbers.file, x) == 0)
        return;
    free(numbers.file);
    free(numbers.data);
    numbers.file = strdup(x);
    numbers.count = 0;
    numbers.data = number_array(x, FSDP_F32, &count);
    path = path_of(x, ".txt");
    text = test_read_file(path, NULL);
    line = strtok_r(text, "\n", &rest); /* who made it */
    while (line && (line = strtok_r(NULL, "\n", &rest)))
        at += add_tensor(line, numbers.data + at);
    if (at != count)
        TEST_FAIL("'%s' has shapes of %lld numbers, its .npy %lld", path, (long long)at, (long long)count);
    free(path);
}

const number_tensor *number_find(const char *x, const char *name, const char *part)
{
    char full[128];

    read_file(x);
    snprintf(full, sizeof full, "%s.%s", name, part);
    for (int i = 0; i < numbers.count; i++)
        if (strcmp(numbers.tensors[i].name, full) == 0)
            return &numbers.tensors[i];
    return NULL;
}

const number_tensor *number_get(const char *x, const char *name, const char *part)
{
    const number_tensor *found = number_find(x, name, part);

    if (!found)
        TEST_FAIL("tests/numbers/%s.txt has no '%s.%s'", x, name, part);
    return found;
}

int number_count(const char *x, const char *prefix)
{
    int count = 0;

    read_file(x);
    for (int i = 0; i < numbers.count; i++)
        count += strncmp(numbers.tensors[i].name, prefix, strlen(prefix)) == 0;
    return count;
}
