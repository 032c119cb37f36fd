"""Encoder-decoder profile: the three graphs that Optimum reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specc.driver.profiles.encoder_boundary import find_cross_attention, find_encoder_output
from specc.driver.profiles.graph_replay import (
    READERS,
    GraphReplay,
    ProfiledGraphs,
    fail_unsupported_profile,
    rename_lengths,
)
from specc.driver.profiles.hf_decoder import (
    LOGITS,
    MASK,
    NEW,
    PAST,
    CacheLayer,
    declare_input_ids,
    emit_caches,
    exported_state_type,
    import_cache,
    keep_other_outputs,
    list_cache_layers,
    name_lengths,
    name_states,
)
from specc.ir.derived_graphs import DecodeState, DerivedGraphs
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value

SOURCE_ROWS = "encoder_sequence_length"
SOURCES = {("i64", 2): "input_ids", ("f32", 4): "pixel_values", ("f32", 3): "input_features"}
"""What the encoder's input is called, by its element type and number of axes: words,
pictures, sound.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderParts:
    """What is known of the parts: the encoder's input, its mask ("" for none), its end,
    who gets which keys and values, and what its axes are called.
    """

    derived: DerivedGraphs
    encode: Graph
    words: str
    mask: str
    end: Value
    layers: tuple[CacheLayer, ...]
    crosses: Sequence[Mapping[str, str]]
    lengths: Mapping[str, Dim]


def find_encoder_decoder_parts(derived: DerivedGraphs) -> EncoderDecoderParts:
    """The parts. E0752 where there is one that the form has no place for."""
    encode = derived.encode
    if encode is None:
        names = ", ".join(f"`{n}`" for n in derived.handed)
        fail_unsupported_profile(
            "hf", f"{names} is handed to every step as it is, without an encoder"
        )
    layers = list_cache_layers("hf", derived)
    words, mask = _inputs_of(encode, derived)
    end = find_encoder_output(encode, encode.inputs[words], encode.outputs.values())
    if end is None:
        fail_unsupported_profile(
            "hf",
            "there is no one result of an encoder, with rows of features, that "
            "the decoder looks at",
        )
    lengths = name_lengths(derived, layers)
    if rows := end.type.shape[1].name:
        lengths[rows] = Dim.symbol(SOURCE_ROWS)
    parts = EncoderDecoderParts(
        derived=derived,
        encode=encode,
        words=words,
        mask=mask,
        end=end,
        layers=layers,
        crosses=find_cross_attention(derived.step, derived.handed),
        lengths=lengths,
    )
    _check(parts)
    return parts


def _check(parts: EncoderDecoderParts) -> None:
    """Every attention layer has one over the encoder's result, and nothing else hangs
    on that.
    """
    for pair in parts.crosses:
        # One projection for both would be one cache under two names.
        if pair.keys() != {"key", "value"} or len(set(pair.values())) == 1:
            first = next(iter(pair.values()))
            fail_unsupported_profile("hf", f"`{first}` is not keys or values alone")
    if len(parts.crosses) != len(parts.layers):
        own, over = len(parts.layers), len(parts.crosses)
        fail_unsupported_profile(
            "hf",
            f"{own} attentions look at what is written and {over} at the encoder's result",
            [f"one of each in every layer is expected by {READERS['hf']}"],
        )
    named = {n for pair in parts.crosses for n in pair.values()}
    handed = [n for n in parts.derived.handed if n in parts.encode.outputs]
    for name in handed:
        # What `encode` made of the mask alone can be made again from the mask.
        if name not in named and depends_on_source(parts, name):
            fail_unsupported_profile(
                "hf", f"`{name}` is handed to the decoder and is no key or value of an attention"
            )


def depends_on_source(parts: EncoderDecoderParts, name: str) -> bool:
    """Whether what `encode` gives as `name` is made from what is encoded."""
    source = parts.encode.inputs[parts.words]
    todo, seen = [parts.encode.outputs[name]], set[Value]()
    while todo:
        value = todo.pop()
        if value is source:
            return True
        if value not in seen and value.node:
            seen.add(value)
            todo += [a for a in value.node.args if a]
    return False


def _inputs_of(encode: Graph, derived: DerivedGraphs) -> tuple[str, str]:
    """The input that is encoded, and the mask beside it."""
    mask = _mask_of(encode, derived)
    words = _words_of(encode, derived, mask)
    for name in derived.handed:
        if name not in encode.outputs and name != mask:
            fail_unsupported_profile(
                "hf",
                f"the input `{name}` is read at every step",
                ["only a mask goes to the decoder as it is"],
            )
    return words, mask


