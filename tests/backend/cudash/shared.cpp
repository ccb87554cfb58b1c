/* shared.cpp - the static shared memory of kernels, and which bytes of shared memory no thread has written yet.
 *
 * A variable that is __shared__ is a thread_local one of a function here. The symbols of the program, or of the library
 * that this is a part of, say where those are: no other function of it has such variables. All of them together are
 * more than a megabyte, while a kernel uses a few: so a block resets those of the functions that its threads come to.
 */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cudash/block.h"

/* A variable, in bytes from the first one on; or the mark of a function. */
struct piece {
    size_t first, bytes;
    char *name;            /* the symbol's */
    size_t function_bytes; /* of it, which name the function */
    bool mark;
};
/* All of them, those of a function next to each other, in `size` bytes with what lies between. */
struct layout {
    piece *pieces;
    size_t count, size;
    ptrdiff_t from_anchor; /* of the first byte */
};

struct module {
    const char *path;
    unsigned char *tls; /* this thread's */
};

/* Says where a thread has the variables of this program or library. */
static thread_local unsigned char anchor;

static int find_module(struct dl_phdr_info *info, size_t, void *argument)
{
    module *m = (module *)argument;
    uintptr_t here = (uintptr_t)&find_module;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && here >= start && here < start + p->p_memsz) {
            m->path = info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
            m->tls = (unsigned char *)info->dlpi_tls_data;
            return 1;
        }
    }
    return 0;
}

[[noreturn]] static void refuse(const char *what, const char *name)
{
    fprintf(stderr, "cudash: %s %s\n", what, name);
    abort();
}

/* Returns where the name of the variable begins in a symbol, "<function>E<length><name>", or the same with "_<number>".
 */
static const char *find_variable(const char *symbol)
{
    for (const char *at = symbol + strlen(symbol); at > symbol; at--) {
        char *name;
        unsigned long length;
        if (at[-1] != 'E' || *at < '1' || *at > '9')
            continue;
        length = strtoul(at, &name, 10);
        if (strlen(name) == length || (strlen(name) > length && name[length] == '_'))
            return name;
    }
    refuse("the function is not known of the variable", symbol);
}

static void add(layout *l, const ElfW(Sym) * symbol, const char *name)
{
    size_t function_bytes = (size_t)(find_variable(name) - name);
    bool mark = strncmp(name + function_bytes, "cudash_mark", strlen("cudash_mark")) == 0;

    while (name[function_bytes - 1] != 'E') /* the length between */
        function_bytes--;
    l->pieces = (piece *)realloc(l->pieces, (l->count + 1) * sizeof *l->pieces);
    if (!l->pieces)
        abort();
    l->pieces[l->count++] = {(size_t)symbol->st_value, (size_t)symbol->st_size, strdup(name), function_bytes, mark};
}

/* Takes the thread_local variables of functions, whose names begin with _ZZ in C++. */
static void read_symbols(layout *l, const unsigned char *file)
{
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)file;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file + header->e_shoff);

    for (int i = 0; i < header->e_shnum; i++) {
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(file + sections[i].sh_offset);
        const char *names = (const char *)file + sections[sections[i].sh_link].sh_offset;
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_TLS && strncmp(names + symbols[s].st_name, "_ZZ", 3) == 0)
                add(l, &symbols[s], names + symbols[s].st_name);
    }
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const piece *)a)->name, ((const piece *)b)->name);
}

/* Returns the end of what is of the same function as the first of these. */
static size_t function_end(const layout *l, size_t first)
{
    const piece *p = &l->pieces[first];
    size_t end = first;

    while (end < l->count && l->pieces[end].function_bytes == p->function_bytes &&
           memcmp(l->pieces[end].name, p->name, p->function_bytes) == 0)
        end++;
    return end;
}

