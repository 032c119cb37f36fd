"""One step of beam search as ONNX nodes (Wu et al. 2016, arXiv:1609.08144, sec. 7).

As in transformers, a step keeps more candidates than beams, so that enough remain when some
finish; finished ones are stored with length-normalized scores. Shapes: `s` sequences, `n`
beams, `c` candidates, `t` tokens so far.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate.generation_context import GENERATED_DIM, NO_TOKEN, LoopCarry, TokenDecision
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import (
    emit_axis_length,
    emit_cast,
    emit_count,
    emit_slice,
    emit_unsqueeze,
)

NO_SCORE = float("-inf")
"""The score of an unused beam and of a token that cannot be chosen."""

MIN_SCORE = float(np.finfo(np.float32).min)
"""The lowest score of a sequence."""

SEQUENCES_DIM = Dim.symbol("sentences")


class BeamState(NamedTuple):
    """Loop carries: `scores` f32[s, n] and tokens `written` i64[s, n, t] of live beams; the same
    for finished beams as `done_scores` and `done`, with `ended` bool[s, n] true for those that
    exist; `open` bool[s, 1], whether a sequence can still improve.
    """

    scores: str
    written: str
    done_scores: str
    done: str
    ended: str
    open: str


@dataclass(frozen=True, slots=True)
class BeamCandidates:
    """The best continuations: `scores` f32[s, c], `parents` and `tokens` i64[s, c], tokens
    `written` i64[s, c, t + 1], and `is_finished` bool[s, c].
    """

    scores: str
    parents: str
    tokens: str
    written: str
    is_finished: str


def make_beam_carries(g: Emitter, d: DecodingConfig, sequences: str) -> list[LoopCarry]:
    """Return the fields of `BeamState` as loop carries for `sequences`, i64[1]. At first only one
    of the equal beams has a score.
    """
    n = d.num_beams
    shape = g.node("Concat", sequences, [n], axis=0)
    first_only = g.node("Expand", g.constant([[0.0, *[NO_SCORE] * (n - 1)]], "f32"), shape)
    no_tokens = g.node("Expand", 0, g.node("Concat", shape, [0], axis=0))
    is_open = g.node("Expand", True, g.node("Concat", sequences, [1], axis=0))
    scores = Type.of("f32", SEQUENCES_DIM, n)
    tokens = Type.of("i64", SEQUENCES_DIM, n, GENERATED_DIM)
    fields = (
        (scores, first_only),
        (tokens, no_tokens),
        (scores, g.node("Expand", NO_SCORE, shape)),
        (tokens, no_tokens),
        (Type.of("bool", SEQUENCES_DIM, n), g.node("Expand", False, shape)),
        (Type.of("bool", SEQUENCES_DIM, 1), is_open),
    )
    return [LoopCarry(n, *field) for n, field in zip(BeamState._fields, fields, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchStep:
    """One beam search step: the previous `state`, the number of generated tokens including this
    one, `length` i64[], and its maximum `limit` i64[].
    """

    g: Emitter
    d: DecodingConfig
    state: BeamState
    vocabulary: int
    length: str
    limit: str

    @property
    def candidates(self) -> int:
        """Number of candidate continuations per sequence and step."""
        # One candidate per stop token and beam may finish; `num_beams` others remain.
        wanted = max(2, 1 + len(self.d.stop)) * self.d.num_beams
        return min(wanted, self.d.num_beams * self.vocabulary)


def emit_beam_step(s: BeamSearchStep, logs: str, invalid_logits: str) -> TokenDecision:
    """Emit a step from log-probabilities `[s·n, vocabulary]`, or `[s, vocabulary]` at first.
    `invalid_logits` of a live beam end the search with `NO_TOKEN` and a NaN score.
    """
    g, n = s.g, s.d.num_beams
    batch = emit_axis_length(g, s.state.scores, 0)
    beam_count = g.node("Mul", batch, [n])
    # A first step may have one row per sequence, which is the parent of all its beams.
    beams_per_row = g.node("Div", beam_count, emit_axis_length(g, logs, 0))
    logs = g.node("Reshape", logs, g.node("Concat", batch, [-1, s.vocabulary], axis=0))
    candidates = _emit_candidates(s, logs)
    # Among equal scores `TopK` selects the first, like Python's stable sort.
    unfinished = _emit_masked(g, candidates.scores, candidates.is_finished)
    scores, indices = g.nodes("TopK", 2, unfinished, [n], axis=1)
    tokens = g.node("GatherElements", candidates.tokens, indices, axis=1)
    parents = _emit_flat(s, g.node("GatherElements", candidates.parents, indices, axis=1), n)
    parents = g.node("Div", parents, beams_per_row)
    written = _emit_gathered_beams(s, candidates.written, indices, s.candidates)
    done_scores, done, ended = _emit_finished_beams(s, candidates)
    is_open = _emit_is_open(s, scores, done_scores, ended)
    is_invalid = g.node("Reshape", invalid_logits, g.node("Concat", batch, [-1], axis=0))
    # open sequences fail with invalid logits of a live beam
    is_live = g.node("Greater", s.state.scores, NO_SCORE)
    has_failed = g.node("And", s.state.open, _emit_any(g, g.node("And", is_live, is_invalid)))
    # NaN logits end the search of all sequences; the caller sees a score of NaN.
    continues = g.node("And", _emit_any(g, is_open, 0), g.node("Not", _emit_any(g, has_failed, 0)))
    continues = g.node("Squeeze", continues, [0, 1])
    done_scores = g.node("Where", has_failed, float("nan"), done_scores)
    done = g.node("Where", emit_unsqueeze(g, has_failed, 2), NO_TOKEN, done)
    after = BeamState(scores, written, done_scores, done, ended, is_open)
    flat = g.node("Reshape", tokens, [-1])
    return TokenDecision(flat, parents, continues, after)


def _emit_candidates(s: BeamSearchStep, logs: str) -> BeamCandidates:
    g, n = s.g, s.d.num_beams
    state = emit_unsqueeze(g, s.state.scores, 2)
    # An unused beam may have NaN logits.
    is_live = g.node("Greater", state, NO_SCORE)
    total = g.node("Where", is_live, g.node("Add", logs, state), NO_SCORE)
    total = g.node("Reshape", total, [-1, n * s.vocabulary])
    scores, indices = g.nodes("TopK", 2, total, [s.candidates], axis=1)
    parents, tokens = (g.node(kind, indices, s.vocabulary) for kind in ("Div", "Mod"))
    state = _emit_gathered_beams(s, s.state.written, parents, n)
    written = g.node("Concat", state, emit_unsqueeze(g, tokens, 2), axis=2)
    is_finished = g.node("GreaterOrEqual", s.length, s.limit)
    for stop in s.d.stop:
        is_finished = g.node("Or", is_finished, g.node("Equal", tokens, stop))
    if not s.d.stop:
        is_finished = g.node("Expand", is_finished, g.node("Shape", tokens))
    return BeamCandidates(scores, parents, tokens, written, is_finished)


def _emit_finished_beams(s: BeamSearchStep, candidates: BeamCandidates) -> tuple[str, str, str]:
    """Emit the best finished hypotheses: those from before and those that finish now."""
    g, n = s.g, s.d.num_beams
    # As in transformers, only the first `num_beams` candidates may finish.
    leading = g.constant([[c < n for c in range(s.candidates)]], "bool")
    ends_now = g.node("And", g.node("And", candidates.is_finished, leading), s.state.open)
    ends_now = g.node("And", ends_now, g.node("Greater", candidates.scores, NO_SCORE))
    scores = _emit_masked(
        g, _emit_normalized_scores(s, candidates.scores, s.length), g.node("Not", ends_now)
    )
    column = g.node("Concat", g.node("Shape", s.state.scores), [1], axis=0)
    filler = g.node("Expand", s.d.fill_token, column)
    # Beams that finished earlier are filled up to the current length.
    done_before = g.node("Concat", s.state.done, filler, axis=2)
    written = g.node("Concat", done_before, candidates.written, axis=1)
    ended = g.node(
        "Concat", emit_cast(g, s.state.ended, "i64"), emit_cast(g, ends_now, "i64"), axis=1
    )
    merged = g.node("Concat", s.state.done_scores, scores, axis=1)
    best_scores, indices = g.nodes("TopK", 2, merged, [n], axis=1)
    ended = emit_cast(g, g.node("GatherElements", ended, indices, axis=1), "bool")
    done = _emit_gathered_beams(s, written, indices, n + s.candidates)
    done = g.node("Where", emit_unsqueeze(g, ended, 2), done, s.d.fill_token)
    return best_scores, done, ended


def _emit_is_open(s: BeamSearchStep, scores: str, done_scores: str, ended: str) -> str:
    """Emit whether each sequence can still improve, bool[s, 1]: with `early_stopping` whether it
    has a live beam and an unfinished one, else whether its best live beam beats its worst finished
    one.
    """
    g = s.g
    never = s.d.early_stopping == "never" and s.d.length_penalty > 0
    best = emit_slice(g, scores, 1, 0, 1)
    if s.d.early_stopping is True:
        is_live = g.node("Greater", best, NO_SCORE)
        better = g.node("And", is_live, _emit_any(g, g.node("Not", ended)))
        return g.node("And", s.state.open, better)
    # Sums of log-probabilities only decrease: the best reachable score is the sum divided by the
    # maximum length divisor, which early_stopping="never" waits for.
    best = _emit_normalized_scores(s, best, s.limit if never else s.length)
    worst = emit_slice(g, done_scores, 1, s.d.num_beams - 1, s.d.num_beams)
    worst = g.node("Where", ended, worst, NO_SCORE)
    better = _emit_any(g, g.node("Greater", best, worst))
    return g.node("And", s.state.open, better)


def _emit_normalized_scores(s: BeamSearchStep, scores: str, count: str) -> str:
    """Emit `scores / count ** length_penalty` in f32, at least `MIN_SCORE` or `NO_SCORE`."""
    g = s.g
    # In f64 and rounded once, like the Python implementation, so that ties are equal.
    power = g.node("Pow", emit_cast(g, count, "f64"), g.constant(s.d.length_penalty, "f64"))
    length = emit_cast(g, g.node("Div", emit_cast(g, scores, "f64"), power), "f32")
    length = g.node("Max", length, MIN_SCORE)
    return _emit_masked(g, length, g.node("Equal", scores, NO_SCORE))


def _emit_masked(g: Emitter, scores: str, condition: str) -> str:
    """Emit scores with `NO_SCORE` where the condition holds."""
    return g.node("Where", condition, NO_SCORE, scores)


def _emit_any(g: Emitter, x: str, axis: int = 1) -> str:
    """Emit a logical "any" along `axis`, which is kept with length 1."""
    # ONNX has no `or` reduction, and `ReduceMax` takes booleans from opset 20 on.
    return g.node("Greater", emit_count(g, x, axis, keep=True), 0)


def _emit_flat(s: BeamSearchStep, indices: str, width: int) -> str:
    """Convert indices among the `width` beams of a sequence, `[s, m]`, to indices among all beams,
    `[s·m]`.
    """
    g = s.g
    count = g.node("Squeeze", emit_axis_length(g, s.state.scores, 0), [0])
    sequence_ids = g.node("Range", 0, count, 1)
    offsets = g.node("Mul", emit_unsqueeze(g, sequence_ids, 1), width)
    return g.node("Reshape", g.node("Add", indices, offsets), [-1])


def _emit_gathered_beams(s: BeamSearchStep, x: str, indices: str, width: int) -> str:
    """Gather beams `[s, m]` of `x`, `[s, width, t]`, as `[s, m, t]`."""
    g = s.g
    length = emit_axis_length(g, x, 2)
    count = g.node("Mul", emit_axis_length(g, x, 0), [width])
    # `t` is 0 before the first step, so 0 must not copy an axis.
    rows = g.node("Reshape", x, g.node("Concat", count, length, axis=0), allowzero=1)
    gathered = g.node("Gather", rows, _emit_flat(s, indices, width))
    shape = g.node("Concat", g.node("Shape", indices), length, axis=0)
    return g.node("Reshape", gathered, shape, allowzero=1)
