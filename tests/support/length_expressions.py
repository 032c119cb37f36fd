"""Random scalar expressions over dynamic lengths, and an independent evaluator for them."""

import math
import random
from dataclasses import dataclass
from typing import Any


@dataclass
class ExpressionSampler:
    """Sample expressions over the lengths `n` and `m` of `x: float[n, m]`."""

    rng: random.Random

    def whole(self, depth: int = 0) -> str:
        """Return a non-negative integer expression; divisors are positive."""
        leaf = self.rng.choice(
            ["n", "m", "length(x, axis=0)", "length(x, axis=-1)", "size(x)", "3"]
        )
        if depth > 1 or self.rng.random() < 0.4:
            return leaf
        a, b = self.whole(depth + 1), self.whole(depth + 1)
        forms = [
            "({a} + {b})",
            "({a} * {b})",
            "({a} // 2)",
            "({a} % 3)",
            "max({a}, {b})",
            "min({a}, {b})",
            "{a} ** 2",
        ]
        return self.rng.choice(forms).format(a=a, b=b)

    def number(self, depth: int = 0) -> str:
        """Return a non-negative float expression."""
        c = self.rng.choice(["0.5", "1.25", "3.0", "7.5"])
        whole = self.whole(1)
        leaf = self.rng.choice([
            "float({w})", "({w} * {c})", "({c} * {w})", "({w} / {c})", "({c} / ({w} + "
                                                                       "1))", "{w} ** 0.5", "sqrt({w})",
            "log({w} + 1)", "exp({w} * -0.25)", "tanh({w} * 0.125)", "reciprocal({w} + "
                                                                     "1)", "float(1 / n)",
            "(n / m) * {c}", "({c} + m / n)", "float((n + m) / (m + 2) + {w})", "float(floor({w} * "
                                                                                "0.4))",
            "float(ceil(sqrt({w})))",
            "float(int({w} * 0.3))", "float(round({w} * 0.3))", "(floor({w} * 0.4) + "
                                                                "n) * {c}", "abs({w} - 4.5)",
        ]).format(w=whole, c=c)  # fmt: skip
        if depth > 1 or self.rng.random() < 0.3:
            return leaf
        a, b = self.number(depth + 1), self.number(depth + 1)
        forms = ["({a} + {b})", "({a} * {b})", "({a} / ({b} + 0.5))", "min({a}, {b})", "max([{a}, {b}, "
                                                                                       "1.5])",
                 "sum([{a}, {b}])", "sqrt({a})", "log({a} + 1.0)", "({a} % 2.5)", "({a} // 2.5)",
                 "abs({a} - {b})"]  # fmt: skip
        return self.rng.choice(forms).format(a=a, b=b)


def evaluate_expression(text: str, n: int, m: int) -> float:
    """Return the value of an expression, computed with Python's own arithmetic."""
    words: dict[str, Any] = {
        "n": n, "m": m, "x": (n, m), "length": lambda x, axis: x[axis], "size": math.prod,
        "reciprocal": lambda a: 1 / a,
        "max": lambda a, *rest: max((a, *rest) if rest else a), "min": lambda a, *rest: min((a, *rest) if rest else a),
        "sum": sum, "float": float, "int": int, "round": round, "abs": abs, **math.__dict__,
    }  # fmt: skip
    return float(eval(text, {"__builtins__": {}}, words))


def write_length_spec(numbers: list[str]) -> str:
    """Return a spec that returns `one` multiplied by each expression, and `one` plus each
    expression.
    """
    results = [f"a{k}: float[k], b{k}: float[k]" for k in range(len(numbers))]
    values = [f"one * ({t}), one + ({t})" for t in numbers]
    return (
        "specc 1\nmodel m\ndims n, m, k\n"
        f"graph g(x: float[n, m], one: float[k]) -> ({', '.join(results)}) {{\n  "
        f"return {', '.join(values)}\n}}\n"
    )
