"""Functions shared by the graph interpreters. The functions bind inputs, evaluate nodes, and
compute symbolic dimensions, slices and windows at run time.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NoReturn, Protocol, TypeVar

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph, Node, Value, collect_required_nodes
from specc.ir.input_shapes_and_defaults import infer_symbol_sizes
from specc.ir.types import KIND_BY_DTYPE, KIND_DESCRIPTIONS

T = TypeVar("T")


class HasShape(Protocol):
    """The protocol of objects with a shape, i.e. arrays and tensors."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of each axis."""


S = TypeVar("S", bound=HasShape)


def evaluate_live_nodes(
    graph: Graph,
    known_values: Mapping[Value, T],
    requested: Iterable[Value],
    evaluate_node: Callable[[Node, list[T | None]], T | tuple[T, ...]],
    replace_result: Callable[[Value, T], T] = lambda value, result: result,
) -> dict[Value, T]:
    """Compute the `requested` values from `known_values` (inputs and parameters). `evaluate_node`
    computes a node from its operands. `replace_result` may replace each result that is used. A
    value is freed after its last use.
    """
    values, requested = dict(known_values), tuple(requested)
    for node, used_results, freed_operands in _plan_evaluation(graph, requested):
        output = evaluate_node(node, [values[a] if a else None for a in node.args])
        outputs = output if isinstance(output, tuple) else (output,)
        values |= {r: replace_result(r, x) for r, x in zip(used_results, outputs, strict=True) if r}
        for operand in freed_operands:
            values.pop(operand, None)
    return {v: values[v] for v in requested}


# the plan is cached, because the body of a loop is evaluated once per iteration
@lru_cache(maxsize=16)
def _plan_evaluation(
    graph: Graph, requested: tuple[Value, ...]
) -> list[tuple[Node, tuple[Value | None, ...], list[Value]]]:
    """Return the nodes that `requested` depend on. Each node is paired with its results (None if
    unused) and the operands that no later node reads.
    """
    live = collect_required_nodes(requested)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    last_uses = _map_last_uses([node for node, _ in nodes], requested)
    return [
        (
            node,
            tuple(r if r in last_uses else None for r in results),
            [a for a in dict.fromkeys(node.args) if a and last_uses[a] == n],
        )
        for n, (node, results) in enumerate(nodes)
    ]


def _map_last_uses(nodes: Sequence[Node], requested: Iterable[Value]) -> dict[Value | None, int]:
    """Map each value to the index of its last user. For a requested value, the index is the number
    of nodes, because requested values are never freed.
    """
    last_uses = {a: n for n, node in enumerate(nodes) for a in node.args}
    return last_uses | dict.fromkeys(requested, len(nodes))


def bind_inputs(
    graph: Graph, inputs: Mapping[str, S], parameters: Mapping[str, S], requested: Iterable[Value]
) -> tuple[dict[Value, S], dict[str, int]]:
    """Return the array of each input and parameter, and the size of each symbolic dimension. Raise
    E0910 if a required input is missing, and E0911 or E0912 if a shape does not match.
    """
    _check_no_input_missing(graph, inputs, requested)
    bound_arrays = {value: inputs[name] for name, value in graph.inputs.items() if name in inputs}
    bound_arrays |= {value: parameters[name] for name, value in graph.parameters.items()}
    named_values = (*graph.inputs.items(), *graph.parameters.items())
    sizes = [
        (name, v.type, tuple(bound_arrays[v].shape))
        for name, v in named_values
        if v in bound_arrays
    ]
    return bound_arrays, infer_symbol_sizes(sizes, graph.length_equations, graph.min_lengths)


def _check_no_input_missing(
    graph: Graph, inputs: Container[str], requested: Iterable[Value]
) -> None:
    """Raise E0910 if `inputs` lacks an input that `requested` values or nodes depend on."""
    used_values = {a for node, _ in graph.nodes for a in node.args}.union(requested)
    for name, value in graph.inputs.items():
        if name not in inputs and value in used_values:
            names = _format_quoted(graph.inputs)
            raise_error("E0910", f"missing model input `{name}`", helps=[f"pass {names}"])


def check_input_dtype(graph: Graph, name: str, kind: str, dtype: object) -> None:
    """Raise E0910 if `graph` has no input `name`, and E0907 if the input does not accept elements
    of the kind `kind` (`f`, `i` or `b`). `dtype` is the element type in the message.
    """
    if name not in graph.inputs:
        helps = [f"expected one of {_format_quoted(graph.inputs)}"]
        raise_error("E0910", f"unknown model input `{name}`", helps=helps)
    expected_dtype = graph.inputs[name].dtype
    expected_kind = KIND_BY_DTYPE[expected_dtype]
    if kind != expected_kind and (kind, expected_kind) not in (("i", "f"), ("i", "q")):
        raise_error(
            "E0907",
            f"the input `{name}` is {dtype}, expected {KIND_DESCRIPTIONS[expected_kind]}",
            helps=[f"pass an array of {expected_dtype}"],
        )


