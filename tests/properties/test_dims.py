"""Lengths form a ring, agree with Python's integers, and survive a round trip through text."""

from hypothesis import assume, given
from hypothesis import strategies as st

from specc.ir.dim import (
    Dim,
    DimError,
    divide_dims_exactly,
    floor_divide_dims,
    max_dims,
    min_dims,
    mod_dims,
)
from specc.ir.ir_printer_and_lexer import parse_dim

NAMES = ("a", "b", "seq")
small = st.integers(-6, 6)
numbers = st.fixed_dictionaries({n: st.integers(1, 9) for n in NAMES})
plain = st.recursive(
    st.one_of(small.map(Dim.from_value), st.sampled_from(NAMES).map(Dim.symbol)),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(
        lambda t: {"+": t[1] + t[2], "-": t[1] - t[2], "*": t[1] * t[2]}[t[0]]
    ),
    max_leaves=6,
)
PARTS = {"floor": floor_divide_dims, "remainder": mod_dims, "min": min_dims, "max": max_dims}


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """Return polynomials that contain quotients, remainders, minima and maxima."""
    dim = draw(plain)
    for _ in range(draw(st.integers(0, 2))):
        other = draw(plain)
        fn = draw(st.sampled_from(["floor", "remainder", "min", "max", "exact", "none"]))
        try:
            if fn == "exact":
                dim = divide_dims_exactly(dim, other) + draw(plain)
            elif fn != "none":
                dim = PARTS[fn](dim, other) * draw(plain)
        except DimError:
            assume(False)
    return dim


@given(plain, plain, plain)
def test_lengths_form_a_commutative_ring(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert a * 1 == a + 0 == a
    assert hash(a + b) == hash(b + a)


@given(plain, plain, numbers)
def test_values_agree_with_python_integers(a: Dim, b: Dim, at: dict[str, int]) -> None:
    x, y = a.evaluate(at), b.evaluate(at)
    assert (a + b).evaluate(at) == x + y
    assert (a - b).evaluate(at) == x - y
    assert (a * b).evaluate(at) == x * y
    assert (a**2).evaluate(at) == x * x
    assert min_dims(a, b).evaluate(at) == min(x, y)
    assert max_dims(a, b).evaluate(at) == max(x, y)
    assume(b.number != 0 and y != 0)
    assert floor_divide_dims(a, b).evaluate(at) == x // y
    assert mod_dims(a, b).evaluate(at) == x % y
    assert divide_dims_exactly(a * b, b).evaluate(at) == x


@given(dims(), numbers)
def test_stepwise_and_simultaneous_substitution_agree(dim: Dim, at: dict[str, int]) -> None:
    def value(step: dict[str, Dim | int]) -> int | None:
        try:
            return dim.substitute(step).evaluate(at)
        except DimError:
            return None

    first = value({})
    assume(first is not None)
    assert value({"a": at["a"]}) == first
    assert value({"a": Dim.symbol("b") * 0 + at["a"]}) == first


@given(dims())
def test_a_length_equals_its_parsed_text(dim: Dim) -> None:
    assert parse_dim(str(dim)) == dim


@given(st.text("ab+-*/%^(),min max.0123456789 ", max_size=40))
def test_invalid_text_raises_a_dim_error(text: str) -> None:
    try:
        dim = parse_dim(text)
    except DimError:
        return
    assert parse_dim(str(dim)) == dim


def test_a_divisible_length_has_an_exact_quotient() -> None:
    """Every second of 2 * n positions gives n positions."""
    n = Dim.symbol("n")
    assert floor_divide_dims(n * 2 + 1, 2) == n
    assert floor_divide_dims(n * 6 - 1, 3) == n * 2 - 1
    assert floor_divide_dims(n * 3 + 5, 2) == n + 2 + floor_divide_dims(n + 1, 2)
    assert mod_dims(n * 4 + 7, 4) == 3
    assert mod_dims(n * 3 + 5, 2) == mod_dims(n + 1, 2)