/* Puts the variables of a function next to each other. */
static void sort_pieces(layout *l)
{
    qsort(l->pieces, l->count, sizeof *l->pieces, compare);
    for (size_t i = 0, end; i < l->count; i = end) {
        bool marked = false;
        end = function_end(l, i);
        for (size_t p = i; p < end; p++)
            marked |= l->pieces[p].mark;
        if (!marked)
            refuse("not declared by __shared__:", l->pieces[i].name);
    }
}

static layout read_layout(void)
{
    layout l = {};
    module m = {};
    struct stat about;
    size_t start = SIZE_MAX;
    volatile char touched = anchor; /* so that this thread has its memory */
    int fd = ((void)touched, dl_iterate_phdr(find_module, &m), open(m.path, O_RDONLY | O_CLOEXEC));
    void *file = fd < 0 || fstat(fd, &about) != 0 ? MAP_FAILED
                                                  : mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    if (file == MAP_FAILED || !m.tls) {
        fprintf(stderr, "cudash: cannot read the symbols of %s\n", m.path);
        abort();
    }
    close(fd);
    read_symbols(&l, (const unsigned char *)file);
    munmap(file, (size_t)about.st_size);
    sort_pieces(&l);
    for (size_t i = 0; i < l.count; i++)
        start = l.pieces[i].first < start ? l.pieces[i].first : start;
    for (size_t i = 0; i < l.count; i++) {
        l.pieces[i].first -= start;
        l.size = l.size < l.pieces[i].first + l.pieces[i].bytes ? l.pieces[i].first + l.pieces[i].bytes : l.size;
    }
    l.from_anchor = m.tls + start - &anchor;
    return l;
}

static const layout &own_layout(void)
{
    static const layout l = read_layout();

    return l;
}

/* Fills without a call that a sanitizer takes for an access of the host's. */
static void fill(unsigned char *p, size_t bytes, int byte)
{
    asm volatile("rep stosb" : "+D"(p), "+c"(bytes) : "a"(byte) : "memory");
}

/* What all threads read is made here, not by a fiber, which ThreadSanitizer orders with no other one. A thread of the
 * host gets all of the variables, more than a megabyte, at its first use of one: so a launch whose threads come to none
 * takes none of that memory. */
void shared_begin(void)
{
    const layout &l = own_layout();

    running->fixed = NULL;
    running->fixed_bytes = 0;
    if (!running->begun)
        running->begun = (uint64_t *)calloc(l.count + 1, sizeof *running->begun);
    if (!running->begun)
        abort();
#ifdef CUDASH_TSAN
    if (!running->fixed_unwritten)
        running->fixed_unwritten = (unsigned char *)calloc(1, l.size + 1);
    running->unwritten = (unsigned char *)calloc(1, running->shared_bytes + 1);
    if (!running->fixed_unwritten || !running->unwritten)
        abort();
#endif
}

void shared_reset(void)
{
    running->blocks++;
    fill(running->shared, running->shared_bytes, 0xff);
#ifdef CUDASH_TSAN
    fill(running->unwritten, running->shared_bytes, 1);
#endif
}

/* Returns the first piece of the function that this mark is of. */
static size_t find_function(const layout &l, const size_t *mark)
{
    size_t first = (size_t)((const unsigned char *)mark - running->fixed);

    for (size_t i = 0, end; i < l.count; i = end) {
        end = function_end(&l, i);
        for (size_t p = i; p < end; p++)
            if (l.pieces[p].first == first)
                return i;
    }
    refuse("a mark is not among", "the symbols");
}

/* The mark of a thread of the host is the function's number from its first use on. */
void cudash_shared_begins(size_t *mark)
{
    const layout &l = own_layout();
    size_t function;

    running->fixed = &anchor + l.from_anchor;
    running->fixed_bytes = l.size;
    if (*mark == 0)
        *mark = find_function(l, mark) + 1;
    function = *mark - 1;
    if (running->begun[function] == running->blocks)
        return;
    running->begun[function] = running->blocks;
    for (size_t p = function, end = function_end(&l, p); p < end; p++)
        if (!l.pieces[p].mark) {
            fill(running->fixed + l.pieces[p].first, l.pieces[p].bytes, 0xff);
#ifdef CUDASH_TSAN
            fill(running->fixed_unwritten + l.pieces[p].first, l.pieces[p].bytes, 1);
#endif
        }
}

