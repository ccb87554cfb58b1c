/* jinja_render.c - runs statements, and renders a template. */

#include "chat/jinja_run.h"
#include "chat/jinja_text.h"

/* Says how a body ended. */
typedef enum ending {
    TO_ITS_END,
    BY_BREAK,
    BY_CONTINUE
} ending;

static fsdp_status execute(fsdp__runner *run, const fsdp__jinja_node *body, ending *how);

/* ---- scopes ---- */

static fsdp_status enter(fsdp__runner *run, fsdp__scope *around)
{
    fsdp__scope *scope = fsdp__render_alloc(&run->render, sizeof *scope);

    if (!scope)
        return fsdp_fail_hop(run->render.failed, __FILE__, __LINE__);
    *scope = (fsdp__scope){.around = around};
    run->scope = scope;
    return FSDP_OK;
}

/* Assigns to a name, to several, or to an attribute of a namespace. */
static fsdp_status assign(fsdp__runner *run, const fsdp__jinja_node *target, fsdp__jinja_value value)
{
    fsdp__render *r = &run->render;
    fsdp__jinja_list items;
    fsdp__jinja_value of;
    int64_t i = 0;

    if (target->kind == FSDP__JINJA_NAME)
        return fsdp__scope_set(run, target->name, value);
    if (target->kind == FSDP__JINJA_ATTRIBUTE) {
        FSDP_TRY(fsdp__evaluate(run, target->a, &of));
        if (of.kind != FSDP__JINJA_VALUE_NAMESPACE)
            return FSDP__RENDER_FAIL(r, "cannot assign attribute on non-namespace object");
        if (target->name.at[0] == '_')
            return FSDP__RENDER_FAIL(r, "an attribute of a namespace cannot begin with '_'");
        return fsdp__jinja_map_set(r, of.map, fsdp__jinja_value_of_text(target->name.at, target->name.bytes), value);
    }
    FSDP_TRY(fsdp__jinja_value_items(r, &value, &items));
    for (const fsdp__jinja_node *name = target->items; name; name = name->next, i++) {
        if (i >= items.count)
            return FSDP__RENDER_FAIL(r, "not enough values to unpack (got %d)", (int)items.count);
        FSDP_TRY(assign(run, name, items.items[i]));
    }
    return i < items.count ? FSDP__RENDER_FAIL(r, "too many values to unpack (expected %d)", (int)i) : FSDP_OK;
}

/* ---- loops ---- */

/* Leaves out the items for which the loop's condition does not hold. */
static fsdp_status choose(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_list *items)
{
    fsdp__scope *outer = run->scope;
    fsdp__jinja_value kept, is;
    int64_t count = 0;

    FSDP_TRY(fsdp__jinja_value_new_list(&run->render, FSDP__JINJA_VALUE_LIST, items->count, &kept));
    for (int64_t i = 0; i < items->count; i++) {
        FSDP_TRY(enter(run, outer));
        FSDP_TRY(assign(run, node->a, items->items[i]));
        FSDP_TRY(fsdp__evaluate(run, node->c, &is));
        if (fsdp__jinja_value_truth(&is))
            kept.list->items[count++] = items->items[i];
    }
    run->scope = outer;
    kept.list->count = count;
    *items = *kept.list;
    return FSDP_OK;
}

static fsdp_status execute_for(fsdp__runner *run, const fsdp__jinja_node *node)
{
    fsdp__scope *outer = run->scope;
    fsdp__jinja_loop *loop = fsdp__render_alloc(&run->render, sizeof *loop);
    fsdp__jinja_list *items = fsdp__render_alloc(&run->render, sizeof *items);
    fsdp__jinja_value over;
    ending how = TO_ITS_END;

    if (!loop || !items)
        return fsdp_fail_hop(run->render.failed, __FILE__, __LINE__);
    FSDP_TRY(fsdp__evaluate(run, node->b, &over));
    FSDP_TRY(fsdp__jinja_value_items(&run->render, &over, items));
    if (node->c)
        FSDP_TRY(choose(run, node, items));
    *loop = (fsdp__jinja_loop){.items = items};
    for (int64_t i = 0; i < items->count && how != BY_BREAK; i++) {
        FSDP_TRY(enter(run, outer));
        loop->index = i;
        FSDP_TRY(fsdp__scope_set(run, (fsdp__jinja_string){"loop", 4},
                                 (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_LOOP, .loop = loop}));
        FSDP_TRY(assign(run, node->a, items->items[i]));
        FSDP_TRY(execute(run, node->body, &how));
    }
    run->scope = outer;
    if (items->count == 0 && node->other) {
        FSDP_TRY(enter(run, outer));
        FSDP_TRY(execute(run, node->other, &how));
        run->scope = outer;
    }
    return FSDP_OK;
}

