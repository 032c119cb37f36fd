"""A mixture of experts equals its unrolled form: every expert on all tokens, each result multiplied
by its gate, and summed. In the reference and in both ONNX forms.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc.transforms.pass_pipeline import simplify_graph
from specc_onnx import build_model, get_target
from specc_onnx.write.onnx_verifier import verify_built_model

Arrays = dict[str, NDArray[np.float32]]

HEAD = """
specc 1
model m
config {{ d: int = 6  experts: int = 4  k: int = 2 }}
dims batch, n, m

{blocks}

graph main(x: float[{rows}, d]) -> (y: float[{rows}, d]) {{
  before = parameter(shape=[d]) @ shared
  best, ids = topk(linear(x, out=experts) @ gate, k)
  gates = softmax(best)
  {body}
  return y
}}
"""
ROUTED = "y = route(x, ids, gates, to={to}, experts=experts) @ e"
WRITTEN = """
  repeat i in experts under "e.{{i}}" collect parts {{
    share = sum(where(ids == i, gates, 0.0), axis=-1)
    made = {call}
    parts = made * insert(share, axis={axis})
  }}
  y = sum(parts)
"""


@dataclass(frozen=True)
class ExpertCase:
    """The body of one expert, to be passed to `route` and to be called."""

    to: str
    call: str
    blocks: str = ""
    rows: str = "batch, n"

    def graph(self, body: str, path: Path, experts: int) -> Graph:
        """Return the graph of the spec with this body, as every target gets it."""
        text = HEAD.format(blocks=self.blocks, rows=self.rows, body=body)
        path.write_text(text)
        found = open_spec(str(path), config_settings=[f"experts={experts}"])
        return simplify_graph(elaborate_spec(found).graph)

    def both(self, directory: Path, experts: int) -> tuple[Graph, Graph]:
        """Return the mixture and its unrolled form."""
        axis = self.rows.count(",") + 1
        routed = ROUTED.format(to=self.to)
        written = WRITTEN.format(call=self.call, axis=axis)
        return (
            self.graph(routed, directory / "routed.specc", experts),
            self.graph(written, directory / "written.specc", experts),
        )


NORMED = """
block ex(x: float[..., d]) -> float[..., d] {
  h = layer_norm(x, eps=1e-5) @ norm
  own = expand(insert(parameter(shape=[3]) @ own, axis=0), axis=0, length=1)
  return matmul(h, transpose(parameter(shape=[d, d]) @ mat)) + sum(own)
}
"""
BESIDE = """
block ex(x: float[n, d], t: float[d], c: float) -> float[n, d] {
  both = concat([x * t, expand(insert(t, axis=0), axis=0, length=n)])
  return both[:, 3:d + 3] * c + (linear(x, out=d) @ w)
}
"""
HEADS = """
block ex(x: float[batch, n, d], heads: int) -> float[batch, n, d] {
  s = split(linear(x, out=d) @ w, into=[heads, d / heads])
  return merge(softmax(s) * s)
}
"""
MEMORY = """
block ex(x: float[b, n, d]) -> float[b, n, d] {
  memory = parameter(shape=[7, d]) @ memory
  return matmul(softmax(matmul(x, transpose(memory))), memory)
}
"""
NESTED = """
block inner(x: float[..., d]) -> float[..., d] {
  return tanh(linear(x, out=d) @ w)
}
block ex(x: float[..., d], experts: int) -> float[..., d] {
  best, ids = topk(linear(x, out=experts) @ gate, 2)
  return route(x, ids, softmax(best), to=inner, experts=experts) @ inner
}
"""
STEPS = """
block ex(x: float[batch, n, d]) -> float[batch, n, d] {
  h = x
  scan step in 3 carry h {
    h = tanh(linear(h, out=d) @ w)
  }
  return h
}
"""
CASES = {
    "a word": ExpertCase("linear(out=d)", "linear(x, out=d)"),
    "without weights": ExpertCase("gelu", "gelu(x)"),
    "a block of std": ExpertCase(
        "gated_mlp(hidden=7, act=silu)", "gated_mlp(x, hidden=7, act=silu)"
    ),
    "weights of any form, four axes": ExpertCase("ex", "ex(x)", NORMED, "batch, m, n"),
    "what all experts read, two axes": ExpertCase(
        "ex(t=before * 2.0, c=0.5)", "ex(x, t=before * 2.0, c=0.5)", BESIDE, "n"
    ),
    "heads": ExpertCase("ex(heads=3)", "ex(x, heads=3)", HEADS),
    "a memory of its own": ExpertCase("ex", "ex(x)", MEMORY),
    "experts of experts": ExpertCase("ex(experts=3)", "ex(x, experts=3)", NESTED),
    "a loop": ExpertCase("ex", "ex(x)", STEPS),
}
SIZES = ({"batch": 2, "n": 5, "m": 3}, {"batch": 1, "n": 1, "m": 1})


def sample_weights(written: Graph, routed: Graph) -> tuple[Arrays, Arrays]:
    """Return equal weights for both: one tensor per expert, and one stacked tensor."""
    rng = np.random.default_rng(0)
    apart: Arrays = {
        name: rng.normal(size=[d.evaluate({}) for d in f.type.shape]).astype(np.float32)
        for name, f in written.parameter_facts.items()
    }
    joined: Arrays = {}
    for name, facts in routed.parameter_facts.items():
        one = [f"e.{i}.{name.removeprefix('e.')}" for i in range(20)]
        there = [apart[n] for n in one if n in apart]
        joined[name] = np.stack(there) if name not in apart else apart[name]
        assert joined[name].shape == tuple(d.evaluate({}) for d in facts.type.shape)
    assert sum(w.size for w in joined.values()) == sum(w.size for w in apart.values())
    return apart, joined


@pytest.mark.parametrize("experts", [4, 18], ids=["one by one", "loop"])
@pytest.mark.parametrize("case", sample_sweep([*CASES.values()]), ids=CASES)
def test_a_mixture_equals_its_unrolled_form(case: ExpertCase, experts: int, tmp_path: Path) -> None:
    routed, written = case.both(tmp_path, experts)
    apart, joined = sample_weights(written, routed)
    built = build_model(routed, get_target("onnx"), 17)
    for name, tensor in built.weights.items():
        tensor.raw_data = joined[name].tobytes()
    onnx.checker.check_model(built.model, full_check=True)
    verify_built_model(built)
    session = open_silent_session(built.model)
    for sizes in SIZES:
        shape = [d.evaluate(sizes) for d in routed.inputs["x"].type.shape]
        x = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
        wanted = specc_numpy.evaluate_graph(written, x, apart)["y"]
        found = specc_numpy.evaluate_graph(routed, x, joined)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
        assert_outputs_match({"y": wanted}, session.run(None, x))


def test_a_mixture_in_a_loop_equals_its_unrolled_form(tmp_path: Path) -> None:
    """A recurrent layer with a mixture as cell: the weights are split only once."""
    path = tmp_path / "m.specc"
    path.write_text("""
