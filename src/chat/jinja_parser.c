/* jinja_parser.c - parses statements. */
#include <string.h>

#include "base/text.h"
#include "chat/jinja_nodes.h"

static fsdp_status parse_body(fsdp__parser *p, const char *const *ends, fsdp__jinja_node **out);

/* ---- tags ---- */

static fsdp_status expect_tag_end(fsdp__parser *p)
{
    if (p->word->kind != FSDP__WORD_TAG_END)
        return fsdp__parser_unexpected(p, "the end of the tag");
    fsdp__parser_next(p);
    return FSDP_OK;
}

/* Parses a body, and the tag that ends it. */
static fsdp_status parse_to(fsdp__parser *p, const char *end, fsdp__jinja_node **out)
{
    FSDP_TRY(parse_body(p, (const char *const[]){end, NULL}, out));
    fsdp__parser_next(p); /* the name of the end */
    return expect_tag_end(p);
}

static fsdp_status parse_if(fsdp__parser *p, fsdp__jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};

    FSDP_TRY(fsdp__render_deeper(p->r));
    FSDP_TRY(fsdp__parse_expression(p, &node->a));
    FSDP_TRY(expect_tag_end(p));
    FSDP_TRY(parse_body(p, ends, &node->body));
    if (fsdp__parser_takes_name(p, "elif")) {
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_IF, &node->other));
        FSDP_TRY(parse_if(p, node->other));
    } else if (fsdp__parser_takes_name(p, "else")) {
        FSDP_TRY(expect_tag_end(p));
        FSDP_TRY(parse_to(p, "endif", &node->other));
    } else {
        fsdp__parser_next(p);
        FSDP_TRY(expect_tag_end(p));
    }
    p->r->depth--;
    return FSDP_OK;
}

/* Parses what is assigned to: a name, several, or an attribute of a namespace. */
static fsdp_status parse_target(fsdp__parser *p, bool with_attribute, fsdp__jinja_node **out)
{
    bool brackets = fsdp__parser_takes(p, "(");
    fsdp__jinja_node *tuple = NULL, **at = out;

    do {
        if (p->word->kind != FSDP__WORD_NAME || fsdp__parser_sees_name(p, "in"))
            break; /* behind a last comma */
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_NAME, at));
        FSDP_TRY(fsdp__parser_name(p, &(*at)->name));
        if (with_attribute && !tuple && fsdp__parser_takes(p, ".")) {
            (*at)->kind = FSDP__JINJA_ATTRIBUTE;
            FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_NAME, &(*at)->a));
            (*at)->a->name = (*at)->name;
            return fsdp__parser_name(p, &(*at)->name);
        }
        if (!tuple && fsdp__parser_sees(p, ",")) {
            FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_TUPLE, &tuple));
            tuple->items = *out;
            *out = tuple;
            at = &tuple->items;
        }
        at = &(*at)->next;
    } while (fsdp__parser_takes(p, ","));
    if (!*out)
        return fsdp__parser_unexpected(p, "a name");
    return brackets ? fsdp__parser_expect(p, ")") : FSDP_OK;
}

static fsdp_status parse_for(fsdp__parser *p, fsdp__jinja_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};

    FSDP_TRY(parse_target(p, false, &node->a));
    if (!fsdp__parser_takes_name(p, "in"))
        return fsdp__parser_unexpected(p, "'in'");
    FSDP_TRY(fsdp__parse_tuple(p, false, &node->b));
    if (fsdp__parser_takes_name(p, "if"))
        FSDP_TRY(fsdp__parse_expression(p, &node->c));
    if (fsdp__parser_sees_name(p, "recursive"))
        return FSDP__RENDER_FAIL(p->r, "recursive loops are not known");
    FSDP_TRY(expect_tag_end(p));
    p->loops++;
    FSDP_TRY(parse_body(p, ends, &node->body));
    p->loops--;
    if (fsdp__parser_takes_name(p, "else")) {
        FSDP_TRY(expect_tag_end(p));
        return parse_to(p, "endfor", &node->other);
    }
    fsdp__parser_next(p);
    return expect_tag_end(p);
}

