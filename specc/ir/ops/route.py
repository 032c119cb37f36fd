"""Mixture of experts: `Route` sends tokens to experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.signature import AxisBindings, Signature, get_dtype_kind
from specc.ir.types import ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph, Value

__all__ = ["Route", "RouteOperands"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RouteOperands(Generic[T]):
    """Operands of a `Route`, or facts about them, by role."""

    x: T
    ids: T
    gates: T
    keep: T | None
    stacked: tuple[T, ...]
    captured: tuple[T, ...]

    @property
    def body_operands(self) -> tuple[T, ...]:
        """The body's operands, in the order of its inputs."""
        return self.x, *self.stacked, *self.captured


class Route(Op, sig="f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]", heavy=True):
    """Mixture of experts: the weighted sum of the outputs of the `k` experts of each token
    (Shazeer et al. 2017, arXiv:1701.06538, eq. 1).

    Operands: tokens, expert indices, gate weights, `keep` if `masked` (bool [*s]: padded tokens
    are not routed and give zeros), then `stacked` tensors with one slice per expert along their
    first axis, then values captured by the body. An index that is no expert contributes
    nothing; an expert that is named twice counts twice. The body is one expert. Its inputs are
    the tokens routed to it, [1, …, rows, d] with the rank of the tokens and one symbol for
    their number, its slice of each stacked tensor, and the captures; its output has one
    position per token. Positions of the body are independent.
    """

    body: "Graph"
    experts: Dim
    stacked: int
    masked: bool = False

    @property
    def first_body_operand(self) -> int:
        """The index of the first operand after those with the tokens' axes."""
        return 4 if self.masked else 3

    @property
    def token_count_symbol(self) -> str:
        """The symbol of the number of tokens routed to an expert."""
        name = self.get_body_inputs()[0].shape[-2].name
        if name is None:
            raise ShapeError("the body has no token axis")
        return name

    def get_body_inputs(self) -> "tuple[Value, ...]":
        """Return the inputs of the body: tokens, slices of stacked tensors, captures."""
        return tuple(self.body.inputs.values())

    def get_body_output(self) -> "Value":
        """Return the output of the body."""
        (value,) = self.body.outputs.values()
        return value

    def split_operands(self, given: Sequence[T]) -> RouteOperands[T]:
        """Split a per-operand list by role."""
        end = self.first_body_operand + self.stacked
        return RouteOperands(
            x=given[0],
            ids=given[1],
            gates=given[2],
            keep=given[3] if self.masked else None,
            stacked=tuple(given[self.first_body_operand : end]),
            captured=tuple(given[end:]),
        )

    def get_signature(self) -> Signature:
        """Build the rule: stacked and captured operands have their own axis names, as each token
        reads all of them.
        """
        x, *others = (v.type for v in self.get_body_inputs())
        terms = [f"{get_dtype_kind(x.dtype)}[*s d]", "i[*s k]", "f[*s k]"]
        terms += ["b[*s]"] if self.masked else []
        for n, type in enumerate(others):
            axes = ["e"] if n < self.stacked else []
            axes += [f"a{n}_{axis}" for axis in range(type.rank)]
            terms.append(f"{get_dtype_kind(type.dtype)}[{' '.join(axes)}]")
        return Signature.parse(f"{', '.join(terms)} -> f[*s o]")

    def bind_result_axes(self, axes: AxisBindings) -> None:
        axes["o"] = self.get_body_output().shape[-1]
        if self.stacked and axes["e"] != self.experts:
            title = f"{self.experts} experts, but weights for {axes['e']}"
            raise ShapeError(title, (self.first_body_operand,))

    def _check_body_inputs(self, outer: Sequence[Type]) -> None:
        """Check that the body's inputs have the types of the operands."""
        for n, (value, outside) in enumerate(zip(self.get_body_inputs(), outer, strict=True)):
            if value.type != outside:
                title = f"the body expects {value.type}, got {outside}"
                raise ShapeError(title, (n and self.first_body_operand - 1 + n,))

    def infer(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        if len(types) != len(args) or len(args) != self.first_body_operand - 1 + len(
            self.get_body_inputs()
        ):
            raise ShapeError(f"{len(args)} operands do not fit the body")
        given = self.split_operands(types)
        if given.x.rank < 2:
            raise ShapeError("routing needs a token axis", (0,))
        made = super().infer(*args)
        ones = (Dim.of(1),) * (given.x.rank - 2)
        rows = (*ones, Dim.symbol(self.token_count_symbol))
        outer = [
            Type(given.x.dtype, (*rows, given.x.shape[-1])),
            *(Type(t.dtype, t.shape[1:]) for t in given.stacked),
            *given.captured,
        ]
        self._check_body_inputs(outer)
        result = self.get_body_output().type
        if result != Type(made[0].dtype, (*rows, result.shape[-1])):
            raise ShapeError(f"the body returns {result} for tokens {list(map(str, rows))}")
        return made
