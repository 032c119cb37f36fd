"""Emit the logits processors of a standalone generator: `bad_words_ids`, repeated n-grams, forced
and suppressed tokens, minimum length, repetition penalty.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from specc.ir.dim import Dim
from specc.ir.model_definition import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate.generator_inputs import (
    MAX_TOKENS_INPUT,
    NO_TOKEN,
    PENALTY_INPUT,
    LoopCarry,
)
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_axis_length,
    emit_count_nonzero,
    emit_reduce,
)

HISTORY_DIM = Dim.symbol("history")
"""The dimension whose size is the number of tokens in the token history."""

SLICE_TO_END = 2**31 - 1
"""The end operand of a `Slice` node that selects positions up to the end of an axis."""

FORBIDDEN_SCORE = float("-inf")
"""The score of a banned token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessors:
    """An emitter for the logits processors of the decoding settings, for `vocabulary` tokens. The
    emitter requires the maximum number of steps `max_tokens` i64[] and, if used, the repetition
    `penalty` f32[].
    """

    g: Emitter
    decoding_config: DecodingConfig
    vocabulary: int
    max_tokens: OnnxValue
    penalty: OnnxValue | None

    @property
    def needs_token_history(self) -> bool:
        """Return True if a logits processor depends on the previous tokens or their number."""
        decoding = self.decoding_config
        needs_count = decoding.min_length and decoding.stop_token_ids
        return bool(decoding.no_repeat_ngram_size or decoding.bad_words_ids or needs_count)

    def emit_initial_history(
        self, batch: Dim, prompt: OnnxValue, padding_mask: OnnxValue | None
    ) -> list[LoopCarry]:
        """Emit the loop-carried values of the logits processors for a prompt i64[batch, n]. They
        are `seen_tokens` bool[batch, vocabulary] for the repetition penalty, and `history`
        i64[batch, m] for n-grams and `bad_words_ids`.
        """
        carries = []
        if self.penalty:
            seen_tokens = emit_prompt_vocabulary_mask(prompt, padding_mask, self.vocabulary)
            type = Type.of("bool", batch, self.vocabulary)
            carries.append(LoopCarry("seen_tokens", type, seen_tokens))
        if self.needs_token_history:
            history = _emit_prompt_history(self.decoding_config, prompt, padding_mask)
            carries.append(LoopCarry("history", Type("i64", (batch, HISTORY_DIM)), history))
        return carries

    def emit_updated_history(
        self, history: Sequence[OnnxValue], tokens: OnnxValue
    ) -> list[OnnxValue]:
        """Update the token history and mask of seen tokens with the new tokens i64[batch, 1]."""
        updated_history = []
        if self.penalty:
            updated_history.append(_emit_updated_seen_tokens(history[0], tokens))
        if self.needs_token_history:
            updated_history.append(history[-1].apply_op("Concat", tokens, axis=1))
        return updated_history

    def emit_processed_scores(
        self, scores: OnnxValue, iteration: OnnxValue, history: Sequence[OnnxValue]
    ) -> OnnxValue:
        """Apply the repetition penalty to `scores` f32[batch, vocabulary], and set the scores of
        tokens that are banned at step `iteration` i64[] to -inf. `history` contains the values of
        `emit_initial_history`.
        """
        g, decoding = self.g, self.decoding_config
        if self.penalty:
            scores = emit_repetition_penalty(scores, history[0], self.penalty)
        raw_scores = scores
        if self.needs_token_history:
            for banned_tokens in self._emit_banned_tokens(history[-1]):
                scores = banned_tokens.where(FORBIDDEN_SCORE, scores)
        if decoding.min_tokens and decoding.stop_token_ids:
            is_early = iteration < decoding.min_tokens
            scores = self._emit_suppressed_scores(scores, decoding.stop_token_ids, is_early)
        if (forced_token := decoding.forced_eos_token_id) is not None:
            is_last_step = (iteration + 1).equals(self.max_tokens)
            columns = range(self.vocabulary)
            only_token = [[0.0 if i == forced_token else FORBIDDEN_SCORE for i in columns]]
            scores = is_last_step.where(g.emit_constant(only_token, "f32"), scores)
        if decoding.suppress_tokens:
            scores = self._emit_suppressed_scores(scores, decoding.suppress_tokens)
        if decoding.begin_suppress_tokens:
            is_first_step = iteration.equals(len(decoding.first_token_choices))
            scores = self._emit_suppressed_scores(
                scores, decoding.begin_suppress_tokens, is_first_step
            )
        # forced tokens take precedence over all other logits processors
        for step, tokens in enumerate(decoding.first_token_choices):
            # a token has log-probability 0 if it is the only forced token
            allowed_score = raw_scores if len(tokens) > 1 else 0.0
            operands = self._emit_token_set(tokens), allowed_score, FORBIDDEN_SCORE
            forced_scores = g.emit_node("Where", *operands)
            scores = iteration.equals(step).where(forced_scores, scores)
        return scores

    def _emit_banned_tokens(self, history: OnnxValue) -> list[OnnxValue]:
        """Emit a bool[batch, vocabulary] mask of banned tokens for each logits processor that
        depends on the token history.
        """
        decoding, masks = self.decoding_config, []
        if decoding.no_repeat_ngram_size:
            masks.append(self._emit_repeated_ngrams(history, decoding.no_repeat_ngram_size))
        sorted_sequences = sorted(decoding.bad_words_ids, key=len)
        for length, sequences in groupby(sorted_sequences, key=len):
            masks.append(self._emit_completed_sequences(history, length, [*sequences]))
        if decoding.min_length and decoding.stop_token_ids:
            token_count = emit_count_nonzero(history >= 0, 1, keepdims=True)
            is_early = token_count < decoding.min_length
            masks.append(is_early & self._emit_token_set(decoding.stop_token_ids))
        return masks

    def _emit_token_set(self, tokens: Collection[int]) -> OnnxValue:
        """Emit a constant mask bool[1, vocabulary] that is true for `tokens`."""
        return self.g.emit_constant([[i in tokens for i in range(self.vocabulary)]], "bool")

    def _emit_repeated_ngrams(self, history: OnnxValue, size: int) -> OnnxValue:
        """Emit a bool[batch, vocabulary] mask of the tokens that would repeat an n-gram (n =
        `size`) of the token history i64[batch, m] (arXiv:1705.04304, sec. 2.5).
        """
        # Column `s` contains the n-gram that starts at position `s`.
        last_tokens = history.apply_op("Slice", [size - 1], [SLICE_TO_END], [1])
        is_repeat = last_tokens.equals(last_tokens)
        for n in range(size - 1):
            offset = n - size + 1
            earlier = history.apply_op("Slice", [n], [offset], [1])
            recent = history.apply_op("Slice", [offset], [offset + 1 or SLICE_TO_END], [1])
            is_repeat = is_repeat & earlier.equals(recent)
        return emit_prompt_vocabulary_mask(last_tokens, is_repeat, self.vocabulary)

    def _emit_completed_sequences(
        self, history: OnnxValue, length: int, sequences: Sequence[Sequence[int]]
    ) -> OnnxValue:
        """Emit a bool[batch, vocabulary] mask of the tokens that would complete one of `sequences`
        (`length` tokens each) at the end of the history i64[batch, m].
        """
        g = self.g
        if length == 1:
            return self._emit_token_set({sequence[0] for sequence in sequences})
        recent_tokens = history.apply_op("Slice", [1 - length], [SLICE_TO_END], [1])
        prefixes = g.emit_constant([[list(sequence[:-1]) for sequence in sequences]], "i64")
        equal_tokens = recent_tokens.unsqueeze(1).equals(prefixes)
        is_match = emit_count_nonzero(equal_tokens, 2).equals(length - 1)
        last_tokens = g.emit_constant([[sequence[-1] for sequence in sequences]], "i64")
        tokens = last_tokens.expand(is_match.runtime_shape())
        return emit_prompt_vocabulary_mask(tokens, is_match, self.vocabulary)

    def _emit_suppressed_scores(
        self, scores: OnnxValue, tokens: Collection[int], condition: OnnxValue | None = None
    ) -> OnnxValue:
        """Set the scores of `tokens` to -inf if `condition`, bool[], is true or None."""
        banned_tokens = self._emit_token_set(tokens)
        if condition is not None:
            banned_tokens = banned_tokens & condition
        return banned_tokens.where(FORBIDDEN_SCORE, scores)


