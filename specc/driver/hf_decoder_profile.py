"""Export decoders in the profiles `hf` and `genai`. The inputs are the token ids, the mask and the
past KV caches. The outputs are the logits and the present KV caches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Input,
    Node,
    Value,
    collect_required_nodes,
    collect_shape_symbols,
    select_entries,
    substitute_graph_symbols,
)
from specc.ir.model_definition import PAST_LENGTH_INPUT, DecodeState, DerivedGraphs
from specc.ir.op import Op
from specc.ir.types import Type


@dataclass(frozen=True)
class ExportedGraphs:
    """Derived graphs with the input and output names of an export profile.

    `graphs` maps the stem of each model file, such as `decoder_model`, to its graph. `states` are
    the KV caches, with the names that the profile defines. `json_files` contains the JSON files to
    write next to the graphs, keyed by name.
    """

    graphs: Mapping[str, Graph]
    states: tuple[DecodeState, ...]
    json_files: Mapping[str, object] = field(default_factory=dict)


PROFILE_READERS = {
    "hf": "a library that loads this profile (Optimum, transformers.js)",
    "genai": "onnxruntime-genai",
}
"""Libraries that load models of each export profile, for error messages."""


def raise_unsupported_profile_error(
    profile: str, reason: str, notes: Iterable[str] = ()
) -> NoReturn:
    """Raise E0752 with the reason why the profile cannot represent the model."""
    raise_error(
        "E0752",
        f"this model does not fit the profile `{profile}`: {reason}",
        notes=notes,
        helps=["`--io-names specc` supports all models: each state is an input and an output"],
    )


@dataclass
class GraphCopier(GraphBuilder):
    """A builder that copies nodes of other graphs. `copied_values` maps the original values to
    their copies.
    """

    copied_values: dict[Value, Value] = field(default_factory=dict)
    min_lengths: dict[str, int] = field(default_factory=dict)
    length_equations: dict[str, Dim] = field(default_factory=dict)

    def copy_required_nodes(self, graph: Graph, requested: Iterable[Value]) -> None:
        """Copy the nodes of `graph` on which `requested` depends. Each node is copied at most
        once.
        """
        copied = self.copied_values
        required = collect_required_nodes(
            [v for v in requested if v not in copied],
            lambda node: [a for a in node.args if a not in copied],
        )
        names = {value: name for name, value in graph.parameters.items()}
        for node, results in graph.nodes:
            if node not in required:
                continue
            for a in node.operands:
                if a in names and a not in copied:
                    copied[a] = self.add_parameter(graph.parameter_facts[names[a]])
            copies = self._copy_without_empty_operands(node)
            copied.update(zip(results, copies, strict=True))
            if (origin := graph.node_origins.get(node)) and copies[0].node:
                self.node_origins.setdefault(copies[0].node, origin)
        self.names |= {n: copied[v] for n, v in graph.names.items() if v in copied}
        self.min_lengths |= graph.min_lengths
        self.length_equations |= graph.length_equations

    def _copy_without_empty_operands(self, node: Node) -> tuple[Value, ...]:
        """Copy a node. Replace a concatenation with its only non-empty operand."""
        args = [a and self.copied_values[a] for a in node.args]
        if isinstance(node.op, ops.Concat):
            non_empty = tuple(a for a in args if a and a.shape[node.op.axis] != 0)
            if len(non_empty) == 1:
                return non_empty
        return self.add_node(node.op, *args)

    def make_constant(self, type: Type, value: float | bool) -> Value:
        """Return the constant `value` expanded to the shape and dtype of `type`."""
        constant = self.add_op(ops.Constant(value, type.dtype))
        for axis, length in enumerate(type.shape):
            constant = self.add_op(ops.Insert(axis), constant)
            constant = self.add_op(ops.Expand(axis, length), constant)
        return constant

    def declare_input(self, graph: Graph, source: str, name: str) -> None:
        """Declare the input `source` of `graph` under the name `name`."""
        value, facts = graph.inputs[source], graph.input_facts[source]
        self.copied_values[value] = self.add_input(name, replace(facts, padding_side=""))

    def declare_mask_input(self, name: str, type: Type) -> Value:
        """Declare an int64 mask input (0 for padding), and return the mask cast to bool."""
        mask = self.add_input(name, Input(Type("i64", type.shape)))
        return self.add_op(ops.Compare("ne"), mask, self.add_op(ops.Constant(0, "i64")))

    def declare_cache_input(self, step: Graph, state: DecodeState, name: str) -> None:
        """Declare a KV cache of `step` as input `name`, and convert it to the step's layout."""
        value = step.inputs[state.name]
        cache = self.add_input(name, Input(get_exported_state_type(state, value.type)))
        op = get_cache_layout(state).import_op
        self.copied_values[value] = self.add_op(op, cache) if op else cache

    def finish_graph(self, name: str, outputs: Mapping[str, Value]) -> Graph:
        """Return the graph of all copied nodes, with the bounds of its symbolic dimensions."""
        symbols = collect_shape_symbols(self.inputs.values())
        return self.build_graph(
            name,
            outputs,
            min_lengths=select_entries(self.min_lengths, symbols),
            length_equations=select_entries(self.length_equations, symbols),
        )


