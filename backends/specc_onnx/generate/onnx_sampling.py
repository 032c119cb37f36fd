"""Sample the next token in ONNX. Temperature, top-k, softmax, top-p (arXiv:1904.09751, sec. 3.1)
and min-p (arXiv:2407.01082, sec. 3) are applied in this order.

A uniform random number then selects a token by inverse transform sampling; equal logits are ordered
by id. Probabilities are computed in f64, so that the Python implementation samples the same token.
Random keys are u64 tensors of any shape, so that a single node computes the random numbers of all
sequences of a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.diagnostics.diagnostic import raise_error
from specc.weights.random_stream import (
    SPLITMIX_GAMMA,
    SPLITMIX_MULTIPLIER_1,
    SPLITMIX_MULTIPLIER_2,
    hash_fnv1a,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.onnx_values import OnnxValue
from specc_onnx.lower.tensor_helpers import emit_count_nonzero, emit_reduce, emit_top_k


def check_sampling_opset(opset: int) -> None:
    """Raise E0821 if the opset lacks `BitwiseXor`, which the random number generator needs."""
    if not onnx_targets.is_operator_available("BitwiseXor", opset):
        raise_error(
            "E0821",
            f"sampling is not supported at opset {opset}",
            notes=["random numbers need `BitwiseXor`, which opset 18 introduced"],
            helps=[
                f"remove `--opset` to use the default, {onnx_targets.DEFAULT_OPSET}, or use "
                "greedy decoding"
            ],
        )


def emit_stream_key(seed: OnnxValue, name: str) -> OnnxValue:
    """Emit the key u64[] of the random stream `name` for a `seed` i64[]."""
    key = _emit_mixed_bits(seed.cast("u64"))
    return emit_substream_key(key, seed.g.emit_constant(hash_fnv1a(name.encode()), "u64"))


def emit_substream_key(key: OnnxValue, stream_index: OnnxValue) -> OnnxValue:
    """Emit the key of a sub-stream from the broadcastable u64 tensors `key` and `stream_index`."""
    return _emit_mixed_bits(_emit_random_word(key, stream_index))


def emit_uniform_sample(key: OnnxValue) -> OnnxValue:
    """Emit the first uniform random number of each stream: f32 in [0, 1), a multiple of 2**-24."""
    first_word = _emit_random_word(key, key.g.emit_constant(0, "u64"))
    # An f32 represents the 24 most significant bits exactly.
    high_bits = _emit_right_shift(first_word, 40).cast("i64")
    return high_bits.cast("f32") * 2.0**-24


def _emit_random_word(key: OnnxValue, word_index: OnnxValue) -> OnnxValue:
    """Emit word `word_index` of a stream (SplitMix64): `mix(key + n · GAMMA + GAMMA)`."""
    steps = word_index * SPLITMIX_GAMMA
    return _emit_mixed_bits(key + SPLITMIX_GAMMA + steps)


def _emit_mixed_bits(z: OnnxValue) -> OnnxValue:
    """Emit the SplitMix64 mixing function applied to `z`, u64."""
    z = _emit_xor_shift(z, 30) * SPLITMIX_MULTIPLIER_1
    z = _emit_xor_shift(z, 27) * SPLITMIX_MULTIPLIER_2
    return _emit_xor_shift(z, 31)


def _emit_xor_shift(z: OnnxValue, bits: int) -> OnnxValue:
    """Emit `z ^ z >> bits`."""
    return z ^ _emit_right_shift(z, bits)


def _emit_right_shift(z: OnnxValue, bits: int) -> OnnxValue:
    return z.g.emit_node("BitShift", z, bits, direction="RIGHT")


MAX_SAMPLED_CANDIDATES = 1000
"""Number of candidate tokens for top-p and min-p if top-k is not used."""

PROBABILITY_DTYPE = "f64"
"""The element type of probabilities."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Loop-invariant values of sampling: scalar settings and the random stream keys u64[batch]."""

    temperature: OnnxValue
    candidate_count: OnnxValue
    top_p: OnnxValue
    min_p: OnnxValue
    keys: OnnxValue


