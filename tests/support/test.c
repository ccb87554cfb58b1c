/* support/test.c - the checks. */
#include "support/test.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "base/file.h"

static _Thread_local test_thread *current;

void test_enter_thread(test_thread *thread)
{
    current = thread;
}

void test_leave_thread(void)
{
    current = NULL;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    char message[1536];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (current) {
        snprintf(current->message, sizeof current->message, "%s:%d: %s", file, line, message);
        longjmp(current->escape, 1);
    }
    print_error("%s:%d: %s\n", file, line, message);
    _fail(file, line);
    abort(); /* not reached: _fail jumps back to cmocka */
}

bool test_on_cpu(void)
{
    const char *name = getenv("FSDP_TEST_DEVICE");

    return !name || strcmp(name, "cpu") == 0;
}

void test_skip_if(bool so, const char *reason, ...)
{
    char text[512];
    va_list arguments;

    if (!so)
        return;
    va_start(arguments, reason);
    vsnprintf(text, sizeof text, reason, arguments);
    va_end(arguments);
    print_message("skipped: %s\n", text);
    skip();
}

void test_only_on_cpu(const char *reason)
{
    test_skip_if(!test_on_cpu(), "on '%s': %s", getenv("FSDP_TEST_DEVICE"), reason);
}

static bool on_gpu(void)
{
    const char *name = getenv("FSDP_TEST_DEVICE");

    return name && strncmp(name, "cuda", 4) == 0;
}

bool test_has_cpu_bits(void)
{
    return !on_gpu();
}

void test_not_on_gpu(const char *reason)
{
    test_skip_if(on_gpu(), "on '%s': %s", getenv("FSDP_TEST_DEVICE"), reason);
}

void test_check_eq(int64_t actual, int64_t expected, const char *actual_text, const char *expected_text,
                   const char *file, int line)
{
    if (actual != expected)
        test_fail(file, line, "%s is %lld, expected %lld (%s)", actual_text, (long long)actual, (long long)expected,
                  expected_text);
}

void test_check_string(const char *actual, const char *expected, const char *text, const char *file, int line)
{
    if (!actual || strcmp(actual, expected) != 0)
        test_fail(file, line, "%s is '%s', expected '%s'", text, actual ? actual : "(NULL)", expected);
}

void test_check_contains(const char *text, const char *part, const char *file, int line)
{
    if (!text || !strstr(text, part))
        test_fail(file, line, "'%s' does not contain '%s'", text ? text : "(NULL)", part);
}

void test_check_bytes(const void *actual, const void *expected, size_t bytes, const char *file, int line)
{
    const unsigned char *a = actual, *b = expected;

    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            test_fail(file, line, "byte %zu of %zu is 0x%02x, expected 0x%02x", i, bytes, a[i], b[i]);
}

void test_check_near(double actual, double expected, double tolerance, const char *text, const char *file, int line)
{
    if (!(fabs(actual - expected) <= tolerance))
        test_fail(file, line, "%s is %.9g, expected %.9g within %g", text, actual, expected, tolerance);
}

void test_check_close(const float *actual, const float *expected, int64_t count, double relative, double absolute,
                      const char *file, int line)
{
    double worst = 0;
    int64_t where = -1, wrong = 0;

    for (int64_t i = 0; i < count; i++) {
        double a = actual[i], e = expected[i], excess;

        if (a == e || (isnan(a) && isnan(e)))
            continue;
        excess = fabs(a - e) - (absolute + relative * fabs(e));
        if (excess <= 0)
            continue;
        wrong++;
        if (where < 0 || isnan(excess) || excess > worst) {
            worst = excess;
            where = i;
        }
    }
    if (where >= 0)
        test_fail(file, line, "%lld of %lld elements differ, most [%lld]: %.9g, expected %.9g", (long long)wrong,
                  (long long)count, (long long)where, (double)actual[where], (double)expected[where]);
}

void test_check_status(fsdp_status actual, fsdp_status expected, const char *text, const char *file, int line)
{
    if (actual == expected)
        return;
    test_fail(file, line, "%s: %s, expected %s%s%s%s%s%s", text, fsdp_status_text(actual), fsdp_status_text(expected),
              actual ? "\n  " : "", actual ? fsdp_last_error() : "", actual ? " (" : "",
              actual ? fsdp_last_error_trace() : "", actual ? ")" : "");
}

void *test_check_pointer(const void *pointer, const char *text, const char *file, int line)
{
    if (!pointer)
        test_fail(file, line, "%s is NULL\n  %s (%s)", text, fsdp_last_error(), fsdp_last_error_trace());
    return (void *)(uintptr_t)pointer;
}

bool test_next_fault(fsdp__fault_kind kind, long *n)
{
    bool more = *n == 0 || fsdp__fault_hit(kind);

    fsdp__fault_arm(kind, more ? ++*n : 0);
    return more;
}

void test_check_fault(fsdp__fault_kind kind, fsdp_status status, const char *file, int line)
{
    bool hit = fsdp__fault_hit(kind);

    if (hit && status == FSDP_OK)
        test_fail(file, line, "succeeded although a use failed");
    if (!hit && status != FSDP_OK)
        test_fail(file, line, "failed by itself: %s (%s)", fsdp_last_error(), fsdp_last_error_trace());
    if (hit && !*fsdp_last_error())
        test_fail(file, line, "failed without a message");
}

