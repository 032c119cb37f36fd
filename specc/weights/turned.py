"""Matrices that a checkpoint stores the other way round, left as they lie there.

A spec that wants `[out, in]` loads them with `transpose`; a model that reads them as
`[in, out]` needs no second copy of them.
"""

from collections.abc import Collection
from dataclasses import replace

from specc.weights.transform import Expr, Transpose
from specc.weights.values import Binding, Bound


def turned_in_files(binding: Binding) -> frozenset[str]:
    """The parameters that are whole matrices of a file turned over, and no other's too."""
    # the partner of a tied weight reads it in the order that its own spec says
    shared = {b.tied_to for b in binding.bound.values() if b.tied_to is not None}
    return frozenset(
        name
        for name, bound in binding.bound.items()
        if name not in shared and _turned(binding, bound) is not None
    )


def _turned(binding: Binding, bound: Bound) -> Expr | None:
    """What is turned over, where that lies in a file as it is."""
    expr = bound.expr
    if not isinstance(expr, Transpose) or len(bound.wanted.shape) != 2:
        return None
    # an identity, and a row as a column, are bytes of the file already
    if expr.axes == (0, 1) or binding.in_file(expr) is not None:
        return None
    return expr.x if binding.in_file(expr.x) is not None else None


def as_they_lie(binding: Binding, names: Collection[str]) -> Binding:
    """The same with these parameters, of `turned_in_files`, in the order of the file."""
    bound = dict(binding.bound)
    for name in names:
        one = bound[name]
        stored = replace(one.wanted, shape=one.wanted.shape[::-1])
        bound[name] = replace(one, wanted=stored, expr=_turned(binding, one))
    return replace(binding, bound=bound)