def emit_prompt_vocabulary_mask(
    prompt: OnnxValue, padding_mask: OnnxValue | None, vocabulary: int
) -> OnnxValue:
    """Emit a bool[batch, vocabulary] mask of the tokens in each prompt i64[batch, n]."""
    is_token, is_in_vocabulary = prompt >= 0, prompt < vocabulary
    is_counted = is_token & is_in_vocabulary
    if padding_mask is not None:
        is_counted = is_counted & padding_mask
    # the ids of padded positions are scattered to an extra column, which is then removed
    columns = is_counted.where(prompt, vocabulary)
    shape = emit_axis_length(prompt, 0).apply_op("Concat", [vocabulary + 1], axis=0)
    no_tokens = prompt.g.emit_node("Expand", False, shape)
    return _emit_updated_seen_tokens(no_tokens, columns).slice(1, 0, vocabulary)


def _emit_updated_seen_tokens(seen_tokens: OnnxValue, tokens: OnnxValue) -> OnnxValue:
    """Emit the mask `seen_tokens` bool[batch, vocabulary], updated with `tokens` i64[batch, n]."""
    flags = tokens.g.emit_node("Expand", True, tokens.runtime_shape())
    return seen_tokens.apply_op("ScatterElements", tokens, flags, axis=1)


def emit_repetition_penalty(
    logits: OnnxValue, seen_tokens: OnnxValue, penalty: OnnxValue
) -> OnnxValue:
    """Apply the repetition penalty to logits `[batch, vocab]`. Positive logits of seen tokens are
    divided by the penalty, and negative logits are multiplied by it. In contrast, arXiv:1909.05858,
    sec. 4.1 always divides.
    """
    divided, multiplied = logits / penalty, logits * penalty
    penalized_logits = (logits > 0.0).where(divided, multiplied)
    return seen_tokens.where(penalized_logits, logits)


