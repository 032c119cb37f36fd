"""Sample the next token in ONNX. Temperature, top-k, softmax, top-p (arXiv:1904.09751, sec. 3.1)
and min-p (arXiv:2407.01082, sec. 3) are applied in this order.

A uniform random number then selects a token by inverse transform sampling; equal logits are ordered
by id. Probabilities are computed in f64, so that the Python implementation samples the same token.
Random keys are u64 tensors of any shape, so that a single node computes the random numbers of all
sequences of a batch.
"""

from dataclasses import dataclass

from specc.diagnostics.diagnostic import raise_error
from specc.weights.random_stream import (
    SPLITMIX_GAMMA,
    SPLITMIX_MULTIPLIER_1,
    SPLITMIX_MULTIPLIER_2,
    hash_fnv1a,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_count_nonzero,
    emit_reduce,
    emit_slice,
    emit_top_k,
    emit_unsqueeze,
)


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


def emit_stream_key(g: Emitter, seed: str, name: str) -> str:
    """Emit the key u64[] of the random stream `name` for a `seed` i64[]."""
    return emit_substream_key(
        g,
        _emit_mixed_bits(g, emit_cast(g, seed, "u64")),
        g.emit_constant(hash_fnv1a(name.encode()), "u64"),
    )


def emit_substream_key(g: Emitter, key: str, stream_index: str) -> str:
    """Emit the key of a sub-stream from the broadcastable u64 tensors `key` and `stream_index`."""
    return _emit_mixed_bits(g, _emit_random_word(g, key, stream_index))


def emit_uniform_sample(g: Emitter, key: str) -> str:
    """Emit the first uniform random number of each stream: f32 in [0, 1), a multiple of 2**-24."""
    high_bits = _emit_right_shift(g, _emit_random_word(g, key, g.emit_constant(0, "u64")), 40)
    # An f32 represents the 24 most significant bits exactly.
    mantissa = emit_cast(g, emit_cast(g, high_bits, "i64"), "f32")
    return g.emit_node("Mul", mantissa, 2.0**-24)


def _emit_random_word(g: Emitter, key: str, word_index: str) -> str:
    """Emit word `word_index` of a stream (SplitMix64): `mix(key + n · GAMMA + GAMMA)`."""
    steps = g.emit_node("Mul", word_index, g.emit_constant(SPLITMIX_GAMMA, "u64"))
    return _emit_mixed_bits(
        g,
        g.emit_node("Add", g.emit_node("Add", key, g.emit_constant(SPLITMIX_GAMMA, "u64")), steps),
    )


def _emit_mixed_bits(g: Emitter, z: str) -> str:
    """Emit the SplitMix64 mixing function applied to `z`, u64."""
    z = g.emit_node("Mul", _emit_xor_shift(g, z, 30), g.emit_constant(SPLITMIX_MULTIPLIER_1, "u64"))
    z = g.emit_node("Mul", _emit_xor_shift(g, z, 27), g.emit_constant(SPLITMIX_MULTIPLIER_2, "u64"))
    return _emit_xor_shift(g, z, 31)


def _emit_xor_shift(g: Emitter, z: str, bits: int) -> str:
    """Emit `z ^ z >> bits`."""
    return g.emit_node("BitwiseXor", z, _emit_right_shift(g, z, bits))


def _emit_right_shift(g: Emitter, z: str, bits: int) -> str:
    return g.emit_node("BitShift", z, g.emit_constant(bits, "u64"), direction="RIGHT")


MAX_SAMPLED_CANDIDATES = 1000
"""Number of candidate tokens for top-p and min-p if top-k is not used."""

PROBABILITY_DTYPE = "f64"
"""The element type of probabilities."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Loop-invariant values of sampling: scalar settings and the random stream keys u64[batch]."""

    temperature: str
    candidate_count: str
    top_p: str
    min_p: str
    keys: str


def emit_sampler_state(
    g: Emitter, seed: str, batch_size: str, vocabulary: int, settings: dict[str, str]
) -> SamplerState:
    """Emit the loop-invariant values of sampling from the names of the inputs `seed` i64[], the
    batch size i64[] and the sampling settings (`SAMPLING_INPUTS`).
    """
    temperature = settings["temperature"]
    is_sampling = g.emit_node("Greater", temperature, 0.0)
    # Temperature 0 is greedy decoding: one candidate, whose logit is divided by 1.
    temperature_divisor = g.emit_node("Where", is_sampling, temperature, 1.0)
    sequence_ids = g.emit_node("Range", 0, batch_size, 1)
    keys = emit_substream_key(
        g, emit_stream_key(g, seed, "sample"), emit_cast(g, sequence_ids, "u64")
    )
    max_candidates = _emit_candidate_count(g, vocabulary, settings)
    candidate_count = g.emit_node("Where", is_sampling, max_candidates, 1)
    top_p, min_p = (emit_cast(g, settings[name], PROBABILITY_DTYPE) for name in ("top_p", "min_p"))
    return SamplerState(
        temperature_divisor, emit_unsqueeze(g, candidate_count, 0), top_p, min_p, keys
    )


