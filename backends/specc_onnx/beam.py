"""One step of beam search over a whole batch, as ONNX nodes; `specc.generation.beam` in Python.

The bookkeeping is that of the published generators, where it goes back to Wu et al. 2016, arXiv:1609.08144, sec. 7:
of the continuations of `beams` hypotheses the best are looked at, more of them than beams, so that enough remain when
some have ended. Ended ones are kept apart under scores divided by a power of their length.

Shapes: `s` sentences, `n` beams, `c` candidates, `t` tokens written so far. Everything grows by one token a step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from specc.ir.dim import Dim
from specc.ir.types import Type
from specc_onnx.arrange import cast, cut, unsqueeze
from specc_onnx.decoding import Decoding
from specc_onnx.emit import Emitter

LOW = -1e9
"""Added to the score of what must not be chosen."""

SENTENCES, WRITTEN = Dim.symbol("sentences"), Dim.symbol("written")


class Beams(NamedTuple):
    """What one step hands to the next, by the names of tensors.

    `scores` f32[s, n] and `written` i64[s, n, t] of the hypotheses that go on, `done_scores` and `done` of those that
    ended, `ended` bool[s, n] which of the latter there are, `open` bool[s, 1] whether a sentence can still improve.
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
    lone = g.node("Expand", g.constant([[0.0, *[LOW] * (n - 1)]], "f32"), shape)
    nothing = g.node("Expand", g.constant(0, "i64"), g.node("Concat", shape, g.vector(0), axis=0))
    low = g.node("Expand", g.constant(LOW, "f32"), shape)
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

    def step(self, logs: str) -> Chosen:
        """From log-probabilities `[s·n, vocabulary]`; of the first step also `[s, vocabulary]`, a row a sentence."""
        g, n = self.g, self.d.beams
        sentences = g.node("Shape", self.before.scores, start=0, end=1)
        wide = g.node("Mul", sentences, g.vector(n))
        shared = g.node("Div", wide, g.node("Shape", logs, start=0, end=1))  # the beams that one row stands for
        logs = g.node("Reshape", logs, g.node("Concat", sentences, g.vector(-1, self.vocabulary), axis=0))
        found = self._candidates(logs)
        scores, places = g.nodes("TopK", 2, self._lowered(found.scores, found.hits), g.vector(n), axis=1)
        tokens = g.node("GatherElements", found.tokens, places, axis=1)
        parents = self._flat(g.node("GatherElements", found.parents, places, axis=1), n)
        parents = g.node("Div", parents, shared)
        written = self._rows_of(found.written, places, self.candidates)
        done_scores, done, ended = self._done(found)
        still = self._open(scores, done_scores, ended)
        after = Beams(scores, written, done_scores, done, ended, still)
        flat = g.node("Reshape", tokens, g.vector(-1))
        return Chosen(after, flat, parents, self._more(found.hits, ended, still))

    def _candidates(self, logs: str) -> Candidates:
        g, n = self.g, self.d.beams
        total = g.node("Add", logs, unsqueeze(g, self.before.scores, 2))
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
        now = g.node("And", found.hits, leading)
        scores = self._normalized(found.scores, self.made)
        if self.d.early is True:
            scores = self._lowered(scores, self._all(self.before.ended))
        scores = self._lowered(scores, g.node("Not", self.before.open))
        scores = self._lowered(scores, g.node("Not", now))
        filler = g.node("Expand", g.constant(self.d.filler, "i64"), self._column())
        old = g.node("Concat", self.before.done, filler, axis=2)
        written = g.node("Concat", old, found.written, axis=1)
        ended = g.node("Concat", cast(g, self.before.ended, "bool", "i64"), cast(g, now, "bool", "i64"), axis=1)
        merged = g.node("Concat", self.before.done_scores, scores, axis=1)
        kept, places = g.nodes("TopK", 2, merged, g.vector(n), axis=1)
        ended = cast(g, g.node("GatherElements", ended, places, axis=1), "i64", "bool")
        return kept, self._rows_of(written, places, n + self.candidates), ended

    def _open(self, scores: str, done_scores: str, ended: str) -> str:
        """Whether the best hypothesis that goes on could still come before the worst that ended, bool[s, 1]."""
        g = self.g
        never = self.d.early == "never" and self.d.length_penalty > 0
        best = cut(g, scores, 1, Dim.of(0), Dim.of(1))
        best = self._normalized(best, self.limit if never else self.made)
        worst = cut(g, done_scores, 1, Dim.of(self.d.beams - 1), Dim.of(self.d.beams))
        worst = g.node("Where", ended, worst, g.constant(LOW, "f32"))
        better = self._any(g.node("Greater", best, worst))
        return g.node("And", self.before.open, better)

    def _more(self, hits: str, ended: str, still: str) -> str:
        """Whether any sentence is open and has a way to go on; where full beams end the search, some are not full."""
        g = self.g
        more = g.node("And", self._any(still, 0), self._any(self._any(g.node("Not", hits)), 0))
        if self.d.early is True:
            more = g.node("And", more, self._any(self._any(g.node("Not", ended)), 0))
        return g.node("Squeeze", more, g.vector(0, 1))

    def _normalized(self, scores: str, count: str) -> str:
        """`scores / count ** length_penalty`, rounded once to f32."""
        g = self.g
        power = g.node("Pow", cast(g, count, "i64", "f64"), g.constant(self.d.length_penalty, "f64"))
        return cast(g, g.node("Div", cast(g, scores, "f32", "f64"), power), "f64", "f32")

    def _lowered(self, scores: str, condition: str) -> str:
        g = self.g
        return g.node("Add", scores, g.node("Mul", cast(g, condition, "bool", "f32"), g.constant(LOW, "f32")))

    def _all(self, x: str, axis: int = 1) -> str:
        g = self.g
        return g.node("Not", self._any(g.node("Not", x), axis))

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
