"""End to end: a trained spec is compiled and classifies images of digits that were not in the
training data.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.parameter_sweeps import cover_axes
from support.verification_lines import list_model_lines

import specc
from specc.cli.main import main
from specc.cli.run_inputs import parse_input_arguments
from specc.runtime.single_model_file import LoadedModel

SAMPLES = Path(__file__).parents[2] / "docs" / "demos" / "digits"
DIGITS = {"zero": 0, "two": 2, "three": 3, "four": 4, "seven": 7, "nine": 9}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.onnx"
    specc.compile("digits", path)
    return path


@pytest.fixture(scope="module")
def model(digits: Path) -> LoadedModel:
    return specc.load(digits)


@pytest.mark.parametrize("name", DIGITS)
def test_it_classifies_the_digits(
    digits: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(digits), str(SAMPLES / f"{name}.png")]) == 0
    digit, share, sign = capsys.readouterr().out.splitlines()[0].split()
    assert int(digit) == DIGITS[name]
    assert sign == "%"
    assert int(share) >= 90


def test_it_agrees_with_the_reference(model: LoadedModel) -> None:
    assert len(list(list_model_lines(model.selected_model, rounds=2))) == 2


def test_python_gives_what_the_command_gives(model: LoadedModel) -> None:
    pixels = parse_input_arguments(model.input_signature, [str(SAMPLES / "seven.png")]).inputs[
        "pixel_values"
    ]
    logits = model.run(pixel_values=pixels)["logits"]
    assert logits.shape == (1, 10)
    assert int(logits.argmax()) == 7


def test_attention_maps_are_available(digits: Path, model: LoadedModel, tmp_path: Path) -> None:
    pixels = parse_input_arguments(model.input_signature, [str(SAMPLES / "seven.png")]).inputs[
        "pixel_values"
    ]
    results, weights = model.attention(pixel_values=pixels)
    assert int(results["logits"].argmax()) == 7
    assert len(weights) == 4  # one a layer
    for name, found in weights.items():
        assert found.shape == (1, 4, 17, 17), name  # [CLS] and 16 patches
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    picture = tmp_path / "looked.png"
    assert main(["run", str(digits), str(SAMPLES / "seven.png"), "--attention", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_taps_return_intermediate_values(tmp_path: Path) -> None:
    path = tmp_path / "tapped.onnx"
    specc.compile(
        "digits",
        path,
        taps=["vit.encoder.layer.3.attention", "vit.encoder.layer.3.attention:weights"],
    )
    found = specc.load(path).run(pixel_values=np.zeros((2, 1, 8, 8), np.float32))
    assert found["vit.encoder.layer.3.attention"].shape == (2, 17, 48)
    assert found["vit.encoder.layer.3.attention.weights"].shape == (2, 4, 17, 17)


def test_node_names_show_the_architecture(digits: Path) -> None:
    names = [node.name for node in onnx.load(digits).graph.node]
    assert any("vit/encoder/layer/3/attention" in name for name in names)
    assert len(set(names)) == len(names)


def test_compiling_twice_gives_the_same_bytes(digits: Path, tmp_path: Path) -> None:
    again = tmp_path / digits.name
    specc.compile("digits", again)
    assert again.read_bytes() == digits.read_bytes()


@pytest.mark.parametrize(
    ("target", "opset"),
    cover_axes(lambda target, opset: target == opset % 2, ("onnx", "ort-cpu"), (17, 20, 23, 26)),
)
def test_every_opset_gives_the_same_predictions(
    model: LoadedModel, target: str, opset: int, tmp_path: Path
) -> None:
    path = tmp_path / "digits.onnx"
    specc.compile("digits", path, target=target, opset=opset)
    pixels = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    want, got = (
        model.run(pixel_values=pixels)["logits"],
        specc.load(path).run(pixel_values=pixels)["logits"],
    )
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parity
def test_held_out_digits(model: LoadedModel) -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    data = sklearn.load_digits()
    # as docs/demos/digits/train.py leaves them out
    held = np.arange(len(data.target)) % 5 == 0
    pixels = (data.images[held][:, None] / 16 - 0.5) / 0.5
    found = model.run(pixel_values=pixels.astype(np.float32))["logits"].argmax(-1)
    assert (found == data.target[held]).mean() >= 0.97
