"""ONNX Runtime's attention over int8 KV buffers compared with the float64 equation on which
`cached_attention` relies.
"""

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from support.onnx_sessions import open_silent_session

Rows = NDArray[np.float32]
RNG = np.random.default_rng(8)


def open_kernel_session(
    heads: int, groups: int, cap: float, biased: bool
) -> onnxruntime.InferenceSession:
    """Open a model of one `GroupQueryAttention` with per-channel scales."""
    names = ["q", "k", "v", "keys", "values", "last", "total", "", "", ""]
    names += ["bias" if biased else "", "", "k_scale", "v_scale"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "new_keys", "new_values"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=groups,
        scale=0.3,
        softcap=cap,
        k_quant_type="PER_CHANNEL",
        v_quant_type="PER_CHANNEL",
        kv_cache_bit_width=8,
    )
    kinds = dict.fromkeys(("keys", "values", "new_keys", "new_values"), TensorProto.INT8)
    kinds |= dict.fromkeys(("last", "total"), TensorProto.INT32)
    ranks = {"last": 1, "total": 0, "k_scale": 3, "v_scale": 3, "bias": 4}
    ranks |= dict.fromkeys(("q", "k", "v"), 3) | dict.fromkeys(("keys", "values"), 4)

    def value(name: str) -> object:
        shape = [f"{name}{n}" for n in range(ranks[name])] if name in ranks else None
        kind = kinds.get(name, TensorProto.FLOAT)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        [node], "g", [value(n) for n in names if n], [value(n) for n in node.output]
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return open_silent_session(helper.make_model(graph, opset_imports=domains, ir_version=10))


@pytest.mark.parametrize(("heads", "groups", "wide"), [(4, 2, 8), (2, 2, 24)])
@pytest.mark.parametrize(("cap", "biased"), [(0.0, False), (0.0, True), (5.0, False)])
@pytest.mark.parametrize(("batch", "new", "past"), [(3, 4, 0), (1, 3, 6), (3, 1, 5), (1, 1, 40)])
def test_new_positions_are_quantized_before_they_are_read(
    heads: int, groups: int, wide: int, cap: float, biased: bool, batch: int, new: int, past: int
) -> None:
    # past 127 units on both sides, where they are cut off
    whole = RNG.normal(size=(2, batch, groups, past + new, wide)).astype("f4")
    scales = np.full((2, groups, 1, wide), 2.0 / 127, np.float32)
    scales *= RNG.uniform(0.5, 1.5, scales.shape).astype("f4")
    kept = np.clip(np.rint(whole / scales[:, None]), -128, 127).astype("i1")
    buffers = np.zeros((2, batch, groups, past + new + 3, wide), "i1")
    buffers[..., :past, :] = kept[..., :past, :]
    query = RNG.normal(size=(batch, new, heads * wide)).astype("f4")
    fresh = whole[..., past:, :].swapaxes(2, 3).reshape(2, batch, new, -1)
    bias = RNG.normal(size=(batch, 1, new, past + new)).astype("f4")
    given = {"q": query, "k": fresh[0], "v": fresh[1], "keys": buffers[0]}
    given |= {"values": buffers[1], "k_scale": scales[0], "v_scale": scales[1]}
    given |= {"last": np.full(batch, past + new - 1, "i4")}
    given |= {"total": np.array(past + new, "i4")} | ({"bias": bias} if biased else {})
    got, keys, values = open_kernel_session(heads, groups, cap, biased).run(None, given)
    assert (keys[:, :, : past + new] == kept[0]).all()
    assert (values[:, :, : past + new] == kept[1]).all()
    k, v = np.repeat(kept.astype("f8") * scales[:, None], heads // groups, 2)
    q = query.astype("f8").reshape(batch, new, heads, wide).swapaxes(1, 2)
    scores = q @ k.swapaxes(-1, -2) * 0.3
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores += bias if biased else 0.0
    seen = np.arange(past + new) <= np.arange(past, past + new)[:, None]
    weights = np.exp(np.where(seen, scores, -np.inf))
    want = weights @ v / weights.sum(-1, keepdims=True)
    want = want.swapaxes(1, 2).reshape(batch, new, -1)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
