"""Exact quotients cancel, also where the divisor's number stands in the coefficient."""

import pytest

from specc.ir.dim import Dim, DimLimit, exact

D, H = Dim.symbol("d"), Dim.symbol("h")


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (exact(D, 3) * 3, D),
        (3 * exact(D, 3), D),
        (exact(D, 2) + exact(D, 2), D),
        (exact(D, H * 2) * H * 2, D),
        (exact(D, H * 2) * H * 4, D * 2),
        (exact(D, 3) * 3 - D, Dim.of(0)),
        (exact(D, 3) * 6 + H, D * 2 + H),
        (exact(D, 3) * 2, exact(D, 3) + exact(D, 3)),
    ],
)
def test_what_a_quotient_times_its_divisor_is(made: Dim, wanted: Dim) -> None:
    assert made == wanted


def test_a_quotient_that_does_not_cancel_stays() -> None:
    assert str(exact(D, 3) * 2) == "2*(d / 3)"


@pytest.mark.parametrize(
    "make",
    [lambda: Dim.of(2**52) * 2, lambda: Dim.of(2**53), lambda: D * 2**30 * 2**23],
)
def test_numbers_stay_below_2_to_the_53(make: object) -> None:
    with pytest.raises(DimLimit):
        make()  # type: ignore[operator]
