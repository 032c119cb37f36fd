"""Sample the next token in ONNX: repetition penalty, temperature, top-k, softmax, top-p
(arXiv:1904.09751, sec. 3.1), min-p (arXiv:2407.01082, sec. 3), in this order.

Then the cumulative distribution is inverted at one uniform number; equal logits are in the
order of their ids. Probabilities are f64, so that Python draws the same token. Random keys
are u64 tensors of any shape, so a whole batch of streams is advanced at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specc.diagnostics.diagnostic import raise_error
from specc.ir.dim import Dim
from specc.ir.model import DecodingConfig
from specc.ir.types import Type
from specc.weights.random_stream import (
    SPLITMIX_GAMMA,
    SPLITMIX_MULTIPLIER_1,
    SPLITMIX_MULTIPLIER_2,
    hash_fnv1a,
)
from specc_onnx.generate.generation_context import NO_TOKEN
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_reduce,
    emit_slice,
    emit_unsqueeze,
    emit_where,
)


def check_sampling_opset(opset: int) -> None:
    """Raise E0821 if the opset has no exclusive or, which random numbers need."""
    if not onnx_targets.is_operator_available("BitwiseXor", opset):
        raise_error(
            "E0821",
            f"sampling is not supported at opset {opset}",
            notes=["random numbers need `BitwiseXor`, which came with opset 18"],
            helps=[
                f"leave out `--opset` for the default, {onnx_targets.DEFAULT_OPSET}, or decode "
                f"greedily"
            ],
        )


def emit_stream_key(g: Emitter, seed: str, name: str) -> str:
    """Emit the key u64[] of the stream `name` under a `seed` i64[] (`random.key_of`)."""
    return emit_substream_key(
        g,
        _emit_mix(g, emit_cast(g, seed, "i64", "u64")),
        g.constant(hash_fnv1a(name.encode()), "u64"),
    )


def emit_substream_key(g: Emitter, key: str, n: str) -> str:
    """`random.fold`: the key of sub-stream `n`, both u64 of shapes that fit."""
    return _emit_mix(g, _emit_random_word(g, key, n))


def emit_uniform(g: Emitter, key: str) -> str:
    """Return element 0 of each stream, f32 in [0, 1), a multiple of 2**-24."""
    top = _emit_right_shift(g, _emit_random_word(g, key, g.constant(0, "u64")), 40)
    # 24 bits remain, which i64 and f32 represent exactly.
    whole = emit_cast(g, emit_cast(g, top, "u64", "i64"), "i64", "f32")
    return g.node("Mul", whole, g.constant(2.0**-24, "f32"))


def _emit_random_word(g: Emitter, key: str, n: str) -> str:
    """`random.word`, as `mix(key + n · GAMMA + GAMMA)`."""
    steps = g.node("Mul", n, g.constant(SPLITMIX_GAMMA, "u64"))
    return _emit_mix(g, g.node("Add", g.node("Add", key, g.constant(SPLITMIX_GAMMA, "u64")), steps))


def _emit_mix(g: Emitter, z: str) -> str:
    z = g.node("Mul", _emit_xor_shift(g, z, 30), g.constant(SPLITMIX_MULTIPLIER_1, "u64"))
    z = g.node("Mul", _emit_xor_shift(g, z, 27), g.constant(SPLITMIX_MULTIPLIER_2, "u64"))
    return _emit_xor_shift(g, z, 31)


def _emit_xor_shift(g: Emitter, z: str, bits: int) -> str:
    """`z ^ z >> bits`."""
    return g.node("BitwiseXor", z, _emit_right_shift(g, z, bits))


def _emit_right_shift(g: Emitter, z: str, bits: int) -> str:
    return g.node("BitShift", z, g.constant(bits, "u64"), direction="RIGHT")


MAX_SAMPLED_CANDIDATES = 1000
"""Number of candidates for top-p and min-p without top-k."""

PROBABILITY_DTYPE = "f64"
"""The element type of probabilities."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Loop-invariant values of sampling: scalars, and the stream key of each row, u64[rows]."""

    temperature: str
    count: str
    top_p: str
    min_p: str
    keys: str


