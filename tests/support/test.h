/* support/test.h - cmocka and the checks that all tests use.
 *
 * The CHECK family works in cmocka tests and in the bodies of rank threads (support/ranks.h): in a rank it records
 * the failure with file, line and rank and ends that rank; cmocka's own assertions must not be used there.
 *
 *     TEST(a_view_shares_its_storage)
 *     {
 *         fsdp_context *context = test_context();
 *         ...
 *         CHECK_PTR(fsdp_reshape(...));
 *         CHECK_EQ(test_live_bytes(context), 0);
 *         fsdp_context_free(context);
 *     }
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/compiler.h"
#include "check/fault.h"
#include "fsdp/context.h"
#include "fsdp/device.h"
#include "support/heap.h"

/* A case of a test file. It registers itself; the cases of a file run in the order of their lines, each in the
 * environment that the file was started in, whatever those before have set. The files of a layer
 * are one program, which runs the file that its first argument names (support/main.c). TEST_WITH has the functions of a
 * fixture, as cmocka calls them: what setup leaves in *state the case finds in its own. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name, setup, teardown)                                                                      \
    static void name(void **state);                                                                           \
    __attribute__((constructor)) static void name##_is_a_case(void)                                           \
    {                                                                                                         \
        static test_entry this_case = {{#name, name, setup, teardown, NULL}, __FILE__, __LINE__, NULL, NULL}; \
                                                                                                              \
        test_add_entry(&this_case);                                                                           \
    }                                                                                                         \
    static void name(__attribute__((unused)) void **state)
/* Hands the case, as its one parameter, what setup leaves in *state: TEST_OF(a_case, setup, NULL, fixture *f). */
#define TEST_OF(name, setup, teardown, parameter) \
    static void name##_of(parameter);             \
    TEST_WITH(name, setup, teardown)              \
    {                                             \
        name##_of(*state);                        \
    }                                             \
    static void name##_of(__attribute__((unused)) parameter)
/* Hands the case a context, `context`, with a scope; and frees it, of whose devices no byte must be in use when the
 * scope has ended, but for streams' workspace. */
#define CONTEXT_TEST(name) TEST_OF(name, test_context_setup, test_context_teardown, fsdp_context *context)
int test_context_setup(void **state);
int test_context_teardown(void **state);
/* A case that is one call: a row where cases differ in values alone. */
#define CALL_TEST(name, call) \
    TEST(name)                \
    {                         \
        call;                 \
    }
