"""A decoder alone, as `hf` and `genai` have it: ids, mask and caches in; logits and
caches out.

input_ids [batch_size, sequence_length]                                        logits
attention_mask [batch_size, past_sequence_length + sequence_length]      →
present.{i}.key, present.{i}.value past_key_values.{i}.key, .value [batch_size, heads,
past_sequence_length, features]
"""

from dataclasses import replace

from specc.compiler.profiles.caches import Layer, inwards, layers_of, outside, outwards
from specc.compiler.profiles.replay import Replay, with_lengths
from specc.compiler.profiles.result import READERS, cannot
from specc.ir import ops
from specc.ir.derived import Derived, State
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BATCH, NEW, PAST = "batch_size", "sequence_length", "past_sequence_length"


def decoder(
    profile: str, derived: Derived, source: str
) -> tuple[Graph, tuple[State, ...]]:
    """The step graph and its states under these names; `source` is the result the next
    token is drawn from.

    E0752 where there is an encoder, a state or an input that these names have no place
    for.
    """
    layers = layers_of(profile, derived)
    if derived.encode is not None or derived.handed:
        once = (*derived.handed, *(derived.encode.outputs if derived.encode else ()))
        cannot(
            profile,
            f"`{once[0]}` stays the same from step to step",
            [f"no encoder is run by {READERS[profile]}"],
        )
    lengths = lengths_of(derived, layers)
    step = with_lengths(derived.step, lengths)
    replay = Replay()
    given_ids(replay, step, derived)
    for name, value in step.inputs.items():
        if name == derived.growing or name in {s.name for s in derived.states}:
            continue
        replay.now[value] = _beside(
            profile, replay, name, value, step.input_facts[name], name in derived.whole
        )
    take_caches(replay, step, layers, "past_key_values.{}.{}")
    replay.bring(step, step.outputs.values())
    made = {LOGITS: replay.now[step.outputs[source]]}
    made |= given_caches(replay, step, layers, "present.{}.{}")
    made |= others(replay, step, derived, source)
    return replay.finish(step.name, made), states_of(
        replay, step, layers, "past_key_values.{}.{}", "present.{}.{}"
    )


def lengths_of(derived: Derived, layers: tuple[Layer, ...]) -> dict[str, Dim]:
    """The names of batch, new and past rows, by those of the step graph."""
    batch, new = derived.step.inputs[derived.growing].type.shape
    key = layers[0].key
    past = key.type.shape[key.rows if key.rows is not None else 0]
    named = {
        d.name: Dim.symbol(n) for d, n in ((batch, BATCH), (new, NEW), (past, PAST))
    }
    return {name: dim for name, dim in named.items() if name}


def given_ids(replay: Replay, step: Graph, derived: Derived) -> None:
    """The growing input, which holds the new tokens."""
    value, facts = step.inputs[derived.growing], step.input_facts[derived.growing]
    replay.now[value] = replay.b.input(
        IDS, Input(value.type, below=facts.below, span=facts.span)
    )


def _beside(
    profile: str, replay: Replay, name: str, value: Value, facts: Input, whole: bool
) -> Value:
    """An input beside the ids: the mask, which comes whole, or the new rows' positions."""
    batch, rows = value.type.shape if value.type.rank == 2 else (None, None)
    if facts.keep and batch is not None and rows is not None:
        if MASK in replay.b.inputs:
            cannot(
                profile,
                f"`{name}` is a second mask",
                [f"one mask, `{MASK}`, is given by {READERS[profile]}"],
            )
        if whole:
            return replay.mask(MASK, value.type)
        every = Dim.symbol(PAST) + rows
        mask = replay.mask(MASK, Type.of("bool", batch, every))
        return replay.b.one(ops.Slice(1, Dim.symbol(PAST), every), mask)
    if name == POSITIONS and value.type.dtype == "i64" and not whole:
        return replay.b.input(POSITIONS, facts)
    cannot(
        profile,
        f"the input `{name}` has no place in it",
        [
            f"nothing but `{IDS}`, `{MASK}` and `{POSITIONS}` is given by {READERS[profile]}"
        ],
    )


def take_caches(
    replay: Replay, step: Graph, layers: tuple[Layer, ...], name: str
) -> None:
    """Declare the caches; `name` has places for the number of the layer and for `key`
    or `value`.
    """
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            value = step.inputs[state.name]
            now = replace(state, type=value.type)
            replay.now[value] = inwards(
                replay, now, replay.b.input(name.format(n, word), Input(outside(now)))
            )


def given_caches(
    replay: Replay, step: Graph, layers: tuple[Layer, ...], name: str
) -> dict[str, Value]:
    """The caches with the new rows, under their names."""
    made = {}
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            made[name.format(n, word)] = outwards(
                replay, state, replay.now[step.outputs[state.next]]
            )
    return made


def others(
    replay: Replay, step: Graph, derived: Derived, source: str
) -> dict[str, Value]:
    """Results that are asked for besides, such as taps; programs that do not know them
    pass over them.
    """
    inside = {source, *(s.next for s in derived.states)}
    return {n: replay.now[v] for n, v in step.outputs.items() if n not in inside}


def states_of(
    replay: Replay, step: Graph, layers: tuple[Layer, ...], past: str, present: str
) -> tuple[State, ...]:
    """The states as they are called now."""
    made: list[State] = []
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            type = outside(replace(state, type=step.inputs[state.name].type))
            name, after = past.format(n, word), present.format(n, word)
            made.append(
                replace(
                    state, name=name, next=after, type=type, batch=0, rows=2, layer=n
                )
            )
    return tuple(made)
