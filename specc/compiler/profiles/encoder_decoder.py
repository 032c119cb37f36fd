"""An encoder and its decoder as three graphs, the form that Optimum's
ORTModelForSeq2SeqLM reads.

    encoder_model            input_ids, attention_mask → last_hidden_state
    decoder_model            input_ids, encoder_hidden_states, encoder_attention_mask
                             → logits, present.{i}.decoder.key/.value,
                               present.{i}.encoder.key/.value
    decoder_with_past_model  input_ids, encoder_attention_mask,
                             past_key_values.{i}.decoder/.encoder.key/.value
                             → logits, present.{i}.decoder.key/.value

`decoder_model` is the step at a past of no rows, with the keys and values over the
encoder's result projected in it: once, for the other takes them as they are. No mask of
the decoder's own tokens is asked for: all of them are there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from specc.compiler.profiles.caches import inwards, outside
from specc.compiler.profiles.decoder import (
    LOGITS,
    MASK,
    NEW,
    PAST,
    given_caches,
    given_ids,
    others,
    states_of,
)
from specc.compiler.profiles.parts import SOURCES, Parts, hangs_on_source, parts_of
from specc.compiler.profiles.replay import Replay, with_lengths
from specc.compiler.profiles.result import Dressed, cannot
from specc.ir.derived import Derived, State
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value

HIDDEN, LAST, CROSS_MASK = (
    "encoder_hidden_states",
    "last_hidden_state",
    "encoder_attention_mask",
)
PAST_OWN, PRESENT_OWN = "past_key_values.{}.decoder.{}", "present.{}.decoder.{}"
PAST_CROSS, PRESENT_CROSS = "past_key_values.{}.encoder.{}", "present.{}.encoder.{}"
WORDS = ("key", "value")
"""In this order everywhere: readers go by position."""


def encoder_decoder(derived: Derived, source: str) -> Dressed:
    """The three graphs. E0752 where something else than keys, values and a mask goes
    over to the decoder.
    """
    parts = parts_of(derived)
    first, _ = _decoder(parts, source, "first")
    later, states = _decoder(parts, source, "later")
    graphs = {
        "encoder_model": _encoder(parts),
        "decoder_model": first,
        "decoder_with_past_model": later,
    }
    # Only the later graph has its states as inputs; the first makes them.
    return Dressed(graphs, states)


def _encoder(parts: Parts) -> Graph:
    """`encoder_model`: the part of `encode` up to its end."""
    encode, end = _renamed(parts)
    replay = Replay()
    value = encode.inputs[parts.words]
    facts = encode.input_facts[parts.words]
    name = SOURCES[value.type.dtype, value.type.rank]
    replay.now[value] = replay.b.input(
        name, Input(value.type, below=facts.below, span=facts.span)
    )
    if parts.mask in encode.inputs:
        mask = encode.inputs[parts.mask]
        replay.now[mask] = replay.mask(MASK, mask.type)
    replay.bring(encode, [end])
    return replay.finish(encode.name, {LAST: replay.now[end]})


def _decoder(
    parts: Parts, source: str, which: Literal["first", "later"]
) -> tuple[Graph, tuple[State, ...]]:
    """`decoder_model`, which has no past, or `decoder_with_past_model`."""
    first, derived = which == "first", parts.derived
    lengths: Mapping[str, Dim] = parts.lengths
    if first:
        # The same step at a past of 0 rows: what is joined to no rows falls away.
        lengths = {n: Dim.of(0) if d.name == PAST else d for n, d in lengths.items()}
    step = with_lengths(derived.step, lengths)
    encode, end = _renamed(parts)
    replay = Replay()
    # Inputs are declared in the order in which they are to stand in the file.
    given_ids(replay, step, derived)
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
    outputs |= others(replay, step, derived, source)
    states = states_of(replay, step, parts.layers, PAST_OWN, PRESENT_OWN)
    return replay.finish(step.name, outputs), states


def _presents(
    parts: Parts, replay: Replay, step: Graph, *, crossing: bool
) -> dict[str, Value]:
    """Of each layer the caches with the new rows, then those over the encoder's result,
    which only the first graph gives: they never change.
    """
    own = given_caches(replay, step, parts.layers, PRESENT_OWN)
    found: dict[str, Value] = {}
    for n, pair in enumerate(parts.crosses):
        names = [PRESENT_OWN.format(n, word) for word in WORDS]
        found |= {name: own[name] for name in names}
        if crossing:
            found |= {
                PRESENT_CROSS.format(n, word): replay.now[step.inputs[pair[word]]]
                for word in WORDS
            }
    return found


def _renamed(parts: Parts) -> tuple[Graph, Value]:
    """`encode` with the axes' new names, and its end in it."""
    # A value changes when its axes do. As an output the end is found again.
    encode = parts.encode
    marked = Graph(
        **{**encode.__dict__, "outputs": {**encode.outputs, _END: parts.end}}
    )
    # `encode` runs once: the decoder's new and past rows are none of its axes.
    lengths = {n: d for n, d in parts.lengths.items() if d.name not in (NEW, PAST)}
    found = with_lengths(marked, lengths)
    outputs = dict(found.outputs)
    end = outputs.pop(_END)
    return Graph(**{**found.__dict__, "outputs": outputs}), end


_END = "the encoder's end"
"""With blanks in it, no output of a graph has this name."""


def _cross_mask(parts: Parts, replay: Replay, step: Graph, encode: Graph) -> None:
    """Declare what says which rows of the source are there, where a step reads it."""
    everything = parts.derived.handed
    handed = [n for n in everything if n == parts.mask and n in step.inputs]
    # `encode` may hand over what it has made of the mask: that is made again here.
    made = [n for n in everything if n in encode.outputs]
    left = not all(hangs_on_source(parts, name) for name in made)
    if parts.mask and (handed or left):
        mask = encode.inputs[parts.mask]
        given = replay.mask(CROSS_MASK, mask.type)
        replay.now[mask] = given
        replay.now |= {step.inputs[n]: given for n in handed}


def _own_masks(parts: Parts, replay: Replay, step: Graph) -> None:
    """Of what is written all rows are there: this form has no mask for them."""
    derived = parts.derived
    known = {derived.growing, *derived.handed, *(s.name for s in derived.states)}
    for name, value in step.inputs.items():
        if step.input_facts[name].keep and name not in derived.handed:
            replay.now[value] = replay.filled(value.type, True)
        elif name not in known:
            cannot("hf", f"the decoder's input `{name}` has no place in it")


def _no_caches(parts: Parts, replay: Replay, step: Graph) -> None:
    for layer in parts.layers:
        for _, state in layer.states:
            value = step.inputs[state.name]
            replay.now[value] = replay.filled(value.type, 0.0)


def _later_caches(parts: Parts, replay: Replay, step: Graph) -> None:
    """Of each layer its own keys and values, then those over the encoder's result: the
    order matters to readers.
    """
    for n, (layer, pair) in enumerate(zip(parts.layers, parts.crosses, strict=True)):
        for word, state in layer.states:
            value = step.inputs[state.name]
            now = replace(state, type=value.type)
            given = replay.b.input(PAST_OWN.format(n, word), Input(outside(now)))
            replay.now[value] = inwards(replay, now, given)
        for word in WORDS:
            value = step.inputs[pair[word]]
            name = PAST_CROSS.format(n, word)
            replay.now[value] = replay.b.input(name, Input(value.type))