def make_sampler(
    g: Emitter, seed: str, rows: str, vocabulary: int, knobs: dict[str, str]
) -> SamplerState:
    """Emit the loop-invariant sampling values; `rows`, i64[], is the batch size."""
    temperature = knobs["temperature"]
    warm = g.node("Greater", temperature, g.constant(0, "f32"))
    # Temperature 0 means greedy: only one candidate is considered, and nothing is divided by 0.
    divisor = emit_where(g, "f32", warm, temperature, g.constant(1, "f32"))
    numbers = g.node("Range", g.constant(0, "i64"), rows, g.constant(1, "i64"))
    keys = emit_substream_key(
        g, emit_stream_key(g, seed, "sample"), emit_cast(g, numbers, "i64", "u64")
    )
    count = emit_where(
        g, "i64", warm, _emit_candidate_count(g, vocabulary, knobs), g.constant(1, "i64")
    )
    top_p, min_p = (
        emit_cast(g, knobs[name], "f32", PROBABILITY_DTYPE) for name in ("top_p", "min_p")
    )
    return SamplerState(divisor, emit_unsqueeze(g, count, 0), top_p, min_p, keys)


def _emit_candidate_count(g: Emitter, vocabulary: int, knobs: dict[str, str]) -> str:
    """Emit the number of most likely tokens that sampling considers, i64[]."""
    every = g.constant(vocabulary, "i64")
    cutting = g.node(
        "Or",
        g.node("Less", knobs["top_p"], g.constant(1, "f32")),
        g.node("Greater", knobs["min_p"], g.constant(0, "f32")),
    )
    # Top-p and min-p need sorted logits: only the candidates are sorted, not the whole vocabulary.
    many = emit_where(
        g, "i64", cutting, g.constant(min(MAX_SAMPLED_CANDIDATES, vocabulary), "i64"), every
    )
    asked = g.node("Greater", knobs["top_k"], g.constant(0, "i64"))
    return emit_where(g, "i64", asked, g.node("Min", knobs["top_k"], every), many)


def emit_prompt_tokens(g: Emitter, prompt: str, keep: str | None, vocabulary: int) -> str:
    """Emit bool[rows, vocabulary]: the tokens in each prompt i64[rows, n], without padding."""
    size = g.constant(vocabulary, "i64")
    known = g.node(
        "And", g.node("GreaterOrEqual", prompt, g.constant(0, "i64")), g.node("Less", prompt, size)
    )
    if keep is not None:
        known = g.node("And", known, keep)
    # dropped candidates go to a column that is discarded
    places = g.node("Where", known, prompt, size)
    rows = g.node("Shape", prompt, start=0, end=1)
    none = g.node(
        "Expand",
        g.constant(False, "bool"),
        g.node("Concat", rows, g.vector(vocabulary + 1), axis=0),
    )
    return emit_slice(g, emit_seen_tokens(g, none, places), 1, Dim.of(0), Dim.of(vocabulary))


def emit_seen_tokens(g: Emitter, seen: str, tokens: str) -> str:
    """`seen` with more tokens, i64[rows, n]."""
    some = g.node("Expand", g.constant(True, "bool"), g.node("Shape", tokens))
    return g.node("ScatterElements", seen, tokens, some, axis=1)


def emit_repetition_penalty(g: Emitter, logits: str, seen: str, penalty: str) -> str:
    """Divide positive logits `[rows, vocab]` of seen tokens, and multiply negative ones
    (arXiv:1909.05858, sec. 4.1, divides only).
    """
    # Dividing would raise a negative logit, so those are multiplied.
    more = g.node("Greater", logits, g.constant(0, "f32"))
    changed = g.node("Where", more, g.node("Div", logits, penalty), g.node("Mul", logits, penalty))
    return g.node("Where", seen, changed, logits)


