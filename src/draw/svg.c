/* svg.c - writes the shapes of pictures. */
#include "draw/svg.h"

#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "fsdp/device.h"

const char fsdp__svg_style[] =
    ":root{--page:#f6f5f2;--card:#fff;--text:#1d1f23;--soft:#63666e;--rule:#e3e1dc;--nan:#c01c28;"
    "--c0:#2563eb;--c1:#d97706;--c2:#15803d;--c3:#be123c;--c4:#7c3aed;--c5:#0e7490;--c6:#854d0e;--c7:#be185d;"
    "--f0:#3d6fb4;--f1:#7a68ae;--f2:#a3b8d1;--f3:#4f9d69;--f4:#8d7b68;--f5:#e38b2c;--f6:#c64f3b;--f7:#b0413e;"
    "--f8:#c77fae;--f9:#d3d2ce;--f10:#d2b23f}\n"
    "svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .strong{font-weight:600;fill:var(--text)}"
    ".e{text-anchor:end}.m{text-anchor:middle}"
    ".edge{stroke:var(--text);stroke-width:2;fill:none}.grid{stroke:var(--rule);fill:none}.mark{stroke:var(--soft);"
    "stroke-dasharray:2 3;fill:none}.limit{stroke:var(--nan);stroke-width:1.5;fill:none;"
    "vector-effect:non-scaling-stroke}"
    ".line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
    ".band{fill:none;stroke-width:2;opacity:.28}.dots{stroke-dasharray:2 4}.line.dash{stroke-dasharray:6 4}"
    ".pale{fill:none;stroke:var(--soft);opacity:.3}.nan{fill:var(--nan)}\n"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}"
    ".c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}\n"
    ".f0{fill:var(--f0)}.f1{fill:var(--f1)}.f2{fill:var(--f2)}.f3{fill:var(--f3)}.f4{fill:var(--f4)}.f5{fill:var(--f5)}"
    ".f6{fill:var(--f6)}.f7{fill:var(--f7)}.f8{fill:var(--f8)}.f9{fill:var(--f9)}.f10{fill:var(--f10)}"
    ".b0{background:var(--f0)}.b1{background:var(--f1)}.b2{background:var(--f2)}.b3{background:var(--f3)}"
    ".b4{background:var(--f4)}.b5{background:var(--f5)}.b6{background:var(--f6)}.b7{background:var(--f7)}"
    ".b8{background:var(--f8)}.b9{background:var(--f9)}.b10{background:var(--f10)}\n";

const char fsdp__svg_dark[] =
    "--page:#131519;--card:#1c1f25;--text:#e6e7ea;--soft:#9a9ea8;--rule:#2d313a;--nan:#ff7b72;"
    "--c0:#6ea8ff;--c1:#ffb454;--c2:#5ad07a;--c3:#ff8591;--c4:#b79cff;--c5:#4fc3d9;--c6:#e3c14f;--c7:#ff8cc6;"
    "--f0:#5b8fd6;--f1:#9a88d0;--f2:#5f7391;--f3:#5cab78;--f4:#a59079;--f5:#f0a04b;--f6:#e06a55;--f7:#c9605c;"
    "--f8:#cf8bb8;--f9:#3f444e;--f10:#d9bd55";

/* ---- pictures ---- */

void fsdp__svg_open(const char *title, double top, double width, double height, FILE *out)
{
    fprintf(out, "<svg y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"",
            top, width, height, width, height);
    fsdp__print_xml_text(title, out);
    fputs("\">\n", out);
}

void fsdp__svg_open_strip(const char *class, double height, FILE *out)
{
    fprintf(out, "<svg class=\"%s\" viewBox=\"0 0 %d %.0f\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n",
            class, FSDP__SVG_STRIP, height);
}

/* Writes the style with the colours themselves: not every program that shows pictures knows CSS's variables. */
static void print_plain_style(FILE *out)
{
    const char *colour, *use, *at = strchr(fsdp__svg_style, '\n') + 1;
    char name[16];

    for (; (use = strstr(at, "var(")); at = strchr(use, ')') + 1) {
        snprintf(name, sizeof name, "%.*s:", (int)(strchr(use, ')') - use - 4), use + 4);
        colour = strstr(fsdp__svg_style, name) + strlen(name);
        fprintf(out, "%.*s%.*s", (int)(use - at), at, (int)strcspn(colour, ";}"), colour);
    }
    fputs(at, out);
}

