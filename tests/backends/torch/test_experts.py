"""Mixtures of experts: trained weights compile to a model with the same results, with all experts
of a weight in one tensor.
"""

from pathlib import Path

import numpy as np
import pytest

import specc
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SMALL = {"vocab": 17, "d": 16, "heads": 2, "kv_heads": 1, "layers": 2, "hidden": 24, "experts": 4}


def test_compiled_model_equals_the_trained_module(tmp_path: Path) -> None:
    sets = [f"{name}={value}" for name, value in SMALL.items()]
    graph = elaborate_spec(open_spec("mixtral", config_settings=sets)).graph
    model = specc_torch.SpecModule(graph, seed=3)
    ids = torch.arange(24).reshape(2, 12) * 5 % 17
    keep = torch.arange(12) < torch.tensor([[12], [7]])

    def loss() -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=keep)["logits"]
        return torch.nn.functional.cross_entropy(
            logits[:, :-1][keep[:, 1:]], ids[:, 1:][keep[:, 1:]]
        )

    before = loss().item()
    learning = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(15):
        learning.zero_grad()
        now = loss()
        now.backward()
        learning.step()
    assert loss().item() < before / 2
    trained = dict(model.named_parameters())
    for name in ("w1", "w2", "w3"):
        whole = f"model.layers.1.block_sparse_moe.experts.{name}.weight"
        assert trained[whole].shape[0] == 4
        assert trained[whole].grad is not None
        assert trained[whole].grad.abs().sum() > 0
    model.save(tmp_path / "model.safetensors")
    specc.compile("mixtral", tmp_path / "m.onnx", weights=tmp_path / "model.safetensors", set=SMALL)
    compiled = specc.load(tmp_path / "m.onnx", threads=1)
    found = compiled.run(input_ids=ids.numpy(), attention_mask=keep.numpy())["logits"]
    with torch.no_grad():
        wanted = model.double()(input_ids=ids, attention_mask=keep)["logits"].numpy()
    there = keep.numpy()
    gap = np.abs(found - wanted)[there].max()
    assert gap <= 1e-5 * np.abs(wanted[there]).max()


def test_unused_experts_get_no_gradient() -> None:
    sets = [f"{name}={value}" for name, value in SMALL.items()]
    graph = elaborate_spec(open_spec("mixtral", config_settings=sets)).graph
    model = specc_torch.SpecModule(graph, seed=3)
    ids = torch.tensor([[3]])
    made = model(input_ids=ids, attention_mask=torch.ones(1, 1, dtype=torch.bool))
    made["logits"].square().sum().backward()
    for layer in range(2):
        name = f"model.layers.{layer}.block_sparse_moe.experts.w1.weight"
        grad = dict(model.named_parameters())[name].grad
        assert grad is not None
        assert int((grad.abs().sum((1, 2)) > 0).sum()) == 2
