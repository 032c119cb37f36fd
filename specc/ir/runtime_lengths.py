"""Evaluation of lengths, slices and windows at run time, with checks that they are valid for the
lengths of the inputs.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim, DimError


def evaluate_length(dim: Dim, lengths: Mapping[str, int]) -> int:
    """Evaluate a length. Raise E0912 if the length is undefined for these inputs."""
    try:
        return dim.evaluate(lengths)
    except DimError as error:
        known = ", ".join(f"{k} = {lengths[k]}" for k in sorted(dim.symbols()) if k in lengths)
        raise_error(
            "E0912",
            f"these inputs leave a length without a value: {error}",
            notes=[f"with {known}"] if known else [],
            helps=["use input lengths that the model can divide"],
        )


def check_index_range(min_index: int, max_index: int, bound: int, description: str) -> None:
    """Raise E0913 unless `min_index` and `max_index` are valid indices of a table with `bound`
    entries.
    """
    if min_index < 0 or max_index >= bound:
        wrong = min_index if min_index < 0 else max_index
        raise_error(
            "E0913",
            f"{description} has rows 0 to {bound - 1}, got index {wrong}",
            helps=["check the ids, and that they come from the tokenizer of this model"],
        )


def evaluate_last_index(length: int) -> int:
    """Return the last index of an axis. Raise E0912 if the axis is empty."""
    if not length:
        raise_error(
            "E0912",
            "the last position of an empty axis is read",
            helps=["pass at least one position"],
        )
    return length - 1


def evaluate_split_shape(
    op: ops.Split, shape: Sequence[int], lengths: Mapping[str, int]
) -> list[int]:
    """Return the output shape of `op`. Raise E0912 if the sizes do not match the axis."""
    sizes = [evaluate_length(n, lengths) for n in op.sizes]
    if prod(sizes) != shape[op.axis]:
        parts = " · ".join(map(str, sizes))
        raise_error("E0912", f"an axis of length {shape[op.axis]} cannot be split into {parts}")
    return [*shape[: op.axis], *sizes, *shape[op.axis + 1 :]]


def compute_merged_shape(op: ops.Merge, shape: Sequence[int]) -> list[int]:
    """Return the output shape of `op`."""
    end = op.axis + op.count
    return [*shape[: op.axis], prod(shape[op.axis : end]), *shape[end:]]


def evaluate_slice(op: ops.Slice, length: int, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Return `start` and `stop`. Raise E0912 if they are out of range."""
    start, stop = evaluate_length(op.start, lengths), evaluate_length(op.stop, lengths)
    if not 0 <= start <= stop <= length:
        raise_error("E0912", f"slice {start}:{stop} is out of range for an axis of length {length}")
    return start, stop


def evaluate_index(op: ops.Index, length: int, lengths: Mapping[str, int]) -> int:
    """Return the index. Raise E0912 if it is out of range."""
    at = evaluate_length(op.index, lengths)
    if not 0 <= at < length:
        raise_error("E0912", f"index {at} is out of range for an axis of length {length}")
    return at


def evaluate_top_k(op: ops.TopK, length: int, lengths: Mapping[str, int]) -> int:
    """Return `k`. Raise E0912 if it exceeds the axis."""
    k = evaluate_length(op.k, lengths)
    if not 0 <= k <= length:
        raise_error("E0912", f"top-{k} of an axis of length {length}")
    return k


def evaluate_stride(
    op: ops.StridedSlice, length: int, lengths: Mapping[str, int]
) -> tuple[int, int, int]:
    """Return `start`, `stop` and `step`. Raise E0912 if they are out of range."""
    start, stop, step = (evaluate_length(d, lengths) for d in (op.start, op.stop, op.step))
    if not (0 <= start <= stop <= length and step >= 1):
        raise_error(
            "E0912", f"slice {start}:{stop}:{step} is out of range for an axis of length {length}"
        )
    return start, stop, step


