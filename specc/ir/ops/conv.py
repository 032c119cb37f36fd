"""Convolution and pooling ops over one time axis or an image.

Sequences are [batch, time, channels], images NCHW. Tuple attributes have one entry per window axis.
`pads` lists the padding before each axis, then the padding after each axis. Position t of a result
reads positions `t · stride - before + dilation · n` for n from 0 to `kernel - 1`. Positions outside
the axis are read as zeros.
"""

from collections.abc import Sequence

from specc.ir.dim import Dim, floor_divide_dims, min_dims, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError

OPERAND_WINDOW_AXES = {1: ("t",), 2: ("y", "x")}
"""Names of an operand's window axes in signatures, keyed by the number of window axes."""

RESULT_WINDOW_AXES = {1: ("u",), 2: ("u", "v")}
"""Names of a result's window axes whose size may differ from the operand's."""


class PaddedWindowOp:
    """Base class of ops with a kernel size, and with padding or cropping per axis."""

    kernel: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def padding_before(self) -> tuple[int, ...]:
        """The padding (or cropping) before the first position of each axis."""
        return self.pads[: len(self.kernel)]

    @property
    def padding_after(self) -> tuple[int, ...]:
        """The padding (or cropping) after the last position of each axis."""
        return self.pads[len(self.kernel) :]

    def pair_operand_result_axes(self) -> list[tuple[str, str]]:
        """Return (operand axis name, result axis name) for each window axis."""
        rank = len(self.kernel)
        return list(zip(OPERAND_WINDOW_AXES[rank], RESULT_WINDOW_AXES[rank], strict=True))


class SlidingWindowOp(PaddedWindowOp):
    """Base class of ops with sliding windows, i.e. with a kernel size, a stride and padding."""

    stride: tuple[int, ...]

    @property
    def dilations(self) -> tuple[int, ...]:
        """The distance between adjacent elements in a window, per axis."""
        return (1,) * len(self.kernel)

    @property
    def end_padding(self) -> tuple[int, ...]:
        """The number of positions by which a window may extend past the end, per axis."""
        return self.padding_after

    def get_window_extent(self, axis: int) -> int:
        """Return the distance between a window's first and last position on axis `axis`."""
        return self.dilations[axis] * (self.kernel[axis] - 1)

    def get_output_lag(self, axis: int) -> int:
        """Return the lag on `axis`: output position t exists if input position `t · stride + lag`
        exists.
        """
        return self.get_window_extent(axis) - self.padding_before[axis] - self.end_padding[axis]

    def get_offset_bounds(self, axis: int) -> tuple[int, int]:
        """Return the smallest and the largest offset that a window reads along window axis `axis`.
        The offsets are relative to `t · stride` and counted backward.
        """
        return self.padding_before[axis] - self.get_window_extent(axis), self.padding_before[axis]

    def is_position_preserving(self, axis: int) -> bool:
        """Return True if operand and result have equal sizes and stride 1 on window axis `axis`."""
        return self.stride[axis] == 1 and not self.get_output_lag(axis)

    def compute_output_length(self, length: Dim, axis: int) -> Dim:
        """Return the result size of window axis `axis` for an operand axis of size `length`."""
        # a floor division would hide that the input and output sizes are equal
        if self.is_position_preserving(axis):
            return length
        return floor_divide_dims(length - (1 + self.get_output_lag(axis)), self.stride[axis]) + 1

    def build_length_constraint(self, length: Dim, axis: int) -> Dim:
        """Return a dimension that is negative if the operand axis of size `length` is shorter than
        a window, or if the image is empty.
        """
        # an empty image is an error, but an empty time axis has an empty result
        if len(self.kernel) > 1:
            return min_dims(self.compute_output_length(length, axis), length) - 1
        return self.compute_output_length(length, axis) - min_dims(length, 1)

    def build_signature_axes(self) -> tuple[list[str], list[str]]:
        """Return the window axes of the operand and of the result, as in a signature."""
        operand_axes, result_names = [], []
        for n, (operand_name, result_name) in enumerate(self.pair_operand_result_axes()):
            low, high = self.get_offset_bounds(n)
            is_preserving = self.is_position_preserving(n)
            # a result axis of different size has a name of its own, which the mark of the operand
            # axis contains
            operand_axes.append(
                f"{operand_name}[{low}:{high}]"
                if is_preserving
                else f"{operand_name}[{low}:{high}:{self.stride[n]}:{result_name}]"
            )
            result_names.append(operand_name if is_preserving else result_name)
        return operand_axes, result_names

    def infer_window_axes(self, axes: AxisBindings) -> None:
        """Bind the sizes of the result axes. Raise ShapeError if a static axis is too short."""
        for n, (operand_name, result_name) in enumerate(self.pair_operand_result_axes()):
            length = axes[operand_name]
            # the sizes of dynamic axes are checked at run time
            if self.build_length_constraint(length, n).is_negative:
                window_size = self.get_window_extent(n) + 1
                title = f"a window spans {window_size} positions, but the axis has {length}"
                raise ShapeError(title, (0,), name=operand_name)
            if not self.is_position_preserving(n):
                axes[result_name] = self.compute_output_length(length, n)


