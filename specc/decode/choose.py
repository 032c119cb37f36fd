"""Which token comes next: the most probable one, or one drawn from a part of the
distribution.

Every step is the one the ONNX graph for generation makes too, in the same order: the k
best, softmax over them in descending order, top-p, min-p, and one uniform number
against the cumulative sum. The cuts that look at all chances together are made here
alone. Probabilities are float64, so that the last bit of an exponential, which differs
between math libraries, next to never decides a draw. The uniform of a row belongs to
(seed, row, step) alone, so what is drawn hangs neither on the batch around the row nor
on the past.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.decode.penalties import tempered
from specc.decode.settings import Settings
from specc.decode.stepper import Floats, Ints
from specc.weights.random import fold, key_of, word

Wide: TypeAlias = NDArray[np.float64]

LOOKED_AT = 1000
"""How many tokens top-p and min-p choose among without a top-k: to sort a whole
vocabulary takes nine times longer.
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """The tokens that may be drawn, most probable first: `tokens` i64[rows k],
    `chances` f64[rows k].

    Dropped ones have chance 0 and stand behind the others; the chances of a row need
    not sum to 1.
    """

    tokens: Ints
    chances: Wide


def best(values: Floats, k: int) -> Ints:
    """f32[rows n] → i64[rows min(k, n)]: where the k greatest stand, in descending
    order; of equals the first.
    """
    k = min(k, values.shape[1])
    # To sort all is faster than to look for a quarter of them first.
    if 4 * k >= values.shape[1]:
        return np.argsort(-values, axis=1, kind="stable")[:, :k]
    # All that are no less than the k-th greatest, of which there may be more than k.
    least = np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]
    found = np.empty((len(values), k), np.int64)
    for row, bound in enumerate(least):
        # ascending, so that a stable sort keeps the first of equals first
        among = np.flatnonzero(values[row] >= bound)
        found[row] = among[np.argsort(-values[row, among], kind="stable")[:k]]
    return found


def softmax(logits: Floats) -> Wide:
    """f32[rows n] → f64[rows n], each row summing to 1."""
    # Less the greatest, so that no exponential overflows.
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(axis=1, keepdims=True))
    made: Wide = raised / raised.sum(axis=1, keepdims=True)
    return made


def log_softmax(logits: Floats) -> Floats:
    """f32[rows n] → f32[rows n]: the logarithms of the probabilities."""
    low = logits - logits.max(axis=1, keepdims=True)
    made: Floats = low - np.log(np.exp(low).sum(axis=1, keepdims=True))
    return made


def kept(logits: Floats, settings: Settings) -> Kept:
    """What may be drawn from penalized logits f32[rows vocab], in the order
    temperature, top-k, softmax, top-p, min-p, typical, epsilon, eta.

    Top-k: Fan et al. 2018 (arXiv:1805.04833), sec. 5.1. Top-p, the shortest run of the
    best whose probability reaches p: Holtzman et al. 2020 (arXiv:1904.09751), sec. 3.1.
    Min-p, a share of the best one's probability: Nguyen et al. 2024 (arXiv:2407.01082),
    eq. 1 and 2. With top-p or min-p but no top-k only the 1000 best are looked at,
    unless one of the last three asks for all.
    """
    vocab = logits.shape[1]
    cut = settings.top_p < 1 or settings.min_p > 0
    by_all = settings.typical_p < 1 or settings.epsilon_cutoff or settings.eta_cutoff
    logits = tempered(logits, settings.temperature)
    usual = LOOKED_AT if cut and not by_all else vocab
    tokens = best(logits, settings.top_k or usual)
    chances = softmax(np.take_along_axis(logits, tokens, axis=1))
    if settings.top_p < 1:
        before = np.zeros_like(chances)
        # What comes before a token must be short of p: so the one that reaches it is
        # still in, and there is always one.
        before[:, 1:] = np.cumsum(chances, axis=1)[:, :-1]
        # p as the graph has it: 0.9 is another number in 32 bits.
        chances = np.where(before < float(np.float32(settings.top_p)), chances, 0.0)
    if settings.min_p > 0:
        chances = np.where(
            chances >= float(np.float32(settings.min_p)) * chances[:, :1], chances, 0.0
        )
    return Kept(tokens, _cut_by_all(chances, settings))


