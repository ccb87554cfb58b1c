/* html.c - the style of a report's page, and its small pieces. */
#include "report/html.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "draw/svg.h"

static const char style[] =
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:20px 16px 60px;max-width:1360px;background:var(--page);color:var(--text);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:24px;margin:8px 0 2px}h2{font-size:17px;margin:34px 0 10px}h3{font-size:14px;margin:0 0 6px;"
    "font-weight:600}p{margin:4px 0}.soft{color:var(--soft)}.small{font-size:13px}\n"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px}"
    ".card+.card{margin-top:14px}.curves .card+.card{margin-top:0}\n"
    ".scroll{overflow-x:auto}table{border-collapse:separate;border-spacing:0;width:100%;font-size:14px}"
    "th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);white-space:nowrap;"
    "vertical-align:top}td.wide{white-space:normal;overflow-wrap:anywhere;min-width:120px}"
    "th{color:var(--soft);font-weight:500}tr:last-child td{border-bottom:0}"
    ".scroll :is(th,td):first-child{position:sticky;left:0;background:var(--card);box-shadow:-16px 0 var(--card)}"
    ".number{text-align:right;font-variant-numeric:tabular-nums}.hot td{font-weight:600}\n"
    ".chip{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;margin-right:8px}"
    ".chip.dash{border-top-style:dashed}\n"
    "ul{margin:0;padding-left:20px}li{margin:6px 0}\n"
    ".curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:14px}\n"
    "svg{display:block;width:100%;height:auto}"
    ".chip.c0{color:var(--c0)}.chip.c1{color:var(--c1)}.chip.c2{color:var(--c2)}.chip.c3{color:var(--c3)}"
    ".chip.c4{color:var(--c4)}.chip.c5{color:var(--c5)}.chip.c6{color:var(--c6)}.chip.c7{color:var(--c7)}\n"
    ".dot{fill:var(--card);stroke-width:1.5}label{font-size:13px;color:var(--soft);margin-left:14px;font-weight:400}"
    ".log{display:none}body:has(#log:checked) .log{display:block}body:has(#log:checked) .linear{display:none}\n"
    ".keys{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);margin:0 0 10px}"
    ".keys i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}\n"
    ".lane{display:grid;grid-template-columns:110px 1fr;gap:2px 10px;align-items:center;font-size:13px;margin:5px 0}"
    ".lane>span{text-align:right;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;direction:rtl}"
    "svg.lane-of-rank{height:30px}svg.lane-of-unit{height:16px}"
    ".axis{display:flex;justify-content:space-between;font-size:12px;color:var(--soft)}\n"
    ".bars{display:grid;grid-template-columns:minmax(60px,max-content) 1fr max-content;gap:4px 10px;align-items:center;"
    "font-size:13px}.bars>span:first-child,.bars>span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}"
    ".bars .chip{border-top-width:12px;margin:0;display:block;border-radius:2px}\n"
    ".matrix td{padding:5px 8px;text-align:right;border:0;font-variant-numeric:tabular-nums;font-size:13px;"
    "background:color-mix(in srgb,var(--c0) calc(var(--heat)*1%),transparent)}"
    ".matrix th{padding:5px 8px;border:0;text-align:right}.matrix{width:auto}\n"
    "summary{cursor:pointer;color:var(--soft)}footer{margin-top:36px;font-size:13px;color:var(--soft)}\n"
    "@media (max-width:600px){.lane{grid-template-columns:1fr;gap:0}.lane>span{text-align:left;direction:ltr}"
    ".scroll td:first-child{white-space:normal;min-width:96px}}\n"
    "@media print{body{padding:0;max-width:none;font-size:12px}*{print-color-adjust:exact}label{display:none}"
    "td.device{white-space:normal}table{font-size:10px}th,td{padding-right:7px}.scroll{overflow:visible}"
    ".card,.lane{break-inside:avoid}h2,h3{break-after:avoid}.curves{grid-template-columns:1fr 1fr}}\n";

void fsdp__html_head(FILE *out)
{
    fprintf(out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Training report</title>\n<style>\n%s"
            "@media screen and (prefers-color-scheme:dark){:root{%s}}\n%s</style>\n</head>\n<body>\n",
            fsdp__svg_style, fsdp__svg_dark, style);
}

void fsdp__html_text(const char *text, FILE *out)
{
    fsdp__print_xml_text(text, out);
}

void fsdp__html_chip(int64_t run, FILE *out)
{
    fprintf(out, "<span class=\"chip c%d%s\"></span>", (int)(run % 8), run >= 8 ? " dash" : "");
}

void fsdp__html_columns(const char *columns, FILE *out)
{
    fputs("<table><tr>", out);
    for (const char *at = columns, *end; at; at = *end ? end + 1 : NULL) {
        bool number = *at == '#';

        end = strchrnul(at, '|');
        fprintf(out, "<th%s>%.*s</th>", number ? " class=\"number\"" : "", (int)(end - at - number), at + number);
    }
    fputs("</tr>\n", out);
}

void fsdp__html_cell(const char *class, const char *text, FILE *out)
{
    fprintf(out, "<td class=\"%s\">", class);
    fsdp__html_text(text ? text : "", out);
    fputs("</td>", out);
}

void fsdp__html_number(fsdp__unit unit, double value, FILE *out)
{
    fprintf(out, "<td class=\"number\">%s</td>", isnan(value) ? "" : FSDP__VALUE(unit, value));
}

void fsdp__html_key(int fill, const char *text, FILE *out)
{
    fprintf(out, "<span><i class=\"b%d\"></i>", fill);
    fsdp__html_text(text, out);
    fputs("</span>", out);
}
