"""What is done with the logits of each step inside a model that decodes itself: three
strategies, one interface.

A strategy is made while the main graph is open and writes what does not change from
step to step; `step` writes into the loop's body. What it hands to the next step are
`carries`; their last values become the outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specc.ir.derived import Decoding
from specc.ir.dim import Dim
from specc.ir.types import Type
from specc_onnx.generate import beam, history, sampling
from specc_onnx.generate.decoding import (
    KNOBS,
    MAX_TOKENS,
    NOWHERE,
    PENALTY,
    SEED,
)
from specc_onnx.generate.rules import ruled
from specc_onnx.generate.uniforms import check_drawing
from specc_onnx.lower.arrange import cast, cut, typed, unsqueeze
from specc_onnx.lower.emitter import Emitter, Tensor

MADE = Dim.symbol("made")
"""How many tokens were made."""


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that one step hands to the next: its type inside the loop, and the tensor
    it starts as.
    """

    wish: str
    type: Type
    first: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step decides.

    The next token of each row, i64[rows]; which row it continues, i64[rows], where that
    is not its own; whether to go on, bool[]; and the carries after the step.
    """

    tokens: str
    parents: str | None
    more: str
    after: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a strategy is told.

    The lengths `batch` and `vocabulary`, the rows of a step and their number i64[], the
    scalar inputs by name, the prompt i64[rows, n] of the steps, and which of it is no
    padding.
    """

    batch: Dim
    vocabulary: int
    rows: Dim
    scalars: Mapping[str, str]
    prompt: str
    keep: str | None

    def past(self, g: Emitter, d: Decoding) -> list[Carry]:
        """Return the carries of what the rules have to know of the tokens so far.

        `seen` bool[rows, vocabulary] for the penalty on repetition, `history` i64[rows, n]
        for rules over runs of tokens. A step's batch is all its rows.
        """
        made = []
        if d.penalized:
            seen = sampling.seen_in(g, self.prompt, self.keep, self.vocabulary)
            type = Type.of("bool", self.batch, self.vocabulary)
            made.append(Carry("seen", type, seen))
        if history.has_history(d):
            first = history.first_history(g, d, self.prompt, self.keep)
            made.append(Carry("history", history.type_of(self.batch), first))
        return made

    def ruled(
        self, g: Emitter, d: Decoding, scores: str, iteration: str, past: Sequence[str]
    ) -> str:
        """Write the scores under the penalty on repetition and the rules of this step."""
        if d.penalized:
            scores = sampling.penalized(g, scores, past[0], self.scalars[PENALTY])
        known = past[-1] if history.has_history(d) else None
        return ruled(
            g,
            d,
            scores,
            iteration,
            limit=self.scalars[MAX_TOKENS],
            vocabulary=self.vocabulary,
            history=known,
        )


def _continued(g: Emitter, d: Decoding, past: Sequence[str], tokens: str) -> list[str]:
    """The carries of `Start.past` with the token of each row, i64[rows, 1]."""
    made = []
    if d.penalized:
        made.append(sampling.with_seen(g, past[0], tokens))
    if history.has_history(d):
        made.append(g.node("Concat", past[-1], tokens, axis=1))
    return made


class Strategy(Protocol):
    """How tokens are chosen."""

    carries: list[Carry]

    def step(
        self, g: Emitter, logits: str, iteration: str, before: Sequence[str]
    ) -> Decision:
        """One step, from logits f32[rows, vocabulary] and the carries before."""
        ...

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """The model's outputs, from the carries after the last step."""
        ...


def strategy(g: Emitter, d: Decoding, start: Start) -> Strategy:
    """The strategy that `d` asks for, its constant part written into the open graph."""
    return BeamSearch(g, d, start) if d.strategy == "beam" else OneByOne(g, d, start)


