/* jinja_expressions.c - parses expressions: each function takes what binds tighter from the one below it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "chat/jinja_nodes.h"

/* ---- words ---- */

fsdp_status fsdp__jinja_node_create(fsdp__parser *p, fsdp__jinja_node_kind kind, fsdp__jinja_node **out)
{
    fsdp__jinja_node *node = fsdp__render_alloc(p->r, sizeof *node);

    *out = node;
    if (!node)
        return fsdp_fail_hop(p->r->failed, __FILE__, __LINE__);
    *node = (fsdp__jinja_node){.kind = kind, .line = p->word->line};
    return FSDP_OK;
}

void fsdp__parser_next(fsdp__parser *p)
{
    if (p->word->kind != FSDP__WORD_END)
        p->word++;
    p->r->line = p->word->line;
}

bool fsdp__parser_sees(const fsdp__parser *p, const char *sign)
{
    return p->word->kind == FSDP__WORD_SIGN && fsdp__jinja_string_is(p->word->text, sign);
}

bool fsdp__parser_sees_name(const fsdp__parser *p, const char *name)
{
    return p->word->kind == FSDP__WORD_NAME && fsdp__jinja_string_is(p->word->text, name);
}

bool fsdp__parser_takes(fsdp__parser *p, const char *sign)
{
    bool sees = fsdp__parser_sees(p, sign);

    if (sees)
        fsdp__parser_next(p);
    return sees;
}

bool fsdp__parser_takes_name(fsdp__parser *p, const char *name)
{
    bool sees = fsdp__parser_sees_name(p, name);

    if (sees)
        fsdp__parser_next(p);
    return sees;
}

fsdp_status fsdp__parser_unexpected(fsdp__parser *p, const char *wanted)
{
    char text[64];

    snprintf(text, sizeof text, "%.*s", (int)FSDP__MIN(p->word->text.bytes, sizeof text - 1), p->word->text.at);
    if (p->word->kind == FSDP__WORD_END)
        return FSDP__RENDER_FAIL(p->r, "the template ends where %s should be", wanted);
    return FSDP__RENDER_FAIL(p->r, "%s should be where '%s' is", wanted, FSDP__SHOWN_NAME(text));
}

fsdp_status fsdp__parser_expect(fsdp__parser *p, const char *sign)
{
    char wanted[16];

    if (fsdp__parser_takes(p, sign))
        return FSDP_OK;
    snprintf(wanted, sizeof wanted, "'%s'", sign);
    return fsdp__parser_unexpected(p, wanted);
}

fsdp_status fsdp__parser_name(fsdp__parser *p, fsdp__jinja_string *out)
{
    if (p->word->kind != FSDP__WORD_NAME)
        return fsdp__parser_unexpected(p, "a name");
    *out = p->word->text;
    fsdp__parser_next(p);
    return FSDP_OK;
}

/* ---- what stands alone ---- */

/* Parses expressions up to a closing sign, with commas between them and perhaps one at the end. */
static fsdp_status parse_items(fsdp__parser *p, const char *close, fsdp__jinja_node **out, bool *comma)
{
    *comma = false;
    while (!fsdp__parser_takes(p, close)) {
        FSDP_TRY(fsdp__parse_expression(p, out));
        out = &(*out)->next;
        if (fsdp__parser_takes(p, ",")) {
            *comma = true;
            continue;
        }
        return fsdp__parser_expect(p, close);
    }
    return FSDP_OK;
}

static fsdp_status parse_map(fsdp__parser *p, fsdp__jinja_node *map)
{
    fsdp__jinja_node **at = &map->items;

    while (!fsdp__parser_takes(p, "}")) {
        FSDP_TRY(fsdp__parse_expression(p, at));
        at = &(*at)->next;
        FSDP_TRY(fsdp__parser_expect(p, ":"));
        FSDP_TRY(fsdp__parse_expression(p, at));
        at = &(*at)->next;
        if (!fsdp__parser_takes(p, ","))
            return fsdp__parser_expect(p, "}");
    }
    return FSDP_OK;
}

