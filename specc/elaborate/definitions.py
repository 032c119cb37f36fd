"""Masks, scores and biases: held until someone knows the rows they are about, then
expanded in place.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TypeAlias

from specc.elaborate import nodes
from specc.elaborate.budget import EXPANDING
from specc.elaborate.context import NOTHING, Context, Env
from specc.elaborate.names import weight_path
from specc.elaborate.rows import GRID, as_grid
from specc.elaborate.typing import Place, fit_static
from specc.elaborate.values import (
    DefinitionFunction,
    Joined,
    Known,
    Tensor,
    describe,
    first,
)
from specc.ir import ops
from specc.lang import tree
from specc.text.diagnostic import Failed, Label, fail
from specc.text.source import Span
from specc.text.suggest import suggest

Rows: TypeAlias = Mapping[str, Tensor]
"""The row numbers `h`, `i` and `j` that a definition is about, as tensors."""

Grid: TypeAlias = Tensor | bool
"""A mask over rows: a truth for each pair of them, or one truth for all."""

MOST_TURNS = 8
"""How often one definition may stand inside itself: a mask may take masks, but not without end."""


def hold_definition(
    context: Context, target: DefinitionFunction, expr: tree.Call, env: Env
) -> DefinitionFunction:
    """`window(128)`: the definition with its arguments, evaluated where they stand."""
    definition = target.definition
    params = definition.params or ()
    if target.kind == "normalizer":
        params = params[1:]  # the first is the scores, which it is given in its place
    # `m = window(back=4)` may be called again, as `m(ahead=1)`: what was given stays
    given = dict(target.given)
    for n, value in enumerate(expr.args):
        if n >= len(params):
            applied = f"weights_by({definition.name}, s, mask=s > -inf)"
            fail(
                "E0211",
                f"`{definition.name}` takes {len(params)} arguments",
                value.span,
                helps=[f"to weigh scores: `{applied}`"]
                if target.kind == "normalizer"
                else [],
            )
        given[params[n].name] = _argument(context, params[n], value, env)
    by_name = {p.name: p for p in params}
    for option in expr.options:
        if option.name not in by_name:
            takes = f"it takes: {', '.join(by_name) or 'nothing'}"
            helps = suggest(option.name, by_name, takes)
            fail(
                "E0201",
                f"`{definition.name}` has no option `{option.name}`",
                option.name_span,
                helps=helps,
            )
        given[option.name] = _argument(context, by_name[option.name], option.value, env)
    where = expr.weights and tree.WeightName(
        weight_path(context, expr.weights, env), span=expr.weights.span
    )
    held = replace(target, given=given, weights=where, span=expr.span)
    if where:
        context.sharing.hold(held, env.under(where.text).scope)
    return held


def _argument(
    context: Context, param: tree.Parameter, expr: tree.Expr, env: Env
) -> Known:
    value = first(context.evaluator.evaluate(context, expr, env))
    # an untyped parameter takes anything, a tensor is checked where it is read
    if param.type is None or isinstance(value, Tensor):
        return value
    place = Place(f"`{param.name}`", expr.span)
    return fit_static(context, param.type, value, env, place)


@contextmanager
def inside(context: Context, held: DefinitionFunction) -> Iterator[None]:
    """While a definition is being expanded. E0210 for one that comes back to itself without end."""
    name = held.definition.name
    context.evaluator.expect(
        context.steps, held.definition, held.module, _config(held), held.span
    )
    context.work(held.span, EXPANDING + len(context.calls) // 8)
    chain = [
        *(c for c in context.calls if c.startswith("definition ")),
        f"definition {name}",
    ]
    if chain.count(chain[-1]) > MOST_TURNS:
        # `a → b → a` is told once around, though it was expanded many times by now
        names = [c.removeprefix("definition ") for c in chain]
        start = names.index(name)
        loop = [*names[start : names.index(name, start + 1)], name]  # once around
        title = f"`{name}` is defined by itself: {' → '.join(loop)}"
        helps = ["write one of them without the other"]
        fail("E0210", title, held.definition.name_span, helps=helps)
    context.calls.append(chain[-1])
    try:
        # weights of a definition belong where it was written: two attentions that use
        # one bias use one table, and no `share` is due for that
        with (
            context.called(held.span, standard=held.module.standard),
            context.sharing.expanding(held),
        ):
            yield
    except Failed as failed:
        raise _of_the_user(failed, held) from None
    finally:
        context.calls.pop()


def _of_the_user(failed: Failed, held: DefinitionFunction) -> Failed:
    """A number out of range is shown first where the definition was given it."""
    found, where = failed.diagnostics[0], held.span
    if (
        found.code != "E0417"
        or found.primary is None
        or where is None
        or where.source is found.primary.span.source
    ):
        return failed
    others = (Label(found.primary.span, "where it counts"), *found.others)
    title = f"`{held.name}`: {found.title}"
    return Failed(
        replace(found, title=title, primary=Label(where, "given here"), others=others)
    )


def expand(
    context: Context,
    held: DefinitionFunction,
    rows: Rows,
    names: Mapping[str, Known],
    scope: str,
    *,
    heads: bool = True,
) -> Known:
    """The value of a definition over these rows, of a grid with a heads axis or without."""
    with inside(context, held):
        return _value(context, held, rows, names, scope, heads=heads)


def _config(held: DefinitionFunction) -> Mapping[str, Known]:
    """The config that a definition sees. That of another file sees none: its file is
    not configured here.
    """
    home = held.env
    return home.config if home and home.module.root is held.module.root else NOTHING


def _value(
    context: Context,
    held: DefinitionFunction,
    rows: Rows,
    names: Mapping[str, Known],
    scope: str,
    *,
    heads: bool = True,
) -> Known:
    definition, module = held.definition, held.module
    config = _config(held)
    env = Env(
        module=module,
        config=config,
        names=dict(names),
        scope=scope,
        rows=rows,
        heads=heads,
    )
    for param in definition.params or ():
        # in order, as a default may name a parameter before it
        if param.name in held.given:
            env.names[param.name] = held.given[param.name]
        elif param.default is not None:
            env.names[param.name] = first(
                context.evaluator.evaluate(context, param.default, env)
            )
        else:
            fail("E0211", f"`{definition.name}` needs `{param.name}`", held.span)
    return first(context.evaluator.evaluate(context, definition.value, env))


def mask_grid(
    context: Context,
    mask: Known,
    rows: Rows,
    scope: str,
    span: Span | None,
    beside: int = GRID,
) -> Grid:
    """A mask as a boolean grid, or a static bool where it shows everything or nothing.

    `beside` scores of how many axes it is laid, as they were written.
    """
    context.work(span)
    match mask:
        case bool():
            return mask
        case Tensor() as tensor:
            if tensor.type.dtype != "bool":
                helps = ["compare it with something: `x > 0`"]
                fail(
                    "E0601",
                    f"a mask holds true and false; this is {describe(tensor)}",
                    span,
                    helps=helps,
                )
            return as_grid(context, tensor, span, beside)
        case Joined(op, parts):
            # each part over the same rows; `all` and `none` among them stay truths
            grids = [mask_grid(context, p, rows, scope, span, beside) for p in parts]
            return _join(context, op, grids, span)
        case DefinitionFunction() if mask.kind == "mask":
            with inside(context, mask):
                # its value may be a mask again, as of `mask m(a) = a & causal`
                value = _value(context, mask, rows, {}, scope)
                return mask_grid(context, value, rows, scope, mask.span or span)
    fail("E0601", f"{describe(mask)} is no mask", span)


def _join(context: Context, op: str, grids: list[Grid], span: Span | None) -> Grid:
    if op == "not":
        (grid,) = grids
        if isinstance(grid, bool):
            return not grid
        return nodes.one(context, ops.Not(), grid, span=span)
    return reduce(lambda left, right: _two(context, op, left, right, span), grids)


def _two(context: Context, op: str, left: Grid, right: Grid, span: Span | None) -> Grid:
    # `all & m` is m, `all | m` is all: a truth on either side needs no node
    if isinstance(left, bool):
        return right if left == (op == "&") else left
    if isinstance(right, bool):
        return left if right == (op == "&") else right
    joined = ops.And() if op == "&" else ops.Or()
    return nodes.add(context, joined, [left, right], span, word=op)[0]


def bias_grid(
    context: Context,
    bias: Known,
    rows: Rows,
    scope: str,
    span: Span | None,
    beside: int = GRID,
) -> Tensor | None:
    """What is added to scores, as a grid of numbers; `beside` as for a mask."""
    if bias is None:
        return None
    if isinstance(bias, DefinitionFunction) and bias.kind == "bias":
        inner = scope
        if bias.weights:
            # its weights live where the bias was written, not where it is added
            home = bias.env
            assert home is not None  # `hold_definition` gave it both
            inner = home.under(weight_path(context, bias.weights, home)).scope
        bias, beside = expand(context, bias, rows, {}, inner), GRID
    if not isinstance(bias, Tensor) or bias.type.dtype == "bool":
        fail(
            "E0602",
            f"what is added to scores holds numbers; this is {describe(bias)}",
            span,
        )
    return as_grid(context, bias, span, beside)