def _emit_prompt_history(
    decoding: DecodingConfig, prompt: OnnxValue, padding_mask: OnnxValue | None
) -> OnnxValue:
    """Emit the right-aligned token history of a prompt i64[batch, n]. It begins with as many
    `NO_TOKEN` columns as the longest sequence of `bad_words_ids` requires.
    """
    if padding_mask is not None:
        prompt = _emit_right_aligned(prompt, padding_mask)
    padding_length = max((len(sequence) - 1 for sequence in decoding.bad_words_ids), default=0)
    if not padding_length:
        return prompt
    shape = emit_axis_length(prompt, 0).apply_op("Concat", [padding_length], axis=0)
    padding = prompt.g.emit_node("Expand", NO_TOKEN, shape)
    return padding.apply_op("Concat", prompt, axis=1)


def _emit_right_aligned(prompt: OnnxValue, padding_mask: OnnxValue) -> OnnxValue:
    """Emit the prompt tokens without padding, right-aligned and preceded by `NO_TOKEN`."""
    is_token = padding_mask.cast("i64")
    length, one = emit_axis_length(prompt, 1), [1]
    following_count = is_token.apply_op("CumSum", 1, exclusive=1, reverse=1)
    columns = length - one - following_count
    # the ids of padded positions are scattered to an extra column, which is then removed
    columns = padding_mask.where(columns, length)
    batch_size = emit_axis_length(prompt, 0)
    shape = batch_size.apply_op("Concat", length + one, axis=0)
    padding = prompt.g.emit_node("Expand", NO_TOKEN, shape)
    aligned = padding.apply_op("ScatterElements", columns, prompt, axis=1)
    return aligned.apply_op("Slice", [0], length, [1])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStrategyInputs:
    """The inputs of a decoding strategy. They are the batch size, the vocabulary size, the number
    of sequences in a step (`step_batch_size`), the scalar inputs by role, the prompt
    i64[step_batch_size, n], and its padding mask.
    """

    g: Emitter
    decoding_config: DecodingConfig
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
            decoding_config=self.decoding_config,
            vocabulary=self.vocabulary,
            max_tokens=self.scalars[MAX_TOKENS_INPUT],
            penalty=self.scalars.get(PENALTY_INPUT),
        )


def emit_invalid_logits_mask(logits: OnnxValue) -> OnnxValue:
    """Emit a bool[batch] mask of the logits `[batch, vocab]` that have NaN or no finite maximum."""
    # Some `ReduceMax` kernels do not propagate NaN.
    is_nan = logits.apply_op("IsNaN").cast("f32")
    has_nan = emit_reduce("ReduceMax", is_nan, 1) > 0.0
    max_magnitude = emit_reduce("ReduceMax", logits, 1).abs()
    return has_nan | ~(max_magnitude < float("inf"))
