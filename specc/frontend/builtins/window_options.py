"""Evaluate the window options of convolutions and pooling, such as kernel, stride and padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, TypeAlias

from specc.frontend.builtins.registry import CallContext
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir.dim import Dim

SizeOption: TypeAlias = Dim | tuple[Dim, ...]
"""The value of a size option: one number for all axes, or one number per axis."""

EndPadding: TypeAlias = Dim | tuple[Dim, ...] | tuple[tuple[Dim, ...], ...]
"""The value of `padding`: one number, one number per axis, or one pair (start, end) per axis."""

PaddingOption: TypeAlias = EndPadding | Literal["same", "causal"]


AxisNumbers: TypeAlias = tuple[int, ...]
"""One integer per window axis."""


@dataclass(frozen=True)
class SlidingWindow:
    """The parameters of a sliding window, with one integer per window axis."""

    kernel: AxisNumbers
    stride: AxisNumbers
    dilation: AxisNumbers
    pad_before: AxisNumbers
    pad_after: AxisNumbers

    @property
    def op_attributes(self) -> tuple[AxisNumbers, AxisNumbers, AxisNumbers, AxisNumbers]:
        """The window's parameters, in the order of a convolution op's attributes."""
        pads = (*self.pad_before, *self.pad_after)
        return self.kernel, self.stride, self.dilation, pads

    @property
    def extents(self) -> AxisNumbers:
        """The distance from the first to the last position of a window, per axis."""
        pairs = zip(self.kernel, self.dilation, strict=True)
        return tuple((k - 1) * d for k, d in pairs)

    def get_ceil_mode_padding(self) -> AxisNumbers:
        """Return the maximum number of positions by which the last window along each axis may
        extend past the end. The window must start inside the input or inside the padding before the
        input.
        """
        windows = zip(self.extents, self.stride, self.pad_after, strict=True)
        return tuple(min(s - 1, span - after) for span, s, after in windows)

    def with_ceil_mode_padding(self) -> "SlidingWindow":
        """Return the window with the end padding that the last window needs in ceil mode."""
        return replace(
            self, pad_after=add_tuples_elementwise(self.pad_after, self.get_ceil_mode_padding())
        )


@dataclass(frozen=True)
class WindowedInput:
    """The input `x` of a convolution or pooling. With `is_mask`, `x` is a padding mask."""

    ctx: CallContext
    x: Tensor
    is_mask: bool = False

    def __post_init__(self) -> None:
        is_float = self.x.type.dtype in ("f32", "f64", "f16", "bf16")
        if not self.is_mask and (not is_float or len(self.x.shape) not in (3, 4)):
            function_name = self.ctx.expr.function.path
            title = (
                f"`{function_name}` takes a float tensor [batch, time, channels] or [batch, "
                "channels, height, width]"
            )
            self.ctx.raise_error("E0301", title, "x", f"this is {describe_value(self.x)}")

    @property
    def lengths(self) -> tuple[Dim, ...]:
        """The sizes of the window axes."""
        return self.x.shape[2:] if len(self.x.shape) == 4 else self.x.shape[1:2]

    @property
    def channels(self) -> Dim:
        """The number of input channels."""
        return self.x.shape[1] if len(self.x.shape) == 4 else self.x.shape[-1]

    def make_window(
        self, kernel: SizeOption, stride: SizeOption, dilation: SizeOption, padding: PaddingOption
    ) -> SlidingWindow:
        """Return the window of a convolution. Raise E0320 if the padded input is too short."""
        window = self._make_unpadded_window(kernel, stride, dilation)
        before, after = _resolve_padding(self.ctx, padding, window)
        padded = replace(window, pad_before=before, pad_after=after)
        self._check_window_fits(padded)
        return padded

    def make_pool_window(
        self,
        kernel: SizeOption,
        stride: SizeOption | None,
        dilation: SizeOption,
        padding: PaddingOption,
    ) -> SlidingWindow:
        """Return the window of a pooling. Raise E0323 if a window would contain only padding."""
        strides = kernel if stride is None else stride
        window = self.make_window(kernel, strides, dilation, padding)
        for n, span in enumerate(window.extents):
            if max(window.pad_before[n], window.pad_after[n]) > span:
                title = f"`padding` of a window of {span + 1} positions must be at most {span}"
                helps = ["with more padding, a window would contain only padding"]
                self.ctx.raise_error("E0323", title, "padding", helps=helps)
        return window

    def make_transposed_window(
        self,
        kernel: SizeOption,
        stride: SizeOption,
        dilation: SizeOption,
        padding: EndPadding,
        output_padding: SizeOption,
    ) -> SlidingWindow:
        """Return the window of a transposed convolution. As in PyTorch, `padding` is the number of
        positions cropped at both ends of the result, and `output_padding` is the number of
        positions added at its end.
        """
        window = self._make_unpadded_window(kernel, stride, dilation)
        output_paddings = self._expand_option(output_padding, "output_padding", 0)
        before, after = _resolve_padding(self.ctx, padding, window)
        for n, count in enumerate(output_paddings):
            limit = max(window.stride[n], window.dilation[n])
            if count >= limit:
                title = f"`output_padding={count}` must be less than the stride or the dilation"
                helps = [f"use 0 to {limit - 1}"]
                self.ctx.raise_error("E0323", title, "output_padding", helps=helps)
        negative_paddings = tuple(-n for n in output_paddings)
        return replace(
            window, pad_before=before, pad_after=add_tuples_elementwise(after, negative_paddings)
        )

    def _make_unpadded_window(
        self, kernel: SizeOption, stride: SizeOption, dilation: SizeOption
    ) -> SlidingWindow:
        sizes = self._expand_option(kernel, "kernel", 1)
        return SlidingWindow(
            kernel=sizes,
            stride=self._expand_option(stride, "stride", 1),
            dilation=self._expand_option(dilation, "dilation", 1),
            pad_before=(0,) * len(sizes),
            pad_after=(0,) * len(sizes),
        )

    def _expand_option(self, value: SizeOption, option: str, minimum: int) -> AxisNumbers:
        """Return the value of a size option as one integer per axis. Raise E0324 for a list with
        the wrong number of items, and E0417 for an item below `minimum`.
        """
        axes = len(self.lengths)
        numbers = value if isinstance(value, tuple) else (value,) * axes
        if len(numbers) != axes:
            _raise_wrong_length(self.ctx, axes, option, len(numbers))
        for number in numbers:
            self.ctx.check_range(number, option, minimum)
        return tuple(self.ctx.require_integer(number, option) for number in numbers)

    def _check_window_fits(self, window: SlidingWindow) -> None:
        """Raise E0320 if an axis of static size is shorter than the window."""
        extents = zip(window.extents, window.pad_before, window.pad_after, strict=True)
        for length, (span, before, after) in zip(self.lengths, extents, strict=True):
            size = length.number
            if size is None or size + before + after > span or size == 0:
                continue
            padded_size = f" ({size + before + after} with padding)" if before + after else ""
            title = (
                f"the window of `{self.ctx.expr.function.path}` spans {span + 1} "
                f"positions, but the axis has {size}{padded_size}"
            )
            minimum = span + 1 - before - after
            helps = [
                "reduce `kernel` or `dilation`, add padding, or make the axis at least "
                f"{minimum} long"
            ]
            self.ctx.raise_error("E0320", title, "kernel", helps=helps)


def _raise_wrong_length(ctx: CallContext, axes: int, option: str, count: int) -> NoReturn:
    """Raise E0324 for a list whose number of items is not the number of window axes."""
    axes_text = "there is one axis" if axes == 1 else "there are two axes"
    title = f"`{option}` has {count} numbers, but {axes_text}"
    helps = ["pass one number, or a list with one number per axis"]
    if option == "padding":
        helps = [
            "write `[start, end]` for the time axis"
            if axes == 1
            else "write `[height, width]`, or `[[top, bottom], [left, right]]`"
        ]
    ctx.raise_error("E0324", title, option, helps=helps)


def _resolve_padding(
    ctx: CallContext, padding: PaddingOption, window: SlidingWindow
) -> tuple[AxisNumbers, AxisNumbers]:
    """Return the padding at the start and at the end of each axis."""
    if isinstance(padding, str):
        return _resolve_padding_mode(ctx, padding, window)
    axes = len(window.kernel)
    before, after = [], []
    for pair in _split_padding(padding, axes):
        if len(pair) != 2:
            _raise_wrong_length(ctx, axes, "padding", len(pair))
        for number in pair:
            _check_padding_number(ctx, number)
        before.append(ctx.require_integer(pair[0], "padding"))
        after.append(ctx.require_integer(pair[1], "padding"))
    if len(before) != axes:
        _raise_wrong_length(ctx, axes, "padding", len(before))
    return tuple(before), tuple(after)


def _check_padding_number(ctx: CallContext, number: Dim) -> None:
    """Raise E0323 for a negative padding."""
    if number.number is not None and number.number < 0:
        title = f"`padding` must not be negative, got {number}"
        helps = ["to drop positions, write `x[:, 1:]` before the call"]
        ctx.raise_error("E0323", title, "padding", helps=helps)


def _split_padding(padding: EndPadding, axes: int) -> Sequence[tuple[Dim, ...]]:
    """Return the (start, end) padding of each axis."""
    per_axis = padding if isinstance(padding, tuple) else (padding,) * axes
    single = tuple(p for p in per_axis if isinstance(p, Dim))
    # for a single axis, accept a pair `[2, 0]` instead of the nested list `[[2, 0]]`
    if axes == 1 and len(single) == 2:
        return (single,)
    return [p if isinstance(p, tuple) else (p, p) for p in per_axis]


def _resolve_padding_mode(
    ctx: CallContext, padding: str, window: SlidingWindow
) -> tuple[AxisNumbers, AxisNumbers]:
    spans = window.extents
    if padding == "same":
        if any(n > 1 for n in window.stride):
            _raise_same_with_stride(ctx, window)
        before = tuple(span // 2 for span in spans)
        return before, tuple(s - b for s, b in zip(spans, before, strict=True))
    if len(spans) > 1:
        title = "`padding=causal` needs a time axis: [batch, time, channels]"
        helps = ["write `padding=same`, or numbers"]
        ctx.raise_error("E0323", title, "padding", helps=helps)
    return _compute_causal_padding(ctx, spans[0], window.stride[0]), (0,)


def _raise_same_with_stride(ctx: CallContext, window: SlidingWindow) -> NoReturn:
    title = "`padding=same` keeps the length and requires `stride=1`"
    halves = [span // 2 for span in window.extents]
    padding = halves[0] if len({*halves}) == 1 else halves
    helps = [f"write a number: `padding={padding}`"]
    ctx.raise_error("E0322", title, "padding", helps=helps)


def _compute_causal_padding(ctx: CallContext, span: int, stride: int) -> tuple[int]:
    """Return the causal padding at the start of the time axis. With this padding, there is one
    output for every `stride` positions, and the window of the first output ends at position `stride
    - 1`.
    """
    before = span - (stride - 1)
    if before < 0:
        title = (
            f"`padding=causal` needs a kernel that spans the stride: {span + 1} < "
            f"{stride} positions"
        )
        helps = [f"use a kernel that spans at least {stride} positions"]
        ctx.raise_error("E0323", title, "padding", helps=helps)
    return (before,)


def add_tuples_elementwise(a: AxisNumbers, b: AxisNumbers) -> AxisNumbers:
    """Return the elementwise sum of two tuples."""
    return tuple(m + n for m, n in zip(a, b, strict=True))