void shared_end(void)
{
    free(running->unwritten);
    running->unwritten = NULL;
}

#ifdef CUDASH_TSAN
/* ---- accesses, as the compiler tells them to ThreadSanitizer: the linker puts these functions in between ---- */

extern "C" void __sanitizer_symbolize_pc(void *pc, const char *format, char *out, size_t bytes);

/* Returns where it is told that bytes from p on are not written, up to `bytes` of them; NULL: elsewhere. */
[[gnu::always_inline]] static inline unsigned char *unwritten(const void *p, size_t bytes)
{
    uintptr_t at;

    if (!running || !running->unwritten)
        return NULL;
    at = (uintptr_t)p - (uintptr_t)running->shared;
    if (at < running->shared_bytes && bytes <= running->shared_bytes - at)
        return running->unwritten + at;
    at = (uintptr_t)p - (uintptr_t)running->fixed;
    return at < running->fixed_bytes && bytes <= running->fixed_bytes - at ? running->fixed_unwritten + at : NULL;
}

[[noreturn]] static void not_written(void *pc)
{
    char where[256] = "";

    __sanitizer_symbolize_pc((char *)pc - 1, "%s:%l", where, sizeof where);
    fprintf(stderr, "cudash: shared memory is read that no thread has written: thread %u of block %u, %u, %u at %s\n",
            threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z, where);
    abort();
}

/* These two run at each access: inline they know `bytes`. */
[[gnu::always_inline]] static inline void reads(const void *p, size_t bytes, void *pc)
{
    const unsigned char *u = unwritten(p, bytes);

    for (size_t i = 0; u && i < bytes; i++)
        if (u[i])
            not_written(pc);
}

[[gnu::always_inline]] static inline void writes(void *p, size_t bytes)
{
    volatile unsigned char *u = unwritten(p, bytes); /* so that no call of memset, which is watched, does this */

    for (size_t i = 0; u && i < bytes; i++)
        u[i] = 0;
}

#define READS(name, bytes)                            \
    extern "C" void __real___tsan_##name(void *p);    \
    extern "C" void __wrap___tsan_##name(void *p)     \
    {                                                 \
        reads(p, bytes, __builtin_return_address(0)); \
        return __real___tsan_##name(p);               \
    }
#define WRITES(name, bytes)                        \
    extern "C" void __real___tsan_##name(void *p); \
    extern "C" void __wrap___tsan_##name(void *p)  \
    {                                              \
        writes(p, bytes);                          \
        return __real___tsan_##name(p);            \
    }
READS(read1, 1)
READS(read2, 2)
READS(read4, 4)
READS(read8, 8)
READS(read16, 16)
READS(unaligned_read2, 2)
READS(unaligned_read4, 4)
READS(unaligned_read8, 8)
READS(unaligned_read16, 16)
WRITES(write1, 1)
WRITES(write2, 2)
WRITES(write4, 4)
WRITES(write8, 8)
WRITES(write16, 16)
WRITES(unaligned_write2, 2)
WRITES(unaligned_write4, 4)
WRITES(unaligned_write8, 8)
WRITES(unaligned_write16, 16)

extern "C" void *__real_memcpy(void *to, const void *from, size_t bytes);
extern "C" void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    reads(from, bytes, __builtin_return_address(0));
    writes(to, bytes);
    return __real_memcpy(to, from, bytes);
}

extern "C" void *__real_memset(void *to, int byte, size_t bytes);
extern "C" void *__wrap_memset(void *to, int byte, size_t bytes)
{
    writes(to, bytes);
    return __real_memset(to, byte, bytes);
}
#endif
