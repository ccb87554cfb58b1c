/* fixture.c - the folder, what a program has printed, and who still runs. */
#include "cli/fixture.h"

int fixture_setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
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

int fixture_teardown(void **state)
{
    fixture *f = *state;

    free(f->config);
    free(f->data);
    free(f->metrics);
    free(f->model);
    test_directory_free(f->directory);
    free(f);
    return 0;
}

int find_processes(const char *entry, pid_t *found, int most)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int count = 0;

    while (proc && (e = readdir(proc)) != NULL && count < most) {
        char name[300], text[65536];
        ssize_t bytes;
        int file;

        if (!isdigit((unsigned char)e->d_name[0]) || atoi(e->d_name) == getpid())
            continue;
        snprintf(name, sizeof name, "/proc/%s/environ", e->d_name);
        file = open(name, O_RDONLY | O_CLOEXEC);
        bytes = file >= 0 ? read(file, text, sizeof text - 1) : 0;
        if (file >= 0)
            close(file);
        for (char *at = text; bytes > 0 && at < text + bytes; at += strlen(at) + 1) {
            text[bytes] = '\0';
            if (strcmp(at, entry) == 0)
                found[count++] = atoi(e->d_name);
        }
    }
    if (proc)
        closedir(proc);
    return count;
}

void fixture_await(const program *p, const char *text)
{
    for (bool found = false; !found; usleep(5000)) {
        char *output = test_read_file(p->output_path, NULL);

        found = strstr(output, text) != NULL;
        CHECK(found || waitpid(p->pid, NULL, WNOHANG) == 0);
        free(output);
    }
}

pid_t fixture_rank(const char *mark, int rank)
{
    enum {
        MOST = 16
    };
    pid_t ours[MOST], others[64];
    char entry[32];
    int count = find_processes(mark, ours, MOST), other_count;

    snprintf(entry, sizeof entry, "RANK=%d", rank);
    other_count = find_processes(entry, others, 64);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < other_count; k++)
            if (ours[i] == others[k])
                return ours[i];
    TEST_FAIL("there is no rank %d of %s", rank, mark);
}