/* Parses what a bracket begins, which has been taken. */
static fsdp_status parse_brackets(fsdp__parser *p, char bracket, fsdp__jinja_node **out)
{
    fsdp__jinja_node *node;
    bool comma;

    FSDP_TRY(fsdp__jinja_node_create(p,
                                     bracket == '['   ? FSDP__JINJA_LIST
                                     : bracket == '(' ? FSDP__JINJA_TUPLE
                                                      : FSDP__JINJA_MAP,
                                     &node));
    *out = node;
    if (bracket == '{')
        return parse_map(p, node);
    FSDP_TRY(parse_items(p, bracket == '[' ? "]" : ")", &node->items, &comma));
    if (bracket == '(' && node->items && !comma)
        *out = node->items; /* brackets around one expression */
    return FSDP_OK;
}

static fsdp_status parse_number(fsdp__parser *p, fsdp__jinja_string word, fsdp__jinja_value *out)
{
    char text[64], *end;
    size_t n = 0;
    int base = 10;

    for (size_t i = 0; i < word.bytes && n < sizeof text - 1; i++)
        if (word.at[i] != '_')
            text[n++] = word.at[i];
    text[n] = 0;
    if (text[0] == '0' && n > 2)
        base = (text[1] | 32) == 'x' ? 16 : (text[1] | 32) == 'o' ? 8 : (text[1] | 32) == 'b' ? 2 : 10;
    errno = 0;
    *out = fsdp__jinja_value_of_integer(strtoll(text + (base == 10 ? 0 : 2), &end, base));
    if (*end == 0 && errno == 0)
        return FSDP_OK;
    if (*end == 0 && base == 10)
        return fsdp__jinja_integer_of_digits(p->r, (fsdp__jinja_string){text, n}, out);
    *out = fsdp__jinja_value_of_real(strtod(text, &end));
    return *end == 0 && base == 10 ? FSDP_OK : FSDP__RENDER_FAIL(p->r, "'%s' is no number", FSDP__SHOWN_NAME(text));
}

static fsdp_status parse_strings(fsdp__parser *p, fsdp__jinja_value *out)
{
    fsdp__jinja_string all = p->word->text;

    for (fsdp__parser_next(p); p->word->kind == FSDP__WORD_STRING; fsdp__parser_next(p)) {
        char *joined = fsdp__render_alloc(p->r, all.bytes + p->word->text.bytes + 1);

        if (!joined)
            return fsdp_fail_hop(p->r->failed, __FILE__, __LINE__);
        memcpy(joined, all.at, all.bytes);
        memcpy(joined + all.bytes, p->word->text.at, p->word->text.bytes);
        all = (fsdp__jinja_string){joined, all.bytes + p->word->text.bytes};
    }
    *out = fsdp__jinja_value_of_text(all.at, all.bytes);
    return FSDP_OK;
}

/* Gets the value of a name that is a constant. */
static bool constant_of(fsdp__jinja_string name, fsdp__jinja_value *out)
{
    if (fsdp__jinja_string_is(name, "true") || fsdp__jinja_string_is(name, "True"))
        *out = fsdp__jinja_value_of_bool(true);
    else if (fsdp__jinja_string_is(name, "false") || fsdp__jinja_string_is(name, "False"))
        *out = fsdp__jinja_value_of_bool(false);
    else if (fsdp__jinja_string_is(name, "none") || fsdp__jinja_string_is(name, "None"))
        *out = FSDP__NOTHING;
    else
        return false;
    return true;
}

static fsdp_status parse_primary(fsdp__parser *p, fsdp__jinja_node **out)
{
    const fsdp__word word = *p->word;

    if (word.kind == FSDP__WORD_SIGN && word.text.bytes == 1 && strchr("([{", word.text.at[0])) {
        fsdp__parser_next(p);
        return parse_brackets(p, word.text.at[0], out);
    }
    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_CONSTANT, out));
    if (word.kind == FSDP__WORD_STRING)
        return parse_strings(p, &(*out)->constant);
    if (word.kind != FSDP__WORD_NAME && word.kind != FSDP__WORD_NUMBER)
        return fsdp__parser_unexpected(p, "an expression");
    fsdp__parser_next(p);
    if (word.kind == FSDP__WORD_NUMBER)
        return parse_number(p, word.text, &(*out)->constant);
    if (!constant_of(word.text, &(*out)->constant)) {
        (*out)->kind = FSDP__JINJA_NAME;
        (*out)->name = word.text;
    }
    return FSDP_OK;
}

