"""`model.stream`: inputs in chunks, constant inputs, and the end of a stream."""

from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
import pytest

import specc
from specc.api import Model
from specc.cli.main import main
from specc.runtime.streaming_inference import InputStream

SPEC = """specc 1
model m

dims batch, n, src

graph g(x: float[batch, n, 1], memory: float[batch, src, 2],
        late: float[batch, n] = MADE) -> (y: float[...], newest: float[batch, 2]) {
  x = concat([x, insert(late, axis=2)])
  x = conv(x, out=2, kernel=6, stride=2, padding=PAD) @ one
  x = x + (attention(x, memory, heads=1, mask=all) @ across)
  return x, last(x)
}

stream y of x
stream newest of x
"""


def model(directory: Path, pad: str = "causal", made: str = "cumsum(x[..., 0], axis=1)") -> Model:
    """Return a package of the spec above."""
    path = directory / "m.specc"
    path.write_text(SPEC.replace("PAD", pad).replace("MADE", made), encoding="utf-8")
    specc.compile(path, directory / "out", init=2, graphs=["score", "step"], force=True)
    return specc.load(directory / "out")


def given(rows: int, batch: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, rows, 1)).astype(np.float32)
    return {"x": x, "memory": rng.normal(size=(batch, 3, 2)).astype(np.float32)}


@pytest.mark.parametrize("made", ["cumsum(x[..., 0], axis=1)", "x[..., 0] * 2.0"])
def test_a_default_reads_earlier_chunks(tmp_path: Path, made: str) -> None:
    one, all_ = model(tmp_path, made=made), given(12)
    full = one.run(**all_)
    stream = one.stream(memory=all_["memory"])
    parts = [stream.push(x=all_["x"][:, n : n + 4]) for n in (0, 4, 8)]
    got = np.concatenate([each["y"] for each in parts], axis=1)
    np.testing.assert_allclose(got, full["y"], atol=1e-6)
    np.testing.assert_allclose(parts[-1]["newest"], full["newest"], atol=1e-6)
    assert stream.position_count == 12


def test_leftover_positions_without_output_are_allowed_at_the_end(tmp_path: Path) -> None:
    one, all_ = model(tmp_path), given(7)
    full = one.run(**all_)["y"]
    stream = one.stream(memory=all_["memory"])
    first = stream.push(x=all_["x"][:, :4])["y"]
    last = stream.push(x=all_["x"][:, 4:], last=True)["y"]
    np.testing.assert_allclose(np.concatenate([first, last], axis=1), full, atol=1e-6)
    other = one.stream(memory=all_["memory"]).push(x=all_["x"][:, :1], last=True)
    assert other["y"].shape == (2, 0, 2)


def test_leftover_positions_with_output_are_refused_at_the_end(tmp_path: Path) -> None:
    one, all_ = model(tmp_path, pad="[5, 0]"), given(7)
    assert one.run(**all_)["y"].shape[1] == 4
    stream = one.stream(memory=all_["memory"])
    with pytest.raises(specc.SpeccError, match=r"E0979.*last position cannot fill a chunk of 2"):
        stream.push(x=all_["x"], last=True)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_invalid_chunk_is_refused(tmp_path: Path, rows: int) -> None:
    stream = model(tmp_path).stream(memory=given(1)["memory"])
    with pytest.raises(specc.SpeccError, match="E0976"):
        stream.push(x=given(rows)["x"])
    # a rejected chunk changes no state
    assert stream.push(x=given(4)["x"])["y"].shape == (2, 2, 2)


