"""Choose the quantization format of each weight.

`int8`: W8A8 with per-token activation scales, so that batch elements are independent.
`int8-weights`: weight-only, in groups. `int4`: weight-only, with 8 bits for embeddings and
output layers, the first attention's projections, small layers and loops. `int8-tensor`: as
`int8`, but with one activation scale per tensor in recurrent layers and loops.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Value
from specc.ir.ops.quantized import ActivationRoundingMode, QuantizationFormat, WeightLayout
from specc.transforms.quantize import (
    expand_recurrent_layers,
    find_lstm_only_weights,
    find_viewed_weight,
    list_lstm_weight_pairs,
)
from specc.transforms.weight_uses import WeightUses, collect_weight_uses, find_matrix_product
from specc.weights.parameter_names import NamePattern

QuantizationKind: TypeAlias = Literal["int8", "int4", "int8-weights", "int8-tensor"]
QUANTIZATION_KINDS: tuple[QuantizationKind, ...] = ("int8", "int4", "int8-weights", "int8-tensor")
DEFAULT_GROUP_SIZE = 128
PER_TOKEN_ROUNDING: ActivationRoundingMode = "row"
PER_TENSOR_ROUNDING: ActivationRoundingMode = "tensor"
MIN_INT4_ELEMENTS = 1 << 16
"""Smaller matrices are not quantized to 4 bits."""


@dataclass(frozen=True, kw_only=True)
class QuantizationRequest:
    """The requested quantization.

    `kind` is that of weights that match no pattern; None: unquantized. Patterns match scopes or
    weights: `keep` stay unquantized, `own` have a kind each. `head` is the kind of output
    projections; with `every` also weights that `int4` would quantize to 8 bits get 4. `stored` are
    the group sizes of weights whose 4-bit codes a checkpoint holds.
    """

    kind: QuantizationKind | None
    keep: tuple[str, ...] = ()
    own: tuple[tuple[str, QuantizationKind], ...] = ()
    block: int = DEFAULT_GROUP_SIZE
    head: QuantizationKind | Literal["none", ""] = ""
    every: bool = False
    stored: Mapping[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """The quantization kinds that some weight may get."""
        return self.kind, self.head, *(kind for _, kind in self.own)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns that must match a weight."""
        return *self.keep, *(pattern for pattern, _ in self.own)


@dataclass(frozen=True)
class QuantizationDecision:
    """The chosen formats: `plan` of each quantized weight, and `kept` the reason why another
    matrix is not quantized. `unmatched` are the patterns that match none of `names`,
    `without_effect` the requests that change nothing.
    """

    plan: Mapping[str, QuantizationFormat]
    kept: Mapping[str, str]
    unmatched: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)


def choose_weight_formats(
    graph: Graph,
    wish: QuantizationRequest,
    layout: WeightLayout,
    ties: Mapping[str, str],
    *,
    rounds: bool = True,
    layers: bool = False,
) -> QuantizationDecision:
    """Choose the quantization format of each weight of a simplified graph.

    `ties` maps a tied weight to the one it shares. `layout` is how the target's kernels read
    groups, `rounds` whether they quantize activations. `layers`: the target has an integer
    LSTM.
    """
    loops = expand_recurrent_layers(graph)
    every = collect_weight_uses(loops)
    choice = _FormatChooser(
        wish=wish,
        layout=layout,
        heads=frozenset(_iterate_upstream_weights(loops, list(loops.outputs.values()))),
        first=_find_first_attention_weights(loops),
        graph=loops,
        rounds=rounds,
        layers=find_lstm_only_weights(graph) if layers else frozenset(),
    )
    plan: dict[str, QuantizationFormat] = {}
    kept: dict[str, str] = {}
    for sharing in _group_tied_weights(every, ties):
        uses = every[sharing[0]]
        for name in sharing[1:]:
            uses = uses.merge_uses(every[name])
        # A tied weight matches by each of its names.
        names = [each for name in sharing for each in _list_pattern_names(name, every[name])]
        form = (
            choice.choose_format(sharing, uses, names)
            if not wish.stored
            else choice.keep_checkpoint_format(sharing, uses)
        )
        if isinstance(form, QuantizationFormat):
            plan.update(dict.fromkeys(sharing, form))
        else:
            kept.update(dict.fromkeys(sharing, form))
    known = _list_known_names(every)
    plan = _keep_complete_pairs(plan, graph)
    return QuantizationDecision(
        plan, kept, find_unmatched_patterns(wish.patterns, known), names=known
    )


