"""A spec as an `nn.Module`: names, seeds, ties, files, dtypes."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.weights.formats.safetensors import open_safetensors
from specc.weights.parameter_sources import make_initial_values
from specc.weights.weight_rules_and_initializers import parse_initializer

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SPEC = """
specc 1
model small
dims batch, n
graph f(ids: int[batch, n], keep: keep[batch, n] = ids != 0) -> (logits: float[batch, n, 11]) {
  x = embedding(ids, size=11, dim=8) @ type.train
  x = x + (attention(x, heads=2, mask=visible(keep)) @ layers.0.forward)
  x = layer_norm(x, eps=1e-5) @ layers.0
  return linear(x, out=11) @ head
}
"""


@pytest.fixture
def module(tmp_path: Path) -> object:
    path = tmp_path / "small.specc"
    path.write_text(SPEC)
    model = elaborate_spec(open_spec(str(path)))
    ties = {"head.weight": "type.train.weight"}
    return specc_torch.SpecModule(model.graph, seed=5, ties=ties, defaults=model.defaults)


IDS = np.array([[3, 1, 0], [2, 10, 4]])


def test_state_dict_has_the_names_of_the_spec(module: object) -> None:
    assert set(module.state_dict()) == set(module.graph.parameters)
    assert "type.train.weight" in module.state_dict()


def test_initial_values_depend_on_seed_and_name(module: object) -> None:
    for name, facts in module.graph.parameter_facts.items():
        if name not in module.ties:
            shape = tuple(d.evaluate({}) for d in facts.type.shape)
            expected = make_initial_values(parse_initializer(facts.initializer), 5, name, shape)
            np.testing.assert_array_equal(module.state_dict()[name], expected)


def test_tied_parameters_are_one_and_are_saved_once(module: object, tmp_path: Path) -> None:
    parameters = dict(module.named_spec_parameters())
    assert parameters["head.weight"] is parameters["type.train.weight"]
    module.save(tmp_path / "small.safetensors")
    with open_safetensors(tmp_path / "small.safetensors") as file:
        assert set(file.tensors) == set(module.graph.parameters) - {"head.weight"}


def test_inputs_with_a_default_are_optional(module: object) -> None:
    left_out = module(ids=torch.tensor(IDS))["logits"]
    assert torch.equal(
        left_out, module(ids=torch.tensor(IDS), keep=torch.tensor(IDS != 0))["logits"]
    )


def test_outputs_equal_the_reference(module: object) -> None:
    module.double()
    numbers = {n: p.detach().numpy() for n, p in module.named_spec_parameters()}
    expected = specc_numpy.evaluate_graph(module.graph, {"ids": IDS, "keep": IDS != 0}, numbers)[
        "logits"
    ]
    found = module(ids=IDS)["logits"]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-12, atol=1e-14)


def test_a_saved_state_loads_again(module: object, tmp_path: Path) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25)
    again = specc_torch.SpecModule(module.graph, ties=module.ties, defaults=module.defaults)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(ids=IDS)["logits"], module(ids=IDS)["logits"])


def test_half_precision_keeps_its_dtype(module: object, tmp_path: Path) -> None:
    module.bfloat16().save(tmp_path / "half.safetensors")
    with open_safetensors(tmp_path / "half.safetensors") as file:
        assert {t.dtype for t in file.tensors.values()} == {"bf16"}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "E0910"),
        ({"ids": IDS, "mask": IDS}, "E0910"),
        ({"ids": IDS + 0.5}, "E0907"),
        ({"ids": IDS[0]}, "E0911"),
        ({"ids": IDS, "keep": IDS[:, :2] != 0}, "E0912"),
        ({"ids": IDS + 9}, "E0913"),
    ],
)
def test_wrong_inputs_are_diagnostics(module: object, given: dict[str, object], code: str) -> None:
    with pytest.raises(SpeccError) as failed:
        module(**given)
    assert failed.value.diagnostics[0].code == code