specc 1
model m
dims batch, n
graph main(x: float[batch, n, 6]) -> (y: float[batch, n, 6]) {
  h = zeros(shape=[batch, 6])
  scan r in x along n carry h collect y {
    best, ids = topk(linear(h + r, out=4) @ gate, 2)
    h = tanh(route(h + r, ids, softmax(best), to=linear(out=6), experts=4) @ e)
    y = h
  }
  return y
}
""")
    graph = simplify_graph(elaborate_spec(open_spec(str(path))).graph)
    rng = np.random.default_rng(0)
    w = {
        n: rng.normal(size=[d.evaluate({}) for d in f.type.shape]).astype(np.float32)
        for n, f in graph.parameter_facts.items()
    }
    x = rng.normal(size=(2, 5, 6)).astype(np.float32)
    h, rows = np.zeros((2, 6)), []
    for t in range(5):
        r = h + x[:, t]
        scores = r @ w["gate.weight"].T.astype(float) + w["gate.bias"]
        after = np.zeros((2, 6))
        for b in range(2):
            ids = np.argsort(-scores[b], kind="stable")[:2]
            gates = np.exp(scores[b][ids]) / np.exp(scores[b][ids]).sum()
            for e, gate in zip(ids, gates, strict=True):
                after[b] += gate * (w["e.weight"][e] @ r[b] + w["e.bias"][e])
        h = np.tanh(after)
        rows.append(h)
    wanted = np.stack(rows, 1)
    found = specc_numpy.evaluate_graph(graph, {"x": x}, w)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
    built = build_model(graph, get_target("onnx"))
    for name, tensor in built.weights.items():
        tensor.raw_data = w[name].tobytes()
    assert [n.op_type for n in built.model.graph.node].count("Split") == 2
    assert_outputs_match({"y": wanted}, open_silent_session(built.model).run(None, {"x": x}))
