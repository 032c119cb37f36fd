"""The pass pipeline: order, the name of a pass that breaks a graph, and `specc show --ir
--print-after PASS`."""

from dataclasses import replace
from pathlib import Path

import pytest

from specc.cli.main import main
from specc.ir.graph import Graph
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.transforms import pass_pipeline

WRITES = """specc 1
model writes

dims batch, seq

graph g(ids: int[batch, seq]) -> (logits: float[batch, seq, 8]) {
  x = embedding(ids, size=8, dim=4) @ e
  logits = linear(x, out=8) @ head
  return logits
}

generate text of ids from logits { stop = 0 }
"""


def test_optional_passes_run_on_request() -> None:
    assert pass_pipeline.list_passes_up_to("inline") == ("inline",)
    assert pass_pipeline.list_passes_up_to("split_scan") == ("fuse_scan", "split_scan")
    assert pass_pipeline.list_passes_up_to("encode") == (
        *pass_pipeline.SIMPLIFY_PASSES,
        *pass_pipeline.DERIVE_PASSES,
    )


def test_broken_graph_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_ir(GRAPH)["g"]

    def drop_nodes(work: pass_pipeline.CompilerPassState) -> pass_pipeline.CompilerPassState:
        broken = Graph(**{**work.graph.__dict__, "nodes": ()})
        return replace(work, graph=broken)

    passes = (pass_pipeline.CompilerPass("lose", "loses every node", drop_nodes),)
    monkeypatch.setattr(pass_pipeline, "ALL_PASSES", passes)
    with pytest.raises(AssertionError, match="after the pass `lose`"):
        pass_pipeline.run_passes(pass_pipeline.CompilerPassState(graph=graph), ("lose",))


GRAPH = """specc-ir 1
graph "g"
input "x" %0: f32[n]
%1: f32[n] = pointwise(%0) {fn="tanh"}
output "y" %1
end
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "writes.specc"
    path.write_text(WRITES, encoding="utf-8")
    return path


def execute_show(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_ir_of_spec_model_and_package(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, package = tmp_path / "m.onnx", tmp_path / "p"
    assert main(["compile", str(spec), "--init", "0", "-o", str(model)]) == 0
    all_parts = ["--graphs", "score,step", "-o", str(package)]
    assert main(["compile", str(spec), "--init", "0", *all_parts]) == 0
    capsys.readouterr()
    text = execute_show(capsys, spec, "--ir")
    assert format_ir(*parse_ir(text).values()) == text
    assert execute_show(capsys, model, "--ir") == text
    assert execute_show(capsys, package, "--ir") == text
    for name in ("fuse_scan", "split_scan", "prove", "encode"):
        behind = execute_show(capsys, spec, "--ir", "--print-after", name)
        assert execute_show(capsys, model, "--print-after", name) == behind
        assert execute_show(capsys, package, "--print-after", name) == behind
    step = execute_show(capsys, package, "--ir", "--graph", "step")
    assert list(parse_ir(step)) == ["g step"]
    assert execute_show(capsys, spec, "--print-after", "step") == step
    assert execute_show(capsys, package, "--graph", "step", "--print-after", "split_scan") == step
    for name in pass_pipeline.DERIVE_PASSES:
        asked = ["show", str(package), "--graph", "step", "--print-after", name]
        assert main(asked) == 1
        said = capsys.readouterr().err
        assert "error[E0701]: `g step` has no generation settings" in said
        assert "the graph `score`, from which it was derived" in said


def test_every_pass_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text("utf-8")
    order = [
        page.index(f"| `{each.name}` | {each.description}") for each in pass_pipeline.ALL_PASSES
    ]
    assert order == sorted(order)