def _keep_complete_pairs(
    plan: Mapping[str, QuantizationFormat], graph: Graph
) -> dict[str, QuantizationFormat]:
    """Return the plan in which an LSTM is quantized as a layer only if both of its weights are;
    otherwise it becomes a loop whose products have one scale each.
    """
    found = dict(plan)
    layers = {name for name, form in plan.items() if form.rounding == "layer"}
    alone = [pair for pair in list_lstm_weight_pairs(graph) if not layers.issuperset(pair)]
    while alone:
        for weights, states in alone:
            _move_pair_to_loop(weights, states, found, layers)
        # layers may share a weight: those whose weight was removed become loops too
        every = list_lstm_weight_pairs(graph)
        alone = [p for p in every if layers & set(p) and not layers.issuperset(p)]
    return found


def _move_pair_to_loop(
    weights: str, states: str, plan: dict[str, QuantizationFormat], layers: set[str]
) -> None:
    """Change the formats of an LSTM's weights to those of products in a loop."""
    for name, rounding in ((weights, PER_TOKEN_ROUNDING), (states, PER_TENSOR_ROUNDING)):
        if name in layers:
            plan[name] = replace(plan[name], rounding=rounding)
            layers.remove(name)


def list_quantizable_names(graph: Graph) -> tuple[str, ...]:
    """Return the names by which patterns may match the weights of a simplified graph."""
    return _list_known_names(collect_weight_uses(expand_recurrent_layers(graph)))


