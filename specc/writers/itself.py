"""A model that decodes by itself, behind the interface of the others: one run makes all tokens.

How it chooses was settled when it was compiled, so other settings are refused rather than passed over.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np

from specc.entrance import Entrance
from specc.generation.settings import Settings
from specc.reading.batch import keep_of
from specc.text.diagnostic import fail

Array = Any
SCALARS = ("max_tokens", "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
FIXED = ("strategy", "start", "stop", "pad", "beams", "n_best", "length_penalty", "early_stopping")
"""Settings that such a model was compiled with."""
TOLD = (*FIXED, *SCALARS, "stop_strings")
"""Settings that it says of itself: what is not fixed is its default."""


@dataclass(frozen=True)
class Made:
    """`tokens` i64[batch, n_best, made], filler behind a stop.

    Beside them `scores` f32[batch, n_best] of a beam search, or `log_probs` f32[batch, made].
    """

    tokens: Array
    scores: Array | None
    log_probs: Array | None


def decoded(session: Any, settings: Settings, entrance: Entrance, prepared: Mapping[str, Array], begun: bool) -> Made:
    """What the model makes of these inputs; `begun` says that nobody gave a prompt, and its first row is the start.

    E0912 for padding that the model would not find, E0732 and E0733 for settings.
    """
    takes = {*session.inputs, *session.optional}
    if begun and entrance.growing in session.optional:  # it begins by itself, and knows that its first row exists
        takes -= {entrance.growing, keep_of(entrance.graph, entrance.growing)}
    else:
        _check_padding(takes, entrance, prepared)
    given = {n: v for n, v in prepared.items() if n in takes}
    values = asdict(settings)
    for name in SCALARS:
        wanted = f"{name}_2" if name in prepared else name
        if wanted in session.inputs:
            given[wanted] = np.array(_fitting(name, values[name]), session.inputs[wanted].dtype)
        elif name == "repetition_penalty" and values[name] != 1:
            _settled(name, "1", values[name])
    names = list(session.outputs)
    made = session.run_interruptibly(given)
    tokens, other = np.asarray(made[names[0]]), np.asarray(made[names[1]])
    if tokens.ndim == 3:
        return Made(tokens, other, None)
    return Made(tokens[:, None], None, other)


def _fitting(name: str, value: Any) -> Any:
    """A scalar as the model can hold it. E0732 where it cannot."""
    if name == "seed" and value >= 2**63:
        fail("E0732", f"this model takes seeds below 2**63, not {value}", helps=["give a smaller seed"])
    return value


def _check_padding(takes: Collection[str], entrance: Entrance, prepared: Mapping[str, Array]) -> None:
    """What the model finds out by itself must be what the caller means."""
    facts = entrance.graph.input_facts
    known = {n for n, f in facts.items() if f.keep and n in prepared and n not in takes}
    hidden = sorted(known - entrance.unread)
    own = entrance.prepared({n: v for n, v in prepared.items() if n not in hidden})
    for name in hidden:
        if not np.array_equal(own[name], prepared[name]):
            fail(
                "E0912",
                "the prompts are of unequal length, and this model finds padding by itself",
                notes=[f"it computes `{name}`, and comes to something else"],
                helps=["run prompts of one length together, or use a package: compile with `--for step`"],
            )


def check_fixed(asked: Settings, compiled: Mapping[str, Any]) -> None:
    """E0733 where a setting differs from what the model was compiled with."""
    values = asdict(asked)
    for name in FIXED:
        known = compiled.get(name)
        said = list(values[name]) if isinstance(values[name], tuple) else values[name]
        beam = name in ("beams", "n_best", "length_penalty", "early_stopping")
        if said != known and not (beam and asked.strategy != "beam"):
            _settled(name, known, said)


def _settled(name: str, known: object, said: object) -> NoReturn:
    fail(
        "E0733",
        f"this model was compiled with `{name}` = {known}, it cannot be {said}",
        helps=["compile it again with that setting, or use a package: `--for step`"],
    )
