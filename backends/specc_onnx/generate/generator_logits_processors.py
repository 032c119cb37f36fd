"""Emit the logits processors of a standalone generator: `bad_words_ids`, repeated n-grams, forced
and suppressed tokens, minimum length, repetition penalty.
"""

from collections.abc import Collection, Sequence
from itertools import groupby

from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc_onnx.generate.generator_inputs import NO_TOKEN
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import (
    emit_axis_length,
    emit_cast,
    emit_count_nonzero,
    emit_slice,
    emit_unsqueeze,
)


def emit_prompt_token_mask(
    g: Emitter, prompt: str, padding_mask: str | None, vocabulary: int
) -> str:
    """Emit a bool[batch, vocabulary] mask of the tokens in each prompt i64[batch, n]."""
    is_token, is_in_vocabulary = (
        g.emit_node("GreaterOrEqual", prompt, 0),
        g.emit_node("Less", prompt, vocabulary),
    )
    is_counted = g.emit_node("And", is_token, is_in_vocabulary)
    if padding_mask is not None:
        is_counted = g.emit_node("And", is_counted, padding_mask)
    # the ids of padded positions are scattered to an additional column, which is sliced off
    columns = g.emit_node("Where", is_counted, prompt, vocabulary)
    shape = g.emit_node("Concat", emit_axis_length(g, prompt, 0), [vocabulary + 1], axis=0)
    no_tokens = g.emit_node("Expand", False, shape)
    return emit_slice(g, emit_updated_seen_tokens(g, no_tokens, columns), 1, 0, vocabulary)


def emit_updated_seen_tokens(g: Emitter, seen_tokens: str, tokens: str) -> str:
    """Emit the mask `seen_tokens` bool[batch, vocabulary], updated with `tokens` i64[batch, n]."""
    flags = g.emit_node("Expand", True, g.emit_node("Shape", tokens))
    return g.emit_node("ScatterElements", seen_tokens, tokens, flags, axis=1)


def emit_repetition_penalty(g: Emitter, logits: str, seen_tokens: str, penalty: str) -> str:
    """Emit the logits `[batch, vocab]` with the logits of seen tokens divided by the penalty if
    they are positive, or multiplied if they are negative (arXiv:1909.05858, sec. 4.1, only
    divides).
    """
    positive_scores, negative_scores = (
        g.emit_node(kind, logits, penalty) for kind in ("Div", "Mul")
    )
    penalized_logits = g.emit_node(
        "Where", g.emit_node("Greater", logits, 0.0), positive_scores, negative_scores
    )
    return g.emit_node("Where", seen_tokens, penalized_logits, logits)


HISTORY_DIM = Dim.symbol("history")
"""The dimension whose size is the number of tokens in the token history."""

SLICE_TO_END = 2**31 - 1
"""The end operand of a `Slice` node that ends at the end of an axis."""


def needs_token_history(decoding: DecodingConfig) -> bool:
    """Return True if a logits processor depends on the previous tokens or their count."""
    return bool(
        decoding.no_repeat_ngram_size
        or decoding.bad_words_ids
        or (decoding.min_length and decoding.stop_token_ids)
    )


def get_history_type(batch: Dim) -> Type:
    """Return the type of a token history, i64[batch, history]."""
    return Type("i64", (batch, HISTORY_DIM))


def emit_prompt_history(
    g: Emitter, decoding: DecodingConfig, prompt: str, padding_mask: str | None
) -> str:
    """Emit the right-aligned history of a prompt i64[batch, n], preceded by as many `NO_TOKEN`
    columns as the longest sequence of `bad_words_ids` requires.
    """
    if padding_mask is not None:
        prompt = _emit_right_aligned(g, prompt, padding_mask)
    padding_length = max((len(sequence) - 1 for sequence in decoding.bad_words_ids), default=0)
    if not padding_length:
        return prompt
    batch_size = emit_axis_length(g, prompt, 0)
    shape = g.emit_node("Concat", batch_size, [padding_length], axis=0)
    padding = g.emit_node("Expand", NO_TOKEN, shape)
    return g.emit_node("Concat", padding, prompt, axis=1)


