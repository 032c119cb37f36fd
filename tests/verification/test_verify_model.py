"""`specc verify`: agreement, differences, undecidable results, and the inputs of its rounds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.verification_lines import list_model_lines, list_package_lines

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input
from specc.ir.types import Type
from specc.runtime.model_package import open_package
from specc.runtime.random_inputs import (
    choose_dim_sizes,
    make_random_inputs,
    move_padding_to_declared_side,
)
from specc.runtime.single_model_file import LoadedModel, load_model
from specc.verification.result_comparison import compare_result

NAN, INF = np.nan, np.inf
SHAKY = """specc 1
model shaky
dims batch
graph g(x: float[batch, 3]) -> (y: float[batch, 4]) {
  return sin(1000000.0 * linear(x, out=4) @ up)
}
"""
LOGS = """specc 1
model logs
dims batch, src, seq
graph g(source: int[batch, src], ids: int[batch, seq]) -> (logits: float[batch, seq, 5]) {
  x = softmax(embedding(ids, size=5, dim=5) @ embed)
  spots = one_hot(source, size=5)
  return log(x + insert(mean(spots, axis=1), axis=1))
}
generate text of ids from logits { start = 1  stop = 2 }
"""
STEADY = """specc 1
model steady
dims batch
graph g(x: float[batch, 3]) -> (y: float[batch, 4]) { return linear(x, out=4) @ up }
"""


@pytest.mark.parametrize(
    ("got", "want", "agrees"),
    [
        ([1, NAN, 3], [1, NAN, 3], True),
        ([1, 2, 3], [1, NAN, 3], False),
        ([1, NAN, 3], [1, 2, 3], False),
        ([INF, -INF, 1], [INF, -INF, 1], True),
        ([INF, INF, 1], [INF, -INF, 1], False),
        ([INF, 1, 2], [1e39, 1, 2], True),  # exceeds the range of float32
        ([3e38, 1, 2], [INF, 1, 2], False),
        ([NAN, 1, 2], [INF, 1, 2], False),
        ([NAN, 1, 2 + 1e-3], [NAN, 1, 2], False),
        ([NAN, 1, 2 + 1e-5], [NAN, 1, 2], True),
        ([NAN, NAN, NAN], [NAN, NAN, NAN], True),
        ([0, 0, 0], [0, 0, 0], True),
        ([0, 1e-4, 0], [0, 0, 0], False),
    ],
)
def test_nonfinite_values_are_compared_by_position(
    got: list[float], want: list[float], agrees: bool
) -> None:
    assert (
        not compare_result("y", np.array(got, np.float32), np.array(want, np.float64)).description
    ) is agrees


def test_shapes_and_integers_are_compared_exactly() -> None:
    assert compare_result("y", np.zeros((2, 3), "f4"), np.zeros((3, 2))).description
    assert compare_result("y", np.array([1, 2]), np.array([1, 3])).description
    assert not compare_result("y", np.array([1, 2]), np.array([1, 2])).description


def compile_text(text: str, directory: Path, **options: Any) -> Path:
    (directory / "spec.specc").write_text(text)
    output = directory / ("package" if "parts" in options else "model.onnx")
    specc.compile(directory / "spec.specc", output, init=0, **options)
    return output


def test_step_receives_encoder_outputs(tmp_path: Path) -> None:
    """A mean of ones is never negative; random values around zero can be, and their logarithm is
    NaN."""
    package = open_package(compile_text(LOGS, tmp_path, graphs=["score", "encode", "step"]))
    assert (
        len([line for line in list_package_lines(package, rounds=3) if line.startswith("step: ")])
        == 3
    )


def test_undecidable_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = compile_text(SHAKY, tmp_path)
    lines: list[str] = []
    with pytest.raises(SpeccError) as caught:
        lines.extend(list_model_lines(specc.load(path).scoring_model))
    assert caught.value.diagnostics[0].code == "E0932"
    assert cli.main(["verify", str(path)]) == 5
    said = capsys.readouterr()
    assert said.out.count("ill-conditioned: `y` differs by") == 3
    assert "error[E0932]" in said.err


class ScaledSession:
    """A session whose results have a relative error."""

    def __init__(self, inner: Any, by: float) -> None:
        self.inner, self.by = inner, by

    def run(self, inputs: Any) -> Any:
        return {n: v * (1 + self.by) for n, v in self.inner.run(inputs).items()}


@pytest.mark.parametrize("by", [3e-5, 1e-3, 1.0])
def test_wrong_model(by: float, tmp_path: Path) -> None:
    model: LoadedModel = specc.load(compile_text(STEADY, tmp_path)).scoring_model
    with pytest.raises(SpeccError) as caught:
        list(list_model_lines(replace(model, session=ScaledSession(model.session, by))))
    assert caught.value.diagnostics[0].code == "E0930"


def test_wrong_ill_conditioned_model(tmp_path: Path) -> None:
    model: LoadedModel = specc.load(compile_text(SHAKY, tmp_path)).scoring_model
    with pytest.raises(SpeccError) as caught:
        list(list_model_lines(replace(model, session=ScaledSession(model.session, 1e4))))
    assert caught.value.diagnostics[0].code == "E0930"


SMALL = {"vocab": 17, "d": 16, "heads": 2, "layers": 1, "hidden": 24, "context": 4}


def test_lengths_within_the_position_embedding(tmp_path: Path) -> None:
    specc.compile("gpt2", tmp_path / "m", init=0, set=SMALL, graphs=["score", "step"])
    lines = list(list_package_lines(open_package(tmp_path / "m"), rounds=4))
    assert lines[2].startswith("score: batch=3, seq=4:")
    assert lines[6].startswith("step: batch=3, new=2, past=2:")


def generate_inputs(**given: Input) -> Iterator[dict[str, Any]]:
    """Yield the inputs of the first three rounds."""
    b = GraphBuilder()
    for name, facts in given.items():
        b.add_input(name, facts)
    graph = b.build_graph("g", {name: b.inputs[name] for name in given}, min_lengths={"n": 2})
    rng = np.random.default_rng(0)
    for turn in range(3):
        yield make_random_inputs(graph, choose_dim_sizes(graph, turn), rng)


def test_first_and_last_id_are_used() -> None:
    ids = Input(Type.of("i64", Dim.symbol("b"), Dim.symbol("n")), upper_bound=Dim.from_value(1000))
    tried = [made["ids"] for made in generate_inputs(ids=ids)]
    assert [t.shape for t in tried] == [(1, 2), (2, 3), (3, 5)]
    assert all(t.max() == 999 and t.min() == 0 for t in tried)


@pytest.mark.parametrize(("side", "sides"), [("left", {0}), ("right", {1}), ("any", {0, 1})])
def test_padding_side(side: Any, sides: set[int]) -> None:
    keep = Input(Type.of("bool", Dim.symbol("b"), Dim.symbol("n")), padding_side=side)
    seen: set[int] = set()
    for seed in range(10):
        b = GraphBuilder()
        x = b.add_input("keep", keep)
        graph = b.build_graph("g", {"y": x})
        made = make_random_inputs(graph, {"b": 3, "n": 5}, np.random.default_rng(seed))["keep"]
        assert made[0].all()
        assert made.any(axis=1).all()
        seen |= {1 if row[0] else 0 for row in made if not row.all()}
    assert seen == sides


COMPUTED_MASKS = """specc 1
model masks
dims batch, choices, n, src
graph g(ids: int[batch, n], seen: keep[batch, n] SIDE = ids != 1,
        x: float[batch, src, 2], known: keep[batch, src] SIDE = x[:, :, 0] > 0.0,
        options: int[batch, choices, n], read: keep[batch, choices, n] SIDE = options != 1)
    -> (a: float[batch, n, 3], b: float[batch, src, 2], c: float[batch, choices, n]) {
  a = embedding(ids, size=4, dim=3) * insert(float(seen), axis=2)
  return a, x * insert(float(known), axis=2), float(read)
}
"""


@pytest.mark.parametrize("side", ["left", "right", ""])
def test_computed_padding_masks_have_the_declared_side(side: str, tmp_path: Path) -> None:
    text = COMPUTED_MASKS.replace("SIDE", side)
    (tmp_path / "masks.specc").write_text(text)
    specc.compile(tmp_path / "masks.specc", tmp_path / "masks.onnx", init=0)
    signature = load_model(tmp_path / "masks.onnx").input_signature
    graph, has_changed = signature.graph, False
    for seed in range(10):
        drawn = make_random_inputs(
            graph, {"batch": 3, "choices": 2, "n": 6, "src": 5}, np.random.default_rng(seed)
        )
        given = {name: drawn[name] for name in ("ids", "x", "options")}
        moved = move_padding_to_declared_side(given, graph, signature.defaults)
        made = signature.prepare(moved)
        for mask, source in (("seen", "ids"), ("known", "x"), ("read", "options")):
            steps = np.diff(made[mask].astype(int), axis=-1)
            assert side != "right" or (steps <= 0).all()
            assert side != "left" or (steps >= 0).all()
            # the values are those before, in another order
            axis = made[mask].ndim - 1
            assert np.array_equal(np.sort(made[source], axis), np.sort(given[source], axis))
            has_changed |= not np.array_equal(made[source], given[source])
    assert has_changed == bool(side)


CLAMPED = """specc 1
model clamped
dims batch, n
graph g(ids: int[batch, n], far: int[batch, n]) -> (y: float[batch, n, 3]) {
  x = embedding(max(ids, 0), size=4, dim=3) @ table
  return x + embedding(min(far, 2), size=3, dim=3) @ other
}
"""


def test_ids_of_a_clamped_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clamped.specc").write_text(CLAMPED)
    model = tmp_path / "clamped.onnx"
    specc.compile(tmp_path / "clamped.specc", model, init=0)
    assert cli.main(["verify", str(model)]) == 0, capsys.readouterr().err
