"""Symbolic dimensions (`dim_param` in ONNX): integer polynomials over symbols, in normal form.

Two dims are equal if and only if their normal forms are equal. Terms may contain opaque functions:
the exact quotient `a / b` (without remainder), `a // b`, `a % b`, `min` and `max`. Different
symbols are never equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import TypeAlias, Union

from specc.diagnostics.diagnostic import Origin
from specc.diagnostics.immutable_dataclass import immutable_dataclass

MAX_DIM_INTEGER = 2**53
"""Maximum integer. Float64 (and JavaScript) represents all integers up to 2^53 exactly."""
MAX_MONOMIALS = 64
TOO_LARGE = "a length of 2^53 or more; the limit is 2^53 - 1"


class DimError(Exception):
    """The error for an undefined operation on dimensions, such as a division by 0."""


class DimLimitError(DimError):
    """The error for a dimension with a constant of 2^53 or more, or with more than 64 terms."""


@immutable_dataclass
class DimFunction:
    """An opaque function `fn` of two dims: `/`, `//`, `%`, `min` or `max`."""

    fn: str
    args: tuple["Dim", "Dim"]

    def __str__(self) -> str:
        a, b = self.args
        if self.fn in ("min", "max"):
            return f"{self.fn}({a}, {b})"
        return f"({_format_infix_operand(a)} {self.fn} {_format_infix_operand(b)})"


Atom: TypeAlias = str | DimFunction
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
DimLike: TypeAlias = Union["Dim", int]


class Dim:
    """A dimension, such as `Dim.from_value(3)` or `Dim.symbol("batch") * 2`. `number` is the size
    of a static dimension, or None for a symbolic dimension. `origin` is the location where the user
    set the size. The origin is shown in messages and ignored in comparisons.
    """

    __slots__ = ("_hash", "_symbols", "number", "origin", "terms")

    def __init__(self, terms: Mapping[Monomial, int], origin: Origin | None = None) -> None:
        # drop terms with coefficient 0 and sort all other terms: equal dims have equal terms
        kept_terms = [(m, c) for m, c in terms.items() if c]
        if len(kept_terms) > 1:
            if len(kept_terms) > MAX_MONOMIALS:
                size = f"{len(kept_terms)} terms"
                raise DimLimitError(f"a length of {size}; the limit is {MAX_MONOMIALS}")
            kept_terms.sort(key=_get_monomial_sort_key)
        for _, c in kept_terms:
            if abs(c) >= MAX_DIM_INTEGER:
                raise DimLimitError(TOO_LARGE)
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(kept_terms)
        is_constant = len(kept_terms) == 1 and not kept_terms[0][0]
        self.number: int | None = kept_terms[0][1] if is_constant else None if kept_terms else 0
        self.origin = origin
        self._hash = hash(self.terms)
        self._symbols: frozenset[str] | None = None

    @classmethod
    def from_value(cls, value: DimLike) -> "Dim":
        """Convert an integer to a dim. Return a dim unchanged."""
        if isinstance(value, Dim):
            return value
        return _make_constant_dim(value) if type(value) is int else cls({(): value})

    @classmethod
    def symbol(cls, name: str, origin: Origin | None = None) -> "Dim":
        """Return the symbolic dimension `name`."""
        return cls({((name, 1),): 1}, origin)

    def with_origin(self, origin: Origin | None) -> "Dim":
        """Return a copy of the dimension with another origin."""
        if origin is None:
            return self
        copy = object.__new__(Dim)
        copy.terms, copy.number = self.terms, self.number
        copy.origin, copy._hash, copy._symbols = origin, self._hash, self._symbols
        return copy

    @property
    def name(self) -> str | None:
        """The name of the symbol if the dimension is a single symbol, otherwise None."""
        match self.terms:
            case (((((str() as name), 1),), 1),):
                return name
        return None

    @property
    def is_negative(self) -> bool:
        """True if the dimension is a negative integer."""
        return self.number is not None and self.number < 0

    def symbols(self) -> frozenset[str]:
        """Return all symbols of the dimension, including symbols inside opaque functions."""
        if self._symbols is None:
            names = {a for monomial, _ in self.terms for a, _ in monomial if isinstance(a, str)}
            inner = (a.symbols() for part in self.iterate_opaque_functions() for a in part.args)
            self._symbols = frozenset(names).union(*inner)
        return self._symbols

    def iterate_opaque_functions(self) -> Iterator[DimFunction]:
        """Yield the opaque functions in the terms, without nested opaque functions."""
        atoms = (atom for monomial, _ in self.terms for atom, _ in monomial)
        return (atom for atom in atoms if isinstance(atom, DimFunction))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self.terms == other.terms
        return isinstance(other, int) and self.number == other

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: DimLike) -> "Dim":
        a, b = self.number, (other if isinstance(other, int) else other.number)
        if a is not None and b is not None:
            return _make_constant_dim(a + b)
        terms = dict(self.terms)
        for monomial, c in Dim.from_value(other).terms:
            terms[monomial] = terms.get(monomial, 0) + c
        return _normalize_sum(terms)

    __radd__ = __add__

    def __neg__(self) -> "Dim":
        return Dim({m: -c for m, c in self.terms})

    def __sub__(self, other: DimLike) -> "Dim":
        return self + (-Dim.from_value(other))

    def __rsub__(self, other: DimLike) -> "Dim":
        return Dim.from_value(other) - self

    def __mul__(self, other: DimLike) -> "Dim":
        other = Dim.from_value(other)
        if self.number is not None and other.number is not None:
            return _make_constant_dim(self.number * other.number)
        terms: dict[Monomial, int] = {}
        for left, c in self.terms:
            for right, d in other.terms:
                for monomial, e in _multiply_monomials(left, right):
                    terms[monomial] = terms.get(monomial, 0) + c * d * e
        return _normalize_sum(terms)

    __rmul__ = __mul__

    def __pow__(self, power: int) -> "Dim":
        return multiply_dims([self] * power)

    def substitute(self, values: Mapping[str, DimLike]) -> "Dim":
        """Replace symbols with integers or dimensions."""
        if not self.symbols() & values.keys():
            return self

        def substitute_atom(atom: Atom) -> Dim:
            if isinstance(atom, str):
                return Dim.from_value(values[atom]) if atom in values else Dim.symbol(atom)
            # recompute a quotient, because substitution can make it an integer or leave a remainder
            return DIM_FUNCTIONS[atom.fn](*(a.substitute(values) for a in atom.args))

        return self.map_atoms(substitute_atom).with_origin(self.origin)

    def map_atoms(self, function: Callable[[Atom], "Dim"]) -> "Dim":
        """Replace each symbol and opaque function with the dimension that `function` returns."""
        total = Dim.from_value(0)
        for monomial, c in self.terms:
            factor = Dim.from_value(c)
            for atom, power in monomial:
                factor = factor * function(atom) ** power
            total = total + factor
        return total

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Compute the size for the symbol sizes `values`. Raise DimError for an undefined size."""
        if (name := self.name) is not None and name in values:
            return values[name]
        try:
            return self._evaluate_terms(values)
        except KeyError:  # a symbol without a value may cancel out
            number = self.substitute(values).number
        if number is None:
            missing = ", ".join(sorted(self.symbols() - values.keys()))
            raise DimError(f"`{self}` is unknown: {missing} has no value")
        return number

    def _evaluate_terms(self, values: Mapping[str, int]) -> int:
        """Compute the size for the symbol sizes `values`. Raise KeyError for a missing symbol."""
        total = 0
        for monomial, product in self.terms:
            for atom, power in monomial:
                if isinstance(atom, str):
                    product *= values[atom] ** power
                    continue
                p, q = (a._evaluate_terms(values) for a in atom.args)
                is_fast = atom.fn == "//" and q > 0
                value = p // q if is_fast else DIM_FUNCTIONS[atom.fn](p, q).number
                product *= (value or 0) ** power
            total += product
            if max(abs(product), abs(total)) >= MAX_DIM_INTEGER:
                raise DimLimitError(TOO_LARGE)
        return total

    def __str__(self) -> str:
        text = " + ".join(_format_monomial(m, c) for m, c in self.terms)
        return text.replace("+ -", "- ") or "0"

    def __repr__(self) -> str:
        return f"Dim({self})"


