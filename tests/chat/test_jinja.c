/* Templates against the cases that jinja2 has run (FSDP_REFERENCE), what each construct does, what is refused with its
 * line, and the limits of a rendering. */
#include "chat/jinja.h"

#include <time.h>

#include "support/test.h"

static int64_t now_of(int year, int month, int day, int hour, int minute, int second)
{
    struct tm parts = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute,
                       .tm_sec = second,
                       .tm_isdst = -1};

    return (int64_t)mktime(&parts);
}

/* Renders a template; NULL where that fails. free() it. */
static char *render(const char *text, const json_t *variables, int64_t now)
{
    fsdp__jinja *jinja = NULL;
    fsdp__rendered out = {0};
    char *copy = NULL;

    if (fsdp__jinja_parse("template", text, strlen(text), &jinja) == FSDP_OK &&
        fsdp__jinja_render(jinja, variables, now, &out) == FSDP_OK)
        copy = strdup(out.text);
    fsdp__rendered_release(&out);
    fsdp__jinja_free(jinja);
    return copy;
}

static void check_case(const json_t *one, const json_t *variables, int64_t now)
{
    const char *text = json_string_value(json_object_get(one, "template"));
    const json_t *result = json_object_get(one, "result"), *message = json_object_get(one, "message");
    char *made = render(text, variables, now);

    if (result) {
        if (!made)
            TEST_FAIL("%s: %s", text, fsdp_last_error());
        if (strcmp(made, json_string_value(result)) != 0)
            TEST_FAIL("%s\n gives '%s'\n not   '%s'", text, made, json_string_value(result));
    } else {
        if (made)
            TEST_FAIL("%s gives '%s', and should fail", text, made);
        if (json_is_string(message) && !strstr(fsdp_last_error(), json_string_value(message)))
            TEST_FAIL("%s: '%s' is not in '%s'", text, json_string_value(message), fsdp_last_error());
    }
    free(made);
}

TEST(the_reference_agrees)
{
    const char *folder = getenv("FSDP_REFERENCE");
    char path[4096];
    json_t *all;
    size_t i;
    json_t *one;

    if (!folder)
        skip();
    snprintf(path, sizeof path, "%s/finetune/chat/jinja-cases.json", folder);
    all = json_load_file(path, 0, NULL);
    CHECK(all != NULL);
    CHECK(json_array_size(json_object_get(all, "cases")) >= 60);
    json_array_foreach(json_object_get(all, "cases"), i, one)
        check_case(one, json_object_get(all, "variables"), now_of(2026, 1, 15, 9, 30, 5));
    json_decref(all);
}

/* ---- what each construct does; the results are jinja2's ---- */

static const char variables[] =
    "{\"n\": 3, \"s\": \"  a\\u00e9b \", \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [1, 2]}, \"t\": true, "
    "\"none\": null, \"m\": [{\"role\": \"user\", \"x\": {\"y\": 2}}, {\"role\": \"tool\"}]}";