def rename_symbolic_dimensions(graph: Graph, lengths: Mapping[str, Dim]) -> Graph:
    """Return `graph` with the symbolic dimensions `lengths` replaced by other symbols or integers.

    An existing symbol with the same name as a new symbol is renamed with a trailing `_`.
    """
    symbols = collect_shape_symbols(graph.inputs.values())
    new_symbols = set().union(*(d.symbols() for d in lengths.values()))
    # if the spec calls an axis other than the batch axis `batch_size`, rename this axis to
    # `batch_size_`
    renamed_symbols = {s: Dim.symbol(f"{s}_") for s in (symbols - lengths.keys()) & new_symbols}
    substitutions = {**renamed_symbols, **{s: d for s, d in lengths.items() if d.name != s}}

    def get_new_name(symbol: str) -> str:
        """Return the new name of a symbolic dimension, or "" if an integer replaces the symbol."""
        return substitutions[symbol].name or "" if symbol in substitutions else symbol

    renamed = substitute_graph_symbols(graph, substitutions)
    min_lengths = {
        get_new_name(s): minimum for s, minimum in graph.min_lengths.items() if get_new_name(s)
    }
    equations = graph.length_equations.items()
    length_equations = {
        get_new_name(s): d.substitute(substitutions) for s, d in equations if get_new_name(s)
    }
    return replace(renamed, min_lengths=min_lengths, length_equations=length_equations)


STATE_DESCRIPTIONS = {
    "carry": "the state of a loop or a cumulative sum",
    "rows": "a cache of values other than attention keys or values",
}
"""Descriptions of the decode states that are not attention keys or values, for messages."""


CACHE_PARTS = ("key", "value")
"""The order of the key and value caches in model files. Inference programs rely on the order of the
caches.
"""
CacheLayer: TypeAlias = Mapping[str, DecodeState]
"""The key cache and the value cache of one attention layer, in the order of `CACHE_PARTS`."""


def list_cache_layers(profile: str, derived_graphs: DerivedGraphs) -> tuple[CacheLayer, ...]:
    """Return the KV caches in the order of the attention layers. Raise E0752 if a step has a state
    other than the keys and values of an attention layer.
    """
    layers_by_index: dict[int, dict[str, DecodeState]] = {}
    for state in sorted(derived_graphs.states, key=lambda s: s.name == PAST_LENGTH_INPUT):
        _check_state(profile, state)
        layers_by_index.setdefault(state.layer, {})[state.role] = state
    for states in layers_by_index.values():
        if missing := {*CACHE_PARTS} - states.keys():
            (state,) = states.values()
            raise_unsupported_profile_error(
                profile,
                f"`{_format_state_name(state)}` caches only {state.role}s, "
                f"without {missing.pop()}s",
            )
    if not layers_by_index:
        raise_unsupported_profile_error(
            profile, "the step graph has no state, so there are no keys and values to name"
        )
    ordered_layers = (states for _, states in sorted(layers_by_index.items()))
    return tuple({part: states[part] for part in CACHE_PARTS} for states in ordered_layers)


