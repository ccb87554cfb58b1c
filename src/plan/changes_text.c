/* changes_text.c - prints changes as text and as JSON. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "explain/json_value.h"
#include "plan/changes.h"
#include "plan/show_plan.h"

enum {
    COLUMNS = 100,
    INDENT = 5
};

/* ---- text ---- */

/* Prints two texts one after the other, in indented lines. */
static void put_words(const char *head, const char *text, FILE *out)
{
    int used = fprintf(out, "%*s%s", INDENT, "", head);

    for (size_t length; *text; text += length + (text[length] != '\0')) {
        length = strcspn(text, " ");
        if (used > INDENT && used + 1 + (int)length > COLUMNS) {
            fputc('\n', out);
            used = fprintf(out, "%*s", INDENT, "");
        }
        used += fprintf(out, "%s%.*s", used > INDENT ? " " : "", (int)length, text);
    }
    fputc('\n', out);
}

/* Writes "what 12MiB, was 24MiB" behind what is there, if the two differ enough to be seen. */
static void add_figure(char *text, size_t bytes, const char *what, double after, double before, bool is_bytes)
{
    size_t used = strlen(text);

    if (fabs(after - before) <= 0.005 * before)
        return;
    snprintf(text + used, bytes - used, "%s%s %s, was %s", used > 0 ? "; " : "", what,
             is_bytes ? FSDP__SIZE(after) : FSDP__THOUSANDS(llround(after)),
             is_bytes ? FSDP__SIZE(before) : FSDP__THOUSANDS(llround(before)));
}

/* Writes the figures that differ, both for as many tokens as a step of the config as it is has. */
static const char *figures_text(const fsdp__changes *c, const fsdp__change_figures *before,
                                const fsdp__change_figures *after, char *text, size_t bytes)
{
    double was = c->first.tokens / before->tokens, is = c->first.tokens / after->tokens;
    size_t used;

    text[0] = '\0';
    add_figure(text, bytes, "memory", (double)after->bytes, (double)before->bytes, true);
    add_figure(text, bytes, c->several_machines ? "over the network" : "sent", (double)after->sent * is,
               (double)before->sent * was, true);
    add_figure(text, bytes, "calls", (double)after->calls * is, (double)before->calls * was, false);
    add_figure(text, bytes, "GFLOP", after->flops * is / 1e9, before->flops * was / 1e9, false);
    used = strlen(text);
    if (before->seconds > 0)
        snprintf(text + used, bytes - used, "%sa step %s, was %s", used > 0 ? "; " : "",
                 FSDP__SECONDS(after->seconds * is), FSDP__SECONDS(before->seconds * was));
    used = strlen(text);
    snprintf(text + used, bytes - used, ".");
    text[0] = (char)toupper((unsigned char)text[0]); /* "sent", "calls" or whichever is first */
    return text;
}

static void put_change(const fsdp__changes *all, int i, FILE *out)
{
    const fsdp__change *c = &all->items[i];

    fprintf(out, "\n  %d  ", i + 1);
    for (int k = 0; k < c->setting_count; k++)
        fprintf(out, "%s%s: %s", k > 0 ? ", " : "", c->settings[k].key, c->settings[k].value);
    fputc('\n', out);
    put_words("", c->why, out);
    put_words("", figures_text(all, &c->before, &c->after, FSDP__ROOM(400)), out);
    if (c->price)
        put_words("Price:", c->price, out);
}

const char *fsdp__change_text(const fsdp__changes *changes, char *text, size_t bytes)
{
    const fsdp__change *c = &changes->items[0];
    size_t used = 0;

    text[0] = '\0';
    for (int k = 0; k < c->setting_count && used < bytes; k++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s=%s", k > 0 ? ", " : "", c->settings[k].key,
                                 c->settings[k].value);
    if (used < bytes)
        snprintf(text + used, bytes - used, ": %s%s%s", c->why, *c->why ? " " : "",
                 figures_text(changes, &c->before, &c->after, FSDP__ROOM(400)));
    return text;
}

static void put_padding(const fsdp__padding *p, FILE *out)
{
    char text[400];
    size_t used;

    if (p->share < 0.02)
        return;
    used = (size_t)snprintf(text, sizeof text,
                            "Padding is %.1f %% of what is gathered and reduced, most of it of '%s': "
                            "its %lld rows do not divide evenly over %lld ranks.",
                            100 * p->share, p->parameter, (long long)p->rows, (long long)p->ranks);
    if (p->better > 0)
        snprintf(text + used, sizeof text - used, " With %d ranks (-n %d) it would be %.1f %%.", p->better, p->better,
                 100 * p->better_share);
    else
        snprintf(text + used, sizeof text - used, " No number of ranks near %lld is much better.", (long long)p->ranks);
    fputc('\n', out);
    put_words("", text, out);
}

