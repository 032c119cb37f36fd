"""Select the next token: logits processors (suppressed and forced tokens, repetition penalty),
temperature, filters such as top-k and top-p, and sampling.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.weights.random_stream import (
    derive_random_stream_key,
    derive_random_substream_key,
    generate_uint64,
)

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]


class DecoderSession(Protocol):
    """A model with the decoder state (KV cache) of a batch. Each call of `step` appends tokens."""

    def step(self, tokens: Ints) -> Floats:
        """Run the model on new tokens, int64 [batch, n]. The first call processes the whole prompt.
        Return the logits of the last position, float32 [batch, vocab].

        An empty prompt requires positions before the first token, such as image embeddings.
        """
        ...

    def reorder(self, indices: Ints) -> None:
        """Reorder the batch: new batch element `r` is old batch element `indices[r]`. The length of
        `indices`, int64 [m], may differ from the batch size.
        """
        ...


@immutable_dataclass
class DecodeStepOutput:
    """The output of one decode step: `tokens` int64 [batch], `log_probs` float32 [batch] if
    requested, and `has_ended` bool [batch]. With several codebooks, the shapes are [batch,
    codebooks].

    `has_ended` is true from the step of the stop token on. After the end of a sequence, its tokens
    are padding tokens with log-probability 0.
    """

    tokens: Ints
    log_probs: Floats | None
    has_ended: Bools


class StoppingCriterion(Protocol):
    """A stopping criterion: a callable that can end sequences, e.g. at stop strings."""

    def __call__(self, tokens: Ints, has_ended: Bools) -> Bools:
        """Return a bool array [batch], which is true for sequences that end in the current decode
        step. `tokens` is int64 [batch], and `has_ended` is bool [batch].
        """
        ...


def check_logits(
    logits_array: Floats,
    is_unfinished: Sequence[bool] | Bools,
    sequence_indices: Sequence[int] = (),
) -> Floats:
    """Return the logits as float32 [batch, vocab]. Raise E0961 if the maximum logit of an
    unfinished sequence is not finite. The message contains the `sequence_indices`.
    """
    logits = np.asarray(logits_array, np.float32)
    assert logits.ndim == 2, f"expected logits [batch, vocab], got {logits.shape}"
    # the maximum is NaN if any logit of the sequence is NaN
    maxima = logits.max(axis=1, initial=-np.inf)
    is_invalid = ~np.isfinite(maxima) & np.asarray(is_unfinished, np.bool_)
    if is_invalid.any():
        index = int(np.flatnonzero(is_invalid)[0])
        note = f"the maximum of {logits.shape[1]} logits is {maxima[index]}"
        index = sequence_indices[index] if sequence_indices else index
        raise make_invalid_logits_error(index, note)
    return logits


def make_invalid_logits_error(sequence_index: int, *notes: str) -> SpeccError:
    """Return E0961 for the sequence `sequence_index`, whose maximum logit is not finite."""
    title = f"the logits of the next token of sequence {sequence_index + 1} are NaN or infinite"
    helps = (
        "compare the model with the reference: specc verify MODEL.onnx",
        "check the weights for NaN",
    )
    return SpeccError(Diagnostic("E0961", title, notes=notes, helps=helps))


@immutable_dataclass(slots=True, kw_only=True)
class LogitsProcessorInputs:
    """The inputs of logits processors other than the scores. `step` is the number of tokens
    generated so far, and `prompt_lengths` (int64 [batch]) are the numbers of prompt tokens.
    `sequences` are the prompt and generated tokens. The list is empty if no processor uses tokens.
    """

    step: int
    prompt_lengths: Ints
    sequences: Sequence[Sequence[int]] = ()


def make_prompt_mask(prompt: Ints, padding_mask: Bools | None) -> Bools:
    """Return the padding mask of prompts int64 [batch, n], which is true everywhere by default."""
    if padding_mask is None:
        return np.ones(prompt.shape, np.bool_)
    return np.asarray(padding_mask, np.bool_)


def list_prompt_tokens(prompt: Ints, padding_mask: Bools) -> list[list[int]]:
    """Return the tokens of each prompt, int64 [batch, n], as lists without padding."""
    return [row[mask].tolist() for row, mask in zip(prompt, padding_mask, strict=True)]


def mask_disallowed_tokens(
    scores: Floats, settings: GenerationSettings, inputs: LogitsProcessorInputs
) -> Floats:
    """Return the scores float32 [batch, vocab], with -inf for tokens that the settings disallow."""
    if inputs.step < len(settings.begin):
        # forced tokens take precedence over all other settings
        return _mask_other_tokens(scores, settings.begin[inputs.step])
    banned = _find_banned_tokens(scores.shape, settings, inputs)
    if banned is not None:
        scores = np.where(banned, np.float32(-np.inf), scores)
    if settings.forced_eos_token_id is not None and inputs.step + 1 == settings.max_tokens:
        scores = _mask_other_tokens(scores, (settings.forced_eos_token_id,))
    suppressed = [
        *settings.suppress_tokens,
        *(settings.begin_suppress_tokens if inputs.step == len(settings.begin) else ()),
    ]
    in_vocab = [token for token in suppressed if token < scores.shape[1]]
    if in_vocab:
        scores = scores.copy()
        scores[:, in_vocab] = -np.inf
    return scores


def _mask_other_tokens(scores: Floats, tokens: Sequence[int]) -> Floats:
    """Return `scores` with -inf for all tokens except `tokens`. If `tokens` is a single token, its
    score becomes 0.
    """
    masked = np.full_like(scores, -np.inf)
    masked[:, tokens] = scores[:, tokens] if len(tokens) > 1 else 0
    return masked


def _find_banned_tokens(
    shape: tuple[int, ...], settings: GenerationSettings, position: LogitsProcessorInputs
) -> Bools | None:
    """Return a bool array [batch, vocab], which is true for disallowed tokens (e.g. stop tokens
    before the minimum length), or None if all tokens are allowed.
    """
    is_early = position.prompt_lengths + position.step < settings.min_length
    is_early |= position.step < settings.min_tokens
    stop_tokens = [token for token in settings.stop if token < shape[1]]
    if not settings.needs_previous_tokens and not (stop_tokens and is_early.any()):
        return None
    banned = np.zeros(shape, np.bool_)
    for token in stop_tokens:
        banned[is_early, token] = True
    for index, sequence in enumerate(position.sequences):
        next_tokens = [
            *_find_repeated_ngrams(sequence, settings.no_repeat_ngram_size),
            *_find_banned_completions(sequence, settings.bad_words_ids),
        ]
        banned[index, [t for t in next_tokens if t < shape[1]]] = True
    return banned


def _find_repeated_ngrams(tokens: Sequence[int], size: int) -> list[int]:
    """Return tokens that repeat an n-gram (Paulus et al. 2017, arXiv:1705.04304, sec. 2.5)."""
    if not size or len(tokens) + 1 < size:
        return []
    prefix = list(tokens[len(tokens) - size + 1 :])
    return [
        tokens[start + size - 1]
        for start in range(len(tokens) - size + 1)
        if list(tokens[start : start + size - 1]) == prefix
    ]


def _find_banned_completions(
    tokens: Sequence[int], banned_sequences: Sequence[Sequence[int]]
) -> list[int]:
    """Return the next tokens that complete one of `banned_sequences`."""
    return [
        banned[-1]
        for banned in banned_sequences
        if list(banned[:-1]) == list(tokens[max(len(tokens) - len(banned) + 1, 0) :])
    ]


def make_repetition_penalty_mask(
    prompt: Ints, vocab: int, penalty: float, padding_mask: Bools | None
) -> Bools | None:
    """Return a bool array [batch, vocab], which is true for the prompt tokens, to which the
    repetition penalty applies. Return None if the penalty is 1.
    """
    return None if penalty == 1 else make_prompt_vocab_mask(prompt, vocab, padding_mask)


def make_prompt_vocab_mask(prompt: Ints, vocab: int, padding_mask: Bools | None = None) -> Bools:
    """Return a bool array [batch, vocab], which is true for the tokens of each prompt."""
    is_in_prompt = np.zeros((len(prompt), vocab), np.bool_)
    rows = np.broadcast_to(np.arange(len(prompt))[:, None], prompt.shape)
    # a prompt may contain ids outside the vocabulary of the logits
    is_valid = (prompt >= 0) & (prompt < vocab) & make_prompt_mask(prompt, padding_mask)
    is_in_prompt[rows[is_valid], prompt[is_valid]] = True
    return is_in_prompt


def apply_repetition_penalty(logits: Floats, seen_tokens: Bools, penalty: float) -> Floats:
    """Apply the repetition penalty `p` to the logits `x` of `seen_tokens` (bool [batch, vocab]): `x
    / p` if x > 0, else `x * p`.

    The paper (Keskar et al. 2019, arXiv:1909.05858, sec. 4.1) divides all logits. specc multiplies
    negative logits as later implementations do, because division would increase them.
    """
    if penalty == 1:
        return logits
    p = np.float32(penalty)
    return np.where(seen_tokens, np.where(logits > 0, logits / p, logits * p), logits)


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Divide logits by the temperature. A temperature below 1 sharpens the distribution."""
    return logits if temperature == 1 else logits / np.float32(temperature)