static fsdp_status parse_set(fsdp__parser *p, fsdp__jinja_node *node)
{
    FSDP_TRY(parse_target(p, true, &node->a));
    if (fsdp__parser_takes(p, "=")) {
        FSDP_TRY(fsdp__parse_tuple(p, true, &node->b));
        return expect_tag_end(p);
    }
    if (fsdp__parser_sees(p, "|"))
        return FSDP__RENDER_FAIL(p->r, "a filter on a 'set' block is not known");
    node->kind = FSDP__JINJA_SET_BLOCK;
    FSDP_TRY(expect_tag_end(p));
    return parse_to(p, "endset", &node->body);
}

static fsdp_status parse_macro(fsdp__parser *p, fsdp__jinja_node *node)
{
    fsdp__jinja_node **at = &node->items;
    int loops = p->loops;

    FSDP_TRY(fsdp__parser_name(p, &node->name));
    FSDP_TRY(fsdp__parser_expect(p, "("));
    while (!fsdp__parser_takes(p, ")")) {
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_NAME, at));
        FSDP_TRY(fsdp__parser_name(p, &(*at)->name));
        if (fsdp__parser_takes(p, "="))
            FSDP_TRY(fsdp__parse_expression(p, &(*at)->a));
        at = &(*at)->next;
        if (!fsdp__parser_sees(p, ")"))
            FSDP_TRY(fsdp__parser_expect(p, ","));
    }
    FSDP_TRY(expect_tag_end(p));
    p->loops = 0;
    FSDP_TRY(parse_to(p, "endmacro", &node->body));
    p->loops = loops;
    return FSDP_OK;
}

static fsdp_status parse_generation(fsdp__parser *p, fsdp__jinja_node *node)
{
    int loops = p->loops;

    p->marks = true;
    p->loops = 0;
    FSDP_TRY(expect_tag_end(p));
    FSDP_TRY(parse_to(p, "endgeneration", &node->body));
    p->loops = loops;
    return FSDP_OK;
}

static fsdp_status parse_jump(fsdp__parser *p, fsdp__jinja_node *node)
{
    if (p->loops == 0)
        return FSDP__RENDER_FAIL(p->r, "'%s' outside of a loop",
                                 node->kind == FSDP__JINJA_BREAK ? "break" : "continue");
    return expect_tag_end(p);
}

static const struct {
    const char *name;
    fsdp__jinja_node_kind kind;
    fsdp_status (*parse)(fsdp__parser *p, fsdp__jinja_node *node);
} statements[] = {{"if", FSDP__JINJA_IF, parse_if},
                  {"for", FSDP__JINJA_FOR, parse_for},
                  {"set", FSDP__JINJA_SET, parse_set},
                  {"macro", FSDP__JINJA_MACRO, parse_macro},
                  {"generation", FSDP__JINJA_GENERATION, parse_generation},
                  {"break", FSDP__JINJA_BREAK, parse_jump},
                  {"continue", FSDP__JINJA_CONTINUE, parse_jump}};

static fsdp_status parse_statement(fsdp__parser *p, fsdp__jinja_node **out)
{
    fsdp__jinja_string name;
    char text[64];

    for (size_t i = 0; i < FSDP__COUNT_OF(statements); i++)
        if (fsdp__parser_sees_name(p, statements[i].name)) {
            FSDP_TRY(fsdp__jinja_node_create(p, statements[i].kind, out));
            fsdp__parser_next(p);
            return statements[i].parse(p, *out);
        }
    FSDP_TRY(fsdp__parser_name(p, &name));
    snprintf(text, sizeof text, "%.*s", (int)FSDP__MIN(name.bytes, sizeof text - 1), name.at);
    return FSDP__RENDER_FAIL(p->r, "the tag '%s' is not known here", FSDP__SHOWN_NAME(text));
}