/* ---- macros and blocks ---- */

/* Executes a body in a scope of its own inside of `around`, and makes a string of what it writes. */
static fsdp_status capture(fsdp__runner *run, const fsdp__jinja_node *body, fsdp__jinja_value *out)
{
    fsdp__builder *outer = run->render.out;
    FSDP__BUILDER text = {0};
    ending how;

    run->render.out = &text;
    FSDP_TRY(execute(run, body, &how));
    run->render.out = outer;
    return fsdp__builder_value(&run->render, &text, out);
}

static const fsdp__jinja_value *macro_argument(const fsdp__arguments *arguments, int64_t i, fsdp__jinja_string name)
{
    if (i < arguments->count)
        return &arguments->values[i];
    for (int64_t k = 0; k < arguments->named_count; k++)
        if (fsdp__jinja_strings_equal(arguments->named[k].key.string, name))
            return &arguments->named[k].value;
    return NULL;
}

/* Gives the parameters of a macro their values. */
static fsdp_status bind(fsdp__runner *run, const fsdp__jinja_node *macro, const fsdp__arguments *arguments)
{
    int64_t i = 0, named = 0;

    for (const fsdp__jinja_node *parameter = macro->items; parameter; parameter = parameter->next, i++) {
        const fsdp__jinja_value *given = macro_argument(arguments, i, parameter->name);
        fsdp__jinja_value value;

        named += given && i >= arguments->count;
        if (given)
            value = *given;
        else if (parameter->a)
            FSDP_TRY(fsdp__evaluate(run, parameter->a, &value));
        else
            FSDP_TRY(fsdp__jinja_value_undefined(&run->render, &value, "parameter '%s' was not provided",
                                                 FSDP__JINJA_NAME(parameter->name)));
        FSDP_TRY(fsdp__scope_set(run, parameter->name, value));
    }
    if (arguments->count > i || named < arguments->named_count)
        return FSDP__RENDER_FAIL(&run->render, "macro '%s' takes not more than %d argument(s)",
                                 FSDP__JINJA_NAME(macro->name), (int)i);
    return FSDP_OK;
}

static fsdp_status call_macro(fsdp__runner *run, const struct fsdp__macro *macro, const fsdp__arguments *arguments,
                              fsdp__jinja_value *out)
{
    fsdp__scope *caller = run->scope;

    FSDP_TRY(enter(run, macro->around));
    FSDP_TRY(bind(run, macro->node, arguments));
    FSDP_TRY(capture(run, macro->node->body, out));
    run->scope = caller;
    return FSDP_OK;
}

static fsdp_status define_macro(fsdp__runner *run, const fsdp__jinja_node *node)
{
    struct fsdp__macro *macro = fsdp__render_alloc(&run->render, sizeof *macro);

    if (!macro)
        return fsdp_fail_hop(run->render.failed, __FILE__, __LINE__);
    *macro = (struct fsdp__macro){node, run->scope};
    return fsdp__scope_set(run, node->name, (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_MACRO, .macro = macro});
}

static fsdp_status execute_set_block(fsdp__runner *run, const fsdp__jinja_node *node)
{
    fsdp__scope *outer = run->scope;
    fsdp__jinja_value value;

    FSDP_TRY(enter(run, outer));
    FSDP_TRY(capture(run, node->body, &value));
    run->scope = outer;
    return assign(run, node->a, value);
}

/* Returns the number of the message that a loop around has come to; -1: there is no such loop. Names outside of loops
 * may be those of any message. */
static int64_t message_around(const fsdp__runner *run)
{
    for (const fsdp__scope *scope = run->scope; run->messages && scope->around; scope = scope->around)
        for (int64_t n = 0; n < scope->names.count; n++) {
            const fsdp__jinja_value *value = &scope->names.entries[n].value;

            for (int64_t i = 0; value->kind == FSDP__JINJA_VALUE_MAP && i < run->messages->count; i++)
                if (run->messages->items[i].map == value->map)
                    return i;
        }
    return -1;
}

/* Executes a block, and notes where its text lies. */
static fsdp_status execute_generation(fsdp__runner *run, const fsdp__jinja_node *node)
{
    fsdp__rendered *result = run->result;
    fsdp__scope *outer = run->scope;
    size_t begin = (size_t)run->render.out->bytes, end;
    ending how;

    FSDP_TRY(enter(run, outer));
    FSDP_TRY(execute(run, node->body, &how));
    run->scope = outer;
    end = (size_t)run->render.out->bytes;
    if (run->render.out != &run->text) {
        result->lost = true;
        return FSDP_OK;
    }
    if (end == begin)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&result->marked, result->count, &result->capacity, sizeof *result->marked));
    result->marked[result->count++] = (fsdp__jinja_range){begin, end, message_around(run)};
    return FSDP_OK;
}

