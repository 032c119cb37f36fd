"""Decoder-only profile (`hf`, `genai`): ids, mask, past key values in; logits, present out."""

from dataclasses import dataclass, replace
from math import inf

from specc.driver.profiles.graph_replay import (
    READERS,
    GraphReplay,
    fail_unsupported_profile,
    rename_lengths,
)
from specc.ir import ops
from specc.ir.derived_graphs import PAST_LENGTH_INPUT, DecodeState, DerivedGraphs
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type

KINDS = {
    "carry": "the state of a loop or a sum",
    "rows": "rows that are no keys or values of an attention",
}
"""What a state of another role is, as a message says it."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """The keys and values that one attention keeps."""

    key: DecodeState
    value: DecodeState

    @property
    def states(self) -> tuple[tuple[str, DecodeState], ...]:
        """Both, by the words that end their names."""
        return (("key", self.key), ("value", self.value))


def list_cache_layers(profile: str, derived: DerivedGraphs) -> tuple[CacheLayer, ...]:
    """The layers in order. E0752 where a step keeps anything that is not the keys and
    values of an attention.
    """
    found: dict[int, dict[str, DecodeState]] = {}
    for state in sorted(derived.states, key=lambda s: s.name == PAST_LENGTH_INPUT):
        _check(profile, state)
        found.setdefault(state.layer, {})[state.role] = state
    for states in found.values():
        if missing := {"key", "value"} - states.keys():
            (other,) = states.values()
            fail_unsupported_profile(
                profile,
                f"`{_plain(other)}` is kept as {other.role}s alone, without "
                f"{missing.pop()}s of its own",
            )
    if not found:
        fail_unsupported_profile(
            profile, "a step keeps nothing, so there are no keys and values to name"
        )
    return tuple(CacheLayer(s["key"], s["value"]) for _, s in sorted(found.items()))


def _check(profile: str, state: DecodeState) -> None:
    reader = READERS[profile]
    if state.role not in ("key", "value"):
        fail_unsupported_profile(
            profile,
            f"a step keeps `{_plain(state)}`, {KINDS[state.role]}",
            [f"nothing but keys and values of attentions is handed from step to step by {reader}"],
        )
    if state.initial:
        fail_unsupported_profile(
            profile,
            f"`{_plain(state)}` begins with the rows that stand before what grows",
            [f"caches are empty at the beginning for {reader}"],
        )
    if state.most != inf:
        fail_unsupported_profile(
            profile,
            f"`{_plain(state)}` keeps the newest {state.most:.0f} "
            f"row{'s' * (state.most > 1)} alone",
            [
                f"the rows of the caches tell {reader} how much was written before, "
                "so all must be kept"
            ],
        )
    if (state.type.rank, state.rows, state.batch) not in _LAYOUTS:
        fail_unsupported_profile(
            profile,
            f"`{_plain(state)}` has the axes {state.type}",
            [f"caches of the axes [batch, heads, rows, features] are expected by {reader}"],
        )


_LAYOUTS = {(4, 2, 0), (4, 1, 0), (3, 1, 0)}
"""Number of axes, axis of rows and axis of the batch that can be brought to [batch,
heads, rows, features].
"""


def _plain(state: DecodeState) -> str:
    return state.name.removeprefix("past.")


def exported_state_type(state: DecodeState) -> Type:
    """The state's type as [batch, heads, rows, features]."""
    match state.type.rank, state.rows:
        case 4, 1:
            batch, rows, heads, features = state.type.shape
            return Type(state.type.dtype, (batch, heads, rows, features))
        case 3, _:
            batch, rows, features = state.type.shape
            return Type.of(state.type.dtype, batch, 1, rows, features)
    return state.type


def import_cache(replay: GraphReplay, state: DecodeState, given: Value) -> Value:
    """From [batch, heads, rows, features] to the form the step keeps."""
    match state.type.rank, state.rows:
        case 4, 1:
            return replay.b.one(ops.Transpose((0, 2, 1, 3)), given)
        case 3, _:
            return replay.b.one(ops.Squeeze(1), given)
    return given


def export_cache(replay: GraphReplay, state: DecodeState, made: Value) -> Value:
    """From the form the step keeps to [batch, heads, rows, features]."""
    match state.type.rank, state.rows:
        case 4, 1:
            return replay.b.one(ops.Transpose((0, 2, 1, 3)), made)
        case 3, _:
            return replay.b.one(ops.Insert(1), made)
    return made


IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BATCH, NEW, PAST = "batch_size", "sequence_length", "past_sequence_length"


