/* fixture.c - the folder, what a program has printed, and who still runs. */
#include "cli/fixture.h"

int fixture_setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    FILE *file;

    setenv("OMP_NUM_THREADS", "1", 1);
    f->directory = test_directory();
    f->config = test_path(f->directory, "config.yaml");
    f->data = test_path(f->directory, "data.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    f->model = test_path(f->directory, "model");
    file = fopen(f->data, "w");
    for (int i = 0; i < 400; i++)
        fprintf(file, "The quick brown fox jumps over the lazy dog %d times. ", i % 7);
    fclose(file);
    file = fopen(f->config, "w");
    fprintf(file,
            "model:\n  preset: llama-1m\n  n_layers: 2\n  dim: 48\n  n_heads: 3\n  n_kv_heads: 1\n  ffn_dim: 100\n"
            "  max_seq_len: 64\n"
            "data:\n  path: %s\n  order: shuffled\n"
            "training:\n  steps: 30\n  seq_len: 32\n  local_batch_size: 4\n"
            "optimizer:\n  lr: 5e-3\n"
            "metrics:\n  jsonl: %s\nexport:\n  path: %s\n",
            f->data, f->metrics, f->model);
    fclose(file);
    *state = f;
    return 0;
}

bool process_has(pid_t pid, const char *entry)
{
    char name[48], text[65536];
    bool has = false;
    ssize_t bytes;
    int file;

    snprintf(name, sizeof name, "/proc/%d/environ", (int)pid);
    file = open(name, O_RDONLY | O_CLOEXEC);
    bytes = file >= 0 ? read(file, text, sizeof text - 1) : 0;
    if (file >= 0)
        close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    for (char *at = text; at < text + bytes && !has; at += strlen(at) + 1)
        has = strcmp(at, entry) == 0;
    return has;
}

int find_processes(const char *entry, pid_t *found, int most)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int count = 0;

    while (proc && (e = readdir(proc)) != NULL && count < most) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : getpid();

        if (pid != getpid() && process_has(pid, entry))
            found[count++] = pid;
    }
    if (proc)
        closedir(proc);
    return count;
}

/* Asked before a look at what it has printed: all of that is there when it has ended. */
static bool has_ended(const program *p)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

void fixture_await(const program *p, const char *text)
{
    for (bool found = false; !found; usleep(5000)) {
        bool ended = has_ended(p);
        char *output = test_read_file(p->output_path, NULL);

        found = strstr(output, text) != NULL;
        if (ended && !found)
            TEST_FAIL("it has ended, and never printed '%s', but:\n%s", text, output);
    }
}

/* 0: there is none. */
static pid_t find_rank(const char *mark, int rank)
{
    enum {
        MOST = 16
    };
    pid_t ours[MOST];
    char entry[32];
    int count = find_processes(mark, ours, MOST);

    snprintf(entry, sizeof entry, "RANK=%d", rank);
    for (int i = 0; i < count; i++)
        if (process_has(ours[i], entry))
            return ours[i];
    return 0;
}

pid_t fixture_rank(const char *mark, int rank)
{
    pid_t found = find_rank(mark, rank);

    if (!found)
        TEST_FAIL("there is no rank %d of %s", rank, mark);
    return found;
}

pid_t fixture_await_rank(const program *p, const char *mark, int rank)
{
    pid_t found = 0;

    while (!found) {
        found = find_rank(mark, rank);
        CHECK(found || !has_ended(p));
    }
    return found;
}
