"""`load` rejects a single `.onnx` file that changed after compile."""

from pathlib import Path

import onnx
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError


def change_node(model: onnx.ModelProto) -> None:
    """Add a node that changes the result."""
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = [f"{o}.before" if o == name else o for o in node.output]
    model.graph.node.append(onnx.helper.make_node("Neg", [f"{name}.before"], [name]))


def change_offset(model: onnx.ModelProto) -> None:
    """Read one external tensor from the location of another."""
    outside = [t for t in model.graph.initializer if t.external_data]
    offsets = [e for t in outside for e in t.external_data if e.key == "offset"]
    assert len(offsets) > 1
    offsets[0].value, offsets[1].value = offsets[1].value, offsets[0].value


def change_name(model: onnx.ModelProto) -> None:
    """Change a name in the metadata."""
    model.doc_string += "."


@pytest.mark.parametrize("weights_as", ["inline", "copy"])
@pytest.mark.parametrize("change", [change_node, change_offset, change_name])
def test_a_changed_model_is_refused(change: object, weights_as: str, tmp_path: Path) -> None:
    if change is change_offset and weights_as == "inline":
        pytest.skip("nothing lies outside")
    path = tmp_path / "xor.onnx"
    specc.compile("xor", path, weights_as=weights_as)
    specc.load(path)
    model = onnx.load(path, load_external_data=False)
    assert callable(change)
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SpeccError) as failed:
        specc.load(path)
    assert failed.value.diagnostics[0].code == "E0929"
