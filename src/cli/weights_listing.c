/* weights_listing.c - lists what is in a model folder or a file of weights. */
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/listing.h"
#include "tensor/tensor.h"

/* ---- as text ---- */

static void print_config(const char *path, const fsdp_model_config *m)
{
    int64_t local = 0;

    for (int64_t i = 0; i < m->n_layers; i++)
        local += fsdp_model_layer_is_local(m, i);
    printf("%s: %s, %s parameters\n", FSDP__SHOWN_PATH(path), fsdp_architecture_name(m->architecture),
           FSDP__THOUSANDS(fsdp_model_config_parameters(m)));
    printf("  n_layers             %lld\n", (long long)m->n_layers);
    printf("  dim                  %lld\n", (long long)m->dim);
    printf("  n_heads              %lld\n", (long long)m->n_heads);
    printf("  n_kv_heads           %lld\n", (long long)m->n_kv_heads);
    printf("  head_dim             %lld\n", (long long)m->head_dim);
    printf("  ffn_dim              %lld\n", (long long)m->ffn_dim);
    printf("  vocab_size           %lld\n", (long long)m->vocab_size);
    printf("  max_seq_len          %lld\n", (long long)m->max_seq_len);
    printf("  norm_eps             %g\n", (double)m->norm_eps);
    if (m->architecture != FSDP_GPT2)
        printf("  rope_theta           %g\n  rope_type            %s\n", (double)m->rope_theta,
               fsdp_rope_type_name(m->rope_type));
    if (local > 0)
        printf("  local layers         %lld, which see %lld keys\n", (long long)local, (long long)m->window);
    printf("  tie_word_embeddings  %s\n", m->tie_word_embeddings ? "true" : "false");
}

static void print_adapter(const char *path, const fsdp_lora_options *o)
{
    printf("%s: an adapter (LoRA)\n  rank                 %lld\n  alpha                %g\n", FSDP__SHOWN_PATH(path),
           (long long)o->rank, o->alpha);
    for (int64_t i = 0; i < o->target_count; i++)
        printf("%s%s", i ? ", " : "  targets              ", FSDP__SHOWN_NAME(o->targets[i]));
    if (o->target_regex)
        printf("  targets              all that match %s", FSDP__SHOWN_NAME(o->target_regex));
    putchar('\n');
    for (int64_t i = 0; i < o->saved_count; i++)
        printf("  trained whole        %s\n", FSDP__SHOWN_NAME(o->saved[i]));
    if (o->rslora || o->dora)
        printf("  with                 %s%s%s\n", o->rslora ? "rsLoRA" : "", o->rslora && o->dora ? ", " : "",
               o->dora ? "DoRA" : "");
}

void fsdp__list_weights(const char *path, const fsdp_model_config *config, const fsdp_lora_options *adapter,
                        const fsdp_weights *weights)
{
    int64_t elements = 0, bytes = 0, files = fsdp_weights_file_count(weights), count = fsdp_weights_count(weights);
    int width = 0;

    if (config)
        print_config(path, config);
    else if (adapter)
        print_adapter(path, adapter);
    else
        printf("%s:\n", FSDP__SHOWN_PATH(path));
    for (int64_t i = 0; i < count; i++) {
        int length = (int)strlen(FSDP__SHOWN_NAME(fsdp_weights_at(weights, i)->name));

        width = length > width ? length : width;
    }
    for (int64_t i = 0; i < count; i++) {
        const fsdp_weights_entry *e = fsdp_weights_at(weights, i);

        elements += fsdp__shape_numel(e->ndim, e->shape);
        bytes += (int64_t)e->bytes;
        printf("  %-*s  %-8s  %-16s %14s bytes  %s\n", width, FSDP__SHOWN_NAME(e->name), e->dtype_name,
               FSDP__SHAPE(e->shape, e->ndim), FSDP__THOUSANDS(e->bytes), FSDP__SHOWN_NAME(fsdp__shown_file(e->file)));
    }
    printf("total: %s tensors, %s elements, %s bytes (%s) in %lld file%s\n", FSDP__THOUSANDS(count),
           FSDP__THOUSANDS(elements), FSDP__THOUSANDS(bytes), FSDP__SIZE(bytes), (long long)files, fsdp__plural(files));
}

/* ---- as JSON ---- */

static void print_config_as_json(const fsdp_model_config *m)
{
    printf(", \"model\": {\"architecture\": ");
    fsdp__print_json_string(fsdp_architecture_name(m->architecture), stdout);
    printf(", \"parameters\": %lld, \"n_layers\": %lld, \"dim\": %lld, \"n_heads\": %lld, \"n_kv_heads\": %lld, "
           "\"head_dim\": %lld, \"ffn_dim\": %lld, \"vocab_size\": %lld, \"max_seq_len\": %lld, \"norm_eps\": %.9g, "
           "\"rope_theta\": %.9g, \"tie_word_embeddings\": %s}",
           (long long)fsdp_model_config_parameters(m), (long long)m->n_layers, (long long)m->dim, (long long)m->n_heads,
           (long long)m->n_kv_heads, (long long)m->head_dim, (long long)m->ffn_dim, (long long)m->vocab_size,
           (long long)m->max_seq_len, (double)m->norm_eps, (double)m->rope_theta,
           m->tie_word_embeddings ? "true" : "false");
}

static void print_adapter_as_json(const fsdp_lora_options *o)
{
    printf(", \"adapter\": {\"rank\": %lld, \"alpha\": %.9g, \"rslora\": %s, \"dora\": %s, \"targets\": [",
           (long long)o->rank, o->alpha, o->rslora ? "true" : "false", o->dora ? "true" : "false");
    for (int64_t i = 0; i < o->target_count; i++) {
        printf("%s", i ? ", " : "");
        fsdp__print_json_string(o->targets[i], stdout);
    }
    printf("]}");
}

void fsdp__list_weights_as_json(const char *path, const fsdp_model_config *config, const fsdp_lora_options *adapter,
                                const fsdp_weights *weights)
{
    printf("{\"kind\": \"weights\", \"path\": ");
    fsdp__print_json_string(path, stdout);
    if (config)
        print_config_as_json(config);
    if (adapter)
        print_adapter_as_json(adapter);
    printf(", \"tensors\": [");
    for (int64_t i = 0; i < fsdp_weights_count(weights); i++) {
        const fsdp_weights_entry *e = fsdp_weights_at(weights, i);

        printf("%s\n{\"name\": ", i ? "," : "");
        fsdp__print_json_string(e->name, stdout);
        printf(", \"dtype\": \"%s\", \"shape\": %s, \"bytes\": %zu, \"file\": ", e->dtype_name,
               FSDP__SHAPE(e->shape, e->ndim), e->bytes);
        fsdp__print_json_string(fsdp__shown_file(e->file), stdout);
        printf("}");
    }
    printf("]}\n");
}
