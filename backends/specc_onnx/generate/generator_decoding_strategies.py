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
from specc_onnx.generate import generator_logits_processors, onnx_beam_search, onnx_sampling
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
from specc_onnx.generate.generator_logits_processors import (
    emit_logits_processors,
    emit_prompt_history,
    get_history_type,
    needs_token_history,
)
from specc_onnx.generate.onnx_sampling import check_sampling_opset
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.tensor_helpers import (
    emit_count_nonzero,
    emit_slice,
    emit_unsqueeze,
    make_typed_tensor,
)

GENERATED_COUNT_DIM = Dim.symbol("generated_tokens")
"""The dimension of the model outputs whose size is the number of generated tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInputs:
    """Inputs of a decoding strategy: the batch size, the vocabulary size, the number of sequences
    in a step (`step_batch_size`), the names of scalar inputs, the prompt i64[step_batch_size, n]
    and its padding mask.
    """

    batch: Dim
    vocabulary: int
    step_batch_size: Dim
    scalar_names: Mapping[str, str]
    prompt: str
    padding_mask: str | None

    @property
    def max_tokens(self) -> str:
        """Return the name of the input with the maximum number of generated tokens, i64[]."""
        return self.scalar_names[MAX_TOKENS_INPUT]

    def emit_history_carries(self, g: Emitter, decoding: DecodingConfig) -> list[LoopCarry]:
        """Emit the loop-carried values of the logits processors: `seen_tokens` bool[batch,
        vocabulary] for the repetition penalty, and `history` i64[batch, n] for n-grams and
        `bad_words_ids`.
        """
        carries = []
        if decoding.has_repetition_penalty:
            seen_tokens = generator_logits_processors.emit_prompt_token_mask(
                g, self.prompt, self.padding_mask, self.vocabulary
            )
            type = Type.of("bool", self.batch, self.vocabulary)
            carries.append(LoopCarry("seen_tokens", type, seen_tokens))
        if needs_token_history(decoding):
            history = emit_prompt_history(g, decoding, self.prompt, self.padding_mask)
            carries.append(LoopCarry("history", get_history_type(self.batch), history))
        return carries

    def emit_processed_scores(
        self,
        g: Emitter,
        decoding: DecodingConfig,
        scores: str,
        iteration: str,
        history: Sequence[str],
    ) -> str:
        """Emit the result of applying the repetition penalty and all other logits processors to
        `scores` f32[batch, vocabulary]; `history` are the values of `emit_history_carries`.
        """
        if decoding.has_repetition_penalty:
            scores = generator_logits_processors.emit_repetition_penalty(
                g, scores, history[0], self.scalar_names[PENALTY_INPUT]
            )
        token_history = history[-1] if needs_token_history(decoding) else None
        return emit_logits_processors(
            g,
            decoding,
            scores,
            iteration,
            limit=self.max_tokens,
            vocabulary=self.vocabulary,
            history=token_history,
        )


def _emit_updated_history(
    g: Emitter, decoding: DecodingConfig, history: Sequence[str], tokens: str
) -> list[str]:
    """Emit the values of `emit_history_carries`, updated with the new tokens i64[batch, 1]."""
    updated_history = []
    if decoding.has_repetition_penalty:
        updated_history.append(
            generator_logits_processors.emit_updated_seen_tokens(g, history[0], tokens)
        )
    if needs_token_history(decoding):
        updated_history.append(g.emit_node("Concat", history[-1], tokens, axis=1))
    return updated_history


class DecodingStrategy(Protocol):
    """A decoding strategy, which emits the selection of the next tokens in each iteration.
    `carries` are the loop-carried values of the strategy.
    """

    carries: list[LoopCarry]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, carries: Sequence[str]
    ) -> TokenSelection:
        """Emit the selection of the next tokens from logits f32[batch, vocabulary] in iteration
        `iteration` i64[]; `carries` are the names of the loop-carried values `self.carries`.
        """
        ...

    def map_outputs(self, g: Emitter, final_carries: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs of the model, computed from the final loop-carried values."""
        ...


def make_decoding_strategy(
    g: Emitter, decoding: DecodingConfig, inputs: StrategyInputs
) -> DecodingStrategy:
    """Create the strategy for `decoding`; its constructor emits loop-invariant nodes."""
    strategy = BeamSearchStrategy if decoding.strategy == "beam" else SingleSequenceStrategy
    return strategy(g, decoding, inputs)


