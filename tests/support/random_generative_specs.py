"""Random generative specs as text, and the facts that tests need about them, such as the default of
`keep`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SPEC_HEAD = """
specc 1
model m
dims batch, src >= 1, seq
bias ban = {bias} * float(i - j + 1)
graph g(ids: int[batch, seq]{inputs}) -> (logits: float[batch, seq, {vocab}]) {{
  x = embedding({ids}, size={vocab}, dim={d}) @ table
{body}
  return {sharp} * linear(x, out={vocab}) @ head
}}
reading {{ {reading} }}
generate text of ids from logits {{ {said} }}
"""

ALPHABET = "abcdefgh"

KEEP_RULES: dict[str, Callable[[int], bool]] = {
    "ids >= 0": lambda t: t >= 0,
    "ids != 3": lambda t: t != 3,
    "ids != 3 & ids >= 0": lambda t: t != 3 and t >= 0,
    "not (ids == 2 | ids < 0)": lambda t: t != 2 and t >= 0,
    "0 <= ids < 4": lambda t: 0 <= t < 4,
    "ids % 3 != 1": lambda t: t % 3 != 1,
}
"""Defaults of `keep`, and the predicate of a token id that they mean."""


@dataclass(frozen=True)
class GenerativeSpec:
    """A spec with `vocab` tokens; `keep` returns whether a token is valid, None without a padding
    mask.
    """

    text: str
    vocab: int
    is_valid_token: Callable[[int], bool] | None
    memory: int | None
    start: int | None
    stop: frozenset[int]

    def get_valid_positions(self, tokens: Sequence[int], begun: bool) -> list[bool]:
        """Return which positions of a sequence are valid; a start token that is not part of the
        prompt is valid.
        """
        said = [self.is_valid_token is None or self.is_valid_token(t) for t in tokens]
        return [True, *said[1:]] if begun else said


def make_generative_spec(seed: int) -> GenerativeSpec:
    """Return a spec with random heads, widths, windows, loops and biases; with or without start
    token, source and padding.
    """
    rng = random.Random(seed)
    keep = rng.choice(list(KEEP_RULES)) if rng.random() < 0.65 else None
    d, vocab = rng.choice([6, 8, 12]), rng.randint(5, 8)
    memory = rng.choice([4, 8]) if rng.random() < 0.5 else None
    inputs = f", keep: keep[batch, seq] = {keep}" if keep else ""
    inputs += f", memory: float[batch, src, {memory}]" if memory else ""
    body = "\n".join(_line(rng, n, d, keep, memory) for n in range(rng.randint(1, 3)))
    stop = frozenset(rng.sample(range(vocab), rng.choice([1, 1, 2])))
    start = rng.randrange(vocab) if memory and rng.random() < 0.6 else None
    said = (
        f"start = {start}  " if start is not None else ""
    ) + f"stop = [{', '.join(map(str, sorted(stop)))}]"
    bias = rng.choice(["-1e30", "-1e9", "-0.5", "0.3"])
    text = SPEC_HEAD.format(
        bias=bias,
        inputs=inputs,
        ids="max(ids, 0)" if keep else "ids",
        vocab=vocab,
        d=d,
        body=body,
        sharp=rng.choice(["3.0", "6.0"]),
        reading='ids = text(characters("letters.vocab"))',
        said=said,
    )
    return GenerativeSpec(text, vocab, KEEP_RULES[keep] if keep else None, memory, start, stop)


def _line(rng: random.Random, n: int, d: int, keep: str | None, memory: int | None) -> str:
    seen = "causal & visible(keep)" if keep else "causal"
    heads = rng.choice([1, 2, 2, 3 if d % 3 == 0 else 1])
    one = "insert(x, axis=1)"
    lines = {
        "attention": f"x = x + (attention(x, heads={heads}, mask={seen}) @ own{n})",
        "narrow": f"x = x + (attention(x, heads={heads}, head_dim=2, mask={seen}) @ thin{n})",
        "window": f"x = x + (attention(x, heads={heads}, mask={seen} & window({rng.randint(2, 4)})) @ near{n})",
        "biased": f"x = x + squeeze(attend({one}, {one}, {one}, mask={seen}, add=ban), axis=1)",
        "feed": f"x = x + tanh(linear(x, out={d}) @ feed{n})",
        "additive": f"x = x + attend_by(additive(5), x, x, x, mask={seen}) @ by{n}",
        "scan": f"s{n} = zeros(shape=[batch, {d}])\n  scan row in x along seq carry s{n} collect y{n}"
        f"{' keep keep' if keep else ''} {{\n    s{n} = tanh(linear(concat([row, s{n}]), out={d}) @ cell{n})\n"
        f"    y{n} = s{n}\n  }}\n  x = x + y{n}",
        "gru": f"h{n} = gru(x, hidden={d}, reset=after, update=new{', keep=keep' if keep else ''}) @ gru{n}\n"
        f"  x = x + h{n}",
    }
    if memory:
        lines["cross"] = f"x = x + (attention(x, memory, heads={heads}, mask=all) @ cross{n})"
    if not keep:
        lines["sum"] = "x = x + tanh(cumsum(x))"
        lines["delay"] = "x = x + delay(x, by=1)"
    if keep:
        lines["positions"] = (
            f"x = x + embedding(min(positions(keep), 9), size=10, dim={d}) @ places{n}"
        )
    return "  " + lines[rng.choice(list(lines))]
