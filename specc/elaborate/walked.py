"""What a `scan` walks over: the rows of an axis, or the numbers of its turns; and which
of them exist.
"""

from typing import NoReturn

from specc.elaborate import nodes
from specc.elaborate.context import Context, Env
from specc.elaborate.expressions import plain
from specc.elaborate.values import Tensor, describe, show_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import fail


def walked(
    context: Context, statement: tree.Scan, env: Env
) -> tuple[list[Tensor], Dim]:
    """What a loop walks over, and the length of the axis along which it does; without
    `along` the numbers of its turns.
    """
    if statement.along is None:
        turns = _turns(context, statement, env)
        return [nodes.one(context, ops.Range(turns), span=statement.span)], turns
    length = _length(context, statement.along, env)
    scanned = [_scanned(context, e, length, statement, env) for e in statement.over]
    assert length is not None  # or it were no axis of what is walked over
    return scanned, length


def _turns(context: Context, statement: tree.Scan, env: Env) -> Dim:
    """How often a loop turns that walks along no axis."""
    expr = statement.over[0]
    value = plain(context, expr, env)
    if len(statement.over) > 1 or not isinstance(value, Dim):
        title = "`scan` needs `along` to walk over tensors"
        what = f"this is {describe(value)}"
        helps = ["name the axis: `scan x in xs along n { … }`"]
        fail("E0304", title, expr.span, what, helps=helps)
    if value.number is not None and value.number < 0:
        fail("E0216", f"nothing can be repeated {value.number} times", expr.span)
    return value


def _length(context: Context, along: tree.Expr, env: Env) -> Dim | None:
    """Return the length after `along`; None where it is no length."""
    if isinstance(along, tree.Name):
        length = env.dims.get(along.path)
        if length is not None:
            return length
        # declared by `dims`, or unknown: then no tensor has an axis of it
        if along.path not in env.names and along.path not in env.config:
            return Dim.symbol(along.path)
    value = plain(context, along, env)
    return value if isinstance(value, Dim) else None


def _scanned(
    context: Context,
    expr: tree.Expr,
    length: Dim | None,
    statement: tree.Scan,
    env: Env,
) -> Tensor:
    value = plain(context, expr, env)
    if not isinstance(value, Tensor):
        fail("E0304", f"`scan` walks over a tensor, not {describe(value)}", expr.span)
    # the axis is found by its length: equal symbols are one length, whatever its name
    if length is None or length not in value.shape:
        _no_axis(expr, statement.along, value)
    if length.number is not None and value.shape.count(length) > 1:
        title = f"several axes of what `scan` walks over have the length {length}"
        helps = [
            f"`repeat i in {length} {{ … }}` reads `x[:, i]` of the axis that is meant"
        ]
        fail("E0304", title, expr.span, f"this is {show_type(value.type)}", helps=helps)
    return value


def _no_axis(expr: tree.Expr, along: tree.Expr | None, value: Tensor) -> NoReturn:
    """E0304 for a length that no axis has."""
    title = f"no axis of what `scan` walks over has the length `{text_of(along)}`"
    lengths = [str(d) for d in value.shape[1:] or value.shape]
    helps = [f"write the length of an axis: `along {lengths[0]}`"] if lengths else []
    fail("E0304", title, expr.span, f"this is {show_type(value.type)}", helps=helps)


def text_of(along: tree.Expr | None) -> str:
    """Return the text of a length as it is written."""
    if isinstance(along, tree.Name):
        return along.path
    return along.span.text if along is not None and along.span else str(along)


def kept_rows(
    context: Context, statement: tree.Scan, env: Env, length: Dim
) -> Tensor | None:
    """Which rows exist: those of others are passed over."""
    if statement.keep is None:
        return None
    value = plain(context, statement.keep, env)
    if value is None:
        return None
    if (
        not isinstance(value, Tensor)
        or value.type.dtype != "bool"
        or value.shape[-1] != length
    ):
        title = (
            f"`keep` says which rows of `{text_of(statement.along)}` exist: bool[batch, "
            f"{text_of(statement.along)}]"
        )
        fail("E0305", title, statement.keep.span, f"this is {describe(value)}")
    return value