def _emit_candidate_count(g: Emitter, vocabulary: int, settings: dict[str, str]) -> str:
    """Emit the number i64[] of most likely tokens from which a token is sampled. The number is
    top-k if top-k is used, else `MAX_SAMPLED_CANDIDATES` if top-p or min-p is used, else the
    vocabulary size.
    """
    has_top_p = g.emit_node("Less", settings["top_p"], 1.0)
    has_cutoff = g.emit_node("Or", has_top_p, g.emit_node("Greater", settings["min_p"], 0.0))
    # Top-p and min-p sort only the candidates instead of the whole vocabulary.
    cutoff_count = min(MAX_SAMPLED_CANDIDATES, vocabulary)
    default_count = g.emit_node("Where", has_cutoff, cutoff_count, vocabulary)
    has_top_k = g.emit_node("Greater", settings["top_k"], 0)
    top_k = g.emit_node("Min", settings["top_k"], vocabulary)
    return g.emit_node("Where", has_top_k, top_k, default_count)


def emit_sampled_tokens(g: Emitter, sampler: SamplerState, logits: str, step: str) -> str:
    """Emit tokens i64[batch], sampled from logits `[batch, vocab]` at step `step`, i64[]."""
    scaled_logits = g.emit_node("Div", logits, sampler.temperature)
    top_logits, ids = emit_top_k(g, scaled_logits, sampler.candidate_count, axis=1, dtype="f32")
    weights = _emit_top_p_filter(
        g, sampler, g.emit_node("Softmax", emit_cast(g, top_logits, PROBABILITY_DTYPE), axis=1)
    )
    sums = g.emit_node("CumSum", weights, 1)
    # The uniform random number is scaled to the sum of the remaining probabilities.
    sum_of_weights = g.emit_node("Slice", sums, [-1], [2**31 - 1], [1])
    step_keys = emit_substream_key(g, sampler.keys, emit_cast(g, step, "u64"))
    uniform = emit_cast(g, emit_uniform_sample(g, step_keys), PROBABILITY_DTYPE)
    is_below = g.emit_node(
        "LessOrEqual", sums, g.emit_node("Mul", emit_unsqueeze(g, uniform, 1), sum_of_weights)
    )
    index = emit_count_nonzero(g, is_below, 1, keepdims=True)
    return g.emit_node("Squeeze", g.emit_node("GatherElements", ids, index, axis=1), [1])


def _emit_top_p_filter(g: Emitter, sampler: SamplerState, probabilities: str) -> str:
    """Emit the sorted probabilities `[batch, k]` with zeros for tokens that top-p or min-p
    excludes. The first token is never excluded.
    """
    preceding_sum = g.emit_node("CumSum", probabilities, 1, exclusive=1)
    # Rounded sums may exceed 1, so top-p = 1 is handled separately and keeps all tokens.
    is_top_p_off = g.emit_node(
        "GreaterOrEqual", sampler.top_p, g.emit_constant(1, PROBABILITY_DTYPE)
    )
    is_kept = g.emit_node("Or", g.emit_node("Less", preceding_sum, sampler.top_p), is_top_p_off)
    max_probability = emit_slice(g, probabilities, 1, 0, 1)
    is_kept = g.emit_node(
        "And",
        is_kept,
        g.emit_node(
            "GreaterOrEqual", probabilities, g.emit_node("Mul", max_probability, sampler.min_p)
        ),
    )
    zero = g.emit_constant(0, PROBABILITY_DTYPE)
    is_kept = g.emit_node("Or", is_kept, g.emit_node("Equal", preceding_sum, zero))
    return g.emit_node("Where", is_kept, probabilities, zero)


def emit_invalid_logits(g: Emitter, logits: str) -> str:
    """Emit a bool[batch] mask of logits `[batch, vocab]` with NaN or without a finite maximum."""
    # Not every `ReduceMax` kernel propagates NaN.
    has_nan = emit_cast(g, g.emit_node("IsNaN", logits), "f32")
    has_nan = g.emit_node("Greater", emit_reduce(g, "ReduceMax", has_nan, 1), 0.0)
    max_magnitude = g.emit_node("Abs", emit_reduce(g, "ReduceMax", logits, 1))
    return g.emit_node(
        "Or", has_nan, g.emit_node("Not", g.emit_node("Less", max_magnitude, float("inf")))
    )


def emit_log_probability(g: Emitter, logits: str, tokens: str) -> str:
    """Emit the log-probability of the token of each batch element under `logits`, f32[batch]."""
    token_columns = emit_unsqueeze(g, tokens, 1)
    log_probs = g.emit_node(
        "GatherElements", g.emit_node("LogSoftmax", logits, axis=1), token_columns, axis=1
    )
    return g.emit_node("Squeeze", log_probs, [1])