def _emit_right_aligned(g: Emitter, prompt: str, padding_mask: str) -> str:
    """Emit the prompt tokens without padding, right-aligned and preceded by `NO_TOKEN`."""
    is_token = emit_cast(g, padding_mask, "i64")
    length = emit_axis_length(g, prompt, 1)
    following_count = g.emit_node("CumSum", is_token, 1, exclusive=1, reverse=1)
    columns = g.emit_node("Sub", g.emit_node("Sub", length, [1]), following_count)
    # the ids of padded positions are scattered to an additional column, which is sliced off
    columns = g.emit_node("Where", padding_mask, columns, length)
    batch_size = emit_axis_length(g, prompt, 0)
    shape = g.emit_node("Concat", batch_size, g.emit_node("Add", length, [1]), axis=0)
    padding = g.emit_node("Expand", NO_TOKEN, shape)
    aligned = g.emit_node("ScatterElements", padding, columns, prompt, axis=1)
    return g.emit_node("Slice", aligned, [0], length, [1])


def emit_banned_tokens(
    g: Emitter, decoding: DecodingConfig, history: str, vocabulary: int
) -> list[str]:
    """Emit a bool[batch, vocabulary] mask of the banned tokens for each logits processor."""
    masks = []
    if decoding.no_repeat_ngram_size:
        masks.append(_emit_repeated_ngrams(g, history, decoding.no_repeat_ngram_size, vocabulary))
    sorted_sequences = sorted(decoding.bad_words_ids, key=len)
    for length, sequences in groupby(sorted_sequences, key=len):
        masks.append(_emit_completed_sequences(g, history, length, [*sequences], vocabulary))
    if decoding.min_length and decoding.stop_token_ids:
        token_count = emit_count_nonzero(
            g, g.emit_node("GreaterOrEqual", history, 0), 1, keepdims=True
        )
        is_early = g.emit_node("Less", token_count, decoding.min_length)
        masks.append(
            g.emit_node("And", is_early, emit_token_set(g, decoding.stop_token_ids, vocabulary))
        )
    return masks


def emit_token_set(g: Emitter, tokens: Collection[int], vocabulary: int) -> str:
    """Emit a constant mask bool[1, vocabulary] that is true for `tokens`."""
    return g.emit_constant([[i in tokens for i in range(vocabulary)]], "bool")


def _emit_repeated_ngrams(g: Emitter, history: str, size: int, vocabulary: int) -> str:
    """Emit a bool[batch, vocabulary] mask of the tokens that would repeat an n-gram (n = `size`) of
    the history i64[batch, m] (arXiv:1705.04304, sec. 2.5).
    """
    # Column `s` contains the n-gram that starts at position `s`.
    last_tokens = g.emit_node("Slice", history, [size - 1], [SLICE_TO_END], [1])
    is_repeat = g.emit_node("Equal", last_tokens, last_tokens)
    for n in range(size - 1):
        offset = n - size + 1
        earlier_token = g.emit_node("Slice", history, [n], [offset], [1])
        recent_token = g.emit_node("Slice", history, [offset], [offset + 1 or SLICE_TO_END], [1])
        is_repeat = g.emit_node("And", is_repeat, g.emit_node("Equal", earlier_token, recent_token))
    return emit_prompt_token_mask(g, last_tokens, is_repeat, vocabulary)


def _emit_completed_sequences(
    g: Emitter, history: str, length: int, sequences: Sequence[Sequence[int]], vocabulary: int
) -> str:
    """Emit a bool[batch, vocabulary] mask of the tokens that would complete one of `sequences` at
    the end of the history i64[batch, m]. Each of `sequences` has `length` tokens.
    """
    if length == 1:
        return emit_token_set(g, {sequence[0] for sequence in sequences}, vocabulary)
    recent_tokens = g.emit_node("Slice", history, [1 - length], [SLICE_TO_END], [1])
    prefixes = g.emit_constant([[list(sequence[:-1]) for sequence in sequences]], "i64")
    equal_tokens = g.emit_node("Equal", emit_unsqueeze(g, recent_tokens, 1), prefixes)
    is_match = g.emit_node("Equal", emit_count_nonzero(g, equal_tokens, 2), length - 1)
    last_tokens = g.emit_constant([[sequence[-1] for sequence in sequences]], "i64")
    tokens = g.emit_node("Expand", last_tokens, g.emit_node("Shape", is_match))
    return emit_prompt_token_mask(g, tokens, is_match, vocabulary)


