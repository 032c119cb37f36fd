"""A model that decodes by itself, behind the interface of the others: one run makes all tokens.

How it chooses was settled when it was compiled, so other settings are refused rather than passed over.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specc.generation.settings import Settings
from specc.text.diagnostic import fail

Array = Any
SCALARS = ("max_tokens", "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
FIXED = ("strategy", "start", "stop", "pad", "beams", "n_best", "length_penalty", "early_stopping")
"""Settings that such a model was compiled with."""


@dataclass(frozen=True)
class Made:
    """`tokens` i64[batch, n_best, made], filler behind a stop.

    Beside them `scores` f32[batch, n_best] of a beam search, or `log_probs` f32[batch, made].
    """

    tokens: Array
    scores: Array | None
    log_probs: Array | None


def decoded(session: Any, settings: Settings, prepared: Mapping[str, Array], padded: bool) -> Made:
    """What the model makes of these inputs. E0912 for padding that it has no input for."""
    if padded and not any(n in session.inputs for n, v in prepared.items() if v.dtype == np.bool_):
        fail(
            "E0912",
            "the prompts are of unequal length, and this model finds padding by itself",
            helps=["run prompts of one length together, or use a package: compile with `--for step`"],
        )
    given = {n: v for n, v in prepared.items() if n in session.inputs}
    for name in SCALARS:
        if name in session.inputs:
            given[name] = np.array(asdict(settings)[name], session.inputs[name].dtype)
    names = list(session.outputs)
    made = session.run(given)
    tokens, other = np.asarray(made[names[0]]), np.asarray(made[names[1]])
    if tokens.ndim == 3:
        return Made(tokens, other, None)
    return Made(tokens[:, None], None, other)


def check_fixed(asked: Settings, compiled: Mapping[str, Any]) -> None:
    """E0733 where a setting differs from what the model was compiled with."""
    values = asdict(asked)
    for name in FIXED:
        known = compiled.get(name)
        said = list(values[name]) if isinstance(values[name], tuple) else values[name]
        beam = name in ("beams", "n_best", "length_penalty", "early_stopping")
        if said != known and not (beam and asked.strategy != "beam"):
            fail(
                "E0733",
                f"this model was compiled with `{name}` = {known}, it cannot be {said}",
                helps=["compile it again with that setting, or use a package: `--for step`"],
            )