/* ---- what follows an expression ---- */

/* Parses the arguments of a call, whose bracket has been taken. */
static fsdp_status parse_arguments(fsdp__parser *p, fsdp__jinja_node **out)
{
    bool keywords = false;

    while (!fsdp__parser_takes(p, ")")) {
        bool keyword = p->word->kind == FSDP__WORD_NAME && p->word[1].kind == FSDP__WORD_SIGN &&
                       fsdp__jinja_string_is(p->word[1].text, "=");
        fsdp__jinja_string name = {0};

        if (fsdp__parser_sees(p, "*") || fsdp__parser_sees(p, "**"))
            return FSDP__RENDER_FAIL(p->r, "'*' and '**' before an argument are not known");
        if (keywords && !keyword)
            return FSDP__RENDER_FAIL(p->r, "an argument without a name behind those with names");
        keywords = keyword;
        if (keyword) {
            FSDP_TRY(fsdp__parser_name(p, &name));
            fsdp__parser_next(p);
        }
        FSDP_TRY(fsdp__parse_expression(p, out));
        if (name.bytes) { /* a node of its own: a name's node has a name, too */
            fsdp__jinja_node *value = *out;

            FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_CONSTANT, out));
            (*out)->a = value;
            (*out)->name = name;
        }
        out = &(*out)->next;
        if (!fsdp__parser_takes(p, ","))
            return fsdp__parser_expect(p, ")");
    }
    return FSDP_OK;
}

static fsdp_status parse_bound(fsdp__parser *p, fsdp__jinja_node **out)
{
    bool ends = fsdp__parser_sees(p, ":") || fsdp__parser_sees(p, "]");

    return ends ? FSDP_OK : fsdp__parse_expression(p, out);
}

/* Parses what stands between square brackets behind a value. */
static fsdp_status parse_index(fsdp__parser *p, fsdp__jinja_node *of, fsdp__jinja_node **out)
{
    fsdp__jinja_node *node;

    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_INDEX, &node));
    node->a = of;
    FSDP_TRY(parse_bound(p, &node->b));
    if (!fsdp__parser_sees(p, ":") && !node->b)
        return fsdp__parser_unexpected(p, "an expression");
    if (fsdp__parser_takes(p, ":")) {
        node->kind = FSDP__JINJA_SLICE;
        FSDP_TRY(parse_bound(p, &node->c));
        if (fsdp__parser_takes(p, ":"))
            FSDP_TRY(parse_bound(p, &node->d));
    }
    *out = node;
    return fsdp__parser_expect(p, "]");
}

static fsdp_status parse_attribute(fsdp__parser *p, fsdp__jinja_node *of, fsdp__jinja_node **out)
{
    fsdp__jinja_node *node;

    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_ATTRIBUTE, &node));
    node->a = of;
    *out = node;
    if (p->word->kind != FSDP__WORD_NUMBER)
        return fsdp__parser_name(p, &node->name);
    node->kind = FSDP__JINJA_INDEX; /* x.0 */
    return parse_primary(p, &node->b);
}

static fsdp_status parse_call(fsdp__parser *p, fsdp__jinja_node *of, fsdp__jinja_node **out)
{
    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_CALL, out));
    (*out)->a = of;
    return parse_arguments(p, &(*out)->items);
}

static fsdp_status parse_postfix(fsdp__parser *p, fsdp__jinja_node **node)
{
    for (;;) {
        fsdp__jinja_node *of = *node;

        FSDP_TRY(fsdp__render_work(p->r, 0));
        if (fsdp__parser_takes(p, "."))
            FSDP_TRY(parse_attribute(p, of, node));
        else if (fsdp__parser_takes(p, "["))
            FSDP_TRY(parse_index(p, of, node));
        else if (fsdp__parser_takes(p, "("))
            FSDP_TRY(parse_call(p, of, node));
        else
            return FSDP_OK;
    }
}