def _check_state(profile: str, state: DecodeState) -> None:
    """Raise E0752 if the profile cannot represent a state."""
    name = f"`{_format_state_name(state)}`"
    if state.role not in CACHE_PARTS:
        reason = f"the step graph has the state {name}, {STATE_DESCRIPTIONS[state.role]}"
        note = "passes only keys and values between steps"
    elif state.initial_output:
        reason, note = f"{name} starts with prefix positions", "starts with empty caches"
    elif state.max_positions != inf:
        plural = "s" * (state.max_positions > 1)
        reason = f"{name} keeps only the newest {state.max_positions:.0f} position{plural}"
        note = (
            "infers the number of past tokens from the cache length, "
            "so the cache must keep all positions"
        )
    elif (state.type.rank, state.time_axis, state.batch_axis) not in CACHE_LAYOUTS:
        reason = f"{name} has the type {state.type}"
        note = "expects caches of shape [batch, heads, positions, features]"
    else:
        return
    raise_unsupported_profile_error(profile, reason, [f"{PROFILE_READERS[profile]} {note}"])


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of a decode state relative to [batch, heads, positions, features]. `axes` are the
    axes of the state (None for an axis of size 1). `import_op` converts a KV cache to the state,
    and `export_op` converts the state to a KV cache.
    """

    axes: tuple[int | None, ...]
    import_op: Op | None = None
    export_op: Op | None = None


SWAP_HEADS = ops.Transpose((0, 2, 1, 3))
CACHE_LAYOUTS: Mapping[tuple[int, int | None, int | None], CacheLayout] = {
    (4, 2, 0): CacheLayout((0, 1, 2, 3)),
    (4, 1, 0): CacheLayout((0, 2, 1, 3), SWAP_HEADS, SWAP_HEADS),
    (3, 1, 0): CacheLayout((0, None, 1, 2), ops.Squeeze(1), ops.Insert(1)),
}
"""The cache layouts that profiles support, keyed by rank, time axis and batch axis of the state."""


def _format_state_name(state: DecodeState) -> str:
    return state.name.removeprefix("past.")


def get_cache_layout(state: DecodeState) -> CacheLayout:
    """Return the layout of a decode state that `list_cache_layers` accepts."""
    return CACHE_LAYOUTS[state.type.rank, state.time_axis, state.batch_axis]


def get_exported_state_type(state: DecodeState, type: Type) -> Type:
    """Return the type of an exported state: [batch, heads, positions, features]."""
    axes = get_cache_layout(state).axes
    return Type.of(type.dtype, *(1 if axis is None else type.shape[axis] for axis in axes))


IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BATCH, NEW, PAST = "batch_size", "sequence_length", "past_sequence_length"
PAST_CACHE, PRESENT_CACHE = "past_key_values.{}.{}", "present.{}.{}"


def build_decoder(
    profile: str, derived_graphs: DerivedGraphs, source: str
) -> tuple[Graph, tuple[DecodeState, ...]]:
    """Return the step graph and its decode states with the names of the profile.

    `source` is the output from which the next token is sampled. Raise E0752 if the model has an
    encoder, or a state or an input that the profile cannot represent.
    """
    layers = list_cache_layers(profile, derived_graphs)
    if derived_graphs.encode is not None or derived_graphs.loop_invariant_inputs:
        encoder_outputs = derived_graphs.encode.outputs if derived_graphs.encode else ()
        names = (*derived_graphs.loop_invariant_inputs, *encoder_outputs)
        raise_unsupported_profile_error(
            profile,
            f"`{names[0]}` is computed once and passed to every step",
            [f"{PROFILE_READERS[profile]} does not run an encoder"],
        )
    lengths = map_dims_to_profile_symbols(derived_graphs, layers)
    step = rename_symbolic_dimensions(derived_graphs.step, lengths)
    copier = GraphCopier()
    copier.declare_input(step, derived_graphs.sequence_input, IDS)
    for name, value in step.inputs.items():
        if name == derived_graphs.sequence_input or name in {s.name for s in derived_graphs.states}:
            continue
        copier.copied_values[value] = _declare_other_input(
            profile,
            copier,
            name,
            value,
            step.input_facts[name],
            name in derived_graphs.full_length_inputs,
        )
    for index, layer in enumerate(layers):
        for part, state in layer.items():
            copier.declare_cache_input(step, state, PAST_CACHE.format(index, part))
    copier.copy_required_nodes(step, step.outputs.values())
    outputs = {LOGITS: copier.copied_values[step.outputs[source]]}
    outputs |= build_cache_outputs(copier, step, layers, PRESENT_CACHE)
    outputs |= collect_extra_outputs(copier, step, derived_graphs, source)
    states = rename_decode_states(step, layers, PAST_CACHE, PRESENT_CACHE)
    return copier.finish_graph(step.name, outputs), states


def map_dims_to_profile_symbols(
    derived_graphs: DerivedGraphs, layers: tuple[CacheLayer, ...]
) -> dict[str, Dim]:
    """Map the step's batch size, new length and past length to the symbols of the profile."""
    batch, new = derived_graphs.step.inputs[derived_graphs.sequence_input].shape
    key = layers[0]["key"]
    past = key.type.shape[key.time_axis if key.time_axis is not None else 0]
    profile_dims = {d.name: Dim.symbol(n) for d, n in ((batch, BATCH), (new, NEW), (past, PAST))}
    return {name: dim for name, dim in profile_dims.items() if name}


