"""Base class of ops, named operands, and tables with one rule per op class.

An op class names the operands that passes use:

    class Share(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
        scores, mask = Operand(0), Operand(1)

`Share.mask(node)` is the value, `Share.mask.of(facts)` the entry of a
per-operand list, `Share.mask.place` its index. A test compares places and kinds with
the signature.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, dataclass_transform

from specc.ir.dim import Dim
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc.ir.graph import Node, Value


OPS_BY_NAME: dict[str, type["Op"]] = {}
"""Every operation by its printed name. Complete once `specc.ir.ops` is imported."""


@dataclass_transform(frozen_default=True)
class Op:
    """One operation: a final frozen dataclass of compile-time attributes. `heavy` ops are never
    recomputed in a derived graph; a `view` costs nothing to recompute.
    """

    name: ClassVar[str]
    signature: ClassVar[Signature]
    heavy: ClassVar[bool]
    view: ClassVar[bool]

    def __init_subclass__(cls, *, sig: str, heavy: bool = False, view: bool = False) -> None:
        dataclass(frozen=True)(cls)
        cls.name = re.sub(
            r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__
        ).lower()
        cls.signature = Signature.parse(sig)
        cls.heavy, cls.view = heavy, view
        assert cls.name not in OPS_BY_NAME, f"two ops are called {cls.name}"
        OPS_BY_NAME[cls.name] = cls

    def get_signature(self) -> Signature:
        """Return the shape rule; overridden by ops whose rule depends on attributes."""
        return self.signature

    def count_leading_axes(self) -> int | None:
        """Return the number of axes in the first of two spreads."""
        axis: int | None = self.__dict__.get("axis")
        return axis

    def infer(self, *args: Type | None) -> tuple[Type, ...]:
        """Infer result types when a node is built, and again in the verifier."""
        rule = self.get_signature()
        axes = rule.bind_axes(args, self.count_leading_axes())
        self.bind_result_axes(axes)
        return rule.build_results(axes)

    def bind_result_axes(self, axes: AxisBindings) -> None:
        """Bind the result axes the rule leaves open; check what it cannot say."""

    def get_attributes(self) -> dict[str, object]:
        """Return the compile-time attributes by name, in order."""
        return {f.name: self.__dict__[f.name] for f in fields(self)}  # type: ignore[arg-type]

    def iterate_lengths(self) -> Iterator[Dim]:
        """Yield the lengths among the attributes, those in tuples included."""
        for value in self.get_attributes().values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Dim):
                    yield part

    def map_attributes(self, transform: Callable[[object], object]) -> "Op":
        """Return the op with `transform` applied to every attribute."""
        made: Op = type(self)(**{k: transform(v) for k, v in self.get_attributes().items()})
        return made


F = TypeVar("F", bound=Callable[..., object])


@dataclass
class OpRuleTable(Generic[F]):
    """`@rules` adds a rule for the op that the function's first parameter, `op`, is annotated with;
    `rules[op]` finds it, by exact class.
    """

    backend: str
    rules: dict[type[Op], F] = field(default_factory=dict)

    def __call__(self, rule: F) -> F:
        """Register the decorated function."""
        self.add_rules({get_annotations(rule)["op"]: rule})
        return rule

    def add_rules(self, rules: Mapping[type[Op], F]) -> None:
        """Register several rules. A second rule for the same op is a bug."""
        for op, rule in rules.items():
            assert op not in self.rules, f"{self.backend} has two rules for {op.name}"
            self.rules[op] = rule

    def __getitem__(self, op: Op) -> F:
        return self.rules[type(op)]


T = TypeVar("T")


@dataclass(frozen=True)
class Operand:
    """An operand that every node has."""

    index: int

    def __call__(self, node: "Node") -> "Value":
        """Return the value."""
        return node.get_operand(self.index)

    def select(self, per_operand: Sequence[T]) -> T:
        """Return the entry for this operand of a per-operand list."""
        return per_operand[self.index]


@dataclass(frozen=True)
class OptionalOperand:
    """An operand that a node may lack: None, or beyond the given ones."""

    index: int

    def __call__(self, node: "Node") -> "Value | None":
        """Return the value, or None."""
        return self.select(node.args)

    def select(self, per_operand: Sequence[T | None]) -> T | None:
        """Return the entry for this operand of a per-operand list, or None."""
        return per_operand[self.index] if self.index < len(per_operand) else None
