"""The generation strategies of docs/generation.md in plain Python, with one full forward pass per
token.

Each sequence is generated alone, without padding or KV cache. The result records the first choice
with a gap below `TIE_GAP`: later tokens may differ.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Logits = Callable[[Sequence[int]], Sequence[float]]
"""Maps the tokens so far to the logits of the next token."""

TIE_GAP = 1e-4
MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix_bits(z: int) -> int:
    """Apply the last steps of SplitMix64 (Steele, Lea, Flood 2014, figure 17)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def get_stream_word(key: int, n: int) -> int:
    """Return word `n` of a random stream."""
    return mix_bits(key + (n + 1) * GAMMA & MASK)


def sample_uniform(seed: int, row: int, step: int) -> float:
    """Return the value in [0, 1) that samples a token."""
    name = 0xCBF29CE484222325
    for byte in b"sample":
        name = (name ^ byte) * 0x100000001B3 & MASK
    key = mix_bits(seed)
    for part in (name, row, step):
        key = mix_bits(get_stream_word(key, part))
    return (get_stream_word(key, 0) >> 40) / 2**24


def apply_repetition_penalty(x: Sequence[float], seen: set[int], penalty: float) -> list[float]:
    """Lower the logits of tokens that already occur."""
    return [(v / penalty if v > 0 else v * penalty) if t in seen else v for t, v in enumerate(x)]


def log_softmax(x: Sequence[float]) -> list[float]:
    """Return the logarithm of the softmax."""
    top = max(x)
    total = math.log(sum(math.exp(v - top) for v in x))
    return [v - top - total for v in x]


def sort_descending(x: Sequence[float]) -> list[int]:
    """Return indices by decreasing value; ties by increasing index."""
    return sorted(range(len(x)), key=lambda t: -x[t])


@dataclass
class GeneratedText:
    """A generated sequence: tokens, their log-probabilities, the first uncertain position, and the
    score.
    """

    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    uncertain_from: int | None = None
    score: float = 0.0
    ended: bool = False


