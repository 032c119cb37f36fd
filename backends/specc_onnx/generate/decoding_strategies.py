"""Greedy decoding, sampling and beam search inside a self-decoding model; token rules.

A strategy emits what is loop-invariant into the main graph when it is made, and one step
into the loop's body by `step`. The last values of its `carries` become the outputs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate import onnx_beam_search, onnx_sampling
from specc_onnx.generate.generation_context import (
    MAX_TOKENS_INPUT,
    NO_TOKEN,
    PENALTY_INPUT,
    SAMPLING_INPUTS,
    SEED_INPUT,
)
from specc_onnx.generate.onnx_sampling import (
    check_sampling_opset,
    emit_banned_tokens,
    emit_prompt_history,
    get_history_type,
    has_history,
)
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.tensor_helpers import emit_cast, emit_slice, emit_unsqueeze, make_typed_tensor

FORBIDDEN_SCORE = float("-inf")


def emit_token_rules(
    g: Emitter,
    d: DecodingConfig,
    scores: str,
    iteration: str,
    *,
    limit: str,
    vocabulary: int,
    history: str | None = None,
) -> str:
    """`scores` f32[rows, vocabulary] with minus infinity for forbidden tokens at step
    `iteration` i64[] of at most `limit` i64[], by the `history` where a rule reads it.
    """
    free = scores
    if history is not None:
        for banned in emit_banned_tokens(g, d, history, vocabulary):
            scores = g.node("Where", banned, g.constant(FORBIDDEN_SCORE, "f32"), scores)
    if d.min_tokens and d.stop:
        early = g.node("Less", iteration, g.constant(d.min_tokens, "i64"))
        scores = _emit_suppressed_scores(g, scores, d.stop, vocabulary, early)
    if d.forced_eos_token_id is not None:
        made = g.node("Add", iteration, g.constant(1, "i64"))
        last = g.node("Equal", made, limit)
        only = [[0.0 if i == d.forced_eos_token_id else FORBIDDEN_SCORE for i in range(vocabulary)]]
        scores = g.node("Where", last, g.constant(only, "f32"), scores)
    if d.suppress_tokens:
        scores = _emit_suppressed_scores(g, scores, d.suppress_tokens, vocabulary)
    if d.begin_suppress_tokens:
        behind = _emit_is_step(g, iteration, len(d.begin))
        scores = _emit_suppressed_scores(g, scores, d.begin_suppress_tokens, vocabulary, behind)
    # forced tokens take precedence over the other settings
    for step, tokens in enumerate(d.begin):
        others = g.constant([[i not in tokens for i in range(vocabulary)]], "bool")
        # a single forced token is certain: log-probability 0
        known = free if len(tokens) > 1 else g.constant(0.0, "f32")
        those = g.node("Where", others, g.constant(FORBIDDEN_SCORE, "f32"), known)
        scores = g.node("Where", _emit_is_step(g, iteration, step), those, scores)
    return scores


def _emit_is_step(g: Emitter, iteration: str, step: int) -> str:
    """Return whether this is iteration `step`, bool[]."""
    return g.node("Equal", iteration, g.constant(step, "i64"))


def _emit_suppressed_scores(
    g: Emitter, scores: str, tokens: Collection[int], vocabulary: int, when: str | None = None
) -> str:
    """Suppress the scores of tokens where `when` bool[] is true."""
    those = {*tokens}
    banned = g.constant([[i in those for i in range(vocabulary)]], "bool")
    if when is not None:
        banned = g.node("And", banned, when)
    return g.node("Where", banned, g.constant(FORBIDDEN_SCORE, "f32"), scores)


GENERATED_COUNT_DIM = Dim.symbol("made")
"""The number of generated tokens."""


@dataclass(frozen=True, slots=True)
class LoopCarry:
    """A loop-carried value: its type in the loop, and the tensor it starts as."""

    wish: str
    type: Type
    first: str


@dataclass(frozen=True, slots=True)
class TokenDecision:
    """The next `tokens` i64[rows], the row that each continues, i64[rows] (None: its own), whether
    to go on, bool[], and the carries after the step.
    """

    tokens: str
    parents: str | None
    more: str
    after: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInputs:
    """The lengths `batch`, `vocabulary` and `rows` of a step, scalar inputs by name, the prompt
    i64[rows, n], and its padding mask `keep`.
    """

    batch: Dim
    vocabulary: int
    rows: Dim
    scalars: Mapping[str, str]
    prompt: str
    keep: str | None

    def past(self, g: Emitter, d: DecodingConfig) -> list[LoopCarry]:
        """Return the carries that token rules read: `seen` bool[rows, vocabulary] for the
        repetition penalty, `history` i64[rows, n] for n-grams and sequences.
        """
        made = []
        if d.penalized:
            seen = onnx_sampling.emit_prompt_tokens(g, self.prompt, self.keep, self.vocabulary)
            type = Type.of("bool", self.batch, self.vocabulary)
            made.append(LoopCarry("seen", type, seen))
        if has_history(d):
            first = emit_prompt_history(g, d, self.prompt, self.keep)
            made.append(LoopCarry("history", get_history_type(self.batch), first))
        return made

    def emit_score_rules(
        self, g: Emitter, d: DecodingConfig, scores: str, iteration: str, past: Sequence[str]
    ) -> str:
        """Write the scores under the penalty on repetition and the rules of this step."""
        if d.penalized:
            scores = onnx_sampling.emit_repetition_penalty(
                g, scores, past[0], self.scalars[PENALTY_INPUT]
            )
        known = past[-1] if has_history(d) else None
        return emit_token_rules(
            g,
            d,
            scores,
            iteration,
            limit=self.scalars[MAX_TOKENS_INPUT],
            vocabulary=self.vocabulary,
            history=known,
        )


def _continue_carry(g: Emitter, d: DecodingConfig, past: Sequence[str], tokens: str) -> list[str]:
    """Return the carries of `StrategyInputs.past` updated with the new tokens, i64[rows, 1]."""
    made = []
    if d.penalized:
        made.append(onnx_sampling.emit_seen_tokens(g, past[0], tokens))
    if has_history(d):
        made.append(g.node("Concat", past[-1], tokens, axis=1))
    return made


class DecodingStrategy(Protocol):
    """A strategy for choosing tokens."""

    carries: list[LoopCarry]

    def step(self, g: Emitter, logits: str, iteration: str, before: Sequence[str]) -> TokenDecision:
        """Emit one step, from logits f32[rows, vocabulary] and the carries before it."""
        ...

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """Return the model's outputs, from the carries after the last step."""
        ...


