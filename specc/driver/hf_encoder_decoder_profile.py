"""Export encoder-decoder models as the three graphs that Optimum and transformers.js load."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specc.driver.hf_decoder_profile import (
    CACHE_PARTS,
    IDS,
    LOGITS,
    MASK,
    NEW,
    PAST,
    PROFILE_READERS,
    CacheLayer,
    ExportedGraphs,
    GraphCopier,
    build_cache_outputs,
    collect_extra_outputs,
    list_cache_layers,
    map_dims_to_profile_symbols,
    raise_unsupported_profile_error,
    rename_decode_states,
    rename_symbolic_dimensions,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value, collect_required_nodes
from specc.ir.model_definition import DecodeState, DerivedGraphs


def find_encoder_output(
    encode: Graph, source: Value, loop_invariant_inputs: Iterable[Value]
) -> Value | None:
    """Return the last value [batch, positions, features] on every path from `source` to
    `loop_invariant_inputs`, or None if there is no such value. Values that do not depend on
    `source`, such as a mask computed from another input, are ignored.
    """
    dominators: dict[Value, Value | None] = {source: None}
    depth = {source: 0}

    def merge_dominators(a: Value, b: Value) -> Value:
        while a is not b:
            if depth[a] < depth[b]:
                a, b = b, a
            parent = dominators[a]
            assert parent is not None, "only values that depend on the source are visited"
            a = parent
        return a

    def find_common_dominator(values: Iterable[Value]) -> Value | None:
        dominator: Value | None = None
        for value in values:
            if value in dominators:
                dominator = value if dominator is None else merge_dominators(dominator, value)
        return dominator

    for node, results in encode.nodes:
        if (parent := find_common_dominator(filter(None, node.args))) is not None:
            for result in results:
                dominators[result], depth[result] = parent, depth[parent] + 1
    dominator = find_common_dominator(loop_invariant_inputs)
    while dominator is not None and not _is_hidden_state(dominator, source):
        dominator = dominators[dominator]
    return dominator


def _is_hidden_state(value: Value, source: Value) -> bool:
    return (
        value.rank == 3
        and value.dtype == "f32"
        and value.shape[0] == source.shape[0]
        and value is not source
    )


def find_cross_attention_inputs(
    step: Graph, loop_invariant_inputs: Iterable[str]
) -> list[dict[str, str]]:
    """Return the names of the key and the value of each cross-attention, in graph order."""
    names: dict[Value, str] = {
        step.inputs[name]: name for name in loop_invariant_inputs if name in step.inputs
    }
    attentions: list[dict[str, str]] = []
    for node, results in step.nodes:
        if isinstance(node.op, ops.Attend):
            pairs = zip(CACHE_PARTS, node.args[1:3], strict=True)
            if pair := {part: names[value] for part, value in pairs if value in names}:
                attentions.append(pair)
        elif node.op.is_view and len(node.args) == 1 and node.args[0] in names:
            names |= dict.fromkeys(results, names[node.args[0]])
    return attentions


SOURCE_LENGTH = "encoder_sequence_length"
ENCODER_INPUT_NAMES = {
    ("i64", 2): "input_ids",
    ("f32", 4): "pixel_values",
    ("f32", 3): "input_features",
}
"""Names of the encoder input (tokens, images or audio), keyed by element type and rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderComponents:
    """Components of an encoder-decoder model. `encoder_mask` is "" if the encoder has no mask.
    `cache_layers` are the self-attention caches, and `cross_attentions` are the cross-attention
    keys and values. `renamed_lengths` are the new names of symbolic dimensions.
    """

    derived_graphs: DerivedGraphs
    encoder_graph: Graph
    encoder_input: str
    encoder_mask: str
    encoder_output: Value
    cache_layers: tuple[CacheLayer, ...]
    cross_attentions: Sequence[Mapping[str, str]]
    renamed_lengths: Mapping[str, Dim]


