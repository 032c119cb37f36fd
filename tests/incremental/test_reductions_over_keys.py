"""Ops on attention scores during generation: reductions over keys, sorting, selecting. Steps equal
the full forward pass, or the error says what to write."""

from pathlib import Path

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step

import specc
import specc_numpy
from specc.analysis.causality import check_causality
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors

HEAD = """specc 1
model m
dims batch, n

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 6]) {
  x = (embedding(ids, size=6, dim=6) @ e) * 2.0
  seen = squeeze(grid(causal, x, x), axis=1)
  z = grid(dot, x, x)
"""
TAIL = """  return x + linear(tanh(y), out=6) @ out
}

generate text of ids from logits { max_tokens = 6 }
"""
HIDDEN = "  h = where(seen, z, -inf)\n"
GREATEST = "  y = x * insert(max(h, axis=2), axis=2)\n"
WAYS = {
    "a sum of what is zero": "  y = x * insert(sum(where(seen, z, 0.0), axis=2), axis=2)\n",
    "a sum of weights": "  y = x * insert(sum(masked_softmax(z, seen) ** 2.0, axis=2), axis=2)\n",
    "a maximum": HIDDEN + GREATEST,
    "a maximum of weights": "  y = x * insert(max(masked_softmax(z, seen), axis=2), axis=2)\n",
    "a minimum": "  y = x * insert(min(where(seen, z, inf), axis=2), axis=2)\n",
    "whether any": "  y = x * insert(float(any(seen & z > 3.0, axis=2)), axis=2)\n",
    "whether every": "  y = x * insert(float(every(not seen | z > 3.0, axis=2)), axis=2)\n",
    "a mean of those shown": "  y = x * insert(sum(where(seen, z, 0.0), axis=2) / sum(float(seen), axis=2), axis=2)\n",
    "a softmax": HIDDEN + "  y = weigh(softmax(h, axis=2), x)\n",
    "a softmax by hand": HIDDEN
    + "  w = exp(h - insert(max(h, axis=2), axis=2))\n"
    + "  y = weigh(w / insert(sum(w, axis=2), axis=2), x)\n",
    "the logarithm of a sum": HIDDEN + "  y = x * insert(log(sum(exp(h), axis=2)), axis=2)\n",
    "the greatest, picked": HIDDEN + "  y = gather(x, argmax(h, axis=2))\n",
    "the greatest's number": HIDDEN + "  y = x * insert(float(argmax(h, axis=2)), axis=2)\n",
    "a window": "  near = squeeze(grid(causal & window(2), x, x), axis=1)\n"
    "  y = x * insert(sum(where(near, z, 0.0), axis=2), axis=2)\n",
    "where the greatest stands in a window": (
        "  near = squeeze(grid(causal & window(2), x, x), axis=1)\n"
        "  y = x * insert(float(argmax(where(near, z, -inf), axis=2)), axis=2)\n"
    ),
    "the third greatest": HIDDEN
    + "  down = sort(h, axis=2, descending=true)\n"
    + "  least = min(where(positions(down, axis=2) < 3 & down > -inf, down, inf), axis=2)\n"
    + "  y = weigh(masked_softmax(z, seen & z >= insert(least, axis=2)), x)\n",
    "in ascending order": "  up = sort(where(seen, z, inf), axis=2)\n"
    "  y = x * insert(sum(where(up < inf, up * float(positions(up, axis=2)), 0.0), axis=2), axis=2)\n",
    "other rows in that order": HIDDEN
    + "  ids = argsort(-h, axis=2)\n"
    + "  w = gather(masked_softmax(z, seen), ids, axis=2)\n"
    + "  y = x * insert(sum(cumsum(w, axis=2) * w, axis=2), axis=2)\n",
    "entropy": "  w = masked_softmax(z, seen)\n"
    "  y = x * insert(-sum(w * log(where(w > 0.0, w, 1.0)), axis=2), axis=2)\n",
}  # fmt: skip
IDS = np.array([[3, 1, 4, 1, 5, 2, 0], [2, 2, 0, 3, 5, 1, 4]])


def elaborate_body(tmp_path: Path, body: str) -> Graph:
    path = tmp_path / "m.specc"
    path.write_text(HEAD + body + TAIL)
    return elaborate_spec(open_spec(str(path))).graph


@pytest.mark.parametrize("way", WAYS)
def test_steps_equal_the_full_forward_pass(tmp_path: Path, way: str) -> None:
    graph = elaborate_body(tmp_path, WAYS[way])
    assert check_causality(graph, "n", "ids", ["logits"]) == []
    assert_steps_equal_full_pass(graph)


