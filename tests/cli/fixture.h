/* fixture.h - a folder with a text and a config that trains a very small model on it in a moment. */
#pragma once

#include <ctype.h>
#include <dirent.h>

#include "support/program.h"

typedef struct fixture {
    char *directory, *config, *data, *metrics, *model;
} fixture;

int fixture_setup(void **state);
/* Processes whose environment has `entry` ("NAME=value"), at most `most`. */
int find_processes(const char *entry, pid_t *found, int most);
/* Whether the environment of a process has `entry`. */
bool process_has(pid_t pid, const char *entry);
/* Returns as soon as the program has printed `text`. */
void fixture_await(const program *p, const char *text);
/* The process of this rank of those whose environment has `mark` ("NAME=value"). */
pid_t fixture_rank(const char *mark, int rank);
/* The same as soon as the program has started it: to look takes longer than a short run. */
pid_t fixture_await_rank(const program *p, const char *mark, int rank);

/* Runs fsdp with these arguments in the folder of the fixture f, checks its exit status, and returns what it was. */
#define RUN(expected, ...) program_run(f->directory, (expected), (const char *const[]){PROGRAM, __VA_ARGS__, NULL})
/* Checks as well that what it prints holds `part`. */
#define SAYS(expected, part, ...) CHECK_CONTAINS(RUN(expected, __VA_ARGS__).output, (part))

#define FIXTURE_TEST(name) TEST_OF(name, fixture_setup, NULL, fixture *f)
