"""`streaming_ctc` matches a PyTorch implementation with explicit buffers, chunk by chunk, and
`torch.nn.functional` on the whole input.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_configs import SMALL_CONFIGS
from torch import Tensor
from torch.nn import functional as f

import specc

pytestmark = pytest.mark.parity

SIZES = SMALL_CONFIGS["streaming_ctc"]
LENGTHS = (24, 9, 17)


class Heard:
    """The published pieces with what each keeps: the last inputs of a convolution, the
    last keys and values of an attention.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.w = weights
        self.kept: dict[str, Tensor] = {}

    def linear(self, x: Tensor, at: str) -> Tensor:
        return f.linear(x, self.w[f"{at}.weight"], self.w.get(f"{at}.bias"))

    def norm(self, x: Tensor, at: str) -> Tensor:
        weight, bias = self.w[f"{at}.weight"], self.w[f"{at}.bias"]
        return f.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def conv(self, x: Tensor, there: Tensor, at: str, stride: int, groups: int) -> Tensor:
        weight = self.w[f"{at}.weight"]
        x = (x * there[..., None]).transpose(1, 2)
        width = weight.shape[-1] - stride
        before = self.kept.get(at, x.new_zeros(*x.shape[:2], width))
        x = torch.cat([before, x], dim=-1)
        self.kept[at] = x[..., x.shape[-1] - width :]
        made = f.conv1d(x, weight, self.w[f"{at}.bias"], stride=stride, groups=groups)
        return made.transpose(1, 2)

    def attention(self, x: Tensor, there: Tensor, at: str) -> Tensor:
        heads, back = SIZES["heads"], SIZES["window"]
        split = [
            self.linear(x, f"{at}.{name}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        ]
        rows = {"k": split[1], "v": split[2], "there": there}
        for name, new in rows.items():
            old = self.kept.get(f"{at}.{name}")
            axis = 1 if name == "there" else 2
            rows[name] = new if old is None else torch.cat([old, new], dim=axis)
            start = max(0, rows[name].shape[axis] - (back - 1))
            self.kept[f"{at}.{name}"] = rows[name].narrow(
                axis, start, rows[name].shape[axis] - start
            )
        q, k, v = split[0], rows["k"], rows["v"]
        # The queries are the last rows of the keys.
        j = torch.arange(k.shape[2])
        i = j[k.shape[2] - q.shape[2] :, None]
        mask = (j <= i) & (i - j < back) & rows["there"][:, None, None]
        # A query that sees nothing gives zeros, as a mask of a spec says.
        seen = mask.any(-1, keepdim=True)
        out = f.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~seen) * seen
        return self.linear(out.transpose(1, 2).flatten(2), f"{at}.out_proj")

    def __call__(self, x: Tensor, there: Tensor) -> Tensor:
        for n in range(2):
            x = self.conv(x if n == 0 else f.silu(x), there, f"front.{n}", 2, 1)
            there = there[:, 1::2]
        x = self.linear(f.silu(x), "front.out")
        for n in range(SIZES["layers"]):
            at = f"layers.{n}"
            y, net = self.norm(x, f"{at}.norm1"), f"{at}.feed_forward"
            y = f.silu(self.linear(y, f"{net}.gate_proj")) * self.linear(y, f"{net}.up_proj")
            x = x + self.linear(y, f"{net}.down_proj")
            x = x + self.attention(self.norm(x, f"{at}.norm2"), there, f"{at}.attention")
            y, gated = self.norm(x, f"{at}.norm3"), f"{at}.convolution"
            y = f.glu(self.linear(y, f"{gated}.in"), dim=-1)
            y = self.conv(y, there, f"{gated}.depthwise", 1, y.shape[-1])
            y = f.silu(self.norm(y, f"{gated}.norm"))
            x = x + self.linear(y, f"{gated}.out")
        return self.linear(self.norm(x, "norm"), "head")


def sound(lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Frames, and which of them exist."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(len(lengths), max(lengths), SIZES["mel_bins"])).astype(np.float32)
    return x, np.arange(max(lengths)) < np.array(lengths)[:, None]


def weights(model: Any) -> dict[str, Tensor]:
    return {n: torch.from_numpy(v.copy()).double() for n, v in model.weights().items()}


@pytest.mark.parametrize("lengths", [(24,), LENGTHS], ids=str)
@pytest.mark.parametrize("sizes", [[24], [4] * 6, [8, 4, 12]], ids=str)
def test_streaming_ctc(lengths: tuple[int, ...], sizes: list[int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    specc.compile("streaming_ctc", out, init=5, set=SIZES, graphs=["score", "step"])
    model = specc.load(out)
    x, there = sound(lengths)
    theirs, stream = Heard(weights(model)), model.stream()
    whole = Heard(weights(model))(torch.from_numpy(x).double(), torch.from_numpy(there))
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        made = stream.push(input_features=x[:, rows], attention_mask=there[:, rows])
        piece = theirs(torch.from_numpy(x[:, rows]).double(), torch.from_numpy(there[:, rows]))
        own = slice(start // 4, (start + size) // 4)
        torch.testing.assert_close(piece, whole[:, own], rtol=1e-9, atol=1e-9)
        # Rows of what was not said are nobody's.
        heard = made["frames"][..., None]
        apart = np.abs(made["logits"] - piece.numpy()) * heard
        assert apart.max() <= 1e-5 * np.abs(whole.numpy()).max()
        start += size