def _build_window_signature(
    input_channels: str,
    operand_axes: list[str],
    other_operands: str,
    output_channels: str,
    result_axis_names: Sequence[str],
) -> Signature:
    """Build the signature of a window op on [batch, time, channels] or an image (NCHW)."""
    if len(operand_axes) == 1:
        operands = f"f[b {operand_axes[0]} {input_channels}]{other_operands}"
        return Signature.parse(f"{operands} -> f[b {result_axis_names[0]} {output_channels}]")
    axes, result_axes = " ".join(operand_axes), " ".join(result_axis_names)
    return Signature.parse(
        f"f[b {input_channels} {axes}]{other_operands} -> f[b {output_channels} {result_axes}]"
    )


KERNEL_AXES = {1: "k", 2: "k l"}
"""The names of the kernel axes in signatures, keyed by the number of window axes."""


def _check_kernel_size(op: "Conv | ConvTranspose", axes: AxisBindings) -> None:
    """Raise ShapeError if the kernel shape of the weight differs from the attribute `kernel`."""
    for name, expected_size in zip(KERNEL_AXES[len(op.kernel)].split(), op.kernel, strict=True):
        if axes[name] != expected_size:
            title = f"expected a kernel size of {expected_size}, got {axes[name]}"
            raise ShapeError(title, (1,))


class Conv(
    SlidingWindowOp,
    Op,
    sig="f[b t[min_offset:max_offset] i], f[o j k], f[o]? -> f[b t o]",
    is_compute_intensive=True,
):
    """Convolution over time or an image: `y = w * x + b`, as in PyTorch.

    The weight is [out, in / groups, kernel …]. Each of the `groups` groups of output channels reads
    only the input channels of its group. The length is preserved if `before + after = (kernel - 1)
    · dilation`. If all padding is before the first position, the convolution is causal
    (arXiv:1609.03499).
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]
    groups: Dim = Dim.from_value(1)

    x, weight = Operand(0), Operand(1)
    bias = OptionalOperand(2)

    @property
    def dilations(self) -> tuple[int, ...]:
        """The distance between adjacent elements in a window, per axis."""
        return self.dilation

    def get_signature(self) -> Signature:
        """Build the signature for sequences or images, with integer offsets in the marks."""
        other_operands = f", f[o j {KERNEL_AXES[len(self.kernel)]}], f[o]?"
        operand_axes, result_names = self.build_signature_axes()
        return _build_window_signature("i", operand_axes, other_operands, "o", result_names)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        _check_kernel_size(self, axes)
        check_channel_groups(axes["i"], axes["o"], self.groups)
        # each group of output channels reads only the input channels of the group
        weight_channels, input_channels = axes["j"] * self.groups, axes["i"]
        if weight_channels != input_channels:
            title = (
                f"the weight has {weight_channels} input channels, but the input has "
                f"{input_channels}"
            )
            raise ShapeError(title, (0, 1), (input_channels, weight_channels))
        self.infer_window_axes(axes)


class ConvTranspose(
    PaddedWindowOp, Op, sig="f[b t~ i], f[i p k], f[o]? -> f[b u o]", is_compute_intensive=True
):
    """Transposed convolution (arXiv:1603.07285, sec. 4): every position adds a scaled kernel to the
    result. The kernel starts `stride` positions after the kernel of the previous position. The
    weight is [in, out / groups, kernel …].

    `pads` is the number of positions cropped at each end. A negative padding extends the axis at
    this end. The length `n` becomes `(n - 1) · stride + (kernel - 1) · dilation + 1 - before -
    after`.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]
    groups: Dim = Dim.from_value(1)

    x, weight = Operand(0), Operand(1)
    bias = OptionalOperand(2)

    def get_signature(self) -> Signature:
        """Build the signature for sequences or images. The offsets are exact only for stride 1."""
        operand_axes = []
        rank = len(self.kernel)
        for n, (operand_name, result_name) in enumerate(self.pair_operand_result_axes()):
            extent = self.dilation[n] * (self.kernel[n] - 1)
            low, high = -self.padding_before[n], extent - self.padding_before[n]
            # with a stride above 1, the offsets depend on the result position, so the mark is `~`
            has_unit_stride = self.stride[n] == 1
            operand_axes.append(
                f"{operand_name}[{low}:{high}:1:{result_name}]"
                if has_unit_stride
                else f"{operand_name}~"
            )
        other_operands = f", f[i p {KERNEL_AXES[rank]}], f[o]?"
        return _build_window_signature(
            "i", operand_axes, other_operands, "o", RESULT_WINDOW_AXES[rank]
        )

    def compute_output_length(self, length: Dim, axis: int) -> Dim:
        """Return the result size of window axis `axis` for an operand axis of size `length`."""
        extent = self.dilation[axis] * (self.kernel[axis] - 1)
        cropping = self.padding_before[axis] + self.padding_after[axis]
        return (length - 1) * self.stride[axis] + (extent + 1 - cropping)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        _check_kernel_size(self, axes)
        output_channels = axes["p"] * self.groups
        check_channel_groups(axes["i"], output_channels, self.groups)
        if "o" not in axes.dims:
            axes["o"] = output_channels
        elif axes["o"] != output_channels:
            title = (
                f"the weight has {output_channels} output channels, but the bias has {axes['o']}"
            )
            raise ShapeError(title, (1, 2), (output_channels, axes["o"]))
        for n, (operand_name, result_name) in enumerate(self.pair_operand_result_axes()):
            axes[result_name] = self.compute_output_length(axes[operand_name], n)


