"""Output lengths and padding masks of sliding windows, against counting."""

from itertools import product

import numpy as np
import pytest

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim

N = Dim.symbol("n")
KERNELS = list(product((1, 2, 3, 5), (1, 2, 3), (1, 2)))
PADDINGS = ((0, 0), (1, 0), (0, 2), (1, 1), (2, 2), (4, 3))


def make_conv(k: int, s: int, d: int, before: int, behind: int) -> ops.Conv:
    return ops.Conv((k,), (s,), (d,), (before, behind))


def count_windows(window: tuple[int, ...], rows: int) -> int:
    """Count the windows that fit into the padded positions."""
    k, s, d, before, behind = window
    padded = rows + before + behind
    return sum(at + d * (k - 1) < padded for at in range(0, padded, s))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_output_length(kernel: tuple[int, ...]) -> None:
    for window in ((*kernel, *padding) for padding in PADDINGS):
        op = make_conv(*window)
        made = op.compute_output_length(N, 0)
        for rows in range(30):
            counted = count_windows(window, rows)
            if counted:
                assert made.evaluate({"n": rows}) == counted, (window, rows)
            # A non-empty sequence that is too short for one window is an error, not an empty
            # result.
            refused = (op.build_length_constraint(Dim.from_value(rows), 0).number or 0) < 0
            is_short = (rows > 0 and not counted) or made.evaluate({"n": rows}) < 0
            assert refused == is_short, (window, rows)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_mask_after_a_window(kernel: tuple[int, ...], side: str) -> None:
    for padding in PADDINGS:
        check_padding_mask((*kernel, *padding), side)


def check_padding_mask(window: tuple[int, ...], side: str) -> None:
    """The mask of `there` positions, padded by any number on the right, or by whole strides on the
    left."""
    op = make_conv(*window)
    keep = ops.DownsamplePaddingMask(op.stride[0], op.get_output_lag(0))
    for there in range(1, 14):
        if not count_windows(window, there):
            continue
        for more in range(0, 9, 1 if side == "right" else op.stride[0]):
            given = np.ones((1, there + more), bool)
            given[:, slice(there, None) if side == "right" else slice(0, more)] = False
            made = specc_numpy.evaluate[keep](keep, {}, given)
            assert isinstance(made, np.ndarray)
            flags = made[0] if side == "right" else made[0][::-1]
            assert flags.sum() == count_windows(window, there), (window, there, more)
            assert flags[: count_windows(window, there)].all(), (window, there, more)


def test_composed_strides() -> None:
    """The seven convolutions of wav2vec 2.0 equal one with stride 320 and a receptive field of
    400."""
    length = N
    for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True):
        length = make_conv(kernel, stride, 1, 0, 0).compute_output_length(length, 0)
    assert length == make_conv(400, 320, 1, 0, 0).compute_output_length(N, 0)
    rows = 1000
    for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True):
        rows = (rows - kernel) // stride + 1
    assert length.evaluate({"n": 1000}) == rows


def test_conv_inverts_conv_transpose_lengths() -> None:
    for rows, k, s, d, cut in product(range(1, 12), (2, 3, 4), (1, 2, 3), (1, 2), (0, 1)):
        if d * (k - 1) < 2 * cut:
            continue
        made = ops.ConvTranspose((k,), (s,), (d,), (cut, cut)).compute_output_length(
            Dim.from_value(rows), 0
        )
        assert make_conv(k, s, d, cut, cut).compute_output_length(made, 0) == rows, (k, s, d, cut)