def evaluate_padding(op: ops.Pad, length: int, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Return the padding before and after the axis. Raise E0912 if the axis is too short for the
    mode.
    """
    before, after = (
        evaluate_length(op.padding_before, lengths),
        evaluate_length(op.padding_after, lengths),
    )
    # reflection does not repeat the last position, so it can pad at most `length - 1` positions
    most = {"reflect": length - 1, "edge": 0 if not length else before + after}
    if min(before, after) < 0 or max(before, after) > most.get(op.mode, before + after):
        raise_error(
            "E0912",
            f"cannot pad an axis of length {length} by {before} and {after} in mode {op.mode}",
        )
    return before, after


def evaluate_patch_counts(image: Sequence[int], patch: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of patches along height and width. Raise E0912 if the image size is not
    divisible by the patch size.
    """
    (*_, high, wide), (*_, p, r) = image, patch
    if high % p or wide % r:
        raise_error(
            "E0912",
            f"an image of {high} x {wide} pixels cannot be divided into patches of {p} x {r}",
            helps=[f"use an image with a height divisible by {p} and a width divisible by {r}"],
        )
    return high // p, wide // r


def count_windows(op: ops.SlidingWindowOp, sizes: Sequence[int]) -> list[int]:
    """Count the windows along each axis. Raise E0912 if an axis is too short."""
    for n, size in enumerate(sizes):
        if (op.compute_spare_length(Dim.from_value(size), n).number or 0) < 0:
            raise_axis_too_short(
                size, op.get_window_extent(n) + 1 - op.padding_before[n] - op.end_padding[n]
            )
    return [op.compute_length(Dim.from_value(size), n).evaluate({}) for n, size in enumerate(sizes)]


def count_transposed_positions(op: ops.ConvTranspose, sizes: Sequence[int]) -> list[int]:
    """Count the output positions of a transposed convolution along each axis. Raise E0912 for a
    negative number.
    """
    counts = [
        op.compute_length(Dim.from_value(size), n).evaluate({}) for n, size in enumerate(sizes)
    ]
    for size, count in zip(sizes, counts, strict=True):
        if count < 0:
            raise_error("E0912", f"{size} positions are too few: the padding removes {-count} more")
    return counts


def count_mask_positions(op: ops.DownsamplePaddingMask, size: int) -> int:
    """Count the positions of the output mask. Raise E0912 if the axis is too short."""
    count = op.compute_length(Dim.from_value(size)).evaluate({})
    if count < min(size, 1):
        raise_axis_too_short(size, op.lag + 1)
    return count


def count_window_elements(
    op: ops.AveragePool, sizes: Sequence[int], counts: Sequence[int]
) -> list[list[int]]:
    """Count the valid positions of every window, along each axis."""
    found = []
    for n, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        # with `count_include_pad` explicit padding counts; positions that only ceil mode adds never
        # count
        least, most = 0, size
        if op.count_include_pad:
            least, most = -op.padding_before[n], size + op.padding_after[n]
        starts = [t * op.stride[n] - op.padding_before[n] for t in range(count)]
        found.append([min(t + op.kernel[n], most) - max(t, least) for t in starts])
    return found


def raise_axis_too_short(length: int, min_length: int) -> NoReturn:
    """Raise E0912 for an axis of `length` positions, which is shorter than a window."""
    raise_error(
        "E0912",
        f"an axis of length {length} is shorter than the window",
        helps=[f"use at least {max(min_length, 1)} positions"],
    )


def number_einsum_axes(op: ops.Einsum) -> tuple[list[list[int]], list[int]]:
    """Return the axes of each operand and of the result as integers, one integer per axis name."""
    left, right = op.equation.split("->")
    terms = [t.split() for t in left.split(",")]
    numbers = {name: n for n, name in enumerate(dict.fromkeys(name for t in terms for name in t))}
    return [[numbers[n] for n in t] for t in terms], [numbers[n] for n in right.split()]
