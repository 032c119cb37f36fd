"""The states of a step as what other programs know: keys and values, layer by layer."""

from dataclasses import dataclass
from math import inf

from specc.compiler.profiles.replay import Replay
from specc.compiler.profiles.result import READERS, cannot
from specc.ir import ops
from specc.ir.derived import OFFSET, Derived, State
from specc.ir.graph import Value
from specc.ir.types import Type

KINDS = {
    "carry": "the state of a loop or a sum",
    "rows": "rows that are no keys or values of an attention",
}
"""What a state of another role is, as a message says it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The keys and values that one attention keeps."""

    key: State
    value: State

    @property
    def states(self) -> tuple[tuple[str, State], ...]:
        """Both, by the words that end their names."""
        return (("key", self.key), ("value", self.value))


def layers_of(profile: str, derived: Derived) -> tuple[Layer, ...]:
    """The layers in order. E0752 where a step keeps anything that is not the keys and
    values of an attention.
    """
    found: dict[int, dict[str, State]] = {}
    for state in sorted(derived.states, key=lambda s: s.name == OFFSET):
        _check(profile, state)
        found.setdefault(state.layer, {})[state.role] = state
    for states in found.values():
        if missing := {"key", "value"} - states.keys():
            (other,) = states.values()
            cannot(
                profile,
                f"`{_plain(other)}` is kept as {other.role}s alone, without "
                f"{missing.pop()}s of its own",
            )
    if not found:
        cannot(profile, "a step keeps nothing, so there are no keys and values to name")
    return tuple(Layer(s["key"], s["value"]) for _, s in sorted(found.items()))


def _check(profile: str, state: State) -> None:
    reader = READERS[profile]
    if state.role not in ("key", "value"):
        cannot(
            profile,
            f"a step keeps `{_plain(state)}`, {KINDS[state.role]}",
            [
                f"nothing but keys and values of attentions is handed from step to step by {reader}"
            ],
        )
    if state.initial:
        cannot(
            profile,
            f"`{_plain(state)}` begins with the rows that stand before what grows",
            [f"caches are empty at the beginning for {reader}"],
        )
    if state.most != inf:
        cannot(
            profile,
            f"`{_plain(state)}` keeps the newest {state.most:.0f} "
            f"row{'s' * (state.most > 1)} alone",
            [
                f"the rows of the caches tell {reader} how much was written before, "
                "so all must be kept"
            ],
        )
    if (state.type.rank, state.rows, state.batch) not in _LAYOUTS:
        cannot(
            profile,
            f"`{_plain(state)}` has the axes {state.type}",
            [
                f"caches of the axes [batch, heads, rows, features] are expected by {reader}"
            ],
        )


_LAYOUTS = {(4, 2, 0), (4, 1, 0), (3, 1, 0)}
"""Number of axes, axis of rows and axis of the batch that can be brought to [batch,
heads, rows, features].
"""


def _plain(state: State) -> str:
    return state.name.removeprefix("past.")


def outside(state: State) -> Type:
    """The state's type as [batch, heads, rows, features]."""
    match state.type.rank, state.rows:
        case 4, 1:
            batch, rows, heads, features = state.type.shape
            return Type(state.type.dtype, (batch, heads, rows, features))
        case 3, _:
            batch, rows, features = state.type.shape
            return Type.of(state.type.dtype, batch, 1, rows, features)
    return state.type


def inwards(replay: Replay, state: State, given: Value) -> Value:
    """From [batch, heads, rows, features] to the form the step keeps."""
    match state.type.rank, state.rows:
        case 4, 1:
            return replay.b.one(ops.Transpose((0, 2, 1, 3)), given)
        case 3, _:
            return replay.b.one(ops.Squeeze(1), given)
    return given


def outwards(replay: Replay, state: State, made: Value) -> Value:
    """From the form the step keeps to [batch, heads, rows, features]."""
    match state.type.rank, state.rows:
        case 4, 1:
            return replay.b.one(ops.Transpose((0, 2, 1, 3)), made)
        case 3, _:
            return replay.b.one(ops.Insert(1), made)
    return made
