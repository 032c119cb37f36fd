"""Greedy decoding, sampling and beam search inside a standalone generator; token rules.

A strategy emits its loop-invariant nodes into the main graph when it is constructed, and one
step into the loop body by `emit_step`. The final values of its `carries` become the outputs.
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
from specc_onnx.lower.emitter import Emitter, Tensor
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
    """Emit `scores` f32[rows, vocabulary] with -inf for the tokens that are forbidden at step
    `iteration` i64[] of at most `limit` i64[]; some rules read the token `history`.
    """
    unrestricted = scores
    if history is not None:
        for banned in emit_banned_tokens(g, d, history, vocabulary):
            scores = g.node("Where", banned, FORBIDDEN_SCORE, scores)
    if d.min_tokens and d.stop:
        early = g.node("Less", iteration, d.min_tokens)
        scores = _emit_suppressed_scores(g, scores, d.stop, vocabulary, early)
    if d.forced_eos_token_id is not None:
        next_length = g.node("Add", iteration, 1)
        last = g.node("Equal", next_length, limit)
        only = [[0.0 if i == d.forced_eos_token_id else FORBIDDEN_SCORE for i in range(vocabulary)]]
        scores = g.node("Where", last, g.constant(only, "f32"), scores)
    if d.suppress_tokens:
        scores = _emit_suppressed_scores(g, scores, d.suppress_tokens, vocabulary)
    if d.begin_suppress_tokens:
        after_begin = _emit_is_step(g, iteration, len(d.first_token_choices))
        scores = _emit_suppressed_scores(
            g, scores, d.begin_suppress_tokens, vocabulary, after_begin
        )
    # forced tokens take precedence over the other settings
    for step, tokens in enumerate(d.first_token_choices):
        is_other = g.constant([[i not in tokens for i in range(vocabulary)]], "bool")
        # a single forced token is certain: log-probability 0
        allowed_score = unrestricted if len(tokens) > 1 else g.constant(0.0, "f32")
        forced = g.node("Where", is_other, FORBIDDEN_SCORE, allowed_score)
        scores = g.node("Where", _emit_is_step(g, iteration, step), forced, scores)
    return scores


def _emit_is_step(g: Emitter, iteration: str, step: int) -> str:
    """Emit whether this is iteration `step`, bool[]."""
    return g.node("Equal", iteration, step)


def _emit_suppressed_scores(
    g: Emitter, scores: str, tokens: Collection[int], vocabulary: int, condition: str | None = None
) -> str:
    """Emit -inf scores for `tokens` if `condition` bool[] is true or None."""
    suppressed = {*tokens}
    banned = g.constant([[i in suppressed for i in range(vocabulary)]], "bool")
    if condition is not None:
        banned = g.node("And", banned, condition)
    return g.node("Where", banned, FORBIDDEN_SCORE, scores)


GENERATED_COUNT_DIM = Dim.symbol("made")
"""Number of generated tokens."""


@dataclass(frozen=True, slots=True)
class LoopCarry:
    """A loop-carried value: its type inside the loop and its initial value `first`."""

    name: str
    type: Type
    first: str


@dataclass(frozen=True, slots=True)
class TokenDecision:
    """The next `tokens` i64[rows], their parent rows i64[rows] (None: the same row), whether
    generation `continues`, bool[], and the carries `after` the step.
    """

    tokens: str
    parents: str | None
    continues: str
    after: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInputs:
    """Lengths `batch`, `vocabulary` and `rows` of a step, scalar inputs by name, the prompt
    i64[rows, n] and its padding mask.
    """

    batch: Dim
    vocabulary: int
    rows: Dim
    scalars: Mapping[str, str]
    prompt: str
    padding_mask: str | None

    def emit_history_carries(self, g: Emitter, d: DecodingConfig) -> list[LoopCarry]:
        """Return the carries that token rules read: `seen` bool[rows, vocabulary] for the
        repetition penalty, `history` i64[rows, n] for n-grams and sequences.
        """
        made = []
        if d.has_repetition_penalty:
            seen = onnx_sampling.emit_prompt_tokens(
                g, self.prompt, self.padding_mask, self.vocabulary
            )
            type = Type.of("bool", self.batch, self.vocabulary)
            made.append(LoopCarry("seen", type, seen))
        if has_history(d):
            first = emit_prompt_history(g, d, self.prompt, self.padding_mask)
            made.append(LoopCarry("history", get_history_type(self.batch), first))
        return made

    def emit_score_rules(
        self,
        g: Emitter,
        d: DecodingConfig,
        scores: str,
        iteration: str,
        emit_history_carries: Sequence[str],
    ) -> str:
        """Emit the scores after repetition penalty and token rules."""
        if d.has_repetition_penalty:
            scores = onnx_sampling.emit_repetition_penalty(
                g, scores, emit_history_carries[0], self.scalars[PENALTY_INPUT]
            )
        known = emit_history_carries[-1] if has_history(d) else None
        return emit_token_rules(
            g,
            d,
            scores,
            iteration,
            limit=self.scalars[MAX_TOKENS_INPUT],
            vocabulary=self.vocabulary,
            history=known,
        )


def _continue_carry(
    g: Emitter, d: DecodingConfig, emit_history_carries: Sequence[str], tokens: str
) -> list[str]:
    """Return the carries of `StrategyInputs.past` updated with the new tokens, i64[rows, 1]."""
    made = []
    if d.has_repetition_penalty:
        made.append(onnx_sampling.emit_seen_tokens(g, emit_history_carries[0], tokens))
    if has_history(d):
        made.append(g.node("Concat", emit_history_carries[-1], tokens, axis=1))
    return made


class DecodingStrategy(Protocol):
    """A decoding strategy, which emits the choice of the next tokens."""

    carries: list[LoopCarry]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, before: Sequence[str]
    ) -> TokenDecision:
        """Emit one step, from logits f32[rows, vocabulary] and the carries before it."""
        ...

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """Return the model's outputs, from the carries after the last step."""
        ...


