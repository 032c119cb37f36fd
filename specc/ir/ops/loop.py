"""The run-time loop `Scan`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph, Node, Value

_T = TypeVar("_T")


@immutable_dataclass
class LoopOperands(Generic[_T]):
    """The operands of a loop, or the entries of a per-operand list, grouped by role. `keep` is the
    padding mask, and the `captured` values are loop-invariant.
    """

    keep: _T | None
    scanned: tuple[_T, ...]
    initial_carries: tuple[_T, ...]
    captured: tuple[_T, ...]

    @property
    def stacked_operands(self) -> tuple[_T, ...]:
        """Stacked operands, such as the weights of a mixture of experts. The body reads one slice
        of each stacked operand. A loop has no stacked operands.
        """
        return ()

    @property
    def body_operands(self) -> tuple[_T, ...]:
        """The operands that become inputs of the body, in the order of these inputs."""
        return *self.scanned, *self.initial_carries, *self.captured


class Scan(Op, sig="a[*s]... -> a[*t]", is_compute_intensive=True):
    """A loop over one axis, with loop-carried values.

    The operands are `keep` (bool [b, t]) if `has_mask` is True, the scanned tensors, the initial
    loop-carried values, and the captured values. The loop runs along axis `axis` of the scanned
    tensors. The body's inputs are the current slice of each scanned tensor, the loop-carried values
    and the captures. The body's outputs are the next loop-carried values and the scan outputs. The
    results are the final loop-carried values, and the scan outputs stacked along axis `axis`. Where
    `keep` is false, the loop-carried values are unchanged and the scan outputs are zero. If
    `reverse` is True, the loop starts at the last position. If `end_condition_index` is not -1, the
    loop-carried value with that index is a boolean end condition. The loop ends as soon as all
    elements of the end condition are true, possibly before the first iteration. Scan outputs of the
    remaining iterations are zero. For a batch element whose end condition is true, the body must
    not change loop-carried values and must output zeros. Therefore, the results do not depend on
    the number of iterations. The last `unfrozen_output_count` scan outputs are exceptions: they are
    computed in every iteration, because later positions use these outputs.
    """

    body: "Graph"
    scanned_count: int
    carry_count: int
    axis: int
    reverse: bool = False
    has_mask: bool = False
    end_condition_index: int = -1
    unfrozen_output_count: int = 0

    @property
    def first_body_operand_index(self) -> int:
        """The index of the first operand that is an input of the body, i.e. the first operand after
        `keep`.
        """
        return 1 if self.has_mask else 0

    def split_operands(self, items: Sequence[_T]) -> LoopOperands[_T]:
        """Group the entries of a per-operand list by role (mask, scanned, initial, captured)."""
        scanned_end = self.first_body_operand_index + self.scanned_count
        carries_end = scanned_end + self.carry_count
        return LoopOperands(
            items[0] if self.has_mask else None,
            tuple(items[self.first_body_operand_index : scanned_end]),
            tuple(items[scanned_end:carries_end]),
            tuple(items[carries_end:]),
        )

    def split_body_inputs(self) -> "LoopOperands[Value]":
        """Group the inputs of the body by role."""
        inputs = tuple(self.body.inputs.values())
        carries_end = self.scanned_count + self.carry_count
        scanned, carries = inputs[: self.scanned_count], inputs[self.scanned_count : carries_end]
        return LoopOperands(None, scanned, carries, inputs[carries_end:])

    def map_captured_inputs(self, items: Sequence[_T]) -> "dict[Value, _T]":
        """Map each captured input of the body to its entry in a per-operand list."""
        captured = self.split_operands(items).captured
        return dict(zip(self.split_body_inputs().captured, captured, strict=True))

    def get_next_carries(self) -> "tuple[Value, ...]":
        """Return the body outputs with the next loop-carried values."""
        return tuple(self.body.outputs.values())[: self.carry_count]

    def get_scan_outputs(self) -> "tuple[Value, ...]":
        """Return the scan outputs of the body."""
        return tuple(self.body.outputs.values())[self.carry_count :]

    def get_first_scanned_operand(self, node: "Node") -> "Value":
        """Return the first scanned operand. All scanned operands have the same scan axis size."""
        value = node.args[self.first_body_operand_index]
        assert value is not None, "a scan has no optional operands"
        return value

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        assert len(types) == len(args), "a scan has no optional operands"
        roles = self.split_operands(types)
        length = self._find_trip_count(roles.scanned)
        body_input_types = [v.type for v in self.body.inputs.values()]
        slice_types = tuple(remove_axis(r, self.axis) for r in roles.scanned)
        body_operand_types = replace(roles, scanned=slice_types).body_operands
        operands = range(self.first_body_operand_index, len(args))
        check_body_input_types(self.body, body_operand_types, operands)
        body_output_types = [v.type for v in self.body.outputs.values()]
        carry_types = body_input_types[self.scanned_count : self.scanned_count + self.carry_count]
        _check_loop_carried_types(carry_types, body_output_types)
        self._check_end_condition(carry_types)
        stacked_types = (
            Type(t.dtype, (*t.shape[: self.axis], length, *t.shape[self.axis :]))
            for t in body_output_types[self.carry_count :]
        )
        return (*body_output_types[: self.carry_count], *stacked_types)

    def _check_end_condition(self, carry_types: Sequence[Type]) -> None:
        """Raise ShapeError unless `end_condition_index` is -1 or the index of a boolean value."""
        scan_output_count = len(self.body.outputs) - self.carry_count
        if (
            not 0
            <= self.unfrozen_output_count
            <= (0 if self.end_condition_index == -1 else scan_output_count)
        ):
            raise ShapeError(
                f"this loop has fewer than {self.unfrozen_output_count} unfrozen scan outputs"
            )
        if self.end_condition_index == -1:
            return
        if not 0 <= self.end_condition_index < self.carry_count:
            raise ShapeError(
                f"the end condition must be a loop-carried value, got {self.end_condition_index}"
            )
        if carry_types[self.end_condition_index].dtype != "bool":
            raise ShapeError(
                f"the end condition must be boolean, got {carry_types[self.end_condition_index]}"
            )

    def _find_trip_count(self, scanned_types: Sequence[Type]) -> Dim:
        """Return the trip count: the size of the scan axis, which is equal in all scanned
        operands.
        """
        length = scanned_types[0].shape[self.axis]
        for n, scanned_type in enumerate(scanned_types):
            other_length = scanned_type.shape[self.axis]
            if other_length != length:
                title = f"the scanned axes have different lengths, {length} and {other_length}"
                operands = self.first_body_operand_index, self.first_body_operand_index + n
                raise ShapeError(title, operands, (length, other_length))
        return length


def check_body_input_types(
    body: "Graph", operand_types: Sequence[Type], operand_indices: Iterable[int]
) -> None:
    """Raise ShapeError if a body input and its operand have different types. `operand_indices` are
    the operand indices that correspond to `operand_types`.
    """
    for value, operand_type, n in zip(
        body.inputs.values(), operand_types, operand_indices, strict=True
    ):
        if value.type != operand_type:
            raise ShapeError(f"the body expects {value.type}, got {operand_type}", (n,))


def _check_loop_carried_types(initial_types: Sequence[Type], next_types: Sequence[Type]) -> None:
    """Raise ShapeError if an iteration changes the type of a loop-carried value."""
    for initial_type, next_type in zip(initial_types, next_types, strict=False):
        if initial_type != next_type:
            types = f"{initial_type} before the iteration, but {next_type} after it"
            raise ShapeError(f"the loop-carried value has type {types}")


def remove_axis(type: Type, axis: int) -> Type:
    """Return the type of a slice along `axis`, which is `type` without this axis."""
    return Type(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))


def iterate_all_nodes(graph: "Graph") -> Iterator[tuple["Node", tuple["Value", ...]]]:
    """Yield the nodes of a graph and of its loop bodies, with their results."""
    for node, results in graph.nodes:
        yield node, results
        if isinstance(node.op, Scan):
            yield from iterate_all_nodes(node.op.body)