def find_unmatched_patterns(patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that match none of the names."""
    names = tuple(names)
    return tuple(p for p in patterns if not _has_match(names, (p,)))


def _list_known_names(every: Mapping[str, WeightUses]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for name in every for n in _list_pattern_names(name, every[name])))


def _group_tied_weights(names: Iterable[str], ties: Mapping[str, str]) -> Iterable[list[str]]:
    """Group the names of weights that share values."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(ties.get(name, name), []).append(name)
    return found.values()


def _has_match(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return True if a pattern matches a name."""
    known = [NamePattern(p) for p in patterns]
    return any(p.matches(name) for name in names for p in known)


def _list_pattern_names(name: str, uses: WeightUses) -> list[str]:
    """Return the names that patterns may match: weight, module, and reading scopes."""
    above = name.rpartition(".")[0]
    return [n for n in dict.fromkeys((name, above, *uses.scopes)) if n]


@dataclass(frozen=True, kw_only=True)
class _FormatChooser:
    """Chooses formats; `heads` are output weights, `first` those of the first attention."""

    wish: QuantizationRequest
    layout: WeightLayout
    heads: frozenset[str]
    first: frozenset[str]
    graph: Graph
    rounds: bool
    layers: frozenset[str]

    def choose_format(
        self, sharing: list[str], uses: WeightUses, names: list[str]
    ) -> QuantizationFormat | str:
        """Return the format of a weight, or the reason why it is not quantized."""
        if why := _explain_unsupported(uses):
            return why
        if _has_match(names, self.wish.keep):
            return "requested"
        kind = self._choose_kind(sharing, uses, names)
        if kind is None:
            return "not requested"
        form = self._choose_format(kind, uses)
        if kind == "int8-tensor":
            form = self._by_tensor(sharing, uses) or form
        return replace(form, is_transposed=True) if uses.is_transposed == {True} else form

    def _choose_kind(
        self, sharing: list[str], uses: WeightUses, names: list[str]
    ) -> QuantizationKind | None:
        """Return the kind that is requested for a weight, with care for small ones."""
        # the last matching pattern takes precedence
        own = [kind for pattern, kind in self.wish.own if _has_match(names, (pattern,))]
        kind = own[-1] if own else self._choose_default_kind(sharing)
        # explicit settings of a weight, or of heads, apply to small ones too
        asked = own or (self.wish.head and self.heads & set(sharing))
        if kind == "int4" and not asked and not self.wish.every:
            return self._choose_careful_kind(sharing, uses, self.graph.parameters[sharing[0]])
        return kind

    def keep_checkpoint_format(
        self, sharing: list[str], uses: WeightUses
    ) -> QuantizationFormat | str:
        """Return the format of 4-bit codes of the checkpoint, or why they are dequantized."""
        if why := _explain_unsupported(uses):
            return why
        block = self.wish.stored.get(sharing[0], 0)
        if not block:
            return "not stored as symmetric 4-bit groups of rows"
        if uses.table or uses.is_transposed != {False}:
            return "no 4-bit kernel for this use"
        return QuantizationFormat(bits=4, group_size=block, layout=self.layout, rounding="none")

    def _choose_default_kind(self, sharing: list[str]) -> QuantizationKind | None:
        """Return the kind of a weight that no pattern matches."""
        if self.wish.head and self.heads & set(sharing):
            return None if self.wish.head == "none" else self.wish.head
        return self.wish.kind

    def _choose_careful_kind(
        self, sharing: list[str], uses: WeightUses, value: Value
    ) -> QuantizationKind:
        """Return `int4`, or 8 bits where 4 lose too much or save nothing."""
        count = 1
        # stacked weights have a separate matrix per expert
        for length in value.shape[-2:]:
            count *= length.number or 0
        named = set(sharing)
        if uses.table or self.heads & named:
            return "int8-weights"
        if count < MIN_INT4_ELEMENTS or uses.looped or self.first & named:
            return "int8"
        return "int4"

    def _by_tensor(self, sharing: list[str], uses: WeightUses) -> QuantizationFormat | None:
        """Return the int8 format with a per-tensor activation scale, for both weights of an
        LSTM and for weights read in a loop; None elsewhere, where per-token scales cost as
        little.
        """
        layer = self.layers.issuperset(sharing) and uses.is_transposed == {False}
        if uses.table or uses.routed or not (layer or uses.looped):
            return None
        return QuantizationFormat(
            bits=8, group_size=0, layout="columns", rounding="layer" if layer else "tensor"
        )

    def _choose_format(self, kind: QuantizationKind, uses: WeightUses) -> QuantizationFormat:
        """Return the format of a kind in the target's layout."""
        kept_whole = self.layout == "columns" and _is_kept_whole(kind, uses)
        if kept_whole or kind in ("int8", "int8-tensor"):
            layout = self.layout if uses.linear else "rows"
            return QuantizationFormat(bits=8, group_size=0, layout=layout, rounding="row")

        return QuantizationFormat(
            bits=4 if kind == "int4" else 8,
            group_size=self.wish.block,
            layout=self.layout,
            rounding=self._choose_block_rounding(uses),
        )

    def _choose_block_rounding(self, uses: WeightUses) -> ActivationRoundingMode:
        """Return how activations are rounded: the kernel quantizes them only if weights are packed
        in advance, and those of an expert are selected at run time.
        """
        return "block" if self.rounds and self.layout == "rows" and not uses.routed else "none"


def _is_kept_whole(kind: QuantizationKind, uses: WeightUses) -> bool:
    """Return True if a weight has no column blocks: a standard runtime converts them to rows for
    every product that it does not fuse, so not for shared tables, nor in a loop. The standard has
    no slices of stacked 4-bit weights either.
    """
    parts = uses.routed or (uses.cut and kind == "int4")
    return bool(uses.table or uses.looped or parts)


def _explain_unsupported(uses: WeightUses) -> str:
    """Return why a weight cannot be quantized; "" if it can."""
    if uses.other:
        return f"also read by {uses.other[0]}"
    if not uses.linear and not uses.table:
        return "unused"
    return "read with and without a transpose" if len(uses.is_transposed) > 1 else ""


# --- where in the graph ---------------------------------------------------------------


def _find_first_attention_weights(graph: Graph) -> frozenset[str]:
    """Return the weights of the query, key and value projections of the first attention."""
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Attend):
            read = node.op.query(node), node.op.key(node), node.op.values(node)
            return frozenset(_iterate_upstream_weights(graph, list(read)))
    return frozenset()


def _iterate_upstream_weights(graph: Graph, values: list[Value]) -> Iterable[str]:
    """Yield the weights of the nearest linear layers before some values."""
    names = {value: name for name, value in graph.parameters.items()}
    seen: set[Value] = set()
    while values:
        value = values.pop()
        node = value.node
        if node is None or value in seen:
            continue
        seen.add(value)
        if product := find_matrix_product(node):
            weight = find_viewed_weight(node.args[product.matrix])
            if weight in names:
                yield names[weight]
        elif not node.op.heavy:
            values += node.operands