/* ---- statements ---- */

static fsdp_status execute_if(fsdp__runner *run, const fsdp__jinja_node *node, ending *how)
{
    for (;;) {
        fsdp__jinja_value is;

        FSDP_TRY(fsdp__evaluate(run, node->a, &is));
        if (fsdp__jinja_value_truth(&is))
            return execute(run, node->body, how);
        if (!node->other || node->other->kind != FSDP__JINJA_IF || node->other->next)
            return execute(run, node->other, how);
        node = node->other;
    }
}

static fsdp_status print(fsdp__runner *run, const fsdp__jinja_node *node)
{
    fsdp__jinja_value value;

    FSDP_TRY(fsdp__evaluate(run, node->a, &value));
    run->render.line = node->line;
    return fsdp__jinja_value_print(&run->render, &value, run->render.out);
}

static fsdp_status set(fsdp__runner *run, const fsdp__jinja_node *node)
{
    fsdp__jinja_value value;

    FSDP_TRY(fsdp__evaluate(run, node->b, &value));
    run->render.line = node->line;
    return assign(run, node->a, value);
}

static fsdp_status execute_one(fsdp__runner *run, const fsdp__jinja_node *node, ending *how)
{
    run->render.line = node->line;
    switch (node->kind) {
    case FSDP__JINJA_TEXT:
        return fsdp__builder_add(&run->render, run->render.out, node->constant.string.at, node->constant.string.bytes);
    case FSDP__JINJA_PRINT:
        return print(run, node);
    case FSDP__JINJA_IF:
        return execute_if(run, node, how);
    case FSDP__JINJA_FOR:
        return execute_for(run, node);
    case FSDP__JINJA_SET:
        return set(run, node);
    case FSDP__JINJA_SET_BLOCK:
        return execute_set_block(run, node);
    case FSDP__JINJA_MACRO:
        return define_macro(run, node);
    case FSDP__JINJA_GENERATION:
        return execute_generation(run, node);
    default:
        *how = node->kind == FSDP__JINJA_BREAK ? BY_BREAK : BY_CONTINUE;
        return FSDP_OK;
    }
}

static fsdp_status execute(fsdp__runner *run, const fsdp__jinja_node *body, ending *how)
{
    *how = TO_ITS_END;
    FSDP_TRY(fsdp__render_deeper(&run->render));
    for (; body && *how == TO_ITS_END; body = body->next) {
        FSDP_TRY(fsdp__render_work(&run->render, 0));
        FSDP_TRY(execute_one(run, body, how));
    }
    run->render.depth--;
    return FSDP_OK;
}

/* ---- a rendering ---- */

static fsdp_status render(fsdp__runner *run, const fsdp__jinja *jinja, const json_t *variables)
{
    const fsdp__jinja_value *messages;
    fsdp__jinja_value all;
    ending how;

    FSDP_TRY(enter(run, NULL));
    FSDP_TRY(fsdp__jinja_value_of_json(&run->render, variables, &all));
    messages = fsdp__jinja_map_get(all.map, (fsdp__jinja_string){"messages", 8});
    run->messages = messages && messages->kind == FSDP__JINJA_VALUE_LIST ? messages->list : NULL;
    run->scope->names = *all.map;
    FSDP_TRY(fsdp__builder_add(&run->render, &run->text, "", 0));
    return execute(run, jinja->body, &how);
}

fsdp_status fsdp__jinja_render(const fsdp__jinja *jinja, const json_t *variables, int64_t now, fsdp__rendered *out)
{
    fsdp__runner run = {.render = {.name = jinja->name, .now = now}, .result = out, .call_macro = call_macro};
    fsdp_status status;

    *out = (fsdp__rendered){0};
    run.render.out = &run.text;
    status = render(&run, jinja, variables);
    fsdp__render_release(&run.render);
    if (status != FSDP_OK) {
        fsdp__builder_release(&run.text);
        fsdp__rendered_release(out);
        return status;
    }
    out->text = run.text.text;
    out->bytes = (size_t)run.text.bytes;
    return FSDP_OK;
}

void fsdp__rendered_release(fsdp__rendered *rendered)
{
    FSDP__FREE_ALL(rendered->text, rendered->marked);
    *rendered = (fsdp__rendered){0};
}