def check_channel_groups(input_channels: Dim, output_channels: Dim, groups: Dim) -> None:
    """Raise ShapeError if input or output channels are not divisible by the number of groups."""
    for count in (input_channels, output_channels):
        if mod_dims(count, groups).number:
            title = f"{count} channels cannot be divided into {groups} groups"
            raise ShapeError(title, (0, 1))


class Pooling(SlidingWindowOp):
    """Base class of pooling ops. A window that contains only padding is an error."""

    def get_signature(self) -> Signature:
        """Build the signature for sequences or images, with integer offsets in the marks."""
        operand_axes, result_names = self.build_signature_axes()
        return _build_window_signature("c", operand_axes, "", "c", result_names)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        self.infer_window_axes(axes)

    def build_length_constraint(self, length: Dim, axis: int) -> Dim:
        """Return a dim that is negative if `length` is too short or a window reads only padding."""
        missed_length = self._find_missed_length(axis)
        # if the padding exceeds the window extent, a window may read only padding
        if self.get_output_lag(axis) < 0:
            return length - (missed_length + 1)
        constraint = super().build_length_constraint(length, axis)
        if not missed_length:
            return constraint
        return min_dims(constraint, length - min_dims(length, 1) * (missed_length + 1))

    def _find_missed_length(self, n: int) -> int:
        """Return the largest axis size for which a dilated window reads no position, or 0."""
        offsets = [
            self.dilations[n] * offset - self.padding_before[n] for offset in range(self.kernel[n])
        ]
        missed_length = 0
        # every window reads at least one of any `dilation` adjacent positions
        for length in range(1, self.dilations[n]):
            window_count = self.compute_output_length(Dim.from_value(length), n).number or 0
            for start in range(0, window_count * self.stride[n], self.stride[n]):
                if not any(0 <= start + offset < length for offset in offsets):
                    missed_length = length
        return missed_length


class MaxPool(Pooling, Op, sig="f[b t[min_offset:max_offset] c] -> f[b t c]"):
    """The maximum of each window, per channel. Padding is -inf."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def dilations(self) -> tuple[int, ...]:
        """The distance between adjacent elements in a window, per axis."""
        return self.dilation


class AveragePool(Pooling, Op, sig="f[b t[min_offset:max_offset] c] -> f[b t c]"):
    """The mean of each window, per channel.

    If `count_include_pad` is True, padding counts as zeros, otherwise it is excluded from the mean.
    In ceil mode, windows may extend past the padding by `ceil_mode_padding` positions. These
    positions are excluded from the mean.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode_padding: tuple[int, ...]
    count_include_pad: bool

    @property
    def end_padding(self) -> tuple[int, ...]:
        """The number of positions by which a window may extend past the end, per axis."""
        return tuple(a + b for a, b in zip(self.padding_after, self.ceil_mode_padding, strict=True))


class DownsamplePaddingMask(Op, sig="b[b t[min_offset:max_offset:stride:u]] -> b[b u]"):
    """The padding mask after a convolution or pooling with `stride` and `lag` (see
    `SlidingWindowOp.get_output_lag`). Position t is valid if all positions `t · stride` to `t ·
    stride + lag` are valid. For a negative lag, position t is valid if any position `t · stride +
    lag` to `t · stride` is valid.
    """

    stride: int
    lag: int

    @property
    def min_offset(self) -> int:
        """The smallest offset of a position that is read, relative to `t · stride` and counted
        backward.
        """
        return -max(self.lag, 0)

    @property
    def max_offset(self) -> int:
        """The largest offset of a position that is read, relative to `t · stride` and counted
        backward.
        """
        return max(-self.lag, 0)

    def compute_output_length(self, length: Dim) -> Dim:
        """Return the number of positions after `length` positions are downsampled."""
        return floor_divide_dims(length - (1 + self.lag), self.stride) + 1

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["u"] = self.compute_output_length(axes["t"])
