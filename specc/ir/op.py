"""The base class of ops, named operands, and rule tables that dispatch on the op class.

An op class declares names for the operands that passes read, for example:

    class MaskedSoftmax(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
        scores, mask = Operand(0), Operand(1)

`MaskedSoftmax.mask(node)` returns a node's mask, `MaskedSoftmax.mask.get_entry(list)` returns the
mask's entry in a per-operand list, and `MaskedSoftmax.mask.index` is the mask's operand index. A
test compares operand indices and kinds with the signature.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, dataclass_transform

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc.ir.graph import Node, Value


OPS_BY_NAME: dict[str, type["Op"]] = {}
"""All op classes, keyed by name in the textual IR. Importing `specc.ir.ops` registers all ops."""


@dataclass_transform(frozen_default=True)
class Op:
    """Base class of ops. Ops are immutable, and their fields are compile-time attributes. If
    `is_compute_intensive` is True, derived graphs never recompute the op. If `is_view` is True, the
    op copies no data. If `is_elementwise` is True, each position of a result depends only on the
    same position of the operands. If `is_selection` is True, results are elements of the first
    operand and the indices of these elements. `spec_name` is the name of the op in specs.
    """

    name: ClassVar[str]
    spec_name: ClassVar[str]
    signature: ClassVar[Signature]
    is_compute_intensive: ClassVar[bool]
    is_view: ClassVar[bool]
    is_elementwise: ClassVar[bool]
    is_selection: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        sig: str,
        is_compute_intensive: bool = False,
        is_view: bool = False,
        is_elementwise: bool = False,
        is_selection: bool = False,
        spec_name: str = "",
    ) -> None:
        immutable_dataclass(slots=False)(cls)
        cls.name = re.sub(
            r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__
        ).lower()
        cls.spec_name = spec_name or cls.name
        cls.signature = Signature.parse(sig)
        cls.is_compute_intensive, cls.is_view = is_compute_intensive, is_view
        cls.is_elementwise, cls.is_selection = is_elementwise, is_selection
        assert cls.name not in OPS_BY_NAME, f"two ops have the name {cls.name}"
        OPS_BY_NAME[cls.name] = cls

    def get_signature(self) -> Signature:
        """Return the signature. Ops whose signature depends on attributes override this method."""
        return self.signature

    def count_leading_axes(self) -> int | None:
        """Return the number of axes before axis `axis`, or None if the op has no such attribute."""
        axis: int | None = self.__dict__.get("axis")
        return axis

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        """Return the result types for operands of the types `args` (None for an absent operand).
        Raise ShapeError if the operands are invalid. The builder and the verifier call this method
        for every node.
        """
        signature = self.get_signature()
        axes = signature.bind_axes(args, self.count_leading_axes())
        self.infer_result_axes(axes)
        return signature.build_results(axes)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        """Set the sizes of the result axes that the signature does not determine. Raise ShapeError
        if the operands violate a constraint that the signature cannot express.
        """

    def get_attributes(self) -> dict[str, object]:
        """Return the compile-time attributes, keyed by name, in declaration order."""
        return {f.name: self.__dict__[f.name] for f in fields(self)}  # type: ignore[arg-type]

    def iterate_attribute_dims(self) -> Iterator[Dim]:
        """Yield the dimensions among the attributes, including dimensions in tuples."""
        for value in self.get_attributes().values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Dim):
                    yield part

    def map_attributes(self, transform: Callable[[object], object]) -> "Op":
        """Return a copy of the op with `transform` applied to every attribute."""
        op: Op = type(self)(**{k: transform(v) for k, v in self.get_attributes().items()})
        return op


F = TypeVar("F", bound=Callable[..., object])


@dataclass
class OpRuleTable(Generic[F]):
    """A dispatch table from op classes to functions. The decorator `@rules` of a table `rules`
    registers a function for the op class in the annotation of the parameter `op`. `rules[op]`
    returns the function for the exact class of `op`.
    """

    backend: str
    rules: dict[type[Op], F] = field(default_factory=dict)

    def __call__(self, rule: F) -> F:
        """Register the decorated function for the op class that annotates its parameter `op`."""
        self.add_rules({get_annotations(rule)["op"]: rule})
        return rule

    def add_rules(self, rules: Mapping[type[Op], F]) -> None:
        """Register the functions of several op classes. An op class may have only one function per
        table.
        """
        for op, rule in rules.items():
            assert op not in self.rules, f"{self.backend} has two rules for {op.name}"
            self.rules[op] = rule

    def __getitem__(self, op: Op) -> F:
        return self.rules[type(op)]


T = TypeVar("T")


@immutable_dataclass
class Operand:
    """A required operand of an op class, with its operand index."""

    index: int

    def __call__(self, node: "Node") -> "Value":
        """Return the value of this operand in `node`."""
        return node.get_operand(self.index)

    def get_entry(self, entries: Sequence[T]) -> T:
        """Return this operand's entry in a per-operand list."""
        return entries[self.index]


@immutable_dataclass
class OptionalOperand:
    """An optional operand of an op class. An absent operand is None. Trailing absent operands may
    be omitted.
    """

    index: int

    def __call__(self, node: "Node") -> "Value | None":
        """Return the value of the operand in `node`, or None if the operand is absent."""
        return self.get_entry(node.args)

    def get_entry(self, entries: Sequence[T | None]) -> T | None:
        """Return the operand's entry in a per-operand list, or None if the operand is omitted."""
        return entries[self.index] if self.index < len(entries) else None
