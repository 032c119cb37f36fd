"""Choose the quantization format of each weight.

`int8` is W8A8 with per-token activation scales, so that batch elements are independent.
`int8-weights` is weight-only and group-wise. `int4` is weight-only and group-wise, but uses 8 bits
for embeddings, output projections, the query, key and value projections of the first attention
layer, small layers and loops. `int8-tensor` is `int8` with one activation scale per tensor in
recurrent layers and loops.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import prod
from typing import Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.graph import Graph, Value
from specc.ir.ops.quantized import (
    ActivationRoundingMode,
    PackedWeightFormat,
    QuantizationFormat,
    WeightLayout,
)
from specc.transforms.graph_quantization import (
    expand_recurrent_layers,
    find_lstm_only_weights,
    list_lstm_weight_pairs,
)
from specc.transforms.quantizable_weights import (
    WeightUses,
    collect_weight_uses,
    find_underlying_weight,
    match_matmul,
)
from specc.weights.parameter_name_patterns import NamePattern

QuantizationKind: TypeAlias = Literal["int8", "int4", "int8-weights", "int8-tensor"]
QUANTIZATION_KINDS: tuple[QuantizationKind, ...] = ("int8", "int4", "int8-weights", "int8-tensor")
DEFAULT_GROUP_SIZE = 128
PER_TOKEN_ROUNDING: ActivationRoundingMode = "row"
PER_TENSOR_ROUNDING: ActivationRoundingMode = "tensor"
MIN_INT4_ELEMENTS = 1 << 16
"""The minimum number of elements of a matrix that is quantized to 4 bits."""


@immutable_dataclass(kw_only=True)
class QuantizationOptions:
    """The quantization options of a compilation.

    `kind` is the quantization kind of weights that match no pattern, or None to leave them
    unquantized. Patterns match the names of scopes or weights. Weights that match
    `unquantized_patterns` stay unquantized, and `kind_by_pattern` maps patterns to kinds.
    `lm_head_kind` is the kind of the output projection. With `quantizes_all_to_int4`, weights that
    `int4` would quantize to 8 bits are quantized to 4 bits. `packed_weight_formats` describes the
    weights that a checkpoint stores as 4-bit codes.
    """

    kind: QuantizationKind | None
    unquantized_patterns: tuple[str, ...] = ()
    kind_by_pattern: tuple[tuple[str, QuantizationKind], ...] = ()
    group_size: int = DEFAULT_GROUP_SIZE
    lm_head_kind: QuantizationKind | Literal["none", ""] = ""
    quantizes_all_to_int4: bool = False
    packed_weight_formats: Mapping[str, PackedWeightFormat] = field(default_factory=dict)

    @property
    def weight_kinds(self) -> tuple[str | None, ...]:
        """Return the quantization kinds that may be chosen for a weight."""
        return self.kind, self.lm_head_kind, *(kind for _, kind in self.kind_by_pattern)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of all these options. Each pattern must match at least one weight."""
        return *self.unquantized_patterns, *(pattern for pattern, _ in self.kind_by_pattern)


@immutable_dataclass()
class QuantizationDecision:
    """The quantization formats that were chosen for the weights of a graph.

    `plan` maps quantized weights to formats, and `unquantized_reasons` maps each remaining matrix
    to the reason why it is not quantized. `unmatched_patterns` contains the patterns that match
    none of `weight_names`, and `ineffective_options` contains the options that have no effect.
    """

    plan: Mapping[str, QuantizationFormat]
    unquantized_reasons: Mapping[str, str]
    unmatched_patterns: tuple[str, ...] = ()
    ineffective_options: tuple[str, ...] = ()
    weight_names: tuple[str, ...] = field(default=(), repr=False)