void fsdp__svg_open_file(double width, double height, FILE *out)
{
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\">\n<style>\n", width, height);
    print_plain_style(out);
    fputs("</style>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n", out);
}

void fsdp__svg_close(FILE *out)
{
    fputs("</svg>\n", out);
}

/* ---- shapes ---- */

void fsdp__svg_text(const char *class, double x, double y, const char *text, FILE *out)
{
    fprintf(out, "<text%s%s%s x=\"%.1f\" y=\"%.1f\">", *class ? " class=\"" : "", class, *class ? "\"" : "", x, y);
    fsdp__print_xml_text(text, out);
    fputs("</text>\n", out);
}

void fsdp__svg_rect(int fill, double x, double y, double width, double height, FILE *out)
{
    fprintf(out, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", fill, x, y, width,
            height);
}

void fsdp__svg_line(const char *class, double x0, double y0, double x1, double y1, FILE *out)
{
    fprintf(out, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class, x0, y0, x1, y1);
}

void fsdp__svg_key(int fill, double x, double y, const char *text, FILE *out)
{
    fsdp__svg_rect(fill, x, y, 10, 10, out);
    fsdp__svg_text("", x + 14, y + 9, text, out);
}

int fsdp__memory_fill(int kind)
{
    static const int fills[] = {
        [FSDP_MEMORY_PARAMETER_SHARD] = 0, [FSDP_MEMORY_UNSHARDED_PARAMETER] = 5, [FSDP_MEMORY_GRADIENT] = 3,
        [FSDP_MEMORY_OPTIMIZER_STATE] = 2, [FSDP_MEMORY_ACTIVATION] = 1,          [FSDP_MEMORY_WORKSPACE] = 9};

    return fills[kind];
}

/* ---- ranges ---- */

double fsdp__svg_range_place(const fsdp__svg_range *range, double value)
{
    return range->left + range->width * (value - range->least) / (range->most - range->least);
}

void fsdp__svg_bar(int fill, const fsdp__svg_range *x, double begin, double end, double y, double height, FILE *out)
{
    double from = fsdp__svg_range_place(x, begin);

    fsdp__svg_rect(fill, from, y, FSDP__MAX(fsdp__svg_range_place(x, end) - from, 1), height, out);
}

/* Draws from the top layer on, each down to the ground: the lower ones cover it. */
void fsdp__svg_stack(const fsdp__stack *s, const fsdp__svg_range *x, double y, double height, FILE *out)
{
    for (int top = s->layers - 1; top >= 0; top--) {
        fprintf(out, "<path class=\"f%d\" d=\"M%.1f %.1f", s->fills[top], fsdp__svg_range_place(x, s->at(s->of, 0)),
                y + height);
        for (int64_t i = 0; i < s->count; i++) {
            double sum = 0;

            for (int layer = 0; layer <= top; layer++)
                sum += s->value(s->of, i, layer);
            fprintf(out, "V%.1fH%.1f", y + height * (1 - sum / s->most), fsdp__svg_range_place(x, s->at(s->of, i + 1)));
        }
        fprintf(out, "V%.1fz\"/>\n", y + height);
    }
}

void fsdp__svg_scale(const fsdp__svg_range *x, double top, double y, double height, FILE *out)
{
    double distance = exp2(ceil(log2(top / 4)));

    for (double bytes = 0; bytes <= top; bytes += distance) {
        double at = y + height * (1 - bytes / top);

        fsdp__svg_line("grid", x->left, at, x->left + x->width, at, out);
        fsdp__svg_text("e", x->left - 8, at + 4, bytes > 0 ? FSDP__SIZE(bytes) : "0", out);
    }
}

double fsdp__svg_top(double most, double limit)
{
    return limit > 0 && limit <= 3 * most ? FSDP__MAX(most, 1.06 * limit) : most;
}

void fsdp__svg_limit(const fsdp__svg_range *x, double limit, double top, double y, double height, const char *text,
                     FILE *out)
{
    double at = y + height * (1 - limit / top);

    if (limit <= 0 || limit > top)
        return;
    fsdp__svg_line("limit", x->left, at, x->left + x->width, at, out);
    if (text)
        fsdp__svg_text("e strong", x->left + x->width - 4, at - y < 14 ? at + 12 : at - 4, text, out);
}
