"""Recurrent layers in ONNX: fused operators where they apply, and equal results from loops
elsewhere.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.elaborated_specs import (
    ElaboratedSpec,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.onnx_sessions import assert_outputs_match, open_silent_session

from specc_onnx import build_model, get_target

SPEC = """\
specc 1
model m
dims {dims}
graph f(x: float[batch, seq, 3], keep: keep[batch, seq]{side}, first: float[batch, 4, 5])
    -> (out: float[batch, seq, _], last: float[batch, _, 5]) {{
  out, last = {call} @ enc
  return out, last
}}
"""
LAYER = "gru(x, hidden=5, reset=after, layers=2, direction=both, keep=keep, start=first)"


def build_spec(
    directory: Path, call: str, side: str = "", dims: str = "batch, seq"
) -> ElaboratedSpec:
    (directory / "m.specc").write_text(SPEC.format(call=call, side=side, dims=dims))
    return elaborate_with_config(str(directory / "m.specc"))


def open_model(found: ElaboratedSpec, opset: int = 23, where: str = "onnx") -> onnx.ModelProto:
    built = build_model(found.model.graph, get_target(where), opset)
    weights = sample_spec_weights(found)
    for name, initializer in built.weights.items():
        initializer.raw_data = weights[name].astype("<f4").tobytes()
    onnx.checker.check_model(built.model, full_check=True)
    return built.model


def list_op_types(made: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in made.graph.node)


def make_inputs(
    batch: int, length: int, lengths: list[int], side: str = "right"
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    places = np.arange(length) if side == "right" else np.arange(length)[::-1]
    return {
        "x": rng.standard_normal((batch, length, 3)).astype(np.float32),
        "keep": places[None] < np.array(lengths, int).reshape(-1, 1),
        "first": rng.standard_normal((batch, 4, 5)).astype(np.float32),
    }


def test_each_direction_of_each_layer_is_one_operator(tmp_path: Path) -> None:
    found = list_op_types(open_model(build_spec(tmp_path, LAYER)))
    assert found["GRU"] == 4
    assert not found["Scan"]
    assert not found["Loop"]


def test_positions_are_moved_only_for_left_padding(tmp_path: Path) -> None:
    assert list_op_types(open_model(build_spec(tmp_path, LAYER)))["GatherND"] == 3, (
        "once before the stack, once behind it a direction"
    )
    right = list_op_types(open_model(build_spec(tmp_path, LAYER, " right")))
    assert not right["GatherND"]
    assert not right["ScatterElements"]
    free = list_op_types(open_model(build_spec(tmp_path, LAYER.replace("keep=keep, ", ""))))
    assert not free["GatherND"]


def test_lengths_of_at_least_one_need_no_guard(tmp_path: Path) -> None:
    assert list_op_types(open_model(build_spec(tmp_path, LAYER, " right")))["Pad"]
    assert not list_op_types(
        open_model(build_spec(tmp_path, LAYER, " right", "batch >= 1, seq >= 1"))
    )["Pad"]


@pytest.mark.parametrize("call", [
    LAYER,
    LAYER.replace("after", "before, update=new"),
    "lstm(x, hidden=5, layers=2, direction=both, keep=keep, start=first, start_cell=first)",
    "lstm(x, hidden=5, layers=4, direction=backward, keep=keep, start=first, peepholes=true)",
    "lstm(x, hidden=7, proj=5, layers=2, direction=both, keep=keep, start=first, bias=false)",
    "rnn(x, hidden=5, act=relu, layers=2, direction=both, keep=keep, start=first)",
])  # fmt: skip
def test_padding_on_either_side_and_empty_axes(call: str, tmp_path: Path) -> None:
    """A sequence without positions returns its initial state; so does a batch without positions. An
    empty batch returns empty results.
    """
    found = build_spec(tmp_path, call)
    weights = sample_spec_weights(found)
    for opset in (17, 26):
        session = open_silent_session(open_model(found, opset))
        for side in ("left", "right"):
            for case in (
                (3, 5, [5, 2, 0]),
                (2, 4, [0, 0]),
                (2, 0, [0, 0]),
                (0, 3, []),
                (1, 1, [1]),
            ):
                inputs = make_inputs(*case, side)
                assert_outputs_match(
                    run_reference(found, weights, inputs), session.run(None, inputs)
                )


def test_padded_sequences_are_a_loop_without_length_support(tmp_path: Path) -> None:
    found = build_spec(tmp_path, LAYER, " right")
    made = open_model(found, where="openvino")
    assert not list_op_types(made)["GRU"]
    assert list_op_types(made)["Loop"] == 4
    free = build_spec(tmp_path, LAYER.replace("keep=keep, ", ""))
    assert list_op_types(open_model(free, where="openvino"))["GRU"] == 4
    weights, session = (
        sample_spec_weights(build_spec(tmp_path, LAYER, " right")),
        open_silent_session(made),
    )
    for case in ((3, 5, [5, 2, 0]), (2, 0, [0, 0]), (0, 3, [])):
        inputs = make_inputs(*case)
        assert_outputs_match(run_reference(found, weights, inputs), session.run(None, inputs))


def test_padding_declared_on_the_right(tmp_path: Path) -> None:
    found = build_spec(tmp_path, LAYER, " right")
    weights = sample_spec_weights(found)
    session = open_silent_session(open_model(found))
    for case in ((3, 5, [5, 2, 0]), (2, 0, [0, 0]), (0, 3, [])):
        inputs = make_inputs(*case)
        assert_outputs_match(run_reference(found, weights, inputs), session.run(None, inputs))


def test_a_layer_inside_a_loop_reads_its_weights_from_outside(tmp_path: Path) -> None:
    text = """\
specc 1
model words "A word is read letter by letter, a text word by word"
dims batch, words, letters
graph f(x: float[batch, words, letters, 3]) -> (y: float[batch, words, 4]) {
  scan word in x along words collect y {
    _, y3 = gru(word, hidden=4, reset=after) @ letters
    y = y3[:, 0]
  }
  return y
}
"""
    (tmp_path / "m.specc").write_text(text)
    found = elaborate_with_config(str(tmp_path / "m.specc"))
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 3)).astype(np.float32)}
    made = open_model(found)
    assert list_op_types(made)["Split"] == 4, "gates are put in order once, outside"
    assert_outputs_match(
        run_reference(found, sample_spec_weights(found), inputs),
        open_silent_session(made).run(None, inputs),
    )
