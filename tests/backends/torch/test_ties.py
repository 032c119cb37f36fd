"""Tied parameters of a spec are one parameter of the module, saved once, and compile to the trained
values.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.weights.formats.safetensors import write_safetensors

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SMALL: dict[str, dict[str, Any]] = {
    "lstm_lm": {"vocab": 11, "width": 8, "layers": 1, "tied": True},
    "encoder_decoder": {
        "vocab": 11, "width": 8, "heads": 2, "hidden": 12, "encoder": {"layers": 1}, "decoder": {"layers": 1},
    },
    "transformer": {"vocab": 11, "d": 8, "hidden": 12, "heads": 2, "layers": 1},
}  # fmt: skip
TIED = {"lstm_lm": 1, "encoder_decoder": 2, "transformer": 1}
IDS = np.array([[3, 1, 9, 4], [2, 10, 4, 4]])


def build_module(name: str) -> Any:
    flat = [
        f"{k}.{n}={m}" if n else f"{k}={str(m).lower()}"
        for k, v in SMALL[name].items() for n, m in (v.items() if isinstance(v, dict) else [("", v)])
    ]  # fmt: skip
    model = elaborate_spec(open_spec(name, config_settings=flat))
    return specc_torch.SpecModule(model.graph, seed=3, defaults=model.defaults)


@pytest.mark.parametrize("name", SMALL)
def test_compiled_model_equals_the_trained_module(name: str, tmp_path: Path) -> None:
    module = build_module(name)
    assert len(module.ties) == TIED[name]
    assert len(list(module.parameters())) == len(module.graph.parameters) - TIED[name]
    given = {"ids": IDS} if name == "lstm_lm" else {"source": IDS, "target": IDS}
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        logits = module(**given)["logits"]
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.tensor(IDS).flatten()
        ).backward()
        optimizer.step()
    module.save(tmp_path / "trained.safetensors")
    made = specc.compile(
        name,
        tmp_path / "m.onnx",
        weights=tmp_path / "trained.safetensors",
        set=SMALL[name],
        target="onnx",
    )
    assert not made.warnings
    found = specc.load(tmp_path / "m.onnx").run(**given)["logits"]
    with torch.no_grad():
        wanted = module(**given)["logits"].numpy()
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_tied_values_may_be_given_once_and_must_agree() -> None:
    module = build_module("lstm_lm")
    ((name, root),) = module.ties.items()
    table = np.arange(88, dtype=np.float32).reshape(11, 8)
    again = specc_torch.SpecModule(module.graph, {name: table})
    assert np.array_equal(dict(again.named_spec_parameters())[root].detach(), table)
    assert specc_torch.SpecModule(module.graph, {name: table, root: table.copy()}).ties
    with pytest.raises(SpeccError, match="E0416"):
        specc_torch.SpecModule(module.graph, {name: table, root: table + 1})
    assert not specc_torch.SpecModule(module.graph, {name: table, root: table + 1}, ties={}).ties


SQUARE = """specc 1
model m
dims batch
graph g(x: float[batch, 4]) -> (y: float[batch, 4]) { return linear(x, out=4) @ a }
weights { load "a.weight" = transpose("published.kernel")  load "a.bias" = "published.bias" }
"""


def test_a_saved_module_is_not_read_as_a_published_checkpoint(tmp_path: Path) -> None:
    """`load` rules convert published checkpoints; a saved module has the names and shapes of the
    spec.
    """
    (tmp_path / "m.specc").write_text(SQUARE)
    module = specc_torch.SpecModule(
        elaborate_spec(open_spec(str(tmp_path / "m.specc"))).graph, seed=1
    )
    module.save(tmp_path / "saved.safetensors")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", weights=tmp_path / "saved.safetensors")
    numbers = {n: p.detach().numpy() for n, p in module.named_spec_parameters()}
    wanted = x @ numbers["a.weight"].T + numbers["a.bias"]
    assert (
        np.abs(specc.load(tmp_path / "m.onnx").run(x=x)["y"] - wanted).max()
        <= 1e-5 * np.abs(wanted).max()
    )
    write_safetensors(
        tmp_path / "theirs.safetensors",
        {"published.kernel": numbers["a.weight"].T, "published.bias": numbers["a.bias"]},
    )
    specc.compile(
        tmp_path / "m.specc", tmp_path / "n.onnx", weights=tmp_path / "theirs.safetensors"
    )
    assert (
        np.abs(specc.load(tmp_path / "n.onnx").run(x=x)["y"] - wanted).max()
        <= 1e-5 * np.abs(wanted).max()
    )
