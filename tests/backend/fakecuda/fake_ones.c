/* fake_ones.c - what fresh memory has: ones. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/fakecuda/fake.h"

#if FSDP__ASAN
#include <sanitizer/asan_interface.h>
#define HIDE(from, bytes) __asan_poison_memory_region(from, bytes)
#define SHOW(from, bytes) __asan_unpoison_memory_region(from, bytes)
#else
#define HIDE(from, bytes) ((void)(from), (void)(bytes))
#define SHOW(from, bytes) HIDE(from, bytes)
#endif

enum {
    PAGE = 4096,
    MOST = 8 << 20 /* bytes at the start, so that large memory that nobody uses takes no pages */
};

/* A fault for each page of a mapping would take twice as long, and ThreadSanitizer would keep four times as much of the
 * writes to memory. */
void fake_fill(int file, size_t bytes, size_t done)
{
    size_t most = bytes < MOST ? bytes : MOST;
    unsigned char ones[4 * PAGE];
    ssize_t written = 1;

    memset(ones, 0xff, sizeof ones);
    for (; done < most && written > 0; done += written > 0 ? (size_t)written : 0)
        written = pwrite(file, ones, most - done < sizeof ones ? most - done : sizeof ones, (off_t)done);
    if (done < most)
        abort();
}

/* Returns a file that has so many ones. */
static int file_of_ones(size_t bytes)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int file = -1;
    static size_t filled;

    pthread_mutex_lock(&mutex);
    if (file < 0)
        file = memfd_create("fakecuda ones", MFD_CLOEXEC);
    if (file < 0)
        abort();
    if (filled < bytes) {
        fake_fill(file, bytes, filled);
        filled = bytes;
    }
    pthread_mutex_unlock(&mutex);
    return file;
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Behind the memory is a page that nobody may touch, and AddressSanitizer watches the rest of the last one. */
unsigned char *fake_map_ones(size_t bytes)
{
    size_t whole = whole_pages(bytes), ones = whole < MOST ? whole : MOST;
    int access = PROT_READ | PROT_WRITE, now = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    unsigned char *memory;

    if (bytes > PTRDIFF_MAX - PAGE)
        return NULL;
    memory = mmap(NULL, whole + PAGE, access, MAP_PRIVATE | MAP_NORESERVE, file_of_ones(ones), 0);
    if (memory == MAP_FAILED)
        return NULL;
    if ((whole > ones && mmap(memory + ones, whole - ones, access, now, -1, 0) == MAP_FAILED) ||
        mmap(memory + whole, PAGE, PROT_NONE, now, -1, 0) == MAP_FAILED)
        abort();
    HIDE(memory + bytes, whole - bytes);
    return memory;
}

void fake_unmap_ones(unsigned char *memory, size_t bytes)
{
    SHOW(memory, whole_pages(bytes));
    (void)munmap(memory, whole_pages(bytes) + PAGE);
}
