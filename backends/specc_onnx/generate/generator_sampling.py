"""Emit greedy decoding or sampling for a standalone generator.

A strategy's constructor emits loop-invariant nodes into the main graph. `emit_step` emits one step
into the loop body. `emit_outputs` computes the outputs from the final loop-carried values.

Sampling applies temperature, top-k, softmax, top-p (arXiv:1904.09751, sec. 3.1) and min-p
(arXiv:2407.01082, sec. 3) in this order. A uniform random number then selects a token by inverse
transform sampling. Equal logits are ordered by id. Probabilities are computed in f64, so that the
ONNX model and the Python implementation sample the same token. Random keys are u64 tensors of any
shape, so that a single node computes the random numbers of all sequences of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.diagnostics.diagnostic import raise_error
from specc.ir.types import Type
from specc.weights.random_stream import (
    SPLITMIX_GAMMA,
    SPLITMIX_MULTIPLIER_1,
    SPLITMIX_MULTIPLIER_2,
    hash_fnv1a,
)
from specc_onnx.generate.generator_inputs import (
    GENERATED_COUNT_DIM,
    GENERATED_DIM,
    NO_TOKEN,
    SAMPLING_INPUTS,
    SEED_INPUT,
    DecodingStepResult,
    LoopCarry,
)
from specc_onnx.generate.generator_logits_processors import (
    DecodingStrategyInputs,
    emit_invalid_logits_mask,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.indexing import emit_top_k
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import emit_count_nonzero


class SamplingStrategy:
    """A decoding strategy: greedy decoding or sampling. Finished sequences are padded with the fill
    token. If an unfinished sequence has invalid logits, generation ends with `NO_TOKEN`.
    """

    def __init__(self, inputs: DecodingStrategyInputs) -> None:
        g, size = inputs.g, inputs.step_batch_size
        self.inputs, self.processors = inputs, inputs.make_logits_processors()
        self.sampler: SamplerSettings | None = None
        if inputs.decoding_config.strategy == "sample":
            check_sampling_opset(g.opset)
            settings = {name: inputs.scalars[name] for name in SAMPLING_INPUTS}
            seed, batch_size = inputs.scalars[SEED_INPUT], g.emit_length(size)
            self.sampler = emit_sampler_settings(seed, batch_size, inputs.vocabulary, settings)
        shape = g.emit_shape([size])
        empty_shape = shape.apply_op("Concat", [0], axis=0)
        is_finished, tokens, scores = (
            g.emit_node("Expand", value, result_shape)
            for value, result_shape in ((False, shape), (0, empty_shape), (0.0, empty_shape))
        )
        self.carried_values = [
            LoopCarry("is_finished", Type.of("bool", size), is_finished),
            LoopCarry("tokens", Type.of("i64", size, GENERATED_DIM), tokens),
            LoopCarry("scores", Type.of("f32", size, GENERATED_DIM), scores),
            *self.processors.emit_initial_history(inputs.batch, inputs.prompt, inputs.padding_mask),
        ]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carried_values: Sequence[OnnxValue]
    ) -> DecodingStepResult:
        """Select one token per sequence."""
        decoding = self.inputs.decoding_config
        is_finished, tokens_so_far, scores, *history = carried_values
        allowed_scores = self.processors.emit_processed_scores(logits, iteration, history)
        if self.sampler:
            sampled = emit_sampled_tokens(self.sampler, allowed_scores, iteration)
        else:
            # if several tokens are equally likely, the token with the lowest id is selected
            sampled = allowed_scores.apply_op("ArgMax", axis=1, keepdims=False)
        score = emit_log_probability(logits, sampled)
        score = is_finished.where(0.0, score)
        tokens = is_finished.where(decoding.effective_pad_token_id, sampled)
        is_invalid = emit_invalid_logits_mask(logits)
        is_invalid = ~is_finished & is_invalid
        score = is_invalid.where(float("nan"), score)
        tokens = is_invalid.where(NO_TOKEN, tokens)
        for stop in decoding.stop_token_ids:
            is_finished = is_finished | tokens.equals(stop)
        column = sampled.unsqueeze(1)
        next_carries = [
            is_finished,
            tokens_so_far.apply_op("Concat", tokens.unsqueeze(1), axis=1),
            scores.apply_op("Concat", score.unsqueeze(1), axis=1),
            *self.processors.emit_updated_history(history, column),
        ]
        has_unfinished = emit_count_nonzero(~is_finished) > 0
        should_continue = has_unfinished & emit_count_nonzero(is_invalid).equals(0)
        return DecodingStepResult(tokens, None, should_continue, next_carries)

    def emit_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return `tokens` i64[batch, generated] and `log_probs` f32[batch, generated]."""
        _, tokens, log_probs, *_ = final_carries
        shape = (self.inputs.step_batch_size, GENERATED_COUNT_DIM)
        return {"tokens": tokens.with_shape(shape), "log_probs": log_probs.with_shape(shape)}


