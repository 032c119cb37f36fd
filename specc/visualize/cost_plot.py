"""Model cost as a function of sequence length: formulas, curves and a log-log plot."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from specc.analysis.length_limits import find_length_limits
from specc.analysis.local_attention_plan import plan_blocked_attention
from specc.analysis.model_cost import count_multiply_adds, format_large_number
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_thousands
from specc.drawing.drawing_elements import (
    FAINT,
    BoxElement,
    Drawing,
    DrawingElement,
    LineElement,
    TextElement,
)
from specc.ir import ops
from specc.ir.dim import Dim, DimError, sum_dims
from specc.ir.graph import Graph, Node
from specc.visualize.scope_summary import summarize_graph

MIN_LENGTH, MAX_LENGTH = 64, 16_384
"""The range of sequence lengths on the x-axis of the plot."""

COMPARED_WINDOW = 256
"""The window size of the hypothetical sliding-window attention in the plot."""

SOLID_CURVES = ("total", "attention", "without attention")
"""The names of the curves for the model itself. The curves of hypothetical models are dashed."""


@immutable_dataclass(kw_only=True)
class CostCurve:
    """A named curve of multiply-adds as a function of sequence length."""

    name: str
    values: tuple[float, ...]
    is_dashed: bool = False


@immutable_dataclass(kw_only=True)
class CostCurves:
    """The cost of one batch element as a function of the sequence length. All `symbols` are set to
    this length. `limit_reason` says why the plot ends at the maximum length.
    """

    symbols: tuple[str, ...]
    lengths: tuple[int, ...]
    curves: tuple[CostCurve, ...]
    limit_reason: str = ""


def compute_cost_curves(graph: Graph) -> CostCurves | None:
    """Compute the cost as a function of sequence length, or return None if it is constant."""
    root = summarize_graph(graph)
    multiply_adds = root.sum_over_subtree("multiply_adds")
    batch_symbols = {v.type.shape[0].name for v in graph.inputs.values() if v.type.rank}
    symbols = tuple(sorted(multiply_adds.symbols() - batch_symbols))
    if not symbols:
        return None
    sizes = _choose_sizes(batch_symbols, symbols)
    max_length, limit_reason = _find_max_length(graph, symbols)
    lengths = tuple(
        n
        for n in _choose_lengths(max_length)
        if _evaluate_formula(multiply_adds, sizes(n)) is not None
    )
    if len(lengths) < 2:
        return None
    curves = tuple(_make_curves(graph, multiply_adds, [sizes(n) for n in lengths]))
    return CostCurves(symbols=symbols, lengths=lengths, curves=curves, limit_reason=limit_reason)


def _make_curves(
    graph: Graph, multiply_adds: Dim, sizes_by_length: Sequence[Mapping[str, int]]
) -> Iterator[CostCurve]:
    """Yield the cost curve of a graph with the cost formula `multiply_adds`. If the graph has
    attention, also yield three curves. They are for the attention layers, for the graph without
    attention, and for the graph with a hypothetical attention window.
    """
    attention_nodes = [n for n, _ in graph.nodes if isinstance(n.op, ops.Attend | ops.WeightedSum)]
    attention = sum_dims(count_multiply_adds(n) for n in attention_nodes)
    blocked_savings = _compute_saved_multiply_adds(graph, sizes_by_length)
    no_savings = [0.0] * len(sizes_by_length)

    def evaluate_curve(name: str, dim: Dim, savings: Sequence[float]) -> CostCurve:
        values = [float(_evaluate_formula(dim, sizes) or 0) for sizes in sizes_by_length]
        costs = tuple(v - s for v, s in zip(values, savings, strict=True))
        return CostCurve(name=name, values=costs, is_dashed=name not in SOLID_CURVES)

    yield evaluate_curve("total", multiply_adds, blocked_savings)
    if not attention.terms:
        return
    yield evaluate_curve("attention", attention, blocked_savings)
    yield evaluate_curve("without attention", multiply_adds - attention, no_savings)
    if any(blocked_savings):
        yield evaluate_curve("full forward", multiply_adds, no_savings)
    savings = [
        sum(_compute_window_savings(node, sizes) for node in attention_nodes)
        for sizes in sizes_by_length
    ]
    if any(savings) and not _has_window(graph, attention_nodes):
        yield evaluate_curve(f"with a window of {COMPARED_WINDOW}", multiply_adds, savings)


def _compute_saved_multiply_adds(
    graph: Graph, sizes_by_length: Sequence[Mapping[str, int]]
) -> list[float]:
    """Return the number of multiply-adds that blocked attention saves at each sequence length. Each
    sequence length is evaluated separately, because sequences shorter than a block are not split.
    """
    return [
        _evaluate_formula(
            summarize_graph(graph, sizes).sum_over_subtree("saved_multiply_adds"), sizes
        )
        or 0
        for sizes in sizes_by_length
    ]


def _has_window(graph: Graph, attends: Sequence[Node]) -> bool:
    """Return True if an attention node has a bounded number of keys per query at all lengths."""
    padding_masks = [graph.inputs[n] for n, f in graph.input_facts.items() if f.padding_side]
    plans = [plan_blocked_attention(node, padding_masks) for node in attends]
    return any(plan is not None and plan.window_size is not None for plan in plans)


def _choose_sizes(
    batch_symbols: set[str | None], symbols: tuple[str, ...]
) -> Callable[[int], Mapping[str, int]]:
    """Return a function that maps a sequence length to the sizes of all symbolic dimensions. The
    size is the sequence length for `symbols`, and 1 for batch dimensions.
    """
    batch_sizes = {name: 1 for name in batch_symbols if name}
    return lambda n: {**batch_sizes, **dict.fromkeys(symbols, n)}


def _choose_lengths(max_length: int) -> Iterator[int]:
    """Yield the powers of two up to the maximum length, and then the maximum length itself."""
    n = MIN_LENGTH
    while n <= max_length:
        yield n
        n *= 2
    if n // 2 != max_length and max_length < MAX_LENGTH:
        yield max_length


def _find_max_length(graph: Graph, symbols: tuple[str, ...]) -> tuple[int, str]:
    """Return the maximum sequence length of the plot, and the reason for this maximum."""
    all_limits = find_length_limits(graph)
    limits = [all_limits[s] for s in symbols if s in all_limits]
    limit = min(limits, key=lambda limit: limit.max_length, default=None)
    if limit is None or limit.max_length >= MAX_LENGTH:
        return MAX_LENGTH, ""
    return limit.max_length, f"{limit.symbol} is at most {limit.max_length}: {limit.reason}"


def _evaluate_formula(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """Evaluate a symbolic dimension at the given sizes. Return None if the dimension has no valid
    value at these sizes.
    """
    try:
        return dim.substitute(sizes).number
    except DimError:
        return None


def _compute_window_savings(node: Node, sizes: Mapping[str, int]) -> float:
    """Return the multiply-adds that a window of COMPARED_WINDOW saves in an attention node."""
    if isinstance(node.op, ops.Attend):
        keys = node.op.key(node).type.shape[2]
    else:
        assert isinstance(node.op, ops.WeightedSum)
        keys = node.op.weights(node).type.shape[-1]
    key_count, cost = (
        _evaluate_formula(keys, sizes) or 0,
        _evaluate_formula(count_multiply_adds(node), sizes) or 0,
    )
    return cost * (1 - COMPARED_WINDOW / key_count) if key_count > COMPARED_WINDOW else 0.0


WIDTH, HEIGHT = 470.0, 300.0
LEFT, TOP, RIGHT, BOTTOM = 92.0, 46.0, 190.0, 52.0
CURVE_COLORS = ("#1d1d24", "#d2552f", "#33658a", "#2f8a5b", "#8a5bb5")
GRID_COLOR = "#e4e4ea"
LABEL_SPACING = 15.0  # the minimum vertical distance between two curve names in points


def plot_cost_curves(cost: CostCurves) -> Drawing:
    """Plot the cost curves with logarithmic axes, on which powers of n are straight lines."""
    title = "Multiply-adds by sequence length"
    # a logarithmic axis cannot show 0
    values = [v for curve in cost.curves for v in curve.values if v > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    min_log, max_log = math.log2(cost.lengths[0]), math.log2(cost.lengths[-1])

    def get_x(n: float) -> float:
        fraction = (math.log2(n) - min_log) / (max_log - min_log)
        return LEFT + WIDTH * fraction

    def get_y(value: float) -> float:
        fraction = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return TOP + HEIGHT * (1 - fraction)

    drawing = Drawing(width=LEFT + WIDTH + RIGHT, height=TOP + HEIGHT + BOTTOM, title=title)
    drawing.add_elements([TextElement(x=LEFT, y=22, text=title, size=13, is_bold=True)])
    drawing.add_elements(_draw_axis(cost, get_x))
    for power in range(low, high + 1):
        drawing.add_elements(_draw_grid_line(power, get_y(10.0**power)))
    curve_ends = []
    for curve, color in zip(cost.curves, CURVE_COLORS, strict=False):
        points = tuple(
            (get_x(n), get_y(v)) for n, v in zip(cost.lengths, curve.values, strict=True)
        )
        line = LineElement(points=points, color=color, stroke_width=2.25, is_dashed=curve.is_dashed)
        drawing.add_elements([line])
        curve_ends.append((points[-1][1], curve.name, color))
    drawing.add_elements(_place_curve_names(curve_ends))
    return drawing


def _draw_grid_line(power: int, y: float) -> Iterator[DrawingElement]:
    """Draw a horizontal grid line with a label at a power of ten."""
    label = format_large_number(10**power)
    yield LineElement(points=((LEFT, y), (LEFT + WIDTH, y)), color=GRID_COLOR, stroke_width=1)
    yield TextElement(x=LEFT - 8, y=y + 4, text=label, size=10, color=FAINT, anchor="end")


def _draw_axis(cost: CostCurves, get_x: Callable[[float], float]) -> Iterator[DrawingElement]:
    """Draw the x-axis with sequence lengths as tick labels."""
    yield BoxElement(x=LEFT, y=TOP, width=WIDTH, height=HEIGHT, stroke=GRID_COLOR)
    # label only as many sequence lengths as fit without overlap
    step = max(1, len(cost.lengths) // 6)
    for n in cost.lengths[::step]:
        x, y = get_x(n), TOP + HEIGHT
        yield LineElement(points=((x, TOP), (x, y)), color=GRID_COLOR, stroke_width=1)
        label = format_thousands(n)
        yield TextElement(x=x, y=y + 17, text=label, size=10, color=FAINT, anchor="middle")
    label = f"{' = '.join(cost.symbols)}, batch size 1"
    yield TextElement(x=LEFT + WIDTH / 2, y=TOP + HEIGHT + 38, text=label, size=11, anchor="middle")


def _place_curve_names(curve_ends: Sequence[tuple[float, str, str]]) -> Iterator[DrawingElement]:
    """Draw the name of each curve next to the end of the curve, such that names do not overlap."""
    label_y = -math.inf
    for y, name, color in sorted(curve_ends):
        label_y = max(y, label_y + LABEL_SPACING)
        yield TextElement(x=LEFT + WIDTH + 8, y=label_y + 4, text=name, size=11.5, color=color)
