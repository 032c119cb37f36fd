"""Which tokens may come next, as ONNX nodes; `specc.decode.rules` in Python.

Everything here is known when the model is written, but for the number of the step and the
tokens of a sequence so far.
"""

from collections.abc import Collection

from specc.ir.derived import Decoding
from specc_onnx.generate.history import banned_in
from specc_onnx.lower.emitter import Emitter

NEVER = float("-inf")


def ruled(
    g: Emitter,
    d: Decoding,
    scores: str,
    iteration: str,
    *,
    limit: str,
    vocabulary: int,
    history: str | None = None,
) -> str:
    """`scores` f32[rows, vocabulary] with minus infinity for what may not come at step
    `iteration` i64[] of at most `limit` i64[], by the `history` where a rule reads it.
    """
    free = scores
    if history is not None:
        for banned in banned_in(g, d, history, vocabulary):
            scores = g.node("Where", banned, g.constant(NEVER, "f32"), scores)
    if d.min_tokens and d.stop:
        early = g.node("Less", iteration, g.constant(d.min_tokens, "i64"))
        scores = _without(g, scores, d.stop, vocabulary, early)
    if d.last_token is not None:
        made = g.node("Add", iteration, g.constant(1, "i64"))
        last = g.node("Equal", made, limit)
        only = [[0.0 if i == d.last_token else NEVER for i in range(vocabulary)]]
        scores = g.node("Where", last, g.constant(only, "f32"), scores)
    if d.suppress:
        scores = _without(g, scores, d.suppress, vocabulary)
    if d.begin_suppress:
        behind = _at(g, iteration, len(d.begin))
        scores = _without(g, scores, d.begin_suppress, vocabulary, behind)
    # what a text has to begin with is not held to what else is said
    for step, tokens in enumerate(d.begin):
        others = g.constant([[i not in tokens for i in range(vocabulary)]], "bool")
        # of a single one, which is certain, the score is 0
        known = free if len(tokens) > 1 else g.constant(0.0, "f32")
        those = g.node("Where", others, g.constant(NEVER, "f32"), known)
        scores = g.node("Where", _at(g, iteration, step), those, scores)
    return scores


def _at(g: Emitter, iteration: str, step: int) -> str:
    """Whether this is that step, bool[]."""
    return g.node("Equal", iteration, g.constant(step, "i64"))


def _without(
    g: Emitter,
    scores: str,
    tokens: Collection[int],
    vocabulary: int,
    when: str | None = None,
) -> str:
    """Scores without these tokens, where `when` bool[] is true."""
    those = {*tokens}
    banned = g.constant([[i in those for i in range(vocabulary)]], "bool")
    if when is not None:
        banned = g.node("And", banned, when)
    return g.node("Where", banned, g.constant(NEVER, "f32"), scores)
