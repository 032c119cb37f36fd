"""The numbers demo: losses decrease, training is reproducible, and the committed weights solve
held-out examples.
"""

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specc.weights.formats.safetensors import open_safetensors

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

DEMO = Path(__file__).parents[3] / "docs" / "demos" / "numbers"


@pytest.fixture(scope="module")
def train_script() -> Iterator[ModuleType]:
    """Return `train.py`, whose modules are named after its directory."""
    before = {name: sys.modules.get(name) for name in ("data", "batches")}
    for name in ("data", "batches", "train_numbers"):
        found = importlib.util.spec_from_file_location(
            name, DEMO / f"{name.removesuffix('_numbers')}.py"
        )
        assert found is not None
        assert found.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    yield module
    for name, old in before.items():
        if old is None:
            del sys.modules[name]
        else:
            sys.modules[name] = old


def test_training_reduces_the_loss_reproducibly(train_script: ModuleType, tmp_path: Path) -> None:
    files, sets = (
        [],
        {"width": 16, "heads": 2, "hidden": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
    )
    for turn in range(2):
        model = specc_torch.module(train_script.SPEC, init=7, set=sets)
        steps = train_script.iterate_half_batches(16, seed=1, workers=0, device=torch.device("cpu"))
        shown = next(steps)
        before = sum(train_script.compute_loss(model, *half).item() for half in shown)
        plan = train_script.TrainingSchedule(warmup=2, steps=10, seconds=math.inf)
        assert train_script.train(model, steps, plan) == 10
        assert sum(train_script.compute_loss(model, *half).item() for half in shown) < before
        model.save(tmp_path / f"{turn}.safetensors")
        files.append((tmp_path / f"{turn}.safetensors").read_bytes())
    assert files[0] == files[1]


def test_time_limit_becomes_a_number_of_steps(train_script: ModuleType) -> None:
    plan = train_script.TrainingSchedule(warmup=10, steps=None, seconds=100.0)
    # slow at first, then half a second a step
    clock = [0.0] * 4 + [0.5 * n for n in range(4, 400)]
    ended = next(step for step in range(1, 400) if plan.is_finished(step, clock[step]))
    assert plan.steps == ended
    assert 94 < clock[ended] <= 100
    rates = [plan.compute_learning_rate_factor(step) for step in range(ended)]
    assert max(rates) == 1
    assert rates[ended - 1] < 0.01
    again = train_script.TrainingSchedule(warmup=10, steps=ended, seconds=math.inf)
    assert [again.compute_learning_rate_factor(step) for step in range(ended)] == rates


def test_committed_weights_solve_held_out_examples(train_script: ModuleType) -> None:
    with open_safetensors(train_script.SPEC.with_name("numbers.safetensors")) as file:
        assert file.size < 1_000_000
        names = set(file.tensors)
    model = specc_torch.module(train_script.SPEC)  # whose spec names them
    assert names == {name for name, _ in model.named_parameters()}
    assert train_script.print_accuracies(model, 200) >= 0.98


def test_letter_ids_match_the_spec(train_script: ModuleType) -> None:
    text = "zweitausend 12"
    model = specc_torch.module(train_script.SPEC, init=0)
    inputs, _ = specc_torch.batch(model, [{"source": text, "target": "1"}])
    assert inputs["source"].tolist() == train_script.build_alphabet().encode_texts([text]).tolist()
    assert train_script.decode_answer(inputs["source"][0].tolist()) == text
