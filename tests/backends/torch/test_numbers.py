"""The numbers demo trains its spec: losses fall, a run can be repeated, what it kept
answers what it never saw.
"""

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specc.weights.formats.safetensors import open_tensors

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

DEMO = Path(__file__).parents[3] / "docs" / "demos" / "numbers"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """`train.py`, whose modules are named for the folder it runs in."""
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


def test_a_few_steps_make_the_loss_smaller_and_are_the_same_again(
    script: ModuleType, tmp_path: Path
) -> None:
    files, sets = (
        [],
        {"width": 16, "heads": 2, "hidden": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
    )
    for turn in range(2):
        model = specc_torch.module(script.SPEC, init=7, set=sets)
        steps = script.halves(16, seed=1, workers=0, device=torch.device("cpu"))
        shown = next(steps)
        before = sum(script.loss_of(model, *half).item() for half in shown)
        plan = script.Plan(warmup=2, steps=10, seconds=math.inf)
        assert script.train(model, steps, plan) == 10
        assert sum(script.loss_of(model, *half).item() for half in shown) < before
        model.save(tmp_path / f"{turn}.safetensors")
        files.append((tmp_path / f"{turn}.safetensors").read_bytes())
    assert files[0] == files[1]


def test_a_limit_in_time_becomes_a_number_of_steps(script: ModuleType) -> None:
    plan = script.Plan(warmup=10, steps=None, seconds=100.0)
    # slow at first, then half a second a step
    clock = [0.0] * 4 + [0.5 * n for n in range(4, 400)]
    ended = next(step for step in range(1, 400) if plan.passed(step, clock[step]))
    assert plan.steps == ended
    assert 94 < clock[ended] <= 100
    rates = [plan.rate(step) for step in range(ended)]
    assert max(rates) == 1
    assert rates[ended - 1] < 0.01
    again = script.Plan(warmup=10, steps=ended, seconds=math.inf)
    assert [again.rate(step) for step in range(ended)] == rates


def test_the_kept_weights_answer_what_was_held_out(script: ModuleType) -> None:
    with open_tensors(script.SPEC.with_name("numbers.safetensors")) as file:
        assert file.size < 1_000_000
        names = set(file.tensors)
    model = specc_torch.module(script.SPEC)  # whose spec names them
    assert names == {name for name, _ in model.named_parameters()}
    assert script.report(model, 200) >= 0.98


def test_letters_have_the_ids_that_the_spec_reads_them_with(script: ModuleType) -> None:
    text = "zweitausend 12"
    model = specc_torch.module(script.SPEC, init=0)
    inputs, _ = specc_torch.batch(model, [{"source": text, "target": "1"}])
    assert inputs["source"].tolist() == script.alphabet().rows([text]).tolist()
    assert script.text_of(inputs["source"][0].tolist()) == text
