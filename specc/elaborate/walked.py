"""What a `scan` walks over: the rows of an axis, or the numbers of its turns; and which
of them exist.
"""

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
    if not statement.along:
        turns = _turns(context, statement, env)
        return [nodes.one(context, ops.Range(turns), span=statement.span)], turns
    length = _length(statement, env)
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


def _length(statement: tree.Scan, env: Env) -> Dim | None:
    """The length of the axis that is walked along; None where the name is that of a
    value that is no length.
    """
    length = env.dims.get(statement.along)
    if length is not None:
        return length
    value = env.names.get(statement.along)
    if value is None:  # declared by `dims`, or unknown: then it is in no tensor's type
        return Dim.symbol(statement.along)
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
        title = f"`{statement.along}` is no axis of what `scan` walks over"
        fail("E0304", title, expr.span, f"this is {show_type(value.type)}")
    return value


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
            f"`keep` says which rows of `{statement.along}` exist: bool[batch, "
            f"{statement.along}]"
        )
        fail("E0305", title, statement.keep.span, f"this is {describe(value)}")
    return value
