"""Random specs with symbolic lengths: equations, powers, quotients, and operations whose
shapes depend on them.
"""

import random

LENGTHS = (1, 2, 3, 4, 7, 64, 1000, 2**31, 2**40, 2**52)
POWERS = (2, 2, 3, 4, 8, 16, 40, 64)
NAMES = ("a", "b", "n")

STATEMENTS = (
    "pad(x, after={0}, axis=0)", "x[:{0}]", "x[{0}:]", "x[{0}] * x",
    "concat([x, x, x], axis=0)", "concat([x, y], axis=0)", "x * ({0})",
    "x + sum(x) / ({0})", "x * float(range({0}))[0]", "x + sum(float(range({0})))",
    "merge(expand(x[none, :], axis=0, length={0}), axis=0)",
    "merge(x[:, none] * y[none, :], axis=0)", "merge(linear(x[:, none], out=k) @ m{2}, axis=0)",
    "merge(conv(x[none, :, none], out=2, kernel=3, stride=2)[0] @ c{2}, axis=0)",
)  # fmt: skip


def sample_length(rng: random.Random, names: tuple[str, ...], depth: int) -> str:
    """Return an expression over lengths."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(names) if rng.random() < 0.75 else str(rng.choice(LENGTHS))
    op = rng.choice(("+", "-", "*", "*", "//", "%", "**", "min", "max", "/"))
    left = sample_length(rng, names, depth - 1)
    if op == "**":
        return f"({left}) ** {rng.choice(POWERS)}"
    right = sample_length(rng, names, depth - 1)
    return f"{op}({left}, {right})" if op in ("min", "max") else f"({left}) {op} ({right})"


def make_length_spec(seed: int) -> str:
    """Return a spec of one graph; some specs are wrong, and `check` must report the error."""
    rng = random.Random(seed)

    def length() -> str:
        return sample_length(rng, (*NAMES, "k"), rng.choice((1, 2, 3)))

    where = ""
    if rng.random() < 0.6:
        known = rng.sample(NAMES, rng.choice((1, 1, 2)))
        free = tuple(n for n in NAMES if n not in known or rng.random() < 0.1)
        equations = [f"{n} = {sample_length(rng, free, rng.choice((1, 2, 3)))}" for n in known]  # fmt: skip
        where = f" where {', '.join(equations)}"
    axis = rng.choice(("a", "a", "a", length()))
    lines = [
        f"  x = {rng.choice(STATEMENTS).format(length(), length(), number)}\n"
        for number in range(rng.choice((0, 1, 2)))
    ]
    return (
        f"specc 1\nmodel m\nconfig {{ k: int = {rng.choice((2, 3, 7, 100, 2**31))} }}\n"
        f"dims a, b, n\ngraph g(x: float[{axis}], y: float[b], w: float[n]) -> (z: float)"
        f"{where} {{\n{''.join(lines)}  return sum(x) + sum(y) + sum(w)\n}}\n"
    )