def find_encoder_decoder_components(derived_graphs: DerivedGraphs) -> EncoderDecoderComponents:
    """Find the components of an encoder-decoder. Raise E0752 for an unsupported model."""
    encode, invariant_inputs = derived_graphs.encode, derived_graphs.loop_invariant_inputs
    if encode is None:
        names = ", ".join(f"`{n}`" for n in invariant_inputs)
        raise_unsupported_profile_error(
            "hf", f"{names} is passed to every step unchanged, without an encoder"
        )
    cache_layers = list_cache_layers("hf", derived_graphs)
    encoder_input, mask = _find_encoder_inputs(encode, derived_graphs)
    encoder_output = find_encoder_output(
        encode, encode.inputs[encoder_input], encode.outputs.values()
    )
    if encoder_output is None:
        raise_unsupported_profile_error(
            "hf",
            "the decoder does not attend to a single encoder output of shape "
            "[batch, positions, features]",
        )
    lengths = map_dims_to_profile_symbols(derived_graphs, cache_layers)
    if source_symbol := encoder_output.shape[1].name:
        lengths[source_symbol] = Dim.symbol(SOURCE_LENGTH)
    layout = EncoderDecoderComponents(
        derived_graphs=derived_graphs,
        encoder_graph=encode,
        encoder_input=encoder_input,
        encoder_mask=mask,
        encoder_output=encoder_output,
        cache_layers=cache_layers,
        cross_attentions=find_cross_attention_inputs(derived_graphs.step, invariant_inputs),
        renamed_lengths=lengths,
    )
    _check_layers(layout)
    return layout


def _check_layers(layout: EncoderDecoderComponents) -> None:
    """Raise E0752 unless each layer has one cross-attention and only cross-attentions use the
    encoder.
    """
    for pair in layout.cross_attentions:
        # if keys and values share a projection, the cache would have two names
        if pair.keys() != {"key", "value"} or len(set(pair.values())) == 1:
            first = next(iter(pair.values()))
            raise_unsupported_profile_error("hf", f"`{first}` is used both as keys and as values")
    if len(layout.cross_attentions) != len(layout.cache_layers):
        self_count, cross_count = len(layout.cache_layers), len(layout.cross_attentions)
        raise_unsupported_profile_error(
            "hf",
            f"the decoder has {self_count} self-attentions and {cross_count} cross-attentions",
            [f"{PROFILE_READERS['hf']} expects one of each in every layer"],
        )
    key_value_names = {n for pair in layout.cross_attentions for n in pair.values()}
    encoder_outputs = layout.encoder_graph.outputs
    for name in (n for n in layout.derived_graphs.loop_invariant_inputs if n in encoder_outputs):
        # outputs of `encode` that depend only on the mask are recomputed from the mask
        if name not in key_value_names and depends_on_encoder_input(layout, name):
            raise_unsupported_profile_error(
                "hf", f"`{name}` is passed to the decoder and is not a key or value of an attention"
            )


def depends_on_encoder_input(parts: EncoderDecoderComponents, name: str) -> bool:
    """Return True if the output `name` of `encode` depends on the encoder's input."""
    source, output = (
        parts.encoder_graph.inputs[parts.encoder_input],
        parts.encoder_graph.outputs[name],
    )
    nodes = collect_required_nodes([output])
    return output is source or any(source in node.args for node in nodes)


def _find_encoder_inputs(encode: Graph, derived_graphs: DerivedGraphs) -> tuple[str, str]:
    """Return the names of the encoder's input and mask ("" if the encoder has no mask)."""
    mask = _find_encoder_mask(encode, derived_graphs)
    encoder_input = _find_encoder_input(encode, derived_graphs, mask)
    for name in derived_graphs.loop_invariant_inputs:
        if name not in encode.outputs and name != mask:
            raise_unsupported_profile_error(
                "hf",
                f"every step uses the input `{name}`",
                ["only a mask may be passed to the decoder unchanged"],
            )
    return encoder_input, mask


def _find_encoder_mask(encode: Graph, derived_graphs: DerivedGraphs) -> str:
    """Return the name of the encoder's padding mask, or "" if the encoder has no mask."""
    # masks that only the decoder uses are inputs of every step
    masks = [n for n in encode.inputs if encode.input_facts[n].padding_side]
    step, facts = derived_graphs.step, derived_graphs.step.input_facts
    step_inputs = [n for n in derived_graphs.loop_invariant_inputs if n in step.inputs]
    masks += [n for n in step_inputs if facts[n].padding_side and n not in masks]
    if len(masks) > 1:
        raise_unsupported_profile_error(
            "hf",
            f"the encoder has two masks, `{masks[0]}` and `{masks[1]}`",
            ["the profile allows one mask"],
        )
    return masks[0] if masks else ""


