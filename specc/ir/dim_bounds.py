"""Lower bounds of symbolic lengths."""

from collections.abc import Iterator, Mapping

from specc.ir.dim import DIM_FUNCTIONS, Atom, Dim, DimFunction

MAX_BOUND_STEPS = 200


def is_never_negative(length: Dim, least: Mapping[str, int] | None = None) -> bool:
    """Whether a length is surely not below 0 where each symbol is at least 0, or what
    `least` says.

    What is taken away is bounded from above, and what is added from below, until a
    plain sum shows it.
    """
    open_, seen = [length], {length}
    while open_ and len(seen) < MAX_BOUND_STEPS:
        found = open_.pop()
        if _find_lower_bound(found, least or {}) is not None:
            return True
        for simpler in _iterate_relaxed_lengths(found):
            if simpler not in seen:
                seen.add(simpler)
                open_.append(simpler)
    return False


def _find_lower_bound(length: Dim, least: Mapping[str, int]) -> int | None:
    """The least value where that is seen to be 0 or more; None where it is not."""
    total = 0
    for monomial, c in length.terms:
        if monomial and c < 0:
            return None
        for atom, power in monomial:
            if (least_of := _find_factor_bound(atom, least)) is None:
                return None
            c *= least_of**power
        total += c
    return total if total >= 0 else None


def _find_factor_bound(atom: Atom, least: Mapping[str, int]) -> int | None:
    """The least value of a factor where that is seen to be 0 or more."""
    if isinstance(atom, str):
        return max(least.get(atom, 0), 0)
    a, b = (_find_lower_bound(d, least) for d in atom.args)
    match atom.fn:
        case "max":
            return max((n for n in (a, b) if n is not None), default=None)
        case "min":
            return None if a is None or b is None else min(a, b)
        case "%":
            return None if b is None else 0
    if a is None or b is None:
        return None
    # Of a quotient by a number more is known than that it is not below 0.
    return a // b if atom.fn == "//" and atom.args[1].number else 0


def _iterate_relaxed_lengths(length: Dim) -> Iterator[Dim]:
    """The length with one part replaced by a bound of it, so that the whole can only
    become less.
    """
    for monomial, c in length.terms:
        # One part by itself: of a product with others the bound would need theirs too.
        match monomial:
            case ((DimFunction() as part, 1),):
                for bound in _bound_function(part, c):
                    yield length + (bound - Dim({monomial: 1})) * c


def _bound_function(part: DimFunction, count: int) -> tuple[Dim, ...]:
    """What a part never falls below where it is added, or never goes above where it is
    taken away.
    """
    a, b = part.args
    if count > 0:
        return (a, b) if part.fn == "max" else ()
    match part.fn:
        case "min":
            return a, b
        # Of a quotient or a remainder only where both numbers are what they are of rows.
        case "//" | "%" if is_never_negative(a) and is_never_negative(b - 1):
            return (a,) if part.fn == "//" else (a, b - 1)
    return ()


def replace_exact_division(length: Dim) -> Dim:
    """The length with every `a / b` written `a // b`: the same where it has a value."""
    total = Dim.of(0)
    for monomial, c in length.terms:
        term = Dim.of(c)
        for atom, power in monomial:
            if isinstance(atom, str):
                factor = Dim.symbol(atom)
            else:
                fn = "//" if atom.fn == "/" else atom.fn
                factor = DIM_FUNCTIONS[fn](*(replace_exact_division(a) for a in atom.args))
            term = term * factor**power
        total = total + term
    return total