def make_strategy(g: Emitter, d: DecodingConfig, inputs: StrategyInputs) -> DecodingStrategy:
    """Return the requested strategy; its loop-invariant part goes into the open graph."""
    return (
        BeamSearchStrategy(g, d, inputs)
        if d.strategy == "beam"
        else SingleSequenceStrategy(g, d, inputs)
    )


class SingleSequenceStrategy:
    """Greedy decoding or sampling. Finished sequences get the filler token; invalid logits of an
    unfinished sequence end the generation with `NO_TOKEN`.
    """

    def __init__(self, g: Emitter, d: DecodingConfig, inputs: StrategyInputs) -> None:
        self.d, self.inputs = d, inputs
        self.sampler: onnx_sampling.SamplerState | None = None
        if d.strategy == "sample":
            check_sampling_opset(g.opset)
            settings = {name: inputs.scalars[name] for name in SAMPLING_INPUTS}
            self.sampler = onnx_sampling.make_sampler(
                g, inputs.scalars[SEED_INPUT], g.dim(inputs.rows), inputs.vocabulary, settings
            )
        shape = g.shape([inputs.rows])
        empty_shape = g.node("Concat", shape, [0], axis=0)
        ended = g.node("Expand", False, shape)
        tokens = g.node("Expand", 0, empty_shape)
        scores = g.node("Expand", 0.0, empty_shape)
        self.carries = [
            LoopCarry("ended", Type("bool", (inputs.rows,)), ended),
            LoopCarry(
                "written", Type("i64", (inputs.rows, onnx_beam_search.GENERATED_DIM)), tokens
            ),
            LoopCarry("scores", Type("f32", (inputs.rows, onnx_beam_search.GENERATED_DIM)), scores),
            *inputs.emit_history_carries(g, d),
        ]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, carries: Sequence[str]
    ) -> TokenDecision:
        """Choose one token per sequence."""
        ended, written, scores, *emit_history_carries = carries
        ruled = self.inputs.emit_score_rules(g, self.d, logits, iteration, emit_history_carries)
        if self.sampler:
            sampled = onnx_sampling.emit_sampled_tokens(g, self.sampler, ruled, iteration)
        else:
            sampled = onnx_sampling.emit_argmax_tokens(g, ruled)
        score = onnx_sampling.emit_log_probability(g, logits, sampled)
        score = g.node("Where", ended, 0.0, score)
        tokens = g.node("Where", ended, self.d.fill_token, sampled)
        is_invalid = g.node(
            "And", g.node("Not", ended), onnx_sampling.emit_invalid_logits(g, logits)
        )
        score = g.node("Where", is_invalid, float("nan"), score)
        tokens = g.node("Where", is_invalid, NO_TOKEN, tokens)
        for stop in self.d.stop:
            ended = g.node("Or", ended, g.node("Equal", tokens, stop))
        column = emit_unsqueeze(g, sampled, 1)
        after = [
            ended,
            g.node("Concat", written, emit_unsqueeze(g, tokens, 1), axis=1),
            g.node("Concat", scores, emit_unsqueeze(g, score, 1), axis=1),
            *_continue_carry(g, self.d, emit_history_carries, column),
        ]
        any_open = g.node("Greater", _emit_true_count(g, g.node("Not", ended)), 0)
        continues = g.node("And", any_open, g.node("Equal", _emit_true_count(g, is_invalid), 0))
        return TokenDecision(tokens, None, continues, after)

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, made] and `log_probs` f32[batch, made]."""
        shape = (self.inputs.rows, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(last[1], "i64", shape),
            "log_probs": make_typed_tensor(last[2], "f32", shape),
        }


def _emit_true_count(g: Emitter, rows: str) -> str:
    """Emit the number of true elements of bool[rows], i64[]."""
    return g.node("ReduceSum", emit_cast(g, rows, "i64"), keepdims=False)


class BeamSearchStrategy:
    """Beam search: several hypotheses per sequence, each a batch element of a step."""

    def __init__(self, g: Emitter, d: DecodingConfig, inputs: StrategyInputs) -> None:
        self.d, self.inputs = d, inputs
        initial = onnx_beam_search.emit_initial_beams(g, d, g.shape([inputs.batch]))
        types = onnx_beam_search.list_beam_types(d.num_beams)
        beam_carries = [
            LoopCarry(n, t, v)
            for n, t, v in zip(onnx_beam_search.BeamState._fields, types, initial, strict=True)
        ]
        self.carries = [*beam_carries, *inputs.emit_history_carries(g, d)]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, carries: Sequence[str]
    ) -> TokenDecision:
        """Choose one token per hypothesis."""
        beams, emit_history_carries = (
            onnx_beam_search.BeamState(*carries[: len(onnx_beam_search.BeamState._fields)]),
            carries[len(onnx_beam_search.BeamState._fields) :],
        )
        logs = g.node("LogSoftmax", logits, axis=1)
        logs = self.inputs.emit_score_rules(g, self.d, logs, iteration, emit_history_carries)
        if self.d.renormalize_logits:
            # a row of -inf would become NaN
            no_score = g.constant(onnx_beam_search.NO_SCORE, "f32")
            possible = g.node("Greater", logs, no_score)
            rescaled = g.node("LogSoftmax", logs, axis=1)
            logs = g.node("Where", possible, rescaled, no_score)
        length = g.node("Add", iteration, 1)
        limit = self.inputs.scalars[MAX_TOKENS_INPUT]
        search = onnx_beam_search.BeamSearchStep(
            g=g,
            d=self.d,
            state=beams,
            vocabulary=self.inputs.vocabulary,
            length=length,
            limit=limit,
            is_last=g.node("GreaterOrEqual", length, limit),
        )
        decision = onnx_beam_search.emit_beam_step(
            search, logs, onnx_sampling.emit_invalid_logits(g, logits)
        )
        column = emit_unsqueeze(g, decision.tokens, 1)
        parent_history = [g.node("Gather", x, decision.parents) for x in emit_history_carries]
        history = _continue_carry(g, self.d, parent_history, column)
        return TokenDecision(
            decision.tokens, decision.parents, decision.continues, [*decision.beams, *history]
        )

    def outputs(self, g: Emitter, last: Sequence[str]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, best, made] and `scores` f32[batch, best], best first."""
        scores, tokens = last[2], last[3]
        best = Dim.of(self.d.num_return_sequences)
        if self.d.num_return_sequences < self.d.num_beams:
            scores, tokens = (emit_slice(g, x, 1, 0, best) for x in (scores, tokens))
        shape = (self.inputs.batch, best, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(tokens, "i64", shape),
            "scores": make_typed_tensor(scores, "f32", shape[:2]),
        }