static fsdp_status parse_filter(fsdp__parser *p, fsdp__jinja_node **node)
{
    fsdp__jinja_node *filter;

    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_FILTER, &filter));
    filter->a = *node;
    *node = filter;
    FSDP_TRY(fsdp__parser_name(p, &filter->name));
    return fsdp__parser_takes(p, "(") ? parse_arguments(p, &filter->items) : FSDP_OK;
}

/* Returns whether the next word is the one argument that a test has without brackets. */
static bool sees_argument(const fsdp__parser *p)
{
    static const char *const others[] = {"else", "or", "and", "if", "is", "in", "not"};

    for (size_t i = 0; i < FSDP__COUNT_OF(others); i++)
        if (fsdp__parser_sees_name(p, others[i]))
            return false;
    return p->word->kind == FSDP__WORD_NAME || p->word->kind == FSDP__WORD_STRING ||
           p->word->kind == FSDP__WORD_NUMBER || fsdp__parser_sees(p, "[") || fsdp__parser_sees(p, "{");
}

static fsdp_status parse_test(fsdp__parser *p, fsdp__jinja_node **node)
{
    bool negated = fsdp__parser_takes_name(p, "not");
    fsdp__jinja_node *test;

    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_TEST, &test));
    test->a = *node;
    *node = test;
    if (fsdp__parser_takes_name(p, "in"))
        test->name = (fsdp__jinja_string){"in", 2};
    else
        FSDP_TRY(fsdp__parser_name(p, &test->name));
    if (fsdp__parser_takes(p, "(")) {
        FSDP_TRY(parse_arguments(p, &test->items));
    } else if (sees_argument(p)) {
        FSDP_TRY(parse_primary(p, &test->items));
        FSDP_TRY(parse_postfix(p, &test->items));
    }
    if (negated) {
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_NOT, node));
        (*node)->a = test;
    }
    return FSDP_OK;
}

static fsdp_status parse_filters(fsdp__parser *p, fsdp__jinja_node **node)
{
    for (;;) {
        FSDP_TRY(fsdp__render_work(p->r, 0));
        if (fsdp__parser_takes(p, "|")) {
            FSDP_TRY(parse_filter(p, node));
        } else if (fsdp__parser_takes_name(p, "is")) {
            FSDP_TRY(parse_test(p, node));
        } else if (fsdp__parser_takes(p, "(")) {
            FSDP_TRY(parse_call(p, *node, node));
        } else {
            return FSDP_OK;
        }
    }
}

/* ---- what signs join ---- */

static fsdp_status parse_unary(fsdp__parser *p, bool with_filters, fsdp__jinja_node **out)
{
    const fsdp__word word = *p->word;

    FSDP_TRY(fsdp__render_deeper(p->r));
    if (fsdp__parser_takes(p, "-") || fsdp__parser_takes(p, "+")) {
        fsdp__jinja_node *node;

        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_UNARY, &node));
        node->name = word.text;
        FSDP_TRY(parse_unary(p, false, &node->a));
        *out = node;
    } else {
        FSDP_TRY(parse_primary(p, out));
    }
    FSDP_TRY(parse_postfix(p, out));
    if (with_filters)
        FSDP_TRY(parse_filters(p, out));
    p->r->depth--;
    return FSDP_OK;
}

/* Lists the signs of each level, the loosest first. */
static const char *const signs[][4] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};

/* Returns whether one of a level's signs comes. */
static bool sees_sign(const fsdp__parser *p, size_t level)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(signs[level]) && signs[level][i]; i++)
        if (fsdp__parser_sees(p, signs[level][i]))
            return true;
    return false;
}

static fsdp_status parse_level(fsdp__parser *p, size_t level, fsdp__jinja_node **out)
{
    if (level == FSDP__COUNT_OF(signs))
        return parse_unary(p, true, out);
    FSDP_TRY(parse_level(p, level + 1, out));
    while (sees_sign(p, level)) {
        fsdp__jinja_node *node;

        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_BINARY, &node));
        node->a = *out;
        node->name = p->word->text;
        fsdp__parser_next(p);
        FSDP_TRY(parse_level(p, level + 1, &node->b));
        *out = node;
    }
    return FSDP_OK;
}

