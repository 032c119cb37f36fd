"""A spec can be trained directly; the digits demo keeps the weights that its script trained."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from specc.weights.formats.safetensors import open_safetensors

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def train_script() -> ModuleType:
    found = importlib.util.spec_from_file_location(
        "train_digits", ROOT / "docs" / "demos" / "digits" / "train.py"
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_committed_weights_classify_held_out_images(train_script: ModuleType) -> None:
    with open_safetensors(train_script.SPEC.with_name("digits.safetensors")) as file:
        assert file.size < 1_000_000
        names = set(file.tensors)
    model = specc_torch.module(train_script.SPEC)  # whose spec names them
    assert names == {name for name, _ in model.named_parameters()}
    pixels, target = train_script.load_digit_images(model)
    kept = train_script.select_validation_images(len(pixels))
    assert train_script.compute_accuracy(model, pixels[kept], target[kept]) >= 0.97


def test_training_reduces_the_loss_reproducibly(train_script: ModuleType, tmp_path: Path) -> None:
    small = {"d": 16, "layers": 1, "hidden": 16}
    files = []
    for turn in range(2):
        torch.manual_seed(0)
        model = specc_torch.module(train_script.SPEC, init=7, set=small)
        pixels, target = train_script.load_digit_images(model)
        few, shown = pixels[:256], target[:256]
        before = torch.nn.functional.cross_entropy(model(pixel_values=few)["logits"], shown)
        train_script.train(model, few, shown, epochs=3)
        after = torch.nn.functional.cross_entropy(model(pixel_values=few)["logits"], shown)
        assert after.item() < before.item()
        specc_torch.save(model, tmp_path / f"{turn}.safetensors")
        files.append((tmp_path / f"{turn}.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("name", ["digits", "dates", "numbers", "learned"])
def test_demos_import_no_private_modules(name: str) -> None:
    path = ROOT / "docs" / "demos" / name / "train.py"
    found = re.findall(r"^(?:from|import) (specc\S*)", path.read_text(encoding="utf-8"), re.M)
    assert set(found) <= {"specc", "specc_torch"}