def make_strategy(g: Emitter, d: DecodingConfig, start: StrategyInputs) -> DecodingStrategy:
    """Return the requested strategy; its loop-invariant part goes into the open graph."""
    return (
        BeamSearchStrategy(g, d, start)
        if d.strategy == "beam"
        else SingleSequenceStrategy(g, d, start)
    )


class SingleSequenceStrategy:
    """Greedy decoding or sampling. Finished rows get filler; invalid logits of an open row end the
    generation with `NO_TOKEN`.
    """

    def __init__(self, g: Emitter, d: DecodingConfig, start: StrategyInputs) -> None:
        self.d, self.start = d, start
        self.sampler: onnx_sampling.SamplerState | None = None
        if d.strategy == "sample":
            check_sampling_opset(g.opset)
            knobs = {name: start.scalars[name] for name in SAMPLING_INPUTS}
            self.sampler = onnx_sampling.make_sampler(
                g, start.scalars[SEED_INPUT], g.dim(start.rows), start.vocabulary, knobs
            )
        row = g.shape([start.rows])
        nothing = g.node("Concat", row, g.vector(0), axis=0)
        ended = g.node("Expand", g.constant(False, "bool"), row)
        tokens = g.node("Expand", g.constant(0, "i64"), nothing)
        scores = g.node("Expand", g.constant(0.0, "f32"), nothing)
        self.carries = [
            LoopCarry("ended", Type("bool", (start.rows,)), ended),
            LoopCarry("written", Type("i64", (start.rows, onnx_beam_search.GENERATED_DIM)), tokens),
            LoopCarry("scores", Type("f32", (start.rows, onnx_beam_search.GENERATED_DIM)), scores),
            *start.past(g, d),
        ]

    def step(self, g: Emitter, logits: str, iteration: str, before: Sequence[str]) -> TokenDecision:
        """Choose one token per sequence."""
        ended, written, scores, *past = before
        weighed = self.start.emit_score_rules(g, self.d, logits, iteration, past)
        if self.sampler:
            chosen = onnx_sampling.emit_sampled_tokens(g, self.sampler, weighed, iteration)
        else:
            chosen = onnx_sampling.emit_argmax_tokens(g, weighed)
        score = onnx_sampling.emit_log_probability(g, logits, chosen)
        score = g.node("Where", ended, g.constant(0.0, "f32"), score)
        tokens = g.node("Where", ended, g.constant(self.d.filler, "i64"), chosen)
        wrong = g.node("And", g.node("Not", ended), onnx_sampling.emit_invalid_logits(g, logits))
        score = g.node("Where", wrong, g.constant(float("nan"), "f32"), score)
        tokens = g.node("Where", wrong, g.constant(NO_TOKEN, "i64"), tokens)
        for stop in self.d.stop:
            ended = g.node("Or", ended, g.node("Equal", tokens, g.constant(stop, "i64")))
        column = emit_unsqueeze(g, chosen, 1)
        after = [
            ended,
            g.node("Concat", written, emit_unsqueeze(g, tokens, 1), axis=1),
            g.node("Concat", scores, emit_unsqueeze(g, score, 1), axis=1),
            *_continue_carry(g, self.d, past, column),
        ]
        some = g.node("Greater", _emit_true_count(g, g.node("Not", ended)), g.constant(0, "i64"))
        more = g.node(
            "And", some, g.node("Equal", _emit_true_count(g, wrong), g.constant(0, "i64"))
        )
        return TokenDecision(tokens, None, more, after)

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """`tokens` i64[batch, made] and `log_probs` f32[batch, made]."""
        shape = (self.start.rows, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(last[1], "i64", shape),
            "log_probs": make_typed_tensor(last[2], "f32", shape),
        }


