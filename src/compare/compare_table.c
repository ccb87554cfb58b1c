/* compare_table.c - makes rows and cells, as text and as Markdown. */
#include "compare/compare_table.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "train/run_config.h"

typedef enum row_format {
    ROW_LOSS,  /* like ROW_MS and ROW_RATE: how the double at `offset` is written */
    ROW_AGREE, /* of the losses; it has no field */
    ROW_MS,
    ROW_RATE,
    ROW_COUNT, /* int64_t */
    ROW_BYTES, /* int64_t or size_t */
    ROW_WORLD, /* the same, from fsdp__comparison.worlds; -1: none */
} row_format;

typedef struct table_row {
    const char *section; /* heading above the rows; all rows of a section have the same pointer */
    const char *label;
    row_format format;
    size_t offset; /* in fsdp__figures, or in the variant's fsdp__elsewhere */
} table_row;

enum {
    MOST_ROWS = 64
};

enum {
    COLUMNS = 100, /* of the text */
    CELL = 32,
    SENT = FSDP_BARRIER /* the kinds of collectives before it send data */
};

int fsdp__comparison_first(const fsdp__comparison *c)
{
    for (int i = 0; i < c->variants.count; i++)
        if (c->figures[i].has)
            return i;
    return -1;
}

/* ---- rows ---- */

#define AT(field) offsetof(fsdp__figures, field)

static const char loss_section[] = "loss after the last step", time_section[] = "time of a step, ms",
                  sent_section[] = "sent by a rank in a step", peak_section[] = "memory of a rank, at its peak",
                  rest_section[] = "memory of a rank, between steps", resident_section[] = "resident memory",
                  world_peak_section[] = "on other numbers of ranks: peak of a rank, without workspace",
                  world_sent_section[] = "on other numbers of ranks: sent by a rank in a step";

static const table_row first_rows[] = {
    {loss_section, "loss", ROW_LOSS, 0},
    {loss_section, "equal to the first", ROW_AGREE, 0},
    {time_section, "step", ROW_MS, AT(step_ms)},
    {time_section, "  give or take", ROW_MS, AT(spread_ms)},
    {time_section, "  exposed in gathers", ROW_MS, AT(gather_ms)},
    {time_section, "  exposed in reductions", ROW_MS, AT(reduce_ms)},
    {time_section, "tokens/s", ROW_RATE, AT(tokens_per_second)},
};

static const table_row resident_rows[] = {
    {resident_section, "all ranks", ROW_BYTES, AT(resident_bytes)},
    {resident_section, "most of one process", ROW_BYTES, AT(resident_peak_bytes)},
};

static int64_t whole(const fsdp__comparison *c, const table_row *row, int variant)
{
    const char *of =
        row->format == ROW_WORLD ? (const char *)c->worlds.figures[variant] : (const char *)&c->figures[variant];
    const char *field = of + row->offset;

    return *(const int64_t *)field;
}

static bool has_something(const fsdp__comparison *c, const table_row *row)
{
    if (row->format != ROW_COUNT && row->format != ROW_BYTES)
        return true;
    for (int i = 0; i < c->variants.count; i++)
        if (c->figures[i].has && whole(c, row, i) != 0)
            return true;
    return false;
}

typedef struct row_list {
    const fsdp__comparison *c;
    table_row *rows;
    int count;
} row_list;

static void add(row_list *list, table_row row)
{
    if (list->count < MOST_ROWS && has_something(list->c, &row))
        list->rows[list->count++] = row;
}

static void add_sent(row_list *list)
{
    static const char *const calls[SENT] = {"all-gathers", "reduce-scatters", "all-reduces", "broadcasts",
                                            "all-to-alls"};

    for (size_t kind = 0; kind < SENT; kind++) {
        add(list, (table_row){sent_section, calls[kind], ROW_COUNT, AT(comm.calls) + kind * sizeof(int64_t)});
        add(list, (table_row){sent_section, "  bytes", ROW_BYTES, AT(comm.bytes_sent) + kind * sizeof(int64_t)});
    }
}