/* ---- bodies ---- */

static bool sees_one_of(const fsdp__parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (fsdp__parser_sees_name(p, *ends))
            return true;
    return false;
}

/* Parses a text, a print or a statement. */
static fsdp_status parse_one(fsdp__parser *p, fsdp__jinja_node **out)
{
    if (p->word->kind == FSDP__WORD_TEXT) {
        FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_TEXT, out));
        (*out)->constant = fsdp__jinja_value_of_text(p->word->text.at, p->word->text.bytes);
        fsdp__parser_next(p);
        return FSDP_OK;
    }
    if (p->word->kind != FSDP__WORD_PRINT_BEGIN)
        return fsdp__parser_unexpected(p, "a tag");
    fsdp__parser_next(p);
    FSDP_TRY(fsdp__jinja_node_create(p, FSDP__JINJA_PRINT, out));
    FSDP_TRY(fsdp__parse_tuple(p, true, &(*out)->a));
    if (p->word->kind != FSDP__WORD_PRINT_END)
        return fsdp__parser_unexpected(p, "'}}'");
    fsdp__parser_next(p);
    return FSDP_OK;
}

/* Parses up to a tag with one of the names `ends`, whose name comes next then; NULL: to the end of the template. */
static fsdp_status parse_body(fsdp__parser *p, const char *const *ends, fsdp__jinja_node **out)
{
    FSDP_TRY(fsdp__render_deeper(p->r));
    for (; p->word->kind != FSDP__WORD_END; out = &(*out)->next) {
        if (p->word->kind != FSDP__WORD_TAG_BEGIN) {
            FSDP_TRY(parse_one(p, out));
            continue;
        }
        fsdp__parser_next(p);
        if (sees_one_of(p, ends)) {
            p->r->depth--;
            return FSDP_OK;
        }
        FSDP_TRY(parse_statement(p, out));
    }
    while (ends && ends[1])
        ends++;
    if (ends)
        return FSDP__RENDER_FAIL(p->r, "the template ends before '%s'", ends[0]);
    p->r->depth--;
    return FSDP_OK;
}

static fsdp_status parse(fsdp__jinja *jinja, const char *text, size_t bytes)
{
    FSDP__FREED fsdp__word *words = NULL;
    fsdp__parser p = {.r = &jinja->made};
    int64_t count;

    jinja->made.line = 1;
    FSDP_TRY(fsdp__jinja_cut(&jinja->made, text, bytes, &words, &count));
    p.word = words;
    jinja->made.line = words[0].line;
    FSDP_TRY(parse_body(&p, NULL, &jinja->body));
    jinja->marks = p.marks;
    return FSDP_OK;
}

fsdp_status fsdp__jinja_parse(const char *name, const char *text, size_t bytes, fsdp__jinja **out)
{
    FSDP__SCOPED(fsdp__jinja_free_at) fsdp__jinja *jinja = fsdp__calloc(1, sizeof *jinja);

    *out = NULL;
    FSDP__TRY_NEW(jinja);
    FSDP__TRY_NEW(jinja->name = fsdp__strdup(name));
    jinja->made.name = jinja->name;
    if (memchr(text, 0, bytes))
        return FSDP_FAIL(FSDP_FORMAT, "%s: the template has a NUL in it", name);
    FSDP_TRY(parse(jinja, text, bytes));
    *out = fsdp__take(&jinja);
    return FSDP_OK;
}

void fsdp__jinja_free(fsdp__jinja *jinja)
{
    if (!jinja)
        return;
    fsdp__render_release(&jinja->made);
    FSDP__FREE_ALL(jinja->name, jinja);
}

bool fsdp__jinja_marks(const fsdp__jinja *jinja)
{
    return jinja->marks;
}
