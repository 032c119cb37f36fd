"""Prove that loop iterations at padded positions do not change loop-carried values.

A loop without a padding mask also executes iterations at padded positions. An iteration at a padded
position has no effect if it keeps every loop-carried value, as in `h = where(k, f(h, r), h)` with a
scanned mask `k`. Leading padding has no effect on later positions if all loop-carried values keep
their constant initial values until the first valid position, as in `h = 0.5 * h + r` with `h = 0`
and `r = 0`.

The body of a loop may read all positions of a captured value, as in attention to the encoder.
Therefore, iterations at valid positions are analyzed like the body of a loop along another axis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from specc.analysis.padding_constants import fold_constants
from specc.analysis.padding_facts import (
    NO_PADDING_FACTS,
    PaddedUse,
    PaddingFacts,
    merge_padding_facts,
    shift_fact_axes,
)
from specc.analysis.padding_zeros import is_zero_preserving
from specc.analysis.time_dependence_and_unsupported_loops import inline_loop_captures
from specc.analysis.value_ranges import find_splat_value
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value

KnownValue: TypeAlias = float | Value
"""A constant or a loop-carried value that equals another value."""

FINITE_RESULT_FUNCTIONS = ("abs", "cos", "exp", "neg", "relu", "sigmoid", "silu", "sin", "tanh")
"""`Pointwise` functions that are finite for finite operands, except for overflow."""

FINITE_RESULT_OPS = (ops.Linear, ops.Concat, ops.Where, ops.Compare, ops.Cast, ops.Not, ops.And)
"""Ops whose results are finite for finite operands, except for overflow."""


InferBody: TypeAlias = Callable[[Graph, Mapping[Value, PaddingFacts]], Mapping[Value, PaddingFacts]]
"""A function that infers the padding properties of all values in a loop body from those of its
inputs.
"""


def infer_loop_facts(
    node: Node, op: ops.Scan, operand_facts: Sequence[PaddingFacts], infer_body: InferBody
) -> tuple[Graph, list[PaddingFacts], list[PaddingFacts]]:
    """Return the body of a loop with inlined captures, and the padding properties of the outputs
    and the loop-carried values. The properties of loop-carried values are computed as a fixpoint.
    """
    parts, body = op.split_operands(operand_facts), inline_loop_captures(node, op)
    scanned_facts = [shift_fact_axes(r, op.axis, -1) for r in parts.scanned]
    carries = list(parts.initial_carries)
    inputs, outputs = list(body.inputs.values()), list(body.outputs.values())
    while True:
        body_facts = infer_body(body, dict(zip(inputs, (*scanned_facts, *carries), strict=True)))
        output_facts = [body_facts.get(v, NO_PADDING_FACTS) for v in outputs]
        next_carries = [
            merge_padding_facts(old, new)
            for old, new in zip(carries, output_facts[: op.carry_count], strict=True)
        ]
        if next_carries == carries:
            return body, carries, output_facts
        carries = next_carries


def is_masked_loop_padding_invariant(
    node: Node,
    operand_facts: Sequence[PaddingFacts],
    padded_lengths: frozenset[Dim],
    infer_body: InferBody,
) -> bool:
    """Return True if padding does not affect a loop along the padded axis. The loop must skip
    padded positions, padding must not affect iterations at valid positions, and results of the loop
    body must be finite along padded axes.
    """
    op = node.op
    if not isinstance(op, ops.Scan) or not op.has_mask or 1 not in operand_facts[0].zero_pad_axes:
        return False
    scanned = operand_facts[: op.first_body_operand_index + op.scanned_count]
    if any(facts.depends_on_padding_amount or facts.has_reordered_axis for facts in scanned):
        return False
    body, carries, outputs = infer_loop_facts(node, op, operand_facts, infer_body)
    shapes = [v.shape for v in body.outputs.values()]
    results = zip((*carries, *outputs), (*shapes[: op.carry_count], *shapes), strict=True)
    return all(
        _is_unaffected_result(facts, is_padded=not padded_lengths.isdisjoint(shape))
        for facts, shape in results
    )


def _is_unaffected_result(facts: PaddingFacts, *, is_padded: bool) -> bool:
    """Return True if padding does not affect a result of a loop body and the result has no masked
    fill values. If `is_padded` is True, the result must also be finite at padded positions.
    """
    is_affected = (
        facts.padding_source or facts.depends_on_padding_amount or facts.has_reordered_axis
    )
    is_finite = facts.is_finite and not facts.has_masked_fill_at_padding
    return not (is_affected or facts.has_masked_fill) and (is_finite or not is_padded)


def is_loop_state_padding_invariant(use: PaddedUse) -> bool:
    """Return True if `use` is a dependence of a loop along the padded axis, and iterations at
    padded positions do not change the loop-carried values on which the result depends.
    """
    op = use.op
    if not isinstance(op, ops.Scan) or op.end_condition_index >= 0 or use.is_merged:
        return False
    if not reads_loop_axis(use):
        return False
    carries = op.split_body_inputs().initial_carries
    if _evaluate_carries(use, op, carries) == list(carries):
        return True
    initial_numbers = map(find_splat_value, op.split_operands(use.node.args).initial_carries)
    numbers = [n for n in initial_numbers if n is not None]
    if len(numbers) < len(carries) or use.has_interior_padding:
        return False
    is_final = use.dependence.result < op.carry_count
    is_before_valid = use.padding_side == ("right" if op.reverse else "left")
    return (is_before_valid or not is_final) and _evaluate_carries(use, op, numbers) == numbers


def reads_loop_axis(use: PaddedUse) -> bool:
    """Return True if a dependence of a loop reads the axis along which the loop runs."""
    op = use.op
    assert isinstance(op, ops.Scan), "a dependence of a loop"
    if op.has_mask and use.dependence.operand == 0:
        return use.axis == 1
    is_scanned = use.dependence.operand < op.first_body_operand_index + op.scanned_count
    return is_scanned and use.axis == op.axis


def _evaluate_carries(
    use: PaddedUse, op: ops.Scan, states: Iterable[KnownValue]
) -> list[KnownValue | None]:
    """Evaluate one iteration at a padded position with the loop-carried values `states`. Return the
    new loop-carried values, or None for unknown values.
    """
    inner, outer = op.split_body_inputs(), op.split_operands(use.operand_facts)
    numbers = [facts.get_padding_value(op.axis) for facts in outer.scanned]
    numbers += map(find_splat_value, op.split_operands(use.node.args).captured)
    known_values: dict[Value, KnownValue] = dict(zip(inner.initial_carries, states, strict=True))
    inputs = (*inner.scanned, *inner.captured)
    known_values |= {v: n for v, n in zip(inputs, numbers, strict=True) if n is not None}
    operand_facts = zip(inputs, (*outer.scanned, *outer.captured), strict=True)
    finite_values = {*inner.initial_carries, *(v for v, facts in operand_facts if facts.is_finite)}
    for node, results in op.body.nodes:
        known_value = _infer_known_value(node, results[0], known_values, finite_values)
        if known_value is not None:
            known_values[results[0]] = known_value
        if known_value is not None or _is_finite(node, finite_values):
            finite_values.add(results[0])
    return [known_values.get(v) for v in op.get_next_carries()]


def _is_finite(node: Node, finite_values: set[Value]) -> bool:
    """Return True if the result of a node is finite because all operands are finite."""
    match node.op:
        case ops.Pointwise(function_name):
            is_finite_op = function_name in FINITE_RESULT_FUNCTIONS
        case ops.Arith(function_name):
            is_finite_op = function_name in ("add", "sub", "mul", "max", "min")
        case _:
            is_finite_op = node.op.is_view or isinstance(
                node.op, (*FINITE_RESULT_OPS, ops.Constant)
            )
    return is_finite_op and finite_values.issuperset(node.operands)


def _infer_known_value(
    node: Node, value: Value, known_values: Mapping[Value, KnownValue], finite_values: set[Value]
) -> KnownValue | None:
    """Return the constant or loop-carried value that equals a result, or None if unknown."""
    uniform = find_splat_value(value)
    if uniform is not None:
        return uniform
    operands = [known_values.get(a) if a else None for a in node.args]
    known_value: KnownValue | None = None
    match node.op:
        case ops.Where() if isinstance(operands[0], float):
            known_value = operands[1] if operands[0] else operands[2]
        case ops.Arith(function_name):
            known_value = _find_neutral_result(node, function_name, operands, finite_values)
    if isinstance(known_value, Value) and known_value.type != value.type:
        return None  # the op broadcasts the operand
    return _infer_number(node, operands) if known_value is None else known_value


def _find_neutral_result(
    node: Node, function_name: str, operands: list[KnownValue | None], finite_values: set[Value]
) -> KnownValue | None:
    """Return the result of an arithmetic op whose operand is an identity or absorbs the other: a
    product with zero or one, a quotient by one, or a sum with zero. Return None for other operands.
    """
    for operand, other in ((1, 0), (0, 1)):
        match function_name, operands[operand]:
            case "mul", 0.0 if node.args[other] in finite_values:
                return 0.0
            case ("mul", 1.0) | ("add", 0.0):
                return operands[other]
            case ("div", 1.0) | ("sub", 0.0) if operand == 1:
                return operands[0]
    return None


def _infer_number(node: Node, operands: list[KnownValue | None]) -> float | None:
    """Return the constant to which a result is equal if all operands are constants, or None."""
    if operands[:1] == [0.0] and is_zero_preserving(node):
        return 0.0
    numbers = [n for n in operands if isinstance(n, float)]
    if len(numbers) < max(1, len(node.operands)):
        return None
    if isinstance(node.op, ops.Concat):
        return numbers[0] if len(set(numbers)) == 1 else None
    return fold_constants(node.op, numbers)


def find_right_padded_masks(graph: Graph) -> frozenset[str]:
    """Return the names of right-padded masks that a recurrent layer or loop reads. The ONNX op's
    input `sequence_lens` is the number of true positions in such a mask.
    """
    masks = {v: n for n, v in graph.inputs.items() if graph.input_facts[n].padding_side == "right"}
    read_values: set[Value | None] = set()
    for node, _ in graph.nodes:
        match node.op:
            case ops.RecurrentLayer() | ops.QuantizedLstm():
                read_values.update(node.args)
            case ops.Scan(has_mask=True):
                read_values.add(node.first_operand)
    return frozenset(name for mask, name in masks.items() if mask in read_values)
