"""`conv`, `conv_transpose` and pooling match torch, in the reference and in ONNX Runtime: as
built-in functions, and for all window parameters.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from torch import Tensor, nn
from torch.nn import functional

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim

pytestmark = pytest.mark.parity

CONV = {1: functional.conv1d, 2: functional.conv2d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d}
GREATEST = {1: functional.max_pool1d, 2: functional.max_pool2d}
MEAN = {1: functional.avg_pool1d, 2: functional.avg_pool2d}


def meaning(op: Any, axes: int, *given: Tensor | None) -> Tensor:
    """Return the reference's result in torch's layout, channels second."""
    arrays = [None if g is None else g.numpy() for g in given]
    assert arrays[0] is not None
    if axes == 1:
        arrays[0] = arrays[0].swapaxes(1, 2)
    made = specc_numpy.evaluate[op](op, {}, *arrays)
    assert isinstance(made, np.ndarray)
    return torch.as_tensor(np.ascontiguousarray(made.swapaxes(1, 2) if axes == 1 else made))


def near(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("axes", [1, 2])
def test_convolutions(axes: int, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    several = lambda low, high: tuple(rng.randint(low, high) for _ in range(axes))
    kernel, stride, dilation, pad = (several(1, 4), several(1, 3), several(1, 3), several(0, 3))
    groups = rng.choice((1, 2, 4))
    x = torch.randn(2, 4, *several(10, 14), dtype=torch.float64)
    w = torch.randn(8, 4 // groups, *kernel, dtype=torch.float64)
    b = torch.randn(8, dtype=torch.float64) if rng.random() < 0.5 else None
    op = ops.Conv(kernel, stride, dilation, (*pad, *pad), Dim.from_value(groups))
    near(meaning(op, axes, x, w, b), CONV[axes](x, w, b, stride, pad, dilation, groups))
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    cut = tuple(min(p, n) for p, n in zip(pad, spans, strict=True))
    extra = tuple(rng.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    w = torch.randn(4, 8 // groups, *kernel, dtype=torch.float64)
    pads = (*cut, *(c - e for c, e in zip(cut, extra, strict=True)))
    back = ops.ConvTranspose(kernel, stride, dilation, pads, Dim.from_value(groups))
    wanted = TRANSPOSED[axes](x, w, b, stride, cut, extra, groups, dilation)
    near(meaning(back, axes, x, w, b), wanted)


WORDS: dict[str, tuple[str, tuple[int, ...], Callable[[], nn.Module]]] = {
    "stride": ("conv(x, out=6, kernel=3, stride=2, padding=1) @ c", (2, 9, 4),
               lambda: nn.Conv1d(4, 6, 3, 2, 1)),
    "same": ("conv(x, out=6, kernel=4, dilation=3, padding=same) @ c", (2, 9, 4),
             lambda: nn.Conv1d(4, 6, 4, dilation=3, padding="same")),
    "groups": ("conv(x, out=8, kernel=3, groups=4, bias=false) @ c", (2, 9, 4),
               lambda: nn.Conv1d(4, 8, 3, groups=4, bias=False)),
    "picture": ("conv(x, out=6, kernel=[3, 5], stride=[2, 1], padding=[1, 2]) @ c", (2, 4, 9, 8),
                lambda: nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 2))),
    "depthwise": ("conv(x, out=4, kernel=7, groups=4, padding=same) @ c", (2, 4, 9, 8),
                  lambda: nn.Conv2d(4, 4, 7, groups=4, padding="same")),
    "dilated picture": ("conv(x, out=6, kernel=[3, 2], dilation=[1, 3], padding=same) @ c", (2, 4, 9, 8),
                        lambda: nn.Conv2d(4, 6, (3, 2), dilation=(1, 3), padding="same")),
    "transposed": ("conv_transpose(x, out=6, kernel=4, stride=2, padding=1) @ c", (2, 9, 4),
                   lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1)),
    "transposed picture": ("conv_transpose(x, out=6, kernel=3, stride=[2, 3], padding=1, output_padding=1, groups=2) @ c",
                           (2, 4, 5, 6), lambda: nn.ConvTranspose2d(4, 6, 3, (2, 3), 1, 1, 2)),
    **{f"shared out {r} {c}": (f"adaptive_avg_pool2d(x, rows={r}, columns={c})", (2, 4, 9, 8),
                               lambda r=r, c=c: nn.AdaptiveAvgPool2d((r, c)))
       for r, c in ((1, 1), (2, 3), (4, 6), (11, 10))},
    "max": ("max_pool(x, kernel=3, stride=2, padding=1)", (2, 4, 9, 8), lambda: nn.MaxPool2d(3, 2, 1)),
    "max of rows": ("max_pool(x, kernel=2)", (2, 9, 4), lambda: nn.MaxPool1d(2)),
    "max dilated": ("max_pool(x, kernel=3, stride=1, dilation=2, padding=1, ceil_mode=true)", (2, 4, 9, 8),
                    lambda: nn.MaxPool2d(3, 1, 1, 2, ceil_mode=True)),
    **{f"mean {ceil} {counted} {stride}": (
        f"average_pool(x, kernel=[3, 4], stride={stride}, padding=[1, 2], "
        f"count_include_pad={str(counted).lower()}, ceil_mode={str(ceil).lower()})", (2, 4, 9, 8),
        lambda ceil=ceil, counted=counted, stride=stride: nn.AvgPool2d((3, 4), stride, (1, 2), ceil, counted))
       for ceil in (False, True) for counted in (False, True) for stride in (1, 2, 3)},
    **{f"max ceil {k} {s} {p}": (
        f"max_pool(x, kernel={k}, stride={s}, padding={p}, ceil_mode=true)", (2, 4, 9, 10),
        lambda k=k, s=s, p=p: nn.MaxPool2d(k, s, p, ceil_mode=True))
       for k in (2, 3) for s in (1, 2, 3, 4) for p in (0, 1)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", WORDS)
def test_built_in_functions(name: str, tmp_path: Path) -> None:
    text, shape, make = WORDS[name]
    symbols = ["batch", *("nm"[: len(shape) - 2])]
    axes = [symbols[0], "4", *symbols[1:]] if len(shape) == 4 else [*symbols, "4"]
    path = tmp_path / "window.specc"
    path.write_text(
        f"specc 1\nmodel window\ndims {', '.join(symbols)}\n"
        f"graph g(x: float[{', '.join(axes)}]) -> (y: float[...]) {{\n  return {text}\n}}\n"
    )
    spec = elaborate_with_config(str(path))
    weights = sample_spec_weights(spec)
    module = make().double()
    module.load_state_dict(
        {k.removeprefix("c."): torch.as_tensor(v).double() for k, v in weights.items()}
    )
    given: NDArray[np.float32] = np.random.default_rng(3).standard_normal(shape, np.float32)
    x = torch.as_tensor(given).double()
    with torch.no_grad():
        wanted = module(x.transpose(1, 2)).transpose(1, 2) if x.ndim == 3 else module(x)
    inputs = {"x": given}
    assert_arrays_close(run_reference(spec, weights, inputs)["y"], wanted.numpy(), name, 1e-12)
    assert_arrays_close(OrtModel(spec, weights).run(inputs)["y"], wanted.numpy(), name)


def test_weight_normalization(tmp_path: Path) -> None:
    """The positional convolution of wav2vec 2.0: a grouped convolution whose weight is normalized
    over all but its last axis, `g · v / |v|` (arXiv:1602.07868, eq. 2).
    """
    path = tmp_path / "normed.specc"
    path.write_text(
        "specc 1\nmodel normed\ndims batch, n\n"
        "graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {\n"
        "  v = parameter(shape=[8, 4, 5]) @ conv.weight_v\n"
        "  g = parameter(shape=[1, 1, 5]) @ conv.weight_g\n"
        "  length = sqrt(sum(sum(v * v, axis=1), axis=0))\n"
        "  w = g * (v / length)\n"
        "  return conv(x, weight=w, groups=2, padding=same) @ conv\n}\n"
    )
    spec = elaborate_with_config(str(path))
    weights = sample_spec_weights(spec)
    conv = nn.Conv1d(8, 8, 5, padding=2, groups=2)
    normed = nn.utils.parametrizations.weight_norm(conv, dim=2).double()
    normed.load_state_dict(
        {
            "bias": torch.as_tensor(weights["conv.bias"]),
            "parametrizations.weight.original0": torch.as_tensor(weights["conv.weight_g"]),
            "parametrizations.weight.original1": torch.as_tensor(weights["conv.weight_v"]),
        }
    )
    given = np.random.default_rng(1).standard_normal((2, 7, 8), np.float32)
    with torch.no_grad():
        x = torch.as_tensor(given).double().transpose(1, 2)
        wanted = normed(x).transpose(1, 2).numpy()
    inputs = {"x": given}
    assert_arrays_close(run_reference(spec, weights, inputs)["y"], wanted, "y", 1e-12)
    assert_arrays_close(OrtModel(spec, weights).run(inputs)["y"], wanted, "y")