bool test_long(void)
{
    const char *value = getenv("TEST_LONG");

    return value && *value && strcmp(value, "0") != 0;
}

bool test_brief(void)
{
    return (TEST_SANITIZED || !test_on_cpu()) && !test_long();
}

bool test_takes(int i, int usual, int brief)
{
    return test_long() || i % (test_brief() ? brief : usual) == 0;
}

/* ---- what belongs to a case ---- */

typedef struct owned {
    struct owned *next;
    void *object;
    void (*release)(void *object);
} owned;

static owned *all_owned;
static pthread_mutex_t owned_lock = PTHREAD_MUTEX_INITIALIZER;

void *test_own(void *object, void (*release)(void *object))
{
    owned *added = malloc(sizeof *added);

    if (!object || !added)
        TEST_FAIL("out of memory");
    pthread_mutex_lock(&owned_lock);
    *added = (owned){all_owned, object, release};
    all_owned = added;
    pthread_mutex_unlock(&owned_lock);
    return object;
}

/* Takes an object from the case, if it has it. */
static void disown(const void *object)
{
    owned **place = &all_owned, *found;

    pthread_mutex_lock(&owned_lock);
    while (*place && (*place)->object != object)
        place = &(*place)->next;
    found = *place;
    if (found)
        *place = found->next;
    pthread_mutex_unlock(&owned_lock);
    free(found);
}

void test_drop_case(void)
{
    while (all_owned) {
        owned *last = all_owned;

        all_owned = last->next;
        last->release(last->object);
        free(last);
    }
}

void *test_new(size_t bytes)
{
    return test_own(calloc(1, bytes), heap_free);
}

static void free_directory(void *path)
{
    test_remove_tree(path);
    free(path);
}

char *test_directory(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;

    if (asprintf(&path, "%s/fsdp-test-XXXXXX", base && *base ? base : "/tmp") < 0)
        TEST_FAIL("out of memory");
    if (!mkdtemp(path))
        TEST_FAIL("cannot make a directory like '%s'", path);
    return test_own(path, free_directory);
}

void test_directory_free(char *path)
{
    if (!path)
        return;
    disown(path);
    free_directory(path);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void test_remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        TEST_FAIL("cannot remove '%s': %s", path, strerrordesc_np(errno));
}

char *test_path(const char *directory, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%s", directory, name) < 0)
        TEST_FAIL("out of memory");
    return test_own(path, free);
}

void test_write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    if (!file)
        TEST_FAIL("cannot create '%s'", path);
    if (fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        TEST_FAIL("cannot write '%s'", path);
}

void test_write_text(const char *directory, const char *name, const char *text)
{
    char *path = test_path(directory, name);

    test_write_file(path, text, strlen(text));
}

void test_copy_file(const char *from, const char *name, const char *to, const char *as)
{
    size_t bytes;
    char *data = test_read_file(test_path(from, name), &bytes);

    test_write_file(test_path(to, as), data, bytes);
}

void test_write_letters(const char *path, size_t bytes, int modulo)
{
    char *text = test_new(bytes);

    for (size_t i = 0; i < bytes; i++)
        text[i] = (char)('a' + i * i % (size_t)modulo);
    test_write_file(path, text, bytes);
}

int test_names_in(const char *directory)
{
    DIR *names = opendir(directory);
    int count = 0;

    if (!names)
        TEST_FAIL("cannot list '%s'", directory);
    for (struct dirent *entry; (entry = readdir(names));)
        count += entry->d_name[0] != '.';
    closedir(names);
    return count;
}

int test_count(const char *text, const char *part)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* ---- text in memory ---- */

typedef struct written {
    FILE *stream;
    char *text;
    size_t bytes;
} written;

static void free_written(void *object)
{
    written *w = object;

    if (w->stream)
        fclose(w->stream);
    free(w->text);
    free(w);
}

FILE *test_begin_text(void)
{
    written *w = test_own(calloc(1, sizeof *w), free_written);

    w->stream = open_memstream(&w->text, &w->bytes);
    if (!w->stream)
        TEST_FAIL("out of memory");
    return w->stream;
}

char *test_end_text(FILE *stream)
{
    written *found = NULL;

    pthread_mutex_lock(&owned_lock);
    for (owned *o = all_owned; o && !found; o = o->next)
        if (o->release == free_written && ((written *)o->object)->stream == stream)
            found = o->object;
    pthread_mutex_unlock(&owned_lock);
    if (!found)
        TEST_FAIL("no text of a stream");
    found->stream = NULL; /* whatever fclose returns, the stream is gone */
    if (fclose(stream) != 0)
        TEST_FAIL("out of memory");
    return found->text;
}

/* ---- reading ---- */

char *test_read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *data;
    long size;

    if (!file)
        TEST_FAIL("cannot open '%s'", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    data = test_new((size_t)size + 1);
    if (fread(data, 1, (size_t)size, file) != (size_t)size)
        TEST_FAIL("cannot read '%s'", path);
    fclose(file);
    if (bytes)
        *bytes = (size_t)size;
    return data;
}
