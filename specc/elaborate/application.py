"""One call while it is worked out: what is applied to what, and where."""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.elaborate.context import Env
from specc.elaborate.values import Function
from specc.lang import tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Something that is called with arguments.

    `expr` is the call as written; of `apply(f, x)` the arguments are those behind `f`.
    They are evaluated in `caller`. `inner` is the same place under the weight scope
    that the call opens by `@`.
    """

    target: Function
    expr: tree.Call
    args: Sequence[tree.Expr]
    caller: Env
    inner: Env

    @property
    def options(self) -> Sequence[tree.Option]:
        """What is given by name."""
        return self.expr.options

    @property
    def own_scope(self) -> str:
        """The scope of weights that this call opens; empty where it has no `@`."""
        return self.inner.scope if self.target.weights or self.expr.weights else ""