def run_scan(
    op: ops.Scan,
    operands: Sequence[T],
    steps: int,
    *,
    slice_position: Callable[[T, int], T],
    evaluate_body: Callable[[dict[Value, T], list[Value]], Mapping[Value, T]],
    select_value: Callable[[int, T, T | None], T],
    is_all_true: Callable[[T], bool],
) -> tuple[list[T], list[list[T]]]:
    """Run a `Scan`. Return the final loop-carried values, and the scan outputs of each executed
    iteration. `select_value` returns the new value at valid positions and the old value at padded
    positions, or zeros if the old value is None.
    """
    roles, results = op.split_operands(operands), list(op.body.outputs.values())
    inputs = list(op.body.inputs.values())
    carries = list(roles.initial_carries)
    collected: list[list[T]] = [[] for _ in results[op.carry_count :]]
    initial_outputs: list[T | None] = [None] * len(collected)
    for t in reversed(range(steps)) if op.reverse else range(steps):
        # all batch elements have finished
        if (
            op.end_condition_index != -1
            and not op.unfrozen_output_count
            and is_all_true(carries[op.end_condition_index])
        ):
            break
        slices = [slice_position(x, t) for x in roles.scanned]
        body_values = evaluate_body(
            dict(zip(inputs, (*slices, *carries, *roles.captured), strict=True)), results
        )
        pairs = zip(results, (*carries, *initial_outputs), strict=True)
        next_values = [select_value(t, body_values[value], old_value) for value, old_value in pairs]
        carries = next_values[: op.carry_count]
        for outputs, x in zip(collected, next_values[op.carry_count :], strict=True):
            outputs.append(x)
    return carries, collected


def _format_quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names) or "none"


def evaluate_dim(dim: Dim, lengths: Mapping[str, int]) -> int:
    """Evaluate a symbolic dimension. Raise E0912 if the size is undefined for `lengths`."""
    try:
        return dim.evaluate(lengths)
    except DimError as error:
        known_lengths = ", ".join(
            f"{k} = {lengths[k]}" for k in sorted(dim.symbols()) if k in lengths
        )
        raise_error(
            "E0912",
            f"a length cannot be computed from the inputs: {error}",
            notes=[f"with {known_lengths}"] if known_lengths else [],
            helps=["use input lengths that satisfy the divisions of the model"],
        )


def check_index_range(min_index: int, max_index: int, bound: int, description: str) -> None:
    """Raise E0913 unless `min_index` and `max_index` are valid for an axis of size `bound`."""
    if min_index < 0 or max_index >= bound:
        invalid_index = min_index if min_index < 0 else max_index
        raise_error(
            "E0913",
            f"{description} has indices 0 to {bound - 1}, got {invalid_index}",
            helps=["check that the ids are from the tokenizer of this model"],
        )


def get_last_index(length: int) -> int:
    """Return the last index of an axis. Raise E0912 if the axis is empty."""
    if not length:
        raise_error(
            "E0912",
            "the last position of an axis of length 0 does not exist",
            helps=["pass at least one position"],
        )
    return length - 1


def compute_split_result_shape(
    op: ops.Split, shape: Sequence[int], lengths: Mapping[str, int]
) -> list[int]:
    """Return the output shape of a split. Raise E0912 if the sizes do not match the axis."""
    sizes = [evaluate_dim(n, lengths) for n in op.sizes]
    if prod(sizes) != shape[op.axis]:
        sizes_text = " · ".join(map(str, sizes))
        raise_error(
            "E0912", f"an axis of length {shape[op.axis]} cannot be split into {sizes_text}"
        )
    return [*shape[: op.axis], *sizes, *shape[op.axis + 1 :]]


def compute_merge_result_shape(op: ops.Merge, shape: Sequence[int]) -> list[int]:
    """Return the output shape of an op that merges adjacent axes."""
    end = op.axis + op.count
    return [*shape[: op.axis], prod(shape[op.axis : end]), *shape[end:]]


