/* svg.h - the shapes of pictures. Colours and fonts come from classes, so that a picture in a page follows its reader's
 * light or dark, and one in a file of its own brings its style along. */
#pragma once

#include <stdint.h>
#include <stdio.h>

/* Holds CSS: the colours as variables, and the classes that use them. f0 to f10 fill a shape, b0 to b10 are the same as
 * backgrounds, c0 to c7 are strokes; "e" and "m" end and centre a text, "strong" makes it stand out. */
extern const char fsdp__svg_style[];
/* Holds the variables for a dark page. */
extern const char fsdp__svg_dark[];

/* Begins a picture in a page, as wide as its place, or in a file, where it lies at `top`. */
void fsdp__svg_open(const char *title, double top, double width, double height, FILE *out);
enum {
    FSDP__SVG_STRIP = 1000 /* width of a strip, in its own units */
};
/* Begins a strip, whose width stretches to its place, and whose height is the page's: it has no text. */
void fsdp__svg_open_strip(const char *class, double height, FILE *out);
/* Begins a file. */
void fsdp__svg_open_file(double width, double height, FILE *out);
void fsdp__svg_close(FILE *out);

void fsdp__svg_text(const char *class, double x, double y, const char *text, FILE *out);
void fsdp__svg_rect(int fill, double x, double y, double width, double height, FILE *out);
void fsdp__svg_line(const char *class, double x0, double y0, double x1, double y1, FILE *out);
/* Draws a square of a colour, and what it stands for. */
void fsdp__svg_key(int fill, double x, double y, const char *text, FILE *out);

/* Returns the fill of a kind of memory (fsdp_memory_kind). */
int fsdp__memory_fill(int kind);

/* ---- what lies side by side ---- */

/* A range of values from left to right. */
typedef struct fsdp__svg_range {
    double least, most, left, width;
} fsdp__svg_range;
double fsdp__svg_range_place(const fsdp__svg_range *range, double value);

/* Draws a bar from `begin` to `end`, which is visible however short that is. */
void fsdp__svg_bar(int fill, const fsdp__svg_range *x, double begin, double end, double y, double height, FILE *out);

/* Layers that lie on each other; at(i) to at(i + 1) has value(i, layer), and at(count) is the end. */
typedef struct fsdp__stack {
    int layers;
    const int *fills; /* of each */
    int64_t count;
    double (*at)(const void *of, int64_t i);
    double (*value)(const void *of, int64_t i, int layer);
    const void *of;
    double most; /* at the top */
} fsdp__stack;
void fsdp__svg_stack(const fsdp__stack *stack, const fsdp__svg_range *x, double y, double height, FILE *out);

/* Draws lines over a stack of bytes, at round sizes up to its top, with their sizes at the left of it. */
void fsdp__svg_scale(const fsdp__svg_range *x, double top, double y, double height, FILE *out);

/* Returns the top of a stack that reaches `most`, with room for the line of a limit, unless that is far above; 0: there
 * is no limit. */
double fsdp__svg_top(double most, double limit);
/* Draws the line of a limit over such a stack, with a text, or NULL, unless it is above the top. */
void fsdp__svg_limit(const fsdp__svg_range *x, double limit, double top, double y, double height, const char *text,
                     FILE *out);