static const struct {
    const char *text, *result;
} cases[] = {
    {"{{ 'a' 'b' }}{{ 1_000 }}{{ 0x1f }}{{ .5 if false else 1.50 }}", NULL},
    {"{{ 'a' 'b' }}{{ 1_000 }}{{ 0x1f }}{{ 1.50 }}{{ 1e3 }}{{ 2.5e-7 }}", "ab1000311.51000.02.5e-07"},
    {"{{ 1e16 }} {{ 123456789012345.6 }} {{ 0.0001 }} {{ -0.0 }}", "1e+16 123456789012345.6 0.0001 -0.0"},
    {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 2 ** -1 }} {{ 6 / 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
     "-4 2 -4 0.5 2.0 3.0 0.5"},
    {"{{ 1 + 2 ~ 3 * 2 }}", NULL},
    {"{{ 1 ~ 2 * 3 }}", "16"},
    {"{{ not true or true }}{{ 1 if not n else 2 }}{{ 'x' if n in l and n > 2 }}", "True2x"},
    {"{{ l[::2] }}{{ l[-1:] }}{{ l[5:] }}{{ l[:0:-1] }}{{ s[1:-1:2] }}", "[3, 2][2][][2, 1] \xc3\xa9"},
    {"{{ l|sort }}{{ l|sort(reverse=true) }}{{ ['b', 'A', 'a']|sort }}{{ ['b', 'A', 'a']|unique|join }}",
     "[1, 2, 3][3, 2, 1]['A', 'a', 'b']bA"},
    {"{{ m|sort(attribute='role')|map(attribute='role')|join(',') }}", "tool,user"},
    {"{{ m|map(attribute='x.y', default=0)|list }}", "[2, 0]"},
    {"{{ m|selectattr('x', 'defined')|map(attribute='x.y')|list }}", "[2]"},
    {"{{ d|dictsort }}{{ d|length }}{{ d|list }}{{ d|first }}", "[('a', [1, 2]), ('b', 1)]2['b', 'a']b"},
    {"{{ 'x,y,z'.rsplit(',', 1) }}{{ ' a b '.split(' ') }}{{ 'a--b'.split('--') }}{{ ' a  b c '.split(None, 1) }}",
     "['x,y', 'z']['', 'a', 'b', '']['a', 'b']['a', 'b c ']"},
    {"{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('bc') }}{{ 'aXbX'.count('X') }}{{ 'abab'.replace('ab', '', 1) "
     "}}{{ 'ab'.replace('', '-') }}",
     "bca2ab-a-b-"},
    {"{{ \"they're here-now\".title() }}|{{ \"they're here-now\"|title }}|{{ '\xc3\x9f'|upper }}|{{ "
     "'\xc3\x84'|lower }}",
     "They'Re Here-Now|They're Here-Now|SS|\xc3\xa4"},
    {"{{ \"it's\"|string }}{{ [\"it's\", 'a\"b', '\\n\\x01\xc3\xa9'] }}", "it's[\"it's\", 'a\"b', '\\n\\x01\xc3\xa9']"},
    {"{{ d|tojson(separators=(',', ':'), sort_keys=true) }}{{ []|tojson(indent=2) }}{{ {}|tojson }}",
     "{\"a\":[1,2],\"b\":1}[]{}"},
    {"{{ [1]|tojson(indent=20) }}{{ 'a'|indent(1200, true)|length }}", "[\n                    1\n]1201"},
    {"{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent(1, true) }}", "a\n  b\n\n  c| a\n b"},
    {"{{ '%5.1f|%-4d|%x' % (1.25, 7, 255) }}{{ '%s%%'|format(5) }}", "  1.2|7   |ff5%"},
    {"{{ '{1}{0}{x}{{}}'.format('a', 'b', x=3) }}", "ba3{}"},
    {"{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "3; 1; 2"},
    {"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"},
    {"{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.revindex }}{% endfor %}", "123312321231"},
    {"{% for x in l if x > 1 %}{{ x }}{{ loop.last }}{% endfor %}", "3False2True"},
    {"{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{% for i in [1] %}{% set x = 3 %}{{ f() }}{% "
     "endfor %}",
     "2"},
    {"{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}{{ ns.b is defined }}",
     "[1, 2]False"},
    {"{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}{% for c in 'h\xc3\xa9' %}[{{ c }}]{% endfor %}",
     "b1a[1, 2][h][\xc3\xa9]"},
    {"{{ dict(a=1)|tojson }}{{ range(5, 0, -2)|list }}{{ range(0)|list }}", "{\"a\": 1}[5, 3, 1][]"},
    {"{{ (n)|default(1) }}{{ missing|default }}|{{ missing|length }}{{ missing|list }}{{ 'a' in missing }}",
     "3|0[]False"},
    {"{{ n is divisibleby 3 }}{{ n is gt 2 }}{{ n is in [3] }}{{ n is not in l }}{{ 'A' is upper }}",
     "TrueTrueTrueFalseTrue"},
    {"a\r\n{% if t %}\r\nb\r\n{% endif %}\r\n", "a\nb\n"},
    {"x\n    {%- if t %}\n  y {% endif -%}\n z", "x  y z"},
    {"  {{ n }}  {# c #}\n  {#- d -#}\n e", "  3  e"},
    {"{%- raw -%} {{ a }} {%- endraw -%} b", "{{ a }}b"},
    {"{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}}.a }}{{ (1,) }}{{ () }}{{ [] }}", "1{}(1,)()[]"},
    {"{{ d.items is defined }}{{ d['b'] }}{{ 'k' ~ none }}{{ 1 == 1.0 == true }}", "True1kNoneTrue"},
    {"{{ l|min }}{{ l|max }}{{ l|sum }}{{ -3|abs }}{{ '7x'|int(5) }}{{ 'z'|float }}{{ ' 42 '|int }}", "136350.042"},
    {"{% if n == 1 %}a{% elif n == 2 %}b{% elif n == 3 %}c{% else %}d{% endif %}", "c"},
    {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
     "3"},
    {"{{ 'ff'|int(0, 16) }} {{ '0xff'|int(0, 16) }} {{ '0b11'|int(0, 2) }} {{ '0b11'|int(7, 0) }} {{ '12'|int(3, 1) }} "
     "{{ "
     "'1_0'|int }} {{ '1__0'|int(5) }} {{ '0x1F'|int(0, 0) }} {{ 'z'|int(0, 36) }} {{ ' +5 '|int }} {{ '010'|int(4, 0) "
     "}} {{ '-0b11'|int(0, 2) }} {{ 'b'|int(0, 2) }} {{ '9'|int(0, 37) }}",
     "255 255 3 3 12 10 5 31 35 5 10 -3 0 9"},
    {"{{ 'inf'|float }} {{ '-Infinity'|float }} {{ 'nan'|float }} {{ '1_0.5'|float }} {{ '0x10'|float }} {{ "
     "'+inf'|float }} {{ 'infin'|float(2.5) }} {{ '1e400'|float }} {{ '1e'|float }}",
     "inf -inf nan 10.5 0.0 inf 2.5 inf 0.0"},
    {"{{ 'inf'|int(4) }} {{ '1e20'|int }} {{ '1e400'|int(3) }} {{ '99999999999999999999'|int }} {{ 1e20|int }} {{ "
     "'42.9'|int }} {{ '00012'|int }} {{ 'nan'|int(6) }} {{ none|int(4) }} {{ []|float(2.5) }} {{ -2.5|int }}",
     "4 100000000000000000000 3 99999999999999999999 100000000000000000000 42 12 6 4 2.5 -2"},
    {"{{ '\u0391\u03a3 \u03a3 \u03a3\u0391\u03a3\u0391 \u03a3. \u0391\u03a3.\u0391'|lower }}",
     "\u03b1\u03c2 \u03c3 \u03c3\u03b1\u03c3\u03b1 \u03c3. \u03b1\u03c3.\u03b1"},
    {"{{ '\u0391\u0391\u03a3 \u0392\u03a3'|title }} {{ '\u0392\u03a3'.title() }} {{ '\u0391\u03a3'|capitalize }}",
     "\u0391\u03b1\u03c2 \u0392\u03c3 \u0392\u03c2 \u0391\u03c2"},
    {"{{ 1.5 is odd }} {{ 1.5 is even }} {{ 3.0 is odd }} {{ -1 is odd }} {{ -1.5 is odd }} {{ 4.5 is divisibleby(1.5) "
     "}} "
     "{{ 4.5 is divisibleby 2 }} {{ true is odd }} {{ 12345678901234567891 is odd }}",
     "False False True True False True False True True"},
    {"{{ d|attr('a') is defined }} {{ d|attr('items') is defined }} {{ namespace(x=4)|attr('x') }}", "False True 4"},
    {"x\n\u00a0{% if t %}a{% endif %}\n\u2003\v{# c #}b\n\u200b{% if t %}c{% endif %}", "x\nab\n\u200bc"},
    {"{% set b = 12345678901234567890 %}{{ b }} {{ -b }} {{ (-b)|abs }} {{ b|float }} {{ b == b|int }} {{ b == b|float "
     "}} "
     "{{ 100000000000000000000 == 1e20 }} {{ b > 1 }} {{ b < 1 }} {{ -b < 0 }} {{ b < 1e10 }} {{ b < 'inf'|float }} {{ "
     "[b, 3, -b, 2.5]|sort }} {{ [b, 3]|max }} {{ '%s %d' % (b, b) }} {{ {b: 1}|tojson }} {{ b in [b] }} {{ "
     "b|string|length }}",
     "12345678901234567890 -12345678901234567890 12345678901234567890 1.2345678901234567e+19 True False True True "
     "False "
     "True False True [-12345678901234567890, 2.5, 3, 12345678901234567890] 12345678901234567890 12345678901234567890 "
     "12345678901234567890 {\"12345678901234567890\": 1} True 20"},
    {"{{ -9223372036854775808 + 1 }} {{ 'nan'|float == 'nan'|float }} {{ 'nan'|float <= 1 }}",
     "-9223372036854775807 False False"},
    {"{% set a, b = l[0], l[1] %}{{ a }}{{ b }}{% set x %}{% for y in l %}{{ y }}{% endfor %}{% endset %}{{ x|length "
     "}}",
     "313"},
};

TEST(constructs_do_what_jinja2_does)
{
    json_t *all = json_loads(variables, 0, NULL);

    CHECK(all != NULL);
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        char *made = render(cases[i].text, all, 0);

        if (!cases[i].result && made)
            TEST_FAIL("%s gives '%s', and should fail", cases[i].text, made);
        if (cases[i].result && !made)
            TEST_FAIL("%s: %s", cases[i].text, fsdp_last_error());
        if (made && strcmp(made, cases[i].result) != 0)
            TEST_FAIL("%s\n gives '%s'\n not   '%s'", cases[i].text, made, cases[i].result);
        free(made);
    }
    json_decref(all);
}

