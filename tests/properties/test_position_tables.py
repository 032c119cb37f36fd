"""Position embeddings are long enough, or an input check reports it: at every length the check
rejects exactly the inputs without a value.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

import specc
import specc_numpy
from specc.artifact.generation_metadata import compute_dim_upper_bound
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.runtime.model_inputs import build_model_inputs

SPEC = """specc 1
model places
dims batch, src, seq

graph g(source: float[batch, src, 4], x: float[batch, seq, 4]) -> (y: float[...]) {
  h = %s
  return embedding(positions(h)%s, size=9, dim=4) @ places
}
"""
ROWS = {
    "one": "x",
    "two": "concat([source, x], axis=1)",
    "twice": "concat([source, x, source], axis=1)",
    "stride": "conv(x, out=4, kernel=3, stride=2, padding=causal) @ c",
    "both": "concat([source, conv(x, out=4, kernel=3, stride=2, padding=causal) @ c], axis=1)",
    "heads": "prepend(concat([source, x], axis=1), parameter(shape=[1, 3, 4]) @ prompt)",
}


@pytest.mark.parametrize("more", ["", " + 2"])
@pytest.mark.parametrize("rows", ROWS)
def test_length_check_rejects_exactly_the_inputs_without_a_value(
    tmp_path: Path, rows: str, more: str
) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC % (ROWS[rows], more), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    input_signature = build_model_inputs(graph, PreprocessingConfig(), None, "")
    weights = {
        n: np.ones([d.number or 0 for d in f.type.shape]) for n, f in graph.parameter_facts.items()
    }
    for src, seq in itertools.product((1, 2, 5, 9), (2, 3, 7, 8, 18, 19)):
        given = {"source": np.ones((1, src, 4), "f"), "x": np.ones((1, seq, 4), "f")}
        fine = True
        try:
            specc_numpy.evaluate_graph(graph, given, weights)
        except SpeccError as fault:
            fine = "E0913" not in str(fault)
        if fine:
            input_signature.prepare(given)
        else:
            with pytest.raises(SpeccError, match=r"E0912.*must be at most"):
                input_signature.prepare(given)
        # The maximum generated length is one position before the rejected length.
        most = compute_dim_upper_bound(input_signature.length_bounds, "seq", {"src": src})
        assert most is None or fine == (seq <= most), (src, seq, most)


def test_a_limit_without_one_of_the_lengths_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted mistake: combinations of several lengths are not checked."""
    monkeypatch.setattr(
        "specc.artifact.generation_metadata.find_length_sum_limits", lambda graph: {}
    )
    with pytest.raises(pytest.fail.Exception):
        test_length_check_rejects_exactly_the_inputs_without_a_value(tmp_path, "two", "")


WRITER = """specc 1
model shared
config { d: int = 8  vocab: int = 11  places: int = 9 }
dims batch, src, seq
graph g(source: int[batch, src], ids: int[batch, seq]) -> (logits: float[batch, seq, vocab]) {
  x = embedding(concat([source, ids], axis=1), size=vocab, dim=d) @ words
  x = x + (embedding(positions(x), size=places, dim=d) @ places)
  x = x + (attention(x, heads=2, mask=prefix(src)) @ self)
  return linear(x[:, src:], out=vocab) @ head
}
mask prefix(n) = j < n | j <= i
generate text of ids from logits { start = 2  stop = 10 }
"""


@pytest.mark.parametrize("parts", [["encode", "step"], ["generate"]])
def test_generation_ends_at_the_position_limit_of_its_source(
    tmp_path: Path, parts: list[str]
) -> None:
    """The last generated token is not an input, so it needs no position."""
    path = tmp_path / "m.specc"
    path.write_text(WRITER, encoding="utf-8")
    specc.compile(path, tmp_path / "out", init=3, graphs=parts)
    model = specc.load(tmp_path / "out")
    for src in (1, 6, 8):
        texts = model.generate(source=[[1] * src], max_tokens=30).results()
        text = texts[0][0]
        assert text.complete or len(text.tokens) == 9 - src
    with pytest.raises(SpeccError, match=r"`seq \+ src` is 10, but must be at most 9"):
        model.generate(source=[[1] * 8], ids=[[3, 4]])
