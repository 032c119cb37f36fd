"""Cost against length as a drawing: both axes by powers, every curve named at its end."""

import math
from collections.abc import Callable, Iterator, Sequence

from specc.compiler.architecture.cost import Cost
from specc.data.pictures.drawing import FAINT, Box, Drawing, Line, Mark, Text
from specc.passes.measure.formula import grouped, rounded

WIDTH, HEIGHT = 470.0, 300.0
LEFT, TOP, RIGHT, BOTTOM = 92.0, 46.0, 190.0, 52.0
COLORS = ("#1d1d24", "#d2552f", "#33658a", "#2f8a5b", "#8a5bb5")
GRID = "#e4e4ea"
APART = 15.0  # points between the names of two curves


def plot(cost: Cost, title: str) -> Drawing:
    """The curves of a cost; each axis by powers, so that n² is a steeper line than n."""
    # A curve may touch 0, such as what is left beside attention; 0 is no power of ten.
    values = [v for curve in cost.curves for v in curve.values if v > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    first, last = math.log2(cost.lengths[0]), math.log2(cost.lengths[-1])

    def x(n: float) -> float:
        share = (math.log2(n) - first) / (last - first)
        return LEFT + WIDTH * share

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return TOP + HEIGHT * (1 - share)

    drawing = Drawing(
        width=LEFT + WIDTH + RIGHT, height=TOP + HEIGHT + BOTTOM, title=title
    )
    drawing.add([Text(x=LEFT, y=22, text=title, size=13, bold=True)])
    drawing.add(_across(cost, x))
    for power in range(low, high + 1):
        drawing.add(_power(power, y(10.0**power)))
    named = []
    for curve, color in zip(cost.curves, COLORS, strict=False):
        points = tuple(
            (x(n), y(v)) for n, v in zip(cost.lengths, curve.values, strict=True)
        )
        line = Line(points=points, color=color, weight=2.25, dashed=curve.dashed)
        drawing.add([line])
        named.append((points[-1][1], curve.name, color))
    drawing.add(_names(named))
    return drawing


def _power(power: int, at: float) -> Iterator[Mark]:
    """A line across at a power of ten, and what it stands for."""
    yield Line(points=((LEFT, at), (LEFT + WIDTH, at)), color=GRID, weight=1)
    yield Text(
        x=LEFT - 8,
        y=at + 4,
        text=rounded(10**power),
        size=10,
        color=FAINT,
        anchor="end",
    )


def _across(cost: Cost, x: Callable[[float], float]) -> Iterator[Mark]:
    """The axis of lengths."""
    yield Box(x=LEFT, y=TOP, width=WIDTH, height=HEIGHT, stroke=GRID)
    # so few lengths are named that their numbers do not touch
    step = max(1, len(cost.lengths) // 6)
    for n in cost.lengths[::step]:
        at = x(n)
        yield Line(points=((at, TOP), (at, TOP + HEIGHT)), color=GRID, weight=1)
        yield Text(
            x=at,
            y=TOP + HEIGHT + 17,
            text=grouped(n),
            size=10,
            color=FAINT,
            anchor="middle",
        )
    said = f"{' = '.join(cost.symbols)}, one example"
    yield Text(
        x=LEFT + WIDTH / 2, y=TOP + HEIGHT + 38, text=said, size=11, anchor="middle"
    )


def _names(named: Sequence[tuple[float, str, str]]) -> Iterator[Mark]:
    """The name of each curve beside its end, so far apart that all can be read."""
    last = -math.inf
    for at, name, color in sorted(named):
        last = max(at, last + APART)
        yield Text(x=LEFT + WIDTH + 8, y=last + 4, text=name, size=11.5, color=color)
