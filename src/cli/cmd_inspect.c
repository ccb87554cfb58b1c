/* cmd_inspect.c - fsdp inspect FOLDER: what is in a model folder. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/process.h"

static void print_config(const char *folder, const fsdp_model_config *m)
{
    char count[40];

    printf("%s: %s, %s parameters\n", folder, m->architecture == FSDP_GPT2 ? "GPT-2" : "Llama",
           fsdp__thousands(fsdp_model_config_parameters(m), count, sizeof count));
    printf("  n_layers             %lld\n", (long long)m->n_layers);
    printf("  dim                  %lld\n", (long long)m->dim);
    printf("  n_heads              %lld\n", (long long)m->n_heads);
    printf("  n_kv_heads           %lld\n", (long long)m->n_kv_heads);
    printf("  head_dim             %lld\n", (long long)m->head_dim);
    printf("  ffn_dim              %lld\n", (long long)m->ffn_dim);
    printf("  vocab_size           %lld\n", (long long)m->vocab_size);
    printf("  max_seq_len          %lld\n", (long long)m->max_seq_len);
    printf("  norm_eps             %g\n", (double)m->norm_eps);
    if (m->architecture == FSDP_LLAMA)
        printf("  rope_theta           %g%s\n", (double)m->rope_theta, m->rope_llama3 ? ", scaled as Llama 3.1" : "");
    printf("  tie_word_embeddings  %s\n", m->tie_word_embeddings ? "true" : "false");
}

static void shape_text(const fsdp_safetensors_entry *e, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");

    for (int d = 0; d < e->ndim && used < text_bytes; d++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", d ? ", " : "", (long long)e->shape[d]);
    if (used < text_bytes)
        snprintf(text + used, text_bytes - used, "]");
}

static void print_tensors(const fsdp_safetensors *file)
{
    int64_t elements = 0, bytes = 0, files = fsdp_safetensors_file_count(file), count = fsdp_safetensors_count(file);
    int width = 0;
    char a[40], b[40], c[40], d[40];

    for (int64_t i = 0; i < count; i++) {
        int length = (int)strlen(FSDP__SHOWN_NAME(fsdp_safetensors_at(file, i)->name));

        width = length > width ? length : width;
    }
    for (int64_t i = 0; i < count; i++) {
        const fsdp_safetensors_entry *e = fsdp_safetensors_at(file, i);
        const char *name = strrchr(e->file, '/');

        elements += (int64_t)(e->bytes / fsdp_dtype_size(e->dtype));
        bytes += (int64_t)e->bytes;
        shape_text(e, a, sizeof a);
        printf("  %-*s  %-8s  %-16s %14s bytes  %s\n", width, FSDP__SHOWN_NAME(e->name), fsdp_dtype_name(e->dtype), a,
               fsdp__thousands((int64_t)e->bytes, b, sizeof b), FSDP__SHOWN_NAME(name ? name + 1 : e->file));
    }
    printf("total: %s tensors, %s elements, %s bytes (%s) in %lld file%s\n", fsdp__thousands(count, a, sizeof a),
           fsdp__thousands(elements, b, sizeof b), fsdp__thousands(bytes, c, sizeof c),
           fsdp__size_text((double)bytes, d, sizeof d), (long long)files, files == 1 ? "" : "s");
}

/* The folder is shown also where its config and its files do not belong together; then why comes last. */
static fsdp_status inspect(const char *folder)
{
    fsdp_context *context = NULL;
    fsdp_safetensors *file = NULL;
    fsdp_model_config config;
    fsdp_status status;

    FSDP_TRY(fsdp_hub_read_config(folder, &config));
    FSDP_TRY(fsdp_safetensors_open(folder, &file));
    print_config(folder, &config);
    print_tensors(file);
    fsdp_safetensors_close(file);
    FSDP_TRY(fsdp_context_create(NULL, &context));
    status = fsdp_hub_check(context, folder, &config);
    fsdp_context_free(context);
    return status;
}

int fsdp__cmd_inspect(int argc, char **argv)
{
    bool help = false;
    const fsdp__option options[] = {{"help", 'h', NULL, &help}, {0}};
    fsdp__args args = {.options = options, .positional_most = 1};

    if (fsdp__args_parse(&args, "inspect", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (help) {
        puts("fsdp inspect FOLDER\n\nConfig, parameters, shapes, dtypes and sizes of a Hugging Face folder;\nan error "
             "when its config and its "
             "weights do not belong together.");
        return 0;
    }
    if (args.positional_count == 0)
        return fsdp__usage_error("inspect: no model folder given");
    fsdp__explain_bus_errors();
    return inspect(args.positional[0]) == FSDP_OK ? 0 : fsdp__failure("%s", fsdp_last_error());
}
