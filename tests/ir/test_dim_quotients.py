"""Exact quotients of dims cancel, also against a coefficient."""

import pytest

from specc.ir.dim import Dim, DimLimitError, divide_dims_exactly

D, H = Dim.symbol("d"), Dim.symbol("h")


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (divide_dims_exactly(D, 3) * 3, D),
        (3 * divide_dims_exactly(D, 3), D),
        (divide_dims_exactly(D, 2) + divide_dims_exactly(D, 2), D),
        (divide_dims_exactly(D, H * 2) * H * 2, D),
        (divide_dims_exactly(D, H * 2) * H * 4, D * 2),
        (divide_dims_exactly(D, 3) * 3 - D, Dim.from_value(0)),
        (divide_dims_exactly(D, 3) * 6 + H, D * 2 + H),
        (divide_dims_exactly(D, 3) * 2, divide_dims_exactly(D, 3) + divide_dims_exactly(D, 3)),
    ],
)
def test_quotient_times_divisor(made: Dim, wanted: Dim) -> None:
    assert made == wanted


def test_quotient_that_does_not_cancel() -> None:
    assert str(divide_dims_exactly(D, 3) * 2) == "2*(d / 3)"


@pytest.mark.parametrize(
    "make",
    [lambda: Dim.from_value(2**52) * 2, lambda: Dim.from_value(2**53), lambda: D * 2**30 * 2**23],
)
def test_coefficient_limit(make: object) -> None:
    with pytest.raises(DimLimitError):
        make()  # type: ignore[operator]
