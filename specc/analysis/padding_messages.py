"""W0601: which op reads padded positions, and a fix that `specc check` accepts."""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.analysis.causality import find_node_span, format_op_name
from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddingFacts, PaddingSource
from specc.analysis.value_ranges import find_uniform_value
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value


@dataclass(frozen=True, kw_only=True)
class PaddingLeak:
    """Padded positions of the mask `keep` reach `output` of `graph` through `dirt`; `states`
    are the facts of its values. `not_finite`: only because they hold NaN or infinity.
    """

    graph: Graph
    keep: str
    output: str
    dirt: PaddingSource
    states: Mapping[Value, PaddingFacts]
    not_finite: bool

    @property
    def node(self) -> Node:
        """The op that reads padded positions."""
        return self.dirt.node

    def origin(self) -> Node:
        """The op that first makes NaN or infinity at padded positions."""
        node = self.node
        while True:
            made = [a for a in node.args if a and not self._finite(a)]
            if not made:
                return node
            first = made[0].node
            assert first is not None, "an input is finite"
            node = first

    def _finite(self, value: Value) -> bool:
        """Return True if a value introduces no NaN or infinity."""
        constant = value.node is None or isinstance(value.node.op, ops.Constant)
        return constant or self.states.get(value, NO_PADDING_FACTS).finite

    def is_sorted(self) -> bool:
        """True if the output itself is in sorted order, valid positions first."""
        value = self.graph.outputs[self.output]
        ranked = self.states.get(value, NO_PADDING_FACTS).ranked
        return self.dirt.counted and self.node is value.node and bool(ranked)

    def is_moved(self) -> bool:
        """True if padding separates always-valid positions from the others."""
        reading = self.dirt.reading
        return reading is not None and (reading.apart or reading.into_apart)

    def is_padded(self, value: Value) -> bool:
        """Return True if the shape of a value contains the symbol of the padded axis."""
        symbols = self.graph.inputs[self.keep].type.shape[-1].symbols()
        return any(symbols & d.symbols() for d in value.type.shape)

    def joining(self) -> Node | None:
        """The `pad` or `concat` that added positions next to those that are read, or None."""
        node: Node | None = self.node
        while node is not None and not isinstance(node.op, ops.Pad | ops.Concat):
            node = next((a.node for a in node.args if a and self.is_padded(a)), None)
        return node

    def mask(self, node: Node) -> str:
        """Return the mask with axes put in for those of the node's operand."""
        first = next((a for a in node.args if a and self.is_padded(a)), None)
        own = self.graph.inputs[self.keep].type.shape[-1]
        shape = first.type.shape if first else (own, own)
        axes = [n for n, d in enumerate(shape) if d == own]
        # After windows and slices another mask applies: that of `conv_keep`.
        mask = self.keep if axes else "mask"
        for n in range(1, len(shape)):
            if n != (axes or [1])[-1]:
                mask = f"insert({mask}, axis={n})"
        return mask

    def declared(self, side: str) -> str:
        """Return the help that declares the side of padding."""
        lengths = ", ".join(map(str, self.graph.inputs[self.keep].type.shape))
        return f"declare `{self.keep}: keep[{lengths}] {side}`"


def make_padding_diagnostic(leak: PaddingLeak) -> Diagnostic:
    """Return the warning W0601."""
    if leak.not_finite:
        node = leak.origin()
        how, what = _describe_not_finite(leak, node)
        fix = suggest_finite_padding(leak, node)
    else:
        node = leak.node
        how, what = _describe_read(leak)
        fix = suggest_padding_fix(leak)
    span = find_node_span(leak.dirt.inside or leak.graph, node)
    return Diagnostic(
        "W0601",
        f"padded positions reach `{leak.output}`: {how}",
        Label.at(span, what),
        helps=(fix,) if fix else (),
        severity="warning",
    )


def _describe_not_finite(leak: PaddingLeak, node: Node) -> tuple[str, str]:
    """Say where NaN comes from, and mark it."""
    reader = format_op_name(leak.node.op)
    match node.op:
        case ops.Where():
            what = "this is infinite at padded positions"
        case ops.Arith() | ops.Pointwise():
            what = f"`{format_op_name(node.op)}` of zero at padded positions is not finite"
        case _:
            what = "this can be NaN at padded positions"
    return f"`{reader}` reads NaN or infinity there, which times zero is NaN", what


def _describe_read(leak: PaddingLeak) -> tuple[str, str]:
    """Say which padded positions an op reads, and mark it."""
    called, link = (format_op_name(leak.node.op), leak.dirt.reading and leak.dirt.reading.link)
    if leak.is_sorted():
        return (
            "its positions are in sorted order, those that are not padded first",
            "these positions are in sorted order",
        )
    if leak.dirt.counted:
        return (
            "a position is counted from the start of the sequence, padding included",
            "this takes the number of a position, padding included",
        )
    if leak.dirt.shifted:
        sliced = isinstance(leak.node.op, ops.Stride)
        which = "a slice with a step" if sliced else f"the stride of `{called}`"
        return (
            f"where padding stands on the left, its length decides which positions {which} takes",
            "this takes every so many positions, counted from the first",
        )
    where = ""
    if link and link.kind == "window":
        where = " before each position" if link.lo >= 0 else " next to each position"
    elif leak.is_moved():
        where = " next to positions that `pad` or `concat` added"
    return (f"`{called}` reads them{where}, no mask stands between", "this reads padded positions")