def check_sampling_opset(opset: int) -> None:
    """Raise E0821 if the opset lacks `BitwiseXor`, which the random number generator uses."""
    if not onnx_targets.is_operator_available("BitwiseXor", opset):
        raise_error(
            "E0821",
            f"sampling is not supported at opset {opset}",
            notes=["the random number generator requires `BitwiseXor` (opset 18)"],
            helps=[
                f"remove `--opset` to use the default, {onnx_targets.DEFAULT_OPSET}, or use "
                "greedy decoding"
            ],
        )


def emit_random_stream_key(seed: OnnxValue, name: str) -> OnnxValue:
    """Emit the key u64[] of the random stream `name` for a `seed` i64[]."""
    key = _emit_mixed_bits(seed.cast("u64"))
    return emit_random_substream_key(key, seed.g.emit_constant(hash_fnv1a(name.encode()), "u64"))


def emit_random_substream_key(key: OnnxValue, stream_index: OnnxValue) -> OnnxValue:
    """Emit the key of a sub-stream, computed from the broadcastable u64 tensors `key` and
    `stream_index`.
    """
    return _emit_mixed_bits(_emit_random_word(key, stream_index))


def emit_uniform_sample(key: OnnxValue) -> OnnxValue:
    """Emit the first uniform random f32 of each stream, a multiple of 2**-24 in [0, 1)."""
    first_word = _emit_random_word(key, key.g.emit_constant(0, "u64"))
    # f32 represents the 24 most significant bits of the random number exactly.
    high_bits = _emit_right_shift(first_word, 40).cast("i64")
    return high_bits.cast("f32") * 2.0**-24


def _emit_random_word(key: OnnxValue, word_index: OnnxValue) -> OnnxValue:
    """Emit word n = `word_index` of a stream by SplitMix64: `mix(key + n · GAMMA + GAMMA)`."""
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
    return z.apply_op("BitShift", bits, direction="RIGHT")


MAX_SAMPLED_CANDIDATES = 1000
"""The number of candidate tokens for top-p and min-p if top-k is not used."""