def test_constant_inputs_are_given_at_the_start_only(tmp_path: Path) -> None:
    one, all_ = model(tmp_path), given(4)
    with pytest.raises(specc.SpeccError, match=r"E0978.*`x` must not be passed to `stream`"):
        one.stream(x=all_["x"])
    with pytest.raises(specc.SpeccError, match=r"E0910.*no input `y`"):
        one.stream(y=all_["x"])
    stream = one.stream(memory=all_["memory"])
    with pytest.raises(specc.SpeccError, match=r"E0978.*`memory` is constant during a stream"):
        stream.push(x=all_["x"], memory=all_["memory"])
    with pytest.raises(specc.SpeccError, match="E0910"):
        stream.push()
    with pytest.raises(specc.SpeccError, match="E0910"):
        one.stream().push(x=all_["x"])
    stream.push(x=all_["x"], last=True)
    with pytest.raises(specc.SpeccError, match=r"E0978.*has ended"):
        stream.push(x=all_["x"])


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 4, 1)), np.zeros((2, 4, 2)), np.zeros(4), [["a"]], "text"]
)
def test_a_chunk_with_another_shape_is_refused(tmp_path: Path, wrong: object) -> None:
    stream = model(tmp_path).stream(memory=given(1)["memory"])
    stream.push(x=given(4)["x"])
    with pytest.raises(specc.SpeccError, match="E09"):
        stream.push(x=wrong)


def test_a_model_without_time_axis_is_refused(tmp_path: Path) -> None:
    specc.compile("xor", tmp_path / "xor.onnx", init=0)
    with pytest.raises(specc.SpeccError, match="E0977"):
        specc.load(tmp_path / "xor.onnx").stream()


def test_a_step_without_encoder_runs_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    text = SPEC.replace("PAD", "causal").replace("MADE", "x[..., 0]")
    path.write_text(text, encoding="utf-8")
    specc.compile(path, tmp_path / "out", init=2, graphs=["step"])
    one = specc.load(tmp_path / "out")
    assert one.input_signature.sequence_input == "x"
    streamer = one.streaming_model
    assert streamer is not None
    all_ = given(12)
    whole, pieces = streamer.run(all_), streamer.run(all_, 4)
    assert whole["y"].shape == (2, 6, 2)
    np.testing.assert_allclose(whole["y"], pieces["y"], atol=1e-6)
    np.testing.assert_allclose(whole["newest"], pieces["newest"], atol=1e-6)


def test_the_manifest_marks_a_streaming_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.specc"
    text = SPEC.replace("PAD", "causal").replace("MADE", "x[..., 0]")
    path.write_text(text, encoding="utf-8")
    specc.compile(path, tmp_path / "m.onnx", init=2)
    shown = []
    for what in (path, tmp_path / "m.onnx"):
        assert main(["show", str(what), "--print-after", "step"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "f32[batch, 2*new, 1]" in shown[0]


def test_a_generative_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    text = SPEC.replace("PAD", "causal").replace("MADE", "x[..., 0]")
    path.write_text(text, encoding="utf-8")
    for asked in ({"graphs": ["generate"]}, {"graphs": ["step"], "io_names": "hf"}):
        with pytest.raises(specc.SpeccError, match="E0977"):
            specc.compile(path, tmp_path / "out", init=2, **asked)
    with pytest.raises(specc.SpeccError, match="E0977"):
        specc.compile(path, tmp_path / "one.onnx", init=2, graphs=["generate"])


def test_threads_that_share_a_stream_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two threads would resume from one state, and positions would be lost."""
    quick = InputStream._run_step

    def slow(self: InputStream, *given: Any) -> Any:
        before = dict(self.states)
        sleep(0.002)
        self.states = before
        return quick(self, *given)

    monkeypatch.setattr(InputStream, "_run_step", slow)
    one, all_ = model(tmp_path, made="x[..., 0] * 2.0"), given(64)
    stream, made = one.stream(memory=all_["memory"]), list[Any]()
    same = np.repeat(all_["x"][:, :1], 2, axis=1)

    def push() -> None:
        made.append(stream.push(x=same)["y"])

    threads = [Thread(target=push) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = {"x": np.repeat(same[:, :1], 64, axis=1), "memory": all_["memory"]}
    full = one.run(**rows)["y"]
    found = sorted(float(y.sum()) for y in made)
    want = sorted(float(full[:, n].sum()) for n in range(32))
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert repr(stream) == "<specc stream of m: 64 positions of x>"
