"""State descriptions of a package are validated."""

import json
from pathlib import Path

import pytest

import specc
from specc.artifact.package_index_and_format_versions import INDEX_FILE
from specc.diagnostics.diagnostic import SpeccError

TEXT = """specc 1
model m
dims batch, n
graph g(ids: int[batch, n]) -> (logits: float[batch, n, 8]) {
  x = embedding(ids, size=8, dim=8) @ table
  return attention(x, heads=2, mask=causal) @ attn
}
generate text of ids from logits { start = 1  stop = 2  max_tokens = 3 }
"""


def test_state_without_an_initial_size(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT)
    directory = tmp_path / "p"
    specc.compile(tmp_path / "m.specc", directory, init=0, graphs="all", target="onnx")
    index = json.loads((directory / INDEX_FILE).read_text())
    (states,) = (
        part["states"]
        for part in index["metadata"].values()
        if isinstance(part, dict) and "states" in part
    )
    states[0]["time_axis"] = None
    (directory / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(SpeccError) as failed:
        specc.load(directory).generate([[1]]).results()
    assert [d.code for d in failed.value.diagnostics] == ["E0831"]