@dataclass(frozen=True)
class ReferenceGenerator:
    """The prompt and settings of one sequence. `valid_tokens` are the unpadded prompt
    tokens; `decode` converts token ids to text.
    """

    logits: Logits
    prompt: Sequence[int]
    valid_tokens: frozenset[int]
    stop: frozenset[int]
    max_tokens: int
    penalty: float = 1.0
    decode: Callable[[Sequence[int]], str] | None = None
    stop_strings: tuple[str, ...] = ()

    def is_finished(self, tokens: Sequence[int]) -> bool:
        """Whether the latest token ends the sequence."""
        if tokens[-1] in self.stop:
            return True
        return self.decode is not None and any(s in self.decode(tokens) for s in self.stop_strings)

    def generate_greedy(self) -> GeneratedText:
        """Return the sequence of greedy search."""
        return self._one_by_one(
            lambda x, step: (sort_descending(x)[0], _gap(x, 0) < TIE_GAP * _spread(x))
        )

    def generate_sampled(
        self, row: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
    ) -> GeneratedText:
        """Return the sequence of sampling with temperature, top-k, top-p and min-p."""

        def draw(x: Sequence[float], step: int) -> tuple[int, bool]:
            x = [v / temperature for v in x]
            order = sort_descending(x)
            is_uncertain = 0 < top_k < len(x) and x[order[top_k - 1]] - x[
                order[top_k]
            ] < TIE_GAP * _spread(x)
            order = order[: top_k or len(x)]
            powers = [math.exp(x[t] - x[order[0]]) for t in order]
            probabilities = [p / sum(powers) for p in powers]
            filtered, total = list[float](), 0.0
            for p in probabilities:
                inside = (top_p >= 1 or total < top_p) and (
                    min_p <= 0 or p >= min_p * probabilities[0]
                )
                is_uncertain |= top_p < 1 and abs(total - top_p) < TIE_GAP
                is_uncertain |= min_p > 0 and abs(p - min_p * probabilities[0]) < TIE_GAP
                filtered.append(p if inside else 0.0)
                total += p
            bound, total = sample_uniform(seed, row, step) * sum(filtered), 0.0
            for token, p in zip(order, filtered, strict=True):
                is_uncertain |= p > 0 and abs(total + p - bound) < TIE_GAP
                total += p
                if total > bound:
                    return token, is_uncertain
            raise AssertionError("u is below 1")

        return self._one_by_one(draw)

    def _one_by_one(
        self, choose: Callable[[Sequence[float], int], tuple[int, bool]]
    ) -> GeneratedText:
        result, seen = GeneratedText(), set(self.valid_tokens)
        for step in range(self.max_tokens):
            x = self.logits([*self.prompt, *result.tokens])
            token, is_uncertain = choose(apply_repetition_penalty(x, seen, self.penalty), step)
            if is_uncertain and result.uncertain_from is None:
                result.uncertain_from = step
            result.tokens.append(token)
            result.log_probabilities.append(log_softmax(x)[token])
            seen.add(token)
            if self.is_finished(result.tokens):
                result.ended = True
                break
        return result

    def run_beam_search(
        self, beams: int, count: int, length_penalty: float, early_stopping: bool | str
    ) -> tuple[list[GeneratedText], bool]:
        """Return the best hypotheses of beam search, and whether a choice was uncertain."""
        open_beams, finished, is_uncertain = [GeneratedText()], list[GeneratedText](), False
        for step in range(1, self.max_tokens + 1):
            candidates = []
            for rank, text in enumerate(open_beams):
                x = log_softmax(self.logits([*self.prompt, *text.tokens]))
                penalized = apply_repetition_penalty(
                    x, {*self.valid_tokens, *text.tokens}, self.penalty
                )
                for token, value in enumerate(penalized):
                    extended = GeneratedText(
                        [*text.tokens, token],
                        [*text.log_probabilities, x[token]],
                        score=text.score + value,
                    )
                    candidates.append((-extended.score, rank, token, extended))
            candidates.sort(key=lambda m: m[:3])
            considered = max(2, 1 + len(self.stop)) * beams
            is_uncertain |= any(
                b[0] - a[0] < TIE_GAP for a, b in pairwise(candidates[: considered + 1])
            )
            open_beams = []
            for rank, (_, _, _, text) in enumerate(candidates[:considered]):
                text.ended = self.is_finished(text.tokens)
                if not text.ended and step < self.max_tokens:
                    open_beams.append(text)
                elif rank < beams:
                    finished.append(text)
            finished = sorted(
                finished, key=lambda t: -self.compute_score(t, len(t.tokens), length_penalty)
            )[:beams]
            open_beams = open_beams[:beams]
            if not open_beams:
                break
            if len(finished) == beams:
                last = self.compute_score(finished[-1], len(finished[-1].tokens), length_penalty)
                length = (
                    self.max_tokens if early_stopping == "never" and length_penalty > 0 else step
                )
                bound = self.compute_score(open_beams[0], length, length_penalty)
                is_uncertain |= early_stopping is not True and abs(bound - last) < TIE_GAP
                if early_stopping is True or bound <= last:
                    break
        scores = [self.compute_score(t, len(t.tokens), length_penalty) for t in finished]
        is_uncertain |= any(a - b < TIE_GAP for a, b in pairwise(scores))
        for text, score in zip(finished, scores, strict=True):
            text.score = score
        return finished[:count], is_uncertain

    def compute_score(self, text: GeneratedText, length: int, length_penalty: float) -> float:
        """Return the score of a hypothesis with length penalty for a given length."""
        return text.score / length**length_penalty


def _gap(x: Sequence[float], place: int) -> float:
    order = sorted(x, reverse=True)
    return order[place] - order[place + 1]


def _spread(x: Sequence[float]) -> float:
    return max(x) - min(x)
