"""One step of beam search as ONNX nodes (Wu et al. 2016, arXiv:1609.08144, sec. 7).

As in the published generators, more candidates than beams are kept, so that enough remain
when some finish; finished ones are stored with length-normalized scores. Shapes: `s`
sentences, `n` beams, `c` candidates, `t` tokens so far.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate.generation_context import NO_TOKEN
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import emit_cast, emit_slice, emit_unsqueeze

NO_SCORE = float("-inf")
"""The score of an unused beam and of a token that cannot be chosen."""

MIN_SCORE = float(np.finfo(np.float32).min)
"""The lowest score of a sequence."""

SEQUENCES_DIM, GENERATED_DIM = Dim.symbol("sentences"), Dim.symbol("written")


class BeamState(NamedTuple):
    """Carries by name: `scores` f32[s, n] and `written` i64[s, n, t] of live beams, `done_scores`
    and `done` of finished ones, `ended` bool[s, n] which of these exist (else filler, score
    `NO_SCORE`), `open` bool[s, 1] whether a sentence can still improve.
    """

    scores: str
    written: str
    done_scores: str
    done: str
    ended: str
    open: str


@dataclass(frozen=True, slots=True)
class BeamDecision:
    """The `beams` after a step, next tokens and the rows they continue, i64[s·n], and whether to go
    on, bool[].
    """

    beams: BeamState
    tokens: str
    parents: str
    more: str


@dataclass(frozen=True, slots=True)
class BeamCandidates:
    """The best continuations: `scores` f32[s, c], `parents` and `tokens` i64[s, c], `written`
    i64[s, c, t + 1], and `hits` bool[s, c], which of them finish.
    """

    scores: str
    parents: str
    tokens: str
    written: str
    hits: str


def list_beam_types(beams: int) -> tuple[Type, ...]:
    """Return the types of the fields of `BeamState`, in field order."""
    scores = Type.of("f32", SEQUENCES_DIM, beams)
    tokens = Type.of("i64", SEQUENCES_DIM, beams, GENERATED_DIM)
    return (
        scores,
        tokens,
        scores,
        tokens,
        Type.of("bool", SEQUENCES_DIM, beams),
        Type.of("bool", SEQUENCES_DIM, 1),
    )


def emit_initial_beams(g: Emitter, d: DecodingConfig, sentences: str) -> BeamState:
    """Emit the state before the first step; only the first of the equal beams counts."""
    n = d.num_beams
    shape = g.node("Concat", sentences, g.vector(n), axis=0)
    lone = g.node("Expand", g.constant([[0.0, *[NO_SCORE] * (n - 1)]], "f32"), shape)
    nothing = g.node("Expand", g.constant(0, "i64"), g.node("Concat", shape, g.vector(0), axis=0))
    low = g.node("Expand", g.constant(NO_SCORE, "f32"), shape)
    none = g.node("Expand", g.constant(False, "bool"), shape)
    some = g.node(
        "Expand", g.constant(True, "bool"), g.node("Concat", sentences, g.vector(1), axis=0)
    )
    return BeamState(lone, nothing, low, nothing, none, some)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchStep:
    """One beam search step: the former state, the number of generated tokens including this one,
    `made` i64[], its maximum `limit` i64[], and whether it is reached, `last` bool[].
    """

    g: Emitter
    d: DecodingConfig
    before: BeamState
    vocabulary: int
    made: str
    limit: str
    last: str

    @property
    def candidates(self) -> int:
        """Number of candidate continuations per sequence and step."""
        # Each hypothesis has as many endings as there are stop tokens: that many more candidates
        # leave `beams` that continue. The vocabulary is the limit.
        wanted = max(2, 1 + len(self.d.stop)) * self.d.num_beams
        return min(wanted, self.d.num_beams * self.vocabulary)


def emit_beam_step(s: BeamSearchStep, logs: str, hopeless: str) -> BeamDecision:
    """Emit a step from log-probabilities `[s·n, vocabulary]`, or `[s, vocabulary]` at first. A row
    of `hopeless` (invalid) logits in an open sentence ends the search with `NO_TOKEN` and a NaN
    score.
    """
    g, n = s.g, s.d.num_beams
    sentences = g.node("Shape", s.before.scores, start=0, end=1)
    wide = g.node("Mul", sentences, g.vector(n))
    # The number of beams per row: all of a sequence if the first step has one row per sequence,
    # else 1. A parent is a row of this step, so its index is divided by this.
    shared = g.node("Div", wide, g.node("Shape", logs, start=0, end=1))
    logs = g.node("Reshape", logs, g.node("Concat", sentences, g.vector(-1, s.vocabulary), axis=0))
    found = _emit_candidates(s, logs)
    # An ended hypothesis does not continue. `TopK` takes the first of equal scores, as Python's
    # stable sort does.
    scores, places = g.nodes(
        "TopK", 2, _emit_masked(g, found.scores, found.hits), g.vector(n), axis=1
    )
    tokens = g.node("GatherElements", found.tokens, places, axis=1)
    parents = _emit_flat(s, g.node("GatherElements", found.parents, places, axis=1), n)
    parents = g.node("Div", parents, shared)
    written = _emit_gathered_beams(s, found.written, places, s.candidates)
    done_scores, done, ended = _emit_finished_beams(s, found)
    still = _emit_is_open(s, scores, done_scores, ended)
    wrong = _emit_failed_sequences(
        s, g.node("Reshape", hopeless, g.node("Concat", sentences, g.vector(-1), axis=0))
    )
    # A sequence with NaN logits ends the search of all: its score reports it to the caller.
    more = g.node("And", _emit_any(g, still, 0), g.node("Not", _emit_any(g, wrong, 0)))
    more = g.node("Squeeze", more, g.vector(0, 1))
    done_scores = g.node("Where", wrong, g.constant(float("nan"), "f32"), done_scores)
    done = g.node("Where", emit_unsqueeze(g, wrong, 2), g.constant(NO_TOKEN, "i64"), done)
    after = BeamState(scores, written, done_scores, done, ended, still)
    flat = g.node("Reshape", tokens, g.vector(-1))
    return BeamDecision(after, flat, parents, more)


def _emit_failed_sequences(s: BeamSearchStep, hopeless: str) -> str:
    """Emit bool[s, 1]: open sequences with a live beam whose logits are invalid."""
    g = s.g
    alive = g.node("Greater", s.before.scores, g.constant(NO_SCORE, "f32"))
    return g.node("And", s.before.open, _emit_any(g, g.node("And", alive, hopeless)))


def _emit_candidates(s: BeamSearchStep, logs: str) -> BeamCandidates:
    g, n = s.g, s.d.num_beams
    before = emit_unsqueeze(g, s.before.scores, 2)
    # The row of an unused beam may hold NaN, and `NO_SCORE` plus NaN is NaN.
    alive = g.node("Greater", before, g.constant(NO_SCORE, "f32"))
    total = g.node("Where", alive, g.node("Add", logs, before), g.constant(NO_SCORE, "f32"))
    total = g.node("Reshape", total, g.vector(-1, n * s.vocabulary))
    scores, places = g.nodes("TopK", 2, total, g.vector(s.candidates), axis=1)
    size = g.constant(s.vocabulary, "i64")
    parents, tokens = g.node("Div", places, size), g.node("Mod", places, size)
    before = _emit_gathered_beams(s, s.before.written, parents, n)
    written = g.node("Concat", before, emit_unsqueeze(g, tokens, 2), axis=2)
    # At the length limit every beam ends.
    hits = s.last
    for stop in s.d.stop:
        hits = g.node("Or", hits, g.node("Equal", tokens, g.constant(stop, "i64")))
    # `last` is a scalar; `Equal` broadcast it.
    if not s.d.stop:
        hits = g.node("Expand", hits, g.node("Shape", tokens))
    return BeamCandidates(scores, parents, tokens, written, hits)


def _emit_finished_beams(s: BeamSearchStep, found: BeamCandidates) -> tuple[str, str, str]:
    """Emit the best finished hypotheses: those from before and those that finish now."""
    g, n = s.g, s.d.num_beams
    # A continuation that ranks below `beams` others is dropped when it ends, as in the published
    # implementations.
    leading = g.constant([[c < n for c in range(s.candidates)]], "bool")
    now = g.node("And", g.node("And", found.hits, leading), s.before.open)
    now = g.node("And", now, g.node("Greater", found.scores, g.constant(NO_SCORE, "f32")))
    scores = _emit_masked(g, _emit_normalized_scores(s, found.scores, s.made), g.node("Not", now))
    filler = g.node("Expand", g.constant(s.d.filler, "i64"), _emit_column_shape(s))
    # Sequences that ended earlier are shorter; as rows of one tensor all have the length of the
    # longest.
    old = g.node("Concat", s.before.done, filler, axis=2)
    written = g.node("Concat", old, found.written, axis=1)
    ended = g.node(
        "Concat",
        emit_cast(g, s.before.ended, "bool", "i64"),
        emit_cast(g, now, "bool", "i64"),
        axis=1,
    )
    merged = g.node("Concat", s.before.done_scores, scores, axis=1)
    kept, places = g.nodes("TopK", 2, merged, g.vector(n), axis=1)
    ended = emit_cast(g, g.node("GatherElements", ended, places, axis=1), "i64", "bool")
    done = _emit_gathered_beams(s, written, places, n + s.candidates)
    done = g.node("Where", emit_unsqueeze(g, ended, 2), done, g.constant(s.d.filler, "i64"))
    return kept, done, ended


def _emit_is_open(s: BeamSearchStep, scores: str, done_scores: str, ended: str) -> str:
    """Emit bool[s, 1]: whether a live beam exists and fewer than `beams` are finished, or, unless
    `early` is True, whether the best live beam still beats the worst finished one.
    """
    g = s.g
    never = s.d.early == "never" and s.d.length_penalty > 0
    best = emit_slice(g, scores, 1, Dim.of(0), Dim.of(1))
    if s.d.early is True:
        going = g.node("Greater", best, g.constant(NO_SCORE, "f32"))
        return g.node(
            "And", s.before.open, g.node("And", going, _emit_any(g, g.node("Not", ended)))
        )
    # Log-probabilities are negative, so sums only decrease. The best reachable score is the sum
    # divided by the largest possible length divisor; early_stopping="never" waits for it.
    best = _emit_normalized_scores(s, best, s.limit if never else s.made)
    worst = emit_slice(g, done_scores, 1, Dim.of(s.d.num_beams - 1), Dim.of(s.d.num_beams))
    worst = g.node("Where", ended, worst, g.constant(NO_SCORE, "f32"))
    better = _emit_any(g, g.node("Greater", best, worst))
    return g.node("And", s.before.open, better)


def _emit_normalized_scores(s: BeamSearchStep, scores: str, count: str) -> str:
    """`scores / count ** length_penalty` in f32, at least `MIN_SCORE` or `NO_SCORE`."""
    g = s.g
    # In f64 and rounded once, as in Python: both order equal hypotheses alike.
    power = g.node("Pow", emit_cast(g, count, "i64", "f64"), g.constant(s.d.length_penalty, "f64"))
    made = emit_cast(g, g.node("Div", emit_cast(g, scores, "f32", "f64"), power), "f64", "f32")
    made = g.node("Max", made, g.constant(MIN_SCORE, "f32"))
    return _emit_masked(g, made, g.node("Equal", scores, g.constant(NO_SCORE, "f32")))


def _emit_masked(g: Emitter, scores: str, condition: str) -> str:
    """`NO_SCORE` where the condition holds."""
    return g.node("Where", condition, g.constant(NO_SCORE, "f32"), scores)


def _emit_any(g: Emitter, x: str, axis: int = 1) -> str:
    """Emit a logical "any" along `axis`, which is kept with length 1."""
    # ONNX has no `or` reduction, and `ReduceMax` takes booleans from opset 20 on.
    count = g.node("ReduceSum", emit_cast(g, x, "bool", "i64"), g.vector(axis), keepdims=True)
    return g.node("Greater", count, g.constant(0, "i64"))


def _emit_column_shape(s: BeamSearchStep) -> str:
    """Emit the shape of one token per hypothesis, `[s, n, 1]`."""
    g = s.g
    return g.node("Concat", g.node("Shape", s.before.scores), g.vector(1), axis=0)


def _emit_flat(s: BeamSearchStep, places: str, width: int) -> str:
    """Convert indices among the `width` beams of a sequence, `[s, m]`, to indices among all beams,
    `[s·m]`.
    """
    g = s.g
    count = g.node("Squeeze", g.node("Shape", s.before.scores, start=0, end=1), g.vector(0))
    numbers = g.node("Range", g.constant(0, "i64"), count, g.constant(1, "i64"))
    offsets = g.node("Mul", emit_unsqueeze(g, numbers, 1), g.constant(width, "i64"))
    return g.node("Reshape", g.node("Add", places, offsets), g.vector(-1))


def _emit_gathered_beams(s: BeamSearchStep, x: str, places: str, width: int) -> str:
    """Gather beams `[s, m]` of `x`, `[s, width, t]`, as `[s, m, t]`."""
    g = s.g
    length = g.node("Shape", x, start=2, end=3)
    count = g.node("Mul", g.node("Shape", x, start=0, end=1), g.vector(width))
    # Before the first step `t` is 0: a length here, not Reshape's "copy this axis".
    rows = g.node("Reshape", x, g.node("Concat", count, length, axis=0), allowzero=1)
    picked = g.node("Gather", rows, _emit_flat(s, places, width))
    shape = g.node("Concat", g.node("Shape", places), length, axis=0)
    return g.node("Reshape", picked, shape, allowzero=1)