FORBIDDEN_SCORE = float("-inf")
"""Score of a banned token."""


def emit_logits_processors(
    g: Emitter,
    decoding: DecodingConfig,
    scores: str,
    iteration: str,
    *,
    limit: str,
    vocabulary: int,
    history: str | None = None,
) -> str:
    """Emit `scores` f32[batch, vocabulary] with -inf for the tokens that are banned at step
    `iteration` i64[]. `limit` i64[] is the maximum number of steps; `history` contains the previous
    tokens, on which some logits processors depend.
    """
    raw_scores = scores
    if history is not None:
        scores = _emit_history_rules(g, decoding, scores, history, vocabulary)
    if decoding.min_tokens and decoding.stop_token_ids:
        is_early = g.emit_node("Less", iteration, decoding.min_tokens)
        scores = _emit_suppressed_scores(g, scores, decoding.stop_token_ids, vocabulary, is_early)
    if decoding.forced_eos_token_id is not None:
        is_last_step = g.emit_node("Equal", g.emit_node("Add", iteration, 1), limit)
        forced_scores = _emit_only_token(g, decoding.forced_eos_token_id, vocabulary)
        scores = g.emit_node("Where", is_last_step, forced_scores, scores)
    if decoding.suppress_tokens:
        scores = _emit_suppressed_scores(g, scores, decoding.suppress_tokens, vocabulary)
    if decoding.begin_suppress_tokens:
        is_first_step = g.emit_node("Equal", iteration, len(decoding.first_token_choices))
        scores = _emit_suppressed_scores(
            g, scores, decoding.begin_suppress_tokens, vocabulary, is_first_step
        )
    # forced tokens take precedence over all other logits processors
    for step, tokens in enumerate(decoding.first_token_choices):
        forced_scores = _emit_forced_scores(g, raw_scores, tokens, vocabulary)
        scores = g.emit_node("Where", g.emit_node("Equal", iteration, step), forced_scores, scores)
    return scores


def _emit_only_token(g: Emitter, token: int, vocabulary: int) -> str:
    """Emit a constant f32[1, vocabulary] that is 0 for `token` and -inf for all other tokens."""
    scores = [[0.0 if i == token else FORBIDDEN_SCORE for i in range(vocabulary)]]
    return g.emit_constant(scores, "f32")


def _emit_history_rules(
    g: Emitter, decoding: DecodingConfig, scores: str, history: str, vocabulary: int
) -> str:
    """Emit `scores` with -inf for the tokens that `emit_banned_tokens` bans."""
    for banned_tokens in emit_banned_tokens(g, decoding, history, vocabulary):
        scores = g.emit_node("Where", banned_tokens, FORBIDDEN_SCORE, scores)
    return scores


def _emit_forced_scores(
    g: Emitter, raw_scores: str, tokens: Collection[int], vocabulary: int
) -> str:
    """Emit the unprocessed `raw_scores` of `tokens`, and -inf for all other tokens."""
    is_allowed = emit_token_set(g, tokens, vocabulary)
    # a single forced token has log-probability 0
    allowed_score = raw_scores if len(tokens) > 1 else 0.0
    return g.emit_node("Where", is_allowed, allowed_score, FORBIDDEN_SCORE)


def _emit_suppressed_scores(
    g: Emitter, scores: str, tokens: Collection[int], vocabulary: int, condition: str | None = None
) -> str:
    """Emit `scores` with -inf for `tokens` if `condition`, bool[], is true (None: always)."""
    banned_tokens = emit_token_set(g, tokens, vocabulary)
    if condition is not None:
        banned_tokens = g.emit_node("And", banned_tokens, condition)
    return g.emit_node("Where", banned_tokens, FORBIDDEN_SCORE, scores)
