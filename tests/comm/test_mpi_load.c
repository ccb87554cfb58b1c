/* test_mpi_load.c - which MPI the environment shows, and the plug-in of it. */
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <unistd.h>

#include "comm/mpi/load.h"
#include "support/test.h"

static const char *const variables[] = {
    "FSDP_MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_PROCID"};

/* Makes the environment of these "NAME=value", up to NULL, and of nothing else that counts. */
static void set_all(const char *const *assignments)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    for (; *assignments; assignments++)
        putenv((char *)*assignments);
}

#define ENVIRONMENT(...) set_all((const char *const[]){__VA_ARGS__, NULL})

static void check_start(const char *kind, const char *variable)
{
    fsdp__mpi_start start;

    CHECK_OK(fsdp__mpi_started(&start));
    CHECK_STRING(start.kind ? start.kind->name : "none", kind);
    CHECK_STRING(start.variable ? start.variable : "none", variable);
}

TEST(the_environment_names_the_mpi)
{
    ENVIRONMENT(NULL);
    check_start("none", "none");
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3", "PMIX_RANK=3");
    check_start("openmpi", "OMPI_COMM_WORLD_RANK");
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0");
    check_start("openmpi", "OMPI_COMM_WORLD_RANK");
    ENVIRONMENT("PMI_RANK=0", "PMI_SIZE=2");
    check_start("mpich", "PMI_RANK");
    ENVIRONMENT("SLURM_PROCID=1", "PMIX_RANK=1");
    check_start("openmpi", "PMIX_RANK");
    /* mpirun of Open MPI inside of an srun that speaks PMI */
    ENVIRONMENT("SLURM_PROCID=0", "PMI_RANK=0", "PMI_SIZE=2", "OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_RANK=5");
    check_start("openmpi", "OMPI_COMM_WORLD_RANK");
    /* half of a sign is none: others set PMI_RANK, too */
    ENVIRONMENT("PMI_RANK=0");
    check_start("none", "none");
    ENVIRONMENT("SLURM_PROCID=0");
    check_start("none", "none");
    ENVIRONMENT("PMI_RANK=", "PMI_SIZE=");
    check_start("none", "none");
}

TEST(who_knows_better_decides)
{
    fsdp__mpi_start start;

    ENVIRONMENT("FSDP_MPI=mpich", "PMIX_RANK=1");
    check_start("mpich", "FSDP_MPI");
    ENVIRONMENT("FSDP_MPI=openmpi", "PMI_RANK=1", "PMI_SIZE=3");
    check_start("openmpi", "FSDP_MPI");
    ENVIRONMENT("FSDP_MPI=openmpi");
    check_start("openmpi", "FSDP_MPI");
    ENVIRONMENT("FSDP_MPI=none", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3");
    check_start("none", "none");
    ENVIRONMENT("FSDP_MPI=mvapich");
    CHECK_ERROR(fsdp__mpi_started(&start), FSDP_INVALID, "FSDP_MPI is 'mvapich', not openmpi, mpich or none");
    CHECK_NULL(start.kind);
}

/* ---- plug-ins ---- */

static const fsdp__mpi_kind no_such = {
    .name = "nosuch", .title = "No Such MPI", .runtime = "libnosuch", .build = "nosuch-dev"};

TEST(a_plugin_that_is_not_there)
{
    const fsdp__network_ops *ops;
    char *folder = test_directory();

    unsetenv("FSDP_PLUGIN_PATH");
    CHECK_ERROR(fsdp__mpi_load(&no_such, &ops), FSDP_NOT_FOUND,
                "there is no libfsdp-nosuch.so in FSDP_PLUGIN_PATH (not set), " TEST_BINARY_DIR "/tests (and fsdp, ");
    CHECK_CONTAINS(fsdp_last_error(), "where No Such MPI is found (Debian: nosuch-dev)");
    CHECK_NULL(ops);
    setenv("FSDP_PLUGIN_PATH", folder, 1);
    CHECK_ERROR(fsdp__mpi_load(&no_such, &ops), FSDP_NOT_FOUND, folder);
}

TEST(a_file_that_is_no_plugin)
{
    const fsdp__network_ops *ops;
    char *folder = test_directory(), *file = test_path(folder, "libfsdp-nosuch.so"), folders[600];
    Dl_info library;

    test_write_file(file, "no library, however long: longer than the header of one, which has 64 bytes", 76);
    snprintf(folders, sizeof folders, ":/nowhere:%s:", folder);
    setenv("FSDP_PLUGIN_PATH", folders, 1);
    CHECK_ERROR(fsdp__mpi_load(&no_such, &ops), FSDP_FORMAT, "libfsdp-nosuch.so: it is not a library of this system");
    CHECK_NULL(ops);
    CHECK_EQ(unlink(file), 0);
    CHECK(dladdr((const void *)(uintptr_t)_cmocka_run_group_tests, &library) != 0); /* some library or other */
    CHECK_EQ(symlink(library.dli_fname, file), 0);
    CHECK_ERROR(fsdp__mpi_load(&no_such, &ops), FSDP_FORMAT, "is not a plug-in: it has no fsdp_network_plugin");
    CHECK_NULL(ops);
    CHECK_EQ(unlink(file), 0);
    CHECK_EQ(symlink("nothing", file), 0);
    CHECK_ERROR(fsdp__mpi_load(&no_such, &ops), FSDP_NOT_FOUND,
                "libfsdp-nosuch.so: it is a link to a file that is not there: install it again");
    CHECK_NULL(ops);
}

static const fsdp__mpi_kind old = {.name = "old", .title = "Old MPI", .runtime = "libold", .build = "old-dev"};

TEST(a_plugin_for_another_kind_of_machine)
{
    static const size_t changed[] = {EI_CLASS, EI_DATA, offsetof(ElfW(Ehdr), e_machine)};
    const fsdp__network_ops *ops;
    char *folder = test_directory(), *file = test_path(folder, "libfsdp-old.so");
    size_t bytes;
    char *whole = test_read_file(TEST_BINARY_DIR "/tests/libfsdp-old.so", &bytes);

    setenv("FSDP_PLUGIN_PATH", folder, 1);
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        whole[changed[i]] ^= 3;
        test_write_file(file, whole, bytes);
        CHECK_ERROR(fsdp__mpi_load(&old, &ops), FSDP_FORMAT, "libfsdp-old.so: it is not a library of this system");
        whole[changed[i]] ^= 3;
    }
}