def choose_weight_formats(
    graph: Graph,
    options: QuantizationOptions,
    layout: WeightLayout,
    ties: Mapping[str, str],
    *,
    quantizes_activations: bool = True,
    has_quantized_lstm: bool = False,
) -> QuantizationDecision:
    """Choose the quantization format of each weight of a simplified graph.

    `ties` maps a tied weight to the weight that stores its values. `layout` is the layout in which
    the target's kernels expect groups. `quantizes_activations` is True if the target's kernels
    quantize activations. `has_quantized_lstm` is True if the target has an int8 LSTM.
    """
    loops = expand_recurrent_layers(graph)
    uses_by_weight = collect_weight_uses(loops)
    chooser = _FormatChooser(
        options=options,
        layout=layout,
        lm_head_weights=frozenset(_iterate_upstream_weights(loops, list(loops.outputs.values()))),
        first_attention_weights=_find_first_attention_weights(loops),
        graph=loops,
        quantizes_activations=quantizes_activations,
        quantized_lstm_weights=find_lstm_only_weights(graph) if has_quantized_lstm else frozenset(),
    )
    plan: dict[str, QuantizationFormat] = {}
    reasons: dict[str, str] = {}
    for tied_names in _group_tied_weights(uses_by_weight, ties):
        uses = uses_by_weight[tied_names[0]]
        for name in tied_names[1:]:
            uses = uses.merge_uses(uses_by_weight[name])
        # A pattern may match any of the names of a tied weight.
        names = [p for n in tied_names for p in _list_pattern_names(n, uses_by_weight[n])]
        format = (
            chooser.choose_format(tied_names, uses, names)
            if not options.packed_weight_formats
            else chooser.choose_checkpoint_format(tied_names, uses)
        )
        if isinstance(format, QuantizationFormat):
            plan.update(dict.fromkeys(tied_names, format))
        else:
            reasons.update(dict.fromkeys(tied_names, format))
    known_names = _list_known_names(uses_by_weight)
    plan = _keep_complete_pairs(plan, graph)
    unmatched = find_unmatched_patterns(options.patterns, known_names)
    return QuantizationDecision(plan, reasons, unmatched, weight_names=known_names)


def _keep_complete_pairs(
    plan: Mapping[str, QuantizationFormat], graph: Graph
) -> dict[str, QuantizationFormat]:
    """Return `plan` with MatMul formats for LSTMs in which only one weight is quantized. Such an
    LSTM becomes a loop with one activation scale per MatMul, not a `quantized_lstm`.
    """
    formats = dict(plan)
    layers = {name for name, form in plan.items() if form.rounding == "layer"}
    incomplete = [pair for pair in list_lstm_weight_pairs(graph) if not layers.issuperset(pair)]
    while incomplete:
        for weights, states in incomplete:
            _move_pair_to_loop(weights, states, formats, layers)
        # if two LSTMs share a weight and one of the LSTMs becomes a loop, the other one also
        # becomes a loop
        lstms = list_lstm_weight_pairs(graph)
        incomplete = [p for p in lstms if layers & set(p) and not layers.issuperset(p)]
    return formats


def _move_pair_to_loop(
    weights: str, states: str, plan: dict[str, QuantizationFormat], lstm_weights: set[str]
) -> None:
    """Set MatMul formats for both weights of an LSTM, and remove them from `lstm_weights`."""
    for name, rounding in ((weights, PER_TOKEN_ROUNDING), (states, PER_TENSOR_ROUNDING)):
        if name in lstm_weights:
            plan[name] = replace(plan[name], rounding=rounding)
            lstm_weights.remove(name)


def list_quantizable_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of weights and scopes that patterns can match, in a simplified graph."""
    return _list_known_names(collect_weight_uses(expand_recurrent_layers(graph)))


def find_unmatched_patterns(patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that do not match any of `names`."""
    names = tuple(names)
    return tuple(p for p in patterns if not _has_match(names, (p,)))


def _list_known_names(uses_by_weight: Mapping[str, WeightUses]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            n for name in uses_by_weight for n in _list_pattern_names(name, uses_by_weight[name])
        )
    )


def _group_tied_weights(names: Iterable[str], ties: Mapping[str, str]) -> Iterable[list[str]]:
    """Group weight names. Each group contains a weight and all weights that are tied to it."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(ties.get(name, name), []).append(name)
    return groups.values()


def _has_match(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return True if a pattern matches a name."""
    name_patterns = [NamePattern(p) for p in patterns]
    return any(p.matches(name) for name in names for p in name_patterns)


