"""Padding warnings agree with results computed for padding on both sides with other values."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config, run_reference, sample_spec_weights
from support.padding_specs import (
    POOLED_SHAPE,
    SEQUENCE_SHAPE,
    elaborate_padding_spec,
    is_affected_by_padding,
)

from specc.analysis.padding_check import check_padding

HIDDEN = 's = einsum("b q d, b k d -> b q k", x, x); e = where({mask}, s, {low}); '
STABLE = "w = exp(e - insert(max(e, axis=2), axis=2)); w = w / insert(sum(w, axis=2), axis=2); "
CAUSAL = "insert(keep, axis=1) & (insert(range(n), axis=0) <= insert(range(n), axis=1))"
SCAN = (
    "h = zeros(shape=[batch, 4]); scan row in x along n carry h keep {keep} {{ h = "
    "tanh(h + row) }}; return h"
)


CASES = [
    ("return last_token(x, keep)", POOLED_SHAPE, "", True),
    ("return last_token(x, other)", POOLED_SHAPE, "", False),
    (
        "y, _ = attend_by(dot, x, x, x, mask=causal & visible(keep), "
        "normalize=sparsemax); return last_token(y, keep)",
        POOLED_SHAPE,
        "",
        True,
    ),
    ("return masked_max_pool(x, keep)", POOLED_SHAPE, "", True),
    (SCAN.format(keep="keep"), POOLED_SHAPE, "", True),
    (SCAN.format(keep="keep & other"), POOLED_SHAPE, "", True),
    (SCAN.format(keep="other"), POOLED_SHAPE, "", False),
    (SCAN.format(keep="other"), POOLED_SHAPE, " right", False),
    (
        HIDDEN.format(mask="insert(keep, axis=1)", low="-1e30") + STABLE + "return matmul(w, x)",
        SEQUENCE_SHAPE,
        "",
        True,
    ),
    (
        HIDDEN.format(mask=CAUSAL, low="-1e30") + STABLE + "return matmul(w, x)",
        SEQUENCE_SHAPE,
        "",
        True,
    ),
    (
        HIDDEN.format(mask=CAUSAL, low="-1e30") + "return matmul(softmax(e, axis=2), x)",
        SEQUENCE_SHAPE,
        "",
        True,
    ),
    (
        HIDDEN.format(mask="insert(keep & other, axis=1)", low="-1e30")
        + STABLE
        + "return matmul(w, x)",
        SEQUENCE_SHAPE,
        "",
        None,
    ),
    (
        HIDDEN.format(mask="insert(keep, axis=1)", low="-10.0") + STABLE + "return matmul(w, x)",
        SEQUENCE_SHAPE,
        "",
        False,
    ),
    (
        HIDDEN.format(mask=CAUSAL, low="-inf")
        + STABLE
        + "return masked_mean_pool(matmul(w, x), keep)",
        POOLED_SHAPE,
        "",
        False,
    ),
    (
        HIDDEN.format(mask=CAUSAL, low="-1e30")
        + STABLE
        + "return masked_mean_pool(matmul(w, x), keep)",
        POOLED_SHAPE,
        "",
        True,
    ),
    (
        "y, _ = attend(x, x, x, mask=strided & visible(keep)); return y",
        SEQUENCE_SHAPE,
        " left",
        False,
    ),
    (
        "y, _ = attend(x, x, x, mask=shifted & visible(keep)); return y",
        SEQUENCE_SHAPE,
        " left",
        True,
    ),
    (
        "y, _ = attend(x, x, x, mask=chunked(2) & visible(keep)); return y",
        SEQUENCE_SHAPE,
        " left",
        False,
    ),
    (
        "at = 2 * positions(x) - positions(x); return x * insert(float(at), axis=1)",
        SEQUENCE_SHAPE,
        " left",
        False,
    ),
    (
        "at = 2 * positions(x) - positions(x) * 2; return x + insert(float(at), axis=1)",
        SEQUENCE_SHAPE,
        " left",
        True,
    ),
    ("return x * insert(float(positions(x)), axis=1)", SEQUENCE_SHAPE, " right", True),
    (
        "return x * insert(insert(float(argmax(x[:, :, 0], axis=1)), axis=1), axis=2)",
        SEQUENCE_SHAPE,
        "",
        False,
    ),
]


@pytest.mark.parametrize(("body", "shape", "side", "clean"), CASES)
def test_warnings_agree_with_results(
    body: str, shape: str, side: str, clean: bool | None, tmp_path: Path
) -> None:
    """`clean` is None if the warning is right but this sample does not show it."""
    graph = elaborate_padding_spec(tmp_path, body, shape, side)
    assert (check_padding(graph) == []) == bool(clean)
    assert clean is None or is_affected_by_padding(graph, side) != clean


@pytest.mark.parametrize(
    ("window", "own", "reads_ends"),
    [
        ("kernel=2, stride=2", lambda n: 2 * n, False),
        ("kernel=4, stride=2, padding=1", lambda n: 2 * n, True),
        ("kernel=3, stride=2", lambda n: 2 * n + 1, True),
        ("kernel=3, stride=3, padding=1, output_padding=1", lambda n: 3 * n - 1, False),
        ("kernel=3, dilation=2", lambda n: n + 4, True),
        ("kernel=3, padding=[0, 2]", lambda n: n, False),
    ],
)
def test_transposed_conv_of_zeros_has_no_warning(
    window: str, own: Callable[[int], int], reads_ends: bool, tmp_path: Path
) -> None:
    """Without the zeros that the warning suggests, a transposed convolution that
    reads positions beyond the ends has a warning and another result.
    """
    path = tmp_path / "m.specc"
    text = (
        "specc 1\nmodel m\ndims b, n\n"
        "graph g(x: float[b, n, 4], keep: keep[b, n] right) -> (y: float[b, _, 3]) {\n"
        f"  return conv_transpose(x, out=3, {window}) @ c\n}}\n"
    )
    fix = "where(insert(keep, axis=2), x, 0.0)"
    masked = text.replace("(x, out", f"({fix}, out")
    for is_masked, written in ((False, text), (True, masked)):
        path.write_text(written)
        spec = elaborate_with_config(str(path))
        warnings = check_padding(spec.model.graph)
        weights, rng = sample_spec_weights(spec), np.random.default_rng(0)
        x, keep = rng.normal(size=(1, 5, 4)), np.arange(5)[None] < 3
        given = {n: v for n, v in (("x", x), ("keep", keep)) if n in spec.model.graph.inputs}
        padded = run_reference(spec, weights, given)["y"]
        wanted = run_reference(spec, weights, {n: v[:, :3] for n, v in given.items()})["y"]
        assert wanted.shape[1] == own(3) < padded.shape[1]
        is_equal = np.allclose(padded[:, : own(3)], wanted, atol=1e-12)
        assert is_equal == (not warnings) == (is_masked or not reads_ends)
        if warnings:
            assert fix in warnings[0].helps[0]