Float64s: TypeAlias = NDArray[np.float64]

SORTED_CANDIDATES = 1000
"""Maximum number of candidates for top-p and min-p without top-k. Sorting the whole vocabulary
takes nine times as long.
"""


@immutable_dataclass
class TokenCandidates:
    """The tokens to sample from, most probable first: `tokens` int64 [batch, k], `probabilities`
    float64 [batch, k].

    Removed tokens come last, with probability 0. The probabilities may sum to less than 1.
    """

    tokens: Ints
    probabilities: Float64s


def find_top_k_indices(values: Floats, k: int) -> Ints:
    """Return the indices of the k largest values, int64 [batch, min(k, n)], in descending order of
    value. Equal values are in ascending order of their indices.
    """
    k = min(k, values.shape[1])
    # If k is at least a quarter of n, a full sort is faster than a partial selection.
    if 4 * k >= values.shape[1]:
        return np.argsort(-values, axis=1, kind="stable")[:, :k]
    # find all values >= the k-th largest value, which may be more than k values
    thresholds = np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]
    indices = np.empty((len(values), k), np.int64)
    for row, threshold in enumerate(thresholds):
        # candidates are in ascending order, and the stable sort keeps equal values ordered by index
        candidates = np.flatnonzero(values[row] >= threshold)
        indices[row] = candidates[np.argsort(-values[row, candidates], kind="stable")[:k]]
    return indices