def emit_sampled_tokens(g: Emitter, s: SamplerState, logits: str, step: str) -> str:
    """Sample i64[rows] from logits `[rows, vocab]` at generation step `step`, i64[]."""
    values, ids = g.nodes("TopK", 2, g.node("Div", logits, s.temperature), s.count, axis=1)
    weights = _emit_top_p_filter(
        g, s, g.node("Softmax", emit_cast(g, values, "f32", PROBABILITY_DTYPE), axis=1)
    )
    sums = g.node("CumSum", weights, g.constant(1, "i64"))
    # The probabilities no longer sum to 1: the uniform number is scaled to their sum instead of
    # dividing them.
    total = g.node("Slice", sums, g.vector(-1), g.vector(2**31 - 1), g.vector(1))
    uniform = emit_cast(
        g,
        emit_uniform(g, emit_substream_key(g, s.keys, emit_cast(g, step, "i64", "u64"))),
        "f32",
        PROBABILITY_DTYPE,
    )
    # The index of the sampled token is the number of cumulative sums that do not exceed the number.
    behind = g.node("LessOrEqual", sums, g.node("Mul", emit_unsqueeze(g, uniform, 1), total))
    place = g.node("ReduceSum", emit_cast(g, behind, "bool", "i64"), g.vector(1), keepdims=True)
    return g.node("Squeeze", g.node("GatherElements", ids, place, axis=1), g.vector(1))


def _emit_top_p_filter(g: Emitter, s: SamplerState, probabilities: str) -> str:
    """Zero the sorted probabilities `[rows, k]` that top-p or min-p drop, never the best."""
    before = g.node("CumSum", probabilities, g.constant(1, "i64"), exclusive=1)
    # Cumulative sums may exceed 1 by rounding: top-p of 1 means all tokens, not those below 1.
    all_of_it = g.node("GreaterOrEqual", s.top_p, g.constant(1, PROBABILITY_DTYPE))
    near = g.node("Or", g.node("Less", before, s.top_p), all_of_it)
    best = emit_slice(g, probabilities, 1, Dim.of(0), Dim.of(1))
    near = g.node(
        "And", near, g.node("GreaterOrEqual", probabilities, g.node("Mul", best, s.min_p))
    )
    # The best token stays even at a top-p of 0.
    first = g.node("Equal", before, g.constant(0, PROBABILITY_DTYPE))
    return emit_where(
        g,
        PROBABILITY_DTYPE,
        g.node("Or", near, first),
        probabilities,
        g.constant(0, PROBABILITY_DTYPE),
    )


def emit_invalid_logits(g: Emitter, logits: str) -> str:
    """Emit bool[rows]: whether logits `[rows, vocab]` contain NaN or have no finite maximum."""
    # Kernels differ in whether a maximum propagates NaN: it is checked separately.
    strange = emit_cast(g, g.node("IsNaN", logits), "bool", "f32")
    strange = g.node("Greater", emit_reduce(g, "ReduceMax", strange, 1), g.constant(0, "f32"))
    best = g.node("Abs", emit_reduce(g, "ReduceMax", logits, 1))
    return g.node(
        "Or", strange, g.node("Not", g.node("Less", best, g.constant(float("inf"), "f32")))
    )


def emit_argmax_tokens(g: Emitter, logits: str) -> str:
    """Emit the most likely token of each batch element, i64[rows]; ties go to the lower id."""
    return g.node("ArgMax", logits, axis=1, keepdims=False)


def emit_log_probability(g: Emitter, logits: str, tokens: str) -> str:
    """Emit the log probability of each batch element's token under `logits`, f32[rows]."""
    places = emit_unsqueeze(g, tokens, 1)
    found = g.node("GatherElements", g.node("LogSoftmax", logits, axis=1), places, axis=1)
    return g.node("Squeeze", found, g.vector(1))


HISTORY_DIM = Dim.symbol("history")
SLICE_TO_END = 2**31 - 1


def has_history(d: DecodingConfig) -> bool:
    """Return whether a rule reads the tokens of a sequence, or counts those of a prompt."""
    return bool(d.no_repeat_ngram_size or d.bad_words_ids or (d.min_length and d.stop))


def get_history_type(rows: Dim) -> Type:
    """Return the type of a history."""
    return Type("i64", (rows, HISTORY_DIM))


def emit_prompt_history(g: Emitter, d: DecodingConfig, prompt: str, keep: str | None) -> str:
    """Emit the history of a prompt i64[rows, n] without padding (`keep` bool[rows, n] is its mask),
    with as many columns before it as the longest of `bad_words_ids` needs.
    """
    if keep is not None:
        prompt = _emit_right_aligned(g, prompt, keep)
    front = max((len(run) - 1 for run in d.bad_words_ids), default=0)
    if not front:
        return prompt
    rows = g.node("Shape", prompt, start=0, end=1)
    shape = g.node("Concat", rows, g.vector(front), axis=0)
    empty = g.node("Expand", g.constant(NO_TOKEN, "i64"), shape)
    return g.node("Concat", empty, prompt, axis=1)


