/* fixture.h - a folder with a text and a config that trains a very small model on it in a moment. */
#ifndef TESTS_CLI_FIXTURE_H
#define TESTS_CLI_FIXTURE_H

#include <ctype.h>
#include <dirent.h>

#include "support/program.h"

typedef struct fixture {
    char *directory, *config, *data, *metrics, *model;
} fixture;

int fixture_setup(void **state);
int fixture_teardown(void **state);
/* Processes whose environment has `entry` ("NAME=value"), at most `most`. */
int find_processes(const char *entry, pid_t *found, int most);
/* Returns as soon as the program has printed `text`. */
void fixture_await(const program *p, const char *text);
/* The process of this rank of those whose environment has `mark` ("NAME=value"). */
pid_t fixture_rank(const char *mark, int rank);

#define FIXTURE_TEST(name) TEST_WITH(name, fixture_setup, fixture_teardown)

#endif
