/* html.h - pieces of a report's page. */
#pragma once

#include "report/chart.h"
#include "report/sources.h"

/* Writes what stands before all, with the style. */
void fsdp__html_head(FILE *out);

void fsdp__html_text(const char *text, FILE *out);
/* Shows the colour of a run. */
void fsdp__html_chip(int64_t run, FILE *out);
/* Begins a table of these columns, "run|#steps": those with "#" have numbers. */
void fsdp__html_columns(const char *columns, FILE *out);
/* Puts a cell of a table; NULL and NaN leave it empty. */
void fsdp__html_cell(const char *class, const char *text, FILE *out);
void fsdp__html_number(fsdp__unit unit, double value, FILE *out);
/* Shows what a fill stands for. */
void fsdp__html_key(int fill, const char *text, FILE *out);

/* ---- html_step.c: what a trace shows. `title` says of which run it is; "" ---- */

fsdp_status fsdp__html_step(const fsdp__traced_step *step, const char *title, FILE *out);

/* ---- html_run.c: what ranks did last; what was planned beside what was measured ---- */

void fsdp__html_flight(const fsdp__source *source, const char *title, FILE *out);
void fsdp__html_plan(const fsdp__source *source, const fsdp__recorded_run *run, const char *title, FILE *out);