def _cut_by_all(chances: Wide, settings: Settings) -> Wide:
    """What is left of chances f64[rows k], most probable first, by rules that look at
    all of them together; the first token always is under the last two.
    """
    if settings.typical_p < 1:
        chances = _typical(chances, settings.typical_p)
    if settings.epsilon_cutoff:
        chances = _not_below(chances, settings.epsilon_cutoff)
    if settings.eta_cutoff:
        # the share of the least falls where the distribution is flat
        bound, _ = _surprise(chances)
        eta = settings.eta_cutoff
        chances = _not_below(chances, np.minimum(eta, np.sqrt(eta) * np.exp(-bound)))
    return chances


def _surprise(chances: Wide) -> tuple[Wide, Wide]:
    """The entropy of each row f64[rows 1], and of each token `-log p`, infinite for one
    that has no chance.
    """
    shares = chances / chances.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        each = -np.log(shares)
    weighed = np.where(shares > 0, shares * np.where(shares > 0, each, 0.0), 0.0)
    return weighed.sum(axis=1, keepdims=True), each


def _typical(chances: Wide, mass: float) -> Wide:
    """The tokens that surprise about as much as is to be expected, so many that their
    chances reach `mass` (Meister et al. 2022, arXiv:2202.00666, eq. 9 to 11).
    """
    entropy, each = _surprise(chances)
    far = np.abs(each - entropy)
    order = np.argsort(far, axis=1, kind="stable")
    shares = chances / chances.sum(axis=1, keepdims=True)
    reached = np.cumsum(np.take_along_axis(shares, order, axis=1), axis=1)
    last = (reached < mass).sum(axis=1, keepdims=True).clip(max=far.shape[1] - 1)
    bound = np.take_along_axis(far, np.take_along_axis(order, last, axis=1), axis=1)
    return np.where(far <= bound, chances, 0.0)


def _not_below(chances: Wide, bound: float | Wide) -> Wide:
    """Only tokens whose share is no less than the bound, and the likeliest (Hewitt et
    al. 2022, arXiv:2210.15191, sec. 4).
    """
    shares = chances / chances.sum(axis=1, keepdims=True)
    likeliest = shares == shares.max(axis=1, keepdims=True)
    return np.where((shares >= bound) | likeliest, chances, 0.0)


def draw(among: Kept, uniform: Floats) -> Ints:
    """One token a row, i64[rows], by uniforms f32[rows] in [0, 1): the first whose
    cumulative sum exceeds `u · sum`.
    """
    sums = np.cumsum(among.chances, axis=1)
    # Times the sum, because what was dropped leaves chances that sum to less than 1.
    over = sums > uniform[:, None].astype(np.float64) * sums[:, -1:]
    return np.take_along_axis(among.tokens, over.argmax(axis=1)[:, None], axis=1)[:, 0]


def uniforms(seed: int, rows: int, step: int) -> Floats:
    """f32[rows] in [0, 1): element 0 of the stream of (seed, row, step); tokens made
    are counted from step 0.
    """
    return uniforms_at(seed, [(row, step) for row in range(rows)])


def uniforms_at(seed: int, places: Iterable[tuple[int, int]]) -> Floats:
    """`uniforms` of rows and steps that go their own ways, each (row, step) → f32[places]."""
    key = key_of(seed, "sample")
    drawn = [word(fold(fold(key, row), step), 0) >> 40 for row, step in places]
    return np.array(drawn, np.float32) * np.float32(2**-24)