def _mask_of(encode: Graph, derived: DerivedGraphs) -> str:
    """The one input that says which rows of the source exist; "" where there is none."""
    # The decoder may read it without the encoder doing so: it then goes to every step.
    masks = [n for n in encode.inputs if encode.input_facts[n].keep]
    facts = derived.step.input_facts
    handed = [n for n in derived.handed if n in derived.step.inputs]
    masks += [n for n in handed if facts[n].keep and n not in masks]
    if len(masks) > 1:
        fail_unsupported_profile(
            "hf", f"there are two masks, `{masks[0]}` and `{masks[1]}`", ["the encoder takes one"]
        )
    return masks[0] if masks else ""


def _words_of(encode: Graph, derived: DerivedGraphs, mask: str) -> str:
    """The one input that is encoded."""
    # The growing input is the decoder's, even where `encode` reads it too.
    read = [n for n in encode.inputs if n not in (mask, derived.growing)]
    types = [encode.inputs[n].type for n in read]
    if len(read) != 1 or (types[0].dtype, types[0].rank) not in SOURCES:
        names = ", ".join(f"`{n}` {t}" for n, t in zip(read, types, strict=True))
        fail_unsupported_profile(
            "hf",
            f"the encoder reads {names or 'nothing'}",
            ["it takes words, pictures or sound: one input"],
        )
    return read[0]


HIDDEN, LAST, CROSS_MASK = ("encoder_hidden_states", "last_hidden_state", "encoder_attention_mask")
PAST_OWN, PRESENT_OWN = "past_key_values.{}.decoder.{}", "present.{}.decoder.{}"
PAST_CROSS, PRESENT_CROSS = "past_key_values.{}.encoder.{}", "present.{}.encoder.{}"
WORDS = ("key", "value")
"""In this order everywhere: readers go by position."""


def build_encoder_decoder(derived: DerivedGraphs, source: str) -> ProfiledGraphs:
    """The three graphs. E0752 where something else than keys, values and a mask goes
    over to the decoder.
    """
    parts = find_encoder_decoder_parts(derived)
    first, _ = _decoder(parts, source, "first")
    later, states = _decoder(parts, source, "later")
    graphs = {
        "encoder_model": _encoder(parts),
        "decoder_model": first,
        "decoder_with_past_model": later,
    }
    # Only the later graph has its states as inputs; the first makes them.
    return ProfiledGraphs(graphs, states)


def _encoder(parts: EncoderDecoderParts) -> Graph:
    """`encoder_model`: the part of `encode` up to its end."""
    encode, end = _renamed(parts)
    replay = GraphReplay()
    value = encode.inputs[parts.words]
    facts = encode.input_facts[parts.words]
    name = SOURCES[value.type.dtype, value.type.rank]
    replay.now[value] = replay.b.input(name, Input(value.type, below=facts.below, span=facts.span))
    if parts.mask in encode.inputs:
        mask = encode.inputs[parts.mask]
        replay.now[mask] = replay.mask(MASK, mask.type)
    replay.bring(encode, [end])
    return replay.finish(encode.name, {LAST: replay.now[end]})


def _decoder(
    parts: EncoderDecoderParts, source: str, which: Literal["first", "later"]
) -> tuple[Graph, tuple[DecodeState, ...]]:
    """`decoder_model`, which has no past, or `decoder_with_past_model`."""
    first, derived = which == "first", parts.derived
    lengths: Mapping[str, Dim] = parts.lengths
    if first:
        # The same step at a past of 0 rows: what is joined to no rows falls away.
        lengths = {n: Dim.of(0) if d.name == PAST else d for n, d in lengths.items()}
    step = rename_lengths(derived.step, lengths)
    encode, end = _renamed(parts)
    replay = GraphReplay()
    # Inputs are declared in the order in which they are to stand in the file.
    declare_input_ids(replay, step, derived)
    if first:
        replay.now[end] = replay.b.input(HIDDEN, Input(end.type))
    _cross_mask(parts, replay, step, encode)
    _own_masks(parts, replay, step)
    if first:
        _no_caches(parts, replay, step)
    else:
        _later_caches(parts, replay, step)
    for name in derived.handed:
        # Keys and values over the encoder's result: projected here in the first graph,
        # inputs of the later one. What hangs on the mask alone is made in both.
        if step.inputs[name] not in replay.now:
            replay.bring(encode, [encode.outputs[name]])
            replay.now[step.inputs[name]] = replay.now[encode.outputs[name]]
    replay.bring(step, step.outputs.values())
    outputs = {LOGITS: replay.now[step.outputs[source]]}
    outputs |= _presents(parts, replay, step, crossing=first)
    outputs |= keep_other_outputs(replay, step, derived, source)
    states = name_states(replay, step, parts.layers, PAST_OWN, PRESENT_OWN)
    return replay.finish(step.name, outputs), states


