/* jinja_evaluate.c - computes expressions. */

#include "chat/jinja_operators.h"
#include "chat/jinja_run.h"
#include "chat/jinja_strings.h"

/* ---- names ---- */

fsdp_status fsdp__scope_set(fsdp__runner *run, fsdp__jinja_string name, fsdp__jinja_value value)
{
    return fsdp__jinja_map_set(&run->render, &run->scope->names, fsdp__jinja_value_of_text(name.at, name.bytes), value);
}

static fsdp_status look_up(fsdp__runner *run, fsdp__jinja_string name, fsdp__jinja_value *out)
{
    const fsdp__callable *function;

    for (const fsdp__scope *scope = run->scope; scope; scope = scope->around) {
        const fsdp__jinja_value *found = fsdp__jinja_map_get(&scope->names, name);

        if (found) {
            *out = *found;
            return FSDP_OK;
        }
    }
    function = fsdp__jinja_function(name);
    if (function) {
        *out = (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_FUNCTION, .function = function};
        return FSDP_OK;
    }
    return fsdp__jinja_value_undefined(&run->render, out, "'%s' is undefined", FSDP__JINJA_NAME(name));
}

/* ---- lists and dictionaries ---- */

static fsdp_status evaluate_items(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_kind kind = node->kind == FSDP__JINJA_LIST ? FSDP__JINJA_VALUE_LIST : FSDP__JINJA_VALUE_TUPLE;
    int64_t count = 0;

    for (const fsdp__jinja_node *item = node->items; item; item = item->next)
        count++;
    FSDP_TRY(fsdp__jinja_value_new_list(&run->render, kind, count, out));
    count = 0;
    for (const fsdp__jinja_node *item = node->items; item; item = item->next)
        FSDP_TRY(fsdp__evaluate(run, item, &out->list->items[count++]));
    return FSDP_OK;
}

static fsdp_status evaluate_map(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_map(&run->render, FSDP__JINJA_VALUE_MAP, out));
    for (const fsdp__jinja_node *key = node->items; key; key = key->next->next) {
        fsdp__jinja_value k, v;

        FSDP_TRY(fsdp__evaluate(run, key, &k));
        FSDP_TRY(fsdp__evaluate(run, key->next, &v));
        FSDP_TRY(fsdp__jinja_map_set(&run->render, out->map, k, v));
    }
    return FSDP_OK;
}

static fsdp_status evaluate_slice(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_value of, begin = FSDP__NOTHING, end = FSDP__NOTHING, step = FSDP__NOTHING;

    FSDP_TRY(fsdp__evaluate(run, node->a, &of));
    if (of.kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(&run->render, "%s", of.string.at);
    if (node->b)
        FSDP_TRY(fsdp__evaluate(run, node->b, &begin));
    if (node->c)
        FSDP_TRY(fsdp__evaluate(run, node->c, &end));
    if (node->d)
        FSDP_TRY(fsdp__evaluate(run, node->d, &step));
    return fsdp__jinja_value_slice(&run->render, &of, &begin, &end, &step, out);
}

/* ---- calls ---- */

static fsdp_status evaluate_arguments(fsdp__runner *run, const fsdp__jinja_node *items, fsdp__arguments *out)
{
    fsdp__render *r = &run->render;
    fsdp__jinja_value values;
    fsdp__jinja_map named = {0};
    int64_t count = 0;

    for (const fsdp__jinja_node *item = items; item; item = item->next)
        count++;
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, count, &values));
    count = 0;
    for (const fsdp__jinja_node *item = items; item; item = item->next) {
        fsdp__jinja_value value;

        if (item->kind != FSDP__JINJA_CONSTANT || !item->a) {
            FSDP_TRY(fsdp__evaluate(run, item, &values.list->items[count++]));
            continue;
        }
        FSDP_TRY(fsdp__evaluate(run, item->a, &value));
        FSDP_TRY(fsdp__jinja_map_set(r, &named, fsdp__jinja_value_of_text(item->name.at, item->name.bytes), value));
    }
    *out = (fsdp__arguments){values.list->items, count, named.entries, named.count};
    return FSDP_OK;
}

