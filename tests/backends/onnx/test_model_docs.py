"""Doc strings of a model for viewers: the doc of the spec, the inputs, the operations."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from specc.cli.main import main
from specc_onnx.lower.subgraphs import iterate_node_subgraphs

LM = [
    "--set",
    "d=16",
    "--set",
    "heads=2",
    "--set",
    "layers=1",
    "--set",
    "vocab=11",
    "--init",
    "1",
    "-q",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    assert main(["compile", "gpt2", *LM, "-o", str(directory / "m.onnx")]) == 0
    assert main(["compile", "gpt2", *LM, "--graphs", "all", "-o", str(directory / "all")]) == 0
    return directory


def test_model_has_the_doc_of_its_spec(directory: Path) -> None:
    for path in (directory / "m.onnx", *(directory / "all").glob("*.onnx")):
        model = onnx.load(path, load_external_data=False)
        assert (
            "Language Models are Unsupervised Multitask Learners" in model.doc_string
            or "GPT-2" in model.doc_string
        )
        assert model.graph.doc_string == model.doc_string
        # it is no text of the description besides
        assert not [p for p in model.metadata_props if p.key == "specc.doc"]


def test_inputs_are_described(directory: Path) -> None:
    model = onnx.load(directory / "m.onnx", load_external_data=False)
    said = {value.name: value.doc_string for value in model.graph.input}
    assert said["input_ids"] == "i64[batch, seq], from 0 to 10"
    assert said["attention_mask"].startswith("bool[batch, seq]: false at padded positions")


def test_operations_are_described(directory: Path) -> None:
    model = onnx.load(directory / "m.onnx", load_external_data=False)
    said = {node.doc_string for node in model.graph.node} - {""}
    assert any("x @ w.T" in text for text in said), said
    # a line each, and not on every node
    assert all("\n" not in text for text in said)
    assert 0 < sum(bool(node.doc_string) for node in model.graph.node) < len(model.graph.node) / 2


def test_every_node_has_a_scope(directory: Path) -> None:
    for path in (directory / "m.onnx", *(directory / "all").glob("*.onnx")):
        graph = onnx.load(path, load_external_data=False).graph
        names = [node.name for node in list_nodes(graph)]
        assert len(names) > 20
        assert not [name for name in names if "/" not in name.strip("/")]


def test_doc_strings_are_on_the_first_node_of_an_operation(directory: Path) -> None:
    graph = onnx.load(directory / "m.onnx", load_external_data=False).graph
    said = {n.name.rpartition("/")[0]: n.doc_string for n in graph.node if n.doc_string}
    # lengths are computed for whoever asks first, and are not what that computes
    assert "lengths" not in said
    assert said["h/0/attn"].startswith("Scaled dot-product attention")


def list_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for body in iterate_node_subgraphs(node):
            yield from list_nodes(body)