IDENTITY_LITERALS = {"max": "-inf", "min": "inf", "any": "false", "all": "true"}
"""The identity element of each reduction, as spec text."""


def suggest_padding_fix(leak: PaddingLeak) -> str:
    """Say what to write so that padding stays out; "" where nothing is known to help."""
    op = leak.node.op
    if isinstance(op, ops.RecurrentLayer | ops.Scan):
        scan = isinstance(op, ops.Scan)
        return f"add `keep {leak.keep}`" if scan else f"add `keep={leak.keep}`"
    if leak.dirt.shifted or leak.is_sorted():
        return leak.declared("right")
    if leak.dirt.counted:
        return f"use `positions({leak.keep})`"
    if isinstance(op, ops.Conv) and not leak.is_moved():
        # After a stride it is the result of the convolution before.
        return f"add `keep={leak.keep}`, or the second result of the `conv` before"
    return _suggest_number(leak) or _suggest_other(leak)


def suggest_finite_padding(leak: PaddingLeak, node: Node) -> str:
    """Say how to keep values at padded positions finite."""
    bound = ""
    match node.op:
        case ops.Arith(fn="div" | "floordiv" | "mod"):
            bound = ", or bound the divisor: `max(z, 1e-6)`"
        case ops.Where():
            bound = ", or fill with a finite number"
    return f"replace it there: `where({leak.mask(node)}, y, 0.0)`{bound}"


def _suggest_number(leak: PaddingLeak) -> str:
    """Say which number to put at padded positions; "" where none helps."""
    if leak.is_moved():
        return _suggest_added_number(leak)
    fill = _get_neutral_number(leak)
    mask = leak.mask(leak.node)
    return f"replace them first: `where({mask}, x, {fill})`" if fill else ""


def _suggest_added_number(leak: PaddingLeak) -> str:
    """Say how positions that were added hold the same as padded ones, or how padding
    stands on the other side.
    """
    made = leak.joining()
    match made and made.op:
        case ops.Pad(mode="constant", value=value):
            numbers: set[float | None] = {float(value)}
        case ops.Concat() if made is not None:
            parts = [a for a in made.args if a and not leak.is_padded(a)]
            numbers = {find_uniform_value(a) for a in parts}
        case _:
            return ""
    number = numbers.pop() if len(numbers) == 1 else None
    if number is None:
        return leak.declared(_get_other_side(leak, made))
    mask = leak.mask(made or leak.node)
    return f"replace them before it: `where({mask}, x, {number})`"


def _get_other_side(leak: PaddingLeak, node: Node | None) -> str:
    """Return the side of padding that keeps added positions next to valid ones."""
    after = node is not None and node.args[0] and leak.is_padded(node.args[0])
    return "left" if after else "right"


def _get_neutral_number(leak: PaddingLeak) -> str:
    """Return the number at padded positions that makes no difference to the op."""
    match leak.node.op:
        case ops.Reduce(fn="mean"):
            return ""
        case ops.Reduce(fn=fn):
            return IDENTITY_LITERALS.get(fn, "0.0")
        case ops.MaxPool():
            return "-inf"
        case ops.Delay(first=first):
            return str(float(first))
        case ops.Pad(mode="constant", value=value):
            return str(float(value))
        case ops.Softmax() | ops.ArgMax():
            return "-inf"
        case ops.AveragePool(counted=False, pads=pads) if any(pads):
            return ""
        case ops.CumSum() | ops.AveragePool():
            return "0.0"
    return ""


def _suggest_other(leak: PaddingLeak) -> str:
    """Say what helps for ops that no number at padded positions helps."""
    keep = leak.keep
    match op := leak.node.op:
        case ops.Reduce(fn="mean"):
            return f"use `masked_mean_pool(x, {keep})`"
        case ops.Last():
            return f"use `last_token(x, {keep})`"
        case ops.Index(at=at) if at == 0:
            return leak.declared("right")
        case ops.ConvTranspose():
            return _format_transposed_conv_help(op, keep)
        case ops.GroupNorm():
            return "normalize each position: `layer_norm(x, eps=1e-5) @ norm`"
        case ops.Stride(step=step):
            return f"let the slice run to the end of the axis: `x[:, ::{step}]`"
        case ops.Weigh() | ops.MatMul() | ops.Einsum():
            return f"multiply one factor by `{keep}` first: `where(mask, w, 0.0)`"
    return f"use `& visible({keep})`" if isinstance(op, ops.Attend | ops.MaskedWeights) else ""


def _format_transposed_conv_help(op: ops.ConvTranspose, keep: str) -> str:
    """Say how many positions of a transposed convolution are as they are alone."""
    rows = []
    for n, stride in enumerate(op.stride):
        reach = op.dilation[n] * (op.kernel[n] - 1) + 1
        more = reach - stride - op.before[n] - op.behind[n]
        many = "n" if stride == 1 else f"{stride} * n"
        rows.append(many if not more else f"{many} {'-+'[more > 0]} {abs(more)}")
    return (
        f"multiply by `{keep}` first: of n positions that exist the "
        f"{' and '.join(rows)} are then as they are alone; which those are nothing says "
        "behind this"
    )