/* As a copy leaves it that was broken off: any part of a whole one, in a process that goes on. */
TEST(a_plugin_that_is_cut_off)
{
    const fsdp__network_ops *ops;
    char *folder = test_directory(), *file = test_path(folder, "libfsdp-old.so");
    size_t bytes, refused = 0;
    char *whole = test_read_file(TEST_BINARY_DIR "/tests/libfsdp-old.so", &bytes);

    setenv("FSDP_PLUGIN_PATH", folder, 1);
    test_write_file(file, whole, 65); /* the header has 64, and a table follows it */
    CHECK_ERROR(fsdp__mpi_load(&old, &ops), FSDP_FORMAT, ": it is cut off, with 65 bytes of ");
    for (size_t kept = 0; kept < bytes; kept += 500) {
        fsdp_status status;

        test_write_file(file, whole, kept);
        status = fsdp__mpi_load(&old, &ops);
        CHECK_NULL(ops);
        CHECK(status != FSDP_OK);
        refused += strstr(fsdp_last_error(), ": it is cut off, with ") != NULL;
        CHECK_EQ(unlink(file), 0); /* one that was loaded stays, and is not to change */
    }
    CHECK(refused > bytes / 2000);
}

/* The plug-in is there, and what it is linked to is not. */
TEST(a_plugin_without_its_mpi)
{
    const fsdp__network_ops *ops;
    char *folder = test_directory(), *file = test_path(folder, "libfsdp-old.so"), *whole, *needs;
    Dl_info library;
    size_t bytes;

    CHECK(dladdr((const void *)(uintptr_t)_cmocka_run_group_tests, &library) != 0);
    whole = test_read_file(library.dli_fname, &bytes);
    needs = CHECK_PTR(memmem(whole, bytes, "libc.so.", 8));
    memcpy(needs, "libq.so.", 8);
    test_write_file(file, whole, bytes);
    setenv("FSDP_PLUGIN_PATH", folder, 1);
    CHECK_ERROR(fsdp__mpi_load(&old, &ops), FSDP_NOT_FOUND, "libq.so.6: cannot open shared object file");
    CHECK_CONTAINS(fsdp_last_error(), "Old MPI must be installed on every machine (Debian: libold)");
    CHECK_NULL(ops);
}

/* It lies beside the program. */
TEST(a_plugin_without_a_table)
{
    const fsdp__mpi_kind none = {.name = "none", .title = "No MPI", .runtime = "libnone", .build = "none-dev"};
    const fsdp__network_ops *ops;

    unsetenv("FSDP_PLUGIN_PATH");
    CHECK_ERROR(fsdp__mpi_load(&none, &ops), FSDP_FORMAT,
                "is not a plug-in: there is nothing in its fsdp_network_plugin");
    CHECK_NULL(ops);
}

/* So does this. */
TEST(a_plugin_of_another_version)
{
    const fsdp__network_ops *ops;

    unsetenv("FSDP_PLUGIN_PATH");
    CHECK_ERROR(fsdp__mpi_load(&old, &ops), FSDP_UNSUPPORTED, "libfsdp-old.so is a plug-in for another version");
    CHECK_CONTAINS(fsdp_last_error(), "(its interface has number 3, and 4 is needed): install both from one build");
    CHECK_NULL(ops);
}

TEST(memory_that_is_not_there)
{
    const fsdp__network_ops *ops;

    setenv("FSDP_PLUGIN_PATH", "/nowhere:/neither", 1);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__mpi_load(&no_such, &ops);

        CHECK_NULL(ops);
        CHECK(status == FSDP_NOT_FOUND || status == FSDP_NO_MEMORY);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status == FSDP_NOT_FOUND ? FSDP_OK : status);
    }
}