def _emit_true_count(g: Emitter, rows: str) -> str:
    """Return the number of true elements of bool[rows], i64[]."""
    return g.node("ReduceSum", emit_cast(g, rows, "bool", "i64"), keepdims=False)


class BeamSearchStrategy:
    """Beam search: several hypotheses per sequence, each a batch element of a step."""

    def __init__(self, g: Emitter, d: DecodingConfig, start: StrategyInputs) -> None:
        self.d, self.start = d, start
        first = onnx_beam_search.emit_initial_beams(g, d, g.shape([start.batch]))
        types = onnx_beam_search.list_beam_types(d.num_beams)
        own = [
            LoopCarry(n, t, v)
            for n, t, v in zip(onnx_beam_search.BeamState._fields, types, first, strict=True)
        ]
        self.carries = [*own, *start.past(g, d)]

    def step(self, g: Emitter, logits: str, iteration: str, before: Sequence[str]) -> TokenDecision:
        """Choose one token per hypothesis."""
        beams, past = (
            onnx_beam_search.BeamState(*before[: len(onnx_beam_search.BeamState._fields)]),
            before[len(onnx_beam_search.BeamState._fields) :],
        )
        logs = g.node("LogSoftmax", logits, axis=1)
        logs = self.start.emit_score_rules(g, self.d, logs, iteration, past)
        if self.d.renormalize_logits:
            # a row without any allowed token would be NaN
            none = g.constant(onnx_beam_search.NO_SCORE, "f32")
            possible = g.node("Greater", logs, none)
            rescaled = g.node("LogSoftmax", logs, axis=1)
            logs = g.node("Where", possible, rescaled, none)
        made = g.node("Add", iteration, g.constant(1, "i64"))
        limit = self.start.scalars[MAX_TOKENS_INPUT]
        search = onnx_beam_search.BeamSearchStep(
            g=g,
            d=self.d,
            before=beams,
            vocabulary=self.start.vocabulary,
            made=made,
            limit=limit,
            last=g.node("GreaterOrEqual", made, limit),
        )
        chosen = onnx_beam_search.emit_beam_step(
            search, logs, onnx_sampling.emit_invalid_logits(g, logits)
        )
        column = emit_unsqueeze(g, chosen.tokens, 1)
        picked = [g.node("Gather", x, chosen.parents) for x in past]
        kept = _continue_carry(g, self.d, picked, column)
        return TokenDecision(chosen.tokens, chosen.parents, chosen.more, [*chosen.beams, *kept])

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """`tokens` i64[batch, best, made] and `scores` f32[batch, best], the best first."""
        scores, tokens = last[2], last[3]
        best = Dim.of(self.d.best)
        if self.d.best < self.d.num_beams:
            scores, tokens = (emit_slice(g, x, 1, Dim.of(0), best) for x in (scores, tokens))
        shape = (self.start.batch, best, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(tokens, "i64", shape),
            "scores": make_typed_tensor(scores, "f32", shape[:2]),
        }
