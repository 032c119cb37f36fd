"""Choosing the next token of each row from its logits, as ONNX nodes;
`specc.decode.choose` in Python.

The order is that of the published generators: repetition penalty, temperature, top-k,
softmax over what is left in falling order, top-p (Holtzman et al. 2019,
arXiv:1904.09751, sec. 3.1), min-p (Nguyen et al. 2024, arXiv:2407.01082, sec. 3), then
the inverse of the cumulative distribution at one uniform number. Equal logits stand in
the order of their ids. Probabilities are computed in f64, so that both sides draw the
same token.
"""

from dataclasses import dataclass

from specc.ir.dim import Dim
from specc_onnx.generate.uniforms import fold, stream, unit
from specc_onnx.lower.arrange import cast, cut, reduce, unsqueeze, where
from specc_onnx.lower.emitter import Emitter

MOST = 1000
"""So many of the best tokens are looked at when top-p or min-p is asked for without top-k."""

WIDE = "f64"
"""The element type of probabilities."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """What the draws of every step share: names of scalars, and the key of each row's
    stream, u64[rows].
    """

    temperature: str
    count: str
    top_p: str
    min_p: str
    keys: str


def sampler(
    g: Emitter, seed: str, rows: str, vocabulary: int, knobs: dict[str, str]
) -> Sampler:
    """Everything that does not change from step to step. `rows` is their number, i64[]."""
    temperature = knobs["temperature"]
    warm = g.node("Greater", temperature, g.constant(0, "f32"))
    # A temperature of 0 means the likeliest: one token is looked at, and nothing is
    # divided by 0.
    divisor = where(g, "f32", warm, temperature, g.constant(1, "f32"))
    numbers = g.node("Range", g.constant(0, "i64"), rows, g.constant(1, "i64"))
    keys = fold(g, stream(g, seed, "sample"), cast(g, numbers, "i64", "u64"))
    count = where(g, "i64", warm, _count(g, vocabulary, knobs), g.constant(1, "i64"))
    top_p, min_p = (cast(g, knobs[name], "f32", WIDE) for name in ("top_p", "min_p"))
    return Sampler(divisor, unsqueeze(g, count, 0), top_p, min_p, keys)


def _count(g: Emitter, vocabulary: int, knobs: dict[str, str]) -> str:
    """How many of the best tokens are looked at, i64[]."""
    every = g.constant(vocabulary, "i64")
    cutting = g.node(
        "Or",
        g.node("Less", knobs["top_p"], g.constant(1, "f32")),
        g.node("Greater", knobs["min_p"], g.constant(0, "f32")),
    )
    # Top-p and min-p need a falling order: not the whole vocabulary is sorted for it.
    many = where(g, "i64", cutting, g.constant(min(MOST, vocabulary), "i64"), every)
    asked = g.node("Greater", knobs["top_k"], g.constant(0, "i64"))
    return where(g, "i64", asked, g.node("Min", knobs["top_k"], every), many)


def seen_in(g: Emitter, prompt: str, keep: str | None, vocabulary: int) -> str:
    """Which tokens occur in each row of a prompt i64[rows, n], bool[rows, vocabulary];
    padding does not count.
    """
    size = g.constant(vocabulary, "i64")
    known = g.node(
        "And",
        g.node("GreaterOrEqual", prompt, g.constant(0, "i64")),
        g.node("Less", prompt, size),
    )
    if keep is not None:
        known = g.node("And", known, keep)
    # what does not count goes to a column that is dropped
    places = g.node("Where", known, prompt, size)
    rows = g.node("Shape", prompt, start=0, end=1)
    none = g.node(
        "Expand",
        g.constant(False, "bool"),
        g.node("Concat", rows, g.vector(vocabulary + 1), axis=0),
    )
    return cut(g, with_seen(g, none, places), 1, Dim.of(0), Dim.of(vocabulary))


def with_seen(g: Emitter, seen: str, tokens: str) -> str:
    """`seen` with more tokens, i64[rows, n]."""
    some = g.node("Expand", g.constant(True, "bool"), g.node("Shape", tokens))
    return g.node("ScatterElements", seen, tokens, some, axis=1)


def penalized(g: Emitter, logits: str, seen: str, penalty: str) -> str:
    """Logits `[rows, vocab]` of the tokens that were there, divided where positive,
    else multiplied.

    Keskar et al. 2019, arXiv:1909.05858, sec. 4.1, which divides only.
    """
    # Dividing makes a logit below 0 likelier, so those are multiplied.
    more = g.node("Greater", logits, g.constant(0, "f32"))
    changed = g.node(
        "Where", more, g.node("Div", logits, penalty), g.node("Mul", logits, penalty)
    )
    return g.node("Where", seen, changed, logits)


def drawn(g: Emitter, s: Sampler, logits: str, step: str) -> str:
    """A token of each row, i64[rows], from its logits `[rows, vocab]`; `step`, i64[],
    counts the tokens made.
    """
    values, ids = g.nodes(
        "TopK", 2, g.node("Div", logits, s.temperature), s.count, axis=1
    )
    weights = _kept(g, s, g.node("Softmax", cast(g, values, "f32", WIDE), axis=1))
    sums = g.node("CumSum", weights, g.constant(1, "i64"))
    # What was dropped is missing from the sum: the uniform number is stretched to what
    # is left, and nothing need be divided.
    total = g.node("Slice", sums, g.vector(-1), g.vector(2**31 - 1), g.vector(1))
    uniform = cast(
        g, unit(g, fold(g, s.keys, cast(g, step, "i64", "u64"))), "f32", WIDE
    )
    # As many sums as do not exceed the number stand before the token that is drawn.
    behind = g.node("LessOrEqual", sums, g.node("Mul", unsqueeze(g, uniform, 1), total))
    place = g.node(
        "ReduceSum", cast(g, behind, "bool", "i64"), g.vector(1), keepdims=True
    )
    return g.node("Squeeze", g.node("GatherElements", ids, place, axis=1), g.vector(1))


def _kept(g: Emitter, s: Sampler, probabilities: str) -> str:
    """Probabilities in falling order `[rows, k]`; those that top-p or min-p drop are 0,
    the best never is.
    """
    before = g.node("CumSum", probabilities, g.constant(1, "i64"), exclusive=1)
    # Sums of probabilities may pass 1 by rounding: 1 means all, not those below 1.
    all_of_it = g.node("GreaterOrEqual", s.top_p, g.constant(1, WIDE))
    near = g.node("Or", g.node("Less", before, s.top_p), all_of_it)
    best = cut(g, probabilities, 1, Dim.of(0), Dim.of(1))
    near = g.node(
        "And",
        near,
        g.node("GreaterOrEqual", probabilities, g.node("Mul", best, s.min_p)),
    )
    # The best token stays, even at a top-p of 0.
    first = g.node("Equal", before, g.constant(0, WIDE))
    return where(g, WIDE, g.node("Or", near, first), probabilities, g.constant(0, WIDE))


def hopeless(g: Emitter, logits: str) -> str:
    """Which rows of logits `[rows, vocab]` have no best token, bool[rows]: one is NaN,
    or the best is infinite.
    """
    # A maximum may or may not pass NaN on, each kernel as it likes: it is asked for
    # apart.
    strange = cast(g, g.node("IsNaN", logits), "bool", "f32")
    strange = g.node(
        "Greater", reduce(g, "ReduceMax", strange, 1), g.constant(0, "f32")
    )
    best = g.node("Abs", reduce(g, "ReduceMax", logits, 1))
    return g.node(
        "Or",
        strange,
        g.node("Not", g.node("Less", best, g.constant(float("inf"), "f32"))),
    )


def best_of(g: Emitter, logits: str) -> str:
    """The likeliest token of each row, i64[rows]; of equals the lower id."""
    return g.node("ArgMax", logits, axis=1, keepdims=False)


def log_probability(g: Emitter, logits: str, tokens: str) -> str:
    """The logarithm of the probability that the model gives each row's token, f32[rows]."""
    places = unsqueeze(g, tokens, 1)
    found = g.node(
        "GatherElements", g.node("LogSoftmax", logits, axis=1), places, axis=1
    )
    return g.node("Squeeze", found, g.vector(1))