TEST(generation_blocks_are_noted)
{
    static const char text[] =
        "a{% generation %}{{ n }}\xc3\xa9{% endgeneration %}b{% for i in l %}{% generation %}{{ i "
        "}}{% endgeneration %},{% endfor %}{% generation %}{% endgeneration %}";
    json_t *all = json_loads(variables, 0, NULL);
    fsdp__jinja *jinja = NULL;
    fsdp__rendered out = {0};

    CHECK_OK(fsdp__jinja_parse("t", text, strlen(text), &jinja));
    CHECK(fsdp__jinja_marks(jinja));
    CHECK_OK(fsdp__jinja_render(jinja, all, 0, &out));
    CHECK_EQ(strcmp(out.text, "a3\u00e9b3,1,2,"), 0);
    CHECK_EQ(out.count, 4);
    CHECK_EQ(out.marked[0].begin, 1);
    CHECK_EQ(out.marked[0].end, 4);
    CHECK_EQ(out.marked[3].begin, 9);
    CHECK(!out.lost);
    fsdp__rendered_release(&out);
    fsdp__jinja_free(jinja);
    json_decref(all);
}

/* ---- what is refused ---- */

static const struct {
    const char *text, *message;
} refused[] = {
    {"a\n{% include 'x' %}", "line 2: the tag 'include' is not known here"},
    {"{% call f() %}{% endcall %}", "line 1: the tag 'call'"},
    {"{% if x %}\n\n", "line 2: the template ends before 'endif'"},
    {"{% for x in [] %}", "line 1: the template ends before 'endfor'"},
    {"{{ 'a'|indent(100000000000, true) }}", "line 1: "},
    {"{{ [1]|tojson(indent=100000000000) }}", "line 1: "},
    {"{{ a", "'}}' is missing"},
    {"\n\n{{ 1 + }}", "line 3: an expression should be where '}}' is"},
    {"{# a", "Missing end of comment tag"},
    {"{{ 'a }}", "a string that does not end"},
    {"{% for x in y recursive %}{% endfor %}", "recursive loops are not known"},
    {"{{ f(*x) }}", "'*' and '**' before an argument are not known"},
    {"{% break %}", "'break' outside of a loop"},
    {"{% endif %}", "the tag 'endif' is not known here"},
    {"{{ ? }}", "unexpected char ?"},
    {"\n{{ 'a'.zfill(3) }}", "line 2: the method 'zfill' of str is not known"},
    {"{{ l.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"},
    {"{{ d.update({}) }}", "access to attribute 'update' of 'dict' object is unsafe"},
    {"{{ l|nothing }}", "No filter named 'nothing'."},
    {"{{ l is nothing }}", "No test named 'nothing'."},
    {"{{ l|join(nothing='x') }}", "join() has no argument 'nothing'"},
    {"{{ nothing() }}", "'nothing' is undefined"},
    {"{{ d.b.c.d }}", "'int object' has no attribute 'c'"},
    {"{% for x in 5 %}{% endfor %}", "'int' object is not iterable"},
    {"{% for a, b in [[1]] %}{% endfor %}", "not enough values to unpack"},
    {"{{ 'a' < 1 }}", "'<' not supported between instances of 'str' and 'int'"},
    {"{{ 1 // 0 }}", "integer division or modulo by zero"},
    {"{{ 9223372036854775807 + 1 }}", "an integer beyond 64 bits"},
    {"{% set ns = namespace() %}{% set ns._x = 1 %}", "cannot begin with '_'"},
    {"{{ namespace(_x=1) }}", "cannot begin with '_'"},
    {"{{ namespace({'_x': 1}) }}", "cannot begin with '_'"},
    {"{{ 12345678901234567890 + 1 }}", "an integer beyond 64 bits"},
    {"{{ 'inf'|float|int(3) }}", "cannot convert float infinity to integer"},
    {"{{ missing|int(3) }}", "'missing' is undefined"},
    {"{{ missing|float }}", "'missing' is undefined"},
    {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f' takes not more than 1"},
    {"{{ missing|tojson }}", "Object of type Undefined is not JSON serializable"},
    {"{{ range(200000) }}", "Range too big"},
    {"{{ loop.cycle(1) }}", "'loop' is undefined"},
};

TEST(what_is_not_known_is_refused_with_its_line)
{
    json_t *all = json_loads(variables, 0, NULL);

    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++) {
        char *made = render(refused[i].text, all, 0);

        if (made)
            TEST_FAIL("%s gives '%s', and should fail", refused[i].text, made);
        if (!strstr(fsdp_last_error(), refused[i].message))
            TEST_FAIL("%s: '%s' is not in '%s'", refused[i].text, refused[i].message, fsdp_last_error());
    }
    json_decref(all);
}

