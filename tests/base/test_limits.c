/* test_limits.c - limits as the system has them, and those of control groups as a folder has them. */
#include "base/limits.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "support/test.h"

static void set(int resource, rlim_t bytes)
{
    struct rlimit limit;

    CHECK_EQ(getrlimit((__rlimit_resource_t)resource, &limit), 0);
    limit.rlim_cur = bytes;
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &limit), 0);
}

TEST(limits_of_a_process_are_read)
{
    const rlim_t much = (rlim_t)1 << 50; /* a sanitizer has terabytes */
    uint64_t left;

    CHECK(fsdp__file_size_limit() == FSDP__NO_LIMIT);
    set(RLIMIT_FSIZE, 1 << 30);
    CHECK(fsdp__file_size_limit() == 1 << 30);
    set(RLIMIT_FSIZE, RLIM_INFINITY);

    CHECK(fsdp__address_space_left() == FSDP__NO_LIMIT);
    CHECK(fsdp__memory_limit_of_one().bytes == FSDP__NO_LIMIT);
    set(RLIMIT_AS, much);
    left = fsdp__address_space_left();
    CHECK(left < much && left > 0);
    CHECK(fsdp__memory_limit_of_one().bytes < much);
    CHECK_CONTAINS(fsdp__memory_limit_of_one().name, "ulimit -v");
    set(RLIMIT_DATA, much / 2);
    CHECK(fsdp__memory_limit_of_one().bytes <= much / 2);
    CHECK(fsdp__oom_kills() >= 0);
    set(RLIMIT_DATA, RLIM_INFINITY);
    set(RLIMIT_AS, RLIM_INFINITY);
}

TEST(the_machine_has_memory)
{
    fsdp__memory_limit all = fsdp__memory_limit_of_all();

    CHECK(all.bytes > 1 << 20 && all.bytes != FSDP__NO_LIMIT);
    CHECK(fsdp__memory_available() > 0);
}

static char *make_folder(const char *directory, const char *name)
{
    char *path = test_path(directory, name);

    CHECK_EQ(mkdir(path, 0755), 0);
    return path;
}

TEST(the_smallest_control_group_above_counts)
{
    char *directory = test_directory(), *mount = make_folder(directory, "fs");
    char *memory = make_folder(mount, "memory"), *job = make_folder(memory, "job"), *membership;
    char *slice = make_folder(mount, "slice"), *unit = make_folder(slice, "unit");

    membership = test_path(directory, "cgroup");
    CHECK(fsdp__control_group_limit(membership, mount) == FSDP__NO_LIMIT); /* no such file */
    test_write_text(directory, "cgroup", "9:name=systemd:/\n4:memory:/job\n0::/slice/unit\n");
    CHECK(fsdp__control_group_limit(membership, mount) == FSDP__NO_LIMIT);
    test_write_text(unit, "memory.max", "max\n");
    CHECK(fsdp__control_group_limit(membership, mount) == FSDP__NO_LIMIT);
    test_write_text(slice, "memory.max", "5000000\n");
    CHECK(fsdp__control_group_limit(membership, mount) == 5000000);
    test_write_text(unit, "memory.max", "6000000\n");
    CHECK(fsdp__control_group_limit(membership, mount) == 5000000);
    test_write_text(memory, "memory.limit_in_bytes", "4000000\n");
    CHECK(fsdp__control_group_limit(membership, mount) == 4000000);
    test_write_text(job, "memory.limit_in_bytes", "3000000\n");
    CHECK(fsdp__control_group_limit(membership, mount) == 3000000);
    test_write_text(directory, "cgroup", "no colons\n::\n0::/\n");
    CHECK(fsdp__control_group_limit(membership, mount) == FSDP__NO_LIMIT);
}

TEST(a_control_group_of_either_version_may_be_frozen)
{
    char *directory = test_directory(), *mount = make_folder(directory, "fs"), *membership;
    char *freezer = make_folder(mount, "freezer"), *job = make_folder(freezer, "job");
    char *both = make_folder(mount, "unified"), *beside = make_folder(both, "slice"),
         *slice = make_folder(mount, "slice");

    membership = test_path(directory, "cgroup");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), false); /* no such file */
    test_write_text(directory, "cgroup", "9:name=systemd:/\n6:freezer:/job\n0::/slice\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), false);
    test_write_text(slice, "cgroup.events", "populated 1\nfrozen 0\n");
    test_write_text(job, "freezer.state", "THAWED\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), false);
    test_write_text(slice, "cgroup.events", "populated 1\nfrozen 1\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), true);
    test_write_text(slice, "cgroup.events", "populated 1\nunfrozen 1\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), false);
    test_write_text(beside, "cgroup.events", "populated 1\nfrozen 1\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), true);
    test_write_text(beside, "cgroup.events", "populated 1\nfrozen 0\n");
    test_write_text(job, "freezer.state", "FROZEN\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), true);
    test_write_text(directory, "cgroup", "no colons\n::\n0::/\n");
    CHECK_EQ(fsdp__control_group_is_frozen(membership, mount), false);
}

TEST(threads_can_be_started)
{
    CHECK_EQ(fsdp__threads_startable(0), 0);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(fsdp__threads_startable(5), 5);
}

TEST(an_errno_names_its_limit)
{
    CHECK_CONTAINS(fsdp__limit_behind(EMFILE), "ulimit -n");
    CHECK_CONTAINS(fsdp__limit_behind(EFBIG), "ulimit -f");
    CHECK_CONTAINS(fsdp__limit_behind(EAGAIN), "ulimit -u");
    CHECK(!strstr(fsdp__limit_behind(EAGAIN), "ulimit -v")); /* there is none */
    CHECK_STRING(fsdp__limit_behind(ENOENT), "");
    CHECK_STRING(fsdp__limit_behind(ENOMEM), ""); /* there is none */
    set(RLIMIT_DATA, (rlim_t)1 << 50);
    CHECK_CONTAINS(fsdp__limit_behind(ENOMEM), "ulimit -d");
    set(RLIMIT_AS, (rlim_t)1 << 50);
    CHECK_CONTAINS(fsdp__limit_behind(ENOMEM), "ulimit -v");
    CHECK_CONTAINS(fsdp__limit_behind(EAGAIN), "ulimit -u");
    CHECK_CONTAINS(fsdp__limit_behind(EAGAIN), "ulimit -v");
    set(RLIMIT_DATA, RLIM_INFINITY);
    set(RLIMIT_AS, RLIM_INFINITY);
}

/* Cores are those of the affinity, not those of the machine. */
TEST(a_process_bound_to_one_core_has_one)
{
    cpu_set_t before, one;
    int first = 0;

    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(fsdp__allowed_cores(), CPU_COUNT(&before));
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(fsdp__allowed_cores(), 1);
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}
