"""Emit the decoding strategies of a standalone generator: greedy decoding, sampling, beam search.

The constructor of a strategy emits loop-invariant nodes into the main graph; `emit_step` emits one
step into the loop body. `map_outputs` computes the outputs from the final loop-carried values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate import onnx_beam_search, onnx_sampling
from specc_onnx.generate.generator_inputs import (
    GENERATED_DIM,
    MAX_TOKENS_INPUT,
    NO_TOKEN,
    PENALTY_INPUT,
    SAMPLING_INPUTS,
    SEED_INPUT,
    LoopCarry,
    TokenSelection,
)
from specc_onnx.generate.generator_logits_processors import LogitsProcessors
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.tensor_helpers import emit_count_nonzero

GENERATED_COUNT_DIM = Dim.symbol("generated_tokens")
"""The dimension of the model outputs whose size is the number of generated tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInputs:
    """Inputs of a decoding strategy: the batch size, the vocabulary size, the number of sequences
    in a step (`step_batch_size`), the scalar inputs by role, the prompt i64[step_batch_size, n] and
    its padding mask.
    """

    g: Emitter
    decoding: DecodingConfig
    batch: Dim
    vocabulary: int
    step_batch_size: Dim
    scalars: Mapping[str, OnnxValue]
    prompt: OnnxValue
    padding_mask: OnnxValue | None

    def make_logits_processors(self) -> LogitsProcessors:
        """Return the logits processors of the decoding settings."""
        return LogitsProcessors(
            g=self.g,
            decoding=self.decoding,
            vocabulary=self.vocabulary,
            max_tokens=self.scalars[MAX_TOKENS_INPUT],
            penalty=self.scalars.get(PENALTY_INPUT),
        )


class DecodingStrategy(Protocol):
    """A decoding strategy, which emits the selection of the next tokens in each iteration.
    `carries` are the loop-carried values of the strategy.
    """

    carries: list[LoopCarry]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carries: Sequence[OnnxValue]
    ) -> TokenSelection:
        """Emit the selection of the next tokens from logits f32[batch, vocabulary] in iteration
        `iteration` i64[]; `carries` are the current values of `self.carries`.
        """
        ...

    def map_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return the outputs of the model, computed from the final loop-carried values."""
        ...


def make_decoding_strategy(inputs: StrategyInputs) -> DecodingStrategy:
    """Create the strategy of the decoding settings; its constructor emits loop-invariant nodes."""
    is_beam_search = inputs.decoding.strategy == "beam"
    return BeamSearchStrategy(inputs) if is_beam_search else SingleSequenceStrategy(inputs)


class SingleSequenceStrategy:
    """Greedy decoding or sampling. Finished sequences are padded with the fill token. If an
    unfinished sequence has invalid logits, generation ends with `NO_TOKEN`.
    """

    def __init__(self, inputs: StrategyInputs) -> None:
        g, size = inputs.g, inputs.step_batch_size
        self.inputs, self.processors = inputs, inputs.make_logits_processors()
        self.sampler: onnx_sampling.SamplerState | None = None
        if inputs.decoding.strategy == "sample":
            onnx_sampling.check_sampling_opset(g.opset)
            settings = {name: inputs.scalars[name] for name in SAMPLING_INPUTS}
            seed, batch_size = inputs.scalars[SEED_INPUT], g.emit_length(size)
            self.sampler = onnx_sampling.emit_sampler_state(
                seed, batch_size, inputs.vocabulary, settings
            )
        shape = g.emit_shape([size])
        empty_shape = g.emit_node("Concat", shape, [0], axis=0)
        is_finished, tokens, scores = (
            g.emit_node("Expand", value, result_shape)
            for value, result_shape in ((False, shape), (0, empty_shape), (0.0, empty_shape))
        )
        self.carries = [
            LoopCarry("is_finished", Type.of("bool", size), is_finished),
            LoopCarry("tokens", Type.of("i64", size, GENERATED_DIM), tokens),
            LoopCarry("scores", Type.of("f32", size, GENERATED_DIM), scores),
            *self.processors.emit_history_carries(inputs.batch, inputs.prompt, inputs.padding_mask),
        ]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carries: Sequence[OnnxValue]
    ) -> TokenSelection:
        """Select one token per sequence."""
        g, decoding = logits.g, self.inputs.decoding
        is_finished, tokens_so_far, scores, *history = carries
        allowed_scores = self.processors.emit_scores(logits, iteration, history)
        if self.sampler:
            sampled = onnx_sampling.emit_sampled_tokens(self.sampler, allowed_scores, iteration)
        else:
            # if several tokens are equally likely, the token with the lowest id is selected
            sampled = g.emit_node("ArgMax", allowed_scores, axis=1, keepdims=False)
        score = onnx_sampling.emit_log_probability(logits, sampled)
        score = is_finished.if_else(0.0, score)
        tokens = is_finished.if_else(decoding.fill_token_id, sampled)
        is_invalid = onnx_sampling.emit_invalid_logits(logits)
        is_invalid = ~is_finished & is_invalid
        score = is_invalid.if_else(float("nan"), score)
        tokens = is_invalid.if_else(NO_TOKEN, tokens)
        for stop in decoding.stop_token_ids:
            is_finished = is_finished | tokens.equals(stop)
        column = sampled.unsqueeze(1)
        next_carries = [
            is_finished,
            g.emit_node("Concat", tokens_so_far, tokens.unsqueeze(1), axis=1),
            g.emit_node("Concat", scores, score.unsqueeze(1), axis=1),
            *self.processors.emit_updated_history(history, column),
        ]
        has_unfinished = emit_count_nonzero(~is_finished) > 0
        should_continue = has_unfinished & emit_count_nonzero(is_invalid).equals(0)
        return TokenSelection(tokens, None, should_continue, next_carries)

    def map_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, generated] and `log_probs` f32[batch, generated]."""
        _, tokens, log_probs, *_ = final_carries
        shape = (self.inputs.step_batch_size, GENERATED_COUNT_DIM)
        return {"tokens": tokens.with_shape(shape), "log_probs": log_probs.with_shape(shape)}