def _declare_other_input(
    profile: str, copier: GraphCopier, name: str, value: Value, facts: Input, covers_past: bool
) -> Value:
    """Declare an input other than the token ids: the attention mask or the position ids."""
    batch_size, new_length = value.shape if value.rank == 2 else (None, None)
    if facts.padding_side and batch_size is not None and new_length is not None:
        if MASK in copier.inputs:
            raise_unsupported_profile_error(
                profile,
                f"`{name}` is a second mask",
                [f"{PROFILE_READERS[profile]} passes only one mask, `{MASK}`"],
            )
        if covers_past:
            return copier.declare_mask_input(MASK, value.type)
        total_length = Dim.symbol(PAST) + new_length
        mask = copier.declare_mask_input(MASK, Type.of("bool", batch_size, total_length))
        return copier.add_op(ops.Slice(1, Dim.symbol(PAST), total_length), mask)
    if name == POSITIONS and value.dtype == "i64" and not covers_past:
        return copier.add_input(POSITIONS, facts)
    raise_unsupported_profile_error(
        profile,
        f"the profile has no name for the input `{name}`",
        [f"{PROFILE_READERS[profile]} passes only `{IDS}`, `{MASK}` and `{POSITIONS}`"],
    )


def build_cache_outputs(
    copier: GraphCopier, step: Graph, layers: tuple[CacheLayer, ...], name: str
) -> dict[str, Value]:
    """Return the present keys and values, including the new positions, keyed by output name. `name`
    is a format string with two fields: the layer index, and `key` or `value`.
    """
    outputs = {}
    for index, layer in enumerate(layers):
        for part, state in layer.items():
            cache = copier.copied_values[step.outputs[state.next_output]]
            op = get_cache_layout(state).export_op
            outputs[name.format(index, part)] = copier.add_op(op, cache) if op else cache
    return outputs


def collect_extra_outputs(
    copier: GraphCopier, step: Graph, derived_graphs: DerivedGraphs, source: str
) -> dict[str, Value]:
    """Return the outputs of `step` except `source` and the next states, e.g. taps."""
    excluded_names = {source, *(s.next_output for s in derived_graphs.states)}
    return {n: copier.copied_values[v] for n, v in step.outputs.items() if n not in excluded_names}


def rename_decode_states(
    step: Graph, layers: tuple[CacheLayer, ...], past: str, present: str
) -> tuple[DecodeState, ...]:
    """Return the decode states of `step` with the names of the profile."""
    return tuple(
        replace(
            state,
            name=past.format(index, part),
            next_output=present.format(index, part),
            type=get_exported_state_type(state, step.inputs[state.name].type),
            batch_axis=0,
            time_axis=2,
            layer=index,
        )
        for index, layer in enumerate(layers)
        for part, state in layer.items()
    )