def _find_encoder_input(encode: Graph, derived_graphs: DerivedGraphs, mask: str) -> str:
    """Return the name of the encoder's only input other than the mask."""
    # the generated tokens are a decoder input, even if `encode` has the same input
    data_inputs = [n for n in encode.inputs if n not in (mask, derived_graphs.sequence_input)]
    types = [encode.inputs[n].type for n in data_inputs]
    if len(data_inputs) != 1 or (types[0].dtype, types[0].rank) not in ENCODER_INPUT_NAMES:
        names = ", ".join(f"`{n}` {t}" for n, t in zip(data_inputs, types, strict=True))
        raise_unsupported_profile_error(
            "hf",
            f"the inputs of the encoder are {names or 'missing'}",
            ["the profile allows one input: tokens, an image or audio features"],
        )
    return data_inputs[0]


HIDDEN, LAST, CROSS_MASK = ("encoder_hidden_states", "last_hidden_state", "encoder_attention_mask")
PAST_SELF_ATTENTION, PRESENT_SELF_ATTENTION = (
    "past_key_values.{}.decoder.{}",
    "present.{}.decoder.{}",
)
PAST_CROSS_ATTENTION, PRESENT_CROSS_ATTENTION = (
    "past_key_values.{}.encoder.{}",
    "present.{}.encoder.{}",
)


def build_encoder_decoder_graphs(derived_graphs: DerivedGraphs, source: str) -> ExportedGraphs:
    """Build the three exported graphs. Tokens are sampled from the output `source`. Raise E0752 if
    the decoder uses encoder values other than keys, values and a mask.
    """
    layout = find_encoder_decoder_components(derived_graphs)
    decoder, _ = _build_decoder(layout, source, without_past=True)
    decoder_with_past, states = _build_decoder(layout, source, without_past=False)
    graphs = {
        "encoder_model": _build_encoder(layout),
        "decoder_model": decoder,
        "decoder_with_past_model": decoder_with_past,
    }
    # the caches are inputs of `decoder_with_past_model`; in `decoder_model` they are only outputs
    return ExportedGraphs(graphs, states)


def _build_encoder(layout: EncoderDecoderComponents) -> Graph:
    """Return the graph `encoder_model`: the nodes of `encode` that compute the encoder output."""
    encode, encoder_output = _rename_encoder(layout)
    copier = GraphCopier()
    type = encode.inputs[layout.encoder_input].type
    name = ENCODER_INPUT_NAMES[type.dtype, type.rank]
    copier.declare_input(encode, layout.encoder_input, name)
    if layout.encoder_mask in encode.inputs:
        mask = encode.inputs[layout.encoder_mask]
        copier.copied_values[mask] = copier.declare_mask_input(MASK, mask.type)
    copier.copy_required_nodes(encode, [encoder_output])
    return copier.finish_graph(encode.name, {LAST: copier.copied_values[encoder_output]})


def _build_decoder(
    layout: EncoderDecoderComponents, source: str, *, without_past: bool
) -> tuple[Graph, tuple[DecodeState, ...]]:
    """Return `decoder_model` (`without_past`) or `decoder_with_past_model`."""
    derived_graphs = layout.derived_graphs
    lengths: Mapping[str, Dim] = layout.renamed_lengths
    if without_past:
        # the past length of `decoder_model` is 0, so concatenations with the past are removed
        lengths = {n: Dim.from_value(0) if d.name == PAST else d for n, d in lengths.items()}
    step = rename_symbolic_dimensions(derived_graphs.step, lengths)
    encode, encoder_output = _rename_encoder(layout)
    copier = GraphCopier()
    # inputs are declared in the order in which the model file lists them
    copier.declare_input(step, derived_graphs.sequence_input, IDS)
    if without_past:
        hidden_states = copier.add_input(HIDDEN, Input(encoder_output.type))
        copier.copied_values[encoder_output] = hidden_states
    _declare_cross_mask(layout, copier, step, encode)
    _fill_decoder_masks(layout, copier, step)
    _add_past_caches(layout, copier, step, without_past=without_past)
    for name in derived_graphs.loop_invariant_inputs:
        # `decoder_model` computes the cross-attention keys and values, `decoder_with_past_model`
        # has them as inputs, and both graphs compute the values that depend only on the mask
        if step.inputs[name] not in copier.copied_values:
            copier.copy_required_nodes(encode, [encode.outputs[name]])
            copier.copied_values[step.inputs[name]] = copier.copied_values[encode.outputs[name]]
    copier.copy_required_nodes(step, step.outputs.values())
    outputs = {LOGITS: copier.copied_values[step.outputs[source]]}
    outputs |= _emit_presents(layout, copier, step, with_cross_attention=without_past)
    outputs |= collect_extra_outputs(copier, step, derived_graphs, source)
    states = rename_decode_states(
        step, layout.cache_layers, PAST_SELF_ATTENTION, PRESENT_SELF_ATTENTION
    )
    return copier.finish_graph(step.name, outputs), states