static void add_memory(row_list *list, const char *section, size_t kinds, size_t total)
{
    static const char *const labels[FSDP_MEMORY_KINDS] = {"parameters", "gathered",    "gradients",
                                                          "optimizer",  "activations", "workspace"};

    for (size_t kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        add(list, (table_row){section, labels[kind], ROW_BYTES, kinds + kind * sizeof(size_t)});
    add(list, (table_row){section, "all at once", ROW_BYTES, total});
}

static void add_worlds(row_list *list, const char *section, size_t field)
{
    for (int i = 0; i < list->c->worlds.count; i++)
        add(list,
            (table_row){section, list->c->worlds.labels[i], ROW_WORLD, (size_t)i * sizeof(fsdp__elsewhere) + field});
}

/* Lists the rows in which any variant has a value. Returns how many there are. */
static int rows_of(const fsdp__comparison *c, table_row *rows)
{
    row_list list = {.c = c, .rows = rows};

    for (size_t i = 0; i < FSDP__COUNT_OF(first_rows); i++)
        add(&list, first_rows[i]);
    add_sent(&list);
    add_memory(&list, peak_section, AT(memory.peak_bytes), AT(memory.peak_total_bytes));
    add_memory(&list, rest_section, AT(memory.live_bytes), AT(memory.live_total_bytes));
    for (size_t i = 0; i < FSDP__COUNT_OF(resident_rows); i++)
        add(&list, resident_rows[i]);
    add_worlds(&list, world_peak_section, offsetof(fsdp__elsewhere, peak_bytes));
    add_worlds(&list, world_sent_section, offsetof(fsdp__elsewhere, sent_bytes));
    return list.count;
}

/* ---- cells ---- */

static const char *size_text(int64_t size, char *text, size_t bytes)
{
    if (size < 0)
        return "-";
    if (size >= 1024)
        return fsdp__size_text((double)size, text, bytes);
    snprintf(text, bytes, "%lld%s", (long long)size, size ? "B" : "");
    return text;
}

static const char *agreement(const fsdp__comparison *c, int variant, char *text, size_t bytes)
{
    int first = fsdp__comparison_first(c), digits;

    if (variant == first)
        return "";
    digits = fsdp__figures_agree(&c->figures[first], &c->figures[variant]);
    if (digits == FSDP__SAME_BITS)
        return "all bits";
    snprintf(text, bytes, "%d digit%s", digits, fsdp__plural(digits));
    return text;
}

static const char *cell_text(const fsdp__comparison *c, const table_row *row, int variant, char *text, size_t bytes)
{
    const fsdp__figures *f = &c->figures[variant];
    double value;

    if (row->format == ROW_WORLD)
        return size_text(whole(c, row, variant), text, bytes);
    if (!f->has)
        return row->format != ROW_LOSS ? "-" : c->variants.items[variant].refused[0] ? "left out" : "failed";
    if (row->format == ROW_AGREE)
        return agreement(c, variant, text, bytes);
    if (row->format == ROW_BYTES)
        return size_text(whole(c, row, variant), text, bytes);
    if (row->format == ROW_COUNT) {
        snprintf(text, bytes, "%lld", (long long)whole(c, row, variant));
        return text;
    }
    value = row->format == ROW_LOSS ? f->losses[f->loss_count - 1] : *(const double *)((const char *)f + row->offset);
    if (row->format == ROW_MS && isnan(value))
        return "-";
    snprintf(text, bytes, "%.*f", row->format == ROW_LOSS ? 6 : row->format == ROW_MS ? 2 : 0, value);
    return text;
}

/* ---- what is printed around the table ---- */

static void print_head(const fsdp__comparison *c, FILE *out)
{
    const fsdp_train_config *config = c->config;
    int first = fsdp__comparison_first(c);
    const fsdp__figures *f = &c->figures[FSDP__MAX(first, 0)];

    fprintf(out, "%s on %d rank%s; a step is %lld tokens (%lld microbatch%s a rank)\n",
            config->model.path ? config->model.path : config->model.preset, c->ranks, fsdp__plural(c->ranks),
            (long long)f->tokens_per_step, (long long)f->microbatches, f->microbatches == 1 ? "" : "es");
    if (config->training.device)
        fprintf(out, "device: %s%s\n", f->device, c->ranks > 1 && strcmp(f->device, "cpu") != 0 ? " (rank 0's)" : "");
    if (f->links[0])
        fprintf(out, "links:  %s\n", f->links);
}

static void print_reasons(const fsdp__comparison *c, const char *bullet, FILE *out)
{
    for (int i = 0; i < c->variants.count; i++) {
        const fsdp__variant *v = &c->variants.items[i];
        bool refused = v->refused[0] != '\0';

        if (!c->figures[i].has)
            fprintf(out, "%s%s %s: %s\n", bullet, v->label, refused ? "is left out" : "has failed",
                    fsdp__shown(refused ? v->refused : c->figures[i].failure, FSDP__ROOM(1200)));
        else if (!c->figures[i].starts_agree)
            fprintf(out, "%s%s: its losses differ from start to start\n", bullet, v->label);
    }
}

/* Prints what the config names and a comparison does not write. */
static void print_unwritten(const fsdp_train_config *c, const char *bullet, FILE *out)
{
    const char *const names[] = {c->metrics.jsonl ? "metrics.jsonl" : NULL,
                                 c->metrics.trace.path ? "metrics.trace.path" : NULL,
                                 c->metrics.csv ? "metrics.csv" : NULL,
                                 c->metrics.prometheus ? "metrics.prometheus" : NULL,
                                 c->metrics.tensorboard ? "metrics.tensorboard" : NULL,
                                 fsdp__train_saves(c) ? "checkpoint.folder" : NULL,
                                 c->save.path ? "export.path" : NULL};
    int left = 0, said = 0;

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        left += names[i] != NULL;
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        if (!names[i])
            continue;
        left--;
        if (said == 0)
            fprintf(out, "%sNothing was written to ", bullet);
        fprintf(out, "%s%s%s", said++ == 0 ? "" : left > 0 ? ", " : " and ", names[i], left > 0 ? "" : ".\n");
    }
}