def emit_sampler_state(
    seed: OnnxValue, batch_size: OnnxValue, vocabulary: int, settings: Mapping[str, OnnxValue]
) -> SamplerState:
    """Emit the loop-invariant values of sampling from the inputs `seed` i64[], the batch size i64[]
    and the sampling settings (`SAMPLING_INPUTS`).
    """
    g, temperature = seed.g, settings["temperature"]
    is_sampling = temperature > 0.0
    # Temperature 0 is greedy decoding: one candidate, whose logit is divided by 1.
    temperature_divisor = is_sampling.if_else(temperature, 1.0)
    sequence_ids = g.emit_node("Range", 0, batch_size, 1)
    keys = emit_substream_key(emit_stream_key(seed, "sample"), sequence_ids.cast("u64"))
    max_candidates = _emit_candidate_count(vocabulary, settings)
    candidate_count = is_sampling.if_else(max_candidates, 1)
    top_p, min_p = (settings[name].cast(PROBABILITY_DTYPE) for name in ("top_p", "min_p"))
    return SamplerState(temperature_divisor, candidate_count.unsqueeze(0), top_p, min_p, keys)


def _emit_candidate_count(vocabulary: int, settings: Mapping[str, OnnxValue]) -> OnnxValue:
    """Emit the number i64[] of most likely tokens from which a token is sampled. The number is
    top-k if top-k is used, else `MAX_SAMPLED_CANDIDATES` if top-p or min-p is used, else the
    vocabulary size.
    """
    top_k = settings["top_k"]
    has_cutoff = (settings["top_p"] < 1.0) | (settings["min_p"] > 0.0)
    # Top-p and min-p sort only the candidates instead of the whole vocabulary.
    cutoff_count = min(MAX_SAMPLED_CANDIDATES, vocabulary)
    default_count = has_cutoff.if_else(cutoff_count, vocabulary)
    has_top_k = top_k > 0
    top_k = top_k.minimum(vocabulary)
    return has_top_k.if_else(top_k, default_count)


def emit_sampled_tokens(sampler: SamplerState, logits: OnnxValue, step: OnnxValue) -> OnnxValue:
    """Emit tokens i64[batch], sampled from logits `[batch, vocab]` at step `step`, i64[]."""
    g, scaled_logits = logits.g, logits / sampler.temperature
    top_logits, ids = emit_top_k(scaled_logits, sampler.candidate_count, axis=1)
    probabilities = g.emit_node("Softmax", top_logits.cast(PROBABILITY_DTYPE), axis=1)
    sums = g.emit_node("CumSum", _emit_top_p_filter(sampler, probabilities), 1)
    # The uniform random number is scaled to the sum of the remaining probabilities.
    sum_of_weights = g.emit_node("Slice", sums, [-1], [2**31 - 1], [1])
    step_keys = emit_substream_key(sampler.keys, step.cast("u64"))
    uniform = emit_uniform_sample(step_keys).cast(PROBABILITY_DTYPE)
    is_below = sums <= uniform.unsqueeze(1) * sum_of_weights
    index = emit_count_nonzero(is_below, 1, keepdims=True)
    return ids.gather_elements(index, 1).squeeze(1)


def _emit_top_p_filter(sampler: SamplerState, probabilities: OnnxValue) -> OnnxValue:
    """Emit the sorted probabilities `[batch, k]` with zeros for tokens that top-p or min-p
    excludes. The first token is never excluded.
    """
    g = probabilities.g
    preceding_sum = g.emit_node("CumSum", probabilities, 1, exclusive=1)
    # Rounded sums may exceed 1, so top-p = 1 is handled separately and keeps all tokens.
    is_top_p_off = sampler.top_p >= 1
    is_kept = (preceding_sum < sampler.top_p) | is_top_p_off
    max_probability = probabilities.slice(1, 0, 1)
    is_kept = is_kept & (probabilities >= max_probability * sampler.min_p)
    is_kept = is_kept | preceding_sum.equals(0)
    return is_kept.if_else(probabilities, 0)


def emit_invalid_logits(logits: OnnxValue) -> OnnxValue:
    """Emit a bool[batch] mask of logits `[batch, vocab]` with NaN or without a finite maximum."""
    # Not every `ReduceMax` kernel propagates NaN.
    is_nan = logits.g.emit_node("IsNaN", logits).cast("f32")
    has_nan = emit_reduce("ReduceMax", is_nan, 1) > 0.0
    max_magnitude = logits.g.emit_node("Abs", emit_reduce("ReduceMax", logits, 1))
    return has_nan | ~(max_magnitude < float("inf"))


def emit_log_probability(logits: OnnxValue, tokens: OnnxValue) -> OnnxValue:
    """Emit the log-probability of the token of each batch element under `logits`, f32[batch]."""
    g, token_columns = logits.g, tokens.unsqueeze(1)
    all_log_probs = g.emit_node("LogSoftmax", logits, axis=1)
    log_probs = all_log_probs.gather_elements(token_columns, 1)
    return log_probs.squeeze(1)