def compute_softmax_f64(logits: Floats) -> Float64s:
    """Return the softmax over the last axis, float64 [batch, n]."""
    # Subtract the maximum to avoid an overflow of `exp`.
    logits64 = logits.astype(np.float64)
    exponentials = np.exp(logits64 - logits64.max(axis=1, keepdims=True))
    probabilities: Float64s = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def compute_log_softmax_f32(logits: Floats) -> Floats:
    """Return the log-softmax over the last axis, float32 [batch, n]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probs


def filter_candidates(logits: Floats, settings: GenerationSettings) -> TokenCandidates:
    """Apply temperature, top-k, softmax, top-p, min-p, typical, epsilon and eta filters in this
    order to processed logits, float32 [batch, vocab]. Return the remaining tokens.

    Top-k: Fan et al. 2018 (arXiv:1805.04833), sec. 5.1. Top-p (the smallest set of most probable
    tokens whose cumulative probability reaches p): Holtzman et al. 2020 (arXiv:1904.09751), sec.
    3.1. Min-p (a minimum probability relative to the maximum): Nguyen et al. 2024
    (arXiv:2407.01082), eq. 1 and 2. With top-p or min-p and without top-k, only the 1000 most
    probable tokens are considered, except with typical, epsilon or eta sampling.
    """
    vocab = logits.shape[1]
    needs_sorting = settings.top_p < 1 or settings.min_p > 0
    needs_all_tokens = settings.typical_p < 1 or settings.epsilon_cutoff or settings.eta_cutoff
    logits = apply_temperature(logits, settings.temperature)
    candidate_count = SORTED_CANDIDATES if needs_sorting and not needs_all_tokens else vocab
    tokens = find_top_k_indices(logits, settings.top_k or candidate_count)
    probabilities = compute_softmax_f64(np.take_along_axis(logits, tokens, axis=1))
    if settings.top_p < 1:
        preceding = np.zeros_like(probabilities)
        # Keep a token if the cumulative probability before it is below p. The token that reaches p
        # is therefore kept, and at least one token remains.
        preceding[:, 1:] = np.cumsum(probabilities, axis=1)[:, :-1]
        # Round p to float32, as in the ONNX graph, because 0.9 differs in float32 and float64.
        probabilities = np.where(preceding < float(np.float32(settings.top_p)), probabilities, 0.0)
    if settings.min_p > 0:
        minimum = float(np.float32(settings.min_p)) * probabilities[:, :1]
        probabilities = np.where(probabilities >= minimum, probabilities, 0.0)
    return TokenCandidates(tokens, _filter_by_distribution(probabilities, settings))


def _filter_by_distribution(probabilities: Float64s, settings: GenerationSettings) -> Float64s:
    """Apply the typical, epsilon and eta filters to probabilities float64 [batch, k], sorted in
    descending order. The epsilon and eta filters always keep the most probable token.
    """
    if settings.typical_p < 1:
        probabilities = _filter_typical_tokens(probabilities, settings.typical_p)
    if settings.epsilon_cutoff:
        probabilities = _drop_small_probabilities(probabilities, settings.epsilon_cutoff)
    if settings.eta_cutoff:
        # eta sampling: the minimum probability decreases with the entropy of the distribution
        bound, _ = _compute_entropy(probabilities)
        eta = settings.eta_cutoff
        probabilities = _drop_small_probabilities(
            probabilities, np.minimum(eta, np.sqrt(eta) * np.exp(-bound))
        )
    return probabilities


def _compute_entropy(probabilities: Float64s) -> tuple[Float64s, Float64s]:
    """Return the entropy of each distribution, float64 [batch, 1], and `-log p` of each token."""
    normalized = probabilities / probabilities.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        surprisal = -np.log(normalized)
    terms = np.where(normalized > 0, normalized * np.where(normalized > 0, surprisal, 0.0), 0.0)
    return terms.sum(axis=1, keepdims=True), surprisal


def _filter_typical_tokens(probabilities: Float64s, mass: float) -> Float64s:
    """Keep the smallest set of most typical tokens whose cumulative probability reaches `mass`
    (Meister et al. 2022, arXiv:2202.00666, eq. 9 to 11).
    """
    entropy, surprisal = _compute_entropy(probabilities)
    distance = np.abs(surprisal - entropy)
    order = np.argsort(distance, axis=1, kind="stable")
    normalized = probabilities / probabilities.sum(axis=1, keepdims=True)
    cumulative = np.cumsum(np.take_along_axis(normalized, order, axis=1), axis=1)
    last = (cumulative < mass).sum(axis=1, keepdims=True).clip(max=distance.shape[1] - 1)
    bound = np.take_along_axis(distance, np.take_along_axis(order, last, axis=1), axis=1)
    return np.where(distance <= bound, probabilities, 0.0)


def _drop_small_probabilities(probabilities: Float64s, bound: float | Float64s) -> Float64s:
    """Keep the most probable token and all tokens whose probability is at least `bound` (Hewitt,
    arXiv:2210.15191, sec. 4).
    """
    normalized = probabilities / probabilities.sum(axis=1, keepdims=True)
    is_most_probable = normalized == normalized.max(axis=1, keepdims=True)
    return np.where((normalized >= bound) | is_most_probable, probabilities, 0.0)


def sample_token(candidates: TokenCandidates, uniforms: Floats) -> Ints:
    """Sample one token per sequence: the first token whose cumulative probability exceeds `u ·
    sum`, where `u` is the uniform random number and `sum` is the total probability.
    """
    sums = np.cumsum(candidates.probabilities, axis=1)
    # Scale `u` by the sum, because the probabilities of the kept tokens may sum to less than 1.
    exceeds = sums > uniforms[:, None].astype(np.float64) * sums[:, -1:]
    return np.take_along_axis(candidates.tokens, exceeds.argmax(axis=1)[:, None], axis=1)[:, 0]


def draw_uniforms(seed: int, batch_size: int, step: int) -> Floats:
    """Return uniform random numbers float32 [batch] in [0, 1), keyed by seed, index and step."""
    return draw_uniforms_for_steps(seed, [(batch_index, step) for batch_index in range(batch_size)])


def draw_uniforms_for_steps(seed: int, steps: Iterable[tuple[int, int]]) -> Floats:
    """Return uniform random numbers in [0, 1), float32 [n], one per (sequence index, step) pair."""
    key = derive_random_stream_key(seed, "sample")
    words = [
        generate_uint64(
            derive_random_substream_key(derive_random_substream_key(key, sequence_index), step), 0
        )
        >> 40
        for sequence_index, step in steps
    ]
    return np.array(words, np.float32) * np.float32(2**-24)
