"""`scan … until all(done)`: freeze finished batch elements and end the loop when all are done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend import node_builder
from specc.frontend.context import Context
from specc.frontend.spec_values import Tensor, format_type
from specc.ir import ops
from specc.ir.graph import Value
from specc.syntax import ast

ZEROS_BY_DTYPE: Mapping[str, float | int | bool] = {"bool": False, "i64": 0, "i32": 0}
"""The value that a skipped iteration collects, by type; 0.0 for floats."""


@dataclass(frozen=True)
class EarlyExit:
    """The carried flag of finished batch elements: its index among the carries, its name."""

    place: int
    name: str
    span: Span | None

    def held(
        self, context: Context, before: Sequence[Value], after: Sequence[Value]
    ) -> list[Value]:
        """Return the carried values, unchanged for elements that were finished before."""
        # the flag before the iteration: the iteration that sets it still counts
        done = before[self.place]
        return [
            self._where(context, done, Tensor(old), Tensor(new)).value
            for old, new in zip(before, after, strict=True)
        ]

    def zero_finished(self, context: Context, done: Value, collected: Value) -> Value:
        """Return collected values with zeros for elements that were finished before."""
        dtype = collected.type.dtype
        zero = context.builder.one(ops.Constant(ZEROS_BY_DTYPE.get(dtype, 0.0), dtype))
        return self._where(context, done, Tensor(zero), Tensor(collected)).value

    def _where(self, context: Context, done: Value, yes: Tensor, no: Tensor) -> Tensor:
        mask = Tensor(done, self.span)
        # one flag per element, broadcast over its values
        for axis in range(done.type.rank, no.type.rank):
            mask = node_builder.add_node_with_one_result(
                context, ops.Insert(axis), mask, span=self.span
            )
        return node_builder.add_node_with_one_result(
            context, ops.Where(), mask, yes, no, span=self.span
        )

    def check(self, done: Tensor, others: Mapping[str, Tensor], what: str) -> None:
        """Raise E0730 for a value without the leading axes of `done`."""
        rank = done.type.rank
        for name, value in others.items():
            if value.shape[:rank] == done.shape:
                continue
            title = f"`{name}` is {what} and needs the leading axes of `{self.name}`"
            here = f"`{self.name}` is {format_type(done.type)}"
            there = f"`{name}` is {format_type(value.type)}"
            besides = [Label(value.span, there)] if value.span else []
            raise_error(
                "E0730",
                title,
                self.span,
                here,
                others=besides,
                notes=("the number of iterations depends on every element",),
                helps=[
                    f"begin the axes of `{name}` with those of `{self.name}`: an iteration "
                    f"count is `int[{', '.join(map(str, done.shape))}]`"
                ],
            )


def find_early_exit(statement: ast.Scan, starts: Mapping[str, Tensor]) -> EarlyExit | None:
    """Return the early exit of a loop with `until`; `starts` are its carries before the loop.

    Raise E0729 unless it is `all(name)` of a carried boolean tensor, E0730 if another carry
    lacks the axes of that tensor.
    """
    if statement.until is None:
        return None
    name = _get_flag_name(statement.until)
    # A value that is not carried is the same in every iteration: the loop would end at
    # once or never.
    if name not in starts:
        _raise_not_carried(statement, name)
    done = starts[name]
    if done.type.dtype != "bool":
        title = f"`until` takes a boolean tensor, but `{name}` is not"
        span, what = statement.until.span, f"this is {format_type(done.type)}"
        raise_error("E0729", title, span, what, helps=["carry a comparison: `done = p > 0.99`"])
    found = EarlyExit(list(starts).index(name), name, statement.until.span)
    found.check(done, starts, "carried")
    return found


def _get_flag_name(until: ast.Expr) -> str:
    """Return `done` from `all(done)`, or ""."""
    match until:
        case ast.Call(function=ast.Name(path="all"), args=(ast.Name(path=name),), options=()):
            return name
    return ""


def _raise_not_carried(statement: ast.Scan, name: str) -> None:
    assert statement.until is not None
    title = "`until` takes `all(…)` of a boolean tensor that the loop carries"
    what = f"`{name}` is not carried" if name else "expected the name of a carry"
    first = next(iter(statement.carry), "h")
    mend = (
        f"write `carry {first}, done until all(done)`, set `done` before the loop and "
        "update it in the body"
    )
    raise_error("E0729", title, statement.until.span, what, helps=[mend])
