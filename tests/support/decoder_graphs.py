"""Small decoder graphs for tests of the ONNX backend."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.types import Type

BATCH, SEQ = Dim.symbol("batch"), Dim.symbol("seq")


def build_decoder(
    layers: int = 2, width: int = 16, heads: int = 4, least: Mapping[str, int] | None = None
) -> Graph:
    """Return a decoder with RoPE, grouped-query attention, layer norm, RMS norm and a tied head;
    vocabulary 11.
    """
    b = GraphBuilder()

    def weight(name: str, *shape: int) -> Value:
        return b.add_parameter(
            Parameter(name=name, type=Type.of("f32", *shape), initializer="normal(0.02)")
        )

    def linear(x: Value, name: str, before: int, after: int) -> Value:
        w, bias = weight(f"{name}.weight", after, before), weight(f"{name}.bias", after)
        return b.add_op(ops.Linear(), x, w, bias, scope=name)

    def opened(x: Value, count: int, scope: str) -> Value:
        parts = b.add_op(
            ops.Split(2, (Dim.from_value(count), Dim.from_value(width // heads))), x, scope=scope
        )
        return b.add_op(ops.Transpose((0, 2, 1, 3)), parts, scope=scope)

    tokens = b.add_input(
        "tokens", Input(Type.of("i64", BATCH, SEQ), upper_bound=Dim.from_value(11))
    )
    table = weight("embed.weight", 11, width)
    x = b.add_op(ops.Embedding(), tokens, table, scope="embed")
    positions = b.add_op(ops.Extent(1), tokens)
    cosines, sines = b.add_node(
        ops.RopeAngles(Dim.from_value(width // heads), 1e4), b.add_op(ops.Insert(0), positions)
    )
    causal = b.add_op(
        ops.Compare("le"), b.add_op(ops.Insert(0), positions), b.add_op(ops.Insert(1), positions)
    )
    mask = b.add_op(ops.Insert(0), b.add_op(ops.Insert(0), causal))
    for n in range(layers):
        at = f"layers.{n}"
        h = b.add_op(ops.RMSNorm(1e-6), x, weight(f"{at}.norm.weight", width), scope=f"{at}.norm")
        groups = heads // 2
        q, k, v = (
            opened(
                linear(h, f"{at}.self_attn.{name}", width, c * width // heads), c, f"{at}.self_attn"
            )
            for name, c in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = (
            b.add_op(ops.Rotate("half"), t, cosines, sines, scope=f"{at}.self_attn") for t in (q, k)
        )
        out = b.add_op(ops.Attend((width // heads) ** -0.5), q, k, v, mask, scope=f"{at}.self_attn")
        merged = b.add_op(ops.Merge(2, 2), b.add_op(ops.Transpose((0, 2, 1, 3)), out))
        x = b.add_op(
            ops.Arith("add"), x, linear(merged, f"{at}.self_attn.o", width, width), scope=at
        )
        h = b.add_op(
            ops.LayerNorm(1e-5), x, weight(f"{at}.ln.weight", width), weight(f"{at}.ln.bias", width)
        )
        h = b.add_op(
            ops.Pointwise("gelu"), linear(h, f"{at}.mlp.up", width, 2 * width), scope=f"{at}.mlp"
        )
        x = b.add_op(ops.Arith("add"), x, linear(h, f"{at}.mlp.down", 2 * width, width), scope=at)
    logits = b.add_op(ops.Linear(), x, table, None, scope="head")
    return b.build_graph("decoder", {"logits": logits}, min_lengths=least or {})


def sample_parameters(graph: Graph, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return random values for every parameter, including norms and biases."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([d.number or 0 for d in value.type.shape]).astype(np.float32)
        * np.float32(0.5)
        for name, value in graph.parameters.items()
    }