def _emit_presents(
    layout: EncoderDecoderComponents,
    copier: GraphCopier,
    step: Graph,
    *,
    with_cross_attention: bool,
) -> dict[str, Value]:
    """Return each layer's self-attention cache and then its cross-attention cache, keyed by name.
    Only `decoder_model` outputs the cross-attention cache, which is constant in later steps.
    """
    presents = build_cache_outputs(copier, step, layout.cache_layers, PRESENT_SELF_ATTENTION)
    outputs: dict[str, Value] = {}
    for index, pair in enumerate(layout.cross_attentions):
        for name in (PRESENT_SELF_ATTENTION.format(index, part) for part in CACHE_PARTS):
            outputs[name] = presents[name]
        for part in CACHE_PARTS if with_cross_attention else ():
            value = step.inputs[pair[part]]
            outputs[PRESENT_CROSS_ATTENTION.format(index, part)] = copier.copied_values[value]
    return outputs


def _rename_encoder(layout: EncoderDecoderComponents) -> tuple[Graph, Value]:
    """Return `encode` with renamed dimensions, and the encoder output in the renamed graph."""
    # renaming creates new values, so look up the encoder output again among the graph outputs
    outputs = {**layout.encoder_graph.outputs, _ENCODER_OUTPUT: layout.encoder_output}
    extended = replace(layout.encoder_graph, outputs=outputs)
    # `encode` has no symbolic dimensions for the new or past length
    lengths = {n: d for n, d in layout.renamed_lengths.items() if d.name not in (NEW, PAST)}
    renamed = rename_symbolic_dimensions(extended, lengths)
    outputs = dict(renamed.outputs)
    encoder_output = outputs.pop(_ENCODER_OUTPUT)
    return replace(renamed, outputs=outputs), encoder_output


_ENCODER_OUTPUT = "the encoder output"
"""Temporary name of the encoder output, whose spaces avoid conflicts with names of graph outputs.
"""


def _declare_cross_mask(
    layout: EncoderDecoderComponents, copier: GraphCopier, step: Graph, encode: Graph
) -> None:
    """Declare the encoder's padding mask if the step uses the mask or values computed from it."""
    invariant_names = layout.derived_graphs.loop_invariant_inputs
    masks = [n for n in invariant_names if n == layout.encoder_mask and n in step.inputs]
    # recompute the outputs of `encode` that depend only on the mask
    encoded = encode.outputs.keys() & {*invariant_names}
    reads_mask = masks or not all(depends_on_encoder_input(layout, n) for n in encoded)
    if not layout.encoder_mask or not reads_mask:
        return
    mask = encode.inputs[layout.encoder_mask]
    mask_input = copier.declare_mask_input(CROSS_MASK, mask.type)
    copier.copied_values |= {mask: mask_input} | {step.inputs[n]: mask_input for n in masks}


def _fill_decoder_masks(layout: EncoderDecoderComponents, copier: GraphCopier, step: Graph) -> None:
    """Replace the decoder's padding mask with ones: the profile `hf` has no input for it."""
    graphs = layout.derived_graphs
    state_names = (s.name for s in graphs.states)
    known_names = {graphs.sequence_input, *graphs.loop_invariant_inputs, *state_names}
    for name, value in step.inputs.items():
        if step.input_facts[name].padding_side and name not in graphs.loop_invariant_inputs:
            copier.copied_values[value] = copier.make_constant(value.type, True)
        elif name not in known_names:
            raise_unsupported_profile_error("hf", f"the profile has no name for the input `{name}`")


def _add_past_caches(
    layout: EncoderDecoderComponents, copier: GraphCopier, step: Graph, *, without_past: bool
) -> None:
    """If `without_past` is true, replace the self-attention caches with empty constants. If it is
    false, declare each layer's self-attention cache and then its cross-attention cache. Inference
    programs rely on the order of the caches.
    """
    layers = zip(layout.cache_layers, layout.cross_attentions, strict=True)
    for n, (layer, pair) in enumerate(layers):
        for part, state in layer.items():
            value = step.inputs[state.name]
            if without_past:
                copier.copied_values[value] = copier.make_constant(value.type, 0.0)
            else:
                copier.declare_cache_input(step, state, PAST_SELF_ATTENTION.format(n, part))
        for part in () if without_past else CACHE_PARTS:
            value = step.inputs[pair[part]]
            copier.copied_values[value] = copier.add_input(
                PAST_CROSS_ATTENTION.format(n, part), Input(value.type)
            )