def _emit_right_aligned(g: Emitter, prompt: str, keep: str) -> str:
    """Emit the non-padding tokens in their order, right-aligned and preceded by `NO_TOKEN`."""
    kept = emit_cast(g, keep, "bool", "i64")
    length = g.node("Shape", prompt, start=1, end=2)
    behind = g.node("CumSum", kept, g.constant(1, "i64"), exclusive=1, reverse=1)
    places = g.node("Sub", g.node("Sub", length, g.vector(1)), behind)
    # padding is scattered to a column that is dropped
    places = g.node("Where", keep, places, length)
    rows = g.node("Shape", prompt, start=0, end=1)
    wide = g.node("Concat", rows, g.node("Add", length, g.vector(1)), axis=0)
    empty = g.node("Expand", g.constant(NO_TOKEN, "i64"), wide)
    made = g.node("ScatterElements", empty, places, prompt, axis=1)
    return g.node("Slice", made, g.vector(0), length, g.vector(1))


def emit_banned_tokens(g: Emitter, d: DecodingConfig, history: str, vocabulary: int) -> list[str]:
    """Emit the tokens forbidden by each rule, each bool[rows, vocabulary]."""
    found = []
    if d.no_repeat_ngram_size:
        found.append(_emit_repeated_ngrams(g, history, d.no_repeat_ngram_size, vocabulary))
    ordered = sorted(d.bad_words_ids, key=len)
    for length, runs in groupby(ordered, key=len):
        found.append(_emit_completed_runs(g, history, length, [*runs], vocabulary))
    if d.min_length and d.stop:
        there = g.node("GreaterOrEqual", history, g.constant(0, "i64"))
        count = g.node("ReduceSum", emit_cast(g, there, "bool", "i64"), g.vector(1))
        early = g.node("Less", count, g.constant(d.min_length, "i64"))
        stops = g.constant([[i in d.stop for i in range(vocabulary)]], "bool")
        found.append(g.node("And", early, stops))
    return found


def _emit_repeated_ngrams(g: Emitter, history: str, size: int, vocabulary: int) -> str:
    """Emit the tokens that would repeat an n-gram of the history (arXiv:1705.04304, sec. 2.5)."""
    # Column s holds the n-gram that starts at s; a short history has none.
    ends = g.node("Slice", history, g.vector(size - 1), g.vector(SLICE_TO_END), g.vector(1))
    same = g.node("Equal", ends, ends)
    for n in range(size - 1):
        newest = n - size + 1
        begins = g.node("Slice", history, g.vector(n), g.vector(newest), g.vector(1))
        last = g.node(
            "Slice", history, g.vector(newest), g.vector(newest + 1 or SLICE_TO_END), g.vector(1)
        )
        same = g.node("And", same, g.node("Equal", begins, last))
    return emit_prompt_tokens(g, ends, same, vocabulary)


def _emit_completed_runs(
    g: Emitter, history: str, length: int, runs: Sequence[Sequence[int]], vocabulary: int
) -> str:
    """Emit a mask of the last tokens of those `runs` whose other tokens the history ends with."""
    if length == 1:
        alone = {run[0] for run in runs}
        return g.constant([[i in alone for i in range(vocabulary)]], "bool")
    tail = g.node("Slice", history, g.vector(1 - length), g.vector(SLICE_TO_END), g.vector(1))
    firsts = g.constant([[list(run[:-1]) for run in runs]], "i64")
    alike = emit_cast(g, g.node("Equal", emit_unsqueeze(g, tail, 1), firsts), "bool", "i64")
    count = g.node("ReduceSum", alike, g.vector(2), keepdims=False)
    hits = g.node("Equal", count, g.constant(length - 1, "i64"))
    lasts = g.constant([[run[-1] for run in runs]], "i64")
    return emit_prompt_tokens(g, g.node("Expand", lasts, g.node("Shape", hits)), hits, vocabulary)
