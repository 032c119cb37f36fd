"""Masks, scores and biases: held until someone knows the rows they are about, then expanded in place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

from specc.elaborate import nodes
from specc.elaborate.context import Context, Env
from specc.elaborate.names import weight_path
from specc.elaborate.rows import as_grid
from specc.elaborate.typing import fit_static
from specc.elaborate.values import Function, Joined, Tensor, describe, first
from specc.ir import ops
from specc.lang import tree
from specc.text.diagnostic import Failed, Label, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean

EXPANDING = 10
"""Steps that expanding a definition takes, besides those of what it holds."""

MOST_TURNS = 8
"""How often one definition may stand inside itself: a mask may take masks, but not without end."""


def hold_definition(context: Context, target: Function, expr: tree.Call, env: Env) -> Function:
    """`window(128)`: the definition with its arguments, evaluated where they stand."""
    definition: tree.Definition = target.target[0]
    params = definition.params or ()
    given = dict(target.given)
    for n, value in enumerate(expr.args):
        if n >= len(params):
            fail("E0211", f"`{definition.name}` takes {len(params)} arguments", value.span)
        given[params[n].name] = _argument(context, params[n], value, env)
    by_name = {p.name: p for p in params}
    for option in expr.options:
        if option.name not in by_name:
            near = did_you_mean(option.name, by_name)
            helps = [f"did you mean `{near}`?" if near else f"it takes: {', '.join(by_name) or 'nothing'}"]
            fail("E0201", f"`{definition.name}` has no option `{option.name}`", option.name_span, helps=helps)
        given[option.name] = _argument(context, by_name[option.name], option.value, env)
    where = expr.weights and tree.WeightName(weight_path(context, expr.weights, env), span=expr.weights.span)
    made = replace(target, given=given, weights=where, span=expr.span)
    if where:
        context.sharing.hold(made, env.under(where.text).scope)
    return made


def _argument(context: Context, param: tree.Parameter, expr: Any, env: Env) -> Any:
    value = first(context.evaluate(context, expr, env))
    if param.type is None or isinstance(value, Tensor):
        return value
    return fit_static(context, value, param.type, f"`{param.name}`", expr.span, env)


@contextmanager
def inside(context: Context, held: Function) -> Iterator[None]:
    """While a definition is being expanded. E0210 for one that comes back to itself without end."""
    definition = held.target[0]
    context.work(held.span, EXPANDING + len(context.calls) // 8)
    chain = [*(c for c in context.calls if c.startswith("definition ")), f"definition {definition.name}"]
    if chain.count(chain[-1]) > MOST_TURNS:
        names = [c.removeprefix("definition ") for c in chain]
        loop = [
            *names[names.index(definition.name) : names.index(definition.name, names.index(definition.name) + 1)],
            definition.name,
        ]
        title = f"`{definition.name}` is defined by itself: {' → '.join(loop)}"
        fail("E0210", title, definition.name_span, helps=["write one of them without the other"])
    context.calls.append(chain[-1])
    try:
        with context.sharing.expanding(held):
            yield
    except Failed as failed:
        raise _of_the_user(failed, held) from None
    finally:
        context.calls.pop()


def _of_the_user(failed: Failed, held: Function) -> Failed:
    """A number out of range is shown first where the definition was given it."""
    found, where = failed.diagnostics[0], held.span
    if found.code != "E0417" or found.primary is None or where is None or where.source is found.primary.span.source:
        return failed
    others = (Label(found.primary.span, "where it counts"), *found.others)
    title = f"`{held.name}`: {found.title}"
    return Failed(replace(found, title=title, primary=Label(where, "given here"), others=others))


def expand(context: Context, held: Function, rows: Mapping[str, Any], names: Mapping[str, Any], scope: str) -> Any:
    """The value of a definition over these rows."""
    with inside(context, held):
        return _value(context, held, rows, names, scope)


def _value(context: Context, held: Function, rows: Mapping[str, Any], names: Mapping[str, Any], scope: str) -> Any:
    definition, module = held.target
    assert isinstance(definition, tree.Definition)
    config = held.env.config if held.env and held.env.module is module else {}
    env = Env(module, config, dict(names), {}, scope, rows)
    for param in definition.params or ():
        if param.name in held.given:
            env.names[param.name] = held.given[param.name]
        elif param.default is not None:
            env.names[param.name] = first(context.evaluate(context, param.default, env))
        else:
            fail("E0211", f"`{definition.name}` needs `{param.name}`", held.span)
    return first(context.evaluate(context, definition.value, env))


def mask_grid(context: Context, mask: Any, rows: Mapping[str, Any], scope: str, span: Span | None) -> Any:
    """A mask as a boolean grid, or a static bool where it shows everything or nothing."""
    context.work(span)
    match mask:
        case bool():
            return mask
        case Tensor() as tensor:
            if tensor.type.dtype != "bool":
                helps = ["compare it with something: `x > 0`"]
                fail("E0601", f"a mask holds true and false; this is {describe(tensor)}", span, helps=helps)
            return as_grid(context, tensor, span)
        case Joined(op, parts):
            grids = [mask_grid(context, p, rows, scope, span) for p in parts]
            return _join(context, op, grids, span)
        case Function(kind="mask"):
            with inside(context, mask):
                value = _value(context, mask, rows, {}, scope)
                return mask_grid(context, value, rows, scope, mask.span or span)
    fail("E0601", f"{describe(mask)} is no mask", span)


def _join(context: Context, op: str, grids: list[Any], span: Span | None) -> Any:
    if op == "not":
        (grid,) = grids
        return not grid if isinstance(grid, bool) else nodes.one(context, ops.Not(), grid, span=span)
    return reduce(lambda left, right: _two(context, op, left, right, span), grids)


def _two(context: Context, op: str, left: Any, right: Any, span: Span | None) -> Any:
    for a, b in ((left, right), (right, left)):
        if isinstance(a, bool):
            return b if a == (op == "&") else a
    made = ops.And() if op == "&" else ops.Or()
    return nodes.add(context, made, [left, right], span, word=op)[0]


def bias_grid(context: Context, bias: Any, rows: Mapping[str, Any], scope: str, span: Span | None) -> Tensor | None:
    """What is added to scores, as a grid of numbers."""
    if bias is None:
        return None
    if isinstance(bias, Function) and bias.kind == "bias":
        inner = scope
        if bias.weights:
            from_ = bias.env
            assert from_ is not None
            inner = from_.under(weight_path(context, bias.weights, from_)).scope
        bias = expand(context, bias, rows, {}, inner)
    if not isinstance(bias, Tensor) or bias.type.dtype == "bool":
        fail("E0602", f"what is added to scores holds numbers; this is {describe(bias)}", span)
    return as_grid(context, bias, span)
