"""`dropout`: applied by modules in training mode, absent from everything else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.ir_printer_and_lexer import format_ir

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SPEC = """specc 1
model m
config {{ rate: float = 0.25 }}
dims batch, n
graph g(x: float[batch, n, 8]) -> (y: float[...]) {{
  {body}
}}
block inner(x: float[b, n, 8]) -> float[b, n, 8] {{ return dropout(x, p=rate) }}
"""
RATE = 0.25
PLACES = {
    "in a graph": ("return {x}", "dropout(x, rate)"),
    "in a block": ("return {x}", "inner(x)"),
    "in a loop": (
        "scan t in x along n collect hs {{{{ hs = {x} }}}}\nreturn hs",
        "dropout(t, rate)",
    ),
    "in repeat": ("repeat i in 1 {{{{ x = {x} }}}}\nreturn x", "dropout(x, p=rate)"),
}


def make_spec_texts(case: str) -> tuple[str, str]:
    """Return the spec with dropout, and the spec without."""
    body, call = PLACES[case]
    plain = "t" if "(t" in call else "x"
    return tuple(
        SPEC.format(body=body.format(x=x).replace("{{", "{").replace("}}", "}"))
        for x in (call, plain)
    )


def run_on_ones(model: Any) -> Any:
    return model(x=torch.ones(64, 32, 8))["y"]


@pytest.mark.parametrize("case", PLACES)
def test_training_mode_drops_elements_at_the_rate(case: str) -> None:
    model = specc_torch.module(make_spec_texts(case)[0], init=0)
    torch.manual_seed(0)
    y = run_on_ones(model)
    kept = y != 0
    # 16 384 samples: six standard deviations of their mean are 0.02
    assert abs(1 - kept.float().mean().item() - RATE) < 0.02
    assert torch.all(y[kept] == torch.tensor(1 / (1 - RATE)))
    assert not torch.equal(y, run_on_ones(model))
    steps = kept.float().mean(dim=(0, 2))
    assert torch.all((steps - (1 - RATE)).abs() < 0.12)
    assert not torch.equal(kept[:, 0], kept[:, 1])


@pytest.mark.parametrize("case", PLACES)
def test_compiled_models_and_eval_mode_have_no_dropout(case: str, tmp_path: Path) -> None:
    dropped, plain = make_spec_texts(case)
    model = specc_torch.module(dropped, init=0).eval()
    assert torch.equal(run_on_ones(model), torch.ones(64, 32, 8))
    graphs = []
    for name, text in (("a", dropped), ("b", plain)):
        path = tmp_path / f"{name}.specc"
        path.write_text(text)
        graphs.append(format_ir(elaborate_spec(open_spec(str(path))).graph))
    assert graphs[0] == graphs[1]


def test_the_mask_is_the_one_of_torch() -> None:
    model = specc_torch.module(make_spec_texts("in a graph")[0], init=0)
    x = torch.randn(2, 3, 8)
    torch.manual_seed(7)
    ours = model(x=x)["y"]
    torch.manual_seed(7)
    assert torch.equal(ours, torch.nn.functional.dropout(x, RATE, training=True))


def test_two_calls_on_one_tensor_sample_two_masks() -> None:
    model = specc_torch.module(
        SPEC.format(body="return concat([dropout(x, rate), dropout(x, rate)])"), init=0
    )
    first, second = run_on_ones(model).chunk(2, dim=-1)
    assert not torch.equal(first, second)


def test_a_rate_of_zero_drops_nothing_and_of_one_everything() -> None:
    for rate in (0.0, 1.0):
        model = specc_torch.module(make_spec_texts("in a block")[0], init=0, set={"rate": rate})
        assert torch.equal(run_on_ones(model), torch.full((64, 32, 8), 1.0 - rate))


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_that_is_no_probability_is_an_error(rate: float) -> None:
    with pytest.raises(SpeccError, match="E0417"):
        specc_torch.module(make_spec_texts("in a graph")[0], init=0, set={"rate": rate})


def test_gradients_are_those_of_the_kept_elements() -> None:
    model = specc_torch.module(make_spec_texts("in a graph")[0], init=0)
    x = torch.ones(4, 4, 8, requires_grad=True)
    y = model(x=x)["y"]
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_dropout_does_not_change_a_compiled_model(tmp_path: Path) -> None:
    specc.compile(make_spec_texts("in a loop")[0], tmp_path / "m.onnx", init=0)
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    assert np.array_equal(specc.load(tmp_path / "m.onnx").run(x=x)["y"], x)