@lru_cache(maxsize=4096)  # caching is effective, because only a few distinct integers are converted
def _make_constant_dim(value: int) -> Dim:
    return Dim({(): value})


def divide_dims_exactly(p: DimLike, q: DimLike) -> Dim:
    """Return the exact quotient `p / q`. Raise DimError if the division has a remainder."""
    p, q = Dim.from_value(p), Dim.from_value(q)
    # try exact division first: `(a * b) / b` becomes `a`
    if (quotient := _try_divide(p, q)) is not None:
        return quotient
    if q == 0:
        raise DimError(f"{p} / 0 has no value")
    if p.number is not None and q.number is not None:
        raise DimError(f"{p} / {q} is not an integer")
    return Dim({((DimFunction("/", (p, q)), 1),): 1})


def floor_divide_dims(p: DimLike, q: DimLike) -> Dim:
    """Return the quotient `p // q`, rounded down."""
    p, number = Dim.from_value(p), Dim.from_value(q).number
    for monomial, c in p.terms if number and number > 0 else ():
        match monomial:
            # `(x // m + r) // n` becomes `(x + r · m) // (m · n)`: the size after several strides
            # has a unique normal form
            case ((DimFunction("//", (x, m)), 1),) if c == 1 and (m.number or 0) > 0:
                rest = p - Dim({monomial: 1})
                return floor_divide_dims(x + rest * m, m * q)
    # `(3 x + 4) // 6` becomes `(x + 1) // 2`: a common factor of the non-constant terms is
    # cancelled unless the constant is negative, because rounding would differ
    factors = (c for monomial, c in p.terms if monomial)
    if number and number > 0 and (divisor := gcd(number, *factors)) > 1:
        return floor_divide_dims(Dim({m: c // divisor for m, c in p.terms}), number // divisor)
    return _make_function_dim("//", lambda a, b: a // b, p, q)


def mod_dims(p: DimLike, q: DimLike) -> Dim:
    """Return the remainder `p % q`, which has the sign of `q`."""
    return _make_function_dim("%", lambda a, b: a % b, p, q)


def min_dims(p: DimLike, q: DimLike) -> Dim:
    """Return `min(p, q)`."""
    return _make_function_dim("min", min, p, q)


def max_dims(p: DimLike, q: DimLike) -> Dim:
    """Return `max(p, q)`."""
    return _make_function_dim("max", max, p, q)


DIM_FUNCTIONS: Mapping[str, Callable[[DimLike, DimLike], Dim]] = {
    "/": divide_dims_exactly,
    "//": floor_divide_dims,
    "%": mod_dims,
    "min": min_dims,
    "max": max_dims,
}


def multiply_dims(dims: Iterable[DimLike]) -> Dim:
    """Return the product of dimensions, or 1 if `dims` is empty."""
    return prod((Dim.from_value(d) for d in dims), start=Dim.from_value(1))


def sum_dims(dims: Iterable[DimLike]) -> Dim:
    """Return the sum of dimensions, or 0 if `dims` is empty."""
    return sum((Dim.from_value(d) for d in dims), start=Dim.from_value(0))


def _make_function_dim(fn: str, evaluate: Callable[[int, int], int], p: DimLike, q: DimLike) -> Dim:
    """Return the dim `fn(p, q)`, simplified to a constant, to a quotient or to a smaller function
    where possible. `evaluate` computes `fn` of two integers. Raise DimError for a division by 0.
    """
    p, q = Dim.from_value(p), Dim.from_value(q)
    a, b = p.number, q.number
    is_division = fn in ("//", "%")
    if b == 0 and is_division:
        raise DimError(f"{p} {fn} 0 has no value")
    if a is not None and b is not None:
        return Dim.from_value(evaluate(a, b))
    if is_division:
        if (quotient := _try_divide(p, q)) is not None:
            return quotient if fn == "//" else Dim.from_value(0)
        if b is not None and b > 1:
            quotient = Dim({m: c // b for m, c in p.terms})
            if quotient != 0:
                # `(2n + 3) // 2` becomes `n + 1 + 1 // 2`: all coefficients of the remaining
                # dividend are below the divisor 2
                remainder = _make_function_dim(fn, evaluate, p - quotient * b, q)
                return quotient + remainder if fn == "//" else remainder
    elif p == q:
        return p
    # sort the arguments of `min` and `max`, because equal functions must compare equal
    elif str(q) < str(p):
        p, q = q, p
    return Dim({((DimFunction(fn, (p, q)), 1),): 1})


def _try_divide(p: Dim, q: Dim) -> Dim | None:
    """Return `p / q` if `q` is `p` or a monomial that divides every term of `p`, otherwise None."""
    if p == q and q.terms:
        return Dim.from_value(1)
    if len(q.terms) != 1:
        return None
    ((divisor, d),) = q.terms
    terms: dict[Monomial, int] = {}
    for monomial, c in p.terms:
        rest = _divide_monomial(monomial, divisor)
        if rest is None or c % d:
            return None
        terms[rest] = c // d
    return Dim(terms)


def _divide_monomial(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Return `monomial / divisor`, or None if `monomial` lacks a factor of `divisor`."""
    powers = dict(monomial)
    for atom, power in divisor:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((a, powers[a]) for a, _ in monomial if powers[a])


def _multiply_monomials(left: Monomial, right: Monomial) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms of the product of two monomials, such as `a` for `b * (a / b)`."""
    if not left or not right:
        return ((left or right, 1),)
    powers = dict(left)
    for atom, n in right:
        powers[atom] = powers.get(atom, 0) + n
    monomial = tuple(sorted(powers.items(), key=lambda p: (type(p[0]) is DimFunction, str(p[0]))))
    cancelled = _cancel_quotient(monomial, 1)
    return ((monomial, 1),) if cancelled is None else cancelled.terms


def _cancel_quotient(monomial: Monomial, c: int) -> Dim | None:
    """Cancel an exact quotient `p / q` in a term. Return None if no quotient cancels."""
    # floor divisions do not cancel: `b * (a // b)` is not `a`
    for atom, _ in monomial:
        if isinstance(atom, DimFunction) and atom.fn == "/":
            p, q = atom.args
            rest = _divide_monomial(monomial, ((atom, 1),))
            if rest is not None and (quotient := _try_divide(Dim({rest: c}), q)) is not None:
                return quotient * p
    return None


def _normalize_sum(terms: dict[Monomial, int]) -> Dim:
    """Return the sum of `terms`. Terms such as `3 · (a / 3)` are simplified to `a`."""
    for monomial, c in terms.items():
        if abs(c) > 1 and (cancelled := _cancel_quotient(monomial, c)) is not None:
            return _normalize_sum({m: n for m, n in terms.items() if m != monomial}) + cancelled
    return Dim(terms)


def _get_monomial_sort_key(term: tuple[Monomial, int]) -> tuple[int, str]:
    """Return a key that sorts terms by descending degree, then by name."""
    monomial, _ = term
    return -sum(n for _, n in monomial), "*".join(str(a) for a, n in monomial for _ in range(n))


def _format_infix_operand(dim: Dim) -> str:
    """Format a dim as an operand of an infix operator, in parentheses if necessary."""
    return str(dim) if dim.number is not None or dim.name else f"({dim})"


def _format_monomial(monomial: Monomial, c: int) -> str:
    """Format a term of a dimension, as in `-3*batch*seq^2`."""
    factors = [str(a) if n == 1 else f"{a}^{n}" for a, n in monomial]
    if not factors:
        return str(c)
    return {1: "", -1: "-"}.get(c, f"{c}*") + "*".join(factors)
