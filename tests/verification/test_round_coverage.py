"""`specc verify` executes every branch and loop body of a compiled model, or lists those that it
did not execute."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, numpy_helper
from support.onnx_sessions import save_with_hash
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.random_inputs import make_random_inputs
from specc.verification.model_verification import verify_graph
from specc.verification.round_coverage import SubgraphCoverage

HEAD = """specc 1
model m
dims batch >= 1, n >= 1
mask near(f) = abs(i - j) < 8 | f[j]
graph g(x: float[batch, n, 8], f: bool[batch, n]) -> (y: float[batch, n, 8]) {
"""
BLOCKED = {
    "mask with keys apart": "  return attention(x, heads=2, mask=near(f)) @ a\n}\n",
    "additive attention": "  z, _ = attend_by(additive(4), x, x, x, mask=window(8)) @ b\n  return z\n}\n",
}


def compile_text(text: str, directory: Path) -> Path:
    (directory / "spec.specc").write_text(text)
    specc.compile(directory / "spec.specc", directory / "m.onnx", init=0)
    return directory / "m.onnx"


def find_subgraphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
                yield from find_subgraphs(attribute.g)


@pytest.mark.parametrize("name", BLOCKED)
def test_every_subgraph_of_blocked_attention_is_executed(name: str, tmp_path: Path) -> None:
    path = compile_text(HEAD + BLOCKED[name], tmp_path)
    found = list(verify_graph(specc.load(path).scoring_model))
    assert not any(one.uncovered_subgraphs for one in found)
    assert cli.main(["verify", str(path), "--strict"]) == 0


@pytest.mark.parametrize("name", BLOCKED)
def test_a_mistake_in_any_subgraph_is_found(name: str, tmp_path: Path) -> None:
    """Scale the results of a branch or body; unused subgraphs are skipped."""
    path = compile_text(HEAD + BLOCKED[name], tmp_path)
    whole, found = onnx.load(path), 0
    for number in range(len(list(find_subgraphs(whole.graph)))):
        model = onnx.load(path)
        body = list(find_subgraphs(model.graph))[number]
        if body.name == "unused":
            continue
        result = body.output[-1].name
        last = next(n for n in body.node if result in n.output)
        last.output[list(last.output).index(result)] = "right"
        kind = body.output[-1].type.tensor_type.elem_type
        if kind == onnx.TensorProto.BOOL:
            body.node.append(onnx.helper.make_node("Not", ["right"], [result]))
        else:
            two = numpy_helper.from_array(np.array(2, np.float32))
            body.node.append(onnx.helper.make_node("Constant", [], ["two"], value=two))
            body.node.append(onnx.helper.make_node("Mul", ["right", "two"], [result]))
        save_with_hash(model, tmp_path / "broken.onnx")
        with pytest.raises(SpeccError) as caught:
            list(verify_graph(specc.load(tmp_path / "broken.onnx").scoring_model))
        assert caught.value.diagnostics[0].code == "E0930", body.name
        found += 1
    assert found >= 3


def test_executions_are_counted_in_nested_bodies(tmp_path: Path) -> None:
    path = compile_text(HEAD + BLOCKED["mask with keys apart"], tmp_path)
    model = specc.load(path).scoring_model
    for sizes, density, blocks in (
        ({"batch": 2, "n": 3}, 0.7, 0),
        ({"batch": 2, "n": 200}, 0.01, 200 // 16 + 1),
        ({"batch": 2, "n": 200}, 0.7, 0),
    ):
        coverage = SubgraphCoverage.from_model(model)
        rng = np.random.default_rng(0)
        graph = model.manifest.graph
        coverage.record_run(make_random_inputs(graph, sizes, rng, density))
        names = coverage.subgraphs.names
        counted = dict(zip(names, coverage.execution_counts.tolist(), strict=True))
        (loop,) = (n for n in names if "Loop" in n)
        assert counted[loop] == blocks


def test_uncovered_subgraphs_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sequences exceed the work limit of the reference."""
    monkeypatch.setattr("specc.verification.length_coverage.MAX_WORK", 1000)
    path = compile_text(HEAD + BLOCKED["additive attention"], tmp_path)
    assert cli.main(["verify", str(path)]) == 0
    assert "not covered: then_branch of If" in capsys.readouterr().out
    assert cli.main(["verify", str(path), "--strict"]) == 5
    assert "error[E0933]: 2 subgraphs were not executed in any round" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_every_subgraph_of_a_built_in_spec_is_executed(spec: str, tmp_path: Path) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0, set=SMALL_CONFIGS[spec])
    found = list(verify_graph(specc.load(tmp_path / "m.onnx").scoring_model))
    assert not [one.uncovered_subgraphs for one in found if one.uncovered_subgraphs]
