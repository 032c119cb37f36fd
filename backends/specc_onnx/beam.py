"""One step of beam search over a whole batch, as ONNX nodes; `specc.generation.beam` in Python.

The bookkeeping is that of the published generators, where it goes back to Wu et al. 2016, arXiv:1609.08144, sec. 7:
of the continuations of `beams` hypotheses the best are looked at, more of them than beams, so that enough remain when
some have ended. Ended ones are kept apart under scores divided by a power of their length.

Shapes: `s` sentences, `n` beams, `c` candidates, `t` tokens written so far. Everything grows by one token a step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specc.ir.dim import Dim
from specc.ir.types import Type
from specc_onnx.arrange import cast, cut, unsqueeze
from specc_onnx.decoding import NOWHERE, Decoding
from specc_onnx.emit import Emitter

NONE = float("-inf")
"""The score of what is no text: where there are fewer ways to go on than beams, and what cannot be chosen."""

LEAST = float(np.finfo(np.float32).min)
"""The lowest score of a text."""

SENTENCES, WRITTEN = Dim.symbol("sentences"), Dim.symbol("written")


class Beams(NamedTuple):
    """What one step hands to the next, by the names of tensors.

    `scores` f32[s, n] and `written` i64[s, n, t] of the hypotheses that go on, `done_scores` and `done` of those that
    ended, `ended` bool[s, n] which of the latter there are (the others are filler, of the score `NONE`), `open`
    bool[s, 1] whether a sentence can still improve.
    """

    scores: str
    written: str
    done_scores: str
    done: str
    ended: str
    open: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a step decides: the `beams` after it, the next token of each row and which row it continues, i64[s·n], and
    whether to go on, bool[]."""  # noqa: D209

    beams: Beams
    tokens: str
    parents: str
    more: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best continuations: `scores` f32[s, c], `parents` and `tokens` i64[s, c], `written` i64[s, c, t + 1] with
    the new token, `hits` bool[s, c] which of them end here."""  # noqa: D209

    scores: str
    parents: str
    tokens: str
    written: str
    hits: str


def types_of(beams: int) -> tuple[Type, ...]:
    """The types of `Beams`, in its order."""
    scores = Type.of("f32", SENTENCES, beams)
    tokens = Type.of("i64", SENTENCES, beams, WRITTEN)
    return scores, tokens, scores, tokens, Type.of("bool", SENTENCES, beams), Type.of("bool", SENTENCES, 1)


def first(g: Emitter, d: Decoding, sentences: str) -> Beams:
    """Before the first step: nothing written, and only the first of the equal beams counts. `sentences` is i64[1]."""
    n = d.beams
    shape = g.node("Concat", sentences, g.vector(n), axis=0)
    lone = g.node("Expand", g.constant([[0.0, *[NONE] * (n - 1)]], "f32"), shape)
    nothing = g.node("Expand", g.constant(0, "i64"), g.node("Concat", shape, g.vector(0), axis=0))
    low = g.node("Expand", g.constant(NONE, "f32"), shape)
    none = g.node("Expand", g.constant(False, "bool"), shape)
    some = g.node("Expand", g.constant(True, "bool"), g.node("Concat", sentences, g.vector(1), axis=0))
    return Beams(lone, nothing, low, nothing, none, some)


class Search:
    """One step, written for `before`; `made` i64[] counts the tokens with this one, of at most `limit` i64[]."""

    def __init__(self, g: Emitter, d: Decoding, before: Beams, vocabulary: int, made: str, limit: str) -> None:
        self.g, self.d, self.before, self.vocabulary = g, d, before, vocabulary
        self.candidates = min(max(2, 1 + len(d.stop)) * d.beams, d.beams * vocabulary)
        self.made, self.limit = made, limit
        self.last = g.node("GreaterOrEqual", made, limit)

    def step(self, logs: str, hopeless: str) -> Chosen:
        """From log-probabilities `[s·n, vocabulary]`; of the first step also `[s, vocabulary]`, a row a sentence.

        `hopeless` says of each row whether its scores are no numbers. Where that is a text that goes on, the search is
        over: the results of its sentence are `NOWHERE`, of a score that is no number.
        """
        g, n = self.g, self.d.beams
        sentences = g.node("Shape", self.before.scores, start=0, end=1)
        wide = g.node("Mul", sentences, g.vector(n))
        shared = g.node("Div", wide, g.node("Shape", logs, start=0, end=1))  # the beams that one row stands for
        logs = g.node("Reshape", logs, g.node("Concat", sentences, g.vector(-1, self.vocabulary), axis=0))
        found = self._candidates(logs)
        scores, places = g.nodes("TopK", 2, self._none_of(found.scores, found.hits), g.vector(n), axis=1)
        tokens = g.node("GatherElements", found.tokens, places, axis=1)
        parents = self._flat(g.node("GatherElements", found.parents, places, axis=1), n)
        parents = g.node("Div", parents, shared)
        written = self._rows_of(found.written, places, self.candidates)
        done_scores, done, ended = self._done(found)
        still = self._open(scores, done_scores, ended)
        wrong = self._wrong(g.node("Reshape", hopeless, g.node("Concat", sentences, g.vector(-1), axis=0)))
        more = g.node("And", self._any(still, 0), g.node("Not", self._any(wrong, 0)))
        more = g.node("Squeeze", more, g.vector(0, 1))
        done_scores = g.node("Where", wrong, g.constant(float("nan"), "f32"), done_scores)
        done = g.node("Where", unsqueeze(g, wrong, 2), g.constant(NOWHERE, "i64"), done)
        after = Beams(scores, written, done_scores, done, ended, still)
        flat = g.node("Reshape", tokens, g.vector(-1))
        return Chosen(after, flat, parents, more)

    def _wrong(self, hopeless: str) -> str:
        """The sentences that are open and have a text without numbers, bool[s, 1], by bool[s, n] or bool[s, 1]."""
        g = self.g
        alive = g.node("Greater", self.before.scores, g.constant(NONE, "f32"))
        return g.node("And", self.before.open, self._any(g.node("And", alive, hopeless)))

    def _candidates(self, logs: str) -> Candidates:
        g, n = self.g, self.d.beams
        before = unsqueeze(g, self.before.scores, 2)
        alive = g.node("Greater", before, g.constant(NONE, "f32"))
        total = g.node("Where", alive, g.node("Add", logs, before), g.constant(NONE, "f32"))
        total = g.node("Reshape", total, g.vector(-1, n * self.vocabulary))
        scores, places = g.nodes("TopK", 2, total, g.vector(self.candidates), axis=1)
        size = g.constant(self.vocabulary, "i64")
        parents, tokens = g.node("Div", places, size), g.node("Mod", places, size)
        before = self._rows_of(self.before.written, parents, n)
        written = g.node("Concat", before, unsqueeze(g, tokens, 2), axis=2)
        hits = self.last
        for stop in self.d.stop:
            hits = g.node("Or", hits, g.node("Equal", tokens, g.constant(stop, "i64")))
        if not self.d.stop:
            hits = g.node("Expand", hits, g.node("Shape", tokens))
        return Candidates(scores, parents, tokens, written, hits)

    def _done(self, found: Candidates) -> tuple[str, str, str]:
        """The best of those that ended before and those that end now, if they are among the first `beams`."""
        g, n = self.g, self.d.beams
        leading = g.constant([[c < n for c in range(self.candidates)]], "bool")
        now = g.node("And", g.node("And", found.hits, leading), self.before.open)
        now = g.node("And", now, g.node("Greater", found.scores, g.constant(NONE, "f32")))
        scores = self._none_of(self._normalized(found.scores, self.made), g.node("Not", now))
        filler = g.node("Expand", g.constant(self.d.filler, "i64"), self._column())
        old = g.node("Concat", self.before.done, filler, axis=2)
        written = g.node("Concat", old, found.written, axis=1)
        ended = g.node("Concat", cast(g, self.before.ended, "bool", "i64"), cast(g, now, "bool", "i64"), axis=1)
        merged = g.node("Concat", self.before.done_scores, scores, axis=1)
        kept, places = g.nodes("TopK", 2, merged, g.vector(n), axis=1)
        ended = cast(g, g.node("GatherElements", ended, places, axis=1), "i64", "bool")
        done = self._rows_of(written, places, n + self.candidates)
        done = g.node("Where", unsqueeze(g, ended, 2), done, g.constant(self.d.filler, "i64"))
        return kept, done, ended

    def _open(self, scores: str, done_scores: str, ended: str) -> str:
        """Whether a sentence is searched further, bool[s, 1]: something goes on, and not as many ended as count.

        Unless `early` says so, that is not enough: the best that goes on must not come before the worst that ended.
        """
        g = self.g
        never = self.d.early == "never" and self.d.length_penalty > 0
        best = cut(g, scores, 1, Dim.of(0), Dim.of(1))
        if self.d.early is True:
            going = g.node("Greater", best, g.constant(NONE, "f32"))
            return g.node("And", self.before.open, g.node("And", going, self._any(g.node("Not", ended))))
        best = self._normalized(best, self.limit if never else self.made)
        worst = cut(g, done_scores, 1, Dim.of(self.d.beams - 1), Dim.of(self.d.beams))
        worst = g.node("Where", ended, worst, g.constant(NONE, "f32"))
        better = self._any(g.node("Greater", best, worst))
        return g.node("And", self.before.open, better)

    def _normalized(self, scores: str, count: str) -> str:
        """`scores / count ** length_penalty`, rounded once to f32; not below `LEAST`, but for `NONE`."""
        g = self.g
        power = g.node("Pow", cast(g, count, "i64", "f64"), g.constant(self.d.length_penalty, "f64"))
        made = cast(g, g.node("Div", cast(g, scores, "f32", "f64"), power), "f64", "f32")
        made = g.node("Max", made, g.constant(LEAST, "f32"))
        return self._none_of(made, g.node("Equal", scores, g.constant(NONE, "f32")))

    def _none_of(self, scores: str, condition: str) -> str:
        """`NONE` where the condition holds."""
        return self.g.node("Where", condition, self.g.constant(NONE, "f32"), scores)

    def _any(self, x: str, axis: int = 1) -> str:
        g = self.g
        count = g.node("ReduceSum", cast(g, x, "bool", "i64"), g.vector(axis), keepdims=True)
        return g.node("Greater", count, g.constant(0, "i64"))

    def _column(self) -> str:
        """The shape of one token for each hypothesis, `[s, n, 1]`."""
        g = self.g
        return g.node("Concat", g.node("Shape", self.before.scores), g.vector(1), axis=0)

    def _flat(self, places: str, width: int) -> str:
        """Places among `width` of a sentence, `[s, m]`, as places among those of all, `[s·m]`."""
        g = self.g
        count = g.node("Squeeze", g.node("Shape", self.before.scores, start=0, end=1), g.vector(0))
        numbers = g.node("Range", g.constant(0, "i64"), count, g.constant(1, "i64"))
        offsets = g.node("Mul", unsqueeze(g, numbers, 1), g.constant(width, "i64"))
        return g.node("Reshape", g.node("Add", places, offsets), g.vector(-1))

    def _rows_of(self, x: str, places: str, width: int) -> str:
        """Rows of `x`, `[s, width, t]`, at `places`, `[s, m]`: `[s, m, t]`."""
        g = self.g
        length = g.node("Shape", x, start=2, end=3)
        count = g.node("Mul", g.node("Shape", x, start=0, end=1), g.vector(width))
        rows = g.node("Reshape", x, g.node("Concat", count, length, axis=0), allowzero=1)
        picked = g.node("Gather", rows, self._flat(places, width))
        shape = g.node("Concat", g.node("Shape", places), length, axis=0)
        return g.node("Reshape", picked, shape, allowzero=1)
