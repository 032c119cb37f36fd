"""A spec is trained as it is; the digits demo keeps what its script trained."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from specc.compiler.reading import reading_of
from specc.compiler.spec import elaborated, open_spec
from specc.weights.formats.safetensors import open_tensors

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location(
        "train_digits", ROOT / "docs" / "demos" / "digits" / "train.py"
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_kept_weights_read_what_was_held_out(script: ModuleType) -> None:
    spec = open_spec(str(script.SPEC))
    described = elaborated(spec)
    with open_tensors(script.SPEC.with_name("digits.safetensors")) as file:
        assert file.size < 1_000_000
        values = {name: file.array(name) for name in file.tensors}
    assert set(values) == set(described.graph.parameters)
    pixels, target = script.pictures(
        reading_of(spec.program, described).of_input("pixels")
    )
    kept = script.held_out(len(pixels))
    model = specc_torch.SpecModule(described.graph, values)
    assert script.accuracy(model, pixels[kept], target[kept]) >= 0.97


def test_a_few_steps_make_the_loss_smaller_and_are_the_same_again(
    script: ModuleType, tmp_path: Path
) -> None:
    spec = open_spec(str(script.SPEC), sets=["d=16", "layers=1", "hidden=16"])
    described = elaborated(spec)
    pixels, target = script.pictures(
        reading_of(spec.program, described).of_input("pixels")
    )
    few, shown = pixels[:256], target[:256]
    files = []
    for turn in range(2):
        torch.manual_seed(0)
        model = specc_torch.SpecModule(described.graph, seed=7)
        before = torch.nn.functional.cross_entropy(model(pixels=few)["logits"], shown)
        script.train(model, few, shown, epochs=3)
        after = torch.nn.functional.cross_entropy(model(pixels=few)["logits"], shown)
        assert after.item() < before.item()
        model.save(tmp_path / f"{turn}.safetensors")
        files.append((tmp_path / f"{turn}.safetensors").read_bytes())
    assert files[0] == files[1]
