"""Emit the beam search of a standalone generator (Wu et al. 2016, arXiv:1609.08144, sec. 7).

As in transformers, a step keeps more candidates than beams, so that enough unfinished candidates
remain when some finish. Finished hypotheses are stored with length-normalized scores. In shapes,
`s` is the number of sequences, `n` is the number of beams, `c` is the number of candidates, and `t`
is the number of previous tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from specc.ir.dim import Dim
from specc.ir.model_definition import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate.generator_inputs import (
    GENERATED_COUNT_DIM,
    GENERATED_DIM,
    NO_TOKEN,
    DecodingStepResult,
    LoopCarry,
)
from specc_onnx.generate.generator_logits_processors import (
    DecodingStrategyInputs,
    emit_invalid_logits_mask,
)
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.indexing import emit_top_k
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import emit_axis_length, emit_count_nonzero

NO_SCORE = float("-inf")
"""The score of an unused beam or a banned token."""

MIN_SCORE = float(np.finfo(np.float32).min)
"""The minimum score of a sequence."""

SEQUENCES_DIM = Dim.symbol("sequences")
"""The dimension whose size is the number of sequences. Each sequence has `num_beams` beams."""


class BeamState(NamedTuple):
    """The loop-carried values of beam search. Live beams have `scores` f32[s, n] and `sequences`
    i64[s, n, t], and finished hypotheses have `finished_scores` and `finished_sequences`.
    `is_finished` bool[s, n] is true for slots that contain a finished hypothesis. `can_improve`
    bool[s, 1] is true for sequences whose finished hypotheses can still improve.
    """

    scores: OnnxValue
    sequences: OnnxValue
    finished_scores: OnnxValue
    finished_sequences: OnnxValue
    is_finished: OnnxValue
    can_improve: OnnxValue


@dataclass(frozen=True, slots=True)
class BeamCandidates:
    """The best continuations: `scores` f32[s, c], `parents` i64[s, c], `tokens` i64[s, c],
    `sequences` i64[s, c, t + 1], and `is_finished` bool[s, c].
    """

    scores: OnnxValue
    parents: OnnxValue
    tokens: OnnxValue
    sequences: OnnxValue
    is_finished: OnnxValue


def emit_beam_loop_carries(
    g: Emitter, decoding: DecodingConfig, sequences: OnnxValue
) -> list[LoopCarry]:
    """Emit the fields of `BeamState` as loop-carried values. `sequences`, i64[1], contains the
    number of sequences. Initially, the beams of a sequence are equal, so only one of them has a
    finite score.
    """
    n = decoding.num_beams
    shape = sequences.apply_op("Concat", [n], axis=0)
    initial_scores = g.emit_constant([[0.0, *[NO_SCORE] * (n - 1)]], "f32").apply_op(
        "Expand", shape
    )
    empty_sequences = g.emit_node("Expand", 0, shape.apply_op("Concat", [0], axis=0))
    can_improve = g.emit_node("Expand", True, sequences.apply_op("Concat", [1], axis=0))
    scores = Type.of("f32", SEQUENCES_DIM, n)
    tokens = Type.of("i64", SEQUENCES_DIM, n, GENERATED_DIM)
    fields = (
        (scores, initial_scores),
        (tokens, empty_sequences),
        (scores, g.emit_node("Expand", NO_SCORE, shape)),
        (tokens, empty_sequences),
        (Type.of("bool", SEQUENCES_DIM, n), g.emit_node("Expand", False, shape)),
        (Type.of("bool", SEQUENCES_DIM, 1), can_improve),
    )
    return [LoopCarry(name, *field) for name, field in zip(BeamState._fields, fields, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchStep:
    """The inputs of a beam search step: the previous `state`, the number of generated tokens
    including the token of this step (`length` i64[]), and `max_length` i64[].
    """

    g: Emitter
    decoding_config: DecodingConfig
    state: BeamState
    vocabulary: int
    length: OnnxValue
    max_length: OnnxValue

    @property
    def candidate_count(self) -> int:
        """Return the number of candidate continuations per sequence and step."""
        # Each beam can finish with each stop token, so `num_beams` additional candidates must
        # remain.
        count = (
            max(2, 1 + len(self.decoding_config.stop_token_ids)) * self.decoding_config.num_beams
        )
        return min(count, self.decoding_config.num_beams * self.vocabulary)


def emit_beam_search_step(
    step: BeamSearchStep, log_probs: OnnxValue, invalid_mask: OnnxValue
) -> DecodingStepResult:
    """Emit a step for log-probabilities of the shape `[s·n, vocabulary]`, or `[s, vocabulary]` in
    the first step. If a live beam has invalid logits, the search ends with `NO_TOKEN` and a NaN
    score.
    """
    n = step.decoding_config.num_beams
    batch = emit_axis_length(step.state.scores, 0)
    beam_count = batch * [n]
    # In the first step, each sequence may have a single logits vector, from which all beams
    # continue.
    beams_per_logit_row = beam_count / emit_axis_length(log_probs, 0)
    log_probs = log_probs.apply_op(
        "Reshape", batch.apply_op("Concat", [-1, step.vocabulary], axis=0)
    )
    candidates = _emit_candidates(step, log_probs)
    # If several scores are equal, `TopK` selects the first index, like Python's stable sort.
    live_scores = _emit_masked_scores(candidates.scores, candidates.is_finished)
    scores, indices = emit_top_k(live_scores, [n], axis=1)
    tokens = candidates.tokens.gather_elements(indices, 1)
    parents = _emit_flat_indices(step, candidates.parents.gather_elements(indices, 1), n)
    parents = parents / beams_per_logit_row
    sequences = _emit_gathered_beams(step, candidates.sequences, indices, step.candidate_count)
    finished_scores, finished_sequences, is_finished = _emit_finished_beams(step, candidates)
    can_improve = _emit_can_improve(step, scores, finished_scores, is_finished)
    is_invalid = invalid_mask.reshape(batch.apply_op("Concat", [-1], axis=0))
    # all unfinished sequences end if a live beam has invalid logits
    is_live = step.state.scores > NO_SCORE
    has_failed = step.state.can_improve & _emit_any(is_live & is_invalid)
    # NaN logits end the search of all sequences, and the returned score is NaN.
    should_continue = _emit_any(can_improve, 0) & ~_emit_any(has_failed, 0)
    should_continue = should_continue.squeeze(0, 1)
    finished_scores = has_failed.where(float("nan"), finished_scores)
    finished_sequences = has_failed.unsqueeze(2).where(NO_TOKEN, finished_sequences)
    next_state = BeamState(
        scores, sequences, finished_scores, finished_sequences, is_finished, can_improve
    )
    flat_tokens = tokens.reshape([-1])
    return DecodingStepResult(flat_tokens, parents, should_continue, next_state)


def _emit_candidates(step: BeamSearchStep, log_probs: OnnxValue) -> BeamCandidates:
    """Emit the best continuations of the live beams from log-probabilities `[s, 1, vocabulary]`
    (equal for all beams) or `[s, n, vocabulary]`.
    """
    n = step.decoding_config.num_beams
    parent_scores = step.state.scores.unsqueeze(2)
    # An unused beam may have NaN logits.
    is_live = parent_scores > NO_SCORE
    total_scores = is_live.where(log_probs + parent_scores, NO_SCORE)
    total_scores = total_scores.reshape([-1, n * step.vocabulary])
    scores, indices = emit_top_k(total_scores, [step.candidate_count], axis=1)
    parents, tokens = (indices.apply_op(kind, step.vocabulary) for kind in ("Div", "Mod"))
    parent_sequences = _emit_gathered_beams(step, step.state.sequences, parents, n)
    sequences = parent_sequences.apply_op("Concat", tokens.unsqueeze(2), axis=2)
    is_finished = step.length >= step.max_length
    for stop in step.decoding_config.stop_token_ids:
        is_finished = is_finished | tokens.equals(stop)
    if not step.decoding_config.stop_token_ids:
        is_finished = is_finished.expand(tokens.runtime_shape())
    return BeamCandidates(scores, parents, tokens, sequences, is_finished)


def _emit_finished_beams(
    step: BeamSearchStep, candidates: BeamCandidates
) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """Emit the `n` best hypotheses that are finished so far: scores f32[s, n], sequences i64[s, n,
    t + 1], and bool[s, n], which is true for slots with a hypothesis.
    """
    g, n = step.g, step.decoding_config.num_beams
    # As in transformers, only the best `num_beams` candidates may finish.
    may_finish = g.emit_constant([[c < n for c in range(step.candidate_count)]], "bool")
    finishes_now = candidates.is_finished & may_finish & step.state.can_improve
    finishes_now = finishes_now & (candidates.scores > NO_SCORE)
    scores = _emit_masked_scores(
        _emit_normalized_scores(step, candidates.scores, step.length), ~finishes_now
    )
    column = step.state.scores.runtime_shape().apply_op("Concat", [1], axis=0)
    fill_column = g.emit_node("Expand", step.decoding_config.effective_pad_token_id, column)
    # Hypotheses that finished earlier are padded to the current length.
    earlier_sequences = step.state.finished_sequences.apply_op("Concat", fill_column, axis=2)
    sequences = earlier_sequences.apply_op("Concat", candidates.sequences, axis=1)
    is_beam_finished = step.state.is_finished.cast("i64").apply_op(
        "Concat", finishes_now.cast("i64"), axis=1
    )
    merged_scores = step.state.finished_scores.apply_op("Concat", scores, axis=1)
    best_scores, indices = emit_top_k(merged_scores, [n], axis=1)
    is_beam_finished = is_beam_finished.gather_elements(indices, 1).cast("bool")
    finished_sequences = _emit_gathered_beams(step, sequences, indices, n + step.candidate_count)
    finished_sequences = is_beam_finished.unsqueeze(2).where(
        finished_sequences, step.decoding_config.effective_pad_token_id
    )
    return best_scores, finished_sequences, is_beam_finished


def _emit_can_improve(
    step: BeamSearchStep, scores: OnnxValue, finished_scores: OnnxValue, is_finished: OnnxValue
) -> OnnxValue:
    """Emit bool[s, 1], which is true for sequences whose finished hypotheses can still improve. If
    `early_stopping` is True, a sequence can improve while it has a live beam and fewer than
    `num_beams` finished hypotheses. If `early_stopping` is not True, a sequence can improve while
    its best live beam has a higher score than its worst finished hypothesis.
    """
    waits_for_limit = (
        step.decoding_config.early_stopping == "never" and step.decoding_config.length_penalty > 0
    )
    best_score = scores.slice(1, 0, 1)
    if step.decoding_config.early_stopping is True:
        is_live = best_score > NO_SCORE
        can_improve = is_live & _emit_any(~is_finished)
        return step.state.can_improve & can_improve
    # Sums of log-probabilities only decrease, so the best possible score is the sum divided by the
    # length penalty at the maximum length. If `early_stopping` is "never", the worst finished score
    # is compared with this score.
    best_score = _emit_normalized_scores(
        step, best_score, step.max_length if waits_for_limit else step.length
    )
    worst_score = finished_scores.slice(
        1, step.decoding_config.num_beams - 1, step.decoding_config.num_beams
    )
    worst_score = is_finished.where(worst_score, NO_SCORE)
    can_improve = _emit_any(best_score > worst_score)
    return step.state.can_improve & can_improve


def _emit_normalized_scores(step: BeamSearchStep, scores: OnnxValue, count: OnnxValue) -> OnnxValue:
    """Emit `scores / count ** length_penalty` in f32, clipped to at least `MIN_SCORE`. The score of
    an unused beam is `NO_SCORE`.
    """
    # As in the Python implementation, the score is computed in f64 and rounded once, so both
    # implementations have the same tied scores.
    divisor = count.cast("f64").apply_op("Pow", step.decoding_config.length_penalty)
    normalized_scores = (scores.cast("f64") / divisor).cast("f32")
    normalized_scores = normalized_scores.maximum(MIN_SCORE)
    return _emit_masked_scores(normalized_scores, scores.equals(NO_SCORE))


def _emit_masked_scores(scores: OnnxValue, condition: OnnxValue) -> OnnxValue:
    """Set `scores` to `NO_SCORE` where `condition` is true."""
    return condition.where(NO_SCORE, scores)


def _emit_any(x: OnnxValue, axis: int = 1) -> OnnxValue:
    """Emit a logical OR reduction along `axis` and keep the axis with size 1."""
    # ONNX has no OR reduction, and `ReduceMax` accepts booleans from opset 20 on.
    return emit_count_nonzero(x, axis, keepdims=True) > 0


def _emit_flat_indices(step: BeamSearchStep, indices: OnnxValue, width: int) -> OnnxValue:
    """Convert beam indices `[s, m]` within sequences of `width` beams to flat indices `[s·m]`."""
    count = emit_axis_length(step.state.scores, 0).squeeze(0)
    sequence_ids = step.g.emit_node("Range", 0, count, 1)
    offsets = sequence_ids.unsqueeze(1) * width
    return (indices + offsets).reshape([-1])


def _emit_gathered_beams(
    step: BeamSearchStep, x: OnnxValue, indices: OnnxValue, width: int
) -> OnnxValue:
    """Gather the beams at `indices` `[s, m]` from `x` `[s, width, t]`. Return `[s, m, t]`."""
    length = emit_axis_length(x, 2)
    count = emit_axis_length(x, 0) * [width]
    # `t` is 0 before the first step, so `Reshape` must not interpret 0 in the shape as "copy this
    # axis".
    flat_beams = x.apply_op("Reshape", count.apply_op("Concat", length, axis=0), allowzero=1)
    flat_result = flat_beams.gather(_emit_flat_indices(step, indices, width))
    shape = indices.runtime_shape().apply_op("Concat", length, axis=0)
    return flat_result.apply_op("Reshape", shape, allowzero=1)


class BeamSearchStrategy:
    """Beam search with several hypotheses per sequence. Each hypothesis is a batch element."""

    def __init__(self, inputs: DecodingStrategyInputs) -> None:
        g = inputs.g
        self.inputs, self.processors = inputs, inputs.make_logits_processors()
        sequences = g.emit_shape([inputs.batch])
        self.carried_values = [
            *emit_beam_loop_carries(g, inputs.decoding_config, sequences),
            *self.processors.emit_initial_history(inputs.batch, inputs.prompt, inputs.padding_mask),
        ]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carried_values: Sequence[OnnxValue]
    ) -> DecodingStepResult:
        """Select one token per hypothesis."""
        decoding = self.inputs.decoding_config
        count = len(BeamState._fields)
        state, history = BeamState(*carried_values[:count]), carried_values[count:]
        log_probs = logits.apply_op("LogSoftmax", axis=1)
        log_probs = self.processors.emit_processed_scores(log_probs, iteration, history)
        if decoding.renormalize_logits:
            # a softmax of logits that are all -inf would return NaN
            is_allowed = log_probs > NO_SCORE
            renormalized = log_probs.apply_op("LogSoftmax", axis=1)
            log_probs = is_allowed.where(renormalized, NO_SCORE)
        search = BeamSearchStep(
            g=logits.g,
            decoding_config=decoding,
            state=state,
            vocabulary=self.inputs.vocabulary,
            length=iteration + 1,
            max_length=self.processors.max_tokens,
        )
        is_invalid = emit_invalid_logits_mask(logits)
        selection = emit_beam_search_step(search, log_probs, is_invalid)
        column = selection.tokens.unsqueeze(1)
        parent_history = [x.gather(selection.parents) for x in history]
        updated_history = self.processors.emit_updated_history(parent_history, column)
        return replace(selection, next_carries=[*selection.next_carries, *updated_history])

    def emit_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, best, generated] and `scores` f32[batch, best], best first."""
        decoding = self.inputs.decoding_config
        scores, tokens = final_carries[2], final_carries[3]
        best = Dim.from_value(decoding.num_return_sequences)
        if decoding.num_return_sequences < decoding.num_beams:
            scores, tokens = (x.slice(1, 0, best) for x in (scores, tokens))
        shape = (self.inputs.batch, best, GENERATED_COUNT_DIM)
        return {"tokens": tokens.with_shape(shape), "scores": scores.with_shape(shape[:2])}
