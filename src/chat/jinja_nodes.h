/* jinja_nodes.h - a parsed template: nodes for statements, and for expressions. */
#pragma once

#include "chat/jinja.h"
#include "chat/jinja_lexer.h"
#include "chat/jinja_values.h"

typedef enum fsdp__jinja_node_kind {
    /* statements */
    FSDP__JINJA_TEXT,       /* constant */
    FSDP__JINJA_PRINT,      /* a */
    FSDP__JINJA_IF,         /* a; then body; else other, which may be another IF */
    FSDP__JINJA_FOR,        /* target a over b, where c; body; other: when there was nothing */
    FSDP__JINJA_SET,        /* target a, value b */
    FSDP__JINJA_SET_BLOCK,  /* target a, body */
    FSDP__JINJA_MACRO,      /* name; items: NAMEs with a default in a; body */
    FSDP__JINJA_GENERATION, /* body */
    FSDP__JINJA_BREAK,
    FSDP__JINJA_CONTINUE,
    /* expressions */
    FSDP__JINJA_CONSTANT,  /* constant */
    FSDP__JINJA_NAME,      /* name */
    FSDP__JINJA_LIST,      /* items */
    FSDP__JINJA_TUPLE,     /* items */
    FSDP__JINJA_MAP,       /* items: key, value, key, ... */
    FSDP__JINJA_ATTRIBUTE, /* a.name */
    FSDP__JINJA_INDEX,     /* a[b] */
    FSDP__JINJA_SLICE,     /* a[b:c:d]; those left out are NULL */
    FSDP__JINJA_CALL,      /* a(items); an item with a name is a keyword's */
    FSDP__JINJA_FILTER,    /* a | name(items) */
    FSDP__JINJA_TEST,      /* a is name(items) */
    FSDP__JINJA_CHOICE,    /* a if b else c */
    FSDP__JINJA_AND,
    FSDP__JINJA_OR,
    FSDP__JINJA_NOT,
    FSDP__JINJA_COMPARE, /* a, then items, each with its sign in `name` */
    FSDP__JINJA_BINARY,  /* a, the sign in `name`, b */
    FSDP__JINJA_UNARY    /* the sign in `name`, a */
} fsdp__jinja_node_kind;

typedef struct fsdp__jinja_node fsdp__jinja_node;
struct fsdp__jinja_node {
    fsdp__jinja_node_kind kind;
    int line;
    fsdp__jinja_string name;
    fsdp__jinja_value constant;
    fsdp__jinja_node *a, *b, *c, *d;
    fsdp__jinja_node *items, *body, *other; /* lists */
    fsdp__jinja_node *next;                 /* in the list that it is in */
};

struct fsdp__jinja {
    char *name;
    fsdp__render made; /* its pool holds the nodes */
    fsdp__jinja_node *body;
    bool marks;
};

/* Holds what has been parsed, and what comes. */
typedef struct fsdp__parser {
    fsdp__render *r; /* memory, limits, and the line */
    const fsdp__word *word;
    bool marks;
    int loops; /* around what is parsed */
} fsdp__parser;

fsdp_status fsdp__jinja_node_create(fsdp__parser *p, fsdp__jinja_node_kind kind, fsdp__jinja_node **out);
/* Goes to the next word. */
void fsdp__parser_next(fsdp__parser *p);
/* Returns whether the next word is this sign, or this name. */
bool fsdp__parser_sees(const fsdp__parser *p, const char *sign);
bool fsdp__parser_sees_name(const fsdp__parser *p, const char *name);
/* Takes the sign, or the name, if it comes. */
bool fsdp__parser_takes(fsdp__parser *p, const char *sign);
bool fsdp__parser_takes_name(fsdp__parser *p, const char *name);
fsdp_status fsdp__parser_expect(fsdp__parser *p, const char *sign);
/* Takes a name, whatever it is. */
fsdp_status fsdp__parser_name(fsdp__parser *p, fsdp__jinja_string *out);
/* Fails because of the word that comes. */
fsdp_status fsdp__parser_unexpected(fsdp__parser *p, const char *wanted);

fsdp_status fsdp__parse_expression(fsdp__parser *p, fsdp__jinja_node **out);
/* Parses one expression, or several with commas between them: a tuple. `with_choice` false: `if` ends it. */
fsdp_status fsdp__parse_tuple(fsdp__parser *p, bool with_choice, fsdp__jinja_node **out);