static void print_legend(const fsdp__comparison *c, const char *bullet, FILE *out)
{
    int steps = c->steps * c->rounds;

    fprintf(out,
            "%sTimes are medians of %d step%s (each strategy %d, in %d turn%s), as long as the slowest rank takes;\n"
            "  give or take: half of what the middle half spans. Exposed: what the program waits for, mean of the "
            "ranks.\n",
            bullet, steps, fsdp__plural(steps), c->steps, c->rounds, fsdp__plural(c->rounds));
    for (int v = 0; v < c->variants.count; v++)
        if (fsdp__train_team(c->variants.items[v].config) > 1) {
            fprintf(out, "%sWhat teams send is in the time of a step, and not in exposed.\n", bullet);
            break;
        }
    fprintf(out,
            "%sMemory is the ledger's, of the rank that has most; kinds peak each at a time of their own. Bytes\n"
            "  sent are those of a ring. Resident is what the system says: libraries and the program too.\n",
            bullet);
    if (c->worlds.count > 0)
        fprintf(out,
                "%sOn other numbers of ranks: of rank 0, found out by the engine in a dry run, with as many\n"
                "  sequences a rank.\n",
                bullet);
    print_unwritten(c->config, bullet, out);
}

/* ---- text ---- */

static int label_width(const table_row *rows, int count)
{
    size_t width = 0;

    for (int i = 0; i < count; i++)
        width = FSDP__MAX(width, strlen(rows[i].label));
    return (int)width;
}

/* Returns the policy, which has a line of its own if policies are compared. */
static const char *policy_of(const fsdp__variant *v)
{
    return strcmp(v->label, v->strategy) != 0 ? v->policy : "";
}

static int column_width(const fsdp__comparison *c, const table_row *rows, int count, int variant)
{
    const fsdp__variant *v = &c->variants.items[variant];
    size_t width = FSDP__MAX(strlen(v->strategy), strlen(policy_of(v)));

    for (int i = 0; i < count; i++)
        width = FSDP__MAX(width, strlen(cell_text(c, &rows[i], variant, FSDP__ROOM(CELL))));
    return (int)width + 2;
}

/* Prints the variants from `begin` up to `end`. */
static void print_block(const fsdp__comparison *c, const table_row *rows, int count, const int *widths, int begin,
                        int end, FILE *out)
{
    int left = label_width(rows, count);
    bool policies = false;

    fprintf(out, "\n%-*s", left, "");
    for (int v = begin; v < end; v++) {
        fprintf(out, "%*s", widths[v], c->variants.items[v].strategy);
        policies = policies || *policy_of(&c->variants.items[v]);
    }
    if (policies)
        fprintf(out, "\n%-*s", left, "");
    for (int v = begin; v < end && policies; v++)
        fprintf(out, "%*s", widths[v], policy_of(&c->variants.items[v]));
    for (int i = 0; i < count; i++) {
        if (i == 0 || rows[i].section != rows[i - 1].section)
            fprintf(out, "\n\n%s", rows[i].section);
        fprintf(out, "\n%-*s", left, rows[i].label);
        for (int v = begin; v < end; v++)
            fprintf(out, "%*s", widths[v], cell_text(c, &rows[i], v, FSDP__ROOM(CELL)));
    }
    fputc('\n', out);
}

void fsdp__comparison_print(const fsdp__comparison *c, FILE *out)
{
    table_row rows[MOST_ROWS];
    int count = rows_of(c, rows), left = label_width(rows, count), widths[FSDP__VARIANTS];

    print_head(c, out);
    for (int v = 0; v < c->variants.count; v++)
        widths[v] = column_width(c, rows, count, v);
    for (int begin = 0, end; begin < c->variants.count; begin = end) {
        int used = left + widths[begin];

        for (end = begin + 1; end < c->variants.count && used + widths[end] <= COLUMNS; end++)
            used += widths[end];
        print_block(c, rows, count, widths, begin, end, out);
    }
    fputc('\n', out);
    print_reasons(c, "", out);
    print_legend(c, "", out);
}

/* ---- Markdown ---- */

void fsdp__comparison_print_markdown(const fsdp__comparison *c, FILE *out)
{
    table_row rows[MOST_ROWS];
    int count = rows_of(c, rows);

    print_head(c, out);
    fputs("\n| |", out);
    for (int v = 0; v < c->variants.count; v++)
        fprintf(out, " %s |", c->variants.items[v].label);
    fputs("\n|---|", out);
    for (int v = 0; v < c->variants.count; v++)
        fputs("---:|", out);
    for (int i = 0; i < count; i++) {
        if (i == 0 || rows[i].section != rows[i - 1].section) {
            fprintf(out, "\n| **%s** |", rows[i].section);
            for (int v = 0; v < c->variants.count; v++)
                fputs(" |", out);
        }
        fprintf(out, "\n| %s |", rows[i].label + strspn(rows[i].label, " "));
        for (int v = 0; v < c->variants.count; v++)
            fprintf(out, " %s |", cell_text(c, &rows[i], v, FSDP__ROOM(CELL)));
    }
    fputs("\n\n", out);
    print_reasons(c, "- ", out);
    print_legend(c, "- ", out);
}
