"""Options of convolutions and pooling: kernel, stride, dilation, padding, and their checks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, TypeAlias

from specc.frontend.builtins.registry import CallSite
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir.dim import Dim

SizeOption: TypeAlias = Dim | tuple[Dim, ...]
"""A number for all axes, or one for each."""

EndPadding: TypeAlias = Dim | tuple[Dim, ...] | tuple[tuple[Dim, ...], ...]
"""The same, or for each axis two: before its rows and behind them."""

PaddingOption: TypeAlias = EndPadding | Literal["same", "causal"]


AxisNumbers: TypeAlias = tuple[int, ...]
"""One for each axis."""


@dataclass(frozen=True)
class SlidingWindow:
    """The numbers of a window, one for each axis that it moves along."""

    kernel: AxisNumbers
    stride: AxisNumbers
    dilation: AxisNumbers
    before: AxisNumbers
    behind: AxisNumbers

    @property
    def numbers(self) -> tuple[AxisNumbers, AxisNumbers, AxisNumbers, AxisNumbers]:
        """All of them, in the order in which operations have them."""
        pads = (*self.before, *self.behind)
        return self.kernel, self.stride, self.dilation, pads

    @property
    def nothing(self) -> AxisNumbers:
        """No row, for each axis."""
        return (0,) * len(self.kernel)

    @property
    def spans(self) -> AxisNumbers:
        """From the first row of a window to its last."""
        each = zip(self.kernel, self.dilation, strict=True)
        return tuple((k - 1) * d for k, d in each)

    def max_overhang(self) -> AxisNumbers:
        """How far a last window may reach over the end, so that it still begins within
        the rows or the padding before them.
        """
        each = zip(self.spans, self.stride, self.behind, strict=True)
        return tuple(min(s - 1, span - behind) for span, s, behind in each)


@dataclass(frozen=True)
class WindowOperand:
    """What a window moves over, and the options of the call; `rows`: `x` says which rows
    exist.
    """

    site: CallSite
    x: Tensor
    rows: bool = False

    def __post_init__(self) -> None:
        plain = self.x.type.dtype in ("f32", "f64", "f16", "bf16")
        if not self.rows and (not plain or len(self.x.shape) not in (3, 4)):
            word = self.site.call.function.path
            title = (
                f"`{word}` takes rows [batch, time, channels] or a picture [batch, "
                "channels, high, wide]"
            )
            self.site.fail("E0301", title, "x", f"this is {describe_value(self.x)}")

    @property
    def lengths(self) -> tuple[Dim, ...]:
        """The axes that the window moves along."""
        return self.x.shape[2:] if len(self.x.shape) == 4 else self.x.shape[1:2]

    @property
    def channels(self) -> Dim:
        """How many channels there are."""
        return self.x.shape[1] if len(self.x.shape) == 4 else self.x.shape[-1]

    def window(
        self, kernel: SizeOption, stride: SizeOption, dilation: SizeOption, padding: PaddingOption
    ) -> SlidingWindow:
        """The numbers of a window that fits."""
        window = self._moved(kernel, stride, dilation)
        before, behind = _resolve_padding(self.site, padding, window)
        found = replace(window, before=before, behind=behind)
        self._fits(found)
        return found

    def pool(
        self,
        kernel: SizeOption,
        stride: SizeOption | None,
        dilation: SizeOption,
        padding: PaddingOption,
    ) -> SlidingWindow:
        """The same, for windows none of which may be padding alone."""
        given = kernel if stride is None else stride
        window = self.window(kernel, given, dilation, padding)
        for n, span in enumerate(window.spans):
            if max(window.before[n], window.behind[n]) > span:
                title = f"a window of {span + 1} rows would see nothing but padding"
                helps = [f"pad fewer than {span + 1}, as many as the kernel reaches"]
                self.site.fail("E0323", title, "padding", helps=helps)
        return window

    def transposed(
        self,
        kernel: SizeOption,
        stride: SizeOption,
        dilation: SizeOption,
        cut: EndPadding,
        extra: SizeOption,
    ) -> SlidingWindow:
        """The same, for windows that are laid down; `cut` off at the ends, but for `extra`."""
        window = self._moved(kernel, stride, dilation)
        more = self._each(extra, "extra", 0)
        before, behind = _resolve_padding(self.site, cut, window)
        for n, count in enumerate(more):
            most = max(window.stride[n], window.dilation[n])
            if count >= most:
                title = f"`extra={count}` is no less than the stride and the dilation"
                helps = [f"it is from 0 to {most - 1}"]
                self.site.fail("E0323", title, "extra", helps=helps)
        less = tuple(-n for n in more)
        return replace(window, before=before, behind=add_per_axis(behind, less))

    def _moved(self, kernel: SizeOption, stride: SizeOption, dilation: SizeOption) -> SlidingWindow:
        sizes = self._each(kernel, "kernel", 1)
        return SlidingWindow(
            kernel=sizes,
            stride=self._each(stride, "stride", 1),
            dilation=self._each(dilation, "dilation", 1),
            before=(0,) * len(sizes),
            behind=(0,) * len(sizes),
        )

    def _each(self, value: SizeOption, option: str, least: int) -> AxisNumbers:
        """A number for each axis. E0324 for a list of another length."""
        axes = len(self.lengths)
        given = value if isinstance(value, tuple) else (value,) * axes
        if len(given) != axes:
            _raise_wrong_length(self.site, axes, option, len(given))
        for number in given:
            self.site.within(number, option, least)
        return tuple(self.site.number(number, option) for number in given)

    def _fits(self, window: SlidingWindow) -> None:
        """E0320 where an axis whose length is known is shorter than the window."""
        each = zip(window.spans, window.before, window.behind, strict=True)
        for length, (span, before, behind) in zip(self.lengths, each, strict=True):
            there = length.number
            if there is None or there + before + behind > span or there == 0:
                continue
            padded = f", {there + before + behind} with its padding" if before + behind else ""
            title = (
                f"`{self.site.call.function.path}`: a window reaches over {span + 1} "
                f"rows of an axis that has {there}{padded}"
            )
            least = span + 1 - before - behind
            helps = [
                "make the kernel or the dilation smaller, pad more, or give the axis "
                f"{least} rows or more"
            ]
            self.site.fail("E0320", title, "kernel", helps=helps)


def _raise_wrong_length(site: CallSite, axes: int, option: str, count: int) -> NoReturn:
    """E0324 for a list that has not a number for each axis."""
    over = "rows have one axis" if axes == 1 else "a picture has two axes"
    title = f"`{option}` has {count} numbers, and {over} that a window moves along"
    helps = ["give one number for all, or a list with one for each axis"]
    if option == "padding":
        helps = [
            "write `[before, behind]` of rows"
            if axes == 1
            else "write `[high, wide]`, or `[[above, below], [left, right]]`"
        ]
    site.fail("E0324", title, option, helps=helps)


def _resolve_padding(
    site: CallSite, padding: PaddingOption, window: SlidingWindow
) -> tuple[AxisNumbers, AxisNumbers]:
    """How many zeros stand before and behind, for each axis."""
    if isinstance(padding, str):
        return _resolve_padding_word(site, padding, window)
    axes = len(window.kernel)
    before, behind = [], []
    for pair in _split_padding(padding, axes):
        if len(pair) != 2:
            _raise_wrong_length(site, axes, "padding", len(pair))
        for number in pair:
            _check_not_negative(site, number)
        before.append(site.number(pair[0], "padding"))
        behind.append(site.number(pair[1], "padding"))
    if len(before) != axes:
        _raise_wrong_length(site, axes, "padding", len(before))
    return tuple(before), tuple(behind)


def _split_padding(padding: EndPadding, axes: int) -> Sequence[tuple[Dim, ...]]:
    """For each axis what stands before and behind."""
    given = padding if isinstance(padding, tuple) else (padding,) * axes
    single = tuple(p for p in given if isinstance(p, Dim))
    # Along one axis a pair needs no list around it.
    if axes == 1 and len(single) == 2:
        return (single,)
    return [p if isinstance(p, tuple) else (p, p) for p in given]


def _check_not_negative(site: CallSite, number: Dim) -> None:
    """E0323 for padding that is less than none."""
    if number.number is not None and number.number < 0:
        title = f"`padding` is {number}, and nothing can be padded less than not at all"
        helps = ["to leave out rows write x[:, 1:] before it"]
        site.fail("E0323", title, "padding", helps=helps)


def _resolve_padding_word(
    site: CallSite, padding: str, window: SlidingWindow
) -> tuple[AxisNumbers, AxisNumbers]:
    spans = window.spans
    if padding == "same":
        if any(n > 1 for n in window.stride):
            title = "`padding=same` keeps the length, which a stride does not"
            halves = [span // 2 for span in spans]
            shown = halves[0] if len({*halves}) == 1 else halves
            helps = [f"write the number: `padding={shown}`"]
            site.fail("E0322", title, "padding", helps=helps)
        before = tuple(span // 2 for span in spans)
        return before, tuple(s - b for s, b in zip(spans, before, strict=True))
    if len(spans) > 1:
        title = "`padding=causal` is for rows: a picture has no order in time"
        helps = ["write `padding=same`, or numbers"]
        site.fail("E0323", title, "padding", helps=helps)
    # A row for every `stride` rows: the first of them ends with the first stride.
    before = (spans[0] - (window.stride[0] - 1),)
    if before[0] < 0:
        title = (
            f"a window of {spans[0] + 1} rows leaves out some of every "
            f"{window.stride[0]}, so `padding=causal` cannot be met"
        )
        helps = [f"give a kernel that reaches over {window.stride[0]} rows"]
        site.fail("E0323", title, "padding", helps=helps)
    return before, (0,)


def add_per_axis(a: AxisNumbers, b: AxisNumbers) -> AxisNumbers:
    """Axis by axis."""
    return tuple(m + n for m, n in zip(a, b, strict=True))