class OneByOne:
    """The likeliest token, or one drawn. A row that has ended goes on with filler that
    nobody reads.

    Where a row that has not ended gets no numbers, nothing more is written: its token
    is `NOWHERE`, which says so.
    """

    def __init__(self, g: Emitter, d: Decoding, start: Start) -> None:
        self.d, self.start = d, start
        self.sampler: sampling.Sampler | None = None
        if d.strategy == "sample":
            check_drawing(g.opset)
            knobs = {name: start.scalars[name] for name in KNOBS}
            self.sampler = sampling.sampler(
                g, start.scalars[SEED], g.dim(start.rows), start.vocabulary, knobs
            )
        row = g.shape([start.rows])
        nothing = g.node("Concat", row, g.vector(0), axis=0)
        ended = g.node("Expand", g.constant(False, "bool"), row)
        tokens = g.node("Expand", g.constant(0, "i64"), nothing)
        scores = g.node("Expand", g.constant(0.0, "f32"), nothing)
        self.carries = [
            Carry("ended", Type("bool", (start.rows,)), ended),
            Carry("written", Type("i64", (start.rows, beam.WRITTEN)), tokens),
            Carry("scores", Type("f32", (start.rows, beam.WRITTEN)), scores),
            *start.past(g, d),
        ]

    def step(
        self, g: Emitter, logits: str, iteration: str, before: Sequence[str]
    ) -> Decision:
        """One token a row."""
        ended, written, scores, *past = before
        weighed = self.start.ruled(g, self.d, logits, iteration, past)
        if self.sampler:
            chosen = sampling.drawn(g, self.sampler, weighed, iteration)
        else:
            chosen = sampling.best_of(g, weighed)
        score = sampling.log_probability(g, logits, chosen)
        score = g.node("Where", ended, g.constant(0.0, "f32"), score)
        tokens = g.node("Where", ended, g.constant(self.d.filler, "i64"), chosen)
        wrong = g.node("And", g.node("Not", ended), sampling.hopeless(g, logits))
        score = g.node("Where", wrong, g.constant(float("nan"), "f32"), score)
        tokens = g.node("Where", wrong, g.constant(NOWHERE, "i64"), tokens)
        for stop in self.d.stop:
            ended = g.node(
                "Or", ended, g.node("Equal", tokens, g.constant(stop, "i64"))
            )
        column = unsqueeze(g, chosen, 1)
        after = [
            ended,
            g.node("Concat", written, unsqueeze(g, tokens, 1), axis=1),
            g.node("Concat", scores, unsqueeze(g, score, 1), axis=1),
            *_continued(g, self.d, past, column),
        ]
        some = g.node("Greater", _count(g, g.node("Not", ended)), g.constant(0, "i64"))
        more = g.node(
            "And", some, g.node("Equal", _count(g, wrong), g.constant(0, "i64"))
        )
        return Decision(tokens, None, more, after)

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """`tokens` i64[batch, made] and `log_probs` f32[batch, made]."""
        shape = (self.start.rows, MADE)
        return {
            "tokens": typed(last[1], "i64", shape),
            "log_probs": typed(last[2], "f32", shape),
        }


def _count(g: Emitter, rows: str) -> str:
    """How many of bool[rows] are true, i64[]."""
    return g.node("ReduceSum", cast(g, rows, "bool", "i64"), keepdims=False)


class BeamSearch:
    """Several hypotheses a sentence, each a row of the steps."""

    def __init__(self, g: Emitter, d: Decoding, start: Start) -> None:
        self.d, self.start = d, start
        first = beam.first(g, d, g.shape([start.batch]))
        types = beam.types_of(d.beams)
        own = [
            Carry(n, t, v)
            for n, t, v in zip(beam.Beams._fields, types, first, strict=True)
        ]
        self.carries = [*own, *start.past(g, d)]

    def step(
        self, g: Emitter, logits: str, iteration: str, before: Sequence[str]
    ) -> Decision:
        """One token a hypothesis."""
        beams, past = (
            beam.Beams(*before[: len(beam.Beams._fields)]),
            before[len(beam.Beams._fields) :],
        )
        logs = g.node("LogSoftmax", logits, axis=1)
        logs = self.start.ruled(g, self.d, logs, iteration, past)
        if self.d.renormalize:
            # a row that may not go on would be NaN
            none = g.constant(beam.NONE, "f32")
            possible = g.node("Greater", logs, none)
            rescaled = g.node("LogSoftmax", logs, axis=1)
            logs = g.node("Where", possible, rescaled, none)
        made = g.node("Add", iteration, g.constant(1, "i64"))
        limit = self.start.scalars[MAX_TOKENS]
        search = beam.Search(
            g=g,
            d=self.d,
            before=beams,
            vocabulary=self.start.vocabulary,
            made=made,
            limit=limit,
            last=g.node("GreaterOrEqual", made, limit),
        )
        chosen = beam.advance(search, logs, sampling.hopeless(g, logits))
        column = unsqueeze(g, chosen.tokens, 1)
        picked = [g.node("Gather", x, chosen.parents) for x in past]
        kept = _continued(g, self.d, picked, column)
        return Decision(
            chosen.tokens, chosen.parents, chosen.more, [*chosen.beams, *kept]
        )

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """`tokens` i64[batch, best, made] and `scores` f32[batch, best], the best first."""
        scores, tokens = last[2], last[3]
        best = Dim.of(self.d.best)
        if self.d.best < self.d.beams:
            scores, tokens = (cut(g, x, 1, Dim.of(0), best) for x in (scores, tokens))
        shape = (self.start.batch, best, MADE)
        return {
            "tokens": typed(tokens, "i64", shape),
            "scores": typed(scores, "f32", shape[:2]),
        }