class BeamSearchStrategy:
    """Beam search with several hypotheses per sequence; each hypothesis is a batch element."""

    def __init__(self, inputs: StrategyInputs) -> None:
        g = inputs.g
        self.inputs, self.processors = inputs, inputs.make_logits_processors()
        sequences = g.emit_shape([inputs.batch])
        self.carries = [
            *onnx_beam_search.emit_beam_carries(g, inputs.decoding, sequences),
            *self.processors.emit_history_carries(inputs.batch, inputs.prompt, inputs.padding_mask),
        ]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carries: Sequence[OnnxValue]
    ) -> TokenSelection:
        """Select one token per hypothesis."""
        g, decoding = logits.g, self.inputs.decoding
        count = len(onnx_beam_search.BeamState._fields)
        state, history = onnx_beam_search.BeamState(*carries[:count]), carries[count:]
        log_probs = g.emit_node("LogSoftmax", logits, axis=1)
        log_probs = self.processors.emit_scores(log_probs, iteration, history)
        if decoding.renormalize_logits:
            # softmax over only -inf would return NaN
            is_allowed = log_probs > onnx_beam_search.NO_SCORE
            renormalized = g.emit_node("LogSoftmax", log_probs, axis=1)
            log_probs = is_allowed.if_else(renormalized, onnx_beam_search.NO_SCORE)
        search = onnx_beam_search.BeamSearchStep(
            g=g,
            decoding=decoding,
            state=state,
            vocabulary=self.inputs.vocabulary,
            length=iteration + 1,
            limit=self.processors.max_tokens,
        )
        is_invalid = onnx_sampling.emit_invalid_logits(logits)
        selection = onnx_beam_search.emit_beam_step(search, log_probs, is_invalid)
        column = selection.tokens.unsqueeze(1)
        parent_history = [x.gather(selection.parents) for x in history]
        updated_history = self.processors.emit_updated_history(parent_history, column)
        return replace(selection, next_carries=[*selection.next_carries, *updated_history])

    def map_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, best, generated] and `scores` f32[batch, best], best first."""
        decoding = self.inputs.decoding
        scores, tokens = final_carries[2], final_carries[3]
        best = Dim.from_value(decoding.num_return_sequences)
        if decoding.num_return_sequences < decoding.num_beams:
            scores, tokens = (x.slice(1, 0, best) for x in (scores, tokens))
        shape = (self.inputs.batch, best, GENERATED_COUNT_DIM)
        return {"tokens": tokens.with_shape(shape), "scores": scores.with_shape(shape[:2])}