def _list_pattern_names(name: str, uses: WeightUses) -> list[str]:
    """Return the names by which patterns match a weight: its parameter, its module, and the scopes
    that use the weight.
    """
    module = name.rpartition(".")[0]
    return [n for n in dict.fromkeys((name, module, *uses.scopes)) if n]


@immutable_dataclass(kw_only=True)
class _FormatChooser:
    """A helper that chooses the format of each weight. `lm_head_weights` are the output
    projection's weights, and `first_attention_weights` are the first attention layer's weights.
    """

    options: QuantizationOptions
    layout: WeightLayout
    lm_head_weights: frozenset[str]
    first_attention_weights: frozenset[str]
    graph: Graph
    quantizes_activations: bool
    quantized_lstm_weights: frozenset[str]

    def choose_format(
        self, tied_names: list[str], uses: WeightUses, names: list[str]
    ) -> QuantizationFormat | str:
        """Return the format of a weight, or the reason why it is not quantized. `tied_names`
        contains the names of the tied weights, and `names` contains all names that patterns can
        match.
        """
        if reason := _explain_unsupported(uses):
            return reason
        if _has_match(names, self.options.unquantized_patterns):
            return "requested"
        kind = self._choose_kind(tied_names, uses, names)
        if kind is None:
            return "not requested"
        format = self._choose_format(kind, uses)
        if kind == "int8-tensor":
            format = self._choose_per_tensor_format(tied_names, uses) or format
        return replace(format, is_transposed=True) if uses.orientations == {True} else format

    def _choose_kind(
        self, tied_names: list[str], uses: WeightUses, names: list[str]
    ) -> QuantizationKind | None:
        """Choose the quantization kind of a weight. An 8-bit kind may replace `int4`."""
        # the last matching pattern takes precedence
        requested_kinds = [
            kind for pattern, kind in self.options.kind_by_pattern if _has_match(names, (pattern,))
        ]
        kind = requested_kinds[-1] if requested_kinds else self._choose_default_kind(tied_names)
        # patterns and `lm_head_kind` also apply to small weights
        is_head = self.options.lm_head_kind and self.lm_head_weights & set(tied_names)
        is_requested = requested_kinds or is_head or self.options.quantizes_all_to_int4
        if kind == "int4" and not is_requested:
            return self._choose_careful_kind(tied_names, uses, self.graph.parameters[tied_names[0]])
        return kind

    def choose_checkpoint_format(
        self, tied_names: list[str], uses: WeightUses
    ) -> QuantizationFormat | str:
        """Return the format of the checkpoint's 4-bit codes, or the reason to dequantize them."""
        if reason := _explain_unsupported(uses):
            return reason
        packed_format = self.options.packed_weight_formats.get(tied_names[0])
        if packed_format is None:
            return "not stored as 4-bit groups of rows"
        if uses.embedding_scopes or uses.orientations != {False}:
            return "no 4-bit kernel for this use"
        return QuantizationFormat(
            bits=4,
            group_size=packed_format.group_size,
            layout=self.layout,
            rounding="none",
            has_zero_points=packed_format.has_zero_points,
        )

    def _choose_default_kind(self, tied_names: list[str]) -> QuantizationKind | None:
        """Choose the quantization kind of a weight that no pattern matches."""
        if self.options.lm_head_kind and self.lm_head_weights & set(tied_names):
            return None if self.options.lm_head_kind == "none" else self.options.lm_head_kind
        return self.options.kind

    def _choose_careful_kind(
        self, tied_names: list[str], uses: WeightUses, value: Value
    ) -> QuantizationKind:
        """Return `int4`, or an 8-bit kind if 4 bits lose accuracy or save no memory."""
        # stacked weights contain one matrix per expert
        size = prod(length.number or 0 for length in value.shape[-2:])
        names = set(tied_names)
        if uses.embedding_scopes or self.lm_head_weights & names:
            return "int8-weights"
        if size < MIN_INT4_ELEMENTS or uses.is_in_loop or self.first_attention_weights & names:
            return "int8"
        return "int4"

    def _choose_per_tensor_format(
        self, tied_names: list[str], uses: WeightUses
    ) -> QuantizationFormat | None:
        """Return the int8 format with per-tensor activation scales for a weight that is in a loop,
        or in an LSTM with two quantized weights. Return None for other weights, for which per-token
        scales are as fast.
        """
        is_lstm = self.quantized_lstm_weights.issuperset(tied_names)
        is_lstm = is_lstm and uses.orientations == {False}
        if uses.embedding_scopes or uses.is_read_by_experts or not (is_lstm or uses.is_in_loop):
            return None
        return QuantizationFormat(
            bits=8, group_size=0, layout="columns", rounding="layer" if is_lstm else "tensor"
        )

    def _choose_format(self, kind: QuantizationKind, uses: WeightUses) -> QuantizationFormat:
        """Return the storage format of a weight quantized to `kind`, in the target's layout."""
        is_per_channel = self.layout == "columns" and _needs_row_layout(kind, uses)
        if is_per_channel or kind in ("int8", "int8-tensor"):
            # integer MatMul kernels require `[in, out]`, but embedding tables and expert weights
            # are `[out, in]`
            is_rowwise = self.layout == "rows" and (
                uses.embedding_scopes or uses.is_read_by_experts
            )
            layout: WeightLayout = "rows" if is_rowwise or not uses.linear_scopes else "columns"
            return QuantizationFormat(bits=8, group_size=0, layout=layout, rounding="row")

        return QuantizationFormat(
            bits=4 if kind == "int4" else 8,
            group_size=self.options.group_size,
            layout=self.layout,
            rounding=self._choose_activation_mode(uses),
        )

    def _choose_activation_mode(self, uses: WeightUses) -> ActivationRoundingMode:
        """Return the activation quantization mode. Kernels quantize activations only for prepacked
        weights. Expert weights are not prepacked, because they are selected at run time.
        """
        return (
            "block"
            if self.quantizes_activations and self.layout == "rows" and not uses.is_read_by_experts
            else "none"
        )