/* Takes a sign that compares. */
static bool takes_comparison(fsdp__parser *p, fsdp__jinja_string *sign)
{
    static const char *const compare[] = {"==", "!=", "<", "<=", ">", ">="};

    for (size_t i = 0; i < FSDP__COUNT_OF(compare); i++)
        if (fsdp__parser_takes(p, compare[i])) {
            *sign = (fsdp__jinja_string){compare[i], strlen(compare[i])};
            return true;
        }
    if (fsdp__parser_takes_name(p, "in")) {
        *sign = (fsdp__jinja_string){"in", 2};
        return true;
    }
    if (fsdp__parser_sees_name(p, "not") && p->word[1].kind == FSDP__WORD_NAME &&
        fsdp__jinja_string_is(p->word[1].text, "in")) {
        fsdp__parser_next(p);
        fsdp__parser_next(p);
        *sign = (fsdp__jinja_string){"not in", 6};
        return true;
    }
    return false;
}

static fsdp_status parse_comparison(fsdp__parser *p, fsdp__jinja_node **out)
{
    fsdp__jinja_node *node = NULL, **at = NULL;
    fsdp__jinja_string sign;

    FSDP_TRY(parse_level(p, 0, out));
    while (takes_comparison(p, &sign)) {
        if (!node) {
            FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_COMPARE, &node));
            node->a = *out;
            *out = node;
            at = &node->items;
        }
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_COMPARE, at));
        (*at)->name = sign;
        FSDP_TRY(parse_level(p, 0, &(*at)->a));
        at = &(*at)->next;
    }
    return FSDP_OK;
}

static fsdp_status parse_not(fsdp__parser *p, fsdp__jinja_node **out)
{
    if (!fsdp__parser_takes_name(p, "not"))
        return parse_comparison(p, out);
    FSDP_TRY(fsdp__render_deeper(p->r));
    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_NOT, out));
    FSDP_TRY(parse_not(p, &(*out)->a));
    p->r->depth--;
    return FSDP_OK;
}

static fsdp_status parse_and_or(fsdp__parser *p, bool is_or, fsdp__jinja_node **out)
{
    FSDP_TRY(is_or ? parse_and_or(p, false, out) : parse_not(p, out));
    while (fsdp__parser_takes_name(p, is_or ? "or" : "and")) {
        fsdp__jinja_node *node;

        FSDP_TRY(fsdp__jinja_node_create(p, is_or ? FSDP__JINJA_OR : FSDP__JINJA_AND, &node));
        node->a = *out;
        FSDP_TRY(is_or ? parse_and_or(p, false, &node->b) : parse_not(p, &node->b));
        *out = node;
    }
    return FSDP_OK;
}

fsdp_status fsdp__parse_expression(fsdp__parser *p, fsdp__jinja_node **out)
{
    FSDP_TRY(fsdp__render_deeper(p->r));
    FSDP_TRY(parse_and_or(p, true, out));
    while (fsdp__parser_takes_name(p, "if")) {
        fsdp__jinja_node *node;

        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_CHOICE, &node));
        node->a = *out;
        FSDP_TRY(parse_and_or(p, true, &node->b));
        if (fsdp__parser_takes_name(p, "else"))
            FSDP_TRY(fsdp__parse_expression(p, &node->c));
        *out = node;
    }
    p->r->depth--;
    return FSDP_OK;
}

fsdp_status fsdp__parse_tuple(fsdp__parser *p, bool with_choice, fsdp__jinja_node **out)
{
    fsdp__jinja_node *tuple, **at;

    FSDP_TRY(with_choice ? fsdp__parse_expression(p, out) : parse_and_or(p, true, out));
    if (!fsdp__parser_sees(p, ","))
        return FSDP_OK;
    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_TUPLE, &tuple));
    tuple->items = *out;
    *out = tuple;
    at = &tuple->items->next;
    while (fsdp__parser_takes(p, ",")) {
        if (p->word->kind == FSDP__WORD_TAG_END || p->word->kind == FSDP__WORD_PRINT_END)
            break;
        FSDP_TRY(with_choice ? fsdp__parse_expression(p, at) : parse_and_or(p, true, at));
        at = &(*at)->next;
    }
    return FSDP_OK;
}