static fsdp_status call_value(fsdp__runner *run, const fsdp__jinja_value *callee, const fsdp__arguments *arguments,
                              fsdp__jinja_value *out)
{
    fsdp__render *r = &run->render;

    if (callee->kind == FSDP__JINJA_VALUE_FUNCTION)
        return fsdp__callable_call(r, callee->function, callee, arguments, out);
    if (callee->kind == FSDP__JINJA_VALUE_MACRO)
        return run->call_macro(run, callee->macro, arguments, out);
    if (callee->kind == FSDP__JINJA_VALUE_JOINER) {
        *out = callee->turn->index++ ? callee->turn->items.items[0] : fsdp__jinja_value_of_text("", 0);
        return FSDP_OK;
    }
    if (callee->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", callee->string.at);
    return FSDP__RENDER_FAIL(r, "'%s' object is not callable", fsdp__jinja_value_type(callee));
}

static fsdp_status evaluate_call(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    const fsdp__jinja_node *callee = node->a;
    fsdp__arguments arguments;
    fsdp__jinja_value of, key;

    if (callee->kind != FSDP__JINJA_ATTRIBUTE && callee->kind != FSDP__JINJA_INDEX) {
        FSDP_TRY(fsdp__evaluate(run, callee, &of));
        FSDP_TRY(evaluate_arguments(run, node->items, &arguments));
        return call_value(run, &of, &arguments, out);
    }
    FSDP_TRY(fsdp__evaluate(run, callee->a, &of));
    if (callee->kind == FSDP__JINJA_ATTRIBUTE)
        FSDP_TRY(fsdp__jinja_value_attribute(&run->render, &of, callee->name, &key));
    else {
        fsdp__jinja_value index;

        FSDP_TRY(fsdp__evaluate(run, callee->b, &index));
        FSDP_TRY(fsdp__jinja_value_index(&run->render, &of, &index, &key));
    }
    FSDP_TRY(evaluate_arguments(run, node->items, &arguments));
    run->render.line = node->line;
    if (key.kind == FSDP__JINJA_VALUE_METHOD)
        return fsdp__jinja_method(&run->render, key.string, &of, &arguments, out);
    return call_value(run, &key, &arguments, out);
}

static fsdp_status evaluate_filter(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__arguments arguments;
    fsdp__jinja_value of;

    FSDP_TRY(fsdp__evaluate(run, node->a, &of));
    FSDP_TRY(evaluate_arguments(run, node->items, &arguments));
    run->render.line = node->line;
    return fsdp__jinja_filter(&run->render, node->name, &of, &arguments, out);
}

static fsdp_status evaluate_test(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__arguments arguments;
    fsdp__jinja_value of;
    bool is;

    FSDP_TRY(fsdp__evaluate(run, node->a, &of));
    FSDP_TRY(evaluate_arguments(run, node->items, &arguments));
    run->render.line = node->line;
    FSDP_TRY(fsdp__jinja_test(&run->render, node->name, &of, &arguments, &is));
    *out = fsdp__jinja_value_of_bool(is);
    return FSDP_OK;
}

/* ---- operators ---- */

static fsdp_status evaluate_choice(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_value when;

    FSDP_TRY(fsdp__evaluate(run, node->b, &when));
    if (fsdp__jinja_value_truth(&when))
        return fsdp__evaluate(run, node->a, out);
    if (node->c)
        return fsdp__evaluate(run, node->c, out);
    return fsdp__jinja_value_undefined(&run->render, out,
                                       "the inline if-expression evaluated to false and no else section was defined.");
}

static fsdp_status evaluate_comparison(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_value left, right;
    bool is = true;

    FSDP_TRY(fsdp__evaluate(run, node->a, &left));
    for (const fsdp__jinja_node *with = node->items; with && is; with = with->next) {
        FSDP_TRY(fsdp__evaluate(run, with->a, &right));
        run->render.line = with->line;
        FSDP_TRY(fsdp__jinja_value_relate(&run->render, with->name, &left, &right, &is));
        left = right;
    }
    *out = fsdp__jinja_value_of_bool(is);
    return FSDP_OK;
}

static fsdp_status evaluate_pair(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_value a, b;

    FSDP_TRY(fsdp__evaluate(run, node->a, &a));
    FSDP_TRY(fsdp__evaluate(run, node->b, &b));
    run->render.line = node->line;
    if (node->kind == FSDP__JINJA_INDEX)
        return fsdp__jinja_value_index(&run->render, &a, &b, out);
    return fsdp__jinja_value_operate(&run->render, node->name, &a, &b, out);
}

/* Computes what needs one value first: an attribute, a sign, `not`, `and`, `or`. */
static fsdp_status evaluate_one(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp__jinja_value a;

    FSDP_TRY(fsdp__evaluate(run, node->a, &a));
    run->render.line = node->line;
    switch (node->kind) {
    case FSDP__JINJA_ATTRIBUTE:
        return fsdp__jinja_value_attribute(&run->render, &a, node->name, out);
    case FSDP__JINJA_NOT:
        *out = fsdp__jinja_value_of_bool(!fsdp__jinja_value_truth(&a));
        return FSDP_OK;
    case FSDP__JINJA_UNARY:
        if (node->name.at[0] == '-')
            return fsdp__jinja_value_negate(&run->render, &a, out);
        *out = a;
        return FSDP_OK;
    default:
        *out = a;
        if (fsdp__jinja_value_truth(&a) == (node->kind == FSDP__JINJA_AND))
            return fsdp__evaluate(run, node->b, out);
        return FSDP_OK;
    }
}

static fsdp_status evaluate(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    switch (node->kind) {
    case FSDP__JINJA_CONSTANT:
        *out = node->constant;
        return FSDP_OK;
    case FSDP__JINJA_NAME:
        return look_up(run, node->name, out);
    case FSDP__JINJA_LIST:
    case FSDP__JINJA_TUPLE:
        return evaluate_items(run, node, out);
    case FSDP__JINJA_MAP:
        return evaluate_map(run, node, out);
    case FSDP__JINJA_SLICE:
        return evaluate_slice(run, node, out);
    case FSDP__JINJA_CALL:
        return evaluate_call(run, node, out);
    case FSDP__JINJA_FILTER:
        return evaluate_filter(run, node, out);
    case FSDP__JINJA_TEST:
        return evaluate_test(run, node, out);
    case FSDP__JINJA_CHOICE:
        return evaluate_choice(run, node, out);
    case FSDP__JINJA_COMPARE:
        return evaluate_comparison(run, node, out);
    case FSDP__JINJA_INDEX:
    case FSDP__JINJA_BINARY:
        return evaluate_pair(run, node, out);
    default:
        return evaluate_one(run, node, out);
    }
}

fsdp_status fsdp__evaluate(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out)
{
    fsdp_status status;

    run->render.line = node->line;
    FSDP_TRY(fsdp__render_deeper(&run->render));
    status = evaluate(run, node, out);
    run->render.depth--;
    return status;
}