PROBABILITY_DTYPE = "f64"
"""The element type in which probabilities are computed."""


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Loop-invariant values of sampling: scalar settings and the random stream keys u64[batch]."""

    temperature: OnnxValue
    candidate_count: OnnxValue
    top_p: OnnxValue
    min_p: OnnxValue
    keys: OnnxValue


def emit_sampler_settings(
    seed: OnnxValue, batch_size: OnnxValue, vocabulary: int, settings: Mapping[str, OnnxValue]
) -> SamplerSettings:
    """Emit the loop-invariant values of sampling from `seed` i64[], the batch size i64[] and the
    sampling settings (`SAMPLING_INPUTS`).
    """
    temperature = settings["temperature"]
    is_sampling = temperature > 0.0
    # Temperature 0 means greedy decoding: there is one candidate, and its logit is divided by 1.
    temperature_divisor = is_sampling.where(temperature, 1.0)
    sequence_ids = seed.g.emit_node("Range", 0, batch_size, 1)
    keys = emit_random_substream_key(
        emit_random_stream_key(seed, "sample"), sequence_ids.cast("u64")
    )
    max_candidates = _emit_candidate_count(vocabulary, settings)
    candidate_count = is_sampling.where(max_candidates, 1)
    top_p, min_p = (settings[name].cast(PROBABILITY_DTYPE) for name in ("top_p", "min_p"))
    return SamplerSettings(temperature_divisor, candidate_count.unsqueeze(0), top_p, min_p, keys)


def _emit_candidate_count(vocabulary: int, settings: Mapping[str, OnnxValue]) -> OnnxValue:
    """Emit the number of candidate tokens, i64[]. It is top-k if top-k is used, else
    `MAX_SAMPLED_CANDIDATES` if top-p or min-p is used, and else the vocabulary size.
    """
    top_k = settings["top_k"]
    has_cutoff = (settings["top_p"] < 1.0) | (settings["min_p"] > 0.0)
    # Top-p and min-p sort only the candidates instead of the whole vocabulary.
    cutoff_count = min(MAX_SAMPLED_CANDIDATES, vocabulary)
    default_count = has_cutoff.where(cutoff_count, vocabulary)
    has_top_k = top_k > 0
    top_k = top_k.minimum(vocabulary)
    return has_top_k.where(top_k, default_count)


def emit_sampled_tokens(
    sampler: SamplerSettings, logits: OnnxValue, iteration: OnnxValue
) -> OnnxValue:
    """Emit tokens i64[batch], sampled from logits `[batch, vocab]` at step `iteration`, i64[]."""
    scaled_logits = logits / sampler.temperature
    top_logits, ids = emit_top_k(scaled_logits, sampler.candidate_count, axis=1)
    probabilities = top_logits.cast(PROBABILITY_DTYPE).apply_op("Softmax", axis=1)
    sums = _emit_top_p_filter(sampler, probabilities).apply_op("CumSum", 1)
    # The uniform random number is scaled to the sum of the remaining probabilities.
    sum_of_weights = sums.apply_op("Slice", [-1], [2**31 - 1], [1])
    step_keys = emit_random_substream_key(sampler.keys, iteration.cast("u64"))
    uniform = emit_uniform_sample(step_keys).cast(PROBABILITY_DTYPE)
    is_below = sums <= uniform.unsqueeze(1) * sum_of_weights
    index = emit_count_nonzero(is_below, 1, keepdims=True)
    return ids.gather_elements(index, 1).squeeze(1)


def _emit_top_p_filter(sampler: SamplerSettings, probabilities: OnnxValue) -> OnnxValue:
    """Emit the sorted probabilities `[batch, k]` with zeros for tokens that top-p or min-p
    excludes. The most likely token is never excluded.
    """
    preceding_sum = probabilities.apply_op("CumSum", 1, exclusive=1)
    # Rounded sums may exceed 1, so top-p = 1 is a special case that keeps all tokens.
    is_top_p_off = sampler.top_p >= 1
    is_kept = (preceding_sum < sampler.top_p) | is_top_p_off
    max_probability = probabilities.slice(1, 0, 1)
    is_kept = is_kept & (probabilities >= max_probability * sampler.min_p)
    is_kept = is_kept | preceding_sum.equals(0)
    return is_kept.where(probabilities, 0)


def emit_log_probability(logits: OnnxValue, tokens: OnnxValue) -> OnnxValue:
    """Emit the log-probability f32[batch] of each batch element's token under `logits`."""
    token_columns = tokens.unsqueeze(1)
    all_log_probs = logits.apply_op("LogSoftmax", axis=1)
    log_probs = all_log_probs.gather_elements(token_columns, 1)
    return log_probs.squeeze(1)
