"""Format one monomial of a symbolic length."""

from collections.abc import Sequence


def format_monomial(monomial: Sequence[tuple[object, int]], c: int) -> str:
    """`-3*batch*seq^2` of factors with their powers and a number."""
    factors = [str(a) if n == 1 else f"{a}^{n}" for a, n in monomial]
    if not factors:
        return str(c)
    sign = {1: "", -1: "-"}.get(c, f"{c}*")
    return sign + "*".join(factors)
