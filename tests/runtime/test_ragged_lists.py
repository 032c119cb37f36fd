"""Ragged lists: the message shows them padded on the padding side of the input."""

from pathlib import Path

import pytest

import specc

SPEC = """specc 1
model m

dims batch, n

graph g(x: int[batch, n], there: keep[batch, n] SIDE) -> (y: float[batch, n, 2]) {
  return embedding(x, size=9, dim=2) @ e
}
"""


@pytest.mark.parametrize(
    ("side", "shown"), [("left", "[[0, 7], [1, 2]]"), ("right", "[[7, 0], [1, 2]]")]
)
def test_the_message_pads_on_the_side_of_the_input(side: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC.replace("SIDE", side), encoding="utf-8")
    specc.compile(path, tmp_path / "m.onnx", init=0)
    with pytest.raises(specc.SpeccError) as failed:
        specc.load(tmp_path / "m.onnx").run(x=[[7], [1, 2]])
    (fault,) = failed.value.diagnostics
    assert fault.code == "E0906"
    assert f"as {shown}" in fault.helps[0]