def _needs_row_layout(kind: QuantizationKind, uses: WeightUses) -> bool:
    """Return True if the groups of a weight cannot be stored in the layout `columns`. A runtime
    converts the layout `columns` to `rows` for every unfused MatMul. This conversion is slow for
    embedding tables and in loops. Standard ONNX cannot slice stacked 4-bit weights.
    """
    has_slices = uses.is_read_by_experts or (uses.is_sliced and kind == "int4")
    return bool(uses.embedding_scopes or uses.is_in_loop or has_slices)


def _explain_unsupported(uses: WeightUses) -> str:
    """Return the reason why a weight cannot be quantized, or "" if it can be quantized."""
    if uses.unquantizable_uses:
        return f"also used by {uses.unquantizable_uses[0]}"
    if not uses.linear_scopes and not uses.embedding_scopes:
        return "unused"
    return "used both with and without a transpose" if len(uses.orientations) > 1 else ""


# --- weights of the first attention layer ---------------------------------------------


def _find_first_attention_weights(graph: Graph) -> frozenset[str]:
    """Return the weights of the query, key and value projections of the first attention layer."""
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Attend):
            operands = node.op.query(node), node.op.key(node), node.op.value(node)
            return frozenset(_iterate_upstream_weights(graph, list(operands)))
    return frozenset()


def _iterate_upstream_weights(graph: Graph, values: list[Value]) -> Iterable[str]:
    """Yield the weights of the nearest linear layers before `values`, and clear `values`."""
    names = {value: name for name, value in graph.parameters.items()}
    visited: set[Value] = set()
    while values:
        value = values.pop()
        node = value.node
        if node is None or value in visited:
            continue
        visited.add(value)
        if product := match_matmul(node):
            weight = find_underlying_weight(node.args[product.matrix_index])
            if weight in names:
                yield names[weight]
        elif not node.op.is_compute_intensive:
            values += node.operands
