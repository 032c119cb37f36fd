"""Models and packages compiled by earlier versions still load, run, generate and verify.

`tests/kept` contains small ones, compiled at opset 23 with `--init` by an early version. They are
never regenerated: old files must stay readable.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.cli.main import main

KEPT = Path(__file__).parents[1] / "kept"
MODELS = ["xor.onnx", "beside.onnx", "writer.onnx", "lstm_lm", "gpt2"]
LSTM = {"set": {"vocab": 23, "width": 8, "layers": 1}, "init": 3}
GPT2 = {
    "set": {"vocab": 19, "d": 8, "heads": 1, "layers": 1, "context": 32, "stop": [2]},
    "init": 5,
}
WRITERS = {
    "writer.onnx": ("lstm_lm", LSTM | {"graphs": "generate"}),
    "lstm_lm": ("lstm_lm", LSTM | {"graphs": "all"}),
    "gpt2": ("gpt2", GPT2 | {"graphs": "all", "target": "ort-cpu"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_old_model_agrees_with_its_graph(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(KEPT / name)]) == 0
    said = capsys.readouterr().out
    assert "differ" not in said.replace("worst difference", "")


def test_an_old_single_file_model_runs() -> None:
    gates = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    y = specc.load(KEPT / "xor.onnx").run(x=gates)["y"]
    assert y.shape == (4, 1)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("name", WRITERS)
def test_an_old_package_generates_the_tokens_of_a_new_one(name: str, tmp_path: Path) -> None:
    spec, settings = WRITERS[name]
    specc.compile(spec, tmp_path / name, **settings)
    prompt = np.array([[3, 1, 4], [1, 5, 9]])
    old, new = (
        np.stack(
            [made.tokens for made in specc.load(directory / name).generate(prompt, max_tokens=6)]
        )
        for directory in (KEPT, tmp_path)
    )
    assert np.array_equal(old, new)


def test_external_weights_of_an_old_model_are_compared_with_their_hash(tmp_path: Path) -> None:
    for path in KEPT.glob("beside*"):
        shutil.copy(path, tmp_path)
    data = next(tmp_path.glob("*.data"))
    os.truncate(data, data.stat().st_size - 4)
    with pytest.raises(specc.SpeccError, match=data.name):
        specc.load(tmp_path / "beside.onnx")