/* Stands for the cases of a file whose headers are missing. */
#define MISSING_TEST(what) \
    CALL_TEST(the_headers_of_##what##_are_missing, test_skip_if(true, "the headers of " #what " were not found"))
/* Gives a file another function than one that runs its cases: it returns what main() would. */
#define TEST_FILE(function)                                                   \
    __attribute__((constructor)) static void add_this_file(void)              \
    {                                                                         \
        static test_entry this_file = {.path = __FILE__, .main = (function)}; \
                                                                              \
        test_add_entry(&this_file);                                           \
    }
/* Has the folders of a file's cases in memory, where there is such a disk, because one that others use takes its time
 * for thousands of syncs. Where `unless` is true the file is skipped with the reason. */
#define TEST_FILE_IN_MEMORY(unless, reason)                              \
    static int test_main(void)                                           \
    {                                                                    \
        return test_run_in_memory(__FILE__, (unless) ? (reason) : NULL); \
    }                                                                    \
    TEST_FILE(test_main)
/* Describes a case, or a file's function: then the case has no line. */
typedef struct test_entry {
    struct CMUnitTest test;
    const char *path;
    int line;
    int (*main)(void);
    struct test_entry *next;
} test_entry;
void test_add_entry(test_entry *added);
/* Runs the cases of a file (its __FILE__). */
int test_run_cases(const char *path);
int test_run_in_memory(const char *path, const char *skipped);
/* Frees what belongs to the running case. */
void test_drop_case(void);

/* One rank of one, one compute thread. The caller frees it. */
fsdp_context *test_context(void);
/* Where FSDP_TEST_RACES is set, all that the contexts' devices do from now on is checked for races (check/races.h);
 * and the test fails where one was found. */
void test_watch_races(fsdp_context *const *contexts, int count);
void test_check_races(const fsdp_context *context);
/* Says whether this is `make test-long`: more seeds, more steps. */
bool test_long(void);
/* Says whether a sanitizer watches, whose memory and time are 2 to 15 times the program's. */
#if FSDP__ASAN || FSDP__TSAN
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif
/* Says whether to leave out of a sweep what differs in numbers alone, under a sanitizer and on another device: the same
 * code is in the rest, and the plain run and `make test-long` have all. */
bool test_brief(void);
/* Says whether the i-th variant of a sweep is run, which cuts sweeps that have been seen whole: by `make test-long`
 * each is, by `make test` every `usual`-th, and in a brief test every `brief`-th. Sum the numbers of several sweeps
 * that are nested, so that each of one meets another of the other. */
bool test_takes(int i, int usual, int brief);
/* Returns what a test computes on: the CPU, or the device that FSDP_TEST_DEVICE names ("sim"), which front doors then
 * take too. The host must not follow pointers to it: tests read and write tensors by fsdp_tensor_read and
 * fsdp_tensor_write. Ranks that are threads all have GPU 0, or where FSDP_FAKECUDA_DEVICES is set GPUs in turn, as a
 * program's ranks do. */
fsdp_device *test_device(fsdp_context *context);
/* Says whether that is the CPU; and skips the case, with the reason, where it is not: for what can only be asked of a
 * device that is in step with the host, or that computes on memory which ranks share. */
bool test_on_cpu(void);
/* Says whether a GPU can be opened, real or fake (tests/backend/fakecuda); and skips the case if not. */
bool test_has_gpu(void);
void test_need_gpu(void);
void test_only_on_cpu(const char *reason);
/* Says whether it computes with the CPU's kernels ("sim" does), so that results have the same bits as the CPU's. */
bool test_has_cpu_bits(void);
/* Skips the case on a GPU, with the reason. */
void test_not_on_gpu(const char *reason);
/* Skips the case, with the reason, where that is so. */
void test_skip_if(bool so, const char *reason, ...) FSDP_PRINTF(2, 3);
/* Gives the device's own stream a thread, so that the device runs behind the host. Call it before anything has kept the
 * stream. */
void test_run_behind(fsdp_device *device);
/* Counts bytes that live on the context's devices, but for the workspace that streams keep. */
int64_t test_live_bytes(fsdp_context *context);

/* Waits for the stream of the test's device and frees its workspace, so that live bytes can be compared with all. */
void test_drop_workspace(fsdp_context *context);

/* What these calls return belongs to the running case, and goes when the case and its teardown have ended: nobody frees
 * it. */
void *test_new(size_t bytes); /* zeroed */
/* A new empty directory, which goes with all it holds. */
char *test_directory(void);
/* "<directory>/<name>". */
char *test_path(const char *directory, const char *name);
/* Returns the whole file, and a NUL. `bytes` may be NULL. */
char *test_read_file(const char *path, size_t *bytes);
/* Gives the case what `release` ends; returns it. What came later goes first. */
void *test_own(void *object, void (*release)(void *object));

/* Removes a directory before its case has ended, for loops that make many. */
void test_directory_free(char *path);
/* Removes like rm -rf: a missing path is fine, and what is removed is no link's target. */
void test_remove_tree(const char *path);
/* Writes a whole file; one of text in a directory; one of so many letters (the squares of their places modulo some). */
void test_write_file(const char *path, const void *data, size_t bytes);
void test_write_text(const char *directory, const char *name, const char *text);
/* Copies a file of one directory into another, under another name. */
void test_copy_file(const char *from, const char *name, const char *to, const char *as);
void test_write_letters(const char *path, size_t bytes, int modulo);
/* Returns how many names a directory has, but for those that begin with a dot. */
int test_names_in(const char *directory);
/* Returns how often a text has the other one. */
int test_count(const char *text, const char *part);
/* A stream into memory; test_end_text closes it, and returns what was written, which belongs to the case. */
FILE *test_begin_text(void);
char *test_end_text(FILE *stream);

/* Loops over every use of `kind` in the body: the body runs with that use failing, until a run in which nothing failed.
 *
 *     for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
 *         fsdp_status status = fsdp_thing_create(&thing);
 *
 *         CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);   // failed exactly when the fault fired
 *         fsdp_thing_free(thing);
 *     }
 * In a rank's body it works too: the switch belongs to the thread. */
bool test_next_fault(fsdp__fault_kind kind, long *n);
#define CHECK_FAULT(kind, status) test_check_fault((kind), (status), __FILE__, __LINE__)

#define CHECK(condition) ((condition) ? (void)0 : test_fail(__FILE__, __LINE__, "%s", "not true: " #condition))
/* Compares integers, sizes, enums, bools. */
#define CHECK_EQ(actual, expected) \
    test_check_eq((int64_t)(actual), (int64_t)(expected), #actual, #expected, __FILE__, __LINE__)
#define CHECK_STRING(actual, expected) test_check_string((actual), (expected), #actual, __FILE__, __LINE__)
#define CHECK_CONTAINS(text, part) test_check_contains((text), (part), __FILE__, __LINE__)
#define CHECK_BYTES(actual, expected, bytes) test_check_bytes((actual), (expected), (bytes), __FILE__, __LINE__)
#define CHECK_NEAR(actual, expected, tolerance) \
    test_check_near((double)(actual), (double)(expected), (double)(tolerance), #actual, __FILE__, __LINE__)
/* count floats: |actual - expected| <= absolute + relative * |expected|; NaN equals NaN. Reports the worst element. */
#define CHECK_CLOSE(actual, expected, count, relative, absolute) \
    test_check_close((actual), (expected), (int64_t)(count), (relative), (absolute), __FILE__, __LINE__)
/* A call that must succeed; prints the last error and the lines it went through. */
#define CHECK_OK(call) test_check_status((call), FSDP_OK, #call, __FILE__, __LINE__)
#define CHECK_STATUS(call, expected) test_check_status((call), (expected), #call, __FILE__, __LINE__)
/* A call that must fail with this code and a message that holds `part`. */
#define CHECK_ERROR(call, expected, part)                              \
    (test_check_status((call), (expected), #call, __FILE__, __LINE__), \
     test_check_contains(fsdp_last_error(), (part), __FILE__, __LINE__))
/* A pointer (a tensor, ...) that must not be NULL; prints the last error. Has the pointer's value. */
#define CHECK_PTR(pointer) test_check_pointer((pointer), #pointer, __FILE__, __LINE__)
/* A pointer that must be NULL. */
#define CHECK_NULL(pointer) ((pointer) == NULL ? (void)0 : test_fail(__FILE__, __LINE__, "%s", "not NULL: " #pointer))
/* An expression that must be NULL, with this code and a message that holds `part`. */
#define CHECK_FAILS(expression, status, part)                                                \
    (fsdp_clear_error(), CHECK_NULL(expression), CHECK_STATUS(fsdp_last_status(), (status)), \
     CHECK_CONTAINS(fsdp_last_error(), (part)))
#define CHECK_INVALID(expression, part) CHECK_FAILS(expression, FSDP_INVALID, part)
#define TEST_FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)

_Noreturn void test_fail(const char *file, int line, const char *format, ...) FSDP_PRINTF(3, 4);
void test_check_eq(int64_t actual, int64_t expected, const char *actual_text, const char *expected_text,
                   const char *file, int line);
void test_check_string(const char *actual, const char *expected, const char *text, const char *file, int line);
void test_check_contains(const char *text, const char *part, const char *file, int line);
void test_check_bytes(const void *actual, const void *expected, size_t bytes, const char *file, int line);
void test_check_near(double actual, double expected, double tolerance, const char *text, const char *file, int line);
void test_check_close(const float *actual, const float *expected, int64_t count, double relative, double absolute,
                      const char *file, int line);
void test_check_status(fsdp_status actual, fsdp_status expected, const char *text, const char *file, int line);
void test_check_fault(fsdp__fault_kind kind, fsdp_status status, const char *file, int line);
void *test_check_pointer(const void *pointer, const char *text, const char *file, int line);

/* Says where test_fail goes in a thread that is not cmocka's (support/ranks.c). */
typedef struct test_thread {
    jmp_buf escape;
    char message[2048];
} test_thread;
void test_enter_thread(test_thread *thread);
void test_leave_thread(void);

/* What a rank allocates others can read, also where they are processes. */
#define malloc(bytes) heap_malloc(bytes)
#define calloc(count, bytes) heap_calloc(count, bytes)
#define realloc(memory, bytes) heap_realloc(memory, bytes)
#define free(memory) heap_free(memory)