/* ---- limits ---- */

static char *repeated(const char *part, int times)
{
    char *text = calloc((size_t)times * strlen(part) + 1, 1);

    for (int i = 0; i < times; i++)
        memcpy(text + (size_t)i * strlen(part), part, strlen(part));
    return text;
}

static void check_limit(const char *text, const char *message)
{
    json_t *none = json_object();
    char *made = render(text, none, 0);

    if (made)
        TEST_FAIL("%.60s: %zu bytes, and should fail", text, strlen(made));
    if (!strstr(fsdp_last_error(), message))
        TEST_FAIL("%.60s: '%s' is not in '%s'", text, message, fsdp_last_error());
    json_decref(none);
}

TEST(a_hostile_template_ends)
{
    char *deep = repeated("not ", 1400), *ifs = repeated("{% if x %}", 5000), *text = malloc(6000);

    check_limit("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "MiB of memory");
    check_limit(
        "{% set x = 'aaaaaaaaaa' %}{% set ns = namespace(x=x) %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x "
        "%}{% endfor %}",
        "MiB");
    check_limit("{{ 'abcdefgh' * 1000000000 }}", "MiB");
    check_limit("{{ [1] * 1000000000 }}", "MiB");
    check_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep");
    check_limit("{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
                "deep");
    check_limit("{{ 2 ** 100000000000 }}", "64 bits");
    snprintf(text, 6000, "{{ %sx }}", deep);
    check_limit(text, "deep");
    check_limit(ifs, "deep");
    free(deep);
    free(text);
    free(ifs);
}

TEST(an_allocation_that_fails_is_told)
{
    static const char text[] =
        "{% macro f(x) %}{{ x|tojson }}{% endmacro %}{% for k, v in d|items %}{{ f(v) }}{% set z %}"
        "{{ k ~ v }}{% endset %}{{ z.split('1') }}{% generation %}{{ k }}{% endgeneration %}{% "
        "endfor %}";
    json_t *all = json_loads(variables, 0, NULL);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__jinja *jinja = NULL;
        fsdp__rendered out = {0};
        fsdp_status status = fsdp__jinja_parse("t", text, strlen(text), &jinja);

        if (status == FSDP_OK)
            status = fsdp__jinja_render(jinja, all, 0, &out);
        if (fsdp__fault_hit(FSDP__FAULT_ALLOCATION))
            CHECK_EQ(status, FSDP_NO_MEMORY);
        else
            CHECK_OK(status);
        fsdp__rendered_release(&out);
        fsdp__jinja_free(jinja);
    }
    json_decref(all);
}