/* Prints one section's keys, from its first mention on, unless an earlier mention has printed it. */
static void put_section(const fsdp__changes *all, const char *key, FILE *out)
{
    int length = (int)strcspn(key, ".");

    fprintf(out, "  %.*s:\n", length, key);
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < all->items[i].setting_count; k++) {
            const fsdp__change_setting *s = &all->items[i].settings[k];

            if (strncmp(s->key, key, (size_t)length + 1) == 0)
                fprintf(out, "    %s: %s\n", s->key + length + 1, s->value);
        }
}

/* Returns whether a setting is the first of its section. */
static bool begins_section(const fsdp__changes *all, int item, int setting)
{
    const char *key = all->items[item].settings[setting].key;
    size_t length = strcspn(key, ".") + 1;

    for (int i = 0; i <= item; i++)
        for (int k = 0; k < (i < item ? all->items[i].setting_count : setting); k++)
            if (strncmp(all->items[i].settings[k].key, key, length) == 0)
                return false;
    return true;
}

static void put_lines(const fsdp__changes *all, FILE *out)
{
    fprintf(out, "\n%s of a config:\n\n", all->count > 1 ? "All of them as lines" : "As lines");
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < all->items[i].setting_count; k++)
            if (begins_section(all, i, k))
                put_section(all, all->items[i].settings[k].key, out);
}

/* Returns whether a change gives a step more or fewer tokens. */
static bool changes_tokens(const fsdp__changes *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->items[i].after.tokens != c->first.tokens)
            return true;
    return false;
}

static void put_head(const fsdp__changes *c, FILE *out)
{
    const char *tight = c->room > 0 && (double)c->first.needed > c->room ? " It has to fit first." : "";

    if (c->count == 0)
        fprintf(out, "\nWhat would be better: nothing. %d changes were tried, each by a dry run.\n", c->tried);
    else
        fprintf(out, "\nWhat would be better; %d changes were tried, each by a dry run with those before it.%s\n",
                c->tried, tight);
    if (changes_tokens(c))
        fprintf(out, "All figures but memory are for %s tokens, as many as a step has now.\n",
                FSDP__THOUSANDS(llround(c->first.tokens)));
    if (c->room > 0 && (double)c->last.needed > c->room)
        fprintf(out, "No change makes it fit: 'fsdp plan --fit' looks further.\n");
}

fsdp_status fsdp__changes_print(const fsdp__changes *c, FILE *out)
{
    put_head(c, out);
    for (int i = 0; i < c->count; i++)
        put_change(c, i, out);
    if (c->count > 1) {
        fputs("\n  All of them together\n", out);
        put_words("", figures_text(c, &c->first, &c->last, FSDP__ROOM(400)), out);
    }
    if (c->count > 0)
        put_lines(c, out);
    put_padding(&c->padding, out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot print what would be better") : FSDP_OK;
}

/* ---- JSON ---- */

static json_t *figures_of(const fsdp__change_figures *f)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "peak_bytes", json_integer((json_int_t)f->bytes));
    fsdp__json_put(&object, "needed_bytes", json_integer((json_int_t)f->needed));
    fsdp__json_put(&object, "sent_bytes", json_integer(f->sent));
    fsdp__json_put(&object, "calls", json_integer(f->calls));
    fsdp__json_put(&object, "flops", fsdp__json_real(f->flops));
    fsdp__json_put(&object, "tokens", fsdp__json_real(f->tokens));
    if (f->seconds > 0)
        fsdp__json_put(&object, "step_seconds", fsdp__json_real(f->seconds));
    return object;
}

static json_t *change_of(const fsdp__change *c)
{
    json_t *object = json_object(), *settings = json_object();

    for (int i = 0; i < c->setting_count; i++)
        fsdp__json_put(&settings, c->settings[i].key, fsdp__json_text(c->settings[i].value));
    fsdp__json_put(&object, "settings", settings);
    fsdp__json_put(&object, "why", fsdp__json_text(c->why));
    fsdp__json_put(&object, "price", fsdp__json_text(c->price));
    fsdp__json_put(&object, "before", figures_of(&c->before));
    fsdp__json_put(&object, "after", figures_of(&c->after));
    return object;
}

static json_t *padding_of(const fsdp__padding *p)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "share", fsdp__json_real(p->share));
    if (p->parameter[0])
        fsdp__json_put(&object, "parameter", fsdp__json_text(p->parameter));
    if (p->better > 0) {
        fsdp__json_put(&object, "better_ranks", json_integer(p->better));
        fsdp__json_put(&object, "better_share", fsdp__json_real(p->better_share));
    }
    return object;
}

fsdp_status fsdp__changes_json(const fsdp__changes *c, const fsdp_explanation *e, FILE *out)
{
    json_t *object = fsdp__explanation_object(e), *items = json_array();

    for (int i = 0; i < c->count; i++)
        fsdp__json_append(&items, change_of(&c->items[i]));
    fsdp__json_put(&object, "changes_tried", json_integer(c->tried));
    fsdp__json_put(&object, "changes", items);
    fsdp__json_put(&object, "padding", padding_of(&c->padding));
    return fsdp__json_print(object, out);
}