def assert_steps_equal_full_pass(graph: Graph) -> None:
    """Run the steps in one chunk, position by position, and in unequal chunks."""
    rng = np.random.default_rng(0)
    weights = {
        n: rng.normal(size=[d.evaluate({}) for d in p.type.shape])
        for n, p in graph.parameters.items()
    }
    full = specc_numpy.evaluate_graph(graph, {"ids": IDS}, weights)["logits"]
    derived_graphs = derive_encoder_and_step(graph, "ids", {"logits": "new"})
    assert find_graph_errors(derived_graphs.step) == []
    for plan in ([7], [1] * 7, [3, 4], [2, 1, 4]):
        made = run_steps(derived_graphs, graph, {"ids": IDS}, weights, plan)
        got = np.concatenate([m["logits"] for m in made], axis=1)
        np.testing.assert_allclose(got, full, rtol=1e-11, atol=1e-11)


BEHIND = """specc 1
model m
config { normalize: normalizer = softmax }
dims batch, n

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 6]) {
  x = (embedding(ids, size=6, dim=6) @ e) * 2.0
  first = expand(parameter(shape=[1, 3, 6], init="normal(2.0)") @ first, axis=0, length=batch)
  h = concat([first, x], axis=1)
  y, _ = attend_by(dot, h, h, h, mask=causal, normalize=normalize)
  return (h + y)[:, 3:]
}

generate text of ids from logits { max_tokens = 6 }
"""


@pytest.mark.parametrize("normalize", ["sparsemax", "entmax15", "topk(2)"])
def test_sorted_keys_with_prefix_positions(tmp_path: Path, normalize: str) -> None:
    path = tmp_path / "m.specc"
    path.write_text(BEHIND)
    graph = elaborate_spec(open_spec(str(path), config_settings=[f"normalize={normalize}"])).graph
    assert check_causality(graph, "n", "ids", ["logits"]) == []
    assert_steps_equal_full_pass(graph)


@pytest.mark.parametrize("way", ["the third greatest", "the greatest, picked"])
def test_package_and_single_file_equal_recomputation(tmp_path: Path, way: str) -> None:
    path = tmp_path / "m.specc"
    path.write_text(HEAD + WAYS[way] + TAIL)
    specc.compile(path, tmp_path / "package", init=3, graphs=["score", "step"])
    specc.compile(path, tmp_path / "one.onnx", init=3, graphs=["generate"])
    package, one = specc.load(tmp_path / "package"), specc.load(tmp_path / "one.onnx")
    ids = IDS[:, :3]
    for _ in range(6):
        logits = package.run(ids=ids)["logits"]
        ids = np.concatenate([ids, logits[:, -1].argmax(-1)[:, None]], axis=1)
    for model in (package, one):
        written = model.generate(ids=IDS[:, :3]).results()
        assert [list(w[0].tokens) for w in written] == ids[:, 3:].tolist()


REFUSED = {
    "keys": (
        GREATEST.replace("h,", "where(seen, z, -1e4),"),
        "this max reduces over keys, and masked keys have the value -10000, not -inf: more masked "
        "keys may change the result",
        "mask them with -inf: `where(seen, x, -inf)`, with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`",
        HIDDEN + GREATEST,
    ),
    "infinite sums": (
        WAYS["a sum of what is zero"].replace("0.0", "-inf"),
        "this sum reduces over keys, and masked keys have the value -inf, not 0.0: more masked "
        "keys may change the result",
        "mask them with 0.0: `where(seen, x, 0.0)`, with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`",
        WAYS["a sum of what is zero"],
    ),
    "no mask": (
        "  y = weigh(softmax(z, axis=2), x)\n",
        "this softmax includes later keys",
        "mask them first: `where(seen, x, -inf)`, with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`",
        WAYS["a softmax"],
    ),
    "mean": (
        "  y = x * insert(mean(where(seen, z, 0.0), axis=2), axis=2)\n",
        "this mean includes keys of later positions",
        "divide a sum by the number of visible keys: "
        "`sum(x, axis=-1) / sum(float(seen), axis=-1)`",
        WAYS["a mean of those shown"],
    ),
    "order": (
        "  up = sort(where(seen, z, -inf), axis=2)\n  y = x * insert(sum(up, axis=2), axis=2)\n",
        "this sort reduces over keys, and masked keys have the value -inf, not inf: more masked "
        "keys may change the result",
        "mask them with inf: `where(seen, x, inf)`, with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`",
        WAYS["in ascending order"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_ops_suggest_a_replacement(tmp_path: Path, case: str) -> None:
    body, what, fix, mended = REFUSED[case]
    fault, *_ = check_causality(elaborate_body(tmp_path, body), "n", "ids", ["logits"])
    assert fault.code == "E0711"
    assert fault.title == f"`logits` cannot be generated along `n`: {what}"
    assert fault.helps == (fix,)
    assert check_causality(elaborate_body(tmp_path, mended), "n", "ids", ["logits"]) == []
