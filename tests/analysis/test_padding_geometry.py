"""Windows, slices, padding ops and quotients along a padded axis: `check` warns if and only if
padding changes a result."""

from itertools import product
from pathlib import Path

import pytest
from support.padding_specs import (
    POOLED_SHAPE,
    SEQUENCE_SHAPE,
    elaborate_padding_spec,
    is_affected_by_padding,
)
from support.parameter_sweeps import sample_sweep

from specc.analysis.padding_check import check_padding

SIDES = (" left", " right", "")
ADDED = (
    "pad(x, before=2)",
    "pad(z, before=2)",
    "pad(z, before=2, value=1.0)",
    "pad(x, before=1, after=1)",
    "pad(z, before=1, after=1)",
    "concat([zeros(shape=[batch, 2, 4]), z], axis=1)",
    "concat([z, zeros(shape=[batch, 2, 4])], axis=1)",
    "concat([ones(shape=[batch, 2, 4]), z], axis=1)",
    "concat([z, ones(shape=[batch, 2, 4])], axis=1)",
    "pad(where(k, x, 1.0), before=2, value=1.0)",
    "pad(where(k, x, -inf), before=2, value=-inf)",
)
WINDOWS = (
    "max_pool({0}, kernel=3, stride=1)",
    "average_pool({0}, kernel=3, stride=1)",
    "{0}[:, 2:]",
    "{0}[:, :-2]",
)
QUOTIENTS = (
    "cumsum(z, axis=1) / cumsum(w, axis=1)",
    "cumsum(z, axis=1) / max(cumsum(w, axis=1), 1.0)",
    "cumsum(z, axis=1) / (cumsum(w, axis=1) + 1e-6)",
    "log(cumsum(w, axis=1)) + x",
    "cumsum(w, axis=1) ** -1.0 + x",
    "x / sqrt(cumsum(z * z, axis=1))",
    "x / sqrt(cumsum(z * z, axis=1) + 1e-6)",
    "where(k, cumsum(z, axis=1) / cumsum(w, axis=1), 0.0)",
    "delay(w, by=1) * x / delay(w, by=1)",
)
FIRST = "k = insert(keep, axis=2); w = cast(k, to=float); z = x * w; "


def compare(body: str, shape: str, side: str, directory: Path) -> tuple[bool, bool]:
    """Return True if `check` warns and whether padding shows."""
    graph = elaborate_padding_spec(directory, FIRST + body, shape, side)
    return bool(check_padding(graph)), is_affected_by_padding(graph, side)


@pytest.mark.parametrize(
    ("added", "side"), sample_sweep(list(product(ADDED, SIDES)), stride=len(SIDES) + 1)
)
def test_windows_after_pad(added: str, side: str, tmp_path: Path) -> None:
    for window in WINDOWS:
        body = f"t = {window.format(added)}; return "
        for result, shape in (("t", SEQUENCE_SHAPE), ("masked_max_pool(t, keep)", POOLED_SHAPE)):
            warned, shown = compare(body + result, shape, side, tmp_path)
            assert warned == shown, window


@pytest.mark.parametrize(("value", "side"), list(product(QUOTIENTS, SIDES)))
def test_quotients_of_zeros(value: str, side: str, tmp_path: Path) -> None:
    body = f"y = {value}; return sum(y * w, axis=1)"
    warned, shown = compare(body, POOLED_SHAPE, side, tmp_path)
    # `is_affected_by_padding` does not try zeros as padded values
    assert warned == (shown or "delay" in value)


@pytest.mark.parametrize(
    ("part", "sides"),
    [
        ("[:, 1:]", (" right",)),
        ("[:, :-1]", (" left",)),
        ("[:, 2:]", (" right",)),
        ("[:, :-2]", (" left",)),
    ],
)
def test_slices_with_their_mask(part: str, sides: tuple[str, ...], tmp_path: Path) -> None:
    for side in SIDES:
        body = f"return masked_mean_pool(x{part}, keep{part})"
        assert compare(body, POOLED_SHAPE, side, tmp_path) == ((side not in sides,) * 2)


@pytest.mark.parametrize("side", SIDES)
def test_merged_batch_and_time_axis(side: str, tmp_path: Path) -> None:
    merged = "m = relu(merge(x, axis=0)); return split(m, into=[batch, n], axis=0)"
    assert compare(merged, SEQUENCE_SHAPE, side, tmp_path) == (False, False)
    summed = merged.replace("relu(merge(x, axis=0))", "cumsum(merge(x, axis=0), axis=0)")
    assert compare(summed, SEQUENCE_SHAPE, side, tmp_path)[0]


@pytest.mark.parametrize(
    "rule", ["softmax(s, axis=-1)", "exp(s) / insert(sum(exp(s), axis=-1), axis=-1)"]
)
@pytest.mark.parametrize("side", sample_sweep([*SIDES]))
def test_custom_normalizers_over_two_layers(rule: str, side: str, tmp_path: Path) -> None:
    layer = "x, _ = attend_by(dot, x, x, x, mask=causal & visible(keep), normalize={}); "
    names = ["mine", "sparsemax", "entmax15"]
    for name in names:
        body = 2 * layer.format(name) + "return x"
        graph = elaborate_padding_spec(
            tmp_path, body, SEQUENCE_SHAPE, side, f"normalizer mine(s) = {rule}"
        )
        assert not check_padding(graph)
        assert not is_affected_by_padding(graph, side)
