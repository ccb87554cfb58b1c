/* The config is read once, by the process that starts the ranks: they get what it read, whatever becomes of the file.
 */
#include <sys/stat.h>

#include "cli/fixture.h"

/* Trained for as many steps as the config says, not for those of the defaults. */
static void check_trained(program *p)
{
    CHECK_CONTAINS(p->output, "ranks:  2");
    CHECK_CONTAINS(p->output, "done:   30 steps");
}

FIXTURE_TEST(a_config_may_come_through_a_pipe)
{
    program p = program_run(
        f->directory, 0,
        (const char *const[]){"sh", "-c", "cat \"$1\" | \"$0\" train /dev/stdin -n 2", PROGRAM, f->config, NULL});

    check_trained(&p);
    p = program_run(f->directory, 0,
                    (const char *const[]){"sh", "-c", "cat \"$1\" | \"$0\" train /dev/fd/7 -n 2 7<&0 </dev/null",
                                          PROGRAM, f->config, NULL});
    check_trained(&p);
}

/* Whoever opened it a second time would wait for a second writer. */
FIXTURE_TEST(a_config_is_opened_once)
{
    char *fifo = test_path(f->directory, "fifo"), *text;
    size_t bytes;
    program p;
    int fd;

    text = test_read_file(f->config, &bytes);
    CHECK_EQ(mkfifo(fifo, 0600), 0);
    p = program_start(f->directory, (const char *const[]){PROGRAM, "train", fifo, "-n", "2", NULL});
    fd = open(fifo, O_WRONLY | O_CLOEXEC);
    CHECK_EQ(write(fd, text, bytes), bytes);
    CHECK_EQ(unlink(fifo), 0);
    close(fd);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    check_trained(&p);
}

FIXTURE_TEST(ranks_get_every_value_as_it_was_given)
{
    char *data = test_path(f->directory, "it's \"a\"\n\t\xC3\xA9: [x], #1"), option[600], *line, *first;
    size_t bytes;

    CHECK_EQ(rename(f->data, data), 0);
    snprintf(option, sizeof option, "--data.path=%s", data);
    SAYS(0, "done:   2 steps", "train", f->config, option, "-n", "2", "--training.steps=2",
         "--optimizer.lr=0.10000000000000002", "--training.max_norm=0.3333333333333333");
    first = test_read_file(f->metrics, &bytes);
    CHECK_CONTAINS(first, "\"lr\": 0.1,");
    RUN(0, "run", "-n", "2", "--", PROGRAM, "train", f->config, option, "--training.steps=2",
        "--optimizer.lr=0.10000000000000002", "--training.max_norm=0.3333333333333333");
    line = test_read_file(f->metrics, &bytes);
    CHECK_EQ(strncmp(line, first, strcspn(first, ",") + 20), 0); /* the same step and loss */
}

FIXTURE_TEST(a_descriptor_that_is_no_config_is_refused)
{
    program p = RUN(2, "train", "--as-rank=x");

    CHECK_CONTAINS(p.output, "--as-rank is 'x': expected an integer from 3");
    SAYS(1, "cannot open '/proc/self/fd/999'", "train", "--as-rank=999");
}
