"""Writing with a model whose spec says `generate`: the runner steps the graph itself, one token a step.

The simple form: greedy, and every step runs the whole graph again on everything written so far, so that n tokens
cost n full passes. A step graph derived from the spec, with caches and the other strategies, takes its place later;
what is written stays the same wherever the strategy is greedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specc.running import Loaded

Array = Any
LONGEST = 256
"""Tokens after which a text ends that the model does not end itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What grows, from which result its next token is chosen, and the tokens it starts and stops with."""

    name: str
    growing: str
    source: str
    start: int
    stop: tuple[int, ...]
    strategy: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """`tokens` i64[batch, made] is what was written, without the start; behind a stop there are only stops.

    `inputs` are those of the last step, `results` the graph's on them: row t of `results[plan.source]` chose token t.
    `complete` says whether every text came to a stop of its own.
    """

    tokens: Array
    inputs: Mapping[str, Array]
    results: Mapping[str, Array]
    complete: bool


def plan_of(model: Loaded, given: Mapping[str, Array]) -> Plan | None:
    """How the model writes, when it can and what it would write is not among the inputs `given`."""
    said = model.manifest.generation or {}
    name, growing, source = (str(said.get(key, "")) for key in ("name", "growing", "source"))
    settings = said.get("settings")
    graph = model.manifest.graph
    if not isinstance(settings, dict) or growing in given or growing not in graph.inputs or source not in graph.outputs:
        return None
    start, stop, strategy = settings.get("start"), settings.get("stop"), settings.get("strategy")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if type(start) is not int or not all(type(s) is int for s in stops):
        return None
    if len(graph.inputs[growing].type.shape) != 2 or len(graph.outputs[source].type.shape) != 3:
        return None
    kind = strategy.get("kind") if isinstance(strategy, dict) else strategy
    return Plan(name, growing, source, start, tuple(stops), str(kind or "greedy"))


def decode(model: Loaded, plan: Plan, given: Mapping[str, Array], longest: int = LONGEST) -> Decoded:
    """The texts that the model writes to these inputs, always taking the most probable token."""
    rows = _rows(model, plan, given)
    filler = plan.stop[0] if plan.stop else 0
    written = np.full((rows, 1), plan.start, np.int64)
    ended = np.zeros(rows, bool)
    tokens: list[Array] = []
    while True:
        inputs = {**given, plan.growing: written}
        results = model.run(**inputs)
        chosen = np.where(ended, filler, np.asarray(results[plan.source])[:, -1].argmax(-1))
        ended |= np.isin(chosen, plan.stop)
        tokens.append(chosen)
        if ended.all() or len(tokens) == longest:
            return Decoded(np.stack(tokens, axis=1), inputs, results, bool(ended.all()))
        written = np.concatenate([written, chosen[:, None]], axis=1)


def _rows(model: Loaded, plan: Plan, given: Mapping[str, Array]) -> int:
    """How many texts are written: the length that the growing input's first axis has in the other inputs."""
    batch = {s.name: s.dims[0] for s in model.inputs if s.dims}
    if isinstance(batch[plan.growing], int):
        return int(batch[plan.growing])
    return next((len(x) for n, x in given.items() if batch.get(n) == batch[plan.growing] and np.ndim(x)), 1)