class SingleSequenceStrategy:
    """Greedy decoding or sampling. Finished sequences are padded with the fill token. If an
    unfinished sequence has invalid logits, generation ends with `NO_TOKEN`.
    """

    def __init__(self, g: Emitter, decoding: DecodingConfig, inputs: StrategyInputs) -> None:
        self.decoding, self.inputs = decoding, inputs
        self.sampler: onnx_sampling.SamplerState | None = None
        if decoding.strategy == "sample":
            check_sampling_opset(g.opset)
            settings = {name: inputs.scalar_names[name] for name in SAMPLING_INPUTS}
            self.sampler = onnx_sampling.emit_sampler_state(
                g,
                inputs.scalar_names[SEED_INPUT],
                g.emit_length(inputs.step_batch_size),
                inputs.vocabulary,
                settings,
            )
        shape, batch_size = g.emit_shape([inputs.step_batch_size]), inputs.step_batch_size
        empty_shape = g.emit_node("Concat", shape, [0], axis=0)
        is_finished, tokens, scores = (
            g.emit_node("Expand", value, result_shape)
            for value, result_shape in ((False, shape), (0, empty_shape), (0.0, empty_shape))
        )
        self.carries = [
            LoopCarry("is_finished", Type.of("bool", batch_size), is_finished),
            LoopCarry("tokens", Type.of("i64", batch_size, GENERATED_DIM), tokens),
            LoopCarry("scores", Type.of("f32", batch_size, GENERATED_DIM), scores),
            *inputs.emit_history_carries(g, decoding),
        ]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, carries: Sequence[str]
    ) -> TokenSelection:
        """Select one token per sequence."""
        is_finished, tokens_so_far, scores, *history = carries
        allowed_scores = self.inputs.emit_processed_scores(
            g, self.decoding, logits, iteration, history
        )
        if self.sampler:
            sampled = onnx_sampling.emit_sampled_tokens(g, self.sampler, allowed_scores, iteration)
        else:
            # if several tokens are equally likely, the token with the lowest id is selected
            sampled = g.emit_node("ArgMax", allowed_scores, axis=1, keepdims=False)
        score = onnx_sampling.emit_log_probability(g, logits, sampled)
        score = g.emit_node("Where", is_finished, 0.0, score)
        tokens = g.emit_node("Where", is_finished, self.decoding.fill_token_id, sampled)
        is_invalid = onnx_sampling.emit_invalid_logits(g, logits)
        is_invalid = g.emit_node("And", g.emit_node("Not", is_finished), is_invalid)
        score = g.emit_node("Where", is_invalid, float("nan"), score)
        tokens = g.emit_node("Where", is_invalid, NO_TOKEN, tokens)
        for stop in self.decoding.stop_token_ids:
            is_finished = g.emit_node("Or", is_finished, g.emit_node("Equal", tokens, stop))
        column = emit_unsqueeze(g, sampled, 1)
        next_carries = [
            is_finished,
            g.emit_node("Concat", tokens_so_far, emit_unsqueeze(g, tokens, 1), axis=1),
            g.emit_node("Concat", scores, emit_unsqueeze(g, score, 1), axis=1),
            *_emit_updated_history(g, self.decoding, history, column),
        ]
        has_unfinished = g.emit_node(
            "Greater", emit_count_nonzero(g, g.emit_node("Not", is_finished)), 0
        )
        should_continue = g.emit_node(
            "And", has_unfinished, g.emit_node("Equal", emit_count_nonzero(g, is_invalid), 0)
        )
        return TokenSelection(tokens, None, should_continue, next_carries)

    def map_outputs(self, g: Emitter, final_carries: Sequence[str]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, generated] and `log_probs` f32[batch, generated]."""
        shape = (self.inputs.step_batch_size, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(final_carries[1], "i64", shape),
            "log_probs": make_typed_tensor(final_carries[2], "f32", shape),
        }


class BeamSearchStrategy:
    """Beam search with several hypotheses per sequence; each hypothesis is a batch element."""

    def __init__(self, g: Emitter, decoding: DecodingConfig, inputs: StrategyInputs) -> None:
        self.decoding, self.inputs = decoding, inputs
        beam_carries = onnx_beam_search.emit_beam_carries(g, decoding, g.emit_shape([inputs.batch]))
        self.carries = [*beam_carries, *inputs.emit_history_carries(g, decoding)]

    def emit_step(
        self, g: Emitter, logits: str, iteration: str, carries: Sequence[str]
    ) -> TokenSelection:
        """Select one token per hypothesis."""
        count = len(onnx_beam_search.BeamState._fields)
        state, history = onnx_beam_search.BeamState(*carries[:count]), carries[count:]
        log_probs = g.emit_node("LogSoftmax", logits, axis=1)
        log_probs = self.inputs.emit_processed_scores(
            g, self.decoding, log_probs, iteration, history
        )
        if self.decoding.renormalize_logits:
            # softmax over only -inf would return NaN
            is_allowed = g.emit_node("Greater", log_probs, onnx_beam_search.NO_SCORE)
            renormalized = g.emit_node("LogSoftmax", log_probs, axis=1)
            log_probs = g.emit_node("Where", is_allowed, renormalized, onnx_beam_search.NO_SCORE)
        search = onnx_beam_search.BeamSearchStep(
            g=g,
            decoding=self.decoding,
            state=state,
            vocabulary=self.inputs.vocabulary,
            length=g.emit_node("Add", iteration, 1),
            limit=self.inputs.max_tokens,
        )
        is_invalid = onnx_sampling.emit_invalid_logits(g, logits)
        selection = onnx_beam_search.emit_beam_step(search, log_probs, is_invalid)
        column = emit_unsqueeze(g, selection.tokens, 1)
        parent_history = [g.emit_node("Gather", x, selection.parents) for x in history]
        history = _emit_updated_history(g, self.decoding, parent_history, column)
        return replace(selection, next_carries=[*selection.next_carries, *history])

    def map_outputs(self, g: Emitter, final_carries: Sequence[str]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, best, generated] and `scores` f32[batch, best], best first."""
        scores, tokens = final_carries[2], final_carries[3]
        best = Dim.from_value(self.decoding.num_return_sequences)
        if self.decoding.num_return_sequences < self.decoding.num_beams:
            scores, tokens = (emit_slice(g, x, 1, 0, best) for x in (scores, tokens))
        shape = (self.inputs.batch, best, GENERATED_COUNT_DIM)
        return {
            "tokens": make_typed_tensor(tokens, "i64", shape),
            "scores": make_typed_tensor(scores, "f32", shape[:2]),
        }