def _presents(
    parts: EncoderDecoderParts, replay: GraphReplay, step: Graph, *, crossing: bool
) -> dict[str, Value]:
    """Of each layer the caches with the new rows, then those over the encoder's result,
    which only the first graph gives: they never change.
    """
    own = emit_caches(replay, step, parts.layers, PRESENT_OWN)
    found: dict[str, Value] = {}
    for n, pair in enumerate(parts.crosses):
        names = [PRESENT_OWN.format(n, word) for word in WORDS]
        found |= {name: own[name] for name in names}
        if crossing:
            found |= {
                PRESENT_CROSS.format(n, word): replay.now[step.inputs[pair[word]]] for word in WORDS
            }
    return found


def _renamed(parts: EncoderDecoderParts) -> tuple[Graph, Value]:
    """`encode` with the axes' new names, and its end in it."""
    # A value changes when its axes do. As an output the end is found again.
    encode = parts.encode
    marked = Graph(**{**encode.__dict__, "outputs": {**encode.outputs, _END: parts.end}})
    # `encode` runs once: the decoder's new and past rows are none of its axes.
    lengths = {n: d for n, d in parts.lengths.items() if d.name not in (NEW, PAST)}
    found = rename_lengths(marked, lengths)
    outputs = dict(found.outputs)
    end = outputs.pop(_END)
    return Graph(**{**found.__dict__, "outputs": outputs}), end


_END = "the encoder's end"
"""With blanks in it, no output of a graph has this name."""


def _cross_mask(
    parts: EncoderDecoderParts, replay: GraphReplay, step: Graph, encode: Graph
) -> None:
    """Declare what says which rows of the source are there, where a step reads it."""
    everything = parts.derived.handed
    handed = [n for n in everything if n == parts.mask and n in step.inputs]
    # `encode` may hand over what it has made of the mask: that is made again here.
    made = [n for n in everything if n in encode.outputs]
    left = not all(depends_on_source(parts, name) for name in made)
    if parts.mask and (handed or left):
        mask = encode.inputs[parts.mask]
        given = replay.mask(CROSS_MASK, mask.type)
        replay.now[mask] = given
        replay.now |= {step.inputs[n]: given for n in handed}


def _own_masks(parts: EncoderDecoderParts, replay: GraphReplay, step: Graph) -> None:
    """Of what is written all rows are there: this form has no mask for them."""
    derived = parts.derived
    known = {derived.growing, *derived.handed, *(s.name for s in derived.states)}
    for name, value in step.inputs.items():
        if step.input_facts[name].keep and name not in derived.handed:
            replay.now[value] = replay.filled(value.type, True)
        elif name not in known:
            fail_unsupported_profile("hf", f"the decoder's input `{name}` has no place in it")


def _no_caches(parts: EncoderDecoderParts, replay: GraphReplay, step: Graph) -> None:
    for layer in parts.layers:
        for _, state in layer.states:
            value = step.inputs[state.name]
            replay.now[value] = replay.filled(value.type, 0.0)


def _later_caches(parts: EncoderDecoderParts, replay: GraphReplay, step: Graph) -> None:
    """Of each layer its own keys and values, then those over the encoder's result: the
    order matters to readers.
    """
    for n, (layer, pair) in enumerate(zip(parts.layers, parts.crosses, strict=True)):
        for word, state in layer.states:
            value = step.inputs[state.name]
            now = replace(state, type=value.type)
            given = replay.b.input(PAST_OWN.format(n, word), Input(exported_state_type(now)))
            replay.now[value] = import_cache(replay, now, given)
        for word in WORDS:
            value = step.inputs[pair[word]]
            name = PAST_CROSS.format(n, word)
            replay.now[value] = replay.b.input(name, Input(value.type))