def build_decoder(
    profile: str, derived: DerivedGraphs, source: str
) -> tuple[Graph, tuple[DecodeState, ...]]:
    """The step graph and its states under these names; `source` is the result the next
    token is drawn from.

    E0752 where there is an encoder, a state or an input that these names have no place
    for.
    """
    layers = list_cache_layers(profile, derived)
    if derived.encode is not None or derived.handed:
        once = (*derived.handed, *(derived.encode.outputs if derived.encode else ()))
        fail_unsupported_profile(
            profile,
            f"`{once[0]}` stays the same from step to step",
            [f"no encoder is run by {READERS[profile]}"],
        )
    lengths = name_lengths(derived, layers)
    step = rename_lengths(derived.step, lengths)
    replay = GraphReplay()
    declare_input_ids(replay, step, derived)
    for name, value in step.inputs.items():
        if name == derived.growing or name in {s.name for s in derived.states}:
            continue
        replay.now[value] = _beside(
            profile, replay, name, value, step.input_facts[name], name in derived.whole
        )
    declare_caches(replay, step, layers, "past_key_values.{}.{}")
    replay.bring(step, step.outputs.values())
    made = {LOGITS: replay.now[step.outputs[source]]}
    made |= emit_caches(replay, step, layers, "present.{}.{}")
    made |= keep_other_outputs(replay, step, derived, source)
    return replay.finish(step.name, made), name_states(
        replay, step, layers, "past_key_values.{}.{}", "present.{}.{}"
    )


def name_lengths(derived: DerivedGraphs, layers: tuple[CacheLayer, ...]) -> dict[str, Dim]:
    """The names of batch, new and past rows, by those of the step graph."""
    batch, new = derived.step.inputs[derived.growing].type.shape
    key = layers[0].key
    past = key.type.shape[key.rows if key.rows is not None else 0]
    named = {d.name: Dim.symbol(n) for d, n in ((batch, BATCH), (new, NEW), (past, PAST))}
    return {name: dim for name, dim in named.items() if name}


def declare_input_ids(replay: GraphReplay, step: Graph, derived: DerivedGraphs) -> None:
    """The growing input, which holds the new tokens."""
    value, facts = step.inputs[derived.growing], step.input_facts[derived.growing]
    replay.now[value] = replay.b.input(IDS, Input(value.type, below=facts.below, span=facts.span))


def _beside(
    profile: str, replay: GraphReplay, name: str, value: Value, facts: Input, whole: bool
) -> Value:
    """An input beside the ids: the mask, which comes whole, or the new rows' positions."""
    batch, rows = value.type.shape if value.type.rank == 2 else (None, None)
    if facts.keep and batch is not None and rows is not None:
        if MASK in replay.b.inputs:
            fail_unsupported_profile(
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
    fail_unsupported_profile(
        profile,
        f"the input `{name}` has no place in it",
        [f"nothing but `{IDS}`, `{MASK}` and `{POSITIONS}` is given by {READERS[profile]}"],
    )


def declare_caches(
    replay: GraphReplay, step: Graph, layers: tuple[CacheLayer, ...], name: str
) -> None:
    """Declare the caches; `name` has places for the number of the layer and for `key`
    or `value`.
    """
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            value = step.inputs[state.name]
            now = replace(state, type=value.type)
            replay.now[value] = import_cache(
                replay, now, replay.b.input(name.format(n, word), Input(exported_state_type(now)))
            )


def emit_caches(
    replay: GraphReplay, step: Graph, layers: tuple[CacheLayer, ...], name: str
) -> dict[str, Value]:
    """The caches with the new rows, under their names."""
    made = {}
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            made[name.format(n, word)] = export_cache(
                replay, state, replay.now[step.outputs[state.next]]
            )
    return made


def keep_other_outputs(
    replay: GraphReplay, step: Graph, derived: DerivedGraphs, source: str
) -> dict[str, Value]:
    """Results that are asked for besides, such as taps; programs that do not know them
    pass over them.
    """
    inside = {source, *(s.next for s in derived.states)}
    return {n: replay.now[v] for n, v in step.outputs.items() if n not in inside}


def name_states(
    replay: GraphReplay, step: Graph, layers: tuple[CacheLayer, ...], past: str, present: str
) -> tuple[DecodeState, ...]:
    """The states as they are called now."""
    made: list[DecodeState] = []
    for n, layer in enumerate(layers):
        for word, state in layer.states:
            type = exported_state_type(replace(state, type=step.inputs[state.name].type))
            name, after = past.format(n, word), present.format(n, word)
            made.append(replace(state, name=name, next=after, type=type, batch=0, rows=2, layer=n))
    return tuple(made)