def resolve_slice_bounds(op: ops.Slice, length: int, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Return the start and stop of a slice of an axis. Raise E0912 for a slice out of range."""
    start, stop = evaluate_dim(op.start, lengths), evaluate_dim(op.stop, lengths)
    if not 0 <= start <= stop <= length:
        raise_error("E0912", f"slice {start}:{stop} is out of range for an axis of length {length}")
    return start, stop


def resolve_index(op: ops.Index, length: int, lengths: Mapping[str, int]) -> int:
    """Return the index of an `index` op. Raise E0912 for an index out of range."""
    index = evaluate_dim(op.index, lengths)
    if not 0 <= index < length:
        raise_error("E0912", f"index {index} is out of range for an axis of length {length}")
    return index


def resolve_top_k_count(op: ops.TopK, length: int, lengths: Mapping[str, int]) -> int:
    """Return `k` of a `top_k` op. Raise E0912 if `k` exceeds the size of the axis."""
    k = evaluate_dim(op.k, lengths)
    if not 0 <= k <= length:
        raise_error("E0912", f"top-{k} exceeds the axis length {length}")
    return k


def resolve_strided_slice_range(
    op: ops.StridedSlice, length: int, lengths: Mapping[str, int]
) -> tuple[int, int, int]:
    """Return (start, stop, step) of a strided slice. Raise E0912 for a slice out of range."""
    start, stop, step = (evaluate_dim(d, lengths) for d in (op.start, op.stop, op.step))
    if not (0 <= start <= stop <= length and step >= 1):
        raise_error(
            "E0912", f"slice {start}:{stop}:{step} is out of range for an axis of length {length}"
        )
    return start, stop, step


def evaluate_pad_amounts(op: ops.Pad, length: int, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Return the padding before and after an axis. Raise E0912 if `reflect` padding is too long."""
    before, after = (
        evaluate_dim(op.padding_before, lengths),
        evaluate_dim(op.padding_after, lengths),
    )
    # reflection does not repeat the last position, so at most `length - 1` positions can be padded
    max_padding = {"reflect": length - 1, "edge": 0 if not length else before + after}
    if min(before, after) < 0 or max(before, after) > max_padding.get(op.mode, before + after):
        raise_error(
            "E0912",
            f"cannot pad an axis of length {length} by {before} and {after} in mode {op.mode}",
        )
    return before, after


def count_image_patches(image_shape: Sequence[int], patch_shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of patches along height and width. Raise E0912 if an image size is not
    divisible by the patch size.
    """
    (*_, height, width), (*_, p, r) = image_shape, patch_shape
    if height % p or width % r:
        raise_error(
            "E0912",
            f"an image of {height} x {width} pixels cannot be divided into patches of {p} x {r}",
            helps=[f"use an image with a height divisible by {p} and a width divisible by {r}"],
        )
    return height // p, width // r


def count_windows(op: ops.SlidingWindowOp, sizes: Sequence[int]) -> list[int]:
    """Return the number of windows along each axis. Raise E0912 if an axis is too short."""
    for n, size in enumerate(sizes):
        if op.build_length_constraint(Dim.from_value(size), n).is_negative:
            raise_short_axis_error(
                size, op.get_window_extent(n) + 1 - op.padding_before[n] - op.end_padding[n]
            )
    return [
        op.compute_output_length(Dim.from_value(size), n).evaluate({})
        for n, size in enumerate(sizes)
    ]


def compute_conv_transpose_sizes(op: ops.ConvTranspose, sizes: Sequence[int]) -> list[int]:
    """Return the output sizes of a transposed convolution. Raise E0912 for a negative size."""
    counts = [
        op.compute_output_length(Dim.from_value(size), n).evaluate({})
        for n, size in enumerate(sizes)
    ]
    for size, count in zip(sizes, counts, strict=True):
        if count < 0:
            raise_error("E0912", f"{size} positions are too few: the padding removes {-count} more")
    return counts


def compute_downsampled_mask_size(op: ops.DownsamplePaddingMask, size: int) -> int:
    """Return the size of a downsampled padding mask. Raise E0912 if the mask is too short."""
    count = op.compute_output_length(Dim.from_value(size)).evaluate({})
    if count < min(size, 1):
        raise_short_axis_error(size, op.lag + 1)
    return count


def count_window_elements(
    op: ops.AveragePool, sizes: Sequence[int], counts: Sequence[int]
) -> list[list[int]]:
    """Return, for each axis, the number of positions that each window of an average pooling
    averages. `counts` are the numbers of windows.
    """
    element_counts = []
    for n, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        # `count_include_pad` counts explicit padding, but not the positions that ceil mode adds
        first, end = 0, size
        if op.count_include_pad:
            first, end = -op.padding_before[n], size + op.padding_after[n]
        starts = [t * op.stride[n] - op.padding_before[n] for t in range(count)]
        element_counts.append([min(t + op.kernel[n], end) - max(t, first) for t in starts])
    return element_counts


def raise_short_axis_error(length: int, min_length: int) -> NoReturn:
    """Raise E0912 because an axis of `length` positions is shorter than a window."""
    raise_error(
        "E0912",
        f"an axis of length {length} is shorter than the window",
        helps=[f"use at least {max(min_length, 1)} positions"],
    )


def convert_einsum_axes_to_integers(op: ops.Einsum) -> tuple[list[list[int]], list[int]]:
    """Convert einsum axis names to integers. Return the axes of the operands and of the result."""
    left, right = op.equation.split("->")
    terms = [t.split() for t in left.split(",")]
    numbers = {name: n for n, name in enumerate(dict.fromkeys(name for t in terms for name in t))}
    return [[numbers[n] for n in t] for t in terms], [numbers[n] for n in right.split()]
